//! Attributes: GETATTR, VERIFY, NVERIFY, SETATTR.

use files_spec::attributes::Attributes;
use files_spec::operations::{
    OperationNumber, OperationResult, Outcome, SetattrArgs, SetattrOk, share,
};
use files_spec::{Bitmap, Status};
use files_store::{Kind, SetAttributes, SetTime};

use super::Object;
use crate::attributes::{check_modes, supported, to_set};
use crate::execution::Execution;
use crate::place::Place;
use crate::refusal::Refusal;
use crate::server::{Now, Server};
use crate::states::StateUse;
use crate::user::WRITE;

/// The bits of a mode that give the rights of the owner or group.
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
const SET_USER_AND_GROUP: u32 = SET_USER | SET_GROUP;
/// Without this bit, the one for the group has another meaning.
const GROUP_EXECUTES: u32 = 0o0010;

impl Server {
    pub(crate) fn get_attributes(
        &mut self,
        x: &mut Execution,
        chosen: &Bitmap,
    ) -> Result<(), Refusal> {
        let place = x.place()?;
        let text = self.attribute_text(place)?;
        let attributes = self.attributes_of(place, chosen, x.minor_version, &text)?;
        x.push_ok(OperationNumber::GETATTR, &attributes)
    }

    /// Whether the current object has these attributes (RFC 8881 §18.31).
    fn has_attributes(&self, x: &Execution, args: &Attributes<'_>) -> Result<bool, Refusal> {
        let place = x.place()?;
        let numbers = args.numbers();
        if args.rdattr_error.is_some() {
            return Err(Status::INVAL.into());
        }
        check_modes(args)?;
        let text = self.attribute_text(place)?;
        let actual = self.attributes_of(place, &numbers, x.minor_version, &text)?;
        match numbers.difference(supported(x.minor_version)).is_empty() {
            true => Ok(actual == *args),
            false => Err(Status::ATTRNOTSUPP.into()),
        }
    }

    pub(super) fn verify(
        &mut self,
        x: &mut Execution,
        args: &Attributes<'_>,
    ) -> Result<(), Refusal> {
        match self.has_attributes(x, args)? {
            true => x.push(&OperationResult::Verify(Outcome::Ok(()))),
            false => Err(Status::NOT_SAME.into()),
        }
    }

    pub(super) fn verify_differs(
        &mut self,
        x: &mut Execution,
        args: &Attributes<'_>,
    ) -> Result<(), Refusal> {
        match self.has_attributes(x, args)? {
            true => Err(Status::SAME.into()),
            false => x.push(&OperationResult::NVerify(Outcome::Ok(()))),
        }
    }

    /// SETATTR (RFC 8881 §18.30).
    pub(super) fn set_attributes(
        &mut self,
        x: &mut Execution,
        args: &SetattrArgs<'_>,
        now: &Now,
    ) -> Result<(), Refusal> {
        let (object, before) = self.object(x.place()?)?;
        self.check_writable(object)?;
        let mut set = to_set(&args.obj_attributes, before.mode, x.minor_version)?;
        if set.size.is_some() {
            self.check_size(x, args, object, &before, now)?;
        }
        self.check_owner(x, object, &before, &mut set)?;
        if set.size.is_some() {
            set.mode = set.mode.or(self.unprivileged_mode(x, object, &before));
        }
        x.check_room()?;
        let volume = self.volume_mut(object);
        let ticket = volume.set_attributes(object.inode, &set, now.time)?;
        x.await_durable(self.share(object).volume, ticket);
        let attrsset = args.obj_attributes.numbers();
        x.push(&OperationResult::SetAttr(Outcome::Ok(SetattrOk {
            attrsset,
        })))
    }

    /// Checks that the sender may change the size: by an open file, or by its rights.
    fn check_size(
        &mut self,
        x: &Execution,
        args: &SetattrArgs<'_>,
        object: Object,
        before: &files_store::Attributes,
        now: &Now,
    ) -> Result<(), Refusal> {
        match before.kind {
            Kind::File => {}
            Kind::Directory => return Err(Status::ISDIR.into()),
            _ => return Err(Status::INVAL.into()),
        }
        let file = self.file_id(object);
        match self.state_use(x, &args.stateid, file, share::ACCESS_WRITE, now)? {
            StateUse::Open { access } if access & share::ACCESS_WRITE == 0 => {
                Err(Status::OPENMODE.into())
            }
            StateUse::Open { .. } => Ok(()),
            StateUse::Special => self.check_access(x, object, before, WRITE),
        }
    }

    /// Checks that the sender may change mode, owners and times. A change of owners by another user
    /// than 0 removes the rights that the mode gives to those who execute the file.
    fn check_owner(
        &self,
        x: &Execution,
        object: Object,
        before: &files_store::Attributes,
        set: &mut SetAttributes,
    ) -> Result<(), Refusal> {
        let user = self.user_in(x, object);
        if user.is_root() {
            return Ok(());
        }
        let owns = user.uid == before.uid;
        let is_now = |it: Option<SetTime>| it == Some(SetTime::Now);
        let times = [set.accessed, set.modified];
        let only_now = times.iter().all(|it| it.is_none() || is_now(*it));
        if times.iter().any(Option::is_some) && !owns {
            match only_now {
                true => self.check_access(x, object, before, WRITE)?,
                false => return Err(Status::PERM.into()),
            }
        }
        if !owns && (set.mode.is_some() || set.uid.is_some() || set.gid.is_some()) {
            return Err(Status::PERM.into());
        }
        let uid_stays = set.uid.is_none_or(|uid| uid == before.uid);
        let gid_stays = set.gid.is_none_or(|gid| gid == before.gid);
        let joins = set.gid.is_none_or(|gid| user.is_member(gid));
        if !uid_stays || !gid_stays && !joins {
            return Err(Status::PERM.into());
        }
        if !gid_stays && before.kind == Kind::File {
            let mode = set.mode.unwrap_or(before.mode);
            set.mode = Some(mode & !SET_USER_AND_GROUP);
        }
        Ok(())
    }

    /// The mode of a file after a change of its data by another user than 0: those who execute it
    /// do not get the rights of its owner or group any more. `None` if it stays. Clients leave this
    /// to servers.
    pub(super) fn unprivileged_mode(
        &self,
        x: &Execution,
        object: Object,
        before: &files_store::Attributes,
    ) -> Option<u32> {
        let mut lost = before.mode & SET_USER;
        if before.mode & GROUP_EXECUTES != 0 {
            lost |= before.mode & SET_GROUP;
        }
        (lost != 0 && !self.user_in(x, object).is_root()).then_some(before.mode & !lost)
    }

    /// Removes the rights that a change of the data by the sender removes.
    pub(super) fn remove_privileges(
        &mut self,
        x: &mut Execution,
        object: Object,
        before: &files_store::Attributes,
        now: &Now,
    ) -> Result<(), Refusal> {
        let mode = self.unprivileged_mode(x, object, before);
        if mode.is_none() {
            return Ok(());
        }
        let set = SetAttributes {
            mode,
            ..SetAttributes::default()
        };
        let volume = self.volume_mut(object);
        let ticket = volume.set_attributes(object.inode, &set, now.time)?;
        x.await_durable(self.share(object).volume, ticket);
        Ok(())
    }

    /// Checks that the current object is a regular file, and returns it with its attributes.
    ///
    /// # Errors
    /// `NFS4ERR_ISDIR`, `NFS4ERR_SYMLINK` or `NFS4ERR_WRONG_TYPE` (RFC 8881 §15.1.2.9).
    pub(super) fn regular_file(
        &self,
        place: Place,
    ) -> Result<(Object, files_store::Attributes), Refusal> {
        if place == Place::Root {
            return Err(Status::ISDIR.into());
        }
        let (object, attributes) = self.object(place)?;
        let status = match attributes.kind {
            Kind::File => return Ok((object, attributes)),
            Kind::Directory => Status::ISDIR,
            Kind::Link => Status::SYMLINK,
            _ => Status::WRONG_TYPE,
        };
        Err(status.into())
    }
}
