//! Applies steps to a configuration, so that it describes the running appliance after each step.

use super::{Step, set_size};
use crate::model::{Config, Export, Listener};
use crate::value::{Name, Nqn};

impl Config {
    /// Applies `step` to this configuration. Returns false and changes nothing if the step does not
    /// fit this configuration or takes a restart.
    pub fn apply_step(&mut self, step: &Step) -> bool {
        self.try_apply_step(step).is_some()
    }

    fn try_apply_step(&mut self, step: &Step) -> Option<()> {
        match step {
            Step::RemoveNamespace { export, namespace } => {
                remove(&mut self.export_mut(export)?.namespaces, |it| {
                    it == namespace
                })
            }
            Step::RemoveExport(nqn) => remove(&mut self.exports, |it| it.nqn == *nqn),
            Step::DetachListener { export, listener } => {
                remove(&mut self.export_mut(export)?.listeners, |it| it == listener)
            }
            Step::RemoveListener(name) => remove(&mut self.listeners, |it| it.name == *name),
            Step::ChangeAccess {
                export,
                access,
                masks,
                authentication,
                ..
            } => {
                let export = self.export_mut(export)?;
                (export.access, export.masks) = (access.clone(), masks.clone());
                export.authentication.clone_from(authentication);
                Some(())
            }
            Step::AddKey(key) => {
                self.keys.push(key.clone());
                Some(())
            }
            Step::ChangeKey(key) => {
                let mut keys = self.keys.iter_mut();
                *keys.find(|it| it.name == key.name)? = key.clone();
                Some(())
            }
            Step::ReloadKey(name) => self.key(name).map(drop),
            Step::RemoveKey(name) => remove(&mut self.keys, |it| it.name == *name),
            Step::ChangeIdentity {
                export,
                serial,
                model,
            } => {
                let export = self.export_mut(export)?;
                (export.serial, export.model) = (serial.clone(), model.clone());
                Some(())
            }
            Step::DisconnectHosts { export, .. } => self.export_mut(export).map(drop),
            Step::RemoveDevice(name) => remove(&mut self.devices, |it| it.name == *name),
            Step::GrowDevice { device, size } => {
                let mut devices = self.devices.iter_mut();
                let device = devices.find(|it| it.name == *device)?;
                set_size(&mut device.backing, *size);
                Some(())
            }
            Step::AddDevice(device) => {
                self.devices.push((**device).clone());
                Some(())
            }
            Step::AddListener(listener) => {
                self.listeners.push((**listener).clone());
                Some(())
            }
            Step::ChangeListener(listener) => {
                *self.listener_mut(&listener.name)? = (**listener).clone();
                Some(())
            }
            Step::AddExport(export) => {
                self.exports.push((**export).clone());
                Some(())
            }
            Step::AttachListener { export, listener } => {
                self.export_mut(export)?.listeners.push(listener.clone());
                Some(())
            }
            Step::ChangeQueues {
                export,
                max_io_queues,
            } => {
                self.export_mut(export)?.max_io_queues = *max_io_queues;
                Some(())
            }
            Step::ChangeAna {
                export,
                ana,
                regrouped,
            } => {
                let export = self.export_mut(export)?;
                let namespaces = export.namespaces.iter_mut();
                for namespace in namespaces {
                    let mut moved = regrouped.iter();
                    if let Some(moved) = moved.find(|it| it.is_same_disk(namespace)) {
                        namespace.ana_group = moved.ana_group;
                    }
                }
                export.ana = ana.clone();
                Some(())
            }
            Step::ChangePacing {
                export,
                p99,
                weight,
            } => {
                let export = self.export_mut(export)?;
                (export.p99, export.weight) = (*p99, *weight);
                Some(())
            }
            Step::ChangeControllerIds {
                export,
                controller_ids,
            } => {
                self.export_mut(export)?.controller_ids = *controller_ids;
                Some(())
            }
            Step::AddNamespace { export, namespace } => {
                self.export_mut(export)?.namespaces.push(namespace.clone());
                Some(())
            }
            Step::ChangeRateLimits(limits) => {
                self.rate_limits.clone_from(limits);
                Some(())
            }
            Step::RemoveFileListener(name) => {
                remove(&mut self.files.listeners, |it| it.name == *name)
            }
            Step::AddFileListener(listener) => {
                self.files.listeners.push(listener.clone());
                Some(())
            }
            Step::RemoveVolume(name) => remove(&mut self.files.volumes, |it| it.name == *name),
            Step::AddVolume(volume) => {
                self.files.volumes.push(volume.clone());
                Some(())
            }
            Step::ChangeShares { shares, .. } => {
                self.files.shares.clone_from(shares);
                Some(())
            }
            Step::ChangeShutdownDeadline(deadline) => {
                self.appliance.shutdown_deadline = *deadline;
                Some(())
            }
            Step::ChangeControllers(count) => {
                self.limits.max_controllers = *count;
                Some(())
            }
            Step::Restart { .. } => None,
        }
    }

    fn export_mut(&mut self, nqn: &Nqn) -> Option<&mut Export> {
        self.exports.iter_mut().find(|export| export.nqn == *nqn)
    }

    fn listener_mut(&mut self, name: &Name) -> Option<&mut Listener> {
        let mut listeners = self.listeners.iter_mut();
        listeners.find(|listener| listener.name == *name)
    }
}

fn remove<T>(items: &mut Vec<T>, is_it: impl Fn(&T) -> bool) -> Option<()> {
    let at = items.iter().position(is_it)?;
    items.remove(at);
    Some(())
}
