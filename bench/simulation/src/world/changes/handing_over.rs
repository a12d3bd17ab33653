//! Hand-overs to a new process at any moment: hosts keep their connections and notice a pause.
//!
//! The world goes on while requests in flight complete. If that takes too long, the old process
//! continues. Otherwise the new process must have exactly the state that it was given, and all
//! further events meet it: the judge knows nothing of the exchange except that no request is
//! admitted meanwhile. In some hand-overs the new process refuses or ends before it serves, or both
//! processes are killed.

use std::cell::Cell;
use std::time::Instant;

use appliance::headless::EventLoop;
use reactors::Nanos;

use super::{During, End};
use crate::appliance::{Appliance, HandingOver, Passed, Successor};
use crate::environment::CHANGING;
use crate::faults::Fault;
use crate::judge::Violation;
use crate::storage::Storage;
use crate::world::World;

/// Share of events with a hand-over, per thousand.
const HANDOVERS_PERMILLE: u32 = 25;
/// Longest time in which requests in flight have to complete.
const QUIET_MAX: Nanos = Nanos::from_millis(30);
/// Share of hand-overs before which a disk delays commands of a host, per thousand, and the longest
/// delay.
const BUSY_PERMILLE: u32 = 300;
const BUSY_MAX: Nanos = Nanos::from_millis(20);
/// I/O commands of each host that a hand-over meets.
const IOS_MAX: u64 = 6;
/// Longest time that these commands have before it.
const LEAD_MAX: Nanos = Nanos::from_micros(300);

/// Share of hand-overs that fail, per thousand.
const FAILURES_PERMILLE: u32 = 300;

/// How a hand-over ends, if the requests in flight complete in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The new process serves.
    Serves,
    /// The new process refuses the state, and the old one continues.
    Refuses,
    /// The new process ends when it has restored the state, and the old one continues.
    Ends,
    /// The appliance is killed.
    Killed { moment: Moment, power: bool },
}

/// A moment of a hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// No request is admitted.
    Held,
    /// The old process has exported its state.
    Exported,
    /// The new process has restored it.
    Restored,
}

impl World {
    /// Sometimes hands over to a new process.
    pub(in crate::world) fn hand_over_sometimes(&mut self) -> Result<(), Violation> {
        let is_on = self.env.swarm.faults.has(Fault::Handover) && !self.changing;
        if !is_on || !self.handover_random.permille(HANDOVERS_PERMILLE) {
            return Ok(());
        }
        // A device that was removed is not passed on.
        // Nor is one that is copied: the hand-over is refused.
        if self.env.disks.iter().any(Storage::needs_restart) || self.device_copies.is_running() {
            return Ok(());
        }
        if self.handover_random.permille(BUSY_PERMILLE) {
            let host = self.handover_random.below(self.hosts.len() as u64) as usize;
            self.delay_commands(host, 1000, BUSY_MAX)?;
        }
        for host in 0..self.hosts.len() {
            let count = self.handover_random.below(IOS_MAX + 1);
            if self.hosts[host].can_reach_disks() {
                self.hosts[host].send_io(&mut self.env.for_hosts(), count);
            }
        }
        let lead = self.handover_random.below(LEAD_MAX.as_nanos());
        self.pass(Nanos(lead + 1))?;
        self.hand_over()
    }

    /// Draws how the next hand-over ends.
    fn draw_outcome(&mut self) -> Outcome {
        let random = &mut self.failing_random;
        if !random.permille(FAILURES_PERMILLE) {
            return Outcome::Serves;
        }
        let faults = self.env.swarm.faults;
        let kills = [(Fault::Crash, false), (Fault::Power, true)].into_iter();
        let kills: Vec<bool> = kills
            .filter(|(fault, _)| faults.has(*fault))
            .map(|(_, power)| power)
            .collect();
        match random.below(3) {
            0 => Outcome::Refuses,
            1 if !kills.is_empty() => Outcome::Killed {
                moment: random.pick(&[Moment::Held, Moment::Exported, Moment::Restored]),
                power: random.pick(&kills),
            },
            _ => Outcome::Ends,
        }
    }

    fn hand_over(&mut self) -> Result<(), Violation> {
        let handing_over = self.appliance.as_ref().and_then(Appliance::handing_over);
        let Some(handing_over) = handing_over else {
            return Ok(());
        };
        let control = self.appliance.as_mut().and_then(Appliance::take_control);
        let now = self.env.time.now();
        let deadline = now + QUIET_MAX;
        let outcome = self.draw_outcome();
        self.env
            .note(format_args!("a hand-over begins: {outcome:?}"));
        self.env.held_until = CHANGING;
        // Commands that wait for a limit are released, so that they do not delay a hand-over.
        self.env.rates.suspend();
        (self.changing, self.is_handing_over) = (true, true);
        self.waits = 0;
        let mut during = During {
            began: (Instant::now(), now),
            patience_ends: CHANGING,
            leaving: Vec::new(),
            end: None,
            clock_readings: Cell::new(0),
            world: self,
        };
        handing_over.set_paused(true);
        let successor = hand_over(&handing_over, &mut during, deadline, outcome);
        handing_over.set_paused(false);
        let end = during.end;
        (self.changing, self.is_handing_over) = (false, false);
        self.kill_after_change = None;
        self.env.held_until = self.env.time.now();
        self.env.rates.begin(&self.env.serving, |_| false);
        if let (Some(appliance), Some(control)) = (&mut self.appliance, control) {
            appliance.give_control(control);
        }
        match end {
            Some(End::Wrong(violation)) => return Err(violation),
            Some(End::Killed { power }) => {
                self.env.figures.fault(Fault::Handover);
                return self.kill(power);
            }
            None => self.follow_ana_states()?,
        }
        match successor.map_err(|what| violation(&what))? {
            Some(successor) => self.serve_by(successor),
            None => {
                self.env.note(format_args!("the old process continues"));
                Ok(())
            }
        }
    }

    /// Starts a new process with what the old one has passed.
    fn start_successor(&mut self, passed: Passed) -> Result<Successor, String> {
        self.starts += 1;
        let seed = self.seed.wrapping_add(self.starts << 32);
        for disk in &self.env.disks {
            disk.pass_on(true);
        }
        let old = self.appliance.as_ref().ok_or("there is no old process")?;
        let new = old.start_successor(seed, &self.env, passed);
        for disk in &self.env.disks {
            disk.pass_on(false);
        }
        new
    }

    fn serve_by(&mut self, successor: Successor) -> Result<(), Violation> {
        let Some(old) = self.appliance.take() else {
            return Ok(());
        };
        let new = successor.serve(old);
        self.appliance = Some(new.map_err(|what| violation(&what))?);
        let now = self.env.time.now();
        self.env.handed_over = now;
        self.unknown_hosts.handed_over(now);
        self.env.note(format_args!("a new process serves"));
        self.env.figures.fault(Fault::Handover);
        Ok(())
    }
}

fn violation(what: &str) -> Violation {
    Violation::Rule(format!("a hand-over: {what}"))
}

/// Hands over to a new process, which is returned when it can serve. Returns `None` if the old
/// process continues, or if the appliance is killed.
fn hand_over(
    handing_over: &HandingOver,
    during: &mut During<'_>,
    deadline: Nanos,
    outcome: Outcome,
) -> Result<Option<Successor>, String> {
    let passed = take_state(handing_over, during, deadline, outcome)?;
    let Some(passed) = passed else {
        return Ok(None);
    };
    let new = match outcome {
        Outcome::Refuses => {
            let new = during.world.start_successor(passed.with_wrong_state()?);
            match new {
                Err(reason) if reason.contains("the maximum transfer is") => None,
                Err(reason) => return Err(format!("a wrong state is refused: {reason}")),
                Ok(_) => return Err("a wrong state is accepted".to_owned()),
            }
        }
        Outcome::Killed {
            power,
            moment: Moment::Exported,
        } => {
            during.end = Some(End::Killed { power });
            return Ok(None);
        }
        Outcome::Serves | Outcome::Ends | Outcome::Killed { .. } => {
            Some(during.world.start_successor(passed)?)
        }
    };
    // Hosts send on, which neither process receives. Only the first waits are short.
    during.world.waits = 0;
    EventLoop::run_once(during);
    let is_over = during.end.is_some();
    match (new, outcome) {
        (Some(new), Outcome::Serves) if !is_over => return Ok(Some(new)),
        (Some(new), Outcome::Killed { power, .. }) => {
            new.end()?;
            during.end.get_or_insert(End::Killed { power });
            return Ok(None);
        }
        (Some(new), _) => new.end()?,
        (None, _) => {}
    }
    if !is_over {
        handing_over.resume(during)?;
        during.world.env.figures.fault(Fault::Handover);
    }
    Ok(None)
}

/// Completes the requests in flight, and takes the state. Returns `None` if that takes too long, so
/// that the old process continues, or if the appliance is killed.
fn take_state(
    handing_over: &HandingOver,
    during: &mut During<'_>,
    deadline: Nanos,
    outcome: Outcome,
) -> Result<Option<Passed>, String> {
    loop {
        handing_over.hold(during)?;
        if let Outcome::Killed { moment, power } = outcome
            && moment == Moment::Held
        {
            during.end = Some(End::Killed { power });
            return Ok(None);
        }
        if let Some(passed) = handing_over.export(during)? {
            return Ok(Some(passed));
        }
        if during.world.env.time.now() >= deadline {
            handing_over.resume(during)?;
            return Ok(None);
        }
        EventLoop::run_once(during);
        if during.end.is_some() {
            return Ok(None);
        }
    }
}
