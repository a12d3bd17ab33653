//! Replies: the statuses of RPC and COMPOUND, and the results of operations.

use files_spec::Status;
use files_spec::compound::{CompoundOk, Malformed, Results};
use files_spec::operations::OperationResult;
use files_spec::rpc::{AcceptStatus, Denied, Reply, ReplyBody};
use files_spec::xdr::{DecodeError, Decoder, Xdr as _};

/// A record that is not the reply to a COMPOUND that was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// It is not a reply.
    #[error("the record is not a reply ({0:?})")]
    Malformed(DecodeError),
    /// A result is malformed.
    #[error("the result of {} is malformed ({:?})", .0.number, .0.error)]
    Result(Malformed),
    /// The call was not executed.
    #[error("the call was not executed: {0:?}")]
    NotExecuted(AcceptStatus),
    /// The sender was refused.
    #[error("the server refuses the sender: {0:?}")]
    Denied(Denied),
}

/// The status of a COMPOUND and its results.
#[derive(Clone, Debug)]
pub struct Answer<'r> {
    /// The status of the last operation.
    pub status: Status,
    results: Results<'r>,
}

impl<'r> Answer<'r> {
    /// Decodes a reply up to its results.
    ///
    /// # Errors
    /// It is malformed, or the call was not executed.
    pub fn decode(record: &'r [u8]) -> Result<Self, ReplyError> {
        let mut from = Decoder::new(record);
        let reply = Reply::decode(&mut from).map_err(ReplyError::Malformed)?;
        match reply.body {
            ReplyBody::Accepted(it) if it.status == AcceptStatus::Success => {}
            ReplyBody::Accepted(it) => return Err(ReplyError::NotExecuted(it.status)),
            ReplyBody::Denied(it) => return Err(ReplyError::Denied(it)),
        }
        let compound = CompoundOk::decode(from).map_err(ReplyError::Malformed)?;
        Ok(Self {
            status: compound.status,
            results: compound.results,
        })
    }

    /// The next result; `None` behind the last one.
    ///
    /// # Errors
    /// It is malformed.
    #[expect(
        clippy::should_implement_trait,
        reason = "each user wants the errors of the first or of all results"
    )]
    pub fn next(&mut self) -> Result<Option<OperationResult<'r>>, ReplyError> {
        self.results.next().transpose().map_err(ReplyError::Result)
    }

    /// All results that follow.
    ///
    /// # Errors
    /// One is malformed.
    pub fn results(self) -> Result<Vec<OperationResult<'r>>, ReplyError> {
        let results: Result<Vec<_>, _> = self.results.collect();
        results.map_err(ReplyError::Result)
    }

    /// The last result; `None` if there are none.
    ///
    /// # Errors
    /// One is malformed.
    pub fn last(mut self) -> Result<Option<OperationResult<'r>>, ReplyError> {
        let mut last = None;
        while let Some(result) = self.next()? {
            last = Some(result);
        }
        Ok(last)
    }
}

/// The identifier of a call or reply; `None` if the record has none.
#[must_use]
pub fn xid_of(record: &[u8]) -> Option<u32> {
    record.first_chunk().map(|it| u32::from_be_bytes(*it))
}
