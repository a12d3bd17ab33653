//! Volumes and listeners that come and go while files are served. The control path only.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use appliance_config::{Backing, Config, FileListener, Name, Volume};
use files_service::{FileMessage, ListenerChange};
use hugemem::Region;

use super::reactor_disk::ReactorDisk;
use super::{
    BoundListener, Files, REACTOR, ServedVolume, device_of_volume, listen, volatile_volume,
};
use crate::devices::Devices;
use crate::error::with_causes;
use crate::event_loop::{EventLoop, aside};
use crate::volumes::{self, Obstacle, VolumeError};

/// A listener that is bound and not served yet.
pub(crate) type PreparedListener = (TcpListener, SocketAddr);

/// Binds a listener over TCP.
///
/// # Errors
/// The address is not available.
pub(crate) fn bind(listener: &FileListener) -> Result<PreparedListener, String> {
    let bound = listen(listener).map_err(|error| with_causes(&error))?;
    let address = bound.local_addr().map_err(|error| error.to_string())?;
    Ok((bound, address))
}

impl Files {
    /// Checks that a volume on a device that is open can be served. Changes nothing.
    ///
    /// # Errors
    /// The device has no volume that can be opened, or another one than the configuration names.
    pub(crate) fn check_volume(
        &self,
        volume: &Volume,
        config: &Config,
        devices: &Devices,
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), String> {
        let Some((place, device)) = devices.get(&volume.device) else {
            return Ok(());
        };
        if is_in_memory(config, &volume.device) {
            return Ok(());
        }
        let place = usize::from(place.0);
        let mut disk = ReactorDisk::new(&self.messages, place, device.geometry());
        aside(event_loop, || {
            let found = volumes::identify(volume, &mut disk);
            found.map(drop).map_err(|error| with_causes(&error))
        })
    }

    /// Serves one more volume, without shares: that of its device, an empty one on a device in memory,
    /// or the one that was `retained` when it was removed.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn add_volume(
        &self,
        volume: &Volume,
        (config, devices): (&Config, &Devices),
        retained: Option<Box<files_store::Volume>>,
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), String> {
        let found = devices.get(&volume.device);
        let (place, device) = found
            .ok_or_else(|| VolumeError::new(volume, Obstacle::NoDevice))
            .map_err(|error| with_causes(&error))?;
        let of_volume = device_of_volume(volume, config, (place, &**device));
        // They stay registered as long as the device is open: replies may be sent from them.
        for region in devices.regions_of_device(&volume.device) {
            self.attach_memory(region)?;
        }
        let opened = match retained {
            Some(retained) => retained,
            None if is_in_memory(config, &volume.device) => {
                Box::new(volatile_volume(volume, &**device))
            }
            None => {
                self.forget_records();
                let geometry = device.geometry();
                let mut disk = ReactorDisk::new(&self.messages, of_volume.place, geometry);
                Box::new(aside(event_loop, || {
                    volumes::open(volume, &mut disk).map_err(|error| with_causes(&error))
                })?)
            }
        };
        let levels = Arc::clone(&of_volume.levels);
        let add = |reply| FileMessage::AddVolume {
            volume: opened,
            device: of_volume,
            reply,
        };
        let added = self.messages.ask(REACTOR, event_loop, add);
        let added = added.map_err(|error| error.to_string())?;
        let index = added.map_err(|_| {
            format!(
                "volume {}: clients still use volumes that were removed: try it again later",
                volume.name
            )
        })?;
        let mut served = Vec::clone(&self.volumes());
        served.push(ServedVolume {
            name: volume.name.clone(),
            levels,
            index,
        });
        self.volumes.store(Arc::new(served));
        Ok(())
    }

    /// Stops serving a volume that has no share any more, after its changes are durable. Returns what
    /// a volume in memory has.
    ///
    /// # Errors
    /// Requests of clients do not end; it is still served.
    pub(crate) fn remove_volume(
        &self,
        name: &Name,
        event_loop: &mut dyn EventLoop,
    ) -> Result<Option<Box<files_store::Volume>>, String> {
        let served = self.volumes();
        let found = served.iter().find(|it| it.name == *name);
        let index = found.ok_or("it is not served")?.index;
        let remove = |reply| FileMessage::RemoveVolume { index, reply };
        let removed = match self.messages.ask(REACTOR, event_loop, remove) {
            Ok(removed) => removed.ok_or_else(|| format!("volume {name}: a share has it"))?,
            Err(error) => {
                let keep = |reply| FileMessage::KeepVolume { index, reply };
                match self.messages.ask(REACTOR, event_loop, keep) {
                    // It has ended meanwhile.
                    Ok(false) => return Err(format!("volume {name}: {error}")),
                    Ok(true) | Err(_) => {
                        return Err(format!(
                            "volume {name}: requests of clients do not end: its device does not \
                             respond"
                        ));
                    }
                }
            }
        };
        let mut served = Vec::clone(&served);
        served.retain(|it| it.name != *name);
        self.volumes.store(Arc::new(served));
        self.forget_loss(name);
        let is_kept = removed.is_volatile() && !removed.is_lost();
        Ok(is_kept.then_some(removed))
    }

    /// Serves files at one more listener.
    ///
    /// # Errors
    /// The system's: nothing is changed.
    pub(crate) fn add_listener(
        &self,
        listener: &FileListener,
        (socket, address): PreparedListener,
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), String> {
        let number = self.next_listener.fetch_add(1, Ordering::Relaxed);
        let add = |reply| {
            FileMessage::ChangeListener(ListenerChange::Add {
                number,
                listener: socket,
                reply,
            })
        };
        let added = self.messages.ask(REACTOR, event_loop, add);
        if !added.map_err(|error| error.to_string())? {
            return Err(format!(
                "file_listener {}: {address} cannot be watched",
                listener.name
            ));
        }
        tracing::info!("files are served at {address}");
        let mut listeners = Vec::clone(&self.listeners());
        listeners.push(BoundListener {
            name: listener.name.clone(),
            address,
            number: Some(number),
        });
        self.listeners.store(Arc::new(listeners));
        Ok(())
    }

    /// Closes a listener over TCP with its connections, whose requests continue.
    ///
    /// # Errors
    /// The reactor does not answer.
    pub(crate) fn remove_listener(
        &self,
        name: &Name,
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), String> {
        let mut listeners = Vec::clone(&self.listeners());
        let found = listeners.iter().find(|it| it.name == *name);
        let number = found.and_then(|it| it.number).ok_or("it is not served")?;
        let remove = |reply| FileMessage::ChangeListener(ListenerChange::Remove { number, reply });
        let removed = self.messages.ask(REACTOR, event_loop, remove);
        removed.map_err(|error| error.to_string())?;
        listeners.retain(|it| it.name != *name);
        self.listeners.store(Arc::new(listeners));
        Ok(())
    }

    /// Registers memory of a device for RDMA.
    ///
    /// # Errors
    /// A network card refuses it.
    fn attach_memory(&self, region: &Region) -> Result<(), String> {
        let memory = self.rdma_memory.as_ref();
        memory.map_or(Ok(()), |it| it.attach(region))
    }

    /// Ends the registration of memory that nothing is sent from any more.
    pub(crate) fn detach_memory(&self, region: &Region) {
        if let Some(memory) = &self.rdma_memory {
            memory.detach(region);
        }
    }

    /// Forgets clients that an earlier server has recorded, because this one records none: otherwise
    /// they could reclaim after a restart what others have got since.
    fn forget_records(&self) {
        let Some(path) = &self.unused_records else {
            return;
        };
        match std::fs::remove_file(path) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(
                "{}: it cannot be removed: {error}: remove it before a restart",
                path.display()
            ),
        }
        tracing::warn!(
            "the first durable volume was added while files are served: clients lose their locks at \
             the next restart"
        );
    }
}

fn is_in_memory(config: &Config, device: &Name) -> bool {
    let backing = config.device(device).map(|it| &it.backing);
    matches!(backing, Some(Backing::Memory { .. }))
}
