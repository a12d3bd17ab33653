//! Vectors by hand, holes and their limits.

use super::*;

/// RFC 4506 §4.10: length, bytes, padding with zeroes to a multiple of four.
#[test]
fn opaque_data_is_padded_to_units() {
    let mut memory = [0xaa; 16];
    let mut to = Encoder::new(&mut memory);
    Opaque::<8>(b"abcde").encode(&mut to).expect("fits");
    assert_eq!(to.written(), b"\0\0\0\x05abcde\0\0\0");
    assert_eq!(to.room(), 4);
    let mut from = Decoder::new(b"\0\0\0\x05abcde\xff\xff\xff");
    let decoded = Opaque::<8>::decode(&mut from).expect("the padding is not checked");
    assert_eq!(decoded.0, b"abcde");
    assert_eq!(from.finish(), Ok(()));
}

#[test]
fn limits_apply_to_both_directions() {
    let mut memory = [0; 64];
    let mut to = Encoder::new(&mut memory);
    assert_eq!(
        Opaque::<4>(b"abcde").encode(&mut to),
        Err(EncodeError::Value)
    );
    assert_eq!(Text::<4>("abcde").encode(&mut to), Err(EncodeError::Value));
    let list: List<'_, u32, 2> = List::new(&[1, 2, 3]);
    assert_eq!(list.encode(&mut to), Err(EncodeError::Value));
    let five = b"\0\0\0\x05abcde\0\0\0";
    let decode = Opaque::<4>::decode(&mut Decoder::new(five));
    assert_eq!(decode, Err(DecodeError::TooLong));
    let text = Text::<4>::decode(&mut Decoder::new(b"\0\0\0\x01\xff\0\0\0"));
    assert_eq!(text, Err(DecodeError::NotUtf8));
}

#[test]
fn padding_that_the_record_lacks_is_an_error() {
    let mut from = Decoder::new(b"\0\0\0\x05abcde\0\0");
    assert_eq!(from.opaque(8), Err(DecodeError::Truncated));
}

#[test]
fn lists_compare_by_items() {
    let list: List<'_, u32, 4> = List::new(&[7, 8]);
    let bytes = [0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 8];
    let decoded = List::<'_, u32, 4>::decode(&mut Decoder::new(&bytes)).expect("decodes");
    assert_eq!(list, decoded);
    assert_eq!(decoded.iter().collect::<Vec<_>>(), [7, 8]);
    assert_ne!(list, List::new(&[7]));
}

#[test]
fn a_hole_counts_for_the_message_and_not_for_the_memory() {
    let mut memory = [0; 64];
    let mut to = Encoder::new(&mut memory);
    Payload::Elsewhere(5).encode(&mut to).expect("fits");
    9_u32.encode(&mut to).expect("fits");
    assert_eq!(to.holes(), [Hole { at: 4, length: 5 }]);
    assert_eq!(to.written(), [0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 9]);
    assert_eq!(to.message_bytes(), 16);
    // The receiver that placed the five bytes decodes the remaining ones.
    let placement = Placement { at: 4, length: 5 };
    let mut from = Decoder::without_payload(to.written(), placement);
    assert_eq!(Payload::decode(&mut from), Ok(Payload::Elsewhere(5)));
    assert_eq!(u32::decode(&mut from), Ok(9));
}

#[test]
fn an_empty_hole_needs_no_place_and_too_many_holes_are_an_error() {
    let mut memory = [0; 64];
    let mut to = Encoder::new(&mut memory);
    for _ in 0..HOLES_MAX {
        Payload::Elsewhere(0).encode(&mut to).expect("fits");
        Payload::Elsewhere(4).encode(&mut to).expect("fits");
    }
    let more = Payload::Elsewhere(4).encode(&mut to);
    assert_eq!(more, Err(EncodeError::TooManyHoles));
    assert_eq!(to.holes().len(), HOLES_MAX);
    let long = Payload::Elsewhere(u32::MAX).encode(&mut to);
    assert_eq!(long, Err(EncodeError::Value));
}
