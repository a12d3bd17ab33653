//! Checks the hugepages, by size and memory node, against the needs of the configuration.

use appliance_config::{Backing, Config, Pages};

use super::Finding;
use super::machine::{Machine, joined};
use crate::quantity::bytes;

const AREA: &str = "pages";
const HUGE_BYTES: u64 = 2 << 20;

/// The pages of one size, on one node or on all nodes.
#[derive(Clone, Copy, Debug, Default)]
struct Pool {
    total: u64,
    free: u64,
}

/// Checks the reservation and its placement on nodes.
pub(super) fn check(machine: &Machine, config: &Config, cores: &[usize]) -> Vec<Finding> {
    if config.appliance.pages == Pages::Ordinary {
        let text = "pages = \"ordinary\": more TLB misses, and a slower start";
        return vec![Finding::slow(AREA, text, "pages = \"auto\" in [appliance]")];
    }
    let mut findings = vec![two_mebibytes(machine, config)];
    findings.extend(nodes(machine, config, cores));
    for kib in sizes(machine) {
        let pool = pool(
            machine,
            &format!("sys/kernel/mm/hugepages/hugepages-{kib}kB"),
        );
        if kib * 1024 != HUGE_BYTES && pool.total > 0 {
            findings.push(Finding::fine(AREA, state(kib * 1024, pool)));
        }
    }
    findings
}

fn state(page: u64, pool: Pool) -> String {
    let Pool { total, free } = pool;
    format!("{total} pages of {} are reserved, {free} free", bytes(page))
}

/// Number of 2 MiB pages for the arena and memory devices.
fn wanted(config: &Config) -> u64 {
    let devices = config
        .devices
        .iter()
        .filter_map(|device| match device.backing {
            Backing::Memory { size, .. } => Some(size.bytes()),
            _ => None,
        });
    let all = devices.chain([config.appliance.memory.bytes()]);
    all.map(|bytes| bytes.div_ceil(HUGE_BYTES)).sum()
}

fn two_mebibytes(machine: &Machine, config: &Config) -> Finding {
    let folder = "sys/kernel/mm/hugepages/hugepages-2048kB";
    let wanted = wanted(config);
    let must = config.appliance.pages == Pages::Huge;
    let judge = if must { Finding::broken } else { Finding::slow };
    let Some(total) = machine.number(format!("{folder}/nr_hugepages")) else {
        let text = "this kernel has no pages of 2 MiB: more TLB misses, and a slower start";
        return judge(
            AREA,
            text.to_owned(),
            "a kernel with CONFIG_HUGETLBFS".to_owned(),
        );
    };
    let pool = Pool {
        total,
        ..pool(machine, folder)
    };
    let state = state(HUGE_BYTES, pool);
    if pool.free >= wanted {
        return Finding::fine(AREA, format!("{state}, {wanted} wanted"));
    }
    if pool.total >= wanted && pool.free < pool.total {
        let text = format!("{state}, {wanted} wanted: a running appliance may hold the others");
        return Finding::fine(AREA, text);
    }
    let reserve = pool.total + (wanted - pool.free);
    let text =
        format!("{state}, {wanted} wanted: without them more TLB misses, and a slower start");
    judge(AREA, text, reserve_command(machine, reserve))
}

/// The command that reserves pages. `vm.nr_hugepages` counts only pages of the default size.
fn reserve_command(machine: &Machine, pages: u64) -> String {
    let default = machine.field("proc/meminfo", "Hugepagesize");
    let command = if default.as_deref() == Some("2048 kB") {
        format!("sysctl vm.nr_hugepages={pages}")
    } else {
        let file = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
        format!("echo {pages} > {file}")
    };
    format!(
        "{command}; for good: HUGEPAGES_2M={pages} in /etc/default/windlass-hugepages, systemctl \
         enable windlass-hugepages"
    )
}

/// Reports, on a machine with several nodes, whether the pages are on a node other than the
/// reactors'.
fn nodes(machine: &Machine, config: &Config, cores: &[usize]) -> Option<Finding> {
    let nodes = machine.nodes();
    if nodes.len() < 2 {
        return None;
    }
    let pool_of = |node: u32| {
        let folder = format!("sys/devices/system/node/node{node}/hugepages/hugepages-2048kB");
        pool(machine, &folder)
    };
    let state = nodes.iter().map(|node| {
        let Pool { total, free } = pool_of(*node);
        format!("node {node}: {total} pages of 2 MiB, {free} free")
    });
    let state = state.collect::<Vec<_>>().join("; ");
    let near = machine.nodes_of_cores(cores);
    let here: u64 = near.iter().map(|node| pool_of(*node).total).sum();
    let wanted = wanted(config);
    let Some(first) = near.first().filter(|_| here < wanted) else {
        return Some(Finding::fine(AREA, state));
    };
    let text = format!(
        "{state}; the reactors are on node {}, where {wanted} are wanted: data crosses between nodes",
        joined(&near)
    );
    let pages = pool_of(*first).total + (wanted - here);
    let file =
        format!("/sys/devices/system/node/node{first}/hugepages/hugepages-2048kB/nr_hugepages");
    Some(Finding::slow(
        AREA,
        text,
        format!(
            "echo {pages} > {file}; for good: HUGEPAGES_2M_NODE{first}={pages} in \
             /etc/default/windlass-hugepages"
        ),
    ))
}

/// The page sizes of the kernel, in KiB.
fn sizes(machine: &Machine) -> Vec<u64> {
    let names = machine.names("sys/kernel/mm/hugepages");
    let sizes = names.iter().filter_map(|name| {
        let size = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
        size.parse().ok()
    });
    sizes.collect()
}

fn pool(machine: &Machine, folder: &str) -> Pool {
    let number = |name: &str| machine.number(format!("{folder}/{name}")).unwrap_or(0);
    Pool {
        total: number("nr_hugepages"),
        // Pages that are reserved for a mapping are not available.
        free: number("free_hugepages").saturating_sub(number("resv_hugepages")),
    }
}
