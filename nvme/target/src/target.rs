//! The part of a target that all reactors share: configuration, controllers, notifications.
//!
//! Control path only: it uses locks and allocates. A core reads its changes when the core's
//! notification count changes, which it checks once per poll.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use block::Device;
use nvme_reservations::HostIdentifier;
use reactors::Nanos;

use crate::ana::{AnaState, EarlierCommands};
use crate::authentication::{AuthenticationRecords, Exponentiations};
use crate::config::{
    AnaPath, CONTROLLERS_MAX, DEVICES_MAX, DeviceIndex, NamespaceConfig, PortConfig,
    SUBSYSTEMS_MAX, SubsystemConfig, TargetConfig, TargetError, TargetLimits, check_hosts,
    check_namespaces, check_ports,
};
use crate::counters::{CoreCounters, IoTotals};
use crate::exclusions::ExclusionTable;
use crate::generated_keys::GeneratedKeys;
use crate::interface::CloseReason;
use crate::pacing::control::Control;
use crate::pacing::{PaceRules, PaceSnapshot, Pacing};
use crate::rates::{RateLimit, RateLimitSnapshot, RateRules};
use crate::registry::{ControllerEntry, Registry};
use crate::reservations::{
    InitialReservations, Requester, ReservationCommand, ReservationError, ReservationRequest,
    ReservationSnapshot, ReservationStore, ReservationTable,
};
use crate::revocation::Revocations;
use crate::shared::ControllerIdentity;
use crate::snapshot::TargetSnapshot;
use crate::snapshot_cell::{Notifications, SnapshotCell};
use crate::stages::{SubsystemMeasures, TargetLatency};
use crate::statuses::TargetStatuses;
use crate::view::{DeviceEntry, SubsystemView, TargetView};

/// Memory page of CAP.MPSMIN 0, the unit of MDTS (Base 2.1 §3.1.4.1, §5.1.13.2.1).
pub(crate) const PAGE_BYTES: u32 = 4096;

/// Limit of the maximum transfer: the length has to fit into a keyed SGL descriptor.
const TRANSFER_MAX_BYTES: u32 = 1 << 23;

/// The epoch of a target's initial configuration.
const EPOCH_FIRST: u32 = 1;

type WakerFunction = Box<dyn Fn(usize) + Send + Sync>;

/// A target: its configuration and its controllers. Control path only.
pub struct Target {
    notifications: Box<[Notifications]>,
    exclusion_messages: Box<[Notifications]>,
    /// Number of changes of a device's health.
    health_changes: AtomicU32,
    /// Number of messages about reservations to cores.
    reservation_messages: AtomicU32,
    pub(crate) exponentiations: Exponentiations,
    pub(crate) authentication_records: AuthenticationRecords,
    pub(crate) generated_keys: GeneratedKeys,
    shutting_down: AtomicBool,
    published: SnapshotCell<TargetView>,
    registry: Mutex<Registry>,
    waker: RwLock<Option<WakerFunction>>,
    cores: Mutex<Vec<Option<Arc<CoreCounters>>>>,
    pace_control: Mutex<Control>,
    limits: TargetLimits,
    transfer_max: u32,
}

impl Target {
    /// A target for `reactors` cores with these devices.
    ///
    /// # Errors
    /// [`TargetError`] with the first error in the configuration.
    pub fn new(
        config: TargetConfig,
        reactors: usize,
        devices: Vec<Arc<dyn Device>>,
    ) -> Result<Arc<Self>, TargetError> {
        if reactors == 0 {
            return Err(TargetError::NoReactors);
        }
        config.check(devices.len())?;
        let transfer_max = transfer_max(&config.limits, &devices)?;
        let views = config.subsystems.into_iter();
        let subsystems = views.map(|subsystem| {
            let measures = Arc::new(SubsystemMeasures::new(reactors));
            Some(Arc::new(SubsystemView::new(
                subsystem,
                transfer_max,
                measures,
            )))
        });
        let mut published = TargetView {
            epoch: EPOCH_FIRST,
            generation: 1,
            subsystems: subsystems.collect(),
            ports: config.ports,
            seen: Vec::new(),
            listed_hosts: Arc::default(),
            devices: devices
                .into_iter()
                .map(|device| Some(DeviceEntry { device, since: 1 }))
                .collect(),
            rate_rules: RateRules::default(),
            pace_rules: PaceRules::default(),
            revocations: Revocations::default(),
        };
        published.collect_listed_hosts();
        published.collect_seen();
        Ok(Arc::new(Self {
            notifications: (0..reactors).map(|_| Notifications::default()).collect(),
            exclusion_messages: (0..reactors).map(|_| Notifications::default()).collect(),
            health_changes: AtomicU32::new(0),
            reservation_messages: AtomicU32::new(0),
            exponentiations: Exponentiations::new(reactors),
            authentication_records: AuthenticationRecords::default(),
            generated_keys: GeneratedKeys::default(),
            shutting_down: AtomicBool::new(false),
            published: SnapshotCell::new(published, EPOCH_FIRST),
            registry: Mutex::new(Registry::new(&config.limits)),
            waker: RwLock::new(None),
            cores: Mutex::new(vec![None; reactors]),
            pace_control: Mutex::default(),
            limits: config.limits,
            transfer_max,
        }))
    }

    /// Sets the function that wakes a reactor, given its number, when it has to poll its core soon.
    /// Any thread may call the function, including that reactor.
    pub fn set_waker(&self, waker: Box<dyn Fn(usize) + Send + Sync>) {
        *self.waker.write().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    /// Replaces the namespaces of a subsystem. Hosts with controllers receive a namespace event.
    ///
    /// # Errors
    /// [`TargetError`]; nothing changes then.
    pub fn update_namespaces(
        &self,
        nqn: &str,
        namespaces: Vec<NamespaceConfig>,
    ) -> Result<(), TargetError> {
        self.change_subsystem(nqn, |published, config| {
            check_namespaces(nqn, &namespaces, |it| has_device(published, it))?;
            config.namespaces = namespaces;
            Ok(())
        })
    }

    /// Replaces the list of allowed hosts of a subsystem. Hosts that are no longer listed lose
    /// their controllers.
    ///
    /// # Errors
    /// [`TargetError`]; nothing changes then.
    pub fn update_hosts(
        &self,
        nqn: &str,
        allow_any_host: bool,
        hosts: Vec<String>,
    ) -> Result<(), TargetError> {
        check_hosts(&hosts)?;
        self.change_subsystem(nqn, |_, config| {
            config.allow_any_host = allow_any_host;
            config.hosts = hosts;
            Ok(())
        })
    }

    /// Replaces a subsystem. Hosts with controllers receive the resulting events. Hosts that may no
    /// longer connect, that connected to a port where the subsystem is no longer available, or that
    /// know it by an identity that changed (serial number, model, firmware) lose their controllers
    /// after the responses to their commands.
    ///
    /// # Errors
    /// [`TargetError`]; nothing changes then.
    pub fn update_subsystem(&self, wanted: SubsystemConfig) -> Result<(), TargetError> {
        let nqn = wanted.nqn.clone();
        self.change_subsystem(&nqn, |published, config| {
            wanted.check(|it| has_device(published, it), &published.ports)?;
            *config = wanted;
            Ok(())
        })
    }

    /// Changes ANA states of a subsystem. They apply to commands that have not been started. The
    /// receiver is disconnected when the earlier commands of hosts that lost access have ended.
    ///
    /// # Errors
    /// [`TargetError`]; nothing changes then.
    pub fn set_ana_states(
        &self,
        nqn: &str,
        states: &BTreeMap<AnaPath, AnaState>,
    ) -> Result<Receiver<()>, TargetError> {
        let (sender, done) = mpsc::channel();
        self.publish(|registry, published| {
            let found = published.find(nqn);
            let (slot, view) = found.ok_or_else(|| unknown_subsystem(nqn))?;
            let (view, mut config) = (Arc::clone(view), view.config.clone());
            // Otherwise the state would outlive the port, whose number another one gets later.
            let mut ports = states.keys().map(|path| path.port);
            if let Some(port) = ports.find(|port| !config.ports.contains(port)) {
                return Err(TargetError::Port { port });
            }
            config.ana_states.extend(states);
            config.check(|it| has_device(published, it), &published.ports)?;
            let attached = registry.hosts_of(slot);
            let mut changed = view.changed(config, &attached, self.transfer_max);
            changed.draining = view.draining;
            let lost = states.iter().filter(|(_, state)| !state.is_accessible());
            let commands = EarlierCommands {
                number: 0,
                subsystem_nqn: changed.config.nqn.clone(),
                paths: lost
                    .map(|(path, _)| (path.port, changed.devices_of_group(*path)))
                    .collect(),
                before: published.epoch.wrapping_add(1),
            };
            published.subsystems[slot as usize] = Some(Arc::new(changed));
            registry.begin_ana_transition(commands, sender);
            Ok(())
        })?;
        Ok(done)
    }

    /// Replaces the rate limits. They apply to commands that wait, too. A limit that does not change
    /// keeps what its hosts have used.
    ///
    /// # Errors
    /// [`TargetError::TooManyRateLimits`]; nothing changes then.
    pub fn set_rate_limits(&self, limits: Vec<RateLimit>) -> Result<(), TargetError> {
        self.publish(|_, published| {
            published.rate_rules = published.rate_rules.changed(limits)?;
            Ok(())
        })
    }

    /// The rate limits, and what they have delayed so far.
    #[must_use]
    pub fn rate_limits(&self) -> Vec<RateLimitSnapshot> {
        self.published().rate_rules.snapshot()
    }

    /// Replaces the latency targets and weights of all subsystems.
    ///
    /// # Errors
    /// [`TargetError::Pacing`]; nothing changes then.
    pub fn set_pacing(&self, pacing: &[Pacing]) -> Result<(), TargetError> {
        self.publish(|_, published| {
            published.pace_rules = published.pace_rules.changed(pacing)?;
            Ok(())
        })
    }

    /// Whether subsystems may have to wait for others, so that
    /// [`adjust_paces`](Self::adjust_paces) has something to do.
    #[must_use]
    pub fn has_paces(&self) -> bool {
        !self.published().pace_rules.is_empty()
    }

    /// Sets the speed of all paces by what has happened since the last call, which was about
    /// [`PACING_INTERVAL`](crate::PACING_INTERVAL) ago. Not for a reactor.
    pub fn adjust_paces(&self, now: Nanos) {
        let rules = self.published().pace_rules.clone();
        rules.adjust(&mut self.pace_control(), self, now);
    }

    /// The paces, and what they have delayed so far.
    #[must_use]
    pub fn paces(&self) -> Vec<PaceSnapshot> {
        let rules = self.published().pace_rules.clone();
        rules.snapshot(&self.pace_control())
    }

    fn pace_control(&self) -> MutexGuard<'_, Control> {
        self.pace_control
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all associations with a subsystem after the responses to their commands. Its hosts may
    /// reconnect immediately; they then identify its namespaces again.
    ///
    /// # Errors
    /// [`TargetError::UnknownSubsystem`].
    pub fn end_associations(&self, nqn: &str) -> Result<(), TargetError> {
        self.change_subsystem_in(nqn, 1, |_, _| Ok(()))
    }

    /// Adds a subsystem.
    ///
    /// # Errors
    /// [`TargetError`]; nothing changes then.
    pub fn add_subsystem(&self, config: SubsystemConfig) -> Result<(), TargetError> {
        self.publish(|registry, published| {
            config.check(|it| has_device(published, it), &published.ports)?;
            if published.find(&config.nqn).is_some() {
                return Err(TargetError::DuplicateSubsystem { nqn: config.nqn });
            }
            let held = |slot: usize| {
                registry
                    .entries()
                    .any(|entry| entry.shared.identity.subsystem as usize == slot)
            };
            let free = published.subsystems.iter().enumerate();
            let free = free
                .filter(|(_, view)| view.is_none())
                .map(|(slot, _)| slot);
            let measures = Arc::new(SubsystemMeasures::new(self.reactors()));
            let view = Some(Arc::new(SubsystemView::new(
                config,
                self.transfer_max,
                measures,
            )));
            match free.into_iter().find(|slot| !held(*slot)) {
                Some(slot) => published.subsystems[slot] = view,
                None if published.subsystems.len() < SUBSYSTEMS_MAX => {
                    published.subsystems.push(view);
                }
                None => return Err(TargetError::TooManySubsystems),
            }
            Ok(())
        })
    }

    /// Refuses new connections to a subsystem, and ends its associations after the responses to
    /// their commands; [`remove_subsystem`](Self::remove_subsystem) has to follow.
    ///
    /// # Errors
    /// [`TargetError::UnknownSubsystem`].
    pub fn drain_subsystem(&self, nqn: &str) -> Result<(), TargetError> {
        self.publish(|_, published| {
            let found = published.find(nqn);
            let (slot, view) = found.ok_or_else(|| unknown_subsystem(nqn))?;
            let draining = view.as_draining();
            published.subsystems[slot as usize] = Some(Arc::new(draining));
            Ok(())
        })
    }

    /// Removes a subsystem. Its hosts lose their controllers.
    ///
    /// # Errors
    /// [`TargetError::UnknownSubsystem`].
    pub fn remove_subsystem(&self, nqn: &str) -> Result<(), TargetError> {
        self.publish(|_, published| {
            let slot = published.find(nqn).map(|(slot, _)| slot);
            let slot = slot.ok_or_else(|| unknown_subsystem(nqn))?;
            published.subsystems[slot as usize] = None;
            Ok(())
        })
    }

    /// Replaces the ports that the discovery log reports.
    ///
    /// # Errors
    /// [`TargetError`]; nothing changes then.
    pub fn update_ports(&self, ports: Vec<PortConfig>) -> Result<(), TargetError> {
        check_ports(&ports)?;
        self.publish(|_, published| {
            for subsystem in published.subsystems.iter().flatten() {
                let states = subsystem.config.ana_states.keys().map(|path| &path.port);
                for port in subsystem.config.ports.iter().chain(states) {
                    if !ports.iter().any(|known| known.id == *port) {
                        return Err(TargetError::Port { port: *port });
                    }
                }
            }
            published.ports = ports;
            Ok(())
        })
    }

    /// Assigns an index to a device. Namespaces may refer to it once every core has a queue of it
    /// ([`ReactorDevices::attach`](block::ReactorDevices::attach)).
    ///
    /// # Errors
    /// There is no free index, or the device's maximum transfer is smaller than the MDTS reported
    /// to hosts.
    pub fn add_device(&self, device: Arc<dyn Device>) -> Result<DeviceIndex, TargetError> {
        let bytes = transfer_bytes(&device);
        if bytes < u64::from(self.transfer_max) {
            let needed = self.transfer_max;
            return Err(TargetError::DeviceTransfer { bytes, needed });
        }
        let mut place = 0;
        self.publish(|_, published| {
            let devices = &mut published.devices;
            place = devices
                .iter()
                .position(Option::is_none)
                .unwrap_or(devices.len());
            if place >= DEVICES_MAX {
                return Err(TargetError::TooManyDevices { count: place + 1 });
            }
            let since = published.epoch.wrapping_add(1);
            let placed = Some(DeviceEntry { device, since });
            match devices.get_mut(place) {
                Some(free) => *free = placed,
                None => devices.push(placed),
            }
            Ok(())
        })?;
        // Fewer than 128.
        Ok(DeviceIndex(place as u16))
    }

    /// Frees the index of a device. No core may have a queue of it any more.
    ///
    /// # Errors
    /// [`TargetError::DeviceInUse`]; nothing changes then.
    pub fn remove_device(&self, device: DeviceIndex) -> Result<(), TargetError> {
        self.publish(|registry, published| {
            if published.uses(device) {
                return Err(TargetError::DeviceInUse { device });
            }
            let (reservations, controllers) = registry.reservations();
            reservations.remove(device.place(), controllers);
            if let Some(place) = published.devices.get_mut(usize::from(device.0)) {
                *place = None;
            }
            while let Some(None) = published.devices.last() {
                published.devices.pop();
            }
            Ok(())
        })
    }

    /// Changes the maximum number of controllers; existing controllers stay.
    ///
    /// # Errors
    /// [`TargetError::ControllersMax`]; nothing changes then.
    pub fn limit_controllers(&self, count: u16) -> Result<(), TargetError> {
        if !(1..=CONTROLLERS_MAX).contains(&count) {
            return Err(TargetError::ControllersMax { count });
        }
        self.registry().limit_controllers(count);
        Ok(())
    }

    /// Number of controllers that are being disconnected because of a change.
    #[must_use]
    pub fn draining_controllers(&self) -> usize {
        let registry = self.registry();
        let draining = registry
            .entries()
            .filter(|it| it.shared.drain_requested().is_some());
        draining.count()
    }

    /// Ends the associations of all controllers that are being disconnected, without waiting for
    /// outstanding commands.
    pub fn end_draining(&self) {
        for entry in self.registry().entries() {
            if let Some(reason) = entry.shared.drain_requested() {
                entry.shared.end(reason);
            }
        }
        self.notify_all();
    }

    /// Refuses Connects, and makes every core request the close of its connections.
    pub fn shut_down(&self) {
        {
            let mut registry = self.registry();
            registry.closed = true;
            registry.end_all(CloseReason::TargetShutdown);
        }
        self.shutting_down.store(true, Ordering::Release);
        self.notify_all();
    }

    /// Reports that a device's health may have changed. Hosts that enabled health events receive
    /// new ones without waiting for the next regular check.
    pub fn health_changed(&self) {
        self.health_changes.fetch_add(1, Ordering::Release);
        self.notify_all();
    }

    /// Sets where the states of reservations are stored. Without a store, none can persist.
    pub fn set_reservation_store(&self, store: Box<dyn ReservationStore>) {
        self.registry().reservations().0.set_store(store);
    }

    /// Sets the reservations with which a device begins, before a namespace refers to it. A device
    /// without them begins with [`InitialReservations::Volatile`].
    pub fn set_reservations(&self, device: DeviceIndex, initial: InitialReservations) {
        self.change_reservations(|table, controllers, _| {
            table.set(device.place(), initial, controllers);
        });
    }

    /// Reports whether the state of a [`StoreRequest`](crate::StoreRequest) was stored.
    pub fn reservations_stored(&self, device: DeviceIndex, number: u64, is_stored: bool) {
        self.change_reservations(|table, controllers, view| {
            table.stored(device.place(), number, is_stored, controllers, view);
        });
    }

    /// Unregisters a host from the namespaces of a device. The receiver gets the result when its
    /// commands to them have ended.
    #[must_use]
    pub fn evict_registrant(
        &self,
        device: DeviceIndex,
        host: HostIdentifier,
    ) -> Receiver<Result<(), ReservationError>> {
        self.change_by_operator(device, host, ReservationCommand::Evict)
    }

    /// Unregisters all hosts from the namespaces of a device, and releases the reservation. The
    /// receiver gets the result when their commands to them have ended.
    #[must_use]
    pub fn clear_reservations(
        &self,
        device: DeviceIndex,
    ) -> Receiver<Result<(), ReservationError>> {
        self.change_by_operator(device, HostIdentifier([0; 16]), ReservationCommand::Clear)
    }

    fn change_by_operator(
        &self,
        device: DeviceIndex,
        host: HostIdentifier,
        command: ReservationCommand,
    ) -> Receiver<Result<(), ReservationError>> {
        let (sender, receiver) = mpsc::channel();
        let request = ReservationRequest {
            requester: Requester::Operator(sender),
            host,
            command,
        };
        self.change_reservations(|table, controllers, view| {
            table.submit(device.place(), request, controllers, view);
        });
        receiver
    }

    /// The reservations of the devices that have some.
    #[must_use]
    pub fn reservations(&self) -> Vec<ReservationSnapshot> {
        self.registry().reservations().0.snapshot()
    }

    /// Changes reservations, and notifies the cores that the change concerns.
    pub(crate) fn change_reservations<R>(
        &self,
        change: impl FnOnce(&mut ReservationTable, &BTreeMap<u16, ControllerEntry>, &TargetView) -> R,
    ) -> R {
        let (result, reactors) = {
            let mut registry = self.registry();
            let (table, controllers) = registry.reservations();
            let published = self.published();
            let result = change(table, controllers, &published);
            let mut reactors = table.take_to_notify();
            if table.take_ends_epoch() {
                self.publish_next(TargetView::clone(&published));
                reactors.extend(0..self.reactors());
            }
            (result, reactors)
        };
        if !reactors.is_empty() {
            self.reservation_messages.fetch_add(1, Ordering::Release);
        }
        for reactor in reactors {
            self.notify(reactor);
        }
        result
    }

    /// Changes exclusions, and notifies the cores that the change concerns.
    pub(crate) fn change_exclusions<R>(&self, change: impl FnOnce(&mut ExclusionTable) -> R) -> R {
        let (result, reactors) = {
            let table = &mut self.registry().exclusions;
            (change(table), table.take_to_notify())
        };
        for reactor in reactors {
            self.exclusion_messages[reactor].notify();
            self.wake(reactor);
        }
        result
    }

    /// Number of messages about exclusions to a reactor's core so far.
    #[inline]
    pub(crate) fn exclusion_messages(&self, reactor: usize) -> u64 {
        self.exclusion_messages[reactor].count()
    }

    /// Number of messages about reservations to cores so far.
    pub(crate) fn reservation_messages(&self) -> u32 {
        self.reservation_messages.load(Ordering::Acquire)
    }

    /// A snapshot of controllers, hosts, queues and counters. Takes the control path's lock.
    #[must_use]
    pub fn snapshot(&self) -> TargetSnapshot {
        TargetSnapshot::take(self)
    }

    /// Latencies of reads and writes so far. Copies 2 KiB for each stage of each subsystem.
    #[must_use]
    pub fn latency(&self) -> TargetLatency {
        TargetLatency::take(self)
    }

    /// Counts of commands by error status so far.
    #[must_use]
    pub fn statuses(&self) -> TargetStatuses {
        TargetStatuses::take(self)
    }

    /// The current configuration as new hosts find it.
    #[must_use]
    pub fn configuration(&self) -> TargetConfig {
        let published = self.published();
        let subsystems = published.subsystems.iter().flatten();
        TargetConfig {
            subsystems: subsystems.map(|view| view.config.clone()).collect(),
            ports: published.ports.clone(),
            limits: TargetLimits {
                controllers_max: self.registry().controllers_max(),
                ..self.limits
            },
        }
    }

    /// The devices in the order of their indices.
    #[must_use]
    pub fn devices(&self) -> Vec<(DeviceIndex, Arc<dyn Device>)> {
        let published = self.published();
        let places = (0..).map(DeviceIndex).zip(&published.devices);
        places
            .filter_map(|(place, placed)| Some((place, Arc::clone(&placed.as_ref()?.device))))
            .collect()
    }

    /// Number of reactors.
    #[must_use]
    pub fn reactors(&self) -> usize {
        self.notifications.len()
    }

    /// The limits with which the target was created.
    #[must_use]
    pub fn limits(&self) -> &TargetLimits {
        &self.limits
    }

    /// Largest transfer of one command in bytes, a power of two: the largest lease that commands
    /// need.
    #[must_use]
    pub fn transfer_max(&self) -> usize {
        self.transfer_max as usize
    }

    /// The counters of a reactor's core, once it exists.
    #[must_use]
    pub fn core_counters(&self, reactor: usize) -> Option<Arc<CoreCounters>> {
        self.cores().get(reactor)?.clone()
    }

    fn change_subsystem(
        &self,
        nqn: &str,
        change: impl FnOnce(&TargetView, &mut SubsystemConfig) -> Result<(), TargetError>,
    ) -> Result<(), TargetError> {
        self.change_subsystem_in(nqn, 0, change)
    }

    /// Changes a subsystem and increases its incarnation by `further`, which ends its associations.
    fn change_subsystem_in(
        &self,
        nqn: &str,
        further: u32,
        change: impl FnOnce(&TargetView, &mut SubsystemConfig) -> Result<(), TargetError>,
    ) -> Result<(), TargetError> {
        self.publish(|registry, published| {
            let found = published.find(nqn);
            let (slot, view) = found.ok_or_else(|| unknown_subsystem(nqn))?;
            let (view, mut config) = (Arc::clone(view), view.config.clone());
            change(published, &mut config)?;
            let attached = registry.hosts_of(slot);
            let changed = view
                .changed(config, &attached, self.transfer_max)
                .in_incarnation(view.incarnation.wrapping_add(further));
            published.subsystems[slot as usize] = Some(Arc::new(changed));
            Ok(())
        })
    }

    /// Publishes a changed configuration and notifies every core. The registry's lock orders
    /// changes among themselves and against Connects.
    pub(crate) fn publish<E>(
        &self,
        change: impl FnOnce(&mut Registry, &mut TargetView) -> Result<(), E>,
    ) -> Result<(), E> {
        {
            let mut registry = self.registry();
            let before = self.published.value();
            let mut published = TargetView::clone(&before);
            change(&mut registry, &mut published)?;
            publish_ana_restrictions(&registry, &before, &published);
            published.collect_listed_hosts();
            published.collect_seen();
            published.generation = published.generation.wrapping_add(1);
            self.publish_next(published);
        }
        self.notify_all();
        Ok(())
    }

    /// Publishes a view in the next epoch. Called under the registry's lock, after which every core
    /// has to be notified.
    pub(crate) fn publish_next(&self, mut view: TargetView) {
        view.epoch = view.epoch.wrapping_add(1);
        let epoch = view.epoch;
        self.published.publish(view, epoch);
    }

    pub(crate) fn notify_all(&self) {
        for reactor in 0..self.reactors() {
            self.notify(reactor);
        }
    }

    /// Notifies a reactor's core that something changed.
    pub(crate) fn notify(&self, reactor: usize) {
        self.notifications[reactor].notify();
        self.wake(reactor);
    }

    fn wake(&self, reactor: usize) {
        if let Some(waker) = &*self.waker.read().unwrap_or_else(PoisonError::into_inner) {
            waker(reactor);
        }
    }

    /// Number of notifications of a reactor's core so far.
    #[inline]
    pub(crate) fn notifications(&self, reactor: usize) -> u64 {
        self.notifications[reactor].count()
    }

    /// The epoch of the published configuration.
    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        self.published.epoch()
    }

    /// Number of changes of a device's health.
    pub(crate) fn health_changes(&self) -> u32 {
        self.health_changes.load(Ordering::Acquire)
    }

    pub(crate) fn published(&self) -> Arc<TargetView> {
        self.published.value()
    }

    pub(crate) fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Ordering::Acquire)
    }

    pub(crate) fn transfer_max_bytes(&self) -> u32 {
        self.transfer_max
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn cores(&self) -> MutexGuard<'_, Vec<Option<Arc<CoreCounters>>>> {
        self.cores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Totals of these devices over all cores.
    pub(crate) fn device_totals(
        &self,
        devices: &(impl Iterator<Item = usize> + Clone),
    ) -> IoTotals {
        let mut totals = IoTotals::default();
        for core in self.cores().iter().flatten() {
            for device in devices.clone() {
                if let Some(counters) = core.devices.get(device) {
                    totals.add(counters.totals());
                }
            }
        }
        totals
    }
}

/// Restricts the controllers of changed subsystems to what the ANA states allow.
fn publish_ana_restrictions(registry: &Registry, before: &TargetView, after: &TargetView) {
    let mut by_port = BTreeMap::new();
    for entry in registry.entries() {
        let ControllerIdentity {
            subsystem, port, ..
        } = entry.shared.identity;
        let (old, new) = (before.subsystem(subsystem), after.subsystem(subsystem));
        let Some(new) = new.filter(|new| !old.is_some_and(|old| std::ptr::eq(old, *new))) else {
            continue;
        };
        let restrictions = by_port.entry((subsystem, port));
        let restrictions = restrictions.or_insert_with(|| new.ana_restrictions(port));
        entry.shared.set_ana(*restrictions);
    }
}

fn unknown_subsystem(nqn: &str) -> TargetError {
    TargetError::UnknownSubsystem {
        nqn: nqn.to_owned(),
    }
}

/// Whether a device with this index exists.
fn has_device(published: &TargetView, device: DeviceIndex) -> bool {
    published.device(usize::from(device.0)).is_some()
}

/// The maximum transfer of a device in bytes.
fn transfer_bytes(device: &Arc<dyn Device>) -> u64 {
    let geometry = device.geometry();
    u64::from(geometry.max_transfer_blocks) * u64::from(geometry.block_size)
}

/// The largest power of two that the limit and every device allow.
fn transfer_max(limits: &TargetLimits, devices: &[Arc<dyn Device>]) -> Result<u32, TargetError> {
    let smallest = devices.iter().map(transfer_bytes);
    let limit = u64::try_from(limits.transfer_max).unwrap_or(u64::MAX);
    let bytes = smallest
        .min()
        .unwrap_or(limit)
        .min(limit)
        .min(u64::from(TRANSFER_MAX_BYTES));
    if bytes < u64::from(PAGE_BYTES) {
        // At most 2^23, so the cast is lossless.
        return Err(TargetError::TransferTooSmall {
            bytes: bytes as usize,
        });
    }
    Ok(1 << bytes.ilog2())
}
