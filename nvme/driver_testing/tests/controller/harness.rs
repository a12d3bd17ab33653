//! A minimal host: queues in the arena, raw commands, no recovery.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hugemem::{Arena, ArenaConfig, DmaBuffer, PagePolicy};
use nvme_driver::backing::DeviceBacking;
use nvme_driver_testing::{EmulatedController, EmulatedOptions, EmulatorControl};
use nvme_spec::command::AdminOpcode;
use nvme_spec::command::{
    CreateCqControl, CreateIoCq, CreateIoSq, CreateSqControl, DeleteIoQueue, Sqe,
};
use nvme_spec::registers::{Aqa, Cap, Cc, Csts, Register, cq_head_doorbell, sq_tail_doorbell};
use nvme_spec::{Cqe, Status, U16};
use reactors::Nanos;
use zerocopy::{FromZeros, IntoBytes};

pub(crate) const PAGE: usize = 4096;

pub(crate) struct Pair {
    pub(crate) id: u16,
    pub(crate) submission: DmaBuffer,
    pub(crate) completion: DmaBuffer,
    pub(crate) entries: u32,
    pub(crate) completion_entries: u32,
    pub(crate) tail: u32,
    pub(crate) head: u32,
    phase: bool,
}

impl Pair {
    fn new(arena: &Arc<Arena>, id: u16, entries: u32, completion_entries: u32) -> Self {
        let buffer = |bytes: u32| arena.dma_buffer(bytes as usize).expect("memory");
        Self {
            id,
            submission: buffer(entries * 64),
            completion: buffer(completion_entries * 16),
            entries,
            completion_entries,
            tail: 0,
            head: 0,
            phase: true,
        }
    }

    /// Writes a submission queue entry, without the doorbell.
    pub(crate) fn push(&mut self, sqe: &Sqe) {
        self.submission
            .write(self.tail as usize * 64, sqe.as_bytes());
        self.tail = (self.tail + 1) % self.entries;
    }

    /// Takes the next completion if its phase tag is current, and advances the head.
    pub(crate) fn pop(&mut self) -> Option<Cqe> {
        let offset = self.head as usize * 16;
        let last = self.completion.load_u32(offset + 12, Ordering::Acquire);
        if (last >> 16) & 1 != u32::from(self.phase) {
            return None;
        }
        let mut cqe = Cqe::new_zeroed();
        self.completion.read(offset, cqe.as_mut_bytes());
        self.head = (self.head + 1) % self.completion_entries;
        self.phase ^= self.head == 0;
        Some(cqe)
    }
}

pub(crate) struct Host {
    pub(crate) arena: Arc<Arena>,
    pub(crate) drive: EmulatedController,
    pub(crate) control: EmulatorControl,
    pub(crate) admin: Pair,
    pub(crate) now: Nanos,
    cap: Cap,
    next_cid: u16,
}

pub(crate) fn arena() -> Arc<Arena> {
    let config = ArenaConfig {
        bytes: 16 << 20,
        pages: PagePolicy::Ordinary,
        max_transfer: 1 << 20,
    };
    Arena::new(config).expect("16 MiB")
}

impl Host {
    /// A drive after power on.
    pub(crate) fn cold(options: EmulatedOptions) -> Self {
        Self::cold_on(arena(), options)
    }

    /// A drive after power on, with an existing arena.
    pub(crate) fn cold_on(arena: Arc<Arena>, options: EmulatedOptions) -> Self {
        let drive = EmulatedController::new(arena.region(), options).expect("a drive");
        let control = drive.control();
        let admin = Pair::new(&arena, 0, 8, 8);
        let cap = Cap::from_bits(drive.read_u64(0));
        Self {
            arena,
            drive,
            control,
            admin,
            now: Nanos::ZERO,
            cap,
            next_cid: 100,
        }
    }

    /// A drive that is ready for admin commands.
    pub(crate) fn new(options: EmulatedOptions) -> Self {
        let mut host = Self::cold(options);
        host.enable();
        assert!(host.csts().rdy(), "not ready");
        host
    }

    pub(crate) fn tick(&mut self, span: Nanos) {
        self.now += span;
        self.drive.tick(self.now);
    }

    pub(crate) fn cap(&self) -> Cap {
        self.cap
    }

    pub(crate) fn get(&self, register: Register) -> u32 {
        self.drive.read_u32(register.0 as usize)
    }

    pub(crate) fn set(&self, register: Register, value: u32) {
        self.drive.write_u32(register.0 as usize, value);
    }

    pub(crate) fn csts(&self) -> Csts {
        Csts::from_bits(self.get(Register::CSTS))
    }

    pub(crate) fn describe_admin(&self) {
        let sizes = Aqa::new()
            .with_asqs_z((self.admin.entries - 1) as u16)
            .with_acqs_z((self.admin.completion_entries - 1) as u16);
        self.set(Register::AQA, sizes.into_bits());
        let address = |buffer: &DmaBuffer| self.drive.dma_address(buffer.region_offset());
        self.drive.write_u64(0x28, address(&self.admin.submission));
        self.drive.write_u64(0x30, address(&self.admin.completion));
    }

    pub(crate) fn enable(&mut self) {
        self.drive.set_bus_master(true).expect("a present drive");
        self.admin = Pair::new(&self.arena, 0, 8, 8);
        self.describe_admin();
        self.set(Register::CC, Cc::enabled_nvm().into_bits());
    }

    pub(crate) fn disable(&self) {
        let cc = Cc::from_bits(self.get(Register::CC)).with_en(false);
        self.set(Register::CC, cc.into_bits());
    }

    pub(crate) fn cid(&mut self) -> u16 {
        self.next_cid += 1;
        self.next_cid
    }

    pub(crate) fn address(&self, buffer: &DmaBuffer) -> u64 {
        self.drive.dma_address(buffer.region_offset())
    }

    pub(crate) fn buffer(&self, bytes: usize) -> DmaBuffer {
        self.arena.dma_buffer(bytes).expect("memory")
    }

    pub(crate) fn ring_tail(&self, pair: &Pair) {
        let offset = sq_tail_doorbell(self.cap(), pair.id);
        self.drive.write_u32(offset as usize, pair.tail);
    }

    pub(crate) fn ring_head(&self, pair: &Pair) {
        let offset = cq_head_doorbell(self.cap(), pair.id);
        self.drive.write_u32(offset as usize, pair.head);
    }

    /// Runs a command that completes inside the doorbell write.
    pub(crate) fn run(&mut self, pair: &mut Pair, sqe: Sqe) -> Cqe {
        let cid = self.cid();
        pair.push(&sqe.with_cid(cid));
        self.ring_tail(pair);
        let cqe = pair.pop().expect("an answer at once");
        self.ring_head(pair);
        assert_eq!((cqe.cid.get(), cqe.sqid.get()), (cid, pair.id));
        assert_eq!(u32::from(cqe.sqhd.get()), pair.tail);
        cqe
    }

    pub(crate) fn run_admin(&mut self, sqe: Sqe) -> Cqe {
        let empty = Pair::new(&self.arena, 0, 1, 1);
        let mut admin = std::mem::replace(&mut self.admin, empty);
        let cqe = self.run(&mut admin, sqe);
        self.admin = admin;
        cqe
    }

    pub(crate) fn admin_status(&mut self, sqe: Sqe) -> Status {
        self.run_admin(sqe).status().code()
    }

    pub(crate) fn push_admin(&mut self, sqe: Sqe) -> u16 {
        let cid = self.cid();
        self.admin.push(&sqe.with_cid(cid));
        self.ring_tail(&self.admin);
        cid
    }

    pub(crate) fn pop_admin(&mut self) -> Option<Cqe> {
        let cqe = self.admin.pop()?;
        self.ring_head(&self.admin);
        Some(cqe)
    }

    /// Creates a queue pair; the sizes are in entries.
    pub(crate) fn pair(&mut self, id: u16, entries: u32, completion_entries: u32) -> Pair {
        let pair = Pair::new(&self.arena, id, entries, completion_entries);
        let at = self.address(&pair.completion);
        let status = self.admin_status(create_cq(id, completion_entries, at, Some(id)));
        assert_eq!(status, Status::SUCCESS);
        let at = self.address(&pair.submission);
        let status = self.admin_status(create_sq(id, entries, at, id));
        assert_eq!(status, Status::SUCCESS);
        pair
    }

    /// Runs an I/O command with one buffer described by PRPs, with a list if needed.
    pub(crate) fn run_io(&mut self, pair: &mut Pair, sqe: Sqe, data: &DmaBuffer) -> Status {
        let address = self.address(data);
        let list = self.buffer(PAGE);
        let pages = data.len().div_ceil(PAGE);
        let second = match pages {
            0 | 1 => 0,
            2 => address + PAGE as u64,
            _ => {
                for page in 1..pages {
                    let entry = address + (page * PAGE) as u64;
                    list.store_u64((page - 1) * 8, entry, Ordering::Relaxed);
                }
                self.address(&list)
            }
        };
        self.run(pair, sqe.with_prp(address, second))
            .status()
            .code()
    }

    pub(crate) fn write(&mut self, pair: &mut Pair, lba: u64, byte: u8, fua: bool) {
        let data = self.buffer(PAGE);
        data.write(0, &[byte; PAGE]);
        let status = self.run_io(pair, Sqe::write(1, lba, 0, fua), &data);
        assert_eq!(status, Status::SUCCESS);
    }

    /// Reads a block whose bytes are all equal. Returns its first byte.
    pub(crate) fn read(&mut self, pair: &mut Pair, lba: u64) -> u8 {
        let data = self.buffer(PAGE);
        let status = self.run_io(pair, Sqe::read(1, lba, 0), &data);
        assert_eq!(status, Status::SUCCESS);
        let mut bytes = [0; PAGE];
        data.read(0, &mut bytes);
        assert!(
            bytes.iter().all(|byte| *byte == bytes[0]),
            "torn in a block"
        );
        bytes[0]
    }
}

pub(crate) fn create_cq(id: u16, entries: u32, address: u64, vector: Option<u16>) -> Sqe {
    let mut command = Sqe::new(AdminOpcode::CREATE_IO_CQ.0, 0).create_io_cq();
    command.qid = U16::new(id);
    command.qsize_z = U16::new((entries.wrapping_sub(1)) as u16);
    command.control = CreateCqControl::new()
        .with_pc(true)
        .with_ien(vector.is_some())
        .with_iv(vector.unwrap_or(0));
    with_cq(command, address)
}

pub(crate) fn with_cq(command: CreateIoCq, address: u64) -> Sqe {
    Sqe::new(AdminOpcode::CREATE_IO_CQ.0, 0)
        .with_create_io_cq(command)
        .with_prp(address, 0)
}

pub(crate) fn create_sq(id: u16, entries: u32, address: u64, completion_queue: u16) -> Sqe {
    let mut command: CreateIoSq = Sqe::new(AdminOpcode::CREATE_IO_SQ.0, 0).create_io_sq();
    command.qid = U16::new(id);
    command.qsize_z = U16::new((entries.wrapping_sub(1)) as u16);
    command.control = CreateSqControl::new()
        .with_pc(true)
        .with_cqid(completion_queue);
    Sqe::new(AdminOpcode::CREATE_IO_SQ.0, 0)
        .with_create_io_sq(command)
        .with_prp(address, 0)
}

pub(crate) fn delete(opcode: AdminOpcode, id: u16) -> Sqe {
    let mut command: DeleteIoQueue = Sqe::new(opcode.0, 0).delete_io_queue();
    command.qid = U16::new(id);
    Sqe::new(opcode.0, 0).with_delete_io_queue(command)
}
