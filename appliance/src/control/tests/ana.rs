//! ANA states that operators set, and invalid requests for them.

use super::*;
use crate::observe::model::{AnaAnswer, AnaChange, AnaStatus, AnaWord};

fn post(body: &str) -> Vec<u8> {
    let length = body.len();
    let request = format!(
        "POST /api/v1/ana/set HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    request.into_bytes()
}

fn set(lab: &Lab, state: &str) -> AnaAnswer {
    let body = serde_json::json!({ "export": NQN, "state": state }).to_string();
    let response = ask(lab.socket(), &post(&body));
    assert_eq!(response.status, 200, "{response:?}");
    serde_json::from_slice(&response.body).expect("an answer")
}

fn listed(response: &HttpResponse) -> Vec<AnaStatus> {
    assert_eq!(response.status, 200, "{response:?}");
    serde_json::from_slice(&response.body).expect("a list")
}

fn only_state(lab: &Lab) -> AnaWord {
    let all = listed(&get(lab.socket(), "/api/v1/ana"));
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].state
}

/// The status of a write without its retry and error log bits.
fn write_status(io: &mut RawClient) -> Status {
    let write = Sqe::write(1, 0, 0, false);
    let (cqe, _) = io.command(write, &[7; 512], 0).expect("a response");
    cqe.status().with_more(false)
}

#[test]
fn set_states_apply_at_once_and_are_listed() {
    let lab = Lab::new("http = \"127.0.0.1:0\"");
    let (_admin, mut io) = lab.attach();
    assert!(write_status(&mut io).is_success());
    let answer = set(&lab, "inaccessible");
    let change = AnaChange {
        group: 1,
        listener: "loopback".to_owned(),
        from: AnaWord::Optimized,
        to: AnaWord::Inaccessible,
    };
    assert_eq!(answer.changes, [change]);
    for part in [
        "1 state(s) changed",
        "have ended",
        "change the configuration",
    ] {
        assert!(answer.text.contains(part), "{}", answer.text);
    }
    assert_eq!(write_status(&mut io), Status::ANA_INACCESSIBLE);
    let response = lab.get("/api/v1/ana");
    schema::check(
        "/api/v1/ana",
        &serde_json::from_slice(&response.body).expect("JSON"),
    );
    let all = listed(&response);
    // The status may be a tenth of a second old.
    let began = Instant::now();
    while lab.status().ana != all {
        assert!(began.elapsed() < LIMIT, "{all:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    let path = &all[0];
    assert_eq!(
        (&*path.export, &*path.listener, path.group),
        (NQN, "loopback", 1)
    );
    assert_eq!(path.configured, AnaWord::Optimized);
    assert_eq!(path.namespaces, [1]);
    let metrics = lab.get("/metrics");
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    let line = format!(
        "windlass_ana_state{{export=\"{NQN}\",listener=\"loopback\",group=\"1\",\
         state=\"inaccessible\"}} 1"
    );
    assert!(metrics.lines().any(|it| it == line), "{metrics}");
    // A repeated command waits again and changes nothing.
    let answer = set(&lab, "inaccessible");
    assert_eq!(answer.changes, []);
    assert!(answer.text.contains("no state changed"), "{}", answer.text);
    for (state, status) in [
        ("persistent-loss", Status::ANA_PERSISTENT_LOSS),
        ("change", Status::ANA_TRANSITION),
        ("non-optimized", Status::SUCCESS),
        ("optimized", Status::SUCCESS),
    ] {
        assert_eq!(set(&lab, state).changes.len(), 1, "{state}");
        assert_eq!(write_status(&mut io), status, "{state}");
        assert_eq!(only_state(&lab).word(), state);
    }
    let events = get(lab.socket(), "/api/v1/events");
    let events = String::from_utf8_lossy(&events.body).into_owned();
    let event = "all ANA groups at all its listeners set to inaccessible by an operator";
    assert_eq!(events.matches(event).count(), 1, "{events}");
}

/// Data of a write that began before has no effect when it arrives after the command returned.
#[test]
fn data_that_arrives_late_is_not_written() {
    let lab = Lab::new("http = \"off\"");
    let (_admin, mut io) = lab.attach();
    let sqe = Sqe::write(1, 0, 0, false)
        .with_cid(io.next_cid())
        .with_sgl(SglDescriptor::transport(512));
    io.send_capsule(sqe, &[]).expect("it is connected");
    let asked = io.expect(PduType::R2T).expect("data is asked for");
    let request = asked.r2t().expect("it is one");
    set(&lab, "inaccessible");
    io.send_data(&request, 0, &[7; 512], true)
        .expect("it is connected");
    let response = io.expect(PduType::CAPSULE_RESP).expect("a response");
    let cqe = response.completion().expect("it is one");
    assert_eq!(cqe.status().with_more(false), Status::ANA_INACCESSIBLE);
    set(&lab, "optimized");
    let (_, data) = io.command(Sqe::read(1, 0, 0), &[], 512).expect("data");
    assert_eq!(data, [0; 512]);
}

#[test]
fn invalid_requests_are_explained_and_change_nothing() {
    let lab = Lab::new("http = \"127.0.0.1:0\"");
    let (_admin, mut io) = lab.attach();
    let other = "nqn.2026-11.org.windlass:other";
    let valid = serde_json::json!({ "export": NQN, "state": "inaccessible" });
    let with = |key: &str, value: serde_json::Value| {
        let mut body = valid.clone();
        body[key] = value;
        body.to_string()
    };
    for (body, status, text) in [
        (with("export", other.into()), 404, "does not exist"),
        (with("export", "".into()), 404, "does not exist"),
        (
            with("listener", "san-b".into()),
            404,
            "is not offered at listener san-b",
        ),
        (with("group", 2.into()), 404, "no namespace in group 2"),
        (with("group", 0.into()), 404, "no namespace in group 0"),
        (with("group", (-1).into()), 422, "group"),
        (with("state", "active".into()), 422, "unknown variant"),
        (with("force", true.into()), 422, "unknown field"),
        ("{}".to_owned(), 422, "missing field"),
        ("{".to_owned(), 400, "JSON"),
    ] {
        let refused = ask(lab.socket(), &post(&body));
        expect_refusal(&refused, status);
        let said = String::from_utf8_lossy(&refused.body).into_owned();
        assert!(said.contains(text), "{body}: {said}");
    }
    // Without a token, HTTP only reads.
    expect_refusal(&ask(lab.connect(), &post(&valid.to_string())), 403);
    assert_eq!(only_state(&lab), AnaWord::Optimized);
    assert!(write_status(&mut io).is_success());
}
