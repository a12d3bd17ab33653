//! The reservations of one disk as the specification defines them (Base 2.1 §8.1.22), independent
//! of the code under test. Hosts are known by the numbers of their identities.

use std::collections::{BTreeMap, BTreeSet};

use nvme_spec::Status;

/// The codes of the reservation types (Base 2.1 §7.5, RTYPE).
pub const WRITE_EXCLUSIVE: u8 = 1;
/// Exclusive Access.
pub const EXCLUSIVE_ACCESS: u8 = 2;
const WRITE_REGISTRANTS_ONLY: u8 = 3;
const ACCESS_REGISTRANTS_ONLY: u8 = 4;
const WRITE_ALL_REGISTRANTS: u8 = 5;
const ACCESS_ALL_REGISTRANTS: u8 = 6;

/// A reservation command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationCommand {
    /// Reservation Register.
    Register {
        /// 0: register, 1: unregister, 2: replace.
        action: u8,
        /// Ignore Existing Key.
        ignores_key: bool,
        /// Change Persist Through Power Loss State.
        cptpl: u8,
        /// Current key.
        current: u64,
        /// New key.
        new: u64,
    },
    /// Reservation Acquire.
    Acquire {
        /// 0: acquire, 1: preempt, 2: preempt and abort.
        action: u8,
        /// Ignore Existing Key, which must not be set.
        ignores_key: bool,
        /// Reservation type.
        rtype: u8,
        /// Current key.
        current: u64,
        /// Key of the hosts to preempt.
        preempted: u64,
    },
    /// Reservation Release.
    Release {
        /// 0: release, 1: clear.
        action: u8,
        /// Ignore Existing Key, which must not be set.
        ignores_key: bool,
        /// Reservation type.
        rtype: u8,
        /// Current key.
        current: u64,
    },
    /// Reservation Report.
    Report,
    /// Set Features of Reservation Persistence.
    Persist {
        /// Persist Through Power Loss.
        persists: bool,
    },
}

/// The type of a notification (Base 2.1 §5.1.12.1.32).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Notice {
    /// The registration was preempted.
    RegistrationPreempted,
    /// The reservation was released.
    ReservationReleased,
    /// The reservation was preempted.
    ReservationPreempted,
}

/// The effects of a successful command on other hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Hosts whose commands end before the command completes.
    pub aborted: BTreeSet<usize>,
    /// Hosts that are notified.
    pub notified: BTreeSet<(usize, Notice)>,
    /// The state had to be stored before the command completed.
    pub is_stored: bool,
}

/// A reservation that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The type.
    pub rtype: u8,
    /// The holder; `None` if all registrants are holders.
    pub holder: Option<usize>,
}

/// The reservations of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    /// The keys of registered hosts.
    pub keys: BTreeMap<usize, u64>,
    /// The reservation.
    pub held: Option<Held>,
    /// The generation.
    pub generation: u32,
    /// The state persists through power loss.
    pub persists: bool,
    /// The state can persist.
    pub can_persist: bool,
}

impl Reservations {
    /// A disk without registrants.
    #[must_use]
    pub fn new(can_persist: bool) -> Self {
        Self {
            can_persist,
            ..Self::default()
        }
    }

    /// Whether a host holds the reservation, alone or with all registrants.
    #[must_use]
    pub fn is_holder(&self, host: usize) -> bool {
        let is_registered = self.keys.contains_key(&host);
        is_registered
            && self
                .held
                .is_some_and(|held| held.holder.is_none_or(|it| it == host))
    }

    /// Base 2.1 §8.1.22.1, the row of Read and Compare.
    #[must_use]
    pub fn may_read(&self, host: usize) -> bool {
        let Some(held) = self.held else { return true };
        match held.rtype {
            EXCLUSIVE_ACCESS => self.is_holder(host),
            ACCESS_REGISTRANTS_ONLY | ACCESS_ALL_REGISTRANTS => self.keys.contains_key(&host),
            _ => true,
        }
    }

    /// Base 2.1 §8.1.22.1, the row of Write, Write Zeroes, Dataset Management and Flush.
    #[must_use]
    pub fn may_write(&self, host: usize) -> bool {
        let Some(held) = self.held else { return true };
        match held.rtype {
            WRITE_EXCLUSIVE | EXCLUSIVE_ACCESS => self.is_holder(host),
            _ => self.keys.contains_key(&host),
        }
    }

    /// Executes a command.
    ///
    /// # Errors
    /// The status with which it fails; nothing changes then.
    pub fn apply(&mut self, host: usize, command: ReservationCommand) -> Result<Effects, Status> {
        match command {
            ReservationCommand::Register {
                action,
                ignores_key,
                cptpl,
                current,
                new,
            } => self.register(host, (action, ignores_key, cptpl), (current, new)),
            ReservationCommand::Acquire {
                action,
                ignores_key,
                rtype,
                current,
                preempted,
            } => {
                let is_type = (WRITE_EXCLUSIVE..=ACCESS_ALL_REGISTRANTS).contains(&rtype);
                if action > 2 || ignores_key || !is_type {
                    return Err(Status::INVALID_FIELD);
                }
                self.check_key(host, current)?;
                match action {
                    0 => self.acquire(host, rtype),
                    _ => self.preempt(host, action == 2, rtype, preempted),
                }
            }
            ReservationCommand::Release {
                action,
                ignores_key,
                rtype,
                current,
            } => {
                let is_type = (WRITE_EXCLUSIVE..=ACCESS_ALL_REGISTRANTS).contains(&rtype);
                if action > 1 || ignores_key || (action == 0 && !is_type) {
                    return Err(Status::INVALID_FIELD);
                }
                self.check_key(host, current)?;
                match action {
                    0 => self.release(host, rtype),
                    _ => Ok(self.clear(host)),
                }
            }
            ReservationCommand::Report => Ok(Effects::default()),
            ReservationCommand::Persist { persists } => self.set_persistence(persists),
        }
    }

    /// Base 2.1 §5.1.25.1.30.
    fn set_persistence(&mut self, persists: bool) -> Result<Effects, Status> {
        if persists && !self.can_persist {
            return Err(Status::INVALID_FIELD);
        }
        let before = std::mem::replace(&mut self.persists, persists);
        Ok(Effects {
            is_stored: before != persists,
            ..Effects::default()
        })
    }

    /// What is left after the appliance has ended: only a state that persists.
    pub fn restart(&mut self) {
        if !self.persists {
            *self = Self::new(self.can_persist);
        }
    }

    fn check_key(&self, host: usize, key: u64) -> Result<(), Status> {
        match self.keys.get(&host) == Some(&key) {
            true => Ok(()),
            false => Err(Status::RESERVATION_CONFLICT),
        }
    }

    fn others(&self, host: usize) -> impl Iterator<Item = usize> {
        self.keys.keys().copied().filter(move |it| *it != host)
    }

    /// Ends a reservation without a holder. Returns its type.
    fn end_without_holder(&mut self) -> Option<u8> {
        let held = self.held?;
        let has_holder = match held.holder {
            Some(holder) => self.keys.contains_key(&holder),
            None => !self.keys.is_empty(),
        };
        if has_holder {
            return None;
        }
        self.held = None;
        Some(held.rtype)
    }

    fn reserve(&mut self, host: usize, rtype: u8) {
        let is_of_all = matches!(rtype, WRITE_ALL_REGISTRANTS | ACCESS_ALL_REGISTRANTS);
        let holder = (!is_of_all).then_some(host);
        self.held = Some(Held { rtype, holder });
    }

    fn stored(&self) -> Effects {
        Effects {
            is_stored: self.persists,
            ..Effects::default()
        }
    }

    /// Base 2.1 §7.6, §8.1.22.3 and §8.1.22.4.
    fn register(
        &mut self,
        host: usize,
        (action, ignores_key, cptpl): (u8, bool, u8),
        (current, new): (u64, u64),
    ) -> Result<Effects, Status> {
        let persists = match cptpl {
            0 => self.persists,
            2 => false,
            3 if self.can_persist => true,
            _ => return Err(Status::INVALID_FIELD),
        };
        let mine = self.keys.get(&host).copied();
        match action {
            0 if mine.is_some_and(|key| key != new) => return Err(Status::RESERVATION_CONFLICT),
            1 | 2 if !ignores_key => self.check_key(host, current)?,
            0..=2 => {}
            _ => return Err(Status::INVALID_FIELD),
        }
        match action {
            1 => self.keys.remove(&host),
            _ => self.keys.insert(host, new),
        };
        let mut effects = Effects {
            is_stored: persists || self.persists,
            ..Effects::default()
        };
        let ended = self.end_without_holder();
        if matches!(
            ended,
            Some(WRITE_REGISTRANTS_ONLY | ACCESS_REGISTRANTS_ONLY)
        ) {
            let others = self.others(host);
            effects.notified = others.map(|it| (it, Notice::ReservationReleased)).collect();
        }
        self.persists = persists;
        self.generation = self.generation.wrapping_add(1);
        Ok(effects)
    }

    /// Base 2.1 §8.1.22.5.
    fn acquire(&mut self, host: usize, rtype: u8) -> Result<Effects, Status> {
        match self.held {
            None => {
                self.reserve(host, rtype);
                Ok(self.stored())
            }
            Some(held) if held.rtype == rtype && self.is_holder(host) => Ok(Effects::default()),
            Some(_) => Err(Status::RESERVATION_CONFLICT),
        }
    }

    /// Base 2.1 §8.1.22.7.
    fn preempt(
        &mut self,
        host: usize,
        aborts: bool,
        rtype: u8,
        preempted: u64,
    ) -> Result<Effects, Status> {
        let before = self.held;
        let with_key = self.keys.iter().filter(|(_, key)| **key == preempted);
        let mut victims: BTreeSet<usize> = with_key.map(|(host, _)| *host).collect();
        let mut takes_over = false;
        match before {
            None => {}
            Some(Held { holder: None, .. }) if preempted == 0 => {
                takes_over = true;
                victims = self.others(host).collect();
            }
            Some(Held { holder: None, .. }) if victims.is_empty() => {
                return Err(Status::RESERVATION_CONFLICT);
            }
            Some(Held { holder: None, .. }) => {}
            Some(Held {
                holder: Some(holder),
                ..
            }) => {
                if victims.contains(&holder) {
                    takes_over = true;
                    victims.remove(&host);
                } else if preempted == 0 {
                    return Err(Status::INVALID_FIELD);
                }
            }
        }
        self.keys.retain(|it, _| !victims.contains(it));
        if takes_over {
            self.reserve(host, rtype);
        }
        self.end_without_holder();
        self.generation = self.generation.wrapping_add(1);
        victims.remove(&host);
        let preempted = victims.iter();
        let preempted = preempted.map(|it| (*it, Notice::RegistrationPreempted));
        let mut effects = self.stored();
        effects.notified = preempted.collect();
        if before.map(|it| it.rtype) != self.held.map(|it| it.rtype) {
            let released = self.others(host);
            let released = released.map(|it| (it, Notice::ReservationReleased));
            effects.notified.extend(released);
        }
        if aborts {
            effects.aborted = victims;
        }
        Ok(effects)
    }

    /// Base 2.1 §8.1.22.6.
    fn release(&mut self, host: usize, rtype: u8) -> Result<Effects, Status> {
        let held = self.held.filter(|_| self.is_holder(host));
        let Some(held) = held else {
            return Ok(Effects::default());
        };
        if held.rtype != rtype {
            return Err(Status::INVALID_FIELD);
        }
        self.held = None;
        let mut effects = self.stored();
        if !matches!(rtype, WRITE_EXCLUSIVE | EXCLUSIVE_ACCESS) {
            let others = self.others(host);
            effects.notified = others.map(|it| (it, Notice::ReservationReleased)).collect();
        }
        Ok(effects)
    }

    /// Base 2.1 §8.1.22.8.
    fn clear(&mut self, host: usize) -> Effects {
        let mut effects = self.stored();
        let others = self.others(host);
        effects.notified = others
            .map(|it| (it, Notice::ReservationPreempted))
            .collect();
        self.keys.clear();
        self.held = None;
        self.generation = self.generation.wrapping_add(1);
        effects
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registered(hosts: usize) -> Reservations {
        let mut state = Reservations::new(false);
        for host in 0..hosts {
            let command = ReservationCommand::Register {
                action: 0,
                ignores_key: false,
                cptpl: 0,
                current: 0,
                new: host as u64 + 1,
            };
            assert!(state.apply(host, command).is_ok());
        }
        state
    }

    fn acquire(action: u8, rtype: u8, current: u64, preempted: u64) -> ReservationCommand {
        ReservationCommand::Acquire {
            action,
            ignores_key: false,
            rtype,
            current,
            preempted,
        }
    }

    /// Base 2.1 §8.1.22.1: by type, whether a registrant and a stranger may read and write.
    #[test]
    fn table_of_conflicts() {
        let expected = [
            (1, [true, false], [true, false]),
            (2, [false, false], [false, false]),
            (3, [true, true], [true, false]),
            (4, [true, true], [false, false]),
            (5, [true, true], [true, false]),
            (6, [true, true], [false, false]),
        ];
        for (rtype, registrant, stranger) in expected {
            let mut state = registered(2);
            assert!(state.apply(0, acquire(0, rtype, 1, 0)).is_ok());
            let access = |host| [state.may_read(host), state.may_write(host)];
            assert_eq!(access(0), [true, true]);
            assert_eq!((access(1), access(2)), (registrant, stranger), "{rtype}");
        }
    }

    #[test]
    fn preemption_takes_over_and_aborts() {
        let mut state = registered(3);
        assert!(state.apply(0, acquire(0, WRITE_EXCLUSIVE, 1, 0)).is_ok());
        let effects = state.apply(1, acquire(2, EXCLUSIVE_ACCESS, 2, 1));
        let effects = effects.expect("host 0 is preempted");
        assert_eq!(effects.aborted, BTreeSet::from([0]));
        let notices = [
            (0, Notice::RegistrationPreempted),
            (2, Notice::ReservationReleased),
        ];
        assert_eq!(effects.notified, BTreeSet::from(notices));
        assert!(state.is_holder(1) && !state.may_read(0));
    }
}
