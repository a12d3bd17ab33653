//! The open enumeration: a newtype over an integer, named constants, and text for known values.
//!
//! Unknown values are representable, comparable, and printed as their number.

/// Defines an open enumeration; each constant's text is its documentation and its `Display` form.
macro_rules! open_enum {
    ($(#[$meta:meta])* pub struct $name:ident(u8) { $($body:tt)* }) => {
        open_enum!(@body [
            $(#[$meta])*
            #[derive(
                zerocopy::FromBytes,
                zerocopy::IntoBytes,
                zerocopy::Immutable,
                zerocopy::KnownLayout,
                zerocopy::Unaligned,
            )]
            #[repr(transparent)]
        ] $name u8 { $($body)* });
    };
    ($(#[$meta:meta])* pub struct $name:ident($int:ident) { $($body:tt)* }) => {
        open_enum!(@body [$(#[$meta])*] $name $int { $($body)* });
    };
    (@body [$(#[$meta:meta])*] $name:ident $int:ident {
        $($variant:ident = $value:literal, $text:literal;)*
    }) => {
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $(#[$meta])*
        pub struct $name(pub $int);

        impl $name {
            $(
                #[doc = $text]
                pub const $variant: Self = Self($value);
            )*

            /// Creates a value from its code; every code is representable.
            pub const fn from_bits(bits: $int) -> Self {
                Self(bits)
            }

            /// The code value.
            pub const fn into_bits(self) -> $int {
                self.0
            }

            /// The name of a known value; `None` for reserved and vendor specific values.
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
                    None => write!(f, "unknown ({:#x})", self.0),
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{}({:#x})", stringify!($name), self.0)
            }
        }

        const _: () = assert!(size_of::<$name>() == size_of::<$int>());
    };
}
