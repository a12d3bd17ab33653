//! The run of one seed: clients and a server in virtual time, events and faults in an order that the
//! seed determines, and comparisons of the whole volume with the model.

use std::net::{IpAddr, Ipv4Addr};

use reactors::Nanos;

use super::action::Action;
use super::client::{Answer, Event, FileClient, OperationId, OverRdma, Repetitions};
use super::judge::Verdict;
use super::model::{Access, Model, ObjectId};
use super::rdma::{FileFabric, Machine};
use super::server::FileServer;
use super::swarm::FileSwarm;
use super::workload;
use crate::figures::{Figures, FileFigures};
use crate::network::NetworkBehaviour;
use crate::random::Random;
use crate::time::SharedTime;
use crate::trace::Trace;

/// The longest time for an answer, with restarts, absences and grace periods.
const PATIENCE: Nanos = Nanos::from_secs(400);
/// Longest time that the server does not run.
const DOWNTIME_MAX: Nanos = Nanos::from_millis(50);
/// How often the device fails while the server starts, per thousand starts.
const FAILING_START_PERMILLE: u32 = 300;
/// How often an operator looks for failures, per thousand events.
const OPERATOR_PERMILLE: u32 = 60;
/// Longest time between two events without a client that can do anything.
const AWAIT_MAX: Nanos = Nanos::from_millis(300);
/// Longest pause before an operation is tried again that waits for the end of a grace period.
const GRACE_RETRY_MAX: Nanos = Nanos::from_millis(200);
/// Longest time that a reply is on its way.
const ON_ITS_WAY: Nanos = Nanos::from_secs(5);
/// Longest pause before an operation is tried again.
const RETRY_AFTER_MAX: Nanos = Nanos::from_millis(3);
/// The shortest step of time without anything to do; it is doubled up to this often.
const IDLE_STEP: Nanos = Nanos(500);
const IDLE_STEPS_MAX: u32 = 9;
/// Operations of the auditor have numbers from here on.
const FIRST_OF_AUDITOR: OperationId = 1 << 63;

/// How far a client is.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// It has no session.
    New,
    /// It reclaims its opens and locks, the last first.
    Reclaiming(Vec<Action>),
    /// It says that it has reclaimed everything.
    Completing,
    Ready,
    /// It finds out whether the server knows its session.
    Probing,
}

impl Stage {
    pub(super) fn is_ready(&self) -> bool {
        matches!(self, Self::Ready)
    }
}

pub(super) struct ClientSide {
    pub(super) session: FileClient,
    pub(super) stage: Stage,
    /// When its session began.
    established_at: Nanos,
    /// Operations that are to be sent again.
    again: Vec<(Nanos, OperationId)>,
    /// It is to send the next request of its stage.
    continues: bool,
}

/// A run.
pub struct FileWorld {
    pub(super) swarm: FileSwarm,
    /// The virtual time.
    pub time: SharedTime,
    /// What has happened.
    pub trace: Trace,
    pub(super) random: Random,
    pub(super) server: FileServer,
    pub(super) clients: Vec<ClientSide>,
    pub(super) fabric: Option<FileFabric>,
    /// Faults of the fabric are drawn apart.
    pub(super) of_fabric: Random,
    /// A client without faults, which compares the volume with the model.
    auditor: FileClient,
    auditor_is_ready: bool,
    answer_of_auditor: Option<Answer>,
    next_of_auditor: OperationId,
    pub(super) model: Model,
    /// Whether the whole name space is to be compared before anything else.
    pub(super) must_audit: bool,
    server_starts_at: Option<Nanos>,
    /// Until when requests to the device fail.
    pub(super) fails_until: Option<Nanos>,
    /// Steps since anything was done.
    idle_steps: u32,
    /// When the grace period ends at the latest, and since when every client has reclaimed.
    pub(super) grace_ends_at: Option<Nanos>,
    pub(super) complete_since: Option<Nanos>,
    killed_at: Nanos,
    /// Times at which a client was silent.
    pub(super) silences: u64,
    /// Events so far.
    pub event: u64,
    /// Answered operations.
    pub answered: u64,
    /// Losses of power, and other ends of the server.
    pub kills: u64,
    /// Times at which the device began to fail, and volumes that became read-only.
    pub(super) failures: u64,
    pub(super) read_only: u64,
    /// Times at which the device disappeared, and at which the server lost its volume.
    pub(super) absences: u64,
    pub(super) losses: u64,
    /// Changes of the share, and times at which the volume was removed and added again.
    pub(super) share_changes: u64,
    pub(super) moves: u64,
    /// Whether the server knew that its volume is lost.
    was_lost: bool,
}

impl FileWorld {
    /// The world of a seed, in which nothing has happened.
    ///
    /// # Errors
    /// The server cannot start.
    pub fn new(seed: u64, swarm: FileSwarm) -> Result<Self, String> {
        let time = SharedTime::default();
        time.set(Nanos::from_secs(1));
        let fabric = swarm.rdma.map(|it| FileFabric::new(seed, it)).transpose()?;
        let server = FileServer::new(&swarm, seed, &time, fabric.clone())?;
        let address = |number: usize| IpAddr::V4(Ipv4Addr::new(192, 0, 2, number as u8 + 1));
        let over_rdma = |number: usize| -> Result<_, String> {
            let (Some(fabric), Some(swarm)) = (&fabric, swarm.rdma) else {
                return Ok(None);
            };
            let mut random = Random::new(seed, 0xF800 + number as u64);
            Ok(Some(OverRdma {
                machine: Machine::new(fabric, address(number), &mut random)?,
                permille: swarm.permille,
                random,
            }))
        };
        let client = |(number, over_rdma): (usize, _)| ClientSide {
            session: FileClient::new(
                number,
                address(number),
                swarm.network,
                swarm.repetitions,
                Random::new(seed, 0xF200 + number as u64),
                over_rdma,
            ),
            stage: Stage::New,
            established_at: Nanos::ZERO,
            again: Vec::new(),
            continues: false,
        };
        let clean = NetworkBehaviour {
            latency_min: Nanos::from_micros(1),
            latency_max: Nanos::from_micros(2),
            grain: usize::MAX,
            window: 1 << 20,
        };
        let auditor = FileClient::new(
            99,
            IpAddr::V4(Ipv4Addr::new(192, 0, 2, 200)),
            clean,
            Repetitions::default(),
            Random::new(seed, 0xF2FF),
            None,
        );
        let over_rdma: Result<Vec<_>, _> = (0..swarm.clients).map(over_rdma).collect();
        Ok(Self {
            clients: over_rdma?.into_iter().enumerate().map(client).collect(),
            fabric,
            of_fabric: Random::new(seed, 0xF9),
            swarm,
            time,
            trace: Trace::default(),
            random: Random::new(seed, 0xF2),
            server,
            auditor,
            auditor_is_ready: false,
            answer_of_auditor: None,
            next_of_auditor: FIRST_OF_AUDITOR,
            model: Model::default(),
            must_audit: false,
            server_starts_at: None,
            fails_until: None,
            idle_steps: 0,
            grace_ends_at: None,
            complete_since: None,
            killed_at: Nanos::ZERO,
            silences: 0,
            event: 0,
            answered: 0,
            kills: 0,
            failures: 0,
            read_only: 0,
            absences: 0,
            losses: 0,
            share_changes: 0,
            moves: 0,
            was_lost: false,
        })
    }

    /// Counters of the run.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let clients = self.clients.iter();
        let of_rdma = || self.clients.iter().map(|it| it.session.of_rdma);
        Figures {
            files: FileFigures {
                seeds: 1,
                events: self.event,
                operations: self.answered,
                repeated: clients.map(|it| it.session.repeated).sum(),
                bytes_judged: self.model.bytes_judged,
                kills: self.kills,
                failures: self.failures,
                read_only: self.read_only,
                absences: self.absences,
                losses: self.losses,
                share_changes: self.share_changes,
                moves: self.moves,
                locks_granted: self.model.locks_granted,
                refusals: self.model.refusals,
                silences: self.silences,
                dropped: self.model.drops,
                reclaims: self.model.reclaims,
                reclaims_refused: self.model.reclaims_refused,
                rdma_connections: of_rdma().map(|it| it.connections).sum(),
                rdma_replies: of_rdma().map(|it| it.replies).sum(),
                rdma_refused: of_rdma().map(|it| it.refused).sum(),
                rdma_invalidations: of_rdma().map(|it| it.invalidations).sum(),
                rdma_violations: of_rdma().map(|it| it.violations).sum(),
            },
            time: self.now(),
            ..Figures::default()
        }
    }

    pub(super) fn now(&self) -> Nanos {
        self.time.now()
    }

    pub(super) fn note(&mut self, what: std::fmt::Arguments<'_>) {
        self.trace.note(self.time.now(), what);
    }

    /// Runs all events, and compares everything at the end.
    ///
    /// # Errors
    /// What is wrong.
    pub fn run(&mut self) -> Result<(), String> {
        self.server.start(0)?;
        self.begin_model()?;
        while self.event < self.swarm.events {
            self.event += 1;
            self.faults()?;
            if self.model.device_fails && self.random.permille(OPERATOR_PERMILLE) {
                self.end_failure()?;
            }
            if self.must_audit {
                self.await_client()?;
                self.tempt();
                self.audit(false)?;
            } else if self.random.permille(5) {
                self.audit(true)?;
            }
            self.await_client()?;
            self.act();
            let pace = Nanos(self.random.below(self.swarm.pace_max.as_nanos()));
            self.run_for(pace)?;
        }
        self.finish()
    }

    /// A model of the volume, which is empty.
    pub(super) fn begin_model(&mut self) -> Result<(), String> {
        let (handle, fileid) = self.root()?;
        let former = std::mem::take(&mut self.model);
        self.model = former.restarted(handle, fileid);
        Ok(())
    }

    pub(super) fn restart_client(&mut self, client: usize) {
        self.note(format_args!("client {client} starts again"));
        let side = &mut self.clients[client];
        let forgotten = side.session.restart();
        side.stage = Stage::New;
        side.again.clear();
        self.forget(client, &forgotten);
    }

    /// A client knows nothing of its operations and opens any more.
    fn forget(&mut self, client: usize, operations: &[OperationId]) {
        let mut pending = self.model.pending.iter();
        let others: Vec<OperationId> = pending
            .by_ref()
            .filter(|(_, it)| it.client == client)
            .map(|(id, _)| *id)
            .collect();
        self.must_audit |= !operations.is_empty() || !others.is_empty();
        self.model.doubt(operations);
        self.model.doubt(&others);
        // Its files stay open until its next session begins.
        self.model.opens.retain(|(it, _), _| *it != client);
        self.model.change_all_holdings(|it| it.may_be_lost(client));
    }

    /// Kills the server. It starts again soon.
    pub(super) fn kill(&mut self, power_fails: bool) {
        self.note(format_args!(
            "the server is killed; power fails: {power_fails}"
        ));
        self.kills += 1;
        self.killed_at = self.now();
        self.server.kill(power_fails);
        self.server.end_failure();
        self.fails_until = None;
        let down = Nanos(self.random.below(DOWNTIME_MAX.as_nanos()));
        self.server_starts_at = Some(self.now() + down);
        self.must_audit = true;
        self.auditor_is_ready = false;
        self.answer_of_auditor = None;
        self.auditor.restart();
        match self.server.is_durable() {
            true => self.model.server_killed(),
            false => self.model.everything_lost(),
        }
        for side in &mut self.clients {
            side.again.clear();
            side.session.server_killed();
        }
    }

    /// Starts the server if it is time.
    fn start_server(&mut self) -> Result<(), String> {
        if self.server_starts_at.is_none_or(|it| it > self.now()) {
            return Ok(());
        }
        let has_failures = self.swarm.faults.failure > 0;
        let failures = match has_failures && self.random.permille(FAILING_START_PERMILLE) {
            true => self.random.between(1, 200) as u32,
            false => 0,
        };
        self.note(format_args!(
            "the server starts; {failures} of a thousand requests to the device fail"
        ));
        if !self.server.start(failures)? {
            self.failures += 1;
            let power_fails = self.random.coin();
            self.note(format_args!(
                "the volume cannot be opened; power fails: {power_fails}"
            ));
            self.server.kill(power_fails);
            let down = Nanos(self.random.below(DOWNTIME_MAX.as_nanos()));
            self.server_starts_at = Some(self.now() + down);
            return Ok(());
        }
        self.server_starts_at = None;
        self.begin_grace();
        for side in &mut self.clients {
            if side.stage.is_ready() {
                (side.stage, side.continues) = (Stage::Probing, true);
            }
        }
        Ok(())
    }

    /// The clients that can begin an operation.
    pub(super) fn ready(&self) -> Vec<usize> {
        let sides = self.clients.iter().enumerate();
        let ready = sides.filter(|(_, it)| it.stage.is_ready() && it.session.is_free());
        ready.map(|(client, _)| client).collect()
    }

    /// Lets time pass until a client can begin an operation, but not forever.
    fn await_client(&mut self) -> Result<(), String> {
        let latest = self.now() + AWAIT_MAX;
        while self.ready().is_empty() && self.now() < latest {
            self.step(latest)?;
        }
        Ok(())
    }

    /// One client begins an operation.
    fn act(&mut self) {
        let ready = self.ready();
        if ready.is_empty() || self.must_audit {
            return;
        }
        let client = self.random.pick(&ready);
        let (model, random) = (&mut self.model, &mut self.random);
        if let Some(action) = workload::draw(model, client, &self.swarm, random) {
            self.begin(client, action);
        }
    }

    pub(super) fn begin(&mut self, client: usize, action: Action) {
        let id = self.model.next_operation();
        self.note(format_args!("client {client} begins {id}: {action:?}"));
        match action {
            Action::Open { object, .. } => {
                self.model.objects[object].may_be_open.insert(client);
            }
            Action::Close { object } => {
                if let Some(open) = self.model.opens.get_mut(&(client, object)) {
                    open.is_closing = true;
                }
            }
            _ => {}
        }
        let claims = action.claims(&self.model);
        self.model.begin(id, client, action, claims);
        self.send(client, id);
    }

    fn send(&mut self, client: usize, id: OperationId) {
        let now = self.now();
        self.model.begin_sharing(id);
        if let Some(pending) = self.model.pending.get_mut(&id) {
            pending.sent_at = now;
        }
        let side = &mut self.clients[client];
        if let Some(pending) = self.model.pending.get(&id) {
            let action = &pending.action;
            action.with_operations(&self.model, client, |operations| {
                side.session.send(id, operations, action.is_kept(), now);
            });
        }
    }

    /// Lets time pass.
    pub(super) fn run_for(&mut self, duration: Nanos) -> Result<(), String> {
        let end = self.now() + duration;
        while self.now() < end {
            self.step(end)?;
        }
        Ok(())
    }

    /// One turn of the server and every client, and the time until the next one.
    pub(super) fn step(&mut self, latest: Nanos) -> Result<(), String> {
        self.start_server()?;
        self.advance_leases();
        if self.fails_until.is_some_and(|it| it <= self.now()) {
            self.fails_until = None;
            self.server.end_failure();
        }
        if let Some(fabric) = &self.fabric {
            fabric.advance_to(self.now());
        }
        self.server.advance_control()?;
        let mut is_busy = self.server.turn();
        self.follow_changes();
        for client in 0..self.clients.len() {
            is_busy |= self.pump(client)?;
        }
        is_busy |= self.pump_auditor()?;
        let now = self.now();
        self.idle_steps = match is_busy {
            true => 0,
            false => (self.idle_steps + 1).min(IDLE_STEPS_MAX),
        };
        let soon = now + Nanos(self.random.between(200, 3000));
        let next = match is_busy {
            true => soon,
            false => {
                let dues = self
                    .clients
                    .iter()
                    .filter_map(|it| it.session.next_due(now));
                let again = self.clients.iter().flat_map(|it| &it.again).map(|it| it.0);
                let dues = dues.chain(again).chain(self.server.next_due());
                let dues = dues.chain(self.server_starts_at);
                let dues = dues.chain(self.auditor.next_due(now));
                let dues = dues.chain(self.fabric.as_ref().and_then(FileFabric::next_due));
                // What waits for something else is due at once, again and again.
                let pause = Nanos(IDLE_STEP.as_nanos() << self.idle_steps);
                dues.min().unwrap_or(latest).max(now + pause)
            }
        };
        self.time.set(next.min(latest.max(now + Nanos(1))));
        Ok(())
    }

    /// Tells the model when the server loses its volume, and when the share has changed.
    fn follow_changes(&mut self) {
        let is_lost = self.server.is_lost();
        if is_lost && !self.was_lost {
            self.note(format_args!("the server has lost its volume"));
            self.losses += 1;
            self.must_audit = true;
            self.model.volume_lost();
        }
        self.was_lost = is_lost;
        if !self.server.is_changing() {
            self.model
                .set_access(Access::of(self.server.is_read_only()));
        }
    }

    /// Lets a client receive and send. Returns whether it has done something.
    fn pump(&mut self, client: usize) -> Result<bool, String> {
        let now = self.now();
        let session = &mut self.clients[client].session;
        let events = session.pump(now, self.server.listener());
        let events = events.map_err(|error| format!("client {client}: {error}"))?;
        let mut is_busy = !events.is_empty();
        for event in events {
            self.handle(client, event)?;
        }
        let mut index = 0;
        while index < self.clients[client].again.len() {
            let side = &mut self.clients[client];
            if side.again[index].0 > now || !side.session.is_free() {
                index += 1;
                continue;
            }
            let (_, id) = side.again.swap_remove(index);
            self.send(client, id);
            is_busy = true;
        }
        if self.clients[client].continues && self.clients[client].session.is_free() {
            self.continue_stage(client);
            is_busy = true;
        }
        Ok(is_busy)
    }

    fn handle(&mut self, client: usize, event: Event) -> Result<(), String> {
        match event {
            Event::Established => {
                self.note(format_args!("client {client} has a session"));
                self.established(client);
            }
            Event::SessionLost(operations) => {
                self.note(format_args!("client {client} has lost its session"));
                let was_killed = self.clients[client].established_at <= self.killed_at + ON_ITS_WAY;
                if !was_killed && !self.model.may_lose_session(client) {
                    return Err(format!(
                        "client {client} has lost its session without a reason"
                    ));
                }
                let side = &mut self.clients[client];
                side.stage = Stage::New;
                side.again.clear();
                let has_lost = self
                    .model
                    .opens
                    .iter()
                    .any(|((it, _), open)| *it == client && open.is_lost);
                match has_lost {
                    true => self.model.doubt(&operations),
                    false => self.forget(client, &operations),
                }
            }
            Event::ReplyLost(id) => {
                let now = self.now();
                self.clients[client].again.push((now, id));
            }
            Event::Answered(id, answer) => {
                self.answered += 1;
                let is_pending = self.model.pending.contains_key(&id);
                if is_pending && self.clients[client].stage.is_ready() {
                    let returned = self.model.returned(client);
                    returned.map_err(|error| format!("client {client}: {id}: {error}"))?;
                }
                let verdict =
                    self.model
                        .answered(id, &answer, (self.swarm.is_tight, self.swarm.quota));
                let verdict = verdict.map_err(|error| format!("client {client}: {id}: {error}"))?;
                let status = answer.results()?.0;
                self.note(format_args!(
                    "client {client}: {id} is answered: {status:?}"
                ));
                match verdict {
                    Verdict::Grace(sent_at) => {
                        self.check_grace(sent_at)?;
                        let pause = Nanos(self.random.below(GRACE_RETRY_MAX.as_nanos()));
                        let at = self.now() + pause;
                        self.clients[client].again.push((at, id));
                    }
                    Verdict::Again { pauses } => {
                        let pause = match pauses {
                            true => Nanos(self.random.below(RETRY_AFTER_MAX.as_nanos())),
                            false => Nanos::ZERO,
                        };
                        let at = self.now() + pause;
                        self.clients[client].again.push((at, id));
                    }
                    Verdict::Doubtful => self.must_audit = true,
                    Verdict::Ended if !self.clients[client].stage.is_ready() => {
                        self.clients[client].continues = true;
                    }
                    Verdict::Ended => {}
                }
            }
        }
        Ok(())
    }

    /// A client has a new session: it reclaims what it had before the server was killed.
    fn established(&mut self, client: usize) {
        let lost = self.model.lost(client);
        if lost.is_empty() {
            self.model.drop_opens(client);
        }
        self.clients[client].established_at = self.now();
        self.clients[client].stage = Stage::Reclaiming(lost);
        self.clients[client].continues = true;
    }

    fn continue_stage(&mut self, client: usize) {
        let side = &mut self.clients[client];
        side.continues = false;
        match &mut side.stage {
            Stage::New | Stage::Ready => {}
            Stage::Reclaiming(lost) => match lost.pop() {
                Some(action) => match self.model.can_reclaim(client, &action) {
                    true => self.begin(client, action),
                    false => side.continues = true,
                },
                None => {
                    side.stage = Stage::Completing;
                    self.begin(client, Action::ReclaimComplete);
                }
            },
            Stage::Completing => {
                side.stage = Stage::Ready;
                self.model.dropped.remove(&client);
            }
            Stage::Probing => {
                side.stage = Stage::Completing;
                self.begin(client, Action::Renew);
            }
        }
    }

    /// Closes a file of a client.
    pub(super) fn close(&mut self, client: usize, object: ObjectId) -> Result<(), String> {
        while !self.clients[client].session.is_free() {
            self.step(self.now() + RETRY_AFTER_MAX)?;
        }
        self.begin(client, Action::Close { object });
        self.quiesce()
    }

    /// Lets everything that was begun end.
    pub(super) fn quiesce(&mut self) -> Result<(), String> {
        let latest = self.now() + PATIENCE;
        loop {
            let is_ready = |it: &ClientSide| {
                it.stage.is_ready() && it.session.is_idle() && it.again.is_empty()
            };
            let is_quiet = self.clients.iter().all(is_ready) && self.model.pending.is_empty();
            let is_served = self.server.is_running() && !self.server.is_changing();
            if is_quiet && is_served && self.server.counts().1 == 0 {
                return Ok(());
            }
            if self.now() >= latest {
                let waiting: Vec<_> = self.model.pending.values().collect();
                let stages: Vec<_> = self.clients.iter().map(|it| &it.stage).collect();
                let count = self.server.counts();
                return Err(format!(
                    "not answered in {PATIENCE}: {waiting:?}; {stages:?}; the server has {count:?}"
                ));
            }
            self.step(latest)?;
        }
    }

    fn pump_auditor(&mut self) -> Result<bool, String> {
        let now = self.now();
        let events = self.auditor.pump(now, self.server.listener());
        let events = events.map_err(|error| format!("auditor: {error}"))?;
        let is_busy = !events.is_empty();
        for event in events {
            match event {
                Event::Established => self.auditor_is_ready = true,
                Event::SessionLost(_) => self.auditor_is_ready = false,
                Event::ReplyLost(_) => return Err("auditor: a reply was lost".to_owned()),
                Event::Answered(_, answer) => self.answer_of_auditor = Some(answer),
            }
        }
        Ok(is_busy)
    }

    /// Sends operations of the auditor and waits for the answer; again, while the server wants that.
    pub(super) fn ask(
        &mut self,
        operations: &[files_spec::operations::Operation<'_>],
    ) -> Result<Answer, String> {
        let latest = self.now() + PATIENCE;
        let mut is_sent = false;
        loop {
            // A request is lost with its session.
            is_sent &= self.auditor_is_ready;
            if !is_sent && self.auditor_is_ready && self.auditor.is_free() {
                let now = self.now();
                self.next_of_auditor += 1;
                self.auditor
                    .send(self.next_of_auditor, operations, false, now);
                is_sent = true;
            }
            if let Some(answer) = self.answer_of_auditor.take() {
                let status = answer.results()?.0;
                let waits = [files_spec::Status::DELAY, files_spec::Status::GRACE];
                if !waits.contains(&status) {
                    return Ok(answer);
                }
                is_sent = false;
                let pause = match status {
                    files_spec::Status::GRACE => GRACE_RETRY_MAX,
                    _ => RETRY_AFTER_MAX,
                };
                self.run_for(pause)?;
            }
            if self.now() >= latest {
                return Err(format!("the auditor is not answered: {operations:?}"));
            }
            self.step(latest)?;
        }
    }
}
