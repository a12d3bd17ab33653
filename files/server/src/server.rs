//! The server: its state, and the execution of requests from the record to the reply.

use std::net::IpAddr;
use std::sync::Arc;

use files_spec::Status;
use files_spec::compound::{CompoundArgs, Malformed, Operations};
use files_spec::operations::{OperationNumber, SequenceArgs};
use files_spec::rpc::{AcceptStatus, Call, CallError, NFS_PROGRAM, NFS_VERSION, Procedure, Reply};
use files_spec::types::{FileHandle, Verifier};
use files_spec::xdr::{DecodeError, Decoder, Placement};
use files_store::{NumberMap, Progress, Ticket, Time, Volume};

use crate::caller::{Caller, Header};
use crate::clients::Client;
use crate::counters::ServerCounters;
use crate::execution::{Execution, Resumption, Step, Waiting};
use crate::grace::Grace;
use crate::limits::{CLIENTS_MAX, FINGERPRINT_BYTES_MAX, ORPHANS_PER_TICK_MAX, SESSIONS_MAX};
use crate::operations::Flow;
use crate::place::{Share, VolumeIndex};
use crate::records::Records;
use crate::refusal::Refusal;
use crate::sessions::{RequestShape, Sequenced, Session};
use crate::states::{FileId, States};
use crate::table::Table;

/// The time, which the user reads from its clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Time of a clock that never goes back, in milliseconds.
    pub monotonic_ms: u64,
    /// Time since 1970.
    pub time: Time,
}

/// A received record.
#[derive(Clone, Copy, Debug)]
pub struct Record<'r> {
    /// Its bytes, without the payload if that was placed elsewhere.
    pub bytes: &'r [u8],
    /// Where the payload was in the record.
    pub placement: Option<Placement>,
    /// The address that it comes from.
    pub client: IpAddr,
}

impl<'r> Record<'r> {
    fn decoder(&self) -> Decoder<'r> {
        match self.placement {
            Some(placement) => Decoder::without_payload(self.bytes, placement),
            None => Decoder::new(self.bytes),
        }
    }

    /// Length of the whole record in bytes.
    fn length(&self) -> usize {
        self.bytes.len() + self.placement.map_or(0, |it| it.length)
    }
}

/// What a server is made with.
#[derive(Debug)]
pub struct ServerOptions {
    /// Identifies the server to clients across restarts, at most 1024 bytes.
    pub identity: Vec<u8>,
    /// Differs from that of every earlier start.
    pub instance: u64,
    /// The volumes.
    pub volumes: Vec<Volume>,
    /// The directories that clients can mount.
    pub shares: Vec<Share>,
    /// Owners of the clients that had state before the restart and may reclaim it.
    pub reclaiming: Vec<Box<[u8]>>,
    /// Whether the user stores the records of clients ([`Server::take_records`]). Otherwise no
    /// client can reclaim after a restart.
    pub keeps_records: bool,
    /// What is counted.
    pub counters: Arc<ServerCounters>,
}

/// The server.
#[derive(Debug)]
pub struct Server {
    pub(crate) identity: Vec<u8>,
    pub(crate) instance: u64,
    pub(crate) started: Time,
    /// When the shares were set.
    pub(crate) shared: Time,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) shares: Vec<Share>,
    pub(crate) clients: Table<Client>,
    pub(crate) sessions: Table<Session>,
    /// Limit of the replies that all sessions may keep, in bytes.
    pub(crate) cache_bytes: usize,
    pub(crate) states: States,
    pub(crate) grace: Grace,
    pub(crate) records: Records,
    /// Files of removed states whose volume was busy.
    pub(crate) unclosed: Vec<FileId>,
    /// How often a volume was lost.
    pub(crate) losses: u64,
    /// What clients have open on volumes that are lost, with the generations of the objects.
    pub(crate) open_on_lost: NumberMap<FileId, u32>,
    pub(crate) counters: Arc<ServerCounters>,
    /// How often executions have begun or continued.
    pub(crate) steps: u64,
}

impl Server {
    /// A server without clients.
    ///
    /// # Panics
    /// Panics if a share refers to no volume.
    #[must_use]
    pub fn new(options: ServerOptions, now: &Now) -> Self {
        let ServerOptions {
            identity,
            instance,
            volumes,
            shares,
            reclaiming,
            keeps_records,
            counters,
        } = options;
        assert!(shares.iter().all(|it| it.volume.0 < volumes.len()));
        let first_generation = instance as u32;
        Self {
            identity,
            instance,
            started: now.time,
            shared: now.time,
            volumes,
            shares,
            clients: Table::new(CLIENTS_MAX, first_generation),
            sessions: Table::new(SESSIONS_MAX, first_generation),
            cache_bytes: 0,
            states: States::new(first_generation),
            records: Records::new(&reclaiming, keeps_records, now.monotonic_ms),
            grace: Grace::new(reclaiming, now),
            unclosed: Vec::new(),
            losses: 0,
            open_on_lost: NumberMap::default(),
            counters,
            steps: 0,
        }
    }

    /// The volumes, whose requests the user carries out.
    pub fn volumes_mut(&mut self) -> &mut [Volume] {
        &mut self.volumes
    }

    /// The volumes.
    #[must_use]
    pub fn volumes(&self) -> &[Volume] {
        &self.volumes
    }

    /// What is counted.
    #[must_use]
    pub fn counters(&self) -> &ServerCounters {
        &self.counters
    }

    /// Number of clients, sessions, and open or lock states.
    #[must_use]
    pub fn counts(&self) -> (usize, usize, usize) {
        (
            self.clients.len(),
            self.sessions.len(),
            self.states.table.len(),
        )
    }

    /// The verifier of this start, which clients compare to find lost unstable writes. The loss of a
    /// volume changes it.
    pub(crate) fn write_verifier(&self) -> Verifier {
        // Starts are further apart than volumes are lost.
        self.instance.wrapping_add(self.losses).to_be_bytes()
    }

    /// Does what time requires: removes clients that have been silent for too long, closes files
    /// whose volume was busy, and frees files without links that nobody has reclaimed. The user
    /// calls it about once in a second.
    pub fn tick(&mut self, now: &Now) {
        self.expire_clients(now);
        self.advance_grace(now);
        if !self.grace.is_active() {
            let with_state = self.clients.iter().filter(|(_, it)| !it.states.is_empty());
            let with_state = with_state.map(|(_, it)| &*it.owner).collect();
            self.records.remove_unused(&with_state);
            for client in self.clients.values_mut() {
                client.is_recorded &= self.records.contains(&client.owner);
            }
            for volume in &mut self.volumes {
                volume.reap_orphans(ORPHANS_PER_TICK_MAX);
            }
        }
        let unclosed = std::mem::take(&mut self.unclosed);
        for file in unclosed {
            if self.volumes[file.0.0].close(file.1).is_err() {
                self.unclosed.push(file);
            }
        }
        self.set_levels();
    }

    /// Begins the execution of a record that a connection of this `caller` has received.
    pub fn begin<'r>(
        &mut self,
        x: &mut Execution,
        record: &Record<'r>,
        caller: &mut Caller,
        now: &Now,
    ) -> Step<'r> {
        x.reset();
        self.steps += 1;
        self.advance_grace(now);
        let xid = match caller.recognize(record.bytes) {
            Some((xid, header)) => {
                x.header = *header;
                xid
            }
            None => match begin_call(x, record, caller) {
                Ok(xid) => xid,
                Err(step) => return step,
            },
        };
        let Ok(args) = arguments(record, x) else {
            return refused(x, &Reply::accepted(xid, AcceptStatus::GarbageArgs));
        };
        x.begin(xid, args.tag);
        if let Err(status) = args.check() {
            x.end(status);
            return Step::Reply;
        }
        x.minor_version = args.minor_version;
        x.address = record.client;
        self.counters.requests.add(1);
        self.execute_operations(x, record, args.operations, now)
    }

    /// Continues an execution whose last step has ended. The record is that of [`Self::begin`].
    pub fn resume<'r>(
        &mut self,
        x: &mut Execution,
        record: &Record<'r>,
        resumption: Resumption,
        now: &Now,
    ) -> Step<'r> {
        self.steps += 1;
        self.advance_grace(now);
        let waiting = std::mem::replace(&mut x.waiting, Waiting::No);
        let is_ok = resumption == Resumption::Done;
        let is_last = match waiting {
            Waiting::Read(read) => read.is_last,
            Waiting::Write(write) | Waiting::Record(write) => write.is_last,
            Waiting::No | Waiting::Volume | Waiting::Durable(_) => false,
        };
        let (number, ended) = match waiting {
            Waiting::No => return Step::Ignore,
            Waiting::Volume => return self.run(x, record, now),
            Waiting::Durable(status) => return self.end_if_durable(x, status),
            Waiting::Read(_) if !is_ok => {
                let status = status_of(resumption);
                (OperationNumber::READ, Err(status.into()))
            }
            Waiting::Read(read) => match self.end_read(x, &read) {
                // The file has changed: the operation is executed again.
                Ok(false) => return self.run(x, record, now),
                ended => (OperationNumber::READ, ended.map(|_| Flow::Done)),
            },
            Waiting::Write(write) if !is_ok => {
                self.volumes[write.volume.0].write_failed(write.id);
                let status = status_of(resumption);
                (OperationNumber::WRITE, Err(status.into()))
            }
            Waiting::Write(write) | Waiting::Record(write) => {
                (OperationNumber::WRITE, self.end_write(x, write, now))
            }
        };
        match self.after(x, number, ended) {
            Some(step) => step,
            None if is_last => self.finish(x, Status::OK),
            None => self.run(x, record, now),
        }
    }

    /// The owners of the clients that may reclaim after a restart, with the version of this list, if
    /// it was not taken before. They replace what is stored.
    pub fn take_records(&mut self) -> Option<(u64, Vec<Box<[u8]>>)> {
        self.records.take()
    }

    /// A version of the records is stored, so that it survives a loss of power. Executions that
    /// [`Self::is_durable`] tells can be resumed.
    pub fn records_stored(&mut self, version: u64) {
        self.records.set_stored(version);
    }

    /// The user stores the records of clients from now on, those of present ones included.
    pub fn keep_records(&mut self) {
        self.records.keep();
    }

    /// Whether the user stores the records of clients.
    #[must_use]
    pub fn keeps_records(&self) -> bool {
        self.records.is_kept()
    }

    /// Whether every change that an execution waits for with [`Step::AwaitDurable`] has ended.
    #[must_use]
    pub fn is_durable(&self, x: &Execution) -> bool {
        let is_over = |(volume, ticket): &(VolumeIndex, Ticket)| {
            self.volumes[volume.0].progress(*ticket) != Progress::Pending
        };
        x.awaited.iter().all(is_over) && self.records.is_stored(x.records)
    }

    /// Executes the remaining operations.
    fn run<'r>(&mut self, x: &mut Execution, record: &Record<'r>, now: &Now) -> Step<'r> {
        let Ok(args) = arguments(record, x) else {
            // The record was decoded before.
            x.end(Status::SERVERFAULT);
            return Step::Reply;
        };
        self.execute_operations(x, record, args.operations, now)
    }

    /// Executes the operations of a record from the next one on.
    fn execute_operations<'r>(
        &mut self,
        x: &mut Execution,
        record: &Record<'r>,
        mut operations: Operations<'r>,
        now: &Now,
    ) -> Step<'r> {
        let total = operations.left();
        if x.next > 0 {
            operations.nth(x.next - 1);
        }
        while operations.left() > 0 {
            let position = Position {
                is_only: total == 1,
                is_last: x.next + 1 == total,
            };
            let executed = self.execute_next(x, record, &mut operations, position, now);
            let (number, ended) = match executed {
                Ok(executed) => executed,
                Err(malformed) => {
                    let status = malformed.error.status();
                    x.push_failure(malformed.number, status);
                    self.counters.count(malformed.number, false);
                    return self.finish(x, status);
                }
            };
            let number = match ended {
                // RFC 8881 §2.10.6.1.3: the failure is that of the second operation.
                Err(Refusal::Status(Status::RETRY_UNCACHED_REP)) => second(&mut operations),
                _ => number,
            };
            if let Some(step) = self.after(x, number, ended) {
                return step;
            }
        }
        self.finish(x, Status::OK)
    }

    /// Decodes and executes the next operation. Returns its number, and how it has ended.
    ///
    /// The operations of READ and WRITE requests are decoded by themselves: an `Operation` is as
    /// large as the largest one.
    fn execute_next<'r>(
        &mut self,
        x: &mut Execution,
        record: &Record<'r>,
        operations: &mut Operations<'r>,
        position: Position,
        now: &Now,
    ) -> Result<(OperationNumber, Result<Flow<'r>, Refusal>), Malformed> {
        let number = operations.peek().unwrap_or(OperationNumber::ILLEGAL);
        let checked = check_position(x, number, position);
        let ended = match number {
            OperationNumber::SEQUENCE => {
                let args = operations.args()?;
                let shape = RequestShape {
                    bytes: record.length(),
                    operations: operations.left() + 1,
                    fingerprint: Fingerprint::of(&x.header, operations.rest(), record.placement),
                };
                checked.and_then(|()| self.begin_sequence(x, &args, shape, position, now))
            }
            OperationNumber::PUTFH => {
                let handle: FileHandle<'_> = operations.args()?;
                checked.and_then(|()| self.put_handle(x, handle.0))
            }
            OperationNumber::GETATTR => {
                let chosen = operations.args()?;
                let got = checked.and_then(|()| self.get_attributes(x, &chosen));
                got.map(|()| Flow::Done)
            }
            OperationNumber::READ => {
                let args = operations.args()?;
                checked.and_then(|()| self.read(x, &args, position, now))
            }
            OperationNumber::WRITE => {
                let args = operations.args()?;
                checked.and_then(|()| self.write(x, &args, position, now))
            }
            _ if operations.peek().is_some() && !number.is_in(x.minor_version) => {
                // RFC 8881 §15.1.3.4: in a session or not, and its arguments are unknown.
                return Ok((OperationNumber::ILLEGAL, Err(Status::OP_ILLEGAL.into())));
            }
            _ => match operations.next() {
                // By reference: it is large.
                Some(Ok(operation)) => {
                    checked.and_then(|()| self.execute(x, &operation, position, now))
                }
                Some(Err(malformed)) => return Err(malformed),
                None => checked.map(|()| Flow::Done),
            },
        };
        Ok((number, ended))
    }

    /// SEQUENCE, the first operation of a request.
    fn begin_sequence<'r>(
        &mut self,
        x: &mut Execution,
        args: &SequenceArgs,
        shape: RequestShape,
        position: Position,
        now: &Now,
    ) -> Result<Flow<'r>, Refusal> {
        match self.sequence(x, args, shape, now)? {
            Sequenced::New => {
                x.end_sequence();
                Ok(Flow::Done)
            }
            Sequenced::Replayed => Ok(Flow::Replayed),
            Sequenced::NotKept if position.is_only => Ok(Flow::Done),
            Sequenced::NotKept => {
                x.next += 1;
                Err(Status::RETRY_UNCACHED_REP.into())
            }
        }
    }

    /// What follows the end of an operation: `None` to go on.
    fn after<'r>(
        &mut self,
        x: &mut Execution,
        number: OperationNumber,
        ended: Result<Flow<'r>, Refusal>,
    ) -> Option<Step<'r>> {
        match ended {
            Ok(Flow::Done) => {
                self.counters.count(number, true);
                x.next += 1;
                x.created = None;
                None
            }
            Ok(Flow::Failed(status)) => {
                self.counters.count(number, false);
                Some(self.finish(x, status))
            }
            Ok(Flow::Replayed) => {
                self.counters.replays.add(1);
                Some(Step::Reply)
            }
            Ok(Flow::Suspended(step)) => Some(step),
            Err(Refusal::Busy) => {
                x.waiting = Waiting::Volume;
                Some(Step::AwaitVolume)
            }
            Err(Refusal::Status(status)) => {
                self.counters.count(number, false);
                x.push_failure(number, status);
                Some(self.finish(x, status))
            }
        }
    }

    /// Ends the reply when all changes of the request are durable, and the records of clients that
    /// it depends on.
    fn finish<'r>(&mut self, x: &mut Execution, status: Status) -> Step<'r> {
        let client = x.slot.and_then(|slot| self.clients.get_mut(slot.client));
        if let Some(client) = client.filter(|it| it.needs_record()) {
            client.is_recorded = true;
            self.records.add(&client.owner);
        }
        x.records = self.records.required();
        self.end_if_durable(x, status)
    }

    fn end_if_durable<'r>(&mut self, x: &mut Execution, status: Status) -> Step<'r> {
        if !self.is_durable(x) {
            x.waiting = Waiting::Durable(status);
            return Step::AwaitDurable;
        }
        let mut awaited = x.awaited.iter();
        let failed =
            awaited.find(|(volume, it)| self.volumes[volume.0].progress(*it) == Progress::Failed);
        let status = match failed {
            // Which of the changes are lost is not known.
            Some((volume, _)) => {
                let status = match self.volumes[volume.0].is_lost() {
                    true => Status::DELAY,
                    // The volume accepts no further changes.
                    false => Status::IO,
                };
                x.fail_all(OperationNumber::PUTFH, status);
                self.end_opened(x);
                status
            }
            None => status,
        };
        x.end(status);
        self.release_slot(x);
        Step::Reply
    }

    /// Ends the open states of which a client does not learn, unless another request has used them.
    fn end_opened(&mut self, x: &mut Execution) {
        while let Some((key, created)) = x.opened.pop() {
            if self.states.table.get(key).is_some() && self.state_id(key) == created {
                self.drop_state(key);
            }
        }
    }
}

/// The position of an operation in its request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub(crate) is_only: bool,
    pub(crate) is_last: bool,
}

/// The status of a READ or WRITE whose data did not move.
fn status_of(resumption: Resumption) -> Status {
    match resumption {
        // The client sends it again: over another connection, or when the device is back.
        Resumption::DataLost | Resumption::DeviceGone => Status::DELAY,
        Resumption::Done | Resumption::DeviceFailed => Status::IO,
    }
}

/// Checks that an operation may be where it is (RFC 8881 §18.46).
fn check_position(
    x: &Execution,
    number: OperationNumber,
    position: Position,
) -> Result<(), Refusal> {
    let is_alone_without_session = matches!(
        number,
        OperationNumber::EXCHANGE_ID
            | OperationNumber::CREATE_SESSION
            | OperationNumber::DESTROY_SESSION
            | OperationNumber::DESTROY_CLIENTID
            | OperationNumber::BIND_CONN_TO_SESSION
    );
    let status = match number {
        OperationNumber::SEQUENCE if x.next == 0 => return Ok(()),
        OperationNumber::SEQUENCE => Status::SEQUENCE_POS,
        OperationNumber::BIND_CONN_TO_SESSION if !position.is_only => Status::NOT_ONLY_OP,
        _ if x.slot.is_some() => return Ok(()),
        _ if is_alone_without_session && position.is_only => return Ok(()),
        _ if is_alone_without_session => Status::NOT_ONLY_OP,
        _ => Status::OP_NOT_IN_SESSION,
    };
    Err(status.into())
}

/// The number of the operation behind SEQUENCE.
fn second(operations: &mut Operations<'_>) -> OperationNumber {
    match operations.next() {
        Some(Ok(operation)) => operation.number(),
        Some(Err(malformed)) => malformed.number,
        None => OperationNumber::ILLEGAL,
    }
}

fn refused<'r>(x: &mut Execution, reply: &Reply<'_>) -> Step<'r> {
    x.refuse(reply);
    Step::Reply
}

/// Decodes the header of a call of COMPOUND. Returns its identifier, or the step that ends another
/// call.
fn begin_call<'r>(
    x: &mut Execution,
    record: &Record<'r>,
    caller: &mut Caller,
) -> Result<u32, Step<'r>> {
    let mut from = record.decoder();
    let call = match Call::decode(&mut from) {
        Ok(call) => call,
        Err(CallError::NotACall) => return Err(Step::Ignore),
        Err(CallError::Refused(reply)) => return Err(refused(x, &reply)),
    };
    if let Err(reply) = call.check(NFS_PROGRAM, NFS_VERSION) {
        return Err(refused(x, &reply));
    }
    if call.procedure == Procedure::NULL {
        return Err(refused(
            x,
            &Reply::accepted(call.xid, AcceptStatus::Success),
        ));
    }
    x.header = Header::of(record.bytes, &call, from.position());
    caller.learn(record.bytes, &x.header);
    Ok(call.xid)
}

/// The arguments of a call, whose header is decoded.
fn arguments<'r>(record: &Record<'r>, x: &Execution) -> Result<CompoundArgs<'r>, DecodeError> {
    let from = record.decoder().behind(x.header.bytes)?;
    CompoundArgs::decode(from)
}

/// Identifies a request by its header, the beginning of the operations behind SEQUENCE, and their
/// length; its identifier may differ in a retransmission. Servers need not find every difference
/// (RFC 8881 §2.10.6.1.3.1), and only the client itself could make two requests alike.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fingerprint {
    /// The header, and the length with the payload.
    outline: u64,
    /// The beginning of what is in the record.
    beginning: u64,
    /// Whether the payload is elsewhere.
    is_placed: bool,
}

impl Fingerprint {
    #[inline]
    pub(crate) fn of(header: &Header, operations: &[u8], placement: Option<Placement>) -> Self {
        let beginning = &operations[..operations.len().min(FINGERPRINT_BYTES_MAX)];
        let payload = placement.map_or(0, |it| it.length);
        let outline = header.fingerprint ^ (operations.len() + payload) as u64;
        Self {
            outline,
            beginning: fingerprint(outline, beginning),
            is_placed: placement.is_some(),
        }
    }

    /// Whether both may be of the same request. A retransmission over another transport may have its
    /// payload elsewhere.
    #[inline]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match self.is_placed == other.is_placed {
            true => self.beginning == other.beginning,
            false => self.outline == other.outline,
        }
    }
}

/// Identifies bytes behind those with the fingerprint `sum`.
#[inline]
pub(crate) fn fingerprint(sum: u64, bytes: &[u8]) -> u64 {
    /// An odd number without a pattern.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let add = |sum: u64, word: u64| (sum.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().map(|it| u64::from_le_bytes(*it));
    let sum = words.fold(sum, add);
    rest.iter()
        .fold(sum, |sum, byte| add(sum, u64::from(*byte)))
}
