//! The conformance suite on the in-process fabric, with both paces.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use crate::conformance::{Subject, cases};
use crate::fake::{DeviceConfig, Fabric, FabricConfig, FabricObjects, Fake};

pub(super) const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
pub(super) const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

pub(super) fn machines(config: FabricConfig) -> (Fabric, Fake, Fake) {
    let fabric = Fabric::new(config);
    let machine = |name, address| {
        let devices = [DeviceConfig::new(name, address)];
        fabric.machine(&devices).expect("a machine")
    };
    let (server, client) = (machine("fake0", SERVER), machine("fake1", CLIENT));
    (fabric, server, client)
}

fn run_all(config: FabricConfig) {
    for case in cases() {
        println!("{} {config:?}", case.name);
        let (fabric, server, client) = machines(config);
        let clock = fabric.clone();
        let mut subject = Subject {
            server,
            client,
            address: SERVER,
            step: Box::new(move || {
                clock.progress();
            }),
            step_timeout: Duration::from_secs(20),
        };
        case.run(&mut subject);
        assert_eq!(fabric.objects(), FabricObjects::default(), "{}", case.name);
    }
}

#[test]
fn immediate_fabric_conforms() {
    run_all(FabricConfig::IMMEDIATE);
}

#[test]
fn pseudo_random_fabric_conforms() {
    for seed in 0..8 {
        run_all(FabricConfig::manual(seed));
    }
}

#[test]
fn single_request_bursts_conform() {
    run_all(FabricConfig {
        burst: 1,
        ..FabricConfig::manual(99)
    });
}

#[test]
fn loopback_on_one_machine_conforms() {
    for case in cases() {
        let (_, server, _) = machines(FabricConfig::IMMEDIATE);
        case.run(&mut Subject::of_one(server, SERVER));
    }
}
