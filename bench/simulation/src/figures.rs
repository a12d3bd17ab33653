//! What runs did, counted.

use std::collections::BTreeMap;
use std::fmt;

use reactors::Nanos;

use crate::swarm::Fault;

/// Counts of one run or of many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Runs.
    pub seeds: u64,
    /// Events.
    pub events: u64,
    /// I/O commands that were answered.
    pub ios: u64,
    /// Of these, with success.
    pub ios_succeeded: u64,
    /// Blocks that were judged.
    pub blocks_judged: u64,
    /// Commands whose connection ended first.
    pub abandoned: u64,
    /// Connections that were opened.
    pub connections: u64,
    /// Of these, over RDMA.
    pub rdma_connections: u64,
    /// The longest that an undisturbed I/O command waited for its answer.
    pub wait_max: Nanos,
    /// The same in thousandths of what the disks and the load allowed it.
    pub wait_permille_max: u64,
    /// Virtual time.
    pub time: Nanos,
    /// Steps of live changes that were carried out.
    pub steps: u64,
    /// Identifiers of disks that were judged.
    pub identities_judged: u64,
    /// Controllers of hosts that nobody configured.
    pub anonymous_attached: u64,
    /// How often each fault struck.
    pub faults: BTreeMap<Fault, u64>,
}

impl Figures {
    /// A fault struck.
    pub fn fault(&mut self, fault: Fault) {
        self.faults(fault, 1);
    }

    /// A fault struck so many times.
    pub fn faults(&mut self, fault: Fault, times: u64) {
        if times > 0 {
            *self.faults.entry(fault).or_default() += times;
        }
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: &Figures) {
        self.seeds += other.seeds;
        self.events += other.events;
        self.ios += other.ios;
        self.ios_succeeded += other.ios_succeeded;
        self.blocks_judged += other.blocks_judged;
        self.abandoned += other.abandoned;
        self.connections += other.connections;
        self.rdma_connections += other.rdma_connections;
        self.wait_max = self.wait_max.max(other.wait_max);
        self.wait_permille_max = self.wait_permille_max.max(other.wait_permille_max);
        self.time += other.time;
        self.steps += other.steps;
        self.identities_judged += other.identities_judged;
        self.anonymous_attached += other.anonymous_attached;
        for (fault, times) in &other.faults {
            self.faults(*fault, *times);
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} seeds, {} events, {:.0} s of virtual time",
            self.seeds,
            self.events,
            self.time.as_secs_f64()
        )?;
        writeln!(
            f,
            "{} I/Os answered ({} with success), {} given up with their connections, {} blocks \
             judged, {} connections ({} over RDMA)",
            self.ios,
            self.ios_succeeded,
            self.abandoned,
            self.blocks_judged,
            self.connections,
            self.rdma_connections
        )?;
        writeln!(
            f,
            "{} steps of live changes, identifiers judged {} times, {} controllers of hosts that \
             nobody configured, longest undisturbed wait {} ({} of a thousand of its bound)",
            self.steps,
            self.identities_judged,
            self.anonymous_attached,
            self.wait_max,
            self.wait_permille_max
        )?;
        write!(f, "faults:")?;
        for (fault, times) in &self.faults {
            write!(f, " {fault} {times}")?;
        }
        Ok(())
    }
}
