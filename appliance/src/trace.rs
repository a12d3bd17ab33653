//! Traces of the reactors' recent activity for Perfetto and Chrome: `GET /api/v1/trace` and
//! `windlass trace`.
//!
//! [`recordings`](crate::observe::recordings) reads the flight recorders, [`spans`] assembles their
//! events into requests with states, [`chrome`] formats those. None of it runs on a reactor.

pub(crate) mod chrome;
mod command;
pub(crate) mod spans;

pub(crate) use command::{TraceArguments, trace};

#[cfg(test)]
mod tests;
