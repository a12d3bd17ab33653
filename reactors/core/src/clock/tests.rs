use super::*;

/// Tolerated difference between two clocks: their rates differ by parts per million, and they were
/// compared within nanoseconds.
const TOLERANCE: Nanos = Nanos::from_millis(1);

#[test]
fn process_clock_is_monotonic() {
    let clock = TscClock::new();
    let mut last = clock.now();
    for _ in 0..100_000 {
        let now = clock.now();
        assert!(now >= last);
        last = now;
    }
}

#[test]
fn process_clock_matches_the_kernel_clock() {
    let clock = TscClock::new();
    for _ in 0..1_000 {
        let before = kernel_now();
        let now = clock.now();
        let after = kernel_now();
        assert!(now + TOLERANCE >= before, "{now} is behind {before}");
        assert!(now <= after + TOLERANCE, "{now} is ahead of {after}");
    }
}

#[test]
fn clock_calibration_is_shared() {
    let clock = TscClock::new();
    let other = std::thread::spawn(TscClock::new).join().expect("no panic");
    assert_eq!(clock.uses_counter(), other.uses_counter());
    assert_eq!(format!("{clock:?}"), format!("{other:?}"));
}

#[test]
fn kernel_clock_is_the_fallback() {
    let clock = TscClock::from_kernel();
    assert!(!clock.uses_counter());
    let before = kernel_now();
    let now = clock.now();
    assert!(before <= now && now <= kernel_now());
}

#[test]
fn virtual_clock_advances_on_command() {
    let clock = VirtualClock::new();
    let shared = clock.clone();
    assert_eq!(clock.now(), Nanos::ZERO);
    shared.advance(Nanos(5));
    assert_eq!(clock.now(), Nanos(5));
    clock.advance_to(Nanos(3));
    assert_eq!(shared.now(), Nanos(5));
    clock.advance_to(Nanos(9));
    assert_eq!(shared.now(), Nanos(9));
}
