//! Assembles the recorder events of one reactor into requests with states, and other incidents.

use std::collections::HashMap;

use nvme_spec::Status;
use nvme_target::Measured;
use nvme_target::trace_events::{CommandTrace, TraceEvent};
use reactors::Nanos;
use reactors::recorder::{TraceRecord, TraceRecordKind};

/// The state of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Waiting for a buffer.
    Buffer,
    /// Waiting for the host's data.
    Fetch,
    /// In a device, identified by its index in the target.
    Device(u16),
    /// Waiting until its response is sent.
    Send,
}

/// A state and its start. It ends when the next one begins; the last one ends with the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateSpan {
    pub(crate) state: State,
    pub(crate) began: Nanos,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Its response was sent.
    Answered,
    /// Its queue ended before.
    Abandoned,
    /// It is in progress.
    InProgress,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Slot of its queue.
    pub(crate) queue: u16,
    pub(crate) command_id: u16,
    /// Slot of its subsystem.
    pub(crate) subsystem: u32,
    /// None for commands other than Read and Write.
    pub(crate) measured: Option<Measured>,
    pub(crate) began: Nanos,
    pub(crate) ended: Nanos,
    pub(crate) spans: Vec<StateSpan>,
    /// The error status of the request.
    pub(crate) failed: Option<Status>,
    pub(crate) end: End,
}

/// An event other than a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Incident {
    /// The reactor was blocked in the kernel.
    Slept { until: Nanos, woken: bool },
    /// A poller, identified by its number, took too long.
    Stalled { poller: u16, until: Nanos },
    /// An admin command was received.
    Admin { queue: u16, opcode: u8 },
    /// A command was refused before its execution.
    Refused {
        queue: u16,
        command_id: u16,
        status: Status,
    },
}

/// The requests and incidents of one reactor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReactorTimeline {
    pub(crate) requests: Vec<Request>,
    /// With their times.
    pub(crate) incidents: Vec<(Nanos, Incident)>,
}

/// Assembles recorder events, which are in the order of recording. Requests in progress end at
/// `now`. Requests whose first events are overwritten are omitted.
pub(crate) fn assemble(notes: &[(Nanos, TraceRecord)], now: Nanos) -> ReactorTimeline {
    let mut reader = Reader::default();
    for (time, note) in notes {
        reader.take(*time, *note);
    }
    reader.finish(now)
}

#[derive(Default)]
struct Reader {
    timeline: ReactorTimeline,
    /// By queue and command identifier.
    open: HashMap<(u16, u16), Request>,
    /// Sent; the requests end with the turn.
    sent_in_turn: Vec<Request>,
    asleep_since: Option<Nanos>,
}

impl Reader {
    fn take(&mut self, time: Nanos, note: TraceRecord) {
        match CommandTrace::read(note) {
            Some((event, command)) => self.handle_event(time, event, command),
            None => self.take_reactors(time, note),
        }
    }

    fn take_reactors(&mut self, time: Nanos, note: TraceRecord) {
        let incidents = &mut self.timeline.incidents;
        match note.kind() {
            TraceRecordKind::SLEEP => self.asleep_since = Some(time),
            TraceRecordKind::WAKE => {
                if let Some(since) = self.asleep_since.take() {
                    let woken = note.argument() != 0;
                    incidents.push((since, Incident::Slept { until: time, woken }));
                }
            }
            TraceRecordKind::STALL => {
                // Poller numbers have 16 bits.
                let poller = note.argument() as u16;
                let stalled = Incident::Stalled {
                    poller,
                    until: time,
                };
                incidents.push((time - note.stalled_for(), stalled));
            }
            // Written by a later version.
            _ => {}
        }
    }

    fn handle_event(&mut self, time: Nanos, event: TraceEvent, command: CommandTrace) {
        let key = (command.queue(), command.command_id());
        match event {
            TraceEvent::Received => {
                self.begin(time, command);
            }
            TraceEvent::AwaitsBuffer => self.begin(time, command).enter(State::Buffer, time),
            TraceEvent::Fetches => {
                let waited = |last| matches!(last, Some(State::Buffer));
                self.begin_unless(time, command, waited)
                    .enter(State::Fetch, time);
            }
            TraceEvent::InDevice => {
                let waited = |last| matches!(last, Some(State::Buffer | State::Fetch));
                self.begin_unless(time, command, waited)
                    .enter(State::Device(command.detail()), time);
            }
            TraceEvent::Failed => match self.open.get_mut(&key) {
                Some(request) => {
                    request.failed = Some(command.status());
                    request.enter(State::Send, time);
                }
                None => {
                    let refused = Incident::Refused {
                        queue: command.queue(),
                        command_id: command.command_id(),
                        status: command.status(),
                    };
                    self.timeline.incidents.push((time, refused));
                }
            },
            TraceEvent::Completed => match self.open.get_mut(&key) {
                Some(request) => request.enter(State::Send, time),
                // An inline completion whose response is not sent in this turn.
                None => {
                    let is_it = |sent: &Request| (sent.queue, sent.command_id) == key;
                    if let Some(place) = self.sent_in_turn.iter().rposition(is_it) {
                        self.open.insert(key, self.sent_in_turn.remove(place));
                    }
                }
            },
            TraceEvent::Sent => {
                if let Some(mut request) = self.open.remove(&key) {
                    if request.state() != Some(State::Send) {
                        request.enter(State::Send, time);
                    }
                    self.sent_in_turn.push(request);
                }
            }
            TraceEvent::CompletedInline => {
                self.begin(time, command).enter(State::Send, time);
                self.sent_in_turn.extend(self.open.remove(&key));
            }
            TraceEvent::TurnEnded => {
                let sent = self.sent_in_turn.drain(..);
                let sent = sent.map(|request| request.ended(time, End::Answered));
                self.timeline.requests.extend(sent);
            }
            TraceEvent::Admin => {
                let incident = Incident::Admin {
                    queue: command.queue(),
                    // Eight bits.
                    opcode: command.detail() as u8,
                };
                self.timeline.incidents.push((time, incident));
            }
        }
    }

    /// Starts a request. An unfinished one with the same identifier has lost its queue.
    fn begin(&mut self, time: Nanos, command: CommandTrace) -> &mut Request {
        let key = (command.queue(), command.command_id());
        if let Some(lost) = self.open.remove(&key) {
            let last = lost.spans.last().map_or(lost.began, |span| span.began);
            let lost = lost.ended(last.max(time), End::Abandoned);
            self.timeline.requests.push(lost);
        }
        let new = || Request::new(time, command);
        self.open.entry(key).or_insert_with(new)
    }

    /// The request if it is in a state that `is_before` accepts, or a new one.
    fn begin_unless(
        &mut self,
        time: Nanos,
        command: CommandTrace,
        is_before: impl Fn(Option<State>) -> bool,
    ) -> &mut Request {
        let key = (command.queue(), command.command_id());
        let known = self.open.get(&key);
        if !known.is_some_and(|request| is_before(request.state())) {
            self.begin(time, command);
        }
        let new = || Request::new(time, command);
        self.open.entry(key).or_insert_with(new)
    }

    fn finish(mut self, now: Nanos) -> ReactorTimeline {
        let under_way = self.sent_in_turn.into_iter().chain(self.open.into_values());
        let under_way = under_way.map(|request| request.ended(now, End::InProgress));
        self.timeline.requests.extend(under_way);
        if let Some(since) = self.asleep_since {
            let asleep = Incident::Slept {
                until: now.max(since),
                woken: false,
            };
            self.timeline.incidents.push((since, asleep));
        }
        let by_time = |request: &Request| (request.began, request.queue, request.command_id);
        self.timeline.requests.sort_by_key(by_time);
        self.timeline.incidents.sort_by_key(|(time, _)| *time);
        self.timeline
    }
}

impl Request {
    fn new(began: Nanos, command: CommandTrace) -> Self {
        Self {
            queue: command.queue(),
            command_id: command.command_id(),
            subsystem: command.subsystem(),
            measured: command.measured(),
            began,
            ended: began,
            spans: Vec::new(),
            failed: None,
            end: End::InProgress,
        }
    }

    fn state(&self) -> Option<State> {
        self.spans.last().map(|span| span.state)
    }

    fn enter(&mut self, state: State, time: Nanos) {
        // Timestamps within one turn may differ slightly; states do not overlap.
        let before = self.spans.last().map_or(self.began, |span| span.began);
        let began = time.max(before);
        self.spans.push(StateSpan { state, began });
    }

    fn ended(mut self, time: Nanos, end: End) -> Self {
        let before = self.spans.last().map_or(self.began, |span| span.began);
        self.ended = time.max(before);
        self.end = end;
        self
    }

    /// The states with their start and end times.
    pub(crate) fn states(&self) -> impl Iterator<Item = (State, Nanos, Nanos)> {
        let ends = self.spans.iter().skip(1).map(|span| span.began);
        let ends = ends.chain(std::iter::once(self.ended));
        let spans = self.spans.iter().zip(ends);
        spans.map(|(span, end)| (span.state, span.began, end))
    }
}
