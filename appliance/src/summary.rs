//! What a person sees at start and from `check`: what is served, where, by what.

use std::net::SocketAddr;
use std::path::Path;

use appliance_config::{Access, Backing, Config, Cores, Device, Export, Listener};

use crate::appliance::Appliance;

/// Prints what is served and the line `windlass: ready`, which scripts wait for.
pub(crate) fn announce_ready(appliance: &Appliance) {
    let config = appliance.config();
    let region = appliance.arena().region();
    println!(
        "windlass {}: reactors on cores {}, {} of memory in {}, started in {} ms",
        env!("CARGO_PKG_VERSION"),
        join(appliance.cores()),
        config.appliance.memory,
        region.page_size(),
        appliance.start_took().as_millis(),
    );
    print_exports(config, |index, listener| {
        match appliance.addresses().get(index) {
            Some(bound) => bound.to_string(),
            None => listener.address.to_string(),
        }
    });
    for export in &config.exports {
        for (listener, bound) in config.listeners.iter().zip(appliance.addresses()) {
            if export.listeners.contains(&listener.name) {
                println!("attach: {}", attach_command(export.nqn.as_str(), *bound));
            }
        }
    }
    println!("windlass: ready");
}

/// Prints what a start with this configuration would serve, and what to know before it.
pub(crate) fn print_check(file: &Path, config: &Config) {
    let cores = match &config.appliance.cores {
        Cores::Auto => "auto (the last one allowed)".to_owned(),
        Cores::List(list) => list.to_string(),
    };
    println!("{}: valid", file.display());
    println!(
        "cores {cores}, memory {}, pages {}, idle {}",
        config.appliance.memory,
        config.appliance.pages.word(),
        config.appliance.idle.word(),
    );
    print_exports(config, |_, listener| listener.address.to_string());
    for notice in config.notices() {
        println!("notice: {notice}");
    }
}

fn print_exports(config: &Config, address: impl Fn(usize, &Listener) -> String) {
    for export in &config.exports {
        println!("{}", export.nqn.as_str());
        for namespace in &export.namespaces {
            if let Some(device) = config.device(&namespace.device) {
                println!("  namespace {}  {}", namespace.nsid, describe(device));
            }
        }
        for (index, listener) in config.listeners.iter().enumerate() {
            if export.listeners.contains(&listener.name) {
                println!(
                    "  {} {}",
                    listener.transport.word(),
                    address(index, listener)
                );
            }
        }
        println!("  {}", describe_access(export));
    }
}

fn describe(device: &Device) -> String {
    let backing = match &device.backing {
        Backing::Memory { size, .. } => format!("memory {size}"),
        Backing::Null { size, .. } => format!("null {size}"),
        Backing::File {
            path,
            size: Some(size),
            ..
        } => format!("file {} {size}", path.display()),
        Backing::File { path, .. } => format!("file {}", path.display()),
        Backing::Nvme(drive) => format!("nvme {} namespace {}", drive.pci, drive.namespace),
    };
    let blocks = device
        .backing
        .block_size()
        .map_or_else(String::new, |size| {
            format!(", {}-byte blocks", size.bytes())
        });
    let read_only = if device.read_only { ", read-only" } else { "" };
    format!("{} ({backing}{blocks}{read_only})", device.name.as_str())
}

fn describe_access(export: &Export) -> String {
    match &export.access {
        Access::AnyHost => "any host may connect".to_owned(),
        Access::Hosts(hosts) => format!("{} host(s) may connect", hosts.len()),
    }
}

/// The command that attaches an export with the kernel's host.
fn attach_command(nqn: &str, address: SocketAddr) -> String {
    let (ip, port) = (address.ip(), address.port());
    format!("nvme connect -t tcp -a {ip} -s {port} -n {nqn}")
}

fn join(cores: &[usize]) -> String {
    let cores: Vec<String> = cores.iter().map(ToString::to_string).collect();
    cores.join(",")
}
