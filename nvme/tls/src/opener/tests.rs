//! Records that a peer may send: each invalid one has its alert.

use aws_lc_rs::aead::Aad as Associated;

use super::*;
use crate::record::{TAG_BYTES, protected_header};
use crate::sealer::tests::secret;
use crate::{CIPHERTEXT_BYTES_MAX, Sealer, Suite};

const SUITE: Suite = Suite::Aes128GcmSha256;

/// A record with any content, type and padding behind it.
fn record_of(inner: &[u8], sequence: u64) -> Vec<u8> {
    let mut keys = RecordKeys::new(secret(SUITE));
    keys.sequence = sequence;
    let header = protected_header(inner.len() + TAG_BYTES);
    let mut body = inner.to_vec();
    let aad = Associated::from(header);
    keys.key
        .seal_in_place_append_tag(keys.nonce(), aad, &mut body)
        .expect("sealed");
    [&header[..], &body].concat()
}

/// Opens a record in place and elsewhere, with the same result.
fn open(record: &mut [u8]) -> Result<(ContentType, Vec<u8>), Alert> {
    let mut elsewhere = vec![0xee; record.len()];
    let opened = Opener::new(secret(SUITE)).open_into(record, &mut elsewhere);
    let opened = opened.map(|opened| {
        let (kind, bytes) = opened.expect("there is room");
        (kind, elsewhere[..bytes].to_vec())
    });
    let in_place = Opener::new(secret(SUITE)).open(record);
    let in_place = in_place.map(|(kind, content)| (kind, record[content].to_vec()));
    assert_eq!(opened, in_place);
    opened
}

#[test]
fn a_record_without_room_is_not_opened() {
    let record = record_of(b"data\x17\0\0", 0);
    let mut opener = Opener::new(secret(SUITE));
    for room in 0..7 {
        let mut destination = vec![0xee; room];
        assert_eq!(opener.open_into(&record, &mut destination), Ok(None));
        assert_eq!(destination, vec![0xee; room]);
    }
    assert_eq!(opener.sequence(), 0);
    let mut destination = [0xee; 8];
    let opened = opener.open_into(&record, &mut destination);
    assert_eq!(opened, Ok(Some((ContentType::ApplicationData, 4))));
    assert_eq!((&destination[..4], destination[7]), (&b"data"[..], 0xee));
}

#[test]
fn padding_is_removed() {
    for padding in [0, 1, 200, PLAINTEXT_BYTES_MAX - 4] {
        let mut inner = b"data\x17".to_vec();
        inner.resize(inner.len() + padding, 0);
        let opened = open(&mut record_of(&inner, 0));
        assert_eq!(opened, Ok((ContentType::ApplicationData, b"data".to_vec())));
    }
    // The content may end with zeros.
    let opened = open(&mut record_of(b"da\0\0\x16\0", 0));
    assert_eq!(opened, Ok((ContentType::Handshake, b"da\0\0".to_vec())));
}

#[test]
fn data_may_be_empty_and_other_content_may_not() {
    let opened = open(&mut record_of(&[23], 0));
    assert_eq!(opened, Ok((ContentType::ApplicationData, vec![])));
    for kind in [21, 22] {
        assert_eq!(
            open(&mut record_of(&[kind, 0], 0)),
            Err(Alert::UNEXPECTED_MESSAGE)
        );
    }
}

#[test]
fn unknown_types_and_empty_records_are_refused() {
    for inner in [
        &[0][..],
        &[0; 100],
        b"data\x14",
        b"data\x18",
        b"data\xff",
        b"\0\0\x01",
    ] {
        let opened = open(&mut record_of(inner, 0));
        assert_eq!(opened, Err(Alert::UNEXPECTED_MESSAGE), "{inner:?}");
    }
}

#[test]
fn oversized_content_is_refused() {
    let mut inner = vec![1; PLAINTEXT_BYTES_MAX];
    inner.push(23);
    assert!(open(&mut record_of(&inner, 0)).is_ok());
    inner.insert(0, 1);
    assert_eq!(open(&mut record_of(&inner, 0)), Err(Alert::RECORD_OVERFLOW));
    inner = vec![23; CIPHERTEXT_BYTES_MAX - TAG_BYTES + 1];
    assert_eq!(open(&mut record_of(&inner, 0)), Err(Alert::RECORD_OVERFLOW));
}

#[test]
fn headers_are_checked() {
    let cases = [
        ([22, 3, 3, 0, 40], Err(Alert::UNEXPECTED_MESSAGE)),
        ([21, 3, 3, 0, 2], Err(Alert::UNEXPECTED_MESSAGE)),
        ([20, 3, 3, 0, 1], Err(Alert::UNEXPECTED_MESSAGE)),
        ([0, 0, 24, 0, 0], Err(Alert::UNEXPECTED_MESSAGE)),
        ([23, 3, 3, 0, 16], Err(Alert::BAD_RECORD_MAC)),
        ([23, 3, 3, 0, 17], Ok(17)),
        ([23, 9, 9, 0, 17], Ok(17)),
        ([23, 3, 3, 0x41, 0], Ok(CIPHERTEXT_BYTES_MAX)),
        ([23, 3, 3, 0x41, 1], Err(Alert::RECORD_OVERFLOW)),
        ([23, 3, 3, 0xff, 0xff], Err(Alert::RECORD_OVERFLOW)),
    ];
    for (header, expected) in cases {
        assert_eq!(record_body_bytes(header), expected, "{header:?}");
    }
}

#[test]
fn every_changed_bit_is_detected() {
    let sealed = record_of(b"some data\x17\0\0", 0);
    for bit in 0..8 * sealed.len() {
        let mut changed = sealed.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        // The version in the header is part of what is authenticated.
        let error = open(&mut changed).expect_err("a changed record");
        let expected: &[Alert] = match bit / 8 {
            0 => &[Alert::UNEXPECTED_MESSAGE],
            3 | 4 => &[
                Alert::DECODE_ERROR,
                Alert::RECORD_OVERFLOW,
                Alert::BAD_RECORD_MAC,
            ],
            _ => &[Alert::BAD_RECORD_MAC],
        };
        assert!(expected.contains(&error), "bit {bit}: {error}");
    }
}

#[test]
fn truncated_records_are_refused() {
    let sealed = record_of(b"some data\x17", 0);
    for bytes in 0..sealed.len() {
        assert!(
            open(&mut sealed[..bytes].to_vec()).is_err(),
            "{bytes} bytes"
        );
        // With a header that says so.
        if bytes > HEADER_BYTES {
            let mut shorter = sealed[..bytes].to_vec();
            shorter[..HEADER_BYTES].copy_from_slice(&protected_header(bytes - HEADER_BYTES));
            assert_eq!(open(&mut shorter), Err(Alert::BAD_RECORD_MAC));
        }
    }
}

#[test]
fn repeated_reordered_and_lost_records_are_refused() {
    let (first, second) = (record_of(b"1\x17", 0), record_of(b"2\x17", 1));
    let mut opener = Opener::new(secret(SUITE));
    assert!(opener.open(&mut first.clone()).is_ok());
    assert_eq!(opener.open(&mut first.clone()), Err(Alert::BAD_RECORD_MAC));
    assert_eq!(open(&mut second.clone()), Err(Alert::BAD_RECORD_MAC));
    assert_eq!(opener.sequence(), 1);
    assert!(opener.open(&mut second.clone()).is_ok());
}

#[test]
fn records_of_another_key_are_refused() {
    let mut sealer = Sealer::new(secret(SUITE));
    let mut room = [0; 64];
    sealer.update();
    let bytes = sealer
        .seal(ContentType::Alert, &[1, 0], &mut room)
        .expect("there is room");
    assert_eq!(open(&mut room[..bytes]), Err(Alert::BAD_RECORD_MAC));
    let mut updated = Opener::new(secret(SUITE));
    updated.update();
    let bytes = sealer
        .seal(ContentType::Alert, &[1, 0], &mut room)
        .expect("there is room");
    // It is the second record of that key.
    assert_eq!(
        updated.open(&mut room[..bytes].to_vec()),
        Err(Alert::BAD_RECORD_MAC)
    );
    assert!(updated.at(1).open(&mut room[..bytes]).is_ok());
}

#[test]
fn sequence_numbers_do_not_wrap() {
    let mut opener = Opener::new(secret(SUITE)).at(u64::MAX - 1);
    assert!(opener.open(&mut record_of(b"1\x17", u64::MAX - 1)).is_ok());
    let last = opener.open(&mut record_of(b"2\x17", u64::MAX));
    assert_eq!(last, Err(Alert::BAD_RECORD_MAC));
}
