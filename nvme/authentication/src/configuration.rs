//! What a side knows before a transaction: the queue, the keys and the policy.

use core::fmt;

use arrayvec::ArrayVec;
use zeroize::Zeroizing;

use crate::{Group, Hash};

/// The longest transformed key, bytes.
pub const KEY_BYTES_MAX: usize = 64;

/// Keys of one host that a controller accepts: more than one while they are exchanged.
pub const HOST_KEYS_MAX: usize = 4;

/// A key is empty or longer than [`KEY_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key has 1 to 64 bytes")]
pub struct InvalidKey;

/// A transformed key K.
#[derive(Clone)]
pub struct Key(Zeroizing<Vec<u8>>);

impl Key {
    /// Copies a key.
    ///
    /// # Errors
    ///
    /// If its length is not 1 to [`KEY_BYTES_MAX`] bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, InvalidKey> {
        if bytes.is_empty() || bytes.len() > KEY_BYTES_MAX {
            return Err(InvalidKey);
        }
        Ok(Self(Zeroizing::new(bytes.to_vec())))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(hidden)")
    }
}

/// What protects the connection of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Nothing.
    Plain,
    /// TLS.
    Tls,
}

/// The queue and both ends' identities and keys.
#[derive(Clone, Debug)]
pub struct Queue {
    /// NQN of the host.
    pub host_nqn: String,
    /// NQN of the subsystem.
    pub subsystem_nqn: String,
    /// Whether it is an admin queue.
    pub is_admin: bool,
    /// Its channel.
    pub channel: Channel,
    /// The keys that authenticate the host. A controller accepts each of them, at most
    /// [`HOST_KEYS_MAX`], and a host uses the first.
    pub host_keys: ArrayVec<Key, HOST_KEYS_MAX>,
    /// The key that authenticates the controller. A host that has one requires it.
    pub controller_key: Option<Key>,
}

/// Secure channel concatenation on admin queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecureChannelPolicy {
    /// A controller refuses it, and a host does not request it.
    Never,
    /// A controller permits it; a host requests it.
    Permitted,
    /// A controller also refuses a host without it on a plain channel; a host requests it.
    Required,
}

/// What a controller does if a host proposes the null group together with a secure channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProposedNullGroup {
    /// It refuses the host, as Base 2.1 §8.3.4.5.2 demands.
    Refuse,
    /// It selects another group. Hosts with Linux 6.15 propose the null group always.
    Ignore,
}

/// What is permitted.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Permitted hash functions, preferred first.
    pub hashes: ArrayVec<Hash, 3>,
    /// Permitted groups, preferred first. A policy without [`Group::Null`] requires an exchange.
    pub groups: ArrayVec<Group, 6>,
    /// Secure channel concatenation.
    pub secure_channel: SecureChannelPolicy,
    /// The null group proposed together with a secure channel.
    pub proposed_null_group: ProposedNullGroup,
    /// The longest duration of a transaction, milliseconds.
    pub transaction_ms_max: u64,
}

impl Default for Policy {
    /// Every hash function, every group but the null group, small groups first, no secure channel,
    /// two minutes.
    fn default() -> Self {
        let groups = Group::ALL.into_iter();
        Self {
            hashes: Hash::ALL.into_iter().collect(),
            groups: groups.filter(|&group| group != Group::Null).collect(),
            secure_channel: SecureChannelPolicy::Never,
            proposed_null_group: ProposedNullGroup::Refuse,
            transaction_ms_max: 120_000,
        }
    }
}
