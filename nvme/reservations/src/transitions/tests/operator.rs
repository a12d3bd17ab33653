//! Fencing by an operator.

use nvme_spec::log::ReservationNotificationType;

use super::*;
use crate::Outcome;

const UNREGISTERED: ReservationNotificationType =
    ReservationNotificationType::REGISTRATION_PREEMPTED;
const RELEASED: ReservationNotificationType = ReservationNotificationType::RESERVATION_RELEASED;

#[test]
fn an_evicted_holder_loses_registration_and_reservation() {
    for kind in ReservationKind::ALL {
        let mut state = reserved(&[1, 2, 3], 2, kind);
        let outcome = state.evict(host(2));
        assert_eq!(numbers(&state), [1, 3]);
        assert_eq!(outcome.abort, [host(2)]);
        let mut expected = notifications(UNREGISTERED, &[2]);
        if kind.is_all_registrants() {
            assert_eq!(state.reservation(), Some(kind));
        } else {
            assert_eq!(state.reservation(), None);
            expected.extend(notifications(RELEASED, &[1, 3]));
        }
        assert_eq!(outcome.notifications, expected);
        assert!(outcome.access_changed && !outcome.persist);
        assert_eq!(state.generation(), 4);
    }
}

#[test]
fn an_evicted_registrant_leaves_the_reservation() {
    let mut state = reserved(&[1, 2], 1, ReservationKind::WriteExclusive);
    let _ = state.set_persistence(true).unwrap();
    let outcome = state.evict(host(2));
    assert_eq!(outcome.notifications, notifications(UNREGISTERED, &[2]));
    assert!(outcome.persist);
    assert_eq!(state.holder(), Some(host(1)));
    // A host that is not registered has nothing to lose.
    let before = state.clone();
    assert_eq!(state.evict(host(2)), Outcome::default());
    assert_eq!(state, before);
}

#[test]
fn all_hosts_are_evicted_at_once() {
    let mut state = reserved(&[1, 2], 1, ReservationKind::ExclusiveAccessAllRegistrants);
    let _ = state.set_persistence(true).unwrap();
    let outcome = state.evict_all();
    assert_eq!(outcome.notifications, notifications(UNREGISTERED, &[1, 2]));
    assert_eq!(outcome.abort, [host(1), host(2)]);
    assert!(outcome.persist && state.persists());
    assert!(state.registrants().is_empty());
    assert_eq!(state.reservation(), None);
    assert_eq!(state.evict_all(), Outcome::default());
}
