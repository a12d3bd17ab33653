//! Checks the kernel: its version, and the features it permits.

use appliance_config::{Backing, Config};

use super::Finding;
use super::machine::Machine;

const AREA: &str = "kernel";
/// First version with MADV_POPULATE_WRITE, which populates memory without writing to it:
/// madvise(2).
const VERSION_LEAST: (u32, u32) = (5, 14);

/// Checks the kernel features that a start needs.
pub(super) fn check(machine: &Machine, config: &Config) -> Vec<Finding> {
    let mut findings = vec![version(machine)];
    findings.extend(io_uring(machine, config));
    findings.extend(memory_files(machine));
    findings
}

fn version(machine: &Machine) -> Finding {
    let release = machine
        .text("proc/sys/kernel/osrelease")
        .unwrap_or_default();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse::<u32>().ok());
    let (major, minor) = VERSION_LEAST;
    match numbers.next().zip(numbers.next()) {
        Some(found) if found >= VERSION_LEAST => Finding::fine(AREA, format!("Linux {release}")),
        Some(_) => Finding::broken(
            AREA,
            format!("Linux {release} cannot populate memory as the arena needs it"),
            format!("a kernel of version {major}.{minor} or later"),
        ),
        None => Finding::slow(
            AREA,
            format!("cannot parse the kernel version {release:?}"),
            "cat /proc/sys/kernel/osrelease",
        ),
    }
}

/// Devices of type `file` use it: kernel documentation, admin-guide/sysctl/kernel.
fn io_uring(machine: &Machine, config: &Config) -> Option<Finding> {
    let mut devices = config.devices.iter();
    if !devices.any(|device| matches!(device.backing, Backing::File { .. })) {
        return None;
    }
    // Kernels before 6.6 do not have this setting.
    let setting = machine
        .number("proc/sys/kernel/io_uring_disabled")
        .unwrap_or(0);
    let refused = |who: &str| {
        let text =
            format!("io_uring is disabled for {who}: devices of type \"file\" cannot be opened");
        Finding::broken(AREA, text, "sysctl kernel.io_uring_disabled=0")
    };
    Some(match setting {
        0 => Finding::fine(AREA, "io_uring is allowed"),
        1 => {
            let group = machine
                .text("proc/sys/kernel/io_uring_group")
                .unwrap_or_default();
            if is_member(machine, &group) {
                Finding::fine(AREA, format!("io_uring is allowed to group {group}"))
            } else {
                refused("users outside of kernel.io_uring_group")
            }
        }
        _ => refused("all users"),
    })
}

/// Whether this process is in a group or has CAP_SYS_ADMIN: capabilities(7).
fn is_member(machine: &Machine, group: &str) -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let field = |name: &str| machine.field("proc/self/status", name).unwrap_or_default();
    let capabilities = u64::from_str_radix(&field("CapEff"), 16).unwrap_or(0);
    let groups = field("Groups") + " " + &field("Gid");
    capabilities & (1 << CAP_SYS_ADMIN) != 0 || groups.split_whitespace().any(|it| it == group)
}

/// The arena is a memory file: kernel documentation, admin-guide/sysctl/vm.
fn memory_files(machine: &Machine) -> Option<Finding> {
    let setting = machine.number("proc/sys/vm/memfd_noexec")?;
    (setting == 2).then(|| {
        let text = "the kernel refuses memory files that are not sealed against execution: the \
                    arena cannot be created";
        Finding::broken(AREA, text, "sysctl vm.memfd_noexec=1")
    })
}
