//! The host's memory on each device: arenas that were made known, registered once, and the staging
//! memory for capsules and admin data.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use hugemem::{Arena, ArenaConfig, DmaDriver, DmaLease, Lease, PagePolicy};
use rdma::{
    Access, Device, DeviceIndex, Domain, DomainMemory, MemoryRange, Provider, QueuePair,
    Registration,
};

use crate::error::HostError;
use crate::rdma::{KeyUse, RdmaOptions};

/// The largest piece of staging memory, bytes: the longest log page that is read at once.
const STAGING_PIECE_MAX_BYTES: usize = 1 << 20;

/// What this host posts, as the posted memory knows it.
#[derive(Debug)]
pub(crate) enum HostDma {}

impl DmaDriver for HostDma {
    type Done = CommandDone;
}

/// Proof that neither this side's device nor, by a key of its own, the target accesses the data of a
/// command any more.
#[derive(Debug)]
pub(crate) struct CommandDone(());

impl CommandDone {
    /// The response came, the capsule was sent, and the command's window is closed.
    pub(crate) fn completed() -> Self {
        Self(())
    }

    /// No work request names the data.
    pub(crate) fn never_posted() -> Self {
        Self(())
    }

    /// The queue pair is destroyed.
    pub(crate) fn destroyed(queue_pair: &mut impl QueuePair) -> Result<Self, rdma::Error> {
        queue_pair.destroy().map(|()| Self(()))
    }
}

/// Data of a command.
pub(crate) trait Placed: Sized {
    /// The data while a device may access it.
    type Posted: Debug;
    /// What work requests name.
    type Memory: rdma::DeviceMemory;

    /// Bytes.
    fn bytes(&self) -> usize;

    /// Gives it to the device.
    fn post(self) -> Self::Posted;

    /// What work requests name of it.
    fn memory(posted: &Self::Posted) -> &Self::Memory;

    /// Takes it back from the device.
    fn take_back(posted: Self::Posted, done: &CommandDone) -> Self;
}

impl Placed for Lease {
    type Posted = DmaLease<HostDma>;
    type Memory = DmaLease<HostDma>;

    fn bytes(&self) -> usize {
        self.len()
    }

    fn post(self) -> Self::Posted {
        self.into_dma()
    }

    fn memory(posted: &Self::Posted) -> &Self::Memory {
        posted
    }

    fn take_back(posted: Self::Posted, done: &CommandDone) -> Self {
        posted.returned(done)
    }
}

/// The memory on one device.
#[derive(Debug)]
pub(crate) struct DeviceMemory<P: Provider> {
    pub(crate) shared: DomainMemory<P>,
    /// Whole regions that windows are bound to, where windows are used.
    bindable: Mutex<Vec<Arc<P::Registration>>>,
    keys: KeyUse,
}

impl<P: Provider> DeviceMemory<P> {
    fn new(domain: P::Domain, keys: KeyUse) -> Self {
        let access = match keys {
            KeyUse::Arena => Access::REMOTE,
            KeyUse::Windows => Access::WINDOWS,
        };
        Self {
            shared: DomainMemory::new(domain, access),
            bindable: Mutex::new(Vec::new()),
            keys,
        }
    }

    fn attach(&self, arena: &Arena) -> Result<(), HostError> {
        let failed = |source| HostError::Rdma {
            step: "registering memory",
            source,
        };
        let region = arena.region();
        self.shared.attach_region(region).map_err(failed)?;
        if self.keys == KeyUse::Windows {
            let range = MemoryRange::of_region(region, 0..region.len());
            let whole = self.shared.domain().register(range, Access::WINDOWS);
            let whole = Arc::new(whole.map_err(failed)?);
            self.bindable().push(whole);
        }
        Ok(())
    }

    /// The registrations that windows are bound to, as they are now.
    pub(crate) fn windowed(&self) -> Vec<Arc<P::Registration>> {
        self.bindable().clone()
    }

    fn bindable(&self) -> std::sync::MutexGuard<'_, Vec<Arc<P::Registration>>> {
        // The list is only ever added to, so a panic elsewhere leaves it sound.
        self.bindable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The registration of `list` that has a range, whole.
pub(crate) fn registration_of<R: Registration>(
    list: &[Arc<R>],
    address: usize,
    len: usize,
) -> Option<&R> {
    list.iter()
        .map(|one| &**one)
        .find(|one| one.address() <= address && address + len <= one.address() + one.bytes())
}

#[derive(Debug)]
struct Known<P: Provider> {
    arenas: Vec<Arc<Arena>>,
    devices: Vec<(DeviceIndex, Arc<DeviceMemory<P>>)>,
}

/// All memory of a transport.
#[derive(Debug)]
pub(crate) struct HostMemory<P: Provider> {
    staging: Arc<Arena>,
    keys: KeyUse,
    known: Mutex<Known<P>>,
}

impl<P: Provider> HostMemory<P> {
    pub(crate) fn new(options: &RdmaOptions) -> Result<Self, HostError> {
        let staging = Arena::new(ArenaConfig {
            bytes: options.staging_bytes,
            pages: PagePolicy::Ordinary,
            max_transfer: STAGING_PIECE_MAX_BYTES,
        })
        .map_err(HostError::StagingMemory)?;
        Ok(Self {
            known: Mutex::new(Known {
                arenas: vec![Arc::clone(&staging)],
                devices: Vec::new(),
            }),
            staging,
            keys: options.keys,
        })
    }

    /// Memory for capsules and admin data.
    pub(crate) fn staging(&self) -> &Arc<Arena> {
        &self.staging
    }

    /// Registers an arena with every device that is in use, and with those that will be. Again it
    /// does nothing.
    pub(crate) fn attach(&self, arena: &Arc<Arena>) -> Result<(), HostError> {
        let mut known = self.known();
        if known.arenas.iter().any(|one| Arc::ptr_eq(one, arena)) {
            return Ok(());
        }
        for (_, memory) in &known.devices {
            memory.attach(arena)?;
        }
        known.arenas.push(Arc::clone(arena));
        Ok(())
    }

    /// The memory on a device, registered if it is not.
    pub(crate) fn on(&self, device: &P::Device) -> Result<Arc<DeviceMemory<P>>, HostError> {
        let mut known = self.known();
        let index = device.index();
        if let Some((_, memory)) = known.devices.iter().find(|(one, _)| *one == index) {
            return Ok(Arc::clone(memory));
        }
        let domain = device.create_domain().map_err(|source| HostError::Rdma {
            step: "creating a protection domain",
            source,
        })?;
        let memory = Arc::new(DeviceMemory::new(domain, self.keys));
        for arena in &known.arenas {
            memory.attach(arena)?;
        }
        known.devices.push((index, Arc::clone(&memory)));
        Ok(memory)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known<P>> {
        // Both lists are only ever added to, so a panic elsewhere leaves them sound.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
