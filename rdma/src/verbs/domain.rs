//! Protection domains.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::sync::{Arc, Mutex, PoisonError};

use rdma_sys::{ibv_mr, ibv_pd};

use super::Verbs;
use super::completion_queue::VerbsCompletionQueue;
use super::device::VerbsDevice;
use super::handle::Handle;
use super::registration::VerbsRegistration;
use super::shared_receive_queue::VerbsSharedReceiveQueue;
use super::system::last_error;
use super::window::VerbsWindow;
use crate::connection::Token;
use crate::error::Error;
use crate::memory::{Access, DeviceRange, MemoryRange};
use crate::provider::Domain;

/// A protection domain of libibverbs.
#[derive(Clone, Debug)]
pub struct VerbsDomain {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    device: VerbsDevice,
    domain: Handle<ibv_pd>,
    /// Registrations that were dropped while a memory window was bound to them, which the device
    /// refuses to deregister. Retried whenever a window or another registration is dropped.
    bound: Mutex<Vec<Handle<ibv_mr>>>,
}

impl VerbsDomain {
    pub(super) fn new(device: &VerbsDevice) -> Result<Self, Error> {
        // SAFETY: the device's context is open.
        let domain = unsafe { (device.functions().ibv_alloc_pd)(device.context().get()) };
        let domain = Handle::new(domain).ok_or_else(|| last_error("ibv_alloc_pd"))?;
        Ok(Self {
            inner: Arc::new(Inner {
                device: device.clone(),
                domain,
                bound: Mutex::new(Vec::new()),
            }),
        })
    }

    pub(super) fn handle(&self) -> Handle<ibv_pd> {
        self.inner.domain
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Deregisters a registration, now or when the window that is bound to it is gone.
    pub(super) fn end_registration(&self, registration: Handle<ibv_mr>) {
        self.inner.end_registrations(Some(registration));
    }

    /// Deregisters registrations whose windows are gone.
    pub(super) fn end_unbound_registrations(&self) {
        self.inner.end_registrations(None);
    }
}

impl Inner {
    fn end_registrations(&self, more: Option<Handle<ibv_mr>>) {
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        bound.extend(more);
        let functions = self.device.functions();
        bound.retain(|registration| {
            // SAFETY: the registration is in the list because its owner dropped it, and leaves it
            // when it was deregistered.
            unsafe { (functions.ibv_dereg_mr)(registration.get()) != 0 }
        });
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.end_registrations(None);
        // A refusal of a removed device leaks a few bytes of the library.
        // SAFETY: everything that was created in the domain kept it alive, so this is its last use.
        unsafe { (self.device.functions().ibv_dealloc_pd)(self.domain.get()) };
    }
}

impl Domain for VerbsDomain {
    type Provider = Verbs;

    fn device(&self) -> &VerbsDevice {
        &self.inner.device
    }

    fn register(&self, range: MemoryRange<'_>, access: Access) -> Result<VerbsRegistration, Error> {
        VerbsRegistration::new(self, range, access)
    }

    fn register_device_memory(
        &self,
        range: DeviceRange<'_>,
        access: Access,
    ) -> Result<VerbsRegistration, Error> {
        VerbsRegistration::of_device(self, range, access)
    }

    fn create_window(&self) -> Result<VerbsWindow, Error> {
        VerbsWindow::new(self)
    }

    fn create_completion_queue(
        &self,
        entries: u32,
        token: Token,
    ) -> Result<VerbsCompletionQueue, Error> {
        VerbsCompletionQueue::new(&self.inner.device, entries, token)
    }

    fn create_shared_receive_queue(
        &self,
        requests: u32,
        sges: u32,
        token: Token,
    ) -> Result<VerbsSharedReceiveQueue, Error> {
        VerbsSharedReceiveQueue::new(self, requests, sges, token)
    }
}
