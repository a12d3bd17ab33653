//! The judge of replies: each must be one that the model allows, and then the model follows it.

use files_spec::Status;
use files_spec::attributes::Attributes;
use files_spec::operations::{OperationResult, Outcome};
use files_spec::types::{FileType, Stable, StateId};
use files_spec::xdr::Payload;
use reactors::Nanos;

use super::action::{Action, Place, created, xattr_key};
use super::client::{Answer, OperationId};
use super::holdings::{Held, Modes};
use super::model::{Model, Node, ObjectId, Pending};
use super::quotas::Quota;
use super::sharing;

/// What follows from a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The operation has ended.
    Ended,
    /// The operation has failed, and was executed or not.
    Doubtful,
    /// There is a grace period. The operation was sent at this time, and is to be sent again later.
    Grace(Nanos),
    /// It is to be sent again, now or after a pause.
    Again {
        /// Whether the client waits before that.
        pauses: bool,
    },
}

/// The kind of an object in the protocol.
fn type_of(node: &Node) -> FileType {
    match node {
        Node::Directory(_) => FileType::DIRECTORY,
        Node::File(_) => FileType::REGULAR,
        Node::Link(_) => FileType::LINK,
    }
}

impl Model {
    /// Checks a reply, and follows it. `may_be_full`: operations may find no space in the volume.
    ///
    /// # Errors
    /// The reply is not one that the model allows.
    pub(super) fn answered(
        &mut self,
        id: OperationId,
        answer: &Answer,
        (may_be_full, quota): (bool, Option<Quota>),
    ) -> Result<Verdict, String> {
        let Some(pending) = self.pending.get(&id) else {
            return Ok(Verdict::Ended);
        };
        let (status, results) = answer.results()?;
        match status {
            // It may have changed the volume before that was lost. Clients do not send it again.
            Status::DELAY if pending.spans_loss && pending.action.changes_volume() => {
                return Ok(self.lost_with_volume(id));
            }
            Status::DELAY => {
                if let Some(pending) = self.pending.get_mut(&id) {
                    pending.was_delayed = true;
                }
                return Ok(Verdict::Again { pauses: true });
            }
            Status::GRACE => return Ok(Verdict::Grace(pending.sent_at)),
            _ => {}
        }
        let told = |error: String| format!("{:?}: {error}", pending.action);
        let reclaimed = match pending.action {
            Action::Reclaim { object } => self.modes_of(pending.client, object),
            _ => Modes::CLOSED,
        };
        let needs_writing = pending.action.needs_writing(reclaimed);
        if needs_writing && status == Status::OK && !pending.accesses.writing {
            return Err(told("the share is read-only".to_owned()));
        }
        let is_protected = needs_writing && status == Status::ROFS && pending.accesses.read_only;
        let also_used = match pending.action {
            Action::Clone { from, .. } => Some(from),
            _ => None,
        };
        let mut used = pending.action.object().into_iter().chain(also_used);
        let has_ended_before = used.any(|it| !self.is_certain(it));
        let is_full = match status {
            Status::NOSPC => may_be_full,
            Status::DQUOT => self.may_exceed(quota, &pending.action),
            _ => false,
        };
        let is_gone = status == Status::STALE && has_ended_before;
        if status == Status::IO && self.device_fails && pending.action.may_fail() {
            return Ok(self.failed(id));
        }
        let checked = match self.sharing_allows(pending, status, results.last()) {
            Some(checked) => checked,
            None if self.expected_status(pending, status) => Ok(()),
            None => Err(format!("{status:?}, expected {:?}", pending.expected)),
        };
        if let Err(error) = checked
            && !is_full
            && !is_gone
            && !is_protected
        {
            return Err(told(error));
        }
        self.refusals += u64::from(sharing::is_refusal(status));
        if pending.action.is_reclaim() {
            match status {
                Status::OK => self.reclaims += 1,
                _ => self.reclaims_refused += 1,
            }
        }
        if status == Status::DENIED && self.waits_for_lock(id) {
            return Ok(Verdict::Again { pauses: true });
        }
        let Some(mut pending) = self.pending.remove(&id) else {
            return Ok(Verdict::Ended);
        };
        if status != Status::OK {
            if pending.was_delayed && matches!(pending.action, Action::Write { .. }) {
                self.content_may_have_changed(&pending);
            }
            if is_protected && let Action::Reclaim { object } = pending.action {
                let client = pending.client;
                self.change_holdings(object, |it| it.is_lost(client));
            }
            return Ok(self.refused(&pending));
        }
        if pending.action.stores_metadata()
            && let Some(failed) = self.metadata_failed
            && failed < pending.started
        {
            return Err(format!("{:?}: the volume is read-only", pending.action));
        }
        self.sharing_granted(&pending);
        self.following = pending.started;
        let followed = self.follow(&mut pending, &results);
        self.following = 0;
        let followed = followed.map_err(|error| format!("{:?}: {error}", pending.action))?;
        if followed != Verdict::Ended {
            self.pending.insert(id, pending);
        }
        Ok(followed)
    }

    /// Whether an operation may have a status.
    fn expected_status(&self, pending: &Pending, status: Status) -> bool {
        let is_in_flux = |key: &Place| {
            let changed = self.names_changed.get(key);
            self.is_name_claimed(key) || changed.is_some_and(|it| *it > pending.started)
        };
        match &pending.action {
            Action::Lookup { at } => match status {
                Status::OK => is_in_flux(at) || self.lookup(at.0, &at.1).is_some(),
                Status::NOENT => is_in_flux(at) || self.lookup(at.0, &at.1).is_none(),
                _ => false,
            },
            Action::GetXattr { object, name } if is_in_flux(&(*object, xattr_key(name))) => {
                matches!(status, Status::OK | Status::NOXATTR)
            }
            Action::Seek { offset, .. } => match status {
                Status::OK => true,
                // RFC 7862: the offset is not within the file.
                Status::NXIO => {
                    let possible = self.possible(pending);
                    possible.sizes().iter().any(|it| *it <= *offset)
                }
                _ => false,
            },
            _ => pending.expected.contains(&status),
        }
    }

    /// Whether nothing has changed the content of a file since an operation began.
    fn is_settled(&self, pending: &Pending, object: ObjectId) -> bool {
        pending.concurrent.is_empty() && !pending.spans_loss && !self.is_changing(object)
    }

    /// The volume was lost under an operation.
    fn lost_with_volume(&mut self, id: OperationId) -> Verdict {
        let Some(pending) = self.pending.remove(&id) else {
            return Verdict::Ended;
        };
        self.content_may_have_changed(&pending);
        self.in_doubt.push(pending);
        Verdict::Doubtful
    }

    /// The device has failed under an operation.
    fn failed(&mut self, id: OperationId) -> Verdict {
        let Some(pending) = self.pending.remove(&id) else {
            return Verdict::Ended;
        };
        self.content_may_have_changed(&pending);
        if matches!(pending.action, Action::Read { .. } | Action::Write { .. }) {
            return Verdict::Ended;
        }
        self.metadata_failed.get_or_insert(self.stamp);
        let claims = &pending.claims;
        match claims.names.is_empty() && claims.objects.is_empty() {
            true => self.refused(&pending),
            false => {
                self.in_doubt.push(pending);
                Verdict::Doubtful
            }
        }
    }

    /// An operation was refused, so it has changed nothing.
    fn refused(&mut self, pending: &Pending) -> Verdict {
        match &pending.action {
            Action::Close { object } | Action::Reclaim { object } => {
                self.opens.remove(&(pending.client, *object));
                self.objects[*object].may_be_open.remove(&pending.client);
            }
            _ => self.sharing_refused(pending),
        }
        Verdict::Ended
    }

    /// Follows an operation that has succeeded.
    fn follow(
        &mut self,
        pending: &mut Pending,
        results: &[OperationResult<'_>],
    ) -> Result<Verdict, String> {
        let client = pending.client;
        let missing = || "a result is missing".to_owned();
        let last = results.last();
        match &mut pending.action {
            Action::CreateFile { at, .. }
            | Action::MakeDirectory { at }
            | Action::MakeLink { at, .. } => {
                let (at, node) = (at.clone(), created(&pending.action));
                let (handle, attributes) = found(results)?;
                let fileid = attributes.fileid.ok_or_else(missing)?;
                let is_file = matches!(node, Node::File(_));
                let links = if is_file {
                    Some(1)
                } else {
                    attributes.numlinks
                };
                if attributes.file_type != Some(type_of(&node))
                    || is_file && attributes.size != Some(0)
                    || attributes.numlinks != links
                {
                    return Err(format!("a new object has {attributes:?}"));
                }
                let is_directory = matches!(node, Node::Directory(_));
                let object = self.add((at.0, &at.1), node, handle, fileid)?;
                if is_file {
                    let stateid = opened(results)?;
                    self.opened((client, object), stateid, Modes::BOTH)?;
                }
                if is_directory {
                    self.add_links(at.0, 0);
                }
            }
            Action::Remove { at } => {
                let at = at.clone();
                if let Some(object) = self.lookup(at.0, &at.1) {
                    self.set_name(at.0, &at.1, None);
                    self.add_links(object, -1);
                    self.add_links(at.0, 0);
                }
            }
            Action::Rename { from, to } => {
                let (from, to) = (from.clone(), to.clone());
                self.rename(&from, &to);
            }
            Action::Link { object, at } => {
                let (object, at) = (*object, at.clone());
                self.set_name(at.0, &at.1, Some(object));
                self.add_links(object, 1);
            }
            Action::Lookup { at } => {
                let at = at.clone();
                let (handle, _) = found(results)?;
                let is_settled = !self.is_name_claimed(&at)
                    && self
                        .names_changed
                        .get(&at)
                        .is_none_or(|it| *it < pending.started);
                if is_settled
                    && let Some(object) = self.lookup(at.0, &at.1)
                    && self.objects[object].handle != handle
                {
                    return Err("another object was found".to_owned());
                }
            }
            Action::List { .. } => return self.listed(pending, last),
            Action::ReadLink { object } => {
                let Some(OperationResult::ReadLink(Outcome::Ok(target))) = last else {
                    return Err(missing());
                };
                match &self.objects[*object].node {
                    Node::Link(expected) if expected.as_bytes() == target.0 => {}
                    node => return Err(format!("the target is {target:?} of {node:?}")),
                }
            }
            Action::GetAttributes { object } => {
                let object = *object;
                let Some(OperationResult::GetAttr(Outcome::Ok(attributes))) = last else {
                    return Err(missing());
                };
                self.check_attributes(object, pending, attributes)?;
            }
            Action::Read {
                object,
                offset,
                count,
            } => {
                let Some(OperationResult::Read(Outcome::Ok(ok))) = last else {
                    return Err(missing());
                };
                let Payload::Inline(data) = ok.data else {
                    return Err(missing());
                };
                let (object, offset, count) = (*object, *offset, u64::from(*count));
                let possible = self.possible(pending);
                let checked = possible.check_read((offset, count), data, ok.eof);
                checked.map_err(|error| format!("object {object}: {error}"))?;
                self.bytes_judged += data.len() as u64;
                if self.is_settled(pending, object) {
                    self.narrow(object, offset, data);
                }
            }
            Action::Write { length, stable, .. } => {
                let Some(OperationResult::Write(Outcome::Ok(ok))) = last else {
                    return Err(missing());
                };
                if u64::from(ok.count) != *length || ok.committed < *stable {
                    return Err(format!("{} bytes, {:?}", ok.count, ok.committed));
                }
                self.check_verifier(ok.writeverf, pending.spans_loss)?;
                self.content_changed(pending, ok.committed != Stable::UNSTABLE);
            }
            Action::Commit { .. } => {
                let Some(OperationResult::Commit(Outcome::Ok(verifier))) = last else {
                    return Err(missing());
                };
                self.check_verifier(*verifier, pending.spans_loss)?;
                self.committed(pending);
            }
            Action::Clone {
                length,
                is_copy: true,
                ..
            } => {
                let Some(OperationResult::Copy(Outcome::Ok(ok))) = last else {
                    return Err(missing());
                };
                self.check_verifier(ok.response.writeverf, pending.spans_loss)?;
                let (copied, length) = (ok.response.count, *length);
                if copied != length {
                    return Err(format!("{copied} bytes of {length} are copied"));
                }
                self.content_changed(pending, true);
            }
            Action::Truncate { .. }
            | Action::Allocate { .. }
            | Action::Deallocate { .. }
            | Action::Clone { .. } => self.content_changed(pending, true),
            Action::Seek {
                offset, is_data, ..
            } => {
                let Some(OperationResult::Seek(Outcome::Ok(ok))) = last else {
                    return Err(missing());
                };
                let found = match ok.eof && *is_data {
                    true => None,
                    false => Some(ok.offset),
                };
                let (offset, is_data) = (*offset, *is_data);
                let possible = self.possible(pending);
                let checked = possible.check_seek(offset, is_data, found);
                checked.map_err(|error| error.to_string())?;
            }
            Action::SetXattr {
                object,
                name,
                value,
            } => {
                let (object, name, value) = (*object, name.clone(), value.clone());
                self.xattr_changed(object, &name);
                self.objects[object].xattrs.insert(name, value);
            }
            Action::RemoveXattr { object, name } => {
                let (object, name) = (*object, name.clone());
                self.xattr_changed(object, &name);
                self.objects[object].xattrs.remove(&name);
            }
            Action::GetXattr { object, name } => {
                let Some(OperationResult::GetXattr(Outcome::Ok(ok))) = last else {
                    return Err(missing());
                };
                let key = (*object, xattr_key(name));
                let is_settled = !self.is_name_claimed(&key)
                    && self
                        .names_changed
                        .get(&key)
                        .is_none_or(|it| *it < pending.started);
                let expected = self.objects[*object].xattrs.get(name);
                if is_settled && expected.map(Vec::as_slice) != Some(ok.value.0) {
                    return Err(format!("the value is {:?}, not {expected:?}", ok.value.0));
                }
            }
            Action::Open { object, modes } => {
                let (object, modes) = (*object, *modes);
                self.opened((client, object), opened(results)?, modes)?;
            }
            Action::Reclaim { object } => {
                let (object, modes) = (*object, self.modes_of(client, *object));
                self.opened((client, object), opened(results)?, modes)?;
            }
            Action::Downgrade { object, modes } => {
                let Some(OperationResult::OpenDowngrade(Outcome::Ok(stateid))) = last else {
                    return Err(missing());
                };
                self.downgraded((client, *object), *stateid, *modes);
            }
            Action::Lock { wanted, .. } => {
                let Some(OperationResult::Lock(Outcome::Ok(stateid))) = last else {
                    return Err(missing());
                };
                let held = Held::of(wanted.is_exclusive);
                let place = (wanted.object, wanted.owner);
                self.locked(client, place, (wanted.parts, held), *stateid);
            }
            Action::Unlock {
                object,
                owner,
                parts,
            } => {
                let Some(OperationResult::LockU(Outcome::Ok(stateid))) = last else {
                    return Err(missing());
                };
                let place = (*object, *owner);
                self.locked(client, place, (*parts, Held::Nothing), *stateid);
            }
            Action::Close { object } => {
                let object = *object;
                self.closed(client, object);
            }
            Action::FalseReclaim { .. }
            | Action::TestLock { .. }
            | Action::ReclaimComplete
            | Action::Renew => {}
        }
        Ok(Verdict::Ended)
    }

    fn xattr_changed(&mut self, object: ObjectId, name: &str) {
        self.stamp += 1;
        self.names_changed
            .insert((object, xattr_key(name)), self.stamp);
        self.objects[object].changed = (self.following, self.stamp);
    }

    /// A name is another one from now on.
    pub(super) fn rename(&mut self, from: &Place, to: &Place) {
        let (source, target) = (self.lookup(from.0, &from.1), self.lookup(to.0, &to.1));
        if source == target {
            return;
        }
        self.set_name(from.0, &from.1, None);
        self.set_name(to.0, &to.1, source);
        if let Some(target) = target {
            self.add_links(target, -1);
        }
        self.add_links(from.0, 0);
        self.add_links(to.0, 0);
    }

    /// A page of a directory.
    fn listed(
        &mut self,
        pending: &mut Pending,
        last: Option<&OperationResult<'_>>,
    ) -> Result<Verdict, String> {
        let Some(OperationResult::ReadDir(Outcome::Ok(ok))) = last else {
            return Err("a result is missing".to_owned());
        };
        let started = pending.started;
        let Action::List {
            directory,
            cookie,
            found,
            ..
        } = &mut pending.action
        else {
            return Ok(Verdict::Ended);
        };
        for entry in ok.entries.iter() {
            let fileid = entry.attrs.fileid.unwrap_or_default();
            found.push((entry.name.as_str().to_owned(), fileid));
            *cookie = entry.cookie;
        }
        if !ok.eof {
            return Ok(Verdict::Again { pauses: false });
        }
        let is_settled = |name: &str| {
            let key = (*directory, name.to_owned());
            let changed = self.names_changed.get(&key);
            !self.is_name_claimed(&key) && changed.is_none_or(|it| *it < started)
        };
        let directory = &self.objects[*directory];
        for (name, object) in directory.entries() {
            let count = found.iter().filter(|it| it.0 == *name).count();
            if is_settled(name) && count != 1 {
                return Err(format!("{name} is listed {count} times"));
            }
            let fileid = self.objects[object].fileid;
            if is_settled(name) && !found.contains(&(name.clone(), fileid)) {
                return Err(format!("{name} is listed as another object"));
            }
        }
        let unknown = found.iter().find(|(name, _)| {
            is_settled(name) && !directory.entries().any(|(known, _)| known == name)
        });
        match unknown {
            Some((name, _)) => Err(format!("{name} is listed and does not exist")),
            None => Ok(Verdict::Ended),
        }
    }

    fn check_attributes(
        &mut self,
        object: ObjectId,
        pending: &Pending,
        found: &Attributes<'_>,
    ) -> Result<(), String> {
        let it = &self.objects[object];
        let is_settled = !self.has_claim(object) && it.links_changed < pending.started;
        let is_file = it.file().is_some();
        if found.file_type != Some(type_of(&it.node)) || found.fileid != Some(it.fileid) {
            return Err(format!("object {object} has {found:?}"));
        }
        if is_settled && !it.is_directory() && found.numlinks != Some(it.links) {
            let links = it.links;
            return Err(format!("{:?} links, not {links}", found.numlinks));
        }
        if let (true, Some(size)) = (is_file, found.size) {
            let possible = self.possible(pending);
            if !possible.sizes().contains(&size) {
                let sizes = possible.sizes();
                return Err(format!("size {size}, may be {sizes:?}"));
            }
            if self.is_settled(pending, object) {
                self.narrow_size(object, size)?;
            }
        }
        if pending.spans_loss {
            return Ok(());
        }
        let change = found.change.unwrap_or_default();
        let it = &mut self.objects[object];
        if let Some((seen, at)) = it.change_seen
            && pending.started > at
        {
            let has_changed = it.changed.0 > at && it.changed.1 < pending.started;
            if change < seen || has_changed && change == seen {
                return Err(format!("change {change} after {seen}"));
            }
        }
        self.stamp += 1;
        it.change_seen = Some((change, self.stamp));
        Ok(())
    }
}

/// The handle and attributes at the end of results.
fn found<'r>(results: &[OperationResult<'r>]) -> Result<(Vec<u8>, Attributes<'r>), String> {
    match results {
        [
            ..,
            OperationResult::GetFh(Outcome::Ok(handle)),
            OperationResult::GetAttr(Outcome::Ok(attributes)),
        ] => Ok((handle.0.to_vec(), *attributes)),
        _ => Err("a result is missing".to_owned()),
    }
}

/// The state of an OPEN in results.
fn opened(results: &[OperationResult<'_>]) -> Result<StateId, String> {
    let opened = results.iter().find_map(|it| match it {
        OperationResult::Open(Outcome::Ok(ok)) => Some(ok.stateid),
        _ => None,
    });
    opened.ok_or_else(|| "a result is missing".to_owned())
}
