//! From an observation to what `GET /api/v1/status` tells.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use appliance_config::{Device, Export, Listener};
use block::{Damage, Health, HealthState, HealthWarnings};
use nvme_target::{ControllerSnapshot, ControllerState, IoTotals, Stage, StatusCounts};
use reactors::Nanos;

use super::latency;
use super::model::{
    ApplianceStatus, ClassStatus, ControllerKind, DamageStatus, DeviceState, DeviceStatus,
    ExportStatus, HostStatus, ListenerStatus, MemoryStatus, NamedTime, NamespaceStatus,
    QueueStatus, ReactorStatus, RunState, Status, StatusCode, StatusCount, TargetStatus, Totals,
};
use super::observation::{Observation, ReactorSeen};

impl From<IoTotals> for Totals {
    fn from(totals: IoTotals) -> Self {
        let IoTotals {
            reads,
            bytes_read,
            writes,
            bytes_written,
            others,
            errors,
        } = totals;
        Self {
            reads,
            bytes_read,
            writes,
            bytes_written,
            others,
            errors,
        }
    }
}

impl Totals {
    pub(crate) fn add(&mut self, other: Self) {
        self.reads = self.reads.wrapping_add(other.reads);
        self.bytes_read = self.bytes_read.wrapping_add(other.bytes_read);
        self.writes = self.writes.wrapping_add(other.writes);
        self.bytes_written = self.bytes_written.wrapping_add(other.bytes_written);
        self.others = self.others.wrapping_add(other.others);
        self.errors = self.errors.wrapping_add(other.errors);
    }
}

impl Observation {
    /// Everything, for people and programs.
    pub(crate) fn status(&self) -> Status {
        Status {
            now_unix_ms: self.unix_ms,
            appliance: self.appliance_status(),
            reactors: (0..self.reactors.len())
                .map(|index| self.reactor(index))
                .collect(),
            memory: self.memory_status(),
            devices: self
                .config
                .devices
                .iter()
                .map(|device| self.device_status(device))
                .collect(),
            exports: self
                .config
                .exports
                .iter()
                .map(|export| self.export_status(export))
                .collect(),
            listeners: self.listener_statuses(),
            hosts: self
                .target
                .controllers
                .iter()
                .map(|it| self.host(it))
                .collect(),
            target: self.target_totals(),
            latency: self
                .latency_of(|all| Some(latency::of_all(all)))
                .unwrap_or_default(),
            statuses: self.status_counts(),
            transports: self.transport_totals(),
        }
    }

    fn appliance_status(&self) -> ApplianceStatus {
        ApplianceStatus {
            name: self.config.appliance.name.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.uptime.as_secs(),
            start_took_ms: u64::try_from(self.start_took.as_millis()).unwrap_or(u64::MAX),
            config_path: self
                .config_path
                .as_ref()
                .map(|path| path.display().to_string()),
            state: if self.target.shutting_down {
                RunState::Stopping
            } else {
                RunState::Running
            },
        }
    }

    fn reactor(&self, index: usize) -> ReactorStatus {
        let ReactorSeen {
            core,
            is_running,
            stuck,
            stats,
            counters,
        } = &self.reactors[index];
        let named = |name: &str, Nanos(ns)| NamedTime {
            name: name.to_owned(),
            ns,
        };
        ReactorStatus {
            index,
            core: *core,
            running: *is_running,
            busy_permille: stats.busy_permille,
            asleep: stats.asleep,
            turns: stats.turns,
            busy_ns: stats.busy.0,
            idle_ns: stats.idle.0,
            sleeps: stats.sleeps,
            wakeups: stats.wakeups,
            stalls: stats.stalls,
            queues: counters.queues,
            depth: counters.executions,
            longest_poll: stats
                .longest_poll
                .as_ref()
                .map(|it| named(&it.name, it.lasted)),
            latency: self
                .latency_of(|all| all.reactors.get(index).cloned())
                .unwrap_or_default(),
            stuck: stuck.as_ref().map(|it| named(&it.name, it.lasted)),
        }
    }

    fn memory_status(&self) -> MemoryStatus {
        let classes = self.memory.counters.classes.iter();
        MemoryStatus {
            bytes: self.memory.bytes,
            page_bytes: self.memory.page_bytes,
            notices: self.memory.notices.clone(),
            oldest_wait_ns: self.memory.counters.oldest_wait_ns,
            longest_wait_ns: self.memory.counters.longest_wait_ns,
            classes: classes
                .filter(|class| class.total > 0)
                .map(|class| ClassStatus {
                    slice_bytes: class.slice_bytes as u64,
                    total: class.total,
                    free: class.free,
                    taken: class.taken,
                    waits: class.waits,
                    waiting: class.waiting,
                })
                .collect(),
        }
    }

    fn device_status(&self, device: &Device) -> DeviceStatus {
        let found = self.device(device.name.as_str());
        let health = found.map_or_else(Health::default, |seen| seen.health);
        let drive = found.and_then(|seen| seen.drive.as_ref());
        let named = |counters: &BTreeMap<&'static str, u64>| {
            let counters = counters.iter();
            counters
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect()
        };
        DeviceStatus {
            name: device.name.to_string(),
            device_type: device.backing.word().to_owned(),
            state: found.map_or(DeviceState::Absent, |seen| state(seen.health.state)),
            damage: health.damage.map(damage),
            block_size: found.map(|seen| seen.block_size),
            block_count: found.map(|seen| seen.block_count),
            media_errors: health.media_errors,
            waits: health.waits,
            temperature_celsius: health
                .temperature_kelvin
                .map(|kelvin| i32::from(kelvin) - 273),
            available_spare_percent: health.available_spare_percent,
            used_percent: health.used_percent,
            warnings: health
                .drive
                .map_or_else(Vec::new, |drive| warnings(drive.warnings)),
            totals: self.device_totals(device.name.as_str()),
            latency: found.and_then(|seen| {
                let place = usize::from(seen.place.0);
                self.latency_of(|all| all.devices.get(place).cloned())
            }),
            drive: drive.map(named),
        }
    }

    /// What moved into and out of a device.
    pub(crate) fn device_totals(&self, name: &str) -> Totals {
        let place = self.device(name).map(|seen| usize::from(seen.place.0));
        let totals = place.and_then(|place| self.target.devices.get(place));
        totals.map_or_else(Totals::default, |totals| Totals::from(*totals))
    }

    /// What moved into and out of all devices of an export: a device belongs to one.
    pub(crate) fn export_totals(&self, export: &Export) -> Totals {
        let mut totals = Totals::default();
        for namespace in &export.namespaces {
            totals.add(self.device_totals(namespace.device.as_str()));
        }
        totals
    }

    fn export_status(&self, export: &Export) -> ExportStatus {
        let nqn = export.nqn.as_str();
        let subsystem = self.target.subsystems.iter().find(|it| it.nqn == nqn);
        let active = subsystem.map_or(&[][..], |it| &it.namespaces[..]);
        let namespaces = active.iter().filter_map(|(nsid, device)| {
            let device = self.devices.iter().find(|seen| seen.place == *device)?;
            Some(NamespaceStatus {
                nsid: *nsid,
                device: device.name.clone(),
                bytes: device.block_count * u64::from(device.block_size),
                uuid: device.uuid.clone().unwrap_or_default(),
            })
        });
        ExportStatus {
            nqn: nqn.to_owned(),
            namespaces: namespaces.collect(),
            listeners: export.listeners.iter().map(ToString::to_string).collect(),
            controllers: subsystem.map_or(0, |it| it.controllers as u64),
            totals: self.export_totals(export),
            latency: self.export_latency(nqn, Stage::Total),
            stages: Stage::ALL
                .into_iter()
                .filter(|stage| *stage != Stage::Total)
                .filter_map(|stage| {
                    Some((stage.word().to_owned(), self.export_latency(nqn, stage)?))
                })
                .collect(),
        }
    }

    fn listener_statuses(&self) -> Vec<ListenerStatus> {
        let listeners = || self.config.listeners.iter();
        let alone = |listener: &Listener| {
            listeners()
                .filter(|other| other.transport == listener.transport)
                .count()
                == 1
        };
        listeners()
            .enumerate()
            .map(|(index, listener)| {
                let transport = listener.transport.word();
                let bound = self.addresses.get(index).cloned().flatten();
                ListenerStatus {
                    name: listener.name.to_string(),
                    transport: transport.to_owned(),
                    address: bound.unwrap_or_else(|| listener.address.to_string()),
                    connections: self.connections(transport).filter(|_| alone(listener)),
                }
            })
            .collect()
    }

    fn host(&self, controller: &ControllerSnapshot) -> HostStatus {
        let mut transports = self.transports.iter().map(|(name, _)| (*name).to_owned());
        let only = transports.next().filter(|_| transports.next().is_none());
        let hexadecimal = controller.host_id.iter().map(|byte| format!("{byte:02x}"));
        HostStatus {
            nqn: controller.host_nqn.clone(),
            host_id: Some(hexadecimal.collect()),
            export: controller.subsystem_nqn.clone(),
            controller_id: Some(controller.controller_id),
            kind: match controller.kind {
                nvme_target::ControllerKind::Io => ControllerKind::Io,
                nvme_target::ControllerKind::Discovery => ControllerKind::Discovery,
            },
            state: controller_state(controller.state).to_owned(),
            transport: only,
            address: None,
            queues: controller
                .io_queues
                .iter()
                .map(|queue| QueueStatus {
                    qid: queue.qid,
                    reactor: queue.reactor,
                    totals: queue.totals.into(),
                })
                .collect(),
            totals: controller.totals.into(),
            errors_logged: controller.errors_logged,
        }
    }

    /// The target's counters, all reactors together.
    pub(crate) fn target_totals(&self) -> TargetStatus {
        let mut sum = TargetStatus {
            discovery_generation: self.target.discovery_generation,
            ..TargetStatus::default()
        };
        for reactor in &self.reactors {
            let one = reactor.counters.totals;
            sum.commands += one.commands;
            sum.admin_commands += one.admin_commands;
            sum.errors += one.errors;
            sum.errors_not_logged += one.errors_not_logged;
            sum.connects += one.connects;
            sum.connects_refused += one.connects_refused;
            sum.reconnects += one.reconnects;
            sum.controller_resets += one.controller_resets;
            sum.keep_alive_expired += one.keep_alive_expired;
            sum.events += one.events;
            sum.deferred += one.deferred;
            sum.orphaned += one.orphaned;
            sum.stale_completions += one.stale_completions;
            sum.stale_queues += one.stale_queues;
        }
        sum
    }

    fn status_counts(&self) -> Vec<StatusCount> {
        let mut all = Vec::new();
        let mut add = |export: Option<&str>, counts: &StatusCounts| {
            let each = counts.each().map(|(status, count)| {
                let code = StatusCode {
                    sct: status.sct().0,
                    sc: status.sc(),
                    text: status.text().unwrap_or("unknown").to_owned(),
                };
                (Some(code), count)
            });
            let others = std::iter::once((None, counts.others));
            let seen = each.chain(others).filter(|(_, count)| *count > 0);
            all.extend(seen.map(|(code, count)| StatusCount {
                export: export.map(str::to_owned),
                code,
                count,
            }));
        };
        for (nqn, counts) in &self.statuses.subsystems {
            add(Some(nqn), counts);
        }
        add(None, &self.statuses.elsewhere);
        all
    }

    fn transport_totals(&self) -> BTreeMap<String, BTreeMap<String, u64>> {
        let mut all: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        for (transport, reactors) in &self.transports {
            let sums = all.entry((*transport).to_owned()).or_default();
            for (name, value) in reactors.iter().flatten() {
                *sums.entry((*name).to_owned()).or_default() += value;
            }
        }
        for (transport, levels) in &self.transport_levels {
            let sums = all.entry((*transport).to_owned()).or_default();
            let levels = levels
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value));
            sums.extend(levels);
        }
        all
    }
}

fn damage(damage: Damage) -> DamageStatus {
    let at = damage.at.duration_since(UNIX_EPOCH).unwrap_or_default();
    DamageStatus {
        cause: damage.cause.word().to_owned(),
        text: damage.cause.to_string(),
        unix_ms: u64::try_from(at.as_millis()).unwrap_or(u64::MAX),
    }
}

pub(crate) fn state(state: HealthState) -> DeviceState {
    match state {
        HealthState::Ready => DeviceState::Ready,
        HealthState::ReadOnly => DeviceState::ReadOnly,
        HealthState::Damaged => DeviceState::Damaged,
        HealthState::Resetting => DeviceState::Resetting,
        HealthState::Removed => DeviceState::Removed,
    }
}

fn controller_state(state: ControllerState) -> &'static str {
    match state {
        ControllerState::Disabled => "disabled",
        ControllerState::Enabling => "enabling",
        ControllerState::Ready => "ready",
        ControllerState::Resetting => "resetting",
        ControllerState::ShuttingDown => "shutting_down",
        ControllerState::ShutDown { .. } | ControllerState::ShutDownUnflushed => "shut_down",
        ControllerState::Failed => "failed",
        ControllerState::Ended => "ended",
    }
}

pub(crate) fn warnings(warnings: HealthWarnings) -> Vec<String> {
    let HealthWarnings {
        spare,
        temperature,
        reliability,
        read_only,
        backup,
    } = warnings;
    let all = [
        (spare, "its spare blocks are below their threshold"),
        (temperature, "its temperature is beyond a threshold"),
        (reliability, "it has become unreliable"),
        (read_only, "it takes no more writes"),
        (backup, "the backup of its volatile memory has failed"),
    ];
    let given = all.iter().filter(|(on, _)| *on);
    given.map(|(_, text)| (*text).to_owned()).collect()
}
