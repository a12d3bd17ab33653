//! Reads and writes of one drive whose data is in the memory of another one, while either of them is
//! reset, removed or closed.

use std::sync::Arc;

use block::{CompletionBatch, DeviceError, Operation, Request};
use block_testing::Latency;
use hugemem::{DeviceLease, DeviceMemory, Sharing};
use nvme_driver::DriveOptions;
use nvme_driver_testing::{
    ControllerMemoryOptions, EmulatedNamespace, EmulatedOptions, EmulatedSpace, Fault, FaultMatch,
    FaultRule, When,
};
use nvme_spec::command::IoOpcode;
use reactors::Nanos;

use crate::support::{Client, DEADLINES, MS, PATIENCE, Rig, arena, drive_options, request, taken};

const WRITE: Operation = Operation::Write { fua: false };
const BLOCKS: u64 = 64;
/// The drive whose memory is used, and its neighbour.
const A: usize = 0;
const B: usize = 1;

fn emulated(space: Option<&Arc<EmulatedSpace>>, placed_by_host: bool) -> EmulatedOptions {
    EmulatedOptions {
        namespaces: vec![EmulatedNamespace::new(1, 4096, BLOCKS)],
        controller_memory: Some(ControllerMemoryOptions {
            bytes: 1 << 20,
            placed_by_host,
            holds_data: true,
        }),
        space: space.cloned(),
        timeout_units: 1,
        ..EmulatedOptions::default()
    }
}

fn without_memory(space: &Arc<EmulatedSpace>) -> EmulatedOptions {
    EmulatedOptions {
        controller_memory: None,
        ..emulated(Some(space), true)
    }
}

fn options() -> DriveOptions {
    DriveOptions {
        queue_depth_max: 100,
        ..drive_options(1)
    }
}

/// Two drives with one arena. Block n of A has n + 1 in each byte, and those of B are zero.
struct Lab {
    rigs: [Rig; 2],
    clients: [Client; 2],
    memory: Arc<DeviceMemory>,
}

impl Lab {
    fn new(emulated: [EmulatedOptions; 2]) -> Self {
        let arena = arena();
        let mut rigs = emulated.map(|it| Rig::try_new(&arena, it, options()).expect("a drive"));
        let mut clients = [rigs[A].client(1, 0, 16), rigs[B].client(1, 0, 16)];
        for lba in 0..BLOCKS {
            let byte = lba as u8 + 1;
            clients[A].write(&mut rigs[A], lba, byte).expect("a write");
            clients[B].write(&mut rigs[B], lba, 0).expect("a write");
        }
        let memory = rigs[A].device(1).device_memory().expect("it holds data");
        Self {
            rigs,
            clients,
            memory,
        }
    }

    fn shared() -> (Arc<EmulatedSpace>, Self) {
        let space = Arc::<EmulatedSpace>::default();
        let both = [emulated(Some(&space), true), emulated(Some(&space), true)];
        let lab = Self::new(both);
        (space, lab)
    }

    fn submit(
        &mut self,
        drive: usize,
        request: Request,
        lease: &mut DeviceLease,
    ) -> Result<(), DeviceError> {
        self.clients[drive].submit_in_device(request, lease)?;
        self.clients[drive].queue.flush();
        Ok(())
    }

    /// The memory of A after it has started again.
    fn take_new_memory(&mut self) {
        let memory = self.rigs[A].device(1).device_memory();
        self.memory = memory.expect("it holds data");
    }

    /// The time that B takes for its requests.
    fn set_latency_of_b(&self, latency: Nanos) {
        let control = &self.rigs[B].control;
        control.set_latency(Latency::Fixed(latency));
    }

    fn step(&mut self) {
        for rig in &mut self.rigs {
            rig.step(MS);
        }
    }

    /// The result of the request in flight on a drive, if it has completed.
    fn poll(&mut self, drive: usize) -> Option<Result<(), DeviceError>> {
        let mut batch = CompletionBatch::new();
        let queue = &mut self.clients[drive].queue;
        queue.flush();
        queue.poll(&mut batch);
        batch.pop().map(|completion| {
            assert!(completion.data.is_none(), "data of the arena");
            completion.result
        })
    }

    fn wait_for(&mut self, drive: usize) -> Result<(), DeviceError> {
        for _ in 0..PATIENCE.as_millis() {
            if let Some(result) = self.poll(drive) {
                return result;
            }
            // The other pair acknowledges its drive's states.
            assert!(self.poll(1 - drive).is_none());
            self.step();
        }
        panic!("the request is lost");
    }

    fn run(
        &mut self,
        drive: usize,
        request: Request,
        lease: &mut DeviceLease,
    ) -> Result<(), DeviceError> {
        self.submit(drive, request, lease)?;
        let result = self.wait_for(drive);
        lease.complete();
        result
    }

    /// Reads blocks of A into its memory.
    fn filled(&mut self, lba: u64, blocks: u32) -> DeviceLease {
        let mut lease = self.memory.take().expect("free");
        let read = request(Operation::Read, lba, blocks);
        assert_eq!(self.run(A, read, &mut lease), Ok(()));
        lease
    }

    fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        for _ in 0..PATIENCE.as_millis() {
            if holds(self) {
                return;
            }
            for drive in [A, B] {
                assert!(self.poll(drive).is_none(), "a completion");
            }
            self.step();
        }
        panic!("never {what}");
    }

    fn expect(&mut self, drive: usize, lba: u64, byte: u8) {
        let found = self.clients[drive].read(&mut self.rigs[drive], lba);
        assert_eq!(found, Ok(byte), "block {lba} of drive {drive}");
    }

    /// No drive was stopped while its neighbour could access its memory, and both work.
    fn finish(mut self) {
        for drive in [A, B] {
            let counters = self.rigs[drive].control.counters();
            assert_eq!(counters.illegal_accesses, 0, "drive {drive}");
            self.expect(drive, BLOCKS - 1, if drive == A { BLOCKS as u8 } else { 0 });
        }
    }
}

fn overdue_writes(rig: &Rig, fault: Fault) {
    let matching = FaultMatch::io().with_opcode(IoOpcode::WRITE.0);
    rig.control
        .inject(FaultRule::new(matching, When::First(1), fault));
}

#[test]
fn memory_that_is_not_shared_is_refused_by_the_neighbour() {
    let space = Arc::<EmulatedSpace>::default();
    let refusing = Arc::<EmulatedSpace>::default();
    refusing.set_refuses(true);
    for (options, why) in [
        // Both are alone.
        (
            [emulated(None, true), emulated(None, true)],
            "no other device",
        ),
        // The other one is alone.
        ([emulated(Some(&space), true), emulated(None, true)], ""),
        // Two containers.
        (
            [
                emulated(Some(&space), true),
                emulated(Some(&Arc::default()), true),
            ],
            "",
        ),
        (
            [
                emulated(Some(&refusing), true),
                emulated(Some(&refusing), true),
            ],
            "the kernel does not map it in the IOMMU: permission denied",
        ),
    ] {
        let mut lab = Lab::new(options);
        let memory = Arc::clone(&lab.memory);
        match memory.sharing() {
            Sharing::Own(reason) => assert!(!why.is_empty() && reason.contains(why), "{reason}"),
            Sharing::Neighbours(_) => assert_eq!(why, "", "it is shared"),
        }
        assert!(!lab.rigs[B].device(1).reaches(&memory));
        assert_eq!(lab.clients[B].queue.blocks_in(&memory), 0);
        let mut lease = lab.filled(3, 1);
        let refused = lab.submit(B, request(WRITE, 3, 1), &mut lease);
        assert_eq!(refused, Err(DeviceError::Interrupted));
        assert_eq!(memory.neighbours_in_flight(), 0);
        // Its own drive has no use for neighbours.
        assert_eq!(lab.run(A, request(WRITE, 0, 1), &mut lease), Ok(()));
        lab.expect(A, 0, 4);
        lab.expect(B, 3, 0);
        lab.finish();
    }
}

#[test]
fn data_moves_between_drives_through_the_memory_of_one() {
    for (placed_by_host, of_the_destination) in [(true, false), (false, false), (true, true)] {
        let space = Arc::<EmulatedSpace>::default();
        let with = emulated(Some(&space), placed_by_host);
        let without = without_memory(&space);
        let mut lab = Lab::new([with, without]);
        let memory = Arc::clone(&lab.memory);
        assert!(lab.rigs[B].device(1).reaches(&memory));
        let largest = lab.clients[B].queue.blocks_in(&memory);
        assert_eq!(largest as usize, memory.slice_bytes() / 4096);
        let in_arena = taken(&lab.rigs[A].arena);
        let (from, to) = if of_the_destination { (B, A) } else { (A, B) };
        let mut lba = 0;
        for blocks in [1, 2, 3, 16, largest.min(32)] {
            let mut lease = memory.take().expect("free");
            let before = space.accesses();
            let read = request(Operation::Read, lba, blocks);
            assert_eq!(lab.run(from, read, &mut lease), Ok(()));
            assert_eq!(lab.run(to, request(WRITE, lba, blocks), &mut lease), Ok(()));
            assert!(space.accesses() > before, "the neighbour did not access it");
            lba += u64::from(blocks);
        }
        assert_eq!(taken(&lab.rigs[A].arena), in_arena);
        for block in 0..BLOCKS - 1 {
            let expected = match (block < lba, from) {
                (true, A) => block as u8 + 1,
                _ => 0,
            };
            let at_source = if from == A { block as u8 + 1 } else { 0 };
            lab.expect(from, block, at_source);
            if block < lba {
                lab.expect(to, block, at_source);
            } else if to == B {
                lab.expect(to, block, expected);
            }
        }
        assert_eq!(memory.counters().lost, 0);
        if from == A {
            lab.finish();
        }
    }
}

#[test]
fn requests_outside_of_the_drive_or_the_slice_are_refused() {
    let (_, mut lab) = Lab::shared();
    let memory = Arc::clone(&lab.memory);
    let mut lease = memory.take().expect("free");
    let largest = (memory.slice_bytes() / 4096) as u32;
    for (request, error) in [
        (request(WRITE, BLOCKS, 1), DeviceError::OutOfRange),
        (
            request(Operation::Read, 0, largest + 1),
            DeviceError::OutOfRange,
        ),
        (request(Operation::Read, 0, 0), DeviceError::Internal),
        (request(Operation::Flush, 0, 0), DeviceError::Internal),
    ] {
        assert_eq!(lab.submit(B, request, &mut lease), Err(error));
    }
    assert_eq!(memory.neighbours_in_flight(), 0);
    lab.finish();
}

/// The reset waits for a request of the neighbour, which then has intact data.
#[test]
fn reset_waits_for_the_neighbour() {
    let (space, mut lab) = Lab::shared();
    let mut lease = lab.filled(5, 2);
    lab.set_latency_of_b(Nanos::from_millis(10));
    assert_eq!(lab.submit(B, request(WRITE, 5, 2), &mut lease), Ok(()));
    let before = space.mapped_bytes();
    lab.rigs[A].control.fail();
    assert_eq!(lab.wait_for(B), Ok(()));
    assert!(lab.memory.has_ended() && !lease.is_valid());
    lease.complete();
    assert_eq!(lease.begin_by_neighbour(0), None);
    // Nothing of the new memory is in it.
    let refused = lab.submit(B, request(WRITE, 9, 1), &mut lease);
    assert_eq!(refused, Err(DeviceError::Interrupted));
    lab.set_latency_of_b(Nanos::ZERO);
    lab.until("ready again", |lab| {
        lab.rigs[A].drive.is_ready_everywhere() && lab.rigs[A].drive.counters().recoveries == 1
    });
    assert_eq!(space.mapped_bytes(), before);
    lab.expect(B, 5, 6);
    lab.expect(B, 6, 7);
    lab.take_new_memory();
    let mut lease = lab.filled(7, 1);
    assert_eq!(lab.run(B, request(WRITE, 7, 1), &mut lease), Ok(()));
    lab.expect(B, 7, 8);
    lab.finish();
}

/// A neighbour that does not complete its request loses the access, and its addresses are not used
/// again, since it still has them.
#[test]
fn reset_does_not_wait_long() {
    let (space, mut lab) = Lab::shared();
    let mut lease = lab.filled(5, 1);
    let first = lease.begin(0);
    lease.complete();
    overdue_writes(&lab.rigs[B], Fault::NeverCompletes);
    assert_eq!(lab.submit(B, request(WRITE, 5, 1), &mut lease), Ok(()));
    lab.rigs[A].control.fail();
    let end = lab.rigs[A].now + DEADLINES.quiesce + DEADLINES.quiesce + DEADLINES.quiesce;
    while space.mapped_bytes() > lab.memory_bytes(B) {
        assert!(lab.rigs[A].now < end, "it waits too long");
        assert!(lab.poll(A).is_none() && lab.poll(B).is_none());
        lab.step();
    }
    assert_eq!(lab.memory.neighbours_in_flight(), 1);
    // The neighbour's own recovery ends the request.
    assert_eq!(lab.wait_for(B), Err(DeviceError::Interrupted));
    lease.complete();
    drop(lease);
    assert_eq!(lab.memory.counters().taken, 0);
    lab.until("ready again", |lab| {
        lab.rigs.iter().all(|rig| rig.drive.is_ready_everywhere())
    });
    lab.take_new_memory();
    let mut lease = lab.memory.take().expect("free");
    assert_ne!(lease.begin(0), first, "the same addresses");
    lease.complete();
    lab.expect(B, 5, 0);
    let mut lease = lab.filled(7, 1);
    assert_eq!(lab.run(B, request(WRITE, 7, 1), &mut lease), Ok(()));
    lab.expect(B, 7, 8);
    lab.finish();
}

/// The drive that has the memory is pulled: the request on its memory fails, and no other one.
#[test]
fn removal_ends_exactly_the_requests_on_the_memory() {
    let (space, mut lab) = Lab::shared();
    let mut lease = lab.filled(5, 1);
    lab.set_latency_of_b(Nanos::from_millis(10));
    // Before the submission in the device, whose completion is taken first.
    assert_eq!(lab.submit(B, request(WRITE, 5, 1), &mut lease), Ok(()));
    lab.rigs[A].control.remove();
    let failed = lab.wait_for(B);
    assert!(failed.is_err(), "garbage was written");
    lease.complete();
    lab.set_latency_of_b(Nanos::ZERO);
    lab.until("gone", |lab| lab.rigs[A].is_gone());
    assert!(lab.memory.has_ended());
    assert_eq!(space.mapped_bytes(), lab.memory_bytes(B));
    let counters = lab.rigs[B].drive.counters();
    assert_eq!((counters.resets, counters.timeouts), (0, 0));
    lab.expect(B, 5, 0);
    let Lab { rigs, clients, .. } = &mut lab;
    clients[B].write(&mut rigs[B], 5, 77).expect("a write");
    lab.expect(B, 5, 77);
}

/// The neighbour is pulled while it uses the memory: its request ends, and the memory stays.
#[test]
fn removed_neighbour_leaves_the_memory() {
    let (space, mut lab) = Lab::shared();
    let mut lease = lab.filled(5, 1);
    overdue_writes(&lab.rigs[B], Fault::Hang { abortable: false });
    assert_eq!(lab.submit(B, request(WRITE, 5, 1), &mut lease), Ok(()));
    lab.rigs[B].control.remove();
    assert_eq!(lab.wait_for(B), Err(DeviceError::Removed));
    assert!(lease.is_valid());
    lease.complete();
    assert_eq!(space.mapped_bytes(), lab.memory_bytes(A));
    assert_eq!(lab.memory.neighbours_in_flight(), 0);
    // What was read is still there.
    assert_eq!(lab.run(A, request(WRITE, 0, 1), &mut lease), Ok(()));
    lab.expect(A, 0, 6);
    drop(lease);
    let counters = lab.memory.counters();
    assert_eq!((counters.taken, counters.lost), (0, 0));
}

#[test]
fn drive_that_the_system_requests_back_ends_the_access_first() {
    let (space, mut lab) = Lab::shared();
    let mut lease = lab.filled(5, 1);
    lab.set_latency_of_b(Nanos::from_millis(10));
    assert_eq!(lab.submit(B, request(WRITE, 5, 1), &mut lease), Ok(()));
    lab.rigs[A].control.request_removal(true);
    assert_eq!(lab.wait_for(B), Ok(()), "the drive waits for it");
    lease.complete();
    lab.until("gone", |lab| lab.rigs[A].is_gone());
    assert_eq!(space.mapped_bytes(), lab.memory_bytes(B));
    assert_eq!(lab.rigs[A].control.counters().illegal_accesses, 0);
    lab.expect(B, 5, 6);
}

#[test]
fn closed_drives_share_nothing() {
    let (space, lab) = Lab::shared();
    let [of_a, of_b] = [A, B].map(|drive| lab.memory_bytes(drive));
    assert_eq!(space.mapped_bytes(), of_a + of_b);
    let Lab {
        rigs: [mut a, b],
        clients,
        memory,
    } = lab;
    drop(clients);
    assert!(a.close());
    assert!(memory.has_ended());
    assert_eq!(space.mapped_bytes(), of_b);
    assert_eq!(a.control.counters().illegal_accesses, 0);
    // The other one ends without a stop.
    let control = b.control.clone();
    drop(b);
    assert_eq!(space.mapped_bytes(), 0);
    assert_eq!(control.counters().illegal_accesses, 0);
}

impl Lab {
    /// Bytes that a drive shares.
    fn memory_bytes(&self, drive: usize) -> usize {
        let memory = self.rigs[drive].device(1).device_memory();
        memory.map_or(0, |it| it.counters().slices as usize * it.slice_bytes())
    }
}
