//! Counters of the controller, for tests.

/// Counters of an emulated controller since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmulatorCounters {
    /// Register reads.
    pub register_reads: u64,
    /// Register writes, doorbells included.
    pub register_writes: u64,
    /// Writes of submission queue tail doorbells.
    pub submission_doorbells: u64,
    /// Writes of completion queue head doorbells.
    pub completion_doorbells: u64,
    /// Doorbell writes with an invalid value or for a queue that does not exist.
    pub invalid_doorbells: u64,
    /// Accesses that the specification forbids. A correct host makes none.
    pub illegal_accesses: u64,
    /// Commands fetched, admin commands included.
    pub commands: u64,
    /// Completions posted, events included.
    pub completions: u64,
    /// Interrupts fired on an armed vector.
    pub interrupts: u64,
    /// Number of times that CC.EN became 1.
    pub enables: u64,
    /// Number of times that CC.EN became 0.
    pub disables: u64,
    /// Successful function resets.
    pub function_resets: u64,
    /// NVM subsystem resets.
    pub subsystem_resets: u64,
    /// Number of times that the drive was removed.
    pub removals: u64,
    /// Blocks whose last content was lost in a power cut.
    pub blocks_lost: u64,
}
