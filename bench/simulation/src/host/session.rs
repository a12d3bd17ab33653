//! The session of a host: connects, stays in service, and handles the loss of its controller.

use nvme_spec::Sqe;
use nvme_spec::command::FeatureId;
use nvme_spec::fabrics::PropertySize;
use nvme_spec::features::AsyncEventConfiguration;
use nvme_spec::registers::{Csts, Register};
use nvme_spec::{Cqe, Status};
use reactors::Nanos;

use super::admin::AdminStep;
use super::connection::{Connection, Incoming, Outstanding};
use super::{
    Command, DEADLINE_CHECK, Host, HostEnv, IoKind, LATENCY_MAX, Phase, QUIESCE_MAX, READY_POLL,
    READY_POLL_MAX, RETRIES_MAX, RETRY_MAX,
};
use crate::fabric::RdmaNetwork;
use crate::faults::Fault;
use crate::judge::Violation;
use crate::network::HostEnd;

impl Host {
    /// Receives what has arrived, and performs the steps that are due. Returns whether something
    /// had arrived.
    ///
    /// # Errors
    /// A violation by the target.
    pub fn poll(&mut self, env: &mut HostEnv<'_>) -> Result<bool, Violation> {
        if let Phase::Down { until } = self.phase
            && until <= env.now
        {
            let admin = self.open(env, 0);
            self.admin = Some(admin);
            self.opened_at = env.now;
            self.begin_events(env.now);
            self.phase = Phase::Starting;
        }
        let mut moved = self.poll_connections(env)?;
        moved |= self.poll_probes(env)?;
        if self.poll_status_at.is_some_and(|at| at <= env.now) {
            self.poll_status_at = None;
            self.ask_for_status(env);
        }
        self.run_event_steps(env);
        if !self.knows_disks() && self.phase == Phase::ServedConfig {
            self.learn_disks(env);
            if self.knows_disks() {
                self.identify(env, false);
            }
        }
        let keeps_alive = self.shape.keep_alive > Nanos::ZERO && self.silent_until.is_none();
        if keeps_alive && self.keep_alive_at.is_some_and(|at| at <= env.now) {
            self.keep_alive_at = None;
            self.send_admin(env, Sqe::keep_alive(), Command::KeepAlive);
        }
        if self.deadlines_checked_at + DEADLINE_CHECK <= env.now {
            self.deadlines_checked_at = env.now;
            self.check_deadlines(env)?;
        }
        Ok(moved)
    }

    fn poll_connections(&mut self, env: &mut HostEnv<'_>) -> Result<bool, Violation> {
        let mut moved = false;
        let mut incoming = Vec::new();
        let connections = 1 + self.io.len();
        for index in 0..connections {
            let connection = match index {
                0 => self.admin.as_mut(),
                _ => self.io.get_mut(index - 1),
            };
            let Some(connection) = connection else {
                continue;
            };
            let qid = connection.qid();
            let polled = connection.poll(env.now, &mut incoming);
            moved |= polled.map_err(|what| self.violation(env, &what))?;
            for event in incoming.drain(..) {
                self.take(env, qid, event)?;
            }
        }
        Ok(moved)
    }

    fn take(&mut self, env: &mut HostEnv<'_>, qid: u16, event: Incoming) -> Result<(), Violation> {
        match event {
            Incoming::Initialised => {
                let number = self.number;
                env.trace.note(
                    env.now,
                    format_args!("host {number} queue {qid} initialised"),
                );
                if self.is_beyond_listener(env, qid) {
                    return Err(self.violation(env, "a listener that went accepts a connection"));
                }
                self.connect(env, qid);
                Ok(())
            }
            Incoming::Completed { outstanding, cqe } => {
                self.completed(env, qid, &outstanding, &cqe)
            }
            Incoming::Terminated(status) => {
                let connection = self.connections().find(|it| it.qid() == qid);
                let due = connection.and_then(|it| it.queue.must_end);
                if let Some(due) = due.filter(|due| due.0 != status) {
                    let what = format!("queue {qid} was terminated with {status}, not {}", due.0);
                    return Err(self.violation(env, &what));
                }
                if !self.is_excused(env, qid) {
                    let what = format!("queue {qid} was terminated with status {status}");
                    return Err(self.violation(env, &what));
                }
                Ok(())
            }
            Incoming::Ended(end) => self.ended(env, qid, end),
        }
    }

    /// Whether a connection was started after its listener was removed.
    fn is_beyond_listener(&mut self, env: &HostEnv<'_>, qid: u16) -> bool {
        let gone_at = env.permission_changed[self.number];
        let is_there = env.serving.has_listener(env.swarm, self.number);
        let mut connections = self.connections();
        !is_there && connections.any(|it| it.qid() == qid && it.opened_at > gone_at)
    }

    /// Whether the target's device of its connection was pulled out.
    fn is_unplugged(&self, env: &HostEnv<'_>) -> bool {
        self.shape.rdma && env.rdma.is_some_and(RdmaNetwork::is_unplugged)
    }

    /// Whether the target has a reason to end a connection.
    pub(super) fn is_excused(&mut self, env: &HostEnv<'_>, qid: u16) -> bool {
        let allowed = env.permission_changed[self.number] < self.opened_at.max(Nanos(1))
            && self.is_reached(env);
        let silent = self.silent_until.is_some();
        let unplugged = self.is_unplugged(env);
        let excuse = self.authentication_excuse(env);
        let is_excused = |it: &Connection| it.excused || it.may_be_refused(&excuse);
        let admin_excused = self.admin.as_ref().is_none_or(is_excused);
        let (keep_alive, is_rdma) = (self.keep_alive_max(), self.shape.rdma);
        // The set-up timeout continues while no message can be received for lack of memory.
        let short = |it: &Connection| !it.queue.live && it.opened_at < env.memory_disturbed;
        // The target waits for a second Keep Alive Timeout if commands of this host hold all receives
        // of its reactor, because they wait for memory.
        let silent_for = |it: &Outstanding| env.now.saturating_sub(it.issued_at);
        let is_unheard = |it: &Outstanding| {
            matches!(it.command, Command::KeepAlive)
                && silent_for(it) >= keep_alive
                && it.issued_at < env.memory_disturbed
        };
        let starved = |it: &Connection| {
            is_rdma && it.qid() == 0 && it.outstanding().any(|(_, it)| is_unheard(it))
        };
        // The network card accesses the memory of a drive that was pulled out.
        let has_lost_memory = |it: &Outstanding| {
            matches!(&it.command, Command::Io(io)
                if io.disks().any(|disk| it.issued_at <= env.memory_gone[disk]))
        };
        let misses_memory =
            |it: &Connection| is_rdma && it.outstanding().any(|(_, it)| has_lost_memory(it));
        let mut connections = self.connections();
        let excused = connections.any(|it| {
            let is_starved = short(it) || starved(it);
            it.qid() == qid && (is_excused(it) || is_starved || misses_memory(it))
        });
        env.stopping || !allowed || silent || unplugged || admin_excused || excused
    }

    fn connect(&mut self, env: &mut HostEnv<'_>, qid: u16) {
        let depth = self.connections().find(|it| it.qid() == qid);
        let Some(depth) = depth.map(|it| it.queue.shape.depth) else {
            return;
        };
        let (sqe, data) = self.connect_command(qid, depth);
        let now = env.now;
        if let Some(connection) = self.connections().find(|it| it.qid() == qid) {
            connection.submit_connect(sqe, data, now);
        }
    }

    pub(super) fn ask_for_status(&mut self, env: &mut HostEnv<'_>) {
        let sqe = Sqe::get_property(Register::CSTS.0, PropertySize::BYTES_4);
        self.send_admin(env, sqe, Command::Status);
    }

    /// Handles the response to a Connect.
    pub(super) fn connected(
        &mut self,
        env: &mut HostEnv<'_>,
        qid: u16,
        issued_at: Nanos,
        cqe: &Cqe,
    ) -> Result<(), Violation> {
        let status = cqe.status();
        let forbidden = !self.is_reached(env);
        if status.is_success() && forbidden && env.permission_changed[self.number] < issued_at {
            return Err(self.violation(env, "a host without permission may connect"));
        }
        if !status.is_success() {
            // A Connect of an allowed host must not fail permanently.
            let hopeless = [
                Status::CONNECT_INVALID_HOST,
                Status::CONNECT_INCOMPATIBLE_FORMAT,
            ];
            let allowed = !forbidden && env.permission_changed[self.number] < issued_at;
            if qid == 0 && allowed && !env.stopping && hopeless.iter().any(|it| status.is(*it)) {
                return Err(self.violation(env, &format!("Connect was refused: {status}")));
            }
            self.check_refusal(env, issued_at, status)?;
            let number = self.number;
            env.trace.note(
                env.now,
                format_args!("host {number} queue {qid}: Connect refused, {status}"),
            );
            self.drop_all(env);
            return Ok(());
        }
        if let Some(connection) = self.connections().find(|it| it.qid() == qid) {
            connection.queue.live = true;
        }
        if qid == 0 {
            self.cntlid = cqe.connect_success().cntlid();
            self.learn_disks(env);
            env.controllers[self.number] = self.cntlid;
        }
        if self.begins_authentication(env, qid, issued_at, cqe)? {
            return Ok(());
        }
        self.opened(env, qid);
        Ok(())
    }

    /// Goes on after a queue is connected, and its host authenticated if it must be.
    pub(super) fn opened(&mut self, env: &mut HostEnv<'_>, qid: u16) {
        let is_open = |it: &Connection| it.queue.live && it.standing.is_open();
        if qid == 0 && self.phase == Phase::Starting {
            self.set_configuration(env, true);
        } else if self.phase == Phase::Opening && self.io.iter().all(is_open) {
            self.phase = Phase::ServedConfig;
        }
    }

    /// Checks a refused Connect. A host that an export names has reserved resources, regardless of
    /// anonymous hosts.
    fn check_refusal(
        &self,
        env: &mut HostEnv<'_>,
        issued_at: Nanos,
        status: Status,
    ) -> Result<(), Violation> {
        let faults = env.swarm.faults;
        let is_settled = !env.changing && env.changed_at + super::SETTLING_TIME < issued_at;
        let is_named = env.serving.hosts[self.number] && env.serving.names_hosts();
        let is_busy = status.is(Status::CONNECT_CONTROLLER_BUSY);
        let is_crowded = faults.has(Fault::Anonymous) || faults.has(Fault::OneAddress);
        let is_roomy = is_crowded && !faults.has(Fault::Tight);
        if !is_busy || !is_roomy || !is_settled || env.stopping {
            return Ok(());
        }
        let is_crowded_out = *env.crowded_out_at >= issued_at;
        if is_named && !is_crowded_out {
            let what = "a host that an export names is refused for want of room";
            return Err(self.violation(env, what));
        }
        if env.at_share[self.number] < issued_at && env.swarm.has_room_for_commands() {
            let what = "a host with less than its share is refused for want of room";
            return Err(self.violation(env, what));
        }
        Ok(())
    }

    /// Handles a value of CSTS.
    pub(super) fn status_read(
        &mut self,
        env: &mut HostEnv<'_>,
        csts: Csts,
    ) -> Result<(), Violation> {
        if self.phase == Phase::ShuttingDown {
            return self.shutdown_read(env, csts);
        }
        let Phase::AwaitingReady { ready } = self.phase else {
            return Ok(());
        };
        if csts.rdy() != ready {
            let waited = env.now.saturating_sub(self.configured_at);
            let rest = Nanos(waited.as_nanos() / 16).clamp(READY_POLL, READY_POLL_MAX);
            self.poll_status_at = Some(env.now + rest);
        } else if ready {
            // Base 2.1 §3.5.1: earlier lost writes are over once the controller is ready.
            let over = env.judge.ready(self.shape.identity, self.enabled_at);
            self.check_over(env, over, "its host's controller is ready")?;
            self.configure(env);
        } else {
            // Base 2.1 §3.7.2: no command from before the reset takes effect from now on.
            let over = self.writes_before_reset();
            self.check_over(env, over, "CSTS.RDY is 0 after a reset")?;
            let sender = (self.shape.identity, self.cntlid);
            for io in std::mem::take(&mut self.ending_writes) {
                let mut disks = io.extents.iter().map(|it| it.disk);
                let judge = &mut *env.judge;
                if disks.any(|it| judge.is_maybe_stuck(it)) {
                    judge.lose_write(sender, io.extents, io.version, io.began);
                } else {
                    let end = crate::history::WriteEnd::Undecided;
                    judge.end_write(&io.extents, io.version, io.began, end);
                }
            }
            env.judge.noticed(sender);
            self.set_configuration(env, true);
        }
        Ok(())
    }

    /// Writes that were outstanding in its I/O queues at the reset, as disks and versions.
    fn writes_before_reset(&self) -> Vec<(usize, u64)> {
        let waiting = self.io.iter().flat_map(Connection::outstanding);
        let waiting = waiting.filter_map(|(_, it)| match &it.command {
            Command::Io(io) => Some(io),
            _ => None,
        });
        let writes = self.ending_writes.iter().chain(waiting);
        let writes = writes.filter(|io| io.kind == IoKind::Write);
        writes
            .filter_map(|io| Some((io.extents.first()?.disk, io.version)))
            .collect()
    }

    /// Checks that no disk still has a write that the target has reported to be over.
    pub(super) fn check_over(
        &self,
        env: &mut HostEnv<'_>,
        over: Vec<(usize, u64)>,
        since: &str,
    ) -> Result<(), Violation> {
        let left = over
            .into_iter()
            .find(|(disk, version)| env.disks[*disk].is_writing(*version));
        let Some((disk, version)) = left else {
            return Ok(());
        };
        let what = format!("{since}, and disk {disk} still has write {version} of before");
        Err(self.violation(env, &what))
    }

    fn configure(&mut self, env: &mut HostEnv<'_>) {
        self.reset_events();
        self.identify(env, true);
        let queues = u32::from(self.shape.io_queues - 1);
        let count = queues | queues << 16;
        let sqe = Sqe::set_feature(FeatureId::NUMBER_OF_QUEUES, 0, count);
        self.send_admin(env, sqe, Command::Queues);
        let mask = AsyncEventConfiguration::new()
            .with_namespace_attribute(true)
            .with_ana_change(env.swarm.faults.has(Fault::Ana));
        let sqe = Sqe::set_feature(FeatureId::ASYNC_EVENT_CONFIGURATION, 0, mask.into_bits());
        self.send_admin(env, sqe, Command::EventMask);
        self.ask_for_events(env);
        self.attach_to_groups(env);
        self.attach_to_notices(env.now);
    }

    /// Connects the I/O queues after their number was granted.
    pub(super) fn open_queues(&mut self, env: &mut HostEnv<'_>) {
        self.phase = Phase::Opening;
        for qid in 1..=self.shape.io_queues {
            let connection = self.open(env, qid);
            self.io.push(connection);
        }
    }

    /// Handles the end of a connection.
    fn ended(&mut self, env: &mut HostEnv<'_>, qid: u16, end: HostEnd) -> Result<(), Violation> {
        let number = self.number;
        env.trace.note(
            env.now,
            format_args!("host {number} queue {qid} ended: {end:?}"),
        );
        if end != HostEnd::Cut && !self.is_excused(env, qid) {
            let what = format!("queue {qid} was closed without a reason");
            return Err(self.violation(env, &what));
        }
        if qid > 0 && self.phase == (Phase::AwaitingReady { ready: false }) {
            // A reset ends the I/O queues; the admin queue stays.
            self.drop_io(env);
        } else {
            self.drop_all(env);
        }
        Ok(())
    }

    /// Drops the I/O queues.
    pub(super) fn drop_io(&mut self, env: &mut HostEnv<'_>) {
        for mut connection in std::mem::take(&mut self.io) {
            for outstanding in connection.take_outstanding() {
                env.figures.abandoned += 1;
                if let Command::Io(io) = &outstanding.command {
                    self.lose_turn(env, io);
                }
                match outstanding.command {
                    Command::Io(io) if io.version > 0 => self.ending_writes.push(io),
                    Command::Io(io) => env.judge.end_read(io.began),
                    Command::Reserve(step) => env.judge.reservations.lose(step.disk, step.id),
                    _ => {}
                }
            }
            connection.finish();
        }
    }

    /// Handles the end of the appliance.
    pub fn crash(&mut self, env: &mut HostEnv<'_>) {
        for connection in self.connections() {
            connection.cut();
        }
        self.drop_probes();
        self.drop_all(env);
    }

    /// Drops all connections, and schedules a new attempt.
    pub(super) fn drop_all(&mut self, env: &mut HostEnv<'_>) {
        self.drop_io(env);
        let sender = (self.shape.identity, self.cntlid);
        for io in std::mem::take(&mut self.ending_writes) {
            if self.retries.len() < RETRIES_MAX && io.kind == IoKind::Write {
                self.retries.extend(io.extents.first().copied());
            }
            if let Some(extent) = io.extents.first() {
                self.watch(*extent);
            }
            env.judge
                .lose_write(sender, io.extents, io.version, io.began);
        }
        if let Some(mut admin) = self.admin.take() {
            for outstanding in admin.take_outstanding() {
                match outstanding.command {
                    Command::Admin(AdminStep::WriteCache { began, .. }) => {
                        env.judge.end_read(began);
                    }
                    Command::Reserve(step) => env.judge.reservations.lose(step.disk, step.id),
                    _ => {}
                }
            }
            admin.finish();
        }
        env.controllers[self.number] = 0;
        self.nsids = None;
        self.forget_controller(env);
        self.poll_status_at = None;
        self.keep_alive_at = None;
        self.silent_until = None;
        self.begin_events(env.now);
        let pause = Nanos(self.random.below(RETRY_MAX.as_nanos()));
        self.phase = Phase::Down {
            until: env.now + pause,
        };
    }

    /// The time since which nothing has disturbed the resources of its commands.
    pub(super) fn calm_since(&self, env: &HostEnv<'_>) -> Nanos {
        let connections = self.admin.iter().chain(&self.io);
        let waits = connections.map(|connection| connection.queue.disturbed_until);
        let waits = waits.chain(env.disk_disturbed.iter().copied());
        waits
            .chain([env.memory_disturbed])
            .max()
            .unwrap_or_default()
    }

    /// Whether the target is disconnecting it: earlier commands are completed, and later ones end
    /// with the connection.
    pub(super) fn is_leaving(&self, env: &HostEnv<'_>) -> bool {
        let changed = env.permission_changed[self.number];
        changed > Nanos::ZERO && changed >= self.opened_at
    }

    /// Whether the configuration allows the host to be in service.
    pub(super) fn is_reached(&self, env: &HostEnv<'_>) -> bool {
        env.serving.reaches(env.swarm, self.number)
    }

    /// Whether the target still serves it long after the end of its permission.
    fn is_wrongly_served(&self, env: &HostEnv<'_>) -> bool {
        let Some(admin) = self.admin.as_ref().filter(|admin| admin.queue.live) else {
            return false;
        };
        // Its commands are completed first.
        let since = env.permission_changed[self.number].max(self.calm_since(env));
        let since = since.max(admin.queue.disturbed_until);
        !self.is_reached(env) && !env.stopping && since + LATENCY_MAX < env.now
    }

    /// Whether its controller should be ready by now: outstanding commands of earlier controllers
    /// take no longer than other requests, and resources of other hosts cause no wait (Base 2.1
    /// §5.1.13.2.1, CQT).
    fn is_late_to_be_ready(&self, env: &HostEnv<'_>) -> bool {
        let waits = self.phase == (Phase::AwaitingReady { ready: true });
        let since = self.enable_sent_at.max(self.calm_since(env));
        let ends = env.stopping || self.silent_until.is_some() || self.is_leaving(env);
        waits && !ends && since + LATENCY_MAX < env.now
    }

    /// Whether commands in a device have delayed a change of CC.EN of its controller for longer
    /// than is allowed for any device.
    fn is_kept_waiting(&self, env: &HostEnv<'_>) -> bool {
        let waits = matches!(self.phase, Phase::AwaitingReady { .. });
        let admin = self.admin.as_ref();
        let since = admin.map_or(Nanos::ZERO, |it| it.queue.disturbed_until);
        let since = since.max(self.configured_at).max(env.memory_disturbed);
        let ends = env.stopping || self.silent_until.is_some() || self.is_leaving(env);
        waits && !ends && since + QUIESCE_MAX < env.now
    }

    /// Checks all deadlines.
    fn check_deadlines(&mut self, env: &mut HostEnv<'_>) -> Result<(), Violation> {
        // The removal of a device notifies nobody, and a host that sends nothing does not detect
        // it.
        let in_the_dark = self.silent_until.is_some() && self.is_unplugged(env);
        // It is not silent while the target could not receive.
        let heard = env.memory_disturbed + self.silence_limit();
        let heard = if self.shape.rdma { heard } else { Nanos::ZERO };
        let silent_until = self.silent_until.map(|until| until.max(heard));
        if !in_the_dark && silent_until.is_some_and(|until| until <= env.now) {
            return Err(self.violation(env, "the target keeps a host that sends nothing"));
        }
        if !in_the_dark && self.is_wrongly_served(env) {
            let what = "a host that lost its permission keeps its controller";
            return Err(self.violation(env, what));
        }
        if self.is_late_to_be_ready(env) {
            return Err(self.violation(env, "the controller does not become ready"));
        }
        if self.is_kept_waiting(env) {
            let what = "a device keeps the controller waiting for longer than CQT";
            return Err(self.violation(env, what));
        }
        let connections = self.admin.iter().chain(&self.io);
        let mut late = None;
        for connection in connections {
            for (cid, outstanding) in connection.outstanding() {
                let since = self.undisturbed_since(env, connection, outstanding);
                let lingering = |since| match &outstanding.command {
                    Command::Io(io) => Self::lingering(env, io, since),
                    _ => Nanos::ZERO,
                };
                let is_late = |since| since + LATENCY_MAX < env.now;
                if since.is_some_and(|since| is_late(since) && is_late(since + lingering(since))) {
                    let (command, wire) = (&outstanding.command, connection.state());
                    late = Some((connection.qid(), cid, format!("{command:?} ({wire})")));
                }
            }
        }
        if let Some((qid, cid, command)) = late {
            let what = format!("queue {qid}, command {cid}: no completion in time: {command}");
            return Err(self.violation(env, &what));
        }
        self.check_refused_keys(env)?;
        self.check_shutdown(env)?;
        self.end_misuse(env.now);
        self.check_progress(env)?;
        self.check_event(env)
    }
}
