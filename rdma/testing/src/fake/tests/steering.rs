//! Tests with an external clock: due ticks, and faults of single connections.

use super::on_fabric;
use crate::conformance::harness::Pair;
use crate::fake::{Fabric, FabricConfig, Fault, Pattern};
use rdma::{
    CompletionQueue, CompletionStatus, Connection, QueuePair, SendOperation, WorkCompletion,
};

/// Advances the fabric until nothing is due.
fn run_until_idle(fabric: &Fabric) {
    while let Some(tick) = fabric.next_tick() {
        fabric.advance_to(tick);
    }
}

#[test]
fn idle_ticks_are_skipped() {
    on_fabric(FabricConfig::manual(1), |fabric, harness| {
        let mut pair = harness.pair();
        let Pair { server, client, .. } = &mut pair;
        run_until_idle(fabric);
        let began = fabric.ticks();
        fabric.stall(client.queue_pair.number(), began + 1_000_000);
        server.receive(1, 0, 64);
        client.post(2, SendOperation::Send, (0, 64));
        assert_eq!(fabric.next_tick(), Some(began + 1_000_000));
        fabric.advance_to(began + 999_999);
        let mut none = [WorkCompletion::default()];
        assert_eq!(server.completions.poll(&mut none).expect("works"), 0);
        run_until_idle(fabric);
        assert!(fabric.has_pending_events(&harness.subject.server));
        harness.expect_success(server, 1);
        harness.expect_success(client, 2);
        assert!(!fabric.has_pending_events(&harness.subject.server));
    });
}

#[test]
fn waiting_for_a_receive_takes_no_ticks() {
    on_fabric(FabricConfig::manual(2), |fabric, harness| {
        let mut pair = harness.pair();
        let Pair { server, client, .. } = &mut pair;
        run_until_idle(fabric);
        client.post(1, SendOperation::Send, (0, 64));
        run_until_idle(fabric);
        assert_eq!(fabric.next_tick(), None, "nobody but the server helps");
        server.receive(2, 0, 64);
        assert!(fabric.next_tick().is_some());
        run_until_idle(fabric);
        harness.expect_success(server, 2);
        harness.expect_success(client, 1);
    });
}

#[test]
fn a_fault_applies_to_its_queue_pair_only() {
    on_fabric(FabricConfig::manual(3), |fabric, harness| {
        let (mut one, mut other) = (harness.pair(), harness.pair());
        let number = one.client.queue_pair.number();
        assert_eq!(fabric.peer_of(number), Some(one.server.queue_pair.number()));
        let status = CompletionStatus::RETRIES_EXCEEDED;
        fabric.add_fault(Pattern::ONCE.by(number), Fault::Fail(status));
        for pair in [&mut other, &mut one] {
            let remote = pair.server.memory.remote(0);
            pair.client.post(1, SendOperation::Write(remote), (0, 64));
        }
        harness.expect_success(&mut other.client, 1);
        harness.expect(&mut one.client, 1, status);
    });
}

#[test]
fn partitioned_ends_exchange_no_messages() {
    let config = FabricConfig {
        retry_ticks: 100,
        ..FabricConfig::manual(4)
    };
    on_fabric(config, |fabric, harness| {
        let mut pair = harness.pair();
        let Pair { server, client, .. } = &mut pair;
        run_until_idle(fabric);
        let began = fabric.ticks();
        fabric.partition(client.queue_pair.number());
        client.connection.disconnect().expect("begun");
        run_until_idle(fabric);
        assert!(
            !fabric.has_pending_events(&harness.subject.server),
            "no word of it"
        );
        server.post(1, SendOperation::Send, (0, 64));
        harness.expect(server, 1, CompletionStatus::RETRIES_EXCEEDED);
        assert!(fabric.ticks() >= began + 300, "it was tried again");
    });
}
