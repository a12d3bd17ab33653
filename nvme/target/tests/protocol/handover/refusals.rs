//! States that a target refuses: another configuration, and records that are invalid or contradict
//! each other. A refused state has no effect.

use nvme_handover::{EventRecord, EventStateRecord, NoticeRecord, ReservationRecord, State};
use nvme_target::{MaskedAccess, NamespaceMask, NotQuiet, PortId, TargetConfig, TransportKind};

use super::{export, restore_queues, successor, try_export};
use crate::harness::{
    ConnectOptions, HOST, IO_QUEUES, LIMITS, Link, QUEUE_DEPTH_MAX, World, discovery_call, port,
};

/// A host with an admin queue, two I/O queues, and a discovery controller.
fn scenario() -> (World, State) {
    let mut world = World::new();
    let (admin, _) = world.ready();
    world.io_queue(1, admin, 2);
    world.enabled_by(1, &discovery_call());
    world.settle();
    let state = export(&world);
    (world, state)
}

/// Whether a target has no trace of a state.
fn is_untouched(world: &World) -> bool {
    let snapshot = world.target.snapshot();
    snapshot.controllers.is_empty() && snapshot.queues_per_reactor == [0, 0]
}

/// The reason for which the state is refused after `change`. The target then accepts the state
/// without the change.
#[track_caller]
fn refusal(change: impl FnOnce(&mut State)) -> String {
    let (world, good) = scenario();
    let mut state = good.clone();
    change(&mut state);
    let mut next = successor(&world, |_| {});
    let generation = next.target.snapshot().discovery_generation;
    let checked = next.target.check_handover(&state).expect_err("invalid");
    assert_eq!(next.target.restore(&state), Err(checked.clone()));
    assert!(is_untouched(&next));
    assert_eq!(next.target.snapshot().discovery_generation, generation);
    next.target
        .restore(&good)
        .expect("the state is not used up");
    next.settle();
    let (links, _) = restore_queues(&mut next, &good).expect("valid");
    assert_eq!(links.len(), 4);
    checked.to_string()
}

/// The reason for which a target with another configuration refuses the state.
#[track_caller]
fn refusal_by(change: impl FnOnce(&mut TargetConfig)) -> String {
    let (world, state) = scenario();
    let next = successor(&world, change);
    let refused = next.target.restore(&state).expect_err("it differs");
    assert!(is_untouched(&next));
    refused.to_string()
}

const TEST: &str = "subsystem nqn.2026-11.org.windlass:test";
const CHANGE_LATER: &str = "differ from what its hosts know: hand over first, then change";

#[test]
fn another_configuration_is_refused() {
    let of_test = |what| format!("{TEST}: {what} {CHANGE_LATER}");
    assert_eq!(
        refusal_by(|config| config.subsystems[0].serial = "W-0002".to_owned()),
        of_test("serial or model number")
    );
    assert_eq!(
        refusal_by(|config| config.subsystems[0].model = "Other".to_owned()),
        of_test("serial or model number")
    );
    assert_eq!(
        refusal_by(|config| config.subsystems[0].namespaces.truncate(3)),
        of_test("namespaces")
    );
    assert_eq!(
        refusal_by(|config| config.subsystems[0].namespaces[0].uuid[0] ^= 1),
        of_test("namespaces")
    );
    assert_eq!(
        refusal_by(|config| {
            config.subsystems[0].masks = vec![NamespaceMask {
                hosts: vec![HOST.to_owned()],
                namespaces: [(1, MaskedAccess::ReadOnly)].into(),
            }];
        }),
        of_test("masks")
    );
    assert_eq!(
        refusal_by(|config| config.subsystems[0].ports.truncate(1)),
        of_test("listeners")
    );
    assert_eq!(
        refusal_by(|config| {
            config.subsystems.remove(0);
        }),
        of_test("all properties")
    );
    assert_eq!(
        refusal_by(|config| {
            let mut added = config.subsystems[0].clone();
            added.nqn += ":added";
            config.subsystems.push(added);
        }),
        format!("{TEST}:added: all properties {CHANGE_LATER}")
    );
    assert_eq!(
        refusal_by(|config| config.ports.push(port(PortId(3), "192.0.2.9", false))),
        "the listeners differ from those that hosts know: hand over first, then change them"
    );
    assert_eq!(
        refusal_by(|config| config.ports[0].transport = TransportKind::Rdma),
        "the listeners differ from those that hosts know: hand over first, then change them"
    );
    assert_eq!(
        refusal_by(|config| config.limits.transfer_max /= 2),
        "the maximum transfer is 65536 bytes, but hosts know 131072: configure as much"
    );
    assert_eq!(
        refusal_by(|config| {
            config.subsystems[0].allow_any_host = false;
            config.subsystems[0].hosts = vec!["nqn.2026-11.org.windlass:other".to_owned()];
        }),
        "controller 1: its host may not connect to its subsystem"
    );
    assert_eq!(
        refusal_by(|config| config.subsystems[0].controller_ids = 100..=200),
        "controller 1: its identifier is not one of its subsystem"
    );
}

/// What a new version or an administrator may change without harm to hosts: they read it again, or
/// it applies to new connections.
#[test]
fn harmless_differences_are_accepted() {
    let (world, state) = scenario();
    let mut next = successor(&world, |config| {
        config.subsystems[0].firmware = "9.9".to_owned();
        config.subsystems[0].io_queues_max = 1;
        config.subsystems[0].queue_depth_max = 16;
        config.limits.transfer_max *= 2;
        config.limits.controllers_max = 1;
        config.limits.queues_max = 2;
    });
    next.target.restore(&state).expect("harmless");
    let (links, _) = restore_queues(&mut next, &state).expect("more than the limits");
    assert_eq!(links.len(), 4);
    let refused = next.try_connect(0, &ConnectOptions::default());
    assert!(refused.is_err(), "the limits hold for new controllers");
}

#[test]
fn invalid_controllers_are_refused() {
    let of = |change: fn(&mut nvme_handover::ControllerRecord)| {
        refusal(|state| change(&mut state.controllers[0]))
    };
    let mut rows = vec![
        (
            of(|it| it.host_nqn = "x".repeat(300)),
            "an invalid host NQN",
        ),
        (
            of(|it| it.queue_depth_max = 1),
            "an invalid limit of the queue size",
        ),
        (
            of(|it| it.queue_depth_max = u16::MAX),
            "an invalid limit of the queue size",
        ),
        (
            of(|it| it.io_queues_granted = u16::MAX),
            "too many I/O queues",
        ),
        (
            of(|it| it.in_capsule_max_bytes = u32::MAX),
            "too much in-capsule data",
        ),
        (of(|it| it.cc = 0), "a ready controller that is not enabled"),
        (
            of(|it| it.changed_namespaces = vec![0]),
            "a changed namespace with an invalid identifier",
        ),
        (
            of(|it| it.features.keep_alive_ms = u32::MAX),
            "a Keep Alive Timeout above the maximum",
        ),
        (
            of(|it| it.features.host_behavior.0.truncate(511)),
            "Host Behavior Support data of a wrong size",
        ),
        (
            of(|it| it.features.error_recovery = vec![0; 1 << 16]),
            "features of too many namespaces",
        ),
        (
            of(|it| it.event_requests = vec![1; 5]),
            "too many event requests",
        ),
        (
            of(|it| it.errors.count = 3),
            "an error log whose count does not match its entries",
        ),
        (
            of(|it| {
                it.errors.count = 1;
                it.errors.entries = vec![nvme_handover::Bytes(vec![0; 63])];
            }),
            "an error log entry of a wrong size",
        ),
        (
            of(|it| it.subsystem_nqn += "x"),
            "its subsystem does not exist",
        ),
    ];
    let unknown = EventRecord {
        event: 0xFFFF,
        state: EventStateRecord::Pending,
    };
    rows.push((
        refusal(|state| state.controllers[0].events = vec![unknown]),
        "an unknown event",
    ));
    let notice = |nsid| NoticeRecord {
        number: 1,
        nsid,
        kind: 1,
    };
    rows.push((
        refusal(|state| state.controllers[0].reservation_log.waiting = vec![notice(0)]),
        "a reservation notification of an invalid namespace",
    ));
    rows.push((
        refusal(|state| state.controllers[0].reservation_log.waiting = vec![notice(1); 1000]),
        "too many reservation notifications",
    ));
    for (found, problem) in rows {
        assert_eq!(found, format!("controller 1: {problem}"));
    }
    assert_eq!(
        refusal(|state| state.controllers.push(state.controllers[0].clone())),
        "controller 1: its identifier is used twice"
    );
}

#[test]
fn invalid_queues_are_refused() {
    let of = |change: fn(&mut nvme_handover::QueueRecord)| {
        refusal(|state| {
            let io = state.queues.iter_mut().find(|it| it.qid == 1);
            change(io.expect("an I/O queue"));
        })
    };
    for (found, problem) in [
        (of(|it| it.depth = 1), "its size is invalid"),
        (
            of(|it| it.depth = QUEUE_DEPTH_MAX + 1),
            "its size is invalid",
        ),
        (of(|it| it.sq_head = it.depth), "its head is invalid"),
        (
            of(|it| {
                it.flow_control = false;
                it.sq_head = 1;
            }),
            "its head is invalid",
        ),
        (
            of(|it| it.in_capsule_max_bytes = u32::MAX),
            "its commands may carry too much data",
        ),
    ] {
        assert_eq!(found, format!("queue 1 of controller 1: {problem}"));
    }
    assert_eq!(
        of(|it| it.qid = 2),
        "queue 2 of controller 1: its identifier is used twice"
    );
    assert_eq!(
        of(|it| it.qid = IO_QUEUES + 1),
        "queue 5 of controller 1: it is not one of those that were granted"
    );
    assert_eq!(
        of(|it| it.controller_id = 9),
        "queue 1 of controller 9: its controller does not exist"
    );
    assert_eq!(
        of(|it| it.reactor = 2),
        "reactor 2 has queues, but there are only 2: configure as many"
    );
    assert_eq!(
        of(|it| it.controller_id = 2),
        "queue 1 of controller 2: it is not one of those that were granted"
    );
    let without_admin = refusal(|state| {
        state
            .queues
            .retain(|it| (it.controller_id, it.qid) != (1, 0));
    });
    assert_eq!(without_admin, "controller 1: it has no admin queue");
}

#[test]
fn invalid_shared_records_are_refused() {
    let missing = ReservationRecord {
        device: "none".to_owned(),
        ..ReservationRecord::default()
    };
    assert_eq!(
        refusal(|state| state.target.reservations.push(missing)),
        "device none: its reservations cannot be continued: the device does not exist"
    );
    let device = World::new().target.devices()[0].1.name().to_owned();
    let damaged = |identity| ReservationRecord {
        device: device.clone(),
        identity,
        ..ReservationRecord::default()
    };
    let found = refusal(|state| state.target.reservations.push(damaged([0; 16])));
    assert!(
        found.starts_with(&format!(
            "device {device}: its reservations cannot be continued: "
        )),
        "{found}"
    );
    let found = refusal(|state| state.target.reservations.push(damaged([7; 16])));
    assert!(
        found.ends_with("the device has another identity"),
        "{found}"
    );
    assert_eq!(
        refusal(|state| {
            let again = state.target.subsystems[0].clone();
            state.target.subsystems.push(again);
        }),
        format!("{TEST}: two records {CHANGE_LATER}")
    );
    assert_eq!(
        refusal(|state| state.cores[1].reactor = 7),
        "reactor 7 has queues, but there are only 2: configure as many"
    );
}

/// Queues that do not fit, or come in the wrong order, are refused one by one, without effect.
#[test]
fn queues_that_cannot_be_added_are_refused() {
    let (world, state) = scenario();
    let mut next = successor(&world, |_| {});
    next.target.restore(&state).expect("valid");
    let mut only_io = state.clone();
    only_io.queues.retain(|it| it.qid == 1);
    let refused = restore_queues(&mut next, &only_io).expect_err("no controller yet");
    assert_eq!(
        refused.to_string(),
        "queue 1 of controller 1: its controller does not exist"
    );
    assert!(is_untouched(&next));
    let (links, _) = restore_queues(&mut next, &state).expect("in order");
    assert_eq!(links.len(), 4);
    let refused = restore_queues(&mut next, &state).expect_err("twice");
    assert_eq!(
        refused.to_string(),
        "queue 0 of controller 1: its controller exists already"
    );
    let refused = restore_queues(&mut next, &only_io).expect_err("twice");
    assert_eq!(
        refused.to_string(),
        "queue 1 of controller 1: it exists already"
    );
    assert_eq!(next.target.snapshot().queues_per_reactor, [2, 2]);

    let target = successor(&world, |_| {}).target;
    let few = nvme_target::CoreLimits {
        queues_max: 1,
        ..LIMITS
    };
    let mut small = world.beside(target, few);
    small.target.restore(&state).expect("valid");
    let refused = restore_queues(&mut small, &state).expect_err("one place for two");
    assert_eq!(
        refused.to_string(),
        "queue 1 of controller 1: there is no free queue"
    );
}

/// More event requests than the connection has slots for.
#[test]
fn a_controller_without_slots_for_its_event_requests_is_refused() {
    let (world, mut state) = scenario();
    state.controllers[0].event_requests = vec![1, 2];
    let mut next = successor(&world, |_| {});
    next.target.restore(&state).expect("valid");
    let record = state.queues.iter().find(|it| it.qid == 0);
    let record = record.expect("an admin queue").clone();
    let now = next.now;
    let node = &mut next.nodes[record.reactor as usize];
    let connection = nvme_target::RestoredConnection {
        transport: node.tcp,
        connection: 1,
    };
    let mut slots = [5].into_iter();
    let restored = node
        .core
        .restore_queue(&state, &record, connection, &mut || slots.next(), now);
    assert_eq!(
        restored.expect_err("one slot for two").to_string(),
        "queue 0 of controller 1: more event requests than its queue has entries"
    );
    let connection = nvme_target::RestoredConnection {
        transport: node.rdma,
        connection: 1,
    };
    let restored = node
        .core
        .restore_queue(&state, &record, connection, &mut || None, now);
    assert_eq!(
        restored.expect_err("RDMA").to_string(),
        "queue 0 of controller 1: its connection is of another transport"
    );
    assert!(is_untouched(&next));
}

/// Controllers that change their state or end delay the export.
#[test]
fn controllers_that_change_delay_the_export() {
    let mut world = World::new();
    let (admin, io): (Link, Link) = world.ready();
    world
        .target
        .end_associations(crate::harness::SUBSYSTEM)
        .expect("it exists");
    let refused = try_export(&world).expect_err("it ends");
    assert!(
        matches!(refused, NotQuiet::Controller { controller_id, .. }
            if controller_id == admin.info.controller_id)
            || refused == NotQuiet::Change,
        "{refused}"
    );
    world.settle();
    assert!(try_export(&world).is_err(), "the transport has to close");
    world.closes(0);
    world.close(io);
    world.close(admin);
    world.settle();
    assert!(export(&world).controllers.is_empty());
}

/// The index of a device belongs to one process.
#[test]
fn the_state_names_devices_not_indexes() {
    let (world, state) = scenario();
    let names: Vec<_> = state.cores[0].devices.iter().map(|it| &it.device).collect();
    let devices = world.target.devices();
    let expected: Vec<_> = devices.iter().map(|(_, it)| it.name()).collect();
    assert_eq!(names, expected);
}
