//! What a host knows about its waits for memory of the target, for the judge of fairness.

use reactors::Nanos;

use super::connection::{Connection, Damage, Outstanding};
use super::{Command, Host, HostEnv, IoKind, Phase};
use crate::fairness::{PathReport, WaitingWrite};
use crate::faults::Fault;
use crate::swarm::Swarm;

/// Time for which an aborted command may keep memory in a device that is not disturbed, and in any.
const ABORTED_MAX: Nanos = Nanos::from_secs(1);
const ABORTED_DISTURBED_MAX: Nanos = Nanos::from_secs(20);

impl Swarm {
    /// Whether requests for data tell when the target had memory for it: nothing delays messages
    /// beyond their latency, and every command is known by its identifier.
    #[must_use]
    pub fn shows_memory_waits(&self) -> bool {
        let hides = Fault::HIDES_MEMORY_WAITS.iter();
        self.has_scarce_memory() && !hides.copied().any(|it| self.faults.has(it))
    }
}

impl Host {
    /// Its waiting writes, and the data that the target requested in the last poll.
    #[must_use]
    pub fn memory_waits(&self, env: &HostEnv<'_>) -> PathReport {
        let mut report = PathReport {
            path: self.number,
            identity: self.shape.identity,
            ..PathReport::default()
        };
        let is_calm = self.phase == Phase::ServedConfig && !env.stopping && !env.changing;
        let mut holds = !is_calm;
        for connection in &self.io {
            let queue = &connection.queue;
            // Data for a RAM device may need no memory of the arena.
            let granted = queue.granted.iter();
            let granted = granted.filter(|it| !env.swarm.ram[it.disk]);
            report.granted.extend(granted);
            report.holds_until = report.holds_until.max(connection.opened_at);
            for (_, outstanding) in connection.outstanding() {
                if !outstanding.awaits_memory {
                    holds |= outstanding.transfer_bytes > 0;
                } else if let Some(since) = self.waits_since(env, connection, outstanding) {
                    report.waiting.push(WaitingWrite {
                        key: (connection.qid(), connection.opened_at, outstanding.position),
                        bytes: outstanding.transfer_bytes,
                        since,
                    });
                }
            }
        }
        let aborted = self.aborted_at.map_or(Nanos::ZERO, |at| {
            let is_disturbed = env.disk_disturbed.iter().any(|until| *until > at);
            match is_disturbed {
                true => at + ABORTED_DISTURBED_MAX,
                false => at + ABORTED_MAX,
            }
        });
        let latest = aborted.max(env.changed_at).max(self.memory_kept_until);
        report.holds_until = report.holds_until.max(latest);
        if holds {
            report.holds_until = report.holds_until.max(env.now);
        }
        report
    }

    /// Notes that the target may keep memory for it until then, even if the host is reset.
    pub fn memory_is_kept(&mut self, until: Nanos) {
        self.memory_kept_until = self.memory_kept_until.max(until);
    }

    /// Since when only the target delays a write that waits for memory.
    fn waits_since(
        &self,
        env: &HostEnv<'_>,
        connection: &Connection,
        outstanding: &Outstanding,
    ) -> Option<Nanos> {
        let Command::Io(io) = &outstanding.command else {
            return None;
        };
        let is_write = matches!(io.kind, IoKind::Write | IoKind::Compare);
        let is_write = is_write && !env.swarm.ram[io.extents[0].disk];
        let is_usual = outstanding.damage == Damage::None && !io.aborted;
        if !is_write || !is_usual || connection.closing || connection.excused {
            return None;
        }
        let since = outstanding.issued_at.max(connection.queue.disturbed_until);
        Some(since.max(env.fenced[self.number]))
    }
}
