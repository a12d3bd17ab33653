//! Records without data: handshake messages after the handshake (RFC 8446 §4.6), and alerts (RFC 8446 §6).
//!
//! Of the messages, only KeyUpdate has an effect. A server may send session tickets, which are ignored.

use arrayvec::ArrayVec;

use crate::channel::Role;
use crate::{Alert, ContentType};

/// Bytes of the header of a handshake message: type and length.
const MESSAGE_HEADER_BYTES: usize = 4;
/// Bytes of a KeyUpdate behind its header.
const KEY_UPDATE_BYTES: usize = 1;
/// Longest session ticket message that is accepted, in bytes.
const TICKET_BYTES_MAX: usize = 1 << 16;

const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// A KeyUpdate message (RFC 8446 §4.6.3), which asks for one in response or does not.
#[must_use]
pub const fn key_update(requests_update: bool) -> [u8; 5] {
    [
        KEY_UPDATE,
        0,
        0,
        KEY_UPDATE_BYTES as u8,
        requests_update as u8,
    ]
}

/// The effect of a record without data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// None.
    Nothing,
    /// The peer's key changes behind this record.
    KeyUpdate {
        /// The peer asks for a KeyUpdate of this side.
        requested: bool,
    },
    /// The peer sends no more data.
    Closed,
    /// The peer has ended the connection.
    Reported(Alert),
}

/// Reads the records that have no data. A message may be split into several.
#[derive(Debug)]
pub struct ControlRecords {
    role: Role,
    /// The beginning of a message, with the content of a KeyUpdate.
    head: ArrayVec<u8, { MESSAGE_HEADER_BYTES + KEY_UPDATE_BYTES }>,
    /// Bytes of an ignored message that follow.
    ignored: usize,
}

impl ControlRecords {
    /// Directly after the handshake, on the side of `role`.
    #[must_use]
    pub fn new(role: Role) -> Self {
        Self {
            role,
            head: ArrayVec::new(),
            ignored: 0,
        }
    }

    /// Whether the next record must continue a message.
    #[must_use]
    pub fn is_within_message(&self) -> bool {
        !self.head.is_empty() || self.ignored > 0
    }

    /// Reads the content of one record, or of a part of one.
    ///
    /// # Errors
    ///
    /// The alert for an invalid record, or one that is not permitted.
    pub fn read(&mut self, kind: ContentType, content: &[u8]) -> Result<Control, Alert> {
        match kind {
            ContentType::Handshake => self.read_messages(content),
            ContentType::Alert if !self.is_within_message() => {
                let [_, description] = *content else {
                    return Err(Alert::DECODE_ERROR);
                };
                Ok(match Alert(description) {
                    Alert::CLOSE_NOTIFY => Control::Closed,
                    Alert::USER_CANCELED => Control::Nothing,
                    alert => Control::Reported(alert),
                })
            }
            ContentType::Alert | ContentType::ApplicationData | ContentType::ChangeCipherSpec => {
                Err(Alert::UNEXPECTED_MESSAGE)
            }
        }
    }

    fn read_messages(&mut self, content: &[u8]) -> Result<Control, Alert> {
        let mut rest = content;
        loop {
            let skipped = self.ignored.min(rest.len());
            self.ignored -= skipped;
            rest = &rest[skipped..];
            let Some((first, behind)) = rest.split_first() else {
                return Ok(Control::Nothing);
            };
            rest = behind;
            self.head.push(*first);
            match *self.head.as_slice() {
                [NEW_SESSION_TICKET, ref length @ ..] if self.role == Role::Client => {
                    if let [high, middle, low] = *length {
                        let bytes = u32::from_be_bytes([0, high, middle, low]) as usize;
                        if bytes > TICKET_BYTES_MAX {
                            return Err(Alert::ILLEGAL_PARAMETER);
                        }
                        self.ignored = bytes;
                        self.head.clear();
                    }
                }
                [KEY_UPDATE, ref length @ ..] => match *length {
                    [0, 0, 1, requested] => {
                        // The messages behind it would have the next key (RFC 8446 §5.1).
                        if !rest.is_empty() {
                            return Err(Alert::UNEXPECTED_MESSAGE);
                        }
                        self.head.clear();
                        return match requested {
                            0 => Ok(Control::KeyUpdate { requested: false }),
                            1 => Ok(Control::KeyUpdate { requested: true }),
                            _ => Err(Alert::ILLEGAL_PARAMETER),
                        };
                    }
                    [] | [0] | [0, 0] | [0, 0, 1] => {}
                    _ => return Err(Alert::DECODE_ERROR),
                },
                _ => return Err(Alert::UNEXPECTED_MESSAGE),
            }
        }
    }
}

#[cfg(test)]
mod tests;
