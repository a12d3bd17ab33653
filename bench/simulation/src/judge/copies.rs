//! Copied blocks: a Copy writes the stamps of its sources, as they are at some moment of the command.
//!
//! The judge knows every content that each source may have from the submission of the Copy to its
//! end. The history of a block has versions, of which each is the content that a write stamped for
//! this block. A stamp that was copied here from another block has a version of its own, which is
//! beyond those of writes.

use std::collections::{BTreeMap, BTreeSet};

use super::{Extent, Judge};
use crate::content::{Content, Stamp};
use crate::history::{BlockHistory, Moment, WriteEnd};

/// The first version of copied stamps.
const FOREIGN: u64 = 1 << 63;
/// A version that no block has.
const NOWHERE: u64 = u64::MAX;

/// A block: its disk and its address.
type Place = (usize, u64);

/// Copies, and the stamps that they may have copied.
#[derive(Default)]
pub(super) struct Copies {
    /// Block and version of each stamp, in the order of the versions from [`FOREIGN`] on.
    stamps: Vec<(Place, u64)>,
    versions: BTreeMap<(Place, u64), u64>,
    /// Copies that the target may not have completed.
    open: Vec<OpenCopy>,
    /// The versions of all copies.
    all: BTreeSet<u64>,
}

struct OpenCopy {
    version: u64,
    disk: usize,
    to: u64,
    /// The source of each block, in the order of the destination.
    sources: Vec<Place>,
}

impl OpenCopy {
    fn destination(&self) -> impl Iterator<Item = u64> + use<> {
        self.to..self.to + self.sources.len() as u64
    }

    fn writes(&self, (disk, lba): Place) -> bool {
        let end = self.to + self.sources.len() as u64;
        self.disk == disk && (self.to..end).contains(&lba)
    }
}

impl Copies {
    /// Whether the version is that of a write with stamps for this block.
    pub(super) fn is_written(version: u64) -> bool {
        version < FOREIGN
    }

    /// The version of an intact block of a disk, or an inner `None` for zeroes. The outer `None`
    /// means that no single write or Copy left this content.
    pub(super) fn version(&self, content: Content, disk: usize) -> Option<Option<u64>> {
        let Content::Misplaced(Stamp {
            device,
            lba,
            version,
        }) = content
        else {
            return content.version();
        };
        let is_here = device as usize == disk && !self.all.is_empty();
        let known = self.versions.get(&((device as usize, lba), version));
        match known {
            Some(known) => Some(Some(*known)),
            None => is_here.then_some(Some(NOWHERE)),
        }
    }

    /// The version at block `to` of content that has the version `version` at block `from`.
    fn moved(&mut self, version: Option<u64>, from: Place, to: Place) -> Option<u64> {
        let version = version?;
        let stamp = match version.checked_sub(FOREIGN) {
            None => (from, version),
            Some(index) => *self.stamps.get(index as usize)?,
        };
        if stamp.0 == to {
            return Some(stamp.1);
        }
        let (stamps, next) = (&mut self.stamps, FOREIGN + self.versions.len() as u64);
        let known = self.versions.entry(stamp).or_insert_with(|| {
            stamps.push(stamp);
            next
        });
        Some(*known)
    }

    /// Notes that a Copy has no further effect.
    pub(super) fn ended(&mut self, version: u64) {
        self.open.retain(|it| it.version != version);
    }

    /// Notes that no Copy has a further effect.
    pub(super) fn stopped(&mut self) {
        self.open.clear();
    }
}

impl Judge {
    /// Begins a Copy of these blocks to a disk. Returns its version and when it began; `None` if the
    /// judge could not tell what it writes.
    pub fn begin_copy(
        &mut self,
        disk: usize,
        sources: &[(usize, u64)],
        to: u64,
    ) -> Option<(u64, Moment)> {
        let now = self.moment();
        let end = to + sources.len() as u64;
        let writes = |(other, lba): &Place| *other == disk && (to..end).contains(lba);
        let depends = |it: &OpenCopy| {
            sources.iter().any(|source| it.writes(*source)) || it.sources.iter().any(writes)
        };
        let mut disks = sources.iter().map(|(disk, _)| *disk).chain([disk]);
        let is_exchanged = disks.any(|disk| self.disks[disk].exchange.is_some());
        if is_exchanged || self.copies.open.iter().any(depends) {
            return None;
        }
        let mut all = Vec::new();
        for (source, place) in sources.iter().zip(to..) {
            let model = &self.disks[source.0];
            let contents = model.blocks.get(source.1 as usize)?.contents(now)?;
            let contents = contents.into_iter();
            let mut contents: Vec<Option<u64>> = contents
                .map(|it| self.copies.moved(it, *source, (disk, place)))
                .collect();
            contents.sort_unstable();
            contents.dedup();
            // It would have the stamp of a write to this block.
            if contents.iter().flatten().any(|it| Copies::is_written(*it)) {
                return None;
            }
            all.push(contents);
        }
        let extent = Extent {
            disk,
            lba: to,
            blocks: sources.len() as u32,
        };
        let (version, began) = self.begin_write(&[extent], false);
        for (history, contents) in self.over(extent).zip(all) {
            history.copies(version, contents);
        }
        self.copies.all.insert(version);
        self.copies.open.push(OpenCopy {
            version,
            disk,
            to,
            sources: sources.to_vec(),
        });
        Some((version, began))
    }

    /// Notes that a write may change blocks that copies in progress may read.
    pub(super) fn note_change(&mut self, changed: Extent, version: u64, zero: bool) {
        let range = changed.lba..changed.lba + u64::from(changed.blocks);
        let is_changed = |(disk, lba): &Place| *disk == changed.disk && range.contains(lba);
        let open = std::mem::take(&mut self.copies.open);
        for copy in &open {
            for (source, place) in copy.sources.iter().zip(copy.destination()) {
                if !is_changed(source) || copy.version == version {
                    continue;
                }
                let content = (!zero).then_some(version);
                let content = self.copies.moved(content, *source, (copy.disk, place));
                let is_known = !self.copies.all.contains(&version);
                let model = &mut self.disks[copy.disk];
                if let Some(history) = model.blocks.get_mut(place as usize) {
                    history.may_copy(copy.version, is_known.then_some(content));
                }
            }
        }
        self.copies.open = open;
    }

    /// Ends a copy of a device, which wrote the first blocks of its destination `extent`: their number,
    /// and whether they are durable. `may_follow`: the others may still be written until the appliance
    /// stops.
    pub fn end_device_copy(
        &mut self,
        extent: Extent,
        (version, began): (u64, Moment),
        (written, durable): (u64, bool),
        may_follow: bool,
    ) {
        let written = written as u32;
        let whole = Extent {
            blocks: written,
            ..extent
        };
        let rest = Extent {
            lba: extent.lba + u64::from(written),
            blocks: extent.blocks - written,
            ..extent
        };
        self.end_write(&[whole], version, began, WriteEnd::Done { durable });
        if !may_follow {
            self.end_write(&[rest], version, began, WriteEnd::Undecided);
        }
    }

    /// Notes that the content of a disk changed in another way than by writes: a copy may have any
    /// content that its sources had before.
    pub(super) fn disturb_copies(&mut self, disk: usize) {
        let open = std::mem::take(&mut self.copies.open);
        for copy in &open {
            for (source, place) in copy.sources.iter().zip(copy.destination()) {
                if copy.disk != disk && source.0 != disk {
                    continue;
                }
                let former = self.disks[source.0].blocks.get(source.1 as usize);
                for content in former
                    .map(BlockHistory::former_contents)
                    .unwrap_or_default()
                {
                    self.copies.moved(content, *source, (copy.disk, place));
                }
                let model = &mut self.disks[copy.disk];
                if let Some(history) = model.blocks.get_mut(place as usize) {
                    history.may_copy(copy.version, None);
                }
            }
        }
        self.copies.open = open;
    }

    /// Notes that a write that had ended may take effect again. If it is a Copy, its sources may have
    /// changed meanwhile.
    pub(super) fn reopen_copy(&mut self, version: u64, extents: &[Extent]) {
        if !self.copies.all.contains(&version) {
            return;
        }
        for extent in extents {
            for history in self.over(*extent) {
                history.may_copy(version, None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: WriteEnd = WriteEnd::Done { durable: true };

    fn judge() -> Judge {
        Judge::new(&[(8, 512, false)])
    }

    fn block(lba: u64) -> Extent {
        Extent {
            disk: 0,
            lba,
            blocks: 1,
        }
    }

    fn write(judge: &mut Judge, lba: u64) -> u64 {
        let (version, began) = judge.begin_write(&[block(lba)], false);
        judge.end_write(&[block(lba)], version, began, DONE);
        version
    }

    /// Whether a read of `lba` may return the stamp of a write to `from`; version 0 is zeroes.
    fn may_read(judge: &mut Judge, lba: u64, from: u64, version: u64) -> bool {
        let mut data = [0; 512];
        if version > 0 {
            let (device, lba) = (0, from);
            Stamp {
                device,
                lba,
                version,
            }
            .write(&mut data);
        }
        let began = judge.begin_read();
        let judged = judge.judge_read(block(lba), began, &data, false);
        judge.end_read(began);
        judged.is_ok()
    }

    fn copy(judge: &mut Judge, source: u64, to: u64) -> (u64, Moment) {
        judge
            .begin_copy(0, &[(0, source)], to)
            .expect("it is judged")
    }

    #[test]
    fn destination_has_what_the_source_had() {
        let mut judge = judge();
        let (old, version) = (write(&mut judge, 5), write(&mut judge, 1));
        let (copied, began) = copy(&mut judge, 1, 5);
        judge.end_write(&[block(5)], copied, began, DONE);
        let later = write(&mut judge, 1);
        assert!(!may_read(&mut judge, 5, 5, old) && !may_read(&mut judge, 5, 1, later));
        assert!(!may_read(&mut judge, 5, 2, version) && !may_read(&mut judge, 5, 5, 0));
        assert!(may_read(&mut judge, 5, 1, version));
        assert!(
            !may_read(&mut judge, 4, 1, version),
            "copied to another block"
        );
        // The next one copies the copy.
        let (copied, began) = copy(&mut judge, 5, 6);
        judge.end_write(&[block(6)], copied, began, DONE);
        assert!(may_read(&mut judge, 6, 1, version));
        assert!(judge.certain(block(6)).is_none());
        assert!(
            judge.begin_copy(0, &[(0, 6)], 1).is_none(),
            "it came from there"
        );
    }

    #[test]
    fn write_during_the_copy_may_be_copied() {
        let mut judge = judge();
        let before = write(&mut judge, 1);
        for during in [false, true] {
            let (copied, began) = copy(&mut judge, 1, 5);
            let meanwhile = write(&mut judge, 1);
            judge.end_write(&[block(5)], copied, began, DONE);
            if during {
                assert!(may_read(&mut judge, 5, 1, meanwhile));
            } else {
                assert!(may_read(&mut judge, 5, 1, before));
            }
        }
    }

    #[test]
    fn blocks_of_another_disk_are_copied() {
        let mut judge = Judge::new(&[(8, 512, false), (8, 512, false)]);
        let there = |lba: u64| Extent {
            disk: 1,
            ..block(lba)
        };
        let (version, began) = judge.begin_write(&[there(3)], false);
        judge.end_write(&[there(3)], version, began, DONE);
        let old = write(&mut judge, 5);
        let copied = judge.begin_copy(0, &[(1, 3)], 5).expect("it is judged");
        judge.end_write(&[block(5)], copied.0, copied.1, DONE);
        let mut data = [0; 512];
        for (device, lba, is_right) in [(1, 3, true), (0, 3, false), (1, 5, false), (0, 5, false)] {
            let stamp = Stamp {
                device,
                lba,
                version,
            };
            stamp.write(&mut data);
            let began = judge.begin_read();
            let judged = judge.judge_read(block(5), began, &data, false);
            judge.end_read(began);
            assert_eq!(judged.is_ok(), is_right, "{stamp:?}");
        }
        assert!(!may_read(&mut judge, 5, 5, old) && !may_read(&mut judge, 5, 0, 0));
        // Back to where it came from.
        assert!(judge.begin_copy(1, &[(0, 5)], 3).is_none());
        assert!(judge.begin_copy(1, &[(0, 5)], 4).is_some());
    }

    #[test]
    fn zeroes_are_copied() {
        let mut judge = judge();
        let old = write(&mut judge, 5);
        let (copied, began) = copy(&mut judge, 1, 5);
        assert!(may_read(&mut judge, 5, 5, old));
        judge.end_write(&[block(5)], copied, began, DONE);
        assert!(!may_read(&mut judge, 5, 5, old) && may_read(&mut judge, 5, 0, 0));
    }
}
