//! Admin commands over RDMA. Their data is in unregistered memory, so it is copied through
//! registered staging memory.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use hugemem::{Arena, DmaBuffer};
use nvme_spec::Sqe;
use rdma::Provider;

use crate::error::HostError;
use crate::link::{Completion, Completions, ConnectionCounters, Link, Refusal, Refused, Transfer};
use crate::rdma::connection::RdmaConnection;
use crate::rdma::memory::{CommandData, CommandDone};

/// A command's data and its copy in staging memory.
#[derive(Debug)]
pub(crate) struct StagedData {
    bytes: Vec<u8>,
    staged: DmaBuffer,
    reads: bool,
}

impl CommandData for StagedData {
    type Posted = Self;
    type Memory = DmaBuffer;

    fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn post(self) -> Self {
        self
    }

    fn memory(posted: &Self) -> &DmaBuffer {
        &posted.staged
    }

    fn take_back(posted: Self, _done: &CommandDone) -> Self {
        posted
    }
}

/// An admin connection.
#[derive(Debug)]
pub(crate) struct StagedConnection<P: Provider> {
    connection: RdmaConnection<P, StagedData>,
    staging: Arc<Arena>,
}

impl<P: Provider> StagedConnection<P> {
    pub(crate) fn new(connection: RdmaConnection<P, StagedData>, staging: Arc<Arena>) -> Self {
        Self {
            connection,
            staging,
        }
    }

    fn stage(&self, bytes: Vec<u8>, reads: bool) -> Result<StagedData, Refused<Vec<u8>>> {
        let refuse = |refusal, bytes| {
            Err(Refused {
                refusal,
                data: Some(bytes),
            })
        };
        if bytes.is_empty() || bytes.len() > self.staging.max_transfer() {
            return refuse(Refusal::Length, bytes);
        }
        let Some(staged) = self.staging.dma_buffer(bytes.len()) else {
            return refuse(Refusal::NoMemory, bytes);
        };
        if !reads {
            staged.write(0, &bytes);
        }
        Ok(StagedData {
            bytes,
            staged,
            reads,
        })
    }
}

impl<P: Provider> Link<Vec<u8>> for StagedConnection<P> {
    fn connected(&mut self, in_capsule_max_bytes: u32) {
        Link::connected(&mut self.connection, in_capsule_max_bytes);
    }

    fn submit(
        &mut self,
        sqe: Sqe,
        transfer: Transfer<Vec<u8>>,
        token: u64,
    ) -> Result<u16, Refused<Vec<u8>>> {
        let transfer = match transfer {
            Transfer::None => Transfer::None,
            Transfer::Read(bytes) => Transfer::Read(self.stage(bytes, true)?),
            Transfer::ReadUpTo(bytes) => Transfer::ReadUpTo(self.stage(bytes, true)?),
            Transfer::Write(bytes) => Transfer::Write(self.stage(bytes, false)?),
        };
        self.connection
            .submit(sqe, transfer, token)
            .map_err(|refused| Refused {
                refusal: refused.refusal,
                data: refused.data.map(|staged_data| staged_data.bytes),
            })
    }

    fn flush(&mut self) -> Result<(), HostError> {
        self.connection.flush()
    }

    fn poll_until(
        &mut self,
        completions: &mut Completions<Vec<u8>>,
        most: usize,
    ) -> Result<usize, HostError> {
        let mut staged = Completions::new();
        let room = most.saturating_sub(completions.len());
        let added = self.connection.poll_until(&mut staged, room)?;
        for completion in staged {
            let good = completion.status().is_success();
            completions.push(Completion {
                token: completion.token,
                cqe: completion.cqe,
                received: completion.received,
                data: completion.data.map(|mut staged_data| {
                    if staged_data.reads && good {
                        staged_data.staged.read(0, &mut staged_data.bytes);
                    }
                    staged_data.bytes
                }),
            });
        }
        Ok(added)
    }

    fn has_unsent(&self) -> bool {
        self.connection.has_unsent()
    }

    fn take_failed_command(&mut self) -> Option<(u64, Option<Vec<u8>>)> {
        let (token, staged_data) = self.connection.take_failed_command()?;
        Some((token, staged_data.map(|staged_data| staged_data.bytes)))
    }

    fn in_flight(&self) -> usize {
        self.connection.in_flight()
    }

    fn depth(&self) -> usize {
        self.connection.depth()
    }

    fn counters(&self) -> ConnectionCounters {
        self.connection.counters()
    }

    fn wait(&mut self, limit: Duration) {
        self.connection.wait(limit);
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.connection.descriptor()
    }
}
