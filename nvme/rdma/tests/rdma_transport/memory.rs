//! The memory of a small arena: posted receives leave enough of it for requests, so every accepted
//! host can complete the largest requests.

use crate::harness::FakeHost as Host;
use crate::harness::host::{Call, Refused};
use crate::harness::{IN_CAPSULE_BYTES, Setup, Stage};
use hugemem::{Account, Borrow, Lease, WaiterToken};
use nvme_spec::rdma::RejectReason;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Sqe, Status};
use reactors::Nanos;

const LARGEST: usize = 1 << 20;

/// One slice of 1 MiB, one of 256 KiB, eight of 64 KiB: 224 in all, far fewer than receives.
fn small() -> Setup {
    let mut setup = Setup {
        arena_bytes: 3 << 20,
        ..Setup::default()
    };
    setup.rdma.receives = 1024;
    setup
}

fn send_write(host: &mut Host, cid: u16, lba: u64, bytes: usize) {
    let blocks_z = (bytes / 512 - 1) as u16;
    let sqe = Sqe::write(1, lba, blocks_z, false).with_cid(cid);
    host.send(sqe.with_sgl(host.keyed(0, bytes as u32)), &[]);
}

fn send_in_capsule(host: &mut Host, cid: u16, lba: u64) {
    let bytes = IN_CAPSULE_BYTES;
    let sqe = Sqe::write(1, lba, (bytes / 512 - 1) as u16, false).with_cid(cid);
    let sqe = sqe.with_sgl(SglDescriptor::in_capsule(0, bytes));
    host.send(sqe, &vec![cid as u8; bytes as usize]);
}

/// Runs turns until every host has that many successful responses.
#[track_caller]
fn await_all_responses(stage: &mut Stage, hosts: &mut [Host], count: usize) {
    stage.turn_until("every answer", |_| {
        hosts.iter_mut().for_each(Host::poll);
        hosts.iter().all(|host| host.responses.len() == count)
    });
    for host in hosts {
        for (cqe, _) in host.responses.drain(..) {
            assert_eq!(cqe.status(), Status::SUCCESS);
        }
    }
}

#[test]
fn receives_leave_room_for_the_largest_request() {
    let mut stage = Stage::with(small());
    let (_admin, mut io) = Host::attach(&mut stage, 32);
    for cid in 0..8 {
        send_write(&mut io, cid, 0, LARGEST);
    }
    await_all_responses(&mut stage, &mut [io], 8);
}

#[test]
fn many_connections_make_progress_at_every_size() {
    let mut stage = Stage::with(small());
    let (_admin, cntlid) = Host::admin(&mut stage);
    let mut hosts: Vec<Host> = (1..=6)
        .map(|qid| Host::io(&mut stage, cntlid, qid, 32))
        .collect();
    for round in 0..4 {
        for (number, host) in (0..).zip(&mut hosts) {
            for cid in 0..8 {
                let lba = u64::from(cid) * 64;
                match (cid + number + round) % 4 {
                    0 => send_write(host, cid, 0, LARGEST),
                    1 => send_write(host, cid, lba, 64 << 10),
                    2 => send_write(host, cid, lba, 4096),
                    _ => send_in_capsule(host, cid, lba),
                }
            }
        }
        await_all_responses(&mut stage, &mut hosts, 8);
    }
    assert!(stage.counters.buffer_waits.get() > 0, "memory was scarce");
}

/// The transport shares the memory: another one on the reactor has its own pool.
#[test]
fn another_transport_on_the_arena_gets_its_turn() {
    let mut stage = Stage::with(small());
    let (_admin, mut io) = Host::attach(&mut stage, 32);
    let other = stage.arena.pool(4);
    for cid in 0..8 {
        send_in_capsule(&mut io, cid, u64::from(cid) * 8);
        send_write(&mut io, cid + 8, 0, LARGEST);
    }
    let waits = [4096, LARGEST].map(|bytes| {
        let token = WaiterToken(bytes as u64);
        other
            .take_or_wait(Account::SYSTEM, bytes, token, 0)
            .map(|lease| lease.len())
    });
    let mut got = waits.iter().flatten().count();
    stage.turn_until("two leases", |_| {
        io.poll();
        got += other.next_grant(0).map_or(0, |_| 1);
        got == 2
    });
    await_all_responses(&mut stage, &mut [io], 16);
}

/// A request that holds memory for long delays receives; it does not lose them.
#[test]
fn receives_come_back_after_all_memory_was_out() {
    let mut stage = Stage::with(small());
    let (_admin, mut io) = Host::attach(&mut stage, 32);
    let pool = stage.arena.pool(0);
    let hoard: Vec<Lease> = std::iter::from_fn(|| pool.take(1)).collect();
    for cid in 0..31 {
        send_in_capsule(&mut io, cid, u64::from(cid) * 8);
    }
    let mut hosts = [io];
    await_all_responses(&mut stage, &mut hosts, 31);
    drop(hoard);
    for cid in 0..31 {
        send_in_capsule(&mut hosts[0], cid, u64::from(cid) * 8);
    }
    await_all_responses(&mut stage, &mut hosts, 31);
}

/// A single slice is left for requests, so nothing is reserved for receives.
#[test]
fn a_host_is_rejected_if_no_receive_can_be_posted() {
    let mut stage = Stage::with(Setup {
        arena_bytes: 1 << 20,
        ..small()
    });
    let refusal = Host::connect(&mut stage, &Call::queue(0, 32, 0)).err();
    assert_eq!(refusal, Some(Refused::Rejected(RejectReason::NO_RESOURCES)));
    assert_eq!(stage.counters.connections_refused.get(), 1);
    assert_eq!(stage.leases_out(), 0);
}

/// Occupies all `receives` receives with writes of `io` that wait for borrowed blocks, and all
/// other memory. Returns what holds them and the memory.
fn starve(stage: &mut Stage, io: &mut Host, receives: u16) -> (Borrow, Vec<Lease>) {
    let handle = stage.device.store().handle();
    let borrowed = handle.try_borrow_read(0, IN_CAPSULE_BYTES as usize);
    let borrowed = borrowed.expect("nothing is written");
    let pool = stage.arena.pool(0);
    let hoard: Vec<Lease> = std::iter::from_fn(|| pool.take(1)).collect();
    for cid in 0..receives {
        send_in_capsule(io, cid, 0);
    }
    stage.turn_until("no receives", |stage| {
        stage.counters.receive_waits.get() == u64::from(receives)
    });
    (borrowed, hoard)
}

/// A host whose commands cannot be received for lack of memory does not count as silent, until they
/// can be received again.
#[test]
fn keep_alive_is_suspended_while_receives_are_exhausted() {
    const RECEIVES: u16 = 4;
    let mut setup = small();
    setup.rdma.receives = u32::from(RECEIVES);
    let mut stage = Stage::with(setup);
    let (mut admin, cntlid) = Host::admin_with(&mut stage, 2000);
    let mut io = Host::io(&mut stage, cntlid, 1, 32);
    let starved = starve(&mut stage, &mut io, RECEIVES);
    admin.send(Sqe::keep_alive(), &[]);
    for _ in 0..30 {
        stage.pass(Nanos::from_millis(100));
    }
    admin.poll();
    assert!(admin.responses.is_empty(), "there is no receive for it");
    assert_eq!(stage.set.len(), 2, "nobody is let go");
    drop(starved);
    await_all_responses(&mut stage, std::slice::from_mut(&mut io), 4);
    await_all_responses(&mut stage, std::slice::from_mut(&mut admin), 1);
    for _ in 0..19 {
        stage.pass(Nanos::from_millis(100));
    }
    assert_eq!(stage.set.len(), 2, "it was heard a moment ago");
    for _ in 0..30 {
        stage.pass(Nanos::from_millis(100));
    }
    let expired = stage.core.borrow().counters().keep_alive_expired.get();
    assert_eq!((stage.set.len(), expired), (0, 1), "it is silent");
}

/// Base 2.1 §3.9: keep-alive is suspended for hosts that cannot be received from, but only for one
/// more Keep Alive Timeout.
/// Otherwise a host that exhausts the receives would keep the controllers of vanished hosts alive.
#[test]
fn exhausted_receives_prolong_a_silence_once() {
    const RECEIVES: u16 = 4;
    let mut setup = small();
    setup.rdma.receives = u32::from(RECEIVES);
    let mut stage = Stage::with(setup);
    let (_gone, _) = Host::admin_with(&mut stage, 2000);
    let (_admin, mut io) = Host::attach(&mut stage, 32);
    let _starved = starve(&mut stage, &mut io, RECEIVES);
    // Traffic counts until the next check, one timeout later; then the silence begins.
    for _ in 0..50 {
        stage.pass(Nanos::from_millis(100));
    }
    let expired = |stage: &Stage| stage.core.borrow().counters().keep_alive_expired.get();
    assert_eq!(expired(&stage), 0, "excused");
    for _ in 0..15 {
        stage.pass(Nanos::from_millis(100));
    }
    assert_eq!(expired(&stage), 1, "the silence was prolonged before");
}
