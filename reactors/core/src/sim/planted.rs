//! Defects planted in the appliance, to verify that simulation finds them.
//!
//! Only builds with `--cfg planted` contain them. In all others [`planted`] is constant false and
//! the defective code is not compiled. With the option, one defect at a time is enabled per thread.
//! Names and meanings are in bench/simulation.

/// Whether the defect with this name is enabled.
#[cfg(not(planted))]
#[inline(always)]
#[must_use]
pub const fn planted(_defect: &str) -> bool {
    false
}

#[cfg(planted)]
pub use switched::{plant, planted};

#[cfg(planted)]
mod switched {
    use std::cell::Cell;

    /// The environment variable that enables a defect at the start of each thread, so that the
    /// crates' own tests can run with one.
    const VARIABLE: &str = "PLANTED_DEFECT";

    thread_local! {
        static PLANTED: Cell<&'static str> = Cell::new(from_environment());
    }

    fn from_environment() -> &'static str {
        std::env::var(VARIABLE).map_or("", |name| name.leak())
    }

    /// Whether the defect with this name is enabled.
    #[must_use]
    pub fn planted(defect: &str) -> bool {
        PLANTED.get() == defect
    }

    /// Enables this defect on the current thread and disables all others; the empty name disables
    /// all.
    pub fn plant(defect: &'static str) {
        PLANTED.set(defect);
    }
}
