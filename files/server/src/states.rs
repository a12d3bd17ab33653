//! Opens and locks of all clients, their state identifiers, and the conflicts between them
//! (RFC 8881 §8.2).

use files_spec::Status;
use files_spec::types::StateId;
use files_store::{InodeId, NumberMap};

use crate::clients::Client;
use crate::execution::Execution;
use crate::limits::{STATES_MAX, STATES_PER_CLIENT_MAX};
use crate::locks::Locks;
use crate::place::VolumeIndex;
use crate::server::{Now, Server};
use crate::table::{Key, Table};

/// A regular file of a volume.
pub(crate) type FileId = (VolumeIndex, InodeId);

/// An open or lock state.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) client: Key,
    pub(crate) file: FileId,
    pub(crate) owner: Box<[u8]>,
    pub(crate) seqid: u32,
    pub(crate) kind: StateKind,
}

/// What a state is.
#[derive(Debug)]
pub(crate) enum StateKind {
    Open(Open),
    /// The locks of an owner, with the open state that they depend on.
    Lock(Key),
}

/// Share access and share deny of an open file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    pub(crate) access: u32,
    pub(crate) deny: u32,
    /// Every access and deny that an OPEN asked for, as a set of access + 4 × deny.
    asked: u16,
}

impl Open {
    /// An open state before its first OPEN is added.
    pub(crate) fn none() -> Self {
        Self {
            access: 0,
            deny: 0,
            asked: 0,
        }
    }

    /// Adds what a further OPEN of the same owner asks for.
    pub(crate) fn add(&mut self, access: u32, deny: u32) {
        self.access |= access;
        self.deny |= deny;
        self.asked |= 1 << (access + 4 * deny);
    }

    /// Reduces to the union of some earlier OPENs (RFC 8881 §18.18).
    ///
    /// # Errors
    /// `NFS4ERR_INVAL` if it is no such union.
    pub(crate) fn downgrade(&mut self, access: u32, deny: u32) -> Result<(), Status> {
        let pairs = (0..16).filter(|pair| self.asked & 1 << pair != 0);
        let within = pairs.filter(|pair| pair & 3 & !access == 0 && pair >> 2 & !deny == 0);
        let asked = within.clone().fold(0, |set, pair| set | 1 << pair);
        let union = within.fold((0, 0), |(a, d), pair| (a | pair & 3, d | pair >> 2));
        if union != (access, deny) || access == 0 {
            return Err(Status::INVAL);
        }
        (self.access, self.deny, self.asked) = (access, deny, asked);
        Ok(())
    }
}

/// The states of one file.
#[derive(Debug, Default)]
pub(crate) struct FileStates {
    pub(crate) opens: Vec<Key>,
    pub(crate) lock_states: Vec<Key>,
    pub(crate) locks: Locks,
}

/// The states of all clients.
#[derive(Debug)]
pub(crate) struct States {
    pub(crate) table: Table<State>,
    pub(crate) files: NumberMap<FileId, FileStates>,
    /// Number of open states.
    pub(crate) open_count: usize,
    /// Number of byte-range locks.
    pub(crate) lock_count: usize,
}

impl States {
    pub(crate) fn new(first_generation: u32) -> Self {
        Self {
            table: Table::new(STATES_MAX, first_generation),
            files: NumberMap::default(),
            open_count: 0,
            lock_count: 0,
        }
    }

    /// The open state of a state: itself, or the one that a lock state depends on.
    pub(crate) fn open_of(&self, key: Key) -> Option<(Key, Open)> {
        match &self.table.get(key)?.kind {
            StateKind::Open(open) => Some((key, *open)),
            StateKind::Lock(open) => match &self.table.get(*open)?.kind {
                StateKind::Open(it) => Some((*open, *it)),
                StateKind::Lock(_) => None,
            },
        }
    }

    /// Whether a state is one of this file, and its file is open.
    #[inline]
    pub(crate) fn is_open(&self, state: &State, file: FileId) -> bool {
        let is_open = match state.kind {
            StateKind::Open(_) => true,
            StateKind::Lock(open) => self.open_of(open).is_some(),
        };
        is_open && state.file == file
    }

    /// Removes the entry of a file without states.
    pub(crate) fn forget_unused(&mut self, file: FileId) {
        if let Some(states) = self.files.get(&file)
            && states.opens.is_empty()
            && states.lock_states.is_empty()
            && states.locks.is_empty()
        {
            self.files.remove(&file);
        }
    }
}

/// What a state identifier of READ, WRITE or SETATTR refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateUse {
    /// No open file: the rights of the user are checked (RFC 8881 §8.2.3).
    Special,
    /// An open file with this access.
    Open { access: u32 },
}

impl Server {
    /// The identifier of a state.
    pub(crate) fn state_id(&self, key: Key) -> StateId {
        let mut other = [0; 12];
        other[..4].copy_from_slice(&self.state_instance().to_be_bytes());
        other[4..].copy_from_slice(&key.to_u64().to_be_bytes());
        StateId {
            seqid: self.states.table.get(key).map_or(0, |state| state.seqid),
            other,
        }
    }

    fn state_instance(&self) -> u32 {
        // All ones and zeroes are those of special identifiers.
        (self.instance as u32).clamp(1, u32::MAX - 1)
    }

    /// The state of an identifier (RFC 8881 §8.2.4).
    ///
    /// # Errors
    /// `NFS4ERR_BAD_STATEID`, also for one of an earlier start of the server
    /// (`NFS4ERR_STALE_STATEID` is obsolete), or `NFS4ERR_OLD_STATEID`.
    pub(crate) fn state_key(&self, x: &Execution, id: &StateId) -> Result<Key, Status> {
        let current;
        let id = match *id == StateId::CURRENT {
            true => {
                current = x.current.state.ok_or(Status::BAD_STATEID)?;
                &current
            }
            false => id,
        };
        let client = x.slot.map(|slot| slot.client);
        self.state_of_client(client, id).map(|found| found.0)
    }

    /// The state of an identifier that a client may use, other than that of the current state.
    ///
    /// # Errors
    /// As [`Self::state_key`].
    #[inline]
    pub(crate) fn state_of_client(
        &self,
        client: Option<Key>,
        id: &StateId,
    ) -> Result<(Key, &State), Status> {
        let (instance, number) = id.other.split_at(4);
        let instance = instance.try_into().map_or(0, u32::from_be_bytes);
        if instance != self.state_instance() {
            return Err(Status::BAD_STATEID);
        }
        let key = Key::from_u64(number.try_into().map_or(0, u64::from_be_bytes));
        let state = self.states.table.get(key).ok_or(Status::BAD_STATEID)?;
        if client != Some(state.client) {
            return Err(Status::BAD_STATEID);
        }
        match id.seqid {
            0 => Ok((key, state)),
            seqid if seqid == state.seqid => Ok((key, state)),
            seqid if seqid < state.seqid => Err(Status::OLD_STATEID),
            _ => Err(Status::BAD_STATEID),
        }
    }

    /// The state of an identifier, which must be one of this file.
    pub(crate) fn state_of_file(
        &self,
        x: &Execution,
        id: &StateId,
        file: FileId,
    ) -> Result<Key, Status> {
        let key = self.state_key(x, id)?;
        match self.states.table.get(key) {
            Some(state) if state.file == file => Ok(key),
            _ => Err(Status::BAD_STATEID),
        }
    }

    /// What the identifier of a READ, WRITE or SETATTR refers to. An access without an open file
    /// conflicts with what others deny.
    pub(crate) fn state_use(
        &mut self,
        x: &Execution,
        id: &StateId,
        file: FileId,
        access: u32,
        now: &Now,
    ) -> Result<StateUse, Status> {
        if *id != StateId::ANONYMOUS && *id != StateId::BYPASS {
            let key = self.state_of_file(x, id, file)?;
            let (_, open) = self.states.open_of(key).ok_or(Status::BAD_STATEID)?;
            return Ok(StateUse::Open {
                access: open.access,
            });
        }
        if self.grace.is_active() {
            return Err(Status::GRACE);
        }
        match self.share_conflict(file, None, (access, 0), now) {
            true => Err(Status::LOCKED),
            false => Ok(StateUse::Special),
        }
    }

    /// Whether an open other than `own` denies `access`, or has an access that is to be denied.
    /// Clients whose lease has expired lose their state instead.
    pub(crate) fn share_conflict(
        &mut self,
        file: FileId,
        own: Option<Key>,
        (access, deny): (u32, u32),
        now: &Now,
    ) -> bool {
        loop {
            let Some(states) = self.states.files.get(&file) else {
                return false;
            };
            let conflict = states.opens.iter().find_map(|&key| {
                let (_, open) = self.states.open_of(key)?;
                let conflicts = access & open.deny != 0 || deny & open.access != 0;
                let state = self.states.table.get(key)?;
                (conflicts && own != Some(key)).then_some(state.client)
            });
            match conflict {
                None => return false,
                Some(client) if self.is_expired(client, now) => self.expire_client(client),
                Some(_) => return true,
            }
        }
    }

    pub(crate) fn is_expired(&self, client: Key, now: &Now) -> bool {
        let client = self.clients.get(client);
        client.is_none_or(|client| client.is_expired(now))
    }

    /// Checks that a client may have a further state. Clients whose lease has expired lose theirs
    /// instead.
    ///
    /// # Errors
    /// `NFS4ERR_NOSPC` if the client has used its limit, `NFS4ERR_DELAY` if all clients together
    /// have used theirs.
    pub(crate) fn check_states(&mut self, key: Key, now: &Now) -> Result<(), Status> {
        let client = self.clients.get(key).ok_or(Status::SERVERFAULT)?;
        if client.states.len() >= STATES_PER_CLIENT_MAX {
            return Err(Status::NOSPC);
        }
        let has_room = |it: &Self| !it.states.table.is_full();
        match self.make_room(key, now, Client::has_state, has_room) {
            true => Ok(()),
            false => Err(Status::DELAY),
        }
    }

    /// Adds a state, whose room was checked.
    pub(crate) fn add_state(&mut self, state: State) -> Result<Key, Status> {
        let client = state.client;
        let is_open = matches!(state.kind, StateKind::Open(_));
        let key = self.states.table.insert(state).ok_or(Status::DELAY)?;
        self.states.open_count += usize::from(is_open);
        if let Some(client) = self.clients.get_mut(client) {
            client.states.insert(key);
        }
        Ok(key)
    }

    /// Counts a change of a state in its identifier.
    pub(crate) fn changed_state(&mut self, key: Key) -> StateId {
        if let Some(state) = self.states.table.get_mut(key) {
            // RFC 8881 §8.2.2: 0 is left out.
            state.seqid = state.seqid.checked_add(1).unwrap_or(1);
        }
        self.state_id(key)
    }

    /// Removes a state with all that depends on it. Its file is closed.
    pub(crate) fn drop_state(&mut self, key: Key) {
        let Some(state) = self.states.table.get(key) else {
            return;
        };
        if let StateKind::Open(_) = state.kind {
            let file = state.file;
            if self.volumes[file.0.0].close(file.1).is_err() {
                self.unclosed.push(file);
            }
        }
        self.forget_state(key);
    }

    /// Removes a state with all that depends on it. Its file was closed.
    pub(crate) fn forget_state(&mut self, key: Key) {
        let Some(state) = self.states.table.remove(key) else {
            return;
        };
        if let Some(client) = self.clients.get_mut(state.client) {
            client.states.remove(&key);
        }
        let States {
            files, lock_count, ..
        } = &mut self.states;
        if let Some(states) = files.get_mut(&state.file) {
            states.opens.retain(|it| *it != key);
            states.lock_states.retain(|it| *it != key);
            *lock_count -= states.locks.release(key);
        }
        if let StateKind::Open(_) = state.kind {
            self.states.open_count -= 1;
            for dependent in self.dependents(state.file, key) {
                self.forget_state(dependent);
            }
        }
        self.states.forget_unused(state.file);
    }

    /// The lock states that depend on an open state.
    fn dependents(&self, file: FileId, open: Key) -> Vec<Key> {
        let Some(states) = self.states.files.get(&file) else {
            return Vec::new();
        };
        let depends = |key: &&Key| match self.states.table.get(**key) {
            Some(state) => matches!(state.kind, StateKind::Lock(it) if it == open),
            None => false,
        };
        states.lock_states.iter().filter(depends).copied().collect()
    }
}
