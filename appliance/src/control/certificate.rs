//! The certificate of HTTPS and its private key, as the TLS library needs them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use super::limits::PEM_BYTES_MAX;
use crate::secret_file::{self, SecretFileError};

/// Permissions that the private key's file may not have: reading and writing by others.
const REFUSED_MODE: u32 = 0o007;

/// Why HTTPS is not available.
#[derive(Debug, thiserror::Error)]
pub(super) enum CertificateError {
    #[error("{} cannot be read", .0.display())]
    Read(PathBuf, #[source] io::Error),
    #[error("{}: it is not a regular file", .0.display())]
    NotAFile(PathBuf),
    #[error("{}: it has more than {PEM_BYTES_MAX} bytes", .0.display())]
    TooLong(PathBuf),
    #[error(
        "{}: other users may use it (mode {mode:04o}): run `chmod o-rwx` for it",
        path.display()
    )]
    Shared { path: PathBuf, mode: u32 },
    #[error("{}: it is not PEM: {problem}", path.display())]
    Pem { path: PathBuf, problem: pem::Error },
    #[error("{}: it has no certificate", .0.display())]
    NoCertificate(PathBuf),
    #[error("{}: it has no private key that is not encrypted", .0.display())]
    NoKey(PathBuf),
    #[error("certificate {} and key {} cannot be used", certificate.display(), key.display())]
    Unusable {
        certificate: PathBuf,
        key: PathBuf,
        #[source]
        cause: rustls::Error,
    },
}

/// Reads the certificate with those of its issuers, and its key.
///
/// # Errors
/// A file cannot be read or is invalid, or the key is not the certificate's.
pub(super) fn load(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, CertificateError> {
    let pem = |path: &Path, problem| CertificateError::Pem {
        path: path.to_owned(),
        problem,
    };
    let bytes = read(certificate, 0)?;
    let chain = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|problem| pem(certificate, problem))?;
    if chain.is_empty() {
        return Err(CertificateError::NoCertificate(certificate.to_owned()));
    }
    let bytes = read(key, REFUSED_MODE)?;
    let private_key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|problem| match problem {
        pem::Error::NoItemsFound => CertificateError::NoKey(key.to_owned()),
        problem => pem(key, problem),
    })?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .and_then(|builder| {
            let builder = builder.with_no_client_auth();
            builder.with_single_cert(chain, private_key)
        });
    let mut config = config.map_err(|cause| CertificateError::Unusable {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        cause,
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The content of a file of limited size that has none of the permissions in `refused_mode`.
fn read(path: &Path, refused_mode: u32) -> Result<Zeroizing<Vec<u8>>, CertificateError> {
    secret_file::read(path, refused_mode, PEM_BYTES_MAX).map_err(|error| {
        let path = path.to_owned();
        match error {
            SecretFileError::Io(cause) => CertificateError::Read(path, cause),
            SecretFileError::NotAFile(_) => CertificateError::NotAFile(path),
            SecretFileError::Shared(mode) => CertificateError::Shared { path, mode },
            SecretFileError::TooLong => CertificateError::TooLong(path),
        }
    })
}
