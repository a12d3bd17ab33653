//! An open drive for the control plane, and its namespaces as block devices.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::{
    CopyOrigin, DataPath, Device, DeviceIdentity, DeviceQueue, ERROR_RECORDS_MAX, ErrorRecord,
    Geometry, Health, HealthCounters, HealthState, OpenError, QueueOptions,
};
use hugemem::DeviceMemory;
use nvme_spec::NSID_BROADCAST;

use crate::backing::DeviceBacking;
use crate::error::{DriveError, GoneReason, Unusable};
use crate::identity::{Identity, Limits, Namespace, NamespaceStatus, zeroes_blocks};
use crate::memory::ZEROES_BYTES_MAX;
use crate::pair::{NamespaceLimits, Pair};
use crate::queue::NamespaceQueue;
use crate::shared::{DriveCounters, FunctionReset, Phase, Shared};

/// The state of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DriveState {
    /// The start sequence runs.
    Starting,
    /// The drive serves requests.
    Ready,
    /// The controller is being reset after a fault; requests wait.
    Resetting,
    /// Requests in flight complete, because the system requests the drive back or the appliance
    /// stops.
    Draining,
    /// The drive is gone for this reason. Every request is refused until the drive is
    /// [reattached](Drive::reattach).
    Gone(GoneReason),
    /// The drive was shut down because its reactor stopped, or because it was
    /// [closed](Drive::close).
    Closed,
}

/// A namespace of a drive.
#[derive(Clone, Debug)]
pub struct NamespaceInfo {
    /// Namespace identifier on this drive.
    pub nsid: u32,
    /// Its geometry, or the reason why it cannot be used.
    pub geometry: Result<Geometry, Unusable>,
    /// Whether it is unchanged since the drive was opened.
    pub status: NamespaceStatus,
    /// IEEE Extended Unique Identifier, big-endian.
    pub eui64: Option<[u8; 8]>,
    /// Namespace Globally Unique Identifier, big-endian.
    pub nguid: Option<[u8; 16]>,
    /// UUID, RFC 9562 byte order.
    pub uuid: Option<[u8; 16]>,
}

/// An open drive. For the control plane: methods may lock a mutex.
pub struct Drive {
    shared: Arc<Shared>,
}

impl Drive {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    fn identity(&self) -> &Identity {
        self.shared
            .identity
            .get()
            .expect("a drive is made once it is identified")
    }

    /// The name from the configuration.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.options.name
    }

    /// The model number.
    #[must_use]
    pub fn model(&self) -> &str {
        &self.identity().controller.model
    }

    /// The serial number.
    #[must_use]
    pub fn serial(&self) -> &str {
        &self.identity().controller.serial
    }

    /// The firmware revision at the first start.
    #[must_use]
    pub fn firmware(&self) -> &str {
        &self.identity().controller.firmware
    }

    /// Maximum number of commands in flight per reactor: the configured number, limited by the
    /// drive.
    #[must_use]
    pub fn queue_depth(&self) -> usize {
        usize::from(self.identity().limits.slots)
    }

    /// The current state.
    #[must_use]
    pub fn state(&self) -> DriveState {
        let control = self.shared.control();
        match self.shared.state_word().phase() {
            Phase::Starting => DriveState::Starting,
            Phase::Active => DriveState::Ready,
            Phase::Draining => DriveState::Draining,
            Phase::Quiesce | Phase::Stopped => DriveState::Resetting,
            Phase::Gone => match control.gone {
                Some(reason) => DriveState::Gone(reason),
                None => DriveState::Closed,
            },
        }
    }

    /// Whether it is ready and every reactor knows that: one that does not refuses requests as before.
    #[must_use]
    pub fn is_ready_everywhere(&self) -> bool {
        self.state() == DriveState::Ready && self.shared.all_acknowledged()
    }

    /// The namespaces that were active when the drive was opened, at most 128.
    #[must_use]
    pub fn namespaces(&self) -> Vec<NamespaceInfo> {
        let info = |namespace: &Namespace| NamespaceInfo {
            nsid: namespace.nsid,
            geometry: namespace.geometry,
            status: namespace.status.get(),
            eui64: namespace.eui64,
            nguid: namespace.nguid,
            uuid: namespace.uuid,
        };
        self.identity().namespaces.iter().map(info).collect()
    }

    /// Opens a namespace as a block device. [`QueueOptions::core`] of its queues is the reactor's
    /// index.
    ///
    /// # Errors
    /// [`DriveError::NoNamespace`] and [`DriveError::Namespace`].
    pub fn device(
        &self,
        nsid: u32,
        name: &str,
        uuid: [u8; 16],
    ) -> Result<Arc<dyn Device>, DriveError> {
        self.device_on_path(nsid, name, uuid, DataPath::Host)
    }

    /// As [`device`](Self::device). The data may take its way by this path.
    ///
    /// # Errors
    /// [`DriveError::NoNamespace`] and [`DriveError::Namespace`].
    pub fn device_on_path(
        &self,
        nsid: u32,
        name: &str,
        uuid: [u8; 16],
        data_path: DataPath,
    ) -> Result<Arc<dyn Device>, DriveError> {
        let identity = self.identity();
        let namespace = identity
            .namespace(nsid)
            .ok_or(DriveError::NoNamespace { nsid })?;
        let geometry = namespace
            .geometry
            .map_err(|reason| DriveError::Namespace { nsid, reason })?;
        let namespace_limits = namespace_limits(namespace, geometry, &identity.limits);
        Ok(Arc::new(NamespaceDevice {
            name: name.to_owned(),
            identity: DeviceIdentity {
                uuid,
                model: self.model().to_owned(),
            },
            geometry,
            namespace_limits,
            data_path,
            namespace: namespace.clone(),
            counters: Arc::default(),
            shared: Arc::clone(&self.shared),
        }))
    }

    /// Sets the function that wakes a reactor by index. Reactors and the owner call it.
    pub fn set_waker(&self, waker: Box<dyn Fn(usize) + Send + Sync>) {
        self.shared.set_waker(waker);
    }

    /// Counters since the drive was opened.
    #[must_use]
    pub fn counters(&self) -> DriveCounters {
        self.shared.counters()
    }

    /// Whether the drive is gone and its backing was dropped everywhere: the control thread may
    /// then open the function again and [`reattach`](Self::reattach) it.
    #[must_use]
    pub fn wants_reopen(&self) -> bool {
        let control = self.shared.control();
        control.gone.is_some()
            && control.backing.is_none()
            && control.reattached.is_none()
            && !control.shut_down
            && self.shared.all_acknowledged()
    }

    /// Gives a gone drive a new backing. The owner starts it at its next tick. It must be the same
    /// drive (model and serial number) with at least the same command support and limits; otherwise
    /// the drive is gone again, with [`GoneReason::Changed`]. A namespace that differs is refused
    /// individually.
    ///
    /// # Errors
    /// [`DriveError::InUse`] unless [`wants_reopen`](Self::wants_reopen).
    pub fn reattach(&self, backing: Arc<dyn DeviceBacking>) -> Result<(), DriveError> {
        if !self.wants_reopen() {
            return Err(DriveError::InUse);
        }
        self.shared
            .release_requested
            .store(false, Ordering::Release);
        self.shared.control().reattached = Some(backing);
        self.shared.wake_owner();
        Ok(())
    }

    /// Requests the owner to close the drive: from its next tick on it refuses requests, lets those
    /// in flight complete, shuts the drive down so that it writes its cache, and releases the
    /// backing. Every wait is bounded. A drive that is being reset is closed afterwards.
    pub fn close(&self) {
        self.shared.close_requested.store(true, Ordering::Release);
        self.shared.wake_owner();
    }

    /// Requests the owner to release the drive for another process: from its next tick on it refuses
    /// requests, lets those in flight complete, shuts the drive down so that it writes its cache, and
    /// releases the backing. Every wait is bounded. [`wants_reopen`](Self::wants_reopen) is true then.
    /// A drive that is being reset is released afterwards. [`reattach`](Self::reattach) ends it.
    pub fn release(&self) {
        self.shared.release_requested.store(true, Ordering::Release);
        self.shared.wake_owner();
    }

    /// Whether the owner has shut the drive down and released its backing. The owner may then be
    /// dropped without accessing the drive.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        let control = self.shared.control();
        control.shut_down && control.backing.is_none() && control.reattached.is_none()
    }

    /// Whether the drive cannot be stopped through its registers, so that the control thread has to
    /// call [`function_reset`](Self::function_reset).
    #[must_use]
    pub fn function_reset_needed(&self) -> bool {
        self.shared.control().function_reset == FunctionReset::Needed
    }

    /// Resets the function, which may take 100 ms or more: never call it on a reactor.
    ///
    /// # Errors
    /// [`DriveError::InUse`] if no reset is needed, [`DriveError::FunctionReset`].
    pub fn function_reset(&self) -> Result<(), DriveError> {
        let backing = {
            let control = self.shared.control();
            let needed = control.function_reset == FunctionReset::Needed;
            control.backing.clone().filter(|_| needed)
        };
        let backing = backing.ok_or(DriveError::InUse)?;
        let outcome = backing.reset_function();
        {
            let mut control = self.shared.control();
            // The owner may have given up meanwhile.
            if control.function_reset == FunctionReset::Needed {
                control.function_reset = match outcome {
                    Ok(()) => FunctionReset::Done,
                    Err(_) => FunctionReset::Failed,
                };
            }
        }
        self.shared.wake_owner();
        outcome.map_err(DriveError::FunctionReset)
    }
}

/// Limits of a namespace's requests.
fn namespace_limits(namespace: &Namespace, geometry: Geometry, limits: &Limits) -> NamespaceLimits {
    let block_size = geometry.block_size;
    let written = ZEROES_BYTES_MAX.min(limits.part_bytes as usize) as u32;
    NamespaceLimits {
        nsid: namespace.nsid,
        shift: block_size.trailing_zeros() as u8,
        part_blocks: limits.part_bytes / block_size,
        compare: limits.compare,
        scratch_bytes: limits.part_bytes,
        zeroes_blocks: limits
            .write_zeroes
            .then(|| zeroes_blocks(limits, block_size)),
        written_blocks: written / block_size,
        zeroes_deallocate: namespace.zeroes_deallocate,
        deallocate_blocks: limits.deallocate_blocks,
        copy: namespace.copy,
        copy_across: namespace.copy_across,
    }
}

impl NamespaceLimits {
    /// The namespace as the source of copies to other namespaces of its drive, if there are any.
    pub(crate) fn copy_origin(&self, drive: u64, geometry: &Geometry) -> Option<CopyOrigin> {
        Some(CopyOrigin {
            drive,
            namespace: self.nsid,
            block_size: geometry.block_size,
            block_count: geometry.block_count,
            limits: self.copy_across?,
        })
    }
}

/// One namespace as a block device.
struct NamespaceDevice {
    name: String,
    identity: DeviceIdentity,
    geometry: Geometry,
    namespace_limits: NamespaceLimits,
    data_path: DataPath,
    namespace: Namespace,
    counters: Arc<HealthCounters>,
    shared: Arc<Shared>,
}

impl NamespaceDevice {
    fn state(&self) -> HealthState {
        match (
            self.shared.state_word().phase(),
            self.namespace.status.get(),
        ) {
            (Phase::Gone | Phase::Draining, _)
            | (_, NamespaceStatus::Changed | NamespaceStatus::Removed) => HealthState::Removed,
            (Phase::Starting | Phase::Quiesce | Phase::Stopped, NamespaceStatus::Usable) => {
                HealthState::Resetting
            }
            (Phase::Active, NamespaceStatus::Usable) if self.geometry.read_only => {
                HealthState::ReadOnly
            }
            (Phase::Active, NamespaceStatus::Usable) => HealthState::Ready,
        }
    }
}

impl Device for NamespaceDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn identity(&self) -> &DeviceIdentity {
        &self.identity
    }

    fn health(&self) -> Health {
        let health = self.counters.sum(self.state());
        let Some(smart) = self.shared.control().smart else {
            return health;
        };
        Health {
            temperature_kelvin: smart.temperature_kelvin,
            available_spare_percent: Some(smart.available_spare_percent),
            used_percent: Some(smart.used_percent),
            drive: Some(smart.health),
            ..health
        }
    }

    fn error_log(&self, records: &mut Vec<ErrorRecord>) {
        let control = self.shared.control();
        let own = [self.namespace.nsid, NSID_BROADCAST, 0];
        let entries = control.errors.iter();
        let entries = entries.filter(|entry| own.contains(&entry.nsid));
        records.extend(entries.map(|entry| entry.record).take(ERROR_RECORDS_MAX));
    }

    fn device_memory(&self) -> Option<Arc<DeviceMemory>> {
        let control = self.shared.control();
        control.drive_access.as_ref()?.data_memory.clone()
    }

    fn reaches(&self, memory: &Arc<DeviceMemory>) -> bool {
        let control = self.shared.control();
        let Some(access) = &control.drive_access else {
            return false;
        };
        let own = access.data_memory.as_ref();
        let space = access.backing.address_space();
        own.is_some_and(|it| Arc::ptr_eq(it, memory)) || memory.is_shared_with(space)
    }

    fn copy_origin(&self) -> Option<CopyOrigin> {
        self.namespace_limits
            .copy_origin(self.shared.id, &self.geometry)
    }

    fn open_queue(&self, options: QueueOptions) -> Result<Box<dyn DeviceQueue>, OpenError> {
        let (depth, max) = (options.depth, block::QUEUE_DEPTH_MAX);
        if !(1..=max).contains(&depth) {
            return Err(OpenError::Depth { depth, max });
        }
        let reactor = options.core;
        assert!(
            reactor < self.shared.options.reactors,
            "reactor {reactor} of {}",
            self.shared.options.reactors
        );
        let (Some(identity), Some(memory)) = (self.shared.identity.get(), self.shared.memory.get())
        else {
            return Err(OpenError::Removed);
        };
        options
            .shared
            .retain(|pair: &RefCell<Pair>| !pair.borrow().is_left_over());
        let pair = options.shared.get_or_insert_with(self.shared.id, || {
            let memory = Arc::clone(&memory.pairs[reactor]);
            let pair = Pair::new(Arc::clone(&self.shared), reactor, identity.limits, memory);
            RefCell::new(pair)
        });
        let bytes = (self.namespace_limits.scratch_bytes as usize).min(options.pool.max_transfer());
        let (index, descriptor) = {
            let mut pair = pair.borrow_mut();
            if !pair.provide_scratch(&options.pool, bytes) {
                return Err(OpenError::NoMemory { bytes });
            }
            let index = pair.register_queue().ok_or(OpenError::Removed)?;
            (index, pair.descriptor())
        };
        let namespace_limits = NamespaceLimits {
            scratch_bytes: bytes as u32,
            ..self.namespace_limits
        };
        Ok(Box::new(NamespaceQueue {
            pair,
            data_path: self.data_path,
            geometry: self.geometry,
            namespace_limits,
            status: Arc::clone(&self.namespace.status),
            counters: self.counters.open_queue(),
            in_flight: 0,
            depth,
            index,
            closing: false,
            descriptor,
            drive: self.shared.id,
            shared: options.shared,
        }))
    }
}
