//! Get Log Page (Base 2.1 §5.1.12).

use nvme_spec::command::{
    AdminOpcode, CommandSet, FeatureId, GetLogPage, IoOpcode, LogPageId, LogPageQualifier,
    LogPageSelect,
};
use nvme_spec::log::{
    CommandEffects, CommandsSupported, ErrorEntry, FirmwareSlots, SmartHealth, SupportedLogPages,
};
use nvme_spec::{NSID_BROADCAST, Sqe, Status};
use reactors::Nanos;
use zerocopy::FromBytes;

use crate::harness::{CACHED, FAIL_MEDIA, Link, RAM, Reply, TRANSFER_MAX, World, discovery_call};

const INVALID: Status = Status::INVALID_FIELD.with_dnr();

fn select(lid: LogPageId, bytes: u32) -> LogPageSelect {
    LogPageSelect::new()
        .with_lid(lid)
        .with_numd_z(bytes / 4 - 1)
}

fn from(world: &mut World, admin: Link, lid: LogPageId, offset: u64, bytes: u32) -> Reply {
    world.read(
        admin,
        Sqe::log_page(NSID_BROADCAST, select(lid, bytes), offset),
        bytes,
    )
}

fn page<T: FromBytes>(world: &mut World, admin: Link, lid: LogPageId) -> T {
    let data = world.log(admin, lid, size_of::<T>() as u32);
    T::read_from_bytes(&data).expect("its size")
}

/// Base 2.1 §5.1.12, Invalid Log Page: exactly the pages of the Supported Log Pages log exist.
#[test]
fn supported_log_pages_matches_readable_pages() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let discovery = world.enabled_by(0, &discovery_call());
    for (link, expected) in [
        (admin, &[0, 1, 2, 3, 4, 5, 0xc, 0x12, 0x80][..]),
        (discovery, &[0, 1, 0x70]),
    ] {
        let supported: SupportedLogPages = page(&mut world, link, LogPageId::SUPPORTED_LOG_PAGES);
        for lid in 0..=0xff {
            let lid = LogPageId(lid);
            let reply = from(&mut world, link, lid, 0, 64);
            let is_there = expected.contains(&lid.0);
            assert_eq!(supported.get(lid).lsupp(), is_there, "{lid}");
            if is_there {
                assert_eq!(reply.ok().len(), 64);
            } else {
                reply.is(Status::INVALID_LOG_PAGE.with_dnr());
            }
        }
    }
}

/// Base 2.1 §5.1.12: offsets are multiples of 4 within the page, in bytes; MDTS bounds the length.
#[test]
fn log_page_offset_and_length_are_checked() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let lid = LogPageId::SMART_HEALTH;
    for offset in [1, 2, 3, 516, 1 << 40, u64::MAX - 3] {
        from(&mut world, admin, lid, offset, 4).is(INVALID);
    }
    assert_eq!(from(&mut world, admin, lid, 512, 4).ok(), [0; 4]);
    assert_eq!(from(&mut world, admin, lid, 508, 8).ok().len(), 8);
    let most = TRANSFER_MAX as u32;
    assert_eq!(
        from(&mut world, admin, lid, 0, most).ok().len(),
        TRANSFER_MAX
    );
    from(&mut world, admin, lid, 0, most + 4).is(INVALID);
    let huge = LogPageSelect::new().with_lid(lid).with_numd_z(u32::MAX);
    world
        .read(admin, Sqe::log_page(0, huge, 0), most)
        .is(INVALID);
    let short = Sqe::log_page(0, select(lid, 512), 0);
    world
        .read(admin, short, 508)
        .is(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
}

/// Base 2.1 §5.1.12, OT and UUID index: no page has an index, and there is no UUID list.
#[test]
fn log_page_offset_type_and_uuid_index_are_refused() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let sqe = Sqe::log_page(0, select(LogPageId::SMART_HEALTH, 512), 0);
    let view: GetLogPage = sqe.get_log_page();
    let qualifiers = [
        LogPageQualifier::new().with_ot(true),
        LogPageQualifier::new().with_uuid_index(1),
    ];
    for qualifier in qualifiers {
        let mut view = view;
        view.qualifier = qualifier;
        let sqe = sqe.with_get_log_page(view);
        world.read(admin, sqe, 512).is(INVALID);
    }
}

/// A page read in pieces equals the page read as a whole.
#[test]
fn log_pages_can_be_read_in_pieces() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let lid = LogPageId::COMMANDS_SUPPORTED_AND_EFFECTS;
    let whole = world.log(admin, lid, 4096);
    let mut pieces = Vec::new();
    for offset in (0..4096).step_by(1024) {
        pieces.extend(from(&mut world, admin, lid, offset, 1024).ok());
    }
    assert_eq!(pieces, whole);
}

/// Base 2.1 §5.1.12.1.2: errors of every queue, the newest first.
#[test]
fn error_log_covers_all_queues() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let near = world.io_queue(0, admin, 1);
    let far = world.io_queue(1, admin, 2);
    let bad = Sqe::read(RAM, u64::MAX - 7, 0);
    world
        .command(near, Sqe::new(0x99, RAM))
        .is(Status::INVALID_OPCODE.with_dnr());
    world
        .read(far, bad, 512)
        .is(Status::LBA_OUT_OF_RANGE.with_dnr());
    let data = world.log(admin, LogPageId::ERROR_INFORMATION, 192);
    let entries = <[ErrorEntry]>::ref_from_bytes(&data).expect("three entries");
    let summary = |index: usize| {
        let entry = &entries[index];
        (
            entry.error_count.get(),
            entry.sqid.get(),
            entry.opcode,
            entry.status.status().with_more(false),
        )
    };
    assert_eq!(
        summary(0),
        (2, 2, IoOpcode::READ.0, Status::LBA_OUT_OF_RANGE.with_dnr())
    );
    assert_eq!(summary(1), (1, 1, 0x99, Status::INVALID_OPCODE.with_dnr()));
    assert_eq!(entries[2], ErrorEntry::default());
    assert_eq!(
        (entries[0].location.byte(), entries[1].location.byte()),
        (40, 0)
    );
}

/// A device's error is logged with its first block.
#[test]
fn device_errors_are_logged_with_their_lba() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    world.fault.arm(FAIL_MEDIA, true);
    world
        .read(io, Sqe::read(RAM, 17, 0), 512)
        .is(Status::UNRECOVERED_READ_ERROR);
    let data = world.log(admin, LogPageId::ERROR_INFORMATION, 64);
    let entry = ErrorEntry::read_from_bytes(&data).expect("one entry");
    assert_eq!((entry.lba.get(), entry.nsid.get()), (17, RAM));
    assert_eq!(entry.location.into_bits(), 0xffff);
}

/// A flood of errors is counted, but only partly logged, until time has passed.
#[test]
fn error_logging_is_rate_limited() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    for _ in 0..100 {
        world
            .command(io, Sqe::new(0x99, RAM))
            .is(Status::INVALID_OPCODE.with_dnr());
    }
    let logged = |world: &World| world.target.snapshot().controllers[0].errors_logged;
    assert_eq!(logged(&world), 16);
    let counters = world.nodes[0].core.counters();
    assert_eq!(
        (counters.errors.get(), counters.errors_not_logged.get()),
        (100, 84)
    );
    assert!(world.nodes[0].next_deadline().is_some());
    world.advance(reactors::Nanos::from_millis(100));
    world
        .command(io, Sqe::new(0x99, RAM))
        .is(Status::INVALID_OPCODE.with_dnr());
    assert_eq!(logged(&world), 17);
    assert_eq!(world.log(admin, LogPageId::ERROR_INFORMATION, 64)[0], 17);
}

/// Base 2.1 §4.2.3, More: set for a failed command with an entry in the Error Information log, on
/// admin and I/O queues; clear for a successful one and for one whose error was not logged.
#[test]
fn more_bit_is_set_if_the_error_was_logged() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    let reply = world.read(io, Sqe::read(RAM, u64::MAX, 0), 512);
    assert!(reply.cqe.status().more(), "{}", reply.cqe.status());
    let newest: ErrorEntry = page(&mut world, admin, LogPageId::ERROR_INFORMATION);
    assert_eq!(newest.status.status(), reply.cqe.status());
    assert_eq!(newest.cid.get(), reply.cqe.cid.get());
    let reply = world.command(admin, Sqe::new(0xc1, 0));
    assert!(reply.cqe.status().more());
    let reply = world.read(io, Sqe::read(RAM, 0, 0), 512);
    assert!(reply.status().is_success() && !reply.cqe.status().more());
    world.advance(Nanos::from_millis(100));
    let floods = (0..64).map(|_| world.read(io, Sqe::read(RAM, u64::MAX, 0), 512));
    let more: Vec<bool> = floods.map(|reply| reply.cqe.status().more()).collect();
    assert_eq!(
        more.iter().filter(|more| **more).count(),
        16,
        "the queue's allowance"
    );
}

/// Base 2.1 §5.1.12.1.2: errors at a low rate are all logged, whatever their number.
#[test]
fn errors_below_the_rate_limit_are_all_logged() {
    let mut world = World::new();
    let (_, io) = world.ready();
    for _ in 0..20 {
        for _ in 0..3 {
            world
                .command(io, Sqe::new(0x99, RAM))
                .is(Status::INVALID_OPCODE.with_dnr());
        }
        world.advance(reactors::Nanos::from_millis(100));
    }
    assert_eq!(world.target.snapshot().controllers[0].errors_logged, 60);
}

/// Base 2.1 §5.1.12.1.3: the health log is that of the controller, from devices and counters.
#[test]
fn health_log_merges_devices_and_counters() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let near = world.io_queue(0, admin, 1);
    let far = world.io_queue(1, admin, 2);
    let lid = LogPageId::SMART_HEALTH;
    let sqe = Sqe::log_page(RAM, select(lid, 512), 0);
    world.read(admin, sqe, 512).is(INVALID);
    let before: SmartHealth = page(&mut world, admin, lid);
    assert_eq!(before.data_units_read.get(), 0);
    // No device has a sensor: a nominal 25 °C, not 0 K.
    assert_eq!(
        (before.temperature.get(), before.available_spare),
        (298, 100)
    );
    assert!(
        before.critical_warning.read_only(),
        "one namespace's device is read-only"
    );
    for _ in 0..250 {
        world.read_blocks(near, RAM, 0, 8);
        world.read_blocks(far, RAM, 0, 8);
    }
    world
        .write(far, Sqe::write(CACHED, 0, 0, false), &[0; 4096])
        .ok();
    world.read(near, Sqe::read(RAM, u64::MAX, 0), 512);
    world.ram.set_temperature(310);
    world.cached.set_temperature(320);
    world.cached.set_spare(5);
    let it: SmartHealth = page(&mut world, admin, lid);
    // 500 times 4096 bytes are 4000 units of 512 bytes.
    assert_eq!(
        (it.data_units_read.get(), it.data_units_written.get()),
        (4, 1)
    );
    assert_eq!(
        (it.host_read_commands.get(), it.host_write_commands.get()),
        (500, 1)
    );
    assert_eq!((it.temperature.get(), it.available_spare), (320, 5));
    assert!(it.critical_warning.spare() && !it.critical_warning.temperature());
    // The refused command for one namespace's page counts too.
    assert_eq!(it.error_log_entries.get(), 2);
}

/// Base 2.1 §5.1.12.1.4.
#[test]
fn firmware_log_has_one_slot() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let it: FirmwareSlots = page(&mut world, admin, LogPageId::FIRMWARE_SLOT);
    assert_eq!(it.afi.active_slot(), 1);
    assert_eq!(it.frs[0].as_str(), Some("0.1"));
    assert_eq!(it.frs[1].0, [0; 8]);
}

/// Base 2.1 §5.1.12.1.6: the reported commands are exactly the supported ones.
#[test]
fn command_effects_log_matches_supported_commands() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    let lid = LogPageId::COMMANDS_SUPPORTED_AND_EFFECTS;
    let it: CommandsSupported = page(&mut world, admin, lid);
    for opcode in 0..0xff {
        if opcode == AdminOpcode::FABRICS.0 || opcode == AdminOpcode::ASYNC_EVENT_REQUEST.0 {
            continue;
        }
        let admin_status = world.command(admin, Sqe::new(opcode, 0)).status();
        let supported = it.admin(AdminOpcode(opcode)).csupp();
        assert_eq!(
            supported,
            !admin_status.is(Status::INVALID_OPCODE),
            "admin {opcode:#x}"
        );
        let io_status = world.command(io, Sqe::new(opcode, RAM)).status();
        let supported = it.io(IoOpcode(opcode)).csupp();
        assert_eq!(
            supported,
            !io_status.is(Status::INVALID_OPCODE),
            "I/O {opcode:#x}"
        );
    }
    assert!(it.io(IoOpcode::WRITE).lbcc() && !it.io(IoOpcode::READ).lbcc());
    let sqe = Sqe::log_page(0, select(lid, 4096), 0);
    let qualifier = LogPageQualifier::new().with_csi(CommandSet::ZONED);
    let mut view = sqe.get_log_page();
    view.qualifier = qualifier;
    let zoned = world.read(admin, sqe.with_get_log_page(view), 4096).ok();
    let zoned = CommandsSupported::read_from_bytes(&zoned[..]).expect("a page");
    for opcode in 0..=0xff {
        assert!(!zoned.io(IoOpcode(opcode)).csupp(), "zoned {opcode:#x}");
        let (zoned, nvm) = (
            zoned.admin(AdminOpcode(opcode)),
            it.admin(AdminOpcode(opcode)),
        );
        assert_eq!(zoned.csupp(), nvm.csupp(), "admin {opcode:#x}");
    }
}

/// Base 2.1 §5.1.12.1.18: the reported features are exactly the supported ones.
#[test]
fn feature_effects_log_matches_supported_features() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let it: [CommandEffects; 256] =
        page(&mut world, admin, LogPageId::FEATURES_SUPPORTED_AND_EFFECTS);
    for fid in 0..=0xff {
        let sel = nvme_spec::command::FeatureSelect::SUPPORTED_CAPABILITIES;
        let reply = world.command(admin, Sqe::get_feature(FeatureId(fid), sel, 0, 0));
        assert_eq!(
            it[usize::from(fid)].csupp(),
            reply.status().is_success(),
            "{fid:#x}"
        );
    }
    assert!(it[usize::from(FeatureId::ERROR_RECOVERY.0)].scope_namespace());
    assert!(it[usize::from(FeatureId::ARBITRATION.0)].scope_controller());
}
