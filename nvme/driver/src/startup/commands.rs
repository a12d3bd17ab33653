//! The commands of the start sequence: their submission and their completion.

use nvme_spec::command::{
    AdminOpcode, Cns, CommandSet, CreateCqControl, CreateIoCq, CreateIoSq, CreateSqControl,
    FeatureId, FeatureSelect,
};
use nvme_spec::features::{
    AsyncEventConfiguration, CopyFormatsEnabled, HostBehavior, NumberOfQueues, VolatileWriteCache,
};
use nvme_spec::identify::NamespaceList;
use nvme_spec::registers::Version;
use nvme_spec::{Cqe, Sqe, Status, U16};
use reactors::Nanos;
use std::sync::Arc;
use zerocopy::transmute;

use super::{Command, NAMESPACES_MAX, Startup, Step};
use crate::admin::Purpose;
use crate::drive_access::{queue_id, vector};
use crate::error::{DriveError, Unusable};
use crate::memory::AdminPage;

/// NVM Express 1.3, which has namespace identification descriptors.
const V1_3: Version = Version::new().with_mjr(1).with_mnr(3);

impl Startup {
    /// Sends a command of the start sequence.
    pub(super) fn send(&mut self, command: Command, now: Nanos) -> Result<(), DriveError> {
        let (sqe, page) = self.command(command);
        let deadline = now + self.shared.options.deadlines.command;
        let sent = self
            .admin()
            .submit(sqe, page, Purpose::Step, Some(deadline));
        debug_assert!(sent, "one command of the start at a time");
        self.step = Step::Await(command);
        self.deadline = deadline;
        Ok(())
    }

    fn command(&mut self, command: Command) -> (Sqe, Option<AdminPage>) {
        let page = Some(AdminPage::Step);
        let structure = |cns, nsid| (Sqe::identify_structure(cns, nsid), page);
        match command {
            Command::Controller => structure(Cns::CONTROLLER, 0),
            Command::NvmLimits => {
                let sqe = Sqe::identify_for_command_set(Cns::IO_CONTROLLER, 0, CommandSet::NVM);
                (sqe, page)
            }
            Command::Queues => {
                let wanted_z = (self.shared.options.reactors - 1) as u16;
                let count = NumberOfQueues::new()
                    .with_nsq_z(wanted_z)
                    .with_ncq_z(wanted_z);
                let feature = FeatureId::NUMBER_OF_QUEUES;
                (Sqe::set_feature(feature, 0, count.into_bits()), None)
            }
            Command::HostBehavior => (self.enable_copies_across(), None),
            Command::WriteCache => {
                let feature = FeatureId::VOLATILE_WRITE_CACHE;
                (
                    Sqe::get_feature(feature, FeatureSelect::CURRENT, 0, 0),
                    None,
                )
            }
            Command::List => {
                let after = self.found.nsids.last().copied().unwrap_or(0);
                structure(Cns::ACTIVE_NAMESPACE_LIST, after)
            }
            Command::Namespace(at) => structure(Cns::NAMESPACE, self.found.nsids[at]),
            Command::Descriptors(at) => structure(Cns::NAMESPACE_DESCRIPTORS, self.found.nsids[at]),
            Command::Events => (self.configure_events(), None),
            Command::Shadow => (self.configure_shadow(), None),
            Command::CreateCq(reactor) => (self.create_cq(reactor), None),
            Command::CreateSq(reactor) => (self.create_sq(reactor), None),
        }
    }

    /// Enables all health warnings, and the notices that the controller supports (Base 2.1
    /// §5.1.25.1.5).
    fn configure_events(&self) -> Sqe {
        let notices = self.limits().notices;
        let wanted = AsyncEventConfiguration::new()
            .with_spare(true)
            .with_temperature(true)
            .with_reliability(true)
            .with_read_only(true)
            .with_backup_failed(true)
            .with_namespace_attribute(notices.namespace_attribute());
        Sqe::set_feature(FeatureId::ASYNC_EVENT_CONFIGURATION, 0, wanted.into_bits())
    }

    /// Enables Copy with source ranges of other namespaces (Base 2.1 §5.1.25.1.14, CDFE). All other
    /// behaviours stay those of a host that does not support the feature.
    fn enable_copies_across(&mut self) -> Sqe {
        let mut behavior = HostBehavior::default();
        behavior.cdfe = CopyFormatsEnabled::new().with_format_2(true);
        let words: [u64; size_of::<HostBehavior>() / 8] = transmute!(behavior);
        let admin = self.admin();
        admin.memory().write(AdminPage::Behavior, &words);
        let page = admin.memory().page_offset(AdminPage::Behavior);
        let address = admin.dma_base() + page as u64;
        Sqe::set_feature(FeatureId::HOST_BEHAVIOR, 0, 0).with_prp(address, 0)
    }

    fn configure_shadow(&mut self) -> Sqe {
        let shadow = self.memory().shadow.clone();
        let shadow = shadow.expect("taken where the controller offers it");
        let doorbells = self.admin().dma_base() + shadow.region_offset() as u64;
        let events = doorbells + crate::memory::PAGE_BYTES as u64;
        // The controller may read the admin queues' doorbells there as soon as it executes the
        // command.
        self.admin().follow_shadow(Arc::clone(&shadow));
        Sqe::new(AdminOpcode::DOORBELL_BUFFER_CONFIG.0, 0).with_prp(doorbells, events)
    }

    fn create_cq(&mut self, reactor: usize) -> Sqe {
        let address = self.memory().pairs[reactor].cq.region_offset() as u64;
        let vector = vector(&*self.backing, reactor);
        let mut create = CreateIoCq::default();
        create.qid = U16::new(queue_id(reactor));
        create.qsize_z = U16::new(self.limits().slots);
        create.control = CreateCqControl::new()
            .with_pc(true)
            .with_ien(vector.is_some())
            .with_iv(vector.unwrap_or(0));
        Sqe::new(AdminOpcode::CREATE_IO_CQ.0, 0)
            .with_create_io_cq(create)
            .with_prp(self.admin().dma_base() + address, 0)
    }

    fn create_sq(&mut self, reactor: usize) -> Sqe {
        let address = match self.room() {
            Some(room) if reactor < room.queues => room.address + (reactor * room.stride) as u64,
            _ => {
                let offset = self.memory().pairs[reactor].sq.region_offset() as u64;
                self.admin().dma_base() + offset
            }
        };
        let mut create = CreateIoSq::default();
        create.qid = U16::new(queue_id(reactor));
        create.qsize_z = U16::new(self.limits().slots);
        create.control = CreateSqControl::new()
            .with_pc(true)
            .with_cqid(queue_id(reactor));
        Sqe::new(AdminOpcode::CREATE_IO_SQ.0, 0)
            .with_create_io_sq(create)
            .with_prp(address, 0)
    }

    /// Handles a completion. Returns the next command, or `None` after the last.
    pub(super) fn completed(
        &mut self,
        command: Command,
        opcode: AdminOpcode,
        cqe: &Cqe,
    ) -> Result<Option<Command>, DriveError> {
        let status = cqe.status();
        let required = || match status.is_success() {
            true => Ok(()),
            false => Err(DriveError::Command { opcode, status }),
        };
        let next = match command {
            Command::Controller => {
                required()?;
                self.store_controller();
                Command::NvmLimits
            }
            Command::NvmLimits => {
                // Controllers before 2.0 do not support it, and have no such limits.
                if status.is_success() {
                    self.store_nvm_limits();
                }
                self.derive_limits()?;
                Command::Queues
            }
            Command::Queues => {
                required()?;
                self.check_queues(NumberOfQueues::from_bits(cqe.dw0.get()))?;
                match self.limits().copy_across {
                    true => Command::HostBehavior,
                    false => self.after_behavior(),
                }
            }
            Command::HostBehavior => {
                if let Some(limits) = &mut self.found.limits {
                    limits.copy_across &= status.is_success();
                }
                self.after_behavior()
            }
            Command::WriteCache => {
                // If the setting cannot be read, assume that the cache is on.
                let feature = VolatileWriteCache::from_bits(cqe.dw0.get());
                self.found.write_cache = !status.is_success() || feature.wce();
                Command::List
            }
            Command::List => self.listed(status),
            Command::Namespace(at) => {
                self.check_known(at, opcode, status)?;
                self.identified(at, status)
            }
            Command::Descriptors(at) => {
                self.check_known(at, opcode, status)?;
                if status.is_success() {
                    let page = self.read_page();
                    if let Some(namespace) = self.found.namespaces.last_mut() {
                        namespace.add_descriptors(&page[..]);
                    }
                }
                self.namespace(at + 1)
            }
            // A controller may reject the configuration; it then sends its default events.
            Command::Events if self.limits().shadow => Command::Shadow,
            Command::Events => Command::CreateCq(0),
            Command::Shadow => {
                self.found.shadow = status.is_success();
                Command::CreateCq(0)
            }
            Command::CreateCq(reactor) => {
                required()?;
                Command::CreateSq(reactor)
            }
            Command::CreateSq(reactor) => {
                required()?;
                if reactor + 1 == self.shared.options.reactors {
                    return Ok(None);
                }
                Command::CreateCq(reactor + 1)
            }
        };
        Ok(Some(next))
    }

    fn after_behavior(&self) -> Command {
        match self.limits().write_cache {
            true => Command::WriteCache,
            false => Command::List,
        }
    }

    fn check_queues(&self, granted: NumberOfQueues) -> Result<(), DriveError> {
        let reactors = self.shared.options.reactors;
        let granted = granted.nsq().min(granted.ncq());
        if (granted as usize) < reactors {
            return Err(DriveError::TooFewQueues { granted, reactors });
        }
        Ok(())
    }

    /// Identifies the next namespace, or continues after the last.
    fn namespace(&self, at: usize) -> Command {
        if at < self.found.nsids.len() {
            Command::Namespace(at)
        } else {
            Command::Events
        }
    }

    fn listed(&mut self, status: Status) -> Command {
        let before = self.found.nsids.len();
        if status.is_success() {
            let list: NamespaceList = transmute!(*self.read_page());
            let last = self.found.nsids.last().copied().unwrap_or(0);
            // Base 2.1 §4.6.2: lists are ascending. Stop at an entry that is not, because such a
            // list could be endless.
            let ascending = list.iter().scan(last, |last, nsid| {
                (nsid > *last).then(|| {
                    *last = nsid;
                    nsid
                })
            });
            self.found
                .nsids
                .extend(ascending.take(NAMESPACES_MAX - before));
            let full = list.iter().count() == nvme_spec::identify::NAMESPACE_LIST_ENTRIES;
            if full && (before + 1..NAMESPACES_MAX).contains(&self.found.nsids.len()) {
                return Command::List;
            }
        } else if before == 0 {
            // Controllers before 1.1 have no lists: try every identifier up to NN.
            let count = self.limits().namespaces_max.min(NAMESPACES_MAX as u32);
            self.found.nsids.extend(1..=count);
        }
        self.namespace(0)
    }

    /// Fails the start if Identify of a namespace in use fails with an error that may be transient,
    /// so that the whole start is retried. A status that says that the namespace does not exist is
    /// a valid result.
    fn check_known(
        &self,
        at: usize,
        opcode: AdminOpcode,
        status: Status,
    ) -> Result<(), DriveError> {
        let expected = [Status::INVALID_NAMESPACE_OR_FORMAT, Status::INVALID_FIELD];
        let is_expected =
            status.is_success() || expected.iter().any(|status_code| status.is(*status_code));
        let known = self.shared.identity.get();
        let known = known.and_then(|identity| identity.namespace(self.found.nsids[at]));
        if is_expected || known.is_none_or(|namespace| namespace.geometry.is_err()) {
            return Ok(());
        }
        Err(DriveError::Command { opcode, status })
    }

    fn identified(&mut self, at: usize, status: Status) -> Command {
        if !status.is_success() {
            self.store_unusable(at, Unusable::NotIdentified(status.code()));
            return self.namespace(at + 1);
        }
        self.store_namespace(at);
        let version = self.registers().version();
        if version.is_some_and(|version| version >= V1_3) {
            Command::Descriptors(at)
        } else {
            self.namespace(at + 1)
        }
    }
}
