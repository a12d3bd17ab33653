//! Completions of work requests.

use std::fmt;

/// A completion, plain data. Codes unknown to this crate are kept unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The work request's identifier, as posted. Valid with every status.
    pub wr_id: u64,
    /// The result. With a status other than [`CompletionStatus::SUCCESS`], only
    /// [`qp_number`](Self::qp_number) and [`wr_id`](Self::wr_id) are valid.
    pub status: CompletionStatus,
    /// The kind of work request.
    pub opcode: CompletionOpcode,
    /// Bytes received, or read from the peer.
    pub byte_len: u32,
    /// The local queue pair of the work request.
    pub qp_number: u32,
    /// The provider's own error code, for log lines.
    pub vendor_error: u32,
    /// Which other fields are valid. A provider translates the flags of its driver, so that
    /// [`CompletionFlags::WITH_INVALIDATE`] is set for every receive that invalidated a key.
    pub flags: CompletionFlags,
    /// See [`invalidated`](Self::invalidated).
    pub invalidated_rkey: u32,
}

impl WorkCompletion {
    /// Whether the work request succeeded.
    #[inline]
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.status == CompletionStatus::SUCCESS
    }

    /// Whether this is a received message.
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

            /// Its name in words; `None` for a code unknown to this crate.
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
    /// Result of a work request, numbered as `enum ibv_wc_status` of rdma-core. An open set.
    CompletionStatus {
        /// The request succeeded.
        SUCCESS = 0, "success";
        /// A message was longer than the receive's memory.
        LOCAL_LENGTH_ERROR = 1, "local length error";
        /// The queue pair cannot perform this operation in its state.
        LOCAL_QP_OPERATION_ERROR = 2, "local queue pair operation error";
        /// Local memory: unknown key, out of bounds, or a missing right.
        LOCAL_PROTECTION_ERROR = 4, "local protection error";
        /// Not executed, because the queue pair had entered the error state.
        FLUSHED = 5, "flushed";
        /// A memory window could not be bound or invalidated.
        WINDOW_BIND_ERROR = 6, "memory window bind error";
        /// The peer's response violates the protocol.
        BAD_RESPONSE = 7, "bad response";
        /// The local queue pair could not use memory for an incoming request.
        LOCAL_ACCESS_ERROR = 8, "local access error";
        /// The peer does not support the request, or its receive's memory is too short.
        REMOTE_INVALID_REQUEST = 9, "remote invalid request";
        /// Remote memory: unknown key, out of bounds, or a missing right.
        REMOTE_ACCESS_ERROR = 10, "remote access error";
        /// The peer failed to execute the request.
        REMOTE_OPERATION_ERROR = 11, "remote operation error";
        /// The peer did not respond to any of the retries.
        RETRIES_EXCEEDED = 12, "transport retries exceeded";
        /// The peer had no receive posted in any of the retries.
        RNR_RETRIES_EXCEEDED = 13, "receiver not ready, retries exceeded";
        /// The device failed.
        FATAL = 19, "fatal error";
        /// The peer's response timed out.
        RESPONSE_TIMEOUT = 20, "response timeout";
        /// Any other error.
        GENERAL_ERROR = 21, "general error";
    }
}

codes! {
    /// Kind of a completed work request, numbered as `enum ibv_wc_opcode` of rdma-core. An open
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
        /// A message was received.
        RECEIVE = 128, "receive";
        /// The peer wrote data, with an immediate value.
        RECEIVE_WITH_IMMEDIATE = 129, "receive with immediate";
    }
}

/// Which fields of a completion are valid: one bit each, with this crate's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CompletionFlags(pub u32);

impl CompletionFlags {
    /// The message invalidated a local key.
    pub const WITH_INVALIDATE: Self = Self(1);
}
