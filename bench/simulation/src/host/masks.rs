//! What a host sees of the disks of its subsystem, and checks that it learns of nothing else.

use std::collections::BTreeSet;

use appliance_config::MaskedAccess;
use nvme_spec::command::Cns;
use nvme_spec::identify::IDENTIFY_BYTES;
use nvme_spec::{Sqe, U32};
use reactors::Nanos;
use zerocopy::FromBytes;

use super::admin::AdminStep;
use super::connection::{Outstanding, Transfer};
use super::{Command, Host, HostEnv, Io, IoKind};
use crate::faults::Fault;
use crate::judge::Violation;

impl HostEnv<'_> {
    /// Whether the namespace of a disk exists for hosts with this name.
    pub(super) fn sees(&self, identity: usize, disk: usize) -> bool {
        self.serving.shows(self.swarm, identity, disk)
    }

    /// Whether hosts with this name cannot write to a disk.
    pub(super) fn is_protected(&self, identity: usize, disk: usize) -> bool {
        self.serving.protects(self.swarm, identity, disk)
    }

    /// When the namespace of a disk last changed for hosts with this name.
    pub(super) fn changed_at(&self, identity: usize, disk: usize) -> Nanos {
        self.namespace_changed[disk].max(self.mask_changed[identity][disk])
    }
}

impl Host {
    /// Whether a disk was hidden from this host since `since`.
    pub(super) fn is_hidden_since(&self, env: &HostEnv<'_>, disk: usize, since: Nanos) -> bool {
        let identity = self.shape.identity;
        let access = env.serving.access(env.swarm, identity, disk);
        access == MaskedAccess::Hidden && env.mask_changed[identity][disk] < since
    }

    /// Checks that no successful command has reached a disk that was hidden from the host when it
    /// was sent.
    pub(super) fn check_visible(
        &self,
        env: &mut HostEnv<'_>,
        io: &Io,
        issued_at: Nanos,
    ) -> Result<(), Violation> {
        // A Flush may be that of all namespaces.
        let hidden = io
            .disks()
            .find(|disk| self.is_hidden_since(env, *disk, issued_at));
        match hidden {
            Some(disk) if io.kind != IoKind::Flush && !io.ambiguous => {
                let what = format!("a {:?} of disk {disk} succeeded, which is hidden", io.kind);
                Err(self.violation(env, &what))
            }
            _ => Ok(()),
        }
    }

    /// Checks that no data describes a disk that was hidden when the data was requested.
    pub(super) fn check_not_identified(
        &self,
        env: &mut HostEnv<'_>,
        disk: usize,
        issued_at: Nanos,
    ) -> Result<(), Violation> {
        if !self.is_hidden_since(env, disk, issued_at) {
            return Ok(());
        }
        let what = format!("Identify describes disk {disk}, which is hidden");
        Err(self.violation(env, &what))
    }

    /// Reads the list of active namespaces.
    pub(super) fn list_disks(&mut self, env: &mut HostEnv<'_>) {
        if env.swarm.faults.has(Fault::Mask) && self.knows_disks() {
            let sqe = Sqe::identify_structure(Cns::ACTIVE_NAMESPACE_LIST, 0);
            let command = Command::Admin(AdminStep::List);
            self.send_admin_moving(env, sqe, command, Transfer::In(IDENTIFY_BYTES));
        }
    }

    /// Compares the list of active namespaces with the disks that the host sees.
    pub(super) fn check_list(
        &self,
        env: &mut HostEnv<'_>,
        outstanding: &Outstanding,
    ) -> Result<(), Violation> {
        let listed = <[U32]>::ref_from_bytes(&outstanding.data).unwrap_or_default();
        let listed = listed.iter().map(|it| it.get()).take_while(|it| *it != 0);
        let listed: BTreeSet<u32> = listed.collect();
        let identity = self.shape.identity;
        let issued_at = outstanding.issued_at;
        for disk in env.swarm.disks_of(self.shape.subsystem) {
            let is_listed = listed.contains(&self.nsid(env, disk));
            let is_settled = env.changed_at(identity, disk) < issued_at && !env.disk_gone[disk];
            if is_settled && is_listed != env.sees(identity, disk) {
                let what = format!("disk {disk} is wrong in the list of namespaces {listed:?}");
                return Err(self.violation(env, &what));
            }
        }
        env.figures.lists_judged += 1;
        Ok(())
    }
}
