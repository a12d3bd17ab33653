//! Authentication of queues by DH-HMAC-CHAP (Base 2.1 §8.3.4.5.2): after Connect if the controller
//! demands it, and again whenever the host wants.
//!
//! A host uses one of the keys that the configuration has for it, sometimes one that was replaced or
//! belongs to another host, and sends commands before it is authenticated.

use nvme_authentication::{
    Action, Channel, Failure, Group, Initiator, Key, Policy, Queue, RandomUnavailable,
};
use nvme_keys::ChapSecret;
use nvme_spec::fabrics::PropertySize;
use nvme_spec::registers::Register;
use nvme_spec::{Cqe, Sqe, Status};
use reactors::Nanos;

use super::connection::{Connection, Outstanding, Sending, Transfer};
use super::{Command, Host, HostEnv, LATENCY_MAX, Phase};
use crate::authentication::{VERSIONS, secret};
use crate::faults::Fault;
use crate::judge::Violation;
use crate::plan::{SUBSYSTEMS, host_name};
use crate::random::Random;

/// Buffer of Authentication Receive in bytes.
const RECEIVE_BYTES: u32 = 4096;
/// Probability of a wrong key, per thousand.
const WRONG_PERMILLE: u32 = 150;
/// Probability of a command before the authentication, per thousand.
const PREMATURE_PERMILLE: u32 = 300;
/// The longest transaction if the host has no Keep Alive Timeout.
const TRANSACTION_MAX: Nanos = Nanos::from_secs(120);

/// A command of an authentication.
#[derive(Clone, Copy, Debug)]
pub(super) enum AuthenticationStep {
    Send,
    Receive,
}

/// How far the host of a queue is authenticated.
pub(super) enum Standing {
    /// It is authenticated, or does not have to be.
    Open,
    /// It is being authenticated.
    Running(Box<Transaction>),
    /// It was refused at this time. The controller ends the connection.
    Refused(Nanos),
}

/// An authentication.
pub(super) struct Transaction {
    host: Initiator,
    since: Nanos,
    /// Whether the queue is usable only after it.
    is_first: bool,
    /// Whether the configuration does not have the key.
    is_wrong: bool,
    /// Whether its last message was sent.
    is_over: bool,
}

impl Standing {
    /// Whether the queue is usable.
    pub(super) fn is_open(&self) -> bool {
        match self {
            Self::Open => true,
            Self::Running(transaction) => !transaction.is_first,
            Self::Refused(_) => false,
        }
    }
}

impl Connection {
    /// Whether the target may end the connection because of an authentication: it has a wrong key,
    /// has lasted too long, or the keys or the process have changed since its beginning.
    pub(super) fn may_be_refused(&self, excuse: &AuthenticationExcuse) -> bool {
        match &self.standing {
            Standing::Running(transaction) => excuse.applies_to(transaction),
            Standing::Open | Standing::Refused(_) => false,
        }
    }
}

/// What excuses the end of an authentication.
#[derive(Clone, Copy)]
pub(super) struct AuthenticationExcuse {
    now: Nanos,
    /// The longest transaction.
    duration_max: Nanos,
    /// When the host's keys last changed.
    keys_changed: Nanos,
    /// When a new process last began to serve, which continues no transaction.
    handed_over: Nanos,
}

impl AuthenticationExcuse {
    fn applies_to(&self, transaction: &Transaction) -> bool {
        let is_late = transaction.since + self.duration_max <= self.now;
        let changed = self.keys_changed.max(self.handed_over);
        transaction.is_wrong || is_late || changed >= transaction.since
    }
}

/// Random bytes of a simulated host.
struct HostRandom<'a>(&'a mut Random);

impl nvme_authentication::Random for HostRandom<'_> {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), RandomUnavailable> {
        for byte in bytes {
            *byte = self.0.bits() as u8;
        }
        Ok(())
    }
}

impl Host {
    /// Begins the authentication of a connected queue, if the controller demands it. Returns whether
    /// it does.
    pub(super) fn begins_authentication(
        &mut self,
        env: &mut HostEnv<'_>,
        qid: u16,
        issued_at: Nanos,
        cqe: &Cqe,
    ) -> Result<bool, Violation> {
        let is_demanded = cqe.connect_success().authreq().authentication();
        let secrets = env.serving.demanded_secrets(env.swarm, self.number);
        let is_settled = env.keys_changed[self.shape.identity] < issued_at
            && env.permission_changed[self.number] < issued_at;
        if is_settled && is_demanded == secrets.is_empty() {
            let what = format!("queue {qid}: the controller demands authentication: {is_demanded}");
            return Err(self.violation(env, &what));
        }
        if !is_demanded {
            return Ok(false);
        }
        if env.swarm.faults.has(Fault::ChapMisuse) && self.random.permille(PREMATURE_PERMILLE) {
            self.send_prematurely(env, qid);
        }
        self.authenticate(env, qid, true)?;
        Ok(true)
    }

    /// Authenticates itself again on one of its queues.
    ///
    /// # Errors
    /// A violation by the target.
    pub fn authenticate_again(&mut self, env: &mut HostEnv<'_>) -> Result<(), Violation> {
        let secrets = env.serving.demanded_secrets(env.swarm, self.number);
        if self.phase != Phase::ServedConfig || self.silent_until.is_some() || secrets.is_empty() {
            return Ok(());
        }
        let is_usable = |it: &&mut Connection| {
            let is_open = it.queue.live && matches!(it.standing, Standing::Open);
            is_open && !it.closing && it.room() > 0
        };
        let qids: Vec<u16> = self
            .connections()
            .filter(is_usable)
            .map(|it| it.qid())
            .collect();
        if qids.is_empty() {
            return Ok(());
        }
        let qid = self.random.pick(&qids);
        self.authenticate(env, qid, false)
    }

    /// Whether it uses queues on which it has not authenticated itself. It does not learn of the end
    /// of one that it misuses and receives nothing from.
    #[must_use]
    pub fn is_unauthenticated(&self) -> bool {
        let mut connections = self.admin.iter().chain(&self.io);
        connections.any(|it| {
            let is_used = it.queue.live && it.queue.misused_until.is_none();
            is_used && it.standing.is_open() && !it.is_authenticated
        })
    }

    /// Sends a command that the controller must refuse.
    fn send_prematurely(&mut self, env: &mut HostEnv<'_>, qid: u16) {
        let disk = self.random.below(env.disks.len() as u64) as usize;
        let (sqe, transfer) = match qid {
            0 if self.random.coin() => (Sqe::keep_alive(), Transfer::None),
            0 => {
                let sqe = Sqe::get_property(Register::CSTS.0, PropertySize::BYTES_4);
                (sqe, Transfer::None)
            }
            _ => {
                let sqe = Sqe::write(self.nsid(env, disk), 0, 0, false);
                let block = vec![0xEE; env.swarm.disks[disk].block_size as usize];
                (sqe, Transfer::Out(block))
            }
        };
        let now = env.now;
        if let Some(connection) = self.connections().find(|it| it.qid() == qid) {
            let sending = Sending {
                transfer,
                ..Sending::plain(sqe, Command::Premature)
            };
            connection.submit(sending, now);
        }
    }

    pub(super) fn premature_completed(
        &mut self,
        env: &mut HostEnv<'_>,
        qid: u16,
        status: Status,
    ) -> Result<(), Violation> {
        let is_refused = status.is(Status::AUTHENTICATION_REQUIRED);
        if is_refused || (!status.is_success() && self.is_excused(env, qid)) {
            return Ok(());
        }
        let what =
            format!("queue {qid}: a command before the authentication completed with {status}");
        Err(self.violation(env, &what))
    }

    /// The key of a host for a transaction, and whether it is a wrong one.
    fn key(&mut self, env: &HostEnv<'_>) -> (ChapSecret, bool) {
        let identity = self.shape.identity;
        let secrets = env.serving.demanded_secrets(env.swarm, self.number);
        let right = match secrets.is_empty() {
            // The configuration changes now.
            true => 0,
            false => self.random.pick(secrets),
        };
        let misuses = env.swarm.faults.has(Fault::ChapMisuse);
        if !misuses || !self.random.permille(WRONG_PERMILLE) {
            return (secret(identity, right), false);
        }
        let oldest = secrets.iter().copied().min().unwrap_or(0);
        let wrong = match self.random.below(3) {
            0 if oldest > 0 => secret(identity, self.random.below(u64::from(oldest)) as u32),
            1 => secret((identity + 1) % env.swarm.hosts.len().max(2), right),
            _ => secret(identity, VERSIONS),
        };
        (wrong, true)
    }

    /// Begins a transaction.
    fn authenticate(
        &mut self,
        env: &mut HostEnv<'_>,
        qid: u16,
        is_first: bool,
    ) -> Result<(), Violation> {
        let (host_nqn, subsystem_nqn) = (
            host_name(self.shape.identity),
            SUBSYSTEMS[self.shape.subsystem].to_owned(),
        );
        let (secret, is_wrong) = self.key(env);
        let controller_secret = self.random.coin().then(|| env.swarm.controller_secret());
        let key = |secret: &ChapSecret, nqn: &str| {
            let key = Key::new(secret.transformed(nqn).expose());
            key.expect("a secret has 32 bytes")
        };
        let queue = Queue {
            is_admin: qid == 0,
            channel: Channel::Plain,
            host_keys: [key(&secret, &host_nqn)].into_iter().collect(),
            controller_key: controller_secret.map(|it| key(&it, &subsystem_nqn)),
            host_nqn,
            subsystem_nqn,
        };
        let group = match env.swarm.has_groups {
            true => Group::Ffdhe2048,
            false => Group::Null,
        };
        let policy = Policy {
            groups: [group].into_iter().collect(),
            transaction_ms_max: u64::MAX,
            ..Policy::default()
        };
        let mut host = Initiator::new(queue, policy);
        let action = host.start(qid, env.now.as_millis());
        let transaction = Transaction {
            host,
            since: env.now,
            is_first,
            is_wrong,
            is_over: false,
        };
        self.proceed(env, qid, Box::new(transaction), action)
    }

    /// Does what a step of a transaction requires.
    fn proceed(
        &mut self,
        env: &mut HostEnv<'_>,
        qid: u16,
        mut transaction: Box<Transaction>,
        mut action: Action,
    ) -> Result<(), Violation> {
        if let Action::Compute(exponentiation) = action {
            let random = &mut HostRandom(&mut self.random);
            let result = exponentiation.run();
            action = (transaction.host).computed(&result, random, env.now.as_millis());
        }
        let message = match action {
            Action::Send(message) => message,
            Action::SendAndFinish(message, _) => {
                transaction.is_over = true;
                message
            }
            Action::Finish(_) => return self.authenticated(env, qid, &transaction),
            Action::Fail(failure) => return self.key_refused(env, qid, &transaction, &failure),
            Action::SendAndFail(_, failure) => {
                let what = format!("queue {qid}: the controller's message is wrong: {failure}");
                return Err(self.violation(env, &what));
            }
            Action::Compute(_) | Action::Stale => {
                return Err(self.violation(env, "an authentication takes a wrong step"));
            }
        };
        let sqe = Sqe::authentication_send(message.len() as u32);
        let transfer = Transfer::Out(message);
        self.send_step(
            env,
            qid,
            transaction,
            AuthenticationStep::Send,
            (sqe, transfer),
        );
        Ok(())
    }

    /// Sends a command of a transaction, if the host still sends commands on the queue.
    fn send_step(
        &mut self,
        env: &HostEnv<'_>,
        qid: u16,
        transaction: Box<Transaction>,
        step: AuthenticationStep,
        (sqe, transfer): (Sqe, Transfer),
    ) {
        let is_silent = self.silent_until.is_some();
        let now = env.now;
        let Some(connection) = self.connections().find(|it| it.qid() == qid) else {
            return;
        };
        connection.standing = Standing::Running(transaction);
        if is_silent || connection.closing {
            return;
        }
        let sending = Sending {
            transfer,
            ..Sending::plain(sqe, Command::Authenticate(step))
        };
        connection.submit(sending, now);
    }

    /// Handles the completion of a command of a transaction.
    pub(super) fn authentication_completed(
        &mut self,
        env: &mut HostEnv<'_>,
        qid: u16,
        step: AuthenticationStep,
        outstanding: &Outstanding,
        status: Status,
    ) -> Result<(), Violation> {
        let connection = self.connections().find(|it| it.qid() == qid);
        let standing = connection.map(|it| std::mem::replace(&mut it.standing, Standing::Open));
        let Some(Standing::Running(mut transaction)) = standing else {
            return Err(self.violation(env, "a command of no authentication completed"));
        };
        let is_interrupted = env.handed_over >= transaction.since;
        if is_interrupted && status.is(Status::COMMAND_SEQUENCE_ERROR) {
            // The queue waits for a new one, or is open as before.
            return self.authenticate(env, qid, transaction.is_first);
        }
        if !status.is_success() {
            let is_excused = self.may_be_refused(env, qid, &transaction);
            if is_excused {
                self.expect_end(env.now, qid);
                return Ok(());
            }
            let what = format!("queue {qid}: Authentication {step:?} completed with {status}");
            return Err(self.violation(env, &what));
        }
        match step {
            AuthenticationStep::Send if transaction.is_over => {
                self.authenticated(env, qid, &transaction)
            }
            AuthenticationStep::Send => {
                let sqe = Sqe::authentication_receive(RECEIVE_BYTES);
                let transfer = Transfer::In(RECEIVE_BYTES as usize);
                let step = AuthenticationStep::Receive;
                self.send_step(env, qid, transaction, step, (sqe, transfer));
                Ok(())
            }
            AuthenticationStep::Receive => {
                let random = &mut HostRandom(&mut self.random);
                let now_ms = env.now.as_millis();
                let action = (transaction.host).receive(&outstanding.data, random, now_ms);
                self.proceed(env, qid, transaction, action)
            }
        }
    }

    /// Handles the success of a transaction.
    fn authenticated(
        &mut self,
        env: &mut HostEnv<'_>,
        qid: u16,
        transaction: &Transaction,
    ) -> Result<(), Violation> {
        let is_settled = env.keys_changed[self.shape.identity] < transaction.since;
        if transaction.is_wrong && is_settled {
            let what = format!("queue {qid}: a host with a wrong key is authenticated");
            return Err(self.violation(env, &what));
        }
        env.figures.authentications += 1;
        let number = self.number;
        let note = format_args!("host {number} queue {qid} is authenticated");
        env.trace.note(env.now, note);
        if let Some(connection) = self.connections().find(|it| it.qid() == qid) {
            connection.standing = Standing::Open;
            connection.is_authenticated = true;
            // The new process refuses the last message of a transaction.
            connection.excused |= env.handed_over >= transaction.since;
        }
        if transaction.is_first {
            self.opened(env, qid);
        }
        Ok(())
    }

    /// Handles a refusal by the controller, which ends the connection.
    fn key_refused(
        &mut self,
        env: &mut HostEnv<'_>,
        qid: u16,
        transaction: &Transaction,
        failure: &Failure,
    ) -> Result<(), Violation> {
        if !self.may_be_refused(env, qid, transaction) {
            let what = format!("queue {qid}: a host with its key is refused: {failure}");
            return Err(self.violation(env, &what));
        }
        env.figures.wrong_keys += u64::from(transaction.is_wrong);
        if transaction.is_wrong {
            env.figures.fault(Fault::ChapMisuse);
        }
        self.expect_end(env.now, qid);
        Ok(())
    }

    /// Whether something explains that a right key is refused.
    fn may_be_refused(&mut self, env: &HostEnv<'_>, qid: u16, transaction: &Transaction) -> bool {
        self.authentication_excuse(env).applies_to(transaction) || self.is_excused(env, qid)
    }

    /// What excuses the end of an authentication now.
    pub(super) fn authentication_excuse(&self, env: &HostEnv<'_>) -> AuthenticationExcuse {
        AuthenticationExcuse {
            now: env.now,
            duration_max: match self.shape.keep_alive {
                Nanos::ZERO => TRANSACTION_MAX,
                limit => limit.min(TRANSACTION_MAX),
            },
            keys_changed: env.keys_changed[self.shape.identity],
            handed_over: env.handed_over,
        }
    }

    fn expect_end(&mut self, now: Nanos, qid: u16) {
        if let Some(connection) = self.connections().find(|it| it.qid() == qid) {
            connection.standing = Standing::Refused(now);
            connection.excused = true;
            connection.closing = true;
        }
    }

    /// Checks that connections whose host was refused end.
    pub(super) fn check_refused_keys(&self, env: &mut HostEnv<'_>) -> Result<(), Violation> {
        let calm = self.calm_since(env);
        let connections = self.admin.iter().chain(&self.io);
        let stays = connections
            .map(|it| (it.qid(), &it.standing))
            .find(|(_, standing)| {
                let at = match standing {
                    Standing::Refused(at) => *at,
                    Standing::Open | Standing::Running(_) => return false,
                };
                !env.stopping && self.silent_until.is_none() && at.max(calm) + LATENCY_MAX < env.now
            });
        match stays {
            Some((qid, _)) => {
                let what = format!("queue {qid} stays although its host was refused");
                Err(self.violation(env, &what))
            }
            None => Ok(()),
        }
    }
}
