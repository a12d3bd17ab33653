//! Clients of the server for files: requests in any order, valid ones and damaged ones, whose
//! executions overlap and whose data and logs fail. Every reply is valid, no client has state at the
//! end, and the volume is consistent.

use crate::input::Input;
use crate::nfs_harness::client::World;
use crate::nfs_harness::device::durable_world;
use crate::nfs_harness::overlap::{self, Choices};

/// Limit of the requests of one input.
const REQUESTS_MAX: usize = 64;
/// Numbers below this limit take one byte of the input.
const BYTE_LIMIT: usize = 256;

impl Choices for Input<'_> {
    fn below(&mut self, limit: usize) -> usize {
        match limit {
            ..=BYTE_LIMIT => usize::from(self.u8()) % limit,
            _ => self.u32() as usize % limit,
        }
    }

    fn has_ended(&self) -> bool {
        self.is_empty()
    }
}

/// Sends the requests that the input chooses to a server of a volatile or a durable volume.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let world = match input.one_in(2) {
        true => durable_world(),
        false => World::new(),
    };
    overlap::run(world, &mut input, REQUESTS_MAX);
}
