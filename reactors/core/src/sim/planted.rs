//! Defects that are planted in the appliance, to prove that simulation finds them.
//!
//! In every build but those with `--cfg planted` there are none: [`planted`] is a constant there,
//! and what stands behind it is not compiled in. With it, one defect at a time is switched on for
//! what runs on the present thread. Names and meanings are in bench/simulation.

/// Whether the defect of this name is here.
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

    /// The environment variable that switches a defect on from the start of each thread, so that the
    /// crates' own tests can be run with one.
    const VARIABLE: &str = "PLANTED_DEFECT";

    thread_local! {
        static PLANTED: Cell<&'static str> = Cell::new(from_environment());
    }

    fn from_environment() -> &'static str {
        std::env::var(VARIABLE).map_or("", |name| name.leak())
    }

    /// Whether the defect of this name is here.
    #[must_use]
    pub fn planted(defect: &str) -> bool {
        PLANTED.get() == defect
    }

    /// Switches this defect on, and every other off, for what runs on this thread; the empty name
    /// switches all off.
    pub fn plant(defect: &'static str) {
        PLANTED.set(defect);
    }
}
