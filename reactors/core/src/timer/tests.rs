use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const TICK: Nanos = Nanos(10);

fn wheel(capacity: usize) -> TimerWheel<u32> {
    TimerWheel::new(capacity, TICK, Nanos::ZERO)
}

fn fired(wheel: &mut TimerWheel<u32>, now: u64) -> Vec<u32> {
    let mut values = Vec::new();
    wheel.advance(Nanos(now), |value| values.push(value));
    values
}

#[test]
fn full_wheel_returns_the_value() {
    let mut wheel = wheel(2);
    let first = wheel.insert(Nanos(50), 1).expect("there is room");
    wheel.insert(Nanos(60), 2).expect("there is room");
    assert_eq!(wheel.insert(Nanos(70), 3), Err(3));
    assert_eq!((wheel.len(), wheel.capacity()), (2, 2));
    assert_eq!(wheel.cancel(first), Some(1));
    wheel.insert(Nanos(70), 3).expect("there is room again");
    assert_eq!(fired(&mut wheel, 100), [2, 3]);
    assert!(wheel.is_empty());
    assert_eq!(
        TimerWheel::new(0, TICK, Nanos::ZERO).insert(Nanos(1), 'x'),
        Err('x')
    );
}

#[test]
fn stale_timer_ids_are_refused() {
    let mut wheel = wheel(1);
    let first = wheel.insert(Nanos(50), 1).expect("there is room");
    assert_eq!(wheel.cancel(first), Some(1));
    assert_eq!(wheel.cancel(first), None);
    let second = wheel.insert(Nanos(50), 2).expect("there is room");
    assert_ne!(first, second);
    assert_eq!(wheel.cancel(first), None);
    assert_eq!(fired(&mut wheel, 50), [2]);
    assert_eq!(wheel.cancel(second), None);
}

#[test]
fn timers_fire_never_early_and_less_than_a_tick_late() {
    let mut wheel = wheel(4);
    wheel.insert(Nanos(11), 1).expect("there is room");
    wheel.insert(Nanos(20), 2).expect("there is room");
    assert_eq!(wheel.next_deadline(), Some(Nanos(20)));
    assert_eq!(fired(&mut wheel, 19), []);
    assert_eq!(fired(&mut wheel, 20), [1, 2]);
    assert_eq!(wheel.next_deadline(), None);
}

#[test]
fn overdue_timers_fire_immediately() {
    let mut wheel = wheel(4);
    assert_eq!(fired(&mut wheel, 1_000), []);
    wheel.insert(Nanos(3), 1).expect("there is room");
    assert_eq!(wheel.next_deadline(), Some(Nanos(1_000)));
    assert_eq!(fired(&mut wheel, 1_000), [1]);
}

#[test]
fn maximum_deadline_is_handled() {
    let mut wheel = TimerWheel::new(4, Nanos(1), Nanos(7));
    let never = wheel.insert(Nanos::MAX, 1).expect("there is room");
    wheel.insert(Nanos(1 << 62), 2).expect("there is room");
    assert_eq!(fired(&mut wheel, (1 << 62) - 1), []);
    assert_eq!(fired(&mut wheel, 1 << 62), [2]);
    assert_eq!(fired(&mut wheel, u64::MAX - 1), []);
    assert_eq!(wheel.next_deadline(), Some(Nanos::MAX));
    assert_eq!(wheel.cancel(never), Some(1));
    wheel.insert(Nanos::MAX, 3).expect("there is room");
    assert_eq!(fired(&mut wheel, u64::MAX), [3]);
}

#[test]
fn timers_can_be_armed_while_others_fire() {
    let mut wheel = wheel(2);
    wheel.insert(Nanos(10), 0).expect("there is room");
    let mut order = Vec::new();
    while let Some((_, value)) = wheel.pop_due(Nanos(1_000)) {
        order.push(value);
        if value < 5 {
            wheel
                .insert(Nanos(u64::from(value) * 100), value + 1)
                .expect("there is room");
        }
    }
    assert_eq!(order, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn long_waits_take_few_wakeups() {
    for wait in [
        1_u64,
        63,
        64,
        65,
        4_095,
        4_096,
        1 << 30,
        (1 << 40) + 12_345,
        1 << 59,
    ] {
        for start in [0_u64, 1, 63, 64, 4_095, 987_654_321] {
            let mut wheel = TimerWheel::new(1, Nanos(1), Nanos(start));
            wheel
                .insert(Nanos(start + wait), ())
                .expect("there is room");
            let mut calls = 0;
            let mut now = Nanos(start);
            while let Some(next) = wheel.next_deadline() {
                assert!(now < next && next <= Nanos(start + wait));
                now = next;
                wheel.advance(now, |()| ());
                calls += 1;
            }
            assert_eq!(now, Nanos(start + wait));
            assert!(calls <= LEVELS, "{calls} calls for {wait} from {start}");
        }
    }
}

#[derive(Clone, Debug)]
enum Action {
    Insert(u64),
    Cancel(usize),
    Advance(u64),
}

/// Spans of all magnitudes, because each magnitude uses another level.
fn span() -> impl Strategy<Value = u64> {
    (0_u32..50, any::<u64>()).prop_map(|(bits, noise)| noise & ((1 << bits) - 1))
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => span().prop_map(Action::Insert),
        1 => any::<usize>().prop_map(Action::Cancel),
        2 => span().prop_map(Action::Advance),
    ]
}

/// A model of the wheel: timers sorted by tick, then by insertion.
#[derive(Default)]
struct Model {
    now: u64,
    armed: BTreeMap<(u64, u32), TimerId>,
}

impl Model {
    fn key(&self, deadline: u64, serial: u32) -> (u64, u32) {
        (deadline.div_ceil(TICK.0).max(self.now / TICK.0), serial)
    }

    fn fire(&mut self, span: u64) -> Vec<u32> {
        self.now = self.now.saturating_add(span);
        let later = self.armed.split_off(&(self.now / TICK.0 + 1, 0));
        std::mem::replace(&mut self.armed, later)
            .into_keys()
            .map(|(_, serial)| serial)
            .collect()
    }
}

fn check_next_deadline(wheel: &TimerWheel<u32>, model: &Model) -> Result<(), TestCaseError> {
    match (wheel.next_deadline(), model.armed.keys().next()) {
        (None, None) => {}
        (Some(next), Some(&(tick, _))) => {
            prop_assert!(next.0 <= tick * TICK.0);
            // Unless a timer is due, the deadline is in the future.
            prop_assert!(tick <= model.now / TICK.0 || next.0 > model.now);
        }
        (next, first) => prop_assert!(false, "{next:?} for {first:?}"),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn wheel_matches_a_sorted_map(actions in proptest::collection::vec(action(), 1..200)) {
        let mut wheel = wheel(32);
        let mut model = Model::default();
        let mut ids = Vec::new();
        for (serial, action) in (0_u32..).zip(actions) {
            match action {
                Action::Insert(span) => {
                    let deadline = model.now.saturating_add(span);
                    match wheel.insert(Nanos(deadline), serial) {
                        Ok(id) => {
                            let key = model.key(deadline, serial);
                            model.armed.insert(key, id);
                            ids.push((id, key));
                        }
                        Err(back) => {
                            prop_assert_eq!(back, serial);
                            prop_assert_eq!(model.armed.len(), 32);
                        }
                    }
                }
                Action::Cancel(pick) if !ids.is_empty() => {
                    // Includes timers that fired or were cancelled long ago.
                    let (id, key) = ids[pick % ids.len()];
                    prop_assert_eq!(wheel.cancel(id), model.armed.remove(&key).map(|_| key.1));
                }
                Action::Cancel(_) => {}
                Action::Advance(span) => {
                    let expected = model.fire(span);
                    prop_assert_eq!(fired(&mut wheel, model.now), expected);
                }
            }
            prop_assert_eq!(wheel.len(), model.armed.len());
            check_next_deadline(&wheel, &model)?;
        }
    }
}
