//! What can be seen of a running appliance: read from its counters once per second, kept for an
//! hour, and told in the types of [`model`].
//!
//! Nothing here runs on a reactor, and no reactor ever waits for it: counters are read, never
//! pushed. It refuses to invent: what the data path does not count is not told.

pub(crate) mod changes;
pub(crate) mod events;
pub(crate) mod history;
pub(crate) mod model;
pub(crate) mod observation;
pub(crate) mod sources;
pub(crate) mod status;

use std::sync::Arc;
use std::time::{Duration, Instant};

use changes::Changes;
use events::Events;
use history::Recorder;
use observation::Observation;
use sources::Sources;

/// The time between two values of the history.
pub(crate) const STEP: Duration = Duration::from_secs(1);
/// An observation that is younger serves whoever asks: however many ask, the counters, and with
/// them the target's control lock, are read no more often.
const FRESH_FOR: Duration = Duration::from_millis(100);

/// What was seen so far. Belongs to the control thread.
pub(crate) struct Observatory {
    sources: Sources,
    events: Arc<Events>,
    latest: Arc<Observation>,
    /// The observation that the history's last value was made from.
    recorded: Arc<Observation>,
    recorder: Recorder,
    changes: Changes,
}

impl Observatory {
    pub(crate) fn new(sources: Sources, events: Arc<Events>) -> Self {
        let first = Arc::new(Observation::take(&sources));
        Self {
            changes: Changes::new(&first),
            recorder: Recorder::new(first.at),
            recorded: Arc::clone(&first),
            latest: first,
            sources,
            events,
        }
    }

    /// The regular look: one value for each series, and what changed since the last one.
    pub(crate) fn tick(&mut self) {
        self.latest = Arc::new(Observation::take(&self.sources));
        self.recorder.record(&self.recorded, &self.latest);
        self.changes.look(&self.latest, &self.events);
        self.recorded = Arc::clone(&self.latest);
    }

    /// What there is now, at most [`FRESH_FOR`] old.
    pub(crate) fn look(&mut self) -> Arc<Observation> {
        if Instant::now().duration_since(self.latest.at) > FRESH_FOR {
            self.latest = Arc::new(Observation::take(&self.sources));
        }
        Arc::clone(&self.latest)
    }

    pub(crate) fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    pub(crate) fn events(&self) -> &Events {
        &self.events
    }
}
