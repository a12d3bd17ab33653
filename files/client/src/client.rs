//! A client's identity, its session, and the requests in its slots.
//!
//! A request keeps its slot and its bytes until it is answered. When the connections end over which
//! it was sent, it is sent again, and the server executes it only once (RFC 8881 §2.10.6).

use files_spec::Status;
use files_spec::operations::{
    ChannelAttributes, Operation, OperationResult, Outcome, SequenceArgs,
};
use files_spec::types::{SessionId, Verifier};
use files_spec::xdr::{DecodeError, EncodeError};

use crate::message::{CompoundHeader, Message};
use crate::reply::{Answer, ReplyError, xid_of};
use crate::requests;

/// Limit of the slots of a session.
pub const SLOTS_MAX: u32 = 1 << SLOT_BITS;

/// The bits of an identifier that tell the slot. All of them set: the request has no slot.
const SLOT_BITS: u32 = 10;
const SLOT_MASK: u32 = SLOTS_MAX - 1;

/// Limit of the operations of a request, with SEQUENCE.
const OPERATIONS_MAX: u32 = 16;
/// Limit of a reply that the server keeps, in bytes.
const CACHED_BYTES_MAX: u32 = 4096;

/// Who a client is, and what it asks for.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The name of the client, the same after a restart.
    pub owner: Vec<u8>,
    /// Different after a restart.
    pub verifier: Verifier,
    /// The user of all requests, who is also the group.
    pub uid: u32,
    /// The minor version, 1 or 2.
    pub minor_version: u32,
    /// Slots, fewer than [`SLOTS_MAX`].
    pub slots: u32,
    /// The longest request and reply in bytes.
    pub message_bytes: u32,
}

/// What the server grants a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Slots.
    pub slots: u32,
    /// The longest request in bytes.
    pub request_bytes: u32,
    /// The longest reply in bytes.
    pub reply_bytes: u32,
}

/// What a reply means.
#[derive(Debug)]
pub enum Event<'r> {
    /// It answers no waiting request: it repeats an answer, or belongs to a former session.
    Ignored,
    /// A step to a session: [`Client::control`] has the next request.
    Advanced,
    /// There is a session.
    Established,
    /// A request is answered; its slot is free.
    Answered {
        /// The request.
        token: u64,
        /// Its results, without that of SEQUENCE.
        answer: Answer<'r>,
    },
    /// A request was executed, and its reply is lost; its slot is free.
    ReplyLost {
        /// The request.
        token: u64,
    },
    /// The request of a slot is being executed, and no reply to it will come. [`Client::repeat`] it
    /// after a while.
    Delayed {
        /// The slot.
        slot: u32,
    },
    /// The server does not know the session. Whether these requests were executed is unknown. A new
    /// session is created.
    SessionLost {
        /// The requests that were not answered.
        tokens: Vec<u64>,
    },
}

/// What a server must not do, or what this client cannot handle. The connection is useless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// It is not a valid reply.
    #[error(transparent)]
    Reply(#[from] ReplyError),
    /// A session was refused.
    #[error("the server grants no session: {operation} failed with {status}")]
    NoSession {
        /// The operation.
        operation: &'static str,
        /// Its status.
        status: Status,
    },
    /// SEQUENCE failed.
    #[error("SEQUENCE failed with {0}")]
    Sequence(Status),
    /// The reply to a SEQUENCE belongs to another one.
    #[error("a reply of slot {found} arrived for slot {slot}")]
    Slot {
        /// The slot of the request.
        slot: u32,
        /// The slot in the reply.
        found: u32,
    },
    /// A reply has no result, or that of another operation.
    #[error("a reply has another result than its request asks for")]
    Result,
    /// The server has not kept a reply, as it was asked to.
    #[error("the server has not kept a reply")]
    NotKept,
    /// The session has no slots.
    #[error("the server grants no slots")]
    NoSlots,
}

/// What the client does to get a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Exchanging,
    /// With the next sequence number of CREATE_SESSION.
    Creating(u32),
    Established,
}

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    Free,
    /// Its request is not sent, or every connection has ended over which it was sent.
    Unsent,
    /// Its request is sent over the connections in `copies`.
    Sent,
    /// Waits for [`Client::repeat`].
    Delayed,
}

#[derive(Debug)]
struct Slot {
    state: SlotState,
    sequence: u32,
    xid: u32,
    token: u64,
    /// Whether the server shall keep the reply.
    is_kept: bool,
    message: Message,
    copies: Vec<u64>,
}

impl Slot {
    const fn new() -> Self {
        Self {
            state: SlotState::Free,
            sequence: 0,
            xid: 0,
            token: 0,
            is_kept: false,
            message: Message::empty(),
            copies: Vec::new(),
        }
    }
}

/// A request outside of sessions.
#[derive(Debug)]
struct Control {
    xid: u32,
    message: Message,
    /// The connection that it was sent over.
    over: Option<u64>,
}

/// A client.
#[derive(Debug)]
pub struct Client {
    options: ClientOptions,
    stage: Stage,
    control: Option<Control>,
    clientid: u64,
    session: SessionId,
    limits: Limits,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Number of requests so far.
    serial: u32,
}

impl Client {
    /// A client without a session.
    ///
    /// # Panics
    /// It asks for no slots, or for too many.
    #[must_use]
    pub fn new(options: ClientOptions) -> Self {
        assert!((1..SLOTS_MAX).contains(&options.slots), "slots are limited");
        Self {
            options,
            stage: Stage::Exchanging,
            control: None,
            clientid: 0,
            session: SessionId::default(),
            limits: Limits::default(),
            slots: Vec::new(),
            free: Vec::new(),
            serial: 0,
        }
    }

    /// Whether there is a session.
    #[must_use]
    pub const fn is_established(&self) -> bool {
        matches!(self.stage, Stage::Established)
    }

    /// The limits of the session.
    #[must_use]
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// Forgets everything, as a client does that starts again. Returns the requests that were not
    /// answered.
    pub fn restart(&mut self, verifier: Verifier) -> Vec<u64> {
        self.options.verifier = verifier;
        self.lose_session()
    }

    fn lose_session(&mut self) -> Vec<u64> {
        self.stage = Stage::Exchanging;
        self.control = None;
        self.free.clear();
        let waiting = |slot: &Slot| (slot.state != SlotState::Free).then_some(slot.token);
        let tokens = self.slots.iter().filter_map(waiting).collect();
        self.slots.clear();
        tokens
    }

    fn next_xid(&mut self, slot: u32) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial << SLOT_BITS | slot
    }

    fn header(&self, xid: u32) -> CompoundHeader<'static> {
        CompoundHeader {
            xid,
            uid: self.options.uid,
            tag: b"",
            minor_version: self.options.minor_version,
        }
    }

    /// The request outside of sessions that is to be sent now, if any; call
    /// [`Self::control_sent`] then.
    pub fn control(&mut self) -> Option<&Message> {
        if self.control.is_none() && self.stage != Stage::Established {
            let xid = self.next_xid(SLOT_MASK);
            let channel = ChannelAttributes {
                headerpadsize: 0,
                maxrequestsize: self.options.message_bytes,
                maxresponsesize: self.options.message_bytes,
                maxresponsesize_cached: CACHED_BYTES_MAX,
                maxoperations: OPERATIONS_MAX,
                maxrequests: self.options.slots,
                rdma_ird: None,
            };
            let operation = match self.stage {
                Stage::Creating(sequence) => {
                    requests::create_session(self.clientid, sequence, channel)
                }
                _ => requests::exchange_id(&self.options.owner, self.options.verifier),
            };
            let mut message = Message::empty();
            let encoded = message.encode(&self.header(xid), None, &[operation]);
            // The name of the client is the only value that has a limit.
            encoded.expect("owners have at most 1024 bytes");
            self.control = Some(Control {
                xid,
                message,
                over: None,
            });
        }
        let control = self.control.as_ref()?;
        control.over.is_none().then_some(&control.message)
    }

    /// The request outside of sessions was sent.
    pub fn control_sent(&mut self, connection: u64) {
        if let Some(control) = &mut self.control {
            control.over = Some(connection);
        }
    }

    /// Slots that can take a request, in any order.
    #[inline]
    #[must_use]
    pub fn free_slots(&self) -> &[u32] {
        &self.free
    }

    /// Number of requests that are not answered.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Puts a request into a free slot, after which [`Self::unsent`] contains the slot. `token`
    /// identifies the request in events. Returns the identifier of the call.
    ///
    /// # Errors
    /// The operations have no XDR form or do not fit. The slot is still free.
    ///
    /// # Panics
    /// The slot is not free.
    #[inline]
    pub fn begin(
        &mut self,
        slot: u32,
        token: u64,
        operations: &[Operation<'_>],
        is_kept: bool,
    ) -> Result<u32, EncodeError> {
        let position = self.free.iter().rposition(|it| *it == slot);
        let position = position.expect("the slot is free");
        let xid = self.next_xid(slot);
        let header = self.header(xid);
        let highest_slotid = self.slots.len() as u32 - 1;
        let place = &mut self.slots[slot as usize];
        let sequence = SequenceArgs {
            sessionid: self.session,
            sequenceid: place.sequence.wrapping_add(1),
            slotid: slot,
            highest_slotid,
            cachethis: is_kept,
        };
        place.message.encode(&header, Some(sequence), operations)?;
        place.sequence = place.sequence.wrapping_add(1);
        place.state = SlotState::Unsent;
        (place.xid, place.token, place.is_kept) = (xid, token, is_kept);
        self.free.swap_remove(position);
        Ok(xid)
    }

    /// The request of a slot.
    ///
    /// # Panics
    /// There is no such slot.
    #[inline]
    #[must_use]
    pub fn message(&self, slot: u32) -> &Message {
        &self.slots[slot as usize].message
    }

    /// The request of a slot was sent over a connection; it may be sent over several.
    #[inline]
    pub fn sent(&mut self, slot: u32, connection: u64) {
        if let Some(slot) = self.slots.get_mut(slot as usize)
            && slot.state != SlotState::Free
        {
            slot.state = SlotState::Sent;
            slot.copies.push(connection);
        }
    }

    /// The slots with requests that are to be sent.
    pub fn unsent(&self) -> impl Iterator<Item = u32> {
        let slots = (0..).zip(&self.slots);
        slots.filter_map(|(index, slot)| (slot.state == SlotState::Unsent).then_some(index))
    }

    /// The request of a slot is sent again that the server was executing.
    pub fn repeat(&mut self, slot: u32) {
        if let Some(slot) = self.slots.get_mut(slot as usize)
            && slot.state == SlotState::Delayed
        {
            slot.state = SlotState::Unsent;
        }
    }

    /// A connection has ended: no reply comes over it any more.
    pub fn lose_connection(&mut self, connection: u64) {
        if let Some(control) = &mut self.control
            && control.over == Some(connection)
        {
            control.over = None;
        }
        for slot in &mut self.slots {
            slot.copies.retain(|it| *it != connection);
            if slot.state == SlotState::Sent && slot.copies.is_empty() {
                slot.state = SlotState::Unsent;
            }
        }
    }

    /// Takes a record that has arrived over a connection.
    ///
    /// # Errors
    /// [`Violation`].
    #[inline]
    pub fn received<'r>(
        &mut self,
        connection: u64,
        record: &'r [u8],
    ) -> Result<Event<'r>, Violation> {
        let Some(xid) = xid_of(record) else {
            return Err(ReplyError::Malformed(DecodeError::Truncated).into());
        };
        if self.control.as_ref().is_some_and(|it| it.xid == xid) {
            self.control = None;
            return self.control_answered(record);
        }
        let index = xid & SLOT_MASK;
        match self.slots.get_mut(index as usize) {
            Some(slot) if slot.xid == xid && slot.state != SlotState::Free => {
                if let Some(position) = slot.copies.iter().position(|it| *it == connection) {
                    slot.copies.swap_remove(position);
                }
            }
            _ => return Ok(Event::Ignored),
        }
        self.slot_answered(index, record)
    }

    #[inline]
    fn slot_answered<'r>(&mut self, index: u32, record: &'r [u8]) -> Result<Event<'r>, Violation> {
        let mut answer = Answer::decode(record)?;
        let slot = &mut self.slots[index as usize];
        let token = slot.token;
        match answer.next()? {
            Some(OperationResult::Sequence(Outcome::Ok(ok))) if ok.slotid == index => {}
            Some(OperationResult::Sequence(Outcome::Ok(ok))) => {
                let (slot, found) = (index, ok.slotid);
                return Err(Violation::Slot { slot, found });
            }
            Some(OperationResult::Sequence(Outcome::Failed(Status::BADSESSION))) => {
                let tokens = self.lose_session();
                return Ok(Event::SessionLost { tokens });
            }
            Some(OperationResult::Sequence(Outcome::Failed(Status::DELAY))) => {
                if !slot.copies.is_empty() {
                    return Ok(Event::Ignored);
                }
                slot.state = SlotState::Delayed;
                return Ok(Event::Delayed { slot: index });
            }
            Some(OperationResult::Sequence(Outcome::Failed(status))) => {
                return Err(Violation::Sequence(status));
            }
            // The whole COMPOUND was refused.
            None if answer.status != Status::OK => {
                return Err(Violation::Sequence(answer.status));
            }
            _ => return Err(Violation::Result),
        }
        let is_lost = answer.status == Status::RETRY_UNCACHED_REP;
        if is_lost && slot.is_kept {
            return Err(Violation::NotKept);
        }
        // The answer itself may come over another connection.
        if is_lost && !slot.copies.is_empty() {
            return Ok(Event::Ignored);
        }
        slot.state = SlotState::Free;
        slot.copies.clear();
        self.free.push(index);
        Ok(match is_lost {
            true => Event::ReplyLost { token },
            false => Event::Answered { token, answer },
        })
    }

    fn control_answered<'r>(&mut self, record: &[u8]) -> Result<Event<'r>, Violation> {
        let mut answer = Answer::decode(record)?;
        let failed = |operation, status| Violation::NoSession { operation, status };
        match (self.stage, answer.next()?) {
            (Stage::Exchanging, Some(OperationResult::ExchangeId(Outcome::Ok(ok)))) => {
                self.clientid = ok.clientid;
                self.stage = Stage::Creating(ok.sequenceid);
            }
            (Stage::Creating(_), Some(OperationResult::CreateSession(Outcome::Ok(ok)))) => {
                let granted = ok.fore_chan_attrs;
                let slots = granted.maxrequests.min(self.options.slots);
                if slots == 0 {
                    return Err(Violation::NoSlots);
                }
                self.session = ok.sessionid;
                self.limits = Limits {
                    slots,
                    request_bytes: granted.maxrequestsize,
                    reply_bytes: granted.maxresponsesize,
                };
                self.slots = (0..slots).map(|_| Slot::new()).collect();
                self.free = (0..slots).rev().collect();
                self.stage = Stage::Established;
                return Ok(Event::Established);
            }
            (Stage::Creating(_), Some(OperationResult::CreateSession(it)))
                if it.status() == Status::STALE_CLIENTID =>
            {
                self.stage = Stage::Exchanging;
            }
            (_, Some(result)) if result.status() == Status::DELAY => {}
            (Stage::Exchanging, _) => return Err(failed("EXCHANGE_ID", answer.status)),
            (_, _) => return Err(failed("CREATE_SESSION", answer.status)),
        }
        Ok(Event::Advanced)
    }
}
