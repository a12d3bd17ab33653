//! The transaction of one queue.

use std::sync::Arc;

use nvme_authentication::{
    Action, Authenticated, Channel, Computed, Policy, Queue as Identities, Responder,
    SecureChannelPolicy, SystemRandom,
};
use reactors::Nanos;

use super::super::executions::Command;
use crate::authentication::{HostAuthentication, NamedSecret};

/// Whether a queue executes commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Its host does not have to authenticate itself, and has not done so.
    NotRequired,
    /// Its host has to authenticate itself first.
    Required,
    /// Its host is authenticated. It may authenticate itself again.
    Authenticated,
    /// Its host is authenticated, and has a key for the secure channel that is to replace the
    /// connection.
    Concatenated,
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

/// What a queue's transactions depend on, beside the settings.
pub(crate) struct SessionContext<'a> {
    pub(crate) host_nqn: &'a str,
    pub(crate) subsystem_nqn: &'a str,
    pub(crate) keep_alive_ms: u32,
    /// Whether the host may generate a key for a secure channel.
    pub(crate) may_concatenate: bool,
}

impl SessionContext<'_> {
    fn policy(&self, settings: &HostAuthentication) -> Policy {
        let mut policy = settings.policy(self.keep_alive_ms);
        if !self.may_concatenate {
            policy.secure_channel = SecureChannelPolicy::Never;
        }
        policy
    }
}

impl Session {
    /// A queue whose host is to begin now.
    pub(crate) fn new(
        settings: &Arc<HostAuthentication>,
        context: &SessionContext<'_>,
        is_admin: bool,
        channel: Channel,
        now: Nanos,
    ) -> Self {
        let identities = Identities {
            host_nqn: context.host_nqn.to_owned(),
            subsystem_nqn: context.subsystem_nqn.to_owned(),
            is_admin,
            channel,
            host_keys: settings.host_keys(context.host_nqn),
            controller_key: settings.transformed_controller_key(context.subsystem_nqn),
        };
        let policy = context.policy(settings);
        Self {
            responder: Responder::new(identities, policy, now.as_millis()),
            settings: Arc::clone(settings),
            phase: Phase::Idle,
            ends_at: None,
        }
    }

    /// Adopts the configuration's current settings. Returns false if a transaction is under way, which
    /// goes on with its own.
    pub(crate) fn adopt(
        &mut self,
        settings: &Arc<HostAuthentication>,
        context: &SessionContext<'_>,
    ) -> bool {
        let (host_keys, controller_key) = (
            settings.host_keys(context.host_nqn),
            settings.transformed_controller_key(context.subsystem_nqn),
        );
        let policy = context.policy(settings);
        let is_adopted = self.responder.configure(host_keys, controller_key, policy);
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

    /// The host's secret in a transaction that succeeded.
    pub(crate) fn secret_of(&self, authenticated: &Authenticated) -> Option<&NamedSecret> {
        self.settings.keys.get(authenticated.host_key)
    }

    /// The names of the keys of a transaction that succeeded.
    pub(crate) fn names_of(&self, authenticated: &Authenticated) -> (String, Option<String>) {
        let key = self.secret_of(authenticated);
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
