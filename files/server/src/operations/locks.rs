//! Byte-range locks: LOCK, LOCKT, LOCKU (RFC 8881 §18.10 to §18.12). A lock that has to wait is
//! denied, and the client asks again.

use files_spec::Status;
use files_spec::operations::{
    LockArgs, LockDenied, LockFailure, LockTestArgs, Locker, OperationResult, Outcome, UnlockArgs,
    share,
};
use files_spec::types::{LockType, Owner, StateId};
use files_spec::xdr::Opaque;

use super::Flow;
use crate::clients::Client;
use crate::execution::Execution;
use crate::limits::{LOCKS_MAX, LOCKS_PER_FILE_MAX};
use crate::locks::{ByteRange, Lock};
use crate::refusal::Refusal;
use crate::server::{Now, Server};
use crate::states::{FileId, State, StateKind};
use crate::table::Key;

/// Whether a lock of this type excludes others.
fn is_exclusive(kind: LockType) -> Result<bool, Refusal> {
    match kind {
        LockType::READ | LockType::READ_WAIT => Ok(false),
        LockType::WRITE | LockType::WRITE_WAIT => Ok(true),
        _ => Err(Status::BADXDR.into()),
    }
}

impl Server {
    /// LOCK (RFC 8881 §18.10).
    pub(super) fn lock<'r>(
        &mut self,
        x: &mut Execution,
        args: &LockArgs<'_>,
        now: &Now,
    ) -> Result<Flow<'r>, Refusal> {
        let (file, range) = self.locked(x, args.offset, args.length)?;
        let exclusive = is_exclusive(args.locktype)?;
        let client = x.client()?;
        let record = self.clients.get(client).ok_or(Status::SERVERFAULT)?;
        self.check_reclaim(args.reclaim, record)?;
        x.check_room()?;
        let (open, known) = self.locker(x, &args.locker, file, client)?;
        let (_, modes) = self.states.open_of(open).ok_or(Status::BAD_STATEID)?;
        let needed = match exclusive {
            true => share::ACCESS_WRITE,
            false => share::ACCESS_READ,
        };
        if modes.access & needed == 0 {
            return Err(Status::OPENMODE.into());
        }
        if let Some(lock) = self.lock_conflict(file, known, range, exclusive, now) {
            let denied = self.denied(lock);
            return push_denied(x, denied, |it| OperationResult::Lock(Outcome::Failed(it)));
        }
        self.check_lock_room(file, client, now)?;
        let key = match (known, args.locker) {
            (Some(key), _) => key,
            (None, Locker::New(new)) => {
                self.check_states(client, now).map_err(|_| Status::DELAY)?;
                self.new_lock_state(client, new.lock_owner.owner.0, file, open)?
            }
            (None, Locker::Existing(_)) => return Err(Status::BAD_STATEID.into()),
        };
        self.change_locks(file, |locks| {
            locks.lock(Lock {
                range,
                is_exclusive: exclusive,
                state: key,
            });
        });
        let stateid = self.changed_state(key);
        x.push(&OperationResult::Lock(Outcome::Ok(stateid)))?;
        x.current.state = Some(stateid);
        Ok(Flow::Done)
    }

    /// The current file and the range of a lock request.
    fn locked(
        &self,
        x: &Execution,
        offset: u64,
        length: u64,
    ) -> Result<(FileId, ByteRange), Refusal> {
        let (object, _) = self.regular_file(x.place()?)?;
        let range = ByteRange::new(offset, length).ok_or(Status::INVAL)?;
        Ok((self.file_id(object), range))
    }

    /// The open state of a lock request, and the lock state of its owner if there is one.
    fn locker(
        &self,
        x: &Execution,
        locker: &Locker<'_>,
        file: FileId,
        client: Key,
    ) -> Result<(Key, Option<Key>), Refusal> {
        match locker {
            Locker::New(new) => {
                let open = self.state_of_file(x, &new.open_stateid, file)?;
                let state = self.states.table.get(open).ok_or(Status::BAD_STATEID)?;
                match state.kind {
                    StateKind::Open(_) => {
                        let owner = new.lock_owner.owner.0;
                        Ok((open, self.lock_state_of(client, owner, file)))
                    }
                    StateKind::Lock(_) => Err(Status::BAD_STATEID.into()),
                }
            }
            Locker::Existing(existing) => {
                let key = self.lock_state(x, &existing.lock_stateid, file)?;
                let (open, _) = self.states.open_of(key).ok_or(Status::BAD_STATEID)?;
                Ok((open, Some(key)))
            }
        }
    }

    /// The lock state of an identifier.
    fn lock_state(&self, x: &Execution, id: &StateId, file: FileId) -> Result<Key, Refusal> {
        let key = self.state_of_file(x, id, file)?;
        let state = self.states.table.get(key).ok_or(Status::BAD_STATEID)?;
        match state.kind {
            StateKind::Lock(_) => Ok(key),
            StateKind::Open(_) => Err(Status::BAD_STATEID.into()),
        }
    }

    /// The lock state of an owner for a file.
    fn lock_state_of(&self, client: Key, owner: &[u8], file: FileId) -> Option<Key> {
        let states = &self.states.files.get(&file)?.lock_states;
        let is_same = |key: &&Key| {
            let state = self.states.table.get(**key);
            state.is_some_and(|it| it.client == client && *it.owner == *owner)
        };
        states.iter().find(is_same).copied()
    }

    fn new_lock_state(
        &mut self,
        client: Key,
        owner: &[u8],
        file: FileId,
        open: Key,
    ) -> Result<Key, Refusal> {
        let key = self.add_state(State {
            client,
            file,
            owner: owner.into(),
            seqid: 0,
            kind: StateKind::Lock(open),
        })?;
        let states = self.states.files.entry(file).or_default();
        states.lock_states.push(key);
        Ok(key)
    }

    /// A lock that excludes another one. Clients whose lease has expired lose their locks instead.
    fn lock_conflict(
        &mut self,
        file: FileId,
        own: Option<Key>,
        range: ByteRange,
        exclusive: bool,
        now: &Now,
    ) -> Option<Lock> {
        loop {
            let locks = &self.states.files.get(&file)?.locks;
            let lock = locks.conflict(own, range, exclusive)?;
            let client = self.states.table.get(lock.state)?.client;
            if !self.is_expired(client, now) {
                return Some(lock);
            }
            self.expire_client(client);
        }
    }

    /// Checks that the file and the server may have further locks. A lock can divide another one.
    /// Clients whose lease has expired lose theirs instead.
    ///
    /// # Errors
    /// `NFS4ERR_DELAY`: the protocol has no status for this limit.
    fn check_lock_room(&mut self, file: FileId, client: Key, now: &Now) -> Result<(), Refusal> {
        let has_room = |it: &Self| it.states.lock_count + 2 <= LOCKS_MAX;
        let has_room = self.make_room(client, now, Client::has_state, has_room);
        let of_file = self.states.files.get(&file);
        let count = of_file.map_or(0, |it| it.locks.len());
        match has_room && count + 2 <= LOCKS_PER_FILE_MAX {
            true => Ok(()),
            false => Err(Status::DELAY.into()),
        }
    }

    /// Changes the locks of a file, and counts them.
    fn change_locks(&mut self, file: FileId, change: impl FnOnce(&mut crate::locks::Locks)) {
        if let Some(states) = self.states.files.get_mut(&file) {
            let before = states.locks.len();
            change(&mut states.locks);
            self.states.lock_count += states.locks.len();
            self.states.lock_count -= before;
        }
    }

    /// What a client learns of a conflicting lock.
    fn denied(&self, lock: Lock) -> LockDenied<'_> {
        let state = self.states.table.get(lock.state);
        LockDenied {
            offset: lock.range.first,
            length: lock.range.length(),
            locktype: match lock.is_exclusive {
                true => LockType::WRITE,
                false => LockType::READ,
            },
            owner: Owner {
                clientid: state.map_or(0, |it| it.client.to_u64()),
                owner: Opaque(state.map_or(&[], |it| &it.owner)),
            },
        }
    }

    /// LOCKT (RFC 8881 §18.11).
    pub(super) fn test_lock<'r>(
        &mut self,
        x: &mut Execution,
        args: &LockTestArgs<'_>,
        now: &Now,
    ) -> Result<Flow<'r>, Refusal> {
        let (file, range) = self.locked(x, args.offset, args.length)?;
        let exclusive = is_exclusive(args.locktype)?;
        if self.grace.is_active() {
            return Err(Status::GRACE.into());
        }
        let own = self.lock_state_of(x.client()?, args.owner.owner.0, file);
        match self.lock_conflict(file, own, range, exclusive, now) {
            Some(lock) => {
                let denied = self.denied(lock);
                push_denied(x, denied, |it| OperationResult::LockT(Outcome::Failed(it)))
            }
            None => {
                x.push(&OperationResult::LockT(Outcome::Ok(())))?;
                Ok(Flow::Done)
            }
        }
    }

    /// LOCKU (RFC 8881 §18.12).
    pub(super) fn unlock(
        &mut self,
        x: &mut Execution,
        args: &UnlockArgs,
        now: &Now,
    ) -> Result<(), Refusal> {
        let (file, range) = self.locked(x, args.offset, args.length)?;
        is_exclusive(args.locktype)?;
        let key = self.lock_state(x, &args.lock_stateid, file)?;
        x.check_room()?;
        let states = self.states.files.get(&file);
        if states.is_some_and(|it| it.locks.is_divided(key, range)) {
            // RFC 8881 §18.12: a part of a lock cannot be unlocked.
            let client = x.client()?;
            let checked = self.check_lock_room(file, client, now);
            checked.map_err(|_| Status::LOCK_RANGE)?;
        }
        self.change_locks(file, |locks| locks.unlock(key, range));
        let stateid = self.changed_state(key);
        x.push(&OperationResult::LockU(Outcome::Ok(stateid)))?;
        x.current.state = Some(stateid);
        Ok(())
    }
}

/// Appends the failure of a lock with the conflicting one.
fn push_denied<'r, 'd>(
    x: &mut Execution,
    denied: LockDenied<'d>,
    result: impl FnOnce(LockFailure<'d>) -> OperationResult<'d>,
) -> Result<Flow<'r>, Refusal> {
    x.push(&result(LockFailure::Denied(denied)))?;
    Ok(Flow::Failed(Status::DENIED))
}
