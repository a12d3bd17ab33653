use proptest::prelude::*;

use super::*;

fn read(histogram: &LatencyHistogram) -> LatencyCounts {
    let mut counts = LatencyCounts::default();
    histogram.add_to(&mut counts);
    counts
}

fn counts(values: &[u64]) -> LatencyCounts {
    let histogram = LatencyHistogram::default();
    for value in values {
        histogram.record(Nanos(*value), 1);
    }
    read(&histogram)
}

/// Times of all magnitudes, evenly distributed over the powers of two.
fn times() -> impl Strategy<Value = u64> {
    (0..SPAN_SHIFT).prop_flat_map(|power| 0..=(1_u64 << power))
}

#[test]
fn latency_buckets_are_contiguous() {
    for bucket in 0..LATENCY_BUCKETS {
        let (start, end) = (
            latency_bucket_start(bucket),
            latency_bucket_start(bucket + 1),
        );
        assert!(start < end, "{bucket}");
        for ns in [start, (start + end) / 2, end - 1] {
            assert_eq!(bucket_of(ns), bucket, "{ns}");
        }
    }
    assert_eq!(bucket_of(u64::MAX), LATENCY_BUCKETS - 1);
}

#[test]
fn empty_counts_have_no_percentile() {
    let none = LatencyCounts::default();
    assert_eq!((none.count(), none.percentile(500)), (0, None));
    assert_eq!(none.percentile(0), None);
    assert_eq!(none.since(&none), none);
}

#[test]
fn counts_restart_after_a_reset() {
    let before = counts(&[5, 6, 7]);
    let anew = counts(&[5]);
    assert_eq!(anew.since(&before), anew);
    let after = counts(&[5, 6, 7, 100, 100]);
    assert_eq!(after.since(&before), counts(&[100, 100]));
    assert_eq!(after.since(&before).sum_ns, 200);
}

#[test]
fn counts_below_a_bound_are_exact_at_a_power_of_two() {
    let counts = counts(&[0, 4095, 4096, 4097, 1 << 33]);
    assert_eq!(counts.count_below(4096), 2);
    assert_eq!(counts.count_below(8192), 4);
    assert_eq!(counts.count_below(1 << 34), 5);
    assert_eq!(counts.count_below(0), 0);
}

proptest! {
    #[test]
    fn bucket_error_is_at_most_six_percent(value in times()) {
        let read = counts(&[value]).percentile(500).expect("one").0;
        prop_assert!(read.abs_diff(value) as f64 <= 0.06 * value as f64, "{read} for {value}");
    }

    #[test]
    fn percentiles_match_the_sorted_values(
        mut values in prop::collection::vec(times(), 1..200),
        permille in 0_u32..=1000,
    ) {
        let counts = counts(&values);
        values.sort_unstable();
        let place = (values.len() as u64 * u64::from(permille)).div_ceil(1000).max(1);
        let exact = values[place as usize - 1];
        let read = counts.percentile(permille).expect("some").0;
        prop_assert!(read.abs_diff(exact) as f64 <= 0.06 * exact as f64, "{read} for {exact}");
        prop_assert_eq!(counts.count(), values.len() as u64);
        prop_assert_eq!(counts.sum_ns, values.iter().sum::<u64>());
    }

    #[test]
    fn recording_n_times_equals_n_recordings(span in times(), times in 0_u64..50) {
        let histogram = LatencyHistogram::default();
        histogram.record(Nanos(span), times);
        prop_assert_eq!(read(&histogram), counts(&vec![span; times as usize]));
    }

    #[test]
    fn count_addition_and_subtraction_are_inverse(
        one in prop::collection::vec(times(), 0..50),
        other in prop::collection::vec(times(), 0..50),
    ) {
        let mut sum = counts(&one);
        sum.add(&counts(&other));
        prop_assert_eq!(sum.since(&counts(&one)), counts(&other));
        let all: Vec<u64> = one.iter().chain(&other).copied().collect();
        prop_assert_eq!(sum, counts(&all));
    }
}
