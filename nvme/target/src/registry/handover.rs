//! Hand-over of the registry's part of controllers and queues.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use reactors::Nanos;

use super::{ControllerEntry, IoGrant, Registry, hash_of};
use crate::ana::AnaRestrictions;
use crate::shared::{ControllerIdentity, ControllerShared, DISCOVERY_SLOT};
use crate::shares::ShareHolder;

impl ControllerEntry {
    /// The host's address on the admin queue.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// The host for the accounting of shares.
    pub(crate) fn share_holder(&self) -> &ShareHolder {
        &self.share_holder
    }
}

/// A controller of an earlier process.
pub(crate) struct RestoredController {
    /// The registry assigns the account.
    pub(crate) identity: ControllerIdentity,
    pub(crate) share_holder: ShareHolder,
    pub(crate) address: Option<IpAddr>,
    pub(crate) admin_slot: u32,
    pub(crate) ana: AnaRestrictions,
}

impl Registry {
    /// The next identifier to assign, by the first of the allowed ones.
    pub(crate) fn next_controller_ids(&self) -> &BTreeMap<u16, u16> {
        &self.next_cntlids
    }

    /// Continues to assign identifiers after those that were assigned.
    pub(crate) fn continue_controller_ids(&mut self, next: &BTreeMap<u16, u16>) {
        self.next_cntlids.extend(next);
    }

    /// Adds a controller of an earlier process, whatever the limits of this one are. Returns `None`
    /// if its identifier is in use.
    pub(crate) fn restore(
        &mut self,
        restored: RestoredController,
    ) -> Option<Arc<ControllerShared>> {
        let RestoredController {
            mut identity,
            share_holder,
            address,
            admin_slot,
            ana,
        } = restored;
        let cntlid = identity.cntlid;
        if self.closed || self.controllers.contains_key(&cntlid) {
            return None;
        }
        let is_discovery = identity.subsystem == DISCOVERY_SLOT;
        if is_discovery {
            self.discovery.insert(cntlid);
        } else {
            self.controller_shares.take(&share_holder, 1);
            self.queue_shares.take(&share_holder, 1);
        }
        identity.host_account = self.host_accounts.add_controller(&identity.host_nqn);
        let host = hash_of(&identity);
        let shared = Arc::new(ControllerShared::new(identity, 0));
        shared.note_command(Nanos::ZERO);
        if !is_discovery {
            self.reservations.restrict(&shared);
            shared.set_ana(ana);
        }
        let entry = ControllerEntry {
            shared: Arc::clone(&shared),
            admin_slot: Some(admin_slot),
            io_queues: Vec::new(),
            host,
            share_holder,
            address,
        };
        self.controllers.insert(cntlid, entry);
        Some(shared)
    }

    /// Adds an I/O queue of an earlier process to its controller.
    ///
    /// # Errors
    /// The reason for which the controller cannot have it.
    pub(crate) fn restore_io(
        &mut self,
        cntlid: u16,
        qid: u16,
        reactor: usize,
        slot: u32,
    ) -> Result<IoGrant, &'static str> {
        let entry = self.controllers.get_mut(&cntlid);
        let entry = entry.filter(|it| !it.is_over() && !it.is_discovery());
        let entry = entry.ok_or("its controller does not exist")?;
        if entry.io_queues.iter().any(|queue| queue.qid == qid) {
            return Err("it exists already");
        }
        self.queue_shares.take(&entry.share_holder, 1);
        let gate = entry.shared.gate().open_since_reset();
        let token = self.next_token;
        self.next_token += 1;
        Ok(entry.add_io_queue(qid, (reactor, slot), gate, token))
    }
}
