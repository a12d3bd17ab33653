//! Direct data placement: solicited data is received directly into a RAM device, and each block is
//! old or new at any time, however receives split the stream, whichever range locks exist, and
//! wherever the host stops.

use std::sync::Arc;

use crate::harness::wire::{Host, Stage, TargetPdu};
use crate::harness::{BLOCK_BYTES, ram};
use block::{Device, DeviceQueue, QueueOptions};
use hugemem::Borrow;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::H2cData;
use nvme_spec::{Cqe, Sqe};
use zerocopy::IntoBytes;

const LBA: u64 = 64;
const BLOCKS: usize = 64;
const BYTES: usize = BLOCKS * BLOCK_BYTES;

/// Data in which no two blocks are equal and no byte is zero.
fn data() -> Vec<u8> {
    (0..BYTES)
        .map(|at| (at / BLOCK_BYTES * 3 + at % 61) as u8 | 1)
        .collect()
}

/// A target with one RAM device, and another queue of the device.
struct Bench {
    stage: Stage,
    device: Arc<dyn Device>,
    beside: Box<dyn DeviceQueue>,
    io: Host,
    _admin: Host,
}

impl Bench {
    fn new() -> Self {
        let device = ram();
        let mut stage = Stage::new(&device, 16 << 20);
        let (admin, io) = stage.attach(32);
        let options = QueueOptions::new(1, 8, stage.arena.pool(0));
        let beside = device.open_queue(options).expect("a queue");
        Self {
            stage,
            device,
            beside,
            io,
            _admin: admin,
        }
    }

    /// Sends a write of all blocks without its data; returns the tag of the R2T.
    fn ask(&mut self) -> u16 {
        let sqe = Sqe::write(1, LBA, BLOCKS as u16 - 1, false).with_cid(9);
        let sqe = sqe.with_sgl(SglDescriptor::transport(BYTES as u32));
        self.io.send_as(sqe, &[]);
        match self.next_pdu() {
            Some(TargetPdu::Request(9, tag)) => tag,
            other => panic!("no data was asked for: {other:?}"),
        }
    }

    /// Sends the header of a PDU with `bytes` bytes of the data from `begin`.
    fn announce(&self, tag: u16, begin: usize, bytes: usize) {
        let last = begin + bytes == BYTES;
        let header = H2cData::new(9, tag, begin as u32, bytes as u32, last, self.io.framing);
        self.io.send_bytes(header.as_bytes());
    }

    /// Runs turns until a response is received, or nothing happens any more.
    fn next_pdu(&mut self) -> Option<TargetPdu> {
        for _ in 0..20_000 {
            self.stage.turn(&[&self.io]);
            let pdu = self.io.take_pdu();
            let quiet = self.io.wire.borrow().to_target.is_empty();
            if pdu.is_some() || quiet {
                return pdu;
            }
        }
        panic!("the target takes nothing off the wire");
    }

    #[track_caller]
    fn expect_response(&mut self) -> Cqe {
        match self.next_pdu() {
            Some(TargetPdu::Response(cqe)) => cqe,
            other => panic!("no response: {other:?}"),
        }
    }

    fn borrow_blocks(&mut self, first: usize, blocks: usize) -> Borrow {
        let lba = LBA + first as u64;
        let borrowed = self.beside.borrow_read(lba, blocks as u32);
        borrowed.expect("nobody writes there")
    }

    /// Checks that the first blocks contain the data and the others are empty.
    #[track_caller]
    fn expect_blocks(&mut self, new: usize) {
        let found = self.borrow_blocks(0, BLOCKS);
        let (written, untouched) = found.split_at(new * BLOCK_BYTES);
        assert!(
            written == &data()[..written.len()],
            "the first {new} blocks"
        );
        assert!(
            untouched.iter().all(|byte| *byte == 0),
            "block {new} and on"
        );
    }

    /// The device's counts of writes and bytes.
    fn counted(&self) -> (u64, u64) {
        let health = self.device.health();
        (health.writes, health.bytes_written)
    }
}

#[test]
fn a_fragmented_write_is_counted_once() {
    for grain in [usize::MAX, 5000, 1024, 513, 512, 511, 24, 7] {
        for pdus in [1, 2, 16] {
            let mut bench = Bench::new();
            let tag = bench.ask();
            bench.io.wire.borrow_mut().grain = grain;
            let part = BYTES / pdus;
            for begin in (0..BYTES).step_by(part) {
                bench.announce(tag, begin, part);
                bench.io.send_bytes(&data()[begin..begin + part]);
            }
            let status = bench.expect_response().status();
            assert!(status.is_success(), "grain {grain}: {status}");
            bench.expect_blocks(BLOCKS);
            assert_eq!(bench.counted(), (1, BYTES as u64), "grain {grain}");
            assert_eq!(bench.stage.leases_out(), 0);
        }
    }
}

#[test]
fn whole_blocks_are_placed_before_the_last_is_received() {
    let mut bench = Bench::new();
    let tag = bench.ask();
    bench.announce(tag, 0, BYTES);
    // The receive of the header and the next two: one ends within a block, the other at its end.
    bench.stage.turn(&[&bench.io]);
    bench.io.send_bytes(&data()[..10 * BLOCK_BYTES + 100]);
    assert_eq!(bench.next_pdu(), None);
    bench.expect_blocks(10);
    bench
        .io
        .send_bytes(&data()[10 * BLOCK_BYTES + 100..12 * BLOCK_BYTES]);
    assert_eq!(bench.next_pdu(), None);
    bench.expect_blocks(12);
    bench.io.send_bytes(&data()[12 * BLOCK_BYTES..]);
    assert!(bench.expect_response().status().is_success());
    bench.expect_blocks(BLOCKS);
}

#[test]
fn a_disconnect_during_a_block_leaves_whole_blocks() {
    for sent in [1, 511, 512, 513, 5000, BYTES - 1] {
        let mut bench = Bench::new();
        let tag = bench.ask();
        bench.announce(tag, 0, BYTES);
        bench.stage.turn(&[&bench.io]);
        bench.io.send_bytes(&data()[..sent]);
        bench.io.wire.borrow_mut().closed = true;
        assert_eq!(bench.next_pdu(), None);
        bench.stage.turn(&[&bench.io]);
        bench.expect_blocks(sent / BLOCK_BYTES);
        assert_eq!(bench.stage.leases_out(), 0);
    }
}

#[test]
fn a_write_waits_for_a_reader_that_holds_the_range() {
    for placed in [0, 16, 40] {
        let mut bench = Bench::new();
        let tag = bench.ask();
        bench.announce(tag, 0, BYTES);
        bench.stage.turn(&[&bench.io]);
        let data = data();
        let (before, behind) = data.split_at(placed * BLOCK_BYTES);
        bench.io.send_bytes(before);
        assert_eq!(bench.next_pdu(), None);
        bench.expect_blocks(placed);
        let held = bench.borrow_blocks(BLOCKS - 1, 1);
        bench.io.send_bytes(behind);
        for _ in 0..100 {
            assert_eq!(
                bench.next_pdu(),
                None,
                "the write does not wait for the reader"
            );
        }
        assert!(
            held.iter().all(|byte| *byte == 0),
            "the reader's data changed"
        );
        drop(held);
        assert!(bench.expect_response().status().is_success());
        bench.expect_blocks(BLOCKS);
        assert_eq!(bench.counted(), (1, BYTES as u64));
        assert_eq!(bench.stage.leases_out(), 0);
    }
}

#[test]
fn a_reader_that_ends_before_the_last_block_delays_no_write() {
    let mut bench = Bench::new();
    let tag = bench.ask();
    bench.announce(tag, 0, BYTES);
    bench.stage.turn(&[&bench.io]);
    let held = bench.borrow_blocks(0, BLOCKS);
    bench.io.send_bytes(&data()[..BYTES / 2]);
    assert_eq!(bench.next_pdu(), None);
    assert!(
        held.iter().all(|byte| *byte == 0),
        "the reader's data changed"
    );
    drop(held);
    bench.io.send_bytes(&data()[BYTES / 2..]);
    assert!(bench.expect_response().status().is_success());
    bench.expect_blocks(BLOCKS);
    assert_eq!(bench.counted(), (1, BYTES as u64));
}

#[test]
fn a_wrong_data_offset_ends_the_connection_after_whole_blocks() {
    let mut bench = Bench::new();
    let tag = bench.ask();
    bench.announce(tag, 0, 10 * BLOCK_BYTES);
    bench.io.send_bytes(&data()[..10 * BLOCK_BYTES]);
    assert_eq!(bench.next_pdu(), None);
    bench.announce(tag, 9 * BLOCK_BYTES, BLOCK_BYTES);
    bench.io.send_bytes(&[0xee; BLOCK_BYTES]);
    assert_eq!(bench.next_pdu(), Some(TargetPdu::Terminated));
    bench.expect_blocks(10);
    assert_eq!(bench.stage.leases_out(), 0);
}
