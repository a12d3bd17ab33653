use nvme_spec::Sqe;
use zerocopy::IntoBytes;

use super::*;
use crate::io::{DataContext, data_source};

const DATA: DataContext = DataContext {
    keyed: true,
    in_capsule_max: 4096,
};

fn keyed(address: u64, length: u32, key: u32, invalidate: bool) -> SglDescriptor {
    SglDescriptor::keyed(address, length, key, invalidate).expect("short")
}

/// A read of 1,024 bytes with descriptors in the capsule.
fn read(descriptors: usize) -> Work {
    let (offset, length) = (0, (descriptors * size_of::<SglDescriptor>()) as u32);
    Work {
        kind: WorkKind::Io(IoWork {
            operation: IoOperation::Read,
            device: 0,
            blocks: 2,
            lba: 0,
            bytes: 1024,
            nsid: 1,
            epoch: 0,
        }),
        bytes: 1024,
        command_id: 1,
        direction: Direction::ToHost,
        needs_lease: true,
        source: DataSource::KeyedSegment { offset, length },
        received_at: Nanos::ZERO,
        since: Nanos::ZERO,
    }
}

fn blocks(descriptors: &[SglDescriptor]) -> Result<KeyedBlocks, Status> {
    let mut blocks = KeyedBlocks::default();
    read(descriptors.len())
        .keyed_blocks(descriptors.as_bytes(), &mut blocks)
        .map(|()| blocks)
}

/// Base 2.1 §4.3.2: last segment descriptor with an offset, as far as MSDBD allows.
#[test]
fn sgl_segment_must_hold_whole_descriptors_within_the_capsule() {
    let source = |offset, length| {
        let segment = SglDescriptor::last_segment_in_capsule(offset, length);
        let sqe = Sqe::read(1, 0, 0).with_sgl(segment);
        data_source(&sqe, Direction::ToHost, DATA).map_err(|fault| fault.status)
    };
    let found = source(4096 - 32, 32);
    let (offset, length) = (4096 - 32, 32);
    assert_eq!(
        found,
        Ok((DataSource::KeyedSegment { offset, length }, None))
    );
    let segment = Status::INVALID_SGL_SEGMENT_DESCRIPTOR.with_dnr();
    for (offset, length) in [(0, 0), (0, 15), (0, 40), (4096 - 16, 32), (4096, 16)] {
        assert_eq!(source(offset, length), Err(segment), "{offset} {length}");
    }
    for offset in [4097, u64::from(u32::MAX) + 1, u64::MAX] {
        let outside = Status::SGL_OFFSET_INVALID.with_dnr();
        assert_eq!(source(offset, 16), Err(outside), "{offset}");
    }
    let many = Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS.with_dnr();
    let most = (KEYED_BLOCKS_MAX * 16) as u32;
    assert!(source(0, most).is_ok());
    assert_eq!(source(0, most + 16), Err(many));
}

#[test]
fn sgl_segment_in_host_memory_or_on_unkeyed_transport_is_refused() {
    let invalid = Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.with_dnr());
    let source = |sgl, data| {
        let sqe = Sqe::read(1, 0, 0).with_sgl(sgl);
        data_source(&sqe, Direction::ToHost, data).map_err(|fault| fault.status)
    };
    assert_eq!(source(SglDescriptor::last_segment(0, 32), DATA), invalid);
    assert_eq!(source(SglDescriptor::segment(0, 32), DATA), invalid);
    let unkeyed = DataContext {
        keyed: false,
        ..DATA
    };
    let segment = SglDescriptor::last_segment_in_capsule(0, 32);
    assert_eq!(source(segment, unkeyed), invalid);
}

#[test]
fn keyed_blocks_keep_order_and_first_invalidate_key_applies() {
    let found = blocks(&[
        keyed(0x1000, 512, 7, false),
        keyed(0x9000, 0, 5, false),
        keyed(0x5000, 256, 8, true),
        keyed(0x7000, 256, 9, true),
    ])
    .expect("they add up");
    let keys: Vec<_> = found.blocks.iter().map(|block| block.key).collect();
    assert_eq!((keys, found.invalidate), (vec![7, 8, 9], Some(8)));
}

#[test]
fn keyed_blocks_of_wrong_length_or_type_are_refused() {
    let length = Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
    assert_eq!(blocks(&[keyed(0, 512, 1, false)]), length);
    assert_eq!(
        blocks(&[keyed(0, 512, 1, false), keyed(0, 513, 1, false)]),
        length
    );
    let longest = nvme_spec::sgl::KEYED_LENGTH_MAX_BYTES;
    assert_eq!(blocks(&[keyed(0, longest, 1, false); 8]), length);
    let kind = Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.with_dnr());
    for other in [
        SglDescriptor::in_capsule(0, 512),
        SglDescriptor::data_block(0, 512),
        SglDescriptor::last_segment_in_capsule(0, 32),
    ] {
        assert_eq!(blocks(&[keyed(0, 512, 1, false), other]), kind);
    }
}
