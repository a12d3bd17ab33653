//! Many concurrent requests, chosen by seed, checked against a model of every block.

use std::collections::HashMap;
use std::ops::Range;

use super::harness::{DEPTH, Harness, pattern};
use block::{Completion, Deallocate, DeviceError, Operation};
use reactors::sim::Seeded;

/// Requests per seed.
const STEPS: u64 = 600;
/// Number of blocks that the requests use: few, so that requests overlap.
const BLOCKS: u64 = 96;
const TRANSFER_BLOCKS_MAX: u64 = 12;
const SEEDS: [u64; 3] = [1, 0xD15C, 20_261_120];

/// The expected completion.
struct Expected {
    operation: Operation,
    range: Range<u64>,
    result: Result<(), DeviceError>,
    /// Bytes that a read must return, if the model knows them.
    data: Option<Vec<u8>>,
}

/// The known content of each block.
struct Model {
    blocks: Vec<Option<Vec<u8>>>,
    block_size: usize,
}

impl Model {
    /// The bytes of a range, or `None` if any of its blocks is unknown.
    fn bytes(&self, range: &Range<u64>) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for lba in range.clone() {
            bytes.extend_from_slice(self.blocks[lba as usize].as_ref()?);
        }
        Some(bytes)
    }

    fn set(&mut self, range: &Range<u64>, data: Option<&[u8]>) {
        for (index, lba) in range.clone().enumerate() {
            let start = index * self.block_size;
            let block = data.map(|data| data[start..start + self.block_size].to_vec());
            self.blocks[lba as usize] = block;
        }
    }
}

struct Run<'a> {
    harness: &'a mut Harness,
    seeded: Seeded,
    model: Model,
    in_flight: HashMap<u64, Expected>,
}

pub(super) fn against_a_model(harness: &mut Harness) {
    for seed in SEEDS {
        println!("conformance: seed {seed}");
        let block_size = harness.geometry.block_size as usize;
        let model = Model {
            blocks: vec![None; BLOCKS as usize],
            block_size,
        };
        let seeded = Seeded::new(seed, 0);
        let mut run = Run {
            harness,
            seeded,
            model,
            in_flight: HashMap::new(),
        };
        for _ in 0..STEPS {
            run.step();
        }
        run.settle(0);
        run.check_everything();
    }
}

impl Run<'_> {
    /// Submits one request that does not conflict with those in flight; waits for some of them if
    /// it does.
    fn step(&mut self) {
        let lba = self.seeded.below(BLOCKS);
        let blocks = 1 + self.seeded.below(TRANSFER_BLOCKS_MAX.min(BLOCKS - lba));
        let range = lba..lba + blocks;
        let operation = self.choose();
        let meets = |other: &Expected| {
            let both = range.start < other.range.end && other.range.start < range.end;
            both && (operation.changes_medium() || other.operation.changes_medium())
        };
        // Requests in flight together execute in any order, so the model supports only those that
        // do not overlap; reads may overlap reads.
        while self.in_flight.len() == DEPTH || self.in_flight.values().any(meets) {
            self.collect();
        }
        self.submit(operation, range);
        if self.seeded.below(4) == 0 {
            self.collect();
        }
    }

    fn choose(&mut self) -> Operation {
        let fua = self.seeded.below(4) == 0;
        match self.seeded.below(16) {
            0..5 => Operation::Read,
            5..10 => Operation::Write { fua },
            10..12 => Operation::Compare,
            12..14 => Operation::WriteZeroes {
                fua,
                deallocate: self.seeded.below(2) == 0,
            },
            14 if self.harness.geometry.deallocate != Deallocate::Unsupported => {
                Operation::Deallocate
            }
            _ => Operation::Flush,
        }
    }

    fn submit(&mut self, operation: Operation, range: Range<u64>) {
        let bytes = (range.end - range.start) as usize * self.model.block_size;
        let mut expected = Expected {
            operation,
            range: range.clone(),
            result: Ok(()),
            data: None,
        };
        let data = match operation {
            Operation::Read => {
                expected.data = self.model.bytes(&range);
                let blocks = (range.end - range.start) as u32;
                let lends = self.harness.queue().can_borrow_read(range.start, blocks);
                let borrow_read = lends && self.seeded.below(2) == 0;
                (!borrow_read).then(|| vec![0xEE; bytes])
            }
            Operation::Write { .. } => {
                let data = pattern(self.seeded.draw(), bytes);
                self.model.set(&range, Some(&data));
                Some(data)
            }
            Operation::Compare => Some(self.comparand(&range, bytes, &mut expected)),
            Operation::WriteZeroes { .. } => {
                self.model.set(&range, Some(&vec![0; bytes]));
                None
            }
            Operation::Deallocate => {
                let zeroes = vec![0; bytes];
                let known = self.harness.geometry.deallocate == Deallocate::ReadsZero;
                self.model.set(&range, known.then_some(&zeroes));
                None
            }
            Operation::Flush => None,
        };
        let blocks = (range.end - range.start) as u32;
        let tag = self
            .harness
            .submit(operation, range.start, blocks, data.as_deref());
        self.in_flight.insert(tag, expected);
    }

    /// Data to compare with: either correct, or with one wrong byte.
    fn comparand(&mut self, range: &Range<u64>, bytes: usize, expected: &mut Expected) -> Vec<u8> {
        let right = self.model.bytes(range);
        let wrong = right.is_none() || self.seeded.below(2) == 0;
        let mut data = right.unwrap_or_else(|| pattern(self.seeded.draw(), bytes));
        if wrong {
            let index = self.seeded.below(bytes as u64) as usize;
            data[index] ^= 1 << self.seeded.below(8);
            expected.result = Err(DeviceError::CompareMismatch);
        }
        data
    }

    fn collect(&mut self) {
        for completion in self.harness.poll_or_sleep() {
            let expected = self
                .in_flight
                .remove(&completion.tag)
                .expect("a request in flight");
            check(&completion, &expected);
        }
    }

    fn settle(&mut self, left: usize) {
        while self.in_flight.len() > left {
            self.collect();
        }
    }

    /// Reads every block once more, by a borrow if possible.
    fn check_everything(&mut self) {
        for lba in 0..BLOCKS {
            self.submit(Operation::Read, lba..lba + 1);
            self.settle(DEPTH - 1);
        }
        self.settle(0);
    }
}

fn check(completion: &Completion, expected: &Expected) {
    let Expected {
        operation,
        range,
        result,
        data,
    } = expected;
    assert_eq!(completion.result, *result, "{operation:?} of {range:?}");
    if let Some(data) = data {
        let found = completion.data.as_deref().expect("a read's data");
        let differs = found
            .iter()
            .zip(data)
            .position(|(found, expected)| found != expected);
        assert_eq!(
            (found.len(), differs),
            (data.len(), None),
            "{operation:?} of {range:?}"
        );
    }
}
