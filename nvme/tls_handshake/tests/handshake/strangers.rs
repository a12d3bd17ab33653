//! Peers that send something else than a handshake.

use nvme_keys::Hash;
use nvme_tls::{Alert, KeyTable};
use nvme_tls_handshake::{
    ClientHandshake, HANDSHAKE_BYTES_MAX, HandshakeError, Progress, ServerHandshake,
};

use crate::rig::{candidates, key, table};

fn server() -> ServerHandshake<usize> {
    ServerHandshake::new(table(&[key(Hash::Sha256, 1)]))
}

/// Sends bytes as far as the server wants them. Returns its error, and what it has sent.
fn send(
    server: &mut ServerHandshake<usize>,
    mut bytes: &[u8],
) -> (Option<HandshakeError>, Vec<u8>) {
    let mut output = Vec::new();
    while !bytes.is_empty() && server.wanted() > 0 {
        let (now, rest) = bytes.split_at(server.wanted().min(bytes.len()));
        bytes = rest;
        let received = server.receive(now);
        output.append(&mut server.take_output());
        match received {
            Ok(Progress::Continue) => {}
            Ok(Progress::Complete(_)) => panic!("nothing was proved"),
            Err(error) => return (Some(error), output),
        }
    }
    (None, output)
}

fn hello() -> Vec<u8> {
    let candidate = &candidates(&key(Hash::Sha256, 1))[0];
    ClientHandshake::new(candidate)
        .expect("s2n-tls")
        .take_output()
}

#[test]
fn other_protocols_are_refused_at_their_first_bytes() {
    let cases: [(&[u8], Alert); 5] = [
        // An ICReq of a host without TLS.
        (&[0, 0, 128, 0, 128], Alert::UNEXPECTED_MESSAGE),
        (b"GET / HTTP/1.1\r\n\r\n", Alert::UNEXPECTED_MESSAGE),
        (&[23, 3, 3, 0, 20, 1, 2, 3], Alert::UNEXPECTED_MESSAGE),
        (&[22, 3, 1, 0xff, 0xff], Alert::RECORD_OVERFLOW),
        (
            &[22, 3, 1, 0, 4, 1, 0xff, 0xff, 0xff],
            Alert::ILLEGAL_PARAMETER,
        ),
    ];
    for (bytes, alert) in cases {
        let mut server = server();
        // Data is refused when its record is complete, if not before.
        let mut all = bytes.to_vec();
        all.resize(64, 0);
        let (error, output) = send(&mut server, &all);
        assert_eq!(error, Some(HandshakeError::Violation(alert)), "{bytes:?}");
        assert_eq!(output, alert.plaintext_record());
        assert_eq!(server.wanted(), 0, "nothing more is received");
    }
}

#[test]
fn alerts_are_not_answered() {
    let (error, output) = send(&mut server(), &Alert::USER_CANCELED.plaintext_record());
    assert_eq!(error, Some(HandshakeError::Reported(Alert::USER_CANCELED)));
    assert!(output.is_empty());
}

/// No changed byte of a ClientHello leads to a key exchange.
#[test]
fn every_changed_byte_of_the_first_message_is_refused() {
    let hello = hello();
    for at in 5..hello.len() {
        let mut changed = hello.clone();
        changed[at] ^= 0x40;
        let mut server = server();
        let (error, output) = send(&mut server, &changed);
        match error {
            Some(HandshakeError::Violation(_) | HandshakeError::Refused(_)) => {
                assert_eq!(output.len(), 7, "an alert and nothing else");
            }
            // A length that is not complete yet.
            None => assert!(output.is_empty()),
            Some(other) => panic!("byte {at}: {other}"),
        }
    }
}

#[test]
fn a_wrong_finished_is_refused() {
    let mut server = server();
    let (error, output) = send(&mut server, &hello());
    assert_eq!(error, None);
    let sent = output.len();
    assert!(sent > 100, "a ServerHello");
    let mut record = vec![23, 3, 3, 0, 53];
    record.resize(58, 0x55);
    let (error, output) = send(&mut server, &record);
    assert!(
        matches!(error, Some(HandshakeError::Library(_))),
        "{error:?}"
    );
    // A protected alert, or none.
    assert!(output.is_empty() || output[0] == 23, "{output:?}");
    assert_eq!(server.wanted(), 0);
}

/// A host that keeps sending something that s2n-tls ignores.
#[test]
fn the_bytes_of_a_handshake_are_limited() {
    let mut server = server();
    assert_eq!(send(&mut server, &hello()).0, None);
    let ignored = [20, 3, 3, 0, 1, 1].repeat(HANDSHAKE_BYTES_MAX);
    let (error, _) = send(&mut server, &ignored);
    assert!(error.is_some());
    // Before the first message is complete.
    let mut server = self::server();
    let mut bytes = vec![22, 3, 1, 0, 2, 1, 0];
    bytes.extend([22, 3, 1, 0, 1, 0].repeat(HANDSHAKE_BYTES_MAX));
    let (error, output) = send(&mut server, &bytes);
    assert!(error.is_some());
    assert_eq!(output.len(), 7);
}

#[test]
fn without_keys_every_host_is_refused() {
    let mut server = ServerHandshake::new(KeyTable::<usize>::default().into());
    let (error, output) = send(&mut server, &hello());
    assert!(matches!(error, Some(HandshakeError::Refused(_))));
    assert_eq!(output, Alert::UNKNOWN_PSK_IDENTITY.plaintext_record());
}

#[test]
fn errors_tell_the_likely_cause() {
    let text = |error: HandshakeError| error.to_string();
    assert!(text(HandshakeError::Violation(Alert::MISSING_EXTENSION)).contains("a TLS key"));
    assert!(text(HandshakeError::Violation(Alert::PROTOCOL_VERSION)).contains("TLS 1.3"));
    assert!(
        text(HandshakeError::Reported(Alert::UNKNOWN_PSK_IDENTITY)).contains("compare the keys")
    );
}
