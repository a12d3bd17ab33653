//! What a test can ask the controller about its host.

/// Counters of an emulated controller, since it was made.
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
    /// Doorbell writes with a value or of a queue that there is not.
    pub invalid_doorbells: u64,
    /// Accesses that the specification forbids: a correct host makes none.
    pub illegal_accesses: u64,
    /// Commands fetched, admin commands included.
    pub commands: u64,
    /// Completions posted, events included.
    pub completions: u64,
    /// Interrupts that reached an armed vector.
    pub interrupts: u64,
    /// Times that CC.EN became 1.
    pub enables: u64,
    /// Times that CC.EN became 0.
    pub disables: u64,
    /// Function resets that worked.
    pub function_resets: u64,
    /// NVM subsystem resets.
    pub subsystem_resets: u64,
    /// Times that the drive was pulled out.
    pub removals: u64,
    /// Blocks whose last content a power cut took away.
    pub blocks_lost: u64,
}
