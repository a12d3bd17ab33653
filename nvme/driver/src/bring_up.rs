//! Opening a drive: a start sequence that its caller polls, before the drive has an owner on a
//! reactor.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hugemem::Arena;
use reactors::Nanos;

use crate::backing::DeviceBacking;
use crate::drive::Drive;
use crate::error::DriveError;
use crate::memory::AdminMemory;
use crate::options::{DriveOptions, QUEUE_DEPTH_MAX, QUEUE_DEPTH_MIN, REACTORS_MAX};
use crate::owner::DriveOwner;
use crate::registers::Registers;
use crate::shared::Shared;
use crate::startup::{Startup, StartupState};

/// Progress of opening a drive.
pub enum BringUpState {
    /// Poll again, for example after a millisecond.
    Pending,
    /// The drive is ready. The owner moves to the reactor that [`DriveOptions::owner`] names.
    Ready((Arc<Drive>, DriveOwner)),
    /// The drive cannot be opened.
    Failed(DriveError),
}

/// A drive that is being opened. Dropping it stops the drive.
pub struct BringUp {
    shared: Arc<Shared>,
    startup: Startup,
    over: bool,
}

impl BringUp {
    /// Begins to open a drive. Its memory comes from `arena`, which the drive can access.
    ///
    /// # Errors
    /// [`DriveError::Options`] and [`DriveError::NoMemory`]; the drive was not accessed.
    pub fn new(
        backing: Arc<dyn DeviceBacking>,
        arena: &Arc<Arena>,
        options: DriveOptions,
    ) -> Result<Self, DriveError> {
        check(&options)?;
        let admin = AdminMemory::new(arena)?;
        let arena = Arc::clone(arena);
        let shared = Shared::new(Arc::clone(&backing), arena, admin, options);
        let startup = Startup::new(Arc::clone(&shared), backing);
        Ok(Self {
            shared,
            startup,
            over: false,
        })
    }

    /// Continues the start sequence as far as possible without waiting. Every wait is bounded by
    /// CAP.TO or [`Deadlines::command`](crate::Deadlines::command).
    pub fn poll(&mut self, now: Nanos) -> BringUpState {
        if self.over {
            return BringUpState::Pending;
        }
        match self.startup.poll(now) {
            StartupState::Pending => BringUpState::Pending,
            StartupState::Failed(error) => {
                self.over = true;
                BringUpState::Failed(error)
            }
            StartupState::Ready(started) => {
                self.over = true;
                let owner = DriveOwner::new(Arc::clone(&self.shared), *started);
                let drive = Arc::new(Drive::new(Arc::clone(&self.shared)));
                BringUpState::Ready((drive, owner))
            }
        }
    }

    /// The time at which [`poll`](Self::poll) gives up its current wait.
    #[must_use]
    pub fn deadline(&self) -> Nanos {
        self.startup.deadline()
    }

    fn is_ready(&self) -> bool {
        self.over && self.shared.identity.get().is_some()
    }
}

impl Drop for BringUp {
    fn drop(&mut self) {
        if self.is_ready() || !self.shared.dma_running.load(Ordering::Acquire) {
            return;
        }
        // Dropping `Shared` turns bus mastering off before the memory is freed. In addition,
        // disable a controller whose registers still respond.
        let registers = Registers::new(&**self.startup.backing());
        if let Some(cc) = registers.cc() {
            registers.set_cc(cc.with_en(false));
        }
    }
}

fn check(options: &DriveOptions) -> Result<(), DriveError> {
    if !(1..=REACTORS_MAX).contains(&options.reactors) {
        return Err(DriveError::Options("a drive serves 1 to 128 reactors"));
    }
    if options.owner >= options.reactors {
        return Err(DriveError::Options("the owner is not one of the reactors"));
    }
    if !(QUEUE_DEPTH_MIN..=QUEUE_DEPTH_MAX).contains(&options.queue_depth_max) {
        return Err(DriveError::Options("queue depths are 2 to 4096"));
    }
    Ok(())
}
