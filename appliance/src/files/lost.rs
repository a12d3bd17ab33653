//! Volumes whose device was gone: reports them, and opens them again when it is back.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use appliance_config::{Name, Volume};
use files_server::VolumeIndex;
use files_service::{FileMessage, PreparedReplacement};

use super::reactor_disk::ReactorDisk;
use super::{Files, REACTOR};
use crate::devices::Devices;
use crate::error::with_causes;
use crate::event_loop::{EventLoop, aside};
use crate::volumes::{self, Obstacle, VolumeError};

/// Interval of the attempts to open a volume.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// What is known of a lost volume.
#[derive(Debug)]
pub(super) struct Loss {
    volume: Name,
    retry_at: Instant,
    /// The last obstacle that was logged.
    obstacle: String,
}

impl Files {
    /// Opens lost volumes again whose device is back. Blocks beside the event loop.
    pub(crate) fn restore(
        &self,
        config: &appliance_config::Files,
        devices: &Devices,
        event_loop: &mut dyn EventLoop,
    ) {
        for served in &*self.volumes() {
            let volume = config.volumes.iter().find(|it| it.name == served.name);
            let Some(volume) = volume.filter(|_| served.levels.is_lost.get() != 0) else {
                continue;
            };
            if !self.is_due(volume, event_loop.now()) {
                continue;
            }
            match self.reopen(volume, served.index, devices, event_loop) {
                Ok(true) => {
                    tracing::info!("volume {}: its device is back", volume.name);
                    self.forget_loss(&volume.name);
                    // Directories of shares that were new may be lost.
                    if let Err(error) = self.set_shares(config, event_loop) {
                        tracing::error!("{}", with_causes(&error));
                    }
                }
                Ok(false) => self.forget_loss(&volume.name),
                Err(obstacle) => self.log_obstacle(volume, obstacle),
            }
        }
    }

    /// Whether the next attempt is due. Reports a loss that is new.
    fn is_due(&self, volume: &Volume, now: Instant) -> bool {
        let mut losses = self.losses();
        let found = losses.iter_mut().find(|it| it.volume == volume.name);
        let retry_at = now + RETRY_INTERVAL;
        match found {
            Some(loss) if now < loss.retry_at => false,
            Some(loss) => {
                loss.retry_at = retry_at;
                true
            }
            None => {
                tracing::error!(
                    "volume {}: its device {} is gone or does not respond: clients wait until it is \
                     back; what they had not synced, they write again",
                    volume.name,
                    volume.device
                );
                losses.push(Loss {
                    volume: volume.name.clone(),
                    retry_at,
                    obstacle: String::new(),
                });
                true
            }
        }
    }

    pub(super) fn forget_loss(&self, volume: &Name) {
        self.losses().retain(|it| it.volume != *volume);
    }

    fn log_obstacle(&self, volume: &Volume, obstacle: String) {
        let mut losses = self.losses();
        let found = losses.iter_mut().find(|it| it.volume == volume.name);
        if let Some(loss) = found.filter(|it| it.obstacle != obstacle) {
            tracing::warn!(
                "volume {}: it cannot be opened yet: {obstacle}",
                volume.name
            );
            loss.obstacle = obstacle;
        }
    }

    /// Opens a volume again and serves it. Returns false if it is not lost.
    fn reopen(
        &self,
        volume: &Volume,
        index: VolumeIndex,
        devices: &Devices,
        event_loop: &mut dyn EventLoop,
    ) -> Result<bool, String> {
        let begin = |reply| FileMessage::PrepareReplacement { index, reply };
        let prepared = self.messages.ask(REACTOR, event_loop, begin);
        match prepared.map_err(|error| error.to_string())? {
            PreparedReplacement::NotLost => return Ok(false),
            // It is freed here, not on the reactor, and before its successor needs memory.
            PreparedReplacement::Lost(former) => aside(event_loop, || {
                drop(former);
                Ok(())
            })?,
        }
        let found = devices.get(&volume.device);
        let (place, device) = found
            .ok_or_else(|| VolumeError::new(volume, Obstacle::NoDevice))
            .map_err(|error| with_causes(&error))?;
        let geometry = device.geometry();
        let mut disk = ReactorDisk::new(&self.messages, usize::from(place.0), geometry);
        let opened = aside(event_loop, || {
            volumes::open(volume, &mut disk).map_err(|error| with_causes(&error))
        })?;
        let replace = |reply: mpsc::Sender<()>| FileMessage::ReplaceVolume {
            index,
            volume: Box::new(opened),
            reply,
        };
        let replaced = self.messages.ask(REACTOR, event_loop, replace);
        replaced.map(|()| true).map_err(|error| error.to_string())
    }
}
