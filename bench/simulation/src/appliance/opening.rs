//! Which disk a configured device is.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use appliance::rehearsal::{Growing, Opened, Opener};
use appliance_config::{Backing, ByteSize, Device as Wanted};
use block::{Device, NullDevice, NullOptions};

use crate::disk::Disk;

type Failure = Box<dyn Error>;

/// Disks by their files.
pub(super) struct Disks(pub(super) Vec<(PathBuf, Disk)>);

impl Opener for Disks {
    fn open(&self, device: &Wanted) -> Result<Option<Opened>, Failure> {
        match &device.backing {
            Backing::Nvme(_) => Ok(None),
            Backing::File { path, size, .. } => {
                let found = self.0.iter().find(|(known, _)| known == path);
                let (_, disk) = found.ok_or("there is no such file")?;
                if disk.is_removed() {
                    return Err("it was pulled out".into());
                }
                if disk.is_taken() {
                    return Err("somebody else has it".into());
                }
                // As a file: never made shorter.
                disk.grow(*size)?;
                let device = Arc::new(disk.clone()) as Arc<dyn Device>;
                Ok(Some(Opened::other(device, Box::new(disk.clone()))))
            }
            Backing::Null { size, block_size } => {
                let null = NullDevice::new(NullOptions {
                    name: device.name.as_str().to_owned(),
                    uuid: [0; 16],
                    size_bytes: size.bytes(),
                    block_size: block_size.bytes(),
                })?;
                Ok(Some(Opened::other(Arc::new(null), Box::new(Fixed))))
            }
            Backing::Memory { .. } => Err("there is no memory for devices here".into()),
        }
    }
}

/// What has its size for good.
struct Fixed;

impl Growing for Fixed {
    fn grow(&self, _: Option<ByteSize>) -> Result<(), Failure> {
        Err("it does not grow".into())
    }
}

impl Growing for Disk {
    fn grow(&self, size: Option<ByteSize>) -> Result<(), Failure> {
        match size {
            Some(size) => Ok(self.extend(size.bytes())?),
            None => Ok(()),
        }
    }
}
