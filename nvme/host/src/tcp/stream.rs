//! The byte stream of a connection: a socket in production, a script in tests.

use std::fmt::Debug;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use reactors::restore_return_prediction;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, connect,
    recv, send, sendmsg, socket_with, sockopt,
};

use crate::deadline::Deadline;
use crate::error::HostError;
use crate::options::ConnectOptions;

/// The result of one send or receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamResult {
    /// This many bytes, at least one.
    Bytes(usize),
    /// No bytes now.
    Nothing,
    /// The target closed its side.
    Ended,
    /// The stream failed.
    Failed(Errno),
}

/// A bidirectional stream of bytes that never blocks.
pub trait ByteStream: Debug {
    /// Receives bytes into `buffers`, in order. What is behind them may be overwritten.
    fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> StreamResult;

    /// Sends bytes of `buffers`, in order.
    fn send(&mut self, buffers: &[IoSlice<'_>]) -> StreamResult;

    /// Waits until there are bytes to receive or, if `to_send` is set, room to send; at most for
    /// `limit`.
    fn wait(&self, to_send: bool, limit: Duration);

    /// A descriptor to wait on, if there is one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A non-blocking TCP socket with TCP_NODELAY: the default stream unless
/// [`Transport::tcp_over`](crate::Transport::tcp_over) sets another.
#[derive(Debug)]
pub struct Socket(TcpStream);

impl Socket {
    /// Connects according to `options`, within the time limit of one step.
    ///
    /// # Errors
    /// [`HostError::Connect`], or [`HostError::CongestionControl`].
    pub fn connect(options: &ConnectOptions) -> Result<Self, HostError> {
        let address = options.address;
        let failed = |source: io::Error| HostError::Connect { address, source };
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None);
        let socket = socket.map_err(|errno| failed(errno.into()))?;
        if let Some(name) = &options.congestion_control {
            // Set it before connecting: a connection that starts with a congestion control that
            // paces stays paced under any other (Linux, sk_pacing_status).
            sockopt::set_tcp_congestion(&socket, name).map_err(|source| {
                HostError::CongestionControl {
                    name: name.clone(),
                    source,
                }
            })?;
        }
        let connected = match connect(&socket, &address) {
            Err(Errno::INPROGRESS | Errno::INTR) => await_connected(&socket, options.timeout),
            other => other.map_err(io::Error::from),
        };
        connected.map_err(failed)?;
        let stream = TcpStream::from(socket);
        // Whole batches are sent by one call, so waiting for more data gains nothing.
        stream.set_nodelay(true).map_err(failed)?;
        Ok(Self(stream))
    }
}

/// Waits until a connecting socket is connected or has failed, at most for `limit`.
fn await_connected(socket: &OwnedFd, limit: Duration) -> io::Result<()> {
    let deadline = Deadline::after(limit, "the connection");
    loop {
        let left = deadline
            .left()
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
        let mut descriptors = [PollFd::new(socket, PollFlags::OUT)];
        match poll(&mut descriptors, Some(&timespec(left))) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(sockopt::socket_error(socket)??),
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn timespec(limit: Duration) -> Timespec {
    Timespec::try_from(limit).unwrap_or(Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    })
}

impl ByteStream for Socket {
    fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> StreamResult {
        // `recv` calls the socket directly, `read` through the file layer.
        let received = match buffers {
            [buffer] => recv(&self.0, &mut **buffer, RecvFlags::DONTWAIT).map(|(_, bytes)| bytes),
            _ => rustix::io::readv(&self.0, buffers),
        };
        restore_return_prediction();
        match received {
            Ok(0) => StreamResult::Ended,
            Ok(bytes) => StreamResult::Bytes(bytes),
            Err(Errno::AGAIN | Errno::INTR) => StreamResult::Nothing,
            Err(errno) => StreamResult::Failed(errno),
        }
    }

    fn send(&mut self, buffers: &[IoSlice<'_>]) -> StreamResult {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = match buffers {
            [buffer] => send(&self.0, buffer, flags),
            _ => sendmsg(&self.0, buffers, &mut SendAncillaryBuffer::default(), flags),
        };
        restore_return_prediction();
        match sent {
            Ok(0) | Err(Errno::AGAIN | Errno::INTR) => StreamResult::Nothing,
            Ok(bytes) => StreamResult::Bytes(bytes),
            Err(errno) => StreamResult::Failed(errno),
        }
    }

    fn wait(&self, to_send: bool, limit: Duration) {
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, to_send);
        let mut descriptors = [PollFd::new(&self.0, flags)];
        // An error here is reported, with its cause, by the next receive.
        let _ = poll(&mut descriptors, Some(&timespec(limit)));
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::options::HostIdentity;

    const LIMIT: Duration = Duration::from_secs(30);

    fn options(listener: &TcpListener, congestion_control: Option<&str>) -> ConnectOptions {
        let address = listener.local_addr().expect("bound");
        let identity = HostIdentity::from_uuid([7; 16]);
        ConnectOptions {
            congestion_control: congestion_control.map(str::to_owned),
            timeout: LIMIT,
            ..ConnectOptions::new(address, "nqn.2026-11.org.windlass:a", identity)
        }
    }

    #[test]
    fn requested_congestion_control_is_set() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let reno = options(&listener, Some("reno"));
        let socket = Socket::connect(&reno).expect("every kernel has it");
        let found = sockopt::tcp_congestion(&socket.0);
        assert_eq!(found.as_deref(), Ok("reno"));
        let refused = Socket::connect(&options(&listener, Some("none-such")));
        let refused = refused.expect_err("no kernel has it");
        assert!(refused.to_string().contains("none-such"), "{refused}");
    }

    #[test]
    fn socket_receives_into_one_or_several_buffers() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let mut socket = Socket::connect(&options(&listener, None)).expect("it listens");
        let (peer, _) = listener.accept().expect("connected");
        let mut peer = Socket(peer);
        let (mut first, mut second) = ([0; 3], [0; 8]);
        let nothing = socket.receive(&mut [IoSliceMut::new(&mut first)]);
        assert_eq!(nothing, StreamResult::Nothing);
        let parts = [b"abc".as_slice(), b"defg"].map(IoSlice::new);
        assert_eq!(peer.send(&parts), StreamResult::Bytes(7));
        socket.wait(false, LIMIT);
        assert_eq!(
            socket.receive(&mut [IoSliceMut::new(&mut first[..2])]),
            StreamResult::Bytes(2)
        );
        let mut buffers = [&mut first[2..], &mut second].map(IoSliceMut::new);
        assert_eq!(socket.receive(&mut buffers), StreamResult::Bytes(5));
        assert_eq!((&first, &second[..4]), (b"abc", b"defg".as_slice()));
        drop(peer);
        socket.wait(false, LIMIT);
        let mut rest = [IoSliceMut::new(&mut second)];
        assert_eq!(socket.receive(&mut rest), StreamResult::Ended);
    }
}
