//! The secrets of hosts that the configuration names: reads them from files and credentials, and keeps
//! them while the appliance runs.
//!
//! Memory with a secret is zeroized when it is dropped. No error, log line or answer contains one.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::sync::Arc;

use appliance_config::{Config, HostAuthentication, Key, KeySource, Name};
use nvme_keys::{AnySecret, ChapSecret};
use nvme_target::NamedSecret;

use crate::key_files::{self, KeyFileError};

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
}

/// The secrets by the names of their keys.
#[derive(Clone, Default)]
pub(crate) struct Keys {
    credentials: Option<PathBuf>,
    secrets: BTreeMap<Name, Arc<ChapSecret>>,
}

impl Keys {
    /// No secrets yet; credentials are those of this process.
    pub(crate) fn new() -> Self {
        Self {
            credentials: env::var_os(CREDENTIALS_DIRECTORY).map(PathBuf::from),
            secrets: BTreeMap::new(),
        }
    }

    /// Reads every key of a configuration.
    ///
    /// # Errors
    /// The first key that cannot be read.
    pub(crate) fn load(config: &Config) -> Result<Self, KeyError> {
        let mut keys = Self::new();
        for key in &config.keys {
            let secret = keys.read(key)?;
            keys.insert(key.name.clone(), secret);
        }
        Ok(keys)
    }

    /// Reads a key from its place.
    pub(crate) fn read(&self, key: &Key) -> Result<Arc<ChapSecret>, KeyError> {
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
        match secret {
            AnySecret::Chap(secret) => Ok(Arc::new(secret)),
            AnySecret::Tls(_) => Err(KeyError::ForTls(name())),
        }
    }

    /// Adds or replaces a secret.
    pub(crate) fn insert(&mut self, name: Name, secret: Arc<ChapSecret>) {
        self.secrets.insert(name, secret);
    }

    /// The secret of a key.
    pub(crate) fn get(&self, name: &Name) -> Option<&Arc<ChapSecret>> {
        self.secrets.get(name)
    }

    /// Forgets the secrets that a configuration does not name.
    pub(crate) fn forget_others(&mut self, config: &Config) {
        self.secrets.retain(|name, _| config.key(name).is_some());
    }

    /// Restores the secrets that `before` has.
    pub(crate) fn restore(&mut self, before: Self) {
        self.secrets.extend(before.secrets);
    }

    /// How a host authenticates itself in the target. A key without a secret is left out; the
    /// target refuses a host without keys.
    pub(crate) fn authentication(
        &self,
        host: &HostAuthentication,
    ) -> nvme_target::HostAuthentication {
        let named = |name: &Name| {
            Some(NamedSecret {
                name: name.to_string(),
                secret: Arc::clone(self.get(name)?),
            })
        };
        nvme_target::HostAuthentication {
            required: host.is_required,
            keys: host.chap.iter().filter_map(named).collect(),
            controller_key: host.chap_controller.as_ref().and_then(named),
            null_group: host.chap_null_group,
        }
    }
}

#[cfg(test)]
mod tests;
