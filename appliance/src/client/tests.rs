//! Error messages of commands for missing and wrong responses.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::*;
use crate::observe::model::Status;

/// The status of an appliance with one export, one device and one reactor.
pub(crate) fn status() -> Status {
    let text = r#"{
        "now_unix_ms": 1800000000000,
        "appliance": {"name": "rack7-a", "version": "0.1.0", "pid": 4711, "uptime_s": 11520,
            "start_took_ms": 34, "config_path": "/etc/windlass/windlass.toml", "state": "running"},
        "reactors": [{"index": 0, "core": 2, "running": true, "busy_permille": 120,
            "asleep": false, "turns": 5000, "busy_ns": 1000000000, "idle_ns": 9000000000,
            "sleeps": 20, "wakeups": 20, "stalls": 0, "queues": 3, "depth": 16,
            "longest_poll": {"name": "tcp", "ns": 120000}, "latency": LATENCY, "stuck": null}],
        "memory": {"bytes": 268435456, "page_bytes": 2097152, "notices": [],
            "oldest_wait_ns": 0, "longest_wait_ns": 0, "classes": [
            {"slice_bytes": 4096, "total": 16384, "free": 16300, "taken": 84, "waits": 0,
                "waiting": 0}]},
        "devices": [{"name": "fast0", "type": "nvme", "state": "ready",
            "reservations_damaged": false, "block_size": 512,
            "block_count": 2097152, "media_errors": 0, "flushes": 0, "waits": 0, "temperature_celsius": 41,
            "available_spare_percent": 100, "used_percent": 3, "warnings": [],
            "totals": TOTALS, "latency": null, "drive": {"commands": 7},
            "data_path": "auto", "drive_memory": {"slice_bytes": 262144, "slices": 60, "taken": 1,
                "leases": 9, "exhausted": 0, "lost": 0, "not_shared": null,
                "cards": 1, "not_registered": []},
            "copies": {"host": 1, "drive_memory": 8, "drive": 2}, "copies_on_host_path": {"exhausted": 1},
            "transfers": {"reads": 3}, "transfers_on_host_path": {"small": 2}}],
        "exports": [{"nqn": "nqn.2026-11.org.windlass:rack7-a.fast", "namespaces": [
            {"nsid": 1, "device": "fast0", "bytes": 1073741824, "uuid": ""}],
            "listeners": ["san"], "controllers": 1, "totals": TOTALS, "latency": LATENCY,
            "stages": {}}],
        "listeners": [{"name": "san", "transport": "tcp", "address": "192.0.2.10:4420",
            "connections": 3}],
        "ana": [{"export": "nqn.2026-11.org.windlass:rack7-a.fast", "group": 1,
            "listener": "san", "state": "optimized", "configured": "optimized",
            "namespaces": [1]}],
        "hosts": [{"nqn": "nqn.2014-08.org.nvmexpress:uuid:1", "host_id": "09",
            "export": "nqn.2026-11.org.windlass:rack7-a.fast", "controller_id": 1, "kind": "io",
            "state": "ready", "transport": "tcp", "address": null,
            "authentication": {"key": "db1", "controller_key": null, "bidirectional": false,
                "hash": "sha256", "group": "ffdhe2048", "since_unix_ms": 1}, "queues": [
            {"qid": 1, "reactor": 0, "authenticated": true, "protected": false, "totals": TOTALS}], "totals": TOTALS, "errors_logged": 0}],
        "keys": [{"name": "db1", "source": "file", "revoked": false, "uses": 1, "last_used_unix_ms": 1}],
        "rate_limits": [{"device": null, "host": "nqn.2014-08.org.nvmexpress:uuid:1", "export": null,
            "operations": "reads", "iops": 20000, "bandwidth": null, "throttled_by_iops": 7,
            "throttled_by_bandwidth": 0, "waited_ns": 9000000}],
        "copies": [{"number": 1, "source": "fast0", "destination": "fast1", "state": "running", "offset": 0,
            "bytes": 1048576, "written_bytes": 524288, "drive_memory_bytes": 0, "drive_bytes": 4096, "drive_failures": 1, "drive_memory_failures": 2,
            "began_unix_ms": 1, "took_ms": 9, "memory_waits": 0, "source_changes": 0, "intact_bytes": null, "failed_offset": null, "failed_bytes": null,
            "error": null}],
        "files": {"service": {"connections": 2, "connections_accepted": 3, "requests_in_flight": 0,
            "requests": 100, "replays": 0, "clients": 1, "sessions": 1, "opens": 4, "locks": 5,
            "clients_expired": 0, "clients_evicted": 0, "read_bytes_borrowed": 0, "read_bytes_copied": 0,
            "write_bytes_inline": 0, "write_bytes_copied": 0, "write_bytes_fetched": 0, "rdma_connections": 0,
            "rdma_devices_missing": 0, "rdma_listeners_down": 0,
            "rdma_connections_failed": 0, "rdma_calls_refused": 0, "rdma_bytes_written": 0, "rdma_bytes_read": 0,
            "in_grace": false},
            "volumes": [{"name": "scratch", "device": "ram0", "served": true, "durable": true,
                "read_only": false, "device_gone": false,
                "data_bytes": 1073741824, "free_bytes": 536870912,
                "inodes": 77, "metadata_bytes": 1048576, "metadata_bytes_max": 67108864,
                "log_bytes": 4096, "log_bytes_max": 16384}],
            "shares": [{"name": "pool", "volume": "scratch", "read_only": false,
                "directory": "team", "bytes_used": 1019215872, "bytes_used_max": 1073741824, "files": 12,
                "files_max": 0, "reads": 11520, "bytes_read": 47185920, "writes": 0, "bytes_written": 0}],
            "listeners": [{"name": "nfs", "transport": "tcp", "address": "192.0.2.10:2049"}],
            "operations": [{"name": "LOOKUP", "executed": 11520, "failed": 3}]},
        "paces": [{"export": "nqn.2026-11.org.windlass:rack7-a.fast", "reason": "latency",
            "disk": null, "missed_by": "nqn.2026-11.org.windlass:rack7-a.db", "limit": 104857600,
            "throttled": 5, "waited_ns": 1000000}],
        "target": {"commands": 9, "authentications": 2, "authentications_failed": 0, "admin_commands": 3, "errors": 0, "errors_not_logged": 0,
            "connects": 2, "connects_refused": 0, "keep_alive_expired": 0,
            "reconnects": 0, "controller_resets": 0, "events": 0,
            "deferred": 0, "orphaned": 0, "stale_completions": 0, "stale_queues": 0,
            "discovery_generation": 1},
        "latency": LATENCY,
        "statuses": [{"export": "nqn.2026-11.org.windlass:rack7-a.fast", "count": 4,
            "code": {"sct": 2, "sc": 129, "text": "Unrecovered Read Error"}}],
        "transports": {"tcp": {"connections": 3}}
    }"#;
    let totals = r#"{"reads": 1152000, "bytes_read": 4718592000, "writes": 11520,
        "bytes_written": 47185920, "others": 3, "errors": 0}"#;
    let latency = r#"{"window_ms": 4000, "read": {"count": 9, "p50_ns": 80000,
        "p99_ns": 1234567, "p999_ns": 2000000}, "write": {"count": 0, "p50_ns": null,
        "p99_ns": null, "p999_ns": null}}"#;
    let text = text.replace("TOTALS", totals).replace("LATENCY", latency);
    serde_json::from_str(&text).expect("a status")
}

/// Responds to one request at a path with these bytes, and returns the request.
fn responding(path: &Path, response: impl Into<Vec<u8>>) -> JoinHandle<String> {
    let response = response.into();
    let listener = UnixListener::bind(path).expect("free");
    std::thread::spawn(move || {
        // `find` only connects.
        drop(listener.accept().expect("a look"));
        let (mut stream, _) = listener.accept().expect("a request");
        let mut asked = Vec::new();
        let mut part = [0; 1024];
        while !asked.windows(4).any(|four| four == b"\r\n\r\n") {
            let count = stream.read(&mut part).expect("a request");
            assert!(count > 0);
            asked.extend_from_slice(&part[..count]);
        }
        stream.write_all(&response).expect("it reads");
        String::from_utf8_lossy(&asked).into_owned()
    })
}

fn http(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn at(path: &Path) -> SocketArguments {
    SocketArguments {
        socket: Some(path.to_owned()),
    }
}

struct Place {
    _directory: TempDir,
    path: PathBuf,
}

fn place() -> Place {
    let directory = TempDir::new().expect("a directory");
    Place {
        path: directory.path().join("control.sock"),
        _directory: directory,
    }
}

#[track_caller]
fn failure_with(response: impl Into<Vec<u8>>) -> String {
    let place = place();
    let server = responding(&place.path, response);
    let client = Client::find(&at(&place.path)).expect("it listens");
    let error = client.get::<Value>("/api/v1/status").expect_err("wrong");
    server.join().expect("it answers");
    error.to_string()
}

#[test]
fn missing_appliance_error_says_how_to_start_it() {
    let place = place();
    let error = Client::find(&at(&place.path)).expect_err("nobody");
    assert!(
        matches!(error, ClientError::NoAppliance { .. }),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(text.contains(&place.path.display().to_string()), "{text}");
    assert!(text.contains("systemctl start windlass"), "{text}");
}

#[test]
fn stale_socket_is_distinguished_from_missing_one() {
    let place = place();
    drop(UnixListener::bind(&place.path).expect("free"));
    let error = Client::find(&at(&place.path)).expect_err("nobody");
    assert!(
        matches!(error, ClientError::StaleSocket { .. }),
        "{error:?}"
    );
    std::fs::remove_file(&place.path).expect("there");
    std::fs::write(&place.path, "").expect("writable");
    let error = Client::find(&at(&place.path)).expect_err("a file");
    assert!(matches!(error, ClientError::NotASocket { .. }), "{error:?}");
}

#[test]
fn first_reachable_default_socket_is_used() {
    let (first, second, third) = (place(), place(), place());
    drop(UnixListener::bind(&second.path).expect("free"));
    let places = || vec![first.path.clone(), second.path.clone(), third.path.clone()];
    let error = socket::first_reachable(places()).expect_err("nobody");
    // The existing socket is more specific than the missing ones.
    assert!(
        matches!(&error, ClientError::StaleSocket { socket } if *socket == second.path),
        "{error:?}"
    );
    let _listener = UnixListener::bind(&third.path).expect("free");
    assert_eq!(
        socket::first_reachable(places()).expect("it listens"),
        third.path
    );
}

#[test]
fn permission_error_names_the_remedy() {
    let place = place();
    std::fs::write(&place.path, "").expect("writable");
    let denied = || std::io::Error::from(std::io::ErrorKind::PermissionDenied);
    let open_to = |mode| {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&place.path, mode).expect("ours");
        socket::explain(&place.path, denied()).to_string()
    };
    assert!(open_to(0o660).contains("usermod -aG"));
    assert!(open_to(0o600).contains("`group` in [control]"));
}

#[test]
fn foreign_programs_and_versions_are_distinguished() {
    let text = failure_with("SSH-2.0-OpenSSH_9.2\r\n");
    assert!(text.contains("does not belong to Windlass"), "{text}");
    let text = failure_with("");
    assert!(text.contains("does not belong to Windlass"), "{text}");
    let text = failure_with(http("200 OK", "<html>"));
    assert!(text.contains("a different version"), "{text}");
    let text = failure_with(http("404 Not Found", "<html>"));
    assert!(
        text.contains("does not belong to Windlass (it says 404"),
        "{text}"
    );
    let text = failure_with(http("404 Not Found", "{\"error\": \"not here\"}"));
    assert!(text.contains("a different version"), "{text}");
    assert!(text.contains("not here"), "{text}");
    let text = failure_with(http("403 Forbidden", "{\"error\": \"join windlass\"}"));
    assert!(text.contains("may not use"), "{text}");
    assert!(text.contains("join windlass"), "{text}");
    let text = failure_with(http("409 Conflict", "{\"error\": \"another apply runs\"}"));
    assert_eq!(text, "another apply runs");
}

#[test]
fn unresponsive_appliance_times_out() {
    let place = place();
    let _listener = UnixListener::bind(&place.path).expect("free");
    let client = Client::find(&at(&place.path)).expect("it listens");
    let client = client.with_response_timeout(Duration::from_millis(50));
    let error = client.get_bytes("/").expect_err("no appliance");
    assert!(matches!(error, ClientError::TooSlow { .. }), "{error:?}");
}

#[test]
fn client_posts_json_and_reads_the_response() {
    let place = place();
    let server = responding(&place.path, http("200 OK", "[7]"));
    let client = Client::find(&at(&place.path)).expect("it listens");
    let response: Vec<u32> = client.post("/api/v1/apply", &[1, 2]).expect("a response");
    assert_eq!(response, [7]);
    assert_eq!(client.socket(), place.path);
    let asked = server.join().expect("it answers");
    assert!(asked.starts_with("POST /api/v1/apply HTTP/1.1"), "{asked}");
}
