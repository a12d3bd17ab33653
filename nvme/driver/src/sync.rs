//! The atomics of the handshake. `tests/loom.rs` compiles the handshake again with loom's atomics.

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
}
