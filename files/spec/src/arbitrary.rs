//! Values for the tests, derived from bytes that proptest chooses, so that they can be shrunk.
//! Arrays and text are leaked, because the values borrow.

use crate::bitmap::Bitmap;
use crate::name::{Name, XattrName};
use crate::xdr::{List, Opaque, Payload, Text, Xdr};

/// The bytes that remain; zeroes follow them.
pub(crate) struct Source<'s>(pub(crate) &'s [u8]);

impl Source<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    pub(crate) fn one_in(&mut self, many: u8) -> bool {
        self.byte() % many == many - 1
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    fn length(&mut self, max: usize) -> usize {
        (usize::from(self.byte()) % 8).min(max)
    }

    fn leaked<'a>(&mut self, max: usize) -> &'a [u8] {
        let length = self.length(max);
        (0..length).map(|_| self.byte()).collect::<Vec<_>>().leak()
    }
}

/// A type whose values can be derived from bytes.
pub(crate) trait Arbitrary<'a> {
    fn arbitrary(from: &mut Source<'_>) -> Self;
}

impl<'a> Arbitrary<'a> for () {
    fn arbitrary(_: &mut Source<'_>) -> Self {}
}

impl<'a, const N: usize> Arbitrary<'a> for [u8; N] {
    fn arbitrary(from: &mut Source<'_>) -> Self {
        core::array::from_fn(|_| from.byte())
    }
}

impl<'a> Arbitrary<'a> for bool {
    fn arbitrary(from: &mut Source<'_>) -> Self {
        from.one_in(2)
    }
}

macro_rules! integers {
    ($($type:ident,)*) => {
        $(
            impl<'a> Arbitrary<'a> for $type {
                fn arbitrary(from: &mut Source<'_>) -> Self {
                    match from.byte() % 4 {
                        0 => Self::from_be_bytes(Arbitrary::arbitrary(from)),
                        1 => Self::MAX,
                        _ => Self::from(from.byte()),
                    }
                }
            }
        )*
    };
}

integers! { u32, u64, i64, }

impl<'a, T: Arbitrary<'a>> Arbitrary<'a> for Option<T> {
    fn arbitrary(from: &mut Source<'_>) -> Self {
        from.one_in(2).then(|| T::arbitrary(from))
    }
}

impl<'a, const MAX: usize> Arbitrary<'a> for Opaque<'a, MAX> {
    fn arbitrary(from: &mut Source<'_>) -> Self {
        Self(from.leaked(MAX))
    }
}

impl<'a, const MAX: usize> Arbitrary<'a> for Text<'a, MAX> {
    fn arbitrary(from: &mut Source<'_>) -> Self {
        Self(match from.byte() % 3 {
            0 => "",
            1 => "0",
            _ => "größe@example.org",
        })
    }
}

impl<'a> Arbitrary<'a> for Name<'a> {
    fn arbitrary(from: &mut Source<'_>) -> Self {
        let text = from.leaked(7);
        Name::new(text).unwrap_or_else(|_| Name::new("naïve name".as_bytes()).expect("valid"))
    }
}

impl<'a> Arbitrary<'a> for XattrName<'a> {
    fn arbitrary(from: &mut Source<'_>) -> Self {
        let text = from.leaked(7);
        XattrName::new(text).unwrap_or_else(|_| XattrName::new(b"a/b").expect("valid"))
    }
}

impl<'a> Arbitrary<'a> for Payload<'a> {
    fn arbitrary(from: &mut Source<'_>) -> Self {
        Self::Inline(from.leaked(64))
    }
}

impl<'a> Arbitrary<'a> for Bitmap {
    fn arbitrary(from: &mut Source<'_>) -> Self {
        let count = from.length(7);
        (0..count).fold(Self::EMPTY, |set, _| set.with(u32::from(from.byte())))
    }
}

impl<'a, T: Arbitrary<'a> + Xdr<'a> + Copy + 'a, const MAX: usize> Arbitrary<'a>
    for List<'a, T, MAX>
{
    fn arbitrary(from: &mut Source<'_>) -> Self {
        let count = from.length(MAX.min(3));
        let items: Vec<T> = (0..count).map(|_| T::arbitrary(from)).collect();
        Self::new(items.leak())
    }
}
