//! Checks admin commands: which ones each kind of controller supports, and what each needs before
//! it is executed. The `controller` module implements them.

use nvme_spec::command::{AdminOpcode, CommandDwords, Sqe};
use nvme_spec::fabrics::FabricsType;
use nvme_spec::{Cqe, Status};
use reactors::Nanos;

use crate::controller::events::{EventRequest, RequestOutcome};
use crate::controller::state::ControllerState;
use crate::controller::{AdminContext, Controller, ControllerKind, Effect};
use crate::interface::{Direction, Work, WorkKind};
use crate::io::{DataContext, data_source};
use crate::reservations::PersistenceChange;
use crate::status::{Fault, byte};

/// Largest data of an admin command from the host, in bytes. No feature has more data.
const ADMIN_DATA_MAX_BYTES: u32 = 4096;

/// The remaining work of a checked admin command with data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdminWork {
    pub(crate) opcode: AdminOpcode,
    pub(crate) nsid: u32,
    pub(crate) specific: CommandDwords,
}

impl AdminWork {
    /// The command without its data pointer, for reading its command dwords.
    pub(crate) fn sqe(&self) -> Sqe {
        Sqe {
            specific: self.specific,
            ..Sqe::new(self.opcode.0, self.nsid)
        }
    }

    /// Whether data goes to the host.
    pub(crate) fn is_to_host(&self) -> bool {
        self.opcode != AdminOpcode::SET_FEATURES
    }
}

/// The next step of an admin command.
#[derive(Debug)]
pub(crate) enum AdminStep {
    /// Completes successfully with this result in dwords 0 and 1.
    Complete(u64),
    /// Completes successfully, and the effect follows.
    Changed(Effect),
    /// Moves its data first.
    Work(Work),
    /// Waits for an event.
    Held,
    /// Flushes every volatile cache before it completes successfully.
    FlushAll,
    /// Changes whether the reservations of these devices persist before it completes.
    SetPersistence(PersistenceChange),
    /// Aborts a command of a queue.
    Abort { sqid: u16, command_id: u16 },
}

/// The work of an admin command with data: `needed` bytes to the host, or at least as many from it
/// (Base 2.1 §4.2.3.1, Data SGL Length Invalid: the host's buffer is too short).
pub(crate) fn admin_work(
    sqe: &Sqe,
    direction: Direction,
    needed: u32,
    data: DataContext,
) -> Result<Work, Fault> {
    let (source, length) = data_source(sqe, direction, data)?;
    let length = length.unwrap_or(needed);
    let too_long = direction == Direction::FromHost && length > ADMIN_DATA_MAX_BYTES;
    if length < needed || too_long {
        return Err(Fault::new(Status::DATA_SGL_LENGTH_INVALID).at(byte::SGL));
    }
    let bytes = if direction == Direction::FromHost {
        length
    } else {
        needed
    };
    let kind = WorkKind::Admin(AdminWork {
        opcode: sqe.admin_opcode(),
        nsid: sqe.nsid.get(),
        specific: sqe.specific,
    });
    Ok(Work::with_lease(kind, sqe, direction, bytes, source))
}

impl Controller {
    /// Checks a command of the admin queue, and executes it if that needs no data.
    pub(crate) fn admit(
        &mut self,
        tag: u64,
        sqe: &Sqe,
        data: DataContext,
        context: &AdminContext<'_>,
    ) -> Result<AdminStep, Fault> {
        // Base 2.1 §4.1.1: no admin command is part of a fused operation.
        if sqe.flags.fuse().into_bits() != 0 {
            return Err(Fault::field(byte::FLAGS));
        }
        if sqe.is_fabrics() {
            return self.admit_fabrics(sqe, context);
        }
        let opcode = sqe.admin_opcode();
        if !is_supported(self.kind, opcode) {
            return Err(Fault::new(Status::INVALID_OPCODE).at(byte::OPCODE));
        }
        // Base 2.1 §3.5.2: until CSTS.RDY is 1 only Fabrics commands are processed.
        if self.state != ControllerState::Ready {
            return Err(Fault::new(Status::COMMAND_SEQUENCE_ERROR).at(byte::OPCODE));
        }
        match opcode {
            AdminOpcode::GET_LOG_PAGE => self.get_log_page(sqe, data, context),
            AdminOpcode::IDENTIFY => self.identify(sqe, data, context),
            AdminOpcode::SET_FEATURES => self.set_features(sqe, data, context),
            AdminOpcode::GET_FEATURES => self.get_features(sqe, data, context),
            AdminOpcode::KEEP_ALIVE => Ok(self.keep_alive(context.now)),
            AdminOpcode::ASYNC_EVENT_REQUEST => self.event_request(tag, sqe, context),
            AdminOpcode::ABORT => {
                let command = sqe.abort();
                let (sqid, command_id) = (command.sqid.get(), command.cid.get());
                Ok(AdminStep::Abort { sqid, command_id })
            }
            _ => Err(Fault::new(Status::INVALID_OPCODE).at(byte::OPCODE)),
        }
    }

    /// Fabrics commands on the admin queue (Base 2.1 §6).
    fn admit_fabrics(&mut self, sqe: &Sqe, context: &AdminContext<'_>) -> Result<AdminStep, Fault> {
        match sqe.fctype() {
            FabricsType::PROPERTY_GET => self.get_property(sqe).map(AdminStep::Complete),
            FabricsType::PROPERTY_SET => {
                self.set_property(sqe, context.now).map(AdminStep::Changed)
            }
            // Base 2.1 §6.3: the queue already exists.
            FabricsType::CONNECT => Err(Fault::new(Status::COMMAND_SEQUENCE_ERROR).at(byte::NSID)),
            // Base 2.1 §6.4: only an I/O queue can be disconnected.
            FabricsType::DISCONNECT => {
                Err(Fault::new(Status::DISCONNECT_INVALID_QUEUE_TYPE).at(byte::NSID))
            }
            _ => Err(Fault::new(Status::INVALID_OPCODE).at(byte::NSID)),
        }
    }

    /// Keep Alive (Base 2.1 §5.1.14): restarts the keep-alive timer.
    fn keep_alive(&mut self, now: Nanos) -> AdminStep {
        self.restart_keep_alive(now);
        AdminStep::Complete(0)
    }

    /// Asynchronous Event Request (Base 2.1 §5.1.2).
    fn event_request(
        &mut self,
        tag: u64,
        sqe: &Sqe,
        context: &AdminContext<'_>,
    ) -> Result<AdminStep, Fault> {
        match self.events.request(EventRequest {
            tag,
            command_id: sqe.cid.get(),
        }) {
            RequestOutcome::Event(event) => {
                context.counters.events.add(1);
                Ok(AdminStep::Complete(u64::from(event.into_bits())))
            }
            RequestOutcome::Held => Ok(AdminStep::Held),
            RequestOutcome::LimitExceeded => {
                Err(Fault::new(Status::ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED).at(byte::OPCODE))
            }
        }
    }

    /// Executes a command whose data buffer is present.
    pub(crate) fn execute(
        &mut self,
        work: &AdminWork,
        data: &mut [u8],
        context: &AdminContext<'_>,
    ) -> Result<(), Fault> {
        match work.opcode {
            AdminOpcode::GET_LOG_PAGE => self.write_log_page(work, data, context),
            AdminOpcode::IDENTIFY => self.write_identify(work, data, context),
            AdminOpcode::GET_FEATURES | AdminOpcode::SET_FEATURES => {
                self.execute_feature(work, data, context)
            }
            _ => Err(Fault::new(Status::INVALID_OPCODE).at(byte::OPCODE)),
        }
    }
}

/// Whether a kind of controller supports an admin command. Discovery controllers support Abort too:
/// they have no I/O commands, but a host can abort an event request (Base 2.1 §3.1.3.3).
pub(crate) fn is_supported(kind: ControllerKind, opcode: AdminOpcode) -> bool {
    match opcode {
        AdminOpcode::GET_LOG_PAGE
        | AdminOpcode::IDENTIFY
        | AdminOpcode::ABORT
        | AdminOpcode::SET_FEATURES
        | AdminOpcode::GET_FEATURES
        | AdminOpcode::ASYNC_EVENT_REQUEST
        | AdminOpcode::KEEP_ALIVE => match kind {
            ControllerKind::Io | ControllerKind::Discovery => true,
        },
        _ => false,
    }
}

/// The response to a command with its result in dwords 0 and 1.
pub(crate) fn with_result(response: Cqe, result: u64) -> Cqe {
    Cqe {
        dw0: (result as u32).into(),
        dw1: ((result >> 32) as u32).into(),
        ..response
    }
}
