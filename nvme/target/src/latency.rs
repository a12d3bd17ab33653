//! Latency histograms with a single writer and any number of readers.
//!
//! Buckets are log-linear: one bucket per nanosecond below 8, and above that 8 equal buckets per
//! power of two up to 2^34 ns (17 s). Longer times are in the last bucket. A value read from a
//! bucket is therefore off by at most 1/17 (5.9 %).

use std::sync::atomic::{AtomicU64, Ordering};

use reactors::Nanos;

/// Base-two logarithm of the number of buckets per power of two.
const SPLIT_SHIFT: u32 = 3;
/// Base-two logarithm of the end of the last bucket in nanoseconds.
const SPAN_SHIFT: u32 = 34;
/// Number of buckets of a histogram.
pub const LATENCY_BUCKETS: usize = ((SPAN_SHIFT - SPLIT_SHIFT + 1) << SPLIT_SHIFT) as usize;

const _: () = assert!(LATENCY_BUCKETS == 256);
const _: () = assert!(bucket_of((1 << SPAN_SHIFT) - 1) == LATENCY_BUCKETS - 1);

/// The bucket that counts `ns`.
#[inline]
const fn bucket_of(ns: u64) -> usize {
    let last = (1 << SPAN_SHIFT) - 1;
    let ns = if ns < last { ns } else { last };
    // The lowest bit of the split is set, so values below 8 use the power 2^3, whose buckets are
    // one nanosecond wide, and need no special case.
    let power = (ns | 1 << SPLIT_SHIFT).ilog2() - SPLIT_SHIFT;
    // At most 255; the mask makes this known to the compiler.
    (((power as usize) << SPLIT_SHIFT) + (ns >> power) as usize) & (LATENCY_BUCKETS - 1)
}

/// The lower bound of a bucket in nanoseconds. For [`LATENCY_BUCKETS`], the end of the last bucket.
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

/// A latency histogram. One reactor writes it with plain loads and stores; any thread may read.
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
    /// Resets to zero for another device with the same index; only the owning reactor may call it.
    pub(crate) fn reset(&self) {
        for count in std::iter::once(&self.sum_ns).chain(&self.counts) {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Counts `times` values of `span`; only the owning reactor may call it.
    #[inline]
    pub(crate) fn record(&self, span: Nanos, times: u64) {
        let add = |cell: &AtomicU64, amount: u64| {
            let value = cell.load(Ordering::Relaxed).wrapping_add(amount);
            cell.store(value, Ordering::Relaxed);
        };
        add(&self.counts[bucket_of(span.0)], times);
        add(&self.sum_ns, span.0.wrapping_mul(times));
    }

    /// Adds the current values to `counts`. They are read one by one, not atomically together.
    pub(crate) fn add_to(&self, counts: &mut LatencyCounts) {
        for (sum, cell) in counts.buckets.iter_mut().zip(&self.counts) {
            *sum = sum.wrapping_add(cell.load(Ordering::Relaxed));
        }
        let sum_ns = self.sum_ns.load(Ordering::Relaxed);
        counts.sum_ns = counts.sum_ns.wrapping_add(sum_ns);
    }
}

/// A distribution of latencies, since the start or over an interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencyCounts {
    /// The sum of all times in nanoseconds.
    pub sum_ns: u64,
    /// By bucket; [`latency_bucket_start`] returns the bounds.
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
    /// The number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets
            .iter()
            .fold(0, |sum, count| sum.wrapping_add(*count))
    }

    /// Adds the counts of another reactor, export or direction.
    pub fn add(&mut self, other: &Self) {
        for (sum, count) in self.buckets.iter_mut().zip(&other.buckets[..]) {
            *sum = sum.wrapping_add(*count);
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }

    /// The difference to `earlier`. If any count is lower than before, counting has restarted in
    /// between, and the result is all of `self`.
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

    /// The latency below which `permille` of a thousand values are, to 5.9 %; `None` if there are
    /// no values.
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

    /// The number of values below `ns`, which must be the start of a bucket.
    #[must_use]
    pub fn count_below(&self, ns: u64) -> u64 {
        let buckets = self.buckets.iter().enumerate();
        let below = buckets.take_while(|(bucket, _)| latency_bucket_start(*bucket) < ns);
        below.fold(0, |sum, (_, count)| sum.wrapping_add(*count))
    }
}

/// The time that represents a bucket: the harmonic mean of its bounds, which has the same relative
/// distance to both.
fn middle(bucket: usize) -> Nanos {
    let start = latency_bucket_start(bucket);
    let end = latency_bucket_start(bucket + 1);
    let width = u128::from(end - start);
    let above = u128::from(start) * width / u128::from(start + end);
    // Less than the width of the bucket.
    Nanos(start + above as u64)
}

#[cfg(test)]
mod tests;
