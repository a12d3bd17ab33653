//! A socket whose TLS 1.3 records are the kernel's (kTLS).
//!
//! The kernel encrypts what is sent, and decrypts what is received directly into the connection's
//! buffers. It tells which records have no data: alerts and KeyUpdates. Those are received into the
//! same buffers, of which nothing counts as received then. So data is never placed directly in a
//! device ([`ByteStream::available`] is zero).
//!
//! A kernel before 6.14 cannot replace a key. The connection ends then when a key has to be replaced.

use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::sync::Arc;

use nvme_target::SecureChannel;
use nvme_tls::{
    Alert, ContentType, Control, ControlRecords, PLAINTEXT_BYTES_MAX, Role, TrafficSecret,
    key_update,
};
use nvme_tls_handshake::Secrets;
use nvme_tls_kernel::{self as kernel, Received};
use reactors::restore_return_prediction;
use rustix::io::Errno;

use crate::stream::{ByteStream, TcpSocket, Transferred};

/// Records without data in one receive. A peer that sends nothing else does not occupy the reactor.
const RECORDS_WITHOUT_DATA_MAX: usize = 4;

/// Records that one key protects before it is replaced, as with records of our own.
const RECORDS_BEFORE_UPDATE: u64 = 1 << 24;

/// A socket that the kernel protects.
#[derive(Debug)]
pub struct KernelProtected {
    socket: TcpSocket,
    send: TrafficSecret,
    receive: TrafficSecret,
    controls: ControlRecords,
    /// At least the number of records that the key has protected.
    sent_records: u64,
    owes_update: bool,
    /// The peer has ended the connection, or has violated the protocol.
    has_failed: bool,
    description: Arc<SecureChannel>,
}

impl KernelProtected {
    /// Protects `socket`, on which the handshake of a target was completed, and nothing was received
    /// behind it.
    ///
    /// # Errors
    /// The socket as it was, if the kernel has no TLS. After another error it can only be closed.
    pub(crate) fn new(
        socket: TcpSocket,
        secrets: &Secrets,
        description: SecureChannel,
    ) -> Result<Self, (TcpSocket, Errno)> {
        match kernel::protect(socket.as_fd(), &secrets.send, &secrets.receive) {
            Ok(()) => Ok(Self {
                socket,
                send: secrets.send.clone(),
                receive: secrets.receive.clone(),
                controls: ControlRecords::new(Role::Server),
                sent_records: 0,
                owes_update: false,
                has_failed: false,
                description: Arc::new(description),
            }),
            Err(errno) => Err((socket, errno)),
        }
    }

    pub(crate) const fn socket(&self) -> &TcpSocket {
        &self.socket
    }

    /// Reads a record without data, of which `content` was received. Returns what ends the stream.
    #[cold]
    fn control(&mut self, kind: ContentType, content: &[u8]) -> Option<Transferred> {
        match self.controls.read(kind, content) {
            Ok(Control::Nothing) => None,
            Ok(Control::KeyUpdate { requested }) => {
                self.owes_update |= requested;
                self.receive = self.receive.next();
                let set = kernel::set_receive_key(self.socket.as_fd(), &self.receive);
                if let Err(errno) = set {
                    return Some(self.cannot_replace(errno));
                }
                // If it is not sent now, it precedes the next data.
                self.send_update().err().map(Transferred::Failed)
            }
            Ok(Control::Closed) => Some(Transferred::Closed),
            Ok(Control::Reported(_)) => {
                self.has_failed = true;
                Some(Transferred::Failed(Errno::PROTO))
            }
            Err(alert) => Some(self.violation(alert)),
        }
    }

    fn cannot_replace(&mut self, errno: Errno) -> Transferred {
        self.has_failed = true;
        tracing::warn!(
            %errno,
            "a connection over TLS ends: its key has to be replaced, which Linux can since 6.14; write \
             tls_records = \"own\""
        );
        Transferred::Failed(errno)
    }

    /// Ends the connection with an alert, for which there is one attempt.
    fn violation(&mut self, alert: Alert) -> Transferred {
        self.has_failed = true;
        let _ = kernel::send_control(self.socket.as_fd(), ContentType::Alert, &alert.message());
        Transferred::Failed(Errno::PROTO)
    }

    /// Replaces the key for what is sent, if that is due.
    fn send_update(&mut self) -> Result<(), Errno> {
        if !self.owes_update && self.sent_records < RECORDS_BEFORE_UPDATE {
            return Ok(());
        }
        let message = key_update(false);
        match kernel::send_control(self.socket.as_fd(), ContentType::Handshake, &message) {
            Ok(()) => {}
            // The next send tries it again.
            Err(Errno::AGAIN) => return Ok(()),
            Err(errno) => return Err(errno),
        }
        self.send = self.send.next();
        self.owes_update = false;
        self.sent_records = 0;
        let set = kernel::set_send_key(self.socket.as_fd(), &self.send);
        set.inspect_err(|errno| {
            self.cannot_replace(*errno);
        })
    }
}

impl ByteStream for KernelProtected {
    fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Transferred {
        if self.has_failed {
            return Transferred::Failed(Errno::PROTO);
        }
        for _ in 0..RECORDS_WITHOUT_DATA_MAX {
            let received = kernel::receive(self.socket.as_fd(), buffers);
            restore_return_prediction();
            let (kind, bytes) = match received {
                Ok(Received::Record(kind, bytes)) => (kind, bytes),
                Ok(Received::End) => return Transferred::Closed,
                Err(Errno::AGAIN) => return Transferred::WouldBlock,
                Err(Errno::BADMSG) => return self.violation(Alert::BAD_RECORD_MAC),
                Err(errno) => return Transferred::Failed(errno),
            };
            if kind == ContentType::ApplicationData {
                if self.controls.is_within_message() {
                    return self.violation(Alert::UNEXPECTED_MESSAGE);
                }
                if bytes > 0 {
                    return Transferred::Bytes(bytes);
                }
                continue;
            }
            let content = gather(buffers, bytes);
            if let Some(end) = self.control(kind, &content) {
                return end;
            }
        }
        // What else there is, the next receive returns.
        Transferred::WouldBlock
    }

    /// Zero: records without data may be among what the kernel has received.
    fn available(&mut self) -> usize {
        0
    }

    fn send(&mut self, buffers: &[IoSlice<'_>]) -> Transferred {
        if self.has_failed {
            return Transferred::Failed(Errno::PIPE);
        }
        if let Err(errno) = self.send_update() {
            return Transferred::Failed(errno);
        }
        let sent = self.socket.send(buffers);
        if let Transferred::Bytes(bytes) = sent {
            self.sent_records += 1 + (bytes / PLAINTEXT_BYTES_MAX) as u64;
        }
        sent
    }

    fn finish_sending(&mut self) {
        if !self.has_failed {
            let last = Alert::CLOSE_NOTIFY.message();
            let _ = kernel::send_control(self.socket.as_fd(), ContentType::Alert, &last);
        }
        self.socket.finish_sending();
    }

    /// The process keeps the secrets for the next keys.
    fn belongs_to_process(&self) -> bool {
        true
    }

    fn local_address(&self) -> Option<IpAddr> {
        self.socket.local_address()
    }

    fn host_address(&self) -> Option<SocketAddr> {
        self.socket.host_address()
    }

    fn channel(&self) -> Option<&Arc<SecureChannel>> {
        Some(&self.description)
    }
}

/// The first bytes of buffers, in one piece.
#[cold]
fn gather(buffers: &[IoSliceMut<'_>], bytes: usize) -> Vec<u8> {
    let all = buffers.iter().flat_map(|buffer| buffer.iter());
    all.take(bytes).copied().collect()
}
