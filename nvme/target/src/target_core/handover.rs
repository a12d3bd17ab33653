//! Hand-over of a core: export of its controllers and queues, and their restoration.

use std::sync::Arc;

use nvme_handover::{ControllerRecord, CoreRecord, DeviceTotals, QueueRecord, State, TotalsRecord};
use nvme_spec::nqn::DISCOVERY_NQN;
use reactors::Nanos;

use super::TargetCore;
use super::queue::{LOGGED_ERRORS_MAX, Queue, QueueKind, QueueSetup, QueueState};
use crate::ana::AnaRestrictions;
use crate::config::PortId;
use crate::controller::{Controller, ControllerSetup, handover as controller};
use crate::handover::{
    HandoverError, NotQuiet, RestoredConnection, UnfinishedCommands, device_name, device_place,
    transport_kind, transport_record,
};
use crate::interface::{QueueId, QueueInfo};
use crate::io::DataContext;
use crate::registry::handover::RestoredController;
use crate::shared::{ControllerIdentity, ControllerShared, DISCOVERY_SLOT, Gate};
use crate::shares::ShareHolder;

impl TargetCore {
    /// Adds the controllers and queues of this core, and its counters, to a state. The only
    /// outstanding commands of the queues are Asynchronous Event Requests. The transports hand over
    /// what they have received and not admitted yet.
    ///
    /// Nothing changes, so the core may continue.
    ///
    /// # Errors
    /// What is not complete. A later call may succeed.
    pub fn export(&self, now: Nanos, state: &mut State) -> Result<(), NotQuiet> {
        self.check_quiet()?;
        let mut controllers = Vec::with_capacity(self.controllers.len());
        for (_, controller) in self.controllers.iter() {
            controllers.push(self.controller_record(controller, now)?);
        }
        state.controllers.append(&mut controllers);
        let queues = self.queues.iter();
        let queues = queues.map(|(slot, queue)| self.queue_record(slot, queue, now));
        state.queues.extend(queues);
        state.cores.push(self.core_record());
        Ok(())
    }

    /// The number of this core's reactor.
    pub fn reactor(&self) -> usize {
        self.reactor
    }

    /// The controller and the identifier of a queue.
    pub fn queue_name(&self, queue: QueueId) -> Option<(u16, u16)> {
        let entry = self.queues.get(queue.slot, queue.generation)?;
        Some((entry.shared.identity.cntlid, entry.qid))
    }

    /// Whether a queue is an admin queue whose controller has I/O queues, on any core. They end with
    /// it.
    pub fn has_io_queues(&self, queue: QueueId) -> bool {
        let entry = self.queues.get(queue.slot, queue.generation);
        let Some(admin) = entry.filter(|it| it.qid == 0) else {
            return false;
        };
        let registry = self.target.registry();
        let controller = registry.entry(admin.shared.identity.cntlid);
        controller.is_some_and(|it| !it.io_queues.is_empty())
    }

    /// Checks that the core has nothing to do but wait for hosts.
    fn check_quiet(&self) -> Result<(), NotQuiet> {
        if self.is_closing() {
            return Err(NotQuiet::ShuttingDown);
        }
        let unfinished = self.unfinished();
        if !unfinished.is_empty() {
            return Err(NotQuiet::Commands(unfinished));
        }
        for (_, queue) in self.queues.iter() {
            if queue.state != QueueState::Live || queue.end_reason().is_some() {
                if queue.executing > 0 && queue.state == QueueState::Closed {
                    return Err(NotQuiet::Orphans(queue.executing as usize));
                }
                return Err(changes(&queue.shared));
            }
        }
        if self.executions.len() > 0 {
            return Err(NotQuiet::Orphans(self.executions.len()));
        }
        let messages: usize = self
            .inboxes
            .iter()
            .map(|inbox| inbox.completions.len() + inbox.closes.len())
            .sum();
        if messages > 0 {
            return Err(NotQuiet::Messages(messages));
        }
        let (reactor, target) = (self.reactor, &self.target);
        let is_current = target.notifications(reactor) == self.notifications_seen
            && target.exclusion_messages(reactor) == self.exclusion_messages_seen
            && target.epoch() == self.view.epoch;
        let is_idle = self.pairs.len() == 0
            && self.exclusions.len() == 0
            && self.endings.is_empty()
            && self.awaited.is_empty()
            && self.reporting.is_empty()
            && !self.has_draining;
        if is_current && is_idle {
            Ok(())
        } else {
            Err(NotQuiet::Change)
        }
    }

    /// The commands that are not complete, by queue.
    fn unfinished(&self) -> Vec<UnfinishedCommands> {
        let of_queue = |(slot, queue): (u32, &Queue)| {
            let executing = self.executions.commands_of(slot);
            let in_core = executing.len() as u32;
            let moving_data = queue.outstanding_commands.saturating_sub(in_core);
            let is_live = queue.state != QueueState::Closed;
            let has_some = is_live && (!executing.is_empty() || moving_data > 0);
            let identity = &queue.shared.identity;
            has_some.then(|| UnfinishedCommands {
                subsystem_nqn: identity.subsystem_nqn.clone(),
                host_nqn: identity.host_nqn.clone(),
                qid: queue.qid,
                executing,
                moving_data,
            })
        };
        self.queues.iter().filter_map(of_queue).collect()
    }

    fn controller_record(
        &self,
        controller: &Controller,
        now: Nanos,
    ) -> Result<ControllerRecord, NotQuiet> {
        let registry = self.target.registry();
        let entry = registry.entry(controller.shared.identity.cntlid);
        let record = entry.and_then(|entry| {
            let record = controller.export(&self.view, entry.share_holder(), now)?;
            Some(ControllerRecord {
                host_address: entry.address(),
                ..record
            })
        });
        record.ok_or_else(|| changes(&controller.shared))
    }

    fn queue_record(&self, slot: u32, queue: &Queue, now: Nanos) -> QueueRecord {
        let counters = self.counters.queue_slots.get(slot as usize);
        let inbox = &self.inboxes[usize::from(queue.transport)];
        QueueRecord {
            controller_id: queue.shared.identity.cntlid,
            qid: queue.qid,
            // Not truncated: reactors have 16-bit numbers elsewhere.
            reactor: self.reactor as u32,
            transport: transport_record(inbox.kind),
            depth: queue.depth,
            sq_head: queue.head(),
            flow_control: queue.flow_control,
            in_capsule_max_bytes: queue.data.in_capsule_max,
            log_allowance: queue.log_allowance,
            share: queue.share_holder.export(),
            totals: counters.map_or_else(TotalsRecord::default, |it| it.totals().into()),
            authentication: queue.authentication_record(now),
        }
    }

    fn core_record(&self) -> CoreRecord {
        let counters = self.counters.by_name().into_iter();
        let counters = counters.map(|(name, counter)| (name.to_owned(), counter.get()));
        let devices = self.counters.devices.iter().enumerate();
        let devices = devices.filter_map(|(place, counters)| {
            let device = device_name(&self.view, place)?;
            let totals = counters.totals().into();
            Some(DeviceTotals { device, totals })
        });
        CoreRecord {
            reactor: self.reactor as u32,
            counters: counters.collect(),
            devices: devices.collect(),
        }
    }

    /// Continues the counters of an earlier process's core. Unknown names are ignored: counters of a
    /// later version are not lost by an earlier one in any way that hosts observe.
    pub fn restore_counters(&mut self, record: &CoreRecord) {
        for (name, counter) in self.counters.by_name() {
            if let Some(value) = record.counters.get(name) {
                counter.set(*value);
            }
        }
        for DeviceTotals { device, totals } in &record.devices {
            let place = device_place(&self.view, device);
            if let Some(counters) = place.and_then(|place| self.counters.devices.get(place)) {
                counters.continue_from((*totals).into());
            }
        }
    }

    /// Adds a queue of an earlier process, whose state [`Target::restore`](crate::Target::restore)
    /// accepted. An admin queue also adds its controller, so it precedes the I/O queues. `new_tag`
    /// returns the transport's tag for an outstanding Asynchronous Event Request, or `None` if the
    /// connection has no slot left.
    ///
    /// # Errors
    /// The problem. The queue is not added then, and the transport closes its connection.
    pub fn restore_queue(
        &mut self,
        state: &State,
        record: &QueueRecord,
        connection: RestoredConnection,
        new_tag: &mut dyn FnMut() -> Option<u64>,
        now: Nanos,
    ) -> Result<(QueueId, QueueInfo), HandoverError> {
        if self.target.epoch() != self.view.epoch {
            self.handle_notifications(now);
        }
        let restored = self.try_restore(state, record, connection, new_tag, now);
        restored.map_err(|problem| HandoverError::Queue {
            controller_id: record.controller_id,
            qid: record.qid,
            problem,
        })
    }

    fn try_restore(
        &mut self,
        state: &State,
        record: &QueueRecord,
        connection: RestoredConnection,
        new_tag: &mut dyn FnMut() -> Option<u64>,
        now: Nanos,
    ) -> Result<(QueueId, QueueInfo), &'static str> {
        let mut controllers = state.controllers.iter();
        let owner = controllers.find(|it| it.controller_id == record.controller_id);
        let owner = owner.ok_or("its controller does not exist")?;
        let kind = transport_kind(record.transport);
        let inbox = self.inboxes.get(usize::from(connection.transport.0));
        if inbox.is_none_or(|inbox| inbox.kind != kind) {
            return Err("its connection is of another transport");
        }
        let slot = self.queues.next_slot().ok_or("there is no free queue")?;
        let slot_quota = Queue::slot_quota(record.qid, record.depth, controller::kind_of(owner));
        if !self.reserved.has_left(slot_quota) {
            return Err("there are too few execution slots");
        }
        let exported_at = Nanos(state.target.exported_at_ns);
        let authentication = Self::restored_authentication(record, exported_at)?;
        let share_holder = ShareHolder::restored(&owner.host_nqn, record.share);
        let (kind, shared, gate) = match record.qid {
            0 => self.restore_controller(owner, slot, new_tag, exported_at, now)?,
            qid => {
                let mut registry = self.target.registry();
                let grant = registry.restore_io(owner.controller_id, qid, self.reactor, slot)?;
                let token = grant.token;
                (QueueKind::Io { token }, grant.shared, grant.gate)
            }
        };
        let setup = QueueSetup {
            kind,
            qid: record.qid,
            depth: record.depth,
            flow_control: record.flow_control,
            transport: connection.transport.0,
            connection: connection.connection,
            data: DataContext {
                keyed: transport_kind(record.transport) == crate::TransportKind::Rdma,
                in_capsule_max: record.in_capsule_max_bytes,
            },
            slot_quota,
            share_holder,
            peer_address: owner.host_address,
        };
        let mut queue = Queue::new(shared, gate, &setup);
        match authentication {
            Some(authentication) => queue.continue_authenticated(authentication),
            // A transaction that had begun is not continued: its host begins a new one.
            None => self.prepare_authentication(&mut queue, None, now),
        }
        queue.continue_from(record.sq_head, record.log_allowance);
        if queue.log_allowance < LOGGED_ERRORS_MAX && self.log_refill_at.is_none() {
            self.log_refill_at = Some(now + super::LOG_REFILL_INTERVAL);
        }
        if let Some(counters) = self.counters.queue_slots.get(slot as usize) {
            counters.continue_from(record.totals.into());
        }
        let inserted = self.insert_queue(queue, &setup);
        let inserted = inserted.map_err(|_| "there is no free queue")?;
        self.watch_authentication(slot);
        self.reserved.take(&share_holder, slot_quota);
        self.counters.queues.set(self.queues.len() as u64);
        Ok(inserted)
    }

    /// Adds the controller of an admin queue in `slot`.
    fn restore_controller(
        &mut self,
        record: &ControllerRecord,
        slot: u32,
        new_tag: &mut dyn FnMut() -> Option<u64>,
        exported_at: Nanos,
        now: Nanos,
    ) -> Result<(QueueKind, Arc<ControllerShared>, Gate), &'static str> {
        controller::check(record)?;
        let port = PortId(record.port);
        let (subsystem, ana) = if record.subsystem_nqn == DISCOVERY_NQN {
            (DISCOVERY_SLOT, AnaRestrictions::default())
        } else {
            let found = self.view.find(&record.subsystem_nqn);
            let (subsystem, view) = found.ok_or("its subsystem does not exist")?;
            let is_secure = view.config.secure_hosts.contains(&record.host_nqn);
            if !view.allows(&record.host_nqn) || !view.is_at(port) || is_secure {
                return Err("its host may not connect to its subsystem");
            }
            (subsystem, view.ana_restrictions(port))
        };
        if !self.controllers.has_room() {
            return Err("there is no room for its controller");
        }
        let queue = self.queue_id(slot);
        let restored = RestoredController {
            identity: ControllerIdentity {
                cntlid: record.controller_id,
                subsystem,
                subsystem_nqn: record.subsystem_nqn.clone(),
                host_nqn: record.host_nqn.clone(),
                host_id: record.host_id,
                host_account: 0,
                admin_reactor: self.reactor,
                port,
                queue_depth_max: record.queue_depth_max,
                keep_alive_ms: record.features.keep_alive_ms,
                is_secure: false,
            },
            share_holder: ShareHolder::restored(&record.host_nqn, record.share),
            address: record.host_address,
            admin_slot: slot,
            ana,
        };
        let shared = self.target.registry().restore(restored);
        let shared = shared.ok_or("its controller exists already")?;
        let setup = ControllerSetup {
            kind: controller::kind_of(record),
            queue,
            transport: transport_kind(record.transport),
            port,
            target_address: record.target_address,
            in_capsule_max: record.in_capsule_max_bytes,
            keep_alive_ms: record.features.keep_alive_ms,
            view: Arc::clone(&self.view),
            now,
        };
        let mut controller = Controller::new(Arc::clone(&shared), setup);
        if let Err(problem) = controller.restore(record, new_tag, exported_at, now) {
            self.target.registry().remove_admin(record.controller_id);
            return Err(problem);
        }
        let Some((controller, _)) = self.controllers.insert(controller) else {
            self.target.registry().remove_admin(record.controller_id);
            return Err("there is no room for its controller");
        };
        self.set_timer(controller);
        let gate = shared.gate();
        Ok((QueueKind::Admin { controller }, shared, gate))
    }
}

/// The reason for a controller or queue that changes its state or ends.
fn changes(shared: &ControllerShared) -> NotQuiet {
    NotQuiet::Controller {
        controller_id: shared.identity.cntlid,
        host_nqn: shared.identity.host_nqn.clone(),
    }
}
