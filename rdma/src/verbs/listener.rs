//! Listeners.
#![expect(unsafe_code, reason = "calls librdmacm")]

use std::ffi::c_int;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::address::KernelAddress;
use super::channel::Channel;
use super::identifier::{Identifier, IdentifierContext};
use super::system::{checked, error_of};
use crate::connection::Token;
use crate::error::{Error, Unavailable};
use crate::provider::Listener;

/// `RDMA_OPTION_ID` and two of its options, from `rdma/rdma_cma.h`.
const OPTION_LEVEL: c_int = 0;
const OPTION_REUSE_ADDRESS: c_int = 1;
const OPTION_ONE_FAMILY: c_int = 2;

/// A listener of librdmacm.
#[derive(Debug)]
pub struct VerbsListener {
    _identifier: Identifier,
    local_address: SocketAddr,
}

impl VerbsListener {
    pub(super) fn new(
        channel: &Arc<Channel>,
        address: SocketAddr,
        backlog: u32,
        token: Token,
    ) -> Result<Self, Error> {
        let identifier = Identifier::new(channel, &IdentifierContext::of_listener(token))?;
        // As with TCP: a listener may restart while connections of its predecessor are closing.
        set_option(&identifier, OPTION_REUSE_ADDRESS)?;
        if address.is_ipv6() {
            // Allows listeners on [::] and on 0.0.0.0 at the same time.
            set_option(&identifier, OPTION_ONE_FAMILY)?;
        }
        let mut kernel = KernelAddress::new(address);
        let pointer = kernel.as_mut_ptr();
        // SAFETY: the identifier is alive, and the call reads an address of its family.
        let result =
            identifier.with(|functions, id| unsafe { (functions.rdma_bind_addr)(id, pointer) });
        if result != 0 {
            return Err(not_bound(address, io::Error::last_os_error()));
        }
        let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
        // SAFETY: the identifier is alive.
        let result =
            identifier.with(|functions, id| unsafe { (functions.rdma_listen)(id, backlog) });
        checked("rdma_listen", result)?;
        let local_address = identifier.local_address().unwrap_or(address);
        Ok(Self {
            _identifier: identifier,
            local_address,
        })
    }
}

impl Listener for VerbsListener {
    fn local_address(&self) -> SocketAddr {
        self.local_address
    }
}

fn set_option(identifier: &Identifier, option: c_int) -> Result<(), Error> {
    let mut value: c_int = 1;
    let pointer = (&raw mut value).cast();
    let bytes = size_of_val(&value);
    // SAFETY: the identifier is alive, and the call reads this many bytes.
    let result = identifier.with(|functions, id| unsafe {
        (functions.rdma_set_option)(id, OPTION_LEVEL, option, pointer, bytes)
    });
    checked("rdma_set_option", result)
}

/// The error for an address that cannot be bound.
pub(super) fn not_bound(address: SocketAddr, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ENODEV | libc::EADDRNOTAVAIL) => Unavailable::NotOnDevice { address }.into(),
        _ => error_of("rdma_bind_addr", error),
    }
}

/// Placeholder for an address that the library should know and does not.
pub(super) const UNKNOWN_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
