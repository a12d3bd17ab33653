//! Records the contents of disks, from which the identifiers of namespaces are derived.
//!
//! Without a configured `uuid`, identifiers are derived from the names of appliance, export and
//! device ([`Config::named_uuid`]). The first lasting content that is served under these names has
//! exactly these identifiers. Any other content has others, so that a host does not take it for the
//! disk that it knows. This module determines what distinguishes contents, and records what was
//! served: one file of two lines per derived UUID, in a persistent directory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use appliance_config::identity::NamespaceIdentity;
use appliance_config::{Config, Export, Namespace, Uuid};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, StatxFlags, fstat, major, minor, statx};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::state_directory::{self, StateDirectory};

/// Largest record in bytes: two descriptions of content.
const RECORD_BYTES_MAX: u64 = 4096;

/// The content of a device, as far as it can be distinguished from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The content survives the device. The text, one line, is always the same for the same
    /// content.
    Lasting(String),
    /// The content is lost with the device; a random number identifies it. Memory that is handed
    /// over keeps its number.
    Volatile(Uuid),
}

impl Content {
    /// The content of newly allocated memory.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(crate) fn of_new_memory() -> io::Result<Self> {
        let mut bytes = [0; 16];
        let filled = getrandom(&mut bytes, GetRandomFlags::empty())?;
        if filled < bytes.len() {
            return Err(io::Error::other("too few random bytes"));
        }
        Ok(Self::Volatile(Uuid::from_bytes(bytes)))
    }
}

/// A file as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    pub(crate) content: Content,
    /// Device number and inode, which identify it among the machine's current files.
    pub(crate) file_id: (u64, u64),
}

impl FileIdentity {
    /// Inspects the file at `path` without reading or writing it: it may belong to another user.
    ///
    /// # Errors
    /// There is no file, or the kernel does not describe it.
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let found = fstat(&file)?;
        let file_id = (found.st_dev, found.st_ino);
        let text = match FileType::from_raw_mode(found.st_mode) {
            FileType::BlockDevice => of_block_device(&found, path),
            _ => of_file(&file)?,
        };
        Ok(Self {
            content: Content::Lasting(text),
            file_id,
        })
    }
}

fn of_file(file: impl AsFd) -> io::Result<String> {
    // An inode number may be reused after its file is removed; the creation time distinguishes the
    // files if the file system records it.
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let found = statx(&file, "", AtFlags::EMPTY_PATH, wanted)?;
    let mut text = format!("file {}", found.stx_ino);
    if StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME) {
        let born = found.stx_btime;
        text += &format!(" {}.{:09}", born.tv_sec, born.tv_nsec);
    }
    Ok(text)
}

/// An identifier of a block device that does not depend on its number in this boot; the path if
/// there is no other.
fn of_block_device(found: &Stat, path: &Path) -> String {
    let (major, minor) = (major(found.st_rdev), minor(found.st_rdev));
    let directory = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let read = |directory: &Path, name: &str| {
        let text = fs::read_to_string(directory.join(name)).ok()?;
        let text = text.trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    let own = || {
        let uevent = read(&directory, "uevent").unwrap_or_default();
        let mut lines = uevent.lines();
        let partition = lines.find_map(|line| line.strip_prefix("PARTUUID="));
        partition
            .map(|uuid| format!("partition {uuid}"))
            .or_else(|| read(&directory, "dm/uuid"))
            .or_else(|| read(&directory, "wwid"))
            .or_else(|| read(&directory, "device/wwid"))
    };
    let of_a_part = || {
        let number = read(&directory, "partition")?;
        let whole = directory.join("..");
        let whole = read(&whole, "wwid").or_else(|| read(&whole, "device/wwid"))?;
        Some(format!("{whole} partition {number}"))
    };
    let known = own().or_else(of_a_part);
    let known = known.unwrap_or_else(|| path.display().to_string());
    format!("block {}", known.replace('\n', " "))
}

/// The contents that were served under a list of names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    /// The content whose identifiers are derived only from the names.
    first: String,
    /// The content that was served last.
    last: String,
}

/// The identities of namespaces, with the records of served contents. Clones share the records.
#[derive(Clone, Debug, Default)]
pub struct Identities {
    /// The persistent directory of the records; without it they end with the process.
    directory: Option<PathBuf>,
    records: Arc<Mutex<BTreeMap<Uuid, Record>>>,
}

impl Identities {
    /// Identities with records in `directory`.
    pub(crate) fn at(directory: Option<PathBuf>) -> Self {
        Self {
            directory,
            records: Arc::default(),
        }
    }

    /// The identity of a namespace whose device holds `content`. Records that it is served.
    pub(crate) fn serve(
        &self,
        config: &Config,
        export: &Export,
        namespace: &Namespace,
        content: &Content,
    ) -> NamespaceIdentity {
        let device = config.device(&namespace.device);
        if device.is_some_and(|device| device.uuid.is_some()) {
            return config.namespace_identity(export, namespace, None);
        }
        match content {
            Content::Volatile(number) => {
                let text = format!("memory {number}");
                config.namespace_identity(export, namespace, Some(&text))
            }
            Content::Lasting(text) => {
                let named = config.named_uuid(export, namespace);
                let first = self.note(named, namespace, text);
                let other = (first != *text).then_some(text.as_str());
                config.namespace_identity(export, namespace, other)
            }
        }
    }

    /// Whether hosts would see a different disk than last time if `content` were served now.
    /// Records nothing.
    pub(crate) fn would_change(&self, named: Uuid, content: &Content) -> bool {
        let Content::Lasting(text) = content else {
            return false;
        };
        let known = self.records().get(&named).cloned();
        let known = known.or_else(|| self.load(named));
        known.is_some_and(|known| known.last != *text)
    }

    /// Records that `content` is served under the names. Returns the first content under them.
    fn note(&self, named: Uuid, namespace: &Namespace, content: &str) -> String {
        let mut records = self.records();
        let known = records.get(&named).cloned();
        let known = match known {
            Some(known) if known.last == content => return known.first,
            Some(known) => Some(known),
            None => self.load(named),
        };
        let device = &namespace.device;
        let record = Record {
            first: known
                .as_ref()
                .map_or_else(|| content.to_owned(), |known| known.first.clone()),
            last: content.to_owned(),
        };
        if known.as_ref() != Some(&record) {
            if let Some(known) = &known {
                tracing::warn!(
                    "device {device}: its content is another one than was served under this name \
                     before ({content}, not {}): identifiers change, and hosts see a different disk",
                    known.last
                );
            }
            if let Err(error) = self.store(named, &record) {
                tracing::warn!(
                    %error,
                    "device {device}: its identity cannot be recorded: if its file is exchanged \
                     before the next start, hosts take the other one for the same disk: set \
                     STATE_DIRECTORY to a directory that this user may write"
                );
            }
        }
        let first = record.first.clone();
        records.insert(named, record);
        first
    }

    fn records(&self) -> MutexGuard<'_, BTreeMap<Uuid, Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self, named: Uuid) -> Option<Record> {
        let path = self.directory.as_ref()?.join(named.to_string());
        let mut text = String::new();
        let file = File::open(path).ok()?;
        file.take(RECORD_BYTES_MAX).read_to_string(&mut text).ok()?;
        let mut lines = text.lines().map(str::to_owned);
        Some(Record {
            first: lines.next()?,
            last: lines.next()?,
        })
    }

    /// Replaces the record atomically, so that a reader never sees a part of it.
    fn store(&self, named: Uuid, record: &Record) -> io::Result<()> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        fs::create_dir_all(directory)?;
        let path = directory.join(named.to_string());
        let new = directory.join(format!("{named}.{}", std::process::id()));
        let Record { first, last } = record;
        state_directory::replace(&path, &new, format!("{first}\n{last}\n").as_bytes())
    }
}

/// The devices of `config` whose files exist but were not served last: hosts will see a different
/// disk. Changes nothing.
pub(crate) fn replaced_files(config: &Config) -> Vec<(appliance_config::Name, PathBuf)> {
    let identities = Identities::at(StateDirectory::of_user().identities());
    let mut found = Vec::new();
    for export in &config.exports {
        for namespace in &export.namespaces {
            let Some(device) = config.device(&namespace.device) else {
                continue;
            };
            let appliance_config::Backing::File { path, .. } = &device.backing else {
                continue;
            };
            let content = match FileIdentity::at(path) {
                Ok(found) => Some(found.content),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    Some(Content::Lasting("a new file".to_owned()))
                }
                Err(_) => None,
            };
            let named = config.named_uuid(export, namespace);
            let changes = content.is_some_and(|it| identities.would_change(named, &it));
            if changes && device.uuid.is_none() {
                found.push((device.name.clone(), path.clone()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demo(path: &Path) -> Config {
        Config::default_embedded(path).expect("valid")
    }

    fn file_identity(identities: &Identities, config: &Config) -> NamespaceIdentity {
        let export = &config.exports[0];
        let namespace = &export.namespaces[1];
        let device = config.device(&namespace.device).expect("it is there");
        let appliance_config::Backing::File { path, .. } = &device.backing else {
            panic!("the second one is a file");
        };
        let found = FileIdentity::at(path).expect("it is there");
        identities.serve(config, export, namespace, &found.content)
    }

    /// The first file has the identity derived only from the names, as before records existed, and
    /// keeps it when it is renamed; any other file has another identity.
    #[test]
    fn identity_follows_the_file_across_renames() {
        let directory = tempfile::tempdir().expect("a directory");
        let state = directory.path().join("state");
        let (one, other) = (directory.path().join("one"), directory.path().join("other"));
        fs::write(&one, "1").expect("written");
        fs::write(&other, "2").expect("written");
        let config = demo(&one);
        let (export, namespace) = (&config.exports[0], &config.exports[0].namespaces[1]);
        let named = config.namespace_identity(export, namespace, None);
        let start = || Identities::at(Some(state.clone()));
        assert_eq!(file_identity(&start(), &config), named);
        let exchanged = file_identity(&start(), &demo(&other));
        assert_ne!(exchanged, named);
        assert_eq!(file_identity(&start(), &demo(&other)), exchanged);
        let content = FileIdentity::at(&one).expect("it is there").content;
        assert!(start().would_change(named.uuid, &content));
        let renamed = directory.path().join("renamed");
        fs::rename(&one, &renamed).expect("renamed");
        let running = start();
        assert_eq!(file_identity(&running, &demo(&renamed)), named);
        assert!(!running.would_change(named.uuid, &content));
        // A restored backup: the same bytes in another file.
        fs::copy(&renamed, directory.path().join("copy")).expect("copied");
        fs::rename(directory.path().join("copy"), &renamed).expect("renamed");
        let restored = file_identity(&running, &demo(&renamed));
        assert!(restored != named && restored != exchanged);
        assert_eq!(file_identity(&start(), &demo(&renamed)), restored);
    }

    #[test]
    fn new_memory_has_a_new_identity_unless_uuid_is_configured() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut config = demo(directory.path());
        let identities = Identities::default();
        let identity = |config: &Config, content: &Content| {
            let export = &config.exports[0];
            identities.serve(config, export, &export.namespaces[0], content)
        };
        let one = Content::of_new_memory().expect("random numbers");
        let other = Content::of_new_memory().expect("random numbers");
        assert_eq!(identity(&config, &one), identity(&config, &one));
        assert_ne!(identity(&config, &one), identity(&config, &other));
        let lasting = Content::Lasting("null".to_owned());
        assert_ne!(identity(&config, &one), identity(&config, &lasting));
        config.devices[0].uuid = Some(Uuid::from_u128(9));
        assert_eq!(identity(&config, &one), identity(&config, &other));
    }

    /// An identity that cannot be recorded is used nevertheless.
    #[test]
    fn unwritable_identity_record_is_no_failure() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        fs::write(&file, "1").expect("written");
        let identities = Identities::at(Some(file.join("no directory")));
        let config = demo(&file);
        let (export, namespace) = (&config.exports[0], &config.exports[0].namespaces[1]);
        let named = config.namespace_identity(export, namespace, None);
        assert_eq!(file_identity(&identities, &config), named);
    }
}
