//! Stored states: their bytes, and every reason to refuse them.

use super::*;
use crate::testing::*;

const IDENTITY: NamespaceIdentity = NamespaceIdentity(*b"windlass-volume1");

fn stored(state: &Reservations) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(state, IDENTITY, &mut bytes);
    bytes
}

/// The error for the stored bytes of hosts 1 and 2 with a reservation of host 1, after `damage`
/// and with a checksum that is right again.
fn refusal(kind: ReservationKind, damage: impl FnOnce(&mut Vec<u8>)) -> RestoreError {
    let mut bytes = stored(&reserved(&[1, 2], 1, kind));
    damage(&mut bytes);
    let end = bytes.len() - 4;
    let checksum = crc32_iscsi(&bytes[..end]);
    bytes[end..].copy_from_slice(&checksum.to_le_bytes());
    decode(&bytes, IDENTITY).expect_err("the bytes are damaged")
}

#[test]
fn the_form_is_stable() {
    let mut state = reserved(&[1], 1, ReservationKind::ExclusiveAccess);
    let _ = state.set_persistence(true).unwrap();
    state.set_generation(0x0102_0304);
    let mut expected = Vec::new();
    expected.extend(*b"NVMeResv");
    expected.extend([1, 0, 0, 0, 1, 0, 0, 0]);
    expected.extend(*b"windlass-volume1");
    expected.extend(host(1).0);
    expected.extend([4, 3, 2, 1, 2, 1]);
    expected.extend([0; 10]);
    expected.extend(host(1).0);
    expected.extend(key(1).to_le_bytes());
    expected.extend(crc32_iscsi(&expected).to_le_bytes());
    assert_eq!(stored(&state), expected);
    assert_eq!(decode(&expected, IDENTITY), Ok(state));
}

#[test]
fn every_type_is_restored() {
    for kind in ReservationKind::ALL {
        let state = reserved(&[3, 1, 2], 2, kind);
        assert_eq!(decode(&stored(&state), IDENTITY), Ok(state));
    }
    let state = registered(&[]);
    assert_eq!(decode(&stored(&state), IDENTITY), Ok(state));
}

#[test]
fn a_restored_state_is_cleared_by_a_power_loss_unless_it_persists() {
    let mut state = reserved(&[1], 1, ReservationKind::WriteExclusive);
    let mut restored = decode(&stored(&state), IDENTITY).unwrap();
    restored.apply_power_loss();
    assert!(restored.registrants().is_empty());
    let _ = state.set_persistence(true).unwrap();
    let mut restored = decode(&stored(&state), IDENTITY).unwrap();
    restored.apply_power_loss();
    assert_eq!(restored, state);
}

#[test]
fn the_longest_form_has_the_documented_size_and_needs_no_more_memory() {
    let mut state = registered(&[]);
    for number in 0..REGISTRANTS_MAX {
        let mut host = [0xa5; 16];
        host[8..].copy_from_slice(&number.to_le_bytes());
        let (control, data) = (Default::default(), register_data(0, 1));
        let _ = state
            .register(HostIdentifier(host), control, &data)
            .unwrap();
    }
    let mut bytes = Vec::with_capacity(ENCODED_BYTES_MAX);
    let memory = bytes.as_ptr();
    encode(&state, IDENTITY, &mut bytes);
    assert_eq!(bytes.len(), ENCODED_BYTES_MAX);
    assert_eq!(bytes.as_ptr(), memory);
    assert_eq!(decode(&bytes, IDENTITY), Ok(state));
    // A shorter state replaces it.
    encode(&registered(&[1]), IDENTITY, &mut bytes);
    assert_eq!(bytes.len(), 64 + 24 + 4);
}

#[test]
fn truncated_bytes_are_refused() {
    let bytes = stored(&registered(&[1, 2]));
    for size in 0..bytes.len() {
        let expected = if size < 64 { 68 } else { bytes.len() };
        let error = RestoreError::Truncated {
            expected,
            found: size,
        };
        assert_eq!(decode(&bytes[..size], IDENTITY), Err(error));
    }
}

#[test]
fn trailing_bytes_are_refused() {
    let mut bytes = stored(&registered(&[1]));
    bytes.push(0);
    let error = RestoreError::TrailingBytes {
        expected: bytes.len() - 1,
        found: bytes.len(),
    };
    assert_eq!(decode(&bytes, IDENTITY), Err(error));
}

#[test]
fn damaged_bytes_are_refused() {
    let bytes = stored(&reserved(&[1, 2], 1, ReservationKind::WriteExclusive));
    for position in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[position] ^= 1 << bit;
            let error = decode(&damaged, IDENTITY).expect_err("one bit is wrong");
            let is_expected = match position {
                0..8 => error == RestoreError::WrongMagic,
                8..12 => matches!(error, RestoreError::UnknownVersion(_)),
                12..16 => matches!(
                    error,
                    RestoreError::TooManyRegistrants(_)
                        | RestoreError::Truncated { .. }
                        | RestoreError::TrailingBytes { .. }
                ),
                _ => matches!(error, RestoreError::WrongChecksum { .. }),
            };
            assert!(is_expected, "bit {bit} of byte {position}: {error}");
        }
    }
}

#[test]
fn other_versions_and_namespaces_are_refused() {
    let kind = ReservationKind::WriteExclusive;
    let error = refusal(kind, |bytes| bytes[8] = 2);
    assert_eq!(error, RestoreError::UnknownVersion(2));
    let bytes = stored(&registered(&[1]));
    let other = NamespaceIdentity(*b"windlass-volume2");
    let error = RestoreError::OtherNamespace(IDENTITY.0);
    assert_eq!(decode(&bytes, other), Err(error));
}

#[test]
fn too_many_registrants_are_refused() {
    let count = REGISTRANTS_MAX as u32 + 1;
    let error = refusal(ReservationKind::WriteExclusive, |bytes| {
        bytes[12..16].copy_from_slice(&count.to_le_bytes());
        bytes.resize(64 + 24 * count as usize + 4, 0);
    });
    assert_eq!(error, RestoreError::TooManyRegistrants(count));
}

#[test]
fn reserved_bits_are_refused() {
    let kind = ReservationKind::WriteExclusive;
    let error = refusal(kind, |bytes| bytes[53] = 2);
    assert_eq!(error, RestoreError::ReservedNotZero);
    let error = refusal(kind, |bytes| bytes[63] = 1);
    assert_eq!(error, RestoreError::ReservedNotZero);
}

#[test]
fn registrants_must_be_distinct_hosts() {
    let kind = ReservationKind::WriteExclusive;
    let error = refusal(kind, |bytes| bytes.copy_within(64..80, 88));
    assert_eq!(error, RestoreError::DuplicateHost(host(1)));
    let error = refusal(kind, |bytes| bytes[88..104].fill(0));
    assert_eq!(error, RestoreError::ZeroHost(1));
}

#[test]
fn a_reservation_must_have_a_registered_holder() {
    let single = ReservationKind::WriteExclusive;
    let all = ReservationKind::WriteExclusiveAllRegistrants;
    let error = refusal(single, |bytes| bytes[47] = 9);
    assert_eq!(error, RestoreError::HolderNotRegistered(host(9)));
    let error = refusal(single, |bytes| bytes[32..48].fill(0));
    let zero = HostIdentifier([0; 16]);
    assert_eq!(error, RestoreError::HolderNotRegistered(zero));
    let error = refusal(single, |bytes| bytes[52] = 0);
    assert_eq!(error, RestoreError::UnexpectedHolder(host(1)));
    let error = refusal(all, |bytes| bytes[32..48].copy_from_slice(&host(1).0));
    assert_eq!(error, RestoreError::UnexpectedHolder(host(1)));
    let error = refusal(all, |bytes| {
        bytes[12] = 0;
        bytes.truncate(68);
    });
    assert_eq!(error, RestoreError::NoHolder);
    for code in 7..=u8::MAX {
        let error = refusal(single, |bytes| bytes[52] = code);
        assert_eq!(error, RestoreError::UnknownType(code));
    }
}

#[test]
fn errors_name_the_object_and_the_problem() {
    let texts = [
        RestoreError::Truncated {
            expected: 68,
            found: 3,
        },
        RestoreError::WrongMagic,
        RestoreError::UnknownVersion(2),
        RestoreError::WrongChecksum {
            expected: 1,
            found: 2,
        },
        RestoreError::DuplicateHost(host(1)),
    ]
    .map(|error| error.to_string());
    let expected = [
        "the stored reservations are truncated: 3 of at least 68 bytes",
        "the bytes are not stored reservations: they do not begin with \"NVMeResv\"",
        "the stored reservations have version 2, but only version 1 can be read",
        "the stored reservations are damaged: the checksum is 0x00000002, not 0x00000001",
        "the stored host a5a5a5a5-a5a5-a5a5-a5a5-a5a5a5a5a501 is registered twice",
    ];
    assert_eq!(texts, expected);
}
