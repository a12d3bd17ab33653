//! Set Features and Get Features (Base 2.1 §5.1.25, §5.1.11; NVM 1.1 §4.1.3).

use block::Operation;
use nvme_spec::command::{FeatureId, FeatureSelect};
use nvme_spec::features::{
    AsyncEventConfiguration, CopyFormatsEnabled, ErrorRecovery, FeatureCapabilities, HostBehavior,
    HostIdentifierSize, NumberOfQueues, PowerManagement, TemperatureThreshold, ThresholdType,
    Timestamp, TimestampOrigin, VolatileWriteCache,
};
use nvme_spec::registers::Cc;
use nvme_spec::{NSID_BROADCAST, Sqe, Status};
use nvme_target::NAMESPACE_ID_MAX;
use reactors::Nanos;
use zerocopy::{FromBytes, IntoBytes};

use crate::harness::{
    CACHED, CLOSED_SUBSYSTEM, ConnectOptions, FAIL_INTERNAL, HIGHEST, HOST_ID, IO_QUEUES, Link,
    RAM, Reply, World, discovery_call, namespace,
};

const CURRENT: FeatureSelect = FeatureSelect::CURRENT;
const INVALID: Status = Status::INVALID_FIELD.with_dnr();

fn get(world: &mut World, admin: Link, fid: FeatureId) -> u32 {
    let reply = world.command(admin, Sqe::get_feature(fid, CURRENT, 0, 0));
    assert!(reply.status().is_success(), "{fid}: {}", reply.status());
    reply.dw0()
}

fn get_selected(world: &mut World, admin: Link, fid: FeatureId, sel: FeatureSelect) -> Reply {
    world.command(admin, Sqe::get_feature(fid, sel, 0, 0))
}

/// Base 2.1 §5.1.25: Get Features and Set Features of an unsupported feature are Invalid Field.
#[test]
fn unknown_features_are_refused() {
    let known = [
        1, 2, 4, 5, 6, 7, 0x0a, 0x0b, 0x0e, 0x0f, 0x16, 0x19, 0x81, 0x82, 0x83,
    ];
    let mut world = World::new();
    let admin = world.enabled(0);
    for fid in (0..=0xff).filter(|fid| !known.contains(fid)).map(FeatureId) {
        world
            .command(admin, Sqe::get_feature(fid, CURRENT, 0, 0))
            .is(INVALID);
        world.set_feature(admin, fid, 0).is(INVALID);
    }
    let discovery = world.enabled_by(0, &discovery_call());
    for fid in (0..=0xff)
        .filter(|fid| ![0x0b, 0x0f].contains(fid))
        .map(FeatureId)
    {
        world
            .command(discovery, Sqe::get_feature(fid, CURRENT, 0, 0))
            .is(INVALID);
        world.set_feature(discovery, fid, 0).is(INVALID);
    }
}

/// Base 2.1 §5.1.25, SV: no feature is saveable.
#[test]
fn no_feature_is_saveable() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let sqe = Sqe::set_feature(FeatureId::ARBITRATION, 0, 1);
    let mut view = sqe.set_features();
    view.select = view.select.with_sv(true);
    let reply = world.command(admin, sqe.with_set_features(view));
    reply.is(Status::FEATURE_NOT_SAVEABLE.with_dnr());
    assert_eq!(get(&mut world, admin, FeatureId::ARBITRATION), 0);
}

/// Base 2.1 §5.1.11, SEL: current, default, saved and capabilities; other values are reserved.
#[test]
fn feature_selections() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let fid = FeatureId::ARBITRATION;
    world.set_feature(admin, fid, 0x0102_0304).ok();
    assert_eq!(get(&mut world, admin, fid), 0x0102_0304);
    for sel in [FeatureSelect::DEFAULT, FeatureSelect::SAVED] {
        assert_eq!(get_selected(&mut world, admin, fid, sel).dw0(), 0);
    }
    for sel in 4..8 {
        get_selected(&mut world, admin, fid, FeatureSelect(sel)).is(INVALID);
    }
    let capabilities = |world: &mut World, fid| {
        let sel = FeatureSelect::SUPPORTED_CAPABILITIES;
        let reply = get_selected(world, admin, fid, sel);
        assert!(reply.status().is_success());
        FeatureCapabilities::from_bits(reply.dw0())
    };
    let it = capabilities(&mut world, fid);
    assert!(it.changeable() && !it.saveable() && !it.namespace_specific());
    let it = capabilities(&mut world, FeatureId::ERROR_RECOVERY);
    assert!(it.changeable() && it.namespace_specific());
    assert!(!capabilities(&mut world, FeatureId::HOST_IDENTIFIER).changeable());
}

/// Base 2.1 §4.4: a feature of controller scope cannot be set for one namespace, and can be read
/// with any valid identifier (`nvme get-feature /dev/nvme0n1 -f 0xb` sends one).
#[test]
fn controller_features_are_read_with_any_namespace() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let refused = Status::FEATURE_NOT_NAMESPACE_SPECIFIC.with_dnr();
    world
        .command(admin, Sqe::set_feature(FeatureId::ARBITRATION, RAM, 1))
        .is(refused);
    let events = AsyncEventConfiguration::new().with_namespace_attribute(true);
    let fid = FeatureId::ASYNC_EVENT_CONFIGURATION;
    world.set_feature(admin, fid, events.into_bits()).ok();
    for nsid in [0, RAM, 3, NAMESPACE_ID_MAX, NSID_BROADCAST] {
        let reply = world.command(admin, Sqe::get_feature(fid, CURRENT, nsid, 0));
        assert_eq!(reply.dw0(), events.into_bits(), "namespace {nsid}");
        reply.ok();
    }
    let invalid = Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr();
    for nsid in [NAMESPACE_ID_MAX + 1, NSID_BROADCAST - 1] {
        let sqe = Sqe::get_feature(fid, CURRENT, nsid, 0);
        world.command(admin, sqe).is(invalid);
        let sqe = Sqe::set_feature(fid, nsid, 0);
        world.command(admin, sqe).is(invalid);
    }
    let sqe = Sqe::set_feature(FeatureId::ARBITRATION, NSID_BROADCAST, 1);
    world.command(admin, sqe).ok();
}

/// NVM 1.1 §4.1.3.2: Error Recovery is namespace specific.
#[test]
fn error_recovery_is_namespace_specific() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let fid = FeatureId::ERROR_RECOVERY;
    let invalid = Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr();
    for nsid in [0, HIGHEST + 1] {
        world
            .command(admin, Sqe::set_feature(fid, nsid, 1))
            .is(invalid);
        world
            .command(admin, Sqe::get_feature(fid, CURRENT, nsid, 0))
            .is(invalid);
    }
    world
        .command(admin, Sqe::get_feature(fid, CURRENT, NSID_BROADCAST, 0))
        .is(invalid);
    world
        .command(admin, Sqe::set_feature(fid, 3, 1))
        .is(INVALID);
    let dulbe = ErrorRecovery::new().with_dulbe(true).into_bits();
    world
        .command(admin, Sqe::set_feature(fid, RAM, dulbe))
        .is(INVALID);
    let value = |world: &mut World, nsid| {
        world
            .command(admin, Sqe::get_feature(fid, CURRENT, nsid, 0))
            .dw0()
    };
    world.command(admin, Sqe::set_feature(fid, CACHED, 7)).ok();
    assert_eq!((value(&mut world, RAM), value(&mut world, CACHED)), (0, 7));
    world
        .command(admin, Sqe::set_feature(fid, NSID_BROADCAST, 9))
        .ok();
    assert_eq!((value(&mut world, RAM), value(&mut world, CACHED)), (9, 9));
}

/// Base 2.1 §5.1.25.1.2: NPSS is 0, so there is one power state.
#[test]
fn only_power_state_0_is_supported() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let fid = FeatureId::POWER_MANAGEMENT;
    world
        .set_feature(admin, fid, PowerManagement::new().with_ps(1).into_bits())
        .is(INVALID);
    let hint = PowerManagement::new().with_wh(2).into_bits();
    world.set_feature(admin, fid, hint).ok();
    assert_eq!(get(&mut world, admin, fid), hint);
}

/// Base 2.1 §5.1.25.1.3: thresholds of the composite temperature.
#[test]
fn temperature_thresholds() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let fid = FeatureId::TEMPERATURE_THRESHOLD;
    let over = TemperatureThreshold::new().with_tmpth(300);
    let under = TemperatureThreshold::new()
        .with_tmpth(250)
        .with_thsel(ThresholdType::UNDER);
    for bad in [over.with_tmpsel(1), over.with_thsel(ThresholdType(2))] {
        world.set_feature(admin, fid, bad.into_bits()).is(INVALID);
        let sqe = Sqe::get_feature(fid, CURRENT, 0, bad.into_bits());
        world.command(admin, sqe).is(INVALID);
    }
    assert_eq!(get(&mut world, admin, fid), 343, "WCTEMP is the default");
    world
        .set_feature(admin, fid, over.with_tmpsel(0xf).into_bits())
        .ok();
    world.set_feature(admin, fid, under.into_bits()).ok();
    assert_eq!(get(&mut world, admin, fid), 300);
    let select = TemperatureThreshold::new()
        .with_thsel(ThresholdType::UNDER)
        .into_bits();
    let reply = world.command(admin, Sqe::get_feature(fid, CURRENT, 0, select));
    assert_eq!(TemperatureThreshold::from_bits(reply.dw0()).tmpth(), 250);
}

/// Base 2.1 §5.1.25.2.1: the number of granted queues, and when it may be requested.
#[test]
fn number_of_queues() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let fid = FeatureId::NUMBER_OF_QUEUES;
    let queues = |nsq_z, ncq_z| NumberOfQueues::new().with_nsq_z(nsq_z).with_ncq_z(ncq_z);
    for bad in [queues(0xffff, 1), queues(1, 0xffff)] {
        world.set_feature(admin, fid, bad.into_bits()).is(INVALID);
    }
    let granted = |reply: Reply| {
        let granted = NumberOfQueues::from_bits(reply.dw0());
        assert!(reply.status().is_success());
        (granted.nsq(), granted.ncq())
    };
    let all = u32::from(IO_QUEUES);
    assert_eq!(
        granted(world.set_feature(admin, fid, queues(99, 99).into_bits())),
        (all, all)
    );
    assert_eq!(
        granted(world.set_feature(admin, fid, queues(1, 5).into_bits())),
        (2, 2)
    );
    assert_eq!(get(&mut world, admin, fid), queues(1, 1).into_bits());
    assert_eq!(
        granted(get_selected(&mut world, admin, fid, FeatureSelect::DEFAULT)),
        (all, all)
    );
    world.io_queue(0, admin, 1);
    let reply = world.set_feature(admin, fid, queues(2, 2).into_bits());
    reply.is(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
}

/// Base 2.1 §5.1.25.1.4 and §5.1.13.2.1, VWC: the feature is supported before any namespace has a
/// volatile cache, and applies to one that is added later.
#[test]
fn disabled_cache_applies_to_namespaces_added_later() {
    let mut world = World::new();
    let call = ConnectOptions {
        subsystem: CLOSED_SUBSYSTEM,
        ..ConnectOptions::default()
    };
    let admin = world.enabled_by(0, &call);
    let fid = FeatureId::VOLATILE_WRITE_CACHE;
    let on = VolatileWriteCache::new().with_wce(true).into_bits();
    assert_eq!(get(&mut world, admin, fid), on);
    world.set_feature(admin, fid, 0).ok();
    assert_eq!(get(&mut world, admin, fid), 0);
    let devices = world.devices();
    let namespaces = vec![
        namespace(1, 0, &*devices[0]),
        namespace(CACHED, 1, &*devices[1]),
    ];
    world
        .target
        .update_namespaces(CLOSED_SUBSYSTEM, namespaces)
        .expect("right");
    world.settle();
    let io = ConnectOptions {
        cntlid: admin.info.controller_id,
        qid: 1,
        ..call
    };
    let io = world.connect(0, &io);
    world.cached.take();
    let write = Sqe::write(CACHED, 0, 0, false);
    world.write(io, write, &[1; 4096]).ok();
    assert_eq!(
        world.cached.take(),
        [(Operation::Write { fua: true }, 0, 1)]
    );
    // Flush (Base 2.1 §7.2) has no effect for the namespace without a cache.
    world.command(io, Sqe::flush(1)).ok();
    assert_eq!(world.cached.take(), []);
    world.command(io, Sqe::flush(CACHED)).ok();
    assert_eq!(world.cached.take(), [(Operation::Flush, 0, 0)]);
}

/// Base 2.1 §5.1.25.1.4: disabling the cache flushes it, and makes each later write of this
/// controller durable on every core.
#[test]
fn disabling_the_cache_makes_writes_durable() {
    let mut world = World::new();
    let (admin, near) = world.ready();
    let far = world.io_queue(1, admin, 2);
    let other = world.enabled(0);
    let others = world.io_queue(0, other, 1);
    let fid = FeatureId::VOLATILE_WRITE_CACHE;
    let on = VolatileWriteCache::new().with_wce(true).into_bits();
    assert_eq!(get(&mut world, admin, fid), on);
    let write = Sqe::write(CACHED, 0, 0, false);
    world.write(near, write, &[1; 4096]).ok();
    assert_eq!(
        world.cached.take(),
        [(Operation::Write { fua: false }, 0, 1)]
    );
    world.set_feature(admin, fid, 0).ok();
    assert_eq!(
        world.cached.take(),
        [(Operation::Flush, 0, 0)],
        "flushed before it answers"
    );
    assert_eq!(get(&mut world, admin, fid), 0);
    for io in [near, far] {
        world.write(io, write, &[1; 4096]).ok();
        assert_eq!(
            world.cached.take(),
            [(Operation::Write { fua: true }, 0, 1)]
        );
    }
    let zeroes = Sqe::write_zeroes_range(CACHED, 0, Default::default());
    world.command(near, zeroes).ok();
    let expected = Operation::WriteZeroes {
        fua: true,
        deallocate: false,
    };
    assert_eq!(world.cached.take(), [(expected, 0, 1)]);
    world.write(others, write, &[1; 4096]).ok();
    let cached = [(Operation::Write { fua: false }, 0, 1)];
    assert_eq!(
        world.cached.take(),
        cached,
        "another controller's cache stays on"
    );
    world.set_feature(admin, fid, on).ok();
    world.write(near, write, &[1; 4096]).ok();
    assert_eq!(world.cached.take(), cached);
    world.set_feature(admin, fid, 0).ok();
    world.set_cc(admin, Cc::new());
    world.settle();
    world.close(near);
    world.close(far);
    world.settle();
    world.set_cc(admin, Cc::enabled_nvm());
    assert_eq!(
        get(&mut world, admin, fid),
        on,
        "a reset switches it on again"
    );
}

/// If the flush for disabling the cache fails, the command fails.
#[test]
fn failed_flush_fails_disabling_the_cache() {
    let mut world = World::new();
    let (admin, _) = world.ready();
    world.cached_fault.arm(FAIL_INTERNAL, true);
    let reply = world.set_feature(admin, FeatureId::VOLATILE_WRITE_CACHE, 0);
    reply.is(Status::INTERNAL_ERROR);
    assert_eq!(get(&mut world, admin, FeatureId::VOLATILE_WRITE_CACHE), 0);
    world.cached_fault.arm(FAIL_INTERNAL, false);
    world.cached.take();
    let again = world.set_feature(admin, FeatureId::VOLATILE_WRITE_CACHE, 0);
    again.ok();
    let flushed = [(Operation::Flush, 0, 0)];
    assert_eq!(
        world.cached.take(),
        flushed,
        "a success says that all is durable"
    );
}

/// Base 2.1 §5.1.25.1.5: events that OAES does not report cannot be enabled.
#[test]
fn events_absent_from_oaes_cannot_be_enabled() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let discovery = world.enabled_by(0, &discovery_call());
    let fid = FeatureId::ASYNC_EVENT_CONFIGURATION;
    let namespace = AsyncEventConfiguration::new().with_namespace_attribute(true);
    let log = AsyncEventConfiguration::new().with_discovery_log(true);
    let firmware = AsyncEventConfiguration::new().with_firmware_activation(true);
    world.set_feature(admin, fid, log.into_bits()).is(INVALID);
    world
        .set_feature(admin, fid, firmware.into_bits())
        .is(INVALID);
    world
        .set_feature(discovery, fid, namespace.into_bits())
        .is(INVALID);
    world
        .set_feature(admin, fid, namespace.with_temperature(true).into_bits())
        .ok();
    world.set_feature(discovery, fid, log.into_bits()).ok();
    assert_eq!(get(&mut world, discovery, fid), log.into_bits());
}

/// Base 2.1 §5.1.25.1.7: the timestamp continues from the value that the host set, until a reset.
#[test]
fn timestamp_advances_until_reset() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let fid = FeatureId::TIMESTAMP;
    let stamp = |world: &mut World| {
        let data = world
            .read(admin, Sqe::get_feature(fid, CURRENT, 0, 0), 8)
            .ok();
        Timestamp::read_from_bytes(&data).expect("8 bytes")
    };
    world.advance(Nanos::from_millis(5));
    assert_eq!(stamp(&mut world).milliseconds(), 5);
    assert_eq!(
        stamp(&mut world).attributes.origin(),
        TimestampOrigin::RESET
    );
    let set = Timestamp::new(1_700_000_000_000, Default::default());
    world
        .write(admin, Sqe::set_feature(fid, 0, 0), set.as_bytes())
        .ok();
    world.advance(Nanos::from_millis(250));
    assert_eq!(stamp(&mut world).milliseconds(), 1_700_000_000_250);
    assert_eq!(stamp(&mut world).attributes.origin(), TimestampOrigin::SET);
    world.set_cc(admin, Cc::new());
    world.set_cc(admin, Cc::enabled_nvm());
    assert_eq!(stamp(&mut world).milliseconds(), 0);
}

/// Base 2.1 §5.1.25.1.28: over fabrics Connect sets the identifier, which has 128 bits.
#[test]
fn host_identifier_feature_returns_the_connect_value() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let fid = FeatureId::HOST_IDENTIFIER;
    let extended = HostIdentifierSize::new().with_exhid(true).into_bits();
    let sqe = Sqe::get_feature(fid, CURRENT, 0, extended);
    assert_eq!(world.read(admin, sqe, 16).ok(), HOST_ID);
    world
        .read(admin, Sqe::get_feature(fid, CURRENT, 0, 0), 16)
        .is(INVALID);
    world
        .read(admin, sqe, 8)
        .is(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
    let reply = world.write(admin, Sqe::set_feature(fid, 0, extended), &[1; 16]);
    reply.is(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
}

/// Base 2.1 §5.1.25.1.14.
#[test]
fn host_behavior_support_round_trips() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let fid = FeatureId::HOST_BEHAVIOR;
    let mut behavior = HostBehavior::default();
    behavior.acre = 1;
    world
        .write(admin, Sqe::set_feature(fid, 0, 0), behavior.as_bytes())
        .ok();
    let data = world
        .read(admin, Sqe::get_feature(fid, CURRENT, 0, 0), 512)
        .ok();
    assert_eq!(data, behavior.as_bytes());
    for formats in [
        CopyFormatsEnabled::new().with_format_3(true),
        CopyFormatsEnabled::new().with_format_4(true),
    ] {
        let mut behavior = behavior;
        behavior.cdfe = formats;
        world
            .write(admin, Sqe::set_feature(fid, 0, 0), behavior.as_bytes())
            .is(Status::INVALID_FIELD.with_dnr());
    }
    behavior.acre = 2;
    world
        .write(admin, Sqe::set_feature(fid, 0, 0), behavior.as_bytes())
        .is(INVALID);
    let data = world.read(
        admin,
        Sqe::get_feature(fid, FeatureSelect::DEFAULT, 0, 0),
        512,
    );
    assert!(data.ok().iter().all(|byte| *byte == 0));
}

/// Base 2.1 §5.1.25.1.17: there is one combination of command sets.
#[test]
fn only_command_set_profile_0_is_supported() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let fid = FeatureId::IO_COMMAND_SET_PROFILE;
    let reply = world.set_feature(admin, fid, 1);
    reply.is(Status::IO_COMMAND_SET_COMBINATION_REJECTED.with_dnr());
    world.set_feature(admin, fid, 0).ok();
    assert_eq!(get(&mut world, admin, fid), 0);
}

/// NVM 1.1 §4.1.3.3.
#[test]
fn write_atomicity_can_be_disabled() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let fid = FeatureId::WRITE_ATOMICITY;
    world.set_feature(admin, fid, 1).ok();
    assert_eq!(get(&mut world, admin, fid), 1);
}
