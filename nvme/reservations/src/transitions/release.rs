//! Reservation Release (Base 2.1 §7.7, §8.1.22.6 and §8.1.22.8).

use nvme_spec::Status;
use nvme_spec::command::reservation::{ReleaseAction, ReleaseControl};
use nvme_spec::log::ReservationNotificationType;

use crate::host::HostIdentifier;
use crate::kind::ReservationKind;
use crate::outcome::Outcome;
use crate::state::Reservations;

impl Reservations {
    /// Applies Reservation Release of `host`; `current_key` is the CRKEY of its data.
    ///
    /// # Errors
    ///
    /// The status with which the command completes; the state is unchanged.
    /// - Host Identifier Not Initialized: the host identifier is zero.
    /// - Invalid Field in Command: a reserved action or type, IEKEY, or a type that is not that of
    ///   the reservation that the host holds.
    /// - Reservation Conflict: a wrong key, or the host is not registered.
    pub fn release(
        &mut self,
        host: HostIdentifier,
        control: ReleaseControl,
        current_key: u64,
    ) -> Result<Outcome, Status> {
        host.check()?;
        if control.ignore_existing_key() {
            return Err(Status::INVALID_FIELD);
        }
        match control.action() {
            ReleaseAction::RELEASE => {
                let kind = ReservationKind::from_wire(control.rtype());
                let kind = kind.ok_or(Status::INVALID_FIELD)?;
                self.check_key(host, current_key)?;
                self.release_held(host, kind)
            }
            // Clear does not use the type.
            ReleaseAction::CLEAR => {
                self.check_key(host, current_key)?;
                Ok(self.clear(host))
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Releases the reservation if `host` holds it. The command of another registrant succeeds and
    /// has no effect.
    fn release_held(
        &mut self,
        host: HostIdentifier,
        kind: ReservationKind,
    ) -> Result<Outcome, Status> {
        let Some(held) = self.held().filter(|held| held.is_held_by(host)) else {
            return Ok(Outcome::default());
        };
        if held.kind != kind {
            return Err(Status::INVALID_FIELD);
        }
        self.end_reservation();
        let mut outcome = self.access_change();
        // The release of a Write Exclusive or Exclusive Access reservation notifies no host.
        if kind.is_registrants_only() || kind.is_all_registrants() {
            outcome.notify(
                self.others(host),
                ReservationNotificationType::RESERVATION_RELEASED,
            );
        }
        Ok(outcome)
    }

    /// Releases the reservation and unregisters all hosts.
    fn clear(&mut self, host: HostIdentifier) -> Outcome {
        let mut outcome = self.access_change();
        outcome.notify(
            self.others(host),
            ReservationNotificationType::RESERVATION_PREEMPTED,
        );
        self.remove(|_| true);
        self.increment_generation();
        outcome
    }
}
