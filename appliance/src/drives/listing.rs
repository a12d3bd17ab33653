//! The output of `windlass devices`: a table for people, JSON for programs.

use std::fmt::Write as _;

use appliance_config::Appliance;
use serde::Serialize;
use vfio::{Function, PciAddress, Problem, System, Use};

use crate::quantity;
use crate::table::{Cell, Column, Table, name};

/// The last columns may be long.
const COLUMNS: [Column; 7] = [
    name("ADDRESS"),
    name("MODEL"),
    name("SERIAL"),
    name("DRIVER"),
    name("GROUP"),
    name("NUMA"),
    name("SIZE"),
];

/// One drive, with the obstacle to exporting it.
#[derive(Debug)]
pub(super) struct Drive {
    function: Function,
    uses: Vec<Use>,
    problem: Option<String>,
    /// Whether the problem lists the other members of its IOMMU group.
    names_neighbours: bool,
}

/// All NVMe functions of the machine.
///
/// The memory to be pinned for a drive is assumed to be the default arena, because the
/// configuration is not known here.
pub(super) fn list(system: &System) -> Vec<Drive> {
    let arena_bytes = Appliance::default().memory.bytes();
    vfio::nvme_functions(system)
        .into_iter()
        // A drive that is removed in between is omitted.
        .filter_map(|address| {
            let function = Function::inspect(system, address).ok()?;
            let problem = vfio::diagnose(system, address, arena_bytes).err();
            let names_neighbours = matches!(problem, Some(Problem::GroupShared { .. }));
            let line = problem.as_ref().map(ToString::to_string);
            let uses = match problem {
                Some(Problem::InUse { uses, .. }) => uses,
                _ => Vec::new(),
            };
            Some(Drive {
                function,
                uses,
                problem: line,
                names_neighbours,
            })
        })
        .collect()
}

/// A line for each drive, followed by its readiness or the obstacle.
pub(super) fn table(drives: &[Drive]) -> String {
    if drives.is_empty() {
        return "no NVMe drives\n".to_owned();
    }
    let mut table = Table::new(&COLUMNS);
    for drive in drives {
        table.push(row(&drive.function).map(Cell::text).to_vec());
    }
    let states = std::iter::once(String::new()).chain(drives.iter().map(state));
    let lines = table.lines().into_iter().zip(states);
    lines.map(|(line, state)| line + "\n" + &state).collect()
}

fn row(function: &Function) -> [String; COLUMNS.len()] {
    let or_none = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
    let group = function.group.as_ref().map(|group| {
        let shared = if group.others.is_empty() {
            ""
        } else {
            " shared"
        };
        format!("{}{shared}", group.number)
    });
    let (vendor, device) = function.ids;
    // Without the kernel's driver the model is unknown.
    let model = function.model.clone();
    [
        function.address.to_string(),
        model.unwrap_or_else(|| format!("[{vendor:04x}:{device:04x}]")),
        or_none(function.serial.clone()),
        or_none(function.driver.clone()),
        or_none(group),
        or_none(function.numa_node.map(|node| node.to_string())),
        size(function),
    ]
}

fn size(function: &Function) -> String {
    let disks = &function.disks;
    if disks.is_empty() {
        return "-".to_owned();
    }
    let bytes = disks
        .iter()
        .fold(0_u64, |sum, disk| sum.saturating_add(disk.bytes));
    let size = quantity::bytes(bytes);
    match disks.len() {
        1 => size,
        several => format!("{size} in {several} namespaces"),
    }
}

fn state(drive: &Drive) -> String {
    let mut text = String::new();
    match &drive.problem {
        None => text += "    ready to be exported\n",
        Some(problem) => {
            let _ = writeln!(text, "    {problem}");
        }
    }
    if let Some(group) = &drive.function.group
        && !group.others.is_empty()
        && !drive.names_neighbours
    {
        let others = group.others.iter().map(|other| match &other.driver {
            Some(driver) => format!("{} ({driver})", other.address),
            None => other.address.to_string(),
        });
        let others = others.collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "    IOMMU group {} also has {others}", group.number);
    }
    text
}

#[derive(Serialize)]
struct DriveJson<'a> {
    address: String,
    vendor: String,
    device: String,
    model: Option<&'a str>,
    serial: Option<&'a str>,
    driver: Option<&'a str>,
    driver_override: Option<&'a str>,
    iommu_group: Option<GroupJson<'a>>,
    numa_node: Option<u32>,
    controller: Option<&'a str>,
    namespaces: Vec<NamespaceJson<'a>>,
    uses: Vec<UseJson<'a>>,
    /// Whether `windlass run` can open it now.
    ready: bool,
    /// The obstacle and its remedy.
    problem: Option<&'a str>,
}

#[derive(Serialize)]
struct GroupJson<'a> {
    number: u32,
    others: Vec<MemberJson<'a>>,
}

#[derive(Serialize)]
struct MemberJson<'a> {
    address: String,
    driver: Option<&'a str>,
    class: String,
}

#[derive(Serialize)]
struct NamespaceJson<'a> {
    nsid: Option<u32>,
    block_device: &'a str,
    bytes: u64,
}

#[derive(Serialize)]
struct UseJson<'a> {
    device: &'a str,
    kind: &'static str,
    text: String,
}

/// All known details as one JSON array.
pub(super) fn json(drives: &[Drive]) -> serde_json::Result<String> {
    let all: Vec<DriveJson<'_>> = drives.iter().map(drive_json).collect();
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

fn drive_json(drive: &Drive) -> DriveJson<'_> {
    let function = &drive.function;
    let (vendor, device) = function.ids;
    DriveJson {
        address: function.address.to_string(),
        vendor: format!("{vendor:04x}"),
        device: format!("{device:04x}"),
        model: function.model.as_deref(),
        serial: function.serial.as_deref(),
        driver: function.driver.as_deref(),
        driver_override: function.driver_override.as_deref(),
        iommu_group: function.group.as_ref().map(|group| GroupJson {
            number: group.number,
            others: group
                .others
                .iter()
                .map(|other| MemberJson {
                    address: PciAddress::to_string(&other.address),
                    driver: other.driver.as_deref(),
                    class: format!("{:06x}", other.class),
                })
                .collect(),
        }),
        numa_node: function.numa_node,
        controller: function.controller.as_deref(),
        namespaces: function
            .disks
            .iter()
            .map(|disk| NamespaceJson {
                nsid: disk.nsid,
                block_device: &disk.name,
                bytes: disk.bytes,
            })
            .collect(),
        uses: drive
            .uses
            .iter()
            .map(|found| UseJson {
                device: found.device(),
                kind: kind(found),
                text: found.to_string(),
            })
            .collect(),
        ready: drive.problem.is_none(),
        problem: drive.problem.as_deref(),
    }
}

fn kind(found: &Use) -> &'static str {
    match found {
        Use::Mounted { .. } => "mounted",
        Use::Swap { .. } => "swap",
        Use::Holder { .. } => "holder",
        Use::Btrfs { .. } => "btrfs",
        Use::Exported { .. } => "exported",
        Use::Program { .. } => "program",
        Use::Exclusive { .. } => "exclusive",
    }
}
