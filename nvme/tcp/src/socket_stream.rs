//! The stream of a connection over the kernel's sockets: plain, or protected by TLS records.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nvme_target::SecureChannel;
use nvme_tls::{Channel, Role};
use nvme_tls_handshake::Secrets;
use rustix::io::Errno;

use crate::kernel_protected::KernelProtected;
use crate::protected::Protected;
use crate::stream::{ByteStream, TcpSocket, Transferred};
use crate::tls::TlsRecords;

/// A connected socket.
#[derive(Debug)]
pub enum SocketStream {
    /// Without protection.
    Plain(TcpSocket),
    /// Protected by TLS records.
    Protected(Protected<TcpSocket>),
    /// Protected by TLS records of the kernel.
    KernelProtected(Box<KernelProtected>),
}

impl SocketStream {
    /// Protects a socket on which the handshake of a target was completed, and nothing was received
    /// behind it.
    ///
    /// # Errors
    /// The kernel's; the socket can only be closed.
    pub(crate) fn protect(
        socket: TcpSocket,
        secrets: &Secrets,
        description: SecureChannel,
        records: TlsRecords,
    ) -> Result<Self, (TcpSocket, Errno)> {
        let socket = match records {
            TlsRecords::Own => socket,
            TlsRecords::Kernel => {
                let has_kernel_records = true;
                let description = SecureChannel {
                    has_kernel_records,
                    ..description.clone()
                };
                match KernelProtected::new(socket, secrets, description) {
                    Ok(stream) => return Ok(Self::KernelProtected(Box::new(stream))),
                    Err((socket, Errno::NOENT)) => socket,
                    Err(failed) => return Err(failed),
                }
            }
        };
        let (send, receive) = (secrets.send.clone(), secrets.receive.clone());
        let protected = Protected::new(socket, Channel::new(Role::Server, send, receive));
        Ok(Self::Protected(protected.described(description)))
    }

    /// Another descriptor of the same connection.
    ///
    /// # Errors
    /// The system's, or the stream [belongs to the process](ByteStream::belongs_to_process).
    pub(crate) fn duplicate(&self) -> io::Result<Self> {
        match self {
            Self::Plain(socket) => socket.duplicate().map(Self::Plain),
            Self::Protected(_) | Self::KernelProtected(_) => Err(io::Error::other(
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
            Self::KernelProtected(stream) => protected::receive(&mut **stream, buffers),
        }
    }

    #[inline(always)]
    fn receive_into_private(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Transferred {
        match self {
            Self::Plain(socket) => socket.receive(buffers),
            Self::Protected(stream) => protected::receive_into_private(stream, buffers),
            Self::KernelProtected(stream) => protected::receive(&mut **stream, buffers),
        }
    }

    #[inline(always)]
    fn available(&mut self) -> usize {
        match self {
            Self::Plain(socket) => socket.available(),
            Self::Protected(stream) => protected::available(stream),
            Self::KernelProtected(stream) => protected::available(&mut **stream),
        }
    }

    #[inline(always)]
    fn has_received(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Protected(stream) => protected::has_received(stream),
            Self::KernelProtected(stream) => protected::has_received(&**stream),
        }
    }

    #[inline(always)]
    fn send(&mut self, buffers: &[IoSlice<'_>]) -> Transferred {
        match self {
            Self::Plain(socket) => socket.send(buffers),
            Self::Protected(stream) => protected::send(stream, buffers),
            Self::KernelProtected(stream) => protected::send(&mut **stream, buffers),
        }
    }

    #[inline(always)]
    fn keeps_unsent(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Protected(stream) => protected::keeps_unsent(stream),
            Self::KernelProtected(stream) => protected::keeps_unsent(&**stream),
        }
    }

    #[inline(always)]
    fn send_kept(&mut self) -> Result<bool, Errno> {
        match self {
            Self::Plain(_) => Ok(true),
            Self::Protected(stream) => protected::send_kept(stream),
            Self::KernelProtected(stream) => protected::send_kept(&mut **stream),
        }
    }

    fn finish_sending(&mut self) {
        match self {
            Self::Plain(socket) => socket.finish_sending(),
            Self::Protected(stream) => stream.finish_sending(),
            Self::KernelProtected(stream) => stream.finish_sending(),
        }
    }

    fn belongs_to_process(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Protected(stream) => stream.belongs_to_process(),
            Self::KernelProtected(stream) => stream.belongs_to_process(),
        }
    }

    fn local_address(&self) -> Option<IpAddr> {
        match self {
            Self::Plain(socket) => socket.local_address(),
            Self::Protected(stream) => stream.local_address(),
            Self::KernelProtected(stream) => stream.local_address(),
        }
    }

    fn host_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Plain(socket) => socket.host_address(),
            Self::Protected(stream) => stream.host_address(),
            Self::KernelProtected(stream) => stream.host_address(),
        }
    }

    fn channel(&self) -> Option<&Arc<SecureChannel>> {
        match self {
            Self::Plain(_) => None,
            Self::Protected(stream) => stream.channel(),
            Self::KernelProtected(stream) => stream.channel(),
        }
    }
}

impl AsFd for SocketStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(socket) => socket.as_fd(),
            Self::Protected(stream) => stream.stream().as_fd(),
            Self::KernelProtected(stream) => stream.socket().as_fd(),
        }
    }
}

/// The operations of protected streams. They are not inlined, so that those of plain streams are as
/// small as without them.
mod protected {
    use super::{ByteStream, Errno, IoSlice, IoSliceMut, Transferred};

    #[inline(never)]
    pub(super) fn receive(
        stream: &mut impl ByteStream,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Transferred {
        stream.receive(buffers)
    }

    #[inline(never)]
    pub(super) fn receive_into_private(
        stream: &mut impl ByteStream,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Transferred {
        stream.receive_into_private(buffers)
    }

    #[inline(never)]
    pub(super) fn available(stream: &mut impl ByteStream) -> usize {
        stream.available()
    }

    #[inline(never)]
    pub(super) fn has_received(stream: &impl ByteStream) -> bool {
        stream.has_received()
    }

    #[inline(never)]
    pub(super) fn send(stream: &mut impl ByteStream, buffers: &[IoSlice<'_>]) -> Transferred {
        stream.send(buffers)
    }

    #[inline(never)]
    pub(super) fn keeps_unsent(stream: &impl ByteStream) -> bool {
        stream.keeps_unsent()
    }

    #[inline(never)]
    pub(super) fn send_kept(stream: &mut impl ByteStream) -> Result<bool, Errno> {
        stream.send_kept()
    }
}
