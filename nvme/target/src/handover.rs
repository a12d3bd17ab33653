//! Hand-over of a target to a new process (`ARCHITECTURE.md` §9.1): export of a quiet target to plain
//! data, and its restoration.
//!
//! An export changes nothing, so the target continues if the new process fails. A restored target
//! starts without queues: [`Target::restore`] sets what all cores share, and
//! [`TargetCore::restore_queue`](crate::TargetCore::restore_queue) adds each queue together with its
//! connection, admin queues first. A controller exists from its admin queue on, so a controller
//! whose connection is not handed over does not exist in the new process, and its host reconnects.
//!
//! Hosts keep what they have read about subsystems, so the new process must have the same ones. The
//! configuration changes before or after a hand-over, not by it.

use std::collections::{BTreeMap, BTreeSet};

use nvme_handover::{
    AnaRecord, ControllerRecord, MaskedRecord, NamespaceRecord, PortRecord, QueueRecord, State,
    SubsystemRecord, TargetRecord, TransportRecord,
};
use nvme_spec::nqn::DISCOVERY_NQN;
use reactors::Nanos;

use crate::ana::AnaState;
use crate::config::{DEVICES_MAX, MaskedAccess, PortConfig, PortId, PortSecurity, TransportKind};
use crate::controller::handover as controller;
use crate::interface::TransportId;
use crate::target::Target;
use crate::view::{SubsystemView, TargetView};

/// Most in-capsule data of a command, in bytes, that a record may state.
pub(crate) const IN_CAPSULE_MAX_BYTES: u32 = 1 << 20;

/// Commands of one queue that are not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfinishedCommands {
    /// The subsystem.
    pub subsystem_nqn: String,
    /// The host that waits for the responses.
    pub host_nqn: String,
    /// The queue's identifier.
    pub qid: u16,
    /// Identifier and opcode of each command in execution.
    pub executing: Vec<(u16, u8)>,
    /// Number of commands whose data the transport moves.
    pub moving_data: u32,
}

/// The reason for which a target cannot be exported now. It may be possible later.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotQuiet {
    /// Commands are not complete.
    #[error("commands are not complete: {}", list(.0))]
    Commands(Vec<UnfinishedCommands>),
    /// Devices have requests of queues that have ended.
    #[error("devices have {0} requests of connections that have ended")]
    Orphans(usize),
    /// The transports have not taken completions or requests to close connections.
    #[error("transports have {0} responses or requests to close a connection to take")]
    Messages(usize),
    /// A queue or a controller changes its state or ends.
    #[error("controller {controller_id} of host {host_nqn} changes its state or ends")]
    Controller {
        /// Its identifier.
        controller_id: u16,
        /// Its host.
        host_nqn: String,
    },
    /// A change of the configuration, of reservations or of ANA states is not complete.
    #[error("a change of the configuration, of reservations or of ANA states is not complete")]
    Change,
    /// The target shuts down.
    #[error("the target shuts down")]
    ShuttingDown,
}

fn list(queues: &[UnfinishedCommands]) -> String {
    let one = |queue: &UnfinishedCommands| {
        let executing = queue.executing.iter();
        let mut commands: Vec<_> = executing
            .map(|(id, opcode)| format!("command {id} (opcode {opcode:02x}h)"))
            .collect();
        if queue.moving_data > 0 {
            commands.push(format!("{} that wait for data", queue.moving_data));
        }
        let commands = commands.join(", ");
        format!("host {}, queue {}: {commands}", queue.host_nqn, queue.qid)
    };
    queues.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// The reason for which a state cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandoverError {
    /// The new target has fewer reactors.
    #[error("reactor {reactor} has queues, but there are only {reactors}: configure as many")]
    Reactors {
        /// A reactor of the state.
        reactor: u32,
        /// Number of reactors.
        reactors: usize,
    },
    /// The maximum transfer is smaller.
    #[error("the maximum transfer is {found} bytes, but hosts know {known}: configure as much")]
    Transfer {
        /// The maximum transfer of the new target.
        found: u32,
        /// The maximum transfer that hosts know.
        known: u32,
    },
    /// A subsystem differs from what hosts know.
    #[error(
        "subsystem {nqn}: {what} differ from what its hosts know: hand over first, then change"
    )]
    Subsystem {
        /// Its name.
        nqn: String,
        /// What differs.
        what: &'static str,
    },
    /// The ports of the discovery log differ.
    #[error("the listeners differ from those that hosts know: hand over first, then change them")]
    Ports,
    /// The reservations of a device cannot be restored.
    #[error("device {device}: its reservations cannot be continued: {problem}")]
    Reservations {
        /// The device's name.
        device: String,
        /// The problem.
        problem: String,
    },
    /// A record of a controller is invalid, or the controller cannot be added.
    #[error("controller {controller_id}: {problem}")]
    Controller {
        /// Its identifier.
        controller_id: u16,
        /// The problem.
        problem: &'static str,
    },
    /// A record of a queue is invalid, or the queue cannot be added.
    #[error("queue {qid} of controller {controller_id}: {problem}")]
    Queue {
        /// Its controller.
        controller_id: u16,
        /// Its identifier.
        qid: u16,
        /// The problem.
        problem: &'static str,
    },
}

/// The connection of a restored queue.
#[derive(Clone, Copy, Debug)]
pub struct RestoredConnection {
    /// The transport.
    pub transport: TransportId,
    /// The transport's own token, returned in [`Close`](crate::Close).
    pub connection: u32,
}

pub(crate) fn transport_record(kind: TransportKind) -> TransportRecord {
    match kind {
        TransportKind::Tcp => TransportRecord::Tcp,
        TransportKind::Rdma => TransportRecord::Rdma,
    }
}

pub(crate) fn transport_kind(record: TransportRecord) -> TransportKind {
    match record {
        TransportRecord::Tcp => TransportKind::Tcp,
        TransportRecord::Rdma => TransportKind::Rdma,
    }
}

/// The name of the device with an index.
pub(crate) fn device_name(view: &TargetView, place: usize) -> Option<String> {
    view.device(place).map(|device| device.name().to_owned())
}

/// The index of the device with a name.
pub(crate) fn device_place(view: &TargetView, name: &str) -> Option<usize> {
    (0..view.devices.len()).find(|place| view.device(*place).is_some_and(|it| it.name() == name))
}

fn port_record(port: &PortConfig) -> PortRecord {
    PortRecord {
        id: port.id.0,
        transport: transport_record(port.transport),
        address: port.address.clone(),
        service: port.service.clone(),
        ipv6: port.ipv6,
        secure: port.security != PortSecurity::None,
    }
}

/// What hosts know about a subsystem. Not its firmware revision, which a new version changes.
fn subsystem_record(subsystem: &SubsystemView, view: &TargetView) -> SubsystemRecord {
    let config = &subsystem.config;
    let mut namespaces: Vec<_> = config
        .namespaces
        .iter()
        .map(|it| NamespaceRecord {
            nsid: it.nsid,
            device: device_name(view, usize::from(it.device.0)).unwrap_or_default(),
            block_bytes: it.geometry.block_size,
            block_count: it.geometry.block_count,
            uuid: it.uuid,
            nguid: it.nguid,
            eui64: it.eui64,
            read_only: it.read_only || it.geometry.read_only,
            ana_group: it.ana_group,
            reservations: it.reservations,
        })
        .collect();
    namespaces.sort_by_key(|it| it.nsid);
    let mut ports: Vec<_> = config.ports.iter().map(|port| port.0).collect();
    ports.sort_unstable();
    let ana_states = config.ana_states.iter().map(|(path, state)| AnaRecord {
        port: path.port.0,
        group: path.group,
        state: state.name().to_owned(),
    });
    let mut masks = BTreeMap::new();
    for mask in &config.masks {
        let seen = mask.namespaces.iter().map(|(nsid, access)| MaskedRecord {
            nsid: *nsid,
            read_only: *access == MaskedAccess::ReadOnly,
        });
        let seen: Vec<_> = seen.collect();
        let hosts = mask.hosts.iter();
        masks.extend(hosts.map(|host| (host.clone(), seen.clone())));
    }
    SubsystemRecord {
        nqn: config.nqn.clone(),
        serial: config.serial.clone(),
        model: config.model.clone(),
        namespaces,
        ports,
        ana_states: ana_states.collect(),
        masks,
    }
}

/// What differs between two records of a subsystem, if anything.
fn difference(known: &SubsystemRecord, found: &SubsystemRecord) -> Option<&'static str> {
    let identity = |it: &SubsystemRecord| (it.serial.clone(), it.model.clone());
    // An operator may have set the state that groups have by default.
    let is_default = |it: &&AnaRecord| it.state == AnaState::default().name();
    let ana_states = |it: &SubsystemRecord| -> Vec<AnaRecord> {
        let all = it.ana_states.iter();
        all.filter(|it| !is_default(it)).cloned().collect()
    };
    if identity(known) != identity(found) {
        Some("serial or model number")
    } else if known.namespaces != found.namespaces {
        Some("namespaces")
    } else if known.ports != found.ports {
        Some("listeners")
    } else if ana_states(known) != ana_states(found) {
        Some("ANA states")
    } else if known.masks != found.masks {
        Some("masks")
    } else {
        None
    }
}

impl Target {
    /// The part of the state that all cores share. Each core adds its own part with
    /// [`TargetCore::export`](crate::TargetCore::export) meanwhile no other thread may change the
    /// target.
    ///
    /// # Errors
    /// A change is not complete.
    pub fn export(&self, now: Nanos) -> Result<TargetRecord, NotQuiet> {
        let mut registry = self.registry();
        if registry.closed || self.is_shutting_down() {
            return Err(NotQuiet::ShuttingDown);
        }
        let view = self.published();
        let subsystems = || view.subsystems.iter().flatten();
        if subsystems().any(|it| it.draining) || !registry.ana_transitions.is_idle() {
            return Err(NotQuiet::Change);
        }
        let next_controller_ids = registry.next_controller_ids().clone();
        let (table, _) = registry.reservations();
        let reservations = table.export(|place| device_name(&view, usize::from(place)))?;
        Ok(TargetRecord {
            // Not truncated: reactors have 16-bit numbers elsewhere.
            reactors: self.reactors() as u32,
            exported_at_ns: now.as_nanos(),
            transfer_max_bytes: self.transfer_max_bytes(),
            discovery_generation: view.generation,
            next_controller_ids,
            subsystems: subsystems().map(|it| subsystem_record(it, &view)).collect(),
            ports: view.ports.iter().map(port_record).collect(),
            reservations,
        })
    }

    /// Checks whether this target, which has no controllers, can continue a state. A process checks
    /// it before the other one stops.
    ///
    /// # Errors
    /// The first problem.
    pub fn check_handover(&self, state: &State) -> Result<(), HandoverError> {
        let view = self.published();
        self.check_subsystems(&state.target, &view)?;
        {
            let mut registry = self.registry();
            let (table, _) = registry.reservations();
            for record in &state.target.reservations {
                table.check(reserved_device(&view, &record.device)?, record)?;
            }
        }
        check_controllers(state, &view)?;
        let reactors = self.reactors();
        let queues = state.queues.iter().map(|it| it.reactor);
        let mut used = queues.chain(state.cores.iter().map(|it| it.reactor));
        match used.find(|reactor| *reactor as usize >= reactors) {
            Some(reactor) => Err(HandoverError::Reactors { reactor, reactors }),
            None => Ok(()),
        }
    }

    fn check_subsystems(
        &self,
        target: &TargetRecord,
        view: &TargetView,
    ) -> Result<(), HandoverError> {
        let (found, known) = (self.transfer_max_bytes(), target.transfer_max_bytes);
        if found < known {
            return Err(HandoverError::Transfer { found, known });
        }
        let ports: Vec<_> = view.ports.iter().map(port_record).collect();
        if ports != target.ports {
            return Err(HandoverError::Ports);
        }
        let mut names = BTreeSet::new();
        for known in &target.subsystems {
            let differs = |what| HandoverError::Subsystem {
                nqn: known.nqn.clone(),
                what,
            };
            if !names.insert(&known.nqn) {
                return Err(differs("two records"));
            }
            let Some((_, found)) = view.find(&known.nqn) else {
                return Err(differs("all properties"));
            };
            if let Some(what) = difference(known, &subsystem_record(found, view)) {
                return Err(differs(what));
            }
        }
        let mut all = view.subsystems.iter().flatten();
        match all.find(|it| !names.contains(&it.config.nqn)) {
            // It is in the discovery log.
            Some(added) => Err(HandoverError::Subsystem {
                nqn: added.config.nqn.clone(),
                what: "all properties",
            }),
            None => Ok(()),
        }
    }

    /// Continues what all cores share. The target must have no controllers.
    ///
    /// # Errors
    /// [`check_handover`](Self::check_handover); nothing changes then.
    pub fn restore(&self, state: &State) -> Result<(), HandoverError> {
        self.check_handover(state)?;
        {
            let mut registry = self.registry();
            let view = self.published();
            registry.continue_controller_ids(&state.target.next_controller_ids);
            let (table, controllers) = registry.reservations();
            for record in &state.target.reservations {
                let device = reserved_device(&view, &record.device)?;
                table.restore(device, record, controllers)?;
            }
            let mut view = TargetView::clone(&view);
            let known = state.target.subsystems.iter().map(|it| &it.nqn);
            let order = view.subsystems.iter().flatten().map(|it| &it.config.nqn);
            // A host that reads the discovery log in parts has to read it again.
            let is_reordered = u64::from(!known.eq(order));
            view.generation = state.target.discovery_generation + is_reordered;
            self.publish_next(view);
        }
        self.notify_all();
        Ok(())
    }
}

const _: () = assert!(DEVICES_MAX <= u8::MAX as usize);

/// The index of a device with recorded reservations.
fn reserved_device(view: &TargetView, name: &str) -> Result<u8, HandoverError> {
    let place = device_place(view, name).and_then(|place| u8::try_from(place).ok());
    place.ok_or_else(|| HandoverError::Reservations {
        device: name.to_owned(),
        problem: "the device does not exist".to_owned(),
    })
}

/// Checks the records of controllers and queues.
fn check_controllers(state: &State, view: &TargetView) -> Result<(), HandoverError> {
    let mut controllers = BTreeMap::new();
    for record in &state.controllers {
        let controller_id = record.controller_id;
        let refused = |problem| HandoverError::Controller {
            controller_id,
            problem,
        };
        check_controller(record, view).map_err(refused)?;
        if controllers.insert(controller_id, record).is_some() {
            return Err(refused("its identifier is used twice"));
        }
    }
    let mut queues = BTreeSet::new();
    for record in &state.queues {
        let (controller_id, qid) = (record.controller_id, record.qid);
        let refused = |problem| HandoverError::Queue {
            controller_id,
            qid,
            problem,
        };
        if !queues.insert((controller_id, qid)) {
            return Err(refused("its identifier is used twice"));
        }
        let owner = controllers.get(&controller_id);
        let owner = owner.ok_or(refused("its controller does not exist"))?;
        check_queue(record, owner).map_err(refused)?;
    }
    let mut ids = controllers.keys();
    match ids.find(|id| !queues.contains(&(**id, 0))) {
        Some(controller_id) => Err(HandoverError::Controller {
            controller_id: *controller_id,
            problem: "it has no admin queue",
        }),
        None => Ok(()),
    }
}

fn check_controller(record: &ControllerRecord, view: &TargetView) -> Result<(), &'static str> {
    controller::check(record)?;
    if record.subsystem_nqn == DISCOVERY_NQN {
        return Ok(());
    }
    let found = view.find(&record.subsystem_nqn);
    let (_, subsystem) = found.ok_or("its subsystem does not exist")?;
    if !subsystem
        .config
        .controller_ids
        .contains(&record.controller_id)
    {
        return Err("its identifier is not one of its subsystem");
    }
    if !subsystem.allows(&record.host_nqn) || !subsystem.is_at(PortId(record.port)) {
        return Err("its host may not connect to its subsystem");
    }
    Ok(())
}

fn check_queue(record: &QueueRecord, owner: &ControllerRecord) -> Result<(), &'static str> {
    let depth_max = match record.qid {
        0 => transport_kind(record.transport).admin_queue_depth_max(),
        _ => owner.queue_depth_max,
    };
    if !(2..=depth_max).contains(&record.depth) {
        return Err("its size is invalid");
    }
    if record.sq_head >= record.depth || (!record.flow_control && record.sq_head != 0) {
        return Err("its head is invalid");
    }
    if record.in_capsule_max_bytes > IN_CAPSULE_MAX_BYTES {
        return Err("its commands may carry too much data");
    }
    if record.qid > owner.io_queues_granted {
        return Err("it is not one of those that were granted");
    }
    Ok(())
}
