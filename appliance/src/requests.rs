//! Requests to the process while it serves: end, reload its configuration, apply another
//! configuration. Signals and the control plane send them; the control thread executes them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use appliance_config::{Name, Problems};
use nvme_target::EvictedAssociations;
use tokio::sync::oneshot;

use crate::copies::{CopyRefusal, CopyWanted};
use crate::observe::model::{ApplyAnswer, UpgradeAnswer};
use crate::reconciler::ApplyOptions;

/// A request to the process.
pub(crate) enum Request {
    /// Stop in phases; the second one stops immediately.
    End,
    /// Reload the configuration's file and apply it.
    Reload,
    /// Apply a configuration.
    Apply(ApplyJob),
    /// Hand over to a new process.
    Upgrade(UpgradeJob),
    /// Revoke the secret of a key.
    Revoke(RevokeJob),
    /// Copy a device to another.
    Copy(CopyJob),
}

/// A copy.
pub(crate) struct CopyJob {
    pub(crate) wanted: CopyWanted,
    /// The number of the copy that has begun. The receiver may be gone when the response is sent.
    pub(crate) reply: oneshot::Sender<Result<u32, CopyRefusal>>,
    /// Prevents changes of the configuration until it is dropped.
    pub(crate) permit: ApplyPermit,
}

/// A revocation.
pub(crate) struct RevokeJob {
    pub(crate) key: Name,
    /// Whether the associations that use the key end.
    pub(crate) disconnect: bool,
    /// The associations that end, or why nothing is revoked, for people. The receiver may be gone
    /// when the response is sent.
    pub(crate) reply: oneshot::Sender<Result<EvictedAssociations, String>>,
    /// Prevents changes of the configuration until it is dropped.
    pub(crate) permit: ApplyPermit,
}

/// A hand-over to a new process.
pub(crate) struct UpgradeJob {
    /// The program; if absent, that of this process, whose file may be a later version.
    pub(crate) program: Option<PathBuf>,
    /// Start the new process, and end it before anything stops.
    pub(crate) dry_run: bool,
    /// Why it does not happen, for people. The receiver may be gone when the response is sent.
    pub(crate) reply: oneshot::Sender<Result<UpgradeAnswer, String>>,
    /// Prevents changes of the configuration until it is dropped.
    pub(crate) permit: ApplyPermit,
}

/// A configuration to apply.
pub(crate) struct ApplyJob {
    /// Its text; if absent, the file that the appliance was started with is applied.
    pub(crate) text: Option<String>,
    pub(crate) options: ApplyOptions,
    /// The receiver may be gone when the response is sent.
    pub(crate) reply: oneshot::Sender<Result<ApplyAnswer, ApplyRefusal>>,
    /// Prevents other changes until it is dropped.
    pub(crate) permit: ApplyPermit,
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

/// The sender of requests.
#[derive(Clone)]
pub(crate) struct RequestSender {
    requests: Sender<Request>,
    is_busy: Arc<AtomicBool>,
}

/// The exclusive right to apply a configuration.
pub(crate) struct ApplyPermit(Arc<AtomicBool>);

impl Drop for ApplyPermit {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl RequestSender {
    /// A mailbox and the receiver of its requests.
    pub(crate) fn new() -> (Self, Receiver<Request>) {
        let (requests, receiver) = channel();
        let is_busy = Arc::default();
        (Self { requests, is_busy }, receiver)
    }

    /// Sends a request. Returns false if the receiver is gone.
    pub(crate) fn ask(&self, request: Request) -> bool {
        self.requests.send(request).is_ok()
    }

    /// The right to apply a configuration, unless it is taken.
    pub(crate) fn try_acquire_permit(&self) -> Option<ApplyPermit> {
        let is_busy = self.is_busy.swap(true, Ordering::AcqRel);
        (!is_busy).then(|| ApplyPermit(Arc::clone(&self.is_busy)))
    }
}
