//! What the simulation found in the appliance, in its judge or in its own time: those seeds stay
//! quiet.
//!
//! What a seed does moves with the simulation; that the judge would see the same again is proved by
//! the planted defects.

use simulation::run::run;
use simulation::swarm::{Fault, Faults, Limits};

/// A read with FUA flushed before it read: what came between the two was answered and then lost in
/// a power cut.
#[test]
fn what_a_read_with_fua_returned_outlives_a_power_cut() {
    quiet(137_236_983_743, &[Fault::Drive, Fault::Rdma]);
}

/// Without what the seeds did not have when they were found.
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

/// A command that had waited for memory, and failed as soon as it got some, was answered before
/// commands that had been done earlier: SQHD went back.
#[test]
fn answers_leave_in_the_order_of_their_queue_heads() {
    quiet(363_739_657_514, &[Fault::Drive, Fault::Rdma]);
}

/// A transport that shares its reactor with another took new commands in before it handed out what
/// the other's turn had finished: answers made at once overtook those, and SQHD went back.
#[test]
fn answers_do_not_overtake_what_another_transport_had_finished() {
    quiet(13, &[]);
}

/// The judge once accused an appliance that had no place for one more connection, while those of
/// hosts that had vanished awaited their keep-alive.
#[test]
fn a_reactor_full_of_vanished_hosts_may_refuse() {
    quiet(62_751_389_812, &[]);
}

/// The judge once took the event of a drive's error for one without a cause, since a stalled stream
/// brought it when the drive was well again.
#[test]
fn an_error_is_told_late_over_a_stalled_stream() {
    quiet(255_342_191_913, &[]);
}

/// The judge once wanted a read with a bad key answered while its disk answered nothing.
#[test]
fn a_read_with_a_bad_key_waits_for_its_disk() {
    let failure = run(1_008_366_391_292, &Limits::default()).failure;
    assert!(failure.is_none(), "{}", failure.expect("some"));
}

/// Time once leapt while a connection waited to be handed from one reactor to another, and its host
/// waited for ever.
#[test]
fn time_waits_for_what_is_between_reactors() {
    let limits = Limits {
        without: [Fault::Crash, Fault::Unreachable].into_iter().collect(),
        ..Limits::default()
    };
    let failure = run(10_028, &limits).failure;
    assert!(failure.is_none(), "{}", failure.expect("some"));
}

/// A host was let go as silent although its commands could not come in: all receives waited for
/// memory that a disk held up.
#[test]
fn who_could_not_be_heard_is_not_silent() {
    let limits = Limits {
        events: Some(600),
        hosts: Some(3),
        ..Limits::default()
    };
    let failure = run(284_801_374_036, &limits).failure;
    assert!(failure.is_none(), "{}", failure.expect("some"));
}

/// The judge once wanted an event of a namespace that came while its drive was pulled out, and so
/// was not there.
#[test]
fn a_namespace_without_its_drive_is_not_told_of() {
    let failure = run(323_940_633_372, &Limits::default()).failure;
    assert!(failure.is_none(), "{}", failure.expect("some"));
}
