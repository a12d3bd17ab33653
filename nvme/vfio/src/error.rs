//! Errors of opening a drive and of mapping memory for it.

use std::io;

use crate::{PciAddress, Problem};

/// Error of opening a drive or of mapping memory for it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A problem that an administrator can fix, in one line.
    #[error(transparent)]
    Problem(#[from] Problem),
    /// The IOMMU does not support pages as small as the arena's.
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
    /// The IOMMU's address ranges have no room for the arena.
    #[error(
        "{address}: an arena of {wanted} bytes has no room in the addresses of its IOMMU, \
         {largest} bytes in one piece at most: make [appliance] memory smaller"
    )]
    Room {
        /// The drive.
        address: PciAddress,
        /// Bytes of the arena.
        wanted: u64,
        /// Bytes of the largest free range.
        largest: u64,
    },
    /// This program has opened the drive already.
    #[error("{address} is already open: remove its second entry from the configuration")]
    AlreadyOpen {
        /// The drive.
        address: PciAddress,
    },
    /// The container already has another arena.
    #[error("the container has another arena already")]
    OtherArena,
    /// The function is not a supported NVMe controller.
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
        /// The step that failed.
        step: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}
