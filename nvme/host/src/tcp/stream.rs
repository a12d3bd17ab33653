//! The bytes under a connection: a socket in production, a script in tests.

use std::fmt::Debug;
use std::io::{IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_congestion;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::error::HostError;
use crate::options::ConnectOptions;

/// What came of one attempt to move bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// So many, at least one.
    Bytes(usize),
    /// None now.
    Nothing,
    /// The target will send no more.
    Ended,
    /// The stream is broken.
    Failed(Errno),
}

/// A stream of bytes in both directions that never blocks.
pub trait ByteStream: Debug {
    /// Fills `buffers` in order from what has arrived.
    fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Moved;

    /// Takes bytes of `buffers` in order.
    fn send(&mut self, buffers: &[IoSlice<'_>]) -> Moved;

    /// Waits until there is something to receive, or room to send where `to_send`; `limit` at most.
    fn wait(&self, to_send: bool, limit: Duration);

    /// The descriptor to sleep on, where there is one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A non-blocking TCP socket without delay.
#[derive(Debug)]
pub(crate) struct Socket(TcpStream);

impl Socket {
    /// Connects as `options` say, within the time of one step.
    pub(crate) fn connect(options: &ConnectOptions) -> Result<Self, HostError> {
        let address = options.address;
        let connect = || {
            let stream = TcpStream::connect_timeout(&address, options.timeout)?;
            // Whole batches leave in one send, so there is nothing to gain by waiting for more.
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        let stream = connect().map_err(|source| HostError::Connect { address, source })?;
        if let Some(name) = &options.congestion_control {
            set_tcp_congestion(&stream, name).map_err(|source| HostError::CongestionControl {
                name: name.clone(),
                source,
            })?;
        }
        Ok(Self(stream))
    }
}

impl ByteStream for Socket {
    fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Moved {
        match rustix::io::readv(&self.0, buffers) {
            Ok(0) => Moved::Ended,
            Ok(bytes) => Moved::Bytes(bytes),
            Err(Errno::AGAIN | Errno::INTR) => Moved::Nothing,
            Err(errno) => Moved::Failed(errno),
        }
    }

    fn send(&mut self, buffers: &[IoSlice<'_>]) -> Moved {
        let mut control = SendAncillaryBuffer::default();
        match sendmsg(
            &self.0,
            buffers,
            &mut control,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        ) {
            Ok(0) | Err(Errno::AGAIN | Errno::INTR) => Moved::Nothing,
            Ok(bytes) => Moved::Bytes(bytes),
            Err(errno) => Moved::Failed(errno),
        }
    }

    fn wait(&self, to_send: bool, limit: Duration) {
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, to_send);
        let mut descriptors = [PollFd::new(&self.0, flags)];
        let limit = Timespec::try_from(limit).unwrap_or(Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        });
        // A failure here is seen again, with its cause, by the next receive.
        let _ = poll(&mut descriptors, Some(&limit));
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rustix::net::sockopt::tcp_congestion;

    use super::*;
    use crate::options::HostIdentity;

    #[test]
    fn a_connection_has_the_congestion_control_that_was_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let options = |name: &str| ConnectOptions {
            congestion_control: Some(name.to_owned()),
            ..ConnectOptions::new(
                address,
                "nqn.2026-11.org.windlass:a",
                HostIdentity::random(),
            )
        };
        let socket = Socket::connect(&options("reno")).expect("every kernel has it");
        assert_eq!(tcp_congestion(&socket.0).as_deref(), Ok("reno"));
        let refused = Socket::connect(&options("none-such")).expect_err("no kernel has it");
        assert!(refused.to_string().contains("none-such"), "{refused}");
    }
}
