//! The secrets of hosts that the configuration names: reads them from files and credentials, and keeps
//! them while the appliance runs.
//!
//! Memory with a secret is zeroized when it is dropped. No error, log line or answer contains one.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use appliance_config::{Config, HostAuthentication, Key, KeySource, Name, Nqn};
use nvme_keys::{AnySecret, ChapSecret, Fingerprint, Names, TlsKey};
use nvme_spec::nqn::DISCOVERY_NQN;
use nvme_target::{Concatenation, GeneratedKeys, KeyOwner, NamedSecret};
use nvme_tcp::{GeneratedTlsKeys, TlsKeys};

use crate::key_files::{self, KeyFileError};
use crate::revoked_keys::{RevokedKeys, RevokedKeysError};

/// The variable with the directory of the service's credentials (systemd.exec(5)).
const CREDENTIALS_DIRECTORY: &str = "CREDENTIALS_DIRECTORY";

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    #[error("key {name}")]
    File {
        name: Name,
        #[source]
        cause: KeyFileError,
    },
    #[error(
        "key {name}: the service has no credentials: add LoadCredential={credential}:/path to its \
         unit, or name a `file`"
    )]
    NoCredentials { name: Name, credential: Name },
    #[error(
        "key {0}: it is a key for TLS, and hosts use it for DH-HMAC-CHAP: make one with windlass \
         key generate --kind chap"
    )]
    ForTls(Name),
    #[error(
        "key {0}: it is a key for DH-HMAC-CHAP, and hosts use it for TLS: make one with windlass key \
         generate"
    )]
    ForChap(Name),
}

impl KeyError {
    /// Whether a process with other rights or credentials may be able to read the key.
    fn is_of_this_process(&self) -> bool {
        match self {
            Self::NoCredentials { .. } => true,
            Self::File { cause, .. } => match cause {
                KeyFileError::Io(_, error) => error.kind() == io::ErrorKind::PermissionDenied,
                _ => false,
            },
            Self::ForTls(_) | Self::ForChap(_) => false,
        }
    }
}

/// What a check of the keys of a configuration has found.
#[derive(Debug, Default)]
pub(crate) struct KeysCheck {
    /// Why a start would fail.
    pub(crate) problems: Vec<KeyError>,
    /// The keys that this process may not read.
    pub(crate) unread: Vec<Name>,
}

/// A secret of either kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeySecret {
    /// For DH-HMAC-CHAP.
    Chap(Arc<ChapSecret>),
    /// For TLS.
    Tls(Arc<TlsKey>),
}

/// The use of a key for TLS by a host of an export, or for discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsKeyUse {
    owner: KeyOwner,
    key: Arc<TlsKey>,
}

impl KeySecret {
    fn fingerprint(&self) -> Fingerprint {
        match self {
            Self::Chap(secret) => secret.fingerprint(),
            Self::Tls(key) => key.fingerprint(),
        }
    }
}

/// A secret with its fingerprint, which is computed once.
#[derive(Clone)]
struct KnownSecret {
    secret: KeySecret,
    fingerprint: Fingerprint,
}

/// The secrets by the names of their keys.
#[derive(Clone, Default)]
pub(crate) struct Keys {
    credentials: Option<PathBuf>,
    secrets: BTreeMap<Name, KnownSecret>,
    revoked: RevokedKeys,
}

impl Keys {
    /// No secrets yet; credentials are those of this process.
    fn new(revoked: RevokedKeys) -> Self {
        Self {
            credentials: env::var_os(CREDENTIALS_DIRECTORY).map(PathBuf::from),
            secrets: BTreeMap::new(),
            revoked,
        }
    }

    /// Reads every key of a configuration.
    ///
    /// # Errors
    /// The first key that cannot be read.
    pub(crate) fn load(config: &Config, revoked: RevokedKeys) -> Result<Self, KeyError> {
        let mut keys = Self::new(revoked);
        for key in &config.keys {
            let secret = keys.read(key)?;
            keys.insert(key.name.clone(), secret);
        }
        let uses = keys.check_uses(config, &BTreeMap::new());
        uses.map_err(|(_, error)| error)?;
        for name in keys.revoked() {
            tracing::warn!(
                "key {name}: its secret is revoked, so no host can use it: place another one in \
                 its file, and run windlass apply"
            );
        }
        Ok(keys)
    }

    /// Reads every key of a configuration as a start does, except revocations. Keys that this process
    /// may not read, such as credentials of the service, are not checked.
    pub(crate) fn check(config: &Config) -> KeysCheck {
        let mut keys = Self::new(RevokedKeys::default());
        let mut check = KeysCheck::default();
        for key in &config.keys {
            match keys.read(key) {
                Ok(secret) => keys.insert(key.name.clone(), secret),
                Err(error) if error.is_of_this_process() => check.unread.push(key.name.clone()),
                Err(error) => check.problems.push(error),
            }
        }
        let uses = keys.check_uses(config, &BTreeMap::new());
        check.problems.extend(uses.err().map(|(_, error)| error));
        check
    }

    /// The keys whose secrets are revoked.
    pub(crate) fn revoked(&self) -> BTreeSet<Name> {
        let secrets = self.secrets.iter();
        let revoked = secrets.filter(|(_, it)| self.revoked.include(it.fingerprint));
        revoked.map(|(name, _)| name.clone()).collect()
    }

    /// The secret of a key, unless it is revoked.
    fn usable(&self, name: &Name) -> Option<&KeySecret> {
        let known = self.secrets.get(name)?;
        let is_revoked = self.revoked.include(known.fingerprint);
        (!is_revoked).then_some(&known.secret)
    }

    /// Revokes the secret of a key. When it returns, the revocation survives a loss of power.
    ///
    /// # Errors
    /// It cannot be recorded, or there is no such key. Nothing changes then.
    pub(crate) fn revoke(&mut self, name: &Name) -> Result<(), RevokedKeysError> {
        if let Some(known) = self.secrets.get(name) {
            self.revoked.add(known.fingerprint, name.as_str())?;
        }
        Ok(())
    }

    /// Reads a key from its place.
    pub(crate) fn read(&self, key: &Key) -> Result<KeySecret, KeyError> {
        let name = || key.name.clone();
        let read = match &key.source {
            KeySource::File(path) => key_files::read(path),
            KeySource::Credential(credential) => {
                let no_credentials = || KeyError::NoCredentials {
                    name: name(),
                    credential: credential.clone(),
                };
                let directory = self.credentials.as_ref().ok_or_else(no_credentials)?;
                key_files::read_credential(&directory.join(credential.as_str()))
            }
        };
        let secret = read.map_err(|cause| KeyError::File {
            name: name(),
            cause,
        })?;
        Ok(match secret {
            AnySecret::Chap(secret) => KeySecret::Chap(Arc::new(secret)),
            AnySecret::Tls(key) => KeySecret::Tls(Arc::new(key)),
        })
    }

    /// Checks that hosts use each key for what it is made for. `changed` has secrets that replace
    /// those in use.
    ///
    /// # Errors
    /// The first key that they do not.
    pub(crate) fn check_uses(
        &self,
        config: &Config,
        changed: &BTreeMap<Name, KeySecret>,
    ) -> Result<(), (Name, KeyError)> {
        let find = |name: &Name| changed.get(name).or_else(|| self.get(name));
        let hosts = config.exports.iter().flat_map(|it| &it.authentication);
        for host in hosts {
            for name in host.chap.iter().chain(&host.chap_controller) {
                if let Some(KeySecret::Tls(_)) = find(name) {
                    return Err((name.clone(), KeyError::ForTls(name.clone())));
                }
            }
            for name in &host.tls {
                if let Some(KeySecret::Chap(_)) = find(name) {
                    return Err((name.clone(), KeyError::ForChap(name.clone())));
                }
            }
        }
        Ok(())
    }

    /// Adds or replaces a secret.
    pub(crate) fn insert(&mut self, name: Name, secret: KeySecret) {
        let fingerprint = secret.fingerprint();
        let known = KnownSecret {
            secret,
            fingerprint,
        };
        self.secrets.insert(name, known);
    }

    /// The secret of a key.
    pub(crate) fn get(&self, name: &Name) -> Option<&KeySecret> {
        self.secrets.get(name).map(|known| &known.secret)
    }

    /// Forgets the secrets that a configuration does not name.
    pub(crate) fn forget_others(&mut self, config: &Config) {
        self.secrets.retain(|name, _| config.key(name).is_some());
    }

    /// Restores the secrets that `before` has.
    pub(crate) fn restore(&mut self, before: Self) {
        self.secrets.extend(before.secrets);
    }

    /// How a host authenticates itself in the target. Revoked secrets are left out; a host without
    /// another one cannot authenticate itself.
    pub(crate) fn authentication(
        &self,
        host: &HostAuthentication,
    ) -> nvme_target::HostAuthentication {
        let named = |name: &Name| match self.usable(name)? {
            KeySecret::Chap(secret) => Some(NamedSecret {
                name: name.to_string(),
                secret: Arc::clone(secret),
            }),
            KeySecret::Tls(_) => None,
        };
        nvme_target::HostAuthentication {
            required: host.requires_chap,
            keys: host.chap.iter().filter_map(named).collect(),
            controller_key: host.chap_controller.as_ref().and_then(named),
            null_group: host.chap_null_group,
            concatenation: match (host.concatenation, host.requires_tls) {
                (false, _) => Concatenation::Off,
                (true, false) => Concatenation::Allowed,
                (true, true) => Concatenation::Required,
            },
        }
    }

    /// The keys for TLS of every host, for its exports and for discovery.
    pub(crate) fn tls_uses(&self, config: &Config) -> Vec<TlsKeyUse> {
        let mut uses = Vec::new();
        for export in &config.exports {
            for host in &export.authentication {
                for name in &host.tls {
                    let Some(KeySecret::Tls(key)) = self.usable(name) else {
                        continue;
                    };
                    for subsystem in [export.nqn.as_str(), DISCOVERY_NQN] {
                        let found = tls_use(name, &host.host, subsystem, key);
                        // Several exports have the same discovery.
                        if subsystem != DISCOVERY_NQN || !uses.contains(&found) {
                            uses.push(found);
                        }
                    }
                }
            }
        }
        uses
    }
}

fn tls_use(name: &Name, host: &Nqn, subsystem: &str, key: &Arc<TlsKey>) -> TlsKeyUse {
    TlsKeyUse {
        owner: KeyOwner {
            key: name.to_string(),
            host_nqn: host.to_string(),
            subsystem_nqn: subsystem.to_owned(),
            generation: None,
        },
        key: Arc::clone(key),
    }
}

/// The table in which handshakes look up keys: every identity and derivation that hosts may use, and
/// the keys that they generate.
pub(crate) fn tls_table(uses: &[TlsKeyUse], generated: &GeneratedKeys) -> TlsKeys {
    let generated = Arc::new(GeneratedTlsKeys(generated.clone()));
    let mut table = TlsKeys::default().with_changing(generated);
    for TlsKeyUse { owner, key } in uses {
        match Names::new(&owner.host_nqn, &owner.subsystem_nqn) {
            Ok(names) => table.add(&Arc::new(owner.clone()), key.candidates(names)),
            // The NQNs of a configuration have no spaces, so their identities can be built.
            Err(error) => tracing::error!(key = owner.key, %error, "a key cannot be used"),
        }
    }
    table
}

#[cfg(test)]
mod tests;
