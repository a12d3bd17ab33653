//! The core as a client of its reactor's devices.

use block::{ClientId, Completions, DeviceClient, DeviceError};
use reactors::Nanos;

use super::TargetCore;
use super::draining::CoreDrain;
use super::transfers::RETRY_INTERVAL;

impl DeviceClient for TargetCore {
    fn id(&self) -> ClientId {
        self.client
    }

    #[inline]
    fn completed(&mut self, completions: Completions<'_>, now: Nanos) {
        self.polled_at = now;
        for completion in completions {
            self.device_done(completion);
        }
        if self.transfers.has_unsubmitted() {
            // Before other requests take the room in the device.
            self.retry_pieces();
        }
    }

    #[inline]
    fn poll(&mut self, now: Nanos) -> usize {
        TargetCore::poll(self, now)
    }

    #[inline]
    fn flush(&mut self) {
        self.sent_responses.flushed(&mut self.queues);
        self.advances.end(&mut self.queues);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let is_waiting = self.transfers.has_unsubmitted();
        let retry = is_waiting.then(|| self.polled_at + RETRY_INTERVAL);
        let deadlines = [self.timer, self.log_refill_at, retry];
        deadlines.into_iter().flatten().min()
    }

    fn has_ready(&self) -> bool {
        TargetCore::has_ready(self)
    }

    fn device_attached(&mut self, place: usize) {
        self.counters.devices[place].reset();
        self.counters.copies[place].reset();
        self.counters.transfers[place].reset();
        self.counters.device_latency[place].reset();
    }

    fn has_released_device(&self, _place: usize) -> bool {
        // Commands that were checked against an older configuration are now refused.
        self.target.epoch() == self.view.epoch
    }

    fn device_removed(&mut self, place: usize, now: Nanos) {
        self.handle_notifications(now);
        // Fewer than 128 devices.
        let cut: Vec<_> = self.executions.in_device(place as u8).collect();
        for tag in cut {
            self.device_lost(tag, DeviceError::Removed);
        }
    }

    fn stop(&mut self, now: Nanos) -> bool {
        self.drain(now) == CoreDrain::Done
    }
}
