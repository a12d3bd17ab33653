//! Latencies are counted by stage, and the progress of commands is traced.

use nvme_spec::registers::{Cc, ShutdownNotification};
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{Sqe, Status};
use nvme_target::trace_events::{CommandTrace, TraceEvent};
use nvme_target::{Admission, Completed, Measured, Stage, Timing, Work, WorkProgress};
use reactors::Nanos;
use reactors::recorder::Recorder;

use crate::harness::{ConnectOptions, Link, PLAIN, RAM, SUBSYSTEM, World};

/// A world whose turns the test controls, and its trace events.
struct Turns {
    world: World,
    io: Link,
    recorder: Recorder,
    began: Nanos,
}

impl Turns {
    fn new() -> Self {
        let mut world = World::new();
        let (_, io) = world.ready();
        // Earlier responses are counted.
        world.settle();
        let recorder = Recorder::new();
        world.nodes[0].core.set_recorder(recorder.clone());
        let began = world.now;
        Self {
            world,
            io,
            recorder,
            began,
        }
    }

    /// Sets the time in microseconds from the beginning.
    fn at(&mut self, us: u64) {
        self.world.now = self.began + Nanos::from_micros(us);
    }

    fn admit(&mut self, sqe: Sqe, bytes: u32) -> Work {
        let sqe = sqe.with_sgl(SglDescriptor::transport(bytes));
        let (core, now) = (&mut self.world.nodes[0].core, self.world.now);
        let admission = core.admit(self.io.queue, 7, &sqe.with_cid(9), now);
        let Admission::Work(work) = admission else {
            panic!("{admission:?}")
        };
        work
    }

    fn execute(&mut self, work: Work) -> Option<Completed> {
        let (node, now) = (&mut self.world.nodes[0], self.world.now);
        let bytes = work.bytes() as usize;
        let lease = work.needs_lease().then(|| node.pool.take(bytes));
        let lease = lease.map(|lease| lease.expect("room"));
        node.core.execute(self.io.queue, 7, work, lease, now)
    }

    /// Polls and takes the completion.
    fn poll(&mut self) -> Option<Completed> {
        let node = &mut self.world.nodes[0];
        node.poll(self.world.now);
        node.core.next_completion(node.tcp)
    }

    fn sent(&mut self, timing: Timing) {
        self.world.nodes[0].core.sent(timing, self.world.now);
    }

    fn end_turn(&mut self) {
        self.world.nodes[0].flush();
    }

    /// Number of commands of a stage, and the sum of their microseconds.
    fn counted(&self, stage: Stage, measured: Measured) -> (u64, u64) {
        let latency = self.world.target.latency();
        let counts = &latency.subsystem(SUBSYSTEM).expect("it is there")[stage][measured];
        (counts.count(), counts.sum_ns / 1000)
    }

    /// Trace events with their times in microseconds.
    fn noted(&self) -> Vec<(u64, TraceEvent)> {
        let notes = self.recorder.recording().read(0).notes;
        let notes = notes.into_iter().map(|(time, note)| {
            let (event, command) = CommandTrace::read(note).expect("a command's");
            if event != TraceEvent::TurnEnded {
                assert_eq!(command.command_id(), 9);
                assert_ne!(command.measured(), None);
            }
            ((time - self.began).as_micros(), event)
        });
        notes.collect()
    }
}

#[test]
fn each_stage_of_a_write_is_counted() {
    let mut turns = Turns::new();
    let mut work = turns.admit(Sqe::write(RAM, 0, 0, false), 512);
    let queue = turns.io.queue;
    let (core, now) = (&mut turns.world.nodes[0].core, turns.world.now);
    core.record_progress(queue, &mut work, WorkProgress::AwaitsBuffer, now);
    turns.at(10);
    let (core, now) = (&mut turns.world.nodes[0].core, turns.world.now);
    core.record_progress(queue, &mut work, WorkProgress::GotBuffer, now);
    core.record_progress(queue, &mut work, WorkProgress::Fetches, now);
    turns.at(30);
    assert!(turns.execute(work).is_none());
    turns.at(45);
    let done = turns.poll().expect("it is done");
    turns.sent(done.timing);
    turns.end_turn();
    // Counted after the end of the turn is known.
    assert_eq!(turns.counted(Stage::Total, Measured::Write), (0, 0));
    turns.at(50);
    assert!(turns.poll().is_none());
    for (stage, took) in [
        (Stage::Buffer, 10),
        (Stage::Fetch, 20),
        (Stage::Device, 15),
        (Stage::Send, 5),
        (Stage::Total, 50),
    ] {
        let counted = turns.counted(stage, Measured::Write);
        assert_eq!(counted, (1, took), "{stage:?}");
        assert_eq!(turns.counted(stage, Measured::Read), (0, 0));
    }
    let wanted = [
        (0, TraceEvent::AwaitsBuffer),
        (10, TraceEvent::Fetches),
        (30, TraceEvent::InDevice),
        (45, TraceEvent::Sent),
        (50, TraceEvent::TurnEnded),
    ];
    assert_eq!(turns.noted(), wanted);
    let latency = turns.world.target.latency();
    assert_eq!(latency.reactors[0].write.count(), 1);
    assert_eq!(latency.reactors[1].write.count(), 0);
    assert_eq!(latency.devices[0].write.count(), 1);
}

#[test]
fn borrowed_read_is_counted_within_one_turn() {
    let mut turns = Turns::new();
    for _ in 0..3 {
        let work = turns.admit(Sqe::read(PLAIN, 0, 0), 512);
        let done = turns.execute(work).expect("lent");
        turns.sent(done.timing);
    }
    turns.end_turn();
    turns.at(4);
    turns.poll();
    assert_eq!(turns.counted(Stage::Total, Measured::Read), (3, 12));
    assert_eq!(turns.counted(Stage::Send, Measured::Read), (3, 12));
    assert_eq!(turns.counted(Stage::Device, Measured::Read), (0, 0));
    let served = (0, TraceEvent::CompletedInline);
    let wanted = [served, served, served, (4, TraceEvent::TurnEnded)];
    assert_eq!(turns.noted(), wanted);
    // Nothing more to count.
    turns.end_turn();
    turns.at(9);
    turns.poll();
    assert_eq!(turns.counted(Stage::Total, Measured::Read), (3, 12));
}

/// The same for inline completions.
#[test]
fn inline_completions_are_counted() {
    let mut turns = Turns::new();
    let read = Sqe::read(PLAIN, 0, 0).with_sgl(SglDescriptor::transport(512));
    for turn in 0..2 {
        turns.at(10 * turn);
        for _ in 0..3 {
            let (core, now) = (&mut turns.world.nodes[0].core, turns.world.now);
            let lent = core.complete_inline(turns.io.queue, &read.with_cid(9), None, now);
            assert_eq!(lent.and_then(|lent| lent.data).expect("lent").len(), 512);
        }
        // Those of the previous turn are counted here, these are not.
        turns.poll();
        let counted = turns.counted(Stage::Total, Measured::Read);
        assert_eq!(counted, (3 * turn, 30 * turn));
        assert!(turns.world.nodes[0].core.has_ready());
        turns.end_turn();
    }
    turns.at(14);
    turns.poll();
    assert_eq!(turns.counted(Stage::Total, Measured::Read), (6, 42));
    assert!(!turns.world.nodes[0].core.has_ready());
    let noted = turns.noted();
    let served = |(_, event): &&(u64, TraceEvent)| *event == TraceEvent::CompletedInline;
    assert_eq!(noted.iter().filter(served).count(), 6);
}

#[test]
fn deferred_inline_responses_are_counted_when_sent() {
    let mut turns = Turns::new();
    let read = Sqe::read(PLAIN, 0, 0).with_sgl(SglDescriptor::transport(512));
    let (core, now) = (&mut turns.world.nodes[0].core, turns.world.now);
    for _ in 0..2 {
        let read = read.with_cid(9);
        assert!(
            core.complete_inline(turns.io.queue, &read, None, now)
                .is_some()
        );
    }
    let lent = core.complete_inline(turns.io.queue, &read.with_cid(9), None, now);
    let timing =
        core.inline_response_deferred(turns.io.queue, lent.expect("borrowed").inline_timing);
    turns.end_turn();
    turns.at(10);
    turns.poll();
    assert_eq!(turns.counted(Stage::Total, Measured::Read), (2, 20));
    turns.at(30);
    turns.sent(timing);
    turns.end_turn();
    turns.at(32);
    turns.poll();
    assert_eq!(turns.counted(Stage::Total, Measured::Read), (3, 20 + 32));
    let served = (0, TraceEvent::CompletedInline);
    let wanted = [
        served,
        served,
        served,
        (0, TraceEvent::Completed),
        (10, TraceEvent::TurnEnded),
        (30, TraceEvent::Sent),
        (32, TraceEvent::TurnEnded),
    ];
    assert_eq!(turns.noted(), wanted);
}

#[test]
fn a_deferred_response_is_counted_when_sent() {
    let mut turns = Turns::new();
    let work = turns.admit(Sqe::read(PLAIN, 0, 0), 512);
    let mut timing = turns.execute(work).expect("lent").timing;
    for turn in 0..3 {
        turns.at(10 * turn);
        turns.poll();
        // Reported in every turn, traced once.
        turns.world.nodes[0].core.response_deferred(&mut timing);
        turns.end_turn();
    }
    turns.at(30);
    turns.poll();
    turns.sent(timing);
    turns.end_turn();
    turns.at(32);
    turns.poll();
    assert_eq!(turns.counted(Stage::Total, Measured::Read), (1, 32));
    let wanted = [
        (0, TraceEvent::Received),
        (0, TraceEvent::Completed),
        (30, TraceEvent::Sent),
        (32, TraceEvent::TurnEnded),
    ];
    assert_eq!(turns.noted(), wanted);
}

#[test]
fn responses_are_counted_after_the_flush() {
    let mut turns = Turns::new();
    let work = turns.admit(Sqe::read(PLAIN, 0, 0), 512);
    let done = turns.execute(work).expect("lent");
    turns.sent(done.timing);
    assert!(turns.world.nodes[0].core.has_ready(), "it is not counted");
    // Another transport of the same turn polls the core too, and the previous turn was flushed.
    turns.at(1);
    turns.poll();
    assert_eq!(turns.counted(Stage::Total, Measured::Read), (0, 0));
    turns.end_turn();
    turns.end_turn();
    turns.at(5);
    turns.poll();
    assert_eq!(turns.counted(Stage::Total, Measured::Read), (1, 5));
    assert!(!turns.world.nodes[0].core.has_ready());
}

#[test]
fn all_responses_in_a_turn_are_counted() {
    const ANSWERS: u64 = 1000;
    let mut turns = Turns::new();
    let mut waiting = Vec::new();
    for turn in 0..ANSWERS {
        turns.at(turn);
        let work = turns.admit(Sqe::read(PLAIN, 0, 0), 512);
        waiting.push(turns.execute(work).expect("lent").timing);
        turns.poll();
        turns.end_turn();
    }
    turns.at(ANSWERS);
    turns.poll();
    // Each was received at another time: more runs than one turn can count separately.
    for timing in waiting {
        turns.sent(timing);
    }
    turns.sent(Timing::NONE);
    turns.end_turn();
    turns.at(ANSWERS);
    turns.poll();
    let sum = (1..=ANSWERS).sum();
    assert_eq!(turns.counted(Stage::Total, Measured::Read), (ANSWERS, sum));
}

/// Counts of a subsystem stay when its namespaces change, and end with the subsystem.
#[test]
fn counts_belong_to_their_subsystem() {
    let mut turns = Turns::new();
    let work = turns.admit(Sqe::read(PLAIN, 0, 0), 512);
    let done = turns.execute(work).expect("lent");
    turns.sent(done.timing);
    turns.end_turn();
    turns.poll();
    let target = turns.world.target.clone();
    target
        .update_namespaces(SUBSYSTEM, Vec::new())
        .expect("it is there");
    assert_eq!(turns.counted(Stage::Total, Measured::Read).0, 1);
    target.remove_subsystem(SUBSYSTEM).expect("it is there");
    assert!(target.latency().subsystem(SUBSYSTEM).is_none());
}

#[test]
fn errors_are_counted_by_subsystem_and_status() {
    let mut world = World::new();
    let (_, io) = world.ready();
    for _ in 0..2 {
        world.read(io, Sqe::read(RAM, 1 << 40, 0), 512);
    }
    let stranger = ConnectOptions {
        subsystem: "nqn.2026-11.org.windlass:none",
        ..ConnectOptions::default()
    };
    assert!(world.try_connect(0, &stranger).is_err());
    let statuses = world.target.statuses();
    let (_, counts) = statuses
        .subsystems
        .iter()
        .find(|(nqn, _)| nqn == SUBSYSTEM)
        .expect("it is there");
    let seen: Vec<_> = counts.each().collect();
    assert_eq!(seen, [(Status::LBA_OUT_OF_RANGE, 2)]);
    assert_eq!((counts.sum(), statuses.elsewhere.sum()), (2, 1));
}

#[test]
fn resets_and_reconnects_are_counted() {
    let mut world = World::new();
    let seen = |world: &World| {
        let counters = world.nodes[0].core.counters();
        (counters.controller_resets.get(), counters.reconnects.get())
    };
    let admin = world.enabled(0);
    world.set_cc(admin, Cc::new());
    world.settle();
    assert_eq!(seen(&world), (1, 0));
    // The connection breaks, and the host creates another association.
    world.close(admin);
    world.settle();
    let admin = world.enabled(0);
    assert_eq!(seen(&world), (1, 1));
    // It shuts down orderly and reconnects later.
    world.set_cc(
        admin,
        Cc::enabled_nvm().with_shn(ShutdownNotification::NORMAL),
    );
    world.settle();
    world.close(admin);
    world.settle();
    world.enabled(0);
    assert_eq!(seen(&world), (1, 1));
}
