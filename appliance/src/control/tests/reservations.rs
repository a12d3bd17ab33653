//! Reservations and evictions by operators, and invalid requests for them.

use nvme_spec::command::IoOpcode;
use nvme_spec::command::reservation::{
    AcquireAction, AcquireControl, AcquireData, RegisterControl, RegisterData, ReservationAcquire,
    ReservationRegister, ReservationType,
};
use nvme_spec::{Sqe, Status, U64};
use zerocopy::{FromZeros as _, IntoBytes as _};

use super::*;
use crate::observe::model::{ClearAnswer, DeviceReservations, EvictAnswer, ReservationWord};

const OTHER_HOST: &str = "nqn.2026-11.org.example:other";
const HOST_ID: &str = "09090909-0909-0909-0909-090909090909";
const OTHER_ID: &str = "05050505-0505-0505-0505-050505050505";
const KEY: u64 = 0x77;

fn attach(lab: &Lab, host: &str, host_id: u8) -> (RawClient, RawClient) {
    let names = Names {
        host: host.to_owned(),
        host_id: [host_id; 16],
        subsystem: NQN.to_owned(),
    };
    let connect = || RawClient::connect(lab.appliance.addresses()[0], LIMIT).expect("it listens");
    let (mut admin, mut io) = (connect(), connect());
    let cntlid = admin.open_admin(&names).expect("any host may attach");
    io.open_io(&names, cntlid, 1).expect("queue 1 is free");
    (admin, io)
}

fn register(io: &mut RawClient) {
    let mut command = ReservationRegister::new_zeroed();
    command.control = RegisterControl::new();
    let data = RegisterData {
        crkey: U64::new(0),
        nrkey: U64::new(KEY),
    };
    let sqe = Sqe::new(IoOpcode::RESERVATION_REGISTER.0, 1).with_reservation_register(command);
    let (cqe, _) = io.command(sqe, data.as_bytes(), 0).expect("a response");
    assert!(cqe.status().is_success(), "{}", cqe.status());
}

fn acquire(io: &mut RawClient) {
    let mut command = ReservationAcquire::new_zeroed();
    command.control = AcquireControl::new()
        .with_action(AcquireAction::ACQUIRE)
        .with_rtype(ReservationType::WRITE_EXCLUSIVE);
    let data = AcquireData {
        crkey: U64::new(KEY),
        prkey: U64::new(0),
    };
    let sqe = Sqe::new(IoOpcode::RESERVATION_ACQUIRE.0, 1).with_reservation_acquire(command);
    let (cqe, _) = io.command(sqe, data.as_bytes(), 0).expect("a response");
    assert!(cqe.status().is_success(), "{}", cqe.status());
}

fn write_status(io: &mut RawClient) -> Status {
    let write = Sqe::write(1, 0, 0, false);
    let (cqe, _) = io.command(write, &[7; 512], 0).expect("a response");
    cqe.status()
}

pub(super) fn post(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    );
    request.into_bytes()
}

fn clear(lab: &Lab, body: &str) -> HttpResponse {
    ask(lab.socket(), &post("/api/v1/reservations/clear", body))
}

fn evict(lab: &Lab, body: &str) -> HttpResponse {
    ask(lab.socket(), &post("/api/v1/hosts/evict", body))
}

fn list(response: &HttpResponse) -> Vec<DeviceReservations> {
    assert_eq!(response.status, 200, "{response:?}");
    serde_json::from_slice(&response.body).expect("a list")
}

fn reservations(lab: &Lab) -> DeviceReservations {
    let mut all = list(&get(lab.socket(), "/api/v1/reservations"));
    assert_eq!(all.len(), 1);
    all.remove(0)
}

#[test]
fn invalid_requests_are_explained_and_change_nothing() {
    let lab = Lab::new("http = \"127.0.0.1:0\"");
    let (_admin, mut io) = attach(&lab, HOST, 9);
    register(&mut io);
    acquire(&mut io);
    let before = reservations(&lab);
    for (body, status, text) in [
        ("{\"device\":\"none\"}", 404, "device none is not open"),
        ("{\"device\":\"\"}", 404, "is not open"),
        ("{}", 422, "missing field"),
        ("{\"device\":\"ram\",\"force\":true}", 422, "unknown field"),
        ("{", 400, "JSON"),
    ] {
        let refused = clear(&lab, body);
        expect_refusal(&refused, status);
        let said = String::from_utf8_lossy(&refused.body).into_owned();
        assert!(said.contains(text), "{body}: {said}");
    }
    let unknown_nqn = format!("{{\"host\":\"{OTHER_HOST}\"}}");
    let unknown_id = format!("{{\"host\":\"{OTHER_ID}\"}}");
    let elsewhere = format!("{{\"host\":\"{HOST_ID}\",\"export\":\"nqn.2026-11.org.other:x\"}}");
    for (body, status, text) in [
        ("{\"host\":\"server7\"}", 422, "neither a host NQN nor"),
        ("{\"host\":\"\"}", 422, "neither a host NQN nor"),
        (
            "{\"host\":\"00000000-0000-0000-0000-000000000000\"}",
            422,
            "identifies no host",
        ),
        (&unknown_nqn, 404, "neither connected nor registered"),
        (&unknown_id, 404, "neither connected nor registered"),
        (&elsewhere, 404, "does not exist"),
        ("{\"export\":\"x\"}", 422, "missing field"),
    ] {
        let refused = evict(&lab, body);
        expect_refusal(&refused, status);
        let said = String::from_utf8_lossy(&refused.body).into_owned();
        assert!(said.contains(text), "{body}: {said}");
    }
    // Without a token, HTTP only reads.
    for (path, body) in [
        (
            "/api/v1/reservations/clear",
            "{\"device\":\"ram\"}".to_owned(),
        ),
        ("/api/v1/hosts/evict", format!("{{\"host\":\"{HOST_ID}\"}}")),
    ] {
        expect_refusal(&ask(lab.connect(), &post(path, &body)), 403);
    }
    assert_eq!(reservations(&lab), before);
    assert!(write_status(&mut io).is_success());
}

/// Clients that may not see hosts get neither identifiers nor keys.
#[test]
fn reservations_are_listed_with_hosts_or_pseudonyms() {
    let lab = Lab::new("http = \"127.0.0.1:0\"");
    let (_admin, mut io) = attach(&lab, HOST, 9);
    let (_other_admin, mut other) = attach(&lab, OTHER_HOST, 5);
    register(&mut io);
    register(&mut other);
    acquire(&mut io);
    let found = reservations(&lab);
    assert_eq!((&*found.device, found.persists), ("ram", false));
    assert_eq!(found.kind, Some(ReservationWord::WriteExclusive));
    assert!(!found.damaged);
    let [first, second] = &found.registrants[..] else {
        panic!("{found:?}")
    };
    assert_eq!(first.host_id.as_deref(), Some(HOST_ID));
    assert_eq!(first.key.as_deref(), Some("0x0000000000000077"));
    assert!(first.holder && !second.holder);
    assert_eq!(
        (&first.hosts[..], &second.hosts[..]),
        (&[HOST.to_owned()][..], &[OTHER_HOST.to_owned()][..])
    );
    let response = lab.get("/api/v1/reservations");
    schema::check(
        "/api/v1/reservations",
        &serde_json::from_slice(&response.body).expect("JSON"),
    );
    let text = String::from_utf8_lossy(&response.body).into_owned();
    for secret in [HOST_ID, OTHER_ID, OTHER_HOST, "0x", "org.example"] {
        assert!(!text.contains(secret), "{text}");
    }
    let public = list(&response);
    assert!(public[0].registrants[0].hosts[0].starts_with("host-"));
}

/// A token for reading shows hosts, and neither host identifiers nor keys.
#[test]
fn readers_get_no_keys_of_reservations() {
    let lab = Lab::new("http = \"127.0.0.1:0\"\nread_token_file = \"DIRECTORY/token\"");
    let (_admin, mut io) = attach(&lab, HOST, 9);
    register(&mut io);
    let request = format!(
        "GET /api/v1/reservations HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    );
    let registrant = &list(&ask(lab.connect(), request.as_bytes()))[0].registrants[0];
    assert_eq!(registrant.hosts, [HOST]);
    assert_eq!((&registrant.key, &registrant.host_id), (&None, &None));
}

#[test]
fn cleared_reservations_admit_every_host() {
    let lab = Lab::new("http = \"127.0.0.1:0\"");
    let (_admin, mut io) = attach(&lab, HOST, 9);
    let (_other_admin, mut other) = attach(&lab, OTHER_HOST, 5);
    register(&mut io);
    acquire(&mut io);
    assert!(!write_status(&mut other).is_success());
    for registrants in ["1 registrant(s)", "no registrant"] {
        let response = clear(&lab, "{\"device\":\"ram\"}");
        assert_eq!(response.status, 200, "{response:?}");
        let answer: ClearAnswer = serde_json::from_slice(&response.body).expect("an answer");
        assert!(answer.text.contains(registrants), "{answer:?}");
    }
    assert_eq!(reservations(&lab).registrants, []);
    assert!(write_status(&mut other).is_success());
    assert!(write_status(&mut io).is_success());
    let events = get(lab.socket(), "/api/v1/events");
    let events = String::from_utf8_lossy(&events.body).into_owned();
    assert!(events.contains("cleared by an operator"), "{events}");
}

/// Evicted by identifier, then by NQN; a host that is not connected is found by its identifier.
#[test]
fn evicted_hosts_are_disconnected_and_unregistered() {
    let lab = Lab::new("http = \"127.0.0.1:0\"");
    let (_admin, mut io) = attach(&lab, HOST, 9);
    let (_other_admin, mut other) = attach(&lab, OTHER_HOST, 5);
    register(&mut io);
    acquire(&mut io);
    assert!(!write_status(&mut other).is_success());
    let answer = |response: HttpResponse| -> EvictAnswer {
        assert_eq!(response.status, 200, "{response:?}");
        serde_json::from_slice(&response.body).expect("an answer")
    };
    let evicted = answer(evict(&lab, &format!("{{\"host\":\"{HOST_ID}\"}}")));
    assert_eq!(evicted.associations, 1);
    assert_eq!(evicted.unregistered, ["ram"]);
    let sent = io.command(Sqe::read(1, 0, 0), &[], 512);
    assert!(sent.is_err(), "its queue is closed");
    assert!(write_status(&mut other).is_success());
    assert_eq!(reservations(&lab).registrants, []);
    // It may return. It leaves a registration behind.
    let (admin, mut io) = attach(&lab, HOST, 9);
    register(&mut io);
    drop((admin, io));
    let began = Instant::now();
    while lab.status().hosts.len() > 1 {
        assert!(began.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(5));
    }
    let body = serde_json::json!({ "host": HOST, "export": NQN }).to_string();
    expect_refusal(&evict(&lab, &body), 404);
    let body = serde_json::json!({ "host": HOST_ID, "export": NQN }).to_string();
    let evicted = answer(evict(&lab, &body));
    assert_eq!((evicted.associations, evicted.unregistered.len()), (0, 1));
    let body = serde_json::json!({ "host": OTHER_HOST }).to_string();
    let evicted = answer(evict(&lab, &body));
    assert_eq!((evicted.associations, evicted.unregistered.len()), (1, 0));
    let events = lab.get("/api/v1/events");
    let events = String::from_utf8_lossy(&events.body).into_owned();
    assert!(events.contains("evicted by an operator"), "{events}");
    assert!(
        !events.contains("org.example") && !events.contains(HOST_ID),
        "{events}"
    );
}
