//! The byte-range locks of one file (RFC 8881 §9.2).

use crate::table::Key;

/// A range of bytes by its first and last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteRange {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl ByteRange {
    /// The range of an offset and a length, of which all ones is the rest of the file; `None` if it
    /// is empty or too long (RFC 8881 §18.10).
    pub(crate) fn new(offset: u64, length: u64) -> Option<Self> {
        let last = match length {
            0 => return None,
            u64::MAX => u64::MAX,
            length => offset.checked_add(length - 1)?,
        };
        Some(Self {
            first: offset,
            last,
        })
    }

    /// The length on the wire.
    pub(crate) fn length(self) -> u64 {
        match self.last {
            u64::MAX => u64::MAX,
            last => last - self.first + 1,
        }
    }

    fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// A lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lock {
    pub(crate) range: ByteRange,
    pub(crate) is_exclusive: bool,
    /// The lock state of its owner.
    pub(crate) state: Key,
}

/// The locks of a file. Those of one owner do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Locks(Vec<Lock>);

impl Locks {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The locks in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lock> {
        self.0.iter()
    }

    /// Whether an owner has a lock.
    pub(crate) fn has(&self, state: Key) -> bool {
        self.0.iter().any(|lock| lock.state == state)
    }

    /// A lock of another owner that excludes this one.
    pub(crate) fn conflict(
        &self,
        own: Option<Key>,
        range: ByteRange,
        is_exclusive: bool,
    ) -> Option<Lock> {
        let mut others = self.0.iter().filter(|it| Some(it.state) != own);
        let excludes = |it: &Lock| it.range.overlaps(range) && (is_exclusive || it.is_exclusive);
        others.find(|it| excludes(it)).copied()
    }

    /// Adds a lock, which replaces what its owner has in the range.
    pub(crate) fn lock(&mut self, lock: Lock) {
        self.unlock(lock.state, lock.range);
        self.0.push(lock);
        self.merge(lock);
    }

    /// Unites a lock with adjacent ones of its kind.
    fn merge(&mut self, added: Lock) {
        let is_adjacent = |it: &Lock, to: &Lock| {
            it.state == to.state
                && it.is_exclusive == to.is_exclusive
                && (it.range.last.checked_add(1) == Some(to.range.first)
                    || to.range.last.checked_add(1) == Some(it.range.first))
        };
        let mut merged = added;
        while let Some(at) = self.0.iter().position(|it| is_adjacent(it, &merged)) {
            let other = self.0.swap_remove(at);
            self.0.retain(|it| *it != merged);
            merged.range.first = merged.range.first.min(other.range.first);
            merged.range.last = merged.range.last.max(other.range.last);
            self.0.push(merged);
        }
    }

    /// Whether unlocking a range makes two locks of one.
    pub(crate) fn is_divided(&self, state: Key, range: ByteRange) -> bool {
        let mut own = self.0.iter().filter(|lock| lock.state == state);
        own.any(|lock| lock.range.first < range.first && range.last < lock.range.last)
    }

    /// Removes a range of an owner's locks.
    pub(crate) fn unlock(&mut self, state: Key, range: ByteRange) {
        let mut rest = Vec::new();
        self.0.retain(|lock| {
            if lock.state != state || !lock.range.overlaps(range) {
                return true;
            }
            if lock.range.first < range.first {
                let last = range.first - 1;
                rest.push(Lock {
                    range: ByteRange {
                        first: lock.range.first,
                        last,
                    },
                    ..*lock
                });
            }
            if lock.range.last > range.last {
                let first = range.last + 1;
                rest.push(Lock {
                    range: ByteRange {
                        first,
                        last: lock.range.last,
                    },
                    ..*lock
                });
            }
            false
        });
        self.0.append(&mut rest);
    }

    /// Removes all locks of an owner, and returns their number.
    pub(crate) fn release(&mut self, state: Key) -> usize {
        let before = self.0.len();
        self.0.retain(|lock| lock.state != state);
        before - self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, last: u64) -> ByteRange {
        ByteRange { first, last }
    }

    /// RFC 8881 §18.10.
    #[test]
    fn ranges_of_length_zero_or_beyond_the_last_byte_do_not_exist() {
        assert_eq!(ByteRange::new(5, 0), None);
        assert_eq!(ByteRange::new(u64::MAX, 2), None);
        assert_eq!(ByteRange::new(u64::MAX, 1), Some(range(u64::MAX, u64::MAX)));
        assert_eq!(ByteRange::new(7, u64::MAX), Some(range(7, u64::MAX)));
        assert_eq!(range(7, u64::MAX).length(), u64::MAX);
    }

    /// Every sequence of locks and unlocks leaves what an array of bytes has.
    #[test]
    fn locks_are_as_in_a_model_with_a_state_for_each_byte() {
        const BYTES: u64 = 12;
        let (own, other) = (Key::from_u64(1 << 32), Key::from_u64(2 << 32));
        let mut locks = Locks::default();
        let mut model = [None; BYTES as usize];
        let mut random: u64 = 7;
        let mut next = |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99);
            (random >> 33) % below
        };
        for _ in 0..20_000 {
            let (a, b) = (next(BYTES), next(BYTES));
            let range = range(a.min(b), a.max(b));
            let is_exclusive = next(2) == 0;
            let bytes = range.first as usize..range.last as usize + 1;
            if next(3) == 0 {
                locks.unlock(own, range);
                model[bytes].fill(None);
            } else {
                locks.lock(Lock {
                    range,
                    is_exclusive,
                    state: own,
                });
                model[bytes].fill(Some(is_exclusive));
            }
            for at in 0..BYTES {
                let byte = ByteRange {
                    first: at,
                    last: at,
                };
                let found = locks.conflict(Some(other), byte, true);
                assert_eq!(found.map(|it| it.is_exclusive), model[at as usize]);
                let shared = locks.conflict(Some(other), byte, false);
                assert_eq!(shared.is_some(), model[at as usize] == Some(true));
                assert_eq!(locks.conflict(Some(own), byte, true), None);
            }
            // Adjacent locks of a kind are one.
            let runs = model.chunk_by(|a, b| a == b).filter(|it| it[0].is_some());
            assert_eq!(locks.len(), runs.count());
        }
    }
}
