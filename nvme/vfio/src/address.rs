//! The address of a PCI function: domain, bus, device and function number.

use std::fmt;
use std::str::FromStr;

/// The address of a PCI function in Linux notation: `0000:3b:00.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// 0 except on machines with several segments; virtual domains (VMD) need more than 16 bits.
    domain: u32,
    bus: u8,
    /// 0 to 31.
    device: u8,
    /// 0 to 7.
    function: u8,
}

/// A text that is not the address of a PCI function.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a PCI address: expected the form 0000:3b:00.0")]
pub struct AddressError {
    text: String,
}

impl PciAddress {
    /// The address of function `function` of device `device`; `None` if they exceed 7 and 31.
    #[must_use]
    pub fn new(domain: u32, bus: u8, device: u8, function: u8) -> Option<PciAddress> {
        (device < 32 && function < 8).then_some(PciAddress {
            domain,
            bus,
            device,
            function,
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PciAddress {
            domain,
            bus,
            device,
            function,
        } = self;
        // Pads the whole text, so that tables are aligned.
        f.pad(&format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
    }
}

impl FromStr for PciAddress {
    type Err = AddressError;

    /// Parses `0000:3b:00.0`, and `3b:00.0` in domain 0.
    fn from_str(text: &str) -> Result<PciAddress, AddressError> {
        parse(text).ok_or_else(|| AddressError {
            // User input can be long; the error shows only its beginning.
            text: text.chars().take(40).collect(),
        })
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (front, function) = text.rsplit_once('.')?;
    let (front, device) = front.rsplit_once(':')?;
    let (domain, bus) = front.rsplit_once(':').unwrap_or(("0000", front));
    let domain = hex(domain, 4..=8)?;
    let bus = u8::try_from(hex(bus, 2..=2)?).ok()?;
    let device = u8::try_from(hex(device, 2..=2)?).ok()?;
    let function = u8::try_from(hex(function, 1..=1)?).ok()?;
    PciAddress::new(domain, bus, device, function)
}

/// Parses a hexadecimal number whose number of digits is in `digits`, without any other characters.
fn hex(text: &str, digits: std::ops::RangeInclusive<usize>) -> Option<u32> {
    if !digits.contains(&text.len()) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u32::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn malformed_pci_addresses_are_refused() {
        for text in [
            "",
            ".",
            ":",
            "::.",
            "0000:01:00",
            "0000:01:00.",
            "0000:01:00.8",
            "0000:01:20.0",
            "0000:1:00.0",
            "000:01:00.0",
            "0000:01:00.0 ",
            " 0000:01:00.0",
            "0000:01:00.00",
            "0000:01:0x.0",
            "0000:+1:00.0",
            "0000:01:00.0/../../..",
            "123456789:01:00.0",
            "0000:0000:01:00.0",
            "nvme0n1",
            "0000：01:00.0",
        ] {
            assert!(text.parse::<PciAddress>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn address_error_is_one_short_line() {
        let error = "x\n".repeat(1000).parse::<PciAddress>().unwrap_err();
        let line = error.to_string();
        assert!(!line.contains('\n') && line.len() < 150, "{line}");
    }

    #[test]
    fn address_without_domain_is_in_domain_0() {
        let address: PciAddress = "3b:00.1".parse().unwrap();
        assert_eq!(address.to_string(), "0000:3b:00.1");
        let upper: PciAddress = "10000:E1:1f.7".parse().unwrap();
        assert_eq!(upper.to_string(), "10000:e1:1f.7");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn pci_addresses_round_trip(
            domain: u32,
            bus: u8,
            device in 0u8..32,
            function in 0u8..8,
        ) {
            let address = PciAddress::new(domain, bus, device, function).unwrap();
            prop_assert_eq!(address.to_string().parse(), Ok(address));
        }

        #[test]
        fn any_address_text_is_handled(text in ".{0,20}") {
            let _ = text.parse::<PciAddress>();
        }
    }
}
