use super::*;

const DURABLE: WriteEnd = WriteEnd::Done { durable: true };
const VOLATILE: WriteEnd = WriteEnd::Done { durable: false };

fn at(moment: u64) -> Moment {
    Moment(moment)
}

/// A history with completed writes `(version, began, ended)` without FUA.
fn history(writes: &[(u64, u64, u64)]) -> BlockHistory {
    let mut history = BlockHistory::default();
    for &(version, _, _) in writes {
        history.begin(version, false);
    }
    for &(version, began, ended) in writes {
        history.end(version, at(began), at(ended), VOLATILE);
    }
    history
}

fn read(history: &mut BlockHistory, version: u64, began: u64) -> Result<(), Mistake> {
    history.read(Some(version), at(began), at(began + 1), false)
}

#[test]
fn completed_write_supersedes_older_versions() {
    let mut history = history(&[(1, 10, 20)]);
    assert_eq!(
        history.read(None, at(30), at(31), false),
        Err(Mistake::Stale)
    );
    assert_eq!(read(&mut history, 1, 30), Ok(()));
    assert_eq!(read(&mut history, 2, 40), Err(Mistake::NeverWritten));
}

#[test]
fn durable_data_survives_a_power_cut() {
    let mut history = history(&[(1, 10, 20), (2, 30, 40)]);
    let survives = |history: &BlockHistory| {
        [None, Some(1), Some(2)].map(|version| history.may_survive(version))
    };
    assert_eq!(survives(&history), [true, true, true]);
    history.flushed(at(25));
    assert_eq!(survives(&history), [false, true, true]);
    history.flushed(at(50));
    assert_eq!(survives(&history), [false, false, true]);
}

#[test]
fn write_to_replaced_content_is_not_covered_by_a_flush() {
    let mut history = history(&[(1, 10, 20)]);
    history.begin(2, false);
    history.end(2, at(30), at(40), WriteEnd::Undecided);
    history.exchanged(|version| version == 2);
    history.flushed(at(60));
    assert_eq!(history.read(Some(2), at(70), at(71), true), Ok(()));
    history.power_cut(at(80));
    assert_eq!(read(&mut history, 2, 90), Ok(()));
}

#[test]
fn a_concurrent_read_returns_either_version() {
    let mut history = history(&[(1, 10, 20)]);
    history.begin(2, false);
    assert_eq!(read(&mut history, 1, 30), Ok(()));
    assert_eq!(read(&mut history, 2, 40), Ok(()));
    assert_eq!(read(&mut history, 1, 50), Err(Mistake::Stale));
}

#[test]
fn read_begun_before_a_write_ends_may_return_the_old_version() {
    let mut history = history(&[(1, 10, 20), (2, 30, 40)]);
    assert_eq!(read(&mut history, 1, 35), Ok(()));
    let mut late = self::history(&[(1, 10, 20), (2, 30, 40)]);
    assert_eq!(read(&mut late, 1, 41), Err(Mistake::Stale));
}

#[test]
fn concurrent_writes_have_no_order() {
    for last in [1, 2] {
        let mut history = history(&[(1, 10, 40), (2, 20, 30)]);
        assert_eq!(read(&mut history, last, 50), Ok(()));
        assert_eq!(read(&mut history, 3 - last, 60), Err(Mistake::Stale));
    }
}

#[test]
fn refused_write_is_invisible_and_failed_one_may_be_visible() {
    let mut history = history(&[(1, 10, 20)]);
    history.begin(2, false);
    history.end(2, at(30), at(31), WriteEnd::Refused);
    assert_eq!(read(&mut history, 2, 40), Err(Mistake::NeverWritten));
    history.begin(3, false);
    history.end(3, at(50), at(51), WriteEnd::Undecided);
    assert_eq!(read(&mut history, 1, 60), Ok(()));
    assert_eq!(read(&mut history, 3, 70), Err(Mistake::Stale));
}

#[test]
fn power_cut_without_flush_may_restore_any_one_version() {
    for survivor in [1, 2] {
        let mut history = history(&[(1, 10, 20), (2, 30, 40)]);
        history.power_cut(at(50));
        assert_eq!(read(&mut history, survivor, 60), Ok(()));
        history.power_cut(at(70));
        assert_eq!(
            read(&mut history, 3 - survivor, 80),
            Err(Mistake::NeverWritten)
        );
    }
}

#[test]
fn flushed_and_fua_versions_survive_a_power_cut() {
    let mut flushed = history(&[(1, 10, 20), (2, 30, 40)]);
    flushed.flushed(at(50));
    flushed.power_cut(at(60));
    assert_eq!(read(&mut flushed, 1, 70), Err(Mistake::Resurrected));
    assert_eq!(read(&mut flushed, 2, 80), Ok(()));

    let mut forced = history(&[(1, 10, 20)]);
    forced.begin(2, false);
    forced.end(2, at(30), at(40), DURABLE);
    forced.begin(3, false);
    forced.power_cut(at(60));
    assert_eq!(read(&mut forced, 1, 70), Err(Mistake::Resurrected));
    assert_eq!(read(&mut forced, 3, 80), Ok(()));
}

#[test]
fn flush_covers_only_writes_completed_before_it_began() {
    let mut history = history(&[(1, 10, 20), (2, 30, 60)]);
    history.flushed(at(50));
    history.power_cut(at(70));
    assert_eq!(read(&mut history, 1, 80), Ok(()));
}

#[test]
fn durably_read_version_survives_a_power_cut() {
    let mut history = history(&[(1, 10, 20), (2, 30, 40)]);
    assert_eq!(history.read(Some(2), at(50), at(51), true), Ok(()));
    history.power_cut(at(60));
    assert_eq!(read(&mut history, 1, 70), Err(Mistake::Resurrected));
}

#[test]
fn restart_without_a_power_cut_loses_no_write() {
    let mut history = history(&[(1, 10, 20), (2, 30, 40)]);
    history.begin(3, false);
    history.stopped(at(50));
    assert_eq!(read(&mut history, 1, 60), Err(Mistake::Stale));
    assert_eq!(read(&mut history, 2, 70), Ok(()));
    assert_eq!(read(&mut history, 3, 80), Err(Mistake::Stale));
}

#[test]
fn pruning_does_not_change_verdicts() {
    let mut history = history(&[(1, 10, 20), (2, 30, 40), (3, 50, 60)]);
    history.flushed(at(65));
    history.prune(at(70));
    assert_eq!(history.candidates.len(), 1);
    assert_eq!(read(&mut history, 2, 80), Err(Mistake::Stale));
    assert_eq!(read(&mut history, 3, 80), Ok(()));
}

#[test]
fn version_is_certain_only_without_writes_in_flight() {
    let mut history = history(&[(1, 10, 20)]);
    assert!(history.must_equal(Some(1), at(30), None));
    assert_eq!(history.only(at(30)), Some(Some(1)));
    history.begin(2, false);
    assert!(!history.must_equal(Some(1), at(30), None));
    assert_eq!(history.only(at(30)), None);
}
