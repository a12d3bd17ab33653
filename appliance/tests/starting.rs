//! Starting and stopping: invalid configurations, missing resources, signals, idling.

mod process;

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use process::{LIMIT, RAM_ON_LOOPBACK, Windlass, run};
use rustix::process::Signal;
use tempfile::TempDir;

/// A configuration with one RAM namespace on a port that the system chooses, followed by `more`.
fn configuration(directory: &TempDir, appliance: &str, more: &str) -> PathBuf {
    let text = format!(
        r#"
[appliance]
memory = "16MiB"
pages = "ordinary"
{appliance}

[control]
socket = "off"
http = "off"

{RAM_ON_LOOPBACK}{more}"#
    );
    write(directory, &text)
}

fn write(directory: &TempDir, text: &str) -> PathBuf {
    let path = directory.path().join("windlass.toml");
    fs::write(&path, text).expect("writable");
    path
}

/// `windlass run` must fail with exactly one line that contains these parts.
#[track_caller]
fn expect_one_line(file: &Path, parts: &[&str]) {
    let finished = run(&["--log", "off", "run", &file.display().to_string()]);
    assert_eq!(finished.status.code(), Some(1), "{finished:?}");
    assert_eq!(finished.stdout, "");
    assert_eq!(finished.stderr.lines().count(), 1, "{}", finished.stderr);
    for part in parts {
        assert!(
            finished.stderr.contains(part),
            "{part:?} is not in {}",
            finished.stderr
        );
    }
}

#[test]
fn all_configuration_problems_are_printed_and_nothing_starts() {
    let directory = TempDir::new().expect("a directory");
    let file = write(
        &directory,
        "[appliance]\nmemroy = \"1GiB\"\n\n[[device]]\nname = \"a\"\ntype = \"memory\"\nsize = \"7 bananas\"\n\n\
         [[device]]\nname = \"b\"\ntype = \"nvme\"\npci = \"0000:3b\"\n\n\
         [[listener]]\nname = \"san\"\ntransport = \"fc\"\naddress = \"192.0.2.10:4420\"\n\n\
         [[export]]\nnqn = \"nqn.2026-11.org.windlass:x\"\ndevices = [\"c\"]\nlisteners = [\"san\"]\n",
    );
    for command in ["run", "check"] {
        let finished = run(&[command, &file.display().to_string()]);
        // EX_CONFIG of sysexits.h, for which the unit prevents a restart.
        assert_eq!(finished.status.code(), Some(78));
        assert_eq!(finished.stdout, "");
        for part in [
            "memroy",
            "memory",
            "2:",
            "7:",
            "the values are \"tcp\" and \"rdma\"",
            "not a PCI address",
            "12:",
            "16:",
            "allow_any_host",
        ] {
            assert!(
                finished.stderr.contains(part),
                "{part:?} is not in\n{}",
                finished.stderr
            );
        }
    }
}

#[test]
fn check_lists_what_a_start_would_serve() {
    let directory = TempDir::new().expect("a directory");
    let limits = (1..=10).map(|host| {
        format!("\n[[rate_limit]]\nhost = \"nqn.2026-11.org.example:{host}\"\niops = {host}000\n")
    });
    let file = configuration(&directory, "cores = \"0\"", &limits.collect::<String>());
    let finished = run(&["check", &file.display().to_string()]);
    assert_eq!(finished.status.code(), Some(0), "{finished:?}");
    for part in [
        "valid",
        "cores 0",
        "nqn.2026-11.org.windlass:test",
        "namespace 1",
        "8MiB",
        "limit of host nqn.2026-11.org.example:8: 8000 commands/s\n2 more limit(s)\n",
    ] {
        assert!(
            finished.stdout.contains(part),
            "{part:?} is not in\n{}",
            finished.stdout
        );
    }
}

/// A missing drive is reported in one line with its remedy, by `check` and by `run`; everything
/// else is served.
#[test]
fn missing_drive_is_reported_and_skipped() {
    let directory = TempDir::new().expect("a directory");
    let more = "\n[[device]]\nname = \"fast0\"\ntype = \"nvme\"\npci = \"ffff:7f:1f.7\"\n\n\
                [[export]]\nnqn = \"nqn.2026-11.org.windlass:drive\"\ndevices = [\"fast0\"]\n\
                listeners = [\"loopback\"]\nallow_any_host = true\n";
    let file = configuration(&directory, "", more);
    let line =
        "fast0 not served: ffff:7f:1f.7: no PCI function has this address: `windlass devices`";
    let finished = run(&["check", &file.display().to_string()]);
    assert_eq!(finished.status.code(), Some(0), "{finished:?}");
    let told = finished.stdout.lines().filter(|told| told.contains(line));
    assert_eq!(told.count(), 1, "{}", finished.stdout);
    assert!(
        finished.stdout.contains("namespace 1): not served"),
        "{}",
        finished.stdout
    );
    let windlass = Windlass::start(&file);
    let announced = windlass.announced.join("\n");
    assert!(
        announced.contains("fast0 (nvme ffff:7f:1f.7 namespace 1): not served"),
        "{announced}"
    );
    assert!(
        announced.contains("-n nqn.2026-11.org.windlass:drive"),
        "{announced}"
    );
    windlass.signal(Signal::TERM);
    assert_eq!(windlass.wait().0.code(), Some(0));
}

#[test]
fn missing_configuration_file_is_a_one_line_error() {
    let directory = TempDir::new().expect("a directory");
    let missing = directory.path().join("missing.toml");
    expect_one_line(&missing, &["missing.toml", "No such file"]);
}

#[test]
fn port_in_use_is_a_one_line_error() {
    let directory = TempDir::new().expect("a directory");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a loopback port");
    let address = taken.local_addr().expect("bound").to_string();
    let file = configuration(&directory, "", "");
    let text = fs::read_to_string(&file)
        .expect("readable")
        .replace("127.0.0.1:0", &address);
    fs::write(&file, text).expect("writable");
    expect_one_line(&file, &["listener loopback", &address, "in use"]);
}

#[test]
fn unknown_congestion_control_is_a_one_line_error() {
    let directory = TempDir::new().expect("a directory");
    let file = configuration(&directory, "", "");
    let wanted = "no_such_control";
    let text = fs::read_to_string(&file).expect("readable").replace(
        "address = \"127.0.0.1:0\"",
        &format!("address = \"127.0.0.1:0\"\ncongestion_control = \"{wanted}\""),
    );
    fs::write(&file, &text).expect("writable");
    // Reno is built into every kernel.
    expect_one_line(&file, &["listener loopback", wanted, "it has ", "reno"]);
    fs::write(&file, text.replace(wanted, "reno")).expect("writable");
    let windlass = Windlass::start(&file);
    windlass.signal(Signal::TERM);
    assert_eq!(windlass.wait().0.code(), Some(0));
}

/// The check of readiness passes whatever a listener requires of hosts, and is not reported as the
/// attempt of a host.
#[test]
fn listeners_are_ready_whatever_they_require_of_hosts() {
    let digests = "header_digest = \"required\"\ndata_digest = \"required\"";
    for settings in [digests, "tls = \"required\"", "tls = \"allowed\""] {
        let directory = TempDir::new().expect("a directory");
        let file = configuration(&directory, "", "");
        let text = fs::read_to_string(&file).expect("readable").replace(
            "address = \"127.0.0.1:0\"",
            &format!("address = \"127.0.0.1:0\"\n{settings}"),
        );
        fs::write(&file, text).expect("writable");
        let log = directory.path().join("log");
        let windlass = Windlass::start_logging(&file, &log);
        windlass.signal(Signal::TERM);
        assert_eq!(windlass.wait().0.code(), Some(0));
        let log = fs::read_to_string(log).expect("readable");
        assert!(!log.contains("host"), "{settings}: {log}");
    }
}

#[test]
fn missing_device_file_is_a_one_line_error() {
    let directory = TempDir::new().expect("a directory");
    let file = configuration(&directory, "", "");
    let text = fs::read_to_string(&file).expect("readable");
    let image = directory.path().join("vol0.img");
    let text = text.replace(
        "type = \"memory\"\nsize = \"8MiB\"",
        &format!("type = \"file\"\npath = \"{}\"", image.display()),
    );
    fs::write(&file, text).expect("writable");
    expect_one_line(&file, &["device ram", "vol0.img", "does not exist", "size"]);
}

#[test]
fn insufficient_memory_is_a_one_line_error() {
    let directory = TempDir::new().expect("a directory");
    let file = configuration(&directory, "", "");
    let text = fs::read_to_string(&file).expect("readable");
    fs::write(&file, text.replace("16MiB", "8TiB")).expect("writable");
    expect_one_line(&file, &["memory", "8TiB"]);
}

#[test]
fn missing_core_is_a_one_line_error() {
    let directory = TempDir::new().expect("a directory");
    let file = configuration(&directory, "cores = \"8000\"", "");
    expect_one_line(&file, &["cores", "8000"]);
}

#[test]
fn sigterm_and_sigint_shut_down_cleanly() {
    let directory = TempDir::new().expect("a directory");
    for signal in [Signal::TERM, Signal::INT] {
        let windlass = Windlass::start(&configuration(&directory, "", ""));
        windlass.signal(signal);
        let (status, _) = windlass.wait();
        assert_eq!(status.code(), Some(0));
    }
}

#[test]
fn an_idle_appliance_uses_less_than_two_percent_of_a_core() {
    let directory = TempDir::new().expect("a directory");
    let windlass = Windlass::start(&configuration(&directory, "idle = \"adaptive\"", ""));
    // A busy machine adds to a measurement (cold caches, interrupts) and never takes away: the
    // best of ten seconds counts.
    let mut measured = Vec::new();
    let at_rest = (0..10).any(|_| {
        let before = windlass.cpu_time();
        std::thread::sleep(Duration::from_secs(1));
        let used = windlass.cpu_time() - before;
        measured.push(used);
        used < Duration::from_millis(20)
    });
    assert!(at_rest, "processor time in each second: {measured:?}");
    windlass.signal(Signal::TERM);
    assert_eq!(windlass.wait().0.code(), Some(0));
}

/// Threads other than reactors leave the reactors' cores before they do anything, such as populating
/// the arena. The first one, and that for signals, begin before these cores are known, and only wait.
#[test]
fn other_threads_avoid_the_cores_of_reactors() {
    /// Processor time of a thread until it has left, generously.
    const LEAVING_MAX: Duration = Duration::from_millis(20);
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    if cores == 1 {
        return;
    }
    let directory = TempDir::new().expect("a directory");
    let socket = directory.path().join("control.sock");
    let text = format!(
        "[appliance]\nmemory = \"768MiB\"\npages = \"ordinary\"\ncores = \"0\"\n\
         [control]\nsocket = {socket:?}\nhttp = \"127.0.0.1:0\"\n{RAM_ON_LOOPBACK}"
    );
    let windlass = Windlass::start(&write(&directory, &text));
    let process = windlass.pid().as_raw_nonzero();
    let began = Instant::now();
    let mut gone = BTreeSet::new();
    loop {
        let mut here = BTreeSet::new();
        let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
        for task in tasks.flatten() {
            let of_thread = |file| fs::read_to_string(task.path().join(file)).unwrap_or_default();
            // Before the cores that it may use. The first field: nanoseconds on a processor.
            let ran = of_thread("schedstat");
            let (name, status) = (of_thread("comm"), of_thread("status"));
            let mut lines = status.lines();
            let allowed = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:\t"));
            // A thread may end in between.
            let ran = ran.split(' ').next().and_then(|it| it.parse().ok());
            let (Some(allowed), Some(ran)) = (allowed, ran) else {
                continue;
            };
            let name = name.trim_end();
            let is_main = task.file_name().to_string_lossy() == process.to_string();
            if name.starts_with("reactor-") || name == "signals" || is_main {
                continue;
            }
            if allowed.starts_with('0') {
                let ran = Duration::from_nanos(ran);
                assert!(ran < LEAVING_MAX, "{name} ran for {ran:?} on {allowed}");
                here.insert(name.to_owned());
            } else {
                gone.insert(name.to_owned());
            }
        }
        if here.is_empty() {
            break;
        }
        assert!(began.elapsed() < LIMIT, "{here:?} use core 0");
        std::thread::sleep(Duration::from_millis(1));
    }
    for thread in ["acceptor", "authentication", "control"] {
        assert!(gone.contains(thread), "{thread} is not among {gone:?}");
    }
}

#[test]
fn embedded_default_reports_an_unusable_data_directory() {
    let finished = run(&["run", "--data-dir", "/dev/null/nowhere"]);
    assert_eq!(finished.status.code(), Some(1), "{finished:?}");
    assert!(
        finished.stderr.contains("/dev/null/nowhere"),
        "{}",
        finished.stderr
    );
}

/// One binary serves with and without RDMA. Without RDMA devices only the listener fails, in one
/// line with its remedy, and `check` reports it beforehand.
#[test]
fn rdma_listener_without_rdma_is_a_one_line_error() {
    let devices = fs::read_dir("/sys/class/infiniband");
    if devices.is_ok_and(|mut devices| devices.next().is_some()) {
        eprintln!("skipped: this machine has RDMA devices");
        return;
    }
    let directory = TempDir::new().expect("a directory");
    let listener = r#"
[[listener]]
name = "fabric"
transport = "rdma"
address = "127.0.0.1:0"
"#;
    let file = configuration(&directory, "", listener);
    expect_one_line(
        &file,
        &["listener fabric: RDMA is unavailable: ", "install "],
    );
    let checked = run(&["check", &file.display().to_string()]);
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
    let problem = "problem: listener fabric: RDMA is unavailable: ";
    assert!(checked.stdout.contains(problem), "{}", checked.stdout);
}

/// Appliances that say so serve one file together; they and others exclude each other.
#[test]
fn shared_file_is_served_by_several_appliances() {
    let directory = TempDir::new().expect("a directory");
    let image = directory.path().join("volume.img");
    fs::write(&image, vec![0; 1 << 20]).expect("writable");
    let configured = |name: &str, shared: &str| {
        let text = format!(
            r#"
[appliance]
memory = "16MiB"
pages = "ordinary"
[control]
socket = "off"
http = "off"
[[device]]
name = "volume"
type = "file"
path = "{}"
uuid = "9f0c2b6e-54a1-4b53-9d0e-0d5a8a1c7f11"
{shared}
[[listener]]
name = "loopback"
transport = "tcp"
address = "127.0.0.1:0"
[[export]]
nqn = "nqn.2026-11.org.windlass:shared"
devices = ["volume"]
listeners = ["loopback"]
allow_any_host = true
serial = "WL-0001"
controller_ids = [1, 9]
"#,
            image.display()
        );
        let own = directory.path().join(name);
        fs::create_dir_all(&own).expect("writable");
        let path = own.join("windlass.toml");
        fs::write(&path, text).expect("writable");
        path
    };
    let in_use = ["volume.img", "in use by another process"];
    let shared = [
        configured("one", "shared = true"),
        configured("two", "shared = true"),
    ];
    let alone = configured("three", "");
    let both = shared.each_ref().map(|file| Windlass::start(file));
    expect_one_line(&alone, &in_use);
    for windlass in both {
        windlass.signal(Signal::TERM);
        assert_eq!(windlass.wait().0.code(), Some(0));
    }
    let windlass = Windlass::start(&alone);
    expect_one_line(&shared[0], &in_use);
    windlass.signal(Signal::TERM);
    assert_eq!(windlass.wait().0.code(), Some(0));
    fs::remove_file(&image).expect("writable");
    expect_one_line(&shared[0], &["volume.img", "a shared file is not created"]);
    assert!(!image.exists());
}
