//! What the process is asked to do while it serves: to end, to read its configuration again, to become
//! what another configuration says. Signals and the control plane ask; the control thread answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use appliance_config::Problems;
use tokio::sync::oneshot;

use crate::observe::model::ApplyAnswer;
use crate::reconciler::How;

/// Something to do.
pub(crate) enum Request {
    /// End, in order; a second time, at once.
    End,
    /// Read the configuration's file again and apply it.
    Reload,
    /// Apply a configuration.
    Apply(ApplyOrder),
}

/// A configuration to apply.
pub(crate) struct ApplyOrder {
    /// Its text; without it, the file that the appliance was started with.
    pub(crate) text: Option<String>,
    pub(crate) how: How,
    /// Whoever asked may have gone by the time of the answer.
    pub(crate) answer: oneshot::Sender<Result<ApplyAnswer, ApplyRefusal>>,
    /// Until it is dropped, nobody else applies anything.
    pub(crate) turn: Turn,
}

/// Why there is no configuration to apply.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApplyRefusal {
    #[error("{}", .0.display(appliance_config::Colour::Never))]
    Wrong(Problems),
    #[error(
        "this appliance was started without a file, so there is none to read again: give one, as \
         in `windlass apply FILE`"
    )]
    NoFile,
    #[error("{0}")]
    Unreadable(String),
}

/// Where requests go.
#[derive(Clone)]
pub(crate) struct Mailbox {
    requests: Sender<Request>,
    is_busy: Arc<AtomicBool>,
}

/// The right to apply a configuration, which one has at a time.
pub(crate) struct Turn(Arc<AtomicBool>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Mailbox {
    /// A mailbox, and where its requests come out.
    pub(crate) fn new() -> (Self, Receiver<Request>) {
        let (requests, receiver) = channel();
        let is_busy = Arc::default();
        (Self { requests, is_busy }, receiver)
    }

    /// Asks; false when nobody takes requests any more.
    pub(crate) fn ask(&self, request: Request) -> bool {
        self.requests.send(request).is_ok()
    }

    /// The right to apply something, unless somebody has it.
    pub(crate) fn take_turn(&self) -> Option<Turn> {
        let is_busy = self.is_busy.swap(true, Ordering::AcqRel);
        (!is_busy).then(|| Turn(Arc::clone(&self.is_busy)))
    }
}
