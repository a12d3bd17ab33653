//! The replacement of NVMe/RDMA in builds without it: its listeners are refused.

use std::net::SocketAddr;
use std::sync::Arc;

use appliance_config::{Config, Listener, Transport as TransportName};
use hugemem::Region;
use nvme_target::PortId;
use reactors::{InitError, Nanos, Placement, Poller, Progress, ReactorHandle, ReactorSetup};

use super::{LateTransport, Listening, RdmaCard, Transport, TransportContext};
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

impl BuiltWithout {
    fn new(listener: &Listener) -> Self {
        let name = listener.name.as_str().to_owned();
        Self { name }
    }
}

/// Why the RDMA listeners of `config` cannot work.
pub(super) fn problem(config: &Config) -> Option<String> {
    let mut listeners = config.listeners.iter();
    let listener = listeners.find(|listener| listener.transport == TransportName::Rdma)?;
    Some(BuiltWithout::new(listener).to_string())
}

/// No card is usable.
pub(super) fn cards() -> Vec<RdmaCard> {
    Vec::new()
}

/// A transport that refuses every listener.
pub(super) struct Rdma;

/// The transport that refuses every listener.
pub(super) fn system(_reactors: usize, _: Arc<rdma::DeviceEvents>) -> Rdma {
    Rdma
}

/// The poller of a transport without listeners.
struct Nothing;

impl Poller for Nothing {
    fn name(&self) -> &str {
        "nvme-rdma"
    }

    fn poll(&mut self, _now: Nanos) -> Progress {
        Progress::Idle
    }
}

impl Transport for Rdma {
    fn connections_max(&self) -> usize {
        0
    }

    fn counters(&self) -> TransportCounters {
        TransportCounters::unused("rdma")
    }

    fn set_up(
        &self,
        _shared: &TransportContext,
        _setup: &mut ReactorSetup<'_>,
    ) -> Result<Box<dyn Poller>, InitError> {
        Ok(Box::new(Nothing))
    }
}

impl LateTransport for Rdma {
    fn open(&self, listener: &Listener) -> Result<(), Failure> {
        Err(BuiltWithout::new(listener).into())
    }

    fn bind(&self, _port: PortId, listener: &Listener) -> Result<SocketAddr, Failure> {
        Err(BuiltWithout::new(listener).into())
    }

    fn begin(
        &self,
        _config: &Config,
        _placement: Placement,
        _regions: &[&Region],
    ) -> Result<(), Failure> {
        Ok(())
    }
}

impl Listening for Rdma {
    fn name(&self) -> TransportName {
        TransportName::Rdma
    }

    fn set_wakers(&self, _handles: &[ReactorHandle]) {}

    fn prepare(
        &self,
        _port: PortId,
        listener: &Listener,
        _memory: &[&Region],
        _event_loop: &mut dyn EventLoop,
    ) -> Result<(), Failure> {
        Err(BuiltWithout::new(listener).into())
    }

    fn listen(
        &self,
        _port: PortId,
        listener: &Listener,
        _event_loop: &mut dyn EventLoop,
    ) -> Result<SocketAddr, Failure> {
        Err(BuiltWithout::new(listener).into())
    }

    fn apply_settings(
        &self,
        _ports: &[(PortId, &Listener)],
        _event_loop: &mut dyn EventLoop,
    ) -> Result<(), Failure> {
        Ok(())
    }

    fn close(&self, _port: PortId) -> Result<PendingResponses<()>, Failure> {
        Ok(PendingResponses::none())
    }
}
