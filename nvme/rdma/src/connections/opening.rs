//! Opening connections: a connection request is checked on the listener's reactor and accepted on
//! the reactor that will serve it.

use std::sync::Arc;

use nvme_fabrics::RequestToken;
use nvme_spec::rdma::{ConnectAccept, ConnectReject, RejectReason};
use nvme_target::PortId;
use rdma::{
    ConnectParameters, ConnectRequest, Connection as _, Device, DeviceIndex, Domain, Provider,
    QueuePair, QueuePairOptions, RNR_RETRY_FOREVER,
};
use reactors::Nanos;
use zerocopy::IntoBytes;

use super::{ConnectionSet, Handoff};
use crate::config::DEVICES_MAX;
use crate::connection::{Connection, Parts};
use crate::plan::{QueuePairPlan, RESPONSE_BYTES, queue_depth_max};
use crate::poll_group::{DevicePollGroup, PollGroupError, PollGroupParts};
use crate::private_data::{NegotiatedParameters, Terms, negotiate};
use crate::token::{EventSubject, EventToken};

/// Why a connection with a valid request cannot be opened.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("the table of connections is full")]
    TableFull,
    #[error(transparent)]
    Device(#[from] PollGroupError),
    #[error("the queue pair cannot be had")]
    QueuePair(#[from] rdma::Error),
    #[error("the arena has no memory left for responses")]
    NoMemory,
}

impl<P: Provider> ConnectionSet<P> {
    /// Checks a connection request that arrived on `port`; rejects an invalid one with the reason
    /// that the specification defines (RDMA 1.1 §3).
    pub fn negotiate_request(
        &mut self,
        request: P::ConnectRequest,
        port: PortId,
        now: Nanos,
    ) -> Option<Handoff<P>> {
        let shared = &self.shared;
        let limits = request.device().limits();
        let terms = Terms {
            queue_depth_max: shared
                .config
                .port(port)
                .queue_depth_max
                .min(queue_depth_max(limits)),
            reads: request.initiator_depth(),
        };
        match negotiate(request.private_data().as_slice(), terms) {
            Ok(negotiated) => Some(Handoff {
                request,
                port,
                negotiated,
            }),
            Err(reason) => {
                shared.counters.requests_invalid.add(1);
                if let Some(withheld) = shared.log.admit(now) {
                    let host = request.peer_address();
                    tracing::warn!(%host, %reason, withheld, "a connection request is rejected");
                }
                reject::<P>(request, reason);
                None
            }
        }
    }

    /// Rejects a request for lack of resources.
    pub(crate) fn reject_unopened(&self, handoff: Handoff<P>) {
        self.shared.counters.connections_refused.add(1);
        reject::<P>(handoff.request, RejectReason::NO_RESOURCES);
    }

    /// Opens the connection of a request; returns `false` if the request was rejected.
    pub fn adopt(&mut self, handoff: Handoff<P>, now: Nanos) -> bool {
        let host = handoff.request.peer_address();
        match self.open(handoff, now) {
            Ok(()) => true,
            Err(error) => {
                self.shared.counters.connections_refused.add(1);
                if let Some(withheld) = self.shared.log.admit(now) {
                    tracing::warn!(%host, %error, withheld, "a connection is turned away");
                }
                false
            }
        }
    }

    fn open(&mut self, handoff: Handoff<P>, now: Nanos) -> Result<(), OpenError> {
        let Handoff {
            request,
            port,
            negotiated,
        } = handoff;
        let no_resources = RejectReason::NO_RESOURCES;
        let Some(token) = self.table.next_token() else {
            reject::<P>(request, no_resources);
            return Err(OpenError::TableFull);
        };
        let device = match self.poll_group(request.device()) {
            Ok(place) => place,
            Err(error) => {
                reject::<P>(request, no_resources);
                return Err(error.into());
            }
        };
        let event_token = EventToken::of(
            EventSubject::Connection,
            self.listeners.reactor(),
            token.connection(),
            token.generation(),
        );
        let mut connection =
            request.into_connection(self.listeners.channel(), event_token.into())?;
        let parts = match self.queue_pair(
            &mut connection,
            device,
            &RequestedParameters { negotiated, port },
        ) {
            Ok(created) => created.into_parts(connection, token),
            Err(error) => {
                // Dropping the connection also rejects it, but without the reason.
                let _ = connection.reject(ConnectReject::new(no_resources).as_bytes());
                return Err(error);
            }
        };
        self.accept(parts, now)
    }

    /// Accepts the connection and inserts it into the table.
    fn accept(&mut self, mut parts: Parts<P>, now: Nanos) -> Result<(), OpenError> {
        let accept = ConnectAccept::new(parts.negotiated.depth);
        let outcome = parts.connection.accept(&ConnectParameters {
            private_data: accept.as_bytes(),
            initiator_depth: parts.reads,
            // No memory key is given to hosts, so they have nothing to read.
            responder_resources: 0,
            retries: 7,
            // How often the host's device retries a capsule while the shared receive queue is
            // empty, which happens when this side lacks memory. The time that the host may be
            // without receives for its responses is limited by the connection (`PROGRESS_TIMEOUT`).
            rnr_retries: RNR_RETRY_FOREVER,
        });
        let (device, number) = (parts.device, parts.queue_pair.number());
        if let Err(error) = outcome {
            let requests = parts.send_requests;
            let completion_queue = parts.completion_queue;
            drop(parts);
            if let Some(group) = &mut self.devices[usize::from(device)] {
                group.release_sends(completion_queue, requests);
            }
            return Err(error.into());
        }
        let index = parts.token.connection();
        self.queue_pairs.insert(device, number, index);
        let Some(group) = &mut self.devices[usize::from(device)] else {
            return Err(PollGroupError::Failed.into());
        };
        group.connections += 1;
        let mut core = self.shared.core.borrow_mut();
        let cx = self.shared.context(&mut core, &group.map, now);
        let connection = Connection::new(parts, &cx);
        drop(core);
        self.table.insert(connection);
        self.shared.counters.connections_opened.add(1);
        self.shared.counters.connections.set(self.len() as u64);
        Ok(())
    }

    /// Creates the queue pair of a connection on the device at `place`.
    fn queue_pair(
        &mut self,
        connection: &mut P::Connection,
        place: u16,
        terms: &RequestedParameters,
    ) -> Result<NewQueuePair<P>, OpenError> {
        let Some(group) = &mut self.devices[usize::from(place)] else {
            return Err(PollGroupError::Failed.into());
        };
        let memory = Arc::clone(&group.memory);
        let domain = memory.domain();
        let limits = domain.device().limits();
        let plan = QueuePairPlan::new(
            terms.negotiated.depth,
            terms.negotiated.reads,
            group.queues,
            limits,
        );
        // The device may grant more. The transport uses what it asked for, and reserves completion
        // queue entries for it.
        let send_requests = plan.capacity.send_requests;
        let completion_queue = group.reserve_sends(send_requests)?;
        let completions = &group.completions[usize::from(completion_queue)].queue;
        let options = QueuePairOptions {
            send_completions: completions,
            receive_completions: completions,
            shared_receives: Some(group.receives.queue()),
            capacity: plan.capacity,
        };
        let created = connection.create_queue_pair(domain, &options);
        let created = created.map_err(OpenError::from).and_then(|queue_pair| {
            let inline = queue_pair.capacity().inline_bytes as usize >= RESPONSE_BYTES;
            let places = send_requests.next_power_of_two() as usize;
            let responses = match inline {
                true => None,
                false => {
                    let buffer = self.shared.arena.dma_buffer(places * RESPONSE_BYTES);
                    Some(buffer.ok_or(OpenError::NoMemory)?)
                }
            };
            Ok((queue_pair, responses))
        });
        match created {
            Ok((queue_pair, responses)) => Ok(NewQueuePair {
                queue_pair,
                responses,
                reads: plan.reads,
                requested: *terms,
                send_requests,
                in_capsule_bytes: self.in_capsule_bytes(place, terms.port),
                device: place,
                completion_queue,
            }),
            Err(error) => {
                group.release_sends(completion_queue, send_requests);
                Err(error)
            }
        }
    }

    /// In-capsule data size of a port's I/O queues on a device, in bytes.
    fn in_capsule_bytes(&self, place: u16, port: PortId) -> u32 {
        let group = self.devices[usize::from(place)].as_ref();
        let capsule_max = group.map_or(0, |group| group.receives.in_capsule_bytes() as u32);
        self.shared
            .config
            .port(port)
            .in_capsule_bytes
            .min(capsule_max)
    }

    /// Creates the shared queues of every device.
    pub(crate) fn prepare_devices(&mut self) {
        for device in self.shared.domains.devices() {
            if let Err(error) = self.poll_group(&device) {
                tracing::error!(device = device.name(), %error, "a device serves no host");
            }
        }
    }

    /// The place of a device. Sets the device up on first use.
    fn poll_group(&mut self, device: &P::Device) -> Result<u16, PollGroupError> {
        if let Some(place) = self.device_place(device.index()) {
            return Ok(place);
        }
        let place = self.devices.iter().position(Option::is_none);
        let place = place.ok_or(PollGroupError::TooManyDevices)?;
        let group = self.new_poll_group(device.index(), place as u16)?;
        self.devices[place] = Some(group);
        Ok(place as u16)
    }

    fn new_poll_group(
        &self,
        device: DeviceIndex,
        place: u16,
    ) -> Result<DevicePollGroup<P>, PollGroupError> {
        debug_assert!(usize::from(place) < DEVICES_MAX);
        let shared = &self.shared;
        let memory = shared.domains.memory(device);
        let devices = shared.domains.devices().len();
        DevicePollGroup::new(PollGroupParts {
            memory: memory.ok_or(PollGroupError::UnknownDevice)?,
            arena: &shared.arena,
            pool: &shared.pool,
            counters: &shared.counters,
            receives: shared.config.receives,
            in_capsule_bytes: shared.config.in_capsule_bytes(),
            poll_groups: u32::try_from(shared.config.reactors.max(1) * devices.max(1))
                .unwrap_or(u32::MAX),
            waiter: RequestToken::new()
                .with_transport(shared.transport.0)
                .with_generation(u32::from(place)),
            token: EventToken::of(EventSubject::Device, self.listeners.reactor(), place, 0),
        })
    }
}

/// Parameters of a connection that is being opened.
#[derive(Clone, Copy)]
struct RequestedParameters {
    negotiated: NegotiatedParameters,
    port: PortId,
}

/// A queue pair and its parameters.
struct NewQueuePair<P: Provider> {
    queue_pair: P::QueuePair,
    responses: Option<hugemem::DmaBuffer>,
    reads: u8,
    requested: RequestedParameters,
    send_requests: u32,
    in_capsule_bytes: u32,
    device: u16,
    completion_queue: u16,
}

impl<P: Provider> NewQueuePair<P> {
    fn into_parts(self, connection: P::Connection, token: RequestToken) -> Parts<P> {
        Parts {
            queue_pair: self.queue_pair,
            connection,
            responses: self.responses,
            reads: self.reads,
            send_requests: self.send_requests,
            negotiated: self.requested.negotiated,
            port: self.requested.port,
            in_capsule_bytes: self.in_capsule_bytes,
            token,
            device: self.device,
            completion_queue: self.completion_queue,
        }
    }
}

/// Rejects a request with a reason defined by the specification.
fn reject<P: Provider>(request: P::ConnectRequest, reason: RejectReason) {
    let private_data = ConnectReject::new(reason);
    if let Err(error) = request.reject(private_data.as_bytes()) {
        // The host has most likely disconnected.
        tracing::debug!(%error, "a rejection could not be sent");
    }
}
