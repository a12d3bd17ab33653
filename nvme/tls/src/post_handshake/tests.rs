use super::*;

const UPDATE: Control = Control::KeyUpdate { requested: false };

fn read(role: Role, records: &[&[u8]]) -> Result<Control, Alert> {
    let mut messages = ControlRecords::new(role);
    let mut effect = Control::Nothing;
    for record in records {
        effect = messages.read(ContentType::Handshake, record)?;
    }
    Ok(effect)
}

#[test]
fn key_updates_are_read_in_any_pieces() {
    for requested in [false, true] {
        let message = key_update(requested);
        assert_eq!(
            read(Role::Server, &[&message]),
            Ok(Control::KeyUpdate { requested })
        );
        for cut in 1..message.len() {
            let mut messages = ControlRecords::new(Role::Server);
            assert_eq!(
                messages.read(ContentType::Handshake, &message[..cut]),
                Ok(Control::Nothing)
            );
            assert!(messages.is_within_message());
            assert_eq!(
                messages.read(ContentType::Handshake, &message[cut..]),
                Ok(Control::KeyUpdate { requested })
            );
            assert!(!messages.is_within_message());
        }
    }
}

#[test]
fn invalid_messages_have_their_alert() {
    let cases: [(&[u8], Alert); 8] = [
        (&[24, 0, 0, 1, 2], Alert::ILLEGAL_PARAMETER),
        (&[24, 0, 0, 0], Alert::DECODE_ERROR),
        (&[24, 0, 0, 2, 0, 0], Alert::DECODE_ERROR),
        (&[24, 1], Alert::DECODE_ERROR),
        (&[24, 0, 0, 1, 0, 24], Alert::UNEXPECTED_MESSAGE),
        (&[1, 0, 0, 1, 0], Alert::UNEXPECTED_MESSAGE),
        (&[20], Alert::UNEXPECTED_MESSAGE),
        (&[4, 0, 0, 2, 0, 0], Alert::UNEXPECTED_MESSAGE),
    ];
    for (record, alert) in cases {
        assert_eq!(read(Role::Server, &[record]), Err(alert), "{record:?}");
    }
}

#[test]
fn clients_ignore_session_tickets() {
    let ticket = [&[4, 0, 1, 0][..], &[24; 256]].concat();
    let both = [&ticket[..], &ticket, &key_update(false)].concat();
    for cut in 1..both.len() {
        let effect = read(Role::Client, &[&both[..cut], &both[cut..]]);
        assert_eq!(effect, Ok(UPDATE), "cut at {cut}");
    }
    assert_eq!(
        read(Role::Client, &[&[4, 1, 0, 1]]),
        Err(Alert::ILLEGAL_PARAMETER)
    );
    assert_eq!(read(Role::Client, &[&[4, 0, 0, 0]]), Ok(Control::Nothing));
}
