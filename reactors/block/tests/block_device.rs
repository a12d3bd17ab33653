//! Copies between devices; and partitions and logical volumes as file devices, on a loop device. The
//! latter need root and loop devices; they print a message and skip without them.

mod copies;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use block::{
    CompletionBatch, Device, DirectIo, FileDevice, FileError, FileOptions, Operation, QueueOptions,
    Request,
};
use block_testing::conformance::{Subject, arena};

const BYTES: u64 = 8 << 20;

struct Loop {
    device: PathBuf,
    folder: tempfile::TempDir,
}

impl Loop {
    fn new(sector: u32) -> Option<Self> {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).ok()?;
        let image = folder.path().join("image");
        std::fs::File::create(&image).ok()?.set_len(BYTES).ok()?;
        let made = Command::new("losetup")
            .args(["--find", "--show", "--sector-size", &sector.to_string()])
            .arg(&image)
            .output();
        let device = made
            .ok()
            .filter(|made| made.status.success())
            .and_then(|made| String::from_utf8(made.stdout).ok())
            .map(|device| PathBuf::from(device.trim()));
        let Some(device) = device else {
            println!("skipped: losetup makes no loop device here (it needs root)");
            return None;
        };
        Some(Self { device, folder })
    }

    fn options(&self, block_size: u32) -> FileOptions {
        FileOptions {
            block_size,
            ..FileOptions::new("volume", &self.device)
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup")
            .arg("--detach")
            .arg(&self.device)
            .status();
    }
}

fn refusal(options: FileOptions) -> FileError {
    FileDevice::open(options).err().expect("a refusal")
}

#[test]
fn kernel_block_device_conforms() {
    for (block_size, direct) in [(4096, DirectIo::Auto), (512, DirectIo::Never)] {
        if Loop::new(512).is_none() {
            return;
        }
        block_testing::conformance::run(|| {
            let volume = Loop::new(512).expect("there was one before");
            let arena = arena();
            let device = FileDevice::open(FileOptions {
                direct,
                arena: Some(Arc::clone(&arena)),
                ..volume.options(block_size)
            })
            .expect("a loop device is a block device");
            assert_eq!(device.geometry().bytes(), BYTES);
            Subject {
                keep: Box::new(volume),
                ..Subject::new(device, arena)
            }
        });
    }
}

#[test]
fn kernel_block_device_reports_size_and_sector_size() {
    let Some(volume) = Loop::new(4096) else {
        return;
    };
    let error = refusal(volume.options(512));
    assert!(
        matches!(error, FileError::SectorSize { sector: 4096, .. }),
        "{error}"
    );
    for wanted in [BYTES - 4096, BYTES + 4096] {
        let error = refusal(FileOptions {
            size_bytes: Some(wanted),
            ..volume.options(4096)
        });
        assert!(
            matches!(error, FileError::Size { found: BYTES, .. }),
            "{error}"
        );
    }
    let device = FileDevice::open(FileOptions {
        size_bytes: Some(BYTES),
        ..volume.options(4096)
    })
    .unwrap();
    let error = device.grow(Some(2 * BYTES)).expect_err("it has its size");
    assert!(matches!(error, FileError::Size { .. }), "{error}");
    let error = refusal(volume.options(4096));
    assert!(matches!(error, FileError::InUse { .. }), "{error}");
}

#[test]
fn mounted_block_device_is_refused() {
    let Some(volume) = Loop::new(512) else {
        return;
    };
    let run = |program: &str, arguments: &[&Path]| {
        let status = Command::new(program).args(arguments).status();
        status.is_ok_and(|status| status.success())
    };
    let mounted = volume.folder.path().join("mounted");
    std::fs::create_dir(&mounted).unwrap();
    if !run("mkfs.ext4", &[Path::new("-q"), &volume.device])
        || !run("mount", &[&volume.device, &mounted])
    {
        println!("skipped: no file system can be made and mounted here");
        return;
    }
    let error = refusal(volume.options(4096));
    assert!(run("umount", &[&mounted]));
    assert!(matches!(error, FileError::InUse { .. }), "{error}");
    FileDevice::open(volume.options(4096)).expect("it is not mounted any more");
}

/// A write is on the underlying device.
#[test]
fn flushed_write_reaches_the_underlying_device() {
    let Some(volume) = Loop::new(512) else {
        return;
    };
    let arena = arena();
    let device = FileDevice::open(volume.options(4096)).unwrap();
    let options = QueueOptions::new(0, 4, arena.pool(0));
    let mut queue = device.open_queue(options).unwrap();
    let mut lease = arena.pool(0).take(4096).unwrap();
    lease.fill(0x5A);
    let request = Request {
        tag: 1,
        operation: Operation::Write { fua: true },
        lba: 7,
        blocks: 1,
        data: Some(lease),
    };
    queue.submit(request).unwrap();
    queue.flush();
    let mut batch = CompletionBatch::new();
    while queue.poll(&mut batch) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(batch[0].result, Ok(()));
    let image = std::fs::read(volume.folder.path().join("image")).unwrap();
    assert!(image[7 * 4096..8 * 4096].iter().all(|byte| *byte == 0x5A));
}
