//! Identify pages, logs, features, registers and events: what a host and a target read and write.

use nvme_spec::command::CommandSet;
use nvme_spec::event::{AsyncEvent, EventType};
use nvme_spec::features::{NumberOfQueues, Timestamp, TimestampAttributes, TimestampOrigin};
use nvme_spec::identify::*;
use nvme_spec::log::*;
use nvme_spec::rdma::{ConnectAccept, ConnectReject, ConnectRequest, RejectReason};
use nvme_spec::registers::*;
use nvme_spec::{NSID_BROADCAST, U16, U32, U64};
use proptest::prelude::*;
use zerocopy::{FromBytes, FromZeros, IntoBytes, KnownLayout};

#[test]
fn namespace_list_is_limited_to_1024_and_zero_terminated() {
    let mut list = NamespaceList {
        entries: [U32::new(9); 1024],
    };
    list.fill([1, 2, 7]);
    assert_eq!(list.iter().collect::<Vec<_>>(), [1, 2, 7]);
    assert_eq!(
        list.as_bytes()[..16],
        [1, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]
    );
    assert!(list.as_bytes()[16..].iter().all(|byte| *byte == 0));
    list.fill(1..=2000);
    assert_eq!(list.iter().count(), 1024);
    list.fill([]);
    assert_eq!(list.iter().count(), 0);
}

#[test]
fn controller_list_limits_an_excessive_count() {
    let mut list = ControllerList::default();
    list.fill(0..3000);
    assert_eq!(list.count.get(), 2047);
    list.count = U16::new(u16::MAX);
    assert_eq!(list.iter().count(), 2047);
    list.fill([5, 6]);
    assert_eq!(list.iter().collect::<Vec<_>>(), [5, 6]);
    assert_eq!(list.as_bytes()[..6], [2, 0, 5, 0, 6, 0]);
}

#[test]
fn changed_namespaces_overflow() {
    let mut changed = ChangedNamespaces::default();
    changed.fill(1..=1024);
    assert!(!changed.is_overflow());
    assert_eq!(changed.0.iter().count(), 1024);
    changed.fill(1..=1025);
    assert!(changed.is_overflow());
    assert_eq!(changed.0.iter().collect::<Vec<_>>(), [NSID_BROADCAST]);
    changed.fill([].into_iter());
    assert!(!changed.is_overflow());
}

#[test]
fn command_set_combinations() {
    let vector = CommandSetVector::default()
        .with(CommandSet::NVM)
        .with(CommandSet::ZONED);
    assert_eq!(vector.as_bytes(), [0b101, 0, 0, 0, 0, 0, 0, 0]);
    assert!(vector.contains(CommandSet::ZONED));
    assert!(!vector.contains(CommandSet::KEY_VALUE));
    assert_eq!(vector.with(CommandSet(64)), vector);
    assert!(!vector.contains(CommandSet(255)));
    assert!(vector.with(CommandSet(63)).contains(CommandSet(63)));
}

const IDS: [NamespaceId; 4] = [
    NamespaceId::Eui64([1, 2, 3, 4, 5, 6, 7, 8]),
    NamespaceId::Nguid([2; 16]),
    NamespaceId::Uuid([3; 16]),
    NamespaceId::CommandSet(CommandSet::NVM),
];

#[test]
fn namespace_descriptors_on_the_wire() {
    let mut page = [0xff; IDENTIFY_BYTES];
    let mut writer = NamespaceIdWriter::new(&mut page);
    for id in &IDS {
        writer.push(id).unwrap();
    }
    assert_eq!(page[..12], [1, 8, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(page[12..16], [2, 16, 0, 0]);
    assert_eq!(page[32..36], [3, 16, 0, 0]);
    assert_eq!(page[52..57], [4, 1, 0, 0, 0]);
    assert!(page[57..].iter().all(|byte| *byte == 0));
    assert_eq!(NamespaceIds::new(&page).collect::<Vec<_>>(), IDS);
}

#[test]
fn namespace_descriptors_do_not_overflow_the_page() {
    let mut page = [0; IDENTIFY_BYTES];
    let mut writer = NamespaceIdWriter::new(&mut page);
    let mut count = 0;
    while writer.push(&IDS[1]).is_ok() {
        count += 1;
    }
    assert_eq!(count, IDENTIFY_BYTES / 20);
    // The remaining 16 bytes have room for a smaller identifier.
    assert_eq!(writer.push(&IDS[0]), Ok(()));
    assert_eq!(writer.push(&IDS[3]), Err(DescriptorsFull));
    assert_eq!(NamespaceIds::new(&page).count(), count + 1);
}

#[test]
fn malformed_namespace_descriptors_are_ignored() {
    let read = |data: &[u8]| NamespaceIds::new(data).collect::<Vec<_>>();
    assert!(read(&[]).is_empty());
    assert!(read(&[1, 8, 0]).is_empty());
    assert!(read(&[1, 8, 0, 0, 1, 2]).is_empty());
    assert!(read(&[3, 255, 0, 0]).is_empty());
    assert!(read(&[0; 64]).is_empty());
    // Bytes after the end are not read.
    assert!(read(&[0, 0, 0, 0, 4, 1, 0, 0, 2]).is_empty());
    // A wrong length and an unknown type are skipped.
    let mixed = [2, 1, 0, 0, 9, 0x77, 2, 0, 0, 1, 1, 4, 1, 0, 0, 2];
    assert_eq!(read(&mixed), [NamespaceId::CommandSet(CommandSet::ZONED)]);
}

#[test]
fn lba_formats() {
    assert_eq!(LbaFormat::with_block_bytes(0), None);
    assert_eq!(LbaFormat::with_block_bytes(256), None);
    assert_eq!(LbaFormat::with_block_bytes(1000), None);
    assert_eq!(
        LbaFormat::with_block_bytes(512).unwrap().as_bytes(),
        [0, 0, 9, 0]
    );
    assert_eq!(
        LbaFormat::with_block_bytes(4096).unwrap().as_bytes(),
        [0, 0, 12, 0]
    );
    for (lbads, bytes) in [
        (0, None),
        (8, None),
        (9, Some(512)),
        (31, Some(1 << 31)),
        (32, None),
    ] {
        assert_eq!(
            LbaFormat {
                lbads,
                ..LbaFormat::default()
            }
            .block_bytes(),
            bytes
        );
    }
}

#[test]
fn lba_format_in_use() {
    let mut page = IdentifyNamespace::default();
    assert_eq!(page.block_bytes(), None);
    page.lbaf[0] = LbaFormat::with_block_bytes(512).unwrap();
    page.lbaf[17] = LbaFormat::with_block_bytes(4096).unwrap();
    assert_eq!(page.block_bytes(), Some(512));
    page.flbas = Flbas::new().with_index_low(1).with_index_high(1);
    assert_eq!(page.flbas.index(), 17);
    // FLBAS exceeds the existing formats.
    assert_eq!(page.block_bytes(), None);
    page.nlbaf_z = 17;
    assert_eq!(page.block_bytes(), Some(4096));
    page.nlbaf_z = 255;
    assert_eq!(page.formats().len(), LBA_FORMATS);
}

#[test]
fn transfer_size_follows_mdts() {
    let mut page = IdentifyController::default();
    assert_eq!(page.transfer_bytes_max(4096), None);
    page.mdts = 8;
    assert_eq!(page.transfer_bytes_max(4096), Some(1 << 20));
    page.mdts = 51;
    assert_eq!(page.transfer_bytes_max(4096), Some(1 << 63));
    page.mdts = 52;
    assert_eq!(page.transfer_bytes_max(4096), None);
    page.mdts = 255;
    assert_eq!(page.transfer_bytes_max(4096), None);
}

#[test]
fn in_capsule_data() {
    let mut page = IdentifyController::default();
    assert_eq!(page.in_capsule_data_bytes(), 0);
    page.set_in_capsule_data_bytes(8192);
    assert_eq!(page.ioccsz.get(), 4 + 512);
    assert_eq!(page.in_capsule_data_bytes(), 8192);
    page.set_in_capsule_data_bytes(15);
    assert_eq!(page.in_capsule_data_bytes(), 0);
    page.ioccsz = U32::new(516);
    page.icdoff = U16::new(u16::MAX);
    assert_eq!(page.in_capsule_data_bytes(), 0);
}

#[test]
fn identify_controller_in_a_buffer() {
    let mut buffer = [0; 1 + IDENTIFY_BYTES];
    // An odd address: nothing needs alignment.
    let page = IdentifyController::mut_from_bytes(&mut buffer[1..]).unwrap();
    page.mdts = 5;
    page.ctratt = Ctratt::new().with_hids(true).with_tbkas(true);
    page.kas = U16::new(10);
    page.ver = U32::new(Version::V2_1.into_bits());
    assert_eq!(page.version(), Version::V2_1);
    assert_eq!(buffer[1 + 77], 5);
    assert_eq!(buffer[1 + 96], 0x41);
    assert_eq!(buffer[1 + 320], 10);
    assert_eq!(buffer[81..85], [0, 1, 2, 0]);
}

#[test]
fn versions_are_ordered() {
    assert!(Version::V1_4 < Version::V2_0);
    assert!(Version::V2_0 < Version::V2_1);
    assert_eq!(Version::V1_4.into_bits(), 0x0001_0400);
}

#[test]
fn data_units_round_up() {
    assert_eq!(data_units(0), 0);
    assert_eq!(data_units(1), 1);
    assert_eq!(data_units(512_000), 1);
    assert_eq!(data_units(512_001), 2);
    assert_eq!(data_units(u128::MAX), u128::MAX / 512_000 + 1);
}

#[test]
fn ana_log() {
    let mut log = Vec::new();
    log.extend_from_slice(AnaHeader::new(3, 2).as_bytes());
    log.extend_from_slice(AnaGroupDescriptor::new(1, 2, 7, AnaState::OPTIMIZED).as_bytes());
    log.extend_from_slice(&[1, 0, 0, 0, 2, 0, 0, 0]);
    log.extend_from_slice(AnaGroupDescriptor::new(2, 0, 8, AnaState::INACCESSIBLE).as_bytes());
    assert_eq!(log[16..20], [1, 0, 0, 0]);
    assert_eq!(log[32], 0x01);

    let groups = AnaGroups::new(&log).unwrap().collect::<Vec<_>>();
    assert_eq!(groups.len(), 2);
    assert_eq!(groups[0].1, [U32::new(1), U32::new(2)]);
    assert_eq!(groups[1].0.state.state(), AnaState::INACCESSIBLE);

    // The header's count ends the log, even if more groups follow.
    log[8] = 1;
    assert_eq!(AnaGroups::new(&log).unwrap().count(), 1);
    log[8] = 2;

    assert!(AnaGroups::new(&log[..15]).is_none());
    assert_eq!(AnaGroups::new(&log[..55]).unwrap().count(), 0);
    assert_eq!(AnaGroups::new(&log[..56]).unwrap().count(), 1);
    // A group with more identifiers than a page could hold.
    log[20..24].fill(0xff);
    assert_eq!(AnaGroups::new(&log).unwrap().count(), 0);
}

#[test]
fn discovery_subtypes() {
    let mut entry = DiscoveryEntry::default();
    entry.trtype = TransportType::RDMA;
    entry.rdma_mut().qptype = RdmaQpType::RELIABLE_CONNECTED;
    entry.rdma_mut().cms = RdmaCms::RDMA_CM;
    entry.rdma_mut().pkey = U16::new(0x1234);
    assert_eq!(entry.tsas[..10], [1, 0, 1, 0, 0, 0, 0, 0, 0x34, 0x12]);
    assert_eq!(entry.rdma().prtype, RdmaProvider(0));
    entry.tcp_mut().sectype = TcpSecurity::TLS_1_3;
    assert_eq!(entry.tcp().sectype, TcpSecurity(2));
    assert_eq!(entry.as_bytes()[768], 2);
}

#[test]
fn async_event_values() {
    let table = [
        (AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED, 0x0004_0002),
        (AsyncEvent::FIRMWARE_ACTIVATION_STARTING, 0x0003_0102),
        (AsyncEvent::TELEMETRY_LOG_CHANGED, 0x0008_0202),
        (AsyncEvent::ANA_CHANGED, 0x000c_0302),
        (AsyncEvent::DISCOVERY_LOG_CHANGED, 0x0070_f002),
        (AsyncEvent::RESERVATION_LOG_AVAILABLE, 0x0080_0006),
        (AsyncEvent::SANITIZE_COMPLETED, 0x0081_0106),
        (AsyncEvent::INVALID_DOORBELL_REGISTER, 0x0001_0000),
        (AsyncEvent::PERSISTENT_INTERNAL_ERROR, 0x0001_0300),
        (AsyncEvent::SPARE_BELOW_THRESHOLD, 0x0002_0201),
    ];
    for (event, dw0) in table {
        assert_eq!(event.into_bits(), dw0, "{event:?}");
    }
    assert_eq!(
        AsyncEvent::from_bits(u32::MAX).event_type(),
        EventType::VENDOR
    );
}

#[test]
fn numbers_of_queues() {
    let request = NumberOfQueues::from_bits(0x0003_0007);
    assert_eq!((request.nsq(), request.ncq()), (8, 4));
    assert!(!request.is_invalid_request());
    assert!(NumberOfQueues::from_bits(0x0003_ffff).is_invalid_request());
    assert!(NumberOfQueues::from_bits(0xffff_0003).is_invalid_request());
    assert_eq!(NumberOfQueues::from_bits(u32::MAX).nsq(), 65_536);
}

#[test]
fn timestamps_have_48_bits() {
    let attributes = TimestampAttributes::new().with_origin(TimestampOrigin::SET);
    let timestamp = Timestamp::new(0xffff_0102_0304_0506, attributes);
    assert_eq!(timestamp.as_bytes(), [6, 5, 4, 3, 2, 1, 2, 0]);
    assert_eq!(timestamp.milliseconds(), 0x0102_0304_0506);
}

#[test]
fn capabilities() {
    let cap = Cap::new()
        .with_mqes_z(127)
        .with_to(30)
        .with_mpsmax(4)
        .with_dstrd(1);
    assert_eq!(cap.mqes(), 128);
    assert_eq!(cap.timeout_ms(), 15_000);
    assert_eq!(cap.page_bytes_min(), 4096);
    assert_eq!(cap.page_bytes_max(), 65_536);
    assert_eq!(cap.doorbell_stride_bytes(), 8);
    let all = Cap::from_bits(u64::MAX);
    assert_eq!(all.mqes(), 65_536);
    assert_eq!(all.page_bytes_max(), 1 << 27);
    assert_eq!(all.doorbell_stride_bytes(), 1 << 17);
}

#[test]
fn doorbells() {
    let cap = Cap::new();
    assert_eq!(sq_tail_doorbell(cap, 0), 0x1000);
    assert_eq!(cq_head_doorbell(cap, 0), 0x1004);
    assert_eq!(sq_tail_doorbell(cap, 3), 0x1018);
    assert_eq!(cq_head_doorbell(cap, 3), 0x101c);
    let wide = cap.with_dstrd(15);
    assert_eq!(
        cq_head_doorbell(wide, u16::MAX),
        0x1000 + 131_071 * (1 << 17)
    );
}

#[test]
fn property_sizes() {
    use nvme_spec::fabrics::PropertySize;

    assert_eq!(Register::CAP.size(), Some(PropertySize::BYTES_8));
    assert_eq!(Register::ACQ.size(), Some(PropertySize::BYTES_8));
    assert_eq!(Register::CC.size(), Some(PropertySize::BYTES_4));
    assert_eq!(Register(0x04).size(), None);
    assert_eq!(Register(0x1000).size(), None);
    assert!(Register::CSTS.is_for_fabrics());
    assert!(!Register::AQA.is_for_fabrics());
    assert!(!Register(0x04).is_for_fabrics());
}

#[test]
fn controller_configuration() {
    assert_eq!(Cc::enabled_nvm().into_bits(), 0x0046_0001);
    assert_eq!(Cc::from_bits(0x0046_0081).page_bytes(), 8192);
    assert_eq!(
        Cc::new().with_shn(ShutdownNotification::NORMAL).into_bits(),
        0x4000
    );
    assert_eq!(
        Csts::new()
            .with_shst(ShutdownStatus::COMPLETE)
            .with_rdy(true)
            .into_bits(),
        0x9
    );
}

#[test]
fn magic_values_are_ascii() {
    assert_eq!(NSSR_RESET.to_be_bytes(), *b"NVMe");
    assert_eq!(NSSD_NORMAL.to_be_bytes(), *b"Nrml");
    assert_eq!(NSSD_ABRUPT.to_be_bytes(), *b"Abpt");
}

#[test]
fn memory_buffer_units() {
    assert_eq!(Cmbsz::new().with_sz(3).size_bytes(), Some(3 * 4096));
    assert_eq!(
        Cmbsz::new().with_sz(1).with_szu(1).size_bytes(),
        Some(64 << 10)
    );
    assert_eq!(Cmbsz::new().with_szu(6).unit_bytes(), Some(64 << 30));
    assert_eq!(
        Cmbsz::new().with_szu(6).with_sz(0xf_ffff).size_bytes(),
        Some(0xf_ffff << 36)
    );
    assert_eq!(Cmbsz::new().with_szu(7).size_bytes(), None);
    assert_eq!(Cmbsz::from_bits(u32::MAX).size_bytes(), None);
}

#[test]
fn rdma_private_data() {
    let request = ConnectRequest::new(1, 128, 127, 9);
    let mut expected = [0; 32];
    expected[..10].copy_from_slice(&[0, 0, 1, 0, 128, 0, 127, 0, 9, 0]);
    assert_eq!(request.as_bytes(), expected);
    assert_eq!(request.hsqsize(), 128);
    assert_eq!(ConnectRequest::new(0, 0, u16::MAX, 0).hsqsize(), 65_536);
    assert_eq!(ConnectAccept::new(0x0203).as_bytes()[..4], [0, 0, 3, 2]);
    let reject = ConnectReject::new(RejectReason::INVALID_HSQSIZE);
    assert_eq!(reject.as_bytes(), [0, 0, 4, 0]);
    assert_eq!(reject.reason().to_string(), "invalid host send queue size");
}

/// Fills a page with arbitrary bytes; every reader below must accept it.
fn page<T: FromBytes + FromZeros + IntoBytes + KnownLayout>(seed: &[u8]) -> T {
    let mut page = T::new_zeroed();
    for (slot, byte) in page.as_mut_bytes().iter_mut().zip(seed.iter().cycle()) {
        *slot = *byte;
    }
    page
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_pages(seed in proptest::collection::vec(any::<u8>(), 1..97)) {
        let controller: IdentifyController = page(&seed);
        let _ = controller.transfer_bytes_max(4096);
        let _ = controller.in_capsule_data_bytes();
        let _ = format!("{} {} {}", controller.sn, controller.subnqn, controller.cntrltype);
        let namespace: IdentifyNamespace = page(&seed);
        let _ = (namespace.block_bytes(), namespace.formats().len());
        prop_assert!(page::<NamespaceList>(&seed).iter().count() <= 1024);
        prop_assert!(page::<ControllerList>(&seed).iter().count() <= 2047);
        let _ = format!("{:?}", page::<NvmIdentifyNamespace>(&seed));
        let _ = format!("{:?}", page::<NvmIdentifyController>(&seed));
        let _ = format!("{:?}", page::<IndependentIdentifyNamespace>(&seed));
        let _ = format!("{:?}", page::<DiscoveryEntry>(&seed));
        let _ = format!("{:?}", page::<ErrorEntry>(&seed));
        let _ = format!("{:?}", page::<SmartHealth>(&seed));
        let _ = format!("{:?}", page::<FirmwareSlots>(&seed));
        let _ = format!("{:?}", page::<CommandsSupported>(&seed));
        let _ = page::<ChangedNamespaces>(&seed).is_overflow();
    }

    #[test]
    fn arbitrary_lists(data in proptest::collection::vec(any::<u8>(), 0..512)) {
        prop_assert!(NamespaceIds::new(&data).count() <= data.len() / 5);
        if let Some(groups) = AnaGroups::new(&data) {
            prop_assert!(groups.count() <= data.len() / 32);
        }
    }

    #[test]
    fn namespace_descriptors_round_trip(
        picks in proptest::collection::vec((0..4_usize, any::<[u8; 16]>()), 0..40),
    ) {
        let ids = picks.iter().map(|(pick, id)| match pick {
            0 => NamespaceId::Eui64(*id.first_chunk().unwrap()),
            1 => NamespaceId::Nguid(*id),
            2 => NamespaceId::Uuid(*id),
            _ => NamespaceId::CommandSet(CommandSet(id[0])),
        });
        let ids = ids.collect::<Vec<_>>();
        let mut page = [0xaa; IDENTIFY_BYTES];
        let mut writer = NamespaceIdWriter::new(&mut page);
        for id in &ids {
            prop_assert_eq!(writer.push(id), Ok(()));
        }
        prop_assert_eq!(NamespaceIds::new(&page).collect::<Vec<_>>(), ids);
    }

    #[test]
    fn arbitrary_registers(cap: u64, cc: u32, cmbsz: u32, qid: u16) {
        let cap = Cap::from_bits(cap);
        let tail = sq_tail_doorbell(cap, qid);
        prop_assert_eq!(cq_head_doorbell(cap, qid), tail + u64::from(cap.doorbell_stride_bytes()));
        prop_assert!(cap.page_bytes_min().is_power_of_two());
        prop_assert!(Cc::from_bits(cc).page_bytes() >= 4096);
        let _ = Cmbsz::from_bits(cmbsz).size_bytes();
        let _ = format!("{:?} {:?} {:?}", cap, Cc::from_bits(cc), Csts::from_bits(cc));
    }

    #[test]
    fn ana_round_trip(groups in proptest::collection::vec((any::<u32>(), 0..9_u32), 0..6)) {
        let mut log = AnaHeader::new(1, groups.len() as u16).as_bytes().to_vec();
        for (grpid, nnsids) in &groups {
            let descriptor = AnaGroupDescriptor::new(*grpid, *nnsids, 0, AnaState::CHANGE);
            log.extend_from_slice(descriptor.as_bytes());
            for nsid in 0..*nnsids {
                log.extend_from_slice(U32::new(nsid).as_bytes());
            }
        }
        let read = AnaGroups::new(&log).unwrap().map(|(descriptor, nsids)| {
            assert!(nsids.iter().zip(0..).all(|(nsid, expected)| nsid.get() == expected));
            (descriptor.grpid.get(), nsids.len() as u32)
        });
        prop_assert_eq!(read.collect::<Vec<_>>(), groups);
    }

    #[test]
    fn reservation_notifications_round_trip(lpc: u64, kind: u8, nalp: u8, nsid: u32) {
        let kind = ReservationNotificationType(kind);
        let page = ReservationNotification::new(lpc, kind, nalp, nsid);
        let seen = (page.lpc, page.kind, page.nalp, page.nsid.get());
        prop_assert_eq!(seen, (U64::new(lpc), kind, nalp, nsid));
    }
}
