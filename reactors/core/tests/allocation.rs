//! A turn allocates nothing in steady state, verified with a counting allocator.

use std::rc::Rc;

use hugemem::allocation_counter::{CountingAllocator, allocations_on_this_thread};
use reactors::mesh::{self, Port};
use reactors::timer::TimerWheel;
use reactors::{
    IdlePolicy, Nanos, Poller, Progress, Reactor, ReactorConfig, TscClock, VirtualClock,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Maximum number of messages that a worker receives in one poll.
const MESSAGES_PER_POLL_MAX: usize = 64;

/// Passes values around a mesh with a deadline for each, like a transport.
struct Worker {
    port: Port<u64>,
    deadlines: TimerWheel<u64>,
    expired: u64,
}

impl Poller for Worker {
    fn name(&self) -> &str {
        "worker"
    }

    fn poll(&mut self, now: Nanos) -> Progress {
        let mut count = 0;
        while count < MESSAGES_PER_POLL_MAX {
            let Some((from, value)) = self.port.recv() else {
                break;
            };
            let deadline = now + Nanos::from_micros(value % 5_000);
            if let Ok(timer) = self.deadlines.insert(deadline, value)
                && value % 3 == 0
            {
                self.deadlines.cancel(timer);
            }
            // A full ring refuses the value; the next turn sends another.
            let _ = self.port.send(1 - from, value + 1);
            count += 1;
        }
        let expired = &mut self.expired;
        self.deadlines.advance(now, |_| *expired += 1);
        Progress::from_count(count)
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.deadlines.next_deadline()
    }

    fn prepare_sleep(&mut self) -> bool {
        self.port.is_empty()
    }
}

fn worker(port: Port<u64>) -> Box<Worker> {
    let deadlines = TimerWheel::new(1_024, Nanos::from_micros(100), Nanos::ZERO);
    Box::new(Worker {
        port,
        deadlines,
        expired: 0,
    })
}

#[test]
fn turn_does_not_allocate() {
    let before = allocations_on_this_thread();
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(
        allocations_on_this_thread() - before,
        1,
        "the counter counts"
    );

    let clock = VirtualClock::new();
    let mut reactors = Vec::new();
    for (index, mut port) in mesh::mesh(2, 16).into_iter().enumerate() {
        for value in 0..8 {
            port.send(1 - index, value).expect("there is room");
        }
        let mut reactor = Reactor::new(index, ReactorConfig::default(), Rc::new(clock.clone()))
            .expect("an eventfd");
        port.attach(index, reactor.handle().waker().clone());
        reactor.register(worker(port)).expect("there is room");
        reactors.push(reactor);
    }
    let before = allocations_on_this_thread();
    let mut handled = 0_u64;
    for _ in 0..50_000 {
        for reactor in &mut reactors {
            if let Progress::Busy(items) = reactor.turn() {
                handled += u64::from(items);
            }
        }
        clock.advance(Nanos::from_micros(3));
    }
    assert_eq!(allocations_on_this_thread() - before, 0);
    assert!(handled > 100_000, "{handled} values were handled");
}

/// The same with the real clock, real sleeps, and every activity counted as a stall.
#[test]
fn sleeping_does_not_allocate() {
    struct Ticking(Nanos);
    impl Poller for Ticking {
        fn name(&self) -> &str {
            "ticking"
        }
        fn poll(&mut self, now: Nanos) -> Progress {
            self.0 = now + Nanos::from_micros(20);
            Progress::Idle
        }
        fn next_deadline(&self) -> Option<Nanos> {
            Some(self.0)
        }
    }
    let config = ReactorConfig {
        idle: IdlePolicy::Sleep,
        stall_threshold: Nanos::ZERO,
        ..ReactorConfig::default()
    };
    let mut reactor = Reactor::new(0, config, Rc::new(TscClock::new())).expect("an eventfd");
    let source = Ticking(Nanos::ZERO);
    reactor.register(Box::new(source)).expect("there is room");
    let handle = reactor.handle();
    reactor.turn();
    let start = reactor.now();
    let at = start + Nanos::from_millis(200);
    let stopper = handle.clone();
    let stop = Box::new(move |reactor: &mut Reactor| stopper.request_stop(reactor.now()));
    assert!(reactor.schedule(at, stop).is_ok());
    let before = allocations_on_this_thread();
    reactor.run();
    assert_eq!(allocations_on_this_thread() - before, 0);
    let stats = handle.stats();
    assert!(stats.sleeps() > 10 && stats.stalls() > 10, "{stats:?}");
}
