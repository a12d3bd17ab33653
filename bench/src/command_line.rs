//! The commands and their options, and what they print.

use std::error::Error;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bench::ceiling::{
    AnswerMemory, Answers, CONGESTION_CONTROL, CeilingError, CeilingOptions, REQUEST_BYTES,
    RESPONSE_BYTES, measure_tcp,
};
use bench::compare::{CompareOptions, compare_tcp, windlass_beside_this_binary};
use bench::load::run::Unwatched;
use bench::load::{Limit, Pattern, RunPlan, Watch, Workload, run};
use bench::progress;
use bench::report::{
    AnswerSource, CeilingReport, CeilingRow, Machine, MemoryReport, RunReport, RunReports,
    save_json,
};
use bench::table::Table;
use bench::units::parse_size;
use clap::{Args, Parser, Subcommand, ValueEnum};
use nvme_host::{
    ConnectOptions, Controller, HostIdentity, KeyUse, RdmaOptions, Transport, discover,
};
use nvme_spec::log::{DiscoveryEntry, SubsystemType, TransportType};

mod cost;
mod drive;
mod transfers;

type Failure = Box<dyn Error>;

/// The port of an address that names none (TCP 1.1 §3.1).
const PORT: u16 = nvme_spec::tcp::IO_PORT;

/// Measures and verifies NVMe over Fabrics targets, and what stands behind ours.
#[derive(Debug, Parser)]
#[command(name = "bench", version, about, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Put load on a target, and verify it where told
    #[command(after_help = RUN_EXAMPLES)]
    Run(RunArgs),
    /// What a bare socket pair does with the same bytes in the same pattern
    Ceiling(CeilingArgs),
    /// Our target beside the ceilings, in one run on the same two cores
    Compare(CompareArgs),
    /// List the subsystems that a target offers
    Discover(DiscoverArgs),
    /// What one request costs us, counted exactly: instructions by stage, system calls, allocations
    Cost(cost::CostArgs),
    /// How data is best moved by RDMA: by WRITE, by READ, within messages; and what registering
    /// costs
    Transfers(transfers::TransfersArgs),
    /// Random reads from a real drive by our own driver
    Drive(drive::DriveArgs),
}

const RUN_EXAMPLES: &str = "\
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
struct TargetArgs {
    /// The target's listener, HOST or HOST:PORT
    #[arg(long, default_value = "127.0.0.1:4420", value_parser = parse_address)]
    address: SocketAddr,
    /// What carries it
    #[arg(long, value_enum, default_value = "tcp")]
    transport: CarrierArg,
    /// Over RDMA, open a memory window for each request and let the target close it, instead of all
    /// memory for all of the time
    #[arg(long)]
    memory_windows: bool,
    /// Host NQN to connect with, where the target has a list of hosts; a random one otherwise
    #[arg(long, value_name = "NQN")]
    host_nqn: Option<String>,
    /// Protect PDU headers by CRC32C (TCP)
    #[arg(long)]
    header_digest: bool,
    /// Protect data by CRC32C (TCP)
    #[arg(long)]
    data_digest: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    target: TargetArgs,
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

/// What a measurement of ceilings knows.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum TransportArg {
    Tcp,
}

/// What a host connects by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CarrierArg {
    Tcp,
    Rdma,
}

#[derive(Debug, Args)]
pub(crate) struct CeilingArgs {
    /// The transport whose byte pattern is driven
    #[arg(value_enum)]
    transport: TransportArg,
    /// Counted seconds for each window
    #[arg(long, default_value = "3", value_name = "SECONDS", value_parser = parse_seconds)]
    time: Duration,
    /// Memory whose random blocks are sent; 0 for no more than one hot buffer, which is measured
    /// always
    #[arg(long, default_value = "64MiB", value_name = "SIZE", value_parser = parse_region)]
    memory: u64,
    /// Core of the answering thread
    #[arg(long, default_value_t = 0)]
    target_core: usize,
    /// Core of the asking thread
    #[arg(long, default_value_t = 1)]
    host_core: usize,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// The transport
    #[arg(value_enum)]
    transport: TransportArg,
    /// Rounds, of which medians are taken
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Counted seconds of each measurement in a round
    #[arg(long, default_value = "1", value_name = "SECONDS", value_parser = parse_seconds)]
    time: Duration,
    /// Core of the target and of the pair's answering side
    #[arg(long, default_value_t = 0)]
    target_core: usize,
    /// Core of the host and of the pair's asking side
    #[arg(long, default_value_t = 1)]
    host_core: usize,
    /// Size of the RAM namespace, and of the memory that the bare pair sends from
    #[arg(long, default_value = "64MiB", value_name = "SIZE", value_parser = parse_region)]
    namespace_size: u64,
    /// The appliance's binary; else the one beside this
    #[arg(long, value_name = "FILE")]
    windlass: Option<PathBuf>,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DiscoverArgs {
    #[command(flatten)]
    target: TargetArgs,
}

/// Runs `command` to its end.
pub(crate) fn execute(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Run(args) => execute_run(&args),
        Command::Ceiling(args) => execute_ceiling(&args),
        Command::Compare(args) => execute_compare(&args),
        Command::Discover(args) => execute_discover(&args),
        Command::Cost(args) => cost::execute(&args),
        Command::Transfers(args) => transfers::execute(&args),
        Command::Drive(args) => drive::execute(&args),
    }
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let mut candidates = text
        .to_socket_addrs()
        .or_else(|_| (text, PORT).to_socket_addrs())
        .map_err(|error| format!("no such address: {error}"))?;
    candidates
        .next()
        .ok_or_else(|| "the name has no address".to_owned())
}

fn parse_request_size(text: &str) -> Result<u32, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    u32::try_from(bytes).map_err(|_| format!("{text} is more than one request carries"))
}

fn parse_region(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
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

fn parse_seconds(text: &str) -> Result<Duration, String> {
    match parse_seconds_or_none(text)? {
        Duration::ZERO => Err("give more than 0 seconds".to_owned()),
        time => Ok(time),
    }
}

fn parse_seconds_or_none(text: &str) -> Result<Duration, String> {
    let malformed = || format!("'{text}' is not a number of seconds");
    let seconds: f64 = text
        .trim_end_matches('s')
        .trim()
        .parse()
        .map_err(|_| malformed())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| malformed())
}

/// How to reach a target: one identity and one transport for all connections of a command.
#[derive(Debug)]
struct Way {
    options: ConnectOptions,
}

impl Way {
    /// How to connect to `nqn`.
    fn to(&self, nqn: &str) -> ConnectOptions {
        ConnectOptions {
            subsystem_nqn: nqn.to_owned(),
            ..self.options.clone()
        }
    }

    fn discover(&self) -> Result<Vec<DiscoveryEntry>, Failure> {
        Ok(discover(self.options.clone())?)
    }
}

impl TargetArgs {
    fn way(&self) -> Result<Way, Failure> {
        let nqn = nvme_spec::nqn::DISCOVERY_NQN;
        Ok(Way {
            options: ConnectOptions {
                transport: self.transport()?,
                header_digest: self.header_digest,
                data_digest: self.data_digest,
                ..ConnectOptions::new(self.address, nqn, self.identity())
            },
        })
    }

    fn transport(&self) -> Result<Transport, Failure> {
        let keys = if self.memory_windows {
            KeyUse::Windows
        } else {
            KeyUse::Arena
        };
        match self.transport {
            CarrierArg::Tcp if self.memory_windows => {
                Err("--memory-windows needs --transport rdma".into())
            }
            CarrierArg::Tcp => Ok(Transport::tcp()),
            CarrierArg::Rdma => over_verbs(RdmaOptions {
                keys,
                ..RdmaOptions::default()
            }),
        }
    }

    fn identity(&self) -> HostIdentity {
        let random = HostIdentity::random();
        match &self.host_nqn {
            Some(nqn) => HostIdentity {
                nqn: nqn.clone(),
                id: random.id,
            },
            None => random,
        }
    }
}

#[cfg(feature = "verbs")]
fn over_verbs(options: RdmaOptions) -> Result<Transport, Failure> {
    Ok(Transport::rdma(open_verbs()?, options)?)
}

#[cfg(feature = "verbs")]
fn open_verbs() -> Result<rdma::Verbs, Failure> {
    rdma::Verbs::open().map_err(|error| {
        let remedy = error.remedy();
        format!("{error}: {remedy}").into()
    })
}

#[cfg(not(feature = "verbs"))]
const WITHOUT_VERBS: &str =
    "no RDMA here: this program was built without it (cargo build -p bench --features verbs)";

#[cfg(not(feature = "verbs"))]
fn over_verbs(_: RdmaOptions) -> Result<Transport, Failure> {
    Err(WITHOUT_VERBS.into())
}

impl RunArgs {
    fn workload(&self) -> Workload {
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

fn execute_run(args: &RunArgs) -> Result<ExitCode, Failure> {
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

fn execute_ceiling(args: &CeilingArgs) -> Result<ExitCode, Failure> {
    let TransportArg::Tcp = args.transport;
    let memory = match args.memory {
        0 => None,
        bytes => Some(AnswerMemory::take(bytes)?),
    };
    let sources = memory.clone().map(Answers::Memory).into_iter();
    let sources: Vec<Answers> = sources.chain([Answers::HotBuffer]).collect();
    let mut rows = Vec::new();
    for window in [128, 1] {
        for answers in &sources {
            rows.push(ceiling_row(args, answers.clone(), window)?);
        }
    }
    let report = CeilingReport {
        machine: Machine::here(),
        transport: "tcp".to_owned(),
        request_bytes: REQUEST_BYTES,
        response_bytes: RESPONSE_BYTES,
        memory: memory.as_ref().map(MemoryReport::new),
        congestion_control: CONGESTION_CONTROL.to_owned(),
        rows,
    };
    print!("{report}");
    if let Some(path) = &args.json {
        save_json(&report, path)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn ceiling_row(
    args: &CeilingArgs,
    answers: Answers,
    window: usize,
) -> Result<CeilingRow, CeilingError> {
    let source = match &answers {
        Answers::Memory(_) => AnswerSource::Memory,
        Answers::HotBuffer => AnswerSource::OneHotBuffer,
    };
    let measured = measure_tcp(&CeilingOptions {
        answers,
        window,
        server_core: Some(args.target_core),
        client_core: Some(args.host_core),
        warm_up: Duration::from_millis(300),
        duration: args.time,
    })?;
    let rate = measured.requests_per_second();
    let mib_per_second = rate * 4096.0 / f64::from(1 << 20);
    let latency = measured.latency;
    Ok(CeilingRow {
        answers: source,
        window,
        requests_per_second: rate,
        mib_per_second,
        latency,
    })
}

fn execute_compare(args: &CompareArgs) -> Result<ExitCode, Failure> {
    let TransportArg::Tcp = args.transport;
    if args.rounds == 0 {
        return Err("give at least one round".into());
    }
    let options = CompareOptions {
        windlass: args
            .windlass
            .clone()
            .unwrap_or_else(windlass_beside_this_binary),
        target_core: args.target_core,
        host_core: args.host_core,
        rounds: args.rounds,
        duration: args.time,
        warm_up: Duration::from_millis(300),
        namespace_bytes: args.namespace_size,
        starts: 5,
    };
    let report = compare_tcp(&options, |step| eprintln!("  {step}"))?;
    print!("{report}");
    if let Some(path) = &args.json {
        save_json(&report, path)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn execute_discover(args: &DiscoverArgs) -> Result<ExitCode, Failure> {
    let entries = args.target.way()?.discover()?;
    let mut table = Table::new(&["subsystem", "kind", "transport", "address", "port"]);
    for entry in &entries {
        let transport = match entry.trtype {
            TransportType::TCP => "tcp".to_owned(),
            TransportType::RDMA => "rdma".to_owned(),
            other => other.to_string(),
        };
        table.row([
            entry.subnqn.to_string(),
            entry.subtype.to_string(),
            transport,
            entry.traddr.to_string(),
            entry.trsvcid.to_string(),
        ]);
    }
    print!("{table}");
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn refused(arguments: &[&str]) -> String {
        let all = ["bench"].iter().chain(arguments);
        Arguments::try_parse_from(all)
            .expect_err("refused")
            .to_string()
    }

    fn run_args(arguments: &[&str]) -> RunArgs {
        let all = ["bench", "run"].iter().chain(arguments);
        match Arguments::try_parse_from(all).expect("accepted").command {
            Command::Run(args) => args,
            _ => panic!("another command"),
        }
    }

    #[test]
    fn the_commands_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn bad_arguments_are_named() {
        for (arguments, part) in [
            (
                &["run", "--mix", "70/40"][..],
                "70 and 40 do not add up to 100",
            ),
            (&["run", "--mix", "70"], "not READ/WRITE in percent"),
            (&["run", "--mix", "300/-200"], "not READ/WRITE in percent"),
            (&["run", "--block-size", "4x"], "'4x' is not a size"),
            (
                &["run", "--block-size", "1T"],
                "more than one request carries",
            ),
            (&["run", "--time", "0"], "more than 0 seconds"),
            (&["run", "--time", "-1"], "'-1'"),
            (&["run", "--time", "NaN"], "not a number of seconds"),
            (&["run", "--time", "5", "--ops", "5"], "cannot be used with"),
            (
                &["run", "--nsid", "1", "--all-namespaces"],
                "cannot be used with",
            ),
            (&["run", "--pattern", "zigzag"], "random, sequential"),
            (&["run", "--address", "no such host"], "no such address"),
            (&["ceiling", "carrier-pigeon"], "tcp"),
            (&["ceiling", "tcp", "--memory", "lots"], "is not a size"),
            (&["compare", "tcp", "--namespace-size", ""], "is not a size"),
        ] {
            let text = refused(arguments);
            assert!(text.contains(part), "{arguments:?}: {text}");
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
