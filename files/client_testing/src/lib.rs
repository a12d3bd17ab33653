//! An NFSv4.1 client over a blocking socket that sends what a test says.
//!
//! Unless a function's name begins with `try_`, it panics where a test fails: if the connection ends,
//! or if a reply is not valid.

#![forbid(unsafe_code)]

mod rdma;
mod turns;

pub use self::rdma::{RdmaClient, World};
pub use self::turns::write_and_read_in_turn;

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use files_client::{CompoundHeader, requests};
use files_spec::operations::{
    ChannelAttributes, Claim, OpenHow, Operation, OperationResult, Outcome, ReadArgs, SequenceArgs,
    WriteArgs,
};
use files_spec::rpc::Fragment;
use files_spec::types::{SessionId, Stable, StateId};
use files_spec::xdr::Payload;
use files_spec::{Name, Status};

/// Generous limit for every wait of a test, for busy machines.
pub const LIMIT: Duration = Duration::from_secs(60);

const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// A connection.
pub struct Connection {
    /// The socket.
    pub stream: TcpStream,
    xid: u32,
}

impl Connection {
    /// Connects to a server.
    pub fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        Self { stream, xid: 0 }
    }

    /// A record of operations.
    pub fn record(&mut self, operations: &[Operation<'_>]) -> Vec<u8> {
        record_of(&mut self.xid, operations)
    }

    /// Sends a record in one fragment.
    ///
    /// # Panics
    /// The connection has ended.
    pub fn send(&mut self, record: &[u8]) {
        self.try_send(record).expect("it is open");
    }

    /// Sends a record in one fragment.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn try_send(&mut self, record: &[u8]) -> io::Result<()> {
        let mark = Fragment::whole(record.len()).encode();
        self.stream.write_all(&[&mark[..], record].concat())
    }

    /// The next reply.
    ///
    /// # Panics
    /// The connection has ended.
    pub fn receive(&mut self) -> Answer {
        self.try_receive().expect("a reply")
    }

    /// The next reply.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn try_receive(&mut self) -> io::Result<Answer> {
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark)?;
        let fragment = Fragment::decode(mark);
        let mut bytes = vec![0; fragment.length as usize];
        self.stream.read_exact(&mut bytes)?;
        match fragment.is_last {
            true => Ok(Answer(bytes)),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Sends a request and receives its reply.
    pub fn call(&mut self, operations: &[Operation<'_>]) -> Answer {
        let record = self.record(operations);
        self.send(&record);
        self.receive()
    }

    /// Whether the peer has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 1]), Ok(0) | Err(_))
    }
}

/// A record of operations with the next number.
fn record_of(xid: &mut u32, operations: &[Operation<'_>]) -> Vec<u8> {
    *xid += 1;
    let header = CompoundHeader {
        xid: *xid,
        uid: 0,
        tag: b"",
        minor_version: 1,
    };
    header.record(operations)
}

/// A connection over any transport.
pub trait Peer {
    /// A record of operations.
    fn record(&mut self, operations: &[Operation<'_>]) -> Vec<u8>;

    /// Sends a record.
    ///
    /// # Errors
    /// The connection has ended.
    fn try_send(&mut self, record: &[u8]) -> io::Result<()>;

    /// The next reply.
    ///
    /// # Errors
    /// The connection has ended, or the call was refused by the transport.
    fn try_receive(&mut self) -> io::Result<Answer>;

    /// Sends a request and receives its reply.
    ///
    /// # Panics
    /// The connection has ended.
    fn call(&mut self, operations: &[Operation<'_>]) -> Answer {
        let record = self.record(operations);
        self.try_send(&record).expect("it is open");
        self.try_receive().expect("a reply")
    }
}

impl Peer for Connection {
    fn record(&mut self, operations: &[Operation<'_>]) -> Vec<u8> {
        Connection::record(self, operations)
    }

    fn try_send(&mut self, record: &[u8]) -> io::Result<()> {
        Connection::try_send(self, record)
    }

    fn try_receive(&mut self) -> io::Result<Answer> {
        Connection::try_receive(self)
    }
}

/// A reply.
pub struct Answer(pub Vec<u8>);

impl Answer {
    /// The status and the results of a COMPOUND.
    pub fn parts(&self) -> (Status, Vec<OperationResult<'_>>) {
        let answer = files_client::Answer::decode(&self.0).expect("a reply");
        (answer.status, answer.results().expect("valid"))
    }

    /// The last result.
    pub fn last(&self) -> OperationResult<'_> {
        *self.parts().1.last().expect("a result")
    }

    /// Every operation has succeeded.
    pub fn assert_ok(&self) {
        let (status, results) = self.parts();
        assert_eq!(status, Status::OK, "{results:?}");
    }
}

/// A slot of a session with an open file.
#[derive(Clone, Copy)]
pub struct Slot {
    file: &'static str,
    session: SessionId,
    slotid: u32,
    /// The sequence number of its last request.
    pub sequence: u32,
    /// The open of its file.
    pub stateid: StateId,
}

const SLOTS: u32 = 64;

impl Slot {
    /// Creates a session, and opens the file `f` of the share `data`.
    pub fn new(connection: &mut impl Peer, owner: &[u8]) -> Self {
        Self::with_file(connection, owner, "f")
    }

    /// Creates a session, and opens a file of the share `data`, which is created if it is missing.
    /// Waits until other clients have reclaimed.
    pub fn with_file(connection: &mut impl Peer, owner: &[u8], file: &'static str) -> Self {
        let mut slot = Self::session(connection, owner, file);
        slot.complete_reclaim(connection);
        let began = Instant::now();
        while let Err(status) = slot.open(connection) {
            let is_late = began.elapsed() > LIMIT;
            assert!(status == Status::GRACE && !is_late, "{status:?}");
            std::thread::sleep(RETRY_INTERVAL);
        }
        slot
    }

    /// Creates a session for a file.
    pub fn session(connection: &mut impl Peer, owner: &[u8], file: &'static str) -> Self {
        let exchange = requests::exchange_id(owner, [1; 8]);
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
        let create = requests::create_session(ok.clientid, ok.sequenceid, channel);
        let answer = connection.call(&[create]);
        let OperationResult::CreateSession(Outcome::Ok(ok)) = answer.last() else {
            panic!("{:?}", answer.parts());
        };
        Self {
            file,
            session: ok.sessionid,
            slotid: 0,
            sequence: 0,
            stateid: StateId::ANONYMOUS,
        }
    }

    /// The handle of the directory of the share `data`.
    pub fn directory_handle(&mut self, connection: &mut impl Peer) -> Vec<u8> {
        let operations = [
            Operation::PutRootFh(()),
            Operation::Lookup(name("data")),
            Operation::GetFh(()),
        ];
        let answer = self.call(connection, &operations);
        match answer.last() {
            OperationResult::GetFh(Outcome::Ok(handle)) => handle.0.to_vec(),
            _ => panic!("{:?}", answer.parts()),
        }
    }

    /// The handle of its file.
    pub fn handle(&mut self, connection: &mut impl Peer) -> Vec<u8> {
        let answer = self.call(connection, &at(self.file, Operation::GetFh(())));
        match answer.last() {
            OperationResult::GetFh(Outcome::Ok(handle)) => handle.0.to_vec(),
            _ => panic!("{:?}", answer.parts()),
        }
    }

    /// Tells the server that there is nothing to reclaim any more.
    pub fn complete_reclaim(&mut self, connection: &mut impl Peer) {
        self.call(connection, &[Operation::ReclaimComplete(false)])
            .assert_ok();
    }

    /// Opens its file, which is created if it is missing.
    ///
    /// # Errors
    /// The status of the server.
    pub fn open(&mut self, connection: &mut impl Peer) -> Result<(), Status> {
        let open = requests::open_or_create(name(self.file));
        let operations = [
            Operation::PutRootFh(()),
            Operation::Lookup(name("data")),
            open,
        ];
        let answer = self.call(connection, &operations);
        self.opened(&answer)
    }

    /// Reclaims the open of its file after a restart of the server.
    ///
    /// # Errors
    /// The status of the server.
    pub fn reclaim(&mut self, connection: &mut impl Peer) -> Result<(), Status> {
        let open = requests::open(OpenHow::NoCreate, Claim::Previous(0));
        let answer = self.call(connection, &at(self.file, open));
        self.opened(&answer)
    }

    fn opened(&mut self, answer: &Answer) -> Result<(), Status> {
        match answer.last() {
            OperationResult::Open(Outcome::Ok(ok)) => {
                self.stateid = ok.stateid;
                Ok(())
            }
            result => Err(result.status()),
        }
    }

    /// Another slot of the session.
    pub fn other(&self, slotid: u32) -> Self {
        assert!(slotid < SLOTS);
        Self {
            slotid,
            sequence: 0,
            ..*self
        }
    }

    /// The record of the slot's next request.
    pub fn record(
        &mut self,
        connection: &mut impl Peer,
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

    /// Sends the slot's next request and receives its reply.
    ///
    /// # Panics
    /// The connection has ended.
    pub fn call(&mut self, connection: &mut impl Peer, operations: &[Operation<'_>]) -> Answer {
        self.try_call(connection, operations).expect("a reply")
    }

    /// Sends the slot's next request and receives its reply.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn try_call(
        &mut self,
        connection: &mut impl Peer,
        operations: &[Operation<'_>],
    ) -> io::Result<Answer> {
        let record = self.record(connection, operations, false);
        connection.try_send(&record)?;
        connection.try_receive()
    }

    /// An unstable WRITE to its file.
    pub fn write<'d>(&self, offset: u64, data: &'d [u8]) -> [Operation<'d>; 4] {
        self.write_as(Stable::UNSTABLE, offset, data)
    }

    /// A WRITE to its file.
    pub fn write_as<'d>(&self, stable: Stable, offset: u64, data: &'d [u8]) -> [Operation<'d>; 4] {
        at(
            self.file,
            Operation::Write(WriteArgs {
                stateid: self.stateid,
                offset,
                stable,
                data: Payload::Inline(data),
            }),
        )
    }

    /// A READ of its file.
    pub fn read(&self, offset: u64, count: u32) -> [Operation<'static>; 4] {
        at(
            self.file,
            Operation::Read(ReadArgs {
                stateid: self.stateid,
                offset,
                count,
            }),
        )
    }
}

/// OPEN that creates a file.
pub fn create_file(text: &str) -> Operation<'_> {
    requests::open_or_create(name(text))
}

/// A valid name.
pub fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("valid")
}

/// An operation on the file `f` of the share `data`.
pub fn at_file(operation: Operation<'_>) -> [Operation<'_>; 4] {
    at("f", operation)
}

/// An operation on a file of the share `data`.
pub fn at<'o>(file: &'o str, operation: Operation<'o>) -> [Operation<'o>; 4] {
    [
        Operation::PutRootFh(()),
        Operation::Lookup(name("data")),
        Operation::Lookup(name(file)),
        operation,
    ]
}

/// The data of a READ.
pub fn data(answer: &Answer) -> &[u8] {
    match answer.last() {
        OperationResult::Read(Outcome::Ok(ok)) => match ok.data {
            Payload::Inline(bytes) => bytes,
            Payload::Elsewhere(_) => panic!("the reply is whole"),
        },
        _ => panic!("{:?}", answer.parts()),
    }
}
