//! Why a drive cannot be taken, in one line each, with what to do about it.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::usage::Use;
use crate::{GroupMember, PciAddress};

/// What stands between this program and a drive. Each is one line that names the drive, says what
/// is wrong, and ends with the remedy. Nothing was touched.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// There is no such function.
    #[error("{address}: no PCI function has this address: `windlass devices` lists the drives")]
    NotThere {
        /// The address asked for.
        address: PciAddress,
    },
    /// The function is something else.
    #[error(
        "{address} is no NVMe drive, its PCI class is {class:06x}: `windlass devices` lists the \
         drives"
    )]
    NotNvme {
        /// The function.
        address: PciAddress,
        /// Its class code, 24 bits.
        class: u32,
    },
    /// Something uses the drive.
    #[error("{address} is in use: {}{}", listed(.uses), use_remedy(.uses))]
    InUse {
        /// The drive.
        address: PciAddress,
        /// What uses it, one at least.
        uses: Vec<Use>,
    },
    /// Whether something uses the drive could not be found out.
    #[error("{address}: cannot tell whether /dev/{device} is in use: {cause}: run this as root")]
    UseUnknown {
        /// The drive.
        address: PciAddress,
        /// The block device that could not be asked.
        device: String,
        /// Why.
        cause: io::Error,
    },
    /// The drive has virtual functions, which would go with it.
    #[error(
        "{address} has {count} virtual functions, which would vanish: \
         echo 0 > /sys/bus/pci/devices/{address}/sriov_numvfs first"
    )]
    VirtualFunctions {
        /// The drive.
        address: PciAddress,
        /// How many are enabled.
        count: u64,
    },
    /// The machine has no IOMMU, or the kernel does not use it.
    #[error(
        "{address} is behind no IOMMU: switch it on in the firmware (VT-d, AMD-Vi, SMMU) and on \
         the kernel's command line (intel_iommu=on for Intel)"
    )]
    NoIommu {
        /// The drive.
        address: PciAddress,
    },
    /// The kernel's driver has the drive, and nothing uses it.
    #[error(
        "{address} belongs to the driver {driver}, and nothing uses it: `windlass bind {address}` \
         hands it over"
    )]
    OtherDriver {
        /// The drive.
        address: PciAddress,
        /// The driver.
        driver: String,
    },
    /// No driver has the drive.
    #[error("{address} has no driver: `windlass bind {address}` gives it to vfio-pci")]
    NoDriver {
        /// The drive.
        address: PciAddress,
    },
    /// A driver has the drive that `bind` and `unbind` do not take it from.
    #[error(
        "{address} belongs to the driver {driver}, neither nvme nor vfio-pci: take it from there \
         by the means that gave it to it"
    )]
    ForeignDriver {
        /// The drive.
        address: PciAddress,
        /// The driver.
        driver: String,
    },
    /// Devices that the IOMMU cannot tell from the drive belong to drivers of the kernel.
    #[error(
        "{address} shares IOMMU group {group} with {}: bind these to vfio-pci too or take their \
         drivers away, or put the drive into another slot",
        members(.others)
    )]
    GroupShared {
        /// The drive.
        address: PciAddress,
        /// The group's number.
        group: u32,
        /// Those with drivers of the kernel.
        others: Vec<GroupMember>,
    },
    /// A kernel module is not there.
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
    /// A program has the drive.
    #[error("{address} is held by {}: end that first", holder(.by))]
    Held {
        /// The drive.
        address: PciAddress,
        /// The program, where this process may see it.
        by: Option<Use>,
    },
    /// The arena may not be pinned.
    #[error(
        "{address}: {needed} bytes have to be pinned for the drive, the limit allows {limit} \
         (RLIMIT_MEMLOCK): LimitMEMLOCK=infinity in the systemd unit, or ulimit -l unlimited"
    )]
    MemoryLock {
        /// The drive.
        address: PciAddress,
        /// Bytes that have to be pinned, with those that are pinned already.
        needed: u64,
        /// Bytes that may be pinned.
        limit: u64,
    },
    /// The machine's IOMMU lets devices forge interrupts.
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
        /// What was tried.
        step: String,
        /// Why not.
        cause: io::Error,
    },
}

impl Problem {
    /// The drive.
    #[must_use]
    pub fn address(&self) -> PciAddress {
        match self {
            Problem::NotThere { address }
            | Problem::NotNvme { address, .. }
            | Problem::InUse { address, .. }
            | Problem::UseUnknown { address, .. }
            | Problem::VirtualFunctions { address, .. }
            | Problem::NoIommu { address }
            | Problem::OtherDriver { address, .. }
            | Problem::NoDriver { address }
            | Problem::ForeignDriver { address, .. }
            | Problem::GroupShared { address, .. }
            | Problem::NoModule { address, .. }
            | Problem::NoPermission { address, .. }
            | Problem::Held { address, .. }
            | Problem::MemoryLock { address, .. }
            | Problem::UnsafeInterrupts { address }
            | Problem::Refused { address, .. } => *address,
        }
    }
}

/// Most uses and neighbours that one line names.
const NAMED_MAX: usize = 4;

fn joined(words: impl ExactSizeIterator<Item = String>) -> String {
    let more = words.len().saturating_sub(NAMED_MAX);
    let mut line = words.take(NAMED_MAX).collect::<Vec<_>>().join(", ");
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
