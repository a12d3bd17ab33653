//! Commands that a controller must refuse, each with the status that the specification requires
//! (Base 2.1 §4.2.3, NVM 1.1 §3.2.1).
//!
//! Each command violates exactly one rule, so that exactly one status is correct. The data of such
//! a command is [`GARBAGE`]: a disk block with this content must not have been written.

use block::Deallocate;
use nvme_spec::command::{
    Cns, DatasetRange, FeatureId, Fuse, IoOpcode, LogPageId, LogPageSelect, WriteZeroesControl,
};
use nvme_spec::fabrics::{ConnectAttributes, PropertySize};
use nvme_spec::registers::Register;
use nvme_spec::sgl::SglDescriptor;
use nvme_spec::{NSID_BROADCAST, Sqe, Status};
use zerocopy::IntoBytes;

use super::connection::{Sending, Transfer};
use super::{Command, Host, HostEnv};
use crate::disk::DiskShape;
use crate::faults::Fault;
use crate::plan::IN_CAPSULE_MORE_BYTES;
use crate::random::Random;

/// The data of invalid writes.
pub(super) const GARBAGE: u8 = 0xAB;
/// An NSID above every NN that a controller reports (Base 2.1 §3.2.1.2).
const NSID_INVALID: u32 = 0x7FFF_FFFE;
/// Opcodes that this target does not support according to ONCS and OACS (Base 2.1 §5.1.13.2.1):
/// Write Uncorrectable, I/O Management, Cancel, and reserved ones.
const IO_OPCODES: [u8; 8] = [0x04, 0x10, 0x12, 0x18, 0x1A, 0x1D, 0x7E, 0xFE];
/// Unsupported admin opcodes: queue creation and deletion (not over fabrics), namespace management,
/// firmware, self-test, format, sanitize, security, and a reserved one.
const ADMIN_OPCODES: [u8; 10] = [0x00, 0x01, 0x04, 0x05, 0x0D, 0x10, 0x14, 0x80, 0x84, 0x7E];

/// The required completion of an invalid command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    /// The disk whose namespace the command names; the namespace may be removed by then.
    pub(super) disk: Option<usize>,
    /// The status, with Do Not Retry set: the same command fails on every controller.
    pub(super) status: Status,
    /// The command's opcode and namespace, which the error log contains.
    pub(super) opcode: u8,
    pub(super) nsid: u32,
    /// A block of the disk that the command named among others and must not have changed.
    pub(super) untouched: Option<u64>,
}

impl Refusal {
    pub(super) fn of(sqe: &Sqe, disk: Option<usize>, status: Status) -> Self {
        Self {
            disk,
            status,
            opcode: sqe.opcode,
            nsid: sqe.nsid.get(),
            untouched: None,
        }
    }
}

/// An invalid command.
struct Invalid {
    sqe: Sqe,
    transfer: Transfer,
    status: Status,
}

/// The target of an invalid I/O command.
struct Aim {
    nsid: u32,
    shape: DiskShape,
    rdma: bool,
    read_only: bool,
    in_capsule_max: u32,
    /// A block with data, if there is one.
    written: u64,
}

impl Aim {
    fn block_size(&self) -> usize {
        self.shape.block_size as usize
    }

    fn deallocates(&self) -> bool {
        self.shape.deallocate != block::Deallocate::Unsupported && !self.read_only
    }

    fn garbage(&self, blocks: usize) -> Transfer {
        Transfer::Out(vec![GARBAGE; blocks * self.block_size()])
    }

    /// A data pointer of the type that the transport uses. Its address is invalid.
    fn pointer(&self, bytes: usize) -> SglDescriptor {
        let bytes = bytes as u32;
        match SglDescriptor::keyed(0x1000, bytes, 0xBAD, false) {
            Some(keyed) if self.rdma => keyed,
            _ => SglDescriptor::transport(bytes),
        }
    }
}

fn invalid(sqe: Sqe, transfer: Transfer, status: Status) -> Option<Invalid> {
    Some(Invalid {
        sqe,
        transfer,
        status,
    })
}

/// A command without data whose data pointer is invalid.
fn pointing(sqe: Sqe, sgl: SglDescriptor, status: Status) -> Option<Invalid> {
    invalid(sqe.with_sgl(sgl), Transfer::Raw(Vec::new()), status)
}

/// A command with a range that is not completely within the namespace (NVM 1.1 §3.2.1, LBA Out of
/// Range).
fn bad_range(random: &mut Random, aim: &Aim) -> Option<Invalid> {
    let (nsid, end) = (aim.nsid, aim.shape.block_count);
    let status = Status::LBA_OUT_OF_RANGE;
    let one = Transfer::In(aim.block_size());
    let zeroes = |lba, nlb_z| {
        let control = WriteZeroesControl::new().with_nlb_z(nlb_z);
        Sqe::write_zeroes_range(nsid, lba, control)
    };
    let deallocates = aim.deallocates();
    match random.below(10) {
        0 => invalid(Sqe::read(nsid, end, 0), one, status),
        // The range ends at 2^64, which does not fit into 64 bits.
        1 => invalid(Sqe::read(nsid, u64::MAX, 0), one, status),
        2 => invalid(Sqe::compare(nsid, u64::MAX, 0), aim.garbage(1), status),
        3 => invalid(Sqe::write(nsid, end - 1, 1, false), aim.garbage(2), status),
        // The range wraps around and would end at block 0.
        4 => invalid(Sqe::write(nsid, u64::MAX, 1, false), aim.garbage(2), status),
        5 => invalid(zeroes(u64::MAX, 1), Transfer::None, status),
        6 => invalid(zeroes(end - 1, 1), Transfer::None, status),
        7 | 8 if deallocates => bad_ranges(random, aim),
        9 if deallocates => deallocation(aim, &[(end - 1, 2)], status),
        _ => invalid(
            Sqe::read(nsid, end - 1, 1),
            Transfer::In(2 * aim.block_size()),
            status,
        ),
    }
}

/// A deallocation with a valid first range.
fn bad_ranges(random: &mut Random, aim: &Aim) -> Option<Invalid> {
    let (end, written) = (aim.shape.block_count, (aim.written, 1));
    let status = Status::LBA_OUT_OF_RANGE;
    match random.below(4) {
        0 => deallocation(aim, &[written, (end, 1)], status),
        1 => deallocation(aim, &[written, (u64::MAX - 1, 8)], status),
        2 => deallocation(aim, &[(0, 4), written, (end - 1, 2)], status),
        _ => deallocation(aim, &[written, (0, 2), (end, 1)], status),
    }
}

/// A deallocation of ranges that are not all within the namespace: none of them may change (NVM 1.1
/// §3.3.3).
fn deallocation(aim: &Aim, ranges: &[(u64, u32)], status: Status) -> Option<Invalid> {
    let list = ranges
        .iter()
        .map(|(lba, blocks)| DatasetRange::new(*lba, *blocks));
    let list: Vec<DatasetRange> = list.collect();
    let sqe = Sqe::deallocate(aim.nsid, (list.len() - 1) as u8);
    invalid(
        sqe,
        Transfer::Out(list.as_slice().as_bytes().to_vec()),
        status,
    )
}

/// Commands that are invalid regardless of their range.
fn bad_field(random: &mut Random, aim: &Aim) -> Option<Invalid> {
    let nsid = aim.nsid;
    let one = Transfer::In(aim.block_size());
    let no_namespace = Status::INVALID_NAMESPACE_OR_FORMAT;
    match random.below(10) {
        // Base 2.1 §3.2.1.2: these identify no namespace.
        0 => invalid(Sqe::read(0, 0, 0), one, no_namespace),
        1 => invalid(
            Sqe::write(NSID_BROADCAST, 0, 0, false),
            aim.garbage(1),
            no_namespace,
        ),
        2 => invalid(
            Sqe::write(NSID_INVALID, 0, 0, false),
            aim.garbage(1),
            no_namespace,
        ),
        3 | 4 => {
            let sqe = Sqe::new(random.pick(&IO_OPCODES), nsid);
            invalid(sqe, Transfer::None, Status::INVALID_OPCODE)
        }
        // Base 2.1 §3.4.2: only Compare and Write are fused.
        5 => {
            let sqe = Sqe::read(nsid, 0, 0).with_fuse(Fuse::FIRST);
            invalid(sqe, one, Status::INVALID_FIELD)
        }
        // NVM 1.1 §3.3.6: no directive is enabled.
        6 if !aim.read_only => {
            let mut range = Sqe::write(nsid, 0, 0, false).read_write();
            range.control = range.control.with_dtype(1);
            let sqe = Sqe::write(nsid, 0, 0, false).with_read_write(range);
            invalid(sqe, aim.garbage(1), Status::INVALID_FIELD)
        }
        // NVM 1.1 §3.3.8: Namespace Zeroes is not supported.
        7 => {
            let control = WriteZeroesControl::new().with_nsz(true);
            let sqe = Sqe::write_zeroes_range(nsid, 0, control);
            invalid(sqe, Transfer::None, Status::INVALID_FIELD)
        }
        // Base 2.1 §6.3: the queue exists already.
        8 => {
            let sqe = Sqe::connect_queue(1, 7, ConnectAttributes::new(), 0);
            invalid(sqe, Transfer::None, Status::COMMAND_SEQUENCE_ERROR)
        }
        // Base 2.1 §6.5: properties belong to the admin queue.
        _ => {
            let sqe = Sqe::get_property(Register::CSTS.0, PropertySize::BYTES_4);
            invalid(sqe, Transfer::None, Status::INVALID_OPCODE)
        }
    }
}

/// Commands with invalid data pointers and lengths.
fn bad_data(random: &mut Random, aim: &Aim) -> Option<Invalid> {
    let (nsid, size) = (aim.nsid, aim.block_size());
    let (read, write) = (Sqe::read(nsid, 0, 0), Sqe::write(nsid, 0, 0, false));
    let (wrong_type, wrong_length) = (
        Status::SGL_DESCRIPTOR_TYPE_INVALID,
        Status::DATA_SGL_LENGTH_INVALID,
    );
    let writes = !aim.read_only;
    let beyond = aim.in_capsule_max + 4;
    match random.below(13) {
        0 => pointing(
            read,
            SglDescriptor::data_block(0x1000, size as u32),
            wrong_type,
        ),
        1 => pointing(read, SglDescriptor::bit_bucket(size as u32), wrong_type),
        2 => pointing(read, SglDescriptor::segment(0x1000, 64), wrong_type),
        // Data for the host is never in the capsule.
        3 => pointing(read, SglDescriptor::in_capsule(0, size as u32), wrong_type),
        4 => pointing(read, SglDescriptor::last_segment(0x1000, 64), wrong_type),
        // The descriptor type of the other transport.
        5 => {
            let keyed = SglDescriptor::keyed(0x1000, size as u32, 1, false)?;
            let other = if aim.rdma {
                SglDescriptor::transport(size as u32)
            } else {
                keyed
            };
            pointing(read, other, wrong_type)
        }
        // Base 2.1 §4.1.1, PSDT: over fabrics there are no PRPs.
        6 => {
            let sqe = read.with_prp(0x1000, 0);
            invalid(sqe, Transfer::Raw(Vec::new()), Status::INVALID_FIELD)
        }
        // Base 2.1 §4.2.3.1: the data is longer or shorter than the range.
        7 => pointing(read, aim.pointer(2 * size), wrong_length),
        8 if writes => {
            let sqe = Sqe::write(nsid, 0, 1, false);
            invalid(sqe, aim.garbage(1), wrong_length)
        }
        // Base 2.1 §4.3.2: beyond the in-capsule data size of IOCCSZ.
        9 if writes => pointing(
            write,
            SglDescriptor::in_capsule(u64::from(beyond), size as u32),
            Status::SGL_OFFSET_INVALID,
        ),
        10 if writes => pointing(write, SglDescriptor::in_capsule(0, beyond), wrong_length),
        _ => {
            // Base 2.1 §5.1.13.2.1, MDTS.
            let blocks = aim.shape.transfer_blocks_max + 1;
            let fits = u64::from(blocks) <= aim.shape.block_count && blocks <= 1 << 16;
            let sqe = Sqe::read(nsid, 0, (blocks - 1) as u16);
            let pointer = aim.pointer(blocks as usize * size);
            fits.then(|| pointing(sqe, pointer, Status::INVALID_FIELD))?
        }
    }
}

/// A range list that is shorter than the number of ranges (NVM 1.1 §3.3.3). If a disk has no
/// deallocation, which is a hint, the target does not read a list that descriptors in a segment
/// describe.
fn short_list(random: &mut Random, aim: &Aim) -> Option<Invalid> {
    if aim.rdma && aim.shape.deallocate == Deallocate::Unsupported {
        return None;
    }
    let list = [DatasetRange::new(0, 1)];
    let sqe = Sqe::deallocate(aim.nsid, random.between(1, 255) as u8);
    let data = Transfer::Out(list.as_slice().as_bytes().to_vec());
    invalid(sqe, data, Status::DATA_SGL_LENGTH_INVALID)
}

/// Commands that modify a read-only namespace (Base 2.1 §4.2.3.1, Namespace is Write Protected).
fn protected(random: &mut Random, aim: &Aim) -> Option<Invalid> {
    let nsid = aim.nsid;
    let status = Status::NAMESPACE_WRITE_PROTECTED;
    let lba = random.below(aim.shape.block_count);
    match random.below(6) {
        0..3 => {
            let sqe = Sqe::write_zeroes_range(nsid, lba, WriteZeroesControl::new());
            invalid(sqe, Transfer::None, status)
        }
        3 => deallocation(aim, &[(lba, 1)], status),
        _ => {
            let fua = random.coin();
            invalid(Sqe::write(nsid, lba, 0, fua), aim.garbage(1), status)
        }
    }
}

/// Invalid admin commands.
fn bad_admin(random: &mut Random) -> Option<Invalid> {
    let field = Status::INVALID_FIELD;
    let page = Transfer::In(4096);
    let log = |lid: LogPageId, nsid, offset| {
        let select = LogPageSelect::new().with_lid(lid).with_numd_z(1023);
        Sqe::log_page(nsid, select, offset)
    };
    let none = Transfer::None;
    match random.below(16) {
        0 | 1 => {
            let sqe = Sqe::new(random.pick(&ADMIN_OPCODES), 0);
            invalid(sqe, none, Status::INVALID_OPCODE)
        }
        2 => invalid(Sqe::identify_structure(Cns(0x7F), 0), page, field),
        // Base 2.1 §5.1.12: a nonexistent page, and offsets outside a page.
        3 => invalid(log(LogPageId(0xF3), 0, 0), page, Status::INVALID_LOG_PAGE),
        4 => invalid(log(LogPageId::ERROR_INFORMATION, 0, 2), page, field),
        5 => invalid(log(LogPageId::ERROR_INFORMATION, 0, 1 << 20), page, field),
        // Base 2.1 §5.1.12.1.3: LPA bit 0 is 0, so there is no health log per namespace.
        6 => invalid(log(LogPageId::SMART_HEALTH, 1, 0), page, field),
        // Base 2.1 §5.1.25.
        7 => invalid(Sqe::set_feature(FeatureId(0x7E), 0, 0), none, field),
        8 => {
            let mut command = Sqe::set_feature(FeatureId::ARBITRATION, 0, 0).set_features();
            command.select = command.select.with_sv(true);
            let sqe = Sqe::set_feature(FeatureId::ARBITRATION, 0, 0).with_set_features(command);
            invalid(sqe, none, Status::FEATURE_NOT_SAVEABLE)
        }
        9 => {
            let sqe = Sqe::set_feature(FeatureId::ARBITRATION, 1, 0);
            invalid(sqe, none, Status::FEATURE_NOT_NAMESPACE_SPECIFIC)
        }
        // Base 2.1 §5.1.25.2.1: never 65,536 queues, and no change after I/O queues exist.
        10 => {
            let sqe = Sqe::set_feature(FeatureId::NUMBER_OF_QUEUES, 0, u32::MAX);
            invalid(sqe, none, field)
        }
        // Base 2.1 §6.5, §6.6: a nonexistent property, a read-only one, one of another size.
        11 => {
            let sqe = Sqe::get_property(0x1000, PropertySize::BYTES_4);
            invalid(sqe, none, field)
        }
        12 => {
            let sqe = Sqe::set_property(Register::CSTS.0, PropertySize::BYTES_4, 0);
            invalid(sqe, none, field)
        }
        13 => {
            let sqe = Sqe::get_property(Register::CAP.0, PropertySize::BYTES_4);
            invalid(sqe, none, field)
        }
        // Base 2.1 §6.4: only an I/O queue can be disconnected.
        14 => {
            let sqe = Sqe::disconnect_queue();
            invalid(sqe, none, Status::DISCONNECT_INVALID_QUEUE_TYPE)
        }
        // Base 2.1 §6.3: the queue exists already.
        _ => {
            let sqe = Sqe::connect_queue(0, 31, ConnectAttributes::new(), 0);
            invalid(sqe, none, Status::COMMAND_SEQUENCE_ERROR)
        }
    }
}

impl Host {
    /// Sends an invalid command.
    pub(super) fn send_invalid(&mut self, env: &mut HostEnv<'_>) -> Option<()> {
        if self.random.permille(250) {
            let Invalid {
                sqe,
                transfer,
                status,
            } = bad_admin(&mut self.random)?;
            let command = Command::Invalid(Refusal::of(&sqe, None, status));
            self.send_admin_moving(env, sqe, command, transfer);
            return Some(());
        }
        let disk = self.choose_disk(env);
        let index = self.io.iter().position(|it| it.room() > 0 && !it.closing)?;
        let aim = self.aim(env, index, disk)?;
        // A mask may permit writes while the command is on its way, and the judge has no part in it:
        // hosts with a mask write as usual.
        let is_protected = env.serving.read_only[disk];
        let random = &mut self.random;
        let made = match random.below(8) {
            0..4 if is_protected => protected(random, &aim),
            0..4 if aim.read_only => None,
            0..2 => bad_range(random, &aim),
            2 | 3 => bad_field(random, &aim),
            4 if !aim.read_only => short_list(random, &aim),
            5 if aim.deallocates() => bad_ranges(random, &aim),
            _ => bad_data(random, &aim),
        };
        self.submit_invalid(env, index, disk, &aim, made?);
        Some(())
    }

    /// Sends a command that changes data to a read-only namespace.
    pub(super) fn send_protected(&mut self, env: &mut HostEnv<'_>, index: usize, disk: usize) {
        let aim = self.aim(env, index, disk);
        if let Some(aim) = aim.filter(|aim| aim.read_only)
            && let Some(made) = protected(&mut self.random, &aim)
        {
            self.submit_invalid(env, index, disk, &aim, made);
        }
    }

    /// What invalid commands on a queue need to know of a disk; `None` while its namespace changes.
    fn aim(&self, env: &HostEnv<'_>, index: usize, disk: usize) -> Option<Aim> {
        let identity = self.shape.identity;
        let recently = env.changed_at(identity, disk) + super::SETTLING_TIME > env.now;
        if !env.sees(identity, disk) || env.disk_gone[disk] || recently {
            return None;
        }
        // A listener may have allowed more in-capsule data when this queue connected.
        let faults = env.swarm.faults;
        let varied = match faults.has(Fault::Keys) || faults.has(Fault::Compound) {
            true => IN_CAPSULE_MORE_BYTES as usize,
            false => 0,
        };
        let in_capsule_max = self.io[index].in_capsule_max() + varied;
        Some(Aim {
            nsid: self.nsid(env, disk),
            shape: env.swarm.disks[disk],
            rdma: self.shape.rdma,
            read_only: env.is_protected(identity, disk),
            in_capsule_max: in_capsule_max as u32,
            written: env.judge.written(disk).unwrap_or_default(),
        })
    }

    fn submit_invalid(
        &mut self,
        env: &mut HostEnv<'_>,
        index: usize,
        disk: usize,
        aim: &Aim,
        made: Invalid,
    ) {
        let Invalid {
            sqe,
            transfer,
            status,
        } = made;
        let is_deallocation = sqe.opcode == IoOpcode::DATASET_MANAGEMENT.0;
        let command = Command::Invalid(Refusal {
            untouched: is_deallocation.then_some(aim.written),
            ..Refusal::of(&sqe, Some(disk), status)
        });
        let number = self.number;
        env.trace.note(
            env.now,
            format_args!("host {number} must be refused: {:#x} {status}", sqe.opcode),
        );
        let sending = Sending {
            transfer,
            ..Sending::plain(sqe, command)
        };
        self.io[index].submit(sending, env.now);
    }
}

/// Whether a status requires Do Not Retry (Base 2.1 §4.2.3: the same command is expected to fail on
/// any controller) or forbids it; `None` if both are correct.
pub(super) fn retry_is_pointless(status: Status) -> Option<bool> {
    let is = |statuses: &[Status]| statuses.iter().any(|it| status.is(*it));
    let pointless = is(&[
        Status::LBA_OUT_OF_RANGE,
        Status::COMPARE_FAILURE,
        Status::NAMESPACE_WRITE_PROTECTED,
        Status::INVALID_OPCODE,
        Status::DATA_SGL_LENGTH_INVALID,
        Status::SGL_DESCRIPTOR_TYPE_INVALID,
    ]);
    // A retry, a new connection or another path may succeed.
    let helps = is(&[
        Status::TRANSIENT_TRANSPORT_ERROR,
        Status::ABORT_REQUESTED,
        Status::ABORTED_SQ_DELETION,
        Status::INTERNAL_PATH_ERROR,
        Status::CONTROLLER_PATHING_ERROR,
    ]);
    match (pointless, helps) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        (false, false) => None,
    }
}
