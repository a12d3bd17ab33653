//! Clients, sessions, and the order and repetition of requests.

use files_server::limits::{CLIENTS_MAX, LEASE_MS, SESSIONS_PER_CLIENT_MAX, SLOTS_MAX};
use files_spec::Bitmap;
use files_spec::Status;
use files_spec::attributes::Attributes;
use files_spec::operations::{
    BindArgs, ChannelAttributes, ExchangeIdArgs, Operation, OperationNumber, OperationResult,
    Outcome, ProtectionArgs, ProtectionOperations, SequenceArgs, exchange_flags,
};
use files_spec::rpc::{AcceptStatus, Reply, ReplyBody};
use files_spec::types::{CreateType, StateId};
use files_spec::xdr::{Decoder, Xdr};

use crate::client::{Answer, CHANNEL, Client, World, create_session, exchange, in_share, name};

pub(crate) fn exchanged(answer: &Answer) -> (u64, u32, u32) {
    match answer.last() {
        OperationResult::ExchangeId(Outcome::Ok(ok)) => (ok.clientid, ok.sequenceid, ok.flags),
        other => panic!("{other:?}"),
    }
}

fn mkdir(directory: &str) -> Operation<'_> {
    Operation::Create(files_spec::operations::CreateArgs {
        objtype: CreateType::Directory,
        objname: name(directory),
        createattrs: Attributes::default(),
    })
}

#[test]
fn records_that_are_no_calls_of_this_program_are_refused_as_a_whole() {
    let mut world = World::new();
    let valid = world.record(&[], 1);
    let mut program = valid.clone();
    program[15] += 1;
    let mut version = valid.clone();
    version[19] = 3;
    let mut procedure = valid.clone();
    procedure[23] = 2;
    let garbage = &valid[..valid.len() - 4];
    let status = |answer: Answer| {
        let mut from = Decoder::new(answer.bytes());
        match Reply::decode(&mut from).expect("a reply").body {
            ReplyBody::Accepted(accepted) => accepted.status,
            ReplyBody::Denied(denied) => panic!("{denied:?}"),
        }
    };
    let unavailable = status(world.send_record(&program));
    assert_eq!(unavailable, AcceptStatus::ProgUnavail);
    let mismatch = status(world.send_record(&version));
    assert!(matches!(mismatch, AcceptStatus::ProgMismatch(_)));
    let procedure = status(world.send_record(&procedure));
    assert_eq!(procedure, AcceptStatus::ProcUnavail);
    assert_eq!(
        status(world.send_record(garbage)),
        AcceptStatus::GarbageArgs
    );
    let mut null = valid;
    null[23] = 0;
    assert_eq!(status(world.send_record(&null)), AcceptStatus::Success);
}

/// RFC 8881 §15.1.3.2, §15.1.3.11.
#[test]
fn versions_and_numbers_of_operations_are_checked_before_the_first_one() {
    let mut world = World::new();
    let answer = |world: &mut World, count, minor_version| {
        let operations = vec![Operation::PutRootFh(()); count];
        let record = world.record(&operations, minor_version);
        world.send_record(&record).parts().0
    };
    assert_eq!(answer(&mut world, 1, 0), Status::MINOR_VERS_MISMATCH);
    assert_eq!(answer(&mut world, 1, 3), Status::MINOR_VERS_MISMATCH);
    assert_eq!(answer(&mut world, 65, 1), Status::TOO_MANY_OPS);
    assert_eq!(answer(&mut world, 0, 1), Status::OK);
}

/// RFC 8881 §18.46.
#[test]
fn operations_outside_of_their_place_are_refused() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let refused = |world: &mut World, operations: &[Operation<'_>], status| {
        assert_eq!(world.send(operations).status(), status, "{operations:?}");
    };
    let root = Operation::PutRootFh(());
    refused(&mut world, &[root], Status::OP_NOT_IN_SESSION);
    refused(
        &mut world,
        &[exchange(b"b", 1, 0), root],
        Status::NOT_ONLY_OP,
    );
    let unknown = Operation::Unsupported(OperationNumber::SET_SSV);
    refused(&mut world, &[unknown], Status::OP_NOT_IN_SESSION);
    let sequence = Operation::Sequence(client.sequence_args());
    client.fails(&mut world, &[sequence], Status::SEQUENCE_POS);
    let bind = Operation::BindConnToSession(BindArgs {
        sessid: client.session,
        dir: 3,
        use_conn_in_rdma_mode: false,
    });
    client.fails(&mut world, &[bind], Status::NOT_ONLY_OP);
    assert_eq!(world.send(&[bind]).status(), Status::OK);
    let destroy = Operation::DestroySession(client.session);
    client.fails(&mut world, &[destroy, root][..1], Status::OK);
    client.sequence -= 1;
    assert_eq!(
        client.send(&mut world, &[root]).status(),
        Status::BADSESSION
    );
}

#[test]
fn unsupported_and_unknown_operations_end_the_request() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let layout = Operation::Unsupported(OperationNumber::LAYOUTGET);
    client.fails(&mut world, &[layout], Status::NOTSUPP);
    let unknown = Operation::Unsupported(OperationNumber(999));
    let answer = client.send(&mut world, &[unknown]);
    assert_eq!(answer.status(), Status::OP_ILLEGAL);
    assert_eq!(answer.last().number(), OperationNumber::ILLEGAL);
    let of_version_4_0 = Operation::Unsupported(OperationNumber::RENEW);
    client.fails(&mut world, &[of_version_4_0], Status::NOTSUPP);
}

/// RFC 8881 §18.46: a failure leaves the slot as it was.
#[test]
fn invalid_sessions_slots_and_sequence_numbers_are_refused_without_effect() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let valid = SequenceArgs {
        sequenceid: client.sequence + 1,
        ..client.sequence_args()
    };
    let mut other_session = valid;
    other_session.sessionid[15] ^= 1;
    let mut other_instance = valid;
    other_instance.sessionid[0] ^= 1;
    let cases = [
        (other_session, Status::BADSESSION),
        (other_instance, Status::BADSESSION),
        (SequenceArgs { slotid: 8, ..valid }, Status::BADSLOT),
        (
            SequenceArgs {
                highest_slotid: 8,
                ..valid
            },
            Status::BAD_HIGH_SLOT,
        ),
        (
            SequenceArgs {
                sequenceid: valid.sequenceid + 1,
                ..valid
            },
            Status::SEQ_MISORDERED,
        ),
        (
            SequenceArgs {
                sequenceid: valid.sequenceid - 2,
                ..valid
            },
            Status::SEQ_MISORDERED,
        ),
        // The slot had no request yet.
        (
            SequenceArgs {
                sequenceid: 0,
                slotid: 1,
                ..valid
            },
            Status::SEQ_MISORDERED,
        ),
    ];
    for (args, status) in cases {
        let answer = world.send(&[Operation::Sequence(args), Operation::PutRootFh(())]);
        let (actual, results) = answer.parts();
        assert_eq!((actual, results.len()), (status, 1), "{args:?}");
    }
    client.ok(&mut world, &[Operation::PutRootFh(())]);
}

/// RFC 8881 §2.10.6.1.3: a retransmission gets the kept reply, and is not executed again.
#[test]
fn a_retransmission_is_answered_from_the_replay_cache() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let mut record = client.next_record(&mut world, &in_share(&[mkdir("x")]), true);
    let first = world.send_record(&record);
    assert_eq!(first.status(), Status::OK);
    // The identifier of a retransmission may differ.
    record[3] ^= 0x80;
    let again = world.send_record(&record);
    assert_eq!(again.bytes()[4..], first.bytes()[4..]);
    assert_eq!(again.bytes()[3], first.bytes()[3] ^ 0x80);
    // RFC 8881 §2.10.6.1.3.1: another request with the same number.
    client.sequence -= 1;
    let other = client.next_record(&mut world, &in_share(&[mkdir("y")]), true);
    assert_eq!(world.send_record(&other).status(), Status::SEQ_FALSE_RETRY);
    client.fails(&mut world, &in_share(&[mkdir("x")]), Status::EXIST);
}

/// A failure is kept, too.
#[test]
fn a_retransmission_of_a_failed_request_fails_in_the_same_way() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    client.ok(&mut world, &in_share(&[mkdir("x")]));
    let record = client.next_record(&mut world, &in_share(&[mkdir("x")]), true);
    assert_eq!(world.send_record(&record).status(), Status::EXIST);
    let remove = Operation::Remove(name("x"));
    assert_eq!(world.send_record(&record).status(), Status::EXIST);
    client.ok(&mut world, &in_share(&[remove]));
}

#[test]
fn a_retransmission_without_a_kept_reply_is_not_executed_again() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let record = client.next_record(&mut world, &in_share(&[mkdir("x")]), false);
    assert_eq!(world.send_record(&record).status(), Status::OK);
    let again = world.send_record(&record);
    let (status, results) = again.parts();
    assert_eq!((status, results.len()), (Status::RETRY_UNCACHED_REP, 2));
    assert_eq!(results[1].number(), OperationNumber::PUTROOTFH);
    let alone = client.next_record(&mut world, &[], false);
    let first = world.send_record(&alone);
    assert_eq!(world.send_record(&alone).bytes(), first.bytes());
}

#[test]
fn requests_and_replies_beyond_the_limits_of_the_session_are_refused() {
    let mut world = World::new();
    let small = ChannelAttributes {
        maxrequestsize: 512,
        maxresponsesize: 512,
        maxresponsesize_cached: 256,
        maxoperations: 20,
        ..CHANNEL
    };
    let mut client = Client::unreclaimed(&mut world, b"a", small);
    client.ok(&mut world, &[Operation::ReclaimComplete(false)]);
    let many = [Operation::PutRootFh(()); 20];
    let answer = client.send(&mut world, &many);
    assert_eq!(answer.status(), Status::TOO_MANY_OPS);
    client.sequence -= 1;
    let long = "n".repeat(250);
    let two = [
        Operation::PutRootFh(()),
        Operation::Lookup(name(&long)),
        Operation::Lookup(name(&long)),
    ];
    let answer = client.send(&mut world, &two);
    assert_eq!(answer.status(), Status::REQ_TOO_BIG);
    client.sequence -= 1;
    let all = Operation::GetAttr(Bitmap::of(&[0, 1, 3, 4, 20, 36, 37, 47, 52, 53]));
    let mut gets = vec![Operation::PutRootFh(())];
    gets.extend([all; 6]);
    let answer = client.send(&mut world, &gets);
    assert_eq!(answer.status(), Status::REP_TOO_BIG);
    assert!(answer.bytes().len() <= 512);
    // The result of a change must fit before the change is made.
    let mut operations = vec![Operation::PutRootFh(()), Operation::Lookup(name("data"))];
    operations.extend([Operation::GetAttr(Bitmap::of(&[1])), mkdir("x")]);
    let record = client.next_record(&mut world, &operations, true);
    let answer = world.send_record(&record);
    assert_eq!(answer.status(), Status::REP_TOO_BIG_TO_CACHE);
    assert!(answer.bytes().len() <= 256);
    let lookup = Operation::Lookup(name("x"));
    client.fails(&mut world, &in_share(&[lookup]), Status::NOENT);
}

/// RFC 8881 §18.36.3.
#[test]
fn sessions_have_the_limits_of_both_sides() {
    let mut world = World::new();
    let (id, sequence, _) = exchanged(&world.send(&[exchange(b"a", 1, 0)]));
    let mut next = sequence;
    let mut create = |world: &mut World, channel: ChannelAttributes| {
        let answer = world.send(&[create_session(id, next, channel)]);
        next += 1;
        match answer.last() {
            OperationResult::CreateSession(Outcome::Ok(ok)) => Ok(ok.fore_chan_attrs),
            result => Err(result.status()),
        }
    };
    let refused = [
        (
            ChannelAttributes {
                maxrequestsize: 383,
                ..CHANNEL
            },
            Status::TOOSMALL,
        ),
        (
            ChannelAttributes {
                maxresponsesize: 0,
                ..CHANNEL
            },
            Status::TOOSMALL,
        ),
        (
            ChannelAttributes {
                maxoperations: 0,
                ..CHANNEL
            },
            Status::INVAL,
        ),
        (
            ChannelAttributes {
                maxrequests: 0,
                ..CHANNEL
            },
            Status::INVAL,
        ),
    ];
    for (channel, status) in refused {
        assert_eq!(create(&mut world, channel), Err(status), "{channel:?}");
    }
    let greedy = ChannelAttributes {
        headerpadsize: 100,
        maxrequestsize: u32::MAX,
        maxresponsesize: u32::MAX,
        maxresponsesize_cached: u32::MAX,
        maxoperations: u32::MAX,
        maxrequests: u32::MAX,
        rdma_ird: Some(5),
    };
    let granted = create(&mut world, greedy).expect("granted");
    assert_eq!(granted.maxrequests, SLOTS_MAX);
    assert!(granted.maxresponsesize_cached <= 4096);
    for _ in 1..SESSIONS_PER_CLIENT_MAX {
        create(&mut world, CHANNEL).expect("room");
    }
    assert_eq!(create(&mut world, CHANNEL), Err(Status::NOSPC));
}

/// RFC 8881 §18.36: CREATE_SESSION has a replay cache of its own.
#[test]
fn create_session_is_executed_once() {
    let mut world = World::new();
    let (id, sequence, _) = exchanged(&world.send(&[exchange(b"a", 1, 0)]));
    let create = |sequence| create_session(id, sequence, CHANNEL);
    let status = |world: &mut World, operation| world.send(&[operation]).status();
    assert_eq!(
        status(&mut world, create(sequence - 1)),
        Status::SEQ_MISORDERED
    );
    assert_eq!(
        status(&mut world, create(sequence + 1)),
        Status::SEQ_MISORDERED
    );
    let first = world.send(&[create(sequence)]);
    let again = world.send(&[create(sequence)]);
    assert_eq!(first.bytes()[4..], again.bytes()[4..]);
    assert_eq!(world.server.counts().1, 1);
    assert_eq!(
        status(&mut world, create(sequence + 2)),
        Status::SEQ_MISORDERED
    );
    let unknown = create_session(id ^ 1, sequence, CHANNEL);
    assert_eq!(status(&mut world, unknown), Status::STALE_CLIENTID);
    // After the confirmation, the principal does not matter.
    world.uid = 5;
    assert_eq!(status(&mut world, create(sequence + 1)), Status::OK);
    let (id, sequence, _) = exchanged(&world.send(&[exchange(b"b", 1, 0)]));
    world.uid = 0;
    let stolen = create_session(id, sequence, CHANNEL);
    assert_eq!(status(&mut world, stolen), Status::CLID_INUSE);
}

/// RFC 8881 §18.35, its nine cases.
#[test]
fn exchange_id_distinguishes_new_known_and_restarted_clients() {
    let mut world = World::new();
    const UPDATE: u32 = exchange_flags::UPDATE_CONFIRMED_REC_A;
    let status = |world: &mut World, operation| world.send(&[operation]).status();
    // 7: an update without a confirmed record.
    assert_eq!(status(&mut world, exchange(b"a", 1, UPDATE)), Status::NOENT);
    // 1 and 4: new, then replaced.
    let (first, ..) = exchanged(&world.send(&[exchange(b"a", 1, 0)]));
    let (second, sequence, flags) = exchanged(&world.send(&[exchange(b"a", 1, 0)]));
    assert_ne!(first, second);
    assert_eq!(flags & exchange_flags::CONFIRMED_R, 0);
    let stale = create_session(first, sequence, CHANNEL);
    assert_eq!(status(&mut world, stale), Status::STALE_CLIENTID);
    assert_eq!(
        status(&mut world, create_session(second, sequence, CHANNEL)),
        Status::OK
    );
    // 2: the same instance again.
    let (again, _, flags) = exchanged(&world.send(&[exchange(b"a", 1, 0)]));
    assert_eq!(again, second);
    assert_ne!(flags & exchange_flags::CONFIRMED_R, 0);
    // 6, 8 and 9: updates.
    assert_eq!(status(&mut world, exchange(b"a", 1, UPDATE)), Status::OK);
    assert_eq!(
        status(&mut world, exchange(b"a", 2, UPDATE)),
        Status::NOT_SAME
    );
    world.uid = 9;
    assert_eq!(status(&mut world, exchange(b"a", 1, UPDATE)), Status::PERM);
    world.uid = 0;
    // 5: the client has restarted. Its earlier record ends when the new one is confirmed.
    let (restarted, sequence, _) = exchanged(&world.send(&[exchange(b"a", 2, 0)]));
    assert_ne!(restarted, second);
    assert_eq!(world.server.counts().1, 1);
    let confirm = create_session(restarted, sequence, CHANNEL);
    assert_eq!(status(&mut world, confirm), Status::OK);
    assert_eq!((world.server.counts().0, world.server.counts().1), (1, 1));
    // 3: another principal, without state of the first one.
    world.uid = 9;
    assert_eq!(status(&mut world, exchange(b"a", 1, 0)), Status::OK);
}

#[test]
fn unknown_flags_and_state_protection_are_refused() {
    let mut world = World::new();
    let flags = exchange(b"a", 1, 0x1000);
    assert_eq!(world.send(&[flags]).status(), Status::INVAL);
    let Operation::ExchangeId(args) = exchange(b"a", 1, 0) else {
        panic!("an EXCHANGE_ID");
    };
    let operations = ProtectionOperations {
        must_enforce: Bitmap::EMPTY,
        must_allow: Bitmap::EMPTY,
    };
    let protected = Operation::ExchangeId(ExchangeIdArgs {
        state_protect: ProtectionArgs::MachineCredential(operations),
        ..args
    });
    assert_eq!(world.send(&[protected]).status(), Status::INVAL);
}

/// RFC 8881 §18.50, §18.51.
#[test]
fn a_client_is_destroyed_without_sessions_only() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let complete = Operation::ReclaimComplete(false);
    client.fails(&mut world, &[complete], Status::COMPLETE_ALREADY);
    let destroy = Operation::DestroyClientId(client.id);
    assert_eq!(world.send(&[destroy]).status(), Status::CLIENTID_BUSY);
    let session = Operation::DestroySession(client.session);
    assert_eq!(world.send(&[session]).status(), Status::OK);
    assert_eq!(world.send(&[session]).status(), Status::BADSESSION);
    assert_eq!(world.send(&[destroy]).status(), Status::OK);
    assert_eq!(world.send(&[destroy]).status(), Status::STALE_CLIENTID);
    assert_eq!(world.server.counts(), (0, 0, 0));
}

#[test]
fn clients_that_never_confirm_make_room_for_others() {
    let mut world = World::new();
    let mut first = Client::new(&mut world, b"first");
    for number in 0..CLIENTS_MAX as u32 + 10 {
        let owner = number.to_be_bytes();
        exchanged(&world.send(&[exchange(&owner, 1, 0)]));
    }
    assert_eq!(world.server.counts().0, CLIENTS_MAX);
    first.ok(&mut world, &[Operation::PutRootFh(())]);
}

#[test]
fn a_silent_client_without_state_is_forgotten_after_its_lease() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    world.advance(LEASE_MS);
    world.server.tick(&world.now);
    client.ok(&mut world, &[Operation::PutRootFh(())]);
    world.advance(LEASE_MS + 1);
    world.server.tick(&world.now);
    assert_eq!(world.server.counts(), (0, 0, 0));
    let answer = client.send(&mut world, &[Operation::PutRootFh(())]);
    assert_eq!(answer.status(), Status::BADSESSION);
}

/// RFC 8881 §8.2.4.
#[test]
fn invalid_state_identifiers_are_told_apart() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    let mut stale = StateId::ANONYMOUS;
    stale.other[2] = 7;
    let ids = [StateId::ANONYMOUS, StateId::BYPASS, StateId::CURRENT, stale];
    let test = Operation::TestStateId(files_spec::xdr::List::new(&ids));
    let answer = client.ok(&mut world, &[test]);
    let OperationResult::TestStateId(Outcome::Ok(statuses)) = answer.last() else {
        panic!("{:?}", answer.parts());
    };
    let statuses: Vec<_> = statuses.iter().collect();
    assert_eq!(statuses, [Status::BAD_STATEID; 4]);
}
