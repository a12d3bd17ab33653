//! Hosts that occupy memory without using it: they receive R2Ts and never send the data, or request
//! data and never receive it (TCP 1.1 §3.3.2 limits neither).
//!
//! This excuses no late response to another host, and the target must end a connection that holds
//! memory without progress.

use nvme_spec::Sqe;
use reactors::Nanos;

use super::connection::{Connection, Damage, Sending, Transfer};
use super::invalid::GARBAGE;
use super::{Command, DEADLINE_CHECK, Host, HostEnv};
use crate::judge::Violation;

/// Maximum time without progress after which the target has ended a connection that holds memory:
/// the target's 30 s, and the delays of its checks and of the network.
const PROGRESS_MAX: Nanos = Nanos::from_secs(36);
/// Time after which a greedy host's own commands are no longer affected.
pub(super) const GREED_MAX: Nanos = Nanos::from_secs(45);

impl Host {
    /// Excuses delays of its own commands, which may wait for memory that it or another path of the
    /// same host holds.
    pub fn excuse_own_greed(&mut self, now: Nanos) {
        let until = now + GREED_MAX;
        self.greedy_until = until;
        for connection in self.connections() {
            let queue = &mut connection.queue;
            queue.disturbed_until = queue.disturbed_until.max(until);
        }
        self.forget_due_event();
    }

    /// Fills one of its queues with commands whose data it does not transfer.
    pub(super) fn occupy_memory(&mut self, env: &mut HostEnv<'_>) -> Option<()> {
        let disk = self.choose_disk(env);
        let shape = env.swarm.disks[disk];
        let index = self.io.iter().position(|it| it.room() > 0 && !it.closing)?;
        let identity = self.shape.identity;
        let is_there = env.sees(identity, disk) && !env.is_protected(identity, disk);
        if self.shape.rdma || !is_there {
            return None;
        }
        let most = u64::from(shape.transfer_blocks_max).min(shape.block_count);
        let writes = self.random.permille(700);
        self.excuse_own_greed(env.now);
        let nsid = self.nsid(env, disk);
        let connection = &mut self.io[index];
        connection.excused = true;
        connection.closing = true;
        while connection.room() > 0 {
            let blocks = connection.queue.random.between(1, most);
            let bytes = blocks as usize * shape.block_size as usize;
            let nlb_z = (blocks - 1) as u16;
            let command = Command::Hopeless("whose data was never sent");
            if writes {
                let sending = Sending {
                    transfer: Transfer::Out(vec![GARBAGE; bytes]),
                    damage: Damage::Withheld,
                    ..Sending::plain(Sqe::write(nsid, 0, nlb_z, false), command)
                };
                connection.submit_solicited(sending, env.now);
            } else {
                let sending = Sending {
                    transfer: Transfer::In(bytes),
                    ..Sending::plain(Sqe::read(nsid, 0, nlb_z), Command::Ignored)
                };
                connection.submit(sending, env.now);
            }
        }
        let until = self.greedy_until;
        env.occupied_at.push(env.now);
        connection.queue.misused_until = Some(until);
        if !writes {
            connection.stall(false, until);
        }
        Some(())
    }

    /// Makes connections usable again of whose commands the target holds none any more: their data
    /// was sent before the host stopped receiving, or they were refused before the transfer.
    pub(super) fn end_misuse(&mut self, now: Nanos) {
        for connection in &mut self.io {
            if released_at(connection).is_some_and(|at| at <= now) {
                connection.queue.misused_until = None;
                connection.closing = false;
            }
        }
    }

    /// When it makes a connection usable again, which may be the next thing that happens.
    pub(super) fn next_end_of_misuse(&self) -> Option<Nanos> {
        let released = self.io.iter().filter_map(released_at).min()?;
        Some(released.max(self.deadlines_checked_at + DEADLINE_CHECK))
    }

    /// Checks that no connection holds memory without progress for too long.
    pub(super) fn check_progress(&self, env: &mut HostEnv<'_>) -> Result<(), Violation> {
        let held = self.io.iter().filter_map(|it| it.queue.withheld_since);
        let kept = held.into_iter().any(|since| since + PROGRESS_MAX < env.now);
        if kept && !env.stopping && !self.is_leaving(env) {
            let what = "the target keeps a connection without progress";
            return Err(self.violation(env, what));
        }
        Ok(())
    }
}

/// When a misused connection is usable again, if the target holds none of its commands any more.
fn released_at(connection: &Connection) -> Option<Nanos> {
    let is_free =
        connection.queue.withheld_since.is_none() && connection.outstanding().next().is_none();
    connection.queue.misused_until.filter(|_| is_free)
}
