//! Alert descriptions (RFC 8446 §6).

use std::fmt;

/// The description of an alert. All of them end the connection, except
/// [`USER_CANCELED`](Self::USER_CANCELED).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Alert(pub u8);

impl Alert {
    /// The peer sends no more data.
    pub const CLOSE_NOTIFY: Self = Self(0);
    /// A message or a record of a type that is not permitted in the current state.
    pub const UNEXPECTED_MESSAGE: Self = Self(10);
    /// A record cannot be opened.
    pub const BAD_RECORD_MAC: Self = Self(20);
    /// A record is too long.
    pub const RECORD_OVERFLOW: Self = Self(22);
    /// No common parameters.
    pub const HANDSHAKE_FAILURE: Self = Self(40);
    /// A field with a value that is not permitted.
    pub const ILLEGAL_PARAMETER: Self = Self(47);
    /// A message whose lengths do not match.
    pub const DECODE_ERROR: Self = Self(50);
    /// A binder or a Finished message does not match.
    pub const DECRYPT_ERROR: Self = Self(51);
    /// TLS 1.3 is not offered.
    pub const PROTOCOL_VERSION: Self = Self(70);
    /// An error that is not the peer's.
    pub const INTERNAL_ERROR: Self = Self(80);
    /// The peer cancels the handshake, and sends another alert.
    pub const USER_CANCELED: Self = Self(90);
    /// A required extension is missing.
    pub const MISSING_EXTENSION: Self = Self(109);
    /// No key is known for any of the identities.
    pub const UNKNOWN_PSK_IDENTITY: Self = Self(115);

    /// The name in RFC 8446; `None` for others.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::CLOSE_NOTIFY => "close_notify",
            Self::UNEXPECTED_MESSAGE => "unexpected_message",
            Self::BAD_RECORD_MAC => "bad_record_mac",
            Self::RECORD_OVERFLOW => "record_overflow",
            Self::HANDSHAKE_FAILURE => "handshake_failure",
            Self::ILLEGAL_PARAMETER => "illegal_parameter",
            Self::DECODE_ERROR => "decode_error",
            Self::DECRYPT_ERROR => "decrypt_error",
            Self::PROTOCOL_VERSION => "protocol_version",
            Self::INTERNAL_ERROR => "internal_error",
            Self::USER_CANCELED => "user_canceled",
            Self::MISSING_EXTENSION => "missing_extension",
            Self::UNKNOWN_PSK_IDENTITY => "unknown_psk_identity",
            _ => return None,
        })
    }

    /// The content of its record.
    #[must_use]
    pub const fn message(self) -> [u8; 2] {
        const WARNING: u8 = 1;
        const FATAL: u8 = 2;
        let level = match self {
            Self::CLOSE_NOTIFY | Self::USER_CANCELED => WARNING,
            _ => FATAL,
        };
        [level, self.0]
    }

    /// The record of an alert before keys are agreed on.
    #[must_use]
    pub const fn plaintext_record(self) -> [u8; 7] {
        let [level, description] = self.message();
        [21, 3, 3, 0, 2, level, description]
    }
}

impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "alert {}", self.0),
        }
    }
}
