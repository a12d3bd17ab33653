//! Names, attributes and extended attributes.

use super::{Ticket, Volume, checked, checked_node};
use crate::change::{Change, NewNode, SetAttributes, SetTime, StoredNode, Time};
use crate::codec::Bytes;
use crate::error::Error;
use crate::limits::{FILE_BYTES_MAX, LINKS_MAX, NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use crate::state::{InodeId, Node, ROOT, ROOT_MODE, ShareId, cost};

/// An object to create.
#[derive(Clone, Copy, Debug)]
pub struct NewObject<'a> {
    /// What it is.
    pub node: NewNode<'a>,
    /// Permissions.
    pub mode: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The share that it begins; otherwise it belongs to that of its directory.
    pub share: Option<ShareId>,
}

/// An object that was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created {
    /// The object.
    pub inode: InodeId,
    /// When it is durable.
    pub ticket: Ticket,
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// Where a listing continues after the entry. It stays valid while entries are removed.
    pub cookie: u64,
    /// The name.
    pub name: &'a [u8],
    /// The object.
    pub inode: InodeId,
}

/// Whether an extended attribute is created or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Either.
    Either,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}

fn check_length(name: &[u8]) -> Result<(), Error> {
    match name.len() {
        0 => Err(Error::Invalid),
        1..=NAME_BYTES_MAX => Ok(()),
        _ => Err(Error::NameTooLong),
    }
}

/// Checks the name of an entry.
fn check_name(name: &[u8]) -> Result<(), Error> {
    check_length(name)?;
    let is_reserved = matches!(name, b"." | b"..");
    let is_invalid = is_reserved || name.iter().any(|byte| matches!(byte, 0 | b'/'));
    (!is_invalid).then_some(()).ok_or(Error::Invalid)
}

impl Volume {
    /// The object of a name.
    ///
    /// # Errors
    /// Returns [`Error::NotFound`], or why the name or the directory is not valid.
    pub fn lookup(&self, directory: InodeId, name: &[u8]) -> Result<InodeId, Error> {
        let found = self.directory(directory)?.lookup(name);
        check_name(name)?;
        found.map(InodeId).ok_or(Error::NotFound)
    }

    /// The directory that contains a directory; `None` for the root.
    ///
    /// # Errors
    /// Returns an error if the object is no directory.
    pub fn parent(&self, directory: InodeId) -> Result<Option<InodeId>, Error> {
        let parent = self.directory(directory)?.parent;
        Ok((directory.0 != ROOT).then_some(InodeId(parent)))
    }

    /// The entries of a directory after a cookie; 0 is the beginning.
    ///
    /// # Errors
    /// Returns an error if the object is no directory.
    pub fn entries(
        &self,
        directory: InodeId,
        after: u64,
    ) -> Result<impl Iterator<Item = DirectoryEntry<'_>>, Error> {
        let begin = std::ops::Bound::Excluded(after);
        let range = (begin, std::ops::Bound::Unbounded);
        let entries = self.directory(directory)?.entries.range(range);
        Ok(entries.map(|(&cookie, (name, inode))| DirectoryEntry {
            cookie,
            name: &name.0,
            inode: InodeId(*inode),
        }))
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// Returns [`Error::NotLink`] for other objects.
    pub fn link_target(&self, inode: InodeId) -> Result<&[u8], Error> {
        match &self.inode(inode)?.node {
            Node::Link(target) => Ok(&target.0),
            _ => Err(Error::NotLink),
        }
    }

    /// Checks that an entry with this name can be added to a directory.
    fn check_new_entry(&self, directory: InodeId, name: &[u8]) -> Result<(), Error> {
        let entries = self.directory(directory)?;
        check_name(name)?;
        if self.inode(directory)?.links == 0 {
            return Err(Error::NotFound);
        }
        match entries.lookup(name) {
            Some(_) => Err(Error::Exists),
            None => Ok(()),
        }
    }

    /// Creates an object.
    ///
    /// # Errors
    /// Returns [`Error::Exists`] if the name exists, or why the object cannot be created.
    pub fn create(
        &mut self,
        directory: InodeId,
        name: &[u8],
        object: &NewObject<'_>,
        now: Time,
    ) -> Result<Created, Error> {
        self.check_new_entry(directory, name)?;
        let node = checked_node(object.node)?;
        let target = match node {
            NewNode::Link(target) => target.len() as u64,
            _ => 0,
        };
        let parent = self.inode(directory)?;
        if matches!(node, NewNode::Directory) && parent.links >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        let share = object.share.map_or(parent.share, |share| share.0);
        self.check_share(share)?;
        self.check_quota(share, 1, 0)?;
        self.check_memory(cost::inode() + cost::entry(name) + target)?;
        let inode = self.state.next_inode;
        let ticket = self.record(&Change::Create {
            directory: directory.0,
            name: Bytes::new(name),
            inode,
            node: StoredNode::of(node),
            mode: object.mode,
            uid: object.uid,
            gid: object.gid,
            share,
            time: checked(now)?,
        })?;
        let inode = InodeId(inode);
        Ok(Created { inode, ticket })
    }

    fn check_share(&self, share: u32) -> Result<(), Error> {
        let shares = &self.state.shares;
        let has_room = shares.len() < crate::layout::SHARES_MAX;
        (has_room || shares.contains_key(&share))
            .then_some(())
            .ok_or(Error::NoSpace)
    }

    /// The part of the volume in the directory of the root with this name, which is created if it
    /// does not exist.
    ///
    /// # Errors
    /// Returns [`Error::Exists`] if the name is that of an object of the root's own part, or why it
    /// cannot be created.
    pub fn part(&mut self, name: &[u8], now: Time) -> Result<(InodeId, ShareId), Error> {
        let root = self.root();
        match self.lookup(root, name) {
            Ok(inode) => {
                let part = self.share(inode)?;
                let is_part = part != self.share(root)?;
                is_part.then_some((inode, part)).ok_or(Error::Exists)
            }
            Err(Error::NotFound) => {
                let is_free = |part: &u32| !self.state.shares.contains_key(part);
                let part = (1..).find(is_free).ok_or(Error::NoSpace)?;
                let object = NewObject {
                    node: NewNode::Directory,
                    mode: ROOT_MODE,
                    uid: 0,
                    gid: 0,
                    share: Some(ShareId(part)),
                };
                let created = self.create(root, name, &object, now)?;
                Ok((created.inode, ShareId(part)))
            }
            Err(error) => Err(error),
        }
    }

    /// Adds a link to an object that is no directory.
    ///
    /// # Errors
    /// Returns why the link cannot be added.
    pub fn link(
        &mut self,
        inode: InodeId,
        directory: InodeId,
        name: &[u8],
        now: Time,
    ) -> Result<Ticket, Error> {
        self.check_new_entry(directory, name)?;
        let object = self.inode(inode)?;
        if object.is_directory() {
            return Err(Error::IsDirectory);
        }
        if object.links >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        if object.share != self.inode(directory)?.share {
            return Err(Error::CrossShare);
        }
        self.check_memory(cost::entry(name))?;
        self.record(&Change::Link {
            inode: inode.0,
            directory: directory.0,
            name: Bytes::new(name),
            time: checked(now)?,
        })
    }

    /// Removes an entry: a link of an object, or an empty directory.
    ///
    /// # Errors
    /// Returns why the entry cannot be removed; never for lack of space. The directory of a part is
    /// never removed.
    pub fn remove(&mut self, directory: InodeId, name: &[u8], now: Time) -> Result<Ticket, Error> {
        let inode = self.lookup(directory, name)?;
        if self.share(inode)? != self.share(directory)? {
            return Err(Error::CrossShare);
        }
        self.check_empty(inode)?;
        let ticket = self.record(&Change::Remove {
            directory: directory.0,
            name: Bytes::new(name),
            time: checked(now)?,
        })?;
        self.reap_if_unused(inode.0);
        Ok(ticket)
    }

    fn check_empty(&self, inode: InodeId) -> Result<(), Error> {
        match &self.inode(inode)?.node {
            Node::Directory(it) if !it.entries.is_empty() => Err(Error::NotEmpty),
            _ => Ok(()),
        }
    }

    /// Moves an entry, and replaces an existing one atomically.
    ///
    /// # Errors
    /// Returns why the entry cannot be moved.
    pub fn rename(
        &mut self,
        from: (InodeId, &[u8]),
        to: (InodeId, &[u8]),
        now: Time,
    ) -> Result<Ticket, Error> {
        let inode = self.lookup(from.0, from.1)?;
        let replaced = match self.lookup(to.0, to.1) {
            Ok(replaced) => Some(replaced),
            Err(Error::NotFound) => None,
            Err(error) => return Err(error),
        };
        if replaced == Some(inode) {
            // Two links of one object: nothing changes.
            return Ok(self.commit());
        }
        self.check_move(inode, to.0)?;
        if let Some(replaced) = replaced {
            if self.share(replaced)? != self.share(to.0)? {
                return Err(Error::CrossShare);
            }
            let is_directory = self.inode(inode)?.is_directory();
            match self.inode(replaced)?.is_directory() {
                true if !is_directory => return Err(Error::IsDirectory),
                false if is_directory => return Err(Error::NotDirectory),
                _ => self.check_empty(replaced)?,
            }
        } else {
            self.check_memory(cost::entry(to.1))?;
        }
        let ticket = self.record(&Change::Rename {
            from: from.0.0,
            old: Bytes::new(from.1),
            to: to.0.0,
            new: Bytes::new(to.1),
            time: checked(now)?,
        })?;
        if let Some(replaced) = replaced {
            self.reap_if_unused(replaced.0);
        }
        Ok(ticket)
    }

    /// Checks that an object can become an entry of a directory.
    fn check_move(&self, inode: InodeId, to: InodeId) -> Result<(), Error> {
        let target = self.inode(to)?;
        let object = self.inode(inode)?;
        if target.links == 0 {
            return Err(Error::NotFound);
        }
        if object.share != target.share {
            return Err(Error::CrossShare);
        }
        if !object.is_directory() {
            return Ok(());
        }
        if target.links >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        // A directory must not become part of itself.
        let mut ancestor = to;
        loop {
            if ancestor == inode {
                return Err(Error::Invalid);
            }
            match self.parent(ancestor)? {
                Some(parent) => ancestor = parent,
                None => return Ok(()),
            }
        }
    }

    /// Sets attributes. A smaller size removes data; a larger one adds a hole.
    ///
    /// # Errors
    /// Returns why the attributes cannot be set.
    pub fn set_attributes(
        &mut self,
        inode: InodeId,
        set: &SetAttributes,
        now: Time,
    ) -> Result<Ticket, Error> {
        self.inode(inode)?;
        let now = checked(now)?;
        if let Some(size) = set.size {
            let old = self.file(inode)?.size;
            if size > FILE_BYTES_MAX {
                return Err(Error::FileTooBig);
            }
            self.check_not_written(inode, size.min(old)..u64::MAX)?;
        }
        let time = |set: Option<SetTime>| match set {
            Some(SetTime::To(time)) => checked(time).map(Some),
            Some(SetTime::Now) => Ok(Some(now)),
            None => Ok(None),
        };
        self.record(&Change::SetAttributes {
            inode: inode.0,
            size: set.size,
            mode: set.mode,
            uid: set.uid,
            gid: set.gid,
            accessed: time(set.accessed)?,
            modified: time(set.modified)?,
            time: now,
        })
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// Returns [`Error::NoXattr`] if it does not exist.
    pub fn xattr(&self, inode: InodeId, name: &[u8]) -> Result<&[u8], Error> {
        let value = self.inode(inode)?.xattrs.get(name);
        value.map(|value| &*value.0).ok_or(Error::NoXattr)
    }

    /// The names of the extended attributes in their order.
    ///
    /// # Errors
    /// Returns [`Error::Stale`] if the object does not exist.
    pub fn xattr_names(&self, inode: InodeId) -> Result<impl Iterator<Item = &[u8]>, Error> {
        Ok(self.inode(inode)?.xattrs.keys().map(|name| &*name.0))
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// Returns why it cannot be set.
    pub fn set_xattr(
        &mut self,
        inode: InodeId,
        (name, value): (&[u8], &[u8]),
        mode: XattrMode,
        now: Time,
    ) -> Result<Ticket, Error> {
        check_length(name)?;
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(Error::XattrTooBig);
        }
        let exists = self.inode(inode)?.xattrs.contains_key(name);
        match mode {
            XattrMode::Create if exists => return Err(Error::Exists),
            XattrMode::Replace if !exists => return Err(Error::NoXattr),
            _ => {}
        }
        self.check_memory(cost::xattr(name.len(), value.len()))?;
        self.record(&Change::SetXattr {
            inode: inode.0,
            name: Bytes::new(name),
            value: Bytes::new(value),
            time: checked(now)?,
        })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// Returns [`Error::NoXattr`] if it does not exist.
    pub fn remove_xattr(
        &mut self,
        inode: InodeId,
        name: &[u8],
        now: Time,
    ) -> Result<Ticket, Error> {
        self.xattr(inode, name)?;
        self.record(&Change::RemoveXattr {
            inode: inode.0,
            name: Bytes::new(name),
            time: checked(now)?,
        })
    }
}
