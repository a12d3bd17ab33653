//! Starts other programs in the repository's root with a clean environment.

use std::env;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

/// Directories of system programs that are usually only in root's path.
const SYSTEM_DIRECTORIES: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Variables that would change what or where a step builds.
const REMOVED_VARIABLES: [&str; 5] = [
    "RUSTFLAGS",
    "RUSTDOCFLAGS",
    "RUSTC_BOOTSTRAP",
    "LD_LIBRARY_PATH",
    "MAKEFLAGS",
];

/// Variables of cargo that are kept: its directories, the access to its registry, and whether it prepares
/// builds of changed sources.
const KEPT_CARGO_VARIABLES: [&str; 6] = [
    "CARGO_HOME",
    "CARGO_INCREMENTAL",
    "CARGO_NET_",
    "CARGO_HTTP_",
    "CARGO_REGISTR",
    "CARGO_TERM_",
];

/// The root of the work tree from which this program was built.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// Whether a variable of our environment is passed on.
///
/// Variables that cargo set for this program must not be passed to the builds that it starts: some
/// build scripts would rebuild because of the change.
fn is_kept_variable(name: &str) -> bool {
    if name == "CARGO" || REMOVED_VARIABLES.contains(&name) {
        return false;
    }
    !name.starts_with("CARGO_")
        || KEPT_CARGO_VARIABLES
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

/// The path, with missing system directories appended.
fn search_path(path: Option<OsString>) -> OsString {
    let path = path.unwrap_or_default();
    let mut directories: Vec<PathBuf> = env::split_paths(&path).collect();
    for directory in SYSTEM_DIRECTORIES {
        if !directories
            .iter()
            .any(|known| known == Path::new(directory))
        {
            directories.push(directory.into());
        }
    }
    env::join_paths(directories).unwrap_or(path)
}

/// A program to run in the repository's root with a clean environment.
pub(crate) fn program(name: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(root()).env_clear();
    for (name, value) in env::vars_os() {
        if name.to_str().is_none_or(is_kept_variable) {
            command.env(name, value);
        }
    }
    command
        .env("PATH", search_path(env::var_os("PATH")))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// The cargo that runs this program, otherwise the one in the path.
pub(crate) fn cargo() -> Command {
    program(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The lab's program.
pub(crate) fn lab() -> Command {
    program(root().join("deploy/lab/lab"))
}

/// A command like `command` at a low priority, for work beside guests, which have deadlines.
pub(crate) fn niced(command: &Command) -> Command {
    wrapped("nice", &["-n", "10"], command)
}

/// A command like `command` that takes only what others leave of the processors.
pub(crate) fn idle(command: &Command) -> Command {
    wrapped("chrt", &["--idle", "0"], command)
}

/// A command like `command` that is killed when this process ends for any reason.
pub(crate) fn killed_with_parent(command: &Command) -> Command {
    wrapped("setpriv", &["--pdeathsig", "KILL", "--"], command)
}

/// The program `wrapper`, which runs `command` in its environment.
fn wrapped(wrapper: &str, arguments: &[&str], command: &Command) -> Command {
    let mut bound = program(wrapper);
    bound
        .args(arguments)
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            bound.env(name, value);
        }
    }
    bound
}

/// Whether a program is found in the path of steps.
pub(crate) fn is_installed(name: &str) -> bool {
    let path = search_path(env::var_os("PATH"));
    env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

/// A command as a user would type it, without its environment.
pub(crate) fn command_text(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut words = vec![
        program
            .file_name()
            .unwrap_or(program.as_os_str())
            .to_string_lossy(),
    ];
    words.extend(
        command
            .get_args()
            .map(|argument| argument.to_string_lossy()),
    );
    words.join(" ")
}

/// The failure of a program, as text.
fn failure(command: &Command, status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("`{}` exited with {code}", command_text(command)),
        None => format!("`{}` ended with {status}", command_text(command)),
    }
}

fn cannot_start(command: &Command, error: &std::io::Error) -> String {
    let program = command.get_program().to_string_lossy();
    match error.kind() {
        ErrorKind::NotFound => format!("{program} is not installed"),
        _ => format!("cannot run {program}: {error}"),
    }
}

/// Runs a program with our standard streams. Returns an error if it fails.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .map_err(|error| cannot_start(command, &error))?;
    if status.success() {
        Ok(())
    } else {
        Err(failure(command, status))
    }
}

/// Strings in the output of a test program that mark a failure.
const FAILURE_MARKS: [&str; 6] = [
    "FAILED",
    "panicked at",
    " fails",
    "replay:",
    "NOT FOUND",
    "TOO MUCH",
];
/// Maximum number of such lines that an error repeats.
const FAILURE_LINES_MAX: usize = 12;
/// Maximum length of such a line in an error, in characters.
const FAILURE_LINE_LENGTH_MAX: usize = 200;

/// Runs a test program. The error repeats the lines that describe the failure, because they are far
/// from the end of a long output.
pub(crate) fn run_test(command: &mut Command) -> Result<(), String> {
    let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = started.map_err(|error| cannot_start(command, &error))?;
    let mut failure_lines = Vec::new();
    if let Some(output) = child.stdout.take() {
        failure_lines = copy_output(output, &mut std::io::stdout().lock());
    }
    let status = child
        .wait()
        .map_err(|error| cannot_start(command, &error))?;
    if status.success() {
        return Ok(());
    }
    failure_lines.insert(0, failure(command, status));
    Err(failure_lines.join("\n    "))
}

/// Copies `from` to `to`. Returns the first lines that describe a failure.
fn copy_output(from: impl std::io::Read, to: &mut impl Write) -> Vec<String> {
    let mut failure_lines = Vec::new();
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        // The reader of our output may have closed it; the program continues.
        let _ = to.write_all(&line);
        let text = String::from_utf8_lossy(&line);
        let says_why = FAILURE_MARKS.iter().any(|sign| text.contains(sign));
        if says_why && failure_lines.len() < FAILURE_LINES_MAX {
            failure_lines.push(
                text.trim_end()
                    .chars()
                    .take(FAILURE_LINE_LENGTH_MAX)
                    .collect(),
            );
        }
        line.clear();
    }
    failure_lines
}

/// Runs a program and returns its output. Returns an error if it fails.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| cannot_start(command, &error))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(failure(command, output.status))
    }
}

/// Whether a program runs and succeeds; its output is dropped.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Replaces this process by another program, so that its exit status and signals are ours.
pub(crate) fn replace_process(command: &mut Command) -> ExitCode {
    let error = command.exec();
    eprintln!("xtask: {}", cannot_start(command, &error));
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_repeat_failure_lines() {
        let output = "test a ... ok\ntest b ... FAILED\nthread 'b' panicked at b.rs:1:\nlast";
        let mut passed_on = Vec::new();
        let failure_lines = copy_output(output.as_bytes(), &mut passed_on);
        assert_eq!(passed_on, output.as_bytes());
        assert_eq!(
            failure_lines,
            ["test b ... FAILED", "thread 'b' panicked at b.rs:1:"]
        );
        let error = run_test(program("sh").args(["-c", "echo it fails; exit 3"]));
        let error = error.expect_err("it exits with 3");
        assert!(
            error.contains("exited with 3") && error.ends_with("it fails"),
            "{error}"
        );
    }

    #[test]
    fn root_is_the_workspace_directory() {
        assert!(root().join("Cargo.toml").is_file());
        assert!(root().join("deploy/lab/lab").is_file());
    }

    #[test]
    fn cargo_variables_are_removed_from_the_environment_of_steps() {
        for name in [
            "CARGO",
            "CARGO_TARGET_DIR",
            "CARGO_BUILD_TARGET_DIR",
            "CARGO_ENCODED_RUSTFLAGS",
            "CARGO_MANIFEST_DIR",
            "CARGO_PKG_NAME",
            "CARGO_PROFILE_DEV_DEBUG",
            "RUSTFLAGS",
            "RUSTDOCFLAGS",
        ] {
            assert!(!is_kept_variable(name), "{name}");
        }
        for name in [
            "PATH",
            "HOME",
            "CARGO_HOME",
            "CARGO_HTTP_PROXY",
            "CARGO_INCREMENTAL",
            "RUSTUP_HOME",
            "LAB_DIR",
        ] {
            assert!(is_kept_variable(name), "{name}");
        }
    }

    #[test]
    fn system_directories_are_appended_to_path_once() {
        let path = search_path(Some("/usr/sbin:/usr/bin".into()));
        assert_eq!(
            path,
            OsString::from("/usr/sbin:/usr/bin:/usr/local/sbin:/sbin")
        );
        assert_eq!(search_path(Some(path.clone())), path);
    }

    #[test]
    fn command_errors_name_the_command_and_its_status() {
        assert_eq!(
            run(program("sh").args(["-c", "exit 7"])),
            Err("`sh -c exit 7` exited with 7".into())
        );
        assert_eq!(
            run(&mut program("no-such-program")),
            Err("no-such-program is not installed".into())
        );
        assert!(run(program("sh").args(["-c", "kill -9 $$"])).is_err_and(|e| e.contains("signal")));
    }

    #[test]
    fn output_is_returned() {
        assert_eq!(output(program("echo").arg("x")), Ok(b"x\n".to_vec()));
        assert!(output(&mut program("false")).is_err());
    }
}
