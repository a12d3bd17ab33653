//! A sample of all counters.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use appliance_config::{Config, Name};
use block::Health;
use files_server::ShareCounters;
use hugemem::{ArenaCounters, DeviceMemory};
use nvme_target::{
    CopyTotals, DeviceIndex, KeyUse, PaceSnapshot, RateLimitSnapshot, TargetLatency,
    TargetSnapshot, TargetStatuses, TransferTotals,
};
use reactors::{Clock, Nanos, ReactorSnapshot, StuckPoller};

use super::model::{BUFFER_WAIT_MAX_NS, OperationSample, TargetStatus, lost_rdma};
use super::sources::Sources;
use crate::copies::CopySample;
use crate::exports::BoundPort;
use crate::files::{Files, ServedVolume};
use crate::operator_states::OperatorStates;

/// A reactor that is in one call for longer than this is stuck.
pub(crate) const STUCK_AFTER: Nanos = Nanos::from_secs(2);

/// The counters of one reactor's part of a transport, by name.
pub(crate) type CounterValues = Vec<(&'static str, u64)>;

/// All counters at one time. They are not read atomically.
pub(crate) struct Observation {
    pub(crate) at: Instant,
    pub(crate) unix_ms: u64,
    pub(crate) uptime: Duration,
    pub(crate) start_took: Duration,
    pub(crate) config: Arc<Config>,
    /// The ANA states that operators have set.
    pub(crate) operator_states: OperatorStates,
    pub(crate) config_path: Option<PathBuf>,
    /// The bound port of each listener of the configuration.
    pub(crate) ports: Vec<Option<BoundPort>>,
    pub(crate) target: TargetSnapshot,
    /// The time of the reactors' clock.
    pub(crate) now: Nanos,
    /// The uses of keys since the start.
    pub(crate) key_uses: BTreeMap<String, KeyUse>,
    /// The keys whose secrets are revoked.
    pub(crate) revoked_keys: Arc<BTreeSet<Name>>,
    /// The rate limits of the target.
    pub(crate) rate_limits: Vec<RateLimitSnapshot>,
    pub(crate) paces: Vec<PaceSnapshot>,
    /// Latencies since the start.
    pub(crate) latency: Arc<TargetLatency>,
    /// An earlier sample of the latencies, a few seconds old if there is one.
    pub(crate) before: LatencyBefore,
    /// The errors of commands since the start.
    pub(crate) statuses: TargetStatuses,
    pub(crate) reactors: Vec<ReactorSample>,
    pub(crate) memory: MemorySample,
    /// The devices of the target, in its order.
    pub(crate) devices: Vec<DeviceSample>,
    /// By transport, one set for each reactor.
    pub(crate) transports: Vec<(&'static str, Vec<CounterValues>)>,
    /// By transport, the values of the transport as a whole.
    pub(crate) transport_levels: Vec<(&'static str, CounterValues)>,
    /// The counters of the handshakes of TLS.
    pub(crate) handshakes: CounterValues,
    /// The file service, if there is one.
    pub(crate) files: Option<FilesSample>,
    /// The copies of devices, in the order of their numbers.
    pub(crate) copies: Vec<CopySample>,
}

/// Latencies at an earlier time.
#[derive(Clone)]
pub(crate) struct LatencyBefore {
    pub(crate) at: Instant,
    pub(crate) latency: Arc<TargetLatency>,
}

/// The counters of one reactor.
pub(crate) struct ReactorSample {
    pub(crate) core: usize,
    pub(crate) is_running: bool,
    pub(crate) stuck: Option<StuckPoller>,
    pub(crate) stats: ReactorSnapshot,
    pub(crate) counters: CoreSample,
}

/// The counters of one reactor's target core.
#[derive(Clone, Copy, Default)]
pub(crate) struct CoreSample {
    pub(crate) totals: TargetStatus,
    /// Current number of queues.
    pub(crate) queues: u64,
    /// Current number of commands in execution.
    pub(crate) executions: u64,
}

/// The counters of the file service.
pub(crate) struct FilesSample {
    pub(crate) service: FileServiceSample,
    /// The volumes that are served, by name.
    pub(crate) volumes: BTreeMap<Name, VolumeSample>,
    /// The shares that are served, by name.
    pub(crate) shares: BTreeMap<Name, ShareSample>,
    /// The bound addresses of its listeners, by name.
    pub(crate) addresses: BTreeMap<Name, String>,
    /// The operations that were executed.
    pub(crate) operations: Vec<OperationSample>,
}

/// What concerns all shares.
pub(crate) struct FileServiceSample {
    pub(crate) connections: u64,
    pub(crate) connections_accepted: u64,
    pub(crate) requests_in_flight: u64,
    pub(crate) requests: u64,
    pub(crate) replays: u64,
    pub(crate) clients: u64,
    pub(crate) sessions: u64,
    pub(crate) opens: u64,
    pub(crate) locks: u64,
    pub(crate) clients_expired: u64,
    pub(crate) clients_evicted: u64,
    pub(crate) read_bytes_borrowed: u64,
    pub(crate) read_bytes_copied: u64,
    pub(crate) write_bytes_inline: u64,
    pub(crate) write_bytes_copied: u64,
    pub(crate) write_bytes_fetched: u64,
    pub(crate) rdma_connections: u64,
    pub(crate) rdma_devices_missing: u64,
    pub(crate) rdma_listeners_down: u64,
    pub(crate) rdma_connections_failed: u64,
    pub(crate) rdma_calls_refused: u64,
    pub(crate) rdma_bytes_written: u64,
    pub(crate) rdma_bytes_read: u64,
    pub(crate) in_grace: bool,
}

/// The levels of a volume.
pub(crate) struct VolumeSample {
    pub(crate) data_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) inodes: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) memory_bytes_max: u64,
    pub(crate) log_bytes: u64,
    pub(crate) log_bytes_max: u64,
    pub(crate) has_failed: bool,
    pub(crate) is_lost: bool,
}

/// The counters and levels of a share.
pub(crate) struct ShareSample {
    pub(crate) reads: u64,
    pub(crate) bytes_read: u64,
    pub(crate) writes: u64,
    pub(crate) bytes_written: u64,
    pub(crate) inodes: u64,
    pub(crate) bytes_used: u64,
}

/// The counters of the arena.
pub(crate) struct MemorySample {
    pub(crate) bytes: u64,
    pub(crate) page_bytes: u64,
    pub(crate) notices: Vec<String>,
    pub(crate) counters: ArenaCounters,
}

/// The counters of one device.
pub(crate) struct DeviceSample {
    /// Its index in the target.
    pub(crate) place: DeviceIndex,
    pub(crate) name: String,
    pub(crate) block_size: u32,
    pub(crate) block_count: u64,
    pub(crate) uuid: Option<String>,
    pub(crate) health: Health,
    /// Whether hosts are refused because the stored reservations cannot be restored.
    pub(crate) has_damaged_reservations: bool,
    /// The counters of the driver, for a device on a drive.
    pub(crate) drive: Option<BTreeMap<&'static str, u64>>,
    /// The memory of the device itself.
    pub(crate) memory: Option<Arc<DeviceMemory>>,
    /// The ways of the copies to it.
    pub(crate) copies: CopyTotals,
    /// The ways of its reads and writes.
    pub(crate) transfers: TransferTotals,
}

impl Observation {
    /// Reads all counters. Latencies of the last seconds are relative to `before`, or to the start
    /// without it.
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
            ports: config
                .listeners
                .iter()
                .map(|listener| ports.get(&listener.name))
                .collect(),
            target: sources.target.snapshot(),
            now: sources.clock.now(),
            key_uses: sources.target.key_uses(),
            revoked_keys: sources.running.revoked_keys.load_full(),
            rate_limits: sources.target.rate_limits(),
            paces: sources.target.paces(),
            latency: Arc::new(sources.target.latency()),
            statuses: sources.target.statuses(),
            before: before.cloned().unwrap_or_else(|| LatencyBefore {
                at: sources.started,
                latency: Arc::default(),
            }),
            reactors: reactors(sources),
            memory: MemorySample {
                bytes: region.len() as u64,
                page_bytes: region.page_size().bytes() as u64,
                notices: region.notices().iter().map(ToString::to_string).collect(),
                counters: sources.arena.counters(),
            },
            devices: devices(sources),
            transports: sources
                .transports
                .iter()
                .filter(|transport| transport.is_used())
                .map(|transport| {
                    let each = transport.reactors.iter();
                    (transport.name, each.map(|counts| counts.values()).collect())
                })
                .collect(),
            transport_levels: sources
                .transports
                .iter()
                .filter(|transport| transport.is_used())
                .filter_map(|transport| Some((transport.name, transport.whole.as_ref()?.values())))
                .collect(),
            handshakes: sources
                .transports
                .iter()
                .filter_map(|transport| transport.tls.as_ref())
                .flat_map(|counters| counters.each())
                .collect(),
            operator_states: sources.running.operator_states.lock().clone(),
            files: sources.files.is_used().then(|| files(&sources.files)),
            copies: sources.copies.samples(),
            config,
        }
    }

    /// The device of that name, if it is open.
    pub(crate) fn device(&self, name: &str) -> Option<&DeviceSample> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// Why the exports are not available, if so.
    pub(crate) fn outage(&self) -> Option<String> {
        if self.target.shutting_down {
            return Some("stopping".to_owned());
        }
        self.reactors
            .iter()
            .enumerate()
            .find_map(|(index, reactor)| {
                if !reactor.is_running {
                    return Some(format!("reactor {index} has ended unexpectedly"));
                }
                let stuck = reactor.stuck.as_ref()?;
                let seconds = stuck.lasted.0 / 1_000_000_000;
                Some(format!(
                    "reactor {index} is stuck in {} for {seconds} s",
                    stuck.name
                ))
            })
    }

    /// The exported devices that lost accepted data or whose reservations are damaged, and the volumes
    /// whose metadata could not be stored, with the causes, if any.
    pub(crate) fn damage(&self) -> Option<String> {
        let subsystems = self.target.subsystems.iter();
        let namespaces = subsystems.flat_map(|subsystem| &subsystem.namespaces);
        let exported: Vec<DeviceIndex> = namespaces.map(|(_, place)| *place).collect();
        let mut damaged = Vec::new();
        for device in self
            .devices
            .iter()
            .filter(|it| exported.contains(&it.place))
        {
            let DeviceSample { name, .. } = device;
            if let Some(damage) = device.health.damage {
                damaged.push(format!(
                    "device {name} is damaged: {}: writes and flushes fail until `windlass device \
                     reopen {name}`",
                    damage.cause
                ));
            }
            if device.has_damaged_reservations {
                damaged.push(format!(
                    "the reservations of device {name} are damaged: hosts are refused until \
                     `windlass reservations {name} --clear`"
                ));
            }
        }
        for (name, volume) in self.files.iter().flat_map(|it| &it.volumes) {
            if volume.has_failed {
                damaged.push(read_only_volume(name.as_str()));
            }
            if volume.is_lost {
                damaged.push(lost_volume(name.as_str()));
            }
        }
        (!damaged.is_empty()).then(|| damaged.join("; "))
    }

    /// Why some requests are delayed although the exports are available. Not part
    /// of [`outage`](Self::outage): hosts that exceed their share cause it, and must not be able
    /// to make the appliance appear down.
    pub(crate) fn degradation(&self) -> Option<String> {
        let waits = self.memory.counters.oldest_wait_ns > BUFFER_WAIT_MAX_NS;
        // The text stays the same while the condition lasts, because each change is an event.
        waits.then(|| "requests wait more than a second for a buffer".to_owned())
    }

    /// Lost RDMA devices and listeners without a device, if there are any. Not part of
    /// [`outage`](Self::outage): hosts may use other listeners.
    pub(crate) fn lost_rdma(&self) -> Option<String> {
        let service = self.files.as_ref().map(|it| &it.service);
        let of_files = service.map(|it| (it.rdma_devices_missing, it.rdma_listeners_down));
        lost_rdma(&self.transport_totals(), of_files)
    }

    /// The current connections of a transport, over all reactors.
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

/// Describes a volume whose metadata could not be stored.
pub(crate) fn read_only_volume(name: &str) -> String {
    format!(
        "volume {name} is read-only: its device failed to store metadata: repair the underlying \
         storage, then restart"
    )
}

/// What an operator has to know of a volume whose device is gone.
pub(crate) fn lost_volume(name: &str) -> String {
    format!("volume {name}: its device is gone: clients wait until it is back")
}

fn files(files: &Files) -> FilesSample {
    let (server, service) = (files.server_counters(), files.service_counters());
    let rdma = files.rdma_counters();
    let volume = |served: &ServedVolume| {
        let levels = &served.levels;
        let sample = VolumeSample {
            data_bytes: levels.data_bytes.get(),
            free_bytes: levels.free_bytes.get(),
            inodes: levels.inodes.get(),
            memory_bytes: levels.memory_bytes.get(),
            memory_bytes_max: levels.memory_bytes_max.get(),
            log_bytes: levels.log_bytes.get(),
            log_bytes_max: levels.log_bytes_max.get(),
            has_failed: levels.has_failed.get() > 0,
            is_lost: levels.is_lost.get() > 0,
        };
        (served.name.clone(), sample)
    };
    let share = |(name, counters): &(Name, Arc<ShareCounters>)| {
        let sample = ShareSample {
            reads: counters.reads.get(),
            bytes_read: counters.bytes_read.get(),
            writes: counters.writes.get(),
            bytes_written: counters.bytes_written.get(),
            inodes: counters.inodes.get(),
            bytes_used: counters.bytes_used.get(),
        };
        (name.clone(), sample)
    };
    let operations = server.operations().map(|(name, it)| OperationSample {
        name,
        executed: it.executed.get(),
        failed: it.failed.get(),
    });
    FilesSample {
        service: FileServiceSample {
            connections: service.connections.get(),
            connections_accepted: service.connections_accepted.get(),
            requests_in_flight: service.requests_in_flight.get(),
            requests: server.requests.get(),
            replays: server.replays.get(),
            clients: server.clients.get(),
            sessions: server.sessions.get(),
            opens: server.opens.get(),
            locks: server.locks.get(),
            clients_expired: server.clients_expired.get(),
            clients_evicted: server.clients_evicted.get(),
            read_bytes_borrowed: service.read_bytes_borrowed.get(),
            read_bytes_copied: service.read_bytes_copied.get(),
            write_bytes_inline: service.write_bytes_inline.get(),
            write_bytes_copied: service.write_bytes_copied.get(),
            write_bytes_fetched: service.write_bytes_fetched.get(),
            rdma_connections: rdma.connections.get(),
            rdma_devices_missing: files.rdma_devices_missing() as u64,
            rdma_listeners_down: rdma.listeners_down.get(),
            rdma_connections_failed: rdma.connections_failed.get(),
            rdma_calls_refused: rdma.calls_refused.get(),
            rdma_bytes_written: rdma.bytes_written.get(),
            rdma_bytes_read: rdma.bytes_read.get(),
            in_grace: server.grace.get() > 0,
        },
        volumes: files.volumes().iter().map(volume).collect(),
        shares: files.shares().iter().map(share).collect(),
        addresses: files
            .listeners()
            .iter()
            .map(|it| (it.name.clone(), it.address.to_string()))
            .collect(),
        operations: operations.filter(|it| it.executed > 0).collect(),
    }
}

fn reactors(sources: &Sources) -> Vec<ReactorSample> {
    let now = sources.clock.now();
    let handles = sources.reactors.iter();
    handles
        .map(|handle| ReactorSample {
            core: sources.cores.get(handle.index()).copied().unwrap_or(0),
            is_running: handle.is_running(),
            stuck: handle.stuck_in(now, STUCK_AFTER),
            stats: handle.stats().snapshot(now),
            counters: core(sources, handle.index()),
        })
        .collect()
}

fn core(sources: &Sources, reactor: usize) -> CoreSample {
    let Some(counters) = sources.target.core_counters(reactor) else {
        return CoreSample::default();
    };
    CoreSample {
        totals: TargetStatus::read(&counters),
        queues: counters.queues.get(),
        executions: counters.executions.get(),
    }
}

fn devices(sources: &Sources) -> Vec<DeviceSample> {
    let uuids = sources.running.uuids.load();
    let reservations = sources.target.reservations();
    let damaged = reservations.iter().filter(|it| it.is_unknown);
    let damaged: Vec<DeviceIndex> = damaged.map(|it| it.device).collect();
    let drives = sources.drives.load();
    let devices = sources.target.devices().into_iter();
    devices
        .map(|(place, device)| {
            let geometry = device.geometry();
            let drive = drives.iter().find(|drive| drive.has(device.name()));
            DeviceSample {
                place,
                name: device.name().to_owned(),
                block_size: geometry.block_size,
                block_count: geometry.block_count,
                uuid: uuids.get(&place).map(|uuid| uuid.hyphenated().to_string()),
                health: device.health(),
                has_damaged_reservations: damaged.contains(&place),
                drive: drive.map(|drive| drive.counters().into_iter().collect()),
                memory: device.device_memory(),
                copies: sources.target.copy_totals(place),
                transfers: sources.target.transfer_totals(place),
            }
        })
        .collect()
}
