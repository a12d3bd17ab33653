//! Reactors on their own threads: start, wake-up, monitoring, stop.

use std::error::Error;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use reactors::mesh::{self, Port};
use reactors::{
    Clock, IdlePolicy, Job, Nanos, Outcome, Outstanding, Poller, Progress, ReactorConfig,
    ReactorHandle, Reactors, RunError, StartError, StopState,
};
use rustix::event::{EventfdFlags, eventfd};

/// Far longer than any step takes on a loaded machine; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time limit of stops that must be clean.
const STOP_TIMEOUT: Nanos = Nanos::from_secs(30);

fn config(idle: IdlePolicy) -> ReactorConfig {
    ReactorConfig {
        idle,
        ..ReactorConfig::default()
    }
}

fn sleepers(count: usize) -> Vec<ReactorConfig> {
    vec![config(IdlePolicy::Sleep); count]
}

/// Waits for a condition that another thread fulfils.
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what} did not come about");
        thread::sleep(Duration::from_micros(200));
    }
}

fn wait_for_sleep(handle: &ReactorHandle) {
    wait_until("sleep", || handle.stats().is_asleep());
}

/// Runs `work` on the reactor and returns its result.
fn call<R: Send + 'static>(handle: &ReactorHandle, work: impl FnOnce() -> R + Send + 'static) -> R {
    let (answer, answers) = mpsc::channel();
    let job: Job = Box::new(move |_| answer.send(work()).expect("the test listens"));
    handle.run(job).expect("the inbox has room");
    answers.recv_timeout(PATIENCE).expect("the reactor answers")
}

/// A poller built from closures.
struct ClosurePoller<P, S> {
    name: &'static str,
    poll: P,
    stop: S,
}

impl<P: FnMut() -> Progress, S: FnMut() -> StopState> Poller for ClosurePoller<P, S> {
    fn name(&self) -> &str {
        self.name
    }

    fn poll(&mut self, _now: Nanos) -> Progress {
        (self.poll)()
    }

    fn stop(&mut self, _now: Nanos) -> StopState {
        (self.stop)()
    }
}

fn made(
    name: &'static str,
    poll: impl FnMut() -> Progress + 'static,
    stop: impl FnMut() -> StopState + 'static,
) -> Box<dyn Poller> {
    Box::new(ClosurePoller { name, poll, stop })
}

mod start {
    use super::*;

    #[test]
    fn setup_runs_on_named_threads_before_any_turn() {
        let (say, said) = mpsc::channel();
        let reactors = Reactors::start(sleepers(2), move |index, setup| {
            assert_eq!(setup.index(), index);
            assert_eq!(setup.handles().len(), 2);
            assert_eq!(setup.wakers().len(), 2);
            assert_eq!(setup.core(), None);
            assert_eq!(setup.handles()[index].stats().turns(), 0);
            setup.register(made("idle", || Progress::Idle, || StopState::Stopped))?;
            assert_eq!(setup.reactor().pollers(), 1);
            say.send((index, thread::current().name().map(str::to_owned)))?;
            Ok(())
        })
        .expect("two reactors");
        let mut names: Vec<_> = said.try_iter().collect();
        names.sort();
        assert_eq!(
            names,
            [(0, Some("reactor-0".into())), (1, Some("reactor-1".into()))]
        );
        for handle in reactors.handles() {
            let name = format!("reactor-{}", handle.index());
            let found = call(handle, || thread::current().name().map(str::to_owned));
            assert_eq!(found, Some(name));
        }
        assert!(reactors.stop(STOP_TIMEOUT).is_clean());
    }

    #[test]
    fn pinned_reactor_runs_only_on_its_core() {
        let allowed = rustix::thread::sched_getaffinity(None).expect("our own affinity");
        let core = (0..rustix::thread::CpuSet::MAX_CPU).find(|&core| allowed.is_set(core));
        let core = core.expect("we run somewhere");
        let reactors = Reactors::start(vec![ReactorConfig::pinned(core)], |_, setup| {
            assert!(setup.core().is_some());
            Ok(())
        })
        .expect("a reactor on a core of ours");
        let affinity = call(reactors.handle(0), || {
            rustix::thread::sched_getaffinity(None)
        });
        let affinity = affinity.expect("its own affinity");
        assert!(affinity.is_set(core));
        assert_eq!(affinity.count(), 1);
        assert!(reactors.stop(STOP_TIMEOUT).is_clean());
    }

    #[test]
    fn missing_core_is_named_in_the_error() {
        for core in [1_000, 5_000_000] {
            let configs = vec![config(IdlePolicy::Sleep), ReactorConfig::pinned(core)];
            let error = Reactors::start(configs, |_, _| Ok(())).expect_err("no such core");
            assert!(matches!(error, StartError::Pin { reactor: 1, .. }));
            assert!(
                error.to_string().contains(&format!("core {core}")),
                "{error}"
            );
            assert!(error.source().is_some());
        }
    }

    #[test]
    fn starting_zero_reactors_is_refused() {
        let error = Reactors::start(Vec::new(), |_, _| Ok(())).expect_err("nothing to start");
        assert!(matches!(error, StartError::NoReactors));
    }

    #[test]
    fn setup_error_ends_all_reactors() {
        let alive = Arc::new(());
        let held = Arc::clone(&alive);
        let error = Reactors::start(sleepers(3), move |index, setup| {
            let held = Arc::clone(&held);
            let poll = move || {
                assert_eq!(Arc::strong_count(&held), usize::MAX, "no turn may be taken");
                Progress::Idle
            };
            setup.register(made("held", poll, || StopState::Stopped))?;
            if index == 1 {
                Err(io::Error::other("no disk today").into())
            } else {
                Ok(())
            }
        })
        .expect_err("reactor 1 refuses");
        let StartError::Init { reactor: 1, source } = error else {
            panic!("{error:?}")
        };
        assert_eq!(source.to_string(), "no disk today");
        assert_eq!(
            Arc::strong_count(&alive),
            1,
            "all threads are gone, with their pollers"
        );
    }

    #[test]
    fn setup_panic_ends_all_reactors() {
        let error = Reactors::start(sleepers(2), |index, _| {
            assert_ne!(index, 0, "on purpose");
            Ok(())
        })
        .expect_err("reactor 0 panics");
        assert!(matches!(error, StartError::Panicked { reactor: 0 }));
    }
}

mod wake {
    use super::*;

    #[test]
    fn message_wakes_a_sleeping_reactor() {
        let reactors = Reactors::start(sleepers(1), |_, _| Ok(())).expect("a reactor");
        let handle = reactors.handle(0);
        for round in 1..=20 {
            wait_for_sleep(handle);
            assert_eq!(call(handle, move || round), round);
        }
        let stats = handle.stats();
        assert!(stats.wakeups() >= 20 && stats.sleeps() >= stats.wakeups());
        assert!(reactors.stop(STOP_TIMEOUT).is_clean());
    }

    #[test]
    fn sleeping_reactor_without_deadlines_runs_no_turn_until_woken() {
        let reactors = Reactors::start(sleepers(1), |_, _| Ok(())).expect("a reactor");
        let handle = reactors.handle(0);
        wait_for_sleep(handle);
        let turns = handle.stats().turns();
        thread::sleep(Duration::from_millis(100));
        assert_eq!(handle.stats().turns(), turns);
        handle.wake();
        wait_until("a turn", || handle.stats().turns() > turns);
        assert!(reactors.stop(STOP_TIMEOUT).is_clean());
    }

    struct Watching {
        source: OwnedFd,
        seen: Arc<AtomicU64>,
    }

    impl Poller for Watching {
        fn name(&self) -> &str {
            "watching"
        }

        fn poll(&mut self, _now: Nanos) -> Progress {
            let mut count = [0; 8];
            if rustix::io::read(&self.source, &mut count).is_err() {
                return Progress::Idle;
            }
            self.seen
                .fetch_add(u64::from_ne_bytes(count), Ordering::Relaxed);
            Progress::Busy(1)
        }

        fn wake_source(&self) -> Option<BorrowedFd<'_>> {
            Some(self.source.as_fd())
        }
    }

    fn answer_a_descriptor(idle: IdlePolicy) {
        let source = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
        let ours = source.try_clone().expect("a second descriptor");
        let seen = Arc::new(AtomicU64::new(0));
        let poller = Mutex::new(Some(Watching {
            source,
            seen: Arc::clone(&seen),
        }));
        let reactors = Reactors::start(vec![config(idle)], move |_, setup| {
            let poller = poller
                .lock()
                .map_err(|_| "poisoned")?
                .take()
                .ok_or("only once")?;
            setup.register(Box::new(poller))?;
            Ok(())
        })
        .expect("a reactor");
        for round in 1..=20 {
            if idle != IdlePolicy::Poll {
                wait_for_sleep(reactors.handle(0));
            }
            rustix::io::write(&ours, &1_u64.to_ne_bytes()).expect("an eventfd takes it");
            wait_until("the descriptor", || seen.load(Ordering::Relaxed) == round);
        }
        assert!(reactors.stop(STOP_TIMEOUT).is_clean());
    }

    #[test]
    fn ready_descriptor_is_handled_under_every_idle_policy() {
        for idle in [IdlePolicy::Sleep, IdlePolicy::adaptive(), IdlePolicy::Poll] {
            answer_a_descriptor(idle);
        }
    }

    struct DeadlinePoller {
        next: Nanos,
        rings: Sender<Nanos>,
    }

    impl Poller for DeadlinePoller {
        fn name(&self) -> &str {
            "alarm"
        }

        fn poll(&mut self, now: Nanos) -> Progress {
            if now < self.next {
                return Progress::Idle;
            }
            // The test may have dropped the receiver.
            let _ = self.rings.send(now);
            self.next = now + Nanos::from_millis(5);
            Progress::Busy(1)
        }

        fn next_deadline(&self) -> Option<Nanos> {
            Some(self.next)
        }
    }

    #[test]
    fn deadlines_of_pollers_and_timers_end_a_sleep() {
        let (rings, rung) = mpsc::channel();
        let (timer, timers) = mpsc::channel();
        let reactors = Reactors::start(sleepers(1), move |_, setup| {
            let next = setup.clock().now() + Nanos::from_millis(5);
            setup.register(Box::new(DeadlinePoller {
                next,
                rings: rings.clone(),
            }))?;
            let timer = timer.clone();
            let at = setup.clock().now() + Nanos::from_millis(12);
            let job = Box::new(move |reactor: &mut reactors::Reactor| {
                timer.send((at, reactor.now())).expect("the test listens");
            });
            setup.reactor().schedule(at, job).map_err(|_| "no room")?;
            Ok(())
        })
        .expect("a reactor");
        let (at, fired) = timers.recv_timeout(PATIENCE).expect("the timer fires");
        assert!(fired >= at);
        let mut last = Nanos::ZERO;
        for _ in 0..5 {
            let ring = rung.recv_timeout(PATIENCE).expect("the alarm rings");
            assert!(ring >= last + Nanos::from_millis(5));
            last = ring;
        }
        let stats = reactors.handle(0).stats();
        assert!(stats.sleeps() >= 5);
        assert!(reactors.stop(STOP_TIMEOUT).is_clean());
    }

    struct Restless {
        polls: Arc<AtomicU64>,
        ready: Arc<AtomicBool>,
    }

    impl Poller for Restless {
        fn name(&self) -> &str {
            "restless"
        }

        fn poll(&mut self, _now: Nanos) -> Progress {
            self.polls.fetch_add(1, Ordering::Relaxed);
            Progress::Idle
        }

        fn prepare_sleep(&mut self) -> bool {
            self.ready.load(Ordering::Relaxed)
        }

        /// Never, as a number.
        fn next_deadline(&self) -> Option<Nanos> {
            Some(Nanos::MAX)
        }
    }

    #[test]
    fn poller_that_refuses_sleep_keeps_the_reactor_awake() {
        for idle in [IdlePolicy::Sleep, IdlePolicy::adaptive()] {
            let (polls, ready) = (
                Arc::new(AtomicU64::new(0)),
                Arc::new(AtomicBool::new(false)),
            );
            let (counted, told) = (Arc::clone(&polls), Arc::clone(&ready));
            let reactors = Reactors::start(vec![config(idle)], move |_, setup| {
                let (polls, ready) = (Arc::clone(&counted), Arc::clone(&told));
                setup.register(Box::new(Restless { polls, ready }))?;
                Ok(())
            })
            .expect("a reactor");
            wait_until("polls", || polls.load(Ordering::Relaxed) > 10_000);
            assert_eq!(reactors.handle(0).stats().sleeps(), 0);
            ready.store(true, Ordering::Relaxed);
            wait_for_sleep(reactors.handle(0));
            assert!(reactors.stop(STOP_TIMEOUT).is_clean());
        }
    }

    #[test]
    fn the_poll_policy_never_sleeps() {
        let configs = vec![config(IdlePolicy::Poll)];
        let reactors = Reactors::start(configs, |_, _| Ok(())).expect("a reactor");
        let stats = reactors.handle(0).stats();
        wait_until("turns", || stats.turns() > 100_000);
        assert_eq!(stats.sleeps(), 0);
        assert!(reactors.stop(STOP_TIMEOUT).is_clean());
    }

    /// Sends every received value back to its sender, incremented by one.
    struct Echo {
        port: Port<u64>,
        until: u64,
        done: Sender<u64>,
    }

    impl Poller for Echo {
        fn name(&self) -> &str {
            "echo"
        }

        fn poll(&mut self, _now: Nanos) -> Progress {
            let Some((from, value)) = self.port.recv() else {
                return Progress::Idle;
            };
            if value == self.until {
                self.done.send(value).expect("the test listens");
            } else {
                self.port
                    .send(from, value + 1)
                    .expect("one value, room for one");
            }
            Progress::Busy(1)
        }

        fn prepare_sleep(&mut self) -> bool {
            self.port.is_empty()
        }
    }

    /// Every hop wakes a reactor that sleeps or is about to: after a single lost wake-up the value
    /// is stuck.
    #[test]
    fn no_message_between_sleeping_reactors_is_lost() {
        const HOPS: u64 = 20_000;
        let mut ports = mesh::mesh(2, 1);
        ports[0].send(1, 0).expect("there is room");
        let ports: Mutex<Vec<Option<Port<u64>>>> =
            Mutex::new(ports.into_iter().map(Some).collect());
        let (done, finished) = mpsc::channel();
        let reactors = Reactors::start(sleepers(2), move |index, setup| {
            let mut ports = ports.lock().map_err(|_| "poisoned")?;
            let mut port = ports[index].take().ok_or("only once")?;
            port.attach_all(&setup.wakers());
            let echo = Echo {
                port,
                until: HOPS,
                done: done.clone(),
            };
            setup.register(Box::new(echo))?;
            Ok(())
        })
        .expect("two reactors");
        assert_eq!(finished.recv_timeout(PATIENCE).ok(), Some(HOPS));
        assert!(reactors.handle(0).stats().sleeps() > 0);
        assert!(reactors.stop(STOP_TIMEOUT).is_clean());
    }
}

mod watch {
    use super::*;

    /// Hangs in its poll while the switch is on.
    fn hanging(switch: &Arc<AtomicBool>) -> Box<dyn Poller> {
        let switch = Arc::clone(switch);
        let poll = move || {
            while switch.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            Progress::Idle
        };
        made("tar pit", poll, || StopState::Stopped)
    }

    #[test]
    fn hung_poller_is_reported_from_other_threads() {
        let switch = Arc::new(AtomicBool::new(false));
        let ours = Arc::clone(&switch);
        let reactors = Reactors::start(sleepers(2), move |index, setup| {
            setup.register(made("innocent", || Progress::Idle, || StopState::Stopped))?;
            if index == 1 {
                setup.register(hanging(&switch))?;
            }
            Ok(())
        })
        .expect("two reactors");
        let (clock, handle) = (reactors.clock(), reactors.handle(1));
        wait_for_sleep(handle);
        assert_eq!(
            handle.stuck_in(clock.now(), Nanos::from_millis(1)),
            None,
            "sleep is no hang"
        );
        ours.store(true, Ordering::Relaxed);
        handle.wake();
        let threshold = Nanos::from_millis(20);
        let mut stuck = None;
        wait_until("the hang", || {
            stuck = handle.stuck_in(clock.now(), threshold);
            stuck.is_some()
        });
        let stuck = stuck.expect("just seen");
        assert_eq!(&*stuck.name, "tar pit");
        assert!(stuck.lasted >= threshold);
        assert_eq!(handle.stats().stalls(), 0, "it has not come back");
        ours.store(false, Ordering::Relaxed);
        wait_until("the stall", || handle.stats().stalls() > 0);
        let stall = handle.stats().last_stall().expect("counted");
        assert_eq!(&*stall.name, "tar pit");
        assert!(stall.lasted >= threshold - Nanos::from_micros(2));
        assert!(reactors.stop(STOP_TIMEOUT).is_clean());
    }

    #[test]
    fn hung_poller_does_not_block_stop() {
        let switch = Arc::new(AtomicBool::new(true));
        let ours = Arc::clone(&switch);
        let reactors = Reactors::start(sleepers(2), move |index, setup| {
            if index == 0 {
                setup.register(hanging(&switch))?;
            }
            Ok(())
        })
        .expect("two reactors");
        let report = reactors.stop(Nanos::from_millis(50));
        let ends: Vec<_> = report
            .ends
            .iter()
            .map(|end| (end.reactor, &end.outcome))
            .collect();
        assert_eq!(
            ends,
            [
                (0, &Outcome::Stuck(Some("tar pit".into()))),
                (1, &Outcome::Ended)
            ]
        );
        assert!(!report.is_clean());
        ours.store(false, Ordering::Relaxed);
    }

    #[test]
    fn a_panic_ends_one_reactor_and_is_reported() {
        let reactors = Reactors::start(sleepers(2), |_, _| Ok(())).expect("two reactors");
        reactors
            .handle(0)
            .run(Box::new(|_| panic!("on purpose")))
            .expect("there is room");
        wait_until("the end", || !reactors.handle(0).is_running());
        assert!(matches!(
            reactors.handle(0).run(Box::new(|_| ())),
            Err(RunError::Stopped)
        ));
        assert_eq!(call(reactors.handle(1), || 7), 7);
        let report = reactors.stop(STOP_TIMEOUT);
        let ends: Vec<_> = report.ends.iter().map(|end| end.outcome.clone()).collect();
        assert_eq!(ends, [Outcome::Panicked, Outcome::Ended]);
    }
}

mod stop {
    use super::*;

    #[test]
    fn stop_is_called_until_pollers_have_stopped() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let reactors = Reactors::start(sleepers(2), move |index, setup| {
            let asked = Arc::clone(&counted);
            let stop = move || match asked.fetch_add(1, Ordering::Relaxed) {
                0..5 => StopState::Outstanding(1),
                _ => StopState::Stopped,
            };
            if index == 0 {
                setup.register(made("draining", || Progress::Idle, stop))?;
            }
            Ok(())
        })
        .expect("two reactors");
        let handle = reactors.handle(0).clone();
        wait_for_sleep(&handle);
        let report = reactors.stop(STOP_TIMEOUT);
        assert!(report.is_clean(), "{report:?}");
        assert!(asked.load(Ordering::Relaxed) > 5);
        assert!(!handle.is_running());
    }

    #[test]
    fn pollers_outstanding_at_the_deadline_are_reported() {
        let reactors = Reactors::start(sleepers(2), |index, setup| {
            if index == 1 {
                let stop = || StopState::Outstanding(3);
                setup.register(made("endless", || Progress::Idle, stop))?;
            }
            setup.register(made("done", || Progress::Idle, || StopState::Stopped))?;
            Ok(())
        })
        .expect("two reactors");
        let report = reactors.stop(Nanos::from_millis(30));
        let endless = Outstanding {
            reactor: 1,
            poller: "endless".into(),
            items: 3,
        };
        assert_eq!(report.outstanding, [endless]);
        assert!(report.ends.iter().all(|end| end.outcome == Outcome::Ended));
        assert!(!report.is_clean());
    }

    /// The last work of one reactor needs the reply of another, which is quiet long before.
    #[test]
    fn quiet_reactor_keeps_running_until_all_have_stopped() {
        let (questions, answers) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let reactors = Reactors::start(sleepers(2), move |index, setup| {
            let (question, answer) = (Arc::clone(&questions), Arc::clone(&answers));
            if index == 0 {
                let poll = move || {
                    answer.store(question.load(Ordering::Acquire), Ordering::Release);
                    Progress::Idle
                };
                setup.register(made("server", poll, || StopState::Stopped))?;
                return Ok(());
            }
            let mut turns = 0;
            let stop = move || {
                turns += 1;
                question.store(turns > 20, Ordering::Release);
                match answer.load(Ordering::Acquire) {
                    true => StopState::Stopped,
                    false => StopState::Outstanding(1),
                }
            };
            setup.register(made("asker", || Progress::Idle, stop))?;
            Ok(())
        })
        .expect("two reactors");
        let report = reactors.stop(STOP_TIMEOUT);
        assert!(report.is_clean(), "{report:?}");
    }

    #[test]
    fn dropping_reactors_stops_them() {
        let held = Arc::new(());
        let theirs = Arc::clone(&held);
        let reactors = Reactors::start(sleepers(2), move |_, setup| {
            let held = Arc::clone(&theirs);
            let poll = move || {
                assert!(Arc::strong_count(&held) > 1);
                Progress::Idle
            };
            setup.register(made("held", poll, || StopState::Stopped))?;
            Ok(())
        })
        .expect("two reactors");
        drop(reactors);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
