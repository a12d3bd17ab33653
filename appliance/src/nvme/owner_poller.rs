//! The owners of drives as pollers: registered on their reactors while these run, and stopped after
//! the devices.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use nvme_driver::DriveOwner;
use reactors::{
    Nanos, POLLERS_MAX, Poller, PollerId, Progress, ReactorHandle, RegisterError, RunError,
    StopState,
};

/// A reactor that has not responded within this time is stuck: its turns take microseconds.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

// A drive has at least one device, and a reactor has few other pollers.
const _: () = assert!(block::DEVICES_MAX < POLLERS_MAX);

/// A reactor did not take the owner of a drive.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandOverError {
    #[error("reactor {reactor} does not take the drive")]
    Refused {
        reactor: usize,
        #[source]
        cause: RunError,
    },
    #[error("reactor {reactor} has ended")]
    Ended { reactor: usize },
    #[error("reactor {reactor} has not answered within {RESPONSE_TIMEOUT:?}: it is stuck")]
    TooSlow { reactor: usize },
    #[error("reactor {reactor} cannot poll the drive")]
    NoRoom {
        reactor: usize,
        #[source]
        cause: RegisterError,
    },
}

/// Moves an owner to its reactor, which polls it from the next turn on. Blocks until the reactor
/// has responded.
///
/// # Errors
/// The owner was dropped, or is dropped when the reactor reads the message.
pub(super) fn hand_over(
    owner: DriveOwner,
    undrained: &Arc<AtomicUsize>,
    handle: &ReactorHandle,
) -> Result<PollerId, HandOverError> {
    let reactor = handle.index();
    let poller = DrainLast {
        inner: owner,
        undrained: Arc::clone(undrained),
    };
    let (sender, receiver) = mpsc::channel();
    let register = handle.run(Box::new(move |reactor| {
        let registered = reactor.register(Box::new(poller));
        if let Err(unread) = sender.send(registered)
            && let Ok(id) = unread.0
        {
            // The control thread has given up.
            reactor.remove(id);
        }
    }));
    register.map_err(|cause| HandOverError::Refused { reactor, cause })?;
    match receiver.recv_timeout(RESPONSE_TIMEOUT) {
        Ok(registered) => registered.map_err(|cause| HandOverError::NoRoom { reactor, cause }),
        Err(RecvTimeoutError::Timeout) => Err(HandOverError::TooSlow { reactor }),
        Err(RecvTimeoutError::Disconnected) => Err(HandOverError::Ended { reactor }),
    }
}

/// Makes a reactor drop the owner of a drive that is closed, which then accesses no drive and frees
/// little memory. The reactor responds, or ends.
///
/// # Errors
/// [`RunError`]: the message was not sent.
pub(super) fn drop_owner(
    poller: PollerId,
    handle: &ReactorHandle,
) -> Result<Receiver<()>, RunError> {
    let (sender, receiver) = mpsc::channel();
    handle.run(Box::new(move |reactor| {
        drop(reactor.remove(poller));
        // The control thread may have ended.
        let _ = sender.send(());
    }))?;
    Ok(receiver)
}

/// A wrapper that stops its poller only after the devices of every reactor are drained. For a
/// drive's owner, because the last flush needs the drive.
struct DrainLast<P> {
    inner: P,
    /// Number of reactors whose devices are not drained.
    undrained: Arc<AtomicUsize>,
}

impl<P: Poller> Poller for DrainLast<P> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn poll(&mut self, now: Nanos) -> Progress {
        self.inner.poll(now)
    }

    fn flush(&mut self, now: Nanos) {
        self.inner.flush(now);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.inner.next_deadline()
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        self.inner.wake_source()
    }

    fn prepare_sleep(&mut self) -> bool {
        self.inner.prepare_sleep()
    }

    fn stop(&mut self, now: Nanos) -> StopState {
        match self.undrained.load(Ordering::Acquire) {
            0 => self.inner.stop(now),
            _ => StopState::Outstanding(1),
        }
    }
}
