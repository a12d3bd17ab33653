//! An input as a sequence of choices. Missing bytes at its end read as zero, so every prefix of an
//! input is a valid input.

/// The remaining input.
#[derive(Clone, Debug)]
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of remaining bytes.
    pub(crate) fn left(&self) -> usize {
        self.0.len()
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let there = self.take(N);
        array[..there.len()].copy_from_slice(there);
        array
    }

    pub(crate) fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// True for one in `many` values of the next byte.
    pub(crate) fn one_in(&mut self, many: u8) -> bool {
        self.u8() % many == many - 1
    }

    /// A number below `bound`, which is at most 256.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::from(self.u8()) % bound
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// The next `most` bytes, or all remaining ones.
    pub(crate) fn take(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Up to 255 bytes; the first byte is the length.
    pub(crate) fn bytes(&mut self) -> &'a [u8] {
        let bytes = usize::from(self.u8());
        self.take(bytes)
    }
}
