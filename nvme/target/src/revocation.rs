//! Revocation of a key by an operator: the associations whose hosts have proved it end.
//!
//! A host may be proving the key meanwhile. A queue whose host was authenticated before its core knew
//! of the revocation, or whose transaction began before, ends when the core adopts it. A secure
//! channel is established before Connect, by the transport: it names the version of the keys in
//! which its own was found, and Connect is refused if the key was revoked in a later one.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use crate::eviction::EvictedAssociations;
use crate::interface::CloseReason;
use crate::secure_channel::SecureChannel;
use crate::shared::ControllerShared;
use crate::target::Target;

/// Most revocations that are remembered. A handshake lasts for seconds, so that older ones are of no
/// importance.
const REVOCATIONS_MAX: usize = 256;

/// A revocation.
#[derive(Clone, Debug)]
struct Revocation {
    key: String,
    /// The first version of the transport's keys without it.
    keys_version: u64,
    /// The epoch in which it was published.
    epoch: u32,
}

/// The latest revocations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Revocations(Arc<VecDeque<Revocation>>);

impl Revocations {
    /// Whether the key of a channel was revoked after it had been found.
    pub(crate) fn include(&self, channel: &SecureChannel) -> bool {
        let mut all = self.0.iter();
        all.any(|it| it.key == channel.owner.key && channel.keys_version < it.keys_version)
    }

    /// The keys that were revoked after `epoch`.
    pub(crate) fn keys_after(&self, epoch: u32) -> impl Iterator<Item = &str> {
        // Epochs wrap around. No core is behind by half of their range.
        let is_later = move |it: &&Revocation| (1..1 << 31).contains(&it.epoch.wrapping_sub(epoch));
        let later = self.0.iter().filter(is_later);
        later.map(|it| it.key.as_str())
    }

    fn add(&mut self, revocation: Revocation) {
        let mut all = VecDeque::clone(&self.0);
        while all.len() >= REVOCATIONS_MAX {
            all.pop_front();
        }
        all.push_back(revocation);
        self.0 = Arc::new(all);
    }
}

/// Whether a host or the controller has proved a key on one of the controller's queues.
pub(crate) fn has_queue_with(controller: &ControllerShared, key: &str) -> bool {
    let is_authenticated = controller.authentications().values().any(|it| {
        let controller_key = it.controller_key.as_deref();
        it.key == key || controller_key == Some(key)
    });
    let channels = controller.channels();
    is_authenticated || channels.values().any(|it| it.channel.owner.key == key)
}

impl Target {
    /// Ends the associations whose hosts or controllers have proved a key, without waiting for their
    /// commands. The hosts may reconnect with other keys.
    ///
    /// Before, the caller removes the key from the configuration of the subsystems, and from the keys
    /// of the transports, which have version `keys_version` since.
    pub fn revoke_key(&self, key: &str, keys_version: u64) -> EvictedAssociations {
        self.generated_keys.remove_all_of(key);
        let mut ended = Vec::new();
        let Ok(()) = self.publish::<Infallible>(|registry, published| {
            published.revocations.add(Revocation {
                key: key.to_owned(),
                keys_version,
                epoch: published.epoch.wrapping_add(1),
            });
            let controllers = registry.entries().map(|entry| &entry.shared);
            let with_key = controllers.filter(|it| has_queue_with(it, key));
            for controller in with_key {
                controller.end(CloseReason::Revoked);
                ended.push(Arc::clone(controller));
            }
            Ok(())
        });
        EvictedAssociations::new(ended)
    }
}
