//! Connect (Base 2.1 §6.3): the first command of every connection makes its queue.

use std::sync::{Arc, MutexGuard};

use nvme_spec::fabrics::{
    AuthenticationRequirements, CNTLID_DYNAMIC, Connect, ConnectData, ConnectField, FabricsType,
};
use nvme_spec::nqn::{DISCOVERY_NQN, from_field};
use nvme_spec::{Cqe, Sqe, Status, U16};
use reactors::Nanos;
use reactors::sim::planted;
use zerocopy::FromBytes;

use super::TargetCore;
use super::queue::{Queue, QueueKind, QueueSetup};
use crate::config::{ADMIN_QUEUE_DEPTH_MAX, TransportKind};
use crate::controller::{Controller, ControllerKind, ControllerSetup};
use crate::interface::{
    ADMIN_IN_CAPSULE_MAX_BYTES, Arrival, ConnectOutcome, QueueId, QueueInfo, TransportId,
};
use crate::io::DataContext;
use crate::registry::{IoConnect, IoRefusal, Registry};
use crate::shared::{ControllerIdentity, DISCOVERY_SLOT};

/// Why a Connect is refused.
enum Refused {
    Field(ConnectField),
    Status(Status),
}

impl From<ConnectField> for Refused {
    fn from(field: ConnectField) -> Self {
        Self::Field(field)
    }
}

/// A Connect whose parts were read.
struct Request<'a> {
    command: Connect,
    subsystem_nqn: &'a str,
    host_nqn: &'a str,
    host_id: [u8; 16],
    cntlid: u16,
    arrival: &'a Arrival,
    kind: TransportKind,
}

/// What a Connect asks for: slot of the subsystem, limits of its queues.
struct Wanted {
    subsystem: u32,
    kind: ControllerKind,
    io_queues_max: u16,
    depth_max: u16,
}

impl TargetCore {
    /// Handles the first capsule of a connection; `data` is what followed it (1024 bytes for
    /// Connect).
    pub fn connect(
        &mut self,
        arrival: &Arrival,
        sqe: &Sqe,
        data: &[u8],
        now: Nanos,
    ) -> ConnectOutcome {
        // The newest configuration decides who may connect.
        if self.target.epoch() != self.view.epoch {
            self.look(now);
        }
        match self.try_connect(arrival, sqe, data, now) {
            Ok((queue, info)) => {
                self.counters.connects.add(1);
                tracing::debug!(
                    cntlid = info.controller_id,
                    qid = info.qid,
                    "queue connected"
                );
                let authreq = AuthenticationRequirements::new();
                let mut response = Cqe::connected(sqe.cid.get(), info.controller_id, authreq);
                response.sqhd = self.connect_head(queue.slot);
                ConnectOutcome::Accepted {
                    queue,
                    response,
                    info,
                }
            }
            Err(refused) => {
                self.counters.connects_refused.add(1);
                let command_id = sqe.cid.get();
                let response = match refused {
                    Refused::Field(field) => Cqe::connect_invalid(command_id, field),
                    Refused::Status(status) => Cqe::new(command_id, status),
                };
                self.counters.statuses.count(response.status());
                tracing::debug!(status = %response.status(), "Connect refused");
                ConnectOutcome::Rejected(response)
            }
        }
    }

    /// SQHD of the response to Connect: FFFFh grants that flow control is off (Base 2.1 §6.3,
    /// CATTR).
    fn connect_head(&mut self, slot: u32) -> U16 {
        let Some(queue) = self.queues.at_mut(slot) else {
            return U16::ZERO;
        };
        if queue.flow_control {
            queue.respond(0, Status::SUCCESS).sqhd
        } else {
            U16::MAX_VALUE
        }
    }

    fn try_connect(
        &mut self,
        arrival: &Arrival,
        sqe: &Sqe,
        data: &[u8],
        now: Nanos,
    ) -> Result<(QueueId, QueueInfo), Refused> {
        let request = self.read_connect(arrival, sqe, data)?;
        let wanted = self.find_subsystem(&request)?;
        let qid = request.command.qid.get();
        // Base 2.1 §6.3: a queue has at least two entries, and no more than CAP.MQES says.
        let depth_max = if qid == 0 {
            ADMIN_QUEUE_DEPTH_MAX
        } else {
            wanted.depth_max
        };
        let depth = request.command.sqsize();
        if !(2..=u32::from(depth_max)).contains(&depth) {
            return Err(ConnectField::SqSize.into());
        }
        // No more than depth_max.
        let depth = depth as u16;
        let reservation = self.reserved + Queue::reservation(depth, qid == 0);
        let Some(slot) = self.queues.next_slot() else {
            return Err(busy());
        };
        if reservation > self.limits.executions_max {
            return Err(busy());
        }
        let (queue, info) = if qid == 0 {
            self.connect_admin(&request, &wanted, slot, depth, now)?
        } else {
            self.connect_io(&request, &wanted, slot, depth)?
        };
        self.reserved = reservation;
        self.counters.queues.set(self.queues.len() as u64);
        Ok((queue, info))
    }

    /// The registry, locked, while new queues may be entered. A configuration that changed after it
    /// was looked at makes the host try again: the subsystem's slot may be another's by now.
    fn open_registry(&self) -> Result<MutexGuard<'_, Registry>, Refused> {
        let registry = self.target.registry();
        if registry.closed || self.is_closing() {
            return Err(Refused::Status(Status::CONNECT_RESTART_DISCOVERY));
        }
        if self.target.epoch() != self.view.epoch {
            return Err(busy());
        }
        Ok(registry)
    }

    /// Reads a Connect command and its data.
    fn read_connect<'a>(
        &self,
        arrival: &'a Arrival,
        sqe: &Sqe,
        data: &'a [u8],
    ) -> Result<Request<'a>, Refused> {
        // Base 2.1 §6.3: the first command of a queue is Connect.
        if !sqe.is_fabrics() || sqe.fctype() != FabricsType::CONNECT {
            return Err(Refused::Status(Status::COMMAND_SEQUENCE_ERROR.with_dnr()));
        }
        let command = sqe.connect();
        if command.recfmt.get() != 0 {
            return Err(Refused::Status(
                Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr(),
            ));
        }
        // Base 2.1 §6.3: the data has 1024 bytes.
        let Ok(data) = ConnectData::ref_from_bytes(data) else {
            return Err(Refused::Status(Status::DATA_SGL_LENGTH_INVALID.with_dnr()));
        };
        let TransportId(transport) = arrival.transport;
        let inbox = self.inboxes.get(usize::from(transport));
        let inbox = inbox.ok_or(Refused::Status(Status::INTERNAL_ERROR))?;
        let subsystem_nqn = from_field(&data.subnqn).map_err(|_| ConnectField::SubsystemNqn)?;
        let host_nqn = from_field(&data.hostnqn).map_err(|_| ConnectField::HostNqn)?;
        Ok(Request {
            command,
            subsystem_nqn,
            host_nqn,
            host_id: data.hostid,
            cntlid: data.cntlid.get(),
            arrival,
            kind: inbox.kind,
        })
    }

    /// The subsystem that a Connect names, if the host may use it.
    fn find_subsystem(&self, request: &Request<'_>) -> Result<Wanted, Refused> {
        if request.subsystem_nqn == DISCOVERY_NQN {
            // Base 2.1 §3.1.3.3: a discovery controller has no I/O queues.
            if request.command.qid.get() != 0 {
                return Err(ConnectField::QueueId.into());
            }
            return Ok(Wanted {
                subsystem: DISCOVERY_SLOT,
                kind: ControllerKind::Discovery,
                io_queues_max: 0,
                depth_max: ADMIN_QUEUE_DEPTH_MAX,
            });
        }
        let found = self.view.find(request.subsystem_nqn);
        let found = found.filter(|(_, view)| !view.leaving && view.is_at(request.arrival.port));
        let (slot, view) = found.ok_or(ConnectField::SubsystemNqn)?;
        if !view.allows(request.host_nqn) && !planted("stranger-admitted") {
            return Err(Refused::Status(Status::CONNECT_INVALID_HOST.with_dnr()));
        }
        Ok(Wanted {
            subsystem: slot,
            kind: ControllerKind::Io,
            io_queues_max: view.config.io_queues_max,
            depth_max: view.config.queue_depth_max,
        })
    }

    fn connect_admin(
        &mut self,
        request: &Request<'_>,
        wanted: &Wanted,
        slot: u32,
        depth: u16,
        now: Nanos,
    ) -> Result<(QueueId, QueueInfo), Refused> {
        // Base 2.1 §6.3: FCATT says dynamic controllers, so only FFFFh can be asked for.
        if request.cntlid != CNTLID_DYNAMIC {
            return Err(ConnectField::ControllerId.into());
        }
        if !self.controllers.has_room() {
            return Err(busy());
        }
        let identity = ControllerIdentity {
            cntlid: 0,
            subsystem: wanted.subsystem,
            subsystem_nqn: request.subsystem_nqn.to_owned(),
            host_nqn: request.host_nqn.to_owned(),
            host_id: request.host_id,
            admin_reactor: self.reactor,
        };
        let (added, came_back) = {
            let mut registry = self.open_registry()?;
            let came_back = registry.comes_back(&identity);
            (
                registry.add(identity, slot, wanted.io_queues_max),
                came_back,
            )
        };
        let shared = added.ok_or_else(busy)?;
        if came_back {
            self.counters.reconnects.add(1);
        }
        let queue = self.queue_id(slot);
        let setup = ControllerSetup {
            kind: wanted.kind,
            queue,
            transport: request.kind,
            port: request.arrival.port,
            reached_at: request.arrival.local_address,
            in_capsule_max: request.arrival.in_capsule_max,
            keep_alive_ms: request.command.kato.get(),
            view: Arc::clone(&self.view),
            now,
        };
        let controller = Controller::new(Arc::clone(&shared), setup);
        let Some((controller, _)) = self.controllers.insert(controller) else {
            return Err(busy());
        };
        self.set_timer(controller);
        let kind = QueueKind::Admin { controller };
        let gate = shared.gate();
        let setup = request.queue_setup(kind, depth, ADMIN_IN_CAPSULE_MAX_BYTES);
        self.insert_queue(Queue::new(shared, gate, &setup), &setup)
    }

    fn connect_io(
        &mut self,
        request: &Request<'_>,
        wanted: &Wanted,
        slot: u32,
        depth: u16,
    ) -> Result<(QueueId, QueueInfo), Refused> {
        let connect = IoConnect {
            cntlid: request.cntlid,
            subsystem: wanted.subsystem,
            host_nqn: request.host_nqn,
            host_id: request.host_id,
            qid: request.command.qid.get(),
            reactor: self.reactor,
            slot,
        };
        // The slot counts from zero for its new queue, before a snapshot can find it there.
        if let Some(counters) = self.counters.queue_slots.get(slot as usize) {
            counters.reset();
        }
        let granted = self.open_registry()?.add_io(&connect);
        let grant = granted.map_err(|refusal| match refusal {
            IoRefusal::Field(field) => Refused::Field(field),
            IoRefusal::Sequence => Refused::Status(Status::COMMAND_SEQUENCE_ERROR.with_dnr()),
        })?;
        let kind = QueueKind::Io { token: grant.token };
        let setup = request.queue_setup(kind, depth, request.arrival.in_capsule_max);
        self.insert_queue(Queue::new(grant.shared, grant.gate, &setup), &setup)
    }

    fn insert_queue(
        &mut self,
        mut queue: Queue,
        setup: &QueueSetup,
    ) -> Result<(QueueId, QueueInfo), Refused> {
        let info = QueueInfo {
            qid: setup.qid,
            depth: setup.depth,
            admin: setup.qid == 0,
            controller_id: queue.shared.identity.cntlid,
            in_capsule_max: setup.data.in_capsule_max,
        };
        let slot = self.queues.next_slot().ok_or_else(busy)?;
        queue.take_slot(slot);
        let (slot, generation) = self.queues.insert(queue).ok_or_else(busy)?;
        Ok((QueueId { slot, generation }, info))
    }
}

impl Request<'_> {
    fn queue_setup(&self, kind: QueueKind, depth: u16, in_capsule_max: u32) -> QueueSetup {
        QueueSetup {
            kind,
            qid: self.command.qid.get(),
            depth,
            flow_control: !self.command.cattr.disable_sq_flow_control(),
            transport: self.arrival.transport.0,
            connection: self.arrival.connection,
            data: DataContext {
                keyed: self.kind == TransportKind::Rdma,
                in_capsule_max,
            },
        }
    }
}

/// All places are taken; later one may be free.
fn busy() -> Refused {
    Refused::Status(Status::CONNECT_CONTROLLER_BUSY)
}
