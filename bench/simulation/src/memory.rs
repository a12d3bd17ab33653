//! Upper bounds on the memory of a connection. They follow from the queue size and the outstanding
//! commands of its host, and are independent of the transport's own accounting. Over RDMA, memory of
//! completed commands is held until the fabric has reported the target's requests as complete.

use std::collections::BTreeMap;

use nvme_rdma::ConnectionAudit as QueuePairAudit;
use nvme_tcp::ConnectionAudit;
use rdma_testing::fake::SharedReceives;

use crate::judge::Violation;
use crate::network::WireId;

/// Bytes that a connection may hold before it has received a Connect command.
const UNCONNECTED_BYTES: usize = 6 << 10;
/// Bytes per queue entry: a command, its response and its data PDU, twice over.
const ENTRY_BYTES: usize = 1 << 10;

/// Bytes of an RDMA connection without entries.
const QUEUE_PAIR_BYTES: usize = 6 << 10;
/// Bytes per entry of its queue from the start: the send requests, twice over.
const SEND_BYTES: usize = 320;
/// Bytes per entry of its queue since Connect: a command, and where its data is.
const RDMA_ENTRY_BYTES: usize = 384;
/// One in this number of slices may be promised.
const PROMISED_PART: u64 = 2;
/// Commands in the smallest slice.
const COMMANDS_PER_SLICE: u32 = 64;
/// Bytes of a response.
const RESPONSE_BYTES: usize = 16;

/// The memory bound of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryBound {
    /// Entries of its submission queue; 0 before Connect.
    pub entries: u16,
    /// Bytes of data of its outstanding commands.
    pub data_bytes: usize,
}

impl MemoryBound {
    /// Compares the memory that a connection holds with its bound.
    fn check(self, held: ConnectionAudit) -> Result<(), String> {
        let own = UNCONNECTED_BYTES + usize::from(self.entries) * ENTRY_BYTES;
        let said = |what: &str, has: usize, most: usize| {
            let of = self.entries;
            Err(format!(
                "a connection with a queue of {of} entries has {has} bytes of {what}, may have {most}"
            ))
        };
        if held.own_bytes > own {
            return said("its own", held.own_bytes, own);
        }
        if held.buffer_bytes > 0 && self.data_bytes == 0 {
            return said("a receive buffer", held.buffer_bytes, 0);
        }
        if held.leased_bytes > self.data_bytes {
            return said("the arena", held.leased_bytes, self.data_bytes);
        }
        Ok(())
    }
}

/// Compares the memory of every connection with its bound. Connections without a bound belong to
/// hosts that are gone.
///
/// # Errors
/// A connection holds more than its bound.
pub fn check_connections(
    bounds: &BTreeMap<WireId, MemoryBound>,
    held: impl Iterator<Item = (WireId, ConnectionAudit)>,
) -> Result<(), Violation> {
    let mut bound = held.filter_map(|(wire, held)| Some((bounds.get(&wire)?, held)));
    bound
        .try_for_each(|(bound, held)| bound.check(held))
        .map_err(Violation::Rule)
}

/// The memory bound of an RDMA connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePairBound {
    /// The number of the target's queue pair.
    pub number: u32,
    /// Entries of the queue, which the connection request names.
    pub entries: u16,
    /// Whether a command was sent.
    pub is_connected: bool,
    /// Whether the Connect is complete.
    pub is_live: bool,
    /// Bytes of data of its outstanding commands.
    pub data_bytes: usize,
    /// Outstanding send requests of the target, which may have memory of completed commands.
    pub posted: u32,
}

impl QueuePairBound {
    /// Compares the memory that a connection holds with its bound. `request_bytes`: the most that a
    /// command transfers, and that a receive has for its data.
    fn check(self, held: QueuePairAudit, request_bytes: usize) -> Result<(), String> {
        let entries = usize::from(self.entries);
        let own = match self.is_connected {
            true => QUEUE_PAIR_BYTES + entries * (SEND_BYTES + RDMA_ENTRY_BYTES),
            false => QUEUE_PAIR_BYTES + entries * SEND_BYTES,
        };
        let capsules = usize::from(!self.is_live) + self.posted as usize;
        let data = self.data_bytes + capsules * request_bytes;
        let of = format!("an RDMA connection for {entries} entries: {self:?}");
        if held.own_bytes > own {
            return Err(format!("{of} has {} bytes, may have {own}", held.own_bytes));
        }
        if held.leased_bytes > data {
            let leased = held.leased_bytes;
            return Err(format!(
                "{of} has {leased} bytes of the arena, may have {data}"
            ));
        }
        Ok(())
    }
}

/// Compares the memory of every RDMA connection with its bound.
///
/// # Errors
/// A connection holds more than its bound.
pub fn check_queue_pairs(
    bounds: impl Iterator<Item = QueuePairBound>,
    held: impl Iterator<Item = QueuePairAudit>,
    request_bytes: usize,
) -> Result<(), Violation> {
    let bounds: BTreeMap<u32, QueuePairBound> = bounds.map(|it| (it.number, it)).collect();
    let mut bound = held.filter_map(|held| Some((*bounds.get(&held.queue_pair)?, held)));
    bound
        .try_for_each(|(bound, held)| bound.check(held, request_bytes))
        .map_err(Violation::Rule)
}

/// Compares the posted receives with the part of the arena that may be promised to them: half of
/// each size that fits. `classes`: bytes and number of the slices of each size.
///
/// # Errors
/// More are posted.
pub fn check_receives(
    posted: &SharedReceives,
    in_capsule_bytes: usize,
    classes: impl Iterator<Item = (usize, u64)>,
) -> Result<(), Violation> {
    let fitting = classes.filter(|(bytes, _)| *bytes >= in_capsule_bytes);
    let most: u64 = fitting.map(|(_, total)| total / PROMISED_PART).sum();
    if posted.with_data as u64 > most {
        return Err(Violation::Rule(format!(
            "{} receives of {in_capsule_bytes} bytes are posted, {most} may be",
            posted.with_data
        )));
    }
    Ok(())
}

/// Slices of the arena that an idle appliance has for RDMA: those of posted receives, those for the
/// commands of each shared receive queue, and those for responses of `connections` if the device
/// takes no inline data.
#[must_use]
pub fn slices_at_rest(posted: &SharedReceives, inline_bytes: u32, connections: usize) -> u64 {
    let requests = posted.requests.iter();
    let tables: u32 = requests.map(|it| it.div_ceil(COMMANDS_PER_SLICE)).sum();
    let responses = match (inline_bytes as usize) < RESPONSE_BYTES {
        true => connections,
        false => 0,
    };
    (posted.with_data + tables as usize + responses) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: MemoryBound = MemoryBound {
        entries: 8,
        data_bytes: 4096,
    };
    const HELD: ConnectionAudit = ConnectionAudit {
        own_bytes: 2048,
        buffer_bytes: 0,
        leased_bytes: 0,
    };

    #[test]
    fn connection_memory_is_bounded_by_its_commands() {
        let held = ConnectionAudit {
            leased_bytes: 4096,
            own_bytes: UNCONNECTED_BYTES + 1,
            ..HELD
        };
        assert_eq!(QUEUE.check(held), Ok(()));
        let more = ConnectionAudit {
            leased_bytes: 4097,
            ..held
        };
        assert!(QUEUE.check(more).is_err());
    }

    #[test]
    fn unconnected_host_holds_a_bounded_amount_of_memory() {
        let unknown_host = MemoryBound::default();
        assert_eq!(unknown_host.check(HELD), Ok(()));
        for held in [
            ConnectionAudit {
                own_bytes: UNCONNECTED_BYTES + 1,
                ..HELD
            },
            ConnectionAudit {
                buffer_bytes: 1,
                ..HELD
            },
            ConnectionAudit {
                leased_bytes: 1,
                ..HELD
            },
        ] {
            assert!(unknown_host.check(held).is_err(), "{held:?}");
        }
    }
}
