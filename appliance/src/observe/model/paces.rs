//! The JSON of exports that wait for others, and of what that delays.

use nvme_target::{PaceReason, PaceSnapshot};

use crate::observe::measured::measured;

fn reason(pace: &PaceSnapshot) -> &'static str {
    match pace.reason {
        PaceReason::Latency => "latency",
        PaceReason::Share(_) => "share",
    }
}

fn disk(pace: &PaceSnapshot) -> Option<String> {
    match &pace.reason {
        PaceReason::Latency => None,
        PaceReason::Share(disk) => Some(disk.clone()),
    }
}

measured! {
    /// An export that may have to wait for others.
    struct PaceStatus from input: &PaceSnapshot {
        /// The export that waits.
        export: String = input.subsystem.clone();
        /// Why: for the latency target (`p99`) of others, or for its share of a disk (`weight`).
        #[words("latency", "share")]
        reason: String = reason(input).to_owned();
        /// The disk that it shares; none for a latency target.
        disk: Option<String> = disk(input);
        /// The export that missed its latency target last; none for a share, and if none has yet.
        missed_by: Option<String> = input.missed_by.clone();
        /// Its current limit in bytes of a second, where each command counts for 4096 more; none
        /// while it need not wait.
        limit: Option<u64> = input.limit;
        /// Commands that waited so far.
        throttled: u64 = input.throttled.commands, Counter "pace_throttled";
        /// The sum of the times for which they waited.
        waited_ns: u64 = input.throttled.waited.0, CounterSeconds "pace_waited";
    }
}
