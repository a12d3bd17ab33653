//! One queue of this core: an admin or I/O submission queue with its connection.

mod handover;

use std::net::IpAddr;
use std::sync::Arc;

use nvme_spec::{Cqe, Status, U16};
use reactors::Nanos;
use reactors::recorder::{TraceRecord, TraceRecordKind};

use super::authentication::{Session, Standing};
use super::fused::PairId;
use crate::config::ADMIN_EXECUTIONS_MAX;
use crate::controller::ControllerKind;
use crate::interface::CloseReason;
use crate::io::DataContext;
use crate::rates::QueueRates;
use crate::shared::{ControllerShared, Gate};
use crate::shares::ShareHolder;
use crate::stages::{ByOperation, Measured};
use crate::trace_events::{CommandTrace, TraceEvent};
use crate::view::{SubsystemView, TargetView, Visibility};

/// Failed commands of one queue that are logged between two refills, so that a flood of errors does
/// not take the log's lock for each.
pub(crate) const LOGGED_ERRORS_MAX: u8 = 16;

/// Admin or I/O queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueKind {
    /// The admin queue of the controller in this slot of the core.
    Admin { controller: u32 },
    /// An I/O queue with its token in the registry.
    Io { token: u64 },
}

/// The state of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueState {
    /// Admits commands.
    Live,
    /// Completes its commands and admits no more. Ends with the last response.
    Draining,
    /// Completes its commands before the host's Disconnect. Ends with the last response.
    Disconnecting { tag: u64, command_id: u16 },
    /// The core has requested the close of the connection. Ends with the call of `close_queue`.
    Ending,
    /// The connection is closed. The last device completion frees the queue.
    Closed,
}

/// An event in the life of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueEvent {
    /// A Disconnect command was received.
    Disconnect { tag: u64, command_id: u16 },
    /// The last outstanding command was completed.
    AllCompleted,
    /// The connection has to end after all responses.
    StartDrain,
    /// The connection has to end now.
    End,
    /// The connection is closed.
    ConnectionClosed,
}

/// The next state, or `None` if the event changes nothing.
pub(crate) const fn transition(state: QueueState, event: QueueEvent) -> Option<QueueState> {
    use QueueEvent::{AllCompleted, ConnectionClosed, Disconnect, End, StartDrain};
    use QueueState::{Closed, Disconnecting, Draining, Ending, Live};
    match (state, event) {
        (Live, StartDrain) => Some(Draining),
        (Live, Disconnect { tag, command_id }) => Some(Disconnecting { tag, command_id }),
        (Disconnecting { .. } | Draining, AllCompleted | End) | (Live, End) => Some(Ending),
        (Live | Draining | Disconnecting { .. } | Ending, ConnectionClosed) => Some(Closed),
        (Live | Ending | Closed, AllCompleted)
        | (Ending | Closed, End)
        | (Draining | Disconnecting { .. } | Ending | Closed, Disconnect { .. } | StartDrain)
        | (Closed, ConnectionClosed) => None,
    }
}

/// One queue.
pub(crate) struct Queue {
    pub(crate) shared: Arc<ControllerShared>,
    /// The controller's gate as it was when an I/O queue was created, and whether the host has to
    /// authenticate itself first.
    pub(crate) gate: Gate,
    pub(crate) kind: QueueKind,
    pub(crate) state: QueueState,
    pub(crate) subsystem_slot: u32,
    /// What its host sees of the subsystem, in the epoch that the core has adopted.
    visibility: Visibility,
    pub(crate) data: DataContext,
    pub(crate) depth: u16,
    pub(crate) qid: u16,
    pub(crate) flow_control: bool,
    pub(crate) transport: u8,
    /// Failed commands that may still be logged before the next refill.
    pub(crate) log_allowance: u8,
    head: u16,
    /// Commands admitted as work that have no response yet.
    pub(crate) outstanding_commands: u32,
    /// Those of them in the table of executions. After the connection is closed: its orphans.
    pub(crate) executing: u32,
    /// Those of them that a fence or an exclusion holds back.
    pub(crate) fenced: u32,
    /// The pair whose second command the next command has to be.
    expects_second: Option<PairId>,
    /// When devices have to end its orphans by force. Set when its connection is closed.
    pub(crate) overdue_at: Option<Nanos>,
    pub(crate) connection: u32,
    /// Execution slots reserved for it.
    pub(crate) slot_quota: usize,
    /// The host that the slots are counted for.
    pub(crate) share_holder: ShareHolder,
    /// Inline completions of this turn.
    pub(crate) inline_count: ByOperation<u32>,
    /// Template of its commands' trace events.
    pub(crate) note: CommandTrace,
    /// Prepared trace events of inline completions.
    pub(crate) inline_trace: ByOperation<TraceRecord>,
    /// The host's address on this connection.
    pub(crate) peer_address: Option<IpAddr>,
    /// Whether its host is authenticated.
    pub(crate) standing: Standing,
    /// The transactions of its host.
    pub(crate) session: Option<Box<Session>>,
    /// The rate limits that apply to it, in the epoch that the core has adopted.
    rates: Option<Box<QueueRates>>,
    /// [`Self::inline_path`].
    inline_path: InlinePath,
}

/// Which reads and writes of a queue may complete inline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InlinePath {
    /// All.
    Unlimited,
    /// Those that its rates let start.
    Limited,
    /// None: it admits no I/O commands, or the second one of a fused operation has to follow.
    Closed,
}

/// Parameters of a new queue.
pub(crate) struct QueueSetup {
    pub(crate) kind: QueueKind,
    pub(crate) qid: u16,
    pub(crate) depth: u16,
    pub(crate) flow_control: bool,
    pub(crate) transport: u8,
    pub(crate) connection: u32,
    pub(crate) data: DataContext,
    pub(crate) slot_quota: usize,
    pub(crate) share_holder: ShareHolder,
    pub(crate) peer_address: Option<IpAddr>,
}

impl Queue {
    pub(crate) fn new(shared: Arc<ControllerShared>, gate: Gate, setup: &QueueSetup) -> Self {
        let mut queue = Self {
            gate,
            kind: setup.kind,
            state: QueueState::Live,
            subsystem_slot: shared.identity.subsystem,
            visibility: Visibility::NOTHING,
            note: CommandTrace::of_queue(shared.identity.subsystem, 0),
            inline_trace: ByOperation {
                read: TraceRecord::new(TraceRecordKind(0), 0, 0, 0),
                write: TraceRecord::new(TraceRecordKind(0), 0, 0, 0),
            },
            shared,
            data: setup.data,
            depth: setup.depth,
            qid: setup.qid,
            flow_control: setup.flow_control,
            transport: setup.transport,
            log_allowance: LOGGED_ERRORS_MAX,
            head: 0,
            outstanding_commands: 0,
            executing: 0,
            fenced: 0,
            expects_second: None,
            overdue_at: None,
            connection: setup.connection,
            slot_quota: setup.slot_quota,
            share_holder: setup.share_holder,
            inline_count: ByOperation::default(),
            peer_address: setup.peer_address,
            standing: Standing::NotRequired,
            session: None,
            rates: None,
            inline_path: InlinePath::Closed,
        };
        queue.derive_inline_path();
        queue
    }

    fn derive_inline_path(&mut self) {
        self.inline_path = self.current_inline_path();
    }

    fn current_inline_path(&self) -> InlinePath {
        let admits_io = self.is_live_io() && self.expects_second.is_none();
        match (admits_io, &self.rates) {
            (true, None) => InlinePath::Unlimited,
            (true, Some(_)) => InlinePath::Limited,
            (false, _) => InlinePath::Closed,
        }
    }

    /// Which of its reads and writes may complete inline. Follows from other fields: one test
    /// instead of four.
    #[inline(always)]
    pub(crate) fn inline_path(&self) -> InlinePath {
        debug_assert_eq!(self.inline_path, self.current_inline_path());
        self.inline_path
    }

    /// The rate limits that apply to it.
    #[inline]
    pub(crate) fn rates(&self) -> Option<&QueueRates> {
        self.rates.as_deref()
    }

    #[inline]
    pub(crate) fn rates_mut(&mut self) -> Option<&mut QueueRates> {
        self.rates.as_deref_mut()
    }

    pub(crate) fn set_rates(&mut self, rates: Option<Box<QueueRates>>) {
        self.rates = rates;
        self.derive_inline_path();
    }

    /// Whether the next command has to be the second one of a fused operation.
    #[inline]
    pub(crate) fn expects_second(&self) -> bool {
        self.expects_second.is_some()
    }

    /// The next command has to be the second one of this pair.
    pub(crate) fn expect_second(&mut self, pair: PairId) {
        self.expects_second = Some(pair);
        self.derive_inline_path();
    }

    /// The pair whose second command was expected.
    pub(crate) fn take_expected(&mut self) -> Option<PairId> {
        let expected = self.expects_second.take();
        self.derive_inline_path();
        expected
    }

    /// Adopts the configuration of a new epoch, or the first one.
    pub(crate) fn adopt_view(&mut self, view: &TargetView) {
        self.visibility = view.visibility(&self.shared.identity);
    }

    /// The rate limits that apply to it according to `view`.
    pub(crate) fn find_rates(&self, view: &TargetView) -> Option<Box<QueueRates>> {
        match self.kind {
            QueueKind::Io { .. } => {
                QueueRates::find(view, &self.shared.identity, self.subsystem(view))
            }
            QueueKind::Admin { .. } => None,
        }
    }

    /// Its subsystem, if it is still configured, as its host sees it.
    #[inline]
    pub(crate) fn subsystem<'a>(&self, view: &'a TargetView) -> Option<&'a SubsystemView> {
        view.seen(self.visibility)
    }

    /// Prepares trace events for this slot.
    pub(crate) fn prepare_trace(&mut self, slot: u32) {
        self.note = CommandTrace::of_queue(self.subsystem_slot, slot);
        let served =
            |operation| TraceEvent::CompletedInline.of(self.note.with_operation(Some(operation)));
        self.inline_trace = ByOperation {
            read: served(Measured::Read),
            write: served(Measured::Write),
        };
    }

    /// Whether it admits I/O commands.
    #[inline]
    pub(crate) fn is_live_io(&self) -> bool {
        match (self.kind, self.state) {
            (QueueKind::Io { .. }, QueueState::Live) => true,
            (
                QueueKind::Io { .. },
                QueueState::Draining
                | QueueState::Disconnecting { .. }
                | QueueState::Ending
                | QueueState::Closed,
            )
            | (QueueKind::Admin { .. }, _) => false,
        }
    }

    /// A response with the submission queue head that it moves on (Base 2.1 §4.2.1, SQHD: the entry
    /// is free for the host once its response arrives). Without flow control the field is reserved.
    #[inline]
    pub(crate) fn respond(&mut self, command_id: u16, status: Status) -> Cqe {
        let mut response = Cqe::new(command_id, status);
        self.move_head(&mut response);
        response
    }

    /// Moves the head on by a response. Transports send responses in the order in which they
    /// receive them, so a response that waits in the core moves the head when it is taken, and
    /// SQHD never goes back.
    #[inline]
    pub(crate) fn move_head(&mut self, response: &mut Cqe) {
        if self.flow_control {
            self.head = if self.head + 1 >= self.depth {
                0
            } else {
                self.head + 1
            };
            response.sqhd = U16::new(self.head);
        }
    }

    /// Moves the head back by a response that is going to wait in the core.
    #[inline]
    pub(crate) fn move_head_back(&mut self) {
        if self.flow_control {
            self.head = self.head.checked_sub(1).unwrap_or(self.depth - 1);
        }
    }

    /// The slot of the controller whose admin queue this is.
    pub(crate) fn controller(&self) -> Option<u32> {
        match self.kind {
            QueueKind::Admin { controller } => Some(controller),
            QueueKind::Io { .. } => None,
        }
    }

    /// Execution slots that a queue needs at most: an I/O queue its depth; the admin queue of an
    /// I/O controller some flushes and the one of a shutdown. A discovery controller flushes
    /// nothing.
    pub(crate) fn slot_quota(qid: u16, depth: u16, kind: ControllerKind) -> usize {
        match kind {
            ControllerKind::Io if qid > 0 => usize::from(depth),
            ControllerKind::Io => usize::from(depth.min(ADMIN_EXECUTIONS_MAX)) + 1,
            ControllerKind::Discovery => 1,
        }
    }

    /// Applies an event. Returns false if it changes nothing.
    pub(crate) fn apply(&mut self, event: QueueEvent) -> bool {
        match transition(self.state, event) {
            Some(state) => {
                self.state = state;
                self.derive_inline_path();
                true
            }
            None => false,
        }
    }

    /// The reason for which the queue has to end after its responses, if any.
    pub(crate) fn drain_reason(&self) -> Option<CloseReason> {
        match self.kind {
            // The admin queue ends with the controller, after its I/O queues.
            QueueKind::Io { .. } => self.shared.drain_requested(),
            QueueKind::Admin { .. } => None,
        }
    }

    /// The reason for which the queue has to end now, if any: the end of its association, or a
    /// reset.
    pub(crate) fn end_reason(&self) -> Option<CloseReason> {
        if let Some(reason) = self.shared.ending() {
            return Some(reason);
        }
        let reset = self.shared.gate().resets() != self.gate.resets();
        match self.kind {
            QueueKind::Io { .. } if reset => Some(CloseReason::ControllerReset),
            QueueKind::Io { .. } | QueueKind::Admin { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::tests::controller;

    fn queue(flow_control: bool) -> Queue {
        let shared = Arc::new(controller());
        shared.open_gate();
        let gate = shared.gate();
        let setup = QueueSetup {
            kind: QueueKind::Io { token: 1 },
            qid: 1,
            depth: 3,
            flow_control,
            transport: 0,
            connection: 0,
            data: DataContext {
                keyed: false,
                in_capsule_max: 4096,
            },
            slot_quota: 3,
            share_holder: ShareHolder::new("nqn.host", false, None),
            peer_address: None,
        };
        Queue::new(shared, gate, &setup)
    }

    /// Base 2.1 §4.2.1, SQHD: SQHD counts modulo the size of the queue.
    #[test]
    fn sq_head_wraps_at_the_queue_size() {
        let mut queue = queue(true);
        let heads: Vec<_> = (0..5)
            .map(|id| queue.respond(id, Status::SUCCESS).sqhd.get())
            .collect();
        assert_eq!(heads, [1, 2, 0, 1, 2]);
    }

    /// Base 2.1 §4.2.1, SQHD: a response that waits takes the head after those sent before it.
    #[test]
    fn waiting_responses_move_the_head_when_they_are_taken() {
        let mut queue = queue(true);
        for first in [1, 0, 2, 1] {
            let mut waiting = queue.respond(7, Status::SUCCESS);
            queue.move_head_back();
            let sent = queue.respond(8, Status::SUCCESS);
            queue.move_head(&mut waiting);
            let heads = (sent.sqhd.get(), waiting.sqhd.get());
            assert_eq!(heads, (first, (first + 1) % 3));
        }
    }

    /// Base 2.1 §6.3, CATTR bit 2: without flow control SQHD is reserved.
    #[test]
    fn sqhd_is_zero_without_flow_control() {
        let mut queue = queue(false);
        assert!((0..5).all(|id| queue.respond(id, Status::SUCCESS).sqhd.get() == 0));
    }

    #[test]
    fn queue_observes_reset_and_end_of_its_controller() {
        let queue = queue(true);
        assert_eq!(queue.end_reason(), None);
        queue.shared.close_gate();
        assert_eq!(queue.end_reason(), None, "a shutdown leaves the queue");
        queue.shared.reset_gate();
        assert_eq!(queue.end_reason(), Some(CloseReason::ControllerReset));
        queue.shared.end(CloseReason::KeepAliveExpired);
        assert_eq!(queue.end_reason(), Some(CloseReason::KeepAliveExpired));
    }

    #[test]
    fn all_transitions_are_defined() {
        use QueueEvent::{AllCompleted, ConnectionClosed, Disconnect, End, StartDrain};
        use QueueState::{Closed, Disconnecting, Draining, Ending, Live};
        let (tag, command_id) = (5, 6);
        let disconnecting = Disconnecting { tag, command_id };
        let disconnect = Disconnect { tag, command_id };
        let rows = [
            (Live, disconnect, Some(disconnecting)),
            (Live, AllCompleted, None),
            (Live, StartDrain, Some(Draining)),
            (Draining, disconnect, None),
            (Draining, AllCompleted, Some(Ending)),
            (Draining, StartDrain, None),
            (Draining, End, Some(Ending)),
            (Draining, ConnectionClosed, Some(Closed)),
            (Live, End, Some(Ending)),
            (Live, ConnectionClosed, Some(Closed)),
            (disconnecting, disconnect, None),
            (disconnecting, AllCompleted, Some(Ending)),
            (disconnecting, StartDrain, None),
            (disconnecting, End, Some(Ending)),
            (disconnecting, ConnectionClosed, Some(Closed)),
            (Ending, disconnect, None),
            (Ending, AllCompleted, None),
            (Ending, StartDrain, None),
            (Ending, End, None),
            (Ending, ConnectionClosed, Some(Closed)),
            (Closed, disconnect, None),
            (Closed, AllCompleted, None),
            (Closed, StartDrain, None),
            (Closed, End, None),
            (Closed, ConnectionClosed, None),
        ];
        for (state, event, next) in rows {
            assert_eq!(transition(state, event), next, "{state:?} {event:?}");
        }
    }
}
