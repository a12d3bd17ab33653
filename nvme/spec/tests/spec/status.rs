//! Status codes: published values, flags, text.

use std::collections::HashSet;

use nvme_spec::Status;
use nvme_spec::completion::StatusField;
use nvme_spec::status::StatusCodeType;
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

#[test]
fn published_values() {
    let table = [
        (Status::SUCCESS, 0, 0x00),
        (Status::INVALID_OPCODE, 0, 0x01),
        (Status::INVALID_FIELD, 0, 0x02),
        (Status::COMMAND_ID_CONFLICT, 0, 0x03),
        (Status::DATA_TRANSFER_ERROR, 0, 0x04),
        (Status::INTERNAL_ERROR, 0, 0x06),
        (Status::ABORT_REQUESTED, 0, 0x07),
        (Status::ABORTED_SQ_DELETION, 0, 0x08),
        (Status::INVALID_NAMESPACE_OR_FORMAT, 0, 0x0b),
        (Status::COMMAND_SEQUENCE_ERROR, 0, 0x0c),
        (Status::INVALID_NUMBER_OF_SGL_DESCRIPTORS, 0, 0x0e),
        (Status::DATA_SGL_LENGTH_INVALID, 0, 0x0f),
        (Status::SGL_DESCRIPTOR_TYPE_INVALID, 0, 0x11),
        (Status::PRP_OFFSET_INVALID, 0, 0x13),
        (Status::SGL_OFFSET_INVALID, 0, 0x16),
        (Status::HOST_IDENTIFIER_INCONSISTENT_FORMAT, 0, 0x18),
        (Status::KEEP_ALIVE_TIMER_EXPIRED, 0, 0x19),
        (Status::KEEP_ALIVE_TIMEOUT_INVALID, 0, 0x1a),
        (Status::NAMESPACE_WRITE_PROTECTED, 0, 0x20),
        (Status::TRANSIENT_TRANSPORT_ERROR, 0, 0x22),
        (Status::LBA_OUT_OF_RANGE, 0, 0x80),
        (Status::CAPACITY_EXCEEDED, 0, 0x81),
        (Status::NAMESPACE_NOT_READY, 0, 0x82),
        (Status::RESERVATION_CONFLICT, 0, 0x83),
        (Status::INVALID_QUEUE_IDENTIFIER, 1, 0x01),
        (Status::INVALID_QUEUE_SIZE, 1, 0x02),
        (Status::ABORT_LIMIT_EXCEEDED, 1, 0x03),
        (Status::ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED, 1, 0x05),
        (Status::INVALID_LOG_PAGE, 1, 0x09),
        (Status::FEATURE_NOT_SAVEABLE, 1, 0x0d),
        (Status::FEATURE_NOT_CHANGEABLE, 1, 0x0e),
        (Status::FEATURE_NOT_NAMESPACE_SPECIFIC, 1, 0x0f),
        (Status::INVALID_CONTROLLER_IDENTIFIER, 1, 0x1f),
        (Status::IO_COMMAND_SET_NOT_SUPPORTED, 1, 0x29),
        (Status::IO_COMMAND_SET_COMBINATION_REJECTED, 1, 0x2b),
        (Status::CONFLICTING_ATTRIBUTES, 1, 0x80),
        (Status::INVALID_PROTECTION_INFORMATION, 1, 0x81),
        (Status::WRITE_TO_READ_ONLY_RANGE, 1, 0x82),
        (Status::COMMAND_SIZE_LIMIT_EXCEEDED, 1, 0x83),
        (Status::CONNECT_INCOMPATIBLE_FORMAT, 1, 0x80),
        (Status::CONNECT_CONTROLLER_BUSY, 1, 0x81),
        (Status::CONNECT_INVALID_PARAMETERS, 1, 0x82),
        (Status::CONNECT_RESTART_DISCOVERY, 1, 0x83),
        (Status::CONNECT_INVALID_HOST, 1, 0x84),
        (Status::DISCONNECT_INVALID_QUEUE_TYPE, 1, 0x85),
        (Status::DISCOVER_RESTART, 1, 0x90),
        (Status::AUTHENTICATION_REQUIRED, 1, 0x91),
        (Status::WRITE_FAULT, 2, 0x80),
        (Status::UNRECOVERED_READ_ERROR, 2, 0x81),
        (Status::COMPARE_FAILURE, 2, 0x85),
        (Status::ACCESS_DENIED, 2, 0x86),
        (Status::INTERNAL_PATH_ERROR, 3, 0x00),
        (Status::ANA_PERSISTENT_LOSS, 3, 0x01),
        (Status::ANA_INACCESSIBLE, 3, 0x02),
        (Status::ANA_TRANSITION, 3, 0x03),
        (Status::HOST_PATHING_ERROR, 3, 0x70),
        (Status::ABORTED_BY_HOST, 3, 0x71),
    ];
    for (status, sct, sc) in table {
        assert_eq!((status.sct().0, status.sc()), (sct, sc), "{status}");
        assert!(status.text().is_some(), "{status}");
        assert_eq!(status.code(), Status::new(StatusCodeType(sct), sc));
        assert!(!status.dnr() && !status.more() && status.crd() == 0);
    }
}

/// Two codes with the same text would make a log ambiguous.
#[test]
fn texts_are_unique_within_a_context() {
    for fabrics in [false, true] {
        let mut seen = HashSet::new();
        for sct in 0..8 {
            for sc in 0..=u8::MAX {
                let status = Status::new(StatusCodeType(sct), sc);
                let text = if fabrics {
                    status.fabrics_text()
                } else {
                    status.text()
                };
                if let Some(text) = text {
                    assert!(seen.insert(text), "{text}");
                }
            }
        }
        assert!(seen.len() > 120);
    }
}

#[test]
fn fabrics_codes_have_their_own_text() {
    let status = Status::CONNECT_INVALID_PARAMETERS;
    assert_eq!(status.fabrics_text(), Some("connect: invalid parameters"));
    assert_eq!(status.text(), Some("attempted write to read only range"));
    assert_eq!(
        Status::AUTHENTICATION_REQUIRED.text(),
        Some("authentication required")
    );
    assert_eq!(
        Status::INVALID_OPCODE.fabrics_text(),
        Some("invalid command opcode")
    );
    assert_eq!(Status::WRITE_FAULT.fabrics_text(), Some("write fault"));
}

#[test]
fn status_display() {
    let status = Status::INVALID_FIELD.with_dnr();
    assert_eq!(
        status.to_string(),
        "invalid field in command (sct 0x0, sc 0x02, do not retry)"
    );
    let unknown = Status::new(StatusCodeType::VENDOR, 0xc0);
    assert_eq!(unknown.to_string(), "unknown status (sct 0x7, sc 0xc0)");
    assert_eq!(format!("{unknown:?}"), format!("Status({unknown})"));
}

#[test]
fn status_flags_do_not_affect_the_code() {
    let status = Status::NAMESPACE_NOT_READY
        .with_dnr()
        .with_more(true)
        .with_crd(2);
    assert!(status.is(Status::NAMESPACE_NOT_READY));
    assert_ne!(status, Status::NAMESPACE_NOT_READY);
    assert_eq!(status.code(), Status::NAMESPACE_NOT_READY);
    assert!(!status.is_success());
    assert!(Status::SUCCESS.with_more(true).is_success());
    // Values that do not fit are truncated instead of causing a panic: they come from
    // configurations and devices.
    assert_eq!(Status::SUCCESS.with_crd(0xff).crd(), 3);
    assert_eq!(
        Status::new(StatusCodeType(0xff), 1).sct(),
        StatusCodeType::VENDOR
    );
}

#[test]
fn status_field_wire_form() {
    // Invalid Field with Do Not Retry, phase set: 8005h.
    let field = StatusField::from_status(Status::INVALID_FIELD.with_dnr()).with_phase(true);
    assert_eq!(field.as_bytes(), [0x05, 0x80]);
}

proptest! {
    #[test]
    fn status_field_round_trip(raw: [u8; 2]) {
        let field = StatusField::read_from_bytes(&raw).unwrap();
        let back = StatusField::from_status(field.status()).with_phase(field.phase());
        prop_assert_eq!(back.as_bytes(), raw);
        let _ = format!("{} {:?} {:?}", field.status(), field, field.status().fabrics_text());
    }
}
