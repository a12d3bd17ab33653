//! The effect of each change. It is the same when the change is made and when it is replayed.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Directory, File, Inconsistent, Inode, Node, ROOT, State};
use crate::change::{Change, Mapping, StoredNode, Time};
use crate::codec::Bytes;
use crate::limits::BLOCK_BYTES;
use crate::space::{Run, Space};
use crate::state::cost;

/// The blocks that lie within a range of bytes as a whole.
pub(crate) fn whole_blocks(range: Range<u64>) -> Range<u64> {
    let first = range.start.div_ceil(BLOCK_BYTES);
    first..(range.end / BLOCK_BYTES).max(first)
}

/// The blocks that have a byte of a range.
pub(crate) fn touched_blocks(range: &Range<u64>) -> Range<u64> {
    range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES)
}

/// The inode's file.
fn file(inode: &mut Inode) -> Result<&mut File, Inconsistent> {
    match &mut inode.node {
        Node::File(file) => Ok(file),
        _ => Err(Inconsistent),
    }
}

fn directory(inode: &mut Inode) -> Result<&mut Directory, Inconsistent> {
    match &mut inode.node {
        Node::Directory(directory) => Ok(directory),
        _ => Err(Inconsistent),
    }
}

fn modified(inode: &mut Inode, time: Time) {
    inode.modified = time;
    inode.changed = time;
}

impl State {
    /// Applies a change. Blocks that it frees can be reused when `batch` of the log is durable, or
    /// at once. `allocated` says whether the blocks of its mappings are taken from the free ones
    /// already; a replay takes them.
    pub(crate) fn apply(
        &mut self,
        change: &Change,
        batch: Option<u64>,
        allocated: bool,
    ) -> Result<(), Inconsistent> {
        match change {
            Change::Opened { boots } => self.boots = *boots,
            Change::Create { .. } => self.create(change)?,
            Change::Link {
                inode,
                directory,
                name,
                time,
            } => {
                self.enter(*directory, name, *inode, *time)?;
                self.with(*inode, |it, _| {
                    it.links += 1;
                    it.changed = *time;
                    Ok(())
                })?;
                self.orphans.remove(inode);
            }
            Change::Remove {
                directory,
                name,
                time,
            } => {
                self.leave(*directory, name, *time, true)?;
            }
            Change::Rename {
                from,
                old,
                to,
                new,
                time,
            } => {
                self.rename((*from, old), (*to, new), *time)?;
            }
            Change::SetAttributes { .. } => self.set_attributes(change, batch)?,
            Change::SetXattr {
                inode,
                name,
                value,
                time,
            } => self.with(*inode, |it, _| {
                it.changed = *time;
                it.xattr_bytes += cost::xattr(name.len(), value.len());
                if let Some(old) = it.xattrs.insert(name.clone(), value.clone()) {
                    it.xattr_bytes -= cost::xattr(name.len(), old.len());
                }
                Ok(())
            })?,
            Change::RemoveXattr { inode, name, time } => self.with(*inode, |it, _| {
                it.changed = *time;
                let old = it.xattrs.remove(name).ok_or(Inconsistent)?;
                it.xattr_bytes -= cost::xattr(name.len(), old.len());
                Ok(())
            })?,
            Change::Write {
                inode,
                offset,
                length,
                mappings,
                time,
            } => {
                self.with(*inode, |it, space| {
                    modified(it, *time);
                    let file = file(it)?;
                    map(file, space, mappings, batch, allocated)?;
                    let end = offset.checked_add(*length).ok_or(Inconsistent)?;
                    file.written.insert(*offset..end);
                    file.size = file.size.max(end);
                    Ok(())
                })?;
            }
            Change::Allocate {
                inode,
                mappings,
                size,
                time,
            } => self.with(*inode, |it, space| {
                modified(it, *time);
                let file = file(it)?;
                file.size = file.size.max(*size);
                map(file, space, mappings, batch, allocated)
            })?,
            Change::Deallocate {
                inode,
                offset,
                length,
                time,
            } => {
                self.with(*inode, |it, space| {
                    modified(it, *time);
                    let end = offset.checked_add(*length).ok_or(Inconsistent)?;
                    let file = file(it)?;
                    file.written.remove(*offset..end);
                    unmap(file, space, whole_blocks(*offset..end), batch);
                    Ok(())
                })?;
            }
            Change::Clone { .. } => self.clone_range(change, batch)?,
            Change::Reap { inode } => {
                if !self.orphans.remove(inode) {
                    return Err(Inconsistent);
                }
                let mut inode = self.delete(*inode)?;
                if let Node::File(file) = &mut inode.node {
                    unmap(file, &mut self.space, 0..u64::MAX, batch);
                }
            }
            Change::SetQuota {
                share,
                inodes,
                blocks,
            } => {
                let share = self.share(*share);
                (share.inodes_max, share.blocks_max) = (*inodes, *blocks);
            }
        }
        Ok(())
    }

    fn create(&mut self, change: &Change) -> Result<(), Inconsistent> {
        let Change::Create {
            directory,
            name,
            inode: id,
            node,
            mode,
            uid,
            gid,
            share,
            time,
        } = change
        else {
            return Err(Inconsistent);
        };
        let node = match node {
            StoredNode::File {} => Node::File(File::default()),
            StoredNode::Directory {} => Node::Directory(Directory::new(*directory)),
            StoredNode::Link { target } => Node::Link(target.clone()),
            StoredNode::Block { device } => Node::Block(*device),
            StoredNode::Character { device } => Node::Character(*device),
            StoredNode::Socket {} => Node::Socket,
            StoredNode::Fifo {} => Node::Fifo,
        };
        if *id < self.next_inode {
            return Err(Inconsistent);
        }
        self.next_inode = id + 1;
        let inode = Inode {
            generation: self.boots,
            mode: *mode,
            uid: *uid,
            gid: *gid,
            links: if matches!(node, Node::Directory(_)) {
                2
            } else {
                1
            },
            share: *share,
            change: (u64::from(self.boots) << 32).max(1),
            accessed: *time,
            modified: *time,
            changed: *time,
            created: *time,
            xattrs: BTreeMap::new(),
            xattr_bytes: 0,
            node,
        };
        self.add(*id, inode);
        self.enter(*directory, name, *id, *time)
    }

    /// Adds an entry to a directory.
    fn enter(&mut self, at: u64, name: &Bytes, id: u64, time: Time) -> Result<(), Inconsistent> {
        let is_directory = self.inode(id)?.is_directory();
        self.with(at, |inode, _| {
            modified(inode, time);
            if is_directory {
                inode.links += 1;
            }
            directory(inode)?.insert(name.clone(), id)
        })
    }

    /// Removes an entry from a directory. The object loses the link if `unlinks`.
    fn leave(
        &mut self,
        at: u64,
        name: &Bytes,
        time: Time,
        unlinks: bool,
    ) -> Result<u64, Inconsistent> {
        let id = self.directory(at)?.lookup(&name.0).ok_or(Inconsistent)?;
        let is_directory = self.inode(id)?.is_directory();
        self.with(at, |inode, _| {
            modified(inode, time);
            if is_directory {
                inode.links -= 1;
            }
            directory(inode)?.remove(&name.0)
        })?;
        if unlinks {
            let links = self.with(id, |inode, _| {
                inode.changed = time;
                inode.links = match is_directory {
                    true => 0,
                    false => inode.links.checked_sub(1).ok_or(Inconsistent)?,
                };
                Ok(inode.links)
            })?;
            if links == 0 {
                self.orphans.insert(id);
            }
        }
        Ok(id)
    }

    fn rename(
        &mut self,
        (from, old): (u64, &Bytes),
        (to, new): (u64, &Bytes),
        time: Time,
    ) -> Result<(), Inconsistent> {
        if self.directory(to)?.lookup(&new.0).is_some() {
            self.leave(to, new, time, true)?;
        }
        let id = self.leave(from, old, time, false)?;
        self.enter(to, new, id, time)?;
        self.with(id, |inode, _| {
            inode.changed = time;
            if let Node::Directory(directory) = &mut inode.node {
                directory.parent = to;
            }
            Ok(())
        })
    }

    fn set_attributes(&mut self, change: &Change, batch: Option<u64>) -> Result<(), Inconsistent> {
        let Change::SetAttributes {
            inode,
            size,
            mode,
            uid,
            gid,
            accessed,
            modified,
            time,
        } = change
        else {
            return Err(Inconsistent);
        };
        self.with(*inode, |it, space| {
            if let Some(size) = size {
                let file = file(it)?;
                file.written.remove(*size..u64::MAX);
                unmap(file, space, size.div_ceil(BLOCK_BYTES)..u64::MAX, batch);
                file.size = *size;
                it.modified = *time;
            }
            it.mode = mode.unwrap_or(it.mode);
            it.uid = uid.unwrap_or(it.uid);
            it.gid = gid.unwrap_or(it.gid);
            it.accessed = accessed.unwrap_or(it.accessed);
            it.modified = modified.unwrap_or(it.modified);
            it.changed = *time;
            Ok(())
        })
    }

    /// Shares the blocks of a range, which begins at a block in both files, and the written bytes.
    fn clone_range(&mut self, change: &Change, batch: Option<u64>) -> Result<(), Inconsistent> {
        let Change::Clone {
            from,
            to,
            from_offset,
            to_offset,
            length,
            time,
        } = change
        else {
            return Err(Inconsistent);
        };
        let end = from_offset.checked_add(*length).ok_or(Inconsistent)?;
        let target_end = to_offset.checked_add(*length).ok_or(Inconsistent)?;
        let source = self.file(*from)?;
        let moved = |at: u64| at - from_offset + to_offset;
        let blocks = touched_blocks(&(*from_offset..end));
        let mappings = source_mappings(source, blocks, to_offset / BLOCK_BYTES);
        let written: Vec<_> = written_within(source, *from_offset..end)
            .map(|it| moved(it.start)..moved(it.end))
            .collect();
        self.with(*to, |it, space| {
            modified(it, *time);
            let file = file(it)?;
            // Referenced before the old blocks are released: both may be the same.
            for mapping in &mappings {
                space.share(run(mapping));
            }
            let replaced = touched_blocks(&(*to_offset..target_end));
            unmap(file, space, replaced, batch);
            file.written.remove(*to_offset..target_end);
            for mapping in &mappings {
                file.map(mapping.file, run(mapping));
            }
            for range in written {
                file.written.insert(range);
            }
            file.size = file.size.max(target_end);
            Ok(())
        })
    }

    /// Marks the blocks of every file as mapped, after a checkpoint was read.
    pub(crate) fn load_space(&mut self, data: Run) -> Result<(), Inconsistent> {
        for inode in self.inodes.values() {
            let Node::File(file) = &inode.node else {
                continue;
            };
            for &(start, count) in file.blocks.values() {
                let end = start.checked_add(count).ok_or(Inconsistent)?;
                if start < data.start || end > data.end() || count == 0 {
                    return Err(Inconsistent);
                }
                self.space.load(Run { start, count });
            }
        }
        self.inodes
            .contains_key(&ROOT)
            .then_some(())
            .ok_or(Inconsistent)
    }
}

const fn run(mapping: &Mapping) -> Run {
    Run {
        start: mapping.device,
        count: mapping.count,
    }
}

/// The written ranges of a file within a range.
pub(crate) fn written_within(
    file: &File,
    range: Range<u64>,
) -> impl Iterator<Item = Range<u64>> + '_ {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let found = file.written.next(at).filter(|it| it.start < range.end)?;
        let within = found.start.max(at)..found.end.min(range.end);
        at = within.end;
        (!within.is_empty()).then_some(within)
    })
}

/// The blocks of a file within a range, as mappings of another file that begin at `target`.
pub(crate) fn source_mappings(file: &File, blocks: Range<u64>, target: u64) -> Vec<Mapping> {
    let mut mappings = Vec::new();
    let mut at = blocks.start;
    while let Some(first) = file.next_block(at).filter(|&first| first < blocks.end) {
        let Some(run) = file.block(first) else {
            break;
        };
        let count = run.count.min(blocks.end - first);
        mappings.push(Mapping {
            file: first - blocks.start + target,
            device: run.start,
            count,
        });
        at = first + count;
    }
    mappings
}

/// Maps blocks, which replace those that the file had there.
fn map(
    file: &mut File,
    space: &mut Space,
    mappings: &[Mapping],
    batch: Option<u64>,
    allocated: bool,
) -> Result<(), Inconsistent> {
    for mapping in mappings {
        let end = mapping
            .file
            .checked_add(mapping.count)
            .ok_or(Inconsistent)?;
        if !allocated {
            space.load(run(mapping));
        }
        unmap(file, space, mapping.file..end, batch);
        file.map(mapping.file, run(mapping));
    }
    Ok(())
}

fn unmap(file: &mut File, space: &mut Space, blocks: Range<u64>, batch: Option<u64>) {
    for run in file.unmap(blocks) {
        space.release(run, batch);
    }
}
