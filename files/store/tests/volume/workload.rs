//! Random operations on a volume and its model.

use std::collections::BTreeMap;

use files_store::{
    Error, InodeId, NewNode, NewObject, Range, Seek, SetAttributes, ShareId, ShareUse, Time,
    Volume, WriteId, XattrMode,
};

use crate::disk::Disk;
use crate::model::{Model, Node, ROOT};
use crate::random::Random;

const NAMES: [&[u8]; 6] = [b"a", b"b", b"c", b"d", b"e", "\u{fc}".as_bytes()];
const BLOCK: u64 = 4096;
/// Limit of the size of a file.
const SIZE_MAX: u64 = 6 * BLOCK;

/// A write whose data are on the device.
#[derive(Clone, Debug)]
pub(crate) struct Issued {
    pub(crate) inode: u64,
    pub(crate) offset: u64,
    pub(crate) data: Vec<u8>,
    /// The operation that recorded it, or `None` while it is in flight.
    pub(crate) recorded: Option<usize>,
}

/// A volume with its device and model.
pub(crate) struct Pair {
    pub(crate) volume: Volume,
    pub(crate) disk: Disk,
    pub(crate) model: Model,
    pub(crate) issued: Vec<Issued>,
    pub(crate) in_flight: Vec<(WriteId, usize)>,
    pub(crate) operations: usize,
    /// Operations that the store refused because the log waited.
    pub(crate) busy: usize,
    pub(crate) counts: BTreeMap<&'static str, usize>,
}

impl Pair {
    pub(crate) fn new(volume: Volume, disk: Disk, model: Model) -> Self {
        Self {
            volume,
            disk,
            model,
            issued: Vec::new(),
            in_flight: Vec::new(),
            operations: 0,
            busy: 0,
            counts: BTreeMap::new(),
        }
    }

    fn now(&self) -> Time {
        Time {
            seconds: self.operations as i64,
            nanoseconds: 1,
        }
    }

    fn any(&self, random: &mut Random) -> u64 {
        let ids: Vec<u64> = self.model.objects.keys().copied().collect();
        ids[random.below(ids.len() as u64) as usize]
    }

    fn file(&self, random: &mut Random) -> u64 {
        let is_file = |id: &u64| matches!(self.model.objects[id].node, Node::File(_));
        let files: Vec<u64> = self.model.objects.keys().copied().filter(is_file).collect();
        match files.len() {
            0 => ROOT,
            count => files[random.below(count as u64) as usize],
        }
    }

    fn directory(&self, random: &mut Random) -> u64 {
        let is_directory = |id: &u64| self.model.is_directory(*id);
        let all: Vec<u64> = self
            .model
            .objects
            .keys()
            .copied()
            .filter(is_directory)
            .collect();
        if random.one_in(12) {
            return self.any(random);
        }
        all[random.below(all.len() as u64) as usize]
    }

    /// Compares the result of an operation with that of the model, which is applied only if the
    /// store has not refused the operation for lack of resources.
    fn agree(
        &mut self,
        name: &'static str,
        result: Result<(), Error>,
        apply: impl FnOnce(&mut Model) -> Result<(), Error>,
    ) {
        if matches!(result, Err(Error::Busy | Error::NoSpace)) || self.is_quota(&result) {
            self.busy += 1;
            return;
        }
        *self.counts.entry(name).or_default() += usize::from(result.is_ok());
        let expected = apply(&mut self.model);
        assert_eq!(result, expected, "{name}");
    }

    /// Carries out one random operation.
    pub(crate) fn operate(&mut self, random: &mut Random) {
        self.operations += 1;
        let before: Vec<_> = self.uses();
        self.operate_once(random);
        for (before, now) in before.iter().zip(self.uses()) {
            let is_kept = |used: u64, before: u64, quota: u64| used <= quota.max(before);
            assert!(
                is_kept(now.inodes, before.inodes, now.inodes_max)
                    && is_kept(now.blocks, before.blocks, now.blocks_max),
                "{before:?} {now:?}"
            );
        }
    }

    /// The use of each part.
    fn uses(&self) -> Vec<ShareUse> {
        let parts = self.model.quotas.keys();
        parts
            .map(|part| self.volume.share_use(ShareId(*part)))
            .collect()
    }

    fn operate_once(&mut self, random: &mut Random) {
        match random.below(21) {
            0..3 => self.create(random),
            3 => self.link(random),
            4..6 => self.remove(random),
            6 => self.rename(random),
            7 => self.set_attributes(random),
            8 => self.xattr(random),
            9..13 => self.write(random),
            13..15 => self.finish_write(random),
            15 => self.allocate(random),
            16 => self.deallocate(random),
            17 => self.clone_range(random),
            18 => self.open(random),
            19 => self.part(random),
            _ => self.close(random),
        }
    }

    /// Whether an operation was refused for a quota, and there is one.
    fn is_quota(&self, result: &Result<(), Error>) -> bool {
        let mut quotas = self.model.quotas.values();
        *result == Err(Error::Quota) && quotas.any(|it| it.0 < u64::MAX)
    }

    /// Makes a part, or sets the quotas of one that exists. Writes in flight have theirs already.
    fn part(&mut self, random: &mut Random) {
        if !self.in_flight.is_empty() || random.one_in(2) {
            return;
        }
        let parts = self.model.quotas.len();
        let (name, now) = (random_name(random), self.now());
        let part = self.volume.part(name, now);
        let mut expected = None;
        self.agree("part", part.map(|_| ()), |model| {
            expected = Some(model.part(name)?);
            Ok(())
        });
        let (Ok((_, part)), Some(expected)) = (part, expected) else {
            return;
        };
        assert_eq!(part.0, expected);
        if self.model.quotas.len() > parts {
            // Both together would be two changes, of which a power cut may leave one.
            return;
        }
        let quotas = match random.one_in(3) {
            true => (u64::MAX, u64::MAX),
            false => (1 + random.below(6), random.below(12)),
        };
        let set = self.volume.set_quota(part, quotas.0, quotas.1);
        self.agree("set_quota", set.map(|_| ()), |model| {
            model.quotas.insert(part.0, quotas);
            Ok(())
        });
    }

    fn create(&mut self, random: &mut Random) {
        let (at, name) = (self.directory(random), random_name(random));
        let (node, expected) = match random.below(5) {
            0 => (NewNode::Directory, Node::Directory(BTreeMap::new())),
            1 => (NewNode::Link(b"target"), Node::Link(b"target".to_vec())),
            _ => (NewNode::File, Node::File(Vec::new().into())),
        };
        let object = NewObject {
            node,
            mode: 0o640,
            uid: 1,
            gid: 2,
            share: None,
        };
        let created = self.volume.create(InodeId(at), name, &object, self.now());
        let mut id = None;
        self.agree("create", created.map(|_| ()), |model| {
            id = Some(model.create(at, name, expected)?);
            Ok(())
        });
        if let (Ok(created), Some(id)) = (created, id) {
            // The numbers of objects that a power cut lost are used again.
            assert_eq!(created.inode.0, id);
        }
    }

    fn link(&mut self, random: &mut Random) {
        let (id, at, name) = (
            self.any(random),
            self.directory(random),
            random_name(random),
        );
        let result = self.volume.link(InodeId(id), InodeId(at), name, self.now());
        self.agree("link", result.map(|_| ()), |model| model.link(id, at, name));
    }

    fn remove(&mut self, random: &mut Random) {
        let (at, name) = (self.directory(random), random_name(random));
        let result = self.volume.remove(InodeId(at), name, self.now());
        assert_ne!(result, Err(Error::NoSpace));
        self.agree("remove", result.map(|_| ()), |model| model.remove(at, name));
    }

    fn rename(&mut self, random: &mut Random) {
        let from = (self.directory(random), random_name(random));
        let to = (self.directory(random), random_name(random));
        let (source, target) = ((InodeId(from.0), from.1), (InodeId(to.0), to.1));
        let result = self.volume.rename(source, target, self.now());
        self.agree("rename", result.map(|_| ()), |model| model.rename(from, to));
    }

    fn set_attributes(&mut self, random: &mut Random) {
        let id = self.any(random);
        let size = random.one_in(2).then(|| random.below(SIZE_MAX));
        let mode = random.one_in(2).then(|| random.below(0o1000) as u32);
        let set = SetAttributes {
            size,
            mode,
            ..SetAttributes::default()
        };
        let result = self.volume.set_attributes(InodeId(id), &set, self.now());
        self.agree("set_attributes", result.map(|_| ()), |model| {
            if let Some(size) = size {
                model.bytes(id)?.resize(size as usize, None);
            }
            let object = model.object(id);
            object.mode = mode.unwrap_or(object.mode);
            Ok(())
        });
    }

    fn xattr(&mut self, random: &mut Random) {
        let (id, name) = (self.any(random), random_name(random));
        let now = self.now();
        if random.one_in(3) {
            let result = self.volume.remove_xattr(InodeId(id), name, now);
            self.agree("remove_xattr", result.map(|_| ()), |model| {
                let old = model.object(id).xattrs.remove(name);
                old.map(|_| ()).ok_or(Error::NoXattr)
            });
            return;
        }
        let value = vec![random.next() as u8; random.below(2000) as usize];
        let mode = [XattrMode::Either, XattrMode::Create, XattrMode::Replace];
        let mode = mode[random.below(3) as usize];
        let result = self
            .volume
            .set_xattr(InodeId(id), (name, &value), mode, now);
        self.agree("set_xattr", result.map(|_| ()), |model| {
            let xattrs = &mut model.object(id).xattrs;
            match (mode, xattrs.contains_key(name)) {
                (XattrMode::Create, true) => return Err(Error::Exists),
                (XattrMode::Replace, false) => return Err(Error::NoXattr),
                _ => {}
            }
            xattrs.insert(name.to_vec(), value);
            Ok(())
        });
    }

    /// Plans a write and moves its data to the device.
    fn write(&mut self, random: &mut Random) {
        let inode = self.file(random);
        let offset = random.below(SIZE_MAX);
        let length = 1 + random.below(SIZE_MAX - offset).min(random.below(3 * BLOCK));
        let data: Vec<u8> = (0..length).map(|_| 1 + random.below(255) as u8).collect();
        let plan = match self.volume.write(InodeId(inode), offset, length) {
            Ok(plan) => plan,
            Err(Error::Busy | Error::NoSpace) => return self.busy += 1,
            Err(error) if self.is_quota(&Err(error)) => return self.busy += 1,
            Err(error) => {
                assert_eq!(self.model.bytes(inode).map(|_| ()), Err(error));
                return;
            }
        };
        let mut rest = &data[..];
        for piece in plan.pieces {
            let mut bytes = match piece.keep {
                Some(keep) => self.disk.read(keep, piece.length).to_vec(),
                None => vec![0xee; piece.length as usize],
            };
            let (now, later) = rest.split_at(piece.data_length as usize);
            bytes[piece.data_at as usize..][..now.len()].copy_from_slice(now);
            rest = later;
            self.disk.write_data(piece.device, &bytes);
        }
        assert!(rest.is_empty());
        *self.model.opens.entry(inode).or_default() += 1;
        self.in_flight.push((plan.id, self.issued.len()));
        self.issued.push(Issued {
            inode,
            offset,
            data,
            recorded: None,
        });
        if random.one_in(2) {
            self.finish_write(random);
        }
    }

    fn finish_write(&mut self, random: &mut Random) {
        if self.in_flight.is_empty() {
            return;
        }
        let index = random.below(self.in_flight.len() as u64) as usize;
        let (id, issued) = self.in_flight[index];
        let result = self.volume.write_done(id, self.now());
        if result.is_ok() {
            self.in_flight.swap_remove(index);
        }
        let write = &mut self.issued[issued];
        if result.is_ok() {
            write.recorded = Some(self.operations);
        }
        let write = write.clone();
        self.agree("write", result.map(|_| ()), |model| {
            let end = (write.offset + write.data.len() as u64) as usize;
            let bytes = model.bytes(write.inode)?;
            bytes.resize(bytes.len().max(end), None);
            let written = write.data.iter().map(|&byte| Some(byte));
            bytes.splice(write.offset as usize..end, written);
            model_close(model, write.inode)
        });
    }

    fn allocate(&mut self, random: &mut Random) {
        let id = self.file(random);
        let (offset, length) = (random.below(SIZE_MAX), 1 + random.below(2 * BLOCK));
        let result = self
            .volume
            .allocate(InodeId(id), offset, length, self.now());
        self.agree("allocate", result.map(|_| ()), |model| {
            let bytes = model.bytes(id)?;
            bytes.resize(bytes.len().max((offset + length) as usize), None);
            Ok(())
        });
    }

    fn deallocate(&mut self, random: &mut Random) {
        let id = self.file(random);
        let (offset, length) = (random.below(SIZE_MAX), 1 + random.below(2 * BLOCK));
        let result = self
            .volume
            .deallocate(InodeId(id), offset, length, self.now());
        self.agree("deallocate", result.map(|_| ()), |model| {
            let bytes = model.bytes(id)?;
            let end = bytes.len().min((offset + length) as usize);
            if let Some(hole) = bytes.get_mut(offset as usize..end) {
                hole.fill(None);
            }
            Ok(())
        });
    }

    fn clone_range(&mut self, random: &mut Random) {
        let (from, to) = (self.file(random), self.file(random));
        let (source, target) = (random.below(5) * BLOCK, random.below(5) * BLOCK);
        let length = random.below(3) * BLOCK;
        let result = self.volume.clone_range(
            (InodeId(from), source),
            (InodeId(to), target),
            length,
            self.now(),
        );
        self.agree("clone", result.map(|_| ()), |model| {
            model.bytes(to)?;
            let bytes = model.bytes(from)?.clone();
            let length = match length {
                0 => (bytes.len() as u64)
                    .checked_sub(source)
                    .ok_or(Error::Invalid)?,
                length => length,
            };
            let (end, last) = (source + length, target + length);
            let overlaps = from == to && source < last && target < end;
            let replaced = model.bytes(to)?;
            let is_partial = !length.is_multiple_of(BLOCK) && last < replaced.len() as u64;
            if length == 0 || end > bytes.len() as u64 || overlaps || is_partial {
                return Err(Error::Invalid);
            }
            replaced.resize(replaced.len().max(last as usize), None);
            let moved = bytes[source as usize..end as usize].iter().copied();
            replaced.splice(target as usize..last as usize, moved);
            Ok(())
        });
    }

    fn open(&mut self, random: &mut Random) {
        let id = self.any(random);
        let result = self.volume.open(InodeId(id));
        self.agree("open", result, |model| {
            *model.opens.entry(id).or_default() += 1;
            Ok(())
        });
    }

    fn close(&mut self, random: &mut Random) {
        let id = self.any(random);
        let writes = self
            .in_flight
            .iter()
            .filter(|it| self.issued[it.1].inode == id)
            .count();
        if writes as u32 == self.model.opens.get(&id).copied().unwrap_or(0) {
            return;
        }
        let result = self.volume.close(InodeId(id));
        self.agree("close", result, |model| model_close(model, id));
    }

    /// Compares every byte that the volume returns with `is_allowed`.
    pub(crate) fn check_bytes(
        volume: &Volume,
        disk: &[u8],
        model: &Model,
        is_allowed: impl Fn(u64, usize, u8) -> bool,
    ) -> Result<(), String> {
        for (&id, object) in &model.objects {
            let Node::File(expected) = &object.node else {
                continue;
            };
            let length = expected.len() as u64 + 99;
            let ranges = volume.read(InodeId(id), 0, length).expect("a file");
            let mut bytes = Vec::new();
            for Range { length, device } in ranges {
                match device {
                    Some(at) => bytes.extend_from_slice(&disk[at as usize..][..length as usize]),
                    None => bytes.resize(bytes.len() + length as usize, 0),
                }
            }
            if bytes.len() != expected.len() {
                return Err(format!(
                    "{id} has {} bytes, not {}",
                    bytes.len(),
                    expected.len()
                ));
            }
            for (at, (&found, &expected)) in bytes.iter().zip(expected.iter()).enumerate() {
                let is_same = found == expected.unwrap_or(0);
                if !is_same && (expected.is_none() || !is_allowed(id, at, found)) {
                    return Err(format!("byte {at} of {id} is {found}, not {expected:?}"));
                }
            }
        }
        Ok(())
    }

    /// Compares the whole volume with the model.
    pub(crate) fn check(&self) {
        assert_eq!(self.model.difference(&self.volume), None);
        assert_eq!(self.volume.problems(), [""; 0]);
        // Writes in flight may have changed bytes already.
        let in_flight = |id, at| {
            let writes = self.in_flight.iter().map(|it| &self.issued[it.1]);
            writes.filter(move |it| it.inode == id).find_map(move |it| {
                it.data
                    .get(at - (it.offset as usize).min(at))
                    .filter(|_| at >= it.offset as usize)
            })
        };
        let allowed = |id, at, found| in_flight(id, at) == Some(&found);
        let content = self.disk.content();
        Self::check_bytes(&self.volume, content, &self.model, allowed).expect("equal bytes");
        self.check_holes();
    }

    fn check_holes(&self) {
        for (&id, object) in &self.model.objects {
            let Node::File(bytes) = &object.node else {
                continue;
            };
            let seek = |kind| self.volume.seek(InodeId(id), 0, kind);
            if bytes.is_empty() {
                assert_eq!(seek(Seek::Data), Err(Error::Invalid));
                continue;
            }
            let data = bytes.iter().position(Option::is_some).map(|it| it as u64);
            assert_eq!(seek(Seek::Data), Ok(data));
            let hole = bytes
                .iter()
                .position(Option::is_none)
                .unwrap_or(bytes.len());
            assert_eq!(seek(Seek::Hole), Ok(Some(hole as u64)));
        }
    }
}

fn model_close(model: &mut Model, id: u64) -> Result<(), Error> {
    let count = model.opens.get_mut(&id).ok_or(Error::Invalid)?;
    *count -= 1;
    if *count == 0 {
        model.opens.remove(&id);
    }
    model.reap(id);
    Ok(())
}

fn random_name(random: &mut Random) -> &'static [u8] {
    NAMES[random.below(NAMES.len() as u64) as usize]
}
