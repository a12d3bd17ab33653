//! Sessions: slots, replies that are kept, and the order of requests (RFC 8881 §2.10.6, §18.46).

use files_spec::Status;
use files_spec::limits::RECORD_BYTES_MAX;
use files_spec::operations::{
    BackchannelArgs, BindArgs, CallbackSecurity, ChannelAttributes, CreateSessionArgs,
    CreateSessionOk, OperationNumber, OperationResult, Outcome, SequenceArgs, SequenceOk,
    session_flags,
};
use files_spec::types::SessionId;

use crate::execution::{Execution, HeldSlot};
use crate::limits::{
    CACHED_REPLY_BYTES_MAX, CALLBACK_BYTES_MIN, CALLBACK_OPERATIONS_MIN, CHANNEL_BYTES_MIN,
    REPLY_CACHE_BYTES_MAX, SLOTS_MAX, SLOTS_OF_MANY_MAX,
};
use crate::refusal::Refusal;
use crate::server::{Fingerprint, Now, Server};
use crate::table::Key;

/// Directions of BIND_CONN_TO_SESSION (RFC 8881 §18.34).
mod direction {
    pub(super) const FORE: u32 = 1;
    pub(super) const BACK: u32 = 2;
    pub(super) const FORE_OR_BOTH: u32 = 3;
    pub(super) const BACK_OR_BOTH: u32 = 7;
}

/// What a slot knows of its latest request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// It had none.
    Unused,
    /// It is being executed.
    Executing,
    /// It is answered, and its reply is kept.
    Kept,
    /// It is answered.
    Answered,
}

#[derive(Debug)]
struct Slot {
    sequence: u32,
    /// Identifies the content of the request.
    fingerprint: Fingerprint,
    state: SlotState,
    reply: Vec<u8>,
}

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    client: Key,
    slots: Vec<Slot>,
    fore: ChannelAttributes,
}

impl Session {
    fn cache_bytes(&self) -> usize {
        self.slots.len() * self.fore.maxresponsesize_cached as usize
    }
}

/// What a request is, by its SEQUENCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sequenced {
    /// A new one.
    New,
    /// A retransmission: the reply is complete.
    Replayed,
    /// A retransmission whose reply was not kept.
    NotKept,
}

/// What SEQUENCE needs to know of its request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestShape {
    /// Length of the record in bytes.
    pub(crate) bytes: usize,
    /// Number of operations.
    pub(crate) operations: usize,
    /// Identifies the content.
    pub(crate) fingerprint: Fingerprint,
}

/// A request that is the next one of its slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextRequest {
    session: Key,
    pub(crate) client: Key,
    /// The highest slot of the session.
    pub(crate) highest_slot: u32,
    /// Longest reply in bytes.
    pub(crate) reply_bytes_max: usize,
}

/// The key of a session with this identifier, which may be unknown.
fn key_of(id: &SessionId, instance: u64) -> Option<Key> {
    let (begin, end) = id.split_at(8);
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_be_bytes);
    (number(begin) == instance).then(|| Key::from_u64(number(end)))
}

/// Limit of the slots of a further session, with this room for the replies of all.
fn slots_max(cache_room: usize) -> u32 {
    match cache_room > REPLY_CACHE_BYTES_MAX / 2 {
        true => SLOTS_MAX,
        false => SLOTS_OF_MANY_MAX,
    }
}

/// Limit of a kept reply of a channel in bytes.
fn cached_reply_bytes(asked: &ChannelAttributes) -> u32 {
    let cached = asked.maxresponsesize_cached.min(CACHED_REPLY_BYTES_MAX);
    cached.min(asked.maxresponsesize)
}

/// The limits of a channel that the server grants (RFC 8881 §18.36.3).
fn granted(asked: &ChannelAttributes, cache_room: usize) -> Result<ChannelAttributes, Status> {
    let sizes = [asked.maxrequestsize, asked.maxresponsesize];
    if sizes.iter().any(|&size| size < CHANNEL_BYTES_MIN) {
        return Err(Status::TOOSMALL);
    }
    if asked.maxoperations == 0 || asked.maxrequests == 0 {
        return Err(Status::INVAL);
    }
    let cached = cached_reply_bytes(asked);
    let (slots, max) = (
        cache_room.checked_div(cached as usize),
        slots_max(cache_room),
    );
    let slots = slots.map_or(max, |it| it.min(max as usize) as u32);
    if slots == 0 {
        return Err(Status::NOSPC);
    }
    let record = RECORD_BYTES_MAX as u32;
    Ok(ChannelAttributes {
        headerpadsize: 0,
        maxrequestsize: asked.maxrequestsize.min(record),
        maxresponsesize: asked.maxresponsesize.min(record),
        maxresponsesize_cached: cached,
        maxoperations: asked
            .maxoperations
            .min(files_spec::limits::OPERATIONS_MAX as u32),
        maxrequests: asked.maxrequests.min(slots),
        rdma_ird: None,
    })
}

/// Checks the limits of a backchannel, which is granted as asked for. One without slots is none.
fn check_backchannel(asked: &ChannelAttributes) -> Result<(), Status> {
    let sizes = [asked.maxrequestsize, asked.maxresponsesize];
    let is_small = sizes.iter().any(|&size| size < CALLBACK_BYTES_MIN)
        || asked.maxoperations < CALLBACK_OPERATIONS_MIN;
    match asked.maxrequests > 0 && is_small {
        true => Err(Status::TOOSMALL),
        false => Ok(()),
    }
}

impl Server {
    fn session_id(&self, key: Key) -> SessionId {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.instance.to_be_bytes());
        id[8..].copy_from_slice(&key.to_u64().to_be_bytes());
        id
    }

    fn session_key(&self, id: &SessionId) -> Result<Key, Refusal> {
        let key = key_of(id, self.instance).filter(|it| self.sessions.get(*it).is_some());
        Ok(key.ok_or(Status::BADSESSION)?)
    }

    /// Whether a further session can have the slots that it asks for, up to the limit.
    pub(crate) fn has_room_for_session(&self, args: &CreateSessionArgs<'_>) -> bool {
        let asked = &args.fore_chan_attrs;
        let room = REPLY_CACHE_BYTES_MAX - self.cache_bytes;
        let slots = asked.maxrequests.min(slots_max(room)) as usize;
        !self.sessions.is_full() && slots * cached_reply_bytes(asked) as usize <= room
    }

    /// Makes a session. It has no backchannel: the server sends no callbacks.
    pub(crate) fn new_session(
        &mut self,
        client: Key,
        args: &CreateSessionArgs<'_>,
    ) -> Result<(CreateSessionOk, Key), Status> {
        let known =
            session_flags::PERSIST | session_flags::CONN_BACK_CHAN | session_flags::CONN_RDMA;
        if args.flags & !known != 0 {
            return Err(Status::INVAL);
        }
        let room = REPLY_CACHE_BYTES_MAX - self.cache_bytes;
        let fore = granted(&args.fore_chan_attrs, room)?;
        check_backchannel(&args.back_chan_attrs)?;
        let slot = |_| Slot {
            sequence: 0,
            fingerprint: Fingerprint::default(),
            state: SlotState::Unused,
            reply: Vec::new(),
        };
        let session = Session {
            client,
            slots: (0..fore.maxrequests).map(slot).collect(),
            fore,
        };
        let bytes = session.cache_bytes();
        let key = self.sessions.insert(session).ok_or(Status::NOSPC)?;
        self.cache_bytes += bytes;
        let created = CreateSessionOk {
            sessionid: self.session_id(key),
            sequence: args.sequence,
            flags: 0,
            fore_chan_attrs: fore,
            back_chan_attrs: args.back_chan_attrs,
        };
        Ok((created, key))
    }

    /// Removes a session that its client does not know any more.
    pub(crate) fn forget_session(&mut self, key: Key) {
        if let Some(session) = self.sessions.remove(key) {
            self.cache_bytes -= session.cache_bytes();
        }
    }

    /// DESTROY_SESSION (RFC 8881 §18.37). That of the request itself is its last operation.
    pub(crate) fn destroy_session(
        &mut self,
        x: &mut Execution,
        id: &SessionId,
        is_last: bool,
    ) -> Result<(), Refusal> {
        let key = self.session_key(id)?;
        let is_own = x.slot.is_some_and(|held| held.session == key);
        if is_own && !is_last {
            return Err(Status::NOT_ONLY_OP.into());
        }
        if let Some(session) = self.sessions.get(key)
            && let Some(client) = self.clients.get_mut(session.client)
        {
            client.sessions.retain(|it| *it != key);
        }
        self.forget_session(key);
        if is_own {
            x.slot = None;
        }
        x.push(&OperationResult::DestroySession(Outcome::Ok(())))
    }

    /// BIND_CONN_TO_SESSION (RFC 8881 §18.34). Without state protection, every connection may use a
    /// session, so nothing has to be remembered.
    pub(crate) fn bind(&mut self, x: &mut Execution, args: &BindArgs) -> Result<(), Refusal> {
        self.session_key(&args.sessid)?;
        match args.dir {
            direction::FORE | direction::FORE_OR_BOTH | direction::BACK_OR_BOTH => {}
            direction::BACK => return Err(Status::INVAL.into()),
            _ => return Err(Status::BADXDR.into()),
        }
        let bound = BindArgs {
            sessid: args.sessid,
            dir: direction::FORE,
            use_conn_in_rdma_mode: false,
        };
        x.push(&OperationResult::BindConnToSession(Outcome::Ok(bound)))
    }

    /// BACKCHANNEL_CTL (RFC 8881 §18.33). The server sends no callbacks, so nothing has to be
    /// remembered.
    pub(crate) fn change_backchannel(
        &mut self,
        x: &mut Execution,
        args: &BackchannelArgs<'_>,
    ) -> Result<(), Refusal> {
        let mut parameters = args.sec_parms.iter();
        if parameters.any(|it| matches!(it, CallbackSecurity::Gss(_))) {
            // The server has no GSS contexts.
            return Err(Status::NOENT.into());
        }
        x.push(&OperationResult::BackchannelCtl(Outcome::Ok(())))
    }

    /// SEQUENCE (RFC 8881 §18.46). A failure leaves the slot as it was.
    pub(crate) fn sequence(
        &mut self,
        x: &mut Execution,
        args: &SequenceArgs,
        shape: RequestShape,
        now: &Now,
    ) -> Result<Sequenced, Refusal> {
        let key = self.session_key(&args.sessionid)?;
        let session = self.sessions.get_mut(key).ok_or(Status::BADSESSION)?;
        let slots = session.slots.len() as u32;
        let fore = session.fore;
        let slot = session.slots.get_mut(args.slotid as usize);
        let slot = slot.ok_or(Status::BADSLOT)?;
        if args.highest_slotid >= slots {
            return Err(Status::BAD_HIGH_SLOT.into());
        }
        if let Some(client) = self.clients.get_mut(session.client) {
            client.renewed_ms = now.monotonic_ms;
            client.address = x.address;
        }
        let ok = SequenceOk {
            sessionid: args.sessionid,
            sequenceid: args.sequenceid,
            slotid: args.slotid,
            highest_slotid: slots - 1,
            target_highest_slotid: slots - 1,
            status_flags: 0,
        };
        let push = |x: &mut Execution| x.push_ok(OperationNumber::SEQUENCE, &ok);
        if args.sequenceid == slot.sequence {
            let is_same = slot.fingerprint.is_same(&shape.fingerprint);
            return match slot.state {
                SlotState::Unused => Err(Status::SEQ_MISORDERED.into()),
                SlotState::Executing => Err(Status::DELAY.into()),
                // RFC 8881 §2.10.6.1.3.1.
                SlotState::Kept | SlotState::Answered if !is_same => {
                    Err(Status::SEQ_FALSE_RETRY.into())
                }
                SlotState::Kept => {
                    x.replay(&slot.reply);
                    Ok(Sequenced::Replayed)
                }
                SlotState::Answered => push(x).map(|()| Sequenced::NotKept),
            };
        }
        let is_next = args.sequenceid == slot.sequence.wrapping_add(1);
        if !is_next || slot.state == SlotState::Executing {
            return Err(Status::SEQ_MISORDERED.into());
        }
        if shape.operations > fore.maxoperations as usize {
            return Err(Status::TOO_MANY_OPS.into());
        }
        if shape.bytes > fore.maxrequestsize as usize {
            return Err(Status::REQ_TOO_BIG.into());
        }
        match args.cachethis && fore.maxresponsesize_cached < fore.maxresponsesize {
            true => x.set_limit(fore.maxresponsesize_cached, Status::REP_TOO_BIG_TO_CACHE),
            false => x.set_limit(fore.maxresponsesize, Status::REP_TOO_BIG),
        }
        push(x)?;
        slot.sequence = args.sequenceid;
        slot.fingerprint = shape.fingerprint;
        slot.state = SlotState::Executing;
        x.slot = Some(HeldSlot {
            session: key,
            client: session.client,
            slot: args.slotid,
            is_cached: args.cachethis,
        });
        Ok(Sequenced::New)
    }

    /// The slot of a request of this shape, if its SEQUENCE succeeds and it is no retransmission.
    #[inline]
    pub(crate) fn next_request(
        &self,
        args: &SequenceArgs,
        bytes: usize,
        operations: usize,
    ) -> Option<NextRequest> {
        let key = key_of(&args.sessionid, self.instance)?;
        let session = self.sessions.get(key)?;
        let (slots, fore) = (session.slots.len() as u32, &session.fore);
        let slot = session.slots.get(args.slotid as usize)?;
        let is_next = args.sequenceid == slot.sequence.wrapping_add(1)
            && slot.state != SlotState::Executing
            && args.highest_slotid < slots
            && operations <= fore.maxoperations as usize
            && bytes <= fore.maxrequestsize as usize;
        is_next.then_some(NextRequest {
            session: key,
            client: session.client,
            highest_slot: slots - 1,
            reply_bytes_max: fore.maxresponsesize as usize,
        })
    }

    /// Ends the next request of a slot, whose reply is complete and not kept.
    #[inline]
    pub(crate) fn answer_at_once(
        &mut self,
        next: &NextRequest,
        args: &SequenceArgs,
        fingerprint: Fingerprint,
    ) {
        let Some(session) = self.sessions.get_mut(next.session) else {
            return;
        };
        let slot = &mut session.slots[args.slotid as usize];
        slot.sequence = args.sequenceid;
        slot.fingerprint = fingerprint;
        slot.state = SlotState::Answered;
    }

    /// Ends the request of a slot, and keeps its reply if the client asked for it.
    pub(crate) fn release_slot(&mut self, x: &Execution) {
        let Some(held) = x.slot else {
            return;
        };
        let Some(session) = self.sessions.get_mut(held.session) else {
            return;
        };
        let slot = &mut session.slots[held.slot as usize];
        // The data of a READ are not kept.
        let is_kept = held.is_cached && x.holes().is_empty();
        slot.state = match is_kept {
            true => {
                slot.reply.clear();
                slot.reply.extend_from_slice(x.results());
                SlotState::Kept
            }
            false => SlotState::Answered,
        };
    }
}
