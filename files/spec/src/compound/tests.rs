//! Requests and replies by hand from the layout of RFC 8881 §16.2, and the placement of payload.

use super::*;
use crate::attributes::Attributes;
use crate::bitmap::Bitmap;
use crate::operations::{Outcome, ReadOk, SequenceArgs, WriteArgs};
use crate::rpc::{AuthSys, Credential, NFS_VERSION};
use crate::types::{FileHandle, FileType, Stable, StateId};
use crate::xdr::{Hole, List, Payload};

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Tag "ab", minor version 2, and SEQUENCE, PUTFH, GETATTR of type, size and mode.
fn request_bytes() -> Vec<u8> {
    let mut bytes = words(&[2, u32::from_be_bytes(*b"ab\0\0"), 2, 3]);
    bytes.extend(words(&[53]));
    bytes.extend([9; 16]);
    bytes.extend(words(&[7, 0, 3, 1]));
    bytes.extend(words(&[22, 5]));
    bytes.extend(b"fileh\0\0\0");
    bytes.extend(words(&[9, 2, 0x12, 0x2]));
    bytes
}

fn request_operations() -> [Operation<'static>; 3] {
    [
        Operation::Sequence(SequenceArgs {
            sessionid: [9; 16],
            sequenceid: 7,
            slotid: 0,
            highest_slotid: 3,
            cachethis: true,
        }),
        Operation::PutFh(FileHandle::<'static> { 0: b"fileh" }),
        Operation::GetAttr(Bitmap::of(&[1, 4, 33])),
    ]
}

#[test]
fn a_request_by_hand() {
    let bytes = request_bytes();
    let mut args = CompoundArgs::decode(Decoder::new(&bytes)).expect("decodes");
    assert_eq!((args.tag.0, args.minor_version), (&b"ab"[..], 2));
    assert_eq!(args.check(), Ok(()));
    let operations: Vec<_> = args
        .operations
        .by_ref()
        .map(|it| it.expect("valid"))
        .collect();
    assert_eq!(operations, request_operations());
    assert_eq!(args.operations.finish(), Ok(()));

    let mut memory = [0; 256];
    let mut to = Encoder::new(&mut memory);
    let mut writer = Writer::request(&mut to, Opaque(b"ab"), 2).expect("fits");
    for operation in request_operations() {
        writer.push(&operation).expect("fits");
    }
    writer.finish();
    assert_eq!(to.written(), bytes);
}

/// PUTFH and GETATTR of a file of 10 bytes with mode 0644.
#[test]
fn a_reply_by_hand() {
    let mut bytes = words(&[0, 0, 2]);
    bytes.extend(words(&[22, 0]));
    bytes.extend(words(&[9, 0, 2, 0x12, 0x2, 16, 1, 0, 10, 0o644]));
    let mut ok = CompoundOk::decode(Decoder::new(&bytes)).expect("decodes");
    assert_eq!((ok.status, ok.tag.0), (Status::OK, &b""[..]));
    let attributes = Attributes {
        file_type: Some(FileType::REGULAR),
        size: Some(10),
        mode: Some(0o644),
        ..Attributes::default()
    };
    let expected = [
        OperationResult::PutFh(Outcome::Ok(())),
        OperationResult::GetAttr(Outcome::Ok(attributes)),
    ];
    let results: Vec<_> = ok.results.by_ref().map(|it| it.expect("valid")).collect();
    assert_eq!(results, expected);
    assert_eq!(ok.results.finish(), Ok(()));

    let mut memory = [0; 256];
    let mut to = Encoder::new(&mut memory);
    let mut writer = Writer::reply(&mut to, Opaque(b"")).expect("fits");
    for result in &expected {
        writer.push(result).expect("fits");
    }
    writer.finish_with(Status::OK);
    assert_eq!(to.written(), bytes);
}

#[test]
fn a_reply_to_read_has_a_hole_for_its_data() {
    let mut memory = [0; 256];
    let mut to = Encoder::new(&mut memory);
    let mut writer = Writer::reply(&mut to, Opaque(b"")).expect("fits");
    let data = Payload::Elsewhere(4099);
    let read = OperationResult::Read(Outcome::Ok(ReadOk { eof: true, data }));
    writer.push(&read).expect("fits");
    writer
        .push(&OperationResult::GetFh(Outcome::Ok(Opaque(b"fh"))))
        .expect("fits");
    writer.finish_with(Status::OK);
    // Status, tag, count; READ, status, eof, length.
    assert_eq!(
        to.holes(),
        [Hole {
            at: 28,
            length: 4099
        }]
    );
    let mut bytes = words(&[0, 0, 2, 25, 0, 1, 4099]);
    bytes.extend([0]);
    bytes.extend(words(&[10, 0, 2]));
    bytes.extend(b"fh\0\0");
    assert_eq!(to.written(), bytes);
    assert_eq!(to.message_bytes(), bytes.len() + 4099);
    // The client that received the data elsewhere decodes the remaining bytes.
    let placement = Placement {
        at: 28,
        length: 4099,
    };
    let ok = CompoundOk::decode(Decoder::without_payload(&bytes, placement)).expect("decodes");
    let results: Vec<_> = ok.results.map(|it| it.expect("valid")).collect();
    assert_eq!(results[0], read);
}

#[test]
fn an_item_that_does_not_fit_leaves_the_message_unchanged() {
    let mut memory = [0; 40];
    let mut to = Encoder::new(&mut memory);
    let mut writer = Writer::reply(&mut to, Opaque(b"")).expect("fits");
    writer
        .push(&OperationResult::PutFh(Outcome::Ok(())))
        .expect("fits");
    let long = OperationResult::GetFh(Outcome::Ok(Opaque(&[1; 32])));
    assert_eq!(writer.push(&long), Err(EncodeError::NoSpace));
    let failed = OperationResult::failed(OperationNumber::GETFH, Status::REP_TOO_BIG);
    writer.push(&failed).expect("fits");
    writer.finish_with(failed.status());
    let expected = words(&[10066, 0, 2, 22, 0, 10, 10066]);
    assert_eq!(to.written(), expected);
}

#[test]
fn operations_before_a_malformed_one_are_decoded() {
    // PUTROOTFH, LOOKUP of a name with a slash, GETFH.
    let mut bytes = words(&[0, 1, 3, 24, 15, 3]);
    bytes.extend(b"a/b\0");
    bytes.extend(words(&[10]));
    let args = CompoundArgs::decode(Decoder::new(&bytes)).expect("decodes");
    let mut operations = args.operations;
    assert_eq!(operations.next(), Some(Ok(Operation::PutRootFh(()))));
    let malformed = operations.next().expect("an item").expect_err("malformed");
    assert_eq!(malformed.number, OperationNumber::LOOKUP);
    assert_eq!(malformed.error.status(), Status::BADCHAR);
    assert_eq!(operations.next(), None);
}

#[test]
fn a_request_that_ends_early_is_malformed_at_the_missing_operation() {
    let bytes = words(&[0, 1, 2, 24]);
    let mut operations = CompoundArgs::decode(Decoder::new(&bytes))
        .expect("decodes")
        .operations;
    assert_eq!(operations.next(), Some(Ok(Operation::PutRootFh(()))));
    let malformed = Malformed {
        number: OperationNumber::ILLEGAL,
        error: DecodeError::Truncated,
    };
    assert_eq!(operations.next(), Some(Err(malformed)));
    assert_eq!(operations.next(), None);
}

/// RFC 8881 §15.1.3.2 and §15.1.3.11.
#[test]
fn minor_versions_and_numbers_of_operations_are_checked() {
    let check = |minor_version, count| {
        let bytes = words(&[0, minor_version, count]);
        CompoundArgs::decode(Decoder::new(&bytes))
            .expect("decodes")
            .check()
    };
    assert_eq!(check(0, 1), Err(Status::MINOR_VERS_MISMATCH));
    assert_eq!(check(3, 1), Err(Status::MINOR_VERS_MISMATCH));
    assert_eq!(check(1, OPERATIONS_MAX as u32), Ok(()));
    assert_eq!(
        check(1, OPERATIONS_MAX as u32 + 1),
        Err(Status::TOO_MANY_OPS)
    );
    assert_eq!(check(2, u32::MAX), Err(Status::TOO_MANY_OPS));
    let long_tag = words(&[257, 0]);
    let decoded = CompoundArgs::decode(Decoder::new(&long_tag)).map(|_| ());
    assert_eq!(decoded, Err(DecodeError::TooLong));
}

/// A record with SEQUENCE, PUTFH, WRITE of `data` and GETATTR.
fn write_record(data: Payload<'_>) -> (Vec<u8>, Vec<Hole>) {
    let mut memory = [0; 8192];
    let mut to = Encoder::new(&mut memory);
    let call = Call {
        xid: 5,
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
    let mut writer = Writer::request(&mut to, Opaque(b""), 2).expect("fits");
    let write = Operation::Write(WriteArgs {
        stateid: StateId::ANONYMOUS,
        offset: 8192,
        stable: Stable::UNSTABLE,
        data,
    });
    let [sequence, put, get] = request_operations();
    for operation in [sequence, put, write, get] {
        writer.push(&operation).expect("fits");
    }
    writer.finish();
    (to.written().to_vec(), to.holes().to_vec())
}

#[test]
fn the_payload_of_a_write_is_found_in_the_beginning_of_its_record() {
    let data = [7; 4099];
    let (whole, _) = write_record(Payload::Inline(&data));
    let (rest, holes) = write_record(Payload::Elsewhere(4099));
    let at = holes[0].at;
    assert_eq!(&whole[at..at + 4099], data);
    let placement = Placement { at, length: 4099 };
    for end in 0..at {
        let found = find_payload(&whole[..end], whole.len());
        assert_eq!(found, PayloadSearch::Incomplete, "{end}");
    }
    for end in [at, at + 1, whole.len()] {
        let found = find_payload(&whole[..end], whole.len());
        assert_eq!(found, PayloadSearch::At(placement));
    }
    // A record that ends before the end of the payload has none.
    assert_eq!(find_payload(&whole[..at], at + 4096), PayloadSearch::None);
    let mut from = Decoder::without_payload(&rest, placement);
    Call::decode(&mut from).expect("decodes");
    let args = CompoundArgs::decode(from).expect("decodes");
    let decoded: Vec<_> = args.operations.map(|it| it.expect("valid")).collect();
    let Operation::Write(write) = decoded[2] else {
        panic!("{decoded:?}");
    };
    assert_eq!(write.data, Payload::Elsewhere(4099));
    assert_eq!(decoded[3], request_operations()[2]);
}

#[test]
fn records_without_payload_are_received_as_a_whole() {
    let (whole, _) = write_record(Payload::Inline(&[]));
    // An empty payload has a place, too.
    assert!(matches!(find_payload(&whole, whole.len()), PayloadSearch::At(it) if it.length == 0));
    let mut null = whole.clone();
    null[20..24].fill(0);
    assert_eq!(find_payload(&null, null.len()), PayloadSearch::None);
    assert_eq!(find_payload(&[], 0), PayloadSearch::None);
    assert_eq!(find_payload(&[1; 64], 64), PayloadSearch::None);
}
