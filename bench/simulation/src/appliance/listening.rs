//! How listeners are asked to come and go, by the orders that the appliance's transports take.

use std::error::Error;
use std::net::SocketAddr;

use appliance::rehearsal::{Answers, Listening, Meanwhile, Orders};
use appliance_config::{Listener as Wanted, Transport};
use nvme_rdma::PortSettings as RdmaPortSettings;
use nvme_target::PortId;
use nvme_tcp::{Order, PortSettings};
use reactors::ReactorHandle;

use crate::network::{Listener, Socket};
use crate::plan::tcp_address;

type Failure = Box<dyn Error>;

/// Listeners over TCP.
pub(super) struct TcpListening {
    pub(super) orders: Orders<Order<Socket>>,
    pub(super) reactors: usize,
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
        let listener = bind(&self.doors, address)?;
        let reactor = usize::from(port.0) % self.reactors;
        let watched = self
            .orders
            .ask(reactor, meanwhile, |answer| Order::Listen {
                listener,
                port,
                answer,
            })?;
        watched?;
        Ok(address)
    }

    fn settle(
        &self,
        ports: &[(PortId, &Wanted)],
        meanwhile: &mut dyn Meanwhile,
    ) -> Result<(), Failure> {
        let ports: Vec<_> = ports
            .iter()
            .map(|(port, listener)| (*port, tcp_settings(listener)))
            .collect();
        self.orders.ask_all(meanwhile, |answer| Order::Settings {
            ports: ports.clone(),
            answer,
        })?;
        Ok(())
    }

    fn close(&self, port: PortId) -> Result<Answers<()>, Failure> {
        let order = |answer| Order::Close { port, answer };
        Ok(self.orders.tell_all(order)?)
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
    pub(super) orders: Orders<nvme_rdma::Order>,
    pub(super) reactors: usize,
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
        let reactor = usize::from(port.0) % self.reactors;
        let bound = self
            .orders
            .ask(reactor, meanwhile, |answer| nvme_rdma::Order::Listen {
                address,
                port,
                answer,
            })?;
        Ok(bound?)
    }

    fn settle(
        &self,
        ports: &[(PortId, &Wanted)],
        meanwhile: &mut dyn Meanwhile,
    ) -> Result<(), Failure> {
        let ports: Vec<_> = ports
            .iter()
            .map(|(port, listener)| (*port, rdma_settings(listener)))
            .collect();
        self.orders
            .ask_all(meanwhile, |answer| nvme_rdma::Order::Settings {
                ports: ports.clone(),
                answer,
            })?;
        Ok(())
    }

    fn close(&self, port: PortId) -> Result<Answers<()>, Failure> {
        let order = |answer| nvme_rdma::Order::Close { port, answer };
        Ok(self.orders.tell_all(order)?)
    }
}

/// What hosts of a listener get.
pub(super) fn rdma_settings(listener: &Wanted) -> RdmaPortSettings {
    RdmaPortSettings {
        in_capsule_bytes: listener.in_capsule_data.bytes() as u32,
        queue_depth_max: listener.queue_depth,
    }
}
