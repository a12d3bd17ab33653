//! Options of a drive.

use reactors::Nanos;

/// Time limits after which the driver escalates to the next recovery step. No reactor waits for
/// them: it compares them with its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// From an I/O command's submission until it is aborted. An admin command gets the same time
    /// before the controller is reset. Default 10 s: below the 30 s after which Linux hosts give
    /// up.
    pub command: Nanos,
    /// From the abort until the controller is reset. Default 3 s.
    pub abort: Nanos,
    /// From the first step of a reset until the drive counts as gone, in addition to CAP.TO (twice:
    /// disable and enable). Default 30 s.
    pub reset: Nanos,
    /// For requests in flight to complete when the system requests the drive back, and for reactors
    /// to acknowledge a reset before it continues without them. Default 1 s.
    pub quiesce: Nanos,
    /// For the drive to write its volatile cache at a shutdown if it reports no time of its own
    /// (RTD3E = 0), and the minimum otherwise. Default 5 s.
    pub shutdown: Nanos,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            command: Nanos::from_secs(10),
            abort: Nanos::from_secs(3),
            reset: Nanos::from_secs(30),
            quiesce: Nanos::from_secs(1),
            shutdown: Nanos::from_secs(5),
        }
    }
}

/// Longest interval at which the owner checks the drive's status and deadlines.
const TICK_MAX: Nanos = Nanos::from_millis(250);
/// Shortest such interval.
const TICK_MIN: Nanos = Nanos::from_millis(1);

impl Deadlines {
    /// The unit of commands' ages: short enough for the deadlines, long enough for an idle reactor
    /// to sleep.
    pub(crate) fn tick(&self) -> Nanos {
        let finest = self.command.min(self.abort).min(self.quiesce);
        Nanos(finest.0 / 8).clamp(TICK_MIN, TICK_MAX)
    }

    /// A number of ticks that is certainly longer than `span`.
    pub(crate) fn ticks(&self, span: Nanos) -> u32 {
        u32::try_from(span.0.div_ceil(self.tick().0) + 1).unwrap_or(u32::MAX)
    }
}

/// Options of a drive.
#[derive(Clone, Debug)]
pub struct DriveOptions {
    /// Name for logs, from the configuration.
    pub name: String,
    /// Number of reactors, each with a queue pair, 1 to [`REACTORS_MAX`].
    pub reactors: usize,
    /// Reactor whose [`DriveOwner`](crate::DriveOwner) polls the admin queue.
    pub owner: usize,
    /// Maximum number of commands in flight per queue pair, 2 to [`QUEUE_DEPTH_MAX`], limited by
    /// the drive (CAP.MQES). Default 256.
    pub queue_depth_max: u16,
    /// Time limits.
    pub deadlines: Deadlines,
    /// Whether to place submission queues in the controller memory buffer if it supports them.
    /// Default true.
    pub controller_memory: bool,
    /// Whether to use shadow doorbells if the controller supports them (Doorbell Buffer Config),
    /// which saves the exits of virtual machines. Default true.
    pub shadow_doorbells: bool,
    /// Interval at which health and error log are read without an event. Default 60 s.
    pub health_interval: Nanos,
}

/// Maximum number of reactors per drive.
pub const REACTORS_MAX: usize = 128;

/// Maximum number of commands in flight per queue pair.
pub const QUEUE_DEPTH_MAX: u16 = 4096;

/// Minimum depth of a queue pair: a split request and one of its commands.
pub(crate) const QUEUE_DEPTH_MIN: u16 = 2;

impl DriveOptions {
    /// Options for one reactor, with the documented defaults.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            reactors: 1,
            owner: 0,
            queue_depth_max: 256,
            deadlines: Deadlines::default(),
            controller_memory: true,
            shadow_doorbells: true,
            health_interval: Nanos::from_secs(60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tick_counts_cover_the_deadlines() {
        let deadlines = Deadlines::default();
        assert_eq!(deadlines.tick(), Nanos::from_millis(125));
        for span in [deadlines.command, deadlines.abort, Nanos(1)] {
            let ticks = u64::from(deadlines.ticks(span));
            assert!((ticks - 1) * deadlines.tick().0 >= span.0);
        }
        let short = Deadlines {
            abort: Nanos(10),
            ..deadlines
        };
        assert_eq!(short.tick(), TICK_MIN);
    }
}
