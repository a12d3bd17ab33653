//! Reservations continue in a new target (`ARCHITECTURE.md` §9.1).

use super::*;
use crate::handover::{Continued, hand_over, hand_over_to};
use reactors::Nanos;

/// The paths after a hand-over, in the same order.
fn continued(paths: &[Path], links: &[Link]) -> Vec<Path> {
    let pairs = paths.iter().zip(links.chunks(2));
    let with_links = |(path, links): (&Path, &[Link])| Path {
        admin: links[0],
        io: links[1],
        key: path.key,
    };
    pairs.map(with_links).collect()
}

fn links(paths: &[Path]) -> Vec<Link> {
    paths
        .iter()
        .flat_map(|path| [path.admin, path.io])
        .collect()
}

/// Registrants, the holder, what is forbidden on each path, and unread notifications stay.
#[test]
fn reservations_are_continued() {
    let mut world = World::new();
    let paths = [
        host(&mut world, 0, 1),
        host(&mut world, 1, 2),
        host(&mut world, 0, 3),
    ];
    let [holder, registrant, _] = paths;
    register(&mut world, holder);
    register(&mut world, registrant);
    acquire(&mut world, registrant, ReservationType::WRITE_EXCLUSIVE).ok();
    preempt(&mut world, holder, registrant.key)
        .or_else(|tag| Ok::<_, ()>(world.wait(holder.io, tag)))
        .expect("a response")
        .ok();
    let before = report(&mut world, holder, 256, true).ok();
    let access = |world: &mut World, path: Path| {
        let statuses = [
            write_block(world, path.io, RAM),
            read_block(world, path.io, RAM),
            write_block(world, path.io, PLAIN),
        ];
        statuses.map(|it| it.with_more(false))
    };
    let statuses = paths.map(|path| access(&mut world, path));
    assert_eq!(statuses[2][0], CONFLICT);
    let Continued {
        mut world,
        links: after,
        ..
    } = hand_over(world, &links(&paths), Nanos::ZERO);
    let paths = continued(&paths, &after);
    for (path, statuses) in paths.iter().zip(statuses) {
        assert_eq!(access(&mut world, *path), statuses);
    }
    assert_eq!(report(&mut world, paths[0], 256, true).ok(), before);
    let page = |world: &mut World, path: Path| {
        let data = world.log(path.admin, LogPageId::RESERVATION_NOTIFICATION, 64);
        ReservationNotification::read_from_bytes(&data).expect("64 bytes")
    };
    let notice = page(&mut world, paths[1]);
    let expected = ReservationNotificationType::REGISTRATION_PREEMPTED;
    assert_eq!((notice.lpc.get(), notice.kind), (1, expected));
    assert_eq!(page(&mut world, paths[1]).lpc.get(), 0, "it was read");
    release(&mut world, paths[0], ReservationType::WRITE_EXCLUSIVE).ok();
    assert!(write_block(&mut world, paths[2].io, RAM).is_success());
}

/// A state that persists is handed over as it is, and the new target stores later changes.
#[test]
fn persistent_reservations_are_continued() {
    let (mut world, store) = persistent_world(empty());
    let path = host(&mut world, 0, 1);
    let registering = start_register(&mut world, path, PersistChange::SET);
    world.settle();
    let request = store.take();
    let stored = |world: &World, number| {
        world.target.reservations_stored(RAM_DEVICE, number, true);
    };
    let refused = crate::handover::try_export(&world).expect_err("it is being stored");
    assert_eq!(refused, nvme_target::NotQuiet::Change);
    stored(&world, request.number);
    world.wait(path.io, registering).ok();

    let read_at_start = decode(&request.bytes, IDENTITY).expect("a stored state");
    let again = store.clone();
    let prepare = move |next: &World| {
        next.target.set_reservation_store(Box::new(again));
        let state = InitialReservations::Persistent {
            identity: IDENTITY,
            state: read_at_start,
        };
        next.target.set_reservations(RAM_DEVICE, state);
    };
    let Continued {
        mut world,
        links: after,
        ..
    } = hand_over_to(world, &links(&[path]), Nanos::ZERO, prepare);
    let path = continued(&[path], &after)[0];
    let sqe = acquire_sqe(
        RAM,
        AcquireAction::ACQUIRE,
        ReservationType::WRITE_EXCLUSIVE,
    );
    let data = acquire_data(path.key, 0);
    let sgl = SglDescriptor::transport(data.len() as u32);
    let acquiring = world
        .start(path.io, sqe.with_sgl(sgl).with_cid(9), &data)
        .expect_err("it is stored first");
    world.settle();
    let request = store.take();
    let state = decode(&request.bytes, IDENTITY).expect("a stored state");
    assert_eq!(state.registrants().len(), 1);
    stored(&world, request.number);
    world.wait(path.io, acquiring).ok();
}
