//! `windlass upgrade` while hosts write and verify: they see no reconnection, no error and every
//! byte; a new process that fails leaves the old one serving.
//!
//! A program that fails at a chosen step is this test program, started by a script.

mod process;
mod restart;

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bench::upgrade::{Replacement, UpgradeError, UpgradeOptions, measure};
use bench::verify::{check, stamp};
use hugemem::{Arena, ArenaConfig, PagePolicy};
use nvme_handover_channel::{Channel, Message};
use nvme_host::{
    ConnectOptions, Controller, HostError, HostIdentity, IoQueue, IoQueuePlan, TlsOptions,
    Transport,
};
use nvme_keys::{Hash, TlsKey};
use process::{Finished, LIMIT, Windlass, run};
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, test_kill_process,
};
use tempfile::TempDir;

const NQN: &str = "nqn.2026-11.org.windlass:upgrade";
/// An export over TLS only, and its host.
const PROTECTED_NQN: &str = "nqn.2026-11.org.windlass:protected";
const PROTECTED_HOST: &str = "nqn.2026-11.org.example:protected";
const BLOCK_BYTES: usize = 512;
const HOSTS: u8 = 3;
/// I/O queues of each host: one on RAM, one on a file.
const QUEUES: u16 = 2;
const DEPTH: u16 = 16;
/// Blocks of each queue, which it rewrites and reads in each round.
const BLOCKS: u64 = 12;
/// Connections of all hosts.
const CONNECTIONS: u64 = HOSTS as u64 * (QUEUES as u64 + 1);
/// Selects what the other process does.
const STEP: &str = "WINDLASS_TEST_STEP";

/// An appliance with its socket in its own directory.
struct Lab {
    directory: TempDir,
    windlass: Windlass,
    /// The process that serves, which is ended with the lab.
    pid: Pid,
}

/// A directory with the configuration of an appliance.
fn configure(more: &str) -> (TempDir, PathBuf) {
    let directory = TempDir::new().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let several = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
    let cores = if several { "cores = \"0-1\"" } else { "" };
    let text = format!(
        r#"
[appliance]
name = "upgraded"
memory = "32MiB"
pages = "ordinary"
{cores}
[control]
socket = "{}"
http = "off"
[[device]]
name = "ram"
type = "memory"
size = "8MiB"
[[device]]
name = "vol"
type = "file"
path = "{}"
size = "8MiB"
[[listener]]
name = "loopback"
transport = "tcp"
address = "127.0.0.1:0"
[[export]]
nqn = "{NQN}"
devices = ["ram", "vol"]
listeners = ["loopback"]
allow_any_host = true
{more}
"#,
        path("control.sock"),
        path("vol.img"),
    );
    let file = directory.path().join("windlass.toml");
    fs::write(&file, text).expect("writable");
    (directory, file)
}

impl Lab {
    fn new(more: &str) -> Self {
        let (directory, file) = configure(more);
        let windlass = Windlass::start(&file);
        let pid = windlass.pid();
        Self {
            directory,
            windlass,
            pid,
        }
    }

    fn address(&self) -> SocketAddr {
        self.windlass.address()
    }

    fn command(&self, arguments: &[&str]) -> Finished {
        let socket = self.directory.path().join("control.sock");
        let socket = socket.to_str().expect("UTF-8");
        run(&[arguments, &["--socket", socket]].concat())
    }

    /// Waits until the control socket is served again.
    fn status(&self) -> serde_json::Value {
        let began = Instant::now();
        loop {
            let shown = self.command(&["status", "--json"]);
            if shown.status.success() {
                return serde_json::from_str(&shown.stdout).expect("JSON");
            }
            assert!(began.elapsed() < LIMIT, "{shown:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Upgrades to the same program when the control socket is served; returns the answer.
    fn upgrade(&mut self) -> serde_json::Value {
        self.status();
        self.upgrade_once()
    }

    /// Upgrades to the same program; returns the answer.
    fn upgrade_once(&mut self) -> serde_json::Value {
        let done = self.command(&["upgrade", "--json"]);
        assert!(done.status.success(), "{done:?}");
        let answer: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
        let pid = answer["pid"].as_i64().expect("a process");
        let old = self.pid;
        self.pid = Pid::from_raw(pid as i32).expect("a process");
        assert_ne!(old, self.pid);
        wait_for_end(old);
        answer
    }

    /// An executable script.
    fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::write(&path, text).expect("writable");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("own file");
        path
    }

    /// Stops the process that serves.
    fn stop(&self) {
        kill_process(self.pid, Signal::TERM).expect("it runs");
        wait_for_end(self.pid);
    }
}

/// Waits until a process has ended, whether or not its parent has noticed.
fn wait_for_end(pid: Pid) {
    let began = Instant::now();
    loop {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        let state = stat
            .ok()
            .and_then(|text| Some(text.rsplit_once(") ")?.1.chars().next()));
        if matches!(state.flatten(), None | Some('Z' | 'X')) {
            return;
        }
        assert!(began.elapsed() < LIMIT, "process {pid:?} does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = kill_process(self.pid, Signal::KILL);
    }
}

/// The rounds of each queue, and whether they are to end.
#[derive(Default)]
struct Progress {
    rounds: [AtomicU64; HOSTS as usize * QUEUES as usize],
    finished: AtomicBool,
}

/// Ends the hosts, also if the test fails.
struct Finish<'p>(&'p Progress);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.0.finished.store(true, Ordering::Relaxed);
    }
}

impl Progress {
    /// Waits until each queue has completed two more rounds, the second of which began after the
    /// call.
    fn wait(&self) {
        let rounds = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let before = self.rounds.each_ref().map(rounds);
        let began = Instant::now();
        for (counter, before) in self.rounds.iter().zip(before) {
            while rounds(counter) < before + 2 {
                assert!(began.elapsed() < LIMIT, "a host waits");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

fn attach(address: SocketAddr, host: u8) -> (Controller, Vec<IoQueuePlan>) {
    let identity = HostIdentity::from_uuid([host + 1; 16]);
    let options = ConnectOptions {
        timeout: LIMIT,
        ..ConnectOptions::new(address, NQN, identity)
    };
    let mut controller = Controller::connect(options).expect("it listens");
    let queues = controller.request_io_queues(QUEUES);
    assert_eq!(queues.expect("a response"), QUEUES);
    let plan = |qid| controller.plan_io_queue(qid, DEPTH).expect("a right depth");
    let plans = (1..=QUEUES).map(plan).collect();
    (controller, plans)
}

/// Waits for the completion of each of [`BLOCKS`] commands, in any order; returns their data.
fn complete_all(queue: &mut IoQueue, what: &'static str) -> Vec<(u64, Option<Vec<u8>>)> {
    let mut all = Vec::new();
    for _ in 0..BLOCKS {
        let completion = queue.wait_completion(LIMIT, what).expect("no reconnection");
        assert!(completion.status().is_success(), "{}", completion.status());
        let data = completion.data.map(|data| data.to_vec());
        assert!(all.iter().all(|(token, _)| *token != completion.token));
        all.push((completion.token, data));
    }
    all
}

fn read_and_check(queue: &mut IoQueue, nsid: u32, first: u64, generation: u32) {
    for lba in first..first + BLOCKS {
        let lease = queue.pool().take(BLOCK_BYTES).expect("memory");
        assert!(queue.submit_read(nsid, lba, 1, lease, lba).is_ok());
    }
    queue.flush().expect("no reconnection");
    for (lba, data) in complete_all(queue, "Read") {
        let data = data.expect("a read's data");
        check(&data, 0, lba, generation).expect("the block that was written last");
    }
}

/// Writes all blocks, reads them, and so on.
fn work(queue: &mut IoQueue, number: usize, progress: &Progress) {
    let nsid = 1 + number as u32 % u32::from(QUEUES);
    let first = number as u64 * BLOCKS;
    let mut generation = 0;
    while !progress.finished.load(Ordering::Relaxed) {
        generation += 1;
        for lba in first..first + BLOCKS {
            let mut data = queue.pool().take(BLOCK_BYTES).expect("memory");
            stamp(&mut data, 0, lba, generation);
            let submitted = queue.submit_write(nsid, (lba, 1), false, data, lba);
            assert!(submitted.is_ok(), "the queue has room");
        }
        queue.flush().expect("no reconnection");
        complete_all(queue, "Write");
        read_and_check(queue, nsid, first, generation);
        progress.rounds[number].fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs `administer` while the hosts work, and stops the hosts then.
fn with_hosts(address: SocketAddr, administer: impl FnOnce(&Progress)) {
    let arena = Arena::new(ArenaConfig {
        bytes: 16 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 64 << 10,
    });
    let arena = arena.expect("a small arena");
    let progress = Progress::default();
    std::thread::scope(|scope| {
        let mut controllers = Vec::new();
        let mut workers = Vec::new();
        // Dropped before the controllers, so that no association ends before its work.
        let finish = Finish(&progress);
        for host in 0..HOSTS {
            let (controller, plans) = attach(address, host);
            controllers.push(controller);
            for (queue, plan) in plans.into_iter().enumerate() {
                let number = usize::from(host) * usize::from(QUEUES) + queue;
                let (arena, progress) = (Arc::clone(&arena), &progress);
                workers.push(scope.spawn(move || {
                    let mut queue = plan.open(arena.pool(0)).expect("the queue is free");
                    work(&mut queue, number, progress);
                }));
            }
        }
        progress.wait();
        administer(&progress);
        for controller in &mut controllers {
            // The admin queues have continued too.
            let queues = controller.request_io_queues(QUEUES);
            assert!(queues.is_err(), "the queues exist already");
        }
        drop(finish);
        for worker in workers {
            worker.join().expect("the host sees no error");
        }
    });
}

#[test]
fn hosts_continue_while_the_process_is_replaced() {
    let mut lab = Lab::new("");
    let address = lab.address();
    let uuids = |lab: &Lab| lab.status()["exports"][0]["namespaces"].clone();
    let before = uuids(&lab);
    with_hosts(address, |progress| {
        for _ in 0..4 {
            let answer = lab.upgrade();
            assert_eq!(answer["connections"], CONNECTIONS, "{answer}");
            progress.wait();
        }
        // New hosts reach the listener of the first process.
        let (controller, _) = attach(address, HOSTS);
        drop(controller);
    });
    let after = uuids(&lab);
    for (before, after) in before
        .as_array()
        .expect("a list")
        .iter()
        .zip(after.as_array().expect("a list"))
    {
        assert_eq!(before["uuid"], after["uuid"]);
        assert_eq!(before["device"], after["device"]);
    }
    let dry = lab.command(&["upgrade", "--dry-run"]);
    assert!(dry.status.success(), "{dry:?}");
    assert!(dry.stdout.contains("1 RAM device(s) keep their content"));
    assert!(dry.stdout.contains("can continue; nothing was changed"));
    lab.stop();
    let Lab { windlass, .. } = &lab;
    assert!(test_kill_process(windlass.pid()).is_ok(), "not reaped yet");
}

/// The part of a configuration with an export to [`PROTECTED_HOST`] over TLS.
fn over_tls(directory: &Path) -> String {
    let path = directory.join("key");
    fs::write(&path, tls_key().expose_interchange().as_str()).expect("writable");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("own file");
    format!(
        r#"
[[key]]
name = "key"
file = "{}"
[[device]]
name = "secret"
type = "memory"
size = "1MiB"
[[listener]]
name = "protected"
transport = "tcp"
address = "127.0.0.2:0"
tls = "required"
[[export]]
nqn = "{PROTECTED_NQN}"
devices = ["secret"]
listeners = ["protected"]
hosts = [{{ nqn = "{PROTECTED_HOST}", tls = "key", require = ["tls"] }}]
"#,
        path.display()
    )
}

fn tls_key() -> TlsKey {
    TlsKey::new(Hash::Sha256, &[7; 32]).expect("the length fits")
}

fn attach_over_tls(address: SocketAddr) -> Controller {
    let identity = HostIdentity {
        nqn: PROTECTED_HOST.to_owned(),
        id: [0x77; 16],
    };
    let options = ConnectOptions {
        timeout: LIMIT,
        transport: Transport::tls(TlsOptions::new(tls_key())),
        ..ConnectOptions::new(address, PROTECTED_NQN, identity)
    };
    Controller::connect(options).expect("the right key")
}

#[test]
fn hosts_over_tls_connect_again() {
    let keys = TempDir::new().expect("a directory");
    let mut lab = Lab::new(&over_tls(keys.path()));
    let protected = lab.windlass.address_of(PROTECTED_NQN);
    let mut controller = attach_over_tls(protected);
    with_hosts(lab.address(), |progress| {
        let dry = lab.command(&["upgrade", "--dry-run"]);
        assert!(dry.status.success(), "{dry:?}");
        let expected = "1 host(s) over TLS are disconnected and connect again";
        assert!(dry.stdout.contains(expected), "{dry:?}");
        controller.keep_alive().expect("nothing was changed");
        for _ in 0..2 {
            let answer = lab.upgrade();
            assert_eq!(answer["connections"], CONNECTIONS, "{answer}");
            let end = controller.wait_end(LIMIT).expect("it is disconnected");
            assert!(matches!(end, HostError::Closed), "close_notify: {end}");
            controller = attach_over_tls(protected);
            controller
                .keep_alive()
                .expect("the new process has the key");
            progress.wait();
        }
    });
    drop(controller);
    lab.stop();
}

/// A program of the same kind that fails at a step.
fn failing(lab: &Lab, step: &str) -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let text = format!(
        "#!/bin/sh\n{STEP}={step} exec '{}' --exact the_other_process >/dev/null 2>&1\n",
        program.display()
    );
    lab.script(step, &text)
}

/// Not a test: the process that another test starts as the new one.
#[test]
fn the_other_process() {
    let Ok(step) = std::env::var(STEP) else {
        return;
    };
    let input: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().expect("open");
    let channel = Channel::new(UnixStream::from(input), LIMIT).expect("a channel");
    let refuse = || channel.send_refused("this version reads only version 0");
    if step == "refuses-offer" {
        return refuse().expect("the old process waits");
    }
    let process = pidfd_open(getpid(), PidfdFlags::empty()).expect("this process");
    let started = channel.send_started(std::process::id(), process.as_fd());
    started.expect("the old process waits");
    let Ok(Message::State { descriptors, .. }) = channel.receive() else {
        panic!("no offer")
    };
    assert_eq!(descriptors.len(), 4, "arena, RAM device, file and listener");
    channel.send_restored().expect("the old process waits");
    let Ok(Message::State { descriptors, .. }) = channel.receive() else {
        panic!("no state")
    };
    assert_eq!(descriptors.len() as u64, CONNECTIONS);
    match step.as_str() {
        "refuses-state" => refuse().expect("the old process waits"),
        "dies" => std::process::abort(),
        "hangs" => std::thread::sleep(LIMIT),
        _ => {}
    }
}

#[test]
fn the_old_process_serves_on_if_the_new_one_fails() {
    let lab = Lab::new("");
    let plain = lab.script("plain", "");
    fs::set_permissions(&plain, Permissions::from_mode(0o644)).expect("own file");
    let starved = format!(
        "#!/bin/sh\nulimit -n 8; exec '{}' \"$@\"\n",
        env!("CARGO_BIN_EXE_windlass")
    );
    let programs = [
        (plain, "it is not executable"),
        (
            lab.script("no-program", "no program\n"),
            "cannot be started",
        ),
        (
            lab.script("ends", "#!/bin/sh\nexit 3\n"),
            "has ended (exit status: 3)",
        ),
        (
            lab.script("garbage", "#!/bin/sh\nprintf 0123456789ab >&0; sleep 1\n"),
            "sent an invalid message",
        ),
        (lab.script("starved", &starved), "the limit of open files"),
        (failing(&lab, "refuses-offer"), "reads only version 0"),
        (failing(&lab, "refuses-state"), "reads only version 0"),
        (failing(&lab, "dies"), "has ended (signal: 6"),
        (failing(&lab, "hangs"), "does not answer"),
    ];
    with_hosts(lab.address(), |progress| {
        for (program, reason) in &programs {
            let done = lab.command(&["upgrade", program.to_str().expect("UTF-8")]);
            assert_eq!(done.status.code(), Some(1), "{program:?}: {done:?}");
            assert!(done.stderr.contains(reason), "{program:?}: {done:?}");
            assert!(done.stderr.contains("this process serves on"), "{done:?}");
            progress.wait();
        }
        let missing = lab.command(&["upgrade", "/nothing/here"]);
        assert_eq!(missing.status.code(), Some(1), "{missing:?}");
        assert!(missing.stderr.contains("/nothing/here cannot be found"));
    });
    assert!(
        test_kill_process(lab.pid).is_ok(),
        "the same process serves"
    );
    lab.stop();
}

#[test]
fn changes_are_refused_while_the_new_process_takes_the_state() {
    let lab = Lab::new("");
    let hanging = failing(&lab, "hangs");
    let hanging = hanging.to_str().expect("UTF-8");
    let host = HostIdentity::from_uuid([1; 16]);
    // Sets the state that there is, so that it disturbs no host.
    let set: &[&str] = &["ana", "set", "optimized", "--export", NQN];
    let changes: [&[&str]; 4] = [
        set,
        &["reservations", "ram", "--clear"],
        &["evict", &host.nqn, "--export", NQN],
        &["apply"],
    ];
    with_hosts(lab.address(), |progress| {
        std::thread::scope(|scope| {
            let upgrade = scope.spawn(|| lab.command(&["upgrade", hanging]));
            // They are confirmed and kept until the state is taken, for which the upgrade waits until
            // none is in progress.
            let set_always =
                || while lab.command(set).status.success() && !upgrade.is_finished() {};
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(set_always);
                }
            });
            if upgrade.is_finished() {
                panic!("no change was refused: {:?}", upgrade.join());
            }
            for change in changes {
                let refused = lab.command(change);
                assert_eq!(refused.status.code(), Some(1), "{change:?}: {refused:?}");
                let is_told = ["an upgrade is under way", "a new process started"]
                    .iter()
                    .any(|reason| refused.stderr.contains(reason));
                assert!(is_told, "{change:?}: {refused:?}");
            }
            assert!(!upgrade.is_finished(), "the new process hangs");
            let failed = upgrade.join().expect("no panic");
            assert!(failed.stderr.contains("does not answer"), "{failed:?}");
        });
        progress.wait();
        let done = lab.command(set);
        assert!(done.status.success(), "{done:?}");
    });
    lab.stop();
}

#[test]
fn pause_of_hosts_is_measured() {
    for replacement in [Replacement::Upgrade, Replacement::Restart] {
        let mut options = UpgradeOptions {
            windlass: env!("CARGO_BIN_EXE_windlass").into(),
            to: None,
            replacement,
            connections: 9,
            depth: 2,
            memory_bytes: 64 << 20,
            target_cores: Vec::new(),
            host_cores: Vec::new(),
            rounds: 1,
            time: Duration::from_secs(3),
        };
        let report = loop {
            match measure(&options, |_| {}, &|| false) {
                // The machine is busy.
                Err(UpgradeError::TooShort) if options.time < LIMIT => options.time *= 3,
                measured => break measured.expect("hosts see no error"),
            }
        };
        assert_eq!(report.rounds.len(), 1, "{report}");
        for round in &report.rounds {
            // Two controllers.
            assert_eq!(round.connections, 11, "{report}");
            assert!(round.command_ns > 0 && round.blocks_right > 0, "{report}");
            let seen = round.pause_ns + round.usual_gap_ns;
            assert!(seen > round.held_ns / 2, "{report}");
            let reports_hold = replacement == Replacement::Upgrade;
            assert_eq!(round.held_ns > 0, reports_hold, "{report}");
        }
    }
}

/// A drive that the old process could not open is missing in the new one, too.
#[test]
fn missing_drive_prevents_no_upgrade() {
    let drive = "[[device]]\nname = \"fast\"\ntype = \"nvme\"\npci = \"ffff:ff:1f.7\"\n";
    let mut lab = Lab::new(drive);
    with_hosts(lab.address(), |progress| {
        let answer = lab.upgrade_once();
        assert_eq!(answer["connections"], CONNECTIONS, "{answer}");
        progress.wait();
    });
    lab.stop();
}

#[test]
fn appliance_with_a_volume_is_not_handed_over() {
    let volume = r#"
[[device]]
name = "tree"
type = "memory"
size = "16MiB"
[[volume]]
name = "home"
device = "tree"
metadata_memory = "4MiB"
[[share]]
name = "home"
volume = "home"
allow_any_client = true
[[file_listener]]
name = "nfs"
address = "127.0.0.1:0"
"#;
    let lab = Lab::new(volume);
    for arguments in [&["upgrade"][..], &["upgrade", "--dry-run"]] {
        let refused = lab.command(arguments);
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        let expected = "volume home: the state of its clients belongs to a process";
        assert!(refused.stderr.contains(expected), "{refused:?}");
    }
    assert!(Path::new(&format!("/proc/{}", lab.pid.as_raw_nonzero())).exists());
    lab.stop();
}
