//! Opening files: creation, refusals and messages.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;
use tempfile::TempDir;

use super::*;

fn folder() -> TempDir {
    let built_on = std::env::current_exe().unwrap();
    TempDir::new_in(built_on.parent().unwrap()).unwrap()
}

fn options(path: &Path, size_bytes: Option<u64>) -> FileOptions {
    FileOptions {
        size_bytes,
        ..FileOptions::new("file", path)
    }
}

fn refusal(options: FileOptions) -> FileError {
    FileDevice::open(options).err().expect("a refusal")
}

#[test]
fn missing_file_is_created_sparse() {
    let folder = folder();
    let path = folder.path().join("image");
    let device = FileDevice::open(options(&path, Some(1 << 40))).unwrap();
    assert_eq!(device.geometry().bytes(), 1 << 40);
    assert!(device.geometry().volatile_write_cache);
    let found = std::fs::metadata(&path).unwrap();
    assert_eq!((found.len(), found.blocks()), (1 << 40, 0));
    assert_eq!(found.mode() & 0o777, 0o600);
    drop(device);
    for size_bytes in [None, Some(1 << 40)] {
        let device = FileDevice::open(options(&path, size_bytes)).unwrap();
        assert_eq!(device.geometry().block_count, 1 << 28);
    }
}

#[test]
fn empty_file_is_extended_to_the_configured_size() {
    let folder = folder();
    let path = folder.path().join("image");
    std::fs::write(&path, []).unwrap();
    let error = refusal(options(&path, None));
    assert!(
        matches!(
            error,
            FileError::Shape {
                source: ShapeError::Empty,
                ..
            }
        ),
        "{error}"
    );
    let read_only = FileOptions {
        read_only: true,
        ..options(&path, Some(8192))
    };
    assert!(matches!(
        refusal(read_only),
        FileError::Size {
            found: 0,
            wanted: 8192,
            ..
        }
    ));
    let device = FileDevice::open(options(&path, Some(8192))).unwrap();
    assert_eq!(device.geometry().block_count, 2);
}

#[test]
fn creating_a_file_requires_a_size() {
    let folder = folder();
    let path = folder.path().join("image");
    assert!(matches!(
        refusal(options(&path, None)),
        FileError::Missing { .. }
    ));
    let read_only = FileOptions {
        read_only: true,
        ..options(&path, Some(4096))
    };
    assert!(matches!(refusal(read_only), FileError::Missing { .. }));
    let error = refusal(options(&path.join("below"), Some(4096)));
    assert!(
        matches!(error, FileError::System { step: "create", .. }),
        "{error:?}"
    );
    assert!(!path.exists());
}

#[test]
fn invalid_size_creates_no_file() {
    let folder = folder();
    let path = folder.path().join("image");
    for (size_bytes, block_size) in [(4096 + 512, 4096), (513, 512), (0, 512), (8192, 1024)] {
        let options = FileOptions {
            block_size,
            ..options(&path, Some(size_bytes))
        };
        let error = refusal(options);
        assert!(matches!(error, FileError::Shape { .. }), "{error}");
        assert!(error.to_string().contains("image"), "{error}");
    }
    assert!(!path.exists());
}

#[test]
fn partially_created_file_is_removed() {
    let folder = folder();
    let path = folder.path().join("image");
    // More than the maximum file size of any file system, less than the maximum file offset.
    let error = refusal(options(&path, Some((1 << 63) - 4096)));
    assert!(
        matches!(
            error,
            FileError::System {
                step: "set the size of",
                ..
            }
        ),
        "{error}"
    );
    assert!(!path.exists());
}

#[test]
fn file_of_different_size_is_refused_unchanged() {
    let folder = folder();
    let path = folder.path().join("image");
    std::fs::write(&path, vec![1; 8192]).unwrap();
    let error = refusal(options(&path, Some(4096)));
    assert!(
        matches!(
            error,
            FileError::Size {
                found: 8192,
                wanted: 4096,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), vec![1; 8192]);
    std::fs::write(&path, vec![1; 4097]).unwrap();
    let error = refusal(options(&path, None));
    let uneven = ShapeError::Uneven {
        size_bytes: 4097,
        block_size: 4096,
    };
    assert!(
        matches!(&error, FileError::Shape { source, .. } if *source == uneven),
        "{error}"
    );
}

#[test]
fn only_regular_files_are_served() {
    let folder = folder();
    let fifo = folder.path().join("fifo");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).unwrap();
    for path in [folder.path(), &fifo, Path::new("/dev/null")] {
        for read_only in [false, true] {
            let options = FileOptions {
                read_only,
                ..options(path, Some(4096))
            };
            assert!(
                matches!(refusal(options), FileError::NotAFile { .. }),
                "{}",
                path.display()
            );
        }
    }
}

/// Symbolic links and `..` that lead out of the directory are refused, and nothing is created or
/// changed at their targets.
#[test]
fn confined_file_cannot_escape_its_directory() {
    use std::os::unix::fs::symlink;
    let folder = folder();
    let (allowed, secret) = (folder.path().join("allowed"), folder.path().join("secret"));
    std::fs::create_dir_all(allowed.join("sub")).unwrap();
    std::fs::write(&secret, [7; 8192]).unwrap();
    symlink("../secret", allowed.join("relative")).unwrap();
    symlink(&secret, allowed.join("absolute")).unwrap();
    symlink("..", allowed.join("up")).unwrap();
    symlink(folder.path(), allowed.join("away")).unwrap();
    symlink("sub", allowed.join("inside")).unwrap();
    symlink("sub/vol0.img", allowed.join("link")).unwrap();
    let confined = |path: &Path, size_bytes| FileOptions {
        below: Some(allowed.clone()),
        ..options(path, size_bytes)
    };
    let elsewhere = [
        secret.clone(),
        allowed.join("relative"),
        allowed.join("absolute"),
        allowed.join("up/secret"),
        allowed.join("up/new"),
        allowed.join("away/secret"),
        allowed.join("../secret"),
        allowed.join("sub/../../secret"),
        allowed.join("link"),
        allowed.clone(),
    ];
    for path in elsewhere {
        for size_bytes in [None, Some(8192)] {
            let error = refusal(confined(&path, size_bytes));
            assert!(matches!(error, FileError::Elsewhere { .. }), "{error}");
        }
    }
    assert!(!folder.path().join("new").exists());
    assert_eq!(std::fs::read(&secret).unwrap(), [7; 8192]);
    for path in ["vol0.img", "sub/vol0.img", "inside/vol1.img"] {
        let path = allowed.join(path);
        let device = FileDevice::open(confined(&path, Some(8192))).unwrap();
        assert_eq!(device.geometry().bytes(), 8192);
        drop(device);
        FileDevice::open(confined(&path, None)).unwrap();
    }
    // A file that cannot be set up completely is removed again.
    let broken = FileOptions {
        direct: DirectIo::Require,
        block_size: 512,
        ..confined(&allowed.join("broken"), Some(512))
    };
    if FileDevice::open(broken).is_err() {
        assert!(!allowed.join("broken").exists());
    }
}

#[test]
fn file_can_be_opened_by_one_device_only() {
    let folder = folder();
    let path = folder.path().join("image");
    let writer = FileDevice::open(options(&path, Some(8192))).unwrap();
    let read_only = || FileOptions {
        read_only: true,
        ..options(&path, None)
    };
    for options in [options(&path, None), read_only()] {
        let error = refusal(options);
        assert!(matches!(error, FileError::InUse { .. }), "{error}");
        assert!(error.to_string().contains("in use"), "{error}");
    }
    assert!(path.exists(), "a refusal does not remove what others serve");
    drop(writer);
    let readers = [read_only(), read_only()].map(|options| FileDevice::open(options).unwrap());
    assert!(matches!(
        refusal(options(&path, None)),
        FileError::InUse { .. }
    ));
    drop(readers);
    FileDevice::open(options(&path, None)).unwrap();
}

/// Shared devices exclude devices that are not, in both orders.
#[test]
fn shared_devices_serve_one_file() {
    let folder = folder();
    let path = folder.path().join("image");
    std::fs::write(&path, vec![0; 8192]).unwrap();
    let shared = || FileOptions {
        shared: true,
        ..options(&path, Some(8192))
    };
    let devices = [shared(), shared()].map(|options| FileDevice::open(options).unwrap());
    assert!(devices.iter().all(FileDevice::is_shared));
    let error = refusal(options(&path, None));
    assert!(matches!(error, FileError::InUse { .. }), "{error}");
    drop(devices);
    let alone = FileDevice::open(options(&path, None)).unwrap();
    let error = refusal(shared());
    assert!(matches!(error, FileError::InUse { .. }), "{error}");
    drop(alone);
    FileDevice::open(shared()).unwrap();
}

/// Two processes must not create or resize a file at the same time.
#[test]
fn shared_file_is_neither_created_nor_resized() {
    let folder = folder();
    let path = folder.path().join("image");
    let shared = |size_bytes| FileOptions {
        shared: true,
        ..options(&path, size_bytes)
    };
    for size_bytes in [None, Some(8192)] {
        let error = refusal(shared(size_bytes));
        assert!(matches!(error, FileError::MissingShared { .. }), "{error}");
    }
    assert!(!path.exists());
    let length = || std::fs::metadata(&path).unwrap().len();
    for bytes in [0, 4096] {
        std::fs::write(&path, vec![0; bytes]).unwrap();
        let error = refusal(shared(Some(8192)));
        assert!(matches!(error, FileError::Size { .. }), "{error}");
        assert_eq!(length(), bytes as u64);
    }
    let device = FileDevice::open(shared(None)).unwrap();
    let error = device.grow(Some(8192)).expect_err("it has another size");
    assert!(matches!(error, FileError::Size { .. }), "{error}");
    assert_eq!(length(), 4096);
    std::fs::write(&path, vec![0; 8192]).unwrap();
    device.grow(Some(8192)).unwrap();
    assert_eq!(device.geometry().block_count, 2);
}

#[test]
fn file_lock_is_held_until_the_last_queue_closes() {
    let folder = folder();
    let path = folder.path().join("image");
    let device = FileDevice::open(options(&path, Some(8192))).unwrap();
    let arena = block_testing::conformance::arena();
    let options_queue = QueueOptions::new(0, 1, arena.pool(0));
    let queue = device.open_queue(options_queue).unwrap();
    drop(device);
    assert!(matches!(
        refusal(options(&path, None)),
        FileError::InUse { .. }
    ));
    drop(queue);
    FileDevice::open(options(&path, None)).unwrap();
}

#[test]
fn configured_page_cache_use_raises_no_notice() {
    let folder = folder();
    let never = FileOptions {
        direct: DirectIo::Never,
        ..options(&folder.path().join("image"), Some(8192))
    };
    let device = FileDevice::open(never).unwrap();
    assert!(!device.is_direct());
    assert!(
        !device
            .notices()
            .iter()
            .any(|n| matches!(n, FileNotice::Buffered { .. }))
    );
}

#[test]
fn notices_are_one_line_with_their_consequence() {
    let path = PathBuf::from("/srv/image");
    let reasons = [
        BufferedReason::Unsupported,
        BufferedReason::Alignment {
            unit: 4096,
            block_size: 512,
        },
        BufferedReason::MemoryAlignment { unit: 8192 },
        BufferedReason::Refused(Errno::INVAL),
    ];
    for reason in reasons {
        let file_system = FileSystem(0x0102_1994);
        let notice = FileNotice::Buffered {
            path: path.clone(),
            file_system,
            reason,
        };
        let words = notice.to_string();
        assert!(
            words.starts_with("/srv/image: no direct I/O on tmpfs: "),
            "{words}"
        );
        assert!(
            words.contains("page cache") && !words.contains('\n'),
            "{words}"
        );
    }
    let notice = FileNotice::NoDeallocate {
        path,
        file_system: FileSystem(0xBAD),
    };
    assert!(
        notice.to_string().contains("type 0xbad cannot punch holes"),
        "{notice}"
    );
}

#[test]
fn file_device_grows_but_does_not_shrink() {
    let folder = folder();
    let path = folder.path().join("image");
    let device = FileDevice::open(options(&path, Some(1 << 20))).unwrap();
    for wrong in [0, 4096, (1 << 20) + 1, u64::MAX - 4095] {
        let error = device.grow(Some(wrong)).expect_err("a wrong size");
        assert!(matches!(error, FileError::Shape { .. }), "{error}");
    }
    device.grow(Some(2 << 20)).unwrap();
    assert_eq!(device.geometry().bytes(), 2 << 20);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 2 << 20);
    device.grow(Some(2 << 20)).unwrap();
    // Another process extends or shrinks the file.
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(3 << 20).unwrap();
    let error = device
        .grow(Some((2 << 20) + 4096))
        .expect_err("it is longer");
    assert!(matches!(error, FileError::Size { .. }), "{error}");
    device.grow(None).unwrap();
    assert_eq!(device.geometry().bytes(), 3 << 20);
    file.set_len(1 << 20).unwrap();
    let error = device.grow(None).expect_err("blocks are lost");
    assert!(matches!(error, FileError::Shape { .. }), "{error}");
    drop(device);
    let read_only = FileOptions {
        read_only: true,
        ..options(&path, None)
    };
    let device = FileDevice::open(read_only).unwrap();
    let error = device.grow(Some(4 << 20)).expect_err("it is only read");
    assert!(matches!(error, FileError::Size { .. }), "{error}");
}

/// The lock belongs to the description that both processes have, so it lasts from the first open to
/// the last close, whichever process closes first.
#[test]
fn lock_is_held_while_a_file_is_handed_over() {
    let folder = folder();
    let path = folder.path().join("image");
    let first = FileDevice::open(options(&path, Some(8192))).unwrap();
    let pass = |device: &FileDevice| device.lock_owner().try_clone_to_owned().unwrap();
    // A process that refuses to continue changes nothing.
    let refused = FileDevice::adopt(
        options(&path, Some(4096)),
        pass(&first),
        first.capabilities(),
    );
    assert!(matches!(refused.err(), Some(FileError::Size { .. })));
    drop(
        FileDevice::adopt(
            options(&path, Some(8192)),
            pass(&first),
            first.capabilities(),
        )
        .unwrap(),
    );
    assert!(matches!(
        refusal(options(&path, None)),
        FileError::InUse { .. }
    ));
    let next = FileDevice::adopt(
        options(&path, Some(8192)),
        pass(&first),
        first.capabilities(),
    )
    .unwrap();
    assert_eq!(next.geometry(), first.geometry());
    assert_eq!(next.capabilities(), first.capabilities());
    // The first process ends without a call.
    std::mem::forget(first);
    assert!(matches!(
        refusal(options(&path, None)),
        FileError::InUse { .. }
    ));
    drop(next);
}
