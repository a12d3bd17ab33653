//! The table of a reactor's connections of one transport: places with generations, the list of
//! connections to flush, and the earliest deadline.

use std::ops::Range;

use nvme_target::{PortId, QueueId, TransportId};
use reactors::Nanos;

use crate::token::{GENERATIONS, RequestToken};

/// Places of a table at most. A [`RequestToken`] has 16 bits for a place; transports use the value
/// above this for other identifiers.
pub const CONNECTIONS_MAX: usize = u16::MAX as usize;

/// A connection in a [`ConnectionTable`].
pub trait Connection {
    /// The token that [`ConnectionTable::next_token`] returned for this connection, with slot 0.
    fn token(&self) -> RequestToken;
    /// The port that the host connected to.
    fn port(&self) -> PortId;
    /// The connection's queue in the target core, from Connect until the connection closes.
    fn queue(&self) -> Option<QueueId>;
    /// Whether the flush at the end of the turn has work to do on this connection.
    fn wants_flush(&self) -> bool;
    /// When the transport must check the connection even if nothing arrives.
    fn deadline(&self) -> Option<Nanos>;
}

/// The connections of one reactor and one transport. Allocates its storage when it is made.
#[derive(Debug)]
pub struct ConnectionTable<C> {
    places: Vec<Place<C>>,
    free: Vec<u16>,
    /// Connections to flush. A place is in this list exactly if its `flush_listed` is set.
    to_flush: Vec<u16>,
    /// The earliest deadline of a connection. It may be too early, but never too late.
    next_deadline: Option<Nanos>,
    transport: TransportId,
}

#[derive(Debug)]
struct Place<C> {
    connection: Option<Box<C>>,
    generation: u32,
    flush_listed: bool,
}

/// A connection of the table, with what the table records about it.
#[derive(Debug)]
pub struct Entry<'a, C> {
    /// The connection.
    pub connection: &'a mut C,
    index: u16,
    flush_listed: &'a mut bool,
    to_flush: &'a mut Vec<u16>,
    next_deadline: &'a mut Option<Nanos>,
}

impl<C: Connection> Entry<'_, C> {
    /// Lists the connection for the next flush if it has something to send.
    #[inline]
    pub fn list_for_flush(&mut self) {
        if !*self.flush_listed && self.connection.wants_flush() {
            *self.flush_listed = true;
            self.to_flush.push(self.index);
        }
    }

    /// Records the connection's deadline.
    #[inline]
    pub fn note_deadline(&mut self) {
        let deadline = self.connection.deadline();
        if deadline.is_some() {
            *self.next_deadline = earliest(*self.next_deadline, deadline);
        }
    }

    /// Lists the connection for the next flush if it has something to send, and records its
    /// deadline.
    #[inline]
    pub fn note(mut self) {
        self.list_for_flush();
        self.note_deadline();
    }
}

impl<C: Connection> ConnectionTable<C> {
    /// An empty table of `places` places for connections of `transport`.
    #[must_use]
    pub fn new(places: usize, transport: TransportId) -> Self {
        let places = places.clamp(1, CONNECTIONS_MAX);
        let empty = || Place {
            connection: None,
            generation: 0,
            flush_listed: false,
        };
        Self {
            places: (0..places).map(|_| empty()).collect(),
            free: (0..places as u16).rev().collect(),
            to_flush: Vec::with_capacity(places),
            next_deadline: None,
            transport,
        }
    }

    /// The transport that the connections belong to.
    #[must_use]
    #[inline]
    pub fn transport(&self) -> TransportId {
        self.transport
    }

    /// Number of connections, including those that are being set up or closed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether there is no connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All places, with and without connections.
    #[must_use]
    pub fn places(&self) -> Range<u16> {
        0..self.places.len() as u16
    }

    /// All connections.
    pub fn iter(&self) -> impl Iterator<Item = &C> {
        self.places.iter().filter_map(|it| it.connection.as_deref())
    }

    /// The token for the next connection that [`insert`](Self::insert) takes; `None` if the table
    /// is full. The token is new with each call.
    pub fn next_token(&mut self) -> Option<RequestToken> {
        let index = *self.free.last()?;
        let place = &mut self.places[usize::from(index)];
        place.generation = (place.generation + 1) % GENERATIONS;
        let token = RequestToken::new()
            .with_transport(self.transport.0)
            .with_connection(index)
            .with_generation(place.generation);
        Some(token)
    }

    /// Puts a connection into the place that its token names; returns the place.
    ///
    /// # Panics
    /// If the token is not the one that [`next_token`](Self::next_token) returned last.
    pub fn insert(&mut self, connection: C) -> u16 {
        let index = connection.token().connection();
        assert_eq!(self.free.pop(), Some(index), "the place was reserved");
        self.next_deadline = earliest(self.next_deadline, connection.deadline());
        self.places[usize::from(index)].connection = Some(Box::new(connection));
        index
    }

    /// Takes the connection at `index` out of the table and frees its place.
    pub fn remove(&mut self, index: u16) -> Option<Box<C>> {
        let place = self.places.get_mut(usize::from(index))?;
        let connection = place.connection.take()?;
        if std::mem::take(&mut place.flush_listed) {
            self.to_flush.retain(|listed| *listed != index);
        }
        self.free.push(index);
        Some(connection)
    }

    /// The connection at `index`.
    #[must_use]
    #[inline]
    pub fn get(&self, index: u16) -> Option<&C> {
        self.places.get(usize::from(index))?.connection.as_deref()
    }

    /// The connection that a request's token names, unless it has ended.
    #[inline]
    pub fn find(&self, token: RequestToken) -> Option<&C> {
        self.get(token.connection())
            .filter(|connection| connection.token().names_same_connection(token))
    }

    /// The connection at `index`, to change it. The caller then calls [`Entry::note`].
    #[inline]
    pub fn entry(&mut self, index: u16) -> Option<Entry<'_, C>> {
        let place = self.places.get_mut(usize::from(index))?;
        Some(Entry {
            connection: place.connection.as_deref_mut()?,
            index,
            flush_listed: &mut place.flush_listed,
            to_flush: &mut self.to_flush,
            next_deadline: &mut self.next_deadline,
        })
    }

    /// The connection that a request's token names, unless it has ended.
    #[inline]
    pub fn entry_of(&mut self, token: RequestToken) -> Option<Entry<'_, C>> {
        self.entry(token.connection())
            .filter(|entry| entry.connection.token().names_same_connection(token))
    }

    /// Number of connections in the list of those to flush.
    #[inline]
    pub fn listed(&self) -> usize {
        self.to_flush.len()
    }

    /// Takes the connection at `position` of the list out of the list. Called with descending
    /// positions, it yields each connection once, and none that is listed meanwhile.
    #[inline]
    pub fn take_listed(&mut self, position: usize) -> Option<u16> {
        let index = *self.to_flush.get(position)?;
        self.to_flush.swap_remove(position);
        self.places[usize::from(index)].flush_listed = false;
        Some(index)
    }

    /// The earliest deadline.
    #[must_use]
    #[inline]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.next_deadline
    }

    /// Whether a deadline has passed. If so, the caller checks every connection and calls
    /// [`Entry::note`], which collects the deadlines again.
    #[inline]
    pub fn take_expired(&mut self, now: Nanos) -> bool {
        let expired = self.next_deadline.is_some_and(|deadline| deadline <= now);
        if expired {
            self.next_deadline = None;
        }
        expired
    }
}

/// The earlier of two deadlines, of which each may be absent.
#[must_use]
#[inline]
pub fn earliest(one: Option<Nanos>, other: Option<Nanos>) -> Option<Nanos> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Fake {
        token: RequestToken,
        deadline: Option<Nanos>,
    }

    impl Connection for Fake {
        fn token(&self) -> RequestToken {
            self.token
        }
        fn port(&self) -> PortId {
            PortId(1)
        }
        fn queue(&self) -> Option<QueueId> {
            None
        }
        fn wants_flush(&self) -> bool {
            true
        }
        fn deadline(&self) -> Option<Nanos> {
            self.deadline
        }
    }

    fn insert(table: &mut ConnectionTable<Fake>, deadline: Option<Nanos>) -> RequestToken {
        let token = table.next_token().expect("a free place");
        table.insert(Fake { token, deadline });
        token
    }

    #[test]
    fn a_stale_token_names_no_connection() {
        let mut table = ConnectionTable::new(1, TransportId(3));
        let first = insert(&mut table, None);
        assert!(table.next_token().is_none(), "the table is full");
        assert!(table.find(first.with_slot(7)).is_some());
        assert!(table.remove(0).is_some());
        let second = insert(&mut table, None);
        assert_eq!(first.connection(), second.connection());
        assert!(table.find(first).is_none());
        assert!(table.entry_of(first).is_none());
        assert!(table.entry_of(second).is_some());
    }

    #[test]
    fn a_connection_is_listed_once_and_not_after_its_end() {
        let mut table = ConnectionTable::new(3, TransportId(0));
        for _ in 0..3 {
            let token = insert(&mut table, None);
            for _ in 0..2 {
                table.entry_of(token).expect("open").list_for_flush();
            }
        }
        table.remove(1);
        let mut flushed = Vec::new();
        for position in (0..table.listed()).rev() {
            let index = table.take_listed(position).expect("listed");
            flushed.push(index);
            table.entry(index).expect("open").list_for_flush();
        }
        assert_eq!(flushed.len(), 2);
        assert!(!flushed.contains(&1));
        assert_eq!(table.listed(), 2, "listed again for the next flush");
    }

    #[test]
    fn the_earliest_deadline_is_collected_again_after_it_has_passed() {
        let mut table = ConnectionTable::new(2, TransportId(0));
        insert(&mut table, Some(Nanos(20)));
        insert(&mut table, Some(Nanos(10)));
        assert!(!table.take_expired(Nanos(9)));
        assert!(table.take_expired(Nanos(10)));
        for index in table.places() {
            let entry = table.entry(index).expect("open");
            entry.connection.deadline = Some(Nanos(30 + u64::from(index)));
            entry.note();
        }
        assert_eq!(table.next_deadline(), Some(Nanos(30)));
    }
}
