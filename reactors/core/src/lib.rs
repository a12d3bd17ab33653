//! Reactors: pinned threads that poll, and sleep when there is no work.
//!
//! A [`Reactor`] owns its [`Poller`]s and runs them in turns: messages, pollers, timers, flush
//! (`ARCHITECTURE.md` §3). Everything on one reactor is single-threaded. Reactors communicate
//! through bounded rings ([`ring`], [`mesh`]) on the I/O path and through [`ReactorHandle::run`] on
//! the control path.
//!
//! A turn does not block, the I/O path takes no lock, and nothing allocates after set-up. Unsafe
//! code is limited to three modules: the cells of the ring, the instruction that reads the
//! time-stamp counter, and the calls that restore return prediction after system calls.
//!
//! ```
//! use reactors::{Nanos, Poller, Progress, ReactorConfig, Reactors};
//!
//! struct Quiet;
//!
//! impl Poller for Quiet {
//!     fn name(&self) -> &str {
//!         "quiet"
//!     }
//!
//!     fn poll(&mut self, _now: Nanos) -> Progress {
//!         Progress::Idle
//!     }
//! }
//!
//! let reactors = Reactors::start(vec![ReactorConfig::default(); 2], |_index, setup| {
//!     setup.register(Box::new(Quiet))?;
//!     Ok(())
//! })?;
//! assert!(reactors.stop(Nanos::from_secs(5)).is_clean());
//! # Ok::<(), reactors::StartError>(())
//! ```

pub mod mesh;
pub mod recorder;
pub mod ring;
pub mod sim;
pub mod timer;

mod clock;
mod config;
mod counter;
mod log_limit;
mod mailbox;
mod niceness;
mod placement;
mod poller;
mod reactor;
mod reactors;
mod returns;
mod shared;
mod stats;
mod sync;
mod time;
mod wake;

pub use clock::{Clock, TscClock, VirtualClock};
pub use config::{IdlePolicy, ReactorConfig};
pub use counter::Counter;
pub use log_limit::LogLimit;
pub use niceness::lower_priority;
pub use placement::{Placement, PlacementResult};
pub use poller::{Poller, Progress, StopState};
pub use reactor::{POLLERS_MAX, PollerId, Reactor, RegisterError, TimerJob};
pub use reactors::{
    InitError, Outcome, Outstanding, ReactorEnd, ReactorSetup, Reactors, StartError, StopReport,
};
pub use returns::restore_return_prediction;
pub use shared::{Job, ReactorHandle, RunError};
pub use stats::{NamedDuration, ReactorSnapshot, ReactorStats, StuckPoller};
pub use time::Nanos;
pub use wake::Waker;
