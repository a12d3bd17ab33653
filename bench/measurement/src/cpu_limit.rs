//! Limits the CPU share of a process or a thread with temporary control groups, of version 2 if it
//! has the cpu controller, otherwise of version 1.
//!
//! Specification: Linux, Documentation/admin-guide/cgroup-v2.rst, "CPU Interface Files" and
//! "Threads"; for version 1 Documentation/scheduler/sched-bwc.rst and
//! Documentation/admin-guide/cgroup-v1/cpuacct.rst.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::gettid;

use crate::leftovers::Registration;

/// The period of the limit in microseconds: short, so that throttling delays are short.
const PERIOD_US: u32 = 10_000;

/// The minimum share in percent: a quota of 1 ms in a period, which is the kernel's minimum.
pub const PERCENT_MIN: u32 = 10;

/// Maximum number of attempts to remove a group, and the time between them: a joined thread may not
/// have left its groups yet.
const REMOVALS_MAX: u32 = 100;
const REMOVAL_INTERVAL: Duration = Duration::from_millis(1);

/// Number of groups that this process has created.
static GROUPS: AtomicU32 = AtomicU32::new(0);

/// The reason why a limit is not available.
#[derive(Debug, thiserror::Error)]
pub enum CpuLimitError {
    /// No hierarchy limits processors.
    #[error(
        "CPU shares cannot be limited: the control group hierarchy of version 2 has no cpu controller, \
         and none of version 1 is mounted"
    )]
    NoController,
    /// A file cannot be written.
    #[error("cannot limit the CPU share with {}: {source} (run as root, outside of a container)", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The versions of hierarchies, which have different files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The hierarchy in which groups are created.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    /// The path for a group with a limit.
    limiting: PathBuf,
    /// The path for a group that counts processor time, if that is another hierarchy: only with
    /// version 1.
    counting: Option<PathBuf>,
}

/// Control groups that limit the processor time of a process or a thread. They are removed on drop;
/// their members must have ended by then.
#[derive(Debug)]
pub struct CpuLimit {
    version: Version,
    limiting: Group,
    counting: Option<Group>,
}

impl CpuLimit {
    /// Creates empty groups with a limit of `percent` of one core, at least [`PERCENT_MIN`].
    ///
    /// # Errors
    /// [`CpuLimitError`]: the system has no such groups, or does not permit their creation.
    pub fn new(percent: u32) -> Result<Self, CpuLimitError> {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let mounts = read("/proc/self/mountinfo");
        let own_groups = read("/proc/self/cgroup");
        let hierarchy = find(&mounts, &own_groups).ok_or(CpuLimitError::NoController)?;
        Self::within(&hierarchy, percent)
    }

    fn within(hierarchy: &Hierarchy, percent: u32) -> Result<Self, CpuLimitError> {
        let number = GROUPS.fetch_add(1, Ordering::Relaxed);
        let name = format!("windlass-bench-{}-{number}", std::process::id());
        if hierarchy.version == Version::Two {
            write(&hierarchy.limiting.join("cgroup.subtree_control"), "+cpu")?;
        }
        let counting = hierarchy.counting.as_ref();
        let limit = Self {
            version: hierarchy.version,
            limiting: Group::make(hierarchy.limiting.join(&name))?,
            counting: counting
                .map(|folder| Group::make(folder.join(&name)))
                .transpose()?,
        };
        let quota_us = u64::from(percent) * u64::from(PERIOD_US) / 100;
        let group = &limit.limiting;
        match hierarchy.version {
            Version::Two => group.write("cpu.max", &format!("{quota_us} {PERIOD_US}"))?,
            Version::One => {
                group.write("cpu.cfs_period_us", &PERIOD_US.to_string())?;
                group.write("cpu.cfs_quota_us", &quota_us.to_string())?;
            }
        }
        Ok(limit)
    }

    /// Moves a process with all its threads into the groups.
    ///
    /// # Errors
    /// [`CpuLimitError::File`].
    pub fn add_process(&self, process: u32) -> Result<(), CpuLimitError> {
        self.enter("cgroup.procs", &process.to_string())
    }

    /// Moves only the calling thread into the groups.
    ///
    /// # Errors
    /// [`CpuLimitError::File`]; with version 2 also if this process is not in the root group,
    /// because the threads of one process can be divided only within a threaded subtree.
    pub fn add_this_thread(&self) -> Result<(), CpuLimitError> {
        let thread = gettid().as_raw_nonzero().to_string();
        match self.version {
            Version::One => self.enter("tasks", &thread),
            Version::Two => {
                self.limiting.write("cgroup.type", "threaded")?;
                self.enter("cgroup.threads", &thread)
            }
        }
    }

    fn enter(&self, file: &str, whom: &str) -> Result<(), CpuLimitError> {
        let groups = std::iter::once(&self.limiting).chain(&self.counting);
        groups
            .into_iter()
            .try_for_each(|group| group.write(file, whom))
    }

    /// Processor time of the processes and threads in the groups.
    #[must_use]
    pub fn cpu_time(&self) -> Option<Duration> {
        match self.version {
            Version::Two => {
                let stat = self.limiting.read("cpu.stat")?;
                let usage = stat
                    .lines()
                    .find_map(|line| line.strip_prefix("usage_usec "))?;
                Some(Duration::from_micros(usage.trim().parse().ok()?))
            }
            Version::One => {
                let group = self.counting.as_ref().unwrap_or(&self.limiting);
                let usage = group.read("cpuacct.usage")?;
                Some(Duration::from_nanos(usage.trim().parse().ok()?))
            }
        }
    }
}

/// A control group, removed on drop.
#[derive(Debug)]
struct Group {
    path: PathBuf,
    /// Also removes it if a signal ends the process.
    _registration: Registration,
}

impl Group {
    fn make(path: PathBuf) -> Result<Self, CpuLimitError> {
        match std::fs::create_dir(&path) {
            Ok(()) => Ok(Self {
                _registration: Registration::group(&path),
                path,
            }),
            Err(source) => Err(CpuLimitError::File { path, source }),
        }
    }

    fn write(&self, file: &str, text: &str) -> Result<(), CpuLimitError> {
        write(&self.path.join(file), text)
    }

    fn read(&self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.path.join(file)).ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..REMOVALS_MAX {
            match std::fs::remove_dir(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(REMOVAL_INTERVAL);
                }
                // Other errors cannot be handled.
                _ => return,
            }
        }
    }
}

fn write(path: &Path, text: &str) -> Result<(), CpuLimitError> {
    std::fs::write(path, text).map_err(|source| CpuLimitError::File {
        path: path.to_owned(),
        source,
    })
}

/// Finds a hierarchy that limits processors: version 2 if it has the controller, otherwise version
/// 1.
fn find(mounts: &str, own_groups: &str) -> Option<Hierarchy> {
    unified(mounts).or_else(|| {
        let limiting = version_one(mounts, own_groups, "cpu")?;
        let counting = version_one(mounts, own_groups, "cpuacct")?;
        Some(Hierarchy {
            version: Version::One,
            counting: (counting != limiting).then_some(counting),
            limiting,
        })
    })
}

/// The used fields of a line of proc_pid_mountinfo(5).
struct Mount<'a> {
    /// The mounted directory of the file system.
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    /// The options of the file system; with version 1, its controllers.
    options: &'a str,
}

/// Root and mount point are the fourth and fifth field; the file system's type, source and options
/// follow after a single hyphen.
fn parse_mount(line: &str) -> Option<Mount<'_>> {
    let (place, system) = line.split_once(" - ")?;
    let mut place = place.split_whitespace().skip(3);
    let mut system = system.split_whitespace();
    Some(Mount {
        root: place.next()?,
        point: place.next()?,
        kind: system.next()?,
        options: system.nth(1)?,
    })
}

/// The hierarchy of version 2, if it has the cpu controller. Groups are created in its root,
/// because a group with its own processes cannot contain groups with limits.
fn unified(mounts: &str) -> Option<Hierarchy> {
    let mut mounts = mounts.lines().filter_map(parse_mount);
    let root = PathBuf::from(mounts.find(|mount| mount.kind == "cgroup2")?.point);
    let there = std::fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    let limits = there.split_whitespace().any(|one| one == "cpu");
    limits.then_some(Hierarchy {
        version: Version::Two,
        limiting: root,
        counting: None,
    })
}

/// This process's own group in the hierarchy of version 1 with this controller (cgroups(7): a line
/// of /proc/PID/cgroup is the hierarchy's number, its controllers and the group). Groups created
/// there do not exceed our own limit.
fn version_one(mounts: &str, own_groups: &str, controller: &str) -> Option<PathBuf> {
    let has = |list: &str| list.split(',').any(|one| one == controller);
    let mut mounts = mounts.lines().filter_map(parse_mount);
    let mount = mounts.find(|mount| mount.kind == "cgroup" && has(mount.options))?;
    let own = own_groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        has(fields.next()?).then_some(())?;
        fields.next()
    });
    // Groups outside the mounted directory are not visible.
    let below = own.and_then(|own| Path::new(own).strip_prefix(mount.root).ok());
    Some(Path::new(mount.point).join(below.unwrap_or(Path::new(""))))
}

#[cfg(test)]
mod tests;
