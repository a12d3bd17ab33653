//! Reads the machine's files: sysfs, procfs, `/etc`, below a root.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use appliance_config::CoreList;
use vfio::System;

/// This machine, or a directory tree of a test.
#[derive(Debug)]
pub(super) struct Machine {
    root: PathBuf,
}

impl Machine {
    pub(super) fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// Whether it is this machine, so that system calls and libraries describe it too.
    pub(super) fn is_local(&self) -> bool {
        self.root == Path::new("/")
    }

    pub(super) fn system(&self) -> System {
        System::at(&self.root)
    }

    /// A path on the machine; `path` may be absolute or relative to its root.
    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The trimmed text of a file; `None` if it cannot be read.
    pub(super) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = fs::read_to_string(self.path(path)).ok()?;
        Some(text.trim().to_owned())
    }

    /// The decimal number in a file.
    pub(super) fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// The names in a directory, sorted; empty if there is no such directory.
    pub(super) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path))
            .into_iter()
            .flatten()
            .flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The cores in a file such as `0-3,8`; empty if there are none.
    pub(super) fn cores(&self, path: impl AsRef<Path>) -> Vec<usize> {
        self.text(path).map_or_else(Vec::new, |text| cores(&text))
    }

    /// The value in a line `name:   value` of a file.
    pub(super) fn field(&self, path: impl AsRef<Path>, name: &str) -> Option<String> {
        let text = self.text(path)?;
        text.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            (found == name).then(|| value.trim().to_owned())
        })
    }

    /// The memory nodes.
    pub(super) fn nodes(&self) -> Vec<u32> {
        let names = self.names("sys/devices/system/node");
        let numbers = names.iter().filter_map(|name| name.strip_prefix("node"));
        numbers.filter_map(|number| number.parse().ok()).collect()
    }

    /// The memory node of a core; 0 if there is only one node.
    pub(super) fn node_of_core(&self, core: usize) -> u32 {
        let nodes = self.nodes().into_iter();
        let has = |node: &u32| {
            let path = format!("sys/devices/system/node/node{node}/cpulist");
            self.cores(path).contains(&core)
        };
        nodes.into_iter().find(has).unwrap_or(0)
    }

    /// The memory nodes of the cores, each once.
    pub(super) fn nodes_of_cores(&self, cores: &[usize]) -> BTreeSet<u32> {
        cores.iter().map(|core| self.node_of_core(*core)).collect()
    }
}

/// The cores of a list in the kernel's format.
fn cores(text: &str) -> Vec<usize> {
    let list: Result<CoreList, _> = text.parse();
    list.map_or_else(|_| Vec::new(), |list| list.iter().collect())
}

/// Numbers separated by commas.
pub(super) fn joined<T: ToString>(numbers: impl IntoIterator<Item = T>) -> String {
    let numbers: Vec<String> = numbers.into_iter().map(|it| it.to_string()).collect();
    numbers.join(",")
}
