//! Data: READ, WRITE, COMMIT. The core plans, and the user moves the bytes.

use files_spec::Status;
use files_spec::limits::PAYLOAD_BYTES_MAX;
use files_spec::operations::{
    CommitArgs, OperationNumber, OperationResult, Outcome, ReadArgs, WriteArgs, WriteOk,
};
use files_spec::types::Stable;
use files_store::{Progress, Range};

use super::{Flow, Object};
use crate::execution::{Execution, PendingRead, PendingWrite, Step, Waiting};
use crate::limits::READ_RANGES_MAX;
use crate::place::Place;
use crate::refusal::Refusal;
use crate::server::{Now, Position, Server};
use crate::states::FileId;
use crate::user::User;

/// The bytes that a READ of `count` bytes returns of a file of `size` bytes, and whether its end is
/// reached.
#[inline]
pub(crate) fn readable(size: u64, offset: u64, count: u32) -> (u64, bool) {
    let count = u64::from(count).min(PAYLOAD_BYTES_MAX as u64);
    let length = size.saturating_sub(offset).min(count);
    (length, offset.saturating_add(length) >= size)
}

impl Server {
    /// READ (RFC 8881 §18.22).
    pub(crate) fn read<'r>(
        &mut self,
        x: &mut Execution,
        args: &ReadArgs,
        position: Position,
        now: &Now,
    ) -> Result<Flow<'r>, Refusal> {
        let (object, attributes) = self.readable_file(x, x.place()?, &args.stateid, now)?;
        let file = self.file_id(object);
        let (length, eof) = readable(attributes.size, args.offset, args.count);
        x.check_read(length as u32)?;
        if length == 0 {
            self.count_read(x, 0);
            return x.push_read(eof, 0).map(|()| Flow::Done);
        }
        self.read_ranges(file, (args.offset, length), &mut x.ranges)?;
        let found: u64 = x.ranges.iter().map(|it| it.length).sum();
        x.waiting = Waiting::Read(PendingRead {
            volume: file.0,
            inode: object.inode,
            offset: args.offset,
            count: length,
            eof: eof && found == length,
            length: found as u32,
            step: self.steps,
            is_last: position.is_last,
        });
        Ok(Flow::Suspended(Step::Read {
            volume: file.0,
            is_last: position.is_last,
        }))
    }

    /// The first ranges of a READ.
    fn read_ranges(
        &self,
        (volume, inode): FileId,
        (offset, length): (u64, u64),
        ranges: &mut Vec<Range>,
    ) -> Result<(), Refusal> {
        let volume = &self.volumes[volume.0];
        Ok(volume.read_into(inode, offset, length, ranges, READ_RANGES_MAX)?)
    }

    /// Ends a READ whose data are in memory. Returns false if its blocks do not belong to the file
    /// any more: they may have the data of another file.
    pub(crate) fn end_read(&self, x: &mut Execution, read: &PendingRead) -> Result<bool, Refusal> {
        // Data that were there at once belong to the file.
        if self.steps != read.step + 1 {
            let file = (read.volume, read.inode);
            self.read_ranges(file, (read.offset, read.count), &mut x.ranges_after)?;
            if x.ranges_after != x.ranges {
                return Ok(false);
            }
        }
        x.push_read(read.eof, read.length)?;
        self.count_read(x, read.length);
        Ok(true)
    }

    fn count_read(&self, x: &Execution, bytes: u32) {
        if let Some(Place::Object { share, .. }) = x.current.place {
            self.shares[share].counters.count_read(u64::from(bytes));
        }
    }

    /// WRITE (RFC 8881 §18.32).
    pub(crate) fn write<'r>(
        &mut self,
        x: &mut Execution,
        args: &WriteArgs<'r>,
        position: Position,
        now: &Now,
    ) -> Result<Flow<'r>, Refusal> {
        let object = self.writable_file(x, &args.stateid, now)?;
        let file = self.file_id(object);
        if args.stable > Stable::FILE_SYNC {
            return Err(Status::BADXDR.into());
        }
        x.check_room()?;
        let length = args.data.len() as u32;
        if length == 0 {
            self.push_write(x, 0, Stable::FILE_SYNC)?;
            return Ok(Flow::Done);
        }
        let volume = self.volume_mut(object);
        let length_wide = u64::from(length);
        let id = volume.write_into(object.inode, args.offset, length_wide, &mut x.pieces)?;
        x.waiting = Waiting::Write(PendingWrite {
            volume: file.0,
            id,
            length,
            stable: args.stable,
            is_last: position.is_last,
        });
        Ok(Flow::Suspended(Step::Write {
            volume: file.0,
            data: args.data,
        }))
    }

    /// Ends a WRITE whose data the device has. What is durable at once needs no COMMIT.
    pub(crate) fn end_write<'r>(
        &mut self,
        x: &mut Execution,
        write: PendingWrite,
        now: &Now,
    ) -> Result<Flow<'r>, Refusal> {
        let volume = &mut self.volumes[write.volume.0];
        let ticket = match volume.write_done(write.id, now.time) {
            Ok(ticket) => ticket,
            Err(files_store::Error::Busy) => {
                x.waiting = Waiting::Record(write);
                return Ok(Flow::Suspended(Step::AwaitVolume));
            }
            Err(error) => {
                volume.write_failed(write.id);
                return Err(error.into());
            }
        };
        let is_durable = volume.progress(ticket) == Progress::Durable;
        let committed = match write.stable {
            Stable::UNSTABLE if !is_durable => Stable::UNSTABLE,
            _ => Stable::FILE_SYNC,
        };
        if committed == Stable::FILE_SYNC {
            x.await_durable(write.volume, ticket);
        }
        self.push_write(x, write.length, committed)?;
        Ok(Flow::Done)
    }

    fn push_write(&self, x: &mut Execution, count: u32, committed: Stable) -> Result<(), Refusal> {
        let written = WriteOk {
            count,
            committed,
            writeverf: self.write_verifier(),
        };
        x.push_ok(OperationNumber::WRITE, &written)?;
        if let Some(Place::Object { share, .. }) = x.current.place {
            let counters = &self.shares[share].counters;
            counters.writes.add(1);
            counters.bytes_written.add(u64::from(count));
        }
        Ok(())
    }

    /// COMMIT (RFC 8881 §18.3) of everything that was written before, also by others.
    pub(super) fn commit(&mut self, x: &mut Execution, args: &CommitArgs) -> Result<(), Refusal> {
        let (object, _) = self.regular_file(x.place()?)?;
        // RFC 8881 §18.3: the range must not exceed the largest offset.
        args.offset
            .checked_add(u64::from(args.count))
            .ok_or(Status::INVAL)?;
        x.check_room()?;
        x.await_durable(self.share(object).volume, self.volume(object).commit());
        x.push(&OperationResult::Commit(Outcome::Ok(self.write_verifier())))
    }

    /// Checks the rights to access data without an open file. Owners may always, as the file may have
    /// been opened before its mode has changed.
    pub(super) fn check_data_access(
        &self,
        x: &Execution,
        object: Object,
        attributes: &files_store::Attributes,
        wanted: u32,
    ) -> Result<(), Refusal> {
        let user: User = self.user_in(x, object);
        match user.uid == attributes.uid {
            true => Ok(()),
            false => self.check_access(x, object, attributes, wanted),
        }
    }
}
