//! Drives that are added to and removed from an appliance that serves others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use appliance_config::Config;
use nvme_driver_testing::{EmulatedOptions, Fault, FaultMatch, FaultRule, When};
use nvme_spec::Status;
use nvme_spec::command::IoOpcode;
use reactors::Nanos;

use super::{
    A, ALL, B, BLOCK_BYTES, Host, INACTIVE, LIMIT, SHORT, Slots, configuration_of, cores,
    has_device, poll_until_served, started_on, with_writer,
};
use crate::appliance::Appliance;
use crate::observe::model::ApplyAnswer;
use crate::reconciler::{ApplyOptions, Origin};
use crate::service::Heartbeat;
use crate::watchdog_loop::WatchdogLoop;

/// Interval of the tests' checks.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Devices: name, drive and namespace.
type Wanted<'w> = &'w [(&'w str, u8, u32)];

fn config(count: usize, devices: Wanted<'_>) -> Config {
    configuration_of(&cores(count), devices, SHORT)
}

fn try_apply(appliance: &mut Appliance, wanted: &Config, origin: Origin) -> ApplyAnswer {
    let mut watchdog_loop = WatchdogLoop::new(Heartbeat::from_environment(0, String::new()));
    let options = ApplyOptions {
        origin,
        ..ApplyOptions::default()
    };
    appliance.apply(wanted, options, &mut watchdog_loop)
}

#[track_caller]
fn apply(appliance: &mut Appliance, wanted: &Config) -> ApplyAnswer {
    let answer = try_apply(appliance, wanted, Origin::File);
    assert!(answer.applied, "{answer:#?}");
    answer
}

/// The reason for which a configuration is refused.
#[track_caller]
fn refused(appliance: &mut Appliance, wanted: &Config) -> String {
    let answer = try_apply(appliance, wanted, Origin::File);
    let errors = answer.steps.iter().filter(|it| it.error.is_some());
    assert_eq!(errors.count(), 1, "{answer:#?}");
    answer.failure_reason().expect("a reason")
}

/// Everything that a drive occupies in the process: memory by class, and pollers by reactor.
type Occupied = (Vec<u64>, Vec<usize>);

fn occupied(appliance: &Appliance) -> Occupied {
    let classes = appliance.arena().counters().classes;
    let taken = classes.iter().map(|class| class.taken).collect();
    (taken, appliance.pollers())
}

/// Waits until the resources are the same as `before`: reactors return memory with a delay.
#[track_caller]
fn expect_occupied(appliance: &Appliance, before: &Occupied) {
    let began = Instant::now();
    while occupied(appliance) != *before {
        let now = occupied(appliance);
        assert!(began.elapsed() < LIMIT, "{now:?} instead of {before:?}");
        std::thread::sleep(LOOK_INTERVAL);
    }
}

#[track_caller]
fn expect_closed(slots: &Slots, address: &str) {
    assert!(!slots.is_open(address), "{address} is open");
    let control = slots.control(address);
    assert!(!control.is_bus_master());
    assert_eq!(control.counters().illegal_accesses, 0);
}

/// Under I/O to another drive: an added drive is served, a removed one has written its cache and
/// is closed, and its data is there when it is added again.
#[test]
fn drive_is_added_and_removed_under_io() {
    for count in [1, 2] {
        let (appliance, slots) = started_on(config(count, &ALL[..2]), |_, _| {});
        assert!(!slots.is_open(B));
        let mut host = Host::attach(&appliance);
        let appliance = with_writer(appliance, |mut appliance| {
            assert_eq!(host.read(3, 7), Err(INACTIVE));
            for round in 1..=3_u8 {
                let answer = apply(&mut appliance, &config(count, &ALL));
                let mut steps = answer.steps.iter();
                assert!(steps.all(|it| it.effect == "live"), "{answer:#?}");
                for nsid in [3, 4] {
                    assert_eq!(host.read(nsid, 7), Ok(vec![round - 1; BLOCK_BYTES]));
                    assert_eq!(host.write(nsid, 7, round), Status::SUCCESS);
                }
                let opened = usize::from(round);
                assert_eq!(slots.opened(B), opened, "once for both namespaces");
                let answer = apply(&mut appliance, &config(count, &ALL[..2]));
                let mut steps = answer.steps.iter();
                assert!(steps.all(|it| it.warning.is_none()), "{answer:#?}");
                assert_eq!(host.read(3, 7), Err(INACTIVE));
                expect_closed(&slots, B);
                for nsid in [1, 2] {
                    let mut block = [0; BLOCK_BYTES];
                    assert!(slots.control(B).read_durable(nsid, 7, &mut block));
                    assert_eq!(block, [round; BLOCK_BYTES], "the cache was written");
                }
            }
            appliance
        });
        drop(host);
        assert!(appliance.stop_quietly(), "with {count} reactors");
    }
}

/// A drive that cannot be used changes nothing, and nothing of it stays.
#[test]
fn unavailable_drive_leaves_everything_unchanged() {
    type Change = fn(&mut EmulatedOptions);
    let unchanged: Change = |_| {};
    let cases: [(Wanted<'_>, Change, &str); 5] = [
        (
            &[ALL[0], ("c1", 3, 1)],
            unchanged,
            "device c1: 0000:03:00.0: no PCI function has this address",
        ),
        (
            &[ALL[0], ("b1", 2, 9)],
            unchanged,
            "device b1: 0000:02:00.0: the drive has no active namespace 9",
        ),
        (
            &[ALL[0], ALL[2]],
            |options| options.namespaces[0].metadata_bytes = 8,
            "device b1: 0000:02:00.0: namespace 1: its format has 8 bytes of metadata",
        ),
        (
            &[ALL[0], ALL[2]],
            |options| {
                options.timeout_units = 1;
                options.ready_after = Nanos::from_secs(3600);
            },
            "device b1: 0000:02:00.0: the controller did not become",
        ),
        // The device before it has opened the drive, which is closed again.
        (
            &[ALL[0], ALL[3], ("c1", 3, 1)],
            unchanged,
            "device c1: 0000:03:00.0",
        ),
    ];
    for (wanted, change, why) in cases {
        let now = config(1, &ALL[..1]);
        let (mut appliance, slots) = started_on(now.clone(), |address, options| {
            if address == B {
                change(options);
            }
        });
        let mut host = Host::attach(&appliance);
        assert_eq!(host.write(1, 0, 3), Status::SUCCESS);
        let before = occupied(&appliance);
        for _ in 0..2 {
            let reason = refused(&mut appliance, &config(1, wanted));
            assert!(reason.contains(why), "{reason}");
            assert!(reason.contains("nothing was changed"), "{reason}");
            assert_eq!(appliance.config().difference(&now), []);
            expect_closed(&slots, B);
            expect_occupied(&appliance, &before);
            assert_eq!(host.read(1, 0), Ok(vec![3; BLOCK_BYTES]));
        }
        drop(host);
        assert!(appliance.stop_quietly());
    }
}

#[test]
fn drive_with_too_few_queues_is_refused() {
    let (mut appliance, slots) = started_on(config(2, &ALL[..1]), |address, options| {
        if address == B {
            options.io_queues_max = 1;
        }
    });
    if appliance.cores().len() == 2 {
        let reason = refused(&mut appliance, &config(2, &[ALL[0], ALL[2]]));
        let why = "device b1: 0000:02:00.0: the controller grants 1 I/O queue pairs for 2 reactors";
        assert!(reason.contains(why), "{reason}");
        expect_closed(&slots, B);
    }
    assert!(appliance.stop_quietly());
}

/// Devices on one drive share it: it is opened with the first and closed with the last.
#[test]
fn devices_on_one_drive_open_it_once() {
    let (mut appliance, slots) = started_on(config(1, &ALL[..1]), |_, _| {});
    let mut host = Host::attach(&appliance);
    assert_eq!(host.write(1, 0, 1), Status::SUCCESS);
    apply(&mut appliance, &config(1, &ALL[..2]));
    assert_eq!(host.write(2, 0, 2), Status::SUCCESS);
    assert_eq!(slots.opened(A), 1);
    // The first device is removed, and the drive stays for the other one.
    apply(&mut appliance, &config(1, &ALL[1..2]));
    let mut host = Host::attach(&appliance);
    let second = Ok(vec![2; BLOCK_BYTES]);
    assert_eq!(host.read(1, 0), second, "it is namespace 1 now");
    assert_eq!((slots.opened(A), slots.is_open(A)), (1, true));
    // It is exchanged for the other namespace of the drive, which stays open meanwhile.
    apply(&mut appliance, &config(1, &ALL[..1]));
    let mut host = Host::attach(&appliance);
    assert_eq!(host.read(1, 0), Ok(vec![1; BLOCK_BYTES]));
    assert_eq!(slots.opened(A), 1);
    drop(host);
    assert!(appliance.stop_quietly());
    expect_closed(&slots, A);
}

/// The same device on another drive, two devices that exchange their drives, and other settings.
#[test]
fn device_changes_its_drive() {
    let (mut appliance, slots) = started_on(config(1, &[("x", 1, 1)]), |_, _| {});
    let read = |appliance: &Appliance, nsid| Host::attach(appliance).read(nsid, 0);
    assert_eq!(Host::attach(&appliance).write(1, 0, 1), Status::SUCCESS);
    apply(&mut appliance, &config(1, &[("x", 2, 1)]));
    assert_eq!(read(&appliance, 1), Ok(vec![0; BLOCK_BYTES]));
    assert_eq!(Host::attach(&appliance).write(1, 0, 2), Status::SUCCESS);
    expect_closed(&slots, A);
    apply(&mut appliance, &config(1, &[("x", 2, 1), ("y", 1, 1)]));
    let devices = [("x", 1, 1), ("y", 2, 1)];
    apply(&mut appliance, &config(1, &devices));
    assert_eq!(read(&appliance, 1), Ok(vec![1; BLOCK_BYTES]));
    assert_eq!(read(&appliance, 2), Ok(vec![2; BLOCK_BYTES]));
    assert_eq!((slots.opened(A), slots.opened(B)), (2, 1));
    let deeper = configuration_of(&cores(1), &devices, "queue_depth = 8");
    apply(&mut appliance, &deeper);
    assert_eq!(read(&appliance, 2), Ok(vec![2; BLOCK_BYTES]));
    assert_eq!((slots.opened(A), slots.opened(B)), (3, 2));
    assert!(appliance.stop_quietly());
    expect_closed(&slots, A);
    expect_closed(&slots, B);
}

/// A drive that is closed to get other settings is missing when it is opened again. The answer
/// says so, and the previous configuration can be applied when the drive is there.
#[test]
fn missing_drive_is_reported_after_it_was_closed() {
    let devices = [ALL[0], ALL[2]];
    let now = config(1, &devices);
    let deeper = configuration_of(&cores(1), &devices, "queue_depth = 8");
    for (missing, name) in [(A, "a1"), (B, "b1")] {
        let (mut appliance, slots) = started_on(now.clone(), |_, _| {});
        assert_eq!(Host::attach(&appliance).write(2, 0, 5), Status::SUCCESS);
        slots.with(missing, |slot| slot.is_there = false);
        let reason = refused(&mut appliance, &deeper);
        let why = format!("device {name}: {missing}: no PCI function has this address");
        assert!(reason.contains(&why), "{reason}");
        assert!(reason.contains("could not be undone"), "{reason}");
        slots.with(missing, |slot| slot.is_there = true);
        apply(&mut appliance, &now);
        let read = Host::attach(&appliance).read(2, 0);
        assert_eq!(read, Ok(vec![5; BLOCK_BYTES]));
        assert!(appliance.stop_quietly());
    }
}

/// A drive was removed and another one closed to get other settings, when a step fails: both are
/// opened again.
#[test]
fn removed_drives_return_if_a_later_step_fails() {
    let now = config(1, &[ALL[0], ALL[2]]);
    let (mut appliance, slots) = started_on(now.clone(), |_, _| {});
    let mut host = Host::attach(&appliance);
    for nsid in [1, 2] {
        assert_eq!(host.write(nsid, 0, nsid as u8), Status::SUCCESS);
    }
    let wanted = configuration_of(&cores(1), &[("a1", 1, 9)], "queue_depth = 8");
    let reason = refused(&mut appliance, &wanted);
    let why = "device a1: 0000:01:00.0: the drive has no active namespace 9";
    assert!(reason.contains(why), "{reason}");
    let undone = "nothing was changed: the completed steps were undone";
    assert!(reason.contains(undone), "{reason}");
    assert_eq!(appliance.config().difference(&now), []);
    assert_eq!((slots.opened(A), slots.opened(B)), (3, 2));
    let mut host = Host::attach(&appliance);
    for nsid in [1, 2] {
        assert_eq!(host.read(nsid, 0), Ok(vec![nsid as u8; BLOCK_BYTES]));
    }
    drop(host);
    assert!(appliance.stop_quietly());
}

/// The answer to a removal waits until the drive has written its cache.
#[test]
fn removal_waits_for_a_slow_shutdown() {
    let shutdown = Duration::from_millis(1500);
    let (mut appliance, slots) = started_on(config(1, &ALL), |address, options| {
        if address == B {
            options.shutdown_after = Nanos::from_millis(1500);
        }
    });
    assert_eq!(Host::attach(&appliance).write(3, 0, 5), Status::SUCCESS);
    let began = Instant::now();
    let is_over = AtomicBool::new(false);
    let answer = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let now = began.elapsed().as_nanos();
                slots.control(B).tick(Nanos(now as u64));
                std::thread::sleep(LOOK_INTERVAL);
            }
        });
        let answer = apply(&mut appliance, &config(1, &ALL[..2]));
        is_over.store(true, Ordering::Relaxed);
        answer
    });
    assert!(began.elapsed() >= shutdown, "{:?}", began.elapsed());
    let mut steps = answer.steps.iter();
    assert!(steps.all(|it| it.warning.is_none()), "{answer:#?}");
    expect_closed(&slots, B);
    let mut block = [0; BLOCK_BYTES];
    assert!(slots.control(B).read_durable(1, 0, &mut block));
    assert_eq!(block, [5; BLOCK_BYTES]);
    assert!(appliance.stop_quietly());
}

/// Fifty times: the arena's memory, the pollers and the references to the drive are the same as
/// before.
#[test]
fn repeated_addition_leaks_nothing() {
    let (without, with) = (config(2, &ALL[..2]), config(2, &ALL));
    let (mut appliance, slots) = started_on(without.clone(), |_, _| {});
    let mut host = Host::attach(&appliance);
    let mut before = None;
    for round in 0..50 {
        apply(&mut appliance, &with);
        assert_eq!(host.write(3, 0, round), Status::SUCCESS);
        assert_eq!(host.write(1, 0, round), Status::SUCCESS);
        apply(&mut appliance, &without);
        expect_closed(&slots, B);
        // The pools of the reactors keep some memory from the first round on.
        let before = before.get_or_insert_with(|| occupied(&appliance));
        expect_occupied(&appliance, before);
    }
    assert_eq!(slots.opened(B), 50);
    drop(host);
    assert!(appliance.stop_quietly());
}

#[test]
fn stop_shuts_an_added_drive_down() {
    let (mut appliance, slots) = started_on(config(2, &ALL[..2]), |_, _| {});
    apply(&mut appliance, &config(2, &ALL));
    let mut host = Host::attach(&appliance);
    assert_eq!(host.write(3, 7, 9), Status::SUCCESS);
    drop(host);
    assert!(appliance.stop_quietly());
    let mut block = [0; BLOCK_BYTES];
    assert!(slots.control(B).read_durable(1, 7, &mut block));
    assert_eq!(block, [9; BLOCK_BYTES]);
    expect_closed(&slots, A);
    expect_closed(&slots, B);
}

/// The status has the counters of an added drive, and forgets a removed one.
#[test]
fn status_follows_the_drives() {
    let (mut appliance, _slots) = started_on(config(1, &ALL[..1]), |_, _| {});
    let driven = |appliance: &Appliance| -> Vec<String> {
        let devices = appliance.status().devices.into_iter();
        let driven = devices.filter(|it| it.drive.is_some());
        driven.map(|it| it.name).collect()
    };
    assert_eq!(driven(&appliance), ["a1"]);
    apply(&mut appliance, &config(1, &ALL));
    assert_eq!(driven(&appliance), ["a1", "a2", "b1", "b2"]);
    apply(&mut appliance, &config(1, &ALL[..2]));
    assert_eq!(driven(&appliance), ["a1", "a2"]);
    assert!(appliance.stop_quietly());
}

/// The monitor handles the removal and the return of an added drive, and a drive that is gone can
/// be removed from the configuration.
#[test]
fn added_drive_is_monitored() {
    let (mut appliance, slots) = started_on(config(1, &ALL[2..]), |_, _| {});
    let both = [ALL[0], ALL[2]];
    apply(&mut appliance, &config(1, &both));
    let mut host = Host::attach(&appliance);
    assert_eq!(host.write(1, 0, 5), Status::SUCCESS);
    assert_eq!(host.flush(1), Status::SUCCESS);
    let pull = |slots: &Slots| {
        slots.with(A, |slot| slot.is_there = false);
        slots.control(A).remove();
    };
    let insert = |slots: &Slots| {
        slots.control(A).reinsert();
        slots.with(A, |slot| slot.is_there = true);
    };
    pull(&slots);
    poll_until_served(&mut appliance, &mut host, false);
    let reason = refused(&mut appliance, &config(1, &[ALL[0], ALL[2], ALL[1]]));
    assert!(
        reason.contains("device a2: 0000:01:00.0 is gone"),
        "{reason}"
    );
    insert(&slots);
    poll_until_served(&mut appliance, &mut host, true);
    pull(&slots);
    poll_until_served(&mut appliance, &mut host, false);
    apply(&mut appliance, &config(1, &ALL[2..3]));
    assert!(!has_device(&appliance, "a1") && !slots.is_open(A));
    insert(&slots);
    apply(&mut appliance, &config(1, &both));
    let mut host = Host::attach(&appliance);
    assert_eq!(host.read(1, 0), Ok(vec![5; BLOCK_BYTES]));
    drop(host);
    assert!(appliance.stop_quietly());
}

/// A drive that does not complete a command is closed nevertheless, after the deadline.
#[test]
fn hung_drive_is_removed_at_the_deadline() {
    let config = |devices: Wanted<'_>| {
        let mut config = configuration_of(&cores(1), devices, "command_deadline = \"60s\"");
        config.appliance.shutdown_deadline = "300ms".parse().expect("a time");
        config
    };
    let (with, without) = (config(&[ALL[0], ALL[2]]), config(&[ALL[0]]));
    let (mut appliance, slots) = started_on(with.clone(), |_, _| {});
    let hang = Fault::Hang { abortable: false };
    let reads = FaultMatch::io().with_opcode(IoOpcode::READ.0);
    let control = slots.control(B);
    control.inject(FaultRule::new(reads, When::Always, hang));
    let mut reader = Host::attach(&appliance);
    std::thread::scope(|scope| {
        let read = scope.spawn(|| reader.read(2, 0));
        let began = Instant::now();
        while control.outstanding() == 0 {
            assert!(began.elapsed() < LIMIT);
            std::thread::sleep(LOOK_INTERVAL);
        }
        let answer = apply(&mut appliance, &without);
        let mut steps = answer.steps.iter();
        assert!(steps.any(|it| !it.cut_off.is_empty()), "{answer:#?}");
        assert!(!slots.is_open(B));
        assert!(read.join().expect("no panic").is_err());
    });
    control.disarm_all();
    apply(&mut appliance, &with);
    assert_eq!(Host::attach(&appliance).write(2, 0, 1), Status::SUCCESS);
    appliance.set_shutdown_deadline("20s");
    assert!(appliance.stop_quietly());
}

/// A client of the control plane that may use only files of some directories opens no drive.
#[test]
fn requests_with_allowed_paths_open_no_drive() {
    let mut now = config(1, &ALL[..1]);
    now.control.allowed_paths = Some(vec!["/srv".into()]);
    let (mut appliance, slots) = started_on(now.clone(), |_, _| {});
    let mut wanted = config(1, &ALL);
    wanted.control = now.control.clone();
    let answer = try_apply(&mut appliance, &wanted, Origin::Request);
    let reason = answer.failure_reason().expect("a reason");
    assert!(
        reason.contains("device b1: `allowed_paths` of [control]"),
        "{reason}"
    );
    assert_eq!(slots.opened(B), 0);
    apply(&mut appliance, &wanted);
    assert_eq!(slots.opened(B), 1);
    assert!(appliance.stop_quietly());
}
