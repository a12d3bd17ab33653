//! Trace events of commands in the reactor's flight recorder, and how to read them.

use nvme_spec::Status;
use nvme_spec::status::StatusCodeType;
use reactors::recorder::{TraceRecord, TraceRecordKind};

use crate::stages::Measured;

/// A trace event of a command. Its argument holds the subsystem (10 bits), the measured operation
/// (2 bits) and a detail (12 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TraceEvent {
    /// The command was received. Recorded afterwards, for a command that completed inline but whose
    /// response could not be sent in the same turn.
    Received = TraceRecordKind::FIRST_FREE.0,
    /// The command was received and waits for a buffer.
    AwaitsBuffer,
    /// The transport fetches its data from the host.
    Fetches,
    /// It is submitted to the device whose index is the detail.
    InDevice,
    /// It ends with the error in the detail; its response may still have to be sent.
    Failed,
    /// It is complete; its response waits to be sent.
    Completed,
    /// Its whole response was passed to the network in this turn.
    Sent,
    /// It was received, executed and completed in this turn.
    CompletedInline,
    /// All responses since the last such event have been sent. Belongs to no command.
    TurnEnded,
    /// A command on an admin queue was received; the detail is its opcode.
    Admin,
}

impl TraceEvent {
    const ALL: [Self; 10] = [
        Self::Received,
        Self::AwaitsBuffer,
        Self::Fetches,
        Self::InDevice,
        Self::Failed,
        Self::Completed,
        Self::Sent,
        Self::CompletedInline,
        Self::TurnEnded,
        Self::Admin,
    ];

    pub(crate) const fn kind(self) -> TraceRecordKind {
        TraceRecordKind(self as u8)
    }

    /// The record of this event for a command, whose identifier, operation and detail must be set.
    #[inline]
    #[must_use]
    pub const fn of(self, command: CommandTrace) -> TraceRecord {
        command.0.with_kind(self.kind())
    }

    /// The same record with this event instead of another.
    pub(crate) const fn replacing(self, note: TraceRecord) -> TraceRecord {
        TraceRecord::new(self.kind(), note.argument(), note.queue(), note.command())
    }
}

const SUBSYSTEM_SHIFT: u32 = 14;
const OPERATION_SHIFT: u32 = 12;
const OPERATION_MASK: u32 = 0b11;
const DETAIL_MASK: u32 = 0xFFF;
const READ: u32 = 1;
const WRITE: u32 = 2;

const _: () = assert!(crate::config::SUBSYSTEMS_MAX <= 1 << (24 - SUBSYSTEM_SHIFT));
const _: () = assert!(crate::config::DEVICES_MAX <= DETAIL_MASK as usize);

/// A command as trace events identify it. The command identifier is unique among the outstanding
/// commands of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandTrace(TraceRecord);

impl CommandTrace {
    /// A command of the queue in the core's slot `slot`, for the subsystem in the slot `subsystem`.
    #[must_use]
    pub const fn of_queue(subsystem: u32, slot: u32) -> Self {
        let argument = subsystem << SUBSYSTEM_SHIFT;
        // A core has far fewer queues than 2^16.
        Self(TraceRecord::new(
            TraceRecordKind(0),
            argument,
            slot as u16,
            0,
        ))
    }

    /// Sets the operation, which must not be set yet.
    #[inline]
    #[must_use]
    pub const fn with_operation(self, measured: Option<Measured>) -> Self {
        let operation = match measured {
            None => 0,
            Some(Measured::Read) => READ,
            Some(Measured::Write) => WRITE,
        };
        Self(self.0.with_argument(operation << OPERATION_SHIFT))
    }

    /// Sets the detail, which must not be set yet.
    #[inline]
    #[must_use]
    pub const fn with_detail(self, detail: u16) -> Self {
        Self(self.0.with_argument(detail as u32 & DETAIL_MASK))
    }

    /// Sets the command identifier, which must not be set yet.
    #[inline]
    #[must_use]
    pub const fn with_command(self, command: u16) -> Self {
        Self(self.0.with_command(command))
    }

    /// A command from the argument of its record alone.
    pub(crate) const fn of_argument(argument: u32) -> Self {
        Self(TraceRecord::new(TraceRecordKind(0), argument, 0, 0))
    }

    /// Reads a record of a command or of the end of a turn; `None` for other records.
    #[must_use]
    pub fn read(note: TraceRecord) -> Option<(TraceEvent, Self)> {
        let event = TraceEvent::ALL
            .into_iter()
            .find(|event| event.kind() == note.kind())?;
        Some((event, Self(note)))
    }

    /// The slot of the command's queue in its core.
    #[must_use]
    pub const fn queue(self) -> u16 {
        self.0.queue()
    }

    /// The command identifier.
    #[must_use]
    pub const fn command_id(self) -> u16 {
        self.0.command()
    }

    /// The slot of its subsystem.
    #[must_use]
    pub const fn subsystem(self) -> u32 {
        self.0.argument() >> SUBSYSTEM_SHIFT
    }

    /// The operation as which it is measured; `None` for commands that are neither reads nor
    /// writes.
    #[must_use]
    pub const fn measured(self) -> Option<Measured> {
        match self.0.argument() >> OPERATION_SHIFT & OPERATION_MASK {
            READ => Some(Measured::Read),
            WRITE => Some(Measured::Write),
            _ => None,
        }
    }

    /// The device index of [`TraceEvent::InDevice`], or the opcode of [`TraceEvent::Admin`].
    #[must_use]
    pub const fn detail(self) -> u16 {
        (self.0.argument() & DETAIL_MASK) as u16
    }

    /// The status of [`TraceEvent::Failed`], without its flags.
    #[must_use]
    pub const fn status(self) -> Status {
        status_of_key(self.detail())
    }
}

/// Type and code of a status (Base 2.1 §4.2.3) in 11 bits, for details and table keys.
pub(crate) const fn status_key(status: Status) -> u16 {
    (status.sct().0 as u16) << 8 | status.sc() as u16
}

/// The status from a key.
pub(crate) const fn status_of_key(key: u16) -> Status {
    Status::new(StatusCodeType((key >> 8) as u8), key as u8)
}
