//! The events of devices that several services of a process use.
//!
//! A device returns each event once, so whoever takes it keeps it here for the others that it concerns:
//! events of queues for the service that they belong to, all others for every service. For services
//! whose receivers are on one reactor.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::connection::Token;
use crate::device::{DeviceEvent, DeviceIndex};
use crate::provider::Device;

/// Events of one device that may wait for one service. Later ones are lost: what they tell shows as
/// failed completions, too.
const WAITING_MAX: usize = 1024;

/// A service that uses devices. The top bit of a token tells whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceUser {
    /// NVMe over Fabrics.
    Nvme,
    /// Files.
    Files,
}

const OF_FILES: u64 = 1 << 63;

impl DeviceUser {
    /// The service that a token belongs to.
    #[must_use]
    pub const fn of(token: Token) -> Self {
        match token.0 & OF_FILES {
            0 => Self::Nvme,
            _ => Self::Files,
        }
    }

    /// A token of this service. The top bit of `number` does not count.
    #[must_use]
    pub const fn token(self, number: u64) -> Token {
        match self {
            Self::Nvme => Token(number & !OF_FILES),
            Self::Files => Token(number | OF_FILES),
        }
    }
}

#[derive(Debug)]
struct Waiting {
    device: DeviceIndex,
    user: DeviceUser,
    events: VecDeque<DeviceEvent>,
}

/// The events of the devices of a process.
#[derive(Debug, Default)]
pub struct DeviceEvents {
    table: Mutex<Vec<Waiting>>,
    /// Number of events that wait, for each service.
    counts: [AtomicUsize; 2],
}

impl DeviceEvents {
    /// Keeps the events of a device for a service from now on.
    pub fn begin(&self, device: DeviceIndex, user: DeviceUser) {
        let mut table = self.table();
        let is_it = |it: &Waiting| (it.device, it.user) == (device, user);
        if !table.iter().any(is_it) {
            table.push(Waiting {
                device,
                user,
                events: VecDeque::new(),
            });
        }
    }

    /// Ends that, and forgets events that wait.
    pub fn end(&self, device: DeviceIndex, user: DeviceUser) {
        let mut table = self.table();
        let is_it = |it: &mut Waiting| (it.device, it.user) == (device, user);
        for ended in table.extract_if(.., is_it) {
            let count = &self.counts[user as usize];
            count.fetch_sub(ended.events.len(), Ordering::Relaxed);
        }
    }

    /// Whether events wait for a service.
    #[inline]
    #[must_use]
    pub fn has(&self, user: DeviceUser) -> bool {
        self.counts[user as usize].load(Ordering::Relaxed) > 0
    }

    /// The next event of a device for a service that has begun to receive them.
    pub fn next<D: Device>(&self, device: &D, user: DeviceUser) -> Option<DeviceEvent> {
        let mut table = self.table();
        loop {
            let mut all = table.iter_mut();
            let own = all.find(|it| (it.device, it.user) == (device.index(), user))?;
            if let Some(event) = own.events.pop_front() {
                self.counts[user as usize].fetch_sub(1, Ordering::Relaxed);
                return Some(event);
            }
            let event = device.next_event()?;
            self.keep(&mut table, device.index(), event);
        }
    }

    /// Tells the other services of the removal of a device, which one of them has noticed elsewhere.
    pub fn report_removal(&self, device: DeviceIndex, by: DeviceUser) {
        let mut table = self.table();
        let others = table.iter_mut().filter(|it| it.user != by);
        for waiting in others.filter(|it| it.device == device) {
            self.push(waiting, DeviceEvent::Fatal);
        }
    }

    fn keep(&self, table: &mut [Waiting], device: DeviceIndex, event: DeviceEvent) {
        let only = match event {
            DeviceEvent::QueuePair { token, .. }
            | DeviceEvent::ReceivesLow { token }
            | DeviceEvent::SharedReceiveQueueFailed { token }
            | DeviceEvent::CompletionQueueFailed { token } => Some(DeviceUser::of(token)),
            DeviceEvent::PortUp(_)
            | DeviceEvent::PortDown(_)
            | DeviceEvent::Fatal
            | DeviceEvent::PortChanged(_)
            | DeviceEvent::Other(_) => None,
        };
        for waiting in table.iter_mut().filter(|it| it.device == device) {
            if only.is_none_or(|user| user == waiting.user) {
                self.push(waiting, event);
            }
        }
    }

    fn push(&self, waiting: &mut Waiting, event: DeviceEvent) {
        if waiting.events.len() < WAITING_MAX {
            waiting.events.push_back(event);
            self.counts[waiting.user as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn table(&self) -> MutexGuard<'_, Vec<Waiting>> {
        // Each change is complete before the next one.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
