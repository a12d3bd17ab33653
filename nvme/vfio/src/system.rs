//! Access to the machine: sysfs, procfs and device nodes, each at a path that tests can choose.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, CWD, accessat};

/// Operations that change or open things on the machine. Tests implement them with a simulated
/// kernel.
pub(crate) trait SystemOperations: Send + Sync {
    /// Writes a sysfs attribute in one call.
    fn write(&self, attribute: &Path, text: &str) -> io::Result<()>;

    /// Opens a block device exclusively, so that it cannot be mounted, used as swap or added to
    /// another device meanwhile. Fails with `ResourceBusy` if it is already opened exclusively.
    fn claim(&self, device: &Path) -> io::Result<File>;

    /// Opens a group's node and closes it again. Fails with `ResourceBusy` if a program has it
    /// open.
    fn probe_group(&self, node: &Path) -> io::Result<()>;

    /// Whether this process may read and write a node, without opening it.
    fn may_use(&self, node: &Path) -> io::Result<()>;
}

struct KernelOperations;

impl SystemOperations for KernelOperations {
    fn write(&self, attribute: &Path, text: &str) -> io::Result<()> {
        // Write the value with one system call: sysfs handles each call as a whole value.
        OpenOptions::new()
            .write(true)
            .open(attribute)?
            .write_all(text.as_bytes())
    }

    fn claim(&self, device: &Path) -> io::Result<File> {
        OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_EXCL | libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(device)
    }

    fn probe_group(&self, node: &Path) -> io::Result<()> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(node)
            .map(drop)
    }

    fn may_use(&self, node: &Path) -> io::Result<()> {
        let access = Access::READ_OK | Access::WRITE_OK;
        Ok(accessat(CWD, node, access, AtFlags::EACCESS)?)
    }
}

/// The paths of sysfs, procfs and the device nodes.
#[derive(Clone)]
pub struct System {
    sysfs: PathBuf,
    proc: PathBuf,
    dev: PathBuf,
    operations: Arc<dyn SystemOperations>,
}

impl fmt::Debug for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = [&self.sysfs, &self.proc, &self.dev];
        f.debug_tuple("System").field(&places).finish()
    }
}

impl Default for System {
    fn default() -> System {
        System::at(Path::new("/"))
    }
}

/// Maximum bytes read from one file. Only mount tables are long.
const FILE_BYTES_MAX: u64 = 16 << 20;

impl System {
    /// The machine with `sys`, `proc` and `dev` below `root`: `/`, or a directory created by a
    /// test.
    #[must_use]
    pub fn at(root: &Path) -> System {
        System {
            sysfs: root.join("sys"),
            proc: root.join("proc"),
            dev: root.join("dev"),
            operations: Arc::new(KernelOperations),
        }
    }

    /// The same machine with other operations.
    #[cfg(test)]
    pub(crate) fn with_operations(mut self, operations: Arc<dyn SystemOperations>) -> System {
        self.operations = operations;
        self
    }

    pub(crate) fn operations(&self) -> &dyn SystemOperations {
        &*self.operations
    }

    /// A path below sysfs.
    pub(crate) fn sysfs(&self, path: impl AsRef<Path>) -> PathBuf {
        self.sysfs.join(path)
    }

    /// A path below procfs.
    pub(crate) fn proc(&self, path: impl AsRef<Path>) -> PathBuf {
        self.proc.join(path)
    }

    /// A path below the device nodes.
    pub(crate) fn dev(&self, path: impl AsRef<Path>) -> PathBuf {
        self.dev.join(path)
    }
}

/// The text of a file, trimmed; `None` if it cannot be read, because files of sysfs disappear with
/// their objects.
pub(crate) fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// The text of a file, unless it is empty.
pub(crate) fn non_empty_text(path: &Path) -> Option<String> {
    text(path).filter(|text| !text.is_empty())
}

/// A number in the format of sysfs: hexadecimal with `0x`, or decimal.
pub(crate) fn number(path: &Path) -> Option<u64> {
    let text = text(path)?;
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The last component of a link's target.
pub(crate) fn link_name(path: &Path) -> Option<String> {
    let target = fs::read_link(path).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

/// The sorted names in a directory; empty if there is no directory.
pub(crate) fn names(path: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(path) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .collect();
    names.sort();
    names
}
