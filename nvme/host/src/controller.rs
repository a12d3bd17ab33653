//! A controller as seen by its host: the admin queue, the controller's properties, and access to
//! its I/O queues.
//!
//! All methods wait for the target, each step at most for the timeout of the options, unless their
//! documentation says otherwise.

use std::time::{Duration, Instant};

use hugemem::Pool;
use nvme_authentication::Authenticated;
use nvme_spec::Sqe;
use nvme_spec::command::{Cns, FeatureId, FeatureSelect, LogPageId, LogPageSelect};
use nvme_spec::event::AsyncEvent;
use nvme_spec::fabrics::PropertySize;
use nvme_spec::features::{HostBehavior, NumberOfQueues};
use nvme_spec::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, NamespaceId, NamespaceIds, NamespaceList,
};
use nvme_spec::log::TransportType;
use nvme_spec::registers::{
    Cap, Cc, Csts, Register, ShutdownNotification, ShutdownStatus, Version,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::admin::AdminQueue;
use crate::authentication::ChapOptions;
use crate::deadline::Deadline;
use crate::error::HostError;
use crate::link::{Completion, Transfer};
use crate::options::ConnectOptions;
use crate::queue::{IoQueue, IoQueuePlan};
use crate::slots::SLOTS_MAX;
use crate::transport::QueueParameters;

/// Maximum number of namespaces listed. A target that reports more is malformed.
const NAMESPACES_MAX: usize = 64 * 1024;

/// Interval between two reads of CSTS.
const STATUS_PAUSE: Duration = Duration::from_millis(1);

/// Properties of a namespace that I/O needs (NVM 1.1 §4.1.5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Namespace identifier.
    pub nsid: u32,
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// Whether the namespace is write protected.
    pub write_protected: bool,
    /// NGUID; all zero if it has none.
    pub nguid: [u8; 16],
    /// EUI-64; all zero if it has none.
    pub eui64: [u8; 8],
    /// UUID, if it has one.
    pub uuid: Option<[u8; 16]>,
}

impl NamespaceInfo {
    /// Size in bytes.
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
    /// [`HostError`]; nothing remains open.
    pub fn connect(options: ConnectOptions) -> Result<Self, HostError> {
        let (admin, cntlid, _) = AdminQueue::connect(&options)?;
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

    /// The controller identifier.
    #[must_use]
    pub fn cntlid(&self) -> u16 {
        self.cntlid
    }

    /// CAP, read at connect.
    #[must_use]
    pub fn capabilities(&self) -> Cap {
        self.capabilities
    }

    /// VS, read at connect.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Identify Controller, read at connect.
    #[must_use]
    pub fn identity(&self) -> &IdentifyController {
        &self.identity
    }

    /// The options of the connection.
    #[must_use]
    pub fn options(&self) -> &ConnectOptions {
        &self.options
    }

    /// Largest transfer of one command in bytes; `None` if there is no limit.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> Option<u64> {
        self.identity
            .transfer_bytes_max(self.capabilities.page_bytes_min())
    }

    /// Maximum number of commands in flight on one I/O queue: one less than its entries (Base 2.1
    /// §3.3.1.5: a queue is full with one entry free).
    #[must_use]
    pub fn queue_depth_max(&self) -> u16 {
        self.capabilities.mqes_z().min(SLOTS_MAX as u16)
    }

    /// Runs any admin or Fabrics command to completion, whatever its status. Sets its identifier
    /// and data pointer.
    ///
    /// # Errors
    /// [`HostError`] if the connection fails or the command does not complete in time.
    pub fn admin(
        &mut self,
        sqe: Sqe,
        transfer: Transfer<Vec<u8>>,
    ) -> Result<Completion<Vec<u8>>, HostError> {
        self.admin.run("the command", sqe, transfer)
    }

    /// Authenticates the admin queue again, with secrets that replace those of the options.
    ///
    /// # Errors
    /// [`HostError::Authentication`] if one side refuses the other; the connection then ends.
    pub fn authenticate(&mut self, chap: ChapOptions) -> Result<Authenticated, HostError> {
        self.options.chap = Some(chap);
        self.admin.authenticate(&self.options)
    }

    /// Reads a property.
    ///
    /// # Errors
    /// [`HostError`], with the status if the controller rejects it.
    pub fn get_property(&mut self, register: Register) -> Result<u64, HostError> {
        let size = register.size().unwrap_or(PropertySize::BYTES_4);
        let sqe = Sqe::get_property(register.into_bits(), size);
        let completion = self.admin.execute("Property Get", sqe, Transfer::None)?;
        Ok(completion.cqe.result())
    }

    /// Writes a property.
    ///
    /// # Errors
    /// [`HostError`], with the status if the controller rejects it.
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
        // CAP.TO is the controller's own limit; allow at least one unit more.
        let own = Duration::from_millis(u64::from(self.capabilities.timeout_ms()) + 500);
        let limit = self.options.timeout.max(own);
        self.wait_status(limit, "CSTS.RDY to be set", |csts| csts.rdy())
    }

    /// Resets the controller: clears CC.EN, waits until CSTS.RDY is clear, and enables it again.
    /// Its I/O queues no longer exist afterwards.
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

    /// Shuts the controller down, and waits until it reports completion (Base 2.1 §3.6.1).
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

    /// Reads a complete Identify data structure.
    ///
    /// # Errors
    /// [`HostError`], with the status if the controller rejects it.
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

    /// Reads Identify Controller again.
    ///
    /// # Errors
    /// As [`Self::identify`].
    pub fn identify_controller(&mut self) -> Result<IdentifyController, HostError> {
        self.identify_as(
            Sqe::identify_structure(Cns::CONTROLLER, 0),
            "Identify Controller",
        )
    }

    /// Reads Identify Namespace.
    ///
    /// # Errors
    /// As [`Self::identify`].
    pub fn identify_namespace(&mut self, nsid: u32) -> Result<IdentifyNamespace, HostError> {
        self.identify_as(
            Sqe::identify_structure(Cns::NAMESPACE, nsid),
            "Identify Namespace",
        )
    }

    /// Reads the identification descriptors of a namespace.
    ///
    /// # Errors
    /// As [`Self::identify`].
    pub fn namespace_ids(&mut self, nsid: u32) -> Result<Vec<NamespaceId>, HostError> {
        let page = self.identify(Sqe::identify_structure(Cns::NAMESPACE_DESCRIPTORS, nsid))?;
        Ok(NamespaceIds::new(&page).collect())
    }

    /// Reads the identifiers of the attached namespaces, in ascending order.
    ///
    /// # Errors
    /// As [`Self::identify`]; [`HostError::Malformed`] for a list that is not ascending.
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

    /// Reads the properties of a namespace that I/O needs.
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

    /// Reads the properties of all attached namespaces.
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
    /// [`HostError`], with the status if the controller rejects it.
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

    /// Reads the current value of a feature: dword 0 of the completion.
    ///
    /// # Errors
    /// [`HostError`], with the status if the controller rejects it.
    pub fn get_feature(&mut self, feature: FeatureId, nsid: u32) -> Result<u32, HostError> {
        let sqe = Sqe::get_feature(feature, FeatureSelect::CURRENT, nsid, 0);
        let completion = self.admin.execute("Get Features", sqe, Transfer::None)?;
        Ok(completion.cqe.dw0.get())
    }

    /// Sets a feature whose value is one dword. Returns dword 0 of the completion.
    ///
    /// # Errors
    /// [`HostError`], with the status if the controller rejects it.
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

    /// Sets Host Behavior Support (Base 2.1 §5.1.25.1.14), for instance to enable a format of Copy.
    ///
    /// # Errors
    /// [`HostError`], with the status if the controller rejects it.
    pub fn set_host_behavior(&mut self, behavior: &HostBehavior) -> Result<(), HostError> {
        let sqe = Sqe::set_feature(FeatureId::HOST_BEHAVIOR, 0, 0);
        let transfer = Transfer::Write(behavior.as_bytes().to_vec());
        self.admin.execute("Set Features", sqe, transfer).map(drop)
    }

    /// Requests `wanted` I/O queues. Returns the number granted, at most `wanted` (Base 2.1
    /// §5.1.25.2.1).
    ///
    /// # Errors
    /// [`HostError`], with the status if the controller rejects it; [`HostError::Option`] if
    /// `wanted` is 0.
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

    /// Sends a Keep Alive and waits for its completion.
    ///
    /// # Errors
    /// [`HostError`], with the status if the controller rejects it.
    pub fn keep_alive(&mut self) -> Result<(), HostError> {
        self.last_keep_alive = Instant::now();
        self.admin
            .execute("Keep Alive", Sqe::keep_alive(), Transfer::None)
            .map(|_| ())
    }

    /// Periodic work of a host, without waiting: receives events, and sends a Keep Alive after a
    /// third of the Keep Alive Timeout.
    ///
    /// # Errors
    /// [`HostError`] if the connection has failed.
    pub fn run_periodic(&mut self) -> Result<(), HostError> {
        let interval = self.options.keep_alive / 3;
        if !interval.is_zero() && self.last_keep_alive.elapsed() >= interval {
            self.last_keep_alive = Instant::now();
            return self.admin.send_keep_alive();
        }
        self.admin.poll()
    }

    /// Sends an Abort for a command of the I/O queue `qid`, or of the admin queue (0). Returns true
    /// if the command was aborted.
    ///
    /// # Errors
    /// [`HostError`], with the status if the controller rejects it.
    pub fn abort(&mut self, qid: u16, cid: u16) -> Result<bool, HostError> {
        let sqe = Sqe::abort_command(qid, cid);
        let completion = self.admin.execute("Abort", sqe, Transfer::None)?;
        Ok(completion.cqe.dw0.get() & 1 == 0)
    }

    /// Sends an Asynchronous Event Request, which completes when the controller has an event.
    /// Returns its command identifier.
    ///
    /// # Errors
    /// [`HostError::NoSlot`] if too many are outstanding, and those of the connection.
    pub fn request_event(&mut self) -> Result<u16, HostError> {
        self.admin.request_event()
    }

    /// Takes the next event received, without waiting.
    ///
    /// # Errors
    /// [`HostError`] if the connection has failed.
    pub fn poll_event(&mut self) -> Result<Option<AsyncEvent>, HostError> {
        self.admin.poll()?;
        Ok(self.admin.take_event())
    }

    /// Waits for an event, at most for `limit`.
    ///
    /// # Errors
    /// [`HostError::TimedOut`], and those of the connection.
    pub fn wait_event(&mut self, limit: Duration) -> Result<AsyncEvent, HostError> {
        self.admin.wait_event(limit)
    }

    /// Waits until the admin connection ends, at most for `limit`. Returns the error that ended it.
    ///
    /// # Errors
    /// [`HostError::TimedOut`] if it does not end.
    pub fn wait_end(&mut self, limit: Duration) -> Result<HostError, HostError> {
        self.admin.wait_end(limit)
    }

    /// A plan for I/O queue `qid` (from 1) with `depth` commands in flight. Another thread may open
    /// the queue from it.
    ///
    /// # Errors
    /// [`HostError::Option`] for a depth that the controller does not support.
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
        // This host does not send in-capsule data at an offset; the target then fetches all data.
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
    /// [`HostError`]; nothing remains open.
    pub fn open_io_queue(&self, qid: u16, depth: u16, pool: Pool) -> Result<IoQueue, HostError> {
        self.plan_io_queue(qid, depth)?.open(pool)
    }
}
