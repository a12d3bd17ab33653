//! Reservations of one namespace (Base 2.1 §8.1.22): registrants, the reservation, the access of
//! hosts, Reservation Report, and the form in which the state is stored.
//!
//! Performs no I/O. [`Reservations`] applies Reservation Register, Acquire and Release, and returns
//! an [`Outcome`]: what the caller must do before and after it completes the command. The caller
//! finds the host of a command, keeps each host's [`Permissions`], stores the bytes of [`encode`],
//! creates Reservation Notification log pages, and aborts commands.
//!
//! # Storing before completing
//!
//! A state that persists must be stored before the command completes, and storing may fail. The
//! caller therefore keeps two values and applies a command to the copy:
//!
//! 1. `staged.clone_from(&current)`, which does not allocate;
//! 2. apply the command to `staged`; an error completes the command, and `current` stays;
//! 3. if [`Outcome::persist`] is set, store [`encode`] of `staged`; if that fails, the command
//!    fails, and `current` stays;
//! 4. swap the two, publish the permissions, notify, abort, and complete the command.
//!
//! The commands of a namespace are applied one after another: the next one waits while a state is
//! being stored.
//!
//! # Memory
//!
//! [`Reservations::new`] allocates room for [`REGISTRANTS_MAX`] registrants. After that, only the
//! lists of an [`Outcome`] allocate: at most [`REGISTRANTS_MAX`] entries each, and only if the
//! command has hosts to notify or commands to abort.

#![forbid(unsafe_code)]

mod access;
mod host;
mod kind;
mod outcome;
mod persistence;
mod report;
mod state;
#[cfg(test)]
mod testing;
mod transitions;

pub use access::{CommandGroup, Permissions, Role};
pub use host::HostIdentifier;
pub use kind::ReservationKind;
pub use outcome::{Notification, Outcome};
pub use persistence::{
    ENCODED_BYTES_MAX, NamespaceIdentity, RestoreError, VERSION, decode, encode,
};
pub use report::{HostIdentifierFormat, REPORT_BYTES_MAX, ReportLength};
pub use state::{PersistenceSupport, REGISTRANTS_MAX, Registrant, Reservations};
