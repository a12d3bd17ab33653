//! Copies of a host within a namespace and across those of its subsystem (NVM 1.1 §3.3.2), valid and
//! invalid.

use nvme_spec::command::{CopyFormat, CopyRange};
use nvme_spec::{Sqe, Status};
use zerocopy::IntoBytes;

use super::connection::{Sending, Transfer};
use super::invalid::Refusal;
use super::{Command, Host, HostEnv, Io, IoKind};
use crate::faults::Fault;
use crate::judge::Extent;
use crate::random::Random;

/// Most source ranges of a Copy (NVM 1.1 §4.1.5.1, MSRC).
pub const RANGES_MAX: u64 = 16;
/// Most bytes of a Copy, if a transfer may have as many (NVM 1.1 §4.1.5.1, MCL and MSSRL).
pub const BYTES_MAX: u64 = 256 << 10;

fn list(sources: &[Extent]) -> Vec<u8> {
    let ranges = sources
        .iter()
        .map(|it| CopyRange::new(it.lba, (it.blocks - 1) as u16));
    ranges.collect::<Vec<_>>().as_slice().as_bytes().to_vec()
}

/// Whether a source range overlaps the destination, which is not allowed if ranges name namespaces.
fn overlaps(sources: &[Extent], disk: usize, to: u64) -> bool {
    let end = to + sources.iter().map(|it| u64::from(it.blocks)).sum::<u64>();
    let mut there = sources.iter().filter(|it| it.disk == disk);
    there.any(|it| it.lba < end && to < it.lba + u64::from(it.blocks))
}

impl Host {
    /// Copies ranges of disks to the blocks of `disk` from `to` on, on any queue with room. Returns
    /// false if there is none, the host may not, or the judge could not tell the result.
    pub fn copy(
        &mut self,
        env: &mut HostEnv<'_>,
        sources: &[Extent],
        (disk, to): (usize, u64),
        fua: bool,
    ) -> bool {
        let open = self.io.iter().position(|it| it.room() > 0 && !it.closing);
        let Some(index) = open.filter(|_| self.can_reach_disks()) else {
            return false;
        };
        let is_across = sources.iter().any(|it| it.disk != disk);
        if is_across && (!self.copies_namespaces() || overlaps(sources, disk, to)) {
            return false;
        }
        let blocks = sources.iter().flat_map(|it| {
            let lbas = it.lba..it.lba + u64::from(it.blocks);
            lbas.map(|lba| (it.disk, lba))
        });
        let blocks: Vec<(usize, u64)> = blocks.collect();
        let Some((version, began)) = env.judge.begin_copy(disk, &blocks, to) else {
            return false;
        };
        if env.swarm.faults.has(Fault::Ana) {
            env.judge.ana.note_sender(version, self.number);
        }
        let extent = Extent {
            disk,
            lba: to,
            blocks: blocks.len() as u32,
        };
        let fua = fua && self.flushes(disk);
        let io = Io {
            version,
            began,
            durable: fua || self.writes_through(disk),
            sources: if is_across {
                sources.to_vec()
            } else {
                Vec::new()
            },
            ..Io::new(IoKind::Copy, vec![extent], fua)
        };
        let (nsid, nr_z) = (self.nsid(env, disk), (sources.len() - 1) as u8);
        let (sqe, list) = match is_across {
            true => {
                env.figures.copies_across += 1;
                let named = sources.iter().map(|it| {
                    let nsid = self.nsid(env, it.disk);
                    CopyRange::of_namespace(nsid, it.lba, (it.blocks - 1) as u16)
                });
                let named: Vec<CopyRange> = named.collect();
                let list = named.as_slice().as_bytes().to_vec();
                (Sqe::copy_from_namespaces(nsid, to, nr_z), list)
            }
            false => (Sqe::copy_ranges(nsid, to, nr_z), list(sources)),
        };
        let mut command = sqe.copy();
        command.control = command.control.with_fua(fua);
        let number = self.number;
        env.trace
            .note(env.now, format_args!("host {number} copies {sources:?}"));
        let transfer = Transfer::Out(list);
        self.submit_io(env, index, io, sqe.with_copy(command), transfer);
        true
    }

    /// Sends a Copy that violates one rule, and whose first range and destination are valid. Returns
    /// false if no queue has room.
    pub fn copy_wrongly(
        &mut self,
        env: &mut HostEnv<'_>,
        random: &mut Random,
        disk: usize,
    ) -> bool {
        let open = self.io.iter().position(|it| it.room() > 0 && !it.closing);
        let Some(index) = open.filter(|_| self.can_reach_disks()) else {
            return false;
        };
        let shape = env.swarm.disks[disk];
        let one = Extent {
            disk,
            lba: 0,
            blocks: 1,
        };
        let most = BYTES_MAX.min(env.swarm.transfer_max as u64) / u64::from(shape.block_size);
        let to = env.judge.written(disk).unwrap_or_default();
        let mut sqe = Sqe::copy_ranges(self.nsid(env, disk), to, 0);
        let mut command = sqe.copy();
        let (mut sources, status) = (vec![one], Status::COMMAND_SIZE_LIMIT_EXCEEDED);
        // The last two are refused with another status if the namespace becomes read-only meanwhile.
        let may_change = [Fault::ReadOnly, Fault::Keys, Fault::Compound];
        let may_change = may_change.iter().any(|it| env.swarm.faults.has(*it));
        let named = if self.copies_namespaces() { 2 } else { 0 };
        let mut list = None;
        let status = match random.below(if may_change { 3 } else { 5 + named }) {
            0 => {
                // It may have enabled format 2.
                let format = match random.between(1, 15) as u8 {
                    2 => CopyFormat::NAMESPACES_WIDE_GUARD,
                    other => CopyFormat(other),
                };
                command.control = command.control.with_format(format);
                Status::INVALID_FIELD
            }
            1 => {
                command.control = command.control.with_dtype(1);
                Status::INVALID_FIELD
            }
            2 => {
                sources = vec![one; RANGES_MAX as usize + 1];
                status
            }
            3 => {
                let blocks = most as u32;
                sources = vec![one, Extent { blocks, ..one }];
                status
            }
            5 => {
                // The destination itself.
                command.control = command.control.with_format(CopyFormat::NAMESPACES);
                list = Some(CopyRange::of_namespace(sqe.nsid.get(), to, 0));
                Status::OVERLAPPING_IO_RANGE
            }
            6 => {
                command.control = command.control.with_format(CopyFormat::NAMESPACES);
                list = Some(CopyRange::of_namespace(random.pick(&[0, u32::MAX]), 0, 0));
                Status::INVALID_NAMESPACE_OR_FORMAT
            }
            // Beyond every size that the disk may grow to.
            _ => {
                let lba = 1 << 40;
                sources.push(Extent { lba, ..one });
                Status::LBA_OUT_OF_RANGE
            }
        };
        command.control = command.control.with_nr_z((sources.len() - 1) as u8);
        sqe = sqe.with_copy(command);
        let refusal = Refusal {
            untouched: Some(to),
            ..Refusal::of(&sqe, Some(disk), status)
        };
        let data = match list {
            Some(range) => range.as_bytes().to_vec(),
            None => self::list(&sources),
        };
        let sending = Sending {
            transfer: Transfer::Out(data),
            ..Sending::plain(sqe, Command::Invalid(refusal))
        };
        self.io[index].submit(sending, env.now);
        true
    }
}
