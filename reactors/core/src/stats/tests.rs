use super::*;

#[test]
fn time_mark_stores_time_and_number() {
    let mark = TimeMark::new(Nanos::from_secs(86_400 * 365), 77);
    assert_eq!(mark.number(), 77);
    let error = Nanos::from_secs(86_400 * 365) - mark.time();
    assert!(error < Nanos(1_024), "{error}");
    assert_eq!(TimeMark::NONE.number(), SLOT_NONE);
}

#[test]
fn sleeping_reactor_accrues_idle_time_and_its_load_decays() {
    let stats = ReactorStats::new();
    let mut accounts = TimeAccounting::new(Nanos::from_secs(1_000));
    let start = Nanos::from_secs(1_000);
    let busy_until = start + Nanos::from_secs(1);
    accounts.add_turn(start, busy_until, true, &stats);
    assert_eq!(stats.busy_permille(busy_until), 1_000);
    let asleep = busy_until + Nanos::from_millis(1);
    accounts.sleep(asleep, &stats);
    assert!(stats.is_asleep());
    assert_eq!(stats.sleeps(), 1);
    assert_eq!(stats.idle_ns(asleep), 1_000_000);
    let later = asleep + Nanos::from_millis(500);
    assert_eq!(stats.idle_ns(later), 501_000_000);
    // Decayed by e^-5.
    assert!(
        (5..=8).contains(&stats.busy_permille(later)),
        "{}",
        stats.busy_permille(later)
    );
    accounts.wake(later, &stats);
    assert!(!stats.is_asleep());
    assert_eq!(stats.idle_ns(later), 501_000_000);
    assert_eq!(stats.busy_ns(), 1_000_000_000);
    let snapshot = stats.snapshot(later);
    assert_eq!(
        (snapshot.idle, snapshot.asleep),
        (Nanos::from_millis(501), false)
    );
}

#[test]
fn load_is_averaged_over_100_ms() {
    let stats = ReactorStats::new();
    let mut accounts = TimeAccounting::new(Nanos::ZERO);
    let mut now = Nanos::ZERO;
    let mut run = |span: Nanos, busy: bool| {
        let end = now + span;
        while now < end {
            let next = now + Nanos::from_micros(250);
            accounts.add_turn(now, next, busy, &stats);
            now = next;
        }
        stats.busy_permille(now)
    };
    assert_eq!(run(Nanos::from_millis(100), false), 0);
    // 1 - 1/e after one time constant.
    let risen = run(Nanos::from_millis(100), true);
    assert!((625..=640).contains(&risen), "{risen}");
    assert!(run(Nanos::from_millis(500), true) > 990);
    let fallen = run(Nanos::from_millis(100), false);
    assert!((360..=375).contains(&fallen), "{fallen}");
}
