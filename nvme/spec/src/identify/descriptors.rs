//! Namespace identification descriptors, CNS 03h (Base 2.1 §5.1.13.2.3).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::IDENTIFY_BYTES;
use crate::command::CommandSet;

open_enum! {
    /// Namespace Identifier Type (Base 2.1 §5.1.13.2.3, NIDT).
    pub struct NamespaceIdType(u8) {
        EUI64 = 1, "EUI-64";
        NGUID = 2, "NGUID";
        UUID = 3, "UUID";
        CSI = 4, "command set identifier";
    }
}

/// Header of each identifier.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DescriptorHeader {
    nidt: NamespaceIdType,
    nidl: u8,
    reserved2: [u8; 2],
}
const _: () = assert!(size_of::<DescriptorHeader>() == 4);

/// An identifier of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceId {
    /// IEEE Extended Unique Identifier, big-endian as published.
    Eui64([u8; 8]),
    /// Namespace Globally Unique Identifier.
    Nguid([u8; 16]),
    /// UUID (RFC 9562 byte order).
    Uuid([u8; 16]),
    /// The namespace's I/O command set.
    CommandSet(CommandSet),
}

impl NamespaceId {
    const fn id_type(&self) -> NamespaceIdType {
        match self {
            Self::Eui64(_) => NamespaceIdType::EUI64,
            Self::Nguid(_) => NamespaceIdType::NGUID,
            Self::Uuid(_) => NamespaceIdType::UUID,
            Self::CommandSet(_) => NamespaceIdType::CSI,
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Eui64(eui64) => eui64,
            Self::Nguid(id) | Self::Uuid(id) => id,
            Self::CommandSet(csi) => csi.as_bytes(),
        }
    }
}

/// An iterator over the identifiers of a descriptor list.
///
/// Ends at NIDL = 0 or at a descriptor that does not fit. Skips descriptors of unknown type, or
/// with a wrong length for their type.
#[derive(Clone, Debug)]
pub struct NamespaceIds<'a> {
    rest: &'a [u8],
}

impl<'a> NamespaceIds<'a> {
    /// Reads the data of Identify with CNS 03h.
    pub const fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }

    fn descriptor(&mut self) -> Option<(NamespaceIdType, &'a [u8])> {
        let (header, rest) = DescriptorHeader::read_from_prefix(self.rest).ok()?;
        if header.nidl == 0 {
            return None;
        }
        let (id, rest) = rest.split_at_checked(usize::from(header.nidl))?;
        self.rest = rest;
        Some((header.nidt, id))
    }
}

impl Iterator for NamespaceIds<'_> {
    type Item = NamespaceId;

    fn next(&mut self) -> Option<NamespaceId> {
        loop {
            let (nidt, id) = self.descriptor()?;
            let known = match (nidt, id) {
                (NamespaceIdType::EUI64, id) => id.try_into().ok().map(NamespaceId::Eui64),
                (NamespaceIdType::NGUID, id) => id.try_into().ok().map(NamespaceId::Nguid),
                (NamespaceIdType::UUID, id) => id.try_into().ok().map(NamespaceId::Uuid),
                (NamespaceIdType::CSI, [csi]) => Some(NamespaceId::CommandSet(CommandSet(*csi))),
                _ => None,
            };
            if known.is_some() {
                return known;
            }
        }
    }
}

/// The descriptors of a namespace do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorsFull;

/// Writes a descriptor list into a 4096-byte page.
#[derive(Debug)]
pub struct NamespaceIdWriter<'a> {
    page: &'a mut [u8; IDENTIFY_BYTES],
    used: usize,
}

impl<'a> NamespaceIdWriter<'a> {
    /// Zeroes the page, so that the list ends after the identifiers that are pushed.
    pub fn new(page: &'a mut [u8; IDENTIFY_BYTES]) -> Self {
        page.fill(0);
        Self { page, used: 0 }
    }

    /// Appends an identifier; fails if there is no room for it.
    pub fn push(&mut self, id: &NamespaceId) -> Result<(), DescriptorsFull> {
        let bytes = id.bytes();
        let header = DescriptorHeader {
            nidt: id.id_type(),
            nidl: bytes.len() as u8,
            reserved2: [0; 2],
        };
        let room = self.page.get_mut(self.used..).ok_or(DescriptorsFull)?;
        let header = header.as_bytes();
        let (room, _) = room
            .split_at_mut_checked(header.len() + bytes.len())
            .ok_or(DescriptorsFull)?;
        let (header_room, id_room) = room.split_at_mut(header.len());
        header_room.copy_from_slice(header);
        id_room.copy_from_slice(bytes);
        self.used += header.len() + bytes.len();
        Ok(())
    }
}
