//! Checks whether a drive can be opened, without changing anything.

use std::io;
use std::path::PathBuf;

use crate::function::{Function, driver, group_number};
use crate::system::{System, names, text};
use crate::usage::{self, Use};
use crate::{PciAddress, Problem};

/// The driver that gives programs access to functions.
pub(crate) const VFIO_DRIVER: &str = "vfio-pci";
/// The kernel's own driver for NVMe drives.
pub(crate) const KERNEL_DRIVER: &str = "nvme";

/// Finds what prevents this process from opening the drive at `address`, without changing anything.
/// Returns a description of the drive if it can be opened.
///
/// `arena_bytes` is the amount of memory to map for the drive, 0 if it is not known yet; an arena
/// that is already mapped into the same [`crate::Container`] does not count.
///
/// # Errors
/// The first [`Problem`], in the order in which problems have to be fixed.
pub fn diagnose(
    system: &System,
    address: PciAddress,
    arena_bytes: u64,
) -> Result<Function, Problem> {
    let function = Function::inspect(system, address)?;
    let driver = function.driver.as_deref();
    if driver != Some(VFIO_DRIVER) {
        // Current use of the drive is the most urgent problem. A diagnosis keeps nothing open.
        drop(function.claim_unused(system)?);
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
            return Err(Problem::KernelDriver { address, driver });
        }
        None => return Err(Problem::NoDriver { address }),
    }
    let nodes = Nodes::of(system, address);
    if let Some(by) = holder(system, &nodes) {
        return Err(Problem::OpenInProgram {
            address,
            by: Some(by),
        });
    }
    may_use(system, address, &nodes)?;
    check_lock_limit(system, address, arena_bytes)?;
    Ok(function)
}

/// The device nodes below `/dev` through which a function that belongs to vfio-pci can be opened.
#[derive(Debug)]
pub(crate) struct Nodes {
    /// `vfio/12`, if the kernel has containers and groups.
    pub(crate) group: Option<String>,
    /// `vfio/devices/vfio0`, if the kernel has iommufd.
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

/// The program that has a function's node open, if this process is allowed to see it.
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
        let result = system.operations().may_use(&node);
        result.map_err(|error| node_problem(system, address, node, error))?;
    }
    Ok(())
}

/// The problem for a VFIO node that could not be opened.
pub(crate) fn node_problem(
    system: &System,
    address: PciAddress,
    node: PathBuf,
    cause: io::Error,
) -> Problem {
    match cause.kind() {
        io::ErrorKind::PermissionDenied => Problem::NoPermission { address, node },
        io::ErrorKind::ResourceBusy => Problem::OpenInProgram {
            address,
            by: holder(system, &Nodes::of(system, address)),
        },
        io::ErrorKind::NotFound if driver(system, address).is_none() => {
            Problem::NoSuchFunction { address }
        }
        _ => Problem::Refused {
            address,
            step: format!("open {}", node.display()),
            cause,
        },
    }
}

/// The bit of `CapEff` that exempts a process from the limit: `capabilities(7)`.
const CAP_IPC_LOCK: u32 = 14;

/// The limit on the memory that this process may pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockLimit {
    /// The limit in bytes.
    pub limit: u64,
    /// Bytes that it has pinned.
    pub locked: u64,
    /// Whether the process is exempt from the limit (`capabilities(7)`, CAP_IPC_LOCK).
    pub is_exempt: bool,
}

impl LockLimit {
    /// Whether the process may pin `bytes` more.
    #[must_use]
    pub fn allows(&self, bytes: u64) -> bool {
        self.is_exempt || bytes == 0 || bytes.saturating_add(self.locked) <= self.limit
    }
}

/// Reads the limit on the memory that this process may pin; see `proc_pid_limits(5)` and
/// `proc_pid_status(5)`. `None` if it cannot be read.
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
    let is_exempt = capabilities.is_some_and(|bits| bits & (1 << CAP_IPC_LOCK) != 0);
    Some(LockLimit {
        limit,
        locked: locked.saturating_mul(1024),
        is_exempt,
    })
}

/// Checks that `bytes` more may be pinned. If the limit cannot be read, the mapping will fail
/// instead.
pub(crate) fn check_lock_limit(
    system: &System,
    address: PciAddress,
    bytes: u64,
) -> Result<(), Problem> {
    match lock_limit(system) {
        Some(lock) if !lock.allows(bytes) => Err(Problem::LockLimitTooSmall {
            address,
            needed: bytes.saturating_add(lock.locked),
            limit: lock.limit,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
