//! Events of RDMA devices, and the removal of a device with all of its connections.

use std::sync::Arc;

use hugemem::Account;
use nvme_fabrics::RequestToken;
use rdma::{DeviceEvent, DeviceIndex, Provider, QueuePairFault};
use reactors::Nanos;

use super::ConnectionSet;
use crate::connection::{Cause, Connection};
use crate::poll_group::DevicePollGroup;
use crate::token::{EventSubject, EventToken, RECEIVES};

impl<P: Provider> ConnectionSet<P> {
    /// Handles an event that a device reported.
    pub fn device_event(&mut self, device: DeviceIndex, event: DeviceEvent, now: Nanos) {
        self.shared.counters.device_events.add(1);
        match event {
            DeviceEvent::Fatal => {
                self.shared.domains.remove(device);
                for place in self.places_of(device) {
                    self.fail_device(place, "the device failed or is being removed");
                }
            }
            DeviceEvent::QueuePair { token, fault, .. } => {
                if let Some(index) = self.connection_of(token.into()) {
                    self.queue_pair_fault(index, fault, now);
                }
            }
            DeviceEvent::SharedReceiveQueueFailed { token }
            | DeviceEvent::CompletionQueueFailed { token } => {
                let token = EventToken::from(token);
                if token.subject() == EventSubject::Device {
                    self.fail_device(token.index(), "a queue of the device failed");
                }
            }
            DeviceEvent::PortUp(_)
            | DeviceEvent::PortDown(_)
            | DeviceEvent::ReceivesLow { .. }
            | DeviceEvent::PortChanged(_)
            | DeviceEvent::Other(_) => {}
        }
        self.release_failed(now);
    }

    fn queue_pair_fault(&mut self, index: u16, fault: QueuePairFault, now: Nanos) {
        let what = match fault {
            QueuePairFault::Fatal => "the device gave up on the queue pair",
            QueuePairFault::InvalidRequest => "the host asked for what RDMA does not allow",
            QueuePairFault::AccessViolation => "the host asked for memory that is not its own",
            QueuePairFault::LastReceive => {
                self.with(index, now, |connection, cx| {
                    connection.last_receive_taken(cx);
                });
                return;
            }
            QueuePairFault::CommunicationEstablished | QueuePairFault::Path => return,
        };
        self.abort(index, Cause::Fault(what), now);
    }

    /// Marks a device as failed; [`release_failed`](Self::release_failed) then releases it with its
    /// connections.
    pub(super) fn fail_device(&mut self, place: u16, why: &'static str) {
        let group = self.devices.get_mut(usize::from(place));
        if let Some(group) = group.and_then(Option::as_mut) {
            group.failed.get_or_insert(why);
            self.any_failed = true;
        }
    }

    /// Like [`fail_device`](Self::fail_device), for a device that will not be used again.
    pub(super) fn remove_device(&mut self, place: u16, why: &'static str) {
        let group = self.devices.get(usize::from(place));
        if let Some(group) = group.and_then(Option::as_ref) {
            let device = group.index();
            self.shared.domains.remove(device);
            if !self.removed.contains(&device) {
                self.removed.push(device);
            }
        }
        self.fail_device(place, why);
    }

    /// A device whose removal a connection's event reported. The other reactors must be notified,
    /// since not every device reports its own removal.
    pub(crate) fn take_removed(&mut self) -> Option<DeviceIndex> {
        self.removed.pop()
    }

    /// Releases failed devices with their connections, and retired ones without connections.
    #[inline]
    pub(super) fn release_failed(&mut self, now: Nanos) {
        if std::mem::take(&mut self.any_failed) {
            self.release_failed_devices(now);
        }
    }

    #[cold]
    fn release_failed_devices(&mut self, now: Nanos) {
        for place in 0..self.devices.len() {
            let Some(group) = &self.devices[place] else {
                continue;
            };
            let Some(why) = group.failed else {
                if group.retired && group.connections == 0 {
                    self.release_device(place);
                }
                continue;
            };
            let (device, connections) = (group.index(), group.connections);
            tracing::error!(?device, connections, why, "a device is given up");
            for index in self.table.places() {
                let connection = self.table.get(index);
                if connection.is_some_and(|it| usize::from(it.device) == place) {
                    self.with(index, now, Connection::abandon);
                    self.remove(index);
                }
            }
            self.shared.counters.devices_lost.add(1);
            self.release_device(place);
        }
    }

    /// Destroys the shared queues of a device without connections.
    fn release_device(&mut self, place: usize) {
        self.devices[place] = None;
        self.shared
            .pool
            .cancel_waits(Some(Account::PROMISED), |token| {
                let token = RequestToken::from_bits(token.0);
                token.connection() == RECEIVES && token.generation() as usize == place
            });
    }

    /// Creates the shared queues of devices that were added to the domains, and retires devices that
    /// were removed from them. A device that was removed and added counts as two: its new
    /// connections use the new registrations.
    pub fn update_devices(&mut self) {
        for group in self.devices.iter_mut().flatten() {
            let memory = self.shared.domains.memory(group.index());
            group.retired = !memory.is_some_and(|it| Arc::ptr_eq(&it, &group.memory));
        }
        for place in 0..self.devices.len() {
            let group = self.devices[place].as_ref();
            if group.is_some_and(|it| it.retired && it.connections == 0) {
                self.release_device(place);
            }
        }
        self.prepare_devices();
    }

    /// The place of a device that takes connections.
    pub(super) fn device_place(&self, device: DeviceIndex) -> Option<u16> {
        let is_current = |group: &DevicePollGroup<P>| group.index() == device && !group.retired;
        let mut groups = self.devices.iter();
        let found = groups.position(|group| group.as_ref().is_some_and(is_current));
        found.map(|place| place as u16)
    }

    /// All places of a device, also retired ones.
    fn places_of(&self, device: DeviceIndex) -> Vec<u16> {
        let groups = self.devices.iter().enumerate();
        let of_device = groups.filter(|(_, group)| {
            let index = group.as_ref().map(DevicePollGroup::index);
            index == Some(device)
        });
        of_device.map(|(place, _)| place as u16).collect()
    }
}
