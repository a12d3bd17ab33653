//! The thread that writes states.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{PoisonError, Weak};

use nvme_reservations::NamespaceIdentity;
use nvme_target::{ReservationStore, StoreRequest, Target};

use super::Names;
use super::directory::{path_of, replace};

/// A job of the thread.
pub(super) enum Job {
    /// Write a state.
    Store(StoreRequest),
    /// Report that the jobs before it are done.
    Barrier(Sender<()>),
}

/// The target's access to the thread.
pub(super) struct FileStore(pub(super) Sender<Job>);

impl ReservationStore for FileStore {
    fn store(&self, request: StoreRequest) {
        // The thread lives as long as this sender.
        let _ = self.0.send(Job::Store(request));
    }
}

/// The state of the thread.
pub(super) struct Writer {
    directory: PathBuf,
    target: Weak<Target>,
    /// The devices' names, for messages.
    names: Names,
    /// The states whose last write failed.
    failing: BTreeSet<[u8; 16]>,
}

impl Writer {
    pub(super) fn new(directory: PathBuf, target: Weak<Target>, names: Names) -> Self {
        Self {
            directory,
            target,
            names,
            failing: BTreeSet::new(),
        }
    }

    /// Executes jobs until the target and the appliance are gone.
    pub(super) fn run(mut self, jobs: &Receiver<Job>) {
        for job in jobs {
            match job {
                Job::Store(request) => self.store(&request),
                // The sender may have stopped waiting.
                Job::Barrier(done) => drop(done.send(())),
            }
        }
    }

    pub(super) fn store(&mut self, request: &StoreRequest) {
        let identity = request.identity;
        let written = replace(&self.directory, identity, &request.bytes);
        let path = path_of(&self.directory, identity);
        let path = path.display();
        match &written {
            Ok(()) if self.failing.remove(&identity.0) => {
                let device = self.device(identity);
                tracing::info!("device {device}: its reservations are stored again in {path}");
            }
            Ok(()) => {}
            // Logged once, because hosts can repeat the command.
            Err(error) if self.failing.insert(identity.0) => {
                let device = self.device(identity);
                tracing::error!(
                    "device {device}: its reservations cannot be stored in {path}: {error}: \
                     commands that change them fail: make the directory writable or free space, \
                     and repeat the command on the host"
                );
            }
            Err(_) => {}
        }
        if let Some(target) = self.target.upgrade() {
            target.reservations_stored(request.device, request.number, written.is_ok());
        }
    }

    /// The name of the device with that identity.
    fn device(&self, identity: NamespaceIdentity) -> String {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names = names.iter();
        let found = names.find(|(_, known)| **known == identity);
        found.map_or_else(|| "(removed)".to_owned(), |(name, _)| name.to_string())
    }
}
