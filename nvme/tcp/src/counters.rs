//! What one reactor's NVMe/TCP connections have done, written by their owner and read by anybody.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count with one writer; reading it from another thread is always allowed.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds `amount`. Only the owner calls this, so no locked instruction is needed.
    pub(crate) fn add(&self, amount: u64) {
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(amount),
            Ordering::Relaxed,
        );
    }

    /// Sets the present value, for levels.
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The present value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$meta:meta])* $name:ident,)*) => {
        /// Counts of one reactor's NVMe/TCP connections since the start; bytes where the name says
        /// so.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct TcpCounters {
            $($(#[$meta])* pub $name: Count,)*
        }

        impl TcpCounters {
            /// Every counter's name and value, in the order of declaration.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name.get()),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Connections now open (a level).
    connections,
    /// Connections accepted.
    connections_opened,
    /// Connections turned away because the table was full.
    connections_refused,
    /// Connections closed after a protocol violation by the host.
    violations,
    /// Connections closed because the host did not finish its set-up in time.
    setup_timeouts,
    /// Command capsules taken in.
    commands,
    /// Vectored receives.
    receives,
    /// Vectored sends.
    sends,
    /// Bytes received.
    bytes_received,
    /// Payload bytes received straight into a request's lease.
    bytes_placed,
    /// Payload bytes that arrived with headers and were copied into a request's lease.
    bytes_copied,
    /// Payload bytes sent to hosts, from where they lay.
    bytes_sent,
    /// Requests that waited for a buffer.
    buffer_waits,
    /// Header digests that did not match.
    header_digest_errors,
    /// Data digests that did not match.
    data_digest_errors,
}
