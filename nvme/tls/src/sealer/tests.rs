//! Sealed records, compared with those of RFC 8448 and opened again.

use proptest::prelude::*;

use super::*;
use crate::{Opener, Suite};

/// The client's application traffic secret of RFC 8448 §3.
pub(crate) const SECRET: &str = "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5";
/// Its first record, with the bytes 0 to 49.
const DATA_RECORD: &str = "1703030043a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8\
     a5b46b395bd54a9a20441e2b62974e1f5a6292a2977014bd1e3deae63aeebb21694915e4";
/// Its second record, with the alert `close_notify`.
const ALERT_RECORD: &str = "1703030013c9872760655666b74d7ff1153efd6db6d0b0e3";

pub(crate) fn bytes_of(digits: &str) -> Vec<u8> {
    let digits: Vec<u8> = digits.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| {
            let pair = std::str::from_utf8(pair).expect("ASCII");
            u8::from_str_radix(pair, 16).expect("hexadecimal")
        })
        .collect()
}

pub(crate) fn secret(suite: Suite) -> TrafficSecret {
    let bytes: Vec<u8> = (0..suite.hash().len() as u8).collect();
    TrafficSecret::new(suite, &bytes).expect("the length fits")
}

#[test]
fn records_are_those_of_rfc_8448() {
    let secret = TrafficSecret::new(Suite::Aes128GcmSha256, &bytes_of(SECRET)).expect("valid");
    let content: Vec<u8> = (0..50).collect();
    for cut in [0, 1, 49, 50] {
        let mut sealer = Sealer::new(secret.clone());
        let pieces = [IoSlice::new(&content[..cut]), IoSlice::new(&content[cut..])];
        let mut room = [0; 128];
        let bytes = sealer.seal_data(&mut Unsealed::new(&pieces), &mut room);
        assert_eq!(room[..bytes.expect("there is room")], bytes_of(DATA_RECORD));
        let bytes = sealer.seal(ContentType::Alert, &[1, 0], &mut room);
        assert_eq!(
            room[..bytes.expect("there is room")],
            bytes_of(ALERT_RECORD)
        );
    }
}

#[test]
fn a_used_up_key_seals_nothing() {
    let data = [IoSlice::new(b"data")];
    let mut room = [0; 64];
    let mut sealer = Sealer::new(secret(Suite::Aes128GcmSha256)).at(RECORDS_PER_KEY_MAX - 1);
    assert!(
        sealer
            .seal(ContentType::Alert, &[1, 0], &mut room)
            .is_some()
    );
    assert_eq!(sealer.seal(ContentType::Alert, &[1, 0], &mut room), None);
    let mut unsealed = Unsealed::new(&data);
    assert_eq!(sealer.seal_data(&mut unsealed, &mut room), None);
    assert!(!unsealed.is_empty());
    sealer.update();
    assert_eq!(sealer.sequence(), 0);
    assert!(sealer.seal_data(&mut unsealed, &mut room).is_some());
}

#[test]
fn nothing_is_sealed_without_room() {
    let mut sealer = Sealer::new(secret(Suite::Aes256GcmSha384));
    let data = [IoSlice::new(b"data")];
    let mut room = [0; SEALED_OVERHEAD_BYTES];
    for bytes in 0..=room.len() {
        let sealed = sealer.seal_data(&mut Unsealed::new(&data), &mut room[..bytes]);
        assert_eq!(sealed, None);
        assert_eq!(
            sealer.seal(ContentType::Alert, &[1, 0], &mut room[..bytes]),
            None
        );
    }
    assert_eq!(sealer.sequence(), 0, "no nonce was used");
    let too_long = vec![0; PLAINTEXT_BYTES_MAX + 1];
    let mut room = vec![0; 2 * PLAINTEXT_BYTES_MAX];
    assert_eq!(
        sealer.seal(ContentType::Handshake, &too_long, &mut room),
        None
    );
}

#[test]
fn a_record_takes_as_much_as_it_holds() {
    let big = vec![5; 40_000];
    let pieces = [
        IoSlice::new(&[]),
        IoSlice::new(&[1; 24]),
        IoSlice::new(&big),
    ];
    let mut unsealed = Unsealed::new(&pieces);
    let mut sealer = Sealer::new(secret(Suite::Aes128GcmSha256));
    let mut room = vec![0; 3 * PLAINTEXT_BYTES_MAX];
    let lengths: Vec<_> =
        std::iter::from_fn(|| sealer.seal_data(&mut unsealed, &mut room)).collect();
    let full = PLAINTEXT_BYTES_MAX + SEALED_OVERHEAD_BYTES;
    let last = 40_024 - 2 * PLAINTEXT_BYTES_MAX + SEALED_OVERHEAD_BYTES;
    assert_eq!(lengths, [full, full, last]);
}

proptest! {
    /// Whatever the buffers and the room for records are, the peer receives the same bytes.
    #[test]
    fn sealed_data_is_opened_again(
        lengths in prop::collection::vec(prop_oneof![0..40_usize, Just(4096), 16_000..40_000_usize], 0..8),
        rooms in prop::collection::vec(SEALED_OVERHEAD_BYTES + 1..20_000_usize, 1..5),
        is_256 in any::<bool>(),
        first in 0..1_u64 << 24,
    ) {
        let suite = Suite::ALL[usize::from(is_256)];
        let data: Vec<Vec<u8>> = lengths.iter().enumerate()
            .map(|(at, len)| (0..*len).map(|it| (it * 7 + at) as u8).collect())
            .collect();
        let pieces: Vec<_> = data.iter().map(|it| IoSlice::new(it)).collect();
        let mut unsealed = Unsealed::new(&pieces);
        let mut sealer = Sealer::new(secret(suite)).at(first);
        let mut opener = Opener::new(secret(suite)).at(first);
        let mut received = Vec::new();
        let mut room = vec![0; 20_000];
        for at in 0.. {
            let room = &mut room[..rooms[at % rooms.len()]];
            let Some(bytes) = sealer.seal_data(&mut unsealed, room) else { break };
            let (kind, content) = opener.open(&mut room[..bytes]).expect("not changed");
            prop_assert_eq!(kind, ContentType::ApplicationData);
            prop_assert!(!content.is_empty());
            received.extend_from_slice(&room[content]);
        }
        prop_assert!(unsealed.is_empty());
        prop_assert_eq!(received, data.concat());
    }
}
