//! The connections of all transports: their keys, and what limits each of them.

use std::net::IpAddr;

use files_server::Caller;

use crate::limits::UNSENT_BYTES_MAX;

/// A transport of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportIndex {
    /// Byte streams.
    Tcp,
    /// RDMA.
    Rdma,
}

/// Identifies a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionKey {
    index: u32,
    generation: u32,
}

impl ConnectionKey {
    /// No connection.
    pub(crate) const NONE: Self = Self {
        index: u32::MAX,
        generation: 0,
    };

    /// The number of its events.
    #[must_use]
    pub fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The key with this number.
    #[must_use]
    pub fn from_u64(data: u64) -> Self {
        Self {
            index: data as u32,
            generation: (data >> 32) as u32,
        }
    }
}

/// What a connection has of the service.
#[derive(Debug)]
pub struct Link {
    pub(crate) transport: TransportIndex,
    /// The address of the client.
    pub client: IpAddr,
    /// Requests that are executed or whose reply is not sent.
    pub requests: usize,
    /// Bytes of memory that reads hold until they are sent.
    pub held_bytes: usize,
    /// Whether its client does not take the replies.
    pub is_blocked: bool,
    /// What its calls begin with.
    pub(crate) caller: Caller,
}

impl Link {
    /// Whether a read of this many bytes must wait until the client takes replies.
    pub(crate) fn is_over(&self, bytes: usize) -> bool {
        let held = self.held_bytes;
        exceeds_unsent(held, bytes) || held > 0 && self.is_blocked
    }
}

/// Whether a read of this many bytes is too much for a connection whose reads hold `held` bytes.
#[inline]
pub(crate) fn exceeds_unsent(held: usize, bytes: usize) -> bool {
    held > 0 && held + bytes > UNSENT_BYTES_MAX
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    item: Option<T>,
}

/// A table by keys of connections. That of the service makes the keys; a transport has another one
/// with its own part of each connection.
#[derive(Debug)]
pub struct Connections<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    count: usize,
}

impl<T> Default for Connections<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            count: 0,
        }
    }
}

impl<T> Connections<T> {
    /// Number of connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a connection and makes its key.
    pub(crate) fn insert(&mut self, item: T) -> ConnectionKey {
        // The number of connections is bounded.
        let index = self.free.pop().unwrap_or(self.places.len() as u32);
        let place = self.places.get(index as usize);
        let generation = place.map_or(0, |it| it.generation);
        let key = ConnectionKey { index, generation };
        self.put(key, item);
        key
    }

    /// Removes a connection. Its key is not used again.
    pub(crate) fn remove(&mut self, key: ConnectionKey) -> Option<T> {
        let item = self.take(key)?;
        let place = &mut self.places[key.index as usize];
        place.generation = place.generation.wrapping_add(1);
        self.free.push(key.index);
        Some(item)
    }

    /// Sets the part of a connection whose key the service has made.
    pub fn put(&mut self, key: ConnectionKey, item: T) {
        let empty = || Place {
            generation: 0,
            item: None,
        };
        let index = key.index as usize;
        if self.places.len() <= index {
            self.places.resize_with(index + 1, empty);
        }
        let place = &mut self.places[index];
        place.generation = key.generation;
        if place.item.replace(item).is_none() {
            self.count += 1;
        }
    }

    /// Takes the part of a connection.
    pub fn take(&mut self, key: ConnectionKey) -> Option<T> {
        self.get_mut(key)?;
        self.count -= 1;
        self.places[key.index as usize].item.take()
    }

    /// The part of a connection; `None` for a stale key.
    #[inline]
    #[must_use]
    pub fn get(&self, key: ConnectionKey) -> Option<&T> {
        let place = self.places.get(key.index as usize)?;
        match place.generation == key.generation {
            true => place.item.as_ref(),
            false => None,
        }
    }

    /// The part of a connection; `None` for a stale key.
    #[inline]
    pub fn get_mut(&mut self, key: ConnectionKey) -> Option<&mut T> {
        let place = self.places.get_mut(key.index as usize)?;
        match place.generation == key.generation {
            true => place.item.as_mut(),
            false => None,
        }
    }

    /// The keys of all connections.
    #[must_use]
    pub fn keys(&self) -> Vec<ConnectionKey> {
        let places = self.places.iter().enumerate();
        let used = places.filter(|(_, place)| place.item.is_some());
        let key = |(index, place): (usize, &Place<T>)| ConnectionKey {
            index: index as u32,
            generation: place.generation,
        };
        used.map(key).collect()
    }
}
