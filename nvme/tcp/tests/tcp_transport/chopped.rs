//! A stream has no packets: the same bytes have the same effect however receives split them, and
//! invalid bytes do no harm.

use crate::harness::wire::{Host, Stage, TargetPdu};
use crate::harness::{HOST, ram};
use nvme_spec::Sqe;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::{CapsuleCmd, Framing};
use proptest::prelude::*;
use zerocopy::IntoBytes;

/// Runs turns until nothing more is received; returns the responses by command identifier.
fn settle(stage: &mut Stage, host: &Host) -> Vec<TargetPdu> {
    let mut pdus = Vec::new();
    let (mut quiet, mut sent) = (0, 0);
    while quiet < 50 {
        stage.turn(&[host]);
        quiet += 1;
        let so_far = host.wire.borrow().to_host.len();
        if std::mem::replace(&mut sent, so_far) != so_far {
            quiet = 0;
        }
        while let Some(pdu) = host.take_pdu() {
            pdus.push(pdu);
            quiet = 0;
        }
        if !host.wire.borrow().to_target.is_empty() {
            quiet = 0;
        }
    }
    pdus
}

/// Writes distinct blocks in their capsules, then reads them.
pub(crate) fn script() -> Vec<u8> {
    let mut bytes = Vec::new();
    for block in 0..8_u16 {
        let data = [block as u8 + 1; 512];
        let sqe = Sqe::write(1, u64::from(block), 0, false).with_cid(block);
        let sqe = sqe.with_sgl(SglDescriptor::in_capsule(0, 512));
        bytes.extend(CapsuleCmd::new(sqe, 512, Framing::default()).as_bytes());
        bytes.extend(data);
    }
    for block in 0..8_u16 {
        let sqe = Sqe::read(1, u64::from(block), 0).with_cid(0x100 + block);
        let sqe = sqe.with_sgl(SglDescriptor::transport(512));
        bytes.extend(CapsuleCmd::new(sqe, 0, Framing::default()).as_bytes());
    }
    bytes
}

/// Checks the responses to [`script`].
#[track_caller]
pub(crate) fn expect_script_results(pdus: &[TargetPdu], what: &str) {
    let written = pdus
        .iter()
        .filter(|pdu| matches!(pdu, TargetPdu::Response(cqe) if cqe.status().is_success()));
    assert_eq!(written.count(), 8, "{what}");
    for block in 0..8_u16 {
        let expected = TargetPdu::Data(0x100 + block, true, block as u8 + 1);
        assert!(pdus.contains(&expected), "block {block}, {what}: {pdus:?}");
    }
}

#[test]
fn fragmentation_does_not_change_responses() {
    for grain in [usize::MAX, 4096, 513, 73, 72, 24, 7, 1] {
        let mut stage = Stage::new(&ram(), 16 << 20);
        let (_admin, io) = stage.attach(32);
        io.wire.borrow_mut().grain = grain;
        io.send_bytes(&script());
        let pdus = settle(&mut stage, &io);
        expect_script_results(&pdus, &format!("grain {grain}"));
        assert_eq!(stage.leases_out(), 0);
    }
}

/// TCP 1.1 §3.6.2.9, SUCCESS, and Base 2.1 §4.2.1, SQHD: a host that did not disable SQ flow
/// control learns of free entries only from response capsules, so each read ends with one.
#[test]
fn a_read_ends_with_a_response_capsule_while_flow_control_is_on() {
    const DEPTH: u16 = 4;
    for no_flow_control in [false, true] {
        let mut stage = Stage::new(&ram(), 16 << 20);
        let (_admin, io) = stage.attach_with(HOST, DEPTH, no_flow_control);
        // Connect moved the head to 1.
        let mut head = 1;
        for read in 0..3 * DEPTH {
            io.send(Sqe::read(1, 0, 0).with_cid(read), &[]);
            let sqe = Sqe::read(1, 0, 0).with_cid(0x100 + read);
            io.send_as(sqe.with_sgl(SglDescriptor::transport(512)), &[]);
            let pdus = settle(&mut stage, &io);
            // The first command has no space for its data and fails, so it has no data.
            let Some((TargetPdu::Response(refused), pdus)) = pdus.split_first() else {
                panic!("{pdus:?}")
            };
            assert!(!refused.status().is_success());
            head = (head + 2) % DEPTH;
            if no_flow_control {
                assert_eq!(pdus, [TargetPdu::Data(0x100 + read, true, 0)]);
                continue;
            }
            let [TargetPdu::Data(_, false, 0), TargetPdu::Response(cqe)] = pdus else {
                panic!("{pdus:?}")
            };
            assert_eq!((cqe.cid.get(), cqe.sqhd.get()), (0x100 + read, head));
            assert!(cqe.status().is_success());
        }
        assert_eq!(stage.leases_out(), 0);
    }
}

/// With two slices for all requests, some requests wait, and all of them complete.
#[test]
fn an_empty_pool_makes_requests_wait_and_none_fail() {
    let mut stage = Stage::new(&ram(), 16 << 20);
    let (_admin, io) = stage.attach(128);
    // Writes of 1 MiB are fetched by R2T into leases of the largest class, of which 16 MiB have
    // three.
    for cid in 0..64 {
        let sqe = Sqe::write(1, 0, 2047, false).with_cid(cid);
        io.send_as(sqe.with_sgl(SglDescriptor::transport(1 << 20)), &[]);
    }
    let data = vec![9; 1 << 20];
    let mut finished = 0;
    for _ in 0..10_000 {
        for pdu in settle(&mut stage, &io) {
            match pdu {
                TargetPdu::Request(cid, tag) => {
                    let framing = Framing::default();
                    let header = nvme_spec::tcp::H2cData::new(cid, tag, 0, 1 << 20, true, framing);
                    io.send_bytes(header.as_bytes());
                    io.send_bytes(&data);
                    finished += settle_one(&mut stage, &io);
                }
                TargetPdu::Response(cqe) => {
                    assert!(cqe.status().is_success());
                    finished += 1;
                }
                other => panic!("out of place: {other:?}"),
            }
        }
        if finished == 64 {
            break;
        }
    }
    assert_eq!(finished, 64);
    let waits: u64 = stage
        .arena
        .counters()
        .classes
        .iter()
        .map(|class| class.waits)
        .sum();
    assert!(waits > 0, "the pool was never short, so nothing was tested");
    assert_eq!(stage.leases_out(), 0);
}

/// In-capsule data that waits for a lease stays in the receive buffer. With more such hosts than
/// receive buffers, all of them are served.
#[test]
fn more_stalled_hosts_than_receive_buffers_are_all_served() {
    const STALLED: usize = 12;
    let mut stage = Stage::new(&ram(), 2 << 20);
    let holders: Vec<_> = (0..4).map(|_| stage.attach(128).1).collect();
    let stalled: Vec<_> = (0..STALLED).map(|_| stage.attach(128).1).collect();
    for host in &holders {
        for cid in 0..127 {
            let sqe = Sqe::write(1, 8, 7, false).with_cid(cid);
            host.send_as(sqe.with_sgl(SglDescriptor::transport(4096)), &[]);
        }
    }
    let all: Vec<_> = holders.iter().collect();
    stage.turn(&all);
    let waits = |stage: &Stage| -> u64 {
        let counters = stage.arena.counters();
        counters.classes.iter().map(|class| class.waits).sum()
    };
    let before = waits(&stage);
    assert!(before > 0, "leases are left");
    // A Compare needs a lease; what follows it is received together with it.
    for host in &stalled {
        let compare = Sqe::compare(1, 1000, 7).with_cid(0);
        host.send(compare, &[0; 4096]);
        for cid in 1..40 {
            host.send(Sqe::write(1, 2000, 7, false).with_cid(cid), &[7; 4096]);
        }
    }
    let all: Vec<_> = stalled.iter().collect();
    for _ in 0..10 {
        stage.turn(&all);
    }
    assert_eq!(waits(&stage) - before, STALLED as u64);
    for host in &stalled {
        assert_eq!(
            host.take_pdu(),
            None,
            "nothing is answered before the Compare"
        );
    }
    for host in &holders {
        send_solicited_data(&mut stage, host, 127);
    }
    for host in &stalled {
        let pdus = settle(&mut stage, host);
        let done =
            |pdu: &&TargetPdu| matches!(pdu, TargetPdu::Response(cqe) if cqe.status().is_success());
        assert_eq!(pdus.iter().filter(done).count(), 40);
    }
    assert_eq!(stage.leases_out(), 0);
}

/// Sends the data of `count` writes of 4 KiB when the target requests it.
fn send_solicited_data(stage: &mut Stage, host: &Host, count: usize) {
    let mut finished = 0;
    for _ in 0..10_000 {
        stage.turn(&[host]);
        while let Some(pdu) = host.take_pdu() {
            match pdu {
                TargetPdu::Request(cid, tag) => {
                    let framing = Framing::default();
                    let header = nvme_spec::tcp::H2cData::new(cid, tag, 0, 4096, true, framing);
                    host.send_bytes(header.as_bytes());
                    host.send_bytes(&[5; 4096]);
                }
                TargetPdu::Response(cqe) => {
                    assert!(cqe.status().is_success());
                    finished += 1;
                }
                other => panic!("out of place: {other:?}"),
            }
        }
        if finished == count {
            return;
        }
    }
    panic!("{finished} of {count} writes finished");
}

/// Runs turns until the target has received what was sent; returns the responses.
fn settle_one(stage: &mut Stage, host: &Host) -> u32 {
    while !host.wire.borrow().to_target.is_empty() {
        stage.turn(&[host]);
    }
    0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Valid traffic with changed bytes, split and ended at any position: no panic, no leaked
    /// lease, and another host is served.
    #[test]
    fn damaged_streams_affect_no_other_host(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        end in any::<prop::sample::Index>(),
        grain in prop_oneof![Just(usize::MAX), 1_usize..600],
    ) {
        let mut stage = Stage::new(&ram(), 16 << 20);
        let (_admin, io) = stage.attach(32);
        let (_other_admin, other) = stage.attach(32);
        let mut bytes = script();
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(end.index(bytes.len() + 1));
        io.wire.borrow_mut().grain = grain;
        io.send_bytes(&bytes);
        settle(&mut stage, &io);
        io.wire.borrow_mut().closed = true;
        settle(&mut stage, &io);
        prop_assert_eq!(stage.leases_out(), 0);
        let cqe = stage.command(&other, Sqe::write(1, 100, 0, false), &[1; 512]);
        prop_assert!(cqe.status().is_success());
    }
}
