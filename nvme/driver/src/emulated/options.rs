//! What an emulated drive is: its registers' limits, its namespaces, what it supports.

use block::Latency;
use nvme_spec::identify::DeallocatedRead;
use nvme_spec::registers::Version;
use reactors::Nanos;

/// How the controller uses shadow doorbells once the host has configured them (Base 2.1 §5.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowDoorbells {
    /// No Doorbell Buffer Config command.
    Unsupported,
    /// The event index follows every tail: the host rings for each batch and is answered at once.
    Ring,
    /// The event index stays where it is: the host hardly ever rings, and the controller looks at
    /// the shadow doorbells in [`tick`](super::EmulatedController::tick).
    Poll,
}

/// Support of scatter gather lists (Base 2.1 §5.1.13.2.1, SGLS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SglRules {
    /// Commands with SGLs are refused.
    Unsupported,
    /// Any alignment and length.
    Any,
    /// Addresses and lengths are multiples of 4.
    Dword,
}

/// A controller memory buffer (Base 2.1 §8.2.1), for submission queues alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerMemoryOptions {
    /// Bytes, a multiple of 4096.
    pub bytes: usize,
    /// Whether the host must enable and place it by CMBMSC; else it lies where its BAR lies, as
    /// before NVMe 1.4.
    pub placed_by_host: bool,
}

/// One namespace of an emulated drive.
#[derive(Clone, Debug)]
pub struct EmulatedNamespace {
    /// Namespace identifier, 1 and up.
    pub nsid: u32,
    /// Bytes of a logical block: a power of two from 512 on.
    pub block_size: u32,
    /// Bytes of metadata per block. I/O to a namespace that has any is answered "invalid namespace
    /// or format": the emulation holds no metadata.
    pub metadata_bytes: u16,
    /// Size in blocks.
    pub block_count: u64,
    /// The size that it can be given later, in blocks; at least `block_count`.
    pub block_count_max: u64,
    /// EUI-64; all zero where it has none.
    pub eui64: [u8; 8],
    /// NGUID; all zero where it has none.
    pub nguid: [u8; 16],
    /// UUID; all zero where it has none.
    pub uuid: [u8; 16],
    /// Whether everything that changes it is refused.
    pub write_protected: bool,
    /// What deallocated blocks read as.
    pub deallocated: DeallocatedRead,
    /// Whether the controller has it when power comes on.
    pub attached: bool,
}

impl EmulatedNamespace {
    /// A namespace without metadata, with an NGUID and an EUI-64 made of its identifier.
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
    /// What people call it.
    pub name: String,
    /// Serial number, ASCII, at most 20 characters.
    pub serial: String,
    /// Model number, ASCII, at most 40 characters.
    pub model: String,
    /// Firmware revision, ASCII, at most 8 characters.
    pub firmware: String,
    /// VS.
    pub version: Version,
    /// Entries of the largest queue, 2 to 65,536 (CAP.MQES).
    pub queue_entries_max: u32,
    /// CAP.DSTRD, 0 to 15.
    pub doorbell_stride: u8,
    /// CAP.TO, units of 500 ms.
    pub timeout_units: u8,
    /// CAP.MPSMIN, 0 to 15: the smallest memory page is 2^(12 + this) bytes.
    pub page_code_min: u8,
    /// CAP.MPSMAX.
    pub page_code_max: u8,
    /// MDTS: 2^this smallest pages; 0 without limit.
    pub transfer_code: u8,
    /// I/O queue pairs at most, 1 to 1024.
    pub io_queues_max: u16,
    /// Interrupt vectors, 1 and up.
    pub interrupt_vectors: u16,
    /// Time from CC.EN = 1 to CSTS.RDY = 1.
    pub ready_after: Nanos,
    /// Time from CC.EN = 0 to CSTS.RDY = 0.
    pub disabled_after: Nanos,
    /// Time from CC.SHN to CSTS.SHST = 10b.
    pub shutdown_after: Nanos,
    /// Time from the doorbell to a command's execution; zero answers inside the doorbell write.
    pub latency: Latency,
    /// Whether there is a volatile write cache.
    pub write_cache: bool,
    /// Blocks that a power cut leaves whole or untouched (AWUPF), 1 and up.
    pub atomic_blocks: u16,
    /// Shadow doorbells.
    pub shadow_doorbells: ShadowDoorbells,
    /// Scatter gather lists.
    pub sgl: SglRules,
    /// Controller memory buffer, if any.
    pub controller_memory: Option<ControllerMemoryOptions>,
    /// Whether Compare, Write Zeroes and Dataset Management are supported.
    pub optional_commands: bool,
    /// Largest Write Zeroes, 2^this smallest pages; 0 without limit (WZSL).
    pub write_zeroes_code: u8,
    /// Asynchronous Event Requests that can be outstanding, 1 to 256.
    pub event_requests_max: u16,
    /// Commands that can be taken from submission queues without having been completed.
    pub outstanding_max: usize,
    /// Where the arena lies in the controller's address space: a multiple of 4096 that is not 0.
    pub dma_base: u64,
    /// The namespaces, by ascending identifier.
    pub namespaces: Vec<EmulatedNamespace>,
    /// Replays everything that is left to chance.
    pub seed: u64,
}

impl Default for EmulatedOptions {
    /// A drive that answers at once, with one namespace of 1024 blocks of 4096 bytes.
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
            optional_commands: true,
            write_zeroes_code: 0,
            event_requests_max: 4,
            outstanding_max: 4096,
            dma_base: 0x1_0000_0000,
            namespaces: vec![EmulatedNamespace::new(1, 4096, 1024)],
            seed: 0,
        }
    }
}
