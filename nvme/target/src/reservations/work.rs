//! Checks reservation commands before their data is moved (Base 2.1 §7.5 to §7.8).

use nvme_spec::command::reservation::{
    AcquireControl, AcquireData, RegisterControl, RegisterData, ReleaseControl,
};
use nvme_spec::command::{Fuse, IoOpcode};
use nvme_spec::{NSID_BROADCAST, Sqe, Status, U32, U64};
use zerocopy::FromBytes;

use super::ReservationCommand;
use crate::interface::{Direction, Work, WorkKind};
use crate::io::{IoContext, IoOperation, IoWork, data_source, namespace};
use crate::status::{Fault, byte};

/// Largest data of a reservation command from the host, in bytes.
const DATA_MAX_BYTES: u32 = 4096;

/// A reservation command that was checked against the namespaces of `epoch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReservationWork {
    pub(crate) opcode: IoOpcode,
    pub(crate) device: u8,
    pub(crate) nsid: u32,
    pub(crate) epoch: u32,
    /// Command Dword 10, or 11 of Reservation Report.
    pub(crate) control: U32,
}

impl ReservationWork {
    /// The command as the gate and the table of executions know it.
    pub(crate) fn io(&self) -> IoWork {
        IoWork {
            operation: IoOperation::Reserve(self.opcode),
            device: self.device,
            blocks: 0,
            lba: 0,
            bytes: 0,
            nsid: self.nsid,
            epoch: self.epoch,
        }
    }

    /// The change of a command with this data; `None` for Reservation Report.
    pub(crate) fn change(&self, data: &[u8]) -> Result<Option<ReservationCommand>, Fault> {
        let too_short = Fault::new(Status::DATA_SGL_LENGTH_INVALID).at(byte::SGL);
        let (opcode, control) = (self.opcode, self.control);
        Ok(Some(match opcode {
            IoOpcode::RESERVATION_REGISTER => {
                let (data, _) = RegisterData::read_from_prefix(data).map_err(|_| too_short)?;
                let control = RegisterControl::from_bits(control);
                ReservationCommand::Register { control, data }
            }
            IoOpcode::RESERVATION_ACQUIRE => {
                let (data, _) = AcquireData::read_from_prefix(data).map_err(|_| too_short)?;
                let control = AcquireControl::from_bits(control);
                ReservationCommand::Acquire { control, data }
            }
            IoOpcode::RESERVATION_RELEASE => {
                let (key, _) = U64::read_from_prefix(data).map_err(|_| too_short)?;
                ReservationCommand::Release {
                    control: ReleaseControl::from_bits(control),
                    current_key: key.get(),
                }
            }
            _ => return Ok(None),
        }))
    }
}

/// Whether this is a reservation command.
pub(crate) fn is_reservation(sqe: &Sqe) -> bool {
    matches!(
        sqe.io_opcode(),
        IoOpcode::RESERVATION_REGISTER
            | IoOpcode::RESERVATION_ACQUIRE
            | IoOpcode::RESERVATION_RELEASE
            | IoOpcode::RESERVATION_REPORT
    )
}

/// Checks a reservation command, except for what depends on the reservations. `transfer_max_bytes`
/// bounds a report (Base 2.1 §5.1.13.2.1, MDTS).
pub(crate) fn check(
    sqe: &Sqe,
    context: &IoContext<'_>,
    transfer_max_bytes: u32,
) -> Result<Work, Fault> {
    // Base 2.1 §3.4.2: only Compare and Write can be fused.
    if sqe.flags.fuse() != Fuse::NORMAL {
        return Err(Fault::field(byte::FLAGS));
    }
    let nsid = sqe.nsid.get();
    // Base 2.1 §8.1.22: a reservation is of one namespace.
    if nsid == NSID_BROADCAST {
        return Err(Fault::new(Status::INVALID_NAMESPACE_OR_FORMAT).at(byte::NSID));
    }
    let namespace = namespace(context.subsystem, nsid)?;
    // Base 2.1 §8.1.22: RESCAP is 0, so the namespace does not have the commands.
    if !namespace.reservations {
        return Err(Fault::new(Status::INVALID_OPCODE).at(byte::OPCODE));
    }
    let opcode = sqe.io_opcode();
    let (direction, needed, control) = match opcode {
        IoOpcode::RESERVATION_REGISTER => {
            let needed = size_of::<RegisterData>() as u32;
            let control = sqe.reservation_register().control.into_bits();
            (Direction::FromHost, needed, control)
        }
        IoOpcode::RESERVATION_ACQUIRE => {
            let needed = size_of::<AcquireData>() as u32;
            let control = sqe.reservation_acquire().control.into_bits();
            (Direction::FromHost, needed, control)
        }
        IoOpcode::RESERVATION_RELEASE => {
            let control = sqe.reservation_release().control.into_bits();
            (Direction::FromHost, size_of::<U64>() as u32, control)
        }
        _ => {
            let command = sqe.reservation_report();
            let length = u32::try_from(command.length_bytes()).ok();
            let length = length.filter(|it| *it <= transfer_max_bytes);
            let length = length.ok_or(Fault::field(byte::CDW10))?;
            (Direction::ToHost, length, command.control.into_bits())
        }
    };
    let (source, length) = data_source(sqe, direction, context.data)?;
    let length = length.unwrap_or(needed);
    let is_too_long = direction == Direction::FromHost && length > DATA_MAX_BYTES;
    if length < needed || is_too_long {
        return Err(Fault::new(Status::DATA_SGL_LENGTH_INVALID).at(byte::SGL));
    }
    let bytes = match direction {
        Direction::FromHost => length,
        Direction::ToHost | Direction::None => needed,
    };
    let kind = WorkKind::Reservation(ReservationWork {
        opcode,
        device: namespace.device,
        nsid,
        epoch: context.epoch,
        control,
    });
    Ok(Work::with_lease(kind, sqe, direction, bytes, source))
}
