use nvme_target::StageCounts;

use super::*;

fn latency(nqn: &str, reads: &[(usize, u64)]) -> TargetLatency {
    let mut stages = StageCounts::default();
    for (bucket, count) in reads {
        stages[Stage::Total].read.buckets[*bucket] = *count;
    }
    TargetLatency {
        subsystems: vec![(nqn.to_owned(), stages)],
        ..TargetLatency::default()
    }
}

#[test]
fn heatmap_counts_by_latency_bucket_and_second() {
    let mut maps = Heatmaps::new();
    let none = latency("a", &[]);
    let some = latency("a", &[(0, 3), (63, 1), (64, 5), (67, 1), (68, 7), (255, 2)]);
    maps.record(3, 30, &none, &some);
    maps.record(5, 50, &some, &some);
    for export in [None, Some("a")] {
        let map = maps.last(4, export).expect("one");
        assert_eq!((map.now_unix_ms, map.step_ms), (50, 1000));
        assert_eq!(map.bounds_ns.len(), BUCKETS);
        assert_eq!(map.bounds_ns[..4], [1024, 1536, 2048, 3072]);
        assert_eq!(map.bounds_ns[BUCKETS - 1], 1 << 34);
        assert_eq!(map.counts.len(), 4);
        assert_eq!((&map.counts[0], &map.counts[2]), (&None, &None));
        let first = map.counts[1].as_ref().expect("looked in");
        assert_eq!(first[..3], [4, 6, 7]);
        assert_eq!((first[BUCKETS - 1], first.iter().sum()), (2, 19));
        assert_eq!(map.counts[3], Some(vec![0; BUCKETS]));
    }
    assert!(maps.last(1, Some("b")).is_err());
}

#[test]
fn heatmap_keeps_one_hour() {
    let mut maps = Heatmaps::new();
    let (none, one) = (latency("a", &[]), latency("a", &[(100, 1)]));
    maps.record(1, 1, &none, &one);
    maps.record(STEPS as u64, 2, &one, &one);
    let known = |map: &Heatmap| map.counts.iter().flatten().count();
    let all = maps.last(STEPS, None).expect("always");
    assert_eq!((known(&all), all.counts[0].is_some()), (2, true));
    maps.record(STEPS as u64 + 1, 3, &one, &one);
    assert_eq!(known(&maps.last(STEPS, None).expect("always")), 2);
    // An export whose last command is an hour old is removed.
    maps.record(3 * STEPS as u64, 4, &one, &latency("b", &[(1, 1)]));
    assert!(maps.last(1, Some("a")).is_err());
    assert_eq!(known(&maps.last(STEPS, Some("b")).expect("new")), 1);
}

#[test]
fn exports_beyond_heatmaps_max_have_no_heatmap() {
    let mut maps = Heatmaps::new();
    let mut all = TargetLatency::default();
    for number in 0..=HEATMAPS_MAX {
        let one = latency(&number.to_string(), &[(64, 1)]);
        all.subsystems.extend(one.subsystems);
    }
    maps.record(1, 1, &TargetLatency::default(), &all);
    assert!(maps.last(1, Some("0")).is_ok());
    let refused = maps.last(1, Some(&HEATMAPS_MAX.to_string()));
    assert!(refused.is_err());
    let together = maps.last(1, None).expect("always");
    let row = together.counts[0].as_ref().expect("looked in");
    assert_eq!(row.iter().sum::<u32>(), HEATMAPS_MAX as u32 + 1);
}
