//! The memory of drives in which data of requests may be.

use hugemem::{DeviceMemory, Sharing};
use serde::{Deserialize, Serialize};

/// The controller memory buffer of a drive, as far as it holds data of requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct DriveMemoryStatus {
    /// Size of a slice, which holds the data of one copy.
    pub(crate) slice_bytes: u64,
    pub(crate) slices: u64,
    /// Slices in use.
    pub(crate) taken: u64,
    /// Slices that were given since the memory is there.
    pub(crate) leases: u64,
    /// Requests for a slice while none was free.
    pub(crate) exhausted: u64,
    /// Slices that are not used again, because a request in them did not complete.
    pub(crate) lost: u64,
    /// Why other drives cannot use it; none if those in the same IOMMU container can.
    pub(crate) not_shared: Option<String>,
}

impl From<&DeviceMemory> for DriveMemoryStatus {
    fn from(memory: &DeviceMemory) -> Self {
        let counters = memory.counters();
        Self {
            slice_bytes: memory.slice_bytes() as u64,
            slices: counters.slices.into(),
            taken: counters.taken.into(),
            leases: counters.leases,
            exhausted: counters.exhausted,
            lost: counters.lost,
            not_shared: match memory.sharing() {
                Sharing::Own(why) => Some(why.clone()),
                Sharing::Neighbours(_) => None,
            },
        }
    }
}
