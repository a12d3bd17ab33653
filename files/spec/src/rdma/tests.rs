//! Headers by hand from the layout of RFC 8166 §4.1, and headers with errors.

use proptest::prelude::*;

use super::*;
use crate::limits::RECORD_BYTES_MAX;

const XID: u32 = 0x0a0b_0c0d;

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A header of version 1 with these words behind its credits.
fn header(rest: &[u32]) -> Vec<u8> {
    bytes(&[&[XID, 1, 32], rest].concat())
}

fn decoded(rest: &[u32]) -> Result<Header, HeaderError> {
    Header::decode(&header(rest)).map(|(header, _)| header)
}

const MALFORMED: HeaderError = HeaderError::Chunk { xid: XID };

#[test]
fn headers_that_are_too_short_have_no_answer() {
    for length in 0..16 {
        let short = &header(&[0, 0, 0, 0])[..length];
        let error = Header::decode(short).expect_err("short");
        assert_eq!(error, HeaderError::Truncated);
        assert_eq!(error.answer(32), None);
    }
}

/// RFC 8166 §4.5.1: the answer has the versions that are supported.
#[test]
fn other_versions_are_answered_with_the_supported_one() {
    for version in [0, 2, u32::MAX] {
        // What follows the fixed part has a layout of its own.
        let other = bytes(&[XID, version, 32, 9]);
        let error = Header::decode(&other).expect_err("another version");
        assert_eq!(error, HeaderError::Version { xid: XID });
        let mut memory = [0; 64];
        let mut to = Encoder::new(&mut memory);
        let answer = error.answer(16).expect("an answer");
        answer.encode(&mut to).expect("fits");
        assert_eq!(to.written(), bytes(&[XID, 1, 16, 4, 1, 1, 1]));
        assert_eq!(answer.encoded_bytes(), to.written().len());
    }
}

/// RFC 8166 §4.5.2.
#[test]
fn malformed_chunk_lists_are_answered_with_an_error() {
    let many_reads = [1, 0, 7, 4, 0, 0].repeat(SEGMENTS_MAX + 1);
    let segment = [7, 4, 0, 0];
    let many_segments = [&[0, 1, 17][..], &segment.repeat(17), &[0, 0]].concat();
    let many_chunks = [&[0][..], &[1, 0].repeat(WRITE_CHUNKS_MAX + 1), &[0, 0]].concat();
    let huge_reply = [&[0, 0, 1, u32::MAX][..], &segment].concat();
    let cases: [(&str, &[u32]); 14] = [
        ("no lists", &[]),
        ("a read list without an end", &[1, 0, 7, 4, 0, 0]),
        ("a discriminant that is no boolean", &[2, 0, 0]),
        ("a truncated segment", &[1, 0, 7, 4]),
        (
            "too many read segments",
            &[&many_reads[..], &[0, 0, 0]].concat(),
        ),
        ("too many segments in a chunk", &many_segments),
        ("too many write chunks", &many_chunks),
        ("a reply chunk longer than the message", &huge_reply),
        ("no reply chunk", &[0, 0]),
        (
            "a range that wraps around",
            &[1, 0, 7, 4, u32::MAX, u32::MAX - 2, 0, 0, 0],
        ),
        (
            "a write range that wraps",
            &[0, 1, 1, 7, 9, u32::MAX, u32::MAX - 7, 0, 0],
        ),
        (
            "positions that go back",
            &[1, 8, 7, 4, 0, 0, 1, 4, 7, 4, 0, 0, 0, 0, 0],
        ),
        ("a position within a unit", &[1, 6, 7, 4, 0, 0, 0, 0, 0]),
        ("a write chunk within no list", &[0, 3, 0]),
    ];
    for procedure in [0, 1] {
        for (what, lists) in cases {
            let result = decoded(&[&[procedure], lists].concat());
            assert_eq!(result, Err(MALFORMED), "{what}");
        }
    }
    // RDMA_MSGP and RDMA_DONE are of earlier versions of the document.
    for procedure in [2, 3, 5, u32::MAX] {
        assert_eq!(decoded(&[procedure, 0, 0, 0]), Err(MALFORMED));
    }
    // An error has a kind, and that of a version its range.
    for rest in [&[4][..], &[4, 0], &[4, 3], &[4, 1], &[4, 1, 1]] {
        assert_eq!(decoded(rest), Err(MALFORMED));
    }
    let mut memory = [0; 64];
    let mut to = Encoder::new(&mut memory);
    let answer = MALFORMED.answer(8).expect("an answer");
    answer.encode(&mut to).expect("fits");
    assert_eq!(to.written(), bytes(&[XID, 1, 8, 4, 2]));
    assert_eq!(answer.encoded_bytes(), to.written().len());
}

/// Read chunks that a server cannot carry out.
#[test]
fn calls_whose_read_chunks_do_not_match_are_refused() {
    let cases: [(&str, &[u32]); 6] = [
        // RFC 8166 §3.5.3.
        ("no message at all", &[1, 0, 0, 0]),
        ("two messages", &[0, 1, 0, 7, 40, 0, 0, 0, 0, 0]),
        (
            "three chunks",
            &[0, 1, 4, 7, 4, 0, 0, 1, 8, 7, 4, 0, 0, 0, 0, 0],
        ),
        (
            "a message longer than a record",
            &[1, 1, 0, 7, RECORD_BYTES_MAX as u32 + 1, 0, 0, 0, 0, 0],
        ),
        (
            "lengths that exceed a record together",
            &[
                1,
                1,
                0,
                7,
                64,
                0,
                0,
                1,
                8,
                7,
                RECORD_BYTES_MAX as u32,
                0,
                0,
                0,
                0,
                0,
            ],
        ),
        (
            "a position behind the message",
            &[0, 1, 44, 7, 4, 0, 0, 0, 0, 0],
        ),
    ];
    for (what, rest) in cases {
        let header = decoded(rest).expect("a valid header");
        assert_eq!(header.call(40), Err(MALFORMED), "{what}");
    }
    let inline_too = decoded(&[1, 1, 0, 7, 40, 0, 0, 0, 0, 0]).expect("a valid header");
    assert_eq!(
        inline_too.call(4),
        Err(MALFORMED),
        "a message beside a long one"
    );
    assert!(inline_too.call(0).is_ok());
    // An error is not a call, and has no answer: that could go on forever.
    let error = decoded(&[4, 2]).expect("a valid header");
    assert_eq!(error.call(0), Err(HeaderError::Truncated));
}

#[test]
fn chunks_are_what_the_lists_have() {
    let words = [
        &[0][..],
        // Two segments at one position.
        &[1, 40, 7, 100, 1, 2, 1, 40, 8, 24, 0, 3],
        // The end of the list, a chunk of two segments, an empty one, and the end.
        &[0, 1, 2, 9, 4096, 0, 16, 10, 1, 5, 6, 1, 0, 0],
        // A reply chunk.
        &[1, 1, 11, 64, 0, 0],
    ]
    .concat();
    let mut message = header(&words);
    let length = message.len();
    message.extend_from_slice(b"call");
    let (header, at) = Header::decode(&message).expect("valid");
    assert_eq!(at, length);
    assert_eq!((header.xid, header.credits), (XID, 32));
    assert_eq!(header.procedure, Procedure::Message);
    let call = header.call(40).expect("valid");
    assert_eq!((call.data_at, call.data.bytes()), (40, 124));
    assert!(call.message.segments().is_empty());
    let [first, second] = call.data.segments() else {
        panic!("{call:?}");
    };
    assert_eq!((first.handle, first.offset), (7, 1 << 32 | 2));
    assert_eq!((second.handle, second.length, second.offset), (8, 24, 3));
    let writes = header.chunks.writes();
    assert_eq!(
        (writes.len(), writes[0].bytes(), writes[1].bytes()),
        (2, 4097, 0)
    );
    let reply = header.chunks.reply.expect("one");
    assert_eq!((reply.bytes(), reply.segments().len()), (64, 1));
    // Any of the keys may be invalidated.
    assert_eq!(header.chunks.first_handle(), Some(9));
    let mut memory = [0; 512];
    let mut to = Encoder::new(&mut memory);
    header.encode(&mut to).expect("fits");
    assert_eq!(to.written(), &message[..at]);
}

/// RFC 8166 §3.4.6: the lengths that were used are returned.
#[test]
fn a_used_chunk_has_the_lengths_that_were_written() {
    let segment = |length| Segment {
        handle: 1,
        length,
        offset: 0,
    };
    let mut chunk = Chunk::default();
    for length in [100, 0, 50, 200] {
        chunk.push(segment(length)).expect("room");
    }
    let lengths = |used: Option<Chunk>| -> Option<Vec<u32>> {
        used.map(|it| it.segments().iter().map(|it| it.length).collect())
    };
    assert_eq!(lengths(chunk.used(351)), None);
    assert_eq!(lengths(chunk.used(350)), Some(vec![100, 0, 50, 200]));
    assert_eq!(lengths(chunk.used(120)), Some(vec![100, 0, 20, 0]));
    assert_eq!(lengths(chunk.used(0)), Some(vec![0, 0, 0, 0]));
    for _ in 4..SEGMENTS_MAX {
        chunk.push(segment(1)).expect("room");
    }
    assert!(chunk.push(segment(1)).is_err());
}

/// RFC 8797.
#[test]
fn private_data_that_is_not_of_this_format_means_the_defaults() {
    let valid = [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 0];
    let announced = PrivateData {
        invalidates_remotely: true,
        send_bytes: 4096,
        receive_bytes: 1024,
    };
    assert_eq!(PrivateData::decode(&valid), announced);
    assert_eq!(announced.encode(), valid);
    // InfiniBand pads it.
    let padded = [&valid[..], &[0; 48]].concat();
    assert_eq!(PrivateData::decode(&padded), announced);
    for length in 0..8 {
        let short = PrivateData::decode(&valid[..length]);
        assert_eq!(short, PrivateData::DEFAULT);
    }
    for (index, value) in [(0, 0), (3, 0x19), (4, 0), (4, 2)] {
        let mut other = valid;
        other[index] = value;
        assert_eq!(PrivateData::decode(&other), PrivateData::DEFAULT);
    }
    // Other flags are of later documents.
    let flags = [0xf6, 0xab, 0x0e, 0x18, 1, 0xfe, 255, 255];
    let decoded = PrivateData::decode(&flags);
    assert!(!decoded.invalidates_remotely);
    assert_eq!(
        (decoded.send_bytes, decoded.receive_bytes),
        (1 << 18, 1 << 18)
    );
}

fn chunk(segments: Vec<(u32, u32, u32)>) -> Chunk {
    let mut chunk = Chunk::default();
    for (handle, length, offset) in segments {
        let offset = u64::from(offset);
        let segment = Segment {
            handle,
            length,
            offset,
        };
        chunk.push(segment).expect("few");
    }
    chunk
}

fn chunks() -> impl Strategy<Value = Chunk> {
    proptest::collection::vec(any::<(u32, u32, u32)>(), 0..=SEGMENTS_MAX).prop_map(chunk)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn headers_survive_encoding(
        fixed in any::<(u32, u32, bool)>(),
        reads in proptest::collection::vec((0_u32..1000, any::<(u32, u32, u32)>()), 0..=SEGMENTS_MAX),
        writes in proptest::collection::vec(chunks(), 0..=WRITE_CHUNKS_MAX),
        reply in proptest::option::of(chunks()),
        inline in 0_usize..100,
    ) {
        let mut header = Header {
            xid: fixed.0,
            credits: fixed.1,
            procedure: if fixed.2 { Procedure::Message } else { Procedure::NoMessage },
            chunks: Chunks { reply, ..Chunks::default() },
        };
        let mut position = 0;
        for (step, (handle, length, offset)) in reads {
            position += 4 * (step / 4);
            let offset = u64::from(offset);
            let segment = Segment { handle, length, offset };
            header.chunks.push_read(ReadSegment { position, segment }).expect("few");
        }
        for chunk in writes {
            header.chunks.push_write(chunk).expect("few");
        }
        let mut memory = vec![0; 4096];
        let mut to = Encoder::new(&mut memory);
        header.encode(&mut to).expect("fits");
        let encoded = to.written().to_vec();
        prop_assert_eq!(Header::decode(&encoded), Ok((header, encoded.len())));
        prop_assert_eq!(header.encoded_bytes(), encoded.len());
        prop_assert!(encoded.len() <= HEADER_BYTES_MAX);
        if let Ok(call) = header.call(inline) {
            let bytes = call.message.bytes() + call.data.bytes();
            prop_assert!(bytes <= RECORD_BYTES_MAX as u64);
        }
        for length in 0..encoded.len() {
            prop_assert!(Header::decode(&encoded[..length]).is_err());
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(message in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Ok((header, at)) = Header::decode(&message) {
            prop_assert!(at <= message.len());
            let _ = header.call(message.len() - at);
        }
    }
}
