//! Messages to the service manager, received on a socket in place of systemd's.

mod process;

use std::fs;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use process::{LIMIT, RAM_ON_LOOPBACK, Windlass};
use rustix::process::Signal;
use tempfile::TempDir;

/// Short enough that a test notices missing pings, long enough for a busy machine.
const WATCHDOG: Duration = Duration::from_secs(3);

struct Manager {
    socket: UnixDatagram,
    directory: TempDir,
}

impl Manager {
    fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        let socket = UnixDatagram::bind(directory.path().join("notify")).expect("a socket");
        socket.set_read_timeout(Some(LIMIT)).expect("settable");
        Self { socket, directory }
    }

    /// Starts the appliance as a service, with additional environment variables.
    fn start(&self, more: &[(&str, &str)]) -> Windlass {
        let file = self.directory.path().join("windlass.toml");
        let text = format!(
            r#"
[appliance]
memory = "16MiB"
pages = "ordinary"
{RAM_ON_LOOPBACK}"#
        );
        fs::write(&file, text).expect("writable");
        let socket = self.directory.path().join("notify");
        let mut environment = vec![("NOTIFY_SOCKET", socket.to_str().expect("UTF-8"))];
        environment.extend(more);
        Windlass::start_in(&file, &environment)
    }

    /// Adds text to the configuration's file.
    fn append(&self, text: &str) {
        let file = self.directory.path().join("windlass.toml");
        let before = fs::read_to_string(&file).expect("readable");
        fs::write(file, before + text).expect("writable");
    }

    /// The next message, as lines.
    fn hear(&self) -> Vec<String> {
        let mut bytes = [0; 4096];
        let length = self.socket.recv(&mut bytes).expect("a message in time");
        let text = std::str::from_utf8(&bytes[..length]).expect("UTF-8");
        text.lines().map(ToOwned::to_owned).collect()
    }

    /// Reads messages until one has a line with this beginning; returns that message.
    fn hear_until(&self, beginning: &str) -> Vec<String> {
        let began = Instant::now();
        loop {
            let message = self.hear();
            if message.iter().any(|line| line.starts_with(beginning)) {
                return message;
            }
            assert!(began.elapsed() < LIMIT, "{beginning} did not come");
        }
    }
}

#[track_caller]
fn expect_line(message: &[String], line: &str) {
    assert!(
        message.iter().any(|it| it == line),
        "{line} is not in {message:?}"
    );
}

#[test]
fn service_notifies_ready_and_stopping() {
    let manager = Manager::new();
    let windlass = manager.start(&[]);
    expect_line(&manager.hear(), "STATUS=starting");
    let ready = manager.hear();
    expect_line(&ready, "READY=1");
    expect_line(&ready, "STATUS=serving 1 export(s) on 1 listener(s)");
    TcpStream::connect(windlass.address()).expect("what is ready takes connections");
    windlass.signal(Signal::TERM);
    let stopping = manager.hear_until("STOPPING=1");
    assert!(
        stopping
            .iter()
            .any(|line| line.starts_with("EXTEND_TIMEOUT_USEC=")),
        "{stopping:?}"
    );
    assert_eq!(windlass.wait().0.code(), Some(0));
}

#[test]
fn service_sends_no_pings_without_a_watchdog() {
    let manager = Manager::new();
    let windlass = manager.start(&[]);
    manager.hear_until("READY=1");
    let rest = Duration::from_secs(2);
    manager
        .socket
        .set_read_timeout(Some(rest))
        .expect("settable");
    let error = manager.socket.recv(&mut [0; 64]).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
        "{error}"
    );
    windlass.signal(Signal::TERM);
    assert_eq!(windlass.wait().0.code(), Some(0));
}

#[test]
fn refused_reload_reports_the_reason() {
    let manager = Manager::new();
    let windlass = manager.start(&[]);
    manager.hear_until("READY=1");
    manager.append("memroy = \"1GiB\"\n");
    windlass.signal(Signal::HUP);
    let reloading = manager.hear();
    expect_line(&reloading, "RELOADING=1");
    assert!(
        reloading
            .iter()
            .any(|line| line.starts_with("MONOTONIC_USEC=")),
        "{reloading:?}"
    );
    let over = manager.hear();
    expect_line(&over, "READY=1");
    assert!(over.iter().any(|line| line.contains("memroy")), "{over:?}");
    windlass.signal(Signal::TERM);
    assert_eq!(windlass.wait().0.code(), Some(0));
}

#[test]
fn reload_applies_the_current_file() {
    let manager = Manager::new();
    let windlass = manager.start(&[]);
    manager.hear_until("READY=1");
    manager.append(
        "[[device]]\nname = \"more\"\ntype = \"null\"\nsize = \"1GiB\"\n\
         [[export]]\nnqn = \"nqn.2026-11.org.windlass:more\"\ndevices = [\"more\"]\n\
         listeners = [\"loopback\"]\nallow_any_host = true\n",
    );
    windlass.signal(Signal::HUP);
    expect_line(&manager.hear(), "RELOADING=1");
    let over = manager.hear_until("READY=1");
    let status = "STATUS=serving 2 export(s) on 1 listener(s); 2 step(s) applied";
    expect_line(&over, status);
    windlass.signal(Signal::TERM);
    assert_eq!(windlass.wait().0.code(), Some(0));
}

#[test]
fn watchdog_pings_stop_when_a_reactor_hangs() {
    let manager = Manager::new();
    let microseconds = WATCHDOG.as_micros().to_string();
    let windlass = manager.start(&[
        ("WATCHDOG_USEC", &microseconds),
        ("WINDLASS_TEST_HOOKS", "stick-on-usr1"),
    ]);
    manager.hear_until("READY=1");
    // No host is connected, so the reactor sleeps; the watchdog is pinged nevertheless.
    for _ in 0..4 {
        assert_eq!(manager.hear(), ["WATCHDOG=1"]);
    }
    windlass.signal(Signal::USR1);
    let stuck = manager.hear_until("STATUS=");
    assert!(
        stuck[0].contains("reactor 0 is stuck in inbox"),
        "{stuck:?}"
    );
    manager
        .socket
        .set_read_timeout(Some(WATCHDOG))
        .expect("settable");
    let fed = manager.socket.recv(&mut [0; 64]);
    assert!(
        fed.is_err(),
        "the watchdog was fed although a reactor is stuck"
    );
}

#[test]
fn test_hook_is_disabled_by_default() {
    let manager = Manager::new();
    let windlass = manager.start(&[]);
    manager.hear_until("READY=1");
    windlass.signal(Signal::USR1);
    // The signal has its default action, because the process does not handle it.
    let (status, _) = windlass.wait();
    assert!(!status.success() && status.code().is_none(), "{status}");
}

/// The user and group of the service in the test, and another user of the machine.
const SERVICE: u32 = 61_001;
const OPERATOR: u32 = 61_002;

/// A command run as another user, with `groups` in addition to that user's own.
fn command_as(user: u32, groups: &str) -> Command {
    let mut command = Command::new("setpriv");
    let user = user.to_string();
    command.args(["--reuid", &user, "--regid", &user]);
    match groups {
        "" => command.arg("--clear-groups"),
        groups => command.args(["--groups", groups]),
    };
    command.stdin(Stdio::null());
    command
}

/// `[control] group` as under the packaged unit: the service has no privileges and runs in a user
/// namespace that knows only its own user and group (`PrivateUsers=yes`). Requires root, to run as
/// other users.
#[test]
fn group_members_can_connect_to_a_service_in_a_user_namespace() {
    let probe = command_as(SERVICE, "")
        .args(["unshare", "--user", "--map-current-user", "true"])
        .output();
    if !probe.is_ok_and(|output| output.status.success()) {
        eprintln!("left out: this takes root, setpriv(1) and user namespaces");
        return;
    }
    let directory = TempDir::new().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    chown(directory.path(), Some(SERVICE), Some(SERVICE)).expect("root may");
    // A location where every user can execute it.
    let program = at("windlass");
    let built = Path::new(env!("CARGO_BIN_EXE_windlass"));
    let linked = fs::hard_link(built, &program);
    linked.unwrap_or_else(|_| fs::copy(built, &program).map(drop).expect("copied"));
    let (socket, file) = (at("control.sock"), at("windlass.toml"));
    let control = format!(
        "[control]\nsocket = \"{}\"\ngroup = \"{SERVICE}\"\nhttp = \"off\"\n",
        socket.display()
    );
    let memory = "[appliance]\nmemory = \"16MiB\"\npages = \"ordinary\"\n";
    fs::write(&file, format!("{memory}{control}{RAM_ON_LOOPBACK}")).expect("writable");
    let mut service = command_as(SERVICE, "");
    service.args(["unshare", "--user", "--map-current-user"]);
    service
        .arg(&program)
        .args(["--log", "warn", "run"])
        .arg(&file);
    service.env("STATE_DIRECTORY", directory.path());
    let mut service = service.stdin(Stdio::null()).spawn().expect("it runs");
    let ask = |user: u32, groups: &str| -> Output {
        let mut asked = command_as(user, groups);
        asked.arg(&program).args(["status", "--json", "--socket"]);
        asked.arg(&socket).output().expect("it runs")
    };
    // The command gets a response; the state of the appliance does not matter.
    let is_admitted = |response: &Output| matches!(response.status.code(), Some(0 | 1));
    let began = Instant::now();
    let member = loop {
        let response = ask(OPERATOR, &SERVICE.to_string());
        let is_over = service.try_wait().expect("waitable").is_some();
        if is_admitted(&response) || is_over || began.elapsed() > LIMIT {
            break response;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let stranger = ask(OPERATOR, "");
    let owner = ask(SERVICE, "");
    service.kill().expect("it runs");
    service.wait().expect("waitable");
    assert!(is_admitted(&member), "{member:?}");
    assert!(is_admitted(&owner), "{owner:?}");
    assert!(!is_admitted(&stranger), "{stranger:?}");
    let refused = String::from_utf8_lossy(&stranger.stderr);
    assert!(refused.contains("this user may not use"), "{refused}");
}
