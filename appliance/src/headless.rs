//! An appliance without threads, sockets or a real clock, for simulation. Configuration, devices,
//! target and changes use the code of the appliance itself.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

use appliance_config::{AnaState, Config, Listener, Name};
use block::{CopyProgress, Device, ReactorDevices};
use hugemem::{Arena, Region};
use nvme_target::{DeviceIndex, PortId, Target, TargetCore};
use nvme_tcp::SharedTlsKeys;
use reactors::ring::Receiver;
use reactors::{Poller, ReactorHandle};

use crate::control;
use crate::copies::{self, Copies};
use crate::devices::{Devices, DriveNamespace};
use crate::error::{Failure, with_causes};
use crate::exports::{self, Ports};
use crate::fabrics::{ControlMessage, TargetPollerParts};
use crate::keys::Keys;
use crate::messages::MessageRings;
use crate::observe::model::{AnaRequest, ApplyAnswer, StepState};
use crate::operator_states::OperatorStates;
use crate::reactor_setup::DrainedDevices;
use crate::reconciler::{ApplyOptions, Reconciler, Started};
use crate::reservation_files::ReservationFiles;
use crate::revoked_keys::RevokedKeys;
use crate::running::Running;

pub use crate::copies::CopyWanted;
pub use crate::devices::{DeviceOperations, Opened, Opener};
pub use crate::event_loop::EventLoop;
pub use crate::identities::{Content, Identities};
pub use crate::messages::{NoResponse, PendingResponses, PortMessages};
pub use crate::transports::Listening;

/// The inputs of an appliance.
pub struct Parts {
    /// The configuration. Its listeners are bound to exactly the addresses in it.
    pub config: Config,
    /// The number of reactors.
    pub reactors: usize,
    /// The namespaces of drives, with the index of their device in the configuration.
    pub drives: Vec<(usize, Arc<dyn Device>)>,
    /// Opens the other devices, at start and later.
    pub opener: Box<dyn Opener>,
    /// The identities with the record of served contents.
    pub identities: Identities,
    /// The largest transfer of a command, bytes.
    pub transfer_max: usize,
    /// Requests in a reactor's queue of one device.
    pub queue_depth: usize,
    /// The parts of an earlier process that this one continues.
    pub continued: Option<Continued>,
}

/// What a new process continues with, beside devices, sockets and the state of hosts
/// (`ARCHITECTURE.md` §9.1).
#[derive(Clone)]
pub struct Continued {
    ports: Ports,
    operator_states: OperatorStates,
}

impl Continued {
    /// The listeners of `config` with the numbers by which hosts' controllers know them.
    #[must_use]
    pub fn listeners(&self, config: &Config) -> Vec<(PortId, Listener)> {
        let numbered = self.ports.of(config).into_iter();
        numbered.map(|(port, it)| (port, it.clone())).collect()
    }
}

/// An appliance whose reactors have not started.
pub struct HeadlessAppliance {
    /// The transports are added by [`begin`](Self::begin).
    started: Started,
    parts: Vec<ReactorPart>,
}

impl HeadlessAppliance {
    /// Opens the devices, and creates the target for the configuration.
    ///
    /// # Errors
    /// A description of the resource that is not available.
    pub fn new(parts: Parts) -> Result<Self, String> {
        let Parts {
            config,
            reactors,
            drives,
            opener,
            identities,
            transfer_max,
            queue_depth,
            continued,
        } = parts;
        let failed = |error: Failure| with_causes(error.as_ref());
        let drives = drives.into_iter().map(|(place, device)| DriveNamespace {
            place,
            device,
            content: Content::Lasting(format!("drive {}", config.devices[place].name)),
        });
        let devices = Devices::open(&config, opener.as_ref(), drives.collect(), identities);
        let devices = devices.map_err(failed)?;
        let (ports, states) = match continued {
            None => {
                let addresses = config.listeners.iter().map(|it| it.address.socket_addr());
                let ports = Ports::new(&config, &addresses.collect::<Vec<SocketAddr>>());
                (ports, OperatorStates::default())
            }
            Some(continued) => (continued.ports, continued.operator_states),
        };
        let keys =
            Keys::load(&config, RevokedKeys::default()).map_err(|error| with_causes(&error))?;
        let served =
            exports::target_config(&config, &devices, &ports, &keys, &states, transfer_max);
        let target = Target::new(served, reactors, devices.in_order());
        let target = target.map_err(|error| with_causes(&error))?;
        let limited = target.set_rate_limits(exports::rate_limits(&config, &devices));
        limited.map_err(|error| with_causes(&error))?;
        let paced = target.set_pacing(&exports::pacing(&config, &devices));
        paced.map_err(|error| with_causes(&error))?;
        let (control_queues, messages) = MessageRings::new(reactors);
        let undrained = Arc::new(AtomicUsize::new(reactors));
        let copies = Arc::new(Copies::new(reactors));
        let parts = messages.into_iter().enumerate();
        Ok(Self {
            started: Started {
                config,
                opener,
                target,
                devices,
                reservation_files: ReservationFiles::default(),
                ports,
                keys,
                tls_keys: SharedTlsKeys::default(),
                transports: Vec::new(),
                arena: None,
                control_queues,
                operator_states: states,
                files: None,
                copies: Arc::clone(&copies),
            },
            parts: parts
                .map(|(reactor, messages)| ReactorPart {
                    reactor,
                    messages,
                    queue_depth,
                    undrained: Arc::clone(&undrained),
                    copies: Arc::clone(&copies),
                })
                .collect(),
        })
    }

    /// The target.
    #[must_use]
    pub fn target(&self) -> &Arc<Target> {
        &self.started.target
    }

    /// All memory that holds data: that of `arena` and of RAM devices.
    #[must_use]
    pub fn regions<'a>(&'a self, arena: &'a Arena) -> Vec<&'a Region> {
        self.started.devices.regions(arena)
    }

    /// The part of each reactor; empty after the first call.
    pub fn take_reactor_parts(&mut self) -> Vec<ReactorPart> {
        std::mem::take(&mut self.parts)
    }

    /// Starts the control of the reactors; from now on the configuration can change.
    #[must_use]
    pub fn begin(self, transports: Vec<Arc<dyn Listening>>, handles: &[ReactorHandle]) -> Control {
        let started = Started {
            transports,
            ..self.started
        };
        started.copies.set_wakers(handles);
        Control {
            copies: Arc::clone(&started.copies),
            reconciler: Reconciler::new(started, handles),
        }
    }
}

/// The part of one reactor.
pub struct ReactorPart {
    reactor: usize,
    messages: Receiver<ControlMessage>,
    queue_depth: usize,
    undrained: Arc<AtomicUsize>,
    copies: Arc<Copies>,
}

impl ReactorPart {
    /// Creates the pollers: one polls the devices and their clients, one passes control messages to
    /// the core; both drain when the reactor stops. `arena` gives memory to copies of devices, and to
    /// the queues of devices, of which `requests_max` requests may wait for it. Register them after the
    /// transports.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn pollers(
        self,
        core: Rc<RefCell<TargetCore>>,
        arena: &Arc<Arena>,
        requests_max: usize,
    ) -> io::Result<[Box<dyn Poller>; 2]> {
        let devices = ReactorDevices::new(Rc::clone(core.borrow().devices()));
        let poller_parts = TargetPollerParts {
            messages: self.messages,
            pool: arena.pool(requests_max),
            reactor: self.reactor,
            queue_depth: self.queue_depth,
        };
        let target = poller_parts.poller(core, devices.clone());
        let attached = self.copies.attach(self.reactor, &devices, arena);
        attached.map_err(io::Error::other)?;
        let devices = DrainedDevices::new(devices, self.undrained)?;
        Ok([target, Box::new(devices)])
    }
}

/// The control thread's part of a running appliance.
pub struct Control {
    reconciler: Reconciler,
    copies: Arc<Copies>,
}

/// The part of the control plane that follows and aborts copies of devices, also while the
/// configuration changes.
#[derive(Clone)]
pub struct CopyOperator(Arc<Copies>);

impl CopyOperator {
    /// The progress of a copy, if it is remembered.
    #[must_use]
    pub fn progress(&self, number: u32) -> Option<Arc<CopyProgress>> {
        self.0.progress(number)
    }

    /// Aborts a copy, as `windlass copy --abort` does.
    ///
    /// # Errors
    /// There is no such copy, or it has ended.
    pub fn abort(&self, number: u32) -> Result<(), String> {
        self.0.abort(number).map_err(|refusal| refusal.to_string())
    }
}

/// The part of the control plane that sets ANA states, also while the configuration changes.
pub struct AnaOperator {
    running: Running,
    target: Arc<Target>,
}

impl AnaOperator {
    /// Sets the state of a group of an export at a listener, as `windlass ana set` does. The
    /// receiver is disconnected when the earlier commands of hosts that lost access have ended.
    ///
    /// # Errors
    /// The reason why nothing is changed, such as a path that does not exist.
    pub fn set(
        &self,
        export: &str,
        listener: &str,
        group: u32,
        state: AnaState,
    ) -> Result<mpsc::Receiver<()>, String> {
        let request = AnaRequest {
            export: export.to_owned(),
            listener: Some(listener.to_owned()),
            group: Some(group),
            state: state.into(),
        };
        let setting = control::ana::change(&request, &self.running, &self.target);
        setting.map(|it| it.done).map_err(|(_, reason)| reason)
    }
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the whole configuration is applied.
    pub is_applied: bool,
    /// Descriptions of the completed steps.
    pub done: Vec<String>,
    /// The reason, if not every step was completed.
    pub failure_reason: Option<String>,
    /// Commands that were aborted at the deadline.
    pub cut_off: usize,
}

impl From<ApplyAnswer> for Outcome {
    fn from(response: ApplyAnswer) -> Self {
        let done = response
            .steps
            .iter()
            .filter(|it| it.state == StepState::Done);
        let cut_off = response.steps.iter().flat_map(|it| &it.cut_off);
        Self {
            is_applied: response.applied,
            done: done.map(|it| it.text.clone()).collect(),
            cut_off: cut_off.map(|it| it.commands).sum(),
            failure_reason: response.failure_reason(),
        }
    }
}

impl Control {
    /// Applies the configuration `wanted`, as `windlass apply` does.
    pub fn apply(&mut self, wanted: &Config, event_loop: &mut dyn EventLoop) -> Outcome {
        self.reconciler
            .apply(wanted, ApplyOptions::default(), event_loop)
            .into()
    }

    /// The part of the control plane that sets ANA states.
    #[must_use]
    pub fn ana_operator(&self) -> AnaOperator {
        AnaOperator {
            running: self.reconciler.running(),
            target: Arc::clone(self.reconciler.target()),
        }
    }

    /// What a new process continues with.
    #[must_use]
    pub fn continued(&self) -> Continued {
        let running = self.reconciler.running();
        let operator_states = running.operator_states.lock().clone();
        Continued {
            ports: Ports::clone(&running.ports.load()),
            operator_states,
        }
    }

    /// Notifies hosts of changes of the devices, as the control thread does in every iteration.
    pub fn poll(&mut self) {
        self.reconciler.poll();
        self.copies.report_ended(self.reconciler.devices());
    }

    /// Begins a copy of a device to another, as `windlass copy` does. Returns its number.
    ///
    /// # Errors
    /// Why it does not begin; nothing was changed.
    pub fn copy(&mut self, wanted: &CopyWanted) -> Result<u32, String> {
        let devices = self.reconciler.devices();
        let checked = copies::check(wanted, self.config(), devices, &self.copies);
        let started = checked.and_then(|checked| self.copies.start(checked));
        started.map_err(|refusal| refusal.to_string())
    }

    /// The part of the control plane that follows and aborts copies.
    #[must_use]
    pub fn copy_operator(&self) -> CopyOperator {
        CopyOperator(Arc::clone(&self.copies))
    }

    /// The running configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.reconciler.config()
    }

    /// The index of a device in the target, if it has one.
    #[must_use]
    pub fn place_of(&self, device: &Name) -> Option<DeviceIndex> {
        self.reconciler
            .devices()
            .get(device)
            .map(|(place, _)| place)
    }
}
