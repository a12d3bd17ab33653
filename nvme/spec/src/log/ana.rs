//! Asymmetric Namespace Access log, LID 0Ch (Base 2.1 §5.1.12.1.13): a header, then for each group
//! a descriptor and its namespace identifiers.

use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{U16, U32, U64};

/// Log Specific Parameter of Get Log Page for the ANA log.
#[bitfield(u8)]
#[derive(PartialEq, Eq)]
pub struct AnaLogParameter {
    /// Return Groups Only: no namespace identifiers.
    pub rgo: bool,
    #[bits(7)]
    __: u8,
}

/// Header of the log, 16 bytes.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct AnaHeader {
    /// Change Count.
    pub chgcnt: U64,
    /// Number of ANA Group Descriptors.
    pub ngrps: U16,
    reserved10: [u8; 6],
}
const _: () = assert!(size_of::<AnaHeader>() == 16);

impl AnaHeader {
    /// Creates a header.
    pub const fn new(chgcnt: u64, ngrps: u16) -> Self {
        Self {
            chgcnt: U64::new(chgcnt),
            ngrps: U16::new(ngrps),
            reserved10: [0; 6],
        }
    }
}

open_enum! {
    /// Asymmetric Namespace Access State (Base 2.1 §8.1.1).
    pub struct AnaState(u8) {
        OPTIMIZED = 0x1, "optimized";
        NON_OPTIMIZED = 0x2, "non-optimized";
        INACCESSIBLE = 0x3, "inaccessible";
        PERSISTENT_LOSS = 0x4, "persistent loss";
        CHANGE = 0xf, "change";
    }
}

/// State byte of a descriptor.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct AnaStateField {
    /// The state.
    #[bits(4)]
    pub state: AnaState,
    #[bits(4)]
    __: u8,
}
const _: () = assert!(size_of::<AnaStateField>() == 1);

/// ANA Group Descriptor, 32 bytes; `nnsids` identifiers of 4 bytes follow it.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct AnaGroupDescriptor {
    /// ANA Group ID.
    pub grpid: U32,
    /// Number of NSID Values.
    pub nnsids: U32,
    /// Change Count of the group; 0 if not reported.
    pub chgcnt: U64,
    /// State.
    pub state: AnaStateField,
    reserved17: [u8; 15],
}
const _: () = assert!(size_of::<AnaGroupDescriptor>() == 32);

impl AnaGroupDescriptor {
    /// A descriptor of a group, to be followed by `nnsids` identifiers.
    pub const fn new(grpid: u32, nnsids: u32, chgcnt: u64, state: AnaState) -> Self {
        Self {
            grpid: U32::new(grpid),
            nnsids: U32::new(nnsids),
            chgcnt: U64::new(chgcnt),
            state: AnaStateField::new().with_state(state),
            reserved17: [0; 15],
        }
    }
}

/// An iterator over the groups of an ANA log; ends at a descriptor or identifiers that do not fit.
#[derive(Clone, Debug)]
pub struct AnaGroups<'a> {
    rest: &'a [u8],
    left: u16,
}

impl<'a> AnaGroups<'a> {
    /// Reads a whole log; `None` if the header does not fit.
    pub fn new(log: &'a [u8]) -> Option<Self> {
        let (header, rest) = AnaHeader::read_from_prefix(log).ok()?;
        Some(Self {
            rest,
            left: header.ngrps.get(),
        })
    }
}

impl<'a> Iterator for AnaGroups<'a> {
    type Item = (AnaGroupDescriptor, &'a [U32]);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let (descriptor, rest) = AnaGroupDescriptor::read_from_prefix(self.rest).ok()?;
        let count = usize::try_from(descriptor.nnsids.get()).ok()?;
        let (nsids, rest) = <[U32]>::ref_from_prefix_with_elems(rest, count).ok()?;
        self.rest = rest;
        Some((descriptor, nsids))
    }
}
