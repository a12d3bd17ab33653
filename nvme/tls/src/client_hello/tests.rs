//! Valid and invalid ClientHellos.

use super::*;

/// A ClientHello that tests change.
#[derive(Clone)]
pub(crate) struct Draft {
    pub(crate) session: Vec<u8>,
    pub(crate) suites: Vec<u8>,
    pub(crate) compression: Vec<u8>,
    /// Number and content.
    pub(crate) extensions: Vec<(u16, Vec<u8>)>,
}

fn with_length<const BYTES: usize>(content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u64).to_be_bytes();
    [&length[8 - BYTES..], content].concat()
}

/// The content of the extension `pre_shared_key`.
pub(crate) fn offered(identities: &[&[u8]], binders: &[&[u8]]) -> Vec<u8> {
    let identities: Vec<u8> = identities
        .iter()
        .flat_map(|it| [with_length::<2>(it), vec![0; 4]].concat())
        .collect();
    let binders: Vec<u8> = binders.iter().flat_map(|it| with_length::<1>(it)).collect();
    [with_length::<2>(&identities), with_length::<2>(&binders)].concat()
}

impl Draft {
    pub(crate) fn new(pre_shared_key: Vec<u8>) -> Self {
        Self {
            session: vec![7; 32],
            suites: vec![0x13, 0x02, 0x13, 0x01, 0, 0xff],
            compression: vec![0],
            extensions: vec![
                (extension::SUPPORTED_GROUPS, vec![0, 2, 0, 29]),
                (extension::SUPPORTED_VERSIONS, vec![4, 3, 3, 3, 4]),
                (extension::PSK_KEY_EXCHANGE_MODES, vec![2, 0, 1]),
                (extension::KEY_SHARE, vec![0, 0]),
                (extension::PRE_SHARED_KEY, pre_shared_key),
            ],
        }
    }

    pub(crate) fn valid() -> Self {
        Self::new(offered(&[b"NVMe0R01 a b"], &[&[9; 32]]))
    }

    fn replace(mut self, number: u16, content: Option<&[u8]>) -> Self {
        match content {
            Some(content) => {
                let found = self.extensions.iter_mut().find(|it| it.0 == number);
                found.expect("it is there").1 = content.to_vec();
            }
            None => self.extensions.retain(|it| it.0 != number),
        }
        self
    }

    pub(crate) fn message(&self) -> Vec<u8> {
        let extensions: Vec<u8> = self
            .extensions
            .iter()
            .flat_map(|(number, content)| {
                [&number.to_be_bytes()[..], &with_length::<2>(content)].concat()
            })
            .collect();
        let body = [
            &[3, 3][..],
            &[5; 32],
            &with_length::<1>(&self.session),
            &with_length::<2>(&self.suites),
            &with_length::<1>(&self.compression),
            &with_length::<2>(&extensions),
        ]
        .concat();
        [&[CLIENT_HELLO][..], &with_length::<3>(&body)].concat()
    }

    fn alert(&self) -> Option<Alert> {
        Hello::parse(&self.message()).err()
    }
}

#[test]
fn valid_messages_are_read() {
    let message = Draft::new(offered(&[b"one", b"two"], &[&[1; 32], &[2; 48]])).message();
    let hello = Hello::parse(&message).expect("valid");
    let key = |identity, binder| OfferedKey { identity, binder };
    assert_eq!(hello.keys(), [key(b"one", &[1; 32]), key(b"two", &[2; 48])]);
    assert!(Suite::ALL.iter().all(|suite| hello.offers(*suite)));
    let binders = 2 + 33 + 49;
    assert_eq!(
        hello.covered_by_binders(),
        &message[..message.len() - binders]
    );
    assert_eq!(hello.message(), message);
}

#[test]
fn invalid_fields_have_their_alert() {
    use extension as number;
    let valid = Draft::valid;
    let with = |number, content: &[u8]| valid().replace(number, Some(content)).alert();
    let without = |number| valid().replace(number, None).alert();
    let psk = |content: Vec<u8>| with(number::PRE_SHARED_KEY, &content);
    let binder = [9; 32];

    assert_eq!(valid().alert(), None);
    assert_eq!(
        without(number::SUPPORTED_VERSIONS),
        Some(Alert::PROTOCOL_VERSION)
    );
    assert_eq!(
        with(number::SUPPORTED_VERSIONS, &[2, 3, 3]),
        Some(Alert::PROTOCOL_VERSION)
    );
    assert_eq!(
        with(number::SUPPORTED_VERSIONS, &[3, 3, 4, 3]),
        Some(Alert::DECODE_ERROR)
    );
    assert_eq!(
        with(number::SUPPORTED_VERSIONS, &[0]),
        Some(Alert::DECODE_ERROR)
    );
    for missing in [
        number::PRE_SHARED_KEY,
        number::PSK_KEY_EXCHANGE_MODES,
        number::SUPPORTED_GROUPS,
        number::KEY_SHARE,
    ] {
        assert_eq!(
            without(missing),
            Some(Alert::MISSING_EXTENSION),
            "{missing}"
        );
    }
    let groups = |content: &[u8]| with(number::SUPPORTED_GROUPS, content);
    assert_eq!(groups(&[0, 2, 0, 25]), Some(Alert::HANDSHAKE_FAILURE));
    assert_eq!(groups(&[0, 0]), Some(Alert::HANDSHAKE_FAILURE));
    assert_eq!(groups(&[0, 4, 0, 25, 0, 24]), None);
    assert_eq!(groups(&[0, 4, 0, 24]), Some(Alert::DECODE_ERROR));
    assert_eq!(
        with(number::PSK_KEY_EXCHANGE_MODES, &[1, 0]),
        Some(Alert::HANDSHAKE_FAILURE)
    );
    assert_eq!(
        with(number::PSK_KEY_EXCHANGE_MODES, &[1, 1, 1]),
        Some(Alert::DECODE_ERROR)
    );
    assert_eq!(
        psk(offered(&[b"a", b"b"], &[&binder])),
        Some(Alert::ILLEGAL_PARAMETER)
    );
    assert_eq!(
        psk(offered(&[b"a"], &[&binder, &binder])),
        Some(Alert::ILLEGAL_PARAMETER)
    );
    assert_eq!(psk(offered(&[], &[])), Some(Alert::DECODE_ERROR));
    assert_eq!(psk(offered(&[b""], &[&binder])), Some(Alert::DECODE_ERROR));
    assert_eq!(
        psk(offered(&[b"a"], &[&binder[1..]])),
        Some(Alert::DECODE_ERROR)
    );
    assert_eq!(
        psk([offered(&[b"a"], &[&binder]), vec![0]].concat()),
        Some(Alert::DECODE_ERROR)
    );

    let changed = |change: fn(&mut Draft)| {
        let mut draft = Draft::valid();
        change(&mut draft);
        draft.alert()
    };
    assert_eq!(
        changed(|it| it.compression = vec![1, 0]),
        Some(Alert::ILLEGAL_PARAMETER)
    );
    assert_eq!(
        changed(|it| it.session = vec![0; 33]),
        Some(Alert::DECODE_ERROR)
    );
    assert_eq!(changed(|it| it.session.clear()), None);
    assert_eq!(changed(|it| it.suites.clear()), Some(Alert::DECODE_ERROR));
    assert_eq!(
        changed(|it| it.suites.truncate(3)),
        Some(Alert::DECODE_ERROR)
    );
    assert_eq!(
        changed(|it| it.extensions.swap(0, 4)),
        Some(Alert::ILLEGAL_PARAMETER)
    );
    assert_eq!(
        changed(|it| it.extensions.insert(0, (10, vec![]))),
        Some(Alert::ILLEGAL_PARAMETER)
    );
    let many = |count: u16| {
        let mut draft = Draft::valid();
        draft
            .extensions
            .splice(0..0, (0..count).map(|it| (1000 + it, vec![])));
        draft.alert()
    };
    assert_eq!(many(59), None);
    assert_eq!(many(60), Some(Alert::ILLEGAL_PARAMETER));
}

#[test]
fn messages_of_other_lengths_are_refused() {
    let message = Draft::valid().message();
    for bytes in 0..message.len() {
        assert!(Hello::parse(&message[..bytes]).is_err(), "{bytes} bytes");
        // With a length that fits.
        if bytes >= 4 {
            let shorter = [&[CLIENT_HELLO][..], &with_length::<3>(&message[4..bytes])].concat();
            assert!(Hello::parse(&shorter).is_err(), "{bytes} bytes");
        }
    }
    let longer = [&message[..], &[0]].concat();
    assert_eq!(Hello::parse(&longer).err(), Some(Alert::DECODE_ERROR));
    let other = [&[2][..], &message[1..]].concat();
    assert_eq!(Hello::parse(&other).err(), Some(Alert::UNEXPECTED_MESSAGE));
}

#[test]
fn hosts_without_extensions_are_told_about_the_version() {
    let message = Draft::valid().message();
    let body = &message[4..4 + 2 + 32 + 33 + 8 + 2];
    let old = [&[CLIENT_HELLO][..], &with_length::<3>(body)].concat();
    assert_eq!(Hello::parse(&old).err(), Some(Alert::PROTOCOL_VERSION));
}

#[test]
fn further_identities_are_checked_and_not_considered() {
    let identities = [&b"identity"[..]; 100];
    let binder = [0; 32];
    let binders = [&binder[..]; 100];
    let message = Draft::new(offered(&identities, &binders)).message();
    assert_eq!(
        Hello::parse(&message).expect("valid").keys().len(),
        IDENTITIES_MAX
    );
    let message = Draft::new(offered(&identities, &binders[1..])).message();
    assert_eq!(Hello::parse(&message).err(), Some(Alert::ILLEGAL_PARAMETER));
}
