//! Decides whether what hosts saw is right: one history for each block of each disk.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::content::{self, Content};
use crate::history::{BlockHistory, Mistake, Moment, WriteEnd};
use crate::identity::{ContentId, IdentityJudge};

/// What the judge objects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A read returned what it must not.
    Data {
        /// The disk.
        disk: usize,
        /// The block.
        lba: u64,
        /// What was found.
        found: Content,
        /// Why that is wrong, where the content itself is whole.
        mistake: Option<Mistake>,
        /// What would have been right.
        expected: String,
    },
    /// A comparison found a difference where there is none.
    Comparison {
        /// The disk.
        disk: usize,
        /// First block of the range.
        lba: u64,
    },
    /// Anything else: a broken rule of the protocol, a deadline, a leak.
    Rule(String),
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
            Self::Rule(what) => f.write_str(what),
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
    /// When it last lost power although the appliance went on.
    power_lost: Moment,
    /// When it last was closed, and its content with it.
    closed: Moment,
    /// Which content it has: the next number whenever it is another one.
    content: u64,
    /// Its content is being exchanged for another one.
    exchange: Option<Exchange>,
    /// The kernel may hold a write of it.
    may_be_stuck: bool,
}

/// The content of a disk is being exchanged, and it is open which one hosts reach.
struct Exchange {
    /// Versions from here on are of writes that began since.
    first_version: u64,
    /// Earlier writes that may reach the new content.
    may_reach: BTreeSet<u64>,
}

impl DiskModel {
    /// Whether what began at `began` saw the disk lose power: nothing follows from its success.
    fn straddles(&self, began: Moment) -> bool {
        began < self.power_lost
    }

    /// Whether what began at `began` may have met the content that was lost since.
    fn meets_former(&self, began: Moment) -> bool {
        began < self.closed || self.exchange.is_some()
    }
}

/// A write whose association was lost before it was answered.
struct LostWrite {
    /// Who sent it: the number of the host's identity, and its controller.
    sender: (usize, u16),
    extents: Vec<Extent>,
    version: u64,
    began: Moment,
    /// When the target knew that the association is over.
    noticed: Option<Moment>,
}

/// The judge.
pub struct Judge {
    /// The judge of what hosts know disks by.
    pub identities: IdentityJudge,
    disks: Vec<DiskModel>,
    /// Writes that may take effect until something follows that proves them over.
    lost: Vec<LostWrite>,
    now: Moment,
    next_version: u64,
    /// When the reads that are in flight began, and how many began then.
    reads: BTreeMap<Moment, u32>,
}

impl Judge {
    /// A judge of disks of these sizes: blocks, bytes of a block, whether the cache is volatile.
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
            disks: disks.iter().map(model).collect(),
            lost: Vec::new(),
            now: Moment(0),
            next_version: 1,
            reads: BTreeMap::new(),
        }
    }

    /// A disk has so many blocks, or is about to: the new ones are zeroes. None is taken away.
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

    /// A write goes out; returns its version and when it began.
    pub fn begin_write(&mut self, extents: &[Extent], zero: bool) -> (u64, Moment) {
        let version = self.next_version;
        self.next_version += 1;
        let began = self.next_moment();
        for extent in extents {
            for history in self.over(*extent) {
                history.begin(version, zero);
            }
        }
        (version, began)
    }

    /// A write was answered. `durable`: it had FUA.
    pub fn end_write(&mut self, extents: &[Extent], version: u64, began: Moment, end: WriteEnd) {
        let now = self.next_moment();
        let oldest = self.oldest_read();
        for extent in extents {
            let disk = self.disks.get(extent.disk);
            let volatile = disk.is_none_or(|disk| disk.volatile);
            let straddles =
                disk.is_some_and(|disk| disk.straddles(began) || disk.meets_former(began));
            let end = match end {
                WriteEnd::Done { .. } if straddles => WriteEnd::Undecided,
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

    /// The association of a write is lost, and the write was not answered. It may take effect at any
    /// time until the target is known to be done with it: [`ready`](Self::ready),
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

    /// Lost writes of which it is not known yet that the target knows: identity and controller.
    pub fn unnoticed(&self) -> impl Iterator<Item = (usize, u16)> + '_ {
        let unnoticed = self.lost.iter().filter(|it| it.noticed.is_none());
        unnoticed.map(|it| it.sender)
    }

    /// Whether any write is lost that is not known to be over.
    #[must_use]
    pub fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// The target knows that an association is over: from now on it lets no write of that host
    /// begin, and no controller of it become ready, before what it has in devices is over.
    pub fn noticed(&mut self, sender: (usize, u16)) {
        let now = self.next_moment();
        for lost in &mut self.lost {
            if lost.sender == sender {
                lost.noticed.get_or_insert(now);
            }
        }
    }

    /// The present moment.
    pub fn moment(&mut self) -> Moment {
        self.next_moment()
    }

    /// A controller of a host is ready that was enabled at `enabled`: no write that the target knew
    /// to be lost takes effect any more. Those, as their disks and versions.
    pub fn ready(&mut self, identity: usize, enabled: Moment) -> Vec<(usize, u64)> {
        let now = self.next_moment();
        self.end_lost(identity, enabled, now, None)
    }

    /// A write that began at `began` succeeded: no write of the same host that the target knew to
    /// be lost took effect after it began to. Those, as their disks and versions.
    /// `disk`: where that write went.
    pub fn overtaken(
        &mut self,
        identity: usize,
        began: Moment,
        disk: Option<usize>,
    ) -> Vec<(usize, u64)> {
        self.end_lost(identity, began, began, disk)
    }

    /// The kernel may hold a write of a disk for longer than any controller is kept waiting: its
    /// device is damaged then, and acknowledges nothing that the write could overwrite. Reads may
    /// see it come.
    pub fn may_be_stuck(&mut self, disk: usize) {
        self.disks[disk].may_be_stuck = true;
    }

    /// Whether that can be.
    #[must_use]
    pub fn is_maybe_stuck(&self, disk: usize) -> bool {
        self.disks[disk].may_be_stuck
    }

    /// Ends the lost writes of a host that were noticed before `before`, at `end`; where the kernel
    /// may hold them, only those on the disk that acknowledged something.
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

    /// A read, a comparison or a Flush goes out.
    pub fn begin_read(&mut self) -> Moment {
        let began = self.next_moment();
        *self.reads.entry(began).or_default() += 1;
        began
    }

    /// A read, a comparison or a Flush came to nothing, or its data was judged.
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

    /// A read that began at `began` returned `data`. `durable`: it had FUA.
    ///
    /// # Errors
    /// The first block that is wrong.
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
        let straddles = model.straddles(began);
        let former = model.meets_former(began);
        let found = data.chunks_exact(model.block_size);
        for (lba, found) in (lba..).zip(found) {
            let history = &mut model.blocks[lba as usize];
            let content = content::read(found, disk as u32, lba);
            let Some(version) = content.version() else {
                return Err(wrong(disk, lba, content, None, history));
            };
            let judged = if former {
                Ok(())
            } else if straddles {
                history.may_return(version, began)
            } else {
                history.read(version, began, now, durable)
            };
            judged.map_err(|mistake| wrong(disk, lba, content, Some(mistake), history))?;
        }
        Ok(())
    }

    /// The medium of a disk without power has `found` in a block.
    ///
    /// # Errors
    /// It must have something else.
    pub fn judge_medium(&self, disk: usize, lba: u64, found: &[u8]) -> Result<(), Violation> {
        let Some(history) = self.disks[disk].blocks.get(lba as usize) else {
            return Ok(());
        };
        let content = content::read(found, disk as u32, lba);
        let Some(version) = content.version() else {
            return Err(wrong(disk, lba, content, None, history));
        };
        let judged = history.may_return(version, self.now);
        judged.map_err(|mistake| wrong(disk, lba, content, Some(mistake), history))
    }

    /// The medium of a disk has the content of `version`, or zeroes for `None`, in a block, which is
    /// what is left of it if the power fails now.
    ///
    /// # Errors
    /// Something else must survive that.
    pub fn judge_survivor(
        &self,
        disk: usize,
        lba: u64,
        version: Option<u64>,
    ) -> Result<(), Violation> {
        match self.disks[disk].blocks.get(lba as usize) {
            Some(history) if !history.may_survive(version) => {
                let content = version.map_or(Content::Zero, Content::Written);
                let mistake = Some(Mistake::Volatile);
                Err(wrong(disk, lba, content, mistake, history))
            }
            _ => Ok(()),
        }
    }

    /// A comparison that began at `began` with `expected` versions (`None`: zeroes) ended.
    ///
    /// # Errors
    /// It must have come out otherwise.
    pub fn judge_comparison(
        &mut self,
        extent: Extent,
        began: Moment,
        expected: &[Option<u64>],
        equal: bool,
    ) -> Result<(), Violation> {
        let now = self.next_moment();
        let Extent { disk, lba, .. } = extent;
        let model = &mut self.disks[disk];
        if model.straddles(began) || model.meets_former(began) {
            return Ok(());
        }
        let durable = !model.volatile;
        let mut certain = true;
        for (lba, version) in (lba..).zip(expected) {
            let history = &mut model.blocks[lba as usize];
            certain &= history.is_certainly(*version, began);
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

    /// What the blocks certainly hold now, if all of them do; `None` inside: zeroes.
    #[must_use]
    pub fn certain(&self, extent: Extent) -> Option<Vec<Option<u64>>> {
        let blocks = self.disks.get(extent.disk)?.blocks.get(extent.blocks())?;
        blocks.iter().map(|it| it.only(self.now)).collect()
    }

    /// A block of a disk that certainly has data.
    #[must_use]
    pub fn written(&self, disk: usize) -> Option<u64> {
        let blocks = self.disks.get(disk)?.blocks.iter();
        let mut blocks = (0..).zip(blocks);
        blocks
            .find(|(_, it)| matches!(it.only(self.now), Some(Some(_))))
            .map(|(lba, _)| lba)
    }

    /// A Flush of a disk that began at `began` succeeded.
    pub fn flushed(&mut self, disk: usize, began: Moment) {
        let oldest = self.oldest_read();
        let model = &self.disks[disk];
        if model.straddles(began) || model.meets_former(began) {
            return;
        }
        for history in &mut self.disks[disk].blocks {
            history.flushed(began);
            history.prune(oldest);
        }
    }

    /// The appliance went down, or came to rest: nothing is in flight any more.
    pub fn settled(&mut self) {
        let now = self.next_moment();
        self.lost.clear();
        for model in &mut self.disks {
            model.may_be_stuck = false;
        }
        for history in self.disks.iter_mut().flat_map(|disk| &mut disk.blocks) {
            history.settled(now);
        }
    }

    /// One disk lost power, and the appliance goes on.
    pub fn disk_lost_power(&mut self, disk: usize) {
        let now = self.next_moment();
        let model = &mut self.disks[disk];
        model.power_lost = now;
        for history in &mut model.blocks {
            history.lost_power();
        }
    }

    /// A disk was closed whose content goes with it: when it is opened again it is all zeroes, save
    /// for what is still on its way.
    pub fn content_lost(&mut self, disk: usize) {
        let now = self.next_moment();
        let model = &mut self.disks[disk];
        model.closed = now;
        model.content += 1;
        for history in &mut model.blocks {
            history.emptied(now);
        }
    }

    /// Which content a disk has, among all that any disk had.
    #[must_use]
    pub fn content(&self, disk: usize) -> ContentId {
        (disk, self.disks[disk].content)
    }

    /// A disk is about to be in another file, full of zeroes. `may_reach`: what is in flight may
    /// reach the new content, as nobody could reach the old one.
    pub fn exchange_begins(&mut self, disk: usize, may_reach: bool) {
        let model = &mut self.disks[disk];
        let open = model.blocks.iter().flat_map(BlockHistory::open);
        model.exchange = Some(Exchange {
            first_version: self.next_version,
            may_reach: open.filter(|_| may_reach).collect(),
        });
    }

    /// What was about to be exchanged is, or stays what it was.
    pub fn exchange_ends(&mut self, disk: usize, is_done: bool) {
        let now = self.next_moment();
        let model = &mut self.disks[disk];
        let Some(exchange) = model.exchange.take() else {
            return;
        };
        // What was read or flushed meanwhile says nothing of either content.
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

    /// The disks lost power, after the appliance went down.
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

    /// A read that begins now and returns what the write of `version` wrote.
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

    /// A write that is lost with controller `cntlid` of the host.
    fn lose(judge: &mut Judge, cntlid: u16) -> u64 {
        let (version, began) = judge.begin_write(&[EXTENT], false);
        judge.lose_write((HOST, cntlid), vec![EXTENT], version, began);
        version
    }

    #[test]
    fn a_lost_write_may_land_until_the_next_controller_is_ready() {
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
            // What was not there when the controller was ready comes no more.
            assert_eq!(read(&mut judge, lost).is_err(), noticed);
        }
    }

    #[test]
    fn a_lost_write_that_landed_in_time_stays() {
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
    fn a_later_write_of_the_host_overtakes_what_it_lost() {
        for (host, noticed) in [(HOST, true), (HOST, false), (HOST + 1, true)] {
            let mut judge = judge();
            let lost = lose(&mut judge, 1);
            if noticed {
                judge.noticed((HOST, 1));
            }
            let (newer, began) = judge.begin_write(&[EXTENT], false);
            assert_eq!(read(&mut judge, lost), Ok(()), "it is not answered yet");
            let _ = judge.overtaken(host, began, None);
            judge.end_write(&[EXTENT], newer, began, WriteEnd::Done { durable: true });
            assert_eq!(read(&mut judge, newer), Ok(()));
            let known_to_be_over = host == HOST && noticed;
            assert_eq!(read(&mut judge, lost).is_err(), known_to_be_over);
        }
    }

    #[test]
    fn what_the_kernel_may_hold_is_over_when_its_disk_acknowledges_something() {
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
    fn a_write_that_began_before_the_target_knew_overtakes_nothing() {
        let mut judge = judge();
        let lost = lose(&mut judge, 1);
        let (newer, began) = judge.begin_write(&[EXTENT], false);
        judge.noticed((HOST, 1));
        let _ = judge.overtaken(HOST, began, None);
        judge.end_write(&[EXTENT], newer, began, WriteEnd::Done { durable: true });
        assert_eq!(read(&mut judge, lost), Ok(()));
    }
}
