//! Admin commands: which there are, on which kind of controller, and what each needs before it can
//! be executed. What they mean stands with the controller.

use nvme_spec::command::{AdminOpcode, CommandDwords, Sqe};
use nvme_spec::fabrics::FabricsType;
use nvme_spec::{Cqe, Status};
use reactors::Nanos;

use crate::controller::events::{EventRequest, RequestOutcome};
use crate::controller::state::ControllerState;
use crate::controller::{AdminContext, Controller, ControllerKind, Effect};
use crate::interface::{Direction, Work, WorkKind};
use crate::io::{DataContext, data_source};
use crate::status::{Fault, byte};

/// Data that an admin command may send: no feature's data is longer.
const ADMIN_DATA_MAX_BYTES: u32 = 4096;

/// An admin command with data that was checked: what is left to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdminWork {
    pub(crate) opcode: AdminOpcode,
    pub(crate) nsid: u32,
    pub(crate) specific: CommandDwords,
}

impl AdminWork {
    /// The command without its data pointer, for the views on its dwords.
    pub(crate) fn sqe(&self) -> Sqe {
        Sqe {
            specific: self.specific,
            ..Sqe::new(self.opcode.0, self.nsid)
        }
    }

    /// Whether the host gets data.
    pub(crate) fn is_to_host(&self) -> bool {
        self.opcode != AdminOpcode::SET_FEATURES
    }
}

/// What there is to do for an admin command.
#[derive(Debug)]
pub(crate) enum AdminStep {
    /// Nothing more: it succeeds with this result in dwords 0 and 1.
    Answer(u64),
    /// It succeeds, and this follows.
    Changed(Effect),
    /// Its data has to be moved first.
    Work(Work),
    /// It waits for an event.
    Held,
    /// Every volatile cache has to be flushed before it succeeds.
    FlushAll,
    /// A command of a queue has to be given up.
    Abort { sqid: u16, command_id: u16 },
}

/// Work for an admin command with data: `needed` bytes to the host, or at least as many from it
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
    Ok(Work {
        kind: WorkKind::Admin(AdminWork {
            opcode: sqe.admin_opcode(),
            nsid: sqe.nsid.get(),
            specific: sqe.specific,
        }),
        bytes,
        command_id: sqe.cid.get(),
        direction,
        needs_lease: true,
        source,
        came: Nanos::ZERO,
        since: Nanos::ZERO,
    })
}

impl Controller {
    /// Checks a command of the admin queue, and obeys it where that needs no data.
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
            FabricsType::PROPERTY_GET => self.get_property(sqe).map(AdminStep::Answer),
            FabricsType::PROPERTY_SET => {
                self.set_property(sqe, context.now).map(AdminStep::Changed)
            }
            // Base 2.1 §6.3: the queue exists already.
            FabricsType::CONNECT => Err(Fault::new(Status::COMMAND_SEQUENCE_ERROR).at(byte::NSID)),
            // Base 2.1 §6.4: only an I/O queue can be disconnected.
            FabricsType::DISCONNECT => {
                Err(Fault::new(Status::DISCONNECT_INVALID_QUEUE_TYPE).at(byte::NSID))
            }
            _ => Err(Fault::new(Status::INVALID_OPCODE).at(byte::NSID)),
        }
    }

    /// Keep Alive (Base 2.1 §5.1.14): starts the timer anew.
    fn keep_alive(&mut self, now: Nanos) -> AdminStep {
        self.restart_silence(now);
        AdminStep::Answer(0)
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
                Ok(AdminStep::Answer(u64::from(event.into_bits())))
            }
            RequestOutcome::Held => Ok(AdminStep::Held),
            RequestOutcome::LimitExceeded => {
                Err(Fault::new(Status::ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED).at(byte::OPCODE))
            }
        }
    }

    /// Executes a command whose data is at hand.
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

/// Admin commands of a kind of controller. Discovery controllers have no namespaces, so they have
/// no Abort of I/O to do either, but Abort of an event request is as useful there (Base 2.1
/// §3.1.3.3).
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

/// The response to a command that has its result in dwords 0 and 1.
pub(crate) fn with_result(response: Cqe, result: u64) -> Cqe {
    Cqe {
        dw0: (result as u32).into(),
        dw1: ((result >> 32) as u32).into(),
        ..response
    }
}
