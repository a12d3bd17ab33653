//! ClientHellos: any bytes, in any records. Only a message whose binder was made with one of the
//! keys is accepted.

use nvme_keys::{Hash, Names, TlsKey};
use nvme_tls::{
    CLIENT_HELLO_BYTES_MAX, Failure, FirstFlight, HEADER_BYTES, Hello, IDENTITIES_MAX, KeyTable,
    RetryTranscript, handshake_body_bytes,
};

use crate::input::Input;

/// Reads the input as records with a ClientHello, or as the message itself.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    match input.below(3) {
        0 => collect(FirstFlight::default(), input.take(usize::MAX)),
        1 => collect(FirstFlight::second(), input.take(usize::MAX)),
        _ => inspect(input.take(usize::MAX)),
    }
}

/// Takes whole records until the message is complete, or invalid.
fn collect(mut flight: FirstFlight, mut bytes: &[u8]) {
    while let Some(header) = bytes.first_chunk::<HEADER_BYTES>() {
        // A record that is not complete is refused too.
        let body = handshake_body_bytes(*header).unwrap_or(0);
        let (record, rest) = bytes.split_at((HEADER_BYTES + body).min(bytes.len()));
        bytes = rest;
        match flight.take(record) {
            Ok(None) => {}
            Ok(Some(message)) => {
                assert!(message.len() <= CLIENT_HELLO_BYTES_MAX);
                return inspect(message);
            }
            Err(Failure::Violation(alert)) => {
                assert!(alert.name().is_some());
                return;
            }
            Err(Failure::Reported(_)) => return,
        }
    }
}

fn inspect(message: &[u8]) {
    let hello = match Hello::parse(message) {
        Ok(hello) => hello,
        Err(alert) => return assert!(alert.name().is_some()),
    };
    assert!((1..=IDENTITIES_MAX).contains(&hello.keys().len()));
    assert!(message.starts_with(hello.covered_by_binders()));
    let mut table = KeyTable::default();
    let names = Names::new("nqn.host", "nqn.subsystem").expect("valid");
    for (number, hash) in [Hash::Sha256, Hash::Sha384].into_iter().enumerate() {
        let bytes = vec![number as u8; hash.len().expect("one length")];
        let key = TlsKey::new(hash, &bytes).expect("the length fits");
        table.add(&number, key.candidates(names));
    }
    match table.find(&hello) {
        Ok(found) => {
            let identity = found.candidate().identity.as_bytes();
            assert!(hello.keys().iter().any(|it| it.identity == identity));
            assert!(hello.offers(found.suite()));
            // The same message does not prove the key again.
            let retry = RetryTranscript::new(message, b"retry");
            assert!(found.verify_again(&hello, &retry).is_err());
        }
        Err(refusal) => assert!(!refusal.to_string().is_empty()),
    }
}
