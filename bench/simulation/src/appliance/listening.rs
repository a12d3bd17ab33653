//! Adds and removes listeners with the control messages that the appliance's transports receive.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use appliance::headless::{EventLoop, Listening, PendingResponses, PortMessages};
use appliance_config::{Listener as Wanted, Transport};
use hugemem::Region;
use nvme_rdma::{ListenAddress, PortSettings as RdmaPortSettings};
use nvme_target::PortId;
use nvme_tcp::{HandoverMessage, PortSettings};
use rdma::Domains;
use rdma_testing::fake::Fake;
use reactors::ReactorHandle;

use crate::network::{Listener, Socket, TargetStream};
use crate::oracle::PortSetting;
use crate::plan::tcp_address;

type Failure = Box<dyn Error>;

/// The port settings that the transports received last.
pub(super) type SentSettings = Arc<Mutex<BTreeMap<PortId, PortSetting>>>;

/// Replaces the recorded port settings of a transport.
fn note(sent_settings: &SentSettings, transport: Transport, ports: &[(PortId, &Wanted)]) {
    let mut sent_settings = sent_settings.lock().unwrap_or_else(PoisonError::into_inner);
    sent_settings.retain(|_, (_, depth)| depth.is_some() != (transport == Transport::Rdma));
    sent_settings.extend(ports.iter().map(|(port, it)| (*port, setting(it))));
}

/// The port settings of a listener.
pub(super) fn setting(listener: &Wanted) -> PortSetting {
    match listener.transport {
        Transport::Tcp => (tcp_settings(listener).in_capsule_bytes, None),
        Transport::Rdma => {
            let settings = rdma_settings(listener);
            (settings.in_capsule_bytes, Some(settings.queue_depth_max))
        }
    }
}

/// Listeners over TCP.
pub(super) struct TcpListening {
    pub(super) port_messages:
        PortMessages<Socket, PortSettings, std::io::Result<()>, HandoverMessage<TargetStream>>,
    /// The simulated listeners, by number.
    pub(super) sim_listeners: Vec<Listener>,
    pub(super) sent_settings: SentSettings,
}

impl Listening for TcpListening {
    fn name(&self) -> Transport {
        Transport::Tcp
    }

    fn set_wakers(&self, handles: &[ReactorHandle]) {
        self.port_messages.set_wakers(handles);
    }

    fn listen(
        &self,
        port: PortId,
        listener: &Wanted,
        event_loop: &mut dyn EventLoop,
    ) -> Result<SocketAddr, Failure> {
        let address = listener.address.socket_addr();
        let socket = bind(&self.sim_listeners, address)?;
        self.port_messages.listen(port, socket, event_loop)??;
        Ok(address)
    }

    fn apply_settings(
        &self,
        ports: &[(PortId, &Wanted)],
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), Failure> {
        note(&self.sent_settings, Transport::Tcp, ports);
        let ports = ports.iter().map(|(port, it)| (*port, tcp_settings(it)));
        Ok(self
            .port_messages
            .apply_settings(&ports.collect::<Vec<_>>(), event_loop)?)
    }

    fn close(&self, port: PortId) -> Result<PendingResponses<()>, Failure> {
        Ok(self.port_messages.close(port)?)
    }
}

/// Binds the listener of that address.
///
/// # Errors
/// The address is in use or does not exist.
pub(super) fn bind(sim_listeners: &[Listener], address: SocketAddr) -> std::io::Result<Socket> {
    find(sim_listeners, address)?.bind()
}

/// Another handle of the listening socket of that address.
///
/// # Errors
/// The address is not bound or does not exist.
pub(super) fn duplicate(
    sim_listeners: &[Listener],
    address: SocketAddr,
) -> std::io::Result<Socket> {
    find(sim_listeners, address)?.duplicate_socket()
}

fn find(sim_listeners: &[Listener], address: SocketAddr) -> std::io::Result<&Listener> {
    let mut sim_listeners = sim_listeners.iter().enumerate();
    let found = sim_listeners.find(|(number, _)| tcp_address(*number) == address);
    let (_, listener) = found.ok_or(std::io::ErrorKind::AddrNotAvailable)?;
    Ok(listener)
}

/// The port settings of a TCP listener.
pub(super) fn tcp_settings(listener: &Wanted) -> PortSettings {
    PortSettings {
        in_capsule_bytes: listener.in_capsule_data.bytes() as u32,
        ..PortSettings::default()
    }
}

/// Listeners over RDMA.
pub(super) struct RdmaListening {
    pub(super) port_messages:
        PortMessages<ListenAddress, RdmaPortSettings, Result<SocketAddr, rdma::Error>>,
    /// The memory registrations of its devices.
    pub(super) domains: Arc<Domains<Fake>>,
    pub(super) sent_settings: SentSettings,
}

impl Listening for RdmaListening {
    fn name(&self) -> Transport {
        Transport::Rdma
    }

    fn set_wakers(&self, handles: &[ReactorHandle]) {
        self.port_messages.set_wakers(handles);
    }

    fn listen(
        &self,
        port: PortId,
        listener: &Wanted,
        event_loop: &mut dyn EventLoop,
    ) -> Result<SocketAddr, Failure> {
        let address = ListenAddress::New(listener.address.socket_addr());
        Ok(self.port_messages.listen(port, address, event_loop)??)
    }

    fn apply_settings(
        &self,
        ports: &[(PortId, &Wanted)],
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), Failure> {
        note(&self.sent_settings, Transport::Rdma, ports);
        let ports = ports.iter().map(|(port, it)| (*port, rdma_settings(it)));
        Ok(self
            .port_messages
            .apply_settings(&ports.collect::<Vec<_>>(), event_loop)?)
    }

    fn close(&self, port: PortId) -> Result<PendingResponses<()>, Failure> {
        Ok(self.port_messages.close(port)?)
    }

    fn attach_memory(&self, region: &Region) -> Result<(), Failure> {
        Ok(self.domains.attach(region)?)
    }

    fn detach_memory(&self, region: &Region) {
        self.domains.detach(region);
    }
}

/// The port settings of an RDMA listener.
pub(super) fn rdma_settings(listener: &Wanted) -> RdmaPortSettings {
    RdmaPortSettings {
        in_capsule_bytes: listener.in_capsule_data.bytes() as u32,
        queue_depth_max: listener.queue_depth,
    }
}
