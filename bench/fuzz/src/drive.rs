//! The driver on a faulty drive: registers, Identify pages and logs have arbitrary content,
//! arbitrary completions appear in its queues, commands hang, fail and get lost, and the drive is
//! removed and returns.
//!
//! Invariants: the start ends, successfully or not; every request ends once and within bounded
//! time; all memory is returned.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use block::{Operation, SharedQueues};
use hugemem::DmaView;
use nvme_driver::backing::{ControllerMemory, DeviceBacking};
use nvme_driver::{BringUp, BringUpState, Drive, DriveOptions, DriveOwner};
use nvme_driver_testing::{
    ControllerMemoryOptions, EmulatedController, EmulatedNamespace, EmulatedOptions,
    EmulatorControl, Fault, FaultMatch, FaultRule, Queues, SglRules, ShadowDoorbells, When,
};
use nvme_spec::Sqe;
use nvme_spec::command::AdminOpcode;
use nvme_spec::completion::StatusField;
use nvme_spec::registers::Register;
use reactors::{Nanos, Poller};
use zerocopy::FromBytes;

use crate::drive_harness::{Client, DEADLINES};
use crate::input::Input;
use crate::memory::Memory;

/// Limit of the steps; longer inputs reach no new code.
const STEPS_MAX: usize = 64;
/// Virtual time of one step.
const STEP: Nanos = Nanos::from_millis(10);
/// Limit of the virtual time of a start and of the last request: CAP.TO is at most 127.5 s, and a
/// reset waits for it twice.
const VIRTUAL_TIME_MAX: Nanos = Nanos::from_secs(600);
const BLOCKS: u64 = 64;
/// The largest number of concurrent requests of one client: the arena has memory for them.
const IN_FLIGHT_MAX: usize = 8;
const DMA_BASE: u64 = 0x1_0000_0000;
const DOORBELLS_FROM: usize = 0x1000;

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let memory = Memory::of_thread();
    {
        let emulated = emulated(input.u8());
        let falsifications = usize::from(input.u8()) * 4;
        let faulty_drive = Arc::new(FaultyDrive::new(
            &memory,
            emulated,
            input.take(falsifications),
        ));
        if let Some((drive, owner)) = start(&memory, &faulty_drive) {
            let started = StartedDrive {
                faulty_drive,
                drive,
                owner,
                now: VIRTUAL_TIME_MAX,
            };
            started.run(&memory, &mut input);
        }
    }
    assert_eq!(memory.taken(), 0, "memory is still in use");
}

fn emulated(choice: u8) -> EmulatedOptions {
    let shadow = [ShadowDoorbells::Unsupported, ShadowDoorbells::Ring];
    let buffer = ControllerMemoryOptions {
        bytes: 16 << 10,
        placed_by_host: choice & 8 != 0,
        holds_data: false,
    };
    EmulatedOptions {
        namespaces: vec![
            EmulatedNamespace::new(1, 512, BLOCKS),
            EmulatedNamespace::new(3, 4096, BLOCKS),
        ],
        sgl: if choice & 1 == 0 {
            SglRules::Unsupported
        } else {
            SglRules::Any
        },
        shadow_doorbells: shadow[usize::from(choice >> 1 & 1)],
        controller_memory: (choice & 4 != 0).then_some(buffer),
        timeout_units: 1,
        queue_entries_max: 64,
        dma_base: DMA_BASE,
        ..EmulatedOptions::default()
    }
}

/// Starts the drive. The start may fail, but must end.
fn start(memory: &Memory, faulty_drive: &Arc<FaultyDrive>) -> Option<(Arc<Drive>, DriveOwner)> {
    let options = DriveOptions {
        queue_depth_max: 32,
        deadlines: DEADLINES,
        ..DriveOptions::new("drive")
    };
    let backing = Arc::clone(faulty_drive) as Arc<dyn DeviceBacking>;
    let mut bring_up = BringUp::new(backing, &memory.arena, options).ok()?;
    let mut now = Nanos::ZERO;
    loop {
        faulty_drive.drive.tick(now);
        match bring_up.poll(now) {
            BringUpState::Pending => now += STEP,
            BringUpState::Ready(ready) => return Some(ready),
            BringUpState::Failed(_) => return None,
        }
        assert!(now < VIRTUAL_TIME_MAX, "the start does not end");
    }
}

/// A started drive, in virtual time.
struct StartedDrive {
    faulty_drive: Arc<FaultyDrive>,
    drive: Arc<Drive>,
    owner: DriveOwner,
    now: Nanos,
}

impl StartedDrive {
    fn run(mut self, memory: &Memory, input: &mut Input<'_>) {
        let device = |nsid: u32| self.drive.device(nsid, "ns", [nsid as u8; 16]);
        let devices = [1, 3].map(device).into_iter().flatten();
        let shared = SharedQueues::default();
        let mut clients: Vec<_> = devices
            .map(|device| Client::new(&*device, &memory.arena, 0, 16, shared.clone()))
            .collect();
        for _ in 0..STEPS_MAX {
            if input.is_empty() {
                break;
            }
            self.step(&mut clients, input);
        }
        self.faulty_drive.stop();
        let control = self.faulty_drive.drive.control();
        control.disarm_all();
        control.release();
        let limit = self.now + VIRTUAL_TIME_MAX;
        while clients.iter().any(|client| client.in_flight() > 0) {
            assert!(self.now < limit, "requests are lost");
            self.advance_time(STEP);
            for client in &mut clients {
                client.turn();
            }
        }
    }

    fn step(&mut self, clients: &mut [Client], input: &mut Input<'_>) {
        let choice = input.u8();
        match choice & 15 {
            0..=6 => submit(clients, input),
            7 => inject(&self.faulty_drive.drive.control(), input),
            8 => self.faulty_drive.drive.control().disarm_all(),
            9 => apply_drive_event(&self.faulty_drive.drive.control(), input),
            10 => self.advance_time(Nanos::from_millis(u64::from(input.u8()))),
            _ => {}
        }
        self.advance_time(Nanos::from_micros(100));
        for client in clients {
            client.turn();
        }
    }

    fn advance_time(&mut self, span: Nanos) {
        self.now += span;
        self.faulty_drive.drive.tick(self.now);
        self.owner.poll(self.now);
        self.owner.flush(self.now);
        if self.drive.function_reset_needed() {
            // The driver must also handle a failed reset.
            let _ = self.drive.function_reset();
        }
    }
}

fn submit(clients: &mut [Client], input: &mut Input<'_>) {
    let choice = input.u8();
    let operation = match choice & 7 {
        0 | 1 => Operation::Read,
        2 => Operation::Write {
            fua: choice & 8 != 0,
        },
        3 => Operation::Flush,
        4 => Operation::WriteZeroes {
            deallocate: false,
            fua: choice & 8 != 0,
        },
        5 => Operation::Deallocate,
        6 => Operation::Compare,
        _ => Operation::Write { fua: false },
    };
    let (lba, blocks) = (
        u64::from(input.u8()) % BLOCKS,
        u32::from(input.u8() % 12) + 1,
    );
    if clients.is_empty() {
        return;
    }
    let client = &mut clients[usize::from(choice >> 4 & 1) % clients.len()];
    if client.in_flight() == IN_FLIGHT_MAX {
        return;
    }
    let blocks = blocks.min((BLOCKS - lba) as u32);
    let data = vec![choice; blocks as usize * client.block_size];
    let data = operation.has_data().then_some(&data[..]);
    let (lba, blocks) = if operation == Operation::Flush {
        (0, 0)
    } else {
        (lba, blocks)
    };
    // A removed or full drive rejects the request, which then does not have to end.
    let _ = client.submit(operation, lba, blocks, data);
}

/// Injects a fault of the emulated drive.
fn inject(control: &EmulatorControl, input: &mut Input<'_>) {
    let queues = input.pick(&[Queues::Io, Queues::Admin, Queues::All]);
    let matching = FaultMatch {
        queues,
        opcode: None,
        nsid: None,
        blocks: None,
    };
    let fault = match input.u8() % 16 {
        0 => Fault::DropCompletion,
        1 => Fault::Duplicate,
        2 => Fault::WrongIdentifier(input.u16()),
        3 => Fault::StaleIdentifier,
        4 => Fault::WrongQueue(input.u16()),
        5 => Fault::WrongHead(input.u16()),
        6 => Fault::Status(StatusField::from_bits(input.u16().into()).status()),
        7 => Fault::Delay(Nanos::from_millis(u64::from(input.u8()))),
        8 => Fault::Fatal,
        9 => Fault::Remove,
        10 => Fault::DoorbellLost,
        11 => Fault::DoorbellDeferred,
        12 => Fault::DoorbellTorn,
        13 => Fault::EnableFatal,
        14 => Fault::Disabled(Nanos::from_millis(u64::from(input.u16()))),
        _ => Fault::FunctionReset,
    };
    let when = When::First(u64::from(input.u8() % 3) + 1);
    // The faults of the start have been used, and there is room for one per step.
    control.inject(FaultRule::new(matching, when, fault));
}

/// Applies an event that affects the whole drive.
fn apply_drive_event(control: &EmulatorControl, input: &mut Input<'_>) {
    let value = input.u8();
    match input.u8() % 9 {
        0 => control.remove(),
        1 => control.reinsert(),
        2 => control.power_cut(),
        3 => control.fail(),
        4 => {
            control.resize_namespace(1, u64::from(value) % (BLOCKS + 1));
        }
        5 => {
            control.attach_namespace(3, value & 1 == 0);
        }
        6 => {
            control.protect_namespace(1, value & 1 == 0);
        }
        7 => control.set_temperature(u16::from(value) * 4),
        _ => {
            control.release();
        }
    }
}

/// An emulated drive that sometimes replaces its registers, pages and completions with others.
struct FaultyDrive {
    drive: EmulatedController,
    view: DmaView,
    falsifications: Mutex<Falsifications>,
}

/// The replacements still to come, and the addresses to write them to.
struct Falsifications {
    left: Vec<u8>,
    /// Number of accesses until the next replacement.
    accesses_until_next: u8,
    admin_tail: u32,
    admin_submission: u64,
    /// Addresses of the completion queues.
    completions: Vec<u64>,
    /// Address of the last Identify or log page.
    page: u64,
}

impl Falsifications {
    fn input<T>(&mut self, read: impl FnOnce(&mut Input<'_>) -> T) -> T {
        let mut input = Input::new(&self.left);
        let read = read(&mut input);
        let rest = self.left.len() - input.left();
        self.left.drain(..rest);
        read
    }

    /// Whether this access is to be falsified.
    fn is_due(&mut self) -> bool {
        if self.left.is_empty() {
            return false;
        }
        if self.accesses_until_next > 0 {
            self.accesses_until_next -= 1;
            return false;
        }
        self.accesses_until_next = self.left.remove(0);
        true
    }
}

impl FaultyDrive {
    fn new(memory: &Memory, options: EmulatedOptions, falsifications: &[u8]) -> Self {
        let region = memory.arena.region();
        Self {
            drive: EmulatedController::new(region, options).expect("right options"),
            view: DmaView::of_arena(region).expect("another mapping"),
            falsifications: Mutex::new(Falsifications {
                left: falsifications.to_vec(),
                accesses_until_next: falsifications.first().copied().unwrap_or(0),
                admin_tail: 0,
                admin_submission: 0,
                completions: Vec::new(),
                page: 0,
            }),
        }
    }

    /// Ends all falsification.
    fn stop(&self) {
        self.falsifications().left.clear();
    }

    fn falsifications(&self) -> std::sync::MutexGuard<'_, Falsifications> {
        self.falsifications
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes to the host's memory, if the address is in it.
    fn write(&self, address: u64, bytes: &[u8]) {
        let Some(offset) = address.checked_sub(DMA_BASE) else {
            return;
        };
        let offset = offset as usize;
        if offset <= self.view.len() && bytes.len() <= self.view.len() - offset {
            self.view.write(offset, bytes);
        }
    }

    /// Reads the admin commands that a doorbell submits.
    fn read_admin_commands(&self, tail: u32) {
        let mut falsifications = self.falsifications();
        let entries = 64;
        for _ in 0..entries {
            if falsifications.admin_tail == tail || falsifications.admin_submission < DMA_BASE {
                break;
            }
            let offset = (falsifications.admin_submission - DMA_BASE) as usize
                + falsifications.admin_tail as usize * 64;
            if offset + 64 > self.view.len() {
                break;
            }
            let mut bytes = [0; 64];
            self.view.read(offset, &mut bytes);
            let sqe = Sqe::read_from_bytes(&bytes).expect("64 bytes");
            let first = sqe.dptr.prp().prp1.get();
            match sqe.admin_opcode() {
                AdminOpcode::IDENTIFY | AdminOpcode::GET_LOG_PAGE => falsifications.page = first,
                AdminOpcode::CREATE_IO_CQ => falsifications.completions.push(first),
                _ => {}
            }
            let after = falsifications.admin_tail + 1;
            // A tail that has wrapped around is smaller than the old one.
            falsifications.admin_tail = if after > tail && tail < falsifications.admin_tail {
                0
            } else {
                after
            };
        }
        falsifications.admin_tail = tail;
    }

    /// Overwrites memory that the drive has just written, or might have.
    fn overwrite_memory(&self) {
        let mut falsifications = self.falsifications();
        if !falsifications.is_due() {
            return;
        }
        let page = falsifications.page;
        let queues = falsifications.completions.clone();
        let (address, bytes) = falsifications.input(|input| {
            if input.u8() & 1 == 0 {
                let at = u64::from(input.u16() & 4095);
                let bytes = input.bytes();
                let room = 4096 - at as usize;
                return (page + at, bytes[..bytes.len().min(room)].to_vec());
            }
            let queue = usize::from(input.u8()) % queues.len().max(1);
            let at = u64::from(input.u8() & 63) * 16;
            let base = queues.get(queue).copied().unwrap_or(0);
            (base + at, input.take(16).to_vec())
        });
        drop(falsifications);
        self.write(address, &bytes);
    }
}

impl DeviceBacking for FaultyDrive {
    fn registers_len(&self) -> usize {
        self.drive.registers_len()
    }

    fn read_u32(&self, offset: usize) -> u32 {
        let truth = self.drive.read_u32(offset);
        let mut falsifications = self.falsifications();
        if falsifications.is_due() {
            return falsifications.input(|input| match input.u8() % 4 {
                0 => u32::MAX,
                1 => truth ^ (1 << (input.u8() % 32)),
                2 => input.u32(),
                _ => truth,
            });
        }
        truth
    }

    fn read_u64(&self, offset: usize) -> u64 {
        let truth = self.drive.read_u64(offset);
        let mut falsifications = self.falsifications();
        if falsifications.is_due() {
            return falsifications.input(|input| match input.u8() % 4 {
                0 => u64::MAX,
                1 => truth ^ (1 << (input.u8() % 64)),
                2 => input.u64(),
                _ => truth,
            });
        }
        truth
    }

    fn write_u32(&self, offset: usize, value: u32) {
        if offset == DOORBELLS_FROM {
            self.read_admin_commands(value);
        }
        self.drive.write_u32(offset, value);
        if offset >= DOORBELLS_FROM {
            self.overwrite_memory();
        }
    }

    fn write_u64(&self, offset: usize, value: u64) {
        if offset == Register::ASQ.0 as usize {
            let mut falsifications = self.falsifications();
            (falsifications.admin_submission, falsifications.admin_tail) = (value, 0);
        } else if offset == Register::ACQ.0 as usize {
            self.falsifications().completions = vec![value];
        }
        self.drive.write_u64(offset, value);
    }

    fn dma_address(&self, region_offset: usize) -> u64 {
        self.drive.dma_address(region_offset)
    }

    fn controller_memory(
        &self,
        bar: u8,
        offset: u64,
        len: u64,
    ) -> Option<Arc<dyn ControllerMemory>> {
        self.drive.controller_memory(bar, offset, len)
    }

    fn set_bus_master(&self, on: bool) -> io::Result<()> {
        self.drive.set_bus_master(on)
    }

    fn reset_function(&self) -> io::Result<()> {
        self.drive.reset_function()
    }

    fn interrupt_vectors(&self) -> u16 {
        self.drive.interrupt_vectors()
    }

    fn interrupt(&self, vector: u16) -> Option<BorrowedFd<'_>> {
        self.drive.interrupt(vector)
    }

    fn arm_interrupt(&self, vector: u16, armed: bool) -> io::Result<()> {
        self.drive.arm_interrupt(vector, armed)
    }

    fn clear_interrupt(&self, vector: u16) {
        self.drive.clear_interrupt(vector);
    }

    fn removal_requested(&self) -> bool {
        self.drive.removal_requested()
    }

    fn describe(&self) -> String {
        self.drive.describe()
    }
}
