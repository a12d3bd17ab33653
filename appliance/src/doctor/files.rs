//! Checks the files of devices: access, O_DIRECT, file system and free space.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use appliance_config::{Backing, ByteSize, Config};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, accessat, open, statvfs};

use super::Finding;
use super::machine::Machine;
use crate::quantity::bytes;

const AREA: &str = "files";
/// File systems that are remote or in user space.
const REMOTE_FILE_SYSTEMS: [&str; 5] = ["nfs", "nfs4", "cifs", "smb3", "9p"];
/// Unit of `st_blocks`: stat(2).
const STAT_BLOCK_BYTES: u64 = 512;

/// Checks the file of each device.
pub(super) fn check(machine: &Machine, config: &Config) -> Vec<Finding> {
    let mut findings = Vec::new();
    for device in &config.devices {
        if let Backing::File {
            path, size, shared, ..
        } = &device.backing
        {
            let file = File {
                machine,
                name: device.name.as_str(),
                path,
                size: *size,
                is_read_only: device.read_only,
                is_shared: *shared,
            };
            findings.push(file.check());
        }
    }
    findings
}

/// One device's file.
struct File<'a> {
    machine: &'a Machine,
    name: &'a str,
    path: &'a Path,
    size: Option<ByteSize>,
    is_read_only: bool,
    is_shared: bool,
}

impl File<'_> {
    fn check(&self) -> Finding {
        let real = self.machine.path(self.path);
        let Ok(found) = fs::metadata(&real) else {
            if self.is_shared {
                let text = "does not exist, and a shared file is not created";
                let fix = format!(
                    "mount what it lies on, or truncate -s SIZE {}",
                    self.path.display()
                );
                return self.broken(text, &fix);
            }
            return self.check_directory(&real);
        };
        if found.is_dir() {
            let fix = format!("path = \"{}/volume.img\"", self.path.display());
            return self.broken("is a directory", &fix);
        }
        let wanted = if self.is_read_only {
            Access::READ_OK
        } else {
            Access::READ_OK | Access::WRITE_OK
        };
        if accessat(CWD, &real, wanted, AtFlags::EACCESS).is_err() {
            let fix = format!("chown windlass: {}", self.path.display());
            return self.broken("may not be opened by this user", &fix);
        }
        if found.file_type().is_block_device() {
            return self.fine("a block device");
        }
        let direct = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let is_direct = open(&real, direct, Mode::empty()).is_ok();
        let have = found.blocks() * STAT_BLOCK_BYTES;
        let bytes_of = self.size.map_or(found.len(), ByteSize::bytes);
        self.check_space(&real, bytes_of.saturating_sub(have), is_direct)
    }

    /// Checks the directory of a file that the start would create.
    fn check_directory(&self, real: &Path) -> Finding {
        let Some(size) = self.size else {
            let text = "does not exist, and the configuration has no size to create it with";
            return self.broken(text, "size = \"…\" of the device");
        };
        let directory = real.parent().unwrap_or(Path::new("/"));
        let shown = self.path.parent().unwrap_or(Path::new("/")).display();
        if !directory.is_dir() {
            let text = format!("does not exist, nor does {shown}");
            return self.broken(&text, &format!("install -d -o windlass -m 0750 {shown}"));
        }
        if accessat(CWD, directory, Access::WRITE_OK, AtFlags::EACCESS).is_err() {
            let text = format!("does not exist, and this user may not create it in {shown}");
            return self.broken(&text, &format!("chown windlass {shown}"));
        }
        self.check_space(directory, size.bytes(), true)
    }

    /// Checks the file system. `missing` is the number of bytes not yet allocated to the file.
    fn check_space(&self, real: &Path, missing: u64, is_direct: bool) -> Finding {
        let system = file_system(self.machine, self.path);
        let system = system.as_deref().unwrap_or("unknown");
        let free = statvfs(real).map(|it| it.f_bavail.saturating_mul(it.f_frsize));
        if let Ok(free) = free
            && free < missing
        {
            let text = format!(
                "has {} to grow, and its file system has {} left: writes will fail",
                bytes(missing),
                bytes(free)
            );
            return self.broken(&text, "a smaller size, or a larger file system");
        }
        let is_remote = REMOTE_FILE_SYSTEMS.contains(&system) || system.starts_with("fuse");
        // A file that appliances on several machines serve lies on none of their disks.
        if is_remote && !self.is_shared {
            let text = format!("is on {system}: each request goes to another program or machine");
            return self.slow(&text, "a path on a disk of this machine");
        }
        if system == "tmpfs" || !is_direct {
            let text = format!(
                "is on {system}, which has no O_DIRECT: data is copied through the page cache"
            );
            return self.slow(&text, "a path on xfs or ext4");
        }
        self.fine(&format!("on {system}"))
    }

    fn fine(&self, text: &str) -> Finding {
        Finding::fine(AREA, self.describe(&format!(": {text}")))
    }

    fn slow(&self, text: &str, fix: &str) -> Finding {
        Finding::slow(AREA, self.describe(&format!(" {text}")), fix)
    }

    fn broken(&self, text: &str, fix: &str) -> Finding {
        Finding::broken(AREA, self.describe(&format!(" {text}")), fix)
    }

    fn describe(&self, text: &str) -> String {
        format!("{}: {}{text}", self.name, self.path.display())
    }
}

/// The type of the file system that a path is on: proc_pid_mountinfo(5).
fn file_system(machine: &Machine, path: &Path) -> Option<String> {
    let mounts = machine.text("proc/self/mountinfo")?;
    let parsed = mounts.lines().filter_map(|line| {
        let (place, system) = line.split_once(" - ")?;
        let place = place.split(' ').nth(4)?.replace("\\040", " ");
        let system = system.split(' ').next()?;
        path.starts_with(&place)
            .then(|| (place.len(), system.to_owned()))
    });
    // Of several mounts at the same path, the last one is visible.
    let deepest = parsed.max_by_key(|(length, _)| *length)?;
    Some(deepest.1)
}
