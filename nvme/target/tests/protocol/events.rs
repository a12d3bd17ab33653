//! Asynchronous events (Base 2.1 §5.1.2).

use nvme_spec::command::{FeatureId, LogPageId};
use nvme_spec::event::AsyncEvent;
use nvme_spec::features::{AsyncEventConfiguration, TemperatureThreshold};
use nvme_spec::log::ChangedNamespaces;
use nvme_spec::registers::Cc;
use nvme_spec::{Sqe, Status};
use nvme_target::NamespaceConfig;
use reactors::Nanos;
use zerocopy::FromBytes;

use crate::harness::{
    CACHED, FAIL_INTERNAL, Link, RAM, SUBSYSTEM, World, discovery_call, namespace,
};

const CHANGED: LogPageId = LogPageId::CHANGED_ATTACHED_NAMESPACES;

fn namespaces(world: &World) -> Vec<NamespaceConfig> {
    let devices = world.devices();
    vec![
        namespace(RAM, 0, &*devices[0]),
        namespace(CACHED, 1, &*devices[1]),
    ]
}

fn update(world: &mut World, namespaces: Vec<NamespaceConfig>) {
    world
        .target
        .update_namespaces(SUBSYSTEM, namespaces)
        .expect("a right change");
    world.settle();
}

fn configure(world: &mut World, admin: Link, configuration: AsyncEventConfiguration) {
    let fid = FeatureId::ASYNC_EVENT_CONFIGURATION;
    world
        .set_feature(admin, fid, configuration.into_bits())
        .ok();
}

fn request(world: &mut World, admin: Link) -> u64 {
    let sqe = Sqe::async_event_request().with_cid(world.cid());
    world.start(admin, sqe, &[]).expect_err("held")
}

#[track_caller]
fn assert_event(world: &mut World, admin: Link, tag: u64, event: AsyncEvent) {
    let reply = world.wait(admin, tag);
    assert!(reply.status().is_success());
    assert_eq!(AsyncEvent::from_bits(reply.dw0()), event);
}

fn changed(world: &mut World, admin: Link, rae: bool) -> Vec<u32> {
    let data = world.log_page(admin, CHANGED, 4096, rae).ok();
    ChangedNamespaces::read_from_bytes(&data)
        .expect("4096 bytes")
        .0
        .iter()
        .collect()
}

/// Base 2.1 §5.1.2: requests beyond AERL are refused.
#[test]
fn event_requests_beyond_aerl_are_refused() {
    let mut world = World::new();
    let admin = world.enabled(0);
    for _ in 0..4 {
        request(&mut world, admin);
    }
    let reply = world.command(admin, Sqe::async_event_request());
    reply.is(Status::ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED.with_dnr());
}

/// Base 2.1 §5.1.2: requests beyond the limit do not affect the waiting ones, and an aborted one
/// makes room for another.
#[test]
fn excess_event_requests_do_not_affect_pending_ones() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let wants = AsyncEventConfiguration::new().with_namespace_attribute(true);
    configure(&mut world, admin, wants);
    let cids = [0x101, 0x102, 0x103, 0x104];
    let waiting = cids.map(|cid| {
        let sqe = Sqe::async_event_request().with_cid(cid);
        world.start(admin, sqe, &[]).expect_err("held")
    });
    let exceeded = Status::ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED.with_dnr();
    for _ in 0..200 {
        world
            .command(admin, Sqe::async_event_request())
            .is(exceeded);
        world.command(admin, Sqe::keep_alive()).ok();
    }
    world.command(admin, Sqe::abort_command(0, cids[1])).ok();
    world.wait(admin, waiting[1]).is(Status::ABORT_REQUESTED);
    let another = request(&mut world, admin);
    world
        .command(admin, Sqe::async_event_request())
        .is(exceeded);
    let mut changes = [smaller, namespaces].into_iter().cycle();
    for tag in [waiting[0], waiting[2], waiting[3], another] {
        let wanted = changes.next().map(|wanted| wanted(&world));
        update(&mut world, wanted.expect("one of two"));
        let event = AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED;
        assert_event(&mut world, admin, tag, event);
        assert!(!changed(&mut world, admin, false).is_empty());
    }
}

fn smaller(world: &World) -> Vec<NamespaceConfig> {
    let mut namespaces = namespaces(world);
    namespaces.pop();
    namespaces
}

/// Base 2.1 §5.1.2 and §5.1.12.1.5: a change of namespaces is reported once, until the list is
/// read.
#[test]
fn namespace_change_is_reported_once() {
    let mut world = World::new();
    let admin = world.enabled(0);
    configure(
        &mut world,
        admin,
        AsyncEventConfiguration::new().with_namespace_attribute(true),
    );
    let first = request(&mut world, admin);
    let second = request(&mut world, admin);
    let usual = namespaces(&world);
    update(&mut world, usual);
    assert_event(
        &mut world,
        admin,
        first,
        AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED,
    );
    let mut smaller = namespaces(&world);
    smaller[0].geometry.block_count -= 8;
    smaller.pop();
    update(&mut world, smaller);
    assert!(
        world.take_reply(0, second).is_none(),
        "masked until the list is read"
    );
    assert_eq!(changed(&mut world, admin, true), [1, 2, 4, 5]);
    assert_eq!(changed(&mut world, admin, false), [1, 2, 4, 5]);
    assert!(
        changed(&mut world, admin, false).is_empty(),
        "reading clears the list"
    );
    let usual = namespaces(&world);
    update(&mut world, usual);
    assert_event(
        &mut world,
        admin,
        second,
        AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED,
    );
    assert_eq!(changed(&mut world, admin, false), [1, 2]);
}

/// A change that does not affect the namespaces raises no event, and neither does one of another
/// subsystem.
#[test]
fn unrelated_changes_raise_no_namespace_event() {
    let mut world = World::new();
    let admin = world.enabled(0);
    configure(
        &mut world,
        admin,
        AsyncEventConfiguration::new().with_namespace_attribute(true),
    );
    let tag = request(&mut world, admin);
    world
        .target
        .update_hosts(SUBSYSTEM, true, vec!["nqn.a".to_owned()])
        .expect("right");
    let closed = crate::harness::CLOSED_SUBSYSTEM;
    world
        .target
        .update_namespaces(closed, Vec::new())
        .expect("right");
    world.settle();
    assert!(world.take_reply(0, tag).is_none());
    assert!(changed(&mut world, admin, false).is_empty());
}

/// Base 2.1 §5.1.25.1.5: an event that is not enabled is not reported; the list is still updated.
#[test]
fn events_that_are_not_enabled_are_not_reported() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let tag = request(&mut world, admin);
    let usual = namespaces(&world);
    update(&mut world, usual);
    assert!(world.take_reply(0, tag).is_none());
    assert_eq!(changed(&mut world, admin, false), [4, 5]);
}

/// Base 2.1 §5.1.2: an event waits for a request.
#[test]
fn an_event_stays_pending_until_a_request_arrives() {
    let mut world = World::new();
    let admin = world.enabled(0);
    configure(
        &mut world,
        admin,
        AsyncEventConfiguration::new().with_namespace_attribute(true),
    );
    let usual = namespaces(&world);
    update(&mut world, usual);
    let reply = world.command(admin, Sqe::async_event_request());
    let event = AsyncEvent::from_bits(reply.dw0());
    assert_eq!(event, AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED);
    assert_eq!(world.nodes[0].core.counters().events.get(), 1);
}

/// Base 2.1 §5.1.2.1: the admin queue's core reports an internal error on any core.
#[test]
fn internal_error_on_any_core_raises_an_event() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let far = world.io_queue(1, admin, 1);
    let tag = request(&mut world, admin);
    world.fault.arm(FAIL_INTERNAL, true);
    world
        .read(far, Sqe::read(RAM, 0, 0), 512)
        .is(Status::INTERNAL_ERROR);
    assert_event(&mut world, admin, tag, AsyncEvent::TRANSIENT_INTERNAL_ERROR);
    let again = request(&mut world, admin);
    world
        .read(far, Sqe::read(RAM, 0, 0), 512)
        .is(Status::INTERNAL_ERROR);
    world.settle();
    assert!(
        world.take_reply(0, again).is_none(),
        "masked until the error log is read"
    );
    world.log(admin, LogPageId::ERROR_INFORMATION, 64);
    world
        .read(far, Sqe::read(RAM, 0, 0), 512)
        .is(Status::INTERNAL_ERROR);
    assert_event(
        &mut world,
        admin,
        again,
        AsyncEvent::TRANSIENT_INTERNAL_ERROR,
    );
}

/// Base 2.1 §5.1.2.1 and §5.1.25.1.3: a health event is raised when its condition begins, and not
/// repeatedly.
#[test]
fn health_events_are_edge_triggered() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let health = AsyncEventConfiguration::new()
        .with_temperature(true)
        .with_spare(true);
    configure(&mut world, admin, health);
    let first = request(&mut world, admin);
    let second = request(&mut world, admin);
    world.ram.set_temperature(342);
    world.advance(Nanos::from_secs(10));
    assert!(world.take_reply(0, first).is_none());
    world.ram.set_temperature(343);
    world.advance(Nanos::from_secs(10));
    assert_event(&mut world, admin, first, AsyncEvent::TEMPERATURE_THRESHOLD);
    world.log(admin, LogPageId::SMART_HEALTH, 512);
    world.advance(Nanos::from_secs(10));
    assert!(
        world.take_reply(0, second).is_none(),
        "still as hot as before"
    );
    world.ram.set_spare(9);
    world.advance(Nanos::from_secs(10));
    assert_event(&mut world, admin, second, AsyncEvent::SPARE_BELOW_THRESHOLD);
}

/// Base 2.1 §5.1.25.1.3: a threshold below the temperature raises an event immediately.
#[test]
fn temperature_threshold_is_checked_when_set() {
    let mut world = World::new();
    let admin = world.enabled(0);
    configure(
        &mut world,
        admin,
        AsyncEventConfiguration::new().with_temperature(true),
    );
    let tag = request(&mut world, admin);
    world.ram.set_temperature(300);
    let threshold = TemperatureThreshold::new().with_tmpth(299).into_bits();
    world
        .set_feature(admin, FeatureId::TEMPERATURE_THRESHOLD, threshold)
        .ok();
    assert_event(&mut world, admin, tag, AsyncEvent::TEMPERATURE_THRESHOLD);
}

/// A reset completes event requests as aborted, so that the host's slots are free again.
#[test]
fn reset_aborts_pending_event_requests() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let tags = [request(&mut world, admin), request(&mut world, admin)];
    world.set_cc(admin, Cc::new());
    for tag in tags {
        world.wait(admin, tag).is(Status::ABORT_REQUESTED);
    }
    world.set_cc(admin, Cc::enabled_nvm());
    for _ in 0..4 {
        request(&mut world, admin);
    }
}

/// The end of a connection ends its event requests.
#[test]
fn closed_connection_receives_no_events() {
    let mut world = World::new();
    let admin = world.enabled(0);
    configure(
        &mut world,
        admin,
        AsyncEventConfiguration::new().with_namespace_attribute(true),
    );
    let tag = request(&mut world, admin);
    world.close(admin);
    let usual = namespaces(&world);
    update(&mut world, usual);
    assert!(world.take_reply(0, tag).is_none());
}

/// Base 2.1 §5.1.2.1, Discovery Log Page Change: reported to hosts whose log changed.
#[test]
fn discovery_changes_are_reported_to_affected_hosts() {
    let mut world = World::new();
    let host = world.enabled_by(0, &discovery_call());
    let stranger = crate::harness::ConnectOptions {
        host: crate::harness::STRANGER,
        ..discovery_call()
    };
    let stranger = world.enabled_by(1, &stranger);
    let configuration = AsyncEventConfiguration::new().with_discovery_log(true);
    configure(&mut world, host, configuration);
    configure(&mut world, stranger, configuration);
    let host_tag = request(&mut world, host);
    let stranger_tag = request(&mut world, stranger);
    let closed = crate::harness::CLOSED_SUBSYSTEM;
    world.target.remove_subsystem(closed).expect("it is there");
    world.settle();
    assert_event(
        &mut world,
        host,
        host_tag,
        AsyncEvent::DISCOVERY_LOG_CHANGED,
    );
    assert!(
        world.take_reply(1, stranger_tag).is_none(),
        "it never saw the subsystem"
    );
    world
        .target
        .remove_subsystem(SUBSYSTEM)
        .expect("it is there");
    world.settle();
    assert_event(
        &mut world,
        stranger,
        stranger_tag,
        AsyncEvent::DISCOVERY_LOG_CHANGED,
    );
}
