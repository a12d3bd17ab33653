//! Two connected sides with memory and queues, and waits with a deadline.
//!
//! Used by the suite and by other tests of this crate's providers.

#![expect(unsafe_code, reason = "names the suite's memory in work requests")]

use std::net::SocketAddr;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hugemem::{Arena, ArenaConfig, DmaBuffer, PagePolicy};

use super::Subject;
use rdma::{
    Access, CompletionQueue, CompletionStatus, ConnectParameters, ConnectRequest, Connection,
    ConnectionEvent, Device, Domain, Error, Event, EventChannel, Listener, MemoryRange, Payload,
    PrivateData, Provider, QueuePair, QueuePairCapacity, QueuePairOptions, RNR_RETRY_FOREVER,
    ReceiveRequest, Registration, RemoteAddress, SendOperation, SendRequest, Sge, Token,
    WorkCompletion,
};

/// Bytes of each side's memory.
pub(crate) const MEMORY_BYTES: usize = 1 << 20;
/// Entries of each side's completion queue.
const COMPLETIONS: u32 = 256;
/// Requested work requests of each queue.
pub(crate) const REQUESTS: u32 = 64;

/// Token of the listener.
pub(crate) const LISTENER: Token = Token(7);

/// Environment of one case.
pub(crate) struct Harness<'a, P: Provider> {
    pub(crate) subject: &'a mut Subject<P>,
    pub(crate) name: &'static str,
}

/// Registered memory of one side.
pub(crate) struct Memory<P: Provider> {
    pub(crate) registration: P::Registration,
    pub(crate) buffer: DmaBuffer,
}

/// Registered memory in an arena of its own.
pub(crate) fn memory<P: Provider>(domain: &P::Domain, bytes: usize, access: Access) -> Memory<P> {
    let config = ArenaConfig {
        bytes: 8 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 1 << 20,
    };
    let arena = Arena::new(config).expect("memory");
    let buffer = arena.dma_buffer(bytes).expect("a fresh arena");
    let start = buffer.region_offset();
    let range = MemoryRange::of_region(arena.region(), start..start + bytes);
    let registration = domain.register(range, access).expect("register");
    assert_eq!(registration.address(), buffer.address());
    assert_eq!(registration.bytes(), bytes);
    Memory {
        registration,
        buffer,
    }
}

impl<P: Provider> Memory<P> {
    /// A piece of the memory for a work request.
    pub(crate) fn piece(&self, offset: usize, length: usize) -> Sge {
        let address = (self.registration.address() + offset) as u64;
        // SAFETY: the memory is a `DmaBuffer`, which the program accesses only atomically, and
        // `Side` drops its queue pair before its memory.
        unsafe { Sge::new(address, length as u32, self.registration.lkey()) }
    }

    /// The remote address of an offset.
    pub(crate) fn remote(&self, offset: usize) -> RemoteAddress {
        RemoteAddress {
            address: (self.registration.address() + offset) as u64,
            rkey: self.registration.rkey(),
        }
    }

    /// Fills a part with a pattern derived from `seed`.
    pub(crate) fn fill(&self, offset: usize, len: usize, seed: usize) {
        self.buffer.write(offset, &pattern(len, seed));
    }

    pub(crate) fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.buffer.read(offset, &mut bytes);
        bytes
    }
}

/// Bytes that differ for each seed and offset.
pub(crate) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed.wrapping_mul(101)) as u8)
        .collect()
}

/// One side of a connection. The queue pair is dropped first, which every provider must support.
pub(crate) struct Side<P: Provider> {
    pub(crate) queue_pair: P::QueuePair,
    pub(crate) connection: P::Connection,
    pub(crate) completions: P::CompletionQueue,
    pub(crate) memory: Memory<P>,
    pub(crate) domain: P::Domain,
    pub(crate) channel: P::EventChannel,
}

/// Both sides of a connection, and the listener.
pub(crate) struct Pair<P: Provider> {
    pub(crate) server: Side<P>,
    pub(crate) client: Side<P>,
    pub(crate) listener: P::Listener,
}

/// Options of a pair.
#[derive(Clone, Copy)]
pub(crate) struct PairOptions {
    pub(crate) capacity: QueuePairCapacity,
    pub(crate) client_data: &'static [u8],
    pub(crate) server_data: &'static [u8],
    pub(crate) rnr_retries: u8,
    pub(crate) depth: u8,
    pub(crate) access: Access,
}

impl Default for PairOptions {
    fn default() -> Self {
        Self {
            capacity: QueuePairCapacity {
                send_requests: REQUESTS,
                receive_requests: REQUESTS,
                send_sges: 2,
                receive_sges: 2,
                inline_bytes: 64,
            },
            client_data: b"from the client",
            server_data: b"from the server",
            rnr_retries: RNR_RETRY_FOREVER,
            depth: 4,
            access: Access {
                bind_window: true,
                ..Access::REMOTE
            },
        }
    }
}

impl<P: Provider> Side<P> {
    /// Posts a receive into the memory.
    pub(crate) fn receive(&mut self, wr_id: u64, offset: usize, length: usize) {
        let memory = self.memory.piece(offset, length).into();
        let request = ReceiveRequest { wr_id, memory };
        self.queue_pair.queue_receive(&request).expect("queued");
        self.queue_pair.flush().expect("posted");
    }

    /// Queues a request over a part of the memory.
    pub(crate) fn queue(
        &mut self,
        wr_id: u64,
        operation: SendOperation,
        (offset, length): (usize, usize),
        signalled: bool,
    ) {
        let piece = self.memory.piece(offset, length);
        let request = SendRequest::new(wr_id, operation, Payload::Memory(slice::from_ref(&piece)));
        let request = request.signalled(signalled);
        self.queue_pair.queue_send(&request).expect("queued");
    }

    /// Posts a signalled request over a part of the memory.
    pub(crate) fn post(&mut self, wr_id: u64, operation: SendOperation, part: (usize, usize)) {
        self.queue(wr_id, operation, part, true);
        self.queue_pair.flush().expect("posted");
    }
}

impl<'a, P: Provider> Harness<'a, P> {
    pub(crate) fn new(subject: &'a mut Subject<P>, name: &'static str) -> Self {
        Self { subject, name }
    }

    /// Polls until there is a result.
    pub(crate) fn wait<T>(&mut self, what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + self.subject.step_timeout;
        loop {
            (self.subject.step)();
            if let Some(found) = attempt() {
                return found;
            }
            let name = self.name;
            assert!(Instant::now() < deadline, "{name}: {what} did not come");
            std::thread::yield_now();
        }
    }

    /// The next completion.
    pub(crate) fn completion(
        &mut self,
        what: &str,
        queue: &mut P::CompletionQueue,
    ) -> WorkCompletion {
        self.wait(what, || {
            let mut one = [WorkCompletion::default()];
            let count = queue.poll(&mut one).expect("the queue works");
            (count == 1).then_some(one[0])
        })
    }

    /// Takes the next completion, which must have this identifier and status.
    pub(crate) fn expect(
        &mut self,
        side: &mut Side<P>,
        wr_id: u64,
        status: CompletionStatus,
    ) -> WorkCompletion {
        let what = format!("completion {wr_id}");
        let completion = self.completion(&what, &mut side.completions);
        let name = self.name;
        assert_eq!(completion.wr_id, wr_id, "{name}: {completion:?}");
        assert_eq!(completion.status, status, "{name}: {completion:?}");
        assert_eq!(completion.qp_number, side.queue_pair.number(), "{name}");
        completion
    }

    pub(crate) fn expect_success(&mut self, side: &mut Side<P>, wr_id: u64) -> WorkCompletion {
        self.expect(side, wr_id, CompletionStatus::SUCCESS)
    }

    /// Checks that nothing completes for a while.
    pub(crate) fn expect_nothing(&mut self, side: &mut Side<P>) {
        let name = self.name;
        for _ in 0..50 {
            (self.subject.step)();
            let mut one = [WorkCompletion::default()];
            let count = side.completions.poll(&mut one).expect("the queue works");
            assert_eq!(count, 0, "{name}: nothing was to complete: {:?}", one[0]);
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// The next event of a channel.
    pub(crate) fn event(&mut self, what: &str, channel: &mut P::EventChannel) -> Event<P> {
        self.wait(what, || channel.next_event().expect("the channel works"))
    }

    /// The next event of a channel, which must be of this connection. Skips events that may occur
    /// at any time.
    pub(crate) fn connection_event(
        &mut self,
        what: &str,
        channel: &mut P::EventChannel,
        token: Token,
    ) -> ConnectionEvent {
        let name = self.name;
        loop {
            match self.event(what, channel) {
                Event::Connection {
                    event: ConnectionEvent::TimewaitExit,
                    ..
                } => {}
                Event::Connection { token: of, event } => {
                    assert_eq!(of, token, "{name}: {what}");
                    return event;
                }
                other => panic!("{name}: not {what} but {other:?}"),
            }
        }
    }

    /// The next event of a channel, which must be a request to the listener.
    pub(crate) fn request(&mut self, channel: &mut P::EventChannel) -> P::ConnectRequest {
        let name = self.name;
        loop {
            match self.event("a connection request", channel) {
                Event::ConnectRequest { listener, request } => {
                    assert_eq!(listener, LISTENER, "{name}");
                    return request;
                }
                Event::Connection {
                    event: ConnectionEvent::TimewaitExit,
                    ..
                } => {}
                other => panic!("{name}: not a connection request but {other:?}"),
            }
        }
    }

    /// A channel of the server with a listener.
    pub(crate) fn listen(&mut self) -> (P::EventChannel, P::Listener) {
        let mut channel = self.subject.server.event_channel().expect("a channel");
        let address = SocketAddr::new(self.subject.address, 0);
        let listener = channel.listen(address, 16, LISTENER).expect("a listener");
        (channel, listener)
    }

    /// A connection of the client with a resolved route.
    pub(crate) fn route(
        &mut self,
        channel: &mut P::EventChannel,
        token: Token,
        to: SocketAddr,
    ) -> P::Connection {
        let step_timeout = self.subject.step_timeout;
        let mut connection = channel.connection(token).expect("a connection");
        connection
            .resolve_address(None, to, step_timeout)
            .expect("resolving the address");
        let event = self.connection_event("the address", channel, token);
        assert_eq!(event, ConnectionEvent::AddressResolved, "{}", self.name);
        connection
            .resolve_route(step_timeout)
            .expect("resolving the route");
        let event = self.connection_event("the route", channel, token);
        assert_eq!(event, ConnectionEvent::RouteResolved, "{}", self.name);
        connection
    }

    /// Domain, completion queue and memory on a device.
    pub(crate) fn create_resources(
        &mut self,
        device: &P::Device,
        access: Access,
    ) -> (P::Domain, P::CompletionQueue, Memory<P>) {
        let domain = device.create_domain().expect("a domain");
        let completions = domain.create_completion_queue(COMPLETIONS, Token(99));
        let access = Access {
            bind_window: access.bind_window && device.limits().windows > 0,
            ..access
        };
        let memory = memory::<P>(&domain, MEMORY_BYTES, access);
        (domain, completions.expect("a completion queue"), memory)
    }

    /// A connected pair.
    pub(crate) fn pair(&mut self) -> Pair<P> {
        self.pair_with(PairOptions::default()).0
    }

    /// A connected pair, the `Established` events of client and server, and the private data of the
    /// request.
    pub(crate) fn pair_with(
        &mut self,
        options: PairOptions,
    ) -> (Pair<P>, [ConnectionEvent; 2], PrivateData) {
        let (server_token, client_token) = (Token(1001), Token(2002));
        let (mut server_channel, listener) = self.listen();
        let mut client_channel = self.subject.client.event_channel().expect("a channel");
        let to = listener.local_address();
        let mut client = self.route(&mut client_channel, client_token, to);
        let device = client.device().expect("known by now");
        let client_outfit = self.create_resources(&device, options.access);
        let client_pair = queue_pair(&mut client, &client_outfit, options.capacity);
        let parameters = |private_data| ConnectParameters {
            private_data,
            initiator_depth: options.depth,
            responder_resources: options.depth,
            retries: 7,
            rnr_retries: options.rnr_retries,
        };
        let client_parameters = parameters(options.client_data);
        client.connect(&client_parameters).expect("connecting");

        let request = self.request(&mut server_channel);
        let private_data = *request.private_data();
        let device = request.device().clone();
        let server_outfit = self.create_resources(&device, options.access);
        let server = request.into_connection(&mut server_channel, server_token);
        let mut server = server.expect("a connection");
        let server_pair = queue_pair(&mut server, &server_outfit, options.capacity);
        let server_parameters = parameters(options.server_data);
        server.accept(&server_parameters).expect("accepting");
        let seen = [
            self.connection_event("the accept", &mut client_channel, client_token),
            self.connection_event("established", &mut server_channel, server_token),
        ];
        let name = self.name;
        for event in seen {
            let established = matches!(event, ConnectionEvent::Established { .. });
            assert!(established, "{name}: {event:?}");
        }
        let side = |queue_pair, connection, create_resources: (_, _, _), channel| Side {
            queue_pair,
            connection,
            completions: create_resources.1,
            memory: create_resources.2,
            domain: create_resources.0,
            channel,
        };
        let pair = Pair {
            server: side(server_pair, server, server_outfit, server_channel),
            client: side(client_pair, client, client_outfit, client_channel),
            listener,
        };
        (pair, seen, private_data)
    }

    /// Checks that an error says that the address is not one of an RDMA device.
    pub(crate) fn assert_not_on_device(&self, error: &Error) {
        let name = self.name;
        let expected = matches!(
            error,
            Error::Unavailable(rdma::Unavailable::NotOnDevice { .. })
        );
        assert!(expected, "{name}: {error:?}");
    }
}

/// A queue pair whose sends and receives complete in the same queue.
pub(crate) fn queue_pair<P: Provider>(
    connection: &mut P::Connection,
    (domain, completions, _): &(P::Domain, P::CompletionQueue, Memory<P>),
    capacity: QueuePairCapacity,
) -> P::QueuePair {
    let options = QueuePairOptions {
        send_completions: completions,
        receive_completions: completions,
        shared_receives: None,
        capacity,
    };
    let queue_pair = connection.create_queue_pair(domain, &options);
    let queue_pair = queue_pair.expect("a queue pair");
    let granted = queue_pair.capacity();
    assert!(granted.send_requests >= capacity.send_requests);
    assert!(granted.receive_requests >= capacity.receive_requests);
    assert!(granted.send_sges >= capacity.send_sges);
    assert!(granted.receive_sges >= capacity.receive_sges);
    queue_pair
}

/// A second handle of an arena whose memory a case has registered elsewhere.
pub(crate) fn arena() -> Arc<Arena> {
    let config = ArenaConfig {
        bytes: 8 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 1 << 20,
    };
    Arena::new(config).expect("memory")
}
