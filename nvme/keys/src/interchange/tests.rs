//! Tests of the interchange formats and of the keys for DH-HMAC-CHAP.

use proptest::prelude::*;

use super::*;

fn secrets() -> impl Strategy<Value = AnySecret> {
    let hashes = prop::sample::select(Hash::ALL.to_vec());
    let lens = prop::sample::select(vec![32, 48, 64]);
    (any::<bool>(), hashes, lens, any::<[u8; 64]>()).prop_map(|(is_tls, hash, len, bytes)| {
        let len = hash.len().unwrap_or(len);
        if is_tls && hash != Hash::Sha512 && len < 64 {
            AnySecret::Tls(TlsKey::new(hash, &bytes[..len]).expect("the length fits"))
        } else {
            AnySecret::Chap(ChapSecret::new(hash, &bytes[..len]).expect("the length fits"))
        }
    })
}

proptest! {
    #[test]
    fn a_printed_secret_parses(secret in secrets()) {
        prop_assert_eq!(AnySecret::parse(&secret.expose_interchange()), Ok(secret));
    }

    // The CRC does not cover the hash, so a changed hash may give another valid secret.
    #[test]
    fn a_changed_character_is_refused(secret in secrets(), at in any::<prop::sample::Index>(), to in 0_u8..128) {
        let mut text = secret.expose_interchange().as_bytes().to_vec();
        let at = at.index(text.len());
        prop_assume!(text[at] != to);
        text[at] = to;
        let parsed = AnySecret::parse(std::str::from_utf8(&text).unwrap());
        let hash_at = match secret {
            AnySecret::Tls(_) => Tls::PREFIX.len(),
            AnySecret::Chap(_) => Chap::PREFIX.len(),
        };
        if (hash_at..hash_at + 2).contains(&at) {
            prop_assert_ne!(parsed, Ok(secret));
        } else {
            prop_assert!(parsed.is_err());
        }
    }

    #[test]
    fn arbitrary_text_does_not_panic(text in ".*") {
        let _ = AnySecret::parse(&text);
        let _ = TlsKey::parse(&text);
        let _ = ChapSecret::parse(&format!("DHHC-1:01:{text}:"));
    }
}

#[test]
fn problems_are_named() {
    let good = TlsKey::new(Hash::Sha256, &[7; 32])
        .unwrap()
        .expose_interchange();
    let parse = |text: &str| TlsKey::parse(text).unwrap_err();
    assert_eq!(good.len(), 65);
    assert_eq!(parse(""), FormatError::Empty);
    assert_eq!(parse(&"a".repeat(129)), FormatError::TooLong(129));
    for at in [0, 13, 40, 65] {
        let mut text = good.to_string();
        text.insert(at, if at == 65 { '\n' } else { ' ' });
        assert_eq!(parse(&text), FormatError::WhiteSpace, "{at}");
    }
    for text in ["DHHC-1:00::", "NVMeTLSkey-2:01::", "nvmetlskey-1:01::"] {
        assert_eq!(parse(text), FormatError::WrongPrefix("NVMeTLSkey-1:"));
    }
    for hash in [":03:", ":1:", ":001:", "::", ":0x:"] {
        assert_eq!(
            parse(&good.replace(":01:", hash)),
            FormatError::UnknownHash(Tls::HASHES),
            "{hash}"
        );
    }
    assert_eq!(parse(&good[..64]), FormatError::NoTrailingColon);
    assert_eq!(parse("NVMeTLSkey-1:01:?:"), FormatError::WrongBase64);
    // Trailing bits that are not zero, missing padding, a second colon.
    for (from, to) in [("=", ""), (":", "::")] {
        let at = good.len() - 4;
        let text = format!("{}{}", &good[..at], good[at..].replace(from, to));
        if text != *good {
            assert_eq!(parse(&text), FormatError::WrongBase64, "{from}");
        }
    }
    let (len, hash) = (32, Hash::Sha384);
    assert_eq!(
        parse(&good.replace(":01:", ":02:")),
        FormatError::WrongLength { len, hash }
    );
    assert_eq!(parse(&good.replacen("Bw", "Cw", 1)), FormatError::WrongCrc);
    assert_eq!(
        AnySecret::parse("password"),
        Err(FormatError::UnknownPrefix)
    );
}

#[test]
fn errors_name_the_fix_and_no_part_of_the_key() {
    let unknown = FormatError::UnknownHash(Chap::HASHES);
    assert_eq!(
        unknown.to_string(),
        "the key has an unknown hash after its prefix: 00, 01, 02 and 03 are known"
    );
    assert_eq!(
        FormatError::UnknownPrefix.to_string(),
        "the key begins with neither NVMeTLSkey-1: nor DHHC-1:"
    );
    let (len, hash) = (31, Hash::Sha256);
    assert_eq!(
        FormatError::WrongLength { len, hash }.to_string(),
        "the key has 31 bytes, which does not fit SHA-256"
    );
}

#[test]
fn lengths_fit_the_hash_and_the_kind() {
    for len in 0..=70 {
        for hash in Hash::ALL {
            let bytes = [1; 70];
            let fits = match hash.len() {
                Some(of_hash) => len == of_hash,
                None => [32, 48, 64].contains(&len),
            };
            assert_eq!(ChapSecret::new(hash, &bytes[..len]).is_ok(), fits);
            let fits_tls = fits && hash != Hash::Sha512 && len != 64;
            assert_eq!(TlsKey::new(hash, &bytes[..len]).is_ok(), fits_tls);
        }
    }
}

#[test]
fn debug_prints_no_secret() {
    let secret = TlsKey::new(Hash::Sha256, &[7; 32]).unwrap();
    assert_eq!(
        format!("{:?}", AnySecret::Tls(secret.clone())),
        "Tls(Secret { kind: \"NVMeTLSkey-1:\", hash: Sha256, .. })"
    );
    assert_eq!(format!("{:?}", secret.bytes()), "SecretBytes(32 hidden)");
}

/// The key of libnvme's tests, in the form that its tools print.
#[test]
fn a_key_of_other_tools_is_read_and_printed() {
    let text = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    let bytes = [
        0x55, 0x12, 0xdb, 0xb6, 0x73, 0x7d, 0x01, 0x06, 0xf6, 0x59, 0x75, 0xb7, 0x73, 0xdf, 0xb0,
        0x11, 0xff, 0xc3, 0x44, 0xbc, 0xf4, 0x42, 0xe2, 0xdd, 0x6d, 0x8b, 0xc4, 0x87, 0x0b, 0x5d,
        0x5b, 0x03,
    ];
    let secret = TlsKey::parse(text).expect("a valid key");
    assert_eq!(secret.expose(), bytes);
    assert_eq!(secret.expose_interchange().as_str(), text);
}

/// Expected values were computed with Python's `hmac`.
#[test]
fn chap_secrets_are_transformed_with_a_name() {
    let bytes: Vec<u8> = (0..64).collect();
    let nqn = "nqn.psk-test-host";
    let transformed = |hash, len| {
        let secret = ChapSecret::new(hash, &bytes[..len]).unwrap();
        secret.transformed(nqn).expose().to_vec()
    };
    for (hash, len, expected) in [
        (
            Hash::Sha256,
            32,
            "75627d6c9666c1f3fb22716d06d8f34dbf712f4681b5aeda14d2936d91bd45a4",
        ),
        (
            Hash::Sha384,
            48,
            "2444f7331c4dac382f172772c631420aeaf767fe75f0ac4eb8388bd61a5209701ef1038ea54f2968f1e37b\
             ce0ac28ad0",
        ),
        (
            Hash::Sha512,
            64,
            "ec6c3d8e3fc29081b280a632e4089c30cb42dda54ae4ef0cadebabf931b793f78697771a7bcdad0c3d88f3\
             4d7258902926794a7dabc367f967272637aaa52753",
        ),
    ] {
        let hex: String = transformed(hash, len)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(hex, expected);
    }
    for len in [32, 48, 64] {
        assert_eq!(transformed(Hash::None, len), bytes[..len]);
    }
}
