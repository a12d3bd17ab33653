//! The tables that `status` and `top` show.

mod copies;

pub(crate) use copies::copies;

use super::delta::{Rates, StatusDelta};
use crate::observe::model::{
    BUFFER_WAIT_MAX_NS, ControllerKind, DeviceState, DeviceStatus, Event, FileOperationStatus,
    FilesStatus, HostStatus, Latency, PaceStatus, Percentiles, RateLimitStatus, ReactorStatus,
    Severity, ShareStatus, Status,
};
use crate::observe::observation::{lost_volume, read_only_volume};
use crate::quantity;
use crate::table::{Cell, Column, Mark, Table, name, number};

/// The source of the data.
pub(crate) const STATUS: &str = "/api/v1/status";

/// Rates of reads and writes, which most views end with.
const RATES: [Column; 5] = [
    number("READ/S"),
    number("READ"),
    number("WRITE/S"),
    number("WRITE"),
    number("ERR/S"),
];
/// Latency percentiles of reads and writes.
const LATENCIES: [Column; 4] = [
    number("R-P50"),
    number("R-P99"),
    number("W-P50"),
    number("W-P99"),
];

/// Columns of [`exports`].
pub(crate) const EXPORTS: &[&[Column]] = &[
    &[
        name("EXPORT"),
        number("NS"),
        number("SIZE"),
        number("HOSTS"),
    ],
    &RATES,
    &LATENCIES,
];

/// Columns of [`listeners`].
pub(crate) const LISTENERS: &[&[Column]] = &[&[
    name("LISTENER"),
    name("TRANSPORT"),
    name("ADDRESS"),
    number("CONNECTIONS"),
    name("EXPORTS"),
]];

/// Columns of [`devices`].
pub(crate) const DEVICES: &[&[Column]] = &[
    &[
        name("DEVICE"),
        name("TYPE"),
        name("STATE"),
        number("SIZE"),
        name("HEALTH"),
    ],
    &RATES,
    &LATENCIES,
];

/// Columns of [`hosts`].
pub(crate) const HOSTS: &[&[Column]] = &[
    &[
        name("HOST"),
        name("EXPORT"),
        number("ID"),
        name("STATE"),
        name("FROM"),
        name("KEY"),
        name("TLS"),
        number("QUEUES"),
    ],
    &RATES,
];

/// Columns of [`reactors()`].
pub(crate) const REACTORS: &[&[Column]] = &[
    &[
        number("REACTOR"),
        number("CORE"),
        name("STATE"),
        number("BUSY"),
        number("QUEUES"),
        number("DEPTH"),
        number("TURNS/S"),
        number("SLEEPS/S"),
        number("STALLS"),
        number("LONGEST"),
    ],
    &LATENCIES,
];

/// Columns of [`errors`].
pub(crate) const ERRORS: &[&[Column]] = &[&[
    name("EXPORT"),
    name("STATUS"),
    number("ERRORS"),
    number("ERR/S"),
]];

/// Columns of [`rate_limits`].
pub(crate) const RATE_LIMITS: &[&[Column]] = &[&[
    name("LIMIT OF"),
    name("EXPORT"),
    name("COUNTS"),
    number("IOPS"),
    number("BYTES/S"),
    number("DELAYED/S"),
    number("BY IOPS"),
    number("BY BYTES"),
    number("WAITED/S"),
]];

/// Columns of [`volumes`].
pub(crate) const VOLUMES: &[&[Column]] = &[&[
    name("VOLUME"),
    name("DEVICE"),
    name("KIND"),
    name("STATE"),
    number("SIZE"),
    number("USED"),
    number("USED %"),
    number("OBJECTS"),
    number("METADATA"),
    number("LIMIT"),
    number("LOG %"),
]];

/// Columns of [`shares`].
pub(crate) const SHARES: &[&[Column]] = &[&[
    name("SHARE"),
    name("VOLUME"),
    name("ACCESS"),
    number("USED"),
    number("QUOTA %"),
    number("FILES"),
    number("FILES %"),
    number("READ/S"),
    number("READ"),
    number("WRITE/S"),
    number("WRITE"),
]];

/// Columns of [`file_operations`].
pub(crate) const FILE_OPERATIONS: &[&[Column]] = &[&[
    name("OPERATION"),
    number("EXECUTED"),
    number("PER SECOND"),
    number("FAILED"),
    number("FAILED/S"),
]];

/// Columns of [`pools`].
pub(crate) const POOLS: &[&[Column]] = &[&[
    number("BUFFER"),
    number("TOTAL"),
    number("TAKEN"),
    number("FREE"),
    number("FREE %"),
    number("WAITS"),
    number("WAITS/S"),
    number("WAITING"),
]];

/// Columns of [`events`].
pub(crate) const EVENTS: &[&[Column]] = &[&[
    number("AGO"),
    name("SEVERITY"),
    name("WHAT"),
    name("SUBJECT"),
    name("EVENT"),
]];

/// The exports, with their contents and users.
pub(crate) fn exports(delta: &StatusDelta) -> Table {
    let mut table = table(EXPORTS);
    for export in &delta.now.exports {
        let bytes = export.namespaces.iter().map(|it| it.bytes).sum();
        let rates = delta.rates(export.totals, |then| {
            let same = then.exports.iter().find(|it| it.nqn == export.nqn);
            same.map(|it| it.totals)
        });
        let mut row = vec![
            Cell::text(&*export.nqn),
            count(export.namespaces.len() as u64),
            size(bytes),
            count(export.controllers),
        ];
        row.extend(rate_cells(rates));
        row.extend(latency_cells(export.latency.as_ref()));
        table.push(row);
    }
    table
}

/// The listeners, with their exports.
pub(crate) fn listeners(delta: &StatusDelta) -> Table {
    let mut table = table(LISTENERS);
    for listener in &delta.now.listeners {
        let exports = delta.now.exports.iter();
        let here = exports.filter(|export| export.listeners.contains(&listener.name));
        let names: Vec<&str> = here.map(|export| short(&export.nqn)).collect();
        table.push(vec![
            Cell::text(&*listener.name),
            Cell::text(&*listener.transport),
            Cell::text(&*listener.address),
            Cell::known(listener.connections, count),
            if names.is_empty() {
                Cell::text("discovery only")
            } else {
                Cell::text(names.join(" "))
            },
        ]);
    }
    table
}

/// The devices, with their health.
pub(crate) fn devices(delta: &StatusDelta) -> Table {
    let mut table = table(DEVICES);
    for device in &delta.now.devices {
        let rates = delta.rates(device.totals, |then| {
            let same = then.devices.iter().find(|it| it.name == device.name);
            same.map(|it| it.totals)
        });
        let bytes = device
            .block_size
            .zip(device.block_count)
            .map(|(size, count)| u64::from(size).saturating_mul(count));
        let mut row = vec![
            Cell::text(&*device.name),
            Cell::text(&*device.device_type),
            state(device.state),
            Cell::known(bytes, size),
            health(device),
        ];
        row.extend(rate_cells(rates));
        row.extend(latency_cells(device.latency.as_ref()));
        table.push(row);
    }
    table
}

/// The hosts' controllers.
pub(crate) fn hosts(delta: &StatusDelta) -> Table {
    let mut table = table(HOSTS);
    for host in &delta.now.hosts {
        let is_same = |other: &&HostStatus| {
            (&other.nqn, &other.export, other.controller_id)
                == (&host.nqn, &host.export, host.controller_id)
        };
        let rates = delta.rates(host.totals, |then| {
            then.hosts.iter().find(is_same).map(|it| it.totals)
        });
        let export = match host.kind {
            ControllerKind::Io => short(&host.export),
            ControllerKind::Discovery => "discovery",
        };
        let from = host.address.as_ref().or(host.transport.as_ref());
        let mut row = vec![
            Cell::text(&*host.nqn),
            Cell::text(export),
            Cell::known(host.controller_id.map(u64::from), count),
            controller_state(&host.state),
            Cell::known(from, Cell::text),
            Cell::known(host.authentication.as_ref(), |it| Cell::text(&*it.key)),
            Cell::known(host.channel.as_ref(), |it| Cell::text(&*it.key)),
            count(host.queues.len() as u64),
        ];
        row.extend(rate_cells(rates));
        table.push(row);
    }
    table
}

/// The reactors, with their load.
pub(crate) fn reactors(delta: &StatusDelta) -> Table {
    let mut table = table(REACTORS);
    for reactor in &delta.now.reactors {
        let of = |field: fn(&ReactorStatus) -> u64| {
            let rate = delta.rate_of(|it| it.reactors.get(reactor.index).map_or(0, field));
            Cell::number(rate, quantity::rate(rate))
        };
        let longest = reactor.longest_poll.as_ref();
        let mut row = vec![
            count(reactor.index as u64),
            count(reactor.core as u64),
            reactor_state(reactor),
            Cell::known(delta.busy_permille(reactor.index), busy),
            count(reactor.queues),
            count(reactor.depth),
            of(|it| it.turns),
            of(|it| it.sleeps),
            nonzero(reactor.stalls),
            Cell::known(longest.map(|it| it.ns), latency),
        ];
        row.extend(latency_cells(Some(&reactor.latency)));
        table.push(row);
    }
    table
}

/// The commands that failed, by the status that hosts received.
pub(crate) fn errors(delta: &StatusDelta) -> Table {
    let mut table = table(ERRORS);
    for errors in &delta.now.statuses {
        let rate = delta.rate_of(|then| {
            let mut all = then.statuses.iter();
            let same = all.find(|it| (&it.export, &it.code) == (&errors.export, &errors.code));
            same.map_or(0, |it| it.count)
        });
        let code = errors.code.as_ref();
        table.push(vec![
            Cell::known(errors.export.as_deref(), Cell::text),
            Cell::text(code.map_or("others", |it| &it.text)),
            count(errors.count),
            Cell::number(rate, quantity::rate(rate)),
        ]);
    }
    table
}

/// The rate limits, and what they delay.
pub(crate) fn rate_limits(delta: &StatusDelta) -> Table {
    let mut table = table(RATE_LIMITS);
    for (index, limit) in delta.now.rate_limits.iter().enumerate() {
        let of = |field: fn(&RateLimitStatus) -> u64| {
            delta.rate_of(|then| {
                let same = then.rate_limits.get(index);
                let same = same.filter(|it| it.host == limit.host && it.device == limit.device);
                same.map_or(0, field)
            })
        };
        let delayed = of(|it| it.throttled_by_iops + it.throttled_by_bandwidth);
        let waited = of(|it| it.waited_ns);
        let subject = limit.host.as_ref().or(limit.device.as_ref());
        table.push(vec![
            Cell::known(subject, |it| Cell::text(&**it)),
            Cell::known(limit.export.as_ref(), |it| Cell::text(short(it))),
            Cell::text(&*limit.operations),
            Cell::known(limit.iops, count),
            Cell::known(limit.bandwidth, size),
            delayed_rate(delayed),
            count(limit.throttled_by_iops),
            count(limit.throttled_by_bandwidth),
            latency(waited as u64),
        ]);
    }
    for pace in &delta.now.paces {
        table.push(pace_row(delta, pace));
    }
    table
}

/// Commands in a second that waited for a limit.
fn delayed_rate(rate: f64) -> Cell {
    Cell::number(rate, quantity::rate(rate)).marked(match rate > 0.0 {
        true => Mark::Warning,
        false => Mark::Plain,
    })
}

/// An export that may have to wait for others, and why, in the columns of rate limits.
fn pace_row(delta: &StatusDelta, pace: &PaceStatus) -> Vec<Cell> {
    let of = |field: fn(&PaceStatus) -> u64| {
        delta.rate_of(|then| {
            let mut paces = then.paces.iter();
            let is_same = |it: &&PaceStatus| it.export == pace.export && it.disk == pace.disk;
            paces.find(is_same).map_or(0, field)
        })
    };
    let (delayed, waited) = (of(|it| it.throttled), of(|it| it.waited_ns));
    let reason = match (&pace.disk, &pace.missed_by) {
        (Some(disk), _) => format!("share of {disk}"),
        (None, Some(export)) => format!("p99 of {}", short(export)),
        (None, None) => "p99 of others".to_owned(),
    };
    vec![
        Cell::text(short(&pace.export)),
        Cell::text(reason),
        Cell::text("both"),
        Cell::known(None, count),
        Cell::known(pace.limit, size),
        delayed_rate(delayed),
        count(0),
        count(pace.throttled),
        latency(waited as u64),
    ]
}

/// The volumes, with their use.
pub(crate) fn volumes(delta: &StatusDelta) -> Table {
    let mut table = table(VOLUMES);
    for volume in delta.now.files.iter().flat_map(|it| &it.volumes) {
        let used = volume.data_bytes.saturating_sub(volume.free_bytes);
        let (state, mark) = match volume {
            it if !it.served => ("not served", Mark::Bad),
            it if it.device_gone => ("device gone", Mark::Bad),
            it if it.read_only => ("read-only", Mark::Bad),
            _ => ("ready", Mark::Good),
        };
        let log = (volume.log_bytes_max > 0).then_some((volume.log_bytes, volume.log_bytes_max));
        table.push(vec![
            Cell::text(&*volume.name),
            Cell::text(&*volume.device),
            Cell::text(if volume.durable {
                "durable"
            } else {
                "volatile"
            }),
            Cell::text(state).marked(mark),
            size(volume.data_bytes),
            size(used),
            share_of(used, volume.data_bytes),
            count(volume.inodes),
            size(volume.metadata_bytes),
            size(volume.metadata_bytes_max),
            Cell::known(log, |(used, whole)| {
                let percent = used * 100 / whole;
                Cell::number(percent as f64, format!("{percent} %"))
            }),
        ]);
    }
    table
}

/// A part of a resource, which is marked if little of it is left.
fn share_of(used: u64, whole: u64) -> Cell {
    let percent = used as f64 / whole.max(1) as f64 * 100.0;
    Cell::number(percent, format!("{percent:.0} %")).marked(if percent > 90.0 {
        Mark::Warning
    } else {
        Mark::Plain
    })
}

/// The shares, with their use, quotas, and what moves.
pub(crate) fn shares(delta: &StatusDelta) -> Table {
    let mut table = table(SHARES);
    for share in delta.now.files.iter().flat_map(|it| &it.shares) {
        let of = |field: fn(&ShareStatus) -> u64| {
            let all = |it: &Status| it.files.as_ref().map_or(0, |it| of_share(it, share, field));
            delta.rate_of(all)
        };
        let rate = |value| Cell::number(value, quantity::rate(value));
        let bytes = |value| Cell::number(value, quantity::byte_rate(value));
        let of_quota = |used: u64, quota: u64| {
            Cell::known((quota > 0).then_some(quota), |quota| share_of(used, quota))
        };
        let files = match &share.directory {
            Some(directory) => format!("{}/{directory}", share.volume),
            None => share.volume.clone(),
        };
        table.push(vec![
            Cell::text(&*share.name),
            Cell::text(files),
            Cell::text(if share.read_only {
                "reads"
            } else {
                "reads, writes"
            }),
            size(share.bytes_used),
            of_quota(share.bytes_used, share.bytes_used_max),
            count(share.files),
            of_quota(share.files, share.files_max),
            rate(of(|it| it.reads)),
            bytes(of(|it| it.bytes_read)),
            rate(of(|it| it.writes)),
            bytes(of(|it| it.bytes_written)),
        ]);
    }
    table
}

/// A number of the share with the same name.
fn of_share(files: &FilesStatus, share: &ShareStatus, field: fn(&ShareStatus) -> u64) -> u64 {
    let same = files.shares.iter().find(|it| it.name == share.name);
    same.map_or(0, field)
}

/// The operations of NFS that clients have asked for.
pub(crate) fn file_operations(delta: &StatusDelta) -> Table {
    let mut table = table(FILE_OPERATIONS);
    for operation in delta.now.files.iter().flat_map(|it| &it.operations) {
        let of = |field: fn(&FileOperationStatus) -> u64| {
            let rate = delta.rate_of(|then| {
                let mut all = then.files.iter().flat_map(|it| &it.operations);
                all.find(|it| it.name == operation.name).map_or(0, field)
            });
            Cell::number(rate, quantity::rate(rate))
        };
        table.push(vec![
            Cell::text(&*operation.name),
            count(operation.executed),
            of(|it| it.executed),
            count(operation.failed),
            of(|it| it.failed),
        ]);
    }
    table
}

/// The clients of files and what they have, in one line.
pub(crate) fn files_line(files: &FilesStatus) -> String {
    let it = &files.service;
    let grace = match it.in_grace {
        true => ", which reclaim after a restart",
        false => "",
    };
    format!(
        "{} client(s){grace}, {} connection(s), {} session(s), {} open file(s), {} lock(s)",
        it.clients, it.connections, it.sessions, it.opens, it.locks
    )
}

/// The arena's buffers, by size.
pub(crate) fn pools(delta: &StatusDelta) -> Table {
    let mut table = table(POOLS);
    for (index, class) in delta.now.memory.classes.iter().enumerate() {
        let free = class.free as f64 / class.total.max(1) as f64 * 100.0;
        let waits = delta.rate_of(|it| it.memory.classes.get(index).map_or(0, |it| it.waits));
        let is_low = class.free * 10 < class.total;
        table.push(vec![
            size(class.slice_bytes),
            count(class.total),
            count(class.taken),
            count(class.free),
            Cell::number(free, format!("{free:.0} %")).marked(if is_low {
                Mark::Warning
            } else {
                Mark::Plain
            }),
            count(class.waits),
            Cell::number(waits, quantity::rate(waits)),
            nonzero(class.waiting),
        ]);
    }
    table
}

/// The events, latest first.
pub(crate) fn events(events: &[Event], now_unix_ms: u64) -> Table {
    let mut table = table(EVENTS);
    for event in events.iter().rev() {
        let ago_ms = now_unix_ms.saturating_sub(event.unix_ms);
        let ago = quantity::duration(std::time::Duration::from_millis(ago_ms));
        table.push(vec![
            // Sorted by number, because many events have the same time.
            Cell::number(event.id as f64, ago),
            severity(event.severity),
            Cell::text(&*event.what),
            Cell::text(&*event.subject),
            Cell::text(&*event.text),
        ]);
    }
    table
}

/// The throughput of the whole appliance, in one line.
pub(crate) fn throughput_line(delta: &StatusDelta) -> String {
    let rates = delta.total_rates();
    let rate = |per_second: f64| {
        if per_second > 0.0 {
            quantity::rate(per_second)
        } else {
            "0".to_owned()
        }
    };
    let (reads, writes) = (rate(rates.reads), rate(rates.writes));
    let read = quantity::bytes(rates.bytes_read as u64);
    let written = quantity::bytes(rates.bytes_written as u64);
    let errors = rate(rates.errors);
    format!("{reads} reads/s ({read}/s), {writes} writes/s ({written}/s), {errors} errors/s")
}

/// The latencies of all exports together, in one line.
pub(crate) fn latency_line(delta: &StatusDelta) -> String {
    let formatted = |of: &Percentiles| {
        let formatted =
            |ns: Option<u64>| ns.map_or(quantity::NOTHING.to_owned(), quantity::latency);
        let (p50, p99, p999) = (
            formatted(of.p50_ns),
            formatted(of.p99_ns),
            formatted(of.p999_ns),
        );
        format!("p50 {p50}, p99 {p99}, p99.9 {p999}")
    };
    let Latency { read, write, .. } = &delta.now.latency;
    format!("reads {}; writes {}", formatted(read), formatted(write))
}

/// The problems that need attention, worst first.
pub(crate) fn active_problems(status: &Status) -> Vec<String> {
    let mut active_problems = Vec::new();
    for reactor in &status.reactors {
        if !reactor.running {
            active_problems.push(format!("reactor {} has ended unexpectedly", reactor.index));
        } else if let Some(stuck) = &reactor.stuck {
            let (name, ns) = (&stuck.name, quantity::latency(stuck.ns));
            active_problems.push(format!(
                "reactor {} is stuck in {name}: {ns}",
                reactor.index
            ));
        }
    }
    for device in &status.devices {
        if device.state != DeviceState::Ready && device.state != DeviceState::ReadOnly {
            let state = state_word(device.state);
            let name = &device.name;
            active_problems.push(match &device.damage {
                None => format!("device {name} is {state}"),
                Some(damage) => format!(
                    "device {name} is damaged: {}: writes and flushes fail; repair the underlying \
                     storage, then run `windlass device reopen {name}`",
                    damage.text
                ),
            });
        }
        if device.reservations_damaged {
            let name = &device.name;
            active_problems.push(format!(
                "device {name}: its stored reservations cannot be restored, and hosts are refused: \
                 `windlass reservations {name} --clear` resets them"
            ));
        }
        let warnings = device.warnings.iter();
        active_problems.extend(warnings.map(|text| format!("device {}: {text}", device.name)));
    }
    for volume in status.files.iter().flat_map(|it| &it.volumes) {
        if volume.read_only {
            active_problems.push(read_only_volume(&volume.name));
        } else if volume.device_gone {
            active_problems.push(lost_volume(&volume.name));
        } else if !volume.served {
            active_problems.push(format!("volume {} is not served", volume.name));
        }
    }
    active_problems.extend(status.lost_rdma());
    for class in status.memory.classes.iter().filter(|it| it.waiting > 0) {
        active_problems.push(format!(
            "{} requests wait for a buffer of {}: raise `memory` in [appliance] as recommended by \
             `windlass doctor`",
            class.waiting,
            quantity::bytes(class.slice_bytes)
        ));
    }
    if status.memory.oldest_wait_ns > BUFFER_WAIT_MAX_NS {
        active_problems.push(format!(
            "a request has waited {} for a buffer: `windlass status hosts` lists the hosts, and the log \
             those that take or send no data",
            quantity::latency(status.memory.oldest_wait_ns)
        ));
    }
    active_problems
}

fn table(columns: &[&[Column]]) -> Table {
    Table::new(&columns.concat())
}

fn count(number: u64) -> Cell {
    Cell::number(number as f64, quantity::count(number))
}

/// A number whose normal value is zero.
fn nonzero(number: u64) -> Cell {
    let mark = if number == 0 {
        Mark::Plain
    } else {
        Mark::Warning
    };
    count(number).marked(mark)
}

fn size(bytes: u64) -> Cell {
    Cell::number(bytes as f64, quantity::bytes(bytes))
}

fn latency(ns: u64) -> Cell {
    Cell::number(ns as f64, quantity::latency(ns))
}

fn rate_cells(rates: Rates) -> [Cell; RATES.len()] {
    let rate = |value| Cell::number(value, quantity::rate(value));
    let bytes = |value| Cell::number(value, quantity::byte_rate(value));
    let errors = if rates.errors > 0.0 {
        Mark::Bad
    } else {
        Mark::Plain
    };
    [
        rate(rates.reads),
        bytes(rates.bytes_read),
        rate(rates.writes),
        bytes(rates.bytes_written),
        rate(rates.errors).marked(errors),
    ]
}

fn latency_cells(measured: Option<&Latency>) -> [Cell; LATENCIES.len()] {
    let cell = |of: fn(&Latency) -> &Percentiles, which: fn(&Percentiles) -> Option<u64>| {
        Cell::known(measured.map(of).and_then(which), latency)
    };
    [
        cell(|it| &it.read, |it| it.p50_ns),
        cell(|it| &it.read, |it| it.p99_ns),
        cell(|it| &it.write, |it| it.p50_ns),
        cell(|it| &it.write, |it| it.p99_ns),
    ]
}

/// The part of a name that distinguishes the exports of one appliance: the text after the last
/// colon.
fn short(nqn: &str) -> &str {
    match nqn.rsplit_once(':') {
        Some((_, rest)) if !rest.is_empty() => rest,
        _ => nqn,
    }
}

fn busy(permille: u32) -> Cell {
    let mark = if permille >= 950 {
        Mark::Warning
    } else {
        Mark::Plain
    };
    Cell::number(f64::from(permille), quantity::percent(permille)).marked(mark)
}

fn reactor_state(reactor: &ReactorStatus) -> Cell {
    let (text, mark) = if !reactor.running {
        ("dead", Mark::Bad)
    } else if reactor.stuck.is_some() {
        ("stuck", Mark::Bad)
    } else if reactor.asleep {
        ("asleep", Mark::Plain)
    } else {
        ("polling", Mark::Good)
    };
    Cell::text(text).marked(mark)
}

fn state_word(state: DeviceState) -> &'static str {
    match state {
        DeviceState::Ready => "ready",
        DeviceState::ReadOnly => "read-only",
        DeviceState::Damaged => "damaged",
        DeviceState::Resetting => "resetting",
        DeviceState::Removed => "removed",
        DeviceState::Absent => "absent",
    }
}

fn state(state: DeviceState) -> Cell {
    let mark = match state {
        DeviceState::Ready => Mark::Good,
        DeviceState::ReadOnly | DeviceState::Resetting => Mark::Warning,
        DeviceState::Damaged | DeviceState::Removed | DeviceState::Absent => Mark::Bad,
    };
    Cell::text(state_word(state)).marked(mark)
}

fn controller_state(state: &str) -> Cell {
    let mark = match state {
        "ready" => Mark::Good,
        "failed" => Mark::Bad,
        _ => Mark::Plain,
    };
    Cell::text(state).marked(mark)
}

/// The drive's health data and its media errors.
fn health(device: &DeviceStatus) -> Cell {
    let mut parts = Vec::new();
    if let Some(damage) = &device.damage {
        parts.push(damage.text.clone());
    }
    if let Some(celsius) = device.temperature_celsius {
        parts.push(format!("{celsius} °C"));
    }
    if let Some(percent) = device.used_percent {
        parts.push(format!("{percent} % used"));
    }
    if let Some(percent) = device.available_spare_percent {
        parts.push(format!("{percent} % spare"));
    }
    if device.media_errors > 0 {
        parts.push(format!("{} media errors", device.media_errors));
    }
    let mark = if device.damage.is_some() || !device.warnings.is_empty() {
        Mark::Bad
    } else if device.media_errors > 0 {
        Mark::Warning
    } else {
        Mark::Plain
    };
    if parts.is_empty() {
        parts.push(quantity::NOTHING.to_owned());
    }
    Cell::text(parts.join(", ")).marked(mark)
}

fn severity(severity: Severity) -> Cell {
    let (text, mark) = match severity {
        Severity::Info => ("info", Mark::Plain),
        Severity::Warning => ("warning", Mark::Warning),
        Severity::Error => ("error", Mark::Bad),
    };
    Cell::text(text).marked(mark)
}
