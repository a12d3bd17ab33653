//! Checks the listeners' addresses and network cards, TCP's settings, and RDMA devices and their
//! limits.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use appliance_config::{Config, Listener, Tls, TlsRecords, Transport};

use super::Finding;
use super::machine::{Machine, joined};
use crate::{files, transports};

const AREA: &str = "network";
/// Minimum of the maximum size of a connection's buffers, in bytes, for a fast network.
const BUFFER_BYTES_LEAST: u64 = 1 << 20;
/// Speed from which large frames matter, in Mbit/s.
const FAST_MBITS: u64 = 10_000;
const LARGE_FRAME_BYTES: u64 = 9000;
/// The protocols above TCP that the kernel has loaded.
const PROTOCOLS: &str = "proc/sys/net/ipv4/tcp_available_ulp";
const CONTROLS: &str = "proc/sys/net/ipv4/tcp_available_congestion_control";

/// Checks each listener, then the settings that its transport needs.
pub(super) fn check(machine: &Machine, config: &Config, cores: &[usize]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let near = machine.nodes_of_cores(cores);
    for listener in &config.listeners {
        findings.extend(address(machine, listener, &near));
        findings.extend(congestion(machine, listener));
        findings.extend(tls(machine, listener));
    }
    let has = |transport| config.listeners.iter().any(|it| it.transport == transport);
    if has(Transport::Tcp) {
        findings.extend(buffers(machine));
    }
    if has(Transport::Rdma) {
        findings.extend(rdma(machine, config));
    }
    findings
}

/// What protects the records of a listener's connections.
fn tls(machine: &Machine, listener: &Listener) -> Option<Finding> {
    let policy = match listener.tls {
        Tls::Off => return None,
        Tls::Allowed => "is allowed",
        Tls::Required => "is required",
    };
    let name = &listener.name;
    let protocols = machine.text(PROTOCOLS).unwrap_or_default();
    let has_kernel_tls = protocols.split_whitespace().any(|it| it == "tls");
    let (sealer, can) = match (listener.tls_records, has_kernel_tls) {
        (TlsRecords::Own, _) => ("Windlass", true),
        (TlsRecords::Kernel, true) => ("the kernel (kTLS)", true),
        (TlsRecords::Kernel, false) => ("Windlass", false),
    };
    let text = format!("listener {name}: TLS {policy}; records are sealed by {sealer}");
    Some(match can {
        true => Finding::fine(AREA, text),
        false => Finding::slow(
            AREA,
            format!("{text}, because the kernel has not loaded TLS"),
            "modprobe tls, and write tls to a file in /etc/modules-load.d",
        ),
    })
}

fn address(machine: &Machine, listener: &Listener, near: &BTreeSet<u32>) -> Vec<Finding> {
    let name = listener.name.as_str();
    let ip = listener.address.socket_addr().ip();
    if ip.is_unspecified() || ip.is_loopback() {
        return vec![Finding::fine(AREA, format!("listener {name}: {ip}"))];
    }
    if !is_here(machine, ip) {
        let text = format!("listener {name}: this machine has no address {ip}");
        let fix = format!("ip address add {ip}/PREFIX dev INTERFACE, or another `address`");
        return vec![Finding::broken(AREA, text, fix)];
    }
    let Some(interface) = interface_of(machine, ip) else {
        return vec![Finding::fine(AREA, format!("listener {name}: {ip}"))];
    };
    card(machine, name, &interface, near)
}

/// Checks the network card of a listener.
fn card(machine: &Machine, name: &str, interface: &str, near: &BTreeSet<u32>) -> Vec<Finding> {
    let attribute = |what: &str| machine.text(format!("sys/class/net/{interface}/{what}"));
    let mut findings = Vec::new();
    if attribute("operstate").as_deref() == Some("down") {
        let text = format!("listener {name}: {interface} is down");
        let fix = format!("ip link set {interface} up");
        findings.push(Finding::broken(AREA, text, fix));
    }
    let number = |what: &str| attribute(what)?.parse::<u64>().ok();
    let (speed, mtu) = (number("speed"), number("mtu"));
    let is_fast = speed.is_some_and(|mbits| mbits >= FAST_MBITS && mbits < u64::from(u32::MAX));
    if let Some(mtu) = mtu.filter(|mtu| is_fast && *mtu < LARGE_FRAME_BYTES) {
        let text = format!(
            "listener {name}: {interface} has frames of {mtu} bytes: more packets for the same data"
        );
        let fix = format!(
            "ip link set {interface} mtu {LARGE_FRAME_BYTES}, where hosts and switches have it too"
        );
        findings.push(Finding::slow(AREA, text, fix));
    }
    // The value is -1 if the machine has only one node.
    let node = attribute("device/numa_node").and_then(|node| node.parse::<u32>().ok());
    if let Some(node) = node.filter(|node| !near.contains(node)) {
        let text = format!(
            "listener {name}: {interface} is on memory node {node}, the reactors are on {}: data \
             crosses between nodes",
            joined(near)
        );
        let fix = format!(
            "cores = \"…\" of node {node} in [appliance]: \
             cat /sys/devices/system/node/node{node}/cpulist"
        );
        findings.push(Finding::slow(AREA, text, fix));
    }
    if findings.is_empty() {
        let speed = speed.map_or_else(String::new, |mbits| format!(", {mbits} Mbit/s"));
        findings.push(Finding::fine(
            AREA,
            format!("listener {name}: {interface}{speed}"),
        ));
    }
    findings
}

/// Whether an address belongs to this machine: proc(5), `net/fib_trie` and `net/if_inet6`.
fn is_here(machine: &Machine, ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let trie = machine.text("proc/net/fib_trie").unwrap_or_default();
            let leaf = format!("|-- {ip}");
            let mut lines = trie.lines().map(str::trim);
            let mut is_below = false;
            lines.any(|line| {
                if line.starts_with("|--") || line.starts_with("+--") {
                    is_below = line == leaf;
                }
                is_below && line.starts_with("/32 ") && line.ends_with("LOCAL")
            })
        }
        IpAddr::V6(_) => interface_of(machine, ip).is_some(),
    }
}

/// The interface whose network contains an address, if the routes show it: proc(5), `net/route`.
fn interface_of(machine: &Machine, ip: IpAddr) -> Option<String> {
    match ip {
        IpAddr::V4(ip) => {
            let routes = machine.text("proc/net/route")?;
            let parsed = routes.lines().skip(1).filter_map(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                // The bytes are in memory order.
                let number = |field: usize| u32::from_str_radix(fields.get(field)?, 16).ok();
                let (network, mask) = (number(1)?, number(7)?);
                let address = u32::from_ne_bytes(Ipv4Addr::octets(&ip));
                let has = mask != 0 && address & mask == network;
                has.then(|| (mask.count_ones(), fields[0].to_owned()))
            });
            parsed.max().map(|(_, interface)| interface)
        }
        IpAddr::V6(ip) => {
            let addresses = machine.text("proc/net/if_inet6")?;
            let wanted = format!("{:032x}", u128::from(ip));
            let line = addresses.lines().find(|line| line.starts_with(&wanted))?;
            line.split_whitespace().next_back().map(ToOwned::to_owned)
        }
    }
}

fn congestion(machine: &Machine, listener: &Listener) -> Option<Finding> {
    let wanted = listener.congestion_control.as_ref()?.as_str();
    let name = listener.name.as_str();
    let available = machine.text(CONTROLS).unwrap_or_default();
    if available.split_whitespace().any(|it| it == wanted) {
        let text = format!("listener {name}: congestion control {wanted}");
        return Some(Finding::fine(AREA, text));
    }
    let text = format!(
        "listener {name}: the kernel has not loaded congestion control {wanted}, only {available}"
    );
    Some(Finding::broken(
        AREA,
        text,
        format!("modprobe tcp_{wanted}"),
    ))
}

fn buffers(machine: &Machine) -> Vec<Finding> {
    let check = |direction: &str| {
        let setting = machine.text(format!("proc/sys/net/ipv4/tcp_{direction}mem"))?;
        let values: Vec<u64> = setting
            .split_whitespace()
            .filter_map(|value| value.parse().ok())
            .collect();
        let [least, usual, most] = values[..] else {
            return None;
        };
        (most < BUFFER_BYTES_LEAST).then(|| {
            let text = format!(
                "TCP's buffers (tcp_{direction}mem) grow to {most} bytes: too little for a fast \
                 network"
            );
            let fix = format!(
                "sysctl net.ipv4.tcp_{direction}mem=\"{least} {usual} {}\"",
                6 * BUFFER_BYTES_LEAST
            );
            Finding::slow(AREA, text, fix)
        })
    };
    let findings: Vec<Finding> = ["r", "w"].into_iter().filter_map(check).collect();
    if findings.is_empty() {
        return vec![Finding::fine(AREA, "TCP's buffers grow far enough")];
    }
    findings
}

fn rdma(machine: &Machine, config: &Config) -> Vec<Finding> {
    let devices = machine.names("sys/class/infiniband");
    if devices.is_empty() {
        let text = "there is no RDMA device: listeners with transport = \"rdma\" cannot be bound";
        let fix = "the driver of the card (mlx5_ib, irdma, …); without one: modprobe rdma_rxe && \
                    rdma link add rxe0 type rxe netdev INTERFACE";
        return vec![Finding::broken(AREA, text, fix)];
    }
    let mut findings = Vec::new();
    for device in &devices {
        let ports = machine.names(format!("sys/class/infiniband/{device}/ports"));
        let is_active = |port: &String| {
            let state = machine.text(format!("sys/class/infiniband/{device}/ports/{port}/state"));
            state.is_some_and(|state| state.ends_with("ACTIVE"))
        };
        findings.push(if ports.iter().any(is_active) {
            Finding::fine(AREA, format!("RDMA device {device}: active"))
        } else {
            let text = format!("RDMA device {device} has no active port");
            let fix = format!("rdma link show; the cable, and `ip link set … up` for {device}");
            Finding::broken(AREA, text, fix)
        });
    }
    // The other properties are available only from libraries.
    if machine.is_local() {
        let problem = transports::rdma_problem(config);
        if let Some(problem) = problem.or_else(|| files::rdma_problem(config)) {
            findings.push(Finding::broken(AREA, problem, "see the finding"));
        }
        findings.extend(limits(config));
    }
    findings
}

/// Compares the limits of the cards with the configuration.
fn limits(config: &Config) -> Vec<Finding> {
    let memory = config.appliance.memory.bytes();
    let rdma = config.listeners.iter();
    let depth = rdma
        .filter(|listener| listener.transport == Transport::Rdma)
        .map(|listener| listener.queue_depth)
        .max()
        .unwrap_or(0);
    let judge = |card: transports::RdmaCard| {
        let transports::RdmaCard {
            name,
            queue_depth_max,
            registrations,
            registration_bytes,
        } = card;
        let pieces = memory.div_ceil(registration_bytes.max(1));
        if pieces > u64::from(registrations) {
            let text = format!(
                "RDMA device {name} registers {registrations} pieces of {registration_bytes} \
                 bytes: {memory} bytes of memory do not fit"
            );
            return Finding::broken(AREA, text, "a smaller `memory` in [appliance]");
        }
        if depth > queue_depth_max {
            let text = format!(
                "RDMA device {name} supports queues of {queue_depth_max} entries, not {depth}: \
                 the queue depth is lowered"
            );
            let fix = format!("queue_depth = {queue_depth_max} of the listener");
            return Finding::slow(AREA, text, fix);
        }
        let text = format!(
            "RDMA device {name}: queues of {queue_depth_max} entries, memory in {pieces} \
             registration(s)"
        );
        Finding::fine(AREA, text)
    };
    transports::rdma_cards().into_iter().map(judge).collect()
}
