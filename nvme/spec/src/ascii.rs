//! Fixed-size text fields: space padded (serial, model, firmware, transport address) and NUL padded
//! (NQNs).
//!
//! Base 2.1 §1.4: ASCII strings are left-justified and padded with spaces; NQNs are UTF-8 and end
//! at the first NUL. Peers also pad ASCII strings with NULs, so reading them stops at the first NUL
//! and drops trailing spaces.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An ASCII field of `N` bytes, padded with spaces.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct SpacePadded<const N: usize>(pub [u8; N]);

/// A text field of `N` bytes, padded with NULs.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(transparent)]
pub struct NulPadded<const N: usize>(pub [u8; N]);

impl<const N: usize> SpacePadded<N> {
    /// The text, truncated to `N` bytes, with `?` for every byte that is not printable ASCII (only
    /// 20h to 7Eh are allowed).
    pub fn new(text: &str) -> Self {
        let mut field = [b' '; N];
        for (slot, c) in field.iter_mut().zip(text.chars()) {
            *slot = match c {
                ' '..='~' => c as u8,
                _ => b'?',
            };
        }
        Self(field)
    }

    /// The bytes before the padding.
    pub fn bytes(&self) -> &[u8] {
        trim(&self.0)
    }

    /// The text before the padding; `None` if it is not UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        core::str::from_utf8(self.bytes()).ok()
    }
}

impl<const N: usize> NulPadded<N> {
    /// The text followed by at least one NUL; `None` if it does not fit or contains a NUL.
    pub fn new(text: &str) -> Option<Self> {
        if text.len() >= N || text.as_bytes().contains(&0) {
            return None;
        }
        let mut field = [0; N];
        for (slot, byte) in field.iter_mut().zip(text.bytes()) {
            *slot = byte;
        }
        Some(Self(field))
    }

    /// The bytes before the padding.
    pub fn bytes(&self) -> &[u8] {
        until_nul(&self.0)
    }

    /// The text before the padding; `None` if it is not UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        core::str::from_utf8(self.bytes()).ok()
    }

    /// Whether the field ends in a NUL, as an NQN field must (Base 2.1 §4.7).
    pub fn is_terminated(&self) -> bool {
        self.0.contains(&0)
    }
}

impl<const N: usize> Default for SpacePadded<N> {
    fn default() -> Self {
        Self([b' '; N])
    }
}

impl<const N: usize> Default for NulPadded<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

fn until_nul(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn trim(field: &[u8]) -> &[u8] {
    let mut rest = until_nul(field);
    while let [head @ .., b' '] = rest {
        rest = head;
    }
    rest
}

/// A peer's text for logs: printable ASCII unchanged, all other bytes escaped.
fn escape(bytes: &[u8], f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
    write!(f, "{}", bytes.escape_ascii())
}

impl<const N: usize> core::fmt::Display for SpacePadded<N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        escape(self.bytes(), f)
    }
}

impl<const N: usize> core::fmt::Debug for SpacePadded<N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl<const N: usize> core::fmt::Display for NulPadded<N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        escape(self.bytes(), f)
    }
}

impl<const N: usize> core::fmt::Debug for NulPadded<N> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "\"{self}\"")
    }
}
