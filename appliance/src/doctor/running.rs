//! The running appliance, if one answers at the configured socket: how long requests wait.

use std::time::Duration;

use appliance_config::{Config, ControlSocket};

use super::Finding;
use crate::client::{Client, SocketArguments};
use crate::observe::model::{BUFFER_WAIT_MAX_NS, MemoryStatus, Status};
use crate::quantity;

/// How long the appliance may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(3);

/// What the appliance tells of itself. Nothing where none runs or this user may not ask: that is not
/// what `doctor` examines.
pub(super) fn look(config: &Config) -> Option<Finding> {
    let socket = match &config.control.socket {
        ControlSocket::At(path) => Some(path.clone()),
        ControlSocket::Auto => None,
        ControlSocket::Off => return None,
    };
    let arguments = SocketArguments { socket };
    let client = Client::find(&arguments).ok()?;
    let client = client.with_answer_time_max(ANSWER_TIME_MAX);
    let status: Status = client.get("/api/v1/status").ok()?;
    Some(of(&status.memory))
}

fn of(memory: &MemoryStatus) -> Finding {
    let longest = quantity::latency(memory.longest_wait_ns);
    if memory.oldest_wait_ns > BUFFER_WAIT_MAX_NS {
        let oldest = quantity::latency(memory.oldest_wait_ns);
        let text = format!("a request has waited {oldest} for a buffer");
        let mend = "windlass status: the log names hosts that take or send no data";
        Finding::broken("running", text, mend)
    } else if memory.longest_wait_ns > BUFFER_WAIT_MAX_NS {
        let text = format!("since the start a request has waited {longest} for a buffer");
        let mend = "raise `memory` in [appliance]";
        Finding::slow("running", text, mend)
    } else {
        let text = format!("no request has waited longer than {longest} for a buffer");
        Finding::fine("running", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn a_request_that_waits_longer_than_a_second_is_told() {
        let of = |oldest_wait_ns, longest_wait_ns| {
            of(&MemoryStatus {
                bytes: 1 << 28,
                page_bytes: 4096,
                notices: Vec::new(),
                oldest_wait_ns,
                longest_wait_ns,
                classes: Vec::new(),
            })
        };
        let second = 1_000_000_000;
        assert_eq!(of(0, second).verdict, Verdict::Fine);
        assert_eq!(of(0, 2 * second).verdict, Verdict::Slow);
        let waits = of(12 * second, 12 * second);
        assert_eq!(waits.verdict, Verdict::Broken);
        assert!(waits.text.contains("12"), "{}", waits.text);
    }
}
