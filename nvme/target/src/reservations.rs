//! The reservations of every device, and the commands that change them.
//!
//! Control path only. The registry owns the table, so its lock orders changes of reservations among
//! themselves and against controllers. Namespaces of several subsystems may have the same device;
//! its reservations apply to all of them.
//!
//! The commands of a device take effect one after another. A command waits while a state is being
//! stored, and a preempt waits until no command of the preempted hosts is left; commands that follow
//! wait for it. Cores and operators receive results as messages.

mod handover;
pub(crate) mod notices;
pub(crate) mod restrictions;
mod snapshot;
mod store;
pub(crate) mod work;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc::Sender;

use nvme_reservations::{HostIdentifier, Outcome, PersistenceSupport, Reservations, encode};
use nvme_spec::Status;
use nvme_spec::command::reservation::{
    AcquireControl, AcquireData, RegisterControl, RegisterData, ReleaseControl,
};

use crate::config::DeviceIndex;
use crate::registry::ControllerEntry;
use crate::shared::ControllerShared;
use crate::status::{Fault, byte};
use crate::view::TargetView;
use restrictions::DeviceAccess;
pub use snapshot::{RegistrantSnapshot, ReservationSnapshot};
pub use store::{InitialReservations, ReservationStore, StoreRequest};

/// All controllers, by their identifiers.
type Controllers = BTreeMap<u16, ControllerEntry>;

/// The reason for which a change by an operator failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservationError {
    /// The changed state could not be stored.
    #[error("the changed state could not be stored")]
    NotStored,
    /// The device was removed meanwhile.
    #[error("the device was removed")]
    DeviceRemoved,
    /// The reservations of the device are not known.
    #[error("the stored reservations are damaged, so only clearing them is possible")]
    Unknown,
}

/// A change of the reservations of one device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReservationCommand {
    Register {
        control: RegisterControl,
        data: RegisterData,
    },
    Acquire {
        control: AcquireControl,
        data: AcquireData,
    },
    Release {
        control: ReleaseControl,
        current_key: u64,
    },
    /// Reservation Persistence (Base 2.1 §5.1.25.1.30).
    SetPersistence(bool),
    /// An operator unregisters the host.
    Evict,
    /// An operator unregisters all hosts. Also resets a state that is not known.
    Clear,
}

/// A change of Reservation Persistence for devices, one bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PersistenceChange {
    pub(crate) devices: u128,
    pub(crate) persists: bool,
}

impl ReservationCommand {
    fn apply(self, state: &mut Reservations, host: HostIdentifier) -> Result<Outcome, Status> {
        match self {
            Self::Register { control, data } => state.register(host, control, &data),
            Self::Acquire { control, data } => state.acquire(host, control, &data),
            Self::Release {
                control,
                current_key,
            } => state.release(host, control, current_key),
            Self::SetPersistence(persists) => state.set_persistence(persists),
            Self::Evict => Ok(state.evict(host)),
            Self::Clear => Ok(state.evict_all()),
        }
    }
}

/// The receiver of a command's result.
#[derive(Debug)]
pub(crate) enum Requester {
    /// The execution with this tag on this reactor.
    Core { reactor: usize, tag: u64 },
    /// An operator, who may have stopped waiting.
    Operator(Sender<Result<(), ReservationError>>),
}

/// A command of a host, or of an operator about a host.
#[derive(Debug)]
pub(crate) struct ReservationRequest {
    pub(crate) requester: Requester,
    pub(crate) host: HostIdentifier,
    pub(crate) command: ReservationCommand,
}

/// Progress of the command that is changing the reservations of a device.
#[derive(Debug)]
enum Progress {
    /// No command is changing them.
    Idle,
    /// The staged state is being stored. Ends with [`ReservationTable::stored`].
    Storing {
        number: u64,
        requester: Requester,
        outcome: Outcome,
    },
    /// Commands of preempted hosts are being ended. Ends when the last of these reactors has
    /// reported that it has none, with [`ReservationTable::ended`].
    Ending {
        requester: Requester,
        hosts: Vec<HostIdentifier>,
        reactors: BTreeSet<usize>,
    },
}

/// The reservations of one device.
#[derive(Debug)]
struct DeviceReservations {
    current: Reservations,
    staged: Reservations,
    /// Whether hosts are refused because the stored state is damaged.
    is_unknown: bool,
    /// The name of the stored state, if the device can have one.
    identity: Option<nvme_reservations::NamespaceIdentity>,
    progress: Progress,
    waiting: VecDeque<ReservationRequest>,
}

impl DeviceReservations {
    fn new(initial: InitialReservations) -> Self {
        let (current, identity, is_unknown) = match initial {
            InitialReservations::Volatile => (
                Reservations::new(PersistenceSupport::Unsupported),
                None,
                false,
            ),
            InitialReservations::Persistent { identity, state } => (state, Some(identity), false),
            InitialReservations::Unknown { identity } => (
                Reservations::new(PersistenceSupport::Supported),
                Some(identity),
                true,
            ),
        };
        Self {
            staged: current.clone(),
            current,
            is_unknown,
            identity,
            progress: Progress::Idle,
            waiting: VecDeque::new(),
        }
    }

    fn access(&self, host: HostIdentifier) -> DeviceAccess {
        match self.is_unknown {
            true => DeviceAccess::Unknown,
            false => DeviceAccess::Allowed(self.current.permissions(host)),
        }
    }

    /// Applies a command to the staged state.
    fn stage(&mut self, request: &ReservationRequest) -> Result<Outcome, Fault> {
        self.staged.clone_from(&self.current);
        if !self.is_unknown {
            let outcome = request.command.apply(&mut self.staged, request.host);
            return outcome.map_err(Fault::new);
        }
        match request.command {
            ReservationCommand::Clear => Ok(Outcome {
                persist: true,
                access_changed: true,
                ..Outcome::default()
            }),
            _ => Err(Fault::new(Status::NAMESPACE_NOT_READY)),
        }
    }
}

/// A result for a core.
#[derive(Debug)]
pub(crate) struct ReservationResult {
    /// The tag of the command's execution.
    pub(crate) tag: u64,
    pub(crate) device: u8,
    pub(crate) result: Result<(), Fault>,
}

/// Hosts whose commands to a device a core has to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) device: u8,
    pub(crate) hosts: Vec<HostIdentifier>,
}

/// The reservations of all devices.
#[derive(Default)]
pub(crate) struct ReservationTable {
    /// By device; devices that no command has named yet have no entry.
    devices: BTreeMap<u8, DeviceReservations>,
    store: Option<Box<dyn ReservationStore>>,
    stores: u64,
    /// Results by reactor.
    results: BTreeMap<usize, Vec<ReservationResult>>,
    /// Reactors that have to be notified of a result or of hosts whose commands have to end.
    to_notify: BTreeSet<usize>,
    /// Whether commands before the next epoch are aborted.
    ends_epoch: bool,
}

impl ReservationTable {
    /// Sets where states are stored. Without a store, no state can persist.
    pub(crate) fn set_store(&mut self, store: Box<dyn ReservationStore>) {
        self.store = Some(store);
    }

    /// Sets the reservations with which a device begins.
    pub(crate) fn set(
        &mut self,
        device: u8,
        initial: InitialReservations,
        controllers: &Controllers,
    ) {
        self.devices
            .insert(device, DeviceReservations::new(initial));
        self.publish_access(device, controllers);
    }

    /// Removes the reservations of a device. Commands that wait are refused.
    pub(crate) fn remove(&mut self, device: u8, controllers: &Controllers) {
        let Some(removed) = self.devices.remove(&device) else {
            return;
        };
        let first = match removed.progress {
            Progress::Idle => None,
            Progress::Storing { requester, .. } | Progress::Ending { requester, .. } => {
                Some(requester)
            }
        };
        let others = removed.waiting.into_iter().map(|it| it.requester);
        for requester in first.into_iter().chain(others) {
            self.refuse(device, requester, ReservationError::DeviceRemoved);
        }
        let access = DeviceAccess::Allowed(nvme_reservations::Permissions::ALL);
        for entry in controllers.values() {
            entry.shared.set_access(device, access);
        }
    }

    /// Restricts a new controller.
    pub(crate) fn restrict(&self, controller: &ControllerShared) {
        let host = HostIdentifier(controller.identity.host_id);
        for (device, reservations) in &self.devices {
            controller.set_access(*device, reservations.access(host));
        }
    }

    /// Whether the reservations of a device can persist.
    pub(crate) fn can_persist(&self, device: u8) -> bool {
        let device = self.devices.get(&device);
        device.is_some_and(|it| it.identity.is_some())
    }

    /// Whether the reservations of a device persist.
    pub(crate) fn persists(&self, device: u8) -> bool {
        let device = self.devices.get(&device);
        device.is_some_and(|it| it.current.persists())
    }

    /// The reservations of a device that hosts may read; `None` if they are not known.
    pub(crate) fn known(&mut self, device: u8) -> Option<&Reservations> {
        let found = self.entry(device);
        (!found.is_unknown).then_some(&found.current)
    }

    /// Each device with reservations.
    fn entry(&mut self, device: u8) -> &mut DeviceReservations {
        let entry = self.devices.entry(device);
        entry.or_insert_with(|| DeviceReservations::new(InitialReservations::Volatile))
    }

    /// Adds a command to those of its device, and applies it if no other is in progress.
    pub(crate) fn submit(
        &mut self,
        device: u8,
        request: ReservationRequest,
        controllers: &Controllers,
        view: &TargetView,
    ) {
        self.entry(device).waiting.push_back(request);
        self.advance(device, controllers, view);
    }

    /// The result of storing the state with that number.
    pub(crate) fn stored(
        &mut self,
        device: u8,
        number: u64,
        is_stored: bool,
        controllers: &Controllers,
        view: &TargetView,
    ) {
        let Some(reservations) = self.devices.get_mut(&device) else {
            return;
        };
        match std::mem::replace(&mut reservations.progress, Progress::Idle) {
            Progress::Storing {
                number: current,
                requester,
                outcome,
            } if current == number => {
                if is_stored {
                    self.take_effect(device, requester, outcome, controllers, view);
                } else {
                    self.refuse(device, requester, ReservationError::NotStored);
                }
            }
            other => reservations.progress = other,
        }
        self.advance(device, controllers, view);
    }

    /// The hosts whose commands a reactor has to end.
    pub(crate) fn endings(&self, reactor: usize) -> Vec<Ending> {
        let endings = self.devices.iter().filter_map(|(device, it)| {
            let Progress::Ending {
                hosts, reactors, ..
            } = &it.progress
            else {
                return None;
            };
            reactors.contains(&reactor).then(|| Ending {
                device: *device,
                hosts: hosts.clone(),
            })
        });
        endings.collect()
    }

    /// A reactor has ended the commands of an [`Ending`].
    pub(crate) fn ended(
        &mut self,
        device: u8,
        reactor: usize,
        controllers: &Controllers,
        view: &TargetView,
    ) {
        let Some(reservations) = self.devices.get_mut(&device) else {
            return;
        };
        if let Progress::Ending { reactors, .. } = &mut reservations.progress {
            reactors.remove(&reactor);
        }
        self.advance(device, controllers, view);
    }

    /// The results for a reactor.
    pub(crate) fn take_results(&mut self, reactor: usize) -> Vec<ReservationResult> {
        self.results.remove(&reactor).unwrap_or_default()
    }

    /// The reactors to notify after a change.
    pub(crate) fn take_to_notify(&mut self) -> BTreeSet<usize> {
        std::mem::take(&mut self.to_notify)
    }

    /// Whether the configuration needs a new epoch, since the last call.
    pub(crate) fn take_ends_epoch(&mut self) -> bool {
        std::mem::take(&mut self.ends_epoch)
    }

    /// Applies waiting commands until one has to wait.
    fn advance(&mut self, device: u8, controllers: &Controllers, view: &TargetView) {
        loop {
            let Some(reservations) = self.devices.get_mut(&device) else {
                return;
            };
            match std::mem::replace(&mut reservations.progress, Progress::Idle) {
                Progress::Ending {
                    requester,
                    reactors,
                    ..
                } if reactors.is_empty() => self.reply(device, requester, Ok(())),
                Progress::Idle => {
                    let Some(request) = reservations.waiting.pop_front() else {
                        return;
                    };
                    self.start(device, request, controllers, view);
                }
                waiting => {
                    reservations.progress = waiting;
                    return;
                }
            }
        }
    }

    /// Applies a command to the staged state, and stores it if it has to persist.
    fn start(
        &mut self,
        device: u8,
        request: ReservationRequest,
        controllers: &Controllers,
        view: &TargetView,
    ) {
        let reservations = self.entry(device);
        let outcome = match reservations.stage(&request) {
            Ok(outcome) => outcome,
            Err(fault) => return self.reply(device, request.requester, Err(fault)),
        };
        if !outcome.persist {
            return self.take_effect(device, request.requester, outcome, controllers, view);
        }
        let Some(identity) = reservations.identity else {
            debug_assert!(false, "a state without a name cannot persist");
            return self.refuse(device, request.requester, ReservationError::NotStored);
        };
        let mut bytes = Vec::new();
        encode(&reservations.staged, identity, &mut bytes);
        let Some(store) = &self.store else {
            return self.refuse(device, request.requester, ReservationError::NotStored);
        };
        self.stores += 1;
        let number = self.stores;
        store.store(StoreRequest {
            device: DeviceIndex(u16::from(device)),
            number,
            identity,
            bytes,
        });
        self.entry(device).progress = Progress::Storing {
            number,
            requester: request.requester,
            outcome,
        };
    }

    /// The staged state becomes the current one.
    fn take_effect(
        &mut self,
        device: u8,
        requester: Requester,
        outcome: Outcome,
        controllers: &Controllers,
        view: &TargetView,
    ) {
        let reservations = self.entry(device);
        std::mem::swap(&mut reservations.current, &mut reservations.staged);
        let was_unknown = std::mem::take(&mut reservations.is_unknown);
        // Without a reservation before and after, every host may do everything.
        let restricts = |state: &Reservations| state.reservation().is_some();
        let matters = restricts(&reservations.current) || restricts(&reservations.staged);
        if outcome.access_changed && (matters || was_unknown) {
            self.publish_access(device, controllers);
        }
        for notification in &outcome.notifications {
            self.notify_host(device, *notification, controllers, view);
        }
        if outcome.abort.is_empty() {
            return self.reply(device, requester, Ok(()));
        }
        self.ends_epoch = true;
        for entry in of_hosts(&outcome.abort, controllers) {
            let restrictions = &entry.shared.restrictions;
            restrictions.abort_before(device, view.epoch.wrapping_add(1));
        }
        let queues = of_hosts(&outcome.abort, controllers).flat_map(|entry| &entry.io_queues);
        let reactors: BTreeSet<usize> = queues.map(|queue| queue.reactor).collect();
        self.to_notify.extend(&reactors);
        self.entry(device).progress = Progress::Ending {
            requester,
            hosts: outcome.abort,
            reactors,
        };
    }

    fn publish_access(&self, device: u8, controllers: &Controllers) {
        let Some(reservations) = self.devices.get(&device) else {
            return;
        };
        for entry in controllers.values() {
            let host = HostIdentifier(entry.shared.identity.host_id);
            entry.shared.set_access(device, reservations.access(host));
        }
    }

    /// Notifies every controller of a host that has a namespace on the device.
    fn notify_host(
        &mut self,
        device: u8,
        notification: nvme_reservations::Notification,
        controllers: &Controllers,
        view: &TargetView,
    ) {
        for entry in controllers.values() {
            let identity = &entry.shared.identity;
            if identity.host_id != notification.host.0 {
                continue;
            }
            let Some(subsystem) = view.subsystem(identity.subsystem) else {
                continue;
            };
            let subsystem = subsystem.seen_by_host(&identity.host_nqn);
            let mut namespaces = subsystem.config.namespaces.iter();
            let of_device = namespaces.find(|it| it.device.0 == u16::from(device));
            if let Some(namespace) = of_device {
                entry.shared.add_notice(namespace.nsid, notification.kind);
                self.to_notify.insert(identity.admin_reactor);
            }
        }
    }

    fn refuse(&mut self, device: u8, requester: Requester, error: ReservationError) {
        match requester {
            Requester::Core { .. } => {
                let fault = match error {
                    ReservationError::DeviceRemoved => {
                        Fault::new(Status::INVALID_NAMESPACE_OR_FORMAT).at(byte::NSID)
                    }
                    // A later attempt may succeed.
                    ReservationError::NotStored | ReservationError::Unknown => {
                        Fault::retry(Status::INTERNAL_ERROR)
                    }
                };
                self.reply(device, requester, Err(fault));
            }
            Requester::Operator(sender) => {
                let _ = sender.send(Err(error));
            }
        }
    }

    /// Reports a result. A core finds no execution if its queue has ended meanwhile.
    fn reply(&mut self, device: u8, requester: Requester, result: Result<(), Fault>) {
        match requester {
            Requester::Core { reactor, tag } => {
                let results = self.results.entry(reactor).or_default();
                results.push(ReservationResult {
                    tag,
                    device,
                    result,
                });
                self.to_notify.insert(reactor);
            }
            Requester::Operator(sender) => {
                // Only a state that is not known refuses an operator.
                let _ = sender.send(result.map_err(|_| ReservationError::Unknown));
            }
        }
    }
}

/// The controllers of these hosts. Their I/O queues include those that have ended and whose requests
/// devices still have.
fn of_hosts<'a>(
    hosts: &'a [HostIdentifier],
    controllers: &'a Controllers,
) -> impl Iterator<Item = &'a ControllerEntry> {
    let host_of = |entry: &ControllerEntry| HostIdentifier(entry.shared.identity.host_id);
    let all = controllers.values();
    all.filter(move |entry| hosts.contains(&host_of(entry)))
}
