//! The owner of a drive: polls its admin queue, monitors it, and handles faults, removal and
//! shutdown.
//!
//! It runs on one reactor. Only the owner changes the drive's state, and it publishes the state to
//! the queue pairs of all reactors in one word (see [`crate::shared`]).
//!
//! ```text
//! Running ── fault ──▶ Quiescing ─▶ Disabling ─▶ ReturningLeases ─▶ Restarting ─▶ Running
//!    │                     │            │ (drive does not follow)
//!    │                     │            └▶ FunctionReset ─▶ ReturningLeases
//!    ├─ removal, release, stop, close ─▶ Draining ─▶ Quiescing ─▶ ShuttingDown ─▶ Disabling
//!    │                                            ─▶ ReturningLeases ─▶ Gone
//!    └─ all ones ────────────────────────────────▶ ReturningLeases ─▶ Gone
//! Gone ── drive comes back ──▶ Restarting
//! ```

mod events;
mod recovery;
mod watch;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use reactors::{Nanos, Poller, Progress, StopState};

use crate::admin::{AdminEvent, AdminQueue};
use crate::backing::DeviceBacking;
use crate::error::GoneReason;
use crate::registers::Registers;
use crate::shared::{Phase, Shared, StateWord, count};
use crate::startup::{Started, Startup};

/// The state that follows after the drive is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterStop {
    /// The drive is started again.
    Restart,
    /// The drive is released until it is opened again.
    Gone(GoneReason),
    /// The reactor stops.
    Close,
}

impl AfterStop {
    /// Whether the drive is shut down, so that it writes its cache.
    fn shuts_down(self) -> bool {
        match self {
            Self::Restart => false,
            Self::Gone(reason) => {
                matches!(reason, GoneReason::RemovalRequested | GoneReason::Released)
            }
            Self::Close => true,
        }
    }
}

/// The owner's state. Each variant documents its wake-up condition.
enum State {
    /// Waits for events, faults and ticks.
    Running,
    /// Waits for the requests in flight, also of neighbours on its memory, or the deadline.
    Draining { deadline: Nanos, then: AfterStop },
    /// Waits for the pairs' acknowledgements and neighbours' requests on its memory, or the deadline.
    Quiescing { deadline: Nanos, then: AfterStop },
    /// Waits for CSTS.SHST, or the deadline.
    ShuttingDown { deadline: Nanos, then: AfterStop },
    /// Waits for CSTS.RDY, or the deadline.
    Disabling { deadline: Nanos, then: AfterStop },
    /// Waits for the control thread, or the deadline.
    FunctionReset { deadline: Nanos, then: AfterStop },
    /// Waits for the pairs' acknowledgements; a restart gives up at the reset's deadline.
    ReturningLeases { then: AfterStop },
    /// Waits for the start sequence; gives up at the reset's deadline.
    Restarting(Box<Startup>),
    /// Waits for the drive to be reattached.
    Gone,
    /// Final.
    Closed,
}

/// The owner of a drive; a [`Poller`] on one reactor. It can move between threads until it is
/// registered there.
///
/// Dropping it stops the drive's access to memory. After [`Drive::is_closed`](crate::Drive) its
/// drop does not access the drive, so its reactor may drop it.
pub struct DriveOwner {
    shared: Arc<Shared>,
    name: Box<str>,
    state: State,
    admin: Option<AdminQueue>,
    backing: Option<Arc<dyn DeviceBacking>>,
    /// The state that is published.
    state_word: StateWord,
    next_tick: Nanos,
    polled_at: Nanos,
    /// Time of the next read of the health log.
    health_due: Nanos,
    /// Time at which the current reset fails.
    reset_deadline: Nanos,
    /// Whether the current reset has tried a function reset.
    function_reset_tried: bool,
    /// Namespaces that the controller reported as changed, to be identified again.
    rechecks: Vec<u32>,
    /// Time since which no request has been in flight, while stopping.
    idle_since: Option<Nanos>,
    stopping: bool,
}

/// A stop waits until no request has been in flight for this long: a client that drains its queues
/// may still send a last flush.
const IDLE_BEFORE_CLOSE: Nanos = Nanos::from_millis(20);

impl DriveOwner {
    /// Takes over a drive that was started. The clock starts at the first poll, because the start
    /// sequence may have used another clock than the reactor's.
    pub(crate) fn new(shared: Arc<Shared>, started: Started) -> Self {
        let name = format!("nvme {}", shared.options.name).into_boxed_str();
        let mut owner = Self {
            shared,
            name,
            state: State::Running,
            admin: None,
            backing: None,
            state_word: StateWord::new(),
            next_tick: Nanos::ZERO,
            polled_at: Nanos::ZERO,
            health_due: Nanos::ZERO,
            reset_deadline: Nanos::ZERO,
            function_reset_tried: false,
            rechecks: Vec::new(),
            idle_since: None,
            stopping: false,
        };
        owner.install(started, Nanos::ZERO);
        owner
    }

    /// Uses a controller that was started.
    fn install(&mut self, started: Started, now: Nanos) {
        let Started {
            admin,
            identity,
            drive_access,
        } = started;
        let events = usize::from(identity.limits.events);
        if let Some(known) = self.shared.identity.get() {
            self.compare_namespaces(known, &identity);
        } else {
            // The first start: no other thread sets it.
            let _ = self.shared.identity.set(identity);
        }
        self.backing = Some(Arc::clone(&drive_access.backing));
        {
            let mut control = self.shared.control();
            control.backing = Some(Arc::clone(&drive_access.backing));
            control.drive_access = Some(Arc::new(drive_access));
            control.gone = None;
        }
        self.admin = Some(admin);
        for _ in 0..events {
            self.request_event();
        }
        self.health_due = now;
        self.function_reset_tried = false;
        self.state = State::Running;
        self.state_word = self.state_word.with_next_epoch();
        self.publish(Phase::Active);
    }

    /// Publishes a state and wakes all reactors.
    fn publish(&mut self, phase: Phase) {
        self.state_word.set_phase(phase);
        self.shared.publish(self.state_word);
        self.shared.wake_all();
    }

    /// Advances the clock of commands' ages by at most one tick per poll, so that a stall of this
    /// reactor makes no command look old. A tick begins a close that the control thread requested.
    fn tick(&mut self, now: Nanos) -> bool {
        if now < self.next_tick {
            return false;
        }
        self.next_tick = now + self.shared.options.deadlines.tick();
        self.state_word
            .set_tick(self.state_word.tick().wrapping_add(1));
        self.shared.publish(self.state_word);
        if self.shared.close_requested.load(Ordering::Acquire) {
            self.close(now);
        } else if self.shared.release_requested.load(Ordering::Acquire)
            && matches!(self.state, State::Running)
        {
            self.drain(now, AfterStop::Gone(GoneReason::Released));
        }
        true
    }

    /// Begins to close the drive. A reset that is in progress ends first.
    #[cold]
    fn close(&mut self, now: Nanos) {
        match self.state {
            // The queues are closed already, so no client sends a last flush.
            State::Running => self.drain(now, AfterStop::Close),
            State::Gone => self.close_gone(),
            State::Draining { .. }
            | State::Quiescing { .. }
            | State::ShuttingDown { .. }
            | State::Disabling { .. }
            | State::FunctionReset { .. }
            | State::ReturningLeases { .. }
            | State::Restarting(_)
            | State::Closed => {}
        }
    }

    /// Polls while the drive runs. Returns the amount of work done.
    fn run(&mut self, now: Nanos, ticked: bool) -> u32 {
        let mut moved = self.take_events(now);
        moved += self.take_faults(now);
        if !matches!(self.state, State::Running | State::Draining { .. }) {
            return moved + 1;
        }
        if ticked {
            self.watch(now);
        }
        moved
    }

    fn take_events(&mut self, now: Nanos) -> u32 {
        let mut moved = 0;
        while let Some(admin) = &mut self.admin
            && let Some(event) = admin.poll()
        {
            moved += 1;
            match event {
                AdminEvent::Done(purpose, opcode, cqe) => {
                    self.admin_done(purpose, opcode, &cqe, now);
                }
                AdminEvent::Unknown(cid) => {
                    count(&self.shared.counters.unknown_identifiers, 1);
                    tracing::warn!(
                        drive = self.shared.options.name,
                        cid,
                        "an admin completion has an unknown command identifier"
                    );
                    self.begin_reset(now);
                    break;
                }
            }
        }
        moved
    }

    fn is_gone(&self) -> bool {
        matches!(self.state, State::Gone | State::Closed)
    }
}

impl Poller for DriveOwner {
    fn name(&self) -> &str {
        &self.name
    }

    fn poll(&mut self, now: Nanos) -> Progress {
        self.polled_at = now;
        let ticked = self.tick(now);
        let moved = match self.state {
            State::Running => self.run(now, ticked),
            State::Closed => 0,
            State::Gone if ticked => u32::from(self.start_reattached(now)),
            State::Gone => 0,
            State::Draining { .. } => {
                let moved = self.run(now, ticked);
                moved + self.recover(now)
            }
            State::Quiescing { .. }
            | State::ShuttingDown { .. }
            | State::Disabling { .. }
            | State::FunctionReset { .. }
            | State::ReturningLeases { .. }
            | State::Restarting(_) => self.recover(now),
        };
        match moved {
            0 => Progress::Idle,
            moved => Progress::Busy(moved),
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        match self.state {
            State::Closed => None,
            // Poll the controller's registers: there is no notification for their changes.
            State::ShuttingDown { .. } | State::Disabling { .. } | State::Restarting(_) => {
                Some(self.next_tick.min(self.next_register_poll()))
            }
            State::Running
            | State::Draining { .. }
            | State::Quiescing { .. }
            | State::FunctionReset { .. }
            | State::ReturningLeases { .. }
            | State::Gone => Some(self.next_tick),
        }
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        // A sleeping owner polls its queue at every tick: nothing in it is urgent.
        None
    }

    fn prepare_sleep(&mut self) -> bool {
        let event = self.admin.as_ref().is_some_and(AdminQueue::has_ready);
        let fault = |pair: &crate::shared::PairShared| pair.fault.load(Ordering::Acquire) != 0;
        !event && !self.shared.pairs.iter().any(fault)
    }

    fn stop(&mut self, now: Nanos) -> StopState {
        self.stopping = true;
        match self.state {
            State::Closed => return StopState::Stopped,
            State::Gone => {
                self.close_gone();
                return StopState::Stopped;
            }
            State::Running => self.close_when_idle(now),
            State::Draining { .. }
            | State::Quiescing { .. }
            | State::ShuttingDown { .. }
            | State::Disabling { .. }
            | State::FunctionReset { .. }
            | State::ReturningLeases { .. }
            | State::Restarting(_) => {}
        }
        StopState::Outstanding(1)
    }
}

impl Drop for DriveOwner {
    fn drop(&mut self) {
        if self.is_gone() || !self.shared.dma_running.load(Ordering::Acquire) {
            return;
        }
        self.unshare_memory();
        let Some(backing) = self.backing.take() else {
            return;
        };
        // The reactor ends without a stop. Notify the drive so that it writes its cache, which
        // needs no host memory, and immediately prevent its access to memory.
        let registers = Registers::new(&*backing);
        registers.notify_shutdown();
        match registers.stop_dma() {
            Ok(()) => {
                self.shared.dma_running.store(false, Ordering::Release);
                self.shared.control().shut_down = true;
                self.publish(Phase::Gone);
            }
            Err(error) => tracing::error!(
                drive = self.shared.options.name,
                %error,
                "the drive could not be stopped"
            ),
        }
    }
}
