//! The six types of reservations.

use nvme_spec::command::reservation::ReservationType;

/// The type of a reservation that is held (Base 2.1 §8.1.22.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReservationKind {
    /// Only the holder may write.
    WriteExclusive = 1,
    /// Only the holder may read and write.
    ExclusiveAccess = 2,
    /// Only registrants may write.
    WriteExclusiveRegistrantsOnly = 3,
    /// Only registrants may read and write.
    ExclusiveAccessRegistrantsOnly = 4,
    /// Only registrants may write, and each of them is a holder.
    WriteExclusiveAllRegistrants = 5,
    /// Only registrants may read and write, and each of them is a holder.
    ExclusiveAccessAllRegistrants = 6,
}

impl ReservationKind {
    /// Every type, in the order of its code.
    pub const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrantsOnly,
        Self::ExclusiveAccessRegistrantsOnly,
        Self::WriteExclusiveAllRegistrants,
        Self::ExclusiveAccessAllRegistrants,
    ];

    /// The type with the code `wire`; `None` if the code is reserved.
    #[must_use]
    pub fn from_wire(wire: ReservationType) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.wire() == wire)
    }

    /// The code of the type.
    #[must_use]
    pub const fn wire(self) -> ReservationType {
        ReservationType(self as u8)
    }

    /// Whether every registrant is a holder.
    #[must_use]
    pub const fn is_all_registrants(self) -> bool {
        matches!(
            self,
            Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants
        )
    }

    /// Whether one host is the holder and every registrant has its access.
    #[must_use]
    pub const fn is_registrants_only(self) -> bool {
        matches!(
            self,
            Self::WriteExclusiveRegistrantsOnly | Self::ExclusiveAccessRegistrantsOnly
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Base 2.1 §7.5: codes 1h to 6h are types; 0h and 7h to FFh are reserved.
    #[test]
    fn codes_one_to_six_are_types() {
        let named = [
            ReservationType::WRITE_EXCLUSIVE,
            ReservationType::EXCLUSIVE_ACCESS,
            ReservationType::WRITE_EXCLUSIVE_REGISTRANTS_ONLY,
            ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS_ONLY,
            ReservationType::WRITE_EXCLUSIVE_ALL_REGISTRANTS,
            ReservationType::EXCLUSIVE_ACCESS_ALL_REGISTRANTS,
        ];
        assert_eq!(ReservationKind::ALL.map(ReservationKind::wire), named);
        for code in 0..=u8::MAX {
            let kind = ReservationKind::from_wire(ReservationType(code));
            assert_eq!(kind.is_some(), (1..=6).contains(&code), "code {code}");
            assert_eq!(
                kind.map(ReservationKind::wire).unwrap_or_default().0,
                if kind.is_some() { code } else { 0 }
            );
        }
    }
}
