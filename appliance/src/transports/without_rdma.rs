//! The replacement of NVMe/RDMA in builds without it: its listeners are refused.

use std::net::SocketAddr;

use appliance_config::{Config, Listener, Transport as TransportName};
use hugemem::Region;
use nvme_target::PortId;
use reactors::{InitError, Placement, Poller, ReactorHandle, ReactorSetup};

use super::{Listening, RdmaCard, Transport, TransportContext};
use crate::error::Failure;
use crate::event_loop::EventLoop;
use crate::messages::PendingResponses;
use crate::observe::sources::TransportCounters;

/// NVMe/RDMA is not in this build.
#[derive(Debug, thiserror::Error)]
#[error(
    "listener {name}: RDMA is unavailable: this program was built without it: build it with the \
     feature verbs, or use the packaged one"
)]
pub(super) struct BuiltWithout {
    name: String,
}

/// Never exists.
pub(super) enum Bound {}

impl Bound {
    /// Refuses the listener.
    ///
    /// # Errors
    /// [`BuiltWithout`], always.
    pub(super) fn new(listener: &Listener, _reactors: usize) -> Result<Self, BuiltWithout> {
        let name = listener.name.as_str().to_owned();
        Err(BuiltWithout { name })
    }

    pub(super) fn listen(
        &mut self,
        _port: PortId,
        _listener: &Listener,
    ) -> Result<SocketAddr, BuiltWithout> {
        match *self {}
    }

    pub(super) fn lower_queue_depths(&self, _config: &mut Config) {
        match *self {}
    }
}

/// Why the RDMA listeners of `config` cannot work.
pub(super) fn problem(config: &Config) -> Option<String> {
    let mut listeners = config.listeners.iter();
    let listener = listeners.find(|listener| listener.transport == TransportName::Rdma)?;
    Bound::new(listener, 1).err().map(|cause| cause.to_string())
}

/// No card is usable.
pub(super) fn cards() -> Vec<RdmaCard> {
    Vec::new()
}

/// Never exists.
pub(super) struct Rdma(Bound);

impl Rdma {
    pub(super) fn new(
        _config: &Config,
        bound: Bound,
        _reactors: usize,
        _placement: Placement,
        _regions: &[&Region],
    ) -> Result<Self, BuiltWithout> {
        Ok(Self(bound))
    }
}

impl Transport for Rdma {
    fn connections_max(&self) -> usize {
        match self.0 {}
    }

    fn counters(&self) -> TransportCounters {
        match self.0 {}
    }

    fn set_up(
        &self,
        _shared: &TransportContext,
        _setup: &mut ReactorSetup<'_>,
    ) -> Result<Box<dyn Poller>, InitError> {
        match self.0 {}
    }
}

impl Listening for Rdma {
    fn name(&self) -> TransportName {
        match self.0 {}
    }

    fn set_wakers(&self, _handles: &[ReactorHandle]) {
        match self.0 {}
    }

    fn listen(
        &self,
        _port: PortId,
        _listener: &Listener,
        _event_loop: &mut dyn EventLoop,
    ) -> Result<SocketAddr, Failure> {
        match self.0 {}
    }

    fn apply_settings(
        &self,
        _ports: &[(PortId, &Listener)],
        _event_loop: &mut dyn EventLoop,
    ) -> Result<(), Failure> {
        match self.0 {}
    }

    fn close(&self, _port: PortId) -> Result<PendingResponses<()>, Failure> {
        match self.0 {}
    }
}
