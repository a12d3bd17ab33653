//! A volume of files on one block device: names, attributes and extents in memory, and on durable
//! devices a redo log and checkpoints.
//!
//! Owns the metadata of the volume and their format on the device. It performs no I/O: the user
//! carries out [`DiskRequest`]s, returns their completions, and moves the data of files between its
//! own memory and the ranges of the device that [`Volume::read`] and [`Volume::write`] name.
//!
//! A change is applied in memory at once and returns a [`Ticket`]. It is *durable* when the ticket
//! is ([`Volume::progress`]); the user acknowledges it to its client only then. Changes become
//! durable in their order, and each as a whole.

#![forbid(unsafe_code)]

#[macro_use]
mod codec;

mod change;
mod check;
mod checksum;
mod error;
mod format;
mod layout;
pub mod limits;
mod log;
mod numbers;
mod open;
mod ranges;
mod space;
mod state;
mod volume;

pub use change::{Device, NewNode, SetAttributes, SetTime, Time};
pub use error::{Error, OpenError};
pub use format::{FormatOptions, Formatter};
pub use layout::{MEMORY_BYTES_MIN, Uuid, VolumeIdentity, device_bytes_min};
pub use log::{DiskCompletion, DiskRequest, Operation, RequestId};
pub use numbers::{NumberHasher, NumberMap, NumberSet};
pub use open::{Opener, Opening};
pub use state::{Attributes, Handle, InodeId, Kind, ShareId, ShareUse};
pub use volume::{
    Created, DirectoryEntry, FileView, MovePiece, NewObject, Progress, Range, Seek, Ticket,
    VolatileOptions, Volume, VolumeUse, WriteId, WritePlan, XattrMode,
};
