//! A connection: the records that it receives and the replies that it sends.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::IpAddr;

use arrayvec::ArrayVec;
use hugemem::Pool;

use crate::job::{JobKey, Jobs};
use crate::limits::{REQUESTS_PER_CONNECTION_MAX, SLICES_MAX};
use crate::network::Interest;
use crate::receiver::Receiver;

/// Identifies a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionKey {
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
    pub(crate) fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub(crate) fn from_u64(data: u64) -> Self {
        Self {
            index: data as u32,
            generation: (data >> 32) as u32,
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection<S> {
    pub(crate) stream: S,
    /// The address of the client.
    pub(crate) client: IpAddr,
    pub(crate) receiver: Receiver,
    /// Jobs whose replies are complete, in the order of their completion.
    outgoing: VecDeque<JobKey>,
    /// Sent bytes of the first reply.
    sent: usize,
    /// Requests that are executed or whose reply is not sent.
    pub(crate) requests: usize,
    /// Bytes of memory that reads hold until they are sent.
    pub(crate) held_bytes: usize,
    /// The events that are watched.
    pub(crate) interest: Interest,
    /// Whether the socket has no room for more.
    pub(crate) is_blocked: bool,
    /// Whether its replies lend memory of devices while they cannot be sent.
    pub(crate) is_lending: bool,
    /// When it last sent or received something.
    pub(crate) active_ms: u64,
}

impl<S> Connection<S> {
    pub(crate) fn new(stream: S, client: IpAddr, now_ms: u64) -> Self {
        Self {
            stream,
            client,
            receiver: Receiver::new(),
            outgoing: VecDeque::with_capacity(REQUESTS_PER_CONNECTION_MAX),
            sent: 0,
            requests: 0,
            held_bytes: 0,
            interest: Interest::READABLE,
            is_blocked: false,
            is_lending: false,
            active_ms: now_ms,
        }
    }

    pub(crate) fn push(&mut self, job: JobKey) {
        self.outgoing.push_back(job);
    }

    /// Whether a reply waits.
    pub(crate) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Copies the data of its replies that devices lend, and counts the bytes. Returns false if
    /// memory is missing.
    pub(crate) fn copy_borrowed(&self, jobs: &mut Jobs, pool: &Pool, copied: &mut u64) -> bool {
        self.outgoing.iter().all(|&key| {
            let Some(mut job) = jobs.take(key) else {
                return true;
            };
            let is_copied = job.copy_borrowed(pool, copied);
            jobs.put(key, job);
            is_copied
        })
    }

    /// Ends the job of a reply that was not sent. Returns false if there is none.
    pub(crate) fn drop_reply(&mut self, jobs: &mut Jobs) -> bool {
        let Some(key) = self.outgoing.pop_front() else {
            return false;
        };
        if let Some(job) = jobs.take(key) {
            jobs.end(key, job);
        }
        true
    }

    /// Sends replies until none is left or the socket is full. Returns the number of replies.
    ///
    /// # Errors
    /// The socket's error: the connection must be closed.
    pub(crate) fn send(&mut self, jobs: &mut Jobs, now_ms: u64) -> io::Result<usize>
    where
        S: Write,
    {
        self.is_blocked = false;
        let mut replies = 0;
        while self.has_outgoing() {
            let mut slices = ArrayVec::<_, SLICES_MAX>::new();
            for (index, key) in self.outgoing.iter().enumerate() {
                let skip = if index == 0 { self.sent } else { 0 };
                if let Some(job) = jobs.get(*key) {
                    job.gather(skip, &mut slices);
                }
                if slices.is_full() {
                    break;
                }
            }
            let written = self.stream.write_vectored(&slices);
            drop(slices);
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.active_ms = now_ms;
                    self.sent += count;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_blocked = true;
                    break;
                }
                Err(error) => return Err(error),
            }
            replies += self.retire(jobs);
        }
        Ok(replies)
    }

    /// Ends the jobs whose replies are sent.
    fn retire(&mut self, jobs: &mut Jobs) -> usize {
        let mut replies = 0;
        while let Some(&key) = self.outgoing.front() {
            let length = jobs.get(key).map_or(0, crate::job::Job::reply_bytes);
            if self.sent < length {
                break;
            }
            self.sent -= length;
            self.outgoing.pop_front();
            self.requests -= 1;
            replies += 1;
            if let Some(job) = jobs.take(key) {
                self.held_bytes -= job.held_bytes;
                jobs.end(key, job);
            }
        }
        replies
    }
}

#[derive(Debug)]
struct Place<S> {
    generation: u32,
    connection: Option<Connection<S>>,
}

/// The connections, by keys with generations.
#[derive(Debug)]
pub(crate) struct Connections<S> {
    places: Vec<Place<S>>,
    free: Vec<u32>,
}

impl<S> Default for Connections<S> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<S> Connections<S> {
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn insert(&mut self, connection: Connection<S>) -> ConnectionKey {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place {
                generation: 0,
                connection: None,
            });
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        place.connection = Some(connection);
        ConnectionKey {
            index,
            generation: place.generation,
        }
    }

    pub(crate) fn get_mut(&mut self, key: ConnectionKey) -> Option<&mut Connection<S>> {
        let place = self.places.get_mut(key.index as usize)?;
        match place.generation == key.generation {
            true => place.connection.as_mut(),
            false => None,
        }
    }

    pub(crate) fn remove(&mut self, key: ConnectionKey) -> Option<Connection<S>> {
        self.get_mut(key)?;
        let place = &mut self.places[key.index as usize];
        place.generation = place.generation.wrapping_add(1);
        self.free.push(key.index);
        place.connection.take()
    }

    pub(crate) fn keys(&self) -> Vec<ConnectionKey> {
        let places = self.places.iter().enumerate();
        let used = places.filter(|(_, place)| place.connection.is_some());
        let key = |(index, place): (usize, &Place<S>)| ConnectionKey {
            index: index as u32,
            generation: place.generation,
        };
        used.map(key).collect()
    }
}
