//! The wait lists compared with plain queues.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::{Waiter, Waiters};
use crate::account::Account;
use crate::class::CLASSES;
use crate::pool::WaiterToken;

fn waiter(token: u64, account: Account) -> Waiter {
    Waiter {
        token: WaiterToken(token),
        account,
        len: token as usize,
        since_ns: token,
        is_promised: false,
    }
}

fn system(token: u64) -> Waiter {
    waiter(token, Account::SYSTEM)
}

#[test]
fn full_waiter_list_refuses() {
    let mut none = Waiters::new(0);
    assert!(!none.push(0, system(1)));
    assert!(!none.has_any_of(0, Account::SYSTEM));
    none.cancel(Some(Account::SYSTEM), |_| true, |_| {});
    let mut one = Waiters::new(1);
    assert!(one.push(3, system(1)));
    assert!(!one.push(0, system(2)));
    one.pop(3, 0);
    assert!(one.push(0, system(2)), "a node is used again");
}

#[derive(Debug, Clone)]
enum Step {
    Push { class: usize, host: u16 },
    Pop { class: usize },
    Pass { class: usize },
    Cancel { modulus: u64, host: Option<u16> },
}

const HOSTS: u16 = 4;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..CLASSES, 1..=HOSTS).prop_map(|(class, host)| Step::Push { class, host }),
        3 => (0..CLASSES).prop_map(|class| Step::Pop { class }),
        1 => (0..CLASSES).prop_map(|class| Step::Pass { class }),
        1 => (1u64..5, prop::option::of(1..=HOSTS))
            .prop_map(|(modulus, host)| Step::Cancel { modulus, host }),
    ]
}

const ROOM: usize = 24;

/// One class: the accounts in turn, each with its requests in order.
type Model = VecDeque<(Account, VecDeque<u64>)>;

fn push(model: &mut Model, account: Account, token: u64) {
    match model.iter_mut().find(|(of, _)| *of == account) {
        Some((_, tokens)) => tokens.push_back(token),
        None => model.push_back((account, VecDeque::from([token]))),
    }
}

proptest! {
    #[test]
    fn waiters_are_round_robin_by_account_and_fifo_within_one(
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let mut waiters = Waiters::new(ROOM);
        let mut models: [Model; CLASSES] = Default::default();
        for (number, step) in (0u64..).zip(steps) {
            match step {
                Step::Push { class, host } => {
                    let all = models.iter().flatten().map(|(_, tokens)| tokens.len());
                    let room = all.sum::<usize>() < ROOM;
                    let account = Account::io(host);
                    prop_assert_eq!(waiters.push(class, waiter(number, account)), room);
                    if room {
                        push(&mut models[class], account, number);
                    }
                }
                Step::Pop { class } => {
                    let next = waiters.next(class).map(|it| (it.account, it.token.0));
                    waiters.pop(class, 0);
                    let expected = models[class].pop_front().map(|(account, mut tokens)| {
                        let token = tokens.pop_front().expect("never empty");
                        if !tokens.is_empty() {
                            models[class].push_back((account, tokens));
                        }
                        (account, token)
                    });
                    prop_assert_eq!(next, expected);
                }
                Step::Pass { class } => {
                    waiters.advance_account(class);
                    if let Some(first) = models[class].pop_front() {
                        models[class].push_back(first);
                    }
                }
                Step::Cancel { modulus, host } => {
                    let account = host.map(Account::io);
                    let mut removed = [0usize; CLASSES];
                    let cancelled = |token: u64| token.is_multiple_of(modulus);
                    waiters.cancel(account, |it| cancelled(it.0), |class| removed[class] += 1);
                    for (class, model) in models.iter_mut().enumerate() {
                        let mut expected = 0;
                        for (of, tokens) in model.iter_mut() {
                            if account.is_none_or(|it| it == *of) {
                                let before = tokens.len();
                                tokens.retain(|token| !cancelled(*token));
                                expected += before - tokens.len();
                            }
                        }
                        model.retain(|(_, tokens)| !tokens.is_empty());
                        prop_assert_eq!(removed[class], expected);
                    }
                }
            }
            let oldest = models.iter().flatten().filter_map(|(_, tokens)| tokens.front());
            prop_assert_eq!(waiters.oldest_since_ns(), oldest.min().copied());
            for (class, model) in models.iter().enumerate() {
                prop_assert_eq!(waiters.is_empty(class), model.is_empty());
                prop_assert_eq!(waiters.accounts(class) as usize, model.len());
                let next = waiters.next(class).map(|it| it.token.0);
                prop_assert_eq!(next, model.front().and_then(|(_, tokens)| tokens.front()).copied());
                for host in 1..=HOSTS {
                    let account = Account::io(host);
                    let expected = model.iter().any(|(of, _)| *of == account);
                    prop_assert_eq!(waiters.has_any_of(class, account), expected);
                }
            }
        }
    }
}
