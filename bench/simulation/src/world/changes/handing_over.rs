//! Hand-overs to a new process at any moment: hosts keep their connections and notice a pause.
//!
//! The world goes on while requests in flight complete. If that takes too long, the old process
//! continues. Otherwise the new process must have exactly the state that it was given, and all
//! further events meet it: the judge knows nothing of the exchange except that no request is
//! admitted meanwhile.

use std::cell::Cell;
use std::time::Instant;

use reactors::Nanos;

use super::{During, End};
use crate::appliance::{Appliance, HandingOver, Passed};
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

impl World {
    /// Sometimes hands over to a new process.
    pub(in crate::world) fn hand_over_sometimes(&mut self) -> Result<(), Violation> {
        let is_on = self.env.swarm.faults.has(Fault::Handover) && !self.changing;
        if !is_on || !self.handover_random.permille(HANDOVERS_PERMILLE) {
            return Ok(());
        }
        // A device that was removed is not passed on.
        if self.env.disks.iter().any(Storage::needs_restart) {
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

    fn hand_over(&mut self) -> Result<(), Violation> {
        let handing_over = self.appliance.as_ref().and_then(Appliance::handing_over);
        let Some(handing_over) = handing_over else {
            return Ok(());
        };
        let control = self.appliance.as_mut().and_then(Appliance::take_control);
        let now = self.env.time.now();
        let deadline = now + QUIET_MAX;
        self.env.note(format_args!("a hand-over begins"));
        self.env.held_until = CHANGING;
        // Commands that wait for a rate start now.
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
        let taken = take_state(&handing_over, &mut during, deadline);
        handing_over.set_paused(false);
        let end = during.end;
        (self.changing, self.is_handing_over) = (false, false);
        self.kill_after_change = None;
        self.env.held_until = self.env.time.now();
        if let (Some(appliance), Some(control)) = (&mut self.appliance, control) {
            appliance.give_control(control);
        }
        match end {
            Some(End::Wrong(violation)) => return Err(violation),
            Some(End::Killed { power }) => return self.kill(power),
            None => self.follow_ana_states()?,
        }
        match taken.map_err(|what| Violation::Rule(format!("a hand-over: {what}")))? {
            Some(passed) => self.continue_in_new_process(passed),
            None => {
                self.env.note(format_args!("the old process continues"));
                self.env.rates.begin(&self.env.serving, |_| false);
                Ok(())
            }
        }
    }

    fn continue_in_new_process(&mut self, passed: Passed) -> Result<(), Violation> {
        let Some(old) = self.appliance.take() else {
            return Ok(());
        };
        self.starts += 1;
        let seed = self.seed.wrapping_add(self.starts << 32);
        for disk in &self.env.disks {
            disk.pass_on(true);
        }
        let new = Appliance::continue_with(seed, &self.env, passed, old);
        for disk in &self.env.disks {
            disk.pass_on(false);
        }
        let new = new.map_err(|what| Violation::Rule(format!("a hand-over: {what}")))?;
        self.appliance = Some(new);
        let now = self.env.time.now();
        self.env.handed_over = now;
        // Rates begin anew.
        self.env.rates.suspend();
        self.env.rates.begin(&self.env.serving, |_| false);
        self.unknown_hosts.handed_over(now);
        self.env.note(format_args!("a new process serves"));
        self.env.figures.fault(Fault::Handover);
        Ok(())
    }
}

/// Completes the requests in flight, and takes the state. Returns `None` if the old process
/// continues, because that takes too long.
fn take_state(
    handing_over: &HandingOver,
    during: &mut During<'_>,
    deadline: Nanos,
) -> Result<Option<Passed>, String> {
    loop {
        handing_over.hold(during)?;
        if let Some(passed) = handing_over.export(during)? {
            return Ok(Some(passed));
        }
        if during.world.env.time.now() >= deadline {
            handing_over.resume(during)?;
            return Ok(None);
        }
        appliance::headless::EventLoop::run_once(during);
        if during.end.is_some() {
            return Ok(None);
        }
    }
}
