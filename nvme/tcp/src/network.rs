//! The source of a reactor's streams and of readiness events.
//!
//! The transport uses only [`Network`]: kernel sockets with epoll ([`Sockets`]) in production, an
//! in-memory network in virtual time in simulations. It is a type parameter, so the abstraction
//! adds no cost in production.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nvme_spec::tcp::Framing;
use reactors::{Waker, restore_return_prediction};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::acceptor::AcceptorPort;
use crate::initialisation::InitialisationTerms;
use crate::socket_stream::SocketStream;
use crate::stream::ByteStream;

/// A report about a listener.
#[derive(Debug)]
pub enum Accepted<S> {
    /// A listener accepted a connection.
    Stream {
        /// The listener's number.
        listener: u16,
        /// The connection.
        stream: S,
        /// The framing that its host was sent an ICResp for; `None` if the ICReq was not received.
        framing: Option<Framing>,
    },
    /// The listener of this number is closed. It accepts no more connections.
    ListenerClosed(u16),
}

/// A readiness event of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The stream's place in the set of connections.
    pub index: u16,
    /// The stream is writable again. It may also have data to receive.
    pub writable: bool,
}

/// The events to report for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Data to receive.
    Readable,
    /// The same, and that the stream is writable again.
    ReadableOrWritable,
}

/// One reactor's access to listeners and streams. No method blocks.
pub trait Network {
    /// A listening socket.
    type Listener: Send;
    /// The stream of a connection. The reactor that accepts it may pass it to another one.
    type Stream: ByteStream + Send;

    /// Begins to accept connections.
    ///
    /// # Errors
    /// The system's.
    fn add_listener(&mut self, index: u16, listener: Self::Listener) -> io::Result<()>;

    /// What hosts that connect to the listener are offered from now on. The network may answer their
    /// ICReq itself then, and reports the framing with the stream.
    fn offer(&mut self, index: u16, terms: InitialisationTerms) {
        let _ = (index, terms);
    }

    /// Begins to close a listener. [`Accepted::ListenerClosed`] follows its last connection; its
    /// number is in use until then.
    fn close_listener(&mut self, index: u16);

    /// The next report about a listener.
    fn accept(&mut self) -> Option<Accepted<Self::Stream>>;

    /// Whether [`accept`](Self::accept) would return a report.
    fn has_accepted(&self) -> bool;

    /// Begins to report when the stream at `index` is readable, until the stream is closed.
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

    /// Closes a stream. No event is reported for it any more.
    fn close_stream(&mut self, stream: Self::Stream);

    /// Another handle of a stream, for the process that continues its connection.
    ///
    /// # Errors
    /// The system's; a network whose streams belong to the process does not support it.
    fn duplicate(&self, stream: &Self::Stream) -> io::Result<Self::Stream> {
        let _ = stream;
        Err(io::ErrorKind::Unsupported.into())
    }

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

/// The kernel's TCP sockets, watched through epoll; accepted and closed by the acceptor's thread.
pub struct Sockets {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    acceptor: AcceptorPort,
}

impl Sockets {
    /// No sockets yet. An accepted one wakes the reactor by `waker`.
    ///
    /// # Errors
    /// The system's, if epoll fails.
    pub(crate) fn new(mut acceptor: AcceptorPort, waker: Option<Waker>) -> io::Result<Self> {
        if let Some(waker) = waker {
            acceptor.attach(waker)?;
        }
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(EVENTS_MAX),
            acceptor,
        })
    }
}

impl Network for Sockets {
    type Listener = TcpListener;
    type Stream = SocketStream;

    fn add_listener(&mut self, index: u16, listener: TcpListener) -> io::Result<()> {
        self.acceptor.listen(index, listener)
    }

    fn offer(&mut self, index: u16, terms: InitialisationTerms) {
        self.acceptor.offer(index, terms);
    }

    fn close_listener(&mut self, index: u16) {
        self.acceptor.close_listener(index);
    }

    #[inline]
    fn accept(&mut self) -> Option<Accepted<SocketStream>> {
        self.acceptor.accept()
    }

    fn has_accepted(&self) -> bool {
        self.acceptor.has_accepted()
    }

    fn add_stream(&self, index: u16, stream: &SocketStream) -> io::Result<()> {
        let data = epoll::EventData::new_u64(u64::from(index));
        let descriptor = stream.as_fd();
        Ok(epoll::add(
            &self.epoll,
            descriptor,
            data,
            epoll::EventFlags::IN,
        )?)
    }

    fn watch_stream(
        &self,
        index: u16,
        stream: &SocketStream,
        interest: Interest,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(u64::from(index));
        let descriptor = stream.as_fd();
        Ok(epoll::modify(
            &self.epoll,
            descriptor,
            data,
            flags(interest),
        )?)
    }

    fn close_stream(&mut self, stream: SocketStream) {
        // The kernel would report its events until the other thread has closed it. It fails for a
        // stream that was never added, which does not matter.
        let _ = epoll::delete(&self.epoll, stream.as_fd());
        restore_return_prediction();
        self.acceptor.close(stream);
    }

    fn duplicate(&self, stream: &SocketStream) -> io::Result<SocketStream> {
        stream.duplicate()
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
            index: data.u64() as u16,
            writable: flags.contains(epoll::EventFlags::OUT),
        }
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }
}

fn flags(interest: Interest) -> epoll::EventFlags {
    match interest {
        Interest::Readable => epoll::EventFlags::IN,
        Interest::ReadableOrWritable => epoll::EventFlags::IN | epoll::EventFlags::OUT,
    }
}
