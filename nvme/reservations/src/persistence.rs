//! The stored form of the state: a header, the registrants and a checksum.
//!
//! The same bytes serve power loss and the hand-over to another process. After a power loss, the
//! caller calls [`Reservations::apply_power_loss`] on the decoded state, which drops what does not
//! persist. All integers are little-endian.

use bitfield_struct::bitfield;
use crc_fast::crc32_iscsi;
use nvme_spec::command::reservation::ReservationType;
use nvme_spec::{U32, U64};
use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::host::HostIdentifier;
use crate::kind::ReservationKind;
use crate::state::{PersistenceSupport, REGISTRANTS_MAX, Registrant, Reservations};

/// First bytes of a stored state.
const MAGIC: [u8; 8] = *b"NVMeResv";

/// Version of the stored form that [`encode`] writes and [`decode`] reads.
pub const VERSION: u32 = 1;

/// Size of the longest stored state, in bytes.
pub const ENCODED_BYTES_MAX: usize =
    size_of::<Header>() + REGISTRANTS_MAX * size_of::<StoredRegistrant>() + size_of::<Checksum>();

/// The identity of the namespace that the state belongs to: its NGUID or UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NamespaceIdentity(pub [u8; 16]);

/// Reasons for which stored bytes are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RestoreError {
    /// The bytes end before the state does.
    #[error("the stored reservations are truncated: {found} of at least {expected} bytes")]
    Truncated {
        /// Least number of bytes of the state.
        expected: usize,
        /// Number of bytes.
        found: usize,
    },
    /// More bytes follow the state.
    #[error("the stored reservations have {found} bytes instead of {expected}")]
    TrailingBytes {
        /// Number of bytes of the state.
        expected: usize,
        /// Number of bytes.
        found: usize,
    },
    /// The bytes are something else.
    #[error("the bytes are not stored reservations: they do not begin with \"NVMeResv\"")]
    WrongMagic,
    /// Another version wrote the state.
    #[error("the stored reservations have version {0}, but only version {VERSION} can be read")]
    UnknownVersion(u32),
    /// The state has more registrants than a namespace can have.
    #[error("the stored reservations have {0} registrants, but at most {REGISTRANTS_MAX} can be")]
    TooManyRegistrants(u32),
    /// The bytes are damaged.
    #[error(
        "the stored reservations are damaged: the checksum is {found:#010x}, not {expected:#010x}"
    )]
    WrongChecksum {
        /// Checksum of the bytes.
        expected: u32,
        /// Stored checksum.
        found: u32,
    },
    /// The state belongs to another namespace.
    #[error("the stored reservations belong to another namespace, with the identity {0:02x?}")]
    OtherNamespace([u8; 16]),
    /// A bit or byte that this version does not use is set.
    #[error("the stored reservations have a reserved bit or byte that is not zero")]
    ReservedNotZero,
    /// A registrant has no host identifier.
    #[error("the stored registrant {0} has the host identifier zero")]
    ZeroHost(usize),
    /// A host is registered twice.
    #[error("the stored host {0} is registered twice")]
    DuplicateHost(HostIdentifier),
    /// The type of the reservation is reserved.
    #[error("the stored reservation has the unknown type {0:#x}")]
    UnknownType(u8),
    /// A holder is stored without a reservation, or for a type whose registrants are all holders.
    #[error("the stored reservation has the holder {0}, but its type has no single holder")]
    UnexpectedHolder(HostIdentifier),
    /// A reservation is stored whose holder is not a registrant.
    #[error("the stored holder {0} is not registered")]
    HolderNotRegistered(HostIdentifier),
    /// A reservation of all registrants is stored without registrants.
    #[error("the stored reservation is of all registrants, but no host is registered")]
    NoHolder,
}

/// Flags of a stored state.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct Flags {
    /// The Persist Through Power Loss state.
    persists: bool,
    #[bits(7)]
    reserved: u8,
}

/// Header of a stored state. [`StoredRegistrant`]s and a [`Checksum`] follow it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U32,
    registrants: U32,
    identity: [u8; 16],
    /// The only holder; zero if there is none.
    holder: [u8; 16],
    generation: U32,
    rtype: ReservationType,
    flags: Flags,
    reserved: [u8; 10],
}
const _: () = assert!(size_of::<Header>() == 64);

/// A registrant of a stored state.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct StoredRegistrant {
    host: [u8; 16],
    key: U64,
}
const _: () = assert!(size_of::<StoredRegistrant>() == 24);

/// CRC32C of all bytes before it.
type Checksum = U32;

/// Replaces the content of `bytes` with the stored form of `reservations`. Does not allocate if
/// the capacity of `bytes` is at least [`ENCODED_BYTES_MAX`].
pub fn encode(reservations: &Reservations, identity: NamespaceIdentity, bytes: &mut Vec<u8>) {
    let header = Header {
        magic: MAGIC,
        version: U32::new(VERSION),
        registrants: U32::new(reservations.registrants().len() as u32),
        identity: identity.0,
        holder: reservations.holder().map_or([0; 16], |holder| holder.0),
        generation: U32::new(reservations.generation()),
        rtype: reservations
            .reservation()
            .map_or(ReservationType::NONE, ReservationKind::wire),
        flags: Flags::new().with_persists(reservations.persists()),
        reserved: [0; 10],
    };
    bytes.clear();
    bytes.extend_from_slice(header.as_bytes());
    for registrant in reservations.registrants() {
        let stored = StoredRegistrant {
            host: registrant.host.0,
            key: U64::new(registrant.key),
        };
        bytes.extend_from_slice(stored.as_bytes());
    }
    let checksum = Checksum::new(crc32_iscsi(bytes));
    bytes.extend_from_slice(checksum.as_bytes());
}

/// Reads the stored form of the namespace `identity`. The state supports persistence.
///
/// # Errors
///
/// The first reason for which the bytes are refused; no part of them is used then.
pub fn decode(bytes: &[u8], identity: NamespaceIdentity) -> Result<Reservations, RestoreError> {
    let (header, registrants) = parts(bytes)?;
    if header.identity != identity.0 {
        return Err(RestoreError::OtherNamespace(header.identity));
    }
    if header.flags.reserved() != 0 || header.reserved != [0; 10] {
        return Err(RestoreError::ReservedNotZero);
    }
    let mut state = Reservations::new(PersistenceSupport::Supported);
    for (position, stored) in registrants.iter().enumerate() {
        let host = HostIdentifier(stored.host);
        if host.is_zero() {
            return Err(RestoreError::ZeroHost(position));
        }
        if state.registrant(host).is_some() {
            return Err(RestoreError::DuplicateHost(host));
        }
        let key = stored.key.get();
        let added = state.add(Registrant { host, key });
        added.expect("the number of registrants is checked");
    }
    restore_reservation(&mut state, header)?;
    state.set_generation(header.generation.get());
    state.set_persists(header.flags.persists());
    Ok(state)
}

/// Restores the reservation, whose holder must be a registrant of `state`.
fn restore_reservation(state: &mut Reservations, header: &Header) -> Result<(), RestoreError> {
    let holder = HostIdentifier(header.holder);
    let kind = match header.rtype {
        ReservationType::NONE => None,
        rtype => {
            let kind = ReservationKind::from_wire(rtype);
            Some(kind.ok_or(RestoreError::UnknownType(rtype.0))?)
        }
    };
    match kind {
        Some(kind) if !kind.is_all_registrants() => {
            if state.registrant(holder).is_none() {
                return Err(RestoreError::HolderNotRegistered(holder));
            }
            state.reserve(kind, holder);
        }
        _ if !holder.is_zero() => return Err(RestoreError::UnexpectedHolder(holder)),
        Some(kind) => {
            let first = state.registrants().first().ok_or(RestoreError::NoHolder)?;
            state.reserve(kind, first.host);
        }
        None => {}
    }
    Ok(())
}

/// Checks the form of stored bytes, and returns their header and registrants.
fn parts(bytes: &[u8]) -> Result<(&Header, &[StoredRegistrant]), RestoreError> {
    let truncated = |expected| RestoreError::Truncated {
        expected,
        found: bytes.len(),
    };
    let least = size_of::<Header>() + size_of::<Checksum>();
    let (header, rest) = Header::ref_from_prefix(bytes).map_err(|_| truncated(least))?;
    if header.magic != MAGIC {
        return Err(RestoreError::WrongMagic);
    }
    if header.version.get() != VERSION {
        return Err(RestoreError::UnknownVersion(header.version.get()));
    }
    let count = header.registrants.get();
    if count as usize > REGISTRANTS_MAX {
        return Err(RestoreError::TooManyRegistrants(count));
    }
    let expected = least + count as usize * size_of::<StoredRegistrant>();
    if bytes.len() > expected {
        return Err(RestoreError::TrailingBytes {
            expected,
            found: bytes.len(),
        });
    }
    let (registrants, rest) =
        <[StoredRegistrant]>::ref_from_prefix_with_elems(rest, count as usize)
            .map_err(|_| truncated(expected))?;
    let found = Checksum::read_from_bytes(rest).map_err(|_| truncated(expected))?;
    let found = found.get();
    let expected = crc32_iscsi(&bytes[..expected - size_of::<Checksum>()]);
    if found != expected {
        return Err(RestoreError::WrongChecksum { expected, found });
    }
    Ok((header, registrants))
}

#[cfg(test)]
mod tests;
