//! Compare and Write on a connection: data in capsules and requested data, in any fragments.

use crate::harness::ram;
use crate::harness::wire::{Host, Stage, TargetPdu};
use nvme_spec::command::Fuse;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::H2cData;
use nvme_spec::{Cqe, Sqe, Status};
use zerocopy::IntoBytes;

const BLOCK: usize = 512;
const LBA: u64 = 3;
/// Compare and Writes that increment the block one after another.
const PAIRS: u16 = 8;

/// Both commands of the pair that replaces `value` by its successor, with their data. The command
/// identifiers are `2 * value` and the next one.
fn pair(value: u16) -> [(Sqe, Vec<u8>); 2] {
    let compare = Sqe::compare(1, LBA, 0).with_fuse(Fuse::FIRST);
    let write = Sqe::write(1, LBA, 0, false).with_fuse(Fuse::SECOND);
    [(compare, 0), (write, 1)].map(|(sqe, part)| {
        let data = vec![(value + part) as u8; BLOCK];
        (sqe.with_cid(2 * value + part), data)
    })
}

/// Runs turns until `count` commands are completed, and sends the data that the target requests.
#[track_caller]
fn finish(stage: &mut Stage, io: &Host, count: usize) -> Vec<Cqe> {
    let mut completed = Vec::new();
    for _ in 0..200_000 {
        stage.turn(&[io]);
        while let Some(pdu) = io.take_pdu() {
            match pdu {
                TargetPdu::Response(cqe) => completed.push(cqe),
                TargetPdu::Request(cid, tag) => {
                    let header = H2cData::new(cid, tag, 0, BLOCK as u32, true, io.framing);
                    io.send_bytes(header.as_bytes());
                    io.send_bytes(&[(cid / 2 + cid % 2) as u8; BLOCK]);
                }
                other => panic!("out of place: {other:?}"),
            }
        }
        if completed.len() == count {
            return completed;
        }
    }
    panic!("{} of {count} commands are completed", completed.len());
}

#[track_caller]
fn assert_value(stage: &mut Stage, io: &Host, value: u8) {
    let read = Sqe::read(1, LBA, 0).with_sgl(SglDescriptor::transport(BLOCK as u32));
    io.send_as(read.with_cid(0x100), &[]);
    for _ in 0..200_000 {
        stage.turn(&[io]);
        match io.take_pdu() {
            None => {}
            Some(TargetPdu::Data(0x100, _, first)) => {
                assert_eq!(first, value);
                return;
            }
            Some(other) => panic!("out of place: {other:?}"),
        }
    }
    panic!("no data");
}

#[test]
fn pairs_increment_a_block_in_any_fragments() {
    for is_requested in [false, true] {
        for grain in [usize::MAX, 4096, 513, 73, 72, 24, 7, 1] {
            let mut stage = Stage::new(&ram(), 16 << 20);
            let (_admin, io) = stage.attach(32);
            io.wire.borrow_mut().grain = grain;
            for (sqe, data) in (0..PAIRS).flat_map(pair) {
                match is_requested {
                    true => io.send_as(sqe.with_sgl(SglDescriptor::transport(512)), &[]),
                    false => io.send(sqe, &data),
                }
            }
            let completed = finish(&mut stage, &io, 2 * usize::from(PAIRS));
            for cqe in completed {
                assert_eq!(cqe.status(), Status::SUCCESS, "{cqe:?}, grain {grain}");
            }
            assert_value(&mut stage, &io, PAIRS as u8);
            assert_eq!(stage.leases_out(), 0);
        }
    }
}

/// The target waits for the data of both commands, whichever comes first, and another queue can
/// write in the meantime: a host that sends no data holds no block.
#[test]
fn host_without_data_holds_no_block() {
    let mut stage = Stage::new(&ram(), 16 << 20);
    let (_admin, io) = stage.attach(32);
    let (_other_admin, other) = stage.attach(32);
    for (sqe, _) in pair(0) {
        io.send_as(sqe.with_sgl(SglDescriptor::transport(512)), &[]);
    }
    for _ in 0..100 {
        stage.turn(&[&io, &other]);
    }
    let cqe = stage.command(&other, Sqe::write(1, LBA, 0, false), &[9; BLOCK]);
    assert_eq!(cqe.status(), Status::SUCCESS);
    let mut completed = finish(&mut stage, &io, 2);
    completed.sort_by_key(|cqe| cqe.cid.get());
    assert!(completed[0].status().is(Status::COMPARE_FAILURE));
    assert!(completed[1].status().is(Status::ABORTED_FAILED_FUSED));
    assert_value(&mut stage, &other, 9);
}

/// A connection that ends between the two commands leaves nothing behind.
#[test]
fn connection_may_end_anywhere_in_a_pair() {
    let [(compare, from), (write, to)] = pair(0);
    for end in (0..=2 * (72 + BLOCK)).step_by(61) {
        let mut stage = Stage::new(&ram(), 16 << 20);
        let (_admin, io) = stage.attach(32);
        let (_other_admin, other) = stage.attach(32);
        io.send(compare, &from);
        io.send(write, &to);
        io.wire.borrow_mut().to_target.truncate(end);
        for _ in 0..50 {
            stage.turn(&[&io]);
        }
        io.wire.borrow_mut().closed = true;
        for _ in 0..50 {
            stage.turn(&[&io, &other]);
        }
        let cqe = stage.command(&other, Sqe::write(1, LBA, 0, false), &[9; BLOCK]);
        assert_eq!(cqe.status(), Status::SUCCESS, "end {end}");
        assert_value(&mut stage, &other, 9);
        assert_eq!(stage.leases_out(), 0, "end {end}");
    }
}
