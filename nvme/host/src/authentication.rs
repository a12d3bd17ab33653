//! Authentication of a queue by DH-HMAC-CHAP, after its Connect (Base 2.1 §8.3.4.5.2).
//!
//! Waits, like the rest of the control path; the exponentiations are computed on the calling thread.

use std::sync::Arc;
use std::time::Instant;

use nvme_authentication::{
    Action, Authenticated, Channel, Failure, Key, Policy, Queue, SecureChannelPolicy, SystemRandom,
};
use nvme_keys::ChapSecret;
use nvme_spec::Sqe;
use nvme_spec::nqn::DISCOVERY_NQN;

use crate::error::HostError;
use crate::options::ConnectOptions;

/// Buffer of Authentication Receive in bytes, as that of Linux.
pub(crate) const RECEIVE_BYTES: u32 = 4096;

/// The secrets of a host. It authenticates every queue, whether or not the controller requires it,
/// so that no target can do without.
#[derive(Debug, Clone)]
pub struct ChapOptions {
    /// The host's secret.
    pub secret: Arc<ChapSecret>,
    /// The controller's secret; with it, the controller has to authenticate itself too.
    pub controller_secret: Option<Arc<ChapSecret>>,
    /// What the host proposes.
    pub policy: Policy,
}

impl ChapOptions {
    /// Options with every hash function, and every group but the null group.
    #[must_use]
    pub fn new(secret: ChapSecret, controller_secret: Option<ChapSecret>) -> Self {
        Self {
            secret: Arc::new(secret),
            controller_secret: controller_secret.map(Arc::new),
            policy: Policy::default(),
        }
    }
}

/// Whether a queue is to be authenticated after its Connect.
pub(crate) fn is_wanted(options: &ConnectOptions, is_required: bool) -> Result<bool, HostError> {
    let is_discovery = options.subsystem_nqn == DISCOVERY_NQN;
    match &options.chap {
        Some(_) => Ok(is_required || !is_discovery),
        None if is_required => Err(HostError::AuthenticationRequired),
        None => Ok(false),
    }
}

/// Whether the host generates a key for a secure channel.
pub(crate) fn concatenates(options: &ConnectOptions) -> bool {
    let policy = options.chap.as_ref().map(|chap| chap.policy.secure_channel);
    policy.is_some_and(|it| it != SecureChannelPolicy::Never)
}

/// Exchanges messages with the controller.
pub(crate) trait Exchange {
    /// Runs Authentication Send.
    fn send(&mut self, sqe: Sqe, message: &[u8]) -> Result<(), HostError>;

    /// Runs Authentication Receive.
    fn receive(&mut self, sqe: Sqe) -> Result<Vec<u8>, HostError>;
}

/// Authenticates a queue. Its identifier also identifies the transaction, because no other
/// transaction of the association has it.
pub(crate) fn authenticate(
    options: &ConnectOptions,
    qid: u16,
    exchange: &mut dyn Exchange,
) -> Result<Authenticated, HostError> {
    let chap = options.chap.as_ref();
    let chap = chap.ok_or(HostError::AuthenticationRequired)?;
    let (host_nqn, subsystem_nqn) = (&options.identity.nqn, &options.subsystem_nqn);
    let transformed = |secret: &ChapSecret, nqn: &str| {
        let key = Key::new(secret.transformed(nqn).expose());
        key.map_err(|_| HostError::Malformed { what: "secret" })
    };
    let controller_secret = chap.controller_secret.as_ref();
    let queue = Queue {
        host_nqn: host_nqn.clone(),
        subsystem_nqn: subsystem_nqn.clone(),
        is_admin: qid == 0,
        channel: Channel::Plain,
        host_keys: [transformed(&chap.secret, host_nqn)?].into_iter().collect(),
        controller_key: controller_secret
            .map(|secret| transformed(secret, subsystem_nqn))
            .transpose()?,
    };
    let began = Instant::now();
    let now_ms = || u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let mut host = nvme_authentication::Initiator::new(queue, chap.policy.clone());
    let mut action = host.start(qid, 0);
    loop {
        let message = match action {
            Action::Compute(exponentiation) => {
                action = host.computed(&exponentiation.run(), &mut SystemRandom, now_ms());
                continue;
            }
            Action::Send(message) => message,
            Action::SendAndFinish(message, authenticated) => {
                send(exchange, &message)?;
                return Ok(authenticated);
            }
            Action::Finish(authenticated) => return Ok(authenticated),
            Action::SendAndFail(message, failure) => {
                // The failure is the more helpful error.
                let _ = send(exchange, &message);
                return Err(HostError::Authentication(failure));
            }
            Action::Fail(failure) => return Err(HostError::Authentication(failure)),
            Action::Stale => {
                let failure = Failure::Refused(nvme_authentication::Violation::UnexpectedMessage);
                return Err(HostError::Authentication(failure));
            }
        };
        send(exchange, &message)?;
        let answer = exchange.receive(Sqe::authentication_receive(RECEIVE_BYTES))?;
        action = host.receive(&answer, &mut SystemRandom, now_ms());
    }
}

fn send(exchange: &mut dyn Exchange, message: &[u8]) -> Result<(), HostError> {
    // At most MESSAGE_BYTES_MAX.
    exchange.send(Sqe::authentication_send(message.len() as u32), message)
}
