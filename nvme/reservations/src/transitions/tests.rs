//! The rules of each command, and its invalid input.

use nvme_spec::Status;

use crate::testing::*;
use crate::{HostIdentifier, PersistenceSupport, ReservationKind, Reservations};

mod acquire;
mod operator;
mod preempt;
mod register;
mod release;

const CONFLICT: Status = Status::RESERVATION_CONFLICT;
const INVALID: Status = Status::INVALID_FIELD;

/// Base 2.1 §8.1.22: a host identifier of zero cannot use reservations.
#[test]
fn hosts_without_an_identifier_are_refused() {
    let nobody = HostIdentifier([0; 16]);
    let state = reserved(&[1], 1, ReservationKind::WriteExclusive);
    let status = Status::HOST_IDENTIFIER_NOT_INITIALIZED;
    let (register, acquire) = (register_data(0, key(2)), acquire_data(key(1), key(1)));
    assert_refused(&state, status, |it| {
        it.register(nobody, Default::default(), &register)
    });
    assert_refused(&state, status, |it| {
        it.acquire(nobody, Default::default(), &acquire)
    });
    assert_refused(&state, status, |it| {
        it.release(nobody, Default::default(), key(1))
    });
    assert!(state.permissions(nobody).read());
    assert!(!state.permissions(nobody).write());
}

/// Base 2.1 §5.1.25.1.30, Reservation Persistence.
#[test]
fn the_feature_changes_whether_the_state_persists() {
    let mut state = registered(&[1]);
    assert!(!state.set_persistence(false).unwrap().persist);
    assert!(state.set_persistence(true).unwrap().persist);
    assert!(state.persists());
    assert!(!state.set_persistence(true).unwrap().persist);
    // The stored state must say that it no longer persists.
    assert!(state.set_persistence(false).unwrap().persist);
    assert!(!state.persists());
    assert_eq!(state.generation(), 1);
}

#[test]
fn persistence_is_refused_where_it_is_unsupported() {
    let mut state = Reservations::new(PersistenceSupport::Unsupported);
    assert_refused(&state, INVALID, |it| it.set_persistence(true));
    assert!(state.set_persistence(false).is_ok());
    state.set_persistence_support(PersistenceSupport::Supported);
    assert!(state.set_persistence(true).is_ok());
}
