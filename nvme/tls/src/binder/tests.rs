//! Keys of hosts, found by identity and binder. The handshake's tests compare the binders with those
//! of other implementations.

use nvme_keys::{Derivation, Hash, IdentityVersion, Names, TlsKey};

use super::*;
use crate::client_hello::tests::{Draft, offered};

fn key(hash: Hash, first: u8) -> TlsKey {
    let bytes: Vec<u8> = (first..).take(hash.len().unwrap_or(32)).collect();
    TlsKey::new(hash, &bytes).expect("the length fits")
}

fn candidates(key: &TlsKey) -> Vec<Candidate> {
    key.candidates(Names::new("nqn.host", "nqn.subsystem").expect("valid"))
}

/// A table with the keys of one host, numbered.
fn table(keys: &[TlsKey]) -> KeyTable<usize> {
    let mut table = KeyTable::default();
    for (number, key) in keys.iter().enumerate() {
        table.add(&number, candidates(key));
    }
    table
}

/// The binder of a candidate for a message, after a retry if there was one.
fn binder(candidate: &Candidate, covered: &[u8], retry: Option<&RetryTranscript>) -> Vec<u8> {
    let mut context = match retry {
        Some(retry) => retry.begin(candidate.hash),
        None => transcript(candidate.hash),
    };
    context.update(covered);
    let key = binder_key(candidate.hash, &candidate.psk);
    hmac::sign(&key, context.finish().as_ref())
        .as_ref()
        .to_vec()
}

/// A ClientHello that offers these candidates.
fn hello(offers: &[&Candidate], retry: Option<&RetryTranscript>) -> Vec<u8> {
    let draft = |binders: &[Vec<u8>]| {
        let identities: Vec<_> = offers.iter().map(|it| it.identity.as_bytes()).collect();
        let binders: Vec<_> = binders.iter().map(Vec::as_slice).collect();
        Draft::new(offered(&identities, &binders)).message()
    };
    let empty: Vec<_> = offers.iter().map(|it| vec![0; it.hash.len()]).collect();
    let unsigned = draft(&empty);
    let covered = Hello::parse(&unsigned)
        .expect("valid")
        .covered_by_binders()
        .to_vec();
    let binders: Vec<_> = offers
        .iter()
        .map(|it| binder(it, &covered, retry))
        .collect();
    draft(&binders)
}

fn find(table: &KeyTable<usize>, message: &[u8]) -> Result<(usize, Candidate), Refusal> {
    let found = table.find(&Hello::parse(message).expect("valid"))?;
    Ok((*found.key(), found.candidate().clone()))
}

#[test]
fn each_candidate_of_each_key_is_found() {
    let keys = [
        key(Hash::Sha256, 1),
        key(Hash::Sha384, 1),
        key(Hash::None, 1),
        key(Hash::Sha256, 2),
    ];
    let table = table(&keys);
    for (number, key) in keys.iter().enumerate() {
        for candidate in candidates(key) {
            let found = find(&table, &hello(&[&candidate], None)).expect("known");
            assert_eq!(found, (number, candidate));
        }
    }
}

#[test]
fn keys_with_one_identity_are_told_apart_by_the_binder() {
    let key = key(Hash::Sha256, 1);
    let same: Vec<_> = candidates(&key)
        .into_iter()
        .filter(|it| it.version == IdentityVersion::V0)
        .collect();
    assert_eq!(same[0].identity, same[1].identity);
    assert_eq!(
        (same[0].derivation, same[1].derivation),
        (Derivation::Standard, Derivation::OldLibnvme)
    );
    let table = table(&[key]);
    for candidate in same {
        let found = find(&table, &hello(&[&candidate], None)).expect("known");
        assert_eq!(found.1.derivation, candidate.derivation);
    }
}

#[test]
fn strangers_are_refused_with_the_reason() {
    let known = table(&[key(Hash::Sha256, 1)]);
    let (right, other) = (
        candidates(&key(Hash::Sha256, 1)),
        candidates(&key(Hash::Sha256, 2)),
    );
    // Version 1 names the key, version 0 does not.
    let refusal = find(&known, &hello(&[&other[0]], None)).expect_err("unknown");
    assert_eq!(refusal.alert(), Alert::UNKNOWN_PSK_IDENTITY);
    assert!(refusal.to_string().contains(&other[0].identity));
    let refusal = find(&known, &hello(&[&other[2]], None)).expect_err("another key");
    assert_eq!(refusal.alert(), Alert::DECRYPT_ERROR);
    assert!(refusal.to_string().contains("compare the keys"));
    // An offer behind others is considered.
    let found = find(&known, &hello(&[&other[0], &other[2], &right[1]], None)).expect("known");
    assert_eq!(found.1, right[1]);
    assert_eq!(
        find(&KeyTable::default(), &hello(&[&right[0]], None))
            .expect_err("no key")
            .alert(),
        Alert::UNKNOWN_PSK_IDENTITY
    );
}

#[test]
fn every_changed_byte_of_the_message_is_detected() {
    let known = table(&[key(Hash::Sha256, 1)]);
    let message = hello(&[&candidates(&key(Hash::Sha256, 1))[0]], None);
    for at in 0..message.len() {
        let mut changed = message.clone();
        changed[at] ^= 1;
        if let Ok(hello) = Hello::parse(&changed) {
            assert!(known.find(&hello).is_err(), "byte {at}");
        }
    }
}

#[test]
fn a_key_needs_its_suite() {
    let key = key(Hash::Sha384, 1);
    let candidate = candidates(&key).remove(0);
    let mut draft = Draft::new(offered(&[candidate.identity.as_bytes()], &[&[0; 48]]));
    draft.suites = vec![0x13, 0x01, 0x13, 0x03];
    let refusal = find(&table(&[key]), &draft.message()).expect_err("another suite");
    assert_eq!(refusal, Refusal::SuiteNotOffered(Suite::Aes256GcmSha384));
    assert_eq!(refusal.alert(), Alert::HANDSHAKE_FAILURE);
}

/// GnuTLS before 3.8.11 computes the binder of a key of 48 bytes with SHA-256.
#[test]
fn a_binder_of_another_length_is_wrong() {
    let key = key(Hash::Sha384, 1);
    let candidate = candidates(&key).remove(0);
    let message = Draft::new(offered(&[candidate.identity.as_bytes()], &[&[0; 32]])).message();
    let refusal = find(&table(&[key]), &message).expect_err("a wrong binder");
    assert_eq!(refusal.alert(), Alert::DECRYPT_ERROR);
    assert!(refusal.to_string().contains("GnuTLS"));
}

#[test]
fn the_second_message_proves_the_same_key_again() {
    let known = table(&[key(Hash::Sha256, 1), key(Hash::Sha256, 2)]);
    let own = candidates(&key(Hash::Sha256, 1));
    let other = candidates(&key(Hash::Sha256, 2));
    let first = hello(&[&own[2]], None);
    let found = known
        .find(&Hello::parse(&first).expect("valid"))
        .expect("known");
    let retry = RetryTranscript::new(&first, b"hello retry request");
    let again = |message: &[u8]| {
        found
            .verify_again(&Hello::parse(message).expect("valid"), &retry)
            .map_err(|it| it.alert())
    };
    assert_eq!(again(&hello(&[&own[2]], Some(&retry))), Ok(()));
    let wrong = Err(Alert::DECRYPT_ERROR);
    assert_eq!(again(&first), wrong, "it must cover the retry");
    assert_eq!(again(&hello(&[&other[2]], Some(&retry))), wrong);
    assert_eq!(again(&hello(&[&own[0]], Some(&retry))), wrong);
    let another = RetryTranscript::new(&first, b"another request");
    assert_eq!(again(&hello(&[&own[2]], Some(&another))), wrong);
}

#[test]
fn long_identities_are_shortened_for_the_log() {
    let identity = vec![0xff; 5000];
    let message = Draft::new(offered(&[&identity], &[&[0; 32]])).message();
    let refusal = find(&KeyTable::default(), &message).expect_err("unknown");
    assert!(refusal.to_string().len() < 4000);
}

/// Keys that a test replaces.
#[derive(Debug, Default)]
struct Replaced(std::sync::Mutex<Vec<(usize, Candidate)>>);

impl ChangingKeys<usize> for Replaced {
    fn candidates(&self, identity: &[u8]) -> Vec<(usize, Candidate)> {
        let all = self.0.lock().expect("no test panics");
        let all = all.iter();
        all.filter(|(_, it)| it.identity.as_bytes() == identity)
            .cloned()
            .collect()
    }
}

#[test]
fn changing_keys_are_looked_up_for_each_hello() {
    let (fixed, changing) = (key(Hash::Sha256, 1), key(Hash::Sha256, 9));
    let replaced = Arc::new(Replaced::default());
    let table = table(std::slice::from_ref(&fixed)).with_changing(replaced.clone());
    let (of_fixed, of_changing) = (candidates(&fixed), candidates(&changing));
    let message = hello(&[&of_changing[0]], None);
    let unknown = Err(Refusal::UnknownIdentity {
        identity: of_changing[0].identity.clone(),
    });
    assert_eq!(find(&table, &message), unknown);
    replaced
        .0
        .lock()
        .expect("no test panics")
        .push((7, of_changing[0].clone()));
    assert_eq!(find(&table, &message), Ok((7, of_changing[0].clone())));
    assert_eq!(
        find(&table, &hello(&[&of_fixed[0]], None)),
        Ok((0, of_fixed[0].clone()))
    );
    let mut forged = of_changing[0].clone();
    forged.psk = of_fixed[0].psk.clone();
    let refused = find(&table, &hello(&[&forged], None));
    assert!(
        matches!(refused, Err(Refusal::WrongKey { .. })),
        "{refused:?}"
    );
    replaced.0.lock().expect("no test panics").clear();
    assert_eq!(find(&table, &message), unknown);
}
