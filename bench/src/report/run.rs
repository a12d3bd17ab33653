//! The report of a load run.

use std::fmt;

use nvme_host::ConnectionCounters;
use nvme_spec::log::TransportType;
use serde::{Deserialize, Serialize};

use super::{Latency, Machine};
use crate::files::FilesPlan;
use crate::load::local::LocalPlan;
use crate::load::{Limit, OperationStats, Outcome, PhaseKind, PhaseStats, RunPlan, Workload};
use crate::table::Table;
use crate::units::{format_count, format_nanos, format_size, mib_per_second, per_second};

/// Operations of one kind in one phase.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OperationReport {
    /// Successful operations.
    pub operations: u64,
    /// Size of their data in bytes.
    pub bytes: u64,
    /// Operations per second.
    pub iops: f64,
    /// Data throughput in MiB/s.
    pub mib_per_second: f64,
    /// Latency from submission to completion.
    pub latency: Latency,
}

impl OperationReport {
    fn new(stats: &OperationStats, elapsed: std::time::Duration) -> Option<Self> {
        (stats.operations > 0).then(|| Self {
            operations: stats.operations,
            bytes: stats.bytes,
            iops: per_second(stats.operations, elapsed),
            mib_per_second: mib_per_second(stats.bytes, elapsed),
            latency: Latency::from_histogram(&stats.latencies),
        })
    }
}

/// Work of the host's I/O queues over all phases; these costs do not depend on the load of the
/// machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCosts {
    /// Commands completed.
    pub completed: u64,
    /// Received data that the kernel or the RDMA device placed directly, in bytes.
    pub placed_bytes: u64,
    /// Received data that was copied again, in bytes.
    pub copied_bytes: u64,
    /// Receive system calls, or polls of a completion queue, that returned something.
    pub receives: u64,
    /// Receive system calls, or polls of a completion queue, that found nothing.
    pub empty_receives: u64,
    /// Send system calls, or posts to a send queue.
    pub sends: u64,
}

impl HostCosts {
    /// The costs from the counters of connections.
    #[must_use]
    pub fn new(counters: &ConnectionCounters) -> Self {
        Self {
            completed: counters.completed,
            placed_bytes: counters.placed_bytes,
            copied_bytes: counters.copied_bytes,
            receives: counters.receives,
            empty_receives: counters.empty_receives,
            sends: counters.sends,
        }
    }

    /// Share of the received data that was copied again, in percent.
    #[must_use]
    pub fn copied_percent(&self) -> f64 {
        let all = (self.placed_bytes + self.copied_bytes).max(1);
        self.copied_bytes as f64 * 100.0 / all as f64
    }

    /// System calls with data per command.
    #[must_use]
    pub fn calls_per_command(&self) -> f64 {
        (self.receives + self.sends) as f64 / self.completed.max(1) as f64
    }
}

/// The results of one phase.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseReport {
    /// `fill`, `main` or `read back`.
    pub name: String,
    /// Time from the first submission to the last completion.
    pub elapsed_seconds: f64,
    /// Reads, if any.
    pub reads: Option<OperationReport>,
    /// Writes, if any.
    pub writes: Option<OperationReport>,
    /// Requests that were due in time at the requested rate and could not be sent.
    #[serde(default)]
    pub unsent: u64,
    /// Blocks read with the expected content.
    pub blocks_right: u64,
    /// Blocks read whose content was unknown.
    pub blocks_unknown: u64,
}

impl PhaseReport {
    fn new(name: &str, stats: &PhaseStats) -> Self {
        Self {
            name: name.to_owned(),
            elapsed_seconds: stats.elapsed.as_secs_f64(),
            reads: OperationReport::new(&stats.reads, stats.elapsed),
            writes: OperationReport::new(&stats.writes, stats.elapsed),
            unsent: stats.unsent,
            blocks_right: stats.checked.right,
            blocks_unknown: stats.checked.unknown,
        }
    }
}

/// The transport of reports without this field.
fn tcp() -> String {
    "tcp".to_owned()
}

/// The transport name of a local device.
const LOCAL: &str = "local";
/// The transport name of a file of a server.
const NFS: &str = "nfs";

/// The results of one namespace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// The job of a workload file, if any.
    #[serde(default)]
    pub job: Option<String>,
    /// The machine of the measurement.
    pub machine: Machine,
    /// `tcp` or `rdma`, `local` for a local device, or `nfs` for a file of a server.
    #[serde(default = "tcp")]
    pub transport: String,
    /// The target's listener, the device, or the server with the directory of the file.
    pub address: String,
    /// The subsystem; empty for a local device or a file.
    pub nqn: String,
    /// The namespace.
    pub nsid: u32,
    /// Its size in bytes.
    pub namespace_bytes: u64,
    /// Its block size in bytes.
    pub block_bytes: u32,
    /// Size of the used region in bytes.
    pub region_bytes: u64,
    /// Request sizes in bytes.
    pub sizes_bytes: Vec<u32>,
    /// `random`, `sequential` or `zipf:` with its exponent.
    pub pattern: String,
    /// Share of reads in percent.
    pub read_percent: u8,
    /// Requests in flight on each queue.
    pub depth: u16,
    /// I/O queues.
    pub queues: u16,
    /// Threads that drove them.
    pub threads: u16,
    /// Requested rate in requests per second, if limited: latencies then count from when a request
    /// was due.
    #[serde(default)]
    pub rate: Option<f64>,
    /// The time limit of the main phase in seconds, if any.
    pub limit_seconds: Option<f64>,
    /// The operation limit of the main phase, if any.
    pub limit_operations: Option<u64>,
    /// The seed of the workload's random choices.
    pub seed: u64,
    /// Whether header digests were enabled.
    pub header_digest: bool,
    /// Whether data digests were enabled.
    pub data_digest: bool,
    /// Whether every block read was checked.
    pub verified: bool,
    /// The error that ended the run early, if any.
    pub trouble: Option<String>,
    /// Whether it was interrupted.
    #[serde(default)]
    pub interrupted: bool,
    /// The costs of the host.
    pub host: HostCosts,
    /// The phases, in order.
    pub phases: Vec<PhaseReport>,
}

impl RunReport {
    /// The report of a run.
    #[must_use]
    pub fn new(plan: &RunPlan, outcome: &Outcome) -> Self {
        let connect = &plan.connect;
        Self {
            transport: match connect.transport.kind() {
                TransportType::RDMA => "rdma".to_owned(),
                _ => tcp(),
            },
            nqn: connect.subsystem_nqn.clone(),
            header_digest: connect.header_digest,
            data_digest: connect.data_digest,
            ..Self::of(&plan.workload, connect.address.to_string(), outcome)
        }
    }

    /// The report of a run on a local device.
    #[must_use]
    pub fn local(plan: &LocalPlan, outcome: &Outcome) -> Self {
        Self {
            transport: LOCAL.to_owned(),
            ..Self::of(&plan.workload, plan.device.to_string(), outcome)
        }
    }

    /// The report of a run on a file of a server.
    #[must_use]
    pub fn files(plan: &FilesPlan, outcome: &Outcome) -> Self {
        Self {
            transport: NFS.to_owned(),
            ..Self::of(&plan.workload, plan.target.to_string(), outcome)
        }
    }

    /// The common part of all kinds of reports.
    fn of(workload: &Workload, address: String, outcome: &Outcome) -> Self {
        let (limit_seconds, limit_operations) = match workload.limit {
            Limit::Time(time) => (Some(time.as_secs_f64()), None),
            Limit::Operations(operations) => (None, Some(operations)),
        };
        let trouble = outcome
            .phases
            .iter()
            .find_map(|(_, stats)| stats.trouble.as_ref());
        Self {
            machine: Machine::here(),
            job: None,
            transport: tcp(),
            address,
            nqn: String::new(),
            nsid: outcome.namespace.nsid,
            namespace_bytes: outcome.namespace.bytes(),
            block_bytes: outcome.namespace.block_bytes,
            region_bytes: outcome.region_bytes,
            sizes_bytes: outcome.sizes_bytes.clone(),
            pattern: workload.pattern.to_string(),
            read_percent: workload.read_percent,
            depth: workload.depth,
            queues: workload.queues,
            threads: workload.threads,
            rate: workload.rate,
            limit_seconds,
            limit_operations,
            seed: workload.seed,
            header_digest: false,
            data_digest: false,
            verified: workload.verify,
            trouble: trouble.map(ToString::to_string),
            interrupted: outcome.interrupted,
            host: HostCosts::new(&outcome.counters),
            phases: outcome
                .phases
                .iter()
                .filter(|(phase, _)| phase.kind != PhaseKind::WarmUp)
                .map(|(phase, stats)| PhaseReport::new(phase.name, stats))
                .collect(),
        }
    }

    /// Number of blocks that were checked over all phases.
    #[must_use]
    pub fn blocks_right(&self) -> u64 {
        self.phases.iter().map(|phase| phase.blocks_right).sum()
    }

    fn write_heading(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self
            .sizes_bytes
            .iter()
            .map(|&size| format_size(u64::from(size)))
            .collect();
        let digests = match (self.header_digest, self.data_digest) {
            (false, false) => "",
            (true, false) => ", header digests",
            (false, true) => ", data digests",
            (true, true) => ", header and data digests",
        };
        let rate = self.rate.map_or_else(String::new, |rate| {
            format!(", at {} a second", format_count(rate as u64))
        });
        let plural = if self.queues == 1 { "" } else { "s" };
        if let Some(job) = &self.job {
            write!(f, "{job}: ")?;
        }
        if self.transport == LOCAL {
            write!(f, "{}", self.address)?;
        } else if self.transport == NFS {
            write!(f, "a file in {} over NFS", self.address)?;
        } else {
            let Self {
                nsid,
                nqn,
                address,
                transport,
                ..
            } = self;
            write!(f, "namespace {nsid} of {nqn} at {address} over {transport}")?;
        }
        let size = format_size(self.namespace_bytes);
        let block = format_size(u64::from(self.block_bytes));
        writeln!(f, ": {size}, blocks of {block}")?;
        writeln!(
            f,
            "  {} {} %, {} over {}, {} queue{plural} of depth {}{rate}{digests}, seed {}\n",
            self.pattern,
            match self.read_percent {
                100 => "reads 100".to_owned(),
                0 => "writes 100".to_owned(),
                reads => format!("reads {reads} / writes {}", 100 - reads.min(100)),
            },
            sizes.join(", "),
            format_size(self.region_bytes),
            self.queues,
            self.depth,
            self.seed
        )
    }
}

impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_heading(f)?;
        let mut table = Table::new(&[
            "phase", "IOPS", "MiB/s", "p50", "p90", "p99", "p99.9", "p99.99", "max",
        ]);
        for phase in &self.phases {
            let kinds = [("read", &phase.reads), ("write", &phase.writes)];
            for (kind, report) in kinds {
                let Some(report) = report else { continue };
                let latency = &report.latency;
                let name = match phase.name.as_str() {
                    "main" => format!("{} {kind}", self.pattern),
                    name => name.to_owned(),
                };
                let mut cells = vec![
                    name,
                    format_count(report.iops as u64),
                    format!("{:.0}", report.mib_per_second),
                ];
                let times = [
                    latency.p50_ns,
                    latency.p90_ns,
                    latency.p99_ns,
                    latency.p999_ns,
                    latency.p9999_ns,
                    latency.max_ns,
                ];
                cells.extend(times.map(format_nanos));
                table.row(cells);
            }
        }
        write!(f, "{table}")?;
        let unsent: u64 = self.phases.iter().map(|phase| phase.unsent).sum();
        if unsent > 0 {
            writeln!(
                f,
                "\n  {} requests were due and not sent: the target did not keep up with the rate",
                format_count(unsent)
            )?;
        }
        match &self.trouble {
            Some(trouble) => writeln!(f, "\n  FAILED: {trouble}"),
            None if self.interrupted => {
                writeln!(f, "\n  interrupted: the figures are of the time until then")
            }
            None if self.verified => writeln!(
                f,
                "\n  verified: {} blocks read, every one as it was written",
                format_count(self.blocks_right())
            ),
            None => Ok(()),
        }
    }
}

/// All runs of one command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunReports {
    /// One for each namespace.
    pub runs: Vec<RunReport>,
}
