//! The control plane without sockets, to be fuzzed: bytes of a connection in, bytes of its answers
//! out.

pub use crate::control::probe::{ControlProbe, ProbedDoor};
