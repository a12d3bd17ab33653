//! Connections.
#![expect(unsafe_code, reason = "calls librdmacm")]

use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rdma_sys::{rdma_cm_id, rdma_conn_param};

use super::Verbs;
use super::address::KernelAddress;
use super::channel::Channel;
use super::connect_request::check_length;
use super::device::VerbsDevice;
use super::domain::VerbsDomain;
use super::identifier::{Identifier, IdentifierContext, Link, is_set, set};
use super::library::Functions;
use super::listener::not_bound;
use super::queue_pair::VerbsQueuePair;
use super::system::{checked, error_of};
use super::table::DeviceTable;
use crate::connection::{
    ACCEPT_PRIVATE_DATA_MAX, CONNECT_PRIVATE_DATA_MAX, ConnectParameters, REJECT_PRIVATE_DATA_MAX,
    Token,
};
use crate::error::Error;
use crate::provider::{Connection, Device, QueuePairOptions};

/// The retry counts are fields of three bits (IBA 1.3 §12.6.5).
const RETRIES_MAX: u8 = 7;

/// A connection of librdmacm.
#[derive(Debug)]
pub struct VerbsConnection {
    link: Arc<Link>,
    label: Arc<IdentifierContext>,
    devices: Arc<DeviceTable>,
    has_queue_pair: bool,
    /// Whether this is a request that was neither accepted nor rejected yet.
    is_pending_request: bool,
}

impl VerbsConnection {
    pub(super) fn active(
        channel: &Arc<Channel>,
        token: Token,
        devices: Arc<DeviceTable>,
    ) -> Result<Self, Error> {
        let label = IdentifierContext::of_connection(token, false);
        let identifier = Identifier::new(channel, &label)?;
        Ok(Self::new(identifier, label, devices, false))
    }

    pub(super) fn passive(
        identifier: Identifier,
        label: Arc<IdentifierContext>,
        devices: Arc<DeviceTable>,
    ) -> Self {
        Self::new(identifier, label, devices, true)
    }

    fn new(
        identifier: Identifier,
        label: Arc<IdentifierContext>,
        devices: Arc<DeviceTable>,
        is_pending_request: bool,
    ) -> Self {
        Self {
            link: Link::new(identifier),
            label,
            devices,
            has_queue_pair: false,
            is_pending_request,
        }
    }

    /// Calls with the identifier, which exists until this connection is dropped.
    fn with<R>(&self, call: impl FnOnce(&Identifier) -> R) -> Result<R, Error> {
        self.link
            .with(call)
            .ok_or(Error::Misuse("the connection ended"))
    }

    /// Calls the library with the identifier.
    fn call(
        &self,
        call: impl FnOnce(&Functions, *mut rdma_cm_id) -> c_int,
    ) -> Result<c_int, Error> {
        self.with(|identifier| identifier.with(call))
    }

    fn bound_device(&self) -> Result<VerbsDevice, Error> {
        let context = self.with(Identifier::verbs)?;
        let context = context.ok_or(Error::Misuse("the connection has no device yet"))?;
        self.devices.device_of(context)
    }

    /// The parameters in the library's form, limited to what the device allows.
    fn parameters(
        &self,
        wanted: &ConnectParameters<'_>,
        private_data_max: usize,
    ) -> Result<rdma_conn_param, Error> {
        check_length(wanted.private_data, private_data_max)?;
        let device = self.bound_device()?;
        let limits = device.limits();
        let initiator_depth = wanted.initiator_depth.min(limits.reads_outgoing);
        let responder_resources = wanted.responder_resources.min(limits.reads_incoming);
        let label = &self.label;
        label
            .initiator_depth
            .store(initiator_depth, Ordering::Relaxed);
        label
            .responder_resources
            .store(responder_resources, Ordering::Relaxed);
        Ok(rdma_conn_param {
            private_data: wanted.private_data.as_ptr().cast(),
            private_data_len: wanted.private_data.len() as u8,
            responder_resources,
            initiator_depth,
            flow_control: 1,
            retry_count: wanted.retries.min(RETRIES_MAX),
            rnr_retry_count: wanted.rnr_retries.min(RETRIES_MAX),
            // The library fills in both from the queue pair.
            srq: 0,
            qp_num: 0,
        })
    }

    fn expect_queue_pair(&self) -> Result<(), Error> {
        if self.with(Identifier::has_queue_pair)? {
            return Ok(());
        }
        Err(Error::Misuse("the connection has no queue pair"))
    }
}

impl Connection for VerbsConnection {
    type Provider = Verbs;

    fn token(&self) -> Token {
        self.label.token
    }

    fn device(&self) -> Option<VerbsDevice> {
        self.bound_device().ok()
    }

    fn local_address(&self) -> Option<SocketAddr> {
        self.with(Identifier::local_address).ok().flatten()
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        self.with(Identifier::peer_address).ok().flatten()
    }

    fn resolve_address(
        &mut self,
        source: Option<SocketAddr>,
        peer: SocketAddr,
        timeout: Duration,
    ) -> Result<(), Error> {
        let mut source_kernel = source.map(KernelAddress::new);
        let mut peer_kernel = KernelAddress::new(peer);
        let from = source_kernel
            .as_mut()
            .map_or(ptr::null_mut(), KernelAddress::as_mut_ptr);
        let to = peer_kernel.as_mut_ptr();
        let timeout_ms = milliseconds(timeout);
        // SAFETY: the identifier is alive, and the call reads addresses of their families.
        let result = self.call(|functions, id| unsafe {
            (functions.rdma_resolve_addr)(id, from, to, timeout_ms)
        })?;
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        Err(match source {
            Some(source) => not_bound(source, error),
            None => Error::System {
                step: "rdma_resolve_addr",
                source: error,
            },
        })
    }

    fn resolve_route(&mut self, timeout: Duration) -> Result<(), Error> {
        // The library uses the device without checking that there is one.
        self.bound_device()?;
        let timeout_ms = milliseconds(timeout);
        // SAFETY: the identifier is alive and has a device.
        let result =
            self.call(|functions, id| unsafe { (functions.rdma_resolve_route)(id, timeout_ms) })?;
        checked("rdma_resolve_route", result)
    }

    fn create_queue_pair(
        &mut self,
        domain: &VerbsDomain,
        options: &QueuePairOptions<'_, Verbs>,
    ) -> Result<VerbsQueuePair, Error> {
        if self.has_queue_pair {
            return Err(Error::Misuse("the connection has a queue pair already"));
        }
        let device = self.bound_device()?;
        let queue_pair = VerbsQueuePair::new(&self.link, &self.label, &device, domain, options)?;
        self.has_queue_pair = true;
        Ok(queue_pair)
    }

    fn connect(&mut self, parameters: &ConnectParameters<'_>) -> Result<(), Error> {
        let mut parameters = self.parameters(parameters, CONNECT_PRIVATE_DATA_MAX)?;
        self.expect_queue_pair()?;
        let pointer = &raw mut parameters;
        // SAFETY: the identifier is alive and has a device; the call copies the private data.
        let result = self.call(|functions, id| unsafe { (functions.rdma_connect)(id, pointer) })?;
        checked("rdma_connect", result)
    }

    fn accept(&mut self, parameters: &ConnectParameters<'_>) -> Result<(), Error> {
        let mut parameters = self.parameters(parameters, ACCEPT_PRIVATE_DATA_MAX)?;
        self.expect_queue_pair()?;
        let pointer = &raw mut parameters;
        // SAFETY: the identifier is alive and has a device; the call copies the private data.
        let result = self.call(|functions, id| unsafe { (functions.rdma_accept)(id, pointer) })?;
        checked("rdma_accept", result)?;
        self.is_pending_request = false;
        Ok(())
    }

    fn reject(&mut self, private_data: &[u8]) -> Result<(), Error> {
        check_length(private_data, REJECT_PRIVATE_DATA_MAX)?;
        if !self.is_pending_request {
            return Err(Error::Misuse("there is no request to reject"));
        }
        self.is_pending_request = false;
        self.with(|identifier| identifier.reject(private_data))?
    }

    fn disconnect(&mut self) -> Result<(), Error> {
        if !is_set(&self.label.is_connected) || set(&self.label.is_disconnected) {
            return Ok(());
        }
        match self.with(Identifier::disconnect)? {
            // The peer disconnected first, or the device is gone: the event was or will be
            // delivered.
            Err(Error::System { source, .. }) if source.kind() == io::ErrorKind::InvalidInput => {
                Ok(())
            }
            result => result,
        }
    }
}

impl Drop for VerbsConnection {
    fn drop(&mut self) {
        let Some(identifier) = self.link.take() else {
            return;
        };
        if self.is_pending_request {
            let _ = identifier.reject(&[]);
        } else if is_set(&self.label.is_connected) && !set(&self.label.is_disconnected) {
            // Notifies the peer, and flushes the queue pair's work.
            let _ = identifier.disconnect();
        } else {
            VerbsQueuePair::fail(&identifier);
        }
        // The queue pair may outlive this; the library must no longer change its state.
        identifier.forget_queue_pair();
    }
}

fn milliseconds(timeout: Duration) -> c_int {
    c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX)
}

/// The kind of a failure that an event reports as a negative error number.
pub(super) fn failure_kind(status: c_int) -> io::ErrorKind {
    match error_of(
        "event",
        io::Error::from_raw_os_error(status.saturating_abs()),
    ) {
        Error::System { source, .. } => source.kind(),
        _ => io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_failures_are_mapped_to_io_error_kinds() {
        assert_eq!(failure_kind(-libc::ETIMEDOUT), io::ErrorKind::TimedOut);
        assert_eq!(
            failure_kind(-libc::ECONNREFUSED),
            io::ErrorKind::ConnectionRefused
        );
        assert_eq!(failure_kind(-libc::ENODEV), io::ErrorKind::NotFound);
        assert_eq!(
            failure_kind(c_int::MIN).to_string(),
            failure_kind(c_int::MAX).to_string()
        );
    }

    #[test]
    fn long_timeouts_are_clamped() {
        assert_eq!(milliseconds(Duration::from_secs(2)), 2000);
        assert_eq!(milliseconds(Duration::MAX), c_int::MAX);
    }
}
