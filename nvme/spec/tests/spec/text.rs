//! Text fields and NVMe Qualified Names: bad input first.

use nvme_spec::ascii::{NulPadded, SpacePadded};
use nvme_spec::nqn::{self, DISCOVERY_NQN, NQN_LENGTH_MAX_BYTES, NqnError, NqnField};
use proptest::prelude::*;

#[test]
fn malformed_names() {
    let long = format!(
        "nqn.2026-11.org.windlass:{}",
        "x".repeat(NQN_LENGTH_MAX_BYTES)
    );
    let label = format!("nqn.2026-11.{}:x", "a".repeat(64));
    let table = [
        ("", NqnError::Empty),
        (long.as_str(), NqnError::TooLong),
        ("nqn.2026-11.org.windlass:a\0b", NqnError::ControlCharacter),
        ("nqn.2026-11.org.windlass:a\n", NqnError::ControlCharacter),
        ("iqn.2026-11.org.windlass:a", NqnError::Prefix),
        ("NQN.2026-11.org.windlass:a", NqnError::Prefix),
        ("nqn", NqnError::Prefix),
        ("nqn.", NqnError::Date),
        ("nqn.2026-11", NqnError::Date),
        ("nqn.2026-13.org.windlass:a", NqnError::Date),
        ("nqn.2026-00.org.windlass:a", NqnError::Date),
        ("nqn.26-11.org.windlass:a", NqnError::Date),
        ("nqn.2026_11.org.windlass:a", NqnError::Date),
        ("nqn.20é6-1.org.windlass:a", NqnError::Date),
        ("nqn.2026-11.org.windlass", NqnError::Name),
        ("nqn.2026-11.org.windlass:", NqnError::Name),
        ("nqn.2026-11.:a", NqnError::Domain),
        ("nqn.2026-11.org..windlass:a", NqnError::Domain),
        ("nqn.2026-11.org.wind lass:a", NqnError::Domain),
        ("nqn.2026-11.-org.windlass:a", NqnError::Domain),
        ("nqn.2026-11.org.windlass-:a", NqnError::Domain),
        (label.as_str(), NqnError::Domain),
        ("nqn.2014-08.org.nvmexpress:uuid:", NqnError::Uuid),
        (
            "nqn.2014-08.org.nvmexpress:uuid:12345678-1234-1234-1234-12345678901",
            NqnError::Uuid,
        ),
        (
            "nqn.2014-08.org.nvmexpress:uuid:12345678-1234-1234-1234-12345678901g",
            NqnError::Uuid,
        ),
        (
            "nqn.2014-08.org.nvmexpress:uuid:12345678x1234-1234-1234-123456789012",
            NqnError::Uuid,
        ),
        ("nqn.2014-08.org.nvmexpress.discovery2", NqnError::Name),
    ];
    for (name, error) in table {
        assert_eq!(nqn::validate(name), Err(error), "{name:?}");
        assert!(!error.to_string().is_empty());
    }
}

#[test]
fn well_formed_names() {
    let longest = format!(
        "nqn.2026-11.org.windlass:{}",
        "x".repeat(NQN_LENGTH_MAX_BYTES - 25)
    );
    assert_eq!(longest.len(), NQN_LENGTH_MAX_BYTES);
    for name in [
        DISCOVERY_NQN,
        "nqn.2026-11.org.windlass:rack7-a.fast",
        "nqn.2016-06.io.spdk:cnode1",
        "nqn.2016-06.com.3par:a:b:c",
        "nqn.2026-11.local:größe",
        "nqn.2014-08.org.nvmexpress:uuid:12345678-9abc-DEF0-1234-56789abcdef0",
        longest.as_str(),
    ] {
        assert_eq!(nqn::validate(name), Ok(()), "{name:?}");
        let field = nqn::to_field(name).unwrap();
        assert_eq!(nqn::from_field(&field), Ok(name));
    }
}

#[test]
fn peer_names_are_checked_for_size_and_characters_only() {
    assert_eq!(nqn::from_field(&NqnField::default()), Err(NqnError::Empty));
    assert_eq!(
        nqn::from_field(&NulPadded([b'n'; 256])),
        Err(NqnError::Unterminated)
    );

    let mut bytes = [0; 256];
    bytes[..224].fill(b'n');
    assert_eq!(nqn::from_field(&NulPadded(bytes)), Err(NqnError::TooLong));
    bytes[223] = 0;
    assert_eq!(nqn::from_field(&NulPadded(bytes)).map(str::len), Ok(223));
    bytes[0] = 0xff;
    assert_eq!(nqn::from_field(&NulPadded(bytes)), Err(NqnError::NotUtf8));
    bytes[0] = 0x1b;
    assert_eq!(
        nqn::from_field(&NulPadded(bytes)),
        Err(NqnError::ControlCharacter)
    );

    // Any bytes may follow the terminator.
    let mut bytes = [0xee; 256];
    bytes[..5].copy_from_slice(b"host\0");
    assert_eq!(nqn::from_field(&NulPadded(bytes)), Ok("host"));
    assert_eq!(nqn::validate("host"), Err(NqnError::Prefix));
}

#[test]
fn fields_reject_text_that_does_not_fit() {
    assert_eq!(nqn::to_field(""), Err(NqnError::Empty));
    assert_eq!(nqn::to_field(&"x".repeat(224)), Err(NqnError::TooLong));
    assert_eq!(nqn::to_field("a\0b"), Err(NqnError::ControlCharacter));
    assert_eq!(NulPadded::<4>::new("abcd"), None);
    assert_eq!(NulPadded::<4>::new("a\0"), None);
    assert_eq!(NulPadded::<4>::new("abc"), Some(NulPadded(*b"abc\0")));
}

#[test]
fn space_padding() {
    assert_eq!(SpacePadded::<6>::new("ab").0, *b"ab    ");
    assert_eq!(SpacePadded::<3>::new("abcdef").0, *b"abc");
    assert_eq!(SpacePadded::<4>::new("aé\tb").0, *b"a??b");
    assert_eq!(SpacePadded::<4>::default().0, *b"    ");
    assert_eq!(SpacePadded(*b"ab  ").as_str(), Some("ab"));
    assert_eq!(SpacePadded(*b"a b ").as_str(), Some("a b"));
    assert_eq!(SpacePadded(*b"4420\0\0\0\0").as_str(), Some("4420"));
    assert_eq!(SpacePadded(*b"ab \0xy").as_str(), Some("ab"));
    assert_eq!(SpacePadded([0xff; 2]).as_str(), None);
    assert_eq!(SpacePadded(*b"a\"\x1b ").to_string(), "a\\\"\\x1b");
    assert_eq!(format!("{:?}", SpacePadded(*b"ab  ")), "\"ab\"");
}

proptest! {
    #[test]
    fn arbitrary_fields(bytes: [u8; 32], filler: u8) {
        let space = SpacePadded(bytes);
        let nul = NulPadded(bytes);
        prop_assert!(space.bytes().len() <= nul.bytes().len());
        prop_assert_eq!(nul.as_str().is_some(), std::str::from_utf8(nul.bytes()).is_ok());
        let shown = format!("{space}{nul}{space:?}{nul:?}");
        prop_assert!(shown.is_ascii() && !shown.contains(char::is_control));

        let mut field = [filler; 256];
        field[..32].copy_from_slice(&bytes);
        if let Ok(name) = nqn::from_field(&NulPadded(field)) {
            let again = nqn::to_field(name).unwrap();
            prop_assert_eq!(nqn::from_field(&again), Ok(name));
        }
    }

    #[test]
    fn arbitrary_names(name in ".{0,260}") {
        if nqn::validate(&name).is_ok() {
            prop_assert!(nqn::to_field(&name).is_ok());
        }
    }

    #[test]
    fn mutated_names_do_not_panic(
        name in "nqn\\.[0-9]{3,5}-[01][0-9]\\.[a-z.-]{0,8}:?(uuid:)?[a-f0-9:-]{0,40}",
    ) {
        let _ = nqn::validate(&name);
    }

    #[test]
    fn padded_round_trip(text in "[!-~]{0,8}") {
        let field = SpacePadded::<8>::new(&text);
        prop_assert_eq!(field.as_str(), Some(text.as_str()));
        let field = NulPadded::<9>::new(&text);
        prop_assert_eq!(field.as_ref().and_then(NulPadded::as_str), Some(text.as_str()));
    }
}
