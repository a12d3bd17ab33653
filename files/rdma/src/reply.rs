//! Where the parts of a reply go: into memory of the client, or into the message.

use files_server::Execution;
use files_spec::rdma::{Chunks, Header, HeaderError, Procedure};
use files_spec::xdr::{Hole, padding};

/// The form of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The results follow the header.
    Message,
    /// The results are written into memory of the client (RFC 8166 §3.5.3).
    Long,
    /// The client has offered too little memory: it gets an error (RFC 8166 §4.5.3).
    Refused,
}

/// A plan for one reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyPlan {
    pub(crate) header: Header,
    pub(crate) form: Form,
    /// Length of the results without what is written into chunks of their own, in bytes.
    pub(crate) body_bytes: usize,
}

/// Whether the data of a hole are written into a chunk of their own: the first chunk is for the data
/// of the first READ (RFC 8267). A chunk without segments asks for them in the message.
pub(crate) fn is_placed(call: &Header, hole: usize) -> bool {
    let chunk = call.chunks.writes().get(hole);
    chunk.is_some_and(|it| !it.segments().is_empty())
}

impl ReplyPlan {
    /// An error in place of a reply.
    pub(crate) fn refused(call: &Header, credits: u32) -> Self {
        let error = HeaderError::Chunk { xid: call.xid };
        Self {
            header: error
                .answer(credits)
                .expect("a malformed call has an answer"),
            form: Form::Refused,
            body_bytes: 0,
        }
    }

    /// The plan for the reply of an execution, with messages of at most `message_bytes` bytes.
    pub(crate) fn new(
        execution: &Execution,
        call: &Header,
        credits: u32,
        message_bytes: usize,
    ) -> Self {
        let (reply, holes) = (execution.reply().len(), execution.holes());
        Self::of(reply, holes, call, credits, message_bytes)
    }

    fn of(
        reply_bytes: usize,
        holes: &[Hole],
        call: &Header,
        credits: u32,
        message_bytes: usize,
    ) -> Self {
        let refused = || Self::refused(call, credits);
        let mut chunks = Chunks::default();
        for (index, chunk) in call.chunks.writes().iter().enumerate() {
            let hole = holes.get(index).filter(|_| is_placed(call, index));
            let bytes = hole.map_or(0, |it| u64::from(it.length));
            let Some(used) = chunk.used(bytes) else {
                return refused();
            };
            chunks.push_write(used).expect("the call has as many");
        }
        let mut body_bytes = reply_bytes;
        for (index, hole) in holes.iter().enumerate() {
            let length = hole.length as usize;
            match is_placed(call, index) {
                true => body_bytes -= padding(length),
                false => body_bytes += length,
            }
        }
        let mut header = Header {
            xid: call.xid,
            credits,
            procedure: Procedure::Message,
            chunks,
        };
        let mut form = Form::Message;
        if header.encoded_bytes() + body_bytes > message_bytes {
            let used = call.chunks.reply.and_then(|it| it.used(body_bytes as u64));
            let Some(used) = used else {
                return refused();
            };
            header.chunks.reply = Some(used);
            header.procedure = Procedure::NoMessage;
            form = Form::Long;
            if header.encoded_bytes() > message_bytes {
                return refused();
            }
        }
        Self {
            header,
            form,
            body_bytes,
        }
    }
}

/// The parts of the results between the holes, without the padding of data that are placed: ranges
/// of the encoded bytes, each with the hole behind it.
pub(crate) fn parts<'h>(
    reply_bytes: usize,
    holes: &'h [Hole],
    call: &'h Header,
) -> impl Iterator<Item = (std::ops::Range<usize>, Option<usize>)> + 'h {
    let begin = move |index: usize| match index.checked_sub(1) {
        None => 0,
        Some(before) => {
            let hole = holes[before];
            let skipped = match is_placed(call, before) {
                true => padding(hole.length as usize),
                false => 0,
            };
            hole.at + skipped
        }
    };
    let last = begin(holes.len())..reply_bytes;
    let between = holes.iter().enumerate();
    let between = between.map(move |(index, hole)| (begin(index)..hole.at, Some(index)));
    between.chain(std::iter::once((last, None)))
}

#[cfg(test)]
mod tests {
    use files_spec::rdma::{Chunk, Segment};

    use super::*;

    fn chunk(lengths: &[u32]) -> Chunk {
        let mut chunk = Chunk::default();
        for &length in lengths {
            let segment = Segment {
                handle: 1,
                length,
                offset: 0,
            };
            chunk.push(segment).expect("few");
        }
        chunk
    }

    fn call(writes: &[&[u32]], reply: Option<u32>) -> Header {
        let mut chunks = Chunks::default();
        for lengths in writes {
            chunks.push_write(chunk(lengths)).expect("few");
        }
        chunks.reply = reply.map(|bytes| chunk(&[bytes]));
        Header {
            xid: 7,
            credits: 1,
            procedure: Procedure::Message,
            chunks,
        }
    }

    fn hole(at: usize, length: u32) -> Hole {
        Hole { at, length }
    }

    /// The plan for a reply of 100 bytes, of which 3 are padding, with a hole of 4097 bytes.
    fn plan(call: &Header) -> (Form, usize) {
        let plan = ReplyPlan::of(100, &[hole(60, 4097)], call, 32, 4096);
        (plan.form, plan.body_bytes)
    }

    #[test]
    fn chunks_that_are_too_short_are_refused() {
        assert_eq!(plan(&call(&[], None)).0, Form::Refused);
        assert_eq!(plan(&call(&[&[4096]], None)).0, Form::Refused);
        assert_eq!(plan(&call(&[&[]], None)).0, Form::Refused);
        assert_eq!(plan(&call(&[], Some(4196))).0, Form::Refused);
        // Memory for the message does not stand in for that of the data.
        assert_eq!(plan(&call(&[&[4096]], Some(8192))).0, Form::Refused);
        let refused = ReplyPlan::of(100, &[hole(60, 4097)], &call(&[&[1]], None), 32, 4096);
        assert_eq!(refused.header.procedure, Procedure::ChunkError);
        assert_eq!((refused.header.xid, refused.header.credits), (7, 32));
    }

    #[test]
    fn data_go_where_the_client_has_offered_memory() {
        assert_eq!(plan(&call(&[&[4000, 97]], None)), (Form::Message, 97));
        assert_eq!(plan(&call(&[&[5000]], Some(8192))), (Form::Message, 97));
        assert_eq!(plan(&call(&[], Some(4197))), (Form::Long, 4197));
        assert_eq!(plan(&call(&[&[]], Some(8192))), (Form::Long, 4197));
        // A chunk of a READ that has failed, or is for something else, is returned unused.
        let unused = ReplyPlan::of(100, &[], &call(&[&[4096]], Some(10)), 32, 4096);
        assert_eq!(unused.form, Form::Message);
        assert_eq!(unused.header.chunks.writes()[0].bytes(), 0);
        assert_eq!(unused.header.chunks.reply, None);
    }

    #[test]
    fn a_message_is_as_long_as_the_client_receives() {
        let call = call(&[], Some(8192));
        let header = ReplyPlan::of(0, &[], &call, 32, 1024)
            .header
            .encoded_bytes();
        let form = |bytes| ReplyPlan::of(bytes, &[], &call, 32, 1024).form;
        assert_eq!(form(1024 - header), Form::Message);
        assert_eq!(form(1024 - header + 1), Form::Long);
    }

    #[test]
    fn padding_of_placed_data_is_left_out() {
        let holes = [hole(60, 4097), hole(80, 2)];
        let both = call(&[&[8192], &[2]], None);
        let ranges = |call: &Header| parts(100, &holes, call).collect::<Vec<_>>();
        let all = [(0..60, Some(0)), (63..80, Some(1)), (82..100, None)];
        assert_eq!(ranges(&both), all);
        let first = call(&[&[8192]], None);
        let padded = [(0..60, Some(0)), (63..80, Some(1)), (80..100, None)];
        assert_eq!(ranges(&first), padded);
        let plan = ReplyPlan::of(100, &holes, &first, 32, 4096);
        let bytes: usize = padded.iter().map(|(it, _)| it.len()).sum();
        assert_eq!(plan.body_bytes, bytes + 2);
        assert_eq!(parts(9, &[], &first).collect::<Vec<_>>(), [(0..9, None)]);
    }
}
