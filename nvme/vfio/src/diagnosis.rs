//! Whether a drive can be taken, found out without touching it.

use std::io;
use std::path::PathBuf;

use crate::function::{Function, driver, group_number};
use crate::system::{System, names, text};
use crate::usage::{self, Use};
use crate::{PciAddress, Problem};

/// The driver that hands functions to programs.
pub(crate) const VFIO_DRIVER: &str = "vfio-pci";
/// The kernel's own driver for NVMe drives.
pub(crate) const KERNEL_DRIVER: &str = "nvme";

/// Finds what stands between this process and the drive at `address`, without touching anything:
/// `Ok` with what is known of the drive when it can be opened.
///
/// `arena_bytes` is what will be mapped for the drive, 0 when that is not known yet; only an arena
/// that is not mapped into the same [`crate::Container`] already counts.
///
/// # Errors
/// The first [`Problem`] in the order in which they have to be mended.
pub fn diagnose(
    system: &System,
    address: PciAddress,
    arena_bytes: u64,
) -> Result<Function, Problem> {
    let function = Function::inspect(system, address)?;
    let driver = function.driver.as_deref();
    if driver != Some(VFIO_DRIVER) {
        // What uses the drive is the most urgent thing to know. Nothing is held by a diagnosis.
        drop(function.unused(system)?);
    }
    let Some(group) = &function.group else {
        return Err(Problem::NoIommu { address });
    };
    if let Some(other) = driver.filter(|driver| ![VFIO_DRIVER, KERNEL_DRIVER].contains(driver)) {
        let driver = other.to_owned();
        return Err(Problem::ForeignDriver { address, driver });
    }
    let others = function.group_obstacles(&[]);
    if !others.is_empty() {
        let group = group.number;
        return Err(Problem::GroupShared {
            address,
            group,
            others,
        });
    }
    match driver {
        Some(VFIO_DRIVER) => {}
        Some(other) => {
            let driver = other.to_owned();
            return Err(Problem::OtherDriver { address, driver });
        }
        None => return Err(Problem::NoDriver { address }),
    }
    let nodes = Nodes::of(system, address);
    if let Some(by) = holder(system, &nodes) {
        return Err(Problem::Held {
            address,
            by: Some(by),
        });
    }
    may_use(system, address, &nodes)?;
    enough_lockable(system, address, arena_bytes)?;
    Ok(function)
}

/// The nodes through which a function that vfio-pci has can be opened, below `/dev`.
#[derive(Debug)]
pub(crate) struct Nodes {
    /// `vfio/12`, where the kernel has containers and groups.
    pub(crate) group: Option<String>,
    /// `vfio/devices/vfio0`, where it has iommufd.
    pub(crate) device: Option<String>,
}

impl Nodes {
    pub(crate) fn of(system: &System, address: PciAddress) -> Nodes {
        let group = group_number(system, address).map(|number| format!("vfio/{number}"));
        let folder = system.sysfs(format!("bus/pci/devices/{address}/vfio-dev"));
        let device = names(&folder).into_iter().next();
        Nodes {
            group: group.filter(|node| system.dev(node).exists()),
            device: device.map(|name| format!("vfio/devices/{name}")),
        }
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.group.iter().chain(&self.device).cloned().collect()
    }
}

/// The program that has a function's node open, as far as this process may see it.
pub(crate) fn holder(system: &System, nodes: &Nodes) -> Option<Use> {
    usage::programs(system, &nodes.all()).into_iter().next()
}

fn may_use(system: &System, address: PciAddress, nodes: &Nodes) -> Result<(), Problem> {
    let container = system.dev("vfio/vfio");
    let pair = if container.exists() {
        [
            Some(container),
            nodes.group.as_ref().map(|node| system.dev(node)),
        ]
    } else {
        let device = nodes.device.as_ref().map(|node| system.dev(node));
        [
            Some(system.dev("iommu")).filter(|node| node.exists()),
            device,
        ]
    };
    let [Some(manager), Some(node)] = pair else {
        return Err(Problem::NoModule {
            address,
            driver: VFIO_DRIVER,
            module: VFIO_DRIVER,
        });
    };
    for node in [manager, node] {
        let result = system.actions().may_use(&node);
        result.map_err(|error| node_problem(system, address, node, error))?;
    }
    Ok(())
}

/// Why a node of VFIO did not open.
pub(crate) fn node_problem(
    system: &System,
    address: PciAddress,
    node: PathBuf,
    cause: io::Error,
) -> Problem {
    match cause.kind() {
        io::ErrorKind::PermissionDenied => Problem::NoPermission { address, node },
        io::ErrorKind::ResourceBusy => Problem::Held {
            address,
            by: holder(system, &Nodes::of(system, address)),
        },
        io::ErrorKind::NotFound if driver(system, address).is_none() => {
            Problem::NotThere { address }
        }
        _ => Problem::Refused {
            address,
            step: format!("open {}", node.display()),
            cause,
        },
    }
}

/// The bit of `CapEff` that frees a process of the limit: `capabilities(7)`.
const CAP_IPC_LOCK: u32 = 14;

/// How much memory this process may pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockLimit {
    /// Bytes that it may pin.
    pub limit: u64,
    /// Bytes that it has pinned.
    pub locked: u64,
    /// Whether it may ignore the limit (`capabilities(7)`, CAP_IPC_LOCK).
    pub is_free: bool,
}

impl LockLimit {
    /// Whether `bytes` more may be pinned.
    #[must_use]
    pub fn allows(&self, bytes: u64) -> bool {
        self.is_free || bytes == 0 || bytes.saturating_add(self.locked) <= self.limit
    }
}

/// How much memory this process may pin; see `proc_pid_limits(5)` and `proc_pid_status(5)`. `None`
/// where that cannot be read.
#[must_use]
pub fn lock_limit(system: &System) -> Option<LockLimit> {
    let limits = text(&system.proc("self/limits"))?;
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))?;
    let limit = match line.split_whitespace().next()? {
        "unlimited" => u64::MAX,
        bytes => bytes.parse().ok()?,
    };
    let status = text(&system.proc("self/status"))?;
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()
    };
    let locked: u64 = value("VmLck:")
        .and_then(|kib| kib.parse().ok())
        .unwrap_or(0);
    let capabilities = value("CapEff:").and_then(|bits| u64::from_str_radix(bits, 16).ok());
    let is_free = capabilities.is_some_and(|bits| bits & (1 << CAP_IPC_LOCK) != 0);
    Some(LockLimit {
        limit,
        locked: locked.saturating_mul(1024),
        is_free,
    })
}

/// Whether `bytes` more may be pinned. Where the limit cannot be read, the mapping will tell.
pub(crate) fn enough_lockable(
    system: &System,
    address: PciAddress,
    bytes: u64,
) -> Result<(), Problem> {
    match lock_limit(system) {
        Some(lock) if !lock.allows(bytes) => Err(Problem::MemoryLock {
            address,
            needed: bytes.saturating_add(lock.locked),
            limit: lock.limit,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
