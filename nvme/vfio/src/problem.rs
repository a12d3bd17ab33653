//! Problems that prevent the use of a drive, in one line each, with their remedy.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::usage::Use;
use crate::{GroupMember, PciAddress};

/// A problem that prevents the use of a drive. Its message is one line that names the drive, states
/// the problem, and ends with the remedy. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// There is no function with this address.
    #[error("{address}: no PCI function has this address: `windlass devices` lists the drives")]
    NoSuchFunction {
        /// The address requested.
        address: PciAddress,
    },
    /// The function is not an NVMe controller.
    #[error(
        "{address} is not an NVMe drive, its PCI class is {class:06x}: `windlass devices` lists \
         the \
         drives"
    )]
    NotNvme {
        /// The function.
        address: PciAddress,
        /// Its class code, 24 bits.
        class: u32,
    },
    /// The drive is in use.
    #[error("{address} is in use: {}{}", listed(.uses), use_remedy(.uses))]
    InUse {
        /// The drive.
        address: PciAddress,
        /// Its uses, at least one.
        uses: Vec<Use>,
    },
    /// It is unknown whether the drive is in use.
    #[error("{address}: cannot tell whether /dev/{device} is in use: {cause}: run this as root")]
    UseUnknown {
        /// The drive.
        address: PciAddress,
        /// The block device that could not be checked.
        device: String,
        /// The cause.
        cause: io::Error,
    },
    /// The drive has virtual functions, which would be removed.
    #[error(
        "{address} has {count} virtual functions, which would be removed: disable them first with \
         echo 0 > /sys/bus/pci/devices/{address}/sriov_numvfs"
    )]
    VirtualFunctions {
        /// The drive.
        address: PciAddress,
        /// Number of enabled virtual functions.
        count: u64,
    },
    /// The machine has no IOMMU, or the kernel does not use it.
    #[error(
        "{address} has no IOMMU: enable it in the firmware (VT-d, AMD-Vi, SMMU) and on \
         the kernel's command line (intel_iommu=on for Intel)"
    )]
    NoIommu {
        /// The drive.
        address: PciAddress,
    },
    /// The drive belongs to the kernel's driver and is not in use.
    #[error(
        "{address} belongs to the driver {driver}, and nothing uses it: `windlass bind {address}` \
         moves it to vfio-pci"
    )]
    KernelDriver {
        /// The drive.
        address: PciAddress,
        /// The driver.
        driver: String,
    },
    /// The drive has no driver.
    #[error("{address} has no driver: `windlass bind {address}` gives it to vfio-pci")]
    NoDriver {
        /// The drive.
        address: PciAddress,
    },
    /// The drive belongs to a driver that `bind` and `unbind` do not handle.
    #[error(
        "{address} belongs to the driver {driver}, neither nvme nor vfio-pci: unbind it with the \
         tool that bound it"
    )]
    ForeignDriver {
        /// The drive.
        address: PciAddress,
        /// The driver.
        driver: String,
    },
    /// Devices that the IOMMU cannot isolate from the drive belong to drivers of the kernel.
    #[error(
        "{address} shares IOMMU group {group} with {}: bind these to vfio-pci too or unbind their \
         drivers, or move the drive to another slot",
        members(.others)
    )]
    GroupShared {
        /// The drive.
        address: PciAddress,
        /// The group number.
        group: u32,
        /// The devices with drivers of the kernel.
        others: Vec<GroupMember>,
    },
    /// A kernel module is not loaded.
    #[error("{address}: the kernel has no driver {driver} yet: modprobe {module}")]
    NoModule {
        /// The drive.
        address: PciAddress,
        /// The driver.
        driver: &'static str,
        /// The module to load.
        module: &'static str,
    },
    /// This process may not open a node.
    #[error(
        "{address}: no permission for {}: give its group to this program's user with the udev rule \
         SUBSYSTEM==\"vfio\", GROUP=\"windlass\", MODE=\"0660\", or run as root",
        .node.display()
    )]
    NoPermission {
        /// The drive.
        address: PciAddress,
        /// The node.
        node: PathBuf,
    },
    /// A program has opened the drive.
    #[error("{address} is open in {}: stop that program first", holder(.by))]
    OpenInProgram {
        /// The drive.
        address: PciAddress,
        /// The program, if this process is allowed to see it.
        by: Option<Use>,
    },
    /// The limit on locked memory is too small for the arena.
    #[error(
        "{address}: {needed} bytes have to be pinned for the drive, the limit allows {limit} \
         (RLIMIT_MEMLOCK): LimitMEMLOCK=infinity in the systemd unit, or ulimit -l unlimited"
    )]
    LockLimitTooSmall {
        /// The drive.
        address: PciAddress,
        /// Bytes that have to be pinned, including those already pinned.
        needed: u64,
        /// Bytes that may be pinned.
        limit: u64,
    },
    /// The IOMMU does not prevent devices from forging interrupts.
    #[error(
        "{address}: the IOMMU does not remap interrupts, so a drive could forge them: switch \
         interrupt remapping (x2APIC) on in the firmware, or accept that with \
         modprobe vfio_iommu_type1 allow_unsafe_interrupts=1"
    )]
    UnsafeInterrupts {
        /// The drive.
        address: PciAddress,
    },
    /// The system refused a step.
    #[error("{address}: {step}: {cause}{}", root_remedy(.cause))]
    Refused {
        /// The drive.
        address: PciAddress,
        /// The step that failed.
        step: String,
        /// The cause.
        cause: io::Error,
    },
}

impl Problem {
    /// The drive's address.
    #[must_use]
    pub fn address(&self) -> PciAddress {
        match self {
            Problem::NoSuchFunction { address }
            | Problem::NotNvme { address, .. }
            | Problem::InUse { address, .. }
            | Problem::UseUnknown { address, .. }
            | Problem::VirtualFunctions { address, .. }
            | Problem::NoIommu { address }
            | Problem::KernelDriver { address, .. }
            | Problem::NoDriver { address }
            | Problem::ForeignDriver { address, .. }
            | Problem::GroupShared { address, .. }
            | Problem::NoModule { address, .. }
            | Problem::NoPermission { address, .. }
            | Problem::OpenInProgram { address, .. }
            | Problem::LockLimitTooSmall { address, .. }
            | Problem::UnsafeInterrupts { address }
            | Problem::Refused { address, .. } => *address,
        }
    }
}

/// Maximum number of uses and group members in one line.
const LISTED_MAX: usize = 4;

fn joined(words: impl ExactSizeIterator<Item = String>) -> String {
    let more = words.len().saturating_sub(LISTED_MAX);
    let mut line = words.take(LISTED_MAX).collect::<Vec<_>>().join(", ");
    if more > 0 {
        line += &format!(" and {more} more");
    }
    line
}

fn listed(uses: &[Use]) -> String {
    joined(uses.iter().map(ToString::to_string))
}

fn members(others: &[GroupMember]) -> String {
    joined(others.iter().map(|other| match &other.driver {
        Some(driver) => format!("{} ({driver})", other.address),
        None => other.address.to_string(),
    }))
}

fn use_remedy(uses: &[Use]) -> &'static str {
    match uses.first() {
        Some(first) => first.remedy(),
        None => "",
    }
}

fn holder(by: &Option<Use>) -> impl fmt::Display {
    match by {
        Some(Use::Program { program, pid, .. }) => format!("{program} (process {pid})"),
        _ => "another program".to_owned(),
    }
}

fn root_remedy(error: &io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::PermissionDenied {
        ": run this as root"
    } else {
        ""
    }
}
