//! Why an operation does not succeed now.

use files_spec::Status;
use files_store::Error;

/// Why an operation does not succeed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It fails.
    Status(Status),
    /// The volume waits for the device: the operation is executed again later.
    Busy,
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// The status of each error of a volume. Which of them an operation returns differs in a few cases,
/// which the operations handle themselves.
impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Status(match error {
            Error::Busy => return Self::Busy,
            Error::NotFound => Status::NOENT,
            Error::Exists => Status::EXIST,
            Error::NotDirectory => Status::NOTDIR,
            Error::IsDirectory => Status::ISDIR,
            Error::NotFile | Error::NotLink => Status::WRONG_TYPE,
            Error::NotEmpty => Status::NOTEMPTY,
            Error::Invalid => Status::INVAL,
            Error::NameTooLong => Status::NAMETOOLONG,
            Error::NoSpace => Status::NOSPC,
            Error::Quota => Status::DQUOT,
            Error::Stale => Status::STALE,
            Error::CrossShare => Status::XDEV,
            Error::TooManyLinks => Status::MLINK,
            Error::FileTooBig => Status::FBIG,
            Error::NoXattr => Status::NOXATTR,
            Error::XattrTooBig => Status::XATTR2BIG,
            Error::Io => Status::IO,
            // The client asks again, until the volume is opened again.
            Error::Lost => Status::DELAY,
        })
    }
}
