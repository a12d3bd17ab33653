//! Upper bounds on the memory of a connection. They follow from the queue size and the outstanding
//! commands of its host, and are independent of the transport's own accounting.

use std::collections::BTreeMap;

use nvme_tcp::ConnectionAudit;

use crate::judge::Violation;
use crate::network::WireId;

/// Bytes that a connection may hold before it has received a Connect command.
const UNCONNECTED_BYTES: usize = 6 << 10;
/// Bytes per queue entry: a command, its response and its data PDU, twice over.
const ENTRY_BYTES: usize = 1 << 10;

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
