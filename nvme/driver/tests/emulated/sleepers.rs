//! Reactors that sleep while their drive fails: they must be woken, or their requests are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::{DeviceError, Operation, SharedQueues};
use nvme_driver_testing::{EmulatedNamespace, EmulatedOptions, Fault, FaultMatch, FaultRule, When};

use crate::support::{Client, DEADLINES, MS, PATIENCE, Rig, drive_options, taken};

const WRITE: Operation = Operation::Write { fua: false };

/// A drive with two reactors of which the second sleeps, and the number of times that it was woken.
struct Sleeper {
    rig: Rig,
    client: Client,
    woken: Arc<AtomicU64>,
    taken: u64,
}

impl Sleeper {
    fn new() -> Self {
        let emulated = EmulatedOptions {
            namespaces: vec![EmulatedNamespace::new(1, 4096, 100)],
            timeout_units: 1,
            ..EmulatedOptions::default()
        };
        let rig = Rig::new(emulated, drive_options(2));
        let client = rig.client(1, 1, 8);
        let woken = Arc::new(AtomicU64::new(0));
        let counts = Arc::clone(&woken);
        rig.drive.set_waker(Box::new(move |reactor| {
            counts.fetch_add(u64::from(reactor == 1), Ordering::Relaxed);
        }));
        let taken = taken(&rig.arena);
        Self {
            rig,
            client,
            woken,
            taken,
        }
    }

    /// Submits a write that never completes, and prepares to sleep.
    fn sleep_on(&mut self, fault: Fault) {
        let rule = FaultRule::new(FaultMatch::io(), When::First(1), fault);
        self.rig.control.inject(rule);
        let data = vec![1; 4096];
        self.client.submit(WRITE, 0, 1, Some(&data)).expect("taken");
        assert!(self.client.turn().is_empty());
        self.sleep();
    }

    fn sleep(&mut self) {
        assert!(self.client.queue.prepare_sleep());
        self.woken.store(0, Ordering::Relaxed);
    }

    /// Advances time until the reactor is woken, polls, and sleeps again, until the write ends.
    /// Returns its result.
    fn until_it_ends(&mut self) -> Result<(), DeviceError> {
        let deadline = self.rig.now + PATIENCE;
        loop {
            while self.woken.load(Ordering::Relaxed) == 0 {
                assert!(self.rig.now < deadline, "nobody wakes the reactor");
                self.rig.step(MS);
            }
            if let Some(ended) = self.client.turn().pop() {
                return ended.result;
            }
            self.sleep();
        }
    }
}

#[test]
fn overdue_command_wakes_its_reactor_and_is_aborted() {
    let mut sleeper = Sleeper::new();
    sleeper.sleep_on(Fault::Hang { abortable: true });
    let before = sleeper.rig.now;
    // The reactor is not woken long before the deadline.
    while sleeper.rig.now + MS < before + DEADLINES.command {
        sleeper.rig.step(MS);
        assert_eq!(sleeper.woken.load(Ordering::Relaxed), 0);
    }
    // The pair requests the abort, whose completion interrupts.
    while sleeper.woken.load(Ordering::Relaxed) == 0 {
        sleeper.rig.step(MS);
    }
    assert!(sleeper.client.turn().is_empty());
    let ended = sleeper.client.finish(&mut sleeper.rig);
    assert_eq!(ended[0].result, Err(DeviceError::Aborted));
    let counters = sleeper.rig.drive.counters();
    assert_eq!((counters.aborts, counters.resets), (1, 0));
}

#[test]
fn lost_command_causes_a_reset_that_wakes_its_reactor() {
    let mut sleeper = Sleeper::new();
    sleeper.sleep_on(Fault::DropCompletion);
    assert_eq!(sleeper.until_it_ends(), Err(DeviceError::Interrupted));
    let counters = sleeper.rig.drive.counters();
    assert_eq!((counters.aborts, counters.resets), (1, 1));
    assert_eq!(taken(&sleeper.rig.arena), sleeper.taken);
}

#[test]
fn removal_wakes_a_sleeping_reactor() {
    let mut sleeper = Sleeper::new();
    sleeper.sleep_on(Fault::Hang { abortable: true });
    sleeper.rig.control.remove();
    assert_eq!(sleeper.until_it_ends(), Err(DeviceError::Removed));
    assert_eq!(taken(&sleeper.rig.arena), sleeper.taken);
}

/// Without commands in flight, no interrupt is armed and the reactor is not woken.
#[test]
fn an_idle_reactor_is_not_woken() {
    let mut sleeper = Sleeper::new();
    sleeper.sleep();
    for _ in 0..1000 {
        sleeper.rig.step(MS);
    }
    assert_eq!(sleeper.woken.load(Ordering::Relaxed), 0);
    assert_eq!(sleeper.rig.control.counters().interrupts, 0);
}

/// A queue is dropped on a thread that ends, with a command in flight that the drive never
/// completes: its lease is not reused while the drive could still write to it.
#[test]
fn exiting_thread_leaks_leases_in_flight() {
    let sleeper = Sleeper::new();
    let rule = FaultRule::new(
        FaultMatch::io(),
        When::First(1),
        Fault::Hang { abortable: true },
    );
    sleeper.rig.control.inject(rule);
    let (device, arena) = (sleeper.rig.device(1), Arc::clone(&sleeper.rig.arena));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = Client::new(&*device, &arena, 0, 8, SharedQueues::default());
            client.submit(Operation::Read, 0, 1, None).expect("taken");
            assert!(client.turn().is_empty());
        });
    });
    assert_eq!(taken(&arena), sleeper.taken + 1);
}
