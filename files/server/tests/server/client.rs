//! A server with one volume, and clients that send it records.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use files_client::{CompoundHeader, requests};
use files_server::{
    Caller, Clients, Execution, Lender, Now, Record, Resumption, Server, ServerOptions, Share,
    ShareNumber, Squash, Step, VolumeIndex,
};
use files_spec::compound::CompoundOk;
use files_spec::operations::{
    ChannelAttributes, CreateSessionArgs, ExchangeIdArgs, Operation, OperationResult, Outcome,
    SequenceArgs,
};
use files_spec::rpc::Reply;
use files_spec::types::SessionId;
use files_spec::xdr::{Decoder, List, Payload, Xdr};
use files_spec::{Name, Status};
use files_store::{
    DiskCompletion, Operation as DiskOperation, Range, ShareId, Time, Uuid, VolatileOptions, Volume,
};

/// The address of clients, unless a test says otherwise.
pub(crate) const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
pub(crate) const DEVICE_BYTES: usize = 8 << 20;

/// The server, its device and its clock.
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) device: Vec<u8>,
    pub(crate) now: Now,
    /// Whether the device fails.
    pub(crate) fails: bool,
    /// The records of clients, and whether new ones are stored.
    pub(crate) records: Vec<Box<[u8]>>,
    pub(crate) stores_records: bool,
    pub(crate) uid: u32,
    /// Where requests come from.
    pub(crate) address: IpAddr,
    /// The connection of all clients.
    pub(crate) caller: Caller,
    /// What their requests are named.
    pub(crate) tag: &'static [u8],
    /// Whether the device lends its memory, and how many reads were executed at once.
    pub(crate) lends: bool,
    pub(crate) read_at_once: usize,
    xid: u32,
}

/// A device that lends its memory.
struct Memory<'m> {
    device: &'m [u8],
    lends: bool,
    lent: &'m mut Vec<Vec<u8>>,
}

impl Lender for Memory<'_> {
    fn lends(&self, _: VolumeIndex) -> bool {
        self.lends
    }

    fn lend(&mut self, _: VolumeIndex, range: Range) -> bool {
        let length = range.length as usize;
        self.lent.push(match range.device {
            Some(at) => self.device[at as usize..][..length].to_vec(),
            None => vec![0; length],
        });
        true
    }
}

/// A reply with the bytes of its payload.
pub(crate) struct Answer(Vec<u8>);

impl Answer {
    /// Status of the COMPOUND, and the results.
    pub(crate) fn parts(&self) -> (Status, Vec<OperationResult<'_>>) {
        let mut from = Decoder::new(&self.0);
        Reply::decode(&mut from).expect("a reply");
        let ok = CompoundOk::decode(from).expect("a COMPOUND");
        let status = ok.status;
        let mut results = ok.results;
        let all: Vec<_> = results.by_ref().map(|it| it.expect("valid")).collect();
        assert_eq!(results.finish(), Ok(()));
        let last = all.last().map_or(status, OperationResult::status);
        assert_eq!(status, last, "the status is that of the last result");
        (status, all)
    }

    pub(crate) fn status(&self) -> Status {
        self.parts().0
    }

    /// The last result.
    pub(crate) fn last(&self) -> OperationResult<'_> {
        *self.parts().1.last().expect("a result")
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

pub(crate) fn share(is_read_only: bool, squash: Squash) -> Share {
    Share {
        number: ShareNumber(7),
        name: "data".to_owned(),
        volume: VolumeIndex(0),
        directory: files_store::InodeId(1),
        part: ShareId(0),
        is_read_only,
        squash,
        clients: Clients::Any,
        counters: Arc::default(),
    }
}

pub(crate) fn volatile_volume() -> Volume {
    Volume::volatile(&VolatileOptions {
        uuid: Uuid([3; 16]),
        device_bytes: DEVICE_BYTES as u64,
        memory_bytes: 16 << 20,
    })
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(volatile_volume(), share(false, Squash::None), Vec::new())
    }

    pub(crate) fn with(volume: Volume, share: Share, reclaiming: Vec<Box<[u8]>>) -> Self {
        let now = Now {
            monotonic_ms: 1_000_000,
            time: Time {
                seconds: 1_000,
                nanoseconds: 5,
            },
        };
        let options = ServerOptions {
            identity: b"test".to_vec(),
            instance: 0x1234_5678_9abc_def0,
            volumes: vec![volume],
            shares: vec![share],
            reclaiming,
            keeps_records: true,
            counters: Arc::default(),
        };
        Self {
            server: Server::new(options, &now),
            device: vec![0xee; DEVICE_BYTES],
            now,
            fails: false,
            records: Vec::new(),
            stores_records: true,
            uid: 0,
            address: ADDRESS,
            caller: Caller::default(),
            tag: b"tag",
            lends: false,
            read_at_once: 0,
            xid: 0,
        }
    }

    /// Stores new records of clients.
    pub(crate) fn store_records(&mut self) {
        if self.stores_records
            && let Some((version, owners)) = self.server.take_records()
        {
            self.records = owners;
            self.server.records_stored(version);
        }
    }

    pub(crate) fn advance(&mut self, ms: u64) {
        self.now.monotonic_ms += ms;
        self.now.time.seconds += ms as i64 / 1000;
    }

    /// The record of a COMPOUND.
    pub(crate) fn record(&mut self, operations: &[Operation<'_>], minor_version: u32) -> Vec<u8> {
        self.xid += 1;
        let header = CompoundHeader {
            xid: self.xid,
            uid: self.uid,
            tag: self.tag,
            minor_version,
        };
        header.record(operations)
    }

    /// Sends operations without a session.
    pub(crate) fn send(&mut self, operations: &[Operation<'_>]) -> Answer {
        let record = self.record(operations, 1);
        self.send_record(&record)
    }

    /// Executes a record, moves data, and returns the reply.
    pub(crate) fn send_record(&mut self, bytes: &[u8]) -> Answer {
        let mut x = Execution::new();
        Answer(self.execute(&mut x, bytes).expect("a reply"))
    }

    /// Executes a request at once, if it is a READ of what the device lends.
    pub(crate) fn reads_at_once(
        &mut self,
        x: &mut Execution,
        record: &Record<'_>,
        lent: &mut Vec<Vec<u8>>,
    ) -> bool {
        let mut memory = Memory {
            device: &self.device,
            lends: self.lends,
            lent,
        };
        let (caller, now) = (&self.caller, &self.now);
        let is_done = self
            .server
            .read_at_once(x, record, caller, now, &mut memory);
        self.read_at_once += usize::from(is_done);
        is_done
    }

    fn execute(&mut self, x: &mut Execution, bytes: &[u8]) -> Option<Vec<u8>> {
        let record = Record {
            bytes,
            placement: None,
            client: self.address,
        };
        let mut payloads = Vec::new();
        let mut step = match self.reads_at_once(x, &record, &mut payloads) {
            true => Step::Reply,
            false => self.server.begin(x, &record, &mut self.caller, &self.now),
        };
        loop {
            match step {
                Step::Ignore => return None,
                Step::Reply => break,
                Step::Read { .. } => {
                    let mut data = Vec::new();
                    for range in x.ranges() {
                        match range.device {
                            Some(at) => data.extend_from_slice(
                                &self.device[at as usize..][..range.length as usize],
                            ),
                            None => data.resize(data.len() + range.length as usize, 0),
                        }
                    }
                    payloads.push(data);
                }
                Step::Write { data, .. } => {
                    let Payload::Inline(data) = data else {
                        panic!("the payload is in the record");
                    };
                    let pieces = x.pieces().to_vec();
                    self.write(&pieces, data);
                }
                Step::AwaitDurable | Step::AwaitVolume => self.serve_volume(),
            }
            let resumption = match self.fails {
                true => Resumption::DeviceFailed,
                false => Resumption::Done,
            };
            step = self.server.resume(x, &record, resumption, &self.now);
            payloads.truncate(x.holes().len());
        }
        let mut message = Vec::new();
        let mut at = 0;
        for (hole, data) in x.holes().iter().zip(&payloads) {
            message.extend_from_slice(&x.reply()[at..hole.at]);
            assert_eq!(data.len(), hole.length as usize);
            message.extend_from_slice(data);
            at = hole.at;
        }
        message.extend_from_slice(&x.reply()[at..]);
        assert_eq!(message.len(), x.message_bytes());
        Some(message)
    }

    fn write(&mut self, pieces: &[files_store::MovePiece], mut data: &[u8]) {
        for piece in pieces {
            let mut block = vec![0xdd; piece.length as usize];
            if let Some(keep) = piece.keep {
                block.copy_from_slice(&self.device[keep as usize..][..piece.length as usize]);
            }
            let (now, rest) = data.split_at(piece.data_length as usize);
            block[piece.data_at as usize..][..now.len()].copy_from_slice(now);
            self.device[piece.device as usize..][..block.len()].copy_from_slice(&block);
            data = rest;
        }
        assert!(data.is_empty());
    }

    /// Carries out the requests of the volume.
    pub(crate) fn serve_volume(&mut self) {
        self.store_records();
        let volume = &mut self.server.volumes_mut()[0];
        while let Some(request) = volume.poll() {
            let data = match request.operation {
                DiskOperation::Read { offset, length } => {
                    self.device[offset as usize..][..length].to_vec()
                }
                DiskOperation::Write { offset, data } => {
                    self.device[offset as usize..][..data.len()].copy_from_slice(&data);
                    data
                }
                DiskOperation::Flush => Vec::new(),
            };
            volume.complete(DiskCompletion {
                id: request.id,
                is_ok: !self.fails,
                data,
            });
        }
    }
}

/// Limits of a channel as Linux asks for them.
pub(crate) const CHANNEL: ChannelAttributes = ChannelAttributes {
    headerpadsize: 0,
    maxrequestsize: 1 << 20,
    maxresponsesize: 1 << 20,
    maxresponsesize_cached: 4096,
    maxoperations: 16,
    maxrequests: 8,
    rdma_ird: None,
};

pub(crate) fn exchange<'a>(owner: &'a [u8], verifier: u8, flags: u32) -> Operation<'a> {
    match requests::exchange_id(owner, [verifier; 8]) {
        Operation::ExchangeId(args) => Operation::ExchangeId(ExchangeIdArgs { flags, ..args }),
        other => other,
    }
}

pub(crate) fn create_session<'a>(
    clientid: u64,
    sequence: u32,
    channel: ChannelAttributes,
) -> Operation<'a> {
    Operation::CreateSession(CreateSessionArgs {
        clientid,
        sequence,
        flags: 0,
        fore_chan_attrs: channel,
        back_chan_attrs: channel,
        cb_program: 0x4000_0000,
        sec_parms: List::new(&[]),
    })
}

/// A client with one session.
#[derive(Clone, Copy)]
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) session: SessionId,
    /// Sequence number of the latest request of slot 0.
    pub(crate) sequence: u32,
    pub(crate) minor_version: u32,
}

impl Client {
    /// A confirmed client that has nothing to reclaim.
    pub(crate) fn new(world: &mut World, owner: &[u8]) -> Self {
        let mut client = Self::unreclaimed(world, owner, CHANNEL);
        client.ok(world, &[Operation::ReclaimComplete(false)]);
        client
    }

    pub(crate) fn unreclaimed(world: &mut World, owner: &[u8], channel: ChannelAttributes) -> Self {
        let answer = world.send(&[exchange(owner, 1, 0)]);
        let OperationResult::ExchangeId(Outcome::Ok(ok)) = answer.last() else {
            panic!("{:?}", answer.parts());
        };
        let (id, sequence) = (ok.clientid, ok.sequenceid);
        let answer = world.send(&[create_session(id, sequence, channel)]);
        let OperationResult::CreateSession(Outcome::Ok(ok)) = answer.last() else {
            panic!("{:?}", answer.parts());
        };
        Self {
            id,
            session: ok.sessionid,
            sequence: 0,
            minor_version: 1,
        }
    }

    pub(crate) fn sequence_args(&self) -> SequenceArgs {
        SequenceArgs {
            sessionid: self.session,
            sequenceid: self.sequence,
            slotid: 0,
            highest_slotid: 0,
            cachethis: false,
        }
    }

    /// Sends operations behind SEQUENCE.
    pub(crate) fn send(&mut self, world: &mut World, operations: &[Operation<'_>]) -> Answer {
        let record = self.next_record(world, operations, false);
        world.send_record(&record)
    }

    /// The record of the next request.
    pub(crate) fn next_record(
        &mut self,
        world: &mut World,
        operations: &[Operation<'_>],
        cachethis: bool,
    ) -> Vec<u8> {
        self.sequence += 1;
        let args = SequenceArgs {
            cachethis,
            ..self.sequence_args()
        };
        let mut all = vec![Operation::Sequence(args)];
        all.extend_from_slice(operations);
        world.record(&all, self.minor_version)
    }

    /// Sends operations that succeed.
    pub(crate) fn ok(&mut self, world: &mut World, operations: &[Operation<'_>]) -> Answer {
        let answer = self.send(world, operations);
        assert_eq!(answer.status(), Status::OK, "{:?}", answer.parts());
        answer
    }

    /// Sends operations of which the last one fails with this status.
    pub(crate) fn fails(
        &mut self,
        world: &mut World,
        operations: &[Operation<'_>],
        status: Status,
    ) {
        let answer = self.send(world, operations);
        let (actual, results) = answer.parts();
        assert_eq!(actual, status, "{operations:?}");
        assert_eq!(results.len(), operations.len() + 1, "the last one fails");
    }
}

pub(crate) fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("valid")
}

/// Goes to the directory of the share.
pub(crate) fn at_share() -> [Operation<'static>; 2] {
    [
        Operation::PutRootFh(()),
        Operation::Lookup(Name::new(b"data").expect("valid")),
    ]
}

/// Operations in the directory of the share.
pub(crate) fn in_share<'a>(operations: &[Operation<'a>]) -> Vec<Operation<'a>> {
    let mut all: Vec<Operation<'a>> = at_share().to_vec();
    all.extend_from_slice(operations);
    all
}
