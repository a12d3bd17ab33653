//! Our own client of files: a server that sends anything, over connections that end.

use files_client::{Client, ClientOptions, Event, ReplyStream};
use files_spec::Status;
use files_spec::compound::Writer;
use files_spec::operations::{
    ChannelAttributes, CreateSessionOk, ExchangeIdOk, Operation, OperationResult, Outcome,
    ProtectionOk, SequenceOk, ServerOwner,
};
use files_spec::rpc::{AcceptStatus, Fragment, MARK_BYTES, Reply};
use files_spec::xdr::{Encoder, List, Opaque, Xdr as _};

use crate::input::Input;

/// Slots that the client asks for.
const SLOTS: u32 = 4;
/// Memory for a reply with what an input adds to it.
const MEMORY_BYTES: usize = 1024;

/// The client, its stream, and the tokens that wait for an answer.
struct World {
    client: Client,
    stream: ReplyStream,
    waiting: Vec<u64>,
    next_token: u64,
    control: u32,
}

/// Executes the input as steps of the client and of its server.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let mut world = World {
        client: Client::new(ClientOptions {
            owner: b"client".to_vec(),
            verifier: [1; 8],
            uid: 0,
            minor_version: 2,
            slots: SLOTS,
            message_bytes: 1 << 20,
        }),
        stream: ReplyStream::default(),
        waiting: Vec::new(),
        next_token: 0,
        control: 0,
    };
    while !input.is_empty() {
        if !world.step(&mut input) {
            return;
        }
        let slots = world.client.free_slots().len() + world.client.waiting();
        assert!(slots <= SLOTS as usize);
        assert_eq!(world.client.waiting(), world.waiting.len());
    }
}

impl World {
    /// One step; false if the connection is useless.
    fn step(&mut self, input: &mut Input<'_>) -> bool {
        match input.below(8) {
            0 => self.begin(input),
            1 => self.client.lose_connection(input.below(2) as u64),
            2 => self.client.repeat(input.u8().into()),
            3 => {
                let unsent: Vec<u32> = self.client.unsent().collect();
                for slot in unsent {
                    self.client.sent(slot, input.below(2) as u64);
                }
            }
            4 => {
                if let Some(message) = self.client.control() {
                    let xid = message.bytes()[MARK_BYTES..].first_chunk();
                    self.control = u32::from_be_bytes(*xid.expect("a call"));
                    self.client.control_sent(input.below(2) as u64);
                }
            }
            5 => return self.arrive(input.bytes()),
            _ => {
                let reply = self.reply(input);
                return self.arrive(&reply);
            }
        }
        true
    }

    fn begin(&mut self, input: &mut Input<'_>) {
        if let Some(&slot) = self.client.free_slots().first() {
            self.next_token += 1;
            let operations = [Operation::PutRootFh(()); 1];
            let begun = self
                .client
                .begin(slot, self.next_token, &operations, input.one_in(2));
            begun.expect("a valid request");
            self.waiting.push(self.next_token);
        }
    }

    /// A reply to a request in flight, valid so far, and followed by bytes of the input.
    fn reply(&self, input: &mut Input<'_>) -> Vec<u8> {
        let slot = input.below(SLOTS as usize) as u32;
        let is_control = input.one_in(3) || !self.client.is_established();
        let has_slot = slot < (self.client.free_slots().len() + self.client.waiting()) as u32;
        let xid = match has_slot && !is_control {
            true => self
                .client
                .message(slot)
                .bytes()
                .get(MARK_BYTES..MARK_BYTES + 4),
            false => None,
        };
        let xid = xid.and_then(<[u8]>::first_chunk);
        let xid = xid.map_or(self.control, |it| u32::from_be_bytes(*it));
        let mut memory = vec![0; MEMORY_BYTES];
        let mut to = Encoder::new(&mut memory);
        let header = Reply::accepted(xid, AcceptStatus::Success);
        header.encode(&mut to).expect("fits");
        let status = input.pick(&[
            Status::OK,
            Status::DELAY,
            Status::BADSESSION,
            Status::RETRY_UNCACHED_REP,
        ]);
        let mut writer = Writer::reply(&mut to, Opaque(b"")).expect("fits");
        if is_control {
            let result = session_result(input, status);
            writer.push(&result).expect("fits");
            writer.finish_with(result.status());
        } else {
            let sequence = match input.one_in(2) {
                true if status != Status::OK => Outcome::Failed(status),
                _ => Outcome::Ok(SequenceOk {
                    sessionid: [0; 16],
                    sequenceid: 1,
                    slotid: slot,
                    highest_slotid: 0,
                    target_highest_slotid: 0,
                    status_flags: 0,
                }),
            };
            writer
                .push(&OperationResult::Sequence(sequence))
                .expect("fits");
            writer.finish_with(status);
        }
        let record = [to.written(), input.bytes()].concat();
        [&Fragment::whole(record.len()).encode()[..], &record].concat()
    }

    /// Bytes arrive over the first connection.
    fn arrive(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let room = self.stream.room();
            let length = room.len().min(bytes.len());
            assert!(length > 0, "there is always room");
            room[..length].copy_from_slice(&bytes[..length]);
            self.stream.received(length);
            bytes = &bytes[length..];
            loop {
                let record = match self.stream.next_record() {
                    Ok(Some(record)) => record,
                    Ok(None) => break,
                    Err(_) => return false,
                };
                let ended = match self.client.received(0, record) {
                    Ok(Event::Answered { token, answer }) => {
                        // Malformed results are errors, and do not panic.
                        let _ = answer.results();
                        vec![token]
                    }
                    Ok(Event::ReplyLost { token }) => vec![token],
                    Ok(Event::SessionLost { tokens }) => tokens,
                    Ok(_) => Vec::new(),
                    Err(_) => return false,
                };
                for token in ended {
                    let position = self.waiting.iter().position(|it| *it == token);
                    self.waiting.swap_remove(position.expect("answered once"));
                }
            }
        }
        true
    }
}

/// A result of EXCHANGE_ID or CREATE_SESSION.
fn session_result(input: &mut Input<'_>, status: Status) -> OperationResult<'static> {
    let channel = ChannelAttributes {
        headerpadsize: 0,
        maxrequestsize: 4096,
        maxresponsesize: 4096,
        maxresponsesize_cached: 0,
        maxoperations: 8,
        maxrequests: input.below(8) as u32,
        rdma_ird: None,
    };
    match input.below(4) {
        0 => OperationResult::CreateSession(Outcome::Failed(Status::STALE_CLIENTID)),
        1 if status != Status::OK => OperationResult::ExchangeId(Outcome::Failed(status)),
        2 => OperationResult::CreateSession(Outcome::Ok(CreateSessionOk {
            sessionid: [0; 16],
            sequence: 1,
            flags: 0,
            fore_chan_attrs: channel,
            back_chan_attrs: channel,
        })),
        _ => OperationResult::ExchangeId(Outcome::Ok(ExchangeIdOk {
            clientid: 1,
            sequenceid: 1,
            flags: 0,
            state_protect: ProtectionOk::None,
            server_owner: ServerOwner {
                minor_id: 0,
                major_id: Opaque(b"server"),
            },
            server_scope: Opaque(b"server"),
            server_impl_id: List::new(&[]),
        })),
    }
}
