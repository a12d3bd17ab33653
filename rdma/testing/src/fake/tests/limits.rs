//! Tests of full queues, calls in the wrong state, and memory in pieces.
#![expect(unsafe_code, reason = "names memory that is posted nowhere")]

use std::net::{IpAddr, Ipv4Addr};
use std::slice;

use hugemem::{Arena, ArenaConfig, PagePolicy, Region};

use super::foreign::foreign;
use super::on_immediate_fabric;
use crate::conformance::harness::{Pair, PairOptions, REQUESTS, memory, queue_pair};
use crate::fake::{DeviceConfig, Fabric, FabricConfig, Fake};
use rdma::{
    Access, CompletionQueue, CompletionStatus, ConnectParameters, Connection, ConnectionEvent,
    Device, DeviceEvent, DeviceLimits, Domain, DomainMemory, Error, EventChannel, FlushError,
    Listener, MemoryMap, MemoryRange, OVERLAP_BYTES, PostError, Provider, QueuePair,
    QueuePairCapacity, QueuePairOptions, QueuePairState, ReceiveRequest, Registration,
    SendOperation, SgeList, Token, WorkCompletion,
};

/// The pieces of a range of addresses.
fn gather_at(map: &MemoryMap<Fake>, address: usize, len: usize) -> Option<SgeList> {
    // SAFETY: the pieces are compared and not posted.
    unsafe { map.gather_at(address, len) }
}

#[test]
fn full_send_queue_refuses_excess_requests() {
    on_immediate_fabric(|_, harness| {
        let mut pair = harness.pair();
        let Pair { server, client, .. } = &mut pair;
        let write = SendOperation::Write(server.memory.remote(0));
        // Unsignalled requests keep their entries until a signalled one was polled.
        for wr_id in 0..u64::from(REQUESTS) - 2 {
            client.queue(wr_id, write, (0, 64), false);
        }
        client.queue_pair.flush().expect("posted");
        for wr_id in [100, 101, 102, 103] {
            client.queue(wr_id, write, (0, 64), true);
        }
        let refused = FlushError {
            first_wr_id: 102,
            refused: 2,
            cause: PostError::QueueFull,
        };
        assert_eq!(client.queue_pair.flush(), Err(refused));
        harness.expect_success(client, 100);
        harness.expect_success(client, 101);
        harness.expect_nothing(client);
        for wr_id in 0..u64::from(REQUESTS) {
            client.queue(wr_id, write, (0, 64), false);
        }
        client.queue_pair.flush().expect("all places are free");
    });
}

#[test]
fn posted_chain_is_limited_to_the_queue_length() {
    on_immediate_fabric(|_, harness| {
        let mut pair = harness.pair();
        let client = &mut pair.client;
        let piece = client.memory.piece(0, 64);
        let memory = piece.into();
        for wr_id in 0..u64::from(REQUESTS) {
            let request = ReceiveRequest { wr_id, memory };
            client.queue_pair.queue_receive(&request).expect("queued");
        }
        let request = ReceiveRequest { wr_id: 99, memory };
        let refused = client.queue_pair.queue_receive(&request);
        assert_eq!(refused, Err(PostError::QueueFull));
        client.queue_pair.flush().expect("posted");
        client
            .queue_pair
            .queue_receive(&request)
            .expect("a new chain");
        let refused = FlushError {
            first_wr_id: 99,
            refused: 1,
            cause: PostError::QueueFull,
        };
        assert_eq!(client.queue_pair.flush(), Err(refused));
    });
}

#[test]
fn completion_queue_overflow_fails_its_queue_pairs() {
    on_immediate_fabric(|_, harness| {
        let (_channel, listener) = harness.listen();
        let mut channel = harness.subject.client.event_channel().expect("a channel");
        let mut connection = harness.route(&mut channel, Token(5), listener.local_address());
        let device = connection.device().expect("known");
        let (domain, _, memory) = harness.create_resources(&device, Access::LOCAL);
        let created = domain.create_completion_queue(2, Token(31));
        let mut completions = created.expect("a small queue");
        let options = QueuePairOptions {
            send_completions: &completions,
            receive_completions: &completions,
            shared_receives: None,
            capacity: PairOptions::default().capacity,
        };
        let pair = connection.create_queue_pair(&domain, &options);
        let mut pair = pair.expect("a queue pair");
        for wr_id in 0..3 {
            let memory = memory.piece(0, 64).into();
            let request = ReceiveRequest { wr_id, memory };
            pair.queue_receive(&request).expect("queued");
        }
        pair.flush().expect("posted");
        pair.set_error().expect("an order");
        let mut taken = [WorkCompletion::default(); 4];
        let lost = completions.poll(&mut taken);
        assert!(matches!(lost, Err(Error::Misuse(_))), "{lost:?}");
        let failed = DeviceEvent::CompletionQueueFailed { token: Token(31) };
        assert_eq!(device.next_event(), Some(failed));
        assert_eq!(pair.state().expect("a state"), QueuePairState::Error);
    });
}

#[test]
fn sends_are_refused_before_the_connection_is_established() {
    on_immediate_fabric(|_, harness| {
        let (_channel, listener) = harness.listen();
        let mut channel = harness.subject.client.event_channel().expect("a channel");
        let mut connection = harness.route(&mut channel, Token(5), listener.local_address());
        let create_resources =
            harness.create_resources(&connection.device().expect("known"), Access::LOCAL);
        let capacity = PairOptions::default().capacity;
        let mut pair = queue_pair::<Fake>(&mut connection, &create_resources, capacity);
        assert_eq!(pair.state().expect("one"), QueuePairState::Initialized);
        let piece = create_resources.2.piece(0, 64);
        let payload = rdma::Payload::Memory(slice::from_ref(&piece));
        let request = rdma::SendRequest::new(8, SendOperation::Send, payload);
        pair.queue_send(&request).expect("queued");
        let refused = FlushError {
            first_wr_id: 8,
            refused: 1,
            cause: PostError::NotPossible,
        };
        assert_eq!(pair.flush(), Err(refused));
        let second = connection.create_queue_pair(
            &create_resources.0,
            &QueuePairOptions {
                send_completions: &create_resources.1,
                receive_completions: &create_resources.1,
                shared_receives: None,
                capacity,
            },
        );
        assert!(matches!(second, Err(Error::Misuse(_))), "{second:?}");
    });
}

#[test]
fn rdma_reads_require_a_read_depth() {
    on_immediate_fabric(|_, harness| {
        let options = PairOptions {
            depth: 0,
            ..PairOptions::default()
        };
        let mut pair = harness.pair_with(options).0;
        let read = SendOperation::Read(pair.server.memory.remote(0));
        pair.client.post(1, read, (0, 64));
        let status = CompletionStatus::LOCAL_QP_OPERATION_ERROR;
        harness.expect(&mut pair.client, 1, status);
    });
}

#[test]
fn keys_of_another_domain_are_refused() {
    on_immediate_fabric(|_, harness| {
        let mut pair = harness.pair();
        let elsewhere = pair.client.domain.device().create_domain();
        let other = memory::<Fake>(&elsewhere.expect("a domain"), 4096, Access::REMOTE);
        pair.server.receive(1, 0, 64);
        let piece = other.piece(0, 64);
        let payload = rdma::Payload::Memory(slice::from_ref(&piece));
        let send = rdma::SendRequest::new(2, SendOperation::Send, payload);
        pair.client.queue_pair.queue_send(&send).expect("queued");
        pair.client.queue_pair.flush().expect("posted");
        let status = CompletionStatus::LOCAL_PROTECTION_ERROR;
        harness.expect(&mut pair.client, 2, status);

        let mut pair = harness.pair();
        let elsewhere = pair.server.domain.device().create_domain();
        let other = memory::<Fake>(&elsewhere.expect("a domain"), 4096, Access::REMOTE);
        let write = SendOperation::Write(other.remote(0));
        pair.client.post(3, write, (0, 64));
        let status = CompletionStatus::REMOTE_ACCESS_ERROR;
        harness.expect(&mut pair.client, 3, status);

        let mut pair = harness.pair();
        let elsewhere = pair.server.domain.device().create_domain();
        let other = memory::<Fake>(&elsewhere.expect("a domain"), 4096, Access::REMOTE);
        let request = ReceiveRequest {
            wr_id: 4,
            memory: other.piece(0, 64).into(),
        };
        let server = &mut pair.server;
        server.queue_pair.queue_receive(&request).expect("queued");
        server.queue_pair.flush().expect("posted");
        pair.client.post(5, SendOperation::Send, (0, 64));
        let status = CompletionStatus::REMOTE_OPERATION_ERROR;
        harness.expect(&mut pair.client, 5, status);
        let status = CompletionStatus::LOCAL_PROTECTION_ERROR;
        harness.expect(&mut pair.server, 4, status);
    });
}

#[test]
fn connect_requests_beyond_the_backlog_are_refused() {
    on_immediate_fabric(|_, harness| {
        let mut server = harness.subject.server.event_channel().expect("a channel");
        let address = (harness.subject.address, 0).into();
        let listener = server.listen(address, 1, Token(7)).expect("a listener");
        let mut channel = harness.subject.client.event_channel().expect("a channel");
        let mut keep = Vec::new();
        let parameters = ConnectParameters {
            private_data: b"",
            initiator_depth: 1,
            responder_resources: 1,
            retries: 7,
            rnr_retries: 7,
        };
        for at in 0..2 {
            let to = listener.local_address();
            let mut connection = harness.route(&mut channel, Token(at), to);
            let create_resources =
                harness.create_resources(&connection.device().expect("known"), Access::LOCAL);
            let capacity = PairOptions::default().capacity;
            let pair = queue_pair::<Fake>(&mut connection, &create_resources, capacity);
            connection.connect(&parameters).expect("asking");
            keep.push((connection, pair, create_resources));
        }
        let event = harness.connection_event("a rejection", &mut channel, Token(1));
        assert!(
            matches!(event, ConnectionEvent::Rejected { .. }),
            "{event:?}"
        );
        // The first still waits, and is rejected when its listener is dropped.
        drop(listener);
        let event = harness.connection_event("a rejection", &mut channel, Token(0));
        assert!(
            matches!(event, ConnectionEvent::Rejected { .. }),
            "{event:?}"
        );
        assert!(server.next_event().expect("works").is_none());
    });
}

#[test]
fn queue_depths_are_clamped_to_device_limits() {
    let limits = DeviceLimits {
        queue_pair_requests: 32,
        sges: 3,
        ..DeviceConfig::LIMITS
    };
    let wanted = QueuePairCapacity {
        send_requests: 100,
        receive_requests: 10,
        send_sges: 4,
        receive_sges: 1,
        inline_bytes: 64,
    };
    let clamped = wanted.clamped(&limits);
    let expected = QueuePairCapacity {
        send_requests: 32,
        send_sges: 3,
        ..wanted
    };
    assert_eq!(clamped, expected);
}

/// A device with this limit of bytes per registration.
fn limited(registration_bytes: u64) -> Fake {
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let mut device = DeviceConfig::new("small0", address);
    device.limits.registration_bytes = registration_bytes;
    let fabric = Fabric::new(FabricConfig::IMMEDIATE);
    fabric.machine(&[device]).expect("a machine")
}

#[test]
fn long_region_is_registered_in_pieces() {
    let provider = limited(3 << 20);
    let devices = provider.devices().expect("one");
    let domain = devices[0].create_domain().expect("a domain");
    let config = ArenaConfig {
        bytes: 16 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 1 << 20,
    };
    let arena = Arena::new(config).expect("memory");
    let whole = MemoryRange::of_region(arena.region(), 0..arena.region().len());
    let refused = domain.register(whole, Access::LOCAL);
    assert!(matches!(refused, Err(Error::Limit { .. })), "{refused:?}");

    let memory = DomainMemory::<Fake>::new(domain.clone(), Access::REMOTE);
    let empty = memory.map();
    arena.attach(&memory).expect("in pieces");
    assert_eq!((empty.version(), memory.version()), (0, 1));
    assert_eq!(gather_at(&empty, arena.region().base_address(), 1), None);
    let map = memory.map();
    assert_eq!(map.version(), 1);
    let pool = arena.pool(0);
    let mut leases = Vec::new();
    for len in [1 << 20, 1 << 20, 1 << 18, 4096].iter().cycle() {
        let Some(lease) = pool.take(*len) else { break };
        let list = gather_at(&map, lease.as_ptr().addr(), lease.len()).expect("registered");
        assert_eq!(list.as_slice().len(), 1, "a lease is one piece");
        assert_eq!(list.bytes(), *len as u64);
        let remote = map.remote(lease.as_ptr().addr(), lease.len());
        assert_eq!(
            remote.expect("registered").address,
            list.as_slice()[0].address()
        );
        leases.push(lease);
    }
    assert!(leases.len() > 3);
    let base = arena.region().base_address();
    let most = gather_at(&map, base, 8 << 20).expect("at most four pieces");
    assert!(most.as_slice().len() > 1);
    assert_eq!(most.bytes(), 8 << 20);
    let ends: Vec<u64> = (most.as_slice().iter())
        .map(|piece| piece.address() + u64::from(piece.length()))
        .collect();
    for (end, next) in ends.iter().zip(&most.as_slice()[1..]) {
        assert_eq!(*end, next.address(), "no gap, no overlap");
    }
    assert_eq!(map.remote(base, 8 << 20), None);
    assert_eq!(gather_at(&map, base, 17 << 20), None);
    assert_eq!(gather_at(&map, base - 1, 1), None);
    assert_eq!(gather_at(&map, base + (16 << 20), 1), None);
    assert!(gather_at(&map, base, OVERLAP_BYTES).is_some());

    let mut near = usize::MAX;
    for lease in leases.iter().chain(leases.iter().rev()) {
        let key = map.local_key(&mut near, lease.as_ptr().addr(), lease.len());
        // Registrations overlap: the cached one is as good as the one that a search finds.
        assert!(key.is_some(), "registered, wherever the last one was");
    }
    let found = near;
    for (address, len) in [(base, 8 << 20), (base - 1, 1), (base + (16 << 20), 1)] {
        assert_eq!(map.local_key(&mut near, address, len), None);
    }
    assert_eq!(near, found, "what is not found is not remembered");

    memory.detach_region(arena.region());
    assert_eq!(memory.version(), 2);
    assert_eq!(gather_at(&memory.map(), base, 1), None);
}

#[test]
fn registration_limit_below_a_lease_refuses_the_region() {
    let provider = limited(1 << 20);
    let devices = provider.devices().expect("one");
    let domain = devices[0].create_domain().expect("a domain");
    let memory = DomainMemory::<Fake>::new(domain, Access::LOCAL);
    let region = Region::map(4 << 20, PagePolicy::Ordinary).expect("memory");
    let refused = region.attach(&memory);
    let limit = matches!(
        refused,
        Err(hugemem::DmaMapError::LimitReached { limit, .. }) if limit == 1 << 20
    );
    assert!(limit, "{refused:?}");
}

#[test]
fn foreign_memory_must_be_added_to_the_fabric() {
    let fabric = Fabric::new(FabricConfig::IMMEDIATE);
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let provider = fabric.machine(&[DeviceConfig::new("fake0", address)]);
    let devices = provider.expect("a machine").devices().expect("one");
    let domain = devices[0].create_domain().expect("a domain");
    let region = Region::map(8192, PagePolicy::Ordinary).expect("memory");
    let base = region.base_address();
    let range = foreign(base + 100, 1000);
    let refused = domain.register(range, Access::LOCAL);
    assert!(matches!(refused, Err(Error::System { .. })), "{refused:?}");
    fabric.add_foreign_memory(&region).expect("a second view");
    let registration = domain.register(range, Access::LOCAL).expect("known");
    assert_eq!(registration.address(), base + 100);
    assert_ne!(registration.lkey(), registration.rkey());
    let beyond = foreign(base + 8000, 1000);
    domain
        .register(beyond, Access::LOCAL)
        .expect_err("beyond what is known");
}
