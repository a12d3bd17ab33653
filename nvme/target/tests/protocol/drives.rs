//! Devices that are drives: they fail, are removed and added, and report the counters of their
//! life.

use block::{DeviceError, DriveHealth, ErrorRecord, HealthWarnings};
use nvme_spec::command::{Cns, FeatureId, LogPageId};
use nvme_spec::event::AsyncEvent;
use nvme_spec::features::AsyncEventConfiguration;
use nvme_spec::identify::{IdentifyController, NamespaceList};
use nvme_spec::log::{ErrorEntry, SmartHealth};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Sqe, Status};
use nvme_target::NamespaceConfig;
use zerocopy::FromBytes;

use crate::harness::{CACHED, HIGHEST, HOLD, Link, RAM, SUBSYSTEM, World, namespace};

const INVALID: Status = Status::INVALID_FIELD.with_dnr();

fn drive() -> DriveHealth {
    DriveHealth {
        spare_threshold_percent: 10,
        data_units_read: 1_000,
        data_units_written: 2_000,
        read_commands: 30,
        write_commands: 40,
        busy_minutes: 5,
        power_cycles: 6,
        power_on_hours: 7_000,
        unsafe_shutdowns: 8,
        media_errors: 9,
        error_log_entries: 10,
        ..DriveHealth::default()
    }
}

fn smart(world: &mut World, admin: Link) -> SmartHealth {
    let data = world.log(admin, LogPageId::SMART_HEALTH, 512);
    SmartHealth::read_from_bytes(&data).expect("512 bytes")
}

fn errors(world: &mut World, admin: Link) -> Vec<ErrorEntry> {
    let data = world.log(admin, LogPageId::ERROR_INFORMATION, 64 * 64);
    let entries = <[ErrorEntry]>::ref_from_bytes(&data).expect("whole entries");
    let used = entries.iter().filter(|entry| entry.error_count.get() != 0);
    used.copied().collect()
}

fn record(number: u64, error: DeviceError, lba: u64) -> ErrorRecord {
    ErrorRecord {
        number,
        error,
        code: 0x281,
        lba: Some(lba),
    }
}

/// The namespaces on these devices of the test's subsystem, which stand for drives.
fn namespaces(world: &World, devices: &[u32]) -> Vec<NamespaceConfig> {
    let all = world.devices();
    let of = |nsid: &u32| namespace(*nsid, *nsid as u16 - 1, &*all[*nsid as usize - 1]);
    devices.iter().map(of).collect()
}

fn update(world: &mut World, devices: &[u32]) {
    let namespaces = namespaces(world, devices);
    let updated = world.target.update_namespaces(SUBSYSTEM, namespaces);
    updated.expect("a right change");
    world.settle();
}

fn configure(world: &mut World, admin: Link, configuration: AsyncEventConfiguration) -> u64 {
    let fid = FeatureId::ASYNC_EVENT_CONFIGURATION;
    let bits = configuration.into_bits();
    world.set_feature(admin, fid, bits).ok();
    let sqe = Sqe::async_event_request().with_cid(world.cid());
    world.start(admin, sqe, &[]).expect_err("held")
}

#[track_caller]
fn assert_event(world: &mut World, admin: Link, tag: u64, event: AsyncEvent) {
    let reply = world.wait(admin, tag);
    assert!(reply.status().is_success());
    assert_eq!(AsyncEvent::from_bits(reply.dw0()), event);
}

/// Base 2.1 §4.2.3.4: the removal of a drive, or its reset with the command in flight, is a path
/// error, which a host may retry on another path.
#[test]
fn removed_drive_is_reported_as_path_error() {
    let mut world = World::new();
    let (_, io) = world.ready();
    world.fault.remove();
    for _ in 0..2 {
        let status = world.read(io, Sqe::read(RAM, 0, 0), 512).status();
        assert_eq!(status, Status::INTERNAL_PATH_ERROR);
        assert_eq!((status.sct().0, status.dnr()), (3, false));
    }
    let interrupted = Status::CONTROLLER_PATHING_ERROR;
    assert_eq!((interrupted.sct().0, interrupted.dnr()), (3, false));
}

/// A namespace is removed with commands in its drive: they end when the drive returns them, other
/// namespaces continue, and the host receives an event. The identifier stays valid and inactive
/// (Base 2.1 §3.2.1.4), so that NN never changes.
#[test]
fn namespace_is_removed_and_added_with_commands_in_flight() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    let told = AsyncEventConfiguration::new().with_namespace_attribute(true);
    let event = configure(&mut world, admin, told);
    world.fault.arm(HOLD, true);
    let in_flight: Vec<u64> = (0..8)
        .map(|lba| {
            let sqe = Sqe::read(RAM, lba, 0).with_cid(world.cid());
            let sqe = sqe.with_sgl(SglDescriptor::transport(512));
            world.start(io, sqe, &[]).expect_err("held")
        })
        .collect();
    update(&mut world, &[CACHED]);
    assert_event(
        &mut world,
        admin,
        event,
        AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED,
    );
    world.read(io, Sqe::read(CACHED, 0, 0), 4096).ok();
    world.read(io, Sqe::read(RAM, 0, 0), 512).is(INVALID);
    let active = world.read(
        admin,
        Sqe::identify_structure(Cns::ACTIVE_NAMESPACE_LIST, 0),
        4096,
    );
    let list = NamespaceList::read_from_bytes(&active.ok()).expect("4096 bytes");
    assert_eq!(list.iter().collect::<Vec<u32>>(), [CACHED]);
    let page = world.read(admin, Sqe::identify_structure(Cns::CONTROLLER, 0), 4096);
    let page = IdentifyController::read_from_bytes(&page.ok()).expect("4096 bytes");
    assert_eq!(page.nn.get(), HIGHEST);
    world.fault.arm(HOLD, false);
    world.fault.release();
    for tag in in_flight {
        world.wait(io, tag);
    }
    assert_eq!(world.leases(), 0);
    update(&mut world, &[RAM, CACHED]);
    world.read(io, Sqe::read(RAM, 0, 0), 512).ok();
}

/// An export whose drives are all missing exists without namespaces, and its drives can be added.
#[test]
fn subsystem_without_namespaces_is_valid() {
    let mut world = World::new();
    update(&mut world, &[]);
    let (admin, io) = world.ready();
    world.read(io, Sqe::read(RAM, 0, 0), 512).is(INVALID);
    let page = smart(&mut world, admin);
    assert_eq!(page.critical_warning.into_bits(), 0);
    assert_eq!(page.available_spare, 100);
    world
        .command(io, Sqe::flush(nvme_spec::NSID_BROADCAST))
        .ok();
    update(&mut world, &[CACHED]);
    world.read(io, Sqe::read(CACHED, 0, 0), 4096).ok();
}

/// Base 2.1 §5.1.12.1.3: counters of several drives are added up, the worst of their conditions is
/// reported, and a drive with two namespaces counts once.
#[test]
fn drive_health_is_merged() {
    let mut world = World::new();
    update(&mut world, &[RAM, CACHED]);
    let (admin, io) = world.ready();
    world.read(io, Sqe::read(RAM, 0, 7), 4096).ok();
    world.ram.set_drive(drive());
    world.cached.set_drive(drive());
    let one = smart(&mut world, admin);
    assert_eq!(one.critical_warning.into_bits(), 0);
    let amounts = |page: &SmartHealth| {
        [
            page.data_units_read.get(),
            page.data_units_written.get(),
            page.host_read_commands.get(),
            page.host_write_commands.get(),
            page.media_errors.get(),
        ]
    };
    assert_eq!(amounts(&one), [1_000, 2_000, 30, 40, 9]);
    let second = DriveHealth {
        power_on_hours: 7_001,
        busy_minutes: 4,
        unsafe_shutdowns: 11,
        warnings: HealthWarnings {
            backup: true,
            ..HealthWarnings::default()
        },
        ..drive()
    };
    world.cached.set_drive(second);
    let two = smart(&mut world, admin);
    assert_eq!(amounts(&two), [2_000, 4_000, 60, 80, 18]);
    let lifetimes = [
        two.power_on_hours,
        two.controller_busy_time,
        two.power_cycles,
    ];
    assert_eq!(lifetimes.map(nvme_spec::U128::get), [7_001, 5, 6]);
    assert_eq!(two.unsafe_shutdowns.get(), 11);
    assert!(two.critical_warning.backup_failed());
    assert!(!two.critical_warning.reliability());
}

/// The reported spare is that of the drive closest to its own threshold.
#[test]
fn spare_is_reported_from_the_drive_closest_to_its_threshold() {
    let mut world = World::new();
    update(&mut world, &[RAM, CACHED]);
    let admin = world.enabled(0);
    let (ram, cached) = (world.ram.clone(), world.cached.clone());
    ram.set_spare(30);
    ram.set_drive(DriveHealth {
        spare_threshold_percent: 5,
        ..drive()
    });
    cached.set_spare(60);
    cached.set_drive(DriveHealth {
        spare_threshold_percent: 50,
        power_cycles: 1,
        ..drive()
    });
    let page = smart(&mut world, admin);
    assert_eq!(
        (page.available_spare, page.available_spare_threshold),
        (60, 50)
    );
    assert!(!page.critical_warning.spare());
    cached.set_spare(49);
    assert!(smart(&mut world, admin).critical_warning.spare());
}

/// Base 2.1 §5.1.2.1 and §5.1.25.1.5: a drive's warning is reported to the hosts that enabled it,
/// and immediately if the control plane reports a change.
#[test]
fn drive_warning_is_reported_immediately() {
    let mut world = World::new();
    update(&mut world, &[RAM, CACHED]);
    let admin = world.enabled(0);
    let other = world.enabled(1);
    world.ram.set_drive(drive());
    let backup = AsyncEventConfiguration::new().with_backup_failed(true);
    let read_only = AsyncEventConfiguration::new().with_read_only(true);
    let wanted = configure(&mut world, admin, backup);
    let not_wanted = configure(&mut world, other, read_only);
    world.target.health_changed();
    world.settle();
    assert!(world.take_reply(0, wanted).is_none(), "nothing has changed");
    let warnings = HealthWarnings {
        backup: true,
        ..HealthWarnings::default()
    };
    world.ram.set_drive(DriveHealth {
        warnings,
        ..drive()
    });
    world.target.health_changed();
    world.settle();
    assert_event(&mut world, admin, wanted, AsyncEvent::RELIABILITY);
    assert!(world.take_reply(1, not_wanted).is_none());
    let warnings = HealthWarnings {
        read_only: true,
        ..warnings
    };
    world.ram.set_drive(DriveHealth {
        warnings,
        ..drive()
    });
    world.target.health_changed();
    world.settle();
    assert_event(&mut world, other, not_wanted, AsyncEvent::RELIABILITY);
}

/// Base 2.1 §5.1.12.1.2: the error log includes each record of a drive's own log once, without a
/// command's identifiers.
#[test]
fn drive_errors_enter_the_error_log_once() {
    let mut world = World::new();
    update(&mut world, &[RAM, CACHED]);
    let (admin, io) = world.ready();
    let (ram, cached) = (world.ram.clone(), world.cached.clone());
    let old = [
        record(5, DeviceError::MediaRead, 77),
        record(4, DeviceError::MediaWrite, 66),
    ];
    // Both are namespaces of one drive.
    ram.set_errors(&old);
    cached.set_errors(&old);
    let entries = errors(&mut world, admin);
    let shown: Vec<_> = entries
        .iter()
        .map(|entry| (entry.error_count.get(), entry.lba.get(), entry.nsid.get()))
        .collect();
    assert_eq!(shown, [(2, 77, RAM), (1, 66, RAM)]);
    assert_eq!(entries[0].status.status(), Status::UNRECOVERED_READ_ERROR);
    assert_eq!(entries[1].status.status(), Status::WRITE_FAULT);
    assert!(
        entries
            .iter()
            .all(|it| it.sqid.get() == 0xffff && it.cid.get() == 0xffff)
    );
    world.read(io, Sqe::read(RAM, u64::MAX, 0), 512);
    let newer = [record(6, DeviceError::MediaRead, 88), old[0], old[1]];
    ram.set_errors(&newer);
    let entries = errors(&mut world, admin);
    let counts: Vec<_> = entries.iter().map(|it| it.error_count.get()).collect();
    assert_eq!(counts, [4, 3, 2, 1]);
    assert_eq!(
        (entries[0].lba.get(), entries[1].sqid.get()),
        (88, io.info.qid)
    );
    assert_eq!(smart(&mut world, admin).error_log_entries.get(), 4);
    // Another drive with the same index counts from 1 again.
    ram.set_errors(&[record(1, DeviceError::MediaRead, 99)]);
    assert_eq!(errors(&mut world, admin)[0].lba.get(), 99);
    assert_eq!(errors(&mut world, admin).len(), 5);
}

/// A core sleeps only when every device has connected its interrupt and no work is left.
#[test]
fn sleep_requires_consent_of_every_device() {
    let mut world = World::new();
    let (_, io) = world.ready();
    world.settle();
    assert!(world.nodes[0].prepare_sleep());
    assert_eq!(world.cached.prepare_sleep_calls(), 1);
    assert_eq!(world.ram.prepare_sleep_calls(), 1);
    world.cached.set_has_work_before_sleep(true);
    assert!(!world.nodes[0].prepare_sleep());
    world.cached.set_has_work_before_sleep(false);
    world.target.health_changed();
    assert!(!world.nodes[0].prepare_sleep(), "notified");
    world.settle();
    assert!(world.nodes[0].prepare_sleep());
    world.read(io, Sqe::read(RAM, 0, 0), 512).ok();
}
