use nvme_spec::Status;
use nvme_target::Measured;
use nvme_target::trace_events::{CommandTrace, TraceEvent};
use proptest::prelude::*;
use reactors::Nanos;
use reactors::recorder::{TraceRecord, TraceRecordKind};

use super::spans::{End, Incident, Request, State, assemble};

const QUEUE: u16 = 3;

fn at(time: u64, event: TraceEvent, command: u16) -> (Nanos, TraceRecord) {
    let detail = match event {
        TraceEvent::InDevice => 5,
        TraceEvent::Failed => 0x281,
        _ => 0,
    };
    let note = CommandTrace::of_queue(2, u32::from(QUEUE))
        .with_operation(Some(Measured::Read))
        .with_detail(detail)
        .with_command(command);
    (Nanos(time), event.of(note))
}

fn turn_ended(time: u64) -> (Nanos, TraceRecord) {
    (
        Nanos(time),
        TraceRecord::new(
            TraceEvent::TurnEnded
                .of(CommandTrace::of_queue(0, 0))
                .kind(),
            0,
            0,
            0,
        ),
    )
}

fn states(request: &Request) -> Vec<(State, u64, u64)> {
    let states = request.states();
    states
        .map(|(state, began, ended)| (state, began.0, ended.0))
        .collect()
}

/// The states of the only request, and how it ended.
fn only(notes: &[(Nanos, TraceRecord)], now: u64) -> (Vec<(State, u64, u64)>, End) {
    let timeline = assemble(notes, Nanos(now));
    let [request] = &timeline.requests[..] else {
        panic!("{timeline:?}");
    };
    assert_eq!((request.queue, request.subsystem), (QUEUE, 2));
    (states(request), request.end)
}

#[test]
fn request_states_are_assembled_from_events() {
    use TraceEvent::{AwaitsBuffer, Fetches, InDevice, Sent};
    let notes = [
        at(10, AwaitsBuffer, 1),
        at(20, Fetches, 1),
        at(35, InDevice, 1),
        at(50, Sent, 1),
        turn_ended(60),
    ];
    let wanted = vec![
        (State::Buffer, 10, 20),
        (State::Fetch, 20, 35),
        (State::Device(5), 35, 50),
        (State::Send, 50, 60),
    ];
    assert_eq!(only(&notes, 99), (wanted, End::Answered));
}

#[test]
fn inline_completion_is_in_send_state_until_the_turn_ends() {
    let notes = [at(10, TraceEvent::CompletedInline, 1), turn_ended(14)];
    let wanted = vec![(State::Send, 10, 14)];
    assert_eq!(only(&notes, 99), (wanted, End::Answered));
}

#[test]
fn deferred_send_extends_the_send_state() {
    use TraceEvent::{Completed, Received, Sent};
    let notes = [
        at(10, Received, 1),
        at(10, Completed, 1),
        at(50, Sent, 1),
        turn_ended(60),
    ];
    let wanted = vec![(State::Send, 10, 60)];
    assert_eq!(only(&notes, 99), (wanted.clone(), End::Answered));
    // The order of transports that record the completion before they try to send.
    let notes = [
        at(10, TraceEvent::CompletedInline, 1),
        at(10, Completed, 1),
        turn_ended(30),
        at(50, Sent, 1),
        turn_ended(60),
    ];
    assert_eq!(only(&notes, 99), (wanted, End::Answered));
}

#[test]
fn request_without_an_end_is_in_progress() {
    let notes = [at(10, TraceEvent::AwaitsBuffer, 1)];
    let wanted = vec![(State::Buffer, 10, 99)];
    assert_eq!(only(&notes, 99), (wanted, End::InProgress));
    // Sent, but the end of the turn is not recorded.
    let notes = [at(10, TraceEvent::InDevice, 1), at(20, TraceEvent::Sent, 1)];
    let wanted = vec![(State::Device(5), 10, 20), (State::Send, 20, 99)];
    assert_eq!(only(&notes, 99), (wanted, End::InProgress));
}

#[test]
fn reused_command_id_abandons_the_earlier_request() {
    let notes = [
        at(10, TraceEvent::InDevice, 1),
        at(50, TraceEvent::InDevice, 1),
        at(60, TraceEvent::Sent, 1),
        turn_ended(70),
    ];
    let requests = assemble(&notes, Nanos(99)).requests;
    let ends: Vec<_> = requests.iter().map(|it| (it.ended.0, it.end)).collect();
    assert_eq!(ends, [(50, End::Abandoned), (70, End::Answered)]);
}

#[test]
fn trace_reports_errors_with_their_status() {
    let status = Status::UNRECOVERED_READ_ERROR;
    let notes = [
        at(10, TraceEvent::InDevice, 1),
        at(20, TraceEvent::Failed, 1),
        at(20, TraceEvent::Sent, 1),
        turn_ended(30),
        at(40, TraceEvent::Failed, 2),
    ];
    let timeline = assemble(&notes, Nanos(99));
    assert_eq!(timeline.requests[0].failed, Some(status));
    let wanted = [(State::Device(5), 10, 20), (State::Send, 20, 30)];
    assert_eq!(states(&timeline.requests[0]), wanted);
    let refused = Incident::Refused {
        queue: QUEUE,
        command_id: 2,
        status,
    };
    assert_eq!(timeline.incidents, [(Nanos(40), refused)]);
}

#[test]
fn trace_shows_sleeps_and_ignores_unknown_events() {
    let note = |time, kind, argument| (Nanos(time), TraceRecord::new(kind, argument, 0, 0));
    let notes = [
        note(5, TraceRecordKind::WAKE, 1),
        note(10, TraceRecordKind::SLEEP, 0),
        note(20, TraceRecordKind::WAKE, 1),
        note(21, TraceRecordKind(255), 1),
        at(22, TraceEvent::Sent, 7),
        note(30, TraceRecordKind::SLEEP, 0),
    ];
    let timeline = assemble(&notes, Nanos(99));
    assert_eq!(timeline.requests, []);
    let slept = |until, woken| Incident::Slept {
        until: Nanos(until),
        woken,
    };
    let wanted = [(Nanos(10), slept(20, true)), (Nanos(30), slept(99, false))];
    assert_eq!(timeline.incidents, wanted);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// For any events, and any part of them lost by the ring: states are contiguous from the first
    /// one on, and lie within their request.
    #[test]
    fn states_are_contiguous_within_their_request(
        kinds in prop::collection::vec((0_usize..9, 0_u16..4, 0_u64..50), 0..60),
        cut in 0_usize..60,
    ) {
        use TraceEvent::{
            AwaitsBuffer, Completed, CompletedInline, Failed, Fetches, InDevice, Received, Sent,
        };
        let events = [
            Received, AwaitsBuffer, Fetches, InDevice, Failed, Completed, Sent, CompletedInline,
        ];
        let mut time = 0;
        let notes = kinds.iter().map(|(kind, command, later)| {
            time += later;
            events.get(*kind).map_or_else(
                || turn_ended(time),
                |event| at(time, *event, *command),
            )
        });
        let notes: Vec<_> = notes.collect();
        let all = assemble(&notes[cut.min(notes.len())..], Nanos(time + 10));
        for request in &all.requests {
            let mut end = request.spans.first().map_or(request.ended, |span| span.began);
            prop_assert!(request.began <= end);
            for (_, began, ended) in request.states() {
                prop_assert_eq!(began, end);
                prop_assert!(began <= ended);
                end = ended;
            }
            prop_assert_eq!(end, request.ended);
        }
    }
}
