//! Checks units and package with the tools of systemd and Debian, as far as possible without an
//! installation, which the lab's scenario `service` tests.

use std::fs;
use std::path::Path;

use super::{FILES, PROGRAMS, at, build, completion_path, contents, manual_path};
use crate::process;

const UNITS: [&str; 3] = [
    "windlass.service",
    "windlass-hugepages.service",
    "windlass-bind@.service",
];
/// Maximum exposure of the service according to `systemd-analyze security`, in tenths.
const EXPOSURE_MAX_TENTHS: u32 = 25;
/// Commands whose manual pages must be in the package; lintian checks their form.
const PAGES: [&str; 6] = ["", "-run", "-status", "-top", "-doctor", "-bench"];
const COMPLETIONS: [&str; 3] = ["windlass.bash", "windlass.fish", "_windlass"];

/// Builds the package of `binary` and checks it.
pub(crate) fn check(binary: &Path) -> Result<(), String> {
    if !process::is_installed("dpkg-deb") {
        println!("package: without dpkg-deb nothing was checked");
        return Ok(());
    }
    let out = process::root().join("target/package-check");
    let package = build(binary, env!("CARGO_PKG_VERSION"), &out)?;
    check_contents(&package)?;
    check_configuration(binary)?;
    check_units(binary, &out.join("units"))?;
    lint(&package)
}

/// Checks that every file is in the package, belongs to root and is writable only by root.
fn check_contents(package: &Path) -> Result<(), String> {
    let listing = process::output(&mut contents(package))?;
    let listing = String::from_utf8_lossy(&listing);
    print!("{listing}");
    let pages = PAGES.map(|name| manual_path(&format!("windlass{name}.1.gz")));
    let completions = COMPLETIONS.iter().filter_map(|name| completion_path(name));
    let places = FILES
        .iter()
        .map(|&(_, to, _)| to.to_owned())
        .chain(PROGRAMS.map(str::to_owned))
        .chain(pages)
        .chain(completions);
    for place in places {
        if !listing
            .lines()
            .any(|line| line.ends_with(&format!(" ./{place}")))
        {
            return Err(format!("{place} is not in the package"));
        }
    }
    listing.lines().try_for_each(check_line)
}

/// One line of dpkg-deb's listing: `-rw-r--r-- root/root 123 2026-11-21 02:00 ./etc/x`.
fn check_line(line: &str) -> Result<(), String> {
    let mut words = line.split_whitespace();
    let (mode, owner) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    if owner != "root/root" {
        return Err(format!("not root's: {line}"));
    }
    match mode {
        "drwxr-xr-x" | "-rwxr-xr-x" | "-rw-r--r--" => Ok(()),
        _ => Err(format!("an unusual mode: {line}")),
    }
}

/// Checks that the installed configuration is valid.
fn check_configuration(binary: &Path) -> Result<(), String> {
    let mut windlass = process::program(binary);
    windlass.arg("check").arg("deploy/systemd/windlass.toml");
    process::run(&mut windlass)
}

/// Checks the units with `systemd-analyze verify`, which requires the programs that units start;
/// copies of the units name the built ones.
fn check_units(binary: &Path, scratch: &Path) -> Result<(), String> {
    if !process::is_installed("systemd-analyze") {
        println!("package: without systemd-analyze the units were not checked");
        return Ok(());
    }
    let deploy = process::root().join("deploy/systemd");
    let binary = binary.display().to_string();
    let mut verify = process::program("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=no"]);
    for unit in UNITS {
        let path = deploy.join(unit);
        let text = fs::read_to_string(&path).map_err(|e| at(&path, &e))?;
        let text = text
            .replace("/usr/bin/windlass", &binary)
            .replace("/usr/lib/windlass/", &format!("{}/", deploy.display()));
        let copied = scratch.join(unit);
        super::write(&copied, text.as_bytes(), false)?;
        verify.arg(copied);
    }
    process::run(&mut verify)?;
    let mut security = process::program("systemd-analyze");
    security.args(["security", "--offline=true", "--no-pager"]);
    security.arg(format!("--threshold={EXPOSURE_MAX_TENTHS}"));
    let report = process::output(security.arg(deploy.join(UNITS[0])))
        .map_err(|error| format!("the service is too exposed: {error}"))?;
    let report = String::from_utf8_lossy(&report);
    println!("{}", report.lines().last().unwrap_or("").trim());
    Ok(())
}

fn lint(package: &Path) -> Result<(), String> {
    if !process::is_installed("lintian") {
        println!("package: without lintian Debian's own checks were not made");
        return Ok(());
    }
    let mut lintian = process::program("lintian");
    lintian.args(["--fail-on", "error,warning", "--allow-root"]);
    process::run(lintian.arg(package))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_files_must_be_root_owned_and_not_writable_by_others() {
        let line = |mode: &str, owner: &str| format!("{mode} {owner} 1 2026-11-21 02:00 ./x");
        assert_eq!(check_line(&line("-rw-r--r--", "root/root")), Ok(()));
        assert_eq!(check_line(&line("drwxr-xr-x", "root/root")), Ok(()));
        for (mode, owner) in [
            ("-rw-rw-r--", "root/root"),
            ("-rwsr-xr-x", "root/root"),
            ("-rw-r--r--", "user/root"),
            ("lrwxrwxrwx", "root/root"),
        ] {
            assert!(check_line(&line(mode, owner)).is_err(), "{mode} {owner}");
        }
    }
}
