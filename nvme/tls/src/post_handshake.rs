//! Handshake messages after the handshake (RFC 8446 §4.6).
//!
//! Only KeyUpdate has an effect. A server may send session tickets, which are ignored.

use arrayvec::ArrayVec;

use crate::Alert;
use crate::channel::Role;

/// Bytes of the header of a handshake message: type and length.
const MESSAGE_HEADER_BYTES: usize = 4;
/// Bytes of a KeyUpdate behind its header.
const KEY_UPDATE_BYTES: usize = 1;
/// Longest session ticket message that is accepted, in bytes.
const TICKET_BYTES_MAX: usize = 1 << 16;

const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// A KeyUpdate message (RFC 8446 §4.6.3), which asks for one in response or does not.
pub(crate) const fn key_update(requests_update: bool) -> [u8; 5] {
    [
        KEY_UPDATE,
        0,
        0,
        KEY_UPDATE_BYTES as u8,
        requests_update as u8,
    ]
}

/// The effect of a record with handshake messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Nothing,
    /// The peer's key changes behind this record.
    KeyUpdate {
        /// The peer asks for a KeyUpdate of this side.
        requested: bool,
    },
}

/// Reads the messages, which may be split into several records.
#[derive(Debug)]
pub(crate) struct PostHandshake {
    role: Role,
    /// The beginning of a message, with the content of a KeyUpdate.
    head: ArrayVec<u8, { MESSAGE_HEADER_BYTES + KEY_UPDATE_BYTES }>,
    /// Bytes of an ignored message that follow.
    ignored: usize,
}

impl PostHandshake {
    pub(crate) fn new(role: Role) -> Self {
        Self {
            role,
            head: ArrayVec::new(),
            ignored: 0,
        }
    }

    /// Whether the next record must continue a message.
    pub(crate) fn is_within_message(&self) -> bool {
        !self.head.is_empty() || self.ignored > 0
    }

    /// Reads the content of one record.
    ///
    /// # Errors
    ///
    /// The alert for an invalid message, or one that is not permitted.
    pub(crate) fn read(&mut self, content: &[u8]) -> Result<Effect, Alert> {
        let mut rest = content;
        loop {
            let skipped = self.ignored.min(rest.len());
            self.ignored -= skipped;
            rest = &rest[skipped..];
            let Some((first, behind)) = rest.split_first() else {
                return Ok(Effect::Nothing);
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
                            0 => Ok(Effect::KeyUpdate { requested: false }),
                            1 => Ok(Effect::KeyUpdate { requested: true }),
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
