//! The secure channels of connections (TCP 1.1 §3.6.1.3): what a transport has established, who may
//! use it, and what operators learn of it.
//!
//! A key belongs to one host and one subsystem. A connection over a channel of that key may only
//! connect as this host to this subsystem. All queues of a controller have a channel, or none has
//! one, so that nobody adds a queue beside a secured one.

use std::sync::Arc;

use reactors::Nanos;

use crate::authentication::HostAuthentication;
use crate::generated_keys::Generation;
use crate::revocation::Revocations;

/// The host and the subsystem that a key belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyOwner {
    /// The name by which operators know the key, or the secret by which it was generated.
    pub key: String,
    /// The NQN of the host.
    pub host_nqn: String,
    /// The NQN of the subsystem, or that of the discovery service.
    pub subsystem_nqn: String,
    /// How the key was generated; `None` if it is configured.
    pub generation: Option<Generation>,
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
    /// Whether the kernel protects its records, and not this process.
    pub has_kernel_records: bool,
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
    /// The key was generated too long ago, or the secret by which it was is no longer one of the host.
    Outdated(&'a KeyOwner),
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
            Self::Outdated(owner) => format!(
                "the connection uses a key that was generated with secret {}, which is too old or no \
                 longer one of the host: disconnect the host, and connect it again with --concat",
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

/// A host that connects to a subsystem.
pub(crate) struct Connecting<'a> {
    pub(crate) host_nqn: &'a str,
    pub(crate) subsystem_nqn: &'a str,
    /// What the configuration has for its authentication.
    pub(crate) authentication: Option<&'a HostAuthentication>,
    /// Whether the queue needs a channel.
    pub(crate) is_required: bool,
}

/// Checks that a host may use the channel, or none.
pub(crate) fn check<'a>(
    channel: Option<&'a SecureChannel>,
    connecting: &Connecting<'_>,
    revocations: &Revocations,
    now: Nanos,
) -> Result<(), ChannelRefusal<'a>> {
    let Some(channel) = channel else {
        return match connecting.is_required {
            true => Err(ChannelRefusal::Required),
            false => Ok(()),
        };
    };
    let owner = &*channel.owner;
    let names = (&*owner.host_nqn, &*owner.subsystem_nqn);
    let is_valid = |generation: &Generation| {
        let settings = connecting.authentication;
        settings.is_some_and(|it| it.permits_generated(generation, now))
    };
    if names != (connecting.host_nqn, connecting.subsystem_nqn) {
        Err(ChannelRefusal::Owner(owner))
    } else if revocations.include(channel) {
        Err(ChannelRefusal::Revoked(owner))
    } else if !owner.generation.as_ref().is_none_or(is_valid) {
        Err(ChannelRefusal::Outdated(owner))
    } else {
        Ok(())
    }
}
