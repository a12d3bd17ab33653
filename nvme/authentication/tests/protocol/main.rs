//! The two sides against each other, against invalid messages and against changed ones.

mod exchanges;
mod invalid;
mod properties;
mod rig;
