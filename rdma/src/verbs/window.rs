//! Memory windows of type 2.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rdma_sys::{ibv_alloc_mw, ibv_dealloc_mw, ibv_mw, ibv_mw_type};

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
    window: Handle<ibv_mw>,
    /// Whether a binding is queued and not posted. While it is, the queue pair that it is queued
    /// on is the only one to touch the window's key.
    is_queued: AtomicBool,
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
        // SAFETY: the domain is alive.
        let window = unsafe { ibv_alloc_mw(domain.handle().get(), ibv_mw_type::IBV_MW_TYPE_2) };
        let window = window.and_then(Handle::new);
        let window = window.ok_or_else(|| last_error("ibv_alloc_mw"))?;
        // SAFETY: the window was just made.
        let rkey = unsafe { (*window.get()).rkey };
        Ok(Self {
            inner: Arc::new(Window {
                domain: domain.clone(),
                window,
                is_queued: AtomicBool::new(false),
            }),
            rkey,
        })
    }

    pub(super) fn is_of(&self, domain: &VerbsDomain) -> bool {
        self.inner.domain.is_same(domain)
    }

    /// Takes the window for one binding that is going to be queued; returns the window and the key
    /// that it gets.
    pub(super) fn take(&mut self) -> Result<(Arc<Window>, u32), PostError> {
        // Drivers read the key of before from the window when they post, so there can be no second
        // binding in the same list.
        if self.inner.is_queued.swap(true, Ordering::Acquire) {
            return Err(PostError::NotPossible);
        }
        // SAFETY: the window is alive, and with no other binding queued nobody changes its key.
        let current = unsafe { (*self.inner.window.get()).rkey };
        self.rkey = next_key(current);
        Ok((Arc::clone(&self.inner), self.rkey))
    }
}

impl Window {
    pub(super) fn handle(&self) -> Handle<ibv_mw> {
        self.window
    }

    /// Gives the window back when its binding was posted, or will not be.
    pub(super) fn give_back(&self, posted_key: Option<u32>) {
        if let Some(key) = posted_key {
            // SAFETY: the window is alive, and the binding that was queued made its queue pair the
            // only one to touch the key.
            unsafe { (*self.window.get()).rkey = key };
        }
        self.is_queued.store(false, Ordering::Release);
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: queued bindings keep the window alive, so this is its last use.
        unsafe { ibv_dealloc_mw(self.window.get()) };
        self.domain.end_unbound_registrations();
    }
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
