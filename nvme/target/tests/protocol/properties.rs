//! Controller properties and the states that they report (Base 2.1 §3.1.4, §3.5 to §3.7, §6.5,
//! §6.6).

use nvme_spec::command::{Cns, FeatureId};
use nvme_spec::fabrics::PropertySize;
use nvme_spec::identify::IdentifyController;
use nvme_spec::registers::{
    Arbitration, Cap, Cc, CommandSetSelected, Crto, Register, ShutdownNotification, ShutdownStatus,
    Version,
};
use nvme_spec::{Sqe, Status};
use nvme_target::CloseReason;
use zerocopy::FromBytes;

use crate::harness::{
    CACHED, ConnectOptions, FAIL_INTERNAL, HOLD, Link, QUEUE_DEPTH_MAX, RAM, SUBSYSTEM, World,
    discovery_call,
};

fn get(world: &mut World, admin: Link, register: Register) -> u64 {
    let size = register.size().expect("a register");
    let reply = world.command(admin, Sqe::get_property(register.0, size));
    assert!(
        reply.status().is_success(),
        "{register}: {}",
        reply.status()
    );
    reply.cqe.result()
}

/// Base 2.1 §6.5: an offset without a property, or a size other than the property's, is refused.
#[test]
fn property_get_requires_valid_offset_and_size() {
    let mut world = World::new();
    let admin = world.connect(0, &ConnectOptions::default());
    let invalid = Status::INVALID_FIELD.with_dnr();
    let four = PropertySize::BYTES_4;
    for offset in [1, 4, 0x18, 0x24, 0x28, 0x30, 0x38, 0x1000, 0xffff_ffff] {
        world
            .command(admin, Sqe::get_property(offset, four))
            .is(invalid);
        world
            .command(admin, Sqe::get_property(offset, PropertySize::BYTES_8))
            .is(invalid);
    }
    world
        .command(admin, Sqe::get_property(Register::CAP.0, four))
        .is(invalid);
    world
        .command(
            admin,
            Sqe::get_property(Register::CC.0, PropertySize::BYTES_8),
        )
        .is(invalid);
    world
        .command(admin, Sqe::get_property(Register::CC.0, PropertySize(2)))
        .is(invalid);
    // CAP.NSSRS and CAP.NSSS are 0.
    world
        .command(admin, Sqe::get_property(Register::NSSR.0, four))
        .is(invalid);
    world
        .command(admin, Sqe::get_property(Register::NSSD.0, four))
        .is(invalid);
}

/// Base 2.1 §6.6: CC is the only writable property.
#[test]
fn read_only_properties_cannot_be_written() {
    let mut world = World::new();
    let admin = world.connect(0, &ConnectOptions::default());
    let invalid = Status::INVALID_FIELD.with_dnr();
    for register in [
        Register::CAP,
        Register::VS,
        Register::CSTS,
        Register::NSSR,
        Register::CRTO,
    ] {
        let size = register.size().expect("a register");
        world
            .command(admin, Sqe::set_property(register.0, size, 0x4e56_4d65))
            .is(invalid);
    }
    let wide = Sqe::set_property(Register::CC.0, PropertySize::BYTES_8, 1);
    world.command(admin, wide).is(invalid);
    let nowhere = Sqe::set_property(0x18, PropertySize::BYTES_4, 1);
    world.command(admin, nowhere).is(invalid);
    assert!(!world.csts(admin).rdy());
}

/// Base 2.1 §3.1.4: the values of the properties.
#[test]
fn property_values() {
    let mut world = World::new();
    let admin = world.connect(0, &ConnectOptions::default());
    let cap = Cap::from_bits(get(&mut world, admin, Register::CAP));
    assert_eq!(cap.mqes(), u32::from(QUEUE_DEPTH_MAX));
    assert!(cap.cqr() && cap.css().nvm() && cap.css().profiles() && cap.crwms());
    assert!(!cap.nssrs() && !cap.nsss() && !cap.crims());
    assert_eq!((cap.mpsmin(), cap.mpsmax(), cap.dstrd()), (0, 0, 0));
    assert_eq!(cap.timeout_ms(), 60_000);
    let crto = Crto::from_bits(get(&mut world, admin, Register::CRTO) as u32);
    assert_eq!(u32::from(crto.crwmt()) * 500, cap.timeout_ms());
    let version = Version::from_bits(get(&mut world, admin, Register::VS) as u32);
    assert_eq!(version, Version::V2_1);
    assert_eq!(get(&mut world, admin, Register::CC), 0);
    assert_eq!(get(&mut world, admin, Register::CSTS), 0);
    let discovery = world.connect(0, &discovery_call());
    let cap = Cap::from_bits(get(&mut world, discovery, Register::CAP));
    assert!(cap.mqes() >= 32);
}

/// Base 2.1 §3.1.4.1 (TO), §3.1.4.21 (CRWMT), §5.1.13.2.1 (CQT): the longest time of any supported
/// device. Hosts read it when they connect, and devices may be added later.
#[test]
fn cap_to_and_cqt_cover_devices_added_later() {
    for namespaces in [0, 1, 4] {
        let mut world = World::new();
        let mut served = subsystem_namespaces(&world);
        served.truncate(namespaces);
        world
            .target
            .update_namespaces(SUBSYSTEM, served)
            .expect("a right change");
        let admin = world.enabled(0);
        let cap = Cap::from_bits(get(&mut world, admin, Register::CAP));
        let crto = Crto::from_bits(get(&mut world, admin, Register::CRTO) as u32);
        assert_eq!((cap.to(), crto.crwmt()), (120, 120));
        let identify = Sqe::identify_structure(Cns::CONTROLLER, 0);
        let page = world.read(admin, identify, 4096).ok();
        let page = IdentifyController::read_from_bytes(&page).expect("4096 bytes");
        // Two seconds to close connections, and the limits of devices.
        let devices = block::GIVEN_UP_MAX + block::ABANDONED_MAX;
        assert_eq!(u64::from(page.cqt.get()), 2_000 + devices.as_millis());
    }
}

fn subsystem_namespaces(world: &World) -> Vec<nvme_target::NamespaceConfig> {
    let mut subsystems = crate::harness::config(&world.devices()).subsystems;
    subsystems.retain(|subsystem| subsystem.nqn == SUBSYSTEM);
    subsystems.pop().expect("it is there").namespaces
}

/// MQES and MAXCMD keep the values that a host read when it connected: a change applies to later
/// controllers.
#[test]
fn queue_depth_change_applies_to_later_controllers() {
    let mut world = World::new();
    let before = world.enabled(0);
    let told = Cap::from_bits(get(&mut world, before, Register::CAP)).mqes();
    let change = |world: &mut World, depth| {
        let mut subsystems = crate::harness::config(&world.devices()).subsystems;
        subsystems.retain(|subsystem| subsystem.nqn == SUBSYSTEM);
        let mut subsystem = subsystems.pop().expect("it is there");
        subsystem.queue_depth_max = depth;
        let updated = world.target.update_subsystem(subsystem);
        updated.expect("a right change");
        world.settle();
    };
    let depth_of = |world: &mut World, admin: Link| {
        let cap = Cap::from_bits(get(world, admin, Register::CAP));
        let identify = Sqe::identify_structure(Cns::CONTROLLER, 0);
        let page = world.read(admin, identify, 4096).ok();
        let page = IdentifyController::read_from_bytes(&page).expect("4096 bytes");
        assert_eq!(u32::from(page.maxcmd.get()), cap.mqes());
        cap.mqes()
    };
    for depth in [8, 2 * QUEUE_DEPTH_MAX] {
        change(&mut world, depth);
        assert_eq!(depth_of(&mut world, before), told);
        let after = world.enabled(0);
        assert_eq!(depth_of(&mut world, after), u32::from(depth));
        for (admin, allowed) in [(before, told as u16), (after, depth)] {
            let call = |sqsize_z| ConnectOptions {
                cntlid: admin.info.controller_id,
                qid: 1,
                sqsize_z,
                ..ConnectOptions::default()
            };
            assert!(world.try_connect(0, &call(allowed)).is_err());
            let io = world.connect(0, &call(allowed - 1));
            world.command(io, Sqe::flush(RAM)).ok();
            world.close(io);
        }
        world.close(after);
    }
}

/// Base 2.1 §6.5, §6.6: properties belong to the admin queue.
#[test]
fn property_commands_on_an_io_queue_are_refused() {
    let mut world = World::new();
    let (_, io) = world.ready();
    let invalid = Status::INVALID_OPCODE.with_dnr();
    let four = PropertySize::BYTES_4;
    world
        .command(io, Sqe::get_property(Register::CSTS.0, four))
        .is(invalid);
    world
        .command(io, Sqe::set_property(Register::CC.0, four, 0))
        .is(invalid);
}

/// Base 2.1 §3.5.2: before CSTS.RDY only Fabrics commands are processed.
#[test]
fn only_fabrics_commands_are_processed_before_ready() {
    let mut world = World::new();
    let admin = world.connect(0, &ConnectOptions::default());
    let sequence = Status::COMMAND_SEQUENCE_ERROR.with_dnr();
    let identify = Sqe::identify_structure(Cns::CONTROLLER, 0);
    world.read(admin, identify, 4096).is(sequence);
    world.command(admin, Sqe::keep_alive()).is(sequence);
    world
        .command(admin, Sqe::async_event_request())
        .is(sequence);
    world.set_cc(admin, Cc::enabled_nvm());
    assert_eq!(
        get(&mut world, admin, Register::CC),
        u64::from(Cc::enabled_nvm().into_bits())
    );
    assert_eq!(world.read(admin, identify, 4096).ok().len(), 4096);
}

/// Base 2.1 §3.1.4.5: CC that requests what CAP does not offer is a fatal status, which a reset
/// clears.
#[test]
fn unsupported_cc_value_sets_cfs() {
    let good = Cc::enabled_nvm();
    let bad = [
        good.with_iosqes(5),
        good.with_iosqes(0),
        good.with_iocqes(3),
        good.with_mps(1),
        good.with_ams(Arbitration::WEIGHTED),
        good.with_css(CommandSetSelected::ADMIN_ONLY),
        good.with_css(CommandSetSelected(1)),
        good.with_crime(true),
    ];
    for cc in bad {
        let mut world = World::new();
        let admin = world.connect(0, &ConnectOptions::default());
        world.set_cc(admin, cc);
        let csts = world.csts(admin);
        assert!(csts.cfs() && !csts.rdy(), "{cc:?}");
        let reply = world.command(admin, Sqe::keep_alive());
        reply.is(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
        world.set_cc(admin, good.with_en(false));
        assert_eq!(world.csts(admin).into_bits(), 0);
        world.set_cc(admin, good.with_css(CommandSetSelected::ALL_SUPPORTED));
        assert!(world.csts(admin).rdy());
    }
}

/// Base 2.1 §3.1.4.5: fields that may change only while disabled.
#[test]
fn cc_fields_cannot_change_while_enabled() {
    let mut world = World::new();
    let admin = world.enabled(0);
    let good = Cc::enabled_nvm();
    for cc in [
        good.with_mps(1),
        good.with_css(CommandSetSelected::ALL_SUPPORTED),
    ] {
        let value = u64::from(cc.into_bits());
        let sqe = Sqe::set_property(Register::CC.0, PropertySize::BYTES_4, value);
        world
            .command(admin, sqe)
            .is(Status::INVALID_FIELD.with_dnr());
    }
    assert!(world.csts(admin).rdy());
    assert_eq!(
        get(&mut world, admin, Register::CC),
        u64::from(good.into_bits())
    );
}

/// Base 2.1 §3.7.2: a reset ends the I/O queues and keeps the admin queue.
#[test]
fn a_reset_ends_the_io_queues() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    world.set_feature(admin, FeatureId::ARBITRATION, 7).ok();
    world.set_cc(admin, Cc::new());
    assert!(world.csts(admin).rdy(), "an I/O queue is still there");
    world
        .command(io, Sqe::read(RAM, 0, 0))
        .is(Status::COMMAND_SEQUENCE_ERROR);
    world.settle();
    assert_eq!(world.close_reasons(0), [CloseReason::ControllerReset]);
    world
        .command(io, Sqe::flush(RAM))
        .is(Status::ABORTED_SQ_DELETION);
    world.close(io);
    world.settle();
    assert_eq!(world.csts(admin).into_bits(), 0);
    world.set_cc(admin, Cc::enabled_nvm());
    assert!(world.csts(admin).rdy());
    let again = world.io_queue(0, admin, 1);
    world.read_blocks(again, RAM, 0, 1);
    let feature = Sqe::get_feature(FeatureId::ARBITRATION, Default::default(), 0, 0);
    assert_eq!(
        world.command(admin, feature).dw0(),
        0,
        "features have their defaults again"
    );
}

/// Base 2.1 §3.7.2: CSTS.RDY changes to 0 only when no earlier command can reach the medium.
#[test]
fn reset_waits_for_device_requests() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    world.fault.arm(HOLD, true);
    let write = Sqe::write(RAM, 0, 0, false).with_cid(3);
    let sgl = nvme_spec::sgl::SglDescriptor::transport(512);
    world
        .start(io, write.with_sgl(sgl), &[7; 512])
        .expect_err("held in the device");
    world.set_cc(admin, Cc::new());
    world.settle();
    world.close(io);
    world.settle();
    assert!(world.csts(admin).rdy(), "a write is in the device");
    assert_eq!(world.leases(), 1);
    world.fault.release();
    world.settle();
    assert!(!world.csts(admin).rdy());
    assert_eq!(world.leases(), 0, "the orphan's lease came home");
}

/// A write whose data arrives after a reset never reaches the device.
#[test]
fn write_data_received_after_a_reset_is_dropped() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    let write = Sqe::write(CACHED, 0, 0, false).with_cid(4);
    let write = write.with_sgl(nvme_spec::sgl::SglDescriptor::transport(4096));
    let now = world.now;
    let admission = world.nodes[0].core.admit(io.queue, 9, &write, now);
    let nvme_target::Admission::Work(work) = admission else {
        panic!("{admission:?}")
    };
    world.set_cc(admin, Cc::new());
    let reply = world
        .execute(io, 9, work, &[5; 4096])
        .expect("answered at once");
    reply.is(Status::ABORTED_SQ_DELETION);
    assert!(world.cached.take().is_empty());
    assert_eq!(world.leases(), 0);
}

/// If a host sets CC.EN again without waiting for CSTS.RDY, the controller is enabled after the
/// reset.
#[test]
fn enable_during_reset_takes_effect_after_it() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    world.set_cc(admin, Cc::new());
    world.set_cc(admin, Cc::enabled_nvm());
    world
        .command(admin, Sqe::keep_alive())
        .is(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    world.settle();
    world.close(io);
    world.settle();
    world.command(admin, Sqe::keep_alive()).ok();
}

fn shutdown(world: &mut World, admin: Link, notification: ShutdownNotification) {
    world.set_cc(admin, Cc::enabled_nvm().with_shn(notification));
}

/// Base 2.1 §3.6.2: a normal shutdown flushes the caches before it is complete.
#[test]
fn a_normal_shutdown_flushes() {
    let mut world = World::new();
    let (admin, io) = world.ready();
    world.cached.take();
    world.cached_fault.arm(HOLD, true);
    shutdown(&mut world, admin, ShutdownNotification::NORMAL);
    world.settle();
    let csts = world.csts(admin);
    assert_eq!((csts.rdy(), csts.shst()), (true, ShutdownStatus::OCCURRING));
    assert_eq!(world.cached.take(), [(block::Operation::Flush, 0, 0)]);
    world
        .command(io, Sqe::read(RAM, 0, 0))
        .is(Status::COMMAND_SEQUENCE_ERROR);
    world.cached_fault.release();
    world.settle();
    assert_eq!(world.csts(admin).shst(), ShutdownStatus::COMPLETE);
    assert!(world.closes(0).is_empty(), "the host ends the connections");
    world
        .command(admin, Sqe::keep_alive())
        .is(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
}

/// Base 2.1 §3.6.2, §3.1.4.6: a cache that cannot be flushed does not delay the shutdown, and the
/// status reports the failure until a reset.
#[test]
fn a_failing_flush_does_not_stop_a_shutdown() {
    let mut world = World::new();
    let admin = world.enabled(0);
    world.cached_fault.arm(FAIL_INTERNAL, true);
    shutdown(&mut world, admin, ShutdownNotification::NORMAL);
    world.settle();
    let csts = world.csts(admin);
    assert_eq!(csts.shst(), ShutdownStatus::COMPLETE);
    assert!(csts.cfs(), "what was written is not durable");
    world.cached_fault.arm(FAIL_INTERNAL, false);
    world.set_cc(admin, Cc::new());
    assert_eq!(world.csts(admin).into_bits(), 0);
    world.set_cc(admin, Cc::enabled_nvm());
    shutdown(&mut world, admin, ShutdownNotification::NORMAL);
    world.settle();
    let csts = world.csts(admin);
    assert_eq!((csts.shst(), csts.cfs()), (ShutdownStatus::COMPLETE, false));
}

/// Base 2.1 §3.6.2: an abrupt shutdown completes immediately, also during a normal one.
#[test]
fn an_abrupt_shutdown_does_not_flush() {
    let mut world = World::new();
    let admin = world.enabled(0);
    shutdown(&mut world, admin, ShutdownNotification::ABRUPT);
    assert_eq!(world.csts(admin).shst(), ShutdownStatus::COMPLETE);
    assert!(world.cached.take().is_empty());
    let other = world.enabled(0);
    world.cached_fault.arm(HOLD, true);
    shutdown(&mut world, other, ShutdownNotification::NORMAL);
    shutdown(&mut world, other, ShutdownNotification::ABRUPT);
    assert_eq!(world.csts(other).shst(), ShutdownStatus::COMPLETE);
}

/// Base 2.1 §3.6.2: a reset after a shutdown allows the controller to be enabled again.
#[test]
fn reset_after_shutdown_allows_enabling_again() {
    let mut world = World::new();
    let admin = world.enabled(0);
    shutdown(&mut world, admin, ShutdownNotification::ABRUPT);
    world.set_cc(admin, Cc::new());
    assert_eq!(world.csts(admin).into_bits(), 0);
    world.set_cc(admin, Cc::enabled_nvm());
    world.command(admin, Sqe::keep_alive()).ok();
    let disabled = world.connect(0, &ConnectOptions::default());
    world.set_cc(disabled, Cc::new().with_shn(ShutdownNotification::NORMAL));
    let csts = world.csts(disabled);
    assert_eq!((csts.rdy(), csts.shst()), (false, ShutdownStatus::COMPLETE));
}
