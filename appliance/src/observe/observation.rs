//! One look at every counter.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use appliance_config::Config;
use block::Health;
use hugemem::ArenaCounters;
use nvme_target::{DeviceIndex, TargetLatency, TargetSnapshot, TargetStatuses};
use reactors::{Clock, Nanos, ReactorSnapshot, StuckPoller};

use super::model::{BUFFER_WAIT_MAX_NS, TargetStatus};
use super::sources::Sources;

/// A reactor that does not come back from one call for this long is stuck.
pub(crate) const STUCK_AFTER: Nanos = Nanos::from_secs(2);

/// The counters of one reactor's part of a transport, by name.
pub(crate) type CountsSeen = Vec<(&'static str, u64)>;

/// Everything that was counted at one moment, not atomically together.
pub(crate) struct Observation {
    pub(crate) at: Instant,
    pub(crate) unix_ms: u64,
    pub(crate) uptime: Duration,
    pub(crate) start_took: Duration,
    pub(crate) config: Arc<Config>,
    pub(crate) config_path: Option<PathBuf>,
    /// What each listener of the configuration is bound to.
    pub(crate) addresses: Vec<Option<String>>,
    pub(crate) target: TargetSnapshot,
    /// How long commands took since the start.
    pub(crate) latency: Arc<TargetLatency>,
    /// An earlier look at that, a few seconds ago where there is one.
    pub(crate) before: LatencyBefore,
    /// Which errors commands ended with since the start.
    pub(crate) statuses: TargetStatuses,
    pub(crate) reactors: Vec<ReactorSeen>,
    pub(crate) memory: MemorySeen,
    /// Those of the target, in its order.
    pub(crate) devices: Vec<DeviceSeen>,
    /// By transport, one set for each reactor.
    pub(crate) transports: Vec<(&'static str, Vec<CountsSeen>)>,
    /// By transport, what it has as a whole.
    pub(crate) transport_levels: Vec<(&'static str, CountsSeen)>,
}

/// Latencies at an earlier moment.
#[derive(Clone)]
pub(crate) struct LatencyBefore {
    pub(crate) at: Instant,
    pub(crate) latency: Arc<TargetLatency>,
}

/// One reactor.
pub(crate) struct ReactorSeen {
    pub(crate) core: usize,
    pub(crate) is_running: bool,
    pub(crate) stuck: Option<StuckPoller>,
    pub(crate) stats: ReactorSnapshot,
    pub(crate) counters: CoreSeen,
}

/// The counters of one reactor's target core.
#[derive(Clone, Copy, Default)]
pub(crate) struct CoreSeen {
    pub(crate) totals: TargetStatus,
    /// Queues now.
    pub(crate) queues: u64,
    /// Commands in execution now.
    pub(crate) executions: u64,
}

/// The arena.
pub(crate) struct MemorySeen {
    pub(crate) bytes: u64,
    pub(crate) page_bytes: u64,
    pub(crate) notices: Vec<String>,
    pub(crate) counters: ArenaCounters,
}

/// One device.
pub(crate) struct DeviceSeen {
    /// Its place in the target.
    pub(crate) place: DeviceIndex,
    pub(crate) name: String,
    pub(crate) block_size: u32,
    pub(crate) block_count: u64,
    pub(crate) uuid: Option<String>,
    pub(crate) health: Health,
    /// The counters of the driver, for a device on a drive.
    pub(crate) drive: Option<BTreeMap<&'static str, u64>>,
}

impl Observation {
    /// Reads all counters. `before` is what latencies of the last seconds are taken against; without
    /// it, the start.
    pub(crate) fn take(sources: &Sources, before: Option<&LatencyBefore>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let config = sources.running.config.load_full();
        let ports = sources.running.ports.load();
        let region = sources.arena.region();
        Self {
            at: Instant::now(),
            unix_ms: now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX)),
            uptime: sources.started.elapsed(),
            start_took: sources.start_took,
            config_path: sources.config_path.clone(),
            addresses: config
                .listeners
                .iter()
                .map(|listener| Some(ports.get(&listener.name)?.address.to_string()))
                .collect(),
            target: sources.target.snapshot(),
            latency: Arc::new(sources.target.latency()),
            statuses: sources.target.statuses(),
            before: before.cloned().unwrap_or_else(|| LatencyBefore {
                at: sources.started,
                latency: Arc::default(),
            }),
            reactors: reactors(sources),
            memory: MemorySeen {
                bytes: region.len() as u64,
                page_bytes: region.page_size().bytes() as u64,
                notices: region.notices().iter().map(ToString::to_string).collect(),
                counters: sources.arena.counters(),
            },
            devices: devices(sources),
            transports: sources
                .transports
                .iter()
                .map(|transport| {
                    let each = transport.reactors.iter();
                    (transport.name, each.map(|counts| counts.values()).collect())
                })
                .collect(),
            transport_levels: sources
                .transports
                .iter()
                .filter_map(|transport| Some((transport.name, transport.whole.as_ref()?.values())))
                .collect(),
            config,
        }
    }

    /// The device of that name, if it could be had.
    pub(crate) fn device(&self, name: &str) -> Option<&DeviceSeen> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// Why the exports do not answer, if they do not.
    pub(crate) fn ailment(&self) -> Option<String> {
        if self.target.shutting_down {
            return Some("stopping".to_owned());
        }
        self.reactors
            .iter()
            .enumerate()
            .find_map(|(index, reactor)| {
                if !reactor.is_running {
                    return Some(format!("reactor {index} has died"));
                }
                let stuck = reactor.stuck.as_ref()?;
                let seconds = stuck.lasted.0 / 1_000_000_000;
                Some(format!(
                    "reactor {index} is stuck in {} for {seconds} s",
                    stuck.name
                ))
            })
    }

    /// Which exported devices have lost data that they had accepted, and why, if any.
    pub(crate) fn damage(&self) -> Option<String> {
        let subsystems = self.target.subsystems.iter();
        let namespaces = subsystems.flat_map(|subsystem| &subsystem.namespaces);
        let exported: Vec<DeviceIndex> = namespaces.map(|(_, place)| *place).collect();
        let damaged = self.devices.iter().filter_map(|device| {
            let damage = device.health.damage?;
            let DeviceSeen { name, .. } = device;
            exported.contains(&device.place).then(|| {
                format!(
                    "device {name} is damaged: {}: writes and flushes fail until `windlass device \
                     reopen {name}`",
                    damage.cause
                )
            })
        });
        let damaged: Vec<String> = damaged.collect();
        (!damaged.is_empty()).then(|| damaged.join("; "))
    }

    /// What keeps some requests from being answered, although the exports answer: hosts that take
    /// more than their share cause it, and must not be able to have the appliance taken for dead.
    pub(crate) fn degradation(&self) -> Option<String> {
        let waits = self.memory.counters.oldest_wait_ns > BUFFER_WAIT_MAX_NS;
        // The same text for as long as it lasts: each change is an event.
        waits.then(|| "requests wait more than a second for a buffer".to_owned())
    }

    /// The connections of a transport now, all reactors together.
    pub(crate) fn connections(&self, transport: &str) -> Option<u64> {
        let (_, reactors) = self
            .transports
            .iter()
            .find(|(name, _)| *name == transport)?;
        let levels = reactors.iter().flatten();
        let levels = levels.filter(|(name, _)| *name == "connections");
        Some(levels.map(|(_, value)| value).sum())
    }
}

fn reactors(sources: &Sources) -> Vec<ReactorSeen> {
    let now = sources.clock.now();
    let handles = sources.reactors.iter();
    handles
        .map(|handle| ReactorSeen {
            core: sources.cores.get(handle.index()).copied().unwrap_or(0),
            is_running: handle.is_running(),
            stuck: handle.stuck_in(now, STUCK_AFTER),
            stats: handle.stats().snapshot(now),
            counters: core(sources, handle.index()),
        })
        .collect()
}

fn core(sources: &Sources, reactor: usize) -> CoreSeen {
    let Some(counters) = sources.target.core_counters(reactor) else {
        return CoreSeen::default();
    };
    CoreSeen {
        totals: TargetStatus::read(&counters),
        queues: counters.queues.get(),
        executions: counters.executions.get(),
    }
}

fn devices(sources: &Sources) -> Vec<DeviceSeen> {
    let uuids = sources.running.uuids.load();
    let devices = sources.target.devices().into_iter();
    devices
        .map(|(place, device)| {
            let geometry = device.geometry();
            let drive = sources.drives.iter().find(|drive| drive.has(device.name()));
            DeviceSeen {
                place,
                name: device.name().to_owned(),
                block_size: geometry.block_size,
                block_count: geometry.block_count,
                uuid: uuids.get(&place).map(|uuid| uuid.hyphenated().to_string()),
                health: device.health(),
                drive: drive.map(|drive| drive.counters().into_iter().collect()),
            }
        })
        .collect()
}
