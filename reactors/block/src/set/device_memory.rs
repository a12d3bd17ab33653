//! Requests of clients whose data is in memory of devices.

use hugemem::{DeviceLease, DeviceMemory};

use super::{ClientId, DeviceMask, DeviceSet, places};
use crate::copying::{CopyLimits, CopySource};
use crate::device::DataPath;
use crate::error::DeviceError;
use crate::request::{Refusal, Request};

/// Why devices have no memory of one of them in common. The last one says most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoDeviceMemory {
    /// None of them has memory that all of them reach.
    Unreachable,
    /// Whoever moves the data further cannot access it.
    Unusable,
    /// One of them accepts no request of this length, or a slice has no room for it.
    TooSmall,
    /// No slice is free.
    Exhausted,
}

impl DeviceSet {
    /// Whether the data of all these devices may be in memory of devices
    /// ([`DeviceQueue::data_path`]).
    #[inline]
    #[must_use]
    pub fn allow_device_memory(&self, devices: DeviceMask) -> bool {
        devices & !self.on_device_path.get() == 0
    }

    /// Takes memory of the device at `place` for the data of a request of its own: of `blocks` blocks
    /// and `bytes` bytes, in `slices_max` slices at most. `is_usable`: whether who moves the data
    /// between that memory and the host can.
    ///
    /// # Errors
    /// Why there is none.
    pub fn take_own_memory(
        &self,
        place: usize,
        (blocks, bytes): (u32, u32),
        slices_max: u32,
        is_usable: impl FnOnce(&DeviceMemory) -> bool,
    ) -> Result<DeviceLease, NoDeviceMemory> {
        let queues = self.queues.borrow();
        let queue = queues.get(place).ok_or(NoDeviceMemory::Unreachable)?;
        let (memory, most) = queue.own_memory().ok_or(NoDeviceMemory::Unreachable)?;
        if !is_usable(&memory) {
            return Err(NoDeviceMemory::Unusable);
        }
        // A slice has whole blocks, and a device has 4 GiB blocks at most.
        let block_bytes = bytes / blocks.max(1);
        let in_slice = memory.slice_bytes() as u64 / u64::from(block_bytes.max(1));
        let slices = bytes.div_ceil(memory.slice_bytes() as u32);
        let fits = u64::from(most) >= in_slice.min(u64::from(blocks));
        if !fits || slices > slices_max || (slices > 1 && !queue.may_split(blocks)) {
            return Err(NoDeviceMemory::TooSmall);
        }
        memory.take_slices(slices).ok_or(NoDeviceMemory::Exhausted)
    }

    /// Takes memory of one of these devices, in which all of them may have data of requests of at
    /// least `blocks` blocks. Returns the maximum length of such a request in blocks, too.
    ///
    /// # Errors
    /// Why there is none.
    pub fn take_device_memory(
        &self,
        devices: DeviceMask,
        blocks: u32,
    ) -> Result<(DeviceLease, u32), NoDeviceMemory> {
        let queues = self.queues.borrow();
        let queue = |place| queues.get(place);
        let mut why = NoDeviceMemory::Unreachable;
        for owner in places(devices).filter_map(queue) {
            let Some(memory) = owner.device_memory() else {
                continue;
            };
            let most =
                places(devices).map(|place| queue(place).map_or(0, |it| it.blocks_in(&memory)));
            let most = most.min().unwrap_or(0);
            let other = match most {
                0 => NoDeviceMemory::Unreachable,
                _ if most < blocks => NoDeviceMemory::TooSmall,
                _ => match memory.take() {
                    Some(lease) => return Ok((lease, most)),
                    None => NoDeviceMemory::Exhausted,
                },
            };
            why = why.max(other);
        }
        Err(why)
    }

    /// Submits a client's request whose data is in memory of a device, to the device at `place`, as
    /// [`DeviceQueue::submit_in_device`] does. Returns false if the device does not take it now, or
    /// others wait for it, unless the request `is_overdue`: it is dropped, and waits in no queue.
    ///
    /// # Errors
    /// The device can never execute it; the request is dropped.
    #[inline]
    pub fn submit_in_device(
        &self,
        client: ClientId,
        place: usize,
        mut request: Request,
        (lease, offset): (&mut DeviceLease, usize),
        is_overdue: bool,
    ) -> Result<bool, DeviceError> {
        request.tag = client.tag(request.tag);
        if !is_overdue && self.with_waiting.get() & 1 << place != 0 {
            return Ok(false);
        }
        let mut queues = self.queues.borrow_mut();
        let queue = queues.get_mut(place).ok_or(DeviceError::Removed)?;
        match queue.submit_in_device(request, lease, offset) {
            Ok(()) => {
                self.mark_busy(place);
                Ok(true)
            }
            Err(Refusal::Later(_)) => Ok(false),
            Err(Refusal::Never(_, error)) => Err(error),
        }
    }

    /// What the device at `destination` copies by itself in place of a write, from itself or from the one
    /// at `source`; `None` if nothing, or one of them takes no such way
    /// ([`DeviceQueue::data_path`](crate::DeviceQueue::data_path)).
    pub fn copy_limits(&self, source: usize, destination: usize) -> Option<CopyLimits> {
        let queues = self.queues.borrow();
        // They are there only if a copy keeps what the device promises about a write.
        let own = queues.get(destination)?.copy_limits()?;
        if source == destination {
            return Some(own);
        }
        let is_allowed = |place: usize| Some(queues.get(place)?.data_path() == DataPath::Best);
        let is_allowed = is_allowed(source)? && is_allowed(destination)?;
        is_allowed
            .then(|| self.copy_limits_between(source, destination))
            .flatten()
    }

    /// Submits a client's copy within the device at `place`, as [`DeviceQueue::submit_copy`] does. It
    /// waits in no queue.
    ///
    /// # Errors
    /// The device does not take it now, others wait for it, or it can never execute it.
    ///
    /// [`DeviceQueue::submit_copy`]: crate::DeviceQueue::submit_copy
    pub fn submit_copy(
        &self,
        client: ClientId,
        place: usize,
        mut request: Request,
        (sources, list_at): (&[CopySource], usize),
    ) -> Result<(), Refusal> {
        request.tag = client.tag(request.tag);
        if self.with_waiting.get() & 1 << place != 0 {
            return Err(Refusal::Later(request));
        }
        let mut queues = self.queues.borrow_mut();
        let Some(queue) = queues.get_mut(place) else {
            return Err(Refusal::Never(request, DeviceError::Removed));
        };
        queue.submit_copy(request, sources, list_at)?;
        self.mark_busy(place);
        Ok(())
    }

    /// What the device at `destination` copies by itself from the one at `source`, another one, whatever
    /// their data paths are; `None` if nothing.
    pub fn copy_limits_between(&self, source: usize, destination: usize) -> Option<CopyLimits> {
        let queues = self.queues.borrow();
        let origin = queues.get(source)?.copy_origin()?;
        origin.limits_to(&queues.get(destination)?.copy_origin()?)
    }

    /// Submits a client's copy from the device at `source` to the one at `destination`, as
    /// [`DeviceQueue::submit_copy_from`] does. It waits in no queue.
    ///
    /// # Errors
    /// As [`submit_copy`](Self::submit_copy).
    ///
    /// [`DeviceQueue::submit_copy_from`]: crate::DeviceQueue::submit_copy_from
    pub fn submit_copy_from(
        &self,
        client: ClientId,
        (source, destination): (usize, usize),
        mut request: Request,
        copy: (&[CopySource], usize),
    ) -> Result<(), Refusal> {
        request.tag = client.tag(request.tag);
        if self.with_waiting.get() & 1 << destination != 0 {
            return Err(Refusal::Later(request));
        }
        let mut queues = self.queues.borrow_mut();
        let origin = queues.get(source).and_then(|it| it.copy_origin());
        let (Some(origin), Some(queue)) = (origin, queues.get_mut(destination)) else {
            return Err(Refusal::Never(request, DeviceError::Unsupported));
        };
        queue.submit_copy_from(request, &origin, copy)?;
        self.mark_busy(destination);
        Ok(())
    }
}
