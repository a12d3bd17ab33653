//! The byte stream of a connection: vectored, non-blocking receive and send.
//!
//! The connection uses only [`ByteStream`], so that a simulated network, a fuzzer and a TCP socket
//! drive the same production code. No method blocks.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nvme_spec::tcp::{Framing, IcReq};
use nvme_target::SecureChannel;
use reactors::restore_return_prediction;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg, sockopt};
use zerocopy::IntoBytes as _;

use crate::initialisation::InitialisationTerms;

/// The result of one vectored receive or send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transferred {
    /// Number of bytes transferred, at least one.
    Bytes(usize),
    /// No byte can be transferred now.
    WouldBlock,
    /// The peer has closed its sending side (receive only).
    Closed,
    /// The connection is broken.
    Failed(Errno),
}

/// A non-blocking, ordered, reliable stream of bytes.
pub trait ByteStream {
    /// Receives into `buffers` in order. Their total size is at least one byte.
    fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Transferred;

    /// Like [`receive`](Self::receive), into buffers that nobody else reads: bytes behind the received
    /// ones may be overwritten.
    fn receive_into_private(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Transferred {
        self.receive(buffers)
    }

    /// Bytes that are available: the next receive into buffers of at least one byte succeeds and
    /// returns as many of these as the buffers hold. 0 if the stream cannot guarantee that.
    fn available(&mut self) -> usize {
        0
    }

    /// Whether the stream itself holds something that a receive would return: no readiness event
    /// announces it.
    fn has_received(&self) -> bool {
        false
    }

    /// Sends `buffers` in order. Their total size is at least one byte. The stream may keep some of
    /// the bytes that it accepts.
    fn send(&mut self, buffers: &[IoSlice<'_>]) -> Transferred;

    /// Whether the stream keeps accepted bytes.
    fn keeps_unsent(&self) -> bool {
        false
    }

    /// Sends bytes that the stream keeps. Returns whether none is left; otherwise, it is called again
    /// when the stream is writable.
    ///
    /// # Errors
    /// The connection is broken.
    fn send_kept(&mut self) -> Result<bool, Errno> {
        Ok(true)
    }

    /// Closes the sending side.
    fn finish_sending(&mut self);

    /// Whether another process could not continue the stream with its descriptor, because it has
    /// keys and sequence numbers.
    fn belongs_to_process(&self) -> bool {
        false
    }

    /// The target's address; `None` for streams without one.
    fn local_address(&self) -> Option<IpAddr> {
        None
    }

    /// The secure channel that protects the stream.
    fn channel(&self) -> Option<&Arc<SecureChannel>> {
        None
    }

    /// The host's address, for the log; `None` for streams without one.
    fn host_address(&self) -> Option<SocketAddr> {
        None
    }
}

/// Time without received data after which the kernel probes a peer.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
/// Time between two probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Probes without a reply after which the connection is broken.
const KEEPALIVE_PROBES: u32 = 6;
/// The connection is broken when the peer has not acknowledged data for this time, or has kept its
/// window closed without answering probes.
const USER_TIMEOUT: Duration = Duration::from_secs(90);
/// Time within which a peer that has vanished is detected even if its keep-alive timer is off (KATO
/// 0, Base 2.1 §3.9).
const DEAD_PEER_MAX: Duration = Duration::from_secs(120);

const _: () = {
    let probing = KEEPALIVE_INTERVAL.as_secs() * KEEPALIVE_PROBES as u64;
    assert!(KEEPALIVE_IDLE.as_secs() + probing < DEAD_PEER_MAX.as_secs());
    // If both are set, the user timeout applies (tcp(7)), from the last segment of the peer.
    assert!(USER_TIMEOUT.as_secs() + KEEPALIVE_INTERVAL.as_secs() < DEAD_PEER_MAX.as_secs());
};

/// A connected, non-blocking TCP socket.
#[derive(Debug)]
pub struct TcpSocket {
    socket: TcpStream,
    local: IpAddr,
    host: SocketAddr,
}

impl TcpSocket {
    /// Configures `socket`, which some other listener accepted.
    ///
    /// # Errors
    /// The system's: an option, or the connection has ended.
    pub fn new(socket: TcpStream) -> io::Result<Self> {
        set_options(&socket)?;
        Self::accepted(socket, None)
    }

    /// Another descriptor of the same connection.
    pub(crate) fn duplicate(&self) -> io::Result<Self> {
        Ok(Self {
            socket: self.socket.try_clone()?,
            ..*self
        })
    }

    /// Sets the options of a listener, which the sockets that it accepts inherit.
    pub(crate) fn set_inherited_options(listener: &TcpListener) -> io::Result<()> {
        set_options(listener)
    }

    /// A socket with its options set, accepted from `host`.
    pub(crate) fn accepted(socket: TcpStream, host: Option<SocketAddr>) -> io::Result<Self> {
        let host = host.map_or_else(|| socket.peer_addr(), Ok)?;
        let local = socket.local_addr()?.ip();
        Ok(Self {
            socket,
            local,
            host,
        })
    }
}

/// An ICResp was not sent as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

impl TcpSocket {
    /// Receives an ICReq and sends the ICResp, if a valid ICReq is there. Otherwise receives nothing
    /// and returns `None`: an invalid one is left for the connection, which reports the error.
    pub(crate) fn initialise(
        &mut self,
        terms: &InitialisationTerms,
    ) -> Result<Option<Framing>, Broken> {
        let mut request = [0; size_of::<IcReq>()];
        let flags = RecvFlags::DONTWAIT;
        let peeked = recv(&self.socket, &mut request, flags | RecvFlags::PEEK);
        if !peeked.is_ok_and(|(_, bytes)| bytes == request.len()) {
            return Ok(None);
        }
        let Some((response, framing)) = terms.agree_to_bytes(&request) else {
            return Ok(None);
        };
        // The same bytes again: only this thread receives from the socket.
        let received = recv(&self.socket, &mut request, flags);
        if !received.is_ok_and(|(_, bytes)| bytes == request.len()) {
            return Err(Broken);
        }
        let response = response.as_bytes();
        match self.send(&[IoSlice::new(response)]) {
            Transferred::Bytes(bytes) if bytes == response.len() => Ok(Some(framing)),
            _ => Err(Broken),
        }
    }
}

impl TcpSocket {
    /// The first byte that the peer has sent, which stays in the socket: `Ok(None)` until there is
    /// one.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn first_byte(&self) -> Result<Option<u8>, Errno> {
        let mut byte = [0];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        match recv(&self.socket, &mut byte, flags) {
            Ok((_, 0)) => Err(Errno::CONNRESET),
            Ok(_) => Ok(Some(byte[0])),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// Sets the options of a connection: non-blocking; without Nagle's algorithm, since whole batches
/// are sent in one call; with keep-alive probes and a user timeout, so that a vanished peer without
/// a keep-alive timer is detected within two minutes.
fn set_options(socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    rustix::io::ioctl_fionbio(socket, true)?;
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(socket, USER_TIMEOUT.as_millis() as u32)?;
    Ok(())
}

impl ByteStream for TcpSocket {
    // Inlined into the plain path: a protected stream calls it too, so the compiler would not.
    #[inline(always)]
    fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Transferred {
        loop {
            // recv() calls the socket directly; readv() goes through the file layer.
            let received = match &mut *buffers {
                [buffer] => {
                    recv(&self.socket, &mut **buffer, RecvFlags::DONTWAIT).map(|(_, all)| all)
                }
                buffers => rustix::io::readv(&self.socket, buffers),
            };
            restore_return_prediction();
            return match received {
                Ok(0) => Transferred::Closed,
                Ok(bytes) => Transferred::Bytes(bytes),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Transferred::WouldBlock,
                Err(errno) => Transferred::Failed(errno),
            };
        }
    }

    // Bytes in the receive queue of a TCP socket are in sequence and leave it only by this
    // program's receives. A receive ends early at urgent data, where this count ends too, and fails
    // only if the queue is empty.
    fn available(&mut self) -> usize {
        let bytes = rustix::io::ioctl_fionread(&self.socket);
        restore_return_prediction();
        usize::try_from(bytes.unwrap_or(0)).unwrap_or(0)
    }

    #[inline(always)]
    fn send(&mut self, buffers: &[IoSlice<'_>]) -> Transferred {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            let sent = match buffers {
                [buffer] => send(&self.socket, buffer, flags),
                _ => sendmsg(
                    &self.socket,
                    buffers,
                    &mut SendAncillaryBuffer::default(),
                    flags,
                ),
            };
            restore_return_prediction();
            return match sent {
                Ok(bytes) => Transferred::Bytes(bytes),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Transferred::WouldBlock,
                Err(errno) => Transferred::Failed(errno),
            };
        }
    }

    fn finish_sending(&mut self) {
        // An error means that the peer has already disconnected.
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }

    fn local_address(&self) -> Option<IpAddr> {
        Some(self.local)
    }

    fn host_address(&self) -> Option<SocketAddr> {
        Some(self.host)
    }
}

impl AsFd for TcpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::SocketFlags;

    use super::*;

    /// If a host with KATO 0 (Base 2.1 §3.9) vanishes, only the kernel detects it.
    #[test]
    fn a_peer_that_vanishes_is_noticed_within_two_minutes() {
        let (socket, _client) = accepted_socket();
        assert!(sockopt::socket_keepalive(&socket).expect("an option"));
        let idle = sockopt::tcp_keepidle(&socket).expect("an option");
        let interval = sockopt::tcp_keepintvl(&socket).expect("an option");
        let probes = sockopt::tcp_keepcnt(&socket).expect("an option");
        assert!(
            idle + interval * probes < DEAD_PEER_MAX,
            "{idle:?} {interval:?}"
        );
        let user_timeout = sockopt::tcp_user_timeout(&socket).expect("an option");
        let limit = Duration::from_millis(user_timeout.into());
        assert!(
            !limit.is_zero() && limit + interval < DEAD_PEER_MAX,
            "{limit:?}"
        );
    }

    /// The accepted socket sets no option itself: that would take a system call for each.
    #[test]
    fn accepted_sockets_inherit_the_options_of_their_listener() {
        let (socket, _client) = accepted_socket();
        assert!(sockopt::tcp_nodelay(&socket).expect("an option"));
        let timeout = sockopt::tcp_user_timeout(&socket).expect("an option");
        assert_eq!(u128::from(timeout), USER_TIMEOUT.as_millis());
    }

    /// A connection is logged and reported after its host has disconnected, when the kernel no
    /// longer has the host's address.
    #[test]
    fn addresses_are_known_after_a_reset() {
        let (socket, client) = accepted_socket();
        let host = client.local_addr().expect("connected");
        let mut socket = TcpSocket::accepted(socket, Some(host)).expect("connected");
        client.set_nodelay(true).expect("connected");
        sockopt::set_socket_linger(&client, Some(Duration::ZERO)).expect("an option");
        drop(client);
        let mut byte = [0];
        while socket.receive(&mut [IoSliceMut::new(&mut byte)]) == Transferred::WouldBlock {
            std::thread::yield_now();
        }
        assert!(socket.socket.peer_addr().is_err());
        assert_eq!(socket.host_address(), Some(host));
        assert_eq!(socket.local_address(), Some(host.ip()));
    }

    /// A socket that a prepared listener accepted, and its host's end.
    fn accepted_socket() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        TcpSocket::set_inherited_options(&listener).expect("options");
        let address = listener.local_addr().expect("bound");
        let client = TcpStream::connect(address).expect("listening");
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        loop {
            match rustix::net::accept_with(&listener, flags) {
                Ok(accepted) => return (TcpStream::from(accepted), client),
                Err(errno) => assert_eq!(errno, Errno::AGAIN),
            }
        }
    }
}
