//! Fencing by an operator, which the specification does not define. The effects are those of
//! Preempt and Abort by a host that is not registered (Base 2.1 §8.1.22.7).

use nvme_spec::log::ReservationNotificationType;

use crate::host::HostIdentifier;
use crate::outcome::Outcome;
use crate::state::{Registrant, Reservations};

impl Reservations {
    /// Unregisters `host` and aborts its commands. Its reservation is released.
    ///
    /// The outcome is empty if the host is not registered. The host may register again, unless the
    /// caller refuses its commands.
    pub fn evict(&mut self, host: HostIdentifier) -> Outcome {
        self.evict_if(|registrant| registrant.host == host)
    }

    /// Unregisters all hosts, aborts their commands and releases the reservation. The Persist
    /// Through Power Loss state stays.
    pub fn evict_all(&mut self) -> Outcome {
        self.evict_if(|_| true)
    }

    fn evict_if(&mut self, selects: impl Fn(&Registrant) -> bool) -> Outcome {
        let evicted = self.registrants().iter().filter(|&it| selects(it));
        let abort: Vec<_> = evicted.map(|it| it.host).collect();
        if abort.is_empty() {
            return Outcome::default();
        }
        let mut outcome = self.access_change();
        outcome.notify(
            abort.iter().copied(),
            ReservationNotificationType::REGISTRATION_PREEMPTED,
        );
        outcome.abort = abort;
        if self.remove(selects).is_some() {
            let remaining = self.registrants().iter().map(|it| it.host);
            outcome.notify(remaining, ReservationNotificationType::RESERVATION_RELEASED);
        }
        self.increment_generation();
        outcome
    }
}
