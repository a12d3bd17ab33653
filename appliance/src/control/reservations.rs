//! `GET /api/v1/reservations`, `POST /api/v1/reservations/clear` and `POST /api/v1/hosts/evict`.
//!
//! A request is checked completely before anything is changed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use appliance_config::{Export, Uuid};
use axum::Extension;
use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use axum::response::Response;
use nvme_reservations::{HostIdentifier, ReservationKind};
use nvme_target::{
    ControllerKind, DeviceIndex, EvictedAssociations, HostName, ReservationError, Target,
};
use tokio::time::{Instant, sleep};

use super::audited::{Outcome, with_outcome};
use super::limits::{COMMANDS_POLL_INTERVAL, HOST_COMMANDS_TIME_MAX};
use super::responses::{Refused, refusal};
use super::routes::{Audience, ControlState};
use crate::observe::model::{
    ClearAnswer, ClearRequest, DeviceReservations, EvictAnswer, EvictRequest, RegistrantStatus,
    ReservationWord, Severity,
};
use crate::observe::pseudonyms::Pseudonyms;

/// The result of a change of one device's reservations.
type Change = Receiver<Result<(), ReservationError>>;

pub(super) async fn list(
    State(shared): State<Arc<ControlState>>,
    Extension(audience): Extension<Audience>,
) -> Response {
    let target = shared.observatory().target();
    let with_keys = audience == Audience::Operators;
    let pseudonyms = shared.pseudonyms(audience);
    shared
        .room
        .json(&reservations(&target, pseudonyms, with_keys))
}

/// The reservations of each open device, with pseudonyms for hosts, if given, and with their host
/// identifiers and keys or without.
fn reservations(
    target: &Target,
    pseudonyms: Option<&Pseudonyms>,
    with_keys: bool,
) -> Vec<DeviceReservations> {
    let states = target.reservations();
    let controllers = target.snapshot().controllers;
    let hosts_of = |host: HostIdentifier| -> Vec<String> {
        let of_host = controllers.iter().filter(|it| it.host_id == host.0);
        let of_host = of_host.filter(|it| it.kind == ControllerKind::Io);
        let names: BTreeSet<&str> = of_host.map(|it| it.host_nqn.as_str()).collect();
        let shown = |nqn: &str| match pseudonyms {
            Some(pseudonyms) => pseudonyms.host(nqn),
            None => nqn.to_owned(),
        };
        names.into_iter().map(shown).collect()
    };
    let of_device = |(index, device): (DeviceIndex, Arc<dyn block::Device>)| {
        let state = states.iter().find(|it| it.device == index);
        let registrants = state.map_or(&[][..], |state| &state.registrants);
        DeviceReservations {
            device: device.name().to_owned(),
            kind: state.and_then(|state| state.kind).map(word),
            persists: state.is_some_and(|state| state.persists),
            damaged: state.is_some_and(|state| state.is_unknown),
            registrants: registrants
                .iter()
                .map(|it| RegistrantStatus {
                    host_id: with_keys.then(|| it.host.to_string()),
                    key: with_keys.then(|| format!("{:#018x}", it.key)),
                    holder: it.is_holder,
                    hosts: hosts_of(it.host),
                })
                .collect(),
        }
    };
    target.devices().into_iter().map(of_device).collect()
}

fn word(kind: ReservationKind) -> ReservationWord {
    match kind {
        ReservationKind::WriteExclusive => ReservationWord::WriteExclusive,
        ReservationKind::ExclusiveAccess => ReservationWord::ExclusiveAccess,
        ReservationKind::WriteExclusiveRegistrantsOnly => {
            ReservationWord::WriteExclusiveRegistrantsOnly
        }
        ReservationKind::ExclusiveAccessRegistrantsOnly => {
            ReservationWord::ExclusiveAccessRegistrantsOnly
        }
        ReservationKind::WriteExclusiveAllRegistrants => {
            ReservationWord::WriteExclusiveAllRegistrants
        }
        ReservationKind::ExclusiveAccessAllRegistrants => {
            ReservationWord::ExclusiveAccessAllRegistrants
        }
    }
}

pub(super) async fn clear(
    State(shared): State<Arc<ControlState>>,
    request: Result<Json<ClearRequest>, JsonRejection>,
) -> Response {
    let name = match request {
        Ok(Json(request)) => request.device,
        Err(error) => return refusal(error.status(), error.body_text()),
    };
    let target = shared.observatory().target();
    let devices = target.devices();
    let found = devices.iter().find(|(_, device)| device.name() == name);
    let Some((index, _)) = found else {
        let text = format!("device {name} is not open: `windlass status` lists the devices");
        return refusal(StatusCode::NOT_FOUND, text);
    };
    let states = target.reservations();
    let state = states.iter().find(|it| it.device == *index);
    let text = match state {
        Some(state) if state.is_unknown => {
            "the damaged state is replaced by an empty one: register the hosts that shared the \
             device again"
                .to_owned()
        }
        Some(state) => format!("{} registrant(s) removed", state.registrants.len()),
        None => "there was no registrant".to_owned(),
    };
    let change = target.clear_reservations(*index);
    drop(devices);
    let deadline = Instant::now() + HOST_COMMANDS_TIME_MAX;
    match result_of(change, deadline).await {
        Ok(()) => {
            let event = "its reservations were cleared by an operator";
            let observatory = shared.observatory();
            let events = observatory.events();
            events.add(Severity::Warning, "device", &name, event);
            drop(observatory);
            tracing::warn!("device {name}: {event}: {text}");
            let outcome = Outcome::Changed(format!("device {name}: {text}"));
            let answer = ClearAnswer { device: name, text };
            with_outcome(shared.room.json(&answer), outcome)
        }
        Err((status, error)) => {
            let text = format!("device {name}: its reservations are not cleared: {error}");
            refusal(status, text)
        }
    }
}

/// Waits for the result of a change.
async fn result_of(change: Change, deadline: Instant) -> Result<(), Refused> {
    loop {
        match change.try_recv() {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(ReservationError::NotStored)) => {
                let text = "the changed state could not be stored: the log names the file and the \
                            error: make its directory writable or free space, and try again";
                return Err((StatusCode::INTERNAL_SERVER_ERROR, text.to_owned()));
            }
            Ok(Err(error)) => return Err((StatusCode::CONFLICT, error.to_string())),
            Err(TryRecvError::Disconnected) => {
                let text = "the appliance is stopping: try again".to_owned();
                return Err((StatusCode::SERVICE_UNAVAILABLE, text));
            }
            Err(TryRecvError::Empty) if Instant::now() >= deadline => return Err(late()),
            Err(TryRecvError::Empty) => sleep(COMMANDS_POLL_INTERVAL).await,
        }
    }
}

/// Waits until the commands of ended associations have left the devices.
pub(super) async fn await_end(
    target: &Target,
    ended: &[EvictedAssociations],
    deadline: Instant,
) -> Result<(), Refused> {
    while !ended.iter().all(|it| target.is_evicted(it)) {
        if Instant::now() >= deadline {
            return Err(late());
        }
        sleep(COMMANDS_POLL_INTERVAL).await;
    }
    Ok(())
}

fn late() -> Refused {
    let text = format!(
        "commands have not left the devices, or a state was not stored, within \
         {HOST_COMMANDS_TIME_MAX:?}: check the devices with `windlass status`, and repeat the \
         command to wait again"
    );
    (StatusCode::REQUEST_TIMEOUT, text)
}

/// A host to evict, and the parts of the appliance that know it.
struct Eviction {
    host: HostName,
    exports: Vec<String>,
    /// The devices of the exports.
    devices: Vec<(DeviceIndex, String)>,
    identifiers: BTreeSet<HostIdentifier>,
    /// Names of the devices with which the host is registered.
    registered: Vec<String>,
}

pub(super) async fn evict(
    State(shared): State<Arc<ControlState>>,
    request: Result<Json<EvictRequest>, JsonRejection>,
) -> Response {
    let request = match request {
        Ok(Json(request)) => request,
        Err(error) => return refusal(error.status(), error.body_text()),
    };
    let (target, config) = {
        let observatory = shared.observatory();
        (observatory.target(), observatory.config())
    };
    let eviction = match Eviction::plan(&request, &config.exports, &target) {
        Ok(eviction) => eviction,
        Err((status, error)) => return refusal(status, error),
    };
    let host = request.host;
    let (associations, outcome) = eviction.carry_out(&target).await;
    let registered = eviction.registered;
    let done = format!(
        "{associations} association(s) ended, unregistered from {} device(s)",
        registered.len()
    );
    let observatory = shared.observatory();
    observatory.events().add_of_host(
        Severity::Warning,
        &host,
        "was evicted by an operator",
        &format!("({done})"),
    );
    drop(observatory);
    tracing::warn!("host {host} was evicted by an operator: {done}");
    match outcome {
        Ok(()) => {
            let text = format!(
                "{done}. It may connect and register again, unless `hosts` of the export no \
                 longer lists it"
            );
            let outcome = Outcome::Changed(format!("host {host}: {done}"));
            let answer = EvictAnswer {
                host,
                associations,
                unregistered: registered,
                text,
            };
            with_outcome(shared.room.json(&answer), outcome)
        }
        Err((status, error)) => {
            let text = format!("host {host}: {associations} association(s) ended, but {error}");
            refusal(status, text)
        }
    }
}

impl Eviction {
    /// Checks a request.
    fn plan(request: &EvictRequest, exports: &[Export], target: &Target) -> Result<Self, Refused> {
        let name = &request.host;
        let host = parse_host(name).map_err(|text| (StatusCode::UNPROCESSABLE_ENTITY, text))?;
        let is_meant = |export: &&Export| {
            let wanted = request.export.as_deref();
            wanted.is_none_or(|wanted| export.nqn.as_str() == wanted)
        };
        let exports: Vec<&Export> = exports.iter().filter(is_meant).collect();
        if let (Some(export), []) = (&request.export, &exports[..]) {
            let text =
                format!("export {export} does not exist: `windlass status` lists the exports");
            return Err((StatusCode::NOT_FOUND, text));
        }
        let namespaces = exports.iter().flat_map(|export| &export.namespaces);
        let used: BTreeSet<&str> = namespaces.map(|it| it.device.as_str()).collect();
        let devices = target.devices().into_iter();
        let devices = devices.map(|(index, device)| (index, device.name().to_owned()));
        let devices: Vec<_> = devices.filter(|(_, name)| used.contains(&**name)).collect();
        let exports: Vec<String> = exports
            .iter()
            .map(|it| it.nqn.as_str().to_owned())
            .collect();
        let snapshot = target.snapshot();
        let associations = snapshot.controllers.iter().filter(|it| {
            let is_host = match &host {
                HostName::Nqn(nqn) => it.host_nqn == *nqn,
                HostName::Identifier(identifier) => it.host_id == identifier.0,
            };
            is_host && it.kind == ControllerKind::Io && exports.contains(&it.subsystem_nqn)
        });
        let mut identifiers: BTreeSet<HostIdentifier> =
            associations.map(|it| HostIdentifier(it.host_id)).collect();
        let is_connected = !identifiers.is_empty();
        if let HostName::Identifier(identifier) = &host {
            identifiers.insert(*identifier);
        }
        let states = target.reservations();
        let has_host = |index: DeviceIndex| {
            let state = states.iter().find(|it| it.device == index);
            let mut registrants = state.into_iter().flat_map(|it| &it.registrants);
            registrants.any(|it| identifiers.contains(&it.host))
        };
        let registered = devices.iter().filter(|(index, _)| has_host(*index));
        let registered: Vec<String> = registered.map(|(_, name)| name.clone()).collect();
        if !is_connected && registered.is_empty() {
            let text = format!(
                "host {name} is neither connected nor registered there: `windlass status` and \
                 `windlass reservations` list the hosts; one that is not connected is known only \
                 by its identifier"
            );
            return Err((StatusCode::NOT_FOUND, text));
        }
        Ok(Self {
            host,
            exports,
            devices,
            identifiers,
            registered,
        })
    }

    /// Ends the associations, then unregisters the host, so that no command of an ended association
    /// registers it again. Returns the number of associations, and whether its commands have ended.
    async fn carry_out(&self, target: &Target) -> (usize, Result<(), Refused>) {
        // An export that was removed meanwhile has no associations.
        let ended = self.exports.iter();
        let ended = ended.filter_map(|nqn| target.evict_host(nqn, &self.host).ok());
        let ended: Vec<EvictedAssociations> = ended.collect();
        let mut changes = Vec::new();
        for (index, device) in &self.devices {
            for identifier in self.identifiers.iter().filter(|it| !it.is_zero()) {
                changes.push((device, target.evict_registrant(*index, *identifier)));
            }
        }
        let count = ended.iter().map(EvictedAssociations::count).sum();
        let deadline = Instant::now() + HOST_COMMANDS_TIME_MAX;
        for (device, change) in changes {
            match result_of(change, deadline).await {
                // A device that was removed or whose reservations are damaged has no registrant.
                Ok(()) | Err((StatusCode::CONFLICT, _)) => {}
                Err((status, error)) => {
                    let text = format!("device {device} may still have it as registrant: {error}");
                    return (count, Err((status, text)));
                }
            }
        }
        (count, await_end(target, &ended, deadline).await)
    }
}

/// The host that an operator names.
fn parse_host(text: &str) -> Result<HostName, String> {
    if text.starts_with("nqn.") {
        return Ok(HostName::Nqn(text.to_owned()));
    }
    match text.parse::<Uuid>() {
        Ok(uuid) if uuid.is_nil() => Err(format!(
            "host {text}: the identifier zero identifies no host: give the host's NQN"
        )),
        Ok(uuid) => Ok(HostName::Identifier(HostIdentifier(*uuid.as_bytes()))),
        Err(_) => Err(format!(
            "host {text} is neither a host NQN nor a host identifier: `windlass status` and \
             `windlass reservations` list both"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each result of a change has a status and a text; a wait ends at its deadline.
    #[test]
    fn results_of_changes_are_explained() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime");
        let wait = |result: Option<Result<(), ReservationError>>, is_removed: bool| {
            let (sender, change) = std::sync::mpsc::channel();
            if let Some(result) = result {
                sender.send(result).expect("the receiver is there");
            }
            if is_removed {
                drop(sender);
                return runtime.block_on(result_of(change, Instant::now()));
            }
            let result = runtime.block_on(result_of(change, Instant::now()));
            drop(sender);
            result
        };
        assert_eq!(wait(Some(Ok(())), false), Ok(()));
        for (result, is_removed, status, text) in [
            (
                None,
                false,
                StatusCode::REQUEST_TIMEOUT,
                "repeat the command",
            ),
            (None, true, StatusCode::SERVICE_UNAVAILABLE, "stopping"),
            (
                Some(Err(ReservationError::NotStored)),
                false,
                StatusCode::INTERNAL_SERVER_ERROR,
                "could not be stored",
            ),
            (
                Some(Err(ReservationError::DeviceRemoved)),
                false,
                StatusCode::CONFLICT,
                "was removed",
            ),
        ] {
            let (found, error) = wait(result, is_removed).expect_err("it failed");
            assert_eq!(found, status, "{error}");
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn hosts_are_named_by_nqn_or_identifier() {
        let nqn = "nqn.2014-08.org.nvmexpress:uuid:00010203-0405-0607-0809-0a0b0c0d0e0f";
        assert_eq!(parse_host(nqn), Ok(HostName::Nqn(nqn.to_owned())));
        let bytes = std::array::from_fn(|position| position as u8);
        let identifier = HostName::Identifier(HostIdentifier(bytes));
        for text in [
            "00010203-0405-0607-0809-0a0b0c0d0e0f",
            "000102030405060708090A0B0C0D0E0F",
        ] {
            assert_eq!(parse_host(text), Ok(identifier.clone()), "{text}");
        }
        for text in [
            "",
            "host",
            "0001020304050607",
            "00000000-0000-0000-0000-000000000000",
        ] {
            let refused = parse_host(text).expect_err("it is no host");
            assert!(refused.contains(text), "{refused}");
        }
    }
}
