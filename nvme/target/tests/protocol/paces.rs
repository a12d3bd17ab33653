//! Paces: subsystems wait so that others keep their latency target or get their share of a disk.

use nvme_target::{
    DeviceIndex, PACING_INTERVAL, PaceReason, PaceSnapshot, Pacing, TargetError, WEIGHT_MAX,
};
use reactors::Nanos;

use crate::harness::{CLOSED_SUBSYSTEM, ConnectOptions, HOST, PLAIN, SUBSYSTEM, World};
use crate::rates::{Load, TURN, attach, read, run};

/// More than any command takes here, and less: the device takes a turn or two, and a response is
/// sent in the next one.
const LATENCY_MAX: Nanos = Nanos::from_millis(1);
const LATENCY_MIN: Nanos = TURN;

fn pacing(subsystem: &str, latency_target: Option<Nanos>, weight: Option<u32>) -> Pacing {
    Pacing {
        subsystem: subsystem.to_owned(),
        latency_target,
        weight,
        disks: vec![(DeviceIndex(0), "disk".to_owned())],
    }
}

/// A world with a load of each subsystem, the one with lists first.
fn loaded(pacing: &[Pacing]) -> (World, [Load; 2]) {
    let mut world = World::new();
    world.counts_latencies = true;
    world.target.set_pacing(pacing).unwrap();
    let (_, queues) = attach(&mut world, HOST, &[0]);
    let closed = ConnectOptions {
        subsystem: CLOSED_SUBSYSTEM,
        ..ConnectOptions::default()
    };
    let admin = world.enabled_by(1, &closed);
    let io = ConnectOptions {
        cntlid: admin.info.controller_id,
        qid: 1,
        ..closed
    };
    let protected = world.connect(1, &io);
    let loads = [
        Load::new(protected, read(1, 1)),
        Load::new(queues[0], read(PLAIN, 1)),
    ];
    (world, loads)
}

/// Runs loads for a time, and adjusts the paces meanwhile. Returns what each has completed.
fn paced(world: &mut World, loads: &mut [Load], span: Nanos) -> Vec<u64> {
    let before: Vec<u64> = loads.iter().map(|it| it.completed).collect();
    let end = world.now + span;
    while world.now < end {
        run(world, loads, PACING_INTERVAL);
        world.target.adjust_paces(world.now);
    }
    let after = loads.iter().zip(before);
    after
        .map(|(load, before)| load.completed - before)
        .collect()
}

fn pace(world: &World) -> PaceSnapshot {
    let mut paces = world.target.paces();
    assert_eq!(paces.len(), 1, "{paces:?}");
    paces.remove(0)
}

#[test]
fn missed_target_slows_others_down_and_a_kept_one_does_not() {
    let target = |latency| {
        [
            pacing(CLOSED_SUBSYSTEM, Some(latency), None),
            pacing(SUBSYSTEM, None, None),
        ]
    };
    let (mut world, mut loads) = loaded(&target(LATENCY_MAX));
    let free = paced(&mut world, &mut loads, Nanos::from_secs(1));
    assert_eq!(pace(&world).limit, None);
    assert_eq!(pace(&world).throttled.commands, 0);

    world.target.set_pacing(&target(LATENCY_MIN)).unwrap();
    paced(&mut world, &mut loads, Nanos::from_secs(3));
    let slowed = paced(&mut world, &mut loads, Nanos::from_secs(1));
    assert!(slowed[0] >= free[0], "the protected subsystem has waited");
    // The minimum of 1 MiB in a second, of which a command of 512 bytes takes 4608.
    assert!((200..260).contains(&slowed[1]), "{slowed:?}");
    let seen = pace(&world);
    assert_eq!(seen.subsystem, SUBSYSTEM);
    assert_eq!(seen.reason, PaceReason::Latency);
    assert_eq!(seen.limit, Some(1 << 20));
    assert_eq!(seen.missed_by.as_deref(), Some(CLOSED_SUBSYSTEM));
    assert!(seen.throttled.commands > 200);

    // Nobody waits for a subsystem without commands.
    loads[0].stop(&mut world);
    paced(&mut world, &mut loads[1..], Nanos::from_secs(60));
    assert_eq!(pace(&world).limit, None);
    let done = paced(&mut world, &mut loads[1..], Nanos::from_secs(1));
    assert!(done[0] >= free[1]);
}

#[test]
fn paces_end_with_their_configuration() {
    let target = [
        pacing(CLOSED_SUBSYSTEM, Some(Nanos(1)), None),
        pacing(SUBSYSTEM, None, None),
    ];
    let (mut world, mut loads) = loaded(&target);
    paced(&mut world, &mut loads, Nanos::from_secs(4));
    let slowed = paced(&mut world, &mut loads, Nanos::from_secs(1));
    assert!(world.target.has_paces());
    // The same configuration with another weight keeps the pace as slow as it is.
    let again = [target[0].clone(), pacing(SUBSYSTEM, None, Some(7))];
    world.target.set_pacing(&again).unwrap();
    let same = paced(&mut world, &mut loads, Nanos::from_secs(1));
    assert!(same[1] < slowed[1] + slowed[1] / 5, "{same:?} {slowed:?}");
    world.target.set_pacing(&[]).unwrap();
    assert!(!world.target.has_paces());
    assert_eq!(world.target.paces(), []);
    let done = paced(&mut world, &mut loads, Nanos::from_secs(1));
    assert_eq!(done[0], done[1]);
}

#[test]
fn commands_of_a_slow_pace_wait_a_bounded_time() {
    let target = [
        pacing(CLOSED_SUBSYSTEM, Some(Nanos(1)), None),
        pacing(SUBSYSTEM, None, None),
    ];
    let (mut world, mut loads) = loaded(&target);
    paced(&mut world, &mut loads, Nanos::from_secs(4));
    world.target.set_pacing(&[]).unwrap();
    // The turns that were reserved before are over after half a second, all others at once.
    paced(&mut world, &mut loads, Nanos::from_millis(500));
    let done = paced(&mut world, &mut loads, Nanos::from_millis(100));
    assert_eq!(done[0], done[1]);
}

#[test]
fn subsystems_on_one_disk_have_paces_if_one_has_a_weight() {
    let world = World::new();
    let set = |pacing: &[Pacing]| world.target.set_pacing(pacing).unwrap();
    set(&[
        pacing(CLOSED_SUBSYSTEM, None, Some(300)),
        pacing(SUBSYSTEM, None, None),
    ]);
    let paces = world.target.paces();
    assert_eq!(paces.len(), 2);
    let share = PaceReason::Share("disk".to_owned());
    assert!(
        paces
            .iter()
            .all(|it| it.reason == share && it.limit.is_none())
    );
    set(&[
        pacing(CLOSED_SUBSYSTEM, None, None),
        pacing(SUBSYSTEM, None, None),
    ]);
    assert_eq!(world.target.paces(), []);
    let elsewhere = Pacing {
        disks: vec![(DeviceIndex(1), "other disk".to_owned())],
        ..pacing(SUBSYSTEM, None, Some(1))
    };
    set(&[pacing(CLOSED_SUBSYSTEM, None, Some(300)), elsewhere]);
    assert_eq!(world.target.paces(), []);
}

#[test]
fn weights_and_targets_out_of_range_are_refused() {
    let world = World::new();
    let refused = TargetError::Pacing {
        nqn: SUBSYSTEM.to_owned(),
    };
    let wrong = [
        pacing(SUBSYSTEM, None, Some(0)),
        pacing(SUBSYSTEM, None, Some(WEIGHT_MAX + 1)),
        pacing(SUBSYSTEM, Some(Nanos::ZERO), None),
    ];
    for pacing in wrong {
        let set = world.target.set_pacing(std::slice::from_ref(&pacing));
        assert_eq!(set, Err(refused.clone()), "{pacing:?}");
        assert!(!world.target.has_paces());
    }
}
