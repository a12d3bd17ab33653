//! Hand-over of the connections of a reactor to a new process (`ARCHITECTURE.md` §9.1).

use std::cell::RefCell;
use std::rc::Rc;

use nvme_handover::{State, TcpConnectionRecord};
use nvme_target::{PortId, TargetCore};
use reactors::Nanos;

use super::ConnectionSet;
use crate::connection::{Connection, RestoreError};
use crate::stream::ByteStream;

/// Connections whose requests are not completed, which delays an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} connections have requests that are not completed")]
pub struct BusyConnections(pub usize);

impl<S: ByteStream> ConnectionSet<S> {
    /// The core that the connections' queues belong to.
    pub(crate) fn core(&self) -> &Rc<RefCell<TargetCore>> {
        &self.shared.core
    }

    /// Holds all connections: their requests are completed, and no command is admitted until
    /// [`resume`](Self::resume). The reactor goes on as usual meanwhile. No connection may be
    /// inserted.
    pub fn hold(&mut self, now: Nanos) {
        for index in self.table.places() {
            self.with(index, now, |connection, cx| {
                connection.hold(cx);
                Ok(())
            });
        }
    }

    /// Adds the records of all held connections to `state`; returns the place of the stream of each,
    /// in the same order. Connections that are being closed are not handed over. Those whose stream
    /// [belongs to the process](ByteStream::belongs_to_process) are closed when their requests are
    /// completed. Nothing changes for the other hosts, so their connections may be resumed.
    ///
    /// # Errors
    /// The number of connections that are not ready. A later call may succeed.
    pub fn export(&mut self, now: Nanos, state: &mut State) -> Result<Vec<u16>, BusyConnections> {
        let (mut records, mut places, mut busy) = (Vec::new(), Vec::new(), 0);
        for index in self.table.places() {
            let connection = self.table.get(index);
            if connection.is_none_or(Connection::is_closing) {
                // Nothing is sent after the export.
                busy += usize::from(connection.is_some_and(Connection::is_finishing));
                continue;
            }
            let is_bound = self.with(index, now, |it, cx| Ok(it.finish_if_bound(cx)));
            if is_bound == Some(true) {
                busy += 1;
                continue;
            }
            let exported = self.with(index, now, |connection, cx| Ok(connection.export(cx)));
            match exported.flatten() {
                Some(record) => {
                    records.push(record);
                    places.push(index);
                }
                None => busy += 1,
            }
        }
        if busy > 0 {
            return Err(BusyConnections(busy));
        }
        state.tcp_connections.append(&mut records);
        Ok(places)
    }

    /// Ends the hold of all connections.
    pub fn resume(&mut self, now: Nanos) {
        for index in self.table.places() {
            self.with(index, now, |connection, cx| {
                connection.resume(cx);
                Ok(())
            });
        }
    }

    /// Inserts a connection of an earlier process with its stream, held; returns its place. The
    /// connections of admin queues precede those of their I/O queues, on all reactors.
    ///
    /// # Errors
    /// The stream, which the caller closes, and the problem.
    pub fn restore(
        &mut self,
        stream: S,
        state: &State,
        record: &TcpConnectionRecord,
        now: Nanos,
    ) -> Result<u16, (S, RestoreError)> {
        let index = match self.insert(stream, PortId(record.port), now) {
            Ok(index) => index,
            Err(stream) => return Err((stream, RestoreError::Full)),
        };
        let restored = self.with(index, now, |connection, cx| {
            Ok(connection.restore(cx, state, record))
        });
        let Some(Err(error)) = restored else {
            return Ok(index);
        };
        match self.table.remove(index) {
            Some(connection) => {
                let (placement, reactor) = &self.shared.placement;
                placement.remove_evictable(*reactor);
                self.shared.counters.connections.set(self.len() as u64);
                Err((connection.into_stream(), error))
            }
            None => Ok(index),
        }
    }
}
