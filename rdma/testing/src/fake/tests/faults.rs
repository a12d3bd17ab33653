//! Tests of faults by pattern, ports that go down, devices that are removed, connections that fail.

use std::io;

use super::{on_fabric, on_immediate_fabric};
use crate::conformance::harness::{Harness, Pair, Side};
use crate::fake::faults::{FaultPoint, Rules};
use crate::fake::random::Random;
use crate::fake::{ConnectFault, FabricConfig, Fake, Fault, LATE_BYTE, Operation, Pattern};
use rdma::{
    CompletionQueue, CompletionStatus, ConnectParameters, Connection, ConnectionEvent, Device,
    DeviceEvent, Domain, Error, Event, EventChannel, Listener, Provider, QueuePair, QueuePairFault,
    QueuePairState, RejectReason, SendOperation, Token, WorkCompletion,
};

/// The client's machine; the server's is 0.
const CLIENT: usize = 1;

/// The occasions, counted from 0, on which a pattern fires.
fn fired(pattern: Pattern, seed: u64, occasions: usize) -> Vec<usize> {
    let mut rules = Rules::default();
    rules.add(pattern, ());
    let mut random = Random::new(seed);
    (0..occasions)
        .filter(|_| {
            let fault_point = FaultPoint {
                machine: 0,
                queue_pair: Some(7),
                operation: Some(Operation::Send),
            };
            let found = rules.choose(&mut random, fault_point, |()| true);
            found.is_some()
        })
        .collect()
}

#[test]
fn fault_patterns_select_occasions() {
    assert_eq!(fired(Pattern::ONCE, 1, 5), [0]);
    assert_eq!(fired(Pattern::ONCE.after(3), 1, 9), [3]);
    assert_eq!(fired(Pattern::ALWAYS, 1, 3), [0, 1, 2]);
    let every_third = Pattern {
        every: 3,
        skip: 1,
        times: 2,
        ..Pattern::ALWAYS
    };
    assert_eq!(fired(every_third, 1, 20), [1, 4]);
    assert_eq!(fired(Pattern::ALWAYS.of(Operation::Read), 1, 9), []);
    assert_eq!(fired(Pattern::ALWAYS.on(1), 1, 9), []);
    assert_eq!(fired(Pattern::ALWAYS.by(8), 1, 9), []);
    assert_eq!(fired(Pattern::ONCE.by(7), 1, 9), [0]);
    let seldom = Pattern {
        permille: 100,
        ..Pattern::ALWAYS
    };
    let (one, two) = (fired(seldom, 7, 10_000), fired(seldom, 7, 10_000));
    assert_eq!(one, two, "one seed, one sequence");
    assert!((800..1200).contains(&one.len()), "{}", one.len());
    assert_ne!(one, fired(seldom, 8, 10_000));
}

#[test]
fn injected_failure_has_its_status_and_flushes_the_queue() {
    for (status, harms_peer) in [
        (CompletionStatus::RETRIES_EXCEEDED, false),
        (CompletionStatus::RNR_RETRIES_EXCEEDED, false),
        (CompletionStatus::LOCAL_PROTECTION_ERROR, false),
        (CompletionStatus::REMOTE_ACCESS_ERROR, true),
        (CompletionStatus::REMOTE_OPERATION_ERROR, true),
        (CompletionStatus(4242), false),
    ] {
        on_immediate_fabric(|fabric, harness| {
            let mut pair = harness.pair();
            let Pair { server, client, .. } = &mut pair;
            server.receive(50, 4096, 64);
            let pattern = Pattern::ONCE.of(Operation::Write).on(CLIENT).after(1);
            fabric.add_fault(pattern, Fault::Fail(status));
            let write = SendOperation::Write(server.memory.remote(0));
            for wr_id in 1..=3 {
                client.queue(wr_id, write, (0, 64), false);
            }
            client.queue(4, SendOperation::Send, (0, 64), true);
            client.queue_pair.flush().expect("posted");
            harness.expect(client, 2, status);
            harness.expect(client, 3, CompletionStatus::FLUSHED);
            harness.expect(client, 4, CompletionStatus::FLUSHED);
            let state = server.queue_pair.state().expect("a state");
            assert_eq!(state == QueuePairState::Error, harms_peer, "{status}");
            if harms_peer {
                harness.expect(server, 50, CompletionStatus::FLUSHED);
            }
        });
    }
}

/// A stuck request is neither executed nor flushed, and a refused destruction leaves the queue
/// pair, its queues and its domain in place.
#[test]
fn wedged_queue_pair_keeps_its_resources() {
    on_immediate_fabric(|fabric, harness| {
        let before = fabric.objects();
        let mut pair = harness.pair();
        let Pair { client, server, .. } = &mut pair;
        fabric.add_fault(Pattern::ONCE.of(Operation::Read), Fault::Wedge);
        let remote = server.memory.remote(0);
        client.post(1, SendOperation::Read(remote), (0, 64));
        client.queue_pair.set_error().expect("an order");
        harness.expect_nothing(client);
        assert_eq!(client.memory.bytes(0, 64), [LATE_BYTE; 64]);
        fabric.refuse_destructions(1);
        client.queue_pair.destroy().expect_err("it is refused");
        client.queue_pair.destroy().expect_err("for good");
        drop(pair);
        let after = fabric.objects();
        assert_eq!(after.queue_pairs, before.queue_pairs + 1);
    });
}

#[test]
fn access_violation_raises_a_device_event_at_the_peer() {
    on_immediate_fabric(|_, harness| {
        let mut pair = harness.pair();
        let Pair { server, client, .. } = &mut pair;
        let mut remote = server.memory.remote(0);
        remote.rkey ^= 0x1000;
        client.post(1, SendOperation::Write(remote), (0, 64));
        harness.expect(client, 1, CompletionStatus::REMOTE_ACCESS_ERROR);
        let device = server.domain.device();
        let event = DeviceEvent::QueuePair {
            token: Token(1001),
            qp_number: server.queue_pair.number(),
            fault: QueuePairFault::AccessViolation,
        };
        assert_eq!(device.next_event(), Some(event));
        assert_eq!(device.next_event(), None);
    });
}

fn expect_disconnected(harness: &mut Harness<'_, Fake>, side: &mut Side<Fake>, token: u64) {
    let event = harness.connection_event("the end", &mut side.channel, Token(token));
    assert_eq!(event, ConnectionEvent::Disconnected);
}

#[test]
fn a_broken_connection_notifies_both_sides() {
    for by_number in [false, true] {
        on_immediate_fabric(|fabric, harness| {
            let mut pair = harness.pair();
            let Pair { server, client, .. } = &mut pair;
            server.receive(50, 0, 64);
            if !by_number {
                fabric.add_fault(Pattern::ONCE.of(Operation::Read), Fault::DropConnection);
            }
            let remote = server.memory.remote(0);
            if by_number {
                fabric.drop_connection(server.queue_pair.number());
            } else {
                client.post(1, SendOperation::Read(remote), (0, 64));
                harness.expect(client, 1, CompletionStatus::FLUSHED);
            }
            expect_disconnected(harness, client, 2002);
            expect_disconnected(harness, server, 1001);
            harness.expect(server, 50, CompletionStatus::FLUSHED);
            let state = client.queue_pair.state().expect("a state");
            assert_eq!(state, QueuePairState::Error);
        });
    }
}

#[test]
fn send_waits_for_a_receiver_that_is_not_ready() {
    on_fabric(FabricConfig::manual(3), |fabric, harness| {
        let mut pair = harness.pair();
        let Pair { server, client, .. } = &mut pair;
        server.receive(1, 0, 64);
        fabric.add_fault(Pattern::ONCE.of(Operation::Send), Fault::NotReady(20));
        let before = fabric.ticks();
        client.post(2, SendOperation::Send, (0, 64));
        harness.expect_success(client, 2);
        assert!(fabric.ticks() >= before + 20);
        harness.expect_success(server, 1);
        assert!(harness.subject.client.counters().not_ready >= 10);
    });
}

#[test]
fn delayed_request_does_not_block_other_queues() {
    on_fabric(FabricConfig::manual(4), |fabric, harness| {
        let (mut one, mut other) = (harness.pair(), harness.pair());
        fabric.add_fault(Pattern::ONCE, Fault::DelayRequest(50));
        let write = |pair: &Pair<Fake>| SendOperation::Write(pair.server.memory.remote(0));
        let operation = write(&one);
        one.client.post(1, operation, (0, 64));
        // One tick looks up the fault, so that it applies to the first request.
        fabric.progress();
        let operation = write(&other);
        other.client.post(2, operation, (0, 64));
        harness.expect_success(&mut other.client, 2);
        let mut none = [WorkCompletion::default()];
        assert_eq!(one.client.completions.poll(&mut none).expect("works"), 0);
        harness.expect_success(&mut one.client, 1);
    });
}

#[test]
fn delayed_completion_arrives_after_the_peers() {
    on_fabric(FabricConfig::manual(5), |fabric, harness| {
        let mut pair = harness.pair();
        let Pair { server, client, .. } = &mut pair;
        server.receive(1, 0, 64);
        server.receive(2, 64, 64);
        fabric.add_fault(Pattern::ONCE, Fault::DelayCompletion(50));
        client.post(3, SendOperation::Send, (0, 64));
        client.post(4, SendOperation::Send, (0, 64));
        harness.expect_success(server, 1);
        let mut none = [WorkCompletion::default()];
        assert_eq!(client.completions.poll(&mut none).expect("works"), 0);
        harness.expect_success(client, 3);
        harness.expect_success(server, 2);
        harness.expect_success(client, 4);
    });
}

#[test]
fn completed_request_is_not_flushed() {
    on_fabric(FabricConfig::manual(6), |fabric, harness| {
        let mut pair = harness.pair();
        let Pair { server, client, .. } = &mut pair;
        server.receive(1, 0, 64);
        fabric.add_fault(Pattern::ONCE, Fault::DelayCompletion(1_000_000));
        client.post(3, SendOperation::Send, (0, 64));
        client.post(4, SendOperation::Send, (0, 64));
        harness.expect_success(server, 1);
        client.queue_pair.set_error().expect("an order");
        harness.expect_success(client, 3);
        harness.expect(client, 4, CompletionStatus::FLUSHED);
    });
}

#[test]
fn fatal_queue_pair_error_raises_a_device_event() {
    on_immediate_fabric(|fabric, harness| {
        let mut pair = harness.pair();
        let Pair { server, client, .. } = &mut pair;
        let write = SendOperation::Write(server.memory.remote(0));
        fabric.add_fault(Pattern::ONCE, Fault::QueuePairFatal);
        client.post(1, write, (0, 64));
        harness.expect(client, 1, CompletionStatus::FLUSHED);
        let event = client.domain.device().next_event();
        let fatal = DeviceEvent::QueuePair {
            token: Token(2002),
            qp_number: client.queue_pair.number(),
            fault: QueuePairFault::Fatal,
        };
        assert_eq!(event, Some(fatal));
    });
}

#[test]
fn brief_port_outage_loses_no_request() {
    on_fabric(FabricConfig::manual(7), |fabric, harness| {
        let mut pair = harness.pair();
        let Pair { server, client, .. } = &mut pair;
        let device = server.domain.device().clone();
        fabric.set_port(&device, false);
        assert_eq!(device.next_event(), Some(DeviceEvent::PortDown(1)));
        assert!(!device.port_is_up(1).expect("there is one"));
        assert!(matches!(device.port_is_up(2), Err(Error::Limit { .. })));
        let write = SendOperation::Write(server.memory.remote(0));
        client.post(1, write, (0, 64));
        for _ in 0..5 {
            fabric.progress();
        }
        fabric.set_port(&device, true);
        assert_eq!(device.next_event(), Some(DeviceEvent::PortUp(1)));
        harness.expect_success(client, 1);
    });
}

#[test]
fn retry_limit_counts_time_instead_of_posts() {
    on_immediate_fabric(|fabric, harness| {
        let mut pair = harness.pair();
        let Pair { server, client, .. } = &mut pair;
        fabric.set_port(server.domain.device(), false);
        let write = SendOperation::Write(server.memory.remote(0));
        for wr_id in 0..20 {
            client.post(wr_id, write, (0, 64));
        }
        fabric.set_port(server.domain.device(), true);
        for wr_id in 0..20 {
            harness.expect_success(client, wr_id);
        }
    });
}

#[test]
fn long_port_outage_exceeds_the_retries() {
    on_immediate_fabric(|fabric, harness| {
        let mut pair = harness.pair();
        let Pair { server, client, .. } = &mut pair;
        fabric.set_port(client.domain.device(), false);
        let write = SendOperation::Write(server.memory.remote(0));
        client.post(1, write, (0, 64));
        client.post(2, write, (0, 64));
        harness.expect(client, 1, CompletionStatus::RETRIES_EXCEEDED);
        harness.expect(client, 2, CompletionStatus::FLUSHED);
    });
}

#[test]
fn device_removal_ends_all_objects_of_the_device() {
    on_immediate_fabric(|fabric, harness| {
        let mut pair = harness.pair();
        let Pair { server, client, .. } = &mut pair;
        server.receive(1, 0, 64);
        let device = server.domain.device().clone();
        fabric.remove_device(&device);
        assert_eq!(device.next_event(), Some(DeviceEvent::Fatal));
        harness.expect(server, 1, CompletionStatus::FLUSHED);
        let mut seen = [false; 2];
        while seen != [true; 2] {
            match harness.event("what is lost", &mut server.channel) {
                Event::ListenerFailed { listener } => {
                    assert_eq!(listener, Token(7));
                    seen[0] = true;
                }
                Event::Connection { token, event } => {
                    assert_eq!(token, Token(1001));
                    assert_eq!(event, ConnectionEvent::DeviceRemoved);
                    seen[1] = true;
                }
                other @ Event::ConnectRequest { .. } => panic!("{other:?}"),
            }
        }
        assert!(matches!(device.create_domain(), Err(Error::DeviceGone)));
        let queue = server.domain.create_completion_queue(1, Token(1));
        assert!(matches!(queue, Err(Error::DeviceGone)), "{queue:?}");
        let devices = harness.subject.server.devices();
        assert!(matches!(devices, Err(Error::Unavailable(_))), "{devices:?}");
        // The other end notices when it sends.
        client.post(2, SendOperation::Send, (0, 64));
        harness.expect(client, 2, CompletionStatus::RETRIES_EXCEEDED);
    });
}

/// The last event of an attempt of the client to connect.
fn attempt(harness: &mut Harness<'_, Fake>) -> ConnectionEvent {
    let (_server_channel, listener) = harness.listen();
    let mut channel = harness.subject.client.event_channel().expect("a channel");
    let step_timeout = harness.subject.step_timeout;
    let token = Token(5);
    let mut connection = channel.connection(token).expect("a connection");
    let to = listener.local_address();
    connection
        .resolve_address(None, to, step_timeout)
        .expect("resolving");
    let event = harness.connection_event("the address", &mut channel, token);
    if event != ConnectionEvent::AddressResolved {
        return event;
    }
    connection.resolve_route(step_timeout).expect("resolving");
    let event = harness.connection_event("the route", &mut channel, token);
    if event != ConnectionEvent::RouteResolved {
        return event;
    }
    let device = connection.device().expect("known");
    let create_resources = harness.create_resources(&device, rdma::Access::REMOTE);
    let capacity = crate::conformance::harness::PairOptions::default().capacity;
    let _pair = crate::conformance::harness::queue_pair::<Fake>(
        &mut connection,
        &create_resources,
        capacity,
    );
    let parameters = ConnectParameters {
        private_data: b"",
        initiator_depth: 1,
        responder_resources: 1,
        retries: 7,
        rnr_retries: 7,
    };
    connection.connect(&parameters).expect("asking");
    harness.connection_event("the answer", &mut channel, token)
}

#[test]
fn connections_fail_by_pattern() {
    let kind = io::ErrorKind::TimedOut;
    let reason = RejectReason(6);
    for (fault, expected) in [
        (
            ConnectFault::AddressFailed(kind),
            ConnectionEvent::AddressFailed(kind),
        ),
        (
            ConnectFault::RouteFailed(kind),
            ConnectionEvent::RouteFailed(kind),
        ),
        (ConnectFault::Unreachable, ConnectionEvent::Unreachable),
    ] {
        on_immediate_fabric(|fabric, harness| {
            fabric.add_connect_fault(Pattern::ONCE, fault);
            assert_eq!(attempt(harness), expected);
        });
    }
    on_immediate_fabric(|fabric, harness| {
        fabric.add_connect_fault(Pattern::ONCE, ConnectFault::Rejected(reason));
        let event = attempt(harness);
        let rejected = matches!(event, ConnectionEvent::Rejected { reason, .. }
            if reason == RejectReason(6));
        assert!(rejected, "{event:?}");
        fabric.clear_faults();
        fabric.add_connect_fault(Pattern::ONCE, ConnectFault::Delay(30));
        let before = fabric.ticks();
        harness.pair();
        assert!(fabric.ticks() >= before + 30);
    });
}

#[test]
fn connect_through_a_port_that_is_down_fails() {
    on_immediate_fabric(|fabric, harness| {
        let devices = harness.subject.server.devices().expect("devices");
        fabric.set_port(&devices[0], false);
        assert_eq!(attempt(harness), ConnectionEvent::Unreachable);
        fabric.set_port(&devices[0], true);
        let devices = harness.subject.client.devices().expect("devices");
        fabric.set_port(&devices[0], false);
        let failed = ConnectionEvent::RouteFailed(io::ErrorKind::HostUnreachable);
        assert_eq!(attempt(harness), failed);
    });
}

#[test]
fn an_unknown_address_is_not_resolved() {
    on_immediate_fabric(|_, harness| {
        let mut channel = harness.subject.client.event_channel().expect("a channel");
        let mut connection = channel.connection(Token(5)).expect("a connection");
        let to = "203.0.113.9:4420".parse().expect("an address");
        let step_timeout = harness.subject.step_timeout;
        let from_nowhere = connection.resolve_address(Some(to), to, step_timeout);
        harness.assert_not_on_device(&from_nowhere.expect_err("not an address of ours"));
        connection
            .resolve_address(None, to, step_timeout)
            .expect("asking");
        let event = harness.connection_event("the answer", &mut channel, Token(5));
        let failed = ConnectionEvent::AddressFailed(io::ErrorKind::HostUnreachable);
        assert_eq!(event, failed);
    });
}

#[test]
fn informational_events_have_no_effect() {
    on_immediate_fabric(|fabric, harness| {
        let mut pair = harness.pair();
        let Pair { server, client, .. } = &mut pair;
        let device = server.domain.device().clone();
        fabric.change_address(&device);
        let event = harness.connection_event("the news", &mut server.channel, Token(1001));
        assert_eq!(event, ConnectionEvent::AddressChanged);
        assert!(client.channel.next_event().expect("works").is_none());
        fabric.notify_device(&device, DeviceEvent::Other(77));
        assert_eq!(device.next_event(), Some(DeviceEvent::Other(77)));
        server.receive(1, 0, 64);
        client.post(2, SendOperation::Send, (0, 64));
        harness.expect_success(server, 1);
    });
}
