//! Why a handshake has failed.

use nvme_tls::{Alert, Failure, Refusal};

use crate::HANDSHAKE_BYTES_MAX;

/// Why a handshake has failed. The alert for the peer, if it gets one, is in the output.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The peer has sent something invalid, or offers nothing in common.
    #[error("the peer's first message is not accepted: {0}{hint}", hint = hint(*.0))]
    Violation(Alert),
    /// The peer has ended the handshake.
    #[error("the peer has ended the handshake: {0}{hint}", hint = reported_hint(*.0))]
    Reported(Alert),
    /// The host has none of the keys.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The peer has sent more than [`HANDSHAKE_BYTES_MAX`].
    #[error("the peer has sent more than {HANDSHAKE_BYTES_MAX} bytes in the handshake")]
    TooLong,
    /// The peer has not chosen the key.
    #[error("the peer does not use the pre-shared key")]
    KeyNotChosen,
    /// s2n-tls has refused a message, or cannot be used.
    #[error("the handshake failed: {0}")]
    Library(String),
}

impl From<Failure> for HandshakeError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Violation(alert) => Self::Violation(alert),
            Failure::Reported(alert) => Self::Reported(alert),
        }
    }
}

impl From<s2n_tls::error::Error> for HandshakeError {
    fn from(error: s2n_tls::error::Error) -> Self {
        Self::Library(format!("{} ({})", error.message(), error.name()))
    }
}

/// The likely cause of a first message that is not accepted.
fn hint(alert: Alert) -> &'static str {
    match alert {
        Alert::MISSING_EXTENSION => {
            "; it offers no pre-shared key: give the host a TLS key for this subsystem"
        }
        Alert::PROTOCOL_VERSION => "; it does not offer TLS 1.3",
        Alert::HANDSHAKE_FAILURE => "; it offers no key exchange beside the pre-shared key",
        _ => "",
    }
}

/// The likely cause of the peer's alert.
fn reported_hint(alert: Alert) -> &'static str {
    match alert {
        Alert::UNKNOWN_PSK_IDENTITY | Alert::DECRYPT_ERROR => {
            "; compare the keys of both sides, and the NQNs that they are bound to"
        }
        _ => "",
    }
}
