//! The movement of the data of READs and WRITEs: what a device lends or takes at once, and what moves
//! between memory and the device meanwhile.

use block::DeviceSet;
use files_server::{Lender, Resumption, VolumeIndex};
use files_store::Range;
use reactors::Nanos;

use super::{Fetch, FileCore};
use crate::connections::exceeds_unsent;
use crate::job::{Job, JobKey};
use crate::limits::PIECES_IN_FLIGHT_MAX;
use crate::observed::ServiceCounters;
use crate::payloads::Payloads;
use crate::transfer::{Device, Fetching, Next, lend};

/// How a movement of data goes on.
pub(super) enum Pumped {
    Waits,
    Ended(Resumption),
}

/// What a device lends for the reply of a job.
pub(super) struct Loan<'l> {
    pub(super) devices: &'l [Device],
    pub(super) set: &'l DeviceSet,
    pub(super) counters: &'l ServiceCounters,
    pub(super) payloads: &'l mut Payloads,
    /// Bytes of memory that the reads of the job, and those of its connection hold.
    pub(super) held_by_job: &'l mut usize,
    pub(super) held_by_connection: &'l mut usize,
}

impl Loan<'_> {
    #[inline]
    fn lend_from(&mut self, device: &Device, ranges: &[Range]) -> bool {
        let held = *self.held_by_connection;
        let lent = lend(device, ranges, self.set, self.payloads);
        let Some(bytes) = lent.filter(|&it| !exceeds_unsent(held, it)) else {
            // It would keep writers from what it has while it waits.
            self.payloads.drop_unended();
            return false;
        };
        self.payloads.end_hole();
        self.counters.read_bytes_borrowed.add(bytes as u64);
        *self.held_by_job += bytes;
        *self.held_by_connection += bytes;
        true
    }
}

impl Lender for Loan<'_> {
    #[inline]
    fn lends(&self, volume: VolumeIndex) -> bool {
        self.devices[volume.0].lends
    }

    #[inline]
    fn lend(&mut self, volume: VolumeIndex, range: Range) -> bool {
        self.lend_from(&self.devices[volume.0], &[range])
    }
}

impl FileCore {
    /// Lets the device lend all data of a job's READ for the next hole of its reply. Returns false if
    /// it does not, or if the client has to take replies first.
    pub(super) fn lend(&mut self, job: &mut Job, device: &Device) -> bool {
        let link = self.connections.get_mut(job.connection);
        let Some(link) = link.filter(|it| !it.is_blocked) else {
            return false;
        };
        let mut loan = Loan {
            devices: &self.devices,
            set: &self.set,
            counters: &self.counters,
            payloads: &mut job.payloads,
            held_by_job: &mut job.held_bytes,
            held_by_connection: &mut link.held_bytes,
        };
        loan.lend_from(device, job.execution.ranges())
    }

    /// Lets the device lend the data of a READ that waits for memory.
    pub(super) fn lend_to_waiting(&mut self, job: &mut Job) -> bool {
        let Some(transfer) = &job.transfer else {
            return false;
        };
        let device = transfer.device;
        let may_borrow = transfer.is_read() && transfer.may_borrow && !job.is_reserved;
        let is_lent = may_borrow && self.lend(job, &device);
        if is_lent && let Some(transfer) = job.transfer.take() {
            job.drop_transfer(transfer);
        }
        is_lent
    }

    /// Continues the movement of a job's data.
    pub(super) fn pump(&mut self, key: JobKey, job: &mut Job, received: Option<&[u8]>) -> Pumped {
        let Some(transfer) = &mut job.transfer else {
            return Pumped::Waits;
        };
        let record = received.unwrap_or(&job.record);
        if !transfer.is_read() && std::mem::take(&mut transfer.may_borrow) {
            let written = transfer.write_inline(&self.set, record);
            self.counters.write_bytes_inline.add(written);
        }
        let device = transfer.device;
        if transfer.is_read() && !job.is_reserved {
            let bytes = transfer.read_bytes();
            let connection = self.connections.get_mut(job.connection);
            let is_over = connection.as_ref().is_some_and(|it| it.is_over(bytes));
            if is_over || !transfer.reserve(&self.pool) {
                self.awaiting_memory.push_back(key);
                return Pumped::Waits;
            }
            job.is_reserved = true;
            job.held_bytes += bytes;
            if let Some(connection) = connection {
                connection.held_bytes += bytes;
            }
        }
        loop {
            let set = &self.set;
            let can_borrow = |lba, blocks| set.can_borrow_read(device.place, lba, blocks);
            let next = transfer.next(record, &self.pool, PIECES_IN_FLIGHT_MAX, can_borrow);
            match next {
                Next::Submit(piece, mut request) => {
                    request.tag = key.tag(piece);
                    match set.submit(self.id, device.place, request) {
                        Ok(_) => self.outstanding += 1,
                        Err(error) => transfer.refused(error),
                    }
                }
                Next::Fetch(piece, fetching) => {
                    let Fetching {
                        lease,
                        skip,
                        data_at,
                        length,
                    } = fetching;
                    self.fetches.push_back(Fetch {
                        job: key,
                        piece,
                        connection: job.connection,
                        lease,
                        skip,
                        data_at,
                        length,
                    });
                }
                Next::AwaitDevice => return Pumped::Waits,
                Next::AwaitMemory => {
                    self.awaiting_memory.push_back(key);
                    return Pumped::Waits;
                }
                Next::Ended(resumption) => {
                    self.has_progress = true;
                    job.is_reserved = false;
                    let ended = job.transfer.take();
                    if let Some(mut ended) = ended {
                        let copied = match ended.is_read() {
                            true => &self.counters.read_bytes_copied,
                            false => &self.counters.write_bytes_copied,
                        };
                        copied.add(ended.copied_bytes());
                        if ended.is_read() {
                            ended.take_parts().for_each(|it| job.payloads.push(it));
                            job.payloads.end_hole();
                        }
                        job.drop_transfer(ended);
                    }
                    return Pumped::Ended(resumption);
                }
            }
        }
    }

    /// Continues the movement of a job's data, and the job after its end.
    pub(super) fn go_on(&mut self, key: JobKey, mut job: Box<Job>, now: Nanos) {
        match self.pump(key, &mut job, None) {
            Pumped::Waits => self.jobs.put(key, job),
            Pumped::Ended(ended) => self.advance(key, job, None, Some(ended), now),
        }
    }
}
