//! Generated keys are found by their identities, and are bounded in number and time.

use nvme_keys::{Hash, PskHash};

use super::*;

const HOST: &str = "nqn.host";
const SUBSYSTEM: &str = "nqn.subsystem";

fn secret(byte: u8) -> Arc<ChapSecret> {
    Arc::new(ChapSecret::new(Hash::Sha256, &[byte; 32]).expect("the length fits"))
}

fn owner(host: &str, secret: &Arc<ChapSecret>, at: Nanos) -> Arc<KeyOwner> {
    Arc::new(KeyOwner {
        key: "secret".to_owned(),
        host_nqn: host.to_owned(),
        subsystem_nqn: SUBSYSTEM.to_owned(),
        generation: Some(Generation {
            secret: Arc::clone(secret),
            at,
        }),
    })
}

/// Adds a key of a host with this content, and returns its owner and its identity.
fn add(keys: &GeneratedKeys, host: &str, content: u8, at: Nanos) -> (Arc<KeyOwner>, String) {
    let owner = owner(host, &secret(1), at);
    let key = GeneratedKey::new(PskHash::Sha256, &[content; 32]).expect("the length fits");
    keys.add(&owner, &key, at);
    let names = Names::new(host, SUBSYSTEM).expect("valid");
    let identity = key.candidates(names).swap_remove(0).identity;
    (owner, identity)
}

fn is_found(keys: &GeneratedKeys, identity: &str) -> bool {
    !keys.candidates(identity.as_bytes()).is_empty()
}

#[test]
fn a_key_is_found_by_its_identity_alone() {
    let keys = GeneratedKeys::default();
    let (owner, identity) = add(&keys, HOST, 7, Nanos(0));
    let (other, of_other) = add(&keys, "nqn.other", 7, Nanos(0));
    let found = keys.candidates(identity.as_bytes());
    assert_eq!(found.len(), 2, "one for each derivation");
    assert!(found.iter().all(|(it, _)| Arc::ptr_eq(it, &owner)));
    assert!(found.iter().all(|(_, it)| it.identity == identity));
    let found = keys.candidates(of_other.as_bytes());
    assert!(found.iter().all(|(it, _)| Arc::ptr_eq(it, &other)));
    for unknown in [
        "",
        " ",
        "NVMe1G01",
        "NVMe1G01 nqn.host",
        "NVMe1G01 nqn.host nqn.subsystem",
        &identity.replace("G01", "R01"),
        &identity[..identity.len() - 1],
        &format!("{identity} "),
    ] {
        assert!(!is_found(&keys, unknown), "{unknown:?}");
    }
    assert!(
        keys.candidates(b"NVMe1G01 \xff\xfe nqn.subsystem x")
            .is_empty()
    );
}

#[test]
fn a_host_has_a_bounded_number_of_keys() {
    let keys = GeneratedKeys::default();
    let (_, of_other) = add(&keys, "nqn.other", 0, Nanos(0));
    let added: Vec<_> = (0..40).map(|it| add(&keys, HOST, it, Nanos(0)).1).collect();
    let kept = added.iter().filter(|it| is_found(&keys, it)).count();
    assert_eq!(kept, GENERATED_KEYS_MAX);
    assert!(is_found(&keys, &added[39]), "the latest remains");
    assert!(is_found(&keys, &of_other), "another host loses none");
}

#[test]
fn keys_end_with_their_time_and_their_secret() {
    let keys = GeneratedKeys::default();
    let (first, identity) = add(&keys, HOST, 1, Nanos(0));
    let generation = first.generation.as_ref().expect("generated");
    assert!(!generation.is_over(GENERATED_KEY_TIME_MAX));
    let later = GENERATED_KEY_TIME_MAX + Nanos(1);
    assert!(generation.is_over(later));
    let (second, of_second) = add(&keys, HOST, 2, later);
    assert!(!is_found(&keys, &identity), "outdated keys are removed");
    keys.remove(&first);
    assert!(is_found(&keys, &of_second));
    keys.remove(&second);
    assert!(keys.is_empty());
    let (_, third) = add(&keys, HOST, 3, later);
    keys.remove_all_of("another");
    assert!(is_found(&keys, &third));
    keys.remove_all_of("secret");
    assert!(keys.is_empty());
}

#[test]
fn nothing_shows_a_key() {
    let keys = GeneratedKeys::default();
    let _ = add(&keys, HOST, 0xa5, Nanos(0));
    let shown = format!("{keys:?}");
    for secret in ["165, 165", "a5a5", "A5A5"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}
