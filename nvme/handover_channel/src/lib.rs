//! The channel between the process that hands over and the one that continues (`ARCHITECTURE.md`
//! §9.1): a Unix stream socket that carries a state with its descriptors, and the answers.
//!
//! ```text
//! message: kind, number of descriptors, length, descriptors, body
//! ```
//!
//! Descriptors pass by SCM_RIGHTS, each group with one byte. Both processes have the descriptors then;
//! the protocol decides which one uses them. All functions block, up to the time limit of the
//! channel.

#![forbid(unsafe_code)]

mod stored;

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use stored::{Left, StoreError, TakeError, store, take};

/// Descriptors of one state at most.
pub const DESCRIPTORS_MAX: usize = 1 << 17;
/// Bytes of the body of a message at most.
pub const BODY_BYTES_MAX: usize = 256 << 20;
/// Bytes of the reason of a refusal at most.
pub const REASON_BYTES_MAX: usize = 4096;

/// Descriptors of one group; the kernel passes 253 at once (SCM_MAX_FD).
const GROUP_MAX: usize = 250;
/// The byte that carries a group.
const GROUP: u8 = 0xFD;

const _: () = assert!(BODY_BYTES_MAX <= u32::MAX as usize);
const _: () = assert!(DESCRIPTORS_MAX <= u32::MAX as usize);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    kind: U32,
    descriptors: U32,
    bytes: U32,
}
const _: () = assert!(size_of::<Header>() == 12);

const STATE: u32 = 1;
const RESTORED: u32 = 2;
const REFUSED: u32 = 3;
const SERVE: u32 = 4;
const STARTED: u32 = 5;

/// A message that was received.
#[derive(Debug)]
pub enum Message {
    /// From the new process, first: how the old one knows it, which is not its parent.
    Started {
        /// Its process identifier.
        pid: u32,
        /// A descriptor of it (pidfd_open(2)).
        process: OwnedFd,
    },
    /// From the old process: its state, and the descriptors that belong to it.
    State {
        /// The stored form.
        bytes: Vec<u8>,
        /// The descriptors, in the order in which they were sent.
        descriptors: Vec<OwnedFd>,
    },
    /// From the new process: everything is restored, and it waits.
    Restored,
    /// From the new process: it cannot continue the state, and ends. The old process continues.
    Refused(String),
    /// From the old process: it no longer uses the descriptors, and the new one serves.
    Serve,
}

/// The reason for which a message was not sent or received. The hand-over ends with it.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The socket failed, or the other process did nothing within the time limit.
    #[error("the channel to the other process: {0}")]
    Socket(#[from] io::Error),
    /// The other process has closed the channel.
    #[error("the other process has ended")]
    Closed,
    /// A message has more than its limit.
    #[error("a message has {found} {what}, more than {limit}")]
    TooLong {
        /// What exceeds the limit.
        what: &'static str,
        /// The number.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// The other process sent something else than a message.
    #[error("the other process sent an invalid message: {0}")]
    Invalid(&'static str),
}

/// One end of a channel.
#[derive(Debug)]
pub struct Channel {
    socket: UnixStream,
}

impl Channel {
    /// A channel over a connected socket. `limit` is the longest wait for each part of a message.
    ///
    /// # Errors
    /// The system's, if the limit cannot be set.
    pub fn new(socket: UnixStream, limit: Duration) -> io::Result<Self> {
        socket.set_nonblocking(false)?;
        let channel = Self { socket };
        channel.set_limit(limit)?;
        Ok(channel)
    }

    /// Sets the longest wait for each part of a message.
    ///
    /// # Errors
    /// The system's.
    pub fn set_limit(&self, limit: Duration) -> io::Result<()> {
        self.socket.set_read_timeout(Some(limit))?;
        self.socket.set_write_timeout(Some(limit))
    }

    /// Reports the process that uses this end.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn send_started(&self, pid: u32, process: BorrowedFd<'_>) -> Result<(), ChannelError> {
        self.send(STARTED, U32::new(pid).as_bytes(), &[process])
    }

    /// Sends a state with its descriptors.
    ///
    /// # Errors
    /// [`ChannelError`]: the other process has not got the state.
    pub fn send_state(
        &self,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        self.send(STATE, bytes, descriptors)
    }

    /// Reports that the state is restored.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn send_restored(&self) -> Result<(), ChannelError> {
        self.send(RESTORED, &[], &[])
    }

    /// Refuses the state, with a reason for the operator, which is truncated to its limit.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn send_refused(&self, reason: &str) -> Result<(), ChannelError> {
        let end = reason.floor_char_boundary(REASON_BYTES_MAX);
        self.send(REFUSED, &reason.as_bytes()[..end], &[])
    }

    /// Lets the new process serve.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub fn send_serve(&self) -> Result<(), ChannelError> {
        self.send(SERVE, &[], &[])
    }

    fn send(
        &self,
        kind: u32,
        bytes: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        check_limit("bytes", bytes.len(), BODY_BYTES_MAX)?;
        check_limit("descriptors", descriptors.len(), DESCRIPTORS_MAX)?;
        let header = Header {
            kind: U32::new(kind),
            // Not truncated: at most their limits.
            descriptors: U32::new(descriptors.len() as u32),
            bytes: U32::new(bytes.len() as u32),
        };
        let mut socket = &self.socket;
        socket.write_all(header.as_bytes())?;
        for group in descriptors.chunks(GROUP_MAX) {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GROUP_MAX))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            let has_room = control.push(SendAncillaryMessage::ScmRights(group));
            assert!(has_room, "there is space for a group");
            let marker = [IoSlice::new(&[GROUP])];
            let flags = SendFlags::NOSIGNAL;
            let sent = retry_on_intr(|| sendmsg(&self.socket, &marker, &mut control, flags));
            sent.map_err(io::Error::from)?;
        }
        socket.write_all(bytes)?;
        Ok(())
    }

    /// Waits for the next message. What it allocates is bounded by what was received.
    ///
    /// # Errors
    /// [`ChannelError`]; descriptors that were received are closed.
    pub fn receive(&self) -> Result<Message, ChannelError> {
        let mut header = Header::new_zeroed();
        self.fill(header.as_mut_bytes())?;
        let (count, length) = (
            header.descriptors.get() as usize,
            header.bytes.get() as usize,
        );
        let (count_max, length_max) = match header.kind.get() {
            STATE => (DESCRIPTORS_MAX, BODY_BYTES_MAX),
            STARTED => (1, size_of::<U32>()),
            REFUSED => (0, REASON_BYTES_MAX),
            RESTORED | SERVE => (0, 0),
            _ => return Err(ChannelError::Invalid("an unknown kind")),
        };
        check_limit("descriptors", count, count_max)?;
        check_limit("bytes", length, length_max)?;
        let mut descriptors = Vec::new();
        while descriptors.len() < count {
            self.receive_group(count - descriptors.len(), &mut descriptors)?;
        }
        let mut bytes = Vec::new();
        (&self.socket).take(length as u64).read_to_end(&mut bytes)?;
        if bytes.len() < length {
            return Err(ChannelError::Closed);
        }
        Ok(match header.kind.get() {
            STATE => Message::State { bytes, descriptors },
            STARTED => {
                let pid = U32::read_from_bytes(&bytes).map(U32::get);
                let (Ok(pid), Some(process)) = (pid, descriptors.pop()) else {
                    return Err(ChannelError::Invalid("a process without a descriptor"));
                };
                Message::Started { pid, process }
            }
            RESTORED => Message::Restored,
            REFUSED => Message::Refused(String::from_utf8_lossy(&bytes).into_owned()),
            _ => Message::Serve,
        })
    }

    fn fill(&self, bytes: &mut [u8]) -> Result<(), ChannelError> {
        match (&self.socket).read_exact(bytes) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(ChannelError::Closed),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives one group of the `left` descriptors that are expected.
    fn receive_group(
        &self,
        left: usize,
        descriptors: &mut Vec<OwnedFd>,
    ) -> Result<(), ChannelError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GROUP_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut marker = [0];
        let mut buffers = [IoSliceMut::new(&mut marker)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received =
            retry_on_intr(|| recvmsg(self.socket.as_fd(), &mut buffers, &mut control, flags));
        let received = received.map_err(io::Error::from)?;
        let mut group = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                group.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Err(ChannelError::Closed);
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            let problem = "descriptors were lost; the limit of open files is too low";
            return Err(ChannelError::Invalid(problem));
        }
        if marker != [GROUP] || group.len() != left.min(GROUP_MAX) {
            return Err(ChannelError::Invalid(
                "a group of descriptors is incomplete",
            ));
        }
        descriptors.append(&mut group);
        Ok(())
    }
}

fn check_limit(what: &'static str, found: usize, limit: usize) -> Result<(), ChannelError> {
    match found > limit {
        true => Err(ChannelError::TooLong { what, found, limit }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
