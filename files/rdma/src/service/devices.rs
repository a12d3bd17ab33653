//! The devices of a service, their events, and their removal with all of their connections.

use std::sync::Arc;

use hugemem::{Arena, DmaBuffer};
use rdma::{
    CompletionQueue as _, Device as _, DeviceEvent, DeviceIndex, DeviceUser, Domain as _,
    DomainMemory, MemoryMap, Provider, QueuePairFault, Token,
};
use reactors::Nanos;
use rustix::event::epoll;

use super::{OpenError, RdmaFileService};
use crate::context::Fault;
use crate::endpoint::{Source, watch};
use crate::limits::{COMPLETIONS_MAX, DEVICES_MAX, ZEROES_BYTES_MAX};
use crate::posted::WorkId;

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
    fn new(
        memory: Arc<DomainMemory<P>>,
        arena: &Arc<Arena>,
        place: usize,
    ) -> Result<Self, OpenError> {
        let domain = memory.domain();
        let limit = domain.device().limits().completion_queue_entries;
        let entries = COMPLETIONS_MAX.min(limit);
        Ok(Self {
            completions: domain.create_completion_queue(entries, token(place))?,
            reserved: 0,
            map: memory.map(),
            zeroes: arena
                .dma_buffer(ZEROES_BYTES_MAX.min(arena.max_transfer()))
                .ok_or(OpenError::NoMemory)?,
            memory,
        })
    }

    fn index(&self) -> DeviceIndex {
        self.memory.domain().device().index()
    }
}

/// The token of the completion queue of a device at a place.
fn token(place: usize) -> Token {
    DeviceUser::Files.token(place as u64)
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
        let state = DeviceState::new(memory, &self.arena, place)?;
        if let Err(error) = watch(
            &self.endpoint.epoll,
            Source::Polled,
            state.completions.descriptor(),
        ) {
            tracing::error!(%error, "completions cannot be watched");
        }
        match self.devices.get_mut(place) {
            Some(free) => *free = Some(state),
            None => self.devices.push(Some(state)),
        }
        Ok(place)
    }

    /// Gives up the device at a place, which cannot be used any more.
    pub(super) fn give_up(&mut self, place: usize, why: &str, now: Nanos) {
        if let Some(state) = &self.devices[place] {
            self.remove_device(state.index(), why, now);
        }
    }

    /// Gives up a device. Its registrations end with its queues, and its handle after them: some
    /// drivers wait for that. It is used again when it is back.
    pub(super) fn remove_device(&mut self, device: DeviceIndex, why: &str, now: Nanos) {
        self.endpoint.domains.remove(device);
        for place in 0..self.devices.len() {
            let state = self.devices[place].as_ref();
            if state.is_some_and(|it| it.index() == device) {
                self.release(place, now);
            }
        }
        let watched = self.watched.iter().position(|it| it.index() == device);
        if let Some(place) = watched {
            let device = self.watched[place].name();
            tracing::error!(device, why, "an RDMA device serves no files any more");
            self.unwatch(place);
        }
    }

    /// Ends the connections of a device, and releases it. Its memory is deregistered with the last
    /// reference.
    fn release(&mut self, place: usize, now: Nanos) {
        self.close_where(now, |parts| parts.device == place);
        self.devices[place] = None;
    }

    /// Releases devices that were removed from the domains, and watches those that were added.
    pub(super) fn update_devices(&mut self, now: Nanos) {
        for place in 0..self.devices.len() {
            let Some(state) = &self.devices[place] else {
                continue;
            };
            let memory = self.endpoint.domains.memory(state.index());
            if !memory.is_some_and(|it| Arc::ptr_eq(&it, &state.memory)) {
                self.release(place, now);
            }
        }
        self.watch_devices();
        // A device may have been removed again before it was watched.
        self.poll_devices(now);
    }

    /// Receives the events of all devices of the domains.
    pub(super) fn watch_devices(&mut self) {
        let devices = self.endpoint.domains.devices();
        let is_used = |it: &P::Device| devices.iter().any(|device| device.index() == it.index());
        while let Some(place) = self.watched.iter().position(|it| !is_used(it)) {
            self.unwatch(place);
        }
        for device in devices {
            if self.watched.iter().any(|it| it.index() == device.index()) {
                continue;
            }
            let epoll = &self.endpoint.epoll;
            if let Err(error) = watch(epoll, Source::Device, device.descriptor()) {
                // The connection manager reports its removal too.
                tracing::error!(device = device.name(), %error, "a device cannot be watched");
            }
            let events = self.endpoint.domains.events();
            events.begin(device.index(), DeviceUser::Files);
            self.watched.push(device);
        }
    }

    fn unwatch(&mut self, place: usize) {
        let device = self.watched.swap_remove(place);
        let events = self.endpoint.domains.events();
        events.end(device.index(), DeviceUser::Files);
        if let Err(error) = epoll::delete(&self.endpoint.epoll, device.descriptor()) {
            tracing::debug!(%error, "the descriptor of a device was not watched any more");
        }
    }

    /// Whether another service has taken events of devices for this one.
    pub(crate) fn has_device_events(&self) -> bool {
        let events = self.endpoint.domains.events();
        !self.watched.is_empty() && events.has(DeviceUser::Files)
    }

    /// Handles the events of devices. Returns their number.
    pub(super) fn poll_devices(&mut self, now: Nanos) -> usize {
        let events = Arc::clone(self.endpoint.domains.events());
        let (mut count, mut index) = (0, 0);
        while let Some(device) = self.watched.get(index) {
            match events.next(device, DeviceUser::Files) {
                Some(event) => {
                    count += 1;
                    let device = device.index();
                    self.device_event(device, event, now);
                }
                None => index += 1,
            }
        }
        count
    }

    fn device_event(&mut self, device: DeviceIndex, event: DeviceEvent, now: Nanos) {
        match event {
            DeviceEvent::Fatal => self.remove_device(device, "it failed or is being removed", now),
            DeviceEvent::QueuePair { token, fault, .. } => self.queue_pair_fault(token, fault, now),
            DeviceEvent::CompletionQueueFailed { token: of } => {
                let is_it = |it: &Option<DeviceState<P>>| {
                    it.as_ref().is_some_and(|it| it.index() == device)
                };
                let failed = (0..self.devices.len()).find(|place| token(*place) == of);
                if let Some(place) = failed.filter(|place| is_it(&self.devices[*place])) {
                    self.give_up(place, "its completion queue failed", now);
                }
            }
            DeviceEvent::PortUp(_)
            | DeviceEvent::PortDown(_)
            | DeviceEvent::ReceivesLow { .. }
            | DeviceEvent::SharedReceiveQueueFailed { .. }
            | DeviceEvent::PortChanged(_)
            | DeviceEvent::Other(_) => {}
        }
    }

    fn queue_pair_fault(&mut self, token: Token, fault: QueuePairFault, now: Nanos) {
        match fault {
            QueuePairFault::Fatal
            | QueuePairFault::InvalidRequest
            | QueuePairFault::AccessViolation => {
                let id = WorkId::from_bits(token.0);
                if self.connection_of(id).is_some() {
                    self.close(id.place(), Some(&Fault::QueuePair(fault)), now);
                }
            }
            QueuePairFault::LastReceive
            | QueuePairFault::CommunicationEstablished
            | QueuePairFault::Path => {}
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
