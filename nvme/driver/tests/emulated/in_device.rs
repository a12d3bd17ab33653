//! Reads and writes whose data is in the drive's own memory, without a byte in the arena.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use block::{CompletionBatch, DeviceError, Operation, Refusal, Request};
use hugemem::{AddressSpace, DeviceLease, DeviceMemory, ExportUser, Sharing};
use nvme_driver::DriveOptions;
use nvme_driver_testing::{
    ControllerMemoryOptions, EmulatedNamespace, EmulatedOptions, Fault, FaultMatch, FaultRule,
    SglRules, When,
};

use crate::support::{Client, MS, PATIENCE, Rig, drive_options, request, taken};

const WRITE: Operation = Operation::Write { fua: false };
const BLOCKS: u64 = 400;

fn emulated(holds_data: bool, placed_by_host: bool) -> EmulatedOptions {
    EmulatedOptions {
        namespaces: vec![
            EmulatedNamespace::new(1, 4096, BLOCKS),
            EmulatedNamespace::new(2, 4096, BLOCKS),
        ],
        controller_memory: Some(ControllerMemoryOptions {
            bytes: 1 << 20,
            placed_by_host,
            holds_data,
        }),
        timeout_units: 1,
        ..EmulatedOptions::default()
    }
}

fn options() -> DriveOptions {
    DriveOptions {
        queue_depth_max: 100,
        ..drive_options(1)
    }
}

struct Lab {
    rig: Rig,
    /// Namespaces 1 and 2.
    clients: [Client; 2],
    memory: Arc<DeviceMemory>,
}

impl Lab {
    fn new(emulated: EmulatedOptions) -> Self {
        let rig = Rig::new(emulated, options());
        let clients = [rig.client(1, 0, 64), rig.client(2, 0, 64)];
        let memory = rig.device(1).device_memory().expect("it holds data");
        Self {
            rig,
            clients,
            memory,
        }
    }

    fn submit(
        &mut self,
        client: usize,
        request: Request,
        lease: &mut DeviceLease,
    ) -> Result<(), DeviceError> {
        self.clients[client].submit_in_device(request, lease)
    }

    /// Runs a request to its completion.
    fn run(
        &mut self,
        client: usize,
        request: Request,
        lease: &mut DeviceLease,
    ) -> Result<(), DeviceError> {
        self.submit(client, request, lease)?;
        let result = self.await_completion(client);
        lease.complete();
        result
    }

    fn await_completion(&mut self, client: usize) -> Result<(), DeviceError> {
        let deadline = self.rig.now + PATIENCE;
        let mut batch = CompletionBatch::new();
        loop {
            let queue = &mut self.clients[client].queue;
            queue.flush();
            queue.poll(&mut batch);
            if let Some(completion) = batch.pop() {
                assert!(completion.data.is_none(), "data of the arena");
                assert_eq!(queue.in_flight(), 0);
                return completion.result;
            }
            assert!(self.rig.now < deadline, "the request is lost");
            self.rig.step(MS);
        }
    }
}

#[test]
fn drives_without_memory_for_data_have_none() {
    let without = EmulatedOptions {
        controller_memory: None,
        ..emulated(false, true)
    };
    let too_small = EmulatedOptions {
        controller_memory: Some(ControllerMemoryOptions {
            bytes: 16 << 10,
            placed_by_host: true,
            holds_data: true,
        }),
        ..emulated(true, true)
    };
    for emulated in [
        without,
        emulated(false, true),
        emulated(false, false),
        too_small,
    ] {
        let rig = Rig::new(emulated, options());
        assert!(rig.device(1).device_memory().is_none());
        let mut client = rig.client(1, 0, 8);
        assert!(client.queue.device_memory().is_none());
        // Memory of another drive.
        let sharing = Sharing::Neighbours(AddressSpace::unique());
        let other = DeviceMemory::new(1 << 40, 1 << 20, 4096, sharing).expect("room");
        let mut lease = other.take().expect("free");
        let refused = client
            .queue
            .submit_in_device(request(WRITE, 0, 1), &mut lease, 0);
        assert!(matches!(
            refused,
            Err(Refusal::Never(_, DeviceError::Interrupted))
        ));
        drop(lease);
        assert_eq!(other.counters().lost, 0, "no request was in flight");
    }
}

#[test]
fn requests_that_do_not_fit_are_refused() {
    let mut lab = Lab::new(emulated(true, true));
    let mut lease = lab.memory.take().expect("free");
    let largest = (lab.memory.slice_bytes() / 4096) as u32;
    let mut with_data = request(WRITE, 0, 1);
    with_data.data = lab.clients[0].pool.take(4096);
    for (request, error) in [
        (request(WRITE, BLOCKS, 1), DeviceError::OutOfRange),
        (
            request(Operation::Read, u64::MAX, 2),
            DeviceError::OutOfRange,
        ),
        (
            request(Operation::Read, 0, largest + 1),
            DeviceError::Unsupported,
        ),
        (request(Operation::Read, 0, 0), DeviceError::Internal),
        (request(Operation::Flush, 0, 0), DeviceError::Internal),
        (request(Operation::Compare, 0, 1), DeviceError::Internal),
        (with_data, DeviceError::Internal),
    ] {
        assert_eq!(lab.submit(0, request, &mut lease), Err(error));
    }
    assert_eq!(lab.run(0, request(WRITE, 0, largest), &mut lease), Ok(()));
}

#[test]
fn data_moves_between_namespaces_through_the_drive_alone() {
    let shapes = [
        emulated(true, true),
        emulated(true, false),
        EmulatedOptions {
            sgl: SglRules::Dword,
            ..emulated(true, true)
        },
        // Commands of 16 KiB.
        EmulatedOptions {
            transfer_code: 2,
            ..emulated(true, true)
        },
    ];
    for emulated in shapes {
        let mut lab = Lab::new(emulated);
        let largest = (lab.memory.slice_bytes() / 4096) as u32;
        let [source, destination] = &mut lab.clients;
        for lba in 0..BLOCKS {
            source
                .write(&mut lab.rig, lba, lba as u8 | 1)
                .expect("a write");
            destination.write(&mut lab.rig, lba, 0).expect("a write");
        }
        let in_arena = taken(&lab.rig.arena);
        let mut lba = 0;
        for blocks in [1, 2, 3, largest, largest.min(5), largest] {
            let mut lease = lab.memory.take().expect("free");
            let read = request(Operation::Read, lba, blocks);
            assert_eq!(lab.run(0, read, &mut lease), Ok(()));
            assert!(lease.is_valid());
            assert_eq!(lab.run(1, request(WRITE, lba, blocks), &mut lease), Ok(()));
            lba += u64::from(blocks);
        }
        assert_eq!(taken(&lab.rig.arena), in_arena);
        let [_, destination] = &mut lab.clients;
        for block in 0..BLOCKS {
            let expected = if block < lba { block as u8 | 1 } else { 0 };
            let found = destination.read(&mut lab.rig, block);
            assert_eq!(found, Ok(expected), "block {block}");
        }
        assert_eq!(lab.memory.counters().lost, 0);
    }
}

/// Blocks are read to places of one slice, in any order, and written from there by one request.
#[test]
fn data_has_its_place_in_a_slice() {
    let mut lab = Lab::new(emulated(true, true));
    for lba in 0..BLOCKS {
        let [source, destination] = &mut lab.clients;
        let value = lba as u8 | 1;
        source.write(&mut lab.rig, lba, value).expect("a write");
        destination.write(&mut lab.rig, lba, 0).expect("a write");
    }
    let mut lease = lab.memory.take().expect("free");
    let largest = (lab.memory.slice_bytes() / 4096) as u32;
    for (lba, blocks, offset) in [
        (0, 1, lab.memory.slice_bytes()),
        (0, 2, lab.memory.slice_bytes() - 4096),
        (0, largest, 4096),
        (0, 1, usize::MAX),
    ] {
        let read = request(Operation::Read, lba, blocks);
        let refused = lab.clients[0]
            .queue
            .submit_in_device(read, &mut lease, offset);
        let Err(Refusal::Never(_, error)) = refused else {
            panic!("{blocks} blocks at {offset}");
        };
        assert_eq!(error, DeviceError::Unsupported);
    }
    for (lba, blocks, place) in [(9, 2, 3), (4, 1, 0), (20, 2, 1)] {
        let read = request(Operation::Read, lba, blocks);
        let queue = &mut lab.clients[0].queue;
        let taken = queue.submit_in_device(read, &mut lease, place * 4096);
        assert!(taken.is_ok());
        assert_eq!(lab.await_completion(0), Ok(()));
        lease.complete();
    }
    assert_eq!(lab.run(1, request(WRITE, 7, 5), &mut lease), Ok(()));
    let [_, destination] = &mut lab.clients;
    for (lba, from) in (6..13).zip([None, Some(4), Some(20), Some(21), Some(9), Some(10), None]) {
        let found = destination.read(&mut lab.rig, lba);
        assert_eq!(found, Ok(from.map_or(0, |lba: u8| lba | 1)), "block {lba}");
    }
}

/// The submission queue is in the same buffer: data of every slice leaves it alone.
#[test]
fn data_does_not_overwrite_the_submission_queues() {
    let mut lab = Lab::new(emulated(true, true));
    lab.clients[0]
        .write(&mut lab.rig, 0, 0xff)
        .expect("a write");
    let largest = (lab.memory.slice_bytes() / 4096) as u32;
    let mut leases: Vec<_> = std::iter::from_fn(|| lab.memory.take()).collect();
    assert!(leases.len() > 1);
    for round in 0..100 {
        for lease in &mut leases {
            let lba = round % 8;
            assert_eq!(
                lab.run(0, request(Operation::Read, lba, largest), lease),
                Ok(())
            );
        }
    }
    assert_eq!(lab.rig.drive.counters().resets, 0);
    assert_eq!(lab.rig.control.counters().illegal_accesses, 0);
}

#[test]
fn memory_ends_before_the_drive_is_reset() {
    let mut lab = Lab::new(emulated(true, true));
    let mut lease = lab.memory.take().expect("free");
    assert_eq!(
        lab.run(0, request(Operation::Read, 0, 1), &mut lease),
        Ok(())
    );
    let mut in_flight = lab.memory.take().expect("free");
    let matching = FaultMatch::io();
    let lose = FaultRule::new(matching, When::First(1), Fault::Fatal);
    lab.rig.control.inject(lose);
    let lost = lab.run(0, request(Operation::Read, 0, 1), &mut in_flight);
    assert_eq!(lost, Err(DeviceError::Interrupted));
    assert!(lab.memory.has_ended() && !lease.is_valid());
    let deadline = lab.rig.now + PATIENCE;
    while !lab.rig.is_ready() {
        assert!(lab.rig.now < deadline);
        lab.rig.step(MS);
        lab.clients.iter_mut().for_each(|it| drop(it.turn()));
    }
    // What the lease had is gone, although the address is the same.
    let refused = lab.submit(1, request(WRITE, 0, 1), &mut lease);
    assert_eq!(refused, Err(DeviceError::Interrupted));
    let memory = lab.rig.device(1).device_memory().expect("it holds data");
    assert!(!Arc::ptr_eq(&memory, &lab.memory));
    let mut lease = memory.take().expect("free");
    assert_eq!(lab.run(1, request(WRITE, 0, 1), &mut lease), Ok(()));
}

/// A registration with a device outside of the address space, such as a network card: it has the
/// descriptor until it ends.
#[derive(Debug)]
struct Card {
    descriptor: Mutex<Option<OwnedFd>>,
}

impl Card {
    fn register(memory: &DeviceMemory) -> Arc<Self> {
        let mut registered = None;
        let exported = memory.export_to(|buffer| {
            let descriptor = buffer.as_fd().try_clone_to_owned()?;
            let card = Arc::new(Self {
                descriptor: Mutex::new(Some(descriptor)),
            });
            registered = Some(Arc::clone(&card));
            Ok::<_, std::io::Error>(card as Arc<dyn ExportUser>)
        });
        exported.expect("a descriptor");
        registered.expect("registered")
    }

    fn is_registered(&self) -> bool {
        self.descriptor.lock().expect("unpoisoned").is_some()
    }
}

impl ExportUser for Card {
    fn end_access(&self) {
        drop(self.descriptor.lock().expect("unpoisoned").take());
    }
}

/// Before the drive is stopped, registrations of other devices end, after their work requests in flight
/// or when those take too long.
#[test]
fn registrations_end_before_the_drive_stops() {
    for completes in [true, false] {
        let mut lab = Lab::new(emulated(true, true));
        let card = Card::register(&lab.memory);
        let mut lease = lab.memory.take_slices(2).expect("free");
        assert!(lease.begin_all_by_neighbour());
        lab.rig.control.fail();
        let step = |lab: &mut Lab| {
            lab.rig.step(MS);
            lab.clients.iter_mut().for_each(|it| drop(it.turn()));
        };
        for _ in 0..5 {
            step(&mut lab);
        }
        assert!(lab.memory.has_ended());
        assert!(card.is_registered(), "work requests are in flight");
        if completes {
            lease.complete();
        }
        let deadline = lab.rig.now + PATIENCE;
        while !lab.rig.is_ready() || lab.rig.drive.counters().recoveries == 0 {
            assert!(lab.rig.now < deadline);
            step(&mut lab);
        }
        assert!(!card.is_registered());
        assert_eq!(lab.rig.control.counters().illegal_accesses, 0);
        lease.complete();
        let again = lab.rig.device(1).device_memory().expect("it holds data");
        assert_ne!(again.number(), lab.memory.number());
        assert!(Card::register(&again).is_registered());
    }
}
