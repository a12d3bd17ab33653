//! Connect (Base 2.1 §6.3): the first command of every connection, which creates its queue.

use std::net::IpAddr;
use std::sync::{Arc, MutexGuard};

use hugemem::Account;
use nvme_spec::fabrics::{
    AuthenticationRequirements, CNTLID_DYNAMIC, Connect, ConnectData, ConnectField, FabricsType,
};
use nvme_spec::nqn::{DISCOVERY_NQN, NqnError, from_field};
use nvme_spec::{Cqe, Sqe, Status, U16};
use reactors::Nanos;
use zerocopy::FromBytes;

use super::TargetCore;
use super::authentication::Standing;
use super::queue::{Queue, QueueKind, QueueSetup};
use crate::ana::AnaRestrictions;
use crate::config::{ADMIN_QUEUE_DEPTH_MAX, CONTROLLER_IDS, TransportKind};
use crate::controller::{Controller, ControllerKind, ControllerSetup, keep_alive_max_ms};
use crate::interface::{
    ADMIN_IN_CAPSULE_MAX_BYTES, Arrival, ConnectOutcome, QueueId, QueueInfo, TransportId,
};
use crate::io::DataContext;
use crate::registry::{AddedController, IoConnect, IoRefusal, NewController, Registry};
use crate::secure_channel::{self, ChannelRefusal, Connecting, QueueChannel};
use crate::shared::{ControllerIdentity, DISCOVERY_SLOT};
use crate::shares::ShareHolder;

/// The reason for refusing a Connect.
pub(super) enum ConnectRefusal {
    Field(ConnectField),
    Status(Status),
}

impl From<ConnectField> for ConnectRefusal {
    fn from(field: ConnectField) -> Self {
        Self::Field(field)
    }
}

/// A decoded Connect.
struct Request<'a> {
    command: Connect,
    share_holder: ShareHolder,
    subsystem_nqn: &'a str,
    host_nqn: &'a str,
    host_id: [u8; 16],
    cntlid: u16,
    arrival: &'a Arrival,
    kind: TransportKind,
}

/// The queue that a Connect requests: the slot of its subsystem, and its limits.
struct RequestedQueue {
    subsystem: u32,
    kind: ControllerKind,
    io_queues_max: u16,
    depth_max: u16,
    /// Slot of the queue. Set after the request was checked.
    slot: u32,
    /// Entries of the queue. Set after the request was checked.
    depth: u16,
    /// Slot quota of the queue.
    slot_quota: usize,
}

impl RequestedQueue {
    /// A queue of an I/O or discovery controller with the controller's limits.
    fn new(subsystem: u32, kind: ControllerKind, io_queues_max: u16, depth_max: u16) -> Self {
        Self {
            subsystem,
            kind,
            io_queues_max,
            depth_max,
            slot: 0,
            depth: 0,
            slot_quota: 0,
        }
    }
}

impl TargetCore {
    /// Handles the first capsule of a connection; `data` is the data that follows it (1024 bytes
    /// for Connect).
    pub fn connect(
        &mut self,
        arrival: &Arrival,
        sqe: &Sqe,
        data: &[u8],
        now: Nanos,
    ) -> ConnectOutcome {
        // The latest configuration determines who may connect.
        if self.target.epoch() != self.view.epoch {
            self.handle_notifications(now);
        }
        match self.try_connect(arrival, sqe, data, now) {
            Ok((queue, info)) => {
                self.counters.connects.add(1);
                tracing::debug!(
                    cntlid = info.controller_id,
                    qid = info.qid,
                    "queue connected"
                );
                let authreq = self.authentication_requirements(queue.slot);
                let mut response = Cqe::connected(sqe.cid.get(), info.controller_id, authreq);
                response.sqhd = self.connect_head(queue.slot);
                ConnectOutcome::Accepted {
                    queue,
                    response,
                    info,
                }
            }
            Err(refusal) => {
                self.counters.connects_refused.add(1);
                let command_id = sqe.cid.get();
                let response = match refusal {
                    ConnectRefusal::Field(field) => Cqe::connect_invalid(command_id, field),
                    ConnectRefusal::Status(status) => Cqe::new(command_id, status),
                };
                self.counters.statuses.count(response.status());
                tracing::debug!(status = %response.status(), "Connect refused");
                ConnectOutcome::Rejected(response)
            }
        }
    }

    /// What the response to Connect demands of the host (Base 2.1 §6.3, AUTHREQ). Linux refuses ASCR
    /// unless it was told to generate a key.
    fn authentication_requirements(&self, slot: u32) -> AuthenticationRequirements {
        let none = AuthenticationRequirements::new();
        let Some(queue) = self.queues.at(slot) else {
            return none;
        };
        let identity = &queue.shared.identity;
        let needs_channel = !identity.is_secure
            && self
                .view
                .needs_channel(identity.subsystem, &identity.host_nqn);
        match queue.standing {
            Standing::Required => none
                .with_authentication(!needs_channel)
                .with_secure_channel(needs_channel),
            Standing::NotRequired | Standing::Authenticated | Standing::Concatenated => none,
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
    ) -> Result<(QueueId, QueueInfo), ConnectRefusal> {
        let request = self.read_connect(arrival, sqe, data)?;
        let requested = self.find_subsystem(&request, now)?;
        let qid = request.command.qid.get();
        // Base 2.1 §6.3: a queue has at least two entries, and at most CAP.MQES.
        let depth_max = if qid == 0 {
            request.kind.admin_queue_depth_max()
        } else {
            self.io_queue_depth_max(&request, &requested)
        };
        let depth = request.command.sqsize();
        if !(2..=u32::from(depth_max)).contains(&depth) {
            return Err(ConnectField::SqSize.into());
        }
        // At most `depth_max`.
        let depth = depth as u16;
        let slot_quota = Queue::slot_quota(qid, depth, requested.kind);
        let Some(slot) = self.queues.next_slot() else {
            return Err(busy());
        };
        let (share_holder, has_lists) = (&request.share_holder, self.view.has_lists());
        if !self.reserved.admits(share_holder, slot_quota, has_lists) {
            return Err(busy());
        }
        let requested = RequestedQueue {
            slot,
            depth,
            slot_quota,
            ..requested
        };
        let connected = if qid == 0 {
            self.connect_admin(&request, &requested, now)
        } else {
            self.connect_io(&request, &requested, now)
        };
        let (queue, info) = connected?;
        self.reserved.take(&request.share_holder, slot_quota);
        self.counters.queues.set(self.queues.len() as u64);
        self.watch_authentication(queue.slot);
        self.record_channel(queue, arrival, now);
        Ok((queue, info))
    }

    /// Most entries of an I/O queue: the limit that its controller reported, even if the limit for
    /// new controllers has changed since.
    fn io_queue_depth_max(&self, request: &Request<'_>, requested: &RequestedQueue) -> u16 {
        let registry = self.target.registry();
        let identity = registry
            .entry(request.cntlid)
            .map(|entry| &entry.shared.identity);
        let own = identity.filter(|it| it.subsystem == requested.subsystem);
        own.map_or(requested.depth_max, |it| it.queue_depth_max)
    }

    /// Locks the registry for adding a queue. If the configuration has changed since the request
    /// was checked, the host has to retry: the slot may now be another subsystem's.
    fn open_registry(&self) -> Result<MutexGuard<'_, Registry>, ConnectRefusal> {
        let registry = self.target.registry();
        if registry.closed || self.is_closing() {
            return Err(ConnectRefusal::Status(Status::CONNECT_RESTART_DISCOVERY));
        }
        if self.target.epoch() != self.view.epoch {
            return Err(busy());
        }
        Ok(registry)
    }

    /// Decodes a Connect command and its data.
    fn read_connect<'a>(
        &self,
        arrival: &'a Arrival,
        sqe: &Sqe,
        data: &'a [u8],
    ) -> Result<Request<'a>, ConnectRefusal> {
        // Base 2.1 §6.3: the first command of a queue is Connect.
        if !sqe.is_fabrics() || sqe.fctype() != FabricsType::CONNECT {
            return Err(ConnectRefusal::Status(
                Status::COMMAND_SEQUENCE_ERROR.with_dnr(),
            ));
        }
        let command = sqe.connect();
        if command.recfmt.get() != 0 {
            return Err(ConnectRefusal::Status(
                Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr(),
            ));
        }
        // Base 2.1 §6.3: the data has 1024 bytes.
        let Ok(data) = ConnectData::ref_from_bytes(data) else {
            return Err(ConnectRefusal::Status(
                Status::DATA_SGL_LENGTH_INVALID.with_dnr(),
            ));
        };
        let TransportId(transport) = arrival.transport;
        let inbox = self.inboxes.get(usize::from(transport));
        let inbox = inbox.ok_or(ConnectRefusal::Status(Status::INTERNAL_ERROR))?;
        let subsystem_nqn = from_field(&data.subnqn).map_err(|_| ConnectField::SubsystemNqn)?;
        // Base 2.1 §6.3 requires a host NQN, but some hosts send none (SPDK's perf). Such a host is
        // treated as one that no list contains.
        let host_nqn = match from_field(&data.hostnqn) {
            Err(NqnError::Empty) => "",
            name => name.map_err(|_| ConnectField::HostNqn)?,
        };
        let listed = self.view.lists(host_nqn);
        let share_holder = ShareHolder::new(host_nqn, listed, arrival.peer_address);
        Ok(Request {
            command,
            share_holder,
            subsystem_nqn,
            host_nqn,
            host_id: data.hostid,
            cntlid: data.cntlid.get(),
            arrival,
            kind: inbox.kind,
        })
    }

    /// The subsystem that a Connect requests, if the host may use it.
    fn find_subsystem(
        &self,
        request: &Request<'_>,
        now: Nanos,
    ) -> Result<RequestedQueue, ConnectRefusal> {
        if request.subsystem_nqn == DISCOVERY_NQN {
            // Base 2.1 §3.1.3.3: a discovery controller has no I/O queues.
            if request.command.qid.get() != 0 {
                return Err(ConnectField::QueueId.into());
            }
            self.check_channel(request, None, now)?;
            let kind = ControllerKind::Discovery;
            return Ok(RequestedQueue::new(
                DISCOVERY_SLOT,
                kind,
                0,
                ADMIN_QUEUE_DEPTH_MAX,
            ));
        }
        let found = self.view.find(request.subsystem_nqn);
        let found = found.filter(|(_, view)| !view.draining && view.is_at(request.arrival.port));
        let (slot, view) = found.ok_or(ConnectField::SubsystemNqn)?;
        if !view.allows(request.host_nqn) {
            return Err(ConnectRefusal::Status(
                Status::CONNECT_INVALID_HOST.with_dnr(),
            ));
        }
        self.check_channel(request, Some(slot), now)?;
        let (queues_max, depth_max) = (view.config.io_queues_max, view.config.queue_depth_max);
        Ok(RequestedQueue::new(
            slot,
            ControllerKind::Io,
            queues_max,
            depth_max,
        ))
    }

    fn connect_admin(
        &mut self,
        request: &Request<'_>,
        requested: &RequestedQueue,
        now: Nanos,
    ) -> Result<(QueueId, QueueInfo), ConnectRefusal> {
        // Base 2.1 §6.3: FCATT reports dynamic controllers, so only FFFFh is valid.
        if request.cntlid != CNTLID_DYNAMIC {
            return Err(ConnectField::ControllerId.into());
        }
        let keep_alive_ms = request.command.kato.get();
        // Base 2.1 §3.9 and §4.2.3.1, Keep Alive Timeout Invalid.
        if keep_alive_ms > keep_alive_max_ms(requested.kind) {
            let status = Status::KEEP_ALIVE_TIMEOUT_INVALID.with_dnr();
            return Err(ConnectRefusal::Status(status));
        }
        if !self.controllers.has_room() {
            return Err(busy());
        }
        let identity = ControllerIdentity {
            cntlid: 0,
            subsystem: requested.subsystem,
            subsystem_nqn: request.subsystem_nqn.to_owned(),
            host_nqn: request.host_nqn.to_owned(),
            host_id: request.host_id,
            host_account: 0,
            admin_reactor: self.reactor,
            port: request.arrival.port,
            queue_depth_max: requested.depth_max,
            keep_alive_ms,
            is_secure: request.arrival.channel.is_some(),
        };
        let subsystem = self.view.subsystem(requested.subsystem);
        let controller_ids = subsystem.map(|view| view.config.controller_ids.clone());
        let (added, reconnected) = {
            let mut registry = self.open_registry()?;
            let reconnected = registry.take_lost(&identity);
            let new = NewController {
                identity,
                share_holder: request.share_holder,
                has_lists: self.view.has_lists(),
                address: request.arrival.peer_address,
                admin_slot: requested.slot,
                io_queues: requested.io_queues_max,
                controller_ids: controller_ids.unwrap_or(CONTROLLER_IDS),
                ana: subsystem.map_or_else(AnaRestrictions::default, |view| {
                    view.ana_restrictions(request.arrival.port)
                }),
                now,
            };
            (registry.add(new), reconnected)
        };
        let AddedController { shared, evicted } = added.ok_or_else(busy)?;
        if let Some(reactor) = evicted {
            self.target.notify(reactor);
        }
        if request.host_nqn.is_empty() {
            self.notice_unnamed(request.arrival.peer_address);
        }
        if reconnected {
            self.counters.reconnects.add(1);
        }
        let queue = self.queue_id(requested.slot);
        let setup = ControllerSetup {
            kind: requested.kind,
            queue,
            transport: request.kind,
            port: request.arrival.port,
            target_address: request.arrival.local_address,
            in_capsule_max: request.arrival.in_capsule_max,
            keep_alive_ms,
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
        let setup = request.queue_setup(kind, requested, ADMIN_IN_CAPSULE_MAX_BYTES);
        let mut queue = Queue::new(shared, gate, &setup);
        self.prepare_authentication(&mut queue, request.arrival.channel.as_deref(), now);
        self.insert_queue(queue, &setup)
    }

    /// Logs one notice for each address of hosts without a host NQN.
    fn notice_unnamed(&self, address: Option<IpAddr>) {
        let is_new = self.target.registry().notice_unnamed(address);
        if is_new {
            let from = address.map_or_else(|| "unknown".to_owned(), |it| it.to_string());
            tracing::warn!(
                "host at address {from}: empty host NQN: it can connect only to exports that allow \
                 any host; configure a host NQN on it"
            );
        }
    }

    /// Checks that the connection's secure channel is that of the host and the subsystem, in a slot of
    /// the configuration; `None` for discovery. A host that may generate a key for a channel begins
    /// with an admin queue that has none.
    fn check_channel(
        &self,
        request: &Request<'_>,
        subsystem: Option<u32>,
        now: Nanos,
    ) -> Result<(), ConnectRefusal> {
        let view = &self.view;
        let host_nqn = request.host_nqn;
        let settings = subsystem.and_then(|slot| view.host_authentication(slot, host_nqn));
        let concatenates =
            request.command.qid.get() == 0 && view.may_concatenate(request.arrival.port, settings);
        let connecting = Connecting {
            host_nqn,
            subsystem_nqn: request.subsystem_nqn,
            authentication: settings.map(|it| &**it),
            is_required: !concatenates
                && subsystem.is_some_and(|slot| view.needs_channel(slot, host_nqn)),
        };
        let channel = request.arrival.channel.as_deref();
        secure_channel::check(channel, &connecting, &view.revocations, now)
            .map_err(|refusal| self.refuse_channel(request, refusal, now))
    }

    /// Logs the refusal of a connection for its secure channel, not more often than failed
    /// authentications.
    fn refuse_channel(
        &self,
        request: &Request<'_>,
        refusal: ChannelRefusal<'_>,
        now: Nanos,
    ) -> ConnectRefusal {
        let records = self.target.authentication_records();
        if records.is_logged(request.host_nqn, now) {
            let address = request.arrival.peer_address;
            let address = address.map_or_else(|| "unknown".to_owned(), |it| it.to_string());
            tracing::warn!(
                "host {} at address {address}: Connect to {} refused: {}",
                request.host_nqn,
                request.subsystem_nqn,
                refusal.advice()
            );
        }
        ConnectRefusal::Status(Status::CONNECT_INVALID_HOST.with_dnr())
    }

    /// Records the secure channel of a new queue, and the use of its key.
    fn record_channel(&self, id: QueueId, arrival: &Arrival, now: Nanos) {
        let Some((queue, channel)) = self.queues.at(id.slot).zip(arrival.channel.as_ref()) else {
            return;
        };
        let records = self.target.authentication_records();
        records.add_use(&channel.owner.key, now);
        let recorded = QueueChannel {
            channel: Arc::clone(channel),
            since: now,
        };
        queue.shared.channels().insert(queue.qid, recorded);
    }

    /// The host's address, if it has to be the same as on the admin queue.
    fn bound_to(&self, request: &Request<'_>) -> Option<IpAddr> {
        let binds = self.target.limits().bind_queues && request.kind == TransportKind::Tcp;
        request.arrival.peer_address.filter(|_| binds)
    }

    /// Logs a refused I/O queue, once for each address.
    fn notice_unbound(&self, admin: IpAddr, from: Option<IpAddr>) {
        if self.target.registry().notice_unbound(from) {
            let from = from.map_or_else(|| "unknown".to_owned(), |it| it.to_string());
            tracing::warn!(
                "host at address {from}: an I/O queue is refused, because its controller's admin \
                 queue comes from {admin}: connect both from one address, or set bind_queues = \
                 false in [limits]"
            );
        }
    }

    fn connect_io(
        &mut self,
        request: &Request<'_>,
        requested: &RequestedQueue,
        now: Nanos,
    ) -> Result<(QueueId, QueueInfo), ConnectRefusal> {
        let connect = IoConnect {
            cntlid: request.cntlid,
            subsystem: requested.subsystem,
            host_nqn: request.host_nqn,
            host_id: request.host_id,
            qid: request.command.qid.get(),
            reactor: self.reactor,
            slot: requested.slot,
            has_lists: self.view.has_lists(),
            bound_to: self.bound_to(request),
            is_secure: request.arrival.channel.is_some(),
        };
        // Reset the counters of the slot for its new queue before a snapshot can find the queue
        // there.
        if let Some(counters) = self.counters.queue_slots.get(requested.slot as usize) {
            counters.reset();
        }
        let granted = self.open_registry()?.add_io(&connect);
        let grant = granted.map_err(|refusal| match refusal {
            IoRefusal::Field(field) => ConnectRefusal::Field(field),
            IoRefusal::Sequence => {
                ConnectRefusal::Status(Status::COMMAND_SEQUENCE_ERROR.with_dnr())
            }
            IoRefusal::Busy => busy(),
            IoRefusal::Address(admin) => {
                self.notice_unbound(admin, request.arrival.peer_address);
                ConnectRefusal::Status(Status::CONNECT_INVALID_HOST.with_dnr())
            }
            IoRefusal::Channel => self.refuse_channel(request, ChannelRefusal::Mixed, now),
        })?;
        let kind = QueueKind::Io { token: grant.token };
        let setup = request.queue_setup(kind, requested, request.arrival.in_capsule_max);
        let mut queue = Queue::new(grant.shared, grant.gate, &setup);
        self.prepare_authentication(&mut queue, request.arrival.channel.as_deref(), now);
        self.insert_queue(queue, &setup)
    }

    pub(super) fn insert_queue(
        &mut self,
        mut queue: Queue,
        setup: &QueueSetup,
    ) -> Result<(QueueId, QueueInfo), ConnectRefusal> {
        let account = match setup.qid {
            0 => Account::admin(queue.shared.identity.host_account),
            _ => Account::io(queue.shared.identity.host_account),
        };
        let info = QueueInfo {
            account,
            qid: setup.qid,
            depth: setup.depth,
            admin: setup.qid == 0,
            discovery: queue.shared.identity.subsystem == DISCOVERY_SLOT,
            flow_control: setup.flow_control,
            controller_id: queue.shared.identity.cntlid,
            in_capsule_max: self.in_capsule_max(&queue, setup.data),
        };
        let slot = self.queues.next_slot().ok_or_else(busy)?;
        queue.prepare_trace(slot);
        queue.adopt_view(&self.view);
        queue.set_rates(queue.find_rates(&self.view));
        let (slot, generation) = self.queues.insert(queue).ok_or_else(busy)?;
        Ok((QueueId { slot, generation }, info))
    }
}

impl TargetCore {
    /// In-capsule data that a transport has to accept on a queue: that of I/O commands, and of
    /// Fabrics commands if there may be some (TCP 1.1 §3.3.1).
    fn in_capsule_max(&self, queue: &Queue, data: DataContext) -> u32 {
        if data.keyed || !self.may_authenticate(queue) {
            return data.in_capsule_max;
        }
        data.in_capsule_max.max(ADMIN_IN_CAPSULE_MAX_BYTES)
    }
}

impl Request<'_> {
    fn queue_setup(
        &self,
        kind: QueueKind,
        requested: &RequestedQueue,
        in_capsule_max: u32,
    ) -> QueueSetup {
        QueueSetup {
            kind,
            qid: self.command.qid.get(),
            depth: requested.depth,
            slot_quota: requested.slot_quota,
            share_holder: self.share_holder,
            peer_address: self.arrival.peer_address,
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

/// No resources are available; the host may retry later.
fn busy() -> ConnectRefusal {
    ConnectRefusal::Status(Status::CONNECT_CONTROLLER_BUSY)
}
