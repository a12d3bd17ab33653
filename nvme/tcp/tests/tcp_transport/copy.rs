//! Copy on a connection: the list of source ranges in capsules and on request, in any fragments, and
//! with little memory.

use crate::harness::wire::{Host, Stage, TargetPdu};
use crate::harness::{GREEDY, ram};
use nvme_spec::command::CopyRange;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::H2cData;
use nvme_spec::{Cqe, Sqe, Status};
use zerocopy::IntoBytes;

const BLOCK: usize = 512;
/// Copies one after another.
const COPIES: u16 = 8;
/// First block of the first destination.
const TO: u64 = 100;
/// Source ranges of a Copy, of one block each.
const RANGES: usize = 3;

/// The Copy of the first blocks in another order to the blocks from `TO + 3 * number` on, with its
/// list. The number is also its command identifier.
fn copy(number: u16) -> (Sqe, Vec<u8>) {
    let list = [2, 0, 1].map(|lba| CopyRange::new(lba, 0));
    let to = TO + RANGES as u64 * u64::from(number);
    let sqe = Sqe::copy_ranges(1, to, (RANGES - 1) as u8);
    (sqe.with_cid(number), list.as_bytes().to_vec())
}

fn requested(sqe: Sqe, list: &[u8]) -> Sqe {
    sqe.with_sgl(SglDescriptor::transport(list.len() as u32))
}

/// Runs turns until `count` commands are completed, and sends the lists that the target requests.
#[track_caller]
fn finish(stage: &mut Stage, io: &Host, count: usize) -> Vec<Cqe> {
    let mut completed = Vec::new();
    for _ in 0..200_000 {
        stage.turn(&[io]);
        while let Some(pdu) = io.take_pdu() {
            match pdu {
                TargetPdu::Response(cqe) => completed.push(cqe),
                TargetPdu::Request(cid, tag) => {
                    let (_, list) = copy(cid);
                    let header = H2cData::new(cid, tag, 0, list.len() as u32, true, io.framing);
                    io.send_bytes(header.as_bytes());
                    io.send_bytes(&list);
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

/// Writes the number of each of the first blocks to it.
fn fill(stage: &mut Stage, io: &Host) {
    for lba in 0..RANGES as u64 {
        let data = [lba as u8 + 1; BLOCK];
        let cqe = stage.command(io, Sqe::write(1, lba, 0, false), &data);
        assert_eq!(cqe.status(), Status::SUCCESS);
    }
}

/// The first byte of a block.
#[track_caller]
fn first_byte(stage: &mut Stage, io: &Host, lba: u64) -> u8 {
    let read = Sqe::read(1, lba, 0).with_sgl(SglDescriptor::transport(BLOCK as u32));
    io.send_as(read.with_cid(0x100), &[]);
    for _ in 0..200_000 {
        stage.turn(&[io]);
        match io.take_pdu() {
            None => {}
            Some(TargetPdu::Data(0x100, _, first)) => return first,
            Some(other) => panic!("out of place: {other:?}"),
        }
    }
    panic!("no data");
}

#[test]
fn copies_are_executed_in_any_fragments() {
    for is_requested in [false, true] {
        for grain in [usize::MAX, 4096, 169, 73, 72, 24, 7, 1] {
            let mut stage = Stage::new(&ram(), 16 << 20);
            let (_admin, io) = stage.attach(32);
            fill(&mut stage, &io);
            io.wire.borrow_mut().grain = grain;
            for (sqe, list) in (0..COPIES).map(copy) {
                match is_requested {
                    true => io.send_as(requested(sqe, &list), &[]),
                    false => io.send(sqe, &list),
                }
            }
            for cqe in finish(&mut stage, &io, usize::from(COPIES)) {
                assert_eq!(cqe.status(), Status::SUCCESS, "{cqe:?}, grain {grain}");
            }
            for place in 0..u64::from(COPIES) * RANGES as u64 {
                let found = first_byte(&mut stage, &io, TO + place);
                assert_eq!(found, [3, 1, 2][place as usize % RANGES], "block {place}");
            }
            assert_eq!(stage.leases_out(), 0);
        }
    }
}

/// Each Copy needs a slice of which a small arena has few, and takes no other one. So all of them
/// end, whatever their number, also next to another host that does not send its lists.
#[test]
fn copies_wait_for_memory_without_a_deadlock() {
    for is_requested in [false, true] {
        let mut stage = Stage::new(&ram(), 4 << 20);
        let (_admin, io) = stage.attach(32);
        let (_other_admin, other) = stage.attach_as(GREEDY, 32);
        fill(&mut stage, &io);
        for (sqe, list) in (0..30).map(copy) {
            other.send_as(requested(sqe, &list), &[]);
            match is_requested {
                true => io.send_as(requested(sqe, &list), &[]),
                false => io.send(sqe, &list),
            }
        }
        for _ in 0..10 {
            stage.turn(&[&io, &other]);
        }
        for cqe in finish(&mut stage, &io, 30) {
            assert_eq!(cqe.status(), Status::SUCCESS);
        }
        for cqe in finish(&mut stage, &other, 30) {
            assert_eq!(cqe.status(), Status::SUCCESS);
        }
        assert_eq!(first_byte(&mut stage, &io, TO), 3);
        assert_eq!(stage.leases_out(), 0);
    }
}

/// The lists that the target requested come behind those in capsules, which do not wait for the
/// slices that the requested ones have.
#[test]
fn lists_in_capsules_do_not_hold_back_requested_ones() {
    let mut stage = Stage::new(&ram(), 4 << 20);
    let (_admin, io) = stage.attach(32);
    fill(&mut stage, &io);
    for (sqe, list) in (0..30).map(copy) {
        match sqe.cid.get() % 3 {
            0 => io.send(sqe, &list),
            _ => io.send_as(requested(sqe, &list), &[]),
        }
    }
    for cqe in finish(&mut stage, &io, 30) {
        assert_eq!(cqe.status(), Status::SUCCESS);
    }
    assert_eq!(stage.leases_out(), 0);
}

/// A list in a capsule that does not have the length that the command determines.
#[test]
fn capsules_without_their_whole_list_are_refused() {
    let mut stage = Stage::new(&ram(), 16 << 20);
    let (_admin, io) = stage.attach(32);
    let (sqe, list) = copy(0);
    for bytes in [0, 32, 95, 97, 128] {
        let data: Vec<u8> = list.iter().copied().cycle().take(bytes).collect();
        let sgl = SglDescriptor::in_capsule(0, list.len() as u32);
        io.send_as(sqe.with_sgl(sgl), &data);
        let cqe = finish(&mut stage, &io, 1)[0];
        assert!(cqe.status().is(Status::DATA_SGL_LENGTH_INVALID), "{cqe:?}");
        assert!(cqe.status().dnr());
    }
    io.send(sqe, &list);
    assert_eq!(finish(&mut stage, &io, 1)[0].status(), Status::SUCCESS);
    assert_eq!(stage.leases_out(), 0);
}

/// A connection that ends anywhere leaves nothing behind.
#[test]
fn connection_may_end_anywhere_in_a_copy() {
    for end in (0..=2 * (72 + 32 * RANGES)).step_by(13) {
        let mut stage = Stage::new(&ram(), 16 << 20);
        let (_admin, io) = stage.attach(32);
        let (_other_admin, other) = stage.attach(32);
        fill(&mut stage, &other);
        for (sqe, list) in (0..2).map(copy) {
            io.send(sqe, &list);
        }
        io.wire.borrow_mut().to_target.truncate(end);
        for _ in 0..2 {
            stage.turn(&[&io]);
        }
        io.wire.borrow_mut().closed = true;
        for _ in 0..50 {
            stage.turn(&[&io, &other]);
        }
        assert_eq!(first_byte(&mut stage, &other, 0), 1);
        assert_eq!(stage.leases_out(), 0, "end {end}");
    }
}
