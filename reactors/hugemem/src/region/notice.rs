//! Unavailable features of a region, one line each: what is missing, its cost, and the fix.

use std::fmt;

use rustix::io::Errno;

use super::PageSize;

/// A feature that a [`super::Region`] lacks. `Display` is one line.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// Too few free hugepages of this size.
    PagesMissing {
        /// The page size.
        size: PageSize,
        /// Pages required.
        wanted: usize,
        /// Pages free.
        available: usize,
        /// Pages to reserve in total so that enough are free.
        reserve: usize,
        /// Whether this is the size that `vm.nr_hugepages` counts.
        default_size: bool,
    },
    /// The kernel or the machine has no hugepages of this size.
    NoSuchPages {
        /// The page size.
        size: PageSize,
    },
    /// Hugepages seemed free, but the allocation failed.
    PagesRefused {
        /// The page size.
        size: PageSize,
        /// The kernel's error.
        errno: Errno,
    },
    /// The length is not a multiple of the page size, and rounding it up would waste too much.
    UnevenLength {
        /// Bytes requested.
        len: usize,
        /// The page size.
        size: PageSize,
    },
    /// Transparent hugepages are off for shared memory.
    NoTransparentPages,
    /// The memory could not be locked.
    NotLocked {
        /// Bytes to lock.
        len: usize,
        /// The kernel's error.
        errno: Errno,
    },
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PageSize::Huge1GiB => "1 GiB hugepages",
            PageSize::Huge2MiB => "2 MiB hugepages",
            PageSize::Ordinary => "ordinary pages",
        })
    }
}

/// The directory of the kernel's counters for this size.
pub(super) fn sysfs_folder(size: PageSize) -> String {
    format!(
        "/sys/kernel/mm/hugepages/hugepages-{}kB",
        size.bytes() / 1024
    )
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::PagesMissing {
                size,
                wanted,
                available,
                reserve,
                default_size,
            } => {
                write!(
                    f,
                    "{wanted} {size} wanted, {available} free: smaller pages cost a slower start \
                     and more TLB misses; fix with `"
                )?;
                if *default_size {
                    write!(f, "sysctl vm.nr_hugepages={reserve}`")
                } else {
                    write!(f, "echo {reserve} > {}/nr_hugepages`", sysfs_folder(*size))
                }
            }
            Notice::NoSuchPages { size } => write!(
                f,
                "this machine has no {size}: smaller pages cost more TLB misses; no setting fixes \
                 this (check for `pdpe1gb` in /proc/cpuinfo, CONFIG_HUGETLBFS in the kernel)"
            ),
            Notice::PagesRefused { size, errno } => write!(
                f,
                "{size} were refused ({errno}): smaller pages cost more TLB misses; look at \
                 `grep -r . {}` and the control group's hugetlb limit",
                sysfs_folder(*size)
            ),
            Notice::UnevenLength { len, size } => write!(
                f,
                "{size} not used, {len} bytes are not a multiple of its size: smaller pages cost \
                 more TLB misses; fix by configuring {} bytes",
                len.next_multiple_of(size.bytes())
            ),
            Notice::NoTransparentPages => f.write_str(
                "transparent hugepages are off for shared memory: 4 KiB pages cost a slower start \
                 and more TLB misses; fix with `echo advise > \
                 /sys/kernel/mm/transparent_hugepage/shmem_enabled` or a start with CAP_SYS_ADMIN",
            ),
            Notice::NotLocked { len, errno } => write!(
                f,
                "{len} bytes could not be locked in memory ({errno}): swapping can stall I/O; fix \
                 with `ulimit -l unlimited` or LimitMEMLOCK=infinity in the systemd unit"
            ),
        }
    }
}

/// Joins the notices to one line of an error, each after a colon or a semicolon.
pub(super) fn join_notices(notices: &[Notice]) -> String {
    let mut line = String::new();
    for (index, notice) in notices.iter().enumerate() {
        line.push_str(if index == 0 { ": " } else { "; " });
        line.push_str(&notice.to_string());
    }
    line
}

#[cfg(all(test, not(loom)))]
mod tests;
