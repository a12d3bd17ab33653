//! What the control path of the appliance does while the server serves, one step after the other: the
//! device of a durable volume is gone and comes back, and the shares change.

use std::sync::mpsc::{Receiver, TryRecvError, channel};

use block::QueueOptions;
use files_server::{Part, VolumeIndex};
use files_service::{FileMessage, PreparedReplacement};
use files_store::Volume;
use files_tcp::stored;
use reactors::Nanos;

use super::{FileServer, IDEAL, QUEUE_DEPTH, Running, Storage, own};
use crate::disk::Disk;

/// Longest time that the device is gone, and between two steps of its return.
const GONE_MAX: Nanos = Nanos::from_millis(300);
const STEP_MAX: Nanos = Nanos::from_millis(5);
/// Time in which a server that is not held notices what happens to its device.
const NOTICED_AFTER: Nanos = Nanos::from_secs(2);
/// How often the device fails while the volume is opened again, per thousand times, and how many of its
/// requests fail then.
const FAILING_PERMILLE: u32 = 300;
const FAILURES_MAX: u64 = 200;
/// How often the device is gone again while it returns, per thousand times.
const AGAIN_PERMILLE: u32 = 100;

/// How the device disappears.
#[derive(Clone, Copy, Debug)]
pub(in crate::files) enum Disappearance {
    /// Its requests fail until it is back, and its queue remains.
    Removed {
        /// It loses what was not flushed.
        loses_cache: bool,
    },
    /// It does not respond, and is cut off with everything that it has to do.
    CutOff,
}

/// How far it is.
#[derive(Debug)]
enum Stage {
    /// The device is gone.
    Gone {
        /// Whether its queue is gone, too.
        is_cut_off: bool,
    },
    /// The device is there. The server has not noticed that it was gone, or the volume cannot be opened yet.
    Back {
        /// When the server must have noticed it.
        noticed_at: Nanos,
    },
    /// The server forgets a volume that was opened before.
    Preparing(Receiver<PreparedReplacement>),
    /// The server is to continue with the volume as it was opened again.
    Replacing(Receiver<()>),
    /// The directories of shares are made.
    MakingParts(Receiver<Result<Vec<Part>, (usize, files_store::Error)>>),
    /// The shares are set.
    Sharing(Receiver<()>),
    /// The volume, which no share has, is returned when all of its changes are durable.
    Removing(Receiver<Option<Box<Volume>>>),
    /// A volume is served.
    Adding(Receiver<Result<VolumeIndex, Box<Volume>>>),
}

/// What the control path does now.
#[derive(Debug)]
pub(super) struct Control {
    stage: Stage,
    /// When the next step is due.
    next_at: Nanos,
}

impl FileServer {
    /// Whether the control path does something.
    #[must_use]
    pub(in crate::files) fn is_changing(&self) -> bool {
        self.control.is_some()
    }

    /// Whether the share of the clients is read-only, or is to be.
    #[must_use]
    pub(in crate::files) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// The share of the clients becomes read-only, or can be changed again. The server runs.
    ///
    /// # Errors
    /// The server does not take the message.
    pub(in crate::files) fn change_share(&mut self, is_read_only: bool) -> Result<(), String> {
        self.is_read_only = is_read_only;
        self.share()
    }

    /// The volume is shared, with what is set for its shares. The server runs.
    ///
    /// # Errors
    /// The server does not take the message.
    pub(in crate::files) fn share(&mut self) -> Result<(), String> {
        let stage = self.make_parts()?;
        self.begin(stage);
        Ok(())
    }

    /// No volume is shared any more. The server runs.
    ///
    /// # Errors
    /// The server does not take the message.
    pub(in crate::files) fn unshare(&mut self) -> Result<(), String> {
        let (reply, answer) = channel();
        let shares = Vec::new();
        self.tell(FileMessage::SetShares { shares, reply })?;
        self.begin(Stage::Sharing(answer));
        Ok(())
    }

    /// The volume is not served any more, which no share has. The server runs.
    ///
    /// # Errors
    /// The server does not take the message.
    pub(in crate::files) fn remove_volume(&mut self) -> Result<(), String> {
        let (reply, answer) = channel();
        let index = self.volume;
        self.tell(FileMessage::RemoveVolume { index, reply })?;
        self.begin(Stage::Removing(answer));
        Ok(())
    }

    /// The volume that was removed is served again: as it was if it is volatile, and otherwise as it is
    /// on its device, which may have lost power meanwhile. The server runs.
    ///
    /// # Errors
    /// The volume cannot be opened, or the server does not take the message.
    pub(in crate::files) fn add_volume(&mut self, power_fails: bool) -> Result<(), String> {
        let removed = self.removed.take().ok_or("no volume was removed")?;
        let volume = match &self.storage {
            Storage::Disk(disk) if !removed.is_volatile() => {
                if power_fails {
                    disk.cut_power();
                }
                let opened = self.open_stored(disk, 0);
                Box::new(opened.map_err(|error| error.to_string())?)
            }
            Storage::Disk(_) | Storage::Ram(_) => removed,
        };
        let running = self.running.as_ref().ok_or("the server does not run")?;
        let device = Self::device_of_volume(&*running.device, &running.levels);
        let (reply, answer) = channel();
        self.tell(FileMessage::AddVolume {
            volume,
            device,
            reply,
        })?;
        self.begin(Stage::Adding(answer));
        Ok(())
    }

    fn begin(&mut self, stage: Stage) {
        self.control = Some(Control {
            stage,
            next_at: self.time.now(),
        });
    }

    /// Whether the server knows that its volume is lost.
    #[must_use]
    pub(in crate::files) fn is_lost(&self) -> bool {
        let levels = self.running.as_ref().map(|it| &it.levels);
        levels.is_some_and(|it| it.is_lost.get() != 0)
    }

    /// The device disappears. The server runs.
    pub(in crate::files) fn lose_device(&mut self, how: Disappearance) {
        let (Storage::Disk(disk), Some(running)) = (&self.storage, &self.running) else {
            return;
        };
        let now = self.time.now();
        disk.hold(Nanos::ZERO);
        let is_cut_off = match how {
            Disappearance::Removed { loses_cache } => {
                disk.remove();
                if loses_cache {
                    disk.cut_power();
                }
                false
            }
            Disappearance::CutOff => {
                running.devices.remove_now(0, now);
                true
            }
        };
        self.control = Some(Control {
            stage: Stage::Gone { is_cut_off },
            next_at: now + Nanos(self.random.below(GONE_MAX.as_nanos())),
        });
    }

    /// The server has ended: it finds the device and the shares at its next start.
    pub(super) fn end_control(&mut self) {
        (self.control, self.removed) = (None, None);
        self.volume = VolumeIndex(0);
        if let Storage::Disk(disk) = &self.storage {
            disk.reinsert();
        }
    }

    /// When the next step is due.
    pub(super) fn control_due(&self) -> Option<Nanos> {
        self.control.as_ref().map(|it| it.next_at)
    }

    /// Takes the next step, if it is due.
    ///
    /// # Errors
    /// The server does not answer as it should, or the volume cannot be opened although its device works.
    pub(in crate::files) fn advance_control(&mut self) -> Result<(), String> {
        let now = self.time.now();
        let Some(mut control) = self.control.take_if(|it| it.next_at <= now) else {
            return Ok(());
        };
        let pause = match self.random.coin() {
            true => Nanos::ZERO,
            false => Nanos(self.random.below(STEP_MAX.as_nanos())),
        };
        control.next_at = now + pause;
        let Some(stage) = self.next_stage(control.stage)? else {
            return Ok(());
        };
        control.stage = stage;
        self.control = Some(control);
        Ok(())
    }

    /// The stage after this one; `None` if it was the last.
    fn next_stage(&mut self, stage: Stage) -> Result<Option<Stage>, String> {
        Ok(Some(match stage {
            Stage::Gone { is_cut_off } => {
                self.bring_back(is_cut_off)?;
                self.back()
            }
            // It was gone between the opening of the volume and its first request.
            Stage::Back { noticed_at } if !self.is_lost() && self.time.now() > noticed_at => {
                self.make_parts()?
            }
            Stage::Back { .. } if !self.is_lost() => stage,
            Stage::Back { .. } => {
                let (reply, answer) = channel();
                let index = self.volume;
                self.tell(FileMessage::PrepareReplacement { index, reply })?;
                Stage::Preparing(answer)
            }
            Stage::Preparing(answer) => match answered(&answer)? {
                None => Stage::Preparing(answer),
                Some(PreparedReplacement::NotLost) => {
                    return Err("the server has found a lost volume".to_owned());
                }
                Some(PreparedReplacement::Lost(_)) => self.open_again()?,
            },
            Stage::Replacing(answer) => match answered(&answer)? {
                None => Stage::Replacing(answer),
                Some(()) => self.make_parts()?,
            },
            Stage::MakingParts(answer) => match answered(&answer)? {
                None => Stage::MakingParts(answer),
                Some(Ok(parts)) => {
                    let shares = self.shares_of(parts);
                    let (reply, answer) = channel();
                    self.tell(FileMessage::SetShares { shares, reply })?;
                    Stage::Sharing(answer)
                }
                Some(Err((_, error))) => return Err(format!("a part of the volume: {error}")),
            },
            Stage::Sharing(answer) => match answered(&answer)? {
                None => Stage::Sharing(answer),
                Some(()) => return Ok(None),
            },
            Stage::Removing(answer) => match answered(&answer)? {
                None => Stage::Removing(answer),
                Some(None) => return Err("a share has the volume that has none".to_owned()),
                Some(removed) => {
                    self.removed = removed;
                    return Ok(None);
                }
            },
            Stage::Adding(answer) => match answered(&answer)? {
                None => Stage::Adding(answer),
                Some(Ok(index)) => {
                    self.volume = index;
                    return Ok(None);
                }
                Some(Err(_)) => return Err("there is no place for the volume".to_owned()),
            },
        }))
    }

    fn back(&self) -> Stage {
        Stage::Back {
            noticed_at: self.time.now() + NOTICED_AFTER,
        }
    }

    fn bring_back(&self, is_cut_off: bool) -> Result<(), String> {
        let (Storage::Disk(disk), Some(running)) = (&self.storage, &self.running) else {
            return Ok(());
        };
        disk.reinsert();
        if is_cut_off {
            let queue = QueueOptions::new(0, QUEUE_DEPTH, self.arena.pool(1));
            let attached = running.devices.attach(0, disk, queue);
            attached.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Opens the volume again, if the device does not fail.
    fn open_again(&mut self) -> Result<Stage, String> {
        let failures = match self.random.permille(FAILING_PERMILLE) {
            true => self.random.between(1, FAILURES_MAX) as u32,
            false => 0,
        };
        let Storage::Disk(disk) = &self.storage else {
            return Ok(self.back());
        };
        let opened = self.open_stored(disk, failures);
        let volume = match opened {
            Ok(volume) => volume,
            Err(_) if failures > 0 => return Ok(self.back()),
            Err(error) => return Err(error.to_string()),
        };
        let (reply, answer) = channel();
        self.tell(FileMessage::ReplaceVolume {
            index: self.volume,
            volume: Box::new(volume),
            reply,
        })?;
        if let Storage::Disk(disk) = &self.storage
            && self.random.permille(AGAIN_PERMILLE)
        {
            disk.remove();
            disk.cut_power();
            return Ok(Stage::Gone { is_cut_off: false });
        }
        Ok(Stage::Replacing(answer))
    }

    /// Opens the volume on the device, of whose requests this many of a thousand fail meanwhile.
    fn open_stored(&self, disk: &Disk, failures: u32) -> Result<Volume, stored::StoredError> {
        disk.hold(Nanos::ZERO);
        disk.set_behaviour(self.failing(IDEAL, failures, failures));
        let opened = stored::open(&mut own(disk, &self.arena.pool(1)));
        disk.set_behaviour(self.behaviour);
        opened
    }

    fn make_parts(&mut self) -> Result<Stage, String> {
        let (reply, answer) = channel();
        let parts = self.parts();
        self.tell(FileMessage::PrepareParts { parts, reply })?;
        Ok(Stage::MakingParts(answer))
    }

    fn tell(&mut self, message: FileMessage) -> Result<(), String> {
        let Some(Running { messages, .. }) = &mut self.running else {
            return Ok(());
        };
        let sent = messages.send(message);
        sent.map_err(|it| format!("there is no room for {it:?}"))
    }
}

/// The answer of the server, if it is there.
fn answered<T>(answer: &Receiver<T>) -> Result<Option<T>, String> {
    match answer.try_recv() {
        Ok(it) => Ok(Some(it)),
        Err(TryRecvError::Empty) => Ok(None),
        Err(TryRecvError::Disconnected) => Err("the server has dropped a message".to_owned()),
    }
}
