//! READs that are executed at once: each request is sent to two equal servers, of which one may execute
//! it at once. Their replies are the same.

use files_server::{Execution, Record};
use files_spec::Status;
use files_spec::bitmap::Bitmap;
use files_spec::operations::{
    ChannelAttributes, CloseArgs, Operation, OperationResult, Outcome, SequenceArgs,
};
use files_spec::types::{CreateType, LockType, Stable, StateId};
use files_spec::xdr::Opaque;

use crate::client::{ADDRESS, Answer, CHANNEL, Client, World, at_share, in_share, name};
use crate::data::{read, write};
use crate::locks::{at_file, lock};
use crate::names::make;
use crate::opens::open_file;

/// Where the file has data again, behind a hole.
const BEHIND_HOLE: u64 = 1 << 20;
/// The size of the file in bytes.
const FILE_BYTES: u64 = BEHIND_HOLE + 4096;

/// A server with a client that has a file open.
struct One {
    world: World,
    client: Client,
    other: Client,
    stateid: StateId,
    handle: Vec<u8>,
    directory: Vec<u8>,
}

fn handle(world: &mut World, client: &mut Client, operations: &[Operation<'_>]) -> Vec<u8> {
    let mut all = operations.to_vec();
    all.push(Operation::GetFh(()));
    match client.ok(world, &all).last() {
        OperationResult::GetFh(Outcome::Ok(handle)) => handle.0.to_vec(),
        other => panic!("{other:?}"),
    }
}

impl One {
    fn new(lends: bool, channel: ChannelAttributes) -> Self {
        let mut world = World::new();
        (world.tag, world.lends) = (b"", lends);
        let mut client = Client::unreclaimed(&mut world, b"a", channel);
        client.ok(&mut world, &[Operation::ReclaimComplete(false)]);
        client.minor_version = 2;
        let other = Client::new(&mut world, b"b");
        let stateid = open_file(&mut world, &mut client, "f");
        let data: Vec<u8> = (0..10_000_u32).map(|it| (it % 251) as u8).collect();
        for (offset, data) in [(0, &data[..]), (BEHIND_HOLE, &data[..4096])] {
            let written = write(stateid, offset, Stable::FILE_SYNC, data);
            client.ok(&mut world, &at_file(written));
        }
        let directory = handle(&mut world, &mut client, &at_share());
        let file = in_share(&[Operation::Lookup(name("f"))]);
        let handle = handle(&mut world, &mut client, &file);
        assert_eq!(world.read_at_once, 0);
        Self {
            world,
            client,
            other,
            stateid,
            handle,
            directory,
        }
    }

    /// A READ of the file with this sequence.
    fn record(&mut self, args: SequenceArgs, handle: &[u8], operation: Operation<'_>) -> Vec<u8> {
        let all = [
            Operation::Sequence(args),
            Operation::PutFh(Opaque(handle)),
            operation,
        ];
        self.world.record(&all, self.client.minor_version)
    }

    /// The sequence of the next request.
    fn next(&mut self) -> SequenceArgs {
        self.client.sequence += 1;
        self.client.sequence_args()
    }
}

/// A change of a request, and its status then.
type Case<F> = (F, Status);
/// The handle that a request names.
type HandleOf = fn(&One) -> Vec<u8>;

/// Two servers.
struct Two {
    quick: One,
    plain: One,
}

impl Two {
    fn new() -> Self {
        Self::with(CHANNEL)
    }

    fn with(channel: ChannelAttributes) -> Self {
        Self {
            quick: One::new(true, channel),
            plain: One::new(false, channel),
        }
    }

    /// Does the same to both.
    fn both<T>(&mut self, mut change: impl FnMut(&mut One) -> T) -> T {
        change(&mut self.plain);
        change(&mut self.quick)
    }

    /// Sends a record to both, and compares everything that they tell. Returns the answer, and whether
    /// the quick one has executed it at once.
    fn send(&mut self, record: impl FnMut(&mut One) -> Vec<u8>) -> (Answer, bool) {
        let mut record = record;
        let before = self.quick.world.read_at_once;
        let bytes = record(&mut self.plain);
        assert_eq!(bytes, record(&mut self.quick));
        let expected = self.plain.world.send_record(&bytes);
        let answer = self.quick.world.send_record(&bytes);
        assert_eq!(answer.bytes(), expected.bytes());
        let told = |one: &One| {
            let server = &one.world.server;
            let counters = server.counters();
            let operations = counters.operations();
            let operations: Vec<_> = operations
                .map(|(name, it)| (name, it.executed.get(), it.failed.get()))
                .collect();
            (server.counts(), counters.requests.get(), operations)
        };
        assert_eq!(told(&self.quick), told(&self.plain));
        assert_eq!(self.plain.world.read_at_once, 0);
        (answer, self.quick.world.read_at_once > before)
    }

    /// A READ with the next sequence.
    fn read(&mut self, stateid: StateId, offset: u64, count: u32) -> (Status, bool) {
        let (answer, is_at_once) = self.send(|one| {
            let (args, handle) = (one.next(), one.handle.clone());
            one.record(args, &handle, read(stateid, offset, count))
        });
        (answer.status(), is_at_once)
    }
}

#[test]
fn every_other_read_is_executed_as_before() {
    let mut two = Two::new();
    let stateid = two.quick.stateid;
    let old = StateId {
        seqid: stateid.seqid + 1,
        ..stateid
    };
    let unknown = StateId {
        seqid: 0,
        other: [9; 12],
    };
    for (stateid, offset, count, status) in [
        (stateid, FILE_BYTES, 1, Status::OK),
        (stateid, u64::MAX, 4096, Status::OK),
        (stateid, 0, 0, Status::OK),
        // Data and a hole.
        (stateid, 8192, 4096, Status::OK),
        (StateId::ANONYMOUS, 0, 4096, Status::OK),
        (StateId::BYPASS, 0, 4096, Status::OK),
        (StateId::CURRENT, 0, 4096, Status::BAD_STATEID),
        (StateId::INVALID, 0, 4096, Status::BAD_STATEID),
        (unknown, 0, 4096, Status::BAD_STATEID),
        (old, 0, 4096, Status::BAD_STATEID),
    ] {
        let case = (stateid, offset, count);
        assert_eq!(
            two.read(stateid, offset, count),
            (status, false),
            "{case:?}"
        );
    }
    // The state of another client, and that of another file.
    let of_other = two.both(|one| open_file(&mut one.world, &mut one.other, "f"));
    assert_eq!(two.read(of_other, 0, 1), (Status::BAD_STATEID, false));
    let of_file = two.both(|one| open_file(&mut one.world, &mut one.client, "g"));
    assert_eq!(two.read(of_file, 0, 1), (Status::BAD_STATEID, false));
    let close = Operation::Close(CloseArgs {
        seqid: 0,
        open_stateid: stateid,
    });
    two.both(|one| one.client.ok(&mut one.world, &at_file(close)));
    assert_eq!(two.read(stateid, 0, 1), (Status::BAD_STATEID, false));
}

#[test]
fn reads_of_an_open_file_are_executed_at_once() {
    let mut two = Two::new();
    let stateid = two.quick.stateid;
    let present = StateId {
        seqid: 0,
        ..stateid
    };
    for (stateid, offset, count) in [
        (stateid, 0, 4096),
        (present, 4096, 4096),
        (stateid, 1, 4094),
        (stateid, 9000, 1000),
        // Its end, and what is missing behind it.
        (stateid, FILE_BYTES - 5, u32::MAX),
        // A hole.
        (stateid, 500_000, 4096),
    ] {
        let case = (stateid, offset, count);
        assert_eq!(
            two.read(stateid, offset, count),
            (Status::OK, true),
            "{case:?}"
        );
    }
    let of_locks = two.both(|one| {
        let operation = lock(LockType::READ, (0, 10), one.stateid, b"x");
        match one.client.ok(&mut one.world, &at_file(operation)).last() {
            OperationResult::Lock(Outcome::Ok(stateid)) => stateid,
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(two.read(of_locks, 0, 4096), (Status::OK, true));
    // Another user of the client, whose header is another one; then that again.
    for uid in [7, 7, 0] {
        two.both(|one| one.world.uid = uid);
        let (status, _) = two.read(stateid, 0, 4096);
        assert_eq!(status, Status::OK);
    }
    // Without a name it stays open.
    two.both(|one| {
        let remove = in_share(&[Operation::Remove(name("f"))]);
        one.client.ok(&mut one.world, &remove);
    });
    assert_eq!(two.read(stateid, 0, 4096), (Status::OK, true));
}

#[test]
fn invalid_sequences_and_handles_are_refused_as_before() {
    let mut two = Two::new();
    let stateid = two.quick.stateid;
    assert_eq!(two.read(stateid, 0, 4096), (Status::OK, true));
    let changes: [Case<fn(&mut SequenceArgs)>; 6] = [
        // A retransmission of the READ, whose reply was not kept, and others that are none.
        (|_| {}, Status::RETRY_UNCACHED_REP),
        (|it| it.sequenceid += 2, Status::SEQ_MISORDERED),
        (|it| it.sequenceid -= 1, Status::SEQ_MISORDERED),
        (|it| it.slotid = 8, Status::BADSLOT),
        (
            |it| (it.sequenceid, it.highest_slotid) = (it.sequenceid + 1, 8),
            Status::BAD_HIGH_SLOT,
        ),
        (|it| it.sessionid = [1; 16], Status::BADSESSION),
    ];
    for (change, status) in changes {
        let (answer, is_at_once) = two.send(|one| {
            let (mut args, handle) = (one.client.sequence_args(), one.handle.clone());
            change(&mut args);
            one.record(args, &handle, read(stateid, 0, 4096))
        });
        assert_eq!((answer.status(), is_at_once), (status, false));
    }
    // The same sequence with another READ, or another user.
    let (answer, _) = two.send(|one| {
        let (args, handle) = (one.client.sequence_args(), one.handle.clone());
        one.record(args, &handle, read(stateid, 4096, 4096))
    });
    assert_eq!(answer.status(), Status::SEQ_FALSE_RETRY);
    two.both(|one| one.world.uid = 7);
    let (answer, _) = two.send(|one| {
        let (args, handle) = (one.client.sequence_args(), one.handle.clone());
        one.record(args, &handle, read(stateid, 0, 4096))
    });
    assert_eq!(answer.status(), Status::SEQ_FALSE_RETRY);
    two.both(|one| one.world.uid = 0);
    let changes: [Case<HandleOf>; 6] = [
        (|one| one.directory.clone(), Status::ISDIR),
        (|one| one.handle[1..].to_vec(), Status::BADHANDLE),
        (|one| [&[2], &one.handle[1..]].concat(), Status::BADHANDLE),
        // Another share, volume and generation.
        (
            |one| [&one.handle[..7], &[9], &one.handle[8..]].concat(),
            Status::STALE,
        ),
        (
            |one| [&one.handle[..8], &[9], &one.handle[9..]].concat(),
            Status::STALE,
        ),
        (|one| [&one.handle[..35], &[9]].concat(), Status::STALE),
    ];
    for (handle, status) in changes {
        let (answer, is_at_once) = two.send(|one| {
            let (args, handle) = (one.next(), handle(one));
            one.record(args, &handle, read(stateid, 0, 4096))
        });
        assert_eq!((answer.status(), is_at_once), (status, false));
    }
    assert_eq!(two.read(stateid, 0, 4096), (Status::OK, true));
}

#[test]
fn requests_of_another_form_are_executed_as_before() {
    let mut two = Two::new();
    let stateid = two.quick.stateid;
    let file = two.quick.handle.clone();
    let operation = read(stateid, 0, 4096);
    let attributes = Operation::GetAttr(Bitmap::EMPTY);
    // The reply is to be kept, but its data never are.
    let kept = |one: &mut One| {
        let args = SequenceArgs {
            cachethis: true,
            ..one.client.sequence_args()
        };
        one.record(args, &file, read(stateid, 0, 1000))
    };
    two.both(|one| one.client.sequence += 1);
    for status in [Status::OK, Status::RETRY_UNCACHED_REP] {
        let (answer, is_at_once) = two.send(kept);
        assert_eq!((answer.status(), is_at_once), (status, false));
    }
    let (answer, is_at_once) = two.send(|one| {
        let put = Operation::PutFh(Opaque(&file));
        one.client
            .next_record(&mut one.world, &[put, operation, attributes], false)
    });
    assert_eq!((answer.status(), is_at_once), (Status::OK, false));
    // Bytes behind the last operation are not part of it.
    let (answer, is_at_once) = two.send(|one| {
        let args = one.next();
        let mut record = one.record(args, &file, operation);
        record.extend([0; 4]);
        record
    });
    assert_eq!((answer.status(), is_at_once), (Status::OK, false));
    for cut in [1, 4, 28, 60, 100] {
        two.send(|one| {
            let args = one.client.sequence_args();
            let mut record = one.record(args, &file, operation);
            record.truncate(record.len() - cut);
            record
        });
    }
    two.both(|one| one.world.tag = b"tag");
    assert_eq!(two.read(stateid, 0, 4096), (Status::OK, false));
    two.both(|one| one.world.tag = b"");
    two.both(|one| one.client.minor_version = 1);
    assert_eq!(two.read(stateid, 0, 4096), (Status::OK, true));
    two.both(|one| one.client.minor_version = 3);
    let (answer, is_at_once) = two.send(|one| {
        let args = one.client.sequence_args();
        one.record(args, &file, operation)
    });
    let bytes = answer.bytes();
    assert_eq!(bytes[24..28], Status::MINOR_VERS_MISMATCH.0.to_be_bytes());
    assert!(!is_at_once);
}

#[test]
fn replies_have_the_limits_of_the_session() {
    let channel = ChannelAttributes {
        maxresponsesize: 4096,
        ..CHANNEL
    };
    let mut two = Two::with(channel);
    let stateid = two.quick.stateid;
    let mut longest = 0;
    for count in 3960..4000 {
        let (status, is_at_once) = two.read(stateid, 0, count);
        assert_eq!(status == Status::OK, is_at_once, "{count}");
        if is_at_once {
            longest = count;
        }
    }
    assert!((3961..3999).contains(&longest), "{longest}");
    // The client has no room for three operations.
    let channel = ChannelAttributes {
        maxoperations: 2,
        ..CHANNEL
    };
    let mut small = Client::unreclaimed(&mut two.quick.world, b"c", channel);
    small.sequence += 1;
    let record = two.quick.record(
        small.sequence_args(),
        &two.quick.handle.clone(),
        read(stateid, 0, 1),
    );
    let before = two.quick.world.read_at_once;
    let answer = two.quick.world.send_record(&record);
    assert_eq!(answer.status(), Status::TOO_MANY_OPS);
    assert_eq!(two.quick.world.read_at_once, before);
}

#[test]
fn a_read_waits_for_the_record_of_its_client() {
    let mut two = Two::new();
    let stateid = two.quick.stateid;
    assert_eq!(two.read(stateid, 0, 4096), (Status::OK, true));
    // The records of a client that is evicted change, and every reply waits until they are stored.
    two.both(|one| {
        open_file(&mut one.world, &mut one.other, "g");
        one.world.stores_records = false;
        assert!(one.world.server.evict_client(one.other.id));
    });
    let args = two.quick.next();
    let handle = two.quick.handle.clone();
    let bytes = two.quick.record(args, &handle, read(stateid, 0, 4096));
    let record = Record {
        bytes: &bytes,
        placement: None,
        client: ADDRESS,
    };
    let (mut x, mut lent) = (Execution::new(), Vec::new());
    let world = &mut two.quick.world;
    assert!(!world.reads_at_once(&mut x, &record, &mut lent));
    world.stores_records = true;
    world.store_records();
    assert!(world.reads_at_once(&mut x, &record, &mut lent));
    assert_eq!(lent.len(), 1);
}

#[test]
fn a_directory_with_the_number_of_a_file_is_not_read() {
    let mut two = Two::new();
    let stateid = two.quick.stateid;
    two.both(|one| {
        let directory = make(CreateType::Directory, "d", 0o755);
        one.client.ok(&mut one.world, &in_share(&[directory]));
    });
    let directory = two.both(|one| {
        let at = in_share(&[Operation::Lookup(name("d"))]);
        handle(&mut one.world, &mut one.client, &at)
    });
    let (answer, is_at_once) = two.send(|one| {
        let args = one.next();
        one.record(args, &directory, read(stateid, 0, 4096))
    });
    assert_eq!((answer.status(), is_at_once), (Status::ISDIR, false));
}
