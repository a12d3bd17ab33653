//! Handles to the fabric's objects, which keep their parents alive.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::fake::Shared;
use crate::fake::connecting::{FakeConnectRequest, FakeConnection, FakeEventChannel, FakeListener};
use crate::fake::counters::{FakeCounters, Operation};
use crate::fake::memory::OfDevice;
use crate::fake::notifier::Notifier;
use crate::fake::queue_pair::FakeQueuePair;
use crate::fake::state::{
    Armed, ChannelState, CompletionQueueState, DomainState, ReceiveRing, ReceiveSource,
    SharedReceiveState, State,
};
use crate::fake::table::Key;
use rdma::{
    Access, CompletionQueue, Device, DeviceEvent, DeviceIndex, DeviceLimits, DeviceRange, Domain,
    Error, FlushError, MemoryRange, MemoryWindow, PostError, Provider, ReceiveRequest,
    Registration, SharedReceiveQueue, Token, Unavailable, WorkCompletion,
};

/// An object of the fabric. It ends with its last handle, and then releases its parents.
#[derive(Debug)]
pub(super) struct Owned {
    pub(super) shared: Arc<Shared>,
    pub(super) key: Key,
    end: fn(&mut State, Key),
    _parents: Vec<Arc<Owned>>,
}

impl Owned {
    pub(super) fn new(
        shared: &Arc<Shared>,
        key: Key,
        end: fn(&mut State, Key),
        parents: Vec<Arc<Owned>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            key,
            end,
            _parents: parents,
        })
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        (self.end)(&mut self.shared.lock(), self.key);
    }
}

pub(super) fn limit(what: &'static str, wanted: u64, limit: u64) -> Result<(), Error> {
    if wanted <= limit {
        return Ok(());
    }
    Err(Error::Limit {
        what,
        wanted,
        limit,
    })
}

/// RDMA for the programs of one machine.
#[derive(Clone, Debug)]
pub struct Fake {
    shared: Arc<Shared>,
    machine: usize,
}

impl Fake {
    pub(super) fn new(shared: Arc<Shared>, machine: usize) -> Self {
        Self { shared, machine }
    }

    /// The machine's number, counted from 0.
    #[must_use]
    pub fn machine(&self) -> usize {
        self.machine
    }

    /// Counters of its devices.
    #[must_use]
    pub fn counters(&self) -> FakeCounters {
        *self.shared.lock().counters(self.machine)
    }
}

impl Provider for Fake {
    type Device = FakeDevice;
    type Domain = FakeDomain;
    type Registration = FakeRegistration;
    type Window = FakeWindow;
    type CompletionQueue = FakeCompletionQueue;
    type SharedReceiveQueue = FakeSharedReceiveQueue;
    type QueuePair = FakeQueuePair;
    type EventChannel = FakeEventChannel;
    type Listener = FakeListener;
    type ConnectRequest = FakeConnectRequest;
    type Connection = FakeConnection;

    fn devices(&self) -> Result<Vec<FakeDevice>, Error> {
        let state = self.shared.lock();
        let keys = state.machines.get(self.machine);
        let devices: Vec<FakeDevice> = (keys.into_iter().flat_map(|one| &one.devices))
            .filter_map(|key| FakeDevice::of(&self.shared, &state, *key))
            .collect();
        if devices.is_empty() {
            return Err(Unavailable::NoDevice.into());
        }
        Ok(devices)
    }

    fn event_channel(&self) -> Result<FakeEventChannel, Error> {
        let notifier = Arc::new(Notifier::new()?);
        let key = self.shared.lock().channels.insert(ChannelState {
            machine: self.machine,
            events: std::collections::VecDeque::new(),
            notifier: Arc::clone(&notifier),
        });
        let end = State::drop_channel;
        Ok(FakeEventChannel {
            owned: Owned::new(&self.shared, key, end, Vec::new()),
            notifier,
        })
    }
}

/// A device of the fabric.
#[derive(Clone, Debug)]
pub struct FakeDevice {
    shared: Arc<Shared>,
    key: Key,
    index: DeviceIndex,
    name: Arc<str>,
    limits: Arc<DeviceLimits>,
    notifier: Arc<Notifier>,
}

impl FakeDevice {
    /// The device, unless it was removed.
    fn of(shared: &Arc<Shared>, state: &State, key: Key) -> Option<Self> {
        let device = state.devices.get(key).filter(|one| !one.removed)?;
        Some(Self::of_state(shared, device, key))
    }

    pub(super) fn of_state(
        shared: &Arc<Shared>,
        device: &crate::fake::state::DeviceState,
        key: Key,
    ) -> Self {
        Self {
            shared: Arc::clone(shared),
            key,
            index: device.index,
            name: Arc::clone(&device.name),
            limits: Arc::clone(&device.limits),
            notifier: Arc::clone(&device.notifier),
        }
    }

    pub(super) fn key(&self) -> Key {
        self.key
    }

    /// Number of handles, including the fabric's own.
    pub(super) fn handles(&self) -> usize {
        Arc::strong_count(&self.notifier)
    }
}

impl Device for FakeDevice {
    type Provider = Fake;

    fn index(&self) -> DeviceIndex {
        self.index
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    fn port_is_up(&self, port: u8) -> Result<bool, Error> {
        limit("ports", port.into(), self.limits.ports.into())?;
        match self.shared.lock().devices.get(self.key) {
            Some(device) if !device.removed => Ok(device.up),
            _ => Err(Error::DeviceGone),
        }
    }

    fn create_domain(&self) -> Result<FakeDomain, Error> {
        let mut state = self.shared.lock();
        let known = state.devices.get(self.key);
        if known.is_none_or(|device| device.removed) {
            return Err(Error::DeviceGone);
        }
        let key = state.domains.insert(DomainState { device: self.key });
        let end = |state: &mut State, key| {
            state.domains.remove(key);
        };
        Ok(FakeDomain {
            owned: Owned::new(&self.shared, key, end, Vec::new()),
            device: self.clone(),
        })
    }

    fn next_event(&self) -> Option<DeviceEvent> {
        let mut state = self.shared.lock();
        let device = state.devices.get_mut(self.key)?;
        let event = device.events.pop_front();
        if event.is_none() {
            device.notifier.clear();
        }
        event
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.notifier.descriptor()
    }
}

/// A protection domain of the fabric.
#[derive(Clone, Debug)]
pub struct FakeDomain {
    owned: Arc<Owned>,
    device: FakeDevice,
}

impl FakeDomain {
    pub(super) fn owned(&self) -> &Arc<Owned> {
        &self.owned
    }

    fn alive(&self, state: &State) -> Result<(), Error> {
        let device = state.devices.get(self.device.key);
        match device.is_none_or(|device| device.removed) {
            true => Err(Error::DeviceGone),
            false => Ok(()),
        }
    }

    fn child(&self, key: Key, end: fn(&mut State, Key)) -> Arc<Owned> {
        let parents = vec![Arc::clone(&self.owned)];
        Owned::new(&self.owned.shared, key, end, parents)
    }
}

impl Domain for FakeDomain {
    type Provider = Fake;

    fn device(&self) -> &FakeDevice {
        &self.device
    }

    fn register(&self, range: MemoryRange<'_>, access: Access) -> Result<FakeRegistration, Error> {
        let limits = &self.device.limits;
        let what = "bytes of one memory registration";
        limit(what, range.len() as u64, limits.registration_bytes)?;
        if access.remote_write && !access.local_write {
            return Err(Error::Misuse("remote writing needs local writing"));
        }
        let mut state = self.owned.shared.lock();
        self.alive(&state)?;
        let count = state.keys.len() as u64 + 1;
        limit("memory registrations", count, limits.registrations.into())?;
        let view = state.views.of(&range)?;
        let lkey = state.keys.register(self.owned.key, &range, access, view);
        drop(state);
        Ok(FakeRegistration {
            shared: Arc::clone(&self.owned.shared),
            address: range.address(),
            bytes: range.len(),
            lkey,
            _domain: self.clone(),
        })
    }

    fn register_device_memory(
        &self,
        range: DeviceRange<'_>,
        access: Access,
    ) -> Result<FakeRegistration, Error> {
        let limits = &self.device.limits;
        let what = "bytes of one memory registration";
        limit(what, range.bytes(), limits.registration_bytes)?;
        let mut state = self.owned.shared.lock();
        let memory = OfDevice::map(&range, &state.keys.slots)?;
        self.alive(&state)?;
        let device = state.devices.get(self.device.key);
        if !device.is_some_and(|it| it.registers_device_memory) {
            let why = "the driver of the RDMA device registers no dma-buf";
            return Err(Error::NoDeviceMemory(why));
        }
        let count = state.keys.len() as u64 + 1;
        limit("memory registrations", count, limits.registrations.into())?;
        let lkey = (state.keys).register_of_device(self.owned.key, &range, access, memory);
        drop(state);
        Ok(FakeRegistration {
            shared: Arc::clone(&self.owned.shared),
            address: range.address() as usize,
            bytes: range.bytes() as usize,
            lkey,
            _domain: self.clone(),
        })
    }

    fn create_window(&self) -> Result<FakeWindow, Error> {
        let mut state = self.owned.shared.lock();
        self.alive(&state)?;
        let count = state.keys.len() as u64 + 1;
        limit("memory windows", count, self.device.limits.windows.into())?;
        let rkey = state.keys.create_window(self.owned.key);
        drop(state);
        Ok(FakeWindow {
            shared: Arc::clone(&self.owned.shared),
            rkey,
            _domain: self.clone(),
        })
    }

    fn create_completion_queue(
        &self,
        entries: u32,
        token: Token,
    ) -> Result<FakeCompletionQueue, Error> {
        let limits = &self.device.limits;
        let (wanted, allowed) = (entries.into(), limits.completion_queue_entries.into());
        limit("completion queue entries", wanted, allowed)?;
        let entries = entries.max(1);
        let notifier = Arc::new(Notifier::new()?);
        let mut state = self.owned.shared.lock();
        self.alive(&state)?;
        let key = state.completion_queues.insert(CompletionQueueState {
            device: self.device.key,
            token,
            entries: entries as usize,
            ring: std::collections::VecDeque::with_capacity(entries as usize),
            armed: Armed::No,
            failed: false,
            notifier: Arc::clone(&notifier),
        });
        drop(state);
        let end = |state: &mut State, key| drop(state.completion_queues.remove(key));
        Ok(FakeCompletionQueue {
            owned: self.child(key, end),
            entries,
            notifier,
        })
    }

    fn create_shared_receive_queue(
        &self,
        requests: u32,
        sges: u32,
        token: Token,
    ) -> Result<FakeSharedReceiveQueue, Error> {
        let limits = &self.device.limits;
        let (wanted, allowed) = (requests.into(), limits.shared_receive_requests.into());
        limit("shared receive requests", wanted, allowed)?;
        let (wanted, allowed) = (sges.into(), limits.shared_receive_sges.into());
        limit("pieces of memory in a shared receive", wanted, allowed)?;
        let mut state = self.owned.shared.lock();
        self.alive(&state)?;
        let count = state.shared_receives.len() as u64 + 1;
        limit(
            "shared receive queues",
            count,
            limits.shared_receive_queues.into(),
        )?;
        let key = state.shared_receives.insert(SharedReceiveState {
            domain: self.owned.key,
            token,
            receives: ReceiveRing::new(requests),
            low_limit: 0,
        });
        drop(state);
        let end = |state: &mut State, key| drop(state.shared_receives.remove(key));
        Ok(FakeSharedReceiveQueue {
            owned: self.child(key, end),
            machine_of: self.device.key,
            requests,
            sges,
            pending: Vec::with_capacity(requests as usize),
        })
    }
}

/// A registration of the fabric.
#[derive(Debug)]
pub struct FakeRegistration {
    shared: Arc<Shared>,
    address: usize,
    bytes: usize,
    lkey: u32,
    _domain: FakeDomain,
}

impl Registration for FakeRegistration {
    fn address(&self) -> usize {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn lkey(&self) -> u32 {
        self.lkey
    }

    fn rkey(&self) -> u32 {
        self.lkey | 1
    }
}

impl Drop for FakeRegistration {
    fn drop(&mut self) {
        self.shared.lock().keys.remove(self.lkey);
    }
}

/// A memory window of the fabric.
#[derive(Debug)]
pub struct FakeWindow {
    shared: Arc<Shared>,
    pub(super) rkey: u32,
    _domain: FakeDomain,
}

impl MemoryWindow for FakeWindow {
    fn rkey(&self) -> u32 {
        self.rkey
    }
}

impl Drop for FakeWindow {
    fn drop(&mut self) {
        self.shared.lock().keys.remove(self.rkey);
    }
}

/// A completion queue of the fabric.
#[derive(Debug)]
pub struct FakeCompletionQueue {
    owned: Arc<Owned>,
    entries: u32,
    notifier: Arc<Notifier>,
}

impl FakeCompletionQueue {
    pub(super) fn owned(&self) -> &Arc<Owned> {
        &self.owned
    }
}

impl CompletionQueue for FakeCompletionQueue {
    fn entries(&self) -> u32 {
        self.entries
    }

    // Never inlined, so that profiles separate the fabric from its users.
    #[inline(never)]
    fn poll(&mut self, completions: &mut [WorkCompletion]) -> Result<usize, Error> {
        let mut state = self.owned.shared.lock();
        if state.config.execution_mode.is_immediate() && state.is_waiting() {
            state.pass_time();
        }
        let mut taken = 0;
        for place in completions {
            let queue = state.completion_queues.get_mut(self.owned.key);
            let Some(queue) = queue.filter(|queue| !queue.failed) else {
                return Err(Error::Misuse("the completion queue overflowed"));
            };
            let Some(entry) = queue.ring.pop_front() else {
                break;
            };
            *place = entry.completion;
            taken += 1;
            state.free_entries(&entry);
        }
        Ok(taken)
    }

    fn arm(&mut self, solicited_only: bool) -> Result<(), Error> {
        let mut state = self.owned.shared.lock();
        let queue = state.completion_queues.get_mut(self.owned.key);
        let queue = queue.ok_or(Error::DeviceGone)?;
        queue.armed = match (queue.armed, solicited_only) {
            // A later request for solicited completions only does not narrow an earlier one.
            (Armed::Any, _) | (_, false) => Armed::Any,
            (_, true) => Armed::Solicited,
        };
        if queue.failed {
            queue.notifier.notify();
        }
        Ok(())
    }

    fn acknowledge(&mut self) -> Result<bool, Error> {
        Ok(self.notifier.clear())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.notifier.descriptor()
    }
}

impl State {
    /// Frees the queue entries of a polled completion, and counts it.
    fn free_entries(&mut self, entry: &crate::fake::state::Entry) {
        let Some(queue_pair) = self.queue_pairs.get_mut(entry.queue_pair) else {
            return;
        };
        queue_pair.sends_in_use -= entry.sends;
        let machine = queue_pair.machine;
        match entry.receive {
            Some(ReceiveSource::Own) => queue_pair.receives.taken -= 1,
            Some(ReceiveSource::Shared(key)) => {
                if let Some(shared) = self.shared_receives.get_mut(key) {
                    shared.receives.taken -= 1;
                }
            }
            None => {}
        }
        self.counters(machine).completions += 1;
    }
}

/// A shared receive queue of the fabric.
#[derive(Debug)]
pub struct FakeSharedReceiveQueue {
    owned: Arc<Owned>,
    machine_of: Key,
    requests: u32,
    sges: u32,
    pending: Vec<ReceiveRequest>,
}

impl FakeSharedReceiveQueue {
    pub(super) fn owned(&self) -> &Arc<Owned> {
        &self.owned
    }
}

impl SharedReceiveQueue for FakeSharedReceiveQueue {
    fn requests(&self) -> u32 {
        self.requests
    }

    // Never inlined, so that profiles separate the fabric from its users.
    #[inline(never)]
    fn queue_receive(&mut self, request: &ReceiveRequest) -> Result<(), PostError> {
        if request.memory.as_slice().len() > self.sges as usize {
            return Err(PostError::TooManyPieces);
        }
        if self.pending.len() == self.requests as usize {
            return Err(PostError::QueueFull);
        }
        self.pending.push(*request);
        Ok(())
    }

    fn destroy(&mut self) -> Result<(), Error> {
        if Arc::strong_count(&self.owned) > 1 {
            return Err(Error::Misuse("a queue pair takes receives from the queue"));
        }
        let mut state = self.owned.shared.lock();
        drop(state.shared_receives.remove(self.owned.key));
        Ok(())
    }

    // Never inlined, so that profiles separate the fabric from its users.
    #[inline(never)]
    fn flush(&mut self) -> Result<(), FlushError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut state = self.owned.shared.lock();
        let machine = state.devices.get(self.machine_of).map(|one| one.machine);
        let Some(queue) = state.shared_receives.get_mut(self.owned.key) else {
            self.pending.clear();
            return Ok(());
        };
        let (posted, outcome) = queue.receives.post(&mut self.pending);
        if let Some(machine) = machine {
            let counters = state.counters(machine);
            counters.doorbells += 1;
            counters.at(Operation::Receive).posted += u64::from(posted);
        }
        if state.config.execution_mode.is_immediate() {
            state.run(true);
        }
        outcome
    }

    fn set_low_limit(&mut self, requests: u32) -> Result<(), Error> {
        let mut state = self.owned.shared.lock();
        let queue = state.shared_receives.get_mut(self.owned.key);
        queue.ok_or(Error::DeviceGone)?.low_limit = requests;
        Ok(())
    }
}

impl ReceiveRing {
    /// Posts the pending receives for which there is room; returns their number.
    pub(super) fn post(
        &mut self,
        pending: &mut Vec<ReceiveRequest>,
    ) -> (u32, Result<(), FlushError>) {
        let room = (self.requests - self.taken) as usize;
        let fits = room.min(pending.len());
        let outcome = match pending.get(fits) {
            None => Ok(()),
            Some(first) => Err(FlushError {
                first_wr_id: first.wr_id,
                refused: (pending.len() - fits) as u32,
                cause: PostError::QueueFull,
            }),
        };
        self.taken += fits as u32;
        self.posted.extend(pending.drain(..).take(fits));
        (fits as u32, outcome)
    }
}
