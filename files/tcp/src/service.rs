//! NFS over TCP on one reactor: receives the records of its connections and sends the replies.

use std::cell::{RefCell, RefMut};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use block::{ClientId, Completions, DeviceClient, DeviceSet};
use files_server::Server;
use files_service::limits::{BORROWED_MS, CONNECTIONS_MAX, STALL_MS, TICK_MS};
use files_service::{
    ConnectionKey, Connections, CoreOptions, DeviceOfVolume, FileCore, FileMessage, ListenerChange,
    NewRecords, RecordStore, ServiceCounters, TransportIndex,
};
use files_store::Time;
use hugemem::Pool;
use reactors::Nanos;
use reactors::ring;

use crate::connection::Connection;
use crate::limits::{ACCEPTS_PER_TURN_MAX, READS_PER_TURN_MAX};
use crate::network::{Interest, Network, Ready, Sockets};
use crate::receiver::{Received, Receiver};

/// What a service is made with.
pub struct FileServiceOptions<N = Sockets> {
    /// The protocol core.
    pub server: Server,
    /// The device of each of its volumes.
    pub devices: Vec<DeviceOfVolume>,
    /// The reactor's devices.
    pub set: Rc<DeviceSet>,
    /// Memory for data in flight.
    pub pool: Pool,
    /// Where clients connect.
    pub network: N,
    /// The time since 1970 at a time of the reactor's clock.
    pub time_of_day: fn(Nanos) -> Time,
    /// Where the records of clients are stored, if the server keeps them.
    pub records: Option<Box<dyn RecordStore>>,
    /// What is counted.
    pub counters: Arc<ServiceCounters>,
    /// What operators ask for.
    pub messages: Option<ring::Receiver<FileMessage>>,
}

/// The service.
pub struct FileService<N: Network = Sockets> {
    core: Rc<RefCell<FileCore>>,
    network: N,
    connections: Connections<Connection<N::Stream>>,
    /// Connections with replies to send.
    sending: Vec<ConnectionKey>,
    /// Memory for their exchange.
    sent_to: Vec<ConnectionKey>,
    /// Connections whose replies lend memory of devices while they cannot be sent, with the time
    /// since when.
    lending: Vec<(ConnectionKey, u64)>,
    next_tick_ms: u64,
}

impl<N: Network> FileService<N> {
    /// A service without connections, which is registered as a client of the devices.
    ///
    /// # Errors
    /// The network's, if it cannot report stored records.
    ///
    /// # Panics
    /// Panics if a volume has no device.
    pub fn new(options: FileServiceOptions<N>) -> io::Result<Self> {
        let FileServiceOptions {
            server,
            devices,
            set,
            pool,
            mut network,
            time_of_day,
            records,
            counters,
            messages,
        } = options;
        if let Some(records) = &records {
            network.add_signal(records.wake_source())?;
        }
        let core = FileCore::new(CoreOptions {
            server,
            devices,
            set,
            pool,
            time_of_day,
            records,
            counters,
            messages,
        });
        Ok(Self {
            core: Rc::new(RefCell::new(core)),
            network,
            connections: Connections::default(),
            sending: Vec::with_capacity(CONNECTIONS_MAX),
            sent_to: Vec::with_capacity(CONNECTIONS_MAX),
            lending: Vec::with_capacity(CONNECTIONS_MAX),
            next_tick_ms: 0,
        })
    }

    /// The part of the service that it shares with another transport.
    #[must_use]
    pub fn core(&self) -> &Rc<RefCell<FileCore>> {
        &self.core
    }

    pub(crate) fn core_mut(&self) -> RefMut<'_, FileCore> {
        self.core.borrow_mut()
    }

    /// Number of connections over TCP, and of requests in flight.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.connections.len(), self.core_mut().counts().1)
    }

    /// Another descriptor of the network's events, if it has one.
    pub(crate) fn wake_source(&self) -> io::Result<Option<OwnedFd>> {
        let source = self.network.wake_source();
        source.map(|it| it.try_clone_to_owned()).transpose()
    }

    /// What is ready.
    pub(crate) fn poll_network(&mut self, ready: &mut Vec<Ready>) {
        if self.is_unused() {
            ready.clear();
            return;
        }
        self.network.poll(ready);
    }

    /// Whether nothing can become ready, which is so in an appliance that serves no files.
    fn is_unused(&self) -> bool {
        self.network.listeners() == 0
            && self.connections.is_empty()
            && !self.core_mut().keeps_records()
    }

    /// Accepts connections of all listeners. Those beyond the limit stay in the backlog.
    pub(crate) fn accept(&mut self, now: Nanos) -> usize {
        let mut accepted = 0;
        for listener in 0..self.network.listeners() {
            for _ in 0..ACCEPTS_PER_TURN_MAX {
                if !self.core_mut().has_room() {
                    break;
                }
                let Some((stream, client)) = self.network.accept(listener) else {
                    break;
                };
                accepted += 1;
                let number = self.network.listener_number(listener);
                self.begin_connection(stream, client, number, now);
            }
        }
        self.watch_listeners();
        accepted
    }

    /// Changes the listeners as operators ask. Returns the number of changes.
    pub(crate) fn change_listeners(&mut self) -> usize {
        let mut count = 0;
        loop {
            let Some(change) = self.core_mut().next_listener_change() else {
                return count;
            };
            count += 1;
            // A response without a receiver is not needed.
            let _ = match change {
                ListenerChange::Add {
                    number,
                    listener,
                    reply,
                } => {
                    let added = self.network.add_listener(number, listener);
                    self.watch_listeners();
                    reply.send(added.is_ok()).is_ok()
                }
                ListenerChange::Remove { number, reply } => {
                    self.network.close_listener(number);
                    for key in self.connections.keys() {
                        let connection = self.connections.get_mut(key);
                        if connection.is_some_and(|it| it.listener == number) {
                            self.close(key);
                        }
                    }
                    reply.send(()).is_ok()
                }
            };
        }
    }

    /// Stores records of clients where an operator wants it. Returns the number of changes.
    pub(crate) fn change_records(&mut self) -> usize {
        let Some(NewRecords { store, reply }) = self.core_mut().take_new_records() else {
            return 0;
        };
        let is_watched = self.network.add_signal(store.wake_source()).is_ok();
        if is_watched {
            self.core_mut().keep_records(store);
        }
        // A response without a receiver is not needed.
        let _ = reply.send(is_watched);
        1
    }

    fn begin_connection(&mut self, stream: N::Stream, client: IpAddr, listener: u32, now: Nanos) {
        let Some(key) = self.core_mut().connect(TransportIndex::Tcp, client) else {
            return;
        };
        match self.network.add(&stream, key.to_u64()) {
            Ok(()) => {
                let connection = Connection::new(stream, listener, now.as_millis());
                self.connections.put(key, connection);
            }
            Err(_) => self.core_mut().disconnect(key),
        }
    }

    /// Watches the listeners while a connection can be accepted.
    fn watch_listeners(&mut self) {
        let has_room = self.core_mut().has_room();
        self.network.watch_listeners(has_room);
    }

    /// Receives from a connection and executes its requests, up to the limits. Returns the number of
    /// requests.
    pub(crate) fn receive(&mut self, key: ConnectionKey, now: Nanos) -> usize {
        let mut requests = 0;
        for reads in 0..=READS_PER_TURN_MAX {
            match self.admit(key, now) {
                Ok(admitted) => requests += admitted,
                Err(()) => {
                    self.close(key);
                    return requests;
                }
            }
            // No event announces what was read and is not admitted, so that is done after the last read.
            if reads == READS_PER_TURN_MAX || !self.core_mut().may_admit(key) {
                break;
            }
            let Some(connection) = self.connections.get_mut(key) else {
                return requests;
            };
            let Connection {
                receiver, stream, ..
            } = connection;
            match receiver.fill(stream) {
                Ok(0) => {
                    self.close(key);
                    return requests;
                }
                Ok(_) => connection.active_ms = now.as_millis(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.close(key);
                    return requests;
                }
            }
        }
        self.watch(key);
        requests
    }

    /// Executes the records that have arrived.
    fn admit(&mut self, key: ConnectionKey, now: Nanos) -> Result<usize, ()> {
        let Some(connection) = self.connections.get_mut(key) else {
            return Ok(0);
        };
        // Records are executed where they are.
        let mut receiver = std::mem::take(&mut connection.receiver);
        let admitted = self.admit_from(&mut receiver, key, now);
        if let Some(connection) = self.connections.get_mut(key) {
            connection.receiver = receiver;
        }
        admitted
    }

    fn admit_from(
        &mut self,
        receiver: &mut Receiver,
        key: ConnectionKey,
        now: Nanos,
    ) -> Result<usize, ()> {
        let mut core = self.core.borrow_mut();
        let mut admitted = 0;
        while core.may_admit(key) {
            let Some(mut job) = core.jobs().unused() else {
                break;
            };
            let received = match receiver.next(&mut job.record) {
                Ok(Received::InBuffer(record)) => Some(record),
                Ok(Received::InMemory) => None,
                Ok(Received::Nothing) => {
                    core.jobs().give_back(job);
                    break;
                }
                Err(_) => {
                    core.jobs().give_back(job);
                    return Err(());
                }
            };
            admitted += 1;
            core.admit(key, job, received, now);
        }
        Ok(admitted)
    }

    /// Takes the replies that are complete.
    fn take_replies(&mut self) {
        let mut core = self.core.borrow_mut();
        let mut replies = core.take_replies(TransportIndex::Tcp);
        for (key, job_key) in replies.drain(..) {
            if let Some(connection) = self.connections.get_mut(key) {
                if !connection.has_outgoing() {
                    self.sending.push(key);
                }
                connection.push(core.jobs(), job_key);
            } else if let Some(job) = core.jobs().take(job_key) {
                core.end_request(job_key, job);
            }
        }
        core.keep_replies(TransportIndex::Tcp, replies);
    }

    /// Sends what is ready, and executes requests that had to wait for that.
    pub(crate) fn send(&mut self, now: Nanos) {
        self.take_replies();
        let mut keys = std::mem::take(&mut self.sent_to);
        std::mem::swap(&mut keys, &mut self.sending);
        for key in &keys {
            self.send_to(*key, now);
        }
        for key in &keys {
            if self.core_mut().may_admit(*key) && self.admit(*key, now).is_err() {
                self.close(*key);
            }
            self.watch(*key);
        }
        keys.clear();
        self.sent_to = keys;
    }

    /// Sends the replies of a connection.
    pub(crate) fn send_to(&mut self, key: ConnectionKey, now: Nanos) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let mut core = self.core.borrow_mut();
        let sent = connection.send(&mut core, now.as_millis());
        if let Some(link) = core.link(key) {
            link.is_blocked = connection.is_blocked;
        }
        drop(core);
        match sent {
            Ok(_) => {
                if connection.is_blocked && !connection.is_lending {
                    connection.is_lending = true;
                    self.lending.push((key, now.as_millis()));
                }
            }
            Err(_) => self.close(key),
        }
    }

    /// Copies what replies have borrowed from devices and could not be sent for a while, so that
    /// writers go on. Without memory it is tried again.
    pub(crate) fn copy_borrowed(&mut self, now: Nanos) {
        let mut lending = std::mem::take(&mut self.lending);
        let mut copied = 0;
        let mut core = self.core.borrow_mut();
        lending.retain_mut(|(key, since_ms)| {
            let Some(connection) = self.connections.get_mut(*key) else {
                return false;
            };
            if connection.is_blocked {
                if now.as_millis() < *since_ms + BORROWED_MS {
                    return true;
                }
                *since_ms = now.as_millis();
                connection.is_lending = !connection.copy_borrowed(&mut core, &mut copied);
            } else {
                connection.is_lending = false;
            }
            connection.is_lending
        });
        core.counters().read_bytes_copied.add(copied);
        self.lending = lending;
    }

    /// Watches what a connection waits for.
    fn watch(&mut self, key: ConnectionKey) {
        let may_admit = self.core_mut().may_admit(key);
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let interest = Interest {
            readable: may_admit,
            writable: connection.is_blocked,
        };
        if interest == connection.interest {
            return;
        }
        connection.interest = interest;
        let network = &mut self.network;
        let watched = network.watch(&connection.stream, key.to_u64(), interest);
        if watched.is_err() {
            self.close(key);
        }
    }

    /// Closes a connection. Its requests continue, because their replies belong to the sessions.
    pub(crate) fn close(&mut self, key: ConnectionKey) {
        let Some(mut connection) = self.connections.take(key) else {
            return;
        };
        let mut core = self.core.borrow_mut();
        while connection.drop_reply(&mut core) {}
        core.disconnect(key);
        drop(core);
        self.watch_listeners();
    }

    /// Does what time requires.
    pub(crate) fn tick(&mut self, now: Nanos) {
        let now_ms = now.as_millis();
        self.core_mut().tick(now);
        if now_ms < self.next_tick_ms {
            return;
        }
        self.next_tick_ms = now_ms + TICK_MS;
        for key in self.connections.keys() {
            let Some(connection) = self.connections.get_mut(key) else {
                continue;
            };
            let awaits_record =
                connection.receiver.is_within_record() && connection.interest.readable;
            let silent = now_ms.saturating_sub(connection.active_ms);
            if (connection.is_blocked || awaits_record) && silent > STALL_MS {
                self.close(key);
                continue;
            }
            // Limits of all connections may have kept this one from receiving.
            self.receive_waiting(key, now);
        }
    }

    /// Executes records that have arrived before a limit was reached.
    fn receive_waiting(&mut self, key: ConnectionKey, now: Nanos) {
        let connection = self.connections.get_mut(key);
        let is_paused = connection.is_some_and(|it| !it.interest.readable);
        if is_paused && self.core_mut().may_admit(key) {
            self.receive(key, now);
        }
    }

    /// Whether a reply waits to be sent.
    pub(crate) fn has_to_send(&self) -> bool {
        !self.sending.is_empty() || self.core_mut().has_replies(TransportIndex::Tcp)
    }

    /// When [`Self::tick`] or the copy of what is borrowed is due.
    pub(crate) fn tick_at(&self) -> Nanos {
        let tick_ms = self.core_mut().tick_at().as_millis().min(self.next_tick_ms);
        let lending = self.lending.iter().map(|(_, since)| since + BORROWED_MS);
        let first = lending.min().unwrap_or(tick_ms);
        Nanos::from_millis(first.min(tick_ms))
    }

    /// Ends all connections. Returns the number of requests that are still executed.
    pub(crate) fn end(&mut self) -> usize {
        let _ = self.core_mut().end();
        self.network.close_listeners();
        for key in self.connections.keys() {
            self.close(key);
        }
        self.core_mut().end()
    }
}

impl<N: Network> DeviceClient for FileService<N> {
    fn id(&self) -> ClientId {
        self.core_mut().id()
    }

    fn completed(&mut self, completions: Completions<'_>, now: Nanos) {
        self.core_mut().completed(completions, now);
    }

    fn poll(&mut self, now: Nanos) -> usize {
        if !self.lending.is_empty() {
            self.copy_borrowed(now);
        }
        self.core_mut().poll(now)
    }

    fn device_removed(&mut self, place: usize, now: Nanos) {
        self.core_mut().device_removed(place, now);
    }

    fn stop(&mut self, now: Nanos) -> bool {
        self.end();
        self.core_mut().stop(now)
    }
}
