use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::clock::VirtualClock;
use crate::shared::{Job, RunError};

/// Calls of pollers, in order.
type Journal = Rc<RefCell<Vec<String>>>;

/// A poller that records its calls and behaves as configured.
struct Scripted {
    name: &'static str,
    journal: Journal,
    /// Time by which each poll advances the clock.
    takes: Nanos,
    clock: VirtualClock,
    progress: Progress,
    deadline: Option<Nanos>,
    outstanding: Rc<Cell<u32>>,
}

impl Scripted {
    fn new(name: &'static str, bench: &Bench) -> Scripted {
        Scripted {
            name,
            journal: Rc::clone(&bench.journal),
            takes: Nanos::ZERO,
            clock: bench.clock.clone(),
            progress: Progress::Idle,
            deadline: None,
            outstanding: Rc::default(),
        }
    }

    fn note(&self, what: &str) {
        self.journal
            .borrow_mut()
            .push(format!("{} {what}", self.name));
    }
}

impl Poller for Scripted {
    fn name(&self) -> &str {
        self.name
    }

    fn poll(&mut self, now: Nanos) -> Progress {
        assert_eq!(now, self.clock.now());
        self.note("poll");
        self.clock.advance(self.takes);
        self.progress
    }

    fn flush(&mut self, _now: Nanos) {
        self.note("flush");
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.deadline
    }

    fn stop(&mut self, _now: Nanos) -> StopState {
        self.note("stop");
        match self.outstanding.get() {
            0 => StopState::Stopped,
            items => StopState::Outstanding(items),
        }
    }
}

struct Bench {
    clock: VirtualClock,
    reactor: Reactor,
    journal: Journal,
}

impl Bench {
    fn with(config: ReactorConfig) -> Bench {
        let clock = VirtualClock::new();
        let reactor = Reactor::new(3, config, Rc::new(clock.clone())).expect("an eventfd");
        Bench {
            clock,
            reactor,
            journal: Journal::default(),
        }
    }

    fn new() -> Bench {
        Bench::with(ReactorConfig::default())
    }

    fn add(&mut self, poller: Scripted) -> PollerId {
        self.reactor
            .register(Box::new(poller))
            .expect("there is room")
    }

    fn journal(&self) -> Vec<String> {
        self.journal.take()
    }
}

#[test]
fn a_turn_runs_messages_pollers_timers_and_flushes() {
    let mut bench = Bench::new();
    for name in ["a", "b"] {
        let poller = Scripted::new(name, &bench);
        bench.add(poller);
    }
    let journal = Rc::clone(&bench.journal);
    let timer: TimerJob = Box::new(move |_| journal.borrow_mut().push("timer".into()));
    assert!(bench.reactor.schedule(Nanos::ZERO, timer).is_ok());
    let handle = bench.reactor.handle();
    assert_eq!(handle.index(), 3);
    handle
        .run(Box::new(|reactor| assert_eq!(reactor.index(), 3)))
        .expect("there is room");
    assert_eq!(bench.reactor.turn(), Progress::Busy(2));
    assert_eq!(
        bench.journal(),
        ["a poll", "b poll", "timer", "a flush", "b flush"]
    );
    assert_eq!(bench.reactor.turn(), Progress::Idle);
    assert_eq!(handle.stats().turns(), 2);
}

#[test]
fn messages_sent_in_a_turn_run_in_the_next() {
    let mut bench = Bench::with(ReactorConfig {
        inbox_capacity: 3,
        ..ReactorConfig::default()
    });
    let counter = Arc::new(AtomicUsize::new(0));
    let handle = bench.reactor.handle();
    for expected in 0..2 {
        let (counter, handle) = (Arc::clone(&counter), handle.clone());
        let job: Job = Box::new(move |_| {
            assert_eq!(counter.fetch_add(1, Ordering::Relaxed), expected);
            let again: Job = Box::new(move |_| {
                counter.fetch_add(10, Ordering::Relaxed);
            });
            handle.run(again).expect("there is room");
        });
        bench.reactor.handle().run(job).expect("there is room");
    }
    assert_eq!(bench.reactor.turn(), Progress::Busy(2));
    assert_eq!(counter.load(Ordering::Relaxed), 2);
    assert_eq!(bench.reactor.turn(), Progress::Busy(2));
    assert_eq!(counter.load(Ordering::Relaxed), 22);
}

#[test]
fn full_inbox_returns_the_message() {
    let bench = Bench::with(ReactorConfig {
        inbox_capacity: 1,
        ..ReactorConfig::default()
    });
    let handle = bench.reactor.handle();
    handle.run(Box::new(|_| ())).expect("there is room");
    let Err(RunError::Full(job)) = handle.run(Box::new(|_| ())) else {
        panic!("it is full")
    };
    assert!(matches!(handle.run(job), Err(RunError::Full(_))));
}

#[test]
fn messages_to_an_ended_reactor_are_refused_and_dropped() {
    let bench = Bench::new();
    let handle = bench.reactor.handle();
    let held = Arc::new(());
    let job = |held: &Arc<()>| -> Job {
        let held = Arc::clone(held);
        Box::new(move |_| drop(held))
    };
    handle.run(job(&held)).expect("there is room");
    assert!(handle.is_running());
    drop(bench);
    assert!(!handle.is_running());
    assert!(matches!(handle.run(job(&held)), Err(RunError::Stopped)));
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn pollers_can_be_registered_and_removed() {
    let mut bench = Bench::new();
    let poller = Scripted::new("a", &bench);
    let first = bench.add(poller);
    assert_eq!(bench.reactor.pollers(), 1);
    assert_eq!(
        bench
            .reactor
            .remove(first)
            .map(|poller| poller.name().to_owned()),
        Some("a".into())
    );
    assert!(bench.reactor.remove(first).is_none());
    let poller = Scripted::new("b", &bench);
    let second = bench.add(poller);
    assert_ne!(first, second);
    assert!(
        bench.reactor.remove(first).is_none(),
        "a stale identifier must not hit the successor"
    );
    bench.reactor.turn();
    assert_eq!(bench.journal(), ["b poll", "b flush"]);
}

#[test]
fn too_many_pollers_are_refused() {
    let mut bench = Bench::new();
    for _ in 0..POLLERS_MAX {
        let poller = Scripted::new("a", &bench);
        bench.add(poller);
    }
    let refused = bench
        .reactor
        .register(Box::new(Scripted::new("late", &bench)));
    assert_eq!(
        refused,
        Err(RegisterError {
            name: "late".into()
        })
    );
}

#[test]
fn a_message_can_register_a_poller() {
    let mut bench = Bench::new();
    let handle = bench.reactor.handle();
    let polls = Arc::new(AtomicUsize::new(0));
    struct Counting(Arc<AtomicUsize>);
    impl Poller for Counting {
        fn name(&self) -> &str {
            "counting"
        }
        fn poll(&mut self, _now: Nanos) -> Progress {
            self.0.fetch_add(1, Ordering::Relaxed);
            Progress::Idle
        }
    }
    let counted = Arc::clone(&polls);
    let job: Job = Box::new(move |reactor| {
        reactor
            .register(Box::new(Counting(counted)))
            .expect("there is room");
    });
    handle.run(job).expect("there is room");
    bench.reactor.turn();
    assert_eq!(polls.load(Ordering::Relaxed), 1);
}

#[test]
fn timers_fire_when_due_and_can_be_cancelled() {
    let mut bench = Bench::new();
    let fired = Rc::new(Cell::new(0));
    let job = |add: u32| -> TimerJob {
        let fired = Rc::clone(&fired);
        Box::new(move |_| fired.set(fired.get() + add))
    };
    let schedule = |bench: &mut Bench, millis, add| {
        bench
            .reactor
            .schedule(Nanos::from_millis(millis), job(add))
            .ok()
            .expect("there is room")
    };
    schedule(&mut bench, 5, 1);
    let cancelled = schedule(&mut bench, 5, 10);
    schedule(&mut bench, 9, 100);
    assert_eq!(bench.reactor.next_deadline(), Some(Nanos::from_millis(5)));
    assert!(bench.reactor.cancel(cancelled).is_some());
    assert!(bench.reactor.cancel(cancelled).is_none());
    assert_eq!(bench.reactor.turn(), Progress::Idle);
    bench.clock.advance_to(Nanos::from_millis(5));
    assert_eq!(bench.reactor.turn(), Progress::Busy(1));
    assert_eq!(fired.get(), 1);
    bench.clock.advance_to(Nanos::from_millis(9));
    bench.reactor.turn();
    assert_eq!(fired.get(), 101);
    assert_eq!(bench.reactor.next_deadline(), None);
}

#[test]
fn timer_rearmed_in_the_past_does_not_extend_the_turn() {
    fn rearm(reactor: &mut Reactor) {
        assert!(reactor.schedule(Nanos::ZERO, Box::new(rearm)).is_ok());
    }
    let mut bench = Bench::with(ReactorConfig {
        timers_max: 4,
        ..ReactorConfig::default()
    });
    rearm(&mut bench.reactor);
    assert_eq!(bench.reactor.turn(), Progress::Busy(4));
}

#[test]
fn full_timer_wheel_returns_the_job() {
    let mut bench = Bench::with(ReactorConfig {
        timers_max: 1,
        ..ReactorConfig::default()
    });
    assert!(bench.reactor.schedule(Nanos(1), Box::new(|_| ())).is_ok());
    assert!(bench.reactor.schedule(Nanos(1), Box::new(|_| ())).is_err());
}

#[test]
fn the_next_deadline_is_the_earliest_of_pollers_and_timers() {
    let mut bench = Bench::new();
    assert_eq!(bench.reactor.next_deadline(), None);
    for millis in [30, 20] {
        let deadline = Some(Nanos::from_millis(millis));
        let poller = Scripted {
            deadline,
            ..Scripted::new("a", &bench)
        };
        bench.add(poller);
    }
    assert_eq!(bench.reactor.next_deadline(), Some(Nanos::from_millis(20)));
    assert!(
        bench
            .reactor
            .schedule(Nanos::from_millis(10), Box::new(|_| ()))
            .is_ok()
    );
    assert_eq!(bench.reactor.next_deadline(), Some(Nanos::from_millis(10)));
}

#[test]
fn stop_polls_every_turn_until_all_pollers_have_stopped() {
    let mut bench = Bench::new();
    let poller = Scripted::new("a", &bench);
    let outstanding = Rc::clone(&poller.outstanding);
    outstanding.set(2);
    bench.add(poller);
    let handle = bench.reactor.handle();
    handle.request_stop(Nanos::from_secs(1));
    for _ in 0..3 {
        bench.reactor.turn();
        assert!(!bench.reactor.is_finished());
        assert_eq!(bench.journal(), ["a poll", "a flush", "a stop"]);
    }
    outstanding.set(0);
    bench.reactor.turn();
    assert!(bench.reactor.is_finished());
    assert!(bench.reactor.outstanding().is_empty());
}

#[test]
fn stop_ends_at_the_deadline_and_reports_outstanding_pollers() {
    let mut bench = Bench::new();
    for (name, items) in [("quick", 0), ("slow", 7)] {
        let poller = Scripted::new(name, &bench);
        poller.outstanding.set(items);
        bench.add(poller);
    }
    let handle = bench.reactor.handle();
    handle.request_stop(Nanos::from_secs(1));
    // A later deadline does not replace an earlier one.
    handle.request_stop(Nanos::MAX);
    bench.clock.advance_to(Nanos::from_secs(1) - Nanos(1));
    bench.reactor.turn();
    assert!(!bench.reactor.is_finished());
    bench.clock.advance(Nanos(1));
    bench.reactor.turn();
    assert!(bench.reactor.is_finished());
    let left = Outstanding {
        reactor: 3,
        poller: "slow".into(),
        items: 7,
    };
    assert_eq!(left.to_string(), "reactor 3: slow has 7 left");
    assert_eq!(bench.reactor.outstanding(), [left]);
}

#[test]
fn reactors_of_a_group_finish_together() {
    let group = Group::new(2);
    let outstanding: Vec<Rc<Cell<u32>>> = vec![Rc::new(Cell::new(0)), Rc::new(Cell::new(1))];
    let mut reactors: Vec<Reactor> = Vec::new();
    for (index, left) in outstanding.iter().enumerate() {
        let shared = Shared::new(index, 1, Arc::clone(&group)).expect("an eventfd");
        let bench = Bench::new();
        let poller = Scripted {
            outstanding: Rc::clone(left),
            ..Scripted::new("a", &bench)
        };
        let clock = Rc::new(bench.clock.clone());
        let mut reactor = Reactor::with_shared(ReactorConfig::default(), clock, shared);
        reactor.register(Box::new(poller)).expect("there is room");
        reactor.handle().request_stop(Nanos::from_secs(1));
        reactors.push(reactor);
    }
    let turn = |reactors: &mut [Reactor]| -> Vec<bool> {
        for reactor in reactors.iter_mut() {
            reactor.turn();
        }
        reactors.iter().map(Reactor::is_finished).collect()
    };
    assert_eq!(
        turn(&mut reactors),
        [false, false],
        "the quiet one waits for the other"
    );
    outstanding[0].set(1);
    outstanding[1].set(0);
    assert_eq!(
        turn(&mut reactors),
        [false, false],
        "the other's answer may bring new work"
    );
    outstanding[0].set(0);
    assert_eq!(turn(&mut reactors), [true, true]);
}

mod watch {
    use super::*;

    fn slow(name: &'static str, millis: u64, bench: &Bench) -> Scripted {
        Scripted {
            takes: Nanos::from_millis(millis),
            ..Scripted::new(name, bench)
        }
    }

    /// The statistics store time in units of 1.024 µs.
    fn about(lasted: Nanos, millis: u64) -> bool {
        let expected = Nanos::from_millis(millis);
        lasted <= expected && expected - lasted < Nanos(1_024)
    }

    #[test]
    fn long_poll_is_recorded_as_a_named_stall() {
        let mut bench = Bench::new();
        for (name, millis) in [("brisk", 10), ("sluggish", 25)] {
            let poller = slow(name, millis, &bench);
            bench.add(poller);
        }
        let handle = bench.reactor.handle();
        assert_eq!(handle.stats().longest_poll(), None);
        bench.reactor.turn();
        let stats = handle.stats();
        assert_eq!(stats.stalls(), 1, "exactly the threshold is no stall");
        let stall = stats.last_stall().expect("there was one");
        assert_eq!(&*stall.name, "sluggish");
        assert!(about(stall.lasted, 25), "{stall:?}");
        assert_eq!(stats.longest_poll(), Some(stall));
        bench.reactor.turn();
        assert_eq!(stats.stalls(), 2);
    }

    #[test]
    fn stall_records_keep_the_name_of_a_removed_poller() {
        let mut bench = Bench::new();
        let poller = slow("gone", 40, &bench);
        let id = bench.add(poller);
        bench.reactor.turn();
        bench.reactor.remove(id);
        let poller = slow("successor", 20, &bench);
        bench.add(poller);
        bench.reactor.turn();
        let snapshot = bench.reactor.handle().stats().snapshot(bench.clock.now());
        assert_eq!(
            snapshot.longest_poll.map(|poll| poll.name.to_string()),
            Some("gone".into())
        );
        assert_eq!(
            snapshot.last_stall.map(|poll| poll.name.to_string()),
            Some("successor".into())
        );
        assert_eq!(snapshot.stalls, 2);
    }

    #[test]
    fn stalls_of_messages_and_timers_are_recorded() {
        let mut bench = Bench::new();
        let clock = bench.clock.clone();
        let dawdle: TimerJob = Box::new(move |_| clock.advance(Nanos::from_millis(30)));
        assert!(bench.reactor.schedule(Nanos::ZERO, dawdle).is_ok());
        bench.reactor.turn();
        let stall = bench
            .reactor
            .handle()
            .stats()
            .last_stall()
            .expect("there was one");
        assert_eq!(&*stall.name, "timers");
    }

    #[test]
    fn stuck_poller_is_visible_from_other_threads() {
        let mut bench = Bench::new();
        let handle = bench.reactor.handle();
        struct Looking {
            handle: ReactorHandle,
            clock: VirtualClock,
        }
        impl Poller for Looking {
            fn name(&self) -> &str {
                "looking"
            }
            fn poll(&mut self, now: Nanos) -> Progress {
                let stuck = |later| self.handle.stuck_in(now + later, Nanos::from_millis(50));
                assert_eq!(stuck(Nanos::from_millis(49)), None);
                let stuck = stuck(Nanos::from_millis(51)).expect("for too long");
                assert_eq!(&*stuck.name, "looking");
                assert!(about(stuck.lasted, 51) || stuck.lasted > Nanos::from_millis(51));
                self.clock.advance(Nanos(1));
                Progress::Idle
            }
        }
        let looking = Looking {
            handle: handle.clone(),
            clock: bench.clock.clone(),
        };
        bench
            .reactor
            .register(Box::new(looking))
            .expect("there is room");
        bench.clock.advance(Nanos::from_secs(5));
        bench.reactor.turn();
        assert_eq!(
            handle.stuck_in(Nanos::MAX, Nanos::ZERO),
            None,
            "outside a turn"
        );
    }

    #[test]
    fn turn_time_is_accounted_as_busy_or_idle() {
        let mut bench = Bench::new();
        let progress = Rc::new(Cell::new(Progress::Idle));
        struct Told {
            progress: Rc<Cell<Progress>>,
            clock: VirtualClock,
        }
        impl Poller for Told {
            fn name(&self) -> &str {
                "told"
            }
            fn poll(&mut self, _now: Nanos) -> Progress {
                self.clock.advance(Nanos::from_micros(100));
                self.progress.get()
            }
        }
        let told = Told {
            progress: Rc::clone(&progress),
            clock: bench.clock.clone(),
        };
        bench
            .reactor
            .register(Box::new(told))
            .expect("there is room");
        let handle = bench.reactor.handle();
        let stats = handle.stats();
        bench.reactor.turn();
        assert_eq!(
            (stats.busy_ns(), stats.idle_ns(bench.clock.now())),
            (0, 100_000)
        );
        progress.set(Progress::Busy(0));
        bench.clock.advance(Nanos::from_micros(7));
        bench.reactor.turn();
        assert_eq!(
            (stats.busy_ns(), stats.idle_ns(bench.clock.now())),
            (100_000, 107_000)
        );
        for _ in 0..10_000 {
            bench.reactor.turn();
        }
        assert_eq!(stats.busy_permille(bench.clock.now()), 1_000);
        for turn in 0..10_000 {
            progress.set(if turn % 4 == 0 {
                Progress::Busy(1)
            } else {
                Progress::Idle
            });
            bench.reactor.turn();
        }
        assert_eq!(stats.busy_permille(bench.clock.now()), 250);
        progress.set(Progress::Idle);
        for _ in 0..10_000 {
            bench.reactor.turn();
        }
        assert_eq!(stats.busy_permille(bench.clock.now()), 0);
    }

    /// A subscriber that counts warnings.
    struct Warnings(Arc<AtomicUsize>);

    impl tracing::Subscriber for Warnings {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() == tracing::Level::WARN
        }
        fn new_span(&self, _span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _span: &tracing::span::Id, _values: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _span: &tracing::span::Id, _other: &tracing::span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            let mut text = String::new();
            event.record(
                &mut |field: &tracing::field::Field, value: &dyn fmt::Debug| {
                    text += &format!("{field}={value:?} ");
                },
            );
            assert!(text.contains("poller=\"sluggish\""), "{text}");
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _span: &tracing::span::Id) {}
        fn exit(&self, _span: &tracing::span::Id) {}
    }

    #[test]
    fn stall_warnings_are_limited_to_one_a_second() {
        let count = Arc::new(AtomicUsize::new(0));
        let sluggish = || {
            let mut bench = Bench::new();
            let poller = slow("sluggish", 100, &bench);
            bench.add(poller);
            bench
        };
        tracing::subscriber::with_default(Warnings(Arc::clone(&count)), || {
            // The first warning of the process may come from another test at this moment, whose
            // thread then caches that no subscriber is interested.
            for _ in 0..10_000 {
                sluggish().reactor.turn();
                if count.swap(0, Ordering::Relaxed) > 0 {
                    break;
                }
                std::thread::yield_now();
                tracing::callsite::rebuild_interest_cache();
            }
            let mut bench = sluggish();
            // 100 ms each: stalls at 0.1, 0.2, … 2.5 s; warnings at 0.1, 1.1 and 2.1 s.
            for _ in 0..25 {
                bench.reactor.turn();
            }
            assert_eq!(bench.reactor.handle().stats().stalls(), 25);
        });
        assert_eq!(count.load(Ordering::Relaxed), 3);
    }
}
