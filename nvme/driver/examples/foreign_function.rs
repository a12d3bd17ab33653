//! A function that is no drive uses the memory of a drive: run in the lab by
//! deploy/interop/drive-foreign.sh. **Overwrites blocks of the drive's namespace 1.**
//!
//!     foreign_function DRIVE FUNCTION
//!
//! FUNCTION is QEMU's `edu` device, which has a buffer of a page and a DMA engine behind the IOMMU. Both
//! are in one container. It reads from the drive's controller memory buffer what the drive wrote there,
//! and writes there what the drive reads. Then the mapping ends in each of its ways: the drive is
//! released while the function has a request in flight, which the drive waits for; with a request that
//! never completes; and by a reset and a close of the drive's function. After each, the same accesses
//! have to fail. Prints a line `denied: read|write ADDRESS` for each of them, so that the faults that the
//! IOMMU reports can be compared.
//!
//! Registers of `edu`: QEMU, docs/specs/edu.rst.

#![forbid(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use block::{CompletionBatch, DeviceQueue, Operation, QueueOptions, Request};
use hugemem::{Arena, ArenaConfig, Data, DeviceLease, DeviceMemory, DmaBuffer, Lease, PagePolicy};
use nvme_driver::{BringUp, BringUpState, Drive, DriveOptions, DriveOwner, VfioBacking};
use reactors::{Clock, Poller, StopState, TscClock};
use vfio::{Container, Device, PciAddress, System};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const PAGE_BYTES: usize = 4096;
/// Generous, because the guest is emulated.
const PATIENCE: Duration = Duration::from_secs(20);

/// CMBMSC of a drive, and its bit that enables the buffer (Base 2.1 §3.1.4.16).
const CMBMSC: usize = 0x50;
const CMBMSC_CRE: u64 = 1;
/// CMBLOC of a drive, and the bits that name its BAR (Base 2.1 §3.1.4.11).
const CMBLOC: usize = 0x38;
const CMBLOC_BIR: u32 = 7;
/// Where in the buffer a page is that no submission queue has.
const PLACE: usize = 1 << 20;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [drive, function] = &arguments[..] else {
        eprintln!("usage: foreign_function DRIVE FUNCTION");
        return ExitCode::from(2);
    };
    match run(drive, function) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(drive: &str, function: &str) -> Outcome {
    let (drive, function): (PciAddress, PciAddress) = (drive.parse()?, function.parse()?);
    let arena = Arena::new(ArenaConfig {
        bytes: 32 << 20,
        pages: PagePolicy::Auto,
        max_transfer: 1 << 20,
    })?;
    let container = Container::open(&System::default(), drive)?;
    container.map_arena(&arena, drive)?;
    let foreign = Foreign::open(&container, function, &arena)?;
    let mut lab = Lab::open(&container, drive, &arena)?;
    let memory = lab.memory()?;
    println!(
        "{} slices of {} bytes at {:#x} in {}",
        memory.counters().slices,
        memory.slice_bytes(),
        memory.address(),
        lab.drive.model()
    );
    if !memory.is_shared_with(foreign.device.address_space()) {
        return Err(format!("the memory is not shared: {:?}", memory.sharing()).into());
    }
    drop(memory);
    reads_what_the_drive_wrote(&mut lab, &foreign)?;
    writes_what_the_drive_reads(&mut lab, &foreign)?;
    is_waited_for(&mut lab, &foreign)?;
    is_waited_for_at_most_until_a_deadline(&mut lab, &foreign)?;
    lab.shut_down()?;
    access_ends_with_a_reset_and_a_close(&container, drive, &foreign)?;
    println!("passed");
    Ok(())
}

/// A page of which no byte is 0 or equals that of a page with another seed.
fn page(seed: u8) -> Vec<u8> {
    let word = |at: usize| (at as u8).wrapping_mul(29) & 0x1f | seed << 5;
    (0..PAGE_BYTES).map(word).collect()
}

/// How many bytes are at their place of a page with that seed.
fn bytes_of(found: &[u8], seed: u8) -> usize {
    let wanted = page(seed);
    found.iter().zip(&wanted).filter(|(a, b)| a == b).count()
}

fn expect_page(found: &[u8], seed: u8, what: &str) -> Outcome {
    match bytes_of(found, seed) {
        PAGE_BYTES => Ok(()),
        count => Err(format!("{what}: {count} of {PAGE_BYTES} bytes are right").into()),
    }
}

/// The `edu` device, and a page of the arena for its buffer.
struct Foreign {
    device: Device,
    page: DmaBuffer,
    page_address: u64,
}

impl Foreign {
    /// Identification and liveness check.
    const IDENTIFICATION: usize = 0x00;
    const LIVENESS: usize = 0x04;
    /// Source, destination and length of a transfer, and its command.
    const SOURCE: usize = 0x80;
    const DESTINATION: usize = 0x88;
    const COUNT: usize = 0x90;
    const COMMAND: usize = 0x98;
    /// Bits of the command: a transfer is in progress; out of the buffer.
    const RUNS: u64 = 1;
    const OUT: u64 = 2;
    /// The buffer's address in the device.
    const BUFFER: u64 = 0x4_0000;

    fn open(container: &Arc<Container>, address: PciAddress, arena: &Arc<Arena>) -> Outcome<Self> {
        let device = container.open_device(address, 0)?;
        let registers = device.registers();
        registers.write_u32(Self::LIVENESS, 0x1234_5678);
        let found = (
            registers.read_u32(Self::IDENTIFICATION) & 0xff,
            registers.read_u32(Self::LIVENESS),
        );
        if found != (0xed, !0x1234_5678) {
            return Err(format!("{address} is no edu device: {found:x?}").into());
        }
        device.set_bus_master(true)?;
        let page = arena.dma_buffer(PAGE_BYTES).ok_or("the arena is full")?;
        let arena_address = container.arena_address().ok_or("no arena")?;
        let page_address = arena_address + page.region_offset() as u64;
        Ok(Self {
            device,
            page,
            page_address,
        })
    }

    fn begin(&self, source: u64, destination: u64, command: u64) {
        let registers = self.device.registers();
        registers.write_u64(Self::SOURCE, source);
        registers.write_u64(Self::DESTINATION, destination);
        registers.write_u64(Self::COUNT, PAGE_BYTES as u64);
        registers.write_u64(Self::COMMAND, command | Self::RUNS);
    }

    fn runs(&self) -> bool {
        self.device.registers().read_u64(Self::COMMAND) & Self::RUNS != 0
    }

    fn finish(&self) -> Outcome {
        let start = Instant::now();
        while self.runs() {
            if start.elapsed() > PATIENCE {
                return Err("the transfer does not end".into());
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn begin_read(&self, address: u64) {
        self.begin(address, Self::BUFFER, 0);
    }

    /// Moves a page from a bus address into the buffer.
    fn read(&self, address: u64) -> Outcome {
        self.begin_read(address);
        self.finish()
    }

    /// Moves a page from the buffer to a bus address.
    fn write(&self, address: u64) -> Outcome {
        self.begin(Self::BUFFER, address, Self::OUT);
        self.finish()
    }

    /// Fills the buffer.
    fn fill(&self, seed: u8) -> Outcome {
        self.page.write(0, &page(seed));
        self.read(self.page_address)
    }

    /// What the buffer has.
    fn content(&self) -> Outcome<Vec<u8>> {
        self.page.zero();
        self.write(self.page_address)?;
        let mut found = vec![0; PAGE_BYTES];
        self.page.read(0, &mut found);
        Ok(found)
    }

    /// Reads from an address that is not mapped, behind which a page with this seed was, and writes
    /// `marker` there.
    fn expect_denied(&self, address: u64, seed: u8, marker: u8) -> Outcome {
        self.fill(marker)?;
        self.read(address)?;
        println!("denied: read {address:#x}");
        let bytes = bytes_of(&self.content()?, seed);
        if bytes > 0 {
            return Err(format!("{bytes} bytes came from {address:#x}").into());
        }
        self.fill(marker)?;
        self.write(address)?;
        println!("denied: write {address:#x}");
        Ok(())
    }
}

/// A drive with its memory, and a queue to its namespace 1.
struct Lab {
    container: Arc<Container>,
    address: PciAddress,
    arena: Arc<Arena>,
    clock: TscClock,
    drive: Arc<Drive>,
    owner: DriveOwner,
    queue: Box<dyn DeviceQueue>,
    blocks: u32,
}

impl Lab {
    fn open(container: &Arc<Container>, address: PciAddress, arena: &Arc<Arena>) -> Outcome<Self> {
        let clock = TscClock::new();
        let backing = VfioBacking::open(container, address, arena, 1)?;
        let options = DriveOptions::new("drive");
        let mut bring_up = BringUp::new(Arc::new(backing), arena, options)?;
        let (drive, owner) = loop {
            match bring_up.poll(clock.now()) {
                BringUpState::Ready(ready) => break ready,
                BringUpState::Failed(error) => return Err(error.into()),
                BringUpState::Pending => std::thread::yield_now(),
            }
        };
        let device = drive.device(1, "ns", [0; 16])?;
        let blocks = PAGE_BYTES as u32 / device.geometry().block_size;
        let queue = device.open_queue(QueueOptions::new(0, 8, arena.pool(0)))?;
        Ok(Self {
            container: Arc::clone(container),
            address,
            arena: Arc::clone(arena),
            clock,
            drive,
            owner,
            queue,
            blocks,
        })
    }

    /// The memory that the drive has now.
    fn memory(&self) -> Outcome<Arc<DeviceMemory>> {
        let memory = self.queue.device_memory();
        Ok(memory.ok_or("the drive has no memory for data")?)
    }

    fn lease(&self) -> Outcome<DeviceLease> {
        Ok(self.memory()?.take().ok_or("no slice is free")?)
    }

    /// One turn of a reactor without a request.
    fn turn(&mut self) {
        self.owner.poll(self.clock.now());
        self.queue.poll(&mut CompletionBatch::new());
    }

    /// Takes turns until something is so.
    fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> Outcome<Duration> {
        let start = Instant::now();
        while !is_so(self) {
            if start.elapsed() > PATIENCE {
                return Err(format!("not within {PATIENCE:?}: {what}").into());
            }
            self.turn();
        }
        Ok(start.elapsed())
    }

    fn request(&self, operation: Operation, page: u64, data: Option<Lease>) -> Request {
        Request {
            tag: page,
            operation,
            lba: page * u64::from(self.blocks),
            blocks: self.blocks,
            data,
        }
    }

    fn complete(&mut self) -> Outcome<Option<Data>> {
        self.queue.flush();
        let mut batch = CompletionBatch::new();
        while self.queue.poll(&mut batch) == 0 {
            self.owner.poll(self.clock.now());
        }
        let completion = batch.remove(0);
        completion.result?;
        Ok(completion.data)
    }

    /// Moves a page of the namespace through the arena.
    fn through_arena(
        &mut self,
        operation: Operation,
        page: u64,
        seed: Option<u8>,
    ) -> Outcome<Data> {
        let mut lease = self.arena.pool(0).take(PAGE_BYTES).ok_or("no lease")?;
        if let Some(seed) = seed {
            lease.copy_from_slice(&self::page(seed));
        }
        let request = self.request(operation, page, Some(lease));
        let refused = self.queue.submit(request);
        refused.map_err(|refusal| format!("{refusal:?}"))?;
        Ok(self.complete()?.ok_or("no data")?)
    }

    /// Moves a page between the namespace and the drive's memory.
    fn in_memory(&mut self, operation: Operation, page: u64, lease: &mut DeviceLease) -> Outcome {
        let request = self.request(operation, page, None);
        let refused = self.queue.submit_in_device(request, lease, 0);
        refused.map_err(|refusal| format!("{refusal:?}"))?;
        self.complete()?;
        lease.complete();
        Ok(())
    }

    /// Lets the drive write a page with this seed into its memory.
    fn filled_lease(&mut self, seed: u8) -> Outcome<DeviceLease> {
        let page = u64::from(seed);
        self.through_arena(Operation::Write { fua: false }, page, Some(seed))?;
        let mut lease = self.lease()?;
        self.in_memory(Operation::Read, page, &mut lease)?;
        Ok(lease)
    }

    /// Opens the released drive again.
    fn reattach(&mut self) -> Outcome {
        let backing = VfioBacking::open(&self.container, self.address, &self.arena, 1)?;
        self.drive.reattach(Arc::new(backing))?;
        self.until("ready again", |lab| lab.drive.is_ready_everywhere())?;
        Ok(())
    }

    fn shut_down(mut self) -> Outcome {
        let start = Instant::now();
        while self.owner.stop(self.clock.now()) != StopState::Stopped {
            if start.elapsed() > PATIENCE {
                return Err("the drive does not stop".into());
            }
            self.turn();
        }
        Ok(())
    }
}

fn reads_what_the_drive_wrote(lab: &mut Lab, foreign: &Foreign) -> Outcome {
    let mut lease = lab.filled_lease(1)?;
    let address = lease.begin_by_neighbour(0).ok_or("the memory has ended")?;
    foreign.fill(7)?;
    foreign.read(address)?;
    lease.complete();
    expect_page(&foreign.content()?, 1, "what the drive wrote")?;
    println!("it reads at {address:#x} what the drive wrote");
    Ok(())
}

fn writes_what_the_drive_reads(lab: &mut Lab, foreign: &Foreign) -> Outcome {
    let mut lease = lab.lease()?;
    foreign.fill(2)?;
    let address = lease.begin_by_neighbour(0).ok_or("the memory has ended")?;
    foreign.write(address)?;
    lease.complete();
    lab.in_memory(Operation::Write { fua: true }, 9, &mut lease)?;
    let found = lab.through_arena(Operation::Read, 9, None)?;
    expect_page(&found, 2, "what the drive reads")?;
    println!("the drive reads what it wrote at {address:#x}");
    Ok(())
}

/// The mapping ends when the request of the neighbour has completed, and not before.
fn is_waited_for(lab: &mut Lab, foreign: &Foreign) -> Outcome {
    let mut lease = lab.filled_lease(1)?;
    let mut late = lab.lease()?;
    let address = lease.begin_by_neighbour(0).ok_or("the memory has ended")?;
    foreign.fill(7)?;
    lab.drive.release();
    lab.until("the memory ends", |_| !lease.is_valid())?;
    foreign.begin_read(address);
    lab.until("the transfer ends", |_| !foreign.runs())?;
    expect_page(&foreign.content()?, 1, "a read while the drive waits")?;
    if lab.drive.wants_reopen() {
        return Err("the drive was released with a request in flight".into());
    }
    if late.begin_by_neighbour(0).is_some() {
        return Err("a request began after the end of the memory".into());
    }
    lease.complete();
    lab.until("released", |lab| lab.drive.wants_reopen())?;
    foreign.expect_denied(address, 1, 7)?;
    lab.reattach()?;
    println!("the drive waits for its request, and then ends the mapping");
    Ok(())
}

/// A request that never completes delays the end by a second; its addresses are not used again.
fn is_waited_for_at_most_until_a_deadline(lab: &mut Lab, foreign: &Foreign) -> Outcome {
    let mut lease = lab.filled_lease(1)?;
    let old = lease.begin_by_neighbour(0).ok_or("the memory has ended")?;
    lab.drive.release();
    let waited = lab.until("released", |lab| lab.drive.wants_reopen())?;
    foreign.expect_denied(old, 1, 7)?;
    lab.reattach()?;
    foreign.expect_denied(old, 1, 7)?;
    // The slice that the lost request has: its memory is another one now.
    let mut lease = lab.lease()?;
    let address = lease.begin_by_neighbour(0).ok_or("the memory has ended")?;
    if address == old {
        return Err(format!("{old:#x} is used again").into());
    }
    foreign.read(address)?;
    let marked = bytes_of(&foreign.content()?, 7);
    if marked > 0 {
        return Err(format!("{marked} bytes of a denied write are there").into());
    }
    lease.complete();
    let mut lease = lab.filled_lease(3)?;
    let address = lease.begin_by_neighbour(0).ok_or("the memory has ended")?;
    foreign.read(address)?;
    lease.complete();
    expect_page(&foreign.content()?, 3, "the new addresses")?;
    println!("after {waited:?} the drive waits no longer, and has new addresses: {address:#x}");
    Ok(())
}

fn access_ends_with_a_reset_and_a_close(
    container: &Arc<Container>,
    drive: PciAddress,
    foreign: &Foreign,
) -> Outcome {
    for ending in ["reset", "close"] {
        let device = container.open_device(drive, 0)?;
        device.registers().write_u64(CMBMSC, CMBMSC_CRE);
        let bar = (device.registers().read_u32(CMBLOC) & CMBLOC_BIR) as u8;
        let memory = device.bar(bar)?;
        let len = memory.len() as u64;
        let first = device.reserve_addresses(len, None).ok_or("no addresses")?;
        device.map_for_neighbours(bar, (0, len), first)?;
        let address = first + PLACE as u64;
        foreign.fill(4)?;
        foreign.write(address)?;
        let words = page(4);
        for (at, word) in words.chunks(8).enumerate() {
            let found = memory.read_u64(PLACE + at * 8).to_le_bytes();
            if found != word {
                return Err(format!("word {at} is {found:x?} and not {word:x?}").into());
            }
        }
        drop(memory);
        let device = match ending {
            "reset" => {
                device.reset()?;
                Some(device)
            }
            _ => {
                drop(device);
                None
            }
        };
        foreign.expect_denied(address, 4, 7)?;
        drop(device);
        println!("its access ends with a {ending} of the drive's function");
    }
    Ok(())
}
