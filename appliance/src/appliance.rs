//! The appliance's start, watch and stop, in order.
//!
//! Start: addresses, memory, drives and other devices, target, reactors. Stop: no new connections,
//! what is in flight to its end or the deadline, devices flushed, drives shut down, files closed.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use appliance_config::{Config, Idle};
use arc_swap::ArcSwap;
use hugemem::Arena;
use nvme_driver::DriveOwner;
use nvme_target::Target;
use reactors::{Clock, IdlePolicy, Nanos, ReactorConfig, Reactors};

use crate::command_line::Failure;
use crate::control::ControlPlane;
use crate::devices::Devices;
use crate::exports;
use crate::memory;
use crate::nvme::{self, Bus, Drives, Vfio};
use crate::observe::sources::{Sources, TransportCounters};
use crate::reactor_setup::{Parts, set_up};
use crate::service::{self, Heartbeat};
use crate::signals::Termination;
use crate::summary;
use crate::transports::Listeners;
use crate::watch::Watch;

/// How often reactors and devices are looked after.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// How often a stop under way is looked after.
const STOP_LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// A single poll longer than this is counted as a stall and warned of: on a core that other
/// programs use too, the scheduler alone takes a thread away for over ten milliseconds.
const STALL_THRESHOLD: Nanos = Nanos::from_millis(50);
/// A reactor that does not come back from one call for this long is reported.
const STUCK_AFTER: Nanos = Nanos::from_secs(2);

/// A running appliance.
pub(crate) struct Appliance {
    config: Config,
    cores: Vec<usize>,
    addresses: Vec<SocketAddr>,
    arena: Arc<Arena>,
    target: Arc<Target>,
    devices: Devices,
    drives: Drives,
    watch: Watch,
    reactors: Reactors,
    counters: Vec<TransportCounters>,
    /// Behind the reactors: it tells how they stop.
    control: Option<ControlPlane>,
    start_took: Duration,
}

#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("appliance.cores: {cause}")]
    Cores {
        cause: appliance_config::CoresNotAllowed,
    },
}

impl Appliance {
    /// Starts what `config` says; when this returns, the exports answer.
    ///
    /// # Errors
    /// The first thing that cannot be had. Nothing is left running.
    pub(crate) fn start(config: Config) -> Result<Self, Failure> {
        Self::start_with(config, |arena, reactors| {
            let system = vfio::System::default();
            Box::new(Vfio::new(system, Arc::clone(arena), reactors))
        })
    }

    /// The same with drives from the bus that `bus` makes for an arena and a number of reactors.
    pub(crate) fn start_with(
        config: Config,
        bus: impl FnOnce(&Arc<Arena>, usize) -> Box<dyn Bus>,
    ) -> Result<Self, Failure> {
        let began = Instant::now();
        for notice in config.notices() {
            tracing::warn!("{notice}");
        }
        let cores = config
            .appliance
            .cores
            .resolve(&allowed_cores()?)
            .map_err(|cause| StartError::Cores { cause })?;
        let listeners = Listeners::bind(&config, cores.len())?;
        let addresses = listeners.addresses().to_vec();
        let (arena, rest) = memory::take(&config)?;
        let bus = bus(&arena, cores.len());
        let started = nvme::start(bus, &config, &arena, cores.len());
        let drives = started.drives;
        let devices = Devices::open(&config, &arena, started.devices)?;
        let target = Target::new(
            exports::target_config(
                &listeners.lower_limits(&config),
                &devices,
                &addresses,
                arena.max_transfer(),
            ),
            cores.len(),
            devices.all().to_vec(),
        )?;
        let transports =
            listeners.into_transports(&config, cores.len(), &devices.regions(&arena))?;
        let counters = transports.iter().map(|it| it.counters()).collect();
        let parts = Parts {
            arena: Arc::clone(&arena),
            devices: devices.all().to_vec(),
            target: Arc::clone(&target),
            transports,
            owners: owners_by_reactor(started.owners, cores.len()),
            undrained: Arc::new(AtomicUsize::new(cores.len())),
        };
        let reactors = Reactors::start(reactor_configs(&config, &cores), move |index, setup| {
            set_up(&parts, index, setup)
        })?;
        drives.set_wakers(reactors.handles());
        let handles = reactors.handles().to_vec();
        target.set_waker(Box::new(move |reactor| handles[reactor].wake()));
        let watch = Watch::new(&config, &devices);
        memory::populate_behind(rest);
        let start_took = began.elapsed();
        Ok(Self {
            config,
            cores,
            addresses,
            arena,
            target,
            devices,
            drives,
            watch,
            reactors,
            counters,
            control: None,
            start_took,
        })
    }

    /// Begins to answer people and programs; `file` is where the configuration came from.
    pub(crate) fn open_control(&mut self, file: Option<&Path>) {
        let sources = Sources {
            config: Arc::new(ArcSwap::from_pointee(self.config.clone())),
            config_path: file.map(Path::to_owned),
            addresses: self.addresses.clone(),
            cores: self.cores.clone(),
            target: Arc::clone(&self.target),
            arena: Arc::clone(&self.arena),
            reactors: self.reactors.handles().to_vec(),
            clock: self.reactors.clock(),
            transports: std::mem::take(&mut self.counters),
            drives: self.drives.sources(),
            started: Instant::now(),
            start_took: self.start_took,
        };
        self.control = Some(ControlPlane::start(&self.config.control, sources));
    }

    /// Where people and programs get answers, once it is open.
    pub(crate) fn control(&self) -> Option<&ControlPlane> {
        self.control.as_ref()
    }

    /// Looks after the devices once, and tells hosts what changed.
    pub(crate) fn look(&mut self, now: Instant) {
        self.drives.look(now);
        self.watch.look(&self.config, &self.devices, &self.target);
    }

    /// Says that all is ready, and looks after reactors and devices until the process is asked to
    /// end or a reactor is gone.
    ///
    /// # Errors
    /// A test hook that was asked for cannot be had.
    pub(crate) fn serve_until(&mut self, termination: &mut Termination) -> Result<(), Failure> {
        let status = summary::status_line(&self.config);
        service::offer_to_stick(self.reactors.handles())?;
        service::ready(&status);
        let mut heartbeat = Heartbeat::from_environment(self.cores.len(), status);
        let mut told = vec![false; self.cores.len()];
        while !termination.wait(heartbeat.pause(WATCH_INTERVAL)) {
            self.look(Instant::now());
            let now = self.reactors.clock().now();
            for handle in self.reactors.handles() {
                if !handle.is_running() {
                    // Its connections are lost; a restart brings all of them back.
                    tracing::error!("reactor {} has died: stopping", handle.index());
                    return Ok(());
                }
                let stuck = handle.stuck_in(now, STUCK_AFTER);
                let told = &mut told[handle.index()];
                if let Some(stuck) = stuck.as_ref().filter(|_| !*told) {
                    let (name, seconds) = (&stuck.name, stuck.lasted.as_secs_f64());
                    tracing::error!(
                        "reactor {} is stuck in {name}: {seconds:.1} s",
                        handle.index()
                    );
                } else if *told && stuck.is_none() {
                    tracing::warn!("reactor {} makes turns again", handle.index());
                }
                *told = stuck.is_some();
            }
            heartbeat.beat(self.reactors.handles(), now, STUCK_AFTER);
        }
        Ok(())
    }

    /// Stops in phases. A second request to end cuts it short; the exit status tells whether all
    /// came to its end.
    pub(crate) fn stop(self, termination: &mut Termination) -> ExitCode {
        let is_clean = self.stop_unless(|| termination.wait(STOP_LOOK_INTERVAL));
        if is_clean {
            tracing::info!("stopped");
            return ExitCode::SUCCESS;
        }
        ExitCode::FAILURE
    }

    /// Stops in phases, unless `is_cut_short`, which is asked again and again and rests a little
    /// each time. Whether all came to its end.
    fn stop_unless(self, mut is_cut_short: impl FnMut() -> bool) -> bool {
        let deadline = self.config.appliance.shutdown_deadline.as_duration();
        tracing::info!(
            ?deadline,
            "stopping: no new connections, finishing what is in flight"
        );
        service::stopping(deadline);
        self.target.shut_down();
        let (devices, drives, reactors) = (self.devices, self.drives, self.reactors);
        let stopping = std::thread::spawn(move || {
            let within = Nanos(u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX));
            let report = reactors.stop(within);
            for outstanding in &report.outstanding {
                tracing::error!("not finished at the deadline: {outstanding}");
            }
            let flushed = devices.flush_files();
            report.is_clean() && flushed
        });
        while !stopping.is_finished() {
            drives.reset_functions();
            if is_cut_short() {
                tracing::error!("asked to end twice: stopping at once, without waiting");
                return false;
            }
        }
        stopping.join().unwrap_or(false)
    }

    /// Stops as at the end of the process. Whether all came to its end.
    #[cfg(test)]
    pub(crate) fn stop_quietly(self) -> bool {
        self.stop_unless(|| {
            std::thread::sleep(STOP_LOOK_INTERVAL);
            false
        })
    }

    #[cfg(test)]
    pub(crate) fn set_shutdown_deadline(&mut self, deadline: &str) {
        self.config.appliance.shutdown_deadline = deadline.parse().expect("a time");
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The core of each reactor.
    pub(crate) fn cores(&self) -> &[usize] {
        &self.cores
    }

    /// Whether the device at `index` of the configuration could be had.
    pub(crate) fn has_device(&self, index: usize) -> bool {
        self.devices.get(index).is_some()
    }

    /// What each listener is bound to.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub(crate) fn arena(&self) -> &Arena {
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

/// The owners of drives by the reactor that they belong to.
fn owners_by_reactor(
    owners: Vec<(usize, DriveOwner)>,
    reactors: usize,
) -> Vec<Mutex<Vec<DriveOwner>>> {
    let mut all: Vec<Vec<DriveOwner>> = (0..reactors).map(|_| Vec::new()).collect();
    for (reactor, owner) in owners {
        all[reactor].push(owner);
    }
    all.into_iter().map(Mutex::new).collect()
}

fn reactor_configs(config: &Config, cores: &[usize]) -> Vec<ReactorConfig> {
    let idle = match config.appliance.idle {
        Idle::Adaptive => IdlePolicy::adaptive(),
        Idle::Poll => IdlePolicy::Poll,
        Idle::Sleep => IdlePolicy::Sleep,
    };
    cores
        .iter()
        .map(|core| ReactorConfig {
            idle,
            stall_threshold: STALL_THRESHOLD,
            ..ReactorConfig::pinned(*core)
        })
        .collect()
}
