//! Writes and reads over real sockets with the host of `nvme_host`: sizes, digests, queues on
//! several reactors, resets, events.

use std::time::Duration;

use crate::harness::{BLOCK_BYTES, HOST, LIMIT, NAMESPACE_BYTES, NQN, Server, Setup, namespace};
use hugemem::{Arena, ArenaConfig, PagePolicy, Pool};
use nvme_host::{ConnectOptions, Controller, HostIdentity, IoQueue};
use nvme_spec::Status;
use nvme_spec::command::CopyRange;
use nvme_spec::event::AsyncEvent;
use nvme_spec::features::{AsyncEventConfiguration, CopyFormatsEnabled, FeatureId, HostBehavior};
use nvme_target::DeviceIndex;

fn pool() -> Pool {
    let config = ArenaConfig {
        bytes: 16 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 1 << 20,
    };
    Arena::new(config).expect("a small arena").pool(64)
}

fn options(server: &Server) -> ConnectOptions {
    let identity = HostIdentity {
        nqn: HOST.to_owned(),
        id: [7; 16],
    };
    ConnectOptions {
        timeout: LIMIT,
        ..ConnectOptions::new(server.address, NQN, identity)
    }
}

/// Writes `bytes` of a pattern at `lba` and reads them back.
#[track_caller]
fn round_trip(queue: &mut IoQueue, lba: u64, bytes: usize, seed: u8) {
    let blocks = (bytes / BLOCK_BYTES) as u32;
    let fill = |position: usize| (position as u8).wrapping_mul(31) ^ (position >> 8) as u8 ^ seed;
    let mut data = queue
        .pool()
        .take(bytes)
        .expect("the host's own arena is free");
    for (position, byte) in data.iter_mut().enumerate() {
        *byte = fill(position);
    }
    queue
        .submit_write(1, (lba, blocks), false, data, 1)
        .expect("room in the queue");
    let written = queue.wait_completion(LIMIT, "write").expect("a response");
    assert!(written.status().is_success(), "{}", written.status());
    let mut data = written.data.expect("the lease comes back");
    data.fill(0);
    queue
        .submit_read(1, lba, blocks, data, 2)
        .expect("room in the queue");
    let read = queue.wait_completion(LIMIT, "read").expect("a response");
    assert!(read.status().is_success(), "{}", read.status());
    let data = read.data.expect("the lease comes back");
    assert!(
        data.iter()
            .enumerate()
            .all(|(position, byte)| *byte == fill(position)),
        "{bytes} bytes at {lba} came back changed"
    );
}

#[test]
fn every_size_is_read_back_with_and_without_digests() {
    for digests in [(false, false), (true, false), (false, true), (true, true)] {
        let server = Server::start(Setup::default());
        let mut options = options(&server);
        (options.header_digest, options.data_digest) = digests;
        let mut controller = Controller::connect(options).expect("the export takes the host");
        controller.request_io_queues(1).expect("queues are granted");
        let mut queue = controller
            .open_io_queue(1, 31, pool())
            .expect("queue 1 is free");
        // In the capsule up to 4,096 bytes, with an R2T above.
        for (round, bytes) in [512, 1024, 4096, 4608, 8192, 65_536, 131_072, 1 << 20]
            .into_iter()
            .enumerate()
        {
            round_trip(&mut queue, round as u64 * 3, bytes, round as u8);
        }
        assert!(
            server.count(|counters| counters.bytes_placed.get() + counters.bytes_filled.get()) > 0,
            "nothing was placed"
        );
        drop(queue);
        controller.shut_down().expect("an orderly end");
        server.stop();
    }
}

#[test]
fn queues_spread_over_reactors_and_share_the_namespace() {
    let server = Server::start(Setup {
        reactors: 2,
        ..Setup::default()
    });
    let mut controller = Controller::connect(options(&server)).expect("it takes the host");
    assert!(controller.request_io_queues(6).expect("queues are granted") >= 6);
    let mut queues: Vec<_> = (1..=6)
        .map(|qid| {
            controller
                .open_io_queue(qid, 31, pool())
                .expect("the queue is free")
        })
        .collect();
    for counters in &server.counters {
        assert!(
            counters.connections.get() >= 2,
            "connections pile up on one reactor"
        );
    }
    for (position, queue) in queues.iter_mut().enumerate() {
        round_trip(queue, position as u64 * 64, 8192, position as u8);
    }
    // Written through one reactor, read through the other.
    let (first, second) = queues.split_at_mut(1);
    round_trip(&mut first[0], 1000, 4096, 0x77);
    let data = second[0].pool().take(4096).expect("free");
    second[0]
        .submit_read(1, 1000, 8, data, 0)
        .expect("room in the queue");
    let read = second[0]
        .wait_completion(LIMIT, "read")
        .expect("a response");
    assert_eq!(read.data.expect("the lease comes back")[0], 0x77);
    drop(queues);
    drop(controller);
    server.stop();
}

#[test]
fn a_reset_closes_the_io_queues_of_every_reactor_and_keeps_the_admin_queue() {
    let server = Server::start(Setup {
        reactors: 2,
        ..Setup::default()
    });
    let mut controller = Controller::connect(options(&server)).expect("it takes the host");
    controller.request_io_queues(4).expect("queues are granted");
    let queues: Vec<_> = (1..=4)
        .map(|qid| {
            controller
                .open_io_queue(qid, 31, pool())
                .expect("the queue is free")
        })
        .collect();
    controller.reset().expect("the controller comes back");
    server.await_that("the I/O connections are closing", |server| {
        server.count(|counters| counters.connections.get()) == 1
    });
    drop(queues);
    let mut queue = controller
        .open_io_queue(1, 31, pool())
        .expect("the queue is free again");
    round_trip(&mut queue, 0, 4096, 1);
    drop(queue);
    drop(controller);
    server.stop();
}

#[test]
fn a_silent_host_is_closed_by_its_keep_alive_and_traffic_keeps_it() {
    let server = Server::start(Setup::default());
    let options = ConnectOptions {
        keep_alive: Duration::from_millis(1500),
        ..options(&server)
    };
    let mut controller = Controller::connect(options).expect("it takes the host");
    controller.request_io_queues(1).expect("queues are granted");
    let mut queue = controller
        .open_io_queue(1, 31, pool())
        .expect("queue 1 is free");
    let began = std::time::Instant::now();
    let mut round = 0_u8;
    while began.elapsed() < Duration::from_secs(4) {
        round_trip(&mut queue, 0, 512, round);
        round = round.wrapping_add(1);
    }
    // No Keep Alive command was sent in this time, and the admin queue still works.
    controller.namespace(1).expect("the association lives");
    server.await_that("the silent host is gone", |server| {
        server.count(|counters| counters.connections.get()) == 0
    });
    drop((queue, controller));
    server.stop();
}

/// NVM 1.1 §3.3.2.4, with and without the format enabled, and a list that names a namespace that does
/// not exist.
#[test]
fn blocks_are_copied_across_namespaces() {
    let server = Server::start(Setup::default());
    let (device, disk) = server.target.devices().remove(0);
    let second = nvme_target::NamespaceConfig {
        nsid: 2,
        device,
        uuid: [5; 16],
        nguid: [6; 16],
        eui64: [8; 8],
        ..namespace(disk.geometry())
    };
    let changed = vec![namespace(disk.geometry()), second];
    let changed = server.target.update_namespaces(NQN, changed);
    changed.expect("a valid change");
    let mut controller = Controller::connect(options(&server)).expect("it takes the host");
    let mut queue = controller.open_io_queue(1, 32, pool()).expect("a queue");
    round_trip(&mut queue, 8, 2 * BLOCK_BYTES, 3);
    let copy = |queue: &mut IoQueue, snsid: u32| {
        let ranges = [9, 8].map(|lba| CopyRange::of_namespace(snsid, lba, 0));
        let sent = queue.submit_copy_from_namespaces(2, 40, &ranges, 7);
        sent.expect("room in the queue");
        let done = queue.wait_completion(LIMIT, "copy").expect("a response");
        (done.status().with_more(false), done.cqe.dw0.get())
    };
    let refused = (Status::INVALID_FIELD.with_dnr(), 0);
    assert_eq!(copy(&mut queue, 1), refused, "it is not enabled");
    let mut behavior = HostBehavior::default();
    behavior.cdfe = CopyFormatsEnabled::new().with_format_3(true);
    assert!(controller.set_host_behavior(&behavior).is_err());
    behavior.cdfe = CopyFormatsEnabled::new().with_format_2(true);
    let enabled = controller.set_host_behavior(&behavior);
    enabled.expect("it is supported");
    assert_eq!(copy(&mut queue, 3), refused, "there is no namespace 3");
    assert!(queue.submit_copy_from_namespaces(2, 0, &[], 7).is_err());
    assert_eq!(copy(&mut queue, 1), (Status::SUCCESS, 0));
    let read = |queue: &mut IoQueue, lba: u64| {
        let data = queue.pool().take(BLOCK_BYTES).expect("memory");
        queue.submit_read(2, lba, 1, data, 2).expect("room");
        let read = queue.wait_completion(LIMIT, "read").expect("a response");
        read.data.expect("the lease comes back").to_vec()
    };
    let blocks = [8, 9, 40, 41].map(|lba| read(&mut queue, lba));
    assert_ne!(blocks[0], blocks[1]);
    assert_eq!((&blocks[2], &blocks[3]), (&blocks[1], &blocks[0]));
    drop((queue, controller));
    server.stop();
}

#[test]
fn a_new_namespace_is_announced_and_can_be_used() {
    let server = Server::start(Setup::default());
    let mut controller = Controller::connect(options(&server)).expect("it takes the host");
    let notices = AsyncEventConfiguration::new().with_namespace_attribute(true);
    let feature = FeatureId::ASYNC_EVENT_CONFIGURATION;
    controller
        .set_feature(feature, 0, notices.into_bits())
        .expect("it can be set");
    controller
        .request_event()
        .expect("an event request is held");
    let second = nvme_target::NamespaceConfig {
        nsid: 2,
        device: DeviceIndex(0),
        uuid: [5; 16],
        nguid: [6; 16],
        eui64: [8; 8],
        ..namespace(server.target.devices()[0].1.geometry())
    };
    let first = namespace(server.target.devices()[0].1.geometry());
    server
        .target
        .update_namespaces(NQN, vec![first, second])
        .expect("a valid change");
    let event = controller.wait_event(LIMIT).expect("an event");
    assert_eq!(event, AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED);
    assert_eq!(controller.active_namespaces().expect("a list"), [1, 2]);
    let info = controller.namespace(2).expect("the namespace is there");
    assert_eq!(info.blocks * u64::from(info.block_bytes), NAMESPACE_BYTES);
    drop(controller);
    server.stop();
}
