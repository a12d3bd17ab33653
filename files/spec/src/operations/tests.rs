//! Round trips of every operation, and results that have no XDR form.

use proptest::prelude::*;

use super::*;
use crate::arbitrary::Source;

/// Memory for any value that the tests derive.
const MEMORY_BYTES: usize = 16 << 10;

/// Encodes a value, decodes it again and compares both, then decodes each truncation.
#[track_caller]
fn round_trip<'a, T: Xdr<'a> + PartialEq + core::fmt::Debug>(value: &T) {
    let memory = vec![0; MEMORY_BYTES].leak();
    let mut to = Encoder::new(memory);
    value.encode(&mut to).expect("encodes");
    assert!(to.holes().is_empty());
    let bytes: &'a [u8] = to.written().to_vec().leak();
    let mut from = Decoder::new(bytes);
    let decoded = T::decode(&mut from).expect("decodes");
    from.finish().expect("all bytes are the value");
    assert_eq!(&decoded, value);
    // A received value is forwarded unchanged.
    let memory = vec![0; MEMORY_BYTES].leak();
    let mut again = Encoder::new(memory);
    decoded.encode(&mut again).expect("encodes");
    assert_eq!(again.written(), bytes);
    for end in 0..bytes.len() {
        let mut from = Decoder::new(&bytes[..end]);
        assert!(T::decode(&mut from).is_err(), "{end} of {}", bytes.len());
    }
    // Memory that is too short is an error.
    for room in (0..bytes.len()).step_by(4) {
        let mut memory = vec![0; room];
        let error = value.encode(&mut Encoder::new(&mut memory)).unwrap_err();
        assert_eq!(error, EncodeError::NoSpace);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_operation_survives_a_round_trip(
        index in 0..SAMPLES.len(),
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let (number, operation, result) = SAMPLES[index];
        let operation = operation(&mut Source(&bytes));
        prop_assert_eq!(operation.number(), number);
        round_trip(&operation);
        let result = result(&mut Source(&bytes));
        prop_assert_eq!(result.number(), number);
        round_trip(&result);
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(
        number in 0_u32..80,
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let whole: Vec<u8> = number.to_be_bytes().into_iter().chain(bytes).collect();
        // The result is any; a panic is the failure.
        let _ = Operation::decode(&mut Decoder::new(&whole));
        let _ = OperationResult::decode(&mut Decoder::new(&whole));
    }
}

#[test]
fn each_operation_of_the_table_has_a_sample_that_is_empty() {
    for (number, operation, result) in SAMPLES {
        assert_eq!(operation(&mut Source(&[])).number(), *number);
        round_trip(&operation(&mut Source(&[])));
        round_trip(&result(&mut Source(&[])));
        let failed = OperationResult::failed(*number, Status::IO);
        assert_eq!((failed.number(), failed.status()), (*number, Status::IO));
        round_trip(&failed);
    }
}

#[test]
fn a_failure_with_the_status_ok_is_not_encoded() {
    let mut memory = [0; 64];
    for (number, ..) in SAMPLES {
        let result = OperationResult::failed(*number, Status::OK);
        let encoded = result.encode(&mut Encoder::new(&mut memory));
        assert_eq!(encoded, Err(EncodeError::Value));
    }
    let denied = OperationResult::failed(OperationNumber::LOCK, Status::DENIED);
    let encoded = denied.encode(&mut Encoder::new(&mut memory));
    assert_eq!(encoded, Err(EncodeError::Value), "the lock is missing");
}

/// RFC 8881 §18.30: the attributes that were set follow every status.
#[test]
fn a_failed_setattr_has_its_set_of_attributes() {
    let result = OperationResult::failed(OperationNumber::SETATTR, Status::PERM);
    let mut memory = [0; 64];
    let mut to = Encoder::new(&mut memory);
    result.encode(&mut to).expect("encodes");
    assert_eq!(to.written(), [0, 0, 0, 34, 0, 0, 0, 1, 0, 0, 0, 0]);
}

#[test]
fn numbers_outside_a_minor_version_are_illegal() {
    let illegal = (OperationNumber::ILLEGAL, Status::OP_ILLEGAL);
    for (number, version) in [(0, 1), (2, 2), (59, 1), (76, 2), (10044, 2), (25, 3)] {
        assert_eq!(OperationNumber(number).unsupported_status(version), illegal);
    }
    let layout = OperationNumber::LAYOUTGET;
    assert_eq!(layout.unsupported_status(1), (layout, Status::NOTSUPP));
    let read_plus = OperationNumber::READ_PLUS;
    assert_eq!(
        read_plus.unsupported_status(2),
        (read_plus, Status::NOTSUPP)
    );
}

mod invalid {
    use super::*;
    use crate::limits::BITMAP_UNITS_DECODED_MAX;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[track_caller]
    fn refused(input: &[u8], error: DecodeError, status: Status) {
        let decoded = Operation::decode(&mut Decoder::new(input));
        assert_eq!(decoded, Err(error));
        assert_eq!(error.status(), status);
    }

    #[test]
    fn a_file_handle_beyond_its_limit() {
        let mut input = words(&[22, 129]);
        input.resize(8 + 132, 0);
        refused(&input, DecodeError::TooLong, Status::BADXDR);
    }

    #[test]
    fn a_length_beyond_the_record() {
        refused(&words(&[22, 64, 0]), DecodeError::Truncated, Status::BADXDR);
        refused(
            &words(&[22, u32::MAX]),
            DecodeError::TooLong,
            Status::BADXDR,
        );
        let lookup = words(&[15, 4096]);
        refused(&lookup, DecodeError::Truncated, Status::BADXDR);
    }

    #[test]
    fn an_array_that_claims_more_items_than_the_record_has_room_for() {
        let input = words(&[55, 1024, 0, 0, 0, 0]);
        refused(&input, DecodeError::Truncated, Status::BADXDR);
        let input = words(&[55, 1025, 0, 0, 0, 0]);
        refused(&input, DecodeError::TooLong, Status::BADXDR);
    }

    #[test]
    fn a_bitmap_with_too_many_units() {
        let units = BITMAP_UNITS_DECODED_MAX as u32;
        let mut input = words(&[9, units + 1]);
        input.resize(8 + 4 * (units as usize + 1), 0);
        refused(&input, DecodeError::TooLong, Status::BADXDR);
    }

    /// RFC 8881 §18.7: attributes that do not exist are left out where they are asked for.
    #[test]
    fn numbers_that_no_version_defines_are_left_out() {
        let mut input = words(&[9, BITMAP_UNITS_DECODED_MAX as u32, 6]);
        input.resize(8 + 4 * BITMAP_UNITS_DECODED_MAX, 0xff);
        let asked = Operation::decode(&mut Decoder::new(&input));
        let Ok(Operation::GetAttr(asked)) = asked else {
            panic!("{asked:?}");
        };
        assert_eq!(asked.iter().take(2).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(asked.iter().nth(2), Some(32));
        // Where they are set or compared, they are refused.
        let mut input = words(&[37, 9]);
        input.resize(8 + 32, 0);
        input.extend(words(&[1, 0]));
        refused(&input, DecodeError::UnknownAttribute, Status::ATTRNOTSUPP);
    }

    #[test]
    fn a_boolean_and_a_discriminant_without_meaning() {
        refused(&words(&[58, 2]), DecodeError::Discriminant, Status::BADXDR);
        // OPEN with openflag4 = 2.
        let open = words(&[18, 0, 1, 0, 0, 0, 0, 2]);
        refused(&open, DecodeError::Discriminant, Status::BADXDR);
    }

    #[test]
    fn names() {
        let name = |bytes: &[u8]| {
            let mut input = words(&[28, bytes.len() as u32]);
            input.extend_from_slice(bytes);
            input.resize(input.len().next_multiple_of(4), 0);
            Operation::decode(&mut Decoder::new(&input))
                .map_err(DecodeError::status)
                .err()
        };
        assert_eq!(name(b"a/b"), Some(Status::BADCHAR));
        assert_eq!(name(b"a\0"), Some(Status::BADCHAR));
        assert_eq!(name(b""), Some(Status::INVAL));
        assert_eq!(name(b"\xc0\x80"), Some(Status::INVAL));
        assert_eq!(name(b".."), Some(Status::BADNAME));
        assert_eq!(name(&[b'n'; 256]), Some(Status::NAMETOOLONG));
        assert_eq!(name(&[b'n'; 4097]), Some(Status::BADXDR));
        assert_eq!(name(&[b'n'; 255]), None);
    }

    #[test]
    fn attributes() {
        let setattr = |mask: &[u32], values: &[u32]| {
            let mut input = words(&[34, 0, 0, 0, 0]);
            input.extend(words(&[mask.len() as u32]));
            input.extend(words(mask));
            input.extend(words(&[values.len() as u32 * 4]));
            input.extend(words(values));
            Operation::decode(&mut Decoder::new(&input))
                .map_err(DecodeError::status)
                .err()
        };
        assert_eq!(setattr(&[1 << 4], &[0, 9]), None);
        // Fewer and more values than attributes.
        assert_eq!(setattr(&[1 << 4], &[0]), Some(Status::BADXDR));
        assert_eq!(setattr(&[1 << 4], &[0, 9, 1]), Some(Status::BADXDR));
        // Attribute 12, `acl`, is not in the table; neither is 255.
        assert_eq!(setattr(&[1 << 12], &[0]), Some(Status::ATTRNOTSUPP));
        let last = [0, 0, 0, 0, 0, 0, 0, 1 << 31];
        assert_eq!(setattr(&last, &[0]), Some(Status::ATTRNOTSUPP));
    }
}

#[test]
fn readdir_stops_at_the_limit_of_the_client() {
    use crate::readdir::{Entry, ReaddirWriter};
    let attrs = Attributes {
        fileid: Some(7),
        ..Attributes::default()
    };
    let name = Name::new(b"name").expect("valid");
    let entry = |cookie| Entry {
        cookie,
        name,
        attrs,
    };
    // Follows, cookie, name, bitmap of one unit, attributes: 4 + 8 + 8 + 8 + 12 bytes.
    const ENTRY_BYTES: u32 = 40;
    let mut memory = [0; 4096];
    let mut to = Encoder::new(&mut memory);
    let maxcount = 16 + 2 * ENTRY_BYTES + ENTRY_BYTES - 1;
    let mut writer = ReaddirWriter::begin(&mut to, [5; 8], maxcount).expect("room");
    assert_eq!(writer.push(&entry(1)), Ok(true));
    assert_eq!(writer.push(&entry(2)), Ok(true));
    assert_eq!(writer.push(&entry(3)), Ok(false));
    writer.finish(false).expect("room is reserved");
    assert_eq!(to.written().len() as u32, 8 + 16 + 2 * ENTRY_BYTES);
    let decoded = OperationResult::decode(&mut Decoder::new(to.written())).expect("decodes");
    let OperationResult::ReadDir(Outcome::Ok(listing)) = decoded else {
        panic!("{decoded:?}");
    };
    assert_eq!(
        listing
            .entries
            .iter()
            .map(|it| it.cookie)
            .collect::<Vec<_>>(),
        [1, 2]
    );
    assert!(!listing.eof);
    let refused = ReaddirWriter::begin(&mut to, [5; 8], 15).map(|_| ());
    assert_eq!(refused, Err(EncodeError::NoSpace));
}
