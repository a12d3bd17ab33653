//! Headers of RPC-over-RDMA: a server decodes those of calls, a client those of replies. What was
//! decoded has the same form again, and what was refused has the answer of the specification.

use files_spec::limits::RECORD_BYTES_MAX;
use files_spec::rdma::{HEADER_BYTES_MAX, Header, HeaderError, PrivateData, Procedure};
use files_spec::xdr::Encoder;

use crate::input::Input;

/// Decodes the input as a message or as private data.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let is_private = input.one_in(8);
    let bytes = input.take(usize::MAX);
    match is_private {
        true => private_data(bytes),
        false => message(bytes),
    }
}

fn private_data(bytes: &[u8]) {
    let decoded = PrivateData::decode(bytes);
    assert_eq!(PrivateData::decode(&decoded.encode()), decoded);
}

fn message(bytes: &[u8]) {
    let (header, at) = match Header::decode(bytes) {
        Ok(decoded) => decoded,
        Err(error) => return refused(error, bytes),
    };
    let mut memory = [0; HEADER_BYTES_MAX];
    let mut to = Encoder::new(&mut memory);
    header.encode(&mut to).expect("a decoded header fits");
    assert_eq!(to.written(), &bytes[..at]);
    for chunk in header.chunks.writes().iter().chain(&header.chunks.reply) {
        for bytes in [0, chunk.bytes() / 2, chunk.bytes()] {
            assert_eq!(chunk.used(bytes).map(|it| it.bytes()), Some(bytes));
        }
        assert_eq!(chunk.used(chunk.bytes() + 1), None);
    }
    let inline = bytes.len() - at;
    match header.call(inline) {
        Ok(call) => {
            let message = match header.procedure {
                Procedure::Message => inline as u64,
                _ => call.message.bytes(),
            };
            assert!(message + call.data.bytes() <= RECORD_BYTES_MAX as u64);
            assert!(call.data_at as u64 <= message);
        }
        Err(error) => refused(error, bytes),
    }
}

fn refused(error: HeaderError, bytes: &[u8]) {
    let Some(answer) = error.answer(1) else {
        return;
    };
    assert_eq!(answer.xid.to_be_bytes(), bytes[..4]);
    let mut memory = [0; HEADER_BYTES_MAX];
    let mut to = Encoder::new(&mut memory);
    answer.encode(&mut to).expect("an answer fits");
    let (decoded, _) = Header::decode(to.written()).expect("an answer is valid");
    assert_eq!(decoded, answer);
    // The other side does not answer it.
    assert_eq!(decoded.call(0), Err(HeaderError::Truncated));
}
