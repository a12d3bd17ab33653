//! Reservation Register (Base 2.1 §7.6, §8.1.22.3 and §8.1.22.4).

use nvme_spec::command::reservation::{PersistChange, RegisterAction, RegisterControl};
use nvme_spec::log::ReservationNotificationType;

use super::*;
use crate::{Outcome, REGISTRANTS_MAX};

const RELEASED: ReservationNotificationType = ReservationNotificationType::RESERVATION_RELEASED;

fn control(action: RegisterAction) -> RegisterControl {
    RegisterControl::new().with_action(action)
}

fn replace(
    state: &mut Reservations,
    number: u8,
    current: u64,
    new: u64,
    iekey: bool,
) -> Result<Outcome, Status> {
    let control = control(RegisterAction::REPLACE).with_ignore_existing_key(iekey);
    state.register(host(number), control, &register_data(current, new))
}

#[test]
fn a_host_registers_once_for_all_its_controllers() {
    let mut state = registered(&[1]);
    assert_eq!(state.registrants().len(), 1);
    assert_eq!(state.registrants()[0].key, key(1));
    assert_eq!(state.generation(), 1);
    // A registration may be repeated with the same key, and counts as a successful command.
    let again = register(&mut state, 1, key(1)).unwrap();
    assert_eq!(again, Outcome::default());
    assert_eq!(state.registrants().len(), 1);
    assert_eq!(state.generation(), 2);
}

#[test]
fn a_second_registration_with_another_key_conflicts() {
    let state = registered(&[1]);
    assert_refused(&state, CONFLICT, |it| register(it, 1, key(2)));
    // IEKEY is ignored by this action.
    let ignoring = control(RegisterAction::REGISTER).with_ignore_existing_key(true);
    assert_refused(&state, CONFLICT, |it| {
        it.register(host(1), ignoring, &register_data(0, key(2)))
    });
}

#[test]
fn hosts_may_share_a_key_and_a_key_may_be_zero() {
    let mut state = registered(&[]);
    for number in 1..=3 {
        let _ = register(&mut state, number, 0).unwrap();
    }
    assert_eq!(numbers(&state), [1, 2, 3]);
    assert!(state.registrants().iter().all(|it| it.key == 0));
}

#[test]
fn the_current_key_is_reserved_when_registering() {
    let mut state = registered(&[]);
    let data = register_data(key(9), key(1));
    let outcome = state.register(host(1), control(RegisterAction::REGISTER), &data);
    assert!(outcome.unwrap().access_changed);
}

#[test]
fn the_number_of_registrants_is_bounded() {
    let mut state = Reservations::new(PersistenceSupport::Supported);
    let numbered = |number: usize| {
        let mut bytes = [0xa5; 16];
        bytes[8..].copy_from_slice(&number.to_le_bytes());
        HostIdentifier(bytes)
    };
    let add = |state: &mut Reservations, number: usize, action| {
        let control = control(action).with_ignore_existing_key(true);
        state.register(numbered(number), control, &register_data(0, 7))
    };
    for number in 0..REGISTRANTS_MAX {
        let _ = add(&mut state, number, RegisterAction::REGISTER).unwrap();
    }
    for action in [RegisterAction::REGISTER, RegisterAction::REPLACE] {
        assert_refused(&state, Status::INTERNAL_ERROR, |it| {
            add(it, REGISTRANTS_MAX, action)
        });
    }
    // Registered hosts are not affected, and a host that unregisters leaves its place.
    let _ = add(&mut state, 0, RegisterAction::REPLACE).unwrap();
    let _ = add(&mut state, 0, RegisterAction::UNREGISTER).unwrap();
    let _ = add(&mut state, REGISTRANTS_MAX, RegisterAction::REGISTER).unwrap();
    assert_eq!(state.registrants().len(), REGISTRANTS_MAX);
}

#[test]
fn a_key_is_replaced_by_its_owner() {
    let mut state = reserved(&[1, 2], 1, ReservationKind::ExclusiveAccess);
    let outcome = replace(&mut state, 1, key(1), key(3), false).unwrap();
    assert_eq!(outcome, Outcome::default());
    assert_eq!(state.registrants()[0].key, key(3));
    assert_eq!(state.holder(), Some(host(1)));
    assert_eq!(state.generation(), 3);
    assert_refused(&state, CONFLICT, |it| replace(it, 1, key(1), key(4), false));
    assert_refused(&state, CONFLICT, |it| replace(it, 1, key(2), key(4), false));
    assert_refused(&state, CONFLICT, |it| replace(it, 3, key(2), key(4), false));
    assert_refused(&state, CONFLICT, |it| replace(it, 3, 0, key(4), false));
}

#[test]
fn iekey_replaces_without_the_current_key_or_a_registration() {
    let mut state = registered(&[1]);
    let outcome = replace(&mut state, 1, key(9), key(3), true).unwrap();
    assert!(!outcome.access_changed);
    assert_eq!(state.registrants()[0].key, key(3));
    let outcome = replace(&mut state, 2, key(9), key(4), true).unwrap();
    assert!(outcome.access_changed);
    assert_eq!(numbers(&state), [1, 2]);
    assert_eq!(state.registrants()[1].key, key(4));
}

#[test]
fn a_host_unregisters_by_its_key_or_iekey() {
    let state = registered(&[1, 2]);
    let with_key = |it: &mut Reservations, number: u8, current: u64, iekey: bool| {
        let control = control(RegisterAction::UNREGISTER).with_ignore_existing_key(iekey);
        it.register(host(number), control, &register_data(current, 0))
    };
    assert_refused(&state, CONFLICT, |it| with_key(it, 1, key(2), false));
    assert_refused(&state, CONFLICT, |it| with_key(it, 3, key(1), false));
    assert_refused(&state, CONFLICT, |it| with_key(it, 3, 0, false));
    for (current, iekey) in [(key(1), false), (key(2), true)] {
        let mut state = state.clone();
        let outcome = with_key(&mut state, 1, current, iekey).unwrap();
        assert!(outcome.access_changed && outcome.notifications.is_empty());
        assert_eq!(numbers(&state), [2]);
        assert_eq!(state.generation(), 3);
    }
    // With IEKEY, the absence of a key is not an error.
    let mut state = state.clone();
    let outcome = with_key(&mut state, 3, key(1), true).unwrap();
    assert_eq!(outcome, Outcome::default());
    assert_eq!(numbers(&state), [1, 2]);
    assert_eq!(state.generation(), 3);
}

#[test]
fn the_only_holder_releases_its_reservation_by_unregistering() {
    for kind in ReservationKind::ALL {
        let mut state = reserved(&[1, 2, 3], 2, kind);
        let outcome = unregister(&mut state, 2).unwrap();
        assert!(outcome.access_changed && outcome.abort.is_empty());
        assert_eq!(numbers(&state), [1, 3]);
        let is_released = !kind.is_all_registrants();
        assert_eq!(state.reservation(), (!is_released).then_some(kind));
        let notified: &[u8] = if kind.is_registrants_only() {
            &[1, 3]
        } else {
            &[]
        };
        assert_eq!(
            outcome.notifications,
            notifications(RELEASED, notified),
            "{kind:?}"
        );
    }
}

#[test]
fn the_last_registrant_releases_a_reservation_of_all() {
    for kind in ReservationKind::ALL {
        let mut state = reserved(&[1, 2], 1, kind);
        let _ = unregister(&mut state, 2).unwrap();
        assert_eq!(state.reservation(), Some(kind));
        let outcome = unregister(&mut state, 1).unwrap();
        assert!(outcome.notifications.is_empty());
        assert_eq!(state.reservation(), None);
        assert!(state.registrants().is_empty());
    }
}

#[test]
fn an_unregistered_host_is_a_registrant_no_longer() {
    let mut state = reserved(&[1, 2], 1, ReservationKind::WriteExclusiveRegistrantsOnly);
    assert!(state.permissions(host(2)).write());
    let _ = unregister(&mut state, 2).unwrap();
    assert!(!state.permissions(host(2)).write());
    assert_refused(&state, CONFLICT, |it| {
        acquire(it, 2, ReservationKind::WriteExclusive)
    });
}

#[test]
fn reserved_values_are_refused() {
    let state = registered(&[1]);
    for action in 3..8 {
        let control = control(RegisterAction(action));
        assert_refused(&state, INVALID, |it| {
            it.register(host(1), control, &register_data(key(1), key(1)))
        });
    }
    assert_refused(&state, INVALID, |it| {
        register_persisting(it, 1, PersistChange(1))
    });
}

#[test]
fn cptpl_changes_whether_the_state_persists() {
    let mut state = registered(&[]);
    let mut step = |change, must_persist, persists| {
        let outcome = register_persisting(&mut state, 1, change).unwrap();
        assert_eq!(outcome.persist, must_persist, "{change:?}");
        assert_eq!(state.persists(), persists, "{change:?}");
    };
    step(PersistChange::NO_CHANGE, false, false);
    step(PersistChange::CLEAR, false, false);
    step(PersistChange::SET, true, true);
    step(PersistChange::NO_CHANGE, true, true);
    step(PersistChange::SET, true, true);
    // The stored state must say that it no longer persists.
    step(PersistChange::CLEAR, true, false);
    step(PersistChange::NO_CHANGE, false, false);
}

#[test]
fn cptpl_has_no_effect_if_the_command_fails() {
    let mut state = registered(&[1]);
    let setting = control(RegisterAction::UNREGISTER).with_cptpl(PersistChange::SET);
    assert_refused(&state, CONFLICT, |it| {
        it.register(host(1), setting, &register_data(key(2), 0))
    });
    state.set_persistence_support(PersistenceSupport::Unsupported);
    assert_refused(&state, INVALID, |it| {
        register_persisting(it, 2, PersistChange::SET)
    });
    for change in [PersistChange::NO_CHANGE, PersistChange::CLEAR] {
        assert!(register_persisting(&mut state, 2, change).is_ok());
    }
}

#[test]
fn a_state_that_persists_is_stored_after_every_successful_register() {
    let mut state = reserved(&[1, 2], 1, ReservationKind::WriteExclusive);
    assert!(state.set_persistence(true).unwrap().persist);
    assert!(register(&mut state, 3, key(3)).unwrap().persist);
    assert!(replace(&mut state, 3, key(3), 0, false).unwrap().persist);
    assert!(unregister(&mut state, 1).unwrap().persist);
}

#[test]
fn the_generation_wraps() {
    let mut state = registered(&[1]);
    state.set_generation(u32::MAX);
    let _ = register(&mut state, 1, key(1)).unwrap();
    assert_eq!(state.generation(), 0);
}
