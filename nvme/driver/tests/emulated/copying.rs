//! Copies that the drive executes by itself.

use block::{
    COPY_SOURCE_BYTES, Completion, CompletionBatch, CopyLimits, CopySource, DataPath, DeviceError,
    Operation, Refusal, Request, SharedQueues,
};
use hugemem::Data;
use nvme_driver_testing::{
    CopyAcross, EmulatedCopy, EmulatedNamespace, EmulatedOptions, Fault, FaultMatch, FaultRule,
    When,
};
use nvme_spec::Status;
use nvme_spec::command::IoOpcode;

use crate::support::{Client, MS, PATIENCE, Rig, drive_options, taken};

const BLOCKS: u64 = 400;
const WRITE: Operation = Operation::Write { fua: false };

const COPY: EmulatedCopy = EmulatedCopy {
    range_blocks_max: 8,
    blocks_max: 12,
    ranges_max_z: 3,
    single_atomicity: false,
    failing_range: None,
    across: CopyAcross::Unsupported,
};

fn emulated(copy: Option<EmulatedCopy>) -> EmulatedOptions {
    EmulatedOptions {
        namespaces: vec![EmulatedNamespace::new(1, 4096, BLOCKS)],
        copy,
        timeout_units: 1,
        ..EmulatedOptions::default()
    }
}

struct Lab {
    rig: Rig,
    client: Client,
}

impl Lab {
    fn new(copy: Option<EmulatedCopy>) -> Self {
        Self::on_path(copy, DataPath::Best)
    }

    fn on_path(copy: Option<EmulatedCopy>, path: DataPath) -> Self {
        let rig = Rig::new(emulated(copy), drive_options(1));
        let device = rig
            .drive
            .device_on_path(1, "ns", [1; 16], path)
            .expect("a usable namespace");
        let client = Client::new(&*device, &rig.arena, 0, 8, SharedQueues::default());
        let mut lab = Self { rig, client };
        for lba in 0..32 {
            lab.client
                .write(&mut lab.rig, lba, content(lba))
                .expect("a block");
        }
        lab
    }

    /// A request with room for a list behind a mark.
    fn request(&self, lba: u64, sources: &[(u64, u32)]) -> (Request, Vec<CopySource>) {
        let sources: Vec<_> = sources
            .iter()
            .map(|(lba, blocks)| CopySource {
                lba: *lba,
                blocks: *blocks,
            })
            .collect();
        let mut data = vec![0xee; LIST_AT + sources.len() * COPY_SOURCE_BYTES];
        data[..LIST_AT].fill(MARK);
        let request = Request {
            tag: 1,
            operation: WRITE,
            lba,
            blocks: sources.iter().map(|it| it.blocks).sum(),
            data: Some(self.client.lease(&data)),
        };
        (request, sources)
    }

    fn submit(&mut self, lba: u64, sources: &[(u64, u32)]) -> Result<(), Option<DeviceError>> {
        let (request, sources) = self.request(lba, sources);
        let submitted = self.client.queue.submit_copy(request, &sources, LIST_AT);
        submitted.map_err(|refusal| match refusal {
            Refusal::Later(_) => None,
            Refusal::Never(request, error) => {
                assert!(request.data.is_some(), "it is unchanged");
                Some(error)
            }
        })
    }

    fn run(&mut self, lba: u64, sources: &[(u64, u32)]) -> Result<(), DeviceError> {
        let deadline = self.rig.now + PATIENCE;
        while let Err(refused) = self.submit(lba, sources) {
            if let Some(error) = refused {
                return Err(error);
            }
            // The drive is being reset.
            assert!(self.rig.now < deadline, "refused for too long");
            self.rig.step(MS);
            self.client.queue.poll(&mut CompletionBatch::new());
        }
        let completion = self.await_completion();
        let Some(Data::Lease(list)) = completion.data else {
            panic!("the lease returns");
        };
        assert!(list[..LIST_AT].iter().all(|byte| *byte == MARK));
        completion.result
    }

    fn await_completion(&mut self) -> Completion {
        let deadline = self.rig.now + PATIENCE;
        let mut batch = CompletionBatch::new();
        loop {
            self.client.queue.flush();
            self.client.queue.poll(&mut batch);
            if let Some(completion) = batch.pop() {
                assert_eq!(self.client.queue.in_flight(), 0);
                return completion;
            }
            assert!(self.rig.now < deadline, "the copy is lost");
            self.rig.step(MS);
        }
    }

    fn blocks(&mut self, lba: u64, count: u64) -> Vec<u8> {
        let read = |lba| self.client.read(&mut self.rig, lba).expect("a block");
        (lba..lba + count).map(read).collect()
    }
}

/// Where the list is in its lease; across pages, so that it takes two PRP entries.
const LIST_AT: usize = 4096 - COPY_SOURCE_BYTES;
const MARK: u8 = 0x77;

fn content(lba: u64) -> u8 {
    lba as u8 + 1
}

/// Another data path is configured.
#[test]
fn drive_that_may_not_copy_does_not() {
    for path in [DataPath::Host, DataPath::DeviceMemory] {
        let lab = Lab::on_path(Some(COPY), path);
        assert_eq!(lab.client.queue.copy_limits(), None);
    }
}

/// A drive without Copy, and limits of 0: nothing is copied, and nothing is sent.
#[test]
fn drives_that_copy_nothing() {
    let cases = [
        None,
        Some(EmulatedCopy {
            range_blocks_max: 0,
            ..COPY
        }),
        Some(EmulatedCopy {
            blocks_max: 0,
            ..COPY
        }),
    ];
    for copy in cases {
        let mut lab = Lab::new(copy);
        assert_eq!(lab.client.queue.copy_limits(), None, "{copy:?}");
        let before = lab.rig.control.counters().commands;
        assert_eq!(
            lab.submit(100, &[(0, 1)]),
            Err(Some(DeviceError::Unsupported))
        );
        assert_eq!(lab.rig.control.counters().commands, before);
    }
}

#[test]
fn copies_that_do_not_fit_are_refused() {
    let mut lab = Lab::new(Some(COPY));
    let limits = CopyLimits {
        sources_max: 4,
        source_blocks_max: 8,
        blocks_max: 12,
    };
    assert_eq!(lab.client.queue.copy_limits(), Some(limits));
    let before = lab.rig.control.counters().commands;
    let one = (0, 1);
    for (lba, sources, error) in [
        (100, vec![(0, 9)], DeviceError::Unsupported),
        (100, vec![(0, 8), (8, 5)], DeviceError::Unsupported),
        (100, vec![one; 5], DeviceError::Unsupported),
        (100, vec![one, (5, 0)], DeviceError::Unsupported),
        // Overlaps: a drive may copy range by range.
        (4, vec![one, (4, 2)], DeviceError::Unsupported),
        (4, vec![(5, 2)], DeviceError::Unsupported),
        (100, vec![(BLOCKS - 1, 2)], DeviceError::OutOfRange),
        (100, vec![(u64::MAX, 2)], DeviceError::OutOfRange),
        (BLOCKS, vec![one], DeviceError::OutOfRange),
        (u64::MAX, vec![one], DeviceError::OutOfRange),
        (100, vec![], DeviceError::Internal),
    ] {
        let refused = lab.submit(lba, &sources);
        assert_eq!(refused, Err(Some(error)), "{sources:?} to {lba}");
    }
    let change = |change: &dyn Fn(&mut Request), list_at| {
        let (mut request, sources) = lab.request(100, &[one]);
        change(&mut request);
        (request, sources, list_at)
    };
    let cases = [
        change(&|it| it.operation = Operation::Read, LIST_AT),
        change(&|it| it.blocks = 2, LIST_AT),
        change(&|it| it.data = None, LIST_AT),
        change(&|_| {}, LIST_AT + 1),
        change(&|_| {}, usize::MAX),
    ];
    for (request, sources, list_at) in cases {
        let refused = lab.client.queue.submit_copy(request, &sources, list_at);
        assert!(matches!(
            refused,
            Err(Refusal::Never(_, DeviceError::Internal))
        ));
    }
    assert_eq!(lab.rig.control.counters().commands, before);
    assert_eq!(lab.run(100, &[(0, 8), (8, 4)]), Ok(()));
}

#[test]
fn drive_copies_ranges() {
    let mut lab = Lab::new(Some(COPY));
    let leases = taken(&lab.rig.arena);
    let before = lab.rig.control.counters().commands;
    assert_eq!(lab.run(100, &[(3, 2), (9, 1), (0, 8)]), Ok(()));
    let sent = lab.rig.control.counters().commands - before;
    assert_eq!((sent, taken(&lab.rig.arena)), (1, leases));
    let expected: Vec<u8> = [3, 4, 9].into_iter().chain(0..8).map(content).collect();
    assert_eq!(lab.blocks(100, 11), expected);
    // To the block before a source, and behind one.
    assert_eq!(
        lab.run(8, &[(6, 2), (10, 2)]),
        Err(DeviceError::Unsupported)
    );
    assert_eq!(lab.run(8, &[(6, 2), (12, 2)]), Ok(()));
    assert_eq!(lab.blocks(8, 4), [6, 7, 12, 13].map(content));
}

/// The drive fails after a part: the error is reported, and the lease returns.
#[test]
fn copy_that_fails_returns_its_lease() {
    let mut lab = Lab::new(Some(EmulatedCopy {
        failing_range: Some(1),
        ..COPY
    }));
    let failed = lab.run(100, &[(3, 2), (9, 1)]);
    assert!(failed.is_err(), "{failed:?}");
    assert_eq!(lab.blocks(100, 3), [content(3), content(4), 0]);
    for (status, error) in [
        (Status::COMMAND_SIZE_LIMIT_EXCEEDED, DeviceError::Internal),
        (Status::INVALID_OPCODE, DeviceError::Unsupported),
        (Status::WRITE_FAULT, DeviceError::MediaWrite),
        (Status::COMMAND_INTERRUPTED, DeviceError::Interrupted),
    ] {
        let mut lab = Lab::new(Some(COPY));
        lab.rig.control.inject(FaultRule::new(
            FaultMatch::io().with_opcode(IoOpcode::COPY.0),
            When::First(1),
            Fault::Status(status),
        ));
        assert_eq!(lab.run(100, &[(3, 2)]), Err(error));
        assert_eq!(lab.run(100, &[(3, 2)]), Ok(()));
    }
}

/// The drive fails after a part of one copy, and executes the next one.
#[test]
fn copy_that_fails_once_succeeds_again() {
    let mut lab = Lab::new(Some(COPY));
    lab.rig.control.inject(FaultRule::new(
        FaultMatch::io().with_opcode(IoOpcode::COPY.0),
        When::First(1),
        Fault::CopyFailsAt(1),
    ));
    let failed = lab.run(100, &[(3, 2), (9, 1)]);
    assert_eq!(failed, Err(DeviceError::MediaRead));
    assert_eq!(lab.blocks(100, 3), [content(3), content(4), 0]);
    assert_eq!(lab.run(100, &[(3, 2), (9, 1)]), Ok(()));
    assert_eq!(lab.blocks(100, 3), [content(3), content(4), content(9)]);
}

/// The drive does not complete a copy: its deadline ends it, and the drive copies again afterwards.
#[test]
fn copy_has_a_deadline() {
    let mut lab = Lab::new(Some(COPY));
    lab.rig.control.inject(FaultRule::new(
        FaultMatch::io().with_opcode(IoOpcode::COPY.0),
        When::First(1),
        Fault::NeverCompletes,
    ));
    let failed = lab.run(100, &[(3, 2)]);
    assert!(
        matches!(failed, Err(DeviceError::Aborted | DeviceError::Interrupted)),
        "{failed:?}"
    );
    assert_eq!(lab.run(100, &[(3, 2)]), Ok(()));
}
