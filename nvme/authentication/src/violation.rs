//! Why a transaction fails, and the one table of explanation codes for it.

use nvme_spec::authentication::FailureExplanation;

use crate::RandomUnavailable;

/// What is wrong with a message, or why a transaction cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The message is shorter or longer than its fields state, or than any message.
    #[error("the message has a wrong length")]
    Length,
    /// The message is not the one that the sequence expects.
    #[error("the message is not the next one of the sequence")]
    UnexpectedMessage,
    /// The transaction identifier is not that of the transaction.
    #[error("the message belongs to another transaction")]
    Transaction,
    /// A field has a reserved value.
    #[error("a field has a reserved value")]
    ReservedValue,
    /// A list of identifiers is longer than its field, or a message has too many descriptors.
    #[error("the message has too many identifiers or descriptors")]
    Lists,
    /// No descriptor is of DH-HMAC-CHAP.
    #[error("DH-HMAC-CHAP is not proposed")]
    Protocol,
    /// The secure channel is not permitted on this queue or not by the policy, or it is required.
    #[error("the requested secure channel does not fit the queue or its policy")]
    SecureChannel,
    /// No common hash function.
    #[error("no proposed hash function is permitted")]
    Hash,
    /// No common group, or the null group together with a secure channel.
    #[error("no proposed Diffie-Hellman group is permitted")]
    Group,
    /// The hash length is not that of the hash function.
    #[error("the hash length does not fit the hash function")]
    HashLength,
    /// The public value is 0, 1, p - 1 or larger, or its length is wrong.
    #[error("the public Diffie-Hellman value is not valid")]
    PublicValue,
    /// The sequence number is 0 although the challenge must be answered.
    #[error("the sequence number is 0")]
    SequenceNumber,
    /// A generated PSK needs a challenge of the host, and the reply has none.
    #[error("the reply has no challenge, which a generated PSK needs")]
    NoChallenge,
    /// The challenge of the host is that of the controller.
    #[error("the challenge is a copy of the other side's")]
    CopiedChallenge,
    /// The host wants to authenticate the controller, which has no key for that.
    #[error("the controller has no key to authenticate itself with")]
    NoControllerKey,
    /// The host has no key.
    #[error("the host has no key to authenticate itself with")]
    NoHostKey,
    /// The host wants to authenticate the controller, which sent no response.
    #[error("the controller did not authenticate itself")]
    NoResponse,
    /// The response is wrong: the key differs, or the exchange was changed.
    #[error("the response is wrong: the keys differ, or the exchange was changed")]
    WrongResponse,
    /// The transaction took too long.
    #[error("the authentication took too long")]
    TimedOut,
    /// No random bytes.
    #[error("the system has no random bytes")]
    NoRandom,
}

impl Violation {
    /// The Reason Code Explanation of a failure message (Base 2.1 §8.3.4.4).
    pub const fn explanation(self) -> FailureExplanation {
        match self {
            Self::CopiedChallenge
            | Self::NoControllerKey
            | Self::NoHostKey
            | Self::NoResponse
            | Self::WrongResponse
            | Self::TimedOut
            | Self::NoRandom => FailureExplanation::AUTHENTICATION_FAILED,
            Self::Protocol => FailureExplanation::PROTOCOL_NOT_USABLE,
            Self::SecureChannel => FailureExplanation::SECURE_CHANNEL_MISMATCH,
            Self::Hash => FailureExplanation::HASH_NOT_USABLE,
            Self::Group => FailureExplanation::GROUP_NOT_USABLE,
            Self::Length
            | Self::Transaction
            | Self::ReservedValue
            | Self::Lists
            | Self::HashLength
            | Self::PublicValue
            | Self::SequenceNumber
            | Self::NoChallenge => FailureExplanation::INCORRECT_PAYLOAD,
            Self::UnexpectedMessage => FailureExplanation::INCORRECT_MESSAGE,
        }
    }
}

impl From<RandomUnavailable> for Violation {
    fn from(_: RandomUnavailable) -> Self {
        Self::NoRandom
    }
}
