//! From the running configuration to a wanted one: which steps, whether they can be done, and how far
//! they were.
//!
//! What can fail for want of something outside - files, memory, addresses - is had before anything
//! is changed, save where the running configuration still has it.

use std::collections::BTreeMap;
use std::time::Instant;

use appliance_config::{Backing, Config, Device, Effect, Listener, Name, Step, Transport};

use super::Live;
use crate::command_line::with_causes;
use crate::devices::{DeviceError, Opened};
use crate::exports::BoundPort;
use crate::observe::model::{ApplyAnswer, ApplyStep, OutstandingCommands, StepState};

/// How a configuration is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct How {
    /// Only list the steps.
    pub(crate) dry_run: bool,
    /// Do what can be done now even where something waits for a restart.
    pub(crate) partial: bool,
}

/// What was had before anything was changed.
#[derive(Default)]
pub(super) struct Prepared {
    pub(super) devices: BTreeMap<Name, Opened>,
    pub(super) listeners: BTreeMap<Name, BoundPort>,
}

/// One step to go.
struct Planned {
    step: Step,
    /// Why only a restart can do it, where the configuration alone does not say so.
    obstacle: Option<String>,
}

impl Planned {
    fn effect(&self) -> Effect {
        match self.obstacle {
            Some(_) => Effect::Restart,
            None => self.step.effect(),
        }
    }

    fn told(&self, state: StepState) -> ApplyStep {
        let text = match &self.obstacle {
            Some(obstacle) => format!("{}: {obstacle}", self.step),
            None => self.step.to_string(),
        };
        ApplyStep {
            effect: self.effect().word().to_owned(),
            text,
            state,
            error: None,
            cut_off: Vec::new(),
        }
    }
}

impl Live {
    /// Makes the appliance what `wanted` says, and tells how far that went. `tend` is called while
    /// something is waited for.
    pub(crate) fn apply(
        &mut self,
        wanted: &Config,
        how: How,
        tend: &mut dyn FnMut(Instant),
    ) -> ApplyAnswer {
        let plan = self.config.difference(wanted).into_iter();
        let plan: Vec<Planned> = plan
            .map(|step| Planned {
                obstacle: self.obstacle(&step),
                step,
            })
            .collect();
        if how.dry_run {
            return answer(
                plan.iter().map(|it| it.told(StepState::Planned)),
                false,
                None,
            );
        }
        let skipped = |it: &Planned| it.told(StepState::Skipped);
        if let Some(refused) = refusal(&plan, how) {
            return answer(plan.iter().map(skipped), false, Some(refused));
        }
        let is_possible = |it: &Planned| it.effect() != Effect::Restart;
        let (plan, later): (Vec<_>, Vec<_>) = plan.into_iter().partition(is_possible);
        let waits = later.iter().map(skipped);
        let mut prepared = match self.prepare(&plan, tend) {
            Ok(prepared) => prepared,
            Err((failed, error)) => {
                let told = plan.iter().enumerate().map(|(index, it)| {
                    if index == failed {
                        failure(it, error.clone())
                    } else {
                        skipped(it)
                    }
                });
                let refused = "nothing was changed".to_owned();
                return answer(waits.chain(told), false, Some(refused));
            }
        };
        let told = self.carry_out(&plan, &mut prepared, tend);
        self.discard(&prepared);
        let is_done = later.is_empty() && told.iter().all(|it| it.state == StepState::Done);
        answer(waits.chain(told), is_done, None)
    }

    /// Carries the steps out until one fails.
    fn carry_out(
        &mut self,
        plan: &[Planned],
        prepared: &mut Prepared,
        tend: &mut dyn FnMut(Instant),
    ) -> Vec<ApplyStep> {
        let deadline = Instant::now() + self.config.appliance.shutdown_deadline.as_duration();
        let mut told = Vec::new();
        let mut has_failed = false;
        for planned in plan {
            if has_failed {
                told.push(planned.told(StepState::Skipped));
                continue;
            }
            tracing::info!("{}", planned.step);
            match self.step(&planned.step, prepared, deadline, tend) {
                Ok(cut_off) => {
                    for cut in &cut_off {
                        tracing::warn!("cut off at the deadline: {cut}");
                    }
                    told.push(ApplyStep {
                        cut_off,
                        ..planned.told(StepState::Done)
                    });
                }
                Err(error) => {
                    tracing::error!("{}: {error}", planned.step);
                    told.push(failure(planned, error));
                    has_failed = true;
                }
            }
            tend(Instant::now());
        }
        told
    }

    /// Why a step takes a restart although it would not everywhere.
    fn obstacle(&self, step: &Step) -> Option<String> {
        match step {
            Step::AddDevice(device) if matches!(device.backing, Backing::Nvme(_)) => {
                Some("drives are taken at start".to_owned())
            }
            Step::AddListener(listener) if self.transport(listener.transport).is_none() => {
                let reason = "there was no listener of RDMA at start, so no network card knows the \
                              memory";
                Some(reason.to_owned())
            }
            _ => None,
        }
    }

    /// Opens the devices and binds the listeners that the running configuration is not in the way
    /// of.
    fn prepare(
        &mut self,
        plan: &[Planned],
        tend: &mut dyn FnMut(Instant),
    ) -> Result<Prepared, (usize, String)> {
        let mut prepared = Prepared::default();
        for (index, planned) in plan.iter().enumerate() {
            let had = match &planned.step {
                Step::AddDevice(device) if !self.has_file(device) => {
                    self.open_device(device, tend).map(|opened| {
                        prepared.devices.insert(device.name.clone(), opened);
                    })
                }
                Step::AddListener(listener) if !self.has_address(listener) => {
                    self.bind(listener, &prepared).map(|port| {
                        prepared.listeners.insert(listener.name.clone(), port);
                    })
                }
                _ => Ok(()),
            };
            if let Err(error) = had {
                self.discard(&prepared);
                return Err((index, error));
            }
        }
        Ok(prepared)
    }

    /// Closes the listeners that were bound in vain.
    fn discard(&self, prepared: &Prepared) {
        for port in prepared.listeners.values() {
            for transport in &self.transports {
                // Nobody can have come in for long: the port was never told.
                if let Err(error) = transport.close(port.id) {
                    tracing::error!("{}", with_causes(error.as_ref()));
                }
            }
        }
    }

    /// Whether a running device has the file that `device` is to be in.
    fn has_file(&self, device: &Device) -> bool {
        let path = |device: &Device| match &device.backing {
            Backing::File { path, .. } => Some(path.clone()),
            Backing::Memory { .. } | Backing::Null { .. } | Backing::Nvme(_) => None,
        };
        let wanted = path(device);
        let mut devices = self.config.devices.iter();
        wanted.is_some() && devices.any(|it| path(it) == wanted)
    }

    /// Whether a running listener is in the way of `listener`.
    fn has_address(&self, listener: &Listener) -> bool {
        let address = listener.address;
        let mut listeners = self.config.listeners.iter();
        let is_alike = |it: &Listener| it.transport == listener.transport;
        listeners.any(|it| is_alike(it) && it.address.overlaps(address))
    }

    /// Opens a device, which may take its time.
    pub(super) fn open_device(
        &self,
        device: &Device,
        tend: &mut dyn FnMut(Instant),
    ) -> Result<Opened, String> {
        let (pages, arena) = (self.config.appliance.pages, &self.arena);
        meanwhile(tend, || {
            let opened = Opened::new(pages, arena, device);
            let opened = opened.map_err(|cause| with_causes(&DeviceError::new(device, cause)))?;
            opened.ok_or_else(|| "drives are taken at start".to_owned())
        })
    }

    /// Binds a listener under a number that no other has.
    pub(super) fn bind(
        &self,
        listener: &Listener,
        prepared: &Prepared,
    ) -> Result<BoundPort, String> {
        let taken: Vec<_> = prepared.listeners.values().map(|port| port.id).collect();
        let id = self.ports.free_id(&taken);
        let transport = self.transport(listener.transport);
        let transport = transport.ok_or_else(|| no_transport(listener.transport))?;
        let mut ports = self.ports_of(listener.transport);
        ports.push((id, listener));
        let bound = transport.settle(&ports);
        let bound = bound.and_then(|()| transport.listen(id, listener));
        let address = bound.map_err(|error| with_causes(error.as_ref()))?;
        Ok(BoundPort { id, address })
    }
}

fn no_transport(transport: Transport) -> String {
    format!("there is no {} here", transport.word())
}

/// Runs something that takes its time, with everything else looked after.
pub(super) fn meanwhile<T: Send>(
    tend: &mut dyn FnMut(Instant),
    work: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
    std::thread::scope(|scope| {
        let worker = scope.spawn(work);
        while !worker.is_finished() {
            Live::rest(tend);
        }
        let done = worker.join();
        done.unwrap_or_else(|_| Err("it ended in a panic, which the log tells of".to_owned()))
    })
}

/// Why nothing is done at all, if so.
fn refusal(plan: &[Planned], how: How) -> Option<String> {
    let later = plan.iter().filter(|it| it.effect() == Effect::Restart);
    let count = later.clone().count();
    if count == 0 {
        return None;
    }
    // What others build upon cannot be left out.
    let has_obstacle = later.clone().any(|it| it.obstacle.is_some());
    if how.partial && !has_obstacle {
        return None;
    }
    let only = if has_obstacle {
        ""
    } else {
        ", or apply the others alone with --partial"
    };
    Some(format!(
        "nothing was changed: {count} step(s) take a restart: restart the appliance{only}"
    ))
}

fn failure(planned: &Planned, error: String) -> ApplyStep {
    ApplyStep {
        error: Some(error),
        ..planned.told(StepState::Failed)
    }
}

fn answer(
    steps: impl Iterator<Item = ApplyStep>,
    applied: bool,
    refused: Option<String>,
) -> ApplyAnswer {
    ApplyAnswer {
        steps: steps.collect(),
        applied,
        refused,
    }
}

/// For people: who waits where for how many commands.
impl std::fmt::Display for OutstandingCommands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            export,
            host,
            queue,
            commands,
        } = self;
        write!(
            f,
            "{export}, host {host}, queue {queue}: {commands} command(s)"
        )
    }
}
