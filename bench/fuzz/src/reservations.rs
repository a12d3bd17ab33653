//! Reservations: stored states, of which any bytes are either refused or read exactly, and sequences
//! of commands, after which a state keeps its rules and survives being stored.

use std::collections::BTreeSet;

use crc_fast::crc32_iscsi;
use nvme_reservations::{
    HostIdentifier, HostIdentifierFormat, NamespaceIdentity, PersistenceSupport, REPORT_BYTES_MAX,
    Reservations, Role, decode, encode,
};
use nvme_spec::command::reservation::{
    AcquireAction, AcquireControl, AcquireData, PersistChange, RegisterAction, RegisterControl,
    RegisterData, ReleaseAction, ReleaseControl, ReportControl, ReservationType,
};
use nvme_spec::{Status, U64};

use crate::input::Input;

const IDENTITY: NamespaceIdentity = NamespaceIdentity([0; 16]);
/// Number of hosts and keys: few, so that commands concern each other.
const HOSTS: usize = 5;
/// Limit of the commands of one input.
const COMMANDS_MAX: usize = 256;

/// Reads the input as a stored state, or carries it out as commands.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    match input.below(3) {
        0 => restore(input.take(usize::MAX)),
        1 => {
            // With the right checksum, which no mutation finds.
            let mut bytes = input.take(usize::MAX).to_vec();
            let checksum = crc32_iscsi(&bytes);
            bytes.extend_from_slice(&checksum.to_le_bytes());
            restore(&bytes);
        }
        _ => command(input),
    }
}

/// A state that is accepted is stored as exactly the same bytes.
fn restore(bytes: &[u8]) {
    let Ok(mut state) = decode(bytes, IDENTITY) else {
        return;
    };
    check_rules(&state);
    assert_eq!(stored(&state), bytes);
    state.apply_power_loss();
    check_rules(&state);
}

fn stored(state: &Reservations) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(state, IDENTITY, &mut bytes);
    bytes
}

/// Hosts send commands. A refused one changes nothing.
fn command(mut input: Input<'_>) {
    let mut state = Reservations::new(PersistenceSupport::Supported);
    let mut report = [0; REPORT_BYTES_MAX];
    for _ in 0..COMMANDS_MAX {
        if input.is_empty() {
            break;
        }
        let before = state.clone();
        if send(&mut state, &mut input).is_err() {
            assert_eq!(state, before, "a refused command changes nothing");
        }
        check_rules(&state);
        let again = decode(&stored(&state), IDENTITY);
        assert_eq!(again.as_ref().ok(), Some(&state));
        let length = usize::from(input.u16()) % report.len();
        let written = state.report(
            host(1),
            HostIdentifierFormat::Extended,
            ReportControl::new().with_eds(true),
            |_| None,
            &mut report[..length],
        );
        let written = written.expect("the format is right").written_bytes;
        assert!(written <= length);
    }
}

fn host(number: usize) -> HostIdentifier {
    HostIdentifier([number as u8; 16])
}

fn key(input: &mut Input<'_>) -> U64 {
    U64::new(input.below(HOSTS) as u64)
}

fn send(state: &mut Reservations, input: &mut Input<'_>) -> Result<(), Status> {
    let sender = host(input.below(HOSTS));
    let (rtype, action) = (ReservationType(input.u8() % 8), input.u8() % 4);
    let ignores_key = input.one_in(4);
    let outcome = match input.below(6) {
        0 | 1 => {
            let control = RegisterControl::new()
                .with_action(RegisterAction(action))
                .with_ignore_existing_key(ignores_key)
                .with_cptpl(PersistChange(input.u8() % 4));
            let (crkey, nrkey) = (key(input), key(input));
            state.register(sender, control, &RegisterData { crkey, nrkey })?
        }
        2 | 3 => {
            let control = AcquireControl::new()
                .with_action(AcquireAction(action))
                .with_ignore_existing_key(ignores_key)
                .with_rtype(rtype);
            let (crkey, prkey) = (key(input), key(input));
            state.acquire(sender, control, &AcquireData { crkey, prkey })?
        }
        4 => {
            let control = ReleaseControl::new()
                .with_action(ReleaseAction(action))
                .with_ignore_existing_key(ignores_key)
                .with_rtype(rtype);
            state.release(sender, control, key(input).get())?
        }
        _ => match ignores_key {
            true => state.evict_all(),
            false => state.evict(sender),
        },
    };
    let notified: BTreeSet<_> = outcome.notifications.iter().map(|it| it.host).collect();
    assert_eq!(notified.len(), outcome.notifications.len(), "once per host");
    Ok(())
}

/// The rules of each state: hosts are registered once, and only registrants hold a reservation.
fn check_rules(state: &Reservations) {
    let hosts: BTreeSet<_> = state.registrants().iter().map(|it| it.host).collect();
    assert_eq!(hosts.len(), state.registrants().len());
    let holders = hosts.iter().filter(|it| state.role(**it) == Role::Holder);
    match state.reservation() {
        None => assert_eq!(holders.count(), 0),
        Some(kind) if kind.is_all_registrants() => {
            assert!(!hosts.is_empty() && holders.count() == hosts.len());
        }
        Some(_) => assert_eq!(holders.count(), 1),
    }
    let holder = state.holder();
    assert!(holder.is_none_or(|holder| hosts.contains(&holder)));
}
