//! A state that waits for the next process in one descriptor, such as in the descriptor store of
//! systemd.
//!
//! The descriptor is a Unix stream socket whose queue has one message of the
//! [channel](crate::Channel): the descriptors that are passed, after a memory file with everything
//! else. The message can be received once, so at most one process continues the state. When the
//! last copy of the descriptor is closed, the kernel closes all that are in its queue.
//!
//! ```text
//! memory file: header, identity of each descriptor, offer, state, CRC32C of all bytes before it
//! ```

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{BODY_BYTES_MAX, Channel, ChannelError, DESCRIPTORS_MAX, Message};

const MAGIC: [u8; 8] = *b"NVMeStor";
/// Version of the layout. The offer and the state have versions of their own.
const VERSION: u32 = 1;
/// Limit for writing to the queue, and for reading from it: nothing has to be waited for.
const QUEUE_TIME_MAX: Duration = Duration::from_secs(1);
/// The memory file cannot be changed any more.
const SEALS: SealFlags = SealFlags::WRITE
    .union(SealFlags::SHRINK)
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U32,
    /// Descriptors of the offer, then of the state.
    descriptors: [U32; 2],
    /// Bytes of the offer, then of the state.
    bytes: [U64; 2],
}
const _: () = assert!(size_of::<Header>() == 36);

/// Device and inode (fstat(2)) of what a descriptor refers to.
#[derive(
    Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Debug,
)]
#[repr(C)]
struct Identity {
    device: U64,
    inode: U64,
}
const _: () = assert!(size_of::<Identity>() == 16);

/// CRC32C of all bytes before it.
type Checksum = U32;

const FILE_BYTES_MAX: usize = size_of::<Header>()
    + DESCRIPTORS_MAX * size_of::<Identity>()
    + 2 * BODY_BYTES_MAX
    + size_of::<Checksum>();

/// What a process leaves to the next one: the stored form of its offer and of its state, each with
/// its descriptors.
#[derive(Debug, Default)]
pub struct Left<D> {
    /// The offer.
    pub offer: Vec<u8>,
    /// Its descriptors.
    pub offered: Vec<D>,
    /// The state.
    pub state: Vec<u8>,
    /// Its descriptors.
    pub passed: Vec<D>,
}

impl<D: AsFd> Left<D> {
    fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.offered.iter().chain(&self.passed).map(D::as_fd)
    }
}

/// The reason for which nothing is stored.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The message cannot be written to the queue.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The memory file cannot be made.
    #[error("the memory file: {0}")]
    File(#[from] io::Error),
}

/// The reason for which a stored state is not continued. Its descriptors are closed.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// The message cannot be received.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The message is that of a running process, or something else.
    #[error("it does not begin with a memory file that has the stored form")]
    NotStored,
    /// The memory file cannot be read.
    #[error("its memory file: {0}")]
    File(#[from] io::Error),
    /// The memory file could have been changed since.
    #[error("its memory file is not sealed")]
    NotSealed,
    /// A later version wrote it.
    #[error(
        "it has layout version {0}, but this version of Windlass reads only {VERSION}: start a \
         later version"
    )]
    LaterVersion(u32),
    /// The memory file has another length than its header says.
    #[error("its memory file has {found} bytes instead of {wanted}")]
    Length {
        /// Bytes of the file.
        found: u64,
        /// Bytes that its header says.
        wanted: u64,
    },
    /// The bytes are damaged.
    #[error("its memory file is damaged: the checksum is {found:#010x}, not {expected:#010x}")]
    WrongChecksum {
        /// Checksum of the bytes.
        expected: u32,
        /// Stored checksum.
        found: u32,
    },
    /// Descriptors are missing, or there are too many.
    #[error("it has {found} descriptors instead of {wanted}")]
    Descriptors {
        /// Their number.
        found: usize,
        /// The number that the header says.
        wanted: usize,
    },
    /// A descriptor refers to something else than when it was stored.
    #[error("descriptor {0} refers to something else than when it was stored")]
    Foreign(usize),
}

/// Stores what a process leaves. The result, or a copy of it, is what [`take`] takes.
///
/// # Errors
/// The system's, such as too many descriptors for the queue of a socket.
pub fn store<D: AsFd>(left: &Left<D>) -> Result<OwnedFd, StoreError> {
    let file = written(left)?;
    let mut descriptors = vec![file.as_fd()];
    descriptors.extend(left.descriptors());
    let (own, stored) = UnixStream::pair()?;
    Channel::new(own, QUEUE_TIME_MAX)?.send_state(&[], &descriptors)?;
    Ok(stored.into())
}

/// The memory file of what is left.
fn written<D: AsFd>(left: &Left<D>) -> io::Result<File> {
    let file = memfd_create("state", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(file);
    // Not truncated: the channel and the format limit them.
    let header = Header {
        magic: MAGIC,
        version: U32::new(VERSION),
        descriptors: [&left.offered, &left.passed].map(|it| U32::new(it.len() as u32)),
        bytes: [&left.offer, &left.state].map(|it| U64::new(it.len() as u64)),
    };
    let mut bytes = header.as_bytes().to_vec();
    for descriptor in left.descriptors() {
        bytes.extend_from_slice(identity(descriptor)?.as_bytes());
    }
    bytes.extend_from_slice(&left.offer);
    bytes.extend_from_slice(&left.state);
    let checksum = Checksum::new(crc_fast::crc32_iscsi(&bytes));
    bytes.extend_from_slice(checksum.as_bytes());
    ftruncate(&file, bytes.len() as u64)?;
    file.write_all(&bytes)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file)
}

fn identity(descriptor: BorrowedFd<'_>) -> io::Result<Identity> {
    let found = fstat(descriptor)?;
    Ok(Identity {
        device: U64::new(found.st_dev),
        inode: U64::new(found.st_ino),
    })
}

/// Takes what an earlier process has [stored](store).
///
/// # Errors
/// [`TakeError`]: it was taken before, or it is not complete and unchanged.
pub fn take(stored: UnixStream) -> Result<Left<OwnedFd>, TakeError> {
    let channel = Channel::new(stored, QUEUE_TIME_MAX)?;
    let Message::State { bytes, descriptors } = channel.receive()? else {
        return Err(TakeError::NotStored);
    };
    let mut descriptors = descriptors.into_iter();
    let file = descriptors.next().filter(|_| bytes.is_empty());
    let bytes = read(&File::from(file.ok_or(TakeError::NotStored)?))?;
    let (header, rest) = Header::ref_from_prefix(&bytes).map_err(|_| TakeError::NotStored)?;
    if header.magic != MAGIC {
        return Err(TakeError::NotStored);
    }
    if header.version.get() != VERSION {
        return Err(TakeError::LaterVersion(header.version.get()));
    }
    let [offered, passed] = header.descriptors.map(|it| u64::from(it.get()));
    let identities = (offered + passed) * size_of::<Identity>() as u64;
    let parts = [identities, header.bytes[0].get(), header.bytes[1].get()];
    let wanted = parts.iter().fold(
        (size_of::<Header>() + size_of::<Checksum>()) as u64,
        |sum, it| sum.saturating_add(*it),
    );
    let found = bytes.len() as u64;
    if found != wanted {
        return Err(TakeError::Length { found, wanted });
    }
    check_sum(&bytes)?;
    // Not truncated: their sum is that of a file in memory.
    let [identities, offer, state] = parts.map(|it| it as usize);
    let (identities, rest) = rest.split_at(identities);
    let descriptors: Vec<OwnedFd> = descriptors.collect();
    check_descriptors(identities, &descriptors)?;
    let mut offered: Vec<OwnedFd> = descriptors;
    let passed = offered.split_off(header.descriptors[0].get() as usize);
    Ok(Left {
        offer: rest[..offer].to_vec(),
        offered,
        state: rest[offer..offer + state].to_vec(),
        passed,
    })
}

/// The bytes of a memory file that cannot change.
fn read(file: &File) -> Result<Vec<u8>, TakeError> {
    // Only memory files have seals.
    let seals = fcntl_get_seals(file).map_err(|_| TakeError::NotStored)?;
    if !seals.contains(SEALS) {
        return Err(TakeError::NotSealed);
    }
    let found = file.metadata()?.len();
    let length = usize::try_from(found).unwrap_or(usize::MAX);
    if length > FILE_BYTES_MAX {
        let wanted = FILE_BYTES_MAX as u64;
        return Err(TakeError::Length { found, wanted });
    }
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn check_sum(bytes: &[u8]) -> Result<(), TakeError> {
    let stored = Checksum::ref_from_suffix(bytes);
    let (checked, stored) = stored.map_err(|_| TakeError::NotStored)?;
    let (expected, found) = (crc_fast::crc32_iscsi(checked), stored.get());
    match expected == found {
        true => Ok(()),
        false => Err(TakeError::WrongChecksum { expected, found }),
    }
}

fn check_descriptors(identities: &[u8], descriptors: &[OwnedFd]) -> Result<(), TakeError> {
    let wanted = identities.len() / size_of::<Identity>();
    let found = descriptors.len();
    if found != wanted {
        return Err(TakeError::Descriptors { found, wanted });
    }
    let wanted = identities.chunks(size_of::<Identity>());
    for (number, (descriptor, wanted)) in descriptors.iter().zip(wanted).enumerate() {
        if identity(descriptor.as_fd())?.as_bytes() != wanted {
            return Err(TakeError::Foreign(number));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
