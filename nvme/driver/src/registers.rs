//! Typed access to the controller's registers (Base 2.1 §3.1.4).

use std::io;

use nvme_spec::registers::{
    Cap, Cc, Crto, Csts, REGISTER_GONE_U32, Register, ShutdownNotification, Version,
};
use reactors::Nanos;

use crate::backing::DeviceBacking;
use crate::startup::offset;

/// Minimum time for a controller to become ready, if it reports no time.
const READY_TIMEOUT_MIN: Nanos = Nanos::from_millis(500);

/// A view of a drive's registers. Reads return `None` if the drive is gone.
#[derive(Clone, Copy)]
pub(crate) struct Registers<'a>(&'a dyn DeviceBacking);

impl<'a> Registers<'a> {
    pub(crate) fn new(backing: &'a dyn DeviceBacking) -> Self {
        Self(backing)
    }

    fn read(self, register: Register) -> Option<u32> {
        let value = self.0.read_u32(offset(register));
        (value != REGISTER_GONE_U32).then_some(value)
    }

    pub(crate) fn cap(self) -> Option<Cap> {
        let value = self.0.read_u64(offset(Register::CAP));
        (value != u64::MAX).then(|| Cap::from_bits(value))
    }

    pub(crate) fn version(self) -> Option<Version> {
        self.read(Register::VS).map(Version::from_bits)
    }

    pub(crate) fn cc(self) -> Option<Cc> {
        self.read(Register::CC).map(Cc::from_bits)
    }

    pub(crate) fn set_cc(self, cc: Cc) {
        self.0.write_u32(offset(Register::CC), cc.into_bits());
    }

    /// Prevents the function's access to memory for certain. If the registers read as all ones, the
    /// function is off the bus and nothing else is needed (see [`crate::shared`]).
    pub(crate) fn stop_dma(self) -> io::Result<()> {
        let stopped = self.0.set_bus_master(false);
        match self.csts() {
            Some(_) => stopped,
            None => Ok(()),
        }
    }

    /// Notifies the controller that power may be lost soon (Base 2.1 §3.6.1).
    pub(crate) fn notify_shutdown(self) {
        if let Some(cc) = self.cc() {
            self.set_cc(cc.with_shn(ShutdownNotification::NORMAL));
        }
    }

    pub(crate) fn csts(self) -> Option<Csts> {
        self.read(Register::CSTS).map(Csts::from_bits)
    }

    /// Time within which CSTS.RDY follows CC.EN: CAP.TO, or CRTO if longer (Base 2.1 §3.1.4.21:
    /// CAP.TO saturates).
    pub(crate) fn ready_timeout(self, cap: Cap) -> Nanos {
        let mut units_ms = u64::from(cap.timeout_ms());
        if cap.crwms()
            && let Some(crto) = self.read(Register::CRTO).map(Crto::from_bits)
        {
            units_ms = units_ms.max(u64::from(crto.crwmt()) * 500);
        }
        Nanos::from_millis(units_ms).max(READY_TIMEOUT_MIN)
    }
}
