//! A client over a blocking socket.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use files_spec::attributes::Attributes;
use files_spec::compound::{CompoundOk, Writer};
use files_spec::operations::{
    ChannelAttributes, Claim, ClientOwner, CreateHow, CreateSessionArgs, ExchangeIdArgs, OpenArgs,
    OpenHow, Operation, OperationResult, Outcome, ProtectionArgs, ReadArgs, SequenceArgs,
    WriteArgs,
};
use files_spec::rpc::{
    AuthSys, Call, Credential, Fragment, NFS_PROGRAM, NFS_VERSION, Procedure, Reply,
};
use files_spec::types::{Owner, SessionId, Stable, StateId};
use files_spec::xdr::{Decoder, Encoder, List, Opaque, Payload, Xdr};
use files_spec::{Name, Status};

/// Generous limit for every wait of a test, for busy machines.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A connection.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    xid: u32,
}

impl Connection {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        Self { stream, xid: 0 }
    }

    /// A record of operations.
    pub(crate) fn record(&mut self, operations: &[Operation<'_>]) -> Vec<u8> {
        self.xid += 1;
        let mut memory = vec![0; 2 << 20];
        let mut to = Encoder::new(&mut memory);
        let call = Call {
            xid: self.xid,
            program: NFS_PROGRAM,
            version: NFS_VERSION,
            procedure: Procedure::COMPOUND,
            credential: Credential::Sys(AuthSys {
                stamp: 0,
                machinename: Opaque(b"host"),
                uid: 0,
                gid: 0,
                gids: List::new(&[]),
            }),
        };
        call.encode(&mut to).expect("fits");
        let mut writer = Writer::request(&mut to, Opaque(b""), 1).expect("fits");
        for operation in operations {
            writer.push(operation).expect("fits");
        }
        writer.finish();
        to.written().to_vec()
    }

    /// Sends a record in one fragment.
    pub(crate) fn send(&mut self, record: &[u8]) {
        let mark = Fragment::whole(record.len()).encode();
        let bytes = [&mark[..], record].concat();
        self.stream.write_all(&bytes).expect("it is open");
    }

    /// The next reply.
    pub(crate) fn receive(&mut self) -> Answer {
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark).expect("a reply");
        let fragment = Fragment::decode(mark);
        assert!(fragment.is_last);
        let mut bytes = vec![0; fragment.length as usize];
        self.stream.read_exact(&mut bytes).expect("a reply");
        Answer(bytes)
    }

    pub(crate) fn call(&mut self, operations: &[Operation<'_>]) -> Answer {
        let record = self.record(operations);
        self.send(&record);
        self.receive()
    }

    /// Whether the peer has closed the connection.
    pub(crate) fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 1]), Ok(0) | Err(_))
    }
}

/// A reply.
pub(crate) struct Answer(pub(crate) Vec<u8>);

impl Answer {
    pub(crate) fn parts(&self) -> (Status, Vec<OperationResult<'_>>) {
        let mut from = Decoder::new(&self.0);
        Reply::decode(&mut from).expect("a reply");
        let ok = CompoundOk::decode(from).expect("a COMPOUND");
        (ok.status, ok.results.map(|it| it.expect("valid")).collect())
    }

    pub(crate) fn last(&self) -> OperationResult<'_> {
        *self.parts().1.last().expect("a result")
    }

    pub(crate) fn assert_ok(&self) {
        let (status, results) = self.parts();
        assert_eq!(status, Status::OK, "{results:?}");
    }
}

/// A slot of a session with an open file.
#[derive(Clone, Copy)]
pub(crate) struct Slot {
    session: SessionId,
    slotid: u32,
    pub(crate) sequence: u32,
    pub(crate) stateid: StateId,
}

const SLOTS: u32 = 64;

impl Slot {
    /// Creates a session, and opens the file `f`.
    pub(crate) fn new(connection: &mut Connection, owner: &[u8]) -> Self {
        let exchange = Operation::ExchangeId(ExchangeIdArgs {
            clientowner: ClientOwner {
                verifier: [1; 8],
                ownerid: Opaque(owner),
            },
            flags: 0,
            state_protect: ProtectionArgs::None,
            client_impl_id: List::new(&[]),
        });
        let answer = connection.call(&[exchange]);
        let OperationResult::ExchangeId(Outcome::Ok(ok)) = answer.last() else {
            panic!("{:?}", answer.parts());
        };
        let channel = ChannelAttributes {
            headerpadsize: 0,
            maxrequestsize: 2 << 20,
            maxresponsesize: 2 << 20,
            maxresponsesize_cached: 4096,
            maxoperations: 16,
            maxrequests: SLOTS,
            rdma_ird: None,
        };
        let create = Operation::CreateSession(CreateSessionArgs {
            clientid: ok.clientid,
            sequence: ok.sequenceid,
            flags: 0,
            fore_chan_attrs: channel,
            back_chan_attrs: channel,
            cb_program: 0,
            sec_parms: List::new(&[]),
        });
        let answer = connection.call(&[create]);
        let OperationResult::CreateSession(Outcome::Ok(ok)) = answer.last() else {
            panic!("{:?}", answer.parts());
        };
        let mut slot = Self {
            session: ok.sessionid,
            slotid: 0,
            sequence: 0,
            stateid: StateId::ANONYMOUS,
        };
        slot.call(connection, &[Operation::ReclaimComplete(false)])
            .assert_ok();
        let open = Operation::Open(OpenArgs {
            seqid: 0,
            share_access: 3,
            share_deny: 0,
            owner: Owner {
                clientid: 0,
                owner: Opaque(b"owner"),
            },
            openhow: OpenHow::Create(CreateHow::Unchecked(Attributes::default())),
            claim: Claim::Null(name("f")),
        });
        let operations = [
            Operation::PutRootFh(()),
            Operation::Lookup(name("data")),
            open,
        ];
        let answer = slot.call(connection, &operations);
        let OperationResult::Open(Outcome::Ok(ok)) = answer.last() else {
            panic!("{:?}", answer.parts());
        };
        slot.stateid = ok.stateid;
        slot
    }

    /// Another slot of the session.
    pub(crate) fn other(&self, slotid: u32) -> Self {
        assert!(slotid < SLOTS);
        Self {
            slotid,
            sequence: 0,
            ..*self
        }
    }

    /// The record of the slot's next request.
    pub(crate) fn record(
        &mut self,
        connection: &mut Connection,
        operations: &[Operation<'_>],
        cachethis: bool,
    ) -> Vec<u8> {
        self.sequence += 1;
        let mut all = vec![Operation::Sequence(SequenceArgs {
            sessionid: self.session,
            sequenceid: self.sequence,
            slotid: self.slotid,
            highest_slotid: self.slotid,
            cachethis,
        })];
        all.extend_from_slice(operations);
        connection.record(&all)
    }

    pub(crate) fn call(
        &mut self,
        connection: &mut Connection,
        operations: &[Operation<'_>],
    ) -> Answer {
        let record = self.record(connection, operations, false);
        connection.send(&record);
        connection.receive()
    }

    pub(crate) fn write<'d>(&self, offset: u64, data: &'d [u8]) -> [Operation<'d>; 4] {
        self.write_as(Stable::UNSTABLE, offset, data)
    }

    pub(crate) fn write_as<'d>(
        &self,
        stable: Stable,
        offset: u64,
        data: &'d [u8],
    ) -> [Operation<'d>; 4] {
        at_file(Operation::Write(WriteArgs {
            stateid: self.stateid,
            offset,
            stable,
            data: Payload::Inline(data),
        }))
    }

    pub(crate) fn read(&self, offset: u64, count: u32) -> [Operation<'static>; 4] {
        at_file(Operation::Read(ReadArgs {
            stateid: self.stateid,
            offset,
            count,
        }))
    }
}

pub(crate) fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("valid")
}

/// An operation on the file `f`.
pub(crate) fn at_file(operation: Operation<'_>) -> [Operation<'_>; 4] {
    [
        Operation::PutRootFh(()),
        Operation::Lookup(name("data")),
        Operation::Lookup(name("f")),
        operation,
    ]
}

/// The data of a READ.
pub(crate) fn data(answer: &Answer) -> &[u8] {
    match answer.last() {
        OperationResult::Read(Outcome::Ok(ok)) => match ok.data {
            Payload::Inline(bytes) => bytes,
            Payload::Elsewhere(_) => panic!("the reply is whole"),
        },
        _ => panic!("{:?}", answer.parts()),
    }
}
