//! Runs the command against a small target over real sockets, and checks its output, its files and
//! its exit codes.

#[path = "../../nvme/host/tests/fake/mod.rs"]
#[expect(dead_code, reason = "the host's own tests use the rest")]
mod fake;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use bench::report::RunReports;
use fake::{BLOCK, BLOCKS, FakeTarget, NQN, TargetBehavior};
use nvme_spec::command::IoOpcode;
use nvme_spec::tcp::C2hEnd;
use nvme_spec::{Sqe, Status};
use rustix::process::{Pid, Signal};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(arguments)
        .output()
        .expect("the command runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn verify(target: &FakeTarget, more: &[&str]) -> Output {
    let address = target.address.to_string();
    let mut arguments = vec![
        "run",
        "--address",
        &address,
        "--verify",
        "--ops",
        "600",
        "--depth",
        "16",
        "--seed",
        "5",
    ];
    arguments.extend(more);
    bench(&arguments)
}

#[test]
fn verified_run_prints_a_table_and_writes_json() {
    let target = FakeTarget::start(TargetBehavior {
        r2t_bytes: 5000,
        ..TargetBehavior::default()
    });
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("run.json");
    let file = file.to_str().expect("a name");
    let output = verify(&target, &["--all-namespaces", "--progress", "--json", file]);
    let (printed, told) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{printed}{told}");
    for part in [
        NQN,
        "2 MiB, blocks of 512 B",
        "fill",
        "random read",
        "random write",
        "read back",
        "every one as it was written",
        "seed 5",
        "p99.9",
    ] {
        assert!(printed.contains(part), "no {part} in:\n{printed}");
    }
    assert!(
        told.contains("namespace 1, fill: done") && told.contains("read back: done"),
        "{told}"
    );
    let kept = std::fs::read_to_string(file).expect("written");
    let kept: RunReports = serde_json::from_str(&kept).expect("JSON");
    let [run] = &kept.runs[..] else {
        panic!("one namespace")
    };
    assert!(run.verified && run.trouble.is_none());
    let names: Vec<&str> = run.phases.iter().map(|phase| phase.name.as_str()).collect();
    assert_eq!(names, ["fill", "main", "read back"]);
    let main = &run.phases[1];
    let operations = |report: &Option<bench::report::OperationReport>| {
        report.map_or(0, |report| report.operations)
    };
    assert_eq!(operations(&main.reads) + operations(&main.writes), 600);
    assert_eq!(run.phases[2].blocks_right, BLOCKS);
    assert!(run.host.placed_bytes + run.host.copied_bytes >= BLOCKS * BLOCK as u64);
}

#[test]
fn threads_queues_and_digests_work_together() {
    let target = FakeTarget::start(TargetBehavior {
        c2h_bytes: 3000,
        success_flag: false,
        ..TargetBehavior::default()
    });
    let more = [
        "--header-digest",
        "--data-digest",
        "--nqn",
        NQN,
        "--nsid",
        "1",
        "--warm-up",
        "0.01",
    ];
    let refused = verify(&target, &[&more[..], &["--queues", "3"]].concat());
    let told = text(&refused.stderr);
    assert!(
        !refused.status.success() && told.contains("grants 2 I/O queues, not 3"),
        "{told}"
    );
    let generous = FakeTarget::start(TargetBehavior {
        grants_all_queues: true,
        ..TargetBehavior::default()
    });
    let output = verify(
        &generous,
        &[&more[..], &["--queues", "3", "--threads", "2"]].concat(),
    );
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{printed}{}", text(&output.stderr));
    assert!(
        printed.contains("3 queues of depth 16, header and data digests"),
        "{printed}"
    );
    assert!(!printed.contains("warm up"), "{printed}");
}

#[test]
fn wrong_data_fails_the_run() {
    let reads = AtomicU32::new(0);
    let target = FakeTarget::with_hook(TargetBehavior::default(), move |peer, sqe: &Sqe| {
        let wrong =
            sqe.io_opcode() == IoOpcode::READ && reads.fetch_add(1, Ordering::Relaxed) == 40;
        if wrong {
            let bytes = sqe.read_write().blocks() as usize * BLOCK;
            peer.send_data(sqe.cid.get(), 0, &vec![0x55; bytes], C2hEnd::Success);
        }
        wrong
    });
    let output = verify(&target, &[]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("FAILED: WRONG DATA: block ") && printed.contains("(corrupt)"),
        "{printed}"
    );
    assert!(
        !printed.contains("every one as it was written"),
        "{printed}"
    );
}

#[test]
fn failed_command_and_lost_connection_are_reported() {
    let target = FakeTarget::with_hook(TargetBehavior::default(), |peer, sqe: &Sqe| {
        let write = sqe.io_opcode() == IoOpcode::WRITE;
        if write {
            peer.respond_status(sqe, Status::NAMESPACE_WRITE_PROTECTED.with_dnr());
        }
        write
    });
    let output = verify(&target, &["--block-size", "4k"]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        printed.contains("FAILED: write of 8 blocks at 0 failed: namespace is write protected"),
        "{printed}"
    );
    let target = FakeTarget::with_hook(TargetBehavior::default(), |peer, _| {
        peer.close();
        true
    });
    let output = verify(&target, &[]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1));
    assert!(printed.contains("FAILED: the "), "{printed}");
}

#[test]
fn unverified_run_stays_within_its_region() {
    for (pattern, queues) in [("random", "1"), ("random", "3"), ("sequential", "1")] {
        let touched = Arc::new(Mutex::new(BTreeSet::new()));
        let noted = Arc::clone(&touched);
        let behaviour = TargetBehavior {
            grants_all_queues: true,
            ..TargetBehavior::default()
        };
        let target = FakeTarget::with_hook(behaviour, move |_, sqe: &Sqe| {
            if matches!(sqe.io_opcode(), IoOpcode::READ | IoOpcode::WRITE) {
                let range = sqe.read_write();
                let first = range.slba.get();
                let mut noted = noted.lock().expect("whole");
                noted.extend(first..first + u64::from(range.blocks()));
            }
            false
        });
        let address = target.address.to_string();
        let output = bench(&[
            "run",
            "--address",
            &address,
            "--nqn",
            NQN,
            "--region",
            "256k",
            "--warm-up",
            "0.01",
            "--ops",
            "3000",
            "--pattern",
            pattern,
            "--queues",
            queues,
            "--seed",
            "3",
        ]);
        let printed = text(&output.stdout);
        assert!(output.status.success(), "{printed}{}", text(&output.stderr));
        let touched = touched.lock().expect("whole");
        let region = 256 * 1024 / BLOCK as u64;
        assert!(region < BLOCKS && touched.last().is_some_and(|last| *last < region));
        // Three queues leave a remainder unused.
        let all = touched.len() as u64;
        assert!(all > region - 3 * 8, "{all} of {region} blocks");
    }
}

#[test]
fn results_of_jobs_before_a_failure_are_saved() {
    let directory = tempfile::tempdir().expect("a directory");
    let (jobs, json) = (
        directory.path().join("w.toml"),
        directory.path().join("run.json"),
    );
    let file = "[defaults]\nops = 50\n[[job]]\nname = 'good'\ndevice = 'memory:1M'\n\
        [[job]]\nname = 'bad'\ndevice = 'memory:1M'\nregion = '2M'\n";
    for together in ["", "together = true\n"] {
        std::fs::write(&jobs, format!("{together}{file}")).expect("written");
        let [jobs, json] = [&jobs, &json].map(|path| path.to_str().expect("a name"));
        let output = bench(&["run", "--workload", jobs, "--json", json]);
        let told = text_of_failure(&output);
        assert!(told.contains("bad, a region of 2 MiB"), "{told}");
        assert!(text(&output.stdout).starts_with("good: "), "{told}");
        let kept = std::fs::read_to_string(json).expect("written");
        let kept: RunReports = serde_json::from_str(&kept).expect("JSON");
        assert_eq!(kept.runs.len(), 1);
    }
}

fn text_of_failure(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1));
    text(&output.stderr)
}

#[test]
fn interrupted_run_prints_partial_results() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("run.json");
    let mut child = Command::new(env!("CARGO_BIN_EXE_bench"))
        .args(["run", "--device", "memory:1M", "--verify", "--time", "3600"])
        .args(["--progress", "--json", file.to_str().expect("a name")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command runs");
    let mut told = BufReader::new(child.stderr.take().expect("piped")).lines();
    let filled = told.find(|line| line.as_ref().is_ok_and(|line| line.contains("fill: done")));
    assert!(filled.is_some(), "it ended by itself");
    rustix::process::kill_process(Pid::from_child(&child), Signal::INT).expect("it is there");
    let output = child.wait_with_output().expect("it ends");
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(130), "{printed}");
    assert!(
        printed.contains("random read") && printed.contains("interrupted: "),
        "{printed}"
    );
    let kept = std::fs::read_to_string(file).expect("written");
    let kept: RunReports = serde_json::from_str(&kept).expect("JSON");
    assert!(kept.runs[0].interrupted);
}

#[test]
fn errors_are_printed_in_one_line() {
    let target = FakeTarget::start(TargetBehavior {
        discovery_entries: 0,
        ..TargetBehavior::default()
    });
    let address = target.address.to_string();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let absent = nobody.local_addr().expect("bound").to_string();
    drop(nobody);
    for (arguments, code, part) in [
        (&["run", "--address", &absent][..], 1, "cannot connect to"),
        (&["discover", "--address", &absent], 1, "cannot connect to"),
        (
            &["run", "--address", &address],
            1,
            "offers this host no subsystem",
        ),
        (
            &[
                "run",
                "--address",
                &address,
                "--nqn",
                "nqn.2026-11.org.windlass:no",
            ],
            1,
            "`bench discover` lists",
        ),
        (
            &["run", "--address", &address, "--nqn", NQN, "--nsid", "7"],
            1,
            "has no namespace 7: it has 1",
        ),
        (
            &["run", "--address", &address, "--nqn", NQN, "--depth", "500"],
            1,
            "must be 1 to 127",
        ),
        (
            &[
                "run",
                "--address",
                &address,
                "--nqn",
                NQN,
                "--block-size",
                "1000",
            ],
            1,
            "does not suit",
        ),
        (
            &[
                "run",
                "--address",
                &address,
                "--nqn",
                NQN,
                "--cores",
                "1023",
            ],
            1,
            "core 1023",
        ),
        (&["run", "--mix", "1/1"], 2, "do not add up to 100"),
    ] {
        let output = bench(arguments);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {told}");
        assert!(told.contains(part), "{arguments:?}: {told}");
        assert_eq!(told.trim_end().lines().count(), 1, "{arguments:?}: {told}");
        assert!(
            told.starts_with("bench: ") && output.stdout.is_empty(),
            "{arguments:?}: {told}"
        );
    }
}

#[test]
fn discovered_subsystems_are_listed() {
    let target = FakeTarget::start(TargetBehavior {
        discovery_entries: 2,
        ..TargetBehavior::default()
    });
    let output = bench(&["discover", "--address", &target.address.to_string()]);
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(printed.matches(NQN).count(), 2, "{printed}");
    assert!(
        printed.contains("tcp") && printed.contains("127.0.0.1"),
        "{printed}"
    );
}
