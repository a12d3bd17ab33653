//! One connection of a listener with TLS: its first byte, and then its handshake.

use std::io::{IoSlice, IoSliceMut};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use nvme_target::{KeyOwner, SecureChannel};
use nvme_tls::ContentType;
use nvme_tls_handshake::{
    Established, HANDSHAKE_BYTES_MAX, HANDSHAKE_TIME_MAX, HandshakeError, Progress, Secrets,
    ServerHandshake,
};
use rustix::io::Errno;

use super::{Arriving, Origin};
use crate::stream::{ByteStream as _, TcpSocket, Transferred};
use crate::tls::{SharedTlsKeys, TlsPolicy, TlsRecords, VersionedTlsKeys, secure_channel};

/// The first byte of a ClientHello's record.
const TLS_HANDSHAKE: u8 = ContentType::Handshake.code();

/// A connection before it goes to its reactor.
pub(super) struct Handshake {
    stream: TcpSocket,
    origin: Origin,
    policy: TlsPolicy,
    records: TlsRecords,
    /// The network of its host.
    network: Option<IpAddr>,
    began: Instant,
    stage: Stage,
    /// Output that the socket has not accepted.
    unsent: Vec<u8>,
}

/// What the connection waits for. The host's bytes wake each stage.
enum Stage {
    /// The first byte.
    FirstByte,
    /// The messages of the host.
    Tls {
        handshake: Box<ServerHandshake<Arc<KeyOwner>>>,
        keys_version: u64,
    },
}

/// What follows an event.
pub(super) enum Step {
    /// The stream has to be ready again.
    Waits,
    /// The connection goes on without TLS.
    Plain,
    /// The handshake is complete.
    Established(Box<Secrets>, SecureChannel),
    /// The connection is to be closed.
    Ended(End),
}

/// Why a connection is closed.
#[derive(Debug)]
pub(super) enum End {
    /// The host has closed it before its first byte, such as a port scan or a health check.
    Unused,
    /// The host has closed it, or it is broken.
    Disconnected,
    /// The host does not use TLS, and has to.
    Plain,
    /// The handshake has failed. The alert was sent.
    Failed(HandshakeError),
}

impl Handshake {
    pub(super) fn new(arriving: Arriving, network: Option<IpAddr>, now: Instant) -> Self {
        Self {
            stream: arriving.stream,
            origin: arriving.origin,
            policy: arriving.policy,
            records: arriving.records,
            network,
            began: now,
            stage: Stage::FirstByte,
            unsent: Vec::new(),
        }
    }

    pub(super) fn records(&self) -> TlsRecords {
        self.records
    }

    pub(super) fn stream(&self) -> &TcpSocket {
        &self.stream
    }

    pub(super) fn network(&self) -> Option<IpAddr> {
        self.network
    }

    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// When it has to be complete.
    pub(super) fn until(&self) -> Instant {
        self.began + HANDSHAKE_TIME_MAX
    }

    /// Whether it continues when the stream is writable, not when it is readable.
    pub(super) fn awaits_writable(&self) -> bool {
        !self.unsent.is_empty()
    }

    pub(super) fn into_parts(self) -> (TcpSocket, Origin) {
        (self.stream, self.origin)
    }

    /// Performs every transition, as far as the stream permits.
    pub(super) fn advance(&mut self, keys: &SharedTlsKeys, buffer: &mut [u8]) -> Step {
        loop {
            match self.flush() {
                Ok(true) => {}
                Ok(false) => return Step::Waits,
                Err(_) => return Step::Ended(End::Disconnected),
            }
            match &mut self.stage {
                Stage::FirstByte => match self.stream.first_byte() {
                    Ok(None) => return Step::Waits,
                    Ok(Some(TLS_HANDSHAKE)) => {
                        let VersionedTlsKeys { version, keys } = keys.get();
                        self.stage = Stage::Tls {
                            handshake: Box::new(ServerHandshake::new(keys)),
                            keys_version: version,
                        };
                    }
                    Ok(Some(_)) if self.policy == TlsPolicy::Required => {
                        return Step::Ended(End::Plain);
                    }
                    Ok(Some(_)) => return Step::Plain,
                    Err(_) => return Step::Ended(End::Unused),
                },
                Stage::Tls {
                    handshake,
                    keys_version,
                } => {
                    let keys_version = *keys_version;
                    let wanted = handshake.wanted().min(buffer.len());
                    let room = &mut buffer[..wanted];
                    let bytes = match self.stream.receive(&mut [IoSliceMut::new(room)]) {
                        Transferred::Bytes(bytes) => bytes,
                        Transferred::WouldBlock => return Step::Waits,
                        Transferred::Closed | Transferred::Failed(_) => {
                            return Step::Ended(End::Disconnected);
                        }
                    };
                    let received = handshake.receive(&buffer[..bytes]);
                    self.unsent.append(&mut handshake.take_output());
                    match received {
                        Ok(Progress::Continue) => {}
                        Ok(Progress::Complete(established)) => {
                            return self.complete(&established, keys_version);
                        }
                        Err(error) => {
                            // There is one attempt to send the alert.
                            let _ = self.flush();
                            return Step::Ended(End::Failed(error));
                        }
                    }
                }
            }
        }
    }

    /// The stream of a complete handshake. The host's Finished is last, so nothing is unsent.
    fn complete(&mut self, established: &Established<Arc<KeyOwner>>, keys_version: u64) -> Step {
        if self.flush() != Ok(true) {
            return Step::Ended(End::Disconnected);
        }
        let secured = secure_channel(established, keys_version);
        Step::Established(Box::new(established.secrets.clone()), secured)
    }

    /// Sends output. Returns whether none is left.
    fn flush(&mut self) -> Result<bool, Errno> {
        while !self.unsent.is_empty() {
            match self.stream.send(&[IoSlice::new(&self.unsent)]) {
                Transferred::Bytes(bytes) => drop(self.unsent.drain(..bytes)),
                Transferred::WouldBlock => return Ok(false),
                Transferred::Closed => return Err(Errno::PIPE),
                Transferred::Failed(errno) => return Err(errno),
            }
        }
        Ok(true)
    }

    /// Closes the connection so that the host receives the alert: received bytes that nobody has
    /// read would make the kernel reset the connection.
    pub(super) fn close(mut self) {
        self.stream.finish_sending();
        let mut ignored = [0; 4096];
        for _ in 0..HANDSHAKE_BYTES_MAX / ignored.len() {
            match self.stream.receive(&mut [IoSliceMut::new(&mut ignored)]) {
                Transferred::Bytes(_) => {}
                Transferred::WouldBlock | Transferred::Closed | Transferred::Failed(_) => return,
            }
        }
    }
}
