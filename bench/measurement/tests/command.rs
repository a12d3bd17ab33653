//! Runs the command and checks its output, its files and its exit codes.

use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use measurement::cost::LoopCounts;
use rustix::process::{Pid, Signal};

fn measure(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_measure"))
        .args(arguments)
        .output()
        .expect("the command runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn errors_are_one_line() {
    for (arguments, code, part) in [
        (&["ceiling"][..], 2, "required"),
        (&["compare", "udp"], 2, "invalid value"),
        (
            &["compare", "tcp", "--windlass", "/nonexistent"],
            1,
            "does not exist",
        ),
    ] {
        let output = measure(arguments);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {told}");
        assert!(told.contains(part), "{arguments:?}: {told}");
        assert_eq!(told.trim_end().lines().count(), 1, "{arguments:?}: {told}");
        assert!(
            told.starts_with("measure: ") && output.stdout.is_empty(),
            "{arguments:?}: {told}"
        );
    }
}

#[test]
fn interrupted_command_removes_its_appliance_and_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let (files, appliance) = (
        directory.path().join("files"),
        directory.path().join("appliance"),
    );
    std::fs::create_dir(&files).expect("a directory");
    // An appliance that never serves and writes its process identifier to a file.
    let script = "#!/bin/sh\necho $$ > \"$0.tmp\" && mv \"$0.tmp\" \"$0.pid\"\nexec sleep 1000\n";
    std::fs::write(&appliance, script).expect("written");
    std::fs::set_permissions(&appliance, std::fs::Permissions::from_mode(0o755)).expect("its own");
    let mut child = Command::new(env!("CARGO_BIN_EXE_measure"))
        .args(["storm", "--windlass"])
        .arg(&appliance)
        .env("TMPDIR", &files)
        .stderr(Stdio::null())
        .spawn()
        .expect("the command runs");
    let told = directory.path().join("appliance.pid");
    while !told.exists() {
        let ended = child.try_wait().expect("it is ours");
        assert!(ended.is_none(), "{ended:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(std::fs::read_dir(&files).expect("there").count(), 1);
    rustix::process::kill_process(Pid::from_child(&child), Signal::INT).expect("it is there");
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(130));
    assert_eq!(std::fs::read_dir(&files).expect("there").count(), 0);
    let appliance = std::fs::read_to_string(told).expect("written");
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", appliance.trim()));
    // The process that adopted it as a child may not have reaped it yet.
    while state().is_ok_and(|state| !state.contains(") Z ")) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn counts(subject: &str) -> LoopCounts {
    let output = measure(&["cost", subject, "--loop", "4000"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("counts")
}

fn each(counts: &LoopCounts, name: &str) -> f64 {
    let found = counts.counted.iter().find(|(one, _)| one == name);
    found.expect("counted").1 as f64 / counts.requests as f64
}

#[test]
fn driver_loop_does_not_allocate_and_batches_doorbells() {
    let counts = counts("driver");
    assert!(counts.requests >= 4000);
    assert_eq!(counts.allocations, 0);
    assert!(each(&counts, "doorbells") < 1.0 / 8.0);
    assert_eq!(each(&counts, "commands"), 1.0);
}

#[test]
fn rdma_target_loop_does_not_allocate_or_copy() {
    let counts = counts("rdma");
    assert!(counts.requests >= 4000);
    assert_eq!(counts.allocations, 0);
    assert_eq!(each(&counts, "work requests"), 2.0);
    assert!(each(&counts, "completions") < 1.1);
    assert_eq!(each(&counts, "bytes copied"), 0.0);
}
