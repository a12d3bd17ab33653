//! The registry of controllers, and of the I/O queues that each has on each core. Control path
//! only.

pub(crate) mod handover;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use nvme_spec::fabrics::ConnectField;
use reactors::Nanos;

use crate::ana::{AnaRestrictions, AnaTransitions, EarlierCommands};
use crate::config::{DISCOVERY_CONTROLLERS_MAX, TargetLimits};
use crate::exclusions::ExclusionTable;
use crate::host_accounts::HostAccounts;
use crate::interface::CloseReason;
use crate::reservations::ReservationTable;
use crate::shared::{ControllerIdentity, ControllerShared, DISCOVERY_SLOT, Gate};
use crate::shares::{ShareHolder, Shares};

/// Most lost associations that are remembered, for recognizing a reconnecting host.
const LOST_MAX: usize = 1024;

/// Most addresses for which one kind of notice is logged.
const NOTICED_MAX: usize = 256;

/// One I/O queue of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IoQueueEntry {
    pub(crate) qid: u16,
    pub(crate) reactor: usize,
    /// Slot in that reactor's core.
    pub(crate) slot: u32,
    /// Distinguishes a queue from a later one with the same identifier.
    pub(crate) token: u64,
    /// Number of resets of the controller before the queue was created.
    resets: u64,
    /// The connection is closed, but devices still have requests of the queue.
    orphaned: bool,
}

/// One controller.
pub(crate) struct ControllerEntry {
    pub(crate) shared: Arc<ControllerShared>,
    /// Slot of the admin queue in its reactor's core; `None` after that queue has ended.
    pub(crate) admin_slot: Option<u32>,
    pub(crate) io_queues: Vec<IoQueueEntry>,
    /// Hash of host and subsystem. Different hashes mean different hosts.
    host: u64,
    /// The host for the accounting of shares.
    share_holder: ShareHolder,
    /// The host's address on the admin queue, if the transport knows it.
    address: Option<IpAddr>,
}

impl ControllerEntry {
    fn is_discovery(&self) -> bool {
        self.shared.identity.subsystem == DISCOVERY_SLOT
    }

    /// Adds a queue in a slot of a reactor's core, which executes commands at this gate.
    fn add_io_queue(
        &mut self,
        qid: u16,
        (reactor, slot): (usize, u32),
        gate: Gate,
        token: u64,
    ) -> IoGrant {
        self.io_queues.push(IoQueueEntry {
            qid,
            reactor,
            slot,
            token,
            resets: gate.resets(),
            orphaned: false,
        });
        IoGrant {
            shared: Arc::clone(&self.shared),
            gate,
            token,
        }
    }

    fn is_over(&self) -> bool {
        self.admin_slot.is_none() || self.shared.ending().is_some()
    }

    /// Whether devices may still have requests of which the host no longer expects a completion:
    /// those of an ended association, from before a reset, or of a closed connection.
    fn has_orphans(&self) -> bool {
        let over = self.is_over();
        let resets = self.shared.gate().resets();
        let mut queues = self.io_queues.iter();
        queues.any(|queue| over || queue.orphaned || queue.resets != resets)
    }

    /// Whether both are of the same host on the same subsystem. Compares the name of the subsystem,
    /// because a subsystem that was removed and added again has another slot but may have the same
    /// devices.
    fn is_of_same_host(&self, other: &Self) -> bool {
        let (one, other_one) = (&self.shared.identity, &other.shared.identity);
        self.host == other.host
            && one.host_id == other_one.host_id
            && one.host_nqn == other_one.host_nqn
            && one.subsystem_nqn == other_one.subsystem_nqn
    }
}

/// Parameters of a new controller.
pub(crate) struct NewController {
    /// The registry assigns the controller identifier and the account.
    pub(crate) identity: ControllerIdentity,
    pub(crate) share_holder: ShareHolder,
    /// Whether any export lists hosts.
    pub(crate) has_lists: bool,
    /// The host's address on the admin queue.
    pub(crate) address: Option<IpAddr>,
    /// Slot of the admin queue in its core.
    pub(crate) admin_slot: u32,
    /// I/O queues granted to it.
    pub(crate) io_queues: u16,
    /// The identifiers that it can have.
    pub(crate) controller_ids: RangeInclusive<u16>,
    /// What the ANA states at its port forbid.
    pub(crate) ana: AnaRestrictions,
    /// When its host connected, which counts as its first command.
    pub(crate) now: Nanos,
}

/// The result of adding a controller.
pub(crate) struct AddedController {
    pub(crate) shared: Arc<ControllerShared>,
    /// The reactor of the discovery controller that was evicted for it.
    pub(crate) evicted: Option<usize>,
}

/// A request for an I/O queue.
pub(crate) struct IoConnect<'a> {
    pub(crate) cntlid: u16,
    pub(crate) subsystem: u32,
    pub(crate) host_nqn: &'a str,
    pub(crate) host_id: [u8; 16],
    pub(crate) qid: u16,
    pub(crate) reactor: usize,
    pub(crate) slot: u32,
    /// Whether any export lists hosts.
    pub(crate) has_lists: bool,
    /// The host's address, if it has to be the same as on the admin queue.
    pub(crate) bound_to: Option<IpAddr>,
    /// Whether its connection has a secure channel.
    pub(crate) is_secure: bool,
}

/// A granted I/O queue.
pub(crate) struct IoGrant {
    pub(crate) shared: Arc<ControllerShared>,
    /// The value of the gate at which the queue executes commands.
    pub(crate) gate: Gate,
    pub(crate) token: u64,
}

/// The reason for refusing an I/O queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoRefusal {
    /// A field of Connect is invalid.
    Field(ConnectField),
    /// The controller is not enabled, or the queue already exists.
    Sequence,
    /// The host has reached its limit of queues.
    Busy,
    /// The address differs from that of the admin queue, which is in the value.
    Address(IpAddr),
    /// It has a secure channel and the admin queue has none, or the reverse.
    Channel,
}

/// All controllers of a target.
pub(crate) struct Registry {
    controllers: BTreeMap<u16, ControllerEntry>,
    /// Accounts of I/O controllers by host.
    controller_shares: Shares,
    /// Accounts of their queues by host, admin queues included.
    queue_shares: Shares,
    /// Identifiers of the discovery controllers. They count in no share; instead, the one that was
    /// idle longest is evicted.
    discovery: BTreeSet<u16>,
    /// The next identifier to assign, by the first of the allowed ones.
    next_cntlids: BTreeMap<u16, u16>,
    next_token: u64,
    host_accounts: HostAccounts,
    /// Hashes of associations that were lost without a shutdown by the host, the latest last.
    lost_associations: VecDeque<u64>,
    /// Addresses of hosts without a host NQN that were logged.
    logged_unnamed: BTreeSet<Option<IpAddr>>,
    /// Addresses of refused I/O queues that were logged.
    logged_unbound: BTreeSet<Option<IpAddr>>,
    reservations: ReservationTable,
    pub(crate) exclusions: ExclusionTable,
    pub(crate) ana_transitions: AnaTransitions,
    /// Connects are no longer accepted.
    pub(crate) closed: bool,
}

impl Registry {
    pub(crate) fn new(limits: &TargetLimits) -> Self {
        Self {
            controllers: BTreeMap::new(),
            controller_shares: Shares::new(usize::from(limits.controllers_max)),
            queue_shares: Shares::new(limits.queues_max),
            discovery: BTreeSet::new(),
            next_cntlids: BTreeMap::new(),
            next_token: 1,
            host_accounts: HostAccounts::default(),
            lost_associations: VecDeque::with_capacity(LOST_MAX),
            logged_unnamed: BTreeSet::new(),
            logged_unbound: BTreeSet::new(),
            reservations: ReservationTable::default(),
            exclusions: ExclusionTable::default(),
            ana_transitions: AnaTransitions::default(),
            closed: false,
        }
    }

    /// Whether `address` is new among hosts without a host NQN. Remembers up to [`NOTICED_MAX`]
    /// addresses; further ones are not reported.
    pub(crate) fn notice_unnamed(&mut self, address: Option<IpAddr>) -> bool {
        self.logged_unnamed.len() < NOTICED_MAX && self.logged_unnamed.insert(address)
    }

    /// Whether `address` is new among I/O queues whose address differs from that of their admin
    /// queue.
    pub(crate) fn notice_unbound(&mut self, address: Option<IpAddr>) -> bool {
        self.logged_unbound.len() < NOTICED_MAX && self.logged_unbound.insert(address)
    }

    /// Changes the maximum number of controllers.
    pub(crate) fn limit_controllers(&mut self, count: u16) {
        self.controller_shares.resize(usize::from(count));
    }

    /// The maximum number of controllers.
    pub(crate) fn controllers_max(&self) -> u16 {
        // It was set from a `u16`.
        self.controller_shares.capacity() as u16
    }

    /// Begins a change of ANA states. `done` is dropped when it is complete.
    pub(crate) fn begin_ana_transition(&mut self, commands: EarlierCommands, done: Sender<()>) {
        let controllers = self.controllers.values();
        self.ana_transitions.begin(commands, controllers, done);
    }

    /// All controllers.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &ControllerEntry> {
        self.controllers.values()
    }

    /// The hosts that have associations with a subsystem.
    pub(crate) fn hosts_of(&self, subsystem: u32) -> BTreeSet<&str> {
        let identities = self.entries().map(|entry| &entry.shared.identity);
        let of_subsystem = identities.filter(|identity| identity.subsystem == subsystem);
        of_subsystem.map(|it| it.host_nqn.as_str()).collect()
    }

    /// The reservations, and the controllers that they concern.
    pub(crate) fn reservations(
        &mut self,
    ) -> (&mut ReservationTable, &BTreeMap<u16, ControllerEntry>) {
        (&mut self.reservations, &self.controllers)
    }

    /// The controller with this identifier.
    pub(crate) fn entry(&self, cntlid: u16) -> Option<&ControllerEntry> {
        self.controllers.get(&cntlid)
    }

    /// Adds a controller. Returns `None` if the total or the host's limit is reached.
    pub(crate) fn add(&mut self, new: NewController) -> Option<AddedController> {
        let NewController {
            mut identity,
            share_holder,
            has_lists,
            address,
            admin_slot,
            io_queues,
            controller_ids,
            ana,
            now,
        } = new;
        let is_discovery = identity.subsystem == DISCOVERY_SLOT;
        let has_share = self.controller_shares.admits(&share_holder, 1, has_lists)
            && self.queue_shares.admits(&share_holder, 1, has_lists);
        if !is_discovery && !has_share {
            return None;
        }
        identity.cntlid = self.free_cntlid(controller_ids)?;
        let mut evicted = None;
        if is_discovery {
            evicted = self.make_room_for_discovery()?;
            self.discovery.insert(identity.cntlid);
        } else {
            self.controller_shares.take(&share_holder, 1);
            self.queue_shares.take(&share_holder, 1);
        }
        identity.host_account = self.host_accounts.add_controller(&identity.host_nqn);
        let cntlid = identity.cntlid;
        let host = hash_of(&identity);
        let shared = Arc::new(ControllerShared::new(identity, io_queues));
        // Before another core can search for the controller that was idle longest.
        shared.note_command(now);
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
            address: address.map(|it| it.to_canonical()),
        };
        if self.has_orphans(&entry) {
            shared.set_fence(true);
        }
        self.controllers.insert(cntlid, entry);
        Some(AddedController { shared, evicted })
    }

    /// Ends a discovery controller's association if their maximum is reached, and returns its
    /// reactor. Returns `None` if there is no room because too many evicted ones have not ended
    /// yet.
    fn make_room_for_discovery(&mut self) -> Option<Option<usize>> {
        if self.discovery.len() >= 2 * DISCOVERY_CONTROLLERS_MAX {
            return None;
        }
        let entries = self.discovery.iter();
        let live: Vec<&ControllerEntry> = entries
            .filter_map(|cntlid| self.controllers.get(cntlid))
            .filter(|entry| entry.shared.ending().is_none())
            .collect();
        if live.len() < DISCOVERY_CONTROLLERS_MAX {
            return Some(None);
        }
        // Evicts hosts that exports list and hosts that wait for an event last.
        let victim = live.into_iter().min_by_key(|entry| {
            let shared = &entry.shared;
            let is_listed = entry.share_holder.is_listed();
            (is_listed, shared.awaits_event(), shared.last_command())
        })?;
        victim.shared.end(CloseReason::Evicted);
        Some(Some(victim.shared.identity.admin_reactor))
    }

    /// Whether devices may still have requests of this controller's host of which it no longer
    /// expects a completion. Until they are complete, none of its controllers becomes ready and
    /// none of its new writes starts: an older write could overtake it.
    pub(crate) fn has_orphans(&self, entry: &ControllerEntry) -> bool {
        let mut all = self.controllers.values();
        all.any(|other| other.is_of_same_host(entry) && other.has_orphans())
    }

    /// Raises or lifts the fence of every controller of the host of `cntlid` after a relevant
    /// change. Returns the reactors that have to handle a lifted fence.
    pub(crate) fn update_fences(&self, cntlid: u16) -> Vec<usize> {
        match self.controllers.get(&cntlid) {
            // Without an I/O queue it never had a request in a device.
            Some(entry) if !entry.io_queues.is_empty() => self.fence_host_of(entry),
            Some(_) | None => Vec::new(),
        }
    }

    fn fence_host_of(&self, entry: &ControllerEntry) -> Vec<usize> {
        let mut reactors = Vec::new();
        let raised = self.has_orphans(entry);
        let same_host = self.controllers.values();
        let same_host = same_host.filter(|it| it.is_of_same_host(entry) && !it.is_over());
        for other in same_host {
            if other.shared.set_fence(raised) && !raised {
                reactors.push(other.shared.identity.admin_reactor);
                reactors.extend(other.io_queues.iter().map(|queue| queue.reactor));
            }
        }
        reactors
    }

    /// Marks an I/O queue whose connection is closed while devices still have its requests.
    pub(crate) fn orphan_io(&mut self, cntlid: u16, token: u64) {
        let entry = self.controllers.get_mut(&cntlid);
        let mut queues = entry.into_iter().flat_map(|entry| &mut entry.io_queues);
        if let Some(queue) = queues.find(|queue| queue.token == token) {
            queue.orphaned = true;
        }
    }

    /// The next free identifier of those that are allowed. Identifiers are used in turn, so that a
    /// late I/O Connect of an ended association does not match a new controller (Base 2.1 §3.1.2: 0h
    /// to FFEFh).
    fn free_cntlid(&mut self, allowed: RangeInclusive<u16>) -> Option<u16> {
        let next = self.next_cntlids.entry(*allowed.start());
        let next = next.or_insert(*allowed.start());
        for _ in 0..=self.controllers.len() {
            let candidate = Some(*next).filter(|it| allowed.contains(it));
            let candidate = candidate.unwrap_or(*allowed.start());
            *next = candidate.saturating_add(1);
            if !self.controllers.contains_key(&candidate) {
                return Some(candidate);
            }
        }
        None
    }

    /// Grants an I/O queue (Base 2.1 §6.3): the controller identifier, subsystem, host NQN and host
    /// identifier must be those of the admin queue's Connect, and the controller must be enabled.
    pub(crate) fn add_io(&mut self, connect: &IoConnect<'_>) -> Result<IoGrant, IoRefusal> {
        let unknown = IoRefusal::Field(ConnectField::ControllerId);
        let entry = self.controllers.get_mut(&connect.cntlid).ok_or(unknown)?;
        let identity = &entry.shared.identity;
        if identity.is_secure != connect.is_secure {
            return Err(IoRefusal::Channel);
        }
        // New queues would delay the end of a draining association indefinitely.
        let is_draining = entry.is_over() || entry.shared.drain_requested().is_some();
        if identity.subsystem != connect.subsystem || is_draining {
            return Err(unknown);
        }
        if identity.host_nqn != connect.host_nqn {
            return Err(IoRefusal::Field(ConnectField::HostNqn));
        }
        if identity.host_id != connect.host_id {
            return Err(IoRefusal::Field(ConnectField::HostId));
        }
        let from = connect.bound_to.map(|it| it.to_canonical());
        if let Some((from, address)) = from.zip(entry.address)
            && from != address
        {
            return Err(IoRefusal::Address(address));
        }
        let granted = entry.shared.io_queues_granted();
        if !(1..=granted).contains(&connect.qid) {
            return Err(IoRefusal::Field(ConnectField::QueueId));
        }
        let gate = entry.shared.gate().unconditional();
        let taken = entry.io_queues.iter().any(|queue| queue.qid == connect.qid);
        if !gate.is_open() || taken {
            return Err(IoRefusal::Sequence);
        }
        let share_holder = &entry.share_holder;
        if !(self.queue_shares).admits(share_holder, 1, connect.has_lists) {
            return Err(IoRefusal::Busy);
        }
        self.queue_shares.take(share_holder, 1);
        let token = self.next_token;
        self.next_token += 1;
        let IoConnect {
            qid, reactor, slot, ..
        } = *connect;
        Ok(entry.add_io_queue(qid, (reactor, slot), gate, token))
    }

    /// Removes an I/O queue after devices have completed its last command. Returns the reactors
    /// that have to handle a lifted fence.
    pub(crate) fn remove_io(&mut self, cntlid: u16, token: u64) -> Vec<usize> {
        if let Some(entry) = self.controllers.get_mut(&cntlid) {
            let before = entry.io_queues.len();
            entry.io_queues.retain(|queue| queue.token != token);
            let removed = before - entry.io_queues.len();
            self.queue_shares.return_share(&entry.share_holder, removed);
        }
        let Some(entry) = self.controllers.get(&cntlid) else {
            return Vec::new();
        };
        let reactors = self.fence_host_of(entry);
        self.remove_if_empty(cntlid);
        reactors
    }

    /// Removes the admin queue after devices have completed its last command.
    pub(crate) fn remove_admin(&mut self, cntlid: u16) {
        if let Some(entry) = self.controllers.get_mut(&cntlid) {
            let had_admin = entry.admin_slot.take().is_some();
            if had_admin && !entry.is_discovery() {
                self.queue_shares.return_share(&entry.share_holder, 1);
            }
            self.remove_if_empty(cntlid);
        }
    }

    fn remove_if_empty(&mut self, cntlid: u16) {
        let empty =
            |entry: &ControllerEntry| entry.admin_slot.is_none() && entry.io_queues.is_empty();
        if !self.controllers.get(&cntlid).is_some_and(empty) {
            return;
        }
        let Some(entry) = self.controllers.remove(&cntlid) else {
            return;
        };
        let host_nqn = &entry.shared.identity.host_nqn;
        self.host_accounts.remove_controller(host_nqn);
        if entry.is_discovery() {
            self.discovery.remove(&cntlid);
            return;
        }
        self.controller_shares.return_share(&entry.share_holder, 1);
        if !entry.shared.is_shut_down_by_host() {
            if self.lost_associations.len() == LOST_MAX {
                self.lost_associations.pop_front();
            }
            self.lost_associations
                .push_back(hash_of(&entry.shared.identity));
        }
    }

    /// Whether the host lost an association with the same subsystem. Returns true once for each.
    pub(crate) fn take_lost(&mut self, identity: &ControllerIdentity) -> bool {
        let hash = hash_of(identity);
        let place = self
            .lost_associations
            .iter()
            .rposition(|lost| *lost == hash);
        place.is_some_and(|place| self.lost_associations.remove(place).is_some())
    }

    /// Ends every association.
    pub(crate) fn end_all(&self, reason: CloseReason) {
        for entry in self.controllers.values() {
            entry.shared.end(reason);
        }
    }
}

/// Hash of host and subsystem. A collision results in one wrong count of reconnects.
fn hash_of(identity: &ControllerIdentity) -> u64 {
    let mut hasher = DefaultHasher::new();
    identity.subsystem_nqn.hash(&mut hasher);
    identity.host_nqn.hash(&mut hasher);
    identity.host_id.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use nvme_spec::fabrics::CNTLID_MAX;

    use super::*;
    use crate::config::CONTROLLER_IDS;
    use crate::shared::tests::controller;

    fn registry(controllers_max: u16) -> Registry {
        Registry::new(&TargetLimits {
            controllers_max,
            ..TargetLimits::default()
        })
    }

    fn identity() -> ControllerIdentity {
        controller().identity
    }

    fn new(identity: ControllerIdentity, admin_slot: u32) -> NewController {
        let share_holder = ShareHolder::new(&identity.host_nqn, false, None);
        NewController {
            identity,
            share_holder,
            has_lists: false,
            address: None,
            admin_slot,
            io_queues: 4,
            controller_ids: CONTROLLER_IDS,
            ana: AnaRestrictions::default(),
            now: Nanos::from_secs(1000),
        }
    }

    fn add(
        registry: &mut Registry,
        identity: ControllerIdentity,
        admin_slot: u32,
    ) -> Option<Arc<ControllerShared>> {
        let added = registry.add(new(identity, admin_slot))?;
        assert_eq!(added.evicted, None);
        Some(added.shared)
    }

    fn connect(cntlid: u16, qid: u16) -> IoConnect<'static> {
        IoConnect {
            cntlid,
            subsystem: 0,
            host_nqn: "nqn.2014-08.org.nvmexpress:uuid:host",
            host_id: [7; 16],
            qid,
            reactor: 1,
            slot: 3,
            has_lists: false,
            bound_to: None,
            is_secure: false,
        }
    }

    #[test]
    fn controller_count_is_limited_and_identifiers_wrap() {
        let mut registry = registry(2);
        let first = add(&mut registry, identity(), 0).expect("room");
        let second = add(&mut registry, identity(), 1).expect("room");
        assert_eq!((first.identity.cntlid, second.identity.cntlid), (1, 2));
        assert!(add(&mut registry, identity(), 2).is_none());
        registry.remove_admin(1);
        assert_eq!(
            add(&mut registry, identity(), 2)
                .expect("room")
                .identity
                .cntlid,
            3
        );
        registry.remove_admin(2);
        registry.next_cntlids.insert(1, CNTLID_MAX);
        assert_eq!(
            add(&mut registry, identity(), 2)
                .expect("room")
                .identity
                .cntlid,
            CNTLID_MAX
        );
        registry.remove_admin(CNTLID_MAX);
        assert_eq!(
            add(&mut registry, identity(), 2)
                .expect("room")
                .identity
                .cntlid,
            1
        );
    }

    /// Base 2.1 §6.3: the fields of Connect for an I/O queue that must match the admin queue's.
    #[test]
    fn an_io_queue_must_match_its_admin_queue() {
        let mut registry = registry(8);
        let shared = add(&mut registry, identity(), 0).expect("room");
        let refusal = |registry: &mut Registry, connect: &IoConnect<'_>| {
            registry.add_io(connect).err().expect("refused")
        };
        let field = IoRefusal::Field;
        assert_eq!(
            refusal(&mut registry, &connect(9, 1)),
            field(ConnectField::ControllerId)
        );
        let other = IoConnect {
            subsystem: 5,
            ..connect(1, 1)
        };
        assert_eq!(
            refusal(&mut registry, &other),
            field(ConnectField::ControllerId)
        );
        let other = IoConnect {
            host_nqn: "nqn.other",
            ..connect(1, 1)
        };
        assert_eq!(refusal(&mut registry, &other), field(ConnectField::HostNqn));
        let other = IoConnect {
            host_id: [8; 16],
            ..connect(1, 1)
        };
        assert_eq!(refusal(&mut registry, &other), field(ConnectField::HostId));
        let other = IoConnect {
            is_secure: true,
            ..connect(1, 1)
        };
        assert_eq!(refusal(&mut registry, &other), IoRefusal::Channel);
        assert_eq!(
            refusal(&mut registry, &connect(1, 0)),
            field(ConnectField::QueueId)
        );
        assert_eq!(
            refusal(&mut registry, &connect(1, 5)),
            field(ConnectField::QueueId)
        );
        assert_eq!(refusal(&mut registry, &connect(1, 1)), IoRefusal::Sequence);
        shared.open_gate();
        let Ok(grant) = registry.add_io(&connect(1, 1)) else {
            panic!("granted")
        };
        assert_eq!(refusal(&mut registry, &connect(1, 1)), IoRefusal::Sequence);
        registry.remove_io(1, grant.token);
        assert!(registry.add_io(&connect(1, 1)).is_ok());
    }

    /// Base 2.1 §6.3: an ended association gets no new queue, even if its admin queue still exists.
    #[test]
    fn ended_association_accepts_no_io_queue() {
        let mut registry = registry(8);
        let shared = add(&mut registry, identity(), 0).expect("room");
        shared.open_gate();
        assert!(registry.add_io(&connect(1, 1)).is_ok());
        let mut refused = |qid| {
            let refused = registry.add_io(&connect(1, qid)).map(|_| ());
            assert_eq!(refused, Err(IoRefusal::Field(ConnectField::ControllerId)));
        };
        shared.drain_association(CloseReason::Reconfigured);
        refused(2);
        shared.end(CloseReason::AssociationLost);
        refused(3);
    }

    /// Requests of an ended association fence the host's other controllers, and no others.
    #[test]
    fn orphans_fence_only_controllers_of_the_same_host() {
        let mut registry = registry(8);
        let first = add(&mut registry, identity(), 0).expect("room");
        first.open_gate();
        let Ok(grant) = registry.add_io(&connect(1, 1)) else {
            panic!("granted")
        };
        let second = add(&mut registry, identity(), 1).expect("room");
        let stranger = ControllerIdentity {
            host_id: [8; 16],
            ..identity()
        };
        let stranger = add(&mut registry, stranger, 2).expect("room");
        let elsewhere = ControllerIdentity {
            subsystem_nqn: "nqn.2026-11.org.windlass:elsewhere".into(),
            ..identity()
        };
        let elsewhere = add(&mut registry, elsewhere, 3).expect("room");
        assert!(registry.update_fences(1).is_empty());
        assert!(!second.gate().is_fenced());
        first.end(CloseReason::AssociationLost);
        assert!(registry.update_fences(1).is_empty(), "none was lifted");
        assert!(second.gate().is_fenced());
        assert!(!stranger.gate().is_fenced() && !elsewhere.gate().is_fenced());
        let third = add(&mut registry, identity(), 4).expect("room");
        assert!(third.gate().is_fenced(), "it comes while there are orphans");
        let offered_again = ControllerIdentity {
            subsystem: 1,
            ..identity()
        };
        let fourth = add(&mut registry, offered_again, 5).expect("room");
        assert!(fourth.gate().is_fenced(), "the devices may be the same");
        registry.remove_admin(fourth.identity.cntlid);
        registry.remove_admin(1);
        assert!(second.gate().is_fenced());
        let called = registry.remove_io(1, grant.token);
        assert_eq!(called, [0, 0], "the admin reactors of both");
        assert!(!second.gate().is_fenced() && !third.gate().is_fenced());
    }

    /// A closed connection with requests in devices, and a reset, also raise the fence.
    #[test]
    fn lost_connection_and_reset_raise_the_fence() {
        let mut registry = registry(8);
        let shared = add(&mut registry, identity(), 0).expect("room");
        let other = add(&mut registry, identity(), 1).expect("room");
        shared.open_gate();
        let granted = [1, 2].map(|qid| {
            let Ok(grant) = registry.add_io(&connect(1, qid)) else {
                panic!("granted")
            };
            grant.token
        });
        registry.orphan_io(1, granted[0]);
        registry.update_fences(1);
        assert!(shared.gate().is_fenced() && other.gate().is_fenced());
        assert_eq!(registry.remove_io(1, granted[0]), [0, 1, 0]);
        assert!(!other.gate().is_fenced());
        shared.reset_gate();
        registry.update_fences(1);
        assert!(other.gate().is_fenced());
        registry.remove_io(1, granted[1]);
        assert!(!other.gate().is_fenced() && !shared.gate().is_fenced());
    }

    #[test]
    fn a_reconnect_is_reported_once() {
        let mut registry = registry(2);
        let other = || ControllerIdentity {
            host_id: [8; 16],
            ..identity()
        };
        assert!(!registry.take_lost(&identity()));
        add(&mut registry, identity(), 0).expect("room");
        assert!(!registry.take_lost(&identity()), "it is there");
        registry.remove_admin(1);
        assert!(!registry.take_lost(&other()));
        assert!(registry.take_lost(&identity()));
        assert!(!registry.take_lost(&identity()), "reported already");
        // After an orderly shutdown a reconnecting host counts as new.
        add(&mut registry, identity(), 0)
            .expect("room")
            .note_host_shutdown();
        registry.remove_admin(2);
        assert!(!registry.take_lost(&identity()));
        for _ in 0..2 * LOST_MAX {
            let lost = add(&mut registry, other(), 0).expect("room");
            registry.remove_admin(lost.identity.cntlid);
        }
        assert_eq!(registry.lost_associations.len(), LOST_MAX);
    }

    fn discovery_of(host: u8) -> ControllerIdentity {
        ControllerIdentity {
            subsystem: DISCOVERY_SLOT,
            host_id: [host; 16],
            admin_reactor: usize::from(host),
            ..identity()
        }
    }

    #[test]
    fn discovery_controllers_do_not_use_io_controller_slots() {
        let mut registry = registry(1);
        for host in 0..DISCOVERY_CONTROLLERS_MAX as u8 {
            add(&mut registry, discovery_of(host), 0).expect("room");
        }
        let first = add(&mut registry, identity(), 0);
        assert!(first.is_some());
        assert!(add(&mut registry, identity(), 0).is_none());
    }

    #[test]
    fn longest_idle_discovery_controller_is_evicted() {
        let mut registry = registry(1);
        let all: Vec<_> = (0..DISCOVERY_CONTROLLERS_MAX as u8)
            .map(|host| {
                let new = NewController {
                    share_holder: ShareHolder::new("nqn.host", host == 0, None),
                    ..new(discovery_of(host), 0)
                };
                let shared = registry.add(new).expect("room").shared;
                shared.note_command(Nanos::from_secs(100 - u64::from(host)));
                shared
            })
            .collect();
        // Neither the controller of a host that an export lists, nor one that waits for an event.
        all[0].note_command(Nanos::from_secs(1));
        all[63].set_awaits_event(true);
        let mut evict = || {
            let added = registry.add(new(discovery_of(200), 0));
            added.expect("room").evicted
        };
        assert_eq!((evict(), evict()), (Some(62), Some(61)));
        let reason = |host: usize| all[host].ending();
        assert_eq!(reason(62), Some(CloseReason::Evicted));
        assert_eq!((reason(0), reason(63), reason(60)), (None, None, None));
        // Evicted controllers count until they are removed, up to the same number again.
        let mut added = 2;
        while registry.add(new(discovery_of(200), 0)).is_some() {
            added += 1;
        }
        assert_eq!(added, DISCOVERY_CONTROLLERS_MAX);
        registry.remove_admin(all[62].identity.cntlid);
        assert!(registry.add(new(discovery_of(200), 0)).is_some());
    }

    /// Shares are returned in full, whichever queue ends first.
    #[test]
    fn shares_are_returned_when_queues_end() {
        let mut registry = registry(8);
        for _ in 0..3 {
            let shared = add(&mut registry, identity(), 0).expect("room");
            shared.open_gate();
            let cntlid = shared.identity.cntlid;
            let Ok(grant) = registry.add_io(&connect(cntlid, 1)) else {
                panic!("granted")
            };
            assert_eq!(registry.queue_shares.used(), 2);
            registry.remove_admin(cntlid);
            registry.remove_admin(cntlid);
            assert_eq!(registry.controller_shares.used(), 1);
            registry.remove_io(cntlid, grant.token);
            registry.remove_io(cntlid, grant.token);
            assert_eq!(registry.queue_shares.used(), 0);
            assert_eq!(registry.controller_shares.used(), 0);
        }
    }

    #[test]
    fn unlisted_host_address_is_logged_once() {
        let mut registry = registry(2);
        assert!(registry.notice_unnamed(None));
        assert!(!registry.notice_unnamed(None));
        let address = |number: u32| Some(IpAddr::from(number.to_be_bytes()));
        assert!(registry.notice_unnamed(address(1)));
        assert!(!registry.notice_unnamed(address(1)));
        let noticed = (2..1000).filter(|number| registry.notice_unnamed(address(*number)));
        assert_eq!(noticed.count(), NOTICED_MAX - 2);
    }

    #[test]
    fn account_is_freed_with_its_hosts_last_controller() {
        let mut registry = registry(8);
        for number in 0..2 * hugemem::ACCOUNT_HOSTS_MAX {
            let of_host = ControllerIdentity {
                host_nqn: format!("nqn.{number}"),
                ..identity()
            };
            let shared = add(&mut registry, of_host, 0).expect("room");
            registry.remove_admin(shared.identity.cntlid);
        }
        assert!(registry.host_accounts.is_empty());
        let first = add(&mut registry, identity(), 0).expect("room");
        let other = ControllerIdentity {
            host_nqn: "nqn.other".to_owned(),
            ..identity()
        };
        let other = add(&mut registry, other, 0).expect("room");
        let again = add(&mut registry, identity(), 0).expect("room");
        let account = |shared: &ControllerShared| shared.identity.host_account;
        assert_eq!(account(&first), account(&again));
        assert_ne!(account(&first), account(&other));
    }

    #[test]
    fn controller_is_removed_with_its_last_queue() {
        let mut registry = registry(8);
        let shared = add(&mut registry, identity(), 0).expect("room");
        shared.open_gate();
        let Ok(grant) = registry.add_io(&connect(1, 1)) else {
            panic!("granted")
        };
        registry.remove_admin(1);
        assert!(registry.entry(1).is_some());
        assert!(
            registry.add_io(&connect(1, 2)).is_err(),
            "without an admin queue"
        );
        registry.remove_io(1, grant.token + 1);
        assert!(registry.entry(1).is_some(), "a stale token removes nothing");
        registry.remove_io(1, grant.token);
        assert!(registry.entry(1).is_none());
    }
}
