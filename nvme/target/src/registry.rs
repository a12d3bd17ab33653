//! Which controllers there are, and which I/O queues each has on which core. Control path only.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use nvme_spec::fabrics::{CNTLID_MAX, ConnectField};

use crate::config::TargetLimits;
use crate::interface::CloseReason;
use crate::shared::{ControllerIdentity, ControllerShared, DISCOVERY_SLOT, Gate};

/// Lost associations that are remembered, to tell a host that comes back from a new one.
const LOST_MAX: usize = 1024;

/// One I/O queue of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IoQueueEntry {
    pub(crate) qid: u16,
    pub(crate) reactor: usize,
    /// Slot in that reactor's core.
    pub(crate) slot: u32,
    /// Tells a queue from a later one with the same identifier.
    pub(crate) token: u64,
}

/// One controller.
pub(crate) struct Entry {
    pub(crate) shared: Arc<ControllerShared>,
    /// Slot of the admin queue in its reactor's core; `None` once that queue is gone.
    pub(crate) admin_slot: Option<u32>,
    pub(crate) io_queues: Vec<IoQueueEntry>,
}

/// Who asks for an I/O queue.
pub(crate) struct IoConnect<'a> {
    pub(crate) cntlid: u16,
    pub(crate) subsystem: u32,
    pub(crate) host_nqn: &'a str,
    pub(crate) host_id: [u8; 16],
    pub(crate) qid: u16,
    pub(crate) reactor: usize,
    pub(crate) slot: u32,
}

/// A granted I/O queue.
pub(crate) struct IoGrant {
    pub(crate) shared: Arc<ControllerShared>,
    /// The gate as it must stay for the queue to serve commands.
    pub(crate) gate: Gate,
    pub(crate) token: u64,
}

/// Why an I/O queue is not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoRefusal {
    /// A field of Connect is wrong.
    Field(ConnectField),
    /// The controller is not enabled, or the queue exists already.
    Sequence,
}

/// All controllers of a target.
pub(crate) struct Registry {
    controllers: BTreeMap<u16, Entry>,
    controllers_max: usize,
    next_cntlid: u16,
    next_token: u64,
    /// Who lost an association without having shut it down, as hashes, the latest last.
    lost: VecDeque<u64>,
    /// No Connect is accepted any more.
    pub(crate) closed: bool,
}

impl Registry {
    pub(crate) fn new(limits: &TargetLimits) -> Self {
        Self {
            controllers: BTreeMap::new(),
            controllers_max: usize::from(limits.controllers_max),
            next_cntlid: 1,
            next_token: 1,
            lost: VecDeque::with_capacity(LOST_MAX),
            closed: false,
        }
    }

    /// Changes how many controllers there may be.
    pub(crate) fn limit_controllers(&mut self, count: u16) {
        self.controllers_max = usize::from(count);
    }

    /// All controllers.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.controllers.values()
    }

    /// The controller with this identifier.
    pub(crate) fn entry(&self, cntlid: u16) -> Option<&Entry> {
        self.controllers.get(&cntlid)
    }

    /// Makes a controller; `identity.cntlid` is chosen here. `None`: there are as many as may be.
    pub(crate) fn add(
        &mut self,
        mut identity: ControllerIdentity,
        admin_slot: u32,
        io_queues: u16,
    ) -> Option<Arc<ControllerShared>> {
        if self.controllers.len() >= self.controllers_max {
            return None;
        }
        identity.cntlid = self.free_cntlid()?;
        let cntlid = identity.cntlid;
        let shared = Arc::new(ControllerShared::new(identity, io_queues));
        let entry = Entry {
            shared: Arc::clone(&shared),
            admin_slot: Some(admin_slot),
            io_queues: Vec::new(),
        };
        self.controllers.insert(cntlid, entry);
        Some(shared)
    }

    /// The next free identifier, in turn, so that one is not soon used again: a late I/O Connect of
    /// a dead association then finds nothing (Base 2.1 §3.1.2: 0h to FFEFh).
    fn free_cntlid(&mut self) -> Option<u16> {
        for _ in 0..=self.controllers.len() {
            let candidate = self.next_cntlid;
            self.next_cntlid = if candidate >= CNTLID_MAX {
                1
            } else {
                candidate + 1
            };
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
        if identity.subsystem != connect.subsystem || entry.admin_slot.is_none() {
            return Err(unknown);
        }
        if identity.host_nqn != connect.host_nqn {
            return Err(IoRefusal::Field(ConnectField::HostNqn));
        }
        if identity.host_id != connect.host_id {
            return Err(IoRefusal::Field(ConnectField::HostId));
        }
        if !(1..=entry.shared.io_queues_granted()).contains(&connect.qid) {
            return Err(IoRefusal::Field(ConnectField::QueueId));
        }
        let gate = entry.shared.gate();
        let taken = entry.io_queues.iter().any(|queue| queue.qid == connect.qid);
        if !gate.is_open() || taken {
            return Err(IoRefusal::Sequence);
        }
        let token = self.next_token;
        self.next_token += 1;
        let IoConnect {
            qid, reactor, slot, ..
        } = *connect;
        entry.io_queues.push(IoQueueEntry {
            qid,
            reactor,
            slot,
            token,
        });
        Ok(IoGrant {
            shared: Arc::clone(&entry.shared),
            gate,
            token,
        })
    }

    /// Forgets an I/O queue; its last command has left the devices.
    pub(crate) fn remove_io(&mut self, cntlid: u16, token: u64) {
        if let Some(entry) = self.controllers.get_mut(&cntlid) {
            entry.io_queues.retain(|queue| queue.token != token);
            self.remove_if_empty(cntlid);
        }
    }

    /// Forgets the admin queue; its last command has left the devices.
    pub(crate) fn remove_admin(&mut self, cntlid: u16) {
        if let Some(entry) = self.controllers.get_mut(&cntlid) {
            entry.admin_slot = None;
            self.remove_if_empty(cntlid);
        }
    }

    fn remove_if_empty(&mut self, cntlid: u16) {
        let empty = |entry: &Entry| entry.admin_slot.is_none() && entry.io_queues.is_empty();
        if self.controllers.get(&cntlid).is_some_and(empty)
            && let Some(entry) = self.controllers.remove(&cntlid)
            && !entry.shared.has_parted()
            && entry.shared.identity.subsystem != DISCOVERY_SLOT
        {
            if self.lost.len() == LOST_MAX {
                self.lost.pop_front();
            }
            self.lost.push_back(hash_of(&entry.shared.identity));
        }
    }

    /// Whether who connects has lost an association with the same subsystem. Told once for each.
    pub(crate) fn comes_back(&mut self, identity: &ControllerIdentity) -> bool {
        let hash = hash_of(identity);
        let place = self.lost.iter().rposition(|lost| *lost == hash);
        place.is_some_and(|place| self.lost.remove(place).is_some())
    }

    /// Ends every association.
    pub(crate) fn end_all(&self, reason: CloseReason) {
        for entry in self.controllers.values() {
            entry.shared.end(reason);
        }
    }
}

/// Who is associated with what. Two that share a hash cost one wrong count.
fn hash_of(identity: &ControllerIdentity) -> u64 {
    let mut hasher = DefaultHasher::new();
    identity.subsystem_nqn.hash(&mut hasher);
    identity.host_nqn.hash(&mut hasher);
    identity.host_id.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
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

    fn connect(cntlid: u16, qid: u16) -> IoConnect<'static> {
        IoConnect {
            cntlid,
            subsystem: 0,
            host_nqn: "nqn.2014-08.org.nvmexpress:uuid:host",
            host_id: [7; 16],
            qid,
            reactor: 1,
            slot: 3,
        }
    }

    #[test]
    fn controllers_are_bounded_and_identifiers_go_round() {
        let mut registry = registry(2);
        let first = registry.add(identity(), 0, 4).expect("room");
        let second = registry.add(identity(), 1, 4).expect("room");
        assert_eq!((first.identity.cntlid, second.identity.cntlid), (1, 2));
        assert!(registry.add(identity(), 2, 4).is_none());
        registry.remove_admin(1);
        assert_eq!(
            registry
                .add(identity(), 2, 4)
                .expect("room")
                .identity
                .cntlid,
            3
        );
        registry.remove_admin(2);
        registry.next_cntlid = CNTLID_MAX;
        assert_eq!(
            registry
                .add(identity(), 2, 4)
                .expect("room")
                .identity
                .cntlid,
            CNTLID_MAX
        );
        registry.remove_admin(CNTLID_MAX);
        assert_eq!(
            registry
                .add(identity(), 2, 4)
                .expect("room")
                .identity
                .cntlid,
            1
        );
    }

    /// Base 2.1 §6.3: what an I/O queue's Connect must agree with.
    #[test]
    fn an_io_queue_must_match_its_admin_queue() {
        let mut registry = registry(8);
        let shared = registry.add(identity(), 0, 4).expect("room");
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

    #[test]
    fn who_lost_an_association_comes_back_once() {
        let mut registry = registry(2);
        let other = || ControllerIdentity {
            host_id: [8; 16],
            ..identity()
        };
        assert!(!registry.comes_back(&identity()));
        registry.add(identity(), 0, 4).expect("room");
        assert!(!registry.comes_back(&identity()), "it is there");
        registry.remove_admin(1);
        assert!(!registry.comes_back(&other()));
        assert!(registry.comes_back(&identity()));
        assert!(!registry.comes_back(&identity()), "told already");
        // Who shut down in order is new when it comes again.
        registry.add(identity(), 0, 4).expect("room").part();
        registry.remove_admin(2);
        assert!(!registry.comes_back(&identity()));
        for _ in 0..2 * LOST_MAX {
            let lost = registry.add(other(), 0, 4).expect("room");
            registry.remove_admin(lost.identity.cntlid);
        }
        assert_eq!(registry.lost.len(), LOST_MAX);
    }

    #[test]
    fn a_controller_goes_with_its_last_queue() {
        let mut registry = registry(8);
        let shared = registry.add(identity(), 0, 4).expect("room");
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
