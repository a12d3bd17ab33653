//! The blocks of the device: free ones, those that several files share, and released ones that must
//! not be reused yet.
//!
//! A power cut may bring back a reference whose release is not durable. Until it is, the block counts
//! as referenced: it is not free, and a file that has it alone must not write to it in place.

use std::collections::{BTreeMap, VecDeque};

/// A run of blocks of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) count: u64,
}

impl Run {
    pub(crate) const fn end(self) -> u64 {
        self.start + self.count
    }
}

/// Blocks with several references.
#[derive(Clone, Copy, Debug)]
struct Shared {
    count: u64,
    /// References beyond the first.
    extra: u32,
    /// Those of all references whose release is not durable.
    released: u32,
}

impl Shared {
    /// Whether no file has the blocks any more.
    fn is_unused(&self) -> bool {
        self.released > self.extra
    }
}

/// The blocks of a volume's data area.
#[derive(Debug)]
pub(crate) struct Space {
    /// First block and count of free runs, which do not touch.
    free: BTreeMap<u64, u64>,
    free_blocks: u64,
    shared: BTreeMap<u64, Shared>,
    /// Runs with a released reference, with the batch of the log that releases it. Their old content
    /// may be needed again until it is durable.
    released: VecDeque<(u64, Run)>,
    /// Blocks without other references.
    retired_blocks: u64,
    /// Where the next search for free blocks begins.
    cursor: u64,
}

impl Space {
    pub(crate) fn new(area: Run) -> Self {
        let mut space = Self {
            free: BTreeMap::new(),
            free_blocks: 0,
            shared: BTreeMap::new(),
            released: VecDeque::new(),
            retired_blocks: 0,
            cursor: area.start,
        };
        space.add_free(area);
        space
    }

    /// Blocks that can be allocated now.
    pub(crate) fn free_blocks(&self) -> u64 {
        self.free_blocks
    }

    /// Blocks that are free when the log is durable.
    pub(crate) fn retired_blocks(&self) -> u64 {
        self.retired_blocks
    }

    /// Number of runs of shared blocks, for the account of memory.
    pub(crate) fn shared_runs(&self) -> usize {
        self.shared.len()
    }

    /// Takes `count` free blocks in at most `runs_max` runs. Returns `None`, and takes nothing, if
    /// there are not enough.
    pub(crate) fn allocate(&mut self, count: u64, runs_max: usize) -> Option<Vec<Run>> {
        if count > self.free_blocks {
            return None;
        }
        let mut runs = Vec::new();
        let mut missing = count;
        let behind = self.free.range(self.cursor..);
        let before = self.free.range(..self.cursor);
        for (&start, &length) in behind.chain(before) {
            if missing == 0 || runs.len() > runs_max {
                break;
            }
            let run = Run {
                start,
                count: length.min(missing),
            };
            missing -= run.count;
            runs.push(run);
        }
        if missing > 0 || runs.len() > runs_max {
            return None;
        }
        for run in &runs {
            self.take_free(*run);
            self.cursor = run.end();
        }
        Some(runs)
    }

    /// Returns blocks that were allocated and never mapped.
    pub(crate) fn give_back(&mut self, run: Run) {
        self.add_free(run);
    }

    /// Marks blocks as mapped while metadata are loaded. Blocks that are mapped already are shared.
    pub(crate) fn load(&mut self, run: Run) {
        let mut at = run.start;
        while at < run.end() {
            let free = self.free_run_at(at);
            let next = self.free.range(at..).next().map_or(run.end(), |it| *it.0);
            let part = Run {
                start: at,
                count: free.map_or(next, Run::end).min(run.end()) - at,
            };
            match free {
                Some(_) => self.take_free(part),
                None => self.share(part),
            }
            at = part.end();
        }
    }

    fn free_run_at(&self, block: u64) -> Option<Run> {
        let (&start, &count) = self.free.range(..=block).next_back()?;
        let run = Run { start, count };
        (run.end() > block).then_some(run)
    }

    /// Adds a reference to mapped blocks.
    pub(crate) fn share(&mut self, run: Run) {
        self.visit(run, |space, part, shared| {
            let shared = Shared {
                count: part.count,
                extra: shared.map_or(1, |it| it.extra + 1),
                released: shared.map_or(0, |it| it.released),
            };
            space.shared.insert(part.start, shared);
        });
    }

    fn shared_at(&self, block: u64) -> Option<&Shared> {
        let before = self.shared.range(..=block).next_back();
        let found = before.filter(|(start, shared)| *start + shared.count > block);
        found.map(|(_, shared)| shared)
    }

    /// The references of a mapped block whose release is not recorded.
    pub(crate) fn references(&self, block: u64) -> u32 {
        self.shared_at(block)
            .map_or(1, |it| (it.extra + 1).saturating_sub(it.released))
    }

    /// Whether a block has several references, released ones included that are not durable.
    pub(crate) fn is_shared(&self, block: u64) -> bool {
        self.shared_at(block).is_some()
    }

    /// Removes a reference to mapped blocks: at once, or when `batch` of the log is durable. Blocks
    /// without one are free.
    pub(crate) fn release(&mut self, run: Run, batch: Option<u64>) {
        match batch {
            Some(batch) => {
                self.visit(run, |space, part, shared| {
                    let is_unused = match shared {
                        Some(mut shared) => {
                            shared.released += 1;
                            space.shared.insert(part.start, shared);
                            shared.is_unused()
                        }
                        None => true,
                    };
                    if is_unused {
                        space.retired_blocks += part.count;
                    }
                });
                self.released.push_back((batch, run));
            }
            None => self.visit(run, Self::drop_reference),
        }
    }

    /// Removes the references that batches up to `durable` released.
    pub(crate) fn reuse(&mut self, durable: u64) {
        while let Some(&(batch, run)) = self.released.front()
            && batch <= durable
        {
            self.released.pop_front();
            self.visit(run, |space, part, shared| {
                let shared = shared.map(|shared| Shared {
                    released: shared.released - 1,
                    ..shared
                });
                if shared.is_none() {
                    space.retired_blocks -= part.count;
                }
                space.drop_reference(part, shared);
            });
        }
    }

    fn drop_reference(&mut self, part: Run, shared: Option<Shared>) {
        match shared {
            Some(shared) if shared.extra > 1 => {
                let extra = shared.extra - 1;
                self.shared.insert(part.start, Shared { extra, ..shared });
            }
            Some(_) => {
                self.shared.remove(&part.start);
            }
            None => self.add_free(part),
        }
    }

    /// Visits the parts of mapped blocks that are shared alike, or not shared.
    fn visit(&mut self, run: Run, mut part: impl FnMut(&mut Self, Run, Option<Shared>)) {
        self.split_shared(run.start);
        self.split_shared(run.end());
        let mut at = run.start;
        while at < run.end() {
            let next = self.shared.range(at..run.end()).next();
            let (end, shared) = match next {
                Some((&start, shared)) if start == at => (at + shared.count, Some(*shared)),
                next => (next.map_or(run.end(), |it| *it.0), None),
            };
            let count = end - at;
            part(self, Run { start: at, count }, shared);
            at = end;
        }
    }

    fn split_shared(&mut self, at: u64) {
        let before = self.shared.range_mut(..at).next_back();
        if let Some((&start, shared)) = before
            && start + shared.count > at
        {
            let rest = Shared {
                count: start + shared.count - at,
                ..*shared
            };
            shared.count = at - start;
            self.shared.insert(at, rest);
        }
    }

    fn add_free(&mut self, run: Run) {
        if run.count == 0 {
            return;
        }
        self.free_blocks += run.count;
        let (mut start, mut count) = (run.start, run.count);
        let before = self.free.range(..start).next_back();
        if let Some((&first, &length)) = before
            && first + length == start
        {
            (start, count) = (first, count + length);
        }
        if let Some(length) = self.free.remove(&run.end()) {
            count += length;
        }
        self.free.insert(start, count);
    }

    /// Takes blocks of one free run.
    fn take_free(&mut self, run: Run) {
        let Some(free) = self.free_run_at(run.start) else {
            return;
        };
        self.free.remove(&free.start);
        self.free_blocks -= run.count;
        if free.start < run.start {
            self.free.insert(free.start, run.start - free.start);
        }
        if run.end() < free.end() {
            self.free.insert(run.end(), free.end() - run.end());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const BLOCKS: u64 = 64;

    proptest! {
        /// The model is the number of references of each block, and of those that are released and
        /// not durable.
        #[test]
        fn blocks_are_free_without_references(
            has_log in any::<bool>(),
            steps in proptest::collection::vec((0_u8..5, 0_u64..BLOCKS, 1_u64..12), 0..60),
        ) {
            let area = Run { start: 100, count: BLOCKS };
            let mut space = Space::new(area);
            let mut model: BTreeMap<u64, u32> = BTreeMap::new();
            let mut released: Vec<(u64, Run)> = Vec::new();
            for (step, (kind, start, count)) in (1..).zip(steps) {
                let run = Run { start: 100 + start, count: count.min(BLOCKS - start) };
                let blocks = run.start..run.end();
                let pending = |released: &[(u64, Run)], block| {
                    let runs = released.iter().filter(|(_, it)| (it.start..it.end()).contains(&block));
                    runs.count() as u32
                };
                let mapped = blocks.clone().all(|block| {
                    model.get(&block).is_some_and(|it| *it > pending(&released, block))
                });
                match kind {
                    0 => {
                        let runs = space.allocate(count, 8);
                        for block in runs.iter().flatten().flat_map(|it| it.start..it.end()) {
                            prop_assert_eq!(model.insert(block, 1), None);
                        }
                        if let Some(runs) = runs {
                            prop_assert_eq!(runs.iter().map(|it| it.count).sum::<u64>(), count);
                        }
                    }
                    1 if mapped => {
                        space.share(run);
                        blocks.for_each(|block| *model.entry(block).or_default() += 1);
                    }
                    2 if mapped && has_log => {
                        space.release(run, Some(step));
                        released.push((step, run));
                    }
                    4 => {
                        let durable = step.saturating_sub(count);
                        space.reuse(durable);
                        let (over, left) = released.into_iter().partition(|it| it.0 <= durable);
                        released = left;
                        let over: Vec<(u64, Run)> = over;
                        for block in over.iter().flat_map(|(_, it)| it.start..it.end()) {
                            let references = model.get_mut(&block).expect("mapped");
                            *references -= 1;
                            if *references == 0 {
                                model.remove(&block);
                            }
                        }
                    }
                    2 if mapped => {
                        space.release(run, None);
                        for block in blocks {
                            let references = model.get_mut(&block).expect("mapped");
                            *references -= 1;
                            if *references == 0 {
                                model.remove(&block);
                            }
                        }
                    }
                    3 if !has_log => {
                        space.load(run);
                        blocks.for_each(|block| *model.entry(block).or_default() += 1);
                    }
                    _ => {}
                }
                prop_assert_eq!(space.free_blocks(), BLOCKS - model.len() as u64);
                let unused = model.iter().filter(|(block, it)| **it == pending(&released, **block));
                prop_assert_eq!(space.retired_blocks(), unused.count() as u64);
                for block in area.start..area.end() {
                    let references = model.get(&block).copied().unwrap_or(0);
                    prop_assert_eq!(space.is_shared(block), references > 1);
                    if references > pending(&released, block) {
                        let live = references - pending(&released, block);
                        prop_assert_eq!(space.references(block), live);
                    }
                    prop_assert_eq!(space.free_run_at(block).is_some(), references == 0);
                }
            }
        }
    }
}
