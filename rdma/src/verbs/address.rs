//! Conversion of socket addresses between Rust's and the kernel's form.
#![expect(unsafe_code, reason = "reads socket addresses out of a C union")]

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use libc::sockaddr;
use rdma_sys::rdma_addr;

/// An address in the kernel's form, with room for IPv4 and IPv6.
#[repr(C)]
pub(super) union KernelAddress {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl KernelAddress {
    pub(super) fn new(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(address) => Self {
                v4: libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(address.ip().octets()),
                    },
                    sin_zero: [0; 8],
                },
            },
            SocketAddr::V6(address) => Self {
                v6: libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: address.ip().octets(),
                    },
                    sin6_scope_id: address.scope_id(),
                },
            },
        }
    }

    /// The pointer for a call that reads the address.
    pub(super) fn as_mut_ptr(&mut self) -> *mut sockaddr {
        std::ptr::from_mut(self).cast()
    }
}

/// This side's address; `None` before one was chosen.
pub(super) fn source_of(address: &rdma_addr) -> Option<SocketAddr> {
    // SAFETY: every member of the union is plain data, made of zeroes or written by the library.
    address_of(unsafe { &address.src_addr_union.src_storage })
}

/// The peer's address; `None` before it is known.
pub(super) fn destination_of(address: &rdma_addr) -> Option<SocketAddr> {
    // SAFETY: every member of the union is plain data, made of zeroes or written by the library.
    address_of(unsafe { &address.dst_addr_union.dst_storage })
}

fn address_of(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let pointer = std::ptr::from_ref(storage);
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the storage is larger than any address, aligned for all of them, and this one
            // is of this family.
            let address = unsafe { &*pointer.cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes());
            let port = u16::from_be(address.sin_port);
            Some(SocketAddr::V4(SocketAddrV4::new(ip, port)))
        }
        libc::AF_INET6 => {
            // SAFETY: the storage is larger than any address, aligned for all of them, and this one
            // is of this family.
            let address = unsafe { &*pointer.cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
            Some(SocketAddr::V6(SocketAddrV6::new(
                ip,
                u16::from_be(address.sin6_port),
                address.sin6_flowinfo,
                address.sin6_scope_id,
            )))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(text: &str) {
        let address: SocketAddr = text.parse().unwrap();
        let kernel = KernelAddress::new(address);
        // SAFETY: a storage of zeroes is an address of no family.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let to = std::ptr::from_mut(&mut storage).cast::<u8>();
        let from = std::ptr::from_ref(&kernel).cast::<u8>();
        let length = if address.is_ipv4() { 16 } else { 28 };
        // SAFETY: both are at least as long as an address of the family.
        unsafe { std::ptr::copy_nonoverlapping(from, to, length) };
        assert_eq!(address_of(&storage), Some(address));
    }

    #[test]
    fn ipv4_and_ipv6_addresses_round_trip() {
        there_and_back("192.0.2.10:4420");
        there_and_back("0.0.0.0:0");
        there_and_back("[2001:db8::1]:4420");
        there_and_back("[fe80::1%7]:65535");
    }

    #[test]
    fn unspecified_family_is_no_address() {
        // SAFETY: a storage of zeroes is an address of no family.
        let storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        assert_eq!(address_of(&storage), None);
    }
}
