//! Limits on slices of an arena that are kept: pure arithmetic, used by the arena and for planning
//! one.
//!
//! Most slices are taken and returned with requests. Three kinds are kept:
//! [`DmaBuffer`](crate::DmaBuffer)s, leases that a device queue keeps
//! ([`Pool::take_permanent`](crate::Pool::take_permanent)), and slices under a
//! [`SlicePromise`](crate::SlicePromise), which are kept while no message arrives. Promises take at
//! most half of a class, and kept leases leave a quarter to requests. In a class with promises,
//! buffers leave at least one slice for requests, so that every request can be served.

use crate::class::{CLASS_BYTES, CLASSES, Carving, class_for};

/// Slices of each class with promises that only requests may use.
const FOR_REQUESTS_MIN: u32 = 1;
/// Kept leases of device queues leave 1/n of a class to requests.
const FOR_REQUESTS_PART: u32 = 4;
/// Promises take at most 1/n of a class.
const PROMISED_PART: u32 = 2;

/// The slices of an arena by class, and the number of those that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slices {
    total: [u32; CLASSES],
    buffers: [u32; CLASSES],
    promised: [u32; CLASSES],
}

impl Slices {
    /// The slices of an arena of `bytes` and transfers of `max_transfer` bytes; `None` if such an
    /// arena is impossible.
    #[must_use]
    pub fn of(bytes: usize, max_transfer: usize) -> Option<Self> {
        Some(Self::new(&Carving::new(bytes, max_transfer)?))
    }

    pub(crate) fn new(carving: &Carving) -> Self {
        Self {
            total: carving.counts,
            buffers: [0; CLASSES],
            promised: [0; CLASSES],
        }
    }

    /// Takes a slice for a buffer of `len` bytes, from the smallest class that can spare one.
    pub fn take_buffer(&mut self, len: usize) -> Option<()> {
        let class = (class_for(len)?..CLASSES).find(|class| self.spares_buffer(*class))?;
        self.buffers[class] += 1;
        Some(())
    }

    /// Slices left for requests, with the bytes of one, smallest class first.
    #[must_use]
    pub fn left(&self) -> [(usize, u32); CLASSES] {
        std::array::from_fn(|class| {
            (
                CLASS_BYTES[class],
                self.total[class] - self.permanent(class),
            )
        })
    }

    fn permanent(&self, class: usize) -> u32 {
        self.buffers[class] + self.promised[class]
    }

    pub(crate) fn spares_buffer(&self, class: usize) -> bool {
        let stays = FOR_REQUESTS_MIN * u32::from(self.promised[class] > 0);
        self.permanent(class) + stays < self.total[class]
    }

    /// Whether one more slice of a class can be kept if the appliance has `permanent` already,
    /// buffers included.
    pub(crate) fn spares_permanent(&self, class: usize, permanent: u32) -> bool {
        let total = self.total[class];
        let for_requests = total.div_ceil(FOR_REQUESTS_PART);
        permanent + self.promised[class] + for_requests < total
    }

    pub(crate) fn add_buffer(&mut self, class: usize) {
        self.buffers[class] += 1;
    }

    pub(crate) fn remove_buffer(&mut self, class: usize) {
        self.buffers[class] -= 1;
    }

    /// Number of slices of a class that can still be promised.
    fn can_promise(&self, class: usize) -> u32 {
        let part = (self.total[class] / PROMISED_PART).saturating_sub(self.promised[class]);
        let permanent = self.permanent(class) + FOR_REQUESTS_MIN;
        part.min(self.total[class].saturating_sub(permanent))
    }

    /// Promises up to `count` slices for `len` bytes each to one of `sharers` that request as many,
    /// all from the smallest class that can still promise any. Returns their number, at least one.
    pub fn promise(&mut self, len: usize, count: u32, sharers: u32) -> Option<u32> {
        self.promise_of_class(len, count, sharers)
            .map(|(_, granted)| granted)
    }

    pub(crate) fn promise_of_class(
        &mut self,
        len: usize,
        count: u32,
        sharers: u32,
    ) -> Option<(usize, u32)> {
        let class = (class_for(len)?..CLASSES).find(|class| self.can_promise(*class) > 0)?;
        let share = self.total[class] / PROMISED_PART / sharers.max(1);
        let granted = count.min(share).clamp(1, self.can_promise(class));
        self.promised[class] += granted;
        Some((class, granted))
    }

    /// Promised slices of a class.
    pub(crate) fn promised(&self, class: usize) -> u32 {
        self.promised[class]
    }

    pub(crate) fn end_promise(&mut self, class: usize, count: u32) {
        self.promised[class] -= count;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 1024 of 4 KiB, 192 of 16 KiB, 48 of 64 KiB, 12 of 256 KiB, 3 of 1 MiB.
    fn slices() -> Slices {
        Slices::of(16 << 20, 1 << 20).expect("an arena")
    }

    #[test]
    fn promises_take_at_most_half_of_a_class_in_equal_shares() {
        let mut slices = slices();
        assert_eq!(slices.promise(4096, 1024, 4), Some(128));
        assert_eq!(slices.promise(4096, 100, 4), Some(100));
        assert_eq!(slices.promise(4096, 1024, 4), Some(128));
        assert_eq!(slices.promise(4096, 1024, 4), Some(128));
        assert_eq!(slices.left()[0], (4096, 1024 - 484));
        assert_eq!(slices.promise(4096, 1024, 1), Some(28));
        // The class can promise no more, so the next one does.
        assert_eq!(slices.promise(4096, 1024, 1), Some(96));
        assert_eq!(slices.left()[1], (16 << 10, 96));
    }

    #[test]
    fn last_slice_is_not_promised_nor_a_buffer_beside_promises() {
        let mut single = Slices::of(1 << 20, 1 << 20).expect("an arena");
        assert_eq!(single.promise(4096, 1, 1), None);
        assert_eq!(single.take_buffer(4096), Some(()));
        assert_eq!(single.take_buffer(4096), None);
        let mut slices = slices();
        assert_eq!(slices.promise(1 << 20, 8, 1), Some(1));
        assert_eq!(slices.take_buffer(1 << 20), Some(()));
        assert_eq!(slices.take_buffer(1 << 20), None);
        assert_eq!(slices.left()[4].1, 1);
    }

    #[test]
    fn excess_sharers_get_one_slice_each_until_none_is_left() {
        let mut slices = slices();
        let granted: Vec<_> = (0..32).map(|_| slices.promise(65_536, 64, 128)).collect();
        assert!(granted[..31].iter().all(|it| *it == Some(1)));
        // 24 of 64 KiB, 6 of 256 KiB, 1 of 1 MiB.
        assert_eq!(granted[31], None);
    }

    proptest! {
        #[test]
        fn class_with_promises_reserves_a_slice_for_requests(
            bytes in (1usize << 20)..(64 << 20),
            steps in prop::collection::vec((1usize..=1 << 20, 1u32..2000, 1u32..9), 0..40),
        ) {
            let mut slices = Slices::of(bytes, 1 << 20).expect("an arena");
            let whole = slices.left();
            for (len, count, sharers) in steps {
                if count < 200 {
                    slices.take_buffer(len);
                } else if let Some(granted) = slices.promise(len, count, sharers) {
                    prop_assert!((1..=count).contains(&granted));
                }
                for (class, left) in slices.left().iter().enumerate() {
                    let promised = slices.promised[class];
                    prop_assert!(promised <= whole[class].1 / 2);
                    prop_assert!(promised == 0 || left.1 > 0);
                }
            }
        }
    }
}
