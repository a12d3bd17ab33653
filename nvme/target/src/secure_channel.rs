//! The secure channels of connections (TCP 1.1 §3.6.1.3): what a transport has established, who may
//! use it, and what operators learn of it.
//!
//! A key belongs to one host and one subsystem. A connection over a channel of that key may only
//! connect as this host to this subsystem. All queues of a controller have a channel, or none has
//! one, so that nobody adds a queue beside a secured one.

use std::sync::Arc;

use reactors::Nanos;

use crate::revocation::Revocations;

/// The host and the subsystem that a key belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyOwner {
    /// The name by which operators know the key.
    pub key: String,
    /// The NQN of the host.
    pub host_nqn: String,
    /// The NQN of the subsystem, or that of the discovery service.
    pub subsystem_nqn: String,
}

/// A secure channel, which a transport has established before Connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecureChannel {
    /// Whose key the host has proved.
    pub owner: Arc<KeyOwner>,
    /// The version of the transport's keys in which it was found.
    pub keys_version: u64,
    /// The name of the cipher suite.
    pub cipher: &'static str,
    /// The name of the group of the key exchange.
    pub group: &'static str,
    /// The name of the derivation by which the host has got its key.
    pub derivation: &'static str,
}

/// The channel of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueChannel {
    /// The channel.
    pub channel: Arc<SecureChannel>,
    /// When its queue was connected, by the clock of the reactors.
    pub since: Nanos,
}

/// Why a Connect does not match the channel of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelRefusal<'a> {
    /// The key belongs to another host or subsystem.
    Owner(&'a KeyOwner),
    /// The key was revoked while the channel was established.
    Revoked(&'a KeyOwner),
    /// The host has to use a channel.
    Required,
    /// The queues of the controller use channels, and this one does not, or the reverse.
    Mixed,
}

impl ChannelRefusal<'_> {
    /// The likely cause and its fix.
    pub(crate) fn advice(self) -> String {
        match self {
            Self::Owner(owner) => format!(
                "the connection uses key {} of host {} for {}: give each host a key of its own, and \
                 name it in `tls` of that host",
                owner.key, owner.host_nqn, owner.subsystem_nqn
            ),
            Self::Revoked(owner) => format!(
                "key {} was revoked: place another one in its file, and run windlass apply",
                owner.key
            ),
            Self::Required => {
                "the host has require = [\"tls\"], and connects without TLS: connect \
                               with --tls to a listener that offers it"
                    .to_owned()
            }
            Self::Mixed => "some of the host's queues use TLS and others do not: use the same \
                            listener and options for all"
                .to_owned(),
        }
    }
}

/// Checks that a host that connects to a subsystem may use the channel, or none.
pub(crate) fn check<'a>(
    channel: Option<&'a SecureChannel>,
    host_nqn: &str,
    subsystem_nqn: &str,
    is_required: bool,
    revocations: &Revocations,
) -> Result<(), ChannelRefusal<'a>> {
    match channel {
        Some(channel) => {
            let owner = &*channel.owner;
            let is_owner = owner.host_nqn == host_nqn && owner.subsystem_nqn == subsystem_nqn;
            if !is_owner {
                Err(ChannelRefusal::Owner(owner))
            } else if revocations.include(channel) {
                Err(ChannelRefusal::Revoked(owner))
            } else {
                Ok(())
            }
        }
        None if is_required => Err(ChannelRefusal::Required),
        None => Ok(()),
    }
}
