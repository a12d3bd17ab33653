//! The queue of one namespace on a queue pair: the [`block`] crate's device queue.

use std::cell::RefCell;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use block::{
    AtomicWrites, CompletionBatch, CopyLimits, CopyOrigin, CopySource, DataPath, DeviceError,
    DeviceQueue, Drain, Geometry, QueueCounters, Refusal, Request, SharedQueues, check_copy,
    check_copy_from,
};

use hugemem::{DeviceLease, DeviceMemory};

use crate::identity::{NamespaceStatus, StatusCell};
use crate::pair::{NamespaceLimits, Pair};

/// A [`DeviceQueue`] of one namespace.
pub(crate) struct NamespaceQueue {
    pub(crate) pair: Rc<RefCell<Pair>>,
    pub(crate) geometry: Geometry,
    pub(crate) namespace_limits: NamespaceLimits,
    pub(crate) data_path: DataPath,
    pub(crate) status: Arc<StatusCell>,
    pub(crate) counters: QueueCounters,
    pub(crate) in_flight: usize,
    pub(crate) depth: usize,
    /// Index among the pair's queues.
    pub(crate) index: u8,
    pub(crate) closing: bool,
    pub(crate) descriptor: Option<OwnedFd>,
    /// Key of the pair in `shared`.
    pub(crate) drive: u64,
    /// Where the queues of this reactor find the pair.
    pub(crate) shared: SharedQueues,
}

impl NamespaceQueue {
    /// The reason why every request fails, if there is one.
    #[inline]
    fn rejection(&self) -> Option<DeviceError> {
        if self.closing {
            return Some(DeviceError::Removed);
        }
        if self.status.is_usable() {
            return None;
        }
        self.unusable_error()
    }

    #[cold]
    fn unusable_error(&self) -> Option<DeviceError> {
        match self.status.get() {
            NamespaceStatus::Usable => None,
            NamespaceStatus::Changed | NamespaceStatus::Removed => Some(DeviceError::Removed),
        }
    }
}

impl DeviceQueue for NamespaceQueue {
    #[inline]
    fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        if let Some(error) = self.rejection() {
            return Err(Refusal::Never(request, error));
        }
        if let Err(error) = request.check(&self.geometry, false) {
            return Err(Refusal::Never(request, error));
        }
        if self.in_flight == self.depth {
            return Err(Refusal::Later(request));
        }
        let mut pair = self.pair.borrow_mut();
        pair.submit(self.index, &self.namespace_limits, request)?;
        self.in_flight += 1;
        Ok(())
    }

    fn device_memory(&self) -> Option<Arc<DeviceMemory>> {
        self.pair.borrow().data_memory.clone()
    }

    fn data_path(&self) -> DataPath {
        self.data_path
    }

    fn may_split(&self, blocks: u32) -> bool {
        // Longer ones are split anyway.
        blocks > self.namespace_limits.part_blocks || self.geometry.atomic == AtomicWrites::BLOCK
    }

    fn blocks_in(&self, memory: &Arc<DeviceMemory>) -> u32 {
        if !self.pair.borrow().reaches(memory) {
            return 0;
        }
        let fit = memory.slice_bytes() >> self.namespace_limits.shift;
        let fit = u32::try_from(fit).unwrap_or(u32::MAX);
        fit.min(self.namespace_limits.part_blocks)
    }

    fn submit_in_device(
        &mut self,
        request: Request,
        lease: &mut DeviceLease,
        offset: usize,
    ) -> Result<(), Refusal> {
        if let Some(error) = self.rejection() {
            return Err(Refusal::Never(request, error));
        }
        if let Err(error) = request.check_in_device(&self.geometry) {
            return Err(Refusal::Never(request, error));
        }
        if self.in_flight == self.depth {
            return Err(Refusal::Later(request));
        }
        let mut pair = self.pair.borrow_mut();
        pair.submit_in_device(self.index, &self.namespace_limits, request, (lease, offset))?;
        self.in_flight += 1;
        Ok(())
    }

    fn copy_limits(&self) -> Option<CopyLimits> {
        match self.data_path {
            DataPath::Best => self.namespace_limits.copy,
            DataPath::Host | DataPath::DeviceMemory => None,
        }
    }

    fn submit_copy(
        &mut self,
        request: Request,
        sources: &[CopySource],
        list_at: usize,
    ) -> Result<(), Refusal> {
        if let Some(error) = self.rejection() {
            return Err(Refusal::Never(request, error));
        }
        let Some(limits) = self.namespace_limits.copy else {
            return Err(Refusal::Never(request, DeviceError::Unsupported));
        };
        if let Err(error) = check_copy(&request, sources, list_at, (&self.geometry, &limits)) {
            return Err(Refusal::Never(request, error));
        }
        if self.in_flight == self.depth {
            return Err(Refusal::Later(request));
        }
        let mut pair = self.pair.borrow_mut();
        let copy = (sources, list_at);
        pair.submit_copy(self.index, &self.namespace_limits, request, copy, None)?;
        self.in_flight += 1;
        Ok(())
    }

    fn copy_origin(&self) -> Option<CopyOrigin> {
        match self.rejection() {
            Some(_) => None,
            None => self
                .namespace_limits
                .copy_origin(self.drive, &self.geometry),
        }
    }

    fn submit_copy_from(
        &mut self,
        request: Request,
        origin: &CopyOrigin,
        copy: (&[CopySource], usize),
    ) -> Result<(), Refusal> {
        if let Some(error) = self.rejection() {
            return Err(Refusal::Never(request, error));
        }
        let limits = self.copy_origin().and_then(|own| origin.limits_to(&own));
        let Some(limits) = limits else {
            return Err(Refusal::Never(request, DeviceError::Unsupported));
        };
        if let Err(error) = check_copy_from(&request, copy, origin, (&self.geometry, &limits)) {
            return Err(Refusal::Never(request, error));
        }
        if self.in_flight == self.depth {
            return Err(Refusal::Later(request));
        }
        let mut pair = self.pair.borrow_mut();
        let snsid = Some(origin.namespace);
        pair.submit_copy(self.index, &self.namespace_limits, request, copy, snsid)?;
        self.in_flight += 1;
        Ok(())
    }

    fn give_up(&mut self, is_unwanted: &mut dyn FnMut(u64) -> bool) {
        self.pair.borrow_mut().give_up(self.index, is_unwanted);
    }

    fn abandon(&mut self, is_overdue: &mut dyn FnMut(u64) -> bool) {
        self.pair.borrow_mut().abandon(self.index, is_overdue);
    }

    #[inline]
    fn flush(&mut self) {
        self.pair.borrow_mut().flush();
    }

    #[inline]
    fn poll(&mut self, completions: &mut CompletionBatch) -> usize {
        let mut pair = self.pair.borrow_mut();
        let count = pair.poll(self.index, completions, &self.counters);
        self.in_flight -= count;
        count
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn absences(&self) -> u32 {
        self.pair.borrow().absences
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        crate::pair::borrow(self.descriptor.as_ref())
    }

    fn has_ready(&self) -> bool {
        self.pair.borrow().has_ready(self.index)
    }

    fn prepare_sleep(&mut self) -> bool {
        self.pair.borrow_mut().prepare_sleep(self.index)
    }

    fn drain(&mut self) -> Drain {
        self.closing = true;
        match self.in_flight {
            0 => Drain::Done,
            left => Drain::Outstanding(left),
        }
    }
}

impl Drop for NamespaceQueue {
    fn drop(&mut self) {
        if self.pair.borrow_mut().unregister_queue(self.index) {
            self.shared.remove::<RefCell<Pair>>(self.drive);
        }
    }
}
