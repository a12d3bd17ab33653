//! The admin work of a host: the reported write cache, features, Abort, the error log, and shutdown
//! (Base 2.1 §5.1, §3.6.2).
//!
//! Responses are compared with what the host set and received, and with the model of every block.

use std::collections::{BTreeMap, VecDeque};

use nvme_spec::command::{AbortResult, Cns, FeatureId, FeatureSelect, LogPageId, LogPageSelect};
use nvme_spec::fabrics::PropertySize;
use nvme_spec::features::{CopyFormatsEnabled, HostBehavior, VolatileWriteCache};
use nvme_spec::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, IndependentIdentifyNamespace,
};
use nvme_spec::log::ErrorEntry;
use nvme_spec::registers::{Cc, Csts, Register, ShutdownNotification, ShutdownStatus};
use nvme_spec::{Cqe, NSID_BROADCAST, Sqe, Status};
use reactors::Nanos;
use zerocopy::{FromBytes, IntoBytes};

use super::completion_checks::is_absence;
use super::connection::{Connection, Outstanding, Transfer};
use super::invalid::Refusal;
use super::notices::NoticeStep;
use super::{Command, Host, HostEnv, LATENCY_MAX, Phase, READY_POLL};
use crate::faults::Fault;
use crate::history::Moment;
use crate::identity::ContentId;
use crate::judge::{Extent, Violation};

/// Bytes of the error log to read: the maximum of ELPE, 64 entries of 64 bytes.
const ERROR_LOG_BYTES: usize = 4096;
/// A target may omit failures from its error log if one queue has more than this in [`FLOOD_SPAN`].
const FLOOD_FAILURES: usize = 12;
const FLOOD_SPAN: Nanos = Nanos::from_millis(250);
/// Number of failures after which an entry may be missing from the log.
const LOG_DEPTH: usize = 48;
/// Number of concurrent Abort commands that every controller accepts: ACL is 3 (Base 2.1
/// §5.1.13.2.1).
const ABORTS_MAX: usize = 4;
/// Maximum number of commands that a flood of Aborts names.
const ABORT_FLOOD: usize = 12;
/// Warning temperature in kelvin; thresholds from this value on raise no event.
const THRESHOLD_MIN_KELVIN: u64 = 343;
/// The default of the over temperature threshold: WCTEMP (Base 2.1 §5.1.25.1.3).
const THRESHOLD_DEFAULT_KELVIN: u32 = 343;

/// Identifies a command uniquely: its queue, the time at which the queue was opened, and its
/// position in the queue.
pub(super) type CommandKey = (u16, Nanos, u64);

/// The results of a command that an Abort named.
#[derive(Clone, Copy, Debug, Default)]
struct Aborted {
    /// The result of the Abort (dword 0), if it is complete.
    performed: Option<bool>,
    /// The status of the command itself.
    status: Option<Status>,
    /// Several Aborts name it.
    ambiguous: bool,
}

/// A failure that the error log must show.
#[derive(Clone, Copy, Debug)]
struct Failure {
    qid: u16,
    cid: u16,
    refusal: Refusal,
    at: Nanos,
    /// Number of later failures of the host.
    later: usize,
}

/// What a host knows about its controller.
#[derive(Default)]
pub(super) struct AdminState {
    /// VWC from Identify Controller at attach time.
    reported_cache: Option<bool>,
    /// Maximum number of outstanding event requests, from Identify Controller.
    pub(super) event_limit: Option<usize>,
    /// By disk: whether its namespace reports that it has no volatile cache.
    lacks_cache: BTreeMap<usize, bool>,
    /// Whether the host disabled the volatile write cache.
    write_through: bool,
    /// Whether the host has enabled Copy across namespaces.
    copies_namespaces: bool,
    /// The features set since the last reset.
    features: BTreeMap<u8, u32>,
    /// Number of resets, which restore the defaults of features.
    resets: u64,
    /// The previous Keep Alive Timeout, while the target may still use it.
    former_keep_alive: Nanos,
    failures: VecDeque<(u16, Nanos)>,
    logged: VecDeque<Failure>,
    aborts: BTreeMap<CommandKey, Aborted>,
    /// Aborts sent since the last time that none was outstanding.
    abort_burst: usize,
    /// When a shutdown was requested, and the moment before which commands were completed.
    shutdown: Option<(Nanos, Moment)>,
}

impl AdminState {
    fn flushes(&self, disk: usize) -> bool {
        self.reported_cache.unwrap_or(true) && self.lacks_cache.get(&disk) != Some(&true)
    }
}

/// A step of a host's admin work.
#[derive(Clone, Copy, Debug)]
pub(super) enum AdminStep {
    /// Identify Controller.
    Identify,
    /// The command-set-independent Identify Namespace of a disk.
    IdentifyNamespace(usize),
    /// The identifiers of a disk, and its content at the time of the request.
    IdentifyDisk(ContentId),
    /// Identify Namespace, for the size of a growing disk.
    Size(usize),
    /// Enables or disables the write cache; the moment of the request, and the number of resets until
    /// then.
    WriteCache {
        enable: bool,
        began: Moment,
        resets: u64,
    },
    /// Sets a feature.
    SetFeature,
    /// Enables Copy across namespaces; the number of resets until then.
    EnableCopies { resets: u64 },
    /// Gets a feature, which must have this value unless a reset happened.
    GetFeature {
        feature: FeatureId,
        value: u32,
        resets: u64,
    },
    /// Sets the Keep Alive Timer to this value.
    SetKeepAlive(Nanos),
    /// Sets or gets the masks of reservation notifications.
    Notices(NoticeStep),
    /// Gets the Persist Through Power Loss state of a disk.
    GetPersistence(usize),
    /// Reads the error log.
    ErrorLog,
    /// Reads the list of active namespaces.
    List,
    /// Sets CC.SHN.
    Shutdown,
}

impl AdminState {
    /// The start of the shutdown in progress.
    pub(super) fn shutdown_since(&self) -> Option<Nanos> {
        self.shutdown.map(|(since, _)| since)
    }
}

impl Host {
    /// Sends the Identify commands of an attaching host, or those after a change of namespaces.
    pub(super) fn identify(&mut self, env: &mut HostEnv<'_>, attaches: bool) {
        let page = || Transfer::In(IDENTIFY_BYTES);
        if attaches {
            self.admin_state.reported_cache = None;
            self.admin_state.lacks_cache.clear();
            let sqe = Sqe::identify_structure(Cns::CONTROLLER, 0);
            self.send_admin_moving(env, sqe, Command::Admin(AdminStep::Identify), page());
            self.enable_copies(env);
        }
        if !self.knows_disks() {
            return;
        }
        self.list_disks(env);
        let disks: Vec<usize> = env.swarm.disks_of(self.shape.subsystem).collect();
        for disk in disks {
            let sqe = Sqe::identify_structure(Cns::INDEPENDENT_NAMESPACE, self.nsid(env, disk));
            let step = AdminStep::IdentifyNamespace(disk);
            self.send_admin_moving(env, sqe, Command::Admin(step), page());
            let faults = env.swarm.faults;
            if faults.has(Fault::Exchange) || faults.has(Fault::Swap) {
                let sqe = Sqe::identify_structure(Cns::NAMESPACE_DESCRIPTORS, self.nsid(env, disk));
                let step = AdminStep::IdentifyDisk(env.judge.content(disk));
                self.send_admin_moving(env, sqe, Command::Admin(step), page());
            }
        }
    }

    /// Handles the identifiers of a disk.
    fn disk_identified(
        &mut self,
        env: &mut HostEnv<'_>,
        content: ContentId,
        outstanding: &Outstanding,
    ) -> Result<(), Violation> {
        let (disk, _) = content;
        let identity = self.shape.identity;
        self.check_not_identified(env, disk, outstanding.issued_at)?;
        let has_changed = env.changed_at(identity, disk) >= outstanding.issued_at;
        let is_there = env.sees(identity, disk) && !env.disk_gone[disk];
        if has_changed || !is_there || env.judge.content(disk) != content {
            return Ok(());
        }
        env.figures.identities_judged += 1;
        let judged = env
            .judge
            .identities
            .record_reported(content, &outstanding.data);
        judged.map_err(|what| self.violation(env, &what))
    }

    /// Reads the size of a growing disk, whose last block is read after the growth.
    pub fn ask_size(&mut self, env: &mut HostEnv<'_>, disk: usize) {
        let asks = {
            let mut admin = self.admin.iter().flat_map(Connection::outstanding);
            admin.any(|(_, it)| matches!(it.command, Command::Admin(AdminStep::Size(_))))
        };
        let is_its = env.swarm.subsystem_of_disk(disk) == self.shape.subsystem;
        if asks || !is_its || !self.knows_disks() || !self.is_serving() || !self.has_admin_room() {
            return;
        }
        let sqe = Sqe::identify_structure(Cns::NAMESPACE, self.nsid(env, disk));
        let command = Command::Admin(AdminStep::Size(disk));
        self.send_admin_moving(env, sqe, command, Transfer::In(IDENTIFY_BYTES));
    }

    /// Handles a size: from now on every queue accepts commands for all of its blocks.
    fn size_told(&mut self, env: &mut HostEnv<'_>, disk: usize, blocks: u64) {
        let known = env.swarm.disks[disk].block_count;
        if (known + 1..=env.judge.blocks(disk)).contains(&blocks) {
            let lba = blocks - 1;
            let blocks = 1;
            self.read(env, Extent { disk, lba, blocks });
        }
    }

    /// Whether the host has to flush its writes to a disk, according to the reported data.
    pub(super) fn flushes(&self, disk: usize) -> bool {
        self.admin_state.flushes(disk)
    }

    /// Whether a completed write to a disk is durable, according to the reported data and the
    /// features.
    pub(super) fn writes_through(&self, disk: usize) -> bool {
        self.admin_state.write_through || !self.flushes(disk)
    }

    /// Performs a random step of admin work.
    pub(super) fn do_admin_step(&mut self, env: &mut HostEnv<'_>) -> Option<()> {
        match self.random.below(8) {
            0 | 1 => self.switch_cache(env),
            2 | 3 => self.set_feature(env),
            4 | 5 => self.get_feature(env),
            6 => self.set_keep_alive(env),
            _ => self.read_error_log(env),
        }
    }

    /// Commands sent while the cache was disabled may be executed after it is enabled.
    fn doubt_durability(&mut self) {
        let state = &self.admin_state;
        let sent = self.io.iter_mut().flat_map(Connection::outstanding_mut);
        for outstanding in sent {
            if let Command::Io(io) = &mut outstanding.command {
                io.durable = io.fua || io.extents.iter().all(|it| !state.flushes(it.disk));
            }
        }
    }

    fn switch_cache(&mut self, env: &mut HostEnv<'_>) -> Option<()> {
        if self.admin_state.reported_cache != Some(true) {
            return None;
        }
        let enable = self.admin_state.write_through;
        let value = VolatileWriteCache::new().with_wce(enable).into_bits();
        // Writes in flight may or may not be durable.
        self.admin_state.write_through = false;
        self.doubt_durability();
        let began = env.judge.begin_read();
        let step = AdminStep::WriteCache {
            enable,
            began,
            resets: self.admin_state.resets,
        };
        let sqe = Sqe::set_feature(FeatureId::VOLATILE_WRITE_CACHE, 0, value);
        if !self.send_admin(env, sqe, Command::Admin(step)) {
            env.judge.end_read(began);
        }
        Some(())
    }

    fn set_feature(&mut self, env: &mut HostEnv<'_>) -> Option<()> {
        let random = &mut self.random;
        let (feature, value) = match random.below(4) {
            // Arbitration burst and weights; the bits between are reserved.
            0 => (FeatureId::ARBITRATION, random.bits() as u32 & 0xFFFF_FF07),
            // Power state 0 with a workload hint.
            1 => (FeatureId::POWER_MANAGEMENT, (random.below(8) as u32) << 5),
            2 => {
                let kelvin = random.between(THRESHOLD_MIN_KELVIN, 400);
                (FeatureId::TEMPERATURE_THRESHOLD, kelvin as u32)
            }
            _ => (FeatureId::WRITE_ATOMICITY, random.below(2) as u32),
        };
        let sqe = Sqe::set_feature(feature, 0, value);
        if self.send_admin(env, sqe, Command::Admin(AdminStep::SetFeature)) {
            self.admin_state.features.insert(feature.0, value);
        }
        Some(())
    }

    fn get_feature(&mut self, env: &mut HostEnv<'_>) -> Option<()> {
        let feature = self.random.pick(&[
            FeatureId::ARBITRATION,
            FeatureId::POWER_MANAGEMENT,
            FeatureId::TEMPERATURE_THRESHOLD,
            FeatureId::WRITE_ATOMICITY,
        ]);
        let default = match feature {
            FeatureId::TEMPERATURE_THRESHOLD => THRESHOLD_DEFAULT_KELVIN,
            _ => 0,
        };
        let set = self.admin_state.features.get(&feature.0).copied();
        let (select, value) = if self.random.permille(300) {
            (FeatureSelect::DEFAULT, default)
        } else {
            (FeatureSelect::CURRENT, set.unwrap_or(default))
        };
        let resets = self.admin_state.resets;
        let step = AdminStep::GetFeature {
            feature,
            value,
            resets,
        };
        let sqe = Sqe::get_feature(feature, select, 0, 0);
        self.send_admin(env, sqe, Command::Admin(step));
        Some(())
    }

    /// Sets the Keep Alive Timer (Base 2.1 §5.1.25.1.8).
    fn set_keep_alive(&mut self, env: &mut HostEnv<'_>) -> Option<()> {
        let former = self.shape.keep_alive;
        if former == Nanos::ZERO || self.admin_state.former_keep_alive > Nanos::ZERO {
            return None;
        }
        let wanted = Nanos::from_secs(self.random.pick(&[2, 5, 15]));
        // The shorter timeout is used until it is known which one applies.
        self.shape.keep_alive = wanted.min(former);
        self.admin_state.former_keep_alive = former.max(wanted);
        let sqe = Sqe::set_feature(FeatureId::KEEP_ALIVE_TIMER, 0, wanted.as_millis() as u32);
        let step = AdminStep::SetKeepAlive(wanted);
        if !self.send_admin(env, sqe, Command::Admin(step)) {
            self.shape.keep_alive = former;
            self.admin_state.former_keep_alive = Nanos::ZERO;
        }
        Some(())
    }

    /// The longest time for which the target may keep a silent host, by the Keep Alive Timeout.
    pub(super) fn keep_alive_max(&self) -> Nanos {
        self.shape
            .keep_alive
            .max(self.admin_state.former_keep_alive)
    }

    /// Reads the error log with Retain Asynchronous Event.
    fn read_error_log(&mut self, env: &mut HostEnv<'_>) -> Option<()> {
        let select = LogPageSelect::new()
            .with_lid(LogPageId::ERROR_INFORMATION)
            .with_rae(true)
            .with_numd_z((ERROR_LOG_BYTES / 4 - 1) as u32);
        let sqe = Sqe::log_page(NSID_BROADCAST, select, 0);
        let transfer = Transfer::In(ERROR_LOG_BYTES);
        self.send_admin_moving(env, sqe, Command::Admin(AdminStep::ErrorLog), transfer);
        Some(())
    }

    /// Whether the admin queue has room for another command.
    pub(super) fn has_admin_room(&self) -> bool {
        let admin = self.admin.as_ref();
        admin.is_some_and(|it| it.room() > 1 && !it.closing)
    }

    /// Shuts its controller down (Base 2.1 §3.6.2).
    pub(super) fn shut_down(&mut self, env: &mut HostEnv<'_>) -> Option<()> {
        let room = self
            .admin
            .as_ref()
            .is_some_and(|it| it.room() > 1 && !it.closing);
        if !room {
            return None;
        }
        for connection in &mut self.io {
            connection.excused = true;
            connection.closing = true;
        }
        let began = env.judge.begin_read();
        self.admin_state.shutdown = Some((env.now, began));
        self.phase = Phase::ShuttingDown;
        self.forget_due_event();
        let cc = Cc::enabled_nvm().with_shn(ShutdownNotification::NORMAL);
        let value = u64::from(cc.into_bits());
        let sqe = Sqe::set_property(Register::CC.0, PropertySize::BYTES_4, value);
        self.send_admin(env, sqe, Command::Admin(AdminStep::Shutdown));
        Some(())
    }

    /// Handles CSTS during a shutdown.
    pub(super) fn shutdown_read(
        &mut self,
        env: &mut HostEnv<'_>,
        csts: Csts,
    ) -> Result<(), Violation> {
        if csts.shst() != ShutdownStatus::COMPLETE {
            self.poll_status_at = Some(env.now + READY_POLL);
            return Ok(());
        }
        let Some((since, began)) = self.admin_state.shutdown.take() else {
            return Ok(());
        };
        if csts.cfs() {
            // Base 2.1 §3.1.4.6: an error that no completion reported.
            self.check_flush_may_fail(env)?;
        } else {
            self.note_flushed(env, since, began);
        }
        env.judge.end_read(began);
        *env.power_wanted |= self.random.permille(600);
        if self.random.coin() || !self.has_admin_room() {
            self.drop_all(env);
        } else {
            self.phase = Phase::AwaitingReady { ready: false };
            self.set_configuration(env, false);
        }
        Ok(())
    }

    /// Checks that a shutdown reports a failed flush only if a flush can fail.
    fn check_flush_may_fail(&self, env: &mut HostEnv<'_>) -> Result<(), Violation> {
        let flushes_fail = env.swarm.disk_behaviour.flush_error_permille > 0;
        let may_fail = |disk: usize| env.disk_fails[disk] || env.disk_gone[disk];
        if flushes_fail || env.swarm.disks_of(self.shape.subsystem).any(may_fail) {
            return Ok(());
        }
        Err(self.violation(env, "a shutdown reports a failed flush"))
    }

    /// Notes that every volatile cache that the host sees was flushed: earlier writes are durable.
    fn note_flushed(&self, env: &mut HostEnv<'_>, since: Nanos, began: Moment) {
        for disk in env.swarm.disks_of(self.shape.subsystem) {
            let identity = self.shape.identity;
            let is_there = env.sees(identity, disk) && !env.disk_gone[disk];
            let same = is_there && env.changed_at(identity, disk) < since;
            if same && !env.disk_fails[disk] {
                env.judge.flushed(disk, began);
            }
        }
    }

    /// Handles the completion of a step.
    pub(super) fn admin_step_completed(
        &mut self,
        env: &mut HostEnv<'_>,
        step: AdminStep,
        outstanding: &Outstanding,
        cqe: &Cqe,
    ) -> Result<(), Violation> {
        let status = cqe.status();
        if !status.is_success() {
            return self.step_failed(env, step, status);
        }
        match step {
            AdminStep::Identify => {
                let page = IdentifyController::read_from_prefix(&outstanding.data);
                let (page, _) = page.map_err(|_| self.short_page(env))?;
                self.admin_state.reported_cache = Some(page.vwc.present());
                self.admin_state.event_limit = Some(usize::from(page.aerl_z) + 1);
            }
            AdminStep::IdentifyNamespace(disk) => {
                let page = IndependentIdentifyNamespace::read_from_prefix(&outstanding.data);
                let (page, _) = page.map_err(|_| self.short_page(env))?;
                // The page of an inactive namespace is empty.
                if page.nstat.nrdy() {
                    self.check_not_identified(env, disk, outstanding.issued_at)?;
                    let (group, issued_at) = (page.anagrpid.get(), outstanding.issued_at);
                    self.check_identified_group(env, disk, group, None, issued_at)?;
                    let lacks = page.nsfeat.vwcnp();
                    self.admin_state.lacks_cache.insert(disk, lacks);
                } else {
                    self.admin_state.lacks_cache.remove(&disk);
                }
            }
            AdminStep::IdentifyDisk(content) => {
                return self.disk_identified(env, content, outstanding);
            }
            AdminStep::Size(disk) => {
                let page = IdentifyNamespace::read_from_prefix(&outstanding.data);
                let (page, _) = page.map_err(|_| self.short_page(env))?;
                let (all, allocated) = (page.nsze.get(), page.nuse.get());
                if all > 0 {
                    self.check_not_identified(env, disk, outstanding.issued_at)?;
                    let (group, blocks) = (page.anagrpid.get(), Some((all, allocated)));
                    self.check_identified_group(env, disk, group, blocks, outstanding.issued_at)?;
                }
                self.size_told(env, disk, all);
            }
            AdminStep::WriteCache {
                enable,
                began,
                resets,
            } => {
                if !enable {
                    // A reset since it was sent has enabled the cache again.
                    self.admin_state.write_through = resets == self.admin_state.resets;
                    self.note_flushed(env, outstanding.issued_at, began);
                    *env.power_wanted |= self.random.permille(250);
                }
                env.judge.end_read(began);
            }
            AdminStep::GetFeature {
                feature,
                value,
                resets,
            } => {
                let found = cqe.dw0.get();
                let serving =
                    self.phase == Phase::ServedConfig && resets == self.admin_state.resets;
                if serving && found != value {
                    let what = format!("{feature} is {found:#x}, not {value:#x}");
                    return Err(self.violation(env, &what));
                }
            }
            AdminStep::SetKeepAlive(wanted) => {
                self.shape.keep_alive = wanted;
                self.admin_state.former_keep_alive = Nanos::ZERO;
            }
            AdminStep::Notices(step) => {
                return self.notice_step_completed(env, step, outstanding, cqe);
            }
            AdminStep::GetPersistence(disk) => {
                return self.check_persistence(env, disk, outstanding, cqe.dw0.get());
            }
            AdminStep::ErrorLog => return self.check_error_log(env, outstanding),
            AdminStep::List => return self.check_list(env, outstanding),
            AdminStep::Shutdown => {
                self.poll_status_at = Some(env.now + READY_POLL);
            }
            AdminStep::SetFeature => {}
            AdminStep::EnableCopies { resets } => {
                self.admin_state.copies_namespaces = resets == self.admin_state.resets;
            }
        }
        Ok(())
    }

    /// Enables Copy across namespaces (Base 2.1 §5.1.25.1.14, CDFE).
    fn enable_copies(&mut self, env: &mut HostEnv<'_>) {
        if !env.swarm.faults.has(Fault::Copy) {
            return;
        }
        let mut behavior = HostBehavior::default();
        behavior.cdfe = CopyFormatsEnabled::new().with_format_2(true);
        let sqe = Sqe::set_feature(FeatureId::HOST_BEHAVIOR, 0, 0);
        let resets = self.admin_state.resets;
        let step = AdminStep::EnableCopies { resets };
        let data = Transfer::Out(behavior.as_bytes().to_vec());
        self.send_admin_moving(env, sqe, Command::Admin(step), data);
    }

    /// Whether the host may copy across namespaces.
    pub(super) fn copies_namespaces(&self) -> bool {
        self.admin_state.copies_namespaces
    }

    fn short_page(&self, env: &mut HostEnv<'_>) -> Violation {
        self.violation(env, "a page is shorter than requested")
    }

    fn step_failed(
        &mut self,
        env: &mut HostEnv<'_>,
        step: AdminStep,
        status: Status,
    ) -> Result<(), Violation> {
        let unready =
            self.phase != Phase::ServedConfig && status.is(Status::COMMAND_SEQUENCE_ERROR);
        let excused = match step {
            AdminStep::WriteCache { began, .. } => {
                env.judge.end_read(began);
                // The feature does not exist without a volatile cache, and flushes may fail.
                let fails = |it: &bool| *it;
                env.disk_fails.iter().any(fails)
                    || env.disk_gone.iter().any(fails)
                    || env.swarm.disk_behaviour.flush_error_permille > 0
                    || status.is(Status::INVALID_FIELD)
            }
            AdminStep::IdentifyNamespace(disk) => {
                self.admin_state.lacks_cache.remove(&disk);
                true
            }
            // The namespace does not exist now.
            AdminStep::IdentifyDisk(_) | AdminStep::Notices(_) | AdminStep::GetPersistence(_) => {
                is_absence(status)
            }
            AdminStep::Size(_) => true,
            AdminStep::SetKeepAlive(_) => {
                let former = self.configured_keep_alive;
                self.shape.keep_alive = former.min(self.shape.keep_alive);
                false
            }
            AdminStep::Identify
            | AdminStep::SetFeature
            | AdminStep::EnableCopies { .. }
            | AdminStep::GetFeature { .. }
            | AdminStep::ErrorLog
            | AdminStep::List
            | AdminStep::Shutdown => false,
        };
        if excused || unready || self.is_excused(env, 0) {
            return Ok(());
        }
        let what = format!("{step:?} completed with {status}");
        Err(self.violation(env, &what))
    }

    /// Restores the defaults of features after a controller level reset (Base 2.1 §5.1.25).
    pub(super) fn forget_features(&mut self) {
        self.admin_state.write_through = false;
        self.admin_state.copies_namespaces = false;
        self.admin_state.features.clear();
        self.admin_state.resets += 1;
    }

    /// Forgets the controller at the end of the association.
    pub(super) fn forget_controller(&mut self, env: &mut HostEnv<'_>) {
        if let Some((_, began)) = self.admin_state.shutdown {
            env.judge.end_read(began);
        }
        let resets = self.admin_state.resets + 1;
        self.admin_state = AdminState {
            resets,
            ..AdminState::default()
        };
        self.shape.keep_alive = self.configured_keep_alive;
    }

    /// Records a failed command; `refusal` if its error log entry is known.
    pub(super) fn note_failure(
        &mut self,
        now: Nanos,
        (qid, cid): (u16, u16),
        refusal: Option<Refusal>,
    ) {
        let state = &mut self.admin_state;
        state.failures.push_back((qid, now));
        state.failures.retain(|(_, at)| *at + FLOOD_SPAN > now);
        let flood = state.failures.iter().filter(|(of, _)| *of == qid).count();
        for failure in &mut state.logged {
            failure.later += 1;
        }
        state.logged.retain(|it| it.later < LOG_DEPTH);
        if let Some(refusal) = refusal.filter(|_| flood < FLOOD_FAILURES) {
            state.logged.push_back(Failure {
                qid,
                cid,
                refusal,
                at: now,
                later: 0,
            });
        }
    }

    /// Compares the error log with the recorded failures (Base 2.1 §5.1.12.1.2).
    fn check_error_log(
        &mut self,
        env: &mut HostEnv<'_>,
        outstanding: &Outstanding,
    ) -> Result<(), Violation> {
        let Ok(entries) = <[ErrorEntry]>::ref_from_bytes(&outstanding.data) else {
            return Err(self.short_page(env));
        };
        let counts = entries.iter().map(|it| it.error_count.get());
        let counts: Vec<u64> = counts.collect();
        let in_order = counts
            .windows(2)
            .all(|pair| pair[0] == pair[1] + 1 || pair[1] == 0);
        if !in_order {
            let what = format!("the error log counts {:?}", &counts[..8]);
            return Err(self.violation(env, &what));
        }
        // Entries from drives' own logs replace others.
        if env.swarm.faults.has(Fault::Drive) {
            return Ok(());
        }
        let missing = self.admin_state.logged.iter().find(|failure| {
            let due = failure.at < outstanding.issued_at;
            due && !entries.iter().any(|entry| is_of(entry, failure))
        });
        let Some(missing) = missing.copied() else {
            return Ok(());
        };
        let what = format!("the error log has no entry of {missing:?}");
        Err(self.violation(env, &what))
    }

    /// Aborts commands, sometimes all outstanding ones (Base 2.1 §5.1.1).
    pub(super) fn abort_many(&mut self, env: &mut HostEnv<'_>) -> Option<()> {
        for index in 0..self.io.len() {
            let connection = &mut self.io[index];
            let keys: Vec<_> = connection.abort_all().take(ABORT_FLOOD).collect();
            for (cid, key) in keys {
                self.send_abort(env, key.0, cid, Some(key));
            }
        }
        // A nonexistent command, and sometimes a nonexistent queue.
        let qid = self.random.pick(&[1, 7, u16::MAX]);
        self.send_abort(env, qid, 0xFFF0, None);
        Some(())
    }

    /// Sends an Abort of a command, which may not exist.
    pub(super) fn send_abort(
        &mut self,
        env: &mut HostEnv<'_>,
        qid: u16,
        cid: u16,
        key: Option<CommandKey>,
    ) {
        let more = {
            let mut admin = self.admin.iter().flat_map(Connection::outstanding);
            admin.any(|(_, it)| matches!(it.command, Command::Abort(_)))
        };
        let burst = &mut self.admin_state.abort_burst;
        *burst = if more { *burst + 1 } else { 1 };
        let sqe = Sqe::abort_command(qid, cid);
        if self.send_admin(env, sqe, Command::Abort(key))
            && let Some(key) = key
        {
            let aborts = &mut self.admin_state.aborts;
            match aborts.get_mut(&key) {
                Some(earlier) => earlier.ambiguous = true,
                None => {
                    aborts.insert(key, Aborted::default());
                }
            }
        }
    }

    /// Handles the completion of an Abort.
    pub(super) fn abort_completed(
        &mut self,
        env: &mut HostEnv<'_>,
        key: Option<CommandKey>,
        cqe: &Cqe,
    ) -> Result<(), Violation> {
        let performed = !AbortResult::from_bits(cqe.dw0.get()).not_aborted();
        let Some(key) = key else {
            return if performed {
                let what = "Abort reports that it aborted a command that does not exist";
                Err(self.violation(env, what))
            } else {
                Ok(())
            };
        };
        if let Some(aborted) = self.admin_state.aborts.get_mut(&key) {
            aborted.performed = Some(performed);
        }
        self.judge_abort(env, key)
    }

    /// Handles the completion of a command that an Abort may have named.
    pub(super) fn note_completion(
        &mut self,
        env: &mut HostEnv<'_>,
        key: CommandKey,
        status: Status,
    ) -> Result<(), Violation> {
        match self.admin_state.aborts.get_mut(&key) {
            Some(aborted) => {
                aborted.status = Some(status);
                self.judge_abort(env, key)
            }
            None => Ok(()),
        }
    }

    /// Checks that dword 0 of an Abort agrees with the status of the command (Base 2.1 §5.1.1: bit
    /// 0 is 0 if the command was aborted).
    fn judge_abort(&mut self, env: &mut HostEnv<'_>, key: CommandKey) -> Result<(), Violation> {
        let Some(aborted) = self.admin_state.aborts.get(&key).copied() else {
            return Ok(());
        };
        let (Some(performed), Some(status)) = (aborted.performed, aborted.status) else {
            return Ok(());
        };
        self.admin_state.aborts.remove(&key);
        let is_aborted = status.is(Status::ABORT_REQUESTED);
        // A device may also abort requests by itself.
        let flushes_fail = env.swarm.disk_behaviour.flush_error_permille > 0;
        let by_device = is_aborted && (flushes_fail || env.disk_fails.contains(&true));
        if aborted.ambiguous || by_device || performed == is_aborted {
            return Ok(());
        }
        let what =
            format!("Abort reports performed {performed}, but the command completed with {status}");
        Err(self.violation(env, &what))
    }

    /// Whether a completed Abort reports that it aborted a command, which is still outstanding.
    pub(super) fn is_given_up(&self, key: CommandKey) -> bool {
        let aborted = self.admin_state.aborts.get(&key);
        aborted.is_some_and(|it| it.performed == Some(true))
    }

    /// Whether more Aborts are outstanding than a controller has to accept.
    pub(super) fn exceeds_abort_limit(&self) -> bool {
        self.admin_state.abort_burst > ABORTS_MAX
    }

    /// Checks the duration of a shutdown.
    pub(super) fn check_shutdown(&self, env: &mut HostEnv<'_>) -> Result<(), Violation> {
        let Some(since) = self.admin_state.shutdown_since() else {
            return Ok(());
        };
        let since = since.max(self.calm_since(env));
        let excused = self.silent_until.is_some() || env.stopping || self.is_leaving(env);
        if !excused && since + LATENCY_MAX < env.now {
            return Err(self.violation(env, "a shutdown does not complete"));
        }
        Ok(())
    }
}

/// Whether an error log entry describes a failure.
fn is_of(entry: &ErrorEntry, failure: &Failure) -> bool {
    let Refusal {
        status,
        opcode,
        nsid,
        ..
    } = failure.refusal;
    entry.sqid.get() == failure.qid
        && entry.cid.get() == failure.cid
        && entry.status.status().is(status)
        && entry.opcode == opcode
        && entry.nsid.get() == nsid
}
