//! Declarations of open enumerations, XDR structures and XDR unions, from which decoding, encoding
//! and the generators of the tests follow.

/// Defines an open enumeration over `u32`; each constant's text is its documentation and its
/// `Display` form.
macro_rules! open_enum {
    ($(#[$meta:meta])* pub struct $name:ident {
        $($variant:ident = $value:literal, $text:literal;)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            $(
                #[doc = $text]
                pub const $variant: Self = Self($value);
            )*

            /// Every named value.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The name of a known value.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "unknown ({})", self.0),
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl<'a> $crate::xdr::Xdr<'a> for $name {
            fn decode(
                from: &mut $crate::xdr::Decoder<'a>,
            ) -> Result<Self, $crate::xdr::DecodeError> {
                u32::decode(from).map(Self)
            }

            fn encode(
                &self,
                to: &mut $crate::xdr::Encoder<'_>,
            ) -> Result<(), $crate::xdr::EncodeError> {
                self.0.encode(to)
            }
        }

        #[cfg(test)]
        impl<'a> $crate::arbitrary::Arbitrary<'a> for $name {
            fn arbitrary(from: &mut $crate::arbitrary::Source<'_>) -> Self {
                Self(u32::arbitrary(from))
            }
        }
    };
}

/// Defines a structure whose XDR form is its fields in order.
macro_rules! xdr_struct {
    ($(#[$meta:meta])* pub struct $name:ident $(<$life:lifetime>)? {
        $($(#[$fmeta:meta])* $field:ident: $type:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the fields are those of the XDR description")]
        pub struct $name $(<$life>)? {
            $($(#[$fmeta])* pub $field: $type,)*
        }

        xdr_struct!(@impl $name [$(<$life>)?] { $($field: $type,)* });
    };
    (@impl $name:ident [] $body:tt) => { xdr_struct!(@body ['a] ($name) $body); };
    (@impl $name:ident [<$life:lifetime>] $body:tt) => {
        xdr_struct!(@body [$life] ($name<$life>) $body);
    };
    (@body [$life:lifetime] ($self:ty) { $($field:ident: $type:ty,)* }) => {
        impl<$life> $crate::xdr::Xdr<$life> for $self {
            fn decode(
                from: &mut $crate::xdr::Decoder<$life>,
            ) -> Result<Self, $crate::xdr::DecodeError> {
                Ok(Self { $($field: <$type as $crate::xdr::Xdr<$life>>::decode(from)?,)* })
            }

            fn encode(
                &self,
                to: &mut $crate::xdr::Encoder<'_>,
            ) -> Result<(), $crate::xdr::EncodeError> {
                $($crate::xdr::Xdr::encode(&self.$field, to)?;)*
                Ok(())
            }
        }

        #[cfg(test)]
        impl<$life> $crate::arbitrary::Arbitrary<$life> for $self {
            fn arbitrary(from: &mut $crate::arbitrary::Source<'_>) -> Self {
                Self { $($field: $crate::arbitrary::Arbitrary::arbitrary(from),)* }
            }
        }
    };
}

/// The name of a variable that is bound for a type, inside a repetition over types.
macro_rules! bound {
    ($variable:ident, $type:ty) => {
        $variable
    };
}

/// Defines a discriminated union over `u32`: `value => Variant` or `value => Variant(Type)`. With
/// `_ => Other`, other values are kept and have no body; otherwise they are malformed.
macro_rules! xdr_union {
    ($(#[$meta:meta])* pub enum $name:ident $(<$life:lifetime>)? {
        $($value:literal => $variant:ident $(($type:ty))?,)*
        $(_ => $other:ident,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the variants are those of the XDR description")]
        pub enum $name $(<$life>)? {
            $($variant $(($type))?,)*
            $($other(u32),)?
        }

        xdr_union!(@impl $name [$(<$life>)?] {
            $($value => $variant $(($type))?,)* } { $($other)? });
    };
    (@impl $name:ident [] $body:tt $other:tt) => {
        xdr_union!(@body ['a] ($name) $body $other);
    };
    (@impl $name:ident [<$life:lifetime>] $body:tt $other:tt) => {
        xdr_union!(@body [$life] ($name<$life>) $body $other);
    };
    (@other $value:ident {}) => { Err($crate::xdr::DecodeError::Discriminant) };
    (@other $value:ident { $other:ident }) => { Ok(Self::$other($value)) };
    (@body [$life:lifetime] ($self:ty)
        { $($value:literal => $variant:ident $(($type:ty))?,)* } { $($other:ident)? }
    ) => {
        impl<$life> $crate::xdr::Xdr<$life> for $self {
            fn decode(
                from: &mut $crate::xdr::Decoder<$life>,
            ) -> Result<Self, $crate::xdr::DecodeError> {
                let value = u32::decode(from)?;
                match value {
                    $($value => Ok(Self::$variant $((<$type>::decode(from)?))?),)*
                    _ => xdr_union!(@other value { $($other)? }),
                }
            }

            fn encode(
                &self,
                to: &mut $crate::xdr::Encoder<'_>,
            ) -> Result<(), $crate::xdr::EncodeError> {
                match self {
                    $(Self::$variant $((bound!(body, $type)))? => {
                        u32::encode(&$value, to)?;
                        $($crate::xdr::Xdr::encode(bound!(body, $type), to)?;)?
                        Ok(())
                    })*
                    $(Self::$other(value) => value.encode(to),)?
                }
            }
        }

        #[cfg(test)]
        impl<$life> $crate::arbitrary::Arbitrary<$life> for $self {
            fn arbitrary(from: &mut $crate::arbitrary::Source<'_>) -> Self {
                let values: &[u32] = &[$($value),*];
                match from.pick(values) {
                    $($value => Self::$variant $((<$type>::arbitrary(from)))?,)*
                    _ => unreachable!("picked from the values"),
                }
            }
        }
    };
}
