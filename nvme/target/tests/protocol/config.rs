//! Invalid configurations are refused and change nothing.

use nvme_target::{
    CoreLimits, DeviceIndex, NamespaceConfig, PortId, SubsystemConfig, Target, TargetConfig,
    TargetError,
};

use crate::harness::{SUBSYSTEM, TCP_PORT, World, config, namespace, port, subsystem};

fn refusal(change: impl FnOnce(&mut TargetConfig)) -> TargetError {
    let world = World::new();
    let devices = world.devices();
    let mut config = config(&devices);
    change(&mut config);
    Target::new(config, 1, devices).err().expect("refused")
}

fn with_namespace(change: impl FnOnce(&mut NamespaceConfig)) -> TargetError {
    refusal(|config| change(&mut config.subsystems[0].namespaces[0]))
}

fn with_subsystem(change: impl FnOnce(&mut SubsystemConfig)) -> TargetError {
    refusal(|config| change(&mut config.subsystems[0]))
}

#[test]
fn invalid_subsystem_config_is_refused() {
    let nqn = SUBSYSTEM.to_owned();
    assert!(matches!(
        with_subsystem(|it| it.nqn = "windlass".to_owned()),
        TargetError::Nqn { nqn, .. } if nqn == "windlass"
    ));
    let discovery = nvme_spec::nqn::DISCOVERY_NQN.to_owned();
    assert_eq!(
        with_subsystem(|it| it.nqn = discovery.clone()),
        TargetError::DuplicateSubsystem {
            nqn: discovery.clone()
        }
    );
    assert!(matches!(
        with_subsystem(|it| it.hosts = vec![String::new()]),
        TargetError::Nqn { .. }
    ));
    for (queues, depth) in [(0, 64), (129, 64), (4, 1), (4, 4097)] {
        let error = with_subsystem(|it| {
            it.io_queues_max = queues;
            it.queue_depth_max = depth;
        });
        assert_eq!(
            error,
            TargetError::Queues {
                nqn: nqn.clone(),
                queues,
                depth
            }
        );
    }
    let unknown = PortId(9);
    assert_eq!(
        with_subsystem(|it| it.ports = vec![unknown]),
        TargetError::Port { port: unknown }
    );
}

#[test]
fn invalid_namespace_config_is_refused() {
    let nqn = SUBSYSTEM.to_owned();
    for nsid in [0, 1025] {
        let error = with_namespace(|it| it.nsid = nsid);
        assert_eq!(
            error,
            TargetError::NamespaceId {
                nqn: nqn.clone(),
                nsid
            }
        );
    }
    let error = with_namespace(|it| it.nsid = 2);
    assert_eq!(
        error,
        TargetError::DuplicateNamespace {
            nqn: nqn.clone(),
            nsid: 2
        }
    );
    let device = DeviceIndex(4);
    let error = with_namespace(|it| it.device = device);
    assert_eq!(
        error,
        TargetError::UnknownDevice {
            nqn: nqn.clone(),
            nsid: 1,
            device
        }
    );
    for (block_size, block_count) in [(1024, 8), (512, 0), (512, u64::MAX)] {
        let error = with_namespace(|it| {
            it.geometry.block_size = block_size;
            it.geometry.block_count = block_count;
        });
        let nqn = nqn.clone();
        assert_eq!(
            error,
            TargetError::Geometry {
                nqn,
                nsid: 1,
                block_size,
                block_count
            }
        );
    }
}

#[test]
fn invalid_target_config_is_refused() {
    let nqn = SUBSYSTEM.to_owned();
    let twice = refusal(|it| it.subsystems[1].nqn = nqn.clone());
    assert_eq!(twice, TargetError::DuplicateSubsystem { nqn });
    let twice = refusal(|it| it.ports[1].id = TCP_PORT);
    assert_eq!(twice, TargetError::Port { port: TCP_PORT });
    for count in [0, 0x1001] {
        let error = refusal(|it| it.limits.controllers_max = count);
        assert_eq!(error, TargetError::ControllersMax { count });
    }
    let small = refusal(|it| it.limits.transfer_max = 4095);
    assert_eq!(small, TargetError::TransferTooSmall { bytes: 4095 });
    let devices = World::new().devices();
    let none = Target::new(config(&devices), 0, devices).err();
    assert_eq!(none, Some(TargetError::NoReactors));
}

/// A refused change leaves everything as it was.
#[test]
fn refused_change_has_no_effect() {
    let world = World::new();
    let before = world.target.snapshot();
    let device = world.devices()[0].clone();
    let twice = vec![namespace(1, 0, &*device), namespace(1, 0, &*device)];
    let nowhere = "nqn.2026-11.org.windlass:nowhere";
    let unknown = TargetError::UnknownSubsystem {
        nqn: nowhere.to_owned(),
    };
    assert!(world.target.update_namespaces(SUBSYSTEM, twice).is_err());
    assert_eq!(
        world.target.update_namespaces(nowhere, vec![]),
        Err(unknown.clone())
    );
    assert_eq!(
        world.target.update_hosts(nowhere, true, vec![]),
        Err(unknown.clone())
    );
    assert!(
        world
            .target
            .update_hosts(SUBSYSTEM, false, vec!["\n".to_owned()])
            .is_err()
    );
    assert_eq!(world.target.remove_subsystem(nowhere), Err(unknown));
    let again = subsystem(SUBSYSTEM, Vec::new());
    let taken = TargetError::DuplicateSubsystem {
        nqn: SUBSYSTEM.to_owned(),
    };
    assert_eq!(world.target.add_subsystem(again), Err(taken));
    let without = vec![port(TCP_PORT, "192.0.2.1", false)];
    assert_eq!(
        world.target.update_ports(without),
        Err(TargetError::Port { port: PortId(2) })
    );
    assert_eq!(world.target.snapshot(), before);
    assert!(!world.nodes[0].core.has_ready());
}

/// The largest transfer is a power of two that every device supports.
#[test]
fn transfer_max_is_a_power_of_two_within_device_limits() {
    let limits = CoreLimits::default();
    let world = World::with(1, limits, |config| config.limits.transfer_max = 100_000);
    assert_eq!(world.target.transfer_max(), 1 << 16);
}
