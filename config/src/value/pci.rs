//! Addresses of PCI functions.

use std::fmt;
use std::str::FromStr;

use super::Hint;

/// The address of a PCI function as `lspci -D` prints it: `0000:3b:00.0`. The domain may be omitted
/// and is then 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// Largest device number on a bus (PCI 3.0 §3.2.2.3.2: 5 bits).
const DEVICE_MAX: u32 = 0x1f;
/// Largest function number of a device (PCI 3.0 §3.2.2.3.2: 3 bits).
const FUNCTION_MAX: u32 = 7;

impl PciAddress {
    /// The function at that address; `None` if `device` is above 1Fh or `function` above 7.
    pub fn new(domain: u32, bus: u8, device: u8, function: u8) -> Option<PciAddress> {
        let fits = u32::from(device) <= DEVICE_MAX && u32::from(function) <= FUNCTION_MAX;
        fits.then_some(PciAddress {
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
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// Why a text is not a PCI address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PciAddressError {
    /// It does not consist of domain, bus, device and function.
    #[error("not a PCI address")]
    Shape,
    /// A bus has no device of that number.
    #[error("a PCI bus has the devices 00 to 1f, not {0:02x}")]
    Device(u32),
    /// A device has no function of that number.
    #[error("a PCI device has the functions 0 to 7, not {0:x}")]
    Function(u32),
}

impl Hint for PciAddressError {
    fn hint(&self) -> Option<String> {
        Some("write it as `windlass devices` and `lspci -D` do, like \"0000:3b:00.0\"".to_owned())
    }
}

/// A hexadecimal number with that many digits.
fn hex(text: &str, digits: std::ops::RangeInclusive<usize>) -> Result<u32, PciAddressError> {
    let plain = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !plain || !digits.contains(&text.len()) {
        return Err(PciAddressError::Shape);
    }
    u32::from_str_radix(text, 16).map_err(|_| PciAddressError::Shape)
}

impl FromStr for PciAddress {
    type Err = PciAddressError;

    fn from_str(text: &str) -> Result<PciAddress, PciAddressError> {
        let (place, function) = text.split_once('.').ok_or(PciAddressError::Shape)?;
        let (place, device) = place.rsplit_once(':').ok_or(PciAddressError::Shape)?;
        let (domain, bus) = place.split_once(':').unwrap_or(("0000", place));
        let (device, function) = (hex(device, 2..=2)?, hex(function, 1..=1)?);
        // Linux numbers the domains of some host bridges (VMD) above FFFFh.
        let (domain, bus) = (hex(domain, 4..=8)?, hex(bus, 2..=2)?);
        if device > DEVICE_MAX {
            return Err(PciAddressError::Device(device));
        }
        if function > FUNCTION_MAX {
            return Err(PciAddressError::Function(function));
        }
        // Each has at most two digits.
        PciAddress::new(domain, bus as u8, device as u8, function as u8)
            .ok_or(PciAddressError::Shape)
    }
}
