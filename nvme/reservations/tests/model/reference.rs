//! The naive model: the rules of Base 2.1 §8.1.22 over sets of hosts, without regard to cost.

use std::collections::{BTreeMap, BTreeSet};

use nvme_spec::Status;

const REGISTRATION_PREEMPTED: u8 = 1;
const RESERVATION_RELEASED: u8 = 2;
const RESERVATION_PREEMPTED: u8 = 3;

/// Notified hosts with the type of the notification, and hosts whose commands are aborted.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    pub(crate) notified: BTreeSet<(u8, u8)>,
    pub(crate) abort: BTreeSet<u8>,
}

impl Effects {
    fn notify(&mut self, hosts: impl IntoIterator<Item = u8>, kind: u8) {
        self.notified.extend(hosts.into_iter().map(|it| (it, kind)));
    }
}

/// A reservation, with each of its holders.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) code: u8,
    holders: BTreeSet<u8>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) keys: BTreeMap<u8, u64>,
    pub(crate) held: Option<Held>,
    pub(crate) generation: u32,
    pub(crate) persists: bool,
}

fn is_of_all(code: u8) -> bool {
    code == 5 || code == 6
}

fn is_type(code: u8) -> bool {
    (1..=6).contains(&code)
}

impl Model {
    pub(crate) fn is_holder(&self, host: u8) -> bool {
        self.held
            .as_ref()
            .is_some_and(|held| held.holders.contains(&host))
    }

    pub(crate) fn may_read(&self, host: u8) -> bool {
        match self.held.as_ref().map(|held| held.code) {
            // Exclusive Access: the holder reads; of the other types, every registrant.
            Some(2) => self.is_holder(host),
            Some(4 | 6) => self.keys.contains_key(&host),
            _ => true,
        }
    }

    pub(crate) fn may_write(&self, host: u8) -> bool {
        match self.held.as_ref().map(|held| held.code) {
            Some(1 | 2) => self.is_holder(host),
            Some(_) => self.keys.contains_key(&host),
            None => true,
        }
    }

    pub(crate) fn may_acquire(&self, host: u8) -> bool {
        self.held.is_none() || self.is_holder(host)
    }

    pub(crate) fn may_preempt(&self, host: u8) -> bool {
        self.held.is_none() || self.keys.contains_key(&host)
    }

    fn others(&self, host: u8) -> BTreeSet<u8> {
        let hosts = self.keys.keys().copied();
        hosts.filter(|&it| it != host).collect()
    }

    /// Brings the holders in line with the registrants: a reservation of all is held by all, and
    /// one without a holder ends.
    fn update_holders(&mut self) {
        let Some(held) = &mut self.held else { return };
        if is_of_all(held.code) {
            held.holders = self.keys.keys().copied().collect();
        }
        held.holders.retain(|host| self.keys.contains_key(host));
        if held.holders.is_empty() {
            self.held = None;
        }
    }

    fn reserve(&mut self, code: u8, host: u8) {
        let holders = BTreeSet::from([host]);
        self.held = Some(Held { code, holders });
        self.update_holders();
    }

    pub(crate) fn register(
        &mut self,
        host: u8,
        (action, iekey, cptpl): (u8, bool, u8),
        (current, new): (u64, u64),
    ) -> Result<Effects, Status> {
        if action > 2 || cptpl == 1 {
            return Err(Status::INVALID_FIELD);
        }
        let mine = self.keys.get(&host).copied();
        let mut effects = Effects::default();
        if action == 0 {
            if mine.is_some_and(|key| key != new) {
                return Err(Status::RESERVATION_CONFLICT);
            }
            self.keys.insert(host, new);
        } else {
            if !iekey && mine != Some(current) {
                return Err(Status::RESERVATION_CONFLICT);
            }
            if action == 2 {
                self.keys.insert(host, new);
            } else {
                self.keys.remove(&host);
            }
        }
        let before = self.held.as_ref().map(|held| held.code);
        self.update_holders();
        if self.held.is_none() && matches!(before, Some(3 | 4)) {
            effects.notify(self.others(host), RESERVATION_RELEASED);
        }
        self.generation = self.generation.wrapping_add(1);
        if cptpl != 0 {
            self.persists = cptpl == 3;
        }
        Ok(effects)
    }

    pub(crate) fn acquire(
        &mut self,
        host: u8,
        (action, iekey, code): (u8, bool, u8),
        (current, preempted): (u64, u64),
    ) -> Result<Effects, Status> {
        if action > 2 || iekey || !is_type(code) {
            return Err(Status::INVALID_FIELD);
        }
        if self.keys.get(&host) != Some(&current) {
            return Err(Status::RESERVATION_CONFLICT);
        }
        if action > 0 {
            return self.preempt(host, action == 2, code, preempted);
        }
        match &self.held {
            None => self.reserve(code, host),
            Some(held) if held.code == code && held.holders.contains(&host) => {}
            Some(_) => return Err(Status::RESERVATION_CONFLICT),
        }
        Ok(Effects::default())
    }

    fn preempt(
        &mut self,
        host: u8,
        abort: bool,
        code: u8,
        preempted: u64,
    ) -> Result<Effects, Status> {
        let with_key = |it: &Self| -> BTreeSet<u8> {
            let keys = it.keys.iter().filter(|&(_, &key)| key == preempted);
            keys.map(|(&host, _)| host).collect()
        };
        let before = self.held.clone();
        let mut victims = with_key(self);
        let mut takes = false;
        if let Some(held) = &before {
            if is_of_all(held.code) {
                if preempted == 0 {
                    takes = true;
                    victims = self.others(host);
                } else if victims.is_empty() {
                    return Err(Status::RESERVATION_CONFLICT);
                }
            } else {
                let holder = held.holders.first().expect("it has one holder");
                if victims.contains(holder) {
                    takes = true;
                    victims.remove(&host);
                } else if preempted == 0 {
                    return Err(Status::INVALID_FIELD);
                }
            }
        }
        self.keys.retain(|it, _| !victims.contains(it));
        if takes {
            self.reserve(code, host);
        }
        self.update_holders();
        self.generation = self.generation.wrapping_add(1);

        let mut effects = Effects::default();
        victims.remove(&host);
        effects.notify(victims.iter().copied(), REGISTRATION_PREEMPTED);
        let code_of = |held: &Option<Held>| held.as_ref().map(|it| it.code);
        if code_of(&before) != code_of(&self.held) {
            effects.notify(self.others(host), RESERVATION_RELEASED);
        }
        if abort {
            effects.abort = victims;
        }
        Ok(effects)
    }

    pub(crate) fn release(
        &mut self,
        host: u8,
        (action, iekey, code): (u8, bool, u8),
        current: u64,
    ) -> Result<Effects, Status> {
        if action > 1 || iekey || (action == 0 && !is_type(code)) {
            return Err(Status::INVALID_FIELD);
        }
        if self.keys.get(&host) != Some(&current) {
            return Err(Status::RESERVATION_CONFLICT);
        }
        let mut effects = Effects::default();
        if action == 1 {
            effects.notify(self.others(host), RESERVATION_PREEMPTED);
            self.keys.clear();
            self.update_holders();
            self.generation = self.generation.wrapping_add(1);
        } else if self.is_holder(host) {
            if self.held.as_ref().is_some_and(|held| held.code != code) {
                return Err(Status::INVALID_FIELD);
            }
            if code > 2 {
                effects.notify(self.others(host), RESERVATION_RELEASED);
            }
            self.held = None;
        }
        Ok(effects)
    }

    pub(crate) fn evict(&mut self, host: u8) -> Effects {
        let mut effects = Effects::default();
        if self.keys.remove(&host).is_none() {
            return effects;
        }
        let was_held = self.held.is_some();
        self.update_holders();
        self.generation = self.generation.wrapping_add(1);
        effects.notify([host], REGISTRATION_PREEMPTED);
        effects.abort.insert(host);
        if was_held && self.held.is_none() {
            effects.notify(self.others(host), RESERVATION_RELEASED);
        }
        effects
    }

    pub(crate) fn lose_power(&mut self) {
        if !self.persists {
            *self = Self::default();
        }
    }
}
