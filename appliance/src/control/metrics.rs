//! `GET /metrics`: the same counters in Prometheus' own format (OpenMetrics 1.0 text).
//!
//! Labels, and how many values each has at most: `reactor` 256; `device`, `export` and the
//! namespaces of `windlass_namespace` 128 each; `listener` 64; `slice_bytes` 5. Names of hosts come
//! from the network, so they are escaped, and what they make is bounded by number, in the order of
//! names, with the rest counted in a metric whose name ends in `_left_out`:
//!
//! | series | bound | per thing |
//! |---|---|---|
//! | `host` with `export` | [`HOST_LABELS_MAX`] pairs | 7 |
//! | `controller` with `queue`: an I/O connection | [`CONNECTION_LABELS_MAX`] | 6 |
//! | errors: `export` with `sct`, `sc`, `status` | [`STATUS_LABELS_MAX`] | 1 |
//!
//! Over HTTP without a token, the values of `host` and `controller` are pseudonyms that change when
//! the appliance starts again.
//!
//! A histogram has 24 series, and is left out while it has counted nothing. So a reactor has some
//! 120 series with both transports, a device some 80 with a drive, an export at most 250.
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
use crate::observe::model::{DeviceState, DeviceStatus, Status, Totals};
use crate::observe::observation::Observation;
use crate::observe::pseudonyms::Pseudonyms;

/// What the text is.
pub(super) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics of one observation, with `pseudonyms` in place of what identifies hosts, if given.
///
/// # Errors
/// Writing to a text does not fail; the encoder's signature says that it could.
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

/// Writes families.
struct Families<'e, 'w>(&'e mut DescriptorEncoder<'w>);

impl Families<'_, '_> {
    fn counter(&mut self, name: &str, help: &str, samples: Samples) -> fmt::Result {
        self.family(name, help, None, MetricType::Counter, samples)
    }

    fn gauge(&mut self, name: &str, help: &str, samples: Samples) -> fmt::Result {
        self.family(name, help, None, MetricType::Gauge, samples)
    }

    fn family(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        kind: MetricType,
        samples: Samples,
    ) -> fmt::Result {
        if samples.is_empty() {
            return Ok(());
        }
        let is_counter = matches!(kind, MetricType::Counter);
        let mut family = self.0.encode_descriptor(name, help, unit, kind)?;
        for (labels, value) in samples {
            let sample = family.encode_family(&labels)?;
            if is_counter {
                ConstCounter::new(value).encode(sample)?;
            } else {
                ConstGauge::new(value).encode(sample)?;
            }
        }
        Ok(())
    }

    /// Nanoseconds, told in seconds.
    fn seconds(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        samples: Samples,
    ) -> fmt::Result {
        if samples.is_empty() {
            return Ok(());
        }
        let is_counter = matches!(kind, MetricType::Counter);
        let mut family = self
            .0
            .encode_descriptor(name, help, Some(&Unit::Seconds), kind)?;
        for (labels, ns) in samples {
            let sample = family.encode_family(&labels)?;
            let seconds = ns as f64 / 1e9;
            if is_counter {
                ConstCounter::new(seconds).encode(sample)?;
            } else {
                ConstGauge::new(seconds).encode(sample)?;
            }
        }
        Ok(())
    }

    /// What moved: requests, bytes and errors under names that begin with `prefix`.
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
        let counter = MetricType::Counter;
        self.family(prefix, &help, Some(&Unit::Bytes), counter, bytes.collect())?;
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
        let up = u64::from(self.seen.ailment().is_none());
        out.gauge("up", "Whether the exports answer.", vec![(Vec::new(), up)])?;
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let uptime = vec![(Vec::new(), ns(self.seen.uptime))];
        out.seconds("uptime", "Time since the start.", MetricType::Gauge, uptime)?;
        let took = vec![(Vec::new(), ns(self.seen.start_took))];
        out.seconds("start", "What the start took.", MetricType::Gauge, took)
    }

    fn reactors(&self, out: &mut Families<'_, '_>) -> fmt::Result {
        let of = |value: fn(&crate::observe::model::ReactorStatus) -> u64| -> Samples {
            let reactors = self.status.reactors.iter();
            reactors
                .map(|one| (vec![("reactor", one.index.to_string())], value(one)))
                .collect()
        };
        let counter = MetricType::Counter;
        out.seconds(
            "reactor_busy",
            "Time in turns that made progress.",
            counter,
            of(|it| it.busy_ns),
        )?;
        let help = "Time in turns without progress, pausing and sleeping.";
        out.seconds(
            "reactor_idle",
            help,
            MetricType::Counter,
            of(|it| it.idle_ns),
        )?;
        out.counter("reactor_turns", "Turns taken.", of(|it| it.turns))?;
        out.counter(
            "reactor_sleeps",
            "Times it blocked in the kernel.",
            of(|it| it.sleeps),
        )?;
        let help = "Sleeps that work ended, not a deadline.";
        out.counter("reactor_wakeups", help, of(|it| it.wakeups))?;
        out.counter(
            "reactor_stalls",
            "Polls that took too long.",
            of(|it| it.stalls),
        )?;
        out.gauge(
            "reactor_running",
            "Whether it lives.",
            of(|it| u64::from(it.running)),
        )?;
        let help = "Whether it has been in one poll for more than two seconds.";
        out.gauge(
            "reactor_stuck",
            help,
            of(|it| u64::from(it.stuck.is_some())),
        )?;
        let help = "The longest poll so far.";
        let longest = of(|it| it.longest_poll.as_ref().map_or(0, |longest| longest.ns));
        out.seconds("reactor_longest_poll", help, MetricType::Gauge, longest)?;
        let help = "Queues that it serves, admin queues included.";
        out.gauge("reactor_queues", help, of(|it| it.queues))?;
        out.gauge("reactor_depth", "Commands in execution.", of(|it| it.depth))
    }

    fn target(&self, out: &mut Families<'_, '_>) -> fmt::Result {
        let of = |value: fn(&crate::observe::model::TargetStatus) -> u64| -> Samples {
            let reactors = self.seen.reactors.iter().enumerate();
            reactors
                .map(|(index, one)| {
                    let labels = vec![("reactor", index.to_string())];
                    (labels, value(&one.counters.totals))
                })
                .collect()
        };
        let class = |class: &str, samples: Samples| {
            let class = class.to_owned();
            samples.into_iter().map(move |(mut labels, value)| {
                labels.push(("class", class.clone()));
                (labels, value)
            })
        };
        let io = class("io", of(|it| it.commands.saturating_sub(it.admin_commands)));
        let commands = io.chain(class("admin", of(|it| it.admin_commands)));
        out.counter(
            "commands",
            "Commands, by the class of their queue.",
            commands.collect(),
        )?;
        for (name, help, samples) in [
            (
                "command_errors",
                "Commands that ended with an error.",
                of(|it| it.errors),
            ),
            (
                "command_errors_not_logged",
                "Errors too many at once to log.",
                of(|it| it.errors_not_logged),
            ),
            (
                "connects",
                "Connects that made a queue.",
                of(|it| it.connects),
            ),
            (
                "connects_refused",
                "Connects that were refused.",
                of(|it| it.connects_refused),
            ),
            (
                "reconnects",
                "Hosts that had lost their association without a shutdown and made it anew.",
                of(|it| it.reconnects),
            ),
            (
                "controller_resets",
                "Resets of controllers that hosts asked for.",
                of(|it| it.controller_resets),
            ),
            (
                "keep_alive_expired",
                "Keep-alive times that ran out.",
                of(|it| it.keep_alive_expired),
            ),
            (
                "host_events",
                "Asynchronous events that hosts were told of.",
                of(|it| it.events),
            ),
            (
                "requests_deferred",
                "Requests that a device put off.",
                of(|it| it.deferred),
            ),
            (
                "requests_orphaned",
                "Commands in a device when their queue went away.",
                of(|it| it.orphaned),
            ),
            (
                "stale_completions",
                "Completions that nobody waits for.",
                of(|it| it.stale_completions),
            ),
            (
                "stale_queues",
                "Calls with a handle that is no longer valid.",
                of(|it| it.stale_queues),
            ),
        ] {
            out.counter(name, help, samples)?;
        }
        Ok(())
    }

    fn memory(&self, out: &mut Families<'_, '_>) -> fmt::Result {
        let memory = &self.status.memory;
        let arena = vec![(Vec::new(), memory.bytes)];
        let gauge = MetricType::Gauge;
        out.family(
            "arena",
            "The arena's size.",
            Some(&Unit::Bytes),
            gauge,
            arena,
        )?;
        let of = |value: fn(&crate::observe::model::ClassStatus) -> u64| -> Samples {
            let classes = memory.classes.iter();
            classes
                .map(|one| {
                    (
                        vec![("slice_bytes", one.slice_bytes.to_string())],
                        value(one),
                    )
                })
                .collect()
        };
        out.gauge("pool_slices", "Buffers there are.", of(|it| it.total))?;
        out.gauge(
            "pool_slices_free",
            "Buffers that nobody holds.",
            of(|it| it.free),
        )?;
        out.gauge(
            "pool_waiting",
            "Requests that wait for a buffer now.",
            of(|it| it.waiting),
        )?;
        out.counter(
            "pool_waits",
            "Requests that had to wait for a buffer.",
            of(|it| it.waits),
        )?;
        out.seconds(
            "pool_oldest_wait",
            "How long the request has waited for a buffer that waits longest now.",
            MetricType::Gauge,
            vec![(Vec::new(), memory.oldest_wait_ns)],
        )?;
        out.seconds(
            "pool_longest_wait",
            "The longest that a request waited for a buffer since the start.",
            MetricType::Gauge,
            vec![(Vec::new(), memory.longest_wait_ns)],
        )
    }

    fn devices(&self, out: &mut Families<'_, '_>) -> fmt::Result {
        let labels = |one: &DeviceStatus| -> Labels { vec![("device", one.name.clone())] };
        let some = |value: &dyn Fn(&DeviceStatus) -> Option<u64>| -> Samples {
            let devices = self.status.devices.iter();
            devices
                .filter_map(|one| Some((labels(one), value(one)?)))
                .collect()
        };
        let devices = self.status.devices.iter();
        let totals: Vec<_> = devices.map(|one| (labels(one), one.totals)).collect();
        out.totals("device", "a device", &totals)?;
        let help = "Whether it can be used.";
        let ready = |one: &DeviceStatus| {
            let ready = matches!(one.state, DeviceState::Ready | DeviceState::ReadOnly);
            Some(u64::from(ready))
        };
        out.gauge("device_ready", help, some(&ready))?;
        let help = "Whether it lost data that it had accepted: writes and flushes fail until it is \
                    reopened.";
        let damaged = |one: &DeviceStatus| Some(u64::from(one.state == DeviceState::Damaged));
        out.gauge("device_damaged", help, some(&damaged))?;
        let size = |one: &DeviceStatus| Some(one.block_count? * u64::from(one.block_size?));
        let gauge = MetricType::Gauge;
        out.family(
            "device_size",
            "Its size.",
            Some(&Unit::Bytes),
            gauge,
            some(&size),
        )?;
        let help = "Errors of the medium.";
        out.counter(
            "device_media_errors",
            help,
            some(&|one| Some(one.media_errors)),
        )?;
        let help = "Requests that had to wait inside the device.";
        out.counter("device_waits", help, some(&|one| Some(one.waits)))?;
        let help = "Its temperature in degrees Celsius, those below zero as zero.";
        let warmth = |one: &DeviceStatus| u64::try_from(one.temperature_celsius?.max(0)).ok();
        out.gauge("device_temperature_celsius", help, some(&warmth))?;
        let help = "Spare blocks left: 100 is as new.";
        let spare = |one: &DeviceStatus| one.available_spare_percent.map(u64::from);
        out.gauge("device_spare_percent", help, some(&spare))?;
        let used = |one: &DeviceStatus| one.used_percent.map(u64::from);
        out.gauge("device_used_percent", "Wear; may exceed 100.", some(&used))?;
        let help = "Kinds of warnings that it gives.";
        out.gauge(
            "device_warnings",
            help,
            some(&|one| Some(one.warnings.len() as u64)),
        )?;
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
        Ok(())
    }

    fn exports(&self, out: &mut Families<'_, '_>) -> fmt::Result {
        let exports = || self.status.exports.iter();
        let label = |nqn: &str| vec![("export", nqn.to_owned())];
        let totals: Vec<_> = exports().map(|one| (label(&one.nqn), one.totals)).collect();
        out.totals("export", "an export", &totals)?;
        let controllers = exports().map(|one| (label(&one.nqn), one.controllers));
        out.gauge(
            "export_controllers",
            "Controllers that hosts have.",
            controllers.collect(),
        )?;
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
        let connections = self.status.listeners.iter().filter_map(|one| {
            let labels = vec![
                ("listener", one.name.clone()),
                ("transport", one.transport.clone()),
            ];
            Some((labels, one.connections?))
        });
        out.gauge(
            "listener_connections",
            "Connections now.",
            connections.collect(),
        )
    }

    fn hosts(&self, out: &mut Families<'_, '_>) -> fmt::Result {
        let mut hosts: BTreeMap<(&str, &str), (u64, Totals)> = BTreeMap::new();
        for one in &self.status.hosts {
            let (controllers, totals) = hosts.entry((&one.nqn, &one.export)).or_default();
            *controllers += 1;
            totals.add(one.totals);
        }
        let told = hosts.iter().take(HOST_LABELS_MAX);
        let told = told.map(|((host, export), (controllers, totals))| {
            let labels = vec![
                ("host", (*host).to_owned()),
                ("export", (*export).to_owned()),
            ];
            (labels, *controllers, *totals)
        });
        let told: Vec<_> = told.collect();
        let totals: Vec<_> = told
            .iter()
            .map(|(labels, _, totals)| (labels.clone(), *totals))
            .collect();
        let of = format!("a host's present controllers, of {HOST_LABELS_MAX} pairs at most");
        out.totals("host", &of, &totals)?;
        let controllers = told
            .iter()
            .map(|(labels, controllers, _)| (labels.clone(), *controllers));
        out.gauge(
            "host_controllers",
            "Controllers that a host has.",
            controllers.collect(),
        )?;
        self.connections(out)?;
        let left_out = (hosts.len() - told.len()) as u64;
        let help = "Pairs of host and export beyond the bound of labels.";
        out.gauge("hosts_left_out", help, vec![(Vec::new(), left_out)])
    }

    /// I/O queues, each of which is a connection, by controller and queue identifier.
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
