//! Identify data structures (Base 2.1 §5.1.13, NVM 1.1 §4.1.5): 4096-byte pages viewed in place.
//!
//! [`crate::command::Cns`] selects the structure.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::command::CommandSet;
use crate::{U16, U32, U64};

mod controller;
mod descriptors;
mod namespace;

pub use controller::*;
pub use descriptors::*;
pub use namespace::*;

/// Size of every Identify data structure, bytes.
pub const IDENTIFY_BYTES: usize = 4096;

/// Namespace identifiers in one list.
pub const NAMESPACE_LIST_ENTRIES: usize = 1024;

/// A Namespace List, 4096 bytes (Base 2.1 §4.6.2): ascending identifiers, terminated by zero.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct NamespaceList {
    /// Namespace identifiers.
    pub entries: [U32; NAMESPACE_LIST_ENTRIES],
}
const _: () = assert!(size_of::<NamespaceList>() == IDENTIFY_BYTES);

impl NamespaceList {
    /// The identifiers before the terminating zero.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.entries
            .iter()
            .map(|nsid| nsid.get())
            .take_while(|nsid| *nsid != 0)
    }

    /// Overwrites the list with at most 1024 identifiers and zeroes the rest.
    pub fn fill(&mut self, nsids: impl IntoIterator<Item = u32>) {
        let mut nsids = nsids.into_iter();
        for entry in &mut self.entries {
            *entry = U32::new(nsids.next().unwrap_or(0));
        }
    }
}

/// Controller identifiers in one list.
pub const CONTROLLER_LIST_ENTRIES: usize = 2047;

/// A Controller List, 4096 bytes (Base 2.1 §4.6.1).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ControllerList {
    /// Number of Identifiers.
    pub count: U16,
    /// Controller identifiers, ascending.
    pub entries: [U16; CONTROLLER_LIST_ENTRIES],
}
const _: () = assert!(size_of::<ControllerList>() == IDENTIFY_BYTES);

impl ControllerList {
    /// The identifiers; a count that exceeds the list is limited.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.entries
            .iter()
            .take(usize::from(self.count.get()))
            .map(|cntlid| cntlid.get())
    }

    /// Overwrites the list with at most 2047 identifiers and zeroes the rest.
    pub fn fill(&mut self, cntlids: impl IntoIterator<Item = u16>) {
        let mut cntlids = cntlids.into_iter();
        let mut count = 0;
        for entry in &mut self.entries {
            let cntlid = cntlids.next();
            count += u16::from(cntlid.is_some());
            *entry = U16::new(cntlid.unwrap_or(0));
        }
        self.count = U16::new(count);
    }
}

/// I/O command sets in one combination.
const COMMAND_SETS_MAX: u8 = 64;

/// I/O Command Set data structure, 4096 bytes, CNS 1Ch (Base 2.1 §5.1.13.2).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct CommandSetCombinations {
    /// Combinations that may be enabled together: bit n is the command set with identifier n.
    pub vectors: [CommandSetVector; 512],
}
const _: () = assert!(size_of::<CommandSetCombinations>() == IDENTIFY_BYTES);

/// One combination of I/O command sets.
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
#[repr(transparent)]
pub struct CommandSetVector(pub U64);
const _: () = assert!(size_of::<CommandSetVector>() == 8);

impl CommandSetVector {
    /// The combination with one more command set; identifiers above 63 have no bit and are ignored.
    pub const fn with(self, csi: CommandSet) -> Self {
        if csi.0 < COMMAND_SETS_MAX {
            Self(U64::new(self.0.get() | 1 << csi.0))
        } else {
            self
        }
    }

    /// Whether a command set is part of the combination.
    pub const fn contains(self, csi: CommandSet) -> bool {
        csi.0 < COMMAND_SETS_MAX && self.0.get() & 1 << csi.0 != 0
    }
}

/// Implements `Default` as all zero for pages whose arrays are too long for the derive.
macro_rules! zero_default {
    ($($page:ty),* $(,)?) => {$(
        impl Default for $page {
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }
    )*};
}
pub(crate) use zero_default;

zero_default!(NamespaceList, ControllerList, CommandSetCombinations);
