//! Leases and the grace period: clients that are silent for longer than a lease, what the server may
//! take from them then and what it must keep, and when nothing new may be opened after a restart.

use files_server::limits::{GRACE_MS, LEASE_MS};
use files_spec::Status;
use reactors::Nanos;

use super::action::Action;
use super::holdings::{Holdings, Modes};
use super::model::{Model, ObjectId, Pending};
use super::workload;
use super::world::FileWorld;

/// How long a client keeps its state after its last request, and how long it can reclaim it.
const LEASE: Nanos = Nanos::from_millis(LEASE_MS);
const GRACE: Nanos = Nanos::from_millis(GRACE_MS);
/// Longest time that a request is on its way, so that it is not known when a lease begins.
const MARGIN: Nanos = Nanos::from_secs(5);
/// How long a silent client has no connection.
const SILENCE_MIN: Nanos = Nanos::from_secs(70);
const SILENCE_MAX: Nanos = Nanos::from_secs(200);
/// How long the others wait at first.
const WAIT_MIN: Nanos = Nanos::from_secs(70);
const WAIT_MAX: Nanos = Nanos::from_secs(130);
/// The others renew their leases about this often.
const RENEWAL: Nanos = Nanos::from_secs(25);
/// Time in which a reply may come.
const REPLY: Nanos = Nanos::from_millis(1);
/// How often the server is killed while a client is silent, per thousand times.
const KILL_PERMILLE: u32 = 150;
/// How often a client opens or locks a file in a grace period, per thousand times.
const TEMPTED_PERMILLE: u32 = 500;
/// A period that lasts longer when every client has reclaimed is too long.
const GRACE_END_MAX: Nanos = Nanos::from_secs(2);

/// The lease of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Lease {
    #[default]
    Valid,
    /// It may have expired.
    Doubtful,
    Expired,
}

/// Whether the server has taken the state of a client whose lease has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dropped {
    /// An operation of another client may have needed it.
    Possibly,
    /// Another client was granted what it excludes.
    Certainly,
}

/// Whether clients can reclaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reclaiming {
    #[default]
    Possible,
    /// The grace period may have ended by time.
    Doubtful,
}

impl FileWorld {
    /// A client is silent for longer than a lease or not, while others renew theirs.
    pub(super) fn silence(&mut self, client: usize) -> Result<(), String> {
        let until = self.now() + self.between(SILENCE_MIN, SILENCE_MAX);
        let silently = self.random.coin();
        self.note(format_args!("client {client} is silent until {until}"));
        self.silences += 1;
        let now = self.now();
        self.clients[client].session.leave(until, silently, now);
        if self.random.permille(KILL_PERMILLE) && self.server.is_running() {
            self.kill(false);
        }
        let wait = self.between(WAIT_MIN, WAIT_MAX);
        self.pass_time(wait)?;
        if self.random.permille(KILL_PERMILLE) && self.server.is_running() {
            self.kill(false);
        }
        Ok(())
    }

    fn between(&mut self, min: Nanos, max: Nanos) -> Nanos {
        Nanos(self.random.between(min.as_nanos(), max.as_nanos()))
    }

    /// Lets time pass until every silent client has returned.
    pub(super) fn await_return(&mut self) -> Result<(), String> {
        while self.has_silent_client() {
            self.pass_time(RENEWAL)?;
        }
        Ok(())
    }

    /// Whether a client is silent for longer than others are away.
    pub(super) fn has_silent_client(&self) -> bool {
        let soon = self.now() + MARGIN;
        self.clients.iter().any(|it| it.session.is_absent(soon))
    }

    /// Lets time pass in which clients renew their leases.
    pub(super) fn pass_time(&mut self, duration: Nanos) -> Result<(), String> {
        let end = self.now() + duration;
        while self.now() < end {
            self.renew();
            self.tempt();
            let rest = end.saturating_sub(self.now());
            self.run_for(rest.min(RENEWAL))?;
        }
        Ok(())
    }

    /// Clients open and lock files before the name space is compared, also while others have not
    /// reclaimed what they had.
    pub(super) fn tempt(&mut self) {
        for client in self.ready() {
            let (model, random) = (&self.model, &mut self.random);
            if random.permille(TEMPTED_PERMILLE)
                && let Some(action) = workload::states(model, client, &self.swarm, random)
            {
                self.begin(client, action);
            }
        }
    }

    fn renew(&mut self) {
        for client in self.ready() {
            self.begin(client, Action::Renew);
        }
    }

    /// Waits for all clients, and lets those renew their leases that may have expired. Others do not
    /// lose their state to what follows then.
    pub(super) fn quiesce_renewed(&mut self) -> Result<(), String> {
        self.quiesce()?;
        while self.model.leases.values().any(|it| *it != Lease::Valid) {
            self.renew();
            let wait = match self.has_silent_client() {
                true => RENEWAL,
                false => REPLY,
            };
            self.run_for(wait)?;
            self.quiesce()?;
            self.advance_leases();
        }
        Ok(())
    }

    /// The server has started.
    pub(super) fn begin_grace(&mut self) {
        self.grace_ends_at = Some(self.now() + GRACE);
        self.model.reclaiming = Reclaiming::Possible;
    }

    /// Tells the model which leases and periods are over.
    pub(super) fn advance_leases(&mut self) {
        let now = self.now();
        for (client, side) in self.clients.iter().enumerate() {
            let since = |at: Nanos| now.saturating_sub(at);
            let lease = if since(side.session.sent_at) > LEASE + MARGIN {
                Lease::Expired
            } else if since(side.session.renewed_at) + MARGIN > LEASE {
                Lease::Doubtful
            } else {
                Lease::Valid
            };
            self.model.set_lease(client, lease);
        }
        if self.grace_ends_at.is_some_and(|it| now + MARGIN > it) {
            self.grace_ends_at = None;
            self.model.reclaiming_may_end();
        }
        let is_complete = self.clients.iter().all(|it| it.stage.is_ready());
        match is_complete && self.server.is_running() {
            true => {
                self.complete_since.get_or_insert(now);
            }
            false => self.complete_since = None,
        }
    }

    /// Checks that a client is told of a grace period only while there is one.
    ///
    /// # Errors
    /// All clients had reclaimed long before the operation was sent.
    pub(super) fn check_grace(&self, sent_at: Nanos) -> Result<(), String> {
        match self.complete_since {
            Some(since) if since + GRACE_END_MAX < sent_at => Err(format!(
                "there is a grace period, and all clients have reclaimed at {since}"
            )),
            _ => Ok(()),
        }
    }
}

impl Model {
    fn set_lease(&mut self, client: usize, lease: Lease) {
        let before = self.leases.insert(client, lease).unwrap_or_default();
        if before == Lease::Expired && lease != before {
            // What it holds matters again.
            self.change_all_holdings(|_| {});
        }
        if lease == Lease::Valid || self.dropped.contains_key(&client) {
            return;
        }
        let mut pending = self.pending.values();
        if pending.any(|it| it.client != client && self.needs_state_of(it, client)) {
            self.dropped.insert(client, Dropped::Possibly);
            self.change_all_holdings(|it| it.may_be_lost(client));
        }
    }

    /// Whether an operation excludes what a client may hold.
    fn needs_state_of(&self, pending: &Pending, client: usize) -> bool {
        let held = |object: ObjectId| self.holdings_of(object).only(client);
        match &pending.action {
            Action::Open { object, modes } => {
                let modes = self.modes_of(pending.client, *object).and(*modes);
                held(*object).may_deny(None, modes)
            }
            Action::Lock { wanted, .. } | Action::TestLock { wanted } => {
                let owner = (pending.client, wanted.owner);
                held(wanted.object).may_refuse(owner, wanted.parts, wanted.held())
            }
            _ => pending.uses.iter().any(|it| {
                let modes = it.special();
                modes.is_some_and(|modes| held(it.object()).may_deny(None, modes))
            }),
        }
    }

    /// What a client surely holds of a file, unless it was dropped; `None` if that is changing.
    fn known_of(&self, client: usize, object: ObjectId) -> Option<Holdings> {
        let open = self.opens.get(&(client, object))?;
        let mut pending = self.pending.values().filter(|it| it.client == client);
        if pending.any(|it| it.action.object() == Some(object)) {
            return None;
        }
        let mut known = Holdings::default();
        known.is_open(client, open.modes);
        for (owner, lock) in &open.locks {
            known.has_locks((client, *owner), &lock.held);
        }
        Some(known)
    }

    /// A client was granted something. Those that held what it excludes have lost everything, if they
    /// held it before the operation was sent: it may have been executed at any time since then.
    pub(super) fn drop_excluded(
        &mut self,
        pending: &Pending,
        object: ObjectId,
        permits: impl Fn(&Holdings) -> bool,
    ) {
        let mut dropped = self.dropped.iter();
        let excluded: Vec<usize> = dropped
            .by_ref()
            .map(|it| *it.0)
            .filter(|it| *it != pending.client)
            .filter(|it| {
                let open = self.opens.get(&(*it, object));
                open.is_some_and(|it| it.grown < pending.started)
            })
            .filter(|it| self.known_of(*it, object).is_some_and(|it| !permits(&it)))
            .collect();
        for client in excluded {
            let before = self.dropped.insert(client, Dropped::Certainly);
            self.drops += u64::from(before != Some(Dropped::Certainly));
            self.change_all_holdings(|it| it.is_lost(client));
        }
    }

    /// A client has an answer in its session, which it would not have without its state.
    ///
    /// # Errors
    /// Another client was granted what the state excludes.
    pub(super) fn returned(&mut self, client: usize) -> Result<(), String> {
        match self.dropped.remove(&client) {
            None => Ok(()),
            Some(Dropped::Certainly) => Err("another client has what its state excludes".into()),
            Some(Dropped::Possibly) => {
                let opens = self.opens.keys().filter(|it| it.0 == client);
                let objects: Vec<ObjectId> = opens.map(|it| it.1).collect();
                for object in objects {
                    if let Some(known) = self.known_of(client, object) {
                        self.change_holdings(object, |it| it.replace(&known));
                    }
                }
                Ok(())
            }
        }
    }

    /// Whether the server may have forgotten the session of a client without having been killed.
    #[must_use]
    pub(super) fn may_lose_session(&self, client: usize) -> bool {
        let mut opens = self.opens.iter().filter(|(it, _)| it.0 == client);
        let has_expired = self
            .leases
            .get(&client)
            .is_some_and(|it| *it != Lease::Valid);
        // The server needs no reason to forget a client without state.
        self.dropped.contains_key(&client) || has_expired && opens.all(|(_, it)| it.is_closing)
    }

    fn reclaiming_may_end(&mut self) {
        self.reclaiming = Reclaiming::Doubtful;
        let lost = self.opens.iter().filter(|(_, open)| open.is_lost);
        let clients: Vec<usize> = lost.map(|(it, _)| it.0).collect();
        for client in clients {
            // Its record may be removed, so that it cannot reclaim after a further restart either.
            self.dropped.entry(client).or_insert(Dropped::Possibly);
            self.change_all_holdings(|it| it.may_be_lost(client));
        }
    }

    /// Whether a client waits for nothing to be granted before it has reclaimed.
    #[must_use]
    pub(super) fn is_grace_certain(&self) -> bool {
        let mut opens = self.opens.iter();
        self.reclaiming == Reclaiming::Possible
            && opens.any(|((client, _), open)| open.is_lost && !self.dropped.contains_key(client))
    }

    /// Whether a client may reclaim what it has lost with the server.
    pub(super) fn reclaim_allows(&self, client: usize, status: Status) -> Result<(), String> {
        let dropped = self.dropped.get(&client);
        let is_allowed = match status {
            Status::OK => dropped != Some(&Dropped::Certainly),
            Status::NO_GRACE => dropped.is_some() || self.reclaiming == Reclaiming::Doubtful,
            _ => false,
        };
        match is_allowed {
            true => Ok(()),
            false => Err(format!(
                "{status:?}; reclaiming is {:?}, its state was dropped: {dropped:?}",
                self.reclaiming
            )),
        }
    }

    /// The share modes of others matter for these.
    pub(super) fn without_expired(&self, client: usize, mut holdings: Holdings) -> Holdings {
        let expired = self.leases.iter().filter(|(_, it)| **it == Lease::Expired);
        for (other, _) in expired.filter(|it| *it.0 != client) {
            holdings.forget(*other);
        }
        holdings
    }

    /// What an access or an OPEN that has succeeded excludes.
    pub(super) fn opened_beside(&mut self, pending: &Pending, object: ObjectId, modes: Modes) {
        let client = pending.client;
        self.drop_excluded(pending, object, |it| it.may_open(Some(client), modes));
    }
}
