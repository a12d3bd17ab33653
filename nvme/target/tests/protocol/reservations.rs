//! Reservations (Base 2.1 §8.1.22): access of hosts on every path, preempt with abort, persistence,
//! notifications, reports, and invalid input.

mod handover;

use std::sync::{Arc, Mutex};

use nvme_reservations::{
    HostIdentifier, NamespaceIdentity, PersistenceSupport, ReservationKind, Reservations, decode,
};
use nvme_spec::command::reservation::{
    AcquireAction, AcquireControl, AcquireData, PersistChange, RegisterAction, RegisterControl,
    RegisterData, RegisteredControllerExtended, ReleaseAction, ReleaseControl, ReportControl,
    ReservationAcquire, ReservationRegister, ReservationRelease, ReservationReport,
    ReservationStatusExtendedHeader, ReservationType,
};
use nvme_spec::command::{Cns, FeatureId, FeatureSelect, Fuse, IoOpcode, LogPageId};
use nvme_spec::identify::IdentifyNamespace;
use nvme_spec::log::{ReservationNotification, ReservationNotificationType};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{NSID_BROADCAST, Sqe, Status, U64};
use nvme_target::{
    DeviceIndex, InitialReservations, NamespaceMask, ReservationError, ReservationStore,
    StoreRequest,
};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::harness::{
    CACHED, CLOSED_SUBSYSTEM, ConnectOptions, HOLD, HOST, LATER, Link, PLAIN, RAM, Reply, STRANGER,
    SUBSYSTEM, World,
};

const CONFLICT: Status = Status::RESERVATION_CONFLICT.with_dnr();
const RAM_DEVICE: DeviceIndex = DeviceIndex(0);
const IDENTITY: NamespaceIdentity = NamespaceIdentity([9; 16]);

/// A host with one controller and one I/O queue.
#[derive(Clone, Copy)]
struct Path {
    admin: Link,
    io: Link,
    key: u64,
}

/// A host of the usual name, distinguished by its identifier, which is also its key.
fn host(world: &mut World, node: usize, number: u8) -> Path {
    host_of(world, node, number, ConnectOptions::default())
}

fn host_of(world: &mut World, node: usize, number: u8, call: ConnectOptions<'static>) -> Path {
    let call = ConnectOptions {
        host_id: [number; 16],
        ..call
    };
    let admin = world.enabled_by(node, &call);
    let cntlid = admin.info.controller_id;
    let io = world.connect(
        node,
        &ConnectOptions {
            cntlid,
            qid: 1,
            ..call
        },
    );
    let key = u64::from(number) << 40;
    Path { admin, io, key }
}

fn register_sqe(nsid: u32, control: RegisterControl) -> Sqe {
    let mut command = ReservationRegister::new_zeroed();
    command.control = control;
    Sqe::new(IoOpcode::RESERVATION_REGISTER.0, nsid).with_reservation_register(command)
}

fn acquire_sqe(nsid: u32, action: AcquireAction, rtype: ReservationType) -> Sqe {
    let mut command = ReservationAcquire::new_zeroed();
    command.control = AcquireControl::new().with_action(action).with_rtype(rtype);
    Sqe::new(IoOpcode::RESERVATION_ACQUIRE.0, nsid).with_reservation_acquire(command)
}

fn release_sqe(nsid: u32, action: ReleaseAction, rtype: ReservationType) -> Sqe {
    let mut command = ReservationRelease::new_zeroed();
    command.control = ReleaseControl::new().with_action(action).with_rtype(rtype);
    Sqe::new(IoOpcode::RESERVATION_RELEASE.0, nsid).with_reservation_release(command)
}

fn register_data(current: u64, new: u64) -> Vec<u8> {
    let (crkey, nrkey) = (U64::new(current), U64::new(new));
    RegisterData { crkey, nrkey }.as_bytes().to_vec()
}

fn acquire_data(current: u64, preempt: u64) -> Vec<u8> {
    let (crkey, prkey) = (U64::new(current), U64::new(preempt));
    AcquireData { crkey, prkey }.as_bytes().to_vec()
}

fn register_with(world: &mut World, path: Path, nsid: u32, cptpl: PersistChange) -> Reply {
    let control = RegisterControl::new()
        .with_action(RegisterAction::REGISTER)
        .with_cptpl(cptpl);
    let data = register_data(0, path.key);
    world.write(path.io, register_sqe(nsid, control), &data)
}

fn register(world: &mut World, path: Path) {
    register_with(world, path, RAM, PersistChange::NO_CHANGE).ok();
}

fn acquire(world: &mut World, path: Path, rtype: ReservationType) -> Reply {
    let sqe = acquire_sqe(RAM, AcquireAction::ACQUIRE, rtype);
    world.write(path.io, sqe, &acquire_data(path.key, 0))
}

fn release(world: &mut World, path: Path, rtype: ReservationType) -> Reply {
    let sqe = release_sqe(RAM, ReleaseAction::RELEASE, rtype);
    world.write(path.io, sqe, path.key.as_bytes())
}

/// Starts Preempt and Abort of the host with the key `preempted`.
fn preempt(world: &mut World, path: Path, preempted: u64) -> Result<Reply, u64> {
    let action = AcquireAction::PREEMPT_AND_ABORT;
    let sqe = acquire_sqe(RAM, action, ReservationType::WRITE_EXCLUSIVE);
    let data = acquire_data(path.key, preempted);
    let sqe = sqe.with_sgl(SglDescriptor::transport(data.len() as u32));
    let sqe = sqe.with_cid(world.cid());
    world.start(path.io, sqe, &data)
}

fn write_block(world: &mut World, io: Link, nsid: u32) -> Status {
    let size = if nsid == CACHED { 4096 } else { 512 };
    let sqe = Sqe::write(nsid, 0, 0, false);
    world.write(io, sqe, &vec![7; size]).status()
}

fn read_block(world: &mut World, io: Link, nsid: u32) -> Status {
    world.read(io, Sqe::read(nsid, 0, 0), 512).status()
}

/// Whether a write and a read of [`PLAIN`] complete inline.
fn complete_inline(world: &mut World, io: Link) -> [bool; 2] {
    let now = world.now;
    let core = &mut world.nodes[io.node].core;
    let write = Sqe::write(PLAIN, 0, 0, false).with_sgl(SglDescriptor::in_capsule(0, 512));
    let read = Sqe::read(PLAIN, 0, 0).with_sgl(SglDescriptor::transport(512));
    let written = core.complete_inline(io.queue, &write, Some(&[7; 512]), now);
    let was_written = written.is_some();
    let was_read = core.complete_inline(io.queue, &read, None, now).is_some();
    [was_written, was_read]
}

/// Base 2.1 §8.1.22.1: the table applies on each core, to each way in which a command completes, and
/// to every subsystem with the device; other namespaces are not affected.
#[test]
fn other_hosts_are_restricted_on_every_path() {
    let mut world = World::new();
    let holder = host(&mut world, 0, 1);
    let other = host(&mut world, 1, 2);
    let closed = ConnectOptions {
        subsystem: CLOSED_SUBSYSTEM,
        ..ConnectOptions::default()
    };
    let elsewhere = host_of(&mut world, 1, 2, closed);
    register(&mut world, holder);
    acquire(&mut world, holder, ReservationType::WRITE_EXCLUSIVE).ok();
    let later = host(&mut world, 0, 3);
    for io in [other.io, elsewhere.io, later.io] {
        assert_eq!(write_block(&mut world, io, RAM), CONFLICT);
        assert!(read_block(&mut world, io, RAM).is_success());
    }
    assert!(write_block(&mut world, other.io, PLAIN).is_success());
    let zeroes = Sqe::write_zeroes_range(RAM, 0, Default::default());
    world.command(other.io, zeroes).is(CONFLICT);
    // Neither does anything here: the device has no cache, and no range is deallocated.
    for nsid in [RAM, NSID_BROADCAST] {
        world.command(other.io, Sqe::flush(nsid)).is(CONFLICT);
    }
    world.command(holder.io, Sqe::flush(NSID_BROADCAST)).ok();
    let hint = Sqe::new(IoOpcode::DATASET_MANAGEMENT.0, RAM);
    world.write(other.io, hint, &[0; 16]).is(CONFLICT);
    release(&mut world, holder, ReservationType::WRITE_EXCLUSIVE).ok();
    for io in [other.io, elsewhere.io, later.io] {
        assert!(write_block(&mut world, io, RAM).is_success());
    }
}

/// Commands that complete inline pass the same gate.
#[test]
fn inline_commands_are_restricted() {
    let mut world = World::new();
    let (holder, other) = (host(&mut world, 0, 1), host(&mut world, 1, 2));
    let data = register_data(0, holder.key);
    world
        .write(
            holder.io,
            register_sqe(PLAIN, RegisterControl::new()),
            &data,
        )
        .ok();
    for (rtype, expected) in [
        (ReservationType::WRITE_EXCLUSIVE, [false, true]),
        (ReservationType::EXCLUSIVE_ACCESS, [false, false]),
    ] {
        assert_eq!(complete_inline(&mut world, other.io), [true, true]);
        let sqe = acquire_sqe(PLAIN, AcquireAction::ACQUIRE, rtype);
        world
            .write(holder.io, sqe, &acquire_data(holder.key, 0))
            .ok();
        assert_eq!(complete_inline(&mut world, other.io), expected);
        assert_eq!(complete_inline(&mut world, holder.io), [true, true]);
        let sqe = release_sqe(PLAIN, ReleaseAction::RELEASE, rtype);
        world.write(holder.io, sqe, holder.key.as_bytes()).ok();
    }
}

/// Base 2.1 §8.1.22.1: Exclusive Access forbids reads too, and a registrant of Registrants Only may
/// write.
#[test]
fn types_differ_in_what_they_forbid() {
    let mut world = World::new();
    let (holder, other) = (host(&mut world, 0, 1), host(&mut world, 1, 2));
    register(&mut world, holder);
    acquire(&mut world, holder, ReservationType::EXCLUSIVE_ACCESS).ok();
    assert_eq!(read_block(&mut world, other.io, RAM), CONFLICT);
    let compare = Sqe::compare(RAM, 0, 0);
    world.write(other.io, compare, &[0; 512]).is(CONFLICT);
    release(&mut world, holder, ReservationType::EXCLUSIVE_ACCESS).ok();
    let rtype = ReservationType::EXCLUSIVE_ACCESS_REGISTRANTS_ONLY;
    acquire(&mut world, holder, rtype).ok();
    assert_eq!(write_block(&mut world, other.io, RAM), CONFLICT);
    register(&mut world, other);
    assert!(write_block(&mut world, other.io, RAM).is_success());
}

/// Base 2.1 §8.1.22.7: Preempt and Abort completes after the commands of the preempted host have
/// ended on every core. One that waits is aborted, one in a device completes first, and one whose
/// data is still being fetched is refused.
#[test]
fn preempt_and_abort_waits_for_writes_of_the_preempted_host() {
    let mut world = World::new();
    let (fenced, fencing) = (host(&mut world, 1, 1), host(&mut world, 0, 2));
    for path in [fenced, fencing] {
        register(&mut world, path);
    }
    acquire(&mut world, fenced, ReservationType::WRITE_EXCLUSIVE).ok();
    world.fault.arm(HOLD, true);
    let sqe = Sqe::write(RAM, 0, 0, false).with_sgl(SglDescriptor::transport(512));
    let in_device = world.start(fenced.io, sqe.with_cid(900), &[1; 512]);
    let in_device = in_device.expect_err("the device holds it");
    let now = world.now;
    let admitted = world.nodes[1]
        .core
        .admit(fenced.io.queue, 77, &sqe.with_cid(901), now);
    let nvme_target::Admission::Work(fetching) = admitted else {
        panic!("admitted")
    };
    let preempting = preempt(&mut world, fencing, fenced.key).expect_err("it waits");
    world.settle();
    assert!(world.take_reply(0, preempting).is_none(), "a write is left");
    let refused = world.execute(fenced.io, 77, fetching, &[2; 512]);
    refused.expect("it is refused at once").is(CONFLICT);
    world.fault.arm(HOLD, false);
    world.fault.release();
    world.settle();
    world.wait(fenced.io, in_device).ok();
    world.wait(fencing.io, preempting).ok();
    assert_eq!(world.read_blocks(fencing.io, RAM, 0, 1), [1; 512]);
    assert_eq!(write_block(&mut world, fenced.io, RAM), CONFLICT);
    assert!(write_block(&mut world, fencing.io, RAM).is_success());
}

/// A write whose data is still being fetched is aborted, although no reservation restricts its host.
#[test]
fn preempt_and_abort_aborts_writes_whose_data_arrives_later() {
    let mut world = World::new();
    let (fenced, fencing) = (host(&mut world, 1, 1), host(&mut world, 0, 2));
    for path in [fenced, fencing] {
        register(&mut world, path);
    }
    let now = world.now;
    let sqe = Sqe::write(RAM, 0, 0, false).with_sgl(SglDescriptor::transport(512));
    let other = Sqe::write(PLAIN, 0, 0, false).with_sgl(SglDescriptor::transport(512));
    let fetching = [sqe, other].map(|sqe| {
        let core = &mut world.nodes[1].core;
        match core.admit(fenced.io.queue, 77, &sqe.with_cid(901), now) {
            nvme_target::Admission::Work(work) => work,
            other => panic!("{other:?}"),
        }
    });
    let preempting = preempt(&mut world, fencing, fenced.key).expect_err("it takes a turn");
    world.wait(fencing.io, preempting).ok();
    let [fetched, elsewhere] = fetching;
    let aborted = world.execute(fenced.io, 77, fetched, &[2; 512]);
    let aborted = aborted.expect("it is refused at once");
    assert_eq!(aborted.status(), Status::ABORTED_PREEMPT_AND_ABORT);
    let written = world.execute(fenced.io, 77, elsewhere, &[2; 512]);
    assert!(written.is_none_or(|reply| reply.status().is_success()));
    assert!(write_block(&mut world, fenced.io, RAM).is_success());
}

/// A write whose host has disconnected meanwhile is awaited too.
#[test]
fn preempt_and_abort_waits_for_orphaned_writes() {
    let mut world = World::new();
    let (fenced, fencing) = (host(&mut world, 1, 1), host(&mut world, 0, 2));
    for path in [fenced, fencing] {
        register(&mut world, path);
    }
    world.fault.arm(HOLD, true);
    let sqe = Sqe::write(RAM, 0, 0, false).with_sgl(SglDescriptor::transport(512));
    let held = world.start(fenced.io, sqe.with_cid(900), &[1; 512]);
    assert!(held.is_err());
    world.fault.arm(HOLD, false);
    world.close(fenced.io);
    world.close(fenced.admin);
    let preempting = preempt(&mut world, fencing, fenced.key).expect_err("it waits");
    world.settle();
    assert!(world.take_reply(0, preempting).is_none());
    world.fault.release();
    world.settle();
    world.wait(fencing.io, preempting).ok();
}

/// Base 2.1 §5.1.25.1.4: the flush of an admin command is no command for a namespace. It changes
/// nothing, so it is neither aborted nor awaited.
#[test]
fn preempt_and_abort_leaves_the_flush_of_an_admin_command() {
    for rule in [HOLD, LATER] {
        let mut world = World::new();
        let (fenced, fencing) = (host(&mut world, 1, 1), host(&mut world, 0, 2));
        for path in [fenced, fencing] {
            let (control, data) = (RegisterControl::new(), register_data(0, path.key));
            world
                .write(path.io, register_sqe(CACHED, control), &data)
                .ok();
        }
        world.cached_fault.arm(rule, true);
        let disable = Sqe::set_feature(FeatureId::VOLATILE_WRITE_CACHE, 0, 0).with_cid(900);
        let flushing = world.start(fenced.admin, disable, &[]);
        let flushing = flushing.expect_err("the device does not complete it");
        world.settle();
        let action = AcquireAction::PREEMPT_AND_ABORT;
        let sqe = acquire_sqe(CACHED, action, ReservationType::WRITE_EXCLUSIVE);
        let data = acquire_data(fencing.key, fenced.key);
        world.write(fencing.io, sqe, &data).ok();
        assert!(world.take_reply(1, flushing).is_none());
        world.cached_fault.arm(rule, false);
        world.cached_fault.release();
        world.wait(fenced.admin, flushing).ok();
    }
}

/// A write that waits for a borrowed block is aborted.
#[test]
fn preempt_and_abort_aborts_waiting_writes() {
    let mut world = World::new();
    let (fenced, fencing) = (host(&mut world, 0, 1), host(&mut world, 1, 2));
    for path in [fenced, fencing] {
        let control = RegisterControl::new();
        let data = register_data(0, path.key);
        world
            .write(path.io, register_sqe(PLAIN, control), &data)
            .ok();
    }
    let read = Sqe::read(PLAIN, 0, 0).with_sgl(SglDescriptor::transport(512));
    let now = world.now;
    let core = &mut world.nodes[1].core;
    let borrow = core.complete_inline(fencing.io.queue, &read.with_cid(1), None, now);
    let borrow = borrow.expect("nothing is in the way");
    let write = Sqe::write(PLAIN, 0, 0, false).with_sgl(SglDescriptor::transport(512));
    let waiting = world.start(fenced.io, write.with_cid(900), &[1; 512]);
    let waiting = waiting.expect_err("the block is borrowed");
    world.settle();
    let action = AcquireAction::PREEMPT_AND_ABORT;
    let sqe = acquire_sqe(PLAIN, action, ReservationType::WRITE_EXCLUSIVE);
    world
        .write(fencing.io, sqe, &acquire_data(fencing.key, fenced.key))
        .ok();
    let status = world.wait(fenced.io, waiting).status();
    assert_eq!(status, Status::ABORTED_PREEMPT_AND_ABORT);
    drop(borrow);
    world.settle();
    assert_eq!(world.read_blocks(fencing.io, PLAIN, 0, 1), [0; 512]);
}

/// Base 2.1 §7.5: a host that is not registered can do nothing with reservations.
#[test]
fn an_unregistered_host_cannot_preempt() {
    let mut world = World::new();
    let (holder, other) = (host(&mut world, 0, 1), host(&mut world, 1, 2));
    register(&mut world, holder);
    acquire(&mut world, holder, ReservationType::WRITE_EXCLUSIVE).ok();
    let tag = preempt(&mut world, other, holder.key).expect_err("it waits");
    world.wait(other.io, tag).is(CONFLICT);
    acquire(&mut world, other, ReservationType::WRITE_EXCLUSIVE).is(CONFLICT);
    release(&mut world, other, ReservationType::WRITE_EXCLUSIVE).is(CONFLICT);
    assert!(write_block(&mut world, holder.io, RAM).is_success());
}

/// What a test's store was asked to store.
#[derive(Clone, Default)]
struct Store(Arc<Mutex<Vec<StoreRequest>>>);

impl ReservationStore for Store {
    fn store(&self, request: StoreRequest) {
        self.0.lock().unwrap().push(request);
    }
}

impl Store {
    fn take(&self) -> StoreRequest {
        self.0.lock().unwrap().pop().expect("a state to store")
    }

    fn is_empty(&self) -> bool {
        self.0.lock().unwrap().is_empty()
    }
}

/// A target whose RAM device can have persistent reservations.
fn persistent_world(initial: InitialReservations) -> (World, Store) {
    let world = World::new();
    let store = Store::default();
    world.target.set_reservation_store(Box::new(store.clone()));
    world.target.set_reservations(RAM_DEVICE, initial);
    (world, store)
}

fn empty() -> InitialReservations {
    InitialReservations::Persistent {
        identity: IDENTITY,
        state: Reservations::new(PersistenceSupport::Supported),
    }
}

fn start_register(world: &mut World, path: Path, cptpl: PersistChange) -> u64 {
    let control = RegisterControl::new().with_cptpl(cptpl);
    let data = register_data(0, path.key);
    let sqe = register_sqe(RAM, control).with_sgl(SglDescriptor::transport(16));
    let sqe = sqe.with_cid(world.cid());
    let started = world.start(path.io, sqe, &data);
    started.expect_err("a change takes a turn")
}

/// Base 2.1 §8.1.22: a state that persists is stored before the command completes, and commands
/// that follow wait.
#[test]
fn a_state_is_stored_before_the_command_completes() {
    let (mut world, store) = persistent_world(empty());
    let (first, second) = (host(&mut world, 0, 1), host(&mut world, 1, 2));
    let registering = start_register(&mut world, first, PersistChange::SET);
    let following = start_register(&mut world, second, PersistChange::NO_CHANGE);
    world.settle();
    assert!(world.take_reply(0, registering).is_none());
    assert!(world.take_reply(1, following).is_none());
    let request = store.take();
    let state = decode(&request.bytes, IDENTITY).expect("a stored state");
    assert_eq!(state.registrants().len(), 1);
    assert!(state.persists() && store.is_empty());
    world
        .target
        .reservations_stored(RAM_DEVICE, request.number + 1, true);
    world.settle();
    assert!(
        world.take_reply(0, registering).is_none(),
        "another request"
    );
    world
        .target
        .reservations_stored(RAM_DEVICE, request.number, true);
    world.settle();
    world.wait(first.io, registering).ok();
    let request = store.take();
    let state = decode(&request.bytes, IDENTITY).expect("a stored state");
    assert_eq!(state.registrants().len(), 2);
    world
        .target
        .reservations_stored(RAM_DEVICE, request.number, true);
    world.wait(second.io, following).ok();
}

/// A state that cannot be stored does not take effect, and one that need not be stored is served.
#[test]
fn a_state_that_cannot_be_stored_changes_nothing() {
    let (mut world, store) = persistent_world(empty());
    let (first, second) = (host(&mut world, 0, 1), host(&mut world, 1, 2));
    let registering = start_register(&mut world, first, PersistChange::SET);
    let request = store.take();
    world
        .target
        .reservations_stored(RAM_DEVICE, request.number, false);
    let status = world.wait(first.io, registering).status();
    assert_eq!(status, Status::INTERNAL_ERROR);
    assert!(world.target.reservations().is_empty());
    register(&mut world, second);
    acquire(&mut world, second, ReservationType::WRITE_EXCLUSIVE).ok();
    assert_eq!(write_block(&mut world, first.io, RAM), CONFLICT);
    assert!(store.is_empty());
}

/// Commands of a device that is removed are refused, those of a state that is being stored and
/// those that wait for it.
#[test]
fn commands_of_a_removed_device_name_no_namespace() {
    let (mut world, store) = persistent_world(empty());
    let (first, second) = (host(&mut world, 0, 1), host(&mut world, 1, 2));
    let registering = start_register(&mut world, first, PersistChange::SET);
    let following = start_register(&mut world, second, PersistChange::NO_CHANGE);
    let request = store.take();
    for subsystem in [SUBSYSTEM, CLOSED_SUBSYSTEM] {
        let removed = world.target.update_namespaces(subsystem, Vec::new());
        removed.expect("a right change");
    }
    world
        .target
        .remove_device(RAM_DEVICE)
        .expect("it is unused");
    world
        .target
        .reservations_stored(RAM_DEVICE, request.number, true);
    let gone = Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr();
    world.wait(first.io, registering).is(gone);
    world.wait(second.io, following).is(gone);
}

/// The command takes effect although its host has disconnected before the state was stored.
#[test]
fn a_host_may_disconnect_while_its_state_is_stored() {
    let (mut world, store) = persistent_world(empty());
    let (first, second) = (host(&mut world, 0, 1), host(&mut world, 1, 2));
    start_register(&mut world, first, PersistChange::SET);
    world.close(first.io);
    world.close(first.admin);
    world.settle();
    assert_eq!(
        world.nodes[0].core.in_flight(),
        0,
        "nothing delays a shutdown"
    );
    let request = store.take();
    world
        .target
        .reservations_stored(RAM_DEVICE, request.number, true);
    world.settle();
    let snapshot = &world.target.reservations()[0];
    assert_eq!(snapshot.registrants[0].host, HostIdentifier([1; 16]));
    assert!(snapshot.persists);
    let again = host(&mut world, 0, 1);
    assert!(write_block(&mut world, again.io, RAM).is_success());
    assert!(write_block(&mut world, second.io, RAM).is_success());
}

/// A restored reservation restricts hosts from their first command on.
#[test]
fn restored_reservations_restrict_hosts() {
    let (mut world, store) = persistent_world(empty());
    let first = host(&mut world, 0, 1);
    let registering = start_register(&mut world, first, PersistChange::SET);
    world
        .target
        .reservations_stored(RAM_DEVICE, store.take().number, true);
    world.wait(first.io, registering).ok();
    let sqe = acquire_sqe(
        RAM,
        AcquireAction::ACQUIRE,
        ReservationType::EXCLUSIVE_ACCESS,
    );
    let sqe = sqe.with_sgl(SglDescriptor::transport(16)).with_cid(5);
    let data = acquire_data(first.key, 0);
    let acquiring = world.start(first.io, sqe, &data).expect_err("it is stored");
    let request = store.take();
    world
        .target
        .reservations_stored(RAM_DEVICE, request.number, true);
    world.wait(first.io, acquiring).ok();
    let state = decode(&request.bytes, IDENTITY).expect("a stored state");
    let (mut world, _) = persistent_world(InitialReservations::Persistent {
        identity: IDENTITY,
        state,
    });
    let (first, second) = (host(&mut world, 0, 1), host(&mut world, 1, 2));
    assert!(read_block(&mut world, first.io, RAM).is_success());
    assert_eq!(read_block(&mut world, second.io, RAM), CONFLICT);
}

/// A damaged state refuses every host, until an operator resets it.
#[test]
fn unknown_reservations_refuse_all_hosts() {
    let (mut world, store) = persistent_world(InitialReservations::Unknown { identity: IDENTITY });
    let path = host(&mut world, 0, 1);
    let not_ready = Status::NAMESPACE_NOT_READY.with_dnr();
    assert_eq!(read_block(&mut world, path.io, RAM), not_ready);
    assert_eq!(write_block(&mut world, path.io, RAM), not_ready);
    register_with(&mut world, path, RAM, PersistChange::NO_CHANGE).is(not_ready);
    assert!(write_block(&mut world, path.io, PLAIN).is_success());
    assert!(world.target.reservations()[0].is_unknown);
    let host_id = HostIdentifier([1; 16]);
    let evicted = world.target.evict_registrant(RAM_DEVICE, host_id);
    assert_eq!(evicted.try_recv(), Ok(Err(ReservationError::Unknown)));
    let cleared = world.target.clear_reservations(RAM_DEVICE);
    let request = store.take();
    let state = decode(&request.bytes, IDENTITY).expect("a stored state");
    assert!(state.registrants().is_empty());
    world
        .target
        .reservations_stored(RAM_DEVICE, request.number, true);
    assert_eq!(cleared.try_recv(), Ok(Ok(())));
    assert!(write_block(&mut world, path.io, RAM).is_success());
    register(&mut world, path);
}

/// An operator's command fences like Preempt and Abort.
#[test]
fn operators_unregister_hosts() {
    let mut world = World::new();
    let (holder, other) = (host(&mut world, 0, 1), host(&mut world, 1, 2));
    for path in [holder, other] {
        register(&mut world, path);
    }
    acquire(&mut world, holder, ReservationType::WRITE_EXCLUSIVE).ok();
    let snapshot = &world.target.reservations()[0];
    assert_eq!(snapshot.kind, Some(ReservationKind::WriteExclusive));
    assert_eq!(
        (snapshot.device, snapshot.registrants.len()),
        (RAM_DEVICE, 2)
    );
    assert!(snapshot.registrants[0].is_holder && !snapshot.registrants[1].is_holder);
    let evicted = world
        .target
        .evict_registrant(RAM_DEVICE, HostIdentifier([1; 16]));
    world.settle();
    assert_eq!(evicted.try_recv(), Ok(Ok(())));
    assert!(write_block(&mut world, other.io, RAM).is_success());
    let cleared = world.target.clear_reservations(RAM_DEVICE);
    world.settle();
    assert_eq!(cleared.try_recv(), Ok(Ok(())));
    assert!(world.target.reservations().is_empty());
}

/// Base 2.1 §8.1.22.2 and §5.1.12.1.32: each notification is one page and one event.
#[test]
fn preempted_hosts_are_notified() {
    let mut world = World::new();
    let (fenced, fencing) = (host(&mut world, 1, 1), host(&mut world, 0, 2));
    let masked = host(&mut world, 0, 3);
    for path in [fenced, fencing, masked] {
        register(&mut world, path);
    }
    let mask = Sqe::set_feature(FeatureId::RESERVATION_NOTIFICATION_MASK, RAM, 0b1110);
    world.command(masked.admin, mask).ok();
    let event = Sqe::async_event_request().with_cid(40);
    let waiting = world.start(fenced.admin, event, &[]).expect_err("it waits");
    acquire(
        &mut world,
        fenced,
        ReservationType::WRITE_EXCLUSIVE_REGISTRANTS_ONLY,
    )
    .ok();
    let tag = preempt(&mut world, fencing, fenced.key).expect_err("it waits");
    world.wait(fencing.io, tag).ok();
    let event = world.wait(fenced.admin, waiting).dw0();
    assert_eq!(
        event, 0x80_00_06,
        "page 80h, available, I/O command specific"
    );
    let page = |world: &mut World, path: Path| {
        let data = world.log(path.admin, LogPageId::RESERVATION_NOTIFICATION, 64);
        ReservationNotification::read_from_bytes(&data).expect("64 bytes")
    };
    let found = page(&mut world, fenced);
    assert_eq!(
        found.kind,
        ReservationNotificationType::REGISTRATION_PREEMPTED
    );
    assert_eq!((found.lpc.get(), found.nsid.get(), found.nalp), (1, RAM, 0));
    assert_eq!(page(&mut world, fenced).lpc.get(), 0, "it was read");
    assert_eq!(page(&mut world, masked).lpc.get(), 0, "it was masked");
}

/// A host is not notified of a namespace that its mask hides, even if it is a registrant.
#[test]
fn no_notification_concerns_a_hidden_namespace() {
    let mut world = World::new();
    let call = ConnectOptions {
        host: STRANGER,
        ..ConnectOptions::default()
    };
    let (hidden, fencing) = (host_of(&mut world, 1, 1, call), host(&mut world, 0, 2));
    for path in [hidden, fencing] {
        register(&mut world, path);
    }
    let devices = world.devices();
    let mut subsystem = crate::harness::config(&devices).subsystems.remove(0);
    subsystem.masks = vec![NamespaceMask {
        hosts: vec![STRANGER.to_owned()],
        ..NamespaceMask::default()
    }];
    world
        .target
        .update_subsystem(subsystem)
        .expect("a right change");
    world.settle();
    let preempted = preempt(&mut world, fencing, hidden.key);
    preempted
        .unwrap_or_else(|tag| world.wait(fencing.io, tag))
        .ok();
    let data = world.log(hidden.admin, LogPageId::RESERVATION_NOTIFICATION, 64);
    assert_eq!(data, [0; 64]);
    let report = report(&mut world, hidden, 64, true);
    report.is(Status::INVALID_FIELD.with_dnr());
}

/// Base 2.1 §4.2.1, SQHD: the event of a further notification follows the page that was read, and so
/// its completion has a later head.
#[test]
fn events_of_further_notifications_follow_the_page() {
    let mut world = World::new();
    let (fenced, fencing) = (host(&mut world, 1, 1), host(&mut world, 0, 2));
    let events = [40, 41].map(|cid| {
        let event = Sqe::async_event_request().with_cid(cid);
        let waiting = world.start(fenced.admin, event, &[]);
        waiting.expect_err("it waits")
    });
    for nsid in [RAM, PLAIN] {
        for path in [fenced, fencing] {
            register_with(&mut world, path, nsid, PersistChange::NO_CHANGE).ok();
        }
        let sqe = acquire_sqe(
            nsid,
            AcquireAction::PREEMPT,
            ReservationType::WRITE_EXCLUSIVE,
        );
        let data = acquire_data(fencing.key, fenced.key);
        world.write(fencing.io, sqe, &data).ok();
    }
    world.wait(fenced.admin, events[0]).ok();
    let page = world.log_page(fenced.admin, LogPageId::RESERVATION_NOTIFICATION, 64, false);
    let event = world.wait(fenced.admin, events[1]);
    assert_eq!(event.cqe.sqhd.get(), page.cqe.sqhd.get() + 1);
}

/// Base 2.1 §5.1.2: an event is masked until its log page is read. Of two pages that are read in one
/// turn, only the event of the notification behind the second is reported: both responses precede
/// it.
#[test]
fn pages_that_are_read_in_one_turn_have_one_event() {
    let mut world = World::new();
    let (fenced, fencing) = (host(&mut world, 1, 1), host(&mut world, 0, 2));
    let events = [40, 41, 42].map(|cid| {
        let event = Sqe::async_event_request().with_cid(cid);
        let waiting = world.start(fenced.admin, event, &[]);
        waiting.expect_err("it waits")
    });
    for nsid in [RAM, PLAIN, CACHED] {
        for path in [fenced, fencing] {
            register_with(&mut world, path, nsid, PersistChange::NO_CHANGE).ok();
        }
        let sqe = acquire_sqe(
            nsid,
            AcquireAction::PREEMPT,
            ReservationType::WRITE_EXCLUSIVE,
        );
        let data = acquire_data(fencing.key, fenced.key);
        world.write(fencing.io, sqe, &data).ok();
    }
    world.wait(fenced.admin, events[0]).ok();
    for _ in 0..2 {
        world.log_page(fenced.admin, LogPageId::RESERVATION_NOTIFICATION, 64, false);
    }
    world.wait(fenced.admin, events[1]).ok();
    world.settle();
    let node = fenced.admin.node;
    assert!(world.take_reply(node, events[2]).is_none(), "it is masked");
    let last = world.log(fenced.admin, LogPageId::RESERVATION_NOTIFICATION, 64);
    let last = ReservationNotification::read_from_bytes(&last).expect("64 bytes");
    assert_eq!((last.lpc.get(), last.nalp), (3, 0));
}

fn report(world: &mut World, path: Path, bytes: u32, eds: bool) -> Reply {
    let mut command = ReservationReport::new_zeroed();
    command.numd_z = (bytes / 4 - 1).into();
    command.control = ReportControl::new().with_eds(eds);
    let sqe = Sqe::new(IoOpcode::RESERVATION_REPORT.0, RAM).with_reservation_report(command);
    world.read(path.io, sqe, bytes)
}

/// Base 2.1 §7.8: the report names the registrants and their controllers, and ends with the buffer.
#[test]
fn reservations_are_reported() {
    let mut world = World::new();
    let (holder, other) = (host(&mut world, 0, 1), host(&mut world, 1, 2));
    for path in [holder, other] {
        register(&mut world, path);
    }
    acquire(&mut world, holder, ReservationType::WRITE_EXCLUSIVE).ok();
    world.close(other.io);
    world.close(other.admin);
    world.settle();
    let data = report(&mut world, holder, 4096, true).ok();
    assert_eq!(data.len(), 4096);
    let (header, rest) = ReservationStatusExtendedHeader::read_from_prefix(&data).unwrap();
    assert_eq!(header.rshdr.gen_counter.get(), 2);
    assert_eq!(header.rshdr.rtype, ReservationType::WRITE_EXCLUSIVE);
    assert_eq!(header.rshdr.regstrnt.get(), 2);
    let (first, rest) = RegisteredControllerExtended::read_from_prefix(rest).unwrap();
    assert_eq!(first.cntlid.get(), holder.admin.info.controller_id);
    assert_eq!((first.hostid, first.rkey.get()), ([1; 16], holder.key));
    assert!(first.rcsts.holder());
    let (second, rest) = RegisteredControllerExtended::read_from_prefix(rest).unwrap();
    assert_eq!((second.cntlid.get(), second.hostid), (0xffff, [2; 16]));
    assert!(!second.rcsts.holder() && rest.iter().all(|byte| *byte == 0));
    assert_eq!(report(&mut world, holder, 68, true).ok(), data[..68]);
    let wrong = Status::HOST_IDENTIFIER_INCONSISTENT_FORMAT.with_dnr();
    report(&mut world, holder, 4096, false).is(wrong);
    report(&mut world, holder, 256 << 10, true).is(Status::INVALID_FIELD.with_dnr());
}

/// NVM 1.1 §4.1.5.1, RESCAP, and Base 2.1 §5.1.25.1.30: only a state that can be stored persists.
#[test]
fn persistence_is_reported_where_it_is_possible() {
    let (mut world, store) = persistent_world(empty());
    let path = host(&mut world, 0, 1);
    for (nsid, persists) in [(RAM, true), (PLAIN, false)] {
        let data = world
            .read(
                path.admin,
                Sqe::identify_structure(Cns::NAMESPACE, nsid),
                4096,
            )
            .ok();
        let page = IdentifyNamespace::read_from_bytes(&data).unwrap();
        assert_eq!(page.rescap.ptpl(), persists);
        assert!(page.rescap.exclusive_access_all() && page.rescap.iekey());
    }
    let feature = |nsid, value| Sqe::set_feature(FeatureId::RESERVATION_PERSISTENCE, nsid, value);
    let invalid = Status::INVALID_FIELD.with_dnr();
    world.command(path.admin, feature(PLAIN, 1)).is(invalid);
    world.command(path.admin, feature(PLAIN, 0)).ok();
    register_with(&mut world, path, PLAIN, PersistChange::SET).is(invalid);
    let setting = world.start(path.admin, feature(RAM, 1).with_cid(60), &[]);
    let setting = setting.expect_err("it is stored");
    world
        .target
        .reservations_stored(RAM_DEVICE, store.take().number, true);
    world.wait(path.admin, setting).ok();
    let current = FeatureSelect::CURRENT;
    let get = |nsid| Sqe::get_feature(FeatureId::RESERVATION_PERSISTENCE, current, nsid, 0);
    assert_eq!(world.command(path.admin, get(RAM)).dw0(), 1);
    assert_eq!(world.command(path.admin, get(PLAIN)).dw0(), 0);
    // One namespace can persist, the others cannot: the command fails, after all of them.
    let all = world.start(path.admin, feature(NSID_BROADCAST, 1).with_cid(61), &[]);
    world
        .wait(path.admin, all.expect_err("it takes a turn"))
        .is(invalid);
}

/// Base 2.1 §7.5 to §7.7: exact statuses for invalid commands, whose state does not change.
#[test]
fn invalid_reservation_commands_are_refused() {
    let mut world = World::new();
    let path = host(&mut world, 0, 1);
    register(&mut world, path);
    let data = acquire_data(path.key, 0);
    let acquire_one = acquire_sqe(
        RAM,
        AcquireAction::ACQUIRE,
        ReservationType::WRITE_EXCLUSIVE,
    );
    let invalid = Status::INVALID_FIELD.with_dnr();
    let fused = acquire_one.with_fuse(Fuse::FIRST);
    world.write(path.io, fused, &data).is(invalid);
    let short = Status::DATA_SGL_LENGTH_INVALID.with_dnr();
    world.write(path.io, acquire_one, &data[..8]).is(short);
    world.write(path.io, acquire_one, &[0; 8192]).is(short);
    for (nsid, status) in [
        (
            NSID_BROADCAST,
            Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr(),
        ),
        (0, Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr()),
        (3, invalid),
    ] {
        let sqe = acquire_sqe(
            nsid,
            AcquireAction::ACQUIRE,
            ReservationType::WRITE_EXCLUSIVE,
        );
        world.write(path.io, sqe, &data).is(status);
    }
    for rtype in [ReservationType::NONE, ReservationType(7)] {
        acquire(&mut world, path, rtype).is(invalid);
    }
    let reserved = acquire_sqe(RAM, AcquireAction(3), ReservationType::WRITE_EXCLUSIVE);
    world.write(path.io, reserved, &data).is(invalid);
    let wrong_key = acquire_data(path.key + 1, 0);
    world.write(path.io, acquire_one, &wrong_key).is(CONFLICT);
    // The keys differ only in the upper half.
    let similar = acquire_data(path.key ^ 1 << 63, 0);
    world.write(path.io, acquire_one, &similar).is(CONFLICT);
    let snapshot = &world.target.reservations()[0];
    assert_eq!(snapshot.kind, None);
    let nobody = host(&mut world, 1, 0);
    let missing = Status::HOST_IDENTIFIER_NOT_INITIALIZED.with_dnr();
    register_with(&mut world, nobody, RAM, PersistChange::NO_CHANGE).is(missing);
}

/// Names of hosts do not matter, only their identifiers: two names with one identifier are one host.
#[test]
fn hosts_are_known_by_their_identifiers() {
    let mut world = World::new();
    let one = host(&mut world, 0, 1);
    let renamed = ConnectOptions {
        host: STRANGER,
        ..ConnectOptions::default()
    };
    assert_ne!(HOST, STRANGER);
    let same = host_of(&mut world, 1, 1, renamed);
    register(&mut world, one);
    acquire(&mut world, one, ReservationType::EXCLUSIVE_ACCESS).ok();
    assert!(write_block(&mut world, same.io, RAM).is_success());
}
