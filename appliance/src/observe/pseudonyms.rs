//! Pseudonyms of hosts for clients that may not see their identity: constant while the appliance
//! runs, and without information about the host.
//!
//! A host is identified by its NQN and Host Identifier (Base 2.1 §6.3), and the Connect of an I/O
//! queue needs only these and a Controller ID, so clients without the right to operate the
//! appliance get none of them.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher as _;

use super::model::{Event, History, HistoryKind, HostStatus, Status};

/// Creates pseudonyms: a keyed hash (SipHash) with a random key of this process.
#[derive(Clone)]
pub(crate) struct Pseudonyms(RandomState);

impl fmt::Debug for Pseudonyms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pseudonyms")
    }
}

impl Pseudonyms {
    pub(crate) fn new() -> Self {
        Self(RandomState::new())
    }

    /// The pseudonym of the host with that NQN.
    pub(crate) fn host(&self, nqn: &str) -> String {
        format!("host-{:016x}", self.0.hash_one(("host", nqn)))
    }

    /// The pseudonym of a controller.
    pub(crate) fn controller(&self, controller_id: u16) -> String {
        let hash = self.0.hash_one(("controller", controller_id));
        format!("controller-{hash:016x}")
    }

    /// The pseudonym of a key.
    fn key(&self, name: &str) -> String {
        format!("key-{:016x}", self.0.hash_one(("key", name)))
    }

    /// Replaces or removes everything in a status that identifies a host.
    pub(crate) fn apply_to_status(&self, status: &mut Status) {
        for host in &mut status.hosts {
            let HostStatus {
                nqn,
                host_id,
                controller_id,
                address,
                authentication,
                channel,
                // These fields do not identify it.
                export: _,
                kind: _,
                state: _,
                transport: _,
                queues: _,
                totals: _,
                errors_logged: _,
            } = host;
            *nqn = self.host(nqn);
            (*host_id, *controller_id, *address) = (None, None, None);
            if let Some(authentication) = authentication {
                authentication.key = self.key(&authentication.key);
                authentication.controller_key = None;
            }
            if let Some(channel) = channel {
                channel.key = self.key(&channel.key);
            }
        }
        // An administrator may name a key after its host.
        for key in &mut status.keys {
            key.name = self.key(&key.name);
        }
        for limit in &mut status.rate_limits {
            limit.host = limit.host.as_deref().map(|host| self.host(host));
        }
    }

    /// Replaces the names of hosts in a history: in its keys and the names of its series.
    pub(crate) fn apply_to_history(&self, history: &mut History) {
        let prefix = format!("{}/", HistoryKind::Host.word());
        for key in &mut history.keys {
            if key.kind == HistoryKind::Host {
                key.name = self.host(&key.name);
            }
        }
        let series = std::mem::take(&mut history.series).into_iter();
        let renamed = series.map(|(name, values)| {
            let of_host = name.strip_prefix(&prefix);
            let renamed = of_host.and_then(|rest| rest.rsplit_once('/'));
            let renamed = renamed.map(|(host, what)| format!("{prefix}{}/{what}", self.host(host)));
            (renamed.unwrap_or(name), values)
        });
        history.series = renamed.collect();
    }

    /// Replaces the identity of the host in an event. `text` is the event's text without it.
    pub(crate) fn apply_to_event(&self, event: &mut Event, text: &str) {
        if !event.subject.is_empty() {
            event.subject = self.host(&event.subject);
        }
        text.clone_into(&mut event.text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pseudonyms_are_stable_within_one_process() {
        let (one, other) = (Pseudonyms::new(), Pseudonyms::new());
        let nqn = "nqn.2026-11.org.example:host";
        assert_eq!(one.host(nqn), one.clone().host(nqn));
        assert_ne!(one.host(nqn), one.host("nqn.2026-11.org.example:other"));
        assert_ne!(one.host(nqn), other.host(nqn));
        assert_ne!(one.controller(1), one.controller(2));
        assert!(one.controller(1) != other.controller(1));
        assert!(!one.host(nqn).contains("example"));
    }
}
