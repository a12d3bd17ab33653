//! Blocks that no command may change while a Compare and Write of them is in progress.
//!
//! Control path only; the registry owns the table. A reactor excludes a block in these steps: the
//! table tells every reactor about it; each of them holds back new commands that would change the
//! block, and reports when its devices have none left; then the reactor that asked has the block
//! for itself until it ends the exclusion. Exclusions of one block follow each other in the order of
//! the requests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::target_core::fused::PairId;

/// Most blocks that are excluded at once, which every change of a block is compared with. Further
/// ones wait.
const ACTIVE_MAX: usize = 32;

/// A block of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Block {
    pub(crate) device: u8,
    pub(crate) lba: u64,
}

/// A request of a reactor to exclude a block.
#[derive(Clone, Copy, Debug)]
struct Request {
    number: u64,
    reactor: usize,
    pair: PairId,
}

/// A block that is excluded, or being excluded.
#[derive(Debug)]
struct Active {
    block: Block,
    /// Those that may still have commands that change it.
    unclear: BTreeSet<usize>,
}

/// What a reactor has to know about an excluded block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Excluded {
    pub(crate) number: u64,
    pub(crate) block: Block,
    /// Whether the table waits for this reactor's report.
    pub(crate) is_unclear: bool,
    /// The pair of this reactor that has the block for itself now.
    pub(crate) granted: Option<PairId>,
}

/// All exclusions.
#[derive(Debug, Default)]
pub(crate) struct ExclusionTable {
    /// The requests for each block; the first is active, or its block waits in `ready`.
    requests: BTreeMap<Block, VecDeque<Request>>,
    active: BTreeMap<u64, Active>,
    /// Blocks whose first request is not active.
    ready: VecDeque<Block>,
    numbers: u64,
    reactors: BTreeSet<usize>,
    to_notify: BTreeSet<usize>,
}

impl ExclusionTable {
    /// Adds a reactor that executes commands.
    pub(crate) fn add_reactor(&mut self, reactor: usize) {
        self.reactors.insert(reactor);
    }

    /// Requests a block for a pair of a reactor. Returns the exclusion's number.
    pub(crate) fn begin(&mut self, block: Block, reactor: usize, pair: PairId) -> u64 {
        self.numbers += 1;
        let number = self.numbers;
        let requests = self.requests.entry(block).or_default();
        if requests.is_empty() {
            self.ready.push_back(block);
        }
        requests.push_back(Request {
            number,
            reactor,
            pair,
        });
        self.activate();
        number
    }

    /// Ends an exclusion, whatever its progress is.
    pub(crate) fn end(&mut self, block: Block, number: u64) {
        let was_active = self.active.remove(&number).is_some();
        if let Some(requests) = self.requests.get_mut(&block) {
            requests.retain(|it| it.number != number);
            if requests.is_empty() {
                self.requests.remove(&block);
                self.ready.retain(|it| *it != block);
            } else if was_active {
                self.ready.push_back(block);
            }
        }
        if was_active {
            self.to_notify.extend(&self.reactors);
        }
        self.activate();
    }

    /// A reactor holds back commands that would change the block, and its devices have none.
    pub(crate) fn report_clear(&mut self, number: u64, reactor: usize) {
        let Some(active) = self.active.get_mut(&number) else {
            return;
        };
        active.unclear.remove(&reactor);
        if active.unclear.is_empty()
            && let Some(first) = self.requests.get(&active.block).and_then(VecDeque::front)
        {
            self.to_notify.insert(first.reactor);
        }
    }

    /// The active exclusions as a reactor has to know them.
    pub(crate) fn for_reactor(&self, reactor: usize) -> Vec<Excluded> {
        let active = self.active.iter();
        let known = active.map(|(number, active)| {
            let first = self.requests.get(&active.block).and_then(VecDeque::front);
            let is_granted = active.unclear.is_empty();
            let granted = first.filter(|it| is_granted && it.reactor == reactor);
            Excluded {
                number: *number,
                block: active.block,
                is_unclear: active.unclear.contains(&reactor),
                granted: granted.map(|it| it.pair),
            }
        });
        known.collect()
    }

    /// The reactors to notify after a change.
    pub(crate) fn take_to_notify(&mut self) -> BTreeSet<usize> {
        std::mem::take(&mut self.to_notify)
    }

    fn activate(&mut self) {
        while self.active.len() < ACTIVE_MAX
            && let Some(block) = self.ready.pop_front()
        {
            let Some(first) = self.requests.get(&block).and_then(VecDeque::front) else {
                continue;
            };
            let unclear = self.reactors.clone();
            self.active.insert(first.number, Active { block, unclear });
            self.to_notify.extend(&self.reactors);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(reactors: usize) -> ExclusionTable {
        let mut table = ExclusionTable::default();
        (0..reactors).for_each(|it| table.add_reactor(it));
        table
    }

    fn block(lba: u64) -> Block {
        Block { device: 3, lba }
    }

    fn granted(table: &ExclusionTable, reactor: usize) -> Vec<PairId> {
        let all = table.for_reactor(reactor).into_iter();
        all.filter_map(|it| it.granted).collect()
    }

    #[test]
    fn a_block_is_granted_when_every_reactor_is_clear() {
        let mut table = table(3);
        let pair = PairId::new(7);
        let number = table.begin(block(1), 1, pair);
        assert_eq!(table.take_to_notify(), BTreeSet::from([0, 1, 2]));
        for reactor in 0..3 {
            assert_eq!(granted(&table, 1), []);
            table.report_clear(number, reactor);
            table.report_clear(number, reactor);
        }
        assert_eq!(table.take_to_notify(), BTreeSet::from([1]));
        assert_eq!(
            (granted(&table, 0), granted(&table, 1)),
            (vec![], vec![pair])
        );
        table.end(block(1), number);
        assert_eq!(table.take_to_notify(), BTreeSet::from([0, 1, 2]));
        assert_eq!(table.for_reactor(1), []);
    }

    #[test]
    fn exclusions_of_one_block_follow_each_other() {
        let mut table = table(1);
        let pairs = [1, 2, 3].map(PairId::new);
        let numbers = pairs.map(|pair| table.begin(block(1), 0, pair));
        // The second one is withdrawn while it waits.
        table.end(block(1), numbers[1]);
        for place in [0, 2] {
            assert_eq!(table.for_reactor(0).len(), 1);
            table.report_clear(numbers[place], 0);
            assert_eq!(granted(&table, 0), [pairs[place]]);
            table.end(block(1), numbers[place]);
        }
        assert!(table.requests.is_empty() && table.ready.is_empty());
    }

    #[test]
    fn blocks_beyond_the_limit_wait_in_order() {
        let mut table = table(1);
        let count = ACTIVE_MAX as u64 + 2;
        let begin = |lba| table.begin(block(lba), 0, PairId::new(lba));
        let numbers: Vec<u64> = (1..=count).map(begin).collect();
        assert_eq!(table.active.len(), ACTIVE_MAX);
        table.end(block(1), numbers[0]);
        let known = table.for_reactor(0);
        assert_eq!(known.last().map(|it| it.block), Some(block(count - 1)));
        for (lba, number) in (2..=count).zip(&numbers[1..]) {
            table.end(block(lba), *number);
        }
        assert!(table.active.is_empty() && table.requests.is_empty());
    }
}
