//! Operations of minor version 2: holes, clones (RFC 7862) and extended attributes (RFC 8276).

use files_spec::Status;
use files_spec::name::XattrName;
use files_spec::operations::{
    CloneArgs, CopyArgs, CopyOk, CopyRequirements, GetXattrOk, ListXattrsArgs, ListXattrsOk,
    Operation, OperationResult, Outcome, RangeArgs, SeekArgs, SeekOk, SetXattrArgs, SetXattrOption,
    WriteResponse, seek_what, share,
};
use files_spec::types::{Stable, StateId};
use files_spec::xdr::{List, Opaque, padding};
use files_store::{Error, Seek, XattrMode};

use super::{Object, change_info};
use crate::execution::Execution;
use crate::limits::SHARED_COPY_BYTES_MAX;
use crate::place::Place;
use crate::refusal::Refusal;
use crate::server::{Now, Server};
use crate::states::StateUse;
use crate::user::{READ, WRITE};

/// Both ends of a range that files share are multiples of it, in bytes.
const BLOCK_BYTES: u64 = files_store::limits::BLOCK_BYTES;
/// Bytes of a result of LISTXATTRS without its names: cookie, number of names, end.
const LIST_BYTES: usize = 16;

impl Server {
    /// Executes an operation of minor version 2; `None` for other operations.
    pub(super) fn execute_version_2(
        &mut self,
        x: &mut Execution,
        operation: &Operation<'_>,
        now: &Now,
    ) -> Option<Result<(), Refusal>> {
        if x.minor_version < 2 {
            return None;
        }
        Some(match operation {
            Operation::Allocate(args) => self.allocate(x, args, now),
            Operation::Deallocate(args) => self.deallocate(x, args, now),
            Operation::Seek(args) => self.seek(x, args, now),
            Operation::Clone(args) => self.clone_range(x, args, now),
            Operation::Copy(args) => self.copy(x, args, now),
            Operation::GetXattr(name) => self.get_xattr(x, *name),
            Operation::SetXattr(args) => self.set_xattr(x, args, now),
            Operation::ListXattrs(args) => self.list_xattrs(x, args),
            Operation::RemoveXattr(name) => self.remove_xattr(x, *name, now),
            _ => return None,
        })
    }

    /// The current regular file, which a state identifier or the rights of the user permit to
    /// write, for a change of its data.
    pub(super) fn writable_file(
        &mut self,
        x: &mut Execution,
        id: &StateId,
        now: &Now,
    ) -> Result<Object, Refusal> {
        let (object, attributes) = self.regular_file(x.place()?)?;
        self.check_writable(object)?;
        let file = self.file_id(object);
        match self.state_use(x, id, file, share::ACCESS_WRITE, now)? {
            StateUse::Open { access } if access & share::ACCESS_WRITE == 0 => {
                return Err(Status::OPENMODE.into());
            }
            StateUse::Open { .. } => {}
            StateUse::Special => self.check_data_access(x, object, &attributes, WRITE)?,
        }
        self.remove_privileges(x, object, &attributes, now)?;
        Ok(object)
    }

    /// A regular file that a state identifier or the rights of the user permit to read.
    pub(super) fn readable_file(
        &mut self,
        x: &Execution,
        place: Place,
        id: &StateId,
        now: &Now,
    ) -> Result<(Object, files_store::Attributes), Refusal> {
        let (object, attributes) = self.regular_file(place)?;
        let file = self.file_id(object);
        // An open to write permits to read, too, because clients complete pages.
        match self.state_use(x, id, file, share::ACCESS_READ, now)? {
            StateUse::Open { .. } => {}
            StateUse::Special => self.check_data_access(x, object, &attributes, READ)?,
        }
        Ok((object, attributes))
    }

    fn allocate(&mut self, x: &mut Execution, args: &RangeArgs, now: &Now) -> Result<(), Refusal> {
        let object = self.writable_file(x, &args.stateid, now)?;
        x.check_room()?;
        let volume = self.volume_mut(object);
        let ticket = volume.allocate(object.inode, args.offset, args.length, now.time)?;
        x.await_durable(self.share(object).volume, ticket);
        x.push(&OperationResult::Allocate(Outcome::Ok(())))
    }

    fn deallocate(
        &mut self,
        x: &mut Execution,
        args: &RangeArgs,
        now: &Now,
    ) -> Result<(), Refusal> {
        let object = self.writable_file(x, &args.stateid, now)?;
        x.check_room()?;
        let volume = self.volume_mut(object);
        let ticket = volume.deallocate(object.inode, args.offset, args.length, now.time)?;
        x.await_durable(self.share(object).volume, ticket);
        x.push(&OperationResult::Deallocate(Outcome::Ok(())))
    }

    fn seek(&mut self, x: &mut Execution, args: &SeekArgs, now: &Now) -> Result<(), Refusal> {
        let (object, attributes) = self.readable_file(x, x.place()?, &args.stateid, now)?;
        let what = match args.what {
            seek_what::DATA => Seek::Data,
            seek_what::HOLE => Seek::Hole,
            _ => return Err(Status::UNION_NOTSUPP.into()),
        };
        let found = match self.volume(object).seek(object.inode, args.offset, what) {
            Err(Error::Invalid) => return Err(Status::NXIO.into()),
            found => found?,
        };
        let offset = found.unwrap_or(attributes.size);
        let eof = offset >= attributes.size;
        x.push(&OperationResult::Seek(Outcome::Ok(SeekOk { eof, offset })))
    }

    /// CLONE from the saved into the current file.
    fn clone_range(
        &mut self,
        x: &mut Execution,
        args: &CloneArgs,
        now: &Now,
    ) -> Result<(), Refusal> {
        let saved = x.saved.place.ok_or(Status::NOFILEHANDLE)?;
        let (from, _) = self.readable_file(x, saved, &args.src_stateid, now)?;
        let to = self.writable_file(x, &args.dst_stateid, now)?;
        if from.share != to.share {
            return Err(Status::XDEV.into());
        }
        x.check_room()?;
        let source = (from.inode, args.src_offset);
        let target = (to.inode, args.dst_offset);
        let volume = self.volume_mut(to);
        let ticket = volume.clone_range(source, target, args.count, now.time)?;
        x.await_durable(self.share(to).volume, ticket);
        x.push(&OperationResult::Clone(Outcome::Ok(())))
    }

    /// COPY from the saved into the current file, at once and in order: the files share the blocks,
    /// as after CLONE. A range whose last block is in the way is copied without it, and the reply
    /// is short. A range of which no whole block can be shared is not supported: the client reads
    /// and writes it.
    fn copy(&mut self, x: &mut Execution, args: &CopyArgs<'_>, now: &Now) -> Result<(), Refusal> {
        let saved = x.saved.place.ok_or(Status::NOFILEHANDLE)?;
        if !args.source_server.is_empty() {
            return Err(Status::NOTSUPP.into());
        }
        let (from, source) = self.readable_file(x, saved, &args.src_stateid, now)?;
        let (to, target) = self.regular_file(x.place()?)?;
        self.check_writable(to)?;
        let rest = source.size.checked_sub(args.src_offset);
        let rest = rest.ok_or(Status::INVAL)?;
        let asked = match args.count {
            0 => rest,
            count if count <= rest => count,
            // It ends behind the source.
            _ => return Err(Status::INVAL.into()),
        };
        let end = args.dst_offset.checked_add(asked).ok_or(Status::FBIG)?;
        let source_end = args.src_offset + asked;
        if from == to && args.src_offset < end && args.dst_offset < source_end {
            return Err(Status::INVAL.into());
        }
        if from.share != to.share {
            return Err(Status::NOTSUPP.into());
        }
        let is_whole = |bytes: u64| bytes.is_multiple_of(BLOCK_BYTES);
        let ends_with_source = asked == rest && end >= target.size;
        let count = match asked {
            asked if asked > SHARED_COPY_BYTES_MAX => SHARED_COPY_BYTES_MAX,
            asked if is_whole(asked) || ends_with_source => asked,
            asked => asked - asked % BLOCK_BYTES,
        };
        if asked > 0 && (count == 0 || !is_whole(args.src_offset) || !is_whole(args.dst_offset)) {
            return Err(Status::NOTSUPP.into());
        }
        // This removes privileges of the file, so that it is the last check.
        let to = self.writable_file(x, &args.dst_stateid, now)?;
        x.check_room()?;
        if count > 0 {
            let source = (from.inode, args.src_offset);
            let target = (to.inode, args.dst_offset);
            let volume = self.volume_mut(to);
            let ticket = volume.clone_range(source, target, count, now.time)?;
            x.await_durable(self.share(to).volume, ticket);
        }
        let ok = CopyOk {
            response: WriteResponse {
                callback_id: None,
                count,
                // The data of the source may be unstable.
                committed: Stable::UNSTABLE,
                writeverf: self.write_verifier(),
            },
            requirements: CopyRequirements {
                consecutive: true,
                synchronous: true,
            },
        };
        x.push(&OperationResult::Copy(Outcome::Ok(ok)))
    }

    fn get_xattr(&mut self, x: &mut Execution, name: XattrName<'_>) -> Result<(), Refusal> {
        let place = x.place()?;
        if place == Place::Root {
            return Err(Status::NOXATTR.into());
        }
        let (object, attributes) = self.object(place)?;
        self.check_access(x, object, &attributes, READ)?;
        let value = self.volume(object).xattr(object.inode, name.as_bytes())?;
        let value = Opaque(value);
        x.push(&OperationResult::GetXattr(Outcome::Ok(GetXattrOk {
            value,
        })))
    }

    /// The current object, whose extended attributes may be changed.
    fn xattr_object(&self, x: &Execution) -> Result<(Object, files_store::Attributes), Refusal> {
        let (object, attributes) = self.object(x.place()?)?;
        self.check_writable(object)?;
        self.check_access(x, object, &attributes, WRITE)?;
        x.check_room()?;
        Ok((object, attributes))
    }

    fn set_xattr(
        &mut self,
        x: &mut Execution,
        args: &SetXattrArgs<'_>,
        now: &Now,
    ) -> Result<(), Refusal> {
        let mode = match args.option {
            SetXattrOption::EITHER => XattrMode::Either,
            SetXattrOption::CREATE => XattrMode::Create,
            SetXattrOption::REPLACE => XattrMode::Replace,
            _ => return Err(Status::BADXDR.into()),
        };
        let (object, before) = self.xattr_object(x)?;
        let volume = self.volume_mut(object);
        let attribute = (args.key.as_bytes(), args.value.0);
        let ticket = volume.set_xattr(object.inode, attribute, mode, now.time)?;
        x.await_durable(self.share(object).volume, ticket);
        let changed = change_info(before.change, self.change_of(object)?);
        x.push(&OperationResult::SetXattr(Outcome::Ok(changed)))
    }

    fn remove_xattr(
        &mut self,
        x: &mut Execution,
        name: XattrName<'_>,
        now: &Now,
    ) -> Result<(), Refusal> {
        let (object, before) = self.xattr_object(x)?;
        let volume = self.volume_mut(object);
        let ticket = volume.remove_xattr(object.inode, name.as_bytes(), now.time)?;
        x.await_durable(self.share(object).volume, ticket);
        let changed = change_info(before.change, self.change_of(object)?);
        x.push(&OperationResult::RemoveXattr(Outcome::Ok(changed)))
    }

    /// LISTXATTRS: a cookie is the number of names before it.
    fn list_xattrs(&mut self, x: &mut Execution, args: &ListXattrsArgs) -> Result<(), Refusal> {
        let place = x.place()?;
        let mut names = Vec::new();
        let mut eof = true;
        if place != Place::Root {
            let (object, attributes) = self.object(place)?;
            self.check_access(x, object, &attributes, READ)?;
            let skipped = usize::try_from(args.cookie).unwrap_or(usize::MAX);
            let all = self.volume(object).xattr_names(object.inode)?.skip(skipped);
            let mut room = (args.maxcount as usize)
                .checked_sub(LIST_BYTES)
                .ok_or(Status::TOOSMALL)?;
            for name in all {
                let length = 4 + name.len() + padding(name.len());
                if length > room || names.len() == files_spec::limits::XATTR_NAMES_MAX {
                    eof = false;
                    break;
                }
                room -= length;
                names.push(XattrName::new(name).map_err(|_| Status::SERVERFAULT)?);
            }
        }
        if names.is_empty() && !eof {
            return Err(Status::TOOSMALL.into());
        }
        let listed = ListXattrsOk {
            cookie: args.cookie.saturating_add(names.len() as u64),
            names: List::new(&names),
            eof,
        };
        x.push(&OperationResult::ListXattrs(Outcome::Ok(listed)))
    }
}
