//! Our target and our host.

use nvme_keys::Hash;
use nvme_tls::{Alert, Refusal, Role, Suite};
use nvme_tls_handshake::{ClientHandshake, Group, HandshakeError, ServerHandshake};

use crate::rig::{candidates, channel, key, pass, shake, table};

#[test]
fn each_candidate_of_each_key_connects() {
    let keys = [
        key(Hash::Sha256, 1),
        key(Hash::Sha384, 1),
        key(Hash::None, 9),
    ];
    let table = table(&keys);
    for (number, key) in keys.iter().enumerate() {
        for candidate in candidates(key) {
            let server = ServerHandshake::new(table.clone());
            let client = ClientHandshake::new(&candidate).expect("s2n-tls");
            let outcome = shake(server, client, usize::MAX);
            let established = outcome.server.expect("a known key");
            let secrets = outcome.client.expect("accepted");
            assert_eq!(*established.found.key(), number);
            assert_eq!(*established.found.candidate(), candidate);
            let suite = Suite::of_hash(candidate.hash);
            assert_eq!((established.secrets.suite, secrets.suite), (suite, suite));
            assert_eq!(secrets.group, Group::X25519);
            assert_eq!(established.secrets.group, Group::X25519);
            let mut target = channel(Role::Server, established.secrets);
            let mut host = channel(Role::Client, secrets);
            assert_eq!(
                pass(&mut host, &mut target, b"to the target"),
                b"to the target"
            );
            assert_eq!(pass(&mut target, &mut host, b"to the host"), b"to the host");
        }
    }
}

#[test]
fn the_library_can_be_prepared_at_any_time() {
    for _ in 0..2 {
        nvme_tls_handshake::prepare().expect("s2n-tls");
    }
}

#[test]
fn bytes_may_arrive_one_by_one() {
    let key = key(Hash::Sha256, 1);
    let server = ServerHandshake::new(table(std::slice::from_ref(&key)));
    let client = ClientHandshake::new(&candidates(&key)[0]).expect("s2n-tls");
    let outcome = shake(server, client, 1);
    assert!(outcome.server.is_ok() && outcome.client.is_ok());
}

/// Linux closes connections with session tickets.
#[test]
fn the_target_sends_nothing_behind_its_finished() {
    let key = key(Hash::Sha256, 1);
    let server = ServerHandshake::new(table(std::slice::from_ref(&key)));
    let client = ClientHandshake::new(&candidates(&key)[0]).expect("s2n-tls");
    let outcome = shake(server, client, usize::MAX);
    outcome
        .client
        .expect("all that was sent is part of the handshake");
    let mut records = Vec::new();
    let mut rest = &outcome.server_sent[..];
    while let [kind, _, _, high, low, ..] = *rest {
        records.push(kind);
        rest = &rest[5 + usize::from(u16::from_be_bytes([high, low]))..];
    }
    assert!(rest.is_empty());
    // ServerHello, ChangeCipherSpec, EncryptedExtensions and Finished.
    assert_eq!(records.iter().filter(|it| **it == 22).count(), 1);
    assert!(
        records.iter().filter(|it| **it == 23).count() <= 2,
        "{records:?}"
    );
}

#[test]
fn other_keys_are_refused_with_their_alert() {
    let known = table(&[key(Hash::Sha256, 1)]);
    let other = candidates(&key(Hash::Sha256, 2));
    let cases = [
        (&other[0], Alert::UNKNOWN_PSK_IDENTITY),
        (&other[1], Alert::UNKNOWN_PSK_IDENTITY),
        (&other[2], Alert::DECRYPT_ERROR),
        (&other[3], Alert::DECRYPT_ERROR),
    ];
    for (candidate, alert) in cases {
        let client = ClientHandshake::new(candidate).expect("s2n-tls");
        let outcome = shake(ServerHandshake::new(known.clone()), client, usize::MAX);
        let Err(HandshakeError::Refused(refusal)) = outcome.server else {
            panic!("accepted");
        };
        assert_eq!(refusal.alert(), alert);
        assert_eq!(outcome.server_sent, alert.plaintext_record());
        assert!(outcome.client.is_err());
        if alert == Alert::DECRYPT_ERROR {
            assert!(matches!(refusal, Refusal::WrongKey { .. }));
        }
    }
}
