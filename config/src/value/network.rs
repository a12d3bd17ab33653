//! Addresses of clients: `192.0.2.0/24`, `2001:db8::/64`, or one address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::Hint;

/// The addresses that have their first bits in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Network {
    address: IpAddr,
    prefix_bits: u8,
}

impl Network {
    /// Its first address.
    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// Number of bits that its addresses have in common.
    pub const fn prefix_bits(self) -> u8 {
        self.prefix_bits
    }
}

/// Number of bits of an address.
const fn bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// The first address with the same first bits.
fn first(address: IpAddr, prefix_bits: u8) -> IpAddr {
    let rest = u32::from(bits(address) - prefix_bits);
    match address {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(rest).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits() & mask))
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(rest).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & mask))
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            address,
            prefix_bits,
        } = *self;
        match prefix_bits == bits(address) {
            true => address.fmt(f),
            false => write!(f, "{address}/{prefix_bits}"),
        }
    }
}

/// Why a text does not name addresses of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// The part before the slash is not an IP address.
    #[error("this is neither an IP address nor a network")]
    NotAnAddress,
    /// IPv4 in IPv6 is compared as IPv4.
    #[error("this is an IPv4 address in IPv6")]
    Mapped(Ipv4Addr),
    /// The part after the slash is not the length of a prefix.
    #[error("the length of the prefix is not a number from 0 to {0}")]
    Prefix(u8),
    /// The address has bits beyond the prefix.
    #[error("the address has bits beyond its prefix")]
    HostBits(Network),
}

impl Hint for NetworkError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotAnAddress => {
                "write addresses, not names, like \"192.0.2.7\", \"192.0.2.0/24\" or \
                 \"2001:db8::/64\""
                    .to_owned()
            }
            Self::Mapped(address) => format!("write \"{address}\""),
            Self::Prefix(_) => "write it like \"192.0.2.0/24\" or \"2001:db8::/64\"".to_owned(),
            Self::HostBits(network) => format!("write \"{network}\", or the address without `/`"),
        })
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NetworkError::NotAnAddress)?;
        if let IpAddr::V4(plain) = address.to_canonical()
            && address.is_ipv6()
        {
            return Err(NetworkError::Mapped(plain));
        }
        let most = bits(address);
        let prefix_bits = match prefix {
            None => most,
            Some(prefix) => {
                let is_number = prefix.bytes().all(|it| it.is_ascii_digit());
                let number = prefix.parse().ok().filter(|it| is_number && *it <= most);
                number.ok_or(NetworkError::Prefix(most))?
            }
        };
        let network = Self {
            address: first(address, prefix_bits),
            prefix_bits,
        };
        match network.address == address {
            true => Ok(network),
            false => Err(NetworkError::HostBits(network)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_networks_are_refused_with_a_hint() {
        let refused = |text: &str| Network::from_str(text).expect_err(text);
        for text in [
            "",
            "host",
            "192.0.2",
            "[::1]",
            "192.0.2.1:2049",
            " ::1",
            "/8",
        ] {
            assert_eq!(refused(text), NetworkError::NotAnAddress, "{text}");
        }
        for text in [
            "192.0.2.0/33",
            "192.0.2.0/",
            "192.0.2.0/+8",
            "192.0.2.0/-1",
            "0.0.0.0/0/0",
        ] {
            assert_eq!(refused(text), NetworkError::Prefix(32), "{text}");
        }
        assert_eq!(refused("::/129"), NetworkError::Prefix(128));
        let hint = refused("192.0.2.7/24").hint().expect("a hint");
        assert!(hint.contains("\"192.0.2.0/24\""), "{hint}");
        let hint = refused("::ffff:192.0.2.7").hint().expect("a hint");
        assert!(hint.contains("\"192.0.2.7\""), "{hint}");
    }

    #[test]
    fn networks_are_printed_as_they_are_written() {
        for text in [
            "192.0.2.7",
            "192.0.2.0/24",
            "0.0.0.0/0",
            "2001:db8::/32",
            "::1",
            "::/0",
        ] {
            let network: Network = text.parse().expect(text);
            assert_eq!(network.to_string(), text);
        }
        let whole: Network = "192.0.2.7/32".parse().expect("valid");
        assert_eq!(whole.to_string(), "192.0.2.7");
    }
}
