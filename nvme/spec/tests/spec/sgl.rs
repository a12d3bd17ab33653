//! SGL descriptors on the wire.

use nvme_spec::sgl::{KEYED_LENGTH_MAX_BYTES, Sgl, SglDescriptor, SglSubtype, SglType};
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

const ADDRESS: u64 = 0x0102_0304_0506_0708;
const ADDRESS_BYTES: [u8; 8] = [8, 7, 6, 5, 4, 3, 2, 1];

fn bytes(address: [u8; 8], middle: [u8; 7], identifier: u8) -> [u8; 16] {
    let mut all = [0; 16];
    all[..8].copy_from_slice(&address);
    all[8..15].copy_from_slice(&middle);
    all[15] = identifier;
    all
}

#[test]
fn sgl_wire_forms() {
    let length = [0x44, 0x33, 0x22, 0x11, 0, 0, 0];
    let table = [
        (
            SglDescriptor::data_block(ADDRESS, 0x1122_3344),
            bytes(ADDRESS_BYTES, length, 0x00),
        ),
        (
            SglDescriptor::in_capsule(ADDRESS, 0x1122_3344),
            bytes(ADDRESS_BYTES, length, 0x01),
        ),
        (
            SglDescriptor::bit_bucket(0x1122_3344),
            bytes([0; 8], length, 0x10),
        ),
        (
            SglDescriptor::segment(ADDRESS, 0x1122_3344),
            bytes(ADDRESS_BYTES, length, 0x20),
        ),
        (
            SglDescriptor::last_segment(ADDRESS, 0x1122_3344),
            bytes(ADDRESS_BYTES, length, 0x30),
        ),
        (
            SglDescriptor::last_segment_in_capsule(ADDRESS, 0x1122_3344),
            bytes(ADDRESS_BYTES, length, 0x31),
        ),
        (
            SglDescriptor::transport(0x1122_3344),
            bytes([0; 8], length, 0x5a),
        ),
    ];
    for (descriptor, expected) in table {
        assert_eq!(descriptor.as_bytes(), expected, "{:?}", descriptor.decode());
    }
}

#[test]
fn keyed_sgl_wire_forms() {
    let middle = [0x33, 0x22, 0x11, 0x88, 0x77, 0x66, 0x55];
    let plain = SglDescriptor::keyed(ADDRESS, 0x11_2233, 0x5566_7788, false).unwrap();
    assert_eq!(plain.as_bytes(), bytes(ADDRESS_BYTES, middle, 0x40));
    let invalidate = SglDescriptor::keyed(ADDRESS, 0x11_2233, 0x5566_7788, true).unwrap();
    assert_eq!(invalidate.as_bytes(), bytes(ADDRESS_BYTES, middle, 0x4f));
}

#[test]
fn keyed_length_has_24_bits() {
    assert!(SglDescriptor::keyed(0, KEYED_LENGTH_MAX_BYTES, 0, false).is_some());
    assert_eq!(
        SglDescriptor::keyed(0, KEYED_LENGTH_MAX_BYTES + 1, 0, false),
        None
    );
    assert_eq!(SglDescriptor::keyed(0, u32::MAX, 0, true), None);
}

#[test]
fn unknown_identifiers_are_returned() {
    for identifier in [
        0x02, 0x0a, 0x11, 0x2f, 0x3a, 0x41, 0x50, 0x51, 0x5b, 0x60, 0xf0, 0xff,
    ] {
        let descriptor =
            SglDescriptor::read_from_bytes(&bytes([0; 8], [0; 7], identifier)).unwrap();
        assert_eq!(
            descriptor.decode(),
            Sgl::Unknown(descriptor.identifier()),
            "{identifier:#x}"
        );
    }
}

proptest! {
    #[test]
    fn arbitrary_descriptors(raw: [u8; 16]) {
        let descriptor = SglDescriptor::read_from_bytes(&raw).unwrap();
        let _ = format!("{descriptor:?}");
        let kind = descriptor.identifier().kind();
        let offset = descriptor.identifier().subtype() == SglSubtype::OFFSET;
        match descriptor.decode() {
            Sgl::DataBlock { address, length } => {
                let again = SglDescriptor::data_block(address, length);
                prop_assert_eq!(again.decode(), descriptor.decode());
            }
            Sgl::Offset { .. } => prop_assert!(kind == SglType::DATA_BLOCK && offset),
            Sgl::BitBucket { .. } => prop_assert_eq!(kind, SglType::BIT_BUCKET),
            Sgl::Segment { in_capsule, .. } => {
                prop_assert!(kind == SglType::SEGMENT && in_capsule == offset);
            }
            Sgl::LastSegment { in_capsule, .. } => {
                prop_assert!(kind == SglType::LAST_SEGMENT && in_capsule == offset);
            }
            Sgl::Keyed { length, .. } => {
                prop_assert!(kind == SglType::KEYED_DATA_BLOCK && length <= KEYED_LENGTH_MAX_BYTES);
            }
            Sgl::Transport { .. } => prop_assert_eq!(kind, SglType::TRANSPORT_DATA_BLOCK),
            Sgl::Unknown(identifier) => prop_assert_eq!(identifier, descriptor.identifier()),
        }
    }

    #[test]
    fn sgl_descriptors_round_trip(address: u64, length: u32, key: u32, flag: bool) {
        let capsule = SglDescriptor::in_capsule(address, length).decode();
        prop_assert_eq!(capsule, Sgl::Offset { offset: address, length });
        prop_assert_eq!(SglDescriptor::transport(length).decode(), Sgl::Transport { length });
        let segment = SglDescriptor::segment(address, length).decode();
        prop_assert_eq!(segment, Sgl::Segment { address, length, in_capsule: false });
        let last = if flag {
            SglDescriptor::last_segment_in_capsule(address, length)
        } else {
            SglDescriptor::last_segment(address, length)
        };
        let expected = Sgl::LastSegment { address, length, in_capsule: flag };
        prop_assert_eq!(last.decode(), expected);
        let short = length & KEYED_LENGTH_MAX_BYTES;
        let keyed = SglDescriptor::keyed(address, short, key, flag).unwrap();
        let expected = Sgl::Keyed { address, length: short, key, invalidate: flag };
        prop_assert_eq!(keyed.decode(), expected);
    }
}
