use super::*;
use crate::client_hello::tests::Draft;

fn record(kind: u8, body: &[u8]) -> Vec<u8> {
    let [high, low] = (body.len() as u16).to_be_bytes();
    [&[kind, 3, 1, high, low], body].concat()
}

fn violation(alert: Alert) -> Failure {
    Failure::Violation(alert)
}

#[test]
fn messages_are_collected_from_records() {
    let message = Draft::valid().message();
    for cut in 1..message.len() {
        let mut flight = FirstFlight::default();
        let first = flight.take(&record(22, &message[..cut]));
        assert_eq!(first, Ok(None));
        let second = flight.take(&record(22, &message[cut..]));
        assert_eq!(second, Ok(Some(&message[..])));
    }
    let mut flight = FirstFlight::default();
    assert_eq!(flight.take(&record(22, &message)), Ok(Some(&message[..])));
}

#[test]
fn other_records_have_their_alert() {
    let message = Draft::valid().message();
    let first = |record: &[u8]| FirstFlight::default().take(record).err();
    let unexpected = Some(violation(Alert::UNEXPECTED_MESSAGE));
    for kind in [0, 19, 20, 23, 24, 255] {
        assert_eq!(first(&record(kind, &message)), unexpected, "{kind}");
    }
    assert_eq!(first(&record(22, &[])), unexpected);
    assert_eq!(first(&record(22, &[2, 0, 0, 0])), unexpected);
    assert_eq!(
        first(&record(22, &[&message[..], &[0]].concat())),
        unexpected
    );
    assert_eq!(first(&record(20, &[1])), unexpected);
    assert_eq!(first(&[22, 3, 3]), Some(violation(Alert::DECODE_ERROR)));
    assert_eq!(
        first(&[22, 3, 3, 0, 9, 1]),
        Some(violation(Alert::DECODE_ERROR))
    );
    assert_eq!(
        first(&[22, 3, 3, 0x40, 1]),
        Some(violation(Alert::RECORD_OVERFLOW))
    );
    assert_eq!(
        first(&record(21, &[2])),
        Some(violation(Alert::DECODE_ERROR))
    );
    assert_eq!(
        first(&record(21, &[2, 80])),
        Some(Failure::Reported(Alert::INTERNAL_ERROR))
    );
}

#[test]
fn long_messages_are_refused_before_they_are_collected() {
    let too_long = (CLIENT_HELLO_BYTES_MAX as u32 - 3).to_be_bytes();
    let begin = [&[CLIENT_HELLO], &too_long[1..]].concat();
    let refused = Err(violation(Alert::ILLEGAL_PARAMETER));
    assert_eq!(FirstFlight::default().take(&record(22, &begin)), refused);
    // The length is split, so that the bytes are counted.
    let mut flight = FirstFlight::default();
    assert_eq!(flight.take(&record(22, &begin[..3])), Ok(None));
    assert_eq!(flight.take(&record(22, &[0; PLAINTEXT_BYTES_MAX])), refused);
}

#[test]
fn a_change_of_the_cipher_may_precede_the_second_message_only() {
    let message = Draft::valid().message();
    let mut flight = FirstFlight::second();
    assert_eq!(flight.take(&record(20, &[1])), Ok(None));
    assert_eq!(flight.take(&record(22, &message[..9])), Ok(None));
    let within = flight.take(&record(20, &[1]));
    assert_eq!(within, Err(violation(Alert::UNEXPECTED_MESSAGE)));
    let invalid = FirstFlight::second().take(&record(20, &[2])).err();
    assert_eq!(invalid, Some(violation(Alert::UNEXPECTED_MESSAGE)));
}

#[test]
fn lengths_of_handshake_records_are_limited() {
    let refused = |header| handshake_body_bytes(header).err();
    assert_eq!(
        handshake_body_bytes([23, 3, 3, 0x41, 0]),
        Ok(CIPHERTEXT_BYTES_MAX)
    );
    assert_eq!(refused([23, 3, 3, 0x41, 1]), Some(Alert::RECORD_OVERFLOW));
    assert_eq!(refused([22, 3, 3, 0x40, 1]), Some(Alert::RECORD_OVERFLOW));
    assert_eq!(refused([23, 3, 3, 0, 0]), Some(Alert::UNEXPECTED_MESSAGE));
    assert_eq!(
        refused([0, 0, 128, 0, 128]),
        Some(Alert::UNEXPECTED_MESSAGE)
    );
}
