//! What namespaces lie on: simulated disks, simulated files behind the production file device, the
//! production device in RAM, or emulated drives behind the production driver.

use reactors::Nanos;

use crate::content;
use crate::disk::{Disk, DiskFigures, DiskTemper};
use crate::drive::{Drive, Mishap};
use crate::file_disk::FileDisk;
use crate::judge::Violation;
use crate::ram::Ram;

/// Judges a block by its number and the version of what is in it.
pub type JudgeBlock<'j> = &'j mut dyn FnMut(u64, Option<u64>) -> Result<(), Violation>;

/// Has each block of a medium judged.
fn judge_blocks(medium: &[u8], block_bytes: usize, judge: JudgeBlock<'_>) -> Result<(), Violation> {
    for (lba, block) in (0..).zip(medium.chunks_exact(block_bytes)) {
        if let Some(version) = content::version_at(block) {
            judge(lba, version)?;
        }
    }
    Ok(())
}

/// Copies a block of a medium; false where there is none.
fn copy_block(medium: &[u8], block_bytes: usize, lba: u64, into: &mut [u8]) -> bool {
    let start = lba as usize * block_bytes;
    let found = medium.get(start..start + block_bytes);
    found.is_some_and(|found| {
        into.copy_from_slice(found);
        true
    })
}

/// A disk or a drive.
pub enum Storage {
    /// A block device of our own.
    Disk(Disk),
    /// A file behind the file device.
    File(FileDisk),
    /// The production device in RAM.
    Ram(Ram),
    /// A drive behind the driver.
    Drive(Box<Drive>),
}

impl Storage {
    /// It is there again, if it was pulled out.
    pub fn put_back(&mut self) {
        match self {
            Self::Disk(disk) => disk.put_back(),
            Self::File(_) => {}
            Self::Ram(ram) => ram.put_back(),
            Self::Drive(drive) => drive.put_back(),
        }
    }

    /// Whether only a restart of the appliance brings it back.
    #[must_use]
    pub fn needs_restart(&self) -> bool {
        match self {
            Self::Disk(disk) => disk.is_removed(),
            Self::File(_) | Self::Ram(_) | Self::Drive(_) => false,
        }
    }

    /// The appliance is about to be killed.
    pub fn cut_off(&self, power: bool) {
        match self {
            Self::Disk(_) | Self::File(_) | Self::Ram(_) => {}
            Self::Drive(drive) if power => drive.cut_power(),
            Self::Drive(drive) => drive.cut_off(),
        }
    }

    /// Cuts its power, if that is not done yet.
    pub fn cut_power(&self) {
        match self {
            Self::Disk(disk) => disk.cut_power(),
            Self::File(file) => file.cut_power(),
            Self::Ram(_) => {}
            Self::Drive(drive) => drive.cut_power(),
        }
    }

    /// Copies what the medium has in a block while the power is off; false where there is none, or
    /// it keeps nothing.
    #[must_use]
    pub fn read_medium(&self, lba: u64, into: &mut [u8]) -> bool {
        match self {
            Self::Disk(disk) => disk.with_medium(|all, block| copy_block(all, block, lba, into)),
            Self::File(file) => file.with_medium(|all, block| copy_block(all, block, lba, into)),
            Self::Ram(_) => false,
            Self::Drive(drive) => drive.read_medium(lba, into),
        }
    }

    /// Tells of each block on the medium which write it is of, `None` for zeroes.
    ///
    /// # Errors
    /// The first that `judge` answers.
    pub fn look_at_medium(&self, judge: JudgeBlock<'_>) -> Result<(), Violation> {
        match self {
            Self::Disk(disk) => disk.with_medium(|all, block| judge_blocks(all, block, judge)),
            Self::File(file) => file.with_medium(|all, block| judge_blocks(all, block, judge)),
            // Its medium is behind its registers.
            Self::Ram(_) | Self::Drive(_) => Ok(()),
        }
    }

    /// The appliance is gone: what it was kept from is over.
    pub fn let_go(&self) {
        match self {
            Self::Disk(disk) => disk.hold(Nanos::ZERO),
            Self::File(_) => {}
            Self::Ram(ram) => ram.hold(Nanos::ZERO),
            Self::Drive(drive) => drive.let_go(),
        }
    }

    /// Something happens to a drive, by which its answers may be late until the time that is
    /// returned; nothing to a disk.
    pub fn suffer(&mut self, mishap: Mishap, now: Nanos) -> Option<Nanos> {
        match self {
            Self::Disk(_) | Self::File(_) | Self::Ram(_) => None,
            Self::Drive(drive) => Some(drive.suffer(mishap, now)),
        }
    }

    /// From now on nothing new goes wrong.
    pub fn heal(&mut self, temper: DiskTemper) {
        let calm = DiskTemper {
            slow_permille: 0,
            error_permille: 0,
            flush_error_permille: 0,
            later_permille: 0,
            linger_permille: 0,
            ..temper
        };
        match self {
            Self::Disk(disk) => disk.set_temper(calm),
            Self::Ram(ram) => ram.set_temper(calm),
            Self::File(file) => file.heal(),
            Self::Drive(drive) => drive.heal(),
        }
    }

    /// Time goes on.
    pub fn tend(&mut self, now: Nanos) {
        match self {
            Self::Disk(_) | Self::File(_) | Self::Ram(_) => {}
            Self::Drive(drive) => drive.tend(now),
        }
    }

    /// The operator looks after it. Whether what was not durable may be gone since.
    #[must_use]
    pub fn operate(&self, now: Nanos) -> bool {
        match self {
            Self::File(file) => file.operate(now),
            Self::Disk(_) | Self::Ram(_) | Self::Drive(_) => false,
        }
    }

    /// The system forgets what it has cached of the medium. Whether what was not durable may be gone
    /// since.
    #[must_use]
    pub fn evict(&self) -> bool {
        match self {
            Self::File(file) => file.evict(),
            Self::Disk(_) | Self::Ram(_) | Self::Drive(_) => false,
        }
    }

    /// Whether its requests may fail by themselves.
    #[must_use]
    pub fn fails(&self) -> bool {
        match self {
            Self::File(file) => file.fails(),
            Self::Disk(_) | Self::Ram(_) | Self::Drive(_) => false,
        }
    }

    /// Answers nothing before `until`; false for a drive, which has hangs of its own.
    pub fn hold(&self, until: Nanos) -> bool {
        match self {
            Self::Disk(disk) => disk.hold(until),
            Self::Ram(ram) => ram.hold(until),
            Self::File(_) | Self::Drive(_) => return false,
        }
        true
    }

    /// The next time that it is opened it cannot be had.
    pub fn covet(&self) {
        match self {
            Self::Disk(disk) => disk.covet(),
            Self::Ram(ram) => ram.covet(),
            Self::File(_) | Self::Drive(_) => {}
        }
    }

    /// Whether it can be opened and closed while the appliance runs.
    #[must_use]
    pub fn comes_and_goes(&self) -> bool {
        matches!(self, Self::Disk(_) | Self::Ram(_))
    }

    /// Whether its content is gone once it is closed.
    #[must_use]
    pub fn forgets(&self) -> bool {
        matches!(self, Self::Ram(_))
    }

    /// Whether the last synchronisation failed, so that what it acknowledged may be lost.
    #[must_use]
    pub fn is_sync_failed(&self) -> bool {
        match self {
            Self::Disk(disk) => disk.is_sync_failed(),
            Self::File(_) | Self::Ram(_) | Self::Drive(_) => false,
        }
    }

    /// Whether it has a write of this version that it has not answered, as far as that can be seen.
    #[must_use]
    pub fn is_writing(&self, version: u64) -> bool {
        match self {
            Self::Disk(disk) => disk.is_writing(version),
            Self::File(_) | Self::Ram(_) | Self::Drive(_) => false,
        }
    }

    /// Requests that it has.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        match self {
            Self::Disk(disk) => disk.in_flight(),
            Self::File(file) => file.in_flight(),
            Self::Ram(ram) => ram.in_flight(),
            Self::Drive(drive) => drive.in_flight(),
        }
    }

    /// When something happens of which no reactor knows.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        match self {
            Self::Disk(disk) => disk.next_due(),
            Self::File(file) => file.next_due(),
            Self::Ram(ram) => ram.next_due(),
            Self::Drive(drive) => drive.next_due(),
        }
    }

    /// What it did.
    #[must_use]
    pub fn figures(&self) -> DiskFigures {
        match self {
            Self::Disk(disk) => disk.figures(),
            Self::File(file) => file.figures(),
            Self::Ram(ram) => ram.figures(),
            Self::Drive(drive) => drive.figures(),
        }
    }
}
