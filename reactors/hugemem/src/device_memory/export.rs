//! Access to a device's memory by devices outside of its address space: a descriptor of the memory
//! (a dma-buf), and the registrations that were made with it.

use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A part of a file that other drivers map as memory of a device: a dma-buf.
#[derive(Debug)]
pub struct DmaBuf {
    descriptor: OwnedFd,
    offset: u64,
}

impl DmaBuf {
    /// The memory is in the file from `offset` on.
    #[must_use]
    pub fn new(descriptor: OwnedFd, offset: u64) -> Self {
        Self { descriptor, offset }
    }

    /// Where the memory begins in the file.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Whether devices outside of the address space may use a memory.
#[derive(Debug)]
pub enum Export {
    /// None, for this reason.
    Refused(String),
    /// Those that register this descriptor.
    DmaBuf(DmaBuf),
}

/// A registration of a memory with another device.
pub trait ExportUser: Debug + Send + Sync {
    /// Destroys the registration: the other device does not access the memory any more when this
    /// returns.
    fn end_access(&self);
}

/// Why a memory was not given to a device.
#[derive(Debug)]
pub enum NotExported<E> {
    /// It has ended.
    Ended,
    /// It has no descriptor, for this reason.
    Refused(String),
    /// The device did not register it.
    Failed(E),
}

/// The descriptor of a memory, and its users. For the control plane.
#[derive(Debug)]
pub(super) struct Exports {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    export: Export,
    users: Vec<Weak<dyn ExportUser>>,
    /// Why devices have not registered it.
    refusals: Vec<String>,
}

impl Exports {
    pub(super) fn new(export: Export) -> Self {
        let (users, refusals) = (Vec::new(), Vec::new());
        Self {
            state: Mutex::new(State {
                export,
                users,
                refusals,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is complete before the next one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn refusal(&self) -> Option<String> {
        match &self.state().export {
            Export::Refused(why) => Some(why.clone()),
            Export::DmaBuf(_) => None,
        }
    }

    pub(super) fn users(&self) -> usize {
        let state = self.state();
        let users = state.users.iter();
        users.filter(|it| it.strong_count() > 0).count()
    }

    pub(super) fn set_refusals(&self, refusals: Vec<String>) {
        self.state().refusals = refusals;
    }

    pub(super) fn refusals(&self) -> Vec<String> {
        self.state().refusals.clone()
    }

    /// Adds a user. The lock is held meanwhile, so that a revocation comes before or after it.
    pub(super) fn add<E>(
        &self,
        register: impl FnOnce(&DmaBuf) -> Result<Arc<dyn ExportUser>, E>,
    ) -> Result<(), NotExported<E>> {
        let mut state = self.state();
        let buffer = match &state.export {
            Export::Refused(why) => return Err(NotExported::Refused(why.clone())),
            Export::DmaBuf(buffer) => buffer,
        };
        let user = register(buffer).map_err(NotExported::Failed)?;
        state.users.retain(|it| it.strong_count() > 0);
        state.users.push(Arc::downgrade(&user));
        Ok(())
    }

    pub(super) fn revoke(&self) {
        let mut state = self.state();
        for user in state.users.drain(..).filter_map(|it| it.upgrade()) {
            user.end_access();
        }
        // A descriptor of a device's memory keeps the device in use.
        state.export = Export::Refused("it has ended".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::{DeviceMemory, PagePolicy, Region, Sharing};

    #[derive(Debug, Default)]
    struct User {
        has_ended: AtomicBool,
    }

    impl ExportUser for User {
        fn end_access(&self) {
            assert!(!self.has_ended.swap(true, Ordering::Relaxed), "ended twice");
        }
    }

    fn own() -> Sharing {
        Sharing::Own("this is a test".to_owned())
    }

    fn exported() -> Arc<DeviceMemory> {
        let region = Region::map(8192, PagePolicy::Ordinary).expect("memory");
        let descriptor = region.as_fd().try_clone_to_owned().expect("a descriptor");
        let export = Export::DmaBuf(DmaBuf::new(descriptor, 4096));
        DeviceMemory::with_export(1 << 30, 4096, 4096, own(), export).expect("a slice")
    }

    fn give(memory: &DeviceMemory, user: &Arc<User>) -> Result<(), NotExported<&'static str>> {
        memory.export_to(|buffer| {
            assert_eq!(buffer.offset(), 4096);
            assert_eq!(memory.neighbours_in_flight(), 1);
            Ok(Arc::clone(user) as Arc<dyn ExportUser>)
        })
    }

    #[test]
    fn memory_without_a_descriptor_is_not_exported() {
        let memory = DeviceMemory::new(0, 4096, 4096, own()).expect("a slice");
        let user = Arc::new(User::default());
        assert!(matches!(give(&memory, &user), Err(NotExported::Refused(_))));
        assert!(memory.export_refusal().is_some());
        assert_eq!(memory.neighbours_in_flight(), 0);
        memory.end();
        memory.revoke_exports();
        assert!(!user.has_ended.load(Ordering::Relaxed));
    }

    #[test]
    fn failed_registration_leaves_nothing() {
        let memory = exported();
        let failed = memory.export_to(|_| Err("no"));
        assert!(matches!(failed, Err(NotExported::Failed("no"))));
        assert_eq!(memory.neighbours_in_flight(), 0);
    }

    #[test]
    fn registrations_end_with_the_memory() {
        let memory = exported();
        let users = [(); 3].map(|()| Arc::new(User::default()));
        for user in &users {
            give(&memory, user).expect("exported");
        }
        let [first, second, gone] = users;
        // Its device has gone before.
        drop(gone);
        memory.end();
        assert!(matches!(give(&memory, &first), Err(NotExported::Ended)));
        assert!(!first.has_ended.load(Ordering::Relaxed));
        memory.revoke_exports();
        memory.revoke_exports();
        for user in [first, second] {
            assert!(user.has_ended.load(Ordering::Relaxed));
        }
        assert!(memory.export_refusal().is_some());
    }
}
