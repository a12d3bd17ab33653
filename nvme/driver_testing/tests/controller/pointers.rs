//! PRPs and SGLs: valid ones of every form, and invalid ones with their exact status (Base 2.1
//! §4.3).

use std::sync::atomic::Ordering;

use hugemem::DmaBuffer;
use nvme_driver::backing::DeviceBacking;
use nvme_driver_testing::{EmulatedNamespace, EmulatedOptions, SglRules};
use nvme_spec::Status;
use nvme_spec::command::Sqe;
use nvme_spec::sgl::SglDescriptor;
use zerocopy::IntoBytes;

use crate::harness::{Host, PAGE, Pair};

fn options(sgl: SglRules) -> EmulatedOptions {
    EmulatedOptions {
        namespaces: vec![EmulatedNamespace::new(1, 512, 8192)],
        sgl,
        ..EmulatedOptions::default()
    }
}

fn host(sgl: SglRules) -> (Host, Pair) {
    let mut host = Host::new(options(sgl));
    let pair = host.pair(1, 16, 16);
    (host, pair)
}

fn status(host: &mut Host, pair: &mut Pair, sqe: Sqe) -> Status {
    let cqe = host.run(pair, sqe);
    let error = cqe.status();
    assert!(error.is_success() || error.dnr() || error.is(Status::DATA_TRANSFER_ERROR));
    error.code()
}

fn read(blocks: u32) -> Sqe {
    Sqe::read(1, 0, (blocks - 1) as u16)
}

/// An address without memory.
const NOWHERE: u64 = 0x2000;

#[test]
fn invalid_prps_are_refused() {
    let (mut host, mut pair) = host(SglRules::Unsupported);
    let data = host.buffer(16 * PAGE);
    let list = host.buffer(2 * PAGE);
    let (at, lists) = (host.address(&data), host.address(&list));
    let page = PAGE as u64;
    let end = host.drive.dma_address(host.arena.region().len());
    const OFFSET: Status = Status::PRP_OFFSET_INVALID;
    const TRANSFER: Status = Status::DATA_TRANSFER_ERROR;
    let direct = [
        (1, at + 2, 0, OFFSET),
        (1, at + 1, 0, OFFSET),
        (1, 0, 0, TRANSFER),
        (1, NOWHERE, 0, TRANSFER),
        (1, end, 0, TRANSFER),
        (8, end - 4, at, Status::SUCCESS),
        (16, at, at + page + 4, OFFSET),
        (16, at, NOWHERE, TRANSFER),
        (16, at, end, TRANSFER),
        // Lists of at least two entries.
        (17, at, lists + 4, OFFSET),
        (17, at, NOWHERE, TRANSFER),
        (17, at, end - 8, OFFSET),
    ];
    for (number, (blocks, prp1, prp2, expected)) in direct.into_iter().enumerate() {
        if prp2 == end - 8 {
            // The last 8 bytes of memory as a list entry: not a page-aligned address.
            let view = hugemem::DmaView::of_arena(host.arena.region()).unwrap();
            let last = host.arena.region().len() - 8;
            view.store_u64(last, at + 8, Ordering::Relaxed);
        }
        let found = status(&mut host, &mut pair, read(blocks).with_prp(prp1, prp2));
        assert_eq!(found, expected, "case {number}");
    }
    let entries = [
        (vec![at + page + 512], OFFSET),
        (vec![at + page, at + 2 * page + 4], OFFSET),
        (vec![at + page, NOWHERE], TRANSFER),
        (vec![at + page, 0], TRANSFER),
        (vec![at + page, at + 2 * page], Status::SUCCESS),
    ];
    for (number, (entries, expected)) in entries.into_iter().enumerate() {
        list.zero();
        for (index, entry) in entries.into_iter().enumerate() {
            list.store_u64(index * 8, entry, Ordering::Relaxed);
        }
        let found = status(&mut host, &mut pair, read(17).with_prp(at, lists));
        assert_eq!(found, expected, "list {number}");
    }
    // The last entry of a list page points to the next list, at the start of a page.
    let pointer = lists + page - 16;
    list.store_u64(PAGE - 16, at + page, Ordering::Relaxed);
    for (next, expected) in [(lists + page + 8, OFFSET), (lists + page, Status::SUCCESS)] {
        list.store_u64(PAGE - 8, next, Ordering::Relaxed);
        for index in 0..2 {
            let entry = at + (2 + index as u64) * page;
            list.store_u64(PAGE + index * 8, entry, Ordering::Relaxed);
        }
        let found = status(&mut host, &mut pair, read(32).with_prp(at, pointer));
        assert_eq!(found, expected, "next list at {next:#x}");
    }
}

#[test]
fn transfers_beyond_mdts_are_refused() {
    let mut host = Host::new(EmulatedOptions {
        transfer_code: 1,
        ..options(SglRules::Any)
    });
    let mut pair = host.pair(1, 4, 4);
    let data = host.buffer(4 * PAGE);
    let at = host.address(&data);
    let found = status(
        &mut host,
        &mut pair,
        read(16).with_prp(at, at + PAGE as u64),
    );
    assert_eq!(found, Status::SUCCESS);
    let found = status(&mut host, &mut pair, read(17).with_prp(at, at));
    assert_eq!(found, Status::INVALID_FIELD);
    let sgl = SglDescriptor::data_block(at, 17 * 512);
    let found = status(&mut host, &mut pair, read(17).with_sgl(sgl));
    assert_eq!(found, Status::INVALID_FIELD);
}

fn put(buffer: &DmaBuffer, offset: usize, descriptors: &[SglDescriptor]) {
    for (index, descriptor) in descriptors.iter().enumerate() {
        buffer.write(offset + index * 16, descriptor.as_bytes());
    }
}

#[test]
fn invalid_sgls_are_refused() {
    let (mut host, mut pair) = host(SglRules::Any);
    let data = host.buffer(4 * PAGE);
    let list = host.buffer(PAGE);
    let (at, lists) = (host.address(&data), host.address(&list));
    let block = SglDescriptor::data_block(at, 512);
    const LENGTH: Status = Status::DATA_SGL_LENGTH_INVALID;
    const SEGMENT: Status = Status::INVALID_SGL_SEGMENT_DESCRIPTOR;
    const KIND: Status = Status::SGL_DESCRIPTOR_TYPE_INVALID;
    const NUMBER: Status = Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS;
    let alone = [
        (SglDescriptor::data_block(at, 511), LENGTH),
        (SglDescriptor::data_block(at, 513), LENGTH),
        (SglDescriptor::data_block(at, 0), LENGTH),
        (
            SglDescriptor::data_block(NOWHERE, 512),
            Status::DATA_TRANSFER_ERROR,
        ),
        (
            SglDescriptor::data_block(u64::MAX - 3, 512),
            Status::DATA_TRANSFER_ERROR,
        ),
        (SglDescriptor::in_capsule(0, 512), KIND),
        (SglDescriptor::transport(512), KIND),
        (SglDescriptor::keyed(at, 512, 1, false).unwrap(), KIND),
        (SglDescriptor::bit_bucket(512), KIND),
        (SglDescriptor::last_segment(lists, 0), SEGMENT),
        (SglDescriptor::last_segment(lists, 24), SEGMENT),
        (
            SglDescriptor::last_segment(NOWHERE, 16),
            Status::DATA_TRANSFER_ERROR,
        ),
        (SglDescriptor::segment(lists, 8), SEGMENT),
        (SglDescriptor::data_block(at + 1, 512), Status::SUCCESS),
    ];
    for (number, (sgl, expected)) in alone.into_iter().enumerate() {
        let found = status(&mut host, &mut pair, read(1).with_sgl(sgl));
        assert_eq!(found, expected, "case {number}");
    }
    let last = SglDescriptor::last_segment(lists + 64, 16);
    let segments = [
        // A last segment with a segment in it.
        (
            SglDescriptor::last_segment(lists, 32),
            vec![block, last],
            SEGMENT,
        ),
        // A segment without a pointer to the next one.
        (SglDescriptor::segment(lists, 16), vec![block], SEGMENT),
        // A pointer that is not the last descriptor of its segment.
        (SglDescriptor::segment(lists, 32), vec![last, block], NUMBER),
        (SglDescriptor::segment(lists, 32), vec![block, last], LENGTH),
        (
            SglDescriptor::last_segment(lists, 32),
            vec![block, block],
            LENGTH,
        ),
    ];
    put(&list, 64, &[block]);
    for (number, (sgl, descriptors, expected)) in segments.into_iter().enumerate() {
        put(&list, 0, &descriptors);
        let found = status(&mut host, &mut pair, read(1).with_sgl(sgl));
        assert_eq!(found, expected, "segments {number}");
    }
    // The walk over a circular segment ends.
    put(&list, 0, &[SglDescriptor::segment(lists, 16)]);
    let found = status(
        &mut host,
        &mut pair,
        read(1).with_sgl(SglDescriptor::segment(lists, 16)),
    );
    assert_eq!(found, NUMBER);
}

#[test]
fn unsupported_and_unaligned_sgls_are_refused() {
    let (mut host, mut pair) = host(SglRules::Unsupported);
    let at = host.address(&host.buffer(PAGE));
    let sqe = read(1).with_sgl(SglDescriptor::data_block(at, 512));
    assert_eq!(status(&mut host, &mut pair, sqe), Status::INVALID_FIELD);
    let (mut host, mut pair) = self::host(SglRules::Dword);
    let data = host.buffer(PAGE);
    let at = host.address(&data);
    for (address, expected) in [
        (at + 2, Status::SGL_DATA_BLOCK_GRANULARITY_INVALID),
        (at + 4, Status::SUCCESS),
    ] {
        let sqe = read(1).with_sgl(SglDescriptor::data_block(address, 512));
        assert_eq!(status(&mut host, &mut pair, sqe), expected);
    }
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 3 * 7 + at) as u8).collect()
}

/// Writes with one form of list and reads with another: data and order are the same.
#[test]
fn prp_and_sgl_lists_transfer_the_same_data() {
    const BLOCKS: u32 = 33;
    const BYTES: usize = BLOCKS as usize * 512;
    let (mut host, mut pair) = host(SglRules::Any);
    let (data, back) = (host.buffer(8 * PAGE), host.buffer(8 * PAGE));
    let list = host.buffer(2 * PAGE);
    let (at, lists) = (host.address(&data), host.address(&list));
    let expected = pattern(BYTES);
    // PRPs: starting inside a page, pages in reverse order, over a chain of two lists.
    let offset = 1024;
    let pages = [0, 5, 4, 3, 2];
    let mut left = &expected[..];
    for (index, page) in pages.into_iter().enumerate() {
        let skip = if index == 0 { offset } else { 0 };
        let (here, rest) = left.split_at(left.len().min(PAGE - skip));
        data.write(page * PAGE + skip, here);
        left = rest;
    }
    assert!(left.is_empty());
    let page = |number: usize| at + (number * PAGE) as u64;
    list.store_u64(PAGE - 16, page(5), Ordering::Relaxed);
    list.store_u64(PAGE - 8, lists + PAGE as u64, Ordering::Relaxed);
    for (index, number) in [4, 3, 2].into_iter().enumerate() {
        list.store_u64(PAGE + index * 8, page(number), Ordering::Relaxed);
    }
    let pointer = lists + PAGE as u64 - 16;
    let write = Sqe::write(1, 7, (BLOCKS - 1) as u16, false);
    let found = status(
        &mut host,
        &mut pair,
        write.with_prp(at + offset as u64, pointer),
    );
    assert_eq!(found, Status::SUCCESS);
    let mut stored = vec![0; BYTES];
    assert!(host.control.read_medium(1, 7, &mut stored));
    assert!(stored == expected);
    // SGL: pieces of odd lengths, in two segments.
    let to = host.address(&back);
    let pieces = [(9000, 3), (100, 1001), (5000, 4000)];
    let rest = BYTES - 3 - 1001 - 4000;
    let block = |(offset, bytes): (usize, usize)| {
        SglDescriptor::data_block(to + offset as u64, bytes as u32)
    };
    put(&list, 0, &pieces.map(block));
    put(&list, 48, &[SglDescriptor::last_segment(lists + 512, 16)]);
    put(&list, 512, &[block((12_000, rest))]);
    let sgl = SglDescriptor::segment(lists, 64);
    let read = Sqe::read(1, 7, (BLOCKS - 1) as u16).with_sgl(sgl);
    assert_eq!(status(&mut host, &mut pair, read), Status::SUCCESS);
    let mut found = Vec::new();
    for (offset, bytes) in pieces.into_iter().chain([(12_000, rest)]) {
        let mut piece = vec![0; bytes];
        back.read(offset, &mut piece);
        found.extend(piece);
    }
    assert!(found == expected);
    let compare = Sqe::compare(1, 7, (BLOCKS - 1) as u16);
    assert_eq!(
        status(&mut host, &mut pair, compare.with_sgl(sgl)),
        Status::SUCCESS
    );
    back.write(12_000 + rest - 1, &[0]);
    let unequal = host.run(&mut pair, compare.with_sgl(sgl)).status();
    assert_eq!(unequal, Status::COMPARE_FAILURE);
}
