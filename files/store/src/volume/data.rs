//! Data of files: where they are on the device. The user moves them.

use std::ops;

use super::{Ticket, Volume, checked};
use crate::change::{Change, Mapping, Time};
use crate::error::Error;
use crate::limits::{BLOCK_BYTES, FILE_BYTES_MAX, MAPPINGS_MAX, WRITE_BYTES_MAX, WRITES_MAX};
use crate::space::Run;
use crate::state::{File, InodeId, cost};

/// A part of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Length in bytes.
    pub length: u64,
    /// First byte on the device; `None` for zeroes.
    pub device: Option<u64>,
}

/// What a search in a file looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Written data.
    Data,
    /// A hole, or the end of the file.
    Hole,
}

/// Identifies a write in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WriteId(u64);

/// A part of a write: whole blocks of the device.
///
/// The user fills the bytes outside of the data from `keep`, or with anything if it is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovePiece {
    /// First byte on the device, a multiple of the block.
    pub device: u64,
    /// Length in bytes, a multiple of the block.
    pub length: u64,
    /// Where the data begin within the piece.
    pub data_at: u64,
    /// Length of the data in bytes.
    pub data_length: u64,
    /// First byte on the device of the piece's old content, if a part of it must be kept.
    pub keep: Option<u64>,
}

/// A write whose data the user moves. Then it calls [`Volume::write_done`] or
/// [`Volume::write_failed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WritePlan {
    /// Its identifier.
    pub id: WriteId,
    /// The parts in the order of the data.
    pub pieces: Vec<MovePiece>,
}

/// A write in flight.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    id: WriteId,
    inode: InodeId,
    share: u32,
    offset: u64,
    length: u64,
    mappings: Vec<Mapping>,
    /// Blocks that were taken, and the account of metadata.
    fresh: u64,
    bytes: u64,
}

impl InFlight {
    fn blocks(&self) -> ops::Range<u64> {
        touched_blocks(&(self.offset..self.offset + self.length))
    }
}

fn touched_blocks(range: &ops::Range<u64>) -> ops::Range<u64> {
    range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES)
}

fn checked_range(offset: u64, length: u64) -> Result<ops::Range<u64>, Error> {
    let end = offset.checked_add(length).ok_or(Error::FileTooBig)?;
    if length == 0 {
        return Err(Error::Invalid);
    }
    (end <= FILE_BYTES_MAX)
        .then_some(offset..end)
        .ok_or(Error::FileTooBig)
}

impl Volume {
    /// Where the bytes of a file are. Bytes behind its end are left out.
    ///
    /// # Errors
    /// Returns an error if the object is no file.
    pub fn read(&self, inode: InodeId, offset: u64, length: u64) -> Result<Vec<Range>, Error> {
        let mut ranges = Vec::new();
        self.read_into(inode, offset, length, &mut ranges, usize::MAX)?;
        Ok(ranges)
    }

    /// As [`Self::read`], but replaces `ranges` by the first `max` ranges.
    ///
    /// # Errors
    /// Returns an error if the object is no file.
    pub fn read_into(
        &self,
        inode: InodeId,
        offset: u64,
        length: u64,
        ranges: &mut Vec<Range>,
        max: usize,
    ) -> Result<(), Error> {
        self.file_view(inode)?
            .read_into((offset, length), ranges, max)
    }

    /// Finds data or a hole from `offset` on; `None` if there is none. The end is a hole.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the offset is at or behind the end.
    pub fn seek(&self, inode: InodeId, offset: u64, seek: Seek) -> Result<Option<u64>, Error> {
        let file = self.file(inode)?;
        if offset >= file.size {
            return Err(Error::Invalid);
        }
        let written = file.written.next(offset);
        Ok(match (seek, written) {
            (Seek::Data, written) => written.map(|it| it.start.max(offset)),
            (Seek::Hole, Some(it)) if it.start <= offset => Some(it.end.min(file.size)),
            (Seek::Hole, _) => Some(offset),
        })
    }

    /// Plans a write of at most [`WRITE_BYTES_MAX`] bytes. Free blocks are taken; nothing else
    /// changes before [`Self::write_done`].
    ///
    /// # Errors
    /// Returns [`Error::Busy`] while another write to the same blocks is in flight, or why the
    /// write is not possible.
    pub fn write(&mut self, inode: InodeId, offset: u64, length: u64) -> Result<WritePlan, Error> {
        let mut pieces = Vec::new();
        let id = self.write_into(inode, offset, length, &mut pieces)?;
        Ok(WritePlan { id, pieces })
    }

    /// As [`Self::write`], but replaces `pieces` by the parts.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_into(
        &mut self,
        inode: InodeId,
        offset: u64,
        length: u64,
        pieces: &mut Vec<MovePiece>,
    ) -> Result<WriteId, Error> {
        let file = self.file(inode)?;
        if length > WRITE_BYTES_MAX {
            return Err(Error::Invalid);
        }
        let range = checked_range(offset, length)?;
        self.check_not_written(inode, range.clone())?;
        if self.writes.len() >= WRITES_MAX {
            return Err(Error::Busy);
        }
        let blocks = touched_blocks(&range);
        let (mut fresh, mut grown) = (0, 0);
        for block in blocks.clone() {
            let old = file.block(block).map(|run| run.start);
            grown += u64::from(old.is_none());
            fresh += u64::from(old.is_none_or(|it| self.state.space.is_shared(it)));
        }
        let share = self.inode(inode)?.share;
        self.check_quota(share, 0, grown)?;
        let bytes = cost::mappings(fresh as usize);
        self.check_memory(bytes)?;
        let runs = self
            .state
            .space
            .allocate(fresh, MAPPINGS_MAX)
            .ok_or(Error::NoSpace)?;
        let mut taken = runs.iter().flat_map(|run| run.start..run.end());
        let mut mappings = Vec::new();
        pieces.clear();
        let file = self.file(inode)?;
        for block in blocks {
            let old = file.block(block).map(|run| run.start);
            let device = match old {
                Some(device) if !self.state.space.is_shared(device) => device,
                _ => {
                    let device = taken.next().ok_or(Error::NoSpace)?;
                    add_mapping(&mut mappings, block, device);
                    device
                }
            };
            let bytes = block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES;
            let data = range.start.max(bytes.start)..range.end.min(bytes.end);
            // Also bytes that are not written any more: the change that removed them may be lost.
            let is_partial = data != bytes;
            add_piece(
                pieces,
                MovePiece {
                    device: device * BLOCK_BYTES,
                    length: BLOCK_BYTES,
                    data_at: data.start - bytes.start,
                    data_length: data.end - data.start,
                    keep: old.filter(|_| is_partial).map(|it| it * BLOCK_BYTES),
                },
            );
        }
        self.next_write += 1;
        let id = WriteId(self.next_write);
        self.reserved_bytes += bytes;
        *self.reserved_blocks.entry(share).or_default() += fresh;
        *self.opens.entry(inode.0).or_default() += 1;
        self.writes.push(InFlight {
            id,
            inode,
            share,
            offset,
            length,
            mappings,
            fresh,
            bytes,
        });
        Ok(id)
    }

    /// Records a write whose data the device has accepted. The ticket is durable with the data.
    ///
    /// # Errors
    /// Returns [`Error::Busy`] if the log has no room; the write is still in flight then.
    pub fn write_done(&mut self, id: WriteId, now: Time) -> Result<Ticket, Error> {
        if self.is_lost() {
            return Err(Error::Lost);
        }
        let write = self.writes.iter().find(|it| it.id == id);
        let write = write.ok_or(Error::Invalid)?;
        let change = Change::Write {
            inode: write.inode.0,
            offset: write.offset,
            length: write.length,
            mappings: write.mappings.clone(),
            time: checked(now)?,
        };
        let ticket = self.record(&change)?;
        self.end_write(id);
        Ok(ticket)
    }

    /// Ends a write whose data the device has not accepted. Blocks that the file had before may
    /// have old or new data.
    pub fn write_failed(&mut self, id: WriteId) {
        let Some(write) = self.writes.iter().find(|it| it.id == id) else {
            return;
        };
        for mapping in &write.mappings {
            self.state.space.give_back(Run {
                start: mapping.device,
                count: mapping.count,
            });
        }
        self.end_write(id);
    }

    fn end_write(&mut self, id: WriteId) {
        let Some(index) = self.writes.iter().position(|it| it.id == id) else {
            return;
        };
        let write = self.writes.swap_remove(index);
        self.reserved_bytes -= write.bytes;
        if let Some(blocks) = self.reserved_blocks.get_mut(&write.share) {
            *blocks -= write.fresh;
        }
        // Without room in the log, the object without links is freed later.
        if self.close(write.inode).is_err() {
            self.opens.remove(&write.inode.0);
        }
    }

    /// Checks that no write in flight touches a block of a range.
    pub(super) fn check_not_written(
        &self,
        inode: InodeId,
        range: ops::Range<u64>,
    ) -> Result<(), Error> {
        let blocks = touched_blocks(&range);
        let of_file = self.writes.iter().filter(|write| write.inode == inode);
        let mut of_file = of_file.map(InFlight::blocks);
        match of_file.any(|it| it.start < blocks.end && blocks.start < it.end) {
            true => Err(Error::Busy),
            false => Ok(()),
        }
    }

    /// Reserves blocks for the holes of a range, and extends the file to its end.
    ///
    /// # Errors
    /// Returns why the blocks cannot be reserved.
    pub fn allocate(
        &mut self,
        inode: InodeId,
        offset: u64,
        length: u64,
        now: Time,
    ) -> Result<Ticket, Error> {
        let range = checked_range(offset, length)?;
        self.check_not_written(inode, range.clone())?;
        let time = checked(now)?;
        let holes = holes(self.file(inode)?, touched_blocks(&range));
        let missing = holes.iter().map(|hole| hole.end - hole.start).sum();
        self.check_quota(self.inode(inode)?.share, 0, missing)?;
        self.check_memory(cost::mappings(MAPPINGS_MAX.min(missing as usize)))?;
        if holes.len() > MAPPINGS_MAX / 2 {
            return Err(Error::NoSpace);
        }
        let runs = self.state.space.allocate(missing, MAPPINGS_MAX / 2);
        let runs = runs.ok_or(Error::NoSpace)?;
        let mappings = placed(&holes, &runs);
        let change = Change::Allocate {
            inode: inode.0,
            mappings,
            size: range.end,
            time,
        };
        let recorded = self.record(&change);
        if recorded.is_err() {
            runs.iter().for_each(|run| self.state.space.give_back(*run));
        }
        recorded
    }

    /// Makes a hole. The size of the file does not change.
    ///
    /// # Errors
    /// Returns why the hole cannot be made.
    pub fn deallocate(
        &mut self,
        inode: InodeId,
        offset: u64,
        length: u64,
        now: Time,
    ) -> Result<Ticket, Error> {
        let end = offset
            .saturating_add(length)
            .min(self.file(inode)?.size.max(offset));
        if length == 0 {
            return Err(Error::Invalid);
        }
        self.check_not_written(inode, offset..end)?;
        // The hole may divide one run of blocks and one of written bytes.
        self.check_memory(cost::mappings(1))?;
        self.record(&Change::Deallocate {
            inode: inode.0,
            offset,
            length: end - offset,
            time: checked(now)?,
        })
    }

    /// Makes the blocks of a range part of another file, too. Both offsets are multiples of the
    /// block; a length of 0 is the rest of the source. A range that does not end at a block must
    /// end with the source and not before the end of the target.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] for other or overlapping ranges, or why the blocks cannot be
    /// shared.
    pub fn clone_range(
        &mut self,
        (from, from_offset): (InodeId, u64),
        (to, to_offset): (InodeId, u64),
        length: u64,
        now: Time,
    ) -> Result<Ticket, Error> {
        let source = self.file(from)?;
        let target = self.file(to)?;
        let length = match length {
            0 => source.size.checked_sub(from_offset).ok_or(Error::Invalid)?,
            length => length,
        };
        let range = checked_range(from_offset, length)?;
        let replaced = checked_range(to_offset, length)?;
        let is_aligned = |at: u64| at.is_multiple_of(BLOCK_BYTES);
        let ends = is_aligned(length) || range.end == source.size && replaced.end >= target.size;
        let overlaps = from == to && range.start < replaced.end && replaced.start < range.end;
        if !is_aligned(from_offset) || !is_aligned(to_offset) || !ends || overlaps {
            return Err(Error::Invalid);
        }
        if range.end > source.size {
            return Err(Error::Invalid);
        }
        self.check_not_written(from, range.clone())?;
        self.check_not_written(to, replaced.clone())?;
        let blocks = touched_blocks(&range);
        let mapped = blocks.end - blocks.start - hole_blocks(source, blocks.clone());
        let goal = touched_blocks(&replaced);
        let held = goal.end - goal.start - hole_blocks(target, goal);
        let runs = source.blocks.range(..blocks.end).count();
        let pieces = source
            .written
            .iter()
            .take_while(|it| it.start < range.end)
            .count();
        let share = self.inode(to)?.share;
        self.check_quota(share, 0, mapped.saturating_sub(held))?;
        self.check_memory(2 * cost::mappings(runs + pieces + 2))?;
        self.record(&Change::Clone {
            from: from.0,
            to: to.0,
            from_offset,
            to_offset,
            length,
            time: checked(now)?,
        })
    }
}

/// The runs of blocks within a range that have no block of the device.
fn holes(file: &File, blocks: ops::Range<u64>) -> Vec<ops::Range<u64>> {
    let mut holes = Vec::new();
    let mut at = blocks.start;
    while at < blocks.end && holes.len() <= MAPPINGS_MAX {
        match file.block(at) {
            Some(run) => at += run.count,
            None => {
                let end = file
                    .next_block(at)
                    .map_or(blocks.end, |next| next.min(blocks.end));
                holes.push(at..end);
                at = end;
            }
        }
    }
    holes
}

fn hole_blocks(file: &File, blocks: ops::Range<u64>) -> u64 {
    let mut count = 0;
    let mut at = blocks.start;
    while at < blocks.end {
        match file.block(at) {
            Some(run) => at += run.count,
            None => {
                let end = file
                    .next_block(at)
                    .map_or(blocks.end, |next| next.min(blocks.end));
                count += end - at;
                at = end;
            }
        }
    }
    count
}

/// Distributes runs of the device over holes of the same total length.
fn placed(holes: &[ops::Range<u64>], runs: &[Run]) -> Vec<Mapping> {
    let mut mappings = Vec::new();
    let mut runs = runs.iter().copied();
    let mut run = Run { start: 0, count: 0 };
    for hole in holes {
        let mut file = hole.start;
        while file < hole.end {
            if run.count == 0 {
                let Some(next) = runs.next() else {
                    return mappings;
                };
                run = next;
            }
            let count = run.count.min(hole.end - file);
            mappings.push(Mapping {
                file,
                device: run.start,
                count,
            });
            file += count;
            run = Run {
                start: run.start + count,
                count: run.count - count,
            };
        }
    }
    mappings
}

fn add_mapping(mappings: &mut Vec<Mapping>, file: u64, device: u64) {
    if let Some(last) = mappings.last_mut()
        && last.file + last.count == file
        && last.device + last.count == device
    {
        last.count += 1;
        return;
    }
    mappings.push(Mapping {
        file,
        device,
        count: 1,
    });
}

/// Adds a block to the pieces, or extends the last one if both are whole.
fn add_piece(pieces: &mut Vec<MovePiece>, piece: MovePiece) {
    let is_whole = |it: &MovePiece| it.data_length == it.length;
    if let Some(last) = pieces.last_mut()
        && is_whole(last)
        && is_whole(&piece)
        && last.device + last.length == piece.device
    {
        last.length += piece.length;
        last.data_length += piece.data_length;
        return;
    }
    pieces.push(piece);
}
