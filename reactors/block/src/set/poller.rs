//! The poller that runs the device phase of each turn.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use reactors::{Nanos, Poller, Progress, StopState};
use rustix::event::epoll;
use rustix::io::Errno;

use super::ReactorDevices;
use crate::device::Drain;

/// Polls a reactor's devices and their clients. It is registered after the transports: they receive
/// and submit in `poll`, and take completions and send in `flush`.
pub struct DevicePoller {
    devices: ReactorDevices,
    /// The descriptor that a sleeping reactor waits on: watches those of the devices.
    epoll: OwnedFd,
}

impl DevicePoller {
    /// Creates the poller.
    ///
    /// # Errors
    /// The system provides no epoll instance.
    pub fn new(devices: ReactorDevices) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { devices, epoll })
    }

    /// Watches all descriptors of the devices, including those already watched: a drive that was
    /// attached again may have a new interrupt descriptor.
    fn watch(&self) -> io::Result<()> {
        let mut outcome = Ok(());
        self.devices.set().wake_sources(&mut |descriptor| {
            let data = epoll::EventData::new_u64(0);
            match epoll::add(&self.epoll, descriptor, data, epoll::EventFlags::IN) {
                // Devices may share a descriptor, as the namespaces of a drive do.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => outcome = Err(error.into()),
            }
        });
        outcome
    }
}

impl Poller for DevicePoller {
    fn name(&self) -> &str {
        "devices"
    }

    fn poll(&mut self, now: Nanos) -> Progress {
        Progress::from_count(self.devices.poll(now))
    }

    fn flush(&mut self, _now: Nanos) {
        self.devices.flush();
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.devices.next_deadline()
    }

    fn wake_source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn prepare_sleep(&mut self) -> bool {
        // Without a descriptor to wait on, the reactor continues polling.
        self.devices.prepare_sleep() && self.watch().is_ok()
    }

    fn stop(&mut self, now: Nanos) -> StopState {
        match self.devices.drain(now) {
            Drain::Done => StopState::Stopped,
            Drain::Outstanding(requests) => {
                StopState::Outstanding(u32::try_from(requests).unwrap_or(u32::MAX).max(1))
            }
        }
    }
}
