//! A client, and a server that answers as a test says.

use files_client::{
    Client, ClientOptions, CompoundHeader, Event, Limits, Violation, requests, xid_of,
};
use files_spec::Status;
use files_spec::compound::{CompoundArgs, Writer};
use files_spec::limits::PAYLOAD_BYTES_MAX;
use files_spec::operations::{
    ChannelAttributes, CreateSessionOk, ExchangeIdOk, Operation, OperationResult, Outcome,
    ProtectionOk, SequenceArgs, SequenceOk, ServerOwner, WriteArgs,
};
use files_spec::rpc::{AcceptStatus, Call, MARK_BYTES, Reply};
use files_spec::types::{Stable, StateId};
use files_spec::xdr::{Decoder, EncodeError, Encoder, List, Opaque, Payload, Xdr as _};

const SESSION: [u8; 16] = [9; 16];

fn options() -> ClientOptions {
    ClientOptions {
        owner: b"client".to_vec(),
        verifier: [1; 8],
        uid: 0,
        minor_version: 1,
        slots: 4,
        message_bytes: 1 << 20,
    }
}

fn record(client: &Client, slot: u32) -> Vec<u8> {
    client.message(slot).bytes()[MARK_BYTES..].to_vec()
}

/// The operations of a record.
fn operations(record: &[u8]) -> Vec<Operation<'_>> {
    let mut from = Decoder::new(record);
    Call::decode(&mut from).expect("a call");
    let args = CompoundArgs::decode(from).expect("a COMPOUND");
    args.operations.map(|it| it.expect("valid")).collect()
}

fn reply(xid: u32, status: Status, results: &[OperationResult<'_>]) -> Vec<u8> {
    let mut memory = vec![0; 4096];
    let mut to = Encoder::new(&mut memory);
    let header = Reply::accepted(xid, AcceptStatus::Success);
    header.encode(&mut to).expect("fits");
    let mut writer = Writer::reply(&mut to, Opaque(b"")).expect("fits");
    for result in results {
        writer.push(result).expect("fits");
    }
    writer.finish_with(status);
    to.written().to_vec()
}

fn sequence_of(record: &[u8]) -> SequenceArgs {
    match operations(record)[0] {
        Operation::Sequence(args) => args,
        other => panic!("{other:?}"),
    }
}

/// The result of the SEQUENCE of a request.
fn sequence_ok(record: &[u8]) -> OperationResult<'static> {
    let args = sequence_of(record);
    OperationResult::Sequence(Outcome::Ok(SequenceOk {
        sessionid: args.sessionid,
        sequenceid: args.sequenceid,
        slotid: args.slotid,
        highest_slotid: 3,
        target_highest_slotid: 3,
        status_flags: 0,
    }))
}

fn xid(record: &[u8]) -> u32 {
    xid_of(record).expect("an identifier")
}

fn answer(record: &[u8]) -> Vec<u8> {
    let results = [
        sequence_ok(record),
        OperationResult::PutRootFh(Outcome::Ok(())),
    ];
    reply(xid(record), Status::OK, &results)
}

fn sequence_fails(record: &[u8], status: Status) -> Vec<u8> {
    let result = OperationResult::Sequence(Outcome::Failed(status));
    reply(xid(record), status, &[result])
}

fn uncached(record: &[u8]) -> Vec<u8> {
    let status = Status::RETRY_UNCACHED_REP;
    let results = [
        sequence_ok(record),
        OperationResult::PutRootFh(Outcome::Failed(status)),
    ];
    reply(xid(record), status, &results)
}

fn control(client: &mut Client, connection: u64) -> Vec<u8> {
    let message = client.control().expect("a request").bytes()[MARK_BYTES..].to_vec();
    client.control_sent(connection);
    assert!(client.control().is_none(), "it was sent");
    message
}

fn exchanged(record: &[u8], clientid: u64) -> Vec<u8> {
    let ok = ExchangeIdOk {
        clientid,
        sequenceid: 5,
        flags: 0,
        state_protect: ProtectionOk::None,
        server_owner: ServerOwner {
            minor_id: 0,
            major_id: Opaque(b"server"),
        },
        server_scope: Opaque(b"server"),
        server_impl_id: List::new(&[]),
    };
    let result = OperationResult::ExchangeId(Outcome::Ok(ok));
    reply(xid(record), Status::OK, &[result])
}

fn created(record: &[u8], slots: u32) -> Vec<u8> {
    let channel = ChannelAttributes {
        headerpadsize: 0,
        maxrequestsize: 1000,
        maxresponsesize: 2000,
        maxresponsesize_cached: 0,
        maxoperations: 16,
        maxrequests: slots,
        rdma_ird: None,
    };
    let ok = CreateSessionOk {
        sessionid: SESSION,
        sequence: 5,
        flags: 0,
        fore_chan_attrs: channel,
        back_chan_attrs: channel,
    };
    let result = OperationResult::CreateSession(Outcome::Ok(ok));
    reply(xid(record), Status::OK, &[result])
}

/// What an event says, without its results.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Ignored,
    Advanced,
    Established,
    Answered(u64),
    ReplyLost(u64),
    Delayed(u32),
    SessionLost(Vec<u64>),
}

fn receive(client: &mut Client, connection: u64, record: &[u8]) -> Result<Seen, Violation> {
    Ok(match client.received(connection, record)? {
        Event::Ignored => Seen::Ignored,
        Event::Advanced => Seen::Advanced,
        Event::Established => Seen::Established,
        Event::Answered { token, .. } => Seen::Answered(token),
        Event::ReplyLost { token } => Seen::ReplyLost(token),
        Event::Delayed { slot } => Seen::Delayed(slot),
        Event::SessionLost { tokens } => Seen::SessionLost(tokens),
    })
}

fn established(slots: u32) -> Client {
    let mut client = Client::new(options());
    let request = control(&mut client, 1);
    let step = receive(&mut client, 1, &exchanged(&request, 77));
    assert_eq!(step, Ok(Seen::Advanced));
    let request = control(&mut client, 1);
    let step = receive(&mut client, 1, &created(&request, slots));
    assert_eq!(step, Ok(Seen::Established));
    client
}

/// Begins and sends a request over connection 1.
fn send(client: &mut Client, slot: u32, token: u64, is_kept: bool) -> Vec<u8> {
    client
        .begin(slot, token, &[Operation::PutRootFh(())], is_kept)
        .expect("fits");
    client.sent(slot, 1);
    record(client, slot)
}

/// The violation of a reply to a request of slot 2.
fn violation(is_kept: bool, reply: impl Fn(&[u8]) -> Vec<u8>) -> Option<Violation> {
    let mut client = established(4);
    let request = send(&mut client, 2, 8, is_kept);
    receive(&mut client, 1, &reply(&request)).err()
}

#[test]
fn invalid_replies_are_violations() {
    let truncated = violation(false, |it| answer(it)[..20].to_vec());
    assert!(
        matches!(truncated, Some(Violation::Reply(_))),
        "{truncated:?}"
    );
    let cut_result = violation(false, |it| {
        let whole = answer(it);
        whole[..whole.len() - 60].to_vec()
    });
    assert!(
        matches!(cut_result, Some(Violation::Reply(_))),
        "{cut_result:?}"
    );
    let call = violation(false, <[u8]>::to_vec);
    assert!(matches!(call, Some(Violation::Reply(_))), "{call:?}");
    let garbage = violation(false, |it| {
        let mut memory = [0; 64];
        let mut to = Encoder::new(&mut memory);
        let refusal = Reply::accepted(xid(it), AcceptStatus::GarbageArgs);
        refusal.encode(&mut to).expect("fits");
        to.written().to_vec()
    });
    assert!(matches!(garbage, Some(Violation::Reply(_))), "{garbage:?}");
    let other_slot = violation(false, |it| {
        let mut other = established(4);
        let of_other = send(&mut other, 1, 8, false);
        reply(xid(it), Status::OK, &[sequence_ok(&of_other)])
    });
    assert_eq!(other_slot, Some(Violation::Slot { slot: 2, found: 1 }));
    let other_result = OperationResult::PutRootFh(Outcome::Ok(()));
    let other_result = violation(false, |it| reply(xid(it), Status::OK, &[other_result]));
    assert_eq!(other_result, Some(Violation::Result));
    let nothing = violation(false, |it| reply(xid(it), Status::OK, &[]));
    assert_eq!(nothing, Some(Violation::Result));
    let refused = violation(false, |it| reply(xid(it), Status::MINOR_VERS_MISMATCH, &[]));
    assert_eq!(
        refused,
        Some(Violation::Sequence(Status::MINOR_VERS_MISMATCH))
    );
    let misordered = violation(false, |it| sequence_fails(it, Status::SEQ_MISORDERED));
    assert_eq!(
        misordered,
        Some(Violation::Sequence(Status::SEQ_MISORDERED))
    );
    assert_eq!(violation(true, uncached), Some(Violation::NotKept));
    let mut client = established(4);
    assert!(
        receive(&mut client, 1, b"abc").is_err(),
        "there is no identifier"
    );
}

#[test]
fn sessions_that_are_refused_are_violations() {
    let mut client = Client::new(options());
    let request = control(&mut client, 1);
    let result = OperationResult::ExchangeId(Outcome::Failed(Status::CLID_INUSE));
    let refused = receive(
        &mut client,
        1,
        &reply(xid(&request), Status::CLID_INUSE, &[result]),
    );
    assert_eq!(
        refused.expect_err("refused"),
        Violation::NoSession {
            operation: "EXCHANGE_ID",
            status: Status::CLID_INUSE
        }
    );
    // The reply is that of another operation.
    let mut client = Client::new(options());
    let request = control(&mut client, 1);
    assert!(receive(&mut client, 1, &created(&request, 4)).is_err());
    let mut client = Client::new(options());
    let request = control(&mut client, 1);
    receive(&mut client, 1, &exchanged(&request, 7)).expect("valid");
    let request = control(&mut client, 1);
    let none = receive(&mut client, 1, &created(&request, 0));
    assert_eq!(none.expect_err("useless"), Violation::NoSlots);
}

#[test]
fn replies_to_nothing_are_ignored() {
    let mut client = established(4);
    let request = send(&mut client, 3, 1, false);
    let reply = answer(&request);
    let mut unknown = reply.clone();
    for xid in [
        0_u32,
        3,
        1023,
        u32::MAX,
        xid(&request) ^ 1,
        xid(&request) ^ 1024,
    ] {
        unknown[..4].copy_from_slice(&xid.to_be_bytes());
        let event = receive(&mut client, 1, &unknown);
        assert_eq!(event, Ok(Seen::Ignored));
    }
    assert_eq!(client.waiting(), 1);
    let event = receive(&mut client, 1, &reply);
    assert_eq!(event, Ok(Seen::Answered(1)));
    let event = receive(&mut client, 1, &reply);
    assert_eq!(event, Ok(Seen::Ignored));
}

#[test]
fn granted_limits_apply() {
    let client = established(2);
    let limits = Limits {
        slots: 2,
        request_bytes: 1000,
        reply_bytes: 2000,
    };
    assert_eq!(client.limits(), limits);
    assert_eq!(client.free_slots().len(), 2);
    // The server may grant more than it was asked for.
    assert_eq!(established(900).free_slots().len(), 4);
}

#[test]
fn slots_count_their_requests() {
    let mut client = established(2);
    for sequenceid in 1..4 {
        let request = send(&mut client, 1, 5, true);
        let args = sequence_of(&request);
        assert_eq!((args.slotid, args.sequenceid), (1, sequenceid));
        assert_eq!((args.sessionid, args.highest_slotid), (SESSION, 1));
        assert!(args.cachethis);
        let reply = answer(&request);
        let Ok(Event::Answered { token: 5, answer }) = client.received(1, &reply) else {
            panic!("it is answered");
        };
        let results = answer.results().expect("valid");
        assert_eq!(results, [OperationResult::PutRootFh(Outcome::Ok(()))]);
    }
    // A request that cannot be encoded does not use its slot.
    let too_long = Operation::Write(WriteArgs {
        stateid: StateId::CURRENT,
        offset: 0,
        stable: Stable::UNSTABLE,
        data: Payload::Elsewhere(PAYLOAD_BYTES_MAX as u32 + 1),
    });
    let refused = client.begin(1, 6, &[too_long], false);
    assert_eq!(refused, Err(EncodeError::Value));
    assert_eq!((client.free_slots().len(), client.unsent().count()), (2, 0));
    let request = send(&mut client, 1, 6, false);
    assert_eq!(sequence_of(&request).sequenceid, 4);
}

#[test]
fn requests_survive_their_connections() {
    let mut client = established(4);
    let first = send(&mut client, 0, 10, true);
    client.sent(0, 2);
    let second = send(&mut client, 1, 11, false);
    client.lose_connection(1);
    assert_eq!(
        client.unsent().collect::<Vec<_>>(),
        [1],
        "the other has a copy"
    );
    client.lose_connection(2);
    assert_eq!(client.unsent().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(
        (record(&client, 0), record(&client, 1)),
        (first.clone(), second.clone())
    );
    client.sent(0, 3);
    client.sent(1, 3);
    assert_eq!(client.unsent().count(), 0);
    // The server executes the first one; the reply to the second one is lost.
    let delayed = receive(&mut client, 3, &sequence_fails(&first, Status::DELAY));
    assert_eq!(delayed, Ok(Seen::Delayed(0)));
    assert_eq!(client.unsent().count(), 0, "the user knows when");
    client.repeat(0);
    assert_eq!(client.unsent().collect::<Vec<_>>(), [0]);
    client.sent(0, 3);
    let lost = receive(&mut client, 3, &uncached(&second));
    assert_eq!(lost, Ok(Seen::ReplyLost(11)));
    let event = receive(&mut client, 3, &answer(&first));
    assert_eq!(event, Ok(Seen::Answered(10)));
    assert_eq!(client.free_slots().len(), 4);
}

#[test]
fn answers_over_other_connections_are_awaited() {
    let mut client = established(4);
    let request = send(&mut client, 0, 10, false);
    client.sent(0, 2);
    for status in [Status::DELAY, Status::RETRY_UNCACHED_REP] {
        client.sent(0, 3);
        let reply = match status {
            Status::DELAY => sequence_fails(&request, status),
            _ => uncached(&request),
        };
        let event = receive(&mut client, 3, &reply);
        assert_eq!(event, Ok(Seen::Ignored));
    }
    let event = receive(&mut client, 1, &answer(&request));
    assert_eq!(event, Ok(Seen::Answered(10)));
}

#[test]
fn requests_outside_of_sessions_survive_their_connections() {
    let mut client = Client::new(options());
    let request = control(&mut client, 1);
    client.lose_connection(1);
    assert_eq!(
        control(&mut client, 2),
        request,
        "the server may have executed it"
    );
    receive(&mut client, 2, &exchanged(&request, 7)).expect("valid");
    let request = control(&mut client, 2);
    let busy = OperationResult::CreateSession(Outcome::Failed(Status::DELAY));
    let busy = reply(xid(&request), Status::DELAY, &[busy]);
    assert_eq!(receive(&mut client, 2, &busy), Ok(Seen::Advanced));
    let request = control(&mut client, 2);
    let stale = OperationResult::CreateSession(Outcome::Failed(Status::STALE_CLIENTID));
    let stale = reply(xid(&request), Status::STALE_CLIENTID, &[stale]);
    assert_eq!(receive(&mut client, 2, &stale), Ok(Seen::Advanced));
    let request = control(&mut client, 2);
    let expected = requests::exchange_id(b"client", [1; 8]);
    assert_eq!(operations(&request), [expected], "the server has restarted");
}

#[test]
fn lost_sessions_are_replaced() {
    let mut client = established(4);
    let first = send(&mut client, 0, 10, false);
    send(&mut client, 2, 12, false);
    let bad = sequence_fails(&first, Status::BADSESSION);
    let lost = receive(&mut client, 1, &bad);
    assert_eq!(lost, Ok(Seen::SessionLost(vec![10, 12])));
    assert!(!client.is_established() && client.free_slots().is_empty());
    // Replies of the lost session may still arrive.
    assert_eq!(receive(&mut client, 1, &bad), Ok(Seen::Ignored));
    let request = control(&mut client, 1);
    assert_eq!(
        operations(&request),
        [requests::exchange_id(b"client", [1; 8])]
    );
    assert!(client.restart([2; 8]).is_empty());
    let request = control(&mut client, 1);
    assert_eq!(
        operations(&request),
        [requests::exchange_id(b"client", [2; 8])]
    );
}

#[test]
fn headers_identify_the_user() {
    let header = CompoundHeader {
        xid: 3,
        uid: 1000,
        tag: b"",
        minor_version: 2,
    };
    let record = header.record(&[Operation::PutRootFh(())]);
    let call = Call::decode(&mut Decoder::new(&record)).expect("a call");
    let files_spec::rpc::Credential::Sys(sys) = call.credential else {
        panic!("{call:?}");
    };
    assert_eq!((call.xid, sys.uid, sys.gid), (3, 1000, 1000));
}
