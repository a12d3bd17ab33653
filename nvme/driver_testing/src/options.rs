//! Options of an emulated drive: register limits, namespaces, supported commands.

use std::sync::Arc;

use block_testing::Latency;
use nvme_spec::identify::DeallocatedRead;
use nvme_spec::registers::Version;
use reactors::Nanos;

use super::space::EmulatedSpace;

/// How the controller uses shadow doorbells once the host has configured them (Base 2.1 §5.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowDoorbells {
    /// Doorbell Buffer Config is not supported.
    Unsupported,
    /// The event index follows every tail: the host writes the doorbell for each batch, and the
    /// controller processes it immediately.
    Ring,
    /// The event index does not change: the host writes doorbells rarely, and the controller reads
    /// the shadow doorbells in [`tick`](super::EmulatedController::tick).
    Poll,
}

/// Support for scatter gather lists (Base 2.1 §5.1.13.2.1, SGLS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SglRules {
    /// Commands with SGLs are rejected.
    Unsupported,
    /// Any alignment and length.
    Any,
    /// Addresses and lengths are multiples of 4.
    Dword,
}

/// A controller memory buffer (Base 2.1 §8.2.1), for submission queues only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerMemoryOptions {
    /// Size in bytes, a multiple of 4096.
    pub bytes: usize,
    /// Whether the host must enable it and set its address through CMBMSC. Otherwise it is at its
    /// BAR's address, as before NVMe 1.4.
    pub placed_by_host: bool,
    /// Whether data of reads and writes may be in it (CMBSZ.RDS and WDS).
    pub holds_data: bool,
}

/// Support for Copy (NVM 1.1 §3.3.2) from other namespaces, descriptor format 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyAcross {
    /// The format is not supported.
    #[default]
    Unsupported,
    /// It is, once the host enables it (Base 2.1 §5.1.25.1.14, CDFE).
    Supported,
    /// It is reported, but Host Behavior Support is refused.
    NotEnabled,
}

/// Support for Copy (NVM 1.1 §3.3.2), descriptor format 0, and format 2 if chosen. The limits are reported
/// as they are (NVM 1.1 §4.1.5.1), so that they may be invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmulatedCopy {
    /// Blocks of a source range (MSSRL).
    pub range_blocks_max: u16,
    /// Blocks of a Copy (MCL).
    pub blocks_max: u32,
    /// Source ranges of a Copy, zero-based (MSRC).
    pub ranges_max_z: u8,
    /// Whether atomicity applies to the blocks of a Copy as to those of a Write (ONCS.NVMCSA).
    pub single_atomicity: bool,
    /// The source range at which each Copy fails, after it has copied the ranges before it.
    pub failing_range: Option<u8>,
    /// Support for source ranges of other namespaces.
    pub across: CopyAcross,
}

/// One namespace of an emulated drive.
#[derive(Clone, Debug)]
pub struct EmulatedNamespace {
    /// Namespace identifier, at least 1.
    pub nsid: u32,
    /// Size of a logical block in bytes: a power of two of at least 512.
    pub block_size: u32,
    /// Metadata per block in bytes. I/O to a namespace with metadata fails with "invalid namespace
    /// or format": the emulation stores no metadata.
    pub metadata_bytes: u16,
    /// Size in blocks.
    pub block_count: u64,
    /// Maximum size for later changes, in blocks; at least `block_count`.
    pub block_count_max: u64,
    /// EUI-64; all zero if it has none.
    pub eui64: [u8; 8],
    /// NGUID; all zero if it has none.
    pub nguid: [u8; 16],
    /// UUID; all zero if it has none.
    pub uuid: [u8; 16],
    /// Whether the namespace is write protected.
    pub write_protected: bool,
    /// The content of deallocated blocks.
    pub deallocated: DeallocatedRead,
    /// Whether the namespace is attached at power on.
    pub attached: bool,
}

impl EmulatedNamespace {
    /// A namespace without metadata. NGUID and EUI-64 are derived from its identifier.
    #[must_use]
    pub fn new(nsid: u32, block_size: u32, block_count: u64) -> Self {
        let mut eui64 = [0x02; 8];
        eui64[4..].copy_from_slice(&nsid.to_be_bytes());
        let mut nguid = [0x06; 16];
        nguid[12..].copy_from_slice(&nsid.to_be_bytes());
        Self {
            nsid,
            block_size,
            metadata_bytes: 0,
            block_count,
            block_count_max: block_count,
            eui64,
            nguid,
            uuid: [0; 16],
            write_protected: false,
            deallocated: DeallocatedRead::ZEROES,
            attached: true,
        }
    }
}

/// An emulated drive.
#[derive(Clone, Debug)]
pub struct EmulatedOptions {
    /// Name for users.
    pub name: String,
    /// Serial number, ASCII, at most 20 characters.
    pub serial: String,
    /// Model number, ASCII, at most 40 characters.
    pub model: String,
    /// Firmware revision, ASCII, at most 8 characters.
    pub firmware: String,
    /// Version (VS).
    pub version: Version,
    /// Entries of the largest queue, 2 to 65,536 (CAP.MQES).
    pub queue_entries_max: u32,
    /// CAP.DSTRD, 0 to 15.
    pub doorbell_stride: u8,
    /// CAP.TO, in units of 500 ms.
    pub timeout_units: u8,
    /// CAP.MPSMIN, 0 to 15: the smallest memory page has 2^(12 + this) bytes.
    pub page_code_min: u8,
    /// CAP.MPSMAX.
    pub page_code_max: u8,
    /// MDTS: 2^this smallest pages; 0 means no limit.
    pub transfer_code: u8,
    /// Maximum number of I/O queue pairs, 1 to 1024.
    pub io_queues_max: u16,
    /// Number of interrupt vectors, at least 1.
    pub interrupt_vectors: u16,
    /// Time from CC.EN = 1 to CSTS.RDY = 1.
    pub ready_after: Nanos,
    /// Time from CC.EN = 0 to CSTS.RDY = 0.
    pub disabled_after: Nanos,
    /// Time from CC.SHN to CSTS.SHST = 10b.
    pub shutdown_after: Nanos,
    /// Time from the doorbell to a command's execution. With zero it executes inside the doorbell
    /// write.
    pub latency: Latency,
    /// Whether there is a volatile write cache.
    pub write_cache: bool,
    /// Number of blocks that a power cut writes completely or not at all (AWUPF), at least 1.
    pub atomic_blocks: u16,
    /// Support for shadow doorbells.
    pub shadow_doorbells: ShadowDoorbells,
    /// Support for scatter gather lists.
    pub sgl: SglRules,
    /// The controller memory buffer, if any.
    pub controller_memory: Option<ControllerMemoryOptions>,
    /// The address space that it shares with other drives, if any.
    pub space: Option<Arc<EmulatedSpace>>,
    /// Whether Compare, Write Zeroes and Dataset Management are supported.
    pub optional_commands: bool,
    /// Support for Copy, if any.
    pub copy: Option<EmulatedCopy>,
    /// Largest Write Zeroes: 2^this smallest pages; 0 means no limit (WZSL).
    pub write_zeroes_code: u8,
    /// Maximum number of outstanding Asynchronous Event Requests, 1 to 256.
    pub event_requests_max: u16,
    /// Maximum number of commands fetched and not completed.
    pub outstanding_max: usize,
    /// Address of the arena for the controller: a nonzero multiple of 4096.
    pub dma_base: u64,
    /// The namespaces, by ascending identifier.
    pub namespaces: Vec<EmulatedNamespace>,
    /// Seed of all random decisions.
    pub seed: u64,
}

impl Default for EmulatedOptions {
    /// A drive without latency, with one namespace of 1024 blocks of 4096 bytes.
    fn default() -> Self {
        Self {
            name: "emulated".into(),
            serial: "WINDLASS0001".into(),
            model: "Windlass emulated drive".into(),
            firmware: "1.0".into(),
            version: Version::V2_0,
            queue_entries_max: 1024,
            doorbell_stride: 0,
            timeout_units: 20,
            page_code_min: 0,
            page_code_max: 0,
            transfer_code: 8,
            io_queues_max: 8,
            interrupt_vectors: 9,
            ready_after: Nanos::ZERO,
            disabled_after: Nanos::ZERO,
            shutdown_after: Nanos::ZERO,
            latency: Latency::Fixed(Nanos::ZERO),
            write_cache: true,
            atomic_blocks: 1,
            shadow_doorbells: ShadowDoorbells::Unsupported,
            sgl: SglRules::Unsupported,
            controller_memory: None,
            space: None,
            optional_commands: true,
            copy: None,
            write_zeroes_code: 0,
            event_requests_max: 4,
            outstanding_max: 4096,
            dma_base: 0x1_0000_0000,
            namespaces: vec![EmulatedNamespace::new(1, 4096, 1024)],
            seed: 0,
        }
    }
}
