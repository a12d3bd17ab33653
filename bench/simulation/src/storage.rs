//! What namespaces lie on: simulated disks, simulated files behind the production file device, or
//! emulated drives behind the production driver.

use reactors::Nanos;

use crate::disk::{Disk, DiskFigures, DiskTemper};
use crate::drive::{Drive, Mishap};
use crate::file_disk::FileDisk;

/// A disk or a drive.
pub enum Storage {
    /// A block device of our own.
    Disk(Disk),
    /// A file behind the file device.
    File(FileDisk),
    /// A drive behind the driver.
    Drive(Box<Drive>),
}

impl Storage {
    /// It is there again, if it was pulled out.
    pub fn put_back(&mut self) {
        match self {
            Self::Disk(disk) => disk.put_back(),
            Self::File(_) => {}
            Self::Drive(drive) => drive.put_back(),
        }
    }

    /// Whether only a restart of the appliance brings it back.
    #[must_use]
    pub fn needs_restart(&self) -> bool {
        match self {
            Self::Disk(disk) => disk.is_removed(),
            Self::File(_) | Self::Drive(_) => false,
        }
    }

    /// The appliance is about to be killed.
    pub fn cut_off(&self, power: bool) {
        match self {
            Self::Disk(_) | Self::File(_) => {}
            Self::Drive(drive) if power => drive.cut_power(),
            Self::Drive(drive) => drive.cut_off(),
        }
    }

    /// Cuts its power, if that is not done yet.
    pub fn cut_power(&self) {
        match self {
            Self::Disk(disk) => disk.cut_power(),
            Self::File(file) => file.cut_power(),
            Self::Drive(drive) => drive.cut_power(),
        }
    }

    /// The appliance is gone: what it was kept from is over.
    pub fn let_go(&self) {
        match self {
            Self::Disk(disk) => disk.hold(Nanos::ZERO),
            Self::File(_) => {}
            Self::Drive(drive) => drive.let_go(),
        }
    }

    /// Something happens to a drive, by which its answers may be late until the time that is
    /// returned; nothing to a disk.
    pub fn suffer(&mut self, mishap: Mishap, now: Nanos) -> Option<Nanos> {
        match self {
            Self::Disk(_) | Self::File(_) => None,
            Self::Drive(drive) => Some(drive.suffer(mishap, now)),
        }
    }

    /// From now on nothing new goes wrong.
    pub fn heal(&mut self, temper: DiskTemper) {
        match self {
            Self::Disk(disk) => disk.set_temper(DiskTemper {
                slow_permille: 0,
                error_permille: 0,
                later_permille: 0,
                linger_permille: 0,
                ..temper
            }),
            Self::File(file) => file.heal(),
            Self::Drive(drive) => drive.heal(),
        }
    }

    /// Time goes on.
    pub fn tend(&mut self, now: Nanos) {
        match self {
            Self::Disk(_) | Self::File(_) => {}
            Self::Drive(drive) => drive.tend(now),
        }
    }

    /// The operator looks after it. Whether what was not durable may be gone since.
    #[must_use]
    pub fn operate(&self, now: Nanos) -> bool {
        match self {
            Self::File(file) => file.operate(now),
            Self::Disk(_) | Self::Drive(_) => false,
        }
    }

    /// The system forgets what it has cached of the medium. Whether what was not durable may be gone
    /// since.
    #[must_use]
    pub fn evict(&self) -> bool {
        match self {
            Self::File(file) => file.evict(),
            Self::Disk(_) | Self::Drive(_) => false,
        }
    }

    /// Whether its requests may fail by themselves.
    #[must_use]
    pub fn fails(&self) -> bool {
        match self {
            Self::File(file) => file.fails(),
            Self::Disk(_) | Self::Drive(_) => false,
        }
    }

    /// Requests that it has.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        match self {
            Self::Disk(disk) => disk.in_flight(),
            Self::File(file) => file.in_flight(),
            Self::Drive(drive) => drive.in_flight(),
        }
    }

    /// When something happens of which no reactor knows.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        match self {
            Self::Disk(disk) => disk.next_due(),
            Self::File(file) => file.next_due(),
            Self::Drive(drive) => drive.next_due(),
        }
    }

    /// What it did.
    #[must_use]
    pub fn figures(&self) -> DiskFigures {
        match self {
            Self::Disk(disk) => disk.figures(),
            Self::File(file) => file.figures(),
            Self::Drive(drive) => drive.figures(),
        }
    }
}
