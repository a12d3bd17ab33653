//! Measurements of Windlass itself, for its developers: exact costs of a request, ceilings of the
//! machine, and comparisons with them and with peers.
//!
//! Every claim of speed is a ratio to a ceiling or a peer measured in the same run. The load comes from
//! the crate `bench`.

#![forbid(unsafe_code)]

pub mod appliance_process;
pub mod ceiling;
pub mod compare;
pub mod cost;
pub mod cpu_limit;
pub mod drive;
pub mod leftovers;
pub mod report;
pub mod scale;
pub mod start;
pub mod storm;
pub mod transfers;
