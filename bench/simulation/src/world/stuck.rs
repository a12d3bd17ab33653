//! File writes that the kernel holds back for a long time because a disk hangs, or because the
//! server of a network file system is unreachable.

use reactors::Nanos;

use super::World;
use crate::faults::Fault;
use crate::judge::{Extent, Violation};
use crate::storage::Storage;

/// Longest time that the kernel holds back a write.
const STUCK_MAX: Nanos = Nanos::from_secs(100);

impl World {
    /// Resets the controller of the host whose write the kernel holds back. The host writes to the
    /// same block as soon as it is in service; the stuck write must not overwrite acknowledged
    /// data.
    pub(super) fn reset_behind_stuck(
        &mut self,
        (disk, host): (usize, usize),
    ) -> Result<bool, Violation> {
        let aftermath = self.hosts[host].misbehave(&mut self.env.for_hosts(), Fault::Reset);
        let has_reset = aftermath.is_some();
        self.clean_up(host, aftermath);
        let by = self.env.time.now() + STUCK_MAX;
        if has_reset && self.run_until(by, |world| world.hosts[host].can_reach_disks())? {
            let extent = first_block(disk);
            self.hosts[host].write(&mut self.env.for_hosts(), extent);
        }
        Ok(false)
    }

    /// Makes the kernel hold back a write of a host.
    pub(super) fn hold_next_write(&mut self, disk: usize, host: usize) -> bool {
        let swarm = &self.env.swarm;
        let identity = swarm.hosts[host].identity;
        let is_served = self.env.serving.shows(swarm, identity, disk)
            && !self.env.serving.protects(swarm, identity, disk);
        let of_subsystem = self.env.swarm.subsystem_of_disk(disk);
        let subsystem = self.env.swarm.hosts[host].subsystem;
        let Storage::File(file) = &self.env.disks[disk] else {
            return false;
        };
        let file = file.clone();
        if !is_served || subsystem != of_subsystem || !self.hosts[host].can_reach_disks() {
            return false;
        }
        let now = self.env.time.now();
        let until =
            now + Nanos::from_millis(self.separate_random.between(1000, STUCK_MAX.as_millis()));
        if !self.hosts[host].write(&mut self.env.for_hosts(), first_block(disk)) {
            return false;
        }
        file.hold_next_write(until);
        self.hosts[host].memory_is_kept(until);
        self.env.note(format_args!(
            "the kernel holds a write of host {host} to disk {disk} until {until}"
        ));
        let disturbed = &mut self.env.disk_disturbed[disk];
        *disturbed = until.max(*disturbed);
        self.env.disk_fails[disk] = true;
        self.env.judge.may_be_stuck(disk);
        self.env.disturb_memory(until);
        self.stuck_host = Some((disk, host));
        true
    }
}

/// The first block of a disk.
fn first_block(disk: usize) -> Extent {
    Extent {
        disk,
        lba: 0,
        blocks: 1,
    }
}
