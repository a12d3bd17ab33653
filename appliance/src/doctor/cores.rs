//! Checks the reactors' cores: allowed, isolated, at full speed, no shared physical cores.

use std::collections::BTreeSet;

use appliance_config::{Config, Cores};

use super::Finding;
use super::machine::{Machine, joined};

const AREA: &str = "cores";

/// The cores of the reactors; if they are not allowed, the cores as listed in the file.
pub(super) fn resolve(machine: &Machine, config: &Config) -> Vec<usize> {
    let cores = &config.appliance.cores;
    cores
        .resolve(&allowed(machine))
        .unwrap_or_else(|_| match cores {
            Cores::Auto => vec![0],
            Cores::List(list) => list.iter().collect(),
        })
}

/// The cores that this process may use: cpuset(7), sched_setaffinity(2).
fn allowed(machine: &Machine) -> Vec<usize> {
    machine
        .field("proc/self/status", "Cpus_allowed_list")
        .map(|list| list.parse::<appliance_config::CoreList>())
        .and_then(Result::ok)
        .map_or_else(Vec::new, |list| list.iter().collect())
}

/// Checks the core of each reactor.
pub(super) fn check(machine: &Machine, config: &Config) -> Vec<Finding> {
    let allowed = allowed(machine);
    let cores = match config.appliance.cores.resolve(&allowed) {
        Ok(cores) => cores,
        Err(error) => {
            let online = machine.text("sys/devices/system/cpu/online");
            let text = format!(
                "cores = \"{}\": {error}; online are {}, allowed {}",
                match &config.appliance.cores {
                    Cores::Auto => "auto".to_owned(),
                    Cores::List(list) => list.to_string(),
                },
                online.as_deref().unwrap_or("?"),
                joined(&allowed),
            );
            let fix = "cores = \"…\" in [appliance], or AllowedCPUs= of the unit and its slice \
                        (systemctl show windlass -p AllowedCPUs)";
            return vec![Finding::broken(AREA, text, fix)];
        }
    };
    let mut findings = vec![isolation(machine, config, &cores)];
    findings.extend(siblings(machine, &cores));
    findings.extend(governor(machine, &cores));
    findings.extend(nodes(machine, &cores));
    findings
}

fn isolation(machine: &Machine, config: &Config, cores: &[usize]) -> Finding {
    let list = joined(cores);
    let isolated = machine.cores("sys/devices/system/cpu/isolated");
    let shared: Vec<usize> = cores
        .iter()
        .copied()
        .filter(|core| !isolated.contains(core))
        .collect();
    if shared.is_empty() {
        return Finding::fine(AREA, format!("reactors on {list}, isolated from others"));
    }
    if config.appliance.cores == Cores::Auto {
        // With `cores = "auto"`, an isolated core is not expected.
        let text = format!("one reactor, on core {list}, which other programs use too");
        return Finding::fine(AREA, text);
    }
    let text = format!(
        "reactors on {list}: other programs run on {} too, and take the reactors' time",
        joined(&shared)
    );
    let fix = format!(
        "on the kernel's command line: isolcpus=managed_irq,domain,{list} nohz_full={list} \
         rcu_nocbs={list}"
    );
    Finding::slow(AREA, text, fix)
}

/// Reports reactors on hardware threads of the same core.
fn siblings(machine: &Machine, cores: &[usize]) -> Option<Finding> {
    let shared: BTreeSet<Vec<usize>> = cores
        .iter()
        .filter_map(|core| {
            let path = format!("sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
            let siblings = machine.cores(path);
            let both: Vec<usize> = siblings
                .into_iter()
                .filter(|sibling| cores.contains(sibling))
                .collect();
            (both.len() > 1).then_some(both)
        })
        .collect();
    if shared.is_empty() {
        return None;
    }
    let pairs: Vec<String> = shared.iter().map(joined).collect();
    let text = format!(
        "reactors share cores: {} are threads of one each, and have half of it",
        pairs.join(" and ")
    );
    let keep = shared.iter().filter_map(|both| both.first()).copied();
    let alone = cores.iter().copied().filter(|core| {
        let mut pairs = shared.iter();
        !pairs.any(|both| both.contains(core))
    });
    let chosen: BTreeSet<usize> = keep.chain(alone).collect();
    let fix = format!("cores = \"{}\" in [appliance]", joined(chosen));
    Some(Finding::slow(AREA, text, fix))
}

fn governor(machine: &Machine, cores: &[usize]) -> Option<Finding> {
    let governors = cores.iter().filter_map(|core| {
        let path = format!("sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor");
        Some((*core, machine.text(path)?))
    });
    let governors: Vec<(usize, String)> = governors.collect();
    if governors.is_empty() {
        // Firmware or a hypervisor controls the frequency.
        return None;
    }
    let slow = governors.iter().filter(|(_, name)| name != "performance");
    let slow: Vec<&(usize, String)> = slow.collect();
    let Some((_, name)) = slow.first() else {
        return Some(Finding::fine(AREA, "frequency governor: performance"));
    };
    let list = joined(slow.iter().map(|(core, _)| core));
    let text = format!(
        "the frequency governor of {list} is {name}: a core that was idle is slow at first"
    );
    let fix = format!("cpupower -c {list} frequency-set -g performance");
    Some(Finding::slow(AREA, text, fix))
}

/// Reports whether the reactors are on several memory nodes.
fn nodes(machine: &Machine, cores: &[usize]) -> Option<Finding> {
    let nodes = machine.nodes_of_cores(cores);
    if machine.nodes().len() < 2 {
        return None;
    }
    let list = joined(&nodes);
    if nodes.len() == 1 {
        return Some(Finding::fine(AREA, format!("all reactors on node {list}")));
    }
    let text = format!(
        "reactors on the memory nodes {list}: data crosses between them, since there is one arena"
    );
    let fix = "cores = \"…\" of one node in [appliance] (lscpu --extended shows them), or one \
                appliance for each node";
    Some(Finding::slow(AREA, text, fix))
}
