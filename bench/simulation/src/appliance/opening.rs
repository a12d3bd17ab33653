//! Maps configured devices to simulated disks.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use appliance::headless::{Content, DeviceOperations, Opened, Opener};
use appliance_config::{Backing, ByteSize, Device as Wanted, Uuid};
use block::{Device, NullDevice, NullOptions};

use crate::disk::Disk;
use crate::file_disk::FileDisk;
use crate::ram::Ram;

type Failure = Box<dyn Error>;

/// Disks by path: a disk may get another file while the appliance runs.
#[derive(Clone, Default)]
pub struct Shelf(Arc<Mutex<Vec<(PathBuf, Disk)>>>);

impl Shelf {
    /// Adds a file.
    pub fn put(&self, path: PathBuf, disk: Disk) {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        files.push((path, disk));
    }

    /// The file at a path.
    #[must_use]
    pub fn find(&self, path: &Path) -> Option<Disk> {
        let files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut files = files.iter();
        let found = files.find(|(known, _)| known == path);
        found.map(|(_, disk)| disk.clone())
    }
}

/// Disks and files by their paths, and those in RAM by the names of their devices.
pub(super) struct Disks {
    pub(super) shelf: Shelf,
    pub(super) files: Vec<FileDisk>,
    pub(super) ram: Vec<(String, Ram)>,
}

impl Opener for Disks {
    fn open(&self, device: &Wanted) -> Result<Option<Opened>, Failure> {
        match &device.backing {
            Backing::Nvme(_) => Ok(None),
            Backing::File { path, size, .. } => {
                if let Some(file) = self.files.iter().find(|it| it.path() == path) {
                    let device = file.open(device.name.as_str().to_owned());
                    if size.is_some_and(|size| size.bytes() != device.geometry().bytes()) {
                        return Err("the file has another length".into());
                    }
                    let content = Content::Lasting(path.display().to_string());
                    return Ok(Some(Opened::other(device, Box::new(Fixed), content)));
                }
                let disk = self.shelf.find(path).ok_or("there is no such file")?;
                if disk.is_removed() {
                    return Err("it was pulled out".into());
                }
                if disk.take_open_failure() {
                    return Err("somebody else has it".into());
                }
                // As a file device: a file is never made shorter.
                disk.grow(*size)?;
                let device = Arc::new(disk.clone()) as Arc<dyn Device>;
                let content = Content::Lasting(path.display().to_string());
                Ok(Some(Opened::other(device, Box::new(disk), content)))
            }
            Backing::Null { size, block_size } => {
                let null = NullDevice::new(NullOptions {
                    name: device.name.as_str().to_owned(),
                    uuid: [0; 16],
                    size_bytes: size.bytes(),
                    block_size: block_size.bytes(),
                })?;
                let content = Content::Lasting("null".to_owned());
                Ok(Some(Opened::other(
                    Arc::new(null),
                    Box::new(Fixed),
                    content,
                )))
            }
            Backing::Memory { size, .. } => {
                let name = device.name.as_str();
                let found = self.ram.iter().find(|(known, _)| known == name);
                let (_, ram) = found.ok_or("there is no memory for it")?;
                if ram.take_open_failure() {
                    return Err("there is no memory for it just now".into());
                }
                let open = ram.open(name, size.bytes(), device.read_only)?;
                let content = Content::Volatile(Uuid::from_u128(open.content));
                Ok(Some(Opened::memory(open.memory, open.device, content)))
            }
        }
    }
}

/// A device whose size cannot change.
struct Fixed;

impl DeviceOperations for Fixed {
    fn grow(&self, _: Option<ByteSize>) -> Result<(), Failure> {
        Err("it does not grow".into())
    }
}

impl DeviceOperations for Disk {
    fn grow(&self, size: Option<ByteSize>) -> Result<(), Failure> {
        match size {
            Some(size) => Ok(self.extend(size.bytes())?),
            None => Ok(()),
        }
    }

    fn sync(&self) -> Result<(), Failure> {
        Ok(Disk::sync(self)?)
    }
}
