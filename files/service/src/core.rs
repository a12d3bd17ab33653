//! The service on one reactor: executes the requests of all connections, and moves their data as a
//! client of the reactor's devices.

mod movement;
mod volumes;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use block::{ClientId, Completions, DeviceClient, DeviceSet};
use files_server::{Caller, Now, Record, Resumption, Server, Step, VolumeIndex};
use files_spec::xdr::{Payload, Placement};
use files_store::{Time, Volume};
use hugemem::{Lease, Pool};
use reactors::Nanos;
use reactors::ring;

use crate::accesses::{ACCESS_TAG, ACCESSES_MAX, Accesses};
use crate::connections::{ConnectionKey, Connections, Link, TransportIndex};
use crate::job::{Ended, Job, JobKey, Jobs};
use crate::limits::{
    CONNECTIONS_MAX, DEVICE_REQUESTS_MAX, RECORDS_BYTES_MAX, REQUESTS_MAX,
    REQUESTS_PER_CONNECTION_MAX, REQUESTS_PER_VOLUME_MAX, TICK_MS, VOLUMES_MAX,
};
use crate::observed::{FileMessage, ListenerChange, NewRecords, ServiceCounters, VolumeLevels};
use crate::transfer::{Device, Source, Transfer};
use crate::volume_requests::{VolumeRequests, volume_of_tag};
use movement::{Loan, Pumped};
use volumes::{Preparing, Removing, Returning};

/// The device of a volume.
#[derive(Clone, Debug)]
pub struct DeviceOfVolume {
    /// Its place in the reactor's devices.
    pub place: usize,
    /// Size of its blocks in bytes, at most that of the volume's blocks.
    pub block_bytes: u32,
    /// Limit of one request in bytes.
    pub transfer_bytes: usize,
    /// Whether a request that a reset has interrupted leaves what completed before in the device's
    /// cache, as a reset of a drive does. Otherwise a flush that has failed is not repeated: its
    /// success would say nothing about what the failed one has lost.
    pub keeps_cache: bool,
    /// Where the levels of the volume are published.
    pub levels: Arc<VolumeLevels>,
}

/// What a service is made with.
pub struct CoreOptions {
    /// The protocol core.
    pub server: Server,
    /// The device of each of its volumes.
    pub devices: Vec<DeviceOfVolume>,
    /// The reactor's devices.
    pub set: Rc<DeviceSet>,
    /// Memory for data in flight.
    pub pool: Pool,
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

    /// A descriptor that is readable after another version was stored. A transport reads it.
    fn wake_source(&self) -> BorrowedFd<'_>;
}

/// Limit of the requests of all volumes in devices.
const VOLUME_REQUESTS_MAX: usize = VOLUMES_MAX * REQUESTS_PER_VOLUME_MAX;

/// Data of a WRITE that a transport reads from memory of the client, and then returns with
/// [`FileCore::fetched`].
#[derive(Debug)]
pub struct Fetch {
    /// The request.
    pub job: JobKey,
    /// The part of its data.
    pub piece: usize,
    /// The connection that the request came over.
    pub connection: ConnectionKey,
    /// Where the data go.
    pub lease: Lease,
    /// Where in the lease they begin.
    pub skip: usize,
    /// Where in the data of the request they begin.
    pub data_at: usize,
    /// Their length in bytes.
    pub length: usize,
}

/// The transports, which take replies and data to read from queues of their own.
const TRANSPORTS: usize = 2;

/// What the server asks for, without references to the record.
enum Task {
    Reply,
    Ignore,
    /// Whether the data may be borrowed.
    Read(Device, bool),
    /// Where the payload is.
    Write(Device, Source),
    AwaitVolume,
    AwaitDurable,
}

/// The service without its transports.
pub struct FileCore {
    id: ClientId,
    set: Rc<DeviceSet>,
    pool: Pool,
    server: Server,
    devices: Vec<Device>,
    /// Whether any of them can lend its memory.
    has_lender: bool,
    time_of_day: fn(Nanos) -> Time,
    connections: Connections<Link>,
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
    /// Volumes that take the places of lost ones when no request uses these any more.
    returning: Vec<Returning>,
    /// Volumes that are returned to the control path when nothing uses them any more.
    removing: Vec<Removing>,
    preparing: Vec<Preparing>,
    /// Places whose volume was removed.
    vacant: Vec<VolumeIndex>,
    /// Changes of the listeners over TCP.
    listener_changes: VecDeque<ListenerChange>,
    new_records: Option<NewRecords>,
    /// Requests of the control path to devices.
    accesses: Accesses,
    /// Complete replies of each transport.
    replies: [Vec<(ConnectionKey, JobKey)>; TRANSPORTS],
    /// Data that a transport reads from memory of clients.
    fetches: VecDeque<Fetch>,
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

impl FileCore {
    /// A service without connections, which is registered as a client of the devices.
    ///
    /// # Panics
    /// Panics if a volume has no device.
    #[must_use]
    pub fn new(options: CoreOptions) -> Self {
        let CoreOptions {
            server,
            devices,
            set,
            pool,
            time_of_day,
            records,
            counters,
            messages,
        } = options;
        assert_eq!(devices.len(), server.volumes().len());
        assert_eq!(records.is_some(), server.keeps_records());
        let transfer_max = pool.max_transfer();
        let device = |(it, volume): (&DeviceOfVolume, &Volume)| {
            let bytes = it.transfer_bytes.min(transfer_max);
            Device::new(it, bytes, !volume.is_volatile(), &set)
        };
        let levels = devices.iter().map(|it| Arc::clone(&it.levels)).collect();
        let of_volumes = devices.iter().zip(server.volumes());
        let devices: Vec<Device> = of_volumes.map(device).collect();
        let volumes = devices.iter().zip(server.volumes()).enumerate();
        let requests = |(index, (device, volume)): (usize, (&Device, &Volume))| {
            (!volume.is_volatile()).then(|| VolumeRequests::new(index, *device, &set, &pool))
        };
        let service = Self {
            id: set.register(DEVICE_REQUESTS_MAX + VOLUME_REQUESTS_MAX + ACCESSES_MAX),
            volume_requests: volumes.map(requests).collect(),
            has_volume_requests: true,
            returning: Vec::new(),
            removing: Vec::new(),
            preparing: Vec::new(),
            vacant: Vec::new(),
            listener_changes: VecDeque::new(),
            new_records: None,
            accesses: Accesses::default(),
            has_lender: devices.iter().any(|it| it.lends),
            devices,
            set,
            pool,
            server,
            time_of_day,
            connections: Connections::default(),
            jobs: Jobs::default(),
            awaiting_memory: VecDeque::with_capacity(REQUESTS_MAX),
            awaiting_volume: VecDeque::with_capacity(REQUESTS_MAX),
            awaiting_durable: VecDeque::with_capacity(REQUESTS_MAX),
            replies: std::array::from_fn(|_| Vec::with_capacity(REQUESTS_MAX)),
            fetches: VecDeque::with_capacity(REQUESTS_MAX),
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
        service
    }

    /// Number of connections, and of requests in flight.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.connections.len(), self.jobs.len())
    }

    /// Whether another connection is accepted.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.connections.len() < CONNECTIONS_MAX
    }

    /// Begins a connection of a client. Returns `None` if the limit is reached.
    pub fn connect(&mut self, transport: TransportIndex, client: IpAddr) -> Option<ConnectionKey> {
        if !self.has_room() || self.is_stopping {
            return None;
        }
        self.counters.connections_accepted.add(1);
        Some(self.connections.insert(Link {
            transport,
            client,
            requests: 0,
            held_bytes: 0,
            is_blocked: false,
            caller: Caller::default(),
        }))
    }

    /// Ends a connection. Its requests continue, because their replies belong to the sessions.
    pub fn disconnect(&mut self, key: ConnectionKey) {
        if self.connections.remove(key).is_some() {
            self.has_progress = true;
        }
    }

    /// What a connection has.
    pub fn link(&mut self, key: ConnectionKey) -> Option<&mut Link> {
        self.connections.get_mut(key)
    }

    /// The requests.
    pub fn jobs(&mut self) -> &mut Jobs {
        &mut self.jobs
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &ServiceCounters {
        &self.counters
    }

    /// Memory for data in flight.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Takes the complete replies of a transport. It ends each request, whether it sends the reply or
    /// not, and returns the memory with [`Self::keep_replies`].
    #[inline]
    pub fn take_replies(&mut self, transport: TransportIndex) -> Vec<(ConnectionKey, JobKey)> {
        std::mem::take(&mut self.replies[transport as usize])
    }

    /// Keeps the memory of replies that were taken.
    #[inline]
    pub fn keep_replies(
        &mut self,
        transport: TransportIndex,
        replies: Vec<(ConnectionKey, JobKey)>,
    ) {
        debug_assert!(replies.is_empty() && !self.has_replies(transport));
        self.replies[transport as usize] = replies;
    }

    /// Whether a transport has complete replies.
    #[inline]
    #[must_use]
    pub fn has_replies(&self, transport: TransportIndex) -> bool {
        !self.replies[transport as usize].is_empty()
    }

    /// Ends a request whose reply is sent, or cannot be sent. Its reads hold no memory any more.
    #[inline]
    pub fn end_request(&mut self, key: JobKey, job: Box<Job>) {
        let mut ended = Ended::default();
        ended.add(&job);
        self.release(&ended);
        self.jobs.end(key, job);
    }

    /// The connection of requests that have ended may begin others.
    #[inline]
    pub fn release(&mut self, ended: &Ended) {
        if let Some(link) = self.connections.get_mut(ended.connection) {
            link.requests -= ended.requests;
            link.held_bytes -= ended.held_bytes;
        }
    }

    /// The next data to read from memory of a client.
    pub fn next_fetch(&mut self) -> Option<Fetch> {
        self.fetches.pop_front()
    }

    /// Whether there are data to read from memory of clients.
    #[must_use]
    pub fn has_fetches(&self) -> bool {
        !self.fetches.is_empty()
    }

    /// Data were read from memory of the client. Without the lease they could not be read.
    pub fn fetched(&mut self, key: JobKey, piece: usize, lease: Option<Lease>, now: Nanos) {
        let Some(mut job) = self.jobs.take(key) else {
            return;
        };
        if let Some(transfer) = &mut job.transfer {
            let bytes = transfer.fetched(piece, lease);
            self.counters.write_bytes_fetched.add(bytes as u64);
        }
        self.go_on(key, job, now);
    }

    /// Whether a connection may begin another request.
    #[inline]
    #[must_use]
    pub fn may_admit(&self, key: ConnectionKey) -> bool {
        let has_memory = self.jobs.record_bytes < RECORDS_BYTES_MAX;
        let is_free = |it: &Link| it.requests < REQUESTS_PER_CONNECTION_MAX;
        let is_free = self.connections.get(key).is_some_and(is_free);
        has_memory && is_free && !self.is_stopping
    }

    /// Begins a request of a connection that [`Self::may_admit`] allows: its record is that of the
    /// job, or what was `received`.
    #[inline]
    pub fn admit(
        &mut self,
        connection: ConnectionKey,
        mut job: Box<Job>,
        received: Option<&[u8]>,
        now: Nanos,
    ) {
        let time = self.time(now);
        let Some(link) = self.connections.get_mut(connection) else {
            return self.jobs.give_back(job);
        };
        link.requests += 1;
        job.connection = connection;
        job.client = link.client;
        let key = self.jobs.admit(&job);
        let record = Record {
            bytes: received.unwrap_or(&job.record),
            placement: job.placement,
            client: job.client,
        };
        let mut loan = Loan {
            devices: &self.devices,
            set: &self.set,
            counters: &self.counters,
            payloads: &mut job.payloads,
            held_by_job: &mut job.held_bytes,
            held_by_connection: &mut link.held_bytes,
        };
        let (x, caller) = (&mut job.execution, &link.caller);
        // A client that does not take its replies has to do that first.
        let may_lend = self.has_lender && !link.is_blocked;
        let server = &mut self.server;
        match may_lend && server.read_at_once(x, &record, caller, &time, &mut loan) {
            true => self.reply(key, job),
            false => self.advance(key, job, received, None, now),
        }
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
                placement: job.placement,
                client: job.client,
            };
            let step = match resumption {
                None => match self.connections.get_mut(job.connection) {
                    Some(link) => {
                        let caller = &mut link.caller;
                        self.server
                            .begin(&mut job.execution, &record, caller, &time)
                    }
                    None => return self.jobs.end(key, job),
                },
                Some(it) => self.server.resume(&mut job.execution, &record, it, &time),
            };
            let task = self.task(&step, received.unwrap_or(&job.record), job.placement);
            // Data of a file that has changed meanwhile are not part of the reply.
            job.payloads.truncate(job.execution.holes().len());
            match task {
                Task::Reply => return self.reply(key, job),
                Task::Ignore => return self.end_request(key, job),
                Task::AwaitVolume => {
                    self.awaiting_volume.push_back(key);
                    return self.suspend(key, job, received);
                }
                Task::AwaitDurable => {
                    self.awaiting_durable.push_back(key);
                    return self.suspend(key, job, received);
                }
                Task::Read(device, may_borrow) => {
                    if may_borrow && self.lend(&mut job, &device) {
                        resumption = Some(Resumption::Done);
                        continue;
                    }
                    let unused = job.unused_pieces.pop().unwrap_or_default();
                    let may_borrow = may_borrow && !self.is_blocked(job.connection);
                    let ranges = job.execution.ranges();
                    job.transfer = Some(Transfer::read(device, ranges, may_borrow, unused));
                }
                Task::Write(device, source) => {
                    let unused = job.unused_pieces.pop().unwrap_or_default();
                    let transfer = Transfer::write(device, job.execution.pieces(), source, unused);
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
    fn task(&self, step: &Step<'_>, record: &[u8], placement: Option<Placement>) -> Task {
        match step {
            Step::Reply => Task::Reply,
            Step::Ignore => Task::Ignore,
            Step::AwaitVolume => Task::AwaitVolume,
            Step::AwaitDurable => Task::AwaitDurable,
            Step::Read { volume, is_last } => Task::Read(self.devices[volume.0], *is_last),
            Step::Write { volume, data } => {
                let source = match data {
                    Payload::Inline(data) => {
                        Source::Record(data.as_ptr() as usize - record.as_ptr() as usize)
                    }
                    Payload::Elsewhere(_) => {
                        debug_assert!(placement.is_some(), "the record has no gap");
                        Source::Client
                    }
                };
                Task::Write(self.devices[volume.0], source)
            }
        }
    }

    /// Queues a complete reply, or drops it if its connection has ended.
    #[inline]
    fn reply(&mut self, key: JobKey, job: Box<Job>) {
        self.has_progress = true;
        match self.connections.get(job.connection) {
            Some(link) => {
                self.replies[link.transport as usize].push((job.connection, key));
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
            let pumped = match self.lend_to_waiting(&mut job) {
                true => Pumped::Ended(Resumption::Done),
                false => self.pump(key, &mut job, None),
            };
            match pumped {
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

    /// Whether records of clients are stored, of which a signal tells.
    #[must_use]
    pub fn keeps_records(&self) -> bool {
        self.records.is_some()
    }

    /// Where an operator wants records of clients to be stored, which are stored nowhere. A transport watches
    /// its signal, and calls [`Self::keep_records`].
    pub fn take_new_records(&mut self) -> Option<NewRecords> {
        self.new_records.take().filter(|_| self.records.is_none())
    }

    /// Stores the records of clients from now on. No reply ends before those are stored that it depends on.
    pub fn keep_records(&mut self, records: Box<dyn RecordStore>) {
        self.records = Some(records);
        self.server.keep_records();
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
    pub fn clear_records_signal(&self) {
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

    /// Whether a connection has replies that its client does not take.
    fn is_blocked(&self, key: ConnectionKey) -> bool {
        let connection = self.connections.get(key);
        connection.is_some_and(|it| it.is_blocked)
    }

    /// Does what time requires. Any transport may call it.
    pub fn tick(&mut self, now: Nanos) {
        let now_ms = now.as_millis();
        if now_ms < self.next_tick_ms {
            return;
        }
        self.next_tick_ms = now_ms + TICK_MS;
        let time = self.time_now(now);
        self.server.tick(&time);
        self.has_volume_requests = true;
        self.set_levels();
    }

    /// Publishes the levels.
    fn set_levels(&self) {
        self.counters.connections.set(self.connections.len() as u64);
        self.counters.requests_in_flight.set(self.jobs.len() as u64);
        let volumes = self.server.volumes().iter().enumerate();
        for (levels, (index, volume)) in self.levels.iter().zip(volumes) {
            if !self.vacant.contains(&VolumeIndex(index)) {
                levels.set(volume);
            }
        }
    }

    /// Whether an operator asks for something.
    #[must_use]
    pub fn has_messages(&self) -> bool {
        self.messages.as_ref().is_some_and(|it| !it.is_empty())
    }

    /// Whether a job waits for something that no descriptor signals.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        !self.awaiting_memory.is_empty()
            || self.has_progress && !self.awaiting_volume.is_empty()
            || self.has_volume_requests
            || self.accesses.is_waiting()
    }

    /// When [`Self::tick`] is due.
    #[must_use]
    pub fn tick_at(&self) -> Nanos {
        Nanos::from_millis(self.next_tick_ms)
    }

    /// Accepts no connection and no request any more. Returns the number of requests that are still
    /// executed.
    pub fn end(&mut self) -> usize {
        self.is_stopping = true;
        self.jobs.len()
    }
}

impl DeviceClient for FileCore {
    fn id(&self) -> ClientId {
        self.id
    }

    fn completed(&mut self, completions: Completions<'_>, now: Nanos) {
        for completion in completions {
            self.outstanding = self.outstanding.saturating_sub(1);
            if completion.tag == ACCESS_TAG {
                self.accesses.completed(completion.result, completion.data);
                continue;
            }
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
            self.go_on(key, job, now);
        }
    }

    fn poll(&mut self, now: Nanos) -> usize {
        let lost = self.find_lost(now);
        lost + self.retry(now)
            + self.carry_out_volumes(now)
            + self.carry_out_accesses()
            + self.store_records(now)
    }

    fn device_removed(&mut self, place: usize, now: Nanos) {
        self.accesses.device_removed(place);
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
            self.go_on(key, job, now);
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
