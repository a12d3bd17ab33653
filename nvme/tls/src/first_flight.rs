//! Collects a ClientHello from records.

use crate::record::{HEADER_BYTES, PLAINTEXT_BYTES_MAX};
use crate::{Alert, CIPHERTEXT_BYTES_MAX, ContentType, Failure};

/// Longest ClientHello that is accepted, in bytes. Those of hosts have about 600.
pub const CLIENT_HELLO_BYTES_MAX: usize = 16 << 10;

const CLIENT_HELLO: u8 = 1;
const MESSAGE_HEADER_BYTES: usize = 4;

/// The bytes behind the header of any record during a handshake.
///
/// # Errors
///
/// The alert for an unknown type or an invalid length.
pub fn handshake_body_bytes(header: [u8; HEADER_BYTES]) -> Result<usize, Alert> {
    let [kind, _, _, high, low] = header;
    let bytes = usize::from(u16::from_be_bytes([high, low]));
    let kind = ContentType::from_code(kind).ok_or(Alert::UNEXPECTED_MESSAGE)?;
    let limit = match kind {
        ContentType::ApplicationData => CIPHERTEXT_BYTES_MAX,
        _ => PLAINTEXT_BYTES_MAX,
    };
    if bytes > limit {
        Err(Alert::RECORD_OVERFLOW)
    } else if bytes == 0 {
        // Only data may be empty, and no data is permitted yet (RFC 8446 §5.1).
        Err(Alert::UNEXPECTED_MESSAGE)
    } else {
        Ok(bytes)
    }
}

/// Collects a ClientHello, which may be split into several records.
#[derive(Debug, Default)]
pub struct FirstFlight {
    message: Vec<u8>,
    /// It follows a HelloRetryRequest, so that a ChangeCipherSpec may be in front of it.
    is_second: bool,
}

impl FirstFlight {
    /// Awaits the ClientHello that follows a HelloRetryRequest.
    #[must_use]
    pub fn second() -> Self {
        Self {
            message: Vec::new(),
            is_second: true,
        }
    }

    /// Takes a whole record, with its header. Returns the message when it is complete; no further
    /// record may be given then.
    ///
    /// # Errors
    ///
    /// The record is no part of a ClientHello.
    pub fn take(&mut self, record: &[u8]) -> Result<Option<&[u8]>, Failure> {
        let violation = |alert| Err(Failure::Violation(alert));
        let Some((header, body)) = record.split_first_chunk::<HEADER_BYTES>() else {
            return violation(Alert::DECODE_ERROR);
        };
        match handshake_body_bytes(*header) {
            Ok(bytes) if bytes == body.len() => {}
            Ok(_) => return violation(Alert::DECODE_ERROR),
            Err(alert) => return violation(alert),
        }
        match ContentType::from_code(header[0]) {
            Some(ContentType::Handshake) => {}
            Some(ContentType::ChangeCipherSpec)
                if self.is_second && self.message.is_empty() && body == [1] =>
            {
                return Ok(None);
            }
            Some(ContentType::Alert) => {
                return match *body {
                    [_, description] => Err(Failure::Reported(Alert(description))),
                    _ => violation(Alert::DECODE_ERROR),
                };
            }
            _ => return violation(Alert::UNEXPECTED_MESSAGE),
        }
        let is_first_record = self.message.is_empty();
        if is_first_record && body[0] != CLIENT_HELLO {
            return violation(Alert::UNEXPECTED_MESSAGE);
        }
        if self.message.len() + body.len() > CLIENT_HELLO_BYTES_MAX {
            return violation(Alert::ILLEGAL_PARAMETER);
        }
        self.message.extend_from_slice(body);
        self.complete()
    }

    fn complete(&self) -> Result<Option<&[u8]>, Failure> {
        let Some([_, length @ ..]) = self.message.first_chunk::<MESSAGE_HEADER_BYTES>() else {
            return Ok(None);
        };
        let [high, middle, low] = *length;
        let bytes = MESSAGE_HEADER_BYTES + u32::from_be_bytes([0, high, middle, low]) as usize;
        if bytes > CLIENT_HELLO_BYTES_MAX {
            return Err(Failure::Violation(Alert::ILLEGAL_PARAMETER));
        }
        match self.message.len() {
            found if found < bytes => Ok(None),
            found if found == bytes => Ok(Some(&self.message)),
            // Nothing may follow in the same flight.
            _ => Err(Failure::Violation(Alert::UNEXPECTED_MESSAGE)),
        }
    }
}

#[cfg(test)]
mod tests;
