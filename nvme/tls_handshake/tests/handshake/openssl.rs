//! OpenSSL as the host and as the target, over loopback sockets.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel as queue};
use std::time::{Duration, Instant};

use nvme_keys::{Candidate, Derivation, Hash, IdentityVersion};
use nvme_tls::{Alert, Channel, Role, Taken, Unsealed};
use nvme_tls_handshake::{
    ClientHandshake, Established, Group, HandshakeError, Progress, Secrets, ServerHandshake,
};

use crate::rig::{candidates, channel, key, table};

/// Time limit of each wait.
const LIMIT: Duration = Duration::from_secs(20);

/// A running `openssl`, with everything that it prints.
struct OpenSsl {
    child: Child,
    input: ChildStdin,
    printed: Receiver<Vec<u8>>,
    text: String,
}

impl OpenSsl {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new("openssl")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("openssl is installed: cargo xtask test --only packages");
        let (sender, printed) = queue();
        let copy = |mut from: Box<dyn std::io::Read + Send>| {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(bytes @ 1..) = from.read(&mut buffer) {
                    if sender.send(buffer[..bytes].to_vec()).is_err() {
                        return;
                    }
                }
            });
        };
        copy(Box::new(child.stdout.take().expect("piped")));
        copy(Box::new(child.stderr.take().expect("piped")));
        Self {
            input: child.stdin.take().expect("piped"),
            child,
            printed,
            text: String::new(),
        }
    }

    /// A host with `candidate`, that connects to `port`.
    fn host(port: u16, candidate: &Candidate, more: &[&str]) -> Self {
        let (address, psk) = (format!("127.0.0.1:{port}"), hexadecimal(candidate));
        let identity = candidate.identity.as_str();
        let fixed = [
            "s_client",
            "-connect",
            &address,
            "-tls1_3",
            "-psk",
            &psk,
            "-psk_identity",
            identity,
        ];
        Self::start(&[&fixed[..], more].concat())
    }

    /// Waits until it has printed `text`; returns everything behind the previous such wait.
    fn expect(&mut self, text: &str) {
        let began = Instant::now();
        while !self.text.contains(text) {
            let left = LIMIT.saturating_sub(began.elapsed());
            match self.printed.recv_timeout(left) {
                Ok(bytes) => self.text.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("{text:?} is missing in {}", self.text),
            }
        }
    }

    fn say(&mut self, line: &str) {
        // In one write: OpenSSL recognises a command at the beginning of what it reads.
        let line = format!("{line}\n");
        self.input
            .write_all(line.as_bytes())
            .expect("it is running");
    }
}

impl Drop for OpenSsl {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn hexadecimal(candidate: &Candidate) -> String {
    let bytes = candidate.psk.expose().iter();
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = listener.local_addr().expect("bound").port();
    (listener, port)
}

fn accept(listener: &TcpListener) -> TcpStream {
    let (socket, _) = listener.accept().expect("openssl connects");
    socket.set_read_timeout(Some(LIMIT)).expect("an option");
    socket
}

/// Performs the target's side on `socket`.
fn serve(
    socket: &mut TcpStream,
    mut server: ServerHandshake<usize>,
) -> Result<Established<usize>, HandshakeError> {
    loop {
        let mut buffer = vec![0; server.wanted()];
        let bytes = socket.read(&mut buffer).expect("received");
        assert!(bytes > 0, "openssl has closed the connection");
        let progress = server.receive(&buffer[..bytes]);
        socket.write_all(&server.take_output()).expect("sent");
        if let Progress::Complete(established) = progress? {
            return Ok(established);
        }
    }
}

/// Performs the host's side on `socket`.
fn connect(socket: &mut TcpStream, mut client: ClientHandshake) -> Result<Secrets, HandshakeError> {
    loop {
        socket.write_all(&client.take_output()).expect("sent");
        let mut buffer = vec![0; client.wanted()];
        let bytes = socket.read(&mut buffer).expect("received");
        assert!(bytes > 0, "openssl has closed the connection");
        if let Progress::Complete(secrets) = client.receive(&buffer[..bytes])? {
            socket.write_all(&client.take_output()).expect("sent");
            return Ok(secrets);
        }
    }
}

/// A protected connection over a socket.
struct Protected {
    socket: TcpStream,
    channel: Channel,
}

impl Protected {
    fn new(socket: TcpStream, role: Role, secrets: Secrets) -> Self {
        let channel = channel(role, secrets);
        Self { socket, channel }
    }

    fn send(&mut self, data: &str) {
        let pieces = [std::io::IoSlice::new(data.as_bytes())];
        self.channel.seal(&mut Unsealed::new(&pieces));
        self.socket.write_all(self.channel.unsent()).expect("sent");
        self.channel.sent(self.channel.unsent().len());
    }

    /// Receives a line. One may be empty: that of a command to OpenSSL.
    fn line(&mut self) -> String {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') || line.trim_ascii().is_empty() {
            let mut buffer = [0; 100];
            match self
                .channel
                .take(&mut [std::io::IoSliceMut::new(&mut buffer)])
            {
                Taken::Bytes(bytes) => line.extend_from_slice(&buffer[..bytes]),
                Taken::Nothing => {
                    let bytes = self.socket.read(self.channel.room()).expect("received");
                    assert!(bytes > 0, "openssl has closed the connection");
                    self.channel.filled(bytes);
                }
                other => panic!("{other:?}"),
            }
        }
        String::from_utf8(line).expect("text").trim().to_owned()
    }

    /// Receives until the peer has asked for a new key. What is written to it before would be part of
    /// its command.
    fn await_update(&mut self) {
        while !self.channel.owes_update() {
            let bytes = self.socket.read(self.channel.room()).expect("received");
            assert!(bytes > 0, "openssl has closed the connection");
            self.channel.filled(bytes);
            let mut buffer = [0];
            // The end of the command's line.
            while self
                .channel
                .take(&mut [std::io::IoSliceMut::new(&mut buffer)])
                == Taken::Bytes(1)
            {
                assert_eq!(buffer, *b"\n");
            }
        }
    }

    /// Lines in both directions, before and after both sides have updated their keys.
    fn talk(&mut self, peer: &mut OpenSsl) {
        for round in 0..3 {
            let sent = format!("line {round} of windlass");
            self.send(&format!("{sent}\n"));
            peer.expect(&sent);
            peer.say(&format!("answer {round}"));
            assert_eq!(self.line(), format!("answer {round}"));
            // Updates the key of OpenSSL, and asks for an update of ours.
            peer.say("K");
            self.await_update();
            peer.text.clear();
            peer.say("after");
            assert_eq!(self.line(), "after");
            assert!(self.channel.owes_update());
        }
    }
}

#[test]
fn hosts_connect_with_both_derivations_and_every_group() {
    let key = key(Hash::Sha256, 1);
    let table = table(std::slice::from_ref(&key));
    // The second group of the last one needs a HelloRetryRequest.
    let groups = [
        ("X25519", Group::X25519),
        ("P-256", Group::P256),
        ("P-384", Group::P384),
        ("P-521:P-384", Group::P384),
    ];
    for (candidate, (groups, group)) in candidates(&key).iter().zip(groups) {
        let (listener, port) = listen();
        let mut host = OpenSsl::host(port, candidate, &["-groups", groups]);
        let mut socket = accept(&listener);
        let established = serve(&mut socket, ServerHandshake::new(table.clone()));
        let established = established.expect("a known key");
        assert_eq!(established.found.candidate(), candidate);
        assert_eq!(established.secrets.group, group);
        Protected::new(socket, Role::Server, established.secrets).talk(&mut host);
    }
}

#[test]
fn other_hosts_get_their_alert() {
    let known = table(&[key(Hash::Sha256, 1)]);
    let right = candidates(&key(Hash::Sha256, 1)).remove(0);
    let other = candidates(&key(Hash::Sha256, 2));
    let with = |candidate: &Candidate| {
        [
            "-psk".to_owned(),
            hexadecimal(candidate),
            "-psk_identity".to_owned(),
            candidate.identity.clone(),
        ]
    };
    let cases = [
        (with(&other[2]).to_vec(), "-tls1_3", 51),
        (with(&other[0]).to_vec(), "-tls1_3", 115),
        (vec![], "-tls1_3", 109),
        (with(&right).to_vec(), "-tls1_2", 70),
    ];
    for (arguments, version, alert) in cases {
        let (listener, port) = listen();
        let address = format!("127.0.0.1:{port}");
        let mut all = vec!["s_client", "-connect", &address, version];
        all.extend(arguments.iter().map(String::as_str));
        let mut host = OpenSsl::start(&all);
        let mut socket = accept(&listener);
        let error = serve(&mut socket, ServerHandshake::new(known.clone()));
        assert!(error.is_err());
        drop(socket);
        host.expect(&format!("SSL alert number {alert}"));
    }
}

#[test]
fn a_host_without_a_common_group_is_refused() {
    let key = key(Hash::Sha256, 1);
    let (listener, port) = listen();
    let mut host = OpenSsl::host(port, &candidates(&key)[0], &["-groups", "P-521"]);
    let mut socket = accept(&listener);
    let table = table(std::slice::from_ref(&key));
    let error = serve(&mut socket, ServerHandshake::new(table)).expect_err("no group");
    assert_eq!(error, HandshakeError::Violation(Alert::HANDSHAKE_FAILURE));
    drop(socket);
    host.expect("SSL alert number 40");
}

/// A target of OpenSSL with `candidate`, and its port.
fn target(candidate: &Candidate, more: &[&str]) -> (OpenSsl, u16) {
    let (psk, identity) = (hexadecimal(candidate), candidate.identity.as_str());
    let fixed = [
        "s_server",
        "-accept",
        "127.0.0.1:0",
        "-nocert",
        "-tls1_3",
        "-psk",
        &psk,
        "-psk_identity",
        identity,
    ];
    let mut target = OpenSsl::start(&[&fixed[..], more].concat());
    target.expect("ACCEPT 127.0.0.1:");
    let began = Instant::now();
    loop {
        let (_, behind) = target
            .text
            .split_once("ACCEPT 127.0.0.1:")
            .expect("it was printed");
        if let Some((port, _)) = behind.split_once('\n') {
            let port = port.trim().parse().expect("a port");
            return (target, port);
        }
        assert!(began.elapsed() < LIMIT);
        let bytes = target.printed.recv_timeout(LIMIT).expect("printed");
        target.text.push_str(&String::from_utf8_lossy(&bytes));
    }
}

/// OpenSSL sends session tickets, which are ignored.
#[test]
fn our_host_connects_to_a_target() {
    let all = candidates(&key(Hash::Sha256, 1));
    let cases = [
        (Derivation::Standard, &[][..], Group::X25519),
        // The target requests another group than that of the host's first message.
        (
            Derivation::OldLibnvme,
            &["-groups", "P-384"][..],
            Group::P384,
        ),
    ];
    for (derivation, more, group) in cases {
        let is_such =
            |it: &&Candidate| it.derivation == derivation && it.version == IdentityVersion::V1;
        let candidate = all.iter().find(is_such).expect("one of each");
        let (mut target, port) = self::target(candidate, more);
        let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        socket.set_read_timeout(Some(LIMIT)).expect("an option");
        let client = ClientHandshake::new(candidate).expect("s2n-tls");
        let secrets = connect(&mut socket, client).expect("the same key");
        assert_eq!(secrets.group, group);
        Protected::new(socket, Role::Client, secrets).talk(&mut target);
    }
}

#[test]
fn our_host_refuses_a_target_with_another_key() {
    let (own, other) = (
        candidates(&key(Hash::Sha256, 1)),
        candidates(&key(Hash::Sha256, 2)),
    );
    // The same identity, which is of version 0.
    assert_eq!(own[2].identity, other[2].identity);
    let (_target, port) = target(&other[2], &[]);
    let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    socket.set_read_timeout(Some(LIMIT)).expect("an option");
    let client = ClientHandshake::new(&own[2]).expect("s2n-tls");
    let error = connect(&mut socket, client).expect_err("another key");
    assert!(matches!(error, HandshakeError::Reported(_)), "{error}");
}
