//! The judge of share modes and byte-range locks: whether a grant, a denial or the refusal of an access
//! is one that the states of all clients allow, and what each client holds then.

use files_spec::Status;
use files_spec::operations::{
    ExistingLockOwner, LockArgs, LockDenied, LockFailure, LockTestArgs, Locker, NewLockOwner,
    Operation, OperationResult, Outcome, UnlockArgs, share,
};
use files_spec::types::{LockType, Owner, StateId};
use files_spec::xdr::Opaque;

use super::action::Action;
use super::client::OperationId;
use super::holdings::{Held, Holdings, LockOwner, Modes, Parts, runs};
use super::leases::Dropped;
use super::model::{LockState, Model, ObjectId, Open, Pending};

/// How an operation accesses the data of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use {
    object: ObjectId,
    access: u32,
    /// The share modes of the open file that it names, if it names one.
    by: Option<Modes>,
}

/// A lock that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) object: ObjectId,
    /// The owner's number among those of the client.
    pub(super) owner: u8,
    pub(super) parts: Parts,
    pub(super) is_exclusive: bool,
}

impl Use {
    /// The file.
    #[must_use]
    pub(super) fn object(&self) -> ObjectId {
        self.object
    }

    /// The access, if it names no open file and others can deny it.
    #[must_use]
    pub(super) fn special(&self) -> Option<Modes> {
        let modes = Modes {
            access: self.access,
            deny: share::DENY_NONE,
        };
        self.by.is_none().then_some(modes)
    }
}

impl Wanted {
    pub(super) fn held(self) -> Held {
        Held::of(self.is_exclusive)
    }

    fn kind(self, waits: bool) -> LockType {
        match (self.is_exclusive, waits) {
            (false, false) => LockType::READ,
            (true, false) => LockType::WRITE,
            (false, true) => LockType::READ_WAIT,
            (true, true) => LockType::WRITE_WAIT,
        }
    }
}

/// The name of an owner of locks on the wire.
#[must_use]
pub(super) fn name_of((client, owner): LockOwner) -> String {
    format!("lock {client} {owner}")
}

fn owner_of(name: &[u8]) -> Option<LockOwner> {
    let name = std::str::from_utf8(name).ok()?;
    let (client, owner) = name.strip_prefix("lock ")?.split_once(' ')?;
    Some((client.parse().ok()?, owner.parse().ok()?))
}

fn on_the_wire(name: &str) -> Owner<'_> {
    Owner {
        clientid: 0,
        owner: Opaque(name.as_bytes()),
    }
}

/// LOCK of a client with this open file.
#[must_use]
pub(super) fn lock<'o>(
    open: Option<&Open>,
    wanted: Wanted,
    (waits, is_reclaim): (bool, bool),
    name: &'o str,
) -> Operation<'o> {
    let state = open.and_then(|it| it.locks.get(&wanted.owner)?.stateid);
    let locker = match state {
        Some(lock_stateid) => Locker::Existing(ExistingLockOwner {
            lock_stateid,
            lock_seqid: 0,
        }),
        None => Locker::New(NewLockOwner {
            open_seqid: 0,
            open_stateid: open.map_or(StateId::ANONYMOUS, |it| it.stateid),
            lock_seqid: 0,
            lock_owner: on_the_wire(name),
        }),
    };
    let (offset, length) = wanted.parts.on_the_wire();
    Operation::Lock(LockArgs {
        locktype: wanted.kind(waits),
        reclaim: is_reclaim,
        offset,
        length,
        locker,
    })
}

/// LOCKT.
#[must_use]
pub(super) fn test(wanted: Wanted, name: &str) -> Operation<'_> {
    let (offset, length) = wanted.parts.on_the_wire();
    Operation::LockT(LockTestArgs {
        locktype: wanted.kind(false),
        offset,
        length,
        owner: on_the_wire(name),
    })
}

/// LOCKU of a client with this open file.
#[must_use]
pub(super) fn unlock<'o>(open: Option<&Open>, owner: u8, parts: Parts) -> Operation<'o> {
    let state = open.and_then(|it| it.locks.get(&owner)?.stateid);
    let (offset, length) = parts.on_the_wire();
    Operation::LockU(UnlockArgs {
        locktype: LockType::WRITE,
        seqid: 0,
        lock_stateid: state.unwrap_or(StateId::ANONYMOUS),
        offset,
        length,
    })
}

/// Whether an operation with this status was refused because of opens and locks.
#[must_use]
pub(super) fn is_refusal(status: Status) -> bool {
    matches!(
        status,
        Status::DENIED | Status::SHARE_DENIED | Status::LOCKED | Status::OPENMODE
    )
}

/// Whether an OPEN_DOWNGRADE to these modes is one to the union of some earlier OPENs
/// (RFC 8881 §18.18).
fn may_downgrade(open: &Open, modes: Modes) -> bool {
    let within = open.asked.iter().filter(|it| it.is_within(modes));
    within.fold(Modes::CLOSED, |sum, it| sum.and(*it)) == modes
}

impl Model {
    /// Changes what may be held of a file, also for the operations that are executed now.
    pub(super) fn change_holdings(&mut self, object: ObjectId, change: impl FnOnce(&mut Holdings)) {
        let holdings = self.holdings.entry(object).or_default();
        change(holdings);
        let pending = self.pending.values_mut();
        for seen in pending.filter_map(|it| it.seen.get_mut(&object)) {
            seen.add(holdings);
        }
    }

    /// Changes what may be held of all files.
    pub(super) fn change_all_holdings(&mut self, change: impl Fn(&mut Holdings)) {
        let objects: Vec<ObjectId> = self.holdings.keys().copied().collect();
        for object in objects {
            self.change_holdings(object, &change);
        }
    }

    pub(super) fn holdings_of(&self, object: ObjectId) -> Holdings {
        self.holdings.get(&object).cloned().unwrap_or_default()
    }

    fn open_mut(&mut self, client: usize, object: ObjectId) -> Option<&mut Open> {
        self.opens.get_mut(&(client, object))
    }

    /// The share modes that a client knows to have.
    pub(super) fn modes_of(&self, client: usize, object: ObjectId) -> Modes {
        let open = self.opens.get(&(client, object));
        open.map_or(Modes::CLOSED, |it| it.modes)
    }

    /// Whether a client denies others to read a file.
    pub(super) fn denies_read(&self, object: ObjectId) -> bool {
        let read = Modes {
            access: share::ACCESS_READ,
            deny: share::DENY_NONE,
        };
        self.holdings_of(object).may_deny(None, read)
    }

    /// An operation is sent, maybe again: what it uses, and what may be held from now on.
    pub(super) fn begin_sharing(&mut self, id: OperationId) {
        let Some(pending) = self.pending.get(&id) else {
            return;
        };
        let (client, action) = (pending.client, pending.action.clone());
        let uses = action.uses().into_iter().map(|(object, access)| Use {
            object,
            access,
            by: self.usable_open(client, object).map(|it| it.modes),
        });
        let uses: Vec<Use> = uses.collect();
        let objects = uses.iter().map(|it| it.object).chain(action.object());
        let seen = objects.map(|it| {
            let held = self.holdings_of(it);
            (it, self.without_expired(client, held))
        });
        let seen = seen.collect();
        if let Some(pending) = self.pending.get_mut(&id) {
            (pending.uses, pending.seen) = (uses, seen);
        }
        match action {
            Action::Open { object, modes } => {
                let modes = self.modes_of(client, object).and(modes);
                self.change_holdings(object, |it| it.may_be_open(client, modes));
                if let Some(open) = self.open_mut(client, object) {
                    open.is_changing = true;
                }
            }
            Action::Downgrade { object, modes } => {
                self.change_holdings(object, |it| it.may_be_open(client, modes));
                if let Some(open) = self.open_mut(client, object) {
                    open.is_changing = true;
                }
            }
            Action::Close { object } => self.change_holdings(object, |it| it.may_be_lost(client)),
            Action::Lock { wanted, .. } => {
                let owner = (client, wanted.owner);
                self.change_holdings(wanted.object, |it| {
                    it.may_be_locked(owner, wanted.parts, wanted.held());
                });
            }
            Action::Unlock {
                object,
                owner,
                parts,
            } => self.change_holdings(object, |it| {
                it.may_be_locked((client, owner), parts, Held::Nothing);
            }),
            _ => {}
        }
    }

    /// The open file of a client, if its identifier can be used.
    pub(super) fn usable_open(&self, client: usize, object: ObjectId) -> Option<&Open> {
        let open = self.opens.get(&(client, object))?;
        (!open.is_closing && !open.is_changing && !open.is_lost).then_some(open)
    }

    /// Whether share modes and locks allow a status; `None` if they do not matter.
    pub(super) fn sharing_allows(
        &self,
        pending: &Pending,
        status: Status,
        last: Option<&OperationResult<'_>>,
    ) -> Option<Result<(), String>> {
        let client = pending.client;
        if status == Status::OK && self.is_grace_certain() && pending.is_new() {
            return Some(Err("it succeeds while others can reclaim".to_owned()));
        }
        let is_allowed = match (&pending.action, status) {
            (Action::Reclaim { .. }, _) => return Some(self.reclaim_allows(client, status)),
            (
                Action::Lock {
                    is_reclaim: true, ..
                },
                Status::NO_GRACE,
            ) => return Some(self.reclaim_allows(client, status)),
            (Action::Open { object, modes }, Status::OK) => {
                let modes = self.modes_of(client, *object).and(*modes);
                self.holdings_of(*object).may_open(Some(client), modes)
            }
            (Action::Open { object, modes }, Status::SHARE_DENIED) => {
                // RFC 8881 §9.7: also because of what the client itself has open.
                let own = self.modes_of(client, *object);
                own.excludes(*modes) || pending.seen[object].may_deny(Some(client), *modes)
            }
            (Action::Downgrade { object, modes }, Status::OK | Status::INVAL) => {
                let open = self.opens.get(&(client, *object));
                let is_possible = open.is_some_and(|it| may_downgrade(it, *modes));
                is_possible == (status == Status::OK)
            }
            (Action::Lock { wanted, .. }, Status::OK | Status::OPENMODE | Status::DENIED) => {
                return Some(self.lock_allows(pending, *wanted, status, last));
            }
            (Action::TestLock { wanted }, Status::OK) => {
                let seen = &pending.seen[&wanted.object];
                seen.may_lock((client, wanted.owner), wanted.parts, wanted.held())
            }
            (Action::TestLock { wanted }, Status::DENIED) => {
                return Some(check_reason(pending, *wanted, last));
            }
            (Action::Unlock { .. }, _) => status == Status::OK,
            _ if pending.uses.is_empty() => return None,
            _ => return accesses_allow(pending, status),
        };
        Some(match is_allowed {
            true => Ok(()),
            false => Err(format!("{status:?}, {}", self.told(pending))),
        })
    }

    fn told(&self, pending: &Pending) -> String {
        let object = pending.action.object().unwrap_or_default();
        let now = self.holdings_of(object);
        format!("held is {now:?}, was also {:?}", pending.seen.get(&object))
    }

    /// Whether a LOCK may have this status.
    fn lock_allows(
        &self,
        pending: &Pending,
        wanted: Wanted,
        status: Status,
        last: Option<&OperationResult<'_>>,
    ) -> Result<(), String> {
        let client = pending.client;
        let needed = match wanted.is_exclusive {
            true => share::ACCESS_WRITE,
            false => share::ACCESS_READ,
        };
        let has_access = self.modes_of(client, wanted.object).access & needed != 0;
        let owner = (client, wanted.owner);
        let is_allowed = match status {
            Status::DENIED if has_access => return check_reason(pending, wanted, last),
            Status::OK => {
                let holdings = self.holdings_of(wanted.object);
                has_access && holdings.may_lock(owner, wanted.parts, wanted.held())
            }
            Status::OPENMODE => !has_access,
            _ => false,
        };
        match is_allowed {
            true => Ok(()),
            false => Err(format!("{status:?}, {}", self.told(pending))),
        }
    }

    /// Whether the client tries a denied lock again.
    pub(super) fn waits_for_lock(&mut self, id: OperationId) -> bool {
        let Some(pending) = self.pending.get_mut(&id) else {
            return false;
        };
        match &mut pending.action {
            Action::Lock { tries, .. } if *tries > 0 => {
                *tries -= 1;
                true
            }
            _ => false,
        }
    }

    /// An operation has succeeded. What excludes it is gone.
    pub(super) fn sharing_granted(&mut self, pending: &Pending) {
        let client = pending.client;
        match pending.action {
            Action::Open { object, modes } => self.opened_beside(pending, object, modes),
            Action::Lock { wanted, .. } | Action::TestLock { wanted } => {
                let owner = (client, wanted.owner);
                self.drop_excluded(pending, wanted.object, |it| {
                    it.may_lock(owner, wanted.parts, wanted.held())
                });
            }
            _ => {
                for it in &pending.uses {
                    if let Some(modes) = it.special() {
                        self.opened_beside(pending, it.object, modes);
                    }
                }
            }
        }
    }

    /// An operation was refused, and has changed nothing.
    pub(super) fn sharing_refused(&mut self, pending: &Pending) {
        let client = pending.client;
        match pending.action {
            Action::Open { object, .. } | Action::Downgrade { object, .. } => {
                let modes = self.modes_of(client, object);
                self.change_holdings(object, |it| it.is_open(client, modes));
                match self.open_mut(client, object) {
                    Some(open) => open.is_changing = false,
                    None => {
                        self.objects[object].may_be_open.remove(&client);
                    }
                }
            }
            Action::Lock {
                wanted, is_reclaim, ..
            } => {
                if is_reclaim {
                    let lesser = |held, part| match wanted.parts.numbers().contains(&part) {
                        true => Held::Nothing,
                        false => held,
                    };
                    self.give_up_lock(client, wanted.object, wanted.owner, lesser);
                }
                let open = self.opens.get(&(client, wanted.object));
                let known = open.and_then(|it| it.locks.get(&wanted.owner));
                let held = known.map_or(LockState::default().held, |it| it.held);
                let owner = (client, wanted.owner);
                self.change_holdings(wanted.object, |it| it.has_locks(owner, &held));
            }
            _ => {}
        }
    }

    /// A client has opened a file, again or for the first time.
    pub(super) fn opened(
        &mut self,
        (client, object): (usize, ObjectId),
        stateid: StateId,
        modes: Modes,
    ) -> Result<(), String> {
        self.objects[object].may_be_open.insert(client);
        let stamp = self.stamp;
        let open = self.opens.entry((client, object)).or_insert(Open {
            stateid,
            modes: Modes::CLOSED,
            asked: Vec::new(),
            locks: std::collections::BTreeMap::new(),
            is_lost: true,
            is_closing: false,
            is_changing: false,
            grown: stamp,
        });
        if open.is_lost {
            (open.modes, open.is_lost) = (Modes::CLOSED, false);
            open.asked.clear();
        } else if stateid.other != open.stateid.other || stateid.seqid <= open.stateid.seqid {
            let former = open.stateid;
            return Err(format!("{stateid:?} follows {former:?}"));
        }
        open.stateid = stateid;
        open.modes = open.modes.and(modes);
        open.asked.push(modes);
        (open.is_changing, open.grown) = (false, stamp);
        let modes = open.modes;
        self.change_holdings(object, |it| it.is_open(client, modes));
        Ok(())
    }

    /// A client has reduced the share modes of an open file.
    pub(super) fn downgraded(
        &mut self,
        (client, object): (usize, ObjectId),
        stateid: StateId,
        modes: Modes,
    ) {
        if let Some(open) = self.open_mut(client, object) {
            (open.stateid, open.modes, open.is_changing) = (stateid, modes, false);
            open.asked.retain(|it| it.is_within(modes));
        }
        self.change_holdings(object, |it| it.is_open(client, modes));
    }

    /// An owner has this lock on parts.
    pub(super) fn locked(
        &mut self,
        client: usize,
        (object, owner): (ObjectId, u8),
        (parts, held): (Parts, Held),
        stateid: StateId,
    ) {
        self.locks_granted += u64::from(held != Held::Nothing);
        let stamp = self.stamp;
        if let Some(open) = self.open_mut(client, object) {
            let lock = open.locks.entry(owner).or_default();
            lock.stateid = Some(stateid);
            lock.held[parts.numbers()].fill(held);
            if held != Held::Nothing {
                open.grown = stamp;
            }
        }
        let owner = (client, owner);
        self.change_holdings(object, |it| it.is_locked(owner, parts, held));
    }

    /// A client has closed a file, and its locks are gone.
    pub(super) fn closed(&mut self, client: usize, object: ObjectId) {
        self.opens.remove(&(client, object));
        self.objects[object].may_be_open.remove(&client);
        self.change_holdings(object, |it| it.is_lost(client));
    }

    /// The server was killed: clients reclaim what they surely had, and nobody else has it before.
    pub(super) fn holdings_killed(&mut self) {
        let pending: Vec<_> = self.pending.values().collect();
        let doubted: Vec<_> = pending
            .iter()
            .map(|it| (it.client, it.action.clone()))
            .collect();
        for (client, action) in doubted {
            self.give_up(client, &action);
        }
        self.holdings.clear();
        for ((client, object), open) in &mut self.opens {
            let dropped = self.dropped.get(client);
            let holdings = self.holdings.entry(*object).or_default();
            (open.is_lost, open.is_changing) = (true, false);
            holdings.is_open(*client, open.modes);
            for (owner, lock) in &mut open.locks {
                lock.stateid = None;
                holdings.has_locks((*client, *owner), &lock.held);
            }
            match dropped {
                None => {}
                Some(Dropped::Possibly) => holdings.may_be_lost(*client),
                Some(Dropped::Certainly) => holdings.is_lost(*client),
            }
        }
    }

    /// A client does not know whether this was executed, and keeps the lesser state.
    fn give_up(&mut self, client: usize, action: &Action) {
        match *action {
            Action::Downgrade { object, modes } => {
                if let Some(open) = self.open_mut(client, object)
                    && may_downgrade(open, modes)
                {
                    open.modes = modes;
                }
            }
            Action::Lock { wanted, .. } => {
                self.give_up_lock(
                    client,
                    wanted.object,
                    wanted.owner,
                    |held, part| match wanted.parts.numbers().contains(&part) {
                        true => held.min(wanted.held()),
                        false => held,
                    },
                );
            }
            Action::Unlock {
                object,
                owner,
                parts,
            } => self.give_up_lock(client, object, owner, |held, part| {
                match parts.numbers().contains(&part) {
                    true => Held::Nothing,
                    false => held,
                }
            }),
            _ => {}
        }
    }

    fn give_up_lock(
        &mut self,
        client: usize,
        object: ObjectId,
        owner: u8,
        lesser: impl Fn(Held, usize) -> Held,
    ) {
        let open = self.open_mut(client, object);
        if let Some(lock) = open.and_then(|it| it.locks.get_mut(&owner)) {
            for (part, held) in lock.held.iter_mut().enumerate() {
                *held = lesser(*held, part);
            }
        }
    }

    /// Whether a client still has what it is to reclaim: not, if it could not reclaim the open file.
    pub(super) fn can_reclaim(&self, client: usize, action: &Action) -> bool {
        match action {
            Action::Lock { wanted, .. } => {
                let open = self.opens.get(&(client, wanted.object));
                open.is_some_and(|it| !it.is_lost)
            }
            _ => true,
        }
    }

    /// What a client has to reclaim, the last first.
    pub(super) fn lost(&self, client: usize) -> Vec<Action> {
        let opens = self.opens.iter();
        let lost = opens.filter(|((it, _), open)| *it == client && open.is_lost);
        let mut opens = Vec::new();
        let mut locks = Vec::new();
        for ((_, object), open) in lost {
            opens.push(Action::Reclaim { object: *object });
            for (owner, lock) in &open.locks {
                let runs = runs(&lock.held).into_iter();
                locks.extend(runs.map(|(parts, is_exclusive)| Action::Lock {
                    wanted: Wanted {
                        object: *object,
                        owner: *owner,
                        parts,
                        is_exclusive,
                    },
                    tries: 0,
                    is_reclaim: true,
                }));
            }
        }
        locks.extend(opens);
        locks
    }
}

impl Pending {
    /// Whether it has to wait for the end of a grace period.
    fn is_new(&self) -> bool {
        match self.action {
            Action::Open { .. } | Action::TestLock { .. } | Action::CreateFile { .. } => true,
            Action::Lock { is_reclaim, .. } => !is_reclaim,
            _ => self.uses.iter().any(|it| it.special().is_some()),
        }
    }
}

/// Whether the share modes of others allow accesses to have this status (RFC 8881 §9.7).
fn accesses_allow(pending: &Pending, status: Status) -> Option<Result<(), String>> {
    let lacks_mode = |it: &&Use| {
        let writes = it.access == share::ACCESS_WRITE;
        writes && it.by.is_some_and(|it| it.access & share::ACCESS_WRITE == 0)
    };
    let special = pending
        .uses
        .iter()
        .filter_map(|it| Some((it.object, it.special()?)));
    let mut special = special.map(|(object, modes)| (&pending.seen[&object], modes));
    let is_allowed = match status {
        Status::OPENMODE => pending.uses.iter().any(|it| lacks_mode(&it)),
        Status::LOCKED => special.any(|(seen, modes)| seen.may_deny(None, modes)),
        Status::OK => {
            let has_modes = !pending.uses.iter().any(|it| lacks_mode(&it));
            has_modes && special.all(|(seen, modes)| seen.may_open(None, modes))
        }
        _ => return None,
    };
    match (is_allowed, status) {
        // The status depends on the content of the file, too.
        (true, Status::OK) => None,
        (true, _) => Some(Ok(())),
        (false, _) => {
            let (uses, seen) = (&pending.uses, &pending.seen);
            Some(Err(format!("{status:?}, {uses:?}, held was {seen:?}")))
        }
    }
}

/// Checks that a lock can be there that the server names as the reason of a denial.
fn check_reason(
    pending: &Pending,
    wanted: Wanted,
    last: Option<&OperationResult<'_>>,
) -> Result<(), String> {
    let (OperationResult::Lock(Outcome::Failed(LockFailure::Denied(denied)))
    | OperationResult::LockT(Outcome::Failed(LockFailure::Denied(denied)))) =
        last.ok_or("a result is missing")?
    else {
        return Err("a denial has no lock".to_owned());
    };
    let seen = &pending.seen[&wanted.object];
    let own = ((pending.client, wanted.owner), wanted.parts, wanted.held());
    let found = reason(denied).is_some_and(|it| seen.may_be_reason(it, own));
    match found && seen.may_refuse(own.0, own.1, own.2) {
        true => Ok(()),
        false => Err(format!("denied because of {denied:?}, held was {seen:?}")),
    }
}

/// The lock that a denial names.
fn reason(denied: &LockDenied<'_>) -> Option<(LockOwner, Parts, Held)> {
    let held = match denied.locktype {
        LockType::READ => Held::Shared,
        LockType::WRITE => Held::Exclusive,
        _ => return None,
    };
    let parts = Parts::of_wire(denied.offset, denied.length)?;
    Some((owner_of(denied.owner.owner.0)?, parts, held))
}
