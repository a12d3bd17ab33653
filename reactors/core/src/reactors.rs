//! Threads for reactors, which start and stop together.

use std::error::Error;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use core_affinity::CoreId;

use crate::clock::{Clock, TscClock};
use crate::config::ReactorConfig;
use crate::poller::Poller;
use crate::reactor::{PollerId, Reactor, RegisterError};
use crate::recorder::Recorder;
use crate::shared::{Group, ReactorHandle, Shared};
use crate::time::Nanos;
use crate::wake::Waker;

/// Time after the deadline in which a reactor has to end its turn and drop its pollers; after that
/// its thread is abandoned.
const ABANDON_AFTER: Duration = Duration::from_secs(1);
/// Time for the pollers to stop when [`Reactors`] is dropped without a stop.
const DROP_WITHIN: Nanos = Nanos::from_secs(1);
/// Maximum number of cores in a set of the system call.
const CORES_MAX: usize = 1024;

/// The error of `init`.
pub type InitError = Box<dyn Error + Send + Sync>;

/// The function that sets up each reactor.
type Init = dyn Fn(usize, &mut ReactorSetup<'_>) -> Result<(), InitError> + Send + Sync;

/// Why the reactors did not start. No reactor runs after this error.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No reactor is configured.
    #[error("no reactor is configured")]
    NoReactors,
    /// The core does not exist or this process may not use it.
    #[error(
        "reactor {reactor} cannot be pinned to core {core}; the cores that this process may use \
         are in /proc/self/status under Cpus_allowed_list"
    )]
    Pin {
        /// The reactor's number.
        reactor: usize,
        /// The configured core.
        core: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// The thread or its eventfd could not be created.
    #[error("cannot create the thread or eventfd of reactor {reactor}")]
    Resources {
        /// The reactor's number.
        reactor: usize,
        /// The kernel's error.
        source: io::Error,
    },
    /// `init` returned an error.
    #[error("reactor {reactor} could not be set up")]
    Init {
        /// The reactor's number.
        reactor: usize,
        /// The error of `init`.
        source: InitError,
    },
    /// `init` panicked.
    #[error("reactor {reactor} panicked while it was set up")]
    Panicked {
        /// The reactor's number.
        reactor: usize,
    },
}

/// A poller that had not stopped when its reactor ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outstanding {
    /// The reactor's number.
    pub reactor: usize,
    /// The poller's name.
    pub poller: String,
    /// Number of items in flight.
    pub items: u32,
}

impl fmt::Display for Outstanding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "reactor {}: {} has {} left",
            self.reactor, self.poller, self.items
        )
    }
}

/// How a reactor ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Normally, with all pollers stopped or at the deadline.
    Ended,
    /// A poller, message or timer panicked.
    Panicked,
    /// It did not return from a call; its thread is abandoned. The name of the poller, if known.
    Stuck(Option<String>),
}

/// The result of one reactor in a [`StopReport`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReactorEnd {
    /// The reactor's number.
    pub reactor: usize,
    /// How it ended.
    pub outcome: Outcome,
}

/// The result of a stop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopReport {
    /// The pollers that had not stopped at the deadline.
    pub outstanding: Vec<Outstanding>,
    /// How each reactor ended, by reactor number.
    pub ends: Vec<ReactorEnd>,
}

impl StopReport {
    /// Whether every reactor ended with nothing outstanding.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.outstanding.is_empty() && self.ends.iter().all(|end| end.outcome == Outcome::Ended)
    }
}

/// The final message of a thread.
struct FinalMessage {
    reactor: usize,
    outcome: Outcome,
    outstanding: Vec<Outstanding>,
}

/// The parameters of `init`, on the reactor's own thread.
pub struct ReactorSetup<'a> {
    reactor: &'a mut Reactor,
    handles: &'a [ReactorHandle],
    clock: TscClock,
}

impl ReactorSetup<'_> {
    /// This reactor's number.
    #[must_use]
    pub fn index(&self) -> usize {
        self.reactor.index()
    }

    /// The core that this reactor is pinned to, if any.
    #[must_use]
    pub fn core(&self) -> Option<usize> {
        self.reactor.config().core
    }

    /// Adds a poller.
    ///
    /// # Errors
    /// There are [`POLLERS_MAX`](crate::POLLERS_MAX) already; the new one is dropped.
    pub fn register(&mut self, poller: Box<dyn Poller>) -> Result<PollerId, RegisterError> {
        self.reactor.register(poller)
    }

    /// The recorder for this reactor's events.
    #[must_use]
    pub fn recorder(&self) -> Recorder {
        self.reactor.recorder()
    }

    /// The clock that all reactors share.
    #[must_use]
    pub fn clock(&self) -> TscClock {
        self.clock
    }

    /// The handles of all reactors, including this one, by number.
    #[must_use]
    pub fn handles(&self) -> &[ReactorHandle] {
        self.handles
    }

    /// The wakers of all reactors by number, for
    /// [`Port::attach_all`](crate::mesh::Port::attach_all).
    #[must_use]
    pub fn wakers(&self) -> Vec<Waker> {
        self.handles
            .iter()
            .map(|handle| handle.waker().clone())
            .collect()
    }

    /// The reactor itself, for example for its timers.
    pub fn reactor(&mut self) -> &mut Reactor {
        self.reactor
    }
}

/// Running reactors. Dropping it stops them, waiting at most about two seconds.
#[derive(Debug)]
pub struct Reactors {
    handles: Vec<ReactorHandle>,
    threads: Vec<Option<JoinHandle<()>>>,
    final_messages: Receiver<FinalMessage>,
    clock: TscClock,
}

impl Reactors {
    /// Starts one thread per configuration, named `reactor-N` and pinned as configured, and runs
    /// `init` on each. Turns begin after all of them are set up.
    ///
    /// # Errors
    /// The first failure; the other threads have ended when this returns.
    pub fn start<F>(configs: Vec<ReactorConfig>, init: F) -> Result<Reactors, StartError>
    where
        F: Fn(usize, &mut ReactorSetup<'_>) -> Result<(), InitError> + Send + Sync + 'static,
    {
        if configs.is_empty() {
            return Err(StartError::NoReactors);
        }
        let clock = TscClock::new();
        let group = Group::new(configs.len());
        let mut handles = Vec::with_capacity(configs.len());
        for (reactor, config) in configs.iter().enumerate() {
            let shared = Shared::new(reactor, config.inbox_capacity, Arc::clone(&group))
                .map_err(|source| StartError::Resources { reactor, source })?;
            handles.push(ReactorHandle { shared });
        }
        let (final_sender, final_messages) = mpsc::channel();
        let mut launch = Startup {
            init: Arc::new(init),
            threads: Vec::new(),
            handles: &handles,
            final_sender,
            clock,
        };
        let result = launch.launch(configs);
        let threads = std::mem::take(&mut launch.threads);
        drop(launch);
        match result {
            Ok(()) => Ok(Reactors {
                threads: threads.into_iter().map(Some).collect(),
                handles,
                final_messages,
                clock,
            }),
            Err(error) => {
                for thread in threads {
                    // A panic was reported already.
                    let _ = thread.join();
                }
                Err(error)
            }
        }
    }

    /// The handle of reactor `index`.
    ///
    /// # Panics
    /// If there is no such reactor.
    #[must_use]
    pub fn handle(&self, index: usize) -> &ReactorHandle {
        &self.handles[index]
    }

    /// The handles of all reactors by number.
    #[must_use]
    pub fn handles(&self) -> &[ReactorHandle] {
        &self.handles
    }

    /// The clock that all reactors share.
    #[must_use]
    pub fn clock(&self) -> TscClock {
        self.clock
    }

    /// Stops the reactors: every turn asks each poller to stop, until all pollers of all reactors
    /// have stopped or `within` has passed (a span, not a point in time). Returns about a second
    /// after that even if a poller hangs.
    #[must_use]
    pub fn stop(mut self, within: Nanos) -> StopReport {
        self.stop_all(within)
    }

    fn stop_all(&mut self, within: Nanos) -> StopReport {
        let deadline = self.clock.now() + within;
        for handle in &self.handles {
            handle.request_stop(deadline);
        }
        let limit =
            Instant::now().checked_add(Duration::from(within).saturating_add(ABANDON_AFTER));
        let mut report = StopReport::default();
        while self.threads.iter().any(Option::is_some) {
            let Some(word) = self.next_final_message(limit) else {
                break;
            };
            if let Some(thread) = self.threads[word.reactor].take() {
                // The thread has sent its final message and only has to return.
                let _ = thread.join();
            }
            report.outstanding.extend(word.outstanding);
            report.ends.push(ReactorEnd {
                reactor: word.reactor,
                outcome: word.outcome,
            });
        }
        for (reactor, thread) in self.threads.iter_mut().enumerate() {
            if thread.take().is_some() {
                let stuck = self.handles[reactor].stuck_in(self.clock.now(), Nanos::ZERO);
                let name = stuck.map(|stuck| stuck.name.as_ref().to_owned());
                report.ends.push(ReactorEnd {
                    reactor,
                    outcome: Outcome::Stuck(name),
                });
            }
        }
        report.ends.sort_by_key(|end| end.reactor);
        report
            .outstanding
            .sort_by_key(|outstanding| outstanding.reactor);
        report
    }

    fn next_final_message(&self, limit: Option<Instant>) -> Option<FinalMessage> {
        let Some(limit) = limit else {
            return self.final_messages.recv().ok();
        };
        let left = limit.saturating_duration_since(Instant::now());
        self.final_messages.recv_timeout(left).ok()
    }
}

impl Drop for Reactors {
    fn drop(&mut self) {
        if self.threads.iter().any(Option::is_some) {
            let report = self.stop_all(DROP_WITHIN);
            if !report.is_clean() {
                tracing::warn!(?report, "reactors were dropped before they had stopped");
            }
        }
    }
}

/// The state of a start in progress.
struct Startup<'a> {
    init: Arc<Init>,
    threads: Vec<JoinHandle<()>>,
    handles: &'a [ReactorHandle],
    final_sender: Sender<FinalMessage>,
    clock: TscClock,
}

impl Startup<'_> {
    /// Starts the threads, waits for the set-up of each, and starts their turns if all succeeded.
    fn launch(&mut self, configs: Vec<ReactorConfig>) -> Result<(), StartError> {
        let mut start_senders = Vec::with_capacity(configs.len());
        let (ready, results) = mpsc::channel();
        for (reactor, config) in configs.into_iter().enumerate() {
            let (start_sender, start_signal) = mpsc::channel();
            let thread = Thread {
                config,
                handles: self.handles.to_vec(),
                clock: self.clock,
                start_signal,
                ready: ready.clone(),
                final_sender: self.final_sender.clone(),
            };
            let init = Arc::clone(&self.init);
            let spawned = std::thread::Builder::new()
                .name(format!("reactor-{reactor}"))
                .spawn(move || thread.main(reactor, init))
                .map_err(|source| StartError::Resources { reactor, source })?;
            self.threads.push(spawned);
            start_senders.push(start_sender);
        }
        for _ in &start_senders {
            // Every thread sends exactly one result, even if it panics.
            results
                .recv()
                .expect("this function holds a sender itself")?;
        }
        for start_sender in start_senders {
            // A thread that has sent its result waits for this.
            let _ = start_sender.send(());
        }
        Ok(())
    }
}

/// Values that move to a reactor's thread.
struct Thread {
    config: ReactorConfig,
    handles: Vec<ReactorHandle>,
    clock: TscClock,
    start_signal: Receiver<()>,
    ready: Sender<Result<(), StartError>>,
    final_sender: Sender<FinalMessage>,
}

impl Thread {
    fn main(self, index: usize, init: Arc<Init>) {
        let set_up = catch_unwind(AssertUnwindSafe(|| self.set_up(index, &*init)))
            .unwrap_or(Err(StartError::Panicked { reactor: index }));
        drop(init);
        let mut reactor = match set_up {
            Ok(reactor) => reactor,
            Err(error) => {
                // The starting thread receives until every thread has sent a result or one has
                // failed.
                let _ = self.ready.send(Err(error));
                return;
            }
        };
        let _ = self.ready.send(Ok(()));
        // An error means that another reactor failed and the start is cancelled.
        if self.start_signal.recv().is_err() {
            return;
        }
        let ran = catch_unwind(AssertUnwindSafe(move || {
            reactor.run();
            let outstanding = reactor.outstanding();
            drop(reactor);
            outstanding
        }));
        let (outcome, outstanding) = match ran {
            Ok(outstanding) => (Outcome::Ended, outstanding),
            Err(_) => {
                tracing::error!(reactor = index, "a reactor panicked and has ended");
                (Outcome::Panicked, Vec::new())
            }
        };
        // Fails if this thread was abandoned.
        let _ = self.final_sender.send(FinalMessage {
            reactor: index,
            outcome,
            outstanding,
        });
    }

    fn set_up(&self, index: usize, init: &Init) -> Result<Reactor, StartError> {
        if let Some(core) = self.config.core {
            pin(core).map_err(|source| StartError::Pin {
                reactor: index,
                core,
                source,
            })?;
        }
        let shared = Arc::clone(&self.handles[index].shared);
        let clock: Rc<dyn Clock> = Rc::new(self.clock);
        let mut reactor = Reactor::with_shared(self.config.clone(), clock, shared);
        let mut setup = ReactorSetup {
            reactor: &mut reactor,
            handles: &self.handles,
            clock: self.clock,
        };
        init(index, &mut setup).map_err(|source| StartError::Init {
            reactor: index,
            source,
        })?;
        Ok(reactor)
    }
}

/// Pins the calling thread to `core`.
fn pin(core: usize) -> io::Result<()> {
    if core >= CORES_MAX {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    if core_affinity::set_for_current(CoreId { id: core }) {
        return Ok(());
    }
    // `set_for_current` ends with the system call, so `errno` is still valid.
    Err(io::Error::last_os_error())
}
