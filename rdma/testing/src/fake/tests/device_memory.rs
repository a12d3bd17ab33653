//! Registrations of memory of another device, such as a drive: an RDMA device reads and writes it, as
//! long as it is registered.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hugemem::{
    DeviceLease, DeviceMemory, DmaBuf, Export, NotExported, PagePolicy, Region, SharedRegion,
    Sharing,
};

use rustix::fs::fstat;

use super::suite::SERVER;
use super::{on_fabric, on_immediate_fabric};
use crate::conformance::harness::{Pair, Side, pattern};
use crate::fake::{DeviceConfig, Fabric, FabricConfig, Fake};
use rdma::{
    Access, CompletionStatus, Device, DomainMemory, Error, Payload, Provider, QueuePair,
    SendOperation, SendRequest,
};

const SLICE: usize = 4096;
/// Where the memory begins in its file.
const OFFSET: usize = 8192;

/// Memory of a device with two slices, and its content from `OFFSET` on.
fn device_memory() -> (Arc<DeviceMemory>, SharedRegion) {
    device_memory_at(OFFSET as u64)
}

fn device_memory_at(offset: u64) -> (Arc<DeviceMemory>, SharedRegion) {
    let region = Region::map(OFFSET + 2 * SLICE, PagePolicy::Ordinary).expect("memory");
    let descriptor = region.as_fd().try_clone_to_owned().expect("a descriptor");
    let export = Export::DmaBuf(DmaBuf::new(descriptor, offset));
    let own = Sharing::Own("it is of a test".to_owned());
    let memory = DeviceMemory::with_export(1 << 44, 2 * SLICE as u64, SLICE, own, export);
    let content = SharedRegion::new(region).expect("a second mapping");
    (memory.expect("two slices"), content)
}

/// Posts an RDMA write from the lease, or a read into it, of `len` bytes.
fn post(
    side: &mut Side<Fake>,
    domain: &DomainMemory<Fake>,
    lease: &DeviceLease,
    operation: SendOperation,
    (offset, len): (usize, u32),
) {
    let map = domain.map();
    let key = map.device_key(lease.memory()).expect("registered");
    let piece = map.piece_in_device(key, lease, offset, len).expect("begun");
    assert_eq!(piece.length(), len);
    let request = SendRequest::new(7, operation, Payload::Memory(std::slice::from_ref(&piece)));
    side.queue_pair.queue_send(&request).expect("queued");
    side.queue_pair.flush().expect("posted");
}

#[test]
fn memory_that_cannot_be_registered_is_refused_with_a_reason() {
    let fabric = Fabric::new(FabricConfig::IMMEDIATE);
    let soft = DeviceConfig {
        registers_device_memory: false,
        ..DeviceConfig::new("rxe0", SERVER)
    };
    let machine = fabric.machine(&[soft]).expect("descriptors");
    let device = machine.devices().expect("one").remove(0);
    let domain =
        DomainMemory::<Fake>::new(device.create_domain().expect("a domain"), Access::LOCAL);
    let (memory, _content) = device_memory();
    let refused = domain.attach_device_memory(&memory);
    assert!(matches!(
        refused,
        Err(NotExported::Failed(Error::NoDeviceMemory(_)))
    ));
    let own = Sharing::Own("it is of a test".to_owned());
    let private = DeviceMemory::new(0, SLICE as u64, SLICE, own).expect("a slice");
    assert!(matches!(
        domain.attach_device_memory(&private),
        Err(NotExported::Refused(_))
    ));
    assert_eq!(fabric.objects().registrations, 0);
    assert!(domain.map().device_key(&memory).is_none());
}

#[test]
fn memory_that_exceeds_its_file_is_refused() {
    on_immediate_fabric(|fabric, harness| {
        let pair = harness.pair();
        let before = fabric.objects().registrations;
        let domain = DomainMemory::<Fake>::new(pair.client.domain.clone(), Access::LOCAL);
        for offset in [OFFSET as u64 + 4096, u64::MAX] {
            let (memory, _content) = device_memory_at(offset);
            assert!(matches!(
                domain.attach_device_memory(&memory),
                Err(NotExported::Failed(Error::Misuse(_)))
            ));
        }
        assert_eq!(fabric.objects().registrations, before);
    });
}

#[test]
fn bytes_move_between_a_device_and_a_host() {
    on_immediate_fabric(|_, harness| {
        let Pair {
            mut server,
            mut client,
            listener: _listener,
            ..
        } = harness.pair();
        let domain = DomainMemory::<Fake>::new(client.domain.clone(), Access::LOCAL);
        let (memory, content) = device_memory();
        domain.attach_device_memory(&memory).expect("registered");
        domain.attach_device_memory(&memory).expect("once");
        let mut lease = memory.take_slices(2).expect("free");
        let key = domain.map().device_key(&memory).expect("registered");
        let piece = |lease: &DeviceLease, offset, bytes| {
            domain.map().piece_in_device(key, lease, offset, bytes)
        };
        assert!(piece(&lease, 0, 512).is_none(), "no request has begun");
        assert!(lease.begin_all_by_neighbour());
        let rest = piece(&lease, SLICE - 512, 4096).expect("begun");
        assert_eq!(rest.length(), 512, "to the end of the slice");

        let bytes = pattern(2048, 3);
        content.view().write(OFFSET + SLICE + 512, &bytes);
        let write = SendOperation::Write(server.memory.remote(100));
        post(&mut client, &domain, &lease, write, (SLICE + 512, 2048));
        harness.expect_success(&mut client, 7);
        assert_eq!(server.memory.bytes(100, 2048), bytes);

        server.memory.fill(5000, 1024, 9);
        let read = SendOperation::Read(server.memory.remote(5000));
        post(&mut client, &domain, &lease, read, (1024, 1024));
        harness.expect_success(&mut client, 7);
        let mut read_bytes = vec![0; 1024];
        content.view().read(OFFSET + 1024, &mut read_bytes);
        assert_eq!(read_bytes, server.memory.bytes(5000, 1024));
        lease.complete();
        harness.expect_nothing(&mut server);
    });
}

/// A request that is in flight when the registration ends fails, and nothing is copied.
#[test]
fn ended_memory_is_not_accessed() {
    on_fabric(FabricConfig::manual(5), |fabric, harness| {
        let Pair {
            server,
            mut client,
            listener: _listener,
            ..
        } = harness.pair();
        let before = fabric.objects().registrations;
        let domain = DomainMemory::<Fake>::new(client.domain.clone(), Access::LOCAL);
        let (memory, content) = device_memory();
        domain.attach_device_memory(&memory).expect("registered");
        let version = domain.version();
        let map = domain.map();
        assert_eq!(fabric.objects().registrations, before + 1);
        let mut lease = memory.take().expect("free");
        assert!(lease.begin_all_by_neighbour());
        content.view().write(OFFSET, &pattern(512, 3));
        let unwritten = server.memory.bytes(0, 512);
        let write = SendOperation::Write(server.memory.remote(0));
        post(&mut client, &domain, &lease, write, (0, 512));
        memory.end();
        assert_eq!(memory.neighbours_in_flight(), 1);
        memory.revoke_exports();
        assert_eq!(fabric.objects().registrations, before, "a map has it");
        harness.expect(&mut client, 7, CompletionStatus::LOCAL_PROTECTION_ERROR);
        assert_eq!(server.memory.bytes(0, 512), unwritten);
        lease.complete();
        assert!(matches!(
            domain.attach_device_memory(&device_memory().0),
            Ok(())
        ));
        domain.retain_device_memory(|number| number != memory.number());
        assert!(domain.map().device_key(&memory).is_none());
        assert_ne!(domain.version(), version);
        drop(map);
    });
}

/// Requests whose memory is that of a device which has left its slot fail, also after it came back.
#[test]
fn memory_of_a_removed_device_is_not_accessed() {
    on_fabric(FabricConfig::manual(6), |fabric, harness| {
        let (memory, content) = device_memory();
        let status = fstat(content.region().as_fd()).expect("a file");
        let insertion = Arc::new(AtomicU64::new(1));
        let of_slot = Arc::clone(&insertion);
        fabric.add_slot((status.st_dev, status.st_ino), move || {
            Some(of_slot.load(Ordering::Relaxed)).filter(|it| it % 2 == 1)
        });
        content.view().write(OFFSET, &pattern(512, 3));
        let mut write_at = |moves, expected| {
            let Pair {
                server,
                mut client,
                listener: _listener,
                ..
            } = harness.pair();
            let domain = DomainMemory::<Fake>::new(client.domain.clone(), Access::LOCAL);
            domain.attach_device_memory(&memory).expect("registered");
            let mut lease = memory.take().expect("free");
            assert!(lease.begin_all_by_neighbour());
            let unwritten = server.memory.bytes(0, 512);
            let write = SendOperation::Write(server.memory.remote(0));
            post(&mut client, &domain, &lease, write, (0, 512));
            insertion.fetch_add(moves, Ordering::Relaxed);
            harness.expect(&mut client, 7, expected);
            let is_written = server.memory.bytes(0, 512) == pattern(512, 3);
            assert_eq!(is_written, expected == CompletionStatus::SUCCESS);
            assert!(is_written || server.memory.bytes(0, 512) == unwritten);
            lease.complete();
            domain.retain_device_memory(|number| number != memory.number());
        };
        write_at(0, CompletionStatus::SUCCESS);
        write_at(1, CompletionStatus::LOCAL_PROTECTION_ERROR);
        // Registered while it was away.
        write_at(1, CompletionStatus::LOCAL_PROTECTION_ERROR);
        write_at(0, CompletionStatus::SUCCESS);
        // Away and back.
        write_at(2, CompletionStatus::LOCAL_PROTECTION_ERROR);
    });
}
