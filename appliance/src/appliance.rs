//! The appliance's start, watch and stop, in order.
//!
//! Start: addresses, memory, devices, target, reactors. Stop: no new connections, what is in flight
//! to its end or the deadline, devices flushed, files closed.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use appliance_config::{Config, Idle};
use hugemem::{Arena, ArenaConfig};
use nvme_target::Target;
use reactors::{Clock, IdlePolicy, Nanos, ReactorConfig, Reactors};

use crate::command_line::Failure;
use crate::devices::{Devices, page_policy};
use crate::exports;
use crate::reactor_setup::{Parts, set_up};
use crate::signals::Termination;
use crate::transports::Listeners;
use crate::watch::Watch;

/// How often reactors and devices are looked after.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
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
    watch: Watch,
    reactors: Reactors,
    start_took: Duration,
}

#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("appliance.cores: {cause}")]
    Cores {
        cause: appliance_config::CoresNotAllowed,
    },
    #[error("appliance.memory = {memory}")]
    Memory {
        memory: String,
        #[source]
        cause: hugemem::ArenaError,
    },
}

impl Appliance {
    /// Starts what `config` says; when this returns, the exports answer.
    ///
    /// # Errors
    /// The first thing that cannot be had. Nothing is left running.
    pub(crate) fn start(config: Config) -> Result<Self, Failure> {
        let began = Instant::now();
        for notice in config.notices() {
            tracing::warn!("{notice}");
        }
        let cores = config
            .appliance
            .cores
            .resolve(&allowed_cores()?)
            .map_err(|cause| StartError::Cores { cause })?;
        let listeners = Listeners::bind(&config)?;
        let addresses = listeners.addresses().to_vec();
        let arena = take_memory(&config)?;
        let devices = Devices::open(&config, &arena)?;
        let target = Target::new(
            exports::target_config(&config, &devices, &addresses, arena.max_transfer()),
            cores.len(),
            devices.all().to_vec(),
        )?;
        let parts = Parts {
            arena: Arc::clone(&arena),
            devices: devices.all().to_vec(),
            target: Arc::clone(&target),
            transports: listeners.into_transports(&config, cores.len()),
        };
        let reactors = Reactors::start(reactor_configs(&config, &cores), move |index, setup| {
            set_up(&parts, index, setup)
        })?;
        let handles = reactors.handles().to_vec();
        target.set_waker(Box::new(move |reactor| handles[reactor].wake()));
        let watch = Watch::new(&config, &devices);
        let start_took = began.elapsed();
        Ok(Self {
            config,
            cores,
            addresses,
            arena,
            target,
            devices,
            watch,
            reactors,
            start_took,
        })
    }

    /// Looks after reactors and devices until the process is asked to end or a reactor is gone.
    pub(crate) fn serve_until(&mut self, termination: &mut Termination) {
        while !termination.wait(WATCH_INTERVAL) {
            self.watch.look(&self.config, &self.devices, &self.target);
            let now = self.reactors.clock().now();
            for handle in self.reactors.handles() {
                if !handle.is_running() {
                    // Its connections are lost; a restart brings all of them back.
                    tracing::error!("reactor {} has died: stopping", handle.index());
                    return;
                }
                if let Some(stuck) = handle.stuck_in(now, STUCK_AFTER) {
                    tracing::error!("reactor {} is stuck: {stuck:?}", handle.index());
                }
            }
        }
    }

    /// Stops in phases. A second request to end cuts it short; the exit status tells whether all
    /// came to its end.
    pub(crate) fn stop(self, termination: &mut Termination) -> ExitCode {
        let deadline = self.config.appliance.shutdown_deadline.as_duration();
        tracing::info!(
            ?deadline,
            "stopping: no new connections, finishing what is in flight"
        );
        self.target.shut_down();
        let (devices, reactors) = (self.devices, self.reactors);
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
            if termination.wait(Duration::from_millis(10)) {
                tracing::error!("asked to end twice: stopping at once, without waiting");
                return ExitCode::FAILURE;
            }
        }
        match stopping.join() {
            Ok(true) => {
                tracing::info!("stopped");
                ExitCode::SUCCESS
            }
            Ok(false) | Err(_) => ExitCode::FAILURE,
        }
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The core of each reactor.
    pub(crate) fn cores(&self) -> &[usize] {
        &self.cores
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

fn take_memory(config: &Config) -> Result<Arc<Arena>, StartError> {
    let memory = config.appliance.memory;
    let arena = Arena::new(ArenaConfig {
        bytes: memory.bytes() as usize,
        pages: page_policy(config.appliance.pages),
        max_transfer: config.limits.max_transfer.bytes() as usize,
    })
    .map_err(|cause| StartError::Memory {
        memory: memory.to_string(),
        cause,
    })?;
    for notice in arena.region().notices() {
        tracing::warn!("memory: {notice}");
    }
    Ok(arena)
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
