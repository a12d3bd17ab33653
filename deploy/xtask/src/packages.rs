//! Installs the Debian packages and Rust components that the tests need.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{monitoring, process};

/// Programs that the steps run and files that builds read, and their Debian packages. File names
/// begin with a slash; alternative paths are separated by colons, and a path may contain one star.
const PROGRAMS: [(&str, &str); 19] = [
    (VERBS_HEADER, "libibverbs-dev"),
    (CONNECTION_MANAGER_HEADER, "librdmacm-dev"),
    (CLANG_LIBRARY, "libclang-dev"),
    ("pkg-config", "pkg-config"),
    ("chromium", "chromium"),
    ("chromedriver", "chromium-driver"),
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("g++", "g++"),
    ("git", "git"),
    ("mke2fs", "e2fsprogs"),
    ("mmdebstrap", "mmdebstrap"),
    ("openssl", "openssl"),
    ("python3", "python3"),
    ("setpriv", "util-linux"),
    ("unshare", "util-linux"),
    ("valgrind", "valgrind"),
    ("xz", "xz-utils"),
    ("zstd", "zstd"),
];

const VERBS_HEADER: &str = "/usr/include/infiniband/verbs.h";
const CONNECTION_MANAGER_HEADER: &str = "/usr/include/rdma/rdma_cma.h";
/// The path of clang's library, which parses the headers of verbs.
const CLANG_LIBRARY: &str =
    "/usr/lib/llvm-*/lib/libclang.so:/usr/lib64/libclang.so*:/usr/lib/libclang.so*";

/// Those that tests outside the lab need too.
const NEEDED_WITHOUT_LAB: [&str; 11] = [
    VERBS_HEADER,
    CONNECTION_MANAGER_HEADER,
    CLANG_LIBRARY,
    "pkg-config",
    "chromium",
    "chromedriver",
    "g++",
    "openssl",
    "python3",
    "setpriv",
    "valgrind",
];

/// Requirements of a build with RDMA.
const NEEDED_FOR_RDMA: [&str; 4] = [
    VERBS_HEADER,
    CONNECTION_MANAGER_HEADER,
    CLANG_LIBRARY,
    "pkg-config",
];

const APT_ATTEMPTS_MAX: usize = 3;

/// The packages of missing test programs.
fn missing(with_lab: bool, is_installed: impl Fn(&str) -> bool) -> Vec<&'static str> {
    if with_lab {
        let all: Vec<&str> = PROGRAMS.iter().map(|&(program, _)| program).collect();
        return missing_of(&all, is_installed);
    }
    missing_of(&NEEDED_WITHOUT_LAB, is_installed)
}

/// The packages of missing programs among `needed`.
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

/// Installs everything that the tests need, and prints what it installs.
pub(crate) fn ensure_installed(with_lab: bool) -> Result<(), String> {
    ensure_components_installed()?;
    install(&missing(with_lab, is_available))?;
    monitoring::ensure_installed();
    Ok(())
}

/// Installs everything that the demo needs, and prints what it installs. Returns whether the
/// appliance can be built with RDMA, which is optional for the demo.
pub(crate) fn ensure_installed_for_demo() -> Result<bool, String> {
    install(&missing_of(&["setpriv"], is_available))?;
    if let Err(error) = install(&missing_of(&NEEDED_FOR_RDMA, is_available)) {
        println!("packages: {error}\npackages: building without RDMA, which the demo does not use");
        return Ok(false);
    }
    Ok(true)
}

/// Installs the browser, and prints what it installs.
pub(crate) fn ensure_browser_installed() -> Result<(), String> {
    install(&missing_of(&["chromium", "chromedriver"], is_available))
}

/// Whether a program is installed, or a file exists in one of its paths.
fn is_available(name: &str) -> bool {
    if name.starts_with('/') {
        return name.split(':').any(|place| exists(Path::new(place)));
    }
    process::is_installed(name)
}

/// Whether a path exists of which one component may contain a star.
fn exists(path: &Path) -> bool {
    let components: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
    let starred = components
        .iter()
        .enumerate()
        .find_map(|(at, part)| Some((at, part.split_once('*')?)));
    let Some((at, (before, after))) = starred else {
        return path.exists();
    };
    let parent: PathBuf = components[..at].iter().collect();
    let rest: PathBuf = components[at + 1..].iter().collect();
    let Ok(entries) = fs::read_dir(parent) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let fits = name
            .to_str()
            .and_then(|name| name.strip_prefix(before))
            .is_some_and(|end| end.ends_with(after));
        // Joined only if there is a rest, because an empty one would require a directory.
        fits && (at + 1 == components.len() || entry.path().join(&rest).exists())
    })
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
            "missing, and apt-get is not available to install it: {list} (Debian's package names)"
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
        // Some of several archives may be unavailable while the required one responds.
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

/// Installs rustfmt and clippy, which a minimal toolchain does not contain.
fn ensure_components_installed() -> Result<(), String> {
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
    fn no_package_is_missing_if_all_are_installed() {
        assert!(missing(true, |_| true).is_empty());
    }

    #[test]
    fn missing_packages_are_listed_once() {
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
    fn lab_tools_are_not_required_without_the_lab() {
        assert_eq!(
            missing(false, |_| false),
            [
                "libibverbs-dev",
                "librdmacm-dev",
                "libclang-dev",
                "pkg-config",
                "chromium",
                "chromium-driver",
                "g++",
                "openssl",
                "python3",
                "util-linux",
                "valgrind"
            ]
        );
        assert!(missing(false, |program| program != "mmdebstrap").is_empty());
    }

    #[test]
    fn star_matches_part_of_a_file_name() {
        let scratch = tempfile::tempdir().unwrap();
        let place = |rest: &str| scratch.path().join(rest);
        fs::create_dir_all(place("llvm-14/lib")).unwrap();
        fs::write(place("llvm-14/lib/libclang.so"), "").unwrap();
        for found in ["llvm-*/lib/libclang.so", "llvm-14/lib/libclang*", "llvm*"] {
            assert!(exists(&place(found)), "{found}");
        }
        for missing in [
            "llvm-*/lib/libclang.a",
            "gcc-*/lib",
            "llvm-14/lib/*.a",
            "x/*",
        ] {
            assert!(!exists(&place(missing)), "{missing}");
        }
    }

    #[test]
    fn paths_and_programs_are_distinguished() {
        assert!(is_available("/no/such:/proc/self"));
        assert!(!is_available("/no/such:/nor/such*"));
        assert!(is_available("sh") && !is_available("no-such-program"));
    }

    #[test]
    fn every_required_program_has_a_package() {
        for name in NEEDED_WITHOUT_LAB.iter().chain(&NEEDED_FOR_RDMA).copied() {
            assert!(
                PROGRAMS.iter().any(|&(program, _)| program == name),
                "{name}"
            );
        }
    }
}
