//! Positions in a chunk, the memory of a client.

use files_spec::rdma::{Chunk, Segment};
use rdma::RemoteAddress;

/// A position in a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote<'c> {
    segments: &'c [Segment],
    /// Used bytes of the first segment.
    used: usize,
}

impl<'c> Remote<'c> {
    /// The position behind the first `skip` bytes of a chunk.
    pub(crate) fn new(chunk: &'c Chunk, skip: usize) -> Self {
        let mut remote = Self {
            segments: chunk.segments(),
            used: 0,
        };
        let mut left = skip;
        while left > 0 {
            let Some((_, bytes)) = remote.take(left) else {
                break;
            };
            left -= bytes;
        }
        remote
    }

    /// Takes at most `most` bytes that are contiguous. Returns `None` at the end of the chunk.
    pub(crate) fn take(&mut self, most: usize) -> Option<(RemoteAddress, usize)> {
        loop {
            let (first, rest) = self.segments.split_first()?;
            let room = first.length as usize - self.used;
            if room == 0 {
                (self.segments, self.used) = (rest, 0);
                continue;
            }
            let bytes = room.min(most);
            let address = RemoteAddress {
                // Segments do not wrap around.
                address: first.offset + self.used as u64,
                rkey: first.handle,
            };
            self.used += bytes;
            return Some((address, bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_goes_through_all_segments_and_ends() {
        let mut chunk = Chunk::default();
        for (handle, length) in [(1, 0), (2, 10), (3, 0), (4, 5)] {
            let offset = u64::from(handle) << 32;
            let segment = Segment {
                handle,
                length,
                offset,
            };
            chunk.push(segment).expect("room");
        }
        let taken = |skip: usize, most: usize| -> Vec<(u32, u64, usize)> {
            let mut remote = Remote::new(&chunk, skip);
            let parts = std::iter::from_fn(|| remote.take(most));
            parts
                .map(|(at, bytes)| (at.rkey, at.address & 0xffff_ffff, bytes))
                .collect()
        };
        assert_eq!(taken(0, 100), [(2, 0, 10), (4, 0, 5)]);
        assert_eq!(taken(3, 4), [(2, 3, 4), (2, 7, 3), (4, 0, 4), (4, 4, 1)]);
        assert_eq!(taken(10, 100), [(4, 0, 5)]);
        assert_eq!(taken(15, 100), []);
        assert_eq!(taken(99, 100), []);
    }
}
