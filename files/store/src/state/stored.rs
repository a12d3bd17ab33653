//! The byte form of the whole state, the body of a checkpoint.

use std::collections::BTreeMap;

use super::{Directory, File, Inconsistent, Inode, Node, ShareUse, State};
use crate::codec::{Bytes, Malformed, Reader, Stored, put_list};
use crate::layout::Uuid;
use crate::ranges::Ranges;
use crate::space::Run;
use crate::state::cost;

impl State {
    /// Appends the state without its space, which follows from the files.
    pub(crate) fn put(&self, to: &mut Vec<u8>) {
        self.boots.put(to);
        self.next_inode.put(to);
        (self.shares.len() as u32).put(to);
        for (id, share) in &self.shares {
            (*id, (share.inodes_max, share.blocks_max)).put(to);
        }
        put_list(self.orphans.len(), self.orphans.iter(), to);
        (self.inodes.len() as u64).put(to);
        for (id, inode) in &self.inodes {
            id.put(to);
            inode.put(to);
        }
    }

    /// The state of a byte form.
    pub(crate) fn get(uuid: Uuid, data: Run, bytes: &[u8]) -> Result<Self, Inconsistent> {
        let mut state = Self::new(uuid, data);
        state.delete(super::ROOT)?;
        state.read(&mut Reader(bytes)).map_err(|_| Inconsistent)?;
        state.load_space(data)?;
        Ok(state)
    }

    fn read(&mut self, from: &mut Reader<'_>) -> Result<(), Malformed> {
        self.boots = Stored::get(from)?;
        self.next_inode = Stored::get(from)?;
        let shares: Vec<(u32, (u64, u64))> = Stored::get(from)?;
        for (id, (inodes_max, blocks_max)) in shares {
            let share = ShareUse {
                inodes_max,
                blocks_max,
                ..ShareUse::default()
            };
            self.shares.insert(id, share);
        }
        self.orphans = Vec::get(from)?.into_iter().collect();
        for _ in 0..u64::get(from)? {
            let id = u64::get(from)?;
            let inode = Inode::get(from)?;
            if id >= self.next_inode || self.inodes.contains_key(&id) {
                return Err(Malformed);
            }
            self.add(id, inode);
        }
        from.finish()
    }
}

impl Stored for Inode {
    fn put(&self, to: &mut Vec<u8>) {
        for word in [
            self.generation,
            self.mode,
            self.uid,
            self.gid,
            self.links,
            self.share,
        ] {
            word.put(to);
        }
        self.change.put(to);
        for time in [self.accessed, self.modified, self.changed, self.created] {
            time.put(to);
        }
        (self.xattrs.len() as u32).put(to);
        for (name, value) in &self.xattrs {
            name.put(to);
            value.put(to);
        }
        self.node.put(to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut inode = Self {
            generation: Stored::get(from)?,
            mode: Stored::get(from)?,
            uid: Stored::get(from)?,
            gid: Stored::get(from)?,
            links: Stored::get(from)?,
            share: Stored::get(from)?,
            change: Stored::get(from)?,
            accessed: Stored::get(from)?,
            modified: Stored::get(from)?,
            changed: Stored::get(from)?,
            created: Stored::get(from)?,
            xattrs: Vec::<(Bytes, Bytes)>::get(from)?.into_iter().collect(),
            xattr_bytes: 0,
            node: Stored::get(from)?,
        };
        let bytes = inode
            .xattrs
            .iter()
            .map(|(name, value)| cost::xattr(name.len(), value.len()));
        inode.xattr_bytes = bytes.sum();
        Ok(inode)
    }
}

impl Stored for Node {
    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::File(file) => {
                to.push(1);
                file.put(to);
            }
            Self::Directory(directory) => {
                to.push(2);
                directory.put(to);
            }
            Self::Link(target) => {
                to.push(3);
                target.put(to);
            }
            Self::Block(device) => {
                to.push(4);
                device.put(to);
            }
            Self::Character(device) => {
                to.push(5);
                device.put(to);
            }
            Self::Socket => to.push(6),
            Self::Fifo => to.push(7),
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match u8::get(from)? {
            1 => Self::File(Stored::get(from)?),
            2 => Self::Directory(Stored::get(from)?),
            3 => Self::Link(Stored::get(from)?),
            4 => Self::Block(Stored::get(from)?),
            5 => Self::Character(Stored::get(from)?),
            6 => Self::Socket,
            7 => Self::Fifo,
            _ => return Err(Malformed),
        })
    }
}

impl Stored for File {
    fn put(&self, to: &mut Vec<u8>) {
        self.size.put(to);
        (self.blocks.len() as u32).put(to);
        for (block, run) in &self.blocks {
            (*block, *run).put(to);
        }
        (self.written.len() as u32).put(to);
        for range in self.written.iter() {
            (range.start, range.end).put(to);
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let size = Stored::get(from)?;
        let blocks: BTreeMap<u64, (u64, u64)> =
            Vec::<(u64, (u64, u64))>::get(from)?.into_iter().collect();
        let mut written = Ranges::default();
        for (start, end) in Vec::<(u64, u64)>::get(from)? {
            written.insert(start..end);
        }
        let counts = blocks.values().map(|run| run.1);
        let block_count = counts.fold(0_u64, u64::saturating_add);
        Ok(Self {
            size,
            blocks,
            block_count,
            written,
        })
    }
}

impl Stored for Directory {
    fn put(&self, to: &mut Vec<u8>) {
        self.parent.put(to);
        self.next_cookie.put(to);
        (self.entries.len() as u32).put(to);
        for (cookie, (name, id)) in &self.entries {
            (*cookie, *id).put(to);
            name.put(to);
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut directory = Self::new(Stored::get(from)?);
        directory.next_cookie = Stored::get(from)?;
        for ((cookie, id), name) in Vec::<((u64, u64), Bytes)>::get(from)? {
            directory
                .insert_at(cookie, name, id)
                .map_err(|_| Malformed)?;
        }
        Ok(directory)
    }
}
