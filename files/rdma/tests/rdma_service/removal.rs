//! Devices that fail or are removed, and their events, which another service may take.

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;

use files_client_testing::{Slot, World as _, data};
use files_rdma::RdmaChange;
use rdma::{Device as _, DeviceEvent, DeviceUser, Provider as _, QueuePairFault, Token};
use rdma_testing::fake::FakeDevice;

use crate::stage::{Client, FIRST, Stage, change, client, free, stage, try_client, turn_until};

fn device(stage: &Rc<RefCell<Stage>>) -> FakeDevice {
    stage.borrow().server.devices().expect("devices").remove(0)
}

fn notify(stage: &Rc<RefCell<Stage>>, event: DeviceEvent) {
    let device = device(stage);
    stage.borrow().fabric.notify_device(&device, event);
    for _ in 0..100 {
        stage.borrow_mut().turn();
    }
}

fn used(stage: &Rc<RefCell<Stage>>, owner: u8) -> (Client, Slot) {
    let mut client = client(stage);
    let mut slot = Slot::new(&mut client, &[owner]);
    check(&mut client, &mut slot, owner);
    (client, slot)
}

fn check(client: &mut Client, slot: &mut Slot, fill: u8) {
    let bytes = [fill; 20_000];
    let sender = *slot;
    slot.call(client, &sender.write(0, &bytes)).assert_ok();
    let answer = slot.call(client, &sender.read(0, 20_000));
    assert_eq!(data(&answer), bytes);
}

fn queue_pair(token: Token, fault: QueuePairFault) -> DeviceEvent {
    DeviceEvent::QueuePair {
        token,
        qp_number: 1,
        fault,
    }
}

/// Events of queues of another service, of queues that are not there, and of ports.
#[test]
fn events_of_others_change_nothing() {
    let stage = stage();
    let (mut client, mut slot) = used(&stage, 1);
    let own = |number| DeviceUser::Files.token(number);
    let events = [
        queue_pair(DeviceUser::Nvme.token(0), QueuePairFault::Fatal),
        queue_pair(own(0), QueuePairFault::CommunicationEstablished),
        queue_pair(own(5 << 32), QueuePairFault::Fatal),
        queue_pair(own(u64::MAX), QueuePairFault::AccessViolation),
        DeviceEvent::CompletionQueueFailed {
            token: DeviceUser::Nvme.token(0),
        },
        DeviceEvent::CompletionQueueFailed { token: own(7) },
        DeviceEvent::SharedReceiveQueueFailed { token: own(0) },
        DeviceEvent::PortDown(1),
        DeviceEvent::PortUp(1),
        DeviceEvent::Other(99),
    ];
    for event in events {
        notify(&stage, event);
        check(&mut client, &mut slot, 2);
    }
    assert_eq!(stage.borrow().of_rdma.connections_failed.get(), 0);
}

#[test]
fn a_queue_pair_that_fails_ends_its_connection_only() {
    let stage = stage();
    let (mut first, _) = used(&stage, 1);
    let (mut second, mut slot) = used(&stage, 2);
    notify(
        &stage,
        queue_pair(DeviceUser::Files.token(0), QueuePairFault::InvalidRequest),
    );
    first.wait_for_end();
    assert_eq!(stage.borrow().of_rdma.connections_failed.get(), 1);
    check(&mut second, &mut slot, 3);
}

#[test]
fn a_device_whose_completions_fail_is_given_up() {
    let stage = stage();
    let memory = free(&stage);
    let (mut client, _) = used(&stage, 1);
    let token = DeviceUser::Files.token(0);
    notify(&stage, DeviceEvent::CompletionQueueFailed { token });
    client.wait_for_end();
    drop(client);
    turn_until(&stage, |it| it.core.borrow().counts() == (0, 0));
    assert_eq!(free(&stage), memory);
    assert_eq!(stage.borrow().domains.lost(), ["server0"]);
    let objects = stage.borrow().fabric.objects();
    assert_eq!((objects.domains, objects.registrations), (0, 0));
    assert!(try_client(&stage).is_err(), "until it is registered again");
    {
        let stage = stage.borrow();
        let device = stage.server.devices().expect("devices").remove(0);
        let regions = [stage.arena.region(), stage.memory.store().region()];
        stage.domains.add(&device, &regions).expect("it is fit");
    }
    change(&stage, |reply| RdmaChange::UpdateDevices { reply });
    used(&stage, 2);
}

/// The device, its connections or another service tell of the removal: everything on it ends, and
/// nothing of this process keeps the device.
#[test]
fn a_removed_device_is_released_however_that_is_noticed() {
    let cases = [0, 1, 2, 3, 4, 5, 6, 7].map(|it| (it & 1 > 0, it & 2 > 0, it & 4 > 0));
    for (is_connected, is_silent, is_taken_by_other) in cases {
        let stage = stage();
        let removed = device(&stage);
        if !is_silent || is_connected || is_taken_by_other {
            // A listener of all devices does not fail with one.
            change(&stage, |reply| RdmaChange::Close {
                number: FIRST,
                reply,
            });
            let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
            let listen = |reply| RdmaChange::Listen {
                number: 1,
                address: SocketAddr::new(any, 20_049),
                reply,
            };
            change(&stage, listen).expect("a free port");
            change(&stage, |reply| RdmaChange::Open { number: 1, reply });
            stage.borrow_mut().address.set_port(20_049);
        }
        let events = stage.borrow().domains.events().clone();
        let other = DeviceUser::Nvme;
        events.begin(removed.index(), other);
        let client = is_connected.then(|| used(&stage, 1));
        match is_silent {
            true => stage.borrow().fabric.remove_silent_device(&removed),
            false => stage.borrow().fabric.remove_device(&removed),
        }
        if is_taken_by_other {
            let taken = std::iter::from_fn(|| events.next(&removed, other)).last();
            assert_eq!(taken, Some(DeviceEvent::Fatal));
        }
        let is_released = |it: &Stage| it.fabric.handles(&removed) == 1;
        turn_until(&stage, is_released);
        let lost = stage.borrow().domains.lost();
        assert_eq!(
            lost,
            ["server0"],
            "{is_connected} {is_silent} {is_taken_by_other}"
        );
        assert_eq!(stage.borrow().service.borrow().connections(), 0);
        turn_until(&stage, |it| it.core.borrow().counts() == (0, 0));
        drop(client);
        // The other service is told, too, if it has not noticed itself.
        let told = std::iter::from_fn(|| events.next(&removed, other)).count();
        assert!(is_taken_by_other || told > 0);
    }
}
