//! Reservation Acquire (Base 2.1 §7.5, §8.1.22.5 and §8.1.22.7).

use nvme_spec::Status;
use nvme_spec::command::reservation::{AcquireAction, AcquireControl, AcquireData};
use nvme_spec::log::ReservationNotificationType;

use crate::host::HostIdentifier;
use crate::kind::ReservationKind;
use crate::outcome::Outcome;
use crate::state::{Registrant, Reservations};

/// What a preempt does, which depends on the reservation and on PRKEY.
enum Preemption {
    /// Unregisters the other hosts with the key, and replaces the reservation.
    TakeFromKey(u64),
    /// Unregisters all other hosts, and replaces the reservation.
    TakeFromAll,
    /// Unregisters every host with the key, the preempting host included.
    Unregister(u64),
}

impl Preemption {
    fn unregisters(&self, registrant: &Registrant, preempting: HostIdentifier) -> bool {
        match *self {
            Self::TakeFromKey(key) => registrant.host != preempting && registrant.key == key,
            Self::TakeFromAll => registrant.host != preempting,
            Self::Unregister(key) => registrant.key == key,
        }
    }
}

impl Reservations {
    /// Applies Reservation Acquire of `host`.
    ///
    /// # Errors
    ///
    /// The status with which the command completes; the state is unchanged.
    /// - Host Identifier Not Initialized: the host identifier is zero.
    /// - Invalid Field in Command: a reserved action or type, IEKEY, or a preempt with a PRKEY of
    ///   zero, which is not the holder's key, of a reservation with one holder.
    /// - Reservation Conflict: a wrong key, a host that is not registered, another reservation, or
    ///   a preempt of an All Registrants reservation with a key that no registrant has.
    pub fn acquire(
        &mut self,
        host: HostIdentifier,
        control: AcquireControl,
        data: &AcquireData,
    ) -> Result<Outcome, Status> {
        host.check()?;
        let kind = ReservationKind::from_wire(control.rtype()).ok_or(Status::INVALID_FIELD)?;
        if control.ignore_existing_key() {
            return Err(Status::INVALID_FIELD);
        }
        let key = data.crkey.get();
        match control.action() {
            AcquireAction::ACQUIRE => {
                self.check_key(host, key)?;
                self.acquire_free(host, kind)
            }
            AcquireAction::PREEMPT => {
                self.check_key(host, key)?;
                self.preempt(host, kind, data.prkey.get())
            }
            AcquireAction::PREEMPT_AND_ABORT => {
                self.check_key(host, key)?;
                let mut outcome = self.preempt(host, kind, data.prkey.get())?;
                // The hosts that lost their registration or reservation are those notified of it.
                let preempted = outcome.notifications.iter().filter(|notification| {
                    notification.kind == ReservationNotificationType::REGISTRATION_PREEMPTED
                });
                outcome.abort = preempted.map(|notification| notification.host).collect();
                Ok(outcome)
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// Acquires a reservation if none is held. A holder may repeat it with the same type.
    fn acquire_free(
        &mut self,
        host: HostIdentifier,
        kind: ReservationKind,
    ) -> Result<Outcome, Status> {
        match self.held() {
            None => {
                self.reserve(kind, host);
                Ok(self.access_change())
            }
            Some(held) if held.is_held_by(host) && held.kind == kind => Ok(Outcome::default()),
            Some(_) => Err(Status::RESERVATION_CONFLICT),
        }
    }

    fn preempt(
        &mut self,
        host: HostIdentifier,
        kind: ReservationKind,
        preempt_key: u64,
    ) -> Result<Outcome, Status> {
        let preemption = self.preemption(preempt_key)?;
        let selects = |it: &Registrant| preemption.unregisters(it, host);
        let mut outcome = self.access_change();
        let preempted = self.registrants().iter().filter(|&it| selects(it));
        let preempted = preempted.map(|it| it.host).filter(|&it| it != host);
        outcome.notify(
            preempted,
            ReservationNotificationType::REGISTRATION_PREEMPTED,
        );
        let kind_before = self.reservation();
        self.remove(selects);
        if let Preemption::TakeFromKey(_) | Preemption::TakeFromAll = preemption {
            self.reserve(kind, host);
        }
        if kind_before != self.reservation() {
            outcome.notify(
                self.others(host),
                ReservationNotificationType::RESERVATION_RELEASED,
            );
        }
        self.increment_generation();
        Ok(outcome)
    }

    /// Selects what a preempt with the key `preempt_key` does.
    fn preemption(&self, preempt_key: u64) -> Result<Preemption, Status> {
        let Some(held) = self.held() else {
            return Ok(Preemption::Unregister(preempt_key));
        };
        let has_key = |it: &Registrant| it.key == preempt_key;
        match held.holder.and_then(|holder| self.registrant(holder)) {
            // The holder may have the key zero, so this comparison comes first.
            Some(holder) if has_key(holder) => Ok(Preemption::TakeFromKey(preempt_key)),
            Some(_) if preempt_key == 0 => Err(Status::INVALID_FIELD),
            Some(_) => Ok(Preemption::Unregister(preempt_key)),
            None if preempt_key == 0 => Ok(Preemption::TakeFromAll),
            None if self.registrants().iter().any(has_key) => {
                Ok(Preemption::Unregister(preempt_key))
            }
            None => Err(Status::RESERVATION_CONFLICT),
        }
    }
}
