//! Start, service loop and stop of the appliance.
//!
//! Start: addresses, memory, drives and other devices, target, reactors. Stop: no new connections,
//! requests in flight complete or the deadline ends the wait, devices are flushed, drives shut
//! down, files closed.

mod continuing;
mod storing;
mod upgrade;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use appliance_config::{Config, Idle, LoadError, Name};
use hugemem::Arena;
use nvme_target::Target;
use rdma::DeviceEvents;
use reactors::{IdlePolicy, Nanos, ReactorConfig, Reactors};

use crate::authentication::AuthenticationThread;
use crate::control::ControlPlane;
use crate::copies::{self, Copies, CopyRefusal, CopyWanted};
use crate::devices::{Devices, PassedDevices, SystemDevices};
use crate::error::{Failure, with_causes};
use crate::event_loop::RealTime;
use crate::exports;
use crate::fabrics::Fabrics;
use crate::files::{self, Files, RdmaListeners};
use crate::handover::Passed;
use crate::identities::Identities;
use crate::keys::Keys;
use crate::memory;
use crate::messages::MessageRings;
use crate::nvme::{self, Bus, DeviceOpener, Drives};
use crate::observe::model::ApplyAnswer;
use crate::observe::sources::{Sources, TransportCounters};
use crate::operator_states::OperatorStates;
use crate::pacing::PacingThread;
use crate::reactor_setup::{Parts, Service, set_up};
use crate::reconciler::{ApplyOptions, Reconciler, Started};
use crate::requests::{ApplyJob, ApplyRefusal, CopyJob, Request, RequestSender, RevokeJob};
use crate::reservation_files::ReservationFiles;
use crate::revoked_keys::RevokedKeys;
use crate::service::{self, Heartbeat};
use crate::signals::RequestReceiver;
use crate::state_directory::StateDirectory;
use crate::transports::{LateTransport, Listeners, PerReactor, Tcp, Transports, system_rdma};
use crate::watchdog_loop::WatchdogLoop;
pub(crate) use continuing::{continue_serving, continue_stored};
use upgrade::Upgraded;

/// Poll interval of a stop in progress.
const STOP_LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Time in which a client receives the answer to its request before the control plane is closed.
const ANSWER_TIME: Duration = Duration::from_millis(250);

/// A running appliance.
pub(crate) struct Appliance {
    reconciler: Reconciler,
    /// The configuration's file.
    file: Option<PathBuf>,
    request_sender: Option<RequestSender>,
    cores: Vec<usize>,
    arena: Arc<Arena>,
    target: Arc<Target>,
    tcp: Arc<Tcp>,
    drives: Arc<Drives>,
    reactors: Reactors,
    counters: Vec<TransportCounters>,
    _authentication: AuthenticationThread,
    _pacing: PacingThread,
    /// Declared after the reactors, so that it reports how they stop.
    control: Option<ControlPlane>,
    files: Arc<Files>,
    copies: Arc<Copies>,
    start_took: Duration,
}

/// Why an appliance no longer serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It is to be stopped.
    Stop,
    /// The state is in the descriptor store. This process must end without releasing what is there.
    Stored,
    /// A new process serves. This one must end without releasing what both have.
    HandedOver,
}

#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("appliance.cores: {cause}")]
    Cores {
        cause: appliance_config::CoresNotAllowed,
    },
}

/// Creates the bus with the drives, for an arena and a number of reactors.
type MakeBus<'e> = Box<dyn FnOnce(&Arc<Arena>, usize) -> Box<dyn Bus> + 'e>;

/// Creates NVMe/RDMA for a number of reactors.
type MakeRdma<'e> = Box<dyn FnOnce(usize) -> Arc<dyn LateTransport> + 'e>;

/// The hardware that an appliance runs on, and services in addition to NVMe over Fabrics.
pub(crate) struct Environment<'e> {
    pub(crate) bus: MakeBus<'e>,
    pub(crate) rdma: MakeRdma<'e>,
    pub(crate) file_rdma: Arc<dyn RdmaListeners>,
    pub(crate) extra_services: Vec<Arc<dyn Service>>,
    /// What an earlier process has passed, which this one continues.
    pub(crate) passed: Option<Passed>,
}

impl Default for Environment<'_> {
    /// The system's hardware.
    fn default() -> Self {
        let events = Arc::<DeviceEvents>::default();
        Self {
            bus: Box::new(nvme::system_bus),
            file_rdma: files::system_rdma(Arc::clone(&events)),
            rdma: Box::new(move |reactors| system_rdma(reactors, events)),
            extra_services: Vec::new(),
            passed: None,
        }
    }
}

/// The machine's event loop, which runs the watchdog loop when it is due.
fn with_watchdog<'l>(
    drives: &'l Drives,
    reactors: &'l Reactors,
    watchdog_loop: &'l mut WatchdogLoop,
) -> RealTime<impl FnMut(Instant) + use<'l>> {
    RealTime(move |now| {
        if watchdog_loop.is_due(now) {
            drives.poll(now);
            // The service loop detects a stopped reactor again afterwards.
            let _ = watchdog_loop.run_once(reactors);
        }
    })
}

impl Appliance {
    /// Starts the appliance that `config` describes. On return, the exports are available.
    /// `state` has the previously served contents and the reservations.
    ///
    /// # Errors
    /// The first resource that cannot be acquired. Nothing is left running.
    pub(crate) fn start(config: Config, state: &StateDirectory) -> Result<Self, Failure> {
        Self::start_with(config, state, Environment::default())
    }

    /// Like [`start`](Self::start), in an environment that may differ from the system's.
    pub(crate) fn start_with(
        config: Config,
        state: &StateDirectory,
        environment: Environment<'_>,
    ) -> Result<Self, Failure> {
        let Environment {
            bus,
            rdma,
            file_rdma,
            extra_services,
            passed,
        } = environment;
        let began = Instant::now();
        for notice in config.notices() {
            tracing::warn!("{notice}");
        }
        let cores = config
            .appliance
            .cores
            .resolve(&allowed_cores()?)
            .map_err(|cause| StartError::Cores { cause })?;
        let revoked = match config.keys.is_empty() {
            true => None,
            false => state.revoked_keys(),
        };
        let keys = Keys::load(&config, RevokedKeys::read(revoked)?)?;
        let rdma = rdma(cores.len());
        let (listeners, (arena, rest), passed_devices, operator_states) = match passed {
            None => {
                let listeners = Listeners::bind(&config, rdma)?;
                let states = OperatorStates::default();
                (listeners, memory::take(&config)?, None, states)
            }
            Some(passed) => {
                let listeners = Listeners::adopt(&config, passed.listeners, rdma)?;
                let memory = memory::adopt(&config, passed.arena)?;
                let devices = Some(passed.devices);
                (listeners, memory, devices, passed.operator_states)
            }
        };
        let ports = listeners.ports(&config);
        let bus = bus(&arena, cores.len());
        let undrained = Arc::new(AtomicUsize::new(cores.len()));
        let drives = Arc::new(Drives::new(bus, &arena, cores.len(), &undrained));
        let namespaces = drives.start(&config);
        let system = SystemDevices::new(&config, &arena);
        let identities = Identities::at(state.identities());
        // A drive that is not available now is opened by a later change.
        let devices = match passed_devices {
            None => Devices::open(&config, &system, namespaces, identities)?,
            Some(passed) => {
                let opener = PassedDevices::new(&system, passed);
                Devices::open(&config, &opener, namespaces, identities)?
            }
        };
        let lowered = listeners.lower_limits(&config);
        let transfer_max = arena.max_transfer();
        let target = Target::new(
            exports::target_config(
                &lowered,
                &devices,
                &ports,
                &keys,
                &operator_states,
                transfer_max,
            ),
            cores.len(),
            devices.in_order(),
        )?;
        target.set_rate_limits(exports::rate_limits(&config, &devices))?;
        target.set_pacing(&exports::pacing(&config, &devices))?;
        let reservation_files = ReservationFiles::open(state.reservations(), &target, &cores);
        devices.restore_reservations(&reservation_files, &target);
        let Transports {
            all: transports,
            tcp,
        } = listeners.into_transports(&config, &cores, &devices.regions(&arena))?;
        let counters = transports.iter().map(|it| it.counters()).collect();
        let (control_queues, messages) = MessageRings::new(cores.len());
        let fabrics = Fabrics {
            target: Arc::clone(&target),
            transports: transports.clone(),
            messages: PerReactor::new(messages),
        };
        let mut services: Vec<Arc<dyn Service>> = vec![Arc::new(fabrics)];
        let files = Files::prepare(&config, &devices, &arena, file_rdma, (state, &cores))?;
        services.push(files.clone());
        let copies = Arc::new(Copies::new(cores.len()));
        services.push(copies.clone());
        services.extend(extra_services);
        let parts = Parts {
            arena: Arc::clone(&arena),
            devices: devices.in_order(),
            services,
            undrained,
        };
        let reactors = Reactors::start(reactor_configs(&config, &cores), move |index, setup| {
            set_up(&parts, index, setup)
        })?;
        drives.begin(reactors.handles())?;
        files.set_wakers(reactors.handles());
        copies.set_wakers(reactors.handles());
        let handles = reactors.handles().to_vec();
        target.set_waker(Box::new(move |reactor| handles[reactor].wake()));
        let opener = DeviceOpener {
            system,
            drives: Arc::clone(&drives),
        };
        let started = Started {
            opener: Box::new(opener),
            config,
            target: Arc::clone(&target),
            devices,
            reservation_files,
            ports,
            keys,
            tls_keys: tcp.tls_keys().clone(),
            transports: transports.into_iter().map(|it| it as _).collect(),
            arena: Some(Arc::clone(&arena)),
            control_queues,
            operator_states,
            files: Some(Arc::clone(&files)),
            copies: Arc::clone(&copies),
        };
        let reconciler = Reconciler::new(started, reactors.handles());
        let authentication = AuthenticationThread::start(&target, &cores)?;
        let pacing = PacingThread::start(&target, &cores)?;
        memory::populate_in_background(rest, &cores);
        let start_took = began.elapsed();
        Ok(Self {
            reconciler,
            file: None,
            request_sender: None,
            cores,
            arena,
            target,
            tcp,
            drives,
            reactors,
            counters,
            _authentication: authentication,
            _pacing: pacing,
            control: None,
            files,
            copies,
            start_took,
        })
    }

    /// Accepts requests from `request_sender` while it serves.
    pub(crate) fn accept_requests(&mut self, request_sender: RequestSender) {
        self.request_sender = Some(request_sender);
    }

    /// Starts the control plane. `file` is the configuration's file.
    pub(crate) fn open_control(&mut self, file: Option<&Path>) {
        self.file = file.map(Path::to_owned);
        let counters = std::mem::take(&mut self.counters);
        let sources = self.sources(counters);
        let control = &self.reconciler.config().control;
        let request_sender = self.request_sender.clone();
        self.control = Some(ControlPlane::start(control, sources, request_sender));
    }

    /// The sources of observations.
    fn sources(&self, transports: Vec<TransportCounters>) -> Sources {
        Sources {
            running: self.reconciler.running(),
            config_path: self.file.clone(),
            cores: self.cores.clone(),
            target: Arc::clone(&self.target),
            arena: Arc::clone(&self.arena),
            reactors: self.reactors.handles().to_vec(),
            clock: self.reactors.clock(),
            transports,
            files: Arc::clone(&self.files),
            copies: Arc::clone(&self.copies),
            drives: self.drives.sources(),
            started: Instant::now(),
            start_took: self.start_took,
        }
    }

    /// The sources of observations for a replacement of the control plane.
    #[cfg(feature = "probe")]
    pub(crate) fn sources_for_probe(&self) -> Sources {
        self.sources(Vec::new())
    }

    /// Compares each configuration in `requests` with the running one, and applies none.
    #[cfg(feature = "probe")]
    pub(crate) fn compare_only(&mut self, requests: &std::sync::mpsc::Receiver<Request>) {
        let mut watchdog_loop = WatchdogLoop::new(Heartbeat::from_environment(0, String::new()));
        for request in requests {
            if let Request::Apply(mut order) = request {
                order.options.dry_run = true;
                self.carry_out(order, &mut watchdog_loop);
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn status(&self) -> crate::observe::model::Status {
        crate::observe::observation::Observation::take(&self.sources(Vec::new()), None).status()
    }

    /// All counters and states.
    #[cfg(test)]
    pub(crate) fn observe(&self) -> crate::observe::observation::Observation {
        crate::observe::observation::Observation::take(&self.sources(self.counters.clone()), None)
    }

    /// The control plane, if it is started.
    pub(crate) fn control(&self) -> Option<&ControlPlane> {
        self.control.as_ref()
    }

    /// Checks the devices once, and notifies hosts of changes.
    pub(crate) fn poll(&mut self, now: Instant) {
        self.drives.poll(now);
        self.reconciler.poll();
        self.copies.report_ended(self.reconciler.devices());
    }

    /// Begins a copy of a device to another. Returns its number.
    ///
    /// # Errors
    /// Why it does not begin; nothing was changed.
    pub(crate) fn start_copy(&self, wanted: &CopyWanted) -> Result<u32, CopyRefusal> {
        let devices = self.reconciler.devices();
        let checked = copies::check(wanted, self.config(), devices, &self.copies)?;
        self.copies.start(checked)
    }

    fn start_copy_of(&self, job: CopyJob) {
        let CopyJob {
            wanted,
            reply,
            permit,
        } = job;
        let started = self.start_copy(&wanted);
        drop(permit);
        // The client may have disconnected; the log and the status tell the result.
        drop(reply.send(started));
    }

    /// Reports readiness, and serves until the process receives a request to end, a reactor has
    /// stopped, or a new process serves.
    ///
    /// # Errors
    /// A requested test hook is not available.
    pub(crate) fn serve_until(
        &mut self,
        termination: &mut RequestReceiver,
    ) -> Result<Ending, Failure> {
        let status = service::status_line(self.reconciler.config());
        service::install_hang_hook(self.reactors.handles())?;
        service::ready(&status);
        let mut watchdog_loop =
            WatchdogLoop::new(Heartbeat::from_environment(self.cores.len(), status));
        loop {
            match termination.next(watchdog_loop.pause()) {
                Some(Request::End) if self.store(&mut watchdog_loop) => return Ok(Ending::Stored),
                Some(Request::End) => return Ok(Ending::Stop),
                Some(Request::Reload) => service::reload(|| self.reload(&mut watchdog_loop)),
                Some(Request::Apply(order)) => self.carry_out(order, &mut watchdog_loop),
                Some(Request::Revoke(job)) => self.revoke_key(job, &mut watchdog_loop),
                Some(Request::Copy(job)) => self.start_copy_of(job),
                Some(Request::Upgrade(job)) => match self.upgrade(job, &mut watchdog_loop) {
                    Upgraded::Ends => return Ok(Ending::HandedOver),
                    Upgraded::Stays => {}
                },
                None => {}
            }
            self.poll(Instant::now());
            self.restore(&mut watchdog_loop);
            if !watchdog_loop.run_once(&self.reactors) {
                return Ok(Ending::Stop);
            }
        }
    }

    /// Serves the listeners again whose network card has returned, and runs the watchdog loop
    /// meanwhile.
    pub(crate) fn restore(&mut self, watchdog_loop: &mut WatchdogLoop) {
        let mut event_loop = with_watchdog(&self.drives, &self.reactors, watchdog_loop);
        self.reconciler.restore(&mut event_loop);
    }

    /// Revokes the secret of a key, and runs the watchdog loop meanwhile.
    pub(crate) fn revoke_key(&mut self, job: RevokeJob, watchdog_loop: &mut WatchdogLoop) {
        let RevokeJob {
            key,
            disconnect,
            reply,
            permit,
        } = job;
        let mut event_loop = with_watchdog(&self.drives, &self.reactors, watchdog_loop);
        let revoked = self
            .reconciler
            .revoke_key(&key, disconnect, &mut event_loop);
        drop(permit);
        // The client may have disconnected; the log and the status tell the result.
        let _ = reply.send(revoked);
    }

    /// Changes the appliance to the configuration `wanted`, and runs the watchdog loop meanwhile.
    pub(crate) fn apply(
        &mut self,
        wanted: &Config,
        options: ApplyOptions,
        watchdog_loop: &mut WatchdogLoop,
    ) -> ApplyAnswer {
        let Self {
            reconciler,
            drives,
            reactors,
            ..
        } = self;
        let mut event_loop = with_watchdog(drives, reactors, watchdog_loop);
        let response = reconciler.apply(wanted, options, &mut event_loop);
        drop(event_loop);
        watchdog_loop.set_status(service::status_line(self.reconciler.config()));
        response
    }

    fn carry_out(&mut self, order: ApplyJob, watchdog_loop: &mut WatchdogLoop) {
        let ApplyJob {
            text,
            options,
            reply,
            permit,
        } = order;
        let wanted = match text {
            Some(text) => Config::parse("the configuration", &text).map_err(ApplyRefusal::Wrong),
            None => self.load_again(),
        };
        let done = wanted.map(|wanted| self.apply(&wanted, options, watchdog_loop));
        drop(permit);
        // The client may have disconnected.
        drop(reply.send(done));
    }

    /// Applies the current content of the configuration's file. Returns one line about the result.
    fn reload(&mut self, watchdog_loop: &mut WatchdogLoop) -> Result<String, String> {
        // Requests are executed one at a time, so only a request that is still in the mailbox can
        // hold the turn.
        let permit = self
            .request_sender
            .as_ref()
            .and_then(RequestSender::try_acquire_permit);
        let wanted = self.load_again().map_err(|error| error.to_string())?;
        let response = self.apply(&wanted, ApplyOptions::default(), watchdog_loop);
        drop(permit);
        let status = service::status_line(self.reconciler.config());
        match response.failure_reason() {
            None => Ok(format!(
                "{status}; {} step(s) applied",
                response.steps.len()
            )),
            Some(failure_reason) => Err(format!(
                "{status}; the file is not applied: {failure_reason}"
            )),
        }
    }

    /// Loads the current content of the configuration's file.
    fn load_again(&self) -> Result<Config, ApplyRefusal> {
        let file = self.file.as_ref().ok_or(ApplyRefusal::NoFile)?;
        Config::load(file).map_err(|error| match error {
            LoadError::Problems(problems) => ApplyRefusal::Wrong(problems),
            other => ApplyRefusal::Unreadable(with_causes(&other)),
        })
    }

    /// Ends the process because a new one serves. Nothing is released, because both have the same
    /// connections, files and memory, except the control plane, which the new one opens then.
    pub(crate) fn leave(mut self) -> ! {
        // The answer to the client of the upgrade is on its way.
        std::thread::sleep(ANSWER_TIME);
        drop(self.control.take());
        std::process::exit(0)
    }

    /// Stops in phases. A second request to end aborts the wait. The exit status tells whether
    /// everything completed.
    pub(crate) fn stop(self, termination: &mut RequestReceiver) -> ExitCode {
        let is_clean = self.stop_unless(|| termination.wait(STOP_LOOK_INTERVAL));
        if is_clean {
            tracing::info!("stopped");
            return ExitCode::SUCCESS;
        }
        ExitCode::FAILURE
    }

    /// Stops in phases, unless `is_cut_short` returns true; it is called repeatedly and sleeps
    /// briefly each time. Returns whether everything completed.
    fn stop_unless(self, mut is_cut_short: impl FnMut() -> bool) -> bool {
        let deadline = self.shutdown_deadline();
        tracing::info!(
            ?deadline,
            "stopping: no new connections, finishing what is in flight"
        );
        service::stopping(deadline);
        self.target.shut_down();
        let (reconciler, drives, reactors) = (self.reconciler, self.drives, self.reactors);
        let copies = self.copies;
        let stopping = std::thread::spawn(move || {
            let within = Nanos(u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX));
            let report = reactors.stop(within);
            for outstanding in &report.outstanding {
                tracing::error!("not finished at the deadline: {outstanding}");
            }
            copies.report_ended(reconciler.devices());
            let flushed = reconciler.devices().flush_files();
            report.is_clean() && flushed
        });
        while !stopping.is_finished() {
            drives.reset_functions();
            if is_cut_short() {
                tracing::error!("second request to end: stopping immediately");
                return false;
            }
        }
        stopping.join().unwrap_or(false)
    }

    /// Stops as at the end of the process. Returns whether everything completed.
    #[cfg(test)]
    pub(crate) fn stop_quietly(self) -> bool {
        self.stop_unless(|| {
            std::thread::sleep(STOP_LOOK_INTERVAL);
            false
        })
    }

    #[cfg(test)]
    pub(crate) fn set_shutdown_deadline(&mut self, deadline: &str) {
        let mut wanted = self.config().clone();
        wanted.appliance.shutdown_deadline = deadline.parse().expect("a time");
        let response =
            self.reconciler
                .apply(&wanted, ApplyOptions::default(), &mut RealTime(|_| {}));
        assert!(response.applied, "{response:?}");
    }

    /// Number of pollers of each reactor.
    #[cfg(test)]
    pub(crate) fn pollers(&self) -> Vec<usize> {
        let handles = self.reactors.handles().iter();
        let count = |handle: &reactors::ReactorHandle| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let report = move |reactor: &mut reactors::Reactor| {
                let _ = sender.send(reactor.pollers());
            };
            handle.run(Box::new(report)).expect("it runs");
            receiver.recv().expect("it runs")
        };
        handles.map(count).collect()
    }

    #[cfg(test)]
    pub(crate) fn copies(&self) -> &Arc<Copies> {
        &self.copies
    }

    #[cfg(test)]
    pub(crate) fn reconciler(&mut self) -> &mut Reconciler {
        &mut self.reconciler
    }

    pub(crate) fn config(&self) -> &Config {
        self.reconciler.config()
    }

    /// Time in which a stop completes the requests in flight.
    fn shutdown_deadline(&self) -> Duration {
        self.config().appliance.shutdown_deadline.as_duration()
    }

    /// The core of each reactor.
    pub(crate) fn cores(&self) -> &[usize] {
        &self.cores
    }

    /// Whether the device of that name is open.
    pub(crate) fn has_device(&self, name: &Name) -> bool {
        self.reconciler.devices().get(name).is_some()
    }

    /// Where files are served.
    pub(crate) fn files_addresses(&self) -> Vec<SocketAddr> {
        let listeners = self.files.listeners();
        listeners.iter().map(|it| it.address).collect()
    }

    /// The bound address of each configured listener.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let listeners = self.config().listeners.iter();
        let bound = listeners.filter_map(|it| self.reconciler.ports().get(&it.name));
        bound.map(|port| port.address).collect()
    }

    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    pub(crate) fn start_took(&self) -> Duration {
        self.start_took
    }
}

/// The cores that this process may use.
fn allowed_cores() -> std::io::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|core| set.is_set(*core))
        .collect())
}

fn reactor_configs(config: &Config, cores: &[usize]) -> Vec<ReactorConfig> {
    let idle = match config.appliance.idle {
        Idle::Adaptive => IdlePolicy::adaptive(),
        Idle::Poll => IdlePolicy::Poll,
        Idle::Sleep => IdlePolicy::Sleep,
    };
    let stall_threshold = Nanos::from_micros(config.appliance.stall_threshold.as_micros());
    cores
        .iter()
        .map(|core| ReactorConfig {
            idle,
            stall_threshold,
            ..ReactorConfig::pinned(*core)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stall_threshold_comes_from_the_configuration() {
        let mut config = Config::default_embedded(Path::new("/tmp/x")).expect("valid");
        let threshold = |config: &Config| reactor_configs(config, &[3])[0].stall_threshold;
        assert_eq!(threshold(&config), Nanos::from_millis(50));
        config.appliance.stall_threshold = "200ms".parse().expect("a time");
        assert_eq!(threshold(&config), Nanos::from_millis(200));
    }
}
