//! The host identifier by which reservations know a host.

use std::fmt;

use nvme_spec::Status;

/// A 128-bit host identifier (Base 2.1 §5.1.25.1.28).
///
/// All controllers of a host have the same identifier, so a host has the same rights on each of
/// them. A 64-bit identifier is in the first eight bytes, and the others are zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostIdentifier(pub [u8; 16]);

impl HostIdentifier {
    /// Whether the identifier is zero, which identifies no host. Reservation commands of such a
    /// host fail, and its access is that of a host that is not registered (Base 2.1 §8.1.22).
    #[must_use]
    pub const fn is_zero(self) -> bool {
        u128::from_le_bytes(self.0) == 0
    }

    /// Refuses a host without a host identifier (Base 2.1 §8.1.22).
    pub(crate) fn check(self) -> Result<(), Status> {
        if self.is_zero() {
            return Err(Status::HOST_IDENTIFIER_NOT_INITIALIZED);
        }
        Ok(())
    }

    /// The 64-bit form, which is the first eight bytes.
    #[must_use]
    pub const fn short(self) -> [u8; 8] {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        [a, b, c, d, e, f, g, h]
    }
}

impl From<[u8; 16]> for HostIdentifier {
    fn from(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for HostIdentifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, byte) in self.0.iter().enumerate() {
            if [4, 6, 8, 10].contains(&position) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for HostIdentifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostIdentifier({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sixteen_zero_bytes_are_zero() {
        assert!(HostIdentifier([0; 16]).is_zero());
        for position in 0..16 {
            let mut bytes = [0; 16];
            bytes[position] = 1;
            assert!(!HostIdentifier(bytes).is_zero(), "byte {position}");
        }
    }

    #[test]
    fn identifiers_print_as_uuids_and_shorten_to_the_first_bytes() {
        let host = HostIdentifier(std::array::from_fn(|position| position as u8));
        assert_eq!(host.to_string(), "00010203-0405-0607-0809-0a0b0c0d0e0f");
        assert_eq!(host.short(), [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
