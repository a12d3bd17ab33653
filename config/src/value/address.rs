//! Addresses of listeners: `192.0.2.10:4420`, `[2001:db8::10]:4420`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use super::Hint;

/// The port that IANA assigned to NVMe over Fabrics (TCP 1.1 §3.1, RDMA 1.1 §3.1).
pub(crate) const PORT_DEFAULT: u16 = 4420;

/// An IP address and a port. With port 0 the system chooses one at start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenAddress(SocketAddr);

impl ListenAddress {
    /// An address to which a socket can be bound; the caller has checked it.
    pub(super) const fn from_unicast(address: SocketAddr) -> ListenAddress {
        ListenAddress(address)
    }

    /// The address and port.
    pub const fn socket_addr(self) -> SocketAddr {
        self.0
    }

    /// Whether the two cannot be bound together: they have the same port, and one address covers
    /// the other. An IPv6 wildcard covers only IPv6; port 0 never collides.
    pub fn overlaps(self, other: ListenAddress) -> bool {
        let (left, right) = (self.0.ip(), other.0.ip());
        let same_family = left.is_ipv4() == right.is_ipv4();
        let wildcard = left.is_unspecified() || right.is_unspecified();
        self.0.port() != 0
            && self.0.port() == other.0.port()
            && (self.0 == other.0 || (same_family && wildcard))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a text is not an address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The part before the port is not an IP address.
    #[error("the address is not an IP address")]
    NotAnAddress,
    /// An IPv6 address has no brackets, so its port is ambiguous.
    #[error("an IPv6 address stands in brackets")]
    Brackets,
    /// The part after the last colon is not a port.
    #[error("the port is not a number from 0 to 65535")]
    Port,
    /// No host can connect to a multicast, broadcast or IPv4-mapped address.
    #[error("a listener cannot be bound to this address")]
    NotUnicast,
}

impl Hint for AddressError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            AddressError::NotAnAddress => {
                "write an address, not a name, like 192.0.2.10:4420 or [2001:db8::10]:4420; \
                 0.0.0.0 and [::] stand for all addresses"
                    .to_owned()
            }
            AddressError::Brackets => "write it like [2001:db8::10]:4420".to_owned(),
            AddressError::Port => format!("leave the port out for {PORT_DEFAULT}"),
            AddressError::NotUnicast => {
                "write one of the machine's own addresses; `ip address` lists them".to_owned()
            }
        })
    }
}

impl FromStr for ListenAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<ListenAddress, AddressError> {
        if text.parse::<Ipv6Addr>().is_ok() {
            return Err(AddressError::Brackets);
        }
        let address = match text.parse::<SocketAddr>() {
            Ok(address) => address,
            Err(_) => without_port(text)?,
        };
        let unicast = match address.ip() {
            IpAddr::V4(ip) => !ip.is_multicast() && ip != Ipv4Addr::BROADCAST,
            IpAddr::V6(ip) => !ip.is_multicast() && ip.to_ipv4_mapped().is_none(),
        };
        if !unicast {
            return Err(AddressError::NotUnicast);
        }
        Ok(ListenAddress(address))
    }
}

/// Reads `text` as an address without a port; otherwise reports which part is wrong.
fn without_port(text: &str) -> Result<SocketAddr, AddressError> {
    if let Ok(ip) = text.parse::<Ipv4Addr>() {
        return Ok(SocketAddr::new(IpAddr::V4(ip), PORT_DEFAULT));
    }
    // Appending the port keeps a scope (`[fe80::1%2]`), which a bare address cannot hold.
    if text.ends_with(']') {
        let with_port = format!("{text}:{PORT_DEFAULT}");
        return with_port.parse().map_err(|_| AddressError::NotAnAddress);
    }
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
    match format!("{host}:{PORT_DEFAULT}").parse::<SocketAddr>() {
        Ok(_) => Err(AddressError::Port),
        Err(_) => Err(AddressError::NotAnAddress),
    }
}
