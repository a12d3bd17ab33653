//! Hand-over of the listeners and connections of NVMe/TCP to a new process.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nvme_handover::{State, TcpPhase};
use nvme_target::PortId;
use nvme_tcp::{
    Exported, HandoverMessage, NotReady, PassedConnection, RestoreFailure, SocketStream, TcpSocket,
};

use super::Tcp;
use crate::event_loop::EventLoop;
use crate::messages::NoResponse;

/// Why connections are not exported.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExportError {
    /// Try again until a limit.
    #[error(transparent)]
    NotReady(#[from] NotReady),
    #[error(transparent)]
    NoResponse(#[from] NoResponse),
}

/// Why connections are not restored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    #[error(transparent)]
    Connection(#[from] RestoreFailure),
    #[error(transparent)]
    NoResponse(#[from] NoResponse),
    #[error("{sockets} sockets were passed for {records} connections")]
    Sockets { sockets: usize, records: usize },
    #[error("connection {record} belongs to reactor {reactor}, but there are only {reactors}")]
    Reactor {
        record: usize,
        reactor: u32,
        reactors: usize,
    },
}

/// The connections for each reactor.
type Distributed = Vec<Vec<PassedConnection<SocketStream>>>;

impl Tcp {
    /// While it is paused, new connections wait in the kernel.
    pub(crate) fn set_paused(&self, paused: bool) {
        self.acceptor.set_paused(paused);
    }

    /// A descriptor of each listening socket.
    ///
    /// # Errors
    /// The system's: there are too many open files.
    pub(crate) fn listening(&self) -> std::io::Result<BTreeMap<PortId, OwnedFd>> {
        let sockets = self.sockets();
        let duplicate = |(port, socket): (&PortId, &std::net::TcpListener)| {
            Ok((*port, OwnedFd::from(socket.try_clone()?)))
        };
        sockets.iter().map(duplicate).collect()
    }

    /// Makes the connections of all reactors complete their requests and admit no other.
    ///
    /// # Errors
    /// A reactor is stuck.
    pub(crate) fn hold(&self, event_loop: &mut dyn EventLoop) -> Result<(), NoResponse> {
        let hold = |_, reply| HandoverMessage::Hold { reply };
        self.port_messages.hand_over(event_loop, hold).map(drop)
    }

    /// Exports the state of all reactors, with the socket of each connection. Nothing is received or
    /// sent until they are resumed, or held again.
    ///
    /// # Errors
    /// The first reactor that is not ready; the others wait.
    pub(crate) fn export(
        &self,
        event_loop: &mut dyn EventLoop,
    ) -> Result<(State, Vec<SocketStream>), ExportError> {
        let export = |_, reply| HandoverMessage::Export { reply };
        let exported = self.port_messages.hand_over(event_loop, export)?;
        let (mut all, mut sockets) = (State::default(), Vec::new());
        for part in exported {
            let Exported { mut state, streams } = part?;
            all.cores.append(&mut state.cores);
            all.controllers.append(&mut state.controllers);
            all.queues.append(&mut state.queues);
            all.tcp_connections.append(&mut state.tcp_connections);
            sockets.extend(streams);
        }
        Ok((all, sockets))
    }

    /// Ends the hold of all reactors.
    ///
    /// # Errors
    /// A reactor is stuck.
    pub(crate) fn resume(&self, event_loop: &mut dyn EventLoop) -> Result<(), NoResponse> {
        let resume = |_, reply| HandoverMessage::Resume { reply };
        self.port_messages.hand_over(event_loop, resume).map(drop)
    }

    /// Continues the connections of an earlier process, held, with a socket for each record of
    /// `state`. Connections that hosts have ended meanwhile are left out.
    ///
    /// # Errors
    /// The first problem. The process cannot serve then.
    pub(crate) fn restore(
        &self,
        state: &Arc<State>,
        sockets: Vec<OwnedFd>,
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), RestoreError> {
        let (admin, io) = self.distribute(state, sockets)?;
        let begin = |_, reply| HandoverMessage::Begin {
            state: Arc::clone(state),
            reply,
        };
        self.port_messages.hand_over(event_loop, begin)?;
        for mut connections in [admin, io] {
            let restore = |reactor: usize, reply| HandoverMessage::Restore {
                state: Arc::clone(state),
                connections: std::mem::take(&mut connections[reactor]),
                reply,
            };
            let restored = self.port_messages.hand_over(event_loop, restore)?;
            restored.into_iter().collect::<Result<(), _>>()?;
        }
        Ok(())
    }

    /// The connections without an I/O queue, and those with one, by reactor.
    fn distribute(
        &self,
        state: &State,
        sockets: Vec<OwnedFd>,
    ) -> Result<(Distributed, Distributed), RestoreError> {
        let reactors = self.counters.len();
        let records = state.tcp_connections.len();
        if sockets.len() != records {
            return Err(RestoreError::Sockets {
                sockets: sockets.len(),
                records,
            });
        }
        let empty = || (0..reactors).map(|_| Vec::new()).collect();
        let (mut admin, mut io): (Distributed, Distributed) = (empty(), empty());
        // Controllers whose admin connection has ended.
        let mut ended = BTreeSet::new();
        let mut queued = Vec::new();
        for (number, socket) in sockets.into_iter().enumerate() {
            let record = &state.tcp_connections[number];
            let reactor = record.reactor as usize;
            if reactor >= reactors {
                return Err(RestoreError::Reactor {
                    record: number,
                    reactor: record.reactor,
                    reactors,
                });
            }
            let stream = TcpSocket::new(TcpStream::from(socket)).ok();
            let passed = stream.map(|stream| PassedConnection {
                record: number,
                stream: SocketStream::Plain(stream),
            });
            match (record.phase, passed) {
                (TcpPhase::Serving { controller_id, qid }, Some(passed)) if qid > 0 => {
                    queued.push((controller_id, reactor, passed));
                }
                (
                    TcpPhase::Serving {
                        controller_id,
                        qid: 0,
                    },
                    None,
                ) => {
                    ended.insert(controller_id);
                }
                (_, Some(passed)) => admin[reactor].push(passed),
                (_, None) => {}
            }
        }
        for (controller, reactor, passed) in queued {
            if !ended.contains(&controller) {
                io[reactor].push(passed);
            }
        }
        Ok((admin, io))
    }
}
