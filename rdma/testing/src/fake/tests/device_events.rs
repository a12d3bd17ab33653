//! Two services that use one device: each gets the events that concern it, whoever takes them.

use rdma::{
    Device as _, DeviceEvent, DeviceEvents, DeviceUser, Provider as _, QueuePairFault, Token,
};

use super::suite::machines;
use crate::fake::FabricConfig;

const BOTH: [DeviceUser; 2] = [DeviceUser::Nvme, DeviceUser::Files];

fn queue_pair(token: Token) -> DeviceEvent {
    DeviceEvent::QueuePair {
        token,
        qp_number: 7,
        fault: QueuePairFault::Fatal,
    }
}

#[test]
fn a_service_that_has_not_begun_gets_and_takes_nothing() {
    let (fabric, server, _) = machines(FabricConfig::IMMEDIATE);
    let device = server.devices().expect("devices").remove(0);
    let events = DeviceEvents::default();
    fabric.notify_device(&device, DeviceEvent::PortUp(1));
    assert_eq!(events.next(&device, DeviceUser::Files), None);
    events.end(device.index(), DeviceUser::Files);
    assert!(!events.has(DeviceUser::Files));
    events.begin(device.index(), DeviceUser::Files);
    assert_eq!(
        events.next(&device, DeviceUser::Files),
        Some(DeviceEvent::PortUp(1))
    );
}

#[test]
fn events_reach_those_they_concern() {
    let (fabric, server, _) = machines(FabricConfig::IMMEDIATE);
    let device = server.devices().expect("devices").remove(0);
    for taker in BOTH {
        let events = DeviceEvents::default();
        for user in [taker, DeviceUser::Nvme, DeviceUser::Files] {
            events.begin(device.index(), user);
        }
        let sent = [
            queue_pair(DeviceUser::Nvme.token(5)),
            DeviceEvent::PortDown(1),
            queue_pair(DeviceUser::Files.token(5)),
        ];
        for event in sent {
            fabric.notify_device(&device, event);
        }
        let mut order = BOTH;
        order.sort_by_key(|user| *user != taker);
        for user in order {
            let taken = std::iter::from_fn(|| events.next(&device, user));
            let own = queue_pair(user.token(5));
            let expected = match user {
                DeviceUser::Nvme => [own, DeviceEvent::PortDown(1)],
                DeviceUser::Files => [DeviceEvent::PortDown(1), own],
            };
            assert_eq!(taken.collect::<Vec<_>>(), expected);
            assert!(!events.has(user));
        }
        // What is reported by one is news for the other one only.
        events.report_removal(device.index(), taker);
        assert_eq!(
            BOTH.map(|user| events.has(user)),
            BOTH.map(|user| user != taker)
        );
        for user in BOTH {
            events.end(device.index(), user);
        }
        assert_eq!(BOTH.map(|user| events.has(user)), [false; 2]);
    }
    for user in BOTH {
        assert_eq!(DeviceUser::of(user.token(u64::MAX)), user);
    }
}
