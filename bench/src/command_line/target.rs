//! Options for reaching a target, and `bench discover`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[cfg(not(feature = "verbs"))]
use crate::arguments::WITHOUT_VERBS;
#[cfg(feature = "verbs")]
use crate::arguments::open_verbs;
use crate::table::Table;
use clap::{Args, ValueEnum};
use nvme_host::{
    ChapOptions, ConnectOptions, HostIdentity, KeyMode, RdmaOptions, TlsOptions, Transport,
    discover,
};
use nvme_keys::{Kind, Secret};
use nvme_spec::log::{DiscoveryEntry, TransportType};

use super::Failure;
use zeroize::Zeroizing;

/// The default port of an address (TCP 1.1 §3.1).
const PORT: u16 = nvme_spec::tcp::IO_PORT;

#[derive(Debug, Args)]
pub(super) struct TargetArgs {
    /// The target's listener, HOST or HOST:PORT
    #[arg(long, default_value = "127.0.0.1:4420", value_parser = parse_address)]
    pub(super) address: SocketAddr,
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
    /// Congestion control of what is sent to the target (TCP); the system's own otherwise
    #[arg(long, value_name = "NAME")]
    congestion_control: Option<String>,
    /// A file with the host's key for DH-HMAC-CHAP (`windlass key generate --kind chap`); needs
    /// --host-nqn
    #[arg(long, value_name = "FILE", requires = "host_nqn")]
    chap_key: Option<PathBuf>,
    /// A file with the target's key, with which it has to authenticate itself too
    #[arg(long, value_name = "FILE", requires = "chap_key")]
    chap_controller_key: Option<PathBuf>,
    /// A file with the host's key for TLS (`windlass key generate`), which protects every
    /// connection; needs --host-nqn
    #[arg(long, value_name = "FILE", requires = "host_nqn")]
    tls_key: Option<PathBuf>,
}

/// The transport of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CarrierArg {
    Tcp,
    Rdma,
}

#[derive(Debug, Args)]
pub(crate) struct DiscoverArgs {
    #[command(flatten)]
    target: TargetArgs,
}

/// The secret in a file, which may end with a line break.
fn secret<K: Kind>(path: &Path) -> Result<Secret<K>, Failure> {
    let text = std::fs::read_to_string(path).map(Zeroizing::new);
    let text = text.map_err(|error| format!("key file {}: {error}", path.display()))?;
    let secret = Secret::parse(text.trim_end_matches('\n'));
    Ok(secret.map_err(|error| format!("key file {}: {error}", path.display()))?)
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    resolve(text, PORT)
}

/// The address of HOST:PORT, or of HOST with this port.
pub(super) fn resolve(text: &str, port: u16) -> Result<SocketAddr, String> {
    let mut candidates = text
        .to_socket_addrs()
        .or_else(|_| (text, port).to_socket_addrs())
        .map_err(|error| format!("no such address: {error}"))?;
    candidates
        .next()
        .ok_or_else(|| "the name has no address".to_owned())
}

/// Parameters for reaching a target: one identity and one transport for all connections of a
/// command.
#[derive(Debug)]
pub(super) struct TargetAccess {
    options: ConnectOptions,
}

impl TargetAccess {
    /// The options for a connection to `nqn`.
    pub(super) fn to(&self, nqn: &str) -> ConnectOptions {
        ConnectOptions {
            subsystem_nqn: nqn.to_owned(),
            ..self.options.clone()
        }
    }

    pub(super) fn discover(&self) -> Result<Vec<DiscoveryEntry>, Failure> {
        Ok(discover(self.options.clone())?)
    }
}

impl TargetArgs {
    pub(super) fn way(&self) -> Result<TargetAccess, Failure> {
        let nqn = nvme_spec::nqn::DISCOVERY_NQN;
        Ok(TargetAccess {
            options: ConnectOptions {
                transport: self.transport()?,
                header_digest: self.header_digest,
                data_digest: self.data_digest,
                congestion_control: self.congestion_control.clone(),
                chap: self.chap()?,
                ..ConnectOptions::new(self.address, nqn, self.identity())
            },
        })
    }

    fn transport(&self) -> Result<Transport, Failure> {
        let keys = if self.memory_windows {
            KeyMode::Windows
        } else {
            KeyMode::Arena
        };
        match self.transport {
            CarrierArg::Tcp if self.memory_windows => {
                Err("--memory-windows needs --transport rdma".into())
            }
            CarrierArg::Tcp => Ok(match &self.tls_key {
                Some(key) => Transport::tls(TlsOptions::new(secret(key)?)),
                None => Transport::tcp(),
            }),
            CarrierArg::Rdma if self.tls_key.is_some() => {
                Err("--tls-key needs --transport tcp".into())
            }
            CarrierArg::Rdma if self.header_digest || self.data_digest => {
                Err("--header-digest and --data-digest need --transport tcp".into())
            }
            CarrierArg::Rdma if self.congestion_control.is_some() => {
                Err("--congestion-control needs --transport tcp".into())
            }
            CarrierArg::Rdma => over_verbs(RdmaOptions {
                keys,
                ..RdmaOptions::default()
            }),
        }
    }

    fn chap(&self) -> Result<Option<ChapOptions>, Failure> {
        let Some(key) = &self.chap_key else {
            return Ok(None);
        };
        let controller = self.chap_controller_key.as_deref();
        let controller = controller.map(secret).transpose()?;
        Ok(Some(ChapOptions::new(secret(key)?, controller)))
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

#[cfg(not(feature = "verbs"))]
fn over_verbs(_: RdmaOptions) -> Result<Transport, Failure> {
    Err(WITHOUT_VERBS.into())
}

pub(super) fn execute_discover(args: &DiscoverArgs) -> Result<ExitCode, Failure> {
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
