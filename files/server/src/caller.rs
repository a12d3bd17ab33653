//! What the calls of a connection begin with, so that it is decoded once.

use std::ops::Range;

use files_spec::rpc::Call;

use crate::clients::Principal;
use crate::limits::HEADER_KEPT_BYTES_MAX;
use crate::server::fingerprint;
use crate::user::User;

/// Length of the identifier before the header in bytes.
const XID_BYTES: usize = 4;

/// The sender of a call, and where the call's arguments begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Length of the identifier and the header in bytes.
    pub(crate) bytes: usize,
    /// Identifies the content of the header.
    pub(crate) fingerprint: u64,
    pub(crate) user: User,
    pub(crate) principal: Principal,
}

impl Header {
    pub(crate) const NONE: Self = Self {
        bytes: 0,
        fingerprint: 0,
        user: User::NOBODY,
        principal: Principal::Anonymous,
    };

    /// The header of a record, which was decoded up to its arguments.
    pub(crate) fn of(record: &[u8], call: &Call<'_>, bytes: usize) -> Self {
        Self {
            bytes,
            fingerprint: fingerprint(0, &record[XID_BYTES..bytes]),
            user: User::of(&call.credential),
            principal: Principal::of(&call.credential),
        }
    }
}

/// The latest valid header of a connection's calls. A client sends the same bytes with every call of
/// a user.
#[derive(Debug)]
pub struct Caller {
    /// The bytes between the identifier and the arguments.
    bytes: Vec<u8>,
    header: Header,
}

impl Default for Caller {
    fn default() -> Self {
        Self {
            bytes: Vec::with_capacity(HEADER_KEPT_BYTES_MAX),
            header: Header::NONE,
        }
    }
}

impl Caller {
    /// The identifier and the header of a record, if the header is that of the call before.
    #[inline]
    pub(crate) fn recognize(&self, record: &[u8]) -> Option<(u32, &Header)> {
        let (xid, rest) = record.split_first_chunk::<XID_BYTES>()?;
        let is_same = !self.bytes.is_empty() && rest.starts_with(&self.bytes);
        is_same.then(|| (u32::from_be_bytes(*xid), &self.header))
    }

    /// Keeps the header of a record, unless it is long.
    pub(crate) fn learn(&mut self, record: &[u8], header: &Header) {
        let range: Range<usize> = XID_BYTES..header.bytes;
        self.bytes.clear();
        if range.len() <= HEADER_KEPT_BYTES_MAX {
            self.bytes.extend_from_slice(&record[range]);
            self.header = *header;
        }
    }
}
