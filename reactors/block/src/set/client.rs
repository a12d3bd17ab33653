//! Clients of a reactor's devices, and the device phase of a turn.

use std::cell::RefCell;
use std::rc::Rc;

use reactors::Nanos;

use super::{ClientId, Completions, DeviceSet};
use crate::device::{Device, Drain, QueueOptions};
use crate::error::OpenError;

/// A protocol that serves data of the devices of a [`DeviceSet`].
pub trait DeviceClient {
    /// Its number from [`DeviceSet::register`].
    fn id(&self) -> ClientId;

    /// Handles completions of its requests. It may submit others.
    fn completed(&mut self, completions: Completions<'_>, now: Nanos);

    /// Called once a turn, after the devices were polled. Returns the amount of work done.
    fn poll(&mut self, now: Nanos) -> usize {
        let _ = now;
        0
    }

    /// Called at the end of a turn, after the transports sent their data.
    fn flush(&mut self) {}

    /// Time at which [`poll`](Self::poll) must be called at the latest.
    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    /// Whether there is work that no descriptor and no deadline signals.
    fn has_ready(&self) -> bool {
        false
    }

    /// A device was attached at `place`.
    fn device_attached(&mut self, place: usize) {
        let _ = place;
    }

    /// Whether the client will submit no further request to a device that was removed from the
    /// configuration.
    fn has_released_device(&self, place: usize) -> bool {
        let _ = place;
        true
    }

    /// A device was removed with all its requests, in flight and waiting: none of them completes.
    fn device_removed(&mut self, place: usize, now: Nanos);

    /// The reactor stops: the client accepts no new work and completes its requests. Called in
    /// every turn; returns true when the client will submit no further request.
    fn stop(&mut self, now: Nanos) -> bool;
}

/// A client, shared with its protocol's pollers.
type SharedClient = Rc<RefCell<dyn DeviceClient>>;

/// A reactor's devices and all their clients. Clones refer to the same ones.
#[derive(Clone)]
pub struct ReactorDevices {
    set: Rc<DeviceSet>,
    /// Indexed by client number.
    clients: Rc<RefCell<Vec<SharedClient>>>,
}

impl ReactorDevices {
    /// The devices of `set`, without clients.
    #[must_use]
    pub fn new(set: Rc<DeviceSet>) -> Self {
        Self {
            set,
            clients: Rc::default(),
        }
    }

    /// Adds a client that has [registered](DeviceSet::register).
    ///
    /// # Panics
    /// If clients are added in another order than they registered.
    pub fn add(&self, client: SharedClient) {
        let mut clients = self.clients.borrow_mut();
        let number = usize::from(client.borrow().id().0);
        assert_eq!(
            number,
            clients.len(),
            "clients must be added in the order of their \
        registration"
        );
        clients.push(client);
    }

    /// The devices.
    #[must_use]
    pub fn set(&self) -> &Rc<DeviceSet> {
        &self.set
    }

    /// The device phase of a turn, after transports receive and before they send: polls the devices
    /// and the clients once each. Returns the amount of work done.
    #[inline]
    pub fn poll(&self, now: Nanos) -> usize {
        let clients = self.clients.borrow();
        let mut moved = self.set.poll(now, |client, completions| {
            if let Some(client) = clients.get(usize::from(client.0)) {
                client.borrow_mut().completed(completions, now);
            }
        });
        for client in &*clients {
            moved += client.borrow_mut().poll(now);
        }
        moved
    }

    /// Flushes clients and devices at the end of a turn, after the transports sent their data.
    #[inline]
    pub fn flush(&self) {
        for client in &*self.clients.borrow() {
            client.borrow_mut().flush();
        }
        self.set.flush();
    }

    /// Time at which [`poll`](Self::poll) must be called at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let clients = self.clients.borrow();
        let deadlines = clients.iter().filter_map(|it| it.borrow().next_deadline());
        deadlines.chain(self.set.next_deadline()).min()
    }

    /// Whether there is work that no descriptor and no deadline signals.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        self.set.has_ready()
            || self
                .clients
                .borrow()
                .iter()
                .any(|it| it.borrow().has_ready())
    }

    /// Called before the reactor sleeps. `false`: there is work, do not sleep.
    #[must_use]
    pub fn prepare_sleep(&self) -> bool {
        // Enables interrupts first, then checks for work once more.
        self.set.prepare_sleep() && !self.has_ready()
    }

    /// [`DeviceSet::attach`]; also notifies the clients.
    ///
    /// # Errors
    /// The device's error.
    pub fn attach(
        &self,
        place: usize,
        device: &dyn Device,
        options: QueueOptions,
    ) -> Result<(), OpenError> {
        self.set.attach(place, device, options)?;
        for client in &*self.clients.borrow() {
            client.borrow_mut().device_attached(place);
        }
        Ok(())
    }

    /// [`DeviceSet::detach`], after all clients have stopped using the device.
    pub fn detach(&self, place: usize) -> Drain {
        let clients = self.clients.borrow();
        if clients
            .iter()
            .all(|it| it.borrow().has_released_device(place))
        {
            self.set.detach(place)
        } else {
            Drain::Outstanding(self.set.in_flight_of(place).max(1))
        }
    }

    /// Removes a device and all its requests immediately.
    pub fn remove_now(&self, place: usize, now: Nanos) {
        self.set.remove_now(place);
        for client in &*self.clients.borrow() {
            client.borrow_mut().device_removed(place, now);
        }
    }

    /// Stops the clients, then drains the devices: see [`DeviceSet::drain`].
    pub fn drain(&self, now: Nanos) -> Drain {
        let mut all_stopped = true;
        for client in &*self.clients.borrow() {
            all_stopped &= client.borrow_mut().stop(now);
        }
        if all_stopped {
            self.set.drain()
        } else {
            Drain::Outstanding(self.set.in_flight().max(1))
        }
    }
}
