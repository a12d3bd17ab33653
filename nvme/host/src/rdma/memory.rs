//! The host's memory on each device: attached arenas, registered once, and the staging memory for
//! capsules and admin data.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use hugemem::{Arena, ArenaConfig, DmaDriver, DmaLease, Lease, PagePolicy};
use rdma::{
    Access, Device, DeviceIndex, Domain, DomainMemory, MemoryRange, Provider, QueuePair,
    Registration,
};

use crate::error::HostError;
use crate::rdma::{KeyMode, RdmaOptions};

/// Maximum bytes of one piece of staging memory: the longest log page read by one command.
const STAGING_PIECE_MAX_BYTES: usize = 1 << 20;

/// The host's DMA type, for memory posted to RDMA devices.
#[derive(Debug)]
pub(crate) enum HostDma {}

impl DmaDriver for HostDma {
    type Done = CommandDone;
}

/// Proof that neither the host's device nor, through a window, the target accesses the data of a
/// command any more.
#[derive(Debug)]
pub(crate) struct CommandDone(());

impl CommandDone {
    /// The response was received, the capsule was sent, and the command's window is closed.
    pub(crate) fn completed() -> Self {
        Self(())
    }

    /// No work request refers to the data.
    pub(crate) fn never_posted() -> Self {
        Self(())
    }

    /// The queue pair is destroyed.
    pub(crate) fn destroyed(queue_pair: &mut impl QueuePair) -> Result<Self, rdma::Error> {
        queue_pair.destroy().map(|()| Self(()))
    }
}

/// Data of a command.
pub(crate) trait CommandData: Sized {
    /// The type of the data while a device may access it.
    type Posted: Debug;
    /// The type of the memory that work requests refer to.
    type Memory: rdma::DeviceMemory;

    /// Length in bytes.
    fn bytes(&self) -> usize;

    /// Passes the data to the device.
    fn post(self) -> Self::Posted;

    /// The memory that work requests refer to.
    fn memory(posted: &Self::Posted) -> &Self::Memory;

    /// Takes the data back from the device.
    fn take_back(posted: Self::Posted, done: &CommandDone) -> Self;
}

impl CommandData for Lease {
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

/// Memory registered with one device.
#[derive(Debug)]
pub(crate) struct DeviceMemory<P: Provider> {
    pub(crate) shared: DomainMemory<P>,
    /// Registrations of whole regions that windows are bound to, if windows are used.
    bindable: Mutex<Vec<Arc<P::Registration>>>,
    keys: KeyMode,
}

impl<P: Provider> DeviceMemory<P> {
    fn new(domain: P::Domain, keys: KeyMode) -> Self {
        let access = match keys {
            KeyMode::Arena => Access::REMOTE,
            KeyMode::Windows => Access::WINDOWS,
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
        if self.keys == KeyMode::Windows {
            let range = MemoryRange::of_region(region, 0..region.len());
            let whole = self.shared.domain().register(range, Access::WINDOWS);
            let whole = Arc::new(whole.map_err(failed)?);
            self.bindable().push(whole);
        }
        Ok(())
    }

    /// The current registrations that windows are bound to.
    pub(crate) fn windowed(&self) -> Vec<Arc<P::Registration>> {
        self.bindable().clone()
    }

    fn bindable(&self) -> std::sync::MutexGuard<'_, Vec<Arc<P::Registration>>> {
        // The list only grows, so it is consistent even after a panic elsewhere.
        self.bindable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The registration of `list` that contains the whole range.
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
struct Attached<P: Provider> {
    arenas: Vec<Arc<Arena>>,
    devices: Vec<(DeviceIndex, Arc<DeviceMemory<P>>)>,
}

/// All memory of an RDMA transport.
#[derive(Debug)]
pub(crate) struct HostMemory<P: Provider> {
    staging: Arc<Arena>,
    keys: KeyMode,
    attached: Mutex<Attached<P>>,
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
            attached: Mutex::new(Attached {
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

    /// Registers an arena with every device in use, and with those used later. Does nothing if it
    /// is attached already.
    pub(crate) fn attach(&self, arena: &Arc<Arena>) -> Result<(), HostError> {
        let mut attached = self.attached();
        if attached.arenas.iter().any(|one| Arc::ptr_eq(one, arena)) {
            return Ok(());
        }
        for (_, memory) in &attached.devices {
            memory.attach(arena)?;
        }
        attached.arenas.push(Arc::clone(arena));
        Ok(())
    }

    /// The memory on a device. Registers it at the first call.
    pub(crate) fn on(&self, device: &P::Device) -> Result<Arc<DeviceMemory<P>>, HostError> {
        let mut attached = self.attached();
        let index = device.index();
        if let Some((_, memory)) = attached.devices.iter().find(|(one, _)| *one == index) {
            return Ok(Arc::clone(memory));
        }
        let domain = device.create_domain().map_err(|source| HostError::Rdma {
            step: "creating a protection domain",
            source,
        })?;
        let memory = Arc::new(DeviceMemory::new(domain, self.keys));
        for arena in &attached.arenas {
            memory.attach(arena)?;
        }
        attached.devices.push((index, Arc::clone(&memory)));
        Ok(memory)
    }

    fn attached(&self) -> std::sync::MutexGuard<'_, Attached<P>> {
        // Both lists only grow, so they are consistent even after a panic elsewhere.
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
