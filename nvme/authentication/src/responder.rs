//! The controller's side of one queue.
//!
//! Owns the state of the queue's transaction. The sequence is AUTH_Negotiate,
//! DH-HMAC-CHAP_Challenge, DH-HMAC-CHAP_Reply, DH-HMAC-CHAP_Success1, and DH-HMAC-CHAP_Success2 if
//! the host authenticates the controller (Base 2.1 §8.3.4.4.1 to §8.3.4.5.6). After a transaction,
//! the host may begin another one at any time.

use arrayvec::ArrayVec;
use nvme_spec::authentication::{
    Challenge, MessageId, MessageType, Negotiate, Reply, SecureChannel, Success1, Success2,
};

use crate::exponentiation::{
    Exponent, Wanted, is_valid_public_value, no_exponent, random_exponent,
};
use crate::formulas::{Challenged, Side};
use crate::random::SequenceNumbers;
use crate::{
    Action, Authenticated, Channel, Computed, Exponentiation, Failure, GeneratedPsk, Group,
    HOST_KEYS_MAX, Hash, Key, MESSAGE_BYTES_MAX, Policy, ProposedNullGroup, Queue, Random,
    SecureChannelPolicy, Violation, formulas, message,
};

/// What AUTH_Negotiate determined.
#[derive(Clone, Copy, Debug)]
struct Selected {
    transaction: u16,
    hash: Hash,
    group: Group,
    secure_channel: SecureChannel,
}

/// The challenge that the host must answer.
struct Sent {
    selected: Selected,
    challenge: Vec<u8>,
    sequence: u32,
    exponent: Exponent,
}

/// The host's answer.
struct Replied {
    sent: Sent,
    response: Vec<u8>,
    /// S2 and C2, if valid.
    challenge: Option<(u32, Vec<u8>)>,
}

enum State {
    /// Waits for AUTH_Negotiate.
    Idle,
    /// Waits for the result that has the public value.
    ComputingPublicValue(Selected),
    /// Waits for DH-HMAC-CHAP_Reply or AUTH_Failure2.
    Challenged(Sent),
    /// Waits for the result that has the session key.
    ComputingSessionKey(Replied),
    /// Waits for DH-HMAC-CHAP_Success2 or AUTH_Failure2.
    Succeeded(u16, Authenticated),
    /// The connection ends.
    Failed,
}

/// The controller's side of one queue.
pub struct Responder {
    queue: Queue,
    policy: Policy,
    state: State,
    sequence_numbers: SequenceNumbers,
    /// Number of the current transaction.
    generation: u64,
    /// Transaction identifier of the last message that began a transaction.
    transaction: u16,
    deadline_ms: Option<u64>,
}

impl Responder {
    /// The side of a queue whose host must begin to authenticate at `now_ms`.
    pub fn new(queue: Queue, policy: Policy, now_ms: u64) -> Self {
        let deadline_ms = Some(now_ms.saturating_add(policy.transaction_ms_max));
        Self {
            queue,
            policy,
            state: State::Idle,
            sequence_numbers: SequenceNumbers::default(),
            generation: 0,
            transaction: 0,
            deadline_ms,
        }
    }

    /// Replaces the keys and the policy, for transactions that begin from now on. Returns false, and
    /// changes nothing, within a transaction.
    pub fn configure(
        &mut self,
        host_keys: ArrayVec<Key, HOST_KEYS_MAX>,
        controller_key: Option<Key>,
        policy: Policy,
    ) -> bool {
        let is_between = matches!(self.state, State::Idle);
        if is_between {
            self.queue.host_keys = host_keys;
            self.queue.controller_key = controller_key;
            self.policy = policy;
        }
        is_between
    }

    /// Ends the transaction because the host sent a message before it took the previous one of the
    /// controller.
    pub fn out_of_order(&mut self) -> Action {
        self.refuse(Violation::UnexpectedMessage)
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

    /// Takes a message of the host, the data of Authentication Send.
    pub fn receive(&mut self, message: &[u8], random: &mut dyn Random, now_ms: u64) -> Action {
        if let Some(action) = self.expire(now_ms) {
            return action;
        }
        let state = core::mem::replace(&mut self.state, State::Failed);
        self.step(state, message, random, now_ms)
            .unwrap_or_else(|violation| self.refuse(violation))
    }

    /// Takes the result of an exponentiation.
    pub fn computed(&mut self, result: &Computed, random: &mut dyn Random, now_ms: u64) -> Action {
        if result.generation != self.generation {
            return Action::Stale;
        }
        let state = core::mem::replace(&mut self.state, State::Failed);
        let next = match state {
            State::ComputingPublicValue(_) | State::ComputingSessionKey(_)
                if self.deadline_ms.is_some_and(|deadline| deadline <= now_ms) =>
            {
                Err(Violation::TimedOut)
            }
            State::ComputingPublicValue(selected) => self.challenge(selected, result, random),
            State::ComputingSessionKey(replied) => self.verify(replied, &result.session_key),
            other @ (State::Idle | State::Challenged(_) | State::Succeeded(..) | State::Failed) => {
                self.state = other;
                return Action::Stale;
            }
        };
        next.unwrap_or_else(|violation| self.refuse(violation))
    }

    /// The transitions by messages; the state is [`State::Failed`] unless the step sets another.
    fn step(
        &mut self,
        state: State,
        message: &[u8],
        random: &mut dyn Random,
        now_ms: u64,
    ) -> Result<Action, Violation> {
        let header = message::header(message)?;
        if matches!(state, State::Idle) {
            self.transaction = header.transaction.get();
        }
        if message.len() > MESSAGE_BYTES_MAX {
            return Err(Violation::Length);
        }
        let is = |message_type, id| message::is(&header, message_type, id);
        let is_refusal = is(MessageType::COMMON, MessageId::FAILURE2);
        match state {
            State::Idle if is(MessageType::COMMON, MessageId::NEGOTIATE) => {
                let limit_ms = self.policy.transaction_ms_max;
                // The first transaction began with the connection.
                self.deadline_ms
                    .get_or_insert_with(|| now_ms.saturating_add(limit_ms));
                self.negotiate(message, random)
            }
            State::Challenged(_) | State::Succeeded(..) if is_refusal => {
                let failure = message::refusal(message, self.transaction)?;
                self.deadline_ms = None;
                Ok(Action::Fail(failure))
            }
            State::Challenged(sent) if is(MessageType::DH_HMAC_CHAP, MessageId::REPLY) => {
                self.reply(sent, message)
            }
            State::Succeeded(transaction, authenticated)
                if is(MessageType::DH_HMAC_CHAP, MessageId::SUCCESS2) =>
            {
                if header.transaction.get() != transaction {
                    return Err(Violation::Transaction);
                }
                if message.len() != size_of::<Success2>() {
                    return Err(Violation::Length);
                }
                self.finish();
                Ok(Action::Finish(authenticated))
            }
            State::Idle
            | State::ComputingPublicValue(_)
            | State::Challenged(_)
            | State::ComputingSessionKey(_)
            | State::Succeeded(..)
            | State::Failed => Err(Violation::UnexpectedMessage),
        }
    }

    fn negotiate(&mut self, message: &[u8], random: &mut dyn Random) -> Result<Action, Violation> {
        let negotiate: Negotiate = message::fixed(message)?;
        let descriptor = message::descriptor(message, &negotiate)?;
        let hashes = descriptor.hashes().ok_or(Violation::Lists)?;
        let groups = descriptor.groups().ok_or(Violation::Lists)?;
        let secure_channel = negotiate.secure_channel;
        self.check_secure_channel(secure_channel)?;
        let concatenates = secure_channel != SecureChannel::NONE;
        // Base 2.1 §8.3.4.5.2.
        if concatenates
            && self.policy.proposed_null_group == ProposedNullGroup::Refuse
            && groups.contains(&Group::Null.id())
        {
            return Err(Violation::Group);
        }
        let hash = self
            .policy
            .hashes
            .iter()
            .copied()
            .find(|hash| hashes.contains(&hash.id()) && (hash.has_tls_psk() || !concatenates));
        let group =
            self.policy.groups.iter().copied().find(|group| {
                groups.contains(&group.id()) && (*group != Group::Null || !concatenates)
            });
        let selected = Selected {
            transaction: self.transaction,
            hash: hash.ok_or(Violation::Hash)?,
            group: group.ok_or(Violation::Group)?,
            secure_channel,
        };
        self.generation += 1;
        let exponent = random_exponent(selected.group, random)?;
        let exponentiation = Exponentiation {
            generation: self.generation,
            group: selected.group,
            exponent,
            wanted: Wanted::PublicValue,
        };
        if selected.group == Group::Null {
            return self.challenge(selected, &exponentiation.run(), random);
        }
        self.state = State::ComputingPublicValue(selected);
        Ok(Action::Compute(exponentiation))
    }

    /// Base 2.1 §8.3.4.4.1: a new PSK only without TLS, a replacement only with TLS, and both only
    /// on admin queues.
    fn check_secure_channel(&self, requested: SecureChannel) -> Result<(), Violation> {
        let Queue {
            is_admin, channel, ..
        } = self.queue;
        let policy = self.policy.secure_channel;
        let is_permitted = policy != SecureChannelPolicy::Never && is_admin;
        let is_right = match (requested, channel) {
            (SecureChannel::NONE, Channel::Tls) => true,
            (SecureChannel::NONE, Channel::Plain) => {
                policy != SecureChannelPolicy::Required || !is_admin
            }
            (SecureChannel::NEW_TLS_PSK, Channel::Plain)
            | (SecureChannel::REPLACE_TLS_PSK, Channel::Tls) => is_permitted,
            _ => false,
        };
        is_right.then_some(()).ok_or(Violation::SecureChannel)
    }

    fn challenge(
        &mut self,
        selected: Selected,
        result: &Computed,
        random: &mut dyn Random,
    ) -> Result<Action, Violation> {
        let Selected { hash, group, .. } = selected;
        let mut challenge = vec![0; usize::from(hash.bytes())];
        random.fill(&mut challenge)?;
        let sequence = self.sequence_numbers.next(random)?;
        let fixed = Challenge::new(
            selected.transaction,
            (hash.id(), hash.bytes()),
            (group.id(), group.public_value_len()),
            sequence,
        );
        let message = message::join(&fixed, &[&challenge, &result.public_value]);
        self.state = State::Challenged(Sent {
            selected,
            challenge,
            sequence,
            exponent: result.exponent.clone(),
        });
        Ok(Action::Send(message))
    }

    fn reply(&mut self, mut sent: Sent, message: &[u8]) -> Result<Action, Violation> {
        let reply: Reply = message::fixed(message)?;
        let Selected { hash, group, .. } = sent.selected;
        if reply.header.transaction.get() != self.transaction {
            return Err(Violation::Transaction);
        }
        if reply.hash_len != hash.bytes() {
            return Err(Violation::HashLength);
        }
        if reply.public_value_len.get() != group.public_value_len() {
            return Err(Violation::PublicValue);
        }
        let is_challenge_valid = message::flag(reply.challenge_valid)?;
        let lengths = [
            usize::from(hash.bytes()),
            usize::from(hash.bytes()),
            usize::from(group.public_value_len()),
        ];
        let ([response, challenge, public_value], rest) =
            message::values::<Reply, 3>(message, lengths)?;
        if !rest.is_empty() {
            return Err(Violation::Length);
        }
        if !is_valid_public_value(group, public_value) {
            return Err(Violation::PublicValue);
        }
        let sequence = reply.sequence.get();
        let concatenates = sent.selected.secure_channel != SecureChannel::NONE;
        if is_challenge_valid && sequence == 0 && !concatenates {
            return Err(Violation::SequenceNumber);
        }
        if concatenates && !is_challenge_valid {
            return Err(Violation::NoChallenge);
        }
        if is_challenge_valid && challenge == sent.challenge {
            return Err(Violation::CopiedChallenge);
        }
        let exponent = core::mem::replace(&mut sent.exponent, no_exponent());
        let replied = Replied {
            sent,
            response: response.to_vec(),
            challenge: is_challenge_valid.then(|| (sequence, challenge.to_vec())),
        };
        if group == Group::Null {
            return self.verify(replied, &[]);
        }
        self.state = State::ComputingSessionKey(replied);
        Ok(Action::Compute(Exponentiation {
            generation: self.generation,
            group,
            exponent,
            wanted: Wanted::SessionKey(hash, public_value.to_vec()),
        }))
    }

    /// Verifies R1 and answers C2.
    fn verify(&mut self, replied: Replied, session_key: &[u8]) -> Result<Action, Violation> {
        let Replied {
            sent,
            response,
            challenge,
        } = replied;
        let selected = sent.selected;
        let Selected {
            transaction, hash, ..
        } = selected;
        let challenged = |challenge, sequence| Challenged {
            hash,
            session_key,
            challenge,
            sequence,
            transaction,
            secure_channel: selected.secure_channel,
        };
        let of = challenged(&sent.challenge, sent.sequence);
        if self.queue.host_keys.is_empty() {
            return Err(Violation::NoHostKey);
        }
        let is_right = |key: &Key| {
            let expected = formulas::response(Side::Host, key, &self.queue, &of);
            formulas::is_equal(&expected, &response)
        };
        let host_key = self.queue.host_keys.iter().position(is_right);
        let host_key = host_key.ok_or(Violation::WrongResponse)?;
        let to_answer = challenge.as_ref().filter(|(sequence, _)| *sequence != 0);
        let answer = match (to_answer, &self.queue.controller_key) {
            (None, _) => None,
            (Some(_), None) => return Err(Violation::NoControllerKey),
            (Some((sequence, challenge)), Some(key)) => {
                let of = challenged(challenge, *sequence);
                Some(formulas::response(Side::Controller, key, &self.queue, &of))
            }
        };
        let psk = match &challenge {
            Some((_, theirs)) if selected.secure_channel != SecureChannel::NONE => {
                Some(GeneratedPsk {
                    secure_channel: selected.secure_channel,
                    hash,
                    bytes: formulas::keyed_hash(hash, session_key, &[&sent.challenge, theirs]),
                })
            }
            _ => None,
        };
        let authenticated = Authenticated {
            hash,
            group: selected.group,
            bidirectional: answer.is_some(),
            host_key,
            psk,
        };
        let fixed = Success1::new(transaction, hash.bytes(), answer.is_some());
        if let Some(answer) = answer {
            self.state = State::Succeeded(transaction, authenticated);
            return Ok(Action::Send(message::join(&fixed, &[&answer])));
        }
        self.finish();
        let message = message::join(&fixed, &[&vec![0; usize::from(hash.bytes())]]);
        Ok(Action::SendAndFinish(message, authenticated))
    }

    fn finish(&mut self) {
        self.state = State::Idle;
        self.deadline_ms = None;
    }

    fn refuse(&mut self, violation: Violation) -> Action {
        self.state = State::Failed;
        self.deadline_ms = None;
        let explanation = violation.explanation();
        let message = message::failure(MessageId::FAILURE1, self.transaction, explanation);
        Action::SendAndFail(message, Failure::Refused(violation))
    }
}
