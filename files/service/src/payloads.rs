//! The data of a reply's holes, in the memory where they are.

use files_spec::xdr::HOLES_MAX;
use hugemem::{Data, Pool};

use crate::transfer::ZEROES;

/// A part of the data of a hole with its memory.
#[derive(Debug)]
pub struct PayloadPart {
    /// The memory; `None` for at most [`crate::limits::PIECE_BYTES_MAX`] zeroes.
    pub data: Option<Data>,
    /// Where in the memory the part begins.
    pub skip: usize,
    /// Its length in bytes.
    pub length: usize,
}

impl PayloadPart {
    /// Its bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.data {
            Some(data) => &data[self.skip..self.skip + self.length],
            None => &ZEROES[..self.length],
        }
    }
}

/// The data of the holes of a reply, in their order.
#[derive(Debug, Default)]
pub(crate) struct Payloads {
    parts: Vec<PayloadPart>,
    /// Where the parts of each hole end, and how many have ended: one more than a reply can have, for
    /// data that do not become part of it.
    ends: [usize; HOLES_MAX + 1],
    ended: usize,
}

impl Payloads {
    /// Appends a part of the next hole.
    #[inline]
    pub(crate) fn push(&mut self, part: PayloadPart) {
        self.parts.push(part);
    }

    /// Ends the next hole with the parts that were appended.
    #[inline]
    pub(crate) fn end_hole(&mut self) {
        self.ends[self.ended] = self.parts.len();
        self.ended += 1;
    }

    /// Frees the parts of a hole that has not ended.
    pub(crate) fn drop_unended(&mut self) {
        self.parts.truncate(self.begin(self.ended));
    }

    /// Frees the data of the holes from this one on.
    #[inline]
    pub(crate) fn truncate(&mut self, holes: usize) {
        if holes < self.ended {
            self.parts.truncate(self.begin(holes));
            self.ended = holes;
        }
    }

    /// Where the parts of a hole begin.
    #[inline]
    fn begin(&self, hole: usize) -> usize {
        hole.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// The parts of a hole.
    #[inline]
    pub(crate) fn of(&self, hole: usize) -> &[PayloadPart] {
        &self.parts[self.begin(hole)..self.ends[hole]]
    }

    /// Takes the memory of the parts of a hole.
    pub(crate) fn take(&mut self, hole: usize) -> impl Iterator<Item = PayloadPart> {
        let parts = self.begin(hole)..self.ends[hole];
        self.parts[parts].iter_mut().map(|part| PayloadPart {
            data: part.data.take(),
            ..*part
        })
    }

    /// Copies what devices lend, and counts the bytes. Returns false if memory is missing.
    pub(crate) fn copy_borrowed(&mut self, pool: &Pool, copied: &mut u64) -> bool {
        for part in &mut self.parts {
            let Some(Data::Borrow(borrow)) = &part.data else {
                continue;
            };
            let Some(mut lease) = pool.take(borrow.len()) else {
                return false;
            };
            lease.copy_from_slice(borrow);
            *copied += lease.len() as u64;
            part.data = Some(Data::Lease(lease));
        }
        true
    }
}
