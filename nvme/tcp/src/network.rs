//! Where a reactor's streams come from, and how it learns that they have something.
//!
//! The transport knows only [`Network`]: the kernel's sockets with epoll ([`Sockets`]) in
//! production, a network in memory on virtual time in simulations. It is a type parameter, so that
//! the one in production costs nothing for the other.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use reactors::spare_returns;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::stream::{ByteStream, TcpSocket};

/// What became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The connection at this place of the set.
    Connection(u16),
    /// The listener of this number.
    Listener(u16),
}

/// Something that became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// What.
    pub source: Source,
    /// It takes bytes again. Otherwise, or besides, there is something to receive or to accept.
    pub writable: bool,
}

/// What is to be told of a listener or a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Nothing for now.
    Nothing,
    /// That there is something to receive or to accept.
    Readable,
    /// That, and that a stream takes bytes again.
    ReadableOrWritable,
}

/// One reactor's way to listeners and streams. Nothing here blocks.
pub trait Network {
    /// What connections come in by.
    type Listener: Send;
    /// A connection that was accepted, on its way to the reactor that will serve it.
    type Accepted: Send;
    /// A connection that is served.
    type Stream: ByteStream;

    /// Begins to tell of connections that can be accepted.
    ///
    /// # Errors
    /// The system's.
    fn add_listener(&mut self, index: u16, listener: &Self::Listener) -> io::Result<()>;

    /// Changes what is told of a listener.
    ///
    /// # Errors
    /// The system's.
    fn watch_listener(
        &self,
        index: u16,
        listener: &Self::Listener,
        interest: Interest,
    ) -> io::Result<()>;

    /// The next connection that came in.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is none; else the system's.
    fn accept(listener: &Self::Listener) -> io::Result<Self::Accepted>;

    /// Makes an accepted connection one that can be served.
    ///
    /// # Errors
    /// The connection is gone, or cannot be set up.
    fn adopt(accepted: Self::Accepted) -> io::Result<Self::Stream>;

    /// Begins to tell when the stream at `index` is readable. A stream that is dropped is told of
    /// no more.
    ///
    /// # Errors
    /// The system's.
    fn add_stream(&self, index: u16, stream: &Self::Stream) -> io::Result<()>;

    /// Changes what is told of a stream.
    ///
    /// # Errors
    /// The system's.
    fn watch_stream(&self, index: u16, stream: &Self::Stream, interest: Interest)
    -> io::Result<()>;

    /// Looks for what is ready now; returns how much there is, by [`ready`](Self::ready).
    fn look(&mut self) -> usize;

    /// What the last look found at `position`.
    fn ready(&self, position: usize) -> Ready;

    /// The descriptor that is readable when a look would find something.
    fn wake_source(&self) -> Option<BorrowedFd<'_>>;
}

/// Events taken from epoll at once.
const EVENTS_MAX: usize = 64;

/// The kernel's TCP sockets, watched through epoll.
pub struct Sockets {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Sockets {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// The system's, when no epoll instance can be had.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(EVENTS_MAX),
        })
    }
}

impl Network for Sockets {
    type Listener = TcpListener;
    type Accepted = TcpStream;
    type Stream = TcpSocket;

    fn add_listener(&mut self, index: u16, listener: &TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let data = data_of(Source::Listener(index));
        Ok(epoll::add(
            &self.epoll,
            listener,
            data,
            epoll::EventFlags::IN,
        )?)
    }

    fn watch_listener(
        &self,
        index: u16,
        listener: &TcpListener,
        interest: Interest,
    ) -> io::Result<()> {
        let data = data_of(Source::Listener(index));
        Ok(epoll::modify(&self.epoll, listener, data, flags(interest))?)
    }

    fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
        listener.accept().map(|(stream, _)| stream)
    }

    fn adopt(accepted: TcpStream) -> io::Result<TcpSocket> {
        TcpSocket::new(accepted)
    }

    fn add_stream(&self, index: u16, stream: &TcpSocket) -> io::Result<()> {
        let data = data_of(Source::Connection(index));
        let descriptor = stream.as_fd();
        Ok(epoll::add(
            &self.epoll,
            descriptor,
            data,
            epoll::EventFlags::IN,
        )?)
    }

    fn watch_stream(&self, index: u16, stream: &TcpSocket, interest: Interest) -> io::Result<()> {
        let data = data_of(Source::Connection(index));
        let descriptor = stream.as_fd();
        Ok(epoll::modify(
            &self.epoll,
            descriptor,
            data,
            flags(interest),
        )?)
    }

    fn look(&mut self) -> usize {
        self.events.clear();
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let buffer = rustix::buffer::spare_capacity(&mut self.events);
        let found = epoll::wait(&self.epoll, buffer, Some(&at_once));
        spare_returns();
        match found {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => tracing::error!(%error, "epoll failed"),
        }
        self.events.len()
    }

    fn ready(&self, position: usize) -> Ready {
        let epoll::Event { flags, data } = self.events[position];
        Ready {
            source: source_of(data),
            writable: flags.contains(epoll::EventFlags::OUT),
        }
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }
}

/// A source as the 64 bits of data of an epoll event.
fn data_of(source: Source) -> epoll::EventData {
    epoll::EventData::new_u64(match source {
        Source::Connection(index) => u64::from(index),
        Source::Listener(index) => 1 << 32 | u64::from(index),
    })
}

fn source_of(data: epoll::EventData) -> Source {
    let data = data.u64();
    match data >> 32 {
        0 => Source::Connection(data as u16),
        _ => Source::Listener(data as u16),
    }
}

fn flags(interest: Interest) -> epoll::EventFlags {
    match interest {
        Interest::Nothing => epoll::EventFlags::empty(),
        Interest::Readable => epoll::EventFlags::IN,
        Interest::ReadableOrWritable => epoll::EventFlags::IN | epoll::EventFlags::OUT,
    }
}
