//! Where a host is, as far as it cannot choose that freely.

use std::net::{IpAddr, Ipv6Addr};

/// Bits of an IPv6 address that identify a network, in which a host has every address.
const IPV6_NETWORK_BITS: u32 = 64;

/// What hosts with an address share: the IPv4 address itself, also as an IPv4-mapped IPv6 address,
/// or the network of the IPv6 address.
#[must_use]
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let host_bits = u128::BITS - IPV6_NETWORK_BITS;
            let network = u128::from(address) >> host_bits << host_bits;
            IpAddr::V6(Ipv6Addr::from(network))
        }
    }
}
