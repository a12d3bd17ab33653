//! The secrets that operators have revoked: they are never used again, whichever key has them, also
//! after a restart.
//!
//! One file in the state directory has their fingerprints, from which no secret can be found. It is
//! replaced atomically before a revocation takes effect. A file that cannot be understood prevents
//! the start of an appliance with keys, because a revoked key might otherwise be used again.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use nvme_keys::Fingerprint;
use serde::{Deserialize, Serialize};

use crate::state_directory::{Document, DocumentError, read_document, write_document};

/// Most secrets that are remembered.
const REVOKED_MAX: usize = 4096;

/// Why revoked keys cannot be read or recorded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RevokedKeysError {
    #[error("{path} cannot be read, so revoked keys are unknown: {cause}")]
    Unreadable { path: PathBuf, cause: io::Error },
    #[error(
        "{path} is damaged, so revoked keys are unknown: restore it from a backup, or replace the \
         secrets of all keys and remove it: {cause}"
    )]
    Damaged { path: PathBuf, cause: String },
    #[error("there is no state directory in which the revocation would survive a restart")]
    NoDirectory,
    #[error("{REVOKED_MAX} secrets are revoked already: remove old records from {0}")]
    TooMany(PathBuf),
    #[error("{path} cannot be written: {cause}")]
    Unwritable { path: PathBuf, cause: io::Error },
}

/// The file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    revoked: Vec<Record>,
}

impl Document for Contents {
    const VERSION: u32 = 1;
    /// A record has up to 200 bytes.
    const BYTES_MAX: u64 = 1 << 20;

    fn version(&self) -> u32 {
        self.version
    }
}

/// A revoked secret.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    fingerprint: String,
    /// The name of the key at that time, for people.
    key: String,
    unix_seconds: u64,
}

/// The revoked secrets. By default, none is known, and none can be revoked.
#[derive(Clone, Default)]
pub(crate) struct RevokedKeys {
    path: Option<PathBuf>,
    records: BTreeMap<Fingerprint, Record>,
}

impl RevokedKeys {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// It exists and cannot be read or understood.
    pub(crate) fn read(path: Option<PathBuf>) -> Result<Self, RevokedKeysError> {
        let records = match &path {
            Some(path) => read(path)?,
            None => BTreeMap::new(),
        };
        Ok(Self { path, records })
    }

    /// Whether a secret is revoked.
    pub(crate) fn include(&self, secret: Fingerprint) -> bool {
        self.records.contains_key(&secret)
    }

    /// Revokes the secret of a key. When it returns, the revocation survives a loss of power.
    ///
    /// # Errors
    /// It cannot be recorded. Nothing is revoked then.
    pub(crate) fn add(&mut self, secret: Fingerprint, key: &str) -> Result<(), RevokedKeysError> {
        let path = self.path.clone().ok_or(RevokedKeysError::NoDirectory)?;
        let mut records = self.records.clone();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let record = Record {
            fingerprint: secret.to_string(),
            key: key.to_owned(),
            unix_seconds: now.map_or(0, |since| since.as_secs()),
        };
        records.entry(secret).or_insert(record);
        if records.len() > REVOKED_MAX {
            return Err(RevokedKeysError::TooMany(path));
        }
        let contents = Contents {
            version: Contents::VERSION,
            revoked: records.values().cloned().collect(),
        };
        let written = write_document(&path, &contents);
        written.map_err(|cause| RevokedKeysError::Unwritable { path, cause })?;
        self.records = records;
        Ok(())
    }
}

fn read(path: &Path) -> Result<BTreeMap<Fingerprint, Record>, RevokedKeysError> {
    let unreadable = |cause| RevokedKeysError::Unreadable {
        path: path.to_owned(),
        cause,
    };
    let damaged = |cause: String| RevokedKeysError::Damaged {
        path: path.to_owned(),
        cause,
    };
    let contents: Contents = match read_document(path) {
        Ok(Some(contents)) => contents,
        Ok(None) => return Ok(BTreeMap::new()),
        Err(DocumentError::Unreadable(cause)) => return Err(unreadable(cause)),
        Err(DocumentError::Damaged(cause)) => return Err(damaged(cause)),
    };
    let mut records = BTreeMap::new();
    for record in contents.revoked {
        let fingerprint = record.fingerprint.parse();
        let fingerprint = fingerprint.map_err(|error| damaged(format!("{error}")))?;
        records.insert(fingerprint, record);
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nvme_keys::{ChapSecret, Hash};
    use tempfile::TempDir;

    use super::*;

    fn fingerprint(byte: u8) -> Fingerprint {
        let secret = ChapSecret::new(Hash::Sha256, &[byte; 32]);
        secret.expect("the length fits").fingerprint()
    }

    #[test]
    fn revocations_survive_a_restart() {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path().join("state/revoked.json");
        let mut revoked = RevokedKeys::read(Some(path.clone())).expect("none yet");
        for byte in [1, 2, 1] {
            revoked.add(fingerprint(byte), "db1").expect("writable");
        }
        let again = RevokedKeys::read(Some(path)).expect("valid");
        assert_eq!(again.records.len(), 2);
        assert!(again.include(fingerprint(1)) && again.include(fingerprint(2)));
        assert!(!again.include(fingerprint(3)));
    }

    #[test]
    fn without_a_place_nothing_is_revoked() {
        let mut nowhere = RevokedKeys::default();
        nowhere
            .add(fingerprint(1), "db1")
            .expect_err("forgotten at a restart");
        assert!(!nowhere.include(fingerprint(1)));
        let directory = TempDir::new().expect("a directory");
        let file = directory.path().join("file");
        fs::write(&file, "").expect("writable");
        let mut below = RevokedKeys {
            path: Some(file.join("revoked.json")),
            ..RevokedKeys::default()
        };
        below
            .add(fingerprint(1), "db1")
            .expect_err("not a directory");
        assert!(!below.include(fingerprint(1)));
    }

    #[test]
    fn a_damaged_file_is_not_ignored() {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path().join("revoked.json");
        let mut revoked = RevokedKeys::read(Some(path.clone())).expect("none yet");
        revoked.add(fingerprint(1), "db1").expect("writable");
        let whole = fs::read_to_string(&path).expect("written");
        let wrong_version = whole.replace("\"version\": 1", "\"version\": 2");
        let wrong_digit = whole.replace(&fingerprint(1).to_string(), &"g".repeat(64));
        let long = whole.clone() + &" ".repeat(1 << 20);
        let torn = &whole[..whole.len() / 2];
        for wrong in ["", "{}", torn, &wrong_version, &wrong_digit, &long] {
            fs::write(&path, wrong).expect("writable");
            let error = RevokedKeys::read(Some(path.clone())).err();
            let is_damaged = matches!(error, Some(RevokedKeysError::Damaged { .. }));
            assert!(is_damaged, "{wrong:.40}");
        }
        fs::remove_file(&path).expect("there");
        fs::create_dir(&path).expect("creatable");
        let error = RevokedKeys::read(Some(path)).err().expect("a directory");
        assert!(
            matches!(error, RevokedKeysError::Unreadable { .. }),
            "{error}"
        );
    }
}
