//! The credentials of HTTP: the tokens of clients, and the appliance's certificate.
//!
//! They are files that other programs replace, so they are read again when a file has changed. If a
//! changed file is not valid, the credentials in use stay.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use appliance_config::Control;
use arc_swap::ArcSwap;
use rustls::ServerConfig;

use super::certificate::{self, CertificateError};
use super::token::{Token, TokenError, Tokens};

/// Why credentials are not available.
#[derive(Debug, thiserror::Error)]
pub(super) enum CredentialsError {
    #[error("{key} {}", path.display())]
    Token {
        key: &'static str,
        path: PathBuf,
        #[source]
        cause: TokenError,
    },
    #[error(
        "token_file and read_token_file hold the same token: a token has one role, so write \
         another one into one of them"
    )]
    SameToken,
    #[error("no HTTPS")]
    Certificate(#[from] CertificateError),
}

/// Credentials that were valid together.
pub(super) struct Current {
    pub(super) tokens: Tokens,
    /// The configuration of TLS; `None` without HTTPS.
    pub(super) tls: Option<Arc<ServerConfig>>,
}

/// The identity of a file's content.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

/// The files that the configuration names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Files {
    token: Option<PathBuf>,
    read_token: Option<PathBuf>,
    /// The certificate and its key.
    certificate: Option<(PathBuf, PathBuf)>,
}

impl Files {
    pub(super) fn of(control: &Control) -> Self {
        let certificate = control.certificate_file.clone();
        Self {
            token: control.token_file.clone(),
            read_token: control.read_token_file.clone(),
            certificate: certificate.zip(control.certificate_key_file.clone()),
        }
    }

    fn load(&self) -> Result<Current, CredentialsError> {
        let token = |key, path: &Option<PathBuf>| -> Result<_, CredentialsError> {
            let Some(path) = path else {
                return Ok(None);
            };
            let loaded = Token::load(path).map_err(|cause| CredentialsError::Token {
                key,
                path: path.clone(),
                cause,
            });
            loaded.map(Some)
        };
        let tokens = Tokens {
            operate: token("token_file", &self.token)?,
            read: token("read_token_file", &self.read_token)?,
        };
        if tokens.are_equal() {
            return Err(CredentialsError::SameToken);
        }
        let tls = match &self.certificate {
            Some((certificate, key)) => Some(certificate::load(certificate, key)?),
            None => None,
        };
        Ok(Current { tokens, tls })
    }

    fn stamps(&self) -> [Stamp; 4] {
        let stamp = |path: Option<&PathBuf>| -> Stamp {
            let found = std::fs::metadata(path?).ok()?;
            let (seconds, nanoseconds) = (found.ctime(), found.ctime_nsec());
            Some((found.dev(), found.ino(), found.size(), seconds, nanoseconds))
        };
        let (certificate, key) = self.certificate.as_ref().map(|(a, b)| (a, b)).unzip();
        [
            stamp(self.token.as_ref()),
            stamp(self.read_token.as_ref()),
            stamp(certificate),
            stamp(key),
        ]
    }
}

/// The result of looking for changed files.
#[derive(Debug)]
pub(super) enum Refreshed {
    /// No file has changed since the last look.
    Unchanged,
    /// Changed files are in use now.
    Replaced,
    /// Changed files are not valid, so the previous ones stay in use.
    Refused(CredentialsError),
}

/// Credentials in use, which the files' owner replaces.
pub(super) struct Credentials(ArcSwap<Current>);

impl Credentials {
    pub(super) fn new(current: Current) -> Self {
        Self(ArcSwap::from_pointee(current))
    }

    pub(super) fn current(&self) -> Arc<Current> {
        self.0.load_full()
    }
}

/// The files of credentials, and what was read last.
pub(super) struct Watch {
    files: Files,
    stamps: [Stamp; 4],
    credentials: Arc<Credentials>,
}

impl Watch {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read or is not valid.
    pub(super) fn start(files: Files) -> Result<Self, CredentialsError> {
        // Before the files are read: a change in between is found later.
        let stamps = files.stamps();
        let credentials = Arc::new(Credentials::new(files.load()?));
        Ok(Self {
            files,
            stamps,
            credentials,
        })
    }

    pub(super) fn credentials(&self) -> Arc<Credentials> {
        Arc::clone(&self.credentials)
    }

    /// Whether there are files.
    pub(super) fn has_files(&self) -> bool {
        self.files != Files::default()
    }

    /// Reads the files again if one has changed. Calls the file system.
    pub(super) fn refresh(&mut self) -> Refreshed {
        let stamps = self.files.stamps();
        if self.stamps == stamps {
            return Refreshed::Unchanged;
        }
        self.stamps = stamps;
        match self.files.load() {
            Ok(current) => {
                self.credentials.0.store(Arc::new(current));
                Refreshed::Replaced
            }
            Err(error) => Refreshed::Refused(error),
        }
    }
}
