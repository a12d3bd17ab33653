//! An admin queue with blocking commands: the control path under a controller.

use std::collections::VecDeque;
use std::time::Duration;

use nvme_spec::Sqe;
use nvme_spec::event::AsyncEvent;
use nvme_spec::fabrics::{CNTLID_DYNAMIC, ConnectAttributes};
use zerocopy::IntoBytes;

use crate::deadline::Deadline;
use crate::error::{CommandStatus, HostError};
use crate::link::{COMPLETIONS_MAX, Completion, Completions, Transfer};
use crate::options::ConnectOptions;
use crate::transport::{AdminLink, QueueParameters};

/// Entries of an admin queue (Base 2.1 §6.3: 32 at least), one more than commands in flight.
const ADMIN_QUEUE_ENTRIES: u16 = 32;

/// Tokens from here on are asynchronous event requests.
const EVENT_TOKENS: u64 = 1 << 63;

/// Token of a keep-alive that nobody waits for.
const KEEP_ALIVE_TOKEN: u64 = 1 << 62;

/// The error for a status that is not success.
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
    /// Connects the admin queue of a controller; gives it and the controller's identifier.
    pub(crate) fn connect(options: &ConnectOptions) -> Result<(Self, u16), HostError> {
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
        if required.authentication() || required.secure_channel() {
            return Err(HostError::Unsupported("authentication"));
        }
        Ok((queue, success.cntlid()))
    }

    /// Runs a command to its end; a status other than success is an error.
    pub(crate) fn execute(
        &mut self,
        command: &'static str,
        sqe: Sqe,
        transfer: Transfer<Vec<u8>>,
    ) -> Result<Completion<Vec<u8>>, HostError> {
        let completion = self.run(command, sqe, transfer)?;
        require_success(command, &sqe, completion)
    }

    /// Runs a command to its end, whatever the status.
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
            // A failed connection tells its reason; everything else is a matter of slots.
            Err(_) => {
                self.connection.flush()?;
                Err(HostError::NoSlot)
            }
        }
    }

    /// Sends, receives, and sorts what came: the completion of `wanted`, if it is there.
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
                // A request that was aborted carries no event.
                if completion.status().is_success() {
                    self.events
                        .push_back(AsyncEvent::from_bits(completion.cqe.dw0.get()));
                }
            } else if completion.token == KEEP_ALIVE_TOKEN {
                self.keep_alive_pending = false;
                require_success("Keep Alive", &Sqe::keep_alive(), completion)?;
            }
            // Anything else is a command that timed out before: nobody waits for it any more.
        }
        Ok(found)
    }

    /// Sends a keep-alive that nobody waits for; none while the last one is unanswered.
    pub(crate) fn send_keep_alive(&mut self) -> Result<(), HostError> {
        if !self.keep_alive_pending {
            self.submit(Sqe::keep_alive(), Transfer::None, KEEP_ALIVE_TOKEN)?;
            self.keep_alive_pending = true;
        }
        self.poll()
    }

    /// Sends an Asynchronous Event Request; gives its identifier on the wire.
    pub(crate) fn request_event(&mut self) -> Result<u16, HostError> {
        let cid = self.submit(Sqe::async_event_request(), Transfer::None, EVENT_TOKENS)?;
        self.poll()?;
        Ok(cid)
    }

    /// Takes in what has arrived.
    pub(crate) fn poll(&mut self) -> Result<(), HostError> {
        self.turn(None).map(|_| ())
    }

    /// The next event that has arrived.
    pub(crate) fn take_event(&mut self) -> Option<AsyncEvent> {
        self.events.pop_front()
    }

    /// Waits for an event, `limit` at most.
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

    /// Waits until the target closes the connection, `limit` at most; gives what it said.
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
