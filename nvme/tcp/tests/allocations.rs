//! Heap use of connections: steady-state I/O does not allocate (`ARCHITECTURE.md` §5), and an idle
//! connection occupies little memory.

#[expect(dead_code, reason = "the tests of the transport use all of it")]
#[path = "tcp_transport/harness/mod.rs"]
mod harness;

use harness::ram;
use harness::wire::{Host, Stage, TargetPdu, WIRE_BYTES};
use hugemem::allocation_counter::{
    CountingAllocator, allocations_on_this_thread, bytes_allocated_on_this_thread,
};
use nvme_spec::Sqe;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::{Framing, H2cData};
use zerocopy::IntoBytes;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const REQUESTS: u32 = 100_000;
const WARM_UP: u32 = 2_000;
const DEPTH: u16 = 32;
const DATA: [u8; 8192] = [0x5a; 8192];

/// Reads, writes in the capsule, writes by R2T and flushes, `DEPTH` at a time.
fn send_request(host: &Host, number: u32) {
    let cid = (number % u32::from(DEPTH)) as u16;
    let lba = u64::from(number % 1000) * 16;
    match number % 5 {
        0 | 1 => {
            let sqe = Sqe::read(1, lba, 7).with_sgl(SglDescriptor::transport(4096));
            host.send_as(sqe.with_cid(cid), &[]);
        }
        2 => host.send(Sqe::write(1, lba, 7, false).with_cid(cid), &DATA[..4096]),
        3 => {
            let sqe = Sqe::write(1, lba, 15, false).with_sgl(SglDescriptor::transport(8192));
            host.send_as(sqe.with_cid(cid), &[]);
        }
        _ => host.send(Sqe::flush(1).with_cid(cid), &[]),
    }
}

/// Runs turns until `count` requests have completed, and sends the data that the target requests.
fn collect(stage: &mut Stage, host: &Host, count: u32) {
    let mut completions = 0;
    for _ in 0..10_000 {
        stage.turn(&[host]);
        while let Some(pdu) = host.take_pdu() {
            match pdu {
                TargetPdu::Response(cqe) => {
                    assert!(cqe.status().is_success());
                    completions += 1;
                }
                TargetPdu::Data(_, success, _) => completions += u32::from(success),
                TargetPdu::Request(cid, tag) => {
                    let header = H2cData::new(cid, tag, 0, 8192, true, Framing::default());
                    host.send_bytes(header.as_bytes());
                    host.send_bytes(&DATA);
                }
                TargetPdu::Initialised | TargetPdu::Terminated => panic!("out of place: {pdu:?}"),
            }
        }
        if completions == count {
            return;
        }
    }
    panic!("{completions} of {count} requests answered");
}

fn run(stage: &mut Stage, host: &Host, requests: u32) {
    for batch in 0..requests / u32::from(DEPTH) {
        for number in 0..u32::from(DEPTH) {
            send_request(host, batch * u32::from(DEPTH) + number);
        }
        collect(stage, host, u32::from(DEPTH));
    }
}

#[test]
fn a_hundred_thousand_requests_allocate_nothing() {
    let mut stage = Stage::new(&ram(), 16 << 20);
    let (_admin, io) = stage.attach(DEPTH + 1);
    run(&mut stage, &io, WARM_UP);
    let before = allocations_on_this_thread();
    run(&mut stage, &io, REQUESTS);
    assert_eq!(allocations_on_this_thread() - before, 0);
    assert_eq!(stage.leases_out(), 0);
}

/// Idle attached hosts, each with an admin queue and an I/O queue of 128 entries.
const IDLE_HOSTS: i64 = 16;
/// Memory of two connections and their controller at most: storage for the requests that their
/// queues permit, which is not touched before its first use, and no receive buffer.
const IDLE_HOST_BYTES_MAX: i64 = 80 << 10;

#[test]
fn an_idle_host_holds_no_receive_buffer() {
    let mut stage = Stage::new(&ram(), 16 << 20);
    // The first connection makes allocations that happen once.
    let _first = stage.attach(128);
    let before = bytes_allocated_on_this_thread();
    let hosts: Vec<_> = (0..IDLE_HOSTS).map(|_| stage.attach(128)).collect();
    let wires = 2 * 2 * WIRE_BYTES as i64;
    let held = (bytes_allocated_on_this_thread() - before) / IDLE_HOSTS - wires;
    assert!(
        held <= IDLE_HOST_BYTES_MAX,
        "an idle host holds {held} bytes"
    );
    drop(hosts);
}
