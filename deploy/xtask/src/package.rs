//! `cargo xtask package`: builds the Debian package from a built appliance and the files of
//! deploy/, only with dpkg-deb.
//!
//! The program itself generates its manual pages and completions, so their version always matches.

mod check;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::process;

pub(crate) use check::check;

/// The options of the package.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Package this program, and `bench` beside it, instead of building a release.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// The package's version; the workspace's by default.
    #[arg(long)]
    version: Option<String>,
    /// Where the package goes.
    #[arg(long, value_name = "DIR", default_value = "target/package")]
    out: PathBuf,
}

/// Files of deploy/, their paths in the package, and whether they are executable.
const FILES: [(&str, &str, bool); 16] = [
    (
        "systemd/windlass.service",
        "usr/lib/systemd/system/windlass.service",
        false,
    ),
    (
        "systemd/windlass-hugepages.service",
        "usr/lib/systemd/system/windlass-hugepages.service",
        false,
    ),
    (
        "systemd/windlass-bind@.service",
        "usr/lib/systemd/system/windlass-bind@.service",
        false,
    ),
    (
        "systemd/windlass.sysusers",
        "usr/lib/sysusers.d/windlass.conf",
        false,
    ),
    (
        "systemd/windlass.tmpfiles",
        "usr/lib/tmpfiles.d/windlass.conf",
        false,
    ),
    (
        "systemd/60-windlass.rules",
        "usr/lib/udev/rules.d/60-windlass.rules",
        false,
    ),
    (
        "systemd/is-nvme-group",
        "usr/lib/windlass/is-nvme-group",
        true,
    ),
    (
        "systemd/reserve-hugepages",
        "usr/lib/windlass/reserve-hugepages",
        true,
    ),
    ("systemd/windlass.toml", "etc/windlass/windlass.toml", false),
    ("systemd/windlass.default", "etc/default/windlass", false),
    (
        "systemd/windlass-hugepages.default",
        "etc/default/windlass-hugepages",
        false,
    ),
    (
        "systemd/README.md",
        "usr/share/doc/windlass/README.md",
        false,
    ),
    (
        "dashboards/grafana.json",
        "usr/share/windlass/grafana.json",
        false,
    ),
    (
        "dashboards/alerts.yml",
        "usr/share/windlass/alerts.yml",
        false,
    ),
    (
        "debian/copyright",
        "usr/share/doc/windlass/copyright",
        false,
    ),
    (
        "debian/lintian-overrides",
        "usr/share/lintian/overrides/windlass",
        false,
    ),
];

/// Paths in the package of the program and of the load generator, which was built into the same
/// directory.
const PROGRAMS: [&str; 2] = ["usr/bin/windlass", "usr/lib/windlass/bench"];

/// Maintainer scripts and control files of dpkg.
const CONTROL_FILES: [(&str, bool); 5] = [
    ("conffiles", false),
    ("preinst", true),
    ("postinst", true),
    ("prerm", true),
    ("postrm", true),
];

/// The oldest supported C library, for a program that names no version.
const LIBC_VERSION_MIN: (u32, u32) = (2, 17);

/// Builds the package that `options` ask for.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => {
            let mut cargo = process::cargo();
            cargo.args(["build", "--release", "-p", "appliance", "-p", "bench"]);
            process::run(&mut cargo)?;
            process::root().join("target/release/windlass")
        }
    };
    let version = options
        .version
        .as_deref()
        .unwrap_or(env!("CARGO_PKG_VERSION"));
    let here = std::env::current_dir().unwrap_or_else(|_| process::root());
    let path = build(&here.join(binary), version, &options.out)?;
    println!("{}", path.display());
    Ok(())
}

/// Builds the package of this program and version in a directory. Returns its path.
pub(crate) fn build(binary: &Path, version: &str, out: &Path) -> Result<PathBuf, String> {
    let architecture = debian_architecture(std::env::consts::ARCH)?;
    let name = format!("windlass_{version}_{architecture}");
    // Programs run in the repository's root.
    let out = process::root().join(out);
    let stage = out.join(&name);
    remove_if_there(&stage)?;
    stage_files(binary, &stage)?;
    write_changelog(version, &stage)?;
    write_control(binary, version, architecture, &stage)?;
    let path = out.join(format!("{name}.deb"));
    let mut dpkg_deb = process::program("dpkg-deb");
    dpkg_deb.args(["--root-owner-group", "-Zgzip", "--build"]);
    dpkg_deb.arg(&stage).arg(&path);
    // Makes builds of the same commit reproducible.
    dpkg_deb.env("SOURCE_DATE_EPOCH", commit_time());
    process::output(&mut dpkg_deb)?;
    remove_if_there(&stage)?;
    Ok(path)
}

/// Copies the files of the package, without those of dpkg.
fn stage_files(binary: &Path, stage: &Path) -> Result<(), String> {
    let deploy = process::root().join("deploy");
    for (from, to, is_program) in FILES {
        copy(&deploy.join(from), &stage.join(to), is_program)?;
    }
    let built = [binary, &binary.with_file_name("bench")];
    for (from, to) in built.into_iter().zip(PROGRAMS) {
        let program = stage.join(to);
        copy(from, &program, true)?;
        let mut strip = process::program("strip");
        strip.args(["--strip-all", "--remove-section=.comment"]);
        process::run(strip.arg(&program))?;
    }
    stage_manual(binary, stage)
}

/// Manual pages and completions that the program generates.
fn stage_manual(binary: &Path, stage: &Path) -> Result<(), String> {
    let generated = stage.with_extension("generated");
    remove_if_there(&generated)?;
    let mut windlass = process::program(binary);
    process::run(windlass.arg("generate-manual").arg(&generated))?;
    for page in files_in(&generated.join("man")) {
        let to = stage.join(manual_path(&file_name(&page)));
        copy(&page, &to, false)?;
        compress(&to)?;
    }
    for completion in files_in(&generated.join("completions")) {
        let name = file_name(&completion);
        let to = completion_path(&name);
        let to = to.ok_or_else(|| format!("no directory is known for the completion {name}"))?;
        copy(&completion, &stage.join(to), false)?;
    }
    remove_if_there(&generated)
}

/// The path of a manual page for man(1), without the suffix of its compression.
fn manual_path(name: &str) -> String {
    format!("usr/share/man/man1/{name}")
}

/// The path of a completion for its shell.
fn completion_path(name: &str) -> Option<String> {
    match name {
        "windlass.bash" => Some("usr/share/bash-completion/completions/windlass".into()),
        "windlass.fish" => Some("usr/share/fish/vendor_completions.d/windlass.fish".into()),
        "_windlass" => Some("usr/share/zsh/vendor-completions/_windlass".into()),
        _ => None,
    }
}

/// Writes a minimal Debian changelog; the project's own changelog is in the repository.
fn write_changelog(version: &str, stage: &Path) -> Result<(), String> {
    let date = process::output(process::program("date").args([
        "--utc",
        "--rfc-email",
        &format!("--date=@{}", commit_time()),
    ]))?;
    let text = format!(
        "windlass ({version}) unstable; urgency=medium\n\n  * As built from the repository.\n\n \
         -- Windlass developers <developers@windlass.example>  {}",
        String::from_utf8_lossy(&date)
    );
    let path = stage.join("usr/share/doc/windlass/changelog");
    write(&path, text.as_bytes(), false)?;
    compress(&path)
}

fn write_control(
    binary: &Path,
    version: &str,
    architecture: &str,
    stage: &Path,
) -> Result<(), String> {
    let debian = process::root().join("deploy/debian");
    let control = stage.join("DEBIAN");
    let installed = tree(stage)?;
    let mut sums = process::program("md5sum");
    sums.current_dir(stage).args(&installed);
    let sums = process::output(&mut sums)?;
    let mut bytes = 0;
    for path in &installed {
        let metadata = fs::metadata(stage.join(path)).map_err(|e| at(path, &e))?;
        bytes += metadata.len();
    }
    for (name, is_program) in CONTROL_FILES {
        copy(&debian.join(name), &control.join(name), is_program)?;
    }
    write(&control.join("md5sums"), &sums, false)?;
    let content = fs::read(binary).map_err(|e| at(binary, &e))?;
    let (major, minor) = required_libc(&content);
    let text = fs::read_to_string(debian.join("control")).map_err(|e| at(&debian, &e))?;
    let text = text
        .replace("@VERSION@", version)
        .replace("@ARCHITECTURE@", architecture)
        .replace("@INSTALLED_KIB@", &bytes.div_ceil(1024).to_string())
        .replace("@LIBC@", &format!("{major}.{minor}"));
    write(&control.join("control"), text.as_bytes(), false)
}

/// The version of the C library that a program requires: the highest version of its symbols.
fn required_libc(program: &[u8]) -> (u32, u32) {
    const PREFIX: &[u8] = b"GLIBC_2.";
    let named = program.windows(PREFIX.len() + 2).filter_map(|bytes| {
        let digits = bytes.strip_prefix(PREFIX)?;
        let end = digits.iter().position(|it| !it.is_ascii_digit());
        let digits = std::str::from_utf8(&digits[..end.unwrap_or(digits.len())]).ok()?;
        Some((2, digits.parse().ok()?))
    });
    named
        .max()
        .unwrap_or(LIBC_VERSION_MIN)
        .max(LIBC_VERSION_MIN)
}

fn debian_architecture(rust: &str) -> Result<&'static str, String> {
    match rust {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => Err(format!("no package for {other} is known")),
    }
}

/// The time of the current commit in seconds since 1970; 0 outside a repository.
fn commit_time() -> String {
    let mut git = process::program("git");
    git.args(["log", "-1", "--format=%ct"]);
    let time = process::output(&mut git).unwrap_or_default();
    let time = String::from_utf8_lossy(&time).trim().to_owned();
    if time.is_empty() { "0".into() } else { time }
}

/// All files in a directory that dpkg unpacks, with relative paths, in order.
fn tree(stage: &Path) -> Result<Vec<PathBuf>, String> {
    let mut find = process::program("find");
    find.current_dir(stage)
        .args(["-type", "f", "-printf", "%P\\n"]);
    let found = process::output(&mut find)?;
    let text = String::from_utf8(found).map_err(|_| "a file's name is not UTF-8".to_owned())?;
    let mut files: Vec<PathBuf> = text.lines().map(PathBuf::from).collect();
    files.retain(|path| !path.starts_with("DEBIAN"));
    files.sort();
    Ok(files)
}

fn files_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|path| path.is_file());
    files.sort();
    files
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn copy(from: &Path, to: &Path, is_program: bool) -> Result<(), String> {
    let content = fs::read(from).map_err(|e| at(from, &e))?;
    write(to, &content, is_program)
}

fn write(path: &Path, content: &[u8], is_program: bool) -> Result<(), String> {
    if let Some(directory) = path.parent() {
        make_directory(directory)?;
    }
    fs::write(path, content).map_err(|e| at(path, &e))?;
    set_mode(path, if is_program { 0o755 } else { 0o644 })
}

/// Creates a directory and its parents, readable by all regardless of the umask.
fn make_directory(path: &Path) -> Result<(), String> {
    if path.is_dir() || path.as_os_str().is_empty() {
        return Ok(());
    }
    if let Some(above) = path.parent() {
        make_directory(above)?;
    }
    fs::create_dir(path).map_err(|e| at(path, &e))?;
    set_mode(path, 0o755)
}

fn set_mode(path: &Path, mode: u32) -> Result<(), String> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|e| at(path, &e))
}

fn compress(path: &Path) -> Result<(), String> {
    process::run(process::program("gzip").args(["-9", "--no-name"]).arg(path))
}

fn remove_if_there(path: &Path) -> Result<(), String> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(at(path, &error)),
        _ => Ok(()),
    }
}

fn at(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// The command that lists a package's files: type and mode, owner, size, date, path.
fn contents(package: &Path) -> Command {
    let mut dpkg_deb = process::program("dpkg-deb");
    dpkg_deb.arg("--contents").arg(package);
    dpkg_deb
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn highest_glibc_version_is_required() {
        assert_eq!(
            required_libc(b"x\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.4\0..."),
            (2, 34)
        );
        assert_eq!(required_libc(b"GLIBC_2.4\0 and no more"), LIBC_VERSION_MIN);
        assert_eq!(required_libc(b""), LIBC_VERSION_MIN);
    }

    #[test]
    fn all_package_files_exist() {
        let deploy = process::root().join("deploy");
        for (from, _, _) in FILES {
            assert!(deploy.join(from).is_file(), "{from}");
        }
        for (name, _) in CONTROL_FILES {
            assert!(deploy.join("debian").join(name).is_file(), "{name}");
        }
    }

    #[test]
    fn conffiles_list_matches_files_in_etc() {
        let list = process::root().join("deploy/debian/conffiles");
        let kept = fs::read_to_string(list).unwrap();
        let mut in_etc: Vec<String> = FILES
            .iter()
            .filter(|(_, to, _)| to.starts_with("etc/"))
            .map(|(_, to, _)| format!("/{to}"))
            .collect();
        in_etc.sort();
        assert_eq!(kept.lines().collect::<Vec<_>>(), in_etc);
    }

    #[test]
    fn completions_are_installed_in_the_shells_directories() {
        assert!(completion_path("windlass.bash").is_some());
        assert_eq!(completion_path("README"), None);
    }
}
