//! The passes of the responding side's loop: when it ends, how it waits between passes, and its
//! busy share.

use std::io;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::ceiling::SLEEP_MAX;
use crate::ceiling::busy_time::BusyTime;

/// The passes of a loop over sockets.
pub(super) struct Passes<'a> {
    stop: &'a AtomicBool,
    busy_time: BusyTime,
    /// Descriptors to sleep on after a pass that found nothing; empty for a loop that polls.
    sleeping_on: Vec<PollFd<'a>>,
}

impl<'a> Passes<'a> {
    /// Starts the passes, which end with `stop`.
    pub(super) fn begin(sockets: &'a [TcpStream], sleeps: bool, stop: &'a AtomicBool) -> Self {
        let watched = if sleeps { sockets } else { &[] };
        Self {
            stop,
            busy_time: BusyTime::begin(),
            sleeping_on: watched
                .iter()
                .map(|socket| PollFd::new(socket, PollFlags::IN))
                .collect(),
        }
    }

    /// Whether there is another pass.
    pub(super) fn continues(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Notes the end of a pass that transferred something or found nothing.
    #[inline]
    pub(super) fn ended(&mut self, moved: bool) -> io::Result<()> {
        self.busy_time.end_pass(moved);
        if moved || self.sleeping_on.is_empty() {
            return Ok(());
        }
        match poll(&mut self.sleeping_on, Some(&SLEEP_MAX)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The busy share of the time until now.
    pub(super) fn busy_share(self) -> f64 {
        self.busy_time.busy_share()
    }
}
