//! A core comes to rest: connections are closed, commands end, devices are flushed and drained.

use block::Drain;
use reactors::Nanos;
use reactors::sim::planted;

use super::TargetCore;
use super::executions::Owner;
use crate::interface::CloseReason;
use crate::status::Fault;

/// How far a core is on its way to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not on its way.
    Serving,
    /// Every connection was handed out for closing; the last queue's end moves it on.
    Closing,
    /// Volatile caches are being flushed; the flush's end moves it on.
    Flushing,
    /// Device queues are closing; their last completions move it on.
    Draining,
    /// At rest.
    Drained,
}

/// Whether a core has come to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CoreDrain {
    /// No queue, no command, and every device queue is empty and closed.
    Done,
    /// What is still there.
    Outstanding {
        /// Queues whose connections have not been closed, or whose last command is in a device.
        queues: usize,
        /// Commands in execution, the last flush included.
        executions: usize,
        /// Requests in device queues.
        device_requests: usize,
    },
}

impl TargetCore {
    /// Begins to shut down: new Connects are refused, and every connection is handed out for
    /// closing.
    pub fn begin_shutdown(&mut self, _now: Nanos) {
        if self.phase != Phase::Serving {
            return;
        }
        self.phase = Phase::Closing;
        for slot in 0..self.queues.capacity() {
            self.end_queue(slot, CloseReason::TargetShutdown);
        }
    }

    /// Whether Connects are refused because this core is coming to rest.
    pub(super) fn is_closing(&self) -> bool {
        self.phase != Phase::Serving
    }

    /// Goes on shutting down: once no queue and no command is left, flushes the devices' volatile
    /// caches and drains their queues. Call it between polls until it says [`CoreDrain::Done`].
    pub fn drain(&mut self, now: Nanos) -> CoreDrain {
        self.begin_shutdown(now);
        if self.phase == Phase::Closing && self.queues.len() == 0 && self.executions.len() == 0 {
            self.phase = Phase::Flushing;
            let volatile = self.volatile_devices();
            if !planted("stop-without-flush") {
                let result = self.start_flush(Owner::Drain, volatile);
                tell_of_failed_flush(result.unwrap_or(Ok(())));
            }
        }
        if self.phase == Phase::Flushing && self.executions.len() == 0 {
            self.phase = Phase::Draining;
        }
        let mut device_requests = 0;
        match self.phase {
            Phase::Serving | Phase::Closing | Phase::Flushing => {
                device_requests = self.devices.iter().map(|device| device.in_flight()).sum();
            }
            Phase::Draining => {
                for device in &mut self.devices {
                    match device.drain() {
                        Drain::Done => {}
                        Drain::Outstanding(requests) => device_requests += requests,
                    }
                }
                if device_requests == 0 {
                    self.phase = Phase::Drained;
                }
            }
            Phase::Drained => {}
        }
        if self.phase == Phase::Drained {
            return CoreDrain::Done;
        }
        let (queues, executions) = (self.queues.len(), self.executions.len());
        CoreDrain::Outstanding {
            queues,
            executions,
            device_requests,
        }
    }

    /// Bit per device whose completed writes may be in a volatile cache.
    fn volatile_devices(&self) -> u128 {
        let devices = self.target.devices();
        let volatile = devices
            .iter()
            .filter(|(_, device)| device.geometry().volatile_write_cache);
        volatile.fold(0, |set, (place, _)| set | 1 << place.0)
    }
}

/// Nobody waits for the flush of an orderly stop, so the log has to say that it failed.
pub(super) fn tell_of_failed_flush(result: Result<(), Fault>) {
    if result.is_err() {
        tracing::error!("a device could not be flushed before the stop: writes may be lost");
    }
}
