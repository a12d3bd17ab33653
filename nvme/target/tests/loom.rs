//! Explores every interleaving of a configuration change and the cores that adopt it, and of cores
//! that use one rate, with loom. Compiles the snapshot cell and the rate a second time, with loom's
//! atomics in place of those of `src/sync.rs`.

#[path = "../src/rate.rs"]
#[expect(dead_code, reason = "the models use a part of it")]
mod rate;
#[path = "../src/snapshot_cell.rs"]
mod snapshot_cell;

mod sync {
    use std::sync::Arc;

    use loom::sync::Mutex;

    /// A value under a lock in place of arc-swap's. The model explores the code around it.
    pub(crate) struct Swap<T>(Mutex<Arc<T>>);

    impl<T> Swap<T> {
        pub(crate) fn from_pointee(value: T) -> Self {
            Self(Mutex::new(Arc::new(value)))
        }

        pub(crate) fn store(&self, value: Arc<T>) {
            *self.0.lock().expect("not poisoned") = value;
        }

        pub(crate) fn load_full(&self) -> Arc<T> {
            Arc::clone(&self.0.lock().expect("not poisoned"))
        }
    }

    pub(crate) mod atomic {
        pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    }
}

use loom::sync::Arc;
use loom::thread;
use rate::Rate;
use reactors::Nanos;
use snapshot_cell::{Notifications, SnapshotCell};

/// A configuration that consists of its epoch.
struct Configuration(u32);

struct Target {
    snapshot_cell: SnapshotCell<Configuration>,
    calls: [Notifications; 2],
}

impl Target {
    fn change(&self, epoch: u32) {
        self.snapshot_cell.publish(Configuration(epoch), epoch);
        self.calls.iter().for_each(Notifications::notify);
    }
}

/// One core: the notifications it has seen, and the epoch of its configuration.
struct Core {
    target: Arc<Target>,
    index: usize,
    calls_seen: u64,
    view: u32,
}

impl Core {
    fn new(target: &Arc<Target>, index: usize) -> Self {
        let calls_seen = target.calls[index].count();
        Self {
            target: Arc::clone(target),
            index,
            calls_seen,
            view: target.snapshot_cell.value().0,
        }
    }

    fn poll(&mut self) {
        let calls = self.target.calls[self.index].count();
        if calls == self.calls_seen {
            return;
        }
        self.calls_seen = calls;
        let epoch = self.target.snapshot_cell.epoch();
        if epoch != self.view {
            let view = self.target.snapshot_cell.value().0;
            assert!(view >= epoch, "an older value than the epoch promised");
            self.view = view;
        }
        // Each change notifies once, and the first epoch is 1.
        assert!(
            u64::from(self.view) > calls,
            "notified, but the configuration is unchanged"
        );
    }
}

fn target() -> Arc<Target> {
    Arc::new(Target {
        snapshot_cell: SnapshotCell::new(Configuration(1), 1),
        calls: [Notifications::default(), Notifications::default()],
    })
}

/// Three preemptions find the possible errors within seconds.
fn bounded(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn notified_core_observes_the_change() {
    bounded(|| {
        let target = target();
        let changing = Arc::clone(&target);
        let mut core = Core::new(&target, 0);
        let control = thread::spawn(move || {
            changing.change(2);
            changing.change(3);
        });
        core.poll();
        core.poll();
        control.join().expect("no panic");
        core.poll();
        assert_eq!(core.view, 3);
    });
}

#[test]
fn two_cores_converge() {
    bounded(|| {
        let target = target();
        let changing = Arc::clone(&target);
        let control = thread::spawn(move || changing.change(2));
        let there = Arc::clone(&target);
        let other = thread::spawn(move || {
            let mut core = Core::new(&there, 1);
            core.poll();
            core
        });
        let mut core = Core::new(&target, 0);
        core.poll();
        control.join().expect("no panic");
        let mut other = other.join().expect("no panic");
        core.poll();
        other.poll();
        assert_eq!((core.view, other.view), (2, 2));
    });
}

/// After a pause, two cores start together no more than the burst and one command, whatever the
/// order of their accesses.
#[test]
fn two_cores_share_a_burst() {
    bounded(|| {
        let now = Nanos::from_millis(10);
        let rate = Arc::new(Rate::of_commands(1000, Nanos::from_millis(1)));
        let there = Arc::clone(&rate);
        let other = thread::spawn(move || (0..2).filter(|_| there.take(0, 1, now)).count());
        let here = (0..2).filter(|_| rate.take(0, 1, now)).count();
        assert_eq!(here + other.join().expect("no panic"), 2);
    });
}

/// Several commands at once start only if each of them conforms, and what is returned can be taken.
#[test]
fn two_cores_take_several_commands_of_a_burst() {
    loom::model(|| {
        let now = Nanos::from_millis(10);
        let rate = Arc::new(Rate::of_commands(1000, Nanos::from_millis(2)));
        let there = Arc::clone(&rate);
        let other = thread::spawn(move || there.take(0, 2, now));
        let here = rate.take(0, 2, now);
        assert!(here != other.join().expect("no panic"), "3 of 4 conform");
        rate.give_back(0, 1);
        assert!(rate.take(0, 2, now));
        assert!(!rate.take(0, 1, now));
    });
}

/// Turns are one after the other, and neither a turn nor what is given back is lost.
#[test]
fn turns_of_two_cores_are_distinct() {
    bounded(|| {
        let now = Nanos::from_millis(10);
        let rate = Arc::new(Rate::of_commands(1000, Nanos::ZERO));
        let there = Arc::clone(&rate);
        let other = thread::spawn(move || {
            there.reserve(0, now, now);
            there.give_back(0, 1);
            there.reserve(0, now, now)
        });
        let here = rate.reserve(0, now, now);
        let there = other.join().expect("no panic");
        let mut turns = [here, there];
        turns.sort_unstable();
        // The one that was given back delays the first turn at most.
        assert!(turns[0] >= now && turns[1] <= now + Nanos::from_millis(2));
        assert_eq!(rate.reserve(0, now, now), now + Nanos::from_millis(2));
    });
}
