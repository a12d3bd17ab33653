//! The thread's turns, run by the tests, with hosts over loopback. Time passes as the tests say.

use std::io::{IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

use nvme_keys::{Candidate, Derivation, Hash, IdentityVersion, Names, TlsKey};
use nvme_target::KeyOwner;
use nvme_tls::{Alert, Channel, KeyTable, Role, Taken, Unsealed};
use nvme_tls_handshake::{ClientHandshake, HANDSHAKE_BYTES_MAX, Progress, Secrets};

use super::*;
use crate::stream::Transferred;

const LIMIT: Duration = Duration::from_secs(20);
const HOST: &str = "nqn.2026-11.org.example:host";
const SUBSYSTEM: &str = "nqn.2026-11.org.windlass:one";
const ORIGIN: Origin = Origin {
    listener: 3,
    reactor: 1,
    index: 5,
};

fn candidates(byte: u8, hash: Hash) -> Vec<Candidate> {
    let bytes = vec![byte; hash.len().expect("a hash")];
    let key = TlsKey::new(hash, &bytes).expect("the length fits");
    key.candidates(Names::new(HOST, SUBSYSTEM).expect("valid"))
}

/// The thread's service with the keys 1 (SHA-256) and 2 (SHA-384), and a listener.
struct Stage {
    service: Service,
    handshakes: Handshakes,
    listener: TcpListener,
    now: Instant,
    policy: TlsPolicy,
    records: TlsRecords,
}

impl Stage {
    fn new(policy: TlsPolicy) -> Self {
        let mut table = KeyTable::default();
        for (name, byte, hash) in [("a", 1, Hash::Sha256), ("b", 2, Hash::Sha384)] {
            let owner = Arc::new(KeyOwner {
                key: name.to_owned(),
                host_nqn: HOST.to_owned(),
                subsystem_nqn: SUBSYSTEM.to_owned(),
                generation: None,
            });
            table.add(&owner, candidates(byte, hash));
        }
        let keys = SharedTlsKeys::default();
        keys.replace(table);
        let acceptor = Waker::new().expect("a descriptor");
        let (service, handshakes) =
            Service::new(keys, Arc::default(), acceptor).expect("descriptors");
        Self {
            service,
            handshakes,
            listener: TcpListener::bind("0.0.0.0:0").expect("loopback"),
            now: Instant::now(),
            policy,
            records: TlsRecords::Own,
        }
    }

    /// A connection from an address of the loopback network, on its way to the thread.
    fn connect_from(&mut self, last: u8) -> TcpStream {
        let port = self.listener.local_addr().expect("bound").port();
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::STREAM,
            None,
        );
        let socket = socket.expect("a socket");
        let own = SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0));
        rustix::net::bind(&socket, &own).expect("loopback");
        let target = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        rustix::net::connect(&socket, &target).expect("it listens");
        let (accepted, _) = self.listener.accept().expect("connected");
        let stream = TcpSocket::new(accepted).expect("options");
        while !self.handshakes.has_room() {
            self.turn();
        }
        self.handshakes.begin(Arriving {
            stream,
            origin: ORIGIN,
            policy: self.policy,
            records: self.records,
        });
        let client = TcpStream::from(socket);
        client.set_read_timeout(Some(LIMIT)).expect("a socket");
        client
    }

    fn connect(&mut self) -> TcpStream {
        self.connect_from(1)
    }

    fn turn(&mut self) {
        self.service.wait(Some(Duration::from_millis(1)));
        self.service.turn(self.now);
    }

    /// Runs turns until `holds` returns true.
    #[track_caller]
    fn until(&mut self, holds: impl Fn(&TlsCounters) -> bool) {
        let began = Instant::now();
        while !holds(&self.service.counters) {
            assert!(began.elapsed() < LIMIT, "{:?}", self.service.counters);
            self.turn();
        }
    }

    #[track_caller]
    fn finished(&mut self) -> SocketStream {
        let began = Instant::now();
        loop {
            if let Some(Finished { stream, origin }) = self.handshakes.next_finished() {
                assert_eq!(origin, ORIGIN);
                return stream;
            }
            assert!(began.elapsed() < LIMIT, "{:?}", self.service.counters);
            self.turn();
        }
    }

    /// Performs a host's handshake while the service runs; `Err`: the bytes that it received last.
    fn shake(&mut self, client: &mut TcpStream, candidate: &Candidate) -> Result<Secrets, Vec<u8>> {
        let mut handshake = ClientHandshake::new(candidate).expect("a library");
        client.write_all(&handshake.take_output()).expect("open");
        client.set_nonblocking(true).expect("a socket");
        let began = Instant::now();
        let mut last = Vec::new();
        loop {
            assert!(began.elapsed() < LIMIT, "{:?}", self.service.counters);
            self.turn();
            let mut bytes = vec![0; handshake.wanted()];
            let read = match client.read(&mut bytes) {
                Ok(0) => return Err(last),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => panic!("{error}"),
            };
            last.extend_from_slice(&bytes[..read]);
            let progress = handshake.receive(&bytes[..read]);
            client.write_all(&handshake.take_output()).expect("open");
            match progress {
                Ok(Progress::Continue) => {}
                Ok(Progress::Complete(secrets)) => return Ok(secrets),
                Err(_) => return Err(last),
            }
        }
    }
}

/// The alert in a record that ends what the host has received.
#[track_caller]
fn assert_alert(received: &[u8], alert: Alert) {
    let record = alert.plaintext_record();
    assert!(received.ends_with(&record), "{received:?} and not {alert}");
}

#[test]
fn every_candidate_of_the_keys_is_accepted() {
    let mut stage = Stage::new(TlsPolicy::Required);
    let mut count = 0;
    for (byte, hash, name) in [(1, Hash::Sha256, "a"), (2, Hash::Sha384, "b")] {
        for candidate in candidates(byte, hash) {
            let mut client = stage.connect();
            stage.shake(&mut client, &candidate).expect("a known key");
            let stream = stage.finished();
            let channel = stream.channel().expect("protected");
            assert_eq!(channel.owner.key, name);
            let cipher = match hash {
                Hash::Sha256 => "TLS_AES_128_GCM_SHA256",
                _ => "TLS_AES_256_GCM_SHA384",
            };
            assert_eq!(channel.cipher, cipher);
            let derivation = match candidate.derivation {
                Derivation::Standard => "standard",
                Derivation::OldLibnvme | Derivation::OldLinux => "old-libnvme",
            };
            assert_eq!(channel.derivation, derivation);
            count += 1;
        }
    }
    assert_eq!(count, 8);
    assert_eq!(stage.service.counters.handshakes.get(), 8);
    assert_eq!(stage.service.counters.handshakes_open.get(), 0);
}

#[test]
fn refused_hosts_receive_the_exact_alert() {
    let mut stage = Stage::new(TlsPolicy::Allowed);
    // Identities of version 0 do not depend on the key, those of version 1 do.
    for candidate in candidates(7, Hash::Sha256) {
        let mut client = stage.connect();
        let received = stage.shake(&mut client, &candidate).expect_err("no key");
        let alert = match candidate.version {
            IdentityVersion::V0 => Alert::DECRYPT_ERROR,
            IdentityVersion::V1 => Alert::UNKNOWN_PSK_IDENTITY,
        };
        assert_alert(&received, alert);
    }
    assert_eq!(stage.service.counters.handshakes_refused.get(), 4);
    // A record that begins no ClientHello, and one that is too long.
    for (record, alert) in [
        (&[22, 3, 1, 0, 4, 2, 0, 0, 0][..], Alert::UNEXPECTED_MESSAGE),
        (&[22, 3, 1, 0xff, 0xff][..], Alert::RECORD_OVERFLOW),
    ] {
        let mut client = stage.connect();
        client.write_all(record).expect("open");
        let failed = stage.service.counters.handshakes_failed.get();
        stage.until(|it| it.handshakes_failed.get() > failed);
        let mut received = Vec::new();
        client.read_to_end(&mut received).expect("closed in order");
        assert_alert(&received, alert);
    }
}

#[test]
fn the_first_byte_tells_plain_hosts() {
    for policy in [TlsPolicy::Allowed, TlsPolicy::Required] {
        let mut stage = Stage::new(policy);
        let mut client = stage.connect();
        client.write_all(&[0, 0]).expect("open");
        if policy == TlsPolicy::Allowed {
            let mut stream = stage.finished();
            assert!(stream.channel().is_none());
            assert_eq!(stream.available(), 2, "nothing was taken");
        } else {
            stage.until(|it| it.plain_connections_refused.get() == 1);
            assert_eq!(client.read(&mut [0]).expect("closed in order"), 0);
        }
    }
}

/// A health check closes its connection without a byte. It is closed at once, and no handshake has
/// failed.
#[test]
fn connections_without_a_byte_are_no_handshakes() {
    let mut stage = Stage::new(TlsPolicy::Required);
    let mut client = stage.connect();
    stage.turn();
    assert_eq!(stage.service.counters.handshakes_open.get(), 1);
    client.shutdown(Shutdown::Write).expect("connected");
    stage.until(|it| it.handshakes_open.get() == 0);
    assert_eq!(client.read(&mut [0]).expect("closed in order"), 0);
    assert_eq!(stage.service.counters.handshakes_failed.get(), 0);
}

/// A host that sends its ClientHello byte by byte, and one that says nothing, have the same time.
#[test]
fn handshakes_end_in_time() {
    let mut stage = Stage::new(TlsPolicy::Required);
    let (silent, mut slow) = (stage.connect(), stage.connect());
    stage.turn();
    slow.write_all(&[22, 3]).expect("open");
    stage.now += HANDSHAKE_TIME_MAX - Duration::from_millis(1);
    stage.turn();
    slow.write_all(&[1]).expect("open");
    stage.turn();
    assert_eq!(stage.service.counters.handshakes_open.get(), 2);
    stage.now += Duration::from_millis(1);
    stage.turn();
    assert_eq!(stage.service.counters.handshake_timeouts.get(), 2);
    assert_eq!(stage.service.counters.handshakes_open.get(), 0);
    for mut client in [silent, slow] {
        // The unread bytes may make the kernel reset the connection.
        assert_eq!(client.read(&mut [0]).unwrap_or(0), 0);
    }
}

/// A thousand half-open connections of one origin keep none of another from being served, and at
/// most a bounded number exists.
#[test]
fn half_open_connections_do_not_affect_others() {
    let mut stage = Stage::new(TlsPolicy::Required);
    let candidate = candidates(1, Hash::Sha256).remove(0);
    let crowd: Vec<TcpStream> = (0..1000).map(|_| stage.connect_from(2)).collect();
    stage.turn();
    let counters = Arc::clone(&stage.service.counters);
    let open = HANDSHAKES_PER_ORIGIN_MAX as u64;
    assert_eq!(counters.handshakes_open.get(), open);
    assert_eq!(counters.handshakes_rejected.get(), 1000 - open);
    let mut client = stage.connect_from(3);
    stage.shake(&mut client, &candidate).expect("served");
    stage.finished();
    // A host of the same origin gets the place of the oldest one after a while.
    stage.now += EVICTABLE_AFTER;
    let mut client = stage.connect_from(2);
    stage.shake(&mut client, &candidate).expect("served");
    stage.finished();
    assert_eq!(counters.handshakes_open.get(), open - 1);
    drop(crowd);
    stage.until(|it| it.handshakes_open.get() == 0);
}

/// Many origins fill the table: a newcomer takes the place of one that has more.
#[test]
fn the_table_is_shared_between_origins() {
    let mut stage = Stage::new(TlsPolicy::Required);
    let mut crowd = Vec::new();
    for origin in 0..=(HANDSHAKES_MAX / HANDSHAKES_PER_ORIGIN_MAX) as u8 {
        for _ in 0..HANDSHAKES_PER_ORIGIN_MAX {
            crowd.push(stage.connect_from(10 + origin));
        }
        stage.turn();
    }
    let counters = Arc::clone(&stage.service.counters);
    assert_eq!(counters.handshakes_open.get(), HANDSHAKES_MAX as u64);
    let before = counters.handshakes_rejected.get();
    stage.now += EVICTABLE_AFTER;
    let mut client = stage.connect_from(200);
    let candidate = candidates(1, Hash::Sha256).remove(0);
    stage.shake(&mut client, &candidate).expect("served");
    assert_eq!(counters.handshakes_rejected.get(), before + 1);
}

/// A host cannot make the thread receive without end.
#[test]
fn the_bytes_before_finished_are_bounded() {
    let mut stage = Stage::new(TlsPolicy::Required);
    let mut client = stage.connect();
    client.set_nonblocking(true).expect("a socket");
    // A ClientHello in many small records.
    let mut record = vec![22, 3, 1, 0, 8];
    record.extend([1, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    let mut sent = 0;
    while stage.service.counters.handshakes_failed.get() == 0 {
        if let Ok(bytes) = client.write(&record) {
            sent += bytes;
        }
        assert!(sent <= 2 * HANDSHAKE_BYTES_MAX, "it receives without end");
        stage.turn();
    }
}

/// The kernel protects the connection if it has TLS, otherwise this process does; the host notices
/// no difference.
#[test]
fn records_are_the_kernels_if_it_has_tls() {
    let mut stage = Stage::new(TlsPolicy::Required);
    stage.records = TlsRecords::Kernel;
    for (byte, hash) in [(1, Hash::Sha256), (2, Hash::Sha384)] {
        let mut client = stage.connect();
        let candidate = &candidates(byte, hash)[0];
        let secrets = stage.shake(&mut client, candidate).expect("a known key");
        let mut stream = stage.finished();
        let channel = stream.channel().expect("protected");
        assert_eq!(channel.has_kernel_records, nvme_tls_kernel::is_available());
        client.set_nonblocking(false).expect("a socket");
        let mut host = Channel::new(Role::Client, secrets.send, secrets.receive);
        for round in 0..3 {
            let data = [round; 100];
            host.seal(&mut Unsealed::new(&[IoSlice::new(&data)]));
            client.write_all(host.unsent()).expect("open");
            host.sent(host.unsent().len());
            let mut found = [0; 100];
            let began = Instant::now();
            let received = loop {
                match stream.receive(&mut [IoSliceMut::new(&mut found)]) {
                    Transferred::WouldBlock => assert!(began.elapsed() < LIMIT),
                    received => break received,
                }
            };
            assert_eq!((received, found), (Transferred::Bytes(100), data));
            let sent = stream.send(&[IoSlice::new(&data[..50]), IoSlice::new(&data[50..])]);
            assert_eq!(sent, Transferred::Bytes(100));
            let mut found = [0; 100];
            let mut filled = 0;
            while filled < 100 {
                match host.take(&mut [IoSliceMut::new(&mut found[filled..])]) {
                    Taken::Bytes(bytes) => filled += bytes,
                    Taken::Nothing => {
                        let bytes = client.read(host.room()).expect("open");
                        assert!(bytes > 0);
                        host.filled(bytes);
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(found, data);
        }
        stream.finish_sending();
        let last = loop {
            match host.take(&mut [IoSliceMut::new(&mut [0])]) {
                Taken::Nothing => {
                    let bytes = client.read(host.room()).expect("open");
                    assert!(bytes > 0, "an alert is before the end");
                    host.filled(bytes);
                }
                taken => break taken,
            }
        };
        assert_eq!(last, Taken::Closed);
    }
}
