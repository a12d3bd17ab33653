//! Compares the state with a naive model of the specification, over random sequences of commands of
//! four hosts.

#![forbid(unsafe_code)]

mod commands;
mod reference;

use std::collections::{BTreeMap, BTreeSet};

use nvme_reservations::{
    CommandGroup, HostIdentifier, HostIdentifierFormat, NamespaceIdentity, Outcome, Permissions,
    PersistenceSupport, REPORT_BYTES_MAX, Reservations, Role, decode, encode,
};
use nvme_spec::Status;
use nvme_spec::command::reservation::{
    RegisteredControllerExtended, ReportControl, ReservationStatusExtendedHeader,
};
use proptest::collection::vec;
use proptest::prelude::*;
use zerocopy::FromBytes;

use commands::{Command, command};
use reference::{Effects, Model};

/// Hosts that send commands; host [`OUTSIDER`] never does.
const HOSTS: [u8; 4] = [1, 2, 3, 4];
const OUTSIDER: u8 = 5;
const IDENTITY: NamespaceIdentity = NamespaceIdentity([0x5a; 16]);

/// Hosts differ in the last byte alone.
fn identifier(host: u8) -> HostIdentifier {
    let mut bytes = [0xa5; 16];
    bytes[15] = host;
    HostIdentifier(bytes)
}

fn number(identifier: HostIdentifier) -> u8 {
    identifier.0[15]
}

fn stored(state: &Reservations) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(state, IDENTITY, &mut bytes);
    bytes
}

/// Checks an outcome against the effects of the model.
fn check_outcome(outcome: &Outcome, effects: &Effects) {
    let notified: BTreeSet<(u8, u8)> = outcome
        .notifications
        .iter()
        .map(|notification| (number(notification.host), notification.kind.0))
        .collect();
    assert_eq!(notified, effects.notified);
    assert_eq!(
        notified.len(),
        outcome.notifications.len(),
        "a notification is repeated"
    );
    let abort: BTreeSet<u8> = outcome.abort.iter().map(|&host| number(host)).collect();
    assert_eq!(abort, effects.abort);
    assert_eq!(abort.len(), outcome.abort.len(), "a host is repeated");
}

/// Checks that an outcome announces the changes from `before` to `after`.
fn check_announced(outcome: &Outcome, before: &Reservations, after: &Reservations) {
    let is_persistent = before.persists() || after.persists();
    let must_store = is_persistent && stored(before) != stored(after);
    assert_eq!(outcome.persist, must_store, "persist");
    let changed = HOSTS.into_iter().chain([OUTSIDER]).any(|host| {
        let host = identifier(host);
        before.role(host) != after.role(host) || before.permissions(host) != after.permissions(host)
    });
    assert!(outcome.access_changed || !changed, "access_changed");
}

fn check_state(state: &Reservations, model: &Model) {
    let registrants: BTreeMap<u8, u64> = state
        .registrants()
        .iter()
        .map(|registrant| (number(registrant.host), registrant.key))
        .collect();
    assert_eq!(registrants, model.keys);
    assert_eq!(state.registrants().len(), model.keys.len());
    assert_eq!(state.generation(), model.generation);
    assert_eq!(state.persists(), model.persists);
    let code = state.reservation().map(|kind| kind.wire().0);
    assert_eq!(code, model.held.as_ref().map(|held| held.code));
    for host in HOSTS.into_iter().chain([OUTSIDER]) {
        let role = match (model.is_holder(host), model.keys.contains_key(&host)) {
            (true, _) => Role::Holder,
            (false, true) => Role::Registrant,
            (false, false) => Role::NonRegistrant,
        };
        assert_eq!(state.role(identifier(host)), role, "host {host}");
        let permissions = state.permissions(identifier(host));
        let groups = [
            (CommandGroup::Read, model.may_read(host)),
            (CommandGroup::Write, model.may_write(host)),
            (CommandGroup::Acquire, model.may_acquire(host)),
            (CommandGroup::PreemptOrRelease, model.may_preempt(host)),
        ];
        for (group, allowed) in groups {
            let command = Permissions::NONE.with(group);
            assert_eq!(
                permissions.contains(command),
                allowed,
                "{group:?} of {host}"
            );
        }
    }
    assert_eq!(decode(&stored(state), IDENTITY).as_ref(), Ok(state));
}

fn check_report(state: &Reservations, model: &Model) {
    let mut bytes = [0; REPORT_BYTES_MAX];
    let control = ReportControl::new().with_eds(true);
    let format = HostIdentifierFormat::Extended;
    let length = state
        .report(identifier(OUTSIDER), format, control, |_| None, &mut bytes)
        .expect("every host may report");
    let bytes = &bytes[..length.written_bytes];
    let (header, rest) = ReservationStatusExtendedHeader::read_from_prefix(bytes).unwrap();
    assert_eq!(header.rshdr.gen_counter.get(), model.generation);
    let code = model.held.as_ref().map_or(0, |held| held.code);
    assert_eq!(header.rshdr.rtype.0, code);
    assert_eq!(usize::from(header.rshdr.regstrnt.get()), model.keys.len());
    assert_eq!(header.rshdr.ptpls, u8::from(model.persists));
    let entries = <[RegisteredControllerExtended]>::ref_from_bytes(rest).unwrap();
    let reported: BTreeMap<u8, (u64, bool)> = entries
        .iter()
        .map(|entry| (entry.hostid[15], (entry.rkey.get(), entry.rcsts.holder())))
        .collect();
    let expected = model.keys.iter();
    let expected = expected.map(|(&host, &key)| (host, (key, model.is_holder(host))));
    assert_eq!(reported, expected.collect());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn commands_do_what_the_specification_says(commands in vec(command(), 1..64)) {
        let mut state = Reservations::new(PersistenceSupport::Supported);
        let mut model = Model::default();
        for command in commands {
            let before = state.clone();
            let command = command.resolve(&model);
            let found = command.apply(&mut state);
            let expected: Result<Effects, Status> = command.apply_to_model(&mut model);
            match (found, expected) {
                (Ok(outcome), Ok(effects)) => {
                    check_outcome(&outcome, &effects);
                    if command != Command::PowerLoss {
                        check_announced(&outcome, &before, &state);
                    }
                }
                (Err(found), Err(expected)) => {
                    assert_eq!(found, expected, "{command:?}");
                    assert_eq!(state, before, "{command:?} failed and changed the state");
                }
                (found, expected) => panic!("{command:?}: {found:?} instead of {expected:?}"),
            }
            check_state(&state, &model);
        }
        check_report(&state, &model);
    }
}
