//! NVMe/TCP: PDUs over a socket (TCP 1.1).

mod connection;
mod inbox;
pub mod pdu;
pub(crate) mod protected;
mod receive;
mod sender;
pub(crate) mod stream;

use std::fmt::{self, Debug};
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use hugemem::{Arena, Lease};
use nvme_spec::Sqe;
use nvme_spec::fabrics::ConnectData;
use nvme_spec::log::TransportType;
use nvme_spec::tcp::{ADMIN_IN_CAPSULE_DATA_BYTES, DigestFlags};

use crate::error::HostError;
use crate::link::{Completions, ConnectionCounters, Link, Refused, Transfer};
use crate::options::ConnectOptions;
use crate::tcp::connection::Connection;
use crate::tcp::stream::{ByteStream, Socket};
use crate::transport::{AdminLink, Fabric, IoLink, QueueParameters};

/// Receive buffer of an admin queue in bytes.
const ADMIN_RECEIVE_BYTES: usize = 64 * 1024;

/// The transport. It contains the function that opens a stream, and no state between connections.
pub(crate) struct Tcp<D>(pub(crate) D);

/// Opens a TCP socket, the default stream of NVMe/TCP.
pub(crate) fn connect_socket(options: &ConnectOptions) -> Result<Socket, HostError> {
    Socket::connect(options)
}

impl<D> Debug for Tcp<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tcp")
    }
}

impl<S, D> Fabric for Tcp<D>
where
    S: ByteStream + Send + 'static,
    D: Fn(&ConnectOptions) -> Result<S, HostError> + Send + Sync,
{
    fn kind(&self) -> TransportType {
        TransportType::TCP
    }

    fn attach(&self, _: &Arc<Arena>) -> Result<(), HostError> {
        Ok(())
    }

    fn connect_admin(
        &self,
        options: &ConnectOptions,
        parameters: &QueueParameters,
    ) -> Result<AdminLink, HostError> {
        let connection = open(
            (self.0)(options)?,
            options,
            parameters,
            ADMIN_IN_CAPSULE_DATA_BYTES,
            ADMIN_RECEIVE_BYTES,
        )?;
        Ok(Box::new(connection))
    }

    fn connect_io(
        &self,
        options: &ConnectOptions,
        parameters: &QueueParameters,
    ) -> Result<IoLink, HostError> {
        // TCP 1.1 §3.3.1: the data of Connect is in the capsule, regardless of IOCCSZ.
        let connect_bytes = size_of::<ConnectData>() as u32;
        let in_capsule = parameters.in_capsule_max_bytes.max(connect_bytes);
        let stream = (self.0)(options)?;
        let receive_bytes = options.receive_bytes;
        let connection: Connection<S, Lease> =
            open(stream, options, parameters, in_capsule, receive_bytes)?;
        Ok(Box::new(connection))
    }
}

/// Initializes a connection over a stream.
fn open<S: ByteStream, B: Deref<Target = [u8]> + DerefMut>(
    stream: S,
    options: &ConnectOptions,
    parameters: &QueueParameters,
    in_capsule_max_bytes: u32,
    receive_bytes: usize,
) -> Result<Connection<S, B>, HostError> {
    let digests = DigestFlags::new()
        .with_header(options.header_digest)
        .with_data(options.data_digest);
    let depth = usize::from(parameters.depth);
    let mut connection = Connection::new(stream, digests, depth, receive_bytes);
    connection.initialize(options.timeout)?;
    connection.parameters.in_capsule_max_bytes = in_capsule_max_bytes;
    Ok(connection)
}

impl<S, B> Link<B> for Connection<S, B>
where
    S: ByteStream,
    B: Deref<Target = [u8]> + DerefMut + Debug,
{
    fn connected(&mut self, in_capsule_max_bytes: u32) {
        self.parameters.in_capsule_max_bytes = in_capsule_max_bytes;
    }

    fn submit(&mut self, sqe: Sqe, transfer: Transfer<B>, token: u64) -> Result<u16, Refused<B>> {
        self.submit(sqe, transfer, token)
    }

    fn flush(&mut self) -> Result<(), HostError> {
        self.flush()
    }

    fn poll_until(
        &mut self,
        completions: &mut Completions<B>,
        most: usize,
    ) -> Result<usize, HostError> {
        self.poll_until(completions, most)
    }

    fn has_unsent(&self) -> bool {
        self.has_unsent()
    }

    fn take_failed_command(&mut self) -> Option<(u64, Option<B>)> {
        self.take_failed_command()
    }

    fn in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    fn depth(&self) -> usize {
        self.slots.depth()
    }

    fn counters(&self) -> ConnectionCounters {
        self.counters
    }

    fn wait(&mut self, limit: Duration) {
        Connection::wait(self, limit);
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor()
    }
}
