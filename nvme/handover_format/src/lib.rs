//! The byte form of a target's state, which an earlier process writes and a later one reads.
//!
//! ```text
//! header: magic, version of this layout, number of records
//! record: kind, version, length, body     (repeated)
//! CRC32C of all bytes before it
//! ```
//!
//! A body is JSON. It is read and written once per hand-over, so its size matters less than that it
//! names its fields: a later version adds a field with a default and still reads earlier records,
//! an error names the field and its position, and an operator can read a state. Integers of 64 bits
//! are exact.
//!
//! Each kind of record has its own version. Every change of a record's fields increases it, and
//! `Record::read` converts earlier versions. A later version is refused, because a field that
//! this version ignores could change what hosts observe.

#![forbid(unsafe_code)]

use nvme_handover::{
    ControllerRecord, CoreRecord, QueueRecord, State, TargetRecord, TcpConnectionRecord,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Largest stored state in bytes.
pub const STATE_BYTES_MAX: usize = 256 << 20;

/// Largest body of a record in bytes.
pub const RECORD_BYTES_MAX: usize = 16 << 20;

const _: () = assert!(RECORD_BYTES_MAX < STATE_BYTES_MAX && STATE_BYTES_MAX <= u32::MAX as usize);

const MAGIC: [u8; 8] = *b"NVMeHand";
/// Version of the layout of header and records.
const VERSION: u32 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U32,
    records: U32,
}
const _: () = assert!(size_of::<Header>() == 16);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RecordHeader {
    kind: U16,
    version: U16,
    bytes: U32,
}
const _: () = assert!(size_of::<RecordHeader>() == 8);

/// CRC32C of all bytes before it.
type Checksum = U32;

/// The reason for which a state cannot be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The state is larger than the limit.
    #[error("the state has {found} bytes, more than {STATE_BYTES_MAX}: disconnect some hosts")]
    TooLong {
        /// Its size.
        found: usize,
    },
    /// A record is larger than the limit.
    #[error("a {name} record has {found} bytes, more than {RECORD_BYTES_MAX}")]
    RecordTooLong {
        /// The kind of the record.
        name: &'static str,
        /// Its size.
        found: usize,
    },
    /// The bytes end too early.
    #[error("the state is truncated: it has {found} bytes")]
    Truncated {
        /// Number of bytes.
        found: usize,
    },
    /// The bytes are something else.
    #[error("the bytes are not a state: they do not begin with \"NVMeHand\"")]
    WrongMagic,
    /// A later version wrote the state.
    #[error(
        "the state has layout version {0}, but this version of Windlass reads only {VERSION}: \
         start a later version"
    )]
    UnknownVersion(u32),
    /// The bytes are damaged.
    #[error("the state is damaged: the checksum is {found:#010x}, not {expected:#010x}")]
    WrongChecksum {
        /// Checksum of the bytes.
        expected: u32,
        /// Stored checksum.
        found: u32,
    },
    /// A later version wrote a kind of record that this version does not know.
    #[error("the state has records of the unknown kind {0}: start a later version")]
    UnknownKind(u16),
    /// A later version wrote a record.
    #[error(
        "the state has a {name} record of version {found}, but this version of Windlass reads at \
         most {known}: start a later version"
    )]
    LaterRecord {
        /// The kind of the record.
        name: &'static str,
        /// Its version.
        found: u16,
        /// The latest version that can be read.
        known: u16,
    },
    /// A record has the version 0, which no version of Windlass writes.
    #[error("the state has a {name} record of version 0: it is damaged")]
    VersionZero {
        /// The kind of the record.
        name: &'static str,
    },
    /// A record is malformed.
    #[error("{name} record {position} of the state is malformed: {source}")]
    Malformed {
        /// The kind of the record.
        name: &'static str,
        /// Its position among all records.
        position: usize,
        /// The first error.
        source: serde_json::Error,
    },
    /// The state has no target record, or more than one.
    #[error("the state has {0} target records instead of one")]
    TargetRecords(usize),
    /// Bytes follow the last record.
    #[error("the state has {0} bytes behind its last record")]
    TrailingBytes(usize),
}

/// A kind of record.
pub(crate) trait Record: Serialize + DeserializeOwned {
    /// Its number.
    const KIND: u16;
    /// Its name in errors.
    const NAME: &'static str;
    /// The version that this code writes, from 1.
    const VERSION: u16;

    /// Reads a body of this version or an earlier one. A record whose versions differ by more than
    /// fields with defaults implements this function.
    fn read(_version: u16, body: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(body)
    }
}

impl Record for TargetRecord {
    const KIND: u16 = 1;
    const NAME: &'static str = "target";
    const VERSION: u16 = 1;
}

impl Record for CoreRecord {
    const KIND: u16 = 2;
    const NAME: &'static str = "core";
    const VERSION: u16 = 1;
}

impl Record for ControllerRecord {
    const KIND: u16 = 3;
    const NAME: &'static str = "controller";
    const VERSION: u16 = 1;
}

impl Record for QueueRecord {
    const KIND: u16 = 4;
    const NAME: &'static str = "queue";
    const VERSION: u16 = 2;
}

impl Record for TcpConnectionRecord {
    const KIND: u16 = 5;
    const NAME: &'static str = "TCP connection";
    const VERSION: u16 = 1;
}

/// The stored form of a state.
///
/// # Errors
/// The state, or one of its records, exceeds its limit.
pub fn encode(state: &State) -> Result<Vec<u8>, FormatError> {
    let mut writer = Writer::default();
    writer.put(&state.target)?;
    for record in &state.cores {
        writer.put(record)?;
    }
    for record in &state.controllers {
        writer.put(record)?;
    }
    for record in &state.queues {
        writer.put(record)?;
    }
    for record in &state.tcp_connections {
        writer.put(record)?;
    }
    writer.finish()
}

/// Reads a stored state. What it allocates is bounded by a small multiple of the size of `bytes`.
///
/// # Errors
/// The first reason for which the bytes are refused; no part of them is used then.
pub fn decode(bytes: &[u8]) -> Result<State, FormatError> {
    let mut state = State::default();
    let mut targets = 0;
    let mut reader = Reader::new(bytes)?;
    while let Some(record) = reader.next()? {
        match record.kind {
            TargetRecord::KIND => {
                state.target = record.read()?;
                targets += 1;
            }
            CoreRecord::KIND => state.cores.push(record.read()?),
            ControllerRecord::KIND => state.controllers.push(record.read()?),
            QueueRecord::KIND => state.queues.push(record.read()?),
            TcpConnectionRecord::KIND => state.tcp_connections.push(record.read()?),
            kind => return Err(FormatError::UnknownKind(kind)),
        }
    }
    match targets {
        1 => Ok(state),
        count => Err(FormatError::TargetRecords(count)),
    }
}

/// Appends records.
#[derive(Default)]
struct Writer {
    records: Vec<u8>,
    count: u32,
}

impl Writer {
    fn put<R: Record>(&mut self, record: &R) -> Result<(), FormatError> {
        let body = serde_json::to_vec(record).expect("records have string keys only");
        if body.len() > RECORD_BYTES_MAX {
            let (name, found) = (R::NAME, body.len());
            return Err(FormatError::RecordTooLong { name, found });
        }
        let header = RecordHeader {
            kind: U16::new(R::KIND),
            version: U16::new(R::VERSION),
            // Not truncated: at most the limit.
            bytes: U32::new(body.len() as u32),
        };
        self.records.extend_from_slice(header.as_bytes());
        self.records.extend_from_slice(&body);
        self.count += 1;
        let found = self.bytes();
        if found > STATE_BYTES_MAX {
            return Err(FormatError::TooLong { found });
        }
        Ok(())
    }

    /// Size of the stored state in bytes.
    fn bytes(&self) -> usize {
        size_of::<Header>() + self.records.len() + size_of::<Checksum>()
    }

    fn finish(self) -> Result<Vec<u8>, FormatError> {
        let mut bytes = Vec::with_capacity(self.bytes());
        let header = Header {
            magic: MAGIC,
            version: U32::new(VERSION),
            records: U32::new(self.count),
        };
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&self.records);
        let checksum = Checksum::new(crc_fast::crc32_iscsi(&bytes));
        bytes.extend_from_slice(checksum.as_bytes());
        Ok(bytes)
    }
}

/// Reads records.
struct Reader<'a> {
    bytes: &'a [u8],
    total: usize,
    position: usize,
    left: u32,
}

/// A record whose body is not read yet.
struct StoredRecord<'a> {
    kind: u16,
    version: u16,
    position: usize,
    body: &'a [u8],
}

impl StoredRecord<'_> {
    fn read<R: Record>(&self) -> Result<R, FormatError> {
        if self.version > R::VERSION {
            return Err(FormatError::LaterRecord {
                name: R::NAME,
                found: self.version,
                known: R::VERSION,
            });
        }
        let name = R::NAME;
        if self.version == 0 {
            return Err(FormatError::VersionZero { name });
        }
        let found = self.body.len();
        if found > RECORD_BYTES_MAX {
            return Err(FormatError::RecordTooLong { name, found });
        }
        R::read(self.version, self.body).map_err(|source| FormatError::Malformed {
            name,
            position: self.position,
            source,
        })
    }
}

impl<'a> Reader<'a> {
    /// Checks everything but the records.
    fn new(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let found = bytes.len();
        if found > STATE_BYTES_MAX {
            return Err(FormatError::TooLong { found });
        }
        let truncated = FormatError::Truncated { found };
        let Ok((header, _)) = Header::ref_from_prefix(bytes) else {
            return Err(truncated);
        };
        if header.magic != MAGIC {
            return Err(FormatError::WrongMagic);
        }
        if header.version.get() != VERSION {
            return Err(FormatError::UnknownVersion(header.version.get()));
        }
        let Ok((checked, checksum)) = Checksum::ref_from_suffix(bytes) else {
            return Err(truncated);
        };
        let Some(records) = checked.get(size_of::<Header>()..) else {
            return Err(truncated);
        };
        let (expected, found) = (crc_fast::crc32_iscsi(checked), checksum.get());
        if expected != found {
            return Err(FormatError::WrongChecksum { expected, found });
        }
        Ok(Self {
            bytes: records,
            total: bytes.len(),
            position: 0,
            left: header.records.get(),
        })
    }

    fn next(&mut self) -> Result<Option<StoredRecord<'a>>, FormatError> {
        if self.left == 0 {
            return match self.bytes.len() {
                0 => Ok(None),
                trailing => Err(FormatError::TrailingBytes(trailing)),
            };
        }
        let truncated = || FormatError::Truncated { found: self.total };
        let (header, rest) = RecordHeader::ref_from_prefix(self.bytes).map_err(|_| truncated())?;
        let (body, rest) = rest
            .split_at_checked(header.bytes.get() as usize)
            .ok_or_else(truncated)?;
        let record = StoredRecord {
            kind: header.kind.get(),
            version: header.version.get(),
            position: self.position,
            body,
        };
        self.bytes = rest;
        self.left -= 1;
        self.position += 1;
        Ok(Some(record))
    }
}

#[cfg(test)]
mod tests;
