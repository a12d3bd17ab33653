//! What the service needs of a network: connections that do not block, and which of them are ready.
//! [`Sockets`] is the one of the product; the simulation has another.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventFlags};

/// Events taken from epoll at once.
pub(crate) const EVENTS_MAX: usize = 64;
/// Data of the events of all listeners, and of those of signals. No connection has these numbers.
const LISTENERS: u64 = u64::MAX;
const SIGNALS: u64 = u64::MAX - 1;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// That something can be received.
    pub readable: bool,
    /// That something can be sent.
    pub writable: bool,
}

impl Interest {
    /// That something can be received.
    pub const READABLE: Self = Self {
        readable: true,
        writable: false,
    };
}

/// What is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// A connection can be accepted.
    Listeners,
    /// A descriptor of [`Network::add_signal`] is readable.
    Signal,
    /// A connection.
    Connection {
        /// The number that it was added with.
        number: u64,
        /// Whether it can be written.
        writable: bool,
    },
}

/// The listeners and connections of one reactor. Nothing blocks. What is ready is reported again until
/// it is not.
pub trait Network {
    /// A connection.
    type Stream: Read + Write;

    /// Number of the listeners.
    fn listeners(&self) -> usize;

    /// Accepts a connection of a listener. Returns it with the address of its client.
    fn accept(&mut self, listener: usize) -> Option<(Self::Stream, IpAddr)>;

    /// Whether connections that wait to be accepted are reported.
    fn watch_listeners(&mut self, is_watched: bool);

    /// Closes all listeners.
    fn close_listeners(&mut self);

    /// The number of a listener, by which it is closed.
    fn listener_number(&self, listener: usize) -> u32 {
        listener as u32
    }

    /// Accepts connections of one more listener with this number, which does not block.
    ///
    /// # Errors
    /// The system's, or that this network has fixed listeners.
    fn add_listener(&mut self, number: u32, listener: TcpListener) -> io::Result<()> {
        let _ = (number, listener);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Closes the listener with this number.
    fn close_listener(&mut self, number: u32) {
        let _ = number;
    }

    /// Reports from now on when a descriptor is readable.
    ///
    /// # Errors
    /// The system's.
    fn add_signal(&mut self, source: BorrowedFd<'_>) -> io::Result<()>;

    /// Reports from now on when a connection is readable. A dropped connection is not reported any
    /// more.
    ///
    /// # Errors
    /// The system's: the connection cannot be used.
    fn add(&mut self, stream: &Self::Stream, number: u64) -> io::Result<()>;

    /// Changes what is reported of a connection.
    ///
    /// # Errors
    /// The system's: the connection cannot be used.
    fn watch(&mut self, stream: &Self::Stream, number: u64, interest: Interest) -> io::Result<()>;

    /// Replaces the content of `ready` by what is ready now.
    fn poll(&mut self, ready: &mut Vec<Ready>);

    /// A descriptor that is readable when something is ready.
    fn wake_source(&self) -> Option<BorrowedFd<'_>>;
}

/// Sockets of the kernel, with epoll.
pub struct Sockets {
    /// With their numbers.
    listeners: Vec<(u32, TcpListener)>,
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Sockets {
    /// A network with these listeners, which do not block. Their numbers begin with 0.
    ///
    /// # Errors
    /// The system's, if epoll fails.
    pub fn new(listeners: Vec<TcpListener>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut network = Self {
            listeners: Vec::new(),
            epoll,
            events: Vec::with_capacity(EVENTS_MAX),
        };
        for (number, listener) in (0..).zip(listeners) {
            network.add_listener(number, listener)?;
        }
        Ok(network)
    }
}

fn flags(interest: Interest) -> EventFlags {
    let mut flags = EventFlags::empty();
    flags.set(EventFlags::IN, interest.readable);
    flags.set(EventFlags::OUT, interest.writable);
    flags
}

impl Network for Sockets {
    type Stream = TcpStream;

    fn listeners(&self) -> usize {
        self.listeners.len()
    }

    fn accept(&mut self, listener: usize) -> Option<(TcpStream, IpAddr)> {
        loop {
            let (stream, address) = self.listeners[listener].1.accept().ok()?;
            let is_set = stream
                .set_nonblocking(true)
                .and_then(|()| stream.set_nodelay(true));
            if is_set.is_ok() {
                return Some((stream, address.ip()));
            }
        }
    }

    fn watch_listeners(&mut self, is_watched: bool) {
        let interest = Interest {
            readable: is_watched,
            writable: false,
        };
        let data = epoll::EventData::new_u64(LISTENERS);
        for (_, listener) in &self.listeners {
            if let Err(error) = epoll::modify(&self.epoll, listener, data, flags(interest)) {
                tracing::error!(%error, "a listener for files cannot be watched");
            }
        }
    }

    fn close_listeners(&mut self) {
        self.listeners.clear();
    }

    fn listener_number(&self, listener: usize) -> u32 {
        self.listeners[listener].0
    }

    fn add_listener(&mut self, number: u32, listener: TcpListener) -> io::Result<()> {
        let data = epoll::EventData::new_u64(LISTENERS);
        epoll::add(&self.epoll, &listener, data, EventFlags::IN)?;
        self.listeners.push((number, listener));
        Ok(())
    }

    fn close_listener(&mut self, number: u32) {
        self.listeners.retain(|it| it.0 != number);
    }

    fn add_signal(&mut self, source: BorrowedFd<'_>) -> io::Result<()> {
        let data = epoll::EventData::new_u64(SIGNALS);
        Ok(epoll::add(&self.epoll, source, data, EventFlags::IN)?)
    }

    fn add(&mut self, stream: &TcpStream, number: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::add(&self.epoll, stream, data, EventFlags::IN)?)
    }

    #[inline]
    fn watch(&mut self, stream: &TcpStream, number: u64, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::modify(&self.epoll, stream, data, flags(interest))?)
    }

    #[inline]
    fn poll(&mut self, ready: &mut Vec<Ready>) {
        ready.clear();
        self.events.clear();
        let no_wait = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let buffer = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, buffer, Some(&no_wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => tracing::error!(%error, "epoll failed"),
        }
        ready.extend(self.events.iter().map(|event| {
            let epoll::Event { flags, data } = *event;
            match data.u64() {
                LISTENERS => Ready::Listeners,
                SIGNALS => Ready::Signal,
                number => Ready::Connection {
                    number,
                    writable: flags.contains(EventFlags::OUT),
                },
            }
        }));
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }
}
