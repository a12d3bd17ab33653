//! Reservation Acquire with the actions Preempt and Preempt and Abort (Base 2.1 §8.1.22.7).

use nvme_spec::command::reservation::{AcquireAction, RegisterAction, RegisterControl};
use nvme_spec::log::ReservationNotificationType;

use super::*;
use crate::Role;

const PREEMPT: AcquireAction = AcquireAction::PREEMPT;
const ABORT: AcquireAction = AcquireAction::PREEMPT_AND_ABORT;
const UNREGISTERED: ReservationNotificationType =
    ReservationNotificationType::REGISTRATION_PREEMPTED;
const RELEASED: ReservationNotificationType = ReservationNotificationType::RESERVATION_RELEASED;
const WRITE: ReservationKind = ReservationKind::WriteExclusive;
const ACCESS: ReservationKind = ReservationKind::ExclusiveAccess;

/// The types with one holder.
fn single_holder_kinds() -> impl Iterator<Item = ReservationKind> {
    let kinds = ReservationKind::ALL.into_iter();
    kinds.filter(|kind| !kind.is_all_registrants())
}

/// Replaces the key of host `number` regardless of the current one.
fn give_key(state: &mut Reservations, number: u8, new: u64) {
    let control = RegisterControl::new()
        .with_action(RegisterAction::REPLACE)
        .with_ignore_existing_key(true);
    let data = register_data(0, new);
    let _ = state.register(host(number), control, &data).unwrap();
}

#[test]
fn a_registrant_takes_the_reservation_of_the_holder() {
    for old in single_holder_kinds() {
        for new in ReservationKind::ALL {
            let mut state = reserved(&[1, 2, 3], 1, old);
            let outcome = preempt(&mut state, 2, PREEMPT, new, key(1)).unwrap();
            assert_eq!(numbers(&state), [2, 3]);
            assert_eq!(state.reservation(), Some(new));
            assert_eq!(state.role(host(2)), Role::Holder);
            assert!(outcome.access_changed && outcome.abort.is_empty());
            let mut expected = notifications(UNREGISTERED, &[1]);
            if old != new {
                expected.extend(notifications(RELEASED, &[3]));
            }
            assert_eq!(outcome.notifications, expected, "{old:?} to {new:?}");
            assert_eq!(state.generation(), 4);
        }
    }
}

#[test]
fn all_registrants_with_the_holders_key_are_unregistered() {
    let mut state = reserved(&[1, 2, 3, 4], 1, WRITE);
    give_key(&mut state, 1, key(9));
    give_key(&mut state, 3, key(9));
    let outcome = preempt(&mut state, 2, ABORT, WRITE, key(9)).unwrap();
    assert_eq!(numbers(&state), [2, 4]);
    assert_eq!(state.holder(), Some(host(2)));
    assert_eq!(outcome.notifications, notifications(UNREGISTERED, &[1, 3]));
    assert_eq!(outcome.abort, [host(1), host(3)]);
}

#[test]
fn a_host_that_shares_the_holders_key_stays_registered_when_it_preempts() {
    let mut state = reserved(&[1, 2], 1, WRITE);
    give_key(&mut state, 1, key(2));
    let outcome = preempt(&mut state, 2, ABORT, ACCESS, key(2)).unwrap();
    assert_eq!(numbers(&state), [2]);
    assert_eq!(state.holder(), Some(host(2)));
    assert_eq!(outcome.abort, [host(1)]);
}

#[test]
fn a_preempt_of_another_key_unregisters_and_keeps_the_reservation() {
    for kind in single_holder_kinds() {
        let mut state = reserved(&[1, 2, 3, 4], 1, kind);
        give_key(&mut state, 4, key(3));
        let outcome = preempt(&mut state, 2, ABORT, ACCESS, key(3)).unwrap();
        assert_eq!(numbers(&state), [1, 2]);
        assert_eq!(state.reservation(), Some(kind));
        assert_eq!(state.holder(), Some(host(1)));
        assert_eq!(outcome.notifications, notifications(UNREGISTERED, &[3, 4]));
        assert_eq!(outcome.abort, [host(3), host(4)]);
    }
}

#[test]
fn a_preempt_of_a_key_that_no_registrant_has_succeeds_if_there_is_one_holder() {
    for kind in single_holder_kinds() {
        let mut state = reserved(&[1, 2], 1, kind);
        let outcome = preempt(&mut state, 2, ABORT, ACCESS, key(8)).unwrap();
        assert!(outcome.notifications.is_empty() && outcome.abort.is_empty());
        assert_eq!(numbers(&state), [1, 2]);
        assert_eq!(state.reservation(), Some(kind));
        assert_eq!(state.generation(), 3);
    }
}

#[test]
fn a_host_that_preempts_its_own_key_unregisters_itself() {
    // The specification exempts the host only if the key is the holder's.
    let mut state = reserved(&[1, 2, 3], 1, WRITE);
    give_key(&mut state, 3, key(2));
    let outcome = preempt(&mut state, 2, ABORT, WRITE, key(2)).unwrap();
    assert_eq!(numbers(&state), [1]);
    assert_eq!(state.holder(), Some(host(1)));
    assert_eq!(outcome.notifications, notifications(UNREGISTERED, &[3]));
    assert_eq!(outcome.abort, [host(3)]);
}

#[test]
fn a_holder_preempts_itself_to_change_the_type() {
    for old in single_holder_kinds() {
        for new in ReservationKind::ALL {
            let mut state = reserved(&[1, 2], 1, old);
            let outcome = preempt(&mut state, 1, ABORT, new, key(1)).unwrap();
            assert_eq!(numbers(&state), [1, 2]);
            assert_eq!(state.reservation(), Some(new));
            assert_eq!(state.role(host(1)), Role::Holder);
            assert!(outcome.abort.is_empty());
            let notified: &[u8] = if old == new { &[] } else { &[2] };
            assert_eq!(outcome.notifications, notifications(RELEASED, notified));
        }
    }
}

#[test]
fn a_holder_that_preempts_itself_unregisters_others_with_its_key() {
    let mut state = reserved(&[1, 2], 1, WRITE);
    give_key(&mut state, 2, key(1));
    let outcome = preempt(&mut state, 1, ABORT, WRITE, key(1)).unwrap();
    assert_eq!(numbers(&state), [1]);
    assert_eq!(state.holder(), Some(host(1)));
    assert_eq!(outcome.abort, [host(2)]);
}

#[test]
fn a_holder_preempts_other_registrants_and_keeps_its_reservation() {
    let mut state = reserved(&[1, 2], 1, WRITE);
    let outcome = preempt(&mut state, 1, PREEMPT, ACCESS, key(2)).unwrap();
    assert_eq!(numbers(&state), [1]);
    assert_eq!(state.reservation(), Some(WRITE));
    assert_eq!(outcome.notifications, notifications(UNREGISTERED, &[2]));
}

#[test]
fn the_key_zero_is_refused_unless_it_is_the_holders() {
    for kind in single_holder_kinds() {
        let mut state = reserved(&[1, 2, 3], 1, kind);
        assert_refused(&state, INVALID, |it| preempt(it, 2, PREEMPT, WRITE, 0));
        // Not even if another registrant has the key.
        give_key(&mut state, 3, 0);
        assert_refused(&state, INVALID, |it| preempt(it, 2, PREEMPT, WRITE, 0));
        give_key(&mut state, 1, 0);
        let outcome = preempt(&mut state, 2, ABORT, kind, 0).unwrap();
        assert_eq!(numbers(&state), [2]);
        assert_eq!(outcome.abort, [host(1), host(3)]);
    }
}

#[test]
fn the_key_zero_takes_a_reservation_of_all_from_all() {
    for old in ReservationKind::ALL {
        if !old.is_all_registrants() {
            continue;
        }
        for new in ReservationKind::ALL {
            let mut state = reserved(&[1, 2, 3], 1, old);
            // The key of a registrant has no meaning here.
            give_key(&mut state, 3, 0);
            let outcome = preempt(&mut state, 2, ABORT, new, 0).unwrap();
            assert_eq!(numbers(&state), [2]);
            assert_eq!(state.reservation(), Some(new));
            assert_eq!(state.role(host(2)), Role::Holder);
            assert_eq!(outcome.notifications, notifications(UNREGISTERED, &[1, 3]));
            assert_eq!(outcome.abort, [host(1), host(3)]);
        }
    }
}

#[test]
fn another_key_unregisters_from_a_reservation_of_all() {
    let kind = ReservationKind::WriteExclusiveAllRegistrants;
    let mut state = reserved(&[1, 2, 3], 1, kind);
    let outcome = preempt(&mut state, 2, ABORT, WRITE, key(1)).unwrap();
    assert_eq!(numbers(&state), [2, 3]);
    assert_eq!(state.reservation(), Some(kind));
    assert_eq!(outcome.notifications, notifications(UNREGISTERED, &[1]));
    assert_eq!(outcome.abort, [host(1)]);
    assert_refused(&state, CONFLICT, |it| preempt(it, 2, ABORT, WRITE, key(1)));
}

#[test]
fn a_reservation_of_all_ends_when_a_preempt_unregisters_all() {
    let kind = ReservationKind::ExclusiveAccessAllRegistrants;
    let mut state = reserved(&[1, 2], 1, kind);
    give_key(&mut state, 1, key(2));
    let outcome = preempt(&mut state, 2, ABORT, kind, key(2)).unwrap();
    assert!(state.registrants().is_empty());
    assert_eq!(state.reservation(), None);
    assert_eq!(outcome.notifications, notifications(UNREGISTERED, &[1]));
}

#[test]
fn without_a_reservation_a_preempt_only_unregisters() {
    let mut state = registered(&[1, 2, 3]);
    let outcome = preempt(&mut state, 1, ABORT, WRITE, key(2)).unwrap();
    assert_eq!(numbers(&state), [1, 3]);
    assert_eq!(state.reservation(), None);
    assert_eq!(outcome.notifications, notifications(UNREGISTERED, &[2]));
    assert_eq!(outcome.abort, [host(2)]);
    assert_eq!(state.generation(), 4);
    // The key zero has no other meaning than a key here.
    let outcome = preempt(&mut state, 1, PREEMPT, WRITE, 0).unwrap();
    assert!(outcome.notifications.is_empty());
    assert_eq!(numbers(&state), [1, 3]);
    let _ = preempt(&mut state, 1, PREEMPT, WRITE, key(1)).unwrap();
    assert_eq!(numbers(&state), [3]);
}

#[test]
fn hosts_without_a_registration_or_with_a_wrong_key_conflict() {
    for kind in ReservationKind::ALL {
        for action in [PREEMPT, ABORT] {
            let mut state = reserved(&[1, 2], 1, kind);
            for preempted in [0, key(1), key(2), key(3)] {
                assert_refused(&state, CONFLICT, |it| {
                    preempt(it, 3, action, WRITE, preempted)
                });
            }
            give_key(&mut state, 2, key(9));
            assert_refused(&state, CONFLICT, |it| preempt(it, 2, action, WRITE, key(1)));
        }
    }
    let state = registered(&[]);
    assert_refused(&state, CONFLICT, |it| preempt(it, 1, ABORT, WRITE, key(1)));
}

#[test]
fn a_preempt_of_a_state_that_persists_is_stored() {
    let mut state = reserved(&[1, 2, 3], 1, WRITE);
    let _ = state.set_persistence(true).unwrap();
    assert!(
        preempt(&mut state, 2, PREEMPT, WRITE, key(3))
            .unwrap()
            .persist
    );
    assert!(
        preempt(&mut state, 2, ABORT, WRITE, key(1))
            .unwrap()
            .persist
    );
}
