//! The devices of the connection manager.
//!
//! Each device in the table holds a reference of a list of librdmacm, which keeps its context open.
//! The table releases the reference of a removed device, so that the device is closed with its last
//! user: some drivers, such as soft RoCE's, cannot be removed while a context is open. librdmacm
//! itself closes the context when it next looks for devices, and only while there is another
//! device.
#![expect(
    unsafe_code,
    reason = "walks the list of devices that librdmacm returns"
)]

use std::ffi::c_int;
use std::io;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rdma_sys::ibv_context;

use super::device::{VerbsDevice, WeakDevice};
use super::handle::Handle;
use super::library::Functions;
use crate::device::DeviceIndex;
use crate::error::{Error, Unavailable};

/// The present devices, and removed ones that are still used.
#[derive(Debug)]
pub(super) struct DeviceTable {
    functions: &'static Functions,
    table_state: Mutex<TableState>,
}

#[derive(Debug)]
struct TableState {
    entries: Vec<Entry>,
    /// Never reused: a device that returns gets a new index.
    next_index: u16,
}

#[derive(Debug)]
struct Entry {
    context: Handle<ibv_context>,
    device: WeakDevice,
    /// `None` once it was removed.
    held: Option<VerbsDevice>,
}

impl DeviceTable {
    pub(super) fn new(functions: &'static Functions) -> Self {
        Self {
            functions,
            table_state: Mutex::new(TableState {
                entries: Vec::new(),
                next_index: 0,
            }),
        }
    }

    pub(super) fn functions(&self) -> &'static Functions {
        self.functions
    }

    /// Looks for devices, adds new ones to the table, releases removed ones, and returns those that
    /// are present.
    pub(super) fn refresh(&self) -> Result<Vec<VerbsDevice>, Error> {
        let mut table_state = self.lock();
        let mut count: c_int = 0;
        // SAFETY: the call writes the count, and any thread may make it.
        let list = unsafe { (self.functions.rdma_get_devices)(&raw mut count) };
        if list.is_null() {
            let error = no_devices(io::Error::last_os_error());
            if matches!(error, Unavailable::NoDevice) {
                table_state.release_absent(&[]);
            }
            return Err(error.into());
        }
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the list has as many entries as the call counted, and belongs to this function.
        let list_entries = unsafe { std::slice::from_raw_parts_mut(list, count) };
        let present: Vec<_> = list_entries
            .iter()
            .copied()
            .filter_map(Handle::new)
            .collect();
        table_state.release_absent(&present);
        let (devices, returned, failed) = table_state.add_new(self.functions, &present);
        // The references that the table keeps are removed from the list, so that they are not
        // released with it.
        list_entries[..returned.len()].copy_from_slice(&returned);
        // SAFETY: the list ends with a null pointer after the counted entries.
        let end = unsafe { list.add(returned.len()) };
        // SAFETY: as above.
        unsafe { *end = ptr::null_mut() };
        // SAFETY: the list came from the corresponding function, each entry in it holds a
        // reference, and it is not used again.
        unsafe { (self.functions.rdma_free_devices)(list) };
        match failed {
            _ if !devices.is_empty() => Ok(devices),
            Some(error) => Err(error),
            None => Err(Unavailable::NoDevice.into()),
        }
    }

    /// The device of a context that the connection manager named.
    pub(super) fn device_of(&self, context: Handle<ibv_context>) -> Result<VerbsDevice, Error> {
        if let Some(device) = self.lock().find(context) {
            return Ok(device);
        }
        self.refresh()?;
        // A device that was removed meanwhile is in no list any more.
        self.lock().find(context).ok_or(Error::DeviceGone)
    }

    /// Releases a device whose removal the connection manager reported.
    pub(super) fn remove(&self, context: Handle<ibv_context>) {
        let mut table_state = self.lock();
        if let Some(device) = table_state.find(context) {
            device.mark_removed();
        }
        for entry in &mut table_state.entries {
            if entry.context == context {
                entry.held = None;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, TableState> {
        self.table_state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl TableState {
    /// Releases the devices that are not in a list, and drops the entries of devices without users.
    fn release_absent(&mut self, present: &[Handle<ibv_context>]) {
        for entry in &mut self.entries {
            if !present.contains(&entry.context)
                && let Some(device) = entry.held.take()
            {
                device.mark_removed();
            }
        }
        self.entries
            .retain(|entry| entry.device.upgrade().is_some());
    }

    /// Adds the new devices of a list. Returns the devices, the references to release, and the
    /// error of a device that could not be opened: one broken device does not hide the others.
    fn add_new(
        &mut self,
        functions: &'static Functions,
        present: &[Handle<ibv_context>],
    ) -> (Vec<VerbsDevice>, Vec<*mut ibv_context>, Option<Error>) {
        let (mut devices, mut returned, mut failed) = (Vec::new(), Vec::new(), None);
        for &context in present {
            if let Some(entry) = self.entries.iter().find(|one| one.context == context) {
                devices.extend(entry.held.clone());
                returned.push(context.get());
                continue;
            }
            match VerbsDevice::new(functions, context, DeviceIndex(self.next_index)) {
                Ok(device) => {
                    self.next_index = self.next_index.saturating_add(1);
                    self.entries.push(Entry {
                        context,
                        device: device.downgrade(),
                        held: Some(device.clone()),
                    });
                    devices.push(device);
                }
                Err(error) => {
                    returned.push(context.get());
                    failed = Some(error);
                }
            }
        }
        (devices, returned, failed)
    }

    fn find(&self, context: Handle<ibv_context>) -> Option<VerbsDevice> {
        let mut entries = self.entries.iter();
        entries
            .find(|one| one.context == context)
            .and_then(|one| one.device.upgrade())
    }
}

/// Why the connection manager returns no devices.
pub(super) fn no_devices(error: io::Error) -> Unavailable {
    match error.raw_os_error() {
        Some(libc::ENODEV) => Unavailable::NoDevice,
        _ => Unavailable::NoConnectionManager(error),
    }
}
