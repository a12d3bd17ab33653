//! Establishes a connection: address, route, queue pair, receives, request, accept (RDMA 1.1 §3).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nvme_spec::rdma::{ConnectAccept, ConnectReject, ConnectRequest, RECORD_FORMAT};
use nvme_spec::sgl::SglDescriptor;
use rdma::{
    CompletionQueue as _, ConnectParameters, Connection as _, ConnectionEvent, Device, Domain,
    Event, EventChannel, PrivateData, Provider, QueuePair, QueuePairCapacity, QueuePairOptions,
    RNR_RETRY_FOREVER, RejectReason, SGES_MAX, Token,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use zerocopy::{FromBytes, IntoBytes};

use crate::deadline::Deadline;
use crate::error::{HostError, ProtocolError, Rejection};
use crate::options::ConnectOptions;
use crate::rdma::connection::{
    COMMAND_BYTES, RESPONSE_BYTES, RdmaConnection, RdmaParameters, Verbs, receive_request,
};
use crate::rdma::keys::{DESCRIPTORS_MAX, Windows};
use crate::rdma::memory::{CommandData, DeviceMemory, HostMemory};
use crate::rdma::{KeyMode, RdmaOptions};
use crate::transport::QueueParameters;

/// Retries of an unacknowledged packet: the maximum.
const RETRIES: u8 = 7;

/// Completion queue entries beyond one per request, for flushed requests.
const SPARE_COMPLETIONS: u32 = 16;

/// Send queue entries beyond those of the commands, so that not every request has to be signalled.
const SPARE_SENDS: u32 = 64;

/// Token of all objects of one connection.
const TOKEN: Token = Token(0);

/// Adds the name of the failed step to an error.
pub(crate) fn step(step: &'static str) -> impl Fn(rdma::Error) -> HostError {
    move |source| HostError::Rdma { step, source }
}

/// The connection manager's objects for one connection.
#[derive(Debug)]
pub struct Manager<P: Provider> {
    /// The connection.
    pub connection: P::Connection,
    /// The event channel of the connection.
    pub events: P::EventChannel,
    address: SocketAddr,
    timeout: Duration,
}

/// An accepted connection.
#[derive(Debug, Clone, Copy)]
pub struct Accepted {
    /// The private data of the accept.
    pub private_data: PrivateData,
}

impl<P: Provider> Manager<P> {
    /// Resolves the device and the route for `address`; each step is limited by `timeout`.
    ///
    /// # Errors
    /// [`HostError::Unreachable`], [`HostError::TimedOut`], [`HostError::Rdma`].
    pub fn resolve(
        provider: &P,
        address: SocketAddr,
        timeout: Duration,
    ) -> Result<(Self, P::Device), HostError> {
        let mut events = provider.event_channel().map_err(step("RDMA"))?;
        let connection = events.connection(TOKEN).map_err(step("RDMA"))?;
        let mut manager = Self {
            connection,
            events,
            address,
            timeout,
        };
        let resolving = manager.connection.resolve_address(None, address, timeout);
        resolving.map_err(step("resolving the address"))?;
        manager.wait_for("the address to be resolved", |event| {
            *event == ConnectionEvent::AddressResolved
        })?;
        let routing = manager.connection.resolve_route(timeout);
        routing.map_err(step("resolving the route"))?;
        manager.wait_for("the route to be resolved", |event| {
            *event == ConnectionEvent::RouteResolved
        })?;
        let device = manager
            .connection
            .device()
            .ok_or(HostError::DeviceRemoved)?;
        Ok((manager, device))
    }

    /// Sends the connection request and waits for the reply.
    ///
    /// # Errors
    /// [`HostError::Rejected`], and as [`Self::resolve`].
    pub fn connect(&mut self, parameters: &ConnectParameters<'_>) -> Result<Accepted, HostError> {
        let connecting = self.connection.connect(parameters);
        connecting.map_err(step("connecting"))?;
        let event = self.wait_for("the connection", |event| {
            matches!(event, ConnectionEvent::Established { .. })
        })?;
        match event {
            ConnectionEvent::Established { private_data, .. } => Ok(Accepted { private_data }),
            _ => Err(HostError::Closed),
        }
    }

    fn wait_for(
        &mut self,
        what: &'static str,
        wanted: impl Fn(&ConnectionEvent) -> bool,
    ) -> Result<ConnectionEvent, HostError> {
        let deadline = Deadline::after(self.timeout, what);
        loop {
            match self.events.next_event().map_err(step(what))? {
                Some(Event::Connection { event, .. }) if wanted(&event) => return Ok(event),
                Some(Event::Connection { event, .. }) => self.check(&event)?,
                Some(_) => {}
                None => {
                    let left = deadline.left()?;
                    let left = Timespec::try_from(left).unwrap_or(Timespec {
                        tv_sec: 1,
                        tv_nsec: 0,
                    });
                    let source = self.events.descriptor();
                    let mut descriptors = [PollFd::from_borrowed_fd(source, PollFlags::IN)];
                    // An error here is reported by the next read of the events.
                    let _ = poll(&mut descriptors, Some(&left));
                }
            }
        }
    }

    /// Turns an event that reports a failure into an error.
    fn check(&self, event: &ConnectionEvent) -> Result<(), HostError> {
        let address = self.address;
        let unreachable = |step, kind| HostError::Unreachable {
            address,
            step,
            kind,
        };
        Err(match event {
            ConnectionEvent::AddressFailed(kind) => unreachable("resolving the address", *kind),
            ConnectionEvent::RouteFailed(kind) => unreachable("resolving the route", *kind),
            ConnectionEvent::ConnectFailed(kind) => unreachable("connecting", *kind),
            ConnectionEvent::Unreachable => unreachable("connecting", io::ErrorKind::TimedOut),
            ConnectionEvent::Rejected {
                reason,
                private_data,
            } => HostError::Rejected {
                address,
                status: rejection(*reason, private_data),
            },
            ConnectionEvent::Disconnected => HostError::Closed,
            ConnectionEvent::DeviceRemoved => HostError::DeviceRemoved,
            _ => return Ok(()),
        })
    }
}

/// The reason of a reject (RDMA 1.1 §3). It is the target's only if its private data has the
/// specified format.
fn rejection(reason: RejectReason, data: &PrivateData) -> Rejection {
    match ConnectReject::read_from_prefix(data.as_slice()) {
        Ok((reject, _))
            if reason == RejectReason::BY_CONSUMER
                && reject.recfmt.get() == RECORD_FORMAT
                && reject.sts.get() != 0 =>
        {
            Rejection::ByTarget(reject.reason())
        }
        _ => Rejection::ByConnectionManager(reason),
    }
}

/// Sizes of a queue's resources.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    receives: u16,
    sends: u16,
    descriptors: usize,
    capsule_stride: usize,
}

impl Sizes {
    fn new<P: Provider>(
        device: &P::Device,
        rdma: &RdmaOptions,
        queue: &QueueParameters,
    ) -> Result<Self, HostError> {
        let limits = device.limits();
        let depth = u32::from(queue.depth);
        let per_command = match rdma.keys {
            KeyMode::Arena => 1,
            KeyMode::Windows => 3,
        };
        let sends = depth * per_command + SPARE_SENDS;
        let sends = sends
            .min(limits.queue_pair_requests)
            .min(u32::from(u16::MAX));
        // One per command for its response, plus one, because one entry of the queue stays free
        // (Base 2.1 §3.3.1.5).
        let receives = depth + 1;
        let requests = limits.queue_pair_requests.min(
            limits
                .completion_queue_entries
                .saturating_sub(sends + SPARE_COMPLETIONS),
        );
        if receives > requests || sends < 4 {
            return Err(HostError::Option {
                what: "queue depth on this RDMA device",
                value: u64::from(depth),
                least: 1,
                most: u64::from(requests.saturating_sub(1)),
            });
        }
        let descriptor_bytes = size_of::<SglDescriptor>();
        let most = match queue.descriptors_max {
            0 => DESCRIPTORS_MAX,
            most => usize::from(most).min(DESCRIPTORS_MAX),
        };
        let behind = queue.in_capsule_max_bytes as usize / descriptor_bytes;
        let descriptors = usize::from(rdma.descriptors).min(most).min(behind).max(1);
        let capsule_bytes = match descriptors {
            1 => COMMAND_BYTES,
            several => COMMAND_BYTES + several * descriptor_bytes,
        };
        Ok(Self {
            receives: receives as u16,
            sends: sends as u16,
            descriptors,
            capsule_stride: capsule_bytes.next_multiple_of(COMMAND_BYTES),
        })
    }

    fn capacity(&self, limits: &rdma::DeviceLimits) -> QueuePairCapacity {
        QueuePairCapacity {
            send_requests: u32::from(self.sends),
            receive_requests: u32::from(self.receives),
            send_sges: SGES_MAX as u32,
            receive_sges: 1,
            inline_bytes: self.capsule_stride as u32,
        }
        .clamped(limits)
    }
}

/// Establishes the connection of a queue.
pub(crate) fn open<P: Provider, B: CommandData>(
    provider: &P,
    rdma: &RdmaOptions,
    host: &HostMemory<P>,
    options: &ConnectOptions,
    queue: &QueueParameters,
) -> Result<RdmaConnection<P, B>, HostError> {
    let (mut manager, device) = Manager::resolve(provider, options.address, options.timeout)?;
    let sizes = Sizes::new::<P>(&device, rdma, queue)?;
    let memory = host.on(&device)?;
    let domain = memory.shared.domain();
    let entries = u32::from(sizes.sends) + u32::from(sizes.receives) + SPARE_COMPLETIONS;
    let completions = domain
        .create_completion_queue(entries, TOKEN)
        .map_err(step("creating a completion queue"))?;
    debug_assert!(completions.entries() >= entries, "the provider's promise");
    let queue_pair = manager
        .connection
        .create_queue_pair(
            domain,
            &QueuePairOptions {
                send_completions: &completions,
                receive_completions: &completions,
                shared_receives: None,
                capacity: sizes.capacity(device.limits()),
            },
        )
        .map_err(step("creating a queue pair"))?;
    let mut parameters = prepare(rdma, host, &memory, &queue_pair, sizes, queue)?;
    let mut queue_pair = queue_pair;
    post_receives(&mut queue_pair, &parameters, sizes.receives)?;
    let request = ConnectRequest::new(queue.qid, sizes.receives, queue.depth, queue.cntlid);
    let accepted = manager.connect(&ConnectParameters {
        private_data: request.as_bytes(),
        initiator_depth: 0,
        responder_resources: device.limits().reads_incoming,
        retries: RETRIES,
        rnr_retries: RNR_RETRY_FOREVER,
    })?;
    parameters.depth = parameters.depth.min(target_queue_entries(&accepted)?);
    let verbs = Verbs {
        queue_pair,
        connection: manager.connection,
        completions,
        events: manager.events,
    };
    Ok(RdmaConnection::new(verbs, parameters))
}

/// Determines the parameters of a connection, and allocates its memory and windows.
fn prepare<P: Provider>(
    rdma: &RdmaOptions,
    host: &HostMemory<P>,
    memory: &DeviceMemory<P>,
    queue_pair: &P::QueuePair,
    sizes: Sizes,
    queue: &QueueParameters,
) -> Result<RdmaParameters<P>, HostError> {
    let staging = host.staging();
    let take = |bytes| staging.dma_buffer(bytes).ok_or(HostError::NoMemory);
    let windows = match rdma.keys {
        KeyMode::Arena => None,
        KeyMode::Windows => {
            let domain = memory.shared.domain();
            let windows: Result<Box<[_]>, _> =
                (0..queue.depth).map(|_| domain.create_window()).collect();
            Some(Windows {
                windows: windows.map_err(step("creating memory windows"))?,
                registrations: memory.windowed(),
            })
        }
    };
    let capacity = queue_pair.capacity();
    let takes_data = rdma.in_capsule && capacity.send_sges > 1;
    Ok(RdmaParameters {
        map: memory.shared.map(),
        depth: queue.depth,
        send_entries: sizes.sends,
        inline_bytes: capacity.inline_bytes as usize,
        windows,
        descriptors: sizes.descriptors,
        responses: Arc::new(take(usize::from(sizes.receives) * RESPONSE_BYTES)?),
        capsules: Arc::new(take(usize::from(queue.depth) * sizes.capsule_stride)?),
        capsule_stride: sizes.capsule_stride,
        in_capsule_max_bytes: if takes_data { u32::MAX } else { 0 },
    })
}

fn post_receives<P: Provider>(
    queue_pair: &mut P::QueuePair,
    parameters: &RdmaParameters<P>,
    receives: u16,
) -> Result<(), HostError> {
    for buffer in 0..receives {
        let request = receive_request(&parameters.map, &parameters.responses, buffer);
        queue_pair.queue_receive(&request.ok_or(HostError::NotRegistered)?)?;
    }
    queue_pair.flush().map_err(|error| error.cause.into())
}

/// Number of capsules that the target can receive (RDMA 1.1 §3, CRQSIZE).
fn target_queue_entries(accepted: &Accepted) -> Result<u16, HostError> {
    let data = accepted.private_data.as_slice();
    let Ok((accept, _)) = ConnectAccept::read_from_prefix(data) else {
        let found = data.len() as u16;
        return Err(ProtocolError::AcceptFormat { found }.into());
    };
    match accept.recfmt.get() {
        RECORD_FORMAT => Ok(accept.crqsize.get().max(1)),
        found => Err(ProtocolError::AcceptFormat { found }.into()),
    }
}
