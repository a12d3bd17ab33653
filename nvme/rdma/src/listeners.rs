//! One reactor's event channel of the connection manager, and the addresses that it listens on.
//!
//! Created on the control thread with every descriptor that it needs, so that what the system does
//! not grant fails the start, or the change that adds the first listener.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nvme_fabrics::ListenerTable;
use nvme_target::PortId;
use rdma::{Error, Event, EventChannel, Listener, Provider, Token};
use reactors::Nanos;
use rustix::event::epoll;
use rustix::io::Errno;

use crate::token::{EventSubject, EventToken};

/// Connection requests that may wait at a listener.
const BACKLOG: u32 = 128;
/// Time after which a failed listener is tried again.
const LISTEN_AGAIN_AFTER: Nanos = Nanos::from_secs(5);

/// The data of epoll events of the connection manager's channel.
pub(crate) const MANAGER: u64 = 0;

/// An epoll that watches the channel of the connection manager.
fn watched(channel: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let data = epoll::EventData::new_u64(MANAGER);
    epoll::add(&epoll, channel, data, epoll::EventFlags::IN)?;
    Ok(epoll)
}

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// If that fails, nothing remains.
    New(SocketAddr),
    /// An address that hosts know, because this process or an earlier one has listened on it: if
    /// that fails, it is tried again until it succeeds.
    Known(SocketAddr),
}

#[derive(Debug)]
struct AddressListener<P: Provider> {
    /// `None` while the address cannot be listened on.
    listener: Option<P::Listener>,
    address: SocketAddr,
}

/// The listeners of one reactor.
#[derive(Debug)]
pub struct Listeners<P: Provider> {
    /// Tokens contain the numbers of listeners in this table.
    listening: ListenerTable<AddressListener<P>>,
    channel: P::EventChannel,
    /// Watches the channel; a transport adds its other descriptors.
    epoll: OwnedFd,
    reactor: usize,
    closed: bool,
}

impl<P: Provider> Listeners<P> {
    /// An empty set for the reactor of that number.
    ///
    /// # Errors
    /// The error of [`Provider::event_channel`], or the system's, if it is out of descriptors.
    pub fn new(provider: &P, reactor: usize) -> Result<Self, Error> {
        let channel = provider.event_channel()?;
        Ok(Self {
            listening: ListenerTable::default(),
            epoll: watched(channel.descriptor()).map_err(|errno| Error::System {
                step: "epoll",
                source: errno.into(),
            })?,
            channel,
            reactor,
            closed: false,
        })
    }

    /// Listens on `address` as `port`; returns the address with the assigned TCP port number.
    ///
    /// # Errors
    /// The error of [`EventChannel::listen`].
    pub fn listen(&mut self, address: SocketAddr, port: PortId) -> Result<SocketAddr, Error> {
        let token = self.token(self.listening.next_index());
        let listener = self.channel.listen(address, BACKLOG, token)?;
        let address = listener.local_address();
        let listener = Some(listener);
        let listener = AddressListener { listener, address };
        self.listening.insert(listener, port);
        Ok(address)
    }

    /// Listens on an address that hosts know as `port`. If that fails, it is tried again later.
    pub(crate) fn listen_on_known(&mut self, address: SocketAddr, port: PortId, now: Nanos) {
        let index = self.listening.next_index();
        let listener = self.channel.listen(address, BACKLOG, self.token(index));
        let listener = listener
            .inspect_err(|error| {
                tracing::error!(%address, %error, "a listener cannot be opened, it is tried again");
            })
            .ok();
        let is_open = listener.is_some();
        self.listening
            .insert(AddressListener { listener, address }, port);
        if !is_open {
            let retry_at = now.saturating_add(LISTEN_AGAIN_AFTER);
            self.listening.fail(index, retry_at);
        }
    }

    /// Stops listening as `port`.
    pub fn close_port(&mut self, port: PortId) {
        self.listening.remove_port(port);
    }

    fn token(&self, index: u16) -> Token {
        EventToken::of(EventSubject::Listener, self.reactor, index, 0).into()
    }

    pub(crate) fn reactor(&self) -> usize {
        self.reactor
    }

    pub(crate) fn channel(&mut self) -> &mut P::EventChannel {
        &mut self.channel
    }

    /// Readable if the channel has an event, or a watched descriptor is readable.
    pub(crate) fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub(crate) fn next_event(&mut self) -> Result<Option<Event<P>>, Error> {
        self.channel.next_event()
    }

    /// The port of the listener that an event names.
    pub(crate) fn port(&self, listener: Token) -> Option<PortId> {
        let index = EventToken::from(listener).index();
        let (_, port) = self.listening.get(index).filter(|_| !self.closed)?;
        Some(port)
    }

    /// Handles the loss of a listener's device or address: the listener is tried again later.
    pub(crate) fn failed(&mut self, listener: Token, now: Nanos) {
        let index = EventToken::from(listener).index();
        if let Some(listening) = self.listening.get_mut(index) {
            tracing::error!(address = %listening.address, "a listener failed, its device is gone");
            listening.listener = None;
            let retry_at = now.saturating_add(LISTEN_AGAIN_AFTER);
            self.listening.fail(index, retry_at);
        }
    }

    /// Number of listeners that have failed and are tried again later.
    pub(crate) fn down(&self) -> usize {
        self.listening.failed()
    }

    /// Tries failed listeners again whose time has come; returns whether one listens again.
    pub(crate) fn listen_again(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while !self.closed
            && let Some(index) = self.listening.take_due(now)
        {
            let token = self.token(index);
            let Some(listening) = self.listening.get_mut(index) else {
                continue;
            };
            let address = listening.address;
            match self.channel.listen(address, BACKLOG, token) {
                Ok(listener) => {
                    tracing::info!(%address, "a listener listens again");
                    listening.listener = Some(listener);
                    any = true;
                }
                Err(error) => {
                    tracing::debug!(%address, %error, "a listener cannot be opened yet");
                    let retry_at = now.saturating_add(LISTEN_AGAIN_AFTER);
                    self.listening.fail(index, retry_at);
                }
            }
        }
        any
    }

    /// When [`listen_again`](Self::listen_again) must be called next.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        self.listening.next_retry().filter(|_| !self.closed)
    }

    /// Stops listening on all addresses.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.listening.clear();
    }
}
