//! Reservation commands of a host, and what reservations mean for its other commands (Base 2.1
//! §8.1.22). The judge of reservations decides which results are possible.

use nvme_spec::command::reservation::{
    AcquireAction, AcquireControl, AcquireData, PersistChange, RegisterAction, RegisterControl,
    RegisterData, RegisteredControllerExtended, ReleaseAction, ReleaseControl, ReportControl,
    ReservationAcquire, ReservationRegister, ReservationRelease, ReservationReport,
    ReservationStatusExtendedHeader, ReservationType,
};
use nvme_spec::command::{FeatureId, FeatureSelect, Fuse, IoOpcode};
use nvme_spec::features::ReservationPersistence;
use nvme_spec::{NSID_BROADCAST, Sqe, Status, U64};
use reactors::Nanos;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::admin::AdminStep;
use super::completion_checks::is_absence;
use super::connection::{Connection, Outstanding, Sending, Transfer};
use super::invalid::Refusal;
use super::{Command, Host, HostEnv, Io, IoKind};
use crate::history::WriteEnd;
use crate::judge::{Extent, OpenWrite, Violation};
use crate::random::Random;
use crate::reservations::Answer;
use crate::reservations::model::{Held, ReservationCommand, Reservations};
use crate::reservations::possible::HOSTS_MAX;

/// Bytes of a report with every host, at least.
const REPORT_BYTES: usize = size_of::<ReservationStatusExtendedHeader>()
    + HOSTS_MAX * size_of::<RegisteredControllerExtended>();
/// A code that is no action of any command.
const NO_ACTION: u8 = 7;

/// A reservation command in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReserveStep {
    pub(super) disk: usize,
    /// Its number at the judge.
    pub(super) id: u64,
    /// Failures of the store when it was sent.
    store_failures: u64,
}

impl Host {
    /// Sends a reservation command for a disk. Returns whether a queue had room.
    pub fn send_reservation(
        &mut self,
        env: &mut HostEnv<'_>,
        disk: usize,
        command: ReservationCommand,
    ) -> bool {
        let open = self.io.iter().position(|it| it.room() > 0 && !it.closing);
        let Some(index) = open.filter(|_| self.can_reach_disks()) else {
            return false;
        };
        let (sqe, transfer) = wire_form(self.nsid(env, disk), command);
        let sender = (self.shape.identity, self.cntlid);
        let id = (env.judge.reservations).submit(env.now, disk, sender, command);
        let (number, qid) = (self.number, self.io[index].qid());
        env.trace.note(
            env.now,
            format_args!("host {number} queue {qid}, disk {disk}: reservation {id}: {command:x?}"),
        );
        let step = ReserveStep {
            disk,
            id,
            store_failures: env.store_failures[disk],
        };
        let sending = Sending {
            transfer,
            ..Sending::plain(sqe, Command::Reserve(step))
        };
        self.io[index].submit(sending, env.now);
        true
    }

    /// Sets the Persist Through Power Loss state of a disk (Base 2.1 §5.1.25.1.30).
    pub fn set_persistence(&mut self, env: &mut HostEnv<'_>, disk: usize, persists: bool) {
        if !self.has_admin_room() || !self.can_reach_disks() {
            return;
        }
        let command = ReservationCommand::Persist { persists };
        let sender = (self.shape.identity, self.cntlid);
        let id = (env.judge.reservations).submit(env.now, disk, sender, command);
        let step = ReserveStep {
            disk,
            id,
            store_failures: env.store_failures[disk],
        };
        let (sqe, _) = wire_form(self.nsid(env, disk), command);
        if !self.send_admin(env, sqe, Command::Reserve(step)) {
            let answer = Answer::NotExecuted;
            let _ = (env.judge.reservations).complete(env.now, disk, id, &answer);
        }
    }

    /// Gets the Persist Through Power Loss state of a disk.
    pub fn ask_persistence(&mut self, env: &mut HostEnv<'_>, disk: usize) {
        if self.has_admin_room() && self.knows_disks() {
            let feature = FeatureId::RESERVATION_PERSISTENCE;
            let nsid = self.nsid(env, disk);
            let sqe = Sqe::get_feature(feature, FeatureSelect::CURRENT, nsid, 0);
            self.send_admin(env, sqe, Command::Admin(AdminStep::GetPersistence(disk)));
        }
    }

    /// Compares the Persist Through Power Loss state of a disk with the possible ones.
    pub(super) fn check_persistence(
        &self,
        env: &mut HostEnv<'_>,
        disk: usize,
        outstanding: &Outstanding,
        value: u32,
    ) -> Result<(), Violation> {
        let found = ReservationPersistence::from_bits(value).ptpl();
        let issued_at = outstanding.issued_at;
        let possible = (env.judge.reservations).possible_since(disk, issued_at);
        let has_changed = env.namespace_changed[disk] >= issued_at || env.disk_gone[disk];
        if has_changed || possible.may_persist(found) {
            return Ok(());
        }
        let what = format!("disk {disk}: the feature reports persistence {found}");
        Err(self.violation(env, &what))
    }

    /// Sends a reservation command that is refused whatever the state is.
    pub fn send_invalid_reservation(
        &mut self,
        env: &mut HostEnv<'_>,
        disk: usize,
        random: &mut Random,
    ) -> bool {
        let open = self.io.iter().position(|it| it.room() > 0 && !it.closing);
        let Some(index) = open.filter(|_| self.can_reach_disks()) else {
            return false;
        };
        let nsid = self.nsid(env, disk);
        let acquire = ReservationCommand::Acquire {
            action: 0,
            ignores_key: false,
            rtype: 1,
            current: 1,
            preempted: 0,
        };
        let (good, mut transfer) = wire_form(nsid, acquire);
        let (sqe, status) = match random.below(4) {
            0 => {
                let (sqe, _) = wire_form(NSID_BROADCAST, acquire);
                (sqe, Status::INVALID_NAMESPACE_OR_FORMAT)
            }
            // Base 2.1 §3.4.2: only Compare and Write can be fused.
            1 => (good.with_fuse(Fuse::FIRST), Status::INVALID_FIELD),
            2 => {
                let command = ReservationCommand::Release {
                    action: NO_ACTION,
                    ignores_key: false,
                    rtype: 1,
                    current: 1,
                };
                let (sqe, data) = wire_form(nsid, command);
                transfer = data;
                (sqe, Status::INVALID_FIELD)
            }
            _ => {
                transfer = Transfer::Out(vec![0; size_of::<AcquireData>() / 2]);
                (good, Status::DATA_SGL_LENGTH_INVALID)
            }
        };
        let command = Command::Invalid(Refusal::of(&sqe, Some(disk), status));
        let sending = Sending {
            transfer,
            ..Sending::plain(sqe, command)
        };
        self.io[index].submit(sending, env.now);
        true
    }

    /// Writes to a disk, if a queue has room.
    pub fn write_to(&mut self, env: &mut HostEnv<'_>, disk: usize) -> bool {
        let shape = env.swarm.disks[disk];
        let extent = self.choose_extent(env, disk, shape);
        self.write(env, extent)
    }

    /// Its writes to a disk that were not completed.
    pub fn open_writes(&self, disk: usize) -> Vec<OpenWrite> {
        let outstanding = self.io.iter().flat_map(Connection::outstanding);
        let outstanding = outstanding.filter_map(|(_, it)| match &it.command {
            Command::Io(io) => Some(io),
            _ => None,
        });
        let writes = self.ending_writes.iter().chain(outstanding);
        writes
            .filter(|io| io.version > 0 && io.extents.iter().any(|it| it.disk == disk))
            .map(|io| OpenWrite {
                extents: io.extents.clone(),
                version: io.version,
                began: io.began,
            })
            .collect()
    }

    /// Handles the completion of a reservation command.
    pub(super) fn reservation_completed(
        &mut self,
        env: &mut HostEnv<'_>,
        qid: u16,
        step: ReserveStep,
        outstanding: &Outstanding,
        status: Status,
    ) -> Result<(), Violation> {
        let answer = self.answer(env, qid, step, outstanding, status);
        let must_not_retry = matches!(&answer, Answer::Failed(_));
        // ANA states do not restrict features.
        if matches!(&answer, Answer::Done(_)) && qid > 0 {
            self.check_accessible(env, [step.disk], outstanding.issued_at)?;
        }
        let judged = (env.judge.reservations).complete(env.now, step.disk, step.id, &answer);
        if let Err(expected) = &judged {
            let (disk, id) = (step.disk, step.id);
            let what =
                format!("disk {disk}: reservation {id} has the result {answer:x?}, not {expected}");
            return Err(self.violation(env, &what));
        }
        if must_not_retry && !status.dnr() {
            let what = format!("a reservation command failed with {status} without DNR");
            return Err(self.violation(env, &what));
        }
        env.figures.reservations += 1;
        self.check_stored(env, step.disk, judged.is_ok_and(|it| it.is_stored))
    }

    /// Checks that a state that persists was stored before its command was completed.
    fn check_stored(
        &self,
        env: &mut HostEnv<'_>,
        disk: usize,
        is_stored: bool,
    ) -> Result<(), Violation> {
        let reservations = &env.judge.reservations;
        let state = reservations.certain(disk).filter(|_| is_stored);
        match state {
            Some(state) if !env.store.holds(disk, state) => {
                let what = format!("disk {disk}: a state is not stored: {state:x?}");
                Err(self.violation(env, &what))
            }
            _ => Ok(()),
        }
    }

    /// What a completion says about the command.
    fn answer(
        &mut self,
        env: &HostEnv<'_>,
        qid: u16,
        step: ReserveStep,
        outstanding: &Outstanding,
        status: Status,
    ) -> Answer {
        if status.is_success() {
            let report = (outstanding.expected > 0).then(|| reported(&outstanding.data));
            return Answer::Done(report.map(Box::new));
        }
        let is = |statuses: &[Status]| statuses.iter().any(|it| status.is(*it));
        let changed = env.namespace_changed[step.disk] >= outstanding.issued_at;
        let is_absent = is_absence(status) && (changed || env.disk_gone[step.disk]);
        let has_ended = is(&[Status::ABORTED_SQ_DELETION, Status::COMMAND_SEQUENCE_ERROR]);
        let is_aborted = self.aborted_at.is_some() && is(&[Status::ABORT_REQUESTED]);
        // A reset ends commands of the admin queue.
        let is_reset = qid == 0 && outstanding.issued_at < self.configured_at;
        if is_reset && (has_ended || is(&[Status::ABORT_REQUESTED])) {
            return Answer::Unknown;
        }
        if is_absent || is_aborted || (has_ended && self.is_excused(env, qid)) {
            return Answer::Unknown;
        }
        if self.may_lack_access(env, step.disk, status, outstanding.issued_at) {
            return Answer::NotExecuted;
        }
        let has_store_failed = env.store_failures[step.disk] > step.store_failures;
        if has_store_failed && status.is(Status::INTERNAL_ERROR) && !status.dnr() {
            return Answer::NotExecuted;
        }
        Answer::Failed(status)
    }

    /// Whether a reservation may have refused a command for a disk.
    pub(super) fn may_conflict(&self, env: &HostEnv<'_>, disk: usize, issued_at: Nanos) -> bool {
        let possible = (env.judge.reservations).possible_since(disk, issued_at);
        let identity = self.shape.identity;
        possible.forbids(identity, false) || possible.forbids(identity, true)
    }

    /// Checks that reservations allowed a command that was executed (Base 2.1 §8.1.22.1).
    pub(super) fn check_reserved(
        &self,
        env: &mut HostEnv<'_>,
        io: &Io,
        issued_at: Nanos,
    ) -> Result<(), Violation> {
        // It is not known which of two commands was executed.
        if io.ambiguous {
            return Ok(());
        }
        let identity = self.shape.identity;
        let accesses = io.extents.iter().map(|it| (it.disk, writes(io.kind)));
        let mut accesses = accesses.chain(io.sources.iter().map(|it| (it.disk, false)));
        let forbidden = accesses.find(|(disk, is_write)| {
            let disk = *disk;
            // A Flush of all namespaces covers those that exist.
            let is_there = env.serving.namespaces[disk]
                && !env.disk_gone[disk]
                && env.namespace_changed[disk] < issued_at;
            let possible = (env.judge.reservations).possible_since(disk, issued_at);
            is_there && !possible.allows(identity, *is_write)
        });
        let Some((disk, _)) = forbidden else {
            return Ok(());
        };
        let what = format!(
            "a {:?} was executed although the reservation of disk {disk} forbids it",
            io.kind
        );
        Err(self.violation(env, &what))
    }

    /// Whether a command for a disk may have been aborted by Preempt and Abort.
    pub(super) fn may_be_preempted(
        &self,
        env: &HostEnv<'_>,
        disk: usize,
        status: Status,
        issued_at: Nanos,
    ) -> bool {
        let possible = env.judge.reservations.possible_since(disk, issued_at);
        let is_its = status.is(Status::ABORTED_PREEMPT_AND_ABORT) && !status.dnr();
        is_its && possible.aborts(self.shape.identity)
    }

    /// The result of a command that a reservation refused, or that a preemption aborted; `None` if
    /// neither may have happened.
    pub(super) fn reservation_refusal(
        &self,
        env: &HostEnv<'_>,
        io: &Io,
        status: Status,
        issued_at: Nanos,
    ) -> Option<WriteEnd> {
        let identity = self.shape.identity;
        let possible = |it: &Extent| (env.judge.reservations).possible_since(it.disk, issued_at);
        let mut extents = io.extents.iter();
        let mut sources = io.sources.iter();
        let is_preempted = |it: &Extent| self.may_be_preempted(env, it.disk, status, issued_at);
        if extents.clone().chain(sources.clone()).any(is_preempted) {
            return Some(WriteEnd::Undecided);
        }
        if !status.is(Status::RESERVATION_CONFLICT) || !status.dnr() {
            return None;
        }
        // It is not known whether the write or the read with the same identifier was refused.
        let is_write = writes(io.kind) || io.ambiguous;
        let is_forbidden = extents.any(|it| possible(it).forbids(identity, is_write))
            || sources.any(|it| possible(it).forbids(identity, false));
        if !is_forbidden {
            return None;
        }
        // A RAM device may have received the first blocks before.
        let may_have_begun = io
            .extents
            .iter()
            .any(|it| env.swarm.ram[it.disk] && possible(it).allows(identity, true));
        Some(match may_have_begun {
            true => WriteEnd::Undecided,
            false => WriteEnd::Refused,
        })
    }
}

/// Whether reservations treat a command as a write (Base 2.1 §8.1.22.1).
fn writes(kind: IoKind) -> bool {
    match kind {
        IoKind::Read | IoKind::Compare => false,
        IoKind::Write | IoKind::WriteZeroes | IoKind::Deallocate | IoKind::Copy | IoKind::Flush => {
            true
        }
    }
}

/// A command with its data.
fn wire_form(nsid: u32, command: ReservationCommand) -> (Sqe, Transfer) {
    match command {
        ReservationCommand::Register {
            action,
            ignores_key,
            cptpl,
            current,
            new,
        } => {
            let mut fields = ReservationRegister::new_zeroed();
            fields.control = RegisterControl::new()
                .with_action(RegisterAction(action))
                .with_ignore_existing_key(ignores_key)
                .with_cptpl(PersistChange(cptpl));
            let sqe = Sqe::new(IoOpcode::RESERVATION_REGISTER.0, nsid);
            let (crkey, nrkey) = (U64::new(current), U64::new(new));
            let data = RegisterData { crkey, nrkey }.as_bytes().to_vec();
            (sqe.with_reservation_register(fields), Transfer::Out(data))
        }
        ReservationCommand::Acquire {
            action,
            ignores_key,
            rtype,
            current,
            preempted,
        } => {
            let mut fields = ReservationAcquire::new_zeroed();
            fields.control = AcquireControl::new()
                .with_action(AcquireAction(action))
                .with_ignore_existing_key(ignores_key)
                .with_rtype(ReservationType(rtype));
            let sqe = Sqe::new(IoOpcode::RESERVATION_ACQUIRE.0, nsid);
            let (crkey, prkey) = (U64::new(current), U64::new(preempted));
            let data = AcquireData { crkey, prkey }.as_bytes().to_vec();
            (sqe.with_reservation_acquire(fields), Transfer::Out(data))
        }
        ReservationCommand::Release {
            action,
            ignores_key,
            rtype,
            current,
        } => {
            let mut fields = ReservationRelease::new_zeroed();
            fields.control = ReleaseControl::new()
                .with_action(ReleaseAction(action))
                .with_ignore_existing_key(ignores_key)
                .with_rtype(ReservationType(rtype));
            let sqe = Sqe::new(IoOpcode::RESERVATION_RELEASE.0, nsid);
            let data = current.to_le_bytes().to_vec();
            (sqe.with_reservation_release(fields), Transfer::Out(data))
        }
        ReservationCommand::Persist { persists } => {
            let feature = FeatureId::RESERVATION_PERSISTENCE;
            let value = ReservationPersistence::new().with_ptpl(persists);
            let sqe = Sqe::set_feature(feature, nsid, value.into_bits());
            (sqe, Transfer::None)
        }
        ReservationCommand::Report => {
            let mut fields = ReservationReport::new_zeroed();
            fields.numd_z = (REPORT_BYTES as u32 / 4 - 1).into();
            fields.control = ReportControl::new().with_eds(true);
            let sqe = Sqe::new(IoOpcode::RESERVATION_REPORT.0, nsid);
            let sqe = sqe.with_reservation_report(fields);
            (sqe, Transfer::In(REPORT_BYTES))
        }
    }
}

/// The state that a report describes (Base 2.1 §7.8). A report that is wrong in itself describes a
/// state that no host has created.
fn reported(data: &[u8]) -> Reservations {
    let mut state = Reservations::default();
    let Ok((header, mut rest)) = ReservationStatusExtendedHeader::read_from_prefix(data) else {
        return state;
    };
    let header = header.rshdr;
    state.generation = header.gen_counter.get();
    state.persists = header.ptpls == 1;
    let mut holders = Vec::new();
    for _ in 0..header.regstrnt.get() {
        let Ok((it, following)) = RegisteredControllerExtended::read_from_prefix(rest) else {
            break;
        };
        rest = following;
        // The identifier of a host is made of its identity.
        let identity = usize::from(it.hostid[0]).wrapping_sub(1);
        state.keys.insert(identity, it.rkey.get());
        if it.rcsts.holder() {
            holders.push(identity);
        }
    }
    let rtype = header.rtype.0;
    let is_of_all = matches!(rtype, 5 | 6) && holders.len() == state.keys.len();
    state.held = match holders.as_slice() {
        _ if rtype == 0 => None,
        _ if is_of_all => Some(Held {
            rtype,
            holder: None,
        }),
        [holder] => Some(Held {
            rtype,
            holder: Some(*holder),
        }),
        _ => Some(Held {
            rtype,
            holder: Some(usize::MAX),
        }),
    };
    state
}
