//! The options of a workload, and the checks against the namespace.

use std::fmt;
use std::time::Duration;

use nvme_host::NamespaceInfo;

use crate::load::zipf::EXPONENT_PERCENT;
use crate::units::format_size;

/// Default request sizes of a verified workload in bytes: small, page, and several pages.
const VERIFIED_SIZES_BYTES: [u32; 5] = [512, 4096, 16 * 1024, 20 * 1024, 64 * 1024];

/// Default request size in bytes.
const SIZE_BYTES: u32 = 4096;

/// The largest request in bytes, which is the largest lease size.
pub const SIZE_MAX_BYTES: u32 = 1 << 20;

/// Default region of a verified workload in bytes.
const VERIFIED_REGION_BYTES: u64 = 256 << 20;

/// Maximum number of blocks for which a verified workload keeps a model.
const MODEL_BLOCKS_MAX: u64 = 1 << 27;

/// A rate that exceeds the capability of any machine, in requests per second.
const RATE_MAX: f64 = 1e9;

fn whole(hundredths: u16) -> f64 {
    f64::from(hundredths) / 100.0
}

/// The access pattern of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Anywhere in the region.
    Random,
    /// One after another; continues at the start after the region's end.
    Sequential,
    /// Some positions far more often than others: Zipf's law with this exponent in hundredths.
    Zipf(u16),
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random => write!(f, "random"),
            Self::Sequential => write!(f, "sequential"),
            Self::Zipf(exponent) => write!(f, "zipf:{}", whole(*exponent)),
        }
    }
}

/// The end condition of the main phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// After a time.
    Time(Duration),
    /// After a number of operations, over all queues.
    Operations(u64),
}

/// The workload that a user requests.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Request sizes in bytes with equal probability; empty for the default.
    pub sizes_bytes: Vec<u32>,
    /// Requests in flight on each queue.
    pub depth: u16,
    /// I/O queues.
    pub queues: u16,
    /// Threads that drive the queues.
    pub threads: u16,
    /// Share of reads in percent.
    pub read_percent: u8,
    /// The access pattern of requests.
    pub pattern: Pattern,
    /// Requests per second over all queues, if limited. Latencies then count from the time at which
    /// a request was due.
    pub rate: Option<f64>,
    /// The end condition of the main phase.
    pub limit: Limit,
    /// Duration of the warm-up, which is not counted.
    pub warm_up: Duration,
    /// Whether to write a stamp into every block and check it on every read. Overwrites the region.
    pub verify: bool,
    /// Size of the used region at the start of the namespace in bytes; `None` for the default.
    pub region_bytes: Option<u64>,
    /// The seed of all random choices.
    pub seed: u64,
}

/// An inconsistent workload, or one that does not fit its namespace.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OptionsError {
    /// A size is not a multiple of the block size.
    #[error(
        "a block size of {} does not suit namespace {nsid}, whose blocks are {} bytes",
        format_size(u64::from(*size)), block
    )]
    SizeNotWholeBlocks {
        /// The size.
        size: u32,
        /// The namespace.
        nsid: u32,
        /// Its block size in bytes.
        block: u32,
    },
    /// A size exceeds the maximum of one command.
    #[error(
        "a block size of {} is more than one command carries here ({})",
        format_size(u64::from(*size)), format_size(*most)
    )]
    SizeTooLarge {
        /// The size.
        size: u32,
        /// The maximum.
        most: u64,
    },
    /// The region is too small for one request on each queue.
    #[error(
        "a region of {} has no room for a request of {} on every queue ({queues}): give it {} at least",
        format_size(*region), format_size(u64::from(*size)),
        format_size(u64::from(*size) * u64::from(*queues))
    )]
    RegionTooSmall {
        /// The region.
        region: u64,
        /// The number of queues.
        queues: u16,
        /// The largest request.
        size: u32,
    },
    /// The region is larger than the namespace.
    #[error(
        "a region of {} is more than namespace {nsid} has ({})",
        format_size(*region), format_size(*namespace)
    )]
    RegionTooLarge {
        /// The region.
        region: u64,
        /// The namespace.
        nsid: u32,
        /// Its size, bytes.
        namespace: u64,
    },
    /// More threads than queues.
    #[error(
        "{threads} threads need as many queues: give at least --queues {threads}, not {queues}"
    )]
    IdleThreads {
        /// The number of threads.
        threads: u16,
        /// The number of queues.
        queues: u16,
    },
    /// More blocks than a model supports.
    #[error(
        "a verified region has at most {MODEL_BLOCKS_MAX} blocks, not {0}: give a smaller --region"
    )]
    ModelTooLarge(u64),
    /// A count is out of range.
    #[error("{what} must be {least} to {most}, not {value}")]
    Count {
        /// The name of the count.
        what: &'static str,
        /// The given value.
        value: u64,
        /// The minimum.
        least: u64,
        /// The maximum.
        most: u64,
    },
    /// A rate is out of range.
    #[error("a rate must be more than 0 and at most {RATE_MAX:e} requests a second, not {0}")]
    Rate(f64),
    /// An exponent of Zipf's law is out of range.
    #[error(
        "an exponent of Zipf's law must be {} to {}, not {}",
        whole(*EXPONENT_PERCENT.start()), whole(*EXPONENT_PERCENT.end()), whole(*percent)
    )]
    Exponent {
        /// The exponent in hundredths.
        percent: u16,
    },
    /// Writes are requested on a write-protected namespace.
    #[error("namespace {0} is write protected: only --mix 100/0 without --verify is possible")]
    WriteProtected(u32),
}

/// A workload that was checked against its namespace.
#[derive(Debug, Clone)]
pub struct CheckedWorkload {
    pub(crate) nsid: u32,
    pub(crate) block_bytes: u32,
    pub(crate) sizes_blocks: Vec<u32>,
    pub(crate) size_max_bytes: u32,
    pub(crate) blocks_per_lane: u64,
    pub(crate) workload: Workload,
}

impl Workload {
    /// The request sizes in bytes for blocks of `block_bytes`.
    fn sizes(&self, block_bytes: u32, most: u64) -> Vec<u32> {
        if !self.sizes_bytes.is_empty() {
            return self.sizes_bytes.clone();
        }
        let defaults: &[u32] = if self.verify {
            &VERIFIED_SIZES_BYTES
        } else {
            &[SIZE_BYTES]
        };
        let fits = |size: &u32| size.is_multiple_of(block_bytes) && u64::from(*size) <= most;
        let sizes: Vec<u32> = defaults.iter().copied().filter(fits).collect();
        if sizes.is_empty() {
            vec![block_bytes]
        } else {
            sizes
        }
    }

    /// Checks the workload against a namespace and the controller's largest transfer.
    pub fn check_against(
        &self,
        namespace: &NamespaceInfo,
        transfer_max: Option<u64>,
    ) -> Result<CheckedWorkload, OptionsError> {
        self.check_counts()?;
        if let Some(rate) = self.rate
            && !(rate > 0.0 && rate <= RATE_MAX)
        {
            return Err(OptionsError::Rate(rate));
        }
        if let Pattern::Zipf(exponent) = self.pattern
            && !EXPONENT_PERCENT.contains(&exponent)
        {
            return Err(OptionsError::Exponent { percent: exponent });
        }
        let nsid = namespace.nsid;
        if namespace.write_protected && (self.verify || self.read_percent < 100) {
            return Err(OptionsError::WriteProtected(nsid));
        }
        let block = namespace.block_bytes;
        // NLB is at most 65,536 blocks (NVM 1.1 §3.3.4).
        let most = u64::from(SIZE_MAX_BYTES)
            .min(transfer_max.unwrap_or(u64::MAX))
            .min(u64::from(block) << 16);
        let sizes = self.sizes(block, most);
        for &size in &sizes {
            if size == 0 || !size.is_multiple_of(block) {
                return Err(OptionsError::SizeNotWholeBlocks { size, nsid, block });
            }
            if u64::from(size) > most {
                return Err(OptionsError::SizeTooLarge { size, most });
            }
        }
        let size_max_bytes = sizes.iter().copied().max().unwrap_or(block);
        let blocks_per_lane = self.blocks_per_lane(namespace, size_max_bytes)?;
        Ok(CheckedWorkload {
            nsid,
            block_bytes: block,
            sizes_blocks: sizes.iter().map(|size| size / block).collect(),
            size_max_bytes,
            blocks_per_lane,
            workload: self.clone(),
        })
    }

    fn check_counts(&self) -> Result<(), OptionsError> {
        let counts = [
            ("depth", u64::from(self.depth), 1, 1 << 13),
            ("queues", u64::from(self.queues), 1, 1 << 13),
            ("threads", u64::from(self.threads), 1, 128),
            ("the share of reads", u64::from(self.read_percent), 0, 100),
        ];
        for (what, value, least, most) in counts {
            if !(least..=most).contains(&value) {
                return Err(OptionsError::Count {
                    what,
                    value,
                    least,
                    most,
                });
            }
        }
        if self.threads > self.queues {
            let (threads, queues) = (self.threads, self.queues);
            return Err(OptionsError::IdleThreads { threads, queues });
        }
        Ok(())
    }

    fn blocks_per_lane(
        &self,
        namespace: &NamespaceInfo,
        size_max_bytes: u32,
    ) -> Result<u64, OptionsError> {
        let whole = namespace.bytes();
        let region = match self.region_bytes {
            Some(region) if region > whole => {
                let nsid = namespace.nsid;
                return Err(OptionsError::RegionTooLarge {
                    region,
                    nsid,
                    namespace: whole,
                });
            }
            Some(region) => region,
            None if self.verify => whole.min(VERIFIED_REGION_BYTES),
            None => whole,
        };
        let blocks = region / u64::from(namespace.block_bytes);
        if self.verify && blocks > MODEL_BLOCKS_MAX {
            return Err(OptionsError::ModelTooLarge(blocks));
        }
        let per_lane = blocks / u64::from(self.queues);
        if per_lane * u64::from(namespace.block_bytes) < u64::from(size_max_bytes) {
            let (queues, size) = (self.queues, size_max_bytes);
            return Err(OptionsError::RegionTooSmall {
                region,
                queues,
                size,
            });
        }
        Ok(per_lane)
    }
}
