//! Sets of numbers, such as attributes (`bitmap4`, RFC 8881 §3.2).

use crate::limits::{BITMAP_UNITS_DECODED_MAX, BITMAP_UNITS_MAX};
use crate::xdr::{DecodeError, Decoder, EncodeError, Encoder, Xdr};

/// A set of numbers below 32 × [`BITMAP_UNITS_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bitmap([u32; BITMAP_UNITS_MAX]);

impl Bitmap {
    /// The empty set.
    pub const EMPTY: Self = Self([0; BITMAP_UNITS_MAX]);

    /// The set of these numbers.
    ///
    /// # Panics
    /// Panics if a number exceeds the limit; sets of a peer are only decoded.
    #[must_use]
    pub const fn of(numbers: &[u32]) -> Self {
        let mut set = Self::EMPTY;
        let mut index = 0;
        while index < numbers.len() {
            set = set.with(numbers[index]);
            index += 1;
        }
        set
    }

    /// The set with `number` added.
    ///
    /// # Panics
    /// Panics if the number exceeds the limit; sets of a peer are only decoded.
    #[must_use]
    pub const fn with(mut self, number: u32) -> Self {
        self.0[(number / 32) as usize] |= 1 << (number % 32);
        self
    }

    /// Whether `number` is in the set.
    #[must_use]
    pub const fn contains(&self, number: u32) -> bool {
        let unit = (number / 32) as usize;
        unit < BITMAP_UNITS_MAX && self.0[unit] & (1 << (number % 32)) != 0
    }

    /// The numbers that are in both sets.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(core::array::from_fn(|unit| self.0[unit] & other.0[unit]))
    }

    /// The numbers that are only in this set.
    #[must_use]
    pub fn difference(self, other: Self) -> Self {
        Self(core::array::from_fn(|unit| self.0[unit] & !other.0[unit]))
    }

    /// The numbers that are in at least one of the sets.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(core::array::from_fn(|unit| self.0[unit] | other.0[unit]))
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }

    /// The numbers in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<> {
        let set = *self;
        (0..32 * BITMAP_UNITS_MAX as u32).filter(move |&number| set.contains(number))
    }
}

impl Bitmap {
    /// Decodes a set, and tells whether it has numbers beyond the limit, which are left out.
    pub(crate) fn decode_known(from: &mut Decoder<'_>) -> Result<(Self, bool), DecodeError> {
        let units = from.length(BITMAP_UNITS_DECODED_MAX)?;
        let mut set = Self::EMPTY;
        let mut has_others = false;
        for index in 0..units {
            let unit = u32::decode(from)?;
            match set.0.get_mut(index) {
                Some(known) => *known = unit,
                None => has_others |= unit != 0,
            }
        }
        Ok((set, has_others))
    }
}

impl<'a> Xdr<'a> for Bitmap {
    /// Numbers beyond the limit are left out: a client may ask for attributes of later minor
    /// versions, which servers ignore (RFC 8881 §18.7).
    fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
        Self::decode_known(from).map(|(set, _)| set)
    }

    /// Units after the last number are left out.
    fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
        let empty = self.0.iter().rev().take_while(|&&unit| unit == 0).count();
        let units = &self.0[..BITMAP_UNITS_MAX - empty];
        (units.len() as u32).encode(to)?;
        units.iter().try_for_each(|unit| unit.encode(to))
    }
}
