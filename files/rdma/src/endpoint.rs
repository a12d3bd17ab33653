//! The event channel of the connection manager, with the listeners, and the devices.
//!
//! Created on the control thread, so that what the system does not grant fails the start, or the
//! change that adds the first listener. The reactor owns it while it serves.

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rdma::{Domains, Error, EventChannel, Listener, Provider, Token};
use reactors::Nanos;
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;

use crate::limits::{BACKLOG, LISTEN_AGAIN_MS};

/// A listener.
#[derive(Debug)]
struct Listening<P: Provider> {
    number: u32,
    /// `None` while its device or address is gone.
    listener: Option<P::Listener>,
    address: SocketAddr,
    /// Whether connections are accepted. Until then they are rejected.
    is_open: bool,
}

/// The listeners of one reactor, and the devices that connections may use.
#[derive(Debug)]
pub struct Endpoint<P: Provider> {
    // Listeners are closed before their channel.
    listeners: Vec<Listening<P>>,
    pub(crate) channel: P::EventChannel,
    pub(crate) domains: Arc<Domains<P>>,
    /// Watches the channel; the service adds its other descriptors.
    pub(crate) epoll: Arc<OwnedFd>,
    /// When failed listeners are tried again.
    listen_again_at: Option<Nanos>,
}

impl<P: Provider> Endpoint<P> {
    /// An endpoint without listeners.
    ///
    /// # Errors
    /// The error of [`Provider::event_channel`], or the system's, if it is out of descriptors.
    pub fn new(provider: &P, domains: Arc<Domains<P>>) -> Result<Self, Error> {
        let channel = provider.event_channel()?;
        let epoll = watched(channel.descriptor()).map_err(|errno| Error::System {
            step: "epoll",
            source: errno.into(),
        })?;
        Ok(Self {
            listeners: Vec::new(),
            channel,
            domains,
            epoll: Arc::new(epoll),
            listen_again_at: None,
        })
    }

    /// Listens on an address as `number`, which no other listener has. Connections are rejected until
    /// it is [opened](Self::open). Returns the address with the assigned port.
    ///
    /// # Errors
    /// The error of [`EventChannel::listen`].
    pub fn listen(&mut self, number: u32, address: SocketAddr) -> Result<SocketAddr, Error> {
        let listener = self.channel.listen(address, BACKLOG, token(number))?;
        let address = listener.local_address();
        self.listeners.push(Listening {
            number,
            listener: Some(listener),
            address,
            is_open: false,
        });
        Ok(address)
    }

    /// Accepts the connections of a listener from now on.
    pub fn open(&mut self, number: u32) {
        for listening in &mut self.listeners {
            listening.is_open |= listening.number == number;
        }
    }

    /// Closes a listener.
    pub fn close(&mut self, number: u32) {
        self.listeners.retain(|it| it.number != number);
    }

    /// Closes all listeners.
    pub(crate) fn close_all(&mut self) {
        self.listeners.clear();
        self.listen_again_at = None;
    }

    /// The number of the listener of an event, if it accepts connections.
    pub(crate) fn number_of(&self, listener: Token) -> Option<u32> {
        let mut listeners = self.listeners.iter();
        let found = listeners.find(|it| it.is_open && token(it.number) == listener);
        found.map(|it| it.number)
    }

    /// Handles the loss of a listener's device or address: it is tried again later.
    pub(crate) fn failed(&mut self, listener: Token, now: Nanos) {
        let mut listeners = self.listeners.iter_mut();
        let Some(found) = listeners.find(|it| token(it.number) == listener) else {
            return;
        };
        tracing::error!(address = %found.address, "a listener for files failed, its device is gone");
        found.listener = None;
        self.listen_again_at = Some(after(now));
    }

    /// Number of listeners that have failed and are tried again later.
    pub(crate) fn down(&self) -> usize {
        let listeners = self.listeners.iter();
        listeners.filter(|it| it.listener.is_none()).count()
    }

    /// Tries failed listeners again if it is time. Returns whether it was.
    pub(crate) fn listen_again(&mut self, now: Nanos) -> bool {
        if self.listen_again_at.take_if(|at| *at <= now).is_none() {
            return false;
        }
        for failed in &mut self.listeners {
            if failed.listener.is_some() {
                continue;
            }
            let address = failed.address;
            match self.channel.listen(address, BACKLOG, token(failed.number)) {
                Ok(listener) => {
                    tracing::info!(%address, "a listener for files listens again");
                    failed.listener = Some(listener);
                }
                Err(error) => {
                    tracing::debug!(%address, %error, "a listener for files cannot be opened yet");
                    self.listen_again_at = Some(after(now));
                }
            }
        }
        true
    }

    /// When [`Self::listen_again`] is due.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        self.listen_again_at
    }
}

/// What a descriptor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The connection manager.
    Manager,
    /// A device.
    Device,
    /// A completion queue, which every turn polls.
    Polled,
}

impl Source {
    pub(crate) fn data(self) -> epoll::EventData {
        epoll::EventData::new_u64(self as u64)
    }
}

/// Adds a descriptor to those that an epoll watches.
pub(crate) fn watch(epoll: &OwnedFd, of: Source, source: BorrowedFd<'_>) -> Result<(), Errno> {
    epoll::add(epoll, source, of.data(), EventFlags::IN)
}

fn watched(channel: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    watch(&epoll, Source::Manager, channel)?;
    Ok(epoll)
}

fn after(now: Nanos) -> Nanos {
    now.saturating_add(Nanos::from_millis(LISTEN_AGAIN_MS))
}

/// The token of a listener.
fn token(number: u32) -> Token {
    Token(u64::from(number))
}
