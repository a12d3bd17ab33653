//! Control of the fabric for programs that drive it by their own clock and inject faults into
//! single connections.

use crate::fake::state::{QueuePairObject, ReceiveSource, State};
use crate::fake::table::Key;
use crate::fake::{Fabric, Fake};
use rdma::{QueuePairState, RNR_RETRY_FOREVER};

/// The requests of shared receive queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedReceives {
    /// Posted requests of more than one piece of memory: a command, and its data.
    pub with_data: usize,
    /// By queue: the requests that it has room for.
    pub requests: Vec<u32>,
}

impl Fabric {
    /// The next tick that changes something if no further request is posted. Requests that only
    /// wait for a receive need no tick.
    #[must_use]
    pub fn next_tick(&self) -> Option<u64> {
        self.shared.lock().next_due()
    }

    /// Executes the ticks up to and including `tick`; ticks that change nothing are skipped.
    pub fn advance_to(&self, tick: u64) {
        let mut state = self.shared.lock();
        while let Some(due) = state.next_due().filter(|due| *due <= tick) {
            state.tick = due - 1;
            state.pass_time();
        }
        state.tick = state.tick.max(tick);
    }

    /// Whether a machine has completions or events that its programs have not taken.
    #[must_use]
    pub fn has_pending_events(&self, machine: &Fake) -> bool {
        self.shared.lock().has_pending_events(machine.machine())
    }

    /// The number of the queue pair at the other end of a connection.
    #[must_use]
    pub fn peer_of(&self, qp_number: u32) -> Option<u32> {
        let state = self.shared.lock();
        let own = state.queue_pairs.get(state.queue_pair_of(qp_number)?)?;
        Some(state.queue_pairs.get(own.peer?)?.number)
    }

    /// Send requests of a queue pair that are posted, or completed and not polled.
    #[must_use]
    pub fn sends_in_use(&self, qp_number: u32) -> Option<u32> {
        let state = self.shared.lock();
        let queue_pair = state.queue_pairs.get(state.queue_pair_of(qp_number)?)?;
        Some(queue_pair.sends_in_use)
    }

    /// The addresses that the peer of a queue pair has read since the last call. They are recorded
    /// from the first call on.
    pub fn take_reads(&self, qp_number: u32) -> Vec<u64> {
        let mut state = self.shared.lock();
        let found = state.queue_pair_of(qp_number);
        let queue_pair = found.and_then(|key| state.queue_pairs.get_mut(key));
        let reads = queue_pair.map(|it| it.reads_served.get_or_insert_default());
        reads.map(std::mem::take).unwrap_or_default()
    }

    /// The requests that are posted to the shared receive queues of a machine.
    #[must_use]
    pub fn shared_receives(&self, machine: &Fake) -> SharedReceives {
        let state = self.shared.lock();
        let mut found = SharedReceives::default();
        for (_, queue) in state.shared_receives.iter() {
            let domain = state.domains.get(queue.domain);
            let device = domain.and_then(|it| state.devices.get(it.device));
            if device.is_none_or(|it| it.machine != machine.machine()) {
                continue;
            }
            let posted = queue.receives.posted.iter();
            let with_data = posted.filter(|it| it.memory.as_slice().len() > 1);
            found.with_data += with_data.count();
            found.requests.push(queue.receives.requests);
        }
        found
    }

    /// Delays all requests of a queue pair until `tick`.
    pub fn stall(&self, qp_number: u32, tick: u64) {
        let mut state = self.shared.lock();
        let found = state.queue_pair_of(qp_number);
        if let Some(queue_pair) = found.and_then(|key| state.queue_pairs.get_mut(key)) {
            queue_pair.stalled_until = queue_pair.stalled_until.max(tick);
        }
    }

    /// Disconnects the two ends of a connection silently: neither is notified or reaches the other
    /// as long as the queue pair exists, and requests are retried as often as the connection
    /// allows.
    pub fn partition(&self, qp_number: u32) {
        let mut state = self.shared.lock();
        if let Some(key) = state.queue_pair_of(qp_number) {
            state.set_partitioned(key, true);
        }
    }
}

/// Polling interval of a stuck request, in ticks, when the fabric is driven by ticks.
const STUCK_POLL_TICKS: u64 = 100;

impl State {
    pub(super) fn queue_pair_of(&self, qp_number: u32) -> Option<Key> {
        let mut queue_pairs = self.queue_pairs.iter();
        queue_pairs.find_map(|(key, one)| (one.number == qp_number).then_some(key))
    }

    /// Sets or clears the silent state of a queue pair and its peer.
    pub(super) fn set_partitioned(&mut self, key: Key, is_partitioned: bool) {
        let peer = self.queue_pairs.get(key).and_then(|one| one.peer);
        for end in [Some(key), peer].into_iter().flatten() {
            if let Some(queue_pair) = self.queue_pairs.get_mut(end) {
                queue_pair.is_partitioned = is_partitioned;
            }
        }
    }

    pub(super) fn has_partition(&self, key: Key) -> bool {
        self.queue_pairs
            .get(key)
            .is_some_and(|one| one.is_partitioned)
    }

    fn next_due(&self) -> Option<u64> {
        let parcels = self.in_transit.iter().map(|transit| transit.due);
        let active = self.active.iter();
        let requests = active.filter_map(|key| self.due_of(self.queue_pairs.get(*key)?));
        let next = parcels.chain(requests).min()?;
        Some(next.max(self.tick + 1))
    }

    /// When the first request of a queue pair is processed next.
    fn due_of(&self, queue_pair: &QueuePairObject) -> Option<u64> {
        if queue_pair.head.wedged {
            let is_failed = queue_pair.state == QueuePairState::Error;
            return is_failed.then_some(self.tick + STUCK_POLL_TICKS);
        }
        match queue_pair.state {
            QueuePairState::ReadyToSend => {}
            QueuePairState::Error => return Some(self.tick),
            _ => return None,
        }
        let head = &queue_pair.head;
        let starts_at = head.blocked_until.max(queue_pair.stalled_until);
        if starts_at > self.tick {
            return Some(starts_at);
        }
        if head.not_ready_until > self.tick {
            let patient = queue_pair.rnr_retries == RNR_RETRY_FOREVER;
            return Some(if patient {
                head.not_ready_until
            } else {
                head.next_try
            });
        }
        let waits = head.rnr_retries > 0 && self.waits_for_receive(queue_pair);
        (!waits).then_some(head.next_try)
    }

    /// Whether a queue pair only waits for the peer to post a receive.
    fn waits_for_receive(&self, queue_pair: &QueuePairObject) -> bool {
        let peer = queue_pair.peer.and_then(|key| self.queue_pairs.get(key));
        let Some(peer) = peer.filter(|_| !queue_pair.is_partitioned) else {
            return false;
        };
        let receives = match peer.source {
            ReceiveSource::Own => Some(&peer.receives),
            ReceiveSource::Shared(key) => self.shared_receives.get(key).map(|one| &one.receives),
        };
        let is_responder = matches!(
            peer.state,
            QueuePairState::ReadyToReceive | QueuePairState::ReadyToSend
        );
        let works = is_responder && self.device_works(peer.device);
        let none = receives.is_some_and(|receives| receives.posted.is_empty());
        works && none && queue_pair.rnr_retries == RNR_RETRY_FOREVER
    }

    fn has_pending_events(&self, machine: usize) -> bool {
        let is_here = |device| {
            self.devices
                .get(device)
                .is_some_and(|one| one.machine == machine)
        };
        let mut channels = self.channels.iter();
        let mut queues = self.completion_queues.iter();
        let mut devices = self.devices.iter();
        channels.any(|(_, one)| one.machine == machine && !one.events.is_empty())
            || queues.any(|(_, one)| is_here(one.device) && !one.ring.is_empty())
            || devices.any(|(_, one)| {
                // A device that every program has released has no one to take its events.
                let has_owner = std::sync::Arc::strong_count(&one.notifier) > 1;
                one.machine == machine && has_owner && !one.events.is_empty()
            })
    }
}
