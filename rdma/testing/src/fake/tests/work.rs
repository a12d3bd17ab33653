//! Tests of the fabric's counters, of its allocations, and of its use by two threads.

use hugemem::allocation_counter::allocations_on_this_thread;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{on_fabric, on_immediate_fabric};
use crate::conformance::harness::{Pair, REQUESTS, Side};
use crate::fake::{FabricConfig, Fake, Operation};
use rdma::{
    CompletionQueue, Payload, QueuePair, ReceiveRequest, Registration, SendOperation, SendRequest,
    WorkCompletion,
};

#[test]
fn work_is_counted_per_machine() {
    on_immediate_fabric(|_, harness| {
        let mut pair = harness.pair();
        let Pair { server, client, .. } = &mut pair;
        let (server_start, client_start) = (
            harness.subject.server.counters(),
            harness.subject.client.counters(),
        );
        assert_eq!(server_start.sends_posted(), 0);
        client.receive(1, 0, 64);
        // A target's part of one read: the data and the response in one post.
        let write = SendOperation::Write(client.memory.remote(4096));
        server.queue(2, write, (0, 4096), false);
        let response = [7; 16];
        let send = SendRequest::new(3, SendOperation::Send, Payload::Inline(&response));
        server.queue_pair.queue_send(&send).expect("queued");
        server.queue_pair.flush().expect("posted");
        harness.expect_success(client, 1);
        harness.expect_success(server, 3);
        let counters = harness.subject.server.counters();
        let write = counters.of(Operation::Write);
        assert_eq!((write.posted, write.succeeded, write.bytes), (1, 1, 4096));
        let send = counters.of(Operation::Send);
        assert_eq!((send.posted, send.succeeded, send.bytes), (1, 1, 16));
        assert_eq!(counters.sends_posted(), 2);
        assert_eq!((counters.completions, counters.doorbells), (1, 1));
        assert_eq!((counters.inline, counters.not_ready), (1, 0));
        let there = harness.subject.client.counters();
        let receive = there.of(Operation::Receive);
        let posted = receive.posted - client_start.of(Operation::Receive).posted;
        assert_eq!((posted, receive.succeeded, receive.bytes), (1, 1, 16));
        assert_eq!(there.of(Operation::Write).posted, 0);
        client.queue_pair.set_error().expect("an order");
        client.post(9, SendOperation::Send, (0, 64));
        let flushed = harness.subject.client.counters().of(Operation::Send);
        assert_eq!((flushed.posted, flushed.flushed), (1, 1));
        let mut sum = counters;
        sum += there;
        assert_eq!(sum.of(Operation::Send).posted, 1);
        assert_eq!(sum.completions, counters.completions + there.completions);
    });
}

#[test]
fn fabric_order_is_reproducible_from_the_seed() {
    let run = |seed| {
        let mut order = Vec::new();
        on_fabric(FabricConfig::manual(seed), |fabric, harness| {
            let mut pairs: Vec<_> = (0..4).map(|_| harness.pair()).collect();
            for (at, pair) in pairs.iter_mut().enumerate() {
                let write = SendOperation::Write(pair.server.memory.remote(0));
                for wr_id in 0..16 {
                    let wr_id = at as u64 * 100 + wr_id;
                    pair.client.queue(wr_id, write, (0, 64), true);
                }
                pair.client.queue_pair.flush().expect("posted");
            }
            for _ in 0..100 {
                fabric.progress();
                for pair in &mut pairs {
                    let mut batch = [WorkCompletion::default(); 16];
                    let count = pair.client.completions.poll(&mut batch).expect("works");
                    order.extend(batch[..count].iter().map(|one| one.wr_id));
                }
            }
        });
        assert_eq!(order.len(), 64);
        order
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

/// One message each way, with the calls that a transport makes.
fn ping_pong(server: &mut Side<Fake>, client: &mut Side<Fake>) {
    for side in [&mut *server, &mut *client] {
        let memory = side.memory.piece(0, 64).into();
        let request = ReceiveRequest { wr_id: 1, memory };
        side.queue_pair.queue_receive(&request).expect("queued");
        side.queue_pair.flush().expect("posted");
    }
    for side in [&mut *server, &mut *client] {
        let send = SendRequest::new(2, SendOperation::Send, Payload::Inline(&[1; 64]));
        side.queue_pair.queue_send(&send).expect("queued");
        side.queue_pair.flush().expect("posted");
    }
    for side in [server, client] {
        let mut done = 0;
        while done < 2 {
            let mut batch = [WorkCompletion::default(); 4];
            done += side.completions.poll(&mut batch).expect("works");
            assert!(batch[..1].iter().all(WorkCompletion::is_success));
        }
    }
}

#[test]
fn posting_and_polling_do_not_allocate() {
    on_immediate_fabric(|_, harness| {
        let mut pair = harness.pair();
        let Pair { server, client, .. } = &mut pair;
        // A waiting send, so that the lists of waiting queue pairs are in use too.
        let mut waiting = harness.pair();
        waiting.client.post(1, SendOperation::Send, (0, 64));
        ping_pong(server, client);
        let before = allocations_on_this_thread();
        for _ in 0..200 {
            ping_pong(server, client);
        }
        let write = SendOperation::Write(server.memory.remote(0));
        for _ in 0..4 {
            for wr_id in 1..=u64::from(REQUESTS) {
                let last = wr_id == u64::from(REQUESTS);
                client.queue(wr_id, write, (0, 64), last);
            }
            client.queue_pair.flush().expect("posted");
            let mut batch = [WorkCompletion::default(); 4];
            assert_eq!(client.completions.poll(&mut batch).expect("works"), 1);
        }
        assert_eq!(allocations_on_this_thread() - before, 0);
    });
}

/// Sleeps until the completion queue has a completion.
fn next(side: &mut Side<Fake>) -> WorkCompletion {
    loop {
        let mut one = [WorkCompletion::default()];
        if side.completions.poll(&mut one).expect("works") == 1 {
            return one[0];
        }
        side.completions.acknowledge().expect("works");
        side.completions.arm(false).expect("armed");
        if side.completions.poll(&mut one).expect("works") == 1 {
            return one[0];
        }
        let descriptor = side.completions.descriptor();
        let mut one = [PollFd::new(&descriptor, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        let ready = poll(&mut one, Some(&timeout)).expect("poll");
        assert_eq!(ready, 1, "a wake-up");
    }
}

#[test]
fn two_threads_share_a_fabric() {
    const ROUNDS: u64 = 2000;
    on_immediate_fabric(|_, harness| {
        let Pair {
            mut server,
            mut client,
            listener: _listener,
        } = harness.pair();
        assert_ne!(
            server.memory.registration.rkey(),
            client.memory.registration.rkey()
        );
        server.receive(0, 0, 64);
        client.receive(0, 0, 64);
        let echo = std::thread::spawn(move || {
            for round in 0..ROUNDS {
                while !next(&mut server).is_receive() {}
                let bytes = server.memory.bytes(0, 8);
                assert_eq!(bytes, round.to_le_bytes());
                server.receive(0, 0, 64);
                server.memory.buffer.write(64, &bytes);
                server.post(1, SendOperation::Send, (64, 8));
            }
            // The last response must be sent before the connection is dropped.
            while next(&mut server).is_receive() {}
        });
        for round in 0..ROUNDS {
            client.memory.buffer.write(64, &round.to_le_bytes());
            client.post(1, SendOperation::Send, (64, 8));
            while !next(&mut client).is_receive() {}
            assert_eq!(client.memory.bytes(0, 8), round.to_le_bytes());
            client.receive(0, 0, 64);
        }
        echo.join().expect("the other thread");
    });
}
