//! What a reactor's target core is asked to do while it serves: to take a device in, to let one go,
//! to say what is still outstanding.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use block::{Device, OpenError, QueueOptions};
use hugemem::Pool;
use nvme_target::{DeviceDrain, DeviceIndex, Outstanding, TargetCore};
use reactors::Nanos;
use reactors::ring::Receiver;

/// An order, and where its end is told.
pub(crate) enum DeskOrder {
    /// Take over what was published.
    CatchUp { answer: Sender<()> },
    /// Open a queue of a device that the target gave this place.
    Attach {
        place: DeviceIndex,
        device: Arc<dyn Device>,
        answer: Sender<Result<(), OpenError>>,
    },
    /// A device has grown.
    Grew {
        place: DeviceIndex,
        answer: Sender<()>,
    },
    /// Let a device go once it has no request left.
    Detach {
        place: DeviceIndex,
        answer: Sender<()>,
    },
    /// Say what devices and queues on their way out wait for.
    Report {
        devices: Vec<DeviceIndex>,
        answer: Sender<Vec<Outstanding>>,
    },
    /// Let a device go at once.
    Cut {
        place: DeviceIndex,
        answer: Sender<()>,
    },
}

/// Takes the orders of one reactor's core.
pub(crate) struct Desk {
    core: Rc<RefCell<TargetCore>>,
    orders: Receiver<DeskOrder>,
    pool: Pool,
    reactor: usize,
    queue_depth: usize,
    /// Devices that are being let go.
    departures: Vec<(DeviceIndex, Sender<()>)>,
}

impl Desk {
    /// `queue_depth`: requests that the reactor may have at a device that comes.
    pub(crate) fn new(
        core: Rc<RefCell<TargetCore>>,
        orders: Receiver<DeskOrder>,
        pool: Pool,
        reactor: usize,
        queue_depth: usize,
    ) -> Self {
        Self {
            core,
            orders,
            pool,
            reactor,
            queue_depth,
            departures: Vec::new(),
        }
    }

    /// Whether no order waits.
    pub(super) fn is_idle(&self) -> bool {
        self.orders.is_empty()
    }

    /// Carries out what there is; returns how many orders there were.
    pub(super) fn poll(&mut self, now: Nanos) -> usize {
        let mut moved = 0;
        while let Some(order) = self.orders.recv() {
            self.carry_out(order, now);
            moved += 1;
        }
        if !self.departures.is_empty() {
            let mut core = self.core.borrow_mut();
            self.departures.retain(|(place, answer)| {
                let waits = core.detach_device(*place) != DeviceDrain::Done;
                if !waits {
                    let _ = answer.send(());
                }
                waits
            });
        }
        moved
    }

    fn carry_out(&mut self, order: DeskOrder, now: Nanos) {
        // Who asked may have given up waiting.
        match order {
            DeskOrder::CatchUp { answer } => {
                self.core.borrow_mut().catch_up(now);
                let _ = answer.send(());
            }
            DeskOrder::Attach {
                place,
                device,
                answer,
            } => {
                let opened = device.open_queue(QueueOptions {
                    core: self.reactor,
                    depth: self.queue_depth,
                    pool: self.pool.clone(),
                });
                let attached =
                    opened.map(|queue| self.core.borrow_mut().attach_device(place, queue));
                let _ = answer.send(attached);
            }
            DeskOrder::Grew { place, answer } => {
                self.core.borrow_mut().device_grew(place);
                let _ = answer.send(());
            }
            DeskOrder::Detach { place, answer } => self.departures.push((place, answer)),
            DeskOrder::Report { devices, answer } => {
                let _ = answer.send(self.core.borrow().outstanding(&devices));
            }
            DeskOrder::Cut { place, answer } => {
                self.core.borrow_mut().cut_device(place, now);
                let _ = answer.send(());
            }
        }
    }
}
