//! Identify, features, log pages and events (Base 2.1 §5.1).

use nvme_driver_testing::{EmulatedNamespace, EmulatedOptions, Fault, FaultMatch, FaultRule, When};
use nvme_spec::command::{Cns, CommandSet, FeatureId, FeatureSelect, LogPageSelect, Sqe};
use nvme_spec::event::AsyncEvent;
use nvme_spec::features::{AsyncEventConfiguration, NumberOfQueues};
use nvme_spec::identify::{
    IdentifyController, IdentifyNamespace, NamespaceId, NamespaceIds, NamespaceList,
};
use nvme_spec::log::{ChangedNamespaces, CriticalWarning, ErrorEntry, LogPageId, SmartHealth};
use nvme_spec::registers::Version;
use nvme_spec::{NSID_BROADCAST, Status};
use zerocopy::FromBytes;

use crate::harness::{Host, PAGE};

fn options() -> EmulatedOptions {
    let mut large = EmulatedNamespace::new(3, 4096, 100);
    large.block_count_max = 200;
    large.uuid = [9; 16];
    let mut detached = EmulatedNamespace::new(9, 512, 10);
    detached.attached = false;
    EmulatedOptions {
        namespaces: vec![EmulatedNamespace::new(1, 512, 1000), large, detached],
        ..EmulatedOptions::default()
    }
}

/// Runs a command that returns one page of data.
fn page(host: &mut Host, sqe: Sqe) -> Result<Vec<u8>, Status> {
    let buffer = host.buffer(PAGE);
    buffer.write(0, &[0xee; PAGE]);
    let status = host.admin_status(sqe.with_prp(host.address(&buffer), 0));
    let mut bytes = vec![0; PAGE];
    buffer.read(0, &mut bytes);
    if status.is_success() {
        Ok(bytes)
    } else {
        Err(status)
    }
}

fn identify(host: &mut Host, cns: Cns, nsid: u32) -> Result<Vec<u8>, Status> {
    page(host, Sqe::identify_structure(cns, nsid))
}

fn log<T: FromBytes>(host: &mut Host, id: LogPageId) -> T {
    let words = size_of::<T>() as u32 / 4 - 1;
    let select = LogPageSelect::new().with_lid(id).with_numd_z(words);
    let bytes = page(host, Sqe::log_page(NSID_BROADCAST, select, 0)).unwrap();
    T::read_from_prefix(&bytes).map_err(|_| "short").unwrap().0
}

#[test]
fn invalid_identify_is_refused() {
    const NAMESPACE: Status = Status::INVALID_NAMESPACE_OR_FORMAT;
    const FIELD: Status = Status::INVALID_FIELD;
    let mut host = Host::new(options());
    let cases = [
        (Cns::NAMESPACE, 0, NAMESPACE),
        (Cns::NAMESPACE, 10, NAMESPACE),
        (Cns::NAMESPACE, NSID_BROADCAST, NAMESPACE),
        (Cns::NAMESPACE_DESCRIPTORS, 2, NAMESPACE),
        (Cns::NAMESPACE_DESCRIPTORS, 9, NAMESPACE),
        (Cns::ACTIVE_NAMESPACE_LIST, NSID_BROADCAST, NAMESPACE),
        (Cns::ACTIVE_NAMESPACE_LIST, NSID_BROADCAST - 1, NAMESPACE),
        (Cns::IO_NAMESPACE, 2, NAMESPACE),
        (Cns(0x55), 0, FIELD),
    ];
    for (cns, nsid, expected) in cases {
        assert_eq!(
            identify(&mut host, cns, nsid),
            Err(expected),
            "{cns} of {nsid}"
        );
    }
    let zoned = Sqe::identify_for_command_set(Cns::IO_CONTROLLER, 0, CommandSet::ZONED);
    assert_eq!(page(&mut host, zoned), Err(FIELD));
    let mut old = Host::new(EmulatedOptions {
        version: Version::V1_4,
        ..options()
    });
    assert_eq!(identify(&mut old, Cns::IO_CONTROLLER, 0), Err(FIELD));
    let offset = Sqe::identify_structure(Cns::CONTROLLER, 0).with_prp(2, 0);
    assert_eq!(host.admin_status(offset), Status::PRP_OFFSET_INVALID);
    let nowhere = Sqe::identify_structure(Cns::CONTROLLER, 0).with_prp(0, 0);
    assert_eq!(host.admin_status(nowhere), Status::DATA_TRANSFER_ERROR);
}

#[test]
fn identify_fields() {
    let mut host = Host::new(options());
    let bytes = identify(&mut host, Cns::CONTROLLER, 0).unwrap();
    let controller = IdentifyController::read_from_bytes(&bytes).unwrap();
    assert_eq!(controller.sn.as_str(), Some("WINDLASS0001"));
    assert_eq!(controller.fr.as_str(), Some("1.0"));
    assert_eq!((controller.nn.get(), controller.mdts), (9, 8));
    assert!(controller.vwc.present() && controller.oncs.compare());
    let bytes = identify(&mut host, Cns::ACTIVE_NAMESPACE_LIST, 0).unwrap();
    let list = NamespaceList::read_from_bytes(&bytes).unwrap();
    assert_eq!(list.iter().collect::<Vec<_>>(), [1, 3]);
    let bytes = identify(&mut host, Cns::ACTIVE_NAMESPACE_LIST, 1).unwrap();
    let list = NamespaceList::read_from_bytes(&bytes).unwrap();
    assert_eq!(list.iter().collect::<Vec<_>>(), [3]);
    let bytes = identify(&mut host, Cns::NAMESPACE, 3).unwrap();
    let namespace = IdentifyNamespace::read_from_bytes(&bytes).unwrap();
    assert_eq!(
        (namespace.nsze.get(), namespace.block_bytes()),
        (100, Some(4096))
    );
    let inactive = identify(&mut host, Cns::NAMESPACE, 2).unwrap();
    assert!(inactive.iter().all(|byte| *byte == 0));
    let bytes = identify(&mut host, Cns::NAMESPACE_DESCRIPTORS, 3).unwrap();
    let ids: Vec<_> = NamespaceIds::new(&bytes).collect();
    assert!(ids.contains(&NamespaceId::Uuid([9; 16])));
    assert_eq!(ids.len(), 4);
}

#[test]
fn features_are_validated_and_stored() {
    let mut host = Host::new(options());
    let set = |fid, value| Sqe::set_feature(fid, 0, value);
    let cases = [
        (
            set(FeatureId::NUMBER_OF_QUEUES, 0xffff),
            Status::INVALID_FIELD,
        ),
        (
            set(FeatureId::NUMBER_OF_QUEUES, 0xffff_0000),
            Status::INVALID_FIELD,
        ),
        (set(FeatureId(0x7a), 0), Status::INVALID_FIELD),
        (
            set(FeatureId::INTERRUPT_VECTOR_CONFIGURATION, 9),
            Status::INVALID_FIELD,
        ),
        (
            Sqe::get_feature(FeatureId(0x7a), FeatureSelect::CURRENT, 0, 0),
            Status::INVALID_FIELD,
        ),
    ];
    for (number, (sqe, expected)) in cases.into_iter().enumerate() {
        assert_eq!(host.admin_status(sqe), expected, "case {number}");
    }
    let asked = NumberOfQueues::new().with_nsq_z(99).with_ncq_z(99);
    let cqe = host.run_admin(set(FeatureId::NUMBER_OF_QUEUES, asked.into_bits()));
    let granted = NumberOfQueues::from_bits(cqe.dw0.get());
    assert_eq!((granted.nsq(), granted.ncq()), (8, 8));
    host.pair(1, 4, 4);
    let late = host.admin_status(set(FeatureId::NUMBER_OF_QUEUES, 0));
    assert_eq!(late, Status::COMMAND_SEQUENCE_ERROR);
    assert_eq!(
        host.admin_status(set(FeatureId::ERROR_RECOVERY, 77)),
        Status::SUCCESS
    );
    let get = |select| Sqe::get_feature(FeatureId::ERROR_RECOVERY, select, 0, 0);
    assert_eq!(host.run_admin(get(FeatureSelect::CURRENT)).dw0.get(), 77);
    assert_eq!(host.run_admin(get(FeatureSelect::DEFAULT)).dw0.get(), 0);
    host.disable();
    host.enable();
    assert_eq!(host.run_admin(get(FeatureSelect::CURRENT)).dw0.get(), 0);
    let mut uncached = Host::new(EmulatedOptions {
        write_cache: false,
        ..options()
    });
    let cache = Sqe::set_feature(FeatureId::VOLATILE_WRITE_CACHE, 0, 1);
    assert_eq!(uncached.admin_status(cache), Status::INVALID_FIELD);
}

#[test]
fn invalid_log_page_requests_are_refused() {
    let mut host = Host::new(options());
    let select = |id| LogPageSelect::new().with_lid(id).with_numd_z(15);
    let smart = select(LogPageId::SMART_HEALTH);
    let cases = [
        (
            Sqe::log_page(0, select(LogPageId(0xc0)), 0),
            Status::INVALID_LOG_PAGE,
        ),
        (Sqe::log_page(1, smart, 0), Status::INVALID_LOG_PAGE),
        (Sqe::log_page(0, smart, 516), Status::INVALID_FIELD),
        (Sqe::log_page(0, smart, 2), Status::INVALID_FIELD),
        (
            Sqe::log_page(0, smart.with_numd_z(u32::MAX), 0),
            Status::INVALID_FIELD,
        ),
    ];
    for (number, (sqe, expected)) in cases.into_iter().enumerate() {
        assert_eq!(page(&mut host, sqe), Err(expected), "case {number}");
    }
}

#[test]
fn errors_are_logged_newest_first() {
    let mut host = Host::new(options());
    let mut pair = host.pair(1, 8, 8);
    let bad = FaultMatch::io().with_blocks(40..41);
    let fault = Fault::Status(Status::UNRECOVERED_READ_ERROR.with_dnr());
    host.control
        .inject(FaultRule::new(bad, When::Always, fault));
    let data = host.buffer(PAGE);
    let read = host.run_io(&mut pair, Sqe::read(1, 38, 7), &data);
    assert_eq!(read, Status::UNRECOVERED_READ_ERROR);
    let far = host.run_io(&mut pair, Sqe::read(1, 4000, 0), &data);
    assert_eq!(far, Status::LBA_OUT_OF_RANGE);
    let entries: [ErrorEntry; 3] = log(&mut host, LogPageId::ERROR_INFORMATION);
    let found = entries.map(|entry| (entry.error_count.get(), entry.lba.get(), entry.sqid.get()));
    assert_eq!(found, [(2, 4000, 1), (1, 38, 1), (0, 0, 0)]);
    let smart: SmartHealth = log(&mut host, LogPageId::SMART_HEALTH);
    assert_eq!(
        (smart.media_errors.get(), smart.error_log_entries.get()),
        (1, 2)
    );
    assert_eq!(smart.temperature.get(), 310);
}

#[test]
fn events_are_masked_until_their_log_page_is_read() {
    let mut host = Host::new(options());
    // Notices are not enabled, so no event is reported.
    host.push_admin(Sqe::async_event_request());
    assert!(host.control.resize_namespace(3, 120));
    assert!(host.pop_admin().is_none());
    let wanted = AsyncEventConfiguration::new()
        .with_namespace_attribute(true)
        .with_temperature(true);
    let set = Sqe::set_feature(FeatureId::ASYNC_EVENT_CONFIGURATION, 0, wanted.into_bits());
    host.push_admin(set);
    assert!(host.pop_admin().unwrap().status().is_success());
    assert!(host.control.resize_namespace(3, 150));
    let event = host.pop_admin().expect("an event").dw0.get();
    assert_eq!(event, AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED.into_bits());
    host.push_admin(Sqe::async_event_request());
    assert!(host.control.attach_namespace(9, true));
    assert!(host.control.protect_namespace(1, true));
    assert!(!host.control.attach_namespace(77, true));
    assert!(host.pop_admin().is_none(), "masked until the list was read");
    host.control.set_temperature(400);
    let event = host.pop_admin().expect("another kind").dw0.get();
    assert_eq!(event, AsyncEvent::TEMPERATURE_THRESHOLD.into_bits());
    let list: ChangedNamespaces = log(&mut host, LogPageId::CHANGED_ATTACHED_NAMESPACES);
    assert_eq!(list.0.iter().collect::<Vec<_>>(), [1, 3, 9]);
    let list: ChangedNamespaces = log(&mut host, LogPageId::CHANGED_ATTACHED_NAMESPACES);
    assert_eq!(list.0.iter().count(), 0);
    let smart: SmartHealth = log(&mut host, LogPageId::SMART_HEALTH);
    assert_eq!(
        smart.critical_warning,
        CriticalWarning::new().with_temperature(true)
    );
    let bytes = identify(&mut host, Cns::NAMESPACE, 3).unwrap();
    let namespace = IdentifyNamespace::read_from_bytes(&bytes).unwrap();
    assert_eq!(namespace.nsze.get(), 150);
}
