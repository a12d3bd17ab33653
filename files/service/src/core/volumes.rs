//! The volumes of the service: their requests, and the change of volumes while it serves.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use files_server::{Part, PartOptions, VolumeIndex};
use files_store::{Error, Progress, Ticket, Volume};
use reactors::{Nanos, ring};

use super::{DeviceOfVolume, FileCore};
use crate::job::JobKey;
use crate::limits::VOLUMES_MAX;
use crate::observed::{FileMessage, ListenerChange, PreparedReplacement};
use crate::transfer::Device;
use crate::volume_requests::VolumeRequests;

/// Limit of the places of volumes, also of removed ones that requests still refer to.
const PLACES_MAX: usize = 4 * VOLUMES_MAX;

/// A volume that takes the place of a lost one.
pub(super) struct Returning {
    index: VolumeIndex,
    volume: Box<Volume>,
    reply: Sender<()>,
}

/// A volume that is to be removed.
pub(super) struct Removing {
    index: VolumeIndex,
    reply: Sender<Option<Box<Volume>>>,
}

/// Directories of shares that are not durable yet.
pub(super) struct Preparing {
    parts: Vec<Part>,
    /// What has to be durable, of each part's volume.
    tickets: Vec<(VolumeIndex, Ticket)>,
    reply: Sender<Result<Vec<Part>, (usize, Error)>>,
}

impl FileCore {
    /// Carries out the requests of the volumes, and continues the jobs whose changes are durable.
    pub(super) fn carry_out_volumes(&mut self, now: Nanos) -> usize {
        let mut ended = 0;
        while std::mem::take(&mut self.has_volume_requests) {
            let (mut has_ended, mut awaits_memory) = (false, false);
            let requests = self.volume_requests.iter_mut();
            for (volume, requests) in self.server.volumes_mut().iter_mut().zip(requests) {
                let Some(requests) = requests else {
                    continue;
                };
                if volume.is_lost() {
                    requests.end();
                    continue;
                }
                let carried = requests.carry_out(volume, self.id, &self.set, &self.pool);
                self.outstanding += carried.submitted;
                has_ended |= carried.has_ended;
                awaits_memory |= carried.awaits_memory;
            }
            if has_ended {
                ended += self.resume_durable(now);
                self.has_progress = true;
            }
            if awaits_memory {
                self.has_volume_requests = true;
                break;
            }
        }
        ended
    }

    /// Finds the volumes whose device is gone, or was. Returns their number.
    pub(super) fn find_lost(&mut self, now: Nanos) -> usize {
        let mut lost = 0;
        for index in 0..self.volume_requests.len() {
            let Some(requests) = &self.volume_requests[index] else {
                continue;
            };
            if requests.is_lost(&self.set) && !self.server.volumes()[index].is_lost() {
                lost += 1;
                self.lose_volume(index, now);
            }
        }
        lost + self.answer_prepared() + self.replace_volumes() + self.remove_volumes()
    }

    /// Makes directories of shares, which may be shared when they are durable: clients keep them as
    /// file handles.
    fn prepare_parts(
        &mut self,
        parts: &[PartOptions],
        reply: Sender<Result<Vec<Part>, (usize, Error)>>,
        now: Nanos,
    ) {
        self.has_volume_requests = true;
        let time = self.time_now(now);
        match self.server.prepare_parts(parts, &time) {
            Ok(made) => {
                let ticket = |it: &PartOptions| {
                    let volume = &self.server.volumes()[it.volume.0];
                    (it.volume, volume.commit())
                };
                self.preparing.push(Preparing {
                    parts: made,
                    tickets: parts.iter().map(ticket).collect(),
                    reply,
                });
            }
            // A response without a receiver is not needed.
            Err(failed) => drop(reply.send(Err(failed))),
        }
    }

    /// Answers for the directories of shares that are durable or lost. Returns their number.
    fn answer_prepared(&mut self) -> usize {
        if self.preparing.is_empty() {
            return 0;
        }
        let mut answered = 0;
        for preparing in std::mem::take(&mut self.preparing) {
            let volumes = self.server.volumes();
            let states = preparing
                .tickets
                .iter()
                .map(|&(index, ticket)| volumes[index.0].progress(ticket));
            let states: Vec<Progress> = states.collect();
            let answer = if let Some(index) = states.iter().position(|it| *it == Progress::Failed) {
                Err((index, Error::Io))
            } else if states.contains(&Progress::Pending) {
                self.preparing.push(preparing);
                continue;
            } else {
                Ok(preparing.parts)
            };
            answered += 1;
            // A response without a receiver is not needed.
            let _ = preparing.reply.send(answer);
        }
        answered
    }

    /// Ends all that is done with a volume whose device is gone. Its clients ask again.
    fn lose_volume(&mut self, index: usize, now: Nanos) {
        self.server.lose_volume(VolumeIndex(index));
        self.levels[index].set(&self.server.volumes()[index]);
        let place = self.devices[index].place;
        for key in self.jobs.keys() {
            let Some(mut job) = self.jobs.take(key) else {
                continue;
            };
            match &mut job.transfer {
                Some(transfer) if transfer.device.place == place => {
                    transfer.lose();
                    self.go_on(key, job, now);
                }
                _ => self.jobs.put(key, job),
            }
        }
        self.resume_durable(now);
        self.has_volume_requests = true;
        self.has_progress = true;
    }

    /// Replaces lost volumes that no request uses any more. Returns their number.
    fn replace_volumes(&mut self) -> usize {
        if self.returning.is_empty() {
            return 0;
        }
        let mut replaced = 0;
        for returning in std::mem::take(&mut self.returning) {
            let index = returning.index;
            if !self.is_unused(index) {
                self.returning.push(returning);
                continue;
            }
            replaced += 1;
            let device = self.devices[index.0];
            self.server.replace_volume(index, *returning.volume);
            let requests = VolumeRequests::new(index.0, device, &self.set, &self.pool);
            self.volume_requests[index.0] = Some(requests);
            self.levels[index.0].set(&self.server.volumes()[index.0]);
            self.has_volume_requests = true;
            // A response without a receiver is not needed.
            let _ = returning.reply.send(());
        }
        replaced
    }

    /// Returns volumes that are to be removed and that nothing uses any more. Returns their number.
    fn remove_volumes(&mut self) -> usize {
        if self.removing.is_empty() {
            return 0;
        }
        let mut removed = 0;
        for removing in std::mem::take(&mut self.removing) {
            let index = removing.index;
            let volume = &self.server.volumes()[index.0];
            let has_ended = volume.is_volatile() || volume.has_failed() || volume.is_idle();
            let is_shared = self.server.is_shared(index);
            let may_answer = is_shared || has_ended && self.is_unused(index);
            if !may_answer {
                self.removing.push(removing);
                continue;
            }
            removed += 1;
            let taken = (!is_shared).then(|| {
                self.volume_requests[index.0] = None;
                self.vacant.push(index);
                Box::new(self.server.take_volume(index))
            });
            // A response without a receiver is not needed.
            let _ = removing.reply.send(taken);
        }
        removed
    }

    /// Serves one more volume. Returns it if there is no place for it.
    fn add_volume(
        &mut self,
        volume: Box<Volume>,
        device: &DeviceOfVolume,
    ) -> Result<VolumeIndex, Box<Volume>> {
        let places = self.server.volumes().len();
        let unused = (0..self.vacant.len()).find(|it| self.is_unused(self.vacant[*it]));
        let index = match unused {
            Some(it) => self.vacant.swap_remove(it),
            None if places - self.vacant.len() < VOLUMES_MAX && places < PLACES_MAX => {
                VolumeIndex(places)
            }
            None => return Err(volume),
        };
        let transfer = device.transfer_bytes.min(self.pool.max_transfer());
        let levels = Arc::clone(&device.levels);
        let may_return = !volume.is_volatile();
        let device = Device::new(device, transfer, may_return, &self.set);
        let requests = (!volume.is_volatile())
            .then(|| VolumeRequests::new(index.0, device, &self.set, &self.pool));
        levels.set(&volume);
        self.server.add_volume(index, *volume);
        self.has_lender |= device.lends;
        if index.0 == self.devices.len() {
            self.devices.push(device);
            self.volume_requests.push(requests);
            self.levels.push(levels);
        } else {
            self.devices[index.0] = device;
            self.volume_requests[index.0] = requests;
            self.levels[index.0] = levels;
        }
        self.has_volume_requests = true;
        Ok(index)
    }

    /// The next change of the listeners over TCP.
    pub fn next_listener_change(&mut self) -> Option<ListenerChange> {
        self.listener_changes.pop_front()
    }

    /// Whether neither a request of a client nor one of the volume itself is in flight for it.
    fn is_unused(&mut self, index: VolumeIndex) -> bool {
        let requests = self.volume_requests[index.0].as_mut();
        let has_requests = requests.is_some_and(|it| !it.end());
        let uses = |key: &JobKey| {
            let job = self.jobs.get(*key);
            job.is_some_and(|it| self.server.is_used_by(&it.execution, index))
        };
        !has_requests && !self.jobs.keys().iter().any(uses)
    }

    /// Carries out requests of the control path to devices. Returns their number.
    pub(super) fn carry_out_accesses(&mut self) -> usize {
        let is_submitted = self.accesses.carry_out(self.id, &self.set, &self.pool);
        self.outstanding += usize::from(is_submitted);
        usize::from(is_submitted)
    }

    /// Carries out what operators ask for. Returns the number of messages.
    pub fn carry_out_messages(&mut self, now: Nanos) -> usize {
        let mut count = 0;
        while let Some(message) = self.messages.as_mut().and_then(ring::Receiver::recv) {
            count += 1;
            // A response without a receiver is not needed.
            let _ = match message {
                FileMessage::Clients { reply } => {
                    reply.send(self.server.clients(&self.time_now(now))).is_ok()
                }
                FileMessage::Evict { number, reply } => {
                    let is_evicted = self.server.evict_client(number);
                    // Others may have waited for what the client had, and files may have to be freed.
                    self.has_volume_requests = true;
                    self.has_progress = true;
                    reply.send(is_evicted).is_ok()
                }
                FileMessage::PrepareParts { parts, reply } => {
                    self.prepare_parts(&parts, reply, now);
                    true
                }
                FileMessage::SetShares { shares, reply } => {
                    let time = self.time_now(now);
                    self.server.set_shares(shares, &time);
                    self.has_volume_requests = true;
                    self.has_progress = true;
                    reply.send(()).is_ok()
                }
                FileMessage::Access(access) => {
                    self.accesses.push(access);
                    true
                }
                FileMessage::AddVolume {
                    volume,
                    device,
                    reply,
                } => reply.send(self.add_volume(volume, &device)).is_ok(),
                FileMessage::RemoveVolume { index, reply } => {
                    self.returning.retain(|it| it.index != index);
                    self.removing.push(Removing { index, reply });
                    true
                }
                FileMessage::KeepVolume { index, reply } => {
                    self.removing.retain(|it| it.index != index);
                    reply.send(!self.vacant.contains(&index)).is_ok()
                }
                FileMessage::ChangeListener(change) => {
                    self.listener_changes.push_back(change);
                    true
                }
                FileMessage::KeepRecords(records) => {
                    self.new_records = Some(records);
                    true
                }
                FileMessage::PrepareReplacement { index, reply } => {
                    self.returning.retain(|it| it.index != index);
                    let volume = &mut self.server.volumes_mut()[index.0];
                    let prepared = match volume.is_lost() {
                        true => PreparedReplacement::Lost(volume.take_former()),
                        false => PreparedReplacement::NotLost,
                    };
                    reply.send(prepared).is_ok()
                }
                FileMessage::ReplaceVolume {
                    index,
                    volume,
                    reply,
                } => {
                    self.returning.push(Returning {
                        index,
                        volume,
                        reply,
                    });
                    true
                }
            };
        }
        count
    }
}
