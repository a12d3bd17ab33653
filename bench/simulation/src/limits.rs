//! Rate limits of the simulated configuration, and the judge of them.
//!
//! The judge knows only when hosts have sent commands and received their results. A command that
//! was sent after a moment and has succeeded before another one started in between. So in any such
//! interval, the commands that a limit counts are at most what its rates permit: the interval and the
//! burst at the rate, and one command. A command that ends in another way may have returned its
//! turn, which another one then takes in addition.

use std::collections::VecDeque;
use std::fmt::Write as _;

use reactors::Nanos;

use crate::judge::Violation;
use crate::plan::{SUBSYSTEMS, ServedConfig, device_name, host_name};
use crate::swarm::Swarm;

/// The smallest rates that a limit has in any run.
const IOPS_MIN: u64 = 200;
const MIB_PER_SECOND_MIN: u64 = 2;
/// The longest delay of a command: that of all commands that hosts can have outstanding, by rates of
/// commands and of bytes, which take a second for them.
pub const DELAY_MAX: Nanos = Nanos::from_secs(2);
/// Bursts in milliseconds.
pub const BURSTS_MS: [u64; 3] = [2, 5, 20];
/// Intervals that are judged at once.
const WINDOWS_MAX: usize = 24;
/// Time between the beginnings of two of them.
const WINDOW_STEP: Nanos = Nanos::from_millis(3);
/// How long the first interval lasts at least.
const LONG_WINDOW: Nanos = Nanos::from_secs(2);
/// Time after which a command whose connection is lost no longer waits for a turn: it has started, or
/// has returned the turn.
const LOST_LASTS: Nanos = Nanos(DELAY_MAX.as_nanos() + 1_000_000_000);
/// Inexactness of rates in parts of a thousand.
const INEXACT_PERMILLE: u64 = 10;

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitScope {
    /// The commands for a disk.
    Disk(usize),
    /// Those of hosts with a name.
    Host(usize),
    /// Those of hosts with a name for a subsystem.
    HostAt(usize, usize),
}

/// A rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What it counts.
    pub scope: LimitScope,
    /// Whether it counts commands that only read.
    pub reads: bool,
    /// Whether it counts the others.
    pub writes: bool,
    /// Most commands in a second.
    pub iops: Option<u64>,
    /// Most MiB in a second.
    pub mib_per_second: Option<u64>,
    /// The burst in milliseconds.
    pub burst_ms: u64,
}

/// A command that limits count.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    /// The name of its host.
    pub identity: usize,
    /// Its subsystem.
    pub subsystem: usize,
    /// Its disk.
    pub disk: usize,
    /// Whether it only reads.
    pub reads: bool,
    /// Bytes of its data.
    pub bytes: u64,
}

impl Limit {
    /// Whether it counts a command.
    fn counts(&self, command: &Counted) -> bool {
        let kind = match command.reads {
            true => self.reads,
            false => self.writes,
        };
        kind && match self.scope {
            LimitScope::Disk(disk) => disk == command.disk,
            LimitScope::Host(identity) => identity == command.identity,
            LimitScope::HostAt(identity, subsystem) => {
                (identity, subsystem) == (command.identity, command.subsystem)
            }
        }
    }

    /// Whether the configuration has what the limit names.
    fn is_possible(&self, served: &ServedConfig) -> bool {
        match self.scope {
            LimitScope::Disk(disk) => served.has_device(disk),
            LimitScope::Host(_) => true,
            LimitScope::HostAt(_, subsystem) => served.subsystems[subsystem],
        }
    }

    fn burst(&self) -> Nanos {
        Nanos::from_millis(self.burst_ms)
    }
}

/// Writes the limits of a configuration.
pub(crate) fn write(served: &ServedConfig, text: &mut String) {
    // Writing to a String cannot fail.
    for limit in served.limits.iter().filter(|it| it.is_possible(served)) {
        let _ = match limit.scope {
            LimitScope::Disk(disk) => {
                writeln!(text, "[[rate_limit]]\ndevice = \"{}\"", device_name(disk))
            }
            LimitScope::Host(identity) => {
                writeln!(text, "[[rate_limit]]\nhost = \"{}\"", host_name(identity))
            }
            LimitScope::HostAt(identity, subsystem) => writeln!(
                text,
                "[[rate_limit]]\nhost = \"{}\"\nexport = \"{}\"",
                host_name(identity),
                SUBSYSTEMS[subsystem]
            ),
        };
        let operations = match (limit.reads, limit.writes) {
            (true, false) => "reads",
            (false, true) => "writes",
            _ => "both",
        };
        let _ = writeln!(
            text,
            "operations = \"{operations}\"\nburst = \"{}ms\"",
            limit.burst_ms
        );
        if let Some(iops) = limit.iops {
            let _ = writeln!(text, "iops = {iops}");
        }
        if let Some(mib) = limit.mib_per_second {
            let _ = writeln!(text, "bandwidth = \"{mib}MiB\"");
        }
    }
}

/// The smallest rates in a run: commands and MiB a second.
#[must_use]
pub fn smallest_rates(swarm: &Swarm) -> (u64, u64) {
    let commands = swarm.outstanding_max();
    let mib = (commands * swarm.transfer_max as u64) >> 20;
    (commands.max(IOPS_MIN), mib.max(MIB_PER_SECOND_MIN))
}

/// What a limit counted in an interval that has not ended.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    began: Nanos,
    commands: u64,
    bytes: u64,
    /// Commands that may have returned their turns.
    lost: u64,
    lost_bytes: u64,
}

/// A limit in force, and the intervals in which it is judged.
#[derive(Clone, Debug)]
struct InForce {
    limit: Limit,
    windows: VecDeque<Window>,
}

/// Judges the rates of commands.
#[derive(Clone, Debug, Default)]
pub struct RateJudge {
    in_force: Vec<InForce>,
    /// Those of before the change that is in progress.
    suspended: Vec<InForce>,
    /// Commands that may have returned their turns: when they ended, and what they are.
    lost: VecDeque<(Nanos, Counted)>,
    /// Commands that were judged.
    pub judged: u64,
}

impl RateJudge {
    /// A change begins: nothing is judged until it is over.
    pub fn suspend(&mut self) {
        self.suspended = std::mem::take(&mut self.in_force);
    }

    /// These limits are in force from now on. Limits of before that `keeps` names had their rates
    /// all the time; the others begin anew.
    pub fn begin(&mut self, served: &ServedConfig, keeps: impl Fn(&Limit) -> bool) {
        let before = std::mem::take(&mut self.suspended);
        let limits = served.limits.iter().filter(|it| it.is_possible(served));
        let in_force = limits.map(|limit| {
            let same = before.iter().find(|it| it.limit == *limit && keeps(limit));
            InForce {
                limit: *limit,
                windows: same.map_or_else(VecDeque::new, |it| it.windows.clone()),
            }
        });
        self.in_force = in_force.collect();
    }

    /// A command has ended without success, or is lost with its connection.
    pub fn lose(&mut self, now: Nanos, command: Counted) {
        if self.in_force.is_empty() {
            return;
        }
        self.forget(now);
        for it in &mut self.in_force {
            if it.limit.counts(&command) {
                for window in &mut it.windows {
                    window.lost += 1;
                    window.lost_bytes += command.bytes;
                }
            }
        }
        self.lost.push_back((now, command));
    }

    fn forget(&mut self, now: Nanos) {
        while self
            .lost
            .front()
            .is_some_and(|(at, _)| *at + LOST_LASTS < now)
        {
            self.lost.pop_front();
        }
    }

    /// A command that was issued at a time has succeeded.
    ///
    /// # Errors
    /// More commands or data than a limit permits.
    pub fn succeed(
        &mut self,
        now: Nanos,
        issued_at: Nanos,
        command: &Counted,
    ) -> Result<(), Violation> {
        self.forget(now);
        let mut is_judged = false;
        for InForce { limit, windows } in &mut self.in_force {
            if !limit.counts(command) {
                continue;
            }
            is_judged = true;
            for window in windows.iter_mut().filter(|it| it.began <= issued_at) {
                window.commands += 1;
                window.bytes += command.bytes;
                check(limit, window, now, command)?;
            }
            if windows
                .back()
                .is_none_or(|last| last.began + WINDOW_STEP <= now)
            {
                if windows.len() == WINDOWS_MAX {
                    let is_long = windows[0].began + LONG_WINDOW < now;
                    windows.remove(usize::from(!is_long));
                }
                let lost = self.lost.iter().filter(|(_, it)| limit.counts(it));
                windows.push_back(Window {
                    began: now,
                    lost: lost.clone().count() as u64,
                    lost_bytes: lost.map(|(_, it)| it.bytes).sum(),
                    ..Window::default()
                });
            }
        }
        self.judged += u64::from(is_judged);
        Ok(())
    }
}

fn check(limit: &Limit, window: &Window, now: Nanos, last: &Counted) -> Result<(), Violation> {
    let elapsed = now.saturating_sub(window.began) + limit.burst();
    let permitted = |rate: u64| {
        let exact = u128::from(rate) * u128::from(elapsed.as_nanos()) / 1_000_000_000;
        let exact = u64::try_from(exact).unwrap_or(u64::MAX / 2);
        exact + exact * INEXACT_PERMILLE / 1000 + 1
    };
    if let Some(iops) = limit.iops {
        let most = permitted(iops) + 1 + window.lost;
        if window.commands > most {
            let what = format!(
                "{} commands in {elapsed} with the burst, {most} are permitted: {limit:?}",
                window.commands
            );
            return Err(Violation::Rule(what));
        }
    }
    if let Some(mib) = limit.mib_per_second {
        // The last one may be of any size.
        let most = permitted(mib << 20) + last.bytes.max(LARGEST_BYTES) + window.lost_bytes;
        if window.bytes > most {
            let what = format!(
                "{} bytes in {elapsed} with the burst, {most} are permitted: {limit:?}",
                window.bytes
            );
            return Err(Violation::Rule(what));
        }
    }
    Ok(())
}

/// Bytes of the largest command.
const LARGEST_BYTES: u64 = 128 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Limit = Limit {
        scope: LimitScope::Disk(0),
        reads: true,
        writes: false,
        iops: Some(1000),
        mib_per_second: None,
        burst_ms: 2,
    };

    fn command(disk: usize, reads: bool) -> Counted {
        Counted {
            identity: 0,
            subsystem: 0,
            disk,
            reads,
            bytes: 4096,
        }
    }

    fn judge(limit: Limit) -> RateJudge {
        let windows = VecDeque::from([Window::default()]);
        RateJudge {
            in_force: vec![InForce { limit, windows }],
            ..RateJudge::default()
        }
    }

    /// How many commands succeed within the first `ms` milliseconds before one is too many.
    fn permitted(judge: &mut RateJudge, ms: u64, command: &Counted) -> u64 {
        let now = Nanos::from_millis(ms);
        let mut commands = (0..5000).take_while(|_| judge.succeed(now, Nanos(5), command).is_ok());
        commands.by_ref().count() as u64
    }

    #[test]
    fn a_rate_permits_its_interval_and_burst_and_one_command() {
        // 10 ms and a burst of 2 ms, rounded up, and one.
        assert_eq!(permitted(&mut judge(LIMIT), 10, &command(0, true)), 14);
        for other in [command(1, true), command(0, false)] {
            assert_eq!(permitted(&mut judge(LIMIT), 10, &other), 5000);
        }
        let bytes = Limit {
            iops: None,
            mib_per_second: Some(1),
            ..LIMIT
        };
        let permitted = permitted(&mut judge(bytes), 100, &command(0, true));
        let exact = ((102 << 20) / 1000 + LARGEST_BYTES) / 4096;
        assert!(
            (exact..=exact + 2).contains(&permitted),
            "{permitted} {exact}"
        );
    }

    #[test]
    fn earlier_commands_do_not_count_and_lost_ones_return_their_turns() {
        let mut judge = judge(LIMIT);
        judge.in_force[0].windows[0].began = Nanos::from_millis(1);
        assert_eq!(
            permitted(&mut judge, 10, &command(0, true)),
            5000,
            "issued before"
        );
        let mut judge = self::judge(LIMIT);
        for _ in 0..7 {
            judge.lose(Nanos::from_millis(1), command(0, true));
            judge.lose(Nanos::from_millis(1), command(1, true));
        }
        assert_eq!(permitted(&mut judge, 10, &command(0, true)), 14 + 7);
    }

    #[test]
    fn a_new_interval_knows_commands_that_were_lost_before() {
        let mut judge = judge(LIMIT);
        judge.lose(Nanos::from_millis(1), command(0, true));
        let at = |ms| Nanos::from_millis(ms);
        judge
            .succeed(at(50), at(49), &command(0, true))
            .expect("permitted");
        let last = judge.in_force[0].windows.back().expect("a new one");
        assert_eq!((last.began, last.lost, last.commands), (at(50), 1, 0));
        let later = at(1) + LOST_LASTS + at(5);
        judge
            .succeed(later, later, &command(0, true))
            .expect("permitted");
        assert_eq!(judge.in_force[0].windows.back().map(|it| it.lost), Some(0));
    }
}
