//! Round trips of every callback, and one request by hand from the layout of RFC 8881 §20.

use proptest::prelude::*;

use super::*;
use crate::arbitrary::Source;
use crate::compound::Writer;
use crate::xdr::Opaque;

#[test]
fn a_request_to_give_slots_back() {
    let mut memory = [0; 256];
    let mut to = Encoder::new(&mut memory);
    let sequence = Callback::Sequence(CallbackSequenceArgs {
        sessionid: [3; 16],
        sequenceid: 1,
        slotid: 0,
        highest_slotid: 0,
        cachethis: false,
        referring_call_lists: List::new(&[]),
    });
    let recall = Callback::RecallSlot(RecallSlotArgs {
        target_highest_slotid: 7,
    });
    let mut writer = Writer::callback(&mut to, Opaque(b""), 2).expect("fits");
    writer.push(&sequence).expect("fits");
    writer.push(&recall).expect("fits");
    writer.finish();
    // Tag, minor version, identifier, count; CB_SEQUENCE.
    let mut bytes: Vec<u8> = Vec::new();
    let mut words = |words: &[u32]| {
        bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    };
    words(&[0, 2, 0, 2, 11]);
    words(&[0x0303_0303; 4]);
    words(&[1, 0, 0, 0, 0]);
    words(&[10, 7]);
    assert_eq!(to.written(), bytes);
    let args = CallbackArgs::decode(Decoder::new(&bytes)).expect("decodes");
    assert_eq!(args.check(), Ok(()));
    let callbacks: Vec<_> = args.callbacks.map(|it| it.expect("valid")).collect();
    assert_eq!(callbacks, [sequence, recall]);
}

#[test]
fn a_callback_that_a_client_does_not_support() {
    let result = CallbackResult::Unsupported(CallbackNumber::NOTIFY, Status::NOTSUPP);
    let mut memory = [0; 64];
    let mut to = Encoder::new(&mut memory);
    let mut writer = Writer::reply(&mut to, Opaque(b"")).expect("fits");
    writer.push(&result).expect("fits");
    writer.finish_with(Status::NOTSUPP);
    let ok = CallbackOk::decode(Decoder::new(to.written())).expect("decodes");
    assert_eq!(ok.status, Status::NOTSUPP);
    assert_eq!(
        ok.results.map(|it| it.expect("valid")).collect::<Vec<_>>(),
        [result]
    );
    let mut unknown = Decoder::new(&[0, 0, 0, 6, 0, 0, 0, 0]);
    let decoded = CallbackResult::decode(&mut unknown);
    assert_eq!(decoded, Err(DecodeError::Discriminant));
}

proptest! {
    #[test]
    fn every_callback_survives_a_round_trip(
        index in 0..SAMPLES.len(),
        bytes in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let (callback, result) = SAMPLES[index];
        let (callback, result) = (callback(&mut Source(&bytes)), result(&mut Source(&bytes)));
        let mut memory = [0; 4096];
        let mut to = Encoder::new(&mut memory);
        callback.encode(&mut to).expect("fits");
        result.encode(&mut to).expect("fits");
        let mut from = Decoder::new(to.written());
        prop_assert_eq!(Callback::decode(&mut from), Ok(callback));
        prop_assert_eq!(CallbackResult::decode(&mut from), Ok(result));
        prop_assert_eq!(from.finish(), Ok(()));
        for end in 0..to.written().len() {
            let mut from = Decoder::new(&to.written()[..end]);
            let both = Callback::decode(&mut from).and_then(|_| CallbackResult::decode(&mut from));
            prop_assert!(both.is_err());
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(
        number in 0_u32..17,
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let whole: Vec<u8> = number.to_be_bytes().into_iter().chain(bytes).collect();
        // The result is any; a panic is the failure.
        let _ = Callback::decode(&mut Decoder::new(&whole));
        let _ = CallbackResult::decode(&mut Decoder::new(&whole));
    }
}
