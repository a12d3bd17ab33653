//! A regular file that is found once for several questions.

use super::{Range, Volume};
use crate::error::Error;
use crate::limits::BLOCK_BYTES;
use crate::state::{File, Handle, Inode, InodeId, Node, ShareId};

/// A regular file.
#[derive(Clone, Copy, Debug)]
pub struct FileView<'v> {
    inode: &'v Inode,
    pub(super) file: &'v File,
}

impl Volume {
    /// The regular file with this number.
    ///
    /// # Errors
    /// Returns an error if the object does not exist or is no file.
    #[inline]
    pub fn file_view(&self, inode: InodeId) -> Result<FileView<'_>, Error> {
        let inode = self.inode(inode)?;
        match &inode.node {
            Node::File(file) => Ok(FileView { inode, file }),
            Node::Directory(_) => Err(Error::IsDirectory),
            _ => Err(Error::NotFile),
        }
    }

    /// The regular file of a handle.
    ///
    /// # Errors
    /// As [`Self::resolve`] and [`Self::file_view`].
    #[inline]
    pub fn file_of(&self, handle: &Handle) -> Result<FileView<'_>, Error> {
        let view = self.file_view(handle.inode)?;
        match self.is_of(view.inode, handle) {
            true => Ok(view),
            false => Err(Error::Stale),
        }
    }
}

impl FileView<'_> {
    /// Its share.
    #[must_use]
    pub fn share(self) -> ShareId {
        ShareId(self.inode.share)
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size(self) -> u64 {
        self.file.size
    }

    /// Where its bytes are: replaces `ranges` by the first `max` ranges. Bytes behind its end are
    /// left out.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the metadata are inconsistent.
    pub fn read_into(
        self,
        (offset, length): (u64, u64),
        ranges: &mut Vec<Range>,
        max: usize,
    ) -> Result<(), Error> {
        let end = offset.saturating_add(length).min(self.file.size);
        ranges.clear();
        let mut at = offset;
        while at < end && ranges.len() < max {
            let range = self.range(at, end)?;
            ranges.push(range);
            at += range.length;
        }
        Ok(())
    }

    /// The first range of the bytes from `at` to `end`, which is behind it and within the file.
    ///
    /// # Errors
    /// As [`Self::read_into`].
    #[inline]
    pub fn range(self, at: u64, end: u64) -> Result<Range, Error> {
        let written = self.file.written.next(at).filter(|it| it.start < end);
        let (next, device) = match written {
            Some(written) if written.start <= at => {
                let run = self.file.block(at / BLOCK_BYTES).ok_or(Error::Io)?;
                let here = at % BLOCK_BYTES;
                let last = at - here + run.count * BLOCK_BYTES;
                let next = written.end.min(last).min(end);
                (next, Some(run.start * BLOCK_BYTES + here))
            }
            Some(written) => (written.start, None),
            None => (end, None),
        };
        let length = next - at;
        Ok(Range { length, device })
    }
}
