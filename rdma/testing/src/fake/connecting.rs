//! The connection manager's objects as handles for their users.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::fake::Shared;
use crate::fake::manager::DeliveredEvent;
use crate::fake::notifier::Notifier;
use crate::fake::objects::{Fake, FakeDevice, FakeDomain, Owned};
use crate::fake::queue_pair::FakeQueuePair;
use crate::fake::state::State;
use crate::fake::table::Key;
use rdma::{
    ConnectParameters, ConnectRequest, Connection, Error, Event, EventChannel, Listener,
    PrivateData, QueuePairOptions, Token,
};

/// An event channel of the fabric.
#[derive(Debug)]
pub struct FakeEventChannel {
    pub(super) owned: Arc<Owned>,
    pub(super) notifier: Arc<Notifier>,
}

impl FakeEventChannel {
    fn child(&self, key: Key, end: fn(&mut State, Key)) -> Arc<Owned> {
        let parents = vec![Arc::clone(&self.owned)];
        Owned::new(&self.owned.shared, key, end, parents)
    }
}

impl EventChannel for FakeEventChannel {
    type Provider = Fake;

    fn next_event(&mut self) -> Result<Option<Event<Fake>>, Error> {
        let shared = &self.owned.shared;
        let mut state = shared.lock();
        if state.config.execution_mode.is_immediate() && state.is_waiting() {
            state.pass_time();
        }
        loop {
            return Ok(match state.take_event(self.owned.key) {
                None => None,
                Some(DeliveredEvent::ListenerFailed { listener }) => {
                    Some(Event::ListenerFailed { listener })
                }
                Some(DeliveredEvent::Connection { token, event }) => {
                    Some(Event::Connection { token, event })
                }
                Some(DeliveredEvent::Request { listener, id }) => {
                    let Some(request) = FakeConnectRequest::of(shared, &state, id) else {
                        state.drop_id(id);
                        continue;
                    };
                    Some(Event::ConnectRequest { listener, request })
                }
            });
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.notifier.descriptor()
    }

    fn listen(
        &mut self,
        address: SocketAddr,
        backlog: u32,
        token: Token,
    ) -> Result<FakeListener, Error> {
        let mut state = self.owned.shared.lock();
        let (key, address) = state.listen(self.owned.key, address, backlog, token)?;
        drop(state);
        Ok(FakeListener {
            _owned: self.child(key, State::drop_listener),
            address,
        })
    }

    fn connection(&mut self, token: Token) -> Result<FakeConnection, Error> {
        let key = self.owned.shared.lock().create_id(self.owned.key, token)?;
        Ok(FakeConnection {
            owned: self.child(key, State::drop_id),
            token,
        })
    }
}

/// A listener of the fabric.
#[derive(Debug)]
pub struct FakeListener {
    _owned: Arc<Owned>,
    address: SocketAddr,
}

impl Listener for FakeListener {
    fn local_address(&self) -> SocketAddr {
        self.address
    }
}

/// A connection request of the fabric.
#[derive(Debug)]
pub struct FakeConnectRequest {
    owned: Arc<Owned>,
    device: FakeDevice,
    private_data: PrivateData,
    initiator_depth: u8,
    responder_resources: u8,
    local: SocketAddr,
    peer: SocketAddr,
}

impl FakeConnectRequest {
    fn of(shared: &Arc<Shared>, state: &State, id: Key) -> Option<Self> {
        let request = state.ids.get(id)?;
        let device = request.device?;
        let (local, peer) = (request.local?, request.peer_address?);
        Some(Self {
            device: FakeDevice::of_state(shared, state.devices.get(device)?, device),
            private_data: request.private_data,
            initiator_depth: request.initiator_depth,
            responder_resources: request.responder_resources,
            local,
            peer,
            // Last: a handle must not be dropped while the state is locked.
            owned: Owned::new(shared, id, State::drop_id, Vec::new()),
        })
    }
}

impl ConnectRequest for FakeConnectRequest {
    type Provider = Fake;

    fn device(&self) -> &FakeDevice {
        &self.device
    }

    fn private_data(&self) -> &PrivateData {
        &self.private_data
    }

    fn initiator_depth(&self) -> u8 {
        self.initiator_depth
    }

    fn responder_resources(&self) -> u8 {
        self.responder_resources
    }

    fn local_address(&self) -> SocketAddr {
        self.local
    }

    fn peer_address(&self) -> SocketAddr {
        self.peer
    }

    fn into_connection(
        self,
        channel: &mut FakeEventChannel,
        token: Token,
    ) -> Result<FakeConnection, Error> {
        let mut state = self.owned.shared.lock();
        let id = state.ids.get_mut(self.owned.key);
        let id = id.ok_or(Error::Misuse("the request is gone"))?;
        id.channel = Some(channel.owned.key);
        id.token = token;
        drop(state);
        // The connection takes over the request's handle, and with it the exclusive right to end
        // it.
        Ok(FakeConnection {
            owned: self.owned,
            token,
        })
    }

    fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        let mut state = self.owned.shared.lock();
        state.reject(self.owned.key, private_data)
    }
}

/// A connection of the fabric.
#[derive(Debug)]
pub struct FakeConnection {
    owned: Arc<Owned>,
    token: Token,
}

impl Connection for FakeConnection {
    type Provider = Fake;

    fn token(&self) -> Token {
        self.token
    }

    fn device(&self) -> Option<FakeDevice> {
        let shared = &self.owned.shared;
        let state = shared.lock();
        let key = state.ids.get(self.owned.key)?.device?;
        let device = state.devices.get(key)?;
        Some(FakeDevice::of_state(shared, device, key))
    }

    fn local_address(&self) -> Option<SocketAddr> {
        self.owned.shared.lock().ids.get(self.owned.key)?.local
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        let state = self.owned.shared.lock();
        state.ids.get(self.owned.key)?.peer_address
    }

    fn resolve_address(
        &mut self,
        source: Option<SocketAddr>,
        peer: SocketAddr,
        _timeout: Duration,
    ) -> Result<(), Error> {
        let mut state = self.owned.shared.lock();
        state.resolve_address(self.owned.key, source, peer)
    }

    fn resolve_route(&mut self, _timeout: Duration) -> Result<(), Error> {
        self.owned.shared.lock().resolve_route(self.owned.key)
    }

    fn create_queue_pair(
        &mut self,
        domain: &FakeDomain,
        options: &QueuePairOptions<'_, Fake>,
    ) -> Result<FakeQueuePair, Error> {
        FakeQueuePair::new(&self.owned, self.token, domain, options)
    }

    fn connect(&mut self, parameters: &ConnectParameters<'_>) -> Result<(), Error> {
        let mut state = self.owned.shared.lock();
        state.connect(self.owned.key, parameters)
    }

    fn accept(&mut self, parameters: &ConnectParameters<'_>) -> Result<(), Error> {
        let mut state = self.owned.shared.lock();
        state.accept(self.owned.key, parameters)
    }

    fn reject(&mut self, private_data: &[u8]) -> Result<(), Error> {
        let mut state = self.owned.shared.lock();
        state.reject(self.owned.key, private_data)
    }

    fn disconnect(&mut self) -> Result<(), Error> {
        self.owned.shared.lock().disconnect(self.owned.key);
        Ok(())
    }
}
