//! The timers of a core's controllers: one each, on a timer wheel, so that the cost of a turn
//! depends on the timers that are due and not on their total number.
//!
//! Most changes move a deadline back: every command of a host postpones its keep-alive timeout. A
//! timer therefore stays armed when its deadline moves back, fires early, and is armed again then.

use reactors::Nanos;
use reactors::timer::{TimerId, TimerWheel};

/// Resolution of the deadlines: a hundredth of the granularity of Keep Alive (Base 2.1 §5.1.13.2.1,
/// KAS).
const TICK: Nanos = Nanos::from_millis(1);

/// The timers of a core's controllers, by slot.
pub(super) struct ControllerTimers {
    wheel: TimerWheel<u32>,
    armed: Box<[Option<(TimerId, Nanos)>]>,
}

impl ControllerTimers {
    /// Timers for the slots below `controllers_max`, none of them armed.
    pub(super) fn new(controllers_max: usize) -> Self {
        Self {
            wheel: TimerWheel::new(controllers_max, TICK, Nanos::ZERO),
            armed: vec![None; controllers_max].into_boxed_slice(),
        }
    }

    /// Arms the timer of the controller in `slot` to fire by `deadline`, or disarms it.
    pub(super) fn set(&mut self, slot: u32, deadline: Option<Nanos>) {
        let Some(armed) = self.armed.get_mut(slot as usize) else {
            return;
        };
        let is_soon_enough = |(_, at): &(TimerId, Nanos)| deadline.is_some_and(|it| *at <= it);
        if armed.as_ref().is_some_and(is_soon_enough) {
            return;
        }
        if let Some((timer, _)) = armed.take() {
            self.wheel.cancel(timer);
        }
        if let Some(deadline) = deadline {
            // The wheel has room for every slot.
            let timer = self.wheel.insert(deadline, slot).ok();
            *armed = timer.map(|timer| (timer, deadline));
        }
    }

    /// The next controller whose timer is due. The timer is disarmed.
    pub(super) fn next_due(&mut self, now: Nanos) -> Option<u32> {
        let (_, slot) = self.wheel.pop_due(now)?;
        self.armed[slot as usize] = None;
        Some(slot)
    }

    /// The slots with an armed timer.
    pub(super) fn armed(&self) -> impl Iterator<Item = u32> + '_ {
        let slots = (0..).zip(&self.armed);
        slots
            .filter(|(_, armed)| armed.is_some())
            .map(|(slot, _)| slot)
    }

    /// When to call [`next_due`](Self::next_due) again; sometimes a little early.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        self.wheel.next_deadline()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(timers: &mut ControllerTimers, now: Nanos) -> Vec<u32> {
        std::iter::from_fn(|| timers.next_due(now)).collect()
    }

    fn seconds(seconds: u64) -> Option<Nanos> {
        Some(Nanos::from_secs(seconds))
    }

    #[test]
    fn only_expired_timers_are_returned() {
        let mut timers = ControllerTimers::new(10_000);
        for slot in 0..10_000 {
            timers.set(slot, seconds(1000 + u64::from(slot)));
        }
        assert_eq!(due(&mut timers, Nanos::from_secs(999)), []);
        assert_eq!(due(&mut timers, Nanos::from_secs(1002)), [0, 1, 2]);
        assert_eq!(due(&mut timers, Nanos::from_secs(1002)), []);
        assert!(timers.next_deadline() <= seconds(1003));
    }

    #[test]
    fn postponed_deadline_fires_at_most_once_early() {
        let mut timers = ControllerTimers::new(2);
        timers.set(0, seconds(20));
        timers.set(0, seconds(10));
        assert_eq!(due(&mut timers, Nanos::from_secs(10)), [0]);
        timers.set(0, seconds(20));
        timers.set(0, seconds(30));
        assert_eq!(due(&mut timers, Nanos::from_secs(20)), [0]);
        timers.set(0, seconds(30));
        assert_eq!(due(&mut timers, Nanos::from_secs(29)), []);
        assert_eq!(due(&mut timers, Nanos::from_secs(30)), [0]);
    }

    #[test]
    fn cleared_timers_do_not_fire() {
        let mut timers = ControllerTimers::new(2);
        timers.set(1, seconds(10));
        timers.set(1, None);
        timers.set(7, seconds(1));
        assert_eq!(timers.next_deadline(), None);
        assert_eq!(due(&mut timers, Nanos::from_secs(100)), []);
    }
}
