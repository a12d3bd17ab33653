//! Content of test blocks: a stamp that identifies the block and the write.
//!
//! Every 32 bytes of a block contain the whole stamp and their own position, so that a misplaced,
//! torn, shifted or damaged block is detected from any part of it.

/// Size of one record of a stamp, in bytes.
const RECORD_BYTES: usize = 32;

/// Identifies a block and the write that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The number of the device.
    pub device: u32,
    /// The block.
    pub lba: u64,
    /// The number of the write, unique in a run.
    pub version: u64,
}

/// The content found in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Zeroes.
    Zero,
    /// The content of this write.
    Written(u64),
    /// An intact block of another address.
    Misplaced(Stamp),
    /// Parts of two writes.
    Torn(u64, u64),
    /// None of these, starting at this byte.
    Garbage(usize),
}

impl Content {
    /// The write of an intact block, or an inner `None` for zeroes. The outer `None` means that no
    /// single write to this block left this content.
    #[must_use]
    pub fn version(self) -> Option<Option<u64>> {
        match self {
            Self::Zero => Some(None),
            Self::Written(version) => Some(Some(version)),
            Self::Misplaced(_) | Self::Torn(..) | Self::Garbage(_) => None,
        }
    }
}

impl Stamp {
    fn record(self, index: usize) -> [u8; RECORD_BYTES] {
        let place = self.lba | u64::from(self.device) << 48;
        let check = mixed(place ^ mixed(self.version) ^ (index as u64) << 32);
        let mut record = [0; RECORD_BYTES];
        let words = [place, self.version, index as u64, check];
        for (bytes, word) in record.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        record
    }

    /// Fills a block with the stamp.
    pub fn write(self, block: &mut [u8]) {
        for (index, record) in block.chunks_exact_mut(RECORD_BYTES).enumerate() {
            record.copy_from_slice(&self.record(index));
        }
    }
}

/// Reads the content of a block that should be block `lba` of `device`.
#[must_use]
pub fn read(block: &[u8], device: u32, lba: u64) -> Content {
    if block.iter().all(|byte| *byte == 0) {
        return Content::Zero;
    }
    let mut first: Option<Stamp> = None;
    for (index, record) in block.chunks_exact(RECORD_BYTES).enumerate() {
        let Some(stamp) = stamp_of(record, index) else {
            return Content::Garbage(index * RECORD_BYTES);
        };
        match first {
            None => first = Some(stamp),
            Some(other) if other == stamp => {}
            Some(other) => return Content::Torn(other.version, stamp.version),
        }
    }
    match first {
        Some(stamp) if stamp.device == device && stamp.lba == lba => {
            Content::Written(stamp.version)
        }
        Some(stamp) => Content::Misplaced(stamp),
        None => Content::Garbage(0),
    }
}

/// Reads the stamp from the first record of a block, or an inner `None` for zeroes. The outer `None`
/// means that the whole block has to be read.
#[must_use]
pub fn stamp_at(first: &[u8]) -> Option<Option<Stamp>> {
    let record = &first[..RECORD_BYTES];
    if record.iter().all(|byte| *byte == 0) {
        return Some(None);
    }
    stamp_of(record, 0).map(Some)
}

fn stamp_of(record: &[u8], index: usize) -> Option<Stamp> {
    let word = |at: usize| -> Option<u64> {
        let bytes = record.get(at * 8..at * 8 + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    let (place, version) = (word(0)?, word(1)?);
    let stamp = Stamp {
        device: (place >> 48) as u32,
        lba: place & ((1 << 48) - 1),
        version,
    };
    (stamp.record(index) == record).then_some(stamp)
}

/// The finalizer of SplitMix64: every input bit affects every output bit.
#[must_use]
pub fn mixed(word: u64) -> u64 {
    reactors::sim::Seeded::new(word, 0).draw()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp {
        device: 3,
        lba: 17,
        version: 99,
    };

    fn block() -> [u8; 512] {
        let mut block = [0; 512];
        STAMP.write(&mut block);
        block
    }

    #[test]
    fn stamp_round_trips() {
        assert_eq!(read(&block(), 3, 17), Content::Written(99));
        assert_eq!(read(&[0; 512], 3, 17), Content::Zero);
    }

    #[test]
    fn kinds_of_corruption_are_distinguished() {
        assert_eq!(read(&block(), 3, 18), Content::Misplaced(STAMP));
        assert_eq!(read(&block(), 4, 17), Content::Misplaced(STAMP));
        let mut torn = block();
        let newer = Stamp {
            version: 100,
            ..STAMP
        };
        let mut other = [0; 512];
        newer.write(&mut other);
        torn[256..].copy_from_slice(&other[256..]);
        assert_eq!(read(&torn, 3, 17), Content::Torn(99, 100));
        for byte in 0..512 {
            let mut damaged = block();
            damaged[byte] ^= 1;
            let from = byte / RECORD_BYTES * RECORD_BYTES;
            assert_eq!(read(&damaged, 3, 17), Content::Garbage(from));
        }
        let mut shifted = block();
        shifted.rotate_left(RECORD_BYTES);
        assert_eq!(read(&shifted, 3, 17), Content::Garbage(0));
        let mut half = block();
        half[..256].fill(0);
        assert_eq!(read(&half, 3, 17), Content::Garbage(0));
    }
}
