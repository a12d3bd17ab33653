//! Why a drive that was asked for could not be opened or mapped for.

use std::io;

use crate::{PciAddress, Problem};

/// Why VFIO did not give what was asked of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What people can mend, in one line.
    #[error(transparent)]
    Problem(#[from] Problem),
    /// The IOMMU cannot map pages as small as the arena's.
    #[error(
        "{address}: its IOMMU maps pages of {smallest} bytes at least, the arena has pages of \
         {page}: reserve hugepages and set pages = \"huge\""
    )]
    PageSize {
        /// The drive.
        address: PciAddress,
        /// Bytes of the IOMMU's smallest page.
        smallest: u64,
        /// Bytes of one page of the arena.
        page: u64,
    },
    /// The device's addresses have no room for the arena.
    #[error(
        "{address}: an arena of {wanted} bytes has no room in the addresses of its IOMMU, \
         {largest} bytes in one piece at most: make [appliance] memory smaller"
    )]
    Room {
        /// The drive.
        address: PciAddress,
        /// Bytes of the arena.
        wanted: u64,
        /// Bytes of the largest range that is free.
        largest: u64,
    },
    /// This program has the drive.
    #[error("{address} is open already: it is in the configuration twice")]
    AlreadyOpen {
        /// The drive.
        address: PciAddress,
    },
    /// The container has another arena.
    #[error("the container has another arena already")]
    OtherArena,
    /// The function is no NVMe controller that can be driven.
    #[error("{address}: {what}")]
    Unusable {
        /// The function.
        address: PciAddress,
        /// What it lacks.
        what: &'static str,
    },
    /// The kernel refused.
    #[error("{address}: {step}")]
    System {
        /// The function.
        address: PciAddress,
        /// What was asked for.
        step: &'static str,
        /// What the kernel answered.
        source: io::Error,
    },
}
