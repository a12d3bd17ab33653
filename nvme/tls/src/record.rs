//! The layout and the limits of records (RFC 8446 §5).

use crate::Alert;

/// Most bytes of content in a record.
pub const PLAINTEXT_BYTES_MAX: usize = 1 << 14;
/// Bytes of a record's header.
pub const HEADER_BYTES: usize = 5;
/// Bytes of the authentication tag.
pub(crate) const TAG_BYTES: usize = 16;
/// Bytes of the content type inside of a protected record.
pub(crate) const TYPE_BYTES: usize = 1;
/// Bytes of a protected record beside its content, without padding.
pub const SEALED_OVERHEAD_BYTES: usize = HEADER_BYTES + TYPE_BYTES + TAG_BYTES;
/// Most bytes of a protected record behind its header (RFC 8446 §5.2).
pub const CIPHERTEXT_BYTES_MAX: usize = PLAINTEXT_BYTES_MAX + 256;
/// Most bytes of a received record.
pub const RECORD_BYTES_MAX: usize = HEADER_BYTES + CIPHERTEXT_BYTES_MAX;

/// The type of a record's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentType {
    /// Only in the handshake.
    ChangeCipherSpec,
    /// An alert.
    Alert,
    /// Handshake messages, also after the handshake.
    Handshake,
    /// Data of the application; every protected record looks like one.
    ApplicationData,
}

impl ContentType {
    /// Its number.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::ChangeCipherSpec => 20,
            Self::Alert => 21,
            Self::Handshake => 22,
            Self::ApplicationData => 23,
        }
    }

    /// The type with this number; `None` for others.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            20 => Self::ChangeCipherSpec,
            21 => Self::Alert,
            22 => Self::Handshake,
            23 => Self::ApplicationData,
            _ => return None,
        })
    }
}

/// The header of a protected record with `body` bytes behind it.
#[inline]
pub(crate) const fn protected_header(body: usize) -> [u8; HEADER_BYTES] {
    let [high, low] = (body as u16).to_be_bytes();
    [ContentType::ApplicationData.code(), 3, 3, high, low]
}

/// The bytes behind the header of a protected record. The version in the header has no meaning
/// (RFC 8446 §5.1).
///
/// # Errors
///
/// The alert for a record that is not protected, or too long, or too short for any content.
pub fn record_body_bytes(header: [u8; HEADER_BYTES]) -> Result<usize, Alert> {
    let [content, _, _, high, low] = header;
    let bytes = usize::from(u16::from_be_bytes([high, low]));
    if content != ContentType::ApplicationData.code() {
        Err(Alert::UNEXPECTED_MESSAGE)
    } else if bytes > CIPHERTEXT_BYTES_MAX {
        Err(Alert::RECORD_OVERFLOW)
    } else if bytes < TYPE_BYTES + TAG_BYTES {
        // No key opens it (RFC 8446 §5.2).
        Err(Alert::BAD_RECORD_MAC)
    } else {
        Ok(bytes)
    }
}
