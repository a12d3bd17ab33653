//! Memory for the messages of a connection: receives, or sends.

use std::sync::Arc;

use hugemem::{Arena, DmaBuffer};
use rdma::{MemoryMap, Provider, SgeList};

use crate::limits::{BLOCK_MESSAGES, MESSAGE_BYTES};

/// Messages of [`MESSAGE_BYTES`] each.
#[derive(Debug)]
pub(crate) struct Messages {
    blocks: Vec<DmaBuffer>,
    /// Messages of one block: fewer than usual if the arena has no slices of that size.
    per_block: usize,
}

impl Messages {
    /// Memory for receives and for as many sends: at most `most` of each, and as much as the arena
    /// can spare.
    pub(crate) fn take_both(arena: &Arc<Arena>, most: usize) -> (Self, Self) {
        let per_block = (arena.max_transfer() / MESSAGE_BYTES).clamp(1, BLOCK_MESSAGES);
        let block = || arena.dma_buffer(per_block * MESSAGE_BYTES);
        let both = std::iter::from_fn(|| block().zip(block()));
        let (receives, sends) = both.take(most / per_block).unzip();
        let of = |blocks| Self { blocks, per_block };
        (of(receives), of(sends))
    }

    /// Number of messages.
    pub(crate) fn count(&self) -> usize {
        self.blocks.len() * self.per_block
    }

    fn at(&self, index: u16) -> Option<(&DmaBuffer, usize)> {
        let index = usize::from(index);
        let block = self.blocks.get(index / self.per_block)?;
        Some((block, index % self.per_block * MESSAGE_BYTES))
    }

    /// The beginning of a message for a work request.
    pub(crate) fn piece<P: Provider>(
        &self,
        map: &MemoryMap<P>,
        index: u16,
        bytes: usize,
    ) -> Option<SgeList> {
        let (block, offset) = self.at(index)?;
        map.gather(block, offset, bytes)
    }

    /// Copies the beginning of a received message.
    pub(crate) fn read(&self, index: u16, into: &mut [u8]) {
        if let Some((block, offset)) = self.at(index) {
            block.read(offset, into);
        }
    }

    /// Copies a message that will be sent.
    pub(crate) fn write(&self, index: u16, message: &[u8]) {
        if let Some((block, offset)) = self.at(index) {
            block.write(offset, message);
        }
    }

    /// Keeps the memory forever, because a device may still access it.
    pub(crate) fn give_up(&mut self) {
        std::mem::forget(std::mem::take(&mut self.blocks));
    }
}
