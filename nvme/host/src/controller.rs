//! A controller as its host sees it: the admin queue, what the controller is, and the way to its
//! I/O queues.
//!
//! Everything here waits for the target, each step for the options' timeout at most.

use std::time::{Duration, Instant};

use hugemem::Pool;
use nvme_spec::Sqe;
use nvme_spec::command::{Cns, FeatureId, FeatureSelect, LogPageId, LogPageSelect};
use nvme_spec::event::AsyncEvent;
use nvme_spec::fabrics::PropertySize;
use nvme_spec::features::NumberOfQueues;
use nvme_spec::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, NamespaceId, NamespaceIds, NamespaceList,
};
use nvme_spec::log::TransportType;
use nvme_spec::registers::{
    Cap, Cc, Csts, Register, ShutdownNotification, ShutdownStatus, Version,
};
use zerocopy::FromBytes;

use crate::admin::AdminQueue;
use crate::deadline::Deadline;
use crate::error::HostError;
use crate::link::{Completion, Transfer};
use crate::options::ConnectOptions;
use crate::queue::{IoQueue, IoQueuePlan};
use crate::slots::SLOTS_MAX;
use crate::transport::QueueParameters;

/// Most namespaces that are listed: a target that claims more is not followed.
const NAMESPACES_MAX: usize = 64 * 1024;

/// Pause between two looks at CSTS.
const STATUS_PAUSE: Duration = Duration::from_millis(1);

/// What an I/O host needs to know of a namespace (NVM 1.1 §4.1.5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Namespace identifier.
    pub nsid: u32,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks.
    pub blocks: u64,
    /// Whether writes are refused.
    pub write_protected: bool,
    /// NGUID, all zero for none.
    pub nguid: [u8; 16],
    /// EUI-64, all zero for none.
    pub eui64: [u8; 8],
    /// UUID, where the namespace has one.
    pub uuid: Option<[u8; 16]>,
}

impl NamespaceInfo {
    /// Size, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(u64::from(self.block_bytes))
    }
}

/// An enabled controller.
#[derive(Debug)]
pub struct Controller {
    admin: AdminQueue,
    options: ConnectOptions,
    cntlid: u16,
    capabilities: Cap,
    version: Version,
    identity: Box<IdentifyController>,
    last_keep_alive: Instant,
}

impl Controller {
    /// Connects to a controller, enables it, waits until it is ready, and identifies it.
    ///
    /// # Errors
    /// [`HostError`]; nothing stays open.
    pub fn connect(options: ConnectOptions) -> Result<Self, HostError> {
        let (admin, cntlid) = AdminQueue::connect(&options)?;
        let mut controller = Self {
            admin,
            options,
            cntlid,
            capabilities: Cap::new(),
            version: Version::new(),
            identity: Box::default(),
            last_keep_alive: Instant::now(),
        };
        controller.capabilities = Cap::from_bits(controller.get_property(Register::CAP)?);
        controller.version = Version::from_bits(controller.get_property(Register::VS)? as u32);
        controller.enable()?;
        controller.identity = Box::new(controller.identify_controller()?);
        Ok(controller)
    }

    /// The controller's identifier.
    #[must_use]
    pub fn cntlid(&self) -> u16 {
        self.cntlid
    }

    /// CAP, as read when connecting.
    #[must_use]
    pub fn capabilities(&self) -> Cap {
        self.capabilities
    }

    /// VS, as read when connecting.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Identify Controller, as read when connecting.
    #[must_use]
    pub fn identity(&self) -> &IdentifyController {
        &self.identity
    }

    /// The options of the connection.
    #[must_use]
    pub fn options(&self) -> &ConnectOptions {
        &self.options
    }

    /// The largest transfer of one command, bytes; `None` without limit.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> Option<u64> {
        self.identity
            .transfer_bytes_max(self.capabilities.page_bytes_min())
    }

    /// The most commands in flight on one I/O queue: one less than its entries (Base 2.1 §3.3.1.2:
    /// a queue is full with one entry free).
    #[must_use]
    pub fn queue_depth_max(&self) -> u16 {
        self.capabilities.mqes_z().min(SLOTS_MAX as u16)
    }

    /// Runs any admin or Fabrics command to its end, whatever its status. Its identifier and data
    /// pointer are set here.
    ///
    /// # Errors
    /// [`HostError`] where the connection fails or the command does not end in time.
    pub fn admin(
        &mut self,
        sqe: Sqe,
        transfer: Transfer<Vec<u8>>,
    ) -> Result<Completion<Vec<u8>>, HostError> {
        self.admin.run("the command", sqe, transfer)
    }

    /// Reads a property.
    ///
    /// # Errors
    /// [`HostError`], with the status where the controller refuses.
    pub fn get_property(&mut self, register: Register) -> Result<u64, HostError> {
        let size = register.size().unwrap_or(PropertySize::BYTES_4);
        let sqe = Sqe::get_property(register.into_bits(), size);
        let completion = self.admin.execute("Property Get", sqe, Transfer::None)?;
        Ok(completion.cqe.result())
    }

    /// Writes a property.
    ///
    /// # Errors
    /// [`HostError`], with the status where the controller refuses.
    pub fn set_property(&mut self, register: Register, value: u64) -> Result<(), HostError> {
        let size = register.size().unwrap_or(PropertySize::BYTES_4);
        let sqe = Sqe::set_property(register.into_bits(), size, value);
        self.admin
            .execute("Property Set", sqe, Transfer::None)
            .map(|_| ())
    }

    /// Sets CC.EN and waits for CSTS.RDY (Base 2.1 §3.5.1).
    ///
    /// # Errors
    /// [`HostError::ControllerFatal`], [`HostError::TimedOut`], and those of the connection.
    pub fn enable(&mut self) -> Result<(), HostError> {
        self.set_property(Register::CC, u64::from(Cc::enabled_nvm().into_bits()))?;
        // CAP.TO is the controller's own limit, of which ours allows at least one unit more.
        let own = Duration::from_millis(u64::from(self.capabilities.timeout_ms()) + 500);
        let limit = self.options.timeout.max(own);
        self.wait_status(limit, "CSTS.RDY to be set", |csts| csts.rdy())
    }

    /// Resets the controller: clears CC.EN, waits until CSTS.RDY is clear, and enables it again.
    /// Its I/O queues are gone after that.
    ///
    /// # Errors
    /// As [`Self::enable`].
    pub fn reset(&mut self) -> Result<(), HostError> {
        let disabled = Cc::enabled_nvm().with_en(false);
        self.set_property(Register::CC, u64::from(disabled.into_bits()))?;
        let limit = self.options.timeout;
        self.wait_status(limit, "CSTS.RDY to be cleared", |csts| !csts.rdy())?;
        self.enable()
    }

    /// Shuts the controller down in order, and waits until it says so (Base 2.1 §3.6.1).
    ///
    /// # Errors
    /// As [`Self::enable`].
    pub fn shut_down(mut self) -> Result<(), HostError> {
        let notified = Cc::enabled_nvm().with_shn(ShutdownNotification::NORMAL);
        self.set_property(Register::CC, u64::from(notified.into_bits()))?;
        let limit = self.options.timeout;
        self.wait_status(limit, "the shutdown", |csts| {
            csts.shst() == ShutdownStatus::COMPLETE
        })
    }

    fn wait_status(
        &mut self,
        limit: Duration,
        what: &'static str,
        done: impl Fn(Csts) -> bool,
    ) -> Result<(), HostError> {
        let deadline = Deadline::after(limit, what);
        loop {
            let csts = Csts::from_bits(self.get_property(Register::CSTS)? as u32);
            if done(csts) {
                return Ok(());
            }
            if csts.cfs() {
                return Err(HostError::ControllerFatal);
            }
            std::thread::sleep(deadline.left()?.min(STATUS_PAUSE));
        }
    }

    /// Reads an Identify data structure, whole.
    ///
    /// # Errors
    /// [`HostError`], with the status where the controller refuses.
    pub fn identify(&mut self, sqe: Sqe) -> Result<Vec<u8>, HostError> {
        let transfer = Transfer::Read(vec![0; IDENTIFY_BYTES]);
        let completion = self.admin.execute("Identify", sqe, transfer)?;
        completion.data.ok_or(HostError::Malformed {
            what: "Identify data",
        })
    }

    fn identify_as<T: FromBytes>(&mut self, sqe: Sqe, what: &'static str) -> Result<T, HostError> {
        let page = self.identify(sqe)?;
        T::read_from_bytes(&page).map_err(|_| HostError::Malformed { what })
    }

    /// Identify Controller, read anew.
    ///
    /// # Errors
    /// As [`Self::identify`].
    pub fn identify_controller(&mut self) -> Result<IdentifyController, HostError> {
        self.identify_as(
            Sqe::identify_structure(Cns::CONTROLLER, 0),
            "Identify Controller",
        )
    }

    /// Identify Namespace.
    ///
    /// # Errors
    /// As [`Self::identify`].
    pub fn identify_namespace(&mut self, nsid: u32) -> Result<IdentifyNamespace, HostError> {
        self.identify_as(
            Sqe::identify_structure(Cns::NAMESPACE, nsid),
            "Identify Namespace",
        )
    }

    /// The identification descriptors of a namespace.
    ///
    /// # Errors
    /// As [`Self::identify`].
    pub fn namespace_ids(&mut self, nsid: u32) -> Result<Vec<NamespaceId>, HostError> {
        let page = self.identify(Sqe::identify_structure(Cns::NAMESPACE_DESCRIPTORS, nsid))?;
        Ok(NamespaceIds::new(&page).collect())
    }

    /// The identifiers of the attached namespaces, ascending.
    ///
    /// # Errors
    /// As [`Self::identify`]; [`HostError::Malformed`] for a list that does not ascend.
    pub fn active_namespaces(&mut self) -> Result<Vec<u32>, HostError> {
        let what = "active namespace list";
        let mut nsids: Vec<u32> = Vec::new();
        loop {
            let after = nsids.last().copied().unwrap_or(0);
            let sqe = Sqe::identify_structure(Cns::ACTIVE_NAMESPACE_LIST, after);
            let list: NamespaceList = self.identify_as(sqe, what)?;
            let before = nsids.len();
            for nsid in list.iter() {
                if nsids.last().is_some_and(|&last| nsid <= last) || nsids.len() == NAMESPACES_MAX {
                    return Err(HostError::Malformed { what });
                }
                nsids.push(nsid);
            }
            if nsids.len() - before < list.entries.len() {
                return Ok(nsids);
            }
        }
    }

    /// What an I/O host needs of a namespace.
    ///
    /// # Errors
    /// As [`Self::identify`]; [`HostError::Malformed`] for a namespace without a usable format.
    pub fn namespace(&mut self, nsid: u32) -> Result<NamespaceInfo, HostError> {
        let page = self.identify_namespace(nsid)?;
        let block_bytes = page.block_bytes().ok_or(HostError::Malformed {
            what: "namespace's LBA format",
        })?;
        let ids = self.namespace_ids(nsid)?;
        let uuid = ids.iter().find_map(|id| match id {
            NamespaceId::Uuid(uuid) => Some(*uuid),
            NamespaceId::Eui64(_) | NamespaceId::Nguid(_) | NamespaceId::CommandSet(_) => None,
        });
        Ok(NamespaceInfo {
            nsid,
            block_bytes,
            blocks: page.nsze.get(),
            write_protected: page.nsattr.write_protected(),
            nguid: page.nguid,
            eui64: page.eui64,
            uuid,
        })
    }

    /// All attached namespaces.
    ///
    /// # Errors
    /// As [`Self::active_namespaces`] and [`Self::namespace`].
    pub fn namespaces(&mut self) -> Result<Vec<NamespaceInfo>, HostError> {
        let nsids = self.active_namespaces()?;
        nsids.into_iter().map(|nsid| self.namespace(nsid)).collect()
    }

    /// Reads `bytes` (a multiple of 4, at least 4) of a log page from `offset` on.
    ///
    /// # Errors
    /// [`HostError`], with the status where the controller refuses.
    pub fn log_page(
        &mut self,
        nsid: u32,
        page: LogPageId,
        offset: u64,
        bytes: u32,
    ) -> Result<Vec<u8>, HostError> {
        let (least, most) = (4, 1 << 20);
        if !(least..=most).contains(&bytes) || !bytes.is_multiple_of(4) {
            let (value, least, most) = (u64::from(bytes), u64::from(least), u64::from(most));
            return Err(HostError::Option {
                what: "log page length",
                value,
                least,
                most,
            });
        }
        let select = LogPageSelect::new()
            .with_lid(page)
            .with_numd_z(bytes / 4 - 1);
        let sqe = Sqe::log_page(nsid, select, offset);
        let transfer = Transfer::Read(vec![0; bytes as usize]);
        let completion = self.admin.execute("Get Log Page", sqe, transfer)?;
        completion
            .data
            .ok_or(HostError::Malformed { what: "log page" })
    }

    /// The current value of a feature: dword 0 of the completion.
    ///
    /// # Errors
    /// [`HostError`], with the status where the controller refuses.
    pub fn get_feature(&mut self, feature: FeatureId, nsid: u32) -> Result<u32, HostError> {
        let sqe = Sqe::get_feature(feature, FeatureSelect::CURRENT, nsid, 0);
        let completion = self.admin.execute("Get Features", sqe, Transfer::None)?;
        Ok(completion.cqe.dw0.get())
    }

    /// Sets a feature whose value is one dword; gives dword 0 of the completion.
    ///
    /// # Errors
    /// [`HostError`], with the status where the controller refuses.
    pub fn set_feature(
        &mut self,
        feature: FeatureId,
        nsid: u32,
        value: u32,
    ) -> Result<u32, HostError> {
        let sqe = Sqe::set_feature(feature, nsid, value);
        let completion = self.admin.execute("Set Features", sqe, Transfer::None)?;
        Ok(completion.cqe.dw0.get())
    }

    /// Asks for `wanted` I/O queues; gives how many there will be, at most as many (Base 2.1
    /// §5.1.25.2.1).
    ///
    /// # Errors
    /// [`HostError`], with the status where the controller refuses; [`HostError::Option`] for none.
    pub fn request_io_queues(&mut self, wanted: u16) -> Result<u16, HostError> {
        let Some(wanted_z) = wanted.checked_sub(1) else {
            let (least, most) = (1, u64::from(u16::MAX));
            return Err(HostError::Option {
                what: "number of I/O queues",
                value: 0,
                least,
                most,
            });
        };
        let value = NumberOfQueues::new()
            .with_nsq_z(wanted_z)
            .with_ncq_z(wanted_z);
        let granted = self.set_feature(FeatureId::NUMBER_OF_QUEUES, 0, value.into_bits())?;
        let granted = NumberOfQueues::from_bits(granted);
        Ok(granted.nsq_z().min(granted.ncq_z()).min(wanted_z) + 1)
    }

    /// Sends a Keep Alive and waits for its answer.
    ///
    /// # Errors
    /// [`HostError`], with the status where the controller refuses.
    pub fn keep_alive(&mut self) -> Result<(), HostError> {
        self.last_keep_alive = Instant::now();
        self.admin
            .execute("Keep Alive", Sqe::keep_alive(), Transfer::None)
            .map(|_| ())
    }

    /// What a host does now and then: takes in events, and sends a Keep Alive when a third of its
    /// time has passed. Does not wait.
    ///
    /// # Errors
    /// [`HostError`] where the connection has failed.
    pub fn tend(&mut self) -> Result<(), HostError> {
        let interval = self.options.keep_alive / 3;
        if !interval.is_zero() && self.last_keep_alive.elapsed() >= interval {
            self.last_keep_alive = Instant::now();
            return self.admin.send_keep_alive();
        }
        self.admin.poll()
    }

    /// Asks to abort a command of the I/O queue `qid`, or of the admin queue (0). True where it was
    /// aborted.
    ///
    /// # Errors
    /// [`HostError`], with the status where the controller refuses.
    pub fn abort(&mut self, qid: u16, cid: u16) -> Result<bool, HostError> {
        let sqe = Sqe::abort_command(qid, cid);
        let completion = self.admin.execute("Abort", sqe, Transfer::None)?;
        Ok(completion.cqe.dw0.get() & 1 == 0)
    }

    /// Sends an Asynchronous Event Request, which the controller answers when there is something to
    /// tell. Gives its command identifier.
    ///
    /// # Errors
    /// [`HostError::NoSlot`] for too many, and those of the connection.
    pub fn request_event(&mut self) -> Result<u16, HostError> {
        self.admin.request_event()
    }

    /// The next event that has arrived, without waiting.
    ///
    /// # Errors
    /// [`HostError`] where the connection has failed.
    pub fn poll_event(&mut self) -> Result<Option<AsyncEvent>, HostError> {
        self.admin.poll()?;
        Ok(self.admin.take_event())
    }

    /// Waits for an event, `limit` at most.
    ///
    /// # Errors
    /// [`HostError::TimedOut`], and those of the connection.
    pub fn wait_event(&mut self, limit: Duration) -> Result<AsyncEvent, HostError> {
        self.admin.wait_event(limit)
    }

    /// Waits until the admin connection ends, `limit` at most; gives how it ended.
    ///
    /// # Errors
    /// [`HostError::TimedOut`] where it does not.
    pub fn wait_end(&mut self, limit: Duration) -> Result<HostError, HostError> {
        self.admin.wait_end(limit)
    }

    /// The plan of I/O queue `qid` (from 1) for `depth` commands in flight, which another thread
    /// may carry out.
    ///
    /// # Errors
    /// [`HostError::Option`] for a depth that the controller does not take.
    pub fn plan_io_queue(&self, qid: u16, depth: u16) -> Result<IoQueuePlan, HostError> {
        let most = self.queue_depth_max();
        if !(1..=most).contains(&depth) {
            let (value, most) = (u64::from(depth), u64::from(most));
            return Err(HostError::Option {
                what: "queue depth",
                value,
                least: 1,
                most,
            });
        }
        let in_capsule = self.identity.in_capsule_data_bytes();
        // Data behind an offset is not what this host sends: then the target fetches everything.
        let placed_by_offset =
            self.options.transport.kind() != TransportType::RDMA || self.identity.sgls.offset();
        let in_capsule = if self.identity.icdoff.get() == 0 && placed_by_offset {
            in_capsule
        } else {
            0
        };
        Ok(IoQueuePlan {
            options: self.options.clone(),
            parameters: QueueParameters {
                qid,
                depth,
                cntlid: self.cntlid,
                in_capsule_max_bytes: u32::try_from(in_capsule).unwrap_or(u32::MAX),
                descriptors_max: self.identity.msdbd,
            },
        })
    }

    /// Connects I/O queue `qid` (from 1) for `depth` commands in flight.
    ///
    /// # Errors
    /// [`HostError`]; nothing stays open.
    pub fn open_io_queue(&self, qid: u16, depth: u16, pool: Pool) -> Result<IoQueue, HostError> {
        self.plan_io_queue(qid, depth)?.open(pool)
    }
}
