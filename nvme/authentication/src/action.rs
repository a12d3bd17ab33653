//! What the caller does after a step, and how a transaction ends.

use core::fmt;

use nvme_spec::authentication::{FailureExplanation, FailureReason, SecureChannel};
use zeroize::Zeroizing;

use crate::{Exponentiation, Group, Hash, Violation};

/// What the caller does next.
#[derive(Debug)]
#[must_use]
pub enum Action {
    /// Run the exponentiation on a thread that may take long, and hand back its result.
    Compute(Exponentiation),
    /// Send the message and wait for the next one. A controller sends a message as the data of
    /// Authentication Receive.
    Send(Vec<u8>),
    /// Send the message. The transaction has succeeded.
    SendAndFinish(Vec<u8>, Authenticated),
    /// The transaction has succeeded.
    Finish(Authenticated),
    /// Send the failure message, then disconnect.
    SendAndFail(Vec<u8>, Failure),
    /// Disconnect.
    Fail(Failure),
    /// The result belongs to no current transaction: nothing to do.
    Stale,
}

/// How a transaction succeeded.
#[derive(Debug)]
pub struct Authenticated {
    /// The hash function.
    pub hash: Hash,
    /// The group.
    pub group: Group,
    /// Whether the controller was authenticated too.
    pub bidirectional: bool,
    /// Which of the host's keys was used, an index of [`Queue::host_keys`](crate::Queue).
    pub host_key: usize,
    /// The key of the secure channel to establish, if the host requested one.
    pub psk: Option<GeneratedPsk>,
}

/// The generated PSK, `HMAC(KS, C1 || C2)`, from which both sides derive the PSK of TLS.
#[derive(PartialEq, Eq)]
pub struct GeneratedPsk {
    /// What the host requested: a new key, or one that replaces that of the channel.
    pub secure_channel: SecureChannel,
    /// The hash function of the key.
    pub hash: Hash,
    pub(crate) bytes: Zeroizing<Vec<u8>>,
}

impl GeneratedPsk {
    /// The key, as long as the hash.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for GeneratedPsk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GeneratedPsk")
            .field("secure_channel", &self.secure_channel)
            .field("hash", &self.hash)
            .finish_non_exhaustive()
    }
}

/// Why a transaction failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// This side refused.
    #[error("{0}")]
    Refused(#[from] Violation),
    /// The other side refused.
    #[error("the other side refused: {reason}, {explanation}")]
    RefusedByPeer {
        /// Reason Code.
        reason: FailureReason,
        /// Reason Code Explanation.
        explanation: FailureExplanation,
    },
}
