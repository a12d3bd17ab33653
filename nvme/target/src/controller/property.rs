//! Controller properties: Property Get and Property Set (Base 2.1 §6.5, §6.6, §3.1.4).

use nvme_spec::command::Sqe;
use nvme_spec::fabrics::PropertySize;
use nvme_spec::registers::{
    Arbitration, Cap, Cc, CommandSetSelected, CommandSetsSupported, Crto, IOCQES_NVM, IOSQES_NVM,
    Register, ShutdownNotification, Version,
};
use reactors::Nanos;

use super::state::ControllerEvent;
use super::{Controller, ControllerKind, Effect};
use crate::status::{Fault, byte};
use crate::view::QUIESCE_TIME_MAX;

/// The specification version that the target implements.
pub(crate) const VERSION: Version = Version::V2_1;

/// Unit of CAP.TO and CRTO (Base 2.1 §3.1.4.1, §3.1.4.21).
const READY_TIMEOUT_UNIT: Nanos = Nanos::from_millis(500);

/// Byte offset of the value of Property Set in the command.
const VALUE_BYTE: u16 = 48;

/// Time for CSTS.RDY to follow CC.EN in units of 500 ms, for CRTO.CRWMT. A reset waits for requests
/// in devices, and a new controller waits for those of an earlier association of its host.
const READY_TIMEOUT_500MS: u64 = QUIESCE_TIME_MAX
    .as_nanos()
    .div_ceil(READY_TIMEOUT_UNIT.as_nanos());

// Base 2.1 §3.1.4.1, TO: FFh where CRTO.CRWMT is larger.
const _: () = assert!(READY_TIMEOUT_500MS < u8::MAX as u64);

/// Controller Capabilities (Base 2.1 §3.1.4.1).
pub(crate) fn capabilities(queue_depth_max: u16) -> Cap {
    Cap::new()
        .with_mqes_z(queue_depth_max - 1)
        // Base 2.1 §3.1.4.1: 1 over fabrics, and DSTRD 0.
        .with_cqr(true)
        .with_to(READY_TIMEOUT_500MS as u8)
        .with_css(CommandSetsSupported::new().with_nvm(true).with_profiles(true))
        .with_crwms(true)
}

impl Controller {
    /// Property Get: the value of a property.
    pub(crate) fn get_property(&self, sqe: &Sqe) -> Result<u64, Fault> {
        let property = sqe.property();
        let register = Register(property.offset.get());
        check_size(register, property.attrib.size())?;
        match register {
            Register::CAP => Ok(capabilities(self.shared.identity.queue_depth_max).into_bits()),
            Register::VS => Ok(u64::from(VERSION.into_bits())),
            Register::CC => Ok(u64::from(self.cc.into_bits())),
            Register::CSTS => Ok(u64::from(self.state.csts().into_bits())),
            Register::CRTO => {
                let crto = Crto::new().with_crwmt(READY_TIMEOUT_500MS as u16);
                Ok(u64::from(crto.into_bits()))
            }
            // Base 2.1 §6.5: NSSR and NSSD are not supported (CAP.NSSRS and CAP.NSSS are 0).
            _ => Err(Fault::field(byte::CDW11)),
        }
    }

    /// Property Set: CC is the only writable property.
    pub(crate) fn set_property(&mut self, sqe: &Sqe, now: Nanos) -> Result<Effect, Fault> {
        let property = sqe.property();
        let register = Register(property.offset.get());
        check_size(register, property.attrib.size())?;
        if register != Register::CC {
            // Base 2.1 §6.6: CAP, VS, CSTS and CRTO are read-only, and the others do not exist.
            return Err(Fault::field(byte::CDW11));
        }
        // A property of 4 bytes is in the low half.
        let wanted = Cc::from_bits(property.sized_value() as u32);
        self.set_configuration(wanted, now)
    }

    /// Applies a write of CC (Base 2.1 §3.1.4.5). If one write changes several fields, a change of
    /// CC.EN has precedence.
    fn set_configuration(&mut self, wanted: Cc, now: Nanos) -> Result<Effect, Fault> {
        let before = self.cc;
        if wanted.en() && before.en() && !same_when_enabled(before, wanted) {
            // Base 2.1 §3.1.4.5: these fields may only change while the controller is disabled.
            return Err(Fault::field(VALUE_BYTE));
        }
        self.cc = wanted;
        match (before.en(), wanted.en()) {
            (true, false) => return Ok(self.apply(ControllerEvent::Disable, now)),
            (false, true) => return Ok(self.enable(now)),
            (true, true) | (false, false) => {}
        }
        if before.shn() == wanted.shn() {
            return Ok(Effect::None);
        }
        let event = match wanted.shn() {
            ShutdownNotification::NORMAL => ControllerEvent::ShutdownNormal,
            ShutdownNotification::ABRUPT => ControllerEvent::ShutdownAbrupt,
            _ => return Ok(Effect::None),
        };
        Ok(self.apply(event, now))
    }

    /// Handles CC.EN set to 1: enables the controller, or fails it if CC requests what CAP does not
    /// offer.
    fn enable(&mut self, now: Nanos) -> Effect {
        let event = if self.accepts(self.cc) {
            ControllerEvent::Enable
        } else {
            ControllerEvent::EnableInvalid
        };
        self.apply(event, now)
    }

    /// Completes a reset after the last I/O queue has ended. If the host has set CC.EN again
    /// without waiting for CSTS.RDY, enables the controller now.
    pub(crate) fn reset_done(&mut self, now: Nanos) -> Effect {
        let effect = self.apply(ControllerEvent::IoQueuesEnded, now);
        if self.cc.en() {
            self.enable(now)
        } else {
            effect
        }
    }

    /// Whether the controller can be enabled with this configuration (Base 2.1 §3.1.4.5).
    fn accepts(&self, cc: Cc) -> bool {
        let sizes = match self.kind {
            ControllerKind::Io => cc.iosqes() == IOSQES_NVM && cc.iocqes() == IOCQES_NVM,
            // A discovery controller has no I/O queues (Base 2.1 §3.1.3.3).
            ControllerKind::Discovery => true,
        };
        let sets = matches!(
            cc.css(),
            CommandSetSelected::NVM | CommandSetSelected::ALL_SUPPORTED
        );
        // CAP.MPSMIN and MPSMAX are 0, CAP.AMS is 0, CAP.CRMS has no CRIMS.
        sizes && sets && cc.mps() == 0 && cc.ams() == Arbitration::ROUND_ROBIN && !cc.crime()
    }
}

/// Base 2.1 §6.5, §6.6: the size in the command must be the property's, and the property must exist
/// over fabrics.
fn check_size(register: Register, size: PropertySize) -> Result<(), Fault> {
    if !register.is_for_fabrics() {
        return Err(Fault::field(byte::CDW11));
    }
    match register.size() {
        Some(width) if width == size => Ok(()),
        _ => Err(Fault::field(byte::CDW10)),
    }
}

/// Whether a write keeps the fields that may change only while disabled.
fn same_when_enabled(before: Cc, wanted: Cc) -> bool {
    before.css() == wanted.css()
        && before.mps() == wanted.mps()
        && before.ams() == wanted.ams()
        && before.crime() == wanted.crime()
}
