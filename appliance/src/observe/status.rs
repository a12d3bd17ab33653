//! Converts an observation to the response of `GET /api/v1/status`.

use std::collections::{BTreeMap, HashMap};
use std::time::UNIX_EPOCH;

use appliance_config::{Backing, Config, Device, Export, Key, Listener, Name};
use block::{Damage, Health, HealthState, HealthWarnings};
use nvme_target::{
    ControllerSnapshot, ControllerState, HostPathReason, IoTotals, QueueAuthentication,
    QueueChannel, Stage, StatusCounts, TransferReason,
};
use reactors::Nanos;

use super::latency;
use super::model::{
    AnaInput, AnaStatus, ApplianceStatus, AuthenticationStatus, ChannelStatus, ControllerKind,
    CopyStatus, DamageStatus, DeviceState, DeviceStatus, ExportStatus, FileListenerStatus,
    FileOperationStatus, FileServiceStatus, FilesStatus, HostStatus, KeyInput, KeyStatus, Latency,
    ListenerStatus, MemoryStatus, NamespaceStatus, PaceStatus, QueueStatus, RateLimitInput,
    RateLimitStatus, ReactorStatus, RunState, ShareInput, ShareStatus, Status, StatusCode,
    StatusCount, TargetStatus, Totals, TransportTotals, VolumeInput, VolumeStatus,
};
use super::observation::{DeviceSample, FilesSample, Observation, ReactorSample};
use crate::copies::CopySample;
use crate::exports::rate_limit;
use crate::operator_states::OperatorStates;

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
    /// The complete status.
    pub(crate) fn status(&self) -> Status {
        Status {
            now_unix_ms: self.unix_ms,
            appliance: self.appliance_status(),
            reactors: (0..self.reactors.len())
                .map(|index| self.reactor(index))
                .collect(),
            memory: MemoryStatus::read(&self.memory),
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
            ana: ana(&self.config, &self.operator_states),
            hosts: self
                .target
                .controllers
                .iter()
                .map(|it| self.host(it))
                .collect(),
            keys: self.config.keys.iter().map(|key| self.key(key)).collect(),
            rate_limits: self.rate_limits(),
            paces: self.paces.iter().map(PaceStatus::read).collect(),
            files: self.files.as_ref().map(|seen| self.files_status(seen)),
            copies: self.copies.iter().map(|it| self.copy_status(it)).collect(),
            target: self.target_totals(),
            latency: self
                .latency_of(|all| Some(latency::of_all(all)))
                .unwrap_or_default(),
            statuses: self.status_counts(),
            transports: self.transport_totals(),
        }
    }

    /// The rate limits, with what the target has delayed by those that it has.
    fn rate_limits(&self) -> Vec<RateLimitStatus> {
        let device = |name: &Name| self.device(name.as_str()).map(|seen| seen.place);
        let all = self.rate_limits.iter().map(|seen| (&seen.limit, seen));
        let all: HashMap<_, _> = all.collect();
        let limits = self.config.rate_limits.iter().map(|limit| {
            let wanted = rate_limit(limit, device);
            let seen = wanted.and_then(|wanted| all.get(&wanted).copied());
            RateLimitStatus::read(RateLimitInput { limit, seen })
        });
        limits.collect()
    }

    fn copy_status(&self, copy: &CopySample) -> CopyStatus {
        let source = self.device(copy.source.as_str());
        CopyStatus::read(copy, source.map(|it| &it.health))
    }

    fn files_status(&self, seen: &FilesSample) -> FilesStatus {
        let files = &self.config.files;
        let volumes = files.volumes.iter().map(|volume| {
            let seen = seen.volumes.get(&volume.name);
            VolumeStatus::read(VolumeInput { volume, seen })
        });
        let shares = files.shares.iter().map(|share| {
            let seen = seen.shares.get(&share.name);
            ShareStatus::read(ShareInput { share, seen })
        });
        let listeners = files.listeners.iter().map(|listener| {
            FileListenerStatus::read(listener, seen.addresses.get(&listener.name).cloned())
        });
        FilesStatus {
            service: FileServiceStatus::read(seen),
            volumes: volumes.collect(),
            shares: shares.collect(),
            listeners: listeners.collect(),
            operations: seen
                .operations
                .iter()
                .map(FileOperationStatus::read)
                .collect(),
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
        ReactorStatus::read(&ReactorInput {
            index,
            seen: &self.reactors[index],
            latency: self
                .latency_of(|all| all.reactors.get(index).cloned())
                .unwrap_or_default(),
        })
    }

    fn device_status(&self, device: &Device) -> DeviceStatus {
        let seen = self.device(device.name.as_str());
        DeviceStatus::read(DeviceInput {
            device,
            seen,
            health: seen.map_or_else(Health::default, |seen| seen.health),
            totals: self.device_totals(device.name.as_str()),
            latency: seen.and_then(|seen| {
                let place = usize::from(seen.place.0);
                self.latency_of(|all| all.devices.get(place).cloned())
            }),
        })
    }

    /// The totals of a device.
    pub(crate) fn device_totals(&self, name: &str) -> Totals {
        let place = self.device(name).map(|seen| usize::from(seen.place.0));
        let totals = place.and_then(|place| self.target.devices.get(place));
        totals.map_or_else(Totals::default, |totals| Totals::from(*totals))
    }

    /// The totals of all devices of an export. A device belongs to only one export.
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
        let stages = Stage::ALL.into_iter();
        let stages = stages.filter(|stage| *stage != Stage::Total);
        ExportStatus::read(ExportInput {
            export,
            namespaces: namespaces.collect(),
            controllers: subsystem.map_or(0, |it| it.controllers as u64),
            totals: self.export_totals(export),
            latency: self.export_latency(nqn, Stage::Total),
            stages: stages
                .filter_map(|stage| {
                    Some((stage.word().to_owned(), self.export_latency(nqn, stage)?))
                })
                .collect(),
        })
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
            .zip(&self.ports)
            .map(|(listener, port)| {
                let connections = self.connections(listener.transport.word());
                ListenerStatus::read(ListenerInput {
                    listener,
                    bound: port.map(|port| port.address.to_string()),
                    connections: connections.filter(|_| alone(listener)),
                })
            })
            .collect()
    }

    fn host(&self, controller: &ControllerSnapshot) -> HostStatus {
        let mut listeners = self.config.listeners.iter().zip(&self.ports);
        let listener = listeners.find(|(_, port)| port.is_some_and(|it| it.id == controller.port));
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
            transport: listener.map(|(it, _)| it.transport.word().to_owned()),
            address: None,
            authentication: controller
                .authentication
                .as_ref()
                .map(|it| self.authentication(it)),
            channel: controller.channel.as_ref().map(|it| self.channel(it)),
            queues: controller
                .io_queues
                .iter()
                .map(|queue| QueueStatus {
                    qid: queue.qid,
                    reactor: queue.reactor,
                    authenticated: queue.authentication.is_some(),
                    protected: queue.channel.is_some(),
                    totals: queue.totals.into(),
                })
                .collect(),
            totals: controller.totals.into(),
            errors_logged: controller.errors_logged,
        }
    }

    /// The time of the reactors' clock in milliseconds since 1970.
    fn unix_ms_of(&self, time: Nanos) -> u64 {
        self.unix_ms
            .saturating_sub(self.now.saturating_sub(time).as_millis())
    }

    fn key(&self, key: &Key) -> KeyStatus {
        let of_key = self.key_uses.get(key.name.as_str());
        KeyStatus::read(KeyInput {
            key,
            is_revoked: self.revoked_keys.contains(&key.name),
            uses: of_key.map_or(0, |it| it.count),
            last_used_unix_ms: of_key.map(|it| self.unix_ms_of(it.last)),
        })
    }

    fn authentication(&self, authentication: &QueueAuthentication) -> AuthenticationStatus {
        let QueueAuthentication {
            hash,
            group,
            key,
            controller_key,
            since,
        } = authentication;
        AuthenticationStatus {
            key: key.clone(),
            controller_key: controller_key.clone(),
            bidirectional: controller_key.is_some(),
            hash: format!("{hash:?}").to_lowercase(),
            group: format!("{group:?}").to_lowercase(),
            since_unix_ms: self.unix_ms_of(*since),
        }
    }

    fn channel(&self, queue: &QueueChannel) -> ChannelStatus {
        let channel = &queue.channel;
        ChannelStatus {
            key: channel.owner.key.clone(),
            generated: channel.owner.generation.is_some(),
            cipher: channel.cipher.to_owned(),
            group: channel.group.to_owned(),
            derivation: channel.derivation.to_owned(),
            records: match channel.has_kernel_records {
                true => "kernel",
                false => "own",
            }
            .to_owned(),
            since_unix_ms: self.unix_ms_of(queue.since),
        }
    }

    /// The target's counters, all reactors together.
    pub(crate) fn target_totals(&self) -> TargetStatus {
        let mut sum = TargetStatus {
            discovery_generation: self.target.discovery_generation,
            ..TargetStatus::default()
        };
        for reactor in &self.reactors {
            sum.add(&reactor.counters.totals);
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

    pub(super) fn transport_totals(&self) -> TransportTotals {
        let mut all = TransportTotals::new();
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

/// The ANA groups of each export at each of its listeners.
pub(crate) fn ana(config: &Config, states: &OperatorStates) -> Vec<AnaStatus> {
    let mut all = Vec::new();
    for export in &config.exports {
        for group in export.ana_groups() {
            let listeners = export.listeners.iter();
            let listeners = listeners.filter_map(|name| config.listener(name));
            all.extend(listeners.map(|listener| {
                AnaStatus::read(AnaInput {
                    export,
                    listener,
                    group,
                    state: states.state(export, &listener.name, group),
                })
            }));
        }
    }
    all
}

/// The input of a reactor's status.
pub(crate) struct ReactorInput<'o> {
    pub(crate) index: usize,
    pub(crate) seen: &'o ReactorSample,
    pub(crate) latency: Latency,
}

/// The input of a device's status.
pub(crate) struct DeviceInput<'o> {
    pub(crate) device: &'o Device,
    /// `None` if the device is not open.
    pub(crate) seen: Option<&'o DeviceSample>,
    pub(crate) health: Health,
    pub(crate) totals: Totals,
    pub(crate) latency: Option<Latency>,
}

impl DeviceInput<'_> {
    pub(crate) fn state(&self) -> DeviceState {
        self.seen
            .map_or(DeviceState::Absent, |seen| state(seen.health.state))
    }

    pub(crate) fn drive_counters(&self) -> Option<BTreeMap<String, u64>> {
        let counters = self.seen?.drive.as_ref()?.iter();
        let named = counters.map(|(name, value)| ((*name).to_owned(), *value));
        Some(named.collect())
    }

    pub(crate) fn data_path(&self) -> Option<String> {
        match self.device.backing {
            Backing::Nvme(drive) => Some(drive.data_path.word().to_owned()),
            Backing::Memory { .. } | Backing::File { .. } | Backing::Null { .. } => None,
        }
    }

    pub(crate) fn copies(&self) -> BTreeMap<String, u64> {
        let copies = self.seen.map(|seen| seen.copies).unwrap_or_default();
        let paths = [
            ("host", copies.host),
            ("drive_memory", copies.device_memory),
            ("drive", copies.drive),
        ];
        let paths = paths.map(|(path, count)| (path.to_owned(), count));
        paths.into()
    }

    pub(crate) fn copies_on_host_path(&self) -> BTreeMap<String, u64> {
        let copies = self.seen.map(|seen| seen.copies).unwrap_or_default();
        let reasons = HostPathReason::WORDS;
        let reasons = reasons.map(|(reason, word)| (word.to_owned(), copies.reason(reason)));
        reasons.into()
    }

    pub(crate) fn transfers(&self) -> BTreeMap<String, u64> {
        let transfers = self.seen.map(|seen| seen.transfers).unwrap_or_default();
        let counts = [
            ("reads", transfers.reads),
            ("writes", transfers.writes),
            ("bytes", transfers.bytes),
            ("failed", transfers.failed),
        ];
        let counts = counts.map(|(name, count)| (name.to_owned(), count));
        counts.into()
    }

    pub(crate) fn transfers_on_host_path(&self) -> BTreeMap<String, u64> {
        let transfers = self.seen.map(|seen| seen.transfers).unwrap_or_default();
        let reasons = TransferReason::WORDS;
        let reasons = reasons.map(|(reason, word)| (word.to_owned(), transfers.reason(reason)));
        reasons.into()
    }
}

/// The input of an export's status.
pub(crate) struct ExportInput<'o> {
    pub(crate) export: &'o Export,
    pub(crate) namespaces: Vec<NamespaceStatus>,
    pub(crate) controllers: u64,
    pub(crate) totals: Totals,
    pub(crate) latency: Option<Latency>,
    pub(crate) stages: BTreeMap<String, Latency>,
}

/// The input of a listener's status.
pub(crate) struct ListenerInput<'o> {
    pub(crate) listener: &'o Listener,
    pub(crate) bound: Option<String>,
    pub(crate) connections: Option<u64>,
}

impl From<Damage> for DamageStatus {
    fn from(damage: Damage) -> Self {
        let at = damage.at.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            cause: damage.cause.word().to_owned(),
            text: damage.cause.to_string(),
            unix_ms: u64::try_from(at.as_millis()).unwrap_or(u64::MAX),
        }
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
        (read_only, "it is read-only"),
        (backup, "the backup of its volatile memory has failed"),
    ];
    let given = all.iter().filter(|(on, _)| *on);
    given.map(|(_, text)| (*text).to_owned()).collect()
}
