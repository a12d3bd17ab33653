//! The memory of drives in which data of requests may be.

use hugemem::{DeviceMemory, Sharing};
use serde::{Deserialize, Serialize};

/// The controller memory buffer of a drive, as far as it holds data of requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct DriveMemoryStatus {
    /// Size of a slice, which holds the data of one copy, or a piece of a read or write.
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
    /// Network cards that have registered it, for large reads and writes of hosts.
    pub(crate) cards: u64,
    /// Why network cards have not registered it, and why none can, one line each.
    pub(crate) not_registered: Vec<String>,
}

impl From<&DeviceMemory> for DriveMemoryStatus {
    fn from(memory: &DeviceMemory) -> Self {
        let counters = memory.counters();
        let mut not_registered = memory.export_refusals();
        if not_registered.is_empty() {
            not_registered.extend(memory.export_refusal());
        }
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
            cards: memory.export_users() as u64,
            not_registered,
        }
    }
}
