//! A connection with an open file, used like the queue of a host: its blocks are those of the file.

use std::time::Duration;

use files_client::Answer;
use files_spec::Status;
use files_spec::operations::{Operation, OperationResult, Outcome, ReadArgs, WriteArgs};
use files_spec::types::Stable;
use files_spec::xdr::{Opaque, Payload};
use hugemem::{Lease, Pool};
use nvme_host::{ConnectionCounters, HostCompletion, HostCompletions, Refusal, Refused};
use nvme_spec::Cqe;

use super::FilesError;
use super::connection::FilesConnection;
use super::directory::{Directory, OpenFile};
use super::run::FilesPlan;
use crate::load::RunError;
use crate::load::initiator::Initiator;
use crate::load::run::{LoadError, OpenQueue};

/// Parameters of a queue to open.
pub(super) struct FilesQueuePlan {
    pub(super) plan: FilesPlan,
    pub(super) owner: String,
    pub(super) file: String,
    pub(super) block_bytes: u32,
}

impl OpenQueue for FilesQueuePlan {
    type Queue = FilesQueue;

    fn open(&self, _: Pool) -> Result<FilesQueue, LoadError> {
        let plan = &self.plan;
        let depth = plan.workload.depth;
        let mut connection = FilesConnection::new(&plan.target, &self.owner, u32::from(depth))?;
        let directory = Directory::of(&mut connection, &plan.target)?;
        let file = directory.open(&mut connection, &self.file)?;
        Ok(FilesQueue {
            connection,
            file,
            stable: plan.stable,
            block_bytes: self.block_bytes,
            requests: (0..depth).map(|_| None).collect(),
            has_failed: false,
        })
    }
}

/// A request in flight.
#[derive(Debug)]
struct Request {
    token: u64,
    is_read: bool,
    offset: u64,
    data: Lease,
}

/// A connection with an open file.
#[derive(Debug)]
pub(super) struct FilesQueue {
    connection: FilesConnection,
    file: OpenFile,
    stable: Stable,
    block_bytes: u32,
    /// By slot.
    requests: Box<[Option<Request>]>,
    /// Whether the connection has failed.
    has_failed: bool,
}

/// The server keeps what is open until the lease expires, also a file that is removed.
impl Drop for FilesQueue {
    fn drop(&mut self) {
        if !self.has_failed {
            // The run has ended: no result depends on this.
            let _ = self.file.close(&mut self.connection);
        }
    }
}

impl FilesQueue {
    fn submit(
        &mut self,
        is_read: bool,
        lba: u64,
        data: Lease,
        token: u64,
    ) -> Result<(), Refused<Lease>> {
        let refused = |refusal, data| {
            Err(Refused {
                refusal,
                data: Some(data),
            })
        };
        let Some(slot) = self.connection.free_slot() else {
            return refused(Refusal::Full, data);
        };
        let offset = lba * u64::from(self.block_bytes);
        let length = data.len() as u32;
        let stateid = self.file.stateid;
        let operation = match is_read {
            true => Operation::Read(ReadArgs {
                stateid,
                offset,
                count: length,
            }),
            false => Operation::Write(WriteArgs {
                stateid,
                offset,
                stable: self.stable,
                data: Payload::Elsewhere(length),
            }),
        };
        let operations = [Operation::PutFh(Opaque(&self.file.handle)), operation];
        let submitted = self.connection.submit(slot, u64::from(slot), &operations);
        let place = self.requests.get_mut(slot as usize);
        let (Ok(()), Some(place)) = (submitted, place) else {
            return refused(Refusal::Failed, data);
        };
        *place = Some(Request {
            token,
            is_read,
            offset,
            data,
        });
        Ok(())
    }
}

/// Completes a request by its answer. Returns the completion, and the bytes that were copied.
fn complete(
    request: Request,
    mut answer: Answer<'_>,
) -> Result<(HostCompletion, usize), FilesError> {
    let Request {
        token,
        is_read,
        offset,
        mut data,
    } = request;
    let operation = if is_read { "READ" } else { "WRITE" };
    let length = data.len();
    if answer.status != Status::OK {
        return Err(FilesError::Operation {
            operation,
            object: format!("{length} bytes at {offset}"),
            status: answer.status,
        });
    }
    let of_putfh = answer.next()?;
    let result = of_putfh.and(answer.next()?);
    let (moved, copied) = match result {
        Some(OperationResult::Read(Outcome::Ok(ok))) if is_read => match ok.data {
            Payload::Inline(bytes) if bytes.len() == length => {
                data.copy_from_slice(bytes);
                (length, length)
            }
            other => (other.len(), 0),
        },
        Some(OperationResult::Write(Outcome::Ok(ok))) if !is_read => (ok.count as usize, 0),
        _ => return Err(FilesError::Result(operation)),
    };
    if moved != length {
        return Err(FilesError::Short {
            operation,
            offset,
            length,
            moved,
        });
    }
    let completion = HostCompletion {
        token,
        cqe: Cqe::new(0, nvme_spec::Status::SUCCESS),
        received: copied as u32,
        data: Some(data),
    };
    Ok((completion, copied))
}

impl Initiator for FilesQueue {
    fn submit_read(
        &mut self,
        _nsid: u32,
        lba: u64,
        _blocks: u32,
        data: Lease,
        token: u64,
    ) -> Result<(), Refused<Lease>> {
        self.submit(true, lba, data, token)
    }

    fn submit_write(
        &mut self,
        _nsid: u32,
        lba: u64,
        _blocks: u32,
        data: Lease,
        token: u64,
    ) -> Result<(), Refused<Lease>> {
        self.submit(false, lba, data, token)
    }

    fn flush(&mut self) -> Result<(), RunError> {
        let requests = &self.requests;
        let payload = |slot: u32| match requests.get(slot as usize) {
            Some(Some(request)) => &request.data[..],
            _ => &[],
        };
        let flushed = self.connection.flush(&payload);
        self.has_failed |= flushed.is_err();
        Ok(flushed?)
    }

    fn poll(&mut self, completions: &mut HostCompletions) -> Result<usize, RunError> {
        let room = completions.capacity() - completions.len();
        let requests = &mut self.requests;
        let mut copied = 0;
        let taken = self.connection.poll(room, &mut |slot, answer| {
            let request = requests.get_mut(slot as usize).and_then(Option::take);
            let request = request.ok_or(FilesError::Result("a request"))?;
            let (completion, bytes) = complete(request, answer)?;
            copied += bytes;
            completions.push(completion);
            Ok(())
        });
        self.has_failed |= matches!(
            taken,
            Err(FilesError::Socket(_) | FilesError::Closed | FilesError::ClosedWithinReply)
        );
        self.connection.count_copied(copied);
        Ok(taken?)
    }

    fn wait(&mut self, limit: Duration) {
        self.connection.wait(limit);
    }

    fn counters(&self) -> ConnectionCounters {
        self.connection.counters()
    }
}
