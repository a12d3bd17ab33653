//! Counters and levels of the server, written only by its user's thread and readable from any other.

use std::array;

use files_spec::operations::OperationNumber;
use reactors::Counter;

/// One more than the last operation of minor version 2; 0 stands for numbers beyond it.
const OPERATIONS: usize = OperationNumber::REMOVEXATTR.0 as usize + 1;

/// What is counted of one operation.
#[derive(Debug, Default)]
pub struct OperationCounters {
    /// Executions, failed ones included.
    pub executed: Counter,
    /// Executions with another status than `NFS4_OK`, of which many are ordinary, such as
    /// `NFS4ERR_NOENT`.
    pub failed: Counter,
}

/// The counters and levels of a server. Levels are those of the last [`crate::Server::tick`].
#[derive(Debug)]
pub struct ServerCounters {
    operations: [OperationCounters; OPERATIONS],
    /// Requests that were executed.
    pub requests: Counter,
    /// Retransmissions that were answered from the replay cache.
    pub replays: Counter,
    /// Clients whose state was removed after their lease had expired.
    pub clients_expired: Counter,
    /// Clients that were evicted.
    pub clients_evicted: Counter,
    /// Level: clients.
    pub clients: Counter,
    /// Level: sessions.
    pub sessions: Counter,
    /// Level: open states.
    pub opens: Counter,
    /// Level: byte-range locks.
    pub locks: Counter,
    /// Level: 1 while clients reclaim after a restart.
    pub grace: Counter,
}

impl Default for ServerCounters {
    fn default() -> Self {
        Self {
            operations: array::from_fn(|_| OperationCounters::default()),
            requests: Counter::default(),
            replays: Counter::default(),
            clients_expired: Counter::default(),
            clients_evicted: Counter::default(),
            clients: Counter::default(),
            sessions: Counter::default(),
            opens: Counter::default(),
            locks: Counter::default(),
            grace: Counter::default(),
        }
    }
}

impl ServerCounters {
    /// The counters of each operation with its name.
    pub fn operations(&self) -> impl Iterator<Item = (&'static str, &OperationCounters)> {
        let numbered = self.operations.iter().enumerate();
        numbered.map(|(number, counters)| {
            let name = OperationNumber(number as u32).name();
            (name.unwrap_or("ILLEGAL"), counters)
        })
    }

    #[inline]
    pub(crate) fn count(&self, number: OperationNumber, is_ok: bool) {
        let known = self.operations.get(number.0 as usize);
        let counters = known.unwrap_or(&self.operations[0]);
        counters.executed.add(1);
        if !is_ok {
            counters.failed.add(1);
        }
    }
}

/// What is counted of one share. Levels are those of the last [`crate::Server::tick`], and those of
/// its part of the volume, which it can have in common with other shares.
#[derive(Debug, Default)]
pub struct ShareCounters {
    /// READs that succeeded.
    pub reads: Counter,
    /// Bytes that they returned.
    pub bytes_read: Counter,
    /// WRITEs that succeeded.
    pub writes: Counter,
    /// Bytes that they took.
    pub bytes_written: Counter,
    /// Level: objects.
    pub inodes: Counter,
    /// Level: bytes of allocated blocks.
    pub bytes_used: Counter,
}

impl ShareCounters {
    /// Counts a READ that has succeeded.
    #[inline]
    pub(crate) fn count_read(&self, bytes: u64) {
        self.reads.add(1);
        self.bytes_read.add(bytes);
    }
}
