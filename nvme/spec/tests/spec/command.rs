//! Commands as built by a host, byte by byte, and as read by a controller.

use nvme_spec::command::*;
use nvme_spec::fabrics::*;
use nvme_spec::sgl::{Sgl, SglDescriptor};
use nvme_spec::{Cqe, NSID_BROADCAST, Sqe, Status, zero_based_u16};
use proptest::prelude::*;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// A 64-byte command with the given bytes; all others are zero.
fn bytes(parts: &[(usize, &[u8])]) -> [u8; 64] {
    let mut command = [0; 64];
    for (at, part) in parts {
        command[*at..*at + part.len()].copy_from_slice(part);
    }
    command
}

#[test]
fn connect_matches_what_a_kernel_host_sends() {
    let sqe = Sqe::connect_queue(1, 127, ConnectAttributes::new(), 0)
        .with_cid(0x1234)
        .with_sgl(SglDescriptor::in_capsule(0, 1024));
    let expected = bytes(&[
        (0, &[0x7f, 0x40, 0x34, 0x12, 0x01]),
        (32, &1024_u32.to_le_bytes()),
        (39, &[0x01]),
        (40, &[0, 0, 1, 0, 127, 0]),
    ]);
    assert_eq!(sqe.as_bytes(), expected);
    assert!(sqe.is_fabrics());
    assert_eq!(sqe.fctype(), FabricsType::CONNECT);
    assert_eq!(sqe.direction(), DataDirection::HostToController);
    assert_eq!(sqe.connect().sqsize(), 128);
}

#[test]
fn property_command_wire_forms() {
    let get = Sqe::get_property(0x1c, PropertySize::BYTES_4);
    assert_eq!(
        get.as_bytes(),
        bytes(&[(0, &[0x7f, 0, 0, 0, 0x04]), (44, &[0x1c])])
    );
    assert_eq!(get.direction(), DataDirection::None);

    let set = Sqe::set_property(0x14, PropertySize::BYTES_4, 0x0046_0001).with_cid(7);
    let expected = bytes(&[
        (0, &[0x7f, 0, 7, 0, 0x00]),
        (44, &[0x14]),
        (48, &[0x01, 0x00, 0x46, 0x00]),
    ]);
    assert_eq!(set.as_bytes(), expected);

    let wide = Sqe::set_property(0x28, PropertySize::BYTES_8, 0x1122_3344_5566_7788);
    assert_eq!(wide.property().attrib.size(), PropertySize::BYTES_8);
    assert_eq!(wide.property().sized_value(), 0x1122_3344_5566_7788);
    let mut property = wide.property();
    property.attrib = PropertyAttributes::new().with_size(PropertySize::BYTES_4);
    let narrow = wide.with_property(property);
    assert_eq!(narrow.property().sized_value(), 0x5566_7788);
}

#[test]
fn reads_and_writes() {
    let read = Sqe::read(3, 0x0102_0304_0506_0708, 7).with_cid(9);
    let expected = bytes(&[
        (0, &[0x02, 0, 9, 0, 3]),
        (40, &[0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01]),
        (48, &[7]),
    ]);
    assert_eq!(read.as_bytes(), expected);
    assert_eq!(read.read_write().blocks(), 8);
    assert_eq!(read.direction(), DataDirection::ControllerToHost);

    let write = Sqe::write(1, 16, 0xffff, true);
    assert_eq!(
        write.as_bytes(),
        bytes(&[
            (0, &[0x01]),
            (4, &[1]),
            (40, &[16]),
            (48, &[0xff, 0xff, 0, 0x40])
        ])
    );
    assert_eq!(write.read_write().blocks(), 65_536);
    assert_eq!(write.direction(), DataDirection::HostToController);

    let compare = Sqe::compare(1, 2, 3);
    assert_eq!(
        compare.as_bytes(),
        bytes(&[(0, &[0x05]), (4, &[1]), (40, &[2]), (48, &[3])])
    );
    assert_eq!(compare.direction(), DataDirection::HostToController);

    let flush = Sqe::flush(NSID_BROADCAST);
    assert_eq!(flush.as_bytes(), bytes(&[(4, &[0xff; 4])]));
    assert_eq!(flush.direction(), DataDirection::None);
}

#[test]
fn write_zeroes_and_deallocate() {
    let control = WriteZeroesControl::new()
        .with_nlb_z(1)
        .with_deac(true)
        .with_nsz(true);
    let zeroes = Sqe::write_zeroes_range(2, 4, control);
    assert_eq!(
        zeroes.as_bytes(),
        bytes(&[
            (0, &[0x08]),
            (4, &[2]),
            (40, &[4]),
            (48, &[1, 0, 0x80, 0x02])
        ])
    );
    assert_eq!(zeroes.direction(), DataDirection::None);
    assert_eq!(zeroes.write_zeroes().blocks(), 2);

    let deallocate = Sqe::deallocate(2, 255);
    assert_eq!(
        deallocate.as_bytes(),
        bytes(&[(0, &[0x09]), (4, &[2]), (40, &[255]), (44, &[0x04])])
    );
    assert_eq!(deallocate.dataset_management().ranges(), DATASET_RANGES_MAX);
    assert_eq!(deallocate.dataset_management().data_length_bytes(), 4096);
    assert_eq!(deallocate.direction(), DataDirection::HostToController);

    let mut range = [0; 16];
    range[4] = 8;
    range[8] = 0x40;
    assert_eq!(DatasetRange::new(0x40, 8).as_bytes(), range);
}

#[test]
fn copy_and_its_ranges() {
    let copy = Sqe::copy_ranges(2, 4, 15);
    assert_eq!(
        copy.as_bytes(),
        bytes(&[(0, &[0x19]), (4, &[2]), (40, &[4]), (48, &[15])])
    );
    assert_eq!(copy.copy().ranges(), 16);
    assert_eq!(copy.copy().data_length_bytes(), 512);
    assert_eq!(copy.direction(), DataDirection::HostToController);

    let mut range = [0; 32];
    range[8] = 0x40;
    range[16] = 7;
    assert_eq!(CopyRange::new(0x40, 7).as_bytes(), range);
    assert_eq!(CopyRange::new(0x40, 7).blocks(), 8);

    let copy = Sqe::copy_from_namespaces(2, 4, 15);
    assert_eq!(
        copy.as_bytes(),
        bytes(&[(0, &[0x19]), (4, &[2]), (40, &[4]), (48, &[15, 2])])
    );
    range[0] = 9;
    assert_eq!(CopyRange::of_namespace(9, 0x40, 7).as_bytes(), range);
}

#[test]
fn admin_commands() {
    let identify = Sqe::identify_for_command_set(Cns::IO_NAMESPACE, 5, CommandSet::ZONED);
    assert_eq!(
        identify.as_bytes(),
        bytes(&[(0, &[0x06]), (4, &[5]), (40, &[0x05]), (47, &[0x02])])
    );
    let plain = Sqe::identify_structure(Cns::CONTROLLER, 0);
    assert_eq!(plain.as_bytes(), bytes(&[(0, &[0x06]), (40, &[0x01])]));

    let get = Sqe::get_feature(FeatureId::KEEP_ALIVE_TIMER, FeatureSelect::SAVED, 0, 0x55);
    assert_eq!(
        get.as_bytes(),
        bytes(&[(0, &[0x0a]), (40, &[0x0f, 0x02]), (44, &[0x55])])
    );
    let set = Sqe::set_feature(FeatureId::NUMBER_OF_QUEUES, 0, 0x0003_0002);
    assert_eq!(
        set.as_bytes(),
        bytes(&[(0, &[0x09]), (40, &[0x07]), (44, &[2, 0, 3, 0])])
    );

    let select = LogPageSelect::new()
        .with_lid(LogPageId::DISCOVERY)
        .with_rae(true)
        .with_numd_z(0x0001_02ff);
    let log = Sqe::log_page(0, select, 0x1_0000_0400);
    assert_eq!(
        log.as_bytes(),
        bytes(&[
            (0, &[0x02]),
            (40, &[0x70, 0x80, 0xff, 0x02, 0x01, 0x00]),
            (48, &[0x00, 0x04, 0, 0, 1]),
        ])
    );
    assert_eq!(log.get_log_page().length_bytes(), 0x1_0300 * 4);

    let abort = Sqe::abort_command(3, 0x0a0b);
    assert_eq!(
        abort.as_bytes(),
        bytes(&[(0, &[0x08]), (40, &[3, 0, 0x0b, 0x0a])])
    );
    assert_eq!(
        Sqe::async_event_request().as_bytes(),
        bytes(&[(0, &[0x0c])])
    );
    assert_eq!(Sqe::keep_alive().as_bytes(), bytes(&[(0, &[0x18])]));
    assert_eq!(
        Sqe::disconnect_queue().as_bytes(),
        bytes(&[(0, &[0x7f, 0, 0, 0, 8])])
    );
}

#[test]
fn longest_log_page_does_not_overflow() {
    let select = LogPageSelect::new().with_numd_z(u32::MAX);
    assert_eq!(
        Sqe::log_page(0, select, 0).get_log_page().length_bytes(),
        1 << 34
    );
}

#[test]
fn direction_of_every_command() {
    use DataDirection::{ControllerToHost, HostToController, None};
    let table = [
        (AdminOpcode::IDENTIFY.0, ControllerToHost),
        (AdminOpcode::GET_LOG_PAGE.0, ControllerToHost),
        (AdminOpcode::GET_FEATURES.0, ControllerToHost),
        (AdminOpcode::SET_FEATURES.0, HostToController),
        (AdminOpcode::ABORT.0, None),
        (AdminOpcode::ASYNC_EVENT_REQUEST.0, None),
        (AdminOpcode::KEEP_ALIVE.0, None),
        (IoOpcode::READ.0, ControllerToHost),
        (IoOpcode::WRITE.0, HostToController),
        (IoOpcode::COMPARE.0, HostToController),
        (IoOpcode::RESERVATION_REPORT.0, ControllerToHost),
        (FabricsType::CONNECT.0, HostToController),
        (FabricsType::AUTHENTICATION_SEND.0, HostToController),
        (FabricsType::AUTHENTICATION_RECEIVE.0, ControllerToHost),
        (FabricsType::PROPERTY_GET.0, None),
        (FabricsType::PROPERTY_SET.0, None),
        (FabricsType::DISCONNECT.0, None),
        (0x03, DataDirection::Bidirectional),
    ];
    for (opcode, direction) in table {
        assert_eq!(DataDirection::from_opcode(opcode), direction, "{opcode:#x}");
    }
}

#[test]
fn connect_responses() {
    let authreq = AuthenticationRequirements::new().with_authentication(true);
    let success = Cqe::connected(5, 0x0102, authreq);
    assert_eq!(
        success.as_bytes(),
        [2, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0]
    );
    assert_eq!(success.connect_success().cntlid(), 0x0102);

    let fault = Cqe::connect_invalid(5, ConnectField::SubsystemNqn);
    // Status 182h with Do Not Retry, after the phase tag.
    assert_eq!(
        fault.as_bytes(),
        [0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0x04, 0x83]
    );
    assert!(fault.status().is(Status::CONNECT_INVALID_PARAMETERS));
    assert!(fault.connect_invalid_parameters().in_data());
}

#[test]
fn zero_based_counts() {
    assert_eq!(zero_based_u16(0), None);
    assert_eq!(zero_based_u16(1), Some(0));
    assert_eq!(zero_based_u16(65_536), Some(65_535));
    assert_eq!(zero_based_u16(65_537), None);
    assert_eq!(zero_based_u16(u32::MAX), None);
}

#[test]
fn open_enumerations_keep_unknown_values() {
    assert_eq!(AdminOpcode(0xc1).name(), None);
    assert_eq!(AdminOpcode(0xc1).to_string(), "unknown (0xc1)");
    assert_eq!(AdminOpcode::KEEP_ALIVE.to_string(), "Keep Alive");
    assert_eq!(format!("{:?}", IoOpcode::READ), "IoOpcode(0x2)");
}

proptest! {
    /// Every view of a command accepts arbitrary bytes, and writing a view back changes nothing.
    #[test]
    fn views_of_arbitrary_commands(raw: [u8; 32], rest: [u8; 32]) {
        let mut all = [0; 64];
        all[..32].copy_from_slice(&raw);
        all[32..].copy_from_slice(&rest);
        let sqe = Sqe::read_from_bytes(&all).unwrap();

        prop_assert_eq!(sqe.with_read_write(sqe.read_write()), sqe);
        prop_assert_eq!(sqe.with_write_zeroes(sqe.write_zeroes()), sqe);
        prop_assert_eq!(sqe.with_dataset_management(sqe.dataset_management()), sqe);
        prop_assert_eq!(sqe.with_copy(sqe.copy()), sqe);
        prop_assert_eq!(sqe.with_identify(sqe.identify()), sqe);
        prop_assert_eq!(sqe.with_get_features(sqe.get_features()), sqe);
        prop_assert_eq!(sqe.with_set_features(sqe.set_features()), sqe);
        prop_assert_eq!(sqe.with_get_log_page(sqe.get_log_page()), sqe);
        prop_assert_eq!(sqe.with_abort(sqe.abort()), sqe);
        prop_assert_eq!(sqe.with_create_io_cq(sqe.create_io_cq()), sqe);
        prop_assert_eq!(sqe.with_create_io_sq(sqe.create_io_sq()), sqe);
        prop_assert_eq!(sqe.with_delete_io_queue(sqe.delete_io_queue()), sqe);
        prop_assert_eq!(sqe.with_connect(sqe.connect()), sqe);
        prop_assert_eq!(sqe.with_property(sqe.property()), sqe);
        prop_assert_eq!(sqe.with_disconnect(sqe.disconnect()), sqe);
        prop_assert_eq!(sqe.with_authentication(sqe.authentication()), sqe);
        prop_assert_eq!(sqe.with_reservation_register(sqe.reservation_register()), sqe);
        prop_assert_eq!(sqe.with_reservation_acquire(sqe.reservation_acquire()), sqe);
        prop_assert_eq!(sqe.with_reservation_release(sqe.reservation_release()), sqe);
        prop_assert_eq!(sqe.with_reservation_report(sqe.reservation_report()), sqe);

        let _ = (sqe.direction(), sqe.dptr.sgl().decode(), sqe.dptr.prp());
        let _ = (sqe.connect().sqsize(), sqe.property().sized_value());
        let _ = (sqe.read_write().blocks(), sqe.write_zeroes().blocks());
        let _ = (sqe.dataset_management().data_length_bytes(), sqe.get_log_page().length_bytes());
        let _ = (sqe.reservation_report().length_bytes(), sqe.fctype().to_string());
        let _ = format!("{sqe:?} {} {}", sqe.admin_opcode(), sqe.io_opcode());
    }

    #[test]
    fn data_pointers(prp1: u64, prp2: u64, offset: u64, length: u32, cid: u16) {
        let prp = Sqe::new(2, 1).with_cid(cid).with_prp(prp1, prp2);
        prop_assert_eq!(prp.flags.psdt(), Psdt::PRP);
        prop_assert_eq!(prp.dptr.prp().prp1.get(), prp1);
        prop_assert_eq!(prp.dptr.prp().prp2.get(), prp2);
        prop_assert_eq!(prp.cid.get(), cid);
        prop_assert_eq!(DataPointer::from(prp.dptr.prp()), prp.dptr);

        let sgl = prp.with_sgl(SglDescriptor::in_capsule(offset, length));
        prop_assert_eq!(sgl.flags.psdt(), Psdt::SGL);
        prop_assert_eq!(sgl.dptr.sgl().decode(), Sgl::Offset { offset, length });
        prop_assert_eq!(DataPointer::from(sgl.dptr.sgl()), sgl.dptr);
        prop_assert_eq!(sgl.with_fuse(Fuse::SECOND).flags.fuse(), Fuse::SECOND);
    }

    #[test]
    fn arbitrary_completions(raw: [u8; 16]) {
        let cqe = Cqe::read_from_bytes(&raw).unwrap();
        let _ = (cqe.connect_success(), cqe.connect_invalid_parameters());
        let _ = format!("{cqe:?} {}", cqe.status());
        let mut rebuilt = Cqe::new(cqe.cid.get(), cqe.status()).with_result(cqe.result());
        rebuilt.sqhd = cqe.sqhd;
        rebuilt.sqid = cqe.sqid;
        rebuilt.status = rebuilt.status.with_phase(cqe.status.phase());
        prop_assert_eq!(rebuilt.as_bytes(), raw);
        prop_assert_eq!(cqe.with_dw0(7).dw0.get(), 7);
    }

    #[test]
    fn arbitrary_connect_data(seed: [u8; 32]) {
        let mut data = ConnectData::new_zeroed();
        for (slot, byte) in data.as_mut_bytes().iter_mut().zip(seed.iter().cycle()) {
            *slot = *byte;
        }
        let _ = nvme_spec::nqn::from_field(&data.subnqn);
        let _ = format!("{data:?}");
    }
}
