//! Writes of hosts that were preempted: after Preempt and Abort has completed, they take no effect
//! any more (Base 2.1 §8.1.22.7), unless their host may write again before the target receives them.

use super::{Extent, Judge, LostWrite};
use crate::history::{Moment, WriteEnd};

/// An unanswered write.
pub struct OpenWrite {
    /// Its ranges, all of one disk.
    pub extents: Vec<Extent>,
    /// Its version.
    pub version: u64,
    /// When it began.
    pub began: Moment,
}

/// A write that takes no effect as long as its host may not write.
pub(super) struct FencedWrite {
    disk: usize,
    identity: usize,
    extents: Vec<Extent>,
    version: u64,
    zero: bool,
}

impl Judge {
    /// Notes that the unanswered writes of a host to a disk have ended: `open` and those that were
    /// lost with their associations. Returns these writes as disks, versions and ranges.
    pub fn fence(
        &mut self,
        identity: usize,
        disk: usize,
        open: Vec<OpenWrite>,
    ) -> Vec<(u64, Extent)> {
        let now = self.next_moment();
        let is_it = |lost: &&LostWrite| {
            lost.sender.0 == identity && lost.extents.iter().any(|it| it.disk == disk)
        };
        let lost = self.lost.iter().filter(is_it).map(|lost| {
            let may_arrive = lost.noticed.is_none();
            let (extents, version, began) = (lost.extents.clone(), lost.version, lost.began);
            let write = OpenWrite {
                extents,
                version,
                began,
            };
            (write, may_arrive)
        });
        let open = open.into_iter().map(|it| (it, true));
        let all: Vec<(OpenWrite, bool)> = lost.chain(open).collect();
        let mut over = Vec::new();
        for (write, may_arrive) in all {
            let mut zero = false;
            for extent in &write.extents {
                for history in self.over(*extent) {
                    zero |= history.is_zeroes(write.version);
                    history.end(write.version, write.began, now, WriteEnd::Undecided);
                }
            }
            let first = write.extents.first();
            over.extend(first.map(|it| (write.version, *it)));
            if may_arrive {
                self.fenced.push(FencedWrite {
                    disk,
                    identity,
                    extents: write.extents,
                    version: write.version,
                    zero,
                });
            }
        }
        over
    }

    /// Notes that fenced writes may take effect again whose hosts may write again. The target may
    /// not have received them before.
    pub fn lift_fences(&mut self) {
        if self.fenced.is_empty() {
            return;
        }
        let reservations = &self.reservations;
        let fenced = std::mem::take(&mut self.fenced).into_iter();
        let (lifted, left): (Vec<_>, Vec<_>) =
            fenced.partition(|it| reservations.may_be_written(it.disk, it.identity));
        self.fenced = left;
        for lifted in &lifted {
            for extent in &lifted.extents {
                for history in self.over(*extent) {
                    history.reopen(lifted.version, lifted.zero);
                }
                self.note_change(*extent, lifted.version, lifted.zero);
            }
            self.reopen_copy(lifted.version, &lifted.extents);
        }
    }

    /// Notes that a write is completed or can take no effect.
    pub(super) fn forget_fenced(&mut self, version: u64) {
        self.fenced.retain(|it| it.version != version);
    }
}
