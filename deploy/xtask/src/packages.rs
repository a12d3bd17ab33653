//! Installs the Debian packages and Rust components that the tests need, where they are missing.

use crate::process;

/// Programs that the steps run, and the Debian packages that have them.
const PROGRAMS: [(&str, &str); 10] = [
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("git", "git"),
    ("mke2fs", "e2fsprogs"),
    ("mmdebstrap", "mmdebstrap"),
    ("python3", "python3"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
];

/// Of these the ones that tests outside the lab need as well.
const NEEDED_WITHOUT_LAB: [&str; 2] = ["python3", "setpriv"];

/// What the demo needs; what building needs is there, for this program was built.
const NEEDED_FOR_DEMO: [&str; 1] = ["setpriv"];

const APT_ATTEMPTS_MAX: usize = 3;

/// The packages of the test programs that are not installed.
fn missing(with_lab: bool, is_installed: impl Fn(&str) -> bool) -> Vec<&'static str> {
    if with_lab {
        let all: Vec<&str> = PROGRAMS.iter().map(|&(program, _)| program).collect();
        return missing_of(&all, is_installed);
    }
    missing_of(&NEEDED_WITHOUT_LAB, is_installed)
}

/// The packages of those of `needed` that are not installed.
fn missing_of(needed: &[&str], is_installed: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let mut packages: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(program, _)| needed.contains(program))
        .filter(|(program, _)| !is_installed(program))
        .map(|&(_, package)| package)
        .collect();
    packages.dedup();
    packages
}

/// Sees to it that everything that tests need is there; says what it installs.
pub(crate) fn provide(with_lab: bool) -> Result<(), String> {
    provide_components()?;
    install(&missing(with_lab, process::is_installed))
}

/// Sees to it that everything that the demo needs is there; says what it installs.
pub(crate) fn provide_for_demo() -> Result<(), String> {
    install(&missing_of(&NEEDED_FOR_DEMO, process::is_installed))
}

/// Installs these packages.
fn install(packages: &[&str]) -> Result<(), String> {
    if packages.is_empty() {
        println!("packages: nothing is missing");
        return Ok(());
    }
    let list = packages.join(" ");
    if !process::is_installed("apt-get") {
        return Err(format!(
            "missing, and this is no Debian where apt-get could install it: {list} (Debian's names)"
        ));
    }
    let prefix: &[&str] = if rustix::process::geteuid().is_root() {
        &["env"]
    } else if process::succeeds(process::program("sudo").args(["-n", "true"])) {
        &["sudo", "-n", "env"]
    } else {
        return Err(format!(
            "not root, so run this first: sudo apt-get install {list}"
        ));
    };
    println!("packages: installing {list}");
    let apt_get = |arguments: &[&str]| {
        let mut command = process::program(prefix[0]);
        command
            .args(&prefix[1..])
            .args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]);
        command.args(["-o", "Acquire::Retries=5"]).args(arguments);
        process::run(&mut command)
    };
    let mut result = Ok(());
    for _ in 0..APT_ATTEMPTS_MAX {
        // One archive of several may be away while the one that matters answers.
        if let Err(error) = apt_get(&["update"]) {
            println!("packages: {error}; going on with the lists that are there");
        }
        result = apt_get(&[&["install", "--no-install-recommends"], packages].concat());
        if result.is_ok() {
            break;
        }
    }
    result
}

/// rustfmt and clippy, which a minimal toolchain does not have.
fn provide_components() -> Result<(), String> {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if process::succeeds(process::cargo().args([subcommand, "--version"])) {
            continue;
        }
        println!("packages: installing the Rust component {component}");
        process::run(process::program("rustup").args(["component", "add", component]))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_asked_for_when_all_is_there() {
        assert!(missing(true, |_| true).is_empty());
    }

    #[test]
    fn packages_are_named_once() {
        let packages = missing(true, |_| false);
        assert_eq!(
            packages
                .iter()
                .filter(|&&name| name == "util-linux")
                .count(),
            1
        );
        assert!(packages.contains(&"xz-utils") && packages.contains(&"kmod"));
    }

    #[test]
    fn without_the_lab_its_tools_are_not_needed() {
        assert_eq!(missing(false, |_| false), ["python3", "util-linux"]);
        assert!(missing(false, |program| program != "mmdebstrap").is_empty());
    }

    #[test]
    fn everything_needed_without_the_lab_is_in_the_table() {
        for name in NEEDED_WITHOUT_LAB {
            assert!(
                PROGRAMS.iter().any(|&(program, _)| program == name),
                "{name}"
            );
        }
    }
}
