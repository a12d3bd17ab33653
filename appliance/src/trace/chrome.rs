//! Formats a trace as JSON for Chrome's trace viewer and Perfetto ("Trace Event Format": metadata,
//! complete, instant and nestable asynchronous events).
//!
//! A reactor is a process, each of its queues a thread of it, and its sleeps and stalls are on
//! thread 0. Requests overlap, so each is an asynchronous span with its own identifier, and its
//! states are spans nested in it. Times are in microseconds since the first event.

use nvme_target::Measured;
use reactors::Nanos;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::spans::{End, Incident, ReactorTimeline, Request, State, assemble};
use crate::observe::recordings::{Material, ReactorMaterial};

/// Most recorder events in one trace, over all reactors, the newest of each: about 300 bytes of
/// JSON each.
const NOTES_MAX: usize = 262_144;

/// A whole trace.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Trace {
    trace_events: Vec<Event>,
    display_time_unit: &'static str,
    other_data: Value,
}

#[derive(Debug, Serialize)]
struct Event {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    ph: &'static str,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: usize,
    tid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    /// Scope of an instant event.
    #[serde(skip_serializing_if = "Option::is_none")]
    s: Option<&'static str>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    args: Map<String, Value>,
}

impl Material {
    /// The trace of the last `seconds`, as far back as the recorders reach.
    pub(crate) fn trace(&self, seconds: u64) -> Trace {
        let oldest = self.now.saturating_sub(Nanos::from_secs(seconds));
        let share = NOTES_MAX / self.reactors.len().max(1);
        let timelines: Vec<ReactorTimeline> = self
            .reactors
            .iter()
            .map(|reactor| {
                let mut notes = reactor.recording.read(0).notes;
                notes.retain(|(time, _)| *time >= oldest);
                notes.drain(..notes.len().saturating_sub(share));
                assemble(&notes, self.now)
            })
            .collect();
        let begins = timelines.iter().flat_map(|timeline| {
            let requests = timeline.requests.iter().map(|request| request.began);
            requests.chain(timeline.incidents.iter().map(|(time, _)| *time))
        });
        let origin = begins.min().unwrap_or(self.now);
        let mut writer = Writer {
            material: self,
            origin,
            next_id: 1,
            events: Vec::new(),
        };
        for (index, (reactor, timeline)) in self.reactors.iter().zip(&timelines).enumerate() {
            writer.reactor(index, reactor, timeline);
        }
        Trace {
            trace_events: writer.events,
            display_time_unit: "ns",
            other_data: json!({
                "version": env!("CARGO_PKG_VERSION"),
                "origin_ns": origin.0,
                "now_ns": self.now.0,
                "now_unix_ms": self.now_unix_ms,
            }),
        }
    }
}

struct Writer<'a> {
    material: &'a Material,
    origin: Nanos,
    next_id: u64,
    events: Vec<Event>,
}

impl Writer<'_> {
    fn us(&self, time: Nanos) -> f64 {
        (time - self.origin).0 as f64 / 1e3
    }

    fn reactor(&mut self, pid: usize, reactor: &ReactorMaterial, timeline: &ReactorTimeline) {
        let name = format!("reactor {pid} on core {}", reactor.core);
        self.metadata("process_name", pid, 0, &name);
        self.metadata("thread_name", pid, 0, "the reactor itself");
        let mut queues: Vec<u16> = timeline.requests.iter().map(|it| it.queue).collect();
        queues.sort_unstable();
        queues.dedup();
        for queue in queues {
            let name = reactor.queues.get(&queue).cloned();
            let name = name.unwrap_or_else(|| format!("queue in slot {queue}"));
            self.metadata("thread_name", pid, thread(queue), &name);
        }
        for (time, incident) in &timeline.incidents {
            self.incident(pid, reactor, *time, incident);
        }
        for request in &timeline.requests {
            self.request(pid, request);
        }
    }

    fn metadata(&mut self, what: &str, pid: usize, tid: u32, name: &str) {
        let mut event = self.event(what.to_owned(), "M", pid, tid, self.origin);
        event.args.insert("name".to_owned(), name.into());
        self.events.push(event);
    }

    fn event(&self, name: String, ph: &'static str, pid: usize, tid: u32, time: Nanos) -> Event {
        Event {
            name,
            cat: None,
            ph,
            ts: self.us(time),
            dur: None,
            pid,
            tid,
            id: None,
            s: None,
            args: Map::new(),
        }
    }

    fn incident(
        &mut self,
        pid: usize,
        reactor: &ReactorMaterial,
        time: Nanos,
        incident: &Incident,
    ) {
        let span = |writer: &Self, name: String, until: Nanos| {
            let mut event = writer.event(name, "X", pid, 0, time);
            event.dur = Some((until - time).0 as f64 / 1e3);
            event
        };
        let instant = |writer: &Self, name: String, queue: u16| {
            let mut event = writer.event(name, "i", pid, thread(queue), time);
            event.s = Some("t");
            event
        };
        let event = match incident {
            Incident::Slept { until, woken } => {
                let mut event = span(self, "sleep".to_owned(), *until);
                event.args.insert("woken".to_owned(), (*woken).into());
                event
            }
            Incident::Stalled { poller, until } => span(
                self,
                format!("stall in {}", reactor.poller(*poller)),
                *until,
            ),
            Incident::Admin { queue, opcode } => {
                instant(self, format!("admin command {opcode:02x}h"), *queue)
            }
            Incident::Refused {
                queue,
                command_id,
                status,
            } => {
                let mut event = instant(self, "refused".to_owned(), *queue);
                event
                    .args
                    .insert("status".to_owned(), status.to_string().into());
                event
                    .args
                    .insert("command".to_owned(), (*command_id).into());
                event
            }
        };
        self.events.push(event);
    }

    fn request(&mut self, pid: usize, request: &Request) {
        let id = self.next_id;
        self.next_id += 1;
        let name = match request.measured {
            Some(Measured::Read) => "read",
            Some(Measured::Write) => "write",
            None => "other",
        };
        let mut args = Map::new();
        args.insert("command".to_owned(), request.command_id.into());
        if let Some(export) = self.material.exports.get(&request.subsystem) {
            args.insert("export".to_owned(), export.as_str().into());
        }
        if let Some(status) = request.failed {
            args.insert("status".to_owned(), status.to_string().into());
        }
        match request.end {
            End::Answered => {}
            End::Abandoned => drop(args.insert("end".to_owned(), "abandoned".into())),
            End::InProgress => drop(args.insert("end".to_owned(), "under way".into())),
        }
        let part = |writer: &mut Self, name: &str, ph, time, args| {
            let tid = thread(request.queue);
            let mut event = writer.event(name.to_owned(), ph, pid, tid, time);
            (event.cat, event.id, event.args) = (Some("request"), Some(id), args);
            writer.events.push(event);
        };
        part(self, name, "b", request.began, args);
        for (state, began, ended) in request.states() {
            let mut args = Map::new();
            let name = match state {
                State::Buffer => "buffer",
                State::Fetch => "fetch",
                State::Device(device) => {
                    if let Some(device) = self.material.devices.get(&device) {
                        args.insert("device".to_owned(), device.as_str().into());
                    }
                    "device"
                }
                State::Send => "send",
            };
            part(self, name, "b", began, args);
            part(self, name, "e", ended, Map::new());
        }
        part(self, name, "e", request.ended, Map::new());
    }
}

/// The thread number of a queue; 0 is the reactor itself.
fn thread(queue: u16) -> u32 {
    u32::from(queue) + 1
}
