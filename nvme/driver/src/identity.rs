//! The identity of a drive: its Identify data, and the limits that the driver derives from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use block::{AtomicWrites, CopyLimits, Deallocate, Geometry};
use nvme_spec::U16;
use nvme_spec::command::CommandSet;
use nvme_spec::identify::{
    DeallocatedRead, IdentifyController, IdentifyNamespace, NamespaceId, NamespaceIds,
    NvmIdentifyController, Oaes, SglSupport,
};
use nvme_spec::registers::{Cap, Version, sq_tail_doorbell};

use crate::error::Unusable;
use crate::memory::{PAGE_BYTES, ZEROES_BYTES_MAX};
use crate::options::{DriveOptions, QUEUE_DEPTH_MIN};

/// Maximum bytes of data per command if PRP lists describe it. List memory is per slot, so longer
/// requests are split.
pub(crate) const PART_BYTES_MAX_PRP: u64 = 256 << 10;
/// Maximum bytes of data per command if one SGL descriptor describes it.
const PART_BYTES_MAX_SGL: u64 = 1 << 20;
/// Minimum memory per slot in bytes: the range of a Dataset Management command.
const LIST_BYTES_MIN: usize = 16;
/// Blocks that NLB can name.
const BLOCKS_PER_COMMAND_MAX: u64 = 1 << 16;
/// Largest request of a device in bytes: the same as for all other devices.
const TRANSFER_BYTES_MAX: u32 = block::TRANSFER_BYTES_MAX as u32;

/// Identification of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ControllerInfo {
    pub(crate) model: String,
    pub(crate) serial: String,
    pub(crate) firmware: String,
    pub(crate) version: Version,
    pub(crate) vendor: u16,
}

/// Supported commands of a controller, and their limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Maximum number of commands in flight per pair.
    pub(crate) slots: u16,
    /// Bytes of memory per slot, a power of two.
    pub(crate) list_bytes: usize,
    /// Maximum bytes of data per command: a multiple of the page size.
    pub(crate) part_bytes: u32,
    /// Whether an SGL describes data of more than two pages.
    pub(crate) sgl: bool,
    pub(crate) compare: bool,
    pub(crate) write_zeroes: bool,
    /// Support for Copy within a namespace.
    pub(crate) copy: CopySupport,
    /// Whether Copy takes source ranges of other namespaces, descriptor format 2 (NVM 1.1 §3.3.2).
    pub(crate) copy_across: bool,
    /// Maximum bytes per Write Zeroes.
    pub(crate) write_zeroes_bytes: u64,
    pub(crate) deallocate: bool,
    /// Maximum blocks per range of Deallocate.
    pub(crate) deallocate_blocks: u32,
    /// Whether the controller supports shadow doorbells.
    pub(crate) shadow: bool,
    /// Whether it has a volatile write cache.
    pub(crate) write_cache: bool,
    /// Number of event requests to send, 1 to 4.
    pub(crate) events: u8,
    /// Maximum number of Abort commands in flight, 1 to 256.
    pub(crate) aborts: u16,
    /// The event notifications that it supports.
    pub(crate) notices: Oaes,
    /// Number of error log entries, 1 to 64.
    pub(crate) error_entries: u8,
    /// Time within which CSTS.RDY follows CC.EN, from CAP.TO, in milliseconds.
    pub(crate) ready_timeout_ms: u32,
    /// Shutdown time in microseconds; 0 if not reported.
    pub(crate) shutdown_us: u32,
    /// The largest namespace identifier (NN).
    pub(crate) namespaces_max: u32,
}

/// Support of a controller for Copy within a namespace, descriptor format 0 (NVM 1.1 §3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopySupport {
    None,
    /// Atomicity applies to each source range.
    Ranges,
    /// Atomicity applies to all blocks that are written (ONCS.NVMCSA).
    Whole,
}

impl CopySupport {
    fn new(page: &IdentifyController) -> Self {
        match page.oncs.copy() && page.cdfs.format_0() {
            false => Self::None,
            true if page.oncs.copy_single_atomicity() => Self::Whole,
            true => Self::Ranges,
        }
    }
}

/// Maximum number of event requests in flight: one per kind of event, so more would remain unused.
const EVENTS_MAX: u8 = 4;

impl Limits {
    /// Derives the limits of a controller.
    pub(crate) fn new(
        cap: Cap,
        page: &IdentifyController,
        nvm: &NvmIdentifyController,
        options: &DriveOptions,
        arena_bytes_max: usize,
    ) -> Self {
        let page_bytes_min = cap.page_bytes_min();
        let sgl = [SglSupport::ANY_ALIGNMENT, SglSupport::DWORD].contains(&page.sgls.support());
        let cap_bytes = if sgl {
            PART_BYTES_MAX_SGL
        } else {
            PART_BYTES_MAX_PRP
        };
        let mdts = page.transfer_bytes_max(page_bytes_min);
        let part_bytes = mdts.unwrap_or(cap_bytes).min(cap_bytes) as u32;
        let listed = if sgl {
            0
        } else {
            (part_bytes as usize / PAGE_BYTES - 1) * size_of::<u64>()
        };
        // NVM 1.1 §4.1.5.4: WZSL 0 means no limit. But some drives apply MDTS to Write Zeroes, so
        // MDTS is used then.
        let pages = |exponent: u8| u64::from(page_bytes_min).checked_shl(u32::from(exponent));
        let write_zeroes_bytes = match nvm.wzsl {
            0 => mdts.unwrap_or(u64::MAX),
            exponent => pages(exponent).unwrap_or(u64::MAX),
        };
        let unlimited = |blocks: u32| if blocks == 0 { u32::MAX } else { blocks };
        let doorbell_bytes = sq_tail_doorbell(cap, options.reactors as u16 + 1)
            - nvme_spec::registers::DOORBELL_BASE_BYTES;
        Self {
            slots: slots(cap, options, arena_bytes_max),
            list_bytes: listed.next_power_of_two().max(LIST_BYTES_MIN),
            part_bytes,
            sgl,
            compare: page.oncs.compare(),
            write_zeroes: page.oncs.write_zeroes(),
            copy: CopySupport::new(page),
            copy_across: page.oncs.copy() && page.cdfs.format_2(),
            write_zeroes_bytes,
            deallocate: page.oncs.dataset_management(),
            deallocate_blocks: unlimited(nvm.dmrsl.get()),
            shadow: options.shadow_doorbells
                && page.oacs.doorbell_buffer()
                && doorbell_bytes <= PAGE_BYTES as u64,
            write_cache: page.vwc.present(),
            events: page.aerl_z.saturating_add(1).min(EVENTS_MAX),
            aborts: u16::from(page.acl_z) + 1,
            notices: page.oaes,
            error_entries: page.elpe_z.saturating_add(1).min(64),
            ready_timeout_ms: cap.timeout_ms(),
            shutdown_us: page.rtd3e.get(),
            namespaces_max: page.nn.get(),
        }
    }

    /// Bytes of zeroes to write from if the controller has no Write Zeroes.
    pub(crate) fn zeroes_bytes(&self) -> Option<usize> {
        let bytes = ZEROES_BYTES_MAX.min(self.part_bytes as usize);
        (!self.write_zeroes).then_some(bytes)
    }

    /// Whether queues and devices created for `self` work with a controller that has the limits
    /// `other`.
    pub(crate) fn can_run_on(&self, other: &Self) -> bool {
        let has = |before: bool, now: bool| now || !before;
        self.slots <= other.slots
            && self.part_bytes <= other.part_bytes
            && has(self.sgl, other.sgl)
            && has(self.compare, other.compare)
            && has(self.write_zeroes, other.write_zeroes)
            && (self.copy == CopySupport::None || self.copy == other.copy)
            && has(self.copy_across, other.copy_across)
            && self.write_zeroes_bytes <= other.write_zeroes_bytes
            && has(self.deallocate, other.deallocate)
            && self.deallocate_blocks <= other.deallocate_blocks
    }
}

/// Number of slots of a pair: the configured depth, limited by the controller's queues (one entry
/// of which stays free, Base 2.1 §3.3.1.5) and by the arena's largest contiguous piece.
fn slots(cap: Cap, options: &DriveOptions, arena_bytes_max: usize) -> u16 {
    let queue = cap.mqes().min(u32::from(u16::MAX)) as u16 - 1;
    let room = (arena_bytes_max / crate::memory::SQE_BYTES - 1).min(usize::from(u16::MAX)) as u16;
    options
        .queue_depth_max
        .min(queue)
        .min(room)
        .max(QUEUE_DEPTH_MIN)
}

/// Whether a namespace can still be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceStatus {
    /// Unchanged since the drive was opened.
    Usable,
    /// Its size or format changed. Reads and writes are refused until the drive is opened again,
    /// because the size of a device is constant while it is open.
    Changed,
    /// It was deleted or detached.
    Removed,
}

/// A [`NamespaceStatus`] that reactors check for every request.
#[derive(Debug)]
pub(crate) struct StatusCell(AtomicU8);

impl StatusCell {
    const USABLE: u8 = 0;
    const CHANGED: u8 = 1;
    const REMOVED: u8 = 2;

    fn new() -> Self {
        Self(AtomicU8::new(Self::USABLE))
    }

    #[inline]
    pub(crate) fn is_usable(&self) -> bool {
        self.0.load(Ordering::Relaxed) == Self::USABLE
    }

    pub(crate) fn get(&self) -> NamespaceStatus {
        match self.0.load(Ordering::Relaxed) {
            Self::USABLE => NamespaceStatus::Usable,
            Self::CHANGED => NamespaceStatus::Changed,
            _ => NamespaceStatus::Removed,
        }
    }

    pub(crate) fn set(&self, status: NamespaceStatus) {
        let value = match status {
            NamespaceStatus::Usable => Self::USABLE,
            NamespaceStatus::Changed => Self::CHANGED,
            NamespaceStatus::Removed => Self::REMOVED,
        };
        self.0.store(value, Ordering::Relaxed);
    }
}

/// A namespace as identified at start.
#[derive(Clone, Debug)]
pub(crate) struct Namespace {
    pub(crate) nsid: u32,
    pub(crate) geometry: Result<Geometry, Unusable>,
    /// Whether Write Zeroes may deallocate because deallocated blocks read as zeroes.
    pub(crate) zeroes_deallocate: bool,
    /// What one Copy within it may have.
    pub(crate) copy: Option<CopyLimits>,
    /// What one Copy to it or from it may have, if the other namespace is another one.
    pub(crate) copy_across: Option<CopyLimits>,
    pub(crate) eui64: Option<[u8; 8]>,
    pub(crate) nguid: Option<[u8; 16]>,
    pub(crate) uuid: Option<[u8; 16]>,
    pub(crate) status: Arc<StatusCell>,
}

/// An identifier of zeroes means none (NVM 1.1 §4.1.5.1).
fn identifier<const N: usize>(bytes: [u8; N]) -> Option<[u8; N]> {
    (bytes != [0; N]).then_some(bytes)
}

impl Namespace {
    /// A namespace that could not be identified.
    pub(crate) fn unusable(nsid: u32, reason: Unusable) -> Self {
        Self {
            nsid,
            geometry: Err(reason),
            zeroes_deallocate: false,
            copy: None,
            copy_across: None,
            eui64: None,
            nguid: None,
            uuid: None,
            status: Arc::new(StatusCell::new()),
        }
    }

    pub(crate) fn new(
        nsid: u32,
        page: &IdentifyNamespace,
        limits: &Limits,
        write_cache: bool,
    ) -> Self {
        let dlfeat = page.dlfeat;
        Self {
            geometry: geometry(page, limits, write_cache),
            zeroes_deallocate: dlfeat.write_zeroes_deallocate()
                && dlfeat.read() == DeallocatedRead::ZEROES,
            copy: copy_limits(page).filter(|_| is_copy_atomic(page, limits)),
            copy_across: copy_limits(page).filter(|_| limits.copy_across),
            eui64: identifier(page.eui64),
            nguid: identifier(page.nguid),
            ..Self::unusable(nsid, Unusable::Empty)
        }
    }

    /// Adds the identification descriptors (Base 2.1 §5.1.13.2.3).
    pub(crate) fn add_descriptors(&mut self, page: &[u8]) {
        for id in NamespaceIds::new(page) {
            match id {
                NamespaceId::Eui64(id) => self.eui64 = identifier(id).or(self.eui64),
                NamespaceId::Nguid(id) => self.nguid = identifier(id).or(self.nguid),
                NamespaceId::Uuid(id) => self.uuid = identifier(id).or(self.uuid),
                NamespaceId::CommandSet(CommandSet::NVM) => {}
                NamespaceId::CommandSet(CommandSet(csi)) => {
                    self.geometry = Err(Unusable::CommandSet { csi });
                }
            }
        }
    }

    /// Whether it is the same namespace: geometry and identifiers.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.geometry == other.geometry
            && self.eui64 == other.eui64
            && self.nguid == other.nguid
            && self.uuid == other.uuid
    }
}

/// The geometry of a namespace as a block device, or the reason why it cannot be one.
fn geometry(
    page: &IdentifyNamespace,
    limits: &Limits,
    write_cache: bool,
) -> Result<Geometry, Unusable> {
    if page.nsze.get() == 0 {
        return Err(Unusable::Empty);
    }
    let format = page.format().ok_or(Unusable::NoFormat)?;
    let block_size = format.block_bytes().ok_or(Unusable::NoFormat)?;
    if !block::BLOCK_SIZES.contains(&block_size) {
        return Err(Unusable::BlockSize { bytes: block_size });
    }
    if format.ms.get() != 0 {
        return Err(Unusable::Metadata {
            bytes: format.ms.get(),
        });
    }
    if page.dps.protection_type() != 0 {
        return Err(Unusable::Protection {
            kind: page.dps.protection_type(),
        });
    }
    Ok(Geometry {
        block_size,
        block_count: page.nsze.get(),
        volatile_write_cache: write_cache,
        optimal_io_blocks: optimal_io_blocks(page),
        // Deallocate is a hint. A drive may ignore it regardless of how deallocated blocks read
        // (NVM 1.1 §3.3.3.2.1).
        deallocate: if limits.deallocate {
            Deallocate::Unspecified
        } else {
            Deallocate::Unsupported
        },
        max_transfer_blocks: TRANSFER_BYTES_MAX / block_size,
        read_only: page.nsattr.write_protected(),
        atomic: atomic_writes(page, limits.part_bytes / block_size),
    })
}

/// The limits of Copy that a namespace reports (NVM 1.1 §4.1.5.1). A limit of 0 allows none.
fn copy_limits(page: &IdentifyNamespace) -> Option<CopyLimits> {
    let (source_blocks_max, blocks_max) = (u32::from(page.mssrl.get()), page.mcl.get());
    (source_blocks_max > 0 && blocks_max > 0).then_some(CopyLimits {
        sources_max: u32::from(page.msrc_z) + 1,
        source_blocks_max,
        blocks_max,
    })
}

/// Whether there is Copy within a namespace that is not less atomic than the write that it replaces.
fn is_copy_atomic(page: &IdentifyNamespace, limits: &Limits) -> bool {
    match limits.copy {
        CopySupport::None => false,
        CopySupport::Ranges => !page.nsfeat.nsabp(),
        CopySupport::Whole => true,
    }
}

/// The atomic writes that a namespace reports (NVM 1.1 §4.1.5.1, NSABP); only those up to
/// `unsplit_blocks`, because longer requests are split.
fn atomic_writes(page: &IdentifyNamespace, unsplit_blocks: u32) -> AtomicWrites {
    if !page.nsfeat.nsabp() {
        return AtomicWrites::BLOCK;
    }
    let count = |zero_based: U16| u32::from(zero_based.get()) + 1;
    let boundary = |zero_based: U16| match zero_based.get() {
        0 => 0,
        blocks => u32::from(blocks) + 1,
    };
    AtomicWrites {
        normal_blocks: count(page.nawun_z).min(unsplit_blocks),
        power_failure_blocks: count(page.nawupf_z).min(unsplit_blocks),
        normal_boundary_blocks: boundary(page.nabsn_z),
        power_failure_boundary_blocks: boundary(page.nabspf_z),
        boundary_offset_blocks: u32::from(page.nabo.get()),
    }
}

/// The preferred write granularity if reported, else the optimal I/O boundary, else the atomic unit
/// (NVM 1.1 §5.2.2, §4.1.5.1).
fn optimal_io_blocks(page: &IdentifyNamespace) -> u32 {
    // 01b and 11b: NPWG is valid.
    if page.nsfeat.optperf() == 1 || page.nsfeat.optperf() == 3 {
        return u32::from(page.npwg_z.get()) + 1;
    }
    if page.noiob.get() != 0 {
        return u32::from(page.noiob.get());
    }
    if page.nsfeat.nsabp() {
        return u32::from(page.nawun_z.get()) + 1;
    }
    1
}

/// The properties that are constant while a drive is open.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) controller: ControllerInfo,
    pub(crate) limits: Limits,
    pub(crate) namespaces: Vec<Namespace>,
}

impl Identity {
    pub(crate) fn namespace(&self, nsid: u32) -> Option<&Namespace> {
        self.namespaces.iter().find(|found| found.nsid == nsid)
    }
}

/// Text of an Identify page: printable ASCII, trimmed; other characters become `?`.
pub(crate) fn text(bytes: &[u8]) -> String {
    let printable = |byte: &u8| match byte {
        0x20..=0x7e => char::from(*byte),
        0 => ' ',
        _ => '?',
    };
    let text: String = bytes.iter().map(printable).collect();
    text.trim().to_owned()
}

impl ControllerInfo {
    pub(crate) fn new(page: &IdentifyController) -> Self {
        Self {
            model: text(page.mn.bytes()),
            serial: text(page.sn.bytes()),
            firmware: text(page.fr.bytes()),
            version: page.version(),
            vendor: page.vid.get(),
        }
    }
}

/// Maximum blocks per Write Zeroes command.
pub(crate) fn zeroes_blocks(limits: &Limits, block_size: u32) -> u32 {
    let blocks = limits.write_zeroes_bytes / u64::from(block_size);
    blocks.clamp(1, BLOCKS_PER_COMMAND_MAX) as u32
}

#[cfg(test)]
mod tests;
