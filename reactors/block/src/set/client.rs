//! What a protocol is to the devices of its reactor, and a turn of the two together.

use std::cell::RefCell;
use std::rc::Rc;

use reactors::Nanos;

use super::{ClientId, Completions, DeviceSet};
use crate::device::{Device, Drain, QueueOptions};
use crate::error::OpenError;

/// Serves data of the devices of a [`DeviceSet`].
pub trait DeviceClient {
    /// Its number, as [`DeviceSet::register`] gave it.
    fn id(&self) -> ClientId;

    /// Takes completions of its requests. It may submit others.
    fn completed(&mut self, completions: Completions<'_>, now: Nanos);

    /// Called once a turn, after the devices were polled. Returns how much there was to do.
    fn poll(&mut self, now: Nanos) -> usize {
        let _ = now;
        0
    }

    /// Called at the end of a turn, after everything was sent.
    fn flush(&mut self) {}

    /// When [`poll`](Self::poll) must be called at the latest.
    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    /// Whether there is something to do now that no descriptor and no deadline will tell.
    fn has_ready(&self) -> bool {
        false
    }

    /// A device came to this place.
    fn device_attached(&mut self, place: usize) {
        let _ = place;
    }

    /// Whether nothing will be submitted any more to a device that the configuration does not name
    /// any more.
    fn has_let_go(&self, place: usize) -> bool {
        let _ = place;
        true
    }

    /// A device is gone, with all requests that it had and that waited for it: none of them
    /// completes.
    fn device_cut(&mut self, place: usize, now: Nanos);

    /// The reactor stops: the client takes in nothing new and lets what it has end. Called in every
    /// turn; returns whether nothing will be submitted any more.
    fn stop(&mut self, now: Nanos) -> bool;
}

/// A client, which its protocol's pollers share.
type SharedClient = Rc<RefCell<dyn DeviceClient>>;

/// A reactor's devices and all their clients. Clones are the same.
#[derive(Clone)]
pub struct ReactorDevices {
    set: Rc<DeviceSet>,
    /// By their numbers.
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

    /// Takes in a client that has [registered](DeviceSet::register).
    ///
    /// # Panics
    /// When clients come in another order than that in which they registered.
    pub fn add(&self, client: SharedClient) {
        let mut clients = self.clients.borrow_mut();
        let number = usize::from(client.borrow().id().0);
        assert_eq!(number, clients.len(), "a client of another number is next");
        clients.push(client);
    }

    /// The devices.
    #[must_use]
    pub fn set(&self) -> &Rc<DeviceSet> {
        &self.set
    }

    /// The second phase of a turn, between what protocols receive and what they send: polls the
    /// devices and the clients, each once. Returns how much there was to do.
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

    /// The end of a turn, after everything was sent.
    #[inline]
    pub fn flush(&self) {
        for client in &*self.clients.borrow() {
            client.borrow_mut().flush();
        }
        self.set.flush();
    }

    /// When [`poll`](Self::poll) must be called at the latest.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let clients = self.clients.borrow();
        let deadlines = clients.iter().filter_map(|it| it.borrow().next_deadline());
        deadlines.chain(self.set.next_deadline()).min()
    }

    /// Whether there is something to do now that no descriptor and no deadline will tell.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        self.set.has_ready()
            || self
                .clients
                .borrow()
                .iter()
                .any(|it| it.borrow().has_ready())
    }

    /// Called just before the reactor sleeps. `false`: there is work, do not sleep.
    #[must_use]
    pub fn prepare_sleep(&self) -> bool {
        // Interrupts first, then a last look at everything.
        self.set.prepare_sleep() && !self.has_ready()
    }

    /// [`DeviceSet::attach`], of which the clients are told.
    ///
    /// # Errors
    /// The device's.
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

    /// [`DeviceSet::detach`], once all clients have let the device go.
    pub fn detach(&self, place: usize) -> Drain {
        let clients = self.clients.borrow();
        if clients.iter().all(|it| it.borrow().has_let_go(place)) {
            self.set.detach(place)
        } else {
            Drain::Outstanding(self.set.in_flight_of(place).max(1))
        }
    }

    /// Lets a device go at once, and with it all its requests.
    pub fn cut(&self, place: usize, now: Nanos) {
        self.set.cut(place);
        for client in &*self.clients.borrow() {
            client.borrow_mut().device_cut(place, now);
        }
    }

    /// Stops the clients, and once all are at rest the devices: see [`DeviceSet::drain`].
    pub fn drain(&self, now: Nanos) -> Drain {
        let mut are_at_rest = true;
        for client in &*self.clients.borrow() {
            are_at_rest &= client.borrow_mut().stop(now);
        }
        if are_at_rest {
            self.set.drain()
        } else {
            Drain::Outstanding(self.set.in_flight().max(1))
        }
    }
}
