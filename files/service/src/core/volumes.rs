//! The volumes of the service: their requests, and the change of volumes while it serves.

use std::sync::mpsc::Sender;

use files_server::VolumeIndex;
use files_store::Volume;
use reactors::{Nanos, ring};

use super::FileCore;
use crate::job::JobKey;
use crate::observed::FileMessage;
use crate::volume_requests::VolumeRequests;

/// A volume that takes the place of a lost one.
pub(super) struct Returning {
    index: VolumeIndex,
    volume: Box<Volume>,
    reply: Sender<()>,
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
        lost + self.replace_volumes()
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
                    let time = self.time_now(now);
                    let prepared = self.server.prepare_parts(&parts, &time);
                    self.has_volume_requests = true;
                    reply.send(prepared).is_ok()
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
                FileMessage::PrepareReplacement { index, reply } => {
                    self.returning.retain(|it| it.index != index);
                    reply.send(self.server.volumes()[index.0].is_lost()).is_ok()
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
