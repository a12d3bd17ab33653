//! Stamps that identify the address and the age of a block, and a model of the expected age of
//! every block.
//!
//! A block begins with a 32-byte header (mark, LBA, generation, seed), followed by a pattern that
//! depends on the last three. This distinguishes misplaced blocks, blocks of an earlier write,
//! blocks of another run and damaged blocks. The model rejects writes that overlap a request in
//! flight, so that the expected data of a read is always unambiguous.

use reactors::sim::mix;

/// Header size in bytes, which is also the smallest block that can be stamped.
pub const HEADER_BYTES: usize = 32;
/// First eight bytes of every stamped block.
const MARK: u64 = u64::from_le_bytes(*b"WINDLASS");

/// Fills `block` for `lba` at `generation`. Its length must be a multiple of 8 and at least
/// [`HEADER_BYTES`].
pub fn stamp(block: &mut [u8], seed: u64, lba: u64, generation: u32) {
    let (words, rest) = block.as_chunks_mut::<8>();
    assert!(
        words.len() >= HEADER_BYTES / 8 && rest.is_empty(),
        "blocks are multiples of 512"
    );
    let (header, pattern) = words.split_at_mut(HEADER_BYTES / 8);
    for (word, value) in header
        .iter_mut()
        .zip([MARK, lba, u64::from(generation), seed])
    {
        *word = value.to_le_bytes();
    }
    let base = pattern_base(seed, lba, generation);
    for (index, word) in pattern.iter_mut().enumerate() {
        *word = pattern_word(base, index).to_le_bytes();
    }
}

fn pattern_base(seed: u64, lba: u64, generation: u32) -> u64 {
    mix(mix(seed ^ lba).wrapping_add(u64::from(generation)))
}

/// Cheaper than a full mix. Each word depends only on its index, so the compiler can vectorize the
/// loop.
fn pattern_word(base: u64, index: usize) -> u64 {
    let value = base.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    value ^ (value >> 29)
}

/// The kind of mismatch of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// An intact block of this run, but of another address.
    #[error("it holds block {found} (misplaced)")]
    Misplaced {
        /// The LBA that the block was written to.
        found: u64,
    },
    /// An intact block of this run and address, but not of the last write.
    #[error("it holds generation {found}, not {expected} (stale)")]
    Stale {
        /// The generation that was read.
        found: u32,
        /// The generation that was acknowledged last.
        expected: u32,
    },
    /// An intact block of another run.
    #[error("it was written by another run, with seed {found_seed:#x} (stale)")]
    OtherRun {
        /// That run's seed.
        found_seed: u64,
    },
    /// Only zeroes.
    #[error("it holds zeroes only (lost)")]
    Zeroes,
    /// Not an intact block; describes the first byte that differs.
    #[error("byte {offset} is {found:#04x}, not {expected:#04x} (corrupt)")]
    Corrupt {
        /// Offset in the block.
        offset: usize,
        /// The byte that was read.
        found: u8,
        /// The byte that was written.
        expected: u8,
    },
}

/// A block with wrong content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("block {lba}: {wrong}")]
pub struct Mismatch {
    /// The block that was read.
    pub lba: u64,
    /// The kind of mismatch.
    pub wrong: Wrong,
}

/// Checks that `block` is exactly what [`stamp`] wrote.
///
/// # Errors
/// [`Wrong`], as precise as the block's header allows.
pub fn check(block: &[u8], seed: u64, lba: u64, generation: u32) -> Result<(), Wrong> {
    let Some((offset, found, expected)) = first_difference(block, seed, lba, generation) else {
        return Ok(());
    };
    Err(
        diagnose(block, seed, lba, generation).unwrap_or(Wrong::Corrupt {
            offset,
            found,
            expected,
        }),
    )
}

/// The first byte that differs from the stamp: its offset, the found value and the expected one.
fn first_difference(block: &[u8], seed: u64, lba: u64, generation: u32) -> Option<(usize, u8, u8)> {
    let (words, _) = block.as_chunks::<8>();
    let base = pattern_base(seed, lba, generation);
    let header = [MARK, lba, u64::from(generation), seed];
    let due = |index: usize| match header.get(index) {
        Some(&value) => value,
        None => pattern_word(base, index - header.len()),
    };
    let index = words
        .iter()
        .enumerate()
        .position(|(index, word)| u64::from_le_bytes(*word) != due(index))?;
    let expected = due(index).to_le_bytes();
    let within = words[index]
        .iter()
        .zip(&expected)
        .position(|(found, due)| found != due)?;
    Some((index * 8 + within, words[index][within], expected[within]))
}

/// Identifies a differing block that is intact but has another address, age or run.
fn diagnose(block: &[u8], seed: u64, lba: u64, generation: u32) -> Option<Wrong> {
    if block.iter().all(|&byte| byte == 0) {
        return Some(Wrong::Zeroes);
    }
    let (words, _) = block.as_chunks::<8>();
    let &[mark, found_lba, found_generation, found_seed] = words.first_chunk::<4>()?;
    let found_lba = u64::from_le_bytes(found_lba);
    let found_generation = u32::try_from(u64::from_le_bytes(found_generation)).ok()?;
    let found_seed = u64::from_le_bytes(found_seed);
    let whole = u64::from_le_bytes(mark) == MARK
        && first_difference(block, found_seed, found_lba, found_generation).is_none();
    if !whole {
        return None;
    }
    if found_seed != seed {
        Some(Wrong::OtherRun { found_seed })
    } else if found_lba != lba {
        Some(Wrong::Misplaced { found: found_lba })
    } else {
        Some(Wrong::Stale {
            found: found_generation,
            expected: generation,
        })
    }
}

/// The model of one block.
#[derive(Debug, Clone, Copy, Default)]
struct Block {
    /// Number of writes started; 0 before the first.
    generation: u32,
    /// Whether the block must contain `generation`: false before the first write and after a failed
    /// one.
    known: bool,
    writer: bool,
    readers: u16,
}

/// The model of the blocks `first_lba .. first_lba + len`.
#[derive(Debug)]
pub struct Model {
    seed: u64,
    first_lba: u64,
    block_bytes: usize,
    blocks: Vec<Block>,
}

/// Counters of checked blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checked {
    /// Blocks with the expected content.
    pub right: u64,
    /// Blocks that were never written, or whose last write failed.
    pub unknown: u64,
}

impl Model {
    /// A model of `blocks` blocks of `block_bytes` from `first_lba`, whose content is unknown.
    #[must_use]
    pub fn new(seed: u64, first_lba: u64, blocks: usize, block_bytes: usize) -> Self {
        Self {
            seed,
            first_lba,
            block_bytes,
            blocks: vec![Block::default(); blocks],
        }
    }

    /// First block of the range.
    #[must_use]
    pub fn first_lba(&self) -> u64 {
        self.first_lba
    }

    /// Number of blocks in the range.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Whether the range has no blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    fn range(&mut self, lba: u64, blocks: u32) -> Option<&mut [Block]> {
        let start = usize::try_from(lba.checked_sub(self.first_lba)?).ok()?;
        self.blocks
            .get_mut(start..start.checked_add(blocks as usize)?)
    }

    /// Whether a request can be sent now: it is within the range and conflicts with no request in
    /// flight.
    #[must_use]
    pub fn is_free(&self, read: bool, lba: u64, blocks: u32) -> bool {
        let start = lba
            .checked_sub(self.first_lba)
            .and_then(|start| usize::try_from(start).ok());
        let range = start.and_then(|start| Some(start..start.checked_add(blocks as usize)?));
        let blocks = range.and_then(|range| self.blocks.get(range));
        let free = |block: &Block| !block.writer && (read || block.readers == 0);
        blocks.is_some_and(|blocks| blocks.iter().all(free))
    }

    /// Reserves the blocks for a write and fills `data` with their next generation. Returns false
    /// without a change if the range is not in the model or overlaps a request in flight.
    pub fn begin_write(&mut self, lba: u64, data: &mut [u8]) -> bool {
        let (seed, block_bytes) = (self.seed, self.block_bytes);
        let count = (data.len() / block_bytes) as u32;
        let Some(blocks) = self.range(lba, count) else {
            return false;
        };
        if blocks.iter().any(|block| block.writer || block.readers > 0) {
            return false;
        }
        for ((block, image), lba) in blocks
            .iter_mut()
            .zip(data.chunks_mut(block_bytes))
            .zip(lba..)
        {
            block.writer = true;
            block.generation = block.generation.wrapping_add(1);
            stamp(image, seed, lba, block.generation);
        }
        true
    }

    /// Reverts a write that was not sent: the blocks are unchanged.
    pub fn cancel_write(&mut self, lba: u64, blocks: u32) {
        if let Some(blocks) = self.range(lba, blocks) {
            for block in blocks {
                debug_assert!(block.writer, "cancel follows begin");
                block.writer = false;
                block.generation = block.generation.wrapping_sub(1);
            }
        }
    }

    /// Ends a write. After a failed one the blocks may contain either generation, so they are
    /// unknown.
    pub fn finish_write(&mut self, lba: u64, blocks: u32, acknowledged: bool) {
        if let Some(blocks) = self.range(lba, blocks) {
            for block in blocks {
                debug_assert!(block.writer, "finish follows begin");
                block.writer = false;
                block.known = acknowledged;
            }
        }
    }

    /// Reserves the blocks for a read. Returns false if the range is not in the model or overlaps a
    /// write in flight.
    pub fn begin_read(&mut self, lba: u64, blocks: u32) -> bool {
        let Some(blocks) = self.range(lba, blocks) else {
            return false;
        };
        if blocks
            .iter()
            .any(|block| block.writer || block.readers == u16::MAX)
        {
            return false;
        }
        for block in blocks {
            block.readers += 1;
        }
        true
    }

    /// Ends a read; `data` is what it returned, `None` if it failed.
    ///
    /// # Errors
    /// The first block with wrong content.
    pub fn finish_read(
        &mut self,
        lba: u64,
        blocks: u32,
        data: Option<&[u8]>,
    ) -> Result<Checked, Mismatch> {
        let (seed, block_bytes) = (self.seed, self.block_bytes);
        let Some(range) = self.range(lba, blocks) else {
            return Ok(Checked::default());
        };
        for block in range.iter_mut() {
            debug_assert!(block.readers > 0, "finish follows begin");
            block.readers -= 1;
        }
        let mut checked = Checked::default();
        let Some(data) = data else { return Ok(checked) };
        for ((block, image), lba) in range.iter().zip(data.chunks(block_bytes)).zip(lba..) {
            if !block.known {
                checked.unknown += 1;
                continue;
            }
            check(image, seed, lba, block.generation).map_err(|wrong| Mismatch { lba, wrong })?;
            checked.right += 1;
        }
        Ok(checked)
    }
}

#[cfg(test)]
mod tests;
