//! `bench files`: load on a server of files.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use files_spec::types::Stable;

use super::Failure;
use super::job::WorkloadArgs;
use super::run_watcher::{EXIT_INTERRUPTED, RunWatcher};
use super::target::resolve;
use crate::arguments::parse_report_file;
use crate::files::metadata::{MetadataPlan, measure};
use crate::files::{FilesPlan, FilesTarget, run_files};
use crate::report::{RunReport, RunReports, save_json};

pub(super) const EXAMPLES: &str = "\
Examples:
  # Five seconds of checked reads and writes of a file in the share `data`.
  bench files data --share data --verify --time 5

  # How fast are random 4 KiB reads over two connections?
  bench files data --share data --block-size 4k --depth 64 --connections 2 --mix 100/0

  # How many files and directories does the server create, look up and remove in a second?
  bench files metadata --share data --connections 2 --depth 32 --items 20000";

/// The port of an address without one.
const PORT: u16 = 2049;

#[derive(Debug, Args)]
pub(crate) struct FilesArgs {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Debug, Subcommand)]
enum Kind {
    /// Read and write a new file, and optionally verify its data
    Data(DataArgs),
    /// Create, look up and remove files and directories
    Metadata(MetadataArgs),
}

#[derive(Debug, Args)]
struct ServerArgs {
    /// The server, HOST or HOST:PORT
    #[arg(long, default_value = "127.0.0.1:2049", value_parser = parse_address)]
    address: SocketAddr,
    /// The share, or the path of a directory from the server's root; by default the root itself
    #[arg(long, value_name = "PATH", default_value = "")]
    share: String,
    /// The minor version of NFSv4
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=2))]
    minor_version: u32,
    /// The user of all requests, who is also the group
    #[arg(long, default_value_t = rustix::process::getuid().as_raw())]
    uid: u32,
}

#[derive(Debug, Args)]
struct DataArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    load: WorkloadArgs,
    /// Let the server answer a write when its data is stable
    #[arg(long)]
    sync: bool,
    /// Show progress: a bar on a terminal, otherwise lines
    #[arg(long)]
    progress: bool,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE", value_parser = parse_report_file)]
    json: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct MetadataArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Connections, each with a directory of its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// Threads that drive them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=128))]
    threads: u16,
    /// Requests in flight on each connection
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=512))]
    depth: u16,
    /// Files and directories of each connection
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    items: u32,
    /// Also write the report as JSON
    #[arg(long, value_name = "FILE", value_parser = parse_report_file)]
    json: Option<PathBuf>,
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    resolve(text, PORT)
}

impl ServerArgs {
    fn target(&self) -> FilesTarget {
        FilesTarget {
            address: self.address,
            path: self.share.clone(),
            minor_version: self.minor_version,
            uid: self.uid,
        }
    }
}

pub(super) fn execute(args: &FilesArgs) -> Result<ExitCode, Failure> {
    match &args.kind {
        Kind::Data(args) => execute_data(args),
        Kind::Metadata(args) => execute_metadata(args),
    }
}

fn execute_data(args: &DataArgs) -> Result<ExitCode, Failure> {
    let (workload, cores) = args.load.checked()?;
    let plan = FilesPlan {
        target: args.server.target(),
        workload,
        cores,
        stable: match args.sync {
            true => Stable::FILE_SYNC,
            false => Stable::UNSTABLE,
        },
    };
    let watcher = RunWatcher::begin(args.progress)?;
    let outcome = run_files(&plan, watcher.for_single_run("file").as_mut())?;
    let report = RunReport::files(&plan, &outcome);
    println!("{report}");
    let has_failed = report.trouble.is_some();
    if let Some(path) = &args.json {
        let runs = vec![report];
        save_json(&RunReports { runs }, path)?;
    }
    Ok(exit_code(watcher.interrupted(), has_failed))
}

fn execute_metadata(args: &MetadataArgs) -> Result<ExitCode, Failure> {
    if args.threads > args.connections {
        let (threads, connections) = (args.threads, args.connections);
        return Err(format!(
            "{threads} threads need as many connections: give at least --connections {threads}, not {connections}"
        )
        .into());
    }
    let plan = MetadataPlan {
        target: args.server.target(),
        connections: args.connections,
        threads: args.threads,
        depth: args.depth,
        items: args.items,
    };
    let watcher = RunWatcher::begin(false)?;
    let report = measure(&plan, &|| watcher.interrupted())?;
    println!("{report}");
    if let Some(path) = &args.json {
        save_json(&report, path)?;
    }
    Ok(exit_code(report.interrupted, report.trouble.is_some()))
}

fn exit_code(is_interrupted: bool, has_failed: bool) -> ExitCode {
    match (is_interrupted, has_failed) {
        (true, _) => ExitCode::from(EXIT_INTERRUPTED),
        (_, true) => ExitCode::FAILURE,
        (_, false) => ExitCode::SUCCESS,
    }
}
