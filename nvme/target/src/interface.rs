//! What a transport hands to the core and gets back: arrivals, work, completions, closes.
//!
//! A command's way: [`TargetCore::admit`](crate::TargetCore::admit) checks it once and answers
//! [`Admission::Work`]; the transport finds memory and moves the host's data as [`Work`] says;
//! [`TargetCore::execute`](crate::TargetCore::execute) consumes the work; the answer comes back as
//! [`Completed`]. `Work` is not `Clone`: it is the right to one answer.

use std::net::IpAddr;

use arrayvec::ArrayVec;
use hugemem::{Account, Data, Loan};
use nvme_spec::sgl::{Sgl, SglDescriptor};
use nvme_spec::{Cqe, Status};
use reactors::Nanos;
use zerocopy::FromBytes;

use crate::admin::AdminWork;
use crate::config::PortId;
use crate::io::{IoOperation, IoWork};
use crate::{Served, Timing};

/// A transport on one reactor, as
/// [`TargetCore::register_transport`](crate::TargetCore::register_transport) numbered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransportId(pub u8);

/// A queue of this core. A stale handle is recognised by its generation and harms nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// Where the first capsule of a connection came in.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The transport that asks.
    pub transport: TransportId,
    /// The port whose listener accepted the connection; the discovery log is filtered by it.
    pub port: PortId,
    /// The transport's own token; comes back in [`Close`].
    pub connection: u32,
    /// The target's own address that the host reached, where the transport knows it: what the
    /// discovery log says of ports that listen on every address.
    pub local_address: Option<IpAddr>,
    /// The host's address, where the transport knows it.
    pub peer_address: Option<IpAddr>,
    /// Bytes of data that an I/O command capsule of this transport may carry: becomes IOCCSZ.
    /// Admin and Fabrics capsules may carry [`ADMIN_IN_CAPSULE_MAX_BYTES`] whatever it says.
    pub in_capsule_max: u32,
}

/// Data that the capsule of an admin or Fabrics command may carry (TCP 1.1 §3.3.1.1).
pub const ADMIN_IN_CAPSULE_MAX_BYTES: u32 = 8192;

/// What a transport needs to know of a queue that was just created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueInfo {
    /// Queue identifier; 0 is the admin queue.
    pub qid: u16,
    /// Commands that the host may have outstanding at once, which is the queue's size in entries.
    pub depth: u16,
    /// Whether this is the admin queue, with events and Fabrics commands.
    pub admin: bool,
    /// Whether the controller is a discovery controller.
    pub discovery: bool,
    /// Whether the host relies on SQHD to learn of free submission queue entries; it does unless it
    /// disabled SQ flow control in Connect (Base 2.1 §6.3, CATTR).
    pub flow_control: bool,
    /// The controller that the queue belongs to.
    pub controller_id: u16,
    /// Bytes of in-capsule data that commands of this queue may carry.
    pub in_capsule_max: u32,
    /// The account that leases for commands of this queue are charged to.
    pub account: Account,
}

/// The answer to a connection's first capsule.
#[derive(Debug)]
pub enum ConnectOutcome {
    /// The queue exists from now on.
    Accepted {
        /// Its handle.
        queue: QueueId,
        /// The response capsule to send.
        response: Cqe,
        /// Its shape.
        info: QueueInfo,
    },
    /// There is no queue: send the response and close the connection.
    Rejected(Cqe),
}

/// Which way a command's data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// No data.
    None,
    /// The transport fetches [`Work::bytes`] bytes from the host before it executes.
    FromHost,
    /// The transport sends [`Completed::bytes`] bytes to the host with a successful answer.
    ToHost,
}

/// Where the host's data lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataSource {
    /// In the command capsule, behind the submission queue entry. Only from the host.
    InCapsule {
        /// Bytes from the start of the in-capsule data area.
        offset: u32,
    },
    /// Moved by the transport's own data units (TCP: H2CData and C2HData).
    TransportSgl,
    /// In memory that the host registered (RDMA).
    Keyed {
        /// Address in the host's memory.
        address: u64,
        /// The remote key.
        key: u32,
        /// Bytes at that address: at least [`Work::bytes`].
        length: u32,
        /// Whether the host wants the key invalidated with the response.
        invalidate: bool,
    },
    /// In several such pieces, whose descriptors lie in the command capsule (RDMA): see
    /// [`Work::keyed_blocks`].
    KeyedSegment {
        /// Bytes from the start of the in-capsule data area.
        offset: u32,
        /// Bytes of the segment: 1 to [`KEYED_BLOCKS_MAX`] whole descriptors.
        length: u32,
    },
}

impl DataSource {
    /// The one block of the host's memory that the data lies in, and whether the host wants its key
    /// invalidated: `Some(None)` where the transport's own data units move it, `None` where
    /// descriptors have to be looked at first.
    #[inline(always)]
    pub(crate) fn one_block(self) -> Option<Option<(KeyedBlock, bool)>> {
        match self {
            Self::TransportSgl => Some(None),
            Self::Keyed {
                address,
                key,
                length,
                invalidate,
            } => {
                let block = KeyedBlock {
                    address,
                    key,
                    length,
                };
                Some(Some((block, invalidate)))
            }
            Self::InCapsule { .. } | Self::KeyedSegment { .. } => None,
        }
    }
}

/// Pieces of the host's memory that one command's data may lie in; what MSDBD says (Base 2.1
/// §5.1.13.2.1).
pub const KEYED_BLOCKS_MAX: usize = 8;

/// A piece of memory that the host registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyedBlock {
    /// Address in the host's memory.
    pub address: u64,
    /// The remote key.
    pub key: u32,
    /// Bytes.
    pub length: u32,
}

/// Where a command's data lies in the host's memory, in the order of its bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyedBlocks {
    /// The pieces.
    pub blocks: ArrayVec<KeyedBlock, KEYED_BLOCKS_MAX>,
    /// The key that the host wants invalidated with the response: the first that asks for it, since
    /// a message invalidates one.
    pub invalidate: Option<u32>,
}

/// A command that was checked and may be executed: the right to give one answer.
///
/// Consumed by [`TargetCore::execute`](crate::TargetCore::execute) or
/// [`TargetCore::reject`](crate::TargetCore::reject). Dropping it is right only when its queue is
/// being closed.
#[derive(Debug)]
#[must_use]
pub struct Work {
    pub(crate) kind: WorkKind,
    pub(crate) bytes: u32,
    pub(crate) command_id: u16,
    pub(crate) direction: Direction,
    pub(crate) needs_lease: bool,
    pub(crate) source: DataSource,
    /// The turn in which the command came; set when it is admitted.
    pub(crate) came: Nanos,
    /// When its last wait ended: when it came, or got its buffer.
    pub(crate) since: Nanos,
}

/// What happens to a [`Work`] before it is executed:
/// [`TargetCore::note_work`](crate::TargetCore::note_work).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkEvent {
    /// It waits for a buffer from now on.
    AwaitsBuffer,
    /// The buffer that it waited for is there.
    GotBuffer,
    /// Its data is on its way from the host from now on.
    Fetches,
}

/// What a [`Work`] does.
#[derive(Debug)]
pub(crate) enum WorkKind {
    Io(IoWork),
    Admin(AdminWork),
}

impl Work {
    /// Which way the data goes.
    #[inline]
    #[must_use]
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Bytes of data; 0 without data. The lease for [`Direction::FromHost`] holds exactly these. Less
    /// than the command's when the device
    /// [took a part](crate::TargetCore::fill_at_once) of them.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Whether `execute` needs a lease of [`bytes`](Self::bytes) bytes. False without data, and for
    /// reads of a device that lends its own memory.
    #[inline]
    #[must_use]
    pub fn needs_lease(&self) -> bool {
        self.needs_lease
    }

    /// Where the host's data lies. Without meaning when there is no data.
    #[inline]
    #[must_use]
    pub fn source(&self) -> DataSource {
        self.source
    }

    /// The command identifier.
    #[inline]
    #[must_use]
    pub fn command_id(&self) -> u16 {
        self.command_id
    }

    /// Where the host's keyed data lies. `segment` holds the descriptors of
    /// [`DataSource::KeyedSegment`]; other sources need none, and those without keys have no
    /// blocks.
    ///
    /// # Errors
    /// The status to [`reject`](crate::TargetCore::reject) the command with: a descriptor that is
    /// no keyed data block, or blocks that do not add up to the command's data (Base 2.1 §4.3.2).
    #[inline]
    pub fn keyed_blocks(&self, segment: &[u8], into: &mut KeyedBlocks) -> Result<(), Status> {
        into.blocks.clear();
        into.invalidate = None;
        match self.source {
            DataSource::InCapsule { .. } | DataSource::TransportSgl => Ok(()),
            DataSource::Keyed {
                address,
                key,
                length,
                invalidate,
            } => {
                into.blocks.push(KeyedBlock {
                    address,
                    key,
                    length,
                });
                into.invalidate = invalidate.then_some(key);
                Ok(())
            }
            DataSource::KeyedSegment { .. } => self.segment_blocks(segment, into),
        }
    }

    fn segment_blocks(&self, segment: &[u8], into: &mut KeyedBlocks) -> Result<(), Status> {
        let wrong = |status: Status| Err(status.with_dnr());
        let Ok(descriptors) = <[SglDescriptor]>::ref_from_bytes(segment) else {
            return wrong(Status::INVALID_SGL_SEGMENT_DESCRIPTOR);
        };
        let mut total = 0_u64;
        for descriptor in descriptors {
            let Sgl::Keyed {
                address,
                length,
                key,
                invalidate,
            } = descriptor.decode()
            else {
                return wrong(Status::SGL_DESCRIPTOR_TYPE_INVALID);
            };
            if invalidate && into.invalidate.is_none() {
                into.invalidate = Some(key);
            }
            total += u64::from(length);
            let block = KeyedBlock {
                address,
                key,
                length,
            };
            if length > 0 && into.blocks.try_push(block).is_err() {
                return wrong(Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS);
            }
        }
        let bytes = u64::from(self.bytes);
        if total < bytes || (self.kind.is_transfer() && total != bytes) {
            return wrong(Status::DATA_SGL_LENGTH_INVALID);
        }
        Ok(())
    }
}

impl WorkKind {
    /// Whether the data is a range of blocks, whose length the command itself says.
    fn is_transfer(&self) -> bool {
        match self {
            Self::Admin(_) => false,
            Self::Io(io) => match io.operation {
                IoOperation::Read
                | IoOperation::DurableRead
                | IoOperation::Write { .. }
                | IoOperation::Compare => true,
                IoOperation::Flush
                | IoOperation::FlushAll
                | IoOperation::WriteZeroes { .. }
                | IoOperation::Deallocate { .. } => false,
            },
        }
    }
}

/// What [`TargetCore::admit`](crate::TargetCore::admit) made of a command.
#[derive(Debug)]
#[must_use]
pub enum Admission {
    /// Answered: send this response.
    Respond(Cqe),
    /// Kept (an asynchronous event request, a Disconnect that waits for its queue, a feature that
    /// needs a flush): the answer comes by
    /// [`TargetCore::next_completion`](crate::TargetCore::next_completion) with the same tag.
    Held,
    /// To be executed.
    Work(Work),
}

/// A finished command.
#[derive(Debug)]
#[must_use]
pub struct Completed {
    /// The transport's tag for the command.
    pub tag: u64,
    /// The response capsule, complete.
    pub response: Cqe,
    /// Data for the host, `data[..bytes]`; only with a successful status.
    pub data: Option<Data>,
    /// Bytes of data for the host, 0 when there are none.
    pub bytes: u32,
    /// For [`TargetCore::sent`](crate::TargetCore::sent).
    pub timing: Timing,
}

impl Completed {
    /// A response that no data comes with.
    pub(crate) const fn without_data(tag: u64, response: Cqe) -> Self {
        Self {
            tag,
            response,
            data: None,
            bytes: 0,
            timing: Timing::NONE,
        }
    }
}

/// A read or a write that completed as soon as it came:
/// [`TargetCore::complete_inline`](crate::TargetCore::complete_inline).
#[derive(Debug)]
#[must_use]
pub struct InlineCompletion {
    /// The response capsule, complete.
    pub response: Cqe,
    /// A read's data, all of it, lent by the device.
    pub data: Option<Loan>,
    /// Where the data goes in the host's memory, and whether the host wants the key invalidated
    /// with the response; `None` on transports without keys. The block holds exactly the data.
    pub keyed: Option<(KeyedBlock, bool)>,
    /// For an answer that does not go in this turn:
    /// [`TargetCore::served_waits`](crate::TargetCore::served_waits).
    pub served: Served,
}

/// A connection that the transport must end: send what is queued for it, close it, and then call
/// [`TargetCore::close_queue`](crate::TargetCore::close_queue).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close {
    /// The transport's token from [`Arrival`].
    pub connection: u32,
    /// The queue on it.
    pub queue: QueueId,
    /// Why.
    pub reason: CloseReason,
}

/// Why a connection has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// The host sent Disconnect: its response is queued before this.
    Disconnected,
    /// The host reset the controller: its I/O queues go, its admin queue stays.
    ControllerReset,
    /// The admin queue's connection is gone, and with it the association.
    AssociationLost,
    /// No command came within the keep-alive time.
    KeepAliveExpired,
    /// The controller was never enabled, or lay disabled or idle for too long.
    Inactive,
    /// The configuration no longer lets this host in, or no longer has the subsystem.
    Revoked,
    /// The appliance shuts down.
    TargetShutdown,
    /// The subsystem is known by other identifiers from now on: the host may come back.
    Reconfigured,
    /// A discovery controller that was idle longest made room for another one.
    Evicted,
}

#[cfg(test)]
mod tests;
