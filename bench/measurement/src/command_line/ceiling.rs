//! `measure ceiling`: the performance of a transport's byte pattern without the transport.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::ceiling::{
    CONGESTION_CONTROL, CeilingError, CeilingOptions, DataLocation, DataMemory, Exchange,
    measure_tcp,
};
use crate::report::{CeilingReport, CeilingRow, MemoryReport, ReportedLocation};
use crate::transfers::{PairOptions, PairReport};
use bench::report::Machine;
use bench::units::mib_per_second;
use clap::{Args, ValueEnum};

use super::{Failure, parse_region, parse_seconds, show};

/// Warm-up time over TCP and over RDMA.
const WARM_UP: Duration = Duration::from_millis(300);
const RDMA_WARM_UP: Duration = Duration::from_millis(500);

/// Default numbers of requests in flight: over TCP a full window and one at a time.
const DEPTHS: [usize; 2] = [128, 1];
const RDMA_DEPTH: usize = 32;

/// Default size of the memory in bytes.
const MEMORY_BYTES: u64 = 64 << 20;

/// Default cores of the responding and the requesting thread.
const CORES: (usize, usize) = (0, 1);

/// What a measurement of ceilings knows.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum TransportArg {
    Tcp,
    /// By bare verbs, between two threads of this machine
    Rdma,
}

#[derive(Debug, Args)]
pub(crate) struct CeilingArgs {
    /// The transport whose byte pattern is driven
    #[arg(value_enum)]
    transport: TransportArg,
    /// Counted seconds of each measurement
    #[arg(long, default_value = "3", value_name = "SECONDS", value_parser = parse_seconds)]
    time: Duration,
    /// Write instead of read
    #[arg(long)]
    write: bool,
    /// Bytes of data of a request: over TCP 1 MiB at most, over RDMA 128 KiB
    #[arg(long, default_value = "4KiB", value_name = "SIZE", value_parser = parse_region)]
    size: u64,
    /// Requests in flight: over TCP 1 to 128, default both of these; over RDMA 1 to 32, default 32
    #[arg(long, value_name = "N")]
    depth: Option<usize>,
    /// Over TCP, memory whose random blocks are sent, or received into, default 64 MiB; 0 for only
    /// one hot buffer, which is always measured
    #[arg(long, value_name = "SIZE", value_parser = parse_region)]
    memory: Option<u64>,
    /// Over TCP, core of the responding thread; default 0
    #[arg(long, value_name = "CORE")]
    target_core: Option<usize>,
    /// Over TCP, core of the requesting thread; default 1
    #[arg(long, value_name = "CORE")]
    host_core: Option<usize>,
    /// Over TCP, seal what both ends send in TLS records; only reads
    #[arg(long)]
    sealed: bool,
    /// Over RDMA, an address of an RDMA device of this machine
    #[arg(long, value_name = "IP", required_if_eq("transport", "rdma"))]
    address: Option<IpAddr>,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE", value_parser = super::parse_report_file)]
    json: Option<PathBuf>,
}

pub(super) fn execute(args: &CeilingArgs) -> Result<ExitCode, Failure> {
    let json = args.json.as_deref();
    match args.transport {
        TransportArg::Tcp => show(&over_tcp(args)?, json),
        TransportArg::Rdma => show(&over_rdma(args)?, json),
    }
}

/// The number of bytes as `usize`; the maximum exceeds every limit too.
fn saturating(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn over_tcp(args: &CeilingArgs) -> Result<CeilingReport, Failure> {
    if args.address.is_some() {
        let why = "the socket pair is on loopback";
        return Err(format!("--address is for rdma alone: {why}").into());
    }
    let exchange = Exchange {
        write: args.write,
        data_bytes: saturating(args.size),
    };
    let memory = match args.memory.unwrap_or(MEMORY_BYTES) {
        0 => None,
        bytes => Some(DataMemory::take(bytes)?),
    };
    let sources = memory.clone().map(DataLocation::Memory).into_iter();
    let sources: Vec<DataLocation> = sources.chain([DataLocation::HotBuffer]).collect();
    let mut rows = Vec::new();
    for window in args.depth.map_or(DEPTHS.to_vec(), |depth| vec![depth]) {
        for answers in &sources {
            rows.push(row_of_tcp(args, exchange, answers.clone(), window)?);
        }
    }
    let (request_bytes, response_bytes) = exchange.wire_bytes();
    Ok(CeilingReport {
        machine: Machine::here(),
        transport: "tcp".to_owned(),
        write: exchange.write,
        data_bytes: exchange.data_bytes,
        request_bytes,
        response_bytes,
        memory: memory.map(|memory| memory_of(exchange, &memory)),
        congestion_control: CONGESTION_CONTROL.to_owned(),
        rows,
    })
}

/// The memory of the pair's data: received data uses the same amount of ordinary pages.
fn memory_of(exchange: Exchange, memory: &DataMemory) -> MemoryReport {
    let report = MemoryReport::new(memory);
    if !exchange.write {
        return report;
    }
    MemoryReport {
        page_bytes: rustix::param::page_size() as u64,
        ..report
    }
}

fn row_of_tcp(
    args: &CeilingArgs,
    exchange: Exchange,
    answers: DataLocation,
    window: usize,
) -> Result<CeilingRow, CeilingError> {
    let source = match &answers {
        DataLocation::Memory(_) => ReportedLocation::Memory,
        DataLocation::HotBuffer => ReportedLocation::OneHotBuffer,
    };
    let measured = measure_tcp(&CeilingOptions {
        exchange,
        answers,
        sealed: args.sealed,
        connections: 1,
        window,
        server_core: Some(args.target_core.unwrap_or(CORES.0)),
        client_core: Some(args.host_core.unwrap_or(CORES.1)),
        responder_percent: None,
        warm_up: WARM_UP,
        duration: args.time,
    })?;
    let bytes = measured.requests * exchange.data_bytes as u64;
    Ok(CeilingRow {
        answers: source,
        window,
        requests_per_second: measured.requests_per_second(),
        mib_per_second: mib_per_second(bytes, measured.elapsed),
        latency: measured.latency,
    })
}

fn over_rdma(args: &CeilingArgs) -> Result<PairReport, Failure> {
    let of_tcp = [
        ("--memory", args.memory.is_some()),
        ("--sealed", args.sealed),
        ("--target-core", args.target_core.is_some()),
        ("--host-core", args.host_core.is_some()),
    ];
    if let Some((name, _)) = of_tcp.into_iter().find(|(_, given)| *given) {
        let why =
            "bare verbs have memory for their slots, no records, and threads that are not pinned";
        return Err(format!("{name} is for tcp alone: {why}").into());
    }
    let address = args.address.ok_or("name the RDMA device by --address")?;
    let options = PairOptions {
        write: args.write,
        bytes: saturating(args.size),
        depth: args.depth.unwrap_or(RDMA_DEPTH),
        warm_up: RDMA_WARM_UP,
        duration: args.time,
    };
    on_verbs(SocketAddr::new(address, 0), &options)
}

#[cfg(feature = "verbs")]
fn on_verbs(address: SocketAddr, options: &PairOptions) -> Result<PairReport, Failure> {
    options.check()?;
    let verbs = bench::arguments::open_verbs()?;
    Ok(crate::transfers::measure_pair(
        &verbs, &verbs, address, options,
    )?)
}

#[cfg(not(feature = "verbs"))]
fn on_verbs(_: SocketAddr, options: &PairOptions) -> Result<PairReport, Failure> {
    options.check()?;
    Err(bench::arguments::WITHOUT_VERBS.into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Arguments, Command};
    use super::*;

    fn ceiling_args(arguments: &str) -> CeilingArgs {
        let all = ["measure", "ceiling"].into_iter();
        let all = all.chain(arguments.split_whitespace());
        match Arguments::try_parse_from(all).expect("accepted").command {
            Command::Ceiling(args) => args,
            _ => panic!("another command"),
        }
    }

    #[test]
    fn tcp_ceiling_runs_the_requested_exchange() {
        let one_core = "--target-core 0 --host-core 0 --time 0.05";
        let args = ceiling_args(&format!(
            "tcp --write --size 128k --depth 8 --memory 2M {one_core}"
        ));
        let report = over_tcp(&args).expect("loopback is there");
        assert!(report.write);
        assert_eq!(report.data_bytes, 128 << 10);
        assert_eq!(report.request_bytes, 72 + 24 + (128 << 10));
        assert_eq!(report.response_bytes, 24 + 24);
        let rows: Vec<_> = report
            .rows
            .iter()
            .map(|it| (it.answers, it.window))
            .collect();
        assert_eq!(
            rows,
            [
                (ReportedLocation::Memory, 8),
                (ReportedLocation::OneHotBuffer, 8)
            ]
        );
        for row in &report.rows {
            let bytes = row.mib_per_second * f64::from(1 << 20);
            assert!((bytes - row.requests_per_second * f64::from(128 << 10)).abs() <= 1.0);
        }
        let plain = over_tcp(&ceiling_args(&format!("tcp --memory 0 {one_core}")));
        let plain = plain.expect("loopback is there");
        let windows: Vec<_> = plain.rows.iter().map(|row| row.window).collect();
        assert_eq!(
            (plain.write, plain.data_bytes, windows),
            (false, 4096, vec![128, 1])
        );
    }

    #[test]
    fn invalid_parameters_are_rejected_with_the_valid_range() {
        for (arguments, part) in [
            ("tcp --depth 0", "choose 1 to 128"),
            ("tcp --depth 129", "choose 1 to 128"),
            ("tcp --size 0", "choose 1 byte to 1 MiB"),
            ("tcp --size 2M --write", "choose 1 byte to 1 MiB"),
            ("tcp --size 128k --memory 64k --depth 8", "128 KiB at least"),
            (
                "tcp --size 1M --memory 1M --depth 8 --write",
                "4 MiB at least",
            ),
            ("tcp --address 127.0.0.1", "--address is for rdma alone"),
            (
                "rdma --address 127.0.0.1 --memory 1M",
                "--memory is for tcp alone",
            ),
            ("tcp --sealed --write", "only reads are measured"),
            (
                "rdma --address 127.0.0.1 --sealed",
                "--sealed is for tcp alone",
            ),
            (
                "rdma --address 127.0.0.1 --host-core 1",
                "--host-core is for tcp alone",
            ),
            (
                "rdma --address 127.0.0.1 --target-core 1",
                "--target-core is for tcp alone",
            ),
            ("rdma --address 127.0.0.1 --depth 33", "choose 1 to 32"),
            (
                "rdma --address 127.0.0.1 --size 1M",
                "choose 1 byte to 128 KiB",
            ),
            (
                "rdma --address 127.0.0.1 --size 0",
                "choose 1 byte to 128 KiB",
            ),
        ] {
            let error = execute(&ceiling_args(arguments)).expect_err(arguments);
            assert!(error.to_string().contains(part), "{arguments}: {error}");
        }
    }
}
