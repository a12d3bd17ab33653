//! The target with its TCP transport at one end and a host at the other, connected by the loopback
//! interface, on one thread: every case of size, depth and device.
//!
//! Both alternate: a batch of requests is sent, and the target runs until all are completed, before
//! the next batch is sent. Every run therefore counts the same, unlike a run with two threads.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use block::{Device, DirectIo, FileDevice, FileOptions, NullDevice, NullOptions};
use hugemem::Arena;
use nvme_target::DeviceIndex;

use crate::cost::LoopCounts;
use crate::cost::measure::CostError;
use crate::cost::rig::{BLOCK_BYTES, DEVICE_BYTES, Extent, ram, setup};
use crate::cost::tcp_cases::{Backing, Case};
use crate::cost::tcp_host::Batch;
use crate::cost::tcp_rig::Rig;
use bench::random::Random;

/// Number of warm-up batches.
const WARM_UP_BATCHES: u64 = 8;

/// Callgrind identifies this function by its name and starts counting here.
#[inline(never)]
pub(super) fn counting_begins() {
    std::hint::black_box("begins");
}

/// Callgrind identifies this function by its name and writes its counts here. Its body differs from
/// that of the other function, otherwise the compiler would merge them.
#[inline(never)]
pub(super) fn counting_ends() {
    std::hint::black_box("ends");
}

fn devices(
    arena: &Arc<Arena>,
    folder: &std::path::Path,
) -> Result<Vec<Arc<dyn Device>>, CostError> {
    let path = folder.join("device");
    // Written completely, not sparse, so that all of it is in the page cache.
    let filled = File::create(&path).and_then(|mut file| {
        let block = vec![0x5a; 1 << 20];
        (0..DEVICE_BYTES / block.len() as u64).try_for_each(|_| file.write_all(&block))
    });
    filled.map_err(|error| setup("the file", &error))?;
    let file = FileDevice::open(FileOptions {
        block_size: BLOCK_BYTES,
        direct: DirectIo::Never,
        arena: Some(Arc::clone(arena)),
        ..FileOptions::new("file", path)
    });
    let null = NullDevice::new(NullOptions {
        name: "null".to_owned(),
        uuid: [9; 16],
        size_bytes: DEVICE_BYTES,
        block_size: BLOCK_BYTES,
    });
    let devices: [Arc<dyn Device>; Backing::ALL.len()] = [
        ram(DEVICE_BYTES)?,
        Arc::new(file.map_err(|error| setup("the file device", &error))?),
        Arc::new(null.map_err(|error| setup("the null device", &error))?),
    ];
    Ok(devices.into())
}

/// Runs every case, or the named one, each after a warm-up. Returns the counters by name.
///
/// # Errors
/// [`CostError::Setup`].
pub fn run(only: Option<&str>) -> Result<Vec<(String, LoopCounts)>, CostError> {
    // Contains the file of the file device while it is in use.
    let folder = tempfile::tempdir().map_err(|error| setup("a folder", &error))?;
    let mut all = Vec::new();
    let extent = Extent {
        namespaces: Backing::ALL.len(),
        ..Extent::ONE
    };
    let mut rig = Rig::new(&extent, |arena| {
        all = devices(arena, folder.path())?;
        Ok(all.clone())
    })?;
    let mut host = rig.attach(0, 0)?;
    rig.sync_sent_count(&mut host);
    let mut random = Random::new(1);
    let mut counted = Vec::new();
    for case in Case::all().filter(|case| only.is_none_or(|only| case.name() == only)) {
        let batch = Batch {
            nsid: case.backing.nsid(),
            device_bytes: DEVICE_BYTES,
            write: case.write,
            bytes: case.bytes,
            depth: case.depth,
        };
        rig.limit(DeviceIndex(case.backing.nsid() as u16 - 1), case.limited)?;
        if case.restricted {
            rig.reserve_for_another_host(DeviceIndex(case.backing.nsid() as u16 - 1))?;
        }
        for _ in 0..WARM_UP_BATCHES {
            rig.run_batch(&mut host, &batch, &mut random)?;
        }
        let before = Snapshot::take(&rig, &all, &case);
        rig.allocations = 0;
        counting_begins();
        for _ in 0..case.batches {
            rig.run_batch(&mut host, &batch, &mut random)?;
        }
        counting_ends();
        let after = Snapshot::take(&rig, &all, &case);
        let counts = LoopCounts {
            requests: case.requests(),
            allocations: rig.allocations,
            counted: after.beyond(&before),
        };
        counted.push((case.name(), counts));
    }
    Ok(counted)
}

/// The counters at one time.
struct Snapshot {
    values: Vec<(&'static str, u64)>,
}

impl Snapshot {
    fn take(rig: &Rig, devices: &[Arc<dyn Device>], case: &Case) -> Self {
        let counters = rig.counters(0);
        let device = &devices[case.backing.nsid() as usize - 1];
        // Data that was not received directly into a RAM device is copied there; the kernel copies
        // a file's data.
        let filled = counters.bytes_filled.get();
        let copied_by_device = match case.backing {
            Backing::Ram => device.health().bytes_written - filled,
            Backing::File | Backing::Null => 0,
        };
        Self {
            values: vec![
                ("receives", counters.receives.get()),
                ("sends", counters.sends.get()),
                ("turns", rig.turns),
                ("bytes placed", counters.bytes_placed.get() + filled),
                ("bytes copied", counters.bytes_copied.get()),
                ("bytes copied by the device", copied_by_device),
            ],
        }
    }

    fn beyond(&self, before: &Self) -> Vec<(String, u64)> {
        self.values
            .iter()
            .zip(&before.values)
            .map(|((name, after), (_, before))| ((*name).to_owned(), after - before))
            .collect()
    }
}
