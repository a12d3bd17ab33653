//! The two sides against each other.

mod exchanges;
mod rig;
