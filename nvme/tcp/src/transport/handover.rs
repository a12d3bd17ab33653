//! Hand-over of a reactor's part of the transport to a new process (`ARCHITECTURE.md` §9.1).
//!
//! The control thread of the old process holds the connections of all reactors, exports them when
//! all are quiet, and resumes them if the new process fails. That of the new process restores the
//! connections of admin queues on all reactors, then the others, and resumes them when the old
//! process no longer uses them.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use nvme_handover::State;
use nvme_target::NotQuiet;
use reactors::Nanos;

use super::TcpTransport;
use crate::connection::RestoreError;
use crate::connections::BusyConnections;
use crate::network::Network;

/// The progress of a hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandoverState {
    /// There is none.
    Serving,
    /// Requests are completed, and none is admitted. Ends with an export or a resumption.
    Held,
    /// The state is exported, or not resumed yet: nothing is received or sent, because the other
    /// process may do so. Ends with a hold or a resumption.
    Frozen,
}

/// A message about a hand-over. Its sender may have stopped waiting for the response.
#[derive(Debug)]
pub enum HandoverMessage<S> {
    /// Complete the requests, and admit no other. After an export, because that of another reactor
    /// has failed: receive and send again.
    Hold {
        /// Receives the confirmation.
        reply: Sender<()>,
    },
    /// Export the connections and the target core of this reactor. If it succeeds, nothing is
    /// received or sent until [`Hold`](Self::Hold) or [`Resume`](Self::Resume).
    Export {
        /// Receives the state.
        reply: Sender<Result<Exported<S>, NotReady>>,
    },
    /// Continue the counters of an earlier process. Nothing is received or sent until
    /// [`Resume`](Self::Resume).
    Begin {
        /// The state of the earlier process.
        state: Arc<State>,
        /// Receives the confirmation.
        reply: Sender<()>,
    },
    /// Continue connections of an earlier process, after [`Begin`](Self::Begin). Those of admin
    /// queues precede those of I/O queues, on all reactors.
    Restore {
        /// The state of the earlier process.
        state: Arc<State>,
        /// The connections.
        connections: Vec<PassedConnection<S>>,
        /// Receives the result.
        reply: Sender<Result<(), RestoreFailure>>,
    },
    /// End the hold.
    Resume {
        /// Receives the confirmation.
        reply: Sender<()>,
    },
}

/// A reactor's part of a state.
#[derive(Debug)]
pub struct Exported<S> {
    /// The state of the reactor's core, queues and connections.
    pub state: State,
    /// A second handle of the stream of each connection, in the order of the records.
    pub streams: Vec<S>,
}

/// A connection that an earlier process has passed.
#[derive(Debug)]
pub struct PassedConnection<S> {
    /// The position of its record in the state.
    pub record: usize,
    /// Its stream.
    pub stream: S,
}

/// The reason for which a reactor cannot export its state.
#[derive(Debug, thiserror::Error)]
pub enum NotReady {
    /// A later export may succeed.
    #[error(transparent)]
    Connections(#[from] BusyConnections),
    /// A later export may succeed.
    #[error(transparent)]
    Target(#[from] NotQuiet),
    /// A stream cannot be passed.
    #[error("the socket of a connection cannot be duplicated: {0}")]
    Stream(io::Error),
    /// The connections are not held.
    #[error("the connections are not held")]
    NotHeld,
}

/// The reason for which a connection cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreFailure {
    /// Its record is invalid, or the target refuses it.
    #[error(transparent)]
    Connection(#[from] RestoreError),
    /// Its socket cannot be watched.
    #[error("the socket of a connection cannot be watched: {0}")]
    Watch(#[from] io::Error),
    /// There is no such record.
    #[error("the state has no connection {0}")]
    NoRecord(usize),
}

impl<N: Network> TcpTransport<N> {
    /// Carries out a message. Out of line, because it happens once in the life of a process.
    #[cold]
    pub(super) fn carry_out_handover(&mut self, message: HandoverMessage<N::Stream>, now: Nanos) {
        // A send fails if the sender of the message has stopped waiting.
        match message {
            HandoverMessage::Hold { reply } => {
                self.hold(now);
                let _ = reply.send(());
            }
            HandoverMessage::Export { reply } => {
                let _ = reply.send(self.export(now));
            }
            HandoverMessage::Begin { state, reply } => {
                self.handover = HandoverState::Frozen;
                let mut core = self.connections.core().borrow_mut();
                let reactor = core.reactor();
                let mut cores = state.cores.iter();
                if let Some(record) = cores.find(|it| it.reactor as usize == reactor) {
                    core.restore_counters(record);
                }
                let _ = reply.send(());
            }
            HandoverMessage::Restore {
                state,
                connections,
                reply,
            } => {
                let mut connections = connections.into_iter();
                let restored = connections.try_for_each(|it| self.restore(it, &state, now));
                let _ = reply.send(restored);
            }
            HandoverMessage::Resume { reply } => {
                self.resume(now);
                let _ = reply.send(());
            }
        }
    }

    fn hold(&mut self, now: Nanos) {
        if self.handover == HandoverState::Serving {
            self.connections.hold(now);
            // Their requests do not delay the hand-over.
            self.connections.core().borrow_mut().release_throttled();
        }
        self.handover = HandoverState::Held;
    }

    fn export(&mut self, now: Nanos) -> Result<Exported<N::Stream>, NotReady> {
        if self.handover != HandoverState::Held {
            return Err(NotReady::NotHeld);
        }
        let mut state = State::default();
        let places = self.connections.export(now, &mut state)?;
        self.connections.core().borrow().export(now, &mut state)?;
        let streams = places.iter().filter_map(|it| self.connections.stream(*it));
        let streams = streams.map(|stream| self.network.duplicate(stream));
        let streams: io::Result<Vec<_>> = streams.collect();
        let streams = streams.map_err(NotReady::Stream)?;
        self.handover = HandoverState::Frozen;
        Ok(Exported { state, streams })
    }

    fn restore(
        &mut self,
        passed: PassedConnection<N::Stream>,
        state: &State,
        now: Nanos,
    ) -> Result<(), RestoreFailure> {
        let PassedConnection { record, stream } = passed;
        let records = &state.tcp_connections;
        let record = records
            .get(record)
            .ok_or(RestoreFailure::NoRecord(record))?;
        let restored = self.connections.restore(stream, state, record, now);
        let index = restored.map_err(|(_, error)| error)?;
        self.placement.add(self.handoffs.index());
        if let Some(stream) = self.connections.stream(index) {
            self.network.add_stream(index, stream)?;
        }
        Ok(())
    }

    fn resume(&mut self, now: Nanos) {
        self.handover = HandoverState::Serving;
        self.connections.resume(now);
        for handoff in std::mem::take(&mut self.late) {
            self.adopt(handoff, now);
        }
    }
}
