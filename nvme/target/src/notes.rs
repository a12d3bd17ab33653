//! What a core notes down about commands in its reactor's flight recorder, and how to read it.

use nvme_spec::Status;
use nvme_spec::status::StatusCodeType;
use reactors::recorder::{Note, NoteKind};

use crate::stages::Measured;

/// A moment in the life of a command. Its argument holds the subsystem (10 bits), what the command
/// is measured as (2 bits) and a detail (12 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Moment {
    /// It came. Noted down afterwards, for a command that would have been served in one turn.
    Came = NoteKind::FIRST_FREE.0,
    /// It came and has to wait for a buffer.
    AwaitsBuffer,
    /// Its data is on its way from the host.
    Fetches,
    /// It goes to the device that the detail names by its place in the target's list.
    InDevice,
    /// It ends with the error that the detail names; its answer may yet have to be sent.
    Failed,
    /// It is done; its answer waits for the network.
    Done,
    /// Its whole answer was handed to the network in this turn.
    Sent,
    /// It came, was executed and was answered, all in this turn.
    Served,
    /// Everything that was sent since the last such moment has left by now. Of no command.
    TurnEnded,
    /// A command on an admin queue came, with the opcode that the detail names.
    Admin,
}

impl Moment {
    const ALL: [Self; 10] = [
        Self::Came,
        Self::AwaitsBuffer,
        Self::Fetches,
        Self::InDevice,
        Self::Failed,
        Self::Done,
        Self::Sent,
        Self::Served,
        Self::TurnEnded,
        Self::Admin,
    ];

    pub(crate) const fn kind(self) -> NoteKind {
        NoteKind(self as u8)
    }

    /// The note of this moment of a command. What the command's identifier, operation and detail
    /// are must be said before.
    #[inline]
    #[must_use]
    pub const fn of(self, command: CommandNote) -> Note {
        command.0.with_kind(self.kind())
    }

    /// The same note, of this moment instead of another.
    pub(crate) const fn instead(self, note: Note) -> Note {
        Note::new(self.kind(), note.argument(), note.queue(), note.command())
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

/// A command, as notes name it. The command identifier is unique among those that a queue has at
/// once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandNote(Note);

impl CommandNote {
    /// Of the queue in `slot` of its core, for the subsystem in a slot.
    #[must_use]
    pub const fn of_queue(subsystem: u32, slot: u32) -> Self {
        let argument = subsystem << SUBSYSTEM_SHIFT;
        // A core has far fewer queues than 2^16.
        Self(Note::new(NoteKind(0), argument, slot as u16, 0))
    }

    /// The same with its operation, which must not be set yet.
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

    /// The same with a detail, which must not be set yet.
    #[inline]
    #[must_use]
    pub const fn with_detail(self, detail: u16) -> Self {
        Self(self.0.with_argument(detail as u32 & DETAIL_MASK))
    }

    /// The same with its identifier, which must not be set yet.
    #[inline]
    #[must_use]
    pub const fn with_command(self, command: u16) -> Self {
        Self(self.0.with_command(command))
    }

    /// A command by the argument of its note alone.
    pub(crate) const fn of_argument(argument: u32) -> Self {
        Self(Note::new(NoteKind(0), argument, 0, 0))
    }

    /// What a note says of a command, if it is about one, or about the end of a turn.
    #[must_use]
    pub fn read(note: Note) -> Option<(Moment, Self)> {
        let moment = Moment::ALL
            .into_iter()
            .find(|moment| moment.kind() == note.kind())?;
        Some((moment, Self(note)))
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

    /// As what it is measured; `None` for commands that are neither reads nor writes.
    #[must_use]
    pub const fn measured(self) -> Option<Measured> {
        match self.0.argument() >> OPERATION_SHIFT & OPERATION_MASK {
            READ => Some(Measured::Read),
            WRITE => Some(Measured::Write),
            _ => None,
        }
    }

    /// Of [`Moment::InDevice`] the device, of [`Moment::Admin`] the opcode.
    #[must_use]
    pub const fn detail(self) -> u16 {
        (self.0.argument() & DETAIL_MASK) as u16
    }

    /// Of [`Moment::Failed`]: the status, without its flags.
    #[must_use]
    pub const fn status(self) -> Status {
        status_of_key(self.detail())
    }
}

/// Type and code of a status (Base 2.1 §4.2.3) in 11 bits, as a detail and as a key of tables.
pub(crate) const fn status_key(status: Status) -> u16 {
    (status.sct().0 as u16) << 8 | status.sc() as u16
}

/// The status of a key.
pub(crate) const fn status_of_key(key: u16) -> Status {
    Status::new(StatusCodeType((key >> 8) as u8), key as u8)
}
