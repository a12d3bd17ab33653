//! Explores every interleaving of a configuration change and the cores that adopt it, with loom.
//! Compiles the snapshot cell a second time, with loom's atomics in place of those of
//! `src/sync.rs`.

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
