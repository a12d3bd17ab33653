//! Regression tests: seeds that found defects in the appliance, in the judge or in the simulation.
//!
//! The behaviour of a seed changes with the simulation. The planted defects prove that the judge
//! still detects such defects.

use simulation::faults::{Fault, Faults};
use simulation::run::run;
use simulation::swarm::Limits;

/// A read with FUA flushed before it read: data written between the two was returned and then lost
/// in a power cut.
#[test]
fn data_returned_by_a_fua_read_survives_a_power_cut() {
    quiet(137_236_983_743, &[Fault::Drive, Fault::Rdma]);
}

/// Runs a seed without the faults that did not exist when it was found.
fn quiet(seed: u64, later: &[Fault]) {
    let without: Faults = [
        Fault::Subsystems,
        Fault::Listeners,
        Fault::Growth,
        Fault::Refused,
    ]
    .into_iter()
    .chain(later.iter().copied())
    .collect();
    let limits = Limits {
        without,
        ..Limits::default()
    };
    let failure = run(seed, &limits).failure;
    assert!(failure.is_none(), "{}", failure.expect("some"));
}

/// A command that had waited for memory, and failed as soon as it got some, was completed before
/// commands that had finished earlier: SQHD moved backwards.
#[test]
fn responses_are_sent_in_sqhd_order() {
    quiet(363_739_657_514, &[Fault::Drive, Fault::Rdma]);
}

/// A transport that shares its reactor with another received new commands before it sent
/// completions that the other's turn had produced: inline completions overtook those, and SQHD
/// moved backwards.
#[test]
fn inline_completions_do_not_overtake_another_transports() {
    quiet(13, &[]);
}

/// The judge reported an appliance that had no room for one more connection while connections of
/// vanished hosts waited for their keep-alive to expire.
#[test]
fn reactor_full_of_vanished_hosts_may_refuse_connections() {
    quiet(62_751_389_812, &[]);
}

/// The judge reported the event of a drive's error as unfounded, because a stalled stream delivered
/// it after the drive had recovered.
#[test]
fn error_event_may_arrive_late_over_a_stalled_stream() {
    quiet(255_342_191_913, &[]);
}

/// The judge expected a response to a read with an invalid key while its disk completed nothing.
#[test]
fn read_with_invalid_key_waits_for_its_disk() {
    let failure = run(1_008_366_391_292, &Limits::default()).failure;
    assert!(failure.is_none(), "{}", failure.expect("some"));
}

/// Time advanced while a connection was in transfer between two reactors, and its host waited
/// forever.
#[test]
fn time_does_not_advance_during_a_connection_transfer() {
    let limits = Limits {
        without: [Fault::Crash, Fault::Unreachable].into_iter().collect(),
        ..Limits::default()
    };
    let failure = run(10_028, &limits).failure;
    assert!(failure.is_none(), "{}", failure.expect("some"));
}

/// The target disconnected a host as silent although it could not receive its commands: all
/// receives waited for memory that a disk held.
#[test]
fn host_is_not_silent_while_receives_wait_for_memory() {
    let limits = Limits {
        events: Some(600),
        hosts: Some(3),
        ..Limits::default()
    };
    let failure = run(284_801_374_036, &limits).failure;
    assert!(failure.is_none(), "{}", failure.expect("some"));
}

/// The judge expected an event for a namespace that was added while its drive was pulled out, and
/// so did not exist.
#[test]
fn namespace_added_without_its_drive_raises_no_event() {
    let failure = run(323_940_633_372, &Limits::default()).failure;
    assert!(failure.is_none(), "{}", failure.expect("some"));
}

/// The judge reported a write to memory that waited for the only slice of its size while a disk
/// delayed the write that had it.
#[test]
fn write_may_wait_for_the_slice_of_a_lingering_write() {
    let limits = Limits {
        events: Some(100),
        hosts: Some(2),
        without: [
            Fault::Power,
            Fault::Restart,
            Fault::Keys,
            Fault::Crowd,
            Fault::Deaf,
        ]
        .into_iter()
        .collect(),
        ..Limits::default()
    };
    let failure = run(751_853_236_249, &limits).failure;
    assert!(failure.is_none(), "{}", failure.expect("some"));
}

/// A read of a host that had vanished borrowed blocks after a write that another host's borrow had
/// delayed, and delayed the next write again.
#[test]
fn hosts_that_take_no_data_do_not_delay_a_write_in_turn() {
    let without = [
        Fault::Abort,
        Fault::Disconnect,
        Fault::Error,
        Fault::Namespaces,
        Fault::Drive,
        Fault::Hang,
        Fault::Confusion,
        Fault::Linger,
        Fault::FlushErrors,
        Fault::WrongConnect,
        Fault::Tight,
        Fault::Exchange,
        Fault::EventFlood,
        Fault::Anonymous,
        Fault::Swap,
        Fault::Ana,
    ];
    let limits = Limits {
        events: Some(38),
        without: without.into_iter().collect(),
        ..Limits::default()
    };
    let failure = run(16_579_656_369, &limits).failure;
    assert!(failure.is_none(), "{}", failure.expect("some"));
}

/// The judge took an invalid Copy, which waits for memory for more than its list, for a command of the
/// size of its list: others that are as long may have their data requested before it.
#[test]
fn an_invalid_copy_may_be_overtaken_by_other_lists() {
    quiet(372_646_134_018, &[]);
}
