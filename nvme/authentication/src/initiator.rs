//! The host's side of one queue.
//!
//! Owns the state of the queue's transaction; see [`crate::Responder`] for the sequence.
//!
//! The data of Authentication Receive has the length of the host's buffer, so bytes behind a
//! message are ignored.

use nvme_spec::authentication::{
    Challenge, GroupId, HashId, MessageId, MessageType, Negotiate, ProtocolDescriptor, Reply,
    SecureChannel, Success1, Success2,
};
use zeroize::Zeroizing;

use crate::exponentiation::{Wanted, is_valid_public_value, no_exponent, random_exponent};
use crate::formulas::{Challenged, Side};
use crate::random::SequenceNumbers;
use crate::{
    Action, Authenticated, Channel, Computed, Exponentiation, Failure, GeneratedPsk, Group, Hash,
    Policy, Queue, Random, SecureChannelPolicy, Violation, formulas, message,
};

/// The controller's challenge.
struct Received {
    hash: Hash,
    group: Group,
    challenge: Vec<u8>,
    sequence: u32,
}

/// The reply that the controller must answer.
struct Replied {
    authenticated: Authenticated,
    /// R2, if the controller must authenticate itself.
    expected: Option<Zeroizing<Vec<u8>>>,
}

enum State {
    /// Waits for [`Initiator::start`].
    Idle,
    /// Waits for DH-HMAC-CHAP_Challenge or AUTH_Failure1.
    Negotiating,
    /// Waits for the result that has the public value and the session key.
    Computing(Received),
    /// Waits for DH-HMAC-CHAP_Success1 or AUTH_Failure1.
    Replied(Replied),
    /// The connection ends.
    Failed,
}

/// The host's side of one queue.
pub struct Initiator {
    queue: Queue,
    policy: Policy,
    state: State,
    sequence_numbers: SequenceNumbers,
    transaction: u16,
    secure_channel: SecureChannel,
    /// Number of the current transaction.
    generation: u64,
    deadline_ms: Option<u64>,
}

impl Initiator {
    /// The side of a queue.
    pub fn new(queue: Queue, policy: Policy) -> Self {
        Self {
            queue,
            policy,
            state: State::Idle,
            sequence_numbers: SequenceNumbers::default(),
            transaction: 0,
            secure_channel: SecureChannel::NONE,
            generation: 0,
            deadline_ms: None,
        }
    }

    /// When [`Self::expire`] ends the transaction, milliseconds; `None` between transactions.
    pub fn deadline_ms(&self) -> Option<u64> {
        self.deadline_ms
    }

    /// Ends the transaction if its deadline has passed.
    pub fn expire(&mut self, now_ms: u64) -> Option<Action> {
        let is_late = self.deadline_ms.is_some_and(|deadline| deadline <= now_ms);
        is_late.then(|| self.refuse(Violation::TimedOut))
    }

    /// Begins a transaction with an identifier that no transaction of the association uses now.
    pub fn start(&mut self, transaction: u16, now_ms: u64) -> Action {
        if !matches!(self.state, State::Idle) {
            return self.refuse(Violation::UnexpectedMessage);
        }
        self.transaction = transaction;
        self.generation += 1;
        let limit_ms = self.policy.transaction_ms_max;
        self.deadline_ms = Some(now_ms.saturating_add(limit_ms));
        self.secure_channel = self.wanted_secure_channel();
        let (hashes, groups): (Vec<HashId>, Vec<GroupId>) = (
            self.hashes().map(Hash::id).collect(),
            self.groups().map(Group::id).collect(),
        );
        if hashes.is_empty() {
            return self.refuse(Violation::Hash);
        }
        let descriptor = ProtocolDescriptor::new(&hashes, &groups);
        let (Some(descriptor), false) = (descriptor, groups.is_empty()) else {
            return self.refuse(Violation::Group);
        };
        self.state = State::Negotiating;
        let fixed = Negotiate::new(transaction, self.secure_channel, 1);
        Action::Send(message::join(
            &fixed,
            &[zerocopy::IntoBytes::as_bytes(&descriptor)],
        ))
    }

    /// Takes a message of the controller, the data of Authentication Receive.
    pub fn receive(&mut self, message: &[u8], random: &mut dyn Random, now_ms: u64) -> Action {
        if let Some(action) = self.expire(now_ms) {
            return action;
        }
        let state = core::mem::replace(&mut self.state, State::Failed);
        self.step(state, message, random)
            .unwrap_or_else(|violation| self.refuse(violation))
    }

    /// Takes the result of an exponentiation.
    pub fn computed(&mut self, result: &Computed, random: &mut dyn Random, now_ms: u64) -> Action {
        if result.generation != self.generation {
            return Action::Stale;
        }
        match core::mem::replace(&mut self.state, State::Failed) {
            State::Computing(_) if self.deadline_ms.is_some_and(|it| it <= now_ms) => {
                self.refuse(Violation::TimedOut)
            }
            State::Computing(received) => self
                .reply(&received, result, random)
                .unwrap_or_else(|violation| self.refuse(violation)),
            other @ (State::Idle | State::Negotiating | State::Replied(_) | State::Failed) => {
                self.state = other;
                Action::Stale
            }
        }
    }

    /// The transitions by messages; the state is [`State::Failed`] unless the step sets another.
    fn step(
        &mut self,
        state: State,
        message: &[u8],
        random: &mut dyn Random,
    ) -> Result<Action, Violation> {
        let header = message::header(message)?;
        let is = |message_type, id| message::is(&header, message_type, id);
        let is_refusal = is(MessageType::COMMON, MessageId::FAILURE1);
        match state {
            State::Negotiating | State::Replied(_) if is_refusal => {
                let failure = message::refusal(message, self.transaction)?;
                self.deadline_ms = None;
                Ok(Action::Fail(failure))
            }
            State::Negotiating if is(MessageType::DH_HMAC_CHAP, MessageId::CHALLENGE) => {
                self.challenge(message, random)
            }
            State::Replied(replied) if is(MessageType::DH_HMAC_CHAP, MessageId::SUCCESS1) => {
                self.success(replied, message)
            }
            State::Idle
            | State::Negotiating
            | State::Computing(_)
            | State::Replied(_)
            | State::Failed => Err(Violation::UnexpectedMessage),
        }
    }

    fn wanted_secure_channel(&self) -> SecureChannel {
        match (self.policy.secure_channel, self.queue.channel) {
            (SecureChannelPolicy::Never, _) => SecureChannel::NONE,
            _ if !self.queue.is_admin => SecureChannel::NONE,
            (_, Channel::Plain) => SecureChannel::NEW_TLS_PSK,
            (_, Channel::Tls) => SecureChannel::REPLACE_TLS_PSK,
        }
    }

    fn concatenates(&self) -> bool {
        self.secure_channel != SecureChannel::NONE
    }

    /// The hash functions to propose.
    fn hashes(&self) -> impl Iterator<Item = Hash> {
        let concatenates = self.concatenates();
        let hashes = self.policy.hashes.iter().copied();
        hashes.filter(move |hash| hash.has_tls_psk() || !concatenates)
    }

    /// The groups to propose. The null group must not be proposed with a secure channel (Base 2.1
    /// §8.3.4.5.2).
    fn groups(&self) -> impl Iterator<Item = Group> {
        let concatenates = self.concatenates();
        let groups = self.policy.groups.iter().copied();
        groups.filter(move |group| *group != Group::Null || !concatenates)
    }

    fn challenge(&mut self, message: &[u8], random: &mut dyn Random) -> Result<Action, Violation> {
        let fixed: Challenge = message::fixed(message)?;
        if fixed.header.transaction.get() != self.transaction {
            return Err(Violation::Transaction);
        }
        let hash = self.hashes().find(|hash| hash.id() == fixed.hash);
        let hash = hash.ok_or(Violation::Hash)?;
        let group = self.groups().find(|group| group.id() == fixed.group);
        let group = group.ok_or(Violation::Group)?;
        if fixed.hash_len != hash.bytes() {
            return Err(Violation::HashLength);
        }
        if fixed.public_value_len.get() != group.public_value_len() {
            return Err(Violation::PublicValue);
        }
        let lengths = [
            usize::from(hash.bytes()),
            usize::from(group.public_value_len()),
        ];
        let ([challenge, public_value], _) = message::values::<Challenge, 2>(message, lengths)?;
        if !is_valid_public_value(group, public_value) {
            return Err(Violation::PublicValue);
        }
        if fixed.sequence.get() == 0 {
            return Err(Violation::SequenceNumber);
        }
        let received = Received {
            hash,
            group,
            challenge: challenge.to_vec(),
            sequence: fixed.sequence.get(),
        };
        if group == Group::Null {
            let nothing = Computed {
                generation: self.generation,
                exponent: no_exponent(),
                public_value: Vec::new(),
                session_key: Zeroizing::default(),
            };
            return self.reply(&received, &nothing, random);
        }
        let exponent = random_exponent(group, random)?;
        self.state = State::Computing(received);
        Ok(Action::Compute(Exponentiation {
            generation: self.generation,
            group,
            exponent,
            wanted: Wanted::Both(hash, public_value.to_vec()),
        }))
    }

    /// Answers C1, and challenges the controller if it has a key.
    fn reply(
        &mut self,
        received: &Received,
        result: &Computed,
        random: &mut dyn Random,
    ) -> Result<Action, Violation> {
        let hash = received.hash;
        let hash_bytes = usize::from(hash.bytes());
        let (transaction, secure_channel) = (self.transaction, self.secure_channel);
        let challenged = |challenge, sequence| Challenged {
            hash,
            session_key: &result.session_key,
            challenge,
            sequence,
            transaction,
            secure_channel,
        };
        let of = challenged(&received.challenge, received.sequence);
        let key = self.queue.host_keys.first().ok_or(Violation::NoHostKey)?;
        let response = formulas::response(Side::Host, key, &self.queue, &of);
        let mut challenge = vec![0; hash_bytes];
        let is_valid = self.queue.controller_key.is_some() || self.concatenates();
        if is_valid {
            random.fill(&mut challenge)?;
            if challenge == received.challenge {
                return Err(Violation::CopiedChallenge);
            }
        }
        let sequence = match &self.queue.controller_key {
            Some(_) => self.sequence_numbers.next(random)?,
            None => 0,
        };
        let expected = self.queue.controller_key.as_ref().map(|key| {
            let of = challenged(&challenge, sequence);
            formulas::response(Side::Controller, key, &self.queue, &of)
        });
        let psk = self.concatenates().then(|| GeneratedPsk {
            secure_channel: self.secure_channel,
            hash,
            bytes: formulas::keyed_hash(
                hash,
                &result.session_key,
                &[&received.challenge, &challenge],
            ),
        });
        let public_value_len = received.group.public_value_len();
        let fixed = Reply::new(
            self.transaction,
            hash.bytes(),
            is_valid,
            public_value_len,
            sequence,
        );
        let message = message::join(&fixed, &[&response, &challenge, &result.public_value]);
        self.state = State::Replied(Replied {
            authenticated: Authenticated {
                hash,
                group: received.group,
                bidirectional: expected.is_some(),
                host_key: 0,
                psk,
            },
            expected,
        });
        Ok(Action::Send(message))
    }

    fn success(&mut self, replied: Replied, message: &[u8]) -> Result<Action, Violation> {
        let fixed: Success1 = message::fixed(message)?;
        let hash = replied.authenticated.hash;
        if fixed.header.transaction.get() != self.transaction {
            return Err(Violation::Transaction);
        }
        if fixed.hash_len != hash.bytes() {
            return Err(Violation::HashLength);
        }
        let is_response_valid = message::flag(fixed.response_valid)?;
        let lengths = [usize::from(hash.bytes())];
        let ([response], _) = message::values::<Success1, 1>(message, lengths)?;
        let authenticated = replied.authenticated;
        match (replied.expected, is_response_valid) {
            (None, false) => {
                self.finish();
                Ok(Action::Finish(authenticated))
            }
            // A response that was not requested cannot be verified.
            (None, true) => Err(Violation::ReservedValue),
            (Some(_), false) => Err(Violation::NoResponse),
            (Some(expected), true) if formulas::is_equal(&expected, response) => {
                self.finish();
                let message = message::join(&Success2::new(self.transaction), &[]);
                Ok(Action::SendAndFinish(message, authenticated))
            }
            (Some(_), true) => Err(Violation::WrongResponse),
        }
    }

    fn finish(&mut self) {
        self.state = State::Idle;
        self.deadline_ms = None;
    }

    fn refuse(&mut self, violation: Violation) -> Action {
        self.state = State::Failed;
        self.deadline_ms = None;
        let explanation = violation.explanation();
        let message = message::failure(MessageId::FAILURE2, self.transaction, explanation);
        Action::SendAndFail(message, Failure::Refused(violation))
    }
}
