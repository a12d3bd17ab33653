//! Hand-over of a simulated appliance to a new process (`ARCHITECTURE.md` §9.1): the messages and the
//! stored form are those of the appliance; streams, listening sockets and the memory of RAM devices
//! pass as further handles.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use appliance::headless::{Continued, EventLoop, NoResponse};
use appliance_config::Config;
use nvme_handover::{State, TcpPhase};
use nvme_target::{AnaState, Target};
use nvme_tcp::{Exported, HandoverMessage, NotReady, PassedConnection};
use reactors::Nanos;
use reactors::sim::Simulation;

use super::Appliance;
use super::listening::TcpListening;
use crate::environment::Environment;
use crate::network::TargetStream;
use crate::time::SharedTime;

/// Turns in which reactors answer a message.
const TURNS_MAX: u32 = 10_000;
/// Longest virtual time between the export of the old process and that of the new one.
const RESTORED_WITHIN: Nanos = Nanos::from_millis(1);

/// What the old process passes to the new one.
pub struct Passed {
    pub(super) config: Config,
    pub(super) continued: Continued,
    /// Devices whose reservations are not stored, because they were added to the running appliance.
    pub(super) without_store: BTreeSet<String>,
    /// Another handle of each stream, in the order of the records.
    streams: Vec<TargetStream>,
    bytes: Vec<u8>,
}

/// A new process that has restored the state and does not serve yet.
pub struct Successor {
    appliance: Appliance,
    state: Arc<State>,
}

impl Passed {
    /// The same with a state that no process of this configuration continues.
    ///
    /// # Errors
    /// The state cannot be read or stored.
    pub fn with_wrong_state(self) -> Result<Self, String> {
        let mut state =
            nvme_handover_format::decode(&self.bytes).map_err(|error| error.to_string())?;
        state.target.transfer_max_bytes = u32::MAX;
        let bytes = nvme_handover_format::encode(&state).map_err(|error| error.to_string())?;
        Ok(Self { bytes, ..self })
    }
}

/// The old process: its reactors, while the world goes on.
pub struct HandingOver {
    listening: Arc<TcpListening>,
    target: Arc<Target>,
    config: Config,
    continued: Continued,
    time: SharedTime,
}

impl HandingOver {
    /// Lets new connections wait in the kernel, or be accepted again.
    pub fn set_paused(&self, paused: bool) {
        for listener in &self.listening.sim_listeners {
            listener.set_paused(paused);
        }
    }

    /// Makes the reactors complete their requests and admit no other.
    ///
    /// # Errors
    /// A reactor does not answer.
    pub fn hold(&self, event_loop: &mut dyn EventLoop) -> Result<(), String> {
        let messages = &self.listening.port_messages;
        let held = messages.hand_over(event_loop, |_, reply| HandoverMessage::Hold { reply });
        held.map(drop).map_err(|error| error.to_string())
    }

    /// Ends the hold.
    ///
    /// # Errors
    /// A reactor does not answer.
    pub fn resume(&self, event_loop: &mut dyn EventLoop) -> Result<(), String> {
        let messages = &self.listening.port_messages;
        let resumed = messages.hand_over(event_loop, |_, reply| HandoverMessage::Resume { reply });
        resumed.map(drop).map_err(|error| error.to_string())
    }

    /// The state, or `None` if something is not complete; then the connections are to be held again
    /// or resumed.
    ///
    /// # Errors
    /// A reactor does not answer, or the state cannot be stored.
    pub fn export(&self, event_loop: &mut dyn EventLoop) -> Result<Option<Passed>, String> {
        let messages = &self.listening.port_messages;
        let exported = messages.hand_over(event_loop, |_, reply| HandoverMessage::Export { reply });
        let exported = exported.map_err(|error| error.to_string())?;
        let Some((mut state, streams)) = whole(exported)? else {
            return Ok(None);
        };
        // A change is not complete.
        let Ok(target) = self.target.export(self.time.now()) else {
            return Ok(None);
        };
        state.target = target;
        let bytes = nvme_handover_format::encode(&state).map_err(|error| error.to_string())?;
        let reservations = state.target.reservations.into_iter();
        let volatile = reservations.filter(|it| it.identity == [0; 16]);
        Ok(Some(Passed {
            config: self.config.clone(),
            continued: self.continued.clone(),
            without_store: volatile.map(|it| it.device).collect(),
            streams,
            bytes,
        }))
    }
}

/// The parts of all reactors.
fn whole(
    exported: Vec<Result<Exported<TargetStream>, NotReady>>,
) -> Result<Option<(State, Vec<TargetStream>)>, String> {
    let (mut all, mut streams) = (State::default(), Vec::new());
    for part in exported {
        match part {
            Ok(Exported {
                mut state,
                streams: its,
            }) => {
                all.cores.append(&mut state.cores);
                all.controllers.append(&mut state.controllers);
                all.queues.append(&mut state.queues);
                all.tcp_connections.append(&mut state.tcp_connections);
                streams.extend(its);
            }
            Err(NotReady::Connections(_) | NotReady::Target(_)) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(Some((all, streams)))
}

/// The connections for each reactor.
type Distributed = Vec<Vec<PassedConnection<TargetStream>>>;

/// Those without an I/O queue, and those with one.
fn distribute(state: &State, streams: Vec<TargetStream>, reactors: usize) -> [Distributed; 2] {
    let empty = || (0..reactors).map(|_| Vec::new()).collect();
    let mut distributed: [Distributed; 2] = [empty(), empty()];
    for (record, stream) in streams.into_iter().enumerate() {
        let connection = &state.tcp_connections[record];
        let is_io = matches!(connection.phase, TcpPhase::Serving { qid, .. } if qid > 0);
        let its = &mut distributed[usize::from(is_io)][connection.reactor as usize];
        its.push(PassedConnection { record, stream });
    }
    distributed
}

/// The event loop of a new process, of which only the reactors run.
struct Turns<'s> {
    simulation: &'s mut Simulation,
    began: Instant,
    turns: u32,
}

impl EventLoop for Turns<'_> {
    fn now(&self) -> Instant {
        // Waits end if reactors do not answer.
        let seconds = if self.turns > TURNS_MAX { 1 << 20 } else { 0 };
        self.began + Duration::from_secs(seconds)
    }

    fn run_once(&mut self) {
        self.turns += 1;
        let _ = self.simulation.round();
    }

    fn pause(&self) -> Duration {
        Duration::ZERO
    }

    fn run(&mut self, work: &mut (dyn FnMut() + Send)) -> bool {
        work();
        true
    }
}

/// The state without what differs between two exports of the same state.
fn comparable(mut state: State) -> State {
    state.target.exported_at_ns = 0;
    for subsystem in &mut state.target.subsystems {
        // Optimized is the state of groups without one.
        let default = AnaState::default().name();
        subsystem.ana_states.retain(|it| it.state != default);
    }
    let reservations = &mut state.target.reservations;
    reservations.sort_by(|one, other| one.device.cmp(&other.device));
    state.cores.sort_by_key(|it| it.reactor);
    for core in &mut state.cores {
        core.devices
            .sort_by(|one, other| one.device.cmp(&other.device));
    }
    state.controllers.sort_by_key(|it| it.controller_id);
    state.queues.sort_by_key(|it| (it.controller_id, it.qid));
    // Connections without a queue have no other name.
    state
        .tcp_connections
        .sort_by_cached_key(|it| format!("{it:?}"));
    state
}

/// Adapts the times of a state to those of a later export, where the difference is small.
fn let_time_pass(given: &mut State, found: &State) {
    let adapt = |given: &mut u64, found: u64| {
        if given.abs_diff(found) <= RESTORED_WITHIN.as_nanos() {
            *given = found;
        }
    };
    let adapt_option = |given: &mut Option<u64>, found: Option<u64>| {
        if let (Some(given), Some(found)) = (given, found) {
            adapt(given, found);
        }
    };
    for (given, found) in given.controllers.iter_mut().zip(&found.controllers) {
        let (features, of_found) = (&mut given.features, &found.features);
        adapt(&mut features.timestamp_age_ns, of_found.timestamp_age_ns);
        adapt(&mut given.idle_ns, found.idle_ns);
        let (keep_alive, of_found) = (
            &mut given.keep_alive_remaining_ns,
            found.keep_alive_remaining_ns,
        );
        adapt_option(keep_alive, of_found);
        adapt_option(&mut given.health_remaining_ns, found.health_remaining_ns);
    }
    for (given, found) in given.queues.iter_mut().zip(&found.queues) {
        let both = given
            .authentication
            .as_mut()
            .zip(found.authentication.as_ref());
        if let Some((given, found)) = both {
            adapt(&mut given.age_ns, found.age_ns);
        }
    }
}

/// Expects another generation of the discovery log if its order is another one.
fn let_order_change(given: &mut State, found: &mut State) {
    let subsystems = |state: &State| -> Vec<String> {
        let all = state.target.subsystems.iter();
        all.map(|it| it.nqn.clone()).collect()
    };
    let is_reordered = subsystems(given) != subsystems(found);
    given.target.discovery_generation += u64::from(is_reordered);
    for state in [given, found] {
        let subsystems = &mut state.target.subsystems;
        subsystems.sort_by(|one, other| one.nqn.cmp(&other.nqn));
    }
}

/// Removes what the new process has sent since it was restored. It sends on while it is held.
fn let_data_leave(given: &mut State, found: &State) {
    let connections = given.tcp_connections.iter_mut();
    for (given, found) in connections.zip(&found.tcp_connections) {
        if given.unsent.0.ends_with(&found.unsent.0) {
            given.unsent.clone_from(&found.unsent);
        }
    }
}

/// The first line in which two states differ, with the record that it belongs to.
fn difference(given: &State, found: &State) -> Option<String> {
    if given == found {
        return None;
    }
    let (given, found) = (format!("{given:#?}"), format!("{found:#?}"));
    let (mut record, mut field) = ("", "");
    for (given, found) in given.lines().zip(found.lines()) {
        if given != found {
            let (given, found) = (given.trim(), found.trim());
            return Some(format!("{found} instead of {given} in {field} {record}"));
        }
        let is_name = given.contains("controller_id: ") || given.ends_with("Record {");
        record = if is_name { given.trim() } else { record };
        field = if given.contains(": ") {
            given.trim()
        } else {
            field
        };
    }
    Some("more or less records than it was given".to_owned())
}

impl Successor {
    /// Lets it serve, after the end of `old`.
    ///
    /// # Errors
    /// A state is lost.
    pub fn serve(self, old: Appliance) -> Result<Appliance, String> {
        let Self {
            mut appliance,
            state,
        } = self;
        let now = old.time.now();
        appliance.simulation.clock().advance_to(now);
        appliance.compare(&state)?;
        let leases = old.end();
        if leases > 0 {
            return Err(format!(
                "{leases} leases are not returned by the old process"
            ));
        }
        appliance.with_turns(|listening, turns| {
            let messages = &listening.port_messages;
            messages.hand_over(turns, |_, reply| HandoverMessage::Resume { reply })
        })?;
        Ok(appliance)
    }

    /// Ends it before it serves.
    ///
    /// # Errors
    /// It keeps leases.
    pub fn end(self) -> Result<(), String> {
        match self.appliance.end() {
            0 => Ok(()),
            leases => Err(format!(
                "{leases} leases are not returned by a new process that ends"
            )),
        }
    }
}

impl Appliance {
    /// What hands over this appliance, unless a change of the configuration is in progress.
    #[must_use]
    pub fn handing_over(&self) -> Option<HandingOver> {
        let control = self.control.as_ref()?;
        Some(HandingOver {
            listening: Arc::clone(&self.tcp_listening),
            target: Arc::clone(&self.target),
            config: control.config().clone(),
            continued: control.continued(),
            time: self.time.clone(),
        })
    }

    /// Starts a new process with what this one has passed. It is held.
    ///
    /// # Errors
    /// The new process refuses.
    pub fn start_successor(
        &self,
        seed: u64,
        env: &Environment,
        passed: Passed,
    ) -> Result<Successor, String> {
        let mut new = Self::start_with(seed, env, Some(&passed))?;
        new.set_other_ana_states(&self.target)?;
        let Passed { bytes, streams, .. } = passed;
        let state = nvme_handover_format::decode(&bytes).map_err(|error| error.to_string())?;
        let state = Arc::new(state);
        let restored = new.target.restore(&state);
        restored.map_err(|error| error.to_string())?;
        new.restore(&state, streams)?;
        Ok(Successor {
            appliance: new,
            state,
        })
    }

    /// Sets the states of groups without namespaces, which the control plane does not know.
    fn set_other_ana_states(&self, old: &Target) -> Result<(), String> {
        for subsystem in &old.configuration().subsystems {
            let its = subsystem.namespaces.iter();
            let groups: BTreeSet<u32> = its.map(|it| it.ana_group).collect();
            let states = subsystem.ana_states.iter();
            let others = states.filter(|(path, _)| !groups.contains(&path.group));
            let others = others.map(|(path, state)| (*path, *state));
            let others: BTreeMap<_, AnaState> = others.collect();
            if !others.is_empty() {
                let set = self.target.set_ana_states(&subsystem.nqn, &others);
                set.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    fn restore(&mut self, state: &Arc<State>, streams: Vec<TargetStream>) -> Result<(), String> {
        let unsent = state.tcp_connections.iter().map(|it| it.unsent.0.len());
        self.unsent = streams.iter().map(TargetStream::id).zip(unsent).collect();
        let distributed = distribute(state, streams, self.target.reactors());
        self.with_turns(|listening, turns| {
            let state = || Arc::clone(state);
            let begin = |_, reply| HandoverMessage::Begin {
                state: state(),
                reply,
            };
            listening.port_messages.hand_over(turns, begin)
        })?;
        for mut connections in distributed {
            let restored = self.with_turns(|listening, turns| {
                let restore = |reactor: usize, reply| HandoverMessage::Restore {
                    state: Arc::clone(state),
                    connections: std::mem::take(&mut connections[reactor]),
                    reply,
                };
                listening.port_messages.hand_over(turns, restore)
            })?;
            let restored: Result<(), _> = restored.into_iter().collect();
            restored.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Checks that the new process has the state that it was given.
    fn compare(&mut self, state: &State) -> Result<(), String> {
        self.with_turns(|listening, turns| {
            let messages = &listening.port_messages;
            messages.hand_over(turns, |_, reply| HandoverMessage::Hold { reply })
        })?;
        let exported = self.with_turns(|listening, turns| {
            let messages = &listening.port_messages;
            messages.hand_over(turns, |_, reply| HandoverMessage::Export { reply })
        })?;
        let restored = whole(exported)?;
        let (mut restored, _) = restored.ok_or("a restored process is not quiet")?;
        let exported = self.target.export(self.time.now());
        restored.target = exported.map_err(|error| error.to_string())?;
        let (mut given, mut found) = (comparable(state.clone()), comparable(restored));
        let_order_change(&mut given, &mut found);
        let_time_pass(&mut given, &found);
        let_data_leave(&mut given, &found);
        match difference(&given, &found) {
            Some(difference) => Err(format!("the new process has {difference}")),
            None => Ok(()),
        }
    }

    /// Sends messages to the reactors, which run meanwhile.
    fn with_turns<T>(
        &mut self,
        send: impl FnOnce(&TcpListening, &mut dyn EventLoop) -> Result<T, NoResponse>,
    ) -> Result<T, String> {
        let mut turns = Turns {
            simulation: &mut self.simulation,
            began: Instant::now(),
            turns: 0,
        };
        send(&self.tcp_listening, &mut turns).map_err(|error| error.to_string())
    }
}
