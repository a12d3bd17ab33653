//! A simulated machine for tests: files in a temporary directory, and a kernel that reacts to
//! writes to its sysfs.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::system::{System, SystemOperations, link_name, text};
use crate::{PciAddress, Problem};

/// The behaviour of the simulated kernel.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Nodes that are opened exclusively by another program: `nvme0n1`, `vfio/7`.
    pub(crate) busy: HashSet<String>,
    /// Nodes that this process may not open.
    pub(crate) forbidden: HashSet<String>,
    /// The end of an attribute's path, the number of writes to it that succeed, and the error of
    /// the next.
    pub(crate) failure: Option<(&'static str, u32, i32)>,
    /// The end of an attribute's path whose write removes a function, and the function.
    pub(crate) pulled_at: Option<(&'static str, &'static str)>,
    /// After how many claims a file or folder is removed, and its path.
    pub(crate) ends_at_claim: Option<(u32, &'static str)>,
    /// A driver that binds to no function.
    pub(crate) refusing_driver: Option<&'static str>,
    /// All writes: the end of the path, and the text.
    pub(crate) written: Vec<(String, String)>,
}

#[derive(Debug)]
struct Kernel {
    root: PathBuf,
    plan: Mutex<Plan>,
}

/// The machine. Dropping it deletes its files.
pub(crate) struct FakeMachine {
    root: tempfile::TempDir,
    kernel: Arc<Kernel>,
}

pub(crate) fn address(text: &str) -> PciAddress {
    text.parse().unwrap()
}

impl Kernel {
    fn device(&self, address: &str) -> PathBuf {
        self.root.join("sys/bus/pci/devices").join(address)
    }

    fn pull(&self, address: &str) {
        let _ = fs::remove_dir_all(self.device(address));
    }

    fn unbind(&self, address: &str) {
        let _ = fs::remove_file(self.device(address).join("driver"));
        let _ = fs::remove_dir_all(self.device(address).join("nvme"));
    }

    fn probe(&self, address: &str, refusing_driver: Option<&str>) {
        let device = self.device(address);
        let only = text(&device.join("driver_override")).unwrap_or_default();
        let driver = if only.is_empty() || only == "(null)" {
            "nvme"
        } else {
            &only
        };
        let known = self.root.join("sys/bus/pci/drivers").join(driver).exists();
        if known && refusing_driver != Some(driver) && !device.join("driver").exists() {
            let _ = symlink(format!("../../drivers/{driver}"), device.join("driver"));
        }
    }
}

impl SystemOperations for Kernel {
    fn write(&self, attribute: &Path, text: &str) -> io::Result<()> {
        let mut plan = self.plan.lock().unwrap();
        let below = attribute
            .strip_prefix(self.root.join("sys/bus/pci"))
            .unwrap();
        let below = below.to_string_lossy().into_owned();
        if let Some((end, address)) = plan.pulled_at
            && below.ends_with(end)
        {
            self.pull(address);
        }
        if let Some((end, left, errno)) = &mut plan.failure
            && below.ends_with(*end)
        {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => return Err(io::Error::from_raw_os_error(*errno)),
            }
        }
        plan.written.push((below.clone(), text.to_owned()));
        let parts: Vec<&str> = below.split('/').collect();
        match parts[..] {
            ["devices", address, "driver_override"] => {
                let file = self.device(address).join("driver_override");
                fs::write(file, if text == "\n" { "(null)\n" } else { text })
            }
            ["drivers", driver, "unbind"] => {
                let has = link_name(&self.device(text).join("driver"));
                if has.as_deref() != Some(driver) {
                    return Err(io::Error::from_raw_os_error(libc::ENODEV));
                }
                self.unbind(text);
                Ok(())
            }
            ["drivers_probe"] => {
                if !self.device(text).exists() {
                    return Err(io::Error::from_raw_os_error(libc::ENODEV));
                }
                self.probe(text, plan.refusing_driver);
                Ok(())
            }
            _ => panic!("nobody writes to {below}"),
        }
    }

    fn claim(&self, device: &Path) -> io::Result<File> {
        let mut plan = self.plan.lock().unwrap();
        if let Some((left, end)) = &mut plan.ends_at_claim {
            *left = left.saturating_sub(1);
            if *left == 0 {
                let _ = fs::remove_dir_all(self.root.join(end));
            }
        }
        drop(plan);
        self.open(device)?;
        File::open(device)
    }

    fn probe_group(&self, node: &Path) -> io::Result<()> {
        self.open(node)
    }

    fn may_use(&self, node: &Path) -> io::Result<()> {
        let name = node.strip_prefix(self.root.join("dev")).unwrap();
        let name = name.to_str().unwrap();
        if self.plan.lock().unwrap().forbidden.contains(name) {
            return Err(io::Error::from_raw_os_error(libc::EACCES));
        }
        fs::metadata(node).map(drop)
    }
}

impl Kernel {
    fn open(&self, node: &Path) -> io::Result<()> {
        self.may_use(node)?;
        let name = node.strip_prefix(self.root.join("dev")).unwrap();
        let name = name.to_str().unwrap();
        if self.plan.lock().unwrap().busy.contains(name) {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        }
        Ok(())
    }
}

impl FakeMachine {
    /// A machine with both drivers and no device.
    pub(crate) fn empty() -> FakeMachine {
        let root = tempfile::tempdir().unwrap();
        let kernel = Arc::new(Kernel {
            root: root.path().to_path_buf(),
            plan: Mutex::default(),
        });
        let machine = FakeMachine { root, kernel };
        for driver in ["nvme", "vfio-pci"] {
            machine.folder(&format!("sys/bus/pci/drivers/{driver}"));
        }
        machine.file("dev/vfio/vfio", "");
        machine
    }

    /// A machine with two drives of the kernel's driver, 0000:01:00.0 in group 7 and 0000:02:00.0
    /// in group 8.
    pub(crate) fn with_drives() -> FakeMachine {
        let machine = FakeMachine::empty();
        machine.add_drive("0000:01:00.0", 7, "nvme0", "nvme0n1");
        machine.add_drive("0000:02:00.0", 8, "nvme1", "nvme1n1");
        machine
    }

    /// The same with the first drive bound to vfio-pci.
    pub(crate) fn with_taken_drive() -> FakeMachine {
        let machine = FakeMachine::with_drives();
        machine.give("0000:01:00.0", Some("vfio-pci"));
        machine.file("dev/vfio/7", "");
        machine
    }

    pub(crate) fn system(&self) -> System {
        System::at(self.root.path())
            .with_operations(Arc::clone(&self.kernel) as Arc<dyn SystemOperations>)
    }

    pub(crate) fn plan(&self) -> MutexGuard<'_, Plan> {
        self.kernel.plan.lock().unwrap()
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    pub(crate) fn folder(&self, path: &str) {
        fs::create_dir_all(self.path(path)).unwrap();
    }

    pub(crate) fn file(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub(crate) fn link(&self, path: &str, target: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = fs::remove_file(&path);
        symlink(target, path).unwrap();
    }

    pub(crate) fn add_function(&self, name: &str, class: &str, group: u32) {
        let device = format!("sys/bus/pci/devices/{name}");
        self.file(&format!("{device}/class"), class);
        self.link(&format!("{device}/iommu_group"), &format!("../x/{group}"));
        let groups = "sys/kernel/iommu_groups";
        self.link(&format!("{groups}/{group}/devices/{name}"), "x");
    }

    pub(crate) fn add_drive(&self, name: &str, group: u32, controller: &str, disk: &str) {
        self.add_function(name, "0x010802\n", group);
        let device = format!("sys/bus/pci/devices/{name}");
        self.file(&format!("{device}/vendor"), "0x1b36\n");
        self.file(&format!("{device}/driver_override"), "(null)\n");
        self.file(&format!("{device}/nvme/{controller}/model"), "A drive   \n");
        self.file(&format!("{device}/nvme/{controller}/{disk}/size"), "8\n");
        self.give(name, Some("nvme"));
        self.add_block(disk, "259:0", "");
        self.file(&format!("dev/{controller}"), "");
    }

    /// Adds a block device; `partition_of` is the disk of a partition.
    pub(crate) fn add_block(&self, name: &str, number: &str, partition_of: &str) {
        self.file(&format!("sys/class/block/{name}/dev"), number);
        self.file(&format!("sys/class/block/{name}/size"), "8");
        self.file(&format!("dev/{name}"), "");
        if !partition_of.is_empty() {
            let below = format!("sys/class/block/{partition_of}/{name}/partition");
            self.file(&below, "1\n");
        }
    }

    /// Sets the driver of a function.
    pub(crate) fn give(&self, name: &str, driver: Option<&str>) {
        let link = format!("sys/bus/pci/devices/{name}/driver");
        match driver {
            Some(driver) => self.link(&link, &format!("../../drivers/{driver}")),
            None => drop(fs::remove_file(self.path(&link))),
        }
        if driver != Some("nvme") {
            let _ = fs::remove_dir_all(self.path(&format!("sys/bus/pci/devices/{name}/nvme")));
        }
    }

    /// The driver of a function, and its `driver_override`.
    pub(crate) fn state(&self, name: &str) -> (Option<String>, Option<String>) {
        let device = self.path(&format!("sys/bus/pci/devices/{name}"));
        let only = text(&device.join("driver_override"));
        (link_name(&device.join("driver")), only)
    }
}

/// The message of a problem: one line that names the drive.
pub(crate) fn line(problem: &Problem) -> String {
    let line = problem.to_string();
    assert!(!line.contains('\n') && line.len() < 500, "{line}");
    assert!(line.contains(&problem.address().to_string()), "{line}");
    line
}
