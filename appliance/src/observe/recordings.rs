//! Reads the flight recorders, and the names of the objects in their events.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use reactors::recorder::Recording;
use reactors::{Clock as _, Nanos, ReactorHandle};

use crate::observe::pseudonyms::Pseudonyms;
use crate::observe::sources::Sources;

/// The input of a trace: shared handles that any thread may use.
pub(crate) struct Material {
    pub(crate) now: Nanos,
    pub(crate) now_unix_ms: u64,
    pub(crate) reactors: Vec<ReactorMaterial>,
    /// Names of exports by subsystem slot.
    pub(crate) exports: BTreeMap<u32, String>,
    /// Names of devices by index.
    pub(crate) devices: BTreeMap<u16, String>,
}

/// The input from one reactor.
pub(crate) struct ReactorMaterial {
    pub(crate) core: usize,
    pub(crate) recording: Recording,
    handle: ReactorHandle,
    /// Names of queues by slot.
    pub(crate) queues: BTreeMap<u16, String>,
}

impl ReactorMaterial {
    /// The name of a poller by its number.
    pub(crate) fn poller(&self, number: u16) -> String {
        let name = self.handle.stats().poller_name(number);
        name.map_or_else(|| "removed".to_owned(), |name| name.to_string())
    }
}

impl Material {
    /// Collects the input, with `pseudonyms` in place of the names of hosts, if given.
    pub(crate) fn gather(sources: &Sources, pseudonyms: Option<&Pseudonyms>) -> Self {
        let target = sources.target.snapshot();
        let mut queues: Vec<BTreeMap<u16, String>> = Vec::new();
        queues.resize_with(sources.reactors.len(), BTreeMap::new);
        for controller in &target.controllers {
            let host = match pseudonyms {
                None => controller.host_nqn.clone(),
                Some(pseudonyms) => pseudonyms.host(&controller.host_nqn),
            };
            for queue in &controller.io_queues {
                let name = format!("{host} queue {}", queue.qid);
                if let Some(of_reactor) = queues.get_mut(queue.reactor) {
                    // The recorder events store 16 bits.
                    of_reactor.insert(queue.slot as u16, name);
                }
            }
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let reactors = sources.reactors.iter().zip(queues);
        let devices = sources.target.devices().into_iter();
        Self {
            now: sources.clock.now(),
            now_unix_ms: now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX)),
            reactors: reactors
                .map(|(handle, queues)| ReactorMaterial {
                    core: sources.cores.get(handle.index()).copied().unwrap_or(0),
                    recording: handle.recording().clone(),
                    handle: handle.clone(),
                    queues,
                })
                .collect(),
            exports: target
                .subsystems
                .into_iter()
                .map(|subsystem| (subsystem.slot, subsystem.nqn))
                .collect(),
            devices: devices
                .map(|(place, device)| (place.0, device.name().to_owned()))
                .collect(),
        }
    }
}
