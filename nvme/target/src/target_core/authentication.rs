//! Authentication Send and Authentication Receive (Base 2.1 §6.1, §6.2), on every queue.
//!
//! A Send whose message needs an exponentiation completes when the thread of the exponentiations has
//! computed it; the reactor does not wait. A Send whose message is refused completes after a delay,
//! and the connection ends when the host has taken the message of the failure.

mod session;

use std::sync::Arc;

use hugemem::Lease;
use nvme_authentication::{Action, Authenticated, Channel, Failure, GeneratedPsk, Group, Hash};
use nvme_handover::QueueRecord;
use nvme_keys::{GeneratedKey, PskHash};
use nvme_spec::authentication::{GroupId, HashId};
use nvme_spec::fabrics::FabricsType;
use nvme_spec::{Sqe, Status};
use reactors::Nanos;

use super::executions::Command;
use super::queue::Queue;
use super::{FailedCommand, TargetCore};
use crate::authentication::{
    HostAuthentication, Job, NamedSecret, Origin, QueueAuthentication, advice,
};
use crate::generated_keys::{GeneratedKeys, Generation};
use crate::interface::{Admission, CloseReason, Completed, Direction, QueueId, Work, WorkKind};
use crate::io::{DataContext, data_source};
use crate::revocation::has_queue_with;
use crate::secure_channel::{KeyOwner, SecureChannel};
use crate::status::{Fault, byte};
use crate::view::TargetView;
pub(crate) use session::{After, Phase, Session, SessionContext, Standing};

/// How long the response to a refused message is held back, so that a host that tries keys makes
/// few attempts on a connection. Only its own queue waits.
const FAILURE_DELAY: Nanos = Nanos::from_millis(100);

/// How long a host may take for the message of a failure, before its connection ends without it.
const FAILURE_TAKEN_MAX: Nanos = Nanos::from_secs(2);

/// Largest buffer of Authentication Receive in bytes. Linux uses 4096.
const RECEIVE_BYTES_MAX: u32 = 8192;

/// Longest message that a host may send, bytes.
const SEND_BYTES_MAX: u32 = nvme_authentication::MESSAGE_BYTES_MAX as u32;

/// Byte of Authentication Send and Receive with the security protocol fields, for the error log.
const SECURITY_PROTOCOL_BYTE: u16 = 40;

/// An admitted Authentication Send or Receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthenticationWork {
    Send,
    Receive,
}

/// Whether a command is Authentication Send or Receive.
pub(super) fn is_authentication(sqe: &Sqe) -> bool {
    let (send, receive) = (
        FabricsType::AUTHENTICATION_SEND,
        FabricsType::AUTHENTICATION_RECEIVE,
    );
    sqe.is_fabrics() && (sqe.fctype() == send || sqe.fctype() == receive)
}

/// The refusal of other commands before the host is authenticated (Base 2.1 §6.3, ATR).
pub(super) const AUTHENTICATION_REQUIRED: Fault = Fault::new(Status::AUTHENTICATION_REQUIRED);

/// What the configuration has for a queue's host.
fn settings<'a>(queue: &Queue, view: &'a TargetView) -> Option<&'a Arc<HostAuthentication>> {
    let identity = &queue.shared.identity;
    view.host_authentication(identity.subsystem, &identity.host_nqn)
}

fn context<'a>(queue: &'a Queue, view: &TargetView) -> SessionContext<'a> {
    let identity = &queue.shared.identity;
    SessionContext {
        host_nqn: &identity.host_nqn,
        subsystem_nqn: &identity.subsystem_nqn,
        keep_alive_ms: identity.keep_alive_ms,
        may_concatenate: view.may_concatenate(identity.port, settings(queue, view)),
    }
}

/// The transactions of a queue whose host is to begin now.
fn new_session(
    queue: &Queue,
    settings: &Arc<HostAuthentication>,
    view: &TargetView,
    now: Nanos,
) -> Box<Session> {
    let is_admin = queue.controller().is_some();
    let channel = match queue.shared.identity.is_secure {
        true => Channel::Tls,
        false => Channel::Plain,
    };
    let session = Session::new(settings, &context(queue, view), is_admin, channel, now);
    Box::new(session)
}

impl TargetCore {
    /// Prepares a new queue for what the configuration demands of its host over a channel.
    pub(super) fn prepare_authentication(
        &self,
        queue: &mut Queue,
        channel: Option<&SecureChannel>,
        now: Nanos,
    ) {
        let settings = settings(queue, &self.view);
        let Some(settings) = settings.filter(|it| it.is_required_over(channel)) else {
            return;
        };
        queue.standing = Standing::Required;
        queue.gate = queue.gate.unauthenticated();
        queue.session = Some(new_session(queue, settings, &self.view, now));
    }

    /// How the host of a queue of an earlier process was authenticated; `None` if it was not.
    pub(super) fn restored_authentication(
        record: &QueueRecord,
        exported_at: Nanos,
    ) -> Result<Option<QueueAuthentication>, &'static str> {
        let Some(authenticated) = &record.authentication else {
            return Ok(None);
        };
        let hash = Hash::from_id(HashId(authenticated.hash));
        let group = Group::from_id(GroupId(authenticated.group));
        let (hash, group) = hash.zip(group).ok_or("its authentication is unknown")?;
        Ok(Some(QueueAuthentication {
            hash,
            group,
            key: authenticated.key.clone(),
            controller_key: authenticated.controller_key.clone(),
            since: Nanos(exported_at.as_nanos().saturating_sub(authenticated.age_ns)),
        }))
    }

    /// Whether a queue's host can authenticate itself.
    pub(super) fn may_authenticate(&self, queue: &Queue) -> bool {
        settings(queue, &self.view).is_some()
    }

    /// Checks an Authentication Send or Receive.
    pub(super) fn admit_authentication(
        &mut self,
        slot: u32,
        sqe: &Sqe,
    ) -> Result<Admission, Fault> {
        let Some(queue) = self.queues.at_mut(slot) else {
            return Err(Fault::retry(Status::ABORTED_SQ_DELETION));
        };
        if queue.session.is_none() && settings(queue, &self.view).is_none() {
            // The host has no key, so the controller does not support the command for it.
            return Err(Fault::new(Status::INVALID_OPCODE).at(byte::NSID));
        }
        let fields = sqe.authentication();
        // Base 2.1 §6.1, §6.2: other security protocols are not supported.
        if !fields.is_in_band() {
            return Err(Fault::field(SECURITY_PROTOCOL_BYTE));
        }
        let (kind, direction, bytes_max) = match sqe.fctype() {
            FabricsType::AUTHENTICATION_SEND => (
                AuthenticationWork::Send,
                Direction::FromHost,
                SEND_BYTES_MAX,
            ),
            _ => (
                AuthenticationWork::Receive,
                Direction::ToHost,
                RECEIVE_BYTES_MAX,
            ),
        };
        let bytes = fields.length.get();
        if !(1..=bytes_max).contains(&bytes) {
            return Err(Fault::field(byte::CDW11));
        }
        let data = DataContext {
            in_capsule_max: match queue.data.keyed {
                true => queue.data.in_capsule_max,
                false => crate::ADMIN_IN_CAPSULE_MAX_BYTES,
            },
            ..queue.data
        };
        let (source, length) = data_source(sqe, direction, data)?;
        let fits = length.is_none_or(|length| match direction {
            Direction::FromHost => length == bytes,
            Direction::ToHost | Direction::None => length >= bytes,
        });
        if !fits {
            return Err(Fault::new(Status::DATA_SGL_LENGTH_INVALID).at(byte::SGL));
        }
        queue.outstanding_commands += 1;
        let kind = WorkKind::Authentication(kind);
        let work = Work::with_lease(kind, sqe, direction, bytes, source);
        Ok(Admission::Work(work))
    }

    /// Executes an Authentication Send or Receive. A Send may complete later.
    pub(super) fn execute_authentication(
        &mut self,
        command: Command,
        work: AuthenticationWork,
        data: Lease,
        now: Nanos,
    ) -> Option<Completed> {
        match work {
            AuthenticationWork::Send => self.execute_send(command, &data, now),
            AuthenticationWork::Receive => Some(self.execute_receive(command, data, now)),
        }
    }

    fn execute_send(&mut self, command: Command, message: &[u8], now: Nanos) -> Option<Completed> {
        let slot = command.queue;
        let Some(queue) = self.queues.at_mut(slot) else {
            return Some(self.refuse_authentication(command));
        };
        let settings = settings(queue, &self.view);
        if queue.session.is_none() {
            let session = settings.map(|settings| new_session(queue, settings, &self.view, now));
            queue.session = session;
        }
        let Some(mut session) = queue.session.take() else {
            return Some(self.refuse_authentication(command));
        };
        if let Some(settings) = settings {
            session.adopt(settings, &context(queue, &self.view));
        }
        let action = session.receive(message, now);
        // Only a message out of order finds another command.
        let phase = std::mem::replace(&mut session.phase, Phase::Idle);
        let (earlier, kept) = match (&action, phase) {
            (None, phase) => (None, Some(phase)),
            (Some(_), Phase::Computing(earlier)) => (Some(earlier), None),
            (Some(_), _) => (None, None),
        };
        if let Some(phase) = kept {
            session.phase = phase;
        }
        queue.session = Some(session);
        if let Some(earlier) = earlier {
            let completed = self.refuse_authentication(earlier);
            self.push_completion(slot, completed);
        }
        match action {
            Some(action) => self.take_action(slot, Some(command), action, now),
            None => Some(self.refuse_authentication(command)),
        }
    }

    fn execute_receive(&mut self, command: Command, mut data: Lease, now: Nanos) -> Completed {
        let slot = command.queue;
        let queue = self.queues.at_mut(slot);
        let session = queue.and_then(|queue| queue.session.as_mut());
        let Some(session) = session else {
            return self.refuse_authentication(command);
        };
        let fits = |message: &Vec<u8>| message.len() <= data.len();
        let (message, after) = match std::mem::replace(&mut session.phase, Phase::Idle) {
            Phase::Ready(message, after) if fits(&message) => (message, after),
            other => {
                let is_short = matches!(other, Phase::Ready(..));
                session.phase = other;
                let fault = match is_short {
                    true => Fault::field(byte::CDW11),
                    false => Fault::retry(Status::COMMAND_SEQUENCE_ERROR).at(byte::NSID),
                };
                return self.fail_command(command, &failed(command), fault);
            }
        };
        // Base 2.1 §6.2: the message, then zeroes up to the length of the buffer.
        data.fill(0);
        if let Some(start) = data.get_mut(..message.len()) {
            start.copy_from_slice(&message);
        }
        let completed = match self.queues.at_mut(slot) {
            Some(queue) => {
                let response = queue.respond(command.id, Status::SUCCESS);
                Completed::with_lease(command.tag, response, data)
            }
            None => return self.refuse_authentication(command),
        };
        self.command_completed(slot);
        match after {
            After::Continue => {}
            After::Success(authenticated) => self.authenticated(slot, &authenticated, now),
            After::End => self.end_authentication(slot),
        }
        self.watch_authentication(slot);
        completed
    }

    /// The completion of a command that does not fit the transaction's state.
    fn refuse_authentication(&mut self, command: Command) -> Completed {
        let fault = Fault::retry(Status::COMMAND_SEQUENCE_ERROR).at(byte::NSID);
        self.fail_command(command, &failed(command), fault)
    }

    /// The successful completion of an Authentication Send.
    fn complete_send(&mut self, command: Command) -> Completed {
        let Some(queue) = self.queues.at_mut(command.queue) else {
            return self.refuse_authentication(command);
        };
        let response = queue.respond(command.id, Status::SUCCESS);
        self.command_completed(command.queue);
        Completed::without_data(command.tag, response)
    }

    /// Carries out what a step of a transaction requires. `command` is the Send that caused it.
    fn take_action(
        &mut self,
        slot: u32,
        command: Option<Command>,
        action: Action,
        now: Nanos,
    ) -> Option<Completed> {
        let id = self.queue_id(slot);
        let reactor = self.reactor;
        let queue = self.queues.at_mut(slot)?;
        let origin = || Origin::new(queue.peer_address, &queue.shared.identity.host_nqn);
        let phase = match (action, command) {
            (Action::Compute(exponentiation), Some(command)) => {
                let job = Job {
                    reactor,
                    queue: id,
                    exponentiation,
                };
                self.target.exponentiations().add(origin(), job);
                self.set_phase(slot, Phase::Computing(command));
                self.watch_authentication(slot);
                return None;
            }
            (Action::Send(message), _) => Phase::Ready(message, After::Continue),
            (Action::SendAndFinish(message, authenticated), _) => {
                Phase::Ready(message, After::Success(authenticated))
            }
            (Action::Finish(authenticated), _) => {
                self.authenticated(slot, &authenticated, now);
                Phase::Idle
            }
            (Action::SendAndFail(message, failure), Some(command)) => {
                self.note_failure(slot, &failure, now);
                let until = now + FAILURE_DELAY;
                let phase = Phase::Delaying {
                    command,
                    message,
                    until,
                };
                self.set_phase(slot, phase);
                self.watch_authentication(slot);
                return None;
            }
            (Action::SendAndFail(_, failure), None) | (Action::Fail(failure), _) => {
                self.note_failure(slot, &failure, now);
                let completed = command.map(|command| self.complete_send(command));
                self.end_authentication(slot);
                return completed;
            }
            // A computation follows only from a message.
            (Action::Stale, _) | (Action::Compute(_), None) => return None,
        };
        self.set_phase(slot, phase);
        self.watch_authentication(slot);
        command.map(|command| self.complete_send(command))
    }

    fn set_phase(&mut self, slot: u32, phase: Phase) {
        let queue = self.queues.at_mut(slot);
        if let Some(session) = queue.and_then(|queue| queue.session.as_mut()) {
            session.phase = phase;
        }
    }

    /// Ends the connection of a queue whose transaction has failed.
    fn end_authentication(&mut self, slot: u32) {
        self.set_phase(slot, Phase::Over);
        self.end_queue(slot, CloseReason::AuthenticationFailed);
    }

    /// Opens a queue whose host is authenticated.
    fn authenticated(&mut self, slot: u32, authenticated: &Authenticated, now: Nanos) {
        let Some(queue) = self.queues.at_mut(slot) else {
            return;
        };
        let Some(session) = &queue.session else {
            return;
        };
        let (key, controller_key) = session.names_of(authenticated);
        let secret = session.secret_of(authenticated);
        queue.standing = match authenticated.psk.as_ref().zip(secret) {
            Some((psk, secret)) => {
                add_generated(self.target.generated_keys(), queue, psk, secret, now)
            }
            None => Standing::Authenticated,
        };
        queue.gate = queue.gate.authenticated();
        let identity = &queue.shared.identity;
        self.counters.authentications.add(1);
        tracing::debug!(
            host = %identity.host_nqn,
            export = %identity.subsystem_nqn,
            qid = queue.qid,
            key = %key,
            hash = ?authenticated.hash,
            group = ?authenticated.group,
            bidirectional = authenticated.bidirectional,
            "host authenticated"
        );
        let records = self.target.authentication_records();
        for name in [Some(&key), controller_key.as_ref()].into_iter().flatten() {
            records.add_use(name, now);
        }
        let record = QueueAuthentication {
            hash: authenticated.hash,
            group: authenticated.group,
            key,
            controller_key,
            since: now,
        };
        queue.shared.authentications().insert(queue.qid, record);
    }

    /// Counts and logs a failure.
    fn note_failure(&mut self, slot: u32, failure: &Failure, now: Nanos) {
        self.counters.authentications_failed.add(1);
        let Some(queue) = self.queues.at(slot) else {
            return;
        };
        let identity = &queue.shared.identity;
        let records = self.target.authentication_records();
        if records.is_logged(&identity.host_nqn, now) {
            let address = queue.peer_address;
            let address = address.map_or_else(|| "unknown".to_owned(), |it| it.to_string());
            tracing::warn!(
                "host {} at address {address}: authentication for {} on queue {} failed: \
                 {failure}: {}",
                identity.host_nqn,
                identity.subsystem_nqn,
                queue.qid,
                advice(failure)
            );
        }
    }

    /// Has the core's timer cover a queue's transaction.
    pub(super) fn watch_authentication(&mut self, slot: u32) {
        let session = self.queues.at(slot).and_then(|it| it.session.as_ref());
        let Some(deadline) = session.and_then(|session| session.deadline()) else {
            return;
        };
        let due = self.authentication_due.into_iter().chain([deadline]);
        self.authentication_due = due.min();
        self.set_core_timer();
    }

    /// Handles the results of exponentiations.
    pub(super) fn handle_computed(&mut self, now: Nanos) {
        for (id, computed) in self.target.exponentiations().take_results(self.reactor) {
            let QueueId { slot, generation } = id;
            let Some(queue) = self.queues.get_mut(slot, generation) else {
                continue;
            };
            let Some(session) = queue.session.as_mut() else {
                continue;
            };
            let Phase::Computing(command) = session.phase else {
                continue;
            };
            session.phase = Phase::Idle;
            let action = session.computed(&computed, now);
            if let Some(completed) = self.take_action(slot, Some(command), action, now) {
                self.push_completion(slot, completed);
            }
        }
    }

    /// Handles the deadlines of transactions. Returns the number of queues looked at.
    pub(super) fn check_authentications(&mut self, now: Nanos) -> usize {
        if self.authentication_due.is_none_or(|due| due > now) {
            return 0;
        }
        self.authentication_due = None;
        let mut looked_at = 0;
        for slot in 0..self.queues.capacity() {
            if self.queues.at(slot).is_some_and(|it| it.session.is_some()) {
                self.check_authentication(slot, now);
                self.watch_authentication(slot);
                looked_at += 1;
            }
        }
        looked_at
    }

    fn check_authentication(&mut self, slot: u32, now: Nanos) {
        let queue = self.queues.at_mut(slot);
        let Some(session) = queue.and_then(|queue| queue.session.as_mut()) else {
            return;
        };
        if session.is_overdue(now) {
            return self.end_authentication(slot);
        }
        match &mut session.phase {
            Phase::Delaying {
                command,
                message,
                until,
            } if *until <= now => {
                let (command, message) = (*command, std::mem::take(message));
                session.phase = Phase::Ready(message, After::End);
                session.end_at(now + FAILURE_TAKEN_MAX);
                let completed = self.complete_send(command);
                self.push_completion(slot, completed);
            }
            Phase::Over | Phase::Delaying { .. } => {}
            Phase::Idle | Phase::Computing(_) | Phase::Ready(..) => {
                let Some(action) = session.expire(now) else {
                    return;
                };
                let command = match std::mem::replace(&mut session.phase, Phase::Idle) {
                    Phase::Computing(command) => Some(command),
                    _ => None,
                };
                if let Some(completed) = self.take_action(slot, command, action, now) {
                    self.push_completion(slot, completed);
                }
            }
        }
    }

    /// Forgets the transaction of a queue whose connection is closed.
    pub(super) fn close_authentication(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(id.slot, id.generation) else {
            return;
        };
        queue.shared.authentications().remove(&queue.qid);
        queue.shared.channels().remove(&queue.qid);
        if queue.session.take().is_some() {
            self.target.exponentiations().cancel(self.reactor, id);
        }
    }

    /// Ends associations whose host has to authenticate itself, or to use a secure channel, since a
    /// change, and does not.
    pub(super) fn require_authentication(&mut self) {
        let mut is_changed = false;
        for slot in 0..self.queues.capacity() {
            let Some(queue) = self.queues.at(slot) else {
                continue;
            };
            let settings = settings(queue, &self.view);
            let is_unauthenticated = queue.standing == Standing::NotRequired
                && settings.is_some_and(|it| has_to_authenticate(queue, it));
            if is_unauthenticated || lacks_channel(queue, &self.view) {
                queue.shared.drain_association(CloseReason::Reconfigured);
                is_changed = true;
            }
        }
        if is_changed {
            // Other queues of the associations may be on any reactor.
            self.target.notify_all();
        }
    }

    /// Ends the associations that have a queue on this core with a key that was revoked after epoch
    /// `before`, and queues whose hosts are proving one.
    pub(super) fn end_revoked(&mut self, before: u32) {
        let view = Arc::clone(&self.view);
        for key in view.revocations.keys_after(before) {
            let mut is_changed = false;
            for slot in 0..self.queues.capacity() {
                let Some(queue) = self.queues.at_mut(slot) else {
                    continue;
                };
                if has_queue_with(&queue.shared, key) {
                    queue.shared.end(CloseReason::Revoked);
                    is_changed = true;
                } else if is_proving(queue, &view, key) {
                    self.end_queue(slot, CloseReason::Revoked);
                }
            }
            if is_changed {
                self.target.notify_all();
            }
        }
    }
}

/// Adds the key that a transaction of a queue has generated. Returns the standing of the queue.
fn add_generated(
    keys: &GeneratedKeys,
    queue: &Queue,
    psk: &GeneratedPsk,
    secret: &NamedSecret,
    now: Nanos,
) -> Standing {
    // The transaction had a hash function of TLS.
    let hash = PskHash::of_len(psk.bytes().len());
    let key = hash.and_then(|hash| GeneratedKey::new(hash, psk.bytes()).ok());
    let Some(key) = key else {
        return Standing::Authenticated;
    };
    let identity = &queue.shared.identity;
    let owner = Arc::new(KeyOwner {
        key: secret.name.clone(),
        host_nqn: identity.host_nqn.clone(),
        subsystem_nqn: identity.subsystem_nqn.clone(),
        generation: Some(Generation {
            secret: Arc::clone(&secret.secret),
            at: now,
        }),
    });
    if let Some(replaced) = queue.shared.channels().get(&queue.qid) {
        keys.remove(&replaced.channel.owner);
    }
    keys.add(&owner, &key, now);
    match identity.is_secure {
        true => Standing::Authenticated,
        false => Standing::Concatenated,
    }
}

/// Whether a queue has a transaction in which a revoked key can be proved. One that begins later
/// has the keys of `view`.
fn is_proving(queue: &mut Queue, view: &TargetView, key: &str) -> bool {
    let settings = settings(queue, view);
    let Some(mut session) = queue.session.take() else {
        return false;
    };
    let is_proving = session.has_key(key)
        && !settings.is_some_and(|settings| session.adopt(settings, &context(queue, view)));
    queue.session = Some(session);
    is_proving
}

/// Whether a queue's host has to authenticate itself over the queue's channel.
fn has_to_authenticate(queue: &Queue, settings: &HostAuthentication) -> bool {
    let channels = queue.shared.channels();
    let channel = channels.get(&queue.qid);
    settings.is_required_over(channel.map(|it| &*it.channel))
}

/// Whether a queue's host has to use a secure channel, and does not. An admin queue without one may
/// be about to generate the key for it.
fn lacks_channel(queue: &Queue, view: &TargetView) -> bool {
    let identity = &queue.shared.identity;
    if identity.is_secure || !view.needs_channel(identity.subsystem, &identity.host_nqn) {
        return false;
    }
    let is_concatenating = match queue.standing {
        Standing::Required | Standing::Concatenated => {
            queue.controller().is_some()
                && view.may_concatenate(identity.port, settings(queue, view))
        }
        Standing::NotRequired | Standing::Authenticated => false,
    };
    !is_concatenating
}

fn failed(command: Command) -> FailedCommand {
    FailedCommand {
        opcode: nvme_spec::command::AdminOpcode::FABRICS.0,
        command_id: command.id,
        nsid: 0,
        lba: 0,
    }
}
