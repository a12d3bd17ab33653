//! Keys of hosts: text is either refused or printed back unchanged, and every valid key has
//! distinct keys for TLS.

use nvme_keys::{AnySecret, ChapSecret, GeneratedKey, Hash, INTERCHANGE_LEN_MAX, Names, PskHash};
use nvme_keys::{Candidate, TlsKey};

use crate::input::Input;

/// Reads the input as text, and as choices of a key and of names.
pub(crate) fn run(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input) {
        read(text);
    }
    choose(Input::new(input));
}

fn read(text: &str) {
    let parsed = AnySecret::parse(text);
    match &parsed {
        Ok(secret) => {
            assert!(text.len() <= INTERCHANGE_LEN_MAX);
            assert_eq!(secret.expose_interchange().as_str(), text);
            assert!(!format!("{secret:?}").contains(text));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let tls = TlsKey::parse(text).ok().map(AnySecret::Tls);
    let chap = ChapSecret::parse(text).ok().map(AnySecret::Chap);
    assert!(tls.is_none() || chap.is_none());
    assert_eq!(parsed.ok(), tls.or(chap), "the kind is that of the prefix");
}

/// A key with a right checksum, which no mutation finds.
fn choose(mut input: Input<'_>) {
    let (is_tls, hash) = (input.one_in(2), input.pick(&Hash::ALL));
    let bytes = input.bytes();
    let (host, subsystem) = (input.bytes(), input.bytes());
    let (host, subsystem) = (
        String::from_utf8_lossy(host),
        String::from_utf8_lossy(subsystem),
    );
    let names = Names::new(&host, &subsystem).ok();
    if let (Some(hash), Some(names)) = (PskHash::of_len(bytes.len()), names) {
        let generated = GeneratedKey::new(hash, bytes).expect("the length fits");
        check(&generated.candidates(names), hash, names);
    }
    if is_tls {
        let Ok(key) = TlsKey::new(hash, bytes) else {
            return;
        };
        if let Some(names) = names {
            check(&key.candidates(names), key.psk_hash(), names);
        }
        read(&key.expose_interchange());
    } else {
        let Ok(secret) = ChapSecret::new(hash, bytes) else {
            return;
        };
        assert_eq!(secret.transformed(&host).len(), bytes.len());
        read(&secret.expose_interchange());
    }
}

/// The rules of candidates: each has its own key, and its identity has the names.
fn check(candidates: &[Candidate], hash: PskHash, names: Names<'_>) {
    assert!((2..=4).contains(&candidates.len()));
    for (at, one) in candidates.iter().enumerate() {
        assert_eq!((one.hash, one.psk.len()), (hash, hash.len()));
        let mut fields = one.identity.split(' ').skip(1);
        assert_eq!(fields.next(), Some(names.host()));
        assert_eq!(fields.next(), Some(names.subsystem()));
        assert!(candidates[..at].iter().all(|other| other.psk != one.psk));
    }
}
