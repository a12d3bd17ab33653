//! The devices of a service, and their removal with all of their connections.

use std::sync::Arc;

use hugemem::{Arena, DmaBuffer};
use rdma::{
    CompletionQueue as _, Device as _, DeviceIndex, Domain as _, DomainMemory, MemoryMap, Provider,
    Token,
};
use reactors::Nanos;

use super::{OpenError, RdmaFileService};
use crate::endpoint::watch;
use crate::limits::{COMPLETIONS_MAX, DEVICES_MAX, ZEROES_BYTES_MAX};

/// A device that has or had a connection.
pub(super) struct DeviceState<P: Provider> {
    pub(super) completions: P::CompletionQueue,
    /// Entries of the completion queue that connections may use.
    pub(super) reserved: u32,
    pub(super) map: Arc<MemoryMap<P>>,
    pub(super) memory: Arc<DomainMemory<P>>,
    /// The bytes of holes in files.
    pub(super) zeroes: DmaBuffer,
}

impl<P: Provider> DeviceState<P> {
    fn new(memory: Arc<DomainMemory<P>>, arena: &Arc<Arena>) -> Result<Self, OpenError> {
        let domain = memory.domain();
        let limit = domain.device().limits().completion_queue_entries;
        let entries = COMPLETIONS_MAX.min(limit);
        Ok(Self {
            completions: domain.create_completion_queue(entries, Token(0))?,
            reserved: 0,
            map: memory.map(),
            zeroes: arena
                .dma_buffer(ZEROES_BYTES_MAX.min(arena.max_transfer()))
                .ok_or(OpenError::NoMemory)?,
            memory,
        })
    }
}

impl<P: Provider> RdmaFileService<P> {
    /// The place of a device. It is set up on first use.
    pub(super) fn device(&mut self, index: DeviceIndex) -> Result<usize, OpenError> {
        let memory = self.endpoint.domains.memory(index);
        let memory = memory.ok_or(OpenError::UnknownDevice)?;
        // A device that was registered again has other keys.
        let is_known = |it: &Option<DeviceState<P>>| {
            let known = it.as_ref().map(|it| &it.memory);
            known.is_some_and(|it| Arc::ptr_eq(it, &memory))
        };
        if let Some(place) = self.devices.iter().position(is_known) {
            return Ok(place);
        }
        let free = self.devices.iter().position(Option::is_none);
        let place = free.unwrap_or(self.devices.len());
        if place == DEVICES_MAX {
            return Err(OpenError::TooManyDevices);
        }
        let state = DeviceState::new(memory, &self.arena)?;
        if let Err(error) = watch(&self.endpoint.epoll, state.completions.descriptor()) {
            tracing::error!(%error, "completions cannot be watched");
        }
        match self.devices.get_mut(place) {
            Some(free) => *free = Some(state),
            None => self.devices.push(Some(state)),
        }
        Ok(place)
    }

    /// Gives up a device that cannot be used any more. It is used again when it is back.
    pub(super) fn give_up(&mut self, place: usize, why: &str, now: Nanos) {
        let Some(state) = &self.devices[place] else {
            return;
        };
        let device = state.memory.domain().device();
        let (index, name) = (device.index(), device.name());
        tracing::error!(
            device = name,
            why,
            "an RDMA device serves no files any more"
        );
        self.endpoint.domains.remove(index);
        self.release(place, now);
    }

    /// Ends the connections of a device, and releases it. Its memory is deregistered with the last
    /// reference.
    fn release(&mut self, place: usize, now: Nanos) {
        self.close_where(now, |parts| parts.device == place);
        self.devices[place] = None;
    }

    /// Releases devices that were removed from the domains.
    pub(super) fn update_devices(&mut self, now: Nanos) {
        for place in 0..self.devices.len() {
            let Some(state) = &self.devices[place] else {
                continue;
            };
            let index = state.memory.domain().device().index();
            let memory = self.endpoint.domains.memory(index);
            if !memory.is_some_and(|it| Arc::ptr_eq(&it, &state.memory)) {
                self.release(place, now);
            }
        }
    }

    /// Requests a notification for the next completion of each device.
    pub(crate) fn arm(&mut self) {
        for state in self.devices.iter_mut().flatten() {
            let armed = state.completions.acknowledge();
            let armed = armed.and_then(|_| state.completions.arm(false));
            if let Err(error) = armed {
                tracing::error!(%error, "completions cannot be awaited");
            }
        }
    }
}
