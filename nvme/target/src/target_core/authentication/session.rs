//! The transaction of one queue.

use std::sync::Arc;

use nvme_authentication::{
    Action, Authenticated, Channel, Computed, Queue as Identities, Responder, SystemRandom,
};
use reactors::Nanos;

use super::super::executions::Command;
use crate::authentication::HostAuthentication;

/// Whether a queue executes commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Its host does not have to authenticate itself, and has not done so.
    NotRequired,
    /// Its host has to authenticate itself first.
    Required,
    /// Its host is authenticated. It may authenticate itself again.
    Authenticated,
}

/// What follows when the host has taken a message.
#[derive(Debug)]
pub(crate) enum After {
    /// The host's next message.
    Continue,
    /// The queue is authenticated.
    Success(Authenticated),
    /// The connection ends.
    End,
}

/// The state of a transaction's commands.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Waits for Authentication Send.
    Idle,
    /// Waits for an exponentiation, which completes the command.
    Computing(Command),
    /// Waits for Authentication Receive, which takes the message.
    Ready(Vec<u8>, After),
    /// Waits until the delay after a failure is over, which completes the command.
    Delaying {
        command: Command,
        message: Vec<u8>,
        until: Nanos,
    },
    /// The connection is being closed.
    Over,
}

/// The transactions of one queue, one after the other.
pub(crate) struct Session {
    responder: Responder,
    /// What the configuration has for the host since the last transaction began.
    settings: Arc<HostAuthentication>,
    pub(crate) phase: Phase,
    /// When the connection ends if the host does not take the message of a failure.
    ends_at: Option<Nanos>,
}

/// The names that both ends use in a transaction.
pub(crate) struct SessionNames<'a> {
    pub(crate) host_nqn: &'a str,
    pub(crate) subsystem_nqn: &'a str,
}

impl Session {
    /// A queue whose host is to begin now.
    pub(crate) fn new(
        settings: &Arc<HostAuthentication>,
        names: &SessionNames<'_>,
        is_admin: bool,
        keep_alive_ms: u32,
        now: Nanos,
    ) -> Self {
        let identities = Identities {
            host_nqn: names.host_nqn.to_owned(),
            subsystem_nqn: names.subsystem_nqn.to_owned(),
            is_admin,
            channel: Channel::Plain,
            host_keys: settings.host_keys(names.host_nqn),
            controller_key: settings.transformed_controller_key(names.subsystem_nqn),
        };
        let policy = settings.policy(keep_alive_ms);
        Self {
            responder: Responder::new(identities, policy, now.as_millis()),
            settings: Arc::clone(settings),
            phase: Phase::Idle,
            ends_at: None,
        }
    }

    /// Adopts the configuration's current keys. Returns false if a transaction is under way, which
    /// goes on with its own.
    pub(crate) fn adopt(
        &mut self,
        settings: &Arc<HostAuthentication>,
        names: &SessionNames<'_>,
    ) -> bool {
        let (host_keys, controller_key) = (
            settings.host_keys(names.host_nqn),
            settings.transformed_controller_key(names.subsystem_nqn),
        );
        let is_adopted = self.responder.set_keys(host_keys, controller_key);
        if is_adopted {
            self.settings = Arc::clone(settings);
        }
        is_adopted
    }

    /// Whether the host or the controller can prove a key in the current transaction.
    pub(crate) fn has_key(&self, name: &str) -> bool {
        let controller_key = self.settings.controller_key.iter();
        let mut keys = self.settings.keys.iter().chain(controller_key);
        keys.any(|key| key.name == name)
    }

    /// The names of the keys of a transaction that succeeded.
    pub(crate) fn names_of(&self, authenticated: &Authenticated) -> (String, Option<String>) {
        let key = self.settings.keys.get(authenticated.host_key);
        let controller_key = self.settings.controller_key.as_ref();
        let controller_key = controller_key.filter(|_| authenticated.bidirectional);
        (
            key.map_or_else(String::new, |key| key.name.clone()),
            controller_key.map(|key| key.name.clone()),
        )
    }

    /// Takes a message of the host; `None` if the transaction has failed already.
    pub(crate) fn receive(&mut self, message: &[u8], now: Nanos) -> Option<Action> {
        match self.phase {
            Phase::Idle => {
                let (responder, now_ms) = (&mut self.responder, now.as_millis());
                Some(responder.receive(message, &mut SystemRandom, now_ms))
            }
            Phase::Computing(_) | Phase::Ready(_, After::Continue | After::Success(_)) => {
                Some(self.responder.out_of_order())
            }
            Phase::Delaying { .. } | Phase::Ready(_, After::End) | Phase::Over => None,
        }
    }

    /// Takes the result of an exponentiation.
    pub(crate) fn computed(&mut self, result: &Computed, now: Nanos) -> Action {
        self.responder
            .computed(result, &mut SystemRandom, now.as_millis())
    }

    /// Ends the transaction if it takes too long.
    pub(crate) fn expire(&mut self, now: Nanos) -> Option<Action> {
        self.responder.expire(now.as_millis())
    }

    /// Lets the host take the message of a failure until `at`.
    pub(crate) fn end_at(&mut self, at: Nanos) {
        self.ends_at = Some(at);
    }

    /// Whether the host has not taken the message of a failure in time.
    pub(crate) fn is_overdue(&self, now: Nanos) -> bool {
        self.ends_at.is_some_and(|at| at <= now)
    }

    /// When something is due.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let delay = match self.phase {
            Phase::Delaying { until, .. } => Some(until),
            Phase::Over => return None,
            Phase::Idle | Phase::Computing(_) | Phase::Ready(..) => None,
        };
        let transaction = self.responder.deadline_ms().map(Nanos::from_millis);
        [delay, transaction, self.ends_at]
            .into_iter()
            .flatten()
            .min()
    }
}
