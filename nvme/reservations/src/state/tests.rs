use super::*;
use crate::testing::*;

#[test]
fn a_new_state_allows_every_command() {
    let state = Reservations::new(PersistenceSupport::default());
    assert_eq!(state.reservation(), None);
    assert_eq!(state.holder(), None);
    assert_eq!(state.generation(), 0);
    assert!(!state.persists() && state.registrants().is_empty());
    assert_eq!(state.persistence_support(), PersistenceSupport::Unsupported);
    assert_eq!(state.role(host(1)), Role::NonRegistrant);
    assert_eq!(state.permissions(host(1)), Permissions::ALL);
}

/// The gate keeps the permissions of each host, so they must follow from role and type alone.
#[test]
fn permissions_follow_role_and_type() {
    for kind in ReservationKind::ALL {
        let state = reserved(&[1, 2], 1, kind);
        for number in 1..=3 {
            let permissions = Permissions::of(Some(kind), state.role(host(number)));
            assert_eq!(state.permissions(host(number)), permissions);
        }
        assert_eq!(state.permissions(host(1)), Permissions::ALL);
        let is_exclusive_alone = matches!(
            kind,
            ReservationKind::WriteExclusive | ReservationKind::ExclusiveAccess
        );
        assert_eq!(state.permissions(host(2)).write(), !is_exclusive_alone);
        assert!(!state.permissions(host(3)).write());
    }
}

/// Base 2.1 §8.1.22.1: a power loss clears a state unless it persists.
#[test]
fn a_power_loss_clears_what_does_not_persist() {
    let kind = ReservationKind::WriteExclusive;
    let mut state = reserved(&[1, 2], 1, kind);
    let _ = state.set_persistence(true).unwrap();
    let before = state.clone();
    state.apply_power_loss();
    assert_eq!(state, before);
    let _ = state.set_persistence(false).unwrap();
    state.apply_power_loss();
    assert_eq!(state, Reservations::new(PersistenceSupport::Supported));
}

#[test]
fn copies_have_room_for_all_registrants() {
    let state = reserved(&[1, 2], 1, ReservationKind::WriteExclusive);
    let copy = state.clone();
    assert_eq!(copy, state);
    assert!(copy.registrants.capacity() >= REGISTRANTS_MAX);

    let mut staged = registered(&[7]);
    staged.set_persistence_support(PersistenceSupport::Unsupported);
    let memory = staged.registrants.as_ptr();
    staged.clone_from(&state);
    assert_eq!(staged, state);
    assert_eq!(staged.registrants.as_ptr(), memory);
    for number in 10..=u8::MAX {
        let _ = register(&mut staged, number, 0).unwrap();
    }
    assert_eq!(staged.registrants.as_ptr(), memory);
}
