//! What a completion queue says of a work request.

use std::fmt;

/// A completion, plain data. Codes that this crate has no name for are kept as they came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The work request's identifier, as it was posted. Valid whatever the status.
    pub wr_id: u64,
    /// How it went. Only [`qp_number`](Self::qp_number) and [`wr_id`](Self::wr_id) mean something
    /// beside a status other than [`CompletionStatus::SUCCESS`].
    pub status: CompletionStatus,
    /// What it was.
    pub opcode: CompletionOpcode,
    /// Bytes received, or read from the peer.
    pub byte_len: u32,
    /// The local queue pair that the work request was done on.
    pub qp_number: u32,
    /// The provider's own code for what went wrong; for log lines.
    pub vendor_error: u32,
    /// Which other fields mean something. A provider translates what its driver sets, so that
    /// [`CompletionFlags::WITH_INVALIDATE`] is set for every receive that invalidated a key.
    pub flags: CompletionFlags,
    /// See [`invalidated`](Self::invalidated).
    pub invalidated_rkey: u32,
}

impl WorkCompletion {
    /// Whether the work request did what it was to do.
    #[inline]
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.status == CompletionStatus::SUCCESS
    }

    /// Whether this is a message that came in.
    #[inline]
    #[must_use]
    pub fn is_receive(&self) -> bool {
        self.opcode.0 & CompletionOpcode::RECEIVE.0 != 0
    }

    /// The local key that the received message invalidated.
    #[inline]
    #[must_use]
    pub fn invalidated(&self) -> Option<u32> {
        let flag = CompletionFlags::WITH_INVALIDATE.0;
        (self.flags.0 & flag != 0).then_some(self.invalidated_rkey)
    }
}

macro_rules! codes {
    (
        $(#[$meta:meta])*
        $name:ident { $($(#[$doc:meta])* $constant:ident = $value:expr, $text:literal;)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub u32);

        impl $name {
            $($(#[$doc])* pub const $constant: Self = Self($value);)*

            /// Its name in words; `None` for a code that this crate does not know.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "code {}", self.0),
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({}: {self})", stringify!($name), self.0)
            }
        }
    };
}
codes! {
    /// How a work request ended, numbered as `enum ibv_wc_status` of rdma-core. An open set.
    CompletionStatus {
        /// Done.
        SUCCESS = 0, "success";
        /// A message was longer than the receive's memory.
        LOCAL_LENGTH_ERROR = 1, "local length error";
        /// The queue pair cannot do this operation as it stands.
        LOCAL_QP_OPERATION_ERROR = 2, "local queue pair operation error";
        /// Local memory: no such key, beyond its bounds, or a right missing.
        LOCAL_PROTECTION_ERROR = 4, "local protection error";
        /// Not done: the queue pair went into the error state before.
        FLUSHED = 5, "flushed";
        /// A memory window could not be bound or invalidated.
        WINDOW_BIND_ERROR = 6, "memory window bind error";
        /// The peer answered what the protocol does not allow.
        BAD_RESPONSE = 7, "bad response";
        /// The local queue pair could not use memory for an incoming request.
        LOCAL_ACCESS_ERROR = 8, "local access error";
        /// The peer does not do such a request, or its receive's memory is too short.
        REMOTE_INVALID_REQUEST = 9, "remote invalid request";
        /// Remote memory: no such key, beyond its bounds, or a right missing.
        REMOTE_ACCESS_ERROR = 10, "remote access error";
        /// The peer failed to do it.
        REMOTE_OPERATION_ERROR = 11, "remote operation error";
        /// The peer did not answer, as often as it was asked.
        RETRIES_EXCEEDED = 12, "transport retries exceeded";
        /// The peer had no receive posted, as often as it was asked.
        RNR_RETRIES_EXCEEDED = 13, "receiver not ready, retries exceeded";
        /// The device failed.
        FATAL = 19, "fatal error";
        /// The peer's answer timed out.
        RESPONSE_TIMEOUT = 20, "response timeout";
        /// None of the above.
        GENERAL_ERROR = 21, "general error";
    }
}

codes! {
    /// What a completed work request was, numbered as `enum ibv_wc_opcode` of rdma-core. An open
    /// set.
    CompletionOpcode {
        /// A message was sent.
        SEND = 0, "send";
        /// Data was written to the peer's memory.
        WRITE = 1, "write";
        /// Data was read from the peer's memory.
        READ = 2, "read";
        /// A memory window was bound.
        BIND_WINDOW = 5, "bind window";
        /// A local key was invalidated.
        LOCAL_INVALIDATE = 6, "local invalidate";
        /// A message came in.
        RECEIVE = 128, "receive";
        /// Data was written by the peer, with a number.
        RECEIVE_WITH_IMMEDIATE = 129, "receive with immediate";
    }
}

/// Which fields of a completion mean something: one bit each, with this crate's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CompletionFlags(pub u32);

impl CompletionFlags {
    /// The message invalidated a local key.
    pub const WITH_INVALIDATE: Self = Self(1);
}
