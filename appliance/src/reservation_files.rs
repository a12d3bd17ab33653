//! Stores the reservations of devices so that they survive a loss of power: one file for each
//! device, named by the content of the device.
//!
//! It owns a thread, which alone writes the files. The target sends states to it and does not wait;
//! the thread reports to the target when a state is durable. A state is replaced atomically:
//! temporary file, fsync, rename, fsync of the directory.
//!
//! A file that cannot be restored is never ignored, replaced or removed without an operator: the
//! device's reservations are unknown, and its hosts are refused.

mod directory;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use appliance_config::Name;
use appliance_config::identity::reservations_uuid;
use nvme_reservations::{NamespaceIdentity, PersistenceSupport, Reservations};
use nvme_target::{InitialReservations, Target};

use crate::affinity::avoid_reactor_cores;
use directory::{LoadError, load, prepare};
use writer::{FileStore, Job, Writer};

/// Longest wait until earlier states are written before a file is read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The open devices that have stored reservations, with the names of their files.
type Names = Arc<Mutex<BTreeMap<Name, NamespaceIdentity>>>;

/// The stored reservations of an appliance. By default, none can be stored.
#[derive(Default)]
pub(crate) struct ReservationFiles {
    directory: Option<PathBuf>,
    /// Jobs of the thread; `None` if nothing can be stored.
    jobs: Option<Sender<Job>>,
    /// Why nothing can be stored; `None` if it can, or if nobody expects it.
    obstacle: Option<String>,
    is_obstacle_logged: AtomicBool,
    names: Names,
}

impl ReservationFiles {
    /// The files in `directory`, where `target` stores changes from now on. If the directory cannot
    /// be written, states that are already stored are restored nevertheless. The thread avoids
    /// `cores`, those of the reactors.
    pub(crate) fn open(directory: Option<PathBuf>, target: &Arc<Target>, cores: &[usize]) -> Self {
        let mut files = Self::default();
        let Some(directory) = directory else {
            files.obstacle = Some("there is no state directory".to_owned());
            return files;
        };
        match files.start(&directory, target, cores) {
            Ok(jobs) => files.jobs = Some(jobs),
            Err(error) => {
                let directory = directory.display();
                files.obstacle = Some(format!("{directory} cannot be written: {error}"));
            }
        }
        files.directory = Some(directory);
        files
    }

    /// Checks the directory, and starts the thread.
    fn start(
        &self,
        directory: &Path,
        target: &Arc<Target>,
        cores: &[usize],
    ) -> io::Result<Sender<Job>> {
        prepare(directory)?;
        let (jobs, received) = channel();
        let writer = Writer::new(
            directory.to_owned(),
            Arc::downgrade(target),
            Arc::clone(&self.names),
        );
        let cores = cores.to_vec();
        std::thread::Builder::new()
            .name("reservations".to_owned())
            .spawn(move || {
                avoid_reactor_cores(&cores);
                writer.run(&received);
            })?;
        target.set_reservation_store(Box::new(FileStore(jobs.clone())));
        Ok(jobs)
    }

    /// The reservations with which the device of that name begins. `content` describes the content
    /// of a device that survives a loss of power. Reads a file, which may be slow.
    pub(crate) fn initial(&self, name: &Name, content: Option<&str>) -> InitialReservations {
        let Some(content) = content else {
            return InitialReservations::Volatile;
        };
        let identity = NamespaceIdentity(*reservations_uuid(content).as_bytes());
        if let Some(other) = self.holder(name, identity) {
            tracing::warn!(
                "device {name}: its content cannot be distinguished from that of device {other}, \
                 so its reservations cannot persist: place the files on one file system"
            );
            return InitialReservations::Volatile;
        }
        let Some(directory) = &self.directory else {
            self.log_obstacle();
            return InitialReservations::Volatile;
        };
        let loaded = match self.await_writes() {
            Ok(()) => load(directory, identity),
            Err(error) => Err(error),
        };
        let initial = match loaded {
            Ok(Some(state)) => InitialReservations::Persistent { identity, state },
            Ok(None) if self.jobs.is_some() => InitialReservations::Persistent {
                identity,
                state: Reservations::new(PersistenceSupport::Supported),
            },
            Ok(None) => InitialReservations::Volatile,
            // The directory may not exist or not be accessible.
            Err(LoadError::Unreadable { .. }) if self.jobs.is_none() => {
                InitialReservations::Volatile
            }
            Err(error) => {
                tracing::error!(
                    "device {name}: its reservations are unknown, and its hosts are refused: \
                     {error}: restore the file and restart, or reset the reservations with \
                     `windlass reservations {name} --clear`"
                );
                InitialReservations::Unknown { identity }
            }
        };
        if self.jobs.is_none() {
            self.log_obstacle();
        }
        if !matches!(initial, InitialReservations::Volatile) {
            self.names().insert(name.clone(), identity);
        }
        initial
    }

    /// Forgets a device that was removed. Its file stays.
    pub(crate) fn forget(&self, name: &Name) {
        self.names().remove(name);
    }

    /// Another device with that identity.
    fn holder(&self, name: &Name, identity: NamespaceIdentity) -> Option<Name> {
        let names = self.names();
        let mut others = names.iter().filter(|(other, _)| *other != name);
        let found = others.find(|(_, other)| **other == identity);
        found.map(|(other, _)| other.clone())
    }

    /// Returns when the states that were sent so far are written or have failed.
    fn await_writes(&self) -> Result<(), LoadError> {
        let Some(jobs) = &self.jobs else {
            return Ok(());
        };
        let (sender, done) = channel();
        let is_sent = jobs.send(Job::Barrier(sender)).is_ok();
        let is_done = is_sent && done.recv_timeout(WRITE_TIMEOUT).is_ok();
        is_done.then_some(()).ok_or(LoadError::Busy(WRITE_TIMEOUT))
    }

    /// Warns once that nothing can be stored.
    fn log_obstacle(&self) {
        let Some(obstacle) = &self.obstacle else {
            return;
        };
        if !self.is_obstacle_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "reservations cannot persist: {obstacle}: persistent reservations are refused, \
                 others are served: set STATE_DIRECTORY to a directory that this user may write, \
                 and restart"
            );
        }
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<Name, NamespaceIdentity>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
