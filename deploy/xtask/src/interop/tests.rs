//! Tests the harness with a fake appliance and a fake lab.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Instant;

use super::*;

/// A harness in its own directory, and that directory.
fn harness(plan: &str) -> (Harness, tempfile::TempDir) {
    let scratch = tempfile::tempdir().unwrap();
    let fakes = Path::new(env!("CARGO_MANIFEST_DIR")).join("testing");
    let mut appliance = process::program(fakes.join("fake_appliance.py"));
    appliance.env("FAKE_APPLIANCE", plan);
    let harness = Harness {
        appliance,
        lab: process::program(fakes.join("fake_lab.sh")),
        scripts: scratch.path().to_path_buf(),
        results: scratch.path().join("results"),
        share: scratch.path().to_path_buf(),
        self_check: false,
        rounds: 1,
        newer_kernel: false,
    };
    (harness, scratch)
}

/// The result of a guest's script with an appliance that behaves according to `plan`, and the log.
fn outcome(plan: &str, script: &str) -> (Result<(), String>, String) {
    outcome_at(plan, script, Place::Here(&[Device::Memory, Device::File]))
}

fn outcome_at(plan: &str, script: &str, place: Place) -> (Result<(), String>, String) {
    let (harness, scratch) = harness(plan);
    fs::write(scratch.path().join("script.sh"), script).unwrap();
    let scenario = Scenario {
        name: "invented",
        script: "script.sh",
        connect: "--hdr-digest",
        place,
        timeout_s: 60,
    };
    let result = harness.run(&scenario);
    let log = fs::read_to_string(scratch.path().join("results/invented.log")).unwrap();
    (result, log)
}

/// The error of a scenario that has to fail.
fn failure(plan: &str, script: &str) -> String {
    outcome(plan, script).0.unwrap_err()
}

#[test]
fn passing_scenario_writes_its_log() {
    let script = "echo \"$INTEROP_ADDRESS $INTEROP_CONNECT $INTEROP_NQN $INTEROP_NAMESPACES\"
        exec 3<> /dev/tcp/127.0.0.1/$INTEROP_PORT && echo reached; echo oops >&2";
    let (result, log) = outcome("serves", script);
    assert_eq!(result, Ok(()));
    for line in [
        "appliance: windlass: starting",
        "guest: 10.0.2.2 --hdr-digest nqn.2026-11.org.windlass:interop 2",
        "guest: reached",
        "guest: oops",
        "harness: stopping the appliance with SIGTERM",
        "harness: invented: passed",
    ] {
        assert!(log.contains(line), "{line} in {log}");
    }
}

#[test]
fn guest_scenario_starts_no_appliance_on_the_host() {
    let machine = || {
        Place::Guest(Machine {
            options: &["--nvme", "2"],
            namespaces: 4,
        })
    };
    let script = "echo \"$INTEROP_ADDRESS:$INTEROP_PORT $INTEROP_NAMESPACES\"
        test -x \"$INTEROP_PROGRAMS/fake_appliance.py\"";
    let (result, log) = outcome_at("dies at start", script, machine());
    assert_eq!(result, Ok(()), "{log}");
    assert!(log.contains("guest: 127.0.0.1:4420 4"), "{log}");
    assert!(log.contains("run --nvme 2 --share"), "{log}");
    assert!(!log.contains("appliance: "), "{log}");
    let (result, _) = outcome_at("serves", "exit 7", machine());
    assert!(result.unwrap_err().contains("exited with 7"));
}

#[test]
fn a_failing_script_fails_the_scenario() {
    let error = failure("serves", "exit 7");
    assert!(
        error.contains("exited with 7") && error.contains("invented.log"),
        "{error}"
    );
    let error = failure("serves", "echo ok; echo FAILED: no disk; echo 3; exit 1");
    assert!(
        error.contains("exited with 1; FAILED: no disk; 3 (see"),
        "{error}"
    );
    assert!(failure("serves", "exit 124").contains("not done after 60 s"));
    assert!(failure("serves", "exit 125").contains("guest died"));
    assert!(failure("serves", "kill -9 $$").contains("guest died"));
}

#[test]
fn an_appliance_that_does_not_start_fails_the_scenario() {
    let (result, log) = outcome("dies at start", "true");
    assert!(
        result
            .unwrap_err()
            .contains("ended before it was ready: exit status: 3")
    );
    assert!(
        log.contains("appliance: windlass: the port is taken"),
        "{log}"
    );
}

#[test]
fn unexpected_end_of_the_appliance_fails_the_scenario() {
    assert!(failure("dies soon", "exec sleep 30").contains("ended unexpectedly"));
}

#[test]
fn a_failed_stop_fails_the_scenario() {
    assert!(failure("stops badly", "true").contains("stopped with exit status: 4"));
}

/// Shell functions that request the appliance's kill and restart.
const ASK: &str = r#"set -eu
n=0
ask() {
  n=$((n + 1))
  : > "$INTEROP_SIGNALS/$n.$1"
  for turn in $(seq 600); do [ -e "$INTEROP_SIGNALS/$n.done" ] && return; sleep 0.1; done
  exit 9
}
reach() { (exec 3<> /dev/tcp/127.0.0.1/$INTEROP_PORT) 2> /dev/null; }
"#;

#[test]
fn guest_can_kill_and_restart_the_appliance() {
    let script = "reach; ask kill; ! reach; ask start; reach; ask kill; ask start; reach";
    let (result, log) = outcome("serves", &format!("{ASK}{script}"));
    assert_eq!(result, Ok(()), "{log}");
    assert_eq!(log.matches("killing the appliance").count(), 2);
    assert_eq!(log.matches("appliance is ready").count(), 3);
}

#[test]
fn requests_out_of_turn_fail_the_scenario() {
    assert!(failure("serves", &format!("{ASK}ask start")).contains("started it twice"));
    assert!(failure("serves", &format!("{ASK}ask kill; ask kill")).contains("killed it twice"));
}

#[test]
fn a_scenario_may_end_without_an_appliance() {
    assert_eq!(outcome("serves", &format!("{ASK}ask kill")).0, Ok(()));
}

#[test]
fn scenario_leaves_no_process_running() {
    let (harness, scratch) = harness("serves");
    let pid_file = scratch.path().join("pid");
    let script = format!("echo $$ > {}; exec sleep 1000", pid_file.display());
    fs::write(scratch.path().join("script.sh"), script).unwrap();
    let log = Log::create(&scratch.path().join("log")).unwrap();
    let mut command = killed_with_parent(&harness.lab);
    command
        .args(["--", "bash"])
        .arg(scratch.path().join("script.sh"));
    let mut guest = Guest::start(command, &log).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while fs::read_to_string(&pid_file).map_or(0, |text| text.len()) == 0 {
        assert!(Instant::now() < deadline && guest.ended() == Ok(None));
        thread::sleep(POLL_INTERVAL);
    }
    let pid = fs::read_to_string(&pid_file).unwrap();
    drop(guest);
    assert!(!Path::new("/proc").join(pid.trim()).exists());
}

#[test]
fn a_free_port_can_be_listened_on() {
    let port = free_port().unwrap();
    assert!(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
}

#[test]
fn the_configuration_names_every_device_once() {
    let devices = [Device::Memory, Device::File];
    let text = configuration_text(&devices, 4420, Path::new("/a \"quoted\" place"));
    assert_eq!(text.matches("[[device]]").count(), 2);
    assert!(text.contains("devices = [\"device0\", \"device1\"]"));
    assert!(text.contains("path = \"/a \\\"quoted\\\" place/device1.img\""));
    assert!(text.contains("address = \"127.0.0.1:4420\""));
}

#[test]
fn every_scenario_has_its_script() {
    for scenario in SCENARIOS {
        let path = process::root().join("deploy/interop").join(scenario.script);
        assert!(path.is_file(), "{}", path.display());
        let exports = !matches!(scenario.place, Place::Here([]));
        assert!(exports, "{} exports nothing", scenario.name);
        let restarts = fs::read_to_string(&path)
            .unwrap()
            .contains("appliance kill");
        let outlives = matches!(scenario.place, Place::Here([Device::File]));
        assert!(!restarts || outlives, "{}", scenario.name);
    }
}
