//! Inline completion of reads whose data is borrowed from the device, and of writes.

use nvme_spec::command::{Fuse, ReadWrite, ReadWriteControl};
use nvme_spec::registers::Cc;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{NSID_BROADCAST, Sqe, Status};
use nvme_target::{Admission, CloseReason, DataSource, IoCounters, IoTotals, Work};

use crate::harness::{
    CACHED, ConnectOptions, HIGHEST, Link, PLAIN, RAM, RAM_BLOCKS, READ_ONLY, TRANSFER_MAX, World,
};

/// A read that can borrow the device's memory completes inline and is counted like any other.
#[test]
fn a_borrowed_read_completes_inline() {
    let mut world = World::new();
    let (_, io) = world.ready();
    world
        .write(io, Sqe::write(PLAIN, 3, 0, false), &[7; 512])
        .ok();
    let read = Sqe::read(PLAIN, 3, 0).with_sgl(SglDescriptor::transport(512));
    for _ in 0..2 {
        let reply = world.start(io, read, &[]).expect("at once");
        assert_eq!(reply.ok(), [7; 512]);
    }
    let core = &world.nodes[0].core;
    let totals = core.counters().devices[3].totals();
    assert_eq!((totals.reads, totals.bytes_read), (2, 1024));
    assert_eq!((core.in_flight(), totals.errors), (0, 0));
}

/// Base 2.1 §6.4: a read before a Disconnect completes before it, also if its data is borrowed.
#[test]
fn borrowed_read_completes_before_a_following_disconnect() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let read = Sqe::read(PLAIN, 0, 0).with_sgl(SglDescriptor::transport(512));
    let now = world.now;
    let admission = world.nodes[0]
        .core
        .admit(io.queue, 77, &read.with_cid(1), now);
    let Admission::Work(work) = admission else {
        panic!("{admission:?}")
    };
    let disconnect = world
        .start(io, Sqe::disconnect_queue().with_cid(2), &[])
        .expect_err("held");
    assert!(world.take_reply(0, disconnect).is_none());
    assert!(world.execute(io, 77, work, &[]).is_none());
    assert_eq!(world.wait(io, 77).ok().len(), 512);
    world.wait(io, disconnect).ok();
    assert_eq!(world.close_reasons(0), [CloseReason::Disconnected]);
    world.close(io);
}

/// Valid and invalid reads: every combination of these values.
fn reads() -> impl Iterator<Item = Sqe> {
    let namespaces = [
        0,
        RAM,
        CACHED,
        3,
        READ_ONLY,
        PLAIN,
        HIGHEST + 1,
        NSID_BROADCAST,
    ];
    let most = (TRANSFER_MAX / 512) as u16;
    let ranges = [0, 7, RAM_BLOCKS - 1, RAM_BLOCKS, u64::MAX]
        .into_iter()
        .flat_map(move |lba| [0, 7, most - 1, most].map(|nlb_z| (lba, nlb_z)));
    let ranges: Vec<_> = ranges.collect();
    let controls = [
        ReadWriteControl::new(),
        ReadWriteControl::new().with_fua(true),
        ReadWriteControl::new().with_cetype(1),
    ];
    let all = namespaces.into_iter().flat_map(move |nsid| {
        let ranges = ranges.clone();
        ranges.into_iter().map(move |range| (nsid, range))
    });
    all.flat_map(move |(nsid, (lba, nlb_z))| {
        controls.into_iter().flat_map(move |control| {
            let mut range = ReadWrite::new(lba, nlb_z);
            range.control = control.with_nlb_z(nlb_z);
            let read = Sqe::read(nsid, lba, nlb_z).with_read_write(range);
            let block = if nsid == CACHED { 4096 } else { 512 };
            let bytes = (u32::from(nlb_z) + 1) * block;
            let keyed = |length| SglDescriptor::keyed(0x5000, length, 9, true).expect("short");
            [
                read.with_sgl(SglDescriptor::transport(bytes)),
                read.with_sgl(SglDescriptor::transport(bytes - 1)),
                read.with_sgl(SglDescriptor::in_capsule(0, bytes)),
                read.with_sgl(keyed(bytes)),
                read.with_sgl(keyed(bytes + 1)),
                read.with_sgl(SglDescriptor::last_segment_in_capsule(0, 32)),
                read.with_sgl(SglDescriptor::transport(bytes))
                    .with_fuse(Fuse::FIRST),
                read.with_prp(0x1000, 0),
            ]
        })
    })
}

/// Inline completion accepts no read that admission refuses, returns the same response, and has no
/// effect on a read that it leaves to admission.
#[test]
fn inline_reads_agree_with_admission() {
    for rdma in [false, true] {
        let mut world = World::new();
        let call = ConnectOptions {
            rdma,
            ..ConnectOptions::default()
        };
        let admin = world.enabled_by(0, &call);
        let cntlid = admin.info.controller_id;
        let queue = ConnectOptions {
            cntlid,
            qid: 1,
            no_flow_control: true,
            ..call
        };
        let io = world.connect(0, &queue);
        let mut taken = 0;
        for sqe in reads() {
            let sqe = sqe.with_cid(world.cid());
            let counted = |world: &World| {
                let counters = world.nodes[0].core.counters();
                let totals = counters.devices.iter().map(IoCounters::totals);
                let sum = |of: fn(IoTotals) -> u64| totals.clone().map(of).sum::<u64>();
                let bytes = sum(|totals| totals.bytes_read);
                (counters.commands.get(), sum(|totals| totals.reads), bytes)
            };
            let before = counted(&world);
            let now = world.now;
            let lent = world.nodes[0]
                .core
                .complete_inline(io.queue, &sqe, None, now);
            let after = counted(&world);
            let Some(lent) = lent else {
                assert_eq!(before, after, "{sqe:?}");
                continue;
            };
            taken += 1;
            let bytes = lent.data.as_ref().map_or(0, |data| data.len()) as u64;
            assert_eq!(after, (before.0 + 1, before.1 + 1, before.2 + bytes));
            let admission = world.nodes[0].core.admit(io.queue, 1, &sqe, now);
            let Admission::Work(work) = admission else {
                panic!("{sqe:?}: {admission:?}")
            };
            let named = lent.keyed.map(|(block, invalidate)| DataSource::Keyed {
                address: block.address,
                key: block.key,
                length: block.length,
                invalidate,
            });
            assert_eq!(named.unwrap_or(DataSource::TransportSgl), work.source());
            let reply = world.execute(io, 1, work, &[]).expect("at once");
            assert_eq!(reply.cqe, lent.response);
            assert_eq!(reply.ok(), lent.data.as_deref().expect("a read has data"));
        }
        // The valid reads of the two namespaces that support borrowing: two ranges from two blocks
        // on, each with and without Force Unit Access, which has no effect without a cache.
        assert_eq!(taken, 2 * 2 * 2 * 2, "rdma: {rdma}");
        assert_eq!(world.nodes[0].core.in_flight(), 0);
    }
}

/// Commands of a queue that is not live are left to admission, which reports the reason.
#[test]
fn inline_read_is_declined_on_an_ending_queue() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let read = Sqe::read(PLAIN, 0, 0).with_sgl(SglDescriptor::transport(512));
    world.command(io, Sqe::disconnect_queue()).ok();
    let now = world.now;
    assert!(
        world.nodes[0]
            .core
            .complete_inline(io.queue, &read, None, now)
            .is_none()
    );
    let aborted = world.command(io, read).status();
    assert_eq!(aborted, Status::ABORTED_SQ_DELETION);
    world.close(io);
    assert!(
        world.nodes[0]
            .core
            .complete_inline(io.queue, &read, None, now)
            .is_none()
    );
}

/// A write that the device accepts inline completes inline, is counted like any other, and is read
/// back.
#[test]
fn a_write_completes_inline() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let write = Sqe::write(PLAIN, 3, 0, false)
        .with_cid(9)
        .with_sgl(SglDescriptor::in_capsule(0, 512));
    let now = world.now;
    let taken = world.nodes[0]
        .core
        .complete_inline(io.queue, &write, Some(&[7; 512]), now);
    let response = taken.expect("nothing is in the way").response;
    assert_eq!(
        (response.cid.get(), response.status()),
        (9, Status::SUCCESS)
    );
    let core = &world.nodes[0].core;
    let totals = core.counters().devices[3].totals();
    assert_eq!((totals.writes, totals.bytes_written), (1, 512));
    assert_eq!((core.in_flight(), totals.errors), (0, 0));
    let read = Sqe::read(PLAIN, 3, 0).with_sgl(SglDescriptor::transport(512));
    assert_eq!(world.start(io, read, &[]).expect("at once").ok(), [7; 512]);
}

/// Valid and invalid writes with 512 bytes of in-capsule data.
fn writes() -> impl Iterator<Item = Sqe> {
    let namespaces = [
        0,
        RAM,
        CACHED,
        READ_ONLY,
        PLAIN,
        HIGHEST + 1,
        NSID_BROADCAST,
    ];
    let ranges = [
        (0, 0),
        (7, 0),
        (RAM_BLOCKS - 1, 0),
        (RAM_BLOCKS, 0),
        (u64::MAX, 0),
        (0, 1),
    ];
    let controls = [
        ReadWriteControl::new(),
        ReadWriteControl::new().with_fua(true),
        ReadWriteControl::new().with_dtype(1),
        ReadWriteControl::new().with_cetype(1),
    ];
    namespaces.into_iter().flat_map(move |nsid| {
        ranges.into_iter().flat_map(move |(lba, nlb_z)| {
            controls.into_iter().flat_map(move |control| {
                let mut range = ReadWrite::new(lba, nlb_z);
                range.control = control.with_nlb_z(nlb_z);
                let write = Sqe::write(nsid, lba, nlb_z, false).with_read_write(range);
                let keyed = SglDescriptor::keyed(0x5000, 512, 9, true).expect("short");
                [
                    write.with_sgl(SglDescriptor::in_capsule(0, 512)),
                    write.with_sgl(SglDescriptor::in_capsule(0, 511)),
                    write.with_sgl(SglDescriptor::in_capsule(4, 512)),
                    write.with_sgl(SglDescriptor::transport(512)),
                    write.with_sgl(keyed),
                    write
                        .with_sgl(SglDescriptor::in_capsule(0, 512))
                        .with_fuse(Fuse::FIRST),
                    write.with_prp(0x1000, 0),
                ]
            })
        })
    })
}

/// Inline completion accepts no write that admission refuses or makes durable, and has no effect on
/// a write that it leaves to admission.
#[test]
fn inline_writes_agree_with_admission() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let mut taken = 0;
    for (number, sqe) in writes().enumerate() {
        let sqe = sqe.with_cid(world.cid());
        let data = [number as u8; 512];
        let counted = |world: &World| {
            let counters = world.nodes[0].core.counters();
            let totals = counters.devices.iter().map(IoCounters::totals);
            let writes: u64 = totals.map(|totals| totals.writes).sum();
            (counters.commands.get(), writes)
        };
        let before = counted(&world);
        let now = world.now;
        let core = &mut world.nodes[0].core;
        let written = core.complete_inline(io.queue, &sqe, Some(&data), now);
        let after = counted(&world);
        if written.is_none() {
            assert_eq!(before, after, "{sqe:?}");
            continue;
        }
        taken += 1;
        assert_eq!(after, (before.0 + 1, before.1 + 1));
        let core = &mut world.nodes[0].core;
        let Admission::Work(work) = core.admit(io.queue, 1, &sqe, now) else {
            panic!("{sqe:?}")
        };
        assert_eq!(work.source(), DataSource::InCapsule { offset: 0 });
        let lba = sqe.read_write().slba.get();
        let _ = core.reject(io.queue, work, Status::TRANSIENT_TRANSPORT_ERROR);
        let read = Sqe::read(sqe.nsid.get(), lba, 0).with_sgl(SglDescriptor::transport(512));
        let reply = world.start(io, read, &[]);
        let reply = reply.unwrap_or_else(|tag| world.wait(io, tag));
        assert_eq!(reply.ok(), data);
    }
    // The valid writes of two namespaces with blocks of 512 bytes: three and two ranges, each with
    // and without Force Unit Access.
    assert_eq!(taken, (3 + 2) * 2);
}

/// Writes of a queue that is not live, or to borrowed data, are left to admission.
#[test]
fn inline_write_is_declined_on_ending_queue_or_borrowed_data() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let write = Sqe::write(PLAIN, 0, 0, false).with_sgl(SglDescriptor::in_capsule(0, 512));
    let read = Sqe::read(PLAIN, 0, 0).with_sgl(SglDescriptor::transport(512));
    let now = world.now;
    let core = &mut world.nodes[0].core;
    let lent = core
        .complete_inline(io.queue, &read, None, now)
        .expect("lent");
    assert!(
        core.complete_inline(io.queue, &write, Some(&[1; 512]), now)
            .is_none()
    );
    assert_eq!(lent.data.as_deref().expect("a read has data"), [0; 512]);
    drop(lent);
    assert!(
        core.complete_inline(io.queue, &write, Some(&[1; 512]), now)
            .is_some()
    );
    world.command(io, Sqe::disconnect_queue()).ok();
    let core = &mut world.nodes[0].core;
    assert!(
        core.complete_inline(io.queue, &write, Some(&[2; 512]), now)
            .is_none()
    );
}

/// Admits a write of 8 blocks whose data the transport fetches.
fn admit_write(world: &mut World, io: Link, nsid: u32) -> Work {
    let write = Sqe::write(nsid, 0, 7, false).with_sgl(SglDescriptor::transport(8 * 512));
    let (now, write) = (world.now, write.with_cid(world.cid()));
    let core = &mut world.nodes[0].core;
    match core.admit(io.queue, 5, &write, now) {
        Admission::Work(work) => work,
        other => panic!("{other:?}"),
    }
}

/// A write that was placed directly in part executes the rest, and counts as one write.
#[test]
fn write_placed_in_parts_counts_once() {
    for taken in [[3, 5], [3, 0], [8, 0]] {
        let mut world = World::new();
        let (_, io) = world.ready();
        let mut work = admit_write(&mut world, io, PLAIN);
        let parts = taken.into_iter().filter(|blocks| *blocks > 0);
        for (blocks, byte) in parts.zip(1..) {
            let core = &mut world.nodes[0].core;
            assert_eq!(core.block_to_fill(io.queue, &work), Some(512));
            let fill = &mut |range: &mut [u8]| range.fill(byte);
            assert!(core.place_directly(io.queue, &mut work, blocks * 512, fill));
        }
        let left = work.bytes() as usize;
        assert_eq!(left, (8 - taken[0] - taken[1]) * 512);
        let mut lease = world.nodes[0].pool.take(left).expect("a lease");
        lease.fill(9);
        let now = world.now;
        let core = &mut world.nodes[0].core;
        let done = core.execute(io.queue, 5, work, Some(lease), now);
        let status = match done {
            Some(done) => done.response.status(),
            None => world.wait(io, 5).status(),
        };
        assert!(status.is_success(), "{status}");
        let mut expected = vec![1; taken[0] * 512];
        expected.resize((taken[0] + taken[1]) * 512, 2);
        expected.resize(8 * 512, 9);
        assert!(world.read_blocks(io, PLAIN, 0, 8) == expected);
        let core = &world.nodes[0].core;
        let totals = core.counters().devices[3].totals();
        assert_eq!((totals.writes, totals.bytes_written), (1, 8 * 512));
        assert_eq!((core.in_flight(), totals.errors), (0, 0));
        assert_eq!(world.leases(), 0);
    }
}

/// Data of an ended queue, or for a device without direct placement, is not placed directly.
#[test]
fn direct_placement_is_declined_on_ending_queue_or_borrowed_data() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    let refused = &mut |_: &mut [u8]| panic!("nothing is to be filled");
    let mut work = admit_write(&mut world, io, PLAIN);
    let read = Sqe::read(PLAIN, 7, 0).with_sgl(SglDescriptor::transport(512));
    let now = world.now;
    let core = &mut world.nodes[0].core;
    let lent = core
        .complete_inline(io.queue, &read, None, now)
        .expect("lent");
    assert!(!core.place_directly(io.queue, &mut work, 8 * 512, refused));
    drop(lent);
    world.set_cc(admin, Cc::new());
    let core = &mut world.nodes[0].core;
    assert!(!core.place_directly(io.queue, &mut work, 8 * 512, refused));
    assert_eq!(work.bytes(), 8 * 512);
    let _ = core.reject(io.queue, work, Status::TRANSIENT_TRANSPORT_ERROR);
}
