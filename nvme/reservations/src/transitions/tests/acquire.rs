//! Reservation Acquire with the action Acquire (Base 2.1 §7.5 and §8.1.22.5).

use nvme_spec::command::reservation::{AcquireAction, AcquireControl, ReservationType};

use super::*;
use crate::{Outcome, Role};

#[test]
fn a_registrant_acquires_a_reservation_of_each_type() {
    for kind in ReservationKind::ALL {
        let mut state = registered(&[1, 2]);
        let outcome = acquire(&mut state, 2, kind).unwrap();
        let changed = Outcome {
            access_changed: true,
            ..Outcome::default()
        };
        assert_eq!(outcome, changed);
        assert_eq!(state.reservation(), Some(kind));
        let holder = (!kind.is_all_registrants()).then_some(host(2));
        assert_eq!(state.holder(), holder);
        assert_eq!(state.role(host(2)), Role::Holder);
        let other = if kind.is_all_registrants() {
            Role::Holder
        } else {
            Role::Registrant
        };
        assert_eq!(state.role(host(1)), other);
        assert_eq!(state.role(host(3)), Role::NonRegistrant);
        // Acquire does not count.
        assert_eq!(state.generation(), 2);
    }
}

#[test]
fn a_holder_may_repeat_its_acquire_and_another_type_conflicts() {
    for kind in ReservationKind::ALL {
        let mut state = reserved(&[1, 2], 1, kind);
        for other in ReservationKind::ALL.into_iter().filter(|&it| it != kind) {
            assert_refused(&state, CONFLICT, |it| acquire(it, 1, other));
            assert_refused(&state, CONFLICT, |it| acquire(it, 2, other));
        }
        assert_eq!(acquire(&mut state, 1, kind), Ok(Outcome::default()));
        // Every registrant is a holder of a reservation of all registrants.
        if kind.is_all_registrants() {
            assert_eq!(acquire(&mut state, 2, kind), Ok(Outcome::default()));
        } else {
            assert_refused(&state, CONFLICT, |it| acquire(it, 2, kind));
        }
        assert_eq!(state.reservation(), Some(kind));
    }
}

#[test]
fn hosts_that_register_later_hold_a_reservation_of_all() {
    let mut state = reserved(&[1], 1, ReservationKind::ExclusiveAccessAllRegistrants);
    assert!(!state.permissions(host(2)).read());
    assert!(register(&mut state, 2, key(2)).unwrap().access_changed);
    assert_eq!(state.role(host(2)), Role::Holder);
    assert!(state.permissions(host(2)).write());
}

#[test]
fn hosts_without_a_registration_or_with_a_wrong_key_conflict() {
    let state = registered(&[1, 2]);
    let kind = ReservationKind::WriteExclusive;
    assert_refused(&state, CONFLICT, |it| acquire(it, 3, kind));
    let control = AcquireControl::new().with_rtype(kind.wire());
    for wrong in [key(2), 0, u64::from(key(1) as u32), key(1) + 1] {
        assert_refused(&state, CONFLICT, |it| {
            it.acquire(host(1), control, &acquire_data(wrong, 0))
        });
    }
}

#[test]
fn reserved_values_and_iekey_are_refused() {
    let state = registered(&[1]);
    let valid = AcquireControl::new().with_rtype(ReservationType::WRITE_EXCLUSIVE);
    let refuse = |control| {
        assert_refused(&state, INVALID, |it| {
            it.acquire(host(1), control, &acquire_data(key(1), key(1)))
        });
    };
    for code in (7..=u8::MAX).chain([0]) {
        for action in 0..3 {
            let action = AcquireAction(action);
            refuse(valid.with_rtype(ReservationType(code)).with_action(action));
        }
    }
    for action in 3..8 {
        refuse(valid.with_action(AcquireAction(action)));
    }
    for action in 0..3 {
        let action = AcquireAction(action);
        refuse(valid.with_ignore_existing_key(true).with_action(action));
    }
}

#[test]
fn a_new_reservation_of_a_state_that_persists_is_stored() {
    let mut state = registered(&[1]);
    let _ = state.set_persistence(true).unwrap();
    let kind = ReservationKind::WriteExclusive;
    assert!(acquire(&mut state, 1, kind).unwrap().persist);
    assert!(!acquire(&mut state, 1, kind).unwrap().persist);
}
