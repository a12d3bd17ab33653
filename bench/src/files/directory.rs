//! Places on a server: directories by their path, and files in them.

use std::thread::sleep;
use std::time::{Duration, Instant};

use files_client::{Answer, requests};
use files_spec::attributes::Attributes;
use files_spec::operations::{CloseArgs, CreateArgs, Operation, OperationResult, Outcome};
use files_spec::types::{CreateType, StateId};
use files_spec::xdr::Opaque;
use files_spec::{Name, Status};

use super::connection::FilesConnection;
use super::{FilesError, FilesTarget};

/// Limit of the parts of a path, so that a request has few operations.
const PARTS_MAX: usize = 12;
/// How long a server may refuse OPEN after its start, and the pause between attempts.
const GRACE: Duration = Duration::from_secs(120);
const GRACE_PAUSE: Duration = Duration::from_millis(500);

/// A directory.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    pub(super) handle: Vec<u8>,
}

/// An open file.
#[derive(Debug, Clone)]
pub(super) struct OpenFile {
    pub(super) handle: Vec<u8>,
    pub(super) stateid: StateId,
}

/// A valid name.
pub(super) fn name(text: &str) -> Result<Name<'_>, FilesError> {
    Name::new(text.as_bytes()).map_err(|_| FilesError::Name(text.to_owned()))
}

fn handle_of(result: Option<OperationResult<'_>>) -> Result<Vec<u8>, FilesError> {
    match result {
        Some(OperationResult::GetFh(Outcome::Ok(handle))) => Ok(handle.0.to_vec()),
        _ => Err(FilesError::Result("GETFH")),
    }
}

/// Checks that a whole COMPOUND has succeeded.
pub(super) fn succeeded(
    status: Status,
    operation: &'static str,
    object: &str,
) -> Result<(), FilesError> {
    match status {
        Status::OK => Ok(()),
        status => Err(FilesError::Operation {
            operation,
            object: object.to_owned(),
            status,
        }),
    }
}

impl Directory {
    /// The directory of a target.
    pub(super) fn of(
        connection: &mut FilesConnection,
        target: &FilesTarget,
    ) -> Result<Self, FilesError> {
        let parts: Vec<&str> = target.path.split('/').filter(|it| !it.is_empty()).collect();
        if parts.len() > PARTS_MAX {
            return Err(FilesError::Path(PARTS_MAX));
        }
        let mut operations = vec![Operation::PutRootFh(())];
        for part in &parts {
            operations.push(Operation::Lookup(name(part)?));
        }
        operations.push(Operation::GetFh(()));
        let handle = connection.call(&operations, |answer| {
            let status = answer.status;
            let results = answer.results()?;
            if status != Status::OK {
                // Its result is the last one; PUTROOTFH has the first.
                let part = results.len().checked_sub(2).and_then(|it| parts.get(it));
                let object = part.map_or_else(
                    || "the root of the server".to_owned(),
                    |part| format!("'{part}' in /{}", parts.join("/")),
                );
                succeeded(status, "LOOKUP", &object)?;
            }
            handle_of(results.last().copied())
        })?;
        Ok(Self { handle })
    }

    /// Creates a directory in it.
    pub(super) fn make(
        &self,
        connection: &mut FilesConnection,
        text: &str,
    ) -> Result<Self, FilesError> {
        let operations = [
            Operation::PutFh(Opaque(&self.handle)),
            create_directory(text)?,
            Operation::GetFh(()),
        ];
        let handle = connection.call(&operations, |answer| {
            succeeded(answer.status, "CREATE", text)?;
            handle_of(answer.last()?)
        })?;
        Ok(Self { handle })
    }

    /// Removes a name.
    pub(super) fn remove(
        &self,
        connection: &mut FilesConnection,
        text: &str,
    ) -> Result<(), FilesError> {
        let operations = [
            Operation::PutFh(Opaque(&self.handle)),
            Operation::Remove(name(text)?),
        ];
        connection.call(&operations, |answer| {
            succeeded(answer.status, "REMOVE", text)
        })
    }

    /// Opens a file, which is created if it is missing. Waits while the server lets clients reclaim.
    pub(super) fn open(
        &self,
        connection: &mut FilesConnection,
        text: &str,
    ) -> Result<OpenFile, FilesError> {
        let operations = [
            Operation::PutFh(Opaque(&self.handle)),
            requests::open_or_create(name(text)?),
            Operation::GetFh(()),
        ];
        let began = Instant::now();
        loop {
            let opened = connection.call(&operations, |answer| {
                if answer.status == Status::GRACE && began.elapsed() < GRACE {
                    return Ok(None);
                }
                succeeded(answer.status, "OPEN", text)?;
                opened(answer).map(Some)
            })?;
            match opened {
                Some(file) => return Ok(file),
                None => sleep(GRACE_PAUSE),
            }
        }
    }
}

fn opened(answer: Answer<'_>) -> Result<OpenFile, FilesError> {
    let results = answer.results()?;
    match results[..] {
        [_, OperationResult::Open(Outcome::Ok(ok)), handle] => Ok(OpenFile {
            handle: handle_of(Some(handle))?,
            stateid: ok.stateid,
        }),
        _ => Err(FilesError::Result("OPEN")),
    }
}

/// CREATE of a directory.
pub(super) fn create_directory(text: &str) -> Result<Operation<'_>, FilesError> {
    Ok(Operation::Create(CreateArgs {
        objtype: CreateType::Directory,
        objname: name(text)?,
        createattrs: Attributes::default(),
    }))
}

impl OpenFile {
    /// Closes the file.
    pub(super) fn close(&self, connection: &mut FilesConnection) -> Result<(), FilesError> {
        let operations = [
            Operation::PutFh(Opaque(&self.handle)),
            Operation::Close(CloseArgs {
                seqid: 0,
                open_stateid: self.stateid,
            }),
        ];
        connection.call(&operations, |answer| {
            succeeded(answer.status, "CLOSE", "the file")
        })
    }
}
