//! Reports the differences between two observations as events. An object that appears and
//! disappears between them is only counted.

use std::collections::{BTreeMap, BTreeSet};

use super::events::Events;
use super::model::Severity;
use super::observation::{Observation, read_only_volume};
use super::status::{state, warnings};

/// Most events of one kind per observation, so that a burst does not displace all other events.
const OF_A_KIND_MAX: usize = 16;

/// Controller identifier, with host and subsystem.
type Controllers = BTreeMap<u16, (String, String)>;

/// The data of the last observation.
pub(crate) struct Changes {
    controllers: Controllers,
    devices: BTreeMap<String, (String, String)>,
    /// The volumes whose metadata could not be stored.
    read_only_volumes: BTreeSet<String>,
    counts: BTreeMap<(&'static str, String), u64>,
    outage: Option<String>,
    degradation: Option<String>,
    lost_rdma: Option<String>,
    /// The numbers of the copies that had not ended.
    copies_running: BTreeSet<u32>,
    /// The number of the last copy.
    copies_seen: u32,
}

impl Changes {
    pub(crate) fn new(seen: &Observation) -> Self {
        Self {
            controllers: controllers(seen),
            devices: devices(seen),
            // One that has failed since the start is reported.
            read_only_volumes: BTreeSet::new(),
            counts: counts(seen),
            outage: seen.outage(),
            degradation: seen.degradation(),
            lost_rdma: seen.lost_rdma(),
            copies_running: BTreeSet::new(),
            copies_seen: seen.copies.last().map_or(0, |it| it.number),
        }
    }

    /// Reports the changes since the last observation.
    pub(crate) fn compare(&mut self, seen: &Observation, events: &Events) {
        self.compare_hosts(seen, events);
        let devices = devices(seen);
        for (name, (condition, warned)) in &devices {
            let before = self.devices.get(name);
            if before.is_none_or(|(then, _)| then != condition) {
                let severity = match condition.as_str() {
                    "ready" => Severity::Info,
                    damaged if damaged.starts_with("damaged") => Severity::Error,
                    _ => Severity::Warning,
                };
                events.add(severity, "device", name, &format!("is {condition}"));
            }
            if !warned.is_empty() && before.is_none_or(|(_, then)| then != warned) {
                events.add(Severity::Warning, "device", name, warned);
            }
        }
        self.devices = devices;
        let read_only: BTreeSet<_> = read_only_volumes(seen).collect();
        for name in read_only.difference(&self.read_only_volumes) {
            events.add(Severity::Error, "volume", name, &read_only_volume(name));
        }
        self.read_only_volumes = read_only;
        let counts = counts(seen);
        for ((what, subject), now) in &counts {
            let then = self
                .counts
                .get(&(*what, subject.clone()))
                .copied()
                .unwrap_or(0);
            if *now > then {
                let (kind, text) = what.split_once(": ").unwrap_or((what, what));
                let kind = KINDS.iter().find(|known| **known == kind);
                let text = format!("{} {text}", now - then);
                events.add(
                    Severity::Warning,
                    kind.unwrap_or(&"reactor"),
                    subject,
                    &text,
                );
            }
        }
        self.counts = counts;
        let outage = seen.outage();
        if outage != self.outage {
            match &outage {
                Some(text) => events.add(Severity::Error, "reactor", "", text),
                None => {
                    events.add(
                        Severity::Info,
                        "reactor",
                        "",
                        "the exports are available again",
                    );
                }
            }
            self.outage = outage;
        }
        let degradation = seen.degradation();
        if degradation != self.degradation {
            match &degradation {
                Some(text) => events.add(Severity::Warning, "memory", "", text),
                None => events.add(Severity::Info, "memory", "", "no request waits for long"),
            }
            self.degradation = degradation;
        }
        let lost_rdma = seen.lost_rdma();
        if lost_rdma != self.lost_rdma {
            match &lost_rdma {
                Some(text) => events.add(Severity::Warning, "rdma", "", text),
                None => events.add(Severity::Info, "rdma", "", "no device is missing"),
            }
            self.lost_rdma = lost_rdma;
        }
        self.compare_copies(seen, events);
    }

    /// Reports copies that have ended.
    fn compare_copies(&mut self, seen: &Observation, events: &Events) {
        for copy in seen.copies.iter().filter(|it| it.end.is_some()) {
            let is_new = copy.number > self.copies_seen;
            if !self.copies_running.contains(&copy.number) && !is_new {
                continue;
            }
            let (severity, text) = match (copy.error(), copy.failure()) {
                (Some(error), Some(_)) => (Severity::Error, error),
                (Some(error), None) => (Severity::Warning, error),
                (None, _) => (Severity::Info, "is complete".to_owned()),
            };
            let devices = format!("{} to {}", copy.source, copy.destination);
            let text = format!("of device {devices}: {text}");
            events.add(severity, "copy", &copy.number.to_string(), &text);
        }
        let running = seen.copies.iter().filter(|it| it.end.is_none());
        self.copies_running = running.map(|it| it.number).collect();
        self.copies_seen = seen.copies.last().map_or(self.copies_seen, |it| it.number);
    }

    fn compare_hosts(&mut self, seen: &Observation, events: &Events) {
        let now = controllers(seen);
        let tell = |from: &Controllers, to: &Controllers, text: &str| {
            let changed = from.iter().filter(|(id, who)| to.get(id) != Some(who));
            let changed: Vec<_> = changed.collect();
            for (id, (host, subsystem)) in changed.iter().take(OF_A_KIND_MAX) {
                let text = format!("{text} {subsystem}");
                events.add_of_host(Severity::Info, host, &text, &format!("(controller {id})"));
            }
            if let Some(more) = changed
                .len()
                .checked_sub(OF_A_KIND_MAX)
                .filter(|more| *more > 0)
            {
                let text = format!("{text}: {more} more events of this kind in this second");
                events.add(Severity::Info, "host", "", &text);
            }
        };
        tell(&self.controllers, &now, "left");
        tell(&now, &self.controllers, "attached");
        self.controllers = now;
    }
}

const KINDS: [&str; 5] = ["host", "reactor", "memory", "device", "files"];

fn controllers(seen: &Observation) -> Controllers {
    let controllers = seen.target.controllers.iter();
    controllers
        .map(|it| {
            (
                it.controller_id,
                (it.host_nqn.clone(), it.subsystem_nqn.clone()),
            )
        })
        .collect()
}

fn devices(seen: &Observation) -> BTreeMap<String, (String, String)> {
    let devices = seen.devices.iter();
    devices
        .map(|device| {
            let word = serde_json::to_value(state(device.health.state));
            let word = word.ok().and_then(|word| word.as_str().map(str::to_owned));
            let mut word = word.unwrap_or_default();
            if let Some(damage) = device.health.damage {
                word = format!("{word}: {}", damage.cause);
            }
            if device.has_damaged_reservations {
                word = format!("damaged: stored reservations cannot be restored ({word})");
            }
            let drive = device.health.drive;
            let warned = drive.map_or_else(Vec::new, |drive| warnings(drive.warnings));
            (device.name.clone(), (word, warned.join(", ")))
        })
        .collect()
}

fn read_only_volumes(seen: &Observation) -> impl Iterator<Item = String> {
    let volumes = seen.files.iter().flat_map(|it| &it.volumes);
    let failed = volumes.filter(|(_, it)| it.has_failed);
    failed.map(|(name, _)| name.to_string())
}

/// The counters whose increase is an event, each with a description and its subject.
fn counts(seen: &Observation) -> BTreeMap<(&'static str, String), u64> {
    let mut counts = BTreeMap::new();
    let totals = seen.target_totals();
    let mut add = |what, subject: &str, value| {
        counts.insert((what, subject.to_owned()), value);
    };
    add("host: keep-alive timeout(s)", "", totals.keep_alive_expired);
    add("host: Connect(s) refused", "", totals.connects_refused);
    if let Some(files) = &seen.files {
        let expired = files.service.clients_expired;
        add(
            "files: client(s) lost their state after their lease expired",
            "",
            expired,
        );
    }
    for (index, reactor) in seen.reactors.iter().enumerate() {
        let subject = index.to_string();
        add(
            "reactor: poll(s) took too long",
            &subject,
            reactor.stats.stalls,
        );
    }
    for class in &seen.memory.counters.classes {
        let subject = format!("{} bytes", class.slice_bytes);
        add(
            "memory: request(s) had to wait for a buffer",
            &subject,
            class.waits,
        );
    }
    for device in &seen.devices {
        for (name, what) in [
            ("timeouts", "device: command(s) past the deadline"),
            ("resets", "device: reset(s) started"),
            ("reattachments", "device: time(s) the drive returned"),
        ] {
            let value = device.drive.as_ref().and_then(|drive| drive.get(name));
            if let Some(value) = value {
                add(what, &device.name, *value);
            }
        }
    }
    counts
}
