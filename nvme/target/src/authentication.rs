//! Authentication of hosts by DH-HMAC-CHAP (Base 2.1 §8.3.4.5.2): what the configuration demands of
//! a host, the exponentiations of all queues, and what operators learn of the results.
//!
//! The protocol is in `nvme_authentication`. A [`Session`] is the transaction of one queue, and
//! `target_core::authentication` executes its commands.

mod exponentiations;
mod records;

use std::collections::BTreeMap;
use std::sync::Arc;

use nvme_authentication::{Group, Key, Policy, ProposedNullGroup, SecureChannelPolicy};
use nvme_keys::ChapSecret;
use reactors::Nanos;

pub use exponentiations::Exponentiations;
pub(crate) use exponentiations::{Job, Origin};
pub(crate) use records::{AuthenticationRecords, advice};
pub use records::{KeyUse, QueueAuthentication};

use crate::config::TargetError;
use crate::generated_keys::{GeneratedKeys, Generation};
use crate::secure_channel::SecureChannel;
use crate::target::Target;

/// Most keys that a host can have in a subsystem: more than one while they are exchanged.
pub const HOST_KEYS_MAX: usize = nvme_authentication::HOST_KEYS_MAX;

/// Longest duration of a transaction without a keep-alive timeout, milliseconds; also the time for
/// a new queue to authenticate itself. Linux and SPDK have the same limit.
const TRANSACTION_MAX_MS: u32 = 120_000;

/// A secret and the name by which operators know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedSecret {
    /// The name, which is not secret.
    pub name: String,
    /// The secret.
    pub secret: Arc<ChapSecret>,
}

/// Whether a host may generate a key for a secure channel, over which it connects anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Concatenation {
    /// It may not.
    #[default]
    Off,
    /// It may.
    Allowed,
    /// It has to, where it connects without a secure channel.
    Required,
}

/// How a host authenticates itself to a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostAuthentication {
    /// Whether it must. Otherwise it may.
    pub required: bool,
    /// The secrets of which the host has one: at most [`HOST_KEYS_MAX`]. Without any, for example
    /// because they were revoked, it cannot authenticate itself.
    pub keys: Vec<NamedSecret>,
    /// The secret with which the controller authenticates itself if the host demands it.
    pub controller_key: Option<NamedSecret>,
    /// Whether the exchange may use the null group, which has no Diffie-Hellman exchange: who
    /// records it can try secrets offline.
    pub null_group: bool,
    /// Whether the host may generate a key for a secure channel.
    pub concatenation: Concatenation,
}

impl HostAuthentication {
    /// Checks the number of keys.
    pub(crate) fn check(&self, nqn: &str, host: &str) -> Result<(), TargetError> {
        let count = self.keys.len();
        if count > HOST_KEYS_MAX {
            return Err(TargetError::HostKeys {
                nqn: nqn.to_owned(),
                host: host.to_owned(),
                count,
            });
        }
        Ok(())
    }

    /// Whether the host has to authenticate itself on a connection. Over a channel with a generated
    /// key it has done so.
    pub(crate) fn is_required_over(&self, channel: Option<&SecureChannel>) -> bool {
        match channel {
            Some(channel) => self.required && channel.owner.generation.is_none(),
            None => self.required || self.concatenation == Concatenation::Required,
        }
    }

    /// Whether a host may begin a connection with a key that was generated so.
    pub(crate) fn permits_generated(&self, generation: &Generation, now: Nanos) -> bool {
        let is_own = |key: &NamedSecret| key.secret == generation.secret;
        self.concatenation != Concatenation::Off
            && self.keys.iter().any(is_own)
            && !generation.is_over(now)
    }

    /// The transformed keys of the host for a transaction.
    pub(crate) fn host_keys(&self, host_nqn: &str) -> arrayvec::ArrayVec<Key, HOST_KEYS_MAX> {
        let keys = self.keys.iter().take(HOST_KEYS_MAX);
        keys.filter_map(|key| transformed(key, host_nqn)).collect()
    }

    /// The transformed key of the controller.
    pub(crate) fn transformed_controller_key(&self, subsystem_nqn: &str) -> Option<Key> {
        transformed(self.controller_key.as_ref()?, subsystem_nqn)
    }

    /// What a transaction may use.
    pub(crate) fn policy(&self, keep_alive_ms: u32) -> Policy {
        let limit_ms = match keep_alive_ms {
            0 => TRANSACTION_MAX_MS,
            limit_ms => limit_ms.min(TRANSACTION_MAX_MS),
        };
        let mut policy = Policy {
            transaction_ms_max: u64::from(limit_ms),
            secure_channel: match self.concatenation {
                Concatenation::Off => SecureChannelPolicy::Never,
                Concatenation::Allowed => SecureChannelPolicy::Permitted,
                Concatenation::Required => SecureChannelPolicy::Required,
            },
            // Linux proposes it always, and accepts another one.
            proposed_null_group: ProposedNullGroup::Ignore,
            ..Policy::default()
        };
        if self.null_group {
            // The last one: a host that proposes others too is to use these.
            policy.groups.push(Group::Null);
        }
        policy
    }
}

impl Target {
    /// The exponentiations that authentications need. A thread of its own has to call
    /// [`run_exponentiation`](Self::run_exponentiation) for each.
    #[must_use]
    pub fn exponentiations(&self) -> &Exponentiations {
        &self.exponentiations
    }

    /// Computes the next exponentiation, which takes up to 60 ms; not on a reactor. Returns false if
    /// there is none.
    pub fn run_exponentiation(&self) -> bool {
        let reactor = self.exponentiations.run_next();
        if let Some(reactor) = reactor {
            self.notify(reactor);
        }
        reactor.is_some()
    }

    /// The keys that hosts have generated for secure channels.
    #[must_use]
    pub fn generated_keys(&self) -> &GeneratedKeys {
        &self.generated_keys
    }

    /// The uses of keys since the start, by the name of the key.
    #[must_use]
    pub fn key_uses(&self) -> BTreeMap<String, KeyUse> {
        self.authentication_records.uses()
    }

    /// Forgets the uses of keys that the configuration no longer has.
    pub fn forget_key_uses(&self, is_known: impl Fn(&str) -> bool) {
        self.authentication_records.retain(is_known);
    }

    pub(crate) fn authentication_records(&self) -> &AuthenticationRecords {
        &self.authentication_records
    }
}

/// A secret has 32 to 64 bytes, as its transformed key, so there always is one.
fn transformed(secret: &NamedSecret, nqn: &str) -> Option<Key> {
    Key::new(secret.secret.transformed(nqn).expose()).ok()
}
