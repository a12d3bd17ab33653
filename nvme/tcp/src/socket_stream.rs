//! The stream of a connection over the kernel's sockets: plain, or protected by TLS records.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nvme_target::SecureChannel;
use rustix::io::Errno;

use crate::protected::Protected;
use crate::stream::{ByteStream, TcpSocket, Transferred};

/// A connected socket.
#[derive(Debug)]
pub enum SocketStream {
    /// Without protection.
    Plain(TcpSocket),
    /// Protected by TLS records.
    Protected(Protected<TcpSocket>),
}

impl SocketStream {
    /// Another descriptor of the same connection.
    ///
    /// # Errors
    /// The system's, or the stream [belongs to the process](ByteStream::belongs_to_process).
    pub(crate) fn duplicate(&self) -> io::Result<Self> {
        match self {
            Self::Plain(socket) => socket.duplicate().map(Self::Plain),
            Self::Protected(_) => Err(io::Error::other(
                "it is protected by TLS, whose keys are not handed over",
            )),
        }
    }
}

impl From<TcpSocket> for SocketStream {
    fn from(socket: TcpSocket) -> Self {
        Self::Plain(socket)
    }
}

impl ByteStream for SocketStream {
    #[inline(always)]
    fn receive(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Transferred {
        match self {
            Self::Plain(socket) => socket.receive(buffers),
            Self::Protected(stream) => protected::receive(stream, buffers),
        }
    }

    #[inline(always)]
    fn available(&mut self) -> usize {
        match self {
            Self::Plain(socket) => socket.available(),
            Self::Protected(stream) => protected::available(stream),
        }
    }

    #[inline(always)]
    fn has_received(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Protected(stream) => protected::has_received(stream),
        }
    }

    #[inline(always)]
    fn send(&mut self, buffers: &[IoSlice<'_>]) -> Transferred {
        match self {
            Self::Plain(socket) => socket.send(buffers),
            Self::Protected(stream) => protected::send(stream, buffers),
        }
    }

    #[inline(always)]
    fn keeps_unsent(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Protected(stream) => protected::keeps_unsent(stream),
        }
    }

    #[inline(always)]
    fn send_kept(&mut self) -> Result<bool, Errno> {
        match self {
            Self::Plain(_) => Ok(true),
            Self::Protected(stream) => protected::send_kept(stream),
        }
    }

    fn finish_sending(&mut self) {
        match self {
            Self::Plain(socket) => socket.finish_sending(),
            Self::Protected(stream) => stream.finish_sending(),
        }
    }

    fn belongs_to_process(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Protected(stream) => stream.belongs_to_process(),
        }
    }

    fn local_address(&self) -> Option<IpAddr> {
        match self {
            Self::Plain(socket) => socket.local_address(),
            Self::Protected(stream) => stream.local_address(),
        }
    }

    fn host_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Plain(socket) => socket.host_address(),
            Self::Protected(stream) => stream.host_address(),
        }
    }

    fn channel(&self) -> Option<&Arc<SecureChannel>> {
        match self {
            Self::Plain(_) => None,
            Self::Protected(stream) => stream.channel(),
        }
    }
}

impl AsFd for SocketStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(socket) => socket.as_fd(),
            Self::Protected(stream) => stream.stream().as_fd(),
        }
    }
}

/// The operations of protected streams. They are not inlined, so that those of plain streams are as
/// small as without them.
mod protected {
    use super::{ByteStream, Errno, IoSlice, IoSliceMut, Protected, TcpSocket, Transferred};

    #[inline(never)]
    pub(super) fn receive(
        stream: &mut Protected<TcpSocket>,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Transferred {
        stream.receive(buffers)
    }

    #[inline(never)]
    pub(super) fn available(stream: &mut Protected<TcpSocket>) -> usize {
        stream.available()
    }

    #[inline(never)]
    pub(super) fn has_received(stream: &Protected<TcpSocket>) -> bool {
        stream.has_received()
    }

    #[inline(never)]
    pub(super) fn send(stream: &mut Protected<TcpSocket>, buffers: &[IoSlice<'_>]) -> Transferred {
        stream.send(buffers)
    }

    #[inline(never)]
    pub(super) fn keeps_unsent(stream: &Protected<TcpSocket>) -> bool {
        stream.keeps_unsent()
    }

    #[inline(never)]
    pub(super) fn send_kept(stream: &mut Protected<TcpSocket>) -> Result<bool, Errno> {
        stream.send_kept()
    }
}
