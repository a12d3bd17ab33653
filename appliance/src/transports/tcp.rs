//! NVMe/TCP: its listening sockets, and the per-reactor parts for connections.

mod handover;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use appliance_config::{Config, Digest, Listener, Tls, Transport as TransportName};
use nvme_target::PortId;
use nvme_tcp::{
    Acceptor, AcceptorPort, AcceptorTls, ConnectionSet, DigestPolicy, Handoff, HandoverMessage,
    PortMessage, PortSettings, SharedTlsKeys, SocketStream, TcpConfig, TcpCounters, TcpTransport,
    TlsPolicy, TlsRecords,
};
use reactors::mesh::Port;
use reactors::ring::Receiver;
use reactors::{InitError, Placement, Poller, ReactorHandle, ReactorSetup};
use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_congestion;

use super::{Listening, PerReactor, Transport, TransportContext};
use crate::affinity::avoid_reactor_cores;
use crate::error::Failure;
use crate::event_loop::EventLoop;
use crate::messages::{PendingResponses, PortMessages};
use crate::observe::sources::TransportCounters;
pub(crate) use handover::ExportError;

/// Sockets that may be in flight between two reactors.
const HANDOFFS_MAX: usize = 256;

/// The kernel's congestion control algorithms, separated by spaces.
const CONGESTION_CONTROLS: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

#[derive(Debug, thiserror::Error)]
pub(super) enum ListenError {
    #[error("listener {name} cannot listen on {address}")]
    Bind {
        name: String,
        address: SocketAddr,
        #[source]
        cause: std::io::Error,
    },
    #[error(
        "listener {name}: this kernel has no congestion control {wanted}: it has {}",
        .available.as_deref().unwrap_or("not said which")
    )]
    CongestionControl {
        name: String,
        wanted: String,
        available: Option<String>,
    },
    #[error("listener {name} cannot have the congestion control {wanted}")]
    CongestionControlRefused {
        name: String,
        wanted: String,
        #[source]
        cause: std::io::Error,
    },
}

#[derive(Debug, thiserror::Error)]
enum SetupError {
    #[error("its sockets were handed out before")]
    Twice,
    #[error("its sockets cannot be watched")]
    Sockets(#[from] std::io::Error),
}

/// One listening socket.
pub(super) struct Bound {
    port: PortId,
    socket: TcpListener,
}

impl Bound {
    /// Binds `listener`, which has the number `port`.
    ///
    /// # Errors
    /// The address is taken or not of this machine, or the kernel lacks the congestion control.
    pub(super) fn new(port: PortId, listener: &Listener) -> Result<Self, ListenError> {
        let address = listener.address.socket_addr();
        let socket = TcpListener::bind(address).map_err(|cause| ListenError::Bind {
            name: listener.name.as_str().to_owned(),
            address,
            cause,
        })?;
        control_congestion(listener, &socket)?;
        Ok(Self { port, socket })
    }

    /// Continues with the listening socket of an earlier process, which has its options.
    pub(super) fn adopt(port: PortId, socket: TcpListener) -> Self {
        Self { port, socket }
    }

    /// The bound address, with the port that the system chose.
    pub(super) fn address(&self) -> std::io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

/// Sets the congestion control of the listening socket; accepted sockets inherit it.
fn control_congestion(listener: &Listener, socket: &TcpListener) -> Result<(), ListenError> {
    let Some(wanted) = &listener.congestion_control else {
        return Ok(());
    };
    set_tcp_congestion(socket, wanted.as_str()).map_err(|errno| {
        let name = listener.name.as_str().to_owned();
        let wanted = wanted.as_str().to_owned();
        if errno == Errno::NOENT {
            let available = std::fs::read_to_string(CONGESTION_CONTROLS).ok();
            let available =
                available.map(|list| list.split_whitespace().collect::<Vec<_>>().join(", "));
            ListenError::CongestionControl {
                name,
                wanted,
                available,
            }
        } else {
            ListenError::CongestionControlRefused {
                name,
                wanted,
                cause: errno.into(),
            }
        }
    })
}

/// When a transport begins to accept connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepting {
    /// With its start.
    AtStart,
    /// When an earlier process has stopped it.
    Later,
}

/// The NVMe/TCP transport of the whole appliance.
pub(crate) struct Tcp {
    config: TcpConfig,
    counters: Vec<Arc<TcpCounters>>,
    placement: Placement,
    own: PerReactor<ReactorListeners>,
    port_messages: Messages,
    /// Duplicates of the listening sockets, for changes of their settings.
    sockets: Mutex<BTreeMap<PortId, TcpListener>>,
    /// Accepts and closes connections until the transport is dropped.
    acceptor: Acceptor,
    tls: AcceptorTls,
}

/// The messages to the part of each reactor.
type Messages =
    PortMessages<TcpListener, PortSettings, std::io::Result<()>, HandoverMessage<SocketStream>>;

/// The part that one reactor takes.
struct ReactorListeners {
    handoffs: Port<Handoff>,
    acceptor: AcceptorPort,
    port_messages: Receiver<PortMessage>,
    listeners: Vec<Bound>,
}

impl Tcp {
    /// Distributes the listeners over the reactors of `cores`; `placement` distributes connections.
    ///
    /// # Errors
    /// The system's: the acceptor's thread does not start.
    pub(super) fn new(
        config: &Config,
        listeners: Vec<Bound>,
        cores: &[usize],
        placement: Placement,
        accepting: Accepting,
    ) -> std::io::Result<Self> {
        let reactors = cores.len();
        let reactor_cores = cores.to_vec();
        let tls = AcceptorTls::default();
        let (acceptor, acceptor_ports) = Acceptor::start_with(reactors, tls.clone(), move || {
            avoid_reactor_cores(&reactor_cores);
        })?;
        // No listener is watched yet.
        acceptor.set_paused(accepting == Accepting::Later);
        let (port_messages, receivers) = PortMessages::new(reactors);
        let sockets = listeners.iter().filter_map(|bound| {
            let socket = bound.socket.try_clone().ok()?;
            Some((bound.port, socket))
        });
        Ok(Self {
            sockets: Mutex::new(sockets.collect()),
            config: tcp_config(config, &listeners),
            counters: (0..reactors)
                .map(|_| Arc::new(TcpCounters::default()))
                .collect(),
            placement,
            own: distribute(listeners, receivers, acceptor_ports),
            port_messages,
            acceptor,
            tls,
        })
    }

    /// The keys of hosts for TLS. There are none at first.
    pub(crate) fn tls_keys(&self) -> &SharedTlsKeys {
        &self.tls.keys
    }

    fn sockets(&self) -> MutexGuard<'_, BTreeMap<PortId, TcpListener>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Transport for Tcp {
    fn connections_max(&self) -> usize {
        self.config.connections_max
    }

    fn counters(&self) -> TransportCounters {
        TransportCounters::new("tcp", &self.counters).with_tls(Arc::clone(&self.tls.counters))
    }

    fn set_up(
        &self,
        shared: &TransportContext,
        setup: &mut ReactorSetup<'_>,
    ) -> Result<Box<dyn Poller>, InitError> {
        let index = setup.index();
        let ReactorListeners {
            mut handoffs,
            acceptor,
            port_messages,
            listeners,
        } = self.own.take(index).ok_or(SetupError::Twice)?;
        handoffs.attach_all(&setup.wakers());
        let connections = ConnectionSet::new(
            shared.core.clone(),
            shared.arena.pool(shared.commands_max),
            self.config.clone(),
            Arc::clone(&self.counters[index]),
        );
        let reactors = setup.handles().to_vec();
        let placement = self.placement.clone();
        let transport = TcpTransport::new(connections, handoffs, acceptor, placement, reactors);
        let mut transport = transport.map_err(SetupError::Sockets)?;
        transport.receive_port_messages(port_messages);
        for Bound { port, socket } in listeners {
            transport
                .listen(socket, port)
                .map_err(SetupError::Sockets)?;
        }
        Ok(transport.into_poller())
    }
}

impl Listening for Tcp {
    fn name(&self) -> TransportName {
        TransportName::Tcp
    }

    fn set_wakers(&self, handles: &[ReactorHandle]) {
        self.port_messages.set_wakers(handles);
    }

    fn listen(
        &self,
        port: PortId,
        listener: &Listener,
        event_loop: &mut dyn EventLoop,
    ) -> Result<SocketAddr, Failure> {
        let Bound { socket, port } = Bound::new(port, listener)?;
        let address = socket.local_addr()?;
        let duplicate = socket.try_clone()?;
        self.port_messages.listen(port, socket, event_loop)??;
        self.sockets().insert(port, duplicate);
        Ok(address)
    }

    fn apply_settings(
        &self,
        ports: &[(PortId, &Listener)],
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), Failure> {
        let sockets = self.sockets();
        for (port, listener) in ports {
            if let Some(socket) = sockets.get(port) {
                control_congestion(listener, socket)?;
            }
        }
        let settings = port_settings(ports.iter().copied());
        Ok(self.port_messages.apply_settings(&settings, event_loop)?)
    }

    fn close(&self, port: PortId) -> Result<PendingResponses<()>, Failure> {
        self.sockets().remove(&port);
        Ok(self.port_messages.close(port)?)
    }
}

fn tcp_config(config: &Config, bound: &[Bound]) -> TcpConfig {
    let connections = config.limits.max_connections as usize;
    // They are bound in this order.
    let listeners = config.listeners.iter();
    let listeners = listeners.filter(|it| it.transport == TransportName::Tcp);
    let numbered = bound.iter().map(|it| it.port).zip(listeners);
    TcpConfig {
        ports: port_settings(numbered),
        // All connections may be on one reactor; the placement enforces the limit for all reactors.
        connections_max: connections,
        ..TcpConfig::default()
    }
}

/// The settings of each listener.
fn port_settings<'c>(
    listeners: impl Iterator<Item = (PortId, &'c Listener)>,
) -> Vec<(PortId, PortSettings)> {
    let settings = |listener: &Listener| PortSettings {
        in_capsule_bytes: listener.in_capsule_data.bytes() as u32,
        header_digest: digest_policy(listener.header_digest),
        data_digest: digest_policy(listener.data_digest),
        tls: match listener.tls {
            Tls::Off => TlsPolicy::Off,
            Tls::Allowed => TlsPolicy::Allowed,
            Tls::Required => TlsPolicy::Required,
        },
        tls_records: match listener.tls_records {
            appliance_config::TlsRecords::Own => TlsRecords::Own,
            appliance_config::TlsRecords::Kernel => TlsRecords::Kernel,
        },
    };
    listeners
        .filter(|(_, listener)| listener.transport == TransportName::Tcp)
        .map(|(port, listener)| (port, settings(listener)))
        .collect()
}

fn digest_policy(digest: Digest) -> DigestPolicy {
    match digest {
        Digest::Off => DigestPolicy::Off,
        Digest::Allowed => DigestPolicy::Allowed,
        Digest::Required => DigestPolicy::Required,
    }
}

/// Gives each reactor its port of the mesh, its messages, its port of the acceptor, and its share of
/// the listeners, round-robin.
fn distribute(
    listeners: Vec<Bound>,
    port_messages: Vec<Receiver<PortMessage>>,
    acceptor_ports: Vec<AcceptorPort>,
) -> PerReactor<ReactorListeners> {
    let reactors = port_messages.len();
    let mut own: Vec<ReactorListeners> = reactors::mesh::mesh(reactors, HANDOFFS_MAX)
        .into_iter()
        .zip(port_messages)
        .zip(acceptor_ports)
        .map(|((handoffs, port_messages), acceptor)| ReactorListeners {
            handoffs,
            acceptor,
            port_messages,
            listeners: Vec::new(),
        })
        .collect();
    for (index, listener) in listeners.into_iter().enumerate() {
        own[index % reactors].listeners.push(listener);
    }
    PerReactor::new(own)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use rustix::net::sockopt::tcp_congestion;

    use super::*;

    #[test]
    fn accepted_sockets_have_the_listeners_congestion_control() {
        let text = Config::embedded_text(std::path::Path::new("/tmp/unused.img"));
        let mut config = Config::parse("test", &text).expect("valid");
        let listener = &mut config.listeners[0];
        listener.address = "127.0.0.1:0".parse().expect("an address");
        for wanted in [Some("reno"), None] {
            listener.congestion_control = wanted.map(|name| name.parse().expect("a name"));
            let bound = Bound::new(PortId(0), listener).expect("loopback");
            let system =
                tcp_congestion(TcpListener::bind("127.0.0.1:0").expect("loopback")).expect("TCP");
            let address = bound.address().expect("bound");
            let _client = TcpStream::connect(address).expect("listening");
            let (accepted, _) = bound.socket.accept().expect("connected");
            let expected = wanted.map_or(system, str::to_owned);
            assert_eq!(tcp_congestion(&accepted), Ok(expected));
        }
    }
}
