//! The owner of a drive: polls its admin queue, watches it, and carries it through faults.
//!
//! One reactor runs it. It alone moves the drive from state to state, and tells the queue pairs of
//! every reactor through one word (see [`crate::shared`]).
//!
//! ```text
//! Running ── fault ──▶ Quiescing ─▶ Disabling ─▶ TakingHome ─▶ Restarting ─▶ Running
//!    │                     │            │ (drive does not follow)    │
//!    │                     │            └▶ FunctionReset ─▶ TakingHome
//!    ├─ removal, stop ─▶ Leaving ─▶ Quiescing ─▶ ShuttingDown ─▶ Disabling ─▶ TakingHome ─▶ Gone
//!    └─ all ones ─────────────────────────────────────────────▶ TakingHome ─▶ Gone
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
use crate::shared::{Attention, Phase, Shared, count};
use crate::startup::{Started, Startup};

/// Where a stop of the drive leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// The drive is started anew.
    Restart,
    /// The drive is given up until it is opened again.
    Gone(GoneReason),
    /// The reactor stops.
    Close,
}

impl Then {
    /// Whether the drive is told to make its cache safe.
    fn shuts_down(self) -> bool {
        match self {
            Self::Restart => false,
            Self::Gone(reason) => reason == GoneReason::LetGo,
            Self::Close => true,
        }
    }
}

/// What the owner is about. Each state but the last says who moves it on.
enum State {
    /// Events, faults, ticks.
    Running,
    /// The requests in flight, or the deadline.
    Leaving { deadline: Nanos, then: Then },
    /// The pairs' acknowledgements, or the deadline.
    Quiescing { deadline: Nanos, then: Then },
    /// CSTS.SHST, or the deadline.
    ShuttingDown { deadline: Nanos, then: Then },
    /// CSTS.RDY, or the deadline.
    Disabling { deadline: Nanos, then: Then },
    /// The control thread, or the deadline.
    FunctionReset { deadline: Nanos, then: Then },
    /// The pairs' acknowledgements; a restart gives up at the reset's deadline.
    TakingHome { then: Then },
    /// The start's own machine; gives up at the reset's deadline.
    Restarting(Box<Startup>),
    /// A drive that comes back.
    Gone,
    /// Nothing.
    Closed,
}

/// The owner of a drive; a [`Poller`] on one reactor. Send until it is registered there.
///
/// Dropping it stops the drive's access to memory.
pub struct DriveOwner {
    shared: Arc<Shared>,
    name: Box<str>,
    state: State,
    admin: Option<AdminQueue>,
    backing: Option<Arc<dyn DeviceBacking>>,
    /// What is published.
    attention: Attention,
    next_tick: Nanos,
    polled_at: Nanos,
    /// When health is fetched next.
    health_due: Nanos,
    /// When a reset under way has failed.
    reset_deadline: Nanos,
    /// Whether this reset tried a reset of the function.
    function_reset_tried: bool,
    /// Namespaces that are said to have changed.
    rechecks: Vec<u32>,
    /// Since when nothing has been in flight, in a stop.
    idle_since: Option<Nanos>,
    stopping: bool,
}

/// A stop waits until nothing has been in flight for so long: whoever drains its queues may still
/// have a last flush to send.
const IDLE_BEFORE_CLOSE: Nanos = Nanos::from_millis(20);

impl DriveOwner {
    /// Takes over a drive that was brought up. Time begins with the first poll: the reactor's clock
    /// need not be the one that the start was polled with.
    pub(crate) fn new(shared: Arc<Shared>, started: Started) -> Self {
        let name = format!("nvme {}", shared.options.name).into_boxed_str();
        let mut owner = Self {
            shared,
            name,
            state: State::Running,
            admin: None,
            backing: None,
            attention: Attention::new(),
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
            wiring,
        } = started;
        let events = usize::from(identity.limits.events);
        if let Some(known) = self.shared.identity.get() {
            self.compare_namespaces(known, &identity);
        } else {
            // The first start: there is nobody else.
            let _ = self.shared.identity.set(identity);
        }
        self.backing = Some(Arc::clone(&wiring.backing));
        {
            let mut control = self.shared.control();
            control.backing = Some(Arc::clone(&wiring.backing));
            control.wiring = Some(Arc::new(wiring));
            control.gone = None;
        }
        self.admin = Some(admin);
        for _ in 0..events {
            self.request_event();
        }
        self.health_due = now;
        self.function_reset_tried = false;
        self.state = State::Running;
        self.attention = self.attention.with_next_epoch();
        self.publish(Phase::Active);
    }

    /// Publishes a state and wakes everybody for it.
    fn publish(&mut self, phase: Phase) {
        self.attention.set_phase(phase);
        self.shared.publish(self.attention);
        self.shared.wake_all();
    }

    /// The clock of commands' ages: one tick at most per poll, so that a stall of this reactor
    /// makes no command look old.
    fn tick(&mut self, now: Nanos) -> bool {
        if now < self.next_tick {
            return false;
        }
        self.next_tick = now + self.shared.options.deadlines.tick();
        self.attention
            .set_tick(self.attention.tick().wrapping_add(1));
        self.shared.publish(self.attention);
        true
    }

    /// Polls while the drive runs. Returns how much there was to do.
    fn run(&mut self, now: Nanos, ticked: bool) -> u32 {
        let mut moved = self.take_events(now);
        moved += self.take_faults(now);
        if !matches!(self.state, State::Running | State::Leaving { .. }) {
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
                        "an admin completion belongs to no command"
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
            State::Gone if ticked => u32::from(self.take_returned(now)),
            State::Gone => 0,
            State::Leaving { .. } => {
                let moved = self.run(now, ticked);
                moved + self.recover(now)
            }
            State::Quiescing { .. }
            | State::ShuttingDown { .. }
            | State::Disabling { .. }
            | State::FunctionReset { .. }
            | State::TakingHome { .. }
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
            // The controller's registers are looked at; nothing else tells of them.
            State::ShuttingDown { .. } | State::Disabling { .. } | State::Restarting(_) => {
                Some(self.next_tick.min(self.look_again()))
            }
            State::Running
            | State::Leaving { .. }
            | State::Quiescing { .. }
            | State::FunctionReset { .. }
            | State::TakingHome { .. }
            | State::Gone => Some(self.next_tick),
        }
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        // A sleeping owner looks at its queue with every tick: nothing there is urgent.
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
                self.shared.control().shut_down = true;
                self.state = State::Closed;
                return StopState::Stopped;
            }
            State::Running => self.close_when_idle(now),
            State::Leaving { .. }
            | State::Quiescing { .. }
            | State::ShuttingDown { .. }
            | State::Disabling { .. }
            | State::FunctionReset { .. }
            | State::TakingHome { .. }
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
        let Some(backing) = self.backing.take() else {
            return;
        };
        // The reactor ends without a stop: the drive is told to make its cache safe, which needs
        // none of our memory, and is kept from our memory at once.
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
