//! What a drive is to be driven with.

use reactors::Nanos;

/// How long each thing may take before the next, harder one is tried. None is a wait of a reactor:
/// they are compared with its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// From an I/O command's submission until it is aborted; admin commands get as long before the
    /// controller is reset. 10 s unless told: below the 30 s after which Linux hosts give up.
    pub command: Nanos,
    /// From the abort until the controller is reset. 3 s unless told.
    pub abort: Nanos,
    /// From the first step of a reset until the drive counts as gone, CAP.TO (twice: disable and
    /// enable) not counted. 30 s unless told.
    pub reset: Nanos,
    /// For requests in flight to end when the system asks for the drive back, and for reactors to
    /// take notice of a reset before it goes on without them. 1 s unless told.
    pub quiesce: Nanos,
    /// For the drive to write its volatile cache at a shutdown where it names no time of its own
    /// (RTD3E = 0); it never gets less than this. 5 s unless told.
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

/// How often the owner looks at the drive's status and at deadlines, at most.
const TICK_MAX: Nanos = Nanos::from_millis(250);
/// And at least.
const TICK_MIN: Nanos = Nanos::from_millis(1);

impl Deadlines {
    /// The unit in which commands' ages are counted: fine enough for the deadlines, coarse enough
    /// that an idle machine sleeps.
    pub(crate) fn tick(&self) -> Nanos {
        let finest = self.command.min(self.abort).min(self.quiesce);
        Nanos(finest.0 / 8).clamp(TICK_MIN, TICK_MAX)
    }

    /// Whole ticks that are certainly more than `span`.
    pub(crate) fn ticks(&self, span: Nanos) -> u32 {
        u32::try_from(span.0.div_ceil(self.tick().0) + 1).unwrap_or(u32::MAX)
    }
}

/// What a drive is to be driven with.
#[derive(Clone, Debug)]
pub struct DriveOptions {
    /// Name for logs, from the configuration.
    pub name: String,
    /// Reactors that will have a queue pair each, 1 to [`REACTORS_MAX`].
    pub reactors: usize,
    /// Reactor whose [`DriveOwner`](crate::DriveOwner) polls the admin queue.
    pub owner: usize,
    /// Commands in flight on one queue pair at most, 2 to [`QUEUE_DEPTH_MAX`]: clamped to what the
    /// drive offers (CAP.MQES). 256 unless told.
    pub queue_depth_max: u16,
    /// Time limits.
    pub deadlines: Deadlines,
    /// Whether submission queues go into the controller memory buffer where there is one that takes
    /// them. True unless told.
    pub controller_memory: bool,
    /// Whether doorbells go through memory where the controller offers it (Doorbell Buffer Config),
    /// which saves the exits of virtual machines. True unless told.
    pub shadow_doorbells: bool,
    /// How often health and error log are fetched without an event. 60 s unless told.
    pub health_interval: Nanos,
}

/// Reactors that one drive serves at most.
pub const REACTORS_MAX: usize = 128;

/// Commands in flight on one queue pair at most.
pub const QUEUE_DEPTH_MAX: u16 = 4096;

/// Least depth of a queue pair: one request in parts and one part of it.
pub(crate) const QUEUE_DEPTH_MIN: u16 = 2;

impl DriveOptions {
    /// Options for one reactor, everything else as documented.
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
    fn ticks_cover_the_deadlines() {
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
