use super::*;

fn key(kind: HistoryKind, name: &str) -> HistoryKey {
    HistoryKey {
        kind,
        name: name.to_owned(),
    }
}

fn recorder() -> Recorder {
    Recorder::new(Instant::now())
}

fn device(value: f32) -> Vec<(HistoryKey, Values)> {
    vec![(key(HistoryKind::Device, "a"), vec![("read_iops", value)])]
}

fn of(recorder: &Recorder, seconds: usize) -> Vec<Option<f32>> {
    let history = recorder.history(seconds, None).expect("small");
    history.series["device/a/read_iops"].clone()
}

#[test]
fn history_has_gaps_for_missed_steps_and_drops_old_ones() {
    let mut recorder = recorder();
    recorder.put(1, 1, device(1.0));
    recorder.put(2, 2, device(2.0));
    recorder.put(5, 5, device(5.0));
    // The second sample in a step replaces the first.
    recorder.put(5, 6, device(6.0));
    let some = [None, Some(1.0), Some(2.0), None, None, Some(6.0)];
    assert_eq!(recorder.history(1, None).expect("small").step, 5);
    assert_eq!(of(&recorder, 6), some);
    assert_eq!(of(&recorder, 2), [None, Some(6.0)]);
    let hour = STEPS as u64;
    recorder.put(2 + hour - 1, 9, device(9.0));
    let all = of(&recorder, STEPS);
    assert_eq!((all[0], all[STEPS - 1]), (Some(2.0), Some(9.0)));
    assert_eq!(all.iter().flatten().count(), 3);
    recorder.put(10 + 3 * hour, 9, device(3.0));
    assert_eq!(of(&recorder, STEPS).iter().flatten().count(), 1);
}

#[test]
fn history_continues_when_the_clock_steps_back() {
    let mut recorder = recorder();
    recorder.put(7, 1, device(1.0));
    recorder.put(3, 2, device(2.0));
    assert_eq!(of(&recorder, 1), [Some(2.0)]);
}

#[test]
fn series_beyond_the_limit_wait_for_expired_ones() {
    let mut recorder = recorder();
    let many = |from: usize| -> Vec<_> {
        let names = from..from + SERIES_MAX + 5;
        names
            .map(|name| {
                (
                    key(HistoryKind::Host, &name.to_string()),
                    vec![("errors", 0.0)],
                )
            })
            .collect()
    };
    recorder.put(1, 1, many(0));
    let history = recorder.history(1, None).expect("small");
    assert_eq!((history.series.len(), history.left_out), (SERIES_MAX, 5));
    recorder.put(2, 2, many(10_000));
    assert_eq!(
        recorder.history(1, None).expect("small").left_out,
        SERIES_MAX as u64 + 5
    );
    recorder.put(1 + STEPS as u64, 3, many(10_000));
    let history = recorder.history(1, None).expect("small");
    assert_eq!((history.series.len(), history.left_out), (SERIES_MAX, 5));
    assert!(history.series.contains_key("host/10000/errors"));
    // More than the limit for one response.
    let refused = recorder.history(STEPS, None).expect_err("too much");
    assert_eq!(refused.values, SERIES_MAX * STEPS);
    assert!(recorder.history(refused.fits, None).is_ok());
    assert!(recorder.history(STEPS, Some(HistoryKind::Total)).is_ok());
}

#[test]
fn decreased_total_counts_from_zero() {
    let totals = |reads| Totals {
        reads,
        ..Totals::default()
    };
    let rate = |then, now| moved(totals(then), totals(now), 2.0)[0].1;
    assert_eq!(rate(10, 30), 10.0);
    assert_eq!(rate(30, 10), 5.0);
}
