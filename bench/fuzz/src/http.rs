//! A connection to the control plane with arbitrary content: responses are valid HTTP, disclose
//! nothing without authorization, and later connections are still served.

use std::sync::OnceLock;

use appliance::probe::{self, ControlProbe, ProbedEntrance};

use crate::input::Input;

/// Must not be disclosed without the token.
const SECRET: &str = "nqn.2026-11.org.windlass:secret";
/// Not guessable by chance.
const TOKEN: &str = "tell-me-0123456789";

const CONFIGURATION: &str = r#"
[appliance]
memory = "16MiB"
pages = "ordinary"
cores = "0"
idle = "sleep"
[control]
socket = "off"
http = "off"
[[device]]
name = "ram"
type = "memory"
size = "8MiB"
[[listener]]
name = "loopback"
transport = "tcp"
address = "127.0.0.1:0"
[[export]]
nqn = "nqn.2026-11.org.windlass:secret"
devices = ["ram"]
listeners = ["loopback"]
allow_any_host = true
"#;

/// Start of a status line, without the minor version and the space after it.
const STATUS_LINE: &str = "HTTP/1.";

/// Runs one input: the first byte selects the entrance, the second how the rest is divided.
pub(crate) fn run(input: &[u8]) {
    static PROBE: OnceLock<ControlProbe> = OnceLock::new();
    let probe = PROBE.get_or_init(|| probe::start(CONFIGURATION, TOKEN));
    let mut choices = Input::new(input);
    let door = choices.pick(&[
        ProbedEntrance::HttpWithToken,
        ProbedEntrance::Http,
        ProbedEntrance::Socket,
    ]);
    let piece_bytes = 1 + 8 * usize::from(choices.u8());
    let request = choices.take(choices.left());
    let reply = probe.run_connection(door, request, piece_bytes);
    is_http(&reply);
    let has = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|it| it == text.as_bytes());
    if matches!(door, ProbedEntrance::HttpWithToken) && !has(request, TOKEN) {
        // A request that contains the secret may get it back in the reason of its rejection.
        assert!(
            has(request, SECRET) || !has(&reply, SECRET),
            "disclosed without the token"
        );
    }
    let next = probe.run_connection(
        ProbedEntrance::Socket,
        b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
        512,
    );
    assert!(
        next.starts_with(b"HTTP/1.1 200 "),
        "the next request gets no response"
    );
}

/// Checks for no response, or a status that the documentation of the control plane names.
fn is_http(reply: &[u8]) {
    if reply.is_empty() {
        return;
    }
    let head = reply.get(..STATUS_LINE.len() + 6);
    let head = std::str::from_utf8(head.expect("a status line")).expect("ASCII");
    let version_and_status = head.strip_prefix(STATUS_LINE).expect("the protocol's name");
    let status: u16 = version_and_status[2..]
        .trim_end()
        .parse()
        .expect("a number");
    let known = [
        100, 200, 304, 400, 401, 403, 404, 405, 408, 409, 413, 414, 415, 422, 431, 503,
    ];
    assert!(known.contains(&status), "answered {status}");
}
