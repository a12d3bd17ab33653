//! The steps of a host before its first I/O: Connect, enabling the controller, waiting until it is
//! ready (Base 2.1 §3.5.3, §6.3).

use std::time::{Duration, Instant};

use nvme_spec::completion::Cqe;
use nvme_spec::fabrics::{CNTLID_DYNAMIC, ConnectAttributes, ConnectData, PropertySize};
use nvme_spec::nqn::NqnField;
use nvme_spec::registers::{Cc, Csts, Register};
use nvme_spec::{Sqe, Status, nqn};
use zerocopy::IntoBytes;

/// Submission queue entries of the queues opened by these steps, zero-based.
pub const QUEUE_ENTRIES_Z: u16 = 31;

/// Names of a host and a subsystem.
#[derive(Debug, Clone)]
pub struct Names {
    /// Host NQN.
    pub host: String,
    /// Host Identifier.
    pub host_id: [u8; 16],
    /// Subsystem NQN.
    pub subsystem: String,
}

impl Names {
    /// Connect data for any (FFFFh) or a particular controller. A name that does not fit its field
    /// results in an empty field.
    #[must_use]
    pub fn connect_data(&self, cntlid: u16) -> ConnectData {
        let field = |name: &str| nqn::to_field(name).unwrap_or_else(|_| NqnField::default());
        ConnectData::new(
            self.host_id,
            cntlid,
            field(&self.subsystem),
            field(&self.host),
        )
    }
}

/// The reason for the failure of a step, apart from failures to execute a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// The controller refused a command.
    #[error("{0}")]
    Refused(Status),
    /// The controller is not ready after the time limit.
    #[error("the controller is not ready after {0:?}")]
    NotReady(Duration),
}

/// A host that executes one command at a time.
pub trait HostSteps {
    /// The error of the host.
    type Error: From<StepError>;

    /// Executes a command with an identifier of the host's choice. It writes `data`, or transfers
    /// nothing if `data` is empty.
    ///
    /// # Errors
    /// The reason for which the command got no response.
    fn run(&mut self, sqe: Sqe, data: &[u8]) -> Result<Cqe, Self::Error>;

    /// The time limit for a controller to become ready.
    fn limit(&self) -> Duration {
        Duration::from_secs(20)
    }

    /// Executes a command that must succeed.
    ///
    /// # Errors
    /// As [`Self::run`], and [`StepError::Refused`].
    fn succeed(&mut self, sqe: Sqe, data: &[u8]) -> Result<Cqe, Self::Error> {
        let cqe = self.run(sqe, data)?;
        if cqe.status().is_success() {
            Ok(cqe)
        } else {
            Err(StepError::Refused(cqe.status()).into())
        }
    }

    /// Sends Connect for a queue, and returns its completion with any status.
    ///
    /// # Errors
    /// As [`Self::run`].
    fn connect_queue(
        &mut self,
        names: &Names,
        cntlid: u16,
        qid: u16,
        sqsize_z: u16,
    ) -> Result<Cqe, Self::Error> {
        // These hosts do not use SQHD, so their I/O queues disable SQ flow control (Base 2.1 §6.3,
        // CATTR).
        let attributes = ConnectAttributes::new().with_disable_sq_flow_control(qid > 0);
        let sqe = Sqe::connect_queue(qid, sqsize_z, attributes, 0);
        self.run(sqe, names.connect_data(cntlid).as_bytes())
    }

    /// Reads a property of the controller.
    ///
    /// # Errors
    /// As [`Self::succeed`].
    fn get_property(&mut self, offset: u32, size: PropertySize) -> Result<u64, Self::Error> {
        let cqe = self.succeed(Sqe::get_property(offset, size), &[])?;
        Ok(cqe.result())
    }

    /// Connects the admin queue of any controller, enables it and waits until it is ready. Returns
    /// the controller's identifier.
    ///
    /// # Errors
    /// As [`Self::succeed`], and [`StepError::NotReady`].
    fn open_admin_queue(&mut self, names: &Names) -> Result<u16, Self::Error> {
        let sqe = Sqe::connect_queue(0, QUEUE_ENTRIES_Z, ConnectAttributes::new(), 0);
        let data = names.connect_data(CNTLID_DYNAMIC);
        let connected = self.succeed(sqe, data.as_bytes())?;
        self.enable()?;
        Ok(connected.connect_success().cntlid())
    }

    /// Enables the controller and waits until it is ready.
    ///
    /// # Errors
    /// As [`Self::succeed`], and [`StepError::NotReady`].
    fn enable(&mut self) -> Result<(), Self::Error> {
        let value = u64::from(Cc::enabled_nvm().into_bits());
        let (control, status) = (Register::CC.into_bits(), Register::CSTS.into_bits());
        let enable = Sqe::set_property(control, PropertySize::BYTES_4, value);
        self.succeed(enable, &[])?;
        let deadline = Instant::now() + self.limit();
        while !Csts::from_bits(self.get_property(status, PropertySize::BYTES_4)? as u32).rdy() {
            if Instant::now() > deadline {
                return Err(StepError::NotReady(self.limit()).into());
            }
        }
        Ok(())
    }

    /// Connects I/O queue `qid` of the controller `cntlid`.
    ///
    /// # Errors
    /// As [`Self::succeed`].
    fn open_io_queue(&mut self, names: &Names, cntlid: u16, qid: u16) -> Result<(), Self::Error> {
        let connected = self.connect_queue(names, cntlid, qid, QUEUE_ENTRIES_Z)?;
        if connected.status().is_success() {
            Ok(())
        } else {
            Err(StepError::Refused(connected.status()).into())
        }
    }
}
