//! The two names that a pre-shared key is bound to.

/// Length limit of an NQN, in bytes.
pub const NQN_LEN_MAX: usize = 223;

/// Why a name cannot be part of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidNqn {
    /// It is empty or longer than [`NQN_LEN_MAX`].
    #[error("an NQN has 1 to {NQN_LEN_MAX} bytes, not {0}")]
    Length(usize),
    /// It contains a space or a control character. Spaces separate the fields of an identity.
    #[error("an NQN has no spaces and no control characters")]
    Character,
}

/// The NQNs of a host and a subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names<'a> {
    host: &'a str,
    subsystem: &'a str,
}

impl<'a> Names<'a> {
    /// Checks the names as far as identities depend on it.
    ///
    /// # Errors
    ///
    /// A name has a wrong length, or contains a space or a control character.
    pub fn new(host: &'a str, subsystem: &'a str) -> Result<Self, InvalidNqn> {
        for nqn in [host, subsystem] {
            if nqn.is_empty() || nqn.len() > NQN_LEN_MAX {
                return Err(InvalidNqn::Length(nqn.len()));
            }
            if nqn.chars().any(|c| c.is_whitespace() || c.is_control()) {
                return Err(InvalidNqn::Character);
            }
        }
        Ok(Self { host, subsystem })
    }

    /// The NQN of the host.
    #[must_use]
    pub const fn host(&self) -> &'a str {
        self.host
    }

    /// The NQN of the subsystem.
    #[must_use]
    pub const fn subsystem(&self) -> &'a str {
        self.subsystem
    }
}
