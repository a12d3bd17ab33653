//! One reactor's part of a target: its queues and commands. No lock and no allocation per command.
//!
//! The parts: `connect` creates queues, `admission` checks commands, `gate` decides whether a
//! command may go to its device, `inline` completes commands without waiting, `execution` drives
//! devices and completes commands, `reserve` executes reservation commands, `authentication` executes
//! Authentication Send and Receive, `fused` Compare and
//! Write, for which `exclusions` holds back other commands, `fence` keeps newer writes of a host behind its orphaned ones,
//! `devices` handles completions of devices, `polling` handles timers and changes by other
//! reactors, `closing` ends queues and controllers, `changes` drains queues while others continue,
//! `draining` shuts down the whole core.

mod admission;
mod audit;
mod authentication;
mod changes;
mod closing;
mod connect;
mod copying;
mod devices;
mod draining;
mod exclusions;
mod execution;
mod executions;
mod fence;
pub(crate) mod fused;
mod gate;
mod handover;
mod inline;
mod polling;
mod queue;
mod reserve;
mod slots;
mod throttle;
mod timers;
mod timing;
mod transfers;

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use block::{ClientId, DeviceSet};
use hugemem::DeviceLease;
use nvme_spec::log::{ErrorEntry, ParameterErrorLocation};
use nvme_spec::{Cqe, Sqe, Status, U16, U32, U64};
use reactors::Nanos;
use reactors::recorder::Recorder;

use crate::ana::EarlierCommands;
use crate::config::{CoreLimits, DEVICES_MAX, TransportKind};
use crate::controller::{AdminContext, Controller};
use crate::counters::CoreCounters;
use crate::interface::{Close, Completed, QueueId, TransportId, Work};
use crate::io::IoWork;
use crate::reservations::Ending;
use crate::shares::Shares;
use crate::status::Fault;
use crate::target::Target;
use crate::trace_events::{TraceEvent, status_key};
use crate::view::TargetView;
pub use audit::CoreAudit;
pub(crate) use authentication::AuthenticationWork;
pub use changes::Outstanding;
pub use draining::CoreDrain;
use draining::Phase;
use exclusions::Exclusions;
use executions::Executions;
use fused::Pairs;
use inline::Advances;
use queue::Queue;
use slots::Slots;
pub use throttle::Released;
use throttle::Throttle;
use timers::ControllerTimers;
use timing::SentResponses;
pub use timing::{InlineTiming, Timing};
use transfers::Transfers;
pub use transfers::{DEVICE_PIECES_MAX, DEVICE_TRANSFER_BYTES_MIN};

/// Most transports on one reactor.
const TRANSPORTS_MAX: usize = 8;

/// Most completed reads of one transport whose data is in memory of devices and which it has not
/// taken, and most requests with pieces that are not submitted.
const TRANSFERS_MAX: usize = 256;

/// Interval at which the queues' allowances of logged errors are refilled.
const LOG_REFILL_INTERVAL: Nanos = Nanos::from_millis(100);

/// Messages for one transport.
struct Inbox {
    kind: TransportKind,
    completions: VecDeque<(QueueId, Completed)>,
    closes: VecDeque<Close>,
    /// Memory with the data of completed reads, in the order of their completions, with their tags.
    read_memory: VecDeque<(u64, DeviceLease)>,
    receive: ReceiveState,
}

/// Whether a transport can receive from its hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiveState {
    /// It has never been stalled.
    Running,
    /// It cannot receive because it has no free memory.
    Stalled,
    /// It was stalled until this time.
    ResumedAt(Nanos),
}

/// One reactor's target core. Belongs to one thread.
///
/// In a turn, transports admit and execute received commands;
/// [`ReactorDevices`](block::ReactorDevices) polls the devices and the core; transports take
/// completions and closes, and send.
pub struct TargetCore {
    queues: Slots<Queue>,
    executions: Executions,
    devices: Rc<DeviceSet>,
    /// The core's identifier as a client of the devices.
    client: ClientId,
    inboxes: Vec<Inbox>,
    view: Arc<TargetView>,
    counters: Arc<CoreCounters>,
    recorder: Recorder,
    sent_responses: SentResponses,
    controllers: Slots<Controller>,
    timers: ControllerTimers,
    target: Arc<Target>,
    reactor: usize,
    notifications_seen: u64,
    health_changes_seen: u32,
    reservation_messages_seen: u32,
    exclusion_messages_seen: u64,
    exclusions: Exclusions,
    pairs: Pairs,
    /// A Copy, or a throttled command, whose transport has not taken its work yet.
    set_aside: Option<Work>,
    throttle: Throttle,
    advances: Advances,
    /// Controllers whose events are reported at the end of the turn.
    reporting: Vec<u32>,
    /// Preempted hosts whose commands have not ended yet.
    endings: Vec<Ending>,
    /// Commands from before changes of ANA states, whose end has to be reported.
    awaited: Vec<EarlierCommands>,
    polled_at: Nanos,
    /// Counts polls, to identify turns.
    turn: u32,
    /// When timers and orphans have to be checked; may be early.
    timer: Option<Nanos>,
    /// Number of queues with orphans, and when the first of these is overdue; the time may be
    /// early.
    orphaned_queues: u32,
    orphans_due: Option<Nanos>,
    /// When to check the deadlines of authentications; may be early.
    authentication_due: Option<Nanos>,
    /// When to refill the allowances of logged errors, if one is in use.
    log_refill_at: Option<Nanos>,
    limits: CoreLimits,
    /// Execution slots reserved for queues, by host.
    reserved: Shares,
    phase: Phase,
    /// Whether a queue or controller is completing its commands before it ends.
    has_draining: bool,
    transfers: Transfers,
}

impl TargetCore {
    /// The core of reactor `reactor`. `devices` has one queue of each of the target's devices, at
    /// the index given by its [`DeviceIndex`](crate::DeviceIndex).
    ///
    /// # Panics
    /// If `reactor` is not one of the target's, or a limit is zero.
    #[must_use]
    pub fn new(
        target: Arc<Target>,
        reactor: usize,
        devices: Rc<DeviceSet>,
        limits: CoreLimits,
    ) -> Self {
        assert!(
            reactor < target.reactors(),
            "reactor {reactor} is not one of the target's"
        );
        assert!(
            limits.queues_max > 0 && limits.executions_max > 0,
            "limits of zero"
        );
        let counters = Arc::new(CoreCounters::new(DEVICES_MAX, limits.queues_max));
        target.cores()[reactor] = Some(Arc::clone(&counters));
        target.change_exclusions(|table| table.add_reactor(reactor));
        let notifications_seen = target.notifications(reactor);
        Self {
            queues: Slots::new(limits.queues_max),
            executions: Executions::new(limits.executions_max, limits.queues_max),
            client: devices.register(limits.executions_max),
            devices,
            inboxes: Vec::with_capacity(TRANSPORTS_MAX),
            view: target.published(),
            counters,
            recorder: Recorder::new(),
            sent_responses: SentResponses::new(limits.queues_max),
            controllers: Slots::new(limits.queues_max),
            timers: ControllerTimers::new(limits.queues_max),
            notifications_seen,
            health_changes_seen: target.health_changes(),
            reservation_messages_seen: target.reservation_messages(),
            exclusion_messages_seen: target.exclusion_messages(reactor),
            exclusions: Exclusions::default(),
            pairs: Pairs::default(),
            set_aside: None,
            throttle: Throttle::new(&limits),
            advances: Advances::new(limits.queues_max),
            reporting: Vec::new(),
            endings: Vec::new(),
            awaited: Vec::new(),
            target,
            reactor,
            polled_at: Nanos::ZERO,
            turn: 0,
            timer: None,
            orphaned_queues: 0,
            orphans_due: None,
            authentication_due: None,
            log_refill_at: None,
            limits,
            reserved: Shares::new(limits.executions_max),
            phase: Phase::Serving,
            has_draining: false,
            transfers: Transfers::new(),
        }
    }

    /// Registers a transport of this reactor.
    ///
    /// # Panics
    /// If eight transports are registered.
    pub fn register_transport(&mut self, kind: TransportKind) -> TransportId {
        assert!(
            self.inboxes.len() < TRANSPORTS_MAX,
            "at most {TRANSPORTS_MAX} transports"
        );
        let id = TransportId(self.inboxes.len() as u8);
        self.throttle.add_transport();
        self.inboxes.push(Inbox {
            kind,
            completions: VecDeque::with_capacity(self.limits.executions_max),
            closes: VecDeque::with_capacity(self.limits.queues_max),
            read_memory: VecDeque::with_capacity(TRANSFERS_MAX),
            receive: ReceiveState::Running,
        });
        id
    }

    /// Reports whether a transport cannot receive for lack of memory. This prolongs its keep-alive
    /// timers, by one timeout at most, because they measure what the host sends (Base 2.1 §3.9).
    pub fn set_receive_stalled(&mut self, transport: TransportId, is_stalled: bool, now: Nanos) {
        if let Some(inbox) = self.inboxes.get_mut(usize::from(transport.0)) {
            inbox.receive = if is_stalled {
                ReceiveState::Stalled
            } else {
                ReceiveState::ResumedAt(now)
            };
        }
    }

    /// When receiving on a transport was last stalled.
    fn receive_stalled_at(&self, kind: TransportKind, now: Nanos) -> Option<Nanos> {
        let inboxes = self.inboxes.iter().filter(|inbox| inbox.kind == kind);
        let times = inboxes.filter_map(|inbox| match inbox.receive {
            ReceiveState::Running => None,
            ReceiveState::Stalled => Some(now),
            ReceiveState::ResumedAt(time) => Some(time),
        });
        times.max()
    }

    /// The next completed command of a transport. Drops completions of queues that have been closed
    /// in the meantime.
    #[inline]
    pub fn next_completion(&mut self, transport: TransportId) -> Option<Completed> {
        let inbox = self.inboxes.get_mut(usize::from(transport.0))?;
        while let Some((queue, mut completed)) = inbox.completions.pop_front() {
            if let Some(queue) = self.queues.get_mut(queue.slot, queue.generation) {
                queue.move_head(&mut completed.response);
                return Some(completed);
            }
            if inbox.read_memory.front().map(|(tag, _)| *tag) == Some(completed.tag) {
                inbox.read_memory.pop_front();
            }
        }
        None
    }

    /// Whether there is a completion for a transport, possibly of a closed queue.
    #[inline]
    #[must_use]
    pub fn has_completions(&self, transport: TransportId) -> bool {
        let inbox = self.inboxes.get(usize::from(transport.0));
        inbox.is_some_and(|inbox| !inbox.completions.is_empty())
    }

    /// The next connection that a transport has to close.
    pub fn next_close(&mut self, transport: TransportId) -> Option<Close> {
        let inbox = self.inboxes.get_mut(usize::from(transport.0))?;
        while let Some(close) = inbox.closes.pop_front() {
            if self
                .queues
                .get(close.queue.slot, close.queue.generation)
                .is_some()
            {
                return Some(close);
            }
        }
        None
    }

    /// Whether there is work that neither a descriptor nor a deadline signals.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        let waiting = |inbox: &Inbox| !inbox.completions.is_empty() || !inbox.closes.is_empty();
        self.target.notifications(self.reactor) != self.notifications_seen
            || self.target.exclusion_messages(self.reactor) != self.exclusion_messages_seen
            || self.sent_responses.is_pending()
            || self.inboxes.iter().any(waiting)
            || self.throttle.has_any_released()
    }

    /// The devices of its reactor.
    #[must_use]
    pub fn devices(&self) -> &Rc<DeviceSet> {
        &self.devices
    }

    /// Commands in execution, orphans included.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.executions.len()
    }

    /// Queues whose connections are open, or whose last command is still in a device.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// The counters, which other threads may read.
    #[must_use]
    pub fn counters(&self) -> &Arc<CoreCounters> {
        &self.counters
    }

    /// The target.
    #[must_use]
    pub fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// The handle of the queue in a slot.
    fn queue_id(&self, slot: u32) -> QueueId {
        QueueId {
            slot,
            generation: self.queues.generation(slot),
        }
    }

    /// A controller of this core, and the context of its commands.
    fn controller(&mut self, slot: u32, now: Nanos) -> Option<(&mut Controller, AdminContext<'_>)> {
        let controller = self.controllers.at_mut(slot)?;
        let context = AdminContext {
            target: &self.target,
            view: &self.view,
            counters: &self.counters,
            now,
        };
        Some((controller, context))
    }

    /// Arms a controller's timer for its next deadline.
    fn set_timer(&mut self, slot: u32) {
        let controller = self.controllers.at(slot);
        let deadline = controller.and_then(Controller::next_deadline);
        self.timers.set(slot, deadline);
        self.set_core_timer();
    }

    /// Sets the core's timer to the earliest deadline of timers and orphans.
    fn set_core_timer(&mut self) {
        let timers = self.timers.next_deadline();
        let turn = self.throttle.next_turn();
        let others = [self.orphans_due, self.authentication_due, turn];
        self.timer = timers.into_iter().chain(others.into_iter().flatten()).min();
    }

    /// The response to a failed command. Counts the error, and logs it if the queue's allowance is
    /// not used up (Base 2.1 §5.1.12.1.2).
    fn fail(&mut self, slot: u32, sqe: &FailedCommand, fault: Fault) -> Cqe {
        self.counters.errors.add(1);
        let Some(queue) = self.queues.at_mut(slot) else {
            self.counters.statuses.count(fault.status);
            return Cqe::new(sqe.command_id, fault.status);
        };
        let measures = queue
            .subsystem(&self.view)
            .and_then(|view| view.measures.of(self.reactor));
        measures
            .map_or(&self.counters.statuses, |it| &it.statuses)
            .count(fault.status);
        let note = queue
            .note
            .with_detail(status_key(fault.status))
            .with_command(sqe.command_id);
        self.recorder
            .record(self.polled_at, TraceEvent::Failed.of(note));
        let Some(log_allowance) = queue.log_allowance.checked_sub(1) else {
            self.counters.errors_not_logged.add(1);
            return queue.respond(sqe.command_id, fault.status);
        };
        queue.log_allowance = log_allowance;
        // Base 2.1 §4.2.3, More: the Error Information log has more information about this command.
        let response = queue.respond(sqe.command_id, fault.status.with_more(true));
        let location = fault
            .location
            .try_into()
            .map_or(ParameterErrorLocation::NONE, |byte| {
                ParameterErrorLocation::new().with_byte(byte)
            });
        let mut entry = ErrorEntry::default();
        entry.sqid = U16::new(queue.qid);
        entry.cid = U16::new(sqe.command_id);
        entry.status = response.status;
        entry.location = location;
        entry.lba = U64::new(sqe.lba);
        entry.nsid = U32::new(sqe.nsid);
        entry.opcode = sqe.opcode;
        // Base 2.1 §5.1.12.1.2, LPVER: command set and opcode are valid.
        entry.lpver = 1;
        queue.shared.errors.record(entry);
        // The interval starts with the first error, so that only a flood uses up the allowance.
        if self.log_refill_at.is_none() {
            self.log_refill_at = Some(self.polled_at + LOG_REFILL_INTERVAL);
        }
        response
    }

    /// The response to a call with a stale queue handle.
    fn stale(&mut self, command_id: u16) -> Cqe {
        self.counters.stale_queues.add(1);
        Cqe::new(command_id, Status::ABORTED_SQ_DELETION)
    }
}

/// Fields of a command for the error log.
#[derive(Clone, Copy, Debug)]
struct FailedCommand {
    opcode: u8,
    command_id: u16,
    nsid: u32,
    lba: u64,
}

impl FailedCommand {
    fn of(sqe: &Sqe) -> Self {
        let (opcode, command_id, nsid) = (sqe.opcode, sqe.cid.get(), sqe.nsid.get());
        Self {
            opcode,
            command_id,
            nsid,
            lba: 0,
        }
    }

    fn of_work(work: &IoWork, command_id: u16) -> Self {
        let opcode = work.operation.opcode().0;
        Self {
            opcode,
            command_id,
            nsid: work.nsid,
            lba: work.lba,
        }
    }
}
