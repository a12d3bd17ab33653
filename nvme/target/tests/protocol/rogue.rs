//! A device that violates its contract does not harm the target.

use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;

use block::{Completion, CompletionBatch, DeviceQueue, DeviceSet, Drain, Refusal, Request};
use hugemem::Data;
use nvme_spec::Sqe;
use nvme_spec::sgl::SglDescriptor;
use nvme_target::{CoreLimits, TargetCore, TransportKind};

use crate::harness::{RAM, World};

/// Completes each request three times, with unknown tags in between, and also completes requests
/// that it deferred.
struct FaultyQueue {
    tags: Vec<(u64, Option<Data>)>,
    defers: bool,
}

impl DeviceQueue for FaultyQueue {
    fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        if self.defers {
            self.tags.push((request.tag, None));
            return Err(Refusal::Later(request));
        }
        self.tags.push((request.tag, request.data.map(Data::Lease)));
        Ok(())
    }

    fn flush(&mut self) {}

    fn poll(&mut self, completions: &mut CompletionBatch) -> usize {
        let before = completions.len();
        for (tag, data) in self.tags.drain(..) {
            let result = Ok(());
            completions.push(Completion {
                tag: u64::MAX,
                result,
                data: None,
            });
            completions.push(Completion {
                tag: tag ^ 1 << 32,
                result,
                data: None,
            });
            completions.push(Completion { tag, result, data });
            completions.push(Completion {
                tag,
                result,
                data: None,
            });
            completions.push(Completion {
                tag,
                result,
                data: None,
            });
        }
        completions.len() - before
    }

    fn in_flight(&self) -> usize {
        self.tags.len()
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn has_ready(&self) -> bool {
        !self.tags.is_empty()
    }

    fn drain(&mut self) -> Drain {
        Drain::Done
    }
}

fn world(defers: bool) -> World {
    let mut world = World::new();
    let queue = || -> Box<dyn DeviceQueue> {
        Box::new(FaultyQueue {
            tags: Vec::new(),
            defers,
        })
    };
    let devices = Rc::new(DeviceSet::new());
    for place in 0..world.devices().len() {
        devices.attach_queue(place, queue(), false);
    }
    let node = &mut world.nodes[0];
    let target = Arc::clone(&world.target);
    node.core = TargetCore::new(target, 0, devices, CoreLimits::default());
    node.tcp = node.core.register_transport(TransportKind::Tcp);
    node.rdma = node.core.register_transport(TransportKind::Rdma);
    world
}

/// Stale completions are counted and complete no command.
#[test]
fn stale_completions_are_counted() {
    let mut world = world(false);
    let (_, io) = world.ready();
    for round in 1..=10 {
        world
            .write(io, Sqe::write(RAM, 0, 0, false), &[1; 512])
            .ok();
        assert_eq!(
            world.nodes[0].core.counters().stale_completions.get(),
            4 * round
        );
    }
    assert_eq!((world.leases(), world.nodes[0].core.in_flight()), (0, 0));
}

/// A deferred request stays incomplete, even if the device completes it.
#[test]
fn stale_completion_does_not_complete_a_deferred_request() {
    let mut world = world(true);
    let (_, io) = world.ready();
    let write = Sqe::write(RAM, 0, 0, false).with_sgl(SglDescriptor::transport(512));
    let tag = world
        .start(io, write.with_cid(1), &[1; 512])
        .expect_err("put off");
    world.settle();
    assert!(world.take_reply(0, tag).is_none());
    assert_eq!((world.leases(), world.nodes[0].core.in_flight()), (1, 1));
    assert!(world.nodes[0].core.counters().stale_completions.get() > 0);
    world.close(io);
    assert_eq!((world.leases(), world.nodes[0].core.in_flight()), (0, 0));
}
