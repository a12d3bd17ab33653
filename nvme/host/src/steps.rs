//! What clients without manners have in common: who they are, and the steps up to an open queue.

use std::time::{Duration, Instant};

use nvme_spec::completion::Cqe;
use nvme_spec::fabrics::{CNTLID_DYNAMIC, ConnectAttributes, ConnectData, PropertySize};
use nvme_spec::nqn::NqnField;
use nvme_spec::registers::{Cc, Csts, Register};
use nvme_spec::{Sqe, Status, nqn};
use zerocopy::IntoBytes;

/// Submission queue entries of the queues that the steps open, zero-based.
pub(crate) const ENTRIES_Z: u16 = 31;

/// Who connects to what.
#[derive(Debug, Clone)]
pub struct RawNames {
    /// Host NQN.
    pub host: String,
    /// Host Identifier.
    pub host_id: [u8; 16],
    /// Subsystem NQN.
    pub subsystem: String,
}

impl RawNames {
    /// Connect data for any (FFFFh) or a particular controller. A name that does not fit its field
    /// leaves it empty.
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

/// A client that can run a command.
pub(crate) trait Steps {
    /// Why it cannot go on.
    type Error;

    /// Runs a command that writes `data`, or moves none where it is empty.
    fn run(&mut self, sqe: Sqe, data: &[u8]) -> Result<Cqe, Self::Error>;

    /// The error for a status.
    fn refused(status: Status) -> Self::Error;

    /// The error for a wait that came to nothing.
    fn timed_out(limit: Duration) -> Self::Error;

    /// How long anything may take.
    fn limit(&self) -> Duration;
}

/// Sends Connect for a queue, and gives its completion whatever the status.
pub(crate) fn connect_queue<C: Steps>(
    client: &mut C,
    names: &RawNames,
    cntlid: u16,
    qid: u16,
    sqsize_z: u16,
) -> Result<Cqe, C::Error> {
    // These clients do not look at SQHD, so their I/O queues do without SQ flow control (Base 2.1
    // §6.3, CATTR).
    let attributes = ConnectAttributes::new().with_disable_sq_flow_control(qid > 0);
    let sqe = Sqe::connect_queue(qid, sqsize_z, attributes, 0);
    client.run(sqe, names.connect_data(cntlid).as_bytes())
}

fn succeed<C: Steps>(client: &mut C, sqe: Sqe) -> Result<Cqe, C::Error> {
    let cqe = client.run(sqe, &[])?;
    if cqe.status().is_success() {
        Ok(cqe)
    } else {
        Err(C::refused(cqe.status()))
    }
}

/// Reads a property of the controller.
pub(crate) fn get_property<C: Steps>(
    client: &mut C,
    offset: u32,
    size: PropertySize,
) -> Result<u64, C::Error> {
    succeed(client, Sqe::get_property(offset, size)).map(|cqe| cqe.result())
}

/// Connects the admin queue of any controller, enables it and waits until it is ready. Gives the
/// controller's identifier.
pub(crate) fn open_admin<C: Steps>(client: &mut C, names: &RawNames) -> Result<u16, C::Error> {
    let connected = connect_queue(client, names, CNTLID_DYNAMIC, 0, ENTRIES_Z)?;
    if !connected.status().is_success() {
        return Err(C::refused(connected.status()));
    }
    let enable = u64::from(Cc::enabled_nvm().into_bits());
    let (control, status) = (Register::CC.into_bits(), Register::CSTS.into_bits());
    succeed(
        client,
        Sqe::set_property(control, PropertySize::BYTES_4, enable),
    )?;
    let deadline = Instant::now() + client.limit();
    loop {
        let csts = get_property(client, status, PropertySize::BYTES_4)?;
        if Csts::from_bits(csts as u32).rdy() {
            return Ok(connected.connect_success().cntlid());
        }
        if Instant::now() > deadline {
            return Err(C::timed_out(client.limit()));
        }
    }
}

/// Connects I/O queue `qid` of the controller `cntlid`.
pub(crate) fn open_io<C: Steps>(
    client: &mut C,
    names: &RawNames,
    cntlid: u16,
    qid: u16,
) -> Result<(), C::Error> {
    let connected = connect_queue(client, names, cntlid, qid, ENTRIES_Z)?;
    if connected.status().is_success() {
        Ok(())
    } else {
        Err(C::refused(connected.status()))
    }
}
