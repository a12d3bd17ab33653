//! Reservation Report (Base 2.1 §7.8), compared byte by byte.

use super::*;
use crate::testing::*;

const EXTENDED: ReportControl = ReportControl::new().with_eds(true);
const SHORT: ReportControl = ReportControl::new();

/// Host 2 has the controller 0301h; the others have none.
fn controller(of: HostIdentifier) -> Option<u16> {
    (of == host(2)).then_some(0x0301)
}

fn extended(state: &Reservations, buffer: &mut [u8]) -> ReportLength {
    let format = HostIdentifierFormat::Extended;
    let report = state.report(host(1), format, EXTENDED, controller, buffer);
    report.expect("the formats agree")
}

/// The whole extended structure of `state`.
fn whole(state: &Reservations) -> Vec<u8> {
    let mut bytes = vec![0xee; REPORT_BYTES_MAX];
    let length = extended(state, &mut bytes);
    assert_eq!(length.total_bytes, length.written_bytes);
    assert!(bytes[length.total_bytes..].iter().all(|&it| it == 0xee));
    bytes.truncate(length.total_bytes);
    bytes
}

#[test]
fn the_extended_structure_has_a_header_and_the_registrants() {
    let mut state = reserved(&[1, 2], 2, ReservationKind::ExclusiveAccessRegistrantsOnly);
    let _ = state.set_persistence(true).unwrap();
    state.set_generation(0x0102_0304);
    let bytes = whole(&state);
    let mut expected = vec![0; 64 * 3];
    expected[0..10].copy_from_slice(&[4, 3, 2, 1, 4, 2, 0, 0, 0, 1]);
    expected[64..67].copy_from_slice(&[0xff, 0xff, 0]);
    expected[72..80].copy_from_slice(&key(1).to_le_bytes());
    expected[80..96].copy_from_slice(&host(1).0);
    expected[128..131].copy_from_slice(&[0x01, 0x03, 1]);
    expected[136..144].copy_from_slice(&key(2).to_le_bytes());
    expected[144..160].copy_from_slice(&host(2).0);
    assert_eq!(bytes, expected);
}

#[test]
fn the_short_structure_has_64_bit_host_identifiers() {
    let state = reserved(&[1, 2], 1, ReservationKind::WriteExclusive);
    let mut bytes = [0xee; 200];
    let format = HostIdentifierFormat::Short;
    let length = state
        .report(host(1), format, SHORT, controller, &mut bytes)
        .unwrap();
    assert_eq!((length.total_bytes, length.written_bytes), (72, 72));
    let mut expected = [0; 72];
    expected[0..10].copy_from_slice(&[2, 0, 0, 0, 1, 2, 0, 0, 0, 0]);
    expected[24..27].copy_from_slice(&[0xff, 0xff, 1]);
    expected[32..40].copy_from_slice(&host(1).0[..8]);
    expected[40..48].copy_from_slice(&key(1).to_le_bytes());
    expected[48..51].copy_from_slice(&[0x01, 0x03, 0]);
    expected[56..64].copy_from_slice(&host(2).0[..8]);
    expected[64..72].copy_from_slice(&key(2).to_le_bytes());
    assert_eq!(bytes[..72], expected);
    assert!(bytes[72..].iter().all(|&it| it == 0xee));
}

#[test]
fn every_registrant_holds_a_reservation_of_all() {
    let state = reserved(&[1, 2, 3], 2, ReservationKind::WriteExclusiveAllRegistrants);
    let bytes = whole(&state);
    let holders: Vec<u8> = (1..=3).map(|entry| bytes[64 * entry + 2]).collect();
    assert_eq!(holders, [1, 1, 1]);
    assert_eq!(bytes[4], 5);
}

#[test]
fn a_report_without_registrants_is_a_header() {
    let bytes = whole(&registered(&[]));
    assert_eq!(bytes, [0; 64]);
}

#[test]
fn a_short_buffer_receives_the_first_bytes() {
    let state = reserved(&[1, 2, 3], 1, ReservationKind::WriteExclusive);
    let all = whole(&state);
    for size in 0..=all.len() {
        let mut bytes = vec![0xee; all.len()];
        let length = extended(&state, &mut bytes[..size]);
        assert_eq!(length.total_bytes, all.len());
        assert_eq!(length.written_bytes, size);
        assert_eq!(bytes[..size], all[..size]);
        assert!(bytes[size..].iter().all(|&it| it == 0xee));
    }
}

#[test]
fn the_longest_report_has_the_documented_size() {
    let mut state = registered(&[]);
    for number in 0..REGISTRANTS_MAX {
        let mut bytes = [0xa5; 16];
        bytes[8..].copy_from_slice(&number.to_le_bytes());
        let (control, data) = (Default::default(), register_data(0, 1));
        let _ = state
            .register(HostIdentifier(bytes), control, &data)
            .unwrap();
    }
    let bytes = whole(&state);
    assert_eq!(bytes.len(), REPORT_BYTES_MAX);
    assert_eq!(bytes[5..7], (REGISTRANTS_MAX as u16).to_le_bytes());
}

#[test]
fn eds_must_match_the_size_of_the_host_identifier() {
    let state = registered(&[1]);
    let mut bytes = [0; 64];
    let mut report = |format, control| {
        let report = state.report(host(1), format, control, controller, &mut bytes);
        report.err()
    };
    let inconsistent = Some(Status::HOST_IDENTIFIER_INCONSISTENT_FORMAT);
    let (short, long) = (HostIdentifierFormat::Short, HostIdentifierFormat::Extended);
    assert_eq!(report(short, SHORT), None);
    assert_eq!(report(long, EXTENDED), None);
    assert_eq!(report(short, EXTENDED), inconsistent);
    assert_eq!(report(long, SHORT), inconsistent);
    assert_eq!(bytes[64 - 1], 0);
}

/// Hosts that are not registered may report, hosts without an identifier may not.
#[test]
fn a_host_needs_an_identifier_and_no_registration() {
    let state = reserved(&[1], 1, ReservationKind::ExclusiveAccess);
    let mut bytes = [0; 128];
    let format = HostIdentifierFormat::Extended;
    let report = state.report(host(9), format, EXTENDED, controller, &mut bytes);
    assert_eq!(report.map(|it| it.total_bytes), Ok(128));
    let zero = HostIdentifier([0; 16]);
    let report = state.report(zero, format, EXTENDED, controller, &mut bytes);
    assert_eq!(report, Err(Status::HOST_IDENTIFIER_NOT_INITIALIZED));
}
