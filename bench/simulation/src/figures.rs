//! Counters of runs.

use std::collections::BTreeMap;
use std::fmt;

use reactors::Nanos;

use crate::faults::Fault;

/// Counters of one run or of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Runs.
    pub seeds: u64,
    /// Events.
    pub events: u64,
    /// Completed I/O commands.
    pub ios: u64,
    /// I/O commands completed successfully.
    pub ios_succeeded: u64,
    /// Blocks whose content was checked.
    pub blocks_judged: u64,
    /// Commands whose connection ended before their completion.
    pub abandoned: u64,
    /// Opened connections.
    pub connections: u64,
    /// Opened connections over RDMA.
    pub rdma_connections: u64,
    /// The longest time to completion of an undisturbed I/O command.
    pub wait_max: Nanos,
    /// The longest such time relative to its limit, per thousand. The limit depends on the disks
    /// and the load.
    pub wait_permille_max: u64,
    /// Waits for memory that were long enough to be judged.
    pub memory_waits: u64,
    /// The most requests for data that a host received while another one, without memory of the
    /// target, waited for memory of that size.
    pub overtaken_max: u64,
    /// Virtual time.
    pub time: Nanos,
    /// Completed steps of live configuration changes.
    pub steps: u64,
    /// Checks of disk identifiers.
    pub identities_judged: u64,
    /// Controllers of anonymous hosts.
    pub anonymous_attached: u64,
    /// Completed reservation commands.
    pub reservations: u64,
    /// Reservation notifications that hosts read.
    pub notices: u64,
    /// Unanswered writes of hosts that were preempted.
    pub fenced_writes: u64,
    /// I/O commands that an ANA state refused.
    pub ana_refusals: u64,
    /// Blocks that were replaced by Compare and Write.
    pub replacements: u64,
    /// Blocks that were copied.
    pub copied_blocks: u64,
    /// Copies across namespaces that were sent.
    pub copies_across: u64,
    /// Copies whose data was in memory of drives, of the last appliance of each run.
    pub copies_in_drives: u64,
    /// Copies that drives executed by themselves, of the last appliance of each run.
    pub copies_by_drives: u64,
    /// Reads and writes whose data was in memory of drives, of the last appliance of each run.
    pub transfers_in_drives: u64,
    /// Copies of disks that were complete.
    pub device_copies: u64,
    /// Copies of disks that ended before.
    pub device_copies_stopped: u64,
    /// Copies of disks that did not begin.
    pub device_copies_refused: u64,
    /// Blocks of copied disks whose data was in memory of drives.
    pub device_copies_in_drives: u64,
    /// Blocks of copied disks that drives copied by themselves.
    pub device_copies_by_drives: u64,
    /// Lists of namespaces that were compared with masks.
    pub lists_judged: u64,
    /// Queues whose host was authenticated.
    pub authentications: u64,
    /// Attempts with wrong keys that were refused.
    pub wrong_keys: u64,
    /// Commands that were compared with rate limits.
    pub rates_judged: u64,
    /// Limits of paces that were judged.
    pub paces_judged: u64,
    /// Number of occurrences of each fault.
    pub faults: BTreeMap<Fault, u64>,
    /// Counters of the file service.
    pub files: FileFigures,
}

/// Counters of runs of the file service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileFigures {
    /// Runs.
    pub seeds: u64,
    /// Events.
    pub events: u64,
    /// Answered operations.
    pub operations: u64,
    /// Repetitions of answered requests that were answered.
    pub repeated: u64,
    /// Bytes of files that were compared.
    pub bytes_judged: u64,
    /// Ends of the server.
    pub kills: u64,
    /// Times at which the device began to fail.
    pub failures: u64,
    /// Volumes that became read-only.
    pub read_only: u64,
    /// Times at which the device of a durable volume disappeared.
    pub absences: u64,
    /// Times at which the server lost its volume.
    pub losses: u64,
    /// Times at which the share became read-only or could be changed again.
    pub share_changes: u64,
    /// Times at which the volume was removed and added again.
    pub moves: u64,
    /// Byte-range locks that were granted.
    pub locks_granted: u64,
    /// Opens, locks and accesses that were refused because of the state of another client.
    pub refusals: u64,
    /// Times at which a client was silent for about as long as its lease.
    pub silences: u64,
    /// Clients that have lost their state to others.
    pub dropped: u64,
    /// Opens and locks that were reclaimed.
    pub reclaims: u64,
    /// Opens and locks that clients could not reclaim.
    pub reclaims_refused: u64,
    /// Connections over RDMA that were established.
    pub rdma_connections: u64,
    /// Replies over RDMA.
    pub rdma_replies: u64,
    /// Calls over RDMA that were refused because of their chunks.
    pub rdma_refused: u64,
    /// Keys that replies have invalidated.
    pub rdma_invalidations: u64,
    /// Messages over RDMA that violate the protocol or an agreement.
    pub rdma_violations: u64,
}

impl FileFigures {
    fn add(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.events += other.events;
        self.operations += other.operations;
        self.repeated += other.repeated;
        self.bytes_judged += other.bytes_judged;
        self.kills += other.kills;
        self.failures += other.failures;
        self.read_only += other.read_only;
        self.absences += other.absences;
        self.losses += other.losses;
        self.share_changes += other.share_changes;
        self.moves += other.moves;
        self.locks_granted += other.locks_granted;
        self.refusals += other.refusals;
        self.silences += other.silences;
        self.dropped += other.dropped;
        self.reclaims += other.reclaims;
        self.reclaims_refused += other.reclaims_refused;
        self.rdma_connections += other.rdma_connections;
        self.rdma_replies += other.rdma_replies;
        self.rdma_refused += other.rdma_refused;
        self.rdma_invalidations += other.rdma_invalidations;
        self.rdma_violations += other.rdma_violations;
    }
}

impl fmt::Display for FileFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "files: {} seeds, {} events, {} operations, {} repetitions answered, {} bytes judged, \
             the server was killed {} times, the device failed {} times, {} volumes became read-only, \
             the device disappeared {} times, {} volumes were lost, \
             the share changed {} times, the volume was removed and added {} times, {} locks were granted, {} opens, locks and accesses refused, clients were silent {} times, \
             {} lost their state to others, {} opens and locks were reclaimed, {} could not be, \
             {} connections over RDMA with {} replies and {} refused calls, {} keys were invalidated, {} \
             messages violated rules",
            self.seeds,
            self.events,
            self.operations,
            self.repeated,
            self.bytes_judged,
            self.kills,
            self.failures,
            self.read_only,
            self.absences,
            self.losses,
            self.share_changes,
            self.moves,
            self.locks_granted,
            self.refusals,
            self.silences,
            self.dropped,
            self.reclaims,
            self.reclaims_refused,
            self.rdma_connections,
            self.rdma_replies,
            self.rdma_refused,
            self.rdma_invalidations,
            self.rdma_violations
        )
    }
}

impl Figures {
    /// Counts an occurrence of a fault.
    pub fn fault(&mut self, fault: Fault) {
        self.faults(fault, 1);
    }

    /// Counts several occurrences of a fault.
    pub fn faults(&mut self, fault: Fault, times: u64) {
        if times > 0 {
            *self.faults.entry(fault).or_default() += times;
        }
    }

    /// Adds the counters of another run.
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
        self.memory_waits += other.memory_waits;
        self.overtaken_max = self.overtaken_max.max(other.overtaken_max);
        self.time += other.time;
        self.steps += other.steps;
        self.identities_judged += other.identities_judged;
        self.anonymous_attached += other.anonymous_attached;
        self.reservations += other.reservations;
        self.notices += other.notices;
        self.fenced_writes += other.fenced_writes;
        self.ana_refusals += other.ana_refusals;
        self.replacements += other.replacements;
        self.copied_blocks += other.copied_blocks;
        self.copies_across += other.copies_across;
        self.copies_in_drives += other.copies_in_drives;
        self.copies_by_drives += other.copies_by_drives;
        self.transfers_in_drives += other.transfers_in_drives;
        self.device_copies += other.device_copies;
        self.device_copies_stopped += other.device_copies_stopped;
        self.device_copies_refused += other.device_copies_refused;
        self.device_copies_in_drives += other.device_copies_in_drives;
        self.device_copies_by_drives += other.device_copies_by_drives;
        self.lists_judged += other.lists_judged;
        self.authentications += other.authentications;
        self.wrong_keys += other.wrong_keys;
        self.rates_judged += other.rates_judged;
        self.paces_judged += other.paces_judged;
        for (fault, times) in &other.faults {
            self.faults(*fault, *times);
        }
        self.files.add(&other.files);
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.files.seeds > 0 {
            writeln!(f, "{}", self.files)?;
        }
        writeln!(
            f,
            "{} seeds, {} events, {:.0} s of virtual time",
            self.seeds,
            self.events,
            self.time.as_secs_f64()
        )?;
        writeln!(
            f,
            "{} I/Os completed ({} successfully), {} abandoned with their connections, {} blocks \
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
             nobody configured, {} reservation commands, {} notifications, {} fenced writes, {} refusals for lack of access, {} blocks replaced by Compare and Write, {} copied ({} copies across namespaces, {} in memory of drives, {} by drives), {} reads and writes in memory of drives, {} copies of disks complete ({} stopped, {} refused, {} blocks in memory of drives, {} by drives), {} lists of namespaces judged, {} queues authenticated, {} wrong keys refused, {} commands with a rate limit, {} limits of paces, longest undisturbed wait {} ({} of a thousand of its bound), {} \
             waits for memory, at most {} grants before that of a waiting host",
            self.steps,
            self.identities_judged,
            self.anonymous_attached,
            self.reservations,
            self.notices,
            self.fenced_writes,
            self.ana_refusals,
            self.replacements,
            self.copied_blocks,
            self.copies_across,
            self.copies_in_drives,
            self.copies_by_drives,
            self.transfers_in_drives,
            self.device_copies,
            self.device_copies_stopped,
            self.device_copies_refused,
            self.device_copies_in_drives,
            self.device_copies_by_drives,
            self.lists_judged,
            self.authentications,
            self.wrong_keys,
            self.rates_judged,
            self.paces_judged,
            self.wait_max,
            self.wait_permille_max,
            self.memory_waits,
            self.overtaken_max
        )?;
        write!(f, "faults:")?;
        for (fault, times) in &self.faults {
            write!(f, " {fault} {times}")?;
        }
        Ok(())
    }
}
