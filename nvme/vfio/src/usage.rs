//! The uses of a drive: file systems, swap, stacked devices, exports, programs.
//!
//! Several sources are read, since none is complete. The final check is the kernel's: opening a
//! block device exclusively fails if it is mounted, used as swap, part of another device or of a
//! pool, in any mount namespace.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::system::{System, link_name, names, non_empty_text, text};

/// One use of a drive. `device` is the name of a block device or a partition, without `/dev/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Use {
    /// A file system on it is mounted.
    Mounted {
        /// The block device.
        device: String,
        /// The mount point.
        at: String,
    },
    /// The kernel uses it as swap space.
    Swap {
        /// The block device.
        device: String,
    },
    /// Another block device is built on it: an LVM volume, an md RAID, a mapping.
    Holder {
        /// The block device.
        device: String,
        /// The device built on it: `md0`, `dm-3`.
        holder: String,
        /// Description of that device: `LVM volume vg0-data`.
        what: String,
    },
    /// It is a member of a mounted btrfs file system.
    Btrfs {
        /// The block device.
        device: String,
        /// The file system's identifier.
        filesystem: String,
    },
    /// The kernel's NVMe target exports it.
    Exported {
        /// The block device.
        device: String,
        /// The subsystem's name.
        subsystem: String,
    },
    /// A program has it open.
    Program {
        /// The node that is open.
        device: String,
        /// The process.
        pid: u32,
        /// The program's short name.
        program: String,
    },
    /// It is opened exclusively: by a ZFS pool, or by something that no other source explains.
    Exclusive {
        /// The block device.
        device: String,
    },
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Use::Mounted { device, at } => write!(f, "/dev/{device} is mounted on {at}"),
            Use::Swap { device } => write!(f, "/dev/{device} is swap space"),
            Use::Holder { device, what, .. } => write!(f, "/dev/{device} is part of {what}"),
            Use::Btrfs { device, filesystem } => {
                write!(f, "/dev/{device} is part of btrfs {filesystem}")
            }
            Use::Exported { device, subsystem } => {
                write!(f, "/dev/{device} is exported by the kernel as {subsystem}")
            }
            Use::Program {
                device,
                pid,
                program,
            } => write!(f, "/dev/{device} is open in {program} (process {pid})"),
            Use::Exclusive { device } => {
                write!(
                    f,
                    "/dev/{device} is opened exclusively (by a ZFS pool, for example)"
                )
            }
        }
    }
}

impl Use {
    /// The remedy, as the end of a line.
    pub(crate) fn remedy(&self) -> &'static str {
        match self {
            Use::Mounted { .. } | Use::Btrfs { .. } => ": umount it first",
            Use::Swap { .. } => ": swapoff it first",
            Use::Holder { .. } => ": remove the drive from it first",
            Use::Exported { .. } => ": end that export first",
            Use::Program { .. } => ": stop that program first",
            Use::Exclusive { .. } => ": find and end that use first",
        }
    }

    /// Whether it ends by itself shortly: udev opens every new disk for a moment.
    pub(crate) fn is_transient(&self) -> bool {
        const NAMES: [&str; 3] = ["(udev-worker)", "systemd-udevd", "udevd"];
        matches!(self, Use::Program { program, .. } if NAMES.contains(&program.as_str()))
    }

    /// The block device or node in use, without `/dev/`.
    #[must_use]
    pub fn device(&self) -> &str {
        match self {
            Use::Mounted { device, .. }
            | Use::Swap { device }
            | Use::Holder { device, .. }
            | Use::Btrfs { device, .. }
            | Use::Exported { device, .. }
            | Use::Program { device, .. }
            | Use::Exclusive { device } => device,
        }
    }
}

/// A block device that is opened exclusively: no other use can begin while this exists.
#[derive(Debug)]
pub(crate) struct Claim {
    _file: fs::File,
}

/// The result of [`of_drive`].
#[derive(Debug, Default)]
pub(crate) struct Usage {
    pub(crate) uses: Vec<Use>,
    /// Exclusive claims on unused disks.
    pub(crate) claims: Vec<Claim>,
    /// A block device that could not be checked, and the cause.
    pub(crate) unknown: Option<(String, io::Error)>,
}

/// Finds the uses of the block devices `disks` (`nvme0n1`) with their partitions, and of the nodes
/// `nodes` (`nvme0`, `ng0n1`), which are not block devices.
pub(crate) fn of_drive(system: &System, disks: &[String], nodes: &[String]) -> Usage {
    let mut devices = Vec::new();
    for disk in disks {
        devices.push(disk.clone());
        devices.extend(partitions(system, disk));
    }
    let mut usage = Usage::default();
    usage.uses.extend(mounts(system, "self", &devices));
    usage.uses.extend(swaps(system, &devices));
    for device in &devices {
        usage.uses.extend(holders(system, device));
    }
    usage.uses.extend(btrfs(system, &devices));
    usage.uses.extend(exports(system, &devices, nodes));
    usage.uses.extend(loops(system, &devices));
    let mut all = devices.clone();
    all.extend_from_slice(nodes);
    usage.uses.extend(programs(system, &all));
    for disk in disks {
        claim(system, disk, &mut usage);
    }
    usage
}

/// Opens a disk exclusively, or finds the reason why that fails.
fn claim(system: &System, disk: &str, usage: &mut Usage) {
    match system.operations().claim(&system.dev(disk)) {
        Ok(file) => usage.claims.push(Claim { _file: file }),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            let mut devices = partitions(system, disk);
            devices.push(disk.to_owned());
            let explained = usage.uses.iter().any(|found| {
                // A program that merely has it open does not prevent exclusive opening.
                devices.iter().any(|device| device == found.device())
                    && !matches!(found, Use::Program { .. })
            });
            if explained {
                return;
            }
            let elsewhere = mounts_elsewhere(system, &devices);
            if elsewhere.is_empty() {
                let device = disk.to_owned();
                usage.uses.push(Use::Exclusive { device });
            }
            usage.uses.extend(elsewhere);
        }
        // Removed since the listing, or without a medium: it cannot be in use.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {}
        Err(error) => usage.unknown = Some((disk.to_owned(), error)),
    }
}

/// The partitions of a disk.
fn partitions(system: &System, disk: &str) -> Vec<String> {
    let folder = system.sysfs(format!("class/block/{disk}"));
    let mut partitions = names(&folder);
    partitions
        .retain(|name| name.starts_with(disk) && folder.join(name).join("partition").exists());
    partitions
}

/// Device number of a block device: `259:0`.
fn device_number(system: &System, device: &str) -> Option<String> {
    non_empty_text(&system.sysfs(format!("class/block/{device}/dev")))
}

/// All process identifiers.
fn processes(system: &System) -> impl Iterator<Item = u32> {
    names(&system.proc(""))
        .into_iter()
        .filter_map(|name| name.parse().ok())
}

/// File systems mounted in mount namespaces of other processes, for example in containers. Each
/// namespace is checked once, if this process is allowed to.
fn mounts_elsewhere(system: &System, devices: &[String]) -> Vec<Use> {
    let namespace = |process: &str| link_name(&system.proc(format!("{process}/ns/mnt")));
    let mut seen: BTreeSet<Option<String>> = BTreeSet::from([namespace("self")]);
    let mut uses = Vec::new();
    for pid in processes(system) {
        if !seen.insert(namespace(&pid.to_string())) {
            continue;
        }
        for found in mounts(system, &pid.to_string(), devices) {
            if let Use::Mounted { device, at } = found {
                let at = format!("{at} in the mount namespace of process {pid}");
                uses.push(Use::Mounted { device, at });
            }
        }
    }
    uses
}

/// Mounted file systems that a process can see: `proc_pid_mountinfo(5)`.
fn mounts(system: &System, process: &str, devices: &[String]) -> Vec<Use> {
    let table = text(&system.proc(format!("{process}/mountinfo"))).unwrap_or_default();
    let numbers: Vec<Option<String>> = devices
        .iter()
        .map(|device| device_number(system, device))
        .collect();
    let mut uses = Vec::new();
    for line in table.lines() {
        let mut fields = line.split(' ');
        let number = fields.nth(2);
        let at = fields.nth(1).map(unescaped).unwrap_or_default();
        // File systems on several devices have device numbers of their own, but their source is one
        // of the devices.
        let source = fields.skip_while(|field| *field != "-").nth(2);
        let source = source.map(unescaped);
        for (device, its_number) in devices.iter().zip(&numbers) {
            let by_number = its_number.is_some() && its_number.as_deref() == number;
            let by_name = source
                .as_deref()
                .is_some_and(|s| is_node(system, s, device));
            if by_number || by_name {
                let device = device.clone();
                uses.push(Use::Mounted {
                    device,
                    at: at.clone(),
                });
            }
        }
    }
    uses
}

/// Decodes text of procfs, in which blanks and line ends are octal escapes.
fn unescaped(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = (byte == b'\\').then(|| tail.get(..3)).flatten();
        let value = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match value {
            Some(value) => {
                out.push(value);
                rest = &tail[3..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    // Error messages are one line, so replace control characters.
    let text = String::from_utf8_lossy(&out).into_owned();
    text.replace(char::is_control, "?")
}

/// Whether `path` is the node of `device`, directly or by a link such as `/dev/disk/by-id/…`.
fn is_node(system: &System, path: &str, device: &str) -> bool {
    let Some(below) = path.strip_prefix("/dev/") else {
        return false;
    };
    if below == device {
        return true;
    }
    let real = fs::canonicalize(system.dev(below)).ok();
    real.is_some_and(|real| fs::canonicalize(system.dev(device)).is_ok_and(|node| node == real))
}

/// Swap space: `proc_swaps(5)`.
fn swaps(system: &System, devices: &[String]) -> Vec<Use> {
    let table = text(&system.proc("swaps")).unwrap_or_default();
    let mut uses = Vec::new();
    for path in table
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
    {
        let path = unescaped(path);
        let device = devices.iter().find(|device| is_node(system, &path, device));
        uses.extend(device.cloned().map(|device| Use::Swap { device }));
    }
    uses
}

/// Block devices built on `device`.
fn holders(system: &System, device: &str) -> Vec<Use> {
    let holders = names(&system.sysfs(format!("class/block/{device}/holders")));
    holders
        .into_iter()
        .map(|holder| Use::Holder {
            device: device.to_owned(),
            what: holder_in_words(system, &holder),
            holder,
        })
        .collect()
}

fn holder_in_words(system: &System, holder: &str) -> String {
    let folder = system.sysfs(format!("class/block/{holder}"));
    let name = non_empty_text(&folder.join("dm/name")).unwrap_or_else(|| holder.to_owned());
    let kind = non_empty_text(&folder.join("dm/uuid")).unwrap_or_default();
    if kind.starts_with("LVM-") {
        return format!("LVM volume {name}");
    }
    if kind.starts_with("CRYPT-") {
        return format!("encrypted volume {name}");
    }
    if kind.starts_with("mpath-") {
        return format!("multipath device {name}");
    }
    if folder.join("dm").exists() {
        return format!("mapped device {name}");
    }
    if folder.join("md").exists() {
        let level = non_empty_text(&folder.join("md/level")).unwrap_or_else(|| "RAID".to_owned());
        return format!("md array {holder} ({level})");
    }
    format!("block device {holder}")
}

/// Members of mounted btrfs file systems, of which the mount table lists only one.
fn btrfs(system: &System, devices: &[String]) -> Vec<Use> {
    let mut uses = Vec::new();
    for filesystem in names(&system.sysfs("fs/btrfs")) {
        let members = names(&system.sysfs(format!("fs/btrfs/{filesystem}/devices")));
        for device in devices.iter().filter(|device| members.contains(device)) {
            uses.push(Use::Btrfs {
                device: device.clone(),
                filesystem: filesystem.clone(),
            });
        }
    }
    uses
}

/// Namespaces and whole controllers exported by the kernel's NVMe target, which does not open them
/// exclusively.
fn exports(system: &System, devices: &[String], nodes: &[String]) -> Vec<Use> {
    let mut uses = Vec::new();
    let subsystems = system.sysfs("kernel/config/nvmet/subsystems");
    for subsystem in names(&subsystems) {
        let folder = subsystems.join(&subsystem);
        let namespaces = folder.join("namespaces");
        let mut places: Vec<PathBuf> = names(&namespaces)
            .iter()
            .map(|namespace| namespaces.join(namespace))
            .collect();
        places.push(folder.join("passthru"));
        for place in places {
            if non_empty_text(&place.join("enable")).as_deref() != Some("1") {
                continue;
            }
            let path = non_empty_text(&place.join("device_path")).unwrap_or_default();
            let mut candidates = devices.iter().chain(nodes);
            if let Some(device) = candidates.find(|device| is_node(system, &path, device)) {
                uses.push(Use::Exported {
                    device: device.clone(),
                    subsystem: subsystem.clone(),
                });
            }
        }
    }
    uses
}

/// Loop devices on `devices`: the kernel keeps them open, without an open descriptor of a process.
fn loops(system: &System, devices: &[String]) -> Vec<Use> {
    let mut uses = Vec::new();
    for holder in names(&system.sysfs("block")) {
        let file = system.sysfs(format!("block/{holder}/loop/backing_file"));
        let path = non_empty_text(&file).unwrap_or_default();
        if let Some(device) = devices.iter().find(|device| is_node(system, &path, device)) {
            uses.push(Use::Holder {
                device: device.clone(),
                what: format!("loop device {holder}"),
                holder,
            });
        }
    }
    uses
}

/// Programs that have one of `/dev/NAME` open, if this process is allowed to see it.
pub(crate) fn programs(system: &System, nodes: &[String]) -> Vec<Use> {
    let mut uses = Vec::new();
    if nodes.is_empty() {
        return uses;
    }
    for pid in processes(system).filter(|pid| *pid != std::process::id()) {
        let folder = system.proc(format!("{pid}/fd"));
        let open: BTreeSet<String> = names(&folder)
            .iter()
            .filter_map(|descriptor| open_node(&folder.join(descriptor)))
            .collect();
        for node in nodes.iter().filter(|node| open.contains(*node)) {
            uses.push(Use::Program {
                device: node.clone(),
                pid,
                program: program_name(system, pid),
            });
        }
    }
    uses
}

/// The part below `/dev/` of a descriptor's link.
fn open_node(link: &Path) -> Option<String> {
    let target = fs::read_link(link).ok()?;
    let below = target.strip_prefix("/dev").ok()?;
    Some(below.to_string_lossy().into_owned())
}

fn program_name(system: &System, pid: u32) -> String {
    let name = non_empty_text(&system.proc(format!("{pid}/comm")));
    let name = name.or_else(|| link_name(&system.proc(format!("{pid}/exe"))));
    name.unwrap_or_else(|| "a program".to_owned())
        .replace(char::is_control, "?")
}

#[cfg(test)]
mod tests;
