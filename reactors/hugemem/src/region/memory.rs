//! What the machine has left: `/proc/meminfo` (proc_meminfo(5)), the hugepage counters of
//! `/sys/kernel/mm/hugepages` (kernel documentation, admin-guide/mm/hugetlbpage).

use std::fs;

use super::PageSize;
use super::notice::sysfs_folder;

/// What is left to the rest of the machine when a region takes all it can, in bytes.
const MARGIN_BYTES: usize = 64 << 20;

/// The counters of one hugepage size, in pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct HugePool {
    pub(super) total: usize,
    free: usize,
    reserved: usize,
    overcommit: usize,
    surplus: usize,
}

impl HugePool {
    /// Pages that a new mapping can have.
    pub(super) fn available(self) -> usize {
        let surplus_left = self.overcommit.saturating_sub(self.surplus);
        self.free.saturating_sub(self.reserved) + surplus_left
    }
}

/// The counters of `size`, `None` where the kernel has no such pages.
pub(super) fn huge_pool(size: PageSize) -> Option<HugePool> {
    let folder = sysfs_folder(size);
    let counter = |name: &str| -> Option<usize> {
        fs::read_to_string(format!("{folder}/{name}"))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    Some(HugePool {
        total: counter("nr_hugepages")?,
        free: counter("free_hugepages")?,
        reserved: counter("resv_hugepages")?,
        overcommit: counter("nr_overcommit_hugepages").unwrap_or(0),
        surplus: counter("surplus_hugepages").unwrap_or(0),
    })
}

/// Bytes of the hugepage size that `vm.nr_hugepages` counts.
pub(super) fn default_huge_page() -> Option<usize> {
    meminfo_bytes(&fs::read_to_string("/proc/meminfo").ok()?, "Hugepagesize")
}

/// Bytes that ordinary pages can take without driving the machine out of memory.
///
/// Where nothing can be read the answer is no limit: the kernel's own refusal is then the check.
pub(super) fn available() -> usize {
    fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| meminfo_bytes(&text, "MemAvailable"))
        .unwrap_or(usize::MAX)
        .saturating_sub(MARGIN_BYTES)
}

/// The value of one line of `/proc/meminfo`, in bytes.
fn meminfo_bytes(text: &str, key: &str) -> Option<usize> {
    text.lines().find_map(|line| {
        let value = line
            .strip_prefix(key)?
            .strip_prefix(':')?
            .trim()
            .strip_suffix("kB")?;
        value.trim().parse::<usize>().ok()?.checked_mul(1024)
    })
}

/// Whether shared memory may have transparent hugepages by advice.
pub(super) fn transparent_for_shared() -> bool {
    fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
        .is_ok_and(|text| !(text.contains("[never]") || text.contains("[deny]")))
}
