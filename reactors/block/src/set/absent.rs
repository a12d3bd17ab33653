//! The queue of an unused place, which refuses all requests.

use crate::device::{DeviceQueue, Drain};
use crate::error::DeviceError;
use crate::request::{CompletionBatch, Refusal, Request};

/// A queue without a device.
pub(super) struct EmptyQueue;

impl DeviceQueue for EmptyQueue {
    fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        Err(Refusal::Never(request, DeviceError::Removed))
    }

    fn flush(&mut self) {}

    fn poll(&mut self, _completions: &mut CompletionBatch) -> usize {
        0
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn has_ready(&self) -> bool {
        false
    }

    fn drain(&mut self) -> Drain {
        Drain::Done
    }
}
