//! How long things took: histograms with one writer, read by anyone.
//!
//! Buckets are log-linear: a bucket for each nanosecond below 8, and above that 8 of one width for
//! each power of two, up to 2^34 ns (17 s); what took longer is in the last one. So a value that is
//! read from a bucket is off by 1/17 of it at most, 5.9 %.

use std::sync::atomic::{AtomicU64, Ordering};

use reactors::Nanos;

/// Buckets of a power of two, as a power of two.
const SPLIT_SHIFT: u32 = 3;
/// What the last bucket ends before, as a power of two of nanoseconds.
const SPAN_SHIFT: u32 = 34;
/// Buckets of a histogram.
pub const LATENCY_BUCKETS: usize = ((SPAN_SHIFT - SPLIT_SHIFT + 1) << SPLIT_SHIFT) as usize;

const _: () = assert!(LATENCY_BUCKETS == 256);
const _: () = assert!(bucket_of((1 << SPAN_SHIFT) - 1) == LATENCY_BUCKETS - 1);

/// The bucket that counts `ns`.
#[inline]
const fn bucket_of(ns: u64) -> usize {
    let last = (1 << SPAN_SHIFT) - 1;
    let ns = if ns < last { ns } else { last };
    // With the lowest bit of the split set, values below 8 count as of the power 2^3, whose buckets
    // are one nanosecond wide: no case of their own.
    let power = (ns | 1 << SPLIT_SHIFT).ilog2() - SPLIT_SHIFT;
    // At most 255: the mask tells the compiler.
    (((power as usize) << SPLIT_SHIFT) + (ns >> power) as usize) & (LATENCY_BUCKETS - 1)
}

/// The shortest time that a bucket counts, in nanoseconds. One behind the last bucket: where that
/// ends.
///
/// ```
/// use nvme_target::{LATENCY_BUCKETS, latency_bucket_start};
///
/// assert_eq!(latency_bucket_start(0), 0);
/// assert_eq!(latency_bucket_start(64), 1024);
/// assert_eq!(latency_bucket_start(LATENCY_BUCKETS), 1 << 34);
/// ```
#[must_use]
pub const fn latency_bucket_start(bucket: usize) -> u64 {
    let split = 1 << SPLIT_SHIFT;
    if bucket < split {
        return bucket as u64;
    }
    let (power, part) = (bucket / split - 1, bucket % split);
    ((split + part) as u64) << power
}

/// A histogram of times. One reactor writes it with plain loads and stores; anyone may read.
#[derive(Debug)]
pub(crate) struct LatencyHistogram {
    sum_ns: AtomicU64,
    counts: [AtomicU64; LATENCY_BUCKETS],
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self {
            sum_ns: AtomicU64::new(0),
            counts: [const { AtomicU64::new(0) }; LATENCY_BUCKETS],
        }
    }
}

impl LatencyHistogram {
    /// Back to zero, for another device in its place; only the owning reactor may call it.
    pub(crate) fn reset(&self) {
        for count in std::iter::once(&self.sum_ns).chain(&self.counts) {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Counts `times` things that took `span` each; only the owning reactor may call it.
    #[inline]
    pub(crate) fn record(&self, span: Nanos, times: u64) {
        let add = |cell: &AtomicU64, amount: u64| {
            let value = cell.load(Ordering::Relaxed).wrapping_add(amount);
            cell.store(value, Ordering::Relaxed);
        };
        add(&self.counts[bucket_of(span.0)], times);
        add(&self.sum_ns, span.0.wrapping_mul(times));
    }

    /// Adds the values now, not atomically together, to `counts`.
    pub(crate) fn add_to(&self, counts: &mut LatencyCounts) {
        for (sum, cell) in counts.buckets.iter_mut().zip(&self.counts) {
            *sum = sum.wrapping_add(cell.load(Ordering::Relaxed));
        }
        let sum_ns = self.sum_ns.load(Ordering::Relaxed);
        counts.sum_ns = counts.sum_ns.wrapping_add(sum_ns);
    }
}

/// How many things took how long, at one moment or between two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencyCounts {
    /// The sum of all times in nanoseconds.
    pub sum_ns: u64,
    /// By bucket; [`latency_bucket_start`] says which times each holds.
    pub buckets: Box<[u64; LATENCY_BUCKETS]>,
}

impl Default for LatencyCounts {
    fn default() -> Self {
        Self {
            sum_ns: 0,
            buckets: Box::new([0; LATENCY_BUCKETS]),
        }
    }
}

impl LatencyCounts {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets
            .iter()
            .fold(0, |sum, count| sum.wrapping_add(*count))
    }

    /// Adds another reactor's, export's or direction's share.
    pub fn add(&mut self, other: &Self) {
        for (sum, count) in self.buckets.iter_mut().zip(&other.buckets[..]) {
            *sum = sum.wrapping_add(*count);
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }

    /// What came since `earlier`. When anything fell, counting began anew in between, and it is all
    /// that there is.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut counts = self.clone();
        let pairs = counts.buckets.iter_mut().zip(&earlier.buckets[..]);
        for (count, before) in pairs {
            match count.checked_sub(*before) {
                Some(more) => *count = more,
                None => return self.clone(),
            }
        }
        counts.sum_ns = counts.sum_ns.wrapping_sub(earlier.sum_ns);
        counts
    }

    /// The time that `permille` of a thousand took at most, to 5.9 %; `None` when there is nothing.
    #[must_use]
    pub fn percentile(&self, permille: u32) -> Option<Nanos> {
        let wanted = u128::from(self.count()) * u128::from(permille.min(1000));
        let wanted = wanted.div_ceil(1000).max(1);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= wanted {
                return Some(middle(bucket));
            }
        }
        None
    }

    /// How many took less than `ns`, which must be where a bucket starts.
    #[must_use]
    pub fn count_below(&self, ns: u64) -> u64 {
        let buckets = self.buckets.iter().enumerate();
        let below = buckets.take_while(|(bucket, _)| latency_bucket_start(*bucket) < ns);
        below.fold(0, |sum, (_, count)| sum.wrapping_add(*count))
    }
}

/// The time that stands for all of a bucket: the harmonic mean of its ends, which is as far from
/// the one as from the other in proportion.
fn middle(bucket: usize) -> Nanos {
    let start = latency_bucket_start(bucket);
    let end = latency_bucket_start(bucket + 1);
    let width = u128::from(end - start);
    let above = u128::from(start) * width / u128::from(start + end);
    // Less than the bucket's width.
    Nanos(start + above as u64)
}

#[cfg(test)]
mod tests;
