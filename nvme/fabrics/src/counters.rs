//! The declaration of a transport's counters.

/// Declares a struct of [`Counter`](nvme_target::Counter)s with an iterator over names and values.
/// The reactor that owns the transport writes them; other threads read them.
#[macro_export]
macro_rules! transport_counters {
    (
        $(#[$of_struct:meta])*
        pub struct $counters:ident { $($(#[$meta:meta])* $name:ident,)* }
    ) => {
        $(#[$of_struct])*
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct $counters {
            $($(#[$meta])* pub $name: ::nvme_target::Counter,)*
        }

        impl $counters {
            /// The name and value of every counter, in the order of declaration.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name.get()),)*].into_iter()
            }
        }
    };
}
