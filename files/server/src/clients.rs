//! Clients: who they are, how they are confirmed, and when they lose their state
//! (RFC 8881 §18.35, §18.36, §18.50).

use std::net::IpAddr;

use files_spec::Status;
use files_spec::operations::{
    CreateSessionArgs, CreateSessionOk, ExchangeIdArgs, ExchangeIdOk, OperationResult, Outcome,
    ProtectionArgs, ProtectionOk, ServerOwner, exchange_flags,
};
use files_spec::rpc::Credential;
use files_spec::types::Verifier;
use files_spec::xdr::{List, Opaque};
use files_store::NumberSet;

use crate::execution::Execution;
use crate::limits::{
    CLIENTS_MAX, COURTESY_MS, IDLE_CLIENTS_PER_TICK_MAX, LEASE_MS, SESSIONS_PER_CLIENT_MAX,
};
use crate::refusal::Refusal;
use crate::server::{Now, Server};
use crate::table::Key;

/// Who created a record: the flavor of the credential and the user before squashing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Principal {
    Anonymous,
    User(u32),
}

impl Principal {
    pub(crate) fn of(credential: &Credential<'_>) -> Self {
        match credential {
            Credential::None => Self::Anonymous,
            Credential::Sys(sys) => Self::User(sys.uid),
        }
    }
}

/// What CREATE_SESSION answered last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastCreation {
    /// Nothing was created yet. A retransmission cannot exist.
    None,
    Answered(Result<CreateSessionOk, Status>),
}

/// A client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) owner: Box<[u8]>,
    /// Where its latest request came from.
    pub(crate) address: IpAddr,
    verifier: Verifier,
    principal: Principal,
    /// Whether it has created a session; others have no state.
    pub(crate) is_confirmed: bool,
    /// The next sequence number of CREATE_SESSION.
    sequence: u32,
    last_creation: LastCreation,
    /// When its lease was renewed.
    pub(crate) renewed_ms: u64,
    pub(crate) sessions: Vec<Key>,
    /// Its open and lock states.
    pub(crate) states: NumberSet<Key>,
    /// Whether it has nothing to reclaim any more.
    pub(crate) has_reclaimed: bool,
    /// Whether it is among those that may reclaim after a restart.
    pub(crate) is_recorded: bool,
}

impl Client {
    /// Whether its lease has expired. Its state remains until another client needs it.
    pub(crate) fn is_expired(&self, now: &Now) -> bool {
        now.monotonic_ms.saturating_sub(self.renewed_ms) > LEASE_MS
    }
}

impl Client {
    /// Whether it has opens or locks.
    pub(crate) fn has_state(&self) -> bool {
        !self.states.is_empty()
    }

    /// Whether it has to be recorded before it is told of what it has.
    #[inline]
    pub(crate) fn needs_record(&self) -> bool {
        self.has_reclaimed && !self.is_recorded && !self.states.is_empty()
    }
}

impl Server {
    /// EXCHANGE_ID (RFC 8881 §18.35).
    pub(crate) fn exchange_id(
        &mut self,
        x: &mut Execution,
        args: &ExchangeIdArgs<'_>,
        now: &Now,
    ) -> Result<(), Refusal> {
        let principal = x.header.principal;
        let known = match x.minor_version {
            1 => exchange_flags::REQUEST_MASK,
            _ => exchange_flags::REQUEST_MASK | exchange_flags::SUPP_FENCE_OPS,
        };
        if args.flags & !known != 0 {
            return Err(Status::INVAL.into());
        }
        match args.state_protect {
            ProtectionArgs::None => {}
            // Without RPCSEC_GSS there is no machine credential.
            ProtectionArgs::MachineCredential(_) => return Err(Status::INVAL.into()),
            ProtectionArgs::Ssv(_) => return Err(Status::ENCR_ALG_UNSUPP.into()),
        }
        let key = match args.flags & exchange_flags::UPDATE_CONFIRMED_REC_A != 0 {
            true => self.updated_client(args, principal)?,
            false => self.established_client(args, (principal, x.address), now)?,
        };
        let client = self.clients.get(key).ok_or(Status::SERVERFAULT)?;
        let confirmed = match client.is_confirmed {
            true => exchange_flags::CONFIRMED_R,
            false => 0,
        };
        let identity = &self.identity;
        x.push(&OperationResult::ExchangeId(Outcome::Ok(ExchangeIdOk {
            clientid: key.to_u64(),
            sequenceid: client.sequence,
            flags: exchange_flags::USE_NON_PNFS | confirmed,
            state_protect: ProtectionOk::None,
            server_owner: ServerOwner {
                minor_id: 0,
                major_id: Opaque(identity),
            },
            server_scope: Opaque(identity),
            server_impl_id: List::new(&[]),
        })))
    }

    /// The records of an owner: confirmed and not.
    fn records_of(&self, owner: &[u8]) -> (Option<Key>, Option<Key>) {
        let of_owner = |is_confirmed| {
            let mut all = self.clients.iter();
            let found = all
                .find(|(_, client)| client.is_confirmed == is_confirmed && *client.owner == *owner);
            found.map(|(key, _)| key)
        };
        (of_owner(true), of_owner(false))
    }

    /// Cases 6 to 9 of RFC 8881 §18.35: an update of a confirmed record.
    fn updated_client(
        &mut self,
        args: &ExchangeIdArgs<'_>,
        principal: Principal,
    ) -> Result<Key, Refusal> {
        let (confirmed, _) = self.records_of(args.clientowner.ownerid.0);
        let key = confirmed.ok_or(Status::NOENT)?;
        let client = self.clients.get(key).ok_or(Status::NOENT)?;
        if client.verifier != args.clientowner.verifier {
            return Err(Status::NOT_SAME.into());
        }
        if client.principal != principal {
            return Err(Status::PERM.into());
        }
        Ok(key)
    }

    /// Cases 1 to 5 of RFC 8881 §18.35: a new client, a known one, or one that has restarted.
    fn established_client(
        &mut self,
        args: &ExchangeIdArgs<'_>,
        (principal, address): (Principal, IpAddr),
        now: &Now,
    ) -> Result<Key, Refusal> {
        let owner = args.clientowner.ownerid.0;
        let (confirmed, unconfirmed) = self.records_of(owner);
        if let Some(key) = confirmed
            && let Some(client) = self.clients.get(key)
        {
            let is_same = client.principal == principal;
            if is_same && client.verifier == args.clientowner.verifier {
                return Ok(key);
            }
            if !is_same {
                if !client.states.is_empty() && !client.is_expired(now) {
                    return Err(Status::CLID_INUSE.into());
                }
                self.expire_client(key);
            }
            // The record of a client that has restarted remains until the new one is confirmed.
        }
        if let Some(key) = unconfirmed {
            self.remove_client(key);
        }
        self.make_room_for_client(now)?;
        let client = Client {
            owner: owner.into(),
            address,
            verifier: args.clientowner.verifier,
            principal,
            is_confirmed: false,
            sequence: 1,
            last_creation: LastCreation::None,
            renewed_ms: now.monotonic_ms,
            sessions: Vec::new(),
            states: NumberSet::default(),
            has_reclaimed: false,
            is_recorded: false,
        };
        Ok(self.clients.insert(client).ok_or(Status::DELAY)?)
    }

    /// Removes the client of the longest silence that is not confirmed or whose lease has expired,
    /// if all places are taken.
    ///
    /// # Errors
    /// `NFS4ERR_DELAY` if every client is in use.
    fn make_room_for_client(&mut self, now: &Now) -> Result<(), Refusal> {
        if self.clients.len() < CLIENTS_MAX {
            return Ok(());
        }
        let unused = self.clients.iter();
        let unused = unused.filter(|(_, it)| !it.is_confirmed || it.is_expired(now));
        let oldest = unused.min_by_key(|(_, it)| (it.is_confirmed, it.renewed_ms));
        let (key, _) = oldest.ok_or(Status::DELAY)?;
        self.expire_client(key);
        Ok(())
    }

    /// CREATE_SESSION (RFC 8881 §18.36).
    pub(crate) fn create_session(
        &mut self,
        x: &mut Execution,
        args: &CreateSessionArgs<'_>,
        now: &Now,
    ) -> Result<(), Refusal> {
        let key = Key::from_u64(args.clientid);
        let client = self.clients.get(key).ok_or(Status::STALE_CLIENTID)?;
        if !client.is_confirmed && client.is_expired(now) {
            // RFC 8881 §18.35: it was to be confirmed within a lease.
            self.expire_client(key);
            return Err(Status::STALE_CLIENTID.into());
        }
        let is_repeated = client.sequence.wrapping_sub(1) == args.sequence;
        match client.last_creation {
            _ if client.sequence == args.sequence => {}
            // It had no effect, and its repetition has none. Clients that have corrected the
            // arguments differ in whether they count it.
            LastCreation::Answered(Err(Status::INVAL | Status::TOOSMALL)) if is_repeated => {}
            LastCreation::Answered(answer) if is_repeated => {
                return x.push(&OperationResult::CreateSession(Outcome::Ok(answer?)));
            }
            _ => return Err(Status::SEQ_MISORDERED.into()),
        }
        // RFC 8881 §18.36: the principal matters for the confirmation only.
        if !client.is_confirmed && client.principal != x.header.principal {
            return Err(Status::CLID_INUSE.into());
        }
        let answer = self.created_session(key, args, now);
        if let Some(client) = self.clients.get_mut(key) {
            client.sequence = args.sequence.wrapping_add(1);
            client.last_creation = LastCreation::Answered(answer);
        }
        x.push(&OperationResult::CreateSession(Outcome::Ok(answer?)))
    }

    fn created_session(
        &mut self,
        key: Key,
        args: &CreateSessionArgs<'_>,
        now: &Now,
    ) -> Result<CreateSessionOk, Status> {
        let client = self.clients.get(key).ok_or(Status::STALE_CLIENTID)?;
        if client.sessions.len() >= SESSIONS_PER_CLIENT_MAX {
            return Err(Status::NOSPC);
        }
        let has_sessions = |it: &Client| !it.sessions.is_empty();
        // Without, it gets fewer slots, or the error.
        self.make_room(key, now, has_sessions, |it| it.has_room_for_session(args));
        let (created, session) = self.new_session(key, args)?;
        let client = self.clients.get(key).ok_or(Status::STALE_CLIENTID)?;
        let (previous, _) = self.records_of(&client.owner);
        let Some(client) = self.clients.get_mut(key) else {
            return Err(Status::STALE_CLIENTID);
        };
        client.sessions.push(session);
        client.renewed_ms = now.monotonic_ms;
        client.is_confirmed = true;
        if let Some(previous) = previous.filter(|it| *it != key) {
            // The client has restarted: its earlier instance has no state any more.
            self.remove_client(previous);
        }
        Ok(created)
    }

    /// DESTROY_CLIENTID (RFC 8881 §18.50).
    pub(crate) fn destroy_client(&mut self, x: &mut Execution, number: u64) -> Result<(), Refusal> {
        let key = Key::from_u64(number);
        let client = self.clients.get(key).ok_or(Status::STALE_CLIENTID)?;
        if !client.sessions.is_empty() || !client.states.is_empty() {
            return Err(Status::CLIENTID_BUSY.into());
        }
        self.remove_client(key);
        x.push(&OperationResult::DestroyClientId(Outcome::Ok(())))
    }

    /// Removes a client with its sessions, opens and locks.
    pub(crate) fn remove_client(&mut self, key: Key) {
        let Some(client) = self.clients.remove(key) else {
            return;
        };
        if client.has_reclaimed {
            self.records.remove(&client.owner);
        }
        for session in client.sessions {
            self.forget_session(session);
        }
        for state in client.states {
            self.drop_state(state);
        }
    }

    /// Removes clients whose lease has expired, the longest silent first, of those that hold something,
    /// until `own` has room for more of it. Returns whether it has.
    pub(crate) fn make_room(
        &mut self,
        own: Key,
        now: &Now,
        holds: impl Fn(&Client) -> bool,
        has_room: impl Fn(&Self) -> bool,
    ) -> bool {
        while !has_room(self) {
            let others = self.clients.iter().filter(|(key, _)| *key != own);
            let expired = others.filter(|(_, it)| it.is_expired(now) && holds(it));
            let Some((key, _)) = expired.min_by_key(|(_, it)| it.renewed_ms) else {
                return false;
            };
            self.expire_client(key);
        }
        true
    }

    /// Removes a client whose lease has expired, or which never had one.
    pub(crate) fn expire_client(&mut self, key: Key) {
        self.counters.clients_expired.add(1);
        self.remove_client(key);
    }

    /// Removes clients that have been silent for too long: a limited number in a call, and one with
    /// opens or locks, which may be many.
    pub(crate) fn expire_clients(&mut self, now: &Now) {
        let too_old = |it: &Client| {
            let silent = now.monotonic_ms.saturating_sub(it.renewed_ms);
            // Without state, there is nothing to be courteous about.
            silent > COURTESY_MS || silent > LEASE_MS && it.states.is_empty()
        };
        let found = self.clients.iter().filter(|(_, it)| too_old(it));
        let (idle, holding): (Vec<_>, Vec<_>) = found
            .map(|(key, it)| (key, it.states.is_empty()))
            .partition(|(_, is_idle)| *is_idle);
        let idle = idle.into_iter().take(IDLE_CLIENTS_PER_TICK_MAX);
        for (key, _) in idle.chain(holding.into_iter().take(1)) {
            self.expire_client(key);
        }
    }
}
