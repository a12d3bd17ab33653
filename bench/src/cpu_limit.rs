//! A part of a core for a process: a control group of version 2 with `cpu.max`, made here and removed
//! again.
//!
//! Specification: Linux, Documentation/admin-guide/cgroup-v2.rst, "CPU Interface Files".

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The period over which the part is kept, microseconds: short, so that what is held back is not for
/// long.
const PERIOD_US: u32 = 10_000;

/// Groups that this process has made.
static GROUPS: AtomicU32 = AtomicU32::new(0);

/// Why no limit can be had.
#[derive(Debug, thiserror::Error)]
pub enum CpuLimitError {
    /// There is no hierarchy of version 2.
    #[error("no cgroup v2 hierarchy is mounted, so the target cannot be given a part of its core")]
    NoHierarchy,
    /// The hierarchy does not limit processors.
    #[error(
        "the cgroup v2 hierarchy at {} has no cpu controller (it has {there:?}): boot with \
         systemd.unified_cgroup_hierarchy=1, so that version 1 does not hold it",
        .root.display()
    )]
    NoController {
        /// Where it is mounted.
        root: PathBuf,
        /// The controllers that it has.
        there: String,
    },
    /// A file cannot be written.
    #[error("cannot limit the target by {}: {source} (run as root, outside of a container)", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// A control group that bounds what its processes take of the processors. Removed when dropped; its
/// processes must have ended by then.
#[derive(Debug)]
pub struct CpuLimit {
    group: PathBuf,
}

impl CpuLimit {
    /// A group of `percent` of one core, without processes.
    ///
    /// # Errors
    /// [`CpuLimitError`]: the system has no such groups, or does not let us make one.
    pub fn new(percent: u32) -> Result<Self, CpuLimitError> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let root = hierarchy(&mounts).ok_or(CpuLimitError::NoHierarchy)?;
        Self::within(&root, percent)
    }

    fn within(root: &Path, percent: u32) -> Result<Self, CpuLimitError> {
        let there = std::fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
        if !there.split_whitespace().any(|one| one == "cpu") {
            return Err(CpuLimitError::NoController {
                root: root.to_owned(),
                there: there.trim().to_owned(),
            });
        }
        write(&root.join("cgroup.subtree_control"), "+cpu")?;
        let number = GROUPS.fetch_add(1, Ordering::Relaxed);
        let group = root.join(format!("windlass-bench-{}-{number}", std::process::id()));
        std::fs::create_dir(&group).map_err(|source| CpuLimitError::File {
            path: group.clone(),
            source,
        })?;
        let limit = Self { group };
        let quota_us = u64::from(percent) * u64::from(PERIOD_US) / 100;
        write(
            &limit.group.join("cpu.max"),
            &format!("{quota_us} {PERIOD_US}"),
        )?;
        Ok(limit)
    }

    /// Puts a process, with all its threads, into the group.
    ///
    /// # Errors
    /// [`CpuLimitError::File`].
    pub fn hold(&self, process: u32) -> Result<(), CpuLimitError> {
        write(&self.group.join("cgroup.procs"), &process.to_string())
    }

    /// Processor time that the group has taken.
    #[must_use]
    pub fn cpu_time(&self) -> Option<Duration> {
        let stat = std::fs::read_to_string(self.group.join("cpu.stat")).ok()?;
        let usage = stat
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec "))?;
        Some(Duration::from_micros(usage.trim().parse().ok()?))
    }
}

impl Drop for CpuLimit {
    fn drop(&mut self) {
        // Nobody is left who could do anything about it.
        let _ = std::fs::remove_dir(&self.group);
    }
}

fn write(path: &Path, text: &str) -> Result<(), CpuLimitError> {
    std::fs::write(path, text).map_err(|source| CpuLimitError::File {
        path: path.to_owned(),
        source,
    })
}

/// Where the hierarchy of version 2 is mounted (proc_pid_mountinfo(5): the mount point is the fifth
/// field, and the file system's type follows a lone hyphen).
fn hierarchy(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let is_it = kind.split_whitespace().next() == Some("cgroup2");
        is_it.then(|| place.split_whitespace().nth(4).map(PathBuf::from))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_is_found_among_the_mounts() {
        let mounts = "26 25 0:22 / /sys/fs/cgroup rw,nosuid - tmpfs tmpfs rw\n\
                      27 26 0:23 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(
            hierarchy(mounts),
            Some(PathBuf::from("/sys/fs/cgroup/unified"))
        );
        assert_eq!(
            hierarchy("26 25 0:22 / /sys rw - sysfs sysfs rw\nnonsense\n"),
            None
        );
    }

    #[test]
    fn a_group_has_its_part_and_its_process() {
        let root = tempfile::tempdir().expect("a folder");
        let at = |path: &str| root.path().join(path);
        std::fs::write(at("cgroup.controllers"), "cpuset cpu io\n").expect("written");
        let limit = CpuLimit::within(root.path(), 40).expect("made");
        limit.hold(17).expect("held");
        let read = |name: &str| std::fs::read_to_string(limit.group.join(name)).expect("there");
        assert_eq!(read("cpu.max"), "4000 10000");
        assert_eq!(read("cgroup.procs"), "17");
        assert_eq!(limit.cpu_time(), None);
        std::fs::write(
            limit.group.join("cpu.stat"),
            "usage_usec 1500\nuser_usec 7\n",
        )
        .expect("written");
        assert_eq!(limit.cpu_time(), Some(Duration::from_micros(1500)));
    }

    #[test]
    fn what_is_missing_is_said() {
        let root = tempfile::tempdir().expect("a folder");
        std::fs::write(root.path().join("cgroup.controllers"), "hugetlb\n").expect("written");
        let error = CpuLimit::within(root.path(), 40).expect_err("no controller");
        assert!(
            error
                .to_string()
                .contains("no cpu controller (it has \"hugetlb\")"),
            "{error}"
        );
        let nowhere = root.path().join("nowhere");
        assert!(CpuLimit::within(&nowhere, 40).is_err());
    }
}
