//! `windlass apply` as an administrator runs it.

mod process;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nvme_host_testing::Names;
use nvme_host_testing::tcp::RawClient;
use nvme_spec::Sqe;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::PduType;
use process::{Finished, LIMIT, RAM_ON_LOOPBACK, Windlass, run};
use rustix::process::Signal;
use tempfile::TempDir;

const MORE: &str = r#"
[[device]]
name = "more"
type = "null"
size = "1GiB"
[[export]]
nqn = "nqn.2026-11.org.windlass:more"
devices = ["more"]
listeners = ["loopback"]
allow_any_host = true
"#;

struct Lab {
    windlass: Windlass,
    directory: TempDir,
    base: String,
}

impl Lab {
    fn new(deadline: &str) -> Self {
        let directory = TempDir::new().expect("a directory");
        let base = format!(
            r#"
[appliance]
memory = "16MiB"
pages = "ordinary"
shutdown_deadline = "{deadline}"
[control]
http = "off"
socket = "{}"
{RAM_ON_LOOPBACK}"#,
            directory.path().join("control.sock").display()
        );
        let file = directory.path().join("windlass.toml");
        fs::write(&file, &base).expect("writable");
        Self {
            windlass: Windlass::start(&file),
            directory,
            base,
        }
    }

    fn write(&self, text: &str) -> PathBuf {
        let file = self.directory.path().join("windlass.toml");
        fs::write(&file, text).expect("writable");
        file
    }

    fn apply(&self, more: &[&str]) -> Finished {
        let socket = self.directory.path().join("control.sock");
        let mut arguments = vec!["apply", "--socket", socket.to_str().expect("UTF-8")];
        arguments.extend(more);
        run(&arguments)
    }

    fn end(self) {
        self.windlass.signal(Signal::TERM);
        assert_eq!(self.windlass.wait().0.code(), Some(0));
    }
}

#[track_caller]
fn expect(finished: &Finished, code: i32, stdout: &str) {
    assert_eq!(finished.status.code(), Some(code), "{finished:?}");
    assert_eq!(finished.stdout, stdout, "{finished:?}");
}

#[test]
fn invalid_file_is_not_applied_and_all_problems_are_reported() {
    let lab = Lab::new("10s");
    lab.write(&(lab.base.clone() + MORE + "memroy = 1\n[listner]\n"));
    let refused = lab.apply(&[]);
    expect(&refused, 1, "");
    for problem in ["memroy", "listner"] {
        assert!(refused.stderr.contains(problem), "{refused:?}");
    }
    let missing = lab.apply(&["/nonexistent/windlass.toml"]);
    expect(&missing, 1, "");
    assert!(
        missing.stderr.contains("/nonexistent/windlass.toml"),
        "{missing:?}"
    );
    lab.write(&lab.base);
    let same = "the file is applied; nothing to change\n";
    expect(&lab.apply(&[]), 0, same);
    expect(&lab.apply(&["--dry-run"]), 0, same);
    lab.end();
}

#[test]
fn apply_lists_steps_before_executing_them() {
    let lab = Lab::new("10s");
    let file = lab.write(&(lab.base.replace("16MiB", "32MiB") + MORE));
    let restart =
        r#"restart  change appliance.memory from "16MiB" to "32MiB", which takes a restart"#;
    let device = "live     open device more (null)";
    let export = "live     offer nqn.2026-11.org.windlass:more";
    let planned = format!("{restart}\n{device}\n{export}\n3 step(s); nothing was changed\n");
    expect(&lab.apply(&["--dry-run"]), 0, &planned);
    let refused = format!(
        "{restart}: not done\n{device}: not done\n{export}: not done\n\
         nothing was changed: 1 step(s) take a restart: restart the appliance, or apply the others \
         alone with --partial\n"
    );
    expect(&lab.apply(&[]), 1, &refused);
    let partial =
        format!("{restart}: not done\n{device}: done\n{export}: done\n2 of 3 step(s) done\n");
    let file = file.to_str().expect("UTF-8");
    expect(&lab.apply(&["--partial", file]), 1, &partial);
    lab.write(&(lab.base.clone() + MORE));
    let response = lab.apply(&["--json"]);
    let response: serde_json::Value = serde_json::from_str(&response.stdout).expect("JSON");
    assert_eq!(
        response,
        serde_json::json!({ "steps": [], "applied": true })
    );
    lab.end();
}

#[test]
fn changes_and_refusals_leave_audit_records() {
    let directory = TempDir::new().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let base = format!(
        "[appliance]\nmemory = \"16MiB\"\npages = \"ordinary\"\n\
         [control]\nhttp = \"127.0.0.1:0\"\nsocket = \"{}\"\n{RAM_ON_LOOPBACK}",
        path("control.sock").display()
    );
    let file = path("windlass.toml");
    fs::write(&file, &base).expect("writable");
    // Audit records are written although the test asks for warnings only.
    let windlass = Windlass::start_logging(&file, &path("log"));
    let socket = path("control.sock");
    let apply = |more: &[&str]| {
        let mut arguments = vec!["apply", "--socket", socket.to_str().expect("UTF-8")];
        arguments.extend(more);
        run(&arguments)
    };
    fs::write(&file, base.clone() + MORE).expect("writable");
    assert_eq!(apply(&["--dry-run"]).status.code(), Some(0));
    assert_eq!(apply(&[]).status.code(), Some(0));
    fs::write(&file, base.replace("16MiB", "32MiB")).expect("writable");
    assert_eq!(apply(&[]).status.code(), Some(1));
    let mut lines = windlass.announced.iter();
    let http = lines.find_map(|line| line.strip_prefix("control: http://"));
    let mut stranger = TcpStream::connect(http.expect("an address")).expect("it listens");
    let request = "POST /api/v1/hosts/evict HTTP/1.1\r\nHost: localhost\r\n\
        Content-Length: 0\r\nConnection: close\r\n\r\n";
    stranger.write_all(request.as_bytes()).expect("open");
    stranger.read_to_end(&mut Vec::new()).expect("a response");
    fs::write(&file, &base).expect("writable");
    windlass.signal(Signal::HUP);
    let began = Instant::now();
    let records = loop {
        let log = fs::read_to_string(path("log")).expect("readable");
        let audits = log.lines().filter_map(|line| line.split_once("audit: "));
        let records: Vec<String> = audits.map(|(_, record)| record.to_owned()).collect();
        if records.last().is_some_and(|it| it.contains("SIGHUP")) {
            break records;
        }
        assert!(began.elapsed() < LIMIT, "{log}");
        std::thread::sleep(Duration::from_millis(10));
    };
    let [applied, refused, evict, reloaded] = &records[..] else {
        panic!("{records:?}");
    };
    let begins = |record: &str, what: &str| assert!(record.starts_with(what), "{records:?}");
    begins(applied, "apply requested by user ");
    let done = "): done: open device more (null); offer nqn.2026-11.org.windlass:more";
    assert!(applied.contains(done), "{records:?}");
    begins(refused, "apply requested by user ");
    assert!(
        refused.contains("): refused: nothing was changed: 1 step(s) take a restart"),
        "{records:?}"
    );
    begins(evict, "hosts/evict requested by 127.0.0.1:");
    assert!(
        evict.contains("refused: 403 Forbidden: without a token"),
        "{records:?}"
    );
    begins(reloaded, "apply requested by SIGHUP: done: ");
    windlass.signal(Signal::TERM);
    assert_eq!(windlass.wait().0.code(), Some(0));
}

/// While a removal waits for a host, no other change is applied, and the service pings its
/// watchdog.
#[test]
fn one_configuration_is_applied_at_a_time() {
    let lab = Lab::new("4s");
    let (admin, mut io) = attach(&lab);
    let write = Sqe::write(1, 0, 0, false).with_cid(9);
    let write = write.with_sgl(SglDescriptor::transport(512));
    io.send_capsule(write, &[]).expect("connected");
    io.expect(PduType::R2T).expect("it asks for the data");
    let other = lab.base.replace("windlass:test", "windlass:other");
    lab.write(&other);
    let taken = "another configuration is being applied";
    let is_told = |finished: &Finished| finished.stderr.contains(taken);
    let until = |holds: &dyn Fn(&Finished) -> bool, arguments: &[&str]| {
        let began = Instant::now();
        loop {
            let finished = lab.apply(arguments);
            if holds(&finished) {
                return finished;
            }
            assert!(began.elapsed() < LIMIT, "{finished:?}");
        }
    };
    std::thread::scope(|scope| {
        // Either may run while the other holds the turn.
        let first = scope.spawn(|| until(&|finished| !is_told(finished), &[]));
        let second = until(&is_told, &["--dry-run"]);
        assert_eq!(second.status.code(), Some(1), "{second:?}");
        let first = first.join().expect("it ends");
        assert_eq!(first.status.code(), Some(0), "{first:?}");
        let cut = "aborted at the deadline: nqn.2026-11.org.windlass:test, host \
                   nqn.2026-11.org.example:host, queue 1: 1 command(s)";
        assert!(first.stdout.contains(cut), "{first:?}");
    });
    expect(
        &lab.apply(&[]),
        0,
        "the file is applied; nothing to change\n",
    );
    drop((admin, io));
    lab.end();
}

/// A host of [`RAM_ON_LOOPBACK`]: its admin queue, which has to stay open, and an I/O queue.
fn attach(lab: &Lab) -> (RawClient, RawClient) {
    let names = Names {
        host: "nqn.2026-11.org.example:host".to_owned(),
        host_id: [9; 16],
        subsystem: "nqn.2026-11.org.windlass:test".to_owned(),
    };
    let connect = || RawClient::connect(lab.windlass.address(), LIMIT).expect("it listens");
    let (mut admin, mut io) = (connect(), connect());
    let cntlid = admin.open_admin(&names).expect("any host may attach");
    io.open_io(&names, cntlid, 1).expect("queue 1 is free");
    (admin, io)
}

/// Limits apply to connected hosts: reads wait and succeed, in-capsule writes too, and the status
/// reports it. Without the limit, nothing waits.
#[test]
fn rate_limits_change_without_a_reconnection() {
    const COMMANDS: u32 = 12;
    let lab = Lab::new("10s");
    let (_admin, mut io) = attach(&lab);
    let limit = "\n[[rate_limit]]\nhost = \"nqn.2026-11.org.example:host\"\niops = 20\n";
    lab.write(&(lab.base.clone() + limit));
    let step =
        "live     apply these rate limits only: host nqn.2026-11.org.example:host: 20 commands/s";
    let planned = format!("{step}\n1 step(s); nothing was changed\n");
    expect(&lab.apply(&["--dry-run"]), 0, &planned);
    let done = format!("{step}: done\n1 of 1 step(s) done\n");
    assert_eq!(lab.apply(&[]).stdout.lines().next(), done.lines().next());
    let mut load = || {
        let began = Instant::now();
        for place in 0..COMMANDS {
            let (status, data) = if place % 2 == 0 {
                io.command(Sqe::read(1, 0, 0), &[], 512).expect("it waits")
            } else {
                let write = Sqe::write(1, 0, 0, false);
                io.command(write, &[7; 512], 0).expect("it waits")
            };
            assert!(status.status().is_success());
            assert_eq!(data.len(), if place % 2 == 0 { 512 } else { 0 });
        }
        began.elapsed()
    };
    // The first one does not wait.
    let least = Duration::from_millis(1000 / 20) * (COMMANDS - 2);
    let limited = load();
    assert!(limited >= least, "{limited:?}");
    let socket = lab.directory.path().join("control.sock");
    let socket = socket.to_str().expect("UTF-8");
    let seen = status(socket);
    let limit = &seen["rate_limits"][0];
    assert_eq!(limit["host"], "nqn.2026-11.org.example:host");
    assert!(limit["throttled_by_iops"].as_u64().expect("a number") >= u64::from(COMMANDS) - 2);
    assert!(limit["waited_ns"].as_u64().expect("a number") > 0);
    lab.write(&lab.base);
    let ended = lab.apply(&[]);
    assert!(
        ended.stdout.contains("end all rate limits: done"),
        "{ended:?}"
    );
    let unlimited = load();
    assert!(unlimited < limited, "{unlimited:?}");
    lab.end();
}

/// The status as JSON.
fn status(socket: &str) -> serde_json::Value {
    let finished = run(&["status", "--json", "--socket", socket]);
    serde_json::from_str(&finished.stdout).expect("JSON")
}

/// A latency target and a weight apply to connected hosts, and the status shows who may wait.
#[test]
fn latency_targets_and_weights_change_live() {
    let lab = Lab::new("10s");
    let (_admin, mut io) = attach(&lab);
    let base = lab.base.clone();
    let other = "\n[[device]]\nname = \"target-device\"\ntype = \"memory\"\nsize = \"1MiB\"\n[[export]]\n\
                 nqn = \"nqn.2026-11.org.example:target\"\ndevices = [\"target-device\"]\n\
                 listeners = [\"LISTENER\"]\nallow_any_host = true\n";
    let listener = base.split("[[listener]]").nth(1).expect("there is one");
    let listener = listener.split("name = \"").nth(1).expect("it has a name");
    let listener = listener.split('"').next().expect("it ends");
    let other = other.replace("LISTENER", listener);
    lab.write(&(base.clone() + &other));
    assert!(lab.apply(&[]).status.success());
    // A status may be a moment old.
    let seen = |lab: &Lab, is_wanted: fn(&[serde_json::Value]) -> bool| {
        let socket = lab.directory.path().join("control.sock");
        let began = Instant::now();
        loop {
            let status = status(socket.to_str().expect("UTF-8"));
            let paces = status["paces"].as_array().expect("a list");
            if is_wanted(paces) {
                return paces.clone();
            }
            assert!(began.elapsed() < LIMIT, "{paces:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    seen(&lab, <[_]>::is_empty);

    lab.write(&(base.clone() + &other + "p99 = \"500us\"\nweight = 7\n"));
    let step = "live     keep 99 % of the latencies of nqn.2026-11.org.example:target below 500us, \
                with weight 7 on its disk";
    let planned = format!("{step}\n1 step(s); nothing was changed\n");
    expect(&lab.apply(&["--dry-run"]), 0, &planned);
    seen(&lab, <[_]>::is_empty);
    let done = lab.apply(&[]);
    assert_eq!(done.stdout.lines().next(), Some(&*format!("{step}: done")));
    let (result, _) = io
        .command(Sqe::read(1, 0, 0), &[], 512)
        .expect("it is connected");
    assert!(result.status().is_success());
    for pace in seen(&lab, |paces| !paces.is_empty()) {
        assert_ne!(pace["export"], "nqn.2026-11.org.example:target");
        assert_eq!(pace["reason"], "latency");
        assert_eq!(pace["limit"], serde_json::Value::Null);
    }

    lab.write(&(base + &other));
    assert!(lab.apply(&[]).status.success());
    seen(&lab, <[_]>::is_empty);
    lab.end();
}
