//! The types that a transport and the core exchange: arrivals, work, completions and closes.
//!
//! The path of a command: [`TargetCore::admit`](crate::TargetCore::admit) checks it once and
//! returns [`Admission::Work`]; the transport takes a lease and moves the host's data as [`Work`]
//! describes; [`TargetCore::execute`](crate::TargetCore::execute) consumes the work; the result is
//! a [`Completed`]. `Work` is not `Clone`: it is the right to exactly one response.

use std::net::IpAddr;
use std::sync::Arc;

use arrayvec::ArrayVec;
use hugemem::{Account, Borrow, Data, Lease};
use nvme_spec::sgl::{Sgl, SglDescriptor};
use nvme_spec::{Cqe, Sqe, Status};
use reactors::Nanos;
use zerocopy::FromBytes;

use crate::admin::AdminWork;
use crate::config::PortId;
use crate::io::{CopyWork, FusedWork, IoOperation, IoWork};
use crate::reservations::work::ReservationWork;
use crate::secure_channel::SecureChannel;
use crate::target_core::AuthenticationWork;
use crate::{InlineTiming, Timing};

/// A transport on one reactor, as numbered by
/// [`TargetCore::register_transport`](crate::TargetCore::register_transport).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransportId(pub u8);

/// A queue of this core. The generation identifies a stale handle, which has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// The connection on which a Connect was received.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The transport.
    pub transport: TransportId,
    /// The port whose listener accepted the connection; the discovery log is filtered by it.
    pub port: PortId,
    /// The transport's own token, returned in [`Close`].
    pub connection: u32,
    /// The target's own address to which the host connected, if the transport knows it. The
    /// discovery log reports it for ports that listen on every address.
    pub local_address: Option<IpAddr>,
    /// The host's address, if the transport knows it.
    pub peer_address: Option<IpAddr>,
    /// Bytes of data that an I/O command capsule of this transport may carry, for IOCCSZ. Admin and
    /// Fabrics capsules may always carry [`ADMIN_IN_CAPSULE_MAX_BYTES`].
    pub in_capsule_max: u32,
    /// The secure channel of the connection, if it has one.
    pub channel: Option<Arc<SecureChannel>>,
}

/// Data that the capsule of an admin or Fabrics command may carry (TCP 1.1 §3.3.1).
pub const ADMIN_IN_CAPSULE_MAX_BYTES: u32 = 8192;

/// Properties of a new queue that the transport needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueInfo {
    /// Queue identifier; 0 is the admin queue.
    pub qid: u16,
    /// Most outstanding commands of the host: the queue's size in entries.
    pub depth: u16,
    /// Whether this is the admin queue.
    pub admin: bool,
    /// Whether the controller is a discovery controller.
    pub discovery: bool,
    /// Whether the host uses SQHD to detect free submission queue entries, which is the default
    /// unless Connect disables SQ flow control (Base 2.1 §6.3, CATTR).
    pub flow_control: bool,
    /// The controller that the queue belongs to.
    pub controller_id: u16,
    /// Bytes of in-capsule data that commands of this queue may carry.
    pub in_capsule_max: u32,
    /// The account that leases for commands of this queue are charged to.
    pub account: Account,
}

/// The result of a connection's first capsule.
#[derive(Debug)]
pub enum ConnectOutcome {
    /// The queue was created.
    Accepted {
        /// Its handle.
        queue: QueueId,
        /// The response capsule to send.
        response: Cqe,
        /// Its properties.
        info: QueueInfo,
    },
    /// No queue was created: send the response and close the connection.
    Rejected(Cqe),
}

/// The direction of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// No data.
    None,
    /// The transport fetches [`Work::bytes`] bytes from the host before it calls `execute`.
    FromHost,
    /// The transport sends [`Completed::bytes`] bytes to the host if the command succeeds.
    ToHost,
}

/// The location of the host's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataSource {
    /// In the command capsule, after the submission queue entry. Only for data from the host.
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
    /// In several such blocks, whose descriptors are in the command capsule (RDMA): see
    /// [`Work::keyed_blocks`].
    KeyedSegment {
        /// Bytes from the start of the in-capsule data area.
        offset: u32,
        /// Bytes of the segment: 1 to [`KEYED_BLOCKS_MAX`] whole descriptors.
        length: u32,
    },
}

impl DataSource {
    /// The single block of the host's memory with the data, and whether the host wants its key
    /// invalidated. `Some(None)` if the transport's own data units move the data; `None` if there
    /// is in-capsule data or a list of descriptors.
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

/// Most blocks of the host's memory for the data of one command, for MSDBD (Base 2.1 §5.1.13.2.1).
pub const KEYED_BLOCKS_MAX: usize = 8;

/// A block of memory that the host registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyedBlock {
    /// Address in the host's memory.
    pub address: u64,
    /// The remote key.
    pub key: u32,
    /// Bytes.
    pub length: u32,
}

/// The location of a command's data in the host's memory, in byte order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyedBlocks {
    /// The blocks.
    pub blocks: ArrayVec<KeyedBlock, KEYED_BLOCKS_MAX>,
    /// The key that the host wants invalidated with the response. A message can invalidate one key,
    /// so this is the first one requested.
    pub invalidate: Option<u32>,
}

/// A command that was checked and may be executed: the right to give one response.
///
/// Consumed by [`TargetCore::execute`](crate::TargetCore::execute) or
/// [`TargetCore::reject`](crate::TargetCore::reject). It may be dropped only while its queue is
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
    /// The turn in which the command was received; set by admission.
    pub(crate) received_at: Nanos,
    /// When its last wait ended: when it was received or got its buffer.
    pub(crate) since: Nanos,
}

/// A change in the progress of a [`Work`] before its execution:
/// [`TargetCore::record_progress`](crate::TargetCore::record_progress).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkProgress {
    /// It starts waiting for a buffer.
    AwaitsBuffer,
    /// It got the buffer.
    GotBuffer,
    /// It starts fetching its data from the host.
    Fetches,
}

/// The kind of a [`Work`].
#[derive(Debug)]
pub(crate) enum WorkKind {
    Io(IoWork),
    Fused(FusedWork),
    Copy(CopyWork),
    Reservation(ReservationWork),
    Admin(AdminWork),
    Authentication(AuthenticationWork),
}

impl Work {
    /// A command that is no I/O and moves `bytes` through a lease.
    pub(crate) fn with_lease(
        kind: WorkKind,
        sqe: &Sqe,
        direction: Direction,
        bytes: u32,
        source: DataSource,
    ) -> Self {
        Self {
            kind,
            bytes,
            command_id: sqe.cid.get(),
            direction,
            needs_lease: true,
            source,
            received_at: Nanos::ZERO,
            since: Nanos::ZERO,
        }
    }

    /// The direction of the data.
    #[inline]
    #[must_use]
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Bytes of data; 0 without data. The lease for [`Direction::FromHost`] has exactly this size.
    /// Less than the command's size if a part of the data was [placed
    /// directly](crate::TargetCore::place_directly).
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Whether `execute` needs a lease of [`bytes`](Self::bytes) bytes. False without data, and for
    /// reads that can borrow the device's own memory.
    #[inline]
    #[must_use]
    pub fn needs_lease(&self) -> bool {
        self.needs_lease
    }

    /// Whether it is a [Copy](Admission::Copy).
    #[must_use]
    pub fn is_copy(&self) -> bool {
        matches!(self.kind, WorkKind::Copy(_))
    }

    /// Bytes that the lease has to have room for: more than [`bytes`](Self::bytes) for a
    /// [Copy](Admission::Copy), which needs it for the blocks that it copies.
    #[must_use]
    pub fn lease_bytes(&self) -> u32 {
        match &self.kind {
            WorkKind::Copy(work) => work.lease_bytes,
            WorkKind::Io(_)
            | WorkKind::Fused(_)
            | WorkKind::Reservation(_)
            | WorkKind::Admin(_)
            | WorkKind::Authentication(_) => self.bytes,
        }
    }

    /// The location of the host's data. Undefined if there is no data.
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

    /// Collects the location of the host's keyed data. `segment` holds the descriptors of
    /// [`DataSource::KeyedSegment`]; other sources need none, and sources without keys result in no
    /// blocks.
    ///
    /// # Errors
    /// The status to [`reject`](crate::TargetCore::reject) the command with: a descriptor is not a
    /// keyed data block, or the blocks do not add up to the command's data (Base 2.1 §4.3.2).
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
    /// Whether the data is a range of blocks, whose length the command determines.
    fn is_transfer(&self) -> bool {
        match self {
            Self::Admin(_) | Self::Reservation(_) | Self::Authentication(_) => false,
            // The list of source ranges has exactly the length that the command determines.
            Self::Fused(_) | Self::Copy(_) => true,
            Self::Io(io) => match io.operation {
                IoOperation::Read
                | IoOperation::DurableRead
                | IoOperation::ReadInDevice
                | IoOperation::Write { .. }
                | IoOperation::WriteInDevice { .. }
                | IoOperation::Compare
                | IoOperation::Fused(_) => true,
                IoOperation::Verify { .. }
                | IoOperation::Flush
                | IoOperation::FlushAll
                | IoOperation::Reserve(_)
                | IoOperation::WriteZeroes { .. }
                | IoOperation::Copy { .. }
                | IoOperation::Deallocate { .. } => false,
            },
        }
    }
}

/// The result of [`TargetCore::admit`](crate::TargetCore::admit).
#[derive(Debug)]
#[must_use]
pub enum Admission {
    /// Complete: send this response.
    Respond(Cqe),
    /// Held (an Asynchronous Event Request, a Disconnect that waits for its queue, a feature that
    /// needs a flush): [`TargetCore::next_completion`](crate::TargetCore::next_completion) returns
    /// the completion later with the same tag.
    Held,
    /// Ready to be executed, after its data was moved.
    Work(Work),
    /// The same for a Copy: [`TargetCore::take_set_aside`](crate::TargetCore::take_set_aside) returns
    /// the work. Its lease has room for [`Work::lease_bytes`], and a length of [`Work::bytes`].
    Copy,
    /// A rate limit is used up: [`TargetCore::take_set_aside`](crate::TargetCore::take_set_aside) returns the
    /// work, which waits after [`TargetCore::await_rate`](crate::TargetCore::await_rate).
    Throttled,
}

/// A completed command.
#[derive(Debug)]
#[must_use]
pub struct Completed {
    /// The transport's tag for the command.
    pub tag: u64,
    /// The complete response capsule.
    pub response: Cqe,
    /// Data for the host, `data[..bytes]`; only with a successful status.
    pub data: Option<Data>,
    /// Bytes of data for the host; 0 without data.
    pub bytes: u32,
    /// For [`TargetCore::sent`](crate::TargetCore::sent).
    pub timing: Timing,
}

impl Completed {
    /// A completion without data.
    pub const fn without_data(tag: u64, response: Cqe) -> Self {
        Self {
            tag,
            response,
            data: None,
            bytes: 0,
            timing: Timing::NONE,
        }
    }

    /// A completion of a command that accesses no blocks, with all of `lease` as its data.
    pub(crate) fn with_lease(tag: u64, response: Cqe, lease: Lease) -> Self {
        Self {
            tag,
            response,
            // At most the transfer limit.
            bytes: lease.len() as u32,
            data: Some(Data::Lease(lease)),
            timing: Timing::NONE,
        }
    }
}

/// A read or write that completed inline:
/// [`TargetCore::complete_inline`](crate::TargetCore::complete_inline).
#[derive(Debug)]
#[must_use]
pub struct InlineCompletion {
    /// The complete response capsule.
    pub response: Cqe,
    /// All data of a read, borrowed from the device.
    pub data: Option<Borrow>,
    /// The destination of the data in the host's memory, and whether the host wants the key
    /// invalidated with the response; `None` on transports without keys. The block has exactly the
    /// size of the data.
    pub keyed: Option<(KeyedBlock, bool)>,
    /// For a response that is not sent in this turn:
    /// [`TargetCore::inline_response_deferred`](crate::TargetCore::inline_response_deferred).
    pub inline_timing: InlineTiming,
}

/// A request to close a connection: the transport sends the queued responses, closes the
/// connection, and then calls [`TargetCore::close_queue`](crate::TargetCore::close_queue).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close {
    /// The transport's token from [`Arrival`].
    pub connection: u32,
    /// The queue on it.
    pub queue: QueueId,
    /// The reason.
    pub reason: CloseReason,
}

/// The reason for closing a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// The host sent Disconnect. Its response is queued before the close.
    Disconnected,
    /// The host reset the controller: its I/O queues end, and its admin queue continues.
    ControllerReset,
    /// The connection of the admin queue was lost, which ends the association.
    AssociationLost,
    /// No command was received within the Keep Alive Timeout.
    KeepAliveExpired,
    /// The controller was never enabled, or was disabled or idle for too long.
    Inactive,
    /// The configuration no longer permits this host or no longer contains the subsystem, or the
    /// host has proved a key that was revoked.
    Revoked,
    /// The appliance shuts down.
    TargetShutdown,
    /// The identity of the subsystem has changed. The host may reconnect.
    Reconfigured,
    /// The discovery controller that was idle longest was evicted for a new one, or an operator
    /// evicted the host.
    Evicted,
    /// The host failed to authenticate itself, or did not do so in time.
    AuthenticationFailed,
}

#[cfg(test)]
mod tests;
