//! Masks of hosts: an administrator shows a host more or fewer disks of its subsystem, or lets it
//! only read, often while it uses them.

use appliance_config::MaskedAccess;
use reactors::Nanos;

use super::World;
use crate::faults::Fault;
use crate::judge::Violation;

/// Probability of a change in an event, per thousand.
const CHANGES_PERMILLE: u32 = 25;
/// Probability that a disk delays commands of the host during a change, per thousand.
const BUSY_PERMILLE: u32 = 400;
/// The longest such delay.
const BUSY_MAX: Nanos = Nanos::from_millis(20);
/// I/O commands of the host that a change meets.
const IOS: u64 = 6;

impl World {
    /// Sometimes changes what a host sees.
    pub(super) fn mask_hosts(&mut self) -> Result<(), Violation> {
        let random = &mut self.mask_random;
        let is_on = self.env.swarm.faults.has(Fault::Mask) && !self.changing;
        if !is_on || !random.permille(CHANGES_PERMILLE) {
            return Ok(());
        }
        let host = random.below(self.hosts.len() as u64) as usize;
        let disk = random.below(self.env.disks.len() as u64) as usize;
        if random.coin() {
            self.delay_commands(host, BUSY_PERMILLE, BUSY_MAX)?;
        }
        if self.hosts[host].can_reach_disks() {
            self.hosts[host].send_io(&mut self.env.for_hosts(), IOS);
        }
        if self.reconfigure(Fault::Mask, disk, host)? {
            self.env.figures.fault(Fault::Mask);
        }
        Ok(())
    }

    /// Other masks of a host, whose paths share its name.
    pub(super) fn vary_masks(&mut self, masks: &mut [Vec<MaskedAccess>], disk: usize, host: usize) {
        let identity = self.env.swarm.hosts[host].identity;
        let random = &mut self.mask_random;
        let every = [
            MaskedAccess::Hidden,
            MaskedAccess::ReadOnly,
            MaskedAccess::Unrestricted,
        ];
        masks[identity][disk] = random.pick(&every);
        if random.permille(200) {
            masks[identity].fill(random.pick(&every));
        }
    }
}
