//! `bench ceiling rdma`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bench::report::save_json;
use bench::transfers::{PairOptions, PairReport};

use super::Failure;

/// Time before anything counts.
const WARM_UP: Duration = Duration::from_millis(500);

/// What bare verbs are to do, and where.
#[derive(Debug)]
pub(super) struct BareVerbs {
    /// An address of an RDMA device of this machine.
    pub(super) address: IpAddr,
    /// Whether the data goes to the server.
    pub(super) write: bool,
    /// Bytes of data.
    pub(super) bytes: usize,
    /// Requests in flight.
    pub(super) depth: usize,
    /// Time that counts.
    pub(super) time: Duration,
    /// Where the report goes as JSON.
    pub(super) json: Option<PathBuf>,
}

pub(super) fn execute(wanted: &BareVerbs) -> Result<ExitCode, Failure> {
    let options = PairOptions {
        write: wanted.write,
        bytes: wanted.bytes,
        depth: wanted.depth,
        warm_up: WARM_UP,
        duration: wanted.time,
    };
    let report = on_verbs(SocketAddr::new(wanted.address, 0), &options)?;
    print!("{report}");
    if let Some(path) = &wanted.json {
        save_json(&report, path)?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(feature = "verbs")]
fn on_verbs(address: SocketAddr, options: &PairOptions) -> Result<PairReport, Failure> {
    let verbs = super::target::open_verbs()?;
    Ok(bench::transfers::measure_pair(
        &verbs, &verbs, address, options,
    )?)
}

#[cfg(not(feature = "verbs"))]
fn on_verbs(_: SocketAddr, _: &PairOptions) -> Result<PairReport, Failure> {
    Err(super::target::WITHOUT_VERBS.into())
}
