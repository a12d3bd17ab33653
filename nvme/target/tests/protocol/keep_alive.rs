//! Keep Alive (Base 2.1 §3.9, §5.1.14), and the end of silent hosts.

use nvme_spec::command::{FeatureId, FeatureSelect};
use nvme_spec::registers::Cc;
use nvme_spec::{Sqe, Status};
use nvme_target::{CloseReason, ControllerState};
use reactors::Nanos;

use crate::harness::{ConnectOptions, Link, RAM, World, discovery_call};

const KATO_MS: u32 = 5000;

fn host() -> ConnectOptions<'static> {
    ConnectOptions {
        kato_ms: KATO_MS,
        ..ConnectOptions::default()
    }
}

fn seconds(count: u64) -> Nanos {
    Nanos::from_secs(count)
}

fn alive(world: &mut World, admin: Link) -> bool {
    world.settle();
    let closed = world.closes(admin.node);
    closed.is_empty()
        && world
            .command(admin, Sqe::keep_alive())
            .status()
            .is_success()
}

/// Base 2.1 §3.9: without commands the association ends with all its connections.
#[test]
fn silent_host_is_disconnected_after_keep_alive_timeout() {
    let mut world = World::new();
    let admin = world.enabled_by(0, &host());
    let io = world.io_queue(1, admin, 1);
    world.advance(seconds(5));
    assert!(
        world.closes(0).is_empty(),
        "commands came within the first interval"
    );
    world.advance(seconds(5));
    assert_eq!(world.close_reasons(0), [CloseReason::KeepAliveExpired]);
    assert_eq!(world.close_reasons(1), [CloseReason::KeepAliveExpired]);
    assert_eq!(world.nodes[0].core.counters().keep_alive_expired.get(), 1);
    world
        .command(io, Sqe::read(RAM, 0, 0))
        .is(Status::ABORTED_SQ_DELETION);
    world
        .command(admin, Sqe::keep_alive())
        .is(Status::ABORTED_SQ_DELETION);
    assert_eq!(
        world.target.snapshot().controllers[0].state,
        ControllerState::Ended
    );
    world.close(io);
    world.close(admin);
    assert!(world.target.snapshot().controllers.is_empty());
    // The two failed commands used the allowance of logged errors, which is refilled.
    world.advance(Nanos::from_millis(100));
    assert_eq!(world.nodes[0].next_deadline(), None);
}

/// Base 2.1 §3.9: Keep Alive restarts the timer.
#[test]
fn keep_alive_command_restarts_the_timer() {
    let mut world = World::new();
    let admin = world.enabled_by(0, &host());
    for _ in 0..10 {
        world.advance(seconds(4));
        world.command(admin, Sqe::keep_alive()).ok();
    }
    assert!(alive(&mut world, admin));
}

/// Base 2.1 §3.9: with traffic based keep-alive any command on any queue counts, also one on
/// another core.
#[test]
fn traffic_on_another_core_restarts_the_keep_alive_timer() {
    let mut world = World::new();
    let admin = world.enabled_by(0, &host());
    let io = world.io_queue(1, admin, 1);
    for _ in 0..10 {
        world.advance(seconds(4));
        world.read_blocks(io, RAM, 0, 1);
    }
    assert!(alive(&mut world, admin));
    world.advance(seconds(5));
    world.advance(seconds(5));
    assert_eq!(world.close_reasons(0), [CloseReason::KeepAliveExpired]);
}

/// Base 2.1 §5.1.25.1.8: 0 disables the timer.
#[test]
fn zero_keep_alive_timeout_disables_the_timer() {
    let mut world = World::new();
    let admin = world.enabled_by(0, &ConnectOptions::default());
    world.advance(seconds(100_000));
    assert!(alive(&mut world, admin));
}

/// Base 2.1 §5.1.25.1.8: the feature changes the timeout, rounded up to KAS.
#[test]
fn keep_alive_timer_feature_changes_the_timeout() {
    let mut world = World::new();
    let admin = world.enabled_by(0, &host());
    world
        .set_feature(admin, FeatureId::KEEP_ALIVE_TIMER, 60_001)
        .ok();
    let get = Sqe::get_feature(FeatureId::KEEP_ALIVE_TIMER, FeatureSelect::CURRENT, 0, 0);
    assert_eq!(world.command(admin, get).dw0(), 60_100);
    world.advance(seconds(50));
    world.advance(seconds(50));
    assert!(world.closes(0).is_empty());
    world
        .set_feature(admin, FeatureId::KEEP_ALIVE_TIMER, 0)
        .ok();
    world.advance(seconds(1000));
    assert!(alive(&mut world, admin));
}

/// Base 2.1 §3.9: the timer does not run while the controller is not ready. A controller that is
/// never enabled still ends.
#[test]
fn never_enabled_controller_is_removed() {
    let mut world = World::new();
    let admin = world.connect(0, &host());
    world.advance(seconds(119));
    assert!(world.closes(0).is_empty());
    assert_eq!(world.nodes[0].next_deadline(), Some(world.now + seconds(1)));
    world.advance(seconds(1));
    assert_eq!(world.close_reasons(0), [CloseReason::Inactive]);
    world.close(admin);
    let disabled = world.enabled_by(0, &host());
    world.set_cc(disabled, Cc::new());
    world.advance(seconds(120));
    assert!(world.closes(0).is_empty(), "it was reset in this interval");
    world.advance(seconds(120));
    assert_eq!(world.close_reasons(0), [CloseReason::Inactive]);
}

/// Base 2.1 §3.1.3.3: a discovery controller without keep-alive ends after two minutes of silence;
/// one with keep-alive is persistent.
#[test]
fn idle_discovery_controller_expires_after_two_minutes() {
    let mut world = World::new();
    let admin = world.enabled_by(0, &discovery_call());
    world.advance(seconds(100));
    assert!(alive(&mut world, admin));
    world.advance(seconds(120));
    world.advance(seconds(120));
    assert_eq!(world.close_reasons(0), [CloseReason::Inactive]);
    world.close(admin);
    let persistent = ConnectOptions {
        kato_ms: 30_000,
        ..discovery_call()
    };
    let admin = world.enabled_by(0, &persistent);
    for _ in 0..20 {
        world.advance(seconds(29));
        assert!(alive(&mut world, admin));
    }
    world.advance(seconds(30));
    world.advance(seconds(30));
    assert_eq!(world.close_reasons(0), [CloseReason::KeepAliveExpired]);
}
