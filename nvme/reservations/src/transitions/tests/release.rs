//! Reservation Release (Base 2.1 §7.7, §8.1.22.6 and §8.1.22.8).

use nvme_spec::command::reservation::{ReleaseAction, ReleaseControl, ReservationType};
use nvme_spec::log::ReservationNotificationType;

use super::*;
use crate::Outcome;

#[test]
fn a_holder_releases_its_reservation_and_stays_registered() {
    for kind in ReservationKind::ALL {
        let mut state = reserved(&[1, 2, 3], 2, kind);
        let outcome = release(&mut state, 2, kind).unwrap();
        assert!(outcome.access_changed && outcome.abort.is_empty());
        assert_eq!(state.reservation(), None);
        assert_eq!(numbers(&state), [1, 2, 3]);
        let exclusive = [
            ReservationKind::WriteExclusive,
            ReservationKind::ExclusiveAccess,
        ];
        let notified: &[u8] = if exclusive.contains(&kind) {
            &[]
        } else {
            &[1, 3]
        };
        let released = ReservationNotificationType::RESERVATION_RELEASED;
        assert_eq!(outcome.notifications, notifications(released, notified));
        // Release does not count.
        assert_eq!(state.generation(), 3);
    }
}

#[test]
fn any_registrant_releases_a_reservation_of_all() {
    let kind = ReservationKind::ExclusiveAccessAllRegistrants;
    let mut state = reserved(&[1, 2], 1, kind);
    assert!(release(&mut state, 2, kind).unwrap().access_changed);
    assert_eq!(state.reservation(), None);
}

#[test]
fn a_release_of_another_type_is_refused() {
    for kind in ReservationKind::ALL {
        let state = reserved(&[1, 2], 1, kind);
        for other in ReservationKind::ALL.into_iter().filter(|&it| it != kind) {
            assert_refused(&state, INVALID, |it| release(it, 1, other));
        }
    }
}

#[test]
fn a_release_of_nothing_or_by_another_registrant_has_no_effect() {
    let mut state = registered(&[1, 2]);
    for kind in ReservationKind::ALL {
        assert_eq!(release(&mut state, 1, kind), Ok(Outcome::default()));
    }
    let held = ReservationKind::WriteExclusiveRegistrantsOnly;
    let _ = acquire(&mut state, 1, held).unwrap();
    for kind in ReservationKind::ALL {
        assert_eq!(release(&mut state, 2, kind), Ok(Outcome::default()));
    }
    assert_eq!(state.holder(), Some(host(1)));
}

#[test]
fn hosts_without_a_registration_or_with_a_wrong_key_conflict() {
    let kind = ReservationKind::WriteExclusive;
    for state in [registered(&[1, 2]), reserved(&[1, 2], 1, kind)] {
        assert_refused(&state, CONFLICT, |it| release(it, 3, kind));
        assert_refused(&state, CONFLICT, |it| clear(it, 3));
        for action in [ReleaseAction::RELEASE, ReleaseAction::CLEAR] {
            let control = ReleaseControl::new()
                .with_action(action)
                .with_rtype(kind.wire());
            for wrong in [key(2), 0, key(1) + 1] {
                assert_refused(&state, CONFLICT, |it| it.release(host(1), control, wrong));
            }
        }
    }
}

#[test]
fn reserved_values_and_iekey_are_refused() {
    let state = reserved(&[1], 1, ReservationKind::WriteExclusive);
    let valid = ReleaseControl::new().with_rtype(ReservationType::WRITE_EXCLUSIVE);
    let refuse = |control| {
        assert_refused(&state, INVALID, |it| it.release(host(1), control, key(1)));
    };
    for code in (7..=u8::MAX).chain([0]) {
        refuse(valid.with_rtype(ReservationType(code)));
    }
    for action in 2..8 {
        refuse(valid.with_action(ReleaseAction(action)));
    }
    for action in [ReleaseAction::RELEASE, ReleaseAction::CLEAR] {
        refuse(valid.with_action(action).with_ignore_existing_key(true));
    }
}

#[test]
fn clear_unregisters_all_hosts_and_releases() {
    let preempted = ReservationNotificationType::RESERVATION_PREEMPTED;
    for kind in ReservationKind::ALL {
        // The clearing host need not be the holder.
        let mut state = reserved(&[1, 2, 3], 2, kind);
        let outcome = clear(&mut state, 3).unwrap();
        assert!(outcome.access_changed && outcome.abort.is_empty());
        assert_eq!(outcome.notifications, notifications(preempted, &[1, 2]));
        assert!(state.registrants().is_empty());
        assert_eq!(state.reservation(), None);
        assert_eq!(state.generation(), 4);
    }
    let mut state = registered(&[1, 2]);
    let outcome = clear(&mut state, 1).unwrap();
    assert_eq!(outcome.notifications, notifications(preempted, &[2]));
    assert!(state.registrants().is_empty());
}

#[test]
fn changes_of_a_state_that_persists_are_stored() {
    let kind = ReservationKind::WriteExclusive;
    let mut state = reserved(&[1, 2], 1, kind);
    let _ = state.set_persistence(true).unwrap();
    assert!(!release(&mut state, 2, kind).unwrap().persist);
    assert!(release(&mut state, 1, kind).unwrap().persist);
    assert!(!release(&mut state, 1, kind).unwrap().persist);
    assert!(clear(&mut state, 1).unwrap().persist);
    // The state persists also without registrants.
    assert!(state.persists());
}
