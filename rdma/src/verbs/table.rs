//! The devices of the connection manager.
#![expect(
    unsafe_code,
    reason = "walks the list of devices that librdmacm returns"
)]

use std::ffi::c_int;
use std::io;
use std::sync::{Mutex, PoisonError};

use rdma_sys::ibv_context;

use super::device::VerbsDevice;
use super::handle::Handle;
use super::library::Functions;
use crate::device::DeviceIndex;
use crate::error::{Error, Unavailable};

/// Every device that was ever seen, by index. A device that was removed keeps its place; when it
/// returns it is another one.
#[derive(Debug)]
pub(super) struct DeviceTable {
    functions: &'static Functions,
    devices: Mutex<Vec<VerbsDevice>>,
}

impl DeviceTable {
    pub(super) fn new(functions: &'static Functions) -> Self {
        Self {
            functions,
            devices: Mutex::new(Vec::new()),
        }
    }

    pub(super) fn functions(&self) -> &'static Functions {
        self.functions
    }

    /// Looks for devices, takes new ones into the table, and returns those that are there.
    pub(super) fn refresh(&self) -> Result<Vec<VerbsDevice>, Error> {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let mut count: c_int = 0;
        // SAFETY: the call writes the count, and any thread may make it.
        let list = unsafe { (self.functions.rdma_get_devices)(&raw mut count) };
        if list.is_null() {
            return Err(no_devices(io::Error::last_os_error()).into());
        }
        let mut present = Vec::new();
        let mut failed = None;
        let known = devices.len();
        for at in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: the list has as many entries as the call counted.
            let entry = unsafe { list.add(at) };
            // SAFETY: the entry is in the list, which is freed below.
            let Some(context) = Handle::new(unsafe { *entry }) else {
                continue;
            };
            match known_or_new(self.functions, &mut devices, context) {
                Ok(device) => present.push(device),
                // One broken device does not hide the others.
                Err(error) => failed = Some(error),
            }
        }
        // The list holds a reference to each of its devices; it is kept, for good, where it is
        // what keeps the context of a device in the table open.
        if devices.len() == known {
            // SAFETY: the list came from the function that goes with this one, and is not used
            // again.
            unsafe { (self.functions.rdma_free_devices)(list) };
        }
        match failed {
            Some(error) if present.is_empty() => Err(error),
            _ if present.is_empty() => Err(Unavailable::NoDevice.into()),
            _ => Ok(present),
        }
    }

    /// The device of a context that the connection manager named.
    pub(super) fn device_of(&self, context: Handle<ibv_context>) -> Result<VerbsDevice, Error> {
        if let Some(device) = self.known(context) {
            return Ok(device);
        }
        self.refresh()?;
        // A device that was removed in the meantime is in no list any more.
        self.known(context).ok_or(Error::DeviceGone)
    }

    fn known(&self, context: Handle<ibv_context>) -> Option<VerbsDevice> {
        let devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.iter().find(|one| one.context() == context).cloned()
    }
}

fn known_or_new(
    functions: &'static Functions,
    devices: &mut Vec<VerbsDevice>,
    context: Handle<ibv_context>,
) -> Result<VerbsDevice, Error> {
    if let Some(device) = devices.iter().find(|one| one.context() == context) {
        return Ok(device.clone());
    }
    let index = DeviceIndex(u16::try_from(devices.len()).unwrap_or(u16::MAX));
    let device = VerbsDevice::new(functions, context, index)?;
    devices.push(device.clone());
    Ok(device)
}

/// Why the connection manager has no devices to show.
pub(super) fn no_devices(error: io::Error) -> Unavailable {
    match error.raw_os_error() {
        Some(libc::ENODEV) => Unavailable::NoDevice,
        _ => Unavailable::NoConnectionManager(error),
    }
}
