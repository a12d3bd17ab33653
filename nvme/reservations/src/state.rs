//! The registrants, the reservation and the generation of one namespace.
//!
//! The functions here keep one rule: a reservation has a holder, and each holder is a registrant.

use nvme_spec::Status;

use crate::access::{Permissions, Role};
use crate::host::HostIdentifier;
use crate::kind::ReservationKind;

/// Most registrants of a namespace. A host that is not registered cannot register beyond it.
///
/// Registrants stay when their host disconnects, so the number of controllers does not bound them.
/// The specification requires that each host of the subsystem can register (Base 2.1 §8.1.22): a
/// target should not admit more hosts to a namespace than this.
pub const REGISTRANTS_MAX: usize = 256;

const _: () = assert!(
    REGISTRANTS_MAX <= u16::MAX as usize,
    "Number of Registrants of Reservation Report has 16 bits"
);

/// A host that is registered with the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// The host.
    pub host: HostIdentifier,
    /// Its reservation key. Several hosts may have the same key.
    pub key: u64,
}

/// Whether reservations of the namespace can persist through power loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PersistenceSupport {
    /// A host may set the Persist Through Power Loss state.
    Supported,
    /// The state cannot be stored. Commands that set it fail with Invalid Field in Command.
    #[default]
    Unsupported,
}

/// A reservation that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) kind: ReservationKind,
    /// The holder; `None` if every registrant is a holder.
    pub(crate) holder: Option<HostIdentifier>,
}

impl Reservation {
    /// A reservation of type `kind` for `host`.
    pub(crate) fn new(kind: ReservationKind, host: HostIdentifier) -> Self {
        Self {
            kind,
            holder: (!kind.is_all_registrants()).then_some(host),
        }
    }

    /// Whether the registrant `host` is a holder.
    pub(crate) fn is_held_by(&self, host: HostIdentifier) -> bool {
        self.holder.is_none_or(|holder| holder == host)
    }
}

/// The reservations of one namespace (Base 2.1 §8.1.22).
///
/// The crate's documentation describes how a caller stores a change before it takes effect.
#[derive(Debug, PartialEq, Eq)]
pub struct Reservations {
    /// In the order of registration. The capacity is [`REGISTRANTS_MAX`].
    registrants: Vec<Registrant>,
    reservation: Option<Reservation>,
    generation: u32,
    persists: bool,
    support: PersistenceSupport,
}

impl Reservations {
    /// A namespace without registrants and reservation, whose state does not persist.
    #[must_use]
    pub fn new(support: PersistenceSupport) -> Self {
        Self {
            registrants: Vec::with_capacity(REGISTRANTS_MAX),
            reservation: None,
            generation: 0,
            persists: false,
            support,
        }
    }

    /// The registrants, in the order of their registration.
    #[must_use]
    pub fn registrants(&self) -> &[Registrant] {
        &self.registrants
    }

    /// The type of the reservation that is held.
    #[must_use]
    pub fn reservation(&self) -> Option<ReservationKind> {
        self.reservation.map(|held| held.kind)
    }

    /// The only holder of the reservation; `None` if no reservation is held or if every registrant
    /// is a holder.
    #[must_use]
    pub fn holder(&self) -> Option<HostIdentifier> {
        self.reservation?.holder
    }

    /// The generation: a wrapping count of the commands that may have changed registrants (Base
    /// 2.1 §7.8, GEN).
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The Persist Through Power Loss state, which is also the Reservation Persistence feature
    /// (Base 2.1 §5.1.25.1.30).
    #[must_use]
    pub fn persists(&self) -> bool {
        self.persists
    }

    /// Whether the Persist Through Power Loss state can be set.
    #[must_use]
    pub fn persistence_support(&self) -> PersistenceSupport {
        self.support
    }

    /// Changes whether the Persist Through Power Loss state can be set. A state that persists stays
    /// so.
    pub fn set_persistence_support(&mut self, support: PersistenceSupport) {
        self.support = support;
    }

    /// What `host` is to the reservation.
    #[must_use]
    pub fn role(&self, host: HostIdentifier) -> Role {
        if self.registrant(host).is_none() {
            Role::NonRegistrant
        } else if self.reservation.is_some_and(|held| held.is_held_by(host)) {
            Role::Holder
        } else {
            Role::Registrant
        }
    }

    /// The commands that `host` may execute now. They change only if an
    /// [`Outcome`](crate::Outcome) says so.
    #[must_use]
    pub fn permissions(&self, host: HostIdentifier) -> Permissions {
        Permissions::of(self.reservation(), self.role(host))
    }

    /// Applies a power cycle: a state that does not persist is lost (Base 2.1 §8.1.22.1).
    pub fn apply_power_loss(&mut self) {
        if !self.persists {
            self.registrants.clear();
            self.reservation = None;
            self.generation = 0;
        }
    }

    pub(crate) fn registrant(&self, host: HostIdentifier) -> Option<&Registrant> {
        self.registrants.iter().find(|it| it.host == host)
    }

    /// The reservation that is held, with its holder.
    pub(crate) fn held(&self) -> Option<Reservation> {
        self.reservation
    }

    /// The registrants other than `host`.
    pub(crate) fn others(&self, host: HostIdentifier) -> impl Iterator<Item = HostIdentifier> {
        let hosts = self.registrants.iter().map(|it| it.host);
        hosts.filter(move |&other| other != host)
    }

    /// Adds a registrant. No status is defined for the lack of resources: Internal Error is the
    /// generic status that has no other meaning for this command.
    pub(crate) fn add(&mut self, registrant: Registrant) -> Result<(), Status> {
        assert!(self.registrant(registrant.host).is_none());
        if self.registrants.len() == REGISTRANTS_MAX {
            return Err(Status::INTERNAL_ERROR);
        }
        self.registrants.push(registrant);
        Ok(())
    }

    /// Replaces the key of a registrant.
    pub(crate) fn replace_key(&mut self, host: HostIdentifier, key: u64) {
        let found = self.registrants.iter_mut().find(|it| it.host == host);
        found.expect("only registrants have keys").key = key;
    }

    /// Removes the registrants that `selects` selects. Releases the reservation if its holder, or
    /// the last of its holders, is removed, and returns the type of the released reservation (Base
    /// 2.1 §8.1.22.4).
    pub(crate) fn remove(
        &mut self,
        selects: impl Fn(&Registrant) -> bool,
    ) -> Option<ReservationKind> {
        self.registrants.retain(|it| !selects(it));
        let held = self.reservation?;
        let has_holder = match held.holder {
            Some(holder) => self.registrant(holder).is_some(),
            None => !self.registrants.is_empty(),
        };
        if has_holder {
            return None;
        }
        self.end_reservation();
        Some(held.kind)
    }

    /// Ends the reservation, if one is held.
    pub(crate) fn end_reservation(&mut self) {
        self.reservation = None;
    }

    /// Creates or replaces the reservation.
    pub(crate) fn reserve(&mut self, kind: ReservationKind, host: HostIdentifier) {
        assert!(self.registrant(host).is_some());
        self.reservation = Some(Reservation::new(kind, host));
    }

    pub(crate) fn increment_generation(&mut self) {
        self.generation = self.generation.wrapping_add(1);
    }

    pub(crate) fn set_generation(&mut self, generation: u32) {
        self.generation = generation;
    }

    pub(crate) fn set_persists(&mut self, persists: bool) {
        self.persists = persists;
    }
}

impl Clone for Reservations {
    /// Copies the state and reserves room for [`REGISTRANTS_MAX`] registrants.
    fn clone(&self) -> Self {
        let mut copy = Self::new(self.support);
        copy.clone_from(self);
        copy
    }

    /// Copies the state without an allocation.
    fn clone_from(&mut self, source: &Self) {
        self.registrants.clear();
        self.registrants.extend_from_slice(&source.registrants);
        self.reservation = source.reservation;
        self.generation = source.generation;
        self.persists = source.persists;
        self.support = source.support;
    }
}

#[cfg(test)]
mod tests;
