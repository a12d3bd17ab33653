//! Records of ONC RPC: a server decodes calls, a client decodes replies and callbacks. Each decoded
//! item survives encoding and decoding, and payload is where the beginning of its record said.

use files_spec::callback::{Callback, CallbackArgs, CallbackOk, CallbackResult};
use files_spec::compound::{CompoundArgs, CompoundOk, PayloadSearch, Sequence, find_payload};
use files_spec::limits::OPERATIONS_MAX;
use files_spec::operations::{Operation, OperationResult};
use files_spec::rpc::{Call, CallError, MARK_BYTES, Record, Reply};
use files_spec::status::Status;
use files_spec::xdr::{Decoder, Encoder, Payload, Xdr};

use crate::input::Input;

/// Memory for every item that an input can hold, and for what encoding adds to it.
const MEMORY_BYTES: usize = 64 << 10;

/// Decodes the input as records of one direction.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let direction = input.below(4);
    let bytes = input.take(usize::MAX);
    match direction {
        0 => call(bytes),
        1 => reply(bytes),
        2 => callback(bytes),
        _ => stream(bytes),
    }
}

/// A stream of fragments, whose records a server decodes.
fn stream(mut bytes: &[u8]) {
    let mut state = Record::default();
    let mut record = Vec::new();
    while let Some((mark, rest)) = bytes.split_first_chunk::<MARK_BYTES>() {
        let Ok(fragment) = state.add(*mark) else {
            return;
        };
        let length = (fragment.length as usize).min(rest.len());
        record.extend_from_slice(&rest[..length]);
        bytes = &rest[length..];
        assert!(record.len() <= state.bytes());
        if fragment.is_last {
            call(&record);
            record.clear();
            state = Record::default();
        }
    }
}

/// A call that a server decodes.
fn call(record: &[u8]) {
    let mut from = Decoder::new(record);
    match Call::decode(&mut from) {
        Ok(call) => {
            let mut memory = vec![0; MEMORY_BYTES];
            let mut to = Encoder::new(&mut memory);
            call.encode(&mut to).expect("a decoded call fits");
            let again = Call::decode(&mut Decoder::new(to.written()));
            assert_eq!(again, Ok(call));
        }
        Err(CallError::Refused(reply)) => return survives(&reply, |it| again::<Reply<'_>>(it)),
        Err(CallError::NotACall) => return,
    }
    let position = from.position();
    let search = find_payload(record, record.len());
    assert_ne!(search, PayloadSearch::Incomplete, "the record is complete");
    let Ok(args) = CompoundArgs::decode(from) else {
        return;
    };
    if args.check().is_err() {
        return;
    }
    let mut payload = None;
    for operation in items(args.operations, |it| again::<Operation<'_>>(it)) {
        if let Operation::Write(write) = operation
            && let Payload::Inline(data) = write.data
        {
            payload = payload.or(Some(data));
        }
    }
    if let (PayloadSearch::At(placement), Some(data)) = (search, payload) {
        assert!(placement.at > position);
        assert_eq!(&record[placement.at..][..placement.length], data);
    }
}

/// A reply that a client decodes.
fn reply(record: &[u8]) {
    let mut from = Decoder::new(record);
    let Ok(reply) = Reply::decode(&mut from) else {
        return;
    };
    survives(&reply, |it| again::<Reply<'_>>(it));
    if let Ok(ok) = CompoundOk::decode(from.clone()) {
        items(ok.results, |it| again::<OperationResult<'_>>(it));
    }
    if let Ok(ok) = CallbackOk::decode(from) {
        items(ok.results, |it| again::<CallbackResult>(it));
    }
}

/// A callback that a client decodes.
fn callback(record: &[u8]) {
    let mut from = Decoder::new(record);
    if Call::decode(&mut from).is_err() {
        return;
    }
    if let Ok(args) = CallbackArgs::decode(from)
        && args.check().is_ok()
    {
        items(args.callbacks, |it| again::<Callback<'_>>(it));
    }
}

/// Decodes a value and encodes it again.
type Again = for<'b> fn(&'b [u8]) -> Vec<u8>;

/// Decodes the items up to the first malformed one, whose error has a status.
fn items<'a, T: Xdr<'a>>(sequence: Sequence<'a, T>, again: Again) -> Vec<T> {
    let mut decoded = Vec::new();
    for item in sequence.take(OPERATIONS_MAX) {
        match item {
            Ok(item) => {
                survives(&item, again);
                decoded.push(item);
            }
            Err(malformed) => assert_ne!(malformed.error.status(), Status::OK),
        }
    }
    decoded
}

/// Checks that an item has the same form again after it was encoded and decoded.
fn survives<'a, T: Xdr<'a>>(item: &T, again: Again) {
    let bytes = encoded(item);
    assert_eq!(again(&bytes), bytes);
}

fn encoded<'a, T: Xdr<'a>>(item: &T) -> Vec<u8> {
    let mut memory = vec![0; MEMORY_BYTES];
    let mut to = Encoder::new(&mut memory);
    item.encode(&mut to).expect("a decoded item fits");
    to.written().to_vec()
}

fn again<'b, T: Xdr<'b>>(bytes: &'b [u8]) -> Vec<u8> {
    let mut from = Decoder::new(bytes);
    let item = T::decode(&mut from).expect("an encoded item decodes");
    assert_eq!(from.finish(), Ok(()));
    encoded(&item)
}
