//! Hand-over to a new target (`ARCHITECTURE.md` §9.1): a scenario is exported in its middle, restored
//! in a new target with the same configuration, and continued by the same hosts.

mod refusals;

use std::collections::BTreeMap;

use nvme_handover::State;
use nvme_spec::command::{Cns, CopyRange, FeatureId, FeatureSelect, LogPageId};
use nvme_spec::event::AsyncEvent;
use nvme_spec::fabrics::PropertySize;
use nvme_spec::features::{
    AsyncEventConfiguration, CopyFormatsEnabled, ErrorRecovery, HostBehavior, Timestamp,
};
use nvme_spec::log::DiscoveryHeader;
use nvme_spec::registers::{Cc, Register, ShutdownNotification, ShutdownStatus};
use nvme_spec::{Sqe, Status};
use nvme_target::{
    AnaPath, AnaState, CloseReason, HandoverError, MaskedAccess, NamespaceMask, NotQuiet,
    RestoredConnection, Target, TargetConfig,
};
use reactors::Nanos;
use zerocopy::{FromBytes, IntoBytes};

use crate::harness::{
    CACHED, CLOSED_SUBSYSTEM, ConnectOptions, HOLD, HOST, IO_QUEUES, LIMITS, Link, PLAIN, RAM,
    READ_ONLY, SUBSYSTEM, TCP_PORT, World, discovery_call, namespace,
};

/// A world after a hand-over.
pub(crate) struct Continued {
    pub(crate) world: World,
    /// The queues, in the order of the links that were passed.
    pub(crate) links: Vec<Link>,
    /// The tags of the outstanding event requests, oldest first, by controller.
    pub(crate) events: BTreeMap<u16, Vec<u64>>,
}

/// The state of a quiet world.
pub(crate) fn try_export(world: &World) -> Result<State, NotQuiet> {
    let mut state = State {
        target: world.target.export(world.now)?,
        ..State::default()
    };
    for node in &world.nodes {
        node.core.export(world.now, &mut state)?;
    }
    Ok(state)
}

/// The state of a quiet world.
#[track_caller]
pub(crate) fn export(world: &World) -> State {
    try_export(world).expect("a quiet target")
}

/// A new target without controllers, over the same devices.
pub(crate) fn successor(world: &World, change: impl FnOnce(&mut TargetConfig)) -> World {
    let mut config = world.target.configuration();
    change(&mut config);
    let target = Target::new(config, world.nodes.len(), world.devices());
    let mut next = world.beside(target.expect("a valid configuration"), LIMITS);
    next.now = world.now;
    next
}

/// Restored queues by controller and queue identifier, and the tags of the outstanding event requests
/// of each controller.
type Restored = (BTreeMap<(u16, u16), Link>, BTreeMap<u16, Vec<u64>>);

/// Restores all queues of a state: admin queues first.
pub(crate) fn restore_queues(world: &mut World, state: &State) -> Result<Restored, HandoverError> {
    let (mut links, mut events) = (BTreeMap::new(), BTreeMap::new());
    let mut queues = state.queues.clone();
    queues.sort_by_key(|it| it.qid > 0);
    for record in &queues {
        let tags: Vec<u64> = (0..8).map(|_| world.tag()).collect();
        let mut unused = tags.iter().copied();
        let now = world.now;
        let node = &mut world.nodes[record.reactor as usize];
        let connection = RestoredConnection {
            transport: node.tcp,
            connection: 2000 + u32::from(record.qid),
        };
        let (queue, info) =
            node.core
                .restore_queue(state, record, connection, &mut || unused.next(), now)?;
        let used = tags.len() - unused.len();
        events
            .entry(record.controller_id)
            .or_insert_with(|| tags[..used].to_vec());
        let node = record.reactor as usize;
        let link = Link { node, queue, info };
        links.insert((record.controller_id, record.qid), link);
    }
    Ok((links, events))
}

/// Hands a world over. `pause` passes between export and restoration.
#[track_caller]
pub(crate) fn hand_over(world: World, links: &[Link], pause: Nanos) -> Continued {
    hand_over_to(world, links, pause, |_| {})
}

/// The same; `prepare` gets the new target before the state.
#[track_caller]
pub(crate) fn hand_over_to(
    mut world: World,
    links: &[Link],
    pause: Nanos,
    prepare: impl FnOnce(&World),
) -> Continued {
    world.settle();
    let state = export(&world);
    let mut next = successor(&world, |_| {});
    drop(world);
    prepare(&next);
    next.now += pause;
    next.target.restore(&state).expect("the same configuration");
    for (node, record) in next.nodes.iter_mut().zip(&state.cores) {
        node.core.restore_counters(record);
    }
    let restored = restore_queues(&mut next, &state);
    let (restored, events) = restored.expect("a state that was checked");
    assert_eq!(restored.len(), links.len(), "every queue is continued");
    let continued = |link: &Link| {
        let continued = restored[&(link.info.controller_id, link.info.qid)];
        assert_eq!(format!("{:?}", continued.info), format!("{:?}", link.info));
        continued
    };
    let links = links.iter().map(continued).collect();
    next.settle();
    Continued {
        world: next,
        links,
        events,
    }
}

/// Everything that a host can read from an I/O controller without changing it.
fn observed(world: &mut World, admin: Link) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for register in [Register::CAP, Register::VS, Register::CC, Register::CSTS] {
        let size = match register {
            Register::CAP => PropertySize::BYTES_8,
            _ => PropertySize::BYTES_4,
        };
        let reply = world.command(admin, Sqe::get_property(register.0, size));
        assert!(reply.status().is_success());
        let value = reply.cqe.result().to_le_bytes().to_vec();
        all.push((format!("property {:#x}", register.0), value));
    }
    for fid in [1, 2, 4, 5, 6, 7, 0x0a, 0x0b, 0x0e, 0x0f, 0x16, 0x81, 0x82] {
        let nsid = if matches!(fid, 5 | 0x82) { RAM } else { 0 };
        let sqe = Sqe::get_feature(FeatureId(fid), FeatureSelect::CURRENT, nsid, 0);
        let reply = match fid {
            0x0e => world.read(admin, sqe, 8),
            0x16 => world.read(admin, sqe, 512),
            0x81 => {
                let extended = Sqe::get_feature(FeatureId(fid), FeatureSelect::CURRENT, 0, 1);
                world.read(admin, extended, 16)
            }
            _ => world.command(admin, sqe),
        };
        assert!(reply.status().is_success(), "{fid:#x}: {}", reply.status());
        let value = [reply.dw0().to_le_bytes().to_vec(), reply.data].concat();
        all.push((format!("feature {fid:#x}"), value));
    }
    let logs = [
        (LogPageId::ERROR_INFORMATION, 4096),
        (LogPageId::SMART_HEALTH, 512),
        (LogPageId::CHANGED_ATTACHED_NAMESPACES, 4096),
        (LogPageId::COMMANDS_SUPPORTED_AND_EFFECTS, 4096),
        (LogPageId::ANA, 64),
    ];
    for (lid, bytes) in logs {
        let data = world.log_page(admin, lid, bytes, true).ok();
        all.push((format!("log {:#x}", lid.0), data));
    }
    for (cns, nsid) in [
        (Cns::NAMESPACE, RAM),
        (Cns::CONTROLLER, 0),
        (Cns::ACTIVE_NAMESPACE_LIST, 0),
    ] {
        let data = world.read(admin, Sqe::identify_structure(cns, nsid), 4096);
        all.push((format!("identify {:#x}", cns.0), data.ok()));
    }
    all
}

#[track_caller]
fn assert_same(before: &[(String, Vec<u8>)], after: &[(String, Vec<u8>)]) {
    for ((name, before), (_, after)) in before.iter().zip(after) {
        assert_eq!(before, after, "{name}");
    }
    assert_eq!(before.len(), after.len());
}

/// Base 2.1 §5.1.12.3.1: a host that has read a part of the discovery log reads it again if its order
/// is another one.
#[test]
fn discovery_log_in_another_order_has_another_generation() {
    let mut world = World::new();
    let mut added = world.target.configuration().subsystems[0].clone();
    added.nqn += ":added";
    world.target.add_subsystem(added).expect("a new name");
    world.settle();
    let state = export(&world);
    let generation_of = |change: fn(&mut TargetConfig)| {
        let next = successor(&world, change);
        next.target.restore(&state).expect("the same subsystems");
        next.target.snapshot().discovery_generation
    };
    let known = world.target.snapshot().discovery_generation;
    assert_eq!(generation_of(|_| {}), known);
    assert_eq!(generation_of(|it| it.subsystems.reverse()), known + 1);
}

fn configure_events(world: &mut World, admin: Link, events: AsyncEventConfiguration) {
    let fid = FeatureId::ASYNC_EVENT_CONFIGURATION;
    world.set_feature(admin, fid, events.into_bits()).ok();
}

fn request_event(world: &mut World, admin: Link, cid: u16) -> u64 {
    let sqe = Sqe::async_event_request().with_cid(cid);
    world.start(admin, sqe, &[]).expect_err("held")
}

fn namespace_events() -> AsyncEventConfiguration {
    AsyncEventConfiguration::new().with_namespace_attribute(true)
}

/// Removes all but the first `count` namespaces from the subsystem, or adds them again.
fn resize(world: &mut World, count: usize) {
    let devices = world.devices();
    let mut all = vec![
        namespace(RAM, 0, &*devices[0]),
        namespace(CACHED, 1, &*devices[1]),
        namespace(READ_ONLY, 2, &*devices[2]),
        namespace(PLAIN, 3, &*devices[3]),
    ];
    all.truncate(count);
    world
        .target
        .update_namespaces(SUBSYSTEM, all)
        .expect("a valid change");
    world.settle();
}

const PAUSE: Nanos = Nanos::from_millis(80);

/// Sets every feature that can be set to a value that is not its default.
fn set_features(world: &mut World, admin: Link) {
    for (fid, nsid, value) in [
        (FeatureId::ARBITRATION, 0, 0x0102_0304),
        (FeatureId::TEMPERATURE_THRESHOLD, 0, 399),
        (FeatureId::VOLATILE_WRITE_CACHE, 0, 0),
        (FeatureId::WRITE_ATOMICITY, 0, 1),
        (FeatureId::KEEP_ALIVE_TIMER, 0, 60_000),
        (FeatureId::NUMBER_OF_QUEUES, 0, 0x0001_0001),
        (
            FeatureId::ERROR_RECOVERY,
            RAM,
            ErrorRecovery::new().with_tler(77).into_bits(),
        ),
        (FeatureId::RESERVATION_NOTIFICATION_MASK, RAM, 0b0110),
    ] {
        let reply = world.command(admin, Sqe::set_feature(fid, nsid, value));
        assert!(reply.status().is_success(), "{fid}: {}", reply.status());
    }
    let timestamp = Timestamp::new(1_700_000_000_000, Default::default());
    let sqe = Sqe::set_feature(FeatureId::TIMESTAMP, 0, 0);
    world.write(admin, sqe, timestamp.as_bytes()).ok();
    let mut behavior = HostBehavior::default();
    behavior.acre = 1;
    behavior.cdfe = CopyFormatsEnabled::new().with_format_2(true);
    let sqe = Sqe::set_feature(FeatureId::HOST_BEHAVIOR, 0, 0);
    world.write(admin, sqe, behavior.as_bytes()).ok();
}

/// A host continues: what it reads, its heads, its data and its counters are the same.
#[test]
fn a_host_continues_in_a_new_target() {
    let mut world = World::new();
    let admin = world.enabled(0);
    set_features(&mut world, admin);
    let (io, far) = (world.io_queue(0, admin, 1), world.io_queue(1, admin, 2));
    configure_events(&mut world, admin, namespace_events());
    let outstanding = [0x700, 0x701].map(|cid| request_event(&mut world, admin, cid));
    world
        .write(io, Sqe::write(RAM, 5, 0, false), &[0xA5; 512])
        .ok();
    world.read_blocks(far, RAM, 5, 1);
    let error = world.read(far, Sqe::read(RAM, u64::MAX, 0), 512).status();
    assert_eq!(error, Status::LBA_OUT_OF_RANGE.with_dnr());
    let before = observed(&mut world, admin);
    let head = world.command(admin, Sqe::keep_alive()).cqe.sqhd.get();
    let heads = [io, far].map(|link| world.command(link, Sqe::flush(PLAIN)).cqe.sqhd.get());
    let snapshot = world.target.snapshot();
    let counters: Vec<u64> = (world.nodes.iter())
        .map(|node| node.core.counters().commands.get())
        .collect();

    let links = [admin, io, far];
    let Continued {
        mut world,
        links,
        events,
    } = hand_over(world, &links, Nanos::ZERO);
    let [admin, io, far] = links[..] else {
        panic!("three queues")
    };
    for (node, counter) in world.nodes.iter().zip(counters) {
        assert_eq!(node.core.counters().commands.get(), counter);
    }
    assert_eq!(world.target.snapshot(), snapshot);
    assert_eq!(
        world.command(admin, Sqe::keep_alive()).cqe.sqhd.get(),
        (head + 1) % 32
    );
    for (link, head) in [io, far].into_iter().zip(heads) {
        let reply = world.command(link, Sqe::flush(PLAIN));
        assert_eq!(reply.cqe.sqhd.get(), (head + 1) % 32);
    }
    assert_same(&before, &observed(&mut world, admin));
    assert_eq!(world.read_blocks(io, RAM, 5, 1), [0xA5; 512]);
    let copy = Sqe::copy_from_namespaces(PLAIN, 0, 0);
    let source = CopyRange::of_namespace(RAM, 5, 0);
    world.write(io, copy, source.as_bytes()).ok();
    assert_eq!(world.read_blocks(io, PLAIN, 0, 1), [0xA5; 512]);
    world
        .write(far, Sqe::write(RAM, 6, 0, false), &[0x5A; 512])
        .ok();
    assert_eq!(world.read_blocks(io, RAM, 6, 1), [0x5A; 512]);

    let tags = &events[&admin.info.controller_id];
    assert_eq!(tags.len(), outstanding.len());
    assert!(world.take_reply(0, tags[0]).is_none(), "nothing happened");
    resize(&mut world, 3);
    let reply = world.wait(admin, tags[0]);
    assert_eq!(reply.cqe.cid.get(), 0x700, "the oldest request");
    assert_eq!(
        AsyncEvent::from_bits(reply.dw0()),
        AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED
    );
    world.command(admin, Sqe::abort_command(0, 0x701)).ok();
    world.wait(admin, tags[1]).is(Status::ABORT_REQUESTED);

    let third = ConnectOptions {
        cntlid: admin.info.controller_id,
        qid: 3,
        ..ConnectOptions::default()
    };
    assert!(
        world.try_connect(0, &third).is_err(),
        "only two queues were granted"
    );
    let again = ConnectOptions { qid: 1, ..third };
    assert!(world.try_connect(0, &again).is_err(), "it exists");
    for link in [io, far, admin] {
        world.close(link);
    }
    world.settle();
    assert!(world.target.snapshot().controllers.is_empty());
}

/// Base 2.1 §5.1.2: a pending event is reported to the next request, and one that was reported stays
/// masked until its log page is read.
#[test]
fn pending_and_masked_events_are_continued() {
    let mut world = World::new();
    let (pending, masked) = (world.enabled(0), world.enabled(1));
    for admin in [pending, masked] {
        configure_events(&mut world, admin, namespace_events());
    }
    let tag = request_event(&mut world, masked, 1);
    resize(&mut world, 3);
    world.wait(masked, tag).ok();
    let Continued {
        mut world, links, ..
    } = hand_over(world, &[pending, masked], PAUSE);
    let (pending, masked) = (links[0], links[1]);
    world.command(pending, Sqe::async_event_request()).ok();
    let tag = request_event(&mut world, masked, 3);
    resize(&mut world, 2);
    assert!(world.take_reply(1, tag).is_none(), "it is masked");
    let lid = LogPageId::CHANGED_ATTACHED_NAMESPACES;
    let list = world.log(masked, lid, 4096);
    assert_eq!(list[..8], [4, 0, 0, 0, 5, 0, 0, 0], "both changes");
    resize(&mut world, 3);
    world.wait(masked, tag).ok();
}

/// Base 2.1 §3.9: the keep-alive timer continues after the pause, in which the host could not be
/// heard.
#[test]
fn the_keep_alive_timer_stands_still_during_the_pause() {
    let host = ConnectOptions {
        kato_ms: 5000,
        ..ConnectOptions::default()
    };
    let mut world = World::new();
    let admin = world.enabled_by(0, &host);
    world.advance(Nanos::from_secs(5));
    world.advance(Nanos::from_secs(3));
    let pause = Nanos::from_secs(60);
    let Continued { mut world, .. } = hand_over(world, &[admin], pause);
    world.advance(Nanos::from_millis(1900));
    assert_eq!(world.close_reasons(0), []);
    world.advance(Nanos::from_millis(200));
    assert_eq!(world.close_reasons(0), [CloseReason::KeepAliveExpired]);
}

/// Base 2.1 §5.1.25.1.7: the timestamp goes on during the pause.
#[test]
fn the_timestamp_continues_during_the_pause() {
    let mut world = World::new();
    let admin = world.enabled(0);
    set_features(&mut world, admin);
    world.advance(Nanos::from_millis(10));
    let Continued {
        mut world, links, ..
    } = hand_over(world, &[admin], PAUSE);
    let sqe = Sqe::get_feature(FeatureId::TIMESTAMP, FeatureSelect::CURRENT, 0, 0);
    let data = world.read(links[0], sqe, 8).ok();
    let found = Timestamp::read_from_bytes(&data).expect("8 bytes");
    assert_eq!(found.milliseconds(), 1_700_000_000_090);
}

/// Base 2.1 §3.1.4.6, CSTS: disabled, failed and shut-down controllers stay so, and can be enabled
/// or reset.
#[test]
fn controllers_are_continued_in_every_state() {
    let mut world = World::new();
    let disabled = world.connect(0, &ConnectOptions::default());
    let shut_down = world.enabled(0);
    let failed = world.connect(1, &ConnectOptions::default());
    let closing = Cc::enabled_nvm().with_shn(ShutdownNotification::NORMAL);
    world.set_cc(shut_down, closing);
    world.settle();
    world.set_cc(failed, Cc::enabled_nvm().with_mps(9));
    let links = [disabled, shut_down, failed];
    let before = links.map(|link| world.csts(link));
    assert_eq!(before[1].shst(), ShutdownStatus::COMPLETE);
    assert!(before[2].cfs());
    let Continued {
        mut world, links, ..
    } = hand_over(world, &links, PAUSE);
    let after: Vec<_> = links.iter().map(|link| world.csts(*link)).collect();
    assert_eq!(after, before);
    world.set_cc(links[0], Cc::enabled_nvm());
    for link in &links[1..] {
        world.set_cc(*link, Cc::new());
        world.settle();
        world.set_cc(*link, Cc::enabled_nvm());
    }
    for link in links {
        assert!(world.csts(link).rdy());
        world.io_queue(link.node, link, 1);
    }
}

/// The queues of a controller that was shut down refuse commands, as before.
#[test]
fn a_shut_down_controller_admits_no_io_after_a_hand_over() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    let closing = Cc::enabled_nvm().with_shn(ShutdownNotification::NORMAL);
    world.set_cc(admin, closing);
    world.settle();
    let read = |world: &mut World, io| world.read(io, Sqe::read(RAM, 0, 0), 512).status();
    let refused = read(&mut world, io);
    assert!(!refused.is_success());
    let Continued {
        mut world, links, ..
    } = hand_over(world, &[admin, io], PAUSE);
    assert_eq!(read(&mut world, links[1]), refused);
}

/// Base 2.1 §5.1.12.3.1: the generation counter and the event requests of discovery controllers.
#[test]
fn discovery_controllers_are_continued() {
    let mut world = World::new();
    let admin = world.enabled_by(0, &discovery_call());
    let events = AsyncEventConfiguration::new().with_discovery_log(true);
    configure_events(&mut world, admin, events);
    let tag = request_event(&mut world, admin, 9);
    let generation = |world: &mut World, admin| {
        let data = world.log(admin, LogPageId::DISCOVERY, 1024);
        let (header, _) = DiscoveryHeader::read_from_prefix(&data).expect("a header");
        header.genctr.get()
    };
    world
        .target
        .remove_subsystem(CLOSED_SUBSYSTEM)
        .expect("it exists");
    world.wait(admin, tag).ok();
    let before = generation(&mut world, admin);
    request_event(&mut world, admin, 10);
    let Continued {
        mut world,
        links,
        events,
    } = hand_over(world, &[admin], PAUSE);
    let admin = links[0];
    assert_eq!(generation(&mut world, admin), before);
    let tag = events[&admin.info.controller_id][0];
    world.target.remove_subsystem(SUBSYSTEM).expect("it exists");
    assert_eq!(world.wait(admin, tag).cqe.cid.get(), 10);
    assert!(generation(&mut world, admin) > before);
}

/// A new controller gets an identifier that was not used before the hand-over either, so that a late
/// I/O Connect does not match it, and the limits count what was handed over.
#[test]
fn identifiers_and_limits_are_continued() {
    let mut world = World::new();
    let first = world.enabled(0);
    let gone = world.enabled(0);
    world.close(gone);
    world.settle();
    let Continued {
        mut world, links, ..
    } = hand_over(world, &[first], PAUSE);
    let next = world.enabled(0);
    assert_eq!(next.info.controller_id, gone.info.controller_id + 1);
    world.target.limit_controllers(2).expect("a valid limit");
    let refused = world.try_connect(0, &ConnectOptions::default());
    assert!(refused.is_err(), "two of two controllers exist");
    world.close(links[0]);
    world.settle();
    world.connect(0, &ConnectOptions::default());
}

/// Every queue of a full controller is continued, whatever the order of the reactors' records.
#[test]
fn all_queues_of_a_host_are_continued() {
    let mut world = World::new();
    let admin = world.enabled(1);
    let mut links = vec![admin];
    for qid in 1..=IO_QUEUES {
        links.push(world.io_queue(usize::from(qid) % 2, admin, qid));
    }
    let Continued {
        mut world, links, ..
    } = hand_over(world, &links, PAUSE);
    for io in &links[1..] {
        world.read_blocks(*io, RAM, 0, 1);
    }
    let admin = links[0];
    world.set_cc(admin, Cc::new());
    world.settle();
    let reasons = [world.close_reasons(0), world.close_reasons(1)].concat();
    assert_eq!(reasons, [CloseReason::ControllerReset; IO_QUEUES as usize]);
    for io in &links[1..] {
        world.close(*io);
    }
    world.settle();
    world.set_cc(admin, Cc::enabled_nvm());
    assert!(world.csts(admin).rdy());
    world.io_queue(0, admin, 1);
}

/// A target hands over more than once.
#[test]
fn a_state_survives_two_hand_overs() {
    let mut world = World::new();
    let admin = world.enabled(0);
    set_features(&mut world, admin);
    let io = world.io_queue(0, admin, 1);
    let before = observed(&mut world, admin);
    let once = hand_over(world, &[admin, io], Nanos::ZERO);
    let twice = hand_over(once.world, &once.links, Nanos::ZERO);
    let mut world = twice.world;
    assert_same(&before, &observed(&mut world, twice.links[0]));
    world.read_blocks(twice.links[1], RAM, 0, 1);
}

/// Base 2.1 §8.1.1: the new target refuses what the ANA state of the port forbids.
#[test]
fn ana_states_are_continued() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    let path = AnaPath {
        port: TCP_PORT,
        group: 1,
    };
    let states = BTreeMap::from([(path, AnaState::Inaccessible)]);
    let changed = world.target.set_ana_states(SUBSYSTEM, &states);
    world.settle();
    drop(changed.expect("a valid change"));
    let read = |world: &mut World, io| world.read(io, Sqe::read(RAM, 0, 0), 512).status();
    let refused = Status::ANA_INACCESSIBLE;
    assert_eq!(read(&mut world, io), refused);
    let log = |world: &mut World, admin| world.log_page(admin, LogPageId::ANA, 64, true).ok();
    let before = log(&mut world, admin);
    let Continued {
        mut world, links, ..
    } = hand_over(world, &[admin, io], PAUSE);
    assert_eq!(read(&mut world, links[1]), refused);
    assert_eq!(log(&mut world, links[0]), before, "the change count too");
    let states = BTreeMap::from([(path, AnaState::Optimized)]);
    let changed = world.target.set_ana_states(SUBSYSTEM, &states);
    drop(changed.expect("a valid change"));
    world.settle();
    assert!(read(&mut world, links[1]).is_success());
}

/// The new target has the states of its configuration, which does not list those that groups have by
/// default.
#[test]
fn ana_state_that_is_optimized_again_does_not_differ() {
    let mut world = World::new();
    world.ready();
    let path = AnaPath {
        port: TCP_PORT,
        group: 1,
    };
    for state in [AnaState::Inaccessible, AnaState::Optimized] {
        let states = BTreeMap::from([(path, state)]);
        let changed = world.target.set_ana_states(SUBSYSTEM, &states);
        drop(changed.expect("a valid change"));
        world.settle();
    }
    let state = export(&world);
    let configured = successor(&world, |config| config.subsystems[0].ana_states.clear());
    assert_eq!(configured.target.check_handover(&state), Ok(()));
    let lost = successor(&world, |config| {
        config.subsystems[0].ana_states = [(path, AnaState::Inaccessible)].into();
    });
    let refused = lost.target.check_handover(&state).expect_err("it differs");
    assert!(refused.to_string().contains("ANA states"), "{refused}");
}

/// A host with a mask sees the same part of its subsystem.
#[test]
fn masks_are_continued() {
    let mut world = World::with(2, LIMITS, |config| {
        config.subsystems[0].masks = vec![NamespaceMask {
            hosts: vec![HOST.to_owned()],
            namespaces: [(RAM, MaskedAccess::ReadOnly)].into(),
        }];
    });
    let (admin, io) = world.ready();
    let access = |world: &mut World, io| {
        let read = |world: &mut World, nsid| world.read(io, Sqe::read(nsid, 0, 0), 512).status();
        let (seen, hidden) = (read(world, RAM), read(world, PLAIN));
        let written = world.write(io, Sqe::write(RAM, 0, 0, false), &[1; 512]);
        [seen, hidden, written.status()]
    };
    let before = access(&mut world, io);
    assert!(before[0].is_success() && !before[1].is_success() && !before[2].is_success());
    let Continued {
        mut world, links, ..
    } = hand_over(world, &[admin, io], PAUSE);
    assert_eq!(access(&mut world, links[1]), before);
}

/// The old target continues after an export, and after a new one has refused the state.
#[test]
fn an_export_changes_nothing() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    request_event(&mut world, admin, 1);
    world.settle();
    let first = export(&world);
    let second = export(&world);
    assert_eq!(first, second);
    world.read_blocks(io, RAM, 0, 1);
    assert_eq!(world.closes(0), []);
    assert_ne!(export(&world), first, "the read is counted");
}

/// A command whose data has not arrived as a whole, or that a device has, delays the export, which
/// names it.
#[test]
fn unfinished_commands_delay_the_export() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    world.fault.arm(HOLD, true);
    let sqe = Sqe::write(RAM, 0, 0, false).with_cid(0x31);
    let sgl = nvme_spec::sgl::SglDescriptor::transport(512);
    let tag = world
        .start(io, sqe.with_sgl(sgl), &[1; 512])
        .expect_err("it is held");
    let refused = try_export(&world).expect_err("a write is in the device");
    assert!(
        refused
            .to_string()
            .ends_with("queue 1: command 49 (opcode 01h)"),
        "{refused}"
    );
    assert!(matches!(refused, NotQuiet::Commands(_)));
    world.fault.arm(HOLD, false);
    world.fault.release();
    world.wait(io, tag).ok();

    let now = world.now;
    let core = &mut world.nodes[0].core;
    let admitted = core.admit(io.queue, 77, &sqe.with_sgl(sgl), now);
    assert!(matches!(admitted, nvme_target::Admission::Work(_)));
    let refused = try_export(&world).expect_err("its data is missing");
    assert!(
        refused.to_string().ends_with("1 that wait for data"),
        "{refused}"
    );
    world.close(io);
    world.close(admin);
}

/// Orphans, responses that no transport has taken, changes and the end of the target delay or
/// prevent the export.
#[test]
fn a_target_that_is_not_quiet_is_not_exported() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    world.fault.arm(HOLD, true);
    let sqe = Sqe::write(RAM, 0, 0, false).with_cid(1);
    let sgl = nvme_spec::sgl::SglDescriptor::transport(512);
    let started = world.start(io, sqe.with_sgl(sgl), &[1; 512]);
    started.expect_err("it is held");
    world.close(io);
    let refused = try_export(&world).expect_err("an orphan");
    assert_eq!(
        refused.to_string(),
        "devices have 1 requests of connections that have ended"
    );
    world.fault.arm(HOLD, false);
    world.fault.release();
    world.settle();
    export(&world);

    configure_events(&mut world, admin, namespace_events());
    let event = request_event(&mut world, admin, 2);
    let devices = world.devices();
    let fewer = vec![namespace(RAM, 0, &*devices[0])];
    world
        .target
        .update_namespaces(SUBSYSTEM, fewer)
        .expect("valid");
    let refused = try_export(&world).expect_err("cores have not seen the change");
    assert_eq!(refused, NotQuiet::Change);
    world.poll();
    world.poll();
    let refused = try_export(&world).expect_err("an event is not sent");
    assert_eq!(refused, NotQuiet::Messages(1));
    world.wait(admin, event).ok();
    export(&world);

    world.target.drain_subsystem(SUBSYSTEM).expect("it exists");
    world.settle();
    assert_eq!(try_export(&world), Err(NotQuiet::Change));
    world.target.shut_down();
    assert_eq!(try_export(&world), Err(NotQuiet::ShuttingDown));
}
