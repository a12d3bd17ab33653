//! Identities and keys, compared with those of libnvme's tests and of an independent program.

use proptest::prelude::*;

use super::*;

const HOST: &str = "nqn.psk-test-host";
const SUBSYSTEM: &str = "nqn.psk-test-subsys";
/// The key of libnvme's tests. Its tests of 48 bytes repeat the last 16.
const KEY: &str = "5512dbb6737d0106f65975b773dfb011ffc344bcf442e2dd6d8bc4870b5d5b03";

fn key(hash: Hash, len: usize) -> TlsKey {
    let digits = [KEY, &KEY[32..]].concat();
    let bytes: Vec<u8> = (0..len)
        .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("hexadecimal"))
        .collect();
    TlsKey::new(hash, &bytes).expect("the length fits")
}

fn names() -> Names<'static> {
    Names::new(HOST, SUBSYSTEM).expect("valid")
}

/// Compares candidates with `(beginning and digest of the identity, derivation, key)`.
#[track_caller]
fn assert_candidates(candidates: &[Candidate], expected: &[(&str, &str, Derivation, &str)]) {
    let found: Vec<_> = candidates
        .iter()
        .map(|it| {
            let psk: String = it
                .psk
                .expose()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            assert_eq!(it.psk.len(), it.hash.len());
            (it.identity.clone(), it.derivation, psk)
        })
        .collect();
    let expected: Vec<_> = expected
        .iter()
        .map(|(beginning, digest, derivation, psk)| {
            let identity = format!("{beginning} {HOST} {SUBSYSTEM} {digest}");
            let identity = identity.trim_end().to_owned();
            (identity, *derivation, (*psk).to_owned())
        })
        .collect();
    assert_eq!(found, expected);
}

/// libnvme's `test/psk.c` has these identities; hosts of both derivations connect with these keys.
#[test]
fn sha_256_keys_are_derived_as_hosts_do() {
    let candidates = key(Hash::Sha256, 32).candidates(names());
    assert!(candidates.iter().all(|it| it.hash == PskHash::Sha256));
    let expected = [
        (
            "NVMe1R01",
            "iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=",
            Derivation::Standard,
            "8fc3c0badfd4c0c66fa3ca33aadd0314f85536cc9bc47338b60f3e6e563786ca",
        ),
        (
            "NVMe1R01",
            "66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM=",
            Derivation::OldLibnvme,
            "b9f5ab2a41ba6e72a23a12066302a2f775fa6c0942c8e0b18ca8ac07edf305e2",
        ),
        (
            "NVMe0R01",
            "",
            Derivation::Standard,
            "05c6503551ad136e6ee32e6eeb3f6d500b69701d84ec71e328f65c7f51566f68",
        ),
        (
            "NVMe0R01",
            "",
            Derivation::OldLibnvme,
            "09fb1983ac6d6d0353e7cae4f23daddd651c367fa347c59d9cf6936f5a83eafb",
        ),
    ];
    assert_candidates(&candidates, &expected);
}

/// The standard one is that of libnvme's tests; the old one was computed with Python's `hmac`.
#[test]
fn sha_384_keys_are_derived_as_hosts_do() {
    let candidates = key(Hash::Sha384, 48).candidates(names());
    assert!(candidates.iter().all(|it| it.hash == PskHash::Sha384));
    assert_eq!(candidates.len(), 4);
    let expected = [
        (
            "NVMe1R02",
            "QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a",
            Derivation::Standard,
            "a2b2f943f479fc682555cec89857c80ed004ce92f32a973d5764155bb7e36b17a85368a0666d250afac928\
             2dda2e62ca",
        ),
        (
            "NVMe1R02",
            "RsKmYJ3nAn1ApjjMloJFbAkLPivONDAX/xW327YBUsn2eGShXSjCZvBaOxscLqmz",
            Derivation::OldLibnvme,
            "fcefe2e2a2e682b1447dcabf1ec268f78f08c63cd075753abcc8bda2c5c34d48d3014aa8d76ad80107e4f5\
             c9f27e2149",
        ),
    ];
    assert_candidates(&candidates[..2], &expected);
}

/// A configured key `00` is a retained key: identities do not depend on the derivation. Expected
/// values were computed with Python's `hmac`.
#[test]
fn configured_keys_have_the_same_identities_for_both_derivations() {
    let digest = "quJVUJjp/BImWR0UQay/MjSfEgyAr6TyBOWybS/B404=";
    let candidates = key(Hash::None, 32).candidates(names());
    let expected = [
        (
            "NVMe1R01",
            digest,
            Derivation::Standard,
            "a45d08ee4639c7570729bb3e57e905e466a49a15ece5401af906830c4d3bdb0b",
        ),
        (
            "NVMe1R01",
            digest,
            Derivation::OldLibnvme,
            "d50f6d3dd79345b6e8217744524df5ac0dc66964ff70cc5fd18e1b9d57ce7fcf",
        ),
        (
            "NVMe0R01",
            "",
            Derivation::Standard,
            "ec85300ba827726bd3bc4fc07f3a34aec5fe7c8ccac05fefc2f021c74e0df9ef",
        ),
        (
            "NVMe0R01",
            "",
            Derivation::OldLibnvme,
            "e2b16189378b34adba9fec995ab479040cedec0bc7c6b47728ee4d8de6ff52ba",
        ),
    ];
    assert_candidates(&candidates, &expected);
    let long = key(Hash::None, 48).candidates(names());
    assert!(long.iter().all(|it| it.hash == PskHash::Sha384));
    assert!(long[0].identity.starts_with("NVMe1R02 "), "{long:?}");
}

/// Expected values were computed with Python's `hmac`.
#[test]
fn generated_keys_have_identities_of_version_1() {
    let bytes: Vec<u8> = (0..48).collect();
    let candidates = |hash: PskHash| {
        let key = GeneratedKey::new(hash, &bytes[..hash.len()]).expect("the length fits");
        key.candidates(names())
    };
    let digest = "h1CHBpIIwjLVIkf1AYnDKaD7jogIyHTZySnNZm4UqyA=";
    let expected = [
        (
            "NVMe1G01",
            digest,
            Derivation::Standard,
            "e7a4ec6168c4356609e438d0111d853a35937794cdbb3f51211e72b402a5a3d1",
        ),
        (
            "NVMe1G01",
            digest,
            Derivation::OldLinux,
            "6fe7eaafd680c8690111cdde3e596ae05602b587e6e4846ea93d69abcdc5fd3b",
        ),
    ];
    assert_candidates(&candidates(PskHash::Sha256), &expected);
    let digest = "tdEzx3Mp7LlGYUOz1g9wfwUNBfPWR5ZxewacLmlpMkc1YESkveSH56NzMo1rHGIg";
    let expected = [
        (
            "NVMe1G02",
            digest,
            Derivation::Standard,
            "239bc4e3cd6563363b670a8ca0780f23645c41f948b72e3f1709facfcae676f3294d80cba2b26ac7d9742c\
             5ee1800f72",
        ),
        (
            "NVMe1G02",
            digest,
            Derivation::OldLinux,
            "0e12464868f00426c4de39867fad00cdac6b8516a0827fc7dc36579e4fa8b354cff308717ab9df74dfb77a\
             ff23bef20a",
        ),
    ];
    assert_candidates(&candidates(PskHash::Sha384), &expected);
    for (hash, len) in [
        (PskHash::Sha256, 48),
        (PskHash::Sha384, 32),
        (PskHash::Sha384, 0),
    ] {
        assert_eq!(
            GeneratedKey::new(hash, &bytes[..len]),
            Err(WrongKeyLength(len))
        );
    }
}

/// The context of the standard derivation has one byte for its length.
#[test]
fn long_names_have_no_standard_key_of_version_0() {
    let (host, subsystem) = (format!("nqn.{}", "h".repeat(219)), "nqn.s".to_owned());
    let fits = &subsystem.repeat(5)[..22];
    let of = |subsystem: &str| -> Vec<_> {
        let names = Names::new(&host, subsystem).expect("valid");
        let candidates = key(Hash::Sha256, 32).candidates(names);
        candidates
            .iter()
            .map(|it| (it.version, it.derivation))
            .collect()
    };
    assert_eq!(of(fits).len(), 4, "an identity of 255 bytes");
    let longer = of(&format!("{fits}s"));
    assert_eq!(longer[2..], [(IdentityVersion::V0, Derivation::OldLibnvme)]);
}

#[test]
fn debug_prints_no_key() {
    let candidates = key(Hash::Sha256, 32).candidates(names());
    let text = format!("{candidates:?}");
    assert!(text.contains("SecretBytes(32 hidden)"), "{text}");
    let generated = GeneratedKey::new(PskHash::Sha256, &[0xa5; 32]).expect("the length fits");
    let text = format!("{generated:?}");
    assert!(!text.contains("165") && !text.contains("a5"), "{text}");
}

#[test]
fn names_without_meaning_are_refused() {
    let long = "n".repeat(224);
    assert_eq!(Names::new("", "s"), Err(crate::InvalidNqn::Length(0)));
    assert_eq!(Names::new("h", &long), Err(crate::InvalidNqn::Length(224)));
    for name in ["nqn.a b", "nqn.a\n", "nqn\0", "nqn\u{a0}"] {
        assert_eq!(Names::new(name, "s"), Err(crate::InvalidNqn::Character));
        assert_eq!(Names::new("h", name), Err(crate::InvalidNqn::Character));
    }
    assert!(Names::new(&long[1..], "nqn.ü").is_ok());
}

proptest! {
    #[test]
    fn candidates_differ(
        bytes: [u8; 48],
        is_long: bool,
        is_configured: bool,
        host in "[!-~]{1,223}",
        subsystem in "[!-~]{1,223}",
    ) {
        let hash = match (is_configured, is_long) {
            (true, _) => Hash::None,
            (false, false) => Hash::Sha256,
            (false, true) => Hash::Sha384,
        };
        let len = if is_long { 48 } else { 32 };
        let key = TlsKey::new(hash, &bytes[..len]).expect("the length fits");
        let candidates = key.candidates(Names::new(&host, &subsystem).expect("valid"));
        prop_assert!((3..=4).contains(&candidates.len()));
        for (at, one) in candidates.iter().enumerate() {
            prop_assert!(one.identity.starts_with("NVMe"));
            prop_assert!(candidates[..at].iter().all(|other| other.psk != one.psk));
        }
    }
}
