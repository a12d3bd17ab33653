//! The raw client over RDMA with a target that behaves correctly; also, the host's I/O path over
//! RDMA does not allocate.

#[expect(dead_code, reason = "the faults are another test's")]
#[path = "../../host/tests/verbs_target/mod.rs"]
mod verbs_target;

use std::time::Duration;

use hugemem::allocation_counter::{CountingAllocator, allocations_on_this_thread};
use hugemem::{Arena, ArenaConfig, PagePolicy};
use nvme_host::{Controller, HostCompletions, HostError, KeyMode, RdmaOptions, Rejection};
use nvme_host_testing::HostSteps;
use nvme_host_testing::Names;
use nvme_host_testing::rdma::{Ending, RawOptions, RawRdmaClient, RawRdmaError, RawReceived};
use nvme_spec::rdma::RejectReason;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Sqe, Status};
use verbs_target::{BLOCK, BLOCKS, LIMIT, Misbehavior, NQN, TargetBehavior, VerbsTarget};
use zerocopy::IntoBytes;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn names() -> Names {
    Names {
        host: "nqn.2026-11.org.windlass:raw".to_owned(),
        host_id: [3; 16],
        subsystem: NQN.to_owned(),
    }
}

#[test]
fn raw_client_opens_queues_and_runs_commands() {
    let target = VerbsTarget::start(TargetBehavior::default());
    let (mut admin, cntlid) =
        RawRdmaClient::open_admin(&target.host, target.address, &names()).expect("open");
    let mut io =
        RawRdmaClient::open_io(&target.host, target.address, &names(), cntlid, 1).expect("open");
    let data: Vec<u8> = (0..4096).map(|index| (index % 253) as u8).collect();
    io.write_memory(0, &data);
    let written = io.command(Sqe::write(1, 8, 7, false), 4096);
    assert_eq!(written.expect("an answer").status(), Status::SUCCESS);
    io.write_memory(0, &[0; 4096]);
    let read = io.command(Sqe::read(1, 8, 7), 4096).expect("an answer");
    assert_eq!(read.status(), Status::SUCCESS);
    assert_eq!(io.read_memory(0, 4096), data);
    let beyond = io
        .command(Sqe::read(1, BLOCKS, 0), BLOCK)
        .expect("an answer");
    assert_eq!(beyond.status(), Status::LBA_OUT_OF_RANGE.with_dnr());
    io.disconnect().expect("in order");
    assert!(matches!(
        io.wait_end().expect("the end"),
        Ending::Disconnected | Ending::Flushed
    ));
    assert!(
        admin
            .get_property(0x1c, nvme_spec::fabrics::PropertySize::BYTES_4)
            .is_ok()
    );
}

#[test]
fn raw_client_controls_memory_keys() {
    let target = VerbsTarget::start(TargetBehavior::default());
    let (_admin, cntlid) =
        RawRdmaClient::open_admin(&target.host, target.address, &names()).expect("open");
    let open = || RawRdmaClient::open_io(&target.host, target.address, &names(), cntlid, 1);
    let mut io = open().expect("open");
    let key = io.open_window(0, 4096).expect("a window");
    let cid = io.next_cid();
    let sgl = SglDescriptor::keyed(io.memory_address(), 4096, key, true).expect("short");
    let sqe = Sqe::read(1, 0, 7).with_cid(cid).with_sgl(sgl);
    io.send(sqe.as_bytes()).expect("sent");
    let RawReceived::Message { bytes, invalidated } = io.receive().expect("an answer") else {
        panic!("the end");
    };
    assert_eq!((bytes.len(), invalidated), (16, Some(key)));
    // An invalid key ends the connection on both sides.
    let sgl =
        SglDescriptor::keyed(io.memory_address(), 4096, io.unknown_key(), false).expect("short");
    let sqe = Sqe::read(1, 0, 7).with_cid(cid).with_sgl(sgl);
    io.send(sqe.as_bytes()).expect("sent");
    io.wait_end().expect("the end");
    let mut io = open().expect("open");
    let done = io
        .command(Sqe::read(1, 0, 7), 4096)
        .expect("the target lives");
    assert_eq!(done.status(), Status::SUCCESS);
}

#[test]
fn a_rejection_is_returned() {
    let reason = RejectReason::INVALID_QUEUE_ID;
    let target = VerbsTarget::start(TargetBehavior {
        misbehavior: Misbehavior::Rejects(reason),
        ..TargetBehavior::default()
    });
    let options = RawOptions::queue(4, 32, 5);
    let refused = RawRdmaClient::connect(&target.host, target.address, &options);
    let Err(RawRdmaError::Host(HostError::Rejected { status, .. })) = refused else {
        panic!("not rejected");
    };
    assert_eq!(status, Rejection::ByTarget(reason));
}

#[test]
fn silence_times_out() {
    let target = VerbsTarget::start(TargetBehavior {
        misbehavior: Misbehavior::Silent,
        ..TargetBehavior::default()
    });
    let options = RawOptions {
        limit: Duration::from_millis(200),
        ..RawOptions::queue(1, 32, 5)
    };
    let mut client =
        RawRdmaClient::connect(&target.host, target.address, &options).expect("connected");
    let silent = client.command(Sqe::flush(1), 0);
    assert!(matches!(silent, Err(RawRdmaError::TimedOut(_))));
}

#[test]
fn requests_do_not_allocate() {
    for keys in [KeyMode::Arena, KeyMode::Windows] {
        let target = VerbsTarget::start(TargetBehavior {
            descriptors: 4,
            ..TargetBehavior::default()
        });
        let options = target.options(RdmaOptions {
            keys,
            descriptors: 4,
            ..RdmaOptions::default()
        });
        let arena = Arena::new(ArenaConfig {
            bytes: 16 << 20,
            pages: PagePolicy::Ordinary,
            max_transfer: 64 * 1024,
        })
        .expect("16 MiB");
        options.transport.attach(&arena).expect("registered");
        let controller = Controller::connect(options).expect("connected");
        let pool = arena.pool(0);
        let mut queue = controller
            .open_io_queue(1, 16, pool.clone())
            .expect("opened");
        let mut completions = HostCompletions::new();
        let (mut submitted, mut ended, mut before) = (0_u64, 0_u64, 0);
        while ended < 4000 {
            if ended < 500 {
                // The in-process fabric allocates memory for the requests in flight.
                before = allocations_on_this_thread();
            }
            while submitted < 4000 && queue.in_flight() < queue.depth() {
                let blocks = [1, 8, 32][submitted as usize % 3];
                let lease = pool.take(blocks * BLOCK).expect("memory");
                let lba = submitted % 64 * 32;
                let taken = if submitted.is_multiple_of(2) {
                    queue.submit_read(1, lba, blocks as u32, lease, submitted)
                } else {
                    queue.submit_write(1, (lba, blocks as u32), false, lease, submitted)
                };
                taken.expect("room");
                submitted += 1;
            }
            queue.flush().expect("sent");
            if queue.poll(&mut completions).expect("fine") == 0 {
                queue.wait(LIMIT.min(Duration::from_millis(20)));
            }
            for completion in completions.drain(..) {
                assert!(completion.status().is_success());
                ended += 1;
            }
        }
        assert_eq!(allocations_on_this_thread() - before, 0, "{keys:?}");
    }
}
