//! Opens: OPEN, OPEN_DOWNGRADE, CLOSE, TEST_STATEID, FREE_STATEID (RFC 8881 §9.7, §9.9).

use files_spec::attributes::Attributes;
use files_spec::limits::STATE_IDS_MAX;
use files_spec::operations::{
    Claim, CloseArgs, CreateHow, Delegation, DowngradeArgs, NoDelegation, OpenArgs, OpenHow,
    OpenOk, OperationResult, Outcome, result_flags, share,
};
use files_spec::types::{ChangeInfo, StateId, Verifier};
use files_spec::xdr::List;
use files_spec::{Bitmap, Name, Status};
use files_store::{NewNode, SetAttributes, SetTime, Time};

use super::names::creation;
use super::{CLOSED, Object, change_info};
use crate::attributes::settable_by_exclusive_creation;
use crate::execution::Execution;
use crate::refusal::Refusal;
use crate::server::{Now, Server};
use crate::states::{FileId, Open, State, StateKind};
use crate::table::Key;
use crate::user::{READ, WRITE};

/// Why there is no delegation: the client did not want one (RFC 8881 §18.16).
const NOT_WANTED: NoDelegation = NoDelegation::Other(0);
/// Why there is no delegation: the server has none for this kind of file.
const NOT_SUPPORTED: NoDelegation = NoDelegation::Other(3);

/// A file that is being opened.
struct Found {
    object: Object,
    /// The change of its directory, if the claim has a name.
    change: ChangeInfo,
    /// Whether this OPEN has created it, so that its mode does not matter.
    is_new: bool,
    attributes_set: Bitmap,
    /// Whether it is to be truncated.
    truncate: bool,
}

impl Server {
    /// OPEN (RFC 8881 §18.16).
    pub(super) fn open(
        &mut self,
        x: &mut Execution,
        args: &OpenArgs<'_>,
        now: &Now,
    ) -> Result<(), Refusal> {
        let access = args.share_access & share::ACCESS_MASK;
        let deny = args.share_deny;
        if access == 0 || deny > share::DENY_BOTH {
            return Err(Status::INVAL.into());
        }
        self.check_grace(x, &args.claim)?;
        let client = x.client()?;
        x.check_room()?;
        // Before anything is created: the file may need a state.
        self.check_states(client, now)?;
        let found = self.found(x, args, now)?;
        let (object, attributes) = self.regular_file(found.object.place())?;
        let file = self.file_id(object);
        if access & share::ACCESS_WRITE != 0 || found.truncate {
            self.check_writable(object)?;
        }
        if !found.is_new {
            let reads = access & share::ACCESS_READ != 0;
            let writes = access & share::ACCESS_WRITE != 0 || found.truncate;
            let wanted = if reads { READ } else { 0 } | if writes { WRITE } else { 0 };
            self.check_access(x, object, &attributes, wanted)?;
        }
        let known = self.open_of_owner(client, args.owner.owner.0, file);
        // RFC 8881 §9.7: also an earlier OPEN of the same owner may deny this one. A truncation is a
        // write, which only others may deny.
        let writes = (share::ACCESS_WRITE, share::DENY_NONE);
        if self.share_conflict(file, None, (access, deny), now)
            || found.truncate && self.share_conflict(file, known, writes, now)
        {
            return Err(Status::SHARE_DENIED.into());
        }
        if found.truncate {
            let mode = self.unprivileged_mode(x, object, &attributes);
            let volume = self.volume_mut(object);
            let empty = SetAttributes {
                size: Some(0),
                mode,
                ..SetAttributes::default()
            };
            let ticket = volume.set_attributes(object.inode, &empty, now.time)?;
            x.await_durable(self.share(object).volume, ticket);
        }
        let key = match known {
            Some(key) => key,
            None => self.new_open(client, args.owner.owner.0, object)?,
        };
        if let Some(state) = self.states.table.get_mut(key)
            && let StateKind::Open(open) = &mut state.kind
        {
            open.add(access, deny);
        }
        let stateid = self.changed_state(key);
        if known.is_none() {
            x.opened.push((key, stateid));
        }
        let ok = OpenOk {
            stateid,
            cinfo: found.change,
            rflags: result_flags::LOCKTYPE_POSIX | result_flags::PRESERVE_UNLINKED,
            attrset: found.attributes_set,
            delegation: no_delegation(args.share_access),
        };
        x.push(&OperationResult::Open(Outcome::Ok(ok)))?;
        x.go_to(object.place());
        x.current.state = Some(stateid);
        Ok(())
    }

    /// Checks a claim against the grace period (RFC 8881 §8.4.2 and §18.51).
    fn check_grace(&self, x: &Execution, claim: &Claim<'_>) -> Result<(), Refusal> {
        let client = self.clients.get(x.client()?).ok_or(Status::SERVERFAULT)?;
        let is_reclaim = matches!(claim, Claim::Previous(_));
        self.check_reclaim(is_reclaim, client)
            .map_err(Refusal::from)
    }

    /// Checks whether a client may reclaim, or may do anything else.
    pub(super) fn check_reclaim(
        &self,
        is_reclaim: bool,
        client: &crate::clients::Client,
    ) -> Result<(), Status> {
        let is_active = self.grace.is_active();
        match is_reclaim {
            true if client.has_reclaimed || !self.grace.may_reclaim(&client.owner) => {
                Err(Status::NO_GRACE)
            }
            false if is_active || !client.has_reclaimed => Err(Status::GRACE),
            _ => Ok(()),
        }
    }

    /// The file of a claim, which is created if the request says so.
    fn found(
        &mut self,
        x: &mut Execution,
        args: &OpenArgs<'_>,
        now: &Now,
    ) -> Result<Found, Refusal> {
        match (args.claim, args.openhow) {
            (Claim::Null(name), OpenHow::NoCreate) => {
                let change = match self.object(x.place()?) {
                    Ok((_, directory)) => directory.change,
                    Err(_) => self.root_change(),
                };
                let (object, _) = self.regular_file(self.find(x, name)?)?;
                Ok(Found::existing(object, change))
            }
            (Claim::Null(name), OpenHow::Create(how)) => self.created(x, name, &how, now),
            (Claim::FileHandle | Claim::Previous(_), OpenHow::NoCreate) => {
                let (object, attributes) = self.regular_file(x.place()?)?;
                Ok(Found::existing(object, attributes.change))
            }
            (Claim::FileHandle | Claim::Previous(_), OpenHow::Create(_)) => {
                Err(Status::INVAL.into())
            }
            // The server grants no delegations.
            (Claim::DelegateCur(_) | Claim::DelegateCurFh(_), _) => Err(Status::BAD_STATEID.into()),
            (Claim::DelegatePrev(_) | Claim::DelegatePrevFh, _) => Err(Status::NOTSUPP.into()),
        }
    }

    /// The file of a name, created if it does not exist.
    fn created(
        &mut self,
        x: &mut Execution,
        name: Name<'_>,
        how: &CreateHow<'_>,
        now: &Now,
    ) -> Result<Found, Refusal> {
        let none = Attributes::default();
        let (attributes, verifier) = match how {
            CreateHow::Unchecked(it) | CreateHow::Guarded(it) => (it, None),
            CreateHow::Exclusive(verifier) => (&none, Some(*verifier)),
            CreateHow::Exclusive41(it) => (&it.attrs, Some(it.verf)),
        };
        let settable = settable_by_exclusive_creation(x.minor_version);
        if verifier.is_some() && !attributes.numbers().difference(settable).is_empty() {
            return Err(Status::INVAL.into());
        }
        let (directory, before) = self.directory(x.place()?)?;
        if x.created.is_none() {
            match self.find(x, name) {
                Ok(place) => {
                    let (object, _) = match (self.regular_file(place), how) {
                        (Ok(found), _) => found,
                        (Err(refusal), CreateHow::Unchecked(_)) => return Err(refusal),
                        // RFC 8881 §18.16: the name exists, whatever it is.
                        (Err(_), _) => return Err(Status::EXIST.into()),
                    };
                    return self.existing(object, before.change, how);
                }
                Err(Refusal::Status(Status::NOENT)) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        self.changeable(x, directory.place())?;
        let user = self.user_in(x, directory);
        let mut new = creation(NewNode::File, attributes, &before, &user, x.minor_version)?;
        if let Some(verifier) = verifier {
            (new.rest.accessed, new.rest.modified) = times_of(verifier);
        }
        let object = self.create_object(x, directory, name, &new, now)?;
        Ok(Found {
            object,
            change: change_info(before.change, self.change_of(directory)?),
            is_new: true,
            attributes_set: attributes.numbers(),
            truncate: false,
        })
    }

    /// An existing file that an OPEN would have created.
    fn existing(&self, object: Object, change: u64, how: &CreateHow<'_>) -> Result<Found, Refusal> {
        let mut found = Found::existing(object, change);
        match how {
            // RFC 8881 §18.16: of the attributes, only a size of 0 is applied.
            CreateHow::Unchecked(attributes) => found.truncate = attributes.size == Some(0),
            CreateHow::Guarded(_) => return Err(Status::EXIST.into()),
            CreateHow::Exclusive(verifier) => self.check_verifier(object, *verifier)?,
            CreateHow::Exclusive41(it) => {
                self.check_verifier(object, it.verf)?;
                found.attributes_set = it.attrs.numbers();
            }
        }
        if found.truncate {
            found.attributes_set = Bitmap::of(&[files_spec::attributes::number::SIZE]);
        }
        Ok(found)
    }

    /// Checks that a file was created by the same request.
    fn check_verifier(&self, object: Object, verifier: Verifier) -> Result<(), Refusal> {
        let attributes = self.volume(object).attributes(object.inode)?;
        let expected = times_of(verifier);
        let actual = [attributes.accessed, attributes.modified].map(|it| Some(SetTime::To(it)));
        match (actual[0], actual[1]) == expected && attributes.size == 0 {
            true => Ok(()),
            false => Err(Status::EXIST.into()),
        }
    }

    /// The open state of an owner for a file.
    fn open_of_owner(&self, client: Key, owner: &[u8], file: FileId) -> Option<Key> {
        let opens = &self.states.files.get(&file)?.opens;
        let is_same = |key: &&Key| {
            let state = self.states.table.get(**key);
            state.is_some_and(|it| it.client == client && *it.owner == *owner)
        };
        opens.iter().find(is_same).copied()
    }

    fn new_open(&mut self, client: Key, owner: &[u8], object: Object) -> Result<Key, Refusal> {
        let file = self.file_id(object);
        self.volume_mut(object).open(object.inode)?;
        let state = State {
            client,
            file,
            owner: owner.into(),
            seqid: 0,
            kind: StateKind::Open(Open::none()),
        };
        let key = self.add_state(state)?;
        self.states.files.entry(file).or_default().opens.push(key);
        Ok(key)
    }

    /// The open state of an identifier for the current file.
    fn open_state(&self, x: &Execution, id: &StateId) -> Result<Key, Refusal> {
        let (object, _) = self.regular_file(x.place()?)?;
        let key = self.state_of_file(x, id, self.file_id(object))?;
        match self.states.table.get(key).map(|state| &state.kind) {
            Some(StateKind::Open(_)) => Ok(key),
            _ => Err(Status::BAD_STATEID.into()),
        }
    }

    /// OPEN_DOWNGRADE (RFC 8881 §18.18).
    pub(super) fn downgrade(
        &mut self,
        x: &mut Execution,
        args: &DowngradeArgs,
    ) -> Result<(), Refusal> {
        let (access, deny) = (args.share_access & share::ACCESS_MASK, args.share_deny);
        let key = self.open_state(x, &args.open_stateid)?;
        if deny > share::DENY_BOTH {
            return Err(Status::INVAL.into());
        }
        if let Some(state) = self.states.table.get_mut(key)
            && let StateKind::Open(open) = &mut state.kind
        {
            open.downgrade(access, deny)?;
        }
        let stateid = self.changed_state(key);
        x.push(&OperationResult::OpenDowngrade(Outcome::Ok(stateid)))?;
        x.current.state = Some(stateid);
        Ok(())
    }

    /// CLOSE (RFC 8881 §18.2). Locks of the open state are released with it.
    pub(super) fn close(&mut self, x: &mut Execution, args: &CloseArgs) -> Result<(), Refusal> {
        let key = self.open_state(x, &args.open_stateid)?;
        let (object, _) = self.regular_file(x.place()?)?;
        x.check_room()?;
        self.volume_mut(object).close(object.inode)?;
        self.forget_state(key);
        x.push(&OperationResult::Close(Outcome::Ok(CLOSED)))?;
        x.current.state = None;
        Ok(())
    }

    /// TEST_STATEID (RFC 8881 §18.48).
    pub(super) fn test_states(
        &mut self,
        x: &mut Execution,
        ids: &List<'_, StateId, STATE_IDS_MAX>,
    ) -> Result<(), Refusal> {
        let tested = ids.iter().map(|id| match self.state_key(x, &id) {
            Ok(_) => Status::OK,
            Err(status) => status,
        });
        let tested: Vec<_> = tested.collect();
        let results = List::new(&tested);
        x.push(&OperationResult::TestStateId(Outcome::Ok(results)))
    }

    /// FREE_STATEID (RFC 8881 §18.38).
    pub(super) fn free_state(&mut self, x: &mut Execution, id: &StateId) -> Result<(), Refusal> {
        let key = self.state_key(x, id)?;
        let state = self.states.table.get(key).ok_or(Status::BAD_STATEID)?;
        let file = self.states.files.get(&state.file);
        let is_locked = file.is_some_and(|it| it.locks.has(key));
        if matches!(state.kind, StateKind::Open(_)) || is_locked {
            return Err(Status::LOCKS_HELD.into());
        }
        self.forget_state(key);
        x.push(&OperationResult::FreeStateId(Outcome::Ok(())))
    }
}

impl Found {
    fn existing(object: Object, change: u64) -> Self {
        Self {
            object,
            change: change_info(change, change),
            is_new: false,
            attributes_set: Bitmap::EMPTY,
            truncate: false,
        }
    }
}

/// The times that hold the verifier of an exclusive creation, until the client sets them.
fn times_of(verifier: Verifier) -> (Option<SetTime>, Option<SetTime>) {
    let (first, second) = verifier.split_at(4);
    let time = |bytes: &[u8]| {
        let seconds = bytes.try_into().map_or(0, u32::from_be_bytes);
        Some(SetTime::To(Time {
            seconds: i64::from(seconds),
            nanoseconds: 0,
        }))
    };
    (time(first), time(second))
}

fn no_delegation<'d>(share_access: u32) -> Delegation<'d> {
    match share_access & share::WANT_DELEGATION_MASK {
        0 => Delegation::None,
        share::WANT_NO_DELEGATION => Delegation::NoneExt(NOT_WANTED),
        _ => Delegation::NoneExt(NOT_SUPPORTED),
    }
}
