//! Admin commands between admission and execution.

use nvme_spec::command::{AdminOpcode, CommandDwords};

/// An admin command with data that was checked: what is left to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdminWork {
    pub(crate) opcode: AdminOpcode,
    pub(crate) nsid: u32,
    pub(crate) specific: CommandDwords,
}
