//! `bench run`: load on a target's namespaces.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bench::load::run::Unwatched;
use bench::load::{Limit, Pattern, RunPlan, Watch, Workload, run};
use bench::progress;
use bench::report::{RunReport, RunReports, save_json};
use bench::units::parse_size;
use clap::{Args, ValueEnum};
use nvme_host::Controller;
use nvme_spec::log::SubsystemType;

use super::target::{TargetArgs, Way};
use super::{Failure, parse_region, parse_seconds, parse_seconds_or_none};

pub(super) const EXAMPLES: &str = "\
Examples:
  # Five seconds of checked reads and writes on every namespace of the one subsystem there is.
  # What the namespaces held is lost.
  bench run --all-namespaces --verify --progress --time 5

  # How fast are random 4 KiB reads from namespace 1?
  bench run --nsid 1 --block-size 4k --depth 127 --mix 100/0

  # The same over RDMA, by a bench that was built with the feature verbs.
  bench run --transport rdma --address 192.0.2.10 --block-size 4k --depth 127 --mix 100/0

  # A mix of sizes over four queues, two threads, with both digests.
  bench run --block-size 4k,16k,128k --queues 4 --threads 2 --header-digest --data-digest";

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(super) target: TargetArgs,
    /// The subsystem; where the target offers just one, that one
    #[arg(long)]
    nqn: Option<String>,
    /// The namespace; else the first
    #[arg(long, conflicts_with = "all_namespaces")]
    nsid: Option<u32>,
    /// Every namespace, one after the other
    #[arg(long)]
    all_namespaces: bool,
    /// Request size, or several, each as likely: 4k or 4k,16k,64k
    #[arg(long, value_name = "SIZE,…", value_delimiter = ',', value_parser = parse_request_size)]
    block_size: Vec<u32>,
    /// Requests in flight on each queue
    #[arg(long, default_value_t = 32)]
    depth: u16,
    /// I/O queues, each with its own part of the namespace
    #[arg(long, default_value_t = 1)]
    queues: u16,
    /// Threads that drive the queues
    #[arg(long, default_value_t = 1)]
    threads: u16,
    /// Cores to pin the threads to
    #[arg(long, value_name = "CORE,…", value_delimiter = ',')]
    cores: Vec<usize>,
    /// Reads and writes in percent: 70/30
    #[arg(long, value_name = "READ/WRITE", default_value = "70/30", value_parser = parse_mix)]
    mix: u8,
    /// Where requests go
    #[arg(long, value_enum, default_value = "random")]
    pattern: PatternArg,
    /// Seconds of the main phase
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, conflicts_with = "ops")]
    time: Option<Duration>,
    /// Operations of the main phase, instead of a time
    #[arg(long, value_name = "COUNT")]
    ops: Option<u64>,
    /// Seconds of the same load before anything is counted
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = parse_seconds_or_none)]
    warm_up: Duration,
    /// Fill the region, check every block that is read, and read it all back at the end
    #[arg(long)]
    verify: bool,
    /// How much of each namespace to use, from its start; with --verify at most 256 MiB unless told
    #[arg(long, value_name = "SIZE", value_parser = parse_region)]
    region: Option<u64>,
    /// What the workload's choices follow from; else the time of day, which the report names
    #[arg(long)]
    seed: Option<u64>,
    /// Show how it goes: a bar on a terminal, else lines
    #[arg(long)]
    progress: bool,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PatternArg {
    Random,
    Sequential,
}

fn parse_request_size(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    u32::try_from(bytes).map_err(|_| format!("{text} is more than one request carries"))
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

impl RunArgs {
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
            depth: self.depth,
            queues: self.queues,
            threads: self.threads,
            read_percent: self.mix,
            pattern: match self.pattern {
                PatternArg::Random => Pattern::Random,
                PatternArg::Sequential => Pattern::Sequential,
            },
            limit,
            warm_up: self.warm_up,
            verify: self.verify,
            region_bytes: self.region,
            seed: self.seed.unwrap_or(now.as_secs()),
        }
    }

    /// The subsystem that was named, or the only one there is.
    fn subsystem(&self, way: &Way) -> Result<String, Failure> {
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

    fn namespaces(&self, nqn: &str, way: &Way) -> Result<Vec<u32>, Failure> {
        if let Some(nsid) = self.nsid {
            return Ok(vec![nsid]);
        }
        let mut controller = Controller::connect(way.to(nqn))?;
        let mut nsids = controller.active_namespaces()?;
        controller.shut_down()?;
        if nsids.is_empty() {
            return Err(format!("{nqn} has no namespaces").into());
        }
        if !self.all_namespaces {
            nsids.truncate(1);
        }
        Ok(nsids)
    }
}

pub(super) fn execute(args: &RunArgs) -> Result<ExitCode, Failure> {
    let way = args.target.way()?;
    let nqn = args.subsystem(&way)?;
    let nsids = args.namespaces(&nqn, &way)?;
    let mut runs = Vec::with_capacity(nsids.len());
    for nsid in nsids {
        let plan = RunPlan {
            connect: way.to(&nqn),
            nsid,
            workload: args.workload(),
            cores: args.cores.clone(),
        };
        let mut watch: Box<dyn Watch> = if args.progress {
            progress::for_standard_error(&format!("namespace {nsid}"))
        } else {
            Box::new(Unwatched)
        };
        let report = RunReport::new(&plan, &run(&plan, watch.as_mut())?);
        println!("{report}");
        runs.push(report);
    }
    let failed = runs.iter().any(|report| report.trouble.is_some());
    if let Some(path) = &args.json {
        save_json(&RunReports { runs }, path)?;
    }
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use clap::Parser;

    use super::super::{Arguments, Command};
    use super::*;

    fn run_args(arguments: &[&str]) -> RunArgs {
        let all = ["bench", "run"].iter().chain(arguments);
        match Arguments::try_parse_from(all).expect("accepted").command {
            Command::Run(args) => args,
            _ => panic!("another command"),
        }
    }

    #[test]
    fn arguments_become_a_workload() {
        let args = run_args(&[
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
        let workload = args.workload();
        assert_eq!(workload.sizes_bytes, [4096, 65_536]);
        assert_eq!(
            (workload.read_percent, workload.limit),
            (25, Limit::Operations(7))
        );
        assert_eq!((workload.region_bytes, workload.seed), (Some(1 << 20), 9));
        assert_eq!(workload.warm_up, Duration::from_millis(500));
        let plain = run_args(&["--time", "2.5s"]).workload();
        assert_eq!(plain.limit, Limit::Time(Duration::from_millis(2500)));
        assert!(!plain.verify && plain.sizes_bytes.is_empty());
    }
}
