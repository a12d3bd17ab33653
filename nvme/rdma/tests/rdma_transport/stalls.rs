//! Hosts that do not receive what is posted for them: how long they block others, and how long
//! their connections are kept.

use crate::harness::FakeHost as Host;
use crate::harness::Stage;
use crate::harness::host::Call;
use nvme_spec::{Sqe, Status};
use reactors::Nanos;

/// Time within which a borrowed block can be written, whatever its reader does.
const WRITE_WAIT_MAX: Nanos = Nanos::from_millis(150);
const STEP: Nanos = Nanos::from_millis(5);

/// An I/O queue with receives for that many responses.
fn io_with_receives(stage: &mut Stage, cntlid: u16, qid: u16, receives: usize) -> Host {
    const DEPTH: u16 = 32;
    let call = Call {
        receives,
        ..Call::queue(qid, DEPTH, cntlid)
    };
    let mut host = Host::connect(stage, &call).expect("accepted");
    let cqe = host.open_queue(stage, qid, DEPTH, cntlid);
    assert_eq!(cqe.status(), Status::SUCCESS);
    host
}

fn send_reads(host: &mut Host, reads: u16) {
    for cid in 0..reads {
        let read = Sqe::read(1, 0, 7).with_cid(cid);
        host.send(
            read.with_sgl(host.keyed(usize::from(cid) * 4096, 4096)),
            &[],
        );
    }
}

fn send_write(host: &mut Host) {
    send_write_as(host, 100);
}

fn send_write_as(host: &mut Host, cid: u16) {
    let write = Sqe::write(1, 0, 0, false).with_cid(cid);
    host.send(write.with_sgl(host.keyed(0, 512)), &[]);
}

/// Time until the writer has its response; calls `meanwhile` in each step.
fn time_until_written(
    stage: &mut Stage,
    writer: &mut Host,
    mut meanwhile: impl FnMut(&mut Stage),
) -> Nanos {
    let began = stage.now;
    while stage.now.saturating_sub(began) < Nanos::from_secs(60) {
        stage.pass(STEP);
        meanwhile(stage);
        writer.poll();
        if let Some((cqe, _)) = writer.responses.pop() {
            assert_eq!(cqe.status(), Status::SUCCESS);
            return stage.now.saturating_sub(began);
        }
    }
    panic!("the write has no response after a minute");
}

/// One receive, eight reads, a Keep Alive each second: another host can still write.
#[test]
fn a_reader_without_receives_does_not_block_a_writer() {
    let mut stage = Stage::new();
    let (mut admin, cntlid) = Host::admin_with(&mut stage, 5000);
    let mut reader = io_with_receives(&mut stage, cntlid, 1, 1);
    let (_admin, mut writer) = Host::attach(&mut stage, 32);
    send_reads(&mut reader, 8);
    for _ in 0..40 {
        stage.pass(STEP);
    }
    send_write(&mut writer);
    let mut alive_at = stage.now;
    let waited = time_until_written(&mut stage, &mut writer, |stage| {
        if stage.now.saturating_sub(alive_at) >= Nanos::from_secs(1) {
            alive_at = stage.now;
            admin.send(Sqe::keep_alive(), &[]);
        }
    });
    assert!(waited <= WRITE_WAIT_MAX, "{waited:?}");
    reader.await_end(&mut stage);
    assert_eq!(stage.counters.progress_timeouts.get(), 1);
    writer.check_io(&mut stage, 0, 0x5a);
}

/// The limit applies to a host that makes progress, if its next read still borrows the blocks.
#[test]
fn a_reader_with_few_receives_does_not_block_a_writer() {
    let mut stage = Stage::new();
    let (_reader_admin, cntlid) = Host::admin(&mut stage);
    let mut reader = io_with_receives(&mut stage, cntlid, 1, 1);
    let (_admin, mut writer) = Host::attach(&mut stage, 32);
    send_reads(&mut reader, 31);
    stage.pass(STEP);
    send_write(&mut writer);
    let mut steps = 0;
    let waited = time_until_written(&mut stage, &mut writer, |_| {
        steps += 1;
        // Receiving a response posts one receive.
        if steps % 8 == 0 {
            reader.poll();
        }
    });
    assert!(waited <= WRITE_WAIT_MAX, "{waited:?}");
}

/// Readers that alternate with writes do not delay the last write one after the other: reads that
/// waited for a write are served from copies, because more writes wait for them.
#[test]
fn readers_between_writes_do_not_block_a_writer_in_turn() {
    let mut stage = Stage::new();
    let mut readers: Vec<(Host, Host)> = Vec::new();
    for _ in 0..4 {
        let (admin, cntlid) = Host::admin(&mut stage);
        readers.push((admin, io_with_receives(&mut stage, cntlid, 1, 1)));
    }
    let (_admin, mut writer) = Host::attach(&mut stage, 32);
    for (cid, (_, reader)) in (100..).zip(&mut readers) {
        send_reads(reader, 8);
        stage.pass(Nanos::from_millis(1));
        send_write_as(&mut writer, cid);
        stage.pass(Nanos::from_millis(1));
    }
    let mut waited = Nanos::ZERO;
    for _ in &readers {
        waited += time_until_written(&mut stage, &mut writer, |_| {});
    }
    assert!(waited <= WRITE_WAIT_MAX, "{waited:?}");
}

/// A slow reader that blocks no writer keeps its connection until the timeout.
#[test]
fn a_host_without_receives_is_disconnected_after_five_seconds() {
    let mut stage = Stage::new();
    let (_admin, cntlid) = Host::admin(&mut stage);
    let mut reader = io_with_receives(&mut stage, cntlid, 1, 1);
    let baseline = stage.leases_out();
    send_reads(&mut reader, 8);
    for _ in 0..49 {
        stage.pass(Nanos::from_millis(100));
    }
    assert_eq!(stage.set.len(), 2, "it is waited for");
    for _ in 0..3 {
        stage.pass(Nanos::from_millis(100));
    }
    reader.await_end(&mut stage);
    assert_eq!(stage.counters.progress_timeouts.get(), 1);
    stage.turn_until("the end", |stage| {
        stage.pass(Nanos::from_millis(10));
        stage.set.len() == 1
    });
    assert_eq!(stage.leases_out(), baseline);
}

/// A reader that catches up in time keeps its connection.
#[test]
fn a_slow_host_that_resumes_stays_connected() {
    let mut stage = Stage::new();
    let (_admin, cntlid) = Host::admin(&mut stage);
    let mut reader = io_with_receives(&mut stage, cntlid, 1, 1);
    send_reads(&mut reader, 8);
    for _ in 0..40 {
        stage.pass(Nanos::from_millis(100));
    }
    stage.turn_until("every response", |_| {
        reader.poll();
        reader.responses.len() == 8
    });
    reader.responses.clear();
    reader.check_io(&mut stage, 3, 0x31);
    assert_eq!(stage.counters.progress_timeouts.get(), 0);
}

/// Without a Keep Alive Timeout and without commands, a probe detects a vanished host.
#[test]
fn a_peer_that_vanished_is_found_within_two_minutes() {
    let mut stage = Stage::new();
    let (_admin, io) = Host::attach(&mut stage, 32);
    stage.pass(Nanos::from_secs(1));
    stage.fabric.partition(io.queue_pair_number());
    let mut seconds = 0;
    while stage.set.len() == 2 && seconds < 1000 {
        for _ in 0..10 {
            stage.pass(Nanos::from_millis(100));
        }
        seconds += 1;
    }
    assert!(seconds < 120, "after {seconds} s");
}

/// An idle host is probed, is not affected, and stays connected.
#[test]
fn an_idle_host_stays_connected() {
    let mut stage = Stage::new();
    let (_admin, mut io) = Host::attach(&mut stage, 32);
    for _ in 0..600 {
        stage.pass(Nanos::from_secs(1));
    }
    assert!(stage.counters.probes.get() >= 2 * 15);
    assert_eq!(stage.set.len(), 2);
    io.check_io(&mut stage, 0, 9);
    assert!(io.failures.is_empty());
}
