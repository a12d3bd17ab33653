//! The storage behind namespaces: simulated disks, simulated files with the production file device,
//! the production RAM device, or emulated drives with the production driver.

use nvme_driver_testing::MemoryFile;
use reactors::Nanos;

use crate::content::{self, Stamp};
use crate::disk::{Disk, DiskBehaviour, DiskFigures, DiskShape};
use crate::drive::{Drive, Mishap, Neighbour};
use crate::file_disk::FileDisk;
use crate::judge::Violation;
use crate::ram::Ram;

/// Judges a block by its number and its content; `None` means zeroes.
pub type JudgeBlock<'j> = &'j mut dyn FnMut(u64, Option<Stamp>) -> Result<(), Violation>;

/// Judges each block of a medium.
fn judge_blocks(medium: &[u8], block_bytes: usize, judge: JudgeBlock<'_>) -> Result<(), Violation> {
    for (lba, block) in (0..).zip(medium.chunks_exact(block_bytes)) {
        if let Some(stamp) = content::stamp_at(block) {
            judge(lba, stamp)?;
        }
    }
    Ok(())
}

/// Copies a block of a medium. Returns false if there is none.
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
    /// A simulated block device.
    Disk(Disk),
    /// A simulated file with the production file device.
    File(FileDisk),
    /// The production RAM device.
    Ram(Ram),
    /// An emulated drive with the production driver.
    Drive(Box<Drive>),
    /// The second namespace of a drive, which is another disk.
    Neighbour(Neighbour),
}

impl Storage {
    /// Whether it is a namespace of a drive.
    #[must_use]
    pub fn is_on_drive(&self) -> bool {
        self.drive_shape().is_some()
    }

    /// The properties of a namespace of a drive, including the drive's own effect of deallocations.
    #[must_use]
    pub fn drive_shape(&self) -> Option<DiskShape> {
        match self {
            Self::Disk(_) | Self::File(_) | Self::Ram(_) => None,
            Self::Drive(drive) => Some(drive.shape()),
            Self::Neighbour(disk) => Some(disk.shape()),
        }
    }

    /// Puts it back if it was pulled out.
    pub fn reinsert(&mut self) {
        match self {
            Self::Disk(disk) => disk.reinsert(),
            Self::File(_) => {}
            Self::Ram(ram) => ram.reinsert(),
            Self::Drive(drive) => drive.reinsert(),
            Self::Neighbour(_) => {}
        }
    }

    /// Whether it is back only after a restart of the appliance.
    #[must_use]
    pub fn needs_restart(&self) -> bool {
        match self {
            Self::Disk(disk) => disk.is_removed(),
            Self::File(_) | Self::Ram(_) | Self::Drive(_) | Self::Neighbour(_) => false,
        }
    }

    /// The file of a drive's controller memory buffer.
    #[must_use]
    pub fn memory_file(&self) -> Option<MemoryFile> {
        match self {
            Self::Disk(_) | Self::File(_) | Self::Ram(_) | Self::Neighbour(_) => None,
            Self::Drive(drive) => drive.memory_file(),
        }
    }

    /// Prepares a drive for the kill of the appliance.
    pub fn prepare_kill(&self, power: bool) {
        match self {
            Self::Disk(_) | Self::File(_) | Self::Ram(_) | Self::Neighbour(_) => {}
            Self::Drive(drive) if power => drive.cut_power(),
            Self::Drive(drive) => drive.prepare_kill(),
        }
    }

    /// Cuts its power, if that is not done yet.
    pub fn cut_power(&self) {
        match self {
            Self::Disk(disk) => disk.cut_power(),
            Self::File(file) => file.cut_power(),
            Self::Ram(_) => {}
            Self::Drive(drive) => drive.cut_power(),
            Self::Neighbour(_) => {}
        }
    }

    /// Copies a block of the medium while the power is off. Returns false if there is none, or if
    /// the device is not persistent.
    #[must_use]
    pub fn read_medium(&self, lba: u64, into: &mut [u8]) -> bool {
        match self {
            Self::Disk(disk) => disk.with_medium(|all, block| copy_block(all, block, lba, into)),
            Self::File(file) => file.with_medium(|all, block| copy_block(all, block, lba, into)),
            Self::Ram(_) => false,
            Self::Drive(drive) => drive.read_medium(lba, into),
            Self::Neighbour(disk) => disk.read_medium(lba, into),
        }
    }

    /// Judges the version of each block on the medium, `None` for zeroes.
    ///
    /// # Errors
    /// The first violation that `judge` returns.
    pub fn inspect_medium(&self, judge: JudgeBlock<'_>) -> Result<(), Violation> {
        match self {
            Self::Disk(disk) => disk.with_medium(|all, block| judge_blocks(all, block, judge)),
            Self::File(file) => file.with_medium(|all, block| judge_blocks(all, block, judge)),
            // The medium of a drive is not accessible.
            Self::Ram(_) | Self::Drive(_) | Self::Neighbour(_) => Ok(()),
        }
    }

    /// Ends all delays after the end of the appliance.
    pub fn reset_after_end(&self) {
        match self {
            Self::Disk(disk) => disk.hold(Nanos::ZERO),
            Self::File(_) => {}
            Self::Ram(ram) => ram.hold(Nanos::ZERO),
            Self::Drive(drive) => drive.reset_after_end(),
            Self::Neighbour(_) => {}
        }
    }

    /// Applies a mishap to a drive. Returns until when its completions may be late, or `None` for
    /// other storage.
    pub fn apply_mishap(&mut self, mishap: Mishap, now: Nanos) -> Option<Nanos> {
        match self {
            Self::Disk(_) | Self::File(_) | Self::Ram(_) | Self::Neighbour(_) => None,
            Self::Drive(drive) => Some(drive.apply_mishap(mishap, now)),
        }
    }

    /// Turns off all further faults.
    pub fn disable_faults(&mut self, behaviour: DiskBehaviour) {
        let calm = DiskBehaviour {
            slow_permille: 0,
            error_permille: 0,
            flush_error_permille: 0,
            later_permille: 0,
            linger_permille: 0,
            ..behaviour
        };
        match self {
            Self::Disk(disk) => disk.set_behaviour(calm),
            Self::Ram(ram) => ram.set_behaviour(calm),
            Self::File(file) => file.disable_faults(),
            Self::Drive(drive) => drive.disable_faults(),
            Self::Neighbour(_) => {}
        }
    }

    /// Advances it to the current time.
    pub fn advance_to(&mut self, now: Nanos) {
        match self {
            Self::Disk(_) | Self::File(_) | Self::Ram(_) | Self::Neighbour(_) => {}
            Self::Drive(drive) => drive.advance_to(now),
        }
    }

    /// Runs the operator's check. Returns whether data that was not durable may be lost.
    #[must_use]
    pub fn run_operator(&self, now: Nanos) -> bool {
        match self {
            Self::File(file) => file.run_operator(now),
            Self::Disk(_) | Self::Ram(_) | Self::Drive(_) | Self::Neighbour(_) => false,
        }
    }

    /// Evicts cached pages. Returns whether data that was not durable may be lost.
    #[must_use]
    pub fn evict(&self) -> bool {
        match self {
            Self::File(file) => file.evict(),
            Self::Disk(_) | Self::Ram(_) | Self::Drive(_) | Self::Neighbour(_) => false,
        }
    }

    /// Whether its own requests may fail.
    #[must_use]
    pub fn fails(&self) -> bool {
        match self {
            Self::File(file) => file.fails(),
            Self::Disk(_) | Self::Ram(_) | Self::Drive(_) | Self::Neighbour(_) => false,
        }
    }

    /// Submission and completion of its last lingering requests with data.
    #[must_use]
    pub fn lingering(&self) -> Vec<(Nanos, Nanos)> {
        match self {
            Self::Disk(disk) => disk.lingering(),
            Self::File(_) | Self::Ram(_) | Self::Drive(_) | Self::Neighbour(_) => Vec::new(),
        }
    }

    /// Delays all completions until `until`. Returns false for a drive or a file, which are not
    /// delayed.
    pub fn hold(&self, until: Nanos) -> bool {
        match self {
            Self::Disk(disk) => disk.hold(until),
            Self::Ram(ram) => ram.hold(until),
            Self::File(_) | Self::Drive(_) | Self::Neighbour(_) => return false,
        }
        true
    }

    /// Makes the next open fail.
    pub fn fail_next_open(&self) {
        match self {
            Self::Disk(disk) => disk.fail_next_open(),
            Self::Ram(ram) => ram.fail_next_open(),
            Self::File(_) | Self::Drive(_) | Self::Neighbour(_) => {}
        }
    }

    /// Lets the next open succeed: a change that was refused has opened nothing.
    pub fn allow_open(&self) {
        match self {
            Self::Disk(disk) => _ = disk.take_open_failure(),
            Self::Ram(ram) => _ = ram.take_open_failure(),
            Self::File(_) | Self::Drive(_) | Self::Neighbour(_) => {}
        }
    }

    /// Lets the next open continue with the memory of a RAM device, if `passes` is true.
    pub fn pass_on(&self, passes: bool) {
        if let Self::Ram(ram) = self {
            ram.pass_on(passes);
        }
    }

    /// Whether it can be opened and closed while the appliance runs.
    #[must_use]
    pub fn can_reopen(&self) -> bool {
        matches!(self, Self::Disk(_) | Self::Ram(_))
    }

    /// Whether it loses its content when it is closed.
    #[must_use]
    pub fn loses_content_on_close(&self) -> bool {
        matches!(self, Self::Ram(_))
    }

    /// Whether the last sync failed, so that acknowledged data may be lost.
    #[must_use]
    pub fn is_sync_failed(&self) -> bool {
        match self {
            Self::Disk(disk) => disk.is_sync_failed(),
            Self::File(_) | Self::Ram(_) | Self::Drive(_) | Self::Neighbour(_) => false,
        }
    }

    /// Whether a write of this version is in flight, as far as that is visible.
    #[must_use]
    pub fn is_writing(&self, version: u64) -> bool {
        match self {
            Self::Disk(disk) => disk.is_writing(version),
            Self::File(_) | Self::Ram(_) | Self::Drive(_) | Self::Neighbour(_) => false,
        }
    }

    /// The versions of all writes in flight, as far as they are visible.
    #[must_use]
    pub fn writing(&self) -> Vec<u64> {
        match self {
            Self::Disk(disk) => disk.writing(),
            Self::File(_) | Self::Ram(_) | Self::Drive(_) | Self::Neighbour(_) => Vec::new(),
        }
    }

    /// Requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        match self {
            Self::Disk(disk) => disk.in_flight(),
            Self::File(file) => file.in_flight(),
            Self::Ram(ram) => ram.in_flight(),
            Self::Drive(drive) => drive.in_flight(),
            // The first namespace counts them.
            Self::Neighbour(_) => 0,
        }
    }

    /// The time of its next event that is unknown to the reactors.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        match self {
            Self::Disk(disk) => disk.next_due(),
            Self::File(file) => file.next_due(),
            Self::Ram(ram) => ram.next_due(),
            Self::Drive(drive) => drive.next_due(),
            Self::Neighbour(_) => None,
        }
    }

    /// Its counters.
    #[must_use]
    pub fn figures(&self) -> DiskFigures {
        match self {
            Self::Disk(disk) => disk.figures(),
            Self::File(file) => file.figures(),
            Self::Ram(ram) => ram.figures(),
            Self::Drive(drive) => drive.figures(),
            Self::Neighbour(_) => DiskFigures::default(),
        }
    }
}
