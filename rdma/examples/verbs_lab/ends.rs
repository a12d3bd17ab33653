//! Two ends of a connection, each with memory and queues.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hugemem::{Arena, ArenaConfig, DmaBuffer, PagePolicy};
use rdma::{
    Access, CompletionQueue, CompletionStatus, ConnectParameters, ConnectRequest, Connection,
    ConnectionEvent, DomainMemory, Event, EventChannel, Payload, Provider, QueuePair,
    QueuePairCapacity, QueuePairOptions, RNR_RETRY_FOREVER, ReceiveRequest, RemoteAddress,
    SendOperation, SendRequest, Sge, Token, Verbs, WorkCompletion,
};

/// How long any step may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of each end's memory: the longest transfer.
pub(crate) const BYTES: usize = 1 << 20;
/// Work requests of each queue.
pub(crate) const REQUESTS: u32 = 32;

/// Polls until there is a result.
pub(crate) fn wait<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + STEP_TIMEOUT;
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(
            Instant::now() < deadline,
            "{what}: not within {STEP_TIMEOUT:?}"
        );
        std::thread::yield_now();
    }
}

/// The next event of a channel.
pub(crate) fn next(channel: &mut impl EventChannel<Provider = Verbs>, what: &str) -> Event<Verbs> {
    wait(what, || channel.next_event().expect(what))
}

/// The next event of the only connection of a channel.
pub(crate) fn next_connection_event(
    channel: &mut impl EventChannel<Provider = Verbs>,
    what: &str,
) -> ConnectionEvent {
    match next(channel, what) {
        Event::Connection { event, .. } => event,
        other => panic!("{what}: {other:?}"),
    }
}

/// Memory that is registered as a whole, and a buffer in it.
pub(crate) struct Memory {
    pub(crate) registered: DomainMemory<Verbs>,
    pub(crate) buffer: DmaBuffer,
}

impl Memory {
    pub(crate) fn new(
        domain: <Verbs as Provider>::Domain,
        pages: PagePolicy,
        access: Access,
    ) -> Self {
        let config = ArenaConfig {
            bytes: 16 << 20,
            pages,
            max_transfer: BYTES,
        };
        let arena = Arena::new(config).expect("an arena");
        let registered = DomainMemory::new(domain, access);
        arena.attach(&registered).expect("registering the arena");
        let buffer = arena.dma_buffer(BYTES).expect("a buffer");
        Self { registered, buffer }
    }

    pub(crate) fn piece(&self, offset: usize, length: usize) -> Sge {
        let list = self.registered.map().gather(&self.buffer, offset, length);
        list.expect("registered memory").as_slice()[0]
    }

    pub(crate) fn remote(&self, offset: usize) -> RemoteAddress {
        let remote = self
            .registered
            .map()
            .remote(self.buffer.address() + offset, 1);
        remote.expect("registered memory")
    }

    pub(crate) fn fill(&self, length: usize, seed: u8) {
        let bytes: Vec<u8> = (0..length).map(|at| pattern(at, seed)).collect();
        self.buffer.write(0, &bytes);
    }

    pub(crate) fn expect_filled(&self, length: usize, seed: u8) {
        let mut bytes = vec![0; length];
        self.buffer.read(0, &mut bytes);
        let wrong = (0..length).find(|&at| bytes[at] != pattern(at, seed));
        assert_eq!(wrong, None, "the first wrong byte of {length}");
    }
}

fn pattern(at: usize, seed: u8) -> u8 {
    (at as u8 ^ (at >> 8) as u8)
        .wrapping_mul(31)
        .wrapping_add(seed)
}

/// One end. Fields are dropped in this order, so the connection is dropped while its queue pair
/// exists.
pub(crate) struct End {
    pub(crate) connection: <Verbs as Provider>::Connection,
    pub(crate) queue_pair: <Verbs as Provider>::QueuePair,
    pub(crate) completions: <Verbs as Provider>::CompletionQueue,
    pub(crate) memory: Memory,
    pub(crate) channel: <Verbs as Provider>::EventChannel,
}

impl End {
    fn new(
        channel: <Verbs as Provider>::EventChannel,
        mut connection: <Verbs as Provider>::Connection,
        pages: PagePolicy,
        access: Access,
        domain: Option<<Verbs as Provider>::Domain>,
    ) -> Self {
        use rdma::{Device, Domain};

        let device = connection.device().expect("a device");
        let domain = domain.unwrap_or_else(|| device.create_domain().expect("a domain"));
        let completions = domain
            .create_completion_queue(4 * REQUESTS, Token(3))
            .expect("a completion queue");
        let options = QueuePairOptions {
            send_completions: &completions,
            receive_completions: &completions,
            shared_receives: None,
            capacity: QueuePairCapacity {
                send_requests: REQUESTS,
                receive_requests: REQUESTS,
                send_sges: 1,
                receive_sges: 1,
                inline_bytes: 64,
            },
        };
        let queue_pair = connection
            .create_queue_pair(&domain, &options)
            .expect("a queue pair");
        let memory = Memory::new(domain, pages, access);
        Self {
            connection,
            queue_pair,
            completions,
            memory,
            channel,
        }
    }

    /// The connecting end.
    pub(crate) fn connect(verbs: &Verbs, peer: SocketAddr, access: Access) -> Self {
        let mut end = Self::ask(verbs, peer, PagePolicy::Ordinary, access, None);
        end.expect_established();
        end
    }

    fn ask(
        verbs: &Verbs,
        peer: SocketAddr,
        pages: PagePolicy,
        access: Access,
        domain: Option<<Verbs as Provider>::Domain>,
    ) -> Self {
        let mut channel = verbs.event_channel().expect("a channel");
        let mut connection = channel.connection(Token(1)).expect("a connection");
        connection
            .resolve_address(None, peer, STEP_TIMEOUT)
            .expect("resolving the address");
        let event = next_connection_event(&mut channel, "the address");
        assert_eq!(event, ConnectionEvent::AddressResolved);
        connection
            .resolve_route(STEP_TIMEOUT)
            .expect("resolving the route");
        assert_eq!(
            next_connection_event(&mut channel, "the route"),
            ConnectionEvent::RouteResolved
        );
        let mut end = Self::new(channel, connection, pages, access, domain);
        end.connection.connect(&PARAMETERS).expect("connecting");
        end
    }

    /// The accepting end: accepts a request of a listener on `channel`, and receives its events on
    /// a channel of its own.
    pub(crate) fn accept(
        verbs: &Verbs,
        channel: &mut <Verbs as Provider>::EventChannel,
        pages: PagePolicy,
        access: Access,
    ) -> Self {
        let Event::ConnectRequest { request, .. } = next(channel, "a request") else {
            panic!("not a request");
        };
        let mut own = verbs.event_channel().expect("a channel");
        let connection = request.into_connection(&mut own, Token(2)).expect("moving");
        let mut end = Self::new(own, connection, pages, access, None);
        end.connection.accept(&PARAMETERS).expect("accepting");
        end
    }

    pub(crate) fn expect_established(&mut self) {
        let event = next_connection_event(&mut self.channel, "established");
        assert!(
            matches!(
                event,
                ConnectionEvent::Established {
                    initiator_depth: 8,
                    ..
                }
            ),
            "{event:?}"
        );
    }

    pub(crate) fn receive(&mut self, wr_id: u64) {
        let memory = self.memory.piece(0, 64).into();
        let request = ReceiveRequest { wr_id, memory };
        self.queue_pair.queue_receive(&request).expect("queued");
        self.queue_pair.flush().expect("posted");
    }

    pub(crate) fn post(&mut self, wr_id: u64, operation: SendOperation, length: usize) {
        let piece = self.memory.piece(0, length);
        let payload = Payload::Memory(slice::from_ref(&piece));
        let request = SendRequest::new(wr_id, operation, payload);
        self.queue_pair.queue_send(&request).expect("queued");
        self.queue_pair.flush().expect("posted");
    }

    pub(crate) fn completion(&mut self, what: impl Debug) -> WorkCompletion {
        wait(&format!("completion of {what:?}"), || {
            let mut one = [WorkCompletion::default()];
            let count = self.completions.poll(&mut one).expect("polling");
            (count == 1).then_some(one[0])
        })
    }

    pub(crate) fn expect(&mut self, wr_id: u64, status: CompletionStatus) -> WorkCompletion {
        let completion = self.completion(wr_id);
        assert_eq!((completion.wr_id, completion.status), (wr_id, status));
        completion
    }
}

const PARAMETERS: ConnectParameters<'static> = ConnectParameters {
    private_data: b"lab",
    initiator_depth: 8,
    responder_resources: 8,
    retries: 3,
    rnr_retries: RNR_RETRY_FOREVER,
};

/// Both ends of a connection within this process.
pub(crate) struct Ends {
    pub(crate) client: End,
    pub(crate) server: End,
    pub(crate) _listener: <Verbs as Provider>::Listener,
    pub(crate) listening: <Verbs as Provider>::EventChannel,
    pub(crate) _verbs: Arc<Verbs>,
}

impl Ends {
    pub(crate) fn new(
        verbs: &Verbs,
        address: SocketAddr,
        pages: PagePolicy,
        access: Access,
    ) -> Self {
        Self::in_domain(verbs, address, pages, access, None)
    }

    /// [`new`](Self::new) with an existing domain for the client.
    pub(crate) fn in_domain(
        verbs: &Verbs,
        address: SocketAddr,
        pages: PagePolicy,
        access: Access,
        domain: Option<<Verbs as Provider>::Domain>,
    ) -> Self {
        use rdma::Listener;

        let mut listening = verbs.event_channel().expect("a channel");
        let listener = listening.listen(address, 4, Token(9)).expect("listening");
        let peer = listener.local_address();
        let mut client = End::ask(verbs, peer, pages, access, domain);
        let mut server = End::accept(verbs, &mut listening, pages, access);
        client.expect_established();
        server.expect_established();
        Self {
            client,
            server,
            _listener: listener,
            listening,
            _verbs: Arc::new(verbs.clone()),
        }
    }
}
