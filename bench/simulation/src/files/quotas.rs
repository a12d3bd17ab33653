//! Shares that are parts of one volume, with quotas. Clients use one of them; when they do nothing, the
//! auditor reads what the server has counted, and uses the other one up to its quotas exactly.

use files_spec::attributes::{Attributes, number};
use files_spec::operations::{
    CloseArgs, CreateArgs, Operation, OperationResult, Outcome, RenameArgs, WriteArgs,
};
use files_spec::types::{CreateType, Stable, StateId};
use files_spec::xdr::{Opaque, Payload};
use files_spec::{Bitmap, Name, Status};
use reactors::Nanos;

use super::action::Action;
use super::model::{Model, ROOT};
use super::server::{OTHER_BLOCKS_MAX, OTHER_FILES_MAX, OTHER_SHARE, SHARE};
use super::world::FileWorld;

const BLOCK: u64 = 4096;
static BLOCK_OF_DATA: [u8; BLOCK as usize] = [0x5C; BLOCK as usize];
/// How often what is counted is looked at until it is as expected, and the time between.
const TRIES_MAX: u32 = 3;
const FREED_AFTER: Nanos = Nanos::from_secs(2);
const DIRECTORIES: [&str; 4] = ["1", "2", "3", "4"];

/// Quotas of a share.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    /// Most files and other objects.
    pub files_max: u64,
    /// Most blocks of 4 KiB.
    pub blocks_max: u64,
}

/// What the share of the clients may have at most: what it had when it was compared last, and
/// everything that was begun since.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    files: u64,
    blocks: u64,
}

impl Used {
    /// An action begins.
    pub(super) fn begin(&mut self, action: &Action) {
        self.files += u64::from(creates(action));
        self.blocks += blocks_of(action);
    }
}

fn creates(action: &Action) -> bool {
    matches!(
        action,
        Action::CreateFile { .. } | Action::MakeDirectory { .. } | Action::MakeLink { .. }
    )
}

/// The most blocks that an action needs.
fn blocks_of(action: &Action) -> u64 {
    match action {
        Action::Write { length, .. }
        | Action::Allocate { length, .. }
        | Action::Clone { length, .. } => length / BLOCK + 2,
        // The rest of a block at the new end, and at the ends of a range, is written.
        Action::Truncate { .. } | Action::Deallocate { .. } => 2,
        _ => 0,
    }
}

impl Model {
    /// Whether a quota can be exhausted for an action that has begun.
    pub(super) fn may_exceed(&self, quota: Option<Quota>, action: &Action) -> bool {
        quota.is_some_and(|quota| match creates(action) {
            true => self.used.files > quota.files_max,
            false => blocks_of(action) > 0 && self.used.blocks > quota.blocks_max,
        })
    }
}

fn name(text: &str) -> Result<Name<'_>, String> {
    Name::new(text.as_bytes()).map_err(|error| format!("{error:?}"))
}

impl FileWorld {
    /// Compares what the server has counted for the share of the clients with the model.
    pub(super) fn check_quotas(&mut self) -> Result<(), String> {
        let Some(quota) = self.swarm.quota else {
            return Ok(());
        };
        let objects = || self.model.objects.iter().skip(1);
        let named = objects().filter(|it| it.links > 0).count() as u64;
        let unnamed = objects().filter(|it| it.links == 0);
        let open = unnamed.clone().filter(|it| !it.may_be_open.is_empty());
        let (open, unnamed) = (open.count() as u64, unnamed.count() as u64);
        let (mut files, mut blocks) = self.counted()?;
        for _ in 0..TRIES_MAX {
            if files <= named + open {
                break;
            }
            // What is not open any more is freed after the reply, in parts.
            self.run_for(FREED_AFTER)?;
            (files, blocks) = self.counted()?;
        }
        // In a grace period, files without names are kept that clients may have had open.
        let most = match self.kills {
            0 => named + open,
            _ => named + unnamed,
        };
        if !(named..=most).contains(&files) {
            return Err(format!(
                "the share has {files} objects as counted, and {named} to {most} as expected"
            ));
        }
        if files > quota.files_max || blocks > quota.blocks_max {
            return Err(format!(
                "the share has {files} objects and {blocks} blocks of {quota:?}"
            ));
        }
        self.model.used = Used { files, blocks };
        Ok(())
    }

    /// Objects and blocks of the share, as the server shows them.
    fn counted(&mut self) -> Result<(u64, u64), String> {
        let wanted = [number::FILES_FREE, number::FILES_TOTAL, number::QUOTA_USED];
        let wanted = Bitmap::of(&wanted);
        let root = self.model.objects[ROOT].handle.clone();
        let operations = [Operation::PutFh(Opaque(&root)), Operation::GetAttr(wanted)];
        let answer = self.ask(&operations)?;
        let results = answer.results()?.1;
        let Some(OperationResult::GetAttr(Outcome::Ok(found))) = results.last() else {
            return Err(format!("the share has no attributes: {results:?}"));
        };
        match (found.files_total, found.files_free, found.quota_used) {
            // The directory of the share is counted, too.
            (Some(total), Some(free), Some(bytes)) => {
                Ok((total.saturating_sub(free + 1), bytes / BLOCK))
            }
            _ => Err("an attribute is missing".to_owned()),
        }
    }

    /// Uses the other share up to its quotas, and empties it again.
    pub(super) fn use_other_share(&mut self) -> Result<(), String> {
        if self.swarm.quota.is_none() || self.swarm.is_tight {
            return Ok(());
        }
        for (index, directory) in DIRECTORIES.iter().enumerate() {
            let create = Operation::Create(CreateArgs {
                objtype: CreateType::Directory,
                objname: name(directory)?,
                createattrs: Attributes::default(),
            });
            let expected = match (index as u64) < OTHER_FILES_MAX {
                true => Status::OK,
                false => Status::DQUOT,
            };
            self.expect_in_other(&[create], expected)?;
        }
        for directory in &DIRECTORIES[..OTHER_FILES_MAX as usize] {
            self.expect_in_other(&[Operation::Remove(name(directory)?)], Status::OK)?;
        }
        match self.server.is_durable() {
            // The auditor opens no file there: after a restart it would have to reclaim it.
            true => Ok(()),
            false => self.fill_other_share(),
        }
    }

    /// Writes as many blocks to the other share as it may have.
    fn fill_other_share(&mut self) -> Result<(), String> {
        let told = [Operation::ReclaimComplete(false)];
        let status = self.ask(&told)?.results()?.0;
        if ![Status::OK, Status::COMPLETE_ALREADY].contains(&status) {
            return Err(format!("the auditor reclaims nothing: {status:?}"));
        }
        let open = files_client::requests::open_or_create(name("f")?);
        let close = Operation::Close(CloseArgs {
            seqid: 0,
            open_stateid: StateId::CURRENT,
        });
        self.expect_in_other(&[open, close], Status::OK)?;
        for block in 0..=OTHER_BLOCKS_MAX {
            let write = Operation::Write(WriteArgs {
                stateid: StateId::ANONYMOUS,
                offset: block * BLOCK,
                stable: Stable::UNSTABLE,
                data: Payload::Inline(&BLOCK_OF_DATA),
            });
            let expected = match block < OTHER_BLOCKS_MAX {
                true => Status::OK,
                false => Status::DQUOT,
            };
            self.expect_in_other(&[Operation::Lookup(name("f")?), write], expected)?;
        }
        // No name moves from one share to the other.
        let rename = Operation::Rename(RenameArgs {
            oldname: name("f")?,
            newname: name("moved")?,
        });
        let moved = [
            Operation::SaveFh(()),
            Operation::PutRootFh(()),
            Operation::Lookup(name(SHARE)?),
            rename,
        ];
        let expected = match self.server.is_read_only() {
            true => Status::ROFS,
            false => Status::XDEV,
        };
        self.expect_in_other(&moved, expected)?;
        self.expect_in_other(&[Operation::Remove(name("f")?)], Status::OK)
    }

    fn expect_in_other(
        &mut self,
        operations: &[Operation<'_>],
        expected: Status,
    ) -> Result<(), String> {
        let mut all = vec![
            Operation::PutRootFh(()),
            Operation::Lookup(name(OTHER_SHARE)?),
        ];
        all.extend_from_slice(operations);
        let answer = self.ask(&all)?;
        let (status, results) = answer.results()?;
        match status == expected {
            true => Ok(()),
            false => Err(format!(
                "the other share: {operations:?}: {results:?}, expected {expected:?}"
            )),
        }
    }
}
