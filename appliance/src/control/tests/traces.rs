//! Checks that traces of a running appliance contain every request completely.

use std::collections::BTreeMap;

use clap::Parser as _;
use serde_json::Value;

use super::*;
use crate::command_line::{Arguments, run};

/// A span that has not ended.
struct Open {
    name: String,
    began: f64,
    /// Total duration of the spans in it so far.
    inner: f64,
    last_end: f64,
}

/// Checks that the asynchronous spans of each identifier nest, that the spans inside one are
/// contiguous and add up to it; counts the outermost spans by name.
#[track_caller]
fn check(trace: &Value) -> BTreeMap<String, usize> {
    /// Times are binary fractions of a microsecond.
    const ROUNDING_US: f64 = 0.002;
    let mut stacks: BTreeMap<u64, Vec<Open>> = BTreeMap::new();
    let mut counts = BTreeMap::new();
    for event in trace["traceEvents"].as_array().expect("events") {
        let Some(id) = event["id"].as_u64() else {
            assert!(matches!(event["ph"].as_str(), Some("M" | "X" | "i")));
            continue;
        };
        let name = event["name"].as_str().expect("a name").to_owned();
        let time = event["ts"].as_f64().expect("a time");
        let stack = stacks.entry(id).or_default();
        match event["ph"].as_str().expect("a phase") {
            "b" => {
                if let Some(outer) = stack.last() {
                    assert!((time - outer.last_end).abs() < ROUNDING_US, "{event}");
                }
                stack.push(Open {
                    name,
                    began: time,
                    inner: 0.0,
                    last_end: time,
                });
            }
            "e" => {
                let open = stack.pop().expect("it has begun");
                assert_eq!(open.name, name);
                let took = time - open.began;
                match stack.last_mut() {
                    Some(outer) => {
                        outer.inner += took;
                        outer.last_end = time;
                    }
                    None => {
                        assert!((open.inner - took).abs() < ROUNDING_US, "{event}");
                        *counts.entry(name).or_default() += 1;
                    }
                }
            }
            other => panic!("{other}"),
        }
    }
    assert!(stacks.values().all(Vec::is_empty), "a span does not end");
    counts
}

#[test]
fn trace_contains_every_request_with_its_states() {
    let lab = Lab::new("http = \"127.0.0.1:0\"");
    let (_admin, mut io) = lab.attach();
    for lba in 0..10 {
        write(&mut io, lba, 2);
    }
    for lba in 0..5 {
        let (cqe, _) = io.command(Sqe::read(1, lba, 0), &[], 512).expect("one");
        assert!(cqe.status().is_success());
    }
    let beyond = Sqe::read(1, 1 << 40, 0);
    let (cqe, _) = io.command(beyond, &[], 512).expect("a response");
    assert!(!cqe.status().is_success());
    let file = lab.directory.path().join("trace.json");
    let socket = lab.directory.path().join("control.sock");
    let arguments = ["windlass", "trace", "--seconds", "3600", "--out"].map(Into::into);
    let given = [
        file.clone().into_os_string(),
        "--socket".into(),
        socket.into_os_string(),
    ];
    let arguments = Arguments::try_parse_from(arguments.into_iter().chain(given));
    run(arguments.expect("right").command).expect("it runs");
    let text = std::fs::read(file).expect("it was written");
    let trace: Value = serde_json::from_slice(&text).expect("JSON");
    let counts = check(&trace);
    assert_eq!((counts["read"], counts["write"]), (5, 10), "{counts:?}");
    let events = trace["traceEvents"].as_array().expect("events");
    let named = |name: &'static str| events.iter().filter(move |event| event["name"] == name);
    let beginnings = |name| named(name).filter(|event| event["ph"] == "b");
    assert_eq!(beginnings("device").count(), 10);
    assert!(beginnings("device").all(|event| event["args"]["device"] == "ram"));
    assert!(beginnings("read").all(|event| event["args"]["export"] == NQN));
    assert_eq!(named("refused").count(), 1);
    // Connect is not an admin command; the Property Set that enables the controller is.
    assert!(named("admin command 7fh").count() > 0);
    let threads = named("thread_name").filter_map(|event| event["args"]["name"].as_str());
    assert!(
        threads
            .into_iter()
            .any(|name| name == format!("{HOST} queue 1"))
    );
}
