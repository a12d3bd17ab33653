//! A reactor's place for a transport that is set up later: a poller that holds another one.
//!
//! It is registered at start, because the order of a reactor's pollers matters: transports precede
//! the target and the devices. While it is empty, a turn costs one look at a ring. `C` is what the
//! transport shares with the other pollers of the reactor.

use std::os::fd::BorrowedFd;
use std::sync::mpsc::Sender;

use reactors::ring::Receiver;
use reactors::{Nanos, Poller, Progress, StopState};

/// Creates the poller of a reactor. Runs on that reactor.
pub(crate) type MakePoller<C> = Box<dyn FnOnce(&C) -> Box<dyn Poller> + Send>;

/// A message that fills the place. The sender may have stopped waiting for the response.
pub(crate) struct Fill<C> {
    pub(crate) make: MakePoller<C>,
    pub(crate) reply: Sender<()>,
}

/// The place of a transport on one reactor.
pub(crate) struct LatePoller<C> {
    name: &'static str,
    context: C,
    messages: Receiver<Fill<C>>,
    inner: Option<Box<dyn Poller>>,
}

impl<C> LatePoller<C> {
    /// An empty place; `messages` wake the reactor.
    pub(crate) fn new(name: &'static str, context: C, messages: Receiver<Fill<C>>) -> Self {
        Self {
            name,
            context,
            messages,
            inner: None,
        }
    }

    #[cold]
    fn fill(&mut self) -> Progress {
        let mut moved = 0;
        while let Some(Fill { make, reply }) = self.messages.recv() {
            debug_assert!(self.inner.is_none(), "a place is filled once");
            self.inner = Some(make(&self.context));
            let _ = reply.send(());
            moved += 1;
        }
        Progress::from_count(moved)
    }
}

impl<C> Poller for LatePoller<C> {
    fn name(&self) -> &str {
        self.name
    }

    fn poll(&mut self, now: Nanos) -> Progress {
        match &mut self.inner {
            Some(inner) => inner.poll(now),
            None if self.messages.is_empty() => Progress::Idle,
            None => self.fill(),
        }
    }

    fn flush(&mut self, now: Nanos) {
        if let Some(inner) = &mut self.inner {
            inner.flush(now);
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.inner.as_ref()?.next_deadline()
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        self.inner.as_ref()?.wake_source()
    }

    fn prepare_sleep(&mut self) -> bool {
        match &mut self.inner {
            Some(inner) => inner.prepare_sleep(),
            None => self.messages.is_empty(),
        }
    }

    fn stop(&mut self, now: Nanos) -> StopState {
        match &mut self.inner {
            Some(inner) => inner.stop(now),
            None => StopState::Stopped,
        }
    }
}
