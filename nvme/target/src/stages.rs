//! Latencies of commands by stage, and how the reactors' measurements are combined for readers.
//!
//! Times have the resolution of turns: a stage begins and ends with the time of a reactor's turn,
//! so a stage within one turn takes no time. A command that does not wait in a stage is not counted
//! in it.

use std::ops::{Index, IndexMut};

use crate::latency::{LatencyCounts, LatencyHistogram};
use crate::statuses::StatusTable;
use crate::target::Target;

/// A part of the latency of a read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Waiting for a buffer. Counts only commands that had to wait.
    Buffer,
    /// Waiting for the host's data after getting the buffer. Counts only commands that had to wait.
    Fetch,
    /// In a device. Does not count reads that borrow the device's memory inline.
    Device,
    /// From the result to the end of the turn in which the whole response was passed to the
    /// network.
    Send,
    /// From the turn in which the command was received to the end of the turn in which its response
    /// was sent.
    Total,
}

impl Stage {
    /// All stages in order.
    pub const ALL: [Self; 5] = [
        Self::Buffer,
        Self::Fetch,
        Self::Device,
        Self::Send,
        Self::Total,
    ];

    /// A name for users and programs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Buffer => "buffer",
            Self::Fetch => "fetch",
            Self::Device => "device",
            Self::Send => "send",
            Self::Total => "total",
        }
    }
}

/// The commands that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Measured {
    /// Read.
    Read,
    /// Write.
    Write,
}

/// One value for reads and one for writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByOperation<T> {
    /// For reads.
    pub read: T,
    /// For writes.
    pub write: T,
}

impl<T> Index<Measured> for ByOperation<T> {
    type Output = T;

    #[inline]
    fn index(&self, measured: Measured) -> &T {
        match measured {
            Measured::Read => &self.read,
            Measured::Write => &self.write,
        }
    }
}

impl<T> IndexMut<Measured> for ByOperation<T> {
    fn index_mut(&mut self, measured: Measured) -> &mut T {
        match measured {
            Measured::Read => &mut self.read,
            Measured::Write => &mut self.write,
        }
    }
}

/// The histograms of reads and writes.
pub(crate) type Histograms = ByOperation<LatencyHistogram>;
/// The latency distributions of reads and writes.
pub type OperationCounts = ByOperation<LatencyCounts>;

impl Histograms {
    /// Resets to zero for another device with the same index; only the owning reactor may call it.
    pub(crate) fn reset(&self) {
        self.read.reset();
        self.write.reset();
    }

    fn add_to(&self, counts: &mut OperationCounts) {
        self.read.add_to(&mut counts.read);
        self.write.add_to(&mut counts.write);
    }
}

impl OperationCounts {
    /// Adds other counts.
    pub fn add(&mut self, other: &Self) {
        self.read.add(&other.read);
        self.write.add(&other.write);
    }

    /// The difference to `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            read: self.read.since(&earlier.read),
            write: self.write.since(&earlier.write),
        }
    }

    /// Reads and writes together.
    #[must_use]
    pub fn together(&self) -> LatencyCounts {
        let mut sum = self.read.clone();
        sum.add(&self.write);
        sum
    }
}

/// One reactor's measurements of one subsystem: all stages except in a device, which is measured by
/// device.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct StageHistograms {
    pub(crate) buffer: Histograms,
    pub(crate) fetch: Histograms,
    pub(crate) send: Histograms,
    pub(crate) total: Histograms,
}

/// One reactor's measurements and error counts of one subsystem.
#[derive(Debug, Default)]
pub(crate) struct Measures {
    pub(crate) stages: StageHistograms,
    pub(crate) statuses: StatusTable,
}

/// All reactors' measurements of one subsystem. They exist as long as the subsystem.
#[derive(Debug)]
pub(crate) struct SubsystemMeasures(Box<[Measures]>);

impl SubsystemMeasures {
    pub(crate) fn new(reactors: usize) -> Self {
        Self((0..reactors).map(|_| Measures::default()).collect())
    }

    /// The measurements of one reactor.
    #[inline]
    pub(crate) fn of(&self, reactor: usize) -> Option<&Measures> {
        self.0.get(reactor)
    }

    /// The measurements of all reactors in order.
    pub(crate) fn each(&self) -> impl Iterator<Item = &Measures> {
        self.0.iter()
    }
}

/// The latencies of the commands of one subsystem, by stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageCounts([OperationCounts; Stage::ALL.len()]);

impl Index<Stage> for StageCounts {
    type Output = OperationCounts;

    fn index(&self, stage: Stage) -> &OperationCounts {
        &self.0[stage as usize]
    }
}

impl IndexMut<Stage> for StageCounts {
    fn index_mut(&mut self, stage: Stage) -> &mut OperationCounts {
        &mut self.0[stage as usize]
    }
}

/// All measurements so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetLatency {
    /// By subsystem name, over all reactors.
    pub subsystems: Vec<(String, StageCounts)>,
    /// By reactor: [`Stage::Total`] over all subsystems.
    pub reactors: Vec<OperationCounts>,
    /// By device index: [`Stage::Device`].
    pub devices: Vec<OperationCounts>,
}

impl TargetLatency {
    pub(crate) fn take(target: &Target) -> Self {
        let published = target.published();
        let mut reactors = vec![OperationCounts::default(); target.reactors()];
        let mut devices = vec![OperationCounts::default(); published.devices.len()];
        for core in target.cores().iter().flatten() {
            for (sum, histograms) in devices.iter_mut().zip(&core.device_latency) {
                histograms.add_to(sum);
            }
        }
        let mut subsystems = Vec::new();
        for view in published.subsystems.iter().flatten() {
            let mut counts = StageCounts::default();
            for (place, measures) in view.measures.each().enumerate() {
                let histograms = &measures.stages;
                histograms.buffer.add_to(&mut counts[Stage::Buffer]);
                histograms.fetch.add_to(&mut counts[Stage::Fetch]);
                histograms.send.add_to(&mut counts[Stage::Send]);
                histograms.total.add_to(&mut counts[Stage::Total]);
                if let Some(reactor) = reactors.get_mut(place) {
                    histograms.total.add_to(reactor);
                }
            }
            for device in view.devices() {
                if let Some(device) = devices.get(device) {
                    counts[Stage::Device].add(device);
                }
            }
            subsystems.push((view.config.nqn.clone(), counts));
        }
        Self {
            subsystems,
            reactors,
            devices,
        }
    }

    /// The measurements of the subsystem with this name.
    #[must_use]
    pub fn subsystem(&self, nqn: &str) -> Option<&StageCounts> {
        let mut subsystems = self.subsystems.iter();
        let found = subsystems.find(|(name, _)| name == nqn)?;
        Some(&found.1)
    }
}
