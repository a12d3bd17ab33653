//! Checks the configuration's drives and the IOMMU that they need.

use appliance_config::Config;
use vfio::{Function, PciAddress, Problem, Use, nvme_functions};

use super::Finding;
use super::machine::{Machine, joined};
use crate::nvme;

const AREA: &str = "drives";
/// The process name of a running appliance.
const PROGRAM: &str = "windlass";

/// Checks each drive of the configuration, and counts the other drives.
pub(super) fn check(machine: &Machine, config: &Config, cores: &[usize]) -> Vec<Finding> {
    let wanted = nvme::wanted(config);
    let mut findings = Vec::new();
    if !wanted.is_empty() {
        findings.push(iommu(machine));
    }
    let near = machine.nodes_of_cores(cores);
    for drive in &wanted {
        let system = machine.system();
        let bytes = config.appliance.memory.bytes();
        findings.push(match vfio::diagnose(&system, drive.address, bytes) {
            Ok(function) => ready(&function, &drive.names, &near),
            Err(problem) => in_the_way(&problem, &drive.names),
        });
    }
    let others = nvme_functions(&machine.system());
    let others = others.into_iter().filter(|address| {
        let mut known = wanted.iter();
        !known.any(|drive| drive.address == *address)
    });
    let others: Vec<PciAddress> = others.collect();
    if !others.is_empty() {
        let text = format!(
            "{} more NVMe drives, not in the configuration: `windlass devices` shows them",
            others.len()
        );
        findings.push(Finding::fine(AREA, text));
    }
    findings
}

fn iommu(machine: &Machine) -> Finding {
    let units = machine.names("sys/class/iommu");
    if !units.is_empty() {
        let text = format!("IOMMU: {}", units.join(", "));
        return Finding::fine(AREA, text);
    }
    let text = "there is no IOMMU, or the kernel does not use it: no drive can be opened";
    let fix = "VT-d, AMD-Vi or SMMU in the firmware, and intel_iommu=on on the kernel's command \
                line for Intel";
    Finding::broken(AREA, text, fix)
}

fn ready(function: &Function, names: &str, near: &std::collections::BTreeSet<u32>) -> Finding {
    let address = function.address;
    match function.numa_node {
        Some(node) if !near.contains(&node) => {
            let text = format!(
                "{address} ({names}) is on memory node {node}, the reactors are on {}: data \
                 crosses between nodes",
                joined(near)
            );
            let fix = format!(
                "cores = \"…\" of node {node} in [appliance]: \
                 cat /sys/devices/system/node/node{node}/cpulist"
            );
            Finding::slow(AREA, text, fix)
        }
        _ => Finding::fine(AREA, format!("{address} ({names}) is ready")),
    }
}

fn in_the_way(problem: &Problem, names: &str) -> Finding {
    if let Problem::OpenInProgram { address, by } = problem
        && let Some(Use::Program { program, pid, .. }) = by
        && program == PROGRAM
    {
        let text = format!("{address} ({names}) serves in the running appliance, process {pid}");
        return Finding::fine(AREA, text);
    }
    let address = problem.address();
    let fix = match problem {
        Problem::KernelDriver { .. } | Problem::NoDriver { .. } => {
            format!(
                "windlass bind {address}; for good: systemctl enable --now windlass-bind@{address}"
            )
        }
        Problem::NoModule { module, .. } => format!("modprobe {module}"),
        Problem::NoSuchFunction { .. } | Problem::NotNvme { .. } => "windlass devices".to_owned(),
        Problem::VirtualFunctions { .. } => {
            format!("echo 0 > /sys/bus/pci/devices/{address}/sriov_numvfs")
        }
        // The text of these problems already says what to do, which is more than one command.
        _ => "see the finding".to_owned(),
    };
    Finding::broken(AREA, format!("{names} not served: {problem}"), fix)
}
