//! Load on a local device without NVMe over Fabrics, for comparison with a target on the same
//! device.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use block::{
    CompletionBatch, Device, DeviceQueue, FileDevice, FileOptions, MemoryDevice, MemoryOptions,
    NullDevice, NullOptions, Operation, QueueOptions, Request,
};
use hugemem::{Arena, Data, Lease, PagePolicy, Pool};
use nvme_host::{HostCompletion, HostCompletions, NamespaceInfo, Refusal, Refused};
use nvme_spec::{Cqe, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::load::initiator::Initiator;
use crate::load::options::{SIZE_MAX_BYTES, Workload};
use crate::load::phase::RunError;
use crate::load::run::{LoadError, OpenQueue, Outcome, Watch, drive_queues, take_arena};
use crate::units::{format_size, parse_size};

/// Block size of the device in bytes.
const BLOCK_BYTES: u32 = 4096;

/// The UUID of a device to which no host attaches.
const UUID: [u8; 16] = [0; 16];

/// A local device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalDevice {
    /// A file, accessed by io_uring and with direct I/O if its file system supports that.
    File(PathBuf),
    /// Memory of the process, with this size in bytes.
    Memory(u64),
    /// A device that stores nothing, with this size in bytes.
    Null(u64),
}

impl FromStr for LocalDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed = || format!("'{text}' is not file:PATH, memory:SIZE or null:SIZE");
        let size = |size: &str| parse_size(size).map_err(|error| error.to_string());
        match text.split_once(':').ok_or_else(malformed)? {
            ("file", path) if !path.is_empty() => Ok(Self::File(path.into())),
            ("memory", bytes) => Ok(Self::Memory(size(bytes)?)),
            ("null", bytes) => Ok(Self::Null(size(bytes)?)),
            _ => Err(malformed()),
        }
    }
}

impl fmt::Display for LocalDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Memory(bytes) => write!(f, "memory:{}", format_size(*bytes)),
            Self::Null(bytes) => write!(f, "null:{}", format_size(*bytes)),
        }
    }
}

/// The reason why a local device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The file does not exist.
    #[error("{0} does not exist: create it first, for example with truncate --size 1G {0}")]
    NoFile(String),
    /// An error of the file.
    #[error(transparent)]
    File(#[from] block::FileError),
    /// An error of the memory device.
    #[error(transparent)]
    Memory(#[from] block::MemoryError),
    /// An error of the null device.
    #[error(transparent)]
    Null(#[from] block::NullError),
    /// An error of a queue.
    #[error("the device's queue cannot be opened: {0}")]
    Open(#[from] block::OpenError),
}

impl LocalDevice {
    fn open(&self, arena: &Arc<Arena>, read_only: bool) -> Result<Arc<dyn Device>, LocalError> {
        let name = "bench".to_owned();
        Ok(match self {
            Self::File(path) if !path.exists() => {
                return Err(LocalError::NoFile(path.display().to_string()));
            }
            Self::File(path) => Arc::new(FileDevice::open(FileOptions {
                read_only,
                arena: Some(Arc::clone(arena)),
                ..FileOptions::new(name, path)
            })?),
            Self::Memory(size_bytes) => Arc::new(MemoryDevice::new(MemoryOptions {
                name,
                uuid: UUID,
                size_bytes: *size_bytes,
                block_size: BLOCK_BYTES,
                pages: PagePolicy::Auto,
                read_only,
            })?),
            Self::Null(size_bytes) => Arc::new(NullDevice::new(NullOptions {
                name,
                uuid: UUID,
                size_bytes: *size_bytes,
                block_size: BLOCK_BYTES,
            })?),
        })
    }
}

/// A run on a local device.
#[derive(Debug, Clone)]
pub struct LocalPlan {
    /// The device.
    pub device: LocalDevice,
    /// The workload.
    pub workload: Workload,
    /// Cores to which the driving threads are pinned in turn; empty for no pinning.
    pub cores: Vec<usize>,
}

/// Runs a workload on a local device.
///
/// # Errors
/// [`LoadError`] if the run could not start or a thread was lost.
pub fn run_local(plan: &LocalPlan, watch: &mut dyn Watch) -> Result<Outcome, LoadError> {
    let workload = &plan.workload;
    let largest = workload.sizes_bytes.iter().copied().max();
    let largest = largest.unwrap_or(SIZE_MAX_BYTES).min(SIZE_MAX_BYTES);
    let arena = take_arena(workload, largest)?;
    let only_reads = workload.read_percent == 100 && !workload.verify;
    let device = plan.device.open(&arena, only_reads)?;
    let geometry = device.geometry();
    let namespace = NamespaceInfo {
        nsid: 1,
        block_bytes: geometry.block_size,
        blocks: geometry.block_count,
        write_protected: geometry.read_only,
        nguid: [0; 16],
        eui64: [0; 8],
        uuid: None,
    };
    let most = u64::from(geometry.max_transfer_blocks) * u64::from(geometry.block_size);
    let suited = Arc::new(workload.check_against(&namespace, Some(most))?);
    let queues: Vec<LocalQueuePlan> = (0..workload.queues)
        .map(|_| LocalQueuePlan {
            device: Arc::clone(&device),
            depth: usize::from(workload.depth),
        })
        .collect();
    let driven = drive_queues(queues, &suited, &arena, &plan.cores, &mut || {}, watch)?;
    Ok(Outcome::new(namespace, &suited, driven))
}

/// Parameters of a queue to open.
struct LocalQueuePlan {
    device: Arc<dyn Device>,
    depth: usize,
}

impl OpenQueue for LocalQueuePlan {
    type Queue = LocalQueue;

    fn open(&self, pool: Pool) -> Result<LocalQueue, LoadError> {
        let options = QueueOptions::new(0, self.depth, pool);
        let queue = self.device.open_queue(options).map_err(LocalError::from)?;
        Ok(LocalQueue {
            queue,
            copy_targets: (0..self.depth).map(|_| None).collect(),
            batch: CompletionBatch::new(),
        })
    }
}

/// A device's queue, used like a host's queue.
struct LocalQueue {
    queue: Box<dyn DeviceQueue>,
    /// By token: the lease into which borrowed data is copied, so that a read copies its data here
    /// as with other devices.
    copy_targets: Box<[Option<Lease>]>,
    batch: CompletionBatch,
}

impl LocalQueue {
    fn submit(&mut self, request: Request) -> Result<(), Refused<Lease>> {
        let token = request.tag;
        self.queue.submit(request).map_err(|refusal| {
            let kind = match refusal {
                block::Refusal::Later(_) => Refusal::Full,
                block::Refusal::Never(..) => Refusal::Failed,
            };
            let data = refusal.into_request().data;
            Refused {
                refusal: kind,
                data: data.or_else(|| self.take_copy_target(token)),
            }
        })
    }

    fn take_copy_target(&mut self, token: u64) -> Option<Lease> {
        let index = usize::try_from(token).ok()?;
        self.copy_targets.get_mut(index)?.take()
    }

    /// The lease of a completed request, with the data that was read.
    fn lease(&mut self, token: u64, data: Option<Data>) -> Option<Lease> {
        match data {
            Some(Data::Lease(lease)) => Some(lease),
            Some(Data::Borrow(borrow)) => {
                let mut lease = self.take_copy_target(token)?;
                lease.copy_from_slice(&borrow);
                Some(lease)
            }
            None => self.take_copy_target(token),
        }
    }
}

impl Initiator for LocalQueue {
    fn submit_read(
        &mut self,
        _nsid: u32,
        lba: u64,
        blocks: u32,
        data: Lease,
        token: u64,
    ) -> Result<(), Refused<Lease>> {
        let mut data = Some(data);
        let place = usize::try_from(token).ok();
        if self.queue.can_borrow_read(lba, blocks)
            && let Some(aside) = place.and_then(|index| self.copy_targets.get_mut(index))
        {
            *aside = data.take();
        }
        self.submit(Request {
            tag: token,
            operation: Operation::Read,
            lba,
            blocks,
            data,
        })
    }

    fn submit_write(
        &mut self,
        _nsid: u32,
        lba: u64,
        blocks: u32,
        data: Lease,
        token: u64,
    ) -> Result<(), Refused<Lease>> {
        self.submit(Request {
            tag: token,
            operation: Operation::Write { fua: false },
            lba,
            blocks,
            data: Some(data),
        })
    }

    fn flush(&mut self) -> Result<(), RunError> {
        self.queue.flush();
        Ok(())
    }

    fn poll(&mut self, completions: &mut HostCompletions) -> Result<usize, RunError> {
        let mut batch = std::mem::take(&mut self.batch);
        let ended = self.queue.poll(&mut batch);
        for completion in batch.drain(..) {
            let status = match completion.result {
                Ok(()) => Status::SUCCESS,
                Err(error) => nvme_target::device_status(error),
            };
            let data = self.lease(completion.tag, completion.data);
            completions.push(HostCompletion {
                token: completion.tag,
                cqe: Cqe::new(0, status),
                received: data.as_ref().map_or(0, |lease| lease.len() as u32),
                data,
            });
        }
        self.batch = batch;
        Ok(ended)
    }

    fn wait(&mut self, limit: Duration) {
        if !self.queue.prepare_sleep() {
            return;
        }
        let Some(source) = self.queue.wake_source() else {
            return;
        };
        let limit = Timespec {
            tv_sec: 0,
            tv_nsec: limit.subsec_nanos().into(),
        };
        // An early wake-up only causes one more poll.
        let _ = poll(
            &mut [PollFd::from_borrowed_fd(source, PollFlags::IN)],
            Some(&limit),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::run::NoWatch;
    use crate::load::{Limit, Pattern};

    fn workload() -> Workload {
        Workload {
            sizes_bytes: vec![4096, 20_480],
            depth: 8,
            queues: 2,
            threads: 2,
            read_percent: 50,
            pattern: Pattern::Zipf(110),
            rate: None,
            limit: Limit::Operations(2000),
            warm_up: Duration::ZERO,
            verify: true,
            region_bytes: None,
            seed: 4,
        }
    }

    fn verified(device: LocalDevice) -> Outcome {
        let plan = LocalPlan {
            device,
            workload: workload(),
            cores: Vec::new(),
        };
        run_local(&plan, &mut NoWatch).expect("it runs")
    }

    #[test]
    fn memory_and_file_devices_pass_verification() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("device");
        let file = std::fs::File::create(&path).expect("a file");
        file.set_len(2 << 20).expect("a length");
        drop(file);
        for device in [LocalDevice::Memory(2 << 20), LocalDevice::File(path)] {
            let outcome = verified(device);
            assert_eq!(outcome.phases.len(), 3);
            for (_, stats) in &outcome.phases {
                assert!(stats.trouble.is_none(), "{:?}", stats.trouble);
            }
            let (_, main) = &outcome.phases[1];
            assert_eq!(main.reads.operations + main.writes.operations, 2000);
            assert!(main.checked.right > 0);
        }
    }

    /// A device that stores nothing must not pass verification.
    #[test]
    fn null_device_fails_verification() {
        let outcome = verified(LocalDevice::Null(2 << 20));
        let troubled = |(_, stats): &(_, crate::load::PhaseStats)| stats.trouble.is_some();
        assert!(outcome.phases.iter().any(troubled));
    }

    #[test]
    fn missing_file_is_not_created() {
        let plan = LocalPlan {
            device: LocalDevice::File("/nonexistent/device".into()),
            workload: workload(),
            cores: Vec::new(),
        };
        let error = run_local(&plan, &mut NoWatch).expect_err("refused");
        assert!(error.to_string().contains("create it first"), "{error}");
    }

    /// Requests the end of the run in its second phase.
    struct Impatient(usize);

    impl Watch for Impatient {
        fn phase_begins(&mut self, _: crate::load::Phase, _: crate::load::run::PhaseTotal) {
            self.0 += 1;
        }
        fn phase_progresses(&mut self, _: u64, _: u64, _: Duration) {}
        fn phase_ends(&mut self, _: crate::load::Phase, _: &crate::load::PhaseStats) {}
        fn is_interrupted(&self) -> bool {
            self.0 == 2
        }
    }

    #[test]
    fn interrupted_local_run_reports_partial_results() {
        let plan = LocalPlan {
            device: LocalDevice::Memory(2 << 20),
            workload: Workload {
                limit: Limit::Time(Duration::from_secs(3600)),
                rate: Some(1e9),
                ..workload()
            },
            cores: Vec::new(),
        };
        let outcome = run_local(&plan, &mut Impatient(0)).expect("it runs");
        assert!(outcome.interrupted);
        let names: Vec<&str> = outcome.phases.iter().map(|(phase, _)| phase.name).collect();
        assert_eq!(names, ["fill", "main"]);
        let (_, main) = &outcome.phases[1];
        assert!(main.trouble.is_none() && main.elapsed < Duration::from_secs(3600));
        assert_eq!(
            main.unsent, 0,
            "what came after the interruption was nobody's fault"
        );
        let report = crate::report::RunReport::local(&plan, &outcome).to_string();
        assert!(report.contains("interrupted"), "{report}");
        assert!(
            !report.contains("FAILED") && !report.contains("verified:"),
            "{report}"
        );
    }

    #[test]
    fn local_device_names_round_trip() {
        for text in ["memory:2 MiB", "null:1 GiB", "file:/srv/x"] {
            let device: LocalDevice = text.parse().expect(text);
            assert_eq!(device.to_string(), text);
        }
        for text in ["", "file", "file:", "disk:/dev/sda", "memory:lots"] {
            assert!(text.parse::<LocalDevice>().is_err(), "{text}");
        }
    }
}
