//! Reservation Register (Base 2.1 §7.6, §8.1.22.3 and §8.1.22.4).

use nvme_spec::Status;
use nvme_spec::command::reservation::{
    PersistChange, RegisterAction, RegisterControl, RegisterData,
};
use nvme_spec::log::ReservationNotificationType;

use crate::host::HostIdentifier;
use crate::kind::ReservationKind;
use crate::outcome::Outcome;
use crate::state::{Registrant, Reservations};

impl Reservations {
    /// Applies Reservation Register of `host`.
    ///
    /// # Errors
    ///
    /// The status with which the command completes; the state is unchanged.
    /// - Host Identifier Not Initialized: the host identifier is zero.
    /// - Invalid Field in Command: a reserved action or CPTPL, or a state that cannot persist.
    /// - Reservation Conflict: a wrong key, or the host is not registered.
    /// - Internal Error: [`REGISTRANTS_MAX`](crate::REGISTRANTS_MAX) hosts are registered.
    pub fn register(
        &mut self,
        host: HostIdentifier,
        control: RegisterControl,
        data: &RegisterData,
    ) -> Result<Outcome, Status> {
        host.check()?;
        let persists = match control.cptpl() {
            PersistChange::NO_CHANGE => self.persists(),
            PersistChange::CLEAR => false,
            PersistChange::SET => true,
            _ => return Err(Status::INVALID_FIELD),
        };
        self.check_persistence(control.cptpl() == PersistChange::SET)?;
        let new_key = data.nrkey.get();
        let current_key = (!control.ignore_existing_key()).then_some(data.crkey.get());
        let mut outcome = match control.action() {
            // IEKEY does not apply to this action.
            RegisterAction::REGISTER => self.register_key(host, new_key)?,
            RegisterAction::UNREGISTER => self.unregister_host(host, current_key)?,
            RegisterAction::REPLACE => self.replace(host, current_key, new_key)?,
            _ => return Err(Status::INVALID_FIELD),
        };
        outcome.persist = persists || self.persists();
        self.set_persists(persists);
        self.increment_generation();
        Ok(outcome)
    }

    /// Registers a host, which may repeat the registration with the same key.
    fn register_key(&mut self, host: HostIdentifier, key: u64) -> Result<Outcome, Status> {
        match self.registrant(host) {
            None => self.add_host(host, key),
            Some(registrant) if registrant.key == key => Ok(Outcome::default()),
            Some(_) => Err(Status::RESERVATION_CONFLICT),
        }
    }

    /// Replaces the key of a host; `current_key` is `None` if IEKEY is set, which also registers a
    /// host that is not registered.
    fn replace(
        &mut self,
        host: HostIdentifier,
        current_key: Option<u64>,
        new_key: u64,
    ) -> Result<Outcome, Status> {
        match current_key {
            Some(key) => self.check_key(host, key)?,
            None if self.registrant(host).is_none() => return self.add_host(host, new_key),
            None => {}
        }
        self.replace_key(host, new_key);
        Ok(Outcome::default())
    }

    fn add_host(&mut self, host: HostIdentifier, key: u64) -> Result<Outcome, Status> {
        self.add(Registrant { host, key })?;
        Ok(Outcome {
            access_changed: true,
            ..Outcome::default()
        })
    }

    /// Unregisters a host; `current_key` is `None` if IEKEY is set.
    fn unregister_host(
        &mut self,
        host: HostIdentifier,
        current_key: Option<u64>,
    ) -> Result<Outcome, Status> {
        match current_key {
            Some(key) => self.check_key(host, key)?,
            // With IEKEY, the absence of a key is not an error (Base 2.1 §7.6, IEKEY).
            None if self.registrant(host).is_none() => return Ok(Outcome::default()),
            None => {}
        }
        let released = self.remove(|registrant| registrant.host == host);
        let mut outcome = Outcome {
            access_changed: true,
            ..Outcome::default()
        };
        // An All Registrants reservation is released with its last registrant, and then no
        // registrant is left to be notified.
        if released.is_some_and(ReservationKind::is_registrants_only) {
            outcome.notify(
                self.others(host),
                ReservationNotificationType::RESERVATION_RELEASED,
            );
        }
        Ok(outcome)
    }
}
