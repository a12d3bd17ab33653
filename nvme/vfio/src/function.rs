//! NVMe functions in sysfs.

use crate::system::{System, link_name, names, non_empty_text, number};
use crate::usage::{self, Usage};
use crate::{PciAddress, Problem};

/// PCI class code of NVMe controllers and NVMe administrative controllers, without the interface
/// byte: mass storage, non-volatile memory (PCIe 1.1 §3.8.1.5).
const NVME_CLASS: u32 = 0x0108;

/// Drivers that leave a group viable: VFIO's own, the placeholder that keeps other drivers away,
/// and the one for bridges, which performs no DMA of its own.
const HARMLESS_DRIVERS: [&str; 3] = ["vfio-pci", "pci-stub", "pcieport"];

/// Another function in the same IOMMU group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMember {
    /// The function.
    pub address: PciAddress,
    /// Its driver, if it has one.
    pub driver: Option<String>,
    /// Its PCI class code, 24 bits; 0 if it cannot be read.
    pub class: u32,
}

impl GroupMember {
    /// Whether VFIO accepts the group in spite of this function.
    #[must_use]
    pub fn is_harmless(&self) -> bool {
        self.driver
            .as_deref()
            .is_none_or(|driver| HARMLESS_DRIVERS.contains(&driver))
    }
}

/// Functions that the IOMMU cannot isolate from each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IommuGroup {
    /// The kernel's group number.
    pub number: u32,
    /// The other functions in it, sorted by address.
    pub others: Vec<GroupMember>,
}

/// One namespace as a block device of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// The block device: `nvme0n1`.
    pub name: String,
    /// The namespace identifier, which may differ from the number in the name: Linux numbers block
    /// devices in the order of detection.
    pub nsid: Option<u32>,
    /// Its size in bytes.
    pub bytes: u64,
}

/// An NVMe function at the time of inspection.
#[derive(Debug)]
pub struct Function {
    /// Its address.
    pub address: PciAddress,
    /// PCI vendor and device identifiers.
    pub ids: (u16, u16),
    /// The model, if the function belongs to the kernel's driver.
    pub model: Option<String>,
    /// The serial number, if the function belongs to the kernel's driver.
    pub serial: Option<String>,
    /// The driver to which it belongs.
    pub driver: Option<String>,
    /// The only driver that may bind to it (`driver_override`).
    pub driver_override: Option<String>,
    /// Its IOMMU group; `None` without an IOMMU.
    pub group: Option<IommuGroup>,
    /// The closest NUMA node.
    pub numa_node: Option<u32>,
    /// The kernel's controller: `nvme0`.
    pub controller: Option<String>,
    /// Its namespaces as block devices of the kernel.
    pub disks: Vec<Disk>,
    /// Number of enabled virtual functions.
    pub virtual_functions: u64,
}

/// The addresses of all NVMe functions, sorted.
#[must_use]
pub fn nvme_functions(system: &System) -> Vec<PciAddress> {
    let all = names(&system.sysfs("bus/pci/devices"));
    let mut found: Vec<PciAddress> = all
        .iter()
        .filter_map(|name| name.parse().ok())
        .filter(|address| class(system, *address).is_some_and(is_nvme))
        .collect();
    found.sort();
    found
}

fn is_nvme(class: u32) -> bool {
    class >> 8 == NVME_CLASS
}

fn attribute(system: &System, address: PciAddress, name: &str) -> std::path::PathBuf {
    system.sysfs(format!("bus/pci/devices/{address}/{name}"))
}

fn class(system: &System, address: PciAddress) -> Option<u32> {
    u32::try_from(number(&attribute(system, address, "class"))?).ok()
}

/// The driver to which a function belongs.
pub(crate) fn driver(system: &System, address: PciAddress) -> Option<String> {
    link_name(&attribute(system, address, "driver"))
}

/// The kernel's name of the groups that it creates without an IOMMU (`vfio_noiommu`): a function in
/// one can access all memory.
const NOIOMMU_GROUP: &str = "vfio-noiommu";

/// The number of a function's group.
pub(crate) fn group_number(system: &System, address: PciAddress) -> Option<u32> {
    let number: u32 = link_name(&attribute(system, address, "iommu_group"))?
        .parse()
        .ok()?;
    let name = non_empty_text(&system.sysfs(format!("kernel/iommu_groups/{number}/name")));
    (name.as_deref() != Some(NOIOMMU_GROUP)).then_some(number)
}

fn group(system: &System, address: PciAddress) -> Option<IommuGroup> {
    let number = group_number(system, address)?;
    let members = names(&system.sysfs(format!("kernel/iommu_groups/{number}/devices")));
    let others = members
        .iter()
        .filter_map(|name| name.parse().ok())
        .filter(|other| *other != address)
        .map(|other| GroupMember {
            address: other,
            driver: driver(system, other),
            class: class(system, other).unwrap_or_default(),
        })
        .collect();
    Some(IommuGroup { number, others })
}

impl Function {
    /// Inspects a function.
    ///
    /// # Errors
    /// [`Problem::NoSuchFunction`], [`Problem::NotNvme`].
    pub fn inspect(system: &System, address: PciAddress) -> Result<Function, Problem> {
        let class = class(system, address).ok_or(Problem::NoSuchFunction { address })?;
        if !is_nvme(class) {
            return Err(Problem::NotNvme { address, class });
        }
        let read = |name: &str| non_empty_text(&attribute(system, address, name));
        let id = |name: &str| {
            let number = number(&attribute(system, address, name));
            number
                .and_then(|number| u16::try_from(number).ok())
                .unwrap_or_default()
        };
        let folder = attribute(system, address, "nvme");
        let controller = names(&folder).into_iter().find(|name| is_controller(name));
        let of_controller = |name: &str| {
            let controller = controller.as_ref()?;
            non_empty_text(&folder.join(controller).join(name))
        };
        let disks = controller
            .as_ref()
            .map(|controller| disks(system, &names(&folder.join(controller))));
        Ok(Function {
            address,
            ids: (id("vendor"), id("device")),
            model: of_controller("model"),
            serial: of_controller("serial"),
            driver: driver(system, address),
            driver_override: read("driver_override").filter(|name| name != "(null)"),
            group: group(system, address),
            numa_node: read("numa_node").and_then(|node| node.parse().ok()),
            disks: disks.unwrap_or_default(),
            controller,
            virtual_functions: number(&attribute(system, address, "sriov_numvfs")).unwrap_or(0),
        })
    }

    /// The uses of the drive that this process is allowed to see.
    fn usage(&self, system: &System) -> Usage {
        let disks: Vec<String> = self.disks.iter().map(|disk| disk.name.clone()).collect();
        let mut nodes: Vec<String> = self.controller.iter().cloned().collect();
        // The nodes for commands that bypass the block layer: ng0n1 in addition to nvme0n1.
        nodes.extend(disks.iter().filter_map(|disk| {
            let rest = disk.strip_prefix("nvme")?;
            Some(format!("ng{rest}"))
        }));
        usage::of_drive(system, &disks, &nodes)
    }

    /// Checks that the drive is not in use. Returns the exclusive claims on its disks.
    pub(crate) fn claim_unused(&self, system: &System) -> Result<Usage, Problem> {
        let address = self.address;
        let mut usage = self.usage(system);
        if !usage.uses.is_empty() {
            let uses = std::mem::take(&mut usage.uses);
            return Err(Problem::InUse { address, uses });
        }
        if let Some((device, cause)) = usage.unknown.take() {
            return Err(Problem::UseUnknown {
                address,
                device,
                cause,
            });
        }
        Ok(usage)
    }

    /// The functions of the group, except this one and `taken`, that prevent VFIO from using it.
    pub(crate) fn group_obstacles(&self, taken: &[PciAddress]) -> Vec<GroupMember> {
        let others = self.group.iter().flat_map(|group| &group.others);
        others
            .filter(|other| !other.is_harmless() && !taken.contains(&other.address))
            .cloned()
            .collect()
    }
}

fn is_controller(name: &str) -> bool {
    let digits = name.strip_prefix("nvme").unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// The block devices among the names below a controller.
fn disks(system: &System, below: &[String]) -> Vec<Disk> {
    let mut disks: Vec<Disk> = Vec::new();
    for name in below.iter().filter_map(|name| disk_name(name)) {
        let folder = system.sysfs(format!("class/block/{name}"));
        // A path without its multipath device is being added or removed.
        if !folder.exists() || disks.iter().any(|disk| disk.name == name) {
            continue;
        }
        // Linux counts sectors of 512 bytes, whatever the format.
        let bytes = number(&folder.join("size"))
            .unwrap_or(0)
            .saturating_mul(512);
        let nsid = number(&folder.join("nsid")).and_then(|nsid| u32::try_from(nsid).ok());
        disks.push(Disk { name, nsid, bytes });
    }
    disks
}

/// Returns `nvme0n1` for itself, and for `nvme0c3n1`, one of several possible paths to it, whose
/// first number is that of the subsystem.
fn disk_name(name: &str) -> Option<String> {
    let (instance, rest) = name.strip_prefix("nvme")?.split_once(['c', 'n'])?;
    let (_, namespace) = name.rsplit_once('n')?;
    let path = rest
        .strip_suffix(namespace)?
        .strip_suffix('n')
        .unwrap_or_default();
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    (are_digits(instance) && are_digits(namespace) && (path.is_empty() || are_digits(path)))
        .then(|| format!("nvme{instance}n{namespace}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_names_of_namespaces_and_multipath_heads() {
        for (name, disk) in [
            ("nvme0n1", Some("nvme0n1")),
            ("nvme12n34", Some("nvme12n34")),
            ("nvme0c3n1", Some("nvme0n1")),
            ("nvme10c0n12", Some("nvme10n12")),
            ("nvme0", None),
            ("nvme0n1p1", None),
            ("nvme0n", None),
            ("nvmen1", None),
            ("ng0n1", None),
            ("hwmon3", None),
            ("power", None),
            ("nvme", None),
            ("n", None),
            ("", None),
        ] {
            assert_eq!(disk_name(name).as_deref(), disk, "{name}");
        }
    }

    #[test]
    fn only_numbered_names_are_controllers() {
        for (name, is) in [
            ("nvme0", true),
            ("nvme", false),
            ("nvme0n1", false),
            ("", false),
        ] {
            assert_eq!(is_controller(name), is, "{name}");
        }
    }
}
