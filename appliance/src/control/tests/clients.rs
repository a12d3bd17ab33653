//! The file service as operators see it: its status and metrics, its clients, and their eviction.

use files_client_testing::{Connection, Slot};
use files_spec::Status;
use files_spec::operations::Operation;

use super::reservations::post;
use super::*;
use crate::observe::changes::Changes;
use crate::observe::events::Events;
use crate::observe::model::{EvictClientAnswer, FileClientStatus};

pub(super) const FILES: &str = r#"http = "127.0.0.1:0"
[[device]]
name = "files"
type = "memory"
size = "8MiB"
[[volume]]
name = "scratch"
device = "files"
metadata_memory = "4MiB"
[[share]]
name = "data"
volume = "scratch"
allow_any_client = true
squash = "none"
[[file_listener]]
name = "nfs"
address = "127.0.0.1:0"
"#;

fn attach(lab: &Lab, owner: &[u8]) -> (Connection, Slot) {
    let mut connection = Connection::new(lab.appliance.files_addresses()[0]);
    let slot = Slot::new(&mut connection, owner);
    (connection, slot)
}

fn clients(stream: impl std::io::Read + std::io::Write) -> Vec<FileClientStatus> {
    let response = get(stream, "/api/v1/clients");
    assert_eq!(response.status, 200, "{response:?}");
    let value = serde_json::from_slice(&response.body).expect("JSON");
    schema::check("/api/v1/clients", &value);
    serde_json::from_value(value).expect("a list")
}

fn evict(lab: &Lab, body: &str) -> HttpResponse {
    ask(lab.socket(), &post("/api/v1/clients/evict", body))
}

#[test]
fn invalid_evictions_of_clients_are_explained_and_change_nothing() {
    let lab = Lab::new(FILES);
    let (mut connection, mut slot) = attach(&lab, b"one");
    for (body, status, text) in [
        ("{\"client\":\"none\"}", 404, "no client of files has"),
        ("{\"client\":\"\"}", 404, "no client of files has"),
        ("{\"client\":\"127.0.0.2\"}", 404, "windlass clients"),
        ("{}", 422, "missing field"),
        ("{\"client\":\"one\",\"now\":true}", 422, "unknown field"),
        ("{", 400, "JSON"),
    ] {
        let refused = evict(&lab, body);
        expect_refusal(&refused, status);
        let said = String::from_utf8_lossy(&refused.body).into_owned();
        assert!(said.contains(text), "{body}: {said}");
    }
    let wanted = post("/api/v1/clients/evict", "{\"client\":\"one\"}");
    expect_refusal(&ask(lab.connect(), &wanted), 403);
    slot.call(&mut connection, &[Operation::PutRootFh(())])
        .assert_ok();
}

#[test]
fn without_files_there_are_no_clients() {
    let lab = Lab::new("http = \"127.0.0.1:0\"");
    expect_refusal(&get(lab.socket(), "/api/v1/clients"), 404);
    expect_refusal(&evict(&lab, "{\"client\":\"one\"}"), 404);
    assert_eq!(lab.status().files, None);
}

#[test]
fn clients_are_listed_and_evicted() {
    let lab = Lab::new(FILES);
    let (mut connection, mut slot) = attach(&lab, b"one");
    let (mut other, mut other_slot) = attach(&lab, b"other");
    let listed = clients(lab.socket());
    let names: Vec<_> = listed.iter().filter_map(|it| it.name.as_deref()).collect();
    assert_eq!(names, ["one", "other"]);
    assert_eq!((listed[0].sessions, listed[0].opens), (1, 1));
    assert_eq!(listed[0].address.as_deref(), Some("127.0.0.1"));
    let public = clients(lab.connect());
    assert_eq!(public.len(), 2);
    let hidden = (None, None, None);
    assert!(
        public
            .into_iter()
            .all(|it| (it.id, it.name, it.address) == hidden)
    );
    let id = listed[0].id.as_deref().expect("a number");
    let answer = evict(&lab, &format!("{{\"client\":\"{id}\"}}"));
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer: EvictClientAnswer = serde_json::from_slice(&answer.body).expect("an answer");
    assert_eq!(answer.clients, 1);
    let refused = slot.call(&mut connection, &[Operation::PutRootFh(())]);
    assert_eq!(refused.parts().0, Status::BADSESSION);
    other_slot
        .call(&mut other, &[Operation::PutRootFh(())])
        .assert_ok();
    // All clients of the machine.
    let (_third, _) = attach(&lab, b"third");
    let answer = evict(&lab, "{\"client\":\"127.0.0.1\"}");
    let answer: EvictClientAnswer = serde_json::from_slice(&answer.body).expect("an answer");
    assert_eq!(answer.clients, 2);
    assert_eq!(clients(lab.socket()), []);
}

#[test]
fn status_and_metrics_show_the_file_service() {
    let lab = Lab::new(FILES);
    let (mut connection, mut slot) = attach(&lab, b"one");
    let data = [7; 5000];
    let write = slot.write(0, &data);
    slot.call(&mut connection, &write).assert_ok();
    let read = slot.read(0, 5000);
    slot.call(&mut connection, &read).assert_ok();
    let began = Instant::now();
    // Levels are published once in a second.
    let files = loop {
        let files = lab.status().files.expect("files are served");
        if files.volumes[0].inodes == 2 {
            break files;
        }
        assert!(began.elapsed() < LIMIT, "{files:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let service = &files.service;
    assert_eq!((service.connections, service.clients), (1, 1));
    assert_eq!((service.sessions, service.opens, service.locks), (1, 1, 0));
    let volume = &files.volumes[0];
    assert!(volume.served && !volume.durable && !volume.read_only);
    assert_eq!(volume.data_bytes - volume.free_bytes, 8192);
    let share = &files.shares[0];
    assert_eq!((share.reads, share.bytes_read), (1, 5000));
    assert_eq!((share.writes, share.bytes_written), (1, 5000));
    let address = lab.appliance.files_addresses()[0].to_string();
    assert_eq!(files.listeners[0].address, address);
    let read = files.operations.iter().find(|it| it.name == "READ");
    assert_eq!(read.map(|it| (it.executed, it.failed)), Some((1, 0)));
    let response = lab.get("/metrics");
    let text = String::from_utf8(response.body).expect("UTF-8");
    for sample in [
        "windlass_files_clients{} 1",
        "windlass_volume_inodes{volume=\"scratch\"} 2",
        "windlass_volume_read_only{volume=\"scratch\"} 0",
        "windlass_share_read_bytes_total{share=\"data\"} 5000",
        "windlass_share_used_bytes{share=\"data\"} 8192",
        "windlass_share_files{share=\"data\"} 1",
        "windlass_share_quota_bytes{share=\"data\"} 0",
        "windlass_files_operations_total{operation=\"WRITE\"} 1",
    ] {
        assert!(text.contains(sample), "{sample} is not in\n{text}");
    }
}

#[test]
fn a_volume_that_becomes_read_only_is_an_event_and_a_problem() {
    let lab = Lab::new(FILES);
    let mut seen = lab.appliance.observe();
    let events = Events::default();
    let mut changes = Changes::new(&seen);
    changes.compare(&seen, &events);
    assert_eq!((events.after(0, None).len(), seen.damage()), (0, None));
    let volumes = &mut seen.files.as_mut().expect("files are served").volumes;
    volumes.values_mut().for_each(|it| it.has_failed = true);
    for _ in 0..2 {
        changes.compare(&seen, &events);
    }
    let reported = events.after(0, None);
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert_eq!(
        (&*reported[0].what, &*reported[0].subject),
        ("volume", "scratch")
    );
    assert_eq!(reported[0].severity, Severity::Error);
    let damage = seen.damage().expect("a problem");
    assert!(damage.contains("volume scratch is read-only"), "{damage}");
}
