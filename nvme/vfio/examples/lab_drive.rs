//! Tests the crate on drives that are bound to `vfio-pci`: run in the lab by
//! deploy/interop/vfio.sh, or by hand on a drive that may be reset.
//!
//!     lab_drive check ADDRESS…     all checks, on all drives in one container
//!     lab_drive hold ADDRESS       keep a drive open until the system requests it back
//!     lab_drive open ADDRESS BYTES open a drive with an arena of BYTES bytes
//!
//! Register offsets and commands: NVM Express Base 2.1 §3.1.4 and §5.1.13.

use std::error::Error;
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hugemem::{Arena, ArenaConfig, DmaBuffer, PagePolicy};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vfio::{Container, Device, PciAddress, System};

type Outcome = Result<(), Box<dyn Error>>;

const CAP: usize = 0x00;
const VS: usize = 0x08;
const CC: usize = 0x14;
const CSTS: usize = 0x1c;
const AQA: usize = 0x24;
const ASQ: usize = 0x28;
const ACQ: usize = 0x30;
const CMBLOC: usize = 0x38;
const CMBMSC: usize = 0x50;
const DOORBELLS: usize = 0x1000;
/// Entries of each admin queue.
const DEPTH: usize = 8;
/// Generous, because the guest is emulated.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab_drive: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["check", ref addresses @ ..] if !addresses.is_empty() => check(addresses),
        ["hold", address] => hold(address.parse()?),
        ["open", address, bytes] => open(address.parse()?, bytes.parse()?),
        _ => Err("usage: lab_drive check|hold|open ADDRESS…".into()),
    }
}

fn arena(bytes: usize, pages: PagePolicy) -> Result<Arc<Arena>, Box<dyn Error>> {
    Ok(Arena::new(ArenaConfig {
        bytes,
        pages,
        max_transfer: 1 << 20,
    })?)
}

fn check(addresses: &[&str]) -> Outcome {
    let addresses: Vec<PciAddress> = addresses
        .iter()
        .map(|text| text.parse())
        .collect::<Result<_, _>>()?;
    let arena = arena(32 << 20, PagePolicy::HugeOnly)?;
    let container = Container::open(&System::default(), addresses[0])?;
    assert_eq!(container.arena_address(), None, "mapped for no drive");
    container.map_arena(&arena, addresses[0])?;
    let mut mapped_at = None;
    // Twice: before the second round the container has lost its groups, and the arena is mapped
    // again.
    for _ in 0..2 {
        let mut devices = Vec::new();
        for address in &addresses {
            let device = container.open_device(*address, 3)?;
            let at = container.arena_address().ok_or("no arena")?;
            assert_eq!(*mapped_at.get_or_insert(at), at, "the arena has moved");
            devices.push(device);
        }
        let again = container.open_device(addresses[0], 0);
        assert!(
            matches!(again, Err(vfio::Error::AlreadyOpen { .. })),
            "{again:?}"
        );
        for device in &devices {
            examine(device, &arena, mapped_at.unwrap_or_default())?;
        }
    }
    println!("all drives: passed");
    Ok(())
}

fn examine(device: &Device, arena: &Arc<Arena>, arena_address: u64) -> Outcome {
    let address = device.address();
    let registers = device.registers();
    let (cap, version) = (registers.read_u64(CAP), registers.read_u32(VS));
    println!(
        "{address}: CAP {cap:016x} VS {version:08x} of {} bytes",
        registers.len()
    );
    assert!(version != u32::MAX && version >> 16 >= 1, "no version");
    assert_eq!(
        registers.read_u32(CAP),
        cap as u32,
        "halves and whole differ"
    );
    assert_eq!(device.interrupt_vectors(), 3);
    assert!(device.interrupt(3).is_none() && device.arm_interrupt(3, true).is_err());
    assert!(!device.removal_requested());
    // Off by default: a controller that is enabled now cannot access memory.
    device.set_bus_master(true)?;
    let mut queues = Queues::new(arena, arena_address)?;
    queues.enable(device)?;
    let serial = queues.identify(device)?;
    println!("{address}: identified by polling, serial {serial}");
    assert!(
        !is_readable(device.interrupt(0).ok_or("no vector")?)?,
        "fired while disconnected"
    );

    device.arm_interrupt(0, true)?;
    queues.identify(device)?;
    let event = device.interrupt(0).ok_or("no vector")?;
    assert!(is_readable(event)?, "vector 0 did not fire");
    device.clear_interrupt(0);
    device.arm_interrupt(0, false)?;
    queues.identify(device)?;
    println!("{address}: vector 0 fired when connected");

    device.set_bus_master(false)?;
    let stopped = queues.submit_identify(device);
    assert!(
        queues
            .poll_for(stopped, Duration::from_millis(300))
            .is_none(),
        "DMA while off"
    );
    println!("{address}: no DMA without bus mastering");
    device.reset()?;
    assert_eq!(registers.read_u32(CSTS) & 1, 0, "ready after a reset");
    assert_eq!(registers.read_u32(VS), version);
    device.set_bus_master(true)?;
    let mut queues = Queues::new(arena, arena_address)?;
    queues.enable(device)?;
    device.arm_interrupt(0, true)?;
    queues.identify(device)?;
    let event = device.interrupt(0).ok_or("no vector")?;
    assert!(is_readable(event)?, "vector 0 did not fire after the reset");
    println!("{address}: reset, and back with its interrupts");
    controller_memory(device, cap)
}

/// Writes to the controller memory buffer and reads back, if the drive has one.
fn controller_memory(device: &Device, cap: u64) -> Outcome {
    if cap >> 57 & 1 == 0 {
        return Ok(());
    }
    let registers = device.registers();
    registers.write_u64(CMBMSC, 1);
    let index = (registers.read_u32(CMBLOC) & 7) as u8;
    let bar = device.bar(index)?;
    let at = device.bar_bus_address(index)?;
    bar.write_u64(4096, 0x1122_3344_5566_7788);
    assert_eq!(bar.read_u64(4096), 0x1122_3344_5566_7788);
    registers.write_u64(CMBMSC, 0);
    share(device, index, bar.len() as u64)?;
    println!(
        "{}: controller memory of {} bytes at {at:#x}",
        device.address(),
        bar.len()
    );
    Ok(())
}

/// Maps a BAR for the other drives, as far as it may be.
fn share(device: &Device, bar: u8, len: u64) -> Outcome {
    let kind = |result: std::io::Result<()>| result.map_err(|error| error.kind());
    let refused = |kind: ErrorKind| Err::<(), _>(kind);
    let map = |part: (u64, u64), address| kind(device.map_for_neighbours(bar, part, address));
    assert_eq!(
        map((0, len), 1 << 38),
        refused(ErrorKind::InvalidInput),
        "not reserved"
    );
    let first = device.reserve_addresses(len, None).ok_or("no addresses")?;
    assert_eq!(device.reserve_addresses(len, None), Some(first));
    for (part, address) in [
        ((0, 0), first),
        ((0, len + 4096), first),
        ((0, len), first + 4096),
        ((0, len), first - 4096),
        ((4096, len), first),
        ((u64::MAX, 4096), first),
    ] {
        let result = map(part, address);
        assert_eq!(
            result,
            refused(ErrorKind::InvalidInput),
            "{part:?} {address:#x}"
        );
    }
    assert!(device.map_for_neighbours(9, (0, 4096), first).is_err());
    assert_eq!(map((0, len), first), Ok(()));
    assert_eq!(map((0, len), first), refused(ErrorKind::AlreadyExists));
    assert_eq!(device.reserve_addresses(4096, None), None, "it is mapped");
    device.unmap_for_neighbours(true);
    assert_eq!(device.reserve_addresses(len, None), Some(first), "kept");
    let start = Instant::now();
    assert_eq!(map((0, len), first), Ok(()));
    let mapped = start.elapsed();
    device.unmap_for_neighbours(false);
    println!(
        "{}: {len} bytes mapped in {mapped:?}, and unmapped in {:?}",
        device.address(),
        start.elapsed().saturating_sub(mapped)
    );
    // A lost request may still use the addresses.
    let other = device.reserve_addresses(len, None).ok_or("no addresses")?;
    assert_ne!(other, first);
    assert_eq!(map((0, len), other), Ok(()));
    device.reset()?;
    let last = device.reserve_addresses(len, None).ok_or("no addresses")?;
    assert!(last != other && last != first);
    assert_eq!(map((0, len), last), Ok(()), "the reset has unmapped it");
    Ok(())
}

fn is_readable(event: BorrowedFd<'_>) -> Result<bool, Box<dyn Error>> {
    let mut events = [PollFd::new(&event, PollFlags::IN)];
    let second = Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    Ok(poll(&mut events, Some(&second))? == 1)
}

/// An admin queue pair and a page of data, in the arena.
struct Queues {
    submissions: DmaBuffer,
    completions: DmaBuffer,
    page: DmaBuffer,
    arena_address: u64,
    submitted: usize,
    completed: usize,
}

impl Queues {
    fn new(arena: &Arc<Arena>, arena_address: u64) -> Result<Queues, Box<dyn Error>> {
        let buffer = || arena.dma_buffer(4096).ok_or("the arena is empty");
        Ok(Queues {
            submissions: buffer()?,
            completions: buffer()?,
            page: buffer()?,
            arena_address,
            submitted: 0,
            completed: 0,
        })
    }

    fn address(&self, buffer: &DmaBuffer) -> u64 {
        self.arena_address + buffer.region_offset() as u64
    }

    fn enable(&mut self, device: &Device) -> Outcome {
        let registers = device.registers();
        registers.write_u32(CC, 0);
        wait_ready(device, 0)?;
        registers.write_u32(AQA, (DEPTH as u32 - 1) << 16 | (DEPTH as u32 - 1));
        registers.write_u64(ASQ, self.address(&self.submissions));
        registers.write_u64(ACQ, self.address(&self.completions));
        // Completion entries of 16 bytes, submission entries of 64, enable.
        registers.write_u32(CC, 4 << 20 | 6 << 16 | 1);
        wait_ready(device, 1)
    }

    /// Submits an Identify Controller. Returns its number.
    fn submit_identify(&mut self, device: &Device) -> usize {
        let this = self.submitted;
        let entry = this % DEPTH * 64;
        self.page.zero();
        self.submissions.write(entry, &[0; 64]);
        let order = Ordering::Relaxed;
        self.submissions
            .store_u32(entry, 0x06 | (this as u32) << 16, order);
        self.submissions
            .store_u64(entry + 24, self.address(&self.page), order);
        self.submissions.store_u32(entry + 40, 1, order);
        self.submitted += 1;
        let tail = (self.submitted % DEPTH) as u32;
        device.registers().write_u32(DOORBELLS, tail);
        this
    }

    /// Waits for a command's completion. Returns its status, or `None` after `patience`.
    fn poll_for(&mut self, which: usize, patience: Duration) -> Option<u16> {
        let entry = which % DEPTH * 16;
        // The phase changes each time the queue wraps.
        let phase = u32::from((which / DEPTH).is_multiple_of(2));
        let start = Instant::now();
        while start.elapsed() < patience {
            let last = self.completions.load_u32(entry + 12, Ordering::Acquire);
            if last >> 16 & 1 == phase {
                assert_eq!(last & 0xffff, which as u32, "another command's completion");
                self.completed += 1;
                return Some((last >> 17) as u16);
            }
            std::hint::spin_loop();
        }
        None
    }

    fn identify(&mut self, device: &Device) -> Result<String, Box<dyn Error>> {
        let this = self.submit_identify(device);
        let status = self.poll_for(this, PATIENCE).ok_or("no completion")?;
        assert_eq!(status, 0, "Identify failed");
        let head = (self.completed % DEPTH) as u32;
        device.registers().write_u32(DOORBELLS + 4, head);
        let mut serial = [0; 20];
        self.page.read(4, &mut serial);
        Ok(String::from_utf8_lossy(&serial).trim().to_owned())
    }
}

fn wait_ready(device: &Device, ready: u32) -> Outcome {
    let start = Instant::now();
    while device.registers().read_u32(CSTS) & 1 != ready {
        if start.elapsed() > PATIENCE {
            return Err("the controller does not become ready".into());
        }
        std::hint::spin_loop();
    }
    Ok(())
}

fn hold(address: PciAddress) -> Outcome {
    let container = Container::open(&System::default(), address)?;
    let device = container.open_device(address, 1)?;
    println!("holding {address}");
    let event = device
        .removal_event()
        .ok_or("the kernel has no such event")?;
    let mut events = [PollFd::new(&event, PollFlags::IN)];
    let minute = Timespec {
        tv_sec: 60,
        tv_nsec: 0,
    };
    if poll(&mut events, Some(&minute))? != 1 {
        return Err("nobody asked for it back".into());
    }
    assert!(
        device.removal_requested() && device.removal_requested(),
        "asked once, asked for good"
    );
    println!("asked for {address}, letting go");
    Ok(())
}

fn open(address: PciAddress, bytes: usize) -> Outcome {
    let system = System::default();
    vfio::diagnose(&system, address, bytes as u64)?;
    let arena = arena(bytes, PagePolicy::Auto)?;
    let container = Container::open(&system, address)?;
    container.map_arena(&arena, address)?;
    let device = container.open_device(address, 1)?;
    let version = device.registers().read_u32(VS);
    println!(
        "opened {address}: VS {version:08x}, arena at {:#x}",
        container.arena_address().unwrap_or(0)
    );
    Ok(())
}
