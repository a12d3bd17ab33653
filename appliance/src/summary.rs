//! The text at start and of `check`: what is served, where, and by which devices.

use std::fmt::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use appliance_config::{Access, Backing, Config, Cores, Device, Export, Listener, Transport};

use crate::appliance::Appliance;
use crate::error::with_causes;
use crate::identities;
use crate::keys::{Keys, KeysCheck};
use crate::nvme::{self, Wanted};
use crate::transports;

/// Most rate limits that are listed.
const RATE_LIMITS_LISTED_MAX: usize = 8;

/// The summary at start, ending in the line `windlass: ready`, for which scripts wait.
pub(crate) fn ready_text(appliance: &Appliance) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_ready(&mut text, appliance);
    text
}

fn write_ready(out: &mut String, appliance: &Appliance) -> fmt::Result {
    let config = appliance.config();
    let region = appliance.arena().region();
    writeln!(
        out,
        "windlass {}: reactors on cores {}, {} of memory in {}, started in {} ms",
        env!("CARGO_PKG_VERSION"),
        join(appliance.cores()),
        config.appliance.memory,
        region.page_size(),
        appliance.start_took().as_millis(),
    )?;
    let addresses = appliance.addresses();
    let is_left_out = |device: &Device| !appliance.has_device(&device.name);
    write_exports(
        out,
        config,
        is_left_out,
        |index, listener| match addresses.get(index) {
            Some(bound) => bound.to_string(),
            None => listener.address.to_string(),
        },
    )?;
    for export in &config.exports {
        for (listener, bound) in config.listeners.iter().zip(&addresses) {
            if export.listeners.contains(&listener.name) {
                let transport = listener.transport.word();
                writeln!(
                    out,
                    "attach: {}",
                    attach_command(transport, export.nqn.as_str(), *bound)
                )?;
            }
        }
    }
    for share in &config.files.shares {
        let bound = appliance.files_addresses();
        for (listener, bound) in config.files.listeners.iter().zip(bound) {
            let command = mount_command(share.name.as_str(), listener.transport, bound);
            writeln!(out, "mount: {command}")?;
        }
    }
    if let Some(control) = appliance.control() {
        if let Some(end) = control.http() {
            writeln!(out, "control: {end}")?;
        }
        if let Some(path) = control.socket() {
            writeln!(out, "control: {}", path.display())?;
        }
    }
    writeln!(out, "windlass: ready")
}

/// A summary of what a start with this configuration would serve, with its notices, and whether it
/// can start, as far as keys decide it. Changes nothing.
pub(crate) fn check_text(file: &Path, config: &Config) -> (String, bool) {
    let mut text = String::new();
    let _ = write_check(&mut text, file, config);
    let keys = Keys::check(config);
    let _ = write_keys(&mut text, &keys);
    (text, keys.problems.is_empty())
}

fn write_keys(out: &mut String, keys: &KeysCheck) -> fmt::Result {
    for name in &keys.unread {
        writeln!(
            out,
            "notice: key {name} is not checked: this user may not read it"
        )?;
    }
    for problem in &keys.problems {
        writeln!(out, "problem: it cannot start: {}", with_causes(problem))?;
    }
    Ok(())
}

fn write_check(out: &mut String, file: &Path, config: &Config) -> fmt::Result {
    let cores = match &config.appliance.cores {
        Cores::Auto => "auto (the last one allowed)".to_owned(),
        Cores::List(list) => list.to_string(),
    };
    writeln!(out, "{}: valid", file.display())?;
    writeln!(
        out,
        "cores {cores}, memory {}, pages {}, idle {}",
        config.appliance.memory,
        config.appliance.pages.word(),
        config.appliance.idle.word(),
    )?;
    let drives = check_drives(config);
    let in_the_way = |device: &Device| {
        let index = config.devices.iter().position(|it| it.name == device.name);
        let mut left_out = drives.iter().filter(|(_, problem)| problem.is_some());
        left_out.any(|(wanted, _)| index.is_some_and(|index| wanted.has(index)))
    };
    write_exports(out, config, in_the_way, |_, listener| {
        listener.address.to_string()
    })?;
    write_drives(out, &drives)?;
    if let Some(problem) = transports::rdma_problem(config) {
        writeln!(out, "problem: {problem}")?;
    }
    for notice in config.notices() {
        writeln!(out, "notice: {notice}")?;
    }
    for (device, path) in identities::replaced_files(config) {
        writeln!(
            out,
            "notice: device {device}: {} is not the file that was served last under this name: \
             identifiers change, and hosts see a different disk",
            path.display()
        )?;
    }
    Ok(())
}

/// A drive of the configuration, with its obstacle.
type CheckedDrive = (Wanted, Option<vfio::Problem>);

/// Checks the drives of `config` without changing them.
fn check_drives(config: &Config) -> Vec<CheckedDrive> {
    let system = vfio::System::default();
    let arena_bytes = config.appliance.memory.bytes();
    let check = |wanted: Wanted| {
        let problem = vfio::diagnose(&system, wanted.address, arena_bytes).err();
        (wanted, problem)
    };
    nvme::wanted(config).into_iter().map(check).collect()
}

fn write_drives(out: &mut String, drives: &[CheckedDrive]) -> fmt::Result {
    for (wanted, problem) in drives {
        let (address, names) = (wanted.address, &wanted.names);
        match problem {
            None => writeln!(out, "drive {address} ({names}): ready")?,
            Some(problem) => writeln!(out, "problem: {names} not served: {problem}")?,
        }
    }
    Ok(())
}

fn write_exports(
    out: &mut String,
    config: &Config,
    is_left_out: impl Fn(&Device) -> bool,
    address: impl Fn(usize, &Listener) -> String,
) -> fmt::Result {
    for export in &config.exports {
        writeln!(out, "{}", export.nqn.as_str())?;
        for namespace in &export.namespaces {
            if let Some(device) = config.device(&namespace.device) {
                let left_out = if is_left_out(device) {
                    ": not served"
                } else {
                    ""
                };
                let (nsid, device) = (namespace.nsid, describe(device));
                writeln!(out, "  namespace {nsid}  {device}{left_out}")?;
            }
        }
        for (index, listener) in config.listeners.iter().enumerate() {
            if export.listeners.contains(&listener.name) {
                writeln!(
                    out,
                    "  {} {}",
                    listener.transport.word(),
                    address(index, listener)
                )?;
            }
        }
        writeln!(out, "  {}", describe_access(export))?;
        if let Some(p99) = export.p99 {
            writeln!(out, "  others wait while its p99 exceeds {p99}")?;
        }
        if let Some(weight) = export.weight {
            writeln!(out, "  weight {weight} on a disk that is the bottleneck")?;
        }
    }
    write_files(out, config)?;
    write_rate_limits(out, config)
}

/// The shares with their volumes, and where they are served.
fn write_files(out: &mut String, config: &Config) -> fmt::Result {
    for share in &config.files.shares {
        let access = if share.read_only { ", read-only" } else { "" };
        writeln!(out, "share {}{access}", share.name)?;
        let mut volumes = config.files.volumes.iter();
        let volume = volumes.find(|volume| volume.name == share.volume);
        if let Some(volume) = volume
            && let Some(device) = config.device(&volume.device)
        {
            writeln!(
                out,
                "  volume {}  {}",
                volume.name,
                describe_storage(device)
            )?;
        }
        if let Some(directory) = &share.directory {
            writeln!(out, "  directory {directory}")?;
        }
        if let Some(size) = share.max_size {
            writeln!(out, "  at most {size} of data")?;
        }
        if let Some(files) = share.max_files {
            writeln!(out, "  at most {files} files")?;
        }
        for listener in &config.files.listeners {
            match listener.transport {
                Transport::Tcp => writeln!(out, "  nfs {}", listener.address)?,
                Transport::Rdma => writeln!(out, "  nfs {} over RDMA", listener.address)?,
            }
        }
        match share.clients.len() {
            _ if share.allow_any_client => writeln!(out, "  any client may mount it")?,
            count => writeln!(out, "  {count} network(s) of clients may mount it")?,
        }
    }
    Ok(())
}

/// The device of a volume.
fn describe_storage(device: &Device) -> String {
    match &device.backing {
        Backing::Memory { size, .. } => {
            format!("{} (memory {size}, empty at each start)", device.name)
        }
        _ => describe(device),
    }
}

fn write_rate_limits(out: &mut String, config: &Config) -> fmt::Result {
    for limit in config.rate_limits.iter().take(RATE_LIMITS_LISTED_MAX) {
        writeln!(out, "limit of {}", limit.in_words())?;
    }
    match config
        .rate_limits
        .len()
        .saturating_sub(RATE_LIMITS_LISTED_MAX)
    {
        0 => Ok(()),
        more => writeln!(out, "{more} more limit(s)"),
    }
}

fn describe(device: &Device) -> String {
    let backing = match &device.backing {
        Backing::Memory { size, .. } if device.uuid.is_none() => {
            format!("memory {size}, a new disk to hosts at each start")
        }
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
    let shared = match device.backing {
        Backing::File { shared: true, .. } => ", shared",
        _ => "",
    };
    let read_only = if device.read_only { ", read-only" } else { "" };
    format!(
        "{} ({backing}{blocks}{shared}{read_only})",
        device.name.as_str()
    )
}

fn describe_access(export: &Export) -> String {
    match &export.access {
        Access::AnyHost => "any host may connect".to_owned(),
        Access::Hosts(hosts) => {
            let masked: usize = export.masks.iter().map(|mask| mask.hosts.len()).sum();
            match masked {
                0 => format!("{} host(s) may connect", hosts.len()),
                _ => format!("{} host(s) may connect, {masked} with masks", hosts.len()),
            }
        }
    }
}

/// The command that attaches an export with the Linux host.
fn attach_command(transport: &str, nqn: &str, address: SocketAddr) -> String {
    let (ip, port) = (address.ip(), address.port());
    format!("nvme connect -t {transport} -a {ip} -s {port} -n {nqn}")
}

/// The command that mounts a share with the Linux client.
fn mount_command(share: &str, transport: Transport, address: SocketAddr) -> String {
    let port = address.port();
    let ip = match address.ip() {
        ip if ip.is_unspecified() => "ADDRESS".to_owned(),
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    };
    let proto = match transport {
        Transport::Tcp => "",
        Transport::Rdma => ",proto=rdma",
    };
    format!("mount -t nfs -o vers=4.2{proto},port={port} {ip}:/{share} DIRECTORY")
}

fn join(cores: &[usize]) -> String {
    let cores: Vec<String> = cores.iter().map(ToString::to_string).collect();
    cores.join(",")
}
