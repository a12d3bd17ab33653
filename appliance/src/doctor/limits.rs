//! Checks the limits of locked memory and descriptors, and the existence of the control socket's
//! group.

use appliance_config::{Backing, Config, Transport};

use super::Finding;
use super::machine::Machine;
use crate::control::group_number;
use crate::quantity::bytes;

const AREA: &str = "limits";
/// Descriptors other than those of connections: devices, rings, timers, the control plane's.
const DESCRIPTORS_BESIDE: u64 = 256;

/// Checks limits and groups.
pub(super) fn check(machine: &Machine, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(locked_memory(machine, config));
    findings.extend(descriptors(machine, config));
    findings.extend(group(machine, config));
    findings
}

fn locked_memory(machine: &Machine, config: &Config) -> Option<Finding> {
    let lock = vfio::lock_limit(&machine.system())?;
    let memory = config.appliance.memory.bytes();
    let limit = bytes(lock.limit);
    if lock.is_exempt || lock.limit == u64::MAX {
        return Some(Finding::fine(AREA, "memory may be locked without limit"));
    }
    if lock.allows(memory) {
        let text = format!("{limit} of memory may be locked, {} wanted", bytes(memory));
        return Some(Finding::fine(AREA, text));
    }
    let text = format!(
        "this user may lock {limit} of memory, {} are wanted",
        bytes(memory)
    );
    let fix = "ulimit -l unlimited as root before the start; the service's unit has \
                LimitMEMLOCK=infinity";
    let devices = config.devices.iter();
    let has_drives = { devices }.any(|device| matches!(device.backing, Backing::Nvme(_)));
    let listeners = config.listeners.iter();
    let has_rdma = { listeners }.any(|listener| listener.transport == Transport::Rdma);
    Some(if has_drives || has_rdma {
        let text = format!("{text}: it cannot be pinned for drives and RDMA devices");
        Finding::broken(AREA, text, fix)
    } else {
        Finding::slow(AREA, format!("{text}: swapping can stall I/O"), fix)
    })
}

fn descriptors(machine: &Machine, config: &Config) -> Option<Finding> {
    let limits = machine.text("proc/self/limits")?;
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    let limit = match line.split_whitespace().next()? {
        "unlimited" => u64::MAX,
        number => number.parse().ok()?,
    };
    let connections = u64::from(config.limits.max_connections);
    let wanted = connections + DESCRIPTORS_BESIDE;
    Some(if limit >= wanted {
        let text = format!("{limit} descriptors for at most {connections} connections");
        Finding::fine(AREA, text)
    } else {
        let text = format!(
            "{limit} descriptors for at most {connections} connections: hosts beyond that cannot \
             connect"
        );
        let fix = format!(
            "ulimit -n {wanted} before the start; the service's unit has LimitNOFILE=1048576"
        );
        Finding::broken(AREA, text, fix)
    })
}

fn group(machine: &Machine, config: &Config) -> Option<Finding> {
    let name = config.control.group.as_ref()?.as_str();
    let groups = machine.text("etc/group").unwrap_or_default();
    Some(if group_number(name, &groups).is_some() {
        let text = format!("the control socket's group {name} is there");
        Finding::fine(AREA, text)
    } else {
        let text =
            format!("the control socket's group {name} does not exist: only root has access");
        Finding::broken(AREA, text, format!("groupadd --system {name}"))
    })
}
