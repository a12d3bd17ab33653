//! The measured target: a child process with the configuration of a comparison.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nvme_keys::{Hash, TlsKey};

use super::READ_BYTES;
use crate::appliance_process::{ApplianceProcess, ProcessError};
use crate::ceiling::CONGESTION_CONTROL;

/// Arena size of the target in bytes.
pub(crate) const ARENA_BYTES: u64 = 256 << 20;

/// Subsystem of the measured target.
pub(crate) const NQN: &str = "nqn.2026-11.org.windlass:compare";

/// The host that measures.
pub(crate) const HOST_NQN: &str = "nqn.2026-11.org.windlass:compare-host";

/// The idle policy of a target that never comes to rest.
pub(crate) const POLL: &str = "poll";

/// Parameters of the measured target.
#[derive(Debug, Clone)]
pub(crate) struct TargetOptions {
    /// The appliance's binary.
    pub(crate) windlass: PathBuf,
    /// Its only core.
    pub(crate) core: usize,
    /// Size of namespace 1, in RAM, and of namespace 2, the null device, in bytes.
    pub(crate) memory_bytes: u64,
    /// The file of namespace 3, if there is one.
    pub(crate) file: Option<PathBuf>,
    /// The idle policy.
    pub(crate) idle: &'static str,
    /// Further tables of the configuration.
    pub(crate) more: &'static str,
    /// CPU share in percent of its core; `None` for the whole core.
    pub(crate) cpu_percent: Option<u32>,
    /// Whether its host may use TLS.
    pub(crate) tls: bool,
}

/// The key of the host. It protects nothing but measurements on the loopback interface.
pub(crate) fn host_key() -> TlsKey {
    TlsKey::new(Hash::Sha256, &[1; 32]).expect("the length fits")
}

/// The configuration file.
fn configuration(options: &TargetOptions, directory: &Path, address: SocketAddr) -> String {
    let (file, devices) = match &options.file {
        Some(path) => (
            format!(
                "[[device]]\n\
                 name = \"file0\"\n\
                 type = \"file\"\n\
                 path = {path:?}\n\
                 block_size = {READ_BYTES}\n\
                 \n"
            ),
            "\"ram0\", \"null0\", \"file0\"",
        ),
        None => (String::new(), "\"ram0\", \"null0\""),
    };
    let key = directory.join("key");
    let (tls, hosts, key) = match options.tls {
        true => (
            "tls = \"allowed\"\n",
            format!("hosts = [{{ nqn = \"{HOST_NQN}\", tls = \"host\" }}]"),
            format!("[[key]]\nname = \"host\"\nfile = {key:?}\n"),
        ),
        false => ("", "allow_any_host = true".to_owned(), String::new()),
    };
    format!(
        "[appliance]\n\
         name = \"compare\"\n\
         cores = \"{core}\"\n\
         memory = {ARENA_BYTES}\n\
         idle = \"{idle}\"\n\
         \n\
         [control]\n\
         socket = {socket:?}\n\
         http = \"off\"\n\
         \n\
         [[device]]\n\
         name = \"ram0\"\n\
         type = \"memory\"\n\
         size = {size}\n\
         block_size = {READ_BYTES}\n\
         \n\
         [[device]]\n\
         name = \"null0\"\n\
         type = \"null\"\n\
         size = {size}\n\
         block_size = {READ_BYTES}\n\
         \n\
         {file}\
         [[listener]]\n\
         name = \"loopback\"\n\
         transport = \"tcp\"\n\
         address = \"{address}\"\n\
         queue_depth = 256\n\
         congestion_control = \"{CONGESTION_CONTROL}\"\n\
         {tls}\
         \n\
         [[export]]\n\
         nqn = \"{NQN}\"\n\
         devices = [{devices}]\n\
         listeners = [\"loopback\"]\n\
         {hosts}\n\
         {key}\
         {more}",
        more = options.more,
        core = options.core,
        idle = options.idle,
        size = options.memory_bytes,
        socket = directory.join("control.sock"),
    )
}

/// Writes the key of the host. If that fails, the target reports that it cannot read it.
fn write_key(path: &Path) {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    let key = host_key().expose_interchange();
    let _ = file.and_then(|mut file| file.write_all(key.as_bytes()));
}

/// A running target, which is ended on drop.
pub(crate) struct Target {
    process: ApplianceProcess,
    pub(crate) address: SocketAddr,
    pub(crate) start_to_accept: Duration,
}

impl Target {
    /// Starts the target and waits until it has initialised a connection.
    pub(crate) fn start(options: &TargetOptions) -> Result<Self, ProcessError> {
        let mut process = ApplianceProcess::start(&options.windlass, |directory, address| {
            if options.tls {
                write_key(&directory.join("key"));
            }
            configuration(options, directory, address)
        })?;
        let start_to_accept = process.await_connection()?;
        if options.idle != POLL {
            process.await_rest()?;
        }
        if let Some(percent) = options.cpu_percent {
            process.limit_to(percent)?;
        }
        Ok(Self {
            address: process.address(),
            start_to_accept,
            process,
        })
    }

    /// Processor time of the target so far.
    pub(crate) fn cpu_time(&self) -> Option<Duration> {
        self.process.cpu_time()
    }

    /// Busy time of its reactor so far; its processor time if its CPU share is limited.
    pub(crate) fn busy_time(&self) -> Option<Duration> {
        self.process.busy_time()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(file: Option<PathBuf>) -> String {
        let options = TargetOptions {
            windlass: PathBuf::from("windlass"),
            core: 0,
            memory_bytes: 16 << 20,
            file,
            idle: "adaptive",
            more: "",
            cpu_percent: None,
            tls: false,
        };
        let address = SocketAddr::from(([127, 0, 0, 1], 4420));
        configuration(&options, Path::new("/run"), address)
    }

    #[test]
    fn target_uses_the_same_congestion_control() {
        let text = text(None);
        let (_, listener) = text.split_once("[[listener]]\n").expect("a listener");
        let (listener, _) = listener.split_once("\n\n").expect("an export after it");
        let expected = format!("congestion_control = \"{CONGESTION_CONTROL}\"");
        assert!(listener.lines().any(|line| line == expected), "{text}");
        assert!(text.contains("devices = [\"ram0\", \"null0\"]"), "{text}");
    }

    #[test]
    fn file_is_exported_as_the_third_namespace() {
        let text = text(Some(PathBuf::from("/tmp/a \"b\"")));
        assert!(text.contains("path = \"/tmp/a \\\"b\\\"\""), "{text}");
        assert!(
            text.contains("devices = [\"ram0\", \"null0\", \"file0\"]"),
            "{text}"
        );
    }
}
