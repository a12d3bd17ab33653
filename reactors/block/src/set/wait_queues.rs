//! Wait queues of requests that a device does not take yet: one FIFO per device.
//!
//! A table of fixed size with intrusive lists, so that no operation searches it and a request can
//! be removed from the middle.

use std::num::NonZeroU32;

use crate::request::Request;

/// Identifies a waiting request. It is reused after the request stops waiting, so it is valid only
/// together with the request's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingId(NonZeroU32);

impl WaitingId {
    fn of(index: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(index))
    }

    fn index(self) -> u32 {
        self.0.get() - 1
    }
}

/// No index: the end of a queue.
const NONE: u32 = u32::MAX;

struct Waiting {
    request: Request,
    /// Fewer than 128 devices.
    place: u8,
    previous: u32,
    next: u32,
}

#[derive(Clone, Copy)]
struct WaitQueue {
    head: u32,
    tail: u32,
}

/// All waiting requests.
pub(super) struct WaitQueues {
    entries: Vec<Option<Waiting>>,
    free: Vec<u32>,
    queues: Box<[WaitQueue]>,
}

impl WaitQueues {
    pub(super) fn new(devices: usize) -> Self {
        let none = WaitQueue {
            head: NONE,
            tail: NONE,
        };
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            queues: vec![none; devices].into_boxed_slice(),
        }
    }

    /// Makes room for `requests` more.
    pub(super) fn make_room(&mut self, requests: usize) {
        let first = self.entries.len() as u32;
        self.entries
            .resize_with(self.entries.len() + requests, || None);
        self.free.reserve(self.entries.len() - self.free.len());
        // The last is taken first, so that low entries are reused and stay in the cache.
        self.free.extend((first..self.entries.len() as u32).rev());
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(super) fn is_empty(&self, place: usize) -> bool {
        self.queues[place].head == NONE
    }

    /// Adds a request to the end of a device's queue. `None`: there is no room, and the request is
    /// dropped.
    pub(super) fn push(&mut self, place: usize, request: Request) -> Option<WaitingId> {
        let index = self.free.pop()?;
        let previous = std::mem::replace(&mut self.queues[place].tail, index);
        match self.entries.get_mut(previous as usize) {
            Some(Some(last)) => last.next = index,
            _ => self.queues[place].head = index,
        }
        self.entries[index as usize] = Some(Waiting {
            request,
            place: place as u8,
            previous,
            next: NONE,
        });
        Some(WaitingId::of(index))
    }

    /// Puts back the request that [`pop`](Self::pop) just took; its identifier is the same as
    /// before.
    pub(super) fn push_first(&mut self, place: usize, request: Request) {
        let Some(index) = self.free.pop() else {
            debug_assert!(false, "a request leaves room");
            return;
        };
        let next = std::mem::replace(&mut self.queues[place].head, index);
        match self.entries.get_mut(next as usize) {
            Some(Some(first)) => first.previous = index,
            _ => self.queues[place].tail = index,
        }
        self.entries[index as usize] = Some(Waiting {
            request,
            place: place as u8,
            previous: NONE,
            next,
        });
    }

    /// Takes the oldest request of a device's queue.
    pub(super) fn pop(&mut self, place: usize) -> Option<Request> {
        let head = self.queues[place].head;
        self.remove(head).map(|waiting| waiting.request)
    }

    /// Whether the request with this identifier and tag still waits.
    pub(super) fn has(&self, waiting: WaitingId, tag: u64) -> bool {
        let entry = self.entries.get(waiting.index() as usize);
        matches!(entry, Some(Some(waiting)) if waiting.request.tag == tag)
    }

    /// Drops a request if it still waits. Returns the place of its device.
    pub(super) fn cancel(&mut self, waiting: WaitingId, tag: u64) -> Option<usize> {
        let is_same = self.has(waiting, tag);
        let waiting = is_same.then(|| self.remove(waiting.index())).flatten()?;
        Some(usize::from(waiting.place))
    }

    /// Drops all requests of a device's queue.
    pub(super) fn clear(&mut self, place: usize) {
        while self.pop(place).is_some() {}
    }

    fn remove(&mut self, index: u32) -> Option<Waiting> {
        let waiting = self.entries.get_mut(index as usize)?.take()?;
        let queue = &mut self.queues[usize::from(waiting.place)];
        match self.entries.get_mut(waiting.previous as usize) {
            Some(Some(before)) => before.next = waiting.next,
            _ => queue.head = waiting.next,
        }
        match self.entries.get_mut(waiting.next as usize) {
            Some(Some(after)) => after.previous = waiting.previous,
            _ => queue.tail = waiting.previous,
        }
        self.free.push(index);
        Some(waiting)
    }
}
