//! The reservation commands: each function checks its command completely, then changes the state.
//!
//! Statuses are without flags. Every error is final until a host changes the state or the command,
//! so the caller sets Do Not Retry.

use nvme_spec::Status;

use crate::host::HostIdentifier;
use crate::outcome::Outcome;
use crate::state::{PersistenceSupport, Reservations};

mod acquire;
mod operator;
mod register;
mod release;

impl Reservations {
    /// Sets the Persist Through Power Loss state by the Reservation Persistence feature (Base
    /// 2.1 §5.1.25.1.30).
    ///
    /// # Errors
    ///
    /// Invalid Field in Command if the state cannot persist.
    pub fn set_persistence(&mut self, persists: bool) -> Result<Outcome, Status> {
        self.check_persistence(persists)?;
        let persist = self.persists() != persists;
        self.set_persists(persists);
        Ok(Outcome {
            persist,
            ..Outcome::default()
        })
    }

    /// Refuses a Persist Through Power Loss state that the namespace does not support.
    fn check_persistence(&self, persists: bool) -> Result<(), Status> {
        if persists && self.persistence_support() == PersistenceSupport::Unsupported {
            return Err(Status::INVALID_FIELD);
        }
        Ok(())
    }

    /// The outcome of a change of the hosts' access.
    fn access_change(&self) -> Outcome {
        Outcome {
            persist: self.persists(),
            access_changed: true,
            ..Outcome::default()
        }
    }

    /// Refuses a host that is not registered or whose current key is not `key` (Base 2.1
    /// §8.1.22.5, §8.1.22.6, §8.1.22.7 and §8.1.22.8).
    fn check_key(&self, host: HostIdentifier, key: u64) -> Result<(), Status> {
        match self.registrant(host) {
            Some(registrant) if registrant.key == key => Ok(()),
            _ => Err(Status::RESERVATION_CONFLICT),
        }
    }
}

#[cfg(test)]
mod tests;
