//! What operators learn of authentications: the last use of each key, and the log lines of failures.
//!
//! Control path only. Names of keys are from the configuration, so their number is limited.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nvme_authentication::{Failure, Group, Hash, Violation};
use reactors::Nanos;

/// Hosts whose last failure is remembered.
const FAILURES_MAX: usize = 64;

/// Interval between two log lines about failures of one host.
const FAILURE_INTERVAL: Nanos = Nanos::from_secs(10);

/// How a queue was authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueAuthentication {
    /// The hash function.
    pub hash: Hash,
    /// The Diffie-Hellman group.
    pub group: Group,
    /// The name of the host's key.
    pub key: String,
    /// The name of the controller's key, if the controller was authenticated too.
    pub controller_key: Option<String>,
    /// When, by the clock of the reactors.
    pub since: Nanos,
}

/// The use of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyUse {
    /// Number of queues that were authenticated with it.
    pub count: u64,
    /// When the last one was, by the clock of the reactors.
    pub last: Nanos,
}

/// The uses of keys and the failures of hosts.
#[derive(Default)]
pub(crate) struct AuthenticationRecords {
    uses: Mutex<BTreeMap<String, KeyUse>>,
    /// The hosts that failed, with the time of their log line, oldest first.
    failures: Mutex<VecDeque<(String, Nanos)>>,
}

impl AuthenticationRecords {
    /// Records the use of a key.
    pub(crate) fn add_use(&self, key: &str, now: Nanos) {
        let mut uses = lock(&self.uses);
        let of_key = uses.entry(key.to_owned()).or_default();
        of_key.count += 1;
        of_key.last = of_key.last.max(now);
    }

    /// The uses of keys by name.
    pub(crate) fn uses(&self) -> BTreeMap<String, KeyUse> {
        lock(&self.uses).clone()
    }

    /// Forgets keys that the configuration no longer has.
    pub(crate) fn retain(&self, is_known: impl Fn(&str) -> bool) {
        lock(&self.uses).retain(|name, _| is_known(name));
    }

    /// Whether a failure of a host is to be logged: not if the same host, or too many others, had
    /// one within the last seconds, so that hosts cannot fill the log.
    pub(crate) fn is_logged(&self, host_nqn: &str, now: Nanos) -> bool {
        let mut failures = lock(&self.failures);
        let is_recent = |at: &Nanos| now < *at + FAILURE_INTERVAL;
        failures.retain(|(_, at)| is_recent(at));
        let is_known = failures.iter().any(|(host, _)| host == host_nqn);
        if is_known || failures.len() >= FAILURES_MAX {
            return false;
        }
        failures.push_back((host_nqn.to_owned(), now));
        true
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The likely cause of a failure and its fix.
pub(crate) fn advice(failure: &Failure) -> &'static str {
    let violation = match failure {
        Failure::RefusedByPeer { .. } => {
            return "the host's key of the controller differs from that of `chap_controller`, or it \
                    has one and `chap_controller` is missing: use the same key on both sides \
                    (nvme connect --dhchap-ctrl-secret)";
        }
        Failure::Refused(violation) => violation,
    };
    match violation {
        Violation::WrongResponse => {
            "the host's key is none of those in `chap`: compare them (nvme connect \
             --dhchap-secret; windlass key check), and check that the host uses this NQN"
        }
        Violation::NoControllerKey => {
            "the host demands that the appliance authenticates itself: add `chap_controller` to it, \
             or connect without --dhchap-ctrl-secret"
        }
        Violation::NoHostKey => "the host's keys were removed: add `chap` to it",
        Violation::Group => {
            "the host offers no Diffie-Hellman group but the null group: update it, or write \
             `chap_null_group = true`"
        }
        Violation::SecureChannel => {
            "the host requests a secure channel (nvme connect --concat) and may not, or it requests \
             none and has to: set `concatenation` of the host accordingly, and connect to a listener \
             with tls = \"allowed\""
        }
        Violation::TimedOut => {
            "the host did not authenticate itself in time: connect with --dhchap-secret"
        }
        Violation::Hash | Violation::Protocol => {
            "the host offers no hash function or protocol of this appliance: update the host"
        }
        Violation::NoRandom => "the machine has no random bytes: look at its kernel's log",
        Violation::Length
        | Violation::UnexpectedMessage
        | Violation::Transaction
        | Violation::ReservedValue
        | Violation::Lists
        | Violation::HashLength
        | Violation::PublicValue
        | Violation::SequenceNumber
        | Violation::NoChallenge
        | Violation::CopiedChallenge
        | Violation::NoResponse => {
            "the message is invalid: the host's software is defective, or messages were changed on \
             their way"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_a_host_are_logged_once_in_a_while() {
        let records = AuthenticationRecords::default();
        let now = Nanos::from_secs(100);
        assert!(records.is_logged("a", now) && records.is_logged("b", now));
        assert!(!records.is_logged("a", now + Nanos::from_secs(9)));
        assert!(records.is_logged("a", now + Nanos::from_secs(10)));
        let later = now + Nanos::from_secs(100);
        let logged = (0..1000).filter(|host| records.is_logged(&host.to_string(), later));
        assert_eq!(logged.count(), FAILURES_MAX);
    }

    #[test]
    fn uses_are_counted_by_key() {
        let records = AuthenticationRecords::default();
        records.add_use("a", Nanos::from_secs(2));
        records.add_use("a", Nanos::from_secs(1));
        let last = Nanos::from_secs(2);
        let uses = records.uses();
        assert_eq!(uses["a"], KeyUse { count: 2, last });
        records.retain(|name| name != "a");
        assert!(records.uses().is_empty());
    }
}
