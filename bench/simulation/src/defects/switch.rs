//! Switches planted defects on. This build has none; `bench/simulation/defects/switch.patch`
//! replaces this file in builds that have them.

/// Whether defects are planted in this build.
pub const IS_PLANTED: bool = false;

/// Switches this defect on, and every other off, for what runs on this thread; the empty name
/// switches all off.
pub(super) fn plant(_defect: &str) {}
