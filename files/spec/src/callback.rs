//! Callbacks: requests of the server to the client (RFC 8881 §20).

use crate::bitmap::Bitmap;
use crate::compound::{self, Sequence, Tag};
use crate::limits::SHORT_LIST_MAX;
use crate::operations::Outcome;
use crate::status::Status;
use crate::types::{FileHandle, Owner, SessionId, StateId};
use crate::xdr::{DecodeError, Decoder, EncodeError, Encoder, List, Xdr};

#[cfg(test)]
mod tests;

open_enum! {
    /// The number of a callback (`nfs_cb_opnum4`).
    pub struct CallbackNumber {
        GETATTR = 3, "CB_GETATTR";
        RECALL = 4, "CB_RECALL";
        LAYOUTRECALL = 5, "CB_LAYOUTRECALL";
        NOTIFY = 6, "CB_NOTIFY";
        PUSH_DELEG = 7, "CB_PUSH_DELEG";
        RECALL_ANY = 8, "CB_RECALL_ANY";
        RECALLABLE_OBJ_AVAIL = 9, "CB_RECALLABLE_OBJ_AVAIL";
        RECALL_SLOT = 10, "CB_RECALL_SLOT";
        SEQUENCE = 11, "CB_SEQUENCE";
        WANTS_CANCELLED = 12, "CB_WANTS_CANCELLED";
        NOTIFY_LOCK = 13, "CB_NOTIFY_LOCK";
        NOTIFY_DEVICEID = 14, "CB_NOTIFY_DEVICEID";
        OFFLOAD = 15, "CB_OFFLOAD";
        ILLEGAL = 10044, "CB_ILLEGAL";
    }
}

xdr_struct! {
    /// A request that another one refers to, `referring_call4`.
    pub struct ReferringCall {
        sequenceid: u32,
        slotid: u32,
    }
}

xdr_struct! {
    /// Requests of one session that a callback refers to, `referring_call_list4`.
    pub struct ReferringCalls<'a> {
        sessionid: SessionId,
        referring_calls: List<'a, ReferringCall, SHORT_LIST_MAX>,
    }
}

xdr_struct! {
    /// Arguments of CB_SEQUENCE (RFC 8881 §20.9).
    pub struct CallbackSequenceArgs<'a> {
        sessionid: SessionId,
        sequenceid: u32,
        slotid: u32,
        highest_slotid: u32,
        cachethis: bool,
        referring_call_lists: List<'a, ReferringCalls<'a>, SHORT_LIST_MAX>,
    }
}

xdr_struct! {
    /// Result of CB_SEQUENCE.
    pub struct CallbackSequenceOk {
        sessionid: SessionId,
        sequenceid: u32,
        slotid: u32,
        highest_slotid: u32,
        target_highest_slotid: u32,
    }
}

xdr_struct! {
    /// Arguments of CB_RECALL (RFC 8881 §20.2).
    pub struct RecallArgs<'a> {
        stateid: StateId,
        truncate: bool,
        fh: FileHandle<'a>,
    }
}

xdr_struct! {
    /// Arguments of CB_RECALL_ANY (RFC 8881 §20.6).
    pub struct RecallAnyArgs {
        objects_to_keep: u32,
        type_mask: Bitmap,
    }
}

xdr_struct! {
    /// Arguments of CB_RECALL_SLOT (RFC 8881 §20.8): the highest slot of the fore channel that the
    /// client shall use.
    pub struct RecallSlotArgs {
        target_highest_slotid: u32,
    }
}

xdr_struct! {
    /// Arguments of CB_NOTIFY_LOCK (RFC 8881 §20.11).
    pub struct NotifyLockArgs<'a> {
        fh: FileHandle<'a>,
        lock_owner: Owner<'a>,
    }
}

macro_rules! callbacks {
    ($($variant:ident $number:ident ($args:ty) -> $outcome:ty;)*) => {
        /// A callback with its arguments (`nfs_cb_argop4`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the variants are the callbacks of the table")]
        pub enum Callback<'a> {
            $($variant($args),)*
            Unsupported(CallbackNumber),
        }

        impl<'a> Xdr<'a> for Callback<'a> {
            fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
                match CallbackNumber::decode(from)? {
                    $(CallbackNumber::$number => Xdr::decode(from).map(Self::$variant),)*
                    number => Ok(Self::Unsupported(number)),
                }
            }

            fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
                match self {
                    $(
                        Self::$variant(args) => {
                            CallbackNumber::$number.encode(to)?;
                            args.encode(to)
                        }
                    )*
                    Self::Unsupported(number) => number.encode(to),
                }
            }
        }

        /// The result of a callback (`nfs_cb_resop4`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the variants are the callbacks of the table")]
        pub enum CallbackResult {
            $($variant($outcome),)*
            Unsupported(CallbackNumber, Status),
        }

        impl<'a> Xdr<'a> for CallbackResult {
            fn decode(from: &mut Decoder<'a>) -> Result<Self, DecodeError> {
                match CallbackNumber::decode(from)? {
                    $(CallbackNumber::$number => Xdr::decode(from).map(Self::$variant),)*
                    // The body of an unknown callback that succeeded is unknown.
                    number => match Status::decode(from)? {
                        Status::OK => Err(DecodeError::Discriminant),
                        status => Ok(Self::Unsupported(number, status)),
                    },
                }
            }

            fn encode(&self, to: &mut Encoder<'_>) -> Result<(), EncodeError> {
                match self {
                    $(
                        Self::$variant(outcome) => {
                            CallbackNumber::$number.encode(to)?;
                            outcome.encode(to)
                        }
                    )*
                    Self::Unsupported(_, Status::OK) => Err(EncodeError::Value),
                    Self::Unsupported(number, status) => {
                        number.encode(to)?;
                        status.encode(to)
                    }
                }
            }
        }

        /// Every callback of the table, with its arguments and results for the tests.
        #[cfg(test)]
        const SAMPLES: &[(
            fn(&mut crate::arbitrary::Source<'_>) -> Callback<'static>,
            fn(&mut crate::arbitrary::Source<'_>) -> CallbackResult,
        )] = &[$((
            |from| Callback::$variant(crate::arbitrary::Arbitrary::arbitrary(from)),
            |from| CallbackResult::$variant(crate::arbitrary::Arbitrary::arbitrary(from)),
        ),)*];
    };
}

callbacks! {
    Recall RECALL(RecallArgs<'a>) -> Outcome<()>;
    RecallAny RECALL_ANY(RecallAnyArgs) -> Outcome<()>;
    RecallSlot RECALL_SLOT(RecallSlotArgs) -> Outcome<()>;
    Sequence SEQUENCE(CallbackSequenceArgs<'a>) -> Outcome<CallbackSequenceOk>;
    NotifyLock NOTIFY_LOCK(NotifyLockArgs<'a>) -> Outcome<()>;
}

/// The request of a CB_COMPOUND. It is written by [`compound::Writer::callback`].
#[derive(Clone, Debug)]
pub struct CallbackArgs<'a> {
    /// The tag.
    pub tag: Tag<'a>,
    /// The minor version, that of the session.
    pub minor_version: u32,
    /// Not used since minor version 1.
    pub callback_ident: u32,
    /// The callbacks.
    pub callbacks: Sequence<'a, Callback<'a>>,
}

impl<'a> CallbackArgs<'a> {
    /// Decodes the header; the callbacks are decoded by their iterator.
    ///
    /// # Errors
    /// Returns the error of the first malformed part of the header.
    pub fn decode(mut from: Decoder<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            tag: Tag::decode(&mut from)?,
            minor_version: u32::decode(&mut from)?,
            callback_ident: u32::decode(&mut from)?,
            callbacks: Sequence::decode(from)?,
        })
    }

    /// The status of the whole request, before its first callback.
    ///
    /// # Errors
    /// As [`compound::CompoundArgs::check`].
    pub fn check(&self) -> Result<(), Status> {
        compound::check(self.minor_version, self.callbacks.left())
    }
}

/// The reply to a CB_COMPOUND. It is written by [`compound::Writer::reply`].
#[derive(Clone, Debug)]
pub struct CallbackOk<'a> {
    /// The status of the last callback.
    pub status: Status,
    /// The tag of the request.
    pub tag: Tag<'a>,
    /// The results of the callbacks up to the first that failed.
    pub results: Sequence<'a, CallbackResult>,
}

impl<'a> CallbackOk<'a> {
    /// Decodes the header; the results are decoded by their iterator.
    ///
    /// # Errors
    /// Returns the error of the first malformed part of the header.
    pub fn decode(mut from: Decoder<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            status: Status::decode(&mut from)?,
            tag: Tag::decode(&mut from)?,
            results: Sequence::decode(from)?,
        })
    }
}
