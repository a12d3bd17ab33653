//! A simple model of a volume: names, attributes, and every byte.

use std::collections::BTreeMap;
use std::rc::Rc;

use files_store::{Error, InodeId, Kind, ShareId, Volume};

/// An object. Bytes that were never written are `None`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    File(Rc<Vec<Option<u8>>>),
    Directory(BTreeMap<Vec<u8>, u64>),
    Link(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Object {
    pub(crate) node: Node,
    pub(crate) links: u32,
    pub(crate) mode: u32,
    pub(crate) parent: u64,
    /// The part of the volume that it belongs to.
    pub(crate) part: u32,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// The objects of a volume.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Model {
    pub(crate) objects: BTreeMap<u64, Object>,
    /// How often each is open.
    pub(crate) opens: BTreeMap<u64, u32>,
    /// The most objects and blocks of each part.
    pub(crate) quotas: BTreeMap<u32, (u64, u64)>,
    pub(crate) last: u64,
}

const NO_QUOTA: (u64, u64) = (u64::MAX, u64::MAX);

pub(crate) const ROOT: u64 = 1;

impl Model {
    pub(crate) fn new() -> Self {
        let root = Object {
            node: Node::Directory(BTreeMap::new()),
            links: 2,
            mode: 0o755,
            parent: ROOT,
            part: 0,
            xattrs: BTreeMap::new(),
        };
        Self {
            objects: BTreeMap::from([(ROOT, root)]),
            opens: BTreeMap::new(),
            quotas: BTreeMap::from([(0, NO_QUOTA)]),
            last: ROOT,
        }
    }

    pub(crate) fn object(&mut self, id: u64) -> &mut Object {
        self.objects.get_mut(&id).expect("exists")
    }

    pub(crate) fn entries(&mut self, id: u64) -> Result<&mut BTreeMap<Vec<u8>, u64>, Error> {
        match self.objects.get_mut(&id).map(|it| &mut it.node) {
            Some(Node::Directory(entries)) => Ok(entries),
            Some(_) => Err(Error::NotDirectory),
            None => Err(Error::Stale),
        }
    }

    pub(crate) fn bytes(&mut self, id: u64) -> Result<&mut Vec<Option<u8>>, Error> {
        match self.objects.get_mut(&id).map(|it| &mut it.node) {
            Some(Node::File(bytes)) => Ok(Rc::make_mut(bytes)),
            Some(Node::Directory(_)) => Err(Error::IsDirectory),
            Some(_) => Err(Error::NotFile),
            None => Err(Error::Stale),
        }
    }

    pub(crate) fn is_directory(&self, id: u64) -> bool {
        matches!(self.objects[&id].node, Node::Directory(_))
    }

    pub(crate) fn create(&mut self, at: u64, name: &[u8], node: Node) -> Result<u64, Error> {
        self.check_new(at, name)?;
        self.last += 1;
        let id = self.last;
        let is_directory = matches!(node, Node::Directory(_));
        let part = self.object(at).part;
        self.objects.insert(
            id,
            Object {
                node,
                links: if is_directory { 2 } else { 1 },
                mode: 0o640,
                parent: at,
                part,
                xattrs: BTreeMap::new(),
            },
        );
        self.entries(at)?.insert(name.to_vec(), id);
        if is_directory {
            self.object(at).links += 1;
        }
        Ok(id)
    }

    /// The part with this name, which may be new.
    pub(crate) fn part(&mut self, name: &[u8]) -> Result<u32, Error> {
        if let Ok(found) = self.lookup(ROOT, name) {
            let part = self.object(found).part;
            return if part == 0 {
                Err(Error::Exists)
            } else {
                Ok(part)
            };
        }
        let part = (1..).find(|part| !self.quotas.contains_key(part));
        let part = part.ok_or(Error::NoSpace)?;
        let id = self.create(ROOT, name, Node::Directory(BTreeMap::new()))?;
        let directory = self.object(id);
        (directory.part, directory.mode) = (part, 0o755);
        self.quotas.insert(part, NO_QUOTA);
        Ok(part)
    }

    fn check_part(&mut self, id: u64, directory: u64) -> Result<(), Error> {
        let is_same = self.object(id).part == self.object(directory).part;
        if is_same {
            Ok(())
        } else {
            Err(Error::CrossShare)
        }
    }

    fn check_new(&mut self, at: u64, name: &[u8]) -> Result<(), Error> {
        let exists = self.entries(at)?.contains_key(name);
        if self.object(at).links == 0 {
            return Err(Error::NotFound);
        }
        if exists { Err(Error::Exists) } else { Ok(()) }
    }

    pub(crate) fn link(&mut self, id: u64, at: u64, name: &[u8]) -> Result<(), Error> {
        self.check_new(at, name)?;
        let object = self.objects.get(&id).ok_or(Error::Stale)?;
        if matches!(object.node, Node::Directory(_)) {
            return Err(Error::IsDirectory);
        }
        self.check_part(id, at)?;
        self.entries(at)?.insert(name.to_vec(), id);
        self.object(id).links += 1;
        Ok(())
    }

    pub(crate) fn remove(&mut self, at: u64, name: &[u8]) -> Result<(), Error> {
        let id = self.lookup(at, name)?;
        self.check_part(id, at)?;
        self.check_empty(id)?;
        self.entries(at)?.remove(name);
        self.unlink(id, at);
        Ok(())
    }

    pub(crate) fn lookup(&mut self, at: u64, name: &[u8]) -> Result<u64, Error> {
        self.entries(at)?.get(name).copied().ok_or(Error::NotFound)
    }

    fn check_empty(&mut self, id: u64) -> Result<(), Error> {
        match self.entries(id) {
            Ok(entries) if !entries.is_empty() => Err(Error::NotEmpty),
            _ => Ok(()),
        }
    }

    fn unlink(&mut self, id: u64, at: u64) {
        if self.is_directory(id) {
            self.object(at).links -= 1;
            self.object(id).links = 0;
        } else {
            self.object(id).links -= 1;
        }
        self.reap(id);
    }

    pub(crate) fn reap(&mut self, id: u64) {
        let is_unused = !self.opens.contains_key(&id);
        if is_unused && self.objects.get(&id).is_some_and(|it| it.links == 0) {
            self.objects.remove(&id);
        }
    }

    pub(crate) fn rename(
        &mut self,
        (from, old): (u64, &[u8]),
        (to, new): (u64, &[u8]),
    ) -> Result<(), Error> {
        let id = self.lookup(from, old)?;
        let replaced = match self.lookup(to, new) {
            Ok(replaced) => Some(replaced),
            Err(Error::NotFound) => None,
            Err(error) => return Err(error),
        };
        if replaced == Some(id) {
            return Ok(());
        }
        if self.object(to).links == 0 {
            return Err(Error::NotFound);
        }
        self.check_part(id, to)?;
        let is_directory = self.is_directory(id);
        if is_directory && self.is_within(to, id) {
            return Err(Error::Invalid);
        }
        if let Some(replaced) = replaced {
            self.check_part(replaced, to)?;
            match self.is_directory(replaced) {
                true if !is_directory => return Err(Error::IsDirectory),
                false if is_directory => return Err(Error::NotDirectory),
                _ => self.check_empty(replaced)?,
            }
            self.entries(to)?.remove(new);
            self.unlink(replaced, to);
        }
        self.entries(from)?.remove(old);
        self.entries(to)?.insert(new.to_vec(), id);
        if is_directory {
            self.object(from).links -= 1;
            self.object(to).links += 1;
        }
        if is_directory || self.objects[&id].links == 1 {
            self.object(id).parent = to;
        }
        Ok(())
    }

    fn is_within(&self, mut at: u64, id: u64) -> bool {
        while at != id && at != ROOT {
            at = self.objects[&at].parent;
        }
        at == id
    }

    /// Compares everything but bytes with a volume. Returns the first difference.
    pub(crate) fn difference(&self, volume: &Volume) -> Option<String> {
        for id in 1..=self.last + 4 {
            let found = volume.attributes(InodeId(id)).ok();
            let (object, found) = match (self.objects.get(&id), found) {
                (None, None) => continue,
                (Some(object), Some(found)) => (object, found),
                (object, found) => return Some(format!("{id}: {object:?} but {found:?}")),
            };
            let (size, kind) = match &object.node {
                Node::File(bytes) => (bytes.len(), Kind::File),
                Node::Directory(entries) => (entries.len(), Kind::Directory),
                Node::Link(target) => (target.len(), Kind::Link),
            };
            let expected = (object.links, object.mode, size as u64, kind);
            if expected != (found.links, found.mode, found.size, found.kind) {
                return Some(format!("{id}: {expected:?} but {found:?}"));
            }
            if found.share.0 != object.part {
                return Some(format!("{id}: part {} but {:?}", object.part, found.share));
            }
            let names = volume.xattr_names(InodeId(id)).expect("exists");
            let xattrs: BTreeMap<_, _> = names
                .map(|name| {
                    let value = volume.xattr(InodeId(id), name).expect("exists");
                    (name.to_vec(), value.to_vec())
                })
                .collect();
            if xattrs != object.xattrs {
                return Some(format!("{id}: other extended attributes"));
            }
            if let Node::Directory(entries) = &object.node {
                let found = volume.entries(InodeId(id), 0).expect("a directory");
                let found: BTreeMap<_, _> = found
                    .map(|entry| (entry.name.to_vec(), entry.inode.0))
                    .collect();
                if found != *entries {
                    return Some(format!("{id}: {entries:?} but {found:?}"));
                }
            }
            if let Node::Link(target) = &object.node
                && volume.link_target(InodeId(id)) != Ok(target)
            {
                return Some(format!("{id}: another target"));
            }
        }
        let quotas = self.quotas.iter().map(|(&part, &quotas)| {
            let found = volume.share_use(ShareId(part));
            (part, quotas, (found.inodes_max, found.blocks_max))
        });
        for (part, expected, found) in quotas {
            if found != expected {
                return Some(format!("part {part}: {expected:?} but {found:?}"));
            }
        }
        None
    }
}
