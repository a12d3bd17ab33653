//! The control queue of a reactor: messages of the control thread that attach and detach devices,
//! report outstanding requests, and apply a published configuration.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use block::{Device, Drain, OpenError, QueueOptions, ReactorDevices};
use nvme_target::{DeviceIndex, Outstanding, TargetCore};
use reactors::Nanos;

use super::TargetPollerParts;

/// A message, with the channel for its response.
pub(crate) enum ControlMessage {
    /// Apply the published snapshot.
    ApplySnapshot { reply: Sender<()> },
    /// Open a queue of the device at this index of the target.
    Attach {
        place: DeviceIndex,
        device: Arc<dyn Device>,
        reply: Sender<Result<(), OpenError>>,
    },
    /// A device has grown.
    Grew {
        place: DeviceIndex,
        reply: Sender<()>,
    },
    /// Release a device as soon as it has no request left.
    Detach {
        place: DeviceIndex,
        reply: Sender<()>,
    },
    /// Report the outstanding requests of devices and of closing queues.
    Report {
        devices: Vec<DeviceIndex>,
        reply: Sender<Vec<Outstanding>>,
    },
    /// Release a device immediately.
    ForceDetach {
        place: DeviceIndex,
        reply: Sender<()>,
    },
}

/// Executes the messages to one reactor.
pub(super) struct ControlQueue {
    core: Rc<RefCell<TargetCore>>,
    devices: ReactorDevices,
    parts: TargetPollerParts,
    /// Devices that are being released.
    detaching: Vec<(DeviceIndex, Sender<()>)>,
}

impl ControlQueue {
    pub(super) fn new(
        core: Rc<RefCell<TargetCore>>,
        devices: ReactorDevices,
        parts: TargetPollerParts,
    ) -> Self {
        Self {
            core,
            devices,
            parts,
            detaching: Vec::new(),
        }
    }

    /// Whether no message is pending.
    pub(super) fn is_idle(&self) -> bool {
        self.parts.messages.is_empty()
    }

    /// Executes the pending messages; returns their number.
    pub(super) fn poll(&mut self, now: Nanos) -> usize {
        let mut moved = 0;
        while let Some(order) = self.parts.messages.recv() {
            self.carry_out(order, now);
            moved += 1;
        }
        let devices = &self.devices;
        self.detaching.retain(|(place, reply)| {
            let waits = devices.detach(usize::from(place.0)) != Drain::Done;
            if !waits {
                let _ = reply.send(());
            }
            waits
        });
        moved
    }

    fn carry_out(&mut self, order: ControlMessage, now: Nanos) {
        // The sender may have stopped waiting.
        match order {
            ControlMessage::ApplySnapshot { reply } => {
                self.core.borrow_mut().adopt_configuration(now);
                let _ = reply.send(());
            }
            ControlMessage::Attach {
                place,
                device,
                reply,
            } => {
                let options = QueueOptions::new(
                    self.parts.reactor,
                    self.parts.queue_depth,
                    self.parts.pool.clone(),
                );
                let attached = self.devices.attach(usize::from(place.0), &*device, options);
                let _ = reply.send(attached);
            }
            ControlMessage::Grew { place, reply } => {
                self.devices.set().notify_growth(usize::from(place.0));
                let _ = reply.send(());
            }
            ControlMessage::Detach { place, reply } => self.detaching.push((place, reply)),
            ControlMessage::Report { devices, reply } => {
                let _ = reply.send(self.core.borrow().outstanding(&devices));
            }
            ControlMessage::ForceDetach { place, reply } => {
                self.devices.remove_now(usize::from(place.0), now);
                let _ = reply.send(());
            }
        }
    }
}
