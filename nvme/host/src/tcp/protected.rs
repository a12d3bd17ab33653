//! A socket protected by TLS 1.3 records: the host's side of TCP 1.1 §3.6.1.3.
//!
//! Only connecting waits, for the handshake. What the socket does not accept stays in the channel's
//! buffer, and the next send or receive continues with it.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use nvme_keys::{Candidate, Derivation, IdentityVersion, Names, TlsKey};
use nvme_tls::{Channel, Role, Taken, Unsealed};
use nvme_tls_handshake::{ClientHandshake, Group, Progress, Secrets};
use rustix::io::Errno;

use crate::deadline::Deadline;
use crate::error::HostError;
use crate::options::ConnectOptions;
use crate::tcp::stream::{ByteStream, Socket, StreamResult};

/// Receives of the socket in one receive of the stream.
const RECEIVES_MAX: usize = 4;

/// The key of a host, and the way in which it derives what it proves.
#[derive(Debug, Clone)]
pub struct TlsOptions {
    /// The key.
    pub key: Arc<TlsKey>,
    /// The version of the identity.
    pub version: IdentityVersion,
    /// The derivation.
    pub derivation: Derivation,
}

impl TlsOptions {
    /// The options of a host that follows the specification.
    #[must_use]
    pub fn new(key: TlsKey) -> Self {
        Self {
            key: Arc::new(key),
            version: IdentityVersion::V1,
            derivation: Derivation::Standard,
        }
    }

    /// What the host proves to a subsystem.
    fn candidate(&self, options: &ConnectOptions) -> Result<Candidate, HostError> {
        let names = Names::new(&options.identity.nqn, &options.subsystem_nqn);
        let names = names.map_err(|error| HostError::Tls(error.to_string()))?;
        let candidates = self.key.candidates(names).into_iter();
        let (version, derivation) = (self.version, self.derivation);
        let mut found =
            candidates.filter(|it| (it.version, it.derivation) == (version, derivation));
        let none = || HostError::Tls("the key has no identity of this kind".to_owned());
        found.next().ok_or_else(none)
    }
}

/// A protected socket: the stream of [`Transport::tls`](crate::Transport::tls).
#[derive(Debug)]
pub struct ProtectedSocket {
    socket: Socket,
    channel: Box<Channel>,
    group: Group,
}

impl ProtectedSocket {
    /// Connects according to `options`, and performs the handshake within the time limit of one
    /// step.
    ///
    /// # Errors
    /// Those of [`Socket::connect`], or [`HostError::Tls`].
    pub fn connect(options: &ConnectOptions, tls: &TlsOptions) -> Result<Self, HostError> {
        let candidate = tls.candidate(options)?;
        let mut socket = Socket::connect(options)?;
        let secrets = shake(&mut socket, &candidate, options.timeout)?;
        let group = secrets.group;
        let channel = Channel::new(Role::Client, secrets.send, secrets.receive);
        Ok(Self {
            socket,
            channel: Box::new(channel),
            group,
        })
    }

    /// The group of the key exchange.
    #[must_use]
    pub fn group(&self) -> Group {
        self.group
    }

    /// Sends sealed bytes. Returns whether none is left.
    fn send_sealed(&mut self) -> Result<bool, Errno> {
        while !self.channel.unsent().is_empty() {
            match self.socket.send(&[IoSlice::new(self.channel.unsent())]) {
                StreamResult::Bytes(bytes) => self.channel.sent(bytes),
                StreamResult::Nothing => return Ok(false),
                StreamResult::Ended => return Err(Errno::PIPE),
                StreamResult::Failed(errno) => return Err(errno),
            }
        }
        Ok(true)
    }
}

/// Performs a handshake over `socket`.
fn shake(
    socket: &mut Socket,
    candidate: &Candidate,
    limit: Duration,
) -> Result<Secrets, HostError> {
    let failed = |error: nvme_tls_handshake::HandshakeError| HostError::Tls(error.to_string());
    let deadline = Deadline::after(limit, "the TLS handshake");
    let mut handshake = ClientHandshake::new(candidate).map_err(failed)?;
    loop {
        send_all(socket, &handshake.take_output(), &deadline)?;
        let mut bytes = vec![0; handshake.wanted()];
        match socket.receive(&mut [IoSliceMut::new(&mut bytes)]) {
            StreamResult::Bytes(received) => {
                let progress = handshake.receive(&bytes[..received]);
                if let Ok(Progress::Complete(secrets)) = progress {
                    send_all(socket, &handshake.take_output(), &deadline)?;
                    return Ok(secrets);
                }
                if let Err(error) = progress {
                    // The alert, which the target may no longer receive.
                    let _ = send_all(socket, &handshake.take_output(), &deadline);
                    return Err(failed(error));
                }
            }
            StreamResult::Nothing => socket.wait(false, deadline.left()?),
            StreamResult::Ended => {
                let text = "the target has closed the connection: it may have no TLS";
                return Err(HostError::Tls(text.to_owned()));
            }
            StreamResult::Failed(errno) => return Err(errno.into()),
        }
    }
}

fn send_all(socket: &mut Socket, mut bytes: &[u8], deadline: &Deadline) -> Result<(), HostError> {
    while !bytes.is_empty() {
        match socket.send(&[IoSlice::new(bytes)]) {
            StreamResult::Bytes(sent) => bytes = &bytes[sent..],
            StreamResult::Nothing => socket.wait(true, deadline.left()?),
            StreamResult::Ended => return Err(HostError::Closed),
            StreamResult::Failed(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

impl ByteStream for ProtectedSocket {
    fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> StreamResult {
        for _ in 0..RECEIVES_MAX {
            let taken = self.channel.take(buffers);
            if self.channel.owes_update() {
                self.channel.seal(&mut Unsealed::new(&[]));
            }
            // What was not accepted before; a broken stream is reported by the receive.
            let _ = self.send_sealed();
            match taken {
                Taken::Bytes(bytes) => return StreamResult::Bytes(bytes),
                Taken::Closed => return StreamResult::Ended,
                Taken::Failed(_) => return StreamResult::Failed(Errno::PROTO),
                Taken::Nothing => {}
            }
            let room = IoSliceMut::new(self.channel.room());
            match self.socket.receive(&mut [room]) {
                StreamResult::Bytes(bytes) => self.channel.filled(bytes),
                other => return other,
            }
        }
        match self.channel.take(buffers) {
            Taken::Bytes(bytes) => StreamResult::Bytes(bytes),
            // The next receive returns the rest.
            Taken::Nothing | Taken::Closed | Taken::Failed(_) => StreamResult::Nothing,
        }
    }

    fn send(&mut self, buffers: &[IoSlice<'_>]) -> StreamResult {
        let mut data = Unsealed::new(buffers);
        loop {
            match self.send_sealed() {
                Ok(true) => {}
                Ok(false) => break,
                Err(errno) => return StreamResult::Failed(errno),
            }
            if data.is_empty() {
                break;
            }
            let before = data.sealed_bytes();
            self.channel.seal(&mut data);
            if data.sealed_bytes() == before {
                return StreamResult::Failed(Errno::PIPE);
            }
        }
        match data.sealed_bytes() {
            0 => StreamResult::Nothing,
            bytes => StreamResult::Bytes(bytes),
        }
    }

    fn wait(&self, to_send: bool, limit: Duration) {
        if !self.channel.has_more() {
            let to_send = to_send || !self.channel.unsent().is_empty();
            self.socket.wait(to_send, limit);
        }
    }

    /// None while received bytes wait in the channel, of which the socket knows nothing.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self.channel.has_more() || !self.channel.unsent().is_empty() {
            true => None,
            false => self.socket.descriptor(),
        }
    }
}
