//! Looks at the appliance, one after another, on a thread that may wait for it.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::client::{Client, ClientError, views};
use crate::observe::model::{Event, History, Status};

/// What the total of the last minute is asked for by.
const HISTORY: &str = "/api/v1/history?seconds=60&kind=total";
const EVENTS: &str = "/api/v1/events";

/// What one look sees.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) status: Status,
    /// Of the total alone.
    pub(super) history: History,
    pub(super) events: Vec<Event>,
}

impl Sample {
    /// Asks for everything.
    pub(super) fn take(client: &Client) -> Result<Self, ClientError> {
        Ok(Self {
            status: client.get(views::STATUS)?,
            history: client.get(HISTORY)?,
            events: client.get(EVENTS)?,
        })
    }
}

/// The thread. It ends after what it waits for when this is dropped.
pub(super) struct Sampler {
    delays: Sender<Option<Duration>>,
    answers: Receiver<Result<Sample, ClientError>>,
}

impl Sampler {
    /// Begins with a look at once.
    pub(super) fn start(client: Client, mut delay: Duration) -> io::Result<Self> {
        let (delays, wanted) = channel();
        let (send, answers) = channel();
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
        Ok(Self { delays, answers })
    }

    /// An answer that has come in, if there is one.
    pub(super) fn next(&self) -> Option<Result<Sample, ClientError>> {
        self.answers.try_recv().ok()
    }

    /// Has it look at once.
    pub(super) fn look_now(&self) {
        // It ends only after this.
        let _ = self.delays.send(None);
    }

    /// Has it wait so long between looks from now on.
    pub(super) fn set_delay(&self, delay: Duration) {
        let _ = self.delays.send(Some(delay));
    }
}
