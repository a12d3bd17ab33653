//! Situations that need several conditions at once, which faults that are drawn one by one seldom
//! produce: a reset while a disk has writes of the controller, and a read of the data of a write
//! that fails.

use reactors::Nanos;

use super::World;
use crate::faults::Fault;
use crate::host::Host;
use crate::judge::{Extent, Violation};
use crate::random::Random;
use crate::storage::Storage;

/// Share of events with such a situation, per thousand, for each of them.
const RARE_PERMILLE: u32 = 8;
/// Writes that a disk has or whose data is read.
const WRITES: u64 = 3;
/// Blocks of such a write at most.
const BLOCKS_MAX: u64 = 4;
/// Longest time for which a disk delays writes. Hosts read CSTS long before.
const DELAY_MAX: Nanos = Nanos::from_millis(40);
/// Time after which the data of a write has usually arrived.
const ARRIVES_WITHIN: Nanos = Nanos::from_millis(1);

impl World {
    /// Sometimes produces one of the situations.
    pub(super) fn apply_rare_fault(&mut self) -> Result<(), Violation> {
        let faults = self.env.swarm.faults;
        if faults.has(Fault::Reset) && self.rare_random.permille(RARE_PERMILLE) {
            self.reset_during_writes()?;
        }
        if faults.has(Fault::WorkErrors) && self.rare_random.permille(RARE_PERMILLE) {
            self.fail_read_of_write();
        }
        Ok(())
    }

    /// Resets the controller of a host while a disk delays writes of it. The judge checks that the
    /// disk does not have them any more when CSTS.RDY is 0 (Base 2.1 §3.7.2).
    fn reset_during_writes(&mut self) -> Result<(), Violation> {
        let later = self.env.swarm.faults.has(Fault::Later);
        let shows_writes = |storage: &Storage| matches!(storage, Storage::Disk(_));
        let Some((host, disk)) = self.pick_writer(|_| true, shows_writes) else {
            return Ok(());
        };
        let longest = DELAY_MAX.as_nanos();
        let lasts = Nanos(self.rare_random.between(longest / 2, longest));
        let until = self.env.time.now() + lasts;
        let is_held = self.env.disk_disturbed[disk] >= until;
        if self.changing || later || is_held || !self.env.disks[disk].hold(until) {
            return Ok(());
        }
        self.env.disk_disturbed[disk] = until;
        self.env.disturb_memory(until);
        self.env.note(format_args!(
            "disk {disk} delays writes of host {host} until {until}, which resets"
        ));
        for _ in 0..WRITES {
            let extent = self.pick_extent(disk);
            self.hosts[host].write(&mut self.env.for_hosts(), extent);
        }
        self.pass(ARRIVES_WITHIN)?;
        self.env.figures.fault(Fault::Reset);
        self.misbehave(host, Fault::Reset);
        Ok(())
    }

    /// Makes a read of the data of a write fail, and with it the connection. The judge checks that
    /// the memory for the data is not written in its place.
    fn fail_read_of_write(&mut self) {
        let Some((host, disk)) = self.pick_writer(Host::uses_rdma, |_| true) else {
            return;
        };
        let extents = (0..WRITES).map(|_| self.pick_extent(disk)).collect();
        let mut random = Random::new(self.rare_random.bits(), 0);
        self.hosts[host].fail_read_of(&mut self.env.for_hosts(), extents, &mut random);
    }

    /// Picks a host that can write to a disk, and this disk.
    fn pick_writer(
        &mut self,
        is_host: impl Fn(&Host) -> bool,
        is_storage: impl Fn(&Storage) -> bool,
    ) -> Option<(usize, usize)> {
        let Self { env, hosts, .. } = self;
        let hosts =
            (0..hosts.len()).filter(|it| hosts[*it].can_reach_disks() && is_host(&hosts[*it]));
        let mut pairs = Vec::new();
        for host in hosts {
            let shape = env.swarm.hosts[host];
            for disk in env.swarm.disks_of(shape.subsystem) {
                let (serving, identity) = (&env.serving, shape.identity);
                let is_writable = serving.shows(&env.swarm, identity, disk)
                    && !serving.protects(&env.swarm, identity, disk);
                let storage = &env.disks[disk];
                if is_writable && !storage.needs_restart() && is_storage(storage) {
                    pairs.push((host, disk));
                }
            }
        }
        (!pairs.is_empty()).then(|| self.rare_random.pick(&pairs))
    }

    fn pick_extent(&mut self, disk: usize) -> Extent {
        let count = self.env.swarm.disks[disk].block_count;
        let blocks = self.rare_random.between(1, BLOCKS_MAX);
        Extent {
            disk,
            lba: self.rare_random.between(0, count - blocks),
            blocks: blocks as u32,
        }
    }
}
