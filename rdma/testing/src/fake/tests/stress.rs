//! Random work with random faults: every request completes once and in order.

use std::slice;

use super::on_fabric;
use crate::conformance::harness::{Pair, REQUESTS, Side, pattern};
use crate::fake::random::Random;
use crate::fake::{Fabric, FabricConfig, Fake, Fault, Operation, Pattern};
use rdma::{
    CompletionQueue, CompletionStatus, Domain, Payload, QueuePair, ReceiveRequest, SendOperation,
    SendRequest, WorkCompletion,
};

/// Bytes per request.
const PLACE: usize = 256;
/// First identifier of receives.
const RECEIVES: u64 = 1 << 32;

/// One end of a connection, and its outstanding requests.
struct End {
    side: Side<Fake>,
    next_send: u64,
    next_receive: u64,
    /// Posted requests without a completion yet; unsignalled ones may never have one.
    sends: Vec<(u64, bool, Option<usize>)>,
    receives: Vec<u64>,
    failed: bool,
}

impl End {
    fn new(side: Side<Fake>) -> Self {
        Self {
            side,
            next_send: 0,
            next_receive: RECEIVES,
            sends: Vec::new(),
            receives: Vec::new(),
            failed: false,
        }
    }

    fn post_receive(&mut self) {
        if self.receives.len() == REQUESTS as usize {
            return;
        }
        let wr_id = self.next_receive;
        self.next_receive += 1;
        let place = (wr_id % u64::from(REQUESTS)) as usize * PLACE;
        let memory = self.side.memory.piece(place, PLACE).into();
        let request = ReceiveRequest { wr_id, memory };
        self.side.queue_pair.queue_receive(&request).expect("room");
        self.receives.push(wr_id);
    }

    /// Posts a random request. At least every eighth one is signalled, so that queue entries become
    /// free.
    fn post_send(&mut self, random: &mut Random, peer: &End) {
        if self.sends.len() == REQUESTS as usize {
            return;
        }
        let wr_id = self.next_send;
        self.next_send += 1;
        // The upper half of the memory has the side's own data; the quarter below is written by the
        // peer.
        let own = (512 << 10) + (wr_id % u64::from(REQUESTS)) as usize * PLACE;
        let theirs = (256 << 10) + (wr_id % u64::from(REQUESTS)) as usize * PLACE;
        let remote = peer.side.memory.remote(theirs);
        let operation = match random.below(4) {
            0 => SendOperation::Send,
            1 => SendOperation::Read(remote),
            _ => SendOperation::Write(remote),
        };
        let written = matches!(operation, SendOperation::Write(_)).then_some(theirs);
        if written.is_some() {
            self.side.memory.fill(own, PLACE, wr_id as usize);
        }
        let piece = self.side.memory.piece(own, PLACE);
        let inline = pattern(32, wr_id as usize);
        let payload = match (operation, random.below(2)) {
            (SendOperation::Send, 0) => Payload::Inline(&inline),
            _ => Payload::Memory(slice::from_ref(&piece)),
        };
        let signalled = wr_id % 8 == 7 || random.below(2) == 0;
        let request = SendRequest::new(wr_id, operation, payload).signalled(signalled);
        self.side.queue_pair.queue_send(&request).expect("room");
        self.sends.push((wr_id, signalled, written));
    }

    fn take(&mut self, completion: &WorkCompletion, peer: &Side<Fake>) {
        assert_eq!(completion.qp_number, self.side.queue_pair.number());
        if completion.wr_id >= RECEIVES {
            assert_eq!(self.receives.remove(0), completion.wr_id, "in order");
            let fate = completion.status;
            assert!(!self.failed || fate != CompletionStatus::SUCCESS, "{fate}");
            return;
        }
        // Unsignalled requests before it have succeeded without a completion.
        let found = self
            .sends
            .iter()
            .position(|(wr_id, ..)| *wr_id == completion.wr_id)
            .expect("each completes once, in order");
        let passed: Vec<_> = self.sends.drain(..=found).collect();
        let (last, silent) = passed.split_last().expect("the one that completed");
        assert!(
            silent.iter().all(|(_, signalled, _)| !signalled),
            "{silent:?}"
        );
        assert!(
            !self.failed || silent.is_empty(),
            "flushed ones all complete"
        );
        if completion.status == CompletionStatus::SUCCESS {
            assert!(last.1, "an unsignalled one succeeds in silence");
            assert!(!self.failed, "nothing succeeds behind a failure");
            if let Some(place) = last.2 {
                let wr_id = completion.wr_id as usize;
                assert_eq!(peer.memory.bytes(place, PLACE), pattern(PLACE, wr_id));
            }
            return;
        }
        let first = !self.failed;
        self.failed = true;
        let flushed = completion.status == CompletionStatus::FLUSHED;
        assert!(first || flushed, "{completion:?} behind a failure");
    }

    fn poll(&mut self, peer: &Side<Fake>) {
        let mut batch = [WorkCompletion::default(); 16];
        let count = self.side.completions.poll(&mut batch).expect("works");
        for completion in &batch[..count] {
            self.take(completion, peer);
        }
    }
}

/// Adds faults of all kinds, rare enough for work to succeed.
fn add_faults(fabric: &Fabric) {
    let seldom = |permille| Pattern {
        permille,
        ..Pattern::ALWAYS
    };
    let status = CompletionStatus::REMOTE_OPERATION_ERROR;
    fabric.add_fault(seldom(30), Fault::DelayRequest(5));
    fabric.add_fault(seldom(30), Fault::DelayCompletion(7));
    fabric.add_fault(seldom(30), Fault::NotReady(4));
    let once = Pattern {
        times: 1,
        ..seldom(1)
    };
    fabric.add_fault(once, Fault::DropConnection);
    fabric.add_fault(once, Fault::QueuePairFatal);
    fabric.add_fault(once.of(Operation::Read), Fault::Fail(status));
}

/// Returns the number of ends that failed before the end of the test.
fn stress(seed: u64) -> usize {
    let mut failures = 0;
    on_fabric(FabricConfig::manual(seed), |fabric, harness| {
        let mut random = Random::new(seed ^ 0x5eed);
        let mut ends: Vec<[End; 2]> = (0..3)
            .map(|_| {
                let Pair { server, client, .. } = harness.pair();
                [End::new(server), End::new(client)]
            })
            .collect();
        let port = ends[0][0].side.domain.device().clone();
        add_faults(fabric);
        for round in 0..400 {
            if round % 100 == 50 {
                fabric.set_port(&port, false);
                fabric.progress();
                fabric.set_port(&port, true);
            }
            for [one, other] in &mut ends {
                for _ in 0..random.below(4) {
                    one.post_receive();
                    other.post_receive();
                }
                for _ in 0..random.below(4) {
                    one.post_send(&mut random, other);
                    other.post_send(&mut random, one);
                }
                one.side.queue_pair.flush().expect("there is room");
                other.side.queue_pair.flush().expect("there is room");
                one.poll(&other.side);
                other.poll(&one.side);
            }
            fabric.progress();
        }
        fabric.clear_faults();
        failures = ends.iter().flatten().filter(|end| end.failed).count();
        for [one, other] in &mut ends {
            for end in [&mut *one, &mut *other] {
                end.side.queue_pair.set_error().expect("an order");
            }
            // Each poll takes one batch of the remaining completions.
            for _ in 0..32 {
                one.poll(&other.side);
                other.poll(&one.side);
            }
            for end in [one, other] {
                assert!(end.receives.is_empty(), "{:?}", end.receives);
                let mut left = end.sends.iter();
                assert!(left.all(|(_, signalled, _)| !signalled), "{:?}", end.sends);
            }
        }
        assert_balanced(&[&harness.subject.server, &harness.subject.client]);
    });
    failures
}

/// Checks that every posted request has ended.
fn assert_balanced(machines: &[&Fake]) {
    for machine in machines {
        let counters = machine.counters();
        for operation in [
            Operation::Send,
            Operation::Write,
            Operation::Read,
            Operation::Receive,
        ] {
            let of = counters.of(operation);
            let ended = of.succeeded + of.failed + of.flushed;
            assert_eq!(of.posted, ended, "{operation:?} {of:?}");
        }
        let done = counters.of(Operation::Write);
        assert_eq!(done.bytes, done.succeeded * PLACE as u64);
    }
}

#[test]
fn every_request_completes_once_in_order() {
    let mut failures = 0;
    for seed in 0..40 {
        println!("seed {seed}");
        failures += stress(seed);
    }
    assert!(
        (40..200).contains(&failures),
        "{failures} of 240 ends failed"
    );
}
