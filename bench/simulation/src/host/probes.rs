//! Connect commands that must be refused, each on its own connection (Base 2.1 §6.3).

use nvme_spec::fabrics::{CNTLID_DYNAMIC, ConnectAttributes, ConnectData, ConnectField};
use nvme_spec::nqn::{DISCOVERY_NQN, to_field};
use nvme_spec::{Cqe, Sqe, Status, U16};
use reactors::Nanos;
use zerocopy::IntoBytes;

use super::connection::{Connection, Incoming};
use super::{Host, HostEnv, LATENCY_MAX};
use crate::judge::Violation;
use crate::network::HostEnd;
use crate::plan::{SUBSYSTEMS, host_name};

/// Maximum number of connections of one host with an invalid Connect.
const PROBES_MAX: usize = 2;
/// Maximum time from the end of a change to the end of the last association that it ends.
const DISCONNECTED_MAX: Nanos = Nanos::from_secs(5);

/// A connection with an invalid Connect.
pub(super) struct Probe {
    pub(super) connection: Connection,
    /// The violation, for messages.
    what: &'static str,
    sqe: Sqe,
    data: Vec<u8>,
    expected: Expected,
    /// The controller identifier that the Connect names, or the host's own.
    cntlid: u16,
}

/// The required refusal of a Connect.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// Connect Invalid Parameters with this field.
    Field(ConnectField),
    /// This status, with Do Not Retry set.
    Status(Status),
    /// Command Sequence Error with Do Not Retry set, as long as the named queue exists.
    ExistingQueue,
}

/// A valid Connect that is to be made invalid.
struct Draft {
    qid: u16,
    sqsize_z: u16,
    cntlid: u16,
    host_id: [u8; 16],
    subsystem: String,
    host: String,
    attributes: ConnectAttributes,
}

impl Draft {
    fn data(&self) -> ConnectData {
        let field = |name: &str| to_field(name).unwrap_or_default();
        let (subsystem, host) = (field(&self.subsystem), field(&self.host));
        ConnectData::new(self.host_id, self.cntlid, subsystem, host)
    }

    fn sqe(&self) -> Sqe {
        Sqe::connect_queue(self.qid, self.sqsize_z, self.attributes, 0)
    }
}

impl Host {
    /// Opens a connection and sends an invalid Connect.
    pub(super) fn probe(&mut self, env: &mut HostEnv<'_>) -> Option<()> {
        // Over RDMA the private data of the connection repeats these values.
        if self.shape.rdma || self.probes.len() >= PROBES_MAX {
            return None;
        }
        let draft = Draft {
            qid: 1,
            sqsize_z: self.shape.depth - 1,
            cntlid: self.cntlid,
            host_id: self.host_id(),
            subsystem: SUBSYSTEMS[self.shape.subsystem].to_owned(),
            host: host_name(self.shape.identity),
            attributes: ConnectAttributes::new()
                .with_disable_sq_flow_control(!self.shape.flow_control),
        };
        let (what, sqe, data, expected) = self.make_invalid(env, draft)?;
        let connection = self.open(env, 0);
        let number = self.number;
        env.trace.note(
            env.now,
            format_args!("host {number} opens a connection with {what}"),
        );
        self.probes.push(Probe {
            connection,
            what,
            sqe,
            data,
            expected,
            cntlid: self.cntlid,
        });
        Some(())
    }

    /// Makes one field of the Connect invalid.
    fn make_invalid(
        &mut self,
        env: &HostEnv<'_>,
        draft: Draft,
    ) -> Option<(&'static str, Sqe, Vec<u8>, Expected)> {
        use Expected::{Field, Status as Is};
        let admin = |draft: Draft| Draft {
            qid: 0,
            sqsize_z: 31,
            cntlid: CNTLID_DYNAMIC,
            ..draft
        };
        let made = |what, draft: &Draft, expected| {
            let data = draft.data().as_bytes().to_vec();
            Some((what, draft.sqe(), data, expected))
        };
        match self.random.below(13) {
            0 => {
                let others = env.controllers.iter().enumerate();
                let swarm = env.swarm;
                let others = others.filter(|(host, it)| {
                    // Another path of the same host has the same identity.
                    swarm.hosts[*host].identity != self.shape.identity && **it != 0
                });
                let others: Vec<(usize, u16)> = others.map(|(host, it)| (host, *it)).collect();
                let chosen = (!others.is_empty()).then(|| self.random.pick(&others));
                let (host, cntlid) = chosen?;
                let same = env.swarm.hosts[host].subsystem == self.shape.subsystem;
                let field = if same {
                    ConnectField::HostNqn
                } else {
                    ConnectField::ControllerId
                };
                let draft = Draft { cntlid, ..draft };
                made("another host's controller", &draft, Field(field))
            }
            1 => {
                let mut host_id = draft.host_id;
                host_id[15] ^= 1;
                let draft = Draft { host_id, ..draft };
                made(
                    "another host identifier",
                    &draft,
                    Field(ConnectField::HostId),
                )
            }
            2 => {
                let cntlid = 0xFFE0;
                let draft = Draft { cntlid, ..draft };
                let field = Field(ConnectField::ControllerId);
                made("a controller that is not there", &draft, field)
            }
            3 => {
                let qid = self.shape.io_queues + 1;
                let draft = Draft { qid, ..draft };
                made(
                    "a queue that was not granted",
                    &draft,
                    Field(ConnectField::QueueId),
                )
            }
            4 => {
                let sqsize_z = self.random.pick(&[0, u16::MAX - 1]);
                let draft = Draft { sqsize_z, ..draft };
                made(
                    "a queue of a wrong size",
                    &draft,
                    Field(ConnectField::SqSize),
                )
            }
            5 => made("a queue that exists", &draft, Expected::ExistingQueue),
            6 => {
                let draft = Draft {
                    cntlid: 1,
                    ..admin(draft)
                };
                let field = Field(ConnectField::ControllerId);
                made("a controller of the host's choice", &draft, field)
            }
            7 => {
                let draft = admin(draft);
                let mut connect = draft.sqe().connect();
                connect.recfmt = U16::new(1);
                let sqe = draft.sqe().with_connect(connect);
                let data = draft.data().as_bytes().to_vec();
                let status = Is(Status::CONNECT_INCOMPATIBLE_FORMAT);
                Some(("an unknown record format", sqe, data, status))
            }
            8 => {
                let subsystem = "nqn.2026-11.org.windlass:nothing".to_owned();
                let draft = Draft {
                    subsystem,
                    ..admin(draft)
                };
                let field = Field(ConnectField::SubsystemNqn);
                made("a subsystem that is not there", &draft, field)
            }
            9 => {
                let host = "nqn.2026-11.org.windlass:stranger".to_owned();
                let draft = Draft {
                    host,
                    ..admin(draft)
                };
                if env.serving.keys.any_host[self.shape.subsystem] {
                    return None;
                }
                let status = Is(Status::CONNECT_INVALID_HOST);
                made("a host that is not allowed", &draft, status)
            }
            10 => {
                let sqe = Sqe::keep_alive();
                let status = Is(Status::COMMAND_SEQUENCE_ERROR);
                Some(("another command first", sqe, Vec::new(), status))
            }
            11 => {
                let draft = admin(draft);
                let data = draft.data().as_bytes()[..512].to_vec();
                let status = Is(Status::DATA_SGL_LENGTH_INVALID);
                Some(("half of its data", draft.sqe(), data, status))
            }
            _ => {
                let subsystem = DISCOVERY_NQN.to_owned();
                let draft = Draft { subsystem, ..draft };
                let field = Field(ConnectField::QueueId);
                made("an I/O queue of discovery", &draft, field)
            }
        }
    }

    /// Receives on the connections with invalid Connects. Returns whether something had arrived.
    pub(super) fn poll_probes(&mut self, env: &mut HostEnv<'_>) -> Result<bool, Violation> {
        let mut moved = false;
        let mut incoming = Vec::new();
        for mut probe in std::mem::take(&mut self.probes) {
            let polled = probe.connection.poll(env.now, &mut incoming);
            moved |= polled.map_err(|what| self.violation(env, &what))?;
            let mut is_over = probe.connection.opened_at + LATENCY_MAX + LATENCY_MAX < env.now;
            for event in incoming.drain(..) {
                match event {
                    Incoming::Initialised => {
                        let (sqe, data) = (probe.sqe, std::mem::take(&mut probe.data));
                        probe.connection.submit_connect(sqe, data, env.now);
                    }
                    Incoming::Completed { cqe, .. } => {
                        self.judge_refusal(env, &probe, &cqe)?;
                        is_over = true;
                    }
                    Incoming::Terminated(_) => {}
                    Incoming::Ended(end) => is_over |= end != HostEnd::Open,
                }
            }
            if is_over {
                probe.connection.finish();
            } else {
                self.probes.push(probe);
            }
        }
        Ok(moved)
    }

    fn judge_refusal(
        &mut self,
        env: &mut HostEnv<'_>,
        probe: &Probe,
        cqe: &Cqe,
    ) -> Result<(), Violation> {
        let (status, what) = (cqe.status(), probe.what);
        let number = self.number;
        env.trace.note(
            env.now,
            format_args!("host {number}: a Connect with {what} completes with {status}"),
        );
        let is_free = self.io.len() < usize::from(self.shape.io_queues)
            || self.io.iter().any(|it| it.closing || !it.queue.live);
        let may_be_right = matches!(probe.expected, Expected::ExistingQueue);
        if status.is_success() && may_be_right && (is_free || self.cntlid != probe.cntlid) {
            // The queue has ended in the meantime.
            return Ok(());
        }
        let of_host = matches!(probe.expected, Expected::Status(status) if status.is(Status::CONNECT_INVALID_HOST));
        let changed = env.changing || env.changed_at >= probe.connection.opened_at;
        let is_open_to_all = env.serving.keys.any_host[self.shape.subsystem];
        if status.is_success() && of_host && (is_open_to_all || changed) {
            return Ok(());
        }
        if status.is_success() {
            let what = format!("a Connect with {what} was accepted");
            return Err(self.violation(env, &what));
        }
        // These statuses are temporary, and configuration changes make them correct.
        let later = [
            Status::CONNECT_CONTROLLER_BUSY,
            Status::CONNECT_RESTART_DISCOVERY,
        ];
        let opened_at = probe.connection.opened_at;
        let steady = self.is_serving()
            && self.cntlid == probe.cntlid
            && self.opened_at < opened_at
            && self.is_reached(env)
            && env.permission_changed.iter().all(|it| *it < opened_at)
            && !env.stopping;
        if later.iter().any(|it| status.is(*it)) {
            return if status.dnr() {
                let what = format!("a Connect must not be tried again after {status}");
                Err(self.violation(env, &what))
            } else {
                Ok(())
            };
        }
        // A change may end every association, which its host notices later.
        let ends = changed || env.changed_at + DISCONNECTED_MAX >= opened_at;
        let is_field = |field: ConnectField| {
            status.is(Status::CONNECT_INVALID_PARAMETERS)
                && cqe.connect_invalid_parameters() == field.invalid()
        };
        let is_gone = is_field(ConnectField::ControllerId);
        let right = match probe.expected {
            Expected::Status(expected) => status.is(expected),
            Expected::ExistingQueue => {
                status.is(Status::COMMAND_SEQUENCE_ERROR) || (ends && is_gone)
            }
            Expected::Field(field) => {
                // The association of another host may end at any time.
                let may_be_gone = field == ConnectField::HostNqn || ends;
                is_field(field) || (may_be_gone && is_gone)
            }
        };
        if steady && !(right && status.dnr()) {
            let fault = cqe.connect_invalid_parameters();
            let expected = probe.expected;
            let what = format!(
                "a Connect with {what} completed with {status} (DNR {}, {fault:?}), not {expected:?}",
                status.dnr()
            );
            return Err(self.violation(env, &what));
        }
        Ok(())
    }

    /// Cuts the connections with invalid Connects at the end of the appliance or the host.
    pub(super) fn drop_probes(&mut self) {
        for mut probe in std::mem::take(&mut self.probes) {
            probe.connection.cut();
        }
    }

    /// The next time at which a probe acts on its own.
    pub(super) fn next_probe(&self) -> Option<Nanos> {
        let connections = self.probes.iter().map(|it| &it.connection);
        let dues = connections.map(|it| {
            let end = it.opened_at + LATENCY_MAX + LATENCY_MAX + Nanos(1);
            it.next_due().map_or(end, |due| due.min(end))
        });
        dues.min()
    }
}
