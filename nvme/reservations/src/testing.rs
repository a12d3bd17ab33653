//! Hosts, keys and commands for the tests of this crate.

use nvme_spec::command::reservation::{
    AcquireAction, AcquireControl, AcquireData, PersistChange, RegisterAction, RegisterControl,
    RegisterData, ReleaseAction, ReleaseControl,
};
use nvme_spec::log::ReservationNotificationType;
use nvme_spec::{Status, U64};

use crate::{
    HostIdentifier, Notification, Outcome, PersistenceSupport, ReservationKind, Reservations,
};

/// Host `number`. Hosts differ in the last byte alone, so a comparison of 64 bits would not
/// distinguish them.
pub(crate) fn host(number: u8) -> HostIdentifier {
    let mut bytes = [0xa5; 16];
    bytes[15] = number;
    HostIdentifier(bytes)
}

/// Key `number`. Keys differ in the upper 32 bits alone.
pub(crate) fn key(number: u8) -> u64 {
    u64::from(number) << 32 | 0x1234
}

/// A state that may persist, in which host `n` of `numbers` is registered with key `n`.
pub(crate) fn registered(numbers: &[u8]) -> Reservations {
    let mut state = Reservations::new(PersistenceSupport::Supported);
    for &number in numbers {
        let outcome = register(&mut state, number, key(number)).expect("a new host");
        assert!(outcome.access_changed);
    }
    state
}

/// As [`registered`], with a reservation of host `holder`.
pub(crate) fn reserved(numbers: &[u8], holder: u8, kind: ReservationKind) -> Reservations {
    let mut state = registered(numbers);
    let outcome = acquire(&mut state, holder, kind).expect("no reservation is held");
    assert!(outcome.access_changed);
    state
}

pub(crate) fn register_data(current: u64, new: u64) -> RegisterData {
    RegisterData {
        crkey: U64::new(current),
        nrkey: U64::new(new),
    }
}

pub(crate) fn acquire_data(current: u64, preempt: u64) -> AcquireData {
    AcquireData {
        crkey: U64::new(current),
        prkey: U64::new(preempt),
    }
}

/// Registers host `number` with the key `new`.
pub(crate) fn register(state: &mut Reservations, number: u8, new: u64) -> Result<Outcome, Status> {
    let control = RegisterControl::new().with_action(RegisterAction::REGISTER);
    state.register(host(number), control, &register_data(0, new))
}

/// Registers host `number`, changing the Persist Through Power Loss state.
pub(crate) fn register_persisting(
    state: &mut Reservations,
    number: u8,
    change: PersistChange,
) -> Result<Outcome, Status> {
    let control = RegisterControl::new().with_cptpl(change);
    state.register(host(number), control, &register_data(0, key(number)))
}

/// Unregisters host `number` by its own key.
pub(crate) fn unregister(state: &mut Reservations, number: u8) -> Result<Outcome, Status> {
    let control = RegisterControl::new().with_action(RegisterAction::UNREGISTER);
    state.register(host(number), control, &register_data(key(number), 0))
}

/// Acquires a reservation for host `number` by its own key.
pub(crate) fn acquire(
    state: &mut Reservations,
    number: u8,
    kind: ReservationKind,
) -> Result<Outcome, Status> {
    let control = AcquireControl::new().with_rtype(kind.wire());
    state.acquire(host(number), control, &acquire_data(key(number), 0))
}

/// Preempts the registrants with the key `preempted` by host `number`.
pub(crate) fn preempt(
    state: &mut Reservations,
    number: u8,
    action: AcquireAction,
    kind: ReservationKind,
    preempted: u64,
) -> Result<Outcome, Status> {
    let control = AcquireControl::new()
        .with_action(action)
        .with_rtype(kind.wire());
    state.acquire(host(number), control, &acquire_data(key(number), preempted))
}

/// Releases a reservation of type `kind` by host `number`.
pub(crate) fn release(
    state: &mut Reservations,
    number: u8,
    kind: ReservationKind,
) -> Result<Outcome, Status> {
    let control = ReleaseControl::new().with_rtype(kind.wire());
    state.release(host(number), control, key(number))
}

/// Clears the reservation by host `number`.
pub(crate) fn clear(state: &mut Reservations, number: u8) -> Result<Outcome, Status> {
    let control = ReleaseControl::new().with_action(ReleaseAction::CLEAR);
    state.release(host(number), control, key(number))
}

/// Notifications of `kind` to the hosts `numbers`.
pub(crate) fn notifications(
    kind: ReservationNotificationType,
    numbers: &[u8],
) -> Vec<Notification> {
    let hosts = numbers.iter().map(|&number| host(number));
    hosts.map(|host| Notification { host, kind }).collect()
}

/// The numbers of the registered hosts, in the order of their registration.
pub(crate) fn numbers(state: &Reservations) -> Vec<u8> {
    let registrants = state.registrants().iter();
    registrants
        .map(|registrant| registrant.host.0[15])
        .collect()
}

/// Asserts that `command` completes with `status` and leaves `state` as it is.
pub(crate) fn assert_refused(
    state: &Reservations,
    status: Status,
    command: impl FnOnce(&mut Reservations) -> Result<Outcome, Status>,
) {
    let mut copy = state.clone();
    assert_eq!(command(&mut copy), Err(status));
    assert_eq!(copy, *state, "a refused command changed the state");
}
