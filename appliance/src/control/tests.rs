//! Tests of a whole appliance with clients that are invalid, slow, numerous, and finally correct.

mod ana;
mod client;
mod clients;
mod dashboards;
mod https;
mod openmetrics;
mod reservations;
mod schema;
mod traces;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use appliance_config::Config;
use nvme_host_testing::Names;
use nvme_host_testing::tcp::RawClient;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::tcp::PduType;
use nvme_spec::{Sqe, Status};
use tempfile::TempDir;

use super::limits::{BODY_BYTES_MAX, HEADER_BYTES_MAX, HTTP_CONNECTIONS_MAX};
use super::routes::PATHS;
use crate::appliance::Appliance;
use crate::observe::model::{self, Event, History, Refusal, Severity};
use client::{HttpResponse, ask, get, read_response};

const NQN: &str = "nqn.2026-11.org.windlass:test";
const HOST: &str = "nqn.2026-11.org.example:a \"host\" \\ of λ";
/// Generous limit for every wait of a test, for busy machines.
const LIMIT: Duration = Duration::from_secs(60);
const TOKEN: &str = "0123456789abcdef-token";

/// An appliance with one RAM device, and its control plane with a socket of its own and `http`.
struct Lab {
    appliance: Appliance,
    directory: TempDir,
}

impl Lab {
    fn new(control: &str) -> Self {
        Self::with_files(control, |_| ())
    }

    /// With files that `write` puts into its directory, `DIRECTORY` in `control`.
    fn with_files(control: &str, write: impl FnOnce(&Path)) -> Self {
        let directory = TempDir::new().expect("a directory");
        std::fs::write(directory.path().join("token"), TOKEN).expect("writable");
        write(directory.path());
        let socket = directory.path().join("control.sock");
        let control = control.replace("DIRECTORY", &directory.path().display().to_string());
        let text = format!(
            r#"
[appliance]
memory = "16MiB"
pages = "ordinary"
[control]
socket = "{}"
{control}
[[device]]
name = "ram"
type = "memory"
size = "8MiB"
[[listener]]
name = "loopback"
transport = "tcp"
address = "127.0.0.1:0"
[[export]]
nqn = "{NQN}"
devices = ["ram"]
listeners = ["loopback"]
allow_any_host = true
"#,
            socket.display()
        );
        let config = Config::parse("test", &text).expect("a right configuration");
        let mut appliance = Appliance::start(config, &Default::default()).expect("it starts");
        appliance.open_control(None);
        Self {
            appliance,
            directory,
        }
    }

    fn http(&self) -> SocketAddr {
        let control = self.appliance.control().expect("open");
        control.http().expect("a free port").address
    }

    fn socket(&self) -> UnixStream {
        let path = self.directory.path().join("control.sock");
        let stream = UnixStream::connect(path).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a socket");
        stream
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.http()).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a socket");
        stream
    }

    fn get(&self, path: &str) -> HttpResponse {
        get(self.connect(), path)
    }

    /// The status as operators get it.
    fn status(&self) -> model::Status {
        let response = get(self.socket(), "/api/v1/status");
        assert_eq!(response.status, 200, "{response:?}");
        serde_json::from_slice(&response.body).expect("a status")
    }

    /// A host's admin and I/O queue.
    fn attach(&self) -> (RawClient, RawClient) {
        self.attach_as(HOST)
    }

    /// The admin and I/O queue of the host with that name.
    fn attach_as(&self, host: &str) -> (RawClient, RawClient) {
        let names = Names {
            host: host.to_owned(),
            host_id: [9; 16],
            subsystem: NQN.to_owned(),
        };
        let connect =
            || RawClient::connect(self.appliance.addresses()[0], LIMIT).expect("it listens");
        let (mut admin, mut io) = (connect(), connect());
        let cntlid = admin.open_admin(&names).expect("any host may attach");
        io.open_io(&names, cntlid, 1).expect("queue 1 is free");
        (admin, io)
    }
}

/// Writes with an R2T, so that the data goes through a device queue: in-capsule data is written to
/// a RAM device inline.
fn write(io: &mut RawClient, lba: u64, blocks: u16) {
    let data = vec![7; usize::from(blocks) * 512];
    let sgl = SglDescriptor::transport(data.len() as u32);
    let sqe = Sqe::write(1, lba, blocks - 1, false)
        .with_cid(io.next_cid())
        .with_sgl(sgl);
    io.send_capsule(sqe, &[]).expect("it is connected");
    let asked = io.expect(PduType::R2T).expect("data is asked for");
    let request = asked.r2t().expect("it is one");
    io.send_data(&request, 0, &data, true)
        .expect("it is connected");
    let response = io.expect(PduType::CAPSULE_RESP).expect("a response");
    let cqe = response.completion().expect("it is one");
    assert!(cqe.status().is_success(), "{}", cqe.status());
}

#[track_caller]
fn expect_refusal(response: &HttpResponse, status: u16) {
    assert_eq!(response.status, status, "{response:?}");
    let refusal: Refusal = serde_json::from_slice(&response.body).expect("a refusal");
    assert!(!refusal.error.is_empty());
}

#[test]
fn unknown_paths_and_malformed_requests_are_refused() {
    let lab = Lab::new("http = \"127.0.0.1:0\"");
    for path in [
        "/dashboard",
        "/dashboard/",
        "/dashboard/none.js",
        "/dashboard/../../Cargo.toml",
        "/api",
        "/api/v1/",
        "/api/v2/status",
        "/../etc/passwd",
        "/metrics/x",
    ] {
        expect_refusal(&lab.get(path), 404);
    }
    expect_refusal(&lab.get("/api/v1/heatmap?export=unknown"), 404);
    for path in [
        "/api/v1/history?seconds=0",
        "/api/v1/history?seconds=3601",
        "/api/v1/history?seconds=-1",
        "/api/v1/history?seconds=99999999999999999999999",
        "/api/v1/history?kind=unknown",
        "/api/v1/history?second=1",
        "/api/v1/heatmap?seconds=0",
        "/api/v1/heatmap?seconds=3601",
        "/api/v1/heatmap?kind=export",
        "/api/v1/events?after=x",
        "/api/v1/trace?seconds=0",
        "/api/v1/trace?second=1",
    ] {
        expect_refusal(&lab.get(path), 400);
    }
    for (_, path) in PATHS.iter().filter(|(method, _)| *method == "get") {
        let request = format!("DELETE {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        expect_refusal(&ask(lab.socket(), request.as_bytes()), 405);
    }
    let mut garbage = lab.connect();
    garbage
        .write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n")
        .expect("open");
    let mut rest = Vec::new();
    let _ = garbage.read_to_end(&mut rest);
    assert!(
        rest.is_empty() || rest.starts_with(b"HTTP/1.1 400"),
        "{rest:?}"
    );
}

#[test]
fn only_health_is_public_without_the_token() {
    let lab = Lab::new("http = \"127.0.0.1:0\"\ntoken_file = \"DIRECTORY/token\"");
    for authorization in [
        "",
        "Authorization: Bearer\r\n",
        "Authorization: Bearer 0123456789abcdef-toker\r\n",
        "Authorization: Basic 0123456789abcdef-token\r\n",
        "X-Token: 0123456789abcdef-token\r\n",
    ] {
        for (method, path) in PATHS.iter().filter(|(_, path)| *path != "/healthz") {
            let method = method.to_uppercase();
            let request =
                format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{authorization}\r\n");
            let response = ask(lab.connect(), request.as_bytes());
            expect_refusal(&response, 401);
            assert!(
                response
                    .head
                    .to_lowercase()
                    .contains("www-authenticate: bearer")
            );
        }
    }
    assert_eq!(lab.get("/healthz").status, 200);
    // Permission to use the socket is sufficient.
    assert_eq!(get(lab.socket(), "/api/v1/status").status, 200);
    let right = format!(
        "GET /metrics HTTP/1.1\r\nHost: any.example\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    );
    assert_eq!(ask(lab.connect(), right.as_bytes()).status, 200);
}

#[test]
fn dashboard_needs_no_token_and_sends_its_policy() {
    let lab = Lab::new("http = \"127.0.0.1:0\"\ntoken_file = \"DIRECTORY/token\"");
    for (path, media_type) in [
        ("/", "text/html"),
        ("/dashboard/main.js", "text/javascript"),
        ("/dashboard/vendor/uPlot.esm.js", "text/javascript"),
        ("/dashboard/style.css", "text/css"),
    ] {
        let response = lab.get(path);
        assert_eq!(response.status, 200, "{path}");
        let head = response.head.to_lowercase();
        let expected = format!("content-type: {media_type}; charset=utf-8");
        assert!(head.contains(&expected), "{path}: {head}");
        assert!(head.contains("content-security-policy: default-src 'none'; script-src 'self';"));
        assert!(head.contains("x-content-type-options: nosniff"));
    }
    expect_refusal(&lab.get("/dashboard/none.js"), 404);
    expect_refusal(&lab.get("/dashboard"), 401);
}

#[test]
fn unreadable_token_file_disables_http() {
    for file in ["DIRECTORY/none", "/dev/null"] {
        let lab = Lab::new(&format!("http = \"127.0.0.1:0\"\ntoken_file = \"{file}\""));
        assert!(lab.appliance.control().expect("open").http().is_none());
        assert_eq!(get(lab.socket(), "/healthz").status, 200);
    }
}

#[test]
fn cross_site_requests_and_changes_without_token_are_refused() {
    let lab = Lab::new("http = \"127.0.0.1:0\"");
    for host in ["Host: evil.example\r\n", "Host: evil.example:9808\r\n", ""] {
        let request = format!("GET /api/v1/status HTTP/1.1\r\n{host}\r\n");
        expect_refusal(&ask(lab.connect(), request.as_bytes()), 403);
    }
    let post = |more: &str, body: &str| {
        let length = body.len();
        format!(
            "POST /api/v1/apply HTTP/1.1\r\nHost: localhost\r\n{more}\
             Content-Length: {length}\r\n\r\n{body}"
        )
    };
    let json = "Content-Type: application/json\r\n";
    let right = post(json, "{\"dry_run\":true}");
    expect_refusal(&ask(lab.connect(), right.as_bytes()), 403);
    // Over the socket the request is processed further. There is no receiver of configurations
    // here.
    let response = ask(lab.socket(), right.as_bytes());
    expect_refusal(&response, 503);
    for (more, body, status) in [
        ("", "{}", 415),
        ("Content-Type: text/plain\r\n", "{}", 415),
        (json, "{", 400),
        (json, "{\"dry_run\":1}", 422),
        (json, "{\"dry-run\":true}", 422),
    ] {
        expect_refusal(&ask(lab.socket(), post(more, body).as_bytes()), status);
    }
}

#[test]
fn only_operators_reopen_devices_and_only_damaged_ones() {
    let lab = Lab::new("http = \"127.0.0.1:0\"");
    let post = |body: &str| {
        let length = body.len();
        format!(
            "POST /api/v1/device/reopen HTTP/1.1\r\nHost: localhost\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    };
    let ram = post("{\"device\":\"ram\"}");
    expect_refusal(&ask(lab.connect(), ram.as_bytes()), 403);
    expect_refusal(&ask(lab.socket(), ram.as_bytes()), 409);
    let none = post("{\"device\":\"none\"}");
    expect_refusal(&ask(lab.socket(), none.as_bytes()), 404);
    expect_refusal(&ask(lab.socket(), post("{}").as_bytes()), 422);
}

#[test]
fn requests_that_are_too_large_are_refused() {
    let lab = Lab::new("http = \"127.0.0.1:0\"");
    let filler = "x".repeat(HEADER_BYTES_MAX);
    let request = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {filler}\r\n\r\n");
    assert_eq!(ask(lab.connect(), request.as_bytes()).status, 431);
    let headers: String = (0..100)
        .map(|number| format!("X-{number}: 1\r\n"))
        .collect();
    let request = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
    assert_eq!(ask(lab.connect(), request.as_bytes()).status, 431);
    // Refused because of the announced length, before the body is sent.
    let length = BODY_BYTES_MAX + 1;
    let request = format!(
        "POST /api/v1/apply HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n"
    );
    expect_refusal(&ask(lab.socket(), request.as_bytes()), 413);
}

#[test]
fn slow_requests_time_out() {
    let lab = Lab::new("http = \"127.0.0.1:0\"");
    let mut slow_head = lab.connect();
    slow_head
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: loc")
        .expect("open");
    let mut slow_body = lab.socket();
    let head =
        b"POST /api/v1/apply HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Content-Length: 1000\r\n\r\n{\"text\":";
    slow_body.write_all(head).expect("open");
    let mut rest = Vec::new();
    // Either a plain end or one with a response; a hang would end in the client's own timeout.
    let ended = slow_head.read_to_end(&mut rest);
    assert!(ended.is_ok(), "{ended:?}");
    assert!(
        rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"),
        "{rest:?}"
    );
    expect_refusal(&read_response(&mut slow_body), 408);
}

#[test]
fn hung_and_flooding_clients_do_not_delay_others() {
    let lab = Lab::new("http = \"127.0.0.1:0\"");
    let (_admin, mut io) = lab.attach();
    // The maximum number of connections, each with a request whose response it never reads.
    let mut hung: Vec<TcpStream> = Vec::new();
    for _ in 0..HTTP_CONNECTIONS_MAX {
        let mut stream = lab.connect();
        let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(request).expect("open");
        hung.push(stream);
    }
    // Connections are accepted in order, so each of these exceeds the limit.
    for _ in 0..100 {
        let mut stream = lab.connect();
        let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let response = ask(&mut stream, request);
        expect_refusal(&response, 503);
    }
    let first: History = history(&lab);
    for lba in 0..256 {
        write(&mut io, lba, 1);
    }
    let began = Instant::now();
    loop {
        let now = history(&lab);
        let writes = now.series.get("device/ram/write_iops");
        let seen: f32 = writes.into_iter().flatten().flatten().sum();
        if now.now_unix_ms >= first.now_unix_ms + 1000 && seen > 0.0 {
            // There is one host on one reactor, so both count the same writes. A sample reads them one
            // after the other, while the host may write.
            let reactor = now.series.get("reactor/0/write_iops");
            let counted: f32 = reactor.into_iter().flatten().flatten().sum();
            let apart = (counted - seen).abs();
            assert!(apart <= 4.0, "{counted} and {seen} writes a second");
            break;
        }
        assert!(began.elapsed() < LIMIT, "the history stands still");
        write(&mut io, 0, 1);
    }
    drop(hung);
    let began = Instant::now();
    while lab.get("/healthz").status != 200 {
        assert!(began.elapsed() < LIMIT, "no room comes back");
    }
    let (status, _) = (lab.status(), lab);
    assert!(
        status
            .reactors
            .iter()
            .all(|reactor| reactor.stuck.is_none())
    );
}

fn history(lab: &Lab) -> History {
    let response = get(lab.socket(), "/api/v1/history?seconds=3600");
    serde_json::from_slice(&response.body).expect("a history")
}

#[test]
fn http_port_in_use_is_a_notice() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = taken.local_addr().expect("bound");
    let lab = Lab::new(&format!("http = \"{address}\""));
    assert!(lab.appliance.control().expect("open").http().is_none());
    assert_eq!(get(lab.socket(), "/healthz").body, b"ok");
    lab.attach();
}

#[test]
fn status_counts_host_commands() {
    let lab = Lab::new("http = \"127.0.0.1:0\"");
    let before = lab.status();
    assert_eq!(
        (before.hosts.len(), before.devices[0].totals.writes),
        (0, 0)
    );
    let (_admin, mut io) = lab.attach();
    for lba in 0..10 {
        write(&mut io, lba, 2);
    }
    for lba in 0..5 {
        let (cqe, data) = io
            .command(Sqe::read(1, lba, 0), &[], 512)
            .expect("a response");
        assert!(cqe.status().is_success() && data == [7; 512]);
    }
    for _ in 0..3 {
        let (cqe, _) = io.command(Sqe::flush(1), &[], 0).expect("a response");
        assert!(cqe.status().is_success());
    }
    let beyond = Sqe::read(1, 1 << 40, 0);
    let (cqe, _) = io.command(beyond, &[], 512).expect("a response");
    assert!(!cqe.status().is_success());
    // The status is at most a tenth of a second old.
    std::thread::sleep(Duration::from_millis(150));
    let status = lab.status();
    let totals = status.devices[0].totals;
    assert_eq!((totals.writes, totals.bytes_written), (10, 10 * 1024));
    assert_eq!((totals.reads, totals.bytes_read), (5, 5 * 512));
    assert_eq!(status.exports[0].totals, totals);
    let host = &status.hosts[0];
    assert_eq!((host.nqn.as_str(), host.export.as_str()), (HOST, NQN));
    // Commands refused before they reach a device are counted only by the target.
    assert_eq!((host.totals.errors, host.errors_logged), (0, 1));
    assert_eq!(status.target.errors, 1);
    assert_eq!((host.totals.writes, host.queues.len()), (10, 1));
    assert_eq!(status.listeners[0].connections, Some(2));
    assert_eq!(status.target.connects, 2);
    assert_eq!(status.exports[0].namespaces[0].bytes, 8 << 20);
    // Latencies cover only the last seconds, possibly not all commands.
    let latency = status.exports[0].latency.expect("it runs");
    let reported = |percentiles: model::Percentiles, sent: u64| {
        assert!(percentiles.count <= sent);
        assert_eq!(percentiles.p50_ns.is_some(), percentiles.count > 0);
        assert!(percentiles.p50_ns <= percentiles.p999_ns);
    };
    reported(latency.read, 5);
    reported(latency.write, 10);
    assert_eq!(
        (status.latency, status.reactors[0].latency),
        (latency, latency)
    );
    // Reads borrow the device's memory, so they do not count as time in the device.
    reported(status.devices[0].latency.expect("it is there").read, 0);
    let stages: Vec<_> = status.exports[0].stages.keys().collect();
    assert_eq!(stages, ["buffer", "device", "fetch", "send"]);
    let response = get(lab.socket(), "/metrics");
    assert!(
        response.head.contains("application/openmetrics-text"),
        "{}",
        response.head
    );
    let text = std::str::from_utf8(&response.body).expect("UTF-8");
    let metrics = openmetrics::parse(text);
    let of = |name: &str, labels: &[(&str, &str)]| metrics.value(name, labels);
    let device = [("device", "ram"), ("operation", "write")];
    assert_eq!(of("windlass_device_latency_seconds_count", &device), 10.0);
    for (operation, count) in [("read", 5.0), ("write", 10.0)] {
        let labels = [("export", NQN), ("operation", operation)];
        assert_eq!(of("windlass_export_latency_seconds_count", &labels), count);
        let labels = [("reactor", "0"), ("operation", operation)];
        assert_eq!(of("windlass_reactor_latency_seconds_count", &labels), count);
        let send = [("export", NQN), ("stage", "send"), ("operation", operation)];
        assert_eq!(of("windlass_export_stage_seconds_count", &send), count);
    }
    let stage = [("export", NQN), ("stage", "device"), ("operation", "write")];
    assert_eq!(of("windlass_export_stage_seconds_count", &stage), 10.0);
    let beyond = Status::LBA_OUT_OF_RANGE;
    let labels = [
        ("export", NQN),
        ("sct", "0h"),
        ("sc", "80h"),
        ("status", beyond.text().expect("a name")),
    ];
    assert_eq!(of("windlass_command_statuses_total", &labels), 1.0);
    let reported = &status.statuses[0];
    let code = reported.code.as_ref().expect("told apart");
    assert_eq!((reported.export.as_deref(), reported.count), (Some(NQN), 1));
    assert_eq!((code.sct, code.sc), (0, beyond.sc()));
    assert_eq!(of("windlass_device_requests_total", &device), 10.0);
    assert_eq!(of("windlass_device_bytes_total", &device), 10_240.0);
    let ram = [("device", "ram")];
    // Flushes complete without reaching the device.
    assert_eq!(of("windlass_device_flushes_total", &ram), 0.0);
    let host = [("host", HOST), ("export", NQN)];
    assert_eq!(of("windlass_host_errors_total", &host), 0.0);
    let reactor = [("reactor", "0")];
    assert_eq!(of("windlass_command_errors_total", &reactor), 1.0);
    assert_eq!(of("windlass_host_controllers", &host), 1.0);
    assert_eq!(of("windlass_up", &[]), 1.0);
    assert_eq!(of("windlass_tcp_connections", &[("reactor", "0")]), 2.0);
    let commands = status.transports["tcp"]["commands"] as f64;
    assert!(of("windlass_tcp_commands_total", &[("reactor", "0")]) >= commands);
}

/// Checks that responses without a token, under load and with a host attached, contain nothing that
/// identifies the host: its NQN, its Host Identifier, its Controller ID and its address.
#[test]
fn host_identity_is_hidden_without_a_token() {
    const SECRET: &str = "nqn.2026-11.org.example:secret-host";
    let lab = Lab::new("http = \"127.0.0.1:0\"");
    let (_admin, mut io) = lab.attach_as(SECRET);
    let began = Instant::now();
    let mut is_told_of = |by_socket: &[u8]| {
        write(&mut io, 0, 8);
        assert!(began.elapsed() < LIMIT, "operators are not told");
        String::from_utf8_lossy(by_socket).contains(SECRET)
    };
    // Both the event and the history appear with the next periodic sample.
    for path in ["/api/v1/events", "/api/v1/history?seconds=3600"] {
        while !is_told_of(&get(lab.socket(), path).body) {}
    }
    let status = lab.status();
    let host = &status.hosts[0];
    assert_eq!(host.nqn, SECRET);
    let id = host.host_id.clone().expect("operators are told");
    assert_eq!(id, "09".repeat(16));
    assert!(host.controller_id.is_some());
    let gets = PATHS.iter().filter(|(method, _)| *method == "get");
    let paths = gets.map(|(_, path)| *path).chain([
        "/",
        "/dashboard/main.js",
        "/api/v1/history?seconds=3600&kind=host",
        "/api/v1/trace?seconds=3600",
        "/api/v1/none",
    ]);
    for path in paths {
        let response = lab.get(path);
        let body = String::from_utf8_lossy(&response.body);
        for secret in ["secret-host", &id, "(controller "] {
            assert!(!body.contains(secret), "{path} tells {secret}: {body}");
        }
    }
    let response = lab.get("/api/v1/status");
    let public: model::Status = serde_json::from_slice(&response.body).expect("a status");
    let veiled = &public.hosts[0];
    assert_eq!(
        (&veiled.host_id, veiled.controller_id, &veiled.address),
        (&None, None, &None)
    );
    // The name is the same everywhere, so that a dashboard can distinguish hosts.
    assert!(veiled.nqn.starts_with("host-"), "{}", veiled.nqn);
    for path in [
        "/metrics",
        "/api/v1/events",
        "/api/v1/history?seconds=3600",
        "/api/v1/trace",
    ] {
        let body = lab.get(path).body;
        assert!(
            String::from_utf8_lossy(&body).contains(&veiled.nqn),
            "{path}"
        );
    }
    assert_eq!(veiled.totals.writes > 0, host.totals.writes > 0);
}

#[test]
fn responses_match_the_documentation() {
    let lab = Lab::new("http = \"127.0.0.1:0\"");
    let (_admin, mut io) = lab.attach();
    write(&mut io, 0, 1);
    let began = Instant::now();
    loop {
        let response = get(lab.socket(), "/api/v1/events");
        let events: Vec<Event> = serde_json::from_slice(&response.body).expect("events");
        let attached = events.iter().find(|event| event.what == "host");
        if let Some(event) = attached {
            assert_eq!(
                (event.severity, event.subject.as_str()),
                (Severity::Info, HOST)
            );
            assert!(event.text.contains(NQN), "{event:?}");
            let later = lab.get(&format!("/api/v1/events?after={}", event.id));
            assert!(!String::from_utf8_lossy(&later.body).contains("attached"));
            break;
        }
        assert!(
            began.elapsed() < LIMIT,
            "no event tells that a host attached"
        );
    }
    for path in [
        "/api/v1/status",
        "/api/v1/history?seconds=5",
        "/api/v1/heatmap?seconds=5",
        "/api/v1/events",
        "/api/v1/trace?seconds=3600",
    ] {
        // The responses for operators and for all other clients.
        for response in [get(lab.socket(), path), lab.get(path)] {
            let value: serde_json::Value = serde_json::from_slice(&response.body).expect("JSON");
            schema::check(path, &value);
        }
    }
    assert_eq!(lab.get("/api/v1/openapi.json").status, 200);
}

#[test]
fn stopping_closes_sockets_and_connections() {
    let lab = Lab::new("http = \"127.0.0.1:0\"");
    let address = lab.http();
    let mut open = lab.connect();
    let Lab {
        appliance,
        directory,
    } = lab;
    assert!(appliance.stop_quietly());
    let mut rest = Vec::new();
    let _ = open.read_to_end(&mut rest);
    assert!(rest.is_empty());
    assert!(TcpStream::connect(address).is_err());
    assert!(!directory.path().join("control.sock").exists());
}
