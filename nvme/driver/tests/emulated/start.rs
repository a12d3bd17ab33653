//! Start of a drive: unsupported controllers, controllers that do not become ready, all versions;
//! and no leaks after a failed start.

use nvme_driver::{DriveError, DriveOptions, NamespaceStatus, Unusable};
use nvme_driver_testing::{
    EmulatedController, EmulatedNamespace, EmulatedOptions, Fault, FaultMatch, FaultRule, When,
};
use nvme_spec::Status;
use nvme_spec::command::AdminOpcode;
use nvme_spec::registers::Version;
use reactors::Nanos;
use std::sync::Arc;

use crate::support::{Rig, arena, drive_options, taken};

/// Starts a drive that must not start, and checks that it left nothing behind.
fn fails(
    emulated: EmulatedOptions,
    options: DriveOptions,
    rules: &[(FaultMatch, Fault)],
) -> DriveError {
    let arena = arena();
    let controller = EmulatedController::new(arena.region(), emulated).expect("a controller");
    let control = controller.control();
    for (matching, fault) in rules {
        let rule = FaultRule::new(matching.clone(), When::Always, *fault);
        control.inject(rule);
    }
    let error = Rig::on(&arena, Arc::new(controller), options)
        .err()
        .expect("it must not start");
    assert_eq!(taken(&arena), 0, "{error}");
    assert!(!control.is_bus_master(), "{error}");
    assert_eq!(control.counters().illegal_accesses, 0, "{error}");
    error
}

fn short() -> EmulatedOptions {
    EmulatedOptions {
        timeout_units: 1,
        ..EmulatedOptions::default()
    }
}

#[test]
fn unsupported_controllers_are_refused() {
    let two_entries = EmulatedOptions {
        queue_entries_max: 2,
        ..short()
    };
    let error = fails(two_entries, drive_options(1), &[]);
    assert!(matches!(error, DriveError::QueuesTooSmall { entries: 2 }));
    let large_pages = EmulatedOptions {
        page_code_min: 1,
        page_code_max: 4,
        ..short()
    };
    let error = fails(large_pages, drive_options(1), &[]);
    assert!(matches!(error, DriveError::PageSize { bytes: 8192 }));
    let one_pair = EmulatedOptions {
        io_queues_max: 1,
        ..short()
    };
    let error = fails(one_pair, drive_options(2), &[]);
    println!("{error}");
    assert!(matches!(
        error,
        DriveError::TooFewQueues {
            granted: 1,
            reactors: 2
        }
    ));
}

#[test]
fn controllers_that_do_not_become_ready_time_out() {
    let steps = FaultMatch::admin;
    let never = [(steps(), Fault::Ready(Nanos::MAX))];
    let error = fails(short(), drive_options(1), &never);
    let DriveError::NotReady { wanted, waited_ms } = error else {
        panic!("{error}");
    };
    assert_eq!(wanted, "ready");
    assert!((500..=1500).contains(&waited_ms), "{waited_ms} ms");
    let error = fails(short(), drive_options(1), &[(steps(), Fault::EnableFatal)]);
    assert!(matches!(error, DriveError::Fatal));
    let removed = [(steps(), Fault::Remove)];
    let error = fails(short(), drive_options(1), &removed);
    assert!(
        matches!(error, DriveError::Gone | DriveError::CommandTimeout { .. }),
        "{error}"
    );
}

#[test]
fn failed_startup_commands_fail_the_start() {
    for opcode in [
        AdminOpcode::IDENTIFY,
        AdminOpcode::SET_FEATURES,
        AdminOpcode::CREATE_IO_CQ,
        AdminOpcode::CREATE_IO_SQ,
    ] {
        let matching = FaultMatch::admin().with_opcode(opcode.0);
        let rules = [(matching.clone(), Fault::DropCompletion)];
        let error = fails(short(), drive_options(1), &rules);
        assert!(
            matches!(error, DriveError::CommandTimeout { .. }),
            "{error}"
        );
        let rules = [(matching.clone(), Fault::WrongIdentifier(0x4000))];
        let error = fails(short(), drive_options(1), &rules);
        assert!(
            matches!(error, DriveError::UnknownAdminCompletion { .. }),
            "{error}"
        );
        let rules = [(matching, Fault::Fatal)];
        let error = fails(short(), drive_options(1), &rules);
        assert!(matches!(error, DriveError::Fatal), "{error}");
    }
    let refused = [AdminOpcode::IDENTIFY, AdminOpcode::CREATE_IO_SQ];
    for opcode in refused {
        let matching = FaultMatch::admin().with_opcode(opcode.0);
        let rules = [(matching, Fault::Status(Status::INTERNAL_ERROR))];
        let error = fails(short(), drive_options(1), &rules);
        assert!(matches!(error, DriveError::Command { .. }), "{error}");
    }
}

#[test]
fn start_on_a_removed_drive_fails() {
    let arena = arena();
    let controller = EmulatedController::new(arena.region(), short()).expect("a controller");
    controller.control().remove();
    let error = Rig::on(&arena, Arc::new(controller), drive_options(1)).err();
    assert!(matches!(error, Some(DriveError::Gone)));
    assert_eq!(taken(&arena), 0);
}

#[test]
fn start_without_free_memory_fails() {
    let arena = arena();
    let hold: Vec<_> = (0..).map_while(|_| arena.dma_buffer(4096)).collect();
    let before = taken(&arena);
    let controller = EmulatedController::new(arena.region(), short()).expect("a controller");
    let control = controller.control();
    let error = Rig::on(&arena, Arc::new(controller), drive_options(1)).err();
    assert!(matches!(error, Some(DriveError::NoMemory { .. })));
    assert_eq!(taken(&arena), before);
    assert!(!control.is_bus_master());
    drop(hold);
}

#[test]
fn unusable_namespaces_are_reported_and_skipped() {
    let mut metadata = EmulatedNamespace::new(2, 512, 100);
    metadata.metadata_bytes = 8;
    let mut empty = EmulatedNamespace::new(4, 512, 0);
    empty.block_count_max = 10;
    let rig = Rig::new(
        EmulatedOptions {
            namespaces: vec![
                EmulatedNamespace::new(1, 4096, 100),
                metadata,
                EmulatedNamespace::new(3, 16384, 100),
                empty,
                EmulatedNamespace::new(700, 512, 100),
            ],
            ..short()
        },
        drive_options(1),
    );
    let found = rig.drive.namespaces();
    let reasons: Vec<_> = found
        .iter()
        .map(|namespace| (namespace.nsid, namespace.geometry.err()))
        .collect();
    assert_eq!(
        reasons,
        [
            (1, None),
            (2, Some(Unusable::Metadata { bytes: 8 })),
            (3, Some(Unusable::BlockSize { bytes: 16384 })),
            (4, Some(Unusable::Empty)),
            (700, None),
        ]
    );
    assert!(
        found
            .iter()
            .all(|namespace| namespace.status == NamespaceStatus::Usable)
    );
    assert_eq!(found[4].nguid.map(|nguid| nguid[15]), Some(0xbc));
    for nsid in [2, 3, 4] {
        let refused = rig.drive.device(nsid, "ns", [0; 16]).err();
        assert!(matches!(refused, Some(DriveError::Namespace { .. })));
    }
    let missing = rig.drive.device(5, "ns", [0; 16]).err();
    assert!(matches!(missing, Some(DriveError::NoNamespace { nsid: 5 })));
}

/// Controllers of every version and size start, serve one request and stop without leaks.
#[test]
fn all_controller_variants_start_serve_and_stop() {
    let base = EmulatedOptions::default;
    let kinds = [
        base(),
        EmulatedOptions {
            version: Version::V1_4,
            ..base()
        },
        EmulatedOptions {
            version: Version::V2_1,
            queue_entries_max: 65536,
            ..base()
        },
        EmulatedOptions {
            queue_entries_max: 3,
            ..base()
        },
        EmulatedOptions {
            doorbell_stride: 10,
            ..base()
        },
        EmulatedOptions {
            page_code_max: 8,
            interrupt_vectors: 1,
            ..base()
        },
        EmulatedOptions {
            event_requests_max: 1,
            timeout_units: 0,
            ..base()
        },
        EmulatedOptions {
            ready_after: Nanos::from_secs(9),
            ..base()
        },
    ];
    for emulated in kinds {
        let arena = arena();
        let mut rig = Rig::try_new(&arena, emulated, drive_options(3)).expect("a drive");
        let mut client = rig.client(1, 2, 4);
        client.write(&mut rig, 7, 9).expect("a write");
        assert_eq!(client.read(&mut rig, 7), Ok(9));
        assert_eq!(rig.control.io_queues(), 3);
        assert_eq!(rig.control.counters().illegal_accesses, 0);
        let control = rig.control.clone();
        drop(client);
        drop(rig);
        assert_eq!(taken(&arena), 0, "memory of a drive that was closed");
        assert!(!control.is_bus_master());
    }
}
