//! Checks I/O commands of the NVM command set, once and without side effects.
//!
//! NVM 1.1 §3.3 and Base 2.1 §7. Everything here is a pure function of the command and of the
//! published namespaces, so that tests can send it invalid input without a target.

use block::Deallocate;
use nvme_spec::command::{CopyFormat, CopyRange, Fuse, IoOpcode, Psdt, ReadWrite};
use nvme_spec::sgl::{Sgl, SglDescriptor};
use nvme_spec::{NSID_BROADCAST, Sqe, Status};
use reactors::Nanos;

use crate::interface::{DataSource, Direction, KEYED_BLOCKS_MAX, Work, WorkKind};
use crate::reservations::restrictions::AccessKind;
use crate::status::{Fault, byte};
use crate::target_core::fused::PairId;
use crate::view::{NamespaceView, SubsystemView, is_valid_nsid};

/// Bytes that one Write Zeroes may cover: 2 to the power of WZSL pages (NVM 1.1 §4.1.5.4). This is
/// the most that 16 bits of blocks can express with the smallest block, so that a host which
/// applies it to a namespace of any block size stays within the field. Devices zero in pieces.
pub(crate) const WRITE_ZEROES_BYTES_MAX: u64 = 512 << 16;

/// Blocks of a Compare and Write, for ACWU (NVM 1.1 §2.1.4).
pub(crate) const COMPARE_WRITE_BLOCKS_MAX: u32 = 1;

/// Most source ranges of one Copy, for MSRC (NVM 1.1 §4.1.5.1).
pub(crate) const COPY_RANGES_MAX: usize = 16;

/// Most bytes of one Copy, if a transfer may have as many, for MCL and MSSRL (NVM 1.1 §4.1.5.1). Each
/// Copy takes a lease of this size, because the target knows the number of blocks only when it has
/// the list of source ranges in it.
pub(crate) const COPY_BYTES_MAX: u32 = 256 << 10;

/// The smallest block of a device, in bytes.
pub(crate) const BLOCK_BYTES_MIN: usize = 512;

// MSSRL has 16 bits.
const _: () = assert!(COPY_BYTES_MAX as usize / BLOCK_BYTES_MIN <= u16::MAX as usize);
// The list of source ranges fits into the memory of their data.
const _: () = assert!(size_of::<CopyRange>() <= BLOCK_BYTES_MIN);

/// Largest range list of Dataset Management in bytes: 256 ranges of 16 (NVM 1.1 §3.3.3).
const RANGE_LIST_MAX_BYTES: u32 = 4096;

/// The device operation of an I/O command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoOperation {
    Read,
    /// A read with Force Unit Access from a device with a volatile cache. A flush follows, so that
    /// the data read is durable even if it was written a moment before.
    DurableRead,
    Write {
        fua: bool,
    },
    /// A read whose data stays in memory of its device, from where the transport moves it.
    ReadInDevice,
    /// A write whose data the transport has moved into memory of its device.
    WriteInDevice {
        fua: bool,
    },
    Compare,
    /// A part of a Compare and Write.
    Fused(FusedPart),
    /// A read whose data no host receives. If durable, a flush follows.
    Verify {
        durable: bool,
    },
    Flush,
    /// Flush of every namespace of the subsystem.
    FlushAll,
    WriteZeroes {
        fua: bool,
        deallocate: bool,
    },
    Deallocate {
        ranges: u16,
    },
    /// Reads the source ranges, and writes their data. `names_sources`: each range names its
    /// namespace, instead of being in that of the command.
    Copy {
        ranges: u8,
        fua: bool,
        names_sources: bool,
    },
    /// A reservation command, which accesses no blocks.
    Reserve(IoOpcode),
}

/// A part of a fused operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FusedPart {
    Compare,
    Write { fua: bool },
}

impl IoOperation {
    /// What it does with its device; `None` if reservations do not restrict it (Base 2.1
    /// §8.1.22.1). The reservation commands check the rights of their host themselves.
    pub(crate) fn access(self) -> Option<AccessKind> {
        match self {
            Self::Read
            | Self::DurableRead
            | Self::ReadInDevice
            | Self::Compare
            | Self::Fused(FusedPart::Compare)
            | Self::Verify { .. } => Some(AccessKind::Read),
            Self::Write { .. }
            | Self::WriteInDevice { .. }
            | Self::Fused(FusedPart::Write { .. })
            | Self::Flush
            | Self::FlushAll
            | Self::WriteZeroes { .. }
            | Self::Deallocate { .. } => Some(AccessKind::Write),
            // Of its destination. The gate is asked about each of its sources, too.
            Self::Copy { .. } => Some(AccessKind::Write),
            Self::Reserve(_) => None,
        }
    }

    /// Whether a read-only namespace refuses it.
    pub(crate) fn changes_medium(self) -> bool {
        match self {
            Self::Write { .. }
            | Self::WriteInDevice { .. }
            | Self::Fused(FusedPart::Write { .. })
            | Self::WriteZeroes { .. }
            | Self::Copy { .. }
            | Self::Deallocate { .. } => true,
            Self::Read
            | Self::DurableRead
            | Self::ReadInDevice
            | Self::Compare
            | Self::Fused(FusedPart::Compare)
            | Self::Verify { .. }
            | Self::Flush
            | Self::FlushAll
            | Self::Reserve(_) => false,
        }
    }

    /// Whether it takes exactly one device request, and nothing else depends on it.
    #[inline]
    pub(crate) fn is_single(self) -> bool {
        match self {
            Self::Read
            | Self::Write { .. }
            | Self::Compare
            | Self::Flush
            | Self::WriteZeroes { .. } => true,
            Self::Verify { durable } => !durable,
            Self::DurableRead
            | Self::ReadInDevice
            | Self::WriteInDevice { .. }
            | Self::Fused(_)
            | Self::FlushAll
            | Self::Deallocate { .. }
            | Self::Copy { .. }
            | Self::Reserve(_) => false,
        }
    }

    /// Whether data goes to the host.
    #[inline]
    pub(crate) fn is_read(self) -> bool {
        matches!(self, Self::Read | Self::DurableRead | Self::ReadInDevice)
    }

    /// Whether its data is in memory of its device.
    #[inline]
    pub(crate) fn is_in_device(self) -> bool {
        matches!(self, Self::ReadInDevice | Self::WriteInDevice { .. })
    }

    /// The command's opcode.
    pub(crate) fn opcode(self) -> IoOpcode {
        match self {
            Self::Read | Self::DurableRead | Self::ReadInDevice => IoOpcode::READ,
            Self::Write { .. }
            | Self::WriteInDevice { .. }
            | Self::Fused(FusedPart::Write { .. }) => IoOpcode::WRITE,
            Self::Compare | Self::Fused(FusedPart::Compare) => IoOpcode::COMPARE,
            Self::Verify { .. } => IoOpcode::VERIFY,
            Self::Flush | Self::FlushAll => IoOpcode::FLUSH,
            Self::WriteZeroes { .. } => IoOpcode::WRITE_ZEROES,
            Self::Deallocate { .. } => IoOpcode::DATASET_MANAGEMENT,
            Self::Copy { .. } => IoOpcode::COPY,
            Self::Reserve(opcode) => opcode,
        }
    }
}

/// An I/O command that was checked against the namespaces of `epoch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IoWork {
    pub(crate) operation: IoOperation,
    pub(crate) device: u8,
    /// Blocks left for the device from `lba` on. Fewer than the command's only for a write of which
    /// a part was placed directly.
    pub(crate) blocks: u32,
    pub(crate) lba: u64,
    /// Bytes of data in total; 0 without data.
    pub(crate) bytes: u32,
    pub(crate) nsid: u32,
    pub(crate) epoch: u32,
}

/// A part of the fused operation `pair`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FusedWork {
    pub(crate) io: IoWork,
    pub(crate) pair: PairId,
}

/// A Copy whose source ranges are not known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyWork {
    /// Without blocks, and with the bytes of the list of source ranges.
    pub(crate) io: IoWork,
    /// Bytes that its lease has to have room for.
    pub(crate) lease_bytes: u32,
}

/// What a command is checked against.
pub(crate) struct IoContext<'a> {
    pub(crate) subsystem: &'a SubsystemView,
    pub(crate) epoch: u32,
    /// Whether the host switched the volatile write cache off.
    pub(crate) write_through: bool,
    pub(crate) data: DataContext,
}

/// The data pointers that a queue's commands may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataContext {
    /// The transport moves data by the host's keys, instead of by its own data units.
    pub(crate) keyed: bool,
    pub(crate) in_capsule_max: u32,
}

/// A checked command: its device operation, and the direction and source of its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) work: IoWork,
    pub(crate) direction: Direction,
    pub(crate) source: DataSource,
}

impl Plan {
    /// Admits the command in the turn of `now`. `lends`: whether a read can borrow its
    /// device's memory, so that it needs no lease.
    #[inline(always)]
    pub(crate) fn admit(self, command_id: u16, lends: bool, now: Nanos) -> Work {
        let needs_lease = match self.direction {
            // That of a Verify receives what is read.
            Direction::None => self.work.bytes > 0,
            Direction::FromHost => true,
            Direction::ToHost => !lends,
        };
        Work {
            kind: WorkKind::Io(self.work),
            bytes: self.work.bytes,
            command_id,
            direction: self.direction,
            needs_lease,
            source: self.source,
            received_at: now,
            since: now,
        }
    }

    /// A command without data.
    fn without_data(work: IoWork) -> Self {
        Self {
            work,
            direction: Direction::None,
            source: DataSource::TransportSgl,
        }
    }
}

/// Whether a command is what [`check_transfer`] checks: Read, Write or Compare, and no part of a
/// fused operation.
#[inline]
pub(crate) fn is_transfer(sqe: &Sqe) -> bool {
    let opcode = sqe.io_opcode();
    let transfers =
        opcode == IoOpcode::READ || opcode == IoOpcode::WRITE || opcode == IoOpcode::COMPARE;
    transfers && sqe.flags.fuse() == Fuse::NORMAL
}

/// Checks an I/O command that is no Fabrics command and no part of a fused operation. Returns `None` if it succeeds without doing
/// anything.
pub(crate) fn check(sqe: &Sqe, context: &IoContext<'_>) -> Result<Option<Plan>, Fault> {
    match sqe.io_opcode() {
        IoOpcode::READ | IoOpcode::WRITE | IoOpcode::COMPARE => {
            check_transfer(sqe, context).map(Some)
        }
        IoOpcode::VERIFY => verify(sqe, context).map(Some),
        IoOpcode::COPY => copy(sqe, context).map(Some),
        IoOpcode::FLUSH => flush(sqe, context),
        IoOpcode::WRITE_ZEROES => write_zeroes(sqe, context),
        IoOpcode::DATASET_MANAGEMENT => dataset_management(sqe, context),
        _ => Err(Fault::new(Status::INVALID_OPCODE).at(byte::OPCODE)),
    }
}

/// The namespace of a command (Base 2.1 §3.2.1.5): an identifier that is no namespace's can be is
/// Invalid Namespace or Format, one that is not active is Invalid Field.
#[inline]
pub(crate) fn namespace(subsystem: &SubsystemView, nsid: u32) -> Result<&NamespaceView, Fault> {
    match subsystem.namespace(nsid) {
        Some(namespace) => Ok(namespace),
        None if is_valid_nsid(nsid) => Err(Fault::field(byte::NSID)),
        None => Err(Fault::new(Status::INVALID_NAMESPACE_OR_FORMAT).at(byte::NSID)),
    }
}

/// NVM 1.1 §3.2.1, LBA Out of Range: the range has to end within the namespace.
#[inline]
fn check_range(namespace: &NamespaceView, lba: u64, blocks: u32) -> Result<(), Fault> {
    match lba.checked_add(u64::from(blocks)) {
        Some(end) if end <= namespace.block_count => Ok(()),
        _ => Err(Fault::new(Status::LBA_OUT_OF_RANGE).at(byte::CDW10)),
    }
}

/// Base 2.1 §4.2.3.1, Namespace is Write Protected.
#[inline]
fn check_writable(namespace: &NamespaceView) -> Result<(), Fault> {
    if namespace.read_only {
        return Err(Fault::new(Status::NAMESPACE_WRITE_PROTECTED).at(byte::NSID));
    }
    Ok(())
}

/// First block and number of blocks of a transfer, which lie within the namespace.
#[inline(always)]
fn extent(namespace: &NamespaceView, range: &ReadWrite) -> Result<(u64, u32), Fault> {
    let (lba, blocks) = (range.slba.get(), range.blocks());
    // Base 2.1 §5.1.13.2.1, MDTS: a longer transfer is Invalid Field.
    if blocks > namespace.transfer_max_blocks {
        return Err(Fault::field(byte::CDW12));
    }
    check_range(namespace, lba, blocks)?;
    // NVM 1.1 §3.3.4: no command extension is supported.
    if range.control.cetype() != 0 {
        return Err(Fault::field(byte::CDW12));
    }
    Ok((lba, blocks))
}

/// Checks namespace, range and flags of a Read, Write or Compare (NVM 1.1 §3.3.4, §3.3.6, §3.3.1).
/// The opcode is an argument so that it is a constant where the caller knows it.
#[inline(always)]
pub(crate) fn check_blocks(
    opcode: IoOpcode,
    sqe: &Sqe,
    context: &IoContext<'_>,
) -> Result<IoWork, Fault> {
    let nsid = sqe.nsid.get();
    let namespace = namespace(context.subsystem, nsid)?;
    let range: ReadWrite = sqe.read_write();
    let (lba, blocks) = extent(namespace, &range)?;
    let fua = range.control.fua() && namespace.volatile;
    let operation = match opcode {
        IoOpcode::READ if fua => IoOperation::DurableRead,
        IoOpcode::READ => IoOperation::Read,
        IoOpcode::WRITE => {
            check_writable(namespace)?;
            // Base 2.1 §8.1.8: directives are not supported, so no type can be enabled.
            if range.control.dtype() != 0 {
                return Err(Fault::field(byte::CDW12));
            }
            let fua = fua || (context.write_through && namespace.volatile);
            IoOperation::Write { fua }
        }
        IoOpcode::VERIFY => IoOperation::Verify { durable: fua },
        _ => IoOperation::Compare,
    };
    Ok(IoWork {
        operation,
        device: namespace.device,
        blocks,
        lba,
        bytes: blocks << namespace.block_shift,
        nsid,
        epoch: context.epoch,
    })
}

/// Checks the data pointer of a Read, Write or Compare of `bytes` bytes.
#[inline(always)]
pub(crate) fn check_source(
    sqe: &Sqe,
    direction: Direction,
    bytes: u32,
    context: DataContext,
) -> Result<DataSource, Fault> {
    let (source, length) = data_source(sqe, direction, context)?;
    // Base 2.1 §4.2.3.1, Data SGL Length Invalid: an I/O command's data is exactly its range. That
    // of descriptors in a segment is checked when they are read.
    if length.is_some_and(|length| length != bytes) {
        return Err(Fault::new(Status::DATA_SGL_LENGTH_INVALID).at(byte::SGL));
    }
    Ok(source)
}

/// Checks a Read, Write or Compare completely.
#[inline(always)]
pub(crate) fn check_transfer(sqe: &Sqe, context: &IoContext<'_>) -> Result<Plan, Fault> {
    let work = check_blocks(sqe.io_opcode(), sqe, context)?;
    let direction = match work.operation.is_read() {
        true => Direction::ToHost,
        false => Direction::FromHost,
    };
    Ok(Plan {
        work,
        direction,
        source: check_source(sqe, direction, work.bytes, context.data)?,
    })
}

/// Checks the Compare or the Write of a fused operation (NVM 1.1 §2.1.3).
pub(crate) fn check_fused(sqe: &Sqe, context: &IoContext<'_>) -> Result<Plan, Fault> {
    let mut plan = check_transfer(sqe, context)?;
    // As with reservations: another target that serves the same device does not know of it.
    if !namespace(context.subsystem, plan.work.nsid)?.reservations {
        return Err(Fault::field(byte::FLAGS));
    }
    // NVM 1.1 §2.1.3: at most ACWU blocks.
    if plan.work.blocks > COMPARE_WRITE_BLOCKS_MAX {
        return Err(Fault::new(Status::ATOMIC_WRITE_UNIT_EXCEEDED).at(byte::CDW12));
    }
    plan.work.operation = IoOperation::Fused(match plan.work.operation {
        IoOperation::Write { fua } => FusedPart::Write { fua },
        _ => FusedPart::Compare,
    });
    Ok(plan)
}

/// Verify (NVM 1.1 §3.3.5). VSL is MDTS, so that one lease holds the data.
fn verify(sqe: &Sqe, context: &IoContext<'_>) -> Result<Plan, Fault> {
    let work = check_blocks(IoOpcode::VERIFY, sqe, context)?;
    Ok(Plan::without_data(work))
}

/// Flush (Base 2.1 §7.2). Without a volatile cache there is nothing to do, and that succeeds.
fn flush(sqe: &Sqe, context: &IoContext<'_>) -> Result<Option<Plan>, Fault> {
    let nsid = sqe.nsid.get();
    let epoch = context.epoch;
    let plan = |operation, device| {
        Plan::without_data(IoWork {
            operation,
            device,
            blocks: 0,
            lba: 0,
            bytes: 0,
            nsid,
            epoch,
        })
    };
    // Base 2.1 §7.2: VWC bits 2:1 are 11b, so FFFFFFFFh flushes all namespaces attached.
    if nsid == NSID_BROADCAST {
        if !context.subsystem.has_volatile_cache() {
            return Ok(None);
        }
        return Ok(Some(plan(IoOperation::FlushAll, 0)));
    }
    let namespace = namespace(context.subsystem, nsid)?;
    if !namespace.volatile {
        return Ok(None);
    }
    Ok(Some(plan(IoOperation::Flush, namespace.device)))
}

/// Write Zeroes (NVM 1.1 §3.3.8). No data moves, so WZSL bounds it and not MDTS.
fn write_zeroes(sqe: &Sqe, context: &IoContext<'_>) -> Result<Option<Plan>, Fault> {
    let nsid = sqe.nsid.get();
    let namespace = namespace(context.subsystem, nsid)?;
    let range = sqe.write_zeroes();
    // NVM 1.1 §3.3.8: Namespace Zeroes is not supported, nor is any command extension.
    if range.control.nsz() || range.control.cetype() != 0 {
        return Err(Fault::field(byte::CDW12));
    }
    check_writable(namespace)?;
    let (lba, blocks) = (range.slba.get(), range.blocks());
    // NVM 1.1 §4.1.5.4, WZSL: a longer range is Invalid Field.
    if u64::from(blocks) << namespace.block_shift > WRITE_ZEROES_BYTES_MAX {
        return Err(Fault::field(byte::CDW12));
    }
    check_range(namespace, lba, blocks)?;
    let fua = namespace.volatile && (range.control.fua() || context.write_through);
    let deallocate = range.control.deac() && namespace.deallocate != Deallocate::Unsupported;
    Ok(Some(Plan::without_data(IoWork {
        operation: IoOperation::WriteZeroes { fua, deallocate },
        device: namespace.device,
        blocks,
        lba,
        bytes: 0,
        nsid,
        epoch: context.epoch,
    })))
}

/// Dataset Management (NVM 1.1 §3.3.3). Only deallocation does anything, and it is a hint.
fn dataset_management(sqe: &Sqe, context: &IoContext<'_>) -> Result<Option<Plan>, Fault> {
    let nsid = sqe.nsid.get();
    let namespace = namespace(context.subsystem, nsid)?;
    let command = sqe.dataset_management();
    let (source, length) = data_source(sqe, Direction::FromHost, context.data)?;
    let length = length.unwrap_or(command.data_length_bytes() as u32);
    // Some hosts always send a buffer for 256 ranges, whatever their number.
    if (length as usize) < command.data_length_bytes() || length > RANGE_LIST_MAX_BYTES {
        return Err(Fault::new(Status::DATA_SGL_LENGTH_INVALID).at(byte::SGL));
    }
    if !command.attributes.ad() {
        return Ok(None);
    }
    check_writable(namespace)?;
    if namespace.deallocate == Deallocate::Unsupported {
        return Ok(None);
    }
    // At most 256.
    let ranges = command.ranges() as u16;
    Ok(Some(Plan {
        work: IoWork {
            operation: IoOperation::Deallocate { ranges },
            device: namespace.device,
            blocks: 0,
            lba: 0,
            bytes: length,
            nsid,
            epoch: context.epoch,
        },
        direction: Direction::FromHost,
        source,
    }))
}

/// Copy (NVM 1.1 §3.3.2) as far as its source ranges are not concerned. No namespace has protection
/// information, so that PRINFOR, PRINFOW and the tags are ignored.
fn copy(sqe: &Sqe, context: &IoContext<'_>) -> Result<Plan, Fault> {
    let nsid = sqe.nsid.get();
    let namespace = namespace(context.subsystem, nsid)?;
    let command = sqe.copy();
    let control = command.control;
    // NVM 1.1 §3.3.2: a format that CDFS does not report is Invalid Field. No command extension and
    // no directive is supported.
    let names_sources = match control.format() {
        CopyFormat::SAME_NAMESPACE => false,
        CopyFormat::NAMESPACES => true,
        _ => return Err(Fault::field(byte::CDW12)),
    };
    if control.cetype() != 0 || control.dtype() != 0 {
        return Err(Fault::field(byte::CDW12));
    }
    // NVM 1.1 §3.3.2, MSRC.
    if command.ranges() > COPY_RANGES_MAX {
        return Err(Fault::new(Status::COMMAND_SIZE_LIMIT_EXCEEDED).at(byte::CDW12));
    }
    check_writable(namespace)?;
    let lba = command.sdlba.get();
    check_range(namespace, lba, 1)?;
    // At most 16 ranges of 32 bytes.
    let bytes = command.data_length_bytes() as u32;
    let direction = Direction::FromHost;
    Ok(Plan {
        work: IoWork {
            operation: IoOperation::Copy {
                ranges: command.ranges() as u8,
                fua: namespace.volatile && (control.fua() || context.write_through),
                names_sources,
            },
            device: namespace.device,
            blocks: 0,
            lba,
            bytes,
            nsid,
            epoch: context.epoch,
        },
        direction,
        source: check_source(sqe, direction, bytes, context.data)?,
    })
}

/// Checks the source ranges of a Copy, and returns the command with the blocks and bytes that it
/// writes (NVM 1.1 §3.3.2).
pub(crate) fn check_copy_ranges(
    work: &IoWork,
    ranges: &[CopyRange],
    subsystem: &SubsystemView,
) -> Result<IoWork, Fault> {
    let destination = namespace(subsystem, work.nsid)?;
    let mut blocks = 0;
    for range in ranges {
        if range.parameters.cetype() != 0 {
            return Err(Fault::new(Status::INVALID_FIELD));
        }
        blocks += range.blocks();
        // MSSRL and MCL are equal.
        if blocks > destination.copy_max_blocks {
            return Err(Fault::new(Status::COMMAND_SIZE_LIMIT_EXCEEDED));
        }
    }
    for range in ranges {
        check_copy_source(work, range, subsystem)?;
    }
    check_range(destination, work.lba, blocks)?;
    // NVM 1.1 §3.3.2: a destination that overlaps the sources is allowed with format 0 only.
    if names_sources(work) && ranges.iter().any(|range| overlaps(work, blocks, range)) {
        return Err(Fault::new(Status::OVERLAPPING_IO_RANGE));
    }
    Ok(IoWork {
        blocks,
        bytes: blocks << destination.block_shift,
        ..*work
    })
}

/// Whether a checked source range of a Copy that writes so many blocks overlaps its destination.
pub(crate) fn overlaps(work: &IoWork, blocks: u32, range: &CopyRange) -> bool {
    let lba = range.slba.get();
    let end = lba + u64::from(range.blocks());
    let is_there = !names_sources(work) || range.snsid.get() == work.nsid;
    is_there && lba < work.lba + u64::from(blocks) && work.lba < end
}

/// Whether each source range of a Copy names its namespace.
fn names_sources(work: &IoWork) -> bool {
    matches!(
        work.operation,
        IoOperation::Copy {
            names_sources: true,
            ..
        }
    )
}

/// The namespace of a source range of a Copy, as its host sees it: one that is hidden from the host
/// is not active (NVM 1.1 §3.3.2, SNSID).
pub(crate) fn copy_source<'a>(
    work: &IoWork,
    range: &CopyRange,
    subsystem: &'a SubsystemView,
) -> Result<&'a NamespaceView, Fault> {
    let nsid = match names_sources(work) {
        true => range.snsid.get(),
        false => work.nsid,
    };
    // The wrong field is not in the command.
    namespace(subsystem, nsid).map_err(|fault| Fault::new(fault.status))
}

/// Checks a source range of a Copy. Returns its namespace.
pub(crate) fn check_copy_source<'a>(
    work: &IoWork,
    range: &CopyRange,
    subsystem: &'a SubsystemView,
) -> Result<&'a NamespaceView, Fault> {
    let source = copy_source(work, range, subsystem)?;
    let destination = namespace(subsystem, work.nsid)?;
    // NVM 1.1 §3.3.2.4.1: blocks of the same size. No namespace has metadata.
    if source.block_shift != destination.block_shift {
        return Err(Fault::new(Status::INCOMPATIBLE_NAMESPACE_OR_FORMAT));
    }
    // NVM 1.1 §3.3.2.1: the ranges are read one after the other, which may take longer than a host
    // that reads them at once.
    if names_sources(work) && range.options.fast_only() {
        return Err(Fault::new(Status::FAST_COPY_NOT_POSSIBLE));
    }
    // NVM 1.1 §3.3.2, MSSRL: that of the source's device may be lower than that of the destination.
    if range.blocks() > source.copy_max_blocks {
        return Err(Fault::new(Status::COMMAND_SIZE_LIMIT_EXCEEDED));
    }
    check_range(source, range.slba.get(), range.blocks())?;
    Ok(source)
}

/// The location of a command's data, and its length in bytes; `None` if the descriptors of a
/// segment contain the length (Base 2.1 §4.3.2).
#[inline(always)]
pub(crate) fn data_source(
    sqe: &Sqe,
    direction: Direction,
    context: DataContext,
) -> Result<(DataSource, Option<u32>), Fault> {
    // Base 2.1 §4.1.1, PSDT: over fabrics every data pointer is an SGL; there is no metadata.
    if sqe.flags.psdt() != Psdt::SGL {
        return Err(Fault::field(byte::FLAGS));
    }
    match sqe.dptr.sgl().decode() {
        Sgl::Transport { length } if !context.keyed => Ok((DataSource::TransportSgl, Some(length))),
        Sgl::Keyed {
            address,
            length,
            key,
            invalidate,
        } if context.keyed => Ok((
            DataSource::Keyed {
                address,
                key,
                length,
                invalidate,
            },
            Some(length),
        )),
        Sgl::LastSegment {
            address,
            length,
            in_capsule: true,
        } if context.keyed => Ok((
            keyed_segment(address, length, context.in_capsule_max)?,
            None,
        )),
        Sgl::Offset { offset, length } if direction == Direction::FromHost => {
            in_capsule(offset, length, context.in_capsule_max)
        }
        Sgl::DataBlock { .. }
        | Sgl::Offset { .. }
        | Sgl::BitBucket { .. }
        | Sgl::Segment { .. }
        | Sgl::LastSegment { .. }
        | Sgl::Keyed { .. }
        | Sgl::Transport { .. }
        | Sgl::Unknown(_) => Err(Fault::new(Status::SGL_DESCRIPTOR_TYPE_INVALID).at(byte::SGL)),
    }
}

/// In-capsule data: it has to lie within what IOCCSZ leaves for data (Base 2.1 §4.3.2: an offset
/// beyond it is SGL Offset Invalid, a length Data SGL Length Invalid).
#[inline]
fn in_capsule(offset: u64, length: u32, max: u32) -> Result<(DataSource, Option<u32>), Fault> {
    let Some(offset) = u32::try_from(offset).ok().filter(|offset| *offset <= max) else {
        return Err(Fault::new(Status::SGL_OFFSET_INVALID).at(byte::SGL));
    };
    if length > max - offset {
        return Err(Fault::new(Status::DATA_SGL_LENGTH_INVALID).at(byte::SGL));
    }
    Ok((DataSource::InCapsule { offset }, Some(length)))
}

/// A segment of keyed descriptors in the capsule (Base 2.1 §4.3.2, last segment descriptor of sub
/// type 1h).
#[inline(never)]
fn keyed_segment(offset: u64, length: u32, max: u32) -> Result<DataSource, Fault> {
    let Some(offset) = u32::try_from(offset).ok().filter(|offset| *offset <= max) else {
        return Err(Fault::new(Status::SGL_OFFSET_INVALID).at(byte::SGL));
    };
    let whole = length > 0 && length.is_multiple_of(size_of::<SglDescriptor>() as u32);
    if !whole || length > max - offset {
        return Err(Fault::new(Status::INVALID_SGL_SEGMENT_DESCRIPTOR).at(byte::SGL));
    }
    // Base 2.1 §5.1.13.2.1, MSDBD.
    if length as usize / size_of::<SglDescriptor>() > KEYED_BLOCKS_MAX {
        return Err(Fault::new(Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS).at(byte::SGL));
    }
    Ok(DataSource::KeyedSegment { offset, length })
}

/// Checks work again after the configuration changed between admission and execution.
pub(crate) fn recheck(work: &IoWork, subsystem: Option<&SubsystemView>) -> Result<(), Fault> {
    let no_namespace = Fault::new(Status::INVALID_NAMESPACE_OR_FORMAT).at(byte::NSID);
    let subsystem = subsystem.ok_or(no_namespace)?;
    if work.operation == IoOperation::FlushAll {
        return Ok(());
    }
    let namespace = namespace(subsystem, work.nsid)?;
    if namespace.device != work.device {
        return Err(no_namespace);
    }
    if work.operation.changes_medium() {
        check_writable(namespace)?;
    }
    check_range(namespace, work.lba, work.blocks)
}
