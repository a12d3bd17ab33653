//! The blocks of one namespace, and the effect of a power cut on them.
//!
//! A read returns `current`. With a volatile write cache, `durable` is the content of the medium. A
//! block that was written and not committed is in the cache, marked with the number of its write. A
//! power cut decides for each write, by seed: a write of at most the atomic unit survives or is
//! lost as a whole; the blocks of a longer one are decided individually (NVM 1.1 §2.1.4.3, AWUPF).

use reactors::sim::{Seeded, random_bit};

/// Capacity of the cache in blocks: the maximum of one command. A full cache is flushed.
const CACHE_BLOCKS_MAX: usize = 1 << 16;

pub(super) struct Medium {
    block_size: usize,
    atomic_blocks: u64,
    current: Vec<u8>,
    /// Empty if there is no cache.
    durable: Vec<u8>,
    /// Number of the write whose data is in the cache, per block; 0 if the medium is up to date.
    cached_by: Vec<u64>,
    /// Blocks that may be cached, unordered, with duplicates.
    cached: Vec<u64>,
    writes: u64,
    seeded: Seeded,
}

impl Medium {
    pub(super) fn new(
        block_size: usize,
        block_count: u64,
        cache: bool,
        atomic: u16,
        seed: u64,
    ) -> Self {
        let blocks = block_count as usize;
        let bytes = blocks * block_size;
        Self {
            block_size,
            atomic_blocks: u64::from(atomic),
            current: vec![0; bytes],
            durable: vec![0; if cache { bytes } else { 0 }],
            cached_by: vec![0; if cache { blocks } else { 0 }],
            cached: Vec::with_capacity(if cache { CACHE_BLOCKS_MAX } else { 0 }),
            writes: 0,
            seeded: Seeded::at(seed),
        }
    }

    fn bytes(&self, lba: u64, blocks: u64) -> std::ops::Range<usize> {
        let start = lba as usize * self.block_size;
        start..start + blocks as usize * self.block_size
    }

    /// The current content of the blocks.
    pub(super) fn read(&self, lba: u64, blocks: u64) -> &[u8] {
        &self.current[self.bytes(lba, blocks)]
    }

    /// The content of the blocks if power is cut now and the whole cache is lost.
    pub(super) fn read_durable(&self, lba: u64, blocks: u64) -> &[u8] {
        let range = self.bytes(lba, blocks);
        if self.durable.is_empty() {
            &self.current[range]
        } else {
            &self.durable[range]
        }
    }

    /// The memory of the blocks, which the caller fills immediately. They count as cached if there
    /// is a cache.
    pub(super) fn write(&mut self, lba: u64, blocks: u64) -> &mut [u8] {
        if !self.durable.is_empty() {
            self.cache(lba, blocks);
        }
        let range = self.bytes(lba, blocks);
        &mut self.current[range]
    }

    /// Copies blocks; they count as written.
    pub(super) fn copy(&mut self, from: u64, to: u64, blocks: u64) {
        let from = self.bytes(from, blocks);
        let to = self.bytes(to, blocks);
        if !self.durable.is_empty() {
            self.cache(to.start as u64 / self.block_size as u64, blocks);
        }
        self.current.copy_within(from, to.start);
    }

    fn cache(&mut self, lba: u64, blocks: u64) {
        if self.cached.len() as u64 + blocks > CACHE_BLOCKS_MAX as u64 {
            self.flush();
        }
        for block in lba..lba + blocks {
            // If a part of a cached write were overwritten and the rest committed later, the write
            // would be torn.
            if self.cached_by[block as usize] != 0 && self.atomic_blocks > 1 {
                self.commit_write_of(block);
            }
        }
        if self.seeded.below(8) == 0 && !self.cached.is_empty() {
            let index = self.seeded.below(self.cached.len() as u64) as usize;
            self.commit_write_of(self.cached[index]);
        }
        let whole = blocks <= self.atomic_blocks;
        self.writes += 1;
        for block in lba..lba + blocks {
            if self.cached_by[block as usize] == 0 {
                self.cached.push(block);
            }
            self.cached_by[block as usize] = self.writes;
            self.writes += u64::from(!whole);
        }
    }

    /// Commits the whole cached write that includes a block.
    fn commit_write_of(&mut self, block: u64) {
        let number = self.cached_by[block as usize];
        if number == 0 {
            return;
        }
        let first = block.saturating_sub(self.atomic_blocks - 1);
        let end = (block + self.atomic_blocks).min(self.cached_by.len() as u64);
        for block in first..end {
            if self.cached_by[block as usize] == number {
                self.commit_block(block);
            }
        }
    }

    fn commit_block(&mut self, block: u64) {
        let range = self.bytes(block, 1);
        self.durable[range.clone()].copy_from_slice(&self.current[range]);
        self.cached_by[block as usize] = 0;
    }

    /// Commits written blocks (Force Unit Access).
    pub(super) fn commit(&mut self, lba: u64, blocks: u64) {
        if self.durable.is_empty() {
            return;
        }
        for block in lba..lba + blocks {
            self.commit_block(block);
        }
    }

    /// Commits all cached blocks.
    pub(super) fn flush(&mut self) {
        let mut cached = std::mem::take(&mut self.cached);
        for &block in &cached {
            if self.cached_by[block as usize] != 0 {
                self.commit_block(block);
            }
        }
        cached.clear();
        self.cached = cached;
    }

    /// Loses cached writes, selected by the seed. Returns the number of blocks lost.
    pub(super) fn power_cut(&mut self) -> u64 {
        let salt = self.seeded.draw();
        let mut lost = 0;
        for index in 0..self.cached.len() {
            let block = self.cached[index];
            let number = self.cached_by[block as usize];
            if number == 0 {
                continue;
            }
            if random_bit(salt, number) {
                self.commit_block(block);
            } else {
                let range = self.bytes(block, 1);
                self.current[range.clone()].copy_from_slice(&self.durable[range]);
                self.cached_by[block as usize] = 0;
                lost += 1;
            }
        }
        self.cached.clear();
        lost
    }
}
