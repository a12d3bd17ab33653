//! Memory windows of type 2.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rdma_sys::{ibv_alloc_mw, ibv_dealloc_mw, ibv_mw, ibv_mw_type, ibv_qp};

use super::domain::VerbsDomain;
use super::handle::Handle;
use super::system::last_error;
use crate::error::{Error, PostError};
use crate::provider::{Device, Domain, MemoryWindow};

/// The bits of a key that change with each binding.
const KEY_VARIANT: u32 = 0xff;

/// A memory window of libibverbs.
#[derive(Debug)]
pub struct VerbsWindow {
    inner: Arc<Window>,
    /// The key of the last queued binding.
    rkey: u32,
}

/// The part that a queued binding keeps alive.
#[derive(Debug)]
pub(super) struct Window {
    domain: VerbsDomain,
    state: Mutex<State>,
}

/// Shared by the owner of the window and the owner of the queue pair that it is bound on.
#[derive(Debug)]
struct State {
    /// `None` if the device could not replace a deallocated one.
    window: Option<Handle<ibv_mw>>,
    /// Whether a binding that names the window by address is queued and not posted.
    is_queued: bool,
    /// The queue pair on which the last binding was posted.
    bound_on: Option<Handle<ibv_qp>>,
}

impl VerbsWindow {
    pub(super) fn new(domain: &VerbsDomain) -> Result<Self, Error> {
        if domain.device().limits().windows == 0 {
            return Err(Error::Limit {
                what: "memory windows",
                wanted: 1,
                limit: 0,
            });
        }
        let window = allocate(domain).ok_or_else(|| last_error("ibv_alloc_mw"))?;
        // SAFETY: the window was just created.
        let rkey = unsafe { (*window.get()).rkey };
        Ok(Self {
            inner: Arc::new(Window {
                domain: domain.clone(),
                state: Mutex::new(State {
                    window: Some(window),
                    is_queued: false,
                    bound_on: None,
                }),
            }),
            rkey,
        })
    }

    pub(super) fn is_of(&self, domain: &VerbsDomain) -> bool {
        self.inner.domain.is_same(domain)
    }

    /// Takes the window for one binding that will be queued.
    pub(super) fn take(&mut self) -> Result<QueuedWindow, PostError> {
        let mut state = self.inner.state();
        // Drivers read the previous key from the window when they post, so a list cannot contain a
        // second binding.
        let free = state.window.filter(|_| !state.is_queued);
        let handle = free.ok_or(PostError::NotPossible)?;
        state.is_queued = true;
        // SAFETY: the window is alive, and its key is only accessed under the lock.
        let current = unsafe { (*handle.get()).rkey };
        self.rkey = next_key(current);
        Ok(QueuedWindow {
            window: Arc::clone(&self.inner),
            handle,
            key: self.rkey,
        })
    }
}

/// A window for which a binding is queued.
#[derive(Debug)]
pub(super) struct QueuedWindow {
    window: Arc<Window>,
    pub(super) handle: Handle<ibv_mw>,
    /// The key after the binding.
    pub(super) key: u32,
}

impl QueuedWindow {
    /// Records that the binding was posted. Returns the window if its last binding was not on this
    /// queue pair.
    pub(super) fn binding_posted(self, queue_pair: Handle<ibv_qp>) -> Option<Weak<Window>> {
        let mut state = self.window.state();
        // SAFETY: the window is alive, and its key is only accessed under the lock.
        unsafe { (*self.handle.get()).rkey = self.key };
        state.is_queued = false;
        let before = state.bound_on.replace(queue_pair);
        (before != Some(queue_pair)).then(|| Arc::downgrade(&self.window))
    }

    /// Records that the binding will not be posted.
    pub(super) fn cancel_binding(self) {
        self.window.state().is_queued = false;
    }
}

impl Window {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unbinds the window before its queue pair is destroyed. A window that is bound on it must be
    /// deallocated first, because soft RoCE waits 50 s for it otherwise; a new window replaces it.
    pub(super) fn unbind(&self, queue_pair: Handle<ibv_qp>) {
        let mut state = self.state();
        if state.bound_on != Some(queue_pair) || state.is_queued {
            return;
        }
        state.bound_on = None;
        if let Some(window) = state.window.take() {
            // SAFETY: the window is used under the lock only, except by queued bindings, of which
            // there is none.
            unsafe { ibv_dealloc_mw(window.get()) };
            self.domain.end_unbound_registrations();
        }
        state.window = allocate(&self.domain);
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(window) = self.state().window.take() {
            // SAFETY: queued bindings keep the window alive, so this is its last use.
            unsafe { ibv_dealloc_mw(window.get()) };
            self.domain.end_unbound_registrations();
        }
    }
}

fn allocate(domain: &VerbsDomain) -> Option<Handle<ibv_mw>> {
    // SAFETY: the domain is alive.
    let window = unsafe { ibv_alloc_mw(domain.handle().get(), ibv_mw_type::IBV_MW_TYPE_2) };
    window.and_then(Handle::new)
}

impl MemoryWindow for VerbsWindow {
    fn rkey(&self) -> u32 {
        self.rkey
    }
}

/// The key with the next variant, as `ibv_inc_rkey` of `infiniband/verbs.h` computes it.
fn next_key(key: u32) -> u32 {
    (key & !KEY_VARIANT) | (key.wrapping_add(1) & KEY_VARIANT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_keys_vary_only_in_the_last_byte() {
        assert_eq!(next_key(0x1234_5600), 0x1234_5601);
        assert_eq!(next_key(0x1234_56ff), 0x1234_5600);
        assert_eq!(next_key(u32::MAX), 0xffff_ff00);
    }
}
