//! The atomics of the handshake; `tests/loom.rs` compiles that a second time against loom's.

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
}
