//! A connection's two ends of the wire: vectored, non-blocking receive and send.
//!
//! The connection knows only [`ByteStream`], so that a simulated network, a fuzzer and a TCP socket
//! drive the same production code. Nothing here blocks.

use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use reactors::spare_returns;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg, sockopt};

/// What one vectored receive or send came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transferred {
    /// This many bytes moved, at least one.
    Bytes(usize),
    /// Nothing can move now.
    WouldBlock,
    /// The peer has closed its sending side (receive only).
    Closed,
    /// The connection is broken.
    Failed(Errno),
}

/// A non-blocking, ordered, reliable stream of bytes.
pub trait ByteStream {
    /// Receives into `buffers`, in their order; they hold at least one byte together.
    fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Transferred;

    /// Bytes that have come: the next receive into buffers of at least one byte succeeds, and brings
    /// all of these that there is room for. 0 where that cannot be promised.
    fn available(&self) -> usize {
        0
    }

    /// Sends from `buffers`, in their order; they hold at least one byte together.
    fn send(&mut self, buffers: &[IoSlice<'_>]) -> Transferred;

    /// Tells the peer that nothing more will be sent.
    fn finish_sending(&mut self);

    /// The target's own address of the stream; `None` for streams without one.
    fn local_address(&self) -> Option<IpAddr> {
        None
    }

    /// Where the host is, for log lines; `None` for streams without an address.
    fn host_address(&self) -> Option<SocketAddr> {
        None
    }
}

/// A peer from which nothing comes for this time is probed.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
/// Time between two probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Probes without an answer after which the connection is broken.
const KEEPALIVE_PROBES: u32 = 6;
/// The connection is broken when the peer has not acknowledged data, or kept its window closed and
/// answered no probe, for this time.
const USER_TIMEOUT: Duration = Duration::from_secs(90);
/// Within this time a peer that is gone is noticed although its keep-alive timer is off (KATO 0,
/// Base 2.1 §3.9).
const DEAD_PEER_MAX: Duration = Duration::from_secs(120);

const _: () = {
    let probing = KEEPALIVE_INTERVAL.as_secs() * KEEPALIVE_PROBES as u64;
    assert!(KEEPALIVE_IDLE.as_secs() + probing < DEAD_PEER_MAX.as_secs());
    // The user timeout counts where both are set (tcp(7)), from the last sign of the peer.
    assert!(USER_TIMEOUT.as_secs() + KEEPALIVE_INTERVAL.as_secs() < DEAD_PEER_MAX.as_secs());
};

/// A connected, non-blocking TCP socket.
#[derive(Debug)]
pub struct TcpSocket(TcpStream);

impl TcpSocket {
    /// Takes over `stream`: non-blocking; without Nagle's delay, since whole batches are sent at
    /// once; with the kernel's probes and a time limit for acknowledgements, so that a peer that
    /// vanished is noticed within two minutes although it has no keep-alive timer.
    ///
    /// # Errors
    /// The socket option's error.
    pub fn new(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
        sockopt::set_tcp_user_timeout(&stream, USER_TIMEOUT.as_millis() as u32)?;
        Ok(Self(stream))
    }
}

impl ByteStream for TcpSocket {
    fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Transferred {
        loop {
            // A receive goes to the socket straight, a read by way of the file.
            let received = match &mut *buffers {
                [buffer] => recv(&self.0, &mut **buffer, RecvFlags::DONTWAIT).map(|(_, all)| all),
                buffers => rustix::io::readv(&self.0, buffers),
            };
            spare_returns();
            return match received {
                Ok(0) => Transferred::Closed,
                Ok(bytes) => Transferred::Bytes(bytes),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Transferred::WouldBlock,
                Err(errno) => Transferred::Failed(errno),
            };
        }
    }

    // What is in the queue of a TCP socket is in sequence and only leaves it by our receives: they
    // end early at urgent data, before which this count ends too, and fail only when it is empty.
    fn available(&self) -> usize {
        let bytes = rustix::io::ioctl_fionread(&self.0);
        spare_returns();
        usize::try_from(bytes.unwrap_or(0)).unwrap_or(0)
    }

    fn send(&mut self, buffers: &[IoSlice<'_>]) -> Transferred {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            let sent = match buffers {
                [buffer] => send(&self.0, buffer, flags),
                _ => sendmsg(&self.0, buffers, &mut SendAncillaryBuffer::default(), flags),
            };
            spare_returns();
            return match sent {
                Ok(bytes) => Transferred::Bytes(bytes),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => Transferred::WouldBlock,
                Err(errno) => Transferred::Failed(errno),
            };
        }
    }

    fn finish_sending(&mut self) {
        // A peer that is gone already needs no telling.
        let _ = self.0.shutdown(std::net::Shutdown::Write);
    }

    fn local_address(&self) -> Option<IpAddr> {
        self.0.local_addr().ok().map(|address| address.ip())
    }

    fn host_address(&self) -> Option<SocketAddr> {
        self.0.peer_addr().ok()
    }
}

impl AsFd for TcpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A host with KATO 0 (Base 2.1 §3.9) that vanishes is noticed by the kernel alone.
    #[test]
    fn a_peer_that_vanishes_is_noticed_within_two_minutes() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let _client = TcpStream::connect(address).expect("listening");
        let (accepted, _) = listener.accept().expect("connected");
        let TcpSocket(socket) = TcpSocket::new(accepted).expect("options");
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
}
