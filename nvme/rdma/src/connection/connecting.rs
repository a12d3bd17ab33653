//! The first command of a connection, which must be a Connect for the queue that the private data
//! named.

use hugemem::{Account, Lease, WaiterToken};
use nvme_spec::fabrics::{ConnectData, ConnectField, FabricsType};
use nvme_spec::sgl::Sgl;
use nvme_spec::{Cqe, Sqe};
use nvme_target::{Arrival, ConnectOutcome, KeyedBlock, KeyedBlocks};
use rdma::{
    Connection as _, Payload, Provider, QueuePair, RemoteAddress, SendOperation, SendRequest,
};
use zerocopy::FromBytes;

use super::{Capsule, Cause, Connection, Context, EarlyCapsule, Phase};
use crate::posted::{PostedKind, QueueDestroyed, ReadBuffer};
use crate::receives::Receives;
use crate::slot::SlotTable;
use crate::token::CONNECT_SLOT;

/// Bytes of the data of a Connect command (Base 2.1 §6.3).
const CONNECT_DATA_BYTES: u32 = size_of::<ConnectData>() as u32;

/// The state of the Connect command.
#[derive(Debug)]
pub(super) struct Connecting {
    established: bool,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Not received. Ends with a capsule.
    Awaiting,
    /// Received before the connection manager's Established event. Ends with that event.
    Early(EarlyCapsule),
    /// Waits for a lease. Ends when the pool grants it.
    AwaitingBuffer(Pending),
    /// Its data is being read. Ends with the completion of the read.
    Reading(Pending, ReadBuffer),
    /// Completed or abandoned.
    Done,
}

/// A Connect command whose data is in host memory.
#[derive(Debug)]
struct Pending {
    sqe: Sqe,
    block: KeyedBlock,
    invalidate: Option<u32>,
}

impl Connecting {
    pub(super) fn new() -> Self {
        Self {
            established: false,
            stage: Stage::Awaiting,
        }
    }

    /// Records the connection manager's Established event; returns the capsule that waited for it.
    pub(super) fn establish(&mut self) -> Option<EarlyCapsule> {
        self.established = true;
        match std::mem::replace(&mut self.stage, Stage::Awaiting) {
            Stage::Early(capsule) => Some(capsule),
            other => {
                self.stage = other;
                None
            }
        }
    }

    /// Bytes of the leases with the command's data.
    pub(super) fn leased_bytes(&self) -> usize {
        match &self.stage {
            Stage::Early(capsule) => capsule.data.as_ref().map_or(0, Lease::len),
            Stage::Reading(_, buffer) => buffer.len(),
            Stage::Awaiting | Stage::AwaitingBuffer(_) | Stage::Done => 0,
        }
    }

    /// The queue pair was destroyed, so no read is outstanding.
    pub(super) fn queue_destroyed(&mut self, proof: &QueueDestroyed) {
        if let Stage::Reading(_, buffer) = &mut self.stage {
            buffer.queue_destroyed(proof);
        }
    }

    /// Abandons the command. A lease that the device may write is kept until the queue pair is
    /// destroyed.
    pub(super) fn give_up(&mut self) {
        if !matches!(self.stage, Stage::Reading(..)) {
            self.stage = Stage::Done;
        }
    }
}

impl<P: Provider> Connection<P> {
    /// Handles a capsule on a queue that is not connected.
    pub(super) fn take_connect(
        &mut self,
        cx: &mut Context<'_, P>,
        receives: &mut Receives<P>,
        capsule: Capsule<'_>,
    ) {
        if !matches!(self.connecting.stage, Stage::Awaiting) {
            let violation =
                Cause::Violation("a command was received before the response to Connect");
            return self.abort(cx, violation);
        }
        let capsule = EarlyCapsule {
            sqe: receives.command(capsule.receive),
            data: receives.take_data(capsule.receive),
            carried: capsule.carried,
        };
        if self.connecting.established {
            self.begin_connect(cx, capsule);
        } else {
            // A message may be received before the connection manager's Established event (IBTA,
            // communication established), but no response may be sent before it.
            self.connecting.stage = Stage::Early(capsule);
        }
    }

    /// Finds the data of the Connect command.
    pub(super) fn begin_connect(&mut self, cx: &mut Context<'_, P>, capsule: EarlyCapsule) {
        let EarlyCapsule { sqe, data, carried } = capsule;
        match sqe.dptr.sgl().decode() {
            Sgl::Offset { offset, length } => {
                let data = data.as_deref().unwrap_or(&[]);
                let data = data.get(..carried as usize).unwrap_or(&[]);
                let begin = usize::try_from(offset).unwrap_or(usize::MAX);
                let end = begin.saturating_add(length as usize);
                // Missing data counts as empty, which the target core refuses.
                self.connect(cx, &sqe, data.get(begin..end).unwrap_or(&[]), None);
            }
            Sgl::Keyed {
                address,
                length,
                key,
                invalidate,
            } if length >= CONNECT_DATA_BYTES => {
                let pending = Pending {
                    sqe,
                    block: KeyedBlock {
                        address,
                        key,
                        length: CONNECT_DATA_BYTES,
                    },
                    invalidate: invalidate.then_some(key),
                };
                self.connecting.stage = Stage::AwaitingBuffer(pending);
                let token = WaiterToken(self.token.with_slot(CONNECT_SLOT).into_bits());
                let (bytes, now_ns) = (CONNECT_DATA_BYTES as usize, cx.now.as_nanos());
                let lease = cx.pool.take_or_wait(Account::SYSTEM, bytes, token, now_ns);
                match lease {
                    Some(lease) => self.connect_buffer(cx, lease),
                    None => cx.counters.buffer_waits.add(1),
                }
            }
            _ => self.connect(cx, &sqe, &[], None),
        }
    }

    /// Reads the data of the Connect command into `lease`.
    pub(super) fn connect_buffer(&mut self, cx: &mut Context<'_, P>, lease: Lease) {
        let stage = std::mem::replace(&mut self.connecting.stage, Stage::Done);
        let Stage::AwaitingBuffer(pending) = stage else {
            self.connecting.stage = stage;
            return;
        };
        let bytes = CONNECT_DATA_BYTES as usize;
        let mut buffer = ReadBuffer::new(lease);
        let memory = buffer.memory();
        let memory = memory.and_then(|memory| cx.map.gather(memory, 0, bytes));
        let Some(memory) = memory else {
            return self.abort(cx, Cause::Post);
        };
        let request = SendRequest::new(
            self.work_id(self.sends.next_sequence(), true),
            SendOperation::Read(RemoteAddress {
                address: pending.block.address,
                rkey: pending.block.key,
            }),
            Payload::Memory(memory.as_slice()),
        );
        if self.queue_pair.queue_send(&request).is_err() {
            return self.abort(cx, Cause::Post);
        }
        cx.counters.reads.add(1);
        cx.counters.bytes_read.add(u64::from(CONNECT_DATA_BYTES));
        self.sends.push(1, PostedKind::Connect, None, cx.now);
        self.queued = true;
        buffer.begin();
        self.connecting.stage = Stage::Reading(pending, buffer);
    }

    /// Handles the completed read of the Connect command's data.
    pub(super) fn connect_data_read(&mut self, cx: &mut Context<'_, P>) {
        let stage = std::mem::replace(&mut self.connecting.stage, Stage::Done);
        let Stage::Reading(pending, mut buffer) = stage else {
            return;
        };
        buffer.end();
        if matches!(self.phase, Phase::Connecting { .. })
            && let Some(lease) = buffer.take()
        {
            self.connect(cx, &pending.sqe, &lease, pending.invalidate);
        }
    }

    fn connect(
        &mut self,
        cx: &mut Context<'_, P>,
        sqe: &Sqe,
        data: &[u8],
        invalidate: Option<u32>,
    ) {
        self.connecting.stage = Stage::Done;
        if let Some(field) = self.contradiction(sqe, data) {
            let response = Cqe::connect_invalid(sqe.cid.get(), field);
            self.respond(cx, response, invalidate);
            return self.close(cx);
        }
        let arrival = Arrival {
            transport: cx.transport,
            port: self.port,
            connection: u32::from(self.token.connection()),
            local_address: self.connection.local_address().map(|address| address.ip()),
            peer_address: self.host_address().map(|address| address.ip()),
            in_capsule_max: self.in_capsule_bytes,
            channel: None,
        };
        match cx.core.connect(&arrival, sqe, data, cx.now) {
            ConnectOutcome::Accepted {
                queue,
                response,
                info,
            } => {
                let depth = usize::from(info.depth);
                self.queue = Some(queue);
                self.slots = SlotTable::new(info.depth);
                self.remotes.resize_with(depth, KeyedBlocks::default);
                if self.negotiated.qid > 0 {
                    self.in_device = super::DeviceTable::for_queue(depth);
                }
                self.waiting_reads.reserve(depth);
                self.waiting_sends.reserve(depth);
                self.in_capsule_max = info.in_capsule_max;
                self.account = info.account;
                self.phase = Phase::Serving;
                self.check_at = cx.now.saturating_add(super::PROBE_INTERVAL);
                self.respond(cx, response, invalidate);
            }
            ConnectOutcome::Rejected(response) => {
                self.respond(cx, response, invalidate);
                self.close(cx);
            }
        }
    }

    /// The field of a Connect command that differs from the private data (RDMA 1.1 §3: QID, HSQSIZE
    /// and CNTLID are those of the Connect command that follows).
    fn contradiction(&self, sqe: &Sqe, data: &[u8]) -> Option<ConnectField> {
        if !sqe.is_fabrics() || sqe.fctype() != FabricsType::CONNECT {
            return None;
        }
        let connect = sqe.connect();
        if connect.qid.get() != self.negotiated.qid {
            return Some(ConnectField::QueueId);
        }
        if connect.sqsize() != u32::from(self.negotiated.depth) {
            return Some(ConnectField::SqSize);
        }
        let data = ConnectData::ref_from_bytes(data).ok()?;
        let cntlid = self.negotiated.cntlid?;
        (data.cntlid.get() != cntlid).then_some(ConnectField::ControllerId)
    }
}
