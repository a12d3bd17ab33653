//! The conformance suite of block devices, on the driver with emulated controllers of many
//! configurations.

use std::cell::RefCell;
use std::rc::Rc;

use block_testing::Latency;
use block_testing::conformance::{Subject, run, run_read_only};
use nvme_driver::DriveOptions;
use nvme_driver_testing::{
    ControllerMemoryOptions, EmulatedNamespace, EmulatedOptions, SglRules, ShadowDoorbells,
};
use nvme_spec::identify::DeallocatedRead;
use nvme_spec::registers::Version;
use reactors::Nanos;

use crate::support::{Rig, arena, drive_options};

const BLOCKS: u64 = 1000;

fn shape(block_size: u32) -> EmulatedOptions {
    EmulatedOptions {
        namespaces: vec![EmulatedNamespace::new(1, block_size, BLOCKS)],
        ..EmulatedOptions::default()
    }
}

/// A controller with latency and without interrupts, so that the reactor must not sleep: time
/// advances only between its turns.
fn late(options: EmulatedOptions) -> EmulatedOptions {
    EmulatedOptions {
        interrupt_vectors: 1,
        ..options
    }
}

fn subject(nsid: u32, emulated: EmulatedOptions, options: DriveOptions) -> Subject {
    let ends_late = emulated.latency != Latency::Fixed(Nanos::ZERO)
        || emulated.shadow_doorbells == ShadowDoorbells::Poll;
    let arena = arena();
    let rig = Rig::try_new(&arena, emulated, options).expect("a drive");
    let device = rig.device(nsid);
    let rig = Rc::new(RefCell::new(rig));
    let stepped = Rc::clone(&rig);
    Subject {
        device,
        arena,
        step: Box::new(move || stepped.borrow_mut().step(Nanos::from_micros(20))),
        keep: Box::new(ProtocolCheck(rig)),
        ends_late,
    }
}

/// Dropped last. Checks that the driver never violated the specification and never had to recover.
struct ProtocolCheck(Rc<RefCell<Rig>>);

impl Drop for ProtocolCheck {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let rig = self.0.borrow();
        let counters = rig.control.counters();
        assert_eq!(counters.illegal_accesses, 0);
        assert_eq!(counters.invalid_doorbells, 0);
        assert_eq!(rig.drive.counters().resets, 0);
        assert_eq!(rig.drive.counters().timeouts, 0);
    }
}

fn check(emulated: &EmulatedOptions) {
    println!("{emulated:?}");
    let nsid = emulated.namespaces[0].nsid;
    run(|| subject(nsid, emulated.clone(), drive_options(1)));
}

#[test]
fn both_block_sizes() {
    for block_size in [512, 4096] {
        check(&shape(block_size));
    }
}

#[test]
fn unusual_queue_sizes() {
    for queue_entries_max in [103, 129, 257, 1024] {
        check(&EmulatedOptions {
            queue_entries_max,
            ..shape(512)
        });
    }
}

#[test]
fn all_transfer_limits() {
    for (transfer_code, block_size) in [(0, 512), (1, 512), (1, 4096), (3, 4096), (5, 512)] {
        check(&EmulatedOptions {
            transfer_code,
            ..shape(block_size)
        });
    }
}

#[test]
fn sgls_with_byte_and_dword_alignment() {
    for sgl in [SglRules::Any, SglRules::Dword] {
        for transfer_code in [2, 8] {
            check(&EmulatedOptions {
                sgl,
                transfer_code,
                ..shape(4096)
            });
        }
    }
}

#[test]
fn shadow_doorbells() {
    for doorbell_stride in [0, 2] {
        check(&EmulatedOptions {
            shadow_doorbells: ShadowDoorbells::Ring,
            queue_entries_max: 131,
            doorbell_stride,
            ..shape(4096)
        });
    }
    check(&late(EmulatedOptions {
        shadow_doorbells: ShadowDoorbells::Poll,
        queue_entries_max: 131,
        ..shape(512)
    }));
}

#[test]
fn submission_queues_in_the_controller_memory_buffer() {
    for placed_by_host in [true, false] {
        check(&EmulatedOptions {
            controller_memory: Some(ControllerMemoryOptions {
                bytes: 64 << 10,
                placed_by_host,
                holds_data: true,
            }),
            queue_entries_max: 200,
            ..shape(4096)
        });
    }
}

#[test]
fn older_drives_with_fewer_features() {
    check(&EmulatedOptions {
        version: Version::V1_4,
        write_cache: false,
        ..shape(4096)
    });
    check(&EmulatedOptions {
        version: Version::V1_4,
        optional_commands: false,
        transfer_code: 2,
        ..shape(512)
    });
    check(&EmulatedOptions {
        write_zeroes_code: 1,
        ..shape(512)
    });
    let mut unspecified = EmulatedNamespace::new(1, 4096, BLOCKS);
    unspecified.deallocated = DeallocatedRead::NOT_REPORTED;
    check(&EmulatedOptions {
        namespaces: vec![unspecified],
        ..EmulatedOptions::default()
    });
}

#[test]
fn one_namespace_of_several() {
    let namespaces: Vec<_> = [(1, 4096), (3, 512), (200, 4096)]
        .map(|(nsid, block_size)| EmulatedNamespace::new(nsid, block_size, BLOCKS + 24))
        .into();
    for nsid in [3, 200] {
        let emulated = EmulatedOptions {
            namespaces: namespaces.clone(),
            ..EmulatedOptions::default()
        };
        run(|| subject(nsid, emulated.clone(), drive_options(3)));
    }
}

#[test]
fn delayed_and_reordered_completions() {
    let latencies = [
        Latency::Fixed(Nanos::from_micros(50)),
        Latency::Range {
            min: Nanos::ZERO,
            max: Nanos::from_micros(200),
        },
    ];
    for latency in latencies {
        check(&late(EmulatedOptions {
            latency,
            transfer_code: 3,
            ..shape(4096)
        }));
    }
}

#[test]
fn write_protected_namespaces() {
    run_read_only(|| {
        let mut namespace = EmulatedNamespace::new(1, 4096, BLOCKS);
        namespace.write_protected = true;
        let emulated = EmulatedOptions {
            namespaces: vec![namespace],
            ..EmulatedOptions::default()
        };
        subject(1, emulated, drive_options(1))
    });
}
