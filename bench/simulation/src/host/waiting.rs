//! An independent bound on the time to completion of a command, from the time that its disk needs
//! per request and from the number of requests that may be before it.

use reactors::Nanos;

use super::connection::{Connection, Outstanding};
use super::greedy::GREED_MAX;
use super::{Command, Host, HostEnv, Io, IoKind, LATENCY_MAX};
use crate::fairness::size_of_slice;
use crate::faults::Fault;
use crate::judge::Violation;
use crate::limits;
use crate::paces;
use crate::storage::Storage;
use crate::swarm::Swarm;

/// Time that reactors, the network and their polls may add to the time of disks.
const SLACK: Nanos = Nanos::from_millis(5);
/// Maximum wait of a write for borrowed blocks of a RAM device, whatever the reader does.
const BORROWED_MAX: Nanos = Nanos::from_millis(150);
/// Additional time for which a hanging RDMA device may keep borrowed blocks, until the posted
/// requests are flushed or given up.
const STUCK_MAX: Nanos = Nanos::from_millis(1100);
/// Posted RDMA requests cannot be cancelled: the target ends a connection after 5 s without
/// progress, and the device then flushes them.
const LATE_MAX: Nanos = Nanos::from_secs(6);
/// Maximum time for which a connection that transfers no data keeps memory that another host needs:
/// the target's 2 s, and its checks.
const HELD_MAX: Nanos = Nanos::from_secs(3);
/// Maximum time until a request that a disk deferred is submitted again.
const RETRY: Nanos = Nanos::from_micros(50);
/// Maximum number of consecutive deferrals of a request, with near certainty.
const RETRIES_MAX: u64 = 40;

impl Host {
    /// The bound of an undisturbed I/O command; `None` if only [`LATENCY_MAX`] applies.
    fn wait_bound(env: &HostEnv<'_>, io: &Io, since: Nanos) -> Option<Nanos> {
        // It needs a slice of a large size, and each of its ranges is a step.
        if io.kind == IoKind::Copy {
            return None;
        }
        let swarm = env.swarm;
        let faults = swarm.faults;
        // Drives hang, arenas run out of memory, streams arrive byte by byte.
        let coarse = [
            Fault::Drive,
            Fault::Arena,
            Fault::Grain,
            Fault::Window,
            Fault::Rdma,
            Fault::SlowWriter,
            Fault::Slow,
            Fault::Linger,
            Fault::File,
            Fault::Greedy,
        ];
        if io.extents.iter().any(|it| swarm.ram[it.disk]) {
            return Self::wait_bound_in_memory(env, io, since);
        }
        if coarse.iter().any(|it| faults.has(*it)) {
            return None;
        }
        let behaviour = swarm.disk_behaviour;
        let put_off = if faults.has(Fault::Later) {
            RETRY.as_nanos() * RETRIES_MAX
        } else {
            0
        };
        let request = behaviour.latency_max.as_nanos() + put_off;
        // Each of the commands has several steps.
        let copies = match faults.has(Fault::DeviceCopy) {
            true => (block::COPIES_MAX * block::COPY_PIECES_MAX) as u64,
            false => 0,
        };
        let load = swarm.outstanding_max() + copies;
        let steps = match io.kind {
            IoKind::Deallocate => 4,
            IoKind::Flush => swarm.disks.len() as u64,
            IoKind::Read | IoKind::Write | IoKind::WriteZeroes | IoKind::Compare | IoKind::Copy => {
                2
            }
        };
        let watchdog_loop = 1 + load.div_ceil(swarm.device_queue_depth as u64);
        let network = 4 * env.network.latency_max.as_nanos();
        Some(Nanos(steps * request * watchdog_loop * 2 + network) + SLACK)
    }

    /// The bound of a write to a RAM disk, independent of readers of the same blocks and of slow
    /// disks. Readers yield to writers for thousands of polls.
    fn wait_bound_in_memory(env: &HostEnv<'_>, io: &Io, since: Nanos) -> Option<Nanos> {
        let swarm = env.swarm;
        // The host itself is slow to send data, or its reads fill the stream.
        let slow_ends = [Fault::SlowWriter, Fault::Grain, Fault::Window];
        let is_late = slow_ends.iter().any(|it| swarm.faults.has(*it));
        if io.version == 0 || is_late {
            return None;
        }
        // Requests of slow disks, one after the other, may occupy the only slice of a size.
        let slow = match (swarm.faults.has(Fault::Slow), needs_rare_slice(swarm, io)) {
            (true, true) => {
                Nanos(swarm.disk_behaviour.slow_max.as_nanos() * swarm.outstanding_max())
            }
            (true, false) => swarm.disk_behaviour.slow_max,
            (false, _) => Nanos::ZERO,
        };
        let stuck = if swarm.faults.has(Fault::Late) {
            LATE_MAX
        } else if swarm.faults.has(Fault::WorkErrors) {
            STUCK_MAX
        } else {
            Nanos::ZERO
        };
        // Hosts take turns. If there is one slice of a size, each connection that occupied memory may
        // have it once before this command, until the target has ended the connection.
        let occupants = env.occupied_at.iter();
        let is_recent = |at: &&Nanos| since < **at + GREED_MAX;
        let held = match needs_rare_slice(swarm, io) {
            true => Nanos(HELD_MAX.as_nanos() * occupants.filter(is_recent).count() as u64),
            false => Nanos::ZERO,
        };
        let network = Nanos(16 * env.network.latency_max.as_nanos());
        Some(BORROWED_MAX + stuck + slow + held + network + SLACK)
    }

    /// The part of the wait of a command since `since` in which a lingering write occupied memory.
    /// The target cannot take memory back from a device, so a host may wait for the only slice of a
    /// size, once for each command before its own. The rest of the wait is bounded as usual.
    pub(super) fn lingering(env: &HostEnv<'_>, io: &Io, since: Nanos) -> Nanos {
        let swarm = env.swarm;
        if !swarm.faults.has(Fault::Linger) || !needs_rare_slice(swarm, io) {
            return Nanos::ZERO;
        }
        let spans = env.disks.iter().flat_map(Storage::lingering);
        covered(spans.collect(), since, env.now)
    }

    /// Compares the time that a command has waited with its bound.
    pub(super) fn check_wait(
        &self,
        env: &mut HostEnv<'_>,
        qid: u16,
        outstanding: &Outstanding,
    ) -> Result<(), Violation> {
        let Command::Io(io) = &outstanding.command else {
            return Ok(());
        };
        let connection = self.io.iter().find(|it: &&Connection| it.qid() == qid);
        let since = connection.and_then(|it| self.undisturbed_since(env, it, outstanding));
        let Some(since) = since else {
            return Ok(());
        };
        // The bound of other disks includes lingering writes.
        let in_memory = io.extents.iter().any(|it| env.swarm.ram[it.disk]);
        let lingering = match in_memory {
            true => Self::lingering(env, io, since),
            false => Nanos::ZERO,
        };
        let waited = env.now - since - lingering;
        env.figures.wait_max = env.figures.wait_max.max(waited);
        let faults = env.swarm.faults;
        let limited = match (faults.has(Fault::Limit), faults.has(Fault::Pace)) {
            (true, _) => limits::DELAY_MAX,
            (false, true) => paces::DELAY_MAX,
            (false, false) => Nanos::ZERO,
        };
        let bound = Self::wait_bound(env, io, since).map(|it| (it + limited).min(LATENCY_MAX));
        let Some(bound) = bound else {
            return Ok(());
        };
        let share = waited.as_nanos() * 1000 / bound.as_nanos().max(1);
        env.figures.wait_permille_max = env.figures.wait_permille_max.max(share);
        if waited > bound && !connection.is_some_and(|it| it.excused) {
            let kind = io.kind;
            let what = format!("queue {qid}: {kind:?} waited {waited}, more than {bound}");
            return Err(self.violation(env, &what));
        }
        Ok(())
    }
}

/// Whether the data of a command needs a slice of which there are few: a small arena has a few
/// slices of the two largest sizes.
fn needs_rare_slice(swarm: &Swarm, io: &Io) -> bool {
    let extents = io.extents.iter();
    let bytes: usize = extents
        .map(|it| it.blocks as usize * swarm.disks[it.disk].block_size as usize)
        .sum();
    let is_large = size_of_slice(bytes) + 1 >= size_of_slice(swarm.transfer_max);
    swarm.has_scarce_memory() && is_large
}

/// The time between `from` and `to` that is in at least one of the spans, each of them from its
/// first to its second time.
fn covered(mut spans: Vec<(Nanos, Nanos)>, from: Nanos, to: Nanos) -> Nanos {
    spans.sort_unstable();
    let (mut sum, mut counted_until) = (Nanos::ZERO, from);
    for (begin, end) in spans {
        let (begin, end) = (begin.max(counted_until), end.min(to));
        sum += end - begin;
        counted_until = counted_until.max(end);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_several_spans_counts_once() {
        let covered = |spans: &[(u64, u64)], from, to| {
            let spans = spans
                .iter()
                .map(|(begin, end)| (Nanos(*begin), Nanos(*end)));
            covered(spans.collect(), Nanos(from), Nanos(to)).as_nanos()
        };
        assert_eq!(covered(&[], 0, 100), 0);
        assert_eq!(covered(&[(20, 30)], 0, 100), 10);
        // Overlapping, one in another, and in any order.
        assert_eq!(
            covered(&[(50, 90), (10, 40), (20, 60), (70, 80)], 0, 100),
            80
        );
        // Only the part within the wait.
        assert_eq!(covered(&[(0, 20), (90, 200)], 10, 100), 20);
        assert_eq!(covered(&[(0, 5), (150, 200)], 10, 100), 0);
    }
}
