//! Secure channels: a key connects only its host to its subsystem, and a host that has to use one
//! does not connect without.

use nvme_spec::Status;
use nvme_spec::nqn::DISCOVERY_NQN;
use nvme_target::{CloseReason, SubsystemConfig};

use crate::harness::{
    CLOSED_SUBSYSTEM, ConnectOptions, HOST, LIMITS, STRANGER, SUBSYSTEM, World, channel_of,
    discovery_call,
};

/// The own channel of HOST for SUBSYSTEM.
const OWN: Option<(&str, &str)> = Some((HOST, SUBSYSTEM));

fn own() -> ConnectOptions<'static> {
    ConnectOptions {
        channel: OWN,
        ..ConnectOptions::default()
    }
}

#[track_caller]
fn assert_refused(world: &mut World, call: &ConnectOptions<'_>) {
    let Err(cqe) = world.try_connect(0, call) else {
        panic!("it was accepted");
    };
    assert_eq!(cqe.status(), Status::CONNECT_INVALID_HOST.with_dnr());
}

#[test]
fn a_key_connects_only_its_host_to_its_subsystem() {
    let mut world = World::with(1, LIMITS, |config| {
        config.subsystems[1].allow_any_host = true;
    });
    for call in [
        // Another host with the key of this one, and the reverse.
        ConnectOptions {
            host: STRANGER,
            ..own()
        },
        ConnectOptions {
            channel: Some((STRANGER, SUBSYSTEM)),
            ..own()
        },
        ConnectOptions {
            subsystem: CLOSED_SUBSYSTEM,
            ..own()
        },
        ConnectOptions {
            channel: OWN,
            ..discovery_call()
        },
        ConnectOptions {
            channel: Some((HOST, DISCOVERY_NQN)),
            ..own()
        },
    ] {
        assert_refused(&mut world, &call);
    }
    world.connect(
        0,
        &ConnectOptions {
            channel: Some((HOST, DISCOVERY_NQN)),
            ..discovery_call()
        },
    );
    world.connect(0, &own());
    // Without a requirement, a plain connection too.
    world.connect(0, &ConnectOptions::default());
}

/// Otherwise a stranger could add a plain queue to the controller of a host with a key.
#[test]
fn all_queues_of_a_controller_have_a_channel_or_none_has() {
    let mut world = World::new();
    let plain = ConnectOptions::default();
    for (first, second) in [(own(), plain), (plain, own())] {
        let admin = world.enabled_by(0, &first);
        let queue = |options: ConnectOptions<'static>, qid| ConnectOptions {
            cntlid: admin.info.controller_id,
            qid,
            ..options
        };
        assert_refused(&mut world, &queue(second, 1));
        world.connect(0, &queue(first, 1));
    }
}

#[test]
fn a_required_channel_is_required_also_of_connected_hosts() {
    let mut world = World::new();
    let admin = world.enabled_by(0, &own());
    let plain = world.enabled_by(0, &ConnectOptions::default());
    let changed = SubsystemConfig {
        secure_hosts: [HOST.to_owned()].into(),
        ..crate::harness::config(&world.devices()).subsystems[0].clone()
    };
    world.target.update_subsystem(changed).unwrap();
    world.settle();
    let closes = world.closes(0);
    let ended: Vec<_> = closes.iter().map(|it| (it.queue, it.reason)).collect();
    assert_eq!(ended, [(plain.queue, CloseReason::Reconfigured)]);
    assert_refused(&mut world, &ConnectOptions::default());
    // Others may connect without one.
    world.connect(
        0,
        &ConnectOptions {
            host: STRANGER,
            ..ConnectOptions::default()
        },
    );
    world.connect(
        0,
        &ConnectOptions {
            cntlid: admin.info.controller_id,
            qid: 1,
            ..own()
        },
    );
}

/// A handshake may have found the key before it was revoked.
#[test]
fn a_revoked_key_ends_its_associations_and_handshakes() {
    let mut world = World::with(1, LIMITS, |config| {
        config.subsystems[1].allow_any_host = true;
    });
    let secured = world.enabled_by(0, &own());
    world.enabled_by(0, &ConnectOptions::default());
    let version = channel_of((HOST, SUBSYSTEM)).keys_version;
    // The number of associations that end, those included whose commands have not ended yet, and
    // whether the host can connect again.
    for (key, later, ended, connects) in [
        ("db2", 1, 0, true),
        ("db1", 0, 2, true),
        ("db1", 1, 3, false),
    ] {
        let revoked = world.target.revoke_key(key, version + later);
        world.settle();
        assert_eq!(revoked.count(), ended, "{key} {later}");
        if connects {
            world.connect(0, &own());
        } else {
            assert_refused(&mut world, &own());
        }
    }
    let closes = world.closes(0);
    assert!(closes.iter().all(|it| it.reason == CloseReason::Revoked));
    assert!(closes.iter().any(|it| it.queue == secured.queue));
    world.connect(0, &ConnectOptions::default());
}

#[test]
fn snapshots_have_the_channels_of_queues_and_the_uses_of_keys() {
    let mut world = World::new();
    let admin = world.enabled_by(0, &own());
    let io = ConnectOptions {
        cntlid: admin.info.controller_id,
        qid: 1,
        ..own()
    };
    let io = world.connect(0, &io);
    assert_eq!(world.target.key_uses()["db1"].count, 2);
    let channels = |world: &World| {
        let snapshot = world.target.snapshot();
        let controller = snapshot.controllers[0].clone();
        let queues = controller.io_queues.into_iter().map(|it| it.channel);
        let all = std::iter::once(controller.channel).chain(queues);
        all.map(|it| it.map(|it| (*it.channel).clone()))
            .collect::<Vec<_>>()
    };
    let own = Some(channel_of((HOST, SUBSYSTEM)));
    assert_eq!(channels(&world), [own.clone(), own.clone()]);
    world.close(io);
    world.settle();
    assert_eq!(channels(&world), [own]);
}
