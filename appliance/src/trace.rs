//! What the reactors did last, as a trace that Perfetto and Chrome show: `GET /api/v1/trace` and
//! `windlass trace`.
//!
//! [`recordings`](crate::observe::recordings) reads the flight recorders, [`spans`] puts their notes together to requests with
//! their states, [`chrome`] writes those down. None of it runs on a reactor.

pub(crate) mod chrome;
mod command;
pub(crate) mod spans;

pub(crate) use command::{TraceArguments, trace};

#[cfg(test)]
mod tests;
