//! The service on one reactor: executes the records of its connections, and moves their data as a
//! client of the reactor's devices.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use block::{ClientId, Completions, DeviceClient, DeviceSet};
use files_server::{Now, Record, Resumption, Server, Step};
use files_spec::xdr::Payload;
use files_store::{Time, Volume};
use hugemem::Pool;
use reactors::Nanos;
use reactors::ring;

use crate::connection::{Connection, ConnectionKey, Connections};
use crate::job::{Job, JobKey, Jobs};
use crate::limits::{
    ACCEPTS_PER_TURN_MAX, BORROWED_MS, CONNECTIONS_MAX, DEVICE_REQUESTS_MAX, PIECES_IN_FLIGHT_MAX,
    READS_PER_TURN_MAX, RECORDS_BYTES_MAX, REQUESTS_MAX, REQUESTS_PER_CONNECTION_MAX,
    REQUESTS_PER_VOLUME_MAX, STALL_MS, TICK_MS, UNSENT_BYTES_MAX,
};
use crate::network::{Interest, Network, Ready, Sockets};
use crate::observed::{FileMessage, ServiceCounters, VolumeLevels};
use crate::receiver::{Received, Receiver};
use crate::transfer::{Device, Next, Transfer};
use crate::volume_requests::{VolumeRequests, volume_of_tag};

/// The device of a volume.
#[derive(Clone, Debug)]
pub struct DeviceOfVolume {
    /// Its place in the reactor's devices.
    pub place: usize,
    /// Size of its blocks in bytes, at most that of the volume's blocks.
    pub block_bytes: u32,
    /// Limit of one request in bytes.
    pub transfer_bytes: usize,
    /// Where the levels of the volume are published.
    pub levels: Arc<VolumeLevels>,
}

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

/// Stores the records of clients that may reclaim their state after a restart. It does not block.
pub trait RecordStore {
    /// Replaces the stored records by a version with these owners.
    fn store(&mut self, version: u64, owners: Vec<Box<[u8]>>);

    /// The last version that survives a loss of power, or that cannot be stored: then no client can
    /// reclaim.
    fn stored(&self) -> u64;

    /// A descriptor that is readable after another version was stored. The service reads it.
    fn wake_source(&self) -> BorrowedFd<'_>;
}

/// How a movement of data goes on.
enum Pumped {
    Waits,
    Ended(Resumption),
}

/// What the core asks for, without references to the record.
enum Task {
    Reply,
    Ignore,
    /// Whether the data may be borrowed.
    Read(Device, bool),
    /// Where the payload begins in the record.
    Write(Device, usize),
    AwaitVolume,
    AwaitDurable,
}

/// The service.
pub struct FileService<N: Network = Sockets> {
    id: ClientId,
    set: Rc<DeviceSet>,
    pool: Pool,
    server: Server,
    devices: Vec<Device>,
    network: N,
    time_of_day: fn(Nanos) -> Time,
    connections: Connections<N::Stream>,
    jobs: Jobs,
    /// Jobs that wait for memory or for the replies of their connection.
    awaiting_memory: VecDeque<JobKey>,
    /// Jobs whose volume was busy.
    awaiting_volume: VecDeque<JobKey>,
    /// Jobs whose changes are not durable yet.
    awaiting_durable: VecDeque<JobKey>,
    /// The requests of each durable volume.
    volume_requests: Vec<Option<VolumeRequests>>,
    /// Whether a volume may have requests that the device has not got.
    has_volume_requests: bool,
    /// Connections with replies to send.
    sending: Vec<ConnectionKey>,
    /// Memory for their exchange.
    sent_to: Vec<ConnectionKey>,
    /// Connections whose replies lend memory of devices while they cannot be sent, with the time
    /// since when.
    lending: Vec<(ConnectionKey, u64)>,
    /// Requests in devices.
    outstanding: usize,
    /// Whether something has ended that a waiting job may wait for.
    has_progress: bool,
    is_stopping: bool,
    next_tick_ms: u64,
    records: Option<Box<dyn RecordStore>>,
    /// The last version of the records that is stored.
    records_stored: u64,
    /// The time, which is read once in a millisecond.
    time: Now,
    counters: Arc<ServiceCounters>,
    /// Where the levels of each volume are published.
    levels: Vec<Arc<VolumeLevels>>,
    messages: Option<ring::Receiver<FileMessage>>,
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
        assert_eq!(devices.len(), server.volumes().len());
        assert_eq!(records.is_some(), server.keeps_records());
        let transfer_max = pool.max_transfer();
        let device = |it: &DeviceOfVolume| {
            let bytes = it.transfer_bytes.min(transfer_max);
            Device::new(it.place, it.block_bytes, bytes)
        };
        if let Some(records) = &records {
            network.add_signal(records.wake_source())?;
        }
        let levels = devices.iter().map(|it| Arc::clone(&it.levels)).collect();
        let devices: Vec<Device> = devices.iter().map(device).collect();
        let volumes = devices.iter().zip(server.volumes()).enumerate();
        let requests = |(index, (device, volume)): (usize, (&Device, &Volume))| {
            (!volume.is_volatile()).then(|| VolumeRequests::new(index, *device, &pool))
        };
        let service = Self {
            id: set.register(DEVICE_REQUESTS_MAX + volumes.len() * REQUESTS_PER_VOLUME_MAX),
            volume_requests: volumes.map(requests).collect(),
            has_volume_requests: true,
            devices,
            set,
            pool,
            server,
            network,
            time_of_day,
            connections: Connections::default(),
            jobs: Jobs::default(),
            awaiting_memory: VecDeque::with_capacity(REQUESTS_MAX),
            awaiting_volume: VecDeque::with_capacity(REQUESTS_MAX),
            awaiting_durable: VecDeque::with_capacity(REQUESTS_MAX),
            sending: Vec::with_capacity(CONNECTIONS_MAX),
            sent_to: Vec::with_capacity(CONNECTIONS_MAX),
            lending: Vec::with_capacity(CONNECTIONS_MAX),
            outstanding: 0,
            has_progress: false,
            is_stopping: false,
            next_tick_ms: 0,
            records,
            records_stored: 0,
            time: time_of(time_of_day, Nanos::ZERO),
            counters,
            levels,
            messages,
        };
        service.set_levels();
        Ok(service)
    }

    /// Number of connections, and of requests in flight.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.connections.len(), self.jobs.len())
    }

    /// Another descriptor of the network's events, if it has one.
    pub(crate) fn wake_source(&self) -> io::Result<Option<OwnedFd>> {
        let source = self.network.wake_source();
        source.map(|it| it.try_clone_to_owned()).transpose()
    }

    /// What is ready.
    pub(crate) fn poll_network(&mut self, ready: &mut Vec<Ready>) {
        self.network.poll(ready);
    }

    /// Accepts connections of all listeners. Those beyond the limit stay in the backlog.
    pub(crate) fn accept(&mut self, now: Nanos) -> usize {
        let mut accepted = 0;
        for listener in 0..self.network.listeners() {
            for _ in 0..ACCEPTS_PER_TURN_MAX {
                if self.connections.len() >= CONNECTIONS_MAX {
                    break;
                }
                let Some((stream, client)) = self.network.accept(listener) else {
                    break;
                };
                accepted += 1;
                self.counters.connections_accepted.add(1);
                self.begin_connection(stream, client, now);
            }
        }
        self.watch_listeners();
        accepted
    }

    fn begin_connection(&mut self, stream: N::Stream, client: IpAddr, now: Nanos) {
        let connection = Connection::new(stream, client, now.as_millis());
        let key = self.connections.insert(connection);
        let network = &mut self.network;
        let added = self.connections.get_mut(key);
        let added = added.map(|it| network.add(&it.stream, key.to_u64()));
        if !matches!(added, Some(Ok(()))) {
            self.connections.remove(key);
        }
    }

    /// Watches the listeners while a connection can be accepted.
    fn watch_listeners(&mut self) {
        let has_room = self.connections.len() < CONNECTIONS_MAX;
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
            if reads == READS_PER_TURN_MAX || !self.may_admit(key) {
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

    /// Whether a connection may begin another request.
    fn may_admit(&mut self, key: ConnectionKey) -> bool {
        let has_memory = self.jobs.record_bytes < RECORDS_BYTES_MAX;
        let is_free = |it: &mut Connection<N::Stream>| it.requests < REQUESTS_PER_CONNECTION_MAX;
        let is_free = self.connections.get_mut(key).is_some_and(is_free);
        has_memory && is_free && !self.is_stopping
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
        let mut admitted = 0;
        while self.may_admit(key) {
            let Some(mut job) = self.jobs.unused() else {
                break;
            };
            let Some(connection) = self.connections.get_mut(key) else {
                self.jobs.give_back(job);
                break;
            };
            let received = match receiver.next(&mut job.record) {
                Ok(Received::InBuffer(record)) => Some(record),
                Ok(Received::InMemory) => None,
                Ok(Received::Nothing) => {
                    self.jobs.give_back(job);
                    break;
                }
                Err(_) => {
                    self.jobs.give_back(job);
                    return Err(());
                }
            };
            connection.requests += 1;
            admitted += 1;
            job.connection = key;
            job.client = connection.client;
            let job_key = self.jobs.admit(&job);
            self.advance(job_key, job, received, None, now);
        }
        Ok(admitted)
    }

    /// Executes a job until it waits or its reply is complete. Its record is kept then, if it is
    /// where it was `received`.
    fn advance(
        &mut self,
        key: JobKey,
        mut job: Box<Job>,
        received: Option<&[u8]>,
        mut resumption: Option<Resumption>,
        now: Nanos,
    ) {
        let time = self.time(now);
        self.has_volume_requests = true;
        loop {
            let record = Record {
                bytes: received.unwrap_or(&job.record),
                placement: None,
                client: job.client,
            };
            let step = match resumption {
                None => self.server.begin(&mut job.execution, &record, &time),
                Some(it) => self.server.resume(&mut job.execution, &record, it, &time),
            };
            let task = self.task(&step, received.unwrap_or(&job.record));
            // Data of a file that has changed meanwhile are not part of the reply.
            job.truncate_payloads(job.execution.holes().len());
            match task {
                Task::Reply => {
                    job.seal();
                    return self.reply(key, job);
                }
                Task::Ignore => {
                    if let Some(connection) = self.connections.get_mut(job.connection) {
                        connection.requests -= 1;
                    }
                    return self.jobs.end(key, job);
                }
                Task::AwaitVolume => {
                    self.awaiting_volume.push_back(key);
                    return self.suspend(key, job, received);
                }
                Task::AwaitDurable => {
                    self.awaiting_durable.push_back(key);
                    return self.suspend(key, job, received);
                }
                Task::Read(device, may_borrow) => {
                    let unused = job.unused_pieces.pop().unwrap_or_default();
                    let may_borrow = may_borrow && !self.is_blocked(job.connection);
                    let ranges = job.execution.ranges();
                    job.transfer = Some(Transfer::read(device, ranges, may_borrow, unused));
                }
                Task::Write(device, payload_at) => {
                    let unused = job.unused_pieces.pop().unwrap_or_default();
                    let transfer =
                        Transfer::write(device, job.execution.pieces(), payload_at, unused);
                    job.transfer = Some(transfer);
                }
            }
            match self.pump(key, &mut job, received) {
                Pumped::Waits => return self.suspend(key, job, received),
                Pumped::Ended(ended) => resumption = Some(ended),
            }
        }
    }

    /// Keeps a job that waits, with its record.
    fn suspend(&mut self, key: JobKey, mut job: Box<Job>, received: Option<&[u8]>) {
        if let Some(record) = received {
            self.jobs.keep_record(&mut job, record);
        }
        // What it waits for may take longer than writers should wait.
        let mut copied = 0;
        job.copy_borrowed(&self.pool, &mut copied);
        self.counters.read_bytes_copied.add(copied);
        self.jobs.put(key, job);
    }

    /// The time, to a millisecond.
    fn time(&mut self, now: Nanos) -> Now {
        if self.time.monotonic_ms != now.as_millis() {
            self.time = self.time_now(now);
        }
        self.time
    }

    /// The time of both clocks.
    fn time_now(&self, now: Nanos) -> Now {
        time_of(self.time_of_day, now)
    }

    /// What a step asks for.
    fn task(&self, step: &Step<'_>, record: &[u8]) -> Task {
        match step {
            Step::Reply => Task::Reply,
            Step::Ignore => Task::Ignore,
            Step::AwaitVolume => Task::AwaitVolume,
            Step::AwaitDurable => Task::AwaitDurable,
            Step::Read { volume, is_last } => Task::Read(self.devices[volume.0], *is_last),
            Step::Write { volume, data } => {
                let Payload::Inline(data) = data else {
                    unreachable!("records are received as a whole");
                };
                let payload_at = data.as_ptr() as usize - record.as_ptr() as usize;
                Task::Write(self.devices[volume.0], payload_at)
            }
        }
    }

    /// Continues the movement of a job's data.
    fn pump(&mut self, key: JobKey, job: &mut Job, received: Option<&[u8]>) -> Pumped {
        let Some(transfer) = &mut job.transfer else {
            return Pumped::Waits;
        };
        let record = received.unwrap_or(&job.record);
        if !transfer.is_read() && std::mem::take(&mut transfer.may_borrow) {
            let written = transfer.write_inline(&self.set, record);
            self.counters.write_bytes_inline.add(written);
        }
        let device = transfer.device;
        if transfer.is_read() && !job.is_reserved {
            let bytes = transfer.read_bytes();
            let connection = self.connections.get_mut(job.connection);
            let (held, is_blocked) =
                connection.map_or((0, false), |it| (it.held_bytes, it.is_blocked));
            let is_over = held > 0 && (is_blocked || held + bytes > UNSENT_BYTES_MAX);
            let is_borrowed = !is_over && transfer.borrow(&self.set);
            if is_over || !is_borrowed && !transfer.reserve(&self.pool) {
                self.awaiting_memory.push_back(key);
                return Pumped::Waits;
            }
            if is_borrowed {
                self.counters.read_bytes_borrowed.add(bytes as u64);
            }
            job.is_reserved = true;
            job.held_bytes += bytes;
            if let Some(connection) = self.connections.get_mut(job.connection) {
                connection.held_bytes += bytes;
            }
        }
        loop {
            let set = &self.set;
            let can_borrow = |lba, blocks| set.can_borrow_read(device.place, lba, blocks);
            let next = transfer.next(record, &self.pool, PIECES_IN_FLIGHT_MAX, can_borrow);
            match next {
                Next::Submit(piece, mut request) => {
                    request.tag = key.tag(piece);
                    match set.submit(self.id, device.place, request) {
                        Ok(_) => self.outstanding += 1,
                        Err(_) => transfer.refused(),
                    }
                }
                Next::AwaitDevice => return Pumped::Waits,
                Next::AwaitMemory => {
                    self.awaiting_memory.push_back(key);
                    return Pumped::Waits;
                }
                Next::Ended(is_ok) => {
                    self.has_progress = true;
                    job.is_reserved = false;
                    match job.transfer.take() {
                        Some(read) if read.is_read() => {
                            self.counters.read_bytes_copied.add(read.copied_bytes());
                            job.payloads.push(read);
                        }
                        Some(write) => {
                            self.counters.write_bytes_copied.add(write.copied_bytes());
                            job.drop_transfer(write);
                        }
                        None => {}
                    }
                    return Pumped::Ended(match is_ok {
                        true => Resumption::Done,
                        false => Resumption::DeviceFailed,
                    });
                }
            }
        }
    }

    /// Queues a complete reply, or drops it if its connection has ended.
    fn reply(&mut self, key: JobKey, job: Box<Job>) {
        self.has_progress = true;
        match self.connections.get_mut(job.connection) {
            Some(connection) => {
                if !connection.has_outgoing() {
                    self.sending.push(job.connection);
                }
                connection.push(key);
                self.jobs.put(key, job);
            }
            None => self.jobs.end(key, job),
        }
    }

    /// Continues jobs that wait for memory or a volume.
    pub(crate) fn retry(&mut self, now: Nanos) -> usize {
        let mut moved = 0;
        for _ in 0..self.awaiting_memory.len() {
            let Some(key) = self.awaiting_memory.pop_front() else {
                break;
            };
            let Some(mut job) = self.jobs.take(key) else {
                continue;
            };
            match self.pump(key, &mut job, None) {
                Pumped::Waits => self.jobs.put(key, job),
                Pumped::Ended(ended) => {
                    moved += 1;
                    self.advance(key, job, None, Some(ended), now);
                }
            }
        }
        if std::mem::take(&mut self.has_progress) {
            for _ in 0..self.awaiting_volume.len() {
                let Some(key) = self.awaiting_volume.pop_front() else {
                    break;
                };
                if let Some(job) = self.jobs.take(key) {
                    self.advance(key, job, None, Some(Resumption::Done), now);
                }
            }
        }
        moved
    }

    /// Carries out the requests of the volumes, and continues the jobs whose changes are durable.
    fn carry_out_volumes(&mut self, now: Nanos) -> usize {
        let mut ended = 0;
        while std::mem::take(&mut self.has_volume_requests) {
            let (mut has_ended, mut awaits_memory) = (false, false);
            let requests = self.volume_requests.iter_mut();
            for (volume, requests) in self.server.volumes_mut().iter_mut().zip(requests) {
                let Some(requests) = requests else {
                    continue;
                };
                let carried = requests.carry_out(volume, self.id, &self.set, &self.pool);
                self.outstanding += carried.submitted;
                has_ended |= carried.has_ended;
                awaits_memory |= carried.awaits_memory;
            }
            if has_ended {
                ended += self.resume_durable(now);
                self.has_progress = true;
            }
            if awaits_memory {
                self.has_volume_requests = true;
                break;
            }
        }
        ended
    }

    /// Hands out new records of clients, and continues the jobs whose records are stored.
    fn store_records(&mut self, now: Nanos) -> usize {
        let Some(records) = &mut self.records else {
            return 0;
        };
        if let Some((version, owners)) = self.server.take_records() {
            records.store(version, owners);
        }
        let stored = records.stored();
        if stored == self.records_stored {
            return 0;
        }
        self.records_stored = stored;
        self.server.records_stored(stored);
        self.resume_durable(now)
    }

    /// Takes the signal that records are stored.
    pub(crate) fn clear_records_signal(&self) {
        if let Some(records) = &self.records {
            // Without a signal there is nothing to take.
            let _ = rustix::io::read(records.wake_source(), &mut [0; 8]);
        }
    }

    /// Continues the jobs whose changes are durable or lost. Returns their number.
    fn resume_durable(&mut self, now: Nanos) -> usize {
        let mut resumed = 0;
        for _ in 0..self.awaiting_durable.len() {
            let Some(key) = self.awaiting_durable.pop_front() else {
                break;
            };
            let Some(job) = self.jobs.take(key) else {
                continue;
            };
            match self.server.is_durable(&job.execution) {
                true => {
                    resumed += 1;
                    self.advance(key, job, None, Some(Resumption::Done), now);
                }
                false => {
                    self.awaiting_durable.push_back(key);
                    self.jobs.put(key, job);
                }
            }
        }
        resumed
    }

    /// Sends what is ready, and executes requests that had to wait for that.
    pub(crate) fn send(&mut self, now: Nanos) {
        let mut keys = std::mem::take(&mut self.sent_to);
        std::mem::swap(&mut keys, &mut self.sending);
        for key in &keys {
            self.send_to(*key, now);
        }
        for key in &keys {
            if self.may_admit(*key) && self.admit(*key, now).is_err() {
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
        match connection.send(&mut self.jobs, now.as_millis()) {
            Ok(_) => {
                if connection.is_blocked && !connection.is_lending {
                    connection.is_lending = true;
                    self.lending.push((key, now.as_millis()));
                }
                self.watch(key);
            }
            Err(_) => self.close(key),
        }
    }

    /// Whether a connection has replies that its client does not take.
    fn is_blocked(&mut self, key: ConnectionKey) -> bool {
        let connection = self.connections.get_mut(key);
        connection.is_some_and(|it| it.is_blocked)
    }

    /// Copies what replies have borrowed from devices and could not be sent for a while, so that
    /// writers go on. Without memory it is tried again.
    pub(crate) fn copy_borrowed(&mut self, now: Nanos) {
        let mut lending = std::mem::take(&mut self.lending);
        let mut copied = 0;
        lending.retain_mut(|(key, since_ms)| {
            let Some(connection) = self.connections.get_mut(*key) else {
                return false;
            };
            if connection.is_blocked {
                if now.as_millis() < *since_ms + BORROWED_MS {
                    return true;
                }
                *since_ms = now.as_millis();
                let (jobs, pool) = (&mut self.jobs, &self.pool);
                connection.is_lending = !connection.copy_borrowed(jobs, pool, &mut copied);
            } else {
                connection.is_lending = false;
            }
            connection.is_lending
        });
        self.counters.read_bytes_copied.add(copied);
        self.lending = lending;
    }

    /// Watches what a connection waits for.
    fn watch(&mut self, key: ConnectionKey) {
        let may_admit = self.may_admit(key);
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
        let Some(mut connection) = self.connections.remove(key) else {
            return;
        };
        while connection.drop_reply(&mut self.jobs) {}
        self.has_progress = true;
        self.watch_listeners();
    }

    /// Does what time requires.
    pub(crate) fn tick(&mut self, now: Nanos) {
        let now_ms = now.as_millis();
        if now_ms < self.next_tick_ms {
            return;
        }
        self.next_tick_ms = now_ms + TICK_MS;
        let time = self.time_now(now);
        self.server.tick(&time);
        self.has_volume_requests = true;
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
        self.set_levels();
    }

    /// Publishes the levels.
    fn set_levels(&self) {
        self.counters.connections.set(self.connections.len() as u64);
        self.counters.requests_in_flight.set(self.jobs.len() as u64);
        for (levels, volume) in self.levels.iter().zip(self.server.volumes()) {
            levels.set(volume);
        }
    }

    /// Carries out what operators ask for. Returns the number of messages.
    pub(crate) fn carry_out_messages(&mut self, now: Nanos) -> usize {
        let mut count = 0;
        while let Some(message) = self.messages.as_mut().and_then(ring::Receiver::recv) {
            count += 1;
            // A response without a receiver is not needed.
            let _ = match message {
                FileMessage::Clients { reply } => {
                    reply.send(self.server.clients(&self.time_now(now))).is_ok()
                }
                FileMessage::Evict { number, reply } => {
                    let is_evicted = self.server.evict_client(number);
                    // Others may have waited for what the client had, and files may have to be freed.
                    self.has_volume_requests = true;
                    self.has_progress = true;
                    reply.send(is_evicted).is_ok()
                }
                FileMessage::SetShares { shares, reply } => {
                    let time = self.time_now(now);
                    self.server.set_shares(shares, &time);
                    self.has_volume_requests = true;
                    self.has_progress = true;
                    reply.send(()).is_ok()
                }
            };
        }
        count
    }

    /// Whether an operator asks for something.
    pub(crate) fn has_messages(&self) -> bool {
        self.messages.as_ref().is_some_and(|it| !it.is_empty())
    }

    /// Executes records that have arrived before a limit was reached.
    fn receive_waiting(&mut self, key: ConnectionKey, now: Nanos) {
        let connection = self.connections.get_mut(key);
        let is_paused = connection.is_some_and(|it| !it.interest.readable);
        if is_paused && self.may_admit(key) {
            self.receive(key, now);
        }
    }

    /// Whether a reply waits to be sent.
    pub(crate) fn has_to_send(&self) -> bool {
        !self.sending.is_empty()
    }

    /// Whether a job waits for something that no descriptor signals.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.awaiting_memory.is_empty()
            || self.has_progress && !self.awaiting_volume.is_empty()
            || self.has_volume_requests
    }

    /// When [`Self::tick`] or the copy of what is borrowed is due.
    pub(crate) fn tick_at(&self) -> Nanos {
        let lending = self.lending.iter().map(|(_, since)| since + BORROWED_MS);
        let first = lending.min().unwrap_or(self.next_tick_ms);
        Nanos::from_millis(first.min(self.next_tick_ms))
    }

    /// Ends all connections. Returns the number of requests that are still executed.
    pub(crate) fn end(&mut self) -> usize {
        self.is_stopping = true;
        self.network.close_listeners();
        for key in self.connections.keys() {
            self.close(key);
        }
        self.jobs.len()
    }
}

impl<N: Network> DeviceClient for FileService<N> {
    fn id(&self) -> ClientId {
        self.id
    }

    fn completed(&mut self, completions: Completions<'_>, now: Nanos) {
        for completion in completions {
            self.outstanding = self.outstanding.saturating_sub(1);
            if let Some(volume) = volume_of_tag(completion.tag) {
                self.has_volume_requests = true;
                if let Some(Some(requests)) = self.volume_requests.get_mut(volume) {
                    requests.completed(completion.tag, completion.result, completion.data);
                }
                continue;
            }
            let (key, piece) = JobKey::of_tag(completion.tag);
            let Some(mut job) = self.jobs.take(key) else {
                continue;
            };
            if let Some(transfer) = &mut job.transfer {
                transfer.completed(piece, completion.result, completion.data);
            }
            match self.pump(key, &mut job, None) {
                Pumped::Waits => self.jobs.put(key, job),
                Pumped::Ended(ended) => self.advance(key, job, None, Some(ended), now),
            }
        }
    }

    fn poll(&mut self, now: Nanos) -> usize {
        if !self.lending.is_empty() {
            self.copy_borrowed(now);
        }
        self.retry(now) + self.carry_out_volumes(now) + self.store_records(now)
    }

    fn device_removed(&mut self, place: usize, now: Nanos) {
        for requests in self.volume_requests.iter_mut().flatten() {
            requests.device_removed(place);
        }
        self.has_volume_requests = true;
        for key in self.jobs.keys() {
            let Some(mut job) = self.jobs.take(key) else {
                continue;
            };
            match &mut job.transfer {
                Some(transfer) if transfer.device.place == place => transfer.abandon(),
                _ => {
                    self.jobs.put(key, job);
                    continue;
                }
            }
            match self.pump(key, &mut job, None) {
                Pumped::Waits => self.jobs.put(key, job),
                Pumped::Ended(ended) => self.advance(key, job, None, Some(ended), now),
            }
        }
    }

    fn stop(&mut self, _now: Nanos) -> bool {
        self.end();
        let mut requests = self.volume_requests.iter().flatten();
        let is_idle = requests.all(VolumeRequests::is_idle) && !self.has_volume_requests;
        is_idle && self.outstanding == 0 && self.awaiting_memory.is_empty()
    }
}

/// The time of day of the system's clock.
#[must_use]
pub fn system_time(_: Nanos) -> Time {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Time {
        seconds: since.as_secs() as i64,
        nanoseconds: since.subsec_nanos(),
    }
}

/// The time of the reactor's clock, with the time of day.
fn time_of(time_of_day: fn(Nanos) -> Time, now: Nanos) -> Now {
    Now {
        monotonic_ms: now.as_millis(),
        time: time_of_day(now),
    }
}
