//! What a host reports to the judge of rate limits.

use nvme_spec::Status;
use reactors::Nanos;

use super::{Host, HostEnv, Io, IoKind};
use crate::judge::Violation;
use crate::limits::Counted;

impl Host {
    /// What limits count of a command; `None` if they count nothing.
    fn counted(&self, env: &HostEnv<'_>, io: &Io) -> Option<Counted> {
        let extent = io.extents.first()?;
        let blocks: u64 = io.extents.iter().map(|it| u64::from(it.blocks)).sum();
        Some(Counted {
            identity: self.shape.identity,
            subsystem: self.shape.subsystem,
            disk: extent.disk,
            reads: matches!(io.kind, IoKind::Read | IoKind::Compare),
            bytes: blocks * u64::from(env.swarm.disks[extent.disk].block_size),
        })
    }

    /// Judges the rate of a command that has ended.
    pub(super) fn judge_rate(
        &self,
        env: &mut HostEnv<'_>,
        io: &Io,
        issued_at: Nanos,
        status: Status,
    ) -> Result<(), Violation> {
        let latency = env.now.saturating_sub(issued_at);
        env.paces.note(self.shape.subsystem, latency);
        // What others count is more complicated, and only fewer commands are judged.
        let is_simple = matches!(io.kind, IoKind::Read | IoKind::Write) && io.fused.is_none();
        if !status.is_success() {
            self.lose_turn(env, io);
            return Ok(());
        }
        let Some(counted) = self.counted(env, io).filter(|_| is_simple) else {
            return Ok(());
        };
        let judged = env.rates.succeed(env.now, issued_at, &counted);
        judged.map_err(|violation| self.violation(env, &violation.to_string()))
    }

    /// A command ends without success. It may have returned its turn.
    pub(super) fn lose_turn(&self, env: &mut HostEnv<'_>, io: &Io) {
        env.paces.note(self.shape.subsystem, Nanos(u64::MAX));
        if let Some(counted) = self.counted(env, io) {
            env.rates.lose(env.now, counted);
        }
    }
}
