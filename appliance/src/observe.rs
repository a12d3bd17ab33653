//! Observations of a running appliance: read from its counters once per second, kept for an hour,
//! and presented in the types of [`model`].
//!
//! Nothing here runs on a reactor, and no reactor waits for it: counters are read, never pushed.
//! Only data that the data path counts is presented.

pub(crate) mod changes;
pub(crate) mod events;
pub(crate) mod heatmap;
pub(crate) mod history;
pub(crate) mod latency;
pub(crate) mod measured;
pub(crate) mod model;
pub(crate) mod observation;
pub(crate) mod pseudonyms;
pub(crate) mod recordings;
pub(crate) mod sources;
pub(crate) mod status;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use appliance_config::Config;
use block::Device;
use changes::Changes;
use events::Events;
use heatmap::Heatmaps;
use history::Recorder;
use nvme_target::Target;
use observation::{LatencyBefore, Observation};
use pseudonyms::Pseudonyms;
use recordings::Material;
use sources::Sources;

use crate::copies::Copies;
use crate::files::Files;
use crate::running::Running;

/// The interval between two values of the history.
pub(crate) const STEP: Duration = Duration::from_secs(1);
/// A younger observation is reused, so that the number of requests does not increase how often the
/// counters are read and the target's control lock is taken.
const FRESH_FOR: Duration = Duration::from_millis(100);
/// Number of samples for which latencies are kept: the status has the latencies of this many
/// seconds.
const LATENCY_SAMPLES: usize = 5;

/// All observations. For the control thread.
pub(crate) struct Observatory {
    sources: Sources,
    events: Arc<Events>,
    latest: Arc<Observation>,
    /// The observation of the history's last value.
    recorded: Arc<Observation>,
    recorder: Recorder,
    heatmaps: Heatmaps,
    /// The latencies of the last samples, oldest first.
    before: VecDeque<LatencyBefore>,
    changes: Changes,
}

impl Observatory {
    pub(crate) fn new(sources: Sources, events: Arc<Events>) -> Self {
        let first = Arc::new(Observation::take(&sources, None));
        Self {
            changes: Changes::new(&first),
            recorder: Recorder::new(first.at),
            heatmaps: Heatmaps::new(),
            before: VecDeque::with_capacity(LATENCY_SAMPLES),
            recorded: Arc::clone(&first),
            latest: first,
            sources,
            events,
        }
    }

    /// Takes the periodic sample: adds a value to each series, and reports changes since the last
    /// one.
    pub(crate) fn tick(&mut self) {
        self.latest = self.take();
        let (before, after) = (&self.recorded, &self.latest);
        let step = self.recorder.record(before, after);
        let (then, now) = (&before.latency, &after.latency);
        self.heatmaps.record(step, after.unix_ms, then, now);
        if self.before.len() == LATENCY_SAMPLES {
            self.before.pop_front();
        }
        self.before.push_back(LatencyBefore {
            at: after.at,
            latency: Arc::clone(&after.latency),
        });
        self.changes.compare(&self.latest, &self.events);
        self.recorded = Arc::clone(&self.latest);
    }

    /// The current observation, at most [`FRESH_FOR`] old.
    pub(crate) fn observe(&mut self) -> Arc<Observation> {
        if Instant::now().duration_since(self.latest.at) > FRESH_FOR {
            self.latest = self.take();
        }
        Arc::clone(&self.latest)
    }

    /// Takes a new observation, because a client may ask for what was changed just now.
    pub(crate) fn renew(&mut self) {
        self.latest = self.take();
    }

    fn take(&self) -> Arc<Observation> {
        Arc::new(Observation::take(&self.sources, self.before.front()))
    }

    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// The input of a trace, with `pseudonyms` for hosts, if given.
    pub(crate) fn material(&self, pseudonyms: Option<&Pseudonyms>) -> Material {
        Material::gather(&self.sources, pseudonyms)
    }

    /// The running configuration.
    pub(crate) fn config(&self) -> Arc<Config> {
        self.sources.running.config.load_full()
    }

    /// The running configuration, with the states that operators have set.
    pub(crate) fn running(&self) -> Running {
        self.sources.running.clone()
    }

    /// The open device of that name.
    pub(crate) fn device(&self, name: &str) -> Option<Arc<dyn Device>> {
        let devices = self.sources.target.devices().into_iter();
        let mut devices = devices.map(|(_, device)| device);
        devices.find(|device| device.name() == name)
    }

    /// The file service.
    pub(crate) fn files(&self) -> Arc<Files> {
        Arc::clone(&self.sources.files)
    }

    /// The copies of devices.
    pub(crate) fn copies(&self) -> Arc<Copies> {
        Arc::clone(&self.sources.copies)
    }

    /// The target.
    pub(crate) fn target(&self) -> Arc<Target> {
        Arc::clone(&self.sources.target)
    }

    pub(crate) fn heatmaps(&self) -> &Heatmaps {
        &self.heatmaps
    }

    pub(crate) fn events(&self) -> &Events {
        &self.events
    }
}
