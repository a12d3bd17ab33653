//! How listeners are asked to come and go, by the orders that the appliance's transports take.

use std::error::Error;
use std::net::SocketAddr;

use appliance::rehearsal::{Answers, Listening, Meanwhile, PortOrders};
use appliance_config::{Listener as Wanted, Transport};
use nvme_rdma::PortSettings as RdmaPortSettings;
use nvme_target::PortId;
use nvme_tcp::PortSettings;
use reactors::ReactorHandle;

use crate::network::{Listener, Socket};
use crate::plan::tcp_address;

type Failure = Box<dyn Error>;

/// Listeners over TCP.
pub(super) struct TcpListening {
    pub(super) orders: PortOrders<Socket, PortSettings, std::io::Result<()>>,
    /// Where connections are made, by number.
    pub(super) doors: Vec<Listener>,
}

impl Listening for TcpListening {
    fn name(&self) -> Transport {
        Transport::Tcp
    }

    fn set_wakers(&self, handles: &[ReactorHandle]) {
        self.orders.set_wakers(handles);
    }

    fn listen(
        &self,
        port: PortId,
        listener: &Wanted,
        meanwhile: &mut dyn Meanwhile,
    ) -> Result<SocketAddr, Failure> {
        let address = listener.address.socket_addr();
        let socket = bind(&self.doors, address)?;
        self.orders.listen(port, socket, meanwhile)??;
        Ok(address)
    }

    fn settle(
        &self,
        ports: &[(PortId, &Wanted)],
        meanwhile: &mut dyn Meanwhile,
    ) -> Result<(), Failure> {
        let ports = ports.iter().map(|(port, it)| (*port, tcp_settings(it)));
        Ok(self.orders.settle(&ports.collect::<Vec<_>>(), meanwhile)?)
    }

    fn close(&self, port: PortId) -> Result<Answers<()>, Failure> {
        Ok(self.orders.close(port)?)
    }
}

/// Binds the listener of that address.
///
/// # Errors
/// The address is taken, or nobody's.
pub(super) fn bind(doors: &[Listener], address: SocketAddr) -> std::io::Result<Socket> {
    let mut doors = doors.iter().enumerate();
    let found = doors.find(|(number, _)| tcp_address(*number) == address);
    let (_, door) = found.ok_or(std::io::ErrorKind::AddrNotAvailable)?;
    door.bind()
}

/// What hosts of a listener get.
pub(super) fn tcp_settings(listener: &Wanted) -> PortSettings {
    PortSettings {
        in_capsule_bytes: listener.in_capsule_data.bytes() as u32,
        ..PortSettings::default()
    }
}

/// Listeners over RDMA.
pub(super) struct RdmaListening {
    pub(super) orders: PortOrders<SocketAddr, RdmaPortSettings, Result<SocketAddr, rdma::Error>>,
}

impl Listening for RdmaListening {
    fn name(&self) -> Transport {
        Transport::Rdma
    }

    fn set_wakers(&self, handles: &[ReactorHandle]) {
        self.orders.set_wakers(handles);
    }

    fn listen(
        &self,
        port: PortId,
        listener: &Wanted,
        meanwhile: &mut dyn Meanwhile,
    ) -> Result<SocketAddr, Failure> {
        let address = listener.address.socket_addr();
        Ok(self.orders.listen(port, address, meanwhile)??)
    }

    fn settle(
        &self,
        ports: &[(PortId, &Wanted)],
        meanwhile: &mut dyn Meanwhile,
    ) -> Result<(), Failure> {
        let ports = ports.iter().map(|(port, it)| (*port, rdma_settings(it)));
        Ok(self.orders.settle(&ports.collect::<Vec<_>>(), meanwhile)?)
    }

    fn close(&self, port: PortId) -> Result<Answers<()>, Failure> {
        Ok(self.orders.close(port)?)
    }
}

/// What hosts of a listener get.
pub(super) fn rdma_settings(listener: &Wanted) -> RdmaPortSettings {
    RdmaPortSettings {
        in_capsule_bytes: listener.in_capsule_data.bytes() as u32,
        queue_depth_max: listener.queue_depth,
    }
}
