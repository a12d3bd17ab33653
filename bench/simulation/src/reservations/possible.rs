//! What a host may do with a disk while commands that change its reservations are in progress: the
//! answers of all states that are possible.

use reactors::Nanos;

use super::model::Reservations;

/// Hosts of which a set has room.
pub const HOSTS_MAX: usize = 8;

/// By host: whether some possible state allows or forbids reads and writes, and whether its commands
/// may be aborted by a preemption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Possible(u64);

const READ_ALLOWED: u64 = 1;
const READ_FORBIDDEN: u64 = 2;
const WRITE_ALLOWED: u64 = 4;
const WRITE_FORBIDDEN: u64 = 8;
const ABORTED: u64 = 16;
/// In the bits of the first host.
const PERSISTS: u64 = 32;
const LAPSES: u64 = 64;
const BITS: usize = 8;
const _: () = assert!(HOSTS_MAX * BITS <= u64::BITS as usize);

impl Possible {
    /// Everything is possible.
    pub const ANYTHING: Self = Self(u64::MAX);

    /// Adds the answers of a state.
    pub fn add(&mut self, state: &Reservations) {
        for host in 0..HOSTS_MAX {
            let read = if state.may_read(host) {
                READ_ALLOWED
            } else {
                READ_FORBIDDEN
            };
            let write = if state.may_write(host) {
                WRITE_ALLOWED
            } else {
                WRITE_FORBIDDEN
            };
            self.0 |= (read | write) << (host * BITS);
        }
        self.0 |= if state.persists { PERSISTS } else { LAPSES };
    }

    /// Whether the Persist Through Power Loss state may have this value.
    #[must_use]
    pub fn may_persist(self, persists: bool) -> bool {
        self.has(0, if persists { PERSISTS } else { LAPSES })
    }

    /// Adds that commands of a host may be aborted.
    pub fn add_abort(&mut self, host: usize) {
        self.0 |= ABORTED << (host * BITS);
    }

    /// Adds another set.
    pub fn union(&mut self, other: Self) {
        self.0 |= other.0;
    }

    fn has(self, host: usize, bit: u64) -> bool {
        self.0 & bit << (host * BITS) != 0
    }

    /// Whether a host may be allowed to write, or to read.
    #[must_use]
    pub fn allows(self, host: usize, writes: bool) -> bool {
        let bit = if writes { WRITE_ALLOWED } else { READ_ALLOWED };
        self.has(host, bit)
    }

    /// Whether a host may be forbidden to write, or to read.
    #[must_use]
    pub fn forbids(self, host: usize, writes: bool) -> bool {
        let bit = if writes {
            WRITE_FORBIDDEN
        } else {
            READ_FORBIDDEN
        };
        self.has(host, bit)
    }

    /// Whether commands of a host may be aborted by a preemption.
    #[must_use]
    pub fn aborts(self, host: usize) -> bool {
        self.has(host, ABORTED)
    }
}

/// The possible states over time.
#[derive(Clone, Debug)]
pub struct PossibleLog(Vec<(Nanos, Possible)>);

impl PossibleLog {
    /// A log that begins with a state.
    #[must_use]
    pub fn new(state: &Reservations) -> Self {
        let mut first = Possible::default();
        first.add(state);
        Self(vec![(Nanos::ZERO, first)])
    }

    /// Notes that other answers are possible from now on.
    pub fn push(&mut self, now: Nanos, possible: Possible) {
        if self.now() != possible {
            self.0.push((now, possible));
        }
    }

    /// The answers that are possible now.
    #[must_use]
    pub fn now(&self) -> Possible {
        self.0.last().map_or(Possible::ANYTHING, |it| it.1)
    }

    /// The answers that were possible at some time since `from`.
    #[must_use]
    pub fn since(&self, from: Nanos) -> Possible {
        // An answer of the same instant may have followed.
        let first = self.0.partition_point(|(at, _)| *at < from);
        let mut all = Possible::default();
        for (_, possible) in &self.0[first.saturating_sub(1)..] {
            all.union(*possible);
        }
        all
    }
}
