//! Calls, replies and records by hand (RFC 5531 §9 and §11), and calls with errors.

use proptest::prelude::*;

use super::*;
use crate::limits::{FRAGMENTS_MAX, RECORD_BYTES_MAX};

/// A call as the RFC's layout has it.
fn call_bytes() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut words = |words: &[u32]| {
        bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    };
    // xid, CALL, RPC version, program, version, COMPOUND.
    words(&[0x1234_5678, 0, 2, 100_003, 4, 1]);
    // AUTH_SYS of 36 bytes: stamp, "host1", uid, gid, two groups.
    words(&[1, 36, 0x99, 5]);
    words(&[
        u32::from_be_bytes(*b"host"),
        u32::from_be_bytes(*b"1\0\0\0"),
    ]);
    words(&[1000, 100, 2, 4, 24]);
    // AUTH_NONE.
    words(&[0, 0]);
    bytes
}

#[test]
fn a_call_with_auth_sys() {
    let bytes = call_bytes();
    let mut from = Decoder::new(&bytes);
    let call = Call::decode(&mut from).expect("decodes");
    from.finish().expect("no arguments follow");
    assert_eq!(
        (call.xid, call.procedure),
        (0x1234_5678, Procedure::COMPOUND)
    );
    assert_eq!(call.check(NFS_PROGRAM, NFS_VERSION), Ok(()));
    let Credential::Sys(sys) = call.credential else {
        panic!("{call:?}");
    };
    assert_eq!(sys.machinename.0, b"host1");
    assert_eq!((sys.uid, sys.gid), (1000, 100));
    assert_eq!(sys.gids.iter().collect::<Vec<_>>(), [4, 24]);
    let mut memory = [0; 256];
    let mut to = Encoder::new(&mut memory);
    call.encode(&mut to).expect("fits");
    assert_eq!(to.written(), bytes);
}

/// The reply to a call whose word at `index` is `value`.
fn refusal(index: usize, value: u32) -> Result<(), ReplyBody<'static>> {
    let mut bytes = call_bytes();
    bytes[4 * index..4 * index + 4].copy_from_slice(&value.to_be_bytes());
    let decoded = Call::decode(&mut Decoder::new(&bytes));
    match decoded {
        Ok(call) => call
            .check(NFS_PROGRAM, NFS_VERSION)
            .map_err(|reply| reply.body),
        Err(CallError::Refused(reply)) => {
            assert_eq!(reply.xid, 0x1234_5678);
            Err(reply.body)
        }
        Err(CallError::NotACall) => panic!("not a call"),
    }
}

#[test]
fn calls_are_refused_with_the_reply_of_their_error() {
    let versions = |only| Versions {
        low: only,
        high: only,
    };
    let accepted = |status| Err(ReplyBody::accepted(status));
    let denied = |denied| Err(ReplyBody::Denied(denied));
    assert_eq!(refusal(0, 0x1234_5678), Ok(()));
    assert_eq!(refusal(2, 3), denied(Denied::RpcMismatch(versions(2))));
    assert_eq!(refusal(3, 100_005), accepted(AcceptStatus::ProgUnavail));
    assert_eq!(
        refusal(4, 3),
        accepted(AcceptStatus::ProgMismatch(versions(4)))
    );
    assert_eq!(refusal(5, 2), accepted(AcceptStatus::ProcUnavail));
    let bad = denied(Denied::Auth(AuthStatus::BADCRED));
    // An unknown flavor, RPCSEC_GSS, a body beyond its limit, beyond the record, too many groups.
    assert_eq!(refusal(6, 99), bad);
    assert_eq!(refusal(6, 6), bad);
    assert_eq!(refusal(7, 401), bad);
    assert_eq!(refusal(7, 400), bad);
    assert_eq!(refusal(14, 17), bad);
    assert_eq!(refusal(14, 1), bad, "bytes follow the groups");
    assert_eq!(refusal(18, 500), denied(Denied::Auth(AuthStatus::BADVERF)));
}

#[test]
fn truncated_calls() {
    let bytes = call_bytes();
    let decode = |end| Call::decode(&mut Decoder::new(&bytes[..end])).unwrap_err();
    for end in 0..8 {
        assert_eq!(decode(end), CallError::NotACall);
    }
    for end in 8..bytes.len() {
        let status = match end {
            8..24 => ReplyBody::accepted(AcceptStatus::GarbageArgs),
            24..68 => ReplyBody::Denied(Denied::Auth(AuthStatus::BADCRED)),
            _ => ReplyBody::Denied(Denied::Auth(AuthStatus::BADVERF)),
        };
        let reply = Reply {
            xid: 0x1234_5678,
            body: status,
        };
        assert_eq!(decode(end), CallError::Refused(reply), "{end}");
    }
}

#[test]
fn replies() {
    let cases: [(ReplyBody<'static>, &[u32]); 4] = [
        (
            ReplyBody::accepted(AcceptStatus::Success),
            &[7, 1, 0, 0, 0, 0],
        ),
        (
            ReplyBody::accepted(AcceptStatus::GarbageArgs),
            &[7, 1, 0, 0, 0, 4],
        ),
        (
            ReplyBody::accepted(AcceptStatus::ProgMismatch(Versions { low: 4, high: 4 })),
            &[7, 1, 0, 0, 0, 2, 4, 4],
        ),
        (
            ReplyBody::Denied(Denied::Auth(AuthStatus::TOOWEAK)),
            &[7, 1, 1, 1, 5],
        ),
    ];
    for (body, words) in cases {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let reply = Reply { xid: 7, body };
        let mut memory = [0; 64];
        let mut to = Encoder::new(&mut memory);
        reply.encode(&mut to).expect("fits");
        assert_eq!(to.written(), bytes);
        assert_eq!(Reply::decode(&mut Decoder::new(&bytes)), Ok(reply));
        assert_eq!(is_call(&bytes), Some(false));
    }
    assert_eq!(is_call(&call_bytes()), Some(true));
    assert_eq!(is_call(&[0; 7]), None);
    assert_eq!(is_call(&[0, 0, 0, 0, 0, 0, 0, 2]), None);
}

#[test]
fn marks_of_fragments() {
    let mark = Fragment {
        is_last: true,
        length: 0x1234,
    };
    assert_eq!(mark.encode(), [0x80, 0, 0x12, 0x34]);
    assert_eq!(Fragment::decode([0x80, 0, 0x12, 0x34]), mark);
    assert_eq!(
        Fragment::decode([0, 0, 0, 9]),
        Fragment {
            is_last: false,
            length: 9
        }
    );
    assert_eq!(Fragment::whole(0x1234), mark);
}

#[test]
fn a_record_of_several_fragments_is_bounded_in_length_and_number() {
    let mut record = Record::default();
    let half = (RECORD_BYTES_MAX / 2) as u32;
    let more = |length| {
        Fragment {
            is_last: false,
            length,
        }
        .encode()
    };
    assert!(record.add(more(half)).is_ok());
    assert!(record.add(more(half)).is_ok());
    assert_eq!(record.bytes(), RECORD_BYTES_MAX);
    assert_eq!(record.add(more(1)), Err(RecordError::TooLong));
    let mut record = Record::default();
    for _ in 0..FRAGMENTS_MAX {
        assert!(record.add(more(0)).is_ok());
    }
    assert_eq!(record.add(more(0)), Err(RecordError::TooManyFragments));
    let longest = [0xff; 4];
    assert_eq!(Record::default().add(longest), Err(RecordError::TooLong));
}

proptest! {
    #[test]
    fn any_bytes_are_a_call_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        // The result is any; a panic is the failure.
        let _ = Call::decode(&mut Decoder::new(&bytes));
        let _ = Reply::decode(&mut Decoder::new(&bytes));
    }

    #[test]
    fn changed_calls_are_decoded_or_refused(index in 0_usize..19, value in any::<u32>()) {
        prop_assume!(index > 1);
        let _ = refusal(index, value);
    }
}
