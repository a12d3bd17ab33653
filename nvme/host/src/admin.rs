//! An admin queue with blocking commands: the basis of a controller's control path.

use std::collections::VecDeque;
use std::time::Duration;

use nvme_authentication::Authenticated;
use nvme_spec::Sqe;
use nvme_spec::event::AsyncEvent;
use nvme_spec::fabrics::{CNTLID_DYNAMIC, ConnectAttributes};
use zerocopy::IntoBytes;

use crate::authentication::{self, Exchange, RECEIVE_BYTES};
use crate::deadline::Deadline;
use crate::error::{CommandStatus, HostError};
use crate::link::{COMPLETIONS_MAX, Completion, Completions, Transfer};
use crate::options::ConnectOptions;
use crate::transport::{AdminLink, QueueParameters};

/// Entries of an admin queue (Base 2.1 §6.3: at least 32): one more than the maximum number of
/// commands in flight.
const ADMIN_QUEUE_ENTRIES: u16 = 32;

/// First token of Asynchronous Event Requests.
const EVENT_TOKENS: u64 = 1 << 63;

/// Token of Keep Alive commands sent without waiting for their completion.
const KEEP_ALIVE_TOKEN: u64 = 1 << 62;

/// Turns a status other than success into an error.
pub(crate) fn require_success<B>(
    command: &'static str,
    sqe: &Sqe,
    completion: Completion<B>,
) -> Result<Completion<B>, HostError> {
    let status = completion.status();
    if status.is_success() {
        return Ok(completion);
    }
    let dw0 = completion.cqe.dw0.get();
    let status = CommandStatus {
        status,
        fabrics: sqe.is_fabrics(),
        dw0,
    };
    Err(HostError::Command { command, status })
}

impl Exchange for AdminQueue {
    fn send(&mut self, sqe: Sqe, message: &[u8]) -> Result<(), HostError> {
        let transfer = Transfer::Write(message.to_vec());
        self.execute("Authentication Send", sqe, transfer).map(drop)
    }

    fn receive(&mut self, sqe: Sqe) -> Result<Vec<u8>, HostError> {
        let transfer = Transfer::Read(vec![0; RECEIVE_BYTES as usize]);
        let completion = self.execute("Authentication Receive", sqe, transfer)?;
        completion.data.ok_or(HostError::Malformed {
            what: "authentication message",
        })
    }
}

/// An admin queue.
#[derive(Debug)]
pub(crate) struct AdminQueue {
    connection: AdminLink,
    timeout: Duration,
    next_token: u64,
    events: VecDeque<AsyncEvent>,
    keep_alive_pending: bool,
}

impl AdminQueue {
    /// Connects the admin queue of a controller, and authenticates it if it has to be. Returns it with
    /// the controller identifier and the result.
    pub(crate) fn connect(
        options: &ConnectOptions,
    ) -> Result<(Self, u16, Option<Authenticated>), HostError> {
        let data = options.connect_data(CNTLID_DYNAMIC)?.as_bytes().to_vec();
        let parameters = QueueParameters {
            qid: 0,
            depth: ADMIN_QUEUE_ENTRIES - 1,
            cntlid: 0,
            in_capsule_max_bytes: 0,
            descriptors_max: 1,
        };
        let mut queue = Self {
            connection: options.transport.0.connect_admin(options, &parameters)?,
            timeout: options.timeout,
            next_token: 0,
            events: VecDeque::new(),
            keep_alive_pending: false,
        };
        let sqe = Sqe::connect_queue(
            0,
            ADMIN_QUEUE_ENTRIES - 1,
            ConnectAttributes::new(),
            options.keep_alive_ms(),
        );
        let completion = queue.execute("Connect", sqe, Transfer::Write(data))?;
        let success = completion.cqe.connect_success();
        let required = success.authreq();
        if required.secure_channel() && !authentication::concatenates(options) {
            return Err(HostError::ChannelRequired);
        }
        let is_required = required.authentication() || required.secure_channel();
        let authenticated = match authentication::is_wanted(options, is_required)? {
            true => Some(queue.authenticate(options)?),
            false => None,
        };
        Ok((queue, success.cntlid(), authenticated))
    }

    /// Authenticates the queue, for the first time or again.
    pub(crate) fn authenticate(
        &mut self,
        options: &ConnectOptions,
    ) -> Result<Authenticated, HostError> {
        authentication::authenticate(options, 0, self)
    }

    /// Runs a command to completion. A status other than success is an error.
    pub(crate) fn execute(
        &mut self,
        command: &'static str,
        sqe: Sqe,
        transfer: Transfer<Vec<u8>>,
    ) -> Result<Completion<Vec<u8>>, HostError> {
        let completion = self.run(command, sqe, transfer)?;
        require_success(command, &sqe, completion)
    }

    /// Runs a command to completion, whatever its status.
    pub(crate) fn run(
        &mut self,
        command: &'static str,
        sqe: Sqe,
        transfer: Transfer<Vec<u8>>,
    ) -> Result<Completion<Vec<u8>>, HostError> {
        let token = self.next_token;
        self.next_token += 1;
        self.submit(sqe, transfer, token)?;
        let deadline = Deadline::after(self.timeout, command);
        loop {
            if let Some(completion) = self.turn(Some(token))? {
                return Ok(completion);
            }
            self.connection.wait(deadline.left()?);
        }
    }

    fn submit(
        &mut self,
        sqe: Sqe,
        transfer: Transfer<Vec<u8>>,
        token: u64,
    ) -> Result<u16, HostError> {
        match self.connection.submit(sqe, transfer, token) {
            Ok(cid) => Ok(cid),
            // A failed connection reports its error in `flush`; otherwise there is no free slot.
            Err(_) => {
                self.connection.flush()?;
                Err(HostError::NoSlot)
            }
        }
    }

    /// Sends, receives, and processes completions. Returns the completion of `wanted` if it was
    /// received.
    fn turn(&mut self, wanted: Option<u64>) -> Result<Option<Completion<Vec<u8>>>, HostError> {
        let mut completions = Completions::new();
        self.connection.flush()?;
        self.connection
            .poll_until(&mut completions, COMPLETIONS_MAX)?;
        let mut found = None;
        for completion in completions {
            if Some(completion.token) == wanted {
                found = Some(completion);
            } else if completion.token >= EVENT_TOKENS {
                // The completion of an aborted request contains no event.
                if completion.status().is_success() {
                    self.events
                        .push_back(AsyncEvent::from_bits(completion.cqe.dw0.get()));
                }
            } else if completion.token == KEEP_ALIVE_TOKEN {
                self.keep_alive_pending = false;
                require_success("Keep Alive", &Sqe::keep_alive(), completion)?;
            }
            // Any other completion belongs to a command that timed out earlier, and is discarded.
        }
        Ok(found)
    }

    /// Sends a Keep Alive without waiting for its completion, unless the previous one is
    /// outstanding.
    pub(crate) fn send_keep_alive(&mut self) -> Result<(), HostError> {
        if !self.keep_alive_pending {
            self.submit(Sqe::keep_alive(), Transfer::None, KEEP_ALIVE_TOKEN)?;
            self.keep_alive_pending = true;
        }
        self.poll()
    }

    /// Sends an Asynchronous Event Request. Returns its command identifier.
    pub(crate) fn request_event(&mut self) -> Result<u16, HostError> {
        let cid = self.submit(Sqe::async_event_request(), Transfer::None, EVENT_TOKENS)?;
        self.poll()?;
        Ok(cid)
    }

    /// Processes everything received.
    pub(crate) fn poll(&mut self) -> Result<(), HostError> {
        self.turn(None).map(|_| ())
    }

    /// Takes the next event received.
    pub(crate) fn take_event(&mut self) -> Option<AsyncEvent> {
        self.events.pop_front()
    }

    /// Waits for an event, at most for `limit`.
    pub(crate) fn wait_event(&mut self, limit: Duration) -> Result<AsyncEvent, HostError> {
        let deadline = Deadline::after(limit, "an asynchronous event");
        loop {
            self.poll()?;
            if let Some(event) = self.take_event() {
                return Ok(event);
            }
            self.connection.wait(deadline.left()?);
        }
    }

    /// Waits until the target closes the connection, at most for `limit`. Returns the error that
    /// ended it.
    pub(crate) fn wait_end(&mut self, limit: Duration) -> Result<HostError, HostError> {
        let deadline = Deadline::after(limit, "the end of the connection");
        loop {
            if let Err(error) = self.poll() {
                return Ok(error);
            }
            self.connection.wait(deadline.left()?);
        }
    }
}
