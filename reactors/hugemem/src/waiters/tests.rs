//! The waiters' lists against plain queues.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::{Waiter, Waiters};
use crate::class::CLASSES;
use crate::pool::WaiterToken;

fn waiter(token: u64) -> Waiter {
    Waiter {
        token: WaiterToken(token),
        len: token as usize,
        is_promised: false,
    }
}

#[test]
fn no_room_means_no() {
    let mut none = Waiters::new(0);
    assert!(!none.push(0, waiter(1)));
    let mut one = Waiters::new(1);
    assert!(one.push(3, waiter(1)));
    assert!(!one.push(0, waiter(2)));
    one.pop(3);
    assert!(one.push(0, waiter(2)), "a node is used again");
}

#[derive(Debug, Clone)]
enum Step {
    Push { class: usize },
    PopOldest { skip: [bool; CLASSES] },
    Cancel { modulus: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..CLASSES).prop_map(|class| Step::Push { class }),
        3 => any::<[bool; CLASSES]>().prop_map(|skip| Step::PopOldest { skip }),
        1 => (2u64..5).prop_map(|modulus| Step::Cancel { modulus }),
    ]
}

const ROOM: usize = 12;

proptest! {
    #[test]
    fn lists_behave_like_one_queue_in_order_of_arrival(
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut waiters = Waiters::new(ROOM);
        let mut model: VecDeque<(usize, u64)> = VecDeque::new();
        for (number, step) in (0u64..).zip(steps) {
            match step {
                Step::Push { class } => {
                    let room = model.len() < ROOM;
                    prop_assert_eq!(waiters.push(class, waiter(number)), room);
                    if room {
                        model.push_back((class, number));
                    }
                }
                Step::PopOldest { skip } => {
                    let at = model.iter().position(|&(class, _)| !skip[class]);
                    let expected = at.and_then(|at| model.remove(at));
                    let oldest = waiters.oldest(skip);
                    prop_assert_eq!(oldest.map(|(class, w)| (class, w.token.0)), expected);
                    if let Some((class, waiter)) = oldest {
                        prop_assert_eq!(waiter.len as u64, waiter.token.0);
                        waiters.pop(class);
                    }
                }
                Step::Cancel { modulus } => {
                    let mut gone = [0usize; CLASSES];
                    waiters.cancel(|token| token.0 % modulus == 0, |class| gone[class] += 1);
                    for (class, gone) in gone.into_iter().enumerate() {
                        let hit = |&&(of, token): &&(usize, u64)| of == class && token % modulus == 0;
                        prop_assert_eq!(gone, model.iter().filter(hit).count());
                    }
                    model.retain(|&(_, token)| token % modulus != 0);
                }
            }
            for class in 0..CLASSES {
                let expected = model.iter().all(|&(of, _)| of != class);
                prop_assert_eq!(waiters.is_empty(class), expected);
            }
        }
    }
}
