//! Small typed values, each with its text form, its error and the hint that goes with the error.
//!
//! Every type here that is a string in a file prints (`Display`) text that it reads back (`FromStr`)
//! as the same value.

mod address;
mod block_size;
mod congestion;
mod control;
mod controller_ids;
mod cores;
mod name;
mod network;
mod nqn;
mod pci;
mod period;
mod size;

pub use address::{AddressError, ListenAddress};
pub use block_size::BlockSize;
pub use congestion::{CongestionControl, CongestionControlError};
pub use control::{
    ControlSocket, ControlSocketError, GroupName, GroupNameError, HttpAddress, HttpAddressError,
};
pub use controller_ids::ControllerIds;
pub use cores::{CoreList, CoreListError};
pub use name::{ModelNumber, Name, NameError, SerialNumber, TextFieldError};
pub use network::{Network, NetworkError};
pub(crate) use nqn::hyphenated_uuid;
pub use nqn::{Nqn, NqnError};
pub use pci::{PciAddress, PciAddressError};
pub use period::{Period, PeriodError};
pub use size::{ByteSize, ByteSizeError};

/// A hint for an error whose one-line message does not say how to fix it.
pub(crate) trait Hint {
    /// One line, without a full stop; `None` if the message is sufficient.
    fn hint(&self) -> Option<String>;

    /// Whether the text is well-formed and only exceeds a limit.
    fn beyond_limit(&self) -> bool {
        false
    }
}

/// Splits `text` after its leading ASCII digits.
fn split_number(text: &str) -> (&str, &str) {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text.split_at(digits)
}

#[cfg(test)]
mod tests;
