//! Output and exit codes of commands that query a running appliance, or need none.

mod copies;
mod process;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use process::{RAM_ON_LOOPBACK, Windlass, run};
use rustix::process::Signal;
use tempfile::TempDir;

const NQN: &str = "nqn.2026-11.org.windlass:commands";

/// An appliance with its socket in its own directory.
fn appliance(directory: &Path) -> Windlass {
    let file = directory.join("windlass.toml");
    let socket = directory.join("control.sock");
    let text = format!(
        r#"
[appliance]
name = "tested"
memory = "16MiB"
pages = "ordinary"
[control]
socket = "{}"
http = "off"
[[device]]
name = "ram"
type = "memory"
size = "8MiB"
[[listener]]
name = "loopback"
transport = "tcp"
address = "127.0.0.1:0"
[[export]]
nqn = "{NQN}"
devices = ["ram"]
listeners = ["loopback"]
allow_any_host = true
"#,
        socket.display()
    );
    fs::write(&file, text).expect("writable");
    Windlass::start(&file)
}

#[track_caller]
fn exit_code(finished: &process::Finished) -> i32 {
    finished.status.code().expect("it exited")
}

#[test]
fn check_says_who_may_connect() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("windlass.toml");
    let hosts = "hosts = [\"nqn.2026-11.org.example:a\", \"nqn.2026-11.org.example:b\"]";
    let masks = "masks = [{ hosts = [\"nqn.2026-11.org.example:b\"], read_only = [\"ram\"] }]";
    for (access, shown) in [
        ("allow_any_host = true".to_owned(), "any host may connect"),
        (hosts.to_owned(), "2 host(s) may connect"),
        (
            format!("{hosts}\n{masks}"),
            "2 host(s) may connect, 1 with masks",
        ),
    ] {
        let text = RAM_ON_LOOPBACK.replace("allow_any_host = true", &access);
        fs::write(&path, text).expect("writable");
        let checked = run(&["check", path.to_str().expect("UTF-8")]);
        assert_eq!(exit_code(&checked), 0, "{checked:?}");
        let lines: Vec<&str> = checked.stdout.lines().map(str::trim).collect();
        assert!(lines.contains(&shown), "{checked:?}");
    }
}

#[test]
fn check_reads_the_keys() {
    let directory = TempDir::new().expect("a directory");
    let (path, key) = (
        directory.path().join("windlass.toml"),
        directory.path().join("key"),
    );
    let key = key.to_str().expect("UTF-8");
    let check = |source: &str| {
        let host = "hosts = [{ nqn = \"nqn.2026-11.org.example:a\", chap = \"db1\" }]";
        let text = RAM_ON_LOOPBACK.replace("allow_any_host = true", host);
        let text = format!("{text}\n[[key]]\nname = \"db1\"\n{source}\n");
        fs::write(&path, text).expect("writable");
        run(&["check", path.to_str().expect("UTF-8")])
    };
    let file = format!("file = \"{key}\"");
    let has_problem = |words: &[&str]| {
        let checked = check(&file);
        assert_eq!(exit_code(&checked), 1, "{checked:?}");
        let lines: Vec<&str> = checked.stdout.lines().collect();
        let start = "problem: it cannot start: key db1: ";
        let mut problems = lines.iter().filter(|it| it.starts_with(start));
        let problem = problems.next().expect("a problem");
        assert!(words.iter().all(|it| problem.contains(it)), "{problem}");
    };
    has_problem(&[key, "No such file"]);
    let generate = ["key", "generate", "--file", key, "--kind"];
    assert_eq!(exit_code(&run(&[&generate[..], &["chap"]].concat())), 0);
    let checked = check(&file);
    assert_eq!(exit_code(&checked), 0, "{checked:?}");
    assert!(!checked.stdout.contains("problem:"), "{checked:?}");
    fs::set_permissions(key, fs::Permissions::from_mode(0o644)).expect("own file");
    has_problem(&["other users may use it", "run chmod 600"]);
    fs::remove_file(key).expect("own file");
    assert_eq!(exit_code(&run(&[&generate[..], &["tls"]].concat())), 0);
    has_problem(&["it is a key for TLS", "--kind chap"]);
    // A credential exists in the service only.
    let checked = check("credential = \"db1\"");
    assert_eq!(exit_code(&checked), 0, "{checked:?}");
    let notice = "notice: key db1 is not checked";
    assert!(checked.stdout.contains(notice), "{checked:?}");
}

#[test]
fn status_shows_a_running_appliance_and_fails_without_one() {
    let directory = TempDir::new().expect("a directory");
    let socket = directory.path().join("control.sock");
    let socket = socket.to_str().expect("UTF-8");
    let missing = run(&["status", "--socket", socket]);
    assert_eq!(exit_code(&missing), 3, "{missing:?}");
    assert!(missing.stderr.contains("no appliance runs here"));

    let windlass = appliance(directory.path());
    let shown = run(&["status", "--since-start", "--socket", socket]);
    assert_eq!(exit_code(&shown), 0, "{shown:?}");
    for part in ["tested is running", NQN, "no problems"] {
        assert!(shown.stdout.contains(part), "{shown:?}");
    }
    let json = run(&["status", "--json", "--socket", socket]);
    let status: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!(status["exports"][0]["nqn"], NQN);

    let once = ["top", "--once", "--delay", "0.1", "--view", "devices"];
    let top = run(&[&once[..], &["--socket", socket]].concat());
    assert_eq!(exit_code(&top), 0, "{top:?}");
    assert!(top.stdout.contains("tested: up"), "{top:?}");
    assert!(top.stdout.contains("ram"), "{top:?}");
    // Standard output is a pipe here.
    let refused = run(&["top", "--socket", socket]);
    assert_eq!(exit_code(&refused), 1, "{refused:?}");
    assert!(refused.stderr.contains("not a terminal"), "{refused:?}");

    windlass.signal(Signal::KILL);
    windlass.wait();
    let abandoned = run(&["status", "--socket", socket]);
    assert_eq!(exit_code(&abandoned), 3, "{abandoned:?}");
    assert!(
        abandoned.stderr.contains("no appliance listens at"),
        "{abandoned:?}"
    );
}

#[test]
fn doctor_runs_without_an_appliance_and_reports_the_worst() {
    let directory = TempDir::new().expect("a directory");
    let root = directory.path().to_str().expect("UTF-8");
    // A machine without any known files.
    let report = run(&["doctor", "--json", "--root", root]);
    assert_eq!(exit_code(&report), 4, "{report:?}");
    let json: serde_json::Value = serde_json::from_str(&report.stdout).expect("JSON");
    assert_eq!(json["worst"], "broken");
    let here = run(&["doctor"]);
    assert!([0, 3, 4].contains(&exit_code(&here)), "{here:?}");
    assert!(here.stdout.contains("memory"), "{here:?}");
    let nowhere = run(&["doctor", "--config", "/nowhere.toml"]);
    assert_eq!(exit_code(&nowhere), 1, "{nowhere:?}");
}

/// States are set for the selected paths; an apply that does not change them keeps them.
#[test]
fn ana_states_are_listed_set_and_kept() {
    let directory = TempDir::new().expect("a directory");
    let windlass = appliance(directory.path());
    let socket = directory.path().join("control.sock");
    let socket = socket.to_str().expect("UTF-8");
    let ana = |arguments: &[&str]| {
        let all = [&["ana"], arguments, &["--socket", socket]].concat();
        run(&all)
    };
    let listed = || {
        let json = ana(&["--json"]);
        let all: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
        all[0]["state"].as_str().expect("a state").to_owned()
    };
    let text = ana(&[]);
    assert_eq!(exit_code(&text), 0, "{text:?}");
    for part in ["CONFIGURED", NQN, "loopback", "optimized"] {
        assert!(text.stdout.contains(part), "{text:?}");
    }
    let set = ana(&["set", "inaccessible", "--export", NQN, "--group", "1"]);
    assert_eq!(exit_code(&set), 0, "{set:?}");
    for part in [
        "group 1 at loopback: optimized -> inaccessible",
        "1 state(s) changed, and commands that hosts sent before have ended",
    ] {
        assert!(set.stdout.contains(part), "{set:?}");
    }
    for (arguments, code, part) in [
        (&["set", "inaccessible"][..], 2, "--export"),
        (&["set", "active", "--export", NQN], 2, "non-optimized"),
        (
            &["set", "change", "--export", NQN, "--group", "129"],
            2,
            "1..=128",
        ),
        (
            &["set", "change", "--export", "nqn.x"],
            1,
            "export nqn.x does not exist",
        ),
        (
            &["set", "change", "--export", NQN, "--listener", "san-b"],
            1,
            "not offered at listener san-b",
        ),
        (
            &["set", "change", "--export", NQN, "--group", "2"],
            1,
            "no namespace in group 2",
        ),
    ] {
        let refused = ana(arguments);
        assert_eq!(exit_code(&refused), code, "{refused:?}");
        assert!(refused.stderr.contains(part), "{part}: {refused:?}");
        assert_eq!(listed(), "inaccessible");
    }
    let file = directory.path().join("windlass.toml");
    let text = fs::read_to_string(&file).expect("readable");
    let apply = |text: &str| {
        fs::write(&file, text).expect("writable");
        let applied = run(&["apply", "--socket", socket]);
        assert_eq!(exit_code(&applied), 0, "{applied:?}");
        applied.stdout
    };
    apply(&format!("{text}max_io_queues = 3\n"));
    assert_eq!(listed(), "inaccessible");
    let ana = "ana = [{ listener = \"loopback\", state = \"non-optimized\" }]";
    let steps = apply(&format!("{text}{ana}\n"));
    let step = format!("live     change ANA groups or states of {NQN}: done");
    assert!(steps.contains(&step), "{steps}");
    assert_eq!(listed(), "non-optimized");
    windlass.signal(Signal::TERM);
    assert_eq!(windlass.wait().0.code(), Some(0));
}

const HOST: &str = "nqn.2026-11.org.example:host";

/// A generated key is one line on standard output, or in a file of its owner, and nowhere else.
#[test]
fn a_generated_key_is_printed_or_stored_and_is_valid() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("key");
    let file = path.to_str().expect("UTF-8");
    for (arguments, prefix, len) in [
        (&[][..], "NVMeTLSkey-1:01:", 65),
        (&["--hash", "none"], "NVMeTLSkey-1:00:", 65),
        (&["--hash", "sha384"], "NVMeTLSkey-1:02:", 89),
        (&["--kind", "chap"], "DHHC-1:01:", 59),
        (&["--kind", "chap", "--hash", "sha512"], "DHHC-1:03:", 103),
    ] {
        let generate = [&["key", "generate"], arguments].concat();
        let made = run(&generate);
        assert_eq!(exit_code(&made), 0, "{}", made.stderr);
        let key = made.stdout.strip_suffix('\n').expect("a line");
        assert!(key.starts_with(prefix) && key.len() == len, "{arguments:?}");
        assert!(made.stderr.contains("nvme connect -t tcp"), "{arguments:?}");
        assert!(!made.stderr.contains(key), "{arguments:?}");
        let is_sha_384 = arguments.contains(&"sha384");
        assert_eq!(made.stderr.contains("GnuTLS"), is_sha_384, "{arguments:?}");
        assert_ne!(run(&generate).stdout, made.stdout, "{arguments:?}");

        let stored = run(&[&generate[..], &["--file", file]].concat());
        assert_eq!(exit_code(&stored), 0, "{stored:?}");
        assert!(stored.stdout.is_empty(), "{arguments:?}");
        let checked = run(&["key", "check", file]);
        assert_eq!(exit_code(&checked), 0, "{checked:?}");
        let content = fs::read_to_string(&path).expect("readable");
        assert!(content.starts_with(prefix), "{arguments:?}");
        for shown in [&stored.stderr, &checked.stdout, &checked.stderr] {
            assert!(!shown.contains(content.trim_end()), "{arguments:?}");
        }
        let again = run(&[&generate[..], &["--file", file]].concat());
        assert_eq!(exit_code(&again), 1, "{again:?}");
        assert!(again.stderr.contains("is not overwritten"), "{again:?}");
        assert_eq!(fs::read_to_string(&path).expect("readable"), content);
        fs::remove_file(&path).expect("own file");
    }
}

/// The key is that of libnvme's tests. Its digests were computed with Python's `hmac`.
#[test]
fn a_checked_key_shows_its_identities_or_its_problem() {
    const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("key");
    let file = path.to_str().expect("UTF-8");
    let store = |content: &str, mode| {
        fs::write(&path, content).expect("writable");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("own file");
    };
    let names = ["--host", HOST, "--subsystem", NQN];
    let check = |arguments: &[&str]| run(&[&["key", "check", file], arguments].concat());
    store(&format!("{KEY}\n"), 0o600);
    let shown = check(&names);
    assert_eq!(exit_code(&shown), 0, "{shown:?}");
    let identities: Vec<&str> = shown
        .stdout
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("psk: "))
        .collect();
    let begin = |version| format!("NVMe{version}R01 {HOST} {NQN}");
    let (v0, v1) = (begin(0), begin(1));
    assert_eq!(
        identities,
        [
            format!("{v1} GFkf37Jm96YjVXtSibIF37UtNZPXrZFn1SFxn4+BMxQ="),
            format!("{v1} fW5ao2sA269D68DSNGckD7jf3qJlzSQXT5U7K9ijId4="),
            v0,
        ]
    );

    let long = format!("{NQN}{}", "n".repeat(224 - NQN.len()));
    for (arguments, part) in [
        (&["--host", HOST][..], "--subsystem"),
        (&["--host", "", "--subsystem", NQN], "--host"),
        (&["--host", &long, "--subsystem", NQN], "--host"),
        (&["--host", HOST, "--subsystem", "nqn.a b"], "--subsystem"),
        (&["--secret"], "--secret"),
    ] {
        let refused = check(arguments);
        assert_eq!(exit_code(&refused), 2, "{refused:?}");
        assert!(refused.stderr.contains(part), "{part}: {refused:?}");
    }
    let fix = format!("run chmod 600 {file}");
    for (content, mode, part) in [
        (KEY.to_owned(), 0o640, fix.as_str()),
        (KEY.to_owned(), 0o604, &fix),
        (String::new(), 0o600, "the key is empty"),
        (format!("{KEY}\r\n"), 0o600, "white space"),
        (format!("{KEY}\0"), 0o600, "it is not text"),
        (KEY.replace("VRL", "VRM"), 0o600, "CRC-32 is wrong"),
        (KEY.replace("LS", "ls"), 0o600, "begins with neither"),
        (KEY.repeat(3), 0o600, "more than 129 bytes"),
    ] {
        store(&content, mode);
        let refused = check(&names);
        assert_eq!(exit_code(&refused), 1, "{refused:?}");
        assert!(refused.stderr.contains(part), "{part}: {refused:?}");
        assert!(refused.stdout.is_empty(), "{refused:?}");
        assert!(!refused.stderr.contains("tnN9AQb2"), "{refused:?}");
    }
    let sha_512 = run(&["key", "generate", "--hash", "sha512"]);
    assert_eq!(exit_code(&sha_512), 1, "{sha_512:?}");
    assert!(sha_512.stderr.contains("use --hash sha256"), "{sha_512:?}");
}
