//! Names: LOOKUP, LOOKUPP, ACCESS, READLINK, READDIR, CREATE, REMOVE, RENAME, LINK.

use files_spec::operations::{
    AccessArgs, AccessOk, CreateArgs, CreateOk, OperationResult, Outcome, RenameArgs, RenameOk,
};
use files_spec::readdir::{Entry, ReaddirArgs, ReaddirWriter};
use files_spec::types::{CreateType, access};
use files_spec::xdr::{EncodeError, Opaque};
use files_spec::{Name, Status};
use files_store::{Attributes, Device, Kind, NewNode, NewObject, SetAttributes};

use super::{Object, change_info};
use crate::attributes::{split_mode, to_set};
use crate::execution::Execution;
use crate::place::{Place, Share};
use crate::refusal::Refusal;
use crate::server::{Now, Server};
use crate::user::{EXECUTE, READ, User, WRITE};

/// Cookies 0 to 2 belong to the protocol (RFC 8881 §18.23).
const FIRST_COOKIE: u64 = 3;
/// Group of the directory for new objects.
const SET_GROUP: u32 = 0o2000;
/// Only owners remove entries.
const STICKY: u32 = 0o1000;

/// An object that an operation creates.
pub(super) struct Creation<'n> {
    node: NewNode<'n>,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// What is set after the creation.
    pub(super) rest: SetAttributes,
}

/// The owner, group and mode of a new object.
pub(super) fn creation<'n>(
    node: NewNode<'n>,
    args: &files_spec::attributes::Attributes<'_>,
    directory: &Attributes,
    user: &User,
    minor_version: u32,
) -> Result<Creation<'n>, Refusal> {
    let set = to_set(args, 0, minor_version)?;
    let (mut mode, mut rest) = split_mode(set);
    let inherits = directory.mode & SET_GROUP != 0;
    if inherits && matches!(node, NewNode::Directory) {
        mode |= SET_GROUP;
    }
    let group = match inherits {
        true => directory.gid,
        false => user.gid,
    };
    let (uid, gid) = (
        rest.uid.take().unwrap_or(user.uid),
        rest.gid.take().unwrap_or(group),
    );
    let is_own = uid == user.uid && (gid == group || user.is_member(gid));
    if !is_own && !user.is_root() {
        return Err(Status::PERM.into());
    }
    Ok(Creation {
        node,
        mode,
        uid,
        gid,
        rest,
    })
}

impl Server {
    /// The current directory with its attributes.
    pub(super) fn directory(&self, place: Place) -> Result<(Object, Attributes), Refusal> {
        let (object, attributes) = self.object(place)?;
        match attributes.kind {
            Kind::Directory => Ok((object, attributes)),
            // RFC 8881 §18.13.
            Kind::Link => Err(Status::SYMLINK.into()),
            _ => Err(Status::NOTDIR.into()),
        }
    }

    /// A directory in which the sender may change entries.
    pub(super) fn changeable(
        &self,
        x: &Execution,
        place: Place,
    ) -> Result<(Object, Attributes), Refusal> {
        let (object, attributes) = self.directory(place)?;
        self.check_writable(object)?;
        self.check_access(x, object, &attributes, WRITE | EXECUTE)?;
        Ok((object, attributes))
    }

    /// The object of a name in the current directory.
    pub(super) fn find(&self, x: &Execution, name: Name<'_>) -> Result<Place, Refusal> {
        if let Place::Root = x.place()? {
            let mut shares = self.shares.iter();
            let share = shares.position(|it| it.name == name.as_str() && it.admits(x.address));
            let share = share.ok_or(Status::NOENT)?;
            let inode = self.shares[share].directory;
            return Ok(Place::Object { share, inode });
        }
        let (directory, attributes) = self.directory(x.place()?)?;
        self.check_access(x, directory, &attributes, EXECUTE)?;
        let volume = self.volume(directory);
        let inode = volume.lookup(directory.inode, name.as_bytes())?;
        let found = Object { inode, ..directory };
        self.check_part(found)?;
        Ok(found.place())
    }

    /// Checks that an object belongs to the share, not to one within it.
    fn check_part(&self, object: Object) -> Result<(), Refusal> {
        let attributes = self.volume(object).attributes(object.inode)?;
        match attributes.share == self.share(object).part {
            true => Ok(()),
            false => Err(Status::ACCESS.into()),
        }
    }

    pub(super) fn lookup(&mut self, x: &mut Execution, name: Name<'_>) -> Result<(), Refusal> {
        let found = self.find(x, name)?;
        x.push(&OperationResult::Lookup(Outcome::Ok(())))?;
        x.go_to(found);
        Ok(())
    }

    /// The directory that contains the current one.
    pub(super) fn parent(&self, x: &Execution) -> Result<Place, Refusal> {
        let place = x.place()?;
        if place == Place::Root {
            // RFC 8881 §18.14.
            return Err(Status::NOENT.into());
        }
        let (directory, attributes) = self.directory(place)?;
        if directory.inode == self.share(directory).directory {
            return Ok(Place::Root);
        }
        self.check_access(x, directory, &attributes, EXECUTE)?;
        let parent = self.volume(directory).parent(directory.inode)?;
        let inode = parent.ok_or(Status::NOENT)?;
        Ok(Object { inode, ..directory }.place())
    }

    pub(super) fn look_up_parent(&mut self, x: &mut Execution) -> Result<(), Refusal> {
        let parent = self.parent(x)?;
        x.push(&OperationResult::LookupP(Outcome::Ok(())))?;
        x.go_to(parent);
        Ok(())
    }

    /// ACCESS (RFC 8881 §18.1).
    pub(super) fn access(&mut self, x: &mut Execution, args: AccessArgs) -> Result<(), Refusal> {
        const CHANGES: u32 = access::MODIFY | access::EXTEND | access::DELETE;
        let place = x.place()?;
        let (known, granted) = if place == Place::Root {
            let known = access::READ | access::LOOKUP | CHANGES;
            (known, access::READ | access::LOOKUP)
        } else {
            let (object, attributes) = self.object(place)?;
            let user = self.user_in(x, object);
            let (of_execute, changes) = match attributes.kind {
                Kind::Directory => (access::LOOKUP, CHANGES),
                _ => (access::EXECUTE, access::MODIFY | access::EXTEND),
            };
            let is_writable = !self.share(object).is_read_only;
            let (xattr_read, xattr_write) = match x.minor_version {
                1 => (0, 0),
                _ => (access::XATTR_READ | access::XATTR_LIST, access::XATTR_WRITE),
            };
            let granted = [
                (READ, access::READ | xattr_read, true),
                (EXECUTE, of_execute, true),
                (WRITE, changes | xattr_write, is_writable),
            ];
            let granted = granted
                .into_iter()
                .filter(|(wanted, _, is_possible)| *is_possible && user.may(&attributes, *wanted));
            let granted = granted.fold(0, |all, (_, bits, _)| all | bits);
            (
                access::READ | of_execute | changes | xattr_read | xattr_write,
                granted,
            )
        };
        let ok = AccessOk {
            supported: args.access & known,
            access: args.access & granted,
        };
        x.push(&OperationResult::Access(Outcome::Ok(ok)))
    }

    pub(super) fn read_link(&mut self, x: &mut Execution) -> Result<(), Refusal> {
        let place = x.place()?;
        if place == Place::Root {
            return Err(Status::WRONG_TYPE.into());
        }
        let (object, _) = self.object(place)?;
        let target = self.volume(object).link_target(object.inode)?;
        x.push(&OperationResult::ReadLink(Outcome::Ok(Opaque(target))))
    }

    /// READDIR (RFC 8881 §18.23). Cookies stay valid while the directory changes, so the verifier is
    /// always zero.
    pub(super) fn read_directory(
        &mut self,
        x: &mut Execution,
        args: &ReaddirArgs,
    ) -> Result<(), Refusal> {
        let place = x.place()?;
        if args.cookie != 0 && args.cookieverf != [0; 8] {
            return Err(Status::NOT_SAME.into());
        }
        if (1..FIRST_COOKIE).contains(&args.cookie) {
            return Err(Status::BAD_COOKIE.into());
        }
        let minor_version = x.minor_version;
        if place == Place::Root {
            let client = x.address;
            let shares = self.shares.iter().enumerate();
            // Without the attributes of one whose device is gone, there would be no list.
            let is_there = |share: &Share| !self.volumes[share.volume.0].is_lost();
            let shares = shares.filter(|(_, share)| share.admits(client) && is_there(share));
            let entries = shares.map(|(index, share)| {
                let inode = share.directory;
                let place = Place::Object {
                    share: index,
                    inode,
                };
                (index as u64 + FIRST_COOKIE, share.name.as_bytes(), place)
            });
            let rest = entries.skip_while(|(cookie, ..)| *cookie <= args.cookie);
            return self.list(x, args, minor_version, rest);
        }
        let (directory, attributes) = self.directory(place)?;
        self.check_access(x, directory, &attributes, READ)?;
        let entries = self.volume(directory);
        let entries = entries.entries(directory.inode, args.cookie)?;
        let entries = entries.map(|it| {
            let object = Object {
                inode: it.inode,
                ..directory
            };
            (it.cookie, it.name, object.place())
        });
        self.list(x, args, minor_version, entries)
    }

    /// Writes as many entries as fit.
    fn list<'n>(
        &self,
        x: &mut Execution,
        args: &ReaddirArgs,
        minor_version: u32,
        entries: impl Iterator<Item = (u64, &'n [u8], Place)>,
    ) -> Result<(), Refusal> {
        let mut refused = None;
        let room = x.memory_room();
        let written = x.push_with(|to| {
            let mut writer = ReaddirWriter::begin(to, [0; 8], args.maxcount)?;
            let mut is_empty = true;
            for (cookie, name, place) in entries {
                let entry = self.attribute_text(place).and_then(|text| {
                    let chosen = &args.attr_request;
                    let attrs = self.attributes_of(place, chosen, minor_version, &text)?;
                    let name = Name::new(name).map_err(|_| Status::SERVERFAULT)?;
                    let entry = Entry {
                        cookie,
                        name,
                        attrs,
                    };
                    Ok(writer.push(&entry))
                });
                match entry {
                    Ok(pushed) if pushed? => is_empty = false,
                    Ok(_) if is_empty => return Err(EncodeError::NoSpace),
                    Ok(_) => return writer.finish(false),
                    Err(refusal) => {
                        refused = Some(refusal);
                        return Err(EncodeError::Value);
                    }
                }
            }
            writer.finish(true)
        });
        match (written, refused) {
            (_, Some(refusal)) => Err(refusal),
            (Err(Refusal::Status(Status::REP_TOO_BIG | Status::REP_TOO_BIG_TO_CACHE)), None)
                if args.maxcount as usize <= room =>
            {
                // The limit of the request is smaller than the first entry.
                Err(Status::TOOSMALL.into())
            }
            (written, None) => written,
        }
    }

    /// CREATE (RFC 8881 §18.4), for objects other than regular files.
    pub(super) fn create(
        &mut self,
        x: &mut Execution,
        args: &CreateArgs<'_>,
        now: &Now,
    ) -> Result<(), Refusal> {
        let device = |it: files_spec::types::DeviceNumber| Device {
            major: it.major,
            minor: it.minor,
        };
        let node = match args.objtype {
            CreateType::Directory => NewNode::Directory,
            CreateType::Link(target) => NewNode::Link(target.0),
            CreateType::Block(it) => NewNode::Block(device(it)),
            CreateType::Character(it) => NewNode::Character(device(it)),
            CreateType::Socket => NewNode::Socket,
            CreateType::Fifo => NewNode::Fifo,
            CreateType::Other(_) => return Err(Status::BADTYPE.into()),
        };
        let (directory, before) = self.changeable(x, x.place()?)?;
        let user = self.user_in(x, directory);
        let attributes = &args.createattrs;
        let new = creation(node, attributes, &before, &user, x.minor_version)?;
        if new.rest.size.is_some() {
            return Err(Status::INVAL.into());
        }
        x.check_room()?;
        let created = self.create_object(x, directory, args.objname, &new, now)?;
        let ok = CreateOk {
            cinfo: change_info(before.change, self.change_of(directory)?),
            attrset: attributes.numbers(),
        };
        x.push(&OperationResult::Create(Outcome::Ok(ok)))?;
        x.go_to(created.place());
        Ok(())
    }

    /// Creates an object and sets the rest of its attributes. If the volume becomes busy in
    /// between, the execution remembers the object.
    pub(super) fn create_object(
        &mut self,
        x: &mut Execution,
        directory: Object,
        name: Name<'_>,
        new: &Creation<'_>,
        now: &Now,
    ) -> Result<Object, Refusal> {
        let index = self.share(directory).volume;
        let volume = self.volume_mut(directory);
        let inode = match x.created {
            Some(inode) => inode,
            None => {
                let object = NewObject {
                    node: new.node,
                    mode: new.mode,
                    uid: new.uid,
                    gid: new.gid,
                    share: None,
                };
                let created = volume.create(directory.inode, name.as_bytes(), &object, now.time)?;
                x.await_durable(index, created.ticket);
                x.created = Some(created.inode);
                created.inode
            }
        };
        if new.rest != SetAttributes::default() {
            let ticket = volume.set_attributes(inode, &new.rest, now.time)?;
            x.await_durable(index, ticket);
        }
        Ok(Object { inode, ..directory })
    }

    /// The change attribute of an object.
    pub(super) fn change_of(&self, object: Object) -> Result<u64, Refusal> {
        Ok(self.volume(object).attributes(object.inode)?.change)
    }

    /// Checks the sticky bit of a directory whose entry is to be removed or replaced.
    fn check_sticky(
        &self,
        x: &Execution,
        (directory, attributes): (Object, &Attributes),
        name: Name<'_>,
    ) -> Result<(), Refusal> {
        let user = self.user_in(x, directory);
        if attributes.mode & STICKY == 0 || user.is_root() || user.uid == attributes.uid {
            return Ok(());
        }
        let volume = self.volume(directory);
        let Ok(inode) = volume.lookup(directory.inode, name.as_bytes()) else {
            return Ok(());
        };
        match volume.attributes(inode)?.uid == user.uid {
            true => Ok(()),
            false => Err(Status::ACCESS.into()),
        }
    }

    pub(super) fn remove(
        &mut self,
        x: &mut Execution,
        name: Name<'_>,
        now: &Now,
    ) -> Result<(), Refusal> {
        let (directory, before) = self.changeable(x, x.place()?)?;
        self.check_sticky(x, (directory, &before), name)?;
        x.check_room()?;
        let volume = self.volume_mut(directory);
        let removed = volume.remove(directory.inode, name.as_bytes(), now.time);
        let ticket = removed.map_err(|error| match error {
            // As for LOOKUP: NFS4ERR_XDEV is no status of REMOVE.
            files_store::Error::CrossShare => Refusal::from(Status::ACCESS),
            error => error.into(),
        })?;
        x.await_durable(self.share(directory).volume, ticket);
        let changed = change_info(before.change, self.change_of(directory)?);
        x.push(&OperationResult::Remove(Outcome::Ok(changed)))
    }

    /// RENAME from the saved to the current directory (RFC 8881 §18.26).
    pub(super) fn rename(
        &mut self,
        x: &mut Execution,
        args: &RenameArgs<'_>,
        now: &Now,
    ) -> Result<(), Refusal> {
        let saved = x.saved.place.ok_or(Status::NOFILEHANDLE)?;
        let (from, from_before) = self.changeable(x, saved)?;
        let (to, to_before) = self.changeable(x, x.place()?)?;
        if from.share != to.share {
            return Err(Status::XDEV.into());
        }
        self.check_sticky(x, (from, &from_before), args.oldname)?;
        self.check_sticky(x, (to, &to_before), args.newname)?;
        x.check_room()?;
        let (old, new) = (args.oldname.as_bytes(), args.newname.as_bytes());
        let volume = self.volume_mut(from);
        let renamed = volume.rename((from.inode, old), (to.inode, new), now.time);
        let ticket = renamed.map_err(|error| match Refusal::from(error) {
            // RFC 8881 §18.26: an existing target of another type exists, too.
            Refusal::Status(Status::ISDIR | Status::NOTDIR | Status::NOTEMPTY) => {
                Refusal::Status(Status::EXIST)
            }
            refusal => refusal,
        })?;
        x.await_durable(self.share(to).volume, ticket);
        let ok = RenameOk {
            source_cinfo: change_info(from_before.change, self.change_of(from)?),
            target_cinfo: change_info(to_before.change, self.change_of(to)?),
        };
        x.push(&OperationResult::Rename(Outcome::Ok(ok)))
    }

    /// LINK of the saved object into the current directory (RFC 8881 §18.9).
    pub(super) fn link(
        &mut self,
        x: &mut Execution,
        name: Name<'_>,
        now: &Now,
    ) -> Result<(), Refusal> {
        let saved = x.saved.place.ok_or(Status::NOFILEHANDLE)?;
        let (object, _) = self.object(saved)?;
        let (directory, before) = self.changeable(x, x.place()?)?;
        if object.share != directory.share {
            return Err(Status::XDEV.into());
        }
        x.check_room()?;
        let volume = self.volume_mut(directory);
        let ticket = volume.link(object.inode, directory.inode, name.as_bytes(), now.time)?;
        x.await_durable(self.share(directory).volume, ticket);
        let changed = change_info(before.change, self.change_of(directory)?);
        x.push(&OperationResult::Link(Outcome::Ok(changed)))
    }
}
