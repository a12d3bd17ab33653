//! Requests as bytes: record mark, call, and the operations of a COMPOUND.

use files_spec::compound::Writer;
use files_spec::operations::{Operation, SequenceArgs};
use files_spec::rpc::{
    AuthSys, Call, Credential, Fragment, MARK_BYTES, NFS_PROGRAM, NFS_VERSION, Procedure,
};
use files_spec::xdr::{EncodeError, Encoder, Hole, List, Opaque, Payload};

/// The name of this machine in credentials, which no server needs to know.
const MACHINE_NAME: &[u8] = b"host";

/// Size of the memory of a message at first, in bytes: enough for most without their payload.
const MEMORY_BYTES: usize = 512;
/// Size of the memory of the largest message without its payload, in bytes.
const MEMORY_BYTES_MAX: usize = 64 << 10;

/// What a COMPOUND has before its operations.
#[derive(Clone, Copy, Debug)]
pub struct CompoundHeader<'a> {
    /// The identifier of the call.
    pub xid: u32,
    /// The user, who is also the group.
    pub uid: u32,
    /// The tag.
    pub tag: &'a [u8],
    /// The minor version.
    pub minor_version: u32,
}

impl CompoundHeader<'_> {
    /// The record of a COMPOUND of `operations`, without its mark.
    ///
    /// # Panics
    /// It does not fit into 64 KiB beside the data of WRITEs.
    #[must_use]
    pub fn record(&self, operations: &[Operation<'_>]) -> Vec<u8> {
        let mut message = Message::empty();
        message.encode(self, None, operations).expect("fits");
        message.bytes()[MARK_BYTES..].to_vec()
    }

    fn encode(
        &self,
        sequence: Option<SequenceArgs>,
        operations: &[Operation<'_>],
        to: &mut Encoder<'_>,
    ) -> Result<(), EncodeError> {
        let call = Call {
            xid: self.xid,
            program: NFS_PROGRAM,
            version: NFS_VERSION,
            procedure: Procedure::COMPOUND,
            credential: Credential::Sys(AuthSys {
                stamp: 0,
                machinename: Opaque(MACHINE_NAME),
                uid: self.uid,
                gid: self.uid,
                gids: List::new(&[]),
            }),
        };
        call.encode(to)?;
        let mut writer = Writer::request(to, Opaque(self.tag), self.minor_version)?;
        if let Some(args) = sequence {
            writer.push(&Operation::Sequence(args))?;
        }
        for operation in operations {
            writer.push(operation)?;
        }
        writer.finish();
        Ok(())
    }
}

/// A record with its mark, in memory that is used again.
#[derive(Clone, Debug)]
pub struct Message {
    memory: Vec<u8>,
    length: usize,
    hole: Option<Hole>,
}

impl Message {
    /// A message without bytes.
    #[must_use]
    pub const fn empty() -> Self {
        Self {
            memory: Vec::new(),
            length: 0,
            hole: None,
        }
    }

    /// Encodes a COMPOUND of `operations`, behind SEQUENCE if there is one.
    ///
    /// # Errors
    /// A value has no XDR form, there is more than one payload in other memory, or the message does
    /// not fit into 64 KiB beside its payloads.
    #[inline]
    pub fn encode(
        &mut self,
        header: &CompoundHeader<'_>,
        sequence: Option<SequenceArgs>,
        operations: &[Operation<'_>],
    ) -> Result<(), EncodeError> {
        let inline = |operation: &Operation<'_>| match operation {
            Operation::Write(args) => match args.data {
                Payload::Inline(data) => data.len(),
                Payload::Elsewhere(_) => 0,
            },
            _ => 0,
        };
        let payload: usize = operations.iter().map(inline).sum();
        let mut room = MEMORY_BYTES;
        loop {
            let needed = MARK_BYTES + room + payload;
            if self.memory.len() < needed {
                self.memory.resize(needed, 0);
            }
            let encoded = self.encode_into(header, sequence, operations);
            match encoded {
                Err(EncodeError::NoSpace) if room < MEMORY_BYTES_MAX => room = MEMORY_BYTES_MAX,
                encoded => return encoded,
            }
        }
    }

    fn encode_into(
        &mut self,
        header: &CompoundHeader<'_>,
        sequence: Option<SequenceArgs>,
        operations: &[Operation<'_>],
    ) -> Result<(), EncodeError> {
        let (mark, memory) = self.memory.split_at_mut(MARK_BYTES);
        let mut to = Encoder::new(memory);
        header.encode(sequence, operations, &mut to)?;
        self.hole = match to.holes() {
            [] => None,
            [hole] => Some(Hole {
                at: MARK_BYTES + hole.at,
                length: hole.length,
            }),
            _ => return Err(EncodeError::TooManyHoles),
        };
        mark.copy_from_slice(&Fragment::whole(to.message_bytes()).encode());
        self.length = MARK_BYTES + to.written().len();
        Ok(())
    }

    /// Its bytes, without the payload that is in other memory.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.memory[..self.length]
    }

    /// Where a payload in other memory belongs in [`Self::bytes`].
    #[must_use]
    pub const fn hole(&self) -> Option<Hole> {
        self.hole
    }
}

#[cfg(test)]
mod tests {
    use files_spec::compound::CompoundArgs;
    use files_spec::operations::WriteArgs;
    use files_spec::types::{Stable, StateId};
    use files_spec::xdr::Decoder;

    use super::*;

    const HEADER: CompoundHeader<'static> = CompoundHeader {
        xid: 7,
        uid: 5,
        tag: b"tag",
        minor_version: 2,
    };

    fn write(data: Payload<'_>) -> Operation<'_> {
        Operation::Write(WriteArgs {
            stateid: StateId::CURRENT,
            offset: 3,
            stable: Stable::UNSTABLE,
            data,
        })
    }

    #[test]
    fn messages_with_invalid_values_or_too_many_payloads_are_refused() {
        let mut message = Message::empty();
        let tag = [b'x'; 300];
        let header = CompoundHeader {
            tag: &tag,
            ..HEADER
        };
        let refused = message.encode(&header, None, &[]);
        assert_eq!(refused, Err(EncodeError::Value));
        let elsewhere = write(Payload::Elsewhere(4));
        let refused = message.encode(&HEADER, None, &[elsewhere, elsewhere]);
        assert_eq!(refused, Err(EncodeError::TooManyHoles));
    }

    #[test]
    fn memory_of_a_message_is_used_again() {
        let mut message = Message::empty();
        let data = vec![0xa5; 100_001];
        message
            .encode(&HEADER, None, &[write(Payload::Inline(&data))])
            .expect("fits");
        let (mark, record) = message.bytes().split_first_chunk().expect("a mark");
        assert_eq!(Fragment::decode(*mark), Fragment::whole(record.len()));
        let mut from = Decoder::new(record);
        let call = Call::decode(&mut from).expect("a call");
        assert_eq!(call.xid, 7);
        let mut operations = CompoundArgs::decode(from).expect("a COMPOUND").operations;
        let expected = write(Payload::Inline(&data));
        assert_eq!(operations.next(), Some(Ok(expected)));
        let memory = message.memory.len();
        message
            .encode(&HEADER, None, &[Operation::PutRootFh(())])
            .expect("fits");
        assert_eq!(message.memory.len(), memory);
        assert_eq!(message.hole(), None);
        let (_, record) = message.bytes().split_first_chunk::<4>().expect("a mark");
        assert_eq!(record, HEADER.record(&[Operation::PutRootFh(())]));
    }

    #[test]
    fn payload_elsewhere_leaves_a_hole() {
        let mut message = Message::empty();
        message
            .encode(&HEADER, None, &[write(Payload::Elsewhere(5))])
            .expect("fits");
        let hole = message.hole().expect("a hole");
        assert_eq!(hole.length, 5);
        let (before, after) = message.bytes().split_at(hole.at);
        let filled = [before, b"hello", after].concat();
        let record = HEADER.record(&[write(Payload::Inline(b"hello"))]);
        assert_eq!(filled[MARK_BYTES..], record);
        let mark = filled.first_chunk().expect("a mark");
        assert_eq!(Fragment::decode(*mark), Fragment::whole(record.len()));
    }
}
