//! The commands that a host may execute while a reservation is held.

use bitfield_struct::bitfield;
use nvme_spec::command::reservation::AcquireAction;
use nvme_spec::command::{AdminOpcode, IoOpcode};

use crate::kind::ReservationKind;

/// What a host is to the reservation of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The host holds the reservation, alone or with all registrants.
    Holder,
    /// The host is registered and does not hold the reservation.
    Registrant,
    /// The host is not registered.
    NonRegistrant,
}

/// A group of commands that the specification treats alike (Base 2.1 §8.1.22.1). The group "all
/// other commands" is always allowed and has no value here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommandGroup {
    /// Commands that read: Read, Compare, Verify, Security Receive, and the sources of Copy.
    Read,
    /// Commands that change data or the namespace: Write, Write Zeroes, Write Uncorrectable,
    /// Dataset Management, Flush, the destination of Copy, and the admin commands Format NVM,
    /// Sanitize, Security Send, and Capacity and Namespace Management.
    Write,
    /// Reservation Acquire with the action Acquire.
    Acquire,
    /// Reservation Acquire with a preempt action, and Reservation Release.
    PreemptOrRelease,
}

/// A set of command groups: those that a host may execute, or those that a command belongs to.
///
/// A command may execute if the host's set contains the command's set. A host's set changes only
/// with the state, so the check of a command is one mask and one comparison. A host with the set
/// [`Permissions::ALL`] needs no check.
#[bitfield(u16)]
#[derive(PartialEq, Eq, Hash)]
pub struct Permissions {
    /// [`CommandGroup::Read`].
    pub read: bool,
    /// [`CommandGroup::Write`].
    pub write: bool,
    /// [`CommandGroup::Acquire`].
    pub acquire: bool,
    /// [`CommandGroup::PreemptOrRelease`].
    pub preempt_or_release: bool,
    #[bits(12)]
    __: u16,
}

/// One row of the specification's table: whether a group is allowed for a host that is not
/// registered and for a registrant, by the class of the reservation.
struct Row {
    group: CommandGroup,
    write_exclusive: Allowed,
    exclusive_access: Allowed,
    /// Write Exclusive for registrants: Registrants Only and All Registrants.
    write_registrants: Allowed,
    /// Exclusive Access for registrants: Registrants Only and All Registrants.
    access_registrants: Allowed,
}

struct Allowed {
    non_registrant: bool,
    registrant: bool,
}

const NEITHER: Allowed = Allowed {
    non_registrant: false,
    registrant: false,
};
const REGISTRANT: Allowed = Allowed {
    non_registrant: false,
    registrant: true,
};
const BOTH: Allowed = Allowed {
    non_registrant: true,
    registrant: true,
};

/// Command behavior in the presence of a reservation (Base 2.1 §8.1.22.1). Holders are not in the
/// table, because no command of a holder conflicts.
const TABLE: [Row; 4] = [
    Row {
        group: CommandGroup::Read,
        write_exclusive: BOTH,
        exclusive_access: NEITHER,
        write_registrants: BOTH,
        access_registrants: REGISTRANT,
    },
    Row {
        group: CommandGroup::Write,
        write_exclusive: NEITHER,
        exclusive_access: NEITHER,
        write_registrants: REGISTRANT,
        access_registrants: REGISTRANT,
    },
    Row {
        group: CommandGroup::Acquire,
        write_exclusive: NEITHER,
        exclusive_access: NEITHER,
        write_registrants: NEITHER,
        access_registrants: NEITHER,
    },
    Row {
        group: CommandGroup::PreemptOrRelease,
        write_exclusive: REGISTRANT,
        exclusive_access: REGISTRANT,
        write_registrants: REGISTRANT,
        access_registrants: REGISTRANT,
    },
];

impl Row {
    fn allows(&self, kind: ReservationKind, is_registrant: bool) -> bool {
        let allowed = match kind {
            ReservationKind::WriteExclusive => &self.write_exclusive,
            ReservationKind::ExclusiveAccess => &self.exclusive_access,
            ReservationKind::WriteExclusiveRegistrantsOnly
            | ReservationKind::WriteExclusiveAllRegistrants => &self.write_registrants,
            ReservationKind::ExclusiveAccessRegistrantsOnly
            | ReservationKind::ExclusiveAccessAllRegistrants => &self.access_registrants,
        };
        if is_registrant {
            allowed.registrant
        } else {
            allowed.non_registrant
        }
    }
}

impl Permissions {
    /// No group.
    pub const NONE: Self = Self::new();

    /// Every group.
    pub const ALL: Self = Self::new()
        .with_read(true)
        .with_write(true)
        .with_acquire(true)
        .with_preempt_or_release(true);

    /// The groups that a host with `role` may execute while `reservation` is held. Without a
    /// reservation no command conflicts; the reservation commands still check registration and key.
    #[must_use]
    pub fn of(reservation: Option<ReservationKind>, role: Role) -> Self {
        let Some(kind) = reservation else {
            return Self::ALL;
        };
        let is_registrant = match role {
            Role::Holder => return Self::ALL,
            Role::Registrant => true,
            Role::NonRegistrant => false,
        };
        let allowed = TABLE.iter().filter(|row| row.allows(kind, is_registrant));
        allowed.fold(Self::NONE, |sum, row| sum.with(row.group))
    }

    /// The set with `group` added.
    #[must_use]
    pub const fn with(self, group: CommandGroup) -> Self {
        match group {
            CommandGroup::Read => self.with_read(true),
            CommandGroup::Write => self.with_write(true),
            CommandGroup::Acquire => self.with_acquire(true),
            CommandGroup::PreemptOrRelease => self.with_preempt_or_release(true),
        }
    }

    /// Whether the set contains every group of `command`.
    #[must_use]
    pub const fn contains(self, command: Self) -> bool {
        self.into_bits() & command.into_bits() == command.into_bits()
    }

    /// The groups of an I/O command (NVM 1.1 §3.3, Base 2.1 §8.1.22.1).
    ///
    /// Copy reads and writes, as its sources and its destination are the same namespace. A fused
    /// operation is two commands, each with its own group. Reservation Acquire depends on its
    /// action; see [`Self::acquire_command`].
    #[must_use]
    pub const fn io_command(opcode: IoOpcode) -> Self {
        const READ: Permissions = Permissions::NONE.with(CommandGroup::Read);
        const WRITE: Permissions = Permissions::NONE.with(CommandGroup::Write);
        match opcode {
            IoOpcode::READ | IoOpcode::COMPARE | IoOpcode::VERIFY => READ,
            IoOpcode::WRITE
            | IoOpcode::WRITE_ZEROES
            | IoOpcode::WRITE_UNCORRECTABLE
            | IoOpcode::DATASET_MANAGEMENT
            | IoOpcode::FLUSH => WRITE,
            IoOpcode::COPY => READ.with(CommandGroup::Write),
            IoOpcode::RESERVATION_RELEASE => Self::NONE.with(CommandGroup::PreemptOrRelease),
            _ => Self::NONE,
        }
    }

    /// The groups of an admin command (Base 2.1 §8.1.22.1).
    #[must_use]
    pub const fn admin_command(opcode: AdminOpcode) -> Self {
        match opcode {
            AdminOpcode::SECURITY_RECEIVE => Self::NONE.with(CommandGroup::Read),
            AdminOpcode::CAPACITY_MANAGEMENT
            | AdminOpcode::FORMAT_NVM
            | AdminOpcode::NAMESPACE_ATTACHMENT
            | AdminOpcode::NAMESPACE_MANAGEMENT
            | AdminOpcode::SANITIZE
            | AdminOpcode::SECURITY_SEND => Self::NONE.with(CommandGroup::Write),
            _ => Self::NONE,
        }
    }

    /// The groups of Reservation Acquire with `action`. [`Reservations::acquire`] decides the same
    /// conflicts from the state, so a caller need not check these groups first.
    ///
    /// [`Reservations::acquire`]: crate::Reservations::acquire
    #[must_use]
    pub const fn acquire_command(action: AcquireAction) -> Self {
        match action {
            AcquireAction::ACQUIRE => Self::NONE.with(CommandGroup::Acquire),
            AcquireAction::PREEMPT | AcquireAction::PREEMPT_AND_ABORT => {
                Self::NONE.with(CommandGroup::PreemptOrRelease)
            }
            _ => Self::NONE,
        }
    }
}

#[cfg(test)]
mod tests;
