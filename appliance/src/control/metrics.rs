//! `GET /metrics`: the counters in Prometheus' text format (OpenMetrics 1.0).
//!
//! Labels, with their largest number of values: `reactor` 256; `device`, `export` and the
//! namespaces of `windlass_namespace` 128 each; `listener` 64; `slice_bytes` 5; `path` and `reason` of copies 2 and 6; the ANA groups of all
//! exports 128, each at the export's listeners, with one `state`; `key` 4096; `volume` and `share`
//! as many as the configuration has; the `operation` of a file service 74. Names of hosts come
//! from the network, so they are escaped, and the number of their series is bounded, in the order
//! of names. The rest is counted in a metric whose name ends in `_left_out`:
//!
//! | series | bound | per object |
//! |---|---|---|
//! | `host` with `export` | [`HOST_LABELS_MAX`] pairs | 7 |
//! | `controller` with `queue`: an I/O connection | [`CONNECTION_LABELS_MAX`] | 6 |
//! | errors: `export` with `sct`, `sc`, `status` | [`STATUS_LABELS_MAX`] | 1 |
//!
//! Over HTTP without a token, the values of `host`, `controller` and `key` are pseudonyms that change when
//! the appliance restarts.
//!
//! A histogram has 24 series, and is omitted while it is empty. A reactor has about 120 series with
//! both transports, a device about 80 with a drive, an export at most 250.
//!
//! [`STATUS_LABELS_MAX`]: super::limits::STATUS_LABELS_MAX

mod latency;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::limits::{CONNECTION_LABELS_MAX, HOST_LABELS_MAX};
use crate::observe::measured::{Kind, Measured};
use crate::observe::model::{ClassStatus, DeviceStatus, Status, Totals};
use crate::observe::observation::Observation;
use crate::observe::pseudonyms::Pseudonyms;

/// The media type of the text.
pub(super) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics of one observation, with `pseudonyms` in place of data that identifies hosts, if
/// given.
///
/// # Errors
/// Writing to a string does not fail; the encoder's signature allows for it.
pub(super) fn text(
    seen: &Arc<Observation>,
    pseudonyms: Option<&Pseudonyms>,
) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("windlass");
    let mut status = seen.status();
    if let Some(pseudonyms) = pseudonyms {
        pseudonyms.apply_to_status(&mut status);
    }
    registry.register_collector(Box::new(Scrape {
        status,
        pseudonyms: pseudonyms.cloned(),
        seen: Arc::clone(seen),
    }));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

/// One scrape.
struct Scrape {
    seen: Arc<Observation>,
    status: Status,
    pseudonyms: Option<Pseudonyms>,
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

type Labels = Vec<(&'static str, String)>;
/// The samples of one counter or gauge.
type Samples = Vec<(Labels, u64)>;

/// Writes metric families.
struct Families<'e, 'w>(&'e mut DescriptorEncoder<'w>);

impl Families<'_, '_> {
    fn counter(&mut self, name: &str, help: &str, samples: Samples) -> fmt::Result {
        self.family(Kind::Counter, name, help, samples)
    }

    fn gauge(&mut self, name: &str, help: &str, samples: Samples) -> fmt::Result {
        self.family(Kind::Gauge, name, help, samples)
    }

    /// Writes the metrics that the declaration of a status defines.
    fn measured<S: Measured>(&mut self, all: &[(Labels, &S)]) -> fmt::Result {
        for family in S::FAMILIES.iter().copied().flatten() {
            let samples = all.iter();
            let samples =
                samples.filter_map(|(labels, it)| Some((labels.clone(), (family.value)(it)?)));
            let samples = samples.collect();
            // Doc comments begin with a space.
            self.family(family.kind, family.name, family.help.trim_start(), samples)?;
        }
        Ok(())
    }

    fn family(&mut self, kind: Kind, name: &str, help: &str, samples: Samples) -> fmt::Result {
        if samples.is_empty() {
            return Ok(());
        }
        let (metric_type, unit) = match kind {
            Kind::Counter => (MetricType::Counter, None),
            Kind::Gauge => (MetricType::Gauge, None),
            Kind::CounterBytes => (MetricType::Counter, Some(Unit::Bytes)),
            Kind::GaugeBytes => (MetricType::Gauge, Some(Unit::Bytes)),
            Kind::CounterSeconds => (MetricType::Counter, Some(Unit::Seconds)),
            Kind::GaugeSeconds => (MetricType::Gauge, Some(Unit::Seconds)),
        };
        let encoder = &mut self.0;
        let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), metric_type)?;
        for (labels, value) in samples {
            let sample = family.encode_family(&labels)?;
            let seconds = value as f64 / 1e9;
            match kind {
                Kind::Counter | Kind::CounterBytes => ConstCounter::new(value).encode(sample)?,
                Kind::Gauge | Kind::GaugeBytes => ConstGauge::new(value).encode(sample)?,
                Kind::CounterSeconds => ConstCounter::new(seconds).encode(sample)?,
                Kind::GaugeSeconds => ConstGauge::new(seconds).encode(sample)?,
            }
        }
        Ok(())
    }

    /// Writes requests, bytes and errors under names that begin with `prefix`.
    fn totals(&mut self, prefix: &str, of: &str, all: &[(Labels, Totals)]) -> fmt::Result {
        let with = |labels: &Labels, name, value: &str| {
            let mut labels = labels.clone();
            labels.push((name, value.to_owned()));
            labels
        };
        let requests = all.iter().flat_map(|(labels, totals)| {
            [
                (with(labels, "operation", "read"), totals.reads),
                (with(labels, "operation", "write"), totals.writes),
                (with(labels, "operation", "other"), totals.others),
            ]
        });
        let help = format!("Successful I/O commands of {of}.");
        self.counter(&format!("{prefix}_requests"), &help, requests.collect())?;
        let bytes = all.iter().flat_map(|(labels, totals)| {
            [
                (with(labels, "operation", "read"), totals.bytes_read),
                (with(labels, "operation", "write"), totals.bytes_written),
            ]
        });
        let help = format!("Bytes of successful I/O commands of {of}.");
        self.family(Kind::CounterBytes, prefix, &help, bytes.collect())?;
        let errors = all
            .iter()
            .map(|(labels, totals)| (labels.clone(), totals.errors));
        let help = format!("I/O commands of {of} that ended with an error in a device.");
        self.counter(&format!("{prefix}_errors"), &help, errors.collect())
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families(&mut encoder);
        self.appliance(&mut families)?;
        self.reactors(&mut families)?;
        self.target(&mut families)?;
        self.memory(&mut families)?;
        self.devices(&mut families)?;
        self.exports(&mut families)?;
        self.latency(&mut families)?;
        self.statuses(&mut families)?;
        self.hosts(&mut families)?;
        self.files(&mut families)?;
        self.transports(&mut families)
    }
}

impl Scrape {
    fn appliance(&self, out: &mut Families<'_, '_>) -> fmt::Result {
        let one = &self.status.appliance;
        let labels = vec![("version", one.version.clone()), ("name", one.name.clone())];
        out.gauge(
            "build",
            "The version that runs, and the appliance's name.",
            vec![(labels, 1)],
        )?;
        let up = u64::from(self.seen.outage().is_none());
        out.gauge(
            "up",
            "Whether the exports are available.",
            vec![(Vec::new(), up)],
        )?;
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let uptime = vec![(Vec::new(), ns(self.seen.uptime))];
        out.family(
            Kind::GaugeSeconds,
            "uptime",
            "Time since the start.",
            uptime,
        )?;
        let took = vec![(Vec::new(), ns(self.seen.start_took))];
        out.family(Kind::GaugeSeconds, "start", "What the start took.", took)
    }

    fn reactors(&self, out: &mut Families<'_, '_>) -> fmt::Result {
        let reactors = self.status.reactors.iter();
        let all: Vec<_> = reactors.map(|one| (reactor(one.index), one)).collect();
        out.measured(&all)
    }

    fn target(&self, out: &mut Families<'_, '_>) -> fmt::Result {
        let reactors = self.seen.reactors.iter().enumerate();
        let all: Vec<_> = reactors
            .map(|(index, one)| (reactor(index), &one.counters.totals))
            .collect();
        let commands = all.iter().flat_map(|(labels, it)| {
            let of = |class: &str, commands| {
                let mut labels = labels.clone();
                labels.push(("class", class.to_owned()));
                (labels, commands)
            };
            let io = it.commands.saturating_sub(it.admin_commands);
            [of("io", io), of("admin", it.admin_commands)]
        });
        let help = "Commands, by the class of their queue.";
        out.counter("commands", help, commands.collect())?;
        out.measured(&all)
    }

    fn memory(&self, out: &mut Families<'_, '_>) -> fmt::Result {
        let memory = &self.status.memory;
        out.measured(&[(Vec::new(), memory)])?;
        let classes = memory.classes.iter();
        let label = |one: &ClassStatus| vec![("slice_bytes", one.slice_bytes.to_string())];
        let classes: Vec<_> = classes.map(|one| (label(one), one)).collect();
        out.measured(&classes)
    }

    fn devices(&self, out: &mut Families<'_, '_>) -> fmt::Result {
        let labels = |one: &DeviceStatus| -> Labels { vec![("device", one.name.clone())] };
        let devices = self.status.devices.iter();
        let totals: Vec<_> = devices.map(|one| (labels(one), one.totals)).collect();
        out.totals("device", "a device", &totals)?;
        let devices = self.status.devices.iter();
        let all: Vec<_> = devices.map(|one| (labels(one), one)).collect();
        out.measured(&all)?;
        let devices = self.status.devices.iter();
        let names = devices.filter_map(|one| one.drive.as_ref()?.keys().next().map(|_| one));
        let first = names.clone().next().and_then(|one| one.drive.as_ref());
        for name in first.into_iter().flat_map(BTreeMap::keys) {
            let drives = names.clone();
            let samples =
                drives.filter_map(|one| Some((labels(one), *one.drive.as_ref()?.get(name)?)));
            let help = "What the driver counts of the drive that the device is on.";
            out.counter(&format!("drive_{name}"), help, samples.collect())?;
        }
        self.copies(out)
    }

    /// The ways of the copies that hosts requested, by destination, and of their reads and writes.
    fn copies(&self, out: &mut Families<'_, '_>) -> fmt::Result {
        let by = |key: &'static str, counts: fn(&DeviceStatus) -> &BTreeMap<String, u64>| {
            let devices = self.status.devices.iter();
            let samples = devices.flat_map(move |one| {
                counts(one).iter().map(move |(word, count)| {
                    let labels = vec![("device", one.name.clone()), (key, word.clone())];
                    (labels, *count)
                })
            });
            samples.collect()
        };
        let help = "Copies of hosts to a device that succeeded, by the way of their data.";
        out.counter("device_copies", help, by("path", |one| &one.copies))?;
        let help = "Copies of hosts to a device that took the way through memory of the machine \
                    although another one is allowed, by reason.";
        let samples = by("reason", |one| &one.copies_on_host_path);
        out.counter("device_copies_on_host_path", help, samples)?;
        let help = "Large reads and writes of hosts through memory of the device itself, their bytes, \
                    and how many failed.";
        let samples = by("count", |one| &one.transfers);
        out.counter("device_transfers", help, samples)?;
        let help = "Reads and writes of hosts that took the way through memory of the machine although \
                    that of the device is allowed, by reason.";
        let samples = by("reason", |one| &one.transfers_on_host_path);
        out.counter("device_transfers_on_host_path", help, samples)
    }

    fn exports(&self, out: &mut Families<'_, '_>) -> fmt::Result {
        let exports = || self.status.exports.iter();
        let label = |nqn: &str| vec![("export", nqn.to_owned())];
        let totals: Vec<_> = exports().map(|one| (label(&one.nqn), one.totals)).collect();
        out.totals("export", "an export", &totals)?;
        let all: Vec<_> = exports().map(|one| (label(&one.nqn), one)).collect();
        out.measured(&all)?;
        let namespaces = exports().flat_map(|one| {
            one.namespaces.iter().map(|namespace| {
                let mut labels = label(&one.nqn);
                labels.push(("nsid", namespace.nsid.to_string()));
                labels.push(("device", namespace.device.clone()));
                (labels, 1)
            })
        });
        let help = "A namespace that hosts see: joins its device's metrics to its export.";
        out.gauge("namespace", help, namespaces.collect())?;
        let listeners = self.status.listeners.iter();
        let listeners = listeners.map(|one| {
            let labels = vec![
                ("listener", one.name.clone()),
                ("transport", one.transport.clone()),
            ];
            (labels, one)
        });
        out.measured(&listeners.collect::<Vec<_>>())?;
        let paths = self.status.ana.iter().map(|one| {
            let labels = vec![
                ("export", one.export.clone()),
                ("listener", one.listener.clone()),
                ("group", one.group.to_string()),
                ("state", one.state.word().to_owned()),
            ];
            (labels, one)
        });
        out.measured(&paths.collect::<Vec<_>>())?;
        let keys = self.status.keys.iter();
        let keys = keys.map(|one| (vec![("key", one.name.clone())], one));
        out.measured(&keys.collect::<Vec<_>>())?;
        let limits = self.status.rate_limits.iter().map(|one| {
            let or_all = |name: &Option<String>| name.clone().unwrap_or_default();
            let labels = vec![
                ("device", or_all(&one.device)),
                ("host", or_all(&one.host)),
                ("export", or_all(&one.export)),
                ("operations", one.operations.clone()),
            ];
            (labels, one)
        });
        out.measured(&limits.collect::<Vec<_>>())?;
        let paces = self.status.paces.iter().map(|one| {
            let labels = vec![
                ("export", one.export.clone()),
                ("reason", one.reason.clone()),
                ("disk", one.disk.clone().unwrap_or_default()),
            ];
            (labels, one)
        });
        out.measured(&paces.collect::<Vec<_>>())
    }

    fn files(&self, out: &mut Families<'_, '_>) -> fmt::Result {
        let Some(files) = &self.status.files else {
            return Ok(());
        };
        out.measured(&[(Vec::new(), &files.service)])?;
        let volumes = files.volumes.iter();
        let volumes = volumes.map(|one| (vec![("volume", one.name.clone())], one));
        out.measured(&volumes.collect::<Vec<_>>())?;
        let shares = files.shares.iter();
        let shares = shares.map(|one| (vec![("share", one.name.clone())], one));
        out.measured(&shares.collect::<Vec<_>>())?;
        let operations = files.operations.iter();
        let operations = operations.map(|one| (vec![("operation", one.name.clone())], one));
        out.measured(&operations.collect::<Vec<_>>())
    }

    fn hosts(&self, out: &mut Families<'_, '_>) -> fmt::Result {
        let mut hosts: BTreeMap<(&str, &str), (u64, Totals)> = BTreeMap::new();
        for one in &self.status.hosts {
            let (controllers, totals) = hosts.entry((&one.nqn, &one.export)).or_default();
            *controllers += 1;
            totals.add(one.totals);
        }
        let reported = hosts.iter().take(HOST_LABELS_MAX);
        let reported = reported.map(|((host, export), (controllers, totals))| {
            let labels = vec![
                ("host", (*host).to_owned()),
                ("export", (*export).to_owned()),
            ];
            (labels, *controllers, *totals)
        });
        let reported: Vec<_> = reported.collect();
        let totals: Vec<_> = reported
            .iter()
            .map(|(labels, _, totals)| (labels.clone(), *totals))
            .collect();
        let of = format!("a host's present controllers, of {HOST_LABELS_MAX} pairs at most");
        out.totals("host", &of, &totals)?;
        let controllers = reported
            .iter()
            .map(|(labels, controllers, _)| (labels.clone(), *controllers));
        out.gauge(
            "host_controllers",
            "Controllers that a host has.",
            controllers.collect(),
        )?;
        self.connections(out)?;
        let left_out = (hosts.len() - reported.len()) as u64;
        let help = "Pairs of host and export beyond the bound of labels.";
        out.gauge("hosts_left_out", help, vec![(Vec::new(), left_out)])
    }

    /// Writes the I/O queues, each of which is a connection, by controller and queue identifier.
    fn connections(&self, out: &mut Families<'_, '_>) -> fmt::Result {
        // Both are in the order of the target.
        let hosts = self.status.hosts.iter().zip(&self.seen.target.controllers);
        let queues = hosts.flat_map(|(host, snapshot)| {
            let controller = match &self.pseudonyms {
                None => snapshot.controller_id.to_string(),
                Some(pseudonyms) => pseudonyms.controller(snapshot.controller_id),
            };
            host.queues.iter().map(move |queue| {
                let labels = vec![
                    ("host", host.nqn.clone()),
                    ("export", host.export.clone()),
                    ("controller", controller.clone()),
                    ("queue", queue.qid.to_string()),
                    ("reactor", queue.reactor.to_string()),
                ];
                (labels, queue.totals)
            })
        });
        let mut all: Vec<_> = queues.collect();
        let left_out = all.len().saturating_sub(CONNECTION_LABELS_MAX) as u64;
        all.truncate(CONNECTION_LABELS_MAX);
        let of = format!("a present I/O connection, of {CONNECTION_LABELS_MAX} at most");
        out.totals("connection", &of, &all)?;
        let help = "I/O connections beyond the bound of labels.";
        out.gauge("connections_left_out", help, vec![(Vec::new(), left_out)])
    }

    fn transports(&self, out: &mut Families<'_, '_>) -> fmt::Result {
        for (transport, levels) in &self.seen.transport_levels {
            for (name, value) in levels {
                let family = format!("{transport}_{name}");
                let help = "A level of the whole transport.";
                out.gauge(&family, help, vec![(Vec::new(), *value)])?;
            }
        }
        for (name, value) in &self.seen.handshakes {
            let family = format!("tls_{name}");
            let samples = vec![(Vec::new(), *value)];
            match *name {
                "handshakes_open" => out.gauge(&family, "Handshakes in progress.", samples)?,
                _ => out.counter(&family, "What the handshakes of TLS count.", samples)?,
            }
        }
        for (transport, reactors) in &self.seen.transports {
            let names = reactors
                .first()
                .into_iter()
                .flatten()
                .map(|(name, _)| *name);
            for (place, name) in names.enumerate() {
                let reactors = reactors.iter().enumerate();
                let samples = reactors.filter_map(|(index, values)| {
                    let (_, value) = values.get(place)?;
                    Some((vec![("reactor", index.to_string())], *value))
                });
                let samples = samples.collect();
                let family = format!("{transport}_{name}");
                match name {
                    "connections" => out.gauge(&family, "Connections now.", samples)?,
                    _ => out.counter(&family, "What the transport counts.", samples)?,
                }
            }
        }
        Ok(())
    }
}

fn reactor(index: usize) -> Labels {
    vec![("reactor", index.to_string())]
}
