//! Reads whose data the device lends at once: answered without being executed.

use nvme_spec::Sqe;
use nvme_spec::sgl::SglDescriptor;
use nvme_target::{Admission, CloseReason};

use crate::harness::{PLAIN, World};

/// A read that the device lends at once is answered at once, and counted like any other.
#[test]
fn a_lent_read_is_answered_at_once() {
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

/// Base 2.1 §6.4: a read before a Disconnect is answered before it, also where its data is lent.
#[test]
fn a_lent_read_lets_the_disconnect_behind_it_go() {
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
    assert!(world.answer(0, disconnect).is_none());
    assert!(world.execute(io, 77, work, &[]).is_none());
    assert_eq!(world.wait(io, 77).ok().len(), 512);
    world.wait(io, disconnect).ok();
    assert_eq!(world.close_reasons(0), [CloseReason::Disconnected]);
    world.close(io);
}
