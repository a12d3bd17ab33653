//! Available memory of the machine: `/proc/meminfo` (proc_meminfo(5)), the hugepage counters of
//! `/sys/kernel/mm/hugepages` (kernel documentation, admin-guide/mm/hugetlbpage).

use std::fs;
use std::path::Path;

use super::PageSize;
use super::notice::sysfs_folder;

/// Memory left to the rest of the machine by the largest possible region, in bytes.
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
    /// Pages available to a new mapping.
    pub(super) fn available(self) -> usize {
        let surplus_left = self.overcommit.saturating_sub(self.surplus);
        self.free.saturating_sub(self.reserved) + surplus_left
    }
}

/// The counters of `size`, `None` if the kernel has no such pages.
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

/// Bytes that ordinary pages can use without running the machine, or a control group of this
/// process, out of memory.
///
/// If nothing can be read, there is no limit; the kernel's allocation then fails.
pub(super) fn available() -> usize {
    let machine = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| meminfo_bytes(&text, "MemAvailable"));
    let groups = fs::read_to_string("/proc/self/cgroup").ok();
    let group = groups.and_then(|text| groups_left(Path::new("/sys/fs/cgroup"), &text));
    let left = machine.into_iter().chain(group).min().unwrap_or(usize::MAX);
    left.saturating_sub(MARGIN_BYTES)
}

/// The files of one hierarchy of control groups: cgroups(7); kernel documentation, cgroup-v2 and
/// cgroup-v1/memory.
struct GroupFiles {
    folder: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// Lines of `memory.stat` that count reclaimable memory.
    reclaimable: [&'static str; 2],
}

const VERSION_2: GroupFiles = GroupFiles {
    folder: "",
    limit: "memory.max",
    usage: "memory.current",
    reclaimable: ["inactive_file", "active_file"],
};

const VERSION_1: GroupFiles = GroupFiles {
    folder: "memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file"],
};

/// Bytes available in the most limited of `groups` (`/proc/self/cgroup`) and their ancestors;
/// `None` without a limit.
fn groups_left(root: &Path, groups: &str) -> Option<usize> {
    let hierarchies = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let files = match controllers {
            "" => VERSION_2,
            _ if controllers.split(',').any(|name| name == "memory") => VERSION_1,
            _ => return None,
        };
        let top = root.join(files.folder);
        Path::new(path.strip_prefix('/')?)
            .ancestors()
            .filter_map(|group| group_left(&top.join(group), &files))
            .min()
    });
    hierarchies.min()
}

/// Bytes left to one group, `None` without a limit.
fn group_left(folder: &Path, files: &GroupFiles) -> Option<usize> {
    let number = |name: &str| -> Option<usize> {
        fs::read_to_string(folder.join(name))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    let limit = number(files.limit)?;
    let usage = number(files.usage)?;
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let reclaimable: usize = files
        .reclaimable
        .iter()
        .filter_map(|key| stat_value(&stat, key))
        .sum();
    Some(limit.saturating_sub(usage.saturating_sub(reclaimable)))
}

/// The value of one line of `memory.stat`.
fn stat_value(text: &str, key: &str) -> Option<usize> {
    text.lines().find_map(|line| {
        line.strip_prefix(key)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    })
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

/// How shared memory can use transparent hugepages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transparent {
    /// Memory files support them, by advice.
    ByAdvice,
    /// Only on a tmpfs mounted for this purpose.
    ByMount,
    /// Not at all.
    Never,
}

/// The mode that the machine's setting allows (kernel documentation, admin-guide/mm/transhuge).
pub(super) fn transparent_for_shared() -> Transparent {
    let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    match setting.as_deref().map(chosen) {
        Ok("always" | "within_size" | "advise" | "force") => Transparent::ByAdvice,
        Ok("never") => Transparent::ByMount,
        _ => Transparent::Never,
    }
}

/// The word in brackets.
fn chosen(setting: &str) -> &str {
    let inner = setting
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    inner.map_or("", |(word, _)| word)
}

#[cfg(all(test, not(loom)))]
mod tests;
