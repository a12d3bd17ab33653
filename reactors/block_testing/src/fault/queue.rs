//! One queue of a device with injected faults.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hugemem::Data;

use super::{Effect, RunningPlan};
use block::{
    Completion, CompletionBatch, DeviceError, DeviceQueue, Drain, Geometry, Refusal, Request,
};
use reactors::sim::Seeded;

/// A request in the inner queue, where its tag is the slot number.
#[derive(Clone, Copy)]
struct Slot {
    tag: u64,
    /// The completion is held until the number of releases exceeds this.
    held_at: Option<u64>,
}

pub(super) struct FaultQueue {
    inner: Box<dyn DeviceQueue>,
    running: Arc<RunningPlan>,
    seeded: Seeded,
    slots: Box<[Option<Slot>]>,
    free: Vec<u32>,
    /// Held completions with the number of releases at that time.
    held: VecDeque<(u64, Completion)>,
    ready: VecDeque<Completion>,
    depth: usize,
    geometry: Geometry,
    closing: bool,
}

impl FaultQueue {
    pub(super) fn new(
        inner: Box<dyn DeviceQueue>,
        running: Arc<RunningPlan>,
        seeded: Seeded,
        depth: usize,
        geometry: Geometry,
    ) -> Self {
        Self {
            inner,
            running,
            seeded,
            slots: vec![None; depth].into_boxed_slice(),
            free: (0..depth as u32).rev().collect(),
            held: VecDeque::with_capacity(depth),
            ready: VecDeque::with_capacity(depth),
            depth,
            geometry,
            closing: false,
        }
    }

    /// Submits a request with its slot number as tag, and restores the tag if it is refused.
    fn pass_on(&mut self, mut request: Request, held_at: Option<u64>) -> Result<(), Refusal> {
        let Some(index) = self.free.pop() else {
            return Err(Refusal::Later(request));
        };
        let tag = std::mem::replace(&mut request.tag, u64::from(index));
        match self.inner.submit(request) {
            Ok(()) => {
                self.slots[index as usize] = Some(Slot { tag, held_at });
                Ok(())
            }
            Err(refusal) => {
                self.free.push(index);
                Err(match refusal {
                    Refusal::Later(request) => Refusal::Later(Request { tag, ..request }),
                    Refusal::Never(request, error) => {
                        Refusal::Never(Request { tag, ..request }, error)
                    }
                })
            }
        }
    }

    fn collect(&mut self) {
        let mut batch = CompletionBatch::new();
        while self.inner.poll(&mut batch) > 0 {
            for mut completion in batch.drain(..) {
                let slot = self.slots[completion.tag as usize].take();
                let slot = slot.expect("the inner queue completes what it was given, once");
                self.free.push(completion.tag as u32);
                completion.tag = slot.tag;
                match slot.held_at {
                    Some(held_at) => self.held.push_back((held_at, completion)),
                    None => self.ready.push_back(completion),
                }
            }
        }
    }

    /// Delivers released completions, or all if the device is removed.
    fn deliver_released(&mut self) {
        let releases = self.running.releases.load(Ordering::Acquire);
        let removed = self.running.is_removed();
        for _ in 0..self.held.len() {
            let Some((held_at, completion)) = self.held.pop_front() else {
                return;
            };
            if removed || releases > held_at {
                self.ready.push_back(completion);
            } else {
                self.held.push_back((held_at, completion));
            }
        }
    }
}

impl DeviceQueue for FaultQueue {
    fn can_borrow_read(&self, lba: u64, blocks: u32) -> bool {
        self.inner.can_borrow_read(lba, blocks)
    }

    /// Only while no rule is armed, because no rule has an effect on it.
    fn write_inline(&mut self, lba: u64, data: &[u8]) -> bool {
        let is_usual = !self.closing && !self.running.is_removed() && !self.running.has_armed();
        is_usual && self.inner.write_inline(lba, data)
    }

    fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        if self.closing || self.running.is_removed() {
            return Err(Refusal::Never(request, DeviceError::Removed));
        }
        if let Err(error) = request.check(&self.geometry, true) {
            return Err(Refusal::Never(request, error));
        }
        if self.in_flight() >= self.depth {
            return Err(Refusal::Later(request));
        }
        match self.running.effect_on(&request, &mut self.seeded) {
            None => self.pass_on(request, None),
            Some(Effect::Hold) => {
                let releases = self.running.releases.load(Ordering::Acquire);
                self.pass_on(request, Some(releases))
            }
            Some(Effect::Fail(error)) => {
                let data = request.data.map(Data::Lease);
                self.ready.push_back(Completion {
                    tag: request.tag,
                    result: Err(error),
                    data,
                });
                Ok(())
            }
            Some(Effect::Later) => Err(Refusal::Later(request)),
            Some(Effect::Remove) => {
                self.running.removed.store(true, Ordering::Release);
                Err(Refusal::Never(request, DeviceError::Removed))
            }
        }
    }

    fn give_up(&mut self, is_unwanted: &mut dyn FnMut(u64) -> bool) {
        let Self { inner, slots, .. } = self;
        inner.give_up(&mut |index| {
            let slot = slots.get(index as usize).copied().flatten();
            slot.is_some_and(|slot| is_unwanted(slot.tag))
        });
    }

    /// Also ends held completions.
    fn abandon(&mut self, is_overdue: &mut dyn FnMut(u64) -> bool) {
        let Self { inner, slots, .. } = self;
        inner.abandon(&mut |index| {
            let slot = slots.get(index as usize).copied().flatten();
            slot.is_some_and(|slot| is_overdue(slot.tag))
        });
        for _ in 0..self.held.len() {
            let Some((held_at, completion)) = self.held.pop_front() else {
                return;
            };
            if is_overdue(completion.tag) {
                self.ready.push_back(completion);
            } else {
                self.held.push_back((held_at, completion));
            }
        }
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn poll(&mut self, completions: &mut CompletionBatch) -> usize {
        self.collect();
        self.deliver_released();
        let removed = self.running.is_removed();
        let count = completions.remaining_capacity().min(self.ready.len());
        completions.extend(self.ready.drain(..count).map(|mut completion| {
            if removed {
                completion.result = Err(DeviceError::Removed);
                // Only a successful read has a borrow.
                completion.data = completion
                    .data
                    .filter(|data| matches!(data, Data::Lease(_)));
            }
            completion
        }));
        count
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.held.len() + self.ready.len()
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wake_source()
    }

    fn has_ready(&self) -> bool {
        // No descriptor signals a release.
        !self.ready.is_empty() || !self.held.is_empty() || self.inner.has_ready()
    }

    fn prepare_sleep(&mut self) -> bool {
        !self.has_ready() && self.inner.prepare_sleep()
    }

    fn drain(&mut self) -> Drain {
        self.closing = true;
        let _ = self.inner.drain();
        match self.in_flight() {
            0 => Drain::Done,
            left => Drain::Outstanding(left),
        }
    }
}
