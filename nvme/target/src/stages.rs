//! What the reactors measure of commands, stage by stage, and how it is put together for readers.
//!
//! Times are those of turns: a stage begins and ends with the time that the reactor's turn had, so
//! what happens within one turn takes no time of its own. A command that does not wait in a stage
//! is not counted in it.

use std::ops::{Index, IndexMut};

use crate::latency::{LatencyCounts, LatencyHistogram};
use crate::statuses::StatusTable;
use crate::target::Target;

/// A part of the time that a read or write took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Waiting for a buffer. Counts those that had to wait.
    Buffer,
    /// Waiting for the host's data, from the buffer on. Counts those that had to wait.
    Fetch,
    /// In a device. Counts those that were; a read whose data a device lends at once is not.
    Device,
    /// From the result to the end of the turn in which the whole answer was handed to the network.
    Send,
    /// From the turn in which the command came to the end of the one in which its answer went.
    Total,
}

impl Stage {
    /// All of them, in their order.
    pub const ALL: [Self; 5] = [
        Self::Buffer,
        Self::Fetch,
        Self::Device,
        Self::Send,
        Self::Total,
    ];

    /// A name for people and programs.
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

/// Which commands are measured; others are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Measured {
    /// Read.
    Read,
    /// Write.
    Write,
}

/// Something for reads and something for writes.
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
/// How many reads and writes took how long.
pub type OperationCounts = ByOperation<LatencyCounts>;

impl Histograms {
    /// Back to zero, for another device in its place; only the owning reactor may call it.
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
    /// Adds another share.
    pub fn add(&mut self, other: &Self) {
        self.read.add(&other.read);
        self.write.add(&other.write);
    }

    /// What came since `earlier`.
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

/// What one reactor measures of one subsystem: all stages but that in a device, which is measured
/// by device.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct StageHistograms {
    pub(crate) buffer: Histograms,
    pub(crate) fetch: Histograms,
    pub(crate) send: Histograms,
    pub(crate) total: Histograms,
}

/// What one reactor measures of one subsystem.
#[derive(Debug, Default)]
pub(crate) struct Measures {
    pub(crate) stages: StageHistograms,
    pub(crate) statuses: StatusTable,
}

/// What all reactors measure of one subsystem. Made with the subsystem, and stays as long as it.
#[derive(Debug)]
pub(crate) struct SubsystemMeasures(Box<[Measures]>);

impl SubsystemMeasures {
    pub(crate) fn new(reactors: usize) -> Self {
        Self((0..reactors).map(|_| Measures::default()).collect())
    }

    /// A reactor's own part.
    #[inline]
    pub(crate) fn of(&self, reactor: usize) -> Option<&Measures> {
        self.0.get(reactor)
    }

    /// The parts of all reactors, in their order.
    pub(crate) fn each(&self) -> impl Iterator<Item = &Measures> {
        self.0.iter()
    }
}

/// How long the commands of one subsystem took, by stage.
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

/// All that was measured so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetLatency {
    /// By subsystem, with its name: all reactors together.
    pub subsystems: Vec<(String, StageCounts)>,
    /// By reactor: [`Stage::Total`] of all subsystems together.
    pub reactors: Vec<OperationCounts>,
    /// By the place of the device: [`Stage::Device`].
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

    /// What was measured of the subsystem of that name.
    #[must_use]
    pub fn subsystem(&self, nqn: &str) -> Option<&StageCounts> {
        let mut subsystems = self.subsystems.iter();
        let found = subsystems.find(|(name, _)| name == nqn)?;
        Some(&found.1)
    }
}
