//! Hand-over of a queue's own state.

use nvme_handover::AuthenticationRecord;
use reactors::Nanos;

use crate::authentication::QueueAuthentication;

use super::super::authentication::Standing;
use super::{LOGGED_ERRORS_MAX, Queue};

impl Queue {
    /// The submission queue head that the last response reported.
    pub(crate) fn head(&self) -> u16 {
        self.head
    }

    /// How its host was authenticated.
    pub(crate) fn authentication_record(&self, now: Nanos) -> Option<AuthenticationRecord> {
        let authentications = self.shared.authentications();
        let QueueAuthentication {
            hash,
            group,
            key,
            controller_key,
            since,
        } = authentications.get(&self.qid)?.clone();
        Some(AuthenticationRecord {
            hash: hash.id().0,
            group: group.id().0,
            key,
            controller_key,
            age_ns: now.saturating_sub(since).as_nanos(),
        })
    }

    /// Continues with a host that is authenticated.
    pub(crate) fn continue_authenticated(&mut self, authentication: QueueAuthentication) {
        self.standing = Standing::Authenticated;
        let mut authentications = self.shared.authentications();
        authentications.insert(self.qid, authentication);
    }

    /// Continues from this head, which is below the queue's size.
    pub(crate) fn continue_from(&mut self, head: u16, log_allowance: u8) {
        debug_assert!(head < self.depth);
        self.head = head;
        self.log_allowance = log_allowance.min(LOGGED_ERRORS_MAX);
    }
}
