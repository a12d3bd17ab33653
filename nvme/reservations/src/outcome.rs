//! What a reservation command requires of its caller.

use nvme_spec::log::ReservationNotificationType;

use crate::host::HostIdentifier;

/// A reservation notification, which occurs on every controller of one host (Base 2.1 §8.1.22.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The host whose controllers are notified.
    pub host: HostIdentifier,
    /// The type of the Reservation Notification log page.
    pub kind: ReservationNotificationType,
}

/// What the caller does for a command that succeeds. The command may complete after all of it.
#[must_use]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The state changed and must survive a power loss: store it before the command completes.
    pub persist: bool,
    /// The registrants, the reservation or its type changed: compute the permissions of all hosts
    /// again.
    pub access_changed: bool,
    /// Notifications, at most one for each host and none for the host of the command.
    pub notifications: Vec<Notification>,
    /// Hosts whose commands to the namespace must be aborted. The command completes when those
    /// commands have completed, aborted or not (Base 2.1 §8.1.22.7).
    pub abort: Vec<HostIdentifier>,
}

impl Outcome {
    /// Adds a notification of `kind` for each of `hosts`.
    pub(crate) fn notify(
        &mut self,
        hosts: impl Iterator<Item = HostIdentifier>,
        kind: ReservationNotificationType,
    ) {
        self.notifications
            .extend(hosts.map(|host| Notification { host, kind }));
    }
}
