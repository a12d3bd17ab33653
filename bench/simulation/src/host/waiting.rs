//! An independent bound on the time to completion of a command, from the time that its disk needs
//! per request and from the number of requests that may be before it.

use reactors::Nanos;

use super::connection::{Connection, Outstanding};
use super::{Command, Host, HostEnv, Io, IoKind, LATENCY_MAX};
use crate::fairness::size_of_slice;
use crate::faults::Fault;
use crate::judge::Violation;

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
/// Maximum time for which a host that transfers no data keeps memory that another one needs: the
/// target's 2 s, and its checks.
const HELD_MAX: Nanos = Nanos::from_secs(3);
/// Maximum time until a request that a disk deferred is submitted again.
const RETRY: Nanos = Nanos::from_micros(50);
/// Maximum number of consecutive deferrals of a request, with near certainty.
const RETRIES_MAX: u64 = 40;

impl Host {
    /// The bound of an undisturbed I/O command; `None` if only [`LATENCY_MAX`] applies.
    fn wait_bound(env: &HostEnv<'_>, io: &Io) -> Option<Nanos> {
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
            return Self::wait_bound_in_memory(env, io);
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
        // All commands that all hosts may have outstanding, each with several steps.
        let hosts = swarm.hosts.iter();
        let load: u64 = hosts
            .map(|it| u64::from(it.io_queues) * u64::from(it.depth))
            .sum();
        let steps = match io.kind {
            IoKind::Deallocate => 4,
            IoKind::Flush => swarm.disks.len() as u64,
            IoKind::Read | IoKind::Write | IoKind::WriteZeroes | IoKind::Compare => 2,
        };
        let watchdog_loop = 1 + load.div_ceil(swarm.device_queue_depth as u64);
        let network = 4 * env.network.latency_max.as_nanos();
        Some(Nanos(steps * request * watchdog_loop * 2 + network) + SLACK)
    }

    /// The bound of a write to a RAM disk, independent of readers of the same blocks and of slow
    /// disks. Readers yield to writers for thousands of polls.
    fn wait_bound_in_memory(env: &HostEnv<'_>, io: &Io) -> Option<Nanos> {
        let swarm = env.swarm;
        // The host itself is slow to send data, or its reads fill the stream.
        let slow_ends = [Fault::SlowWriter, Fault::Grain, Fault::Window];
        let is_late = slow_ends.iter().any(|it| swarm.faults.has(*it));
        if io.version == 0 || is_late {
            return None;
        }
        let slow = if swarm.faults.has(Fault::Slow) {
            swarm.disk_behaviour.slow_max
        } else {
            Nanos::ZERO
        };
        let stuck = if swarm.faults.has(Fault::Late) {
            LATE_MAX
        } else if swarm.faults.has(Fault::WorkErrors) {
            STUCK_MAX
        } else {
            Nanos::ZERO
        };
        // A small arena has a few slices of the two largest sizes.
        let extents = io.extents.iter();
        let bytes: usize = extents
            .map(|it| it.blocks as usize * swarm.disks[it.disk].block_size as usize)
            .sum();
        let is_rare = size_of_slice(bytes) + 1 >= size_of_slice(swarm.transfer_max);
        let can_be_held = swarm.has_scarce_memory() && swarm.faults.has(Fault::Greedy);
        let held = if is_rare && can_be_held {
            HELD_MAX
        } else {
            Nanos::ZERO
        };
        let network = Nanos(16 * env.network.latency_max.as_nanos());
        Some(BORROWED_MAX + stuck + slow + held + network + SLACK)
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
        let Some(waited) = since.map(|since| env.now.saturating_sub(since)) else {
            return Ok(());
        };
        env.figures.wait_max = env.figures.wait_max.max(waited);
        let Some(bound) = Self::wait_bound(env, io).map(|it| it.min(LATENCY_MAX)) else {
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
