//! Cases about messages, writes, reads and windows that succeed.

use super::harness::{Harness, Pair, REQUESTS, pattern};
use rdma::{
    CompletionOpcode, CompletionQueue, CompletionStatus, Device, Domain, MemoryWindow, Payload,
    Provider, QueuePair, ReceiveRequest, RemoteAddress, SendOperation, SendRequest, SgeList,
    WindowBinding,
};

/// Offset of the second half of a side's memory.
const HALF: usize = 512 << 10;

pub(super) fn messages_of_all_sizes_arrive<P: Provider>(harness: &mut Harness<'_, P>) {
    let mut pair = harness.pair();
    let Pair { server, client, .. } = &mut pair;
    for (at, len) in [1, 2, 63, 64, 511, 4096, 4097, 65_536, 500_000, 0]
        .into_iter()
        .enumerate()
    {
        let wr_id = at as u64;
        server.receive(wr_id, 3, HALF);
        client.memory.fill(5, len, at);
        client.post(wr_id + 100, SendOperation::Send, (5, len));
        let received = harness.expect_success(server, wr_id);
        assert!(received.is_receive());
        assert_eq!(received.opcode, CompletionOpcode::RECEIVE);
        assert_eq!(received.byte_len as usize, len);
        assert_eq!(received.invalidated(), None);
        let sent = harness.expect_success(client, wr_id + 100);
        assert_eq!(sent.opcode, CompletionOpcode::SEND);
        assert_eq!(server.memory.bytes(3, len), pattern(len, at), "{len} bytes");
    }
}

pub(super) fn messages_gather_and_scatter<P: Provider>(harness: &mut Harness<'_, P>) {
    let mut pair = harness.pair();
    let Pair { server, client, .. } = &mut pair;
    client.memory.fill(0, 1000, 1);
    client.memory.fill(HALF, 3000, 2);
    let mut into = SgeList::one(server.memory.piece(4096, 64));
    into.push(server.memory.piece(HALF + 1, 8192))
        .expect("room for two");
    let receive = ReceiveRequest {
        wr_id: 1,
        memory: into,
    };
    server.queue_pair.queue_receive(&receive).expect("queued");
    server.queue_pair.flush().expect("posted");
    let mut from = SgeList::one(client.memory.piece(0, 1000));
    from.push(client.memory.piece(HALF, 3000))
        .expect("room for two");
    let send = SendRequest::new(2, SendOperation::Send, Payload::Memory(from.as_slice()));
    client.queue_pair.queue_send(&send).expect("queued");
    client.queue_pair.flush().expect("posted");
    let received = harness.expect_success(server, 1);
    assert_eq!(received.byte_len, 4000);
    harness.expect_success(client, 2);
    let mut expected = pattern(1000, 1);
    expected.extend(pattern(3000, 2));
    let mut arrived = server.memory.bytes(4096, 64);
    arrived.extend(server.memory.bytes(HALF + 1, 4000 - 64));
    assert_eq!(arrived, expected);
}

pub(super) fn inline_bytes_are_copied_when_queued<P: Provider>(harness: &mut Harness<'_, P>) {
    let mut pair = harness.pair();
    let Pair { server, client, .. } = &mut pair;
    let most = client.queue_pair.capacity().inline_bytes as usize;
    let len = most.min(16);
    if len == 0 {
        return;
    }
    for at in 0..8u64 {
        server.receive(at, at as usize * 64, 64);
    }
    for at in 0..8u64 {
        // The bytes are on this stack frame, which ends before the flush.
        let bytes = vec![at as u8 + 1; len];
        let send = SendRequest::new(100 + at, SendOperation::Send, Payload::Inline(&bytes));
        client.queue_pair.queue_send(&send).expect("queued");
    }
    let bytes = [0xee; 16];
    let remote = server.memory.remote(HALF);
    let write = SendOperation::Write(remote);
    let write = SendRequest::new(200, write, Payload::Inline(&bytes[..len]));
    client.queue_pair.queue_send(&write).expect("queued");
    client.queue_pair.flush().expect("posted");
    for at in 0..8u64 {
        let received = harness.expect_success(server, at);
        assert_eq!(received.byte_len as usize, len);
        harness.expect_success(client, 100 + at);
        let arrived = server.memory.bytes(at as usize * 64, len);
        assert_eq!(arrived, vec![at as u8 + 1; len]);
    }
    harness.expect_success(client, 200);
    let written = server.memory.bytes(HALF, len);
    assert_eq!(written, vec![0xee; len]);
}

pub(super) fn writes_are_there_before_the_message_behind_them<P: Provider>(
    harness: &mut Harness<'_, P>,
) {
    let mut pair = harness.pair();
    let Pair { server, client, .. } = &mut pair;
    for round in 0..20 {
        let wr_id = round as u64;
        let len = 4096 * (1 + round % 8);
        server.receive(wr_id, 0, 64);
        client.memory.fill(HALF, len, round);
        let write = SendOperation::Write(server.memory.remote(HALF));
        client.queue(wr_id + 100, write, (HALF, len), false);
        client.queue(wr_id + 200, SendOperation::Send, (0, 16), true);
        client.queue_pair.flush().expect("posted in one go");
        harness.expect_success(server, wr_id);
        let arrived = server.memory.bytes(HALF, len);
        assert_eq!(arrived, pattern(len, round), "round {round}");
        harness.expect_success(client, wr_id + 200);
    }
}

pub(super) fn reads_return_the_remote_data<P: Provider>(harness: &mut Harness<'_, P>) {
    let mut pair = harness.pair();
    let Pair { server, client, .. } = &mut pair;
    for (at, len) in [1, 100, 4096, 131_072, 500_001].into_iter().enumerate() {
        let wr_id = at as u64;
        server.memory.fill(7, len, at);
        let read = SendOperation::Read(server.memory.remote(7));
        client.post(wr_id, read, (HALF + 1, len));
        let done = harness.expect_success(client, wr_id);
        assert_eq!(done.opcode, CompletionOpcode::READ);
        let arrived = client.memory.bytes(HALF + 1, len);
        assert_eq!(arrived, pattern(len, at), "{len} bytes");
    }
}

pub(super) fn unsignalled_requests_complete_in_silence<P: Provider>(harness: &mut Harness<'_, P>) {
    let mut pair = harness.pair();
    let Pair { server, client, .. } = &mut pair;
    // Several rounds through the queue: signalled completions free its entries.
    let depth = REQUESTS as usize;
    for round in 0..6 {
        for at in 0..depth {
            client.memory.fill(at * 64, 64, round * depth + at);
            let write = SendOperation::Write(server.memory.remote(at * 64));
            let part = (at * 64, 64);
            client.queue(at as u64, write, part, at + 1 == depth);
        }
        client.queue_pair.flush().expect("a queue full of requests");
        let done = harness.expect_success(client, depth as u64 - 1);
        assert_eq!(done.opcode, CompletionOpcode::WRITE);
    }
    harness.expect_nothing(client);
    let last = client.memory.bytes(0, depth * 64);
    assert_eq!(server.memory.bytes(0, depth * 64), last);
}

pub(super) fn the_last_of_a_turn_is_signalled_when_it_is_posted<P: Provider>(
    harness: &mut Harness<'_, P>,
) {
    let mut pair = harness.pair();
    let Pair { server, client, .. } = &mut pair;
    let write = SendOperation::Write(server.memory.remote(0));
    for turn in 0..3 {
        for at in 0..4 {
            client.queue(10 * turn + at, write, (0, 64), false);
        }
        client.queue_pair.signal_last();
        client.queue_pair.flush().expect("posted");
        // No request is queued any more, so this has no effect on posted ones.
        client.queue_pair.signal_last();
        harness.expect_success(client, 10 * turn + 3);
    }
}

pub(super) fn both_directions_at_once_keep_their_order<P: Provider>(harness: &mut Harness<'_, P>) {
    const MESSAGES: u64 = 300;
    let mut pair = harness.pair();
    let Pair { server, client, .. } = &mut pair;
    let mut sides = [server, client];
    let window = u64::from(REQUESTS) / 2;
    let place = |wr_id: u64| (wr_id % window) as usize * 256;
    for side in &mut sides {
        for wr_id in 0..window {
            side.receive(wr_id, place(wr_id), 256);
        }
    }
    let mut sent = [0u64; 2];
    let mut completed = [0u64; 2];
    let mut received = [0u64; 2];
    while received.iter().chain(&completed).any(|at| *at < MESSAGES) {
        for (me, side) in sides.iter_mut().enumerate() {
            // Half of the peer's receives may be in the process of being reposted.
            while sent[me] < MESSAGES && sent[me] - completed[me].min(received[1 - me]) < window {
                let wr_id = sent[me];
                let at = HALF + place(wr_id);
                side.memory.buffer.write(at, &wr_id.to_le_bytes());
                side.queue(1000 + wr_id, SendOperation::Send, (at, 256), true);
                sent[me] += 1;
            }
            side.queue_pair.flush().expect("posted");
        }
        for (me, side) in sides.iter_mut().enumerate() {
            let completion = harness.completion("a completion", &mut side.completions);
            assert_eq!(completion.status, CompletionStatus::SUCCESS);
            if !completion.is_receive() {
                assert_eq!(completion.wr_id, 1000 + completed[me]);
                completed[me] += 1;
                continue;
            }
            let number = received[me];
            assert_eq!(completion.wr_id, number);
            let bytes = side.memory.bytes(place(number), 8);
            assert_eq!(bytes, number.to_le_bytes(), "messages in order");
            received[me] += 1;
            side.receive(number + window, place(number), 256);
        }
        let done = received.iter().zip(&completed);
        if done.clone().any(|(r, c)| *r == MESSAGES && *c == MESSAGES) {
            break;
        }
    }
}

/// Binds a window over the first 64 KiB of the server's memory; returns its remote address.
fn bind<P: Provider>(
    harness: &mut Harness<'_, P>,
    pair: &mut Pair<P>,
    window: &mut P::Window,
) -> RemoteAddress {
    let server = &mut pair.server;
    let address = server.memory.piece(0, 1).address();
    let binding = WindowBinding {
        wr_id: 500,
        address,
        length: 65_536,
        remote_read: true,
        remote_write: true,
        signalled: true,
    };
    let before = window.rkey();
    let registration = &server.memory.registration;
    server
        .queue_pair
        .queue_bind(window, registration, &binding)
        .expect("queued");
    assert_ne!(window.rkey(), before, "each binding has a new key");
    server.queue_pair.flush().expect("posted");
    let bound = harness.expect_success(server, 500);
    assert_eq!(bound.opcode, CompletionOpcode::BIND_WINDOW);
    RemoteAddress {
        address,
        rkey: window.rkey(),
    }
}

/// A pair and a window, if the device has windows.
fn with_window<P: Provider>(harness: &mut Harness<'_, P>) -> Option<(Pair<P>, P::Window)> {
    let pair = harness.pair();
    if pair.server.domain.device().limits().windows == 0 {
        return None;
    }
    let window = pair.server.domain.create_window().expect("a window");
    Some((pair, window))
}

/// Checks that the client's write with this key fails, and that the connection fails with it.
fn assert_closed<P: Provider>(
    harness: &mut Harness<'_, P>,
    pair: &mut Pair<P>,
    remote: RemoteAddress,
) {
    pair.server.memory.fill(0, 64, 77);
    let write = SendOperation::Write(remote);
    pair.client.post(900, write, (HALF, 64));
    let status = CompletionStatus::REMOTE_ACCESS_ERROR;
    harness.expect(&mut pair.client, 900, status);
    assert_eq!(pair.server.memory.bytes(0, 64), pattern(64, 77));
}

pub(super) fn a_window_grants_access_and_is_invalidated_by_the_peer<P: Provider>(
    harness: &mut Harness<'_, P>,
) {
    let Some((mut pair, mut window)) = with_window(harness) else {
        return;
    };
    for round in 0..3 {
        let remote = bind(harness, &mut pair, &mut window);
        pair.server.receive(1, HALF, 64);
        pair.client.memory.fill(0, 4096, round);
        let write = SendOperation::Write(remote);
        pair.client.queue(2, write, (0, 4096), false);
        let rkey = remote.rkey;
        let send = SendOperation::SendWithInvalidate { rkey };
        pair.client.queue(3, send, (0, 16), true);
        pair.client.queue_pair.flush().expect("posted");
        let received = harness.expect_success(&mut pair.server, 1);
        assert_eq!(received.invalidated(), Some(rkey));
        assert_eq!(pair.server.memory.bytes(0, 4096), pattern(4096, round));
        harness.expect_success(&mut pair.client, 3);
    }
    let remote = RemoteAddress {
        address: pair.server.memory.piece(0, 1).address(),
        rkey: window.rkey(),
    };
    assert_closed(harness, &mut pair, remote);
}

pub(super) fn a_window_is_invalidated_by_its_owner<P: Provider>(harness: &mut Harness<'_, P>) {
    let Some((mut pair, mut window)) = with_window(harness) else {
        return;
    };
    let remote = bind(harness, &mut pair, &mut window);
    pair.client.memory.fill(HALF, 64, 5);
    let write = SendOperation::Write(remote);
    pair.client.post(1, write, (HALF, 64));
    harness.expect_success(&mut pair.client, 1);
    let invalidate = SendOperation::LocalInvalidate { rkey: remote.rkey };
    let request = SendRequest::new(2, invalidate, Payload::Memory(&[]));
    pair.server.queue_pair.queue_send(&request).expect("queued");
    pair.server.queue_pair.flush().expect("posted");
    let done = harness.expect_success(&mut pair.server, 2);
    assert_eq!(done.opcode, CompletionOpcode::LOCAL_INVALIDATE);
    assert_closed(harness, &mut pair, remote);
    let mut rest = [rdma::WorkCompletion::default(); 4];
    pair.server.completions.poll(&mut rest).expect("works");
}
