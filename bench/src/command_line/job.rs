//! One load: its target or device, and its workload.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::load::local::{LocalDevice, LocalPlan, run_local};
use crate::load::{Limit, Pattern, RunPlan, Watch, Workload, run};
use crate::report::RunReport;
use crate::units::parse_size;
use clap::Args;
use nvme_host::{Controller, HostError};
use nvme_spec::log::SubsystemType;

use super::target::{TargetAccess, TargetArgs};
use super::{Failure, parse_region, parse_seconds, parse_seconds_or_none};

/// Default number of requests in flight on each queue.
const DEPTH: u16 = 32;

#[derive(Debug, Args)]
pub(super) struct JobArgs {
    #[command(flatten)]
    pub(super) target: TargetArgs,
    /// A device of this machine instead of a target: file:PATH, memory:SIZE or null:SIZE
    #[arg(
        long,
        value_name = "DEVICE",
        conflicts_with_all = [
            "address", "transport", "memory_windows", "host_nqn", "header_digest", "data_digest",
            "congestion_control", "nqn", "nsid", "all_namespaces",
        ]
    )]
    device: Option<LocalDevice>,
    /// The subsystem; by default the only one of the target
    #[arg(long)]
    nqn: Option<String>,
    /// The namespace; by default the first one
    #[arg(long, conflicts_with = "all_namespaces")]
    nsid: Option<u32>,
    /// Every namespace, one after the other
    #[arg(long)]
    all_namespaces: bool,
    #[command(flatten)]
    pub(super) load: WorkloadArgs,
}

/// The workload of a job.
#[derive(Debug, Args)]
pub(super) struct WorkloadArgs {
    /// Request size, or several, each as likely: 4k or 4k,16k,64k
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = parse_request_size)]
    block_size: Vec<u32>,
    /// Requests in flight on each queue; default 32
    #[arg(long)]
    pub(super) depth: Option<u16>,
    /// I/O queues, which are connections, each with its own part of the namespace or file
    #[arg(long, visible_alias = "connections", default_value_t = 1)]
    queues: u16,
    /// Threads that drive the queues
    #[arg(long, default_value_t = 1)]
    threads: u16,
    /// Cores to pin the threads to, in turn
    #[arg(long, value_name = "CORE,…", value_delimiter = ',')]
    cores: Vec<usize>,
    /// Reads and writes in percent: 70/30
    #[arg(long, value_name = "READ/WRITE", default_value = "70/30", value_parser = parse_mix)]
    mix: u8,
    /// Where requests go: random, sequential, or zipf:EXPONENT for places of which few are hot
    #[arg(long, default_value = "random", value_parser = parse_pattern)]
    pattern: Pattern,
    /// Requests per second over all queues: each is due at its time, and its latency counts from then
    #[arg(long, value_name = "IOPS", value_parser = parse_rate)]
    pub(super) rate: Option<f64>,
    /// Seconds of the main phase; default 10
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, conflicts_with = "ops")]
    time: Option<Duration>,
    /// Operations of the main phase, instead of a time
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    ops: Option<u64>,
    /// Seconds of the same load before anything is counted
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = parse_seconds_or_none)]
    warm_up: Duration,
    /// Fill the region, check every block that is read, and read it all back at the end
    #[arg(long)]
    verify: bool,
    /// How much of each namespace to use, from its start, or the size of the file; with --verify, and for
    /// files, 256 MiB at most unless told
    #[arg(long, value_name = "SIZE", value_parser = parse_region)]
    region: Option<u64>,
    /// Seed of the workload's random choices; by default the time of day, which the report contains
    #[arg(long)]
    seed: Option<u64>,
}

fn parse_request_size(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    u32::try_from(bytes).map_err(|_| format!("{text} is more than one request carries"))
}

fn parse_pattern(text: &str) -> Result<Pattern, String> {
    let unknown = || format!("'{text}' is not random, sequential or zipf:EXPONENT");
    match text.split_once(':') {
        None if text == "random" => Ok(Pattern::Random),
        None if text == "sequential" => Ok(Pattern::Sequential),
        Some(("zipf", exponent)) => {
            let exponent: f64 = exponent.parse().map_err(|_| unknown())?;
            if !exponent.is_finite() || exponent < 0.0 {
                return Err(unknown());
            }
            // Values out of range saturate; the check of the workload rejects them with an error.
            Ok(Pattern::Zipf((exponent * 100.0).round() as u16))
        }
        _ => Err(unknown()),
    }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let (number, factor) = match text.char_indices().next_back() {
        Some((end, 'k' | 'K')) => (&text[..end], 1e3),
        Some((end, 'm' | 'M')) => (&text[..end], 1e6),
        _ => (text, 1.0),
    };
    let rate: f64 = number.parse().map_err(|_| {
        format!("'{text}' is not a number of requests a second, such as 50000, 50k or 1.5M")
    })?;
    Ok(rate * factor)
}

fn parse_mix(text: &str) -> Result<u8, String> {
    let malformed = || format!("'{text}' is not READ/WRITE in percent, such as 70/30");
    let (read, write) = text.split_once('/').ok_or_else(malformed)?;
    let parse = |part: &str| part.trim().parse::<u8>().map_err(|_| malformed());
    let (read, write) = (parse(read)?, parse(write)?);
    if u32::from(read) + u32::from(write) == 100 {
        Ok(read)
    } else {
        Err(format!("{read} and {write} do not add up to 100"))
    }
}

impl WorkloadArgs {
    pub(super) fn workload(&self) -> Workload {
        let limit = match (self.ops, self.time) {
            (Some(operations), _) => Limit::Operations(operations),
            (None, time) => Limit::Time(time.unwrap_or(Duration::from_secs(10))),
        };
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Workload {
            sizes_bytes: self.block_size.clone(),
            depth: self.depth.unwrap_or(DEPTH),
            queues: self.queues,
            threads: self.threads,
            read_percent: self.mix,
            pattern: self.pattern,
            rate: self.rate,
            limit,
            warm_up: self.warm_up,
            verify: self.verify,
            region_bytes: self.region,
            seed: self.seed.unwrap_or(now.as_secs()),
        }
    }

    /// The workload and the cores of its threads.
    pub(super) fn checked(&self) -> Result<(Workload, Vec<usize>), Failure> {
        let (workload, cores) = (self.workload(), self.cores.clone());
        if cores.len() > usize::from(workload.threads) {
            let (cores, threads) = (cores.len(), workload.threads);
            return Err(
                format!("{cores} cores for {threads} of --threads: some would do nothing").into(),
            );
        }
        Ok((workload, cores))
    }
}

impl JobArgs {
    /// The named subsystem, or the only one.
    fn subsystem(&self, way: &TargetAccess) -> Result<String, Failure> {
        if let Some(nqn) = &self.nqn {
            return Ok(nqn.clone());
        }
        let mut names: Vec<String> = way
            .discover()?
            .iter()
            .filter(|entry| entry.subtype == SubsystemType::NVM)
            .map(|entry| entry.subnqn.to_string())
            .collect();
        names.sort();
        names.dedup();
        match &names[..] {
            [only] => Ok(only.clone()),
            [] => Err(format!("{} offers this host no subsystem", self.target.address).into()),
            several => {
                let list = several.join(", ");
                Err(format!(
                    "{} offers several subsystems, name one with --nqn: {list}",
                    self.target.address
                )
                .into())
            }
        }
    }

    fn namespaces(&self, nqn: &str, way: &TargetAccess) -> Result<Vec<u32>, Failure> {
        let mut controller = Controller::connect(way.to(nqn)).map_err(|error| {
            let hint = "what there is for this host, `bench discover` lists";
            match error {
                HostError::Command { .. } => {
                    format!("{nqn} at {}: {error}; {hint}", self.target.address)
                }
                error => error.to_string(),
            }
        })?;
        let mut nsids = controller.active_namespaces()?;
        controller.shut_down()?;
        if nsids.is_empty() {
            return Err(format!("{nqn} has no namespaces").into());
        }
        match self.nsid {
            Some(nsid) if !nsids.contains(&nsid) => {
                let has: Vec<String> = nsids.iter().map(ToString::to_string).collect();
                return Err(
                    format!("{nqn} has no namespace {nsid}: it has {}", has.join(", ")).into(),
                );
            }
            Some(nsid) => nsids = vec![nsid],
            None if !self.all_namespaces => nsids.truncate(1),
            None => {}
        }
        Ok(nsids)
    }
}

/// The plan of a job for the namespaces of its target.
pub(super) enum JobPlan {
    /// A run for each namespace.
    Target(Vec<RunPlan>),
    /// A run on a local device.
    Local(LocalPlan),
}

impl JobArgs {
    /// Makes the plan of the job.
    pub(super) fn plan(&self) -> Result<JobPlan, Failure> {
        let (workload, cores) = self.load.checked()?;
        if let Some(device) = self.device.clone() {
            return Ok(JobPlan::Local(LocalPlan {
                device,
                workload,
                cores,
            }));
        }
        let way = self.target.way()?;
        let nqn = self.subsystem(&way)?;
        let plans = self
            .namespaces(&nqn, &way)?
            .into_iter()
            .map(|nsid| RunPlan {
                connect: way.to(&nqn),
                nsid,
                workload: workload.clone(),
                cores: cores.clone(),
            });
        Ok(JobPlan::Target(plans.collect()))
    }
}

impl JobPlan {
    /// Changes the workload of every run.
    pub(super) fn change(&mut self, change: impl Fn(&mut Workload)) {
        match self {
            Self::Target(plans) => plans.iter_mut().for_each(|plan| change(&mut plan.workload)),
            Self::Local(plan) => change(&mut plan.workload),
        }
    }

    /// Performs all runs. `watch` creates the watch of the run with that name, and `done` receives
    /// each report, until a run fails or is interrupted.
    pub(super) fn run(
        &self,
        watch: &mut dyn FnMut(&str) -> Box<dyn Watch>,
        done: &mut dyn FnMut(RunReport),
    ) -> Result<(), Failure> {
        match self {
            Self::Local(plan) => {
                let outcome = run_local(plan, watch(&plan.device.to_string()).as_mut())?;
                done(RunReport::local(plan, &outcome));
            }
            Self::Target(plans) => {
                for plan in plans {
                    let label = format!("namespace {}", plan.nsid);
                    let outcome = run(plan, watch(&label).as_mut())?;
                    done(RunReport::new(plan, &outcome));
                    if outcome.interrupted {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use clap::Parser;

    use super::super::{Arguments, Command};
    use super::*;

    fn job_args(arguments: &[&str]) -> JobArgs {
        let all = ["bench", "run"].iter().chain(arguments);
        match Arguments::try_parse_from(all).expect("accepted").command {
            Command::Run(args) => args.job,
            _ => panic!("another command"),
        }
    }

    #[test]
    fn arguments_are_converted_to_a_workload() {
        let args = job_args(&[
            "--address",
            "127.0.0.1",
            "--block-size",
            "4k,64KiB",
            "--mix",
            "25/75",
            "--ops",
            "7",
            "--verify",
            "--region",
            "1M",
            "--seed",
            "9",
            "--warm-up",
            "0.5",
        ]);
        assert_eq!(
            args.target.address,
            SocketAddr::from(([127, 0, 0, 1], 4420))
        );
        let workload = args.load.workload();
        assert_eq!(workload.sizes_bytes, [4096, 65_536]);
        assert_eq!(
            (workload.read_percent, workload.limit),
            (25, Limit::Operations(7))
        );
        assert_eq!((workload.region_bytes, workload.seed), (Some(1 << 20), 9));
        assert_eq!(workload.warm_up, Duration::from_millis(500));
        let plain = job_args(&["--time", "2.5s"]).load.workload();
        assert_eq!(plain.limit, Limit::Time(Duration::from_millis(2500)));
        assert!(!plain.verify && plain.sizes_bytes.is_empty());
    }

    #[test]
    fn options_ignored_by_a_job_are_refused() {
        for (arguments, part) in [
            ("--device null:1M --transport rdma", "cannot be used with"),
            ("--device null:1M --header-digest", "cannot be used with"),
            ("--device null:1M --data-digest", "cannot be used with"),
            ("--device null:1M --host-nqn nqn.x", "cannot be used with"),
            ("--device null:1M --memory-windows", "cannot be used with"),
            (
                "--device null:1M --congestion-control reno",
                "cannot be used with",
            ),
            ("--device null:1M --cores 0,1", "2 cores for 1 of --threads"),
            (
                "--device null:1M --cores 0,1,1 --queues 2 --threads 2",
                "3 cores for 2",
            ),
            ("--transport rdma --data-digest", "need --transport tcp"),
            (
                "--transport rdma --congestion-control reno",
                "needs --transport tcp",
            ),
            ("--device null:1M --ops 0", "0 is not in 1.."),
            ("--device null:1M --pattern zipf:nan", "zipf:EXPONENT"),
            ("--device null:1M --pattern zipf:-1", "zipf:EXPONENT"),
            ("--device null:1M --rate lots", "50k or 1.5M"),
        ] {
            let all = ["bench", "run"]
                .into_iter()
                .chain(arguments.split_whitespace());
            let refused = match Arguments::try_parse_from(all).map(|it| it.command) {
                Err(error) => error.to_string(),
                Ok(Command::Run(args)) => match args.job.plan() {
                    Err(error) => error.to_string(),
                    Ok(_) => panic!("{arguments} is accepted"),
                },
                Ok(_) => panic!("another command"),
            };
            assert!(refused.contains(part), "{arguments}: {refused}");
        }
    }

    #[test]
    fn rates_accept_unit_suffixes() {
        for (text, rate) in [("7", 7.0), ("50k", 5e4), ("1.5M", 1.5e6), ("1e3", 1e3)] {
            assert_eq!(parse_rate(text), Ok(rate));
        }
        assert!(parse_rate("").is_err() && parse_rate("k").is_err() && parse_rate("é").is_err());
    }
}
