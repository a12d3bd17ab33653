//! Copies that the drive executes by itself from one of its namespaces to another.

use block::{
    COPY_SOURCE_BYTES, CompletionBatch, CopyLimits, CopyOrigin, CopySource, DeviceError, Operation,
    Refusal, Request,
};
use nvme_driver_testing::{
    CopyAcross, EmulatedCopy, EmulatedNamespace, EmulatedOptions, Fault, FaultMatch, FaultRule,
    When,
};
use nvme_spec::Status;
use nvme_spec::command::{AdminOpcode, IoOpcode};

use crate::support::{Client, MS, PATIENCE, Rig, drive_options, taken};

const BLOCKS: u64 = 400;
const COPY: EmulatedCopy = EmulatedCopy {
    range_blocks_max: 8,
    blocks_max: 12,
    ranges_max_z: 3,
    single_atomicity: false,
    failing_range: None,
    across: CopyAcross::Supported,
};

fn emulated(copy: EmulatedCopy) -> EmulatedOptions {
    EmulatedOptions {
        namespaces: vec![
            EmulatedNamespace::new(1, 4096, BLOCKS),
            EmulatedNamespace::new(2, 4096, BLOCKS / 2),
            EmulatedNamespace::new(3, 512, BLOCKS),
        ],
        copy: Some(copy),
        timeout_units: 1,
        ..EmulatedOptions::default()
    }
}

fn content(lba: u64) -> u8 {
    lba as u8 + 1
}

/// Namespaces 1, which is read, and 2 of a drive.
struct Lab {
    rig: Rig,
    source: Client,
    destination: Client,
}

impl Lab {
    fn new(copy: EmulatedCopy) -> Self {
        Self::on(Rig::new(emulated(copy), drive_options(1)))
    }

    fn on(rig: Rig) -> Self {
        let source = rig.client(1, 0, 8);
        let destination = rig.client(2, 0, 8);
        let mut lab = Self {
            rig,
            source,
            destination,
        };
        for lba in 0..32 {
            let written = lab.source.write(&mut lab.rig, lba, content(lba));
            written.expect("a block");
        }
        lab
    }

    fn origin(&self) -> CopyOrigin {
        self.source.queue.copy_origin().expect("it can be copied")
    }

    fn request(&self, lba: u64, sources: &[(u64, u32)]) -> (Request, Vec<CopySource>) {
        let source = |(lba, blocks): &(u64, u32)| CopySource {
            lba: *lba,
            blocks: *blocks,
        };
        let sources: Vec<_> = sources.iter().map(source).collect();
        let data = vec![0xee; (sources.len() * COPY_SOURCE_BYTES).max(1)];
        let request = Request {
            tag: 1,
            operation: Operation::Write { fua: false },
            lba,
            blocks: sources.iter().map(|it| it.blocks).sum(),
            data: Some(self.destination.lease(&data)),
        };
        (request, sources)
    }

    fn submit(
        &mut self,
        origin: &CopyOrigin,
        lba: u64,
        sources: &[(u64, u32)],
    ) -> Result<(), Option<DeviceError>> {
        let (request, sources) = self.request(lba, sources);
        let queue = &mut self.destination.queue;
        let submitted = queue.submit_copy_from(request, origin, (&sources, 0));
        submitted.map_err(|refusal| match refusal {
            Refusal::Later(_) => None,
            Refusal::Never(request, error) => {
                assert!(request.data.is_some(), "it is unchanged");
                Some(error)
            }
        })
    }

    fn run(&mut self, lba: u64, sources: &[(u64, u32)]) -> Result<(), DeviceError> {
        let (origin, deadline) = (self.origin(), self.rig.now + PATIENCE);
        while let Err(refused) = self.submit(&origin, lba, sources) {
            if let Some(error) = refused {
                return Err(error);
            }
            // The drive is being reset.
            assert!(self.rig.now < deadline, "refused for too long");
            self.rig.step(MS);
            self.destination.queue.poll(&mut CompletionBatch::new());
        }
        let mut batch = CompletionBatch::new();
        loop {
            self.destination.queue.flush();
            self.destination.queue.poll(&mut batch);
            if let Some(completion) = batch.pop() {
                assert_eq!(self.destination.queue.in_flight(), 0);
                assert!(completion.data.is_some(), "the lease returns");
                return completion.result;
            }
            assert!(self.rig.now < deadline, "the copy is lost");
            self.rig.step(MS);
        }
    }

    fn blocks(&mut self, lba: u64, count: u64) -> Vec<u8> {
        let read = |lba| self.destination.read(&mut self.rig, lba).expect("a block");
        (lba..lba + count).map(read).collect()
    }

    fn commands(&self) -> u64 {
        self.rig.control.counters().commands
    }
}

/// Without the format, without a limit, and if the drive does not enable it: its namespaces are no origins.
#[test]
fn drives_that_do_not_copy_across() {
    let across = |across| EmulatedCopy { across, ..COPY };
    for copy in [
        across(CopyAcross::Unsupported),
        across(CopyAcross::NotEnabled),
        EmulatedCopy {
            range_blocks_max: 0,
            ..COPY
        },
        EmulatedCopy {
            blocks_max: 0,
            ..COPY
        },
    ] {
        let mut lab = Lab::new(copy);
        assert_eq!(lab.source.queue.copy_origin(), None, "{copy:?}");
        assert_eq!(lab.rig.device(1).copy_origin(), None);
        let origin = Lab::new(COPY).origin();
        let before = lab.commands();
        let refused = lab.submit(&origin, 0, &[(0, 1)]);
        assert_eq!(refused, Err(Some(DeviceError::Unsupported)));
        assert_eq!(lab.commands(), before);
    }
}

#[test]
fn copies_that_do_not_fit_are_refused() {
    let mut lab = Lab::new(COPY);
    let limits = CopyLimits {
        sources_max: 4,
        source_blocks_max: 8,
        blocks_max: 12,
    };
    let origin = lab.origin();
    assert_eq!((origin.limits, origin.namespace), (limits, 1));
    assert_eq!(lab.rig.device(1).copy_origin(), Some(origin));
    let own = lab.destination.queue.copy_origin().expect("the same drive");
    assert_eq!(origin.limits_to(&own), Some(limits));
    let before = lab.commands();
    let one = (0, 1);
    for (lba, sources, error) in [
        (100, vec![(0, 9)], DeviceError::Unsupported),
        (100, vec![(0, 8), (8, 5)], DeviceError::Unsupported),
        (100, vec![one; 5], DeviceError::Unsupported),
        (100, vec![one, (5, 0)], DeviceError::Unsupported),
        (100, vec![(BLOCKS - 1, 2)], DeviceError::OutOfRange),
        (100, vec![(u64::MAX, 2)], DeviceError::OutOfRange),
        (BLOCKS / 2, vec![one], DeviceError::OutOfRange),
        (u64::MAX, vec![one], DeviceError::OutOfRange),
        (100, vec![], DeviceError::Internal),
    ] {
        let refused = lab.submit(&origin, lba, &sources);
        assert_eq!(refused, Err(Some(error)), "{sources:?} to {lba}");
    }
    // Another drive, the same namespace, and other blocks.
    let other = lab.rig.client(3, 0, 8).queue.copy_origin();
    for refused in [
        Lab::new(COPY).origin(),
        own,
        other.expect("it can be copied within its format"),
    ] {
        let result = lab.submit(&refused, 100, &[one]);
        assert_eq!(result, Err(Some(DeviceError::Unsupported)), "{refused:?}");
    }
    let (mut request, sources) = lab.request(100, &[one]);
    request.data = None;
    let refused = lab
        .destination
        .queue
        .submit_copy_from(request, &origin, (&sources, 0));
    assert!(matches!(
        refused,
        Err(Refusal::Never(_, DeviceError::Internal))
    ));
    assert_eq!(lab.commands(), before);
    assert_eq!(lab.run(100, &[(0, 8), (8, 4)]), Ok(()));
}

#[test]
fn drive_copies_from_another_namespace() {
    let mut lab = Lab::new(COPY);
    let (before, leases) = (lab.commands(), taken(&lab.rig.arena));
    // Also to the same blocks.
    assert_eq!(lab.run(2, &[(3, 2), (9, 1), (0, 8)]), Ok(()));
    assert_eq!(
        (lab.commands() - before, taken(&lab.rig.arena)),
        (1, leases)
    );
    let expected: Vec<u8> = [3, 4, 9].into_iter().chain(0..8).map(content).collect();
    assert_eq!(lab.blocks(2, 11), expected);
    let source = |lab: &mut Lab, lba| lab.source.read(&mut lab.rig, lba);
    assert_eq!(
        source(&mut lab, 3),
        Ok(content(3)),
        "the source is unchanged"
    );
}

/// The drive fails after a part, or does not know the format any more: the error is reported.
#[test]
fn failures_return_the_lease() {
    let mut lab = Lab::new(EmulatedCopy {
        failing_range: Some(1),
        ..COPY
    });
    let failed = lab.run(100, &[(3, 2), (9, 1)]);
    assert!(failed.is_err(), "{failed:?}");
    assert_eq!(lab.blocks(100, 3), [content(3), content(4), 0]);
    for (status, error) in [
        (Status::COMMAND_SIZE_LIMIT_EXCEEDED, DeviceError::Internal),
        (Status::INVALID_FIELD, DeviceError::Internal),
        (Status::COMMAND_INTERRUPTED, DeviceError::Interrupted),
    ] {
        let mut lab = Lab::new(COPY);
        lab.rig.control.inject(FaultRule::new(
            FaultMatch::io().with_opcode(IoOpcode::COPY.0),
            When::First(1),
            Fault::Status(status),
        ));
        assert_eq!(lab.run(100, &[(3, 2)]), Err(error));
        assert_eq!(lab.run(100, &[(3, 2)]), Ok(()));
    }
}

/// A reset makes the drive forget what its host has enabled: each start enables it again.
#[test]
fn copy_has_a_deadline_and_drive_copies_after_a_reset() {
    let mut lab = Lab::new(COPY);
    lab.rig.control.inject(FaultRule::new(
        FaultMatch::io().with_opcode(IoOpcode::COPY.0),
        When::First(1),
        Fault::NeverCompletes,
    ));
    lab.rig.control.inject(FaultRule::new(
        FaultMatch::admin().with_opcode(AdminOpcode::ABORT.0),
        When::Always,
        Fault::NeverCompletes,
    ));
    let failed = lab.run(100, &[(3, 2)]);
    assert_eq!(failed, Err(DeviceError::Interrupted));
    assert_eq!(lab.run(100, &[(3, 2)]), Ok(()));
    assert!(lab.rig.drive.counters().resets > 0);
    assert_eq!(lab.blocks(100, 2), [3, 4].map(content));
}

/// A namespace that is gone is no origin.
#[test]
fn removed_namespaces_are_no_origins() {
    let mut lab = Lab::new(COPY);
    let origin = lab.origin();
    assert!(lab.rig.control.attach_namespace(1, false));
    let deadline = lab.rig.now + PATIENCE;
    while lab.source.queue.copy_origin().is_some() {
        assert!(lab.rig.now < deadline, "it stays");
        lab.rig.step(MS);
    }
    // A queue that was asked before: the drive refuses it.
    lab.submit(&origin, 100, &[(3, 2)]).expect("room");
    let mut batch = CompletionBatch::new();
    while batch.is_empty() {
        assert!(lab.rig.now < deadline, "it does not end");
        lab.destination.queue.flush();
        lab.destination.queue.poll(&mut batch);
        lab.rig.step(MS);
    }
    assert!(batch.pop().is_some_and(|it| it.result.is_err()));
    assert_eq!(lab.blocks(100, 2), [0, 0]);
}
