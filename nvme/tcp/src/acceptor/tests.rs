//! The thread's turns, run by the tests: nothing depends on time.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;

use nvme_spec::tcp::{DigestFlags, IcReq, IcResp};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::*;
use crate::config::DigestPolicy;
use crate::stream::{ByteStream as _, Transferred};

/// Time limit of a wait for the kernel.
const LIMIT: Duration = Duration::from_secs(20);

/// A service without its thread, a reactor's port, and a listener with the number 0.
struct Stage {
    service: Service,
    port: AcceptorPort,
    address: SocketAddr,
    now: Instant,
}

impl Stage {
    fn new() -> Self {
        let (mut service, mut ports) =
            Service::new(1, AcceptorTls::default()).expect("descriptors");
        let mut port = ports.pop().expect("a port");
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        port.listen(0, listener).expect("there is room");
        let now = Instant::now();
        assert!(service.turn(now));
        Self {
            service,
            port,
            address,
            now,
        }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).expect("listening")
    }

    /// Runs a turn with the events of the listener.
    fn turn(&mut self) -> bool {
        self.service.wait(Some(Duration::ZERO));
        self.service.turn(self.now)
    }

    /// Runs turns until `count` accepted connections wait for the reactor.
    fn accept(&mut self, count: usize) {
        let began = Instant::now();
        while self.port.accepted.len() < count {
            assert!(
                began.elapsed() < LIMIT,
                "{} accepted",
                self.port.accepted.len()
            );
            self.turn();
        }
    }

    /// Hosts are offered header digests, and required to use data digests if `data_digest` says so.
    fn offer(&mut self, data_digest: DigestPolicy) {
        let terms = InitialisationTerms {
            header_digest: DigestPolicy::Allowed,
            data_digest,
            host_data_bytes_max: 8192,
            tls: TlsPolicy::Off,
            tls_records: TlsRecords::Own,
        };
        self.port.offer(0, terms);
    }

    /// Runs turns until `count` accepted connections wait for their ICReq.
    fn welcome(&mut self, count: usize) {
        let began = Instant::now();
        while self.service.newcomers.len() < count {
            assert!(began.elapsed() < LIMIT);
            self.turn();
        }
    }

    /// The next accepted connection, and what was agreed with its host.
    fn accepted(&mut self) -> (SocketStream, Option<Framing>) {
        self.accept(1);
        match self.port.accept() {
            Some(Accepted::Stream {
                stream, framing, ..
            }) => (stream, framing),
            other => panic!("out of place: {other:?}"),
        }
    }

    fn streams(&mut self) -> Vec<SocketStream> {
        let streams = std::iter::from_fn(|| self.port.accept());
        let stream = |it| match it {
            Accepted::Stream {
                listener: 0,
                stream,
                ..
            } => stream,
            other => panic!("out of place: {other:?}"),
        };
        streams.map(stream).collect()
    }

    #[track_caller]
    fn assert_refused(&self) {
        let refused = TcpStream::connect(self.address).map_err(|error| error.kind());
        assert_eq!(refused.err(), Some(io::ErrorKind::ConnectionRefused));
    }
}

/// The kernel's part of both takes most of a connection's time on its reactor.
#[test]
fn only_the_thread_accepts_and_closes() {
    let mut stage = Stage::new();
    let mut client = stage.connect();
    assert!(!stage.port.has_accepted());
    stage.accept(1);
    let mut streams = stage.streams();
    let stream = streams.pop().expect("accepted");
    assert_eq!(stream.host_address(), client.local_addr().ok());

    stage.port.close(stream);
    client.set_nonblocking(true).expect("a socket");
    let open = client.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(open, Err(io::ErrorKind::WouldBlock));
    assert!(stage.turn());
    client.set_nonblocking(false).expect("a socket");
    client.set_read_timeout(Some(LIMIT)).expect("a socket");
    assert_eq!(client.read(&mut [0]).expect("closed"), 0);
    assert!(!stage.turn());
}

#[test]
fn connections_beyond_the_ring_wait_in_the_backlog() {
    const MORE: usize = 40;
    let mut stage = Stage::new();
    let mut clients = Vec::new();
    for count in 1..=ACCEPTED_MAX {
        clients.push(stage.connect());
        stage.accept(count);
    }
    clients.extend((0..MORE).map(|_| stage.connect()));
    for _ in 0..3 {
        stage.turn();
        assert_eq!(stage.port.accepted.len(), ACCEPTED_MAX);
    }
    let paused = WatchState::Paused(stage.now + FULL_PAUSE);
    assert_eq!(stage.service.listeners[0].state, paused);
    assert!(!stage.turn(), "a paused listener is not watched");

    let mut streams = stage.streams();
    stage.now += FULL_PAUSE;
    stage.accept(MORE);
    streams.extend(stage.streams());
    let hosts = |it: &SocketStream| it.host_address();
    let mut accepted: Vec<_> = streams.iter().map(hosts).collect();
    let mut connected: Vec<_> = clients.iter().map(|it| it.local_addr().ok()).collect();
    accepted.sort();
    connected.sort();
    assert_eq!(accepted, connected, "none is lost");
}

#[test]
fn sockets_beyond_the_ring_are_closed_at_once() {
    let mut stage = Stage::new();
    let mut clients = Vec::new();
    let mut streams = Vec::new();
    for _ in 0..=CLOSING_MAX {
        clients.push(stage.connect());
        stage.accept(1);
        streams.extend(stage.streams());
    }
    for stream in streams {
        stage.port.close(stream);
    }
    let mut last = clients.pop().expect("connected");
    last.set_read_timeout(Some(LIMIT)).expect("a socket");
    assert_eq!(last.read(&mut [0]).expect("closed"), 0);
    assert_eq!(stage.service.reactors[0].closing.len(), CLOSING_MAX);
    assert!(stage.turn());
    for mut client in clients {
        client.set_read_timeout(Some(LIMIT)).expect("a socket");
        assert_eq!(client.read(&mut [0]).expect("closed"), 0);
    }
}

/// The report comes last, so the reactor attributes no connection to a later listener.
#[test]
fn a_listener_is_reported_closed_after_its_last_connection() {
    let mut stage = Stage::new();
    let clients: Vec<_> = (0..30).map(|_| stage.connect()).collect();
    stage.accept(clients.len());
    let waiting = stage.connect();
    stage.port.close_listener(0);
    stage.port.close_listener(0);
    stage.service.turn(stage.now);
    stage.assert_refused();
    assert!(stage.service.listeners.is_empty());
    for _ in &clients {
        let accepted = stage.port.accept();
        assert!(
            matches!(accepted, Some(Accepted::Stream { .. })),
            "{accepted:?}"
        );
    }
    let last = stage.port.accept();
    assert!(
        matches!(last, Some(Accepted::ListenerClosed(0))),
        "{last:?}"
    );
    assert!(stage.port.accept().is_none());
    // The kernel resets a connection that was not accepted.
    waiting.set_read_timeout(Some(LIMIT)).expect("a socket");
    assert!((&waiting).read(&mut [0]).is_err());
    TcpListener::bind(stage.address).expect("the address is free");
}

#[test]
fn the_report_waits_for_room_in_the_ring() {
    let mut stage = Stage::new();
    let mut clients = Vec::new();
    for count in 1..=ACCEPTED_MAX {
        clients.push(stage.connect());
        stage.accept(count);
    }
    stage.port.close_listener(0);
    stage.turn();
    stage.assert_refused();
    assert_eq!(stage.streams().len(), ACCEPTED_MAX);
    assert_eq!(stage.service.listeners.len(), 1, "it is not reported");
    stage.turn();
    let last = stage.port.accept();
    assert!(
        matches!(last, Some(Accepted::ListenerClosed(0))),
        "{last:?}"
    );
}

/// A duplicate of the control thread keeps the listening socket open, and it must not be reported.
#[test]
fn a_closed_listener_with_a_duplicate_is_not_watched() {
    let (mut service, mut ports) = Service::new(1, AcceptorTls::default()).expect("descriptors");
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let duplicate = listener.try_clone().expect("a descriptor");
    ports[0].listen(0, listener).expect("there is room");
    ports[0].close_listener(0);
    service.turn(Instant::now());
    let _client = TcpStream::connect(duplicate.local_addr().expect("bound"));
    service.wait(Some(Duration::ZERO));
    service.turn(Instant::now());
    service.wait(Some(Duration::ZERO));
    assert!(service.events.is_empty(), "{:?}", service.events);
}

#[test]
fn connections_that_end_before_they_are_accepted_leave_nothing() {
    let mut stage = Stage::new();
    for round in 0..100 {
        let clients: Vec<_> = (0..20).map(|_| stage.connect()).collect();
        for (number, client) in clients.into_iter().enumerate() {
            match (number + round) % 3 {
                0 => drop(client),
                1 => client.shutdown(Shutdown::Write).expect("connected"),
                _ => {
                    let reset = Some(Duration::ZERO);
                    rustix::net::sockopt::set_socket_linger(&client, reset).expect("an option");
                }
            }
        }
        while stage.turn() {}
        for mut stream in stage.streams() {
            let began = Instant::now();
            let ended = loop {
                match stream.receive(&mut [io::IoSliceMut::new(&mut [0])]) {
                    Transferred::WouldBlock => assert!(began.elapsed() < LIMIT),
                    ended => break ended,
                }
            };
            let has_ended = matches!(ended, Transferred::Closed | Transferred::Failed(_));
            assert!(has_ended, "{ended:?}");
            stage.port.close(stream);
        }
    }
    while stage.turn() {}
    assert!(stage.service.reactors[0].closing.is_empty());
}

#[test]
fn listeners_of_a_reactor_that_has_ended_are_closed() {
    let mut stage = Stage::new();
    let client = stage.connect();
    stage.accept(1);
    let (_, mut other) = Service::new(1, AcceptorTls::default()).expect("descriptors");
    std::mem::swap(&mut stage.port, &mut other[0]);
    drop(other);
    stage.turn();
    stage.assert_refused();
    assert!(stage.service.listeners.is_empty());
    // Its sockets are closed with the rings.
    stage.service.reactors.clear();
    client.set_read_timeout(Some(LIMIT)).expect("a socket");
    assert_eq!((&client).read(&mut [0]).expect("closed"), 0);
}

/// The thread itself: an accept wakes it, a close reaches it while it sleeps, and it ends.
#[test]
fn the_thread_serves_and_ends() {
    let (acceptor, mut ports) = Acceptor::start(1, || {}).expect("a thread");
    let port = &mut ports[0];
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    port.listen(0, listener).expect("there is room");
    let began = Instant::now();
    for pause in [Duration::ZERO, 5 * ACTIVE_FOR] {
        let mut client = TcpStream::connect(address).expect("listening");
        let stream = loop {
            match port.accept() {
                Some(Accepted::Stream { stream, .. }) => break stream,
                None => assert!(began.elapsed() < LIMIT),
                other => panic!("out of place: {other:?}"),
            }
        };
        std::thread::sleep(pause);
        port.close(stream);
        client.set_read_timeout(Some(LIMIT)).expect("a socket");
        assert_eq!(client.read(&mut [0]).expect("closed"), 0);
    }
    drop(acceptor);
    let refused = TcpStream::connect(address).map_err(|error| error.kind());
    assert_eq!(refused.err(), Some(io::ErrorKind::ConnectionRefused));
}

/// Receives what the host has sent, which is at least one byte.
fn received(stream: &mut SocketStream) -> Vec<u8> {
    let mut bytes = [0; 512];
    let began = Instant::now();
    loop {
        match stream.receive(&mut [io::IoSliceMut::new(&mut bytes)]) {
            Transferred::Bytes(count) => return bytes[..count].to_vec(),
            Transferred::WouldBlock => assert!(began.elapsed() < LIMIT),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_thread_answers_a_valid_request() {
    let mut stage = Stage::new();
    stage.offer(DigestPolicy::Allowed);
    let mut client = stage.connect();
    stage.welcome(1);
    assert!(!stage.port.has_accepted(), "the ICReq is awaited");
    let digests = DigestFlags::new().with_header(true);
    client
        .write_all(IcReq::new(3, digests, 0).as_bytes())
        .expect("connected");
    let (mut stream, framing) = stage.accepted();
    let agreed = Framing {
        header_digest: true,
        data_digest: false,
        alignment_z: 3,
    };
    assert_eq!(framing, Some(agreed));
    let mut response = [0; size_of::<IcResp>()];
    client.set_read_timeout(Some(LIMIT)).expect("a socket");
    client.read_exact(&mut response).expect("a response");
    let response = IcResp::read_from_bytes(&response).expect("its size");
    assert_eq!(response, IcResp::new(0, digests, 8192));
    // What follows the request is left for the reactor, and nothing else is.
    client.write_all(b"next").expect("connected");
    assert_eq!(received(&mut stream), b"next");
    assert_eq!((stage.service.newcomers.len(), stage.turn()), (0, false));
}

/// The reactor reports the error, or waits for the rest.
#[test]
fn other_requests_are_left_for_the_reactor() {
    let valid = IcReq::new(0, DigestFlags::new(), 0);
    let with_format = |format| {
        let mut request = valid;
        request.pfv.set(format);
        request.as_bytes().to_vec()
    };
    let mut of_another_type = valid.as_bytes().to_vec();
    of_another_type[0] = 4;
    let mut of_another_length = valid.as_bytes().to_vec();
    of_another_length[4] = 0xff;
    let cases = [
        ("another format", with_format(1), DigestPolicy::Allowed),
        ("no data digest", with_format(0), DigestPolicy::Required),
        ("another PDU", of_another_type, DigestPolicy::Allowed),
        ("another length", of_another_length, DigestPolicy::Allowed),
        (
            "an alignment",
            IcReq::new(32, DigestFlags::new(), 0).as_bytes().to_vec(),
            DigestPolicy::Allowed,
        ),
        (
            "a part",
            with_format(0)[..127].to_vec(),
            DigestPolicy::Allowed,
        ),
    ];
    for (case, request, data_digest) in cases {
        let mut stage = Stage::new();
        stage.offer(data_digest);
        let mut client = stage.connect();
        client.write_all(&request).expect("connected");
        let (mut stream, framing) = stage.accepted();
        assert_eq!(framing, None, "{case}");
        assert_eq!(received(&mut stream), request, "{case}");
        client.set_nonblocking(true).expect("a socket");
        let response = client.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(response, Err(io::ErrorKind::WouldBlock), "{case}");
    }
}

#[test]
fn silent_hosts_go_to_the_reactor_soon() {
    let mut stage = Stage::new();
    stage.offer(DigestPolicy::Allowed);
    let _clients: Vec<_> = (0..NEWCOMERS_MAX).map(|_| stage.connect()).collect();
    stage.welcome(NEWCOMERS_MAX);
    assert!(!stage.port.has_accepted());
    // There is no place to wait for another one.
    let _other = stage.connect();
    let (_stream, framing) = stage.accepted();
    assert_eq!(framing, None);
    stage.now += NEWCOMER_WAIT;
    stage.turn();
    assert_eq!(stage.streams().len(), NEWCOMERS_MAX);
    assert_eq!(stage.service.reactors[0].newcomers, 0);
}

/// Whatever they send, their reactor has room for them.
#[test]
fn newcomers_have_a_place_in_the_ring() {
    let mut stage = Stage::new();
    let mut clients = Vec::new();
    for count in 1..=ACCEPTED_MAX - 2 {
        clients.push(stage.connect());
        stage.accept(count);
    }
    stage.offer(DigestPolicy::Allowed);
    clients.extend((0..5).map(|_| stage.connect()));
    stage.welcome(2);
    stage.turn();
    assert_eq!(stage.service.newcomers.len(), 2);
    stage.now += NEWCOMER_WAIT;
    stage.turn();
    assert_eq!(stage.streams().len(), ACCEPTED_MAX);
    stage.welcome(3);
}

#[test]
fn newcomers_of_a_closed_listener_are_closed() {
    let mut stage = Stage::new();
    stage.offer(DigestPolicy::Allowed);
    let mut client = stage.connect();
    stage.welcome(1);
    stage.port.close_listener(0);
    stage.turn();
    client.set_read_timeout(Some(LIMIT)).expect("a socket");
    assert_eq!(client.read(&mut [0]).expect("closed"), 0);
    assert_eq!(stage.service.reactors[0].newcomers, 0);
    let last = stage.port.accept();
    assert!(
        matches!(last, Some(Accepted::ListenerClosed(0))),
        "{last:?}"
    );
}
