//! Decides whether the data that hosts read is correct, by a history for each block of each disk.

mod copies;
mod fences;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::ana::AnaJudge;
use crate::content::{self, Content, Stamp};
use crate::history::{BlockHistory, Mistake, Moment, WriteEnd};
use crate::identity::{ContentId, IdentityJudge};
use crate::reservations::ReservationJudge;
use copies::Copies;
use fences::FencedWrite;
pub use fences::OpenWrite;

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A read returned wrong data.
    Data {
        /// The disk.
        disk: usize,
        /// The block.
        lba: u64,
        /// The content that was read.
        found: Content,
        /// The mistake, if the content itself is intact.
        mistake: Option<Mistake>,
        /// The content that was expected.
        expected: String,
    },
    /// A Compare command reported a difference where there is none.
    Comparison {
        /// The disk.
        disk: usize,
        /// First block of the range.
        lba: u64,
    },
    /// Any other violation: a protocol rule, a deadline, a leak.
    Rule(String),
    /// An assertion failed: what it said, and where.
    Panic(String),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data {
                disk,
                lba,
                found,
                mistake,
                expected,
            } => {
                write!(f, "disk {disk} block {lba}: read {found:?}")?;
                if let Some(mistake) = mistake {
                    write!(f, " ({mistake:?})")?;
                }
                write!(f, ", may be {expected}")
            }
            Self::Comparison { disk, lba } => {
                write!(
                    f,
                    "disk {disk} block {lba}: a comparison with what is there failed"
                )
            }
            Self::Rule(what) | Self::Panic(what) => f.write_str(what),
        }
    }
}

/// A range of blocks of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The disk.
    pub disk: usize,
    /// The first block.
    pub lba: u64,
    /// Blocks.
    pub blocks: u32,
}

impl Extent {
    fn blocks(self) -> std::ops::Range<usize> {
        let start = self.lba as usize;
        start..start + self.blocks as usize
    }
}

struct DiskModel {
    blocks: Vec<BlockHistory>,
    block_size: usize,
    volatile: bool,
    /// When it last lost power while the appliance kept running.
    power_lost: Moment,
    /// When it was last closed and lost its content.
    closed: Moment,
    /// The number of its current content; increases with every replacement.
    content: u64,
    /// The replacement of its content in progress.
    exchange: Option<Exchange>,
    /// The kernel may still hold back a write to it.
    may_be_stuck: bool,
}

/// A replacement of a disk's content in progress. It is unknown which content hosts reach.
struct Exchange {
    /// The first version of the writes that began during the replacement.
    first_version: u64,
    /// Earlier writes that may reach the new content.
    may_reach: BTreeSet<u64>,
}

impl DiskModel {
    /// Whether the disk lost power after `began`. The success of such an operation proves nothing.
    fn spans_power_loss(&self, began: Moment) -> bool {
        began < self.power_lost
    }

    /// Whether an operation that began at `began` may have reached content that is lost by now.
    fn may_reach_lost_content(&self, began: Moment) -> bool {
        began < self.closed || self.exchange.is_some()
    }
}

/// An unanswered write whose association was lost.
struct LostWrite {
    /// Its sender: the number of the host's identity, and the controller identifier.
    sender: (usize, u16),
    extents: Vec<Extent>,
    version: u64,
    began: Moment,
    /// When the target detected the end of the association.
    noticed: Option<Moment>,
}

/// The model of all data, which judges what hosts read.
pub struct Judge {
    /// The judge of namespace identifiers.
    pub identities: IdentityJudge,
    /// The judge of reservations.
    pub reservations: ReservationJudge,
    /// The states of ANA groups.
    pub ana: AnaJudge,
    disks: Vec<DiskModel>,
    /// Lost writes that may take effect until a later event proves otherwise.
    lost: Vec<LostWrite>,
    /// Writes that take no effect unless their hosts may write again.
    fenced: Vec<FencedWrite>,
    copies: Copies,
    now: Moment,
    next_version: u64,
    /// Reads in flight: when they began, and how many began then.
    reads: BTreeMap<Moment, u32>,
}

impl Judge {
    /// A judge of disks with these sizes: blocks, bytes per block, whether the cache is volatile.
    #[must_use]
    pub fn new(disks: &[(u64, u32, bool)]) -> Self {
        let model = |&(blocks, block_size, volatile): &(u64, u32, bool)| DiskModel {
            blocks: vec![BlockHistory::default(); blocks as usize],
            block_size: block_size as usize,
            volatile,
            power_lost: Moment(0),
            closed: Moment(0),
            content: 0,
            exchange: None,
            may_be_stuck: false,
        };
        Self {
            identities: IdentityJudge::default(),
            reservations: ReservationJudge::new(disks.len()),
            ana: AnaJudge::default(),
            disks: disks.iter().map(model).collect(),
            lost: Vec::new(),
            fenced: Vec::new(),
            copies: Copies::default(),
            now: Moment(0),
            next_version: 1,
            reads: BTreeMap::new(),
        }
    }

    /// Grows a disk to this number of blocks, now or soon; new blocks are zero. Never shrinks it.
    pub fn grow(&mut self, disk: usize, blocks: u64) {
        let model = &mut self.disks[disk];
        let blocks = model.blocks.len().max(blocks as usize);
        model.blocks.resize(blocks, BlockHistory::default());
    }

    /// Blocks that a disk has or is about to have.
    #[must_use]
    pub fn blocks(&self, disk: usize) -> u64 {
        self.disks[disk].blocks.len() as u64
    }

    fn next_moment(&mut self) -> Moment {
        self.now.0 += 1;
        self.now
    }

    fn over(&mut self, extent: Extent) -> impl Iterator<Item = &mut BlockHistory> {
        let disk = self.disks.get_mut(extent.disk);
        let blocks = disk.and_then(|disk| disk.blocks.get_mut(extent.blocks()));
        blocks.into_iter().flatten()
    }

    /// Begins a write. Returns its version and when it began.
    pub fn begin_write(&mut self, extents: &[Extent], zero: bool) -> (u64, Moment) {
        let version = self.next_version;
        self.next_version += 1;
        let began = self.next_moment();
        for extent in extents {
            for history in self.over(*extent) {
                history.begin(version, zero);
            }
            self.note_change(*extent, version, zero);
        }
        (version, began)
    }

    /// Ends a write that received a response.
    pub fn end_write(&mut self, extents: &[Extent], version: u64, began: Moment, end: WriteEnd) {
        self.forget_fenced(version);
        self.copies.ended(version);
        let now = self.next_moment();
        let oldest = self.oldest_read();
        for extent in extents {
            let disk = self.disks.get(extent.disk);
            let volatile = disk.is_none_or(|disk| disk.volatile);
            let spans_power_loss = disk.is_some_and(|disk| {
                disk.spans_power_loss(began) || disk.may_reach_lost_content(began)
            });
            let end = match end {
                WriteEnd::Done { .. } if spans_power_loss => WriteEnd::Undecided,
                WriteEnd::Done { durable } => WriteEnd::Done {
                    durable: durable || !volatile,
                },
                WriteEnd::Undecided | WriteEnd::Refused => end,
            };
            for history in self.over(*extent) {
                history.end(version, began, now, end);
                history.prune(oldest);
            }
        }
    }

    /// Marks an unanswered write as lost with its association. It may take effect at any time until
    /// the target is known to have ended it: [`ready`](Self::ready),
    /// [`overtaken`](Self::overtaken).
    pub fn lose_write(
        &mut self,
        sender: (usize, u16),
        extents: Vec<Extent>,
        version: u64,
        began: Moment,
    ) {
        self.lost.push(LostWrite {
            sender,
            extents,
            version,
            began,
            noticed: None,
        });
    }

    /// Identity and controller of lost writes that the target may not know to be lost.
    pub fn unnoticed(&self) -> impl Iterator<Item = (usize, u16)> + '_ {
        let unnoticed = self.lost.iter().filter(|it| it.noticed.is_none());
        unnoticed.map(|it| it.sender)
    }

    /// Whether there are lost writes that may still take effect.
    #[must_use]
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Notes that the target has detected the end of an association. From now on it starts no write
    /// of that host, and makes no controller of it ready, before that association's writes in
    /// devices have ended.
    pub fn noticed(&mut self, sender: (usize, u16)) {
        self.reservations.noticed(sender);
        let now = self.next_moment();
        for lost in &mut self.lost {
            if lost.sender == sender {
                lost.noticed.get_or_insert(now);
            }
        }
    }

    /// The current moment.
    pub fn moment(&mut self) -> Moment {
        self.next_moment()
    }

    /// Notes that a controller of a host, enabled at `enabled`, is ready: writes that the target
    /// knew to be lost take no effect any more. Returns these writes as disks and versions.
    pub fn ready(&mut self, identity: usize, enabled: Moment) -> Vec<(usize, u64)> {
        let now = self.next_moment();
        self.end_lost(identity, enabled, now, None)
    }

    /// Notes that a write that began at `began` succeeded: no write of the same host that the
    /// target knew to be lost took effect after that. Returns these writes as disks and versions.
    /// `disk`: the disk that the successful write went to.
    pub fn overtaken(
        &mut self,
        identity: usize,
        began: Moment,
        disk: Option<usize>,
    ) -> Vec<(usize, u64)> {
        self.end_lost(identity, began, began, disk)
    }

    /// Notes that the kernel may hold back a write to a disk for longer than any controller waits.
    /// The device is damaged then and acknowledges nothing that the write could overwrite. Reads
    /// may see the write take effect.
    pub fn may_be_stuck(&mut self, disk: usize) {
        self.disks[disk].may_be_stuck = true;
    }

    /// Whether the kernel may hold back a write to a disk.
    #[must_use]
    pub fn is_maybe_stuck(&self, disk: usize) -> bool {
        self.disks[disk].may_be_stuck
    }

    /// Ends the lost writes of a host that the target detected before `before`, at `end`. On disks
    /// where the kernel may hold back writes, it ends them only if that disk acknowledged a write.
    fn end_lost(
        &mut self,
        identity: usize,
        before: Moment,
        end: Moment,
        acknowledged: Option<usize>,
    ) -> Vec<(usize, u64)> {
        let disks = &self.disks;
        let is_over = |lost: &LostWrite| {
            let mut its = lost.extents.iter().map(|it| it.disk);
            let is_held = its.any(|it| disks[it].may_be_stuck && acknowledged != Some(it));
            lost.sender.0 == identity
                && lost.noticed.is_some_and(|noticed| noticed < before)
                && !is_held
        };
        let lost = std::mem::take(&mut self.lost).into_iter();
        let (over, left): (Vec<_>, _) = lost.partition(is_over);
        self.lost = left;
        for lost in &over {
            self.forget_fenced(lost.version);
            self.copies.ended(lost.version);
            for extent in &lost.extents {
                for history in self.over(*extent) {
                    history.end(lost.version, lost.began, end, WriteEnd::Undecided);
                }
            }
        }
        let places = over.iter().filter_map(|lost| {
            let extent = lost.extents.first()?;
            Some((extent.disk, lost.version))
        });
        places.collect()
    }

    /// Begins a read, a comparison or a Flush.
    pub fn begin_read(&mut self) -> Moment {
        let began = self.next_moment();
        *self.reads.entry(began).or_default() += 1;
        began
    }

    /// Ends a read, a comparison or a Flush after it failed or its data was judged.
    pub fn end_read(&mut self, began: Moment) {
        if let Some(count) = self.reads.get_mut(&began) {
            *count -= 1;
            if *count == 0 {
                self.reads.remove(&began);
            }
        }
    }

    fn oldest_read(&self) -> Moment {
        let oldest = self.reads.first_key_value();
        oldest.map_or(self.now, |(began, _)| *began)
    }

    /// Judges the `data` of a read that began at `began`. `durable`: the read had FUA.
    ///
    /// # Errors
    /// The first wrong block.
    pub fn judge_read(
        &mut self,
        extent: Extent,
        began: Moment,
        data: &[u8],
        durable: bool,
    ) -> Result<(), Violation> {
        let now = self.next_moment();
        let Extent { disk, lba, .. } = extent;
        let model = &mut self.disks[disk];
        let durable = durable || !model.volatile;
        let spans_power_loss = model.spans_power_loss(began);
        let former = model.may_reach_lost_content(began);
        let found = data.chunks_exact(model.block_size);
        for (lba, found) in (lba..).zip(found) {
            let history = &mut model.blocks[lba as usize];
            let content = content::read(found, disk as u32, lba);
            let Some(version) = self.copies.version(content, disk) else {
                return Err(wrong(disk, lba, content, None, history));
            };
            let judged = if former {
                Ok(())
            } else if spans_power_loss {
                history.may_return(version, began)
            } else {
                history.read(version, began, now, durable)
            };
            judged.map_err(|mistake| wrong(disk, lba, content, Some(mistake), history))?;
        }
        Ok(())
    }

    /// Judges the content of a block on the medium of a disk without power.
    ///
    /// # Errors
    /// The content is wrong.
    pub fn judge_medium(&self, disk: usize, lba: u64, found: &[u8]) -> Result<(), Violation> {
        let Some(history) = self.disks[disk].blocks.get(lba as usize) else {
            return Ok(());
        };
        let content = content::read(found, disk as u32, lba);
        let Some(version) = self.copies.version(content, disk) else {
            return Err(wrong(disk, lba, content, None, history));
        };
        let judged = history.may_return(version, self.now);
        judged.map_err(|mistake| wrong(disk, lba, content, Some(mistake), history))
    }

    /// Judges the content of a block on a disk's medium, which a power failure would leave: that of
    /// `version`, or zeroes for `None`.
    ///
    /// # Errors
    /// Other content must survive a power failure.
    pub fn judge_survivor(
        &self,
        disk: usize,
        lba: u64,
        stamp: Option<Stamp>,
    ) -> Result<(), Violation> {
        let content = match stamp {
            None => Content::Zero,
            Some(stamp) if stamp.lba == lba && stamp.device as usize == disk => {
                Content::Written(stamp.version)
            }
            Some(stamp) => Content::Misplaced(stamp),
        };
        let version = self.copies.version(content, disk);
        match self.disks[disk].blocks.get(lba as usize) {
            Some(history) if version.is_none_or(|it| !history.may_survive(it)) => {
                let mistake = Some(Mistake::Volatile);
                Err(wrong(disk, lba, content, mistake, history))
            }
            _ => Ok(()),
        }
    }

    /// Judges the result of a comparison that began at `began` with `expected` versions (`None`:
    /// zeroes).
    ///
    /// # Errors
    /// The result is wrong.
    pub fn judge_comparison(
        &mut self,
        extent: Extent,
        began: Moment,
        expected: &[Option<u64>],
        equal: bool,
        own: Option<u64>,
    ) -> Result<(), Violation> {
        let now = self.next_moment();
        let Extent { disk, lba, .. } = extent;
        let model = &mut self.disks[disk];
        if model.spans_power_loss(began) || model.may_reach_lost_content(began) {
            return Ok(());
        }
        let durable = !model.volatile;
        let mut certain = true;
        for (lba, version) in (lba..).zip(expected) {
            let history = &mut model.blocks[lba as usize];
            certain &= history.must_equal(*version, began, own);
            if equal {
                let judged = history.read(*version, began, now, durable);
                let content = version.map_or(Content::Zero, Content::Written);
                judged.map_err(|mistake| wrong(disk, lba, content, Some(mistake), history))?;
            }
        }
        if certain && !equal {
            return Err(Violation::Comparison { disk, lba });
        }
        Ok(())
    }

    /// Judges a Compare and Write of one block whose commands both succeeded: it replaced the
    /// version `expected` by `version`.
    ///
    /// # Errors
    /// Another one did, too.
    pub fn judge_replacement(
        &mut self,
        extent: Extent,
        began: Moment,
        expected: u64,
        version: u64,
    ) -> Result<(), Violation> {
        let now = self.next_moment();
        let Extent { disk, lba, .. } = extent;
        let model = &mut self.disks[disk];
        if model.spans_power_loss(began) || model.may_reach_lost_content(began) {
            return Ok(());
        }
        let history = &mut model.blocks[lba as usize];
        let judged = history.replaced(expected, version, began, now);
        let content = Content::Written(expected);
        judged.map_err(|mistake| wrong(disk, lba, content, Some(mistake), history))
    }

    /// The content of the blocks, if all of it is certain; an inner `None` means zeroes.
    #[must_use]
    pub fn certain(&self, extent: Extent) -> Option<Vec<Option<u64>>> {
        let blocks = self.disks.get(extent.disk)?.blocks.get(extent.blocks())?;
        let certain = blocks.iter().map(|it| it.only(self.now));
        certain
            .map(|it| it.filter(|version| version.is_none_or(Copies::is_written)))
            .collect()
    }

    /// A block of a disk that certainly contains written data.
    #[must_use]
    pub fn written(&self, disk: usize) -> Option<u64> {
        let blocks = self.disks.get(disk)?.blocks.iter();
        let mut blocks = (0..).zip(blocks);
        blocks
            .find(|(_, it)| matches!(it.only(self.now), Some(Some(_))))
            .map(|(lba, _)| lba)
    }

    /// Notes that a Flush of a disk that began at `began` succeeded.
    pub fn flushed(&mut self, disk: usize, began: Moment) {
        let oldest = self.oldest_read();
        let model = &self.disks[disk];
        if model.spans_power_loss(began) || model.may_reach_lost_content(began) {
            return;
        }
        for history in &mut self.disks[disk].blocks {
            history.flushed(began);
            history.prune(oldest);
        }
    }

    /// Notes that the appliance has stopped or is idle: no command is in flight.
    pub fn stopped(&mut self) {
        let now = self.next_moment();
        self.lost.clear();
        self.fenced.clear();
        self.copies.stopped();
        for model in &mut self.disks {
            model.may_be_stuck = false;
        }
        for history in self.disks.iter_mut().flat_map(|disk| &mut disk.blocks) {
            history.stopped(now);
        }
    }

    /// Notes that one disk lost power while the appliance keeps running.
    pub fn disk_lost_power(&mut self, disk: usize) {
        let now = self.next_moment();
        self.disturb_copies(disk);
        let model = &mut self.disks[disk];
        model.power_lost = now;
        for history in &mut model.blocks {
            history.lost_power();
        }
    }

    /// Notes that a disk was closed and lost its content: it reads as zeroes when it is opened
    /// again, except for writes in flight.
    pub fn content_lost(&mut self, disk: usize) {
        let now = self.next_moment();
        self.disturb_copies(disk);
        let model = &mut self.disks[disk];
        model.closed = now;
        model.content += 1;
        for history in &mut model.blocks {
            history.replaced_by_zeroes(now);
        }
    }

    /// The identifier of a disk's current content.
    #[must_use]
    pub fn content(&self, disk: usize) -> ContentId {
        (disk, self.disks[disk].content)
    }

    /// Begins the move of a disk to another file, full of zeroes. `may_reach`: writes in flight may
    /// reach the new content, because the old one was unreachable.
    pub fn exchange_begins(&mut self, disk: usize, may_reach: bool) {
        self.disturb_copies(disk);
        let model = &mut self.disks[disk];
        let open = model.blocks.iter().flat_map(BlockHistory::open);
        model.exchange = Some(Exchange {
            first_version: self.next_version,
            may_reach: open.filter(|_| may_reach).collect(),
        });
    }

    /// Ends the replacement of a disk's content. `is_done`: the new content is in place.
    pub fn exchange_ends(&mut self, disk: usize, is_done: bool) {
        let now = self.next_moment();
        self.disturb_copies(disk);
        let model = &mut self.disks[disk];
        let Some(exchange) = model.exchange.take() else {
            return;
        };
        // Reads and flushes during the replacement prove nothing about either content.
        model.closed = now;
        if !is_done {
            return;
        }
        model.content += 1;
        for history in &mut model.blocks {
            history.exchanged(|version| {
                version >= exchange.first_version || exchange.may_reach.contains(&version)
            });
        }
    }

    /// Notes that all disks lost power after the appliance stopped.
    pub fn power_cut(&mut self) {
        let now = self.next_moment();
        for history in self.disks.iter_mut().flat_map(|disk| &mut disk.blocks) {
            history.power_cut(now);
        }
    }
}

fn wrong(
    disk: usize,
    lba: u64,
    found: Content,
    mistake: Option<Mistake>,
    history: &BlockHistory,
) -> Violation {
    let expected: Vec<String> = history
        .versions()
        .map(|(version, zero)| {
            let zeroes = if zero { " (zeroes)" } else { "" };
            format!("{version}{zeroes}")
        })
        .collect();
    Violation::Data {
        disk,
        lba,
        found,
        mistake,
        expected: expected.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::Stamp;

    const EXTENT: Extent = Extent {
        disk: 0,
        lba: 0,
        blocks: 1,
    };
    const HOST: usize = 3;

    fn judge() -> Judge {
        Judge::new(&[(1, 512, false)])
    }

    /// Judges a read that begins now and returns the content of write `version`.
    fn read(judge: &mut Judge, version: u64) -> Result<(), Violation> {
        let mut block = [0; 512];
        if version > 0 {
            let (device, lba) = (0, 0);
            Stamp {
                device,
                lba,
                version,
            }
            .write(&mut block);
        }
        let began = judge.begin_read();
        let judged = judge.judge_read(EXTENT, began, &block, false);
        judge.end_read(began);
        judged
    }

    /// Begins a write and loses it with controller `cntlid` of the host.
    fn lose(judge: &mut Judge, cntlid: u16) -> u64 {
        let (version, began) = judge.begin_write(&[EXTENT], false);
        judge.lose_write((HOST, cntlid), vec![EXTENT], version, began);
        version
    }

    #[test]
    fn lost_write_may_take_effect_until_next_controller_is_ready() {
        for noticed in [false, true] {
            let mut judge = judge();
            let lost = lose(&mut judge, 1);
            if noticed {
                judge.noticed((HOST, 1));
            }
            let enabled = judge.moment();
            assert_eq!(read(&mut judge, 0), Ok(()));
            let _ = judge.ready(HOST, enabled);
            assert_eq!(read(&mut judge, 0), Ok(()), "it may have come to nothing");
            // A write that had no effect before the controller was ready has none later.
            assert_eq!(read(&mut judge, lost).is_err(), noticed);
        }
    }

    #[test]
    fn lost_write_that_took_effect_in_time_is_kept() {
        let mut judge = judge();
        let lost = lose(&mut judge, 1);
        judge.noticed((HOST, 1));
        let enabled = judge.moment();
        let _ = judge.ready(HOST, enabled);
        assert_eq!(read(&mut judge, lost), Ok(()));
        assert!(read(&mut judge, 0).is_err());
        assert!(!judge.has_lost());
    }

    #[test]
    fn later_write_of_the_host_supersedes_its_lost_write() {
        for (host, noticed) in [(HOST, true), (HOST, false), (HOST + 1, true)] {
            let mut judge = judge();
            let lost = lose(&mut judge, 1);
            if noticed {
                judge.noticed((HOST, 1));
            }
            let (newer, began) = judge.begin_write(&[EXTENT], false);
            assert_eq!(read(&mut judge, lost), Ok(()), "it is not completed yet");
            let _ = judge.overtaken(host, began, None);
            judge.end_write(&[EXTENT], newer, began, WriteEnd::Done { durable: true });
            assert_eq!(read(&mut judge, newer), Ok(()));
            let known_to_be_over = host == HOST && noticed;
            assert_eq!(read(&mut judge, lost).is_err(), known_to_be_over);
        }
    }

    #[test]
    fn stuck_write_is_resolved_by_the_next_acknowledged_write() {
        let mut judge = judge();
        judge.may_be_stuck(0);
        let lost = lose(&mut judge, 1);
        judge.noticed((HOST, 1));
        let enabled = judge.moment();
        assert!(judge.ready(HOST, enabled).is_empty());
        assert_eq!(read(&mut judge, 0), Ok(()), "it may come still");
        let began = judge.moment();
        assert!(judge.overtaken(HOST, began, Some(1)).is_empty());
        assert_eq!(judge.overtaken(HOST, began, Some(0)), [(0, lost)]);
        assert!(!judge.has_lost());
    }

    #[test]
    fn write_begun_before_the_loss_was_noticed_supersedes_nothing() {
        let mut judge = judge();
        let lost = lose(&mut judge, 1);
        let (newer, began) = judge.begin_write(&[EXTENT], false);
        judge.noticed((HOST, 1));
        let _ = judge.overtaken(HOST, began, None);
        judge.end_write(&[EXTENT], newer, began, WriteEnd::Done { durable: true });
        assert_eq!(read(&mut judge, lost), Ok(()));
    }
}
