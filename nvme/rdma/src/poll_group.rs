//! The resources that the connections of one reactor share on one device: registered memory,
//! completion queues and the shared receive queue.

use std::sync::Arc;

use hugemem::{Arena, Pool};
use nvme_fabrics::RequestToken;
use rdma::{CompletionQueue, Device, DeviceIndex, Domain, DomainMemory, MemoryMap, Provider};

use crate::counters::RdmaCounters;
use crate::plan::{SharedQueues, Unfit};
use crate::receives::{Receives, ReceivesError};
use crate::token::EventToken;

/// Completion queues of one device at most.
const COMPLETION_QUEUES_MAX: usize = 256;

/// Why a device cannot be used on this reactor.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PollGroupError {
    #[error("its memory is not registered yet: the device has just been added, or has returned")]
    UnknownDevice,
    #[error("more devices than a reactor serves")]
    TooManyDevices,
    #[error("the device has just failed")]
    Failed,
    #[error("the device is not fit for NVMe/RDMA: {0}")]
    Unfit(#[from] Unfit),
    #[error("its queues cannot be had")]
    Queues(#[from] rdma::Error),
    #[error(transparent)]
    Receives(#[from] ReceivesError),
    #[error("its receives cannot be posted: {0}")]
    Flush(#[from] rdma::FlushError),
    #[error("its completion queues are full")]
    NoCompletions,
}

/// A completion queue, and the number of its entries that are reserved for send queues.
#[derive(Debug)]
pub(crate) struct SharedCompletionQueue<P: Provider> {
    pub(crate) queue: P::CompletionQueue,
    reserved: u32,
    /// Whether its descriptor is watched.
    pub(crate) watched: bool,
}

/// One device on one reactor.
#[derive(Debug)]
pub(crate) struct DevicePollGroup<P: Provider> {
    pub(crate) receives: Receives<P>,
    pub(crate) completions: Vec<SharedCompletionQueue<P>>,
    pub(crate) map: Arc<MemoryMap<P>>,
    pub(crate) memory: Arc<DomainMemory<P>>,
    pub(crate) queues: SharedQueues,
    pub(crate) connections: usize,
    /// Why the device failed, if it has. It is released with its connections.
    pub(crate) failed: Option<&'static str>,
    /// Whether its memory left the [`Domains`](rdma::Domains) while it had connections. It takes no
    /// more of them, and is released with the last one.
    pub(crate) retired: bool,
    token: EventToken,
}

/// The parts of a [`DevicePollGroup`].
pub(crate) struct PollGroupParts<'a, P: Provider> {
    pub(crate) memory: Arc<DomainMemory<P>>,
    pub(crate) arena: &'a Arc<Arena>,
    pub(crate) pool: &'a Pool,
    pub(crate) counters: &'a RdmaCounters,
    pub(crate) receives: u32,
    pub(crate) in_capsule_bytes: u32,
    /// Number of pairs of reactor and device that share the arena.
    pub(crate) poll_groups: u32,
    pub(crate) waiter: RequestToken,
    pub(crate) token: EventToken,
}

impl<P: Provider> DevicePollGroup<P> {
    /// Creates the shared queues of a device and posts the receives.
    pub(crate) fn new(parts: PollGroupParts<'_, P>) -> Result<Self, PollGroupError> {
        let PollGroupParts {
            memory,
            arena,
            pool,
            counters,
            receives: wanted,
            in_capsule_bytes,
            poll_groups,
            waiter,
            token,
        } = parts;
        let domain = memory.domain();
        let device = domain.device();
        let limits = device.limits();
        let mut queues = SharedQueues::new(wanted, limits)?;
        let promise = match in_capsule_bytes {
            0 => None,
            bytes => {
                let promise = arena.promise(bytes as usize, queues.receives, poll_groups);
                let none = ReceivesError::NoPromise { in_capsule_bytes };
                Some(promise.ok_or(none)?)
            }
        };
        if let Some(promise) = &promise {
            queues = SharedQueues::new(promise.count(), limits)?;
        }
        if queues.receives < wanted {
            tracing::warn!(
                device = device.name(),
                wanted,
                granted = queues.receives,
                "the device and the arena allow fewer receives than configured"
            );
        }
        let map = memory.map();
        let queue = domain.create_shared_receive_queue(
            queues.receives,
            SharedQueues::RECEIVE_SGES,
            token.into(),
        )?;
        let mut receives = Receives::new(
            queue,
            queues.receives,
            (in_capsule_bytes, promise),
            waiter,
            (arena, pool, &map),
            counters,
        )?;
        receives.flush()?;
        Ok(Self {
            receives,
            completions: Vec::new(),
            map,
            memory,
            queues,
            connections: 0,
            failed: None,
            retired: false,
            token,
        })
    }

    pub(crate) fn index(&self) -> DeviceIndex {
        self.memory.domain().device().index()
    }

    /// Reserves entries for `requests` send requests; returns the completion queue.
    pub(crate) fn reserve_sends(&mut self, requests: u32) -> Result<u16, PollGroupError> {
        let sends_max = self.queues.sends_max();
        let fits = |queue: &SharedCompletionQueue<P>| queue.reserved + requests <= sends_max;
        let found = self.completions.iter().position(fits);
        let place = match found {
            Some(place) => place,
            None if self.completions.len() == COMPLETION_QUEUES_MAX || requests > sends_max => {
                return Err(PollGroupError::NoCompletions);
            }
            None => {
                let domain = self.memory.domain();
                let queue =
                    domain.create_completion_queue(self.queues.completions, self.token.into())?;
                self.completions.push(SharedCompletionQueue {
                    queue,
                    reserved: 0,
                    watched: false,
                });
                self.completions.len() - 1
            }
        };
        self.completions[place].reserved += requests;
        Ok(place as u16)
    }

    /// Ends a reservation of [`reserve_sends`](Self::reserve_sends).
    pub(crate) fn release_sends(&mut self, place: u16, requests: u32) {
        self.completions[usize::from(place)].reserved -= requests;
    }

    /// Updates the map of registered memory.
    #[inline]
    pub(crate) fn renew_map(&mut self) {
        if self.memory.version() != self.map.version() {
            self.map = self.memory.map();
        }
    }

    /// Requests a notification for the next completion of every completion queue.
    pub(crate) fn arm(&mut self) -> Result<(), rdma::Error> {
        for completions in &mut self.completions {
            completions.queue.acknowledge()?;
            completions.queue.arm(false)?;
        }
        Ok(())
    }
}
