//! The appliance with the tested page, and its load.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;

use serde_json::Value;

use crate::appliance::{Appliance, free_port};
use crate::log::Log;
use crate::process;

pub(super) const NQN: &str = "nqn.2026-11.org.windlass:rack7-a.fast";
/// The second export of the site with a token.
pub(super) const OTHER_NQN: &str = "nqn.2026-11.org.windlass:rack7-a.other";
/// A key of its host.
const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
pub(super) const HOST: &str =
    "nqn.2014-08.org.nvmexpress:uuid:5c1f2d5e-6a0b-4b6e-9a57-0c9e0f3c8d11";
pub(super) const TOKEN: &str = "0123456789abcdef-token";

/// An appliance with two devices in one export, and the parameters of its page.
pub(super) struct Site {
    appliance: Option<Appliance>,
    load: Option<Child>,
    binaries: PathBuf,
    configuration: PathBuf,
    log: Arc<Log>,
    /// The port of the exports.
    port: u16,
    /// The origin of the page.
    pub(super) origin: String,
    token: Option<&'static str>,
}

impl Site {
    /// Starts the appliance from `binaries` with its files in `directory`.
    pub(super) fn start(
        binaries: &Path,
        directory: &Path,
        log: &Arc<Log>,
        token: Option<&'static str>,
    ) -> Result<Self, String> {
        fs::create_dir_all(directory).map_err(|e| format!("{}: {e}", directory.display()))?;
        let (port, http) = (free_port()?, free_port()?);
        let configuration = directory.join("windlass.toml");
        let mut site = Self {
            appliance: None,
            load: None,
            binaries: binaries.to_owned(),
            log: Arc::clone(log),
            port,
            origin: format!("http://127.0.0.1:{http}"),
            token,
            configuration: configuration.clone(),
        };
        let write = |path: &Path, text: &str| {
            fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
        };
        if let Some(token) = token {
            write(&directory.join("token"), token)?;
            let key = directory.join("db1.key");
            write(&key, KEY)?;
            let private = fs::Permissions::from_mode(0o600);
            fs::set_permissions(&key, private).map_err(|e| format!("{}: {e}", key.display()))?;
        }
        write(&configuration, &site.text(http, directory))?;
        site.serve()?;
        Ok(site)
    }

    fn text(&self, http: u16, directory: &Path) -> String {
        let directory = directory.display();
        let token = self.token.map_or(String::new(), |_| {
            format!("token_file = \"{directory}/token\"")
        });
        // One of the two sites that are tested has ANA, a key, a latency target, a limit and files.
        let (tls, settings, limit) = match self.token {
            None => ("", "allow_any_host = true".to_owned(), String::new()),
            Some(_) => (
                r#"tls = "allowed""#,
                format!(
                    r#"ana = [{{ listener = "san", state = "non-optimized" }}]
hosts = [{{ nqn = "{HOST}", tls = "db1" }}]
p99 = "1ms""#
                ),
                format!(
                    r#"
[[key]]
name = "db1"
file = "{directory}/db1.key"
[[device]]
name = "other"
type = "memory"
size = "1MiB"
[[export]]
nqn = "{OTHER_NQN}"
devices = ["other"]
listeners = ["san"]
allow_any_host = true
[[rate_limit]]
device = "vol0"
iops = 5000
[[device]]
name = "files"
type = "memory"
size = "4MiB"
[[volume]]
name = "home"
device = "files"
metadata_memory = "1MiB"
[[share]]
name = "team"
volume = "home"
directory = "team"
max_size = "1MiB"
max_files = 100
allow_any_client = true
[[file_listener]]
name = "nfs"
address = "127.0.0.1:0"
"#
                ),
            ),
        };
        format!(
            r#"
[appliance]
name = "rack7-a"
memory = "64MiB"
pages = "ordinary"
idle = "sleep"
[control]
socket = "off"
http = "{}"
{token}
[[device]]
name = "scratch"
type = "memory"
size = "64MiB"
[[device]]
name = "vol0"
type = "file"
path = "{directory}/vol0.img"
size = "64MiB"
block_size = 4096
[[listener]]
name = "san"
transport = "tcp"
address = "127.0.0.1:{}"
{tls}
[[export]]
nqn = "{NQN}"
devices = ["scratch", "vol0"]
listeners = ["san"]
{settings}
{limit}
"#,
            format_args!("127.0.0.1:{http}"),
            self.port
        )
    }

    /// Starts the appliance.
    pub(super) fn serve(&mut self) -> Result<(), String> {
        let windlass = process::program(self.binaries.join("windlass"));
        // Programs run in the repository's root, and the page shows this path.
        let root = process::root();
        let configuration = self.configuration.strip_prefix(&root);
        let configuration = configuration.unwrap_or(&self.configuration);
        let appliance = Appliance::start(&windlass, configuration, self.port, &self.log)?;
        self.appliance = Some(appliance);
        Ok(())
    }

    /// Kills the appliance, like a crash.
    pub(super) fn kill(&mut self) -> Result<(), String> {
        self.unload();
        self.appliance.take().ok_or("no appliance runs")?.kill()
    }

    /// Starts load on the first device, which runs until `unload`. The load is low, because the
    /// browser shares the machine's cores.
    pub(super) fn load(&mut self) -> Result<(), String> {
        let mut bench = process::program(self.binaries.join("bench"));
        bench.args(["run", "--nqn", NQN, "--host-nqn", HOST, "--nsid", "1"]);
        bench.args(["--address", &format!("127.0.0.1:{}", self.port)]);
        bench.args(["--depth", "2", "--block-size", "4k,16k", "--time", "3600"]);
        let mut bench = process::killed_with_parent(&bench);
        bench
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let load = bench
            .spawn()
            .map_err(|error| format!("cannot start bench: {error}"))?;
        self.load = Some(load);
        Ok(())
    }

    /// Ends the load immediately.
    pub(super) fn unload(&mut self) {
        if let Some(mut load) = self.load.take() {
            let _ = load.kill();
            let _ = load.wait();
        }
    }

    /// Whether the API requires a token.
    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// The content of a path.
    pub(super) fn get(&self, path: &str) -> Result<String, String> {
        let url = format!("{}{path}", self.origin);
        let failed = |error: ureq::Error| format!("{url}: {error}");
        let mut request = ureq::get(&url);
        if let Some(token) = self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let mut answer = request.call().map_err(failed)?;
        let body = answer.body_mut().with_config().limit(64 << 20);
        body.read_to_string().map_err(failed)
    }

    /// The JSON of a path in `/api/v1/`.
    pub(super) fn api(&self, path: &str) -> Result<Value, String> {
        let text = self.get(&format!("/api/v1/{path}"))?;
        serde_json::from_str(&text).map_err(|error| format!("{path}: {error}"))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.unload();
    }
}
