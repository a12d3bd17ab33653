//! Runs the suite for the devices of this crate.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use hugemem::PagePolicy;
use reactors::{Clock, Nanos};
use tempfile::TempDir;

use super::*;
use crate::{DelayDevice, FaultDevice, FaultPlan, Latency};
use block::{DirectIo, FileDevice, FileOptions, MemoryDevice, MemoryOptions};

const BLOCKS: u64 = 1000;

fn options(block_size: u32, read_only: bool) -> MemoryOptions {
    MemoryOptions {
        name: "ram".into(),
        uuid: [7; 16],
        size_bytes: BLOCKS * u64::from(block_size),
        block_size,
        pages: PagePolicy::Ordinary,
        read_only,
    }
}

fn memory(block_size: u32, read_only: bool) -> MemoryDevice {
    MemoryDevice::new(options(block_size, read_only)).unwrap()
}

/// A directory on the file system of the build.
fn disk() -> PathBuf {
    std::env::current_exe()
        .unwrap()
        .parent()
        .unwrap()
        .to_path_buf()
}

fn file(folder: &Path, block_size: u32, direct: DirectIo, fixed_buffers: bool) -> Subject {
    let folder = TempDir::new_in(folder).unwrap();
    let arena = arena();
    let options = FileOptions {
        size_bytes: Some(BLOCKS * u64::from(block_size)),
        block_size,
        direct,
        arena: fixed_buffers.then(|| Arc::clone(&arena)),
        ..FileOptions::new("file", folder.path().join("image"))
    };
    let device = FileDevice::open(options).unwrap();
    println!(
        "direct: {}, notices: {:?}",
        device.is_direct(),
        device.notices()
    );
    assert!(direct != DirectIo::Never || !device.is_direct());
    Subject {
        keep: Box::new(folder),
        ..Subject::new(device, arena)
    }
}

#[test]
fn memory_device_with_both_block_sizes_conforms() {
    for block_size in [512, 4096] {
        run(|| Subject::new(memory(block_size, false), arena()));
    }
}

#[test]
fn read_only_memory_device_conforms() {
    run_read_only(|| Subject::new(memory(4096, true), arena()));
}

#[test]
fn disk_file_with_4096_byte_blocks_conforms() {
    run(|| file(&disk(), 4096, DirectIo::Auto, true));
}

#[test]
fn disk_file_with_512_byte_blocks_conforms() {
    run(|| file(&disk(), 512, DirectIo::Auto, true));
}

#[test]
fn buffered_disk_file_without_fixed_buffers_conforms() {
    run(|| file(&disk(), 512, DirectIo::Never, false));
}

#[test]
fn tmpfs_file_with_both_block_sizes_conforms() {
    for block_size in [512, 4096] {
        run(|| file(Path::new("/dev/shm"), block_size, DirectIo::Auto, true));
    }
}

#[test]
fn read_only_file_conforms() {
    run_read_only(|| {
        let folder = TempDir::new_in(disk()).unwrap();
        let path = folder.path().join("image");
        std::fs::write(&path, vec![5; BLOCKS as usize * 4096]).unwrap();
        let options = FileOptions {
            read_only: true,
            ..FileOptions::new("file", path)
        };
        let device = FileDevice::open(options).unwrap();
        Subject {
            keep: Box::new(folder),
            ..Subject::new(device, arena())
        }
    });
}

#[test]
fn fault_device_without_faults_conforms() {
    run(|| {
        let device = FaultDevice::new(Arc::new(memory(4096, false)), FaultPlan::default());
        Subject::new(device, arena())
    });
    run(|| {
        let subject = file(&disk(), 4096, DirectIo::Auto, true);
        let device = FaultDevice::new(subject.device, FaultPlan::default());
        Subject {
            device: Arc::new(device),
            ..subject
        }
    });
}

thread_local! {
    static NOW: Rc<Cell<Nanos>> = Rc::default();
}

/// A clock that this thread's steps advance.
struct Stepped(Rc<Cell<Nanos>>);

impl Clock for Stepped {
    fn now(&self) -> Nanos {
        self.0.get()
    }
}

fn delayed(subject: Subject, latency: Latency) -> Subject {
    let device = DelayDevice::new(subject.device, latency, 4, || Stepped(NOW.with(Rc::clone)));
    let step = || NOW.with(|now| now.set(now.get() + Nanos::from_micros(10)));
    Subject {
        device: Arc::new(device),
        step: Box::new(step),
        ..subject
    }
}

#[test]
fn delay_device_conforms() {
    let latencies = [
        Latency::Fixed(Nanos::ZERO),
        Latency::Fixed(Nanos::from_micros(35)),
        Latency::Range {
            min: Nanos::ZERO,
            max: Nanos::from_micros(100),
        },
    ];
    for latency in latencies {
        run(|| delayed(Subject::new(memory(512, false), arena()), latency));
    }
    run(|| delayed(file(&disk(), 4096, DirectIo::Auto, true), latencies[2]));
}

#[test]
fn grown_memory_device_conforms() {
    run(|| {
        let device = memory(512, false);
        for blocks in [BLOCKS + 1, BLOCKS + 117, 5 * BLOCKS] {
            let missing = device.allocate_growth(blocks * 512).expect("memory");
            device.grow(missing.expect("it grows"));
        }
        Subject::new(device, arena())
    });
}

/// Writes of a large device bypass the processor's caches.
#[test]
fn large_memory_device_conforms() {
    run(|| {
        let options = MemoryOptions {
            size_bytes: 32 << 20,
            ..options(512, false)
        };
        Subject::new(MemoryDevice::new(options).unwrap(), arena())
    });
}
