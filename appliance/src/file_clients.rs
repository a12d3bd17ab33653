//! The clients of files that may reclaim their opens and locks after a restart, and the identity of
//! the server, by which clients recognize it: one file in the state directory.
//!
//! A thread alone replaces the file, atomically; the reactor does not wait for it, the replies do
//! that depend on the file. If it cannot be replaced, it is removed: clients without a record lose
//! their locks at a restart, but none reclaims what another has got meanwhile. So a file that is
//! missing or damaged only ends locks.

use std::fs;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use appliance_config::Uuid;
use files_tcp::RecordStore;
use rustix::event::{EventfdFlags, eventfd};
use serde::{Deserialize, Serialize};

use crate::affinity::avoid_reactor_cores;
use crate::state_directory::{Document, DocumentError, read_document, write_document};

/// The file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    /// A UUID.
    identity: String,
    /// The owners in hexadecimal digits.
    clients: Vec<String>,
}

impl Document for Contents {
    const VERSION: u32 = 1;
    /// Twice as many clients as a server has, with the longest owners.
    const BYTES_MAX: u64 = 8 << 20;

    fn version(&self) -> u32 {
        self.version
    }
}

/// What an earlier process has left.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileClients {
    /// Identifies the server to its clients.
    pub(crate) identity: Uuid,
    /// The owners of the clients that may reclaim.
    pub(crate) owners: Vec<Box<[u8]>>,
}

impl FileClients {
    /// Reads the file at `path`. Without it, or if it cannot be understood, the server is a new one.
    pub(crate) fn read(path: &Path) -> Self {
        let reason = match read_document::<Contents>(path) {
            Ok(None) => return Self::new(),
            Ok(Some(contents)) => match contents.decode() {
                Some(clients) => return clients,
                None => "an identifier is not in hexadecimal digits".to_owned(),
            },
            Err(DocumentError::Unreadable(cause)) => cause.to_string(),
            Err(DocumentError::Damaged(cause)) => cause,
        };
        tracing::error!(
            "{}: {reason}: clients of files lose the locks that they had before the restart",
            path.display()
        );
        Self::new()
    }

    /// A new server, of which no client knows.
    pub(crate) fn new() -> Self {
        Self {
            identity: Uuid::new_v4(),
            owners: Vec::new(),
        }
    }
}

impl Contents {
    fn decode(&self) -> Option<FileClients> {
        Some(FileClients {
            identity: self.identity.parse().ok()?,
            owners: self
                .clients
                .iter()
                .map(|it| decoded(it))
                .collect::<Option<_>>()?,
        })
    }
}

fn decoded(text: &str) -> Option<Box<[u8]>> {
    let digits = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok();
    let pairs = text.as_bytes().chunks(2).map(digits);
    text.len().is_multiple_of(2).then(|| pairs.collect())?
}

fn encoded(owner: &[u8]) -> String {
    owner.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A version with its owners.
type Job = (u64, Vec<Box<[u8]>>);

/// The reactor's access to the thread.
pub(crate) struct FileClientsStore {
    jobs: Sender<Job>,
    shared: Arc<Shared>,
}

struct Shared {
    stored: AtomicU64,
    /// Signals the reactor.
    event: OwnedFd,
}

impl FileClientsStore {
    /// Writes the file at `path` with `clients`, and starts the thread, which avoids `cores`, those of
    /// the reactors.
    ///
    /// # Errors
    /// The file cannot be written, or the system provides no further thread or descriptor.
    pub(crate) fn start(
        path: PathBuf,
        clients: &FileClients,
        cores: &[usize],
    ) -> std::io::Result<Self> {
        let identity = clients.identity;
        write(&path, identity, &clients.owners)?;
        let shared = Arc::new(Shared {
            stored: AtomicU64::new(0),
            event: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
        });
        let (jobs, received) = channel();
        let of_thread = Arc::clone(&shared);
        let cores = cores.to_vec();
        std::thread::Builder::new()
            .name("file clients".to_owned())
            .spawn(move || {
                avoid_reactor_cores(&cores);
                run(&path, identity, &received, &of_thread);
            })?;
        Ok(Self { jobs, shared })
    }
}

impl RecordStore for FileClientsStore {
    fn store(&mut self, version: u64, owners: Vec<Box<[u8]>>) {
        // The thread lives as long as this sender.
        let _ = self.jobs.send((version, owners));
    }

    fn stored(&self) -> u64 {
        self.shared.stored.load(Ordering::Acquire)
    }

    fn wake_source(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }
}

fn write(path: &Path, identity: Uuid, owners: &[Box<[u8]>]) -> std::io::Result<()> {
    let contents = Contents {
        version: Contents::VERSION,
        identity: identity.to_string(),
        clients: owners.iter().map(|it| encoded(it)).collect(),
    };
    write_document(path, &contents)
}

/// Executes jobs until the service is gone.
fn run(path: &Path, identity: Uuid, jobs: &Receiver<Job>, shared: &Shared) {
    let mut is_failing = false;
    while let Ok(job) = jobs.recv() {
        // Only the latest version counts.
        let (version, owners) = jobs.try_iter().last().unwrap_or(job);
        match write(path, identity, &owners) {
            Ok(()) if is_failing => {
                is_failing = false;
                tracing::info!("{}: clients of files are recorded again", path.display());
            }
            Ok(()) => {}
            Err(cause) => {
                let removed = fs::remove_file(path);
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::error!(
                        "{}: it cannot be written: {cause}: clients of files lose their locks at a \
                         restart: make the directory writable or free space{}",
                        path.display(),
                        match removed {
                            Ok(()) => "",
                            Err(_) => ", and remove the file before a restart",
                        }
                    );
                }
            }
        }
        shared.stored.store(version, Ordering::Release);
        // The counter of the event never reaches its limit.
        let _ = rustix::io::write(&shared.event, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use tempfile::TempDir;

    use super::*;

    /// Generous limit for every wait of a test, for busy machines.
    const LIMIT: Duration = Duration::from_secs(60);

    fn owners(texts: &[&str]) -> Vec<Box<[u8]>> {
        texts.iter().map(|it| Box::from(it.as_bytes())).collect()
    }

    fn wait(store: &FileClientsStore, version: u64) {
        let began = Instant::now();
        while store.stored() < version {
            assert!(began.elapsed() < LIMIT);
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut count = [0; 8];
        assert_eq!(rustix::io::read(store.wake_source(), &mut count), Ok(8));
    }

    #[test]
    fn a_file_that_is_not_understood_makes_a_new_server() {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path().join("state/windlass.json");
        let clients = FileClients {
            identity: Uuid::new_v4(),
            owners: owners(&["a", "\u{e9}"]),
        };
        FileClientsStore::start(path.clone(), &clients, &[]).expect("writable");
        let whole = fs::read_to_string(&path).expect("written");
        assert_eq!(FileClients::read(&path), clients);
        let odd = whole.replace("\"61\"", "\"616\"");
        let wrong = whole.replace("\"61\"", "\"6x\"");
        let version = whole.replace("\"version\": 1", "\"version\": 2");
        for damaged in ["", "{}", &whole[..whole.len() / 2], &odd, &wrong, &version] {
            fs::write(&path, damaged).expect("writable");
            let read = FileClients::read(&path);
            assert_eq!(read.owners, owners(&[]), "{damaged}");
            assert_ne!(read.identity, clients.identity);
        }
    }

    #[test]
    fn the_latest_version_is_stored_and_signalled() {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path().join("windlass.json");
        let clients = FileClients::read(&path);
        let mut store = FileClientsStore::start(path.clone(), &clients, &[]).expect("writable");
        store.store(1, owners(&["a"]));
        store.store(2, owners(&["a", "b"]));
        wait(&store, 2);
        assert_eq!(FileClients::read(&path).owners, owners(&["a", "b"]));
        assert_eq!(FileClients::read(&path).identity, clients.identity);
    }

    #[test]
    fn without_a_writable_file_no_client_reclaims() {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path().join("windlass.json");
        let clients = FileClients::read(&path);
        let mut store = FileClientsStore::start(path.clone(), &clients, &[]).expect("writable");
        store.store(1, owners(&["a"]));
        wait(&store, 1);
        // The temporary file cannot be made.
        fs::create_dir(path.with_extension("tmp")).expect("a directory");
        store.store(2, owners(&["b"]));
        wait(&store, 2);
        assert_eq!(FileClients::read(&path).owners, owners(&[]));
    }
}
