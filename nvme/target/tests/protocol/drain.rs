//! Shutdown of a core.

use std::rc::Rc;

use block::{Drain, Operation};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Sqe, Status};
use nvme_target::{CloseReason, CoreDrain};

use crate::harness::{HOLD, RAM, World};

fn drain(world: &mut World, node: usize) -> CoreDrain {
    let now = world.now;
    world.nodes[node].core.drain(now)
}

/// Connections are closed, commands end, caches are flushed, devices are drained.
#[test]
fn core_shutdown_drains_queues_and_flushes_caches() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let far = world.io_queue(1, admin, 1);
    world.fault.arm(HOLD, true);
    let write = Sqe::write(RAM, 0, 0, false).with_sgl(SglDescriptor::transport(512));
    let tag = world
        .start(far, write.with_cid(1), &[1; 512])
        .expect_err("in the device");
    world.target.shut_down();
    assert!(world.target.snapshot().shutting_down);
    world.settle();
    assert_eq!(world.close_reasons(0), [CloseReason::TargetShutdown]);
    assert_eq!(world.close_reasons(1), [CloseReason::TargetShutdown]);
    world
        .command(far, Sqe::flush(RAM))
        .is(Status::ABORTED_SQ_DELETION);
    let outstanding = CoreDrain::Outstanding {
        queues: 1,
        executions: 1,
    };
    assert_eq!(drain(&mut world, 1), outstanding);
    world.fault.release();
    world.settle();
    world.wait(far, tag).ok();
    world.fault.arm(HOLD, false);
    let outstanding = CoreDrain::Outstanding {
        queues: 1,
        executions: 0,
    };
    assert_eq!(drain(&mut world, 1), outstanding);
    world.close(far);
    world.close(admin);
    world.cached.take();
    for node in 0..2 {
        assert_eq!(drain(&mut world, node), CoreDrain::Done);
        let devices = Rc::clone(world.nodes[node].core.devices());
        assert_eq!(
            devices.drain(),
            Drain::Outstanding(1),
            "the caches are flushed"
        );
        assert_eq!(world.cached.take(), [(Operation::Flush, 0, 0)]);
        world.settle();
        assert_eq!(devices.drain(), Drain::Done);
        assert_eq!(drain(&mut world, node), CoreDrain::Done);
    }
    assert_eq!(world.leases(), 0);
}

/// A core without queues is drained immediately.
#[test]
fn idle_core_drains_immediately() {
    let mut world = World::new();
    let now = world.now;
    world.nodes[0].core.begin_shutdown(now);
    assert_eq!(drain(&mut world, 0), CoreDrain::Done);
    assert!(world.try_connect(0, &Default::default()).is_err());
    world.connect(1, &Default::default());
}
