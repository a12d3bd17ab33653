//! Memory windows of type 2.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rdma_sys::{ibv_alloc_mw, ibv_dealloc_mw, ibv_mw, ibv_mw_type, ibv_qp};

use super::domain::VerbsDomain;
use super::handle::Handle;
use super::system::last_error;
use crate::error::{Error, PostError};
use crate::provider::{Device, Domain, MemoryWindow};

/// The part of a key that changes with each binding.
const KEY_VARIANT: u32 = 0xff;

/// A memory window of libibverbs.
#[derive(Debug)]
pub struct VerbsWindow {
    inner: Arc<Window>,
    /// That of the last binding that was queued.
    rkey: u32,
}

/// What a queued binding keeps alive.
#[derive(Debug)]
pub(super) struct Window {
    domain: VerbsDomain,
    state: Mutex<State>,
}

/// Two owners meet here: that of the window, and that of the queue pair it is bound on.
#[derive(Debug)]
struct State {
    /// `None` when the device gave no other one in its place.
    window: Option<Handle<ibv_mw>>,
    /// Whether a binding is queued and not posted, which names the window by address.
    is_queued: bool,
    /// The queue pair that the last binding was posted on.
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
        // SAFETY: the window was just made.
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

    /// Takes the window for one binding that is going to be queued.
    pub(super) fn take(&mut self) -> Result<Taken, PostError> {
        let mut state = self.inner.state();
        // Drivers read the key of before from the window when they post, so there can be no second
        // binding in the same list.
        let free = state.window.filter(|_| !state.is_queued);
        let handle = free.ok_or(PostError::NotPossible)?;
        state.is_queued = true;
        // SAFETY: the window is alive, and only whoever holds the lock touches its key.
        let current = unsafe { (*handle.get()).rkey };
        self.rkey = next_key(current);
        Ok(Taken {
            window: Arc::clone(&self.inner),
            handle,
            key: self.rkey,
        })
    }
}

/// A window that a binding is queued for.
#[derive(Debug)]
pub(super) struct Taken {
    window: Arc<Window>,
    pub(super) handle: Handle<ibv_mw>,
    /// What its key is going to be.
    pub(super) key: u32,
}

impl Taken {
    /// The binding was posted. Returns the window when it was not bound on this queue pair before.
    pub(super) fn posted(self, queue_pair: Handle<ibv_qp>) -> Option<Weak<Window>> {
        let mut state = self.window.state();
        // SAFETY: the window is alive, and only whoever holds the lock touches its key.
        unsafe { (*self.handle.get()).rkey = self.key };
        state.is_queued = false;
        let before = state.bound_on.replace(queue_pair);
        (before != Some(queue_pair)).then(|| Arc::downgrade(&self.window))
    }

    /// The binding will not be posted.
    pub(super) fn abandoned(self) {
        self.window.state().is_queued = false;
    }
}

impl Window {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue pair goes. A window that is bound on it dies with it, and has to go before: soft
    /// RoCE waits 50 s for it to let the queue pair go. Another one takes its place.
    pub(super) fn leave(&self, queue_pair: Handle<ibv_qp>) {
        let mut state = self.state();
        if state.bound_on != Some(queue_pair) || state.is_queued {
            return;
        }
        state.bound_on = None;
        if let Some(window) = state.window.take() {
            // SAFETY: the window is used under the lock only, save by queued bindings, of which
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

/// The key with the next variant, as `ibv_inc_rkey` of `infiniband/verbs.h` makes it.
fn next_key(key: u32) -> u32 {
    (key & !KEY_VARIANT) | (key.wrapping_add(1) & KEY_VARIANT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_vary_in_their_last_byte_only() {
        assert_eq!(next_key(0x1234_5600), 0x1234_5601);
        assert_eq!(next_key(0x1234_56ff), 0x1234_5600);
        assert_eq!(next_key(u32::MAX), 0xffff_ff00);
    }
}
