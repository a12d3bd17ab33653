//! Cases about completion queues, shared receive queues, and lifetimes of objects.

use std::slice;

use super::connections::is_readable;
use super::harness::{Harness, Memory, Pair, PairOptions, REQUESTS, pattern};
use rdma::{
    Access, CompletionQueue, CompletionStatus, ConnectParameters, ConnectRequest, Connection,
    ConnectionEvent, Device, DeviceEvent, Domain, Listener, Payload, Provider, QueuePair,
    QueuePairOptions, RNR_RETRY_FOREVER, ReceiveRequest, SendOperation, SendRequest,
    SharedReceiveQueue, Token, WorkCompletion,
};

const SHARED: Token = Token(4711);

/// A server whose queue pairs share one receive queue, and its clients.
struct Shared<P: Provider> {
    receives: P::SharedReceiveQueue,
    completions: P::CompletionQueue,
    memory: Memory<P>,
    domain: P::Domain,
    servers: Vec<(P::QueuePair, P::Connection)>,
    clients: Vec<(P::QueuePair, P::Connection)>,
    client_completions: P::CompletionQueue,
    client_memory: Memory<P>,
    _channels: (P::EventChannel, P::EventChannel),
    _listener: P::Listener,
}

/// `None` if the device has no shared receive queues.
fn shared<P: Provider>(harness: &mut Harness<'_, P>, count: u64) -> Option<Shared<P>> {
    let capacity = PairOptions::default().capacity;
    let parameters = ConnectParameters {
        private_data: b"",
        initiator_depth: 1,
        responder_resources: 1,
        retries: 7,
        rnr_retries: RNR_RETRY_FOREVER,
    };
    let (mut server_channel, listener) = harness.listen();
    let mut client_channel = harness.subject.client.event_channel().expect("a channel");
    let (mut server_side, mut client_side) = (None, None);
    let (mut servers, mut clients) = (Vec::new(), Vec::new());
    for at in 0..count {
        let (client_token, server_token) = (Token(at), Token(100 + at));
        let to = listener.local_address();
        let mut client = harness.route(&mut client_channel, client_token, to);
        let device = client.device().expect("known");
        let (domain, completions, _) =
            &*client_side.get_or_insert_with(|| harness.create_resources(&device, Access::REMOTE));
        let options = QueuePairOptions {
            send_completions: completions,
            receive_completions: completions,
            shared_receives: None,
            capacity,
        };
        let client_pair = client.create_queue_pair(domain, &options).expect("a pair");
        client.connect(&parameters).expect("asking");
        let request = harness.request(&mut server_channel);
        let device = request.device().clone();
        if device.limits().shared_receive_queues == 0 {
            return None;
        }
        let (domain, completions, _, receives) = &*server_side.get_or_insert_with(|| {
            let (domain, completions, memory) = harness.create_resources(&device, Access::LOCAL);
            let receives = domain.create_shared_receive_queue(REQUESTS, 1, SHARED);
            (domain, completions, memory, receives.expect("a queue"))
        });
        let options = QueuePairOptions {
            send_completions: completions,
            receive_completions: completions,
            shared_receives: Some(receives),
            capacity,
        };
        let server = request.into_connection(&mut server_channel, server_token);
        let mut server = server.expect("a connection");
        let server_pair = server.create_queue_pair(domain, &options).expect("a pair");
        server.accept(&parameters).expect("accepting");
        for (channel, token) in [
            (&mut client_channel, client_token),
            (&mut server_channel, server_token),
        ] {
            let event = harness.connection_event("established", channel, token);
            let established = matches!(event, ConnectionEvent::Established { .. });
            assert!(established, "{event:?}");
        }
        servers.push((server_pair, server));
        clients.push((client_pair, client));
    }
    let (domain, completions, memory, receives) = server_side?;
    let (_, client_completions, client_memory) = client_side?;
    Some(Shared {
        receives,
        completions,
        memory,
        domain,
        servers,
        clients,
        client_completions,
        client_memory,
        _channels: (server_channel, client_channel),
        _listener: listener,
    })
}

impl<P: Provider> Shared<P> {
    fn receive(&mut self, wr_id: u64) {
        let memory = self.memory.piece(wr_id as usize * 64, 64).into();
        let request = ReceiveRequest { wr_id, memory };
        self.receives.queue_receive(&request).expect("queued");
    }

    fn send(&mut self, client: usize, wr_id: u64) {
        let at = wr_id as usize * 64;
        self.client_memory.fill(at, 64, wr_id as usize);
        let piece = self.client_memory.piece(at, 64);
        let request = SendRequest::new(
            wr_id,
            SendOperation::Send,
            Payload::Memory(slice::from_ref(&piece)),
        );
        let queue_pair = &mut self.clients[client].0;
        queue_pair.queue_send(&request).expect("queued");
        queue_pair.flush().expect("posted");
    }
}

pub(super) fn a_shared_receive_queue_serves_several<P: Provider>(harness: &mut Harness<'_, P>) {
    let Some(mut shared) = shared(harness, 3) else {
        return;
    };
    assert!(shared.receives.requests() >= REQUESTS);
    let receive = ReceiveRequest {
        wr_id: 1,
        memory: shared.memory.piece(0, 64).into(),
    };
    let own = shared.servers[0].0.queue_receive(&receive);
    assert_eq!(own, Err(rdma::PostError::NotPossible));
    for wr_id in 0..30 {
        shared.receive(wr_id);
    }
    shared.receives.flush().expect("posted");
    for wr_id in 0..30 {
        shared.send((wr_id % 3) as usize, wr_id);
    }
    let mut seen = [0usize; 3];
    for _ in 0..30 {
        let received = harness.completion("a receive", &mut shared.completions);
        assert_eq!(received.status, CompletionStatus::SUCCESS, "{received:?}");
        let from = shared.servers.iter();
        let mut from = from.map(|(queue_pair, _)| queue_pair.number());
        let from = from.position(|number| number == received.qp_number);
        let from = from.expect("a queue pair of ours");
        // The n-th message of a client; it may be in any receive.
        let sent = seen[from] * 3 + from;
        seen[from] += 1;
        let bytes = shared.memory.bytes(received.wr_id as usize * 64, 64);
        assert_eq!(bytes, pattern(64, sent));
    }
    assert_eq!(seen, [10, 10, 10]);
    for _ in 0..30 {
        let sent = harness.completion("a send", &mut shared.client_completions);
        assert!(sent.is_success(), "{sent:?}");
    }
    // A failed queue pair does not affect the shared receives of the others.
    shared.receive(40);
    shared.receives.flush().expect("posted");
    shared.servers[0].0.set_error().expect("an order");
    shared.send(1, 41);
    let received = harness.completion("a receive", &mut shared.completions);
    assert_eq!((received.wr_id, received.is_success()), (40, true));
}

pub(super) fn a_shared_receive_queue_reports_the_low_limit<P: Provider>(
    harness: &mut Harness<'_, P>,
) {
    let Some(mut shared) = shared(harness, 1) else {
        return;
    };
    for wr_id in 0..8 {
        shared.receive(wr_id);
    }
    shared.receives.flush().expect("posted");
    shared.receives.set_low_limit(6).expect("a limit");
    let device = shared.domain.device().clone();
    // Discard earlier events.
    while device.next_event().is_some() {}
    for wr_id in 0..4 {
        shared.send(0, wr_id);
    }
    let event = harness.wait("the event", || device.next_event());
    assert_eq!(event, DeviceEvent::ReceivesLow { token: SHARED });
    for _ in 0..4 {
        harness.completion("a receive", &mut shared.completions);
    }
    assert_eq!(device.next_event(), None, "told once");
}

pub(super) fn a_completion_wakes_a_sleeper_once<P: Provider>(harness: &mut Harness<'_, P>) {
    let mut pair = harness.pair();
    let Pair { server, client, .. } = &mut pair;
    for wr_id in 1..=3 {
        server.receive(wr_id, 0, 64);
    }
    assert!(!server.completions.acknowledge().expect("works"));
    server.completions.arm(false).expect("armed");
    assert!(!is_readable(server.completions.descriptor()));
    client.post(11, SendOperation::Send, (0, 64));
    let descriptor = server.completions.descriptor();
    harness.wait("the wake-up", || is_readable(descriptor).then_some(()));
    assert!(server.completions.acknowledge().expect("works"));
    harness.expect_success(server, 1);
    assert!(!is_readable(server.completions.descriptor()));
    // Not armed: the next completions are only polled.
    client.post(12, SendOperation::Send, (0, 64));
    harness.expect_success(server, 2);
    assert!(!is_readable(server.completions.descriptor()));
    server.completions.arm(false).expect("armed again");
    client.post(13, SendOperation::Send, (0, 64));
    let descriptor = server.completions.descriptor();
    harness.wait("the wake-up", || is_readable(descriptor).then_some(()));
    assert!(server.completions.acknowledge().expect("works"));
    harness.expect_success(server, 3);
    for wr_id in 11..=13 {
        harness.expect_success(client, wr_id);
    }
}

pub(super) fn solicited_completions_wake_and_others_do_not<P: Provider>(
    harness: &mut Harness<'_, P>,
) {
    let mut pair = harness.pair();
    let Pair { server, client, .. } = &mut pair;
    server.receive(1, 0, 64);
    server.receive(2, 0, 64);
    server.completions.arm(true).expect("armed");
    client.post(11, SendOperation::Send, (0, 64));
    harness.expect_success(server, 1);
    assert!(!is_readable(server.completions.descriptor()));
    let piece = client.memory.piece(0, 64);
    let mut request = SendRequest::new(
        12,
        SendOperation::Send,
        Payload::Memory(slice::from_ref(&piece)),
    );
    request.solicited = true;
    client.queue_pair.queue_send(&request).expect("queued");
    client.queue_pair.flush().expect("posted");
    let descriptor = server.completions.descriptor();
    harness.wait("the wake-up", || is_readable(descriptor).then_some(()));
    assert!(server.completions.acknowledge().expect("works"));
    harness.expect_success(server, 2);
}

pub(super) fn completions_are_polled_in_batches<P: Provider>(harness: &mut Harness<'_, P>) {
    let mut pair = harness.pair();
    let Pair { server, client, .. } = &mut pair;
    let write = SendOperation::Write(server.memory.remote(0));
    for wr_id in 0..20 {
        client.queue(wr_id, write, (0, 64), true);
    }
    client.queue_pair.flush().expect("posted");
    let mut next = 0;
    let mut none = [];
    assert_eq!(client.completions.poll(&mut none).expect("works"), 0);
    while next < 20 {
        let completions = &mut client.completions;
        let batch = harness.wait("completions", || {
            let mut batch = [WorkCompletion::default(); 7];
            let count = completions.poll(&mut batch).expect("works");
            (count > 0).then(|| batch[..count].to_vec())
        });
        assert!(batch.len() <= 7);
        for one in batch {
            assert_eq!((one.wr_id, one.is_success()), (next, true), "{one:?}");
            next += 1;
        }
    }
}

pub(super) fn depths_that_were_granted_can_be_used<P: Provider>(harness: &mut Harness<'_, P>) {
    let mut pair = harness.pair();
    let Pair { server, client, .. } = &mut pair;
    let (sends, receives) = (REQUESTS, REQUESTS);
    for wr_id in 0..u64::from(receives) {
        let memory = server.memory.piece(wr_id as usize * 64, 64).into();
        let request = ReceiveRequest { wr_id, memory };
        server.queue_pair.queue_receive(&request).expect("queued");
    }
    server.queue_pair.flush().expect("a queue full of receives");
    for wr_id in 0..u64::from(sends) {
        client.queue(1000 + wr_id, SendOperation::Send, (0, 64), true);
    }
    client.queue_pair.flush().expect("a queue full of sends");
    for wr_id in 0..u64::from(sends) {
        harness.expect_success(client, 1000 + wr_id);
        harness.expect_success(server, wr_id);
    }
}

pub(super) fn children_keep_their_parents<P: Provider>(harness: &mut Harness<'_, P>) {
    let Pair {
        server,
        client,
        listener,
    } = harness.pair();
    drop(listener);
    drop(server.domain);
    drop(client.domain);
    let (mut server_pair, mut client_pair) = (server.queue_pair, client.queue_pair);
    let (mut server_completions, mut client_completions) = (server.completions, client.completions);
    let request = ReceiveRequest {
        wr_id: 1,
        memory: server.memory.piece(0, 64).into(),
    };
    server_pair.queue_receive(&request).expect("queued");
    server_pair.flush().expect("posted");
    client.memory.fill(0, 64, 1);
    let piece = client.memory.piece(0, 64);
    let send = SendRequest::new(
        2,
        SendOperation::Send,
        Payload::Memory(slice::from_ref(&piece)),
    );
    client_pair.queue_send(&send).expect("queued");
    client_pair.flush().expect("posted");
    let received = harness.completion("the message", &mut server_completions);
    assert!(received.is_success(), "{received:?}");
    let sent = harness.completion("the send", &mut client_completions);
    assert!(sent.is_success(), "{sent:?}");
    assert_eq!(server.memory.bytes(0, 64), pattern(64, 1));
    // Parents before children, and the channel before its connection.
    drop(server_completions);
    drop(server.channel);
    drop(client.connection);
    drop(client.channel);
    drop(client_pair);
    drop(client_completions);
    drop(server_pair);
    drop(server.connection);
    drop(server.memory);
    drop(client.memory);
}
