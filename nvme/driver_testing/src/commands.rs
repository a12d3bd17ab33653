//! I/O commands of the NVM command set (NVM 1.1 §3.3).

use nvme_spec::command::{
    CopyFormat, CopyRange, DatasetRange, Fuse, IoOpcode, Sqe, WriteZeroesControl,
};
use nvme_spec::identify::DeallocatedRead;
use nvme_spec::registers::page_bytes;
use nvme_spec::{NSID_BROADCAST, Status};
use zerocopy::{FromZeros, IntoBytes};

use super::bus::Bus;
use super::state::{Outcome, State};
use super::transfer::{PointerRules, TRANSFER_BYTES_MAX};

const FIELD: Status = Status::INVALID_FIELD.with_dnr();

/// Source ranges of a Copy that can be encoded.
const RANGES_MAX: usize = 256;

/// Content of deallocated blocks if the namespace promises none.
const STALE: u8 = 0xde;

/// A checked range of a namespace.
#[derive(Clone, Copy)]
struct Blocks {
    /// Index of the namespace.
    namespace: usize,
    lba: u64,
    count: u64,
}

impl State {
    pub(super) fn execute_io(&mut self, bus: &Bus, sqe: &Sqe) -> Outcome {
        if sqe.flags.fuse() != Fuse::NORMAL {
            return FIELD.into();
        }
        let optional = self.options.optional_commands;
        match sqe.io_opcode() {
            IoOpcode::READ => self.read(bus, sqe),
            IoOpcode::WRITE => self.write(bus, sqe),
            IoOpcode::FLUSH => self.flush(sqe),
            IoOpcode::COPY if self.options.copy.is_some() => {
                return self.copy(bus, sqe, None, self.failing_range());
            }
            IoOpcode::COMPARE if optional => self.compare(bus, sqe),
            IoOpcode::WRITE_ZEROES if optional => self.write_zeroes(sqe),
            IoOpcode::DATASET_MANAGEMENT if optional => self.manage_dataset(bus, sqe),
            _ => Err(Status::INVALID_OPCODE.with_dnr()),
        }
        .into()
    }

    /// Largest transfer of a command, in bytes (MDTS).
    pub(super) fn transfer_bytes_max(&self) -> usize {
        self.limit_bytes(self.options.transfer_code)
            .map_or(TRANSFER_BYTES_MAX, |limit| limit.min(TRANSFER_BYTES_MAX))
    }

    /// 2^code smallest pages in bytes; `None` for code 0, which means no limit.
    fn limit_bytes(&self, code: u8) -> Option<usize> {
        let page = page_bytes(self.options.page_code_min) as usize;
        (code > 0).then(|| page.checked_shl(u32::from(code)).unwrap_or(usize::MAX))
    }

    fn namespace_of(&self, sqe: &Sqe) -> Result<usize, Status> {
        const INVALID: Status = Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr();
        let index = self.index_of_active(sqe.nsid.get()).ok_or(INVALID)?;
        if self.namespaces[index].config.metadata_bytes > 0 {
            return Err(INVALID);
        }
        Ok(index)
    }

    fn blocks(&self, namespace: usize, lba: u64, count: u64) -> Result<Blocks, Status> {
        let total = self.namespaces[namespace].block_count;
        if lba >= total || count > total - lba {
            return Err(Status::LBA_OUT_OF_RANGE.with_dnr());
        }
        Ok(Blocks {
            namespace,
            lba,
            count,
        })
    }

    fn block_size(&self, blocks: Blocks) -> usize {
        self.namespaces[blocks.namespace].config.block_size as usize
    }

    /// Checks the range of a Read, Write or Compare and decodes its data pointer.
    fn prepare(&mut self, bus: &Bus, sqe: &Sqe) -> Result<Blocks, Status> {
        let namespace = self.namespace_of(sqe)?;
        let command = sqe.read_write();
        let count = u64::from(command.blocks());
        let bytes = count as usize * self.namespaces[namespace].config.block_size as usize;
        if bytes > self.transfer_bytes_max() {
            return Err(FIELD);
        }
        let blocks = self.blocks(namespace, command.slba.get(), count)?;
        let rules = PointerRules {
            page: self.page(),
            sgl: self.options.sgl,
        };
        self.transfer.gather(bus, sqe, bytes, rules)?;
        Ok(blocks)
    }

    fn read(&mut self, bus: &Bus, sqe: &Sqe) -> Result<(), Status> {
        let blocks = self.prepare(bus, sqe)?;
        let medium = &self.namespaces[blocks.namespace].medium;
        let data = medium.read(blocks.lba, blocks.count);
        self.transfer.send(bus, data)?;
        self.health.reads += 1;
        self.health.bytes_read += data.len() as u128;
        Ok(())
    }

    /// Transfers the data of a Read or Write without any other effect.
    pub(super) fn transfer_only(&mut self, bus: &Bus, sqe: &Sqe) {
        let opcode = sqe.io_opcode();
        if !matches!(opcode, IoOpcode::READ | IoOpcode::WRITE) {
            return;
        }
        let Ok(blocks) = self.prepare(bus, sqe) else {
            return;
        };
        let medium = &self.namespaces[blocks.namespace].medium;
        let data = medium.read(blocks.lba, blocks.count);
        // Ignore errors: there is no completion to report them.
        let _ = match opcode {
            IoOpcode::READ => self.transfer.send(bus, data),
            _ => self.transfer.equals(bus, data).map(|_| ()),
        };
    }

    fn check_writable(&self, namespace: usize) -> Result<(), Status> {
        if self.namespaces[namespace].write_protected {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.with_dnr());
        }
        Ok(())
    }

    fn write(&mut self, bus: &Bus, sqe: &Sqe) -> Result<(), Status> {
        let blocks = self.prepare(bus, sqe)?;
        self.check_writable(blocks.namespace)?;
        let medium = &mut self.namespaces[blocks.namespace].medium;
        let room = medium.write(blocks.lba, blocks.count);
        self.transfer.fetch(bus, room)?;
        let bytes = room.len();
        self.health.writes += 1;
        self.health.bytes_written += bytes as u128;
        self.commit_if_required(blocks, sqe.read_write().control.fua());
        Ok(())
    }

    /// Commits written blocks if the host requests it or the cache is off.
    fn commit_if_required(&mut self, blocks: Blocks, force: bool) {
        if force || !self.features.write_cache {
            let medium = &mut self.namespaces[blocks.namespace].medium;
            medium.commit(blocks.lba, blocks.count);
        }
    }

    fn compare(&mut self, bus: &Bus, sqe: &Sqe) -> Result<(), Status> {
        let blocks = self.prepare(bus, sqe)?;
        let medium = &self.namespaces[blocks.namespace].medium;
        let data = medium.read(blocks.lba, blocks.count);
        if self.transfer.equals(bus, data)? {
            Ok(())
        } else {
            Err(Status::COMPARE_FAILURE)
        }
    }

    fn flush(&mut self, sqe: &Sqe) -> Result<(), Status> {
        if sqe.nsid.get() == NSID_BROADCAST {
            self.flush_all();
            return Ok(());
        }
        let namespace = self.namespace_of(sqe)?;
        self.namespaces[namespace].medium.flush();
        Ok(())
    }

    fn write_zeroes(&mut self, sqe: &Sqe) -> Result<(), Status> {
        let namespace = self.namespace_of(sqe)?;
        let command = sqe.write_zeroes();
        let control: WriteZeroesControl = command.control;
        let count = u64::from(control.nlb_z()) + 1;
        let blocks = self.blocks(namespace, command.slba.get(), count)?;
        let bytes = count as usize * self.block_size(blocks);
        let limit = self.limit_bytes(self.options.write_zeroes_code);
        if limit.is_some_and(|limit| bytes > limit) {
            return Err(FIELD);
        }
        self.check_writable(namespace)?;
        self.fill(blocks, 0);
        self.commit_if_required(blocks, control.fua());
        Ok(())
    }

    fn fill(&mut self, blocks: Blocks, byte: u8) {
        let medium = &mut self.namespaces[blocks.namespace].medium;
        medium.write(blocks.lba, blocks.count).fill(byte);
    }

    /// Deallocate (NVM 1.1 §3.3.3). The other attributes are hints and ignored.
    fn manage_dataset(&mut self, bus: &Bus, sqe: &Sqe) -> Result<(), Status> {
        let namespace = self.namespace_of(sqe)?;
        let command = sqe.dataset_management();
        let rules = PointerRules {
            page: self.page(),
            sgl: self.options.sgl,
        };
        let mut ranges = [DatasetRange::new_zeroed(); 256];
        let ranges = &mut ranges[..command.ranges()];
        let bytes = ranges.as_mut_bytes();
        self.transfer.gather(bus, sqe, bytes.len(), rules)?;
        self.transfer.fetch(bus, bytes)?;
        for range in ranges.iter() {
            let (lba, count) = (range.slba.get(), u64::from(range.length.get()));
            if count > 0 {
                self.blocks(namespace, lba, count)?;
            }
        }
        if !command.attributes.ad() {
            return Ok(());
        }
        self.check_writable(namespace)?;
        let promised = self.namespaces[namespace].config.deallocated;
        let byte = match promised {
            DeallocatedRead::ZEROES => 0,
            DeallocatedRead::ONES => 0xff,
            _ => STALE,
        };
        for range in ranges.iter().filter(|range| range.length.get() > 0) {
            let blocks = Blocks {
                namespace,
                lba: range.slba.get(),
                count: u64::from(range.length.get()),
            };
            self.fill_in_spans(blocks, byte);
        }
        Ok(())
    }

    /// The source range at which each Copy fails.
    fn failing_range(&self) -> Option<u8> {
        self.options.copy.and_then(|it| it.failing_range)
    }

    /// Copies the source ranges one after the other: all, or only the first `ranges`. If one fails, Dword
    /// 0 of the completion is its number, and those before it are copied. The range `failing` fails.
    pub(super) fn copy(
        &mut self,
        bus: &Bus,
        sqe: &Sqe,
        ranges: Option<usize>,
        failing: Option<u8>,
    ) -> Outcome {
        let mut list = [CopyRange::new_zeroed(); RANGES_MAX];
        let list = match self.prepare_copy(bus, sqe, &mut list) {
            Ok((namespace, count)) => (namespace, &list[..ranges.unwrap_or(count).min(count)]),
            Err(status) => return status.into(),
        };
        let (namespace, list) = list;
        let is_across = sqe.copy().control.format().names_namespaces();
        let fua = sqe.copy().control.fua();
        let mut to = sqe.copy().sdlba.get();
        for (number, range) in list.iter().enumerate() {
            let count = u64::from(range.blocks());
            let source = match failing.is_some_and(|it| usize::from(it) == number) {
                true => Err(Status::UNRECOVERED_READ_ERROR),
                false => self
                    .copy_source(namespace, range, is_across)
                    .and_then(|from| self.blocks(from, range.slba.get(), count)),
            };
            let source = match source {
                Ok(source) => source,
                Err(status) => return Outcome::Done(status, number as u64),
            };
            self.copy_blocks(namespace, source, to);
            let written = Blocks {
                namespace,
                lba: to,
                count,
            };
            self.commit_if_required(written, fua);
            to += count;
        }
        Outcome::Done(Status::SUCCESS, 0)
    }

    /// The namespace of a source range: that of the command, or the one that the range names, which has
    /// the same format.
    fn copy_source(
        &self,
        namespace: usize,
        range: &CopyRange,
        is_across: bool,
    ) -> Result<usize, Status> {
        const INVALID: Status = Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr();
        if !is_across {
            return Ok(namespace);
        }
        let source = self.index_of_active(range.snsid.get()).ok_or(INVALID)?;
        let format = |index: usize| {
            let config = &self.namespaces[index].config;
            (config.block_size, config.metadata_bytes)
        };
        match format(source) == format(namespace) {
            true => Ok(source),
            false => Err(INVALID),
        }
    }

    fn copy_blocks(&mut self, namespace: usize, source: Blocks, to: u64) {
        let places = [source.namespace, namespace];
        match self.namespaces.get_disjoint_mut(places) {
            Ok([from, into]) => {
                let data = from.medium.read(source.lba, source.count);
                into.medium.write(to, source.count).copy_from_slice(data);
            }
            // They are the same.
            Err(_) => {
                let medium = &mut self.namespaces[namespace].medium;
                medium.copy(source.lba, to, source.count);
            }
        }
    }

    /// Checks a Copy and fetches its source ranges. Returns its namespace and their number.
    fn prepare_copy(
        &mut self,
        bus: &Bus,
        sqe: &Sqe,
        list: &mut [CopyRange; RANGES_MAX],
    ) -> Result<(usize, usize), Status> {
        const SIZE: Status = Status::COMMAND_SIZE_LIMIT_EXCEEDED.with_dnr();
        let limits = self.options.copy.ok_or(Status::INVALID_OPCODE.with_dnr())?;
        let namespace = self.namespace_of(sqe)?;
        let command = sqe.copy();
        let is_enabled = self.features.behavior.cdfe.format_2();
        match command.control.format() {
            CopyFormat::SAME_NAMESPACE => {}
            CopyFormat::NAMESPACES if is_enabled => {}
            _ => return Err(FIELD),
        }
        let count = command.ranges();
        if command.control.nr_z() > limits.ranges_max_z {
            return Err(SIZE);
        }
        let rules = PointerRules {
            page: self.page(),
            sgl: self.options.sgl,
        };
        let bytes = list[..count].as_mut_bytes();
        self.transfer.gather(bus, sqe, bytes.len(), rules)?;
        self.transfer.fetch(bus, bytes)?;
        let lengths = list[..count].iter().map(CopyRange::blocks);
        let blocks: u32 = lengths.clone().sum();
        let longest = lengths.max().unwrap_or_default();
        if longest > u32::from(limits.range_blocks_max) || blocks > limits.blocks_max {
            return Err(SIZE);
        }
        self.blocks(namespace, command.sdlba.get(), u64::from(blocks))?;
        self.check_writable(namespace)?;
        Ok((namespace, count))
    }

    /// Fills a deallocated range in steps, because it may exceed the capacity of the cache.
    fn fill_in_spans(&mut self, blocks: Blocks, byte: u8) {
        const SPAN: u64 = 1 << 14;
        let (mut lba, end) = (blocks.lba, blocks.lba + blocks.count);
        while lba < end {
            let count = SPAN.min(end - lba);
            let span = Blocks {
                lba,
                count,
                ..blocks
            };
            self.fill(span, byte);
            self.commit_if_required(span, false);
            lba += count;
        }
    }

    /// Executes parts of a write that a power cut interrupts, random blocks of it; of a Copy, the first
    /// ranges.
    pub(super) fn write_in_part(&mut self, bus: &Bus, sqe: &Sqe) {
        if sqe.io_opcode() == IoOpcode::COPY && self.options.copy.is_some() {
            let ranges = self.seeded.below(sqe.copy().ranges() as u64) as usize;
            let _ = self.copy(bus, sqe, Some(ranges), self.failing_range());
            return;
        }
        if sqe.io_opcode() != IoOpcode::WRITE {
            return;
        }
        let Ok(blocks) = self.prepare(bus, sqe) else {
            return;
        };
        let atomic = u64::from(self.options.atomic_blocks);
        let protected = self.namespaces[blocks.namespace].write_protected;
        if protected || self.seeded.below(2) == 0 {
            return;
        }
        if blocks.count <= atomic {
            let _ = self.write(bus, sqe);
            return;
        }
        let block_size = self.block_size(blocks);
        let mut block = [0; 4096];
        for index in 0..blocks.count {
            if block_size > block.len() || self.seeded.below(2) == 0 {
                continue;
            }
            let bytes = &mut block[..block_size];
            let skip = index as usize * block_size;
            if self.transfer.fetch_part(bus, skip, bytes).is_err() {
                return;
            }
            let medium = &mut self.namespaces[blocks.namespace].medium;
            medium.write(blocks.lba + index, 1).copy_from_slice(bytes);
        }
    }
}
