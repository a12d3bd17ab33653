//! Properties of stored states: they are restored exactly, and no bytes cause a panic.

#![forbid(unsafe_code)]

use nvme_reservations::{
    HostIdentifier, NamespaceIdentity, PersistenceSupport, REGISTRANTS_MAX, ReservationKind,
    Reservations, decode, encode,
};
use nvme_spec::U64;
use nvme_spec::command::reservation::{
    AcquireControl, AcquireData, PersistChange, RegisterControl, RegisterData,
};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// A state that was reached by commands.
fn state() -> impl Strategy<Value = Reservations> {
    let registrants = btree_map(1..u128::MAX, any::<u64>(), 0..REGISTRANTS_MAX);
    let kind = proptest::option::of(select(&ReservationKind::ALL));
    (registrants, kind, any::<Index>(), any::<bool>()).prop_map(
        |(registrants, kind, holder, persists)| {
            let mut state = Reservations::new(PersistenceSupport::Supported);
            let change = if persists {
                PersistChange::SET
            } else {
                PersistChange::NO_CHANGE
            };
            for (&host, &key) in &registrants {
                let control = RegisterControl::new().with_cptpl(change);
                let data = RegisterData {
                    nrkey: U64::new(key),
                    ..RegisterData::default()
                };
                let host = HostIdentifier(host.to_be_bytes());
                let _ = state.register(host, control, &data).expect("a new host");
            }
            if let Some(kind) = kind
                && !registrants.is_empty()
            {
                let holder = state.registrants()[holder.index(registrants.len())];
                let control = AcquireControl::new().with_rtype(kind.wire());
                let data = AcquireData {
                    crkey: U64::new(holder.key),
                    ..AcquireData::default()
                };
                let _ = state.acquire(holder.host, control, &data).expect("free");
            }
            state
        },
    )
}

proptest! {
    #[test]
    fn states_are_restored(state in state(), identity: [u8; 16]) {
        let identity = NamespaceIdentity(identity);
        let mut bytes = Vec::new();
        encode(&state, identity, &mut bytes);
        prop_assert_eq!(decode(&bytes, identity), Ok(state));
    }

    #[test]
    fn arbitrary_bytes_are_refused(bytes in vec(any::<u8>(), 0..512), identity: [u8; 16]) {
        prop_assert!(decode(&bytes, NamespaceIdentity(identity)).is_err());
    }

    /// A checksum that is right again admits the bytes to every later check.
    #[test]
    fn changed_bytes_are_refused_or_are_another_valid_state(
        state in state(),
        identity: [u8; 16],
        changes in vec((any::<Index>(), any::<u8>()), 1..8),
        cut in proptest::option::of(any::<Index>()),
        has_valid_checksum: bool,
    ) {
        let identity = NamespaceIdentity(identity);
        let mut bytes = Vec::new();
        encode(&state, identity, &mut bytes);
        let before = bytes.clone();
        for (position, value) in changes {
            // Most bytes are registrants, and most checks concern the header.
            let length = if value % 2 == 0 { bytes.len() } else { 64 };
            bytes[position.index(length)] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if has_valid_checksum && let Some(end) = bytes.len().checked_sub(4) {
            let checksum = crc_fast::crc32_iscsi(&bytes[..end]);
            bytes[end..].copy_from_slice(&checksum.to_le_bytes());
        }
        match decode(&bytes, identity) {
            Ok(decoded) => {
                let mut again = Vec::new();
                encode(&decoded, identity, &mut again);
                prop_assert!(has_valid_checksum || bytes == before);
                prop_assert_eq!(again, bytes);
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
