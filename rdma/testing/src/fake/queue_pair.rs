//! Queue pairs of the fabric, as handles for their users.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::fake::counters::Operation;
use crate::fake::memory::Keys;
use crate::fake::objects::{Fake, FakeDomain, FakeRegistration, FakeWindow, Owned, limit};
use crate::fake::state::{
    Action, Head, INLINE_BYTES_MAX, QueuePairObject, ReceiveRing, ReceiveSource, SendEntry, Stage,
    State,
};
use crate::fake::table::Key;
use rdma::{
    Device, Domain, Error, FlushError, Payload, PostError, QueuePair, QueuePairCapacity,
    QueuePairOptions, QueuePairState, ReceiveRequest, Registration, SGES_MAX, SendOperation,
    SendRequest, SgeList, Token, WindowBinding,
};

/// A queue pair of the fabric.
#[derive(Debug)]
pub struct FakeQueuePair {
    owned: Arc<Owned>,
    number: u32,
    capacity: QueuePairCapacity,
    shared_receives: bool,
    read_sges: u32,
    sends: Vec<SendEntry>,
    receives: Vec<ReceiveRequest>,
    life: ObjectState,
}

/// Whether a queue pair exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ObjectState {
    Alive,
    Destroyed,
    /// The device refused to destroy it, and still executes its requests.
    Refused,
}

impl Drop for FakeQueuePair {
    fn drop(&mut self) {
        // A poster that needs the result calls `destroy` itself.
        let _ = self.destroy();
    }
}

impl FakeQueuePair {
    pub(super) fn new(
        id: &Arc<Owned>,
        token: Token,
        domain: &FakeDomain,
        options: &QueuePairOptions<'_, Fake>,
    ) -> Result<Self, Error> {
        let device = domain.device();
        let limits = device.limits();
        let mut capacity = options.capacity;
        if options.shared_receives.is_some() {
            capacity.receive_requests = 0;
        }
        check(&capacity, device)?;
        let (source, parents) = parent_objects(domain, options);
        let mut state = id.shared.lock();
        let (send_completions, receive_completions) = (parents[1].key, parents[2].key);
        let queues = [send_completions, receive_completions];
        state.check_parents(device.key(), domain.owned().key, source, &queues)?;
        let device_state = state.devices.get(device.key());
        let granted = device_state.map_or(0, |device| device.inline_bytes);
        capacity.inline_bytes = capacity.inline_bytes.min(granted);
        let count = state.queue_pairs.len() as u64 + 1;
        limit("queue pairs", count, limits.queue_pairs.into())?;
        let number = state.next_number;
        let object = QueuePairObject {
            number,
            machine: state.machine_of(device.key()),
            device: device.key(),
            domain: domain.owned().key,
            token,
            state: QueuePairState::Initialized,
            peer: None,
            send_completions,
            receive_completions,
            source,
            sends: VecDeque::with_capacity(capacity.send_requests as usize),
            sends_in_use: 0,
            sends_max: capacity.send_requests,
            unsignalled: 0,
            head: Head::default(),
            receives: ReceiveRing::new(capacity.receive_requests),
            listed: false,
            stalled_until: 0,
            is_partitioned: false,
            initiator_depth: 0,
            responder_resources: 0,
            retries: 0,
            reads_served: None,
            rnr_retries: 0,
        };
        let key = state.add_queue_pair(id.key, object)?;
        drop(state);
        Ok(Self {
            owned: Owned::new(&id.shared, key, State::drop_queue_pair, parents),
            number,
            capacity,
            shared_receives: options.shared_receives.is_some(),
            read_sges: limits.read_sges,
            sends: Vec::with_capacity(capacity.send_requests as usize),
            receives: Vec::with_capacity(capacity.receive_requests as usize),
            life: ObjectState::Alive,
        })
    }

    fn add(&mut self, entry: SendEntry) -> Result<(), PostError> {
        if self.sends.len() == self.capacity.send_requests as usize {
            return Err(PostError::QueueFull);
        }
        self.sends.push(entry);
        Ok(())
    }
}

/// The source of a queue pair's receives, and the objects that it keeps alive: the domain, the
/// completion queues and the shared receives.
fn parent_objects(
    domain: &FakeDomain,
    options: &QueuePairOptions<'_, Fake>,
) -> (ReceiveSource, Vec<Arc<Owned>>) {
    let mut parents = vec![
        Arc::clone(domain.owned()),
        Arc::clone(options.send_completions.owned()),
        Arc::clone(options.receive_completions.owned()),
    ];
    let Some(queue) = options.shared_receives else {
        return (ReceiveSource::Own, parents);
    };
    parents.push(Arc::clone(queue.owned()));
    (ReceiveSource::Shared(queue.owned().key), parents)
}

/// Whether a device grants this capacity.
fn check(capacity: &QueuePairCapacity, device: &impl Device) -> Result<(), Error> {
    let limits = device.limits();
    let requests = limits.queue_pair_requests.into();
    limit("send requests", capacity.send_requests.into(), requests)?;
    limit(
        "receive requests",
        capacity.receive_requests.into(),
        requests,
    )?;
    let sges = limits.sges.min(SGES_MAX as u32).into();
    limit(
        "pieces of memory in a send",
        capacity.send_sges.into(),
        sges,
    )?;
    limit(
        "pieces of memory in a receive",
        capacity.receive_sges.into(),
        sges,
    )
}

impl State {
    fn machine_of(&self, device: Key) -> usize {
        self.devices.get(device).map_or(0, |device| device.machine)
    }

    /// Whether all objects belong to one device, and the shared receives to the domain.
    fn check_parents(
        &self,
        device: Key,
        domain: Key,
        source: ReceiveSource,
        queues: &[Key],
    ) -> Result<(), Error> {
        let removed = self.devices.get(device).is_none_or(|one| one.removed);
        if removed {
            return Err(Error::DeviceGone);
        }
        let foreign = |key| {
            self.completion_queues
                .get(key)
                .is_none_or(|one| one.device != device)
        };
        if queues.iter().copied().any(foreign) {
            return Err(Error::Misuse("a completion queue is of another device"));
        }
        let domain_device = self.domains.get(domain).map(|one| one.device);
        if domain_device != Some(device) {
            return Err(Error::Misuse("the domain is of another device"));
        }
        if let ReceiveSource::Shared(key) = source
            && self
                .shared_receives
                .get(key)
                .is_none_or(|one| one.domain != domain)
        {
            return Err(Error::Misuse(
                "the shared receive queue is of another domain",
            ));
        }
        Ok(())
    }

    fn add_queue_pair(&mut self, id: Key, object: QueuePairObject) -> Result<Key, Error> {
        let connection = self
            .ids
            .get(id)
            .ok_or(Error::Misuse("the connection is gone"))?;
        if connection.device != Some(object.device) {
            return Err(Error::Misuse("the connection is of another device"));
        }
        let early = [
            Stage::AddressResolved,
            Stage::ResolvingRoute,
            Stage::RouteResolved,
        ];
        let ready = early.contains(&connection.stage) || connection.stage == Stage::Requested;
        if connection.queue_pair.is_some() || !ready {
            return Err(Error::Misuse("the connection takes no queue pair now"));
        }
        self.next_number += 1;
        let key = self.queue_pairs.insert(object);
        // Reserve here, so that the lists of active queue pairs never grow on the I/O path.
        let count = self.queue_pairs.len();
        for list in [&mut self.active, &mut self.active_spare] {
            list.reserve(count.saturating_sub(list.len()));
        }
        if let Some(connection) = self.ids.get_mut(id) {
            connection.queue_pair = Some(key);
        }
        Ok(key)
    }

    fn drop_queue_pair(&mut self, key: Key) {
        self.queue_pairs.remove(key);
    }
}

impl QueuePair for FakeQueuePair {
    type Provider = Fake;

    fn number(&self) -> u32 {
        self.number
    }

    fn capacity(&self) -> QueuePairCapacity {
        self.capacity
    }

    fn state(&self) -> Result<QueuePairState, Error> {
        let state = self.owned.shared.lock();
        let queue_pair = state.queue_pairs.get(self.owned.key);
        queue_pair.map(|one| one.state).ok_or(Error::DeviceGone)
    }

    fn destroy(&mut self) -> Result<(), Error> {
        if self.life == ObjectState::Alive {
            let mut state = self.owned.shared.lock();
            let is_refused = state.destructions_refused > 0;
            state.destructions_refused -= u32::from(is_refused);
            if is_refused {
                drop(state);
                // It stays, with everything that it was created from.
                std::mem::forget(Arc::clone(&self.owned));
                self.life = ObjectState::Refused;
            } else {
                state.drop_queue_pair(self.owned.key);
                self.life = ObjectState::Destroyed;
            }
        }
        match self.life {
            ObjectState::Alive | ObjectState::Destroyed => Ok(()),
            ObjectState::Refused => Err(Error::Misuse("the device did not destroy the queue pair")),
        }
    }

    fn set_error(&mut self) -> Result<(), Error> {
        self.owned.shared.lock().fail_queue_pair(self.owned.key);
        Ok(())
    }

    // Never inlined, so that profiles separate the fabric from its users.
    #[inline(never)]
    fn queue_send(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let mut entry = SendEntry {
            wr_id: request.wr_id,
            action: Action::Send(request.operation),
            memory: SgeList::EMPTY,
            inline: [0; INLINE_BYTES_MAX],
            inline_len: None,
            signalled: request.signalled,
            solicited: request.solicited,
        };
        let read = matches!(request.operation, SendOperation::Read(_));
        match request.payload {
            Payload::Inline(bytes) => {
                if read || bytes.len() > self.capacity.inline_bytes as usize {
                    return Err(PostError::InlineTooLong);
                }
                entry.inline[..bytes.len()].copy_from_slice(bytes);
                entry.inline_len = Some(bytes.len() as u8);
            }
            Payload::Memory(pieces) => {
                let most = match read {
                    true => self.capacity.send_sges.min(self.read_sges),
                    false => self.capacity.send_sges,
                };
                if pieces.len() > most as usize {
                    return Err(PostError::TooManyPieces);
                }
                if request.payload.bytes() > 1 << 31 {
                    return Err(PostError::NotPossible);
                }
                for piece in pieces {
                    let added = entry.memory.push(*piece);
                    added.map_err(|_| PostError::TooManyPieces)?;
                }
            }
        }
        self.add(entry)
    }

    #[inline]
    fn signal_last(&mut self) {
        if let Some(last) = self.sends.last_mut() {
            last.signalled = true;
        }
    }

    fn queue_bind(
        &mut self,
        window: &mut FakeWindow,
        registration: &FakeRegistration,
        binding: &WindowBinding,
    ) -> Result<(), PostError> {
        let rkey = Keys::next_window_key(window.rkey);
        self.add(SendEntry {
            wr_id: binding.wr_id,
            action: Action::Bind {
                rkey,
                lkey: registration.lkey(),
                address: binding.address,
                length: binding.length,
                remote_read: binding.remote_read,
                remote_write: binding.remote_write,
            },
            memory: SgeList::EMPTY,
            inline: [0; INLINE_BYTES_MAX],
            inline_len: None,
            signalled: binding.signalled,
            solicited: false,
        })?;
        window.rkey = rkey;
        Ok(())
    }

    // Never inlined, so that profiles separate the fabric from its users.
    #[inline(never)]
    fn queue_receive(&mut self, request: &ReceiveRequest) -> Result<(), PostError> {
        if self.shared_receives {
            return Err(PostError::NotPossible);
        }
        if request.memory.as_slice().len() > self.capacity.receive_sges as usize {
            return Err(PostError::TooManyPieces);
        }
        if self.receives.len() == self.capacity.receive_requests as usize {
            return Err(PostError::QueueFull);
        }
        self.receives.push(*request);
        Ok(())
    }

    // Never inlined, so that profiles separate the fabric from its users.
    #[inline(never)]
    fn flush(&mut self) -> Result<(), FlushError> {
        if self.sends.is_empty() && self.receives.is_empty() {
            return Ok(());
        }
        let key = self.owned.key;
        let mut state = self.owned.shared.lock();
        let received = state.post_receives(key, &mut self.receives);
        let sent = state.post_sends(key, &mut self.sends);
        let in_error = state.queue_pairs.get(key).map(|one| one.state);
        if in_error == Some(QueuePairState::Error) {
            state.flush_all(key);
        } else {
            state.list(key);
        }
        if state.config.execution_mode.is_immediate() {
            state.run(true);
        }
        received.and(sent)
    }
}

impl State {
    fn post_receives(
        &mut self,
        key: Key,
        pending: &mut Vec<ReceiveRequest>,
    ) -> Result<(), FlushError> {
        let Some(queue_pair) = self.queue_pairs.get_mut(key) else {
            return Ok(());
        };
        if pending.is_empty() {
            return Ok(());
        }
        let (posted, outcome) = queue_pair.receives.post(pending);
        let machine = queue_pair.machine;
        let counters = self.counters(machine);
        counters.doorbells += 1;
        counters.at(Operation::Receive).posted += u64::from(posted);
        outcome
    }

    fn post_sends(&mut self, key: Key, pending: &mut Vec<SendEntry>) -> Result<(), FlushError> {
        let Some(queue_pair) = self.queue_pairs.get_mut(key) else {
            return Ok(());
        };
        if pending.is_empty() {
            return Ok(());
        }
        let takes = matches!(
            queue_pair.state,
            QueuePairState::ReadyToSend | QueuePairState::Error
        );
        let (room, cause) = match takes {
            true => (
                queue_pair.sends_max - queue_pair.sends_in_use,
                PostError::QueueFull,
            ),
            false => (0, PostError::NotPossible),
        };
        let fits = pending.len().min(room as usize);
        let outcome = match pending.get(fits) {
            None => Ok(()),
            Some(first) => Err(FlushError {
                first_wr_id: first.wr_id,
                refused: (pending.len() - fits) as u32,
                cause,
            }),
        };
        queue_pair.sends_in_use += fits as u32;
        let machine = queue_pair.machine;
        let counters = &mut self.machines[machine].counters;
        counters.doorbells += 1;
        for entry in pending.drain(..).take(fits) {
            counters.at(entry.action.operation()).posted += 1;
            counters.inline += u64::from(entry.inline_len.is_some());
            queue_pair.sends.push_back(entry);
        }
        outcome
    }
}
