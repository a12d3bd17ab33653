//! Reads and writes of one file on a server.

use std::sync::Arc;

use files_spec::operations::{CommitArgs, Operation, OperationResult, Outcome, WriteArgs};
use files_spec::types::Stable;
use files_spec::xdr::{Opaque, Payload};
use nvme_host::NamespaceInfo;

use super::connection::FilesConnection;
use super::directory::{Directory, OpenFile, succeeded};
use super::queue::FilesQueuePlan;
use super::{FilesError, FilesTarget, unique};
use crate::load::Workload;
use crate::load::run::{LoadError, Outcome as RunOutcome, Watch, drive_queues, take_arena};
use crate::random::Random;

/// Default size of the file in bytes.
const FILE_BYTES: u64 = 256 << 20;
/// Sizes of the blocks of which the file consists for the load generator: the largest that all
/// request sizes are multiples of.
const BLOCK_BYTES: [u32; 4] = [4096, 2048, 1024, 512];
/// Size of the writes that fill a file before it is read, in bytes.
const FILL_BYTES: u32 = 1 << 20;

/// A run on a file of a server.
#[derive(Debug, Clone)]
pub struct FilesPlan {
    /// The server and the directory.
    pub target: FilesTarget,
    /// The workload.
    pub workload: Workload,
    /// Cores to which the driving threads are pinned in turn; empty for no pinning.
    pub cores: Vec<usize>,
    /// How stable data is when a write is answered.
    pub stable: Stable,
}

/// Runs a workload on a new file, which is removed at the end.
///
/// # Errors
/// [`LoadError`] if the run could not start or a thread was lost.
pub fn run_files(plan: &FilesPlan, watch: &mut dyn Watch) -> Result<RunOutcome, LoadError> {
    let workload = &plan.workload;
    let unique = unique();
    let name = format!("windlass-bench-{unique:016x}");
    let owner = |number: u16| format!("windlass bench {unique:016x} {number}");
    let mut connection = FilesConnection::new(&plan.target, &owner(0), 1)?;
    let directory = Directory::of(&mut connection, &plan.target)?;
    let mut smallest = workload.sizes_bytes.clone();
    if workload.verify && smallest.is_empty() {
        smallest.push(512);
    }
    let divides = |block: &u32| smallest.iter().all(|size| size.is_multiple_of(*block));
    let block_bytes = BLOCK_BYTES.into_iter().find(divides).unwrap_or(512);
    let file_bytes = workload.region_bytes.unwrap_or(FILE_BYTES);
    let namespace = NamespaceInfo {
        nsid: 1,
        block_bytes,
        blocks: file_bytes / u64::from(block_bytes),
        write_protected: false,
        nguid: [0; 16],
        eui64: [0; 8],
        uuid: None,
    };
    let most = u64::from(connection.payload_bytes_max());
    let suited = Arc::new(workload.check_against(&namespace, Some(most))?);
    let arena = take_arena(workload, suited.size_max_bytes)?;
    let file = directory.open(&mut connection, &name)?;
    let driven = prepare(&mut connection, plan, &file, namespace.bytes()).map_err(LoadError::from);
    let driven = driven.and_then(|()| {
        let queues: Vec<FilesQueuePlan> = (0..workload.queues)
            .map(|number| FilesQueuePlan {
                plan: plan.clone(),
                owner: owner(number + 1),
                file: name.clone(),
                block_bytes,
            })
            .collect();
        drive_queues(queues, &suited, &arena, &plan.cores, &mut || {}, watch)
    });
    let removed = file
        .close(&mut connection)
        .and_then(|()| directory.remove(&mut connection, &name));
    let driven = driven?;
    // A server that has failed meanwhile is reported by the phases.
    if !driven.has_trouble() {
        removed?;
    }
    Ok(RunOutcome::new(namespace, &suited, driven))
}

/// Fills a file that is read without being written by the load before.
fn prepare(
    connection: &mut FilesConnection,
    plan: &FilesPlan,
    file: &OpenFile,
    file_bytes: u64,
) -> Result<(), FilesError> {
    if plan.workload.verify || plan.workload.read_percent == 0 {
        return Ok(());
    }
    let piece = FILL_BYTES.min(connection.payload_bytes_max());
    let mut random = Random::new(plan.workload.seed);
    let mut data = vec![0; piece as usize];
    for chunk in data.chunks_mut(8) {
        let bytes = random.next_u64().to_le_bytes();
        chunk.copy_from_slice(&bytes[..chunk.len()]);
    }
    let mut offset = 0;
    while offset < file_bytes {
        let length = u64::from(piece).min(file_bytes - offset);
        let operations = [
            Operation::PutFh(Opaque(&file.handle)),
            Operation::Write(WriteArgs {
                stateid: file.stateid,
                offset,
                stable: Stable::UNSTABLE,
                data: Payload::Inline(&data[..length as usize]),
            }),
        ];
        offset += connection.call(&operations, |answer| {
            succeeded(answer.status, "WRITE", "the file to be read")?;
            match answer.last()? {
                Some(OperationResult::Write(Outcome::Ok(ok))) if ok.count > 0 => {
                    Ok(u64::from(ok.count))
                }
                _ => Err(FilesError::Result("WRITE")),
            }
        })?;
    }
    let commit = [
        Operation::PutFh(Opaque(&file.handle)),
        Operation::Commit(CommitArgs {
            offset: 0,
            count: 0,
        }),
    ];
    connection.call(&commit, |answer| {
        succeeded(answer.status, "COMMIT", "the file to be read")
    })
}
