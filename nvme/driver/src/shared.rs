//! State shared by the owner of a drive and its queue pairs, without a lock on the I/O path.
//!
//! The owner writes one word, [`StateWord`]: the state of the drive and a tick of its clock. Every
//! pair reads it once per poll and acknowledges changes of state in its [`PairShared`], where it
//! also reports faults to the owner.
//!
//! **Why memory is never freed under a device.** Queues, lists and leases belong to the device from
//! the doorbell until either the completion was received or the device has certainly stopped:
//! CSTS.RDY is 0 after CC.EN was cleared (Base 2.1 §3.7.2: the controller stops processing and
//! transfers nothing any more), or bus mastering is off, or the function's registers read as all
//! ones, which is only the case while it is off the bus, without power or in reset, from each of
//! which it returns with bus mastering off. Only then is the state [`Phase::Stopped`] or
//! [`Phase::Gone`] published, and only these make pairs return leases. Queue memory belongs to
//! [`Shared`], whose drop stops the device first and leaks the memory if that fails.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bitfield_struct::bitfield;
use block::{DriveHealth, ErrorRecord};
use hugemem::Arena;

use crate::backing::DeviceBacking;
use crate::drive_access::DriveAccess;
use crate::error::GoneReason;
use crate::handshake::{Presence, Word};
use crate::identity::Identity;
use crate::memory::{AdminMemory, DriveMemory};
use crate::options::DriveOptions;
use crate::registers::Registers;

/// The operations that pairs may perform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// None yet: requests wait.
    Starting,
    /// All.
    Active,
    /// Requests in flight complete; new ones are refused.
    Draining,
    /// A reset begins: no doorbell is rung and no queue is polled. Requests wait.
    Quiesce,
    /// The device has stopped: requests in flight end. Other requests wait.
    Stopped,
    /// The device has stopped permanently: requests in flight end, new ones are refused.
    Gone,
}

impl Phase {
    const ALL: [Self; 6] = [
        Self::Starting,
        Self::Active,
        Self::Draining,
        Self::Quiesce,
        Self::Stopped,
        Self::Gone,
    ];

    const fn from_bits(bits: u8) -> Self {
        if (bits as usize) < Self::ALL.len() {
            Self::ALL[bits as usize]
        } else {
            Self::Gone
        }
    }

    const fn into_bits(self) -> u8 {
        self as u8
    }
}

/// The word that every pair reads once per poll.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub(crate) struct StateWord {
    /// The owner's clock in [`Deadlines::tick`](crate::Deadlines) units; wraps.
    pub(crate) tick: u32,
    /// Number of times that the queues were created. Commands of another epoch are over.
    #[bits(24)]
    pub(crate) epoch: u32,
    #[bits(8, default = Phase::Starting)]
    pub(crate) phase: Phase,
}

impl StateWord {
    /// Increments the epoch. Epochs wrap, and no pair misses all of them.
    pub(crate) fn with_next_epoch(self) -> Self {
        let epoch = (self.epoch() + 1) % (1 << Self::EPOCH_BITS);
        self.with_epoch(epoch)
    }

    /// The word without the tick, which pairs acknowledge.
    pub(crate) fn state(self) -> Self {
        self.with_tick(0)
    }
}

/// A fault that a pair found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    None,
    /// A command exceeded its deadline and is to be aborted.
    Overdue,
    /// A command was not ended by its abort.
    Stuck,
    /// A completion has the identifier of a slot that does not exist.
    UnknownIdentifier,
    /// A completion has the identifier of a command that completed before.
    StaleIdentifier,
    /// A completion has the wrong submission queue identifier, or an invalid head.
    BadHead,
}

impl FaultKind {
    const ALL: [Self; 6] = [
        Self::None,
        Self::Overdue,
        Self::Stuck,
        Self::UnknownIdentifier,
        Self::StaleIdentifier,
        Self::BadHead,
    ];

    const fn from_bits(bits: u8) -> Self {
        if (bits as usize) < Self::ALL.len() {
            Self::ALL[bits as usize]
        } else {
            Self::None
        }
    }

    const fn into_bits(self) -> u8 {
        self as u8
    }
}

/// A fault with its command and epoch.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) cid: u16,
    #[bits(24)]
    pub(crate) epoch: u32,
    #[bits(8, default = FaultKind::None)]
    pub(crate) kind: FaultKind,
    __: u16,
}

/// Position in a pair's queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) epoch: u32,
    pub(crate) tail: u16,
    pub(crate) head: u16,
    pub(crate) phase: bool,
}

/// State shared by one pair and the owner.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct PairShared {
    /// Whether a reactor polls the pair, and the word that the pair acts upon.
    pub(crate) presence: Presence,
    /// A [`Fault`] for the owner; 0 after the owner took the last one.
    pub(crate) fault: AtomicU64,
    /// Requests in flight at the pair's last flush or poll.
    pub(crate) in_flight: AtomicU32,
    /// 0 while the reactor is awake or has no command in flight; otherwise the submission tick of
    /// its oldest command, plus one.
    pub(crate) asleep: AtomicU64,
    /// Position in the queues when the last pair was detached.
    pub(crate) position: Mutex<Position>,
    /// Doorbell register writes.
    pub(crate) doorbells: AtomicU64,
    /// Commands submitted.
    pub(crate) commands: AtomicU64,
    /// Whether the pair exists: a second one would write the same submission queue.
    pub(crate) exists: AtomicBool,
}

/// Adds to a counter that only this thread writes.
#[inline]
pub(crate) fn count(counter: &AtomicU64, amount: u64) {
    let value = counter.load(Ordering::Relaxed).wrapping_add(amount);
    counter.store(value, Ordering::Relaxed);
}

impl PairShared {
    /// Reports a fault to the owner. Returns false if the previous one is still pending.
    pub(crate) fn report(&self, fault: Fault) -> bool {
        let order = (Ordering::Release, Ordering::Relaxed);
        self.fault
            .compare_exchange(0, fault.into_bits(), order.0, order.1)
            .is_ok()
    }

    /// Takes the pending fault.
    pub(crate) fn take_fault(&self) -> Option<Fault> {
        if self.fault.load(Ordering::Relaxed) == 0 {
            return None;
        }
        Some(Fault::from_bits(self.fault.swap(0, Ordering::Acquire)))
    }
}

/// Counters of a drive since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriveCounters {
    /// I/O commands submitted to the drive, including each command of split requests.
    pub commands: u64,
    /// Doorbell register writes by queue pairs.
    pub doorbells: u64,
    /// Commands that exceeded their deadline.
    pub timeouts: u64,
    /// Abort commands sent.
    pub aborts: u64,
    /// Controller resets started.
    pub resets: u64,
    /// Resets that ended with the drive ready again.
    pub recoveries: u64,
    /// Completions with an identifier that no command can have.
    pub unknown_identifiers: u64,
    /// Completions of commands that had completed before.
    pub stale_identifiers: u64,
    /// Completions with the wrong submission queue identifier, or an invalid head.
    pub bad_heads: u64,
    /// Asynchronous events received.
    pub events: u64,
    /// Number of times that the drive was reattached.
    pub reattachments: u64,
}

/// The owner's counters.
#[derive(Default)]
pub(crate) struct OwnerCounters {
    pub(crate) timeouts: AtomicU64,
    pub(crate) aborts: AtomicU64,
    pub(crate) resets: AtomicU64,
    pub(crate) recoveries: AtomicU64,
    pub(crate) unknown_identifiers: AtomicU64,
    pub(crate) stale_identifiers: AtomicU64,
    pub(crate) bad_heads: AtomicU64,
    pub(crate) events: AtomicU64,
    pub(crate) reattachments: AtomicU64,
}

/// State of a function reset, which blocks and is done by the control thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FunctionReset {
    #[default]
    NotNeeded,
    Needed,
    Done,
    Failed,
}

/// The drive's health from its SMART log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Smart {
    pub(crate) health: DriveHealth,
    pub(crate) temperature_kelvin: Option<u16>,
    pub(crate) available_spare_percent: u8,
    pub(crate) used_percent: u8,
}

/// An entry of the drive's error log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriveErrorRecord {
    /// The namespace; 0 or FFFFFFFFh for an error of the controller.
    pub(crate) nsid: u32,
    pub(crate) record: ErrorRecord,
}

/// State that changes rarely, for the control plane, behind a mutex.
#[derive(Default)]
pub(crate) struct Control {
    /// The backing, while the drive is in use.
    pub(crate) backing: Option<Arc<dyn DeviceBacking>>,
    /// The pairs' access to the drive, while it is ready.
    pub(crate) drive_access: Option<Arc<DriveAccess>>,
    pub(crate) gone: Option<GoneReason>,
    /// A reattached drive, for the owner to start.
    pub(crate) reattached: Option<Arc<dyn DeviceBacking>>,
    pub(crate) function_reset: FunctionReset,
    pub(crate) smart: Option<Smart>,
    /// The drive's error log, newest first.
    pub(crate) errors: Vec<DriveErrorRecord>,
    /// Whether the owner shut the drive down, because its reactor stopped or the drive is closed.
    pub(crate) shut_down: bool,
}

type Wake = Box<dyn Fn(usize) + Send + Sync>;

/// State shared by all parts of a drive.
pub(crate) struct Shared {
    state_word: Word,
    pub(crate) pairs: Box<[PairShared]>,
    pub(crate) options: DriveOptions,
    pub(crate) arena: Arc<Arena>,
    /// Identifier of this drive, unique in the process.
    pub(crate) id: u64,
    /// The drive's identity, set at the first start.
    pub(crate) identity: OnceLock<Identity>,
    pub(crate) admin: Arc<AdminMemory>,
    /// Queues and lists, allocated at the first start.
    pub(crate) memory: OnceLock<DriveMemory>,
    pub(crate) counters: OwnerCounters,
    /// Whether the device may be accessing memory.
    pub(crate) dma_running: AtomicBool,
    /// Whether the owner is to close the drive. It reads it at every tick.
    pub(crate) close_requested: AtomicBool,
    /// Whether the owner is to release the drive. It reads it at every tick.
    pub(crate) release_requested: AtomicBool,
    control: Mutex<Control>,
    waker: Mutex<Option<Wake>>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Shared {
    pub(crate) fn new(
        backing: Arc<dyn DeviceBacking>,
        arena: Arc<Arena>,
        admin: AdminMemory,
        options: DriveOptions,
    ) -> Arc<Self> {
        let pairs = (0..options.reactors).map(|_| PairShared::default());
        Arc::new(Self {
            state_word: Word::new(StateWord::new().into_bits()),
            pairs: pairs.collect(),
            options,
            arena,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            identity: OnceLock::new(),
            admin: Arc::new(admin),
            memory: OnceLock::new(),
            counters: OwnerCounters::default(),
            dma_running: AtomicBool::new(false),
            close_requested: AtomicBool::new(false),
            release_requested: AtomicBool::new(false),
            control: Mutex::new(Control {
                backing: Some(backing),
                ..Control::default()
            }),
            waker: Mutex::new(None),
        })
    }

    /// The current word: state and tick.
    #[inline]
    pub(crate) fn state_word(&self) -> StateWord {
        StateWord::from_bits(self.state_word.load())
    }

    /// Attaches a pair and returns the word that it has to act upon.
    pub(crate) fn attach(&self, pair: &PairShared) -> StateWord {
        StateWord::from_bits(pair.presence.attach(&self.state_word))
    }

    /// Publishes a word. Only the owner calls it.
    pub(crate) fn publish(&self, state_word: StateWord) {
        self.state_word.publish(state_word.into_bits());
    }

    /// Whether every pair that a reactor polls acts upon the published state.
    pub(crate) fn all_acknowledged(&self) -> bool {
        let state = self.state_word().state().into_bits();
        self.pairs.iter().all(|pair| pair.presence.follows(state))
    }

    /// Number of requests in flight on all pairs.
    pub(crate) fn in_flight(&self) -> u64 {
        let counts = self
            .pairs
            .iter()
            .map(|pair| u64::from(pair.in_flight.load(Ordering::Relaxed)));
        counts.sum()
    }

    pub(crate) fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_waker(&self, waker: Wake) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    /// Wakes a reactor. Not for the I/O path: it locks a mutex.
    pub(crate) fn wake(&self, reactor: usize) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waker) = waker.as_ref() {
            waker(reactor);
        }
    }

    pub(crate) fn wake_all(&self) {
        for reactor in 0..self.options.reactors {
            self.wake(reactor);
        }
    }

    pub(crate) fn wake_owner(&self) {
        self.wake(self.options.owner);
    }

    pub(crate) fn counters(&self) -> DriveCounters {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let own = &self.counters;
        DriveCounters {
            commands: self.pairs.iter().map(|pair| of(&pair.commands)).sum(),
            doorbells: self.pairs.iter().map(|pair| of(&pair.doorbells)).sum(),
            timeouts: of(&own.timeouts),
            aborts: of(&own.aborts),
            resets: of(&own.resets),
            recoveries: of(&own.recoveries),
            unknown_identifiers: of(&own.unknown_identifiers),
            stale_identifiers: of(&own.stale_identifiers),
            bad_heads: of(&own.bad_heads),
            events: of(&own.events),
            reattachments: of(&own.reattachments),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.dma_running.load(Ordering::Acquire) {
            return;
        }
        let backing = self.control().backing.take();
        let stopped = backing.is_some_and(|backing| Registers::new(&*backing).stop_dma().is_ok());
        if !stopped {
            tracing::error!(
                drive = self.options.name,
                "the drive could not be stopped: the memory of its queues is leaked"
            );
            std::mem::forget(self.memory.take());
            std::mem::forget(Arc::clone(&self.admin));
        }
    }
}
