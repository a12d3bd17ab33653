//! Share modes and byte-range locks in the model: what each client holds or may hold.
//!
//! Each is a set of possibilities: one if the state is known, several while an operation is executed
//! or in doubt. A pending operation keeps everything that was possible since it began, because it is
//! executed at one moment of that time.
//!
//! Locks cover parts of a file with fixed boundaries, so that a lock is known for each part.

use std::collections::BTreeMap;
use std::ops::Range;

use files_spec::operations::share;

/// Number of parts of a file.
pub(super) const PARTS: usize = 7;
/// The first byte of each part. The last part has two bytes, because a length of all ones is not that
/// of everything before one byte, but of the rest of a file.
const STARTS: [u64; PARTS] = [0, 1, 4096, 5000, 1 << 40, 1 << 63, u64::MAX - 1];

/// Share access and share deny of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Modes {
    pub(super) access: u32,
    pub(super) deny: u32,
}

impl Modes {
    /// A file that is not open.
    pub(super) const CLOSED: Self = Self { access: 0, deny: 0 };
    /// Access to read and write, and no denial.
    pub(super) const BOTH: Self = Self {
        access: share::ACCESS_READ | share::ACCESS_WRITE,
        deny: share::DENY_NONE,
    };

    /// What an owner has that opens a file again.
    #[must_use]
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            access: self.access | other.access,
            deny: self.deny | other.deny,
        }
    }

    /// Whether others cannot have the file open so at the same time.
    #[must_use]
    pub(super) fn excludes(self, other: Self) -> bool {
        self.access & other.deny != 0 || self.deny & other.access != 0
    }

    /// Whether it is this or less.
    #[must_use]
    pub(super) fn is_within(self, other: Self) -> bool {
        self.access & !other.access == 0 && self.deny & !other.deny == 0
    }
}

/// The share modes that a client may have for a file, as a set of access + 4 × deny.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PossibleModes(u16);

impl PossibleModes {
    /// Exactly these.
    #[must_use]
    pub(super) fn known(modes: Modes) -> Self {
        Self(1 << (modes.access + 4 * modes.deny))
    }

    fn iter(self) -> impl Iterator<Item = Modes> {
        let all = (0..16).filter(move |it| self.0 & 1 << it != 0);
        all.map(|it| Modes {
            access: it & 3,
            deny: it >> 2,
        })
    }
}

/// The lock of an owner on a part, from the weakest to the strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Held {
    Nothing,
    Shared,
    Exclusive,
}

impl Held {
    const ALL: [Self; 3] = [Self::Nothing, Self::Shared, Self::Exclusive];

    /// The lock of a request.
    #[must_use]
    pub(super) fn of(is_exclusive: bool) -> Self {
        match is_exclusive {
            true => Self::Exclusive,
            false => Self::Shared,
        }
    }

    /// Whether two owners cannot have these at the same time.
    fn excludes(self, other: Self) -> bool {
        let (weak, strong) = (self.min(other), self.max(other));
        weak != Self::Nothing && strong == Self::Exclusive
    }
}

/// The locks that an owner may have on a part, as a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PossibleLocks(u8);

impl PossibleLocks {
    fn known(held: Held) -> Self {
        Self(1 << held as u8)
    }

    fn has(self, held: Held) -> bool {
        self.0 & 1 << held as u8 != 0
    }
}

/// Some parts of a file, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    first: usize,
    last: usize,
}

impl Parts {
    /// All parts.
    pub(super) const ALL: Self = Self {
        first: 0,
        last: PARTS - 1,
    };

    /// Those from the lesser to the greater number.
    #[must_use]
    pub(super) fn between(one: usize, other: usize) -> Self {
        Self {
            first: one.min(other),
            last: one.max(other),
        }
    }

    /// Their numbers.
    #[must_use]
    pub(super) fn numbers(self) -> Range<usize> {
        self.first..self.last + 1
    }

    /// Their offset and length on the wire. The rest of a file has a length of all ones.
    #[must_use]
    pub(super) fn on_the_wire(self) -> (u64, u64) {
        let begin = STARTS[self.first];
        match STARTS.get(self.last + 1) {
            Some(end) => (begin, end - begin),
            None => (begin, u64::MAX),
        }
    }

    /// The parts with this offset and length; `None` if they end elsewhere.
    #[must_use]
    pub(super) fn of_wire(offset: u64, length: u64) -> Option<Self> {
        let all = (0..PARTS).flat_map(|first| (first..PARTS).map(move |last| (first, last)));
        let mut all = all.map(|(first, last)| Self { first, last });
        all.find(|it| it.on_the_wire() == (offset, length))
    }

    fn overlap(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// An owner of locks: the number of a client, and one of its owners.
pub(super) type LockOwner = (usize, u8);

/// What a client knows of its locks of a file, for each part.
pub(super) type KnownLocks = [Held; PARTS];

/// What clients may hold of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Holdings {
    modes: BTreeMap<usize, PossibleModes>,
    locks: BTreeMap<LockOwner, [PossibleLocks; PARTS]>,
}

const CLOSED: PossibleModes = PossibleModes(1);
const UNLOCKED: [PossibleLocks; PARTS] = [PossibleLocks(1); PARTS];

impl Holdings {
    /// Everything that is possible with the one or the other.
    pub(super) fn add(&mut self, other: &Self) {
        for (client, modes) in &other.modes {
            self.modes.entry(*client).or_insert(CLOSED).0 |= modes.0;
        }
        for (owner, parts) in &other.locks {
            let own = self.locks.entry(*owner).or_insert(UNLOCKED);
            own.iter_mut().zip(parts).for_each(|(a, b)| a.0 |= b.0);
        }
    }

    /// A client may have the file open so.
    pub(super) fn may_be_open(&mut self, client: usize, modes: Modes) {
        self.modes.entry(client).or_insert(CLOSED).0 |= PossibleModes::known(modes).0;
    }

    /// A client has the file open so.
    pub(super) fn is_open(&mut self, client: usize, modes: Modes) {
        self.modes.insert(client, PossibleModes::known(modes));
    }

    /// An owner may have this lock on parts.
    pub(super) fn may_be_locked(&mut self, owner: LockOwner, parts: Parts, held: Held) {
        let locks = self.locks.entry(owner).or_insert(UNLOCKED);
        for part in parts.numbers() {
            locks[part].0 |= PossibleLocks::known(held).0;
        }
    }

    /// An owner has this lock on parts.
    pub(super) fn is_locked(&mut self, owner: LockOwner, parts: Parts, held: Held) {
        let locks = self.locks.entry(owner).or_insert(UNLOCKED);
        locks[parts.numbers()].fill(PossibleLocks::known(held));
    }

    /// An owner has exactly these locks.
    pub(super) fn has_locks(&mut self, owner: LockOwner, locks: &KnownLocks) {
        self.locks.insert(owner, locks.map(PossibleLocks::known));
    }

    /// A client may have lost everything.
    pub(super) fn may_be_lost(&mut self, client: usize) {
        if self.modes.contains_key(&client) {
            self.may_be_open(client, Modes::CLOSED);
        }
        self.may_be_unlocked(client);
    }

    /// A client may have no locks any more.
    pub(super) fn may_be_unlocked(&mut self, client: usize) {
        let of_client = self.locks.iter_mut().filter(|(it, _)| it.0 == client);
        for (_, locks) in of_client {
            locks.iter_mut().for_each(|it| it.0 |= UNLOCKED[0].0);
        }
    }

    /// A client has nothing.
    pub(super) fn is_lost(&mut self, client: usize) {
        if let Some(modes) = self.modes.get_mut(&client) {
            *modes = CLOSED;
        }
        let of_client = self.locks.iter_mut().filter(|(it, _)| it.0 == client);
        of_client.for_each(|(_, locks)| *locks = UNLOCKED);
    }

    /// What one client may hold.
    #[must_use]
    pub(super) fn only(&self, client: usize) -> Self {
        let mut own = Self::default();
        let modes = self.modes.get(&client);
        own.modes.extend(modes.map(|it| (client, *it)));
        let locks = self.locks.iter().filter(|(it, _)| it.0 == client);
        own.locks.extend(locks.map(|(owner, it)| (*owner, *it)));
        own
    }

    /// Removes what a client may hold.
    pub(super) fn forget(&mut self, client: usize) {
        self.modes.remove(&client);
        self.locks.retain(|it, _| it.0 != client);
    }

    /// Replaces what the owners of another one may hold.
    pub(super) fn replace(&mut self, known: &Self) {
        self.modes.extend(&known.modes);
        self.locks.extend(&known.locks);
    }

    /// Whether a client can have these modes beside all others that can be there.
    #[must_use]
    pub(super) fn may_open(&self, client: Option<usize>, modes: Modes) -> bool {
        let mut others = self.modes.iter().filter(|(it, _)| Some(**it) != client);
        others.all(|(_, possible)| possible.iter().any(|it| !it.excludes(modes)))
    }

    /// Whether one of the others can be there that excludes these modes.
    #[must_use]
    pub(super) fn may_deny(&self, client: Option<usize>, modes: Modes) -> bool {
        let mut others = self.modes.iter().filter(|(it, _)| Some(**it) != client);
        others.any(|(_, possible)| possible.iter().any(|it| it.excludes(modes)))
    }

    /// Whether an owner can have this lock beside all others that can be there.
    #[must_use]
    pub(super) fn may_lock(&self, owner: LockOwner, parts: Parts, held: Held) -> bool {
        let mut others = self.locks.iter().filter(|(it, _)| **it != owner);
        let permits = |it: &PossibleLocks| {
            let mut possible = Held::ALL.into_iter().filter(|other| it.has(*other));
            possible.any(|other| !other.excludes(held))
        };
        others.all(|(_, locks)| locks[parts.numbers()].iter().all(permits))
    }

    /// Whether one of the others can be there that excludes this lock.
    #[must_use]
    pub(super) fn may_refuse(&self, owner: LockOwner, parts: Parts, held: Held) -> bool {
        let mut others = self.locks.iter().filter(|(it, _)| **it != owner);
        let refuses = |it: &PossibleLocks| {
            let mut possible = Held::ALL.into_iter().filter(|other| it.has(*other));
            possible.any(|other| other.excludes(held))
        };
        others.any(|(_, locks)| locks[parts.numbers()].iter().any(refuses))
    }

    /// Whether a lock can be there that the server names as the reason of a refusal.
    #[must_use]
    pub(super) fn may_be_reason(
        &self,
        (owner, parts, held): (LockOwner, Parts, Held),
        (refused, wanted, asked): (LockOwner, Parts, Held),
    ) -> bool {
        let Some(locks) = self.locks.get(&owner) else {
            return false;
        };
        owner != refused
            && parts.overlap(wanted)
            && held.excludes(asked)
            && locks[parts.numbers()].iter().all(|it| it.has(held))
    }
}

/// The locks of an owner as ranges of one kind.
#[must_use]
pub(super) fn runs(locks: &KnownLocks) -> Vec<(Parts, bool)> {
    let mut begin = 0;
    let mut runs = Vec::new();
    for run in locks.chunk_by(|a, b| a == b) {
        if run[0] != Held::Nothing {
            let parts = Parts::between(begin, begin + run.len() - 1);
            runs.push((parts, run[0] == Held::Exclusive));
        }
        begin += run.len();
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: LockOwner = (0, 0);
    const OTHER: LockOwner = (1, 0);

    #[test]
    fn parts_are_the_same_from_the_wire() {
        for first in 0..PARTS {
            for last in first..PARTS {
                let parts = Parts::between(last, first);
                let (offset, length) = parts.on_the_wire();
                assert_eq!(Parts::of_wire(offset, length), Some(parts));
            }
        }
        assert_eq!(Parts::of_wire(0, 2), None);
    }

    #[test]
    fn a_known_lock_excludes_and_a_possible_one_does_not() {
        let mut holdings = Holdings::default();
        holdings.is_locked(OTHER, Parts::between(2, 3), Held::Exclusive);
        let wanted = |parts, held| holdings.may_lock(OWN, parts, held);
        assert!(!wanted(Parts::between(3, 5), Held::Shared));
        assert!(wanted(Parts::between(4, 5), Held::Exclusive));
        assert!(!holdings.may_refuse(OWN, Parts::between(4, 5), Held::Exclusive));
        holdings.may_be_locked(OTHER, Parts::ALL, Held::Nothing);
        assert!(holdings.may_lock(OWN, Parts::ALL, Held::Exclusive));
        assert!(holdings.may_refuse(OWN, Parts::ALL, Held::Shared));
    }

    #[test]
    fn a_denial_excludes_access_in_both_directions() {
        let mut holdings = Holdings::default();
        holdings.is_open(1, Modes { access: 1, deny: 2 });
        let opens = |access, deny| holdings.may_open(Some(0), Modes { access, deny });
        assert!(!opens(2, 0) && !opens(1, 1) && opens(1, 2));
        assert!(!holdings.may_deny(Some(0), Modes { access: 1, deny: 2 }));
        assert!(holdings.may_open(Some(1), Modes { access: 2, deny: 1 }));
        holdings.may_be_lost(1);
        assert!(holdings.may_open(Some(0), Modes::BOTH));
        assert!(holdings.may_deny(Some(0), Modes::BOTH));
    }

    #[test]
    fn runs_of_a_kind_are_one_lock() {
        let mut locks = [Held::Nothing; PARTS];
        locks[1..3].fill(Held::Shared);
        locks[3] = Held::Exclusive;
        let found = runs(&locks);
        let expected = [(Parts::between(1, 2), false), (Parts::between(3, 3), true)];
        assert_eq!(found, expected);
    }
}
