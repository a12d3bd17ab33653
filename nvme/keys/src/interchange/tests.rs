//! Tests of the interchange formats.

use proptest::prelude::*;

use super::*;

fn secrets() -> impl Strategy<Value = Secret> {
    let shapes = prop_oneof![
        Just((Kind::TlsKey, Hash::None, 48)),
        Just((Kind::TlsKey, Hash::Sha256, 32)),
        Just((Kind::TlsKey, Hash::Sha384, 48)),
        Just((Kind::ChapSecret, Hash::None, 64)),
        Just((Kind::ChapSecret, Hash::Sha256, 32)),
        Just((Kind::ChapSecret, Hash::Sha512, 64)),
    ];
    (shapes, any::<[u8; 64]>()).prop_map(|((kind, hash, len), bytes)| {
        Secret::new(kind, hash, &bytes[..len]).expect("the length fits")
    })
}

proptest! {
    #[test]
    fn a_printed_secret_parses(secret in secrets()) {
        prop_assert_eq!(Secret::parse(secret.kind(), &secret.expose_interchange()), Ok(secret));
    }

    // The CRC does not cover the hash, so a changed hash may give another valid secret.
    #[test]
    fn a_changed_character_is_refused(secret in secrets(), at in any::<prop::sample::Index>(), to in 0_u8..128) {
        let mut text = secret.expose_interchange().as_bytes().to_vec();
        let at = at.index(text.len());
        prop_assume!(text[at] != to);
        text[at] = to;
        let parsed = Secret::parse(secret.kind(), std::str::from_utf8(&text).unwrap());
        let hash_at = secret.kind().prefix().len();
        if (hash_at..hash_at + 2).contains(&at) {
            prop_assert_ne!(parsed, Ok(secret));
        } else {
            prop_assert!(parsed.is_err());
        }
    }

    #[test]
    fn arbitrary_text_does_not_panic(text in ".*") {
        let _ = Secret::parse(Kind::TlsKey, &text);
        let _ = Secret::parse(Kind::ChapSecret, &format!("DHHC-1:01:{text}:"));
    }
}

#[test]
fn problems_are_named() {
    let good = Secret::new(Kind::TlsKey, Hash::Sha256, &[7; 32])
        .unwrap()
        .expose_interchange();
    let parse = |text: &str| Secret::parse(Kind::TlsKey, text).unwrap_err();
    assert_eq!(good.len(), 65);
    assert_eq!(parse(&"a".repeat(129)), FormatError::TooLong(129));
    assert_eq!(
        parse("DHHC-1:00::"),
        FormatError::WrongPrefix("NVMeTLSkey-1:")
    );
    assert_eq!(
        parse(&good.replace(":01:", ":03:")),
        FormatError::UnknownHash
    );
    assert_eq!(parse(&good[..64]), FormatError::NoTrailingColon);
    assert_eq!(parse("NVMeTLSkey-1:01:?:"), FormatError::WrongBase64);
    assert_eq!(
        parse(&good.replace(":01:", ":02:")),
        FormatError::WrongLength(32)
    );
    assert_eq!(parse(&good.replacen("Bw", "Cw", 1)), FormatError::WrongCrc);
}

#[test]
fn debug_prints_no_secret() {
    let secret = Secret::new(Kind::TlsKey, Hash::Sha256, &[7; 32]).unwrap();
    assert_eq!(
        format!("{secret:?}"),
        "Secret { kind: TlsKey, hash: Sha256, .. }"
    );
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
    let secret = Secret::parse(Kind::TlsKey, text).expect("a valid key");
    assert_eq!(secret.expose(), bytes);
    assert_eq!(secret.expose_interchange().as_str(), text);
}
