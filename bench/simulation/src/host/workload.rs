//! The workload of a host: I/O of all kinds and sizes, and misbehaviour on request.

use nvme_spec::Sqe;
use nvme_spec::command::{DATASET_RANGES_MAX, DatasetRange, WriteZeroesControl};
use reactors::Nanos;
use zerocopy::IntoBytes;

use super::connection::{Damage, Sending, Transfer, Vanished};
use super::invalid::GARBAGE;
use super::rdma::disturb_next_connection;
use super::wrong_data::WrongData;
use super::{Command, Connection, Host, HostEnv, Io, IoKind, WATCHED_MAX};
use crate::content::Stamp;
use crate::disk::DiskShape;
use crate::faults::Fault;
use crate::judge::Extent;
use crate::random::Random;

/// Added to twice the Keep Alive Timeout, after which a silent host must have lost its association
/// (Base 2.1 §3.9.3, §3.9.4: traffic just before the end of the timer restarts it).
const SILENCE_GRACE: Nanos = Nanos::from_secs(3);
/// Maximum delay of late work requests.
const REQUEST_DELAY_MAX: Nanos = Nanos::from_millis(200);
/// Number of consecutive invalid commands.
const INVALID_BURST: usize = 8;
/// Share of commands that would change a read-only namespace and are sent, per thousand.
const PROTECTED_PERMILLE: u32 = 100;
/// Maximum number of ranges of a deallocation.
const RANGES_MAX: u64 = 4;

/// Time without progress after which the target may end an RDMA connection, because its reads may
/// borrow blocks that a write waits for.
const RDMA_PATIENCE_MS: u64 = 100;
/// Minimum time for which a TCP connection that holds memory without progress is served.
const TCP_PATIENCE_MS: u64 = 1500;
/// Time for which a host may take nothing over TCP although a write waits for the blocks that are sent to it from
/// a device's memory, if the small arena has no room for them.
const BORROW_PATIENCE_MS: u64 = 100;
/// Maximum time until a hanging request affects its connection and ends it: after the next command,
/// 5 s without progress, and a second to flush posted requests.
const STUCK_LASTS: Nanos = Nanos::from_secs(20);

impl Host {
    /// Sends up to `count` I/O commands. Returns their number.
    pub fn send_io(&mut self, env: &mut HostEnv<'_>, count: u64) -> u64 {
        let mut sent = 0;
        while sent < count && self.can_reach_disks() {
            let open: Vec<usize> = (0..self.io.len())
                .filter(|index| self.io[*index].room() > 0 && !self.io[*index].closing)
                .collect();
            if open.is_empty() {
                break;
            }
            let chosen = self.random.pick(&open);
            self.send_one(env, chosen);
            sent += 1;
        }
        sent
    }

    fn send_one(&mut self, env: &mut HostEnv<'_>, index: usize) {
        let disk = self.choose_disk(env);
        let shape = env.swarm.disks[disk];
        let kind = self.random.pick(&[
            IoKind::Read,
            IoKind::Read,
            IoKind::Read,
            IoKind::Write,
            IoKind::Write,
            IoKind::Write,
            IoKind::WriteZeroes,
            IoKind::Deallocate,
            IoKind::Compare,
            IoKind::Flush,
        ]);
        let kind = match kind {
            IoKind::Write | IoKind::WriteZeroes | IoKind::Deallocate
                if env.serving.read_only[disk] =>
            {
                if self.random.permille(PROTECTED_PERMILLE) {
                    return self.send_protected(env, index, disk);
                }
                IoKind::Read
            }
            // The host sends no Flush if it knows of no volatile cache (Base 2.1 §5.1.25.1.4).
            IoKind::Flush if !self.flushes(disk) => IoKind::Read,
            kind => kind,
        };
        let fua = self.random.permille(250) && self.flushes(disk);
        let extent = self.choose_extent(env, disk, shape);
        if let Some((kind, extent)) = self.choose_lost(env) {
            return self.send_kind(env, index, kind, extent, fua);
        }
        self.send_kind(env, index, kind, extent, fua);
    }

    /// The next action in the range of a lost write, if any: a read, or a write of other data.
    fn choose_lost(&mut self, env: &HostEnv<'_>) -> Option<(IoKind, Extent)> {
        if self.watched.is_empty() || !env.swarm.faults.has(Fault::Linger) {
            return None;
        }
        let (kind, extent) = match self.random.below(8) {
            0 | 1 => (IoKind::Write, self.retries.pop()?),
            2..=5 => {
                let chosen = self.random.below(self.watched.len() as u64);
                (IoKind::Read, *self.watched.get(chosen as usize)?)
            }
            _ => return None,
        };
        let size = env.swarm.disks[extent.disk].block_count;
        let fits = extent.lba + u64::from(extent.blocks) <= size;
        fits.then_some((kind, extent))
    }

    /// Takes over the lost writes of another path of the host.
    pub fn retry(&mut self, lost: impl IntoIterator<Item = Extent>) {
        for extent in lost {
            self.retries.push(extent);
            self.watch(extent);
        }
    }

    /// Adds a range to those that it reads often.
    pub(super) fn watch(&mut self, extent: Extent) {
        self.watched.truncate(WATCHED_MAX - 1);
        self.watched.push_front(extent);
    }

    /// Removes and returns its lost writes, for another path of the same host.
    pub fn take_retries(&mut self) -> Vec<Extent> {
        std::mem::take(&mut self.retries)
    }

    /// Reads a range on any queue with room. Returns false if there is none.
    pub fn read(&mut self, env: &mut HostEnv<'_>, extent: Extent) -> bool {
        let open = self.io.iter().position(|it| it.room() > 0 && !it.closing);
        match open {
            Some(index) if self.can_reach_disks() => {
                self.send_kind(env, index, IoKind::Read, extent, false);
                true
            }
            _ => false,
        }
    }

    /// Writes a range on any queue with room. Returns false if there is none.
    pub fn write(&mut self, env: &mut HostEnv<'_>, extent: Extent) -> bool {
        self.change(env, IoKind::Write, extent)
    }

    /// Writes zeroes to a range on any queue with room. Returns false if there is none.
    pub fn write_zeroes(&mut self, env: &mut HostEnv<'_>, extent: Extent) -> bool {
        self.change(env, IoKind::WriteZeroes, extent)
    }

    fn change(&mut self, env: &mut HostEnv<'_>, kind: IoKind, extent: Extent) -> bool {
        let open = self.io.iter().position(|it| it.room() > 0 && !it.closing);
        match open {
            Some(index) if self.can_reach_disks() => {
                self.send_kind(env, index, kind, extent, false);
                true
            }
            _ => false,
        }
    }

    /// Sends up to `count` writes of up to `bytes` to simulated disks.
    pub fn send_writes(&mut self, env: &mut HostEnv<'_>, bytes: usize, count: u64) {
        let blocks = |disk: usize| bytes as u64 / u64::from(env.swarm.disks[disk].block_size);
        let disks: Vec<usize> = env
            .swarm
            .disks_of(self.shape.subsystem)
            .filter(|it| !env.is_protected(self.shape.identity, *it) && !env.swarm.ram[*it])
            .filter(|it| (1..=env.swarm.disks[*it].block_count).contains(&blocks(*it)))
            .collect();
        for _ in 0..count {
            let open = self.io.iter().position(|it| it.room() > 0 && !it.closing);
            let Some(index) = open.filter(|_| self.can_reach_disks() && !disks.is_empty()) else {
                return;
            };
            let disk = self.random.pick(&disks);
            let blocks = bytes as u64 / u64::from(env.swarm.disks[disk].block_size);
            let extent = Extent {
                disk,
                lba: (self.random).between(0, env.swarm.disks[disk].block_count - blocks),
                blocks: blocks as u32,
            };
            self.send_kind(env, index, IoKind::Write, extent, false);
        }
    }

    /// A random disk of its subsystem.
    pub(super) fn choose_disk(&mut self, env: &HostEnv<'_>) -> usize {
        let disks: Vec<usize> = env.swarm.disks_of(self.shape.subsystem).collect();
        self.random.pick(&disks)
    }

    pub(super) fn choose_extent(
        &mut self,
        env: &HostEnv<'_>,
        disk: usize,
        shape: DiskShape,
    ) -> Extent {
        // Long transfers take too long over streams of single bytes.
        let bytes_max = if env.network.grain < 64 || env.network.window < 1024 {
            8 << 10
        } else {
            env.swarm.transfer_max as u64
        };
        let most = (bytes_max / u64::from(shape.block_size)).clamp(1, shape.block_count);
        let blocks = if self.random.permille(700) {
            self.random.between(1, most.min(8))
        } else {
            self.random.between(1, most)
        };
        // Some blocks are accessed more often than others.
        let hot = self.random.permille(400);
        let last = shape.block_count - blocks;
        let lba = self.random.between(0, if hot { last.min(4) } else { last });
        Extent {
            disk,
            lba,
            blocks: blocks as u32,
        }
    }

    fn send_kind(
        &mut self,
        env: &mut HostEnv<'_>,
        index: usize,
        kind: IoKind,
        extent: Extent,
        fua: bool,
    ) {
        let nsid = self.nsid(env, extent.disk);
        let nlb_z = (extent.blocks - 1) as u16;
        let bytes = extent.blocks as usize * self.block_size(env, extent);
        let (io, sqe, transfer) = match kind {
            IoKind::Read => {
                let io = Io::reading(env, kind, vec![extent], fua);
                let mut sqe = Sqe::read(nsid, extent.lba, nlb_z);
                let mut range = sqe.read_write();
                range.control = range.control.with_fua(fua);
                sqe = sqe.with_read_write(range);
                (io, sqe, Transfer::In(bytes))
            }
            IoKind::Write => {
                let io = self.writing(env, kind, extent, fua);
                let data = self.stamped(env, extent, io.version);
                let sqe = Sqe::write(nsid, extent.lba, nlb_z, fua);
                (io, sqe, Transfer::Out(data))
            }
            IoKind::WriteZeroes => {
                let control = WriteZeroesControl::new()
                    .with_nlb_z(nlb_z)
                    .with_fua(fua)
                    .with_deac(self.random.coin());
                let io = self.writing(env, kind, extent, fua);
                let sqe = Sqe::write_zeroes_range(nsid, extent.lba, control);
                (io, sqe, Transfer::None)
            }
            IoKind::Deallocate => self.deallocation(env, extent),
            IoKind::Compare => match self.comparison(env, extent) {
                Some(comparison) => comparison,
                None => return self.send_kind(env, index, IoKind::Read, extent, fua),
            },
            IoKind::Flush => self.flush(env, extent.disk),
            // Hosts copy only on request.
            IoKind::Copy => return,
        };
        self.submit_io(env, index, io, sqe, transfer);
    }

    pub(super) fn submit_io(
        &mut self,
        env: &mut HostEnv<'_>,
        index: usize,
        mut io: Io,
        sqe: Sqe,
        transfer: Transfer,
    ) {
        // RAM devices have another path for data than other devices.
        let is_ram = io.extents.iter().any(|it| env.swarm.ram[it.disk]);
        let share = if is_ram { 150 } else { 30 };
        let damages = env.swarm.faults.has(Fault::Damage) && self.random.permille(share);
        // Ignored data may be damaged.
        let ignored = io.kind == IoKind::Deallocate && io.version == 0;
        let has_data = matches!(&transfer, Transfer::Out(data) if !data.is_empty()) && !ignored;
        let damage = if damages && has_data && self.shape.data_digest {
            env.figures.fault(Fault::Damage);
            io.damaged = true;
            Damage::Data
        } else {
            Damage::None
        };
        let (number, kind, version) = (self.number, io.kind, io.version);
        let (fua, extents) = (io.fua, io.extents.clone());
        let connection = &mut self.io[index];
        let qid = connection.qid();
        let sending = Sending {
            sqe,
            command: Command::Io(io),
            transfer,
            damage,
        };
        let cid = connection.submit(sending, env.now);
        env.trace.note(
            env.now,
            format_args!(
                "host {number} queue {qid} command {cid}: {kind:?}{} version {version} {extents:?}",
                if fua { " FUA" } else { "" },
            ),
        );
    }

    /// A write of `extent`. Whether its completion makes it durable depends on the cache that was
    /// reported to the host.
    pub(super) fn writing(
        &self,
        env: &mut HostEnv<'_>,
        kind: IoKind,
        extent: Extent,
        fua: bool,
    ) -> Io {
        let io = Io::writing(env, kind, vec![extent], fua);
        if env.swarm.faults.has(Fault::Ana) {
            env.judge.ana.note_sender(io.version, self.number);
        }
        Io {
            durable: fua || self.writes_through(extent.disk),
            ..io
        }
    }

    pub(super) fn block_size(&self, env: &HostEnv<'_>, extent: Extent) -> usize {
        env.swarm.disks[extent.disk].block_size as usize
    }

    pub(super) fn stamped(&self, env: &HostEnv<'_>, extent: Extent, version: u64) -> Vec<u8> {
        let size = self.block_size(env, extent);
        let mut data = vec![0; size * extent.blocks as usize];
        for (lba, block) in (extent.lba..).zip(data.chunks_exact_mut(size)) {
            let device = extent.disk as u32;
            Stamp {
                device,
                lba,
                version,
            }
            .write(block);
        }
        data
    }

    fn flush(&mut self, env: &mut HostEnv<'_>, disk: usize) -> (Io, Sqe, Transfer) {
        let all = self.random.permille(200);
        let disks = env.swarm.disks_of(self.shape.subsystem);
        let disks = disks.filter(|it| all || *it == disk);
        let extents = disks.map(|disk| Extent {
            disk,
            lba: 0,
            blocks: 0,
        });
        let extents = extents.collect();
        let io = Io::reading(env, IoKind::Flush, extents, false);
        let nsid = if all {
            nvme_spec::NSID_BROADCAST
        } else {
            self.nsid(env, disk)
        };
        (io, Sqe::flush(nsid), Transfer::None)
    }

    fn deallocation(&mut self, env: &mut HostEnv<'_>, first: Extent) -> (Io, Sqe, Transfer) {
        let shape = env.swarm.disks[first.disk];
        let mut extents = vec![first];
        for _ in 1..self.random.between(1, RANGES_MAX) {
            let end = extents.last().map_or(0, |it| it.lba + u64::from(it.blocks));
            if end >= shape.block_count {
                break;
            }
            let lba = self.random.between(end, shape.block_count - 1);
            let blocks = self.random.between(1, (shape.block_count - lba).min(8)) as u32;
            extents.push(Extent {
                disk: first.disk,
                lba,
                blocks,
            });
        }
        let (data, count) = self.range_list(&extents, shape.block_count);
        let sqe = Sqe::deallocate(self.nsid(env, first.disk), (count - 1) as u8);
        let io = if shape.deallocate != block::Deallocate::Unsupported {
            Io::writing(env, IoKind::Deallocate, extents, false)
        } else {
            // It succeeds and changes nothing.
            Io::reading(env, IoKind::Deallocate, extents, false)
        };
        (io, sqe, Transfer::Out(data))
    }

    /// The range list of a deallocation, and the number of valid ranges: sometimes with empty
    /// ranges between the others, and with more after the valid ones, as real hosts send them (NVM
    /// 1.1 §3.3.3).
    fn range_list(&mut self, extents: &[Extent], end: u64) -> (Vec<u8>, usize) {
        let ranges = extents.iter();
        let mut ranges: Vec<DatasetRange> = ranges
            .map(|it| DatasetRange::new(it.lba, it.blocks))
            .collect();
        if self.random.permille(150) {
            let most = self.random.pick(&[4, DATASET_RANGES_MAX]);
            while ranges.len() < most {
                let at = self.random.below(ranges.len() as u64 + 1) as usize;
                let lba = self.random.below(end);
                ranges.insert(at, DatasetRange::new(lba, 0));
            }
        }
        let count = ranges.len();
        if self.random.permille(150) {
            let unused = DatasetRange::new(self.random.below(end), 1);
            ranges.resize(DATASET_RANGES_MAX, unused);
        }
        (ranges.as_slice().as_bytes().to_vec(), count)
    }

    /// A comparison with data that certainly matches or certainly does not.
    fn comparison(&mut self, env: &mut HostEnv<'_>, extent: Extent) -> Option<(Io, Sqe, Transfer)> {
        let mut expected = env.judge.certain(extent)?;
        let size = self.block_size(env, extent);
        let mut data = vec![0; size * expected.len()];
        if self.random.permille(200) {
            let wrong = self.random.below(expected.len() as u64) as usize;
            expected[wrong] = Some(u64::MAX);
        }
        let blocks = data.chunks_exact_mut(size).zip(&expected);
        for (lba, (block, version)) in (extent.lba..).zip(blocks) {
            if let Some(version) = version {
                Stamp {
                    device: extent.disk as u32,
                    lba,
                    version: *version,
                }
                .write(block);
            }
        }
        let mut io = Io::reading(env, IoKind::Compare, vec![extent], false);
        io.expected = expected;
        let sqe = Sqe::compare(
            self.nsid(env, extent.disk),
            extent.lba,
            (extent.blocks - 1) as u16,
        );
        Some((io, sqe, Transfer::Out(data)))
    }

    /// Misbehaves once, if possible now. Returns until when this may cause a shortage of memory for
    /// others, and the remains of a vanished host.
    pub fn misbehave(&mut self, env: &mut HostEnv<'_>, fault: Fault) -> Option<Aftermath> {
        let serving = self.can_reach_disks();
        let mut aftermath = Aftermath::default();
        let number = self.number;
        if matches!(fault, Fault::Abort | Fault::AbortFlood) {
            self.aborted_at = Some(env.now);
        }
        match fault {
            Fault::Cut => self.a_connection()?.cut(),
            Fault::Stall => aftermath.memory_until = self.stall(env)?,
            Fault::Vanish => {
                self.connections().next()?;
                let vanished = self.connections().filter_map(Connection::vanish);
                aftermath.vanished = vanished.collect();
                self.drop_all(env);
            }
            Fault::Silence if serving && self.shape.keep_alive > Nanos::ZERO => {
                // Data in flight counts as traffic when it arrives.
                let arrivals = self.connections().map(|it| it.queue.disturbed_until);
                let last = arrivals.max().unwrap_or_default().max(env.now);
                self.silent_until = Some(last + self.silence_limit());
            }
            Fault::Malformed if serving && self.shape.rdma && self.random.coin() => {
                self.send_bad_key(env)?;
            }
            Fault::Malformed if serving => self.send_garbage(),
            Fault::Late => {
                // Blocks that writers wait for must not stay borrowed during the whole delay of a
                // request.
                let borrows = env.swarm.ram.contains(&true);
                aftermath.memory_until = self.delay_requests(env.now, borrows)?;
            }
            Fault::WorkErrors => aftermath.memory_until = self.fail_requests(env.now)?,
            Fault::Unreachable if self.shape.rdma => {
                disturb_next_connection(env.rdma?, number, &mut self.random);
            }
            Fault::Damage if serving && self.shape.header_digest => self.damage_header(env),
            Fault::Invalid if serving => self.send_invalid_ones(env)?,
            Fault::Abort if serving => self.abort(env)?,
            Fault::Reset if serving && self.has_admin_room() => {
                for connection in &mut self.io {
                    connection.excused = true;
                    connection.closing = true;
                }
                self.phase = super::Phase::AwaitingReady { ready: false };
                self.set_configuration(env, false);
            }
            Fault::Disconnect if serving => self.disconnect(env)?,
            Fault::WrongConnect if serving => self.probe(env)?,
            Fault::WrongData if serving => self.send_wrong_data(env)?,
            Fault::Administer if serving => self.do_admin_step(env)?,
            Fault::AbortFlood if serving => self.abort_many(env)?,
            Fault::Shutdown if serving => self.shut_down(env)?,
            Fault::Greedy if serving => self.occupy_memory(env)?,
            Fault::Twins if serving => self.send_twins(env)?,
            Fault::EventFlood if serving => self.flood_events(env)?,
            _ => return None,
        }
        env.trace
            .note(env.now, format_args!("host {number} suffers {fault}"));
        env.figures.fault(fault);
        Some(aftermath)
    }

    /// Sends a few invalid commands. There are many kinds, and none disturbs other commands.
    fn send_invalid_ones(&mut self, env: &mut HostEnv<'_>) -> Option<()> {
        self.send_invalid(env)?;
        for _ in 1..INVALID_BURST {
            if self.send_invalid(env).is_none() {
                break;
            }
        }
        Some(())
    }

    fn a_connection(&mut self) -> Option<&mut super::Connection> {
        let count = self.connections().count();
        let chosen = self.random.below(count.max(1) as u64) as usize;
        self.connections().nth(chosen)
    }

    /// Maximum time for which the target may keep it after the last arrival.
    pub(super) fn silence_limit(&self) -> Nanos {
        self.keep_alive_max() + self.keep_alive_max() + SILENCE_GRACE
    }

    /// Stalls one direction of a connection for a while.
    fn stall(&mut self, env: &HostEnv<'_>) -> Option<Nanos> {
        let (to_target, lasts) = (self.random.coin(), self.random.between(50, 20_000));
        let until = env.now + Nanos::from_millis(lasts);
        let connection = self.a_connection()?;
        connection.stall(to_target, until);
        connection.queue.disturbed_until = connection.queue.disturbed_until.max(until);
        // The Keep Alive Timer and the set-up timeout of a connection continue.
        connection.excused |= connection.qid() == 0 || !connection.queue.live;
        // Over RDMA, a host that receives nothing may lose its connection.
        let takes_nothing = !to_target && lasts >= RDMA_PATIENCE_MS;
        connection.excused |= takes_nothing && connection.rdma().is_some();
        let faults = &env.swarm.faults;
        let lends = faults.has(Fault::Ram) && faults.has(Fault::Arena);
        connection.excused |= !to_target && lasts >= BORROW_PATIENCE_MS && lends;
        // Over TCP, so may a host that holds memory that another host waits for.
        connection.excused |= lasts >= TCP_PATIENCE_MS;
        self.forget_due_event();
        let silence_limit = self.silence_limit();
        if let Some(silent_until) = &mut self.silent_until {
            *silent_until = (*silent_until).max(until + silence_limit);
        }
        Some(until)
    }

    fn send_garbage(&mut self) {
        let kind = self.random.between(0x10, 0xFF) as u8;
        let word = self.random.bits();
        if let Some(connection) = self.a_connection() {
            connection.send_garbage(kind, word);
            connection.excused = true;
            connection.closing = true;
        }
    }

    /// Sends a command with an invalid memory key.
    fn send_bad_key(&mut self, env: &HostEnv<'_>) -> Option<()> {
        let disk = self.choose_disk(env);
        let size = env.swarm.disks[disk].block_size as usize;
        let index = self.io.iter().position(|it| it.room() > 0 && !it.closing)?;
        let nsid = self.nsid(env, disk);
        let connection = &mut self.io[index];
        connection.excused = true;
        connection.closing = true;
        connection.queue.misused_until = Some(env.now);
        let sending = Sending {
            transfer: Transfer::In(size),
            damage: Damage::Key,
            ..Sending::plain(
                Sqe::read(nsid, 0, 0),
                Command::Hopeless("whose key opens no memory"),
            )
        };
        connection.submit(sending, env.now);
        Some(())
    }

    /// Delays the next work request on a connection or its completion. Returns until when.
    fn delay_requests(&mut self, now: Nanos, borrows: bool) -> Option<Nanos> {
        let mut random = Random::new(self.random.bits(), 0);
        let connection = self.a_connection()?;
        connection.rdma()?.delay(&mut random, REQUEST_DELAY_MAX)?;
        connection.excused |= borrows;
        let until = now + REQUEST_DELAY_MAX;
        connection.queue.disturbed_until = connection.queue.disturbed_until.max(until);
        self.forget_due_event();
        Some(until)
    }

    /// Makes the next work request on a connection fail, which ends it, or hang, which ends it
    /// later. Returns until when this may cause a shortage of memory for others.
    fn fail_requests(&mut self, now: Nanos) -> Option<Nanos> {
        let mut random = Random::new(self.random.bits(), 0);
        let connection = self.a_connection()?;
        let is_stuck = random.permille(300);
        let line = connection.rdma()?;
        if is_stuck {
            line.hang_next_request(&mut random)?;
        } else {
            line.fail(&mut random)?;
        }
        connection.excused = true;
        if !is_stuck {
            return Some(now);
        }
        let until = now + STUCK_LASTS;
        connection.queue.disturbed_until = connection.queue.disturbed_until.max(until);
        self.forget_due_event();
        Some(until)
    }

    /// Sends writes whose data the target reads, and makes one of these reads fail, and with it the
    /// connection.
    pub fn fail_read_of(
        &mut self,
        env: &mut HostEnv<'_>,
        extents: Vec<Extent>,
        random: &mut Random,
    ) {
        let open = self.io.iter().position(|it| it.room() > 0 && !it.closing);
        let Some(index) = open.filter(|_| self.can_reach_disks()) else {
            return;
        };
        let transport = self.io[index].rdma();
        if transport.and_then(|it| it.fail_read(random)).is_none() {
            return;
        }
        self.io[index].excused = true;
        let number = self.number;
        env.trace
            .note(env.now, format_args!("a read from host {number} will fail"));
        env.figures.fault(Fault::WorkErrors);
        for extent in extents {
            if self.io[index].room() == 0 {
                return;
            }
            let io = self.writing(env, IoKind::Write, extent, false);
            let nlb_z = (extent.blocks - 1) as u16;
            let sqe = Sqe::write(self.nsid(env, extent.disk), extent.lba, nlb_z, false);
            let sending = Sending {
                transfer: Transfer::Out(self.stamped(env, extent, io.version)),
                ..Sending::plain(sqe, Command::Io(io))
            };
            self.io[index].submit_solicited(sending, env.now);
        }
    }

    fn damage_header(&mut self, env: &HostEnv<'_>) {
        let chosen = self.random.below(self.io.len() as u64) as usize;
        let connection = &mut self.io[chosen];
        if connection.room() > 0 && !connection.closing {
            connection.excused = true;
            connection.closing = true;
            let (sqe, command) = (Sqe::flush(1), Command::Damaged);
            let sending = Sending {
                damage: Damage::Header,
                ..Sending::plain(sqe, command)
            };
            connection.submit(sending, env.now);
        }
    }

    fn abort(&mut self, env: &mut HostEnv<'_>) -> Option<()> {
        let chosen = self.random.below(self.io.len() as u64) as usize;
        let (cid, key) = self.io.get_mut(chosen)?.abort_any()?;
        self.send_abort(env, key.0, cid, Some(key));
        Some(())
    }

    fn disconnect(&mut self, env: &HostEnv<'_>) -> Option<()> {
        let index = self.io.iter().position(|it| it.room() > 0 && !it.closing)?;
        let connection = &mut self.io[index];
        connection.excused = true;
        connection.closing = true;
        let sending = Sending::plain(Sqe::disconnect_queue(), Command::Disconnect);
        connection.submit(sending, env.now);
        // Base 2.1 §6.4: commands after a Disconnect are not processed.
        let (disk, behind) = (self.choose_disk(env), self.random.coin());
        let nsid = self.nsid(env, disk);
        let connection = &mut self.io[index];
        if behind && connection.room() > 0 {
            let data = vec![GARBAGE; env.swarm.disks[disk].block_size as usize];
            let sqe = Sqe::write(nsid, 0, 0, false);
            let sending = Sending {
                transfer: Transfer::Out(data),
                ..Sending::plain(sqe, Command::Hopeless("behind a Disconnect"))
            };
            connection.submit(sending, env.now);
        }
        Some(())
    }

    /// Sends a write, and responds to the R2T for its data with a violation.
    fn send_wrong_data(&mut self, env: &mut HostEnv<'_>) -> Option<()> {
        let disk = self.choose_disk(env);
        let index = self.io.iter().position(|it| it.room() > 0 && !it.closing)?;
        if self.shape.rdma {
            return None;
        }
        let wrong = WrongData::pick(&mut self.random);
        let shape = env.swarm.disks[disk];
        let extent = self.choose_extent(env, disk, shape);
        let bytes = extent.blocks as usize * shape.block_size as usize;
        let sqe = Sqe::write(
            self.nsid(env, disk),
            extent.lba,
            (extent.blocks - 1) as u16,
            false,
        );
        let (command, data) = if wrong.begins_well() && !env.serving.read_only[disk] {
            let io = self.writing(env, IoKind::Write, extent, false);
            let data = self.stamped(env, extent, io.version);
            (Command::Io(io), data)
        } else {
            let command = Command::Hopeless("whose data broke the rules");
            (command, vec![GARBAGE; bytes])
        };
        let connection = &mut self.io[index];
        let sending = Sending {
            transfer: Transfer::Out(data),
            damage: Damage::HostData(wrong),
            ..Sending::plain(sqe, command)
        };
        connection.submit_solicited(sending, env.now);
        Some(())
    }
}

/// The remains of a host's misbehaviour.
#[derive(Default)]
pub struct Aftermath {
    /// Until when memory may be scarce.
    pub memory_until: Nanos,
    /// Connections without a peer, until probes detect it.
    pub vanished: Vec<Vanished>,
}

impl Io {
    /// The disks that it accesses, also repeatedly.
    pub(super) fn disks(&self) -> impl Iterator<Item = usize> + Clone {
        let extents = self.extents.iter().chain(&self.sources);
        extents.map(|it| it.disk)
    }

    pub(super) fn new(kind: IoKind, extents: Vec<Extent>, fua: bool) -> Self {
        Self {
            kind,
            extents,
            sources: Vec::new(),
            fua,
            durable: fua,
            version: 0,
            began: crate::history::Moment::default(),
            expected: Vec::new(),
            damaged: false,
            aborted: false,
            ambiguous: false,
            fused: None,
        }
    }

    pub(super) fn reading(
        env: &mut HostEnv<'_>,
        kind: IoKind,
        extents: Vec<Extent>,
        fua: bool,
    ) -> Self {
        Self {
            began: env.judge.begin_read(),
            ..Self::new(kind, extents, fua)
        }
    }

    fn writing(env: &mut HostEnv<'_>, kind: IoKind, extents: Vec<Extent>, fua: bool) -> Self {
        let (version, began) = env.judge.begin_write(&extents, kind != IoKind::Write);
        Self {
            version,
            began,
            ..Self::new(kind, extents, fua)
        }
    }
}
