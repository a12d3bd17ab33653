//! Regression tests: seeds that found defects in the appliance, in the judge or in the simulation.
//!
//! The behaviour of a seed changes with the simulation. The planted defects prove that the judge
//! still detects such defects.

use simulation::run::run;
use simulation::swarm::{Fault, Faults, Limits};

/// A read with FUA flushed before it read: data written between the two was returned and then lost
/// in a power cut.
#[test]
fn what_a_read_with_fua_returned_outlives_a_power_cut() {
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
fn answers_leave_in_the_order_of_their_queue_heads() {
    quiet(363_739_657_514, &[Fault::Drive, Fault::Rdma]);
}

/// A transport that shares its reactor with another received new commands before it sent
/// completions that the other's turn had produced: inline completions overtook those, and SQHD
/// moved backwards.
#[test]
fn answers_do_not_overtake_what_another_transport_had_finished() {
    quiet(13, &[]);
}

/// The judge reported an appliance that had no room for one more connection while connections of
/// vanished hosts waited for their keep-alive to expire.
#[test]
fn a_reactor_full_of_vanished_hosts_may_refuse() {
    quiet(62_751_389_812, &[]);
}

/// The judge reported the event of a drive's error as unfounded, because a stalled stream delivered
/// it after the drive had recovered.
#[test]
fn an_error_is_told_late_over_a_stalled_stream() {
    quiet(255_342_191_913, &[]);
}

/// The judge expected a response to a read with an invalid key while its disk completed nothing.
#[test]
fn a_read_with_a_bad_key_waits_for_its_disk() {
    let failure = run(1_008_366_391_292, &Limits::default()).failure;
    assert!(failure.is_none(), "{}", failure.expect("some"));
}

/// Time advanced while a connection was in transfer between two reactors, and its host waited
/// forever.
#[test]
fn time_waits_for_what_is_between_reactors() {
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
fn a_host_that_the_target_cannot_receive_is_not_silent() {
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
fn a_namespace_without_its_drive_is_not_told_of() {
    let failure = run(323_940_633_372, &Limits::default()).failure;
    assert!(failure.is_none(), "{}", failure.expect("some"));
}
