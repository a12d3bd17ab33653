//! One reactor's source of events, and the addresses that it listens on.
//!
//! Made before the reactor runs, so that an address that cannot be had ends the start.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use nvme_target::PortId;
use rdma::{Error, Event, EventChannel, Listener, Provider, Token};
use reactors::Nanos;
use reactors::sim::planted;

use crate::token::{EventSubject, EventToken};

/// Connection requests that wait for a listener's owner.
const BACKLOG: u32 = 128;
/// How soon a listener that failed is tried again.
const LISTEN_AGAIN_AFTER: Nanos = Nanos::from_secs(5);

#[derive(Debug)]
struct Listening<P: Provider> {
    /// `None` while it cannot be had.
    listener: Option<P::Listener>,
    address: SocketAddr,
    port: PortId,
    again_at: Option<Nanos>,
}

/// The listeners of one reactor.
#[derive(Debug)]
pub struct Listeners<P: Provider> {
    /// By the number in their tokens.
    listening: Vec<Option<Listening<P>>>,
    channel: P::EventChannel,
    reactor: usize,
    closed: bool,
}

impl<P: Provider> Listeners<P> {
    /// No listener yet, for the reactor of that number.
    ///
    /// # Errors
    /// What [`Provider::event_channel`] answers.
    pub fn new(provider: &P, reactor: usize) -> Result<Self, Error> {
        Ok(Self {
            listening: Vec::new(),
            channel: provider.event_channel()?,
            reactor,
            closed: false,
        })
    }

    /// Listens on `address` as `port`; returns the address with the port that it got.
    ///
    /// # Errors
    /// What [`EventChannel::listen`] answers.
    pub fn listen(&mut self, address: SocketAddr, port: PortId) -> Result<SocketAddr, Error> {
        let free = self.listening.iter().position(Option::is_none);
        let index = free.unwrap_or(self.listening.len());
        let token = self.token(index);
        let listener = self.channel.listen(address, BACKLOG, token)?;
        let address = listener.local_address();
        let listening = Some(Listening {
            listener: Some(listener),
            address,
            port,
            again_at: None,
        });
        match self.listening.get_mut(index) {
            Some(place) => *place = listening,
            None => self.listening.push(listening),
        }
        Ok(address)
    }

    /// Listens no more as `port`.
    pub(crate) fn close_port(&mut self, port: PortId) {
        for place in &mut self.listening {
            let goes = !planted("rdma-listener-stays");
            place.take_if(|listening| listening.port == port && goes);
        }
    }

    fn token(&self, index: usize) -> Token {
        EventToken::of(EventSubject::Listener, self.reactor, index as u16, 0).into()
    }

    pub(crate) fn reactor(&self) -> usize {
        self.reactor
    }

    pub(crate) fn channel(&mut self) -> &mut P::EventChannel {
        &mut self.channel
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.channel.descriptor()
    }

    pub(crate) fn next_event(&mut self) -> Result<Option<Event<P>>, Error> {
        self.channel.next_event()
    }

    /// The port of the listener that an event names.
    pub(crate) fn port(&self, listener: Token) -> Option<PortId> {
        let index = usize::from(EventToken::from(listener).index());
        let found = self.listening.get(index).filter(|_| !self.closed)?;
        found.as_ref().map(|listening| listening.port)
    }

    /// A listener's device or address has gone: it is tried again later.
    pub(crate) fn failed(&mut self, listener: Token, now: Nanos) {
        let index = usize::from(EventToken::from(listener).index());
        if let Some(Some(listening)) = self.listening.get_mut(index) {
            tracing::error!(address = %listening.address, "a listener failed, its device is gone");
            listening.listener = None;
            listening.again_at = Some(now.saturating_add(LISTEN_AGAIN_AFTER));
        }
    }

    /// Listeners that cannot be had at present.
    pub(crate) fn down(&self) -> usize {
        let listening = self.listening.iter().flatten();
        listening.filter(|it| it.again_at.is_some()).count()
    }

    /// Tries listeners again whose time has come; whether one listens again.
    pub(crate) fn listen_again(&mut self, now: Nanos) -> bool {
        let mut any = false;
        for index in 0..self.listening.len() {
            let token = self.token(index);
            let Some(listening) = &mut self.listening[index] else {
                continue;
            };
            let due = listening.again_at.is_some_and(|at| at <= now);
            if !due || self.closed {
                continue;
            }
            let address = listening.address;
            match self.channel.listen(address, BACKLOG, token) {
                Ok(listener) => {
                    tracing::info!(%address, "a listener listens again");
                    listening.listener = Some(listener);
                    listening.again_at = None;
                    any = true;
                }
                Err(error) => {
                    tracing::debug!(%address, %error, "a listener cannot be had yet");
                    listening.again_at = Some(now.saturating_add(LISTEN_AGAIN_AFTER));
                }
            }
        }
        any
    }

    /// When [`listen_again`](Self::listen_again) has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        let again = self.listening.iter().flatten().filter_map(|it| it.again_at);
        again.min().filter(|_| !self.closed)
    }

    /// Listens no more.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        for listening in self.listening.iter_mut().flatten() {
            listening.listener = None;
        }
    }
}
