//! The dependencies of the snapshot cell; `tests/loom.rs` compiles the cell a second time with
//! loom's atomics.

pub(crate) use arc_swap::ArcSwap as Swap;

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}
