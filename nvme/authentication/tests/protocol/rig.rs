//! Both sides of one queue, connected by calls.

use nvme_authentication::{
    Action, Authenticated, Channel, Computed, Exponentiation, Failure, Group, Hash, Initiator, Key,
    Policy, ProposedNullGroup, Queue, Responder, SecureChannelPolicy, SystemRandom,
};

pub(crate) const TRANSACTION: u16 = 0x1234;

pub(crate) fn queue(has_controller_key: bool) -> Queue {
    Queue {
        host_nqn: "nqn.2014-08.org.example:host".into(),
        subsystem_nqn: "nqn.2014-08.org.example:subsystem".into(),
        is_admin: true,
        channel: Channel::Plain,
        host_keys: [Key::new(&[1; 32]).unwrap()].into_iter().collect(),
        controller_key: has_controller_key.then(|| Key::new(&[2; 48]).unwrap()),
    }
}

pub(crate) fn policy(hash: Hash, group: Group, secure_channel: SecureChannelPolicy) -> Policy {
    Policy {
        hashes: [hash].into_iter().collect(),
        groups: [group].into_iter().collect(),
        secure_channel,
        proposed_null_group: ProposedNullGroup::Refuse,
        transaction_ms_max: 1000,
    }
}

pub(crate) trait Side {
    fn take(&mut self, message: &[u8]) -> Action;
    fn give(&mut self, result: &Computed) -> Action;

    /// Takes a message, and runs the exponentiation that follows from it.
    fn take_and_compute(&mut self, message: &[u8]) -> Action {
        match self.take(message) {
            Action::Compute(exponentiation) => self.give(&exponentiation.run()),
            other => other,
        }
    }
}

impl Side for Responder {
    fn take(&mut self, message: &[u8]) -> Action {
        self.receive(message, &mut SystemRandom, 1)
    }

    fn give(&mut self, result: &Computed) -> Action {
        self.computed(result, &mut SystemRandom, 1)
    }
}

impl Side for Initiator {
    fn take(&mut self, message: &[u8]) -> Action {
        self.receive(message, &mut SystemRandom, 1)
    }

    fn give(&mut self, result: &Computed) -> Action {
        self.computed(result, &mut SystemRandom, 1)
    }
}

pub(crate) struct Rig {
    pub(crate) host: Initiator,
    pub(crate) controller: Responder,
    pub(crate) transaction: u16,
}

/// How an exchange ended on each side.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) host: Option<Result<Authenticated, Failure>>,
    pub(crate) controller: Option<Result<Authenticated, Failure>>,
}

impl Rig {
    pub(crate) fn new(host: (Queue, Policy), controller: (Queue, Policy)) -> Self {
        Self {
            host: Initiator::new(host.0, host.1),
            controller: Responder::new(controller.0, controller.1, 0),
            transaction: TRANSACTION,
        }
    }

    pub(crate) fn same(queue: &Queue, policy: &Policy) -> Self {
        let side = || (queue.clone(), policy.clone());
        Self::new(side(), side())
    }

    /// The host's first message.
    pub(crate) fn negotiate(&mut self) -> Vec<u8> {
        sent(self.host.start(self.transaction, 1))
    }

    /// Runs a transaction; `change` may alter each message.
    pub(crate) fn run(&mut self, mut change: impl FnMut(usize, &mut Vec<u8>)) -> Outcome {
        let mut outcome = Outcome::default();
        let mut message = Some(self.negotiate());
        let mut is_last = false;
        for index in 0.. {
            let Some(mut bytes) = message.take() else {
                break;
            };
            change(index, &mut bytes);
            let is_to_controller = index % 2 == 0;
            let (action, result) = if is_to_controller {
                let action = self.controller.take_and_compute(&bytes);
                (action, &mut outcome.controller)
            } else {
                (self.host.take_and_compute(&bytes), &mut outcome.host)
            };
            let (next, ended) = match action {
                Action::Send(message) => (Some(message), None),
                Action::SendAndFinish(message, success) => (Some(message), Some(Ok(success))),
                Action::Finish(success) => (None, Some(Ok(success))),
                Action::SendAndFail(message, failure) => (Some(message), Some(Err(failure))),
                Action::Fail(failure) => (None, Some(Err(failure))),
                Action::Compute(_) | Action::Stale => panic!("an exponentiation has run"),
            };
            let has_failed = matches!(ended, Some(Err(_)));
            *result = ended;
            // The message of a failure is the last one.
            if is_last {
                break;
            }
            is_last = has_failed;
            message = next;
        }
        outcome
    }
}

pub(crate) fn sent(action: Action) -> Vec<u8> {
    match action {
        Action::Send(message) => message,
        other => panic!("expected a message: {other:?}"),
    }
}

pub(crate) fn exponentiation(action: Action) -> Exponentiation {
    match action {
        Action::Compute(exponentiation) => exponentiation,
        other => panic!("expected an exponentiation: {other:?}"),
    }
}
