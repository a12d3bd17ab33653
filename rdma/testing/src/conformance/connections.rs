//! Cases about devices, listeners, and setup and teardown of connections.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::harness::{Harness, LISTENER, Pair, PairOptions, queue_pair};
use rdma::{
    CONNECT_PRIVATE_DATA_MAX, CompletionStatus, ConnectParameters, ConnectRequest, Connection,
    ConnectionEvent, Device, Error, Event, EventChannel, Listener, Provider, QueuePair,
    QueuePairState, REJECT_PRIVATE_DATA_MAX, RNR_RETRY_FOREVER, RejectReason, Token,
};

/// Parameters that every provider accepts.
fn parameters(private_data: &[u8]) -> ConnectParameters<'_> {
    ConnectParameters {
        private_data,
        initiator_depth: 1,
        responder_resources: 1,
        retries: 7,
        rnr_retries: RNR_RETRY_FOREVER,
    }
}

pub(super) fn devices_report_their_limits<P: Provider>(harness: &mut Harness<'_, P>) {
    let devices = harness.subject.server.devices().expect("devices");
    assert!(!devices.is_empty());
    for device in &devices {
        assert!(!device.name().is_empty());
        let limits = device.limits();
        assert!(limits.ports >= 1 && limits.queue_pairs >= 1, "{limits:?}");
        assert!(limits.sges >= 1 && limits.read_sges >= 1, "{limits:?}");
        assert!(limits.reads_incoming >= 1 && limits.reads_outgoing >= 1);
        assert!(limits.registration_bytes >= 1 << 20, "{limits:?}");
        device.port_is_up(1).expect("port 1");
        let same = devices.iter().filter(|one| one.index() == device.index());
        assert_eq!(same.count(), 1, "each device has its own index");
    }
    let again = harness.subject.server.devices().expect("devices");
    let of = |devices: &[P::Device]| -> Vec<_> {
        let each = devices.iter();
        each.map(|one| (one.index(), one.name().to_owned()))
            .collect()
    };
    assert_eq!(of(&devices), of(&again), "an index is for ever");
}

pub(super) fn both_sides_exchange_parameters<P: Provider>(harness: &mut Harness<'_, P>) {
    let options = PairOptions {
        depth: 3,
        ..PairOptions::default()
    };
    let (pair, [at_client, at_server], private_data) = harness.pair_with(options);
    assert!(private_data.as_slice().starts_with(b"from the client"));
    let padding = &private_data.as_slice()[b"from the client".len()..];
    assert!(padding.iter().all(|byte| *byte == 0), "{padding:?}");
    let ConnectionEvent::Established {
        private_data,
        initiator_depth,
        responder_resources,
    } = at_client
    else {
        panic!("{at_client:?}");
    };
    assert!(private_data.as_slice().starts_with(b"from the server"));
    assert_eq!((initiator_depth, responder_resources), (3, 3));
    let established = matches!(at_server, ConnectionEvent::Established { .. });
    assert!(established, "{at_server:?}");

    let Pair {
        server,
        client,
        listener,
    } = &pair;
    let reached = listener.local_address();
    assert_eq!(server.connection.local_address(), Some(reached));
    assert_eq!(client.connection.peer_address(), Some(reached));
    let from = client.connection.local_address().expect("connected");
    assert_eq!(server.connection.peer_address(), Some(from));
    for side in [server, client] {
        let state = side.queue_pair.state().expect("a state");
        assert_eq!(state, QueuePairState::ReadyToSend);
    }
    assert_eq!(server.connection.token(), Token(1001));
    let device = server.connection.device().expect("a device");
    assert!(!device.name().is_empty());
}

pub(super) fn a_listener_gets_an_exclusive_port<P: Provider>(harness: &mut Harness<'_, P>) {
    let (mut channel, listener) = harness.listen();
    let address = listener.local_address();
    assert_eq!(address.ip(), harness.subject.address);
    assert_ne!(address.port(), 0);
    let again = channel.listen(address, 1, Token(8));
    assert!(matches!(again, Err(Error::System { .. })), "{again:?}");
    drop(listener);
    channel
        .listen(address, 1, LISTENER)
        .expect("the port is free again");
}

pub(super) fn a_port_without_listener_rejects<P: Provider>(harness: &mut Harness<'_, P>) {
    let (_, listener) = harness.listen();
    let address = listener.local_address();
    drop(listener);
    let mut channel = harness.subject.client.event_channel().expect("a channel");
    let mut connection = harness.route(&mut channel, Token(5), address);
    let create_resources =
        harness.create_resources(&connection.device().unwrap(), PairOptions::default().access);
    let capacity = PairOptions::default().capacity;
    let pair = queue_pair(&mut connection, &create_resources, capacity);
    connection.connect(&parameters(b"")).expect("asking");
    let event = harness.connection_event("a rejection", &mut channel, Token(5));
    let ConnectionEvent::Rejected { reason, .. } = event else {
        panic!("{event:?}");
    };
    assert_eq!(reason, RejectReason::NO_LISTENER);
    drop(pair);
}

pub(super) fn a_foreign_address_is_refused<P: Provider>(harness: &mut Harness<'_, P>) {
    let mut channel = harness.subject.server.event_channel().expect("a channel");
    // An address of the documentation range (RFC 5737), which no machine has.
    let foreign = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 77)), 4420);
    let refused = channel.listen(foreign, 1, LISTENER);
    harness.assert_not_on_device(&refused.expect_err("nobody's address"));
}

/// A request that waits at the server, and the client's connection.
struct PendingConnect<P: Provider> {
    request: P::ConnectRequest,
    server_channel: P::EventChannel,
    client_channel: P::EventChannel,
    client: P::Connection,
    _keep: Box<dyn std::any::Any>,
}

fn ask<P: Provider>(harness: &mut Harness<'_, P>) -> PendingConnect<P> {
    let (mut server_channel, listener) = harness.listen();
    let mut client_channel = harness.subject.client.event_channel().expect("a channel");
    let mut client = harness.route(&mut client_channel, Token(5), listener.local_address());
    let create_resources =
        harness.create_resources(&client.device().unwrap(), PairOptions::default().access);
    let capacity = PairOptions::default().capacity;
    let pair = queue_pair(&mut client, &create_resources, capacity);
    client.connect(&parameters(b"hello")).expect("asking");
    let request = harness.request(&mut server_channel);
    PendingConnect {
        request,
        server_channel,
        client_channel,
        client,
        _keep: Box::new((pair, create_resources, listener)),
    }
}

pub(super) fn a_reject_carries_private_data<P: Provider>(harness: &mut Harness<'_, P>) {
    let mut pending_connect = ask(harness);
    pending_connect
        .request
        .reject(&[1, 2, 3, 4])
        .expect("rejected");
    let channel = &mut pending_connect.client_channel;
    let event = harness.connection_event("the reject", channel, Token(5));
    let ConnectionEvent::Rejected {
        reason,
        private_data,
    } = event
    else {
        panic!("{event:?}");
    };
    assert_eq!(reason, RejectReason::BY_CONSUMER);
    assert!(private_data.as_slice().starts_with(&[1, 2, 3, 4]));

    // The same for a request that was turned into a connection first.
    let mut pending_connect = ask(harness);
    let channel = &mut pending_connect.server_channel;
    let connection = pending_connect.request.into_connection(channel, Token(6));
    connection
        .expect("a connection")
        .reject(&[9])
        .expect("rejected");
    let channel = &mut pending_connect.client_channel;
    let event = harness.connection_event("the reject", channel, Token(5));
    let rejected = matches!(event, ConnectionEvent::Rejected { private_data, .. }
        if private_data.as_slice().starts_with(&[9]));
    assert!(rejected, "{event:?}");
    drop(pending_connect.client);
}

pub(super) fn a_dropped_request_is_rejected<P: Provider>(harness: &mut Harness<'_, P>) {
    let mut pending_connect = ask(harness);
    assert!(
        pending_connect
            .request
            .private_data()
            .as_slice()
            .starts_with(b"hello")
    );
    assert_eq!(pending_connect.request.initiator_depth(), 1);
    assert_eq!(pending_connect.request.responder_resources(), 1);
    assert_eq!(
        Some(pending_connect.request.local_address()),
        pending_connect.client.peer_address()
    );
    assert_eq!(
        Some(pending_connect.request.peer_address()),
        pending_connect.client.local_address()
    );
    drop(pending_connect.request);
    let channel = &mut pending_connect.client_channel;
    let event = harness.connection_event("the reject", channel, Token(5));
    let rejected = matches!(event, ConnectionEvent::Rejected { .. });
    assert!(rejected, "{event:?}");
}

pub(super) fn a_request_moves_to_another_thread<P: Provider>(harness: &mut Harness<'_, P>) {
    let PendingConnect {
        request,
        mut server_channel,
        mut client_channel,
        client,
        _keep,
    } = ask(harness);
    let device = request.device().clone();
    let create_resources = harness.create_resources(&device, PairOptions::default().access);
    let provider = harness.subject.server.clone();
    let accepted = std::thread::spawn(move || {
        let mut channel = provider.event_channel().expect("a channel");
        let connection = request.into_connection(&mut channel, Token(77));
        let mut connection = connection.expect("a connection");
        let capacity = PairOptions::default().capacity;
        let pair = queue_pair(&mut connection, &create_resources, capacity);
        connection.accept(&parameters(b"")).expect("accepted");
        (channel, connection, pair, create_resources)
    });
    let (mut channel, connection, pair, create_resources) =
        accepted.join().expect("the other thread");
    let event = harness.connection_event("the accept", &mut client_channel, Token(5));
    let established = matches!(event, ConnectionEvent::Established { .. });
    assert!(established, "{event:?}");
    let event = harness.connection_event("established", &mut channel, Token(77));
    let established = matches!(event, ConnectionEvent::Established { .. });
    assert!(established, "{event:?}");
    let nothing = server_channel.next_event().expect("the channel works");
    assert!(nothing.is_none(), "{nothing:?}");
    drop((client, connection, pair, create_resources));
}

pub(super) fn too_much_private_data_is_refused<P: Provider>(harness: &mut Harness<'_, P>) {
    let (_server_channel, listener) = harness.listen();
    let mut channel = harness.subject.client.event_channel().expect("a channel");
    let mut connection = harness.route(&mut channel, Token(5), listener.local_address());
    let create_resources =
        harness.create_resources(&connection.device().unwrap(), PairOptions::default().access);
    let pair = queue_pair(
        &mut connection,
        &create_resources,
        PairOptions::default().capacity,
    );
    let long = [0; 1024];
    let refused = connection.connect(&parameters(&long));
    assert!(
        matches!(refused, Err(Error::PrivateDataTooLong { len: 1024, limit })
            if limit >= CONNECT_PRIVATE_DATA_MAX),
        "{refused:?}"
    );
    drop(pair);

    let pending_connect = ask(harness);
    let refused = pending_connect.request.reject(&long);
    assert!(
        matches!(refused, Err(Error::PrivateDataTooLong { len: 1024, limit })
            if limit >= REJECT_PRIVATE_DATA_MAX),
        "{refused:?}"
    );
}

/// Whether a descriptor is readable now.
pub(super) fn is_readable(descriptor: std::os::fd::BorrowedFd<'_>) -> bool {
    let mut one = [PollFd::new(&descriptor, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut one, Some(&now)).expect("poll") == 1
}

pub(super) fn channels_are_readable_when_they_have_something<P: Provider>(
    harness: &mut Harness<'_, P>,
) {
    let (mut channel, listener) = harness.listen();
    assert!(channel.next_event().expect("works").is_none());
    assert!(!is_readable(channel.descriptor()));
    let mut client_channel = harness.subject.client.event_channel().expect("a channel");
    let mut client = client_channel.connection(Token(5)).expect("a connection");
    let step_timeout = harness.subject.step_timeout;
    client
        .resolve_address(None, listener.local_address(), step_timeout)
        .expect("resolving");
    harness.wait("a readable channel", || {
        is_readable(client_channel.descriptor()).then_some(())
    });
    let event = client_channel.next_event().expect("works");
    let resolved = matches!(
        event,
        Some(Event::Connection {
            token: Token(5),
            event: ConnectionEvent::AddressResolved
        })
    );
    assert!(resolved, "{event:?}");
    assert!(client_channel.next_event().expect("works").is_none());
    assert!(!is_readable(client_channel.descriptor()));
}

pub(super) fn a_disconnect_notifies_both_sides_and_flushes<P: Provider>(
    harness: &mut Harness<'_, P>,
) {
    let Pair {
        mut server,
        mut client,
        listener: _listener,
    } = harness.pair();
    server.receive(1, 0, 4096);
    client.receive(2, 0, 4096);
    client.connection.disconnect().expect("disconnecting");
    harness.expect(&mut client, 2, CompletionStatus::FLUSHED);
    // The peer first: a connection manager notifies the initiating side after the peer has replied.
    for (side, token) in [(&mut server, Token(1001)), (&mut client, Token(2002))] {
        let event = harness.connection_event("the end", &mut side.channel, token);
        assert_eq!(event, ConnectionEvent::Disconnected);
    }
    harness.expect(&mut server, 1, CompletionStatus::FLUSHED);
    for side in [&server, &client] {
        let state = side.queue_pair.state().expect("a state");
        assert_eq!(state, QueuePairState::Error);
    }
    client.connection.disconnect().expect("again is nothing");
    server.connection.disconnect().expect("again is nothing");
}

pub(super) fn a_dropped_connection_notifies_the_peer<P: Provider>(harness: &mut Harness<'_, P>) {
    let Pair {
        mut server,
        client,
        listener: _listener,
    } = harness.pair();
    server.receive(1, 0, 4096);
    drop(client.queue_pair);
    drop(client.connection);
    let event = harness.connection_event("the end", &mut server.channel, Token(1001));
    assert_eq!(event, ConnectionEvent::Disconnected);
    harness.expect(&mut server, 1, CompletionStatus::FLUSHED);
}

pub(super) fn many_connections_come_and_go<P: Provider>(harness: &mut Harness<'_, P>) {
    for round in 0..4 {
        let mut pairs: Vec<Pair<P>> = (0..4).map(|_| harness.pair()).collect();
        for (at, pair) in pairs.iter_mut().enumerate() {
            let wr_id = at as u64 * 10;
            pair.server.receive(wr_id + 1, 0, 64);
            pair.client.memory.fill(0, 64, at + round);
            let message = rdma::SendOperation::Send;
            pair.client.post(wr_id + 2, message, (0, 64));
        }
        for (at, pair) in pairs.iter_mut().enumerate() {
            let wr_id = at as u64 * 10;
            harness.expect_success(&mut pair.server, wr_id + 1);
            harness.expect_success(&mut pair.client, wr_id + 2);
            let sent = pair.client.memory.bytes(0, 64);
            assert_eq!(pair.server.memory.bytes(0, 64), sent);
        }
        // A vector drops its first element first; every second round reverses that.
        if round % 2 == 1 {
            pairs.reverse();
        }
    }
}
