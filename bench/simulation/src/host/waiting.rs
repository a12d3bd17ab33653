//! How long a command may wait for its answer: a bound of its own, from what its disk takes for a
//! request and from how many requests may be in front of it.

use reactors::Nanos;

use super::connection::{Connection, Outstanding};
use super::{Command, Ground, Host, Io, IoKind, LATENCY_MAX};
use crate::judge::Violation;
use crate::swarm::Fault;

/// What reactors, the network and their polls may add, on top of what disks take.
const SLACK: Nanos = Nanos::from_millis(5);
/// A block that a device in RAM lends can be written within this, whatever its reader does.
const LENT_MAX: Nanos = Nanos::from_millis(150);
/// A device over RDMA that is stuck may keep what it was lent for so much longer, until what is posted
/// there was flushed or given up.
const STUCK_MAX: Nanos = Nanos::from_millis(1100);
/// What is posted over RDMA cannot be taken back: the target ends a connection 5 s after it posted
/// what makes no progress, and the device then flushes it.
const LATE_MAX: Nanos = Nanos::from_secs(6);
/// A request that a disk puts off is tried again after so long at most.
const RETRY: Nanos = Nanos::from_micros(50);
/// A disk puts a request off so often in a row at most, for all that chance can do.
const RETRIES_MAX: u64 = 40;

impl Host {
    /// The bound of an I/O command that nothing disturbs; `None` where only [`LATENCY_MAX`] is one.
    fn wait_bound(ground: &Ground<'_>, io: &Io) -> Option<Nanos> {
        let swarm = ground.swarm;
        let faults = swarm.faults;
        // Drives hang, arenas run dry, streams arrive byte by byte.
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
            return Self::wait_bound_in_memory(ground, io);
        }
        if coarse.iter().any(|it| faults.has(*it)) {
            return None;
        }
        let temper = swarm.disk_temper;
        let put_off = if faults.has(Fault::Later) {
            RETRY.as_nanos() * RETRIES_MAX
        } else {
            0
        };
        let request = temper.latency_max.as_nanos() + put_off;
        // All that all hosts may have outstanding, each in several steps.
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
        let network = 4 * ground.network.latency_max.as_nanos();
        Some(Nanos(steps * request * watchdog_loop * 2 + network) + SLACK)
    }

    /// The same on a disk in RAM: of writes, whatever readers of the same blocks do, and however
    /// slow other disks are. Readers yield to writers for thousands of polls.
    fn wait_bound_in_memory(ground: &Ground<'_>, io: &Io) -> Option<Nanos> {
        let swarm = ground.swarm;
        // The host itself is slow with its data, or what it reads fills the stream.
        let slow_ends = [Fault::SlowWriter, Fault::Grain, Fault::Window];
        let is_late = slow_ends.iter().any(|it| swarm.faults.has(*it));
        if io.version == 0 || is_late {
            return None;
        }
        let slow = if swarm.faults.has(Fault::Slow) {
            swarm.disk_temper.slow_max
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
        let network = Nanos(16 * ground.network.latency_max.as_nanos());
        Some(LENT_MAX + stuck + slow + network + SLACK)
    }

    /// Holds the time that a command has waited against its bound.
    pub(super) fn check_wait(
        &self,
        ground: &mut Ground<'_>,
        qid: u16,
        outstanding: &Outstanding,
    ) -> Result<(), Violation> {
        let Command::Io(io) = &outstanding.command else {
            return Ok(());
        };
        let connection = self.io.iter().find(|it: &&Connection| it.qid() == qid);
        let since = connection.and_then(|it| self.undisturbed_since(ground, it, outstanding));
        let Some(waited) = since.map(|since| ground.now.saturating_sub(since)) else {
            return Ok(());
        };
        ground.figures.wait_max = ground.figures.wait_max.max(waited);
        let Some(bound) = Self::wait_bound(ground, io).map(|it| it.min(LATENCY_MAX)) else {
            return Ok(());
        };
        let share = waited.as_nanos() * 1000 / bound.as_nanos().max(1);
        ground.figures.wait_permille_max = ground.figures.wait_permille_max.max(share);
        if waited > bound && !connection.is_some_and(|it| it.excused) {
            let kind = io.kind;
            let what = format!("queue {qid}: {kind:?} waited {waited}, more than {bound}");
            return Err(self.violation(ground, &what));
        }
        Ok(())
    }
}
