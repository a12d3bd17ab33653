//! `windlass copy` as a user runs it.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::exit_code;
use crate::process::{Finished, LIMIT, Windlass, run};

const NQN: &str = "nqn.2026-11.org.windlass:copies";
const FILE_BYTES: usize = 4 << 20;

struct Lab {
    directory: TempDir,
    windlass: Windlass,
}

/// Files `from` and `to`, exported RAM, and two devices that take minutes to copy.
fn configuration(directory: &Path) -> String {
    let path = |name: &str| directory.join(name).display().to_string();
    let file = |name: &str| {
        let path = path(name);
        format!("[[device]]\nname = \"{name}\"\ntype = \"file\"\npath = \"{path}\"\n")
    };
    let null = |name: &str| {
        format!(
            "[[device]]\nname = \"{name}\"\ntype = \"null\"\nsize = \"1024TiB\"\nblock_size = 4096\n"
        )
    };
    format!(
        r#"
[appliance]
name = "copies"
memory = "16MiB"
pages = "ordinary"
[control]
socket = "{}"
http = "off"
{}{}{}{}
[[device]]
name = "ram"
type = "memory"
size = "4MiB"
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
        path("control.sock"),
        file("from"),
        file("to"),
        null("endless"),
        null("sink"),
    )
}

impl Lab {
    fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        let content: Vec<u8> = (0..FILE_BYTES as u32)
            .map(|it| (it >> 9) as u8 | 1)
            .collect();
        fs::write(directory.path().join("from"), content).expect("writable");
        fs::write(directory.path().join("to"), vec![0; FILE_BYTES]).expect("writable");
        let file = directory.path().join("windlass.toml");
        fs::write(&file, configuration(directory.path())).expect("writable");
        let windlass = Windlass::start(&file);
        Self {
            directory,
            windlass,
        }
    }

    fn socket(&self) -> String {
        let path = self.directory.path().join("control.sock");
        path.display().to_string()
    }

    fn windlass(&self, arguments: &[&str]) -> Finished {
        run(&[arguments, &["--socket", &self.socket()]].concat())
    }

    fn copies(&self) -> Vec<serde_json::Value> {
        let status = self.windlass(&["status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&status.stdout).expect("JSON");
        status["copies"].as_array().expect("a list").clone()
    }

    /// Begins a copy that takes minutes.
    fn begin_endless(&self) -> Child {
        Command::new(env!("CARGO_BIN_EXE_windlass"))
            .args(["copy", "endless", "sink", "--socket", &self.socket()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs")
    }

    /// Waits until the last copy has written something.
    fn await_progress(&self) {
        let began = Instant::now();
        loop {
            let copies = self.copies();
            let last = copies.last();
            if last.is_some_and(|it| it["state"] == "running" && it["written_bytes"] != 0) {
                return;
            }
            assert!(began.elapsed() < LIMIT, "{copies:?}");
        }
    }
}

fn finished(child: Child) -> Finished {
    let output = child.wait_with_output().expect("it ends");
    Finished {
        status: output.status,
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

#[test]
fn copies_that_are_not_possible_are_refused() {
    let lab = Lab::new();
    for (arguments, code, text) in [
        (&["copy"][..], 2, "<SOURCE>"),
        (&["copy", "from"], 2, "<DESTINATION>"),
        (
            &["copy", "from", "to", "--abort", "1"],
            2,
            "cannot be used with",
        ),
        (
            &["copy", "from", "to", "--offset", "-1"],
            2,
            "unexpected argument",
        ),
        (&["copy", "from", "to", "--offset", "x"], 2, "--offset"),
        (&["copy", "from", "none"], 1, "device none is not open"),
        (&["copy", "from", "from"], 1, "name two devices"),
        (&["copy", "from", "sink"], 1, "same block size"),
        (&["copy", "from", "ram"], 1, "--overwrite-exported"),
        (&["copy", "ram", "to"], 1, "--live"),
        (
            &["copy", "from", "to", "--offset", "4MiB"],
            1,
            "device from has 4 MiB",
        ),
        (
            &["copy", "from", "to", "--length", "1000"],
            1,
            "multiples of 512",
        ),
        (
            &["copy", "from", "to", "--length", "4097KiB"],
            1,
            "device from has 4 MiB",
        ),
        (&["copy", "--abort", "1"], 1, "there is no copy 1"),
    ] {
        let refused = lab.windlass(arguments);
        assert_eq!(exit_code(&refused), code, "{arguments:?}: {refused:?}");
        assert!(refused.stderr.contains(text), "{arguments:?}: {refused:?}");
        assert_eq!(refused.stdout, "");
    }
    assert!(lab.copies().is_empty());
}

#[test]
fn files_are_copied_through_ram() {
    let lab = Lab::new();
    let first = lab.windlass(&["copy", "from", "ram", "--overwrite-exported"]);
    assert_eq!(exit_code(&first), 0, "{first:?}");
    let lines: Vec<&str> = first.stdout.lines().collect();
    assert!(lines[0].starts_with("copy 1: from to ram: "), "{first:?}");
    let last = lines.last().expect("a result");
    assert!(
        last.starts_with("copy 1: from to ram: complete: 4 MiB in "),
        "{first:?}"
    );
    let second = lab.windlass(&["copy", "ram", "to", "--live"]);
    assert_eq!(exit_code(&second), 0, "{second:?}");
    let content = |name: &str| fs::read(lab.directory.path().join(name)).expect("readable");
    assert!(content("from") == content("to"), "the files differ");
    let copies = lab.copies();
    assert_eq!(copies.len(), 2);
    assert_eq!(
        (&copies[1]["state"], &copies[1]["source_changes"]),
        (&"complete".into(), &0.into())
    );
    let status = lab.windlass(&["status"]);
    assert!(status.stdout.contains("SOURCE CHANGES"), "{status:?}");
    lab.windlass.signal(Signal::TERM);
    assert_eq!(lab.windlass.wait().0.code(), Some(0));
}

#[test]
fn running_copy_is_aborted_by_signal_by_command_and_by_the_stop() {
    let lab = Lab::new();
    let child = lab.begin_endless();
    lab.await_progress();
    let upgrade = lab.windlass(&["upgrade"]);
    assert_eq!(exit_code(&upgrade), 1, "{upgrade:?}");
    assert!(
        upgrade
            .stderr
            .contains("abort it with `windlass copy --abort 1`"),
        "{upgrade:?}"
    );
    let file = lab.directory.path().join("windlass.toml");
    let text = configuration(lab.directory.path());
    fs::write(&file, text.replace("\"endless\"", "\"renamed\"")).expect("writable");
    let apply = lab.windlass(&["apply"]);
    assert_eq!(exit_code(&apply), 1, "{apply:?}");
    let all = [apply.stdout, apply.stderr].concat();
    assert!(
        all.contains("copy 1 of device endless to sink is running"),
        "{all}"
    );
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).expect("it runs");
    let aborted = finished(child);
    assert_eq!(exit_code(&aborted), 1, "{aborted:?}");
    let text = "not complete: it was aborted: continue with --offset ";
    assert!(aborted.stdout.contains(text), "{aborted:?}");

    let child = lab.begin_endless();
    lab.await_progress();
    let abort = lab.windlass(&["copy", "--abort", "2"]);
    assert_eq!(
        abort.stdout,
        "copy 2: it ends when its requests in flight have\n"
    );
    assert_eq!(exit_code(&finished(child)), 1);
    let again = lab.windlass(&["copy", "--abort", "2"]);
    assert!(again.stderr.contains("copy 2 has ended"), "{again:?}");

    let child = lab.begin_endless();
    lab.await_progress();
    lab.windlass.signal(Signal::TERM);
    assert_eq!(
        lab.windlass.wait().0.code(),
        Some(0),
        "everything came to rest"
    );
    let stopped = finished(child);
    assert_eq!(exit_code(&stopped), 1, "{stopped:?}");
}
