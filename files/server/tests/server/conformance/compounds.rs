//! COMPOUND (RFC 8881 §16.2), and the repetition of every kind of reply (RFC 8881 §2.10.6).

use files_spec::Status;
use files_spec::compound::CompoundOk;
use files_spec::operations::{Operation, OperationNumber, SequenceArgs};
use files_spec::rpc::Reply;
use files_spec::xdr::{Decoder, Xdr};

use super::spelling::NOT_UTF8;
use super::{encoded, opaque, record_of, send_bytes, send_bytes_behind};
use crate::client::{Answer, Client, World, exchange};

fn tag_of(answer: &Answer) -> Vec<u8> {
    let mut from = Decoder::new(answer.bytes());
    Reply::decode(&mut from).expect("a reply");
    let ok = CompoundOk::decode(from).expect("a COMPOUND");
    ok.tag.0.to_vec()
}

/// Numbers without an operation are told from operations out of place, and never repeated.
#[test]
fn unknown_numbers_are_illegal_wherever_they_are() {
    let unknown = [
        (1, [0, 1, 2, 59, 72, 999, OperationNumber::ILLEGAL.0]),
        (2, [0, 1, 2, 76, 200, 999, OperationNumber::ILLEGAL.0]),
    ];
    for (minor_version, numbers) in unknown {
        let mut world = World::new();
        let mut client = Client::new(&mut world, b"a");
        client.minor_version = minor_version;
        for number in numbers {
            let operation = number.to_be_bytes().to_vec();
            let outside = send_bytes(&mut world, std::slice::from_ref(&operation), minor_version);
            let inside = send_bytes_behind(&mut world, &mut client, &[], operation);
            for answer in [outside, inside] {
                assert_eq!(answer.status(), Status::OP_ILLEGAL, "{number}");
                assert_eq!(answer.last().number(), OperationNumber::ILLEGAL);
            }
        }
    }
    // The version is checked first.
    let mut world = World::new();
    let illegal = OperationNumber::ILLEGAL.0.to_be_bytes().to_vec();
    let answer = send_bytes(&mut world, &[illegal], 50);
    assert_eq!(answer.parts(), (Status::MINOR_VERS_MISMATCH, Vec::new()));
}

#[test]
fn a_record_that_ends_before_an_operation_is_malformed() {
    let mut world = World::new();
    let answer = send_bytes(&mut world, &[Vec::new()], 1);
    assert_eq!(answer.status(), Status::BADXDR);
}

/// RFC 8881 §14.5.
#[test]
fn tags_are_text_and_returned() {
    let mut world = World::new();
    for tag in [&b""[..], b"a tag", "größer".as_bytes()] {
        world.tag = tag;
        let answer = world.send(&[exchange(b"a", 1, 0)]);
        assert_eq!(
            (answer.status(), tag_of(&answer)),
            (Status::OK, tag.to_vec())
        );
    }
    for tag in NOT_UTF8 {
        world.tag = tag;
        let answer = world.send(&[exchange(b"a", 1, 0)]);
        assert_eq!(answer.parts(), (Status::INVAL, Vec::new()), "{tag:?}");
        assert_eq!(tag_of(&answer), tag);
    }
}

/// Whatever a reply is, its repetition is the same, and the request is not executed again.
#[test]
fn every_kept_reply_is_repeated() {
    let root = encoded(&Operation::PutRootFh(()));
    let lookup = OperationNumber::LOOKUP.0.to_be_bytes();
    let rename = OperationNumber::RENAME.0.to_be_bytes();
    let requests = [
        (vec![], Status::OK),
        (vec![root.clone()], Status::OK),
        (
            vec![root.clone(), [&lookup[..], &opaque(b"")].concat()],
            Status::INVAL,
        ),
        (
            vec![
                root.clone(),
                encoded(&Operation::SaveFh(())),
                [&rename[..], &opaque(b""), &opaque(b"foo")].concat(),
            ],
            Status::INVAL,
        ),
        (vec![vec![0, 0, 0x27, 0x3c]], Status::OP_ILLEGAL),
        (vec![vec![0, 0, 0, 50]], Status::NOTSUPP),
        (vec![encoded(&Operation::GetFh(()))], Status::NOFILEHANDLE),
    ];
    let mut world = World::new();
    let mut client = Client::new(&mut world, b"a");
    for (operations, status) in requests {
        client.sequence += 1;
        let sequence = Operation::Sequence(SequenceArgs {
            cachethis: true,
            ..client.sequence_args()
        });
        let mut all = vec![encoded(&sequence)];
        all.extend(operations);
        let first = record_of(&mut world, &all, 1);
        let again = record_of(&mut world, &all, 1);
        let (first, again) = (world.send_record(&first), world.send_record(&again));
        assert_eq!(first.status(), status);
        // The identifier of the call differs.
        assert_eq!(first.bytes()[4..], again.bytes()[4..]);
    }
    assert_eq!(world.server.counters().replays.get(), 7);
}
