//! Checks of the whole: memory, media, accounts, and writes that got lost.

use std::collections::BTreeSet;

use nvme_target::{ControllerSnapshot, ControllerState};

use super::{RECOVERY_MAX, World};
use crate::appliance::{Appliance, Held};
use crate::faults::Fault;
use crate::host::{DiscoveryHost, Host};
use crate::judge::{Extent, Violation};
use crate::memory::{check_connections, check_queue_pairs, check_receives, slices_at_rest};
use crate::plan::{IN_CAPSULE_MORE_BYTES, host_name};

impl World {
    /// Checks that no connection holds more memory than its queue and its commands need.
    pub(super) fn check_memory(&self) -> Result<(), Violation> {
        let Some(appliance) = &self.appliance else {
            return Ok(());
        };
        let hosts = self.hosts.iter().flat_map(Host::memory_bounds);
        let discovery_hosts = self
            .discovery_hosts
            .iter()
            .filter_map(DiscoveryHost::memory_bound);
        let bounds = hosts
            .chain(discovery_hosts)
            .chain(self.unknown_hosts.memory_bounds());
        let held = appliance.held_by_connections().into_iter();
        check_connections(&bounds.collect(), held)?;
        let Some(rdma) = &self.env.rdma else {
            return Ok(());
        };
        let swarm = &self.env.swarm;
        let capsule_bytes = (swarm.in_capsule_bytes + IN_CAPSULE_MORE_BYTES) as usize;
        let hosts = self.hosts.iter().flat_map(Host::queue_pair_bounds);
        let bounds = hosts.chain(self.silent_hosts.queue_pair_bounds());
        let held = appliance.held_by_queue_pairs().into_iter();
        let request_bytes = swarm.transfer_max.max(capsule_bytes);
        check_queue_pairs(bounds, held, request_bytes)?;
        let in_capsule_bytes = swarm.in_capsule_bytes as usize;
        check_receives(
            &rdma.shared_receives(),
            in_capsule_bytes,
            appliance.slices(),
        )
    }

    /// Checks that the media contain all data that must survive a power failure.
    pub(super) fn check_survivors(&self) -> Result<(), Violation> {
        for (number, disk) in self.env.disks.iter().enumerate() {
            let judge = &self.env.judge;
            disk.inspect_medium(&mut |lba, stamp| judge.judge_survivor(number, lba, stamp))?;
        }
        Ok(())
    }

    /// Checks every block on the media after a power failure.
    pub(super) fn check_media(&self, power: bool) -> Result<(), Violation> {
        if !power {
            return Ok(());
        }
        for (number, disk) in self.env.disks.iter().enumerate() {
            let shape = self.env.swarm.disks[number];
            let mut found = vec![0; shape.block_size as usize];
            for lba in 0..shape.block_count {
                if disk.read_medium(lba, &mut found) {
                    self.env.judge.judge_medium(number, lba, &found)?;
                }
            }
        }
        Ok(())
    }

    /// Checks that drives access no memory after its return.
    pub(super) fn check_dma(&self) -> Result<(), Violation> {
        let appliance = self.appliance.as_ref();
        match appliance.and_then(Appliance::take_dma_violation) {
            None => Ok(()),
            Some(access) => {
                let what = format!("a drive accessed memory that it was not given: {access:?}");
                Err(Violation::Rule(what))
            }
        }
    }

    /// Informs the judge about associations whose end the target has detected, has other paths of
    /// their hosts repeat the lost writes, and notes the hosts whose commands are fenced.
    pub(super) fn update_lost_writes(&mut self) {
        let may_be_fenced =
            self.env.judge.has_lost() || self.hosts.iter().any(Host::awaits_readiness);
        let mut lost = self.env.judge.reservations.unnoticed();
        let may_be_fenced = may_be_fenced || lost.next().is_some();
        drop(lost);
        let Some(appliance) = self.appliance.as_ref().filter(|_| may_be_fenced) else {
            return;
        };
        let controllers = appliance.controllers();
        let now = self.env.time.now();
        let identities = self.env.swarm.hosts.iter().map(|host| host.identity);
        for (fenced, identity) in self.env.fenced.iter_mut().zip(identities) {
            let name = host_name(identity);
            let mut its = controllers.iter().filter(|it| it.host_nqn == name);
            if its.any(|it| it.fenced || it.state == ControllerState::Enabling) {
                *fenced = now;
            }
        }
        let judge = &self.env.judge;
        let unnoticed = judge.unnoticed().chain(judge.reservations.unnoticed());
        let unnoticed: BTreeSet<(usize, u16)> = unnoticed.collect();
        for (identity, cntlid) in unnoticed {
            let name = host_name(identity);
            let serves = |it: &ControllerSnapshot| {
                let is_it = it.controller_id == cntlid && it.host_nqn == name;
                is_it && it.state != ControllerState::Ended
            };
            if !controllers.iter().any(serves) {
                self.env.judge.noticed((identity, cntlid));
                self.pass_retries_on(identity);
            }
        }
    }

    /// Has a path in service repeat the lost writes of the other paths of its host.
    pub(super) fn pass_retries_on(&mut self, identity: usize) {
        let shapes = &self.env.swarm.hosts;
        let paths = (0..shapes.len()).filter(|path| shapes[*path].identity == identity);
        let paths: Vec<usize> = paths.collect();
        let serving = paths.iter().find(|path| self.hosts[**path].is_serving());
        if let Some(&serving) = serving {
            let lost = paths.iter();
            let lost = lost.flat_map(|path| self.hosts[*path].take_retries());
            let lost: Vec<Extent> = lost.collect();
            self.hosts[serving].retry(lost);
        }
    }

    /// Checks that the target accounts for no resources that no host has.
    pub(super) fn check_accounts(&mut self) -> Result<(), Violation> {
        let by = self.env.time.now() + RECOVERY_MAX;
        let mut wrong = String::new();
        let agrees = |world: &mut Self| {
            let mut held = Held::default();
            for host in world.hosts.iter().map(Host::held) {
                held.admin_queues += host.admin_queues;
                held.io_queues += host.io_queues;
            }
            let faults = world.env.swarm.faults;
            // The queues of drives and files hold memory while idle.
            let holds = [Fault::Drive, Fault::File];
            let is_known = !holds.iter().any(|it| faults.has(*it));
            let leases = world.slices_at_rest();
            let checked = world
                .appliance
                .as_ref()
                .map(|it| it.check_accounts(held, is_known.then_some(leases)));
            match checked {
                Some(Err(what)) => {
                    wrong = what;
                    false
                }
                Some(Ok(())) | None => true,
            }
        };
        // If a host vanished while the target did not receive from it, the connection's resources
        // are freed only when the target sends again, which may be never.
        let is_excused = self.env.swarm.faults.has(Fault::Vanish);
        if self.run_until(by, agrees)? || is_excused {
            return Ok(());
        }
        Err(Violation::Rule(wrong))
    }

    /// Slices of the arena that transports have in an idle appliance.
    pub(super) fn slices_at_rest(&self) -> u64 {
        let Some(rdma) = &self.env.rdma else {
            return 0;
        };
        let hosts = self.hosts.iter().zip(&self.env.swarm.hosts);
        let queues = hosts.filter(|(_, shape)| shape.rdma).map(|(host, _)| {
            let held = host.held();
            held.admin_queues + held.io_queues
        });
        let inline_bytes = self.env.swarm.rdma.inline_bytes;
        slices_at_rest(&rdma.shared_receives(), inline_bytes, queues.sum())
    }
}
