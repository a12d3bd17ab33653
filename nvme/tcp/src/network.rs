//! The source of a reactor's streams and of readiness events.
//!
//! The transport uses only [`Network`]: kernel sockets with epoll ([`Sockets`]) in production, an
//! in-memory network in virtual time in simulations. It is a type parameter, so the abstraction
//! adds no cost in production.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use reactors::restore_return_prediction;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::stream::{ByteStream, TcpSocket};

/// The object that became ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The connection at this place of the set.
    Connection(u16),
    /// The listener of this number.
    Listener(u16),
}

/// A readiness event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The object that became ready.
    pub source: Source,
    /// A stream is writable again. It may also have data to receive.
    pub writable: bool,
}

/// The events to report for a listener or a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// None.
    Nothing,
    /// Data to receive, or a connection to accept.
    Readable,
    /// The same, and that a stream is writable again.
    ReadableOrWritable,
}

/// One reactor's access to listeners and streams. No method blocks.
pub trait Network {
    /// A listening socket.
    type Listener: Send;
    /// An accepted connection on its way to the reactor that will serve it.
    type Accepted: Send;
    /// The stream of a connection that this reactor serves.
    type Stream: ByteStream;

    /// Begins to report connections that can be accepted.
    ///
    /// # Errors
    /// The system's.
    fn add_listener(&mut self, index: u16, listener: &Self::Listener) -> io::Result<()>;

    /// Changes the events reported for a listener.
    ///
    /// # Errors
    /// The system's.
    fn watch_listener(
        &self,
        index: u16,
        listener: &Self::Listener,
        interest: Interest,
    ) -> io::Result<()>;

    /// Accepts the next connection.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is none; otherwise the system's.
    fn accept(listener: &Self::Listener) -> io::Result<Self::Accepted>;

    /// Sets up an accepted connection for this reactor.
    ///
    /// # Errors
    /// The connection has ended, or cannot be set up.
    fn adopt(accepted: Self::Accepted) -> io::Result<Self::Stream>;

    /// Begins to report when the stream at `index` is readable, until the stream is dropped.
    ///
    /// # Errors
    /// The system's.
    fn add_stream(&self, index: u16, stream: &Self::Stream) -> io::Result<()>;

    /// Changes the events reported for a stream.
    ///
    /// # Errors
    /// The system's.
    fn watch_stream(&self, index: u16, stream: &Self::Stream, interest: Interest)
    -> io::Result<()>;

    /// Collects readiness events without waiting; returns their number. [`ready`](Self::ready)
    /// returns each.
    fn poll_events(&mut self) -> usize;

    /// The event at `position` of the last [`poll_events`](Self::poll_events).
    fn ready(&self, position: usize) -> Ready;

    /// The descriptor that is readable when [`poll_events`](Self::poll_events) would return events.
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
    /// An epoll instance that watches nothing.
    ///
    /// # Errors
    /// The system's, if epoll fails.
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

    fn poll_events(&mut self) -> usize {
        self.events.clear();
        let no_wait = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let buffer = rustix::buffer::spare_capacity(&mut self.events);
        let found = epoll::wait(&self.epoll, buffer, Some(&no_wait));
        restore_return_prediction();
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

/// The data of an epoll event that identifies a source.
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
