//! The requests of one reactor that wait for memory: a FIFO per class, all storage taken at start.

use crate::class::CLASSES;
use crate::pool::WaiterToken;

/// The end of a list.
const NONE: u32 = u32::MAX;

/// One request that waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiter {
    pub(crate) token: WaiterToken,
    pub(crate) len: usize,
    /// Has a promise, which is of one class.
    pub(crate) is_promised: bool,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    waiter: Waiter,
    /// When it came, compared between classes.
    order: u64,
    next: u32,
}

#[derive(Debug, Clone, Copy)]
struct Queue {
    head: u32,
    tail: u32,
}

/// Linked lists through one table of nodes: one per class, and one of the nodes not in use.
#[derive(Debug)]
pub(crate) struct Waiters {
    nodes: Box<[Node]>,
    unused: u32,
    queues: [Queue; CLASSES],
    order: u64,
}

impl Waiters {
    /// Room for `max` requests.
    pub(crate) fn new(max: usize) -> Waiters {
        let max = u32::try_from(max)
            .ok()
            .filter(|max| *max < NONE)
            .expect("fewer than 2^32 - 1");
        let waiter = Waiter {
            token: WaiterToken(0),
            len: 0,
            is_promised: false,
        };
        let nodes = (1..=max).map(|next| Node {
            waiter,
            order: 0,
            next: if next == max { NONE } else { next },
        });
        Waiters {
            nodes: nodes.collect(),
            unused: if max == 0 { NONE } else { 0 },
            queues: [Queue {
                head: NONE,
                tail: NONE,
            }; CLASSES],
            order: 0,
        }
    }

    pub(crate) fn is_empty(&self, class: usize) -> bool {
        self.queues[class].head == NONE
    }

    /// Queues a request behind all others of its class; `false` when there is no room.
    pub(crate) fn push(&mut self, class: usize, waiter: Waiter) -> bool {
        let node = self.unused;
        if node == NONE {
            return false;
        }
        self.unused = self.nodes[node as usize].next;
        self.nodes[node as usize] = Node {
            waiter,
            order: self.order,
            next: NONE,
        };
        self.order += 1;
        let queue = &mut self.queues[class];
        match std::mem::replace(&mut queue.tail, node) {
            NONE => queue.head = node,
            last => self.nodes[last as usize].next = node,
        }
        true
    }

    /// The first request of the class whose first has waited longest, `skip` left out.
    pub(crate) fn oldest(&self, skip: [bool; CLASSES]) -> Option<(usize, Waiter)> {
        (0..CLASSES)
            .filter(|&class| !skip[class] && !self.is_empty(class))
            .map(|class| (class, &self.nodes[self.queues[class].head as usize]))
            .min_by_key(|(_, node)| node.order)
            .map(|(class, node)| (class, node.waiter))
    }

    /// Removes the first request of a class.
    pub(crate) fn pop(&mut self, class: usize) {
        self.unlink(class, NONE, self.queues[class].head);
    }

    /// Removes the requests for which `cancelled` holds and reports the class of each to `gone`.
    pub(crate) fn cancel(
        &mut self,
        mut cancelled: impl FnMut(WaiterToken) -> bool,
        mut gone: impl FnMut(usize),
    ) {
        for class in 0..CLASSES {
            let mut before = NONE;
            let mut node = self.queues[class].head;
            while node != NONE {
                let Node { waiter, next, .. } = self.nodes[node as usize];
                if cancelled(waiter.token) {
                    self.unlink(class, before, node);
                    gone(class);
                } else {
                    before = node;
                }
                node = next;
            }
        }
    }

    fn unlink(&mut self, class: usize, before: u32, node: u32) {
        let next = self.nodes[node as usize].next;
        let queue = &mut self.queues[class];
        if queue.tail == node {
            queue.tail = before;
        }
        match before {
            NONE => queue.head = next,
            before => self.nodes[before as usize].next = next,
        }
        self.nodes[node as usize].next = self.unused;
        self.unused = node;
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
