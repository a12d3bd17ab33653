//! Whether a file device is sound, damaged or gone. One per device, checked by every request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::health::{Damage, DamageCause};

/// The file system reported that the file is gone.
const GONE: u64 = 1;
/// A write was abandoned: the file must not be reopened.
const ABANDONED: u64 = 1 << 1;
/// Four bits: 0, or the index of the cause in [`CAUSES`] plus one.
const CAUSE_SHIFT: u32 = 4;
const CAUSE: u64 = 0xf << CAUSE_SHIFT;
/// Number of times that the device was reopened, in all higher bits.
const GENERATION_SHIFT: u32 = 8;

const CAUSES: [DamageCause; 6] = [
    DamageCause::SyncFailed,
    DamageCause::WriteFailed,
    DamageCause::ShortWrite,
    DamageCause::Truncated,
    DamageCause::WriteAbandoned,
    DamageCause::WriteStuck,
];

/// A snapshot of the condition of a device. Queues compare the one that they know with the current
/// one: if they are equal, the device is sound and unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConditionWord(u64);

impl ConditionWord {
    pub(super) fn is_removed(self) -> bool {
        self.0 & GONE != 0
    }

    pub(super) fn is_abandoned(self) -> bool {
        self.0 & ABANDONED != 0
    }

    pub(super) fn cause(self) -> Option<DamageCause> {
        let index = ((self.0 & CAUSE) >> CAUSE_SHIFT) as usize;
        CAUSES.get(index.checked_sub(1)?).copied()
    }

    /// The same generation without any damage.
    pub(super) fn undamaged(self) -> Self {
        Self(self.0 >> GENERATION_SHIFT << GENERATION_SHIFT)
    }

    /// Whether the device was not reopened between the two.
    pub(super) fn same_generation(self, other: Self) -> bool {
        self.undamaged() == other.undamaged()
    }
}

/// The current condition. All stores are lock-free, because reactors record errors.
#[derive(Debug, Default)]
pub(super) struct Condition {
    word: AtomicU64,
    /// Time at which the damage was detected, in milliseconds since 1970; 0 without damage.
    since_ms: AtomicU64,
    /// Overdue writes that the kernel has not completed.
    stuck: AtomicU64,
}

impl Condition {
    #[inline]
    pub(super) fn now(&self) -> ConditionWord {
        ConditionWord(self.word.load(Ordering::Relaxed))
    }

    pub(super) fn set_removed(&self) {
        self.word.fetch_or(GONE, Ordering::Relaxed);
    }

    /// Records damage. The first cause remains until the device is reopened.
    pub(super) fn note_damage(&self, cause: DamageCause) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let since_ms = since.map_or(1, |since| since.as_millis() as u64);
        let (order, no) = (Ordering::Relaxed, Ordering::Relaxed);
        let _ = self.since_ms.compare_exchange(0, since_ms, order, no);
        let index = CAUSES.iter().position(|it| *it == cause).unwrap_or(0) as u64;
        let abandoned = if cause == DamageCause::WriteAbandoned {
            ABANDONED
        } else {
            0
        };
        let _ = self.word.fetch_update(order, no, |word| {
            let first = if word & CAUSE == 0 {
                (index + 1) << CAUSE_SHIFT
            } else {
                0
            };
            Some(word | first | abandoned)
        });
    }

    /// Records a write whose request ends although the kernel still has it.
    pub(super) fn note_stuck(&self) {
        self.stuck.fetch_add(1, Ordering::Relaxed);
        self.note_damage(DamageCause::WriteStuck);
    }

    /// The kernel completed a stuck write.
    pub(super) fn clear_stuck(&self) {
        self.stuck.fetch_sub(1, Ordering::Relaxed);
    }

    /// Overdue writes that the kernel has not completed: the file must not be reopened.
    pub(super) fn stuck_writes(&self) -> u64 {
        self.stuck.load(Ordering::Relaxed)
    }

    /// The damage, if any.
    pub(super) fn damage(&self) -> Option<Damage> {
        let cause = self.now().cause()?;
        let since_ms = self.since_ms.load(Ordering::Relaxed);
        Some(Damage {
            cause,
            at: SystemTime::UNIX_EPOCH + Duration::from_millis(since_ms),
        })
    }

    /// Clears the damage after the device was reopened. An abandoned write stays recorded.
    pub(super) fn note_reopened(&self) {
        self.since_ms.store(0, Ordering::Relaxed);
        let (order, no) = (Ordering::Release, Ordering::Relaxed);
        let _ = self.word.fetch_update(order, no, |word| {
            let generation = (word >> GENERATION_SHIFT) + 1;
            Some((generation << GENERATION_SHIFT) | (word & ABANDONED))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_damage_cause_is_kept_until_reopen() {
        let condition = Condition::default();
        let sound = condition.now();
        assert_eq!((sound.cause(), condition.damage()), (None, None));
        for cause in CAUSES {
            condition.note_damage(cause);
            let damage = condition.damage().expect("damage was noted");
            assert_eq!(damage.cause, CAUSES[0]);
            assert!(damage.at > SystemTime::UNIX_EPOCH);
        }
        assert!(condition.now().is_abandoned());
        assert_eq!(condition.now().undamaged(), sound);
        condition.note_reopened();
        assert!(condition.now().is_abandoned() && condition.damage().is_none());
        assert!(!condition.now().same_generation(sound));
        condition.set_removed();
        assert!(condition.now().is_removed());
    }

    #[test]
    fn every_damage_cause_round_trips() {
        for cause in CAUSES {
            let condition = Condition::default();
            condition.note_damage(cause);
            assert_eq!(condition.damage().map(|it| it.cause), Some(cause));
        }
    }
}
