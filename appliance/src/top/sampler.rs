//! Samples the appliance periodically, on a thread that may block.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::client::{Client, ClientError, views};
use crate::observe::model::{Event, History, Status};

/// The request for the total of the last minute.
const HISTORY: &str = "/api/v1/history?seconds=60&kind=total";
const EVENTS: &str = "/api/v1/events";

/// One sample.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) status: Status,
    /// Only the total.
    pub(super) history: History,
    pub(super) events: Vec<Event>,
}

impl Sample {
    /// Requests all parts.
    pub(super) fn take(client: &Client) -> Result<Self, ClientError> {
        Ok(Self {
            status: client.get(views::STATUS)?,
            history: client.get(HISTORY)?,
            events: client.get(EVENTS)?,
        })
    }
}

/// The thread, which ends after its current request when this is dropped.
pub(super) struct Sampler {
    delays: Sender<Option<Duration>>,
    samples: Receiver<Result<Sample, ClientError>>,
}

impl Sampler {
    /// Starts with an immediate sample.
    pub(super) fn start(client: Client, mut delay: Duration) -> io::Result<Self> {
        let (delays, wanted) = channel();
        let (send, samples) = channel();
        std::thread::Builder::new()
            .name("sampler".to_owned())
            .spawn(move || {
                while send.send(Sample::take(&client)).is_ok() {
                    match wanted.recv_timeout(delay) {
                        Ok(Some(changed)) => delay = changed,
                        Ok(None) | Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                }
            })?;
        Ok(Self { delays, samples })
    }

    /// The next available sample or error, if there is one.
    pub(super) fn next(&self) -> Option<Result<Sample, ClientError>> {
        self.samples.try_recv().ok()
    }

    /// Requests an immediate sample.
    pub(super) fn sample_now(&self) {
        // The thread ends only after this is dropped.
        let _ = self.delays.send(None);
    }

    /// Changes the interval between samples.
    pub(super) fn set_delay(&self, delay: Duration) {
        let _ = self.delays.send(Some(delay));
    }
}
