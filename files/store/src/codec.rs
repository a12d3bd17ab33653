//! The byte form of metadata in the log and in checkpoints: little-endian integers, and lengths
//! before bytes and lists.

/// Bytes that are not the expected metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The bytes that remain.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Checks that no bytes remain.
    pub(crate) fn finish(&self) -> Result<(), Malformed> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(Malformed),
        }
    }
}

/// A value with a byte form.
pub(crate) trait Stored: Sized {
    fn put(&self, to: &mut Vec<u8>);

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed>;
}

macro_rules! integers {
    ($($type:ident,)*) => {
        $(
            impl Stored for $type {
                fn put(&self, to: &mut Vec<u8>) {
                    to.extend_from_slice(&self.to_le_bytes());
                }

                fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                    let bytes = from.take(size_of::<Self>())?;
                    bytes.try_into().map(Self::from_le_bytes).map_err(|_| Malformed)
                }
            }
        )*
    };
}

integers! { u8, u16, u32, u64, i64, }

impl<const N: usize> Stored for [u8; N] {
    fn put(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.take(N)?.try_into().map_err(|_| Malformed)
    }
}

impl<A: Stored, B: Stored> Stored for (A, B) {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
        self.1.put(to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok((A::get(from)?, B::get(from)?))
    }
}

impl<T: Stored> Stored for Option<T> {
    fn put(&self, to: &mut Vec<u8>) {
        u8::from(self.is_some()).put(to);
        if let Some(value) = self {
            value.put(to);
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        match u8::get(from)? {
            0 => Ok(None),
            1 => T::get(from).map(Some),
            _ => Err(Malformed),
        }
    }
}

/// A list. Each item has at least one byte, so its length is bounded by the bytes.
impl<T: Stored> Stored for Vec<T> {
    fn put(&self, to: &mut Vec<u8>) {
        put_list(self.len(), self.iter(), to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let count = u32::get(from)? as usize;
        if count > from.0.len() {
            return Err(Malformed);
        }
        (0..count).map(|_| T::get(from)).collect()
    }
}

/// Appends a list of `count` values in the form of a `Vec`.
pub(crate) fn put_list<'v, T: Stored + 'v>(
    count: usize,
    values: impl Iterator<Item = &'v T>,
    to: &mut Vec<u8>,
) {
    let count = u32::try_from(count).expect("lists have fewer than 2^32 items");
    count.put(to);
    for value in values {
        value.put(to);
    }
}

/// Bytes, as names and values have them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Bytes(pub(crate) std::sync::Arc<[u8]>);

impl Bytes {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl std::borrow::Borrow<[u8]> for Bytes {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl Stored for Bytes {
    fn put(&self, to: &mut Vec<u8>) {
        let length = u32::try_from(self.0.len()).expect("names and values are short");
        length.put(to);
        to.extend_from_slice(&self.0);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let length = u32::get(from)? as usize;
        from.take(length).map(Self::new)
    }
}

/// Defines a structure or an enumeration whose byte form is its fields in order, after a number of
/// the variant.
macro_rules! stored {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$fmeta:meta])* $fvis:vis $field:ident: $type:ty,)*
    }) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[$fmeta])* $fvis $field: $type,)*
        }

        impl $crate::codec::Stored for $name {
            fn put(&self, to: &mut Vec<u8>) {
                $($crate::codec::Stored::put(&self.$field, to);)*
            }

            fn get(
                from: &mut $crate::codec::Reader<'_>,
            ) -> Result<Self, $crate::codec::Malformed> {
                Ok(Self { $($field: $crate::codec::Stored::get(from)?,)* })
            }
        }
    };
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$vmeta:meta])* $number:literal => $variant:ident {
            $($(#[$fmeta:meta])* $field:ident: $type:ty,)*
        },)*
    }) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[$vmeta])* $variant { $($(#[$fmeta])* $field: $type,)* },)*
        }

        impl $crate::codec::Stored for $name {
            fn put(&self, to: &mut Vec<u8>) {
                match self {
                    $(Self::$variant { $($field,)* } => {
                        to.push($number);
                        $($crate::codec::Stored::put($field, to);)*
                    })*
                }
            }

            fn get(
                from: &mut $crate::codec::Reader<'_>,
            ) -> Result<Self, $crate::codec::Malformed> {
                match u8::get(from)? {
                    $($number => Ok(Self::$variant {
                        $($field: $crate::codec::Stored::get(from)?,)*
                    }),)*
                    _ => Err($crate::codec::Malformed),
                }
            }
        }
    };
}
