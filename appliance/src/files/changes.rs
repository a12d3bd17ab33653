//! Volumes and listeners that come and go while files are served. The control path only.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use appliance_config::{Backing, Config, FileListener, Name, Transport, Volume};
use files_service::{FileMessage, ListenerChange, NewRecords};
use hugemem::Region;

use super::reactor_disk::ReactorDisk;
use super::{
    BoundListener, Files, REACTOR, ServedVolume, Unrecorded, device_of_volume, listen,
    volatile_volume,
};
use crate::devices::Devices;
use crate::error::with_causes;
use crate::event_loop::{EventLoop, aside};
use crate::file_clients::{FileClients, FileClientsStore};
use crate::volumes::{self, Obstacle, VolumeError};

/// A listener that is bound and not served yet.
pub(crate) struct PreparedListener {
    address: SocketAddr,
    number: u32,
    /// `None` over RDMA: the reactor has it, and rejects its connections.
    socket: Option<TcpListener>,
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
                self.record_clients(event_loop);
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

    /// Binds a listener. Over RDMA, the network cards that are not in use yet get access to `memory`;
    /// without another listener, [`Self::release_rdma`] ends that.
    ///
    /// # Errors
    /// The address or RDMA is not available.
    pub(crate) fn bind(
        &self,
        listener: &FileListener,
        memory: &[&Region],
        event_loop: &mut dyn EventLoop,
    ) -> Result<PreparedListener, String> {
        let number = self.next_listener.fetch_add(1, Ordering::Relaxed);
        if listener.transport == Transport::Rdma {
            let bound = self.rdma.listen(number, listener, memory, event_loop);
            return Ok(PreparedListener {
                address: bound.map_err(|error| with_causes(&*error))?,
                number,
                socket: None,
            });
        }
        let socket = listen(listener).map_err(|error| with_causes(&error))?;
        Ok(PreparedListener {
            address: socket.local_addr().map_err(|error| error.to_string())?,
            number,
            socket: Some(socket),
        })
    }

    /// Closes a listener that is not served. One over TCP is closed when it is dropped.
    pub(crate) fn discard(&self, prepared: &PreparedListener, event_loop: &mut dyn EventLoop) {
        if prepared.socket.is_none()
            && let Err(error) = self.rdma.close(prepared.number, event_loop)
        {
            tracing::error!("listener of {}: {error}", prepared.address);
        }
    }

    /// Serves files at one more listener.
    ///
    /// # Errors
    /// The system's: nothing is changed.
    pub(crate) fn add_listener(
        &self,
        listener: &FileListener,
        prepared: PreparedListener,
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), String> {
        let PreparedListener {
            address,
            number,
            socket,
        } = prepared;
        match socket {
            Some(socket) => self.serve_socket(number, socket, event_loop),
            None => {
                let opened = self.rdma.open(number, event_loop);
                opened.map_err(|error| error.to_string())
            }
        }
        .map_err(|error| format!("file_listener {}: {address}: {error}", listener.name))?;
        tracing::info!("files are served at {address}");
        let mut listeners = Vec::clone(&self.listeners());
        listeners.push(BoundListener {
            name: listener.name.clone(),
            address,
            transport: listener.transport,
            number,
        });
        self.listeners.store(Arc::new(listeners));
        Ok(())
    }

    /// Accepts the connections of a socket.
    fn serve_socket(
        &self,
        number: u32,
        listener: TcpListener,
        event_loop: &mut dyn EventLoop,
    ) -> Result<(), String> {
        let add = |reply| {
            FileMessage::ChangeListener(ListenerChange::Add {
                number,
                listener,
                reply,
            })
        };
        let added = self.messages.ask(REACTOR, event_loop, add);
        match added.map_err(|error| error.to_string())? {
            true => Ok(()),
            false => Err("it cannot be watched".to_owned()),
        }
    }

    /// Closes a listener with its connections, whose requests continue.
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
        let found = found.ok_or("it is not served")?;
        let number = found.number;
        match found.transport {
            Transport::Rdma => {
                let closed = self.rdma.close(number, event_loop);
                closed.map_err(|error| error.to_string())?;
            }
            Transport::Tcp => {
                let remove =
                    |reply| FileMessage::ChangeListener(ListenerChange::Remove { number, reply });
                let removed = self.messages.ask(REACTOR, event_loop, remove);
                removed.map_err(|error| error.to_string())?;
            }
        }
        listeners.retain(|it| it.name != *name);
        self.listeners.store(Arc::new(listeners));
        Ok(())
    }

    /// Releases the network cards if there is no listener over RDMA.
    pub(crate) fn release_rdma(&self, event_loop: &mut dyn EventLoop) {
        if !self.has_rdma_listeners() {
            self.rdma.release(event_loop);
        }
    }

    /// Uses network cards again that were lost and have returned, with `memory`.
    pub(crate) fn restore_rdma(&self, memory: &[&Region], event_loop: &mut dyn EventLoop) {
        let has_listeners = self.has_rdma_listeners();
        self.rdma.restore(has_listeners, memory, event_loop);
    }

    fn has_rdma_listeners(&self) -> bool {
        let listeners = self.listeners();
        listeners.iter().any(|it| it.transport == Transport::Rdma)
    }

    /// Registers memory of a device for RDMA.
    ///
    /// # Errors
    /// A network card refuses it.
    fn attach_memory(&self, region: &Region) -> Result<(), String> {
        let attached = self.rdma.attach_memory(region);
        attached.map_err(|error| with_causes(&*error))
    }

    /// Ends the registration of memory that nothing is sent from any more.
    pub(crate) fn detach_memory(&self, region: &Region) {
        self.rdma.detach_memory(region);
    }

    /// Records clients from now on, before they can open anything that survives a restart.
    fn record_clients(&self, event_loop: &mut dyn EventLoop) {
        let taken = self.unrecorded().take();
        let Some(Unrecorded {
            path,
            identity,
            cores,
        }) = taken
        else {
            return;
        };
        let none = FileClients {
            identity,
            owners: Vec::new(),
        };
        let started = aside(event_loop, || {
            FileClientsStore::start(path.clone(), &none, &cores).map_err(|error| error.to_string())
        });
        let recorded = started.and_then(|store| {
            let keep = |reply| {
                FileMessage::KeepRecords(NewRecords {
                    store: Box::new(store),
                    reply,
                })
            };
            match self.messages.ask(REACTOR, event_loop, keep) {
                Ok(true) => Ok(()),
                Ok(false) => Err("the store cannot be watched".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        });
        let Err(error) = recorded else {
            tracing::info!("clients of files are recorded from now on");
            return;
        };
        // Clients of an earlier server could reclaim after a restart what others have got since.
        let removed = std::fs::remove_file(&path);
        let remains = removed.is_err() && path.exists();
        tracing::warn!(
            "{}: {error}: clients of files lose their locks at the next restart{}",
            path.display(),
            if remains {
                ": remove the file before it"
            } else {
                ""
            }
        );
    }

    fn unrecorded(&self) -> MutexGuard<'_, Option<Unrecorded>> {
        self.unrecorded
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_in_memory(config: &Config, device: &Name) -> bool {
    let backing = config.device(device).map(|it| &it.backing);
    matches!(backing, Some(Backing::Memory { .. }))
}
